//! Pauses publishers while too many bytes wait to be written to disk or paged out, while a queue lets its consumers catch
//! up, and until their next turn if one turn was not enough for their publishes.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::{Flushed, Timestamp, VirtualHost, Waiter};
use transport::Outbox;

/// Pauses one connection.
pub(crate) struct PublishGate {
    /// Whether it waits for capacity or for its next turn.
    paused: Cell<bool>,
    signal: Arc<Signal>,
    /// The signal that ends a queue's hold, if there is one. Each hold has its own signal, so that an earlier one does
    /// not end it.
    hold_signal: RefCell<Option<Arc<Signal>>>,
}

struct Signal {
    outbox: Arc<Outbox>,
    given: AtomicBool,
}

impl Signal {
    fn new(outbox: Arc<Outbox>) -> Arc<Self> {
        Arc::new(Self { outbox, given: AtomicBool::new(false) })
    }

    fn take(&self) -> bool {
        self.given.swap(false, Ordering::AcqRel)
    }
}

impl Waiter for Signal {
    fn wake(&self) {
        self.given.store(true, Ordering::Release);
        self.outbox.nudge();
    }
}

impl PublishGate {
    pub(crate) fn new(outbox: Arc<Outbox>) -> Self {
        Self { paused: Cell::new(false), signal: Signal::new(outbox), hold_signal: RefCell::default() }
    }

    /// Whether the client's messages can be taken.
    pub(crate) fn is_open(&self) -> bool {
        !self.paused.get() && self.hold_signal.borrow().is_none()
    }

    /// Pauses until there is capacity, which nudges the outbox.
    pub(crate) fn pause(&self, vhost: &VirtualHost) {
        if !self.paused.replace(true) {
            // A signal left over from an earlier pause or turn must not end this pause.
            self.signal.take();
            vhost.wait_for_capacity(self.signal.clone());
        }
    }

    /// Pauses after a flush if there is no capacity, or if a queue holds the publisher; returns whether one does.
    pub(crate) fn after(&self, flushed: &Flushed, vhost: &VirtualHost, now: Timestamp) -> bool {
        if flushed.full {
            self.pause(vhost);
        }
        let mut hold_signal = self.hold_signal.borrow_mut();
        let Some(hold) = flushed.hold.as_ref().filter(|_| hold_signal.is_none()) else { return false };
        let signal = Signal::new(Arc::clone(&self.signal.outbox));
        let waiter: Arc<dyn Waiter> = Arc::<Signal>::clone(&signal);
        let is_on_hold = hold.wait(&waiter, now);
        // The signal may have been given already, with a nudge that has yet to be handled.
        *hold_signal = is_on_hold.then_some(signal);
        is_on_hold
    }

    /// Pauses until the connection's next turn, for which the outbox is nudged.
    pub(crate) fn pause_for_turn(&self) {
        self.paused.set(true);
        self.signal.wake();
    }

    /// Called after a nudge: resumes if no queue holds the publisher, and there is still capacity.
    pub(crate) fn resume(&self, vhost: &VirtualHost) {
        self.hold_signal.borrow_mut().take_if(|signal| signal.take());
        if self.paused.get() && self.signal.take() {
            self.paused.set(false);
            if !vhost.has_capacity() {
                self.pause(vhost);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use amqp::RawTable;
    use broker::{
        Body, Broker, BrokerConfig, Consumer, ConsumerCapacity, ConsumerSpec, Offer, Publish, QueueDeclare,
        SessionId,
    };

    use super::*;

    /// A consumer whose connection is busy, and which takes no messages.
    struct Late;

    impl Consumer for Late {
        fn accept(&self, _: &mut Offer<'_>) -> ConsumerCapacity {
            ConsumerCapacity::Full
        }
        fn cancelled(&self) {}
        fn busy_since_rest(&self) -> Option<u32> {
            Some(0)
        }
    }

    #[test]
    fn a_turn_that_is_over_does_not_end_a_hold() {
        let broker = Broker::new(BrokerConfig::default());
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&guest, "/").unwrap();
        let mut now = Timestamp(1_000);
        let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
        let queue = vhost.declare_queue(SessionId(1), &declare, now).unwrap().queue;
        let (consumer, session, arguments) = (Arc::new(Late), SessionId(1), RawTable::EMPTY);
        let spec = ConsumerSpec { consumer, session, tag: "late", no_ack: true, exclusive: false, arguments };
        queue.consume(spec).unwrap();
        let mut publisher = vhost.publisher(&guest);
        let mut flush = || {
            for _ in 0..256 {
                let message =
                    Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(b"m") };
                publisher.publish(message, now).unwrap();
            }
            let flushed = publisher.flush(now);
            now = now.after(1);
            (flushed, now)
        };
        let publish_gate = PublishGate::new(Arc::new(Outbox::new(1)));
        // A signal from an earlier turn.
        publish_gate.signal.wake();
        while publish_gate.is_open() {
            let (flushed, now) = flush();
            publish_gate.after(&flushed, &vhost, now);
        }
        publish_gate.resume(&vhost);
        assert!(!publish_gate.is_open());
        publish_gate.pause_for_turn();
        publish_gate.resume(&vhost);
        assert!(!publish_gate.is_open());
        // A held publisher is not held again.
        for _ in 0..10 {
            let (flushed, now) = flush();
            assert!(!publish_gate.after(&flushed, &vhost, now));
        }
        assert_eq!(broker.metrics().publisher_holds.get(), 1);
        queue.purge();
        publish_gate.resume(&vhost);
        assert!(publish_gate.is_open());
    }
}
