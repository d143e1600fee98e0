//! Moves messages from one queue to another without a moment at which a crash loses or duplicates them, and into a queue
//! from another broker.

use std::sync::Arc;

use store::journal::{Lsn, Range, Transfer};

use super::{Delivery, Queue, Sender};
use crate::arguments::Overflow;
use crate::inspect::broker_properties_of;
use crate::message::{Body, Message};
use crate::persistence::{LastStoring, StoredBatch};
use crate::time::Timestamp;

/// A message that moves, and its content in the other queue.
#[derive(Debug)]
pub struct Moving {
    delivery: Delivery,
    message: Arc<Message>,
}

/// Messages that the other queue has already and this one still has.
struct BegunMove {
    deliveries: Vec<Delivery>,
    transfer: Transfer,
    /// The log position from which on the other queue has them on disk.
    until: Option<Lsn>,
}

impl Moving {
    /// It is not changed.
    pub fn unchanged(delivery: Delivery) -> Self {
        Self { message: Arc::clone(delivery.message()), delivery }
    }

    /// It gets other properties (flags and list as they are on the wire) and another body.
    pub fn changed(delivery: Delivery, properties: &[u8], body: Body<'_>) -> Self {
        let old = delivery.message();
        let exchange = old.shared_exchange().clone();
        let message = Message::new(exchange, old.routing_key(), properties, body, old.broker_properties());
        Self { message: Arc::new(message), delivery }
    }
}

/// A message of another broker's queue on its way into one here.
#[derive(Debug)]
pub struct ForeignMessage(Arc<Message>);

impl ForeignMessage {
    /// The message as the other broker delivered it. The exchange need not exist here. `None` if its properties (flags and
    /// list as they are on the wire) are malformed.
    pub fn new(exchange: &str, routing_key: &str, properties: &[u8], body: &[u8]) -> Option<Self> {
        let broker_properties = broker_properties_of(properties)?;
        let message =
            Message::new(exchange.into(), routing_key, properties, Body::Copied(body), broker_properties);
        Some(Self(Arc::new(message)))
    }
}

/// The outcome of [`Queue::take_in`].
#[derive(Debug, Default)]
pub struct ImportOutcome {
    /// The indices of the messages that the full queue has refused, ascending.
    pub refused: Vec<usize>,
    /// The log position that has to be on disk before the others are safe; `None` if they need not wait.
    pub until: Option<Lsn>,
    /// The store's backlog exceeds its limit: see
    /// [`VirtualHost::wait_for_capacity`](crate::VirtualHost::wait_for_capacity).
    pub full: bool,
}

impl Queue {
    /// The number of messages that it accepts before it refuses one for its length; `None` if it refuses none. At most one
    /// if its bytes are limited.
    pub fn capacity_before_refusal(&self) -> Option<u64> {
        let arguments = self.arguments.load();
        let state = self.state.lock();
        if arguments.overflow == Overflow::DropHead {
            return None;
        }
        let of_length = arguments.max_length.map(|max| max.saturating_sub(state.ready.len() as u64));
        let of_bytes = arguments.max_length_bytes.map(|max| u64::from(state.ready.bytes() < max));
        of_length.into_iter().chain(of_bytes).min()
    }

    /// Appends messages of another broker, in order, bypassing all exchanges. A deleted queue refuses all of them. Refused
    /// messages are not dead-lettered: the other broker still has them.
    pub fn take_in(self: &Arc<Self>, messages: Vec<ForeignMessage>, now: Timestamp) -> ImportOutcome {
        let messages: Vec<_> = messages.into_iter().map(|message| message.0).collect();
        let (count, mut refused) = (messages.len(), Vec::new());
        let last = LastStoring::of(std::slice::from_ref(self));
        let stored = StoredBatch::keep(self.context.paging.store(), last, &messages);
        let sender = Sender::Foreign;
        let appended = self.append(messages.into_iter(), stored.at(0), now, sender, |at| refused.push(at));
        if self.is_deleted() {
            refused = (0..count).collect();
        }
        self.send_dead_letters_in_turn(appended.dead, appended.lined_up, now);
        ImportOutcome { refused, until: appended.until, full: stored.full || appended.full }
    }

    /// Moves unacknowledged messages to the end of another queue, in order. If both queues store them, that is one atomic
    /// step on disk: after a crash each message is in exactly one of them. Returns the log position to wait for; `None` if
    /// there is none. The other queue must refuse no messages and have no dead letters, like those of a spool.
    ///
    /// # Errors
    /// The other queue is deleted; the messages are unacknowledged as before.
    pub fn move_to(
        &self,
        to: &Arc<Self>,
        moving: Vec<Moving>,
        now: Timestamp,
    ) -> Result<Option<Lsn>, Vec<Delivery>> {
        if moving.is_empty() {
            return Ok(None);
        }
        self.end_move(to, self.begin_move(to, moving, now), now)
    }

    /// Appends the messages to the other queue.
    fn begin_move(&self, to: &Arc<Self>, moving: Vec<Moving>, now: Timestamp) -> BegunMove {
        let (deliveries, messages): (Vec<_>, Vec<_>) =
            moving.into_iter().map(|moving| (moving.delivery, moving.message)).unzip();
        let (last, mut transfer) = (LastStoring::of(std::slice::from_ref(to)), Transfer::default());
        let stored = StoredBatch::keep(self.context.paging.store(), last, &messages);
        let queue_batch = stored.at(0).in_transfer(self.stored().is_some().then_some(&mut transfer));
        let sender = Sender::DeadLetters { budget: 0 };
        let mut refused = 0;
        let appended = to.append(messages.into_iter(), queue_batch, now, sender, |_| refused += 1);
        debug_assert_eq!(
            (refused, appended.dead, appended.lined_up),
            (0, 0, false),
            "refused messages would be lost, and dead letters would never be sent"
        );
        BegunMove { deliveries, transfer, until: appended.until }
    }

    /// Removes the messages from this queue, if the other one still exists.
    fn end_move(&self, to: &Self, begun: BegunMove, now: Timestamp) -> Result<Option<Lsn>, Vec<Delivery>> {
        let BegunMove { deliveries, transfer, until } = begun;
        if to.is_deleted() {
            // If it was deleted just now, the transfer has begun, and its records would otherwise stay in the journal
            // forever.
            if let Some(stored) = self.stored().filter(|_| !transfer.is_empty()) {
                stored.transfer(&[], &transfer);
            }
            return Err(deliveries);
        }
        if transfer.is_empty() {
            return Ok(until.max(self.ack(deliveries, now)));
        }
        let mut ranges: Vec<Range> = Vec::new();
        for position in deliveries.iter().map(Delivery::position) {
            match ranges.last_mut() {
                Some(range) if range.last + 1 == position => range.last = position,
                _ => ranges.push(Range::one(position)),
            }
        }
        let mut state = self.state.lock();
        state.unacked = state.unacked.saturating_sub(deliveries.len() as u64);
        drop(state);
        Ok(self.stored().map(|stored| stored.transfer(&ranges, &transfer)))
    }
}

#[cfg(test)]
mod tests {
    use store::Store;
    use store::disk::simulated::SimDisk;
    use store::journal::JournalSettings;

    use super::*;
    use crate::{Broker, BrokerConfig, Publish, QueueDeclare, SessionId, UserSpec};

    #[test]
    fn messages_move_in_order_and_leave_no_trace() {
        let broker = Broker::new(BrokerConfig::default());
        let vhost = broker.vhost("/").unwrap();
        let declare = |name| {
            let declare = QueueDeclare { name, durable: true, ..QueueDeclare::default() };
            vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue
        };
        let (from, to) = (declare("from"), declare("to"));
        let identity = broker.authenticate_external(&UserSpec::guest().name, true).unwrap();
        let mut publisher = vhost.publisher(&identity);
        for body in [b"a", b"b", b"c"] {
            let (properties, body) = (amqp::properties::NO_PROPERTIES, Body::Copied(body));
            let publish = Publish { exchange: "", routing_key: "from", properties, body };
            publisher.publish(publish, Timestamp(1)).unwrap();
        }
        publisher.flush_all(Timestamp(1));
        let mut moving = Vec::new();
        while let Some(got) = from.get(false, Timestamp(1)) {
            moving.push(match moving.len() {
                1 => Moving::changed(got.delivery, amqp::properties::NO_PROPERTIES, Body::Copied(b"B")),
                _ => Moving::unchanged(got.delivery),
            });
        }
        assert!(from.move_to(&to, moving, Timestamp(1)).is_ok());
        let (from, to_view) = (from.view(), to.view());
        assert_eq!((from.ready, from.unacknowledged, to_view.ready), (0, 0, 3));
        let bodies = std::iter::from_fn(|| to.get(true, Timestamp(1)));
        let bodies: Vec<_> = bodies.map(|got| got.delivery.message().body().to_vec()).collect();
        assert_eq!(bodies, [b"a".to_vec(), b"B".to_vec(), b"c".to_vec()]);
    }

    #[test]
    fn a_move_to_a_queue_that_is_deleted_meanwhile_leaves_nothing_in_the_journal() {
        let broker = Broker::new(BrokerConfig::default());
        let disk = Arc::new(SimDisk::new(1, 1 << 30));
        let (store, mut rounds, recovered) = Store::open(disk, JournalSettings::default()).unwrap();
        broker.restore(&store, recovered, Timestamp(1)).unwrap();
        let vhost = broker.vhost("/").unwrap();
        let declare = |name| {
            let declare = QueueDeclare { name, durable: true, ..QueueDeclare::default() };
            vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue
        };
        let (from, to) = (declare("from"), declare("to"));
        let mut properties = Vec::new();
        amqp::Properties::default().with_delivery_mode(2).encode(&mut properties);
        from.take_in(vec![ForeignMessage::new("", "from", &properties, b"m").unwrap()], Timestamp(1));
        let got = from.get(false, Timestamp(1)).unwrap().delivery;
        let begun = from.begin_move(&to, vec![Moving::unchanged(got)], Timestamp(1));
        assert!(!begun.transfer.is_empty());
        vhost.delete_queue(SessionId(1), "to", false, false).unwrap();
        let back = from.end_move(&to, begun, Timestamp(1)).unwrap_err();
        assert_eq!(from.unacked_count(), 1, "the message has not left the queue");
        from.ack(back, Timestamp(1));
        rounds.step();
        assert_eq!(store.journal().segments().iter().map(|segment| segment.live).sum::<u64>(), 0);
    }

    #[test]
    fn messages_from_another_broker_keep_exchange_key_and_properties() {
        let broker = Broker::new(BrokerConfig::default());
        let vhost = broker.vhost("/").unwrap();
        let arguments = [
            ("x-max-length", amqp::FieldValue::I64(2)),
            ("x-overflow", amqp::FieldValue::text("reject-publish-dlx")),
            ("x-dead-letter-exchange", amqp::FieldValue::text("")),
            ("x-dead-letter-routing-key", amqp::FieldValue::text("dead")),
        ];
        let arguments = arguments.into_iter().collect::<amqp::FieldTable>();
        let encoded = arguments.encode();
        let raw = amqp::RawTable::check(&encoded).unwrap();
        let declare = QueueDeclare { name: "q", durable: true, arguments: raw, ..QueueDeclare::default() };
        let queue = vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue;
        let declare = QueueDeclare { name: "dead", ..QueueDeclare::default() };
        let dead = vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue;
        let mut properties = Vec::new();
        amqp::Properties::default().with_priority(7).with_delivery_mode(2).encode(&mut properties);
        let message = |body: &[u8]| ForeignMessage::new("events", "a.b", &properties, body).unwrap();
        let taken = queue.take_in(vec![message(b"1"), message(b"2"), message(b"3")], Timestamp(1));
        assert_eq!(taken.refused, [2], "the queue is full");
        assert_eq!((queue.capacity_before_refusal(), dead.capacity_before_refusal()), (Some(0), None));
        assert_eq!(dead.message_count(), 0, "what is refused is still at the other broker");
        let got = queue.get(false, Timestamp(1)).unwrap().delivery;
        assert_eq!((got.message().exchange(), got.message().routing_key()), ("events", "a.b"));
        assert_eq!(
            (got.message().properties(), got.message().broker_properties().priority),
            (&*properties, Some(7))
        );
        assert!(ForeignMessage::new("events", "a.b", &[0xff], b"").is_none(), "malformed");
        // No client has seen it.
        queue.requeue(vec![got], super::super::Returned::Unseen, Timestamp(1));
        let again = queue.get(false, Timestamp(1)).unwrap().delivery;
        assert!(!again.redelivered() && again.message().body().to_vec() == b"1");
    }
}
