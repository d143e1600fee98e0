//! The memory budget for partially received messages on the embedded broker.
//!
//! Each connection may hold [`FREE`] bytes regardless of the others; a connection with more counts towards a total. When
//! the total is reached, a connection whose client sends more of a body is not read any more and joins a wait queue. The
//! first in the queue is *admitted*: it may exceed the total until its messages are complete, and then the next one is
//! admitted. So large messages that come at once are received one after another, and only one connection exceeds the
//! total. Connections that hold bytes without completing their messages are closed after [`TIMEOUT`], which runs only
//! while the total is reached, and not while they wait.
//!
//! Example: with a total of 256 MiB, two clients have sent 127 MiB of 128 MiB each, and a third starts a message of that
//! size. The third waits after its first 2 MiB. The first client that sends more is admitted and completes its message,
//! which frees capacity for the third.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amqp::error::{Fault, ReplyCode};
use parking_lot::Mutex;
use transport::Outbox;

/// Bytes of incomplete messages that a connection may hold uncounted: most messages arrive whole in one read,
/// and the first allocation for a body has this size.
const FREE: usize = 64 * 1024;

/// How long a connection may hold bytes that others lack without completing its messages, or sending [`PROGRESS`] bytes
/// of them: the time that a client has to log in.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes per [`TIMEOUT`] that keep a connection from being closed: 128 MiB, the default maximum message size, may take
/// minutes over a slow link, but no more than five.
const PROGRESS: usize = 4 << 20;

/// The budget of all connections.
#[derive(Debug)]
pub(crate) struct Incomplete {
    /// Bytes counted towards the total.
    bytes: AtomicUsize,
    /// The total allowed, in bytes.
    most: usize,
    /// Whether the total was reached. Until the count is a quarter below it, connections that send more have to wait.
    is_full: AtomicBool,
    /// Number for the next connection.
    next_id: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Connections that count or wait.
    holders: HashMap<u64, Arc<Outbox>>,
    /// The waiting connections, by ticket.
    line: BTreeMap<u64, u64>,
    next_ticket: u64,
    /// The connection that may exceed the total.
    admitted: Option<u64>,
}

/// One connection's share of the budget.
#[derive(Debug)]
pub(crate) struct Holding {
    all: Arc<Incomplete>,
    /// The connection's number in the budget.
    id: u64,
    outbox: Arc<Outbox>,
    /// Bytes that it holds.
    bytes: usize,
    /// Whether it holds more than [`FREE`] bytes, which are then counted in [`Incomplete::bytes`].
    counts: bool,
    /// Whether it is in [`Table::holders`]: from when it counts or waits until it holds nothing that counts.
    is_known: bool,
    /// Its ticket in the wait queue, from the first refused frame until it is admitted or there is capacity.
    ticket: Option<u64>,
    /// Since when it has held bytes that others lack. Set after the nudge that announces the shortage.
    since: Option<Instant>,
    /// Bytes added since then.
    progress: usize,
}

impl Incomplete {
    /// A budget of `most` bytes.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            most,
            is_full: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            table: Mutex::default(),
        })
    }

    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    fn add(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before + bytes >= self.most && !self.is_full.swap(true, Ordering::AcqRel) {
            // They then record the time from which they hold bytes that others lack.
            self.table.lock().holders.values().for_each(|outbox| outbox.nudge());
        }
    }

    fn sub(&self, bytes: usize) {
        let left = self.bytes.fetch_sub(bytes, Ordering::AcqRel) - bytes;
        if left <= self.most - self.most / 4 && self.is_full() {
            let mut table = self.table.lock();
            self.is_full.store(false, Ordering::Release);
            table.admitted = None;
            table.line.clear();
            table.holders.values().for_each(|outbox| outbox.nudge());
        }
    }
}

impl Table {
    /// Admits the first waiting connection, unless one is admitted already.
    fn admit_next(&mut self) {
        if self.admitted.is_some() {
            return;
        }
        let Some((_, id)) = self.line.pop_first() else { return };
        self.admitted = Some(id);
        if let Some(outbox) = self.holders.get(&id) {
            outbox.nudge();
        }
    }

    fn leave(&mut self, id: u64, ticket: Option<u64>) {
        if let Some(ticket) = ticket {
            self.line.remove(&ticket);
        }
        if self.admitted == Some(id) {
            self.admitted = None;
            self.admit_next();
        }
    }
}

impl Holding {
    /// The share of a connection that holds nothing yet.
    pub(crate) fn new(all: &Arc<Incomplete>, outbox: &Arc<Outbox>) -> Self {
        Self {
            all: Arc::clone(all),
            id: all.next_id.fetch_add(1, Ordering::Relaxed),
            outbox: Arc::clone(outbox),
            bytes: 0,
            counts: false,
            is_known: false,
            ticket: None,
            since: None,
            progress: 0,
        }
    }

    /// Whether a piece of a body can be taken now. If not, the outbox is nudged when [`Holding::has_capacity`] may have
    /// changed.
    pub(crate) fn takes(&mut self, piece: usize) -> bool {
        if !self.all.is_full() || self.bytes + piece <= FREE {
            return true;
        }
        let mut table = self.all.table.lock();
        // Checked again under the lock: capacity freed before the connection waits would not be announced to it.
        if !self.all.is_full() || table.admitted == Some(self.id) {
            return true;
        }
        if self.ticket.is_none() {
            let ticket = table.next_ticket;
            table.next_ticket += 1;
            table.holders.entry(self.id).or_insert_with(|| Arc::clone(&self.outbox));
            table.line.insert(ticket, self.id);
            self.is_known = true;
            self.ticket = Some(ticket);
        }
        table.admit_next();
        let is_admitted = table.admitted == Some(self.id);
        if is_admitted {
            self.ticket = None;
        }
        is_admitted
    }

    /// Whether it is not waiting.
    pub(crate) fn has_capacity(&self) -> bool {
        self.ticket.is_none()
    }

    /// Called when the bytes of one of its channels have changed from `before` to `after`.
    pub(crate) fn changed(&mut self, before: usize, after: usize) {
        let old = self.bytes;
        self.bytes = old + after - before;
        self.progress += after.saturating_sub(before);
        match (self.counts, self.bytes > FREE) {
            (false, true) => self.begin_to_count(),
            (true, true) if self.bytes > old => self.all.add(self.bytes - old),
            (true, true) => self.all.sub(old - self.bytes),
            // The body came in one piece or was discarded: nothing is held any more.
            (_, false) if self.is_known && self.bytes <= old => self.give_back(old),
            (_, false) => {}
        }
    }

    fn begin_to_count(&mut self) {
        self.counts = true;
        self.is_known = true;
        self.all.table.lock().holders.entry(self.id).or_insert_with(|| Arc::clone(&self.outbox));
        self.all.add(self.bytes);
        if self.all.is_full() {
            // Makes the connection record the time.
            self.outbox.nudge();
        }
    }

    /// Removes the connection, which no longer holds anything that counts, after `bytes` before.
    fn give_back(&mut self, bytes: usize) {
        let mut table = self.all.table.lock();
        table.holders.remove(&self.id);
        table.leave(self.id, self.ticket.take());
        drop(table);
        self.is_known = false;
        self.since = None;
        if std::mem::take(&mut self.counts) {
            self.all.sub(bytes);
        }
    }

    /// Called after a nudge: continues if it need not wait any more, and records since when it has held bytes that others
    /// lack.
    pub(crate) fn look(&mut self, now: Instant) {
        if !self.is_known {
            return;
        }
        let table = self.all.table.lock();
        let is_admitted = table.admitted == Some(self.id);
        if self.ticket.is_some_and(|ticket| !table.line.contains_key(&ticket)) {
            self.ticket = None;
            // The time for which it waited does not count.
            self.since = None;
        }
        drop(table);
        let holds = self.all.is_full() && (self.counts || is_admitted);
        if holds && self.since.is_none() {
            self.progress = 0;
        }
        self.since = if holds { self.since.or(Some(now)) } else { None };
    }

    /// When the connection is closed unless its messages are complete; `None` if nothing is short or the connection
    /// waits, since it could not complete them then.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.filter(|_| self.ticket.is_none()).and_then(|since| since.checked_add(TIMEOUT))
    }

    /// Returns the fault that closes the connection once its deadline has passed without enough progress.
    ///
    /// # Errors
    /// 506 RESOURCE_ERROR.
    pub(crate) fn check(&mut self, now: Instant) -> Result<(), Fault> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        if !self.all.is_full() || self.progress >= PROGRESS {
            self.since = None;
            self.look(now);
            return Ok(());
        }
        let text = format!(
            "messages have been incomplete for {} s while those of all clients take {} bytes",
            TIMEOUT.as_secs(),
            self.all.most
        );
        Err(Fault::new(ReplyCode::ResourceError, text))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if self.is_known {
            self.give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn holding(all: &Arc<Incomplete>) -> Holding {
        Holding::new(all, &Arc::new(Outbox::new(MIB)))
    }

    /// Takes `bytes` of a message if they can be taken.
    fn send(holding: &mut Holding, bytes: usize) -> bool {
        let takes = holding.takes(bytes);
        if takes {
            holding.changed(0, bytes);
        }
        takes
    }

    #[test]
    fn held_bytes_are_bounded_by_the_total_plus_one_message() {
        let all = Incomplete::new(4 * MIB);
        let mut holders: Vec<_> = (0..100).map(|_| holding(&all)).collect();
        let taken = holders.iter_mut().filter_map(|holder| send(holder, MIB).then_some(())).count();
        assert_eq!(taken, 5, "four, and the one that is admitted");
        assert!(holders[5..].iter().all(|waiting| !waiting.has_capacity()));
    }

    #[test]
    fn small_messages_are_accepted_while_others_fill_the_total() {
        let all = Incomplete::new(MIB);
        let (mut large, mut small) = (holding(&all), holding(&all));
        assert!(send(&mut large, MIB));
        for _ in 0..100 {
            assert!(send(&mut small, FREE));
            small.changed(FREE, 0);
        }
    }

    #[test]
    fn waiting_connections_are_admitted_in_order_as_messages_complete() {
        let now = Instant::now();
        let all = Incomplete::new(MIB);
        let mut others = [holding(&all), holding(&all)];
        let mut first = holding(&all);
        assert!(send(&mut first, MIB));
        assert!(send(&mut first, FREE), "admitted, so that it can complete its message");
        assert!(others.iter_mut().all(|other| !send(other, MIB)));
        first.changed(MIB + FREE, 0);
        others.iter_mut().for_each(|other| other.look(now));
        assert!(others.iter().all(Holding::has_capacity), "capacity is free");
        assert!(others.iter_mut().all(|other| send(other, MIB)), "and the second of them is admitted");
    }

    #[test]
    fn a_connection_admitted_for_a_whole_body_makes_way_for_the_next() {
        let all = Incomplete::new(MIB);
        let (mut first, mut second, mut third) = (holding(&all), holding(&all), holding(&all));
        assert!(send(&mut first, MIB));
        assert!(second.takes(2 * FREE), "admitted");
        second.changed(0, 0);
        assert!(send(&mut third, 2 * FREE), "admitted in its place");
        assert_eq!(second.deadline(), None);
    }

    #[test]
    fn a_connection_that_ends_frees_capacity() {
        let now = Instant::now();
        let all = Incomplete::new(MIB);
        let (mut first, mut second, mut third) = (holding(&all), holding(&all), holding(&all));
        assert!(send(&mut first, MIB));
        assert!(send(&mut second, MIB), "admitted");
        assert!(!send(&mut third, MIB));
        drop(second);
        third.look(now);
        assert!(third.has_capacity(), "admitted in its place");
        drop(third);
        drop(first);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
        let table = all.table.lock();
        assert!(table.holders.is_empty() && table.line.is_empty() && table.admitted.is_none());
    }

    #[test]
    fn unused_capacity_is_revoked_and_waiting_connections_are_not_closed() {
        let now = Instant::now();
        let all = Incomplete::new(MIB);
        let (mut idle, mut admitted, mut waiting) = (holding(&all), holding(&all), holding(&all));
        assert!(send(&mut idle, MIB));
        assert!(send(&mut admitted, MIB));
        assert!(!send(&mut waiting, MIB));
        for holding in [&mut idle, &mut admitted, &mut waiting] {
            holding.look(now);
        }
        assert_eq!(waiting.deadline(), None);
        let late = idle.deadline().unwrap();
        assert!(idle.check(late - Duration::from_millis(1)).is_ok());
        assert_eq!(idle.check(late).unwrap_err().code, ReplyCode::ResourceError);
        assert_eq!(admitted.check(late).unwrap_err().code, ReplyCode::ResourceError);
        drop(idle);
        drop(admitted);
        waiting.look(late);
        assert!(waiting.has_capacity() && waiting.check(late + TIMEOUT).is_ok());
    }
}
