//! Messages that the upstream has refused permanently: kept in a local queue, with the reason in their headers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::{FieldTable, FieldValue, Properties};
use broker::{Body, Delivery, Fetched, Moving, Queue, Returned, Timestamp, Waiter};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use spool::{Envelope, MessageRefusal, SpooledMessage};

use super::local::{LocalSpool, SpoolQueue, persistent};
use super::selection::SpoolSelection;

/// The maximum of parked messages that are listed, and of their records' bytes, since they are in memory meanwhile.
const LISTED: usize = 10_000;
const LISTED_BYTES: u64 = 32 << 20;

/// The maximum of messages, and of their records' bytes, that move to a main queue in one step.
const MOVED: usize = 1_000;
const MOVED_BYTES: u64 = 8 << 20;

/// How long reading from disk may take before the remaining messages are skipped.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// The headers of a parked message. Its body is the spooled record.
const CODE: &str = "x-leveret-refused-code";
const REASON: &str = "x-leveret-refused-reason";
const REFUSED_AT: &str = "x-leveret-refused-at";
const ACCEPTED_AT: &str = "x-leveret-accepted-at";
const VHOST: &str = "x-leveret-vhost";
const USER: &str = "x-leveret-user";
const EXCHANGE: &str = "x-leveret-exchange";
const ROUTING_KEY: &str = "x-leveret-routing-key";

/// The queue of parked messages. One caller at a time reads its messages, which blocks on the disk.
pub(super) struct ParkedQueue {
    queue: Arc<Queue>,
    reading: Mutex<()>,
    /// Bytes of the messages that are being read.
    read_bytes: AtomicU64,
    tallies: Mutex<ParkedTallies>,
}

/// Bytes of parked messages by virtual host and user: of those parked since the start, and of earlier ones once an
/// operation has scanned them.
#[derive(Default)]
struct ParkedTallies(HashMap<Box<str>, HashMap<Box<str>, u64>>);

impl ParkedTallies {
    fn of(&self, vhost: &str, user: &str) -> u64 {
        self.0.get(vhost).and_then(|users| users.get(user)).copied().unwrap_or_default()
    }

    fn add(&mut self, vhost: &str, user: &str, bytes: u64) {
        *self.0.entry(vhost.into()).or_default().entry(user.into()).or_default() += bytes;
    }
}

/// A parked message, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedMessage {
    /// The virtual host upstream.
    pub vhost: String,
    /// The user who published it.
    pub user: String,
    /// The exchange, empty for the default one.
    pub exchange: String,
    /// The routing key with which it would be published again.
    pub routing_key: String,
    /// The reply text of the upstream's refusal, or the reason why its record is unreadable.
    pub reason: String,
    /// The time of acceptance, in milliseconds since 1970 on the wall clock; 0 if unknown.
    pub accepted_at: i64,
    /// The time of refusal, like `accepted_at`.
    pub refused_at: i64,
    /// Bytes of its body; 0 if its record is unreadable.
    pub body_bytes: u64,
}

/// A parked message that has been read: its record and its delivery.
type ReadMessage = (Envelope, Delivery);

impl ParkedQueue {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, reading: Mutex::default(), read_bytes: AtomicU64::new(0), tallies: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Number of parked messages.
    pub(super) fn count(&self) -> u64 {
        let view = self.queue.view();
        view.ready + view.unacknowledged
    }

    /// Bytes of the parked messages' records.
    pub(super) fn bytes(&self) -> u64 {
        self.queue.view().ready_bytes + self.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of a user's parked messages in a virtual host, as far as known: those from before a restart belong to nobody
    /// at first.
    pub(super) fn bytes_of(&self, vhost: &str, user: &str) -> u64 {
        self.tallies.lock().of(vhost, user)
    }

    /// Parks a message taken from another queue, in one step on disk.
    ///
    /// # Errors
    /// It could not be parked, and is still unacknowledged.
    pub(super) fn park(
        &self,
        from: &Queue,
        delivery: Delivery,
        envelope: &Envelope,
        refusal: &MessageRefusal,
        now: Timestamp,
    ) -> Result<(), Vec<Delivery>> {
        let time = |ms: u64| FieldValue::I64(i64::try_from(ms).unwrap_or(i64::MAX));
        let headers: FieldTable = [
            (CODE, FieldValue::I64(refusal.code.into())),
            (REASON, FieldValue::text(&*refusal.text)),
            (REFUSED_AT, time(now.0)),
            (ACCEPTED_AT, time(envelope.accepted_at())),
            (VHOST, FieldValue::text(envelope.vhost())),
            (USER, FieldValue::text(envelope.user())),
            (EXCHANGE, FieldValue::text(envelope.exchange())),
            (ROUTING_KEY, FieldValue::text(envelope.routing_key())),
        ]
        .into_iter()
        .collect();
        let owner = (envelope.vhost(), envelope.user());
        self.store(from, delivery, envelope.bytes().clone(), owner, &headers, now)
    }

    /// Parks a message that is no record of this release.
    ///
    /// # Errors
    /// As of [`Self::park`].
    pub(super) fn park_unknown(
        &self,
        from: &Queue,
        delivery: Delivery,
        bytes: Bytes,
        queue: &SpoolQueue,
        reason: &str,
        now: Timestamp,
    ) -> Result<(), Vec<Delivery>> {
        let headers = [
            (REASON, FieldValue::text(reason)),
            (VHOST, FieldValue::text(queue.vhost())),
            (USER, FieldValue::text(queue.user())),
        ];
        let headers = headers.into_iter().collect();
        self.store(from, delivery, bytes, (queue.vhost(), queue.user()), &headers, now)
    }

    fn store(
        &self,
        from: &Queue,
        delivery: Delivery,
        bytes: Bytes,
        (vhost, user): (&str, &str),
        headers: &FieldTable,
        now: Timestamp,
    ) -> Result<(), Vec<Delivery>> {
        let (length, chunks) = (bytes.len() as u64, [bytes]);
        let moving = Moving::changed(delivery, &persistent(Some(headers)), Body::Chunks(&chunks));
        from.move_to(&self.queue, vec![moving], now)?;
        self.tallies.lock().add(vhost, user, length);
        Ok(())
    }

    /// The first parked messages, oldest first.
    pub(super) fn list(&self, local: &LocalSpool, now: Timestamp) -> Vec<ParkedMessage> {
        let _turn = self.reading.lock();
        let deliveries = self.read(LISTED, LISTED_BYTES, now);
        let messages = deliveries.iter().map(|delivery| describe(delivery, local)).collect();
        self.queue.requeue(deliveries, Returned::Released, now);
        self.read_bytes.store(0, Ordering::Relaxed);
        messages
    }

    /// Drops parked messages; returns their number.
    pub(super) fn purge(&self, selection: SpoolSelection<'_>, now: Timestamp) -> u64 {
        let _turn = self.reading.lock();
        if selection.is_everything() {
            // A message parked in between is counted for nobody.
            *self.tallies.lock() = ParkedTallies::default();
            return self.queue.purge().0;
        }
        let mut count = 0;
        self.scan_parked(selection, now, |dropped| {
            count += dropped.len() as u64;
            self.queue.ack(dropped, now);
            Vec::new()
        });
        count
    }

    /// Moves the present parked messages to the ends of their main queues. `queue_of` finds a message's main queue.
    /// Returns their number.
    pub(super) fn requeue(
        &self,
        local: &LocalSpool,
        selection: SpoolSelection<'_>,
        now: Instant,
        queue_of: impl Fn(&Envelope) -> Option<Arc<SpoolQueue>>,
    ) -> u64 {
        let _turn = self.reading.lock();
        let now = local.timestamp(now);
        let mut moved = 0;
        self.scan_parked(selection, now, |selected| {
            let mut staying = Vec::new();
            let mut runs: Vec<(Arc<SpoolQueue>, Vec<ReadMessage>)> = Vec::new();
            for delivery in selected {
                let envelope = Envelope::decode(delivery.message().body().to_bytes()).ok();
                match envelope.and_then(|envelope| Some((queue_of(&envelope)?, envelope))) {
                    None => staying.push(delivery),
                    Some((queue, envelope)) => match runs.last_mut() {
                        Some((last, run)) if Arc::ptr_eq(last, &queue) => run.push((envelope, delivery)),
                        _ => runs.push((queue, vec![(envelope, delivery)])),
                    },
                }
            }
            for (queue, run) in runs {
                match self.forward_again(local, &queue, run, now) {
                    Ok(count) => moved += count,
                    Err(deliveries) => staying.extend(deliveries),
                }
            }
            staying
        });
        local.check_limits();
        moved
    }

    /// Goes once over the messages that are parked now, a batch at a time, and calls `act` with the selected ones. Those that
    /// it returns, and all others, stay parked in their order, behind later ones, so that the next batch can be read without
    /// them in memory. Their users are known from then on.
    fn scan_parked(
        &self,
        selection: SpoolSelection<'_>,
        now: Timestamp,
        mut act: impl FnMut(Vec<Delivery>) -> Vec<Delivery>,
    ) {
        // Messages that stay, and messages that are parked meanwhile, have later positions.
        let end = self.queue.next_position();
        *self.tallies.lock() = ParkedTallies::default();
        loop {
            let mut batch = self.read(MOVED, MOVED_BYTES, now);
            let count = batch.iter().take_while(|delivery| delivery.position() < end).count();
            let later = batch.split_off(count);
            let is_over = batch.is_empty() || !later.is_empty();
            let (mut selected, mut staying) = (Vec::new(), Vec::new());
            for delivery in batch {
                let headers = headers_of(&delivery);
                let (vhost, user) = owner_of(&headers);
                if selection.contains(vhost, user) {
                    selected.push(delivery);
                } else {
                    self.tally((vhost, user), &delivery);
                    staying.push(delivery);
                }
            }
            for delivery in act(selected) {
                self.tally(owner_of(&headers_of(&delivery)), &delivery);
                staying.push(delivery);
            }
            staying.sort_unstable_by_key(Delivery::position);
            let staying = staying.into_iter().map(Moving::unchanged).collect();
            if let Err(deliveries) = self.queue.move_to(&self.queue, staying, now) {
                // The queue was deleted, and nothing more can be read.
                self.queue.requeue(deliveries, Returned::Released, now);
            }
            self.queue.requeue(later, Returned::Released, now);
            self.read_bytes.store(0, Ordering::Relaxed);
            if is_over {
                return;
            }
        }
    }

    /// Counts a message as one of its user's.
    fn tally(&self, (vhost, user): (&str, &str), delivery: &Delivery) {
        self.tallies.lock().add(vhost, user, delivery.message().body_len() as u64);
    }

    /// Moves a user's messages; returns their number.
    ///
    /// # Errors
    /// They could not be moved, and are still unacknowledged.
    fn forward_again(
        &self,
        local: &LocalSpool,
        queue: &SpoolQueue,
        run: Vec<ReadMessage>,
        now: Timestamp,
    ) -> Result<u64, Vec<Delivery>> {
        local.reopened();
        let (properties, count, mut bytes) = (persistent(None), run.len() as u64, 0);
        let mut moving = Vec::with_capacity(run.len());
        for (envelope, delivery) in run {
            let record = renewed(&envelope, now);
            // Counted before the forwarder can subtract it.
            local.accepted(queue, record.len() as u64, now.0);
            bytes += record.len() as u64;
            moving.push(Moving::changed(delivery, &properties, Body::Chunks(&[record])));
        }
        // Must precede the move, so that the forwarder publishes the messages even if it knows a refusal of their
        // destination.
        queue.requeued();
        if let Err(deliveries) = self.queue.move_to(queue.queue(), moving, now) {
            tracing::error!("cannot requeue parked messages: queue deleted");
            local.left(queue, bytes);
            return Err(deliveries);
        }
        queue.waker().wake();
        Ok(count)
    }

    /// Takes messages up to these limits, but at least one if there is any.
    fn read(&self, messages: usize, bytes: u64, now: Timestamp) -> Vec<Delivery> {
        let loaded = Arc::new(Loaded::default());
        let waiter: Arc<dyn Waiter> = Arc::clone(&loaded) as _;
        let (mut taken, mut size) = (Vec::new(), 0);
        while taken.len() < messages && size < bytes {
            match self.queue.fetch_unrecorded(now, &waiter) {
                Fetched::Got(got) => {
                    size += got.delivery.message().body_len() as u64;
                    self.read_bytes.store(size, Ordering::Relaxed);
                    taken.push(got.delivery);
                }
                Fetched::Later if loaded.wait() => {}
                Fetched::Later | Fetched::Empty => break,
            }
        }
        taken
    }
}

/// Wakes a thread that waits for a message to be read from disk.
#[derive(Default)]
struct Loaded {
    is_loaded: Mutex<bool>,
    changed: Condvar,
}

impl Loaded {
    /// Blocks until it is woken. Returns false after a timeout.
    fn wait(&self) -> bool {
        let mut is_loaded = self.is_loaded.lock();
        if !*is_loaded {
            self.changed.wait_for(&mut is_loaded, READ_LIMIT);
        }
        std::mem::take(&mut *is_loaded)
    }
}

impl Waiter for Loaded {
    fn wake(&self) {
        *self.is_loaded.lock() = true;
        self.changed.notify_all();
    }
}

/// The record of a message that is forwarded again. Its age starts anew, since an old message would block publishers.
fn renewed(envelope: &Envelope, now: Timestamp) -> Bytes {
    let mut bytes = Vec::new();
    let message = SpooledMessage { accepted_at: now.0, ..envelope.message() };
    match message.encode(&mut bytes) {
        Ok(()) => bytes.into(),
        // Cannot fail, since it has the parts of a record that was read.
        Err(_) => envelope.bytes().clone(),
    }
}

fn headers_of(delivery: &Delivery) -> FieldTable {
    let properties = Properties::decode(delivery.message().properties()).unwrap_or_default();
    properties.headers.map(|headers| headers.decode()).unwrap_or_default()
}

/// The virtual host and the user of a parked message; empty if it is nobody's.
fn owner_of(headers: &FieldTable) -> (&str, &str) {
    (text_of(headers, VHOST), text_of(headers, USER))
}

fn text_of<'h>(headers: &'h FieldTable, key: &str) -> &'h str {
    headers.get(key).and_then(FieldValue::as_text).unwrap_or_default()
}

fn describe(delivery: &Delivery, local: &LocalSpool) -> ParkedMessage {
    let headers = headers_of(delivery);
    let text = |key: &str| text_of(&headers, key).to_owned();
    let time = |key: &str| {
        let stored = headers.get(key).and_then(FieldValue::as_integer);
        let wall = stored.and_then(|at| u64::try_from(at).ok()).map(|at| local.wall_time(Timestamp(at)).0);
        wall.and_then(|at| i64::try_from(at).ok()).unwrap_or_default()
    };
    let envelope = Envelope::decode(delivery.message().body().to_bytes()).ok();
    ParkedMessage {
        vhost: text(VHOST),
        user: text(USER),
        exchange: text(EXCHANGE),
        routing_key: text(ROUTING_KEY),
        reason: text(REASON),
        accepted_at: time(ACCEPTED_AT),
        refused_at: time(REFUSED_AT),
        body_bytes: envelope.map_or(0, |envelope| envelope.body().len() as u64),
    }
}
