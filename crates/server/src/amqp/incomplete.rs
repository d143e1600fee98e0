//! The memory for messages that clients of the embedded broker have not sent completely.
//!
//! Each connection may hold a little whatever others hold; what goes beyond counts, up to a total. When the total is reached,
//! a connection whose client sends more of a body is not read any more and waits in line. The first in line is *admitted*: it
//! goes on although there is no room, until what it holds is complete, and then the next is. So many large messages at once
//! are taken one after the other, and what is held beyond the total is one connection's messages. Those who hold room and do
//! not use it are ended after [`PATIENCE`], which counts only while the total is reached, and not while they are in line.
//!
//! Example: with a total of 256 MiB, two clients that have sent 127 MiB of 128 MiB each, and a third that begins with as much:
//! the third waits after its first 2 MiB, the first that sends more is admitted and completes its message, and with that
//! there is room for the third.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amqp::error::{Fault, ReplyCode};
use parking_lot::Mutex;
use transport::Outbox;

/// Bytes of incomplete messages that a connection may hold and that do not count: whole messages mostly come in one read, and
/// the first space for a body is as large.
const FREE: usize = 64 * 1024;

/// How long a connection may hold room without completing its messages, or sending [`PROGRESS`] of them, while there is none for
/// others: as long as a client has to log in.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes in the time of [`PATIENCE`] that excuse a connection: 128 MiB, the largest message by default, may take minutes over a
/// slow link, and no longer than five.
const PROGRESS: usize = 4 << 20;

/// What all connections hold.
#[derive(Debug)]
pub(crate) struct Incomplete {
    /// Bytes that count.
    bytes: AtomicUsize,
    /// How many there may be.
    most: usize,
    /// The total was reached. Until it is a quarter below, whoever sends more waits in line.
    is_full: AtomicBool,
    /// The number of the next connection.
    next_id: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Connections that hold bytes that count, or wait in line.
    holders: HashMap<u64, Arc<Outbox>>,
    /// The connections that wait, by the tickets that they drew.
    line: BTreeMap<u64, u64>,
    next_ticket: u64,
    /// The connection that goes on although there is no room.
    admitted: Option<u64>,
}

/// One connection's part in it.
#[derive(Debug)]
pub(crate) struct Holding {
    all: Arc<Incomplete>,
    /// The connection's number here.
    id: u64,
    outbox: Arc<Outbox>,
    /// Bytes that it holds.
    bytes: usize,
    /// They are more than [`FREE`], and counted in [`Incomplete::bytes`].
    counts: bool,
    /// It is among [`Table::holders`]: from when it counts, or waits in line, until it holds nothing that counts.
    is_known: bool,
    /// Its place in line, from the first refused frame until it is admitted or there is room.
    ticket: Option<u64>,
    /// Since when it has held room, at the earliest, while there is none for others; set by the nudge that tells of it.
    since: Option<Instant>,
    /// Bytes that it has added since then.
    progress: usize,
}

impl Incomplete {
    /// Room for `most` bytes.
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
            // They note the time from which on they hold what others need.
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
    /// Admits the first in line, if nobody is.
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
    /// Of a connection that holds nothing.
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

    /// Whether a piece of a body can be taken now. After a no, the outbox is nudged when it is worth to ask
    /// [`Holding::has_room`].
    pub(crate) fn takes(&mut self, piece: usize) -> bool {
        if !self.all.is_full() || self.bytes + piece <= FREE {
            return true;
        }
        let mut table = self.all.table.lock();
        // Asked again under the lock: there may be room since, of which nobody would tell.
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

    /// Whether it does not wait in line.
    pub(crate) fn has_room(&self) -> bool {
        self.ticket.is_none()
    }

    /// One of its channels holds `after` bytes, and no more `before`.
    pub(crate) fn changed(&mut self, before: usize, after: usize) {
        let old = self.bytes;
        self.bytes = old + after - before;
        self.progress += after.saturating_sub(before);
        match (self.counts, self.bytes > FREE) {
            (false, true) => self.begin_to_count(),
            (true, true) if self.bytes > old => self.all.add(self.bytes - old),
            (true, true) => self.all.sub(old - self.bytes),
            // Not one byte more is held after a body that came in one piece, or was not wanted.
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
            // To note the time.
            self.outbox.nudge();
        }
    }

    /// It holds nothing that counts any more, of `bytes` before.
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

    /// After a nudge: goes on if it is in line no more, and notes since when it holds what others need.
    pub(crate) fn look(&mut self, now: Instant) {
        if !self.is_known {
            return;
        }
        let table = self.all.table.lock();
        let is_admitted = table.admitted == Some(self.id);
        if self.ticket.is_some_and(|ticket| !table.line.contains_key(&ticket)) {
            self.ticket = None;
            // What it held meanwhile was not its fault.
            self.since = None;
        }
        drop(table);
        let holds = self.all.is_full() && (self.counts || is_admitted);
        if holds && self.since.is_none() {
            self.progress = 0;
        }
        self.since = if holds { self.since.or(Some(now)) } else { None };
    }

    /// When it gives way unless it has completed its messages; `None` while it need not. Those in line do not: they cannot.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.since.filter(|_| self.ticket.is_none()).and_then(|since| since.checked_add(PATIENCE))
    }

    /// Gives way when it is time.
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
            PATIENCE.as_secs(),
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

    /// Sends so much of a message, if it can.
    fn send(holding: &mut Holding, bytes: usize) -> bool {
        let takes = holding.takes(bytes);
        if takes {
            holding.changed(0, bytes);
        }
        takes
    }

    #[test]
    fn what_is_held_is_bounded_by_the_total_and_one_message() {
        let all = Incomplete::new(4 * MIB);
        let mut holders: Vec<_> = (0..100).map(|_| holding(&all)).collect();
        let taken = holders.iter_mut().filter_map(|holder| send(holder, MIB).then_some(())).count();
        assert_eq!(taken, 5, "four, and the one that is admitted");
        assert!(holders[5..].iter().all(|waiting| !waiting.has_room()));
    }

    #[test]
    fn small_messages_are_taken_whatever_others_hold() {
        let all = Incomplete::new(MIB);
        let (mut large, mut small) = (holding(&all), holding(&all));
        assert!(send(&mut large, MIB));
        for _ in 0..100 {
            assert!(send(&mut small, FREE));
            small.changed(FREE, 0);
        }
    }

    #[test]
    fn those_in_line_are_admitted_one_after_the_other_as_messages_are_completed() {
        let now = Instant::now();
        let all = Incomplete::new(MIB);
        let mut others = [holding(&all), holding(&all)];
        let mut first = holding(&all);
        assert!(send(&mut first, MIB));
        assert!(send(&mut first, FREE), "admitted, so that it can complete its message");
        assert!(others.iter_mut().all(|other| !send(other, MIB)));
        first.changed(MIB + FREE, 0);
        others.iter_mut().for_each(|other| other.look(now));
        assert!(others.iter().all(Holding::has_room), "there is room");
        assert!(others.iter_mut().all(|other| send(other, MIB)), "and the second of them is admitted");
    }

    #[test]
    fn whoever_is_admitted_for_a_body_in_one_piece_makes_way_for_the_next() {
        let all = Incomplete::new(MIB);
        let (mut first, mut second, mut third) = (holding(&all), holding(&all), holding(&all));
        assert!(send(&mut first, MIB));
        assert!(second.takes(2 * FREE), "admitted");
        second.changed(0, 0);
        assert!(send(&mut third, 2 * FREE), "admitted in its place");
        assert_eq!(second.deadline(), None);
    }

    #[test]
    fn a_connection_that_ends_makes_room() {
        let now = Instant::now();
        let all = Incomplete::new(MIB);
        let (mut first, mut second, mut third) = (holding(&all), holding(&all), holding(&all));
        assert!(send(&mut first, MIB));
        assert!(send(&mut second, MIB), "admitted");
        assert!(!send(&mut third, MIB));
        drop(second);
        third.look(now);
        assert!(third.has_room(), "admitted in its place");
        drop(third);
        drop(first);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
        let table = all.table.lock();
        assert!(table.holders.is_empty() && table.line.is_empty() && table.admitted.is_none());
    }

    #[test]
    fn room_that_is_not_used_is_given_back_after_a_while_and_those_in_line_are_not_blamed() {
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
        assert!(waiting.has_room() && waiting.check(late + PATIENCE).is_ok());
    }
}
