//! What the consumers of a connection were given while its virtual host is traced, on its way to the firehose.
//!
//! A queue delivers from whatever task publishes, with its lock held, where nothing can be published. So what is to be told of
//! waits here for the connection's own task, whose turn pays for it, within limits: beyond those the consumers wait, too.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Delivery, Queue, Timestamp, Tracer, VirtualHost};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Mutex, work};

use super::super::room::DiskRoom;

/// Deliveries that wait to be told of.
#[derive(Default)]
pub(crate) struct Traces {
    /// `None` where nothing is ever traced.
    vhost: Option<Arc<VirtualHost>>,
    waiting: Mutex<Waiting>,
    /// As of the last change of `waiting`, for those who only want to know whether to look.
    any: AtomicBool,
    /// The same: as much waits as may.
    full: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    deliveries: VecDeque<Traced>,
    /// Bytes of their bodies.
    bytes: usize,
}

/// A delivery to be told of.
struct Traced {
    channel: u16,
    queue: Arc<Queue>,
    delivery: Delivery,
    by_get: bool,
}

/// Publishes what waits in [`Traces`], for the connection's task.
#[derive(Default)]
pub(crate) struct TracePublisher {
    /// Made for the first delivery that is traced, dropped once tracing has been switched off.
    tracer: Option<Box<Tracer>>,
}

impl Traces {
    pub(super) fn of(vhost: Arc<VirtualHost>) -> Self {
        Self { vhost: Some(vhost), ..Self::default() }
    }

    /// Whether what is delivered is to be told of.
    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.vhost.as_ref().is_some_and(|vhost| vhost.is_traced())
    }

    /// Adds deliveries from a queue; whether none waited before.
    pub(super) fn add(&self, channel: u16, queue: &Arc<Queue>, by_get: bool, given: Vec<Delivery>) -> bool {
        // A protocol without channels has one as far as operators can see.
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
            // A connection that rests holds no buffer.
            waiting.deliveries = VecDeque::new();
        }
        self.changed(&waiting);
        Some(next)
    }

    fn changed(&self, waiting: &Waiting) {
        let count = waiting.deliveries.len();
        self.any.store(count > 0, Ordering::Release);
        self.full.store(count >= MAX_WAITING || waiting.bytes >= MAX_WAITING_BYTES, Ordering::Release);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Whether consumers are to wait until what was delivered before has been told of.
    pub(super) fn are_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }
}

impl TracePublisher {
    /// Publishes what waits, as far as the turn goes. If that is not all, or more is published than can leave memory, `room`
    /// pauses the client; nothing is done while it does. `tracer` makes the connection's tracer.
    pub(crate) fn publish(
        &mut self,
        traces: &Traces,
        room: &DiskRoom,
        now: Timestamp,
        tracer: impl Fn() -> Tracer,
    ) {
        let Some(vhost) = &traces.vhost else { return };
        if !room.is_there() || (self.tracer.is_none() && traces.is_empty()) {
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
            room.pause_for_turn();
        } else if flushed.full {
            room.pause(vhost);
        } else if !vhost.is_traced() {
            self.tracer = None;
        }
    }

    /// Publishes all that waits, at the connection's end.
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

/// Deliveries that wait before consumers do: about as many as one of them is given at once.
const MAX_WAITING: usize = 1024;

/// The same in bytes of bodies, which are kept in memory for it.
const MAX_WAITING_BYTES: usize = 1 << 20;
