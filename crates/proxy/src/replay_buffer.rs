//! Accounting, in bytes, of clients' frames that are kept until brokers have answered them: for each connected client,
//! for all connected clients, and for all departed clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use sync::{Mutex, Rank};
use transport::Outbox;

use crate::quota::{Quota, QuotaShare};

/// The quotas of a pool's clients.
#[derive(Debug, Default)]
pub(crate) struct ReplayTotals {
    /// Bytes kept for clients that are connected.
    pub(crate) connected: Arc<Quota>,
    /// Bytes kept of frames that departed clients had sent.
    pub(crate) departed: Arc<Quota>,
}

/// The bytes of one client. The client's ledgers hold it as well, and may outlive the client.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    totals: Arc<ReplayTotals>,
    /// Cleared when the session starts, for a client that republishes unconfirmed messages itself.
    keeps_messages: AtomicBool,
    /// In the quota of the connected clients, and in that of the departed ones once the client is gone.
    share: Mutex<QuotaShare, { Rank::ReplayBytes as u8 }>,
    /// Set while the client is not read because of the bytes kept for it.
    awaits_release: AtomicBool,
    /// Nudged when bytes are released. Weak, so that a departed client's pending output is freed.
    outbox: Weak<Outbox>,
}

impl ReplayBuffer {
    pub(crate) fn new(totals: Arc<ReplayTotals>, outbox: &Arc<Outbox>) -> Self {
        Self {
            share: Mutex::new(QuotaShare::new(&totals.connected, 0)),
            totals,
            keeps_messages: AtomicBool::new(true),
            awaits_release: AtomicBool::new(false),
            outbox: Arc::downgrade(outbox),
        }
    }

    /// From now on messages are only counted, not buffered. Methods are buffered, because their replies need them.
    pub(crate) fn keep_no_messages(&self) {
        self.keeps_messages.store(false, Ordering::Relaxed);
    }

    /// Whether messages are kept until they are confirmed, to be sent again on another connection if this one is lost.
    pub(crate) fn keeps_messages(&self) -> bool {
        self.keeps_messages.load(Ordering::Relaxed)
    }

    /// Adds to the bytes kept.
    pub(crate) fn add(&self, bytes: usize) {
        let mut share = self.share.lock();
        let sum = share.bytes() + bytes;
        share.set(sum);
    }

    /// Releases bytes, and nudges the client if it waits for that.
    pub(crate) fn release(&self, bytes: usize) {
        let mut share = self.share.lock();
        let rest = share.bytes() - bytes;
        share.set(rest);
        drop(share);
        if self.awaits_release.swap(false, Ordering::AcqRel)
            && let Some(outbox) = self.outbox.upgrade()
        {
            outbox.nudge();
        }
    }

    /// Marks the client as gone: its bytes count as departed from now on.
    pub(crate) fn depart(&self) {
        let mut share = self.share.lock();
        *share = QuotaShare::new(&self.totals.departed, share.bytes());
    }

    /// Whether more may be kept for this client. If not, its outbox is nudged when bytes are released.
    pub(crate) fn may_add(&self) -> bool {
        let may = || self.totals.connected.admits(self.share.lock().bytes());
        if may() {
            return true;
        }
        self.awaits_release.store(true, Ordering::Release);
        // The release may have happened just before the flag was set; then no nudge follows.
        may()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_departed_client_are_counted_with_other_departed_clients() {
        let (totals, outbox) = (Arc::new(ReplayTotals::default()), Arc::new(Outbox::new(0)));
        let bytes = || (totals.connected.bytes(), totals.departed.bytes());
        let (one, other) =
            (ReplayBuffer::new(totals.clone(), &outbox), ReplayBuffer::new(totals.clone(), &outbox));
        one.add(10);
        other.add(5);
        one.depart();
        one.depart();
        assert_eq!(bytes(), (5, 10));
        one.release(4);
        one.add(1);
        other.release(5);
        assert_eq!(bytes(), (0, 7));
        let waiting = QuotaShare::new(&totals.departed, 3);
        assert_eq!(bytes(), (0, 10));
        drop(waiting);
        one.release(7);
        assert_eq!(bytes(), (0, 0));
    }
}
