//! When a publisher was last held by a queue, which operators see as the state `flow`.

use std::sync::atomic::{AtomicU64, Ordering};

use broker::Timestamp;

/// The time at which a connection or channel was last held by a queue.
#[derive(Debug, Default)]
pub(super) struct FlowMark(AtomicU64);

impl FlowMark {
    pub(super) fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Whether that was within the last second, as in RabbitMQ (`credit_flow:state/0`); holds themselves are far shorter.
    pub(super) fn is_recent(&self, now: Timestamp) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last > 0 && now < Timestamp(last).after(SHOWN)
    }
}

/// Milliseconds for which the state `flow` is shown.
const SHOWN: u64 = 1000;
