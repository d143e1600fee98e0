mod traced;

use amqp::frame::Frame;
use amqp::method::Method;
use amqp::properties::NO_PROPERTIES;
use broker::{
    Body, Broker, BrokerConfig, ConsumerSpec, Identity, Publish, Publisher, QueueDeclare, SessionId,
    VirtualHost,
};
use transport::Outbox;

use super::inner::{RETAINED_CAPACITY, RETAINED_TOMBSTONES};
use super::*;

const NOW: Timestamp = Timestamp(1_000_000);
const SESSION: SessionId = SessionId(1);

/// A channel consuming from a queue of its own broker.
struct Fixture {
    vhost: Arc<VirtualHost>,
    queue: Arc<Queue>,
    publisher: Publisher,
    identity: Identity,
    outbox: Arc<Outbox>,
    deliveries: Arc<Deliveries>,
    connection: Arc<ConnectionConsumers>,
}

impl Fixture {
    fn new(outbox_limit: usize) -> Self {
        let broker = Broker::new(BrokerConfig::default());
        let identity = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&identity, "/").unwrap();
        let declare = QueueDeclare { name: "q", ..Default::default() };
        let queue = vhost.declare_queue(SESSION, &declare, NOW).unwrap().queue;
        let publisher = vhost.publisher(&identity);
        let outbox = Arc::new(Outbox::new(outbox_limit));
        let destination = Destination { channel: 1, frame_max: 4096 };
        let connection = Arc::new(ConnectionConsumers::new(Arc::clone(&outbox)));
        let deliveries = Arc::new(Deliveries::new(Arc::clone(&connection), destination));
        Self { vhost, queue, publisher, identity, outbox, deliveries, connection }
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            let body = Body::Copied(b"body");
            let message =
                Publish { exchange: "", routing_key: self.queue.name(), properties: NO_PROPERTIES, body };
            assert!(self.publisher.publish(message, NOW).unwrap());
        }
        self.publisher.flush(NOW);
    }

    fn consume(&self, tag: &str, limit: usize, no_ack: bool) -> ConsumerKey {
        let key = self.deliveries.add_consumer(limit, Settling::of_queue(no_ack));
        let consumer = Arc::new(ChannelConsumer {
            deliveries: Arc::clone(&self.deliveries),
            key,
            tag: tag.into(),
            no_ack,
            prefetch: 0,
            queue: Arc::clone(&self.queue),
            form: BasicDeliver,
        });
        let arguments = amqp::RawTable::default();
        let spec = ConsumerSpec { consumer, session: SESSION, tag, no_ack, exclusive: false, arguments };
        let id = self.queue.consume(spec).unwrap();
        self.deliveries.activate(key, &self.queue, id);
        self.queue.resume(id, NOW);
        key
    }

    /// Delivery tags written since the last call.
    fn delivered(&self) -> Vec<u64> {
        let bytes = self.outbox.read_all();
        let mut tags = Vec::new();
        let mut rest = &bytes[..];
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            if frame.kind == amqp::FrameKind::Method
                && let Ok(Method::BasicDeliver(deliver)) = Method::decode(frame.payload)
            {
                tags.push(deliver.delivery_tag);
            }
            rest = &rest[frame.wire_len()..];
        }
        tags
    }

    /// Number of consumers that wait for the channel's credit.
    fn waiting(&self) -> usize {
        self.deliveries.inner.lock().as_ref().map_or(0, |inner| inner.waiting.len())
    }

    fn settle(&self, tag: u64, multiple: bool) -> Option<Vec<u64>> {
        let settled = self.deliveries.settle(tag, multiple, DeliverySettlement::Ack, Some(NOW))?;
        let (tags, deliveries) = settled.into_iter().map(|(tag, entry)| (tag, entry.delivery)).unzip();
        self.queue.ack(deliveries, NOW);
        self.deliveries.resume(NOW);
        Some(tags)
    }
}

/// More bytes than any test writes.
const AMPLE: usize = 1 << 20;

#[test]
fn prefetch_is_kept_and_refilled_by_each_settlement() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 2, false);
    fixture.publish(5);
    assert_eq!(fixture.delivered(), [1, 2]);
    assert_eq!(fixture.settle(2, false), Some(vec![2]));
    assert_eq!(fixture.delivered(), [3]);
    assert_eq!(fixture.settle(3, true), Some(vec![1, 3]));
    assert_eq!(fixture.delivered(), [4, 5]);
}

#[test]
fn the_channels_limit_spans_its_consumers_and_can_be_lifted() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.deliveries.set_channel_limit(3);
    fixture.consume("a", 0, false);
    fixture.consume("b", 0, false);
    fixture.publish(10);
    assert_eq!(fixture.delivered().len(), 3);
    fixture.deliveries.set_channel_limit(0);
    fixture.deliveries.resume(NOW);
    assert_eq!(fixture.delivered().len(), 7);
}

#[test]
fn without_acknowledgements_no_limit_is_used_up() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.deliveries.set_channel_limit(1);
    fixture.consume("c", 1, true);
    fixture.publish(10);
    assert_eq!(fixture.delivered().len(), 10);
    assert_eq!(fixture.settle(1, false), None, "no-ack deliveries cannot be settled");
}

#[test]
fn unsettled_deliveries_of_other_consumers_hold_back_a_no_ack_consumer() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.deliveries.set_channel_limit(1);
    fixture.publish(1);
    let acking = fixture.consume("a", 0, false);
    fixture.consume("b", 0, true);
    fixture.publish(3);
    assert_eq!(fixture.delivered(), [1], "as RabbitMQ does");
    fixture.deliveries.remove_consumer(acking);
    fixture.settle(1, false);
    assert_eq!(fixture.delivered(), [2, 3, 4]);
}

#[test]
fn direct_reply_consumers_ignore_prefetch() {
    let fixture = Fixture::new(AMPLE);
    fixture.deliveries.set_channel_limit(1);
    let key = fixture.deliveries.add_consumer(1, Settling::Reply);
    let mut inner = fixture.deliveries.inner.lock();
    let inner = inner.as_mut().unwrap();
    inner.consumed_count = 1;
    assert!(inner.has_credit(key));
}

#[test]
fn a_tag_is_settled_once_and_only_if_it_was_given_out() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 0, false);
    fixture.publish(4);
    assert_eq!(fixture.settle(2, false), Some(vec![2]));
    for unknown in [2, 5] {
        assert_eq!(fixture.settle(unknown, false), None);
        assert_eq!(fixture.settle(unknown, true), None, "multiple asks for an outstanding tag, too");
    }
    assert_eq!(fixture.settle(0, false), None);
    assert_eq!(fixture.settle(0, true), Some(vec![1, 3, 4]));
    assert_eq!(fixture.settle(0, true), Some(vec![]));
}

#[test]
fn without_deliveries_only_multiple_with_tag_0_is_accepted() {
    let fixture = Fixture::new(AMPLE);
    assert_eq!(fixture.deliveries.passed(NOW), None);
    assert_eq!((fixture.deliveries.counts(), fixture.deliveries.next_tag()), ((0, 0), 1));
    assert!(!fixture.deliveries.is_in_use());
    assert_eq!(fixture.settle(0, true), Some(vec![]));
    assert_eq!((fixture.settle(1, true), fixture.settle(1, false)), (None, None));
}

#[test]
fn only_a_delivery_that_is_outstanding_is_overdue() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let mut fixture = Fixture::new(AMPLE);
    let start = Instant::now();
    let is_overdue =
        |fixture: &Fixture, after: u32| fixture.deliveries.is_overdue(start + after * TIMEOUT, TIMEOUT);
    fixture.consume("c", 0, false);
    fixture.publish(5);
    assert!(!is_overdue(&fixture, 0));
    // The last one alone, then all before it.
    assert!(fixture.settle(5, false).is_some() && fixture.settle(4, true).is_some());
    assert!(!is_overdue(&fixture, 1) && !is_overdue(&fixture, 2));
    fixture.publish(1);
    assert!(!is_overdue(&fixture, 3), "it came a moment ago");
    assert!(is_overdue(&fixture, 4));
    assert!(fixture.settle(6, false).is_some());
    assert!(!is_overdue(&fixture, 5));
}

#[test]
fn one_delivery_never_settled_does_not_keep_the_others_in_memory() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 2, false);
    fixture.publish(1000);
    for tag in 2..1000 {
        assert!(fixture.settle(tag, false).is_some());
    }
    let inner = fixture.deliveries.inner.lock();
    let inner = inner.as_ref().unwrap();
    assert_eq!(inner.unsettled_count, 2);
    assert!(inner.unsettled.len() <= 2 * 2 + RETAINED_TOMBSTONES + 1, "{}", inner.unsettled.len());
}

#[test]
fn a_burst_of_deliveries_takes_memory_only_until_it_is_settled() {
    let capacity = |fixture: &Fixture| fixture.deliveries.inner.lock().as_ref().unwrap().unsettled.capacity();
    for multiple in [true, false] {
        let mut fixture = Fixture::new(AMPLE);
        fixture.consume("c", 0, false);
        fixture.publish(10 * RETAINED_CAPACITY);
        assert!(capacity(&fixture) >= 10 * RETAINED_CAPACITY);
        if multiple {
            assert!(fixture.settle(0, true).is_some());
        } else {
            // The last deliveries are still unsettled.
            (10..10 * RETAINED_CAPACITY as u64).for_each(|tag| assert!(fixture.settle(tag, false).is_some()));
        }
        assert!(capacity(&fixture) <= 2 * RETAINED_CAPACITY, "{}", capacity(&fixture));
    }
}

#[test]
fn a_full_outbox_leaves_the_rest_in_the_queue_until_there_is_capacity() {
    let mut fixture = Fixture::new(200);
    fixture.consume("c", 0, true);
    fixture.publish(100);
    let first = fixture.outbox.backlog();
    assert!((200..400).contains(&first), "{first} bytes");
    let left = fixture.queue.message_count();
    assert!(left > 90, "{left} messages");
    fixture.connection.resume(NOW);
    assert_eq!(fixture.queue.message_count(), left, "no room yet");
    assert!(!fixture.delivered().is_empty());
    fixture.connection.resume(NOW);
    assert!(fixture.queue.message_count() < left, "the session resumes it when it hears of room");
}

#[test]
fn held_deliveries_free_their_credit_at_commit_or_are_restored_at_rollback() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 3, false);
    fixture.publish(6);
    assert_eq!(fixture.delivered(), [1, 2, 3]);
    let held = fixture.deliveries.hold(2, true).unwrap();
    assert!(fixture.deliveries.hold(1, false).is_none(), "held already");
    fixture.deliveries.resume(NOW);
    assert_eq!(fixture.delivered(), [0; 0], "no credit before commit");
    fixture.deliveries.restore(held);
    let held = fixture.deliveries.hold(0, true).unwrap();
    assert_eq!(held.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [1, 2, 3]);
    fixture.deliveries.release(&held, DeliverySettlement::Ack, NOW);
    fixture.deliveries.resume(NOW);
    assert_eq!(fixture.delivered(), [4, 5, 6]);
}

#[test]
fn deliveries_restored_in_any_order_are_where_they_were_among_the_others() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 0, false);
    fixture.publish(9);
    assert_eq!(fixture.delivered().len(), 9);
    let deliveries = &fixture.deliveries;
    let held = [7, 2, 5].map(|tag| deliveries.hold(tag, false).unwrap()).into_iter().flatten();
    let held: Vec<_> = held.chain(deliveries.hold(3, true).unwrap()).collect();
    drop(deliveries.settle(6, false, DeliverySettlement::Ack, None).unwrap());
    deliveries.restore(held);
    assert_eq!(deliveries.counts().1, 8);
    assert!(deliveries.settle(6, true, DeliverySettlement::Ack, None).is_none(), "it is settled");
    let settled = deliveries.settle(5, true, DeliverySettlement::Ack, None).unwrap();
    assert_eq!(settled.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let rest = deliveries.settle(0, true, DeliverySettlement::Ack, None).unwrap();
    assert_eq!(rest.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [7, 8, 9]);
}

#[test]
fn removing_a_cancelled_consumer_again_leaves_its_replacement() {
    let mut fixture = Fixture::new(AMPLE);
    let first = fixture.consume("first", 0, true);
    fixture.deliveries.remove_consumer(first);
    let second = fixture.consume("second", 0, true);
    assert_eq!(first.place, second.place);
    fixture.deliveries.remove_consumer(first);
    fixture.publish(2);
    assert!(!fixture.delivered().is_empty());
}

#[test]
fn a_deleted_queue_cancels_its_consumers() {
    let fixture = Fixture::new(AMPLE);
    let key = fixture.consume("c", 0, false);
    fixture.vhost.delete_queue(SESSION, "q", false, false).unwrap();
    let cancelled = fixture.connection.take_cancelled();
    assert_eq!((cancelled.len(), cancelled[0].key, &*cancelled[0].tag), (1, key, "c"));
    assert!(Arc::ptr_eq(&cancelled[0].deliveries, &fixture.deliveries));
}

/// A second channel of the fixture's connection, with a queue of its own.
fn second_channel(fixture: &Fixture) -> Fixture {
    let declare = QueueDeclare { name: "r", ..Default::default() };
    let destination = Destination { channel: 2, frame_max: 4096 };
    Fixture {
        vhost: Arc::clone(&fixture.vhost),
        queue: fixture.vhost.declare_queue(SESSION, &declare, NOW).unwrap().queue,
        publisher: fixture.vhost.publisher(&fixture.identity),
        identity: fixture.identity.clone(),
        outbox: Arc::clone(&fixture.outbox),
        deliveries: Arc::new(Deliveries::new(Arc::clone(&fixture.connection), destination)),
        connection: Arc::clone(&fixture.connection),
    }
}

#[test]
fn channels_of_a_client_that_reads_slowly_take_turns() {
    let mut busy = Fixture::new(300);
    let mut other = second_channel(&busy);
    busy.consume("busy", 0, true);
    other.consume("other", 0, true);
    busy.publish(1_000);
    other.publish(1_000);
    assert_eq!(other.queue.message_count(), 1_000, "there is no room");
    for _ in 0..10 {
        let before = (busy.queue.message_count(), other.queue.message_count());
        for _ in 0..2 {
            busy.outbox.read_all();
            busy.connection.resume(NOW);
        }
        assert!(busy.queue.message_count() < before.0 && other.queue.message_count() < before.1);
    }
}

#[test]
fn a_channel_waiting_for_capacity_is_not_overtaken_by_another_channel() {
    let mut first = Fixture::new(300);
    let mut other = second_channel(&first);
    first.consume("first", 0, true);
    first.publish(100);
    let left = first.queue.message_count();
    first.outbox.read_all();
    other.consume("late", 0, true);
    other.publish(1);
    assert_eq!(other.queue.message_count(), 1, "it waits behind the first");
    first.connection.resume(NOW);
    assert!(first.queue.message_count() < left);
    first.outbox.read_all();
    first.connection.resume(NOW);
    assert_eq!(other.queue.message_count(), 0);
}

#[test]
fn a_slow_client_holds_up_nobody_else() {
    let mut slow = Fixture::new(300);
    let mut quick = second_channel(&slow);
    quick.outbox = Arc::new(Outbox::new(AMPLE));
    quick.connection = Arc::new(ConnectionConsumers::new(Arc::clone(&quick.outbox)));
    let destination = Destination { channel: 1, frame_max: 4096 };
    quick.deliveries = Arc::new(Deliveries::new(Arc::clone(&quick.connection), destination));
    slow.consume("slow", 0, true);
    quick.consume("quick", 0, true);
    slow.publish(1_000);
    quick.publish(1_000);
    assert_eq!(quick.delivered().len(), 1_000, "its own queue");
    let left = slow.queue.message_count();
    assert!(left > 900);
    // Also for the slow consumer's queue.
    quick.queue = Arc::clone(&slow.queue);
    quick.consume("helper", 0, true);
    assert_eq!((quick.delivered().len() as u64, slow.queue.message_count()), (left, 0));
}

#[test]
fn consumers_that_wait_and_are_cancelled_leave_nothing_behind() {
    let mut fixture = Fixture::new(200);
    fixture.consume("c", 0, true);
    fixture.publish(100);
    for _ in 0..1_000 {
        let key = fixture.consume("again", 0, true);
        fixture.deliveries.remove_consumer(key);
    }
    fixture.deliveries.set_channel_limit(1);
    for _ in 0..1_000 {
        let key = fixture.consume("again", 0, false);
        fixture.deliveries.remove_consumer(key);
    }
    let inner = fixture.deliveries.inner.lock();
    let inner = inner.as_ref().unwrap();
    assert_eq!((inner.consumers.len(), inner.waiting.len()), (1, 0));
    assert_eq!(fixture.connection.waiting(), 1);
}

#[test]
fn a_settlement_looks_at_few_of_very_many_full_consumers() {
    const MANY: usize = 10_000;
    let mut fixture = Fixture::new(AMPLE * 8);
    fixture.deliveries.set_channel_limit(MANY);
    for number in 0..MANY {
        fixture.consume(&number.to_string(), 1, false);
    }
    fixture.publish(3 * MANY);
    assert_eq!(fixture.delivered().len(), MANY, "all are full");
    for tag in 1..=MANY as u64 {
        let settled = fixture.deliveries.settle(tag, false, DeliverySettlement::Ack, None).unwrap();
        fixture.queue.ack(settled.into_iter().map(|(_, entry)| entry.delivery).collect(), NOW);
        let waiting = fixture.waiting();
        assert_eq!(waiting, 1, "only whose delivery it was");
        fixture.deliveries.resume(NOW);
    }
    assert_eq!(fixture.delivered().len(), MANY);
    // If there is credit for one of them, one of them gets it.
    fixture.deliveries.set_channel_limit(1);
    assert!(fixture.settle(0, true).is_some_and(|settled| settled.len() == MANY));
    assert_eq!(fixture.delivered().len(), 1);
    let before = fixture.waiting();
    assert!(fixture.settle(0, true).is_some());
    assert_eq!(fixture.delivered().len(), 1);
    let after = fixture.waiting();
    assert!(before - after <= 1 && before == MANY - 1, "{before} before, {after} after");
}
