//! Wills of this process whose delay has not passed, and the teardowns of ended connections.

use std::sync::Arc;

use mqtt::server::StoredWill;
use sync::{Mutex, Rank};
use tokio::sync::watch;

/// The maximum of bytes of all delayed wills. CONNECT bounds each of them: its payload has at most 64 KiB.
const MAX_BYTES: usize = 64 << 20;

/// Bytes of a delayed will besides topic, payload and properties: its task, and the client's upstream connection.
const WILL: usize = 4 << 10;

/// Counts delayed wills, and notifies them when the server shuts down.
#[derive(Debug)]
pub(super) struct DelayedWills {
    bytes: Mutex<WillTotals, { Rank::Leaf as u8 }>,
    max_bytes: usize,
    is_draining: watch::Sender<bool>,
    /// Number of teardowns in progress.
    tasks: watch::Sender<usize>,
}

/// Number of delayed wills, and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct WillTotals {
    pub(super) wills: usize,
    pub(super) bytes: usize,
}

/// A delayed will's entry in the totals, until it is dropped.
#[derive(Debug)]
pub(super) struct WillShare {
    all: Arc<DelayedWills>,
    bytes: usize,
}

/// A teardown in progress, until it is dropped.
#[derive(Debug)]
pub(super) struct TeardownGuard(Arc<DelayedWills>);

impl Default for DelayedWills {
    fn default() -> Self {
        Self::with_limit(MAX_BYTES)
    }
}

impl DelayedWills {
    fn with_limit(max_bytes: usize) -> Self {
        let (is_draining, tasks) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { bytes: Mutex::default(), max_bytes, is_draining, tasks }
    }

    /// Adds a will. Returns `None` if it has to be published at once, because of the limit or a shutdown.
    pub(super) fn add(self: &Arc<Self>, will: &StoredWill) -> Option<WillShare> {
        let properties = will.properties.as_properties().bytes().len();
        let bytes = WILL + will.topic.len() + properties + will.payload.len();
        let mut totals = self.bytes.lock();
        let is_let_in = totals.bytes + bytes <= self.max_bytes && !*self.is_draining.borrow();
        is_let_in.then(|| {
            *totals = WillTotals { wills: totals.wills + 1, bytes: totals.bytes + bytes };
            WillShare { all: Arc::clone(self), bytes }
        })
    }

    /// Makes all wills due.
    pub(super) fn drain(&self) {
        self.is_draining.send_replace(true);
    }

    /// Waits until the server shuts down.
    pub(super) async fn draining(&self) {
        // Cannot fail, since `self` owns the sender.
        let _ = self.is_draining.subscribe().wait_for(|is_draining| *is_draining).await;
    }

    /// Called when a connection's teardown begins.
    pub(super) fn begin(self: &Arc<Self>) -> TeardownGuard {
        self.tasks.send_modify(|tasks| *tasks += 1);
        TeardownGuard(Arc::clone(self))
    }

    /// Waits until no teardown is in progress.
    pub(super) async fn finished(&self) {
        let _ = self.tasks.subscribe().wait_for(|tasks| *tasks == 0).await;
    }

    /// The totals of delayed wills.
    pub(super) fn totals(&self) -> WillTotals {
        *self.bytes.lock()
    }
}

impl Drop for WillShare {
    fn drop(&mut self) {
        let mut totals = self.all.bytes.lock();
        *totals = WillTotals { wills: totals.wills - 1, bytes: totals.bytes - self.bytes };
    }
}

impl Drop for TeardownGuard {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}

#[cfg(test)]
mod tests {
    use mqtt::{PropertyList, QoS};

    use super::*;

    #[test]
    fn wills_wait_up_to_a_number_of_bytes() {
        let wills = Arc::new(DelayedWills::with_limit(2 * (WILL + 100)));
        let will = StoredWill {
            topic: "t".repeat(40).into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: PropertyList::new(),
            payload: vec![0; 60].into(),
            delay: 1,
        };
        let first = wills.add(&will).unwrap();
        let _second = wills.add(&will).unwrap();
        assert!(wills.add(&will).is_none());
        assert_eq!(wills.totals(), WillTotals { wills: 2, bytes: 2 * (WILL + 100) });
        drop(first);
        assert!(wills.add(&will).is_some());
        wills.drain();
        assert!(wills.add(&will).is_none());
    }
}
