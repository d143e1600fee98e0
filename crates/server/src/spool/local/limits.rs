//! The limits of a spool: bytes on disk, the age of messages, and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use transport::Outbox;

use super::{LocalSpool, SpoolQueue};
use crate::alarms::{Blocked, Resource};
use crate::spool::ForwardingMode;

/// The maximum of bytes of records that all forwarders hold in memory, apart from [`MIN_LOADED`] of each.
const MAX_LOADED: usize = 128 << 20;

/// Bytes that a forwarder with a connection may always hold, so that each makes progress: at a round trip of 100 ms,
/// 2,500 messages of 1 KiB a second.
const MIN_LOADED: usize = 256 << 10;

/// The fraction of the limit by which the spool has to fall below it before publishers continue, so that the next message
/// does not block them again.
const MARGIN: u64 = 20;

/// The fraction of the limit for parked messages: half. The rest is for users whose messages the upstream accepts.
const PARKED_SHARE: u64 = 2;

/// The share of a user in a virtual host: three quarters of the bytes that parked messages and the other users leave of
/// the limit. So a user whose messages are not forwarded takes at most 75%, the next one three quarters of the rest, and
/// some is left for any number of others. The same holds for a user's parked messages, within the half for parked
/// messages.
const USER_SHARE: (u64, u64) = (3, 4);

/// The share of one user, in bytes, of what the others leave.
fn user_share(left: u64) -> u64 {
    let (numerator, denominator) = USER_SHARE;
    left / denominator * numerator
}

/// The memory for loaded messages. Forwarders without a connection hold one message each.
#[derive(Default)]
pub(in crate::spool) struct LoadedBytes {
    total: AtomicUsize,
    /// Number of forwarders with a connection, which share it.
    forwarders: AtomicUsize,
}

impl LoadedBytes {
    /// Called when a forwarder's bytes in memory have changed to `now` from `before`.
    pub(in crate::spool) fn changed(&self, now: usize, before: usize) {
        self.total.fetch_add(now, Ordering::Relaxed);
        self.total.fetch_sub(before, Ordering::Relaxed);
    }

    /// Whether a forwarder that holds `own` bytes may load more.
    pub(in crate::spool) fn allows(&self, own: usize) -> bool {
        let share = MAX_LOADED / self.forwarders.load(Ordering::Relaxed).max(1);
        own < MIN_LOADED || (own < share && self.total.load(Ordering::Relaxed) < MAX_LOADED)
    }

    /// Bytes that all forwarders hold.
    #[cfg(test)]
    pub(in crate::spool) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a forwarder with a connection, until the result is dropped.
    pub(in crate::spool) fn connected(self: &Arc<Self>) -> LoadingShare {
        self.forwarders.fetch_add(1, Ordering::Relaxed);
        LoadingShare(Arc::clone(self))
    }
}

/// A forwarder's count among those with a connection, until it is dropped.
pub(in crate::spool) struct LoadingShare(Arc<LoadedBytes>);

impl Drop for LoadingShare {
    fn drop(&mut self) {
        self.0.forwarders.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LocalSpool {
    /// Bytes on the disk that `spool_max_bytes` limits.
    fn all_bytes(&self) -> u64 {
        let waiting = self.bytes.load(Ordering::Relaxed);
        u64::try_from(waiting).unwrap_or(0) + self.parked().bytes()
    }

    /// The maximum of bytes for a queue's messages before its publishers are blocked, given the other queues' present
    /// bytes.
    pub(super) fn max_bytes(&self, queue: &SpoolQueue) -> u64 {
        let others = self.all_bytes().saturating_sub(bytes_of(queue));
        user_share(self.config().max_bytes.saturating_sub(others))
    }

    /// Bytes of a queue's parked messages, and their maximum given the other queues' present parked bytes.
    fn parked_share(&self, queue: &SpoolQueue) -> (u64, u64) {
        let own = self.parked().bytes_of(queue.vhost(), queue.user());
        let others = self.parked().bytes().saturating_sub(own);
        (own, user_share((self.config().max_bytes / PARKED_SHARE).saturating_sub(others)))
    }

    /// Whether another message of a queue may be parked.
    pub(in crate::spool) fn has_parking_capacity(&self, queue: &SpoolQueue) -> bool {
        let (own, max) = self.parked_share(queue);
        own < max
    }

    /// Called when a message cannot be parked for lack of space. It waits, and only the queue's own publishers are
    /// blocked.
    pub(in crate::spool) fn cannot_park(&self, queue: &SpoolQueue) {
        if !queue.set_waits_for_parking(true) {
            let (vhost, user) = (queue.vhost(), queue.user());
            let (bytes, max) = self.parked_share(queue);
            tracing::warn!(
                vhost,
                user,
                bytes,
                max,
                "parked messages take the user's share of half of spool_max_bytes: publishers blocked"
            );
        }
        self.check_age(queue);
    }

    /// Called when a queue's message has been parked, or none waits any more: no message waits for parking space.
    pub(in crate::spool) fn can_park(&self, queue: &SpoolQueue) {
        if queue.waits_for_parking() {
            queue.set_waits_for_parking(false);
            self.check_age(queue);
        }
    }

    /// Resumes a queue once its messages can be parked again.
    fn check_parking(&self, queue: &SpoolQueue) {
        if !queue.waits_for_parking() {
            return;
        }
        let (own, max) = self.parked_share(queue);
        if own < max && own <= max - max / MARGIN {
            queue.set_waits_for_parking(false);
            queue.retry();
        }
    }

    /// Counts a record of this size that a queue has accepted, or is about to accept.
    pub(in crate::spool) fn accepted(&self, queue: &SpoolQueue, bytes: u64, at: u64) {
        queue.accepted_at(at);
        queue.add_bytes(bytes as i64);
        self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Subtracts records of this size that have left a queue.
    pub(in crate::spool) fn left(&self, queue: &SpoolQueue, bytes: u64) {
        queue.add_bytes(-(bytes as i64));
        self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Subtracts messages that have become unreadable on this disk. Called periodically.
    pub(in crate::spool) fn count_unreadable(&self) {
        for queue in self.queues() {
            let backlogs = queue.backlogs();
            let of_backlogs = backlogs.iter().map(|(_, backlog)| backlog.take_lost_bytes()).sum::<u64>();
            let bytes = of_backlogs + queue.queue().take_lost_bytes();
            if bytes == 0 {
                continue;
            }
            let (vhost, user) = (queue.vhost(), queue.user());
            tracing::error!(vhost, user, bytes, "unreadable spooled messages dropped");
            self.left(&queue, bytes);
            if of_backlogs > 0 {
                // The forwarder has counted the messages of backlogs, and has to count them again.
                queue.request_restart();
            }
        }
    }

    /// Called after each change of a queue's bytes: checks the limits that depend on it. Ages, and the other queues'
    /// shares, are checked periodically.
    pub(in crate::spool) fn changed(&self, queue: &SpoolQueue) {
        let is_full = self.all_bytes() >= self.config().max_bytes;
        if is_full || self.alarms.is_raised(Resource::Spool) || self.alarms.is_raised(Resource::Draining) {
            self.check_bytes();
        }
        self.check_share(queue);
    }

    /// Called when an operator has messages forwarded again. In a drained spool publishers publish directly; they have to
    /// wait again until these messages have been forwarded.
    pub(in crate::spool) fn reopened(&self) {
        if self.mode() == ForwardingMode::Draining {
            self.alarms.raise(Resource::Draining);
        }
    }

    /// Checks all limits, and blocks or unblocks publishers. Takes time in proportion to the number of queues.
    pub(in crate::spool) fn check_limits(&self) {
        for queue in self.queues() {
            self.check_parking(&queue);
            self.check_age(&queue);
            self.check_share(&queue);
        }
        self.check_bytes();
    }

    fn check_bytes(&self) {
        if self.mode() == ForwardingMode::Draining && !self.is_empty() {
            self.alarms.raise(Resource::Draining);
        } else {
            self.alarms.clear(Resource::Draining);
        }
        let (bytes, max) = (self.all_bytes(), self.config().max_bytes);
        if bytes >= max {
            if self.alarms.raise(Resource::Spool) {
                tracing::warn!(bytes, max, "spool full: publishers blocked");
            }
        } else if bytes <= max - max / MARGIN && self.alarms.clear(Resource::Spool) {
            tracing::info!(bytes, max, "spool below limit: publishers unblocked");
        }
    }

    /// Blocks the publishers of a queue whose oldest message is too old or cannot be parked. Other queues are not
    /// affected, since the reason may be that no client of this user has logged in.
    fn check_age(&self, queue: &SpoolQueue) {
        if queue.has_failed() || queue.waits_for_parking() {
            queue.alarms.raise(Resource::Spool);
            return;
        }
        let (vhost, user) = (queue.vhost(), queue.user());
        let limit = self.config().max_age.as_millis() as u64;
        if self.age(queue).is_some_and(|age| age > limit) {
            if queue.alarms.raise(Resource::Spool) {
                tracing::warn!(
                    vhost,
                    user,
                    "spooled messages are older than spool_max_age: publishers blocked"
                );
            }
        } else if queue.alarms.clear(Resource::Spool) {
            tracing::info!(
                vhost,
                user,
                "spool_max_age no longer exceeded, parking possible: publishers unblocked"
            );
        }
    }

    /// Blocks the publishers of a queue that exceeds its share, or unblocks them.
    fn check_share(&self, queue: &SpoolQueue) {
        let (bytes, max) = (bytes_of(queue), self.max_bytes(queue));
        let (vhost, user) = (queue.vhost(), queue.user());
        if bytes > max {
            if !queue.alarms.is_raised(Resource::SpoolShare) && queue.alarms.raise(Resource::SpoolShare) {
                tracing::warn!(
                    vhost,
                    user,
                    bytes,
                    max,
                    "a user has three quarters of what others leave of spool_max_bytes: publishers blocked"
                );
            }
        } else if bytes <= max - max / MARGIN
            && queue.alarms.is_raised(Resource::SpoolShare)
            && queue.alarms.clear(Resource::SpoolShare)
        {
            tracing::info!(
                vhost,
                user,
                bytes,
                max,
                "user below its share of the spool: publishers unblocked"
            );
        }
    }

    /// Called when a queue's forwarder has panicked: its publishers are blocked, since nobody forwards their messages.
    pub(in crate::spool) fn forwarder_failed(&self, queue: &SpoolQueue) {
        let (vhost, user) = (queue.vhost(), queue.user());
        tracing::error!(vhost, user, "spool forwarder failed: publishers blocked until restart");
        queue.fail();
        self.check_age(queue);
    }

    /// Milliseconds since the oldest message of a queue was accepted.
    pub(super) fn age(&self, queue: &SpoolQueue) -> Option<u64> {
        let now = self.timestamp(Instant::now()).0;
        queue.oldest().map(|oldest| now.saturating_sub(oldest))
    }

    fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) <= 0
    }

    /// Whether an operator has drained the spool, and nothing is left in it.
    pub(in crate::spool) fn is_drained(&self) -> bool {
        self.mode() == ForwardingMode::Draining && self.is_empty()
    }

    /// Number of connections blocked by the spool's alarms.
    pub(in crate::spool) fn blocked_connections(&self) -> usize {
        let of_queues: usize = self.queues().iter().map(|queue| queue.alarms.blocked_connections()).sum();
        self.alarms.blocked_connections() + of_queues
    }

    /// Registers a blocked publisher, if a limit of the spool or of its queue is exceeded.
    pub(in crate::spool) fn block(
        &self,
        queue: &SpoolQueue,
        outbox: &Arc<Outbox>,
    ) -> Option<(Blocked, &'static str)> {
        if !self.alarms.any_raised() && !queue.alarms.any_raised() {
            return None;
        }
        self.alarms.block(outbox).or_else(|| queue.alarms.block(outbox))
    }

    /// Measures the rates. `interval` is the time since the last call.
    pub(in crate::spool) fn measure(&self, interval: Duration) {
        for queue in self.queues() {
            let (accepted, forwarded) = &mut *queue.rates.lock();
            accepted.measure(queue.accepted.load(Ordering::Relaxed), interval);
            forwarded.measure(queue.forwarded.load(Ordering::Relaxed), interval);
        }
    }
}

/// Bytes of a queue's records.
fn bytes_of(queue: &SpoolQueue) -> u64 {
    u64::try_from(queue.bytes()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarders_with_a_connection_share_the_memory_and_each_gets_on() {
        let loaded = Arc::new(LoadedBytes::default());
        let one = loaded.connected();
        assert!(loaded.allows(MAX_LOADED - 1));
        let two = loaded.connected();
        assert!(!loaded.allows(MAX_LOADED / 2) && loaded.allows(MAX_LOADED / 2 - 1));
        loaded.changed(MAX_LOADED, 0);
        assert!(!loaded.allows(MIN_LOADED) && loaded.allows(MIN_LOADED - 1));
        drop((one, two));
        loaded.changed(0, MAX_LOADED);
        assert!(loaded.allows(MAX_LOADED / 2));
    }
}
