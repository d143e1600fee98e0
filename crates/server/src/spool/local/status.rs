//! The state of a spool's queues, for operators.

use std::sync::atomic::Ordering;

use super::{LocalSpool, SpoolQueue};

/// The queues of a user in a virtual host, for operators.
#[derive(Debug, Clone, PartialEq)]
pub struct SpoolStatus {
    /// The virtual host upstream.
    pub vhost: Box<str>,
    /// The user who published the messages, and as whom they are forwarded.
    pub user: Box<str>,
    /// Messages that the upstream has not confirmed.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// The maximum of these bytes before publishers are blocked, given the other queues' present bytes.
    pub max_bytes: u64,
    /// Seconds since the oldest message was accepted.
    pub oldest_seconds: Option<u64>,
    /// Messages that wait for their destination, because the upstream has nacked or refused a message for it.
    pub deferred: u64,
    /// Recently accepted messages per second.
    pub accept_rate: f64,
    /// Recently confirmed messages per second.
    pub forward_rate: f64,
    /// Messages accepted since the start.
    pub accepted: u64,
    /// Messages that the upstream has confirmed since the start.
    pub forwarded: u64,
    /// Messages that the upstream has refused permanently since the start.
    pub parked: u64,
    /// The reason why nothing is forwarded, if something prevents it.
    pub trouble: Option<Box<str>>,
}

impl LocalSpool {
    pub(in crate::spool) fn status(&self, queue: &SpoolQueue) -> SpoolStatus {
        let (accept_rate, forward_rate) = *queue.rates.lock();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        SpoolStatus {
            vhost: queue.vhost().into(),
            user: queue.user().into(),
            messages: queue.messages(),
            bytes: u64::try_from(queue.bytes()).unwrap_or(0),
            max_bytes: self.max_bytes(queue),
            oldest_seconds: self.age(queue).map(|age| age / 1000),
            deferred: count(&queue.deferred),
            accept_rate: accept_rate.get(),
            forward_rate: forward_rate.get(),
            accepted: count(&queue.accepted),
            forwarded: count(&queue.forwarded),
            parked: count(&queue.parked),
            trouble: queue.trouble(),
        }
    }
}
