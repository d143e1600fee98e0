//! The out-buffer of one connection, shared by all tasks that send to its peer.

// A counter that nothing waits for need not be tested in every interleaving.
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::{AtomicWaker, Mutex, Rank, work};

use crate::activity::Activity;
use crate::buffer::OutBuf;
use crate::tally::Tally;

/// Tasks append bytes for a connection's peer here; the connection's own task writes them ([`crate::drive()`]).
///
/// The connection's task is woken only when the buffer turns from empty to non-empty, so a burst of messages costs one
/// wake-up and few writes.
#[derive(Debug)]
pub struct Outbox {
    inner: Mutex<Inner, { Rank::Leaf as u8 }>,
    /// Bytes in `inner` and in the writer's batch.
    backlog: AtomicUsize,
    /// Bytes that the peer's socket has accepted in total.
    sent: AtomicU64,
    /// Sum of several outboxes' backlogs, if this one counts towards it.
    tally: OnceLock<Arc<Tally>>,
    /// Wakes the connection's task.
    waker: AtomicWaker,
    /// The connection's task has to call its protocol, even without bytes to write.
    nudged: AtomicBool,
    /// The highest limit, in bytes, that a sender found exceeded and therefore waits for; 0 if none waits.
    starved: AtomicUsize,
    /// Backlog, in bytes, at which [`Outbox::has_capacity`] starts to return false.
    limit: usize,
    /// The activity of the connection's task.
    activity: Arc<Activity>,
}

#[derive(Debug, Default)]
struct Inner {
    buf: OutBuf,
    /// The connection's task has been woken, or is in its turn or busy writing, and will check the outbox again by itself.
    scheduled: bool,
    /// The connection has ended: appended bytes are discarded.
    closed: bool,
}

impl Outbox {
    /// An empty outbox that [has capacity](Self::has_capacity) up to a backlog of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            inner: Mutex::default(),
            backlog: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            tally: OnceLock::new(),
            waker: AtomicWaker::new(),
            nudged: AtomicBool::new(false),
            starved: AtomicUsize::new(0),
            limit,
            activity: Arc::default(),
        }
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// If the connection's task runs or waits for a thread, the number of times that it was idle before, which wraps
    /// around. `None` if it waits for its peer or another task, or does not read. The value may be outdated by the time it
    /// is returned.
    pub fn busy_since_rest(&self) -> Option<u32> {
        self.activity.busy_since_rest()
    }

    /// Adds the backlog to `tally` from now on, until the connection ends. Only the first call has an effect; no write may
    /// be in progress at that time.
    pub fn count_towards(&self, tally: &Arc<Tally>) {
        // Under the lock, so that the current backlog is counted once, and not at all if the connection has ended.
        let inner = self.inner.lock();
        if !inner.closed && self.tally.set(tally.clone()).is_ok() {
            tally.add(self.backlog());
        }
    }

    /// Runs `write` to append to the buffer, and schedules the connection's task to write it out. `write` runs under
    /// the outbox's lock: it must be short and take no lock. Returns `None`, without calling `write`, if the connection
    /// has ended.
    #[inline]
    pub fn append<R>(&self, write: impl FnOnce(&mut OutBuf) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return None;
        }
        let before = inner.buf.len();
        let result = write(&mut inner.buf);
        let after = inner.buf.len();
        self.add_to_backlog(after - before);
        let wake = after > 0 && !inner.scheduled;
        inner.scheduled |= wake;
        drop(inner);
        if wake {
            self.waker.wake();
        }
        Some(result)
    }

    /// Bytes appended and not yet accepted by the peer's socket.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Whether the backlog is below the limit. A sender that can wait (a queue with deliveries, a relay) appends only
    /// then; after a `false`, [`crate::Protocol::handle_capacity`] is called once the backlog has fallen to half the limit.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        self.has_capacity_below(self.limit)
    }

    /// Like `has_capacity` with a lower limit than the outbox's own; after a `false` the backlog has to fall to half of it.
    #[inline]
    pub fn has_capacity_below(&self, limit: usize) -> bool {
        if self.backlog() < limit {
            return true;
        }
        // Set `starved` first, then check again; the writer writes first, then checks `starved`. Both sides modify the
        // backlog in between (this side adds 0), so the later one sees what the other did before: no sender waits for a
        // call that never comes.
        self.starved.fetch_max(limit.max(1), Ordering::Relaxed);
        self.backlog.fetch_add(0, Ordering::AcqRel) < limit
    }

    /// Bytes that the peer's socket has accepted so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The limit given to [`Outbox::new`], in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Makes the connection's task call [`crate::Protocol::handle_nudge`] soon.
    pub fn nudge(&self) {
        // A turn checks again before it ends, or is followed by another one. A task that woke itself would be polled once
        // more for nothing, and the runtime would wake another thread to share the work.
        if !self.nudged.swap(true, Ordering::AcqRel) && !work::is_turn_of(self) {
            self.waker.wake();
        }
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// Takes all pending bytes, as a peer that reads at once would, for sessions that run without a socket.
    pub fn read_all(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes);
        bytes
    }

    /// As [`Self::read_all`], appending to `bytes`.
    pub(crate) fn read_into(&self, bytes: &mut Vec<u8>) {
        let mut taken = OutBuf::default();
        loop {
            while self.take(&mut taken) {
                let len = taken.len();
                taken.copy_to(bytes);
                taken = OutBuf::default();
                self.written(len);
            }
            if self.end_turn() {
                return;
            }
        }
    }

    /// Whether [`Self::take_nudge`] has something to take.
    pub(crate) fn is_nudged(&self) -> bool {
        self.nudged.load(Ordering::Acquire)
    }

    pub(crate) fn take_nudge(&self) -> bool {
        self.nudged.load(Ordering::Relaxed) && self.nudged.swap(false, Ordering::AcqRel)
    }

    /// Whether a sender waits for capacity that is free now.
    pub(crate) fn take_starved(&self) -> bool {
        let limit = self.starved.load(Ordering::Relaxed);
        limit > 0
            && self.backlog.load(Ordering::Relaxed) <= limit / 2
            && self.starved.swap(0, Ordering::AcqRel) > 0
    }

    /// Begins a turn of the connection's task. Until [`Self::end_turn`] the task checks for bytes by itself, so bytes that
    /// it appends do not wake it again.
    pub(crate) fn begin_turn(&self, context: &Context<'_>) {
        // Registered first: if bytes are appended before the next line, and wake an earlier waker, this turn still finds
        // them.
        self.register(context);
        self.inner.lock().scheduled = true;
    }

    /// Ends the turn, and re-arms the wake-up; returns false if appended bytes have to be written first.
    pub(crate) fn end_turn(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.scheduled = !inner.buf.is_empty();
        !inner.scheduled
    }

    pub(crate) fn register(&self, context: &Context<'_>) {
        let waker: &Waker = context.waker();
        self.waker.register(waker);
    }

    /// Moves the pending bytes into the writer's empty `taken`, whose memory the next burst reuses. Returns false if there
    /// are none.
    pub(crate) fn take(&self, taken: &mut OutBuf) -> bool {
        debug_assert!(taken.is_empty());
        let mut inner = self.inner.lock();
        if inner.buf.is_empty() {
            inner.buf.release();
            drop(inner);
            taken.release();
            return false;
        }
        std::mem::swap(&mut inner.buf, taken);
        true
    }

    /// The writer has reframed its batch, which changed the length from `before` to `after` bytes.
    pub(crate) fn reframed(&self, before: usize, after: usize) {
        self.add_to_backlog(after.wrapping_sub(before));
    }

    /// The writer has written `bytes` to the socket.
    pub(crate) fn written(&self, bytes: usize) {
        self.backlog.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(tally) = self.tally.get() {
            tally.remove(bytes);
        }
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Marks the connection as ended and frees the buffer.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        if let (false, Some(tally)) = (inner.closed, self.tally.get()) {
            tally.remove(self.backlog());
        }
        inner.closed = true;
        inner.buf = OutBuf::default();
    }

    /// Adds to the backlog, or subtracts from it if `bytes` is a wrapped negative number.
    #[inline]
    fn add_to_backlog(&self, bytes: usize) {
        self.backlog.fetch_add(bytes, Ordering::Relaxed);
        if let Some(tally) = self.tally.get() {
            tally.add(bytes);
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // A connection whose task was dropped has not closed its outbox.
        if self.tally.get().is_some() {
            self.close();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn backlog_counts_bytes_the_writer_still_holds() {
        let outbox = Outbox::new(10);
        outbox.append(|buf| buf.tail().extend_from_slice(b"0123456789"));
        assert!(!outbox.has_capacity());
        let mut taken = OutBuf::default();
        assert!(outbox.take(&mut taken));
        assert!(!outbox.has_capacity(), "taken is not written");
        taken.advance(10);
        outbox.written(10);
        assert!(outbox.has_capacity());
        assert_eq!(outbox.sent(), 10);
        assert!(!outbox.take(&mut taken));
    }

    #[test]
    fn an_append_within_the_tasks_own_turn_does_not_wake_it() {
        struct Wakes(AtomicU64);
        impl std::task::Wake for Wakes {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let wakes = Arc::new(Wakes(AtomicU64::new(0)));
        let woken = || wakes.0.load(std::sync::atomic::Ordering::Relaxed);
        let (outbox, mut taken) = (Outbox::new(10), OutBuf::default());
        let say = || outbox.append(|buf| buf.tail().push(b'x'));
        outbox.begin_turn(&Context::from_waker(&Waker::from(Arc::clone(&wakes))));
        say();
        assert!(outbox.take(&mut taken));
        say();
        assert!(!outbox.end_turn(), "there is something to write");
        taken.advance(1);
        assert!(outbox.take(&mut taken));
        assert_eq!((outbox.end_turn(), woken()), (true, 0));
        say();
        say();
        assert_eq!(woken(), 1);
    }

    #[test]
    fn a_closed_outbox_discards_appends() {
        let outbox = Outbox::new(10);
        outbox.close();
        assert_eq!(outbox.append(|_| unreachable!()), None::<()>);
    }

    #[test]
    fn a_failed_capacity_check_is_remembered_until_half_is_free() {
        let outbox = Outbox::new(10);
        outbox.append(|buf| buf.tail().extend_from_slice(b"0123456789"));
        outbox.written(1);
        assert!(!outbox.take_starved(), "no capacity check has failed");
        outbox.append(|buf| buf.tail().push(b'x'));
        assert!(!outbox.has_capacity());
        assert!(!outbox.take_starved());
        outbox.written(5);
        assert!(outbox.take_starved());
        assert!(!outbox.take_starved());
    }

    #[test]
    fn a_check_for_less_capacity_is_reported_when_half_of_that_is_free() {
        let outbox = Outbox::new(100);
        outbox.append(|buf| buf.tail().extend_from_slice(&[0; 40]));
        assert!(outbox.has_capacity() && !outbox.has_capacity_below(20));
        outbox.written(29);
        assert!(!outbox.take_starved(), "11 are more than half of 20");
        outbox.written(1);
        assert!(outbox.take_starved());
        assert!(outbox.has_capacity_below(20) && !outbox.take_starved());
    }

    #[test]
    fn a_tally_is_the_sum_of_the_backlogs_of_its_open_outboxes() {
        let tally = Arc::new(Tally::default());
        let [first, second] = [(), ()].map(|()| Outbox::new(10));
        first.append(|buf| buf.tail().extend_from_slice(b"before"));
        first.count_towards(&tally);
        first.count_towards(&tally);
        assert_eq!(tally.bytes(), 6);
        second.count_towards(&tally);
        second.append(|buf| buf.tail().extend_from_slice(b"four"));
        second.reframed(4, 3);
        first.reframed(6, 8);
        assert_eq!(tally.bytes(), 8 + 3);
        first.written(5);
        assert_eq!(tally.bytes(), 3 + 3);
        first.close();
        first.close();
        first.append(|_| unreachable!());
        assert_eq!(tally.bytes(), 3);
        drop(second);
        assert_eq!(tally.bytes(), 0);
        first.count_towards(&tally);
        assert_eq!(tally.bytes(), 0);
    }

    #[test]
    fn a_nudge_is_taken_once() {
        let outbox = Outbox::new(10);
        outbox.nudge();
        outbox.nudge();
        assert!(outbox.take_nudge());
        assert!(!outbox.take_nudge());
    }
}
