//! Accounting of clients' frames that are kept until brokers have answered for them, in bytes: per client,
//! for all connected clients, and for all departed ones.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use transport::Outbox;

/// The sums over all clients of a pool.
#[derive(Debug, Default)]
pub(crate) struct ReplayTotals {
    connected: AtomicUsize,
    departed: AtomicUsize,
}

impl ReplayTotals {
    /// Bytes kept for clients that are connected.
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Bytes kept of frames that departed clients had sent.
    pub(crate) fn departed(&self) -> usize {
        self.departed.load(Ordering::Relaxed)
    }

    fn of(&self, departed: bool) -> &AtomicUsize {
        if departed { &self.departed } else { &self.connected }
    }
}

/// The share of one client. The client's ledgers hold it as well, and may outlive the client.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    totals: Arc<ReplayTotals>,
    sum: Mutex<Sum>,
    /// Set while the client is not read because of the bytes kept for it.
    awaits_release: AtomicBool,
    /// Nudged when bytes are released. Weak, because pending output of a departed client is of no use.
    outbox: Weak<Outbox>,
}

#[derive(Debug, Default)]
struct Sum {
    bytes: usize,
    /// Whether the client is gone. Never cleared.
    departed: bool,
}

impl ReplayBuffer {
    pub(crate) fn new(totals: Arc<ReplayTotals>, outbox: &Arc<Outbox>) -> Self {
        Self {
            totals,
            sum: Mutex::default(),
            awaits_release: AtomicBool::new(false),
            outbox: Arc::downgrade(outbox),
        }
    }

    /// Adds to the bytes kept.
    pub(crate) fn add(&self, bytes: usize) {
        let mut sum = self.sum.lock();
        sum.bytes += bytes;
        self.totals.of(sum.departed).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases bytes, and nudges the client if it waits for that.
    pub(crate) fn release(&self, bytes: usize) {
        let mut sum = self.sum.lock();
        sum.bytes -= bytes;
        self.totals.of(sum.departed).fetch_sub(bytes, Ordering::Relaxed);
        drop(sum);
        if self.awaits_release.swap(false, Ordering::AcqRel)
            && let Some(outbox) = self.outbox.upgrade()
        {
            outbox.nudge();
        }
    }

    /// Marks the client as gone: its bytes count as departed from now on.
    pub(crate) fn depart(&self) {
        let mut sum = self.sum.lock();
        if !std::mem::replace(&mut sum.departed, true) {
            self.totals.connected.fetch_sub(sum.bytes, Ordering::Relaxed);
            self.totals.departed.fetch_add(sum.bytes, Ordering::Relaxed);
        }
    }

    /// Whether more may be kept for this client. If not, its outbox is nudged when bytes are released; the
    /// answer is always yes for a client with nothing kept, so that there is always something to wait for.
    pub(crate) fn may_add(&self, most: usize, most_of_all: usize) -> bool {
        let may = || match self.sum.lock().bytes {
            0 => true,
            bytes => bytes < most && self.totals.connected() < most_of_all,
        };
        if may() {
            return true;
        }
        self.awaits_release.store(true, Ordering::Release);
        // The release may have happened just before the flag was set, in which case no nudge comes.
        may()
    }
}

/// Bytes that wait to be sent again for a departed client.
#[derive(Debug)]
pub(crate) struct DepartedPublishes {
    totals: Arc<ReplayTotals>,
    bytes: usize,
}

impl DepartedPublishes {
    pub(crate) fn new(totals: Arc<ReplayTotals>, bytes: usize) -> Self {
        totals.departed.fetch_add(bytes, Ordering::Relaxed);
        Self { totals, bytes }
    }
}

impl Drop for DepartedPublishes {
    fn drop(&mut self) {
        self.totals.departed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_leaves_behind_counts_among_that_of_those_who_are_gone() {
        let (totals, outbox) = (Arc::new(ReplayTotals::default()), Arc::new(Outbox::new(0)));
        let (one, other) =
            (ReplayBuffer::new(totals.clone(), &outbox), ReplayBuffer::new(totals.clone(), &outbox));
        one.add(10);
        other.add(5);
        one.depart();
        one.depart();
        assert_eq!((totals.connected(), totals.departed()), (5, 10));
        one.release(4);
        one.add(1);
        other.release(5);
        assert_eq!((totals.connected(), totals.departed()), (0, 7));
        let waiting = DepartedPublishes::new(totals.clone(), 3);
        assert_eq!(totals.departed(), 10);
        drop(waiting);
        one.release(7);
        assert_eq!((totals.connected(), totals.departed()), (0, 0));
    }
}
