//! What the consumers of all channels of a connection have in common: one outbox, and one client to be told.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Delivery, Queue, Timestamp, VirtualHost};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Mutex, work};
use transport::Outbox;

use super::{ConsumerKey, Deliveries, Traces};

/// The consumers of a connection that wait for the connection's own task.
pub(crate) struct ConnectionConsumers {
    pub(super) outbox: Arc<Outbox>,
    line: Mutex<Line>,
    /// Somebody stands in line. May be late, so it decides nothing.
    crowded: AtomicBool,
    /// Somebody in line waits for a turn of the connection's own task, not for room. Set before the outbox is nudged,
    /// cleared when that task looks.
    deferred: AtomicBool,
    cancelled: Mutex<Vec<Cancelled>>,
    /// What they were given while the virtual host is traced.
    traces: Traces,
}

/// Consumers for which the outbox had no room, of whichever channel, by the tickets that they drew. Each waits for
/// its turn, or one busy queue could take all the room whenever there is some.
#[derive(Default)]
struct Line {
    waiting: BTreeMap<u64, (Arc<Deliveries>, ConsumerKey)>,
    next_ticket: u64,
}

/// A consumer that the broker has cancelled.
pub(crate) struct Cancelled {
    /// Its channel's.
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) key: ConsumerKey,
    pub(crate) tag: Box<str>,
}

impl ConnectionConsumers {
    pub(crate) fn new(outbox: Arc<Outbox>) -> Self {
        let (line, crowded, deferred, cancelled, traces) = Default::default();
        Self { outbox, line, crowded, deferred, cancelled, traces }
    }

    /// The same, of a virtual host that may be traced.
    #[must_use]
    pub(crate) fn of(self, vhost: Arc<VirtualHost>) -> Self {
        Self { traces: Traces::of(vhost), ..self }
    }

    /// What the connection's own task is to tell the firehose.
    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// A channel was given messages. They are told of by the connection's own task, if they are to be: see [`Traces`].
    pub(crate) fn trace(&self, channel: u16, queue: &Arc<Queue>, by_get: bool, given: Vec<Delivery>) {
        if self.traces.add(channel, queue, by_get, given) {
            self.outbox.nudge();
        }
    }

    /// The outbox has room again: calls consumers from the line, as long as there is any and the turn is not over. Those
    /// left wait for the next time, of which the outbox has then been told.
    pub(crate) fn resume(&self, now: Timestamp) {
        if self.traces.are_full() {
            // The task that makes room there comes here next.
            return self.deferred.store(true, Ordering::Release);
        }
        while let Some((deliveries, key)) = self.next_with_room() {
            deliveries.resume_in_turn(key, now);
            if work::is_turn_over() || self.traces.are_full() {
                return self.defer();
            }
        }
    }

    /// After a nudge: calls consumers that could not be served in the turn of a publisher, or in this connection's last one.
    pub(crate) fn resume_deferred(&self, now: Timestamp) {
        if self.deferred.load(Ordering::Relaxed) && self.deferred.swap(false, Ordering::AcqRel) {
            self.resume(now);
        }
    }

    /// Has the connection's own task call the line in its next turn.
    fn defer(&self) {
        self.deferred.store(true, Ordering::Release);
        self.outbox.nudge();
    }

    /// How many stand in line.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.line.lock().waiting.len()
    }

    /// Consumers that the broker has cancelled, for the connection's own task to tell its client.
    pub(crate) fn take_cancelled(&self) -> Vec<Cancelled> {
        std::mem::take(&mut self.cancelled.lock())
    }

    pub(super) fn cancel(&self, cancelled: Cancelled) {
        self.cancelled.lock().push(cancelled);
        self.outbox.nudge();
    }

    /// Lets a consumer write if there is room and nobody waits for it, or it is the consumer's turn. If not, or if the
    /// turn of whoever brings the messages is over, or too many deliveries wait to be told of, puts it at the end of the line and returns its ticket.
    pub(super) fn enter(&self, deliveries: &Arc<Deliveries>, key: ConsumerKey, in_turn: bool) -> Option<u64> {
        let is_late = !in_turn && (work::is_turn_over() || self.traces.are_full());
        if !is_late && (in_turn || !self.crowded.load(Ordering::Relaxed)) && self.outbox.has_room() {
            return None;
        }
        // Looked at again with the line locked: the connection's task, called for the room of which there was none,
        // then comes to the line after the consumer has joined it.
        let mut line = self.line.lock();
        if !is_late && (in_turn || line.waiting.is_empty()) && self.outbox.has_room() {
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

    /// Takes a consumer out of the line that is going to be cancelled.
    pub(super) fn leave(&self, ticket: u64) {
        let mut line = self.line.lock();
        line.waiting.remove(&ticket);
        self.crowded.store(!line.waiting.is_empty(), Ordering::Relaxed);
    }

    fn next_with_room(&self) -> Option<(Arc<Deliveries>, ConsumerKey)> {
        let mut line = self.line.lock();
        // Asked only for somebody: a no is remembered by the outbox.
        if line.waiting.is_empty() || !self.outbox.has_room() {
            return None;
        }
        let next = line.waiting.pop_first().map(|(_, next)| next);
        self.crowded.store(!line.waiting.is_empty(), Ordering::Relaxed);
        next
    }
}
