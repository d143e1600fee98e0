//! Deliveries of a traced virtual host on their way to the firehose.
//!
//! A queue delivers from whichever task publishes, with its lock held, and nothing can be published there. So traces wait
//! here for the connection's own task, up to a limit at which consumers wait as well.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Delivery, Queue, Timestamp, Tracer, VirtualHost};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Mutex, Rank, work};

use super::super::publish_gate::PublishGate;

/// Deliveries that wait to be traced.
#[derive(Default)]
pub(crate) struct Traces {
    /// `None` if deliveries are never traced.
    vhost: Option<Arc<VirtualHost>>,
    waiting: Mutex<TraceBacklog, { Rank::ConsumerQueue as u8 }>,
    /// Whether any delivery waits, readable without the lock.
    any: AtomicBool,
    /// Whether the limit is reached, readable without the lock.
    full: AtomicBool,
}

#[derive(Default)]
struct TraceBacklog {
    deliveries: VecDeque<Traced>,
    /// Bytes of their bodies.
    bytes: usize,
}

/// A delivery to be traced.
struct Traced {
    channel: u16,
    queue: Arc<Queue>,
    delivery: Delivery,
    by_get: bool,
}

/// Publishes the deliveries that wait in [`Traces`], for the connection's task.
#[derive(Default)]
pub(crate) struct TracePublisher {
    /// Created for the first traced delivery, dropped once tracing has been switched off.
    tracer: Option<Box<Tracer>>,
}

impl Traces {
    pub(super) fn of(vhost: Arc<VirtualHost>) -> Self {
        Self { vhost: Some(vhost), ..Self::default() }
    }

    /// Whether deliveries have to be traced.
    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.vhost.as_ref().is_some_and(|vhost| vhost.is_traced())
    }

    /// Adds deliveries from a queue; returns whether none waited before.
    pub(super) fn add(&self, channel: u16, queue: &Arc<Queue>, by_get: bool, given: Vec<Delivery>) -> bool {
        // Operators see channel 1 for a protocol without channels.
        let channel = channel.max(1);
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.deliveries.is_empty();
        for delivery in given {
            waiting.bytes += delivery.message().body_len();
            let queue = Arc::clone(queue);
            waiting.deliveries.push_back(Traced { channel, queue, delivery, by_get });
        }
        self.changed(&waiting);
        was_empty
    }

    fn next(&self) -> Option<Traced> {
        let mut waiting = self.waiting.lock();
        let next = waiting.deliveries.pop_front()?;
        waiting.bytes -= next.delivery.message().body_len();
        if waiting.deliveries.is_empty() {
            // An idle connection holds no buffer.
            waiting.deliveries = VecDeque::new();
        }
        self.changed(&waiting);
        Some(next)
    }

    fn changed(&self, waiting: &TraceBacklog) {
        let count = waiting.deliveries.len();
        self.any.store(count > 0, Ordering::Release);
        self.full.store(count >= MAX_WAITING || waiting.bytes >= MAX_WAITING_BYTES, Ordering::Release);
    }

    /// Whether no delivery waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Whether consumers must wait until earlier deliveries have been traced.
    pub(super) fn are_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }
}

impl TracePublisher {
    /// Publishes waiting traces within the turn. If some are left, or the disk falls behind, `publish_gate` pauses the
    /// client; does nothing while it is paused. `tracer` creates the connection's tracer.
    pub(crate) fn publish(
        &mut self,
        traces: &Traces,
        publish_gate: &PublishGate,
        now: Timestamp,
        tracer: impl Fn() -> Tracer,
    ) {
        let Some(vhost) = &traces.vhost else { return };
        if !publish_gate.is_open() || (self.tracer.is_none() && traces.is_empty()) {
            return;
        }
        let publisher = self.tracer.get_or_insert_with(|| Box::new(tracer()));
        while !work::is_turn_over()
            && let Some(Traced { channel, queue, delivery, by_get }) = traces.next()
        {
            publisher.delivered(channel, &queue, &delivery, by_get, now);
        }
        let flushed = publisher.flush(now);
        if flushed.unfinished || !traces.is_empty() {
            publish_gate.pause_for_turn();
        } else if flushed.full {
            publish_gate.pause(vhost);
        } else if !vhost.is_traced() {
            self.tracer = None;
        }
    }

    /// Publishes all waiting traces, at the connection's end.
    pub(crate) fn finish(&mut self, traces: &Traces, now: Timestamp, tracer: impl Fn() -> Tracer) {
        while let Some(Traced { channel, queue, delivery, by_get }) = traces.next() {
            let publisher = self.tracer.get_or_insert_with(|| Box::new(tracer()));
            publisher.delivered(channel, &queue, &delivery, by_get, now);
        }
        if let Some(mut publisher) = self.tracer.take() {
            publisher.flush_all(now);
        }
    }
}

/// Waiting deliveries at which consumers have to wait: about one consumer's batch.
const MAX_WAITING: usize = 1024;

/// The same limit in bytes of bodies, which the waiting traces keep in memory.
const MAX_WAITING_BYTES: usize = 1 << 20;
