use amqp::frame::Frame;
use amqp::method::Method;
use amqp::properties::NO_PROPERTIES;
use broker::{
    Body, Broker, BrokerConfig, ConsumerSpec, Publish, Publisher, QueueDeclare, SessionId, Timestamp,
    VirtualHost,
};

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);
const SESSION: SessionId = SessionId(1);

/// A channel on a queue of a broker of its own.
struct Fixture {
    vhost: Arc<VirtualHost>,
    queue: Arc<Queue>,
    publisher: Publisher,
    outbox: Arc<Outbox>,
    deliveries: Arc<Deliveries>,
    cancellations: Arc<Cancellations>,
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
        let deliveries = Arc::new(Deliveries::new(Arc::clone(&outbox), destination));
        Self { vhost, queue, publisher, outbox, deliveries, cancellations: Arc::default() }
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            let body = Body::Copied(b"body");
            let message = Publish { exchange: "", routing_key: "q", properties: NO_PROPERTIES, body };
            assert!(self.publisher.publish(message, NOW).unwrap());
        }
        self.publisher.flush(NOW);
    }

    fn consume(&self, tag: &str, limit: usize, no_ack: bool) -> ConsumerKey {
        let key = self.deliveries.add_consumer(limit, no_ack);
        let consumer = Arc::new(ChannelConsumer {
            deliveries: Arc::clone(&self.deliveries),
            key,
            tag: tag.into(),
            no_ack,
            queue: Arc::clone(&self.queue),
            cancellations: Arc::clone(&self.cancellations),
        });
        let arguments = amqp::RawTable::default();
        let spec = ConsumerSpec { consumer, session: SESSION, tag, no_ack, exclusive: false, arguments };
        let id = self.queue.consume(spec).unwrap();
        self.deliveries.activate(key, &self.queue, id);
        self.queue.resume(id, NOW);
        key
    }

    /// Delivery tags that were written out since the last call.
    fn delivered(&self) -> Vec<u64> {
        let octets = self.outbox.read_all();
        let mut tags = Vec::new();
        let mut rest = &octets[..];
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

    fn settle(&self, tag: u64, multiple: bool) -> Option<Vec<u64>> {
        let (settled, resumable) = self.deliveries.settle(tag, multiple)?;
        let (tags, deliveries) = settled.into_iter().map(|(tag, entry)| (tag, entry.delivery)).unzip();
        self.queue.ack(deliveries);
        resumable.into_iter().for_each(|(queue, id)| queue.resume(id, NOW));
        Some(tags)
    }
}

/// More than any test writes.
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
    for (queue, id) in fixture.deliveries.set_channel_limit(0) {
        queue.resume(id, NOW);
    }
    assert_eq!(fixture.delivered().len(), 7);
}

#[test]
fn without_acknowledgements_no_limit_applies() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.deliveries.set_channel_limit(1);
    fixture.consume("c", 1, true);
    fixture.publish(10);
    assert_eq!(fixture.delivered().len(), 10);
    assert_eq!(fixture.settle(1, false), None, "there is nothing to settle");
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
fn one_delivery_never_settled_does_not_keep_the_others_in_memory() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 2, false);
    fixture.publish(1000);
    for tag in 2..1000 {
        assert!(fixture.settle(tag, false).is_some());
    }
    let inner = fixture.deliveries.inner.lock();
    assert_eq!(inner.unsettled_count, 2);
    assert!(inner.unsettled.len() <= 2 * 2 + TOMBSTONES_KEPT + 1, "{}", inner.unsettled.len());
}

#[test]
fn a_full_outbox_leaves_the_rest_in_the_queue_until_there_is_room() {
    let mut fixture = Fixture::new(200);
    fixture.consume("c", 0, true);
    fixture.publish(100);
    let first = fixture.outbox.backlog();
    assert!((200..400).contains(&first), "{first} octets");
    let left = fixture.queue.message_count();
    assert!(left > 90, "{left} messages");
    assert!(fixture.deliveries.resumable().len() == 1, "the session resumes it when it hears of room");
}

#[test]
fn what_a_transaction_holds_gives_its_credit_back_at_commit_or_returns_at_rollback() {
    let mut fixture = Fixture::new(AMPLE);
    fixture.consume("c", 3, false);
    fixture.publish(6);
    assert_eq!(fixture.delivered(), [1, 2, 3]);
    let held = fixture.deliveries.hold(2, true).unwrap();
    assert!(fixture.deliveries.hold(1, false).is_none(), "held already");
    assert_eq!(fixture.deliveries.resumable().len(), 0, "no credit before commit");
    fixture.deliveries.restore(held);
    let held = fixture.deliveries.hold(0, true).unwrap();
    assert_eq!(held.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [1, 2, 3]);
    for (queue, id) in fixture.deliveries.release(&held) {
        queue.resume(id, NOW);
    }
    assert_eq!(fixture.delivered(), [4, 5, 6]);
}

#[test]
fn a_late_word_of_a_cancelled_consumer_does_not_touch_the_one_in_its_place() {
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
fn a_deleted_queue_leaves_word_of_its_consumers() {
    let fixture = Fixture::new(AMPLE);
    let key = fixture.consume("c", 0, false);
    fixture.vhost.delete_queue(SESSION, "q", false, false).unwrap();
    let cancelled = fixture.cancellations.take();
    assert_eq!(cancelled.len(), 1);
    assert!(Arc::ptr_eq(&cancelled[0].0, &fixture.deliveries) && cancelled[0].1 == key);
}
