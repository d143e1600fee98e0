//! Messages that the upstream refuses for good go to a local queue, with the reason in their headers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use amqp::{FieldTable, FieldValue, Properties};
use broker::{Body, BodyView, Delivery, Lsn, Publish, Publisher, Returned, Waiter};
use bytes::Bytes;
use spool::{Envelope, MessageRefusal, SpooledMessage};

use super::local::{LocalSpool, SpoolQueue, persistent};

/// Most parked messages that one call reads.
const AT_ONCE: usize = 10_000;

/// The headers of a parked message, whose body is its record.
const CODE: &str = "x-leveret-refused-code";
const REASON: &str = "x-leveret-refused-reason";
const REFUSED_AT: &str = "x-leveret-refused-at";
const ACCEPTED_AT: &str = "x-leveret-accepted-at";
const VHOST: &str = "x-leveret-vhost";
const USER: &str = "x-leveret-user";
const EXCHANGE: &str = "x-leveret-exchange";
const ROUTING_KEY: &str = "x-leveret-routing-key";

/// Parks messages of one local queue. They may leave that queue once they are on disk as parked ones.
pub(super) struct Parking {
    local: Arc<LocalSpool>,
    publisher: Publisher,
    /// Woken when parked messages are on disk.
    waiter: Arc<dyn Waiter>,
    /// Parked messages that are not on disk as such, in order.
    waiting: VecDeque<(Option<Lsn>, Delivery)>,
}

impl Parking {
    pub(super) fn new(local: &Arc<LocalSpool>, waiter: &Arc<dyn Waiter>) -> Self {
        Self {
            publisher: local.publisher(),
            local: Arc::clone(local),
            waiter: Arc::clone(waiter),
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn park(
        &mut self,
        envelope: &Envelope,
        refusal: &MessageRefusal,
        delivery: Delivery,
        now: Instant,
    ) {
        let time = |ms: u64| FieldValue::I64(i64::try_from(ms).unwrap_or(i64::MAX));
        let headers: FieldTable = [
            (CODE, FieldValue::I64(refusal.code.into())),
            (REASON, FieldValue::text(&*refusal.text)),
            (REFUSED_AT, time(self.local.timestamp(now).0)),
            (ACCEPTED_AT, time(envelope.accepted_at())),
            (VHOST, FieldValue::text(envelope.vhost())),
            (USER, FieldValue::text(envelope.user())),
            (EXCHANGE, FieldValue::text(envelope.exchange())),
            (ROUTING_KEY, FieldValue::text(envelope.routing_key())),
        ]
        .into_iter()
        .collect();
        self.store(envelope.bytes().clone(), &headers, delivery, now);
    }

    /// Parks a message that is no record of this release.
    pub(super) fn park_unknown(&mut self, bytes: Bytes, reason: &str, delivery: Delivery, now: Instant) {
        let headers = [(REASON, FieldValue::text(reason))].into_iter().collect();
        self.store(bytes, &headers, delivery, now);
    }

    fn store(&mut self, bytes: Bytes, headers: &FieldTable, delivery: Delivery, now: Instant) {
        let now = self.local.timestamp(now);
        let properties = persistent(Some(headers));
        let (chunks, routing_key) = ([bytes], Arc::clone(self.local.parked().name()));
        let (exchange, body) = ("", Body::Chunks(&chunks));
        let publish = Publish { exchange, routing_key: &routing_key, properties: &properties, body };
        let refused = match self.publisher.publish(publish, now) {
            Ok(true) => None,
            Ok(false) => Some("its queue is gone".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = refused {
            // It stays in its queue until the next start.
            tracing::error!(error, "message could not be parked");
            return;
        }
        self.local.parked_more(delivery.message().body_len() as u64);
        let until = self.publisher.flush_all(now).until;
        if let (Some(until), Some(store)) = (until, self.local.store()) {
            store.wait(until, Arc::clone(&self.waiter));
        }
        self.waiting.push_back((until, delivery));
    }

    /// Takes the messages that are on disk as parked ones by now.
    pub(super) fn take_stored(&mut self) -> Vec<Delivery> {
        let durable = self.local.store().map(|store| store.durable());
        let is_stored =
            |until: Option<Lsn>| until.is_none_or(|until| durable.is_none_or(|durable| until <= durable));
        let count = self.waiting.iter().take_while(|(until, _)| is_stored(*until)).count();
        self.waiting.drain(..count).map(|(_, delivery)| delivery).collect()
    }
}

/// A parked message, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedMessage {
    /// The virtual host upstream.
    pub vhost: String,
    /// The user who has published it.
    pub user: String,
    /// The exchange, empty for the default one.
    pub exchange: String,
    /// The routing key, with which it would be published again.
    pub routing_key: String,
    /// The reply text of the upstream's refusal, or why its record cannot be read.
    pub reason: String,
    /// When it was accepted and refused, in milliseconds since 1970; 0 if that is not known.
    pub accepted_at: i64,
    /// See `accepted_at`.
    pub refused_at: i64,
    /// Bytes of its body; 0 if its record cannot be read.
    pub body_bytes: u64,
}

/// The first parked messages, oldest first: those of them that are in memory.
pub(super) fn parked_messages(local: &LocalSpool, now: Instant) -> Vec<ParkedMessage> {
    let deliveries = take(local, now);
    let messages = deliveries.iter().map(describe).collect();
    local.parked().requeue(deliveries, Returned::Released, local.timestamp(now));
    messages
}

/// Takes parked messages to forward them again, as far as they are in memory. Calls `queue_of` for the local queue of each.
/// Returns their number.
pub(super) fn requeue(
    local: &LocalSpool,
    now: Instant,
    mut queue_of: impl FnMut(&Envelope) -> Option<Arc<SpoolQueue>>,
) -> usize {
    let at = local.timestamp(now);
    let mut publisher = local.publisher();
    let (mut done, mut left, mut queues) = (Vec::new(), Vec::new(), Vec::new());
    for delivery in take(local, now) {
        let Ok(envelope) = Envelope::decode(record(&delivery)) else {
            left.push(delivery);
            continue;
        };
        let Some(queue) = queue_of(&envelope) else {
            left.push(delivery);
            continue;
        };
        // Its age begins anew, or an old message would block publishers.
        let mut bytes = Vec::new();
        let message = SpooledMessage {
            vhost: envelope.vhost(),
            user: envelope.user(),
            exchange: envelope.exchange(),
            routing_key: envelope.routing_key(),
            accepted_at: at.0,
            id: envelope.id(),
            properties: envelope.properties(),
            body: envelope.body(),
        };
        let length = message.encode(&mut bytes).map(|()| bytes.len() as u64);
        let (chunks, routing_key) = ([Bytes::from(bytes)], Arc::clone(queue.queue().name()));
        let properties = persistent(None);
        let body = Body::Chunks(&chunks);
        let publish = Publish { exchange: "", routing_key: &routing_key, properties: &properties, body };
        match length.map(|length| (length, publisher.publish(publish, at))) {
            Ok((length, Ok(true))) => {
                local.accepted(&queue, length, at.0);
                local.parked_less(delivery.message().body_len() as u64);
                done.push(delivery);
                queues.push(queue);
            }
            _ => left.push(delivery),
        }
    }
    // Before the messages are there: a forwarder that reads one has heard of it.
    queues.iter().for_each(|queue| queue.requeued());
    publisher.flush_all(at);
    let count = done.len();
    // Behind the messages in the same log: a crash cannot keep this and lose them.
    local.parked().ack(done, at);
    local.parked().requeue(left, Returned::Released, at);
    queues.iter().for_each(|queue| queue.waker().wake());
    count
}

fn take(local: &LocalSpool, now: Instant) -> Vec<Delivery> {
    let at = local.timestamp(now);
    let next = || local.parked().get(false, at).map(|got| got.delivery);
    std::iter::from_fn(next).take(AT_ONCE).collect()
}

fn record(delivery: &Delivery) -> Bytes {
    match delivery.message().body() {
        BodyView::Inline(bytes) => Bytes::copy_from_slice(bytes),
        BodyView::Chunks(chunks) => chunks.concat().into(),
    }
}

fn describe(delivery: &Delivery) -> ParkedMessage {
    let properties = Properties::decode(delivery.message().properties()).unwrap_or_default();
    let headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
    let text = |key: &str| headers.get(key).and_then(FieldValue::as_text).unwrap_or_default().to_owned();
    let time = |key: &str| headers.get(key).and_then(FieldValue::as_integer).unwrap_or_default();
    let envelope = Envelope::decode(record(delivery)).ok();
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
