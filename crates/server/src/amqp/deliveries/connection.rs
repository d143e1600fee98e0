//! State shared by the consumers of all channels of a connection: one outbox, and one client to notify.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Delivery, Queue, Timestamp, VirtualHost};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Mutex, Rank, work};
use transport::Outbox;

use super::{ConsumerKey, Deliveries, Traces};

/// The consumers of a connection that wait to be resumed by the connection's own task.
pub(crate) struct ConnectionConsumers {
    pub(super) outbox: Arc<Outbox>,
    line: Mutex<ConsumerWaitQueue, { Rank::ConsumerQueue as u8 }>,
    /// Whether consumers wait for outbox capacity. Only a hint, which may be out of date.
    crowded: AtomicBool,
    /// Whether a waiting consumer needs a turn of the connection's task, not capacity. Set before the outbox is nudged,
    /// cleared when that task checks.
    deferred: AtomicBool,
    cancelled: Mutex<Vec<Cancelled>, { Rank::Leaf as u8 }>,
    /// Deliveries made while the virtual host is traced.
    traces: Traces,
}

/// Consumers of any channel that found no outbox capacity, by ticket. They are resumed in order: otherwise one busy queue
/// could take all capacity whenever there is some.
#[derive(Default)]
struct ConsumerWaitQueue {
    waiting: BTreeMap<u64, (Arc<Deliveries>, ConsumerKey)>,
    next_ticket: u64,
}

/// A consumer that the broker has cancelled.
pub(crate) struct Cancelled {
    /// The [`Deliveries`] of its channel.
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) key: ConsumerKey,
    pub(crate) tag: Box<str>,
}

impl ConnectionConsumers {
    pub(crate) fn new(outbox: Arc<Outbox>) -> Self {
        let (line, crowded, deferred, cancelled, traces) = Default::default();
        Self { outbox, line, crowded, deferred, cancelled, traces }
    }

    /// Sets the virtual host, whose deliveries may be traced.
    #[must_use]
    pub(crate) fn of(self, vhost: Arc<VirtualHost>) -> Self {
        Self { traces: Traces::of(vhost), ..self }
    }

    /// The deliveries that the connection's task has to publish to the firehose.
    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Records deliveries of a channel for the firehose; see [`Traces`].
    pub(crate) fn trace(&self, channel: u16, queue: &Arc<Queue>, by_get: bool, given: Vec<Delivery>) {
        if self.traces.add(channel, queue, by_get, given) {
            self.outbox.nudge();
        }
    }

    /// Called when the outbox has capacity again: resumes waiting consumers while there is capacity and the turn lasts.
    /// For the others, the outbox calls again.
    pub(crate) fn resume(&self, now: Timestamp) {
        if self.traces.are_full() {
            // The task that drains the traces calls this next.
            return self.deferred.store(true, Ordering::Release);
        }
        while let Some((deliveries, key)) = self.next_with_capacity() {
            deliveries.resume_in_turn(key, now);
            if work::is_turn_over() || self.traces.are_full() {
                return self.defer();
            }
        }
    }

    /// Called after a nudge: resumes consumers for which a publisher's turn, or this connection's last turn, was not
    /// enough.
    pub(crate) fn resume_deferred(&self, now: Timestamp) {
        if self.deferred.load(Ordering::Relaxed) && self.deferred.swap(false, Ordering::AcqRel) {
            self.resume(now);
        }
    }

    /// Makes the connection's own task resume waiting consumers in its next turn.
    fn defer(&self) {
        self.deferred.store(true, Ordering::Release);
        self.outbox.nudge();
    }

    /// Number of waiting consumers.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.line.lock().waiting.len()
    }

    /// Takes the cancelled consumers, for the connection's own task to notify its client.
    pub(crate) fn take_cancelled(&self) -> Vec<Cancelled> {
        std::mem::take(&mut self.cancelled.lock())
    }

    pub(super) fn cancel(&self, cancelled: Cancelled) {
        self.cancelled.lock().push(cancelled);
        self.outbox.nudge();
    }

    /// Lets a consumer write if there is capacity and no other consumer waits for it, or if it is the consumer's turn.
    /// Otherwise adds it to the wait queue and returns its ticket. Also if the delivering task's turn is over and the
    /// delivery is not urgent, or if too many deliveries wait to be traced. Urgent deliveries also queue behind others of
    /// the connection: a busy queue would take all capacity otherwise.
    pub(super) fn enter(
        &self,
        deliveries: &Arc<Deliveries>,
        key: ConsumerKey,
        in_turn: bool,
        is_urgent: bool,
    ) -> Option<u64> {
        let is_late = !in_turn && (!is_urgent && work::is_turn_over() || self.traces.are_full());
        if !is_late && (in_turn || !self.crowded.load(Ordering::Relaxed)) && self.outbox.has_capacity() {
            return None;
        }
        // Checked again with the wait queue locked: the connection's task is called when there is capacity again, and
        // then sees the consumer in the queue.
        let mut line = self.line.lock();
        if !is_late && (in_turn || line.waiting.is_empty()) && self.outbox.has_capacity() {
            return None;
        }
        let ticket = line.next_ticket;
        line.next_ticket += 1;
        line.waiting.insert(ticket, (Arc::clone(deliveries), key));
        self.crowded.store(true, Ordering::Relaxed);
        drop(line);
        if is_late {
            self.defer();
        }
        Some(ticket)
    }

    /// Removes a consumer that is about to be cancelled from the wait queue.
    pub(super) fn leave(&self, ticket: u64) {
        let mut line = self.line.lock();
        line.waiting.remove(&ticket);
        self.crowded.store(!line.waiting.is_empty(), Ordering::Relaxed);
    }

    fn next_with_capacity(&self) -> Option<(Arc<Deliveries>, ConsumerKey)> {
        let mut line = self.line.lock();
        // Asked only if a consumer waits, since the outbox calls back after a negative answer.
        if line.waiting.is_empty() || !self.outbox.has_capacity() {
            return None;
        }
        let next = line.waiting.pop_first().map(|(_, next)| next);
        self.crowded.store(!line.waiting.is_empty(), Ordering::Relaxed);
        next
    }
}
