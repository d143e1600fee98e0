//! The limits of a spool: bytes on disk, the age of messages, and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use transport::Outbox;

use super::{LocalSpool, SpoolQueue};
use crate::alarms::{Blocked, Resource};
use crate::spool::ForwardingMode;

/// Bytes of records that all forwarders together have in memory, but for [`MIN_LOADED`] of each.
const MAX_LOADED: usize = 128 << 20;

/// Bytes that a forwarder with a connection may always have, so that each gets on: over 100 ms they are 2,500 messages of 1 KiB
/// a second.
const MIN_LOADED: usize = 256 << 10;

/// A share of the limit in bytes by which the spool has to fall below it before publishers continue, so that they are not
/// blocked again by the next message.
const MARGIN: u64 = 20;

/// The share of the limit in bytes that parked messages may take: half. The rest is for users whose messages the upstream
/// takes.
const PARKED_SHARE: u64 = 2;

/// The share that the messages of a user in a virtual host may take of what parked messages and those of the others leave of
/// the limit in bytes: three quarters. So one whose messages are not forwarded takes 75% at most, one after it three
/// quarters of the rest, and there is some left for any number of others. The same holds for the parked messages of a user,
/// within the half that parked messages may take.
const USER_SHARE: (u64, u64) = (3, 4);

/// The share of one user of what the others leave, in bytes.
fn user_share(left: u64) -> u64 {
    let (numerator, denominator) = USER_SHARE;
    left / denominator * numerator
}

/// The memory for messages on their way. Forwarders without a connection have one message each.
#[derive(Default)]
pub(in crate::spool) struct LoadedBytes {
    total: AtomicUsize,
    /// Forwarders with a connection, which share it.
    forwarders: AtomicUsize,
}

impl LoadedBytes {
    /// A forwarder has this much in memory now, and had that much before.
    pub(in crate::spool) fn changed(&self, now: usize, before: usize) {
        self.total.fetch_add(now, Ordering::Relaxed);
        self.total.fetch_sub(before, Ordering::Relaxed);
    }

    /// Whether a forwarder that has `own` bytes in memory may have more.
    pub(in crate::spool) fn allows(&self, own: usize) -> bool {
        let share = MAX_LOADED / self.forwarders.load(Ordering::Relaxed).max(1);
        own < MIN_LOADED || (own < share && self.total.load(Ordering::Relaxed) < MAX_LOADED)
    }

    /// Bytes that all forwarders have in memory.
    #[cfg(test)]
    pub(in crate::spool) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// A forwarder has a connection until the result is dropped.
    pub(in crate::spool) fn connected(self: &Arc<Self>) -> LoadingShare {
        self.forwarders.fetch_add(1, Ordering::Relaxed);
        LoadingShare(Arc::clone(self))
    }
}

/// A share of the memory for messages on their way.
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

    /// Bytes that the messages of a queue may take before its publishers are blocked, while the others have what they have.
    pub(super) fn max_bytes(&self, queue: &SpoolQueue) -> u64 {
        let others = self.all_bytes().saturating_sub(bytes_of(queue));
        user_share(self.config().max_bytes.saturating_sub(others))
    }

    /// Bytes that the parked messages of a queue take, and may take while those of the others take what they do.
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

    /// A message of a queue cannot be parked for want of room. It waits, and so do the queue's publishers and no others.
    pub(in crate::spool) fn cannot_park(&self, queue: &SpoolQueue) {
        if !queue.set_parks_nothing(true) {
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

    /// A message of a queue has been parked, or none waits any more: nothing of it waits for room.
    pub(in crate::spool) fn can_park(&self, queue: &SpoolQueue) {
        if queue.parks_nothing() {
            queue.set_parks_nothing(false);
            self.check_age(queue);
        }
    }

    /// Lets a queue continue once there is room for parked messages.
    fn check_parking(&self, queue: &SpoolQueue) {
        if !queue.parks_nothing() {
            return;
        }
        let (own, max) = self.parked_share(queue);
        if own < max && own <= max - max / MARGIN {
            queue.set_parks_nothing(false);
            queue.retry();
        }
    }

    /// A record of this number of bytes has been given to a queue, or will be at once.
    pub(in crate::spool) fn accepted(&self, queue: &SpoolQueue, bytes: u64, at: u64) {
        queue.accepted_at(at);
        queue.add_bytes(bytes as i64);
        self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Records of this number of bytes have left a queue.
    pub(in crate::spool) fn left(&self, queue: &SpoolQueue, bytes: u64) {
        queue.add_bytes(-(bytes as i64));
        self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Takes account of messages that could not be read from this disk any more. To be called now and then.
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
                // It counts the messages of backlogs.
                queue.begin_anew();
            }
        }
    }

    /// Called after each change of the bytes of a queue: checks what they may change. Ages, and the shares of the others, are
    /// checked now and then.
    pub(in crate::spool) fn changed(&self, queue: &SpoolQueue) {
        let is_full = self.all_bytes() >= self.config().max_bytes;
        if is_full || self.alarms.is_raised(Resource::Spool) || self.alarms.is_raised(Resource::Draining) {
            self.check_bytes();
        }
        self.check_share(queue);
    }

    /// Messages return to a queue by an operator's hand: in a spool that is drained, which others pass, publishers wait for
    /// them.
    pub(in crate::spool) fn reopened(&self) {
        if self.mode() == ForwardingMode::Draining {
            self.alarms.raise(Resource::Draining);
        }
    }

    /// Blocks publishers, or lets them continue, according to the limits. Takes time in proportion to the number of queues.
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

    /// Blocks the publishers of a queue whose oldest message is too old, or cannot be parked, and no others: perhaps nobody has
    /// logged in for it.
    fn check_age(&self, queue: &SpoolQueue) {
        if queue.has_failed() || queue.parks_nothing() {
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

    /// Blocks the publishers of a queue whose messages take more than its share, or lets them continue.
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

    /// A queue's forwarder has panicked: nobody would forward what its publishers are confirmed.
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

    /// Connections that are blocked because of the spool.
    pub(in crate::spool) fn blocked_connections(&self) -> usize {
        let of_queues: usize = self.queues().iter().map(|queue| queue.alarms.blocked_connections()).sum();
        self.alarms.blocked_connections() + of_queues
    }

    /// Registers a publisher as blocked, as far as a limit of the spool or of its queue is exceeded.
    pub(in crate::spool) fn block(
        &self,
        queue: &SpoolQueue,
        outbox: &Arc<Outbox>,
    ) -> Option<(Blocked, &'static str)> {
        if !self.alarms.stand() && !queue.alarms.stand() {
            return None;
        }
        self.alarms.block(outbox).or_else(|| queue.alarms.block(outbox))
    }

    /// Measures the rates, an interval after the call before.
    pub(in crate::spool) fn measure(&self, interval: Duration) {
        for queue in self.queues() {
            let (accepted, forwarded) = &mut *queue.rates.lock();
            accepted.measure(queue.accepted.load(Ordering::Relaxed), interval);
            forwarded.measure(queue.forwarded.load(Ordering::Relaxed), interval);
        }
    }
}

/// Bytes of the records of a queue.
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
