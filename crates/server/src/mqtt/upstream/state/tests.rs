//! A state queue on the embedded broker as its upstream, stepped without sockets.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use amqp::RawTable;
use broker::{
    ApplyTo, Binding, Broker, BrokerConfig, Compatibility, Pattern, Policy, PolicyDefinition, QueueDeclare,
    SessionId, Timestamp, TopicPermissions, VirtualHost,
};
use mqtt::QoS;
use mqtt::packet::SubscribeOptions;
use mqtt::session::{Session, Subscription};
use transport::Outbox;

use super::queue::{StatePhase, StateQueue, StateUsage};
use super::*;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::mqtt::session::PendingReply;
use crate::mqtt::upstream::tests::uplink;
use crate::mqtt::upstream::uplink::{Uplink, UplinkEvent};
use crate::server::Shared;
use crate::simulated;
use crate::upstream::client::{ContentMethod, ReceivedMessage};

const NAME: &str = "mqtt-subscription-meqos2";
const NOW: Timestamp = Timestamp(0);
/// The encoded flags and list of empty properties.
const PLAIN: [u8; 2] = [0; 2];

struct World {
    shared: Arc<Shared>,
    clients: u64,
}

/// A connection of the client.
struct Link {
    uplink: Uplink,
    events: Vec<String>,
}

impl World {
    fn new() -> Self {
        let broker = Broker::new(BrokerConfig::default());
        Self { shared: simulated::server_of(broker, Clock::start(), 0).shared(), clients: 0 }
    }

    fn broker(&self) -> &Arc<Broker> {
        let Backend::Broker(broker) = &self.shared.backend else { unreachable!() };
        broker
    }

    /// A connection that has requested the queue.
    fn link(&mut self) -> Link {
        self.clients += 1;
        let mut uplink = uplink(&self.shared, self.clients);
        uplink.state().find(NAME);
        let mut link = Link { uplink, events: Vec::new() };
        link.settle();
        link
    }

    /// A connection that has found and read the queue.
    fn resumed(&mut self) -> (Link, Session) {
        let mut link = self.link();
        let (mut reading, outbox) = (StateReading::default(), Arc::new(Outbox::new(1)));
        while reading.advance(link.uplink.state(), NAME, false, &outbox) != ReadState::Read {
            link.settle();
        }
        let session = link.uplink.state().restore(Session::new());
        (link, session)
    }

    fn vhost(&self) -> Arc<VirtualHost> {
        self.broker().vhost("/").unwrap()
    }

    /// Sets a policy for one queue.
    fn apply(&self, queue: &str, definition: serde_json::Value) {
        let definition = definition.as_object().unwrap();
        let definition = PolicyDefinition::parse(definition, Compatibility::V3_10).unwrap();
        let pattern = Pattern::new(queue).unwrap();
        let policy = Policy { name: queue.into(), pattern, priority: 0, apply_to: ApplyTo::All, definition };
        self.vhost().set_policy(policy, NOW);
    }

    /// Binds a queue to the client's messages that refuses them.
    fn refuse(&self) {
        let declare = QueueDeclare { name: "full", ..Default::default() };
        self.vhost().declare_queue(SessionId(0), &declare, NOW).unwrap();
        let arguments = RawTable::default();
        let binding = Binding { source: "amq.topic", destination: "full", routing_key: "a", arguments };
        self.vhost().bind_queue(SessionId(0), &binding).unwrap();
        self.apply("full", refusing());
    }

    /// The number of messages in the queue; `None` if there is none.
    fn count(&self) -> Option<u64> {
        let queue = self.broker().vhost("/").unwrap().queue(SessionId(0), NAME).ok()?;
        Some(queue.message_count() + queue.unacked_count())
    }
}

impl Link {
    /// Runs both sides until they are idle.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.uplink.take_turn(Waker::noop(), Instant::now()).unwrap();
        }
        while let Some(event) = self.uplink.next_event() {
            self.events.push(match event {
                UplinkEvent::Published(PendingReply::Accept { packet_id, .. }) => {
                    format!("{packet_id} accepted")
                }
                UplinkEvent::State(StateEvent::Refused(fault)) => {
                    format!("refused with {}", fault.code.code())
                }
                UplinkEvent::State(event) => format!("{event:?}"),
                UplinkEvent::Recorded => continue,
                other => format!("{other:?}"),
            });
        }
    }

    fn open(&mut self, subscriptions: &[(&'static str, Subscription)]) {
        self.uplink.state().open(NAME, Some(60_000), false, subscriptions.iter().copied());
        self.settle();
    }

    fn publish(&mut self, packet_id: u16, digest: u64) {
        let (_, record) = self.uplink.state().write_received(packet_id, digest);
        self.uplink.publish_recorded(packet_id, ("a", &PLAIN, b"x"), &record, Instant::now());
    }

    fn release(&mut self, packet_id: u16) {
        let (number, record) = self.uplink.state().write_released(packet_id);
        self.uplink.publish_record(number, &record, Instant::now());
    }

    /// Writes a list when one is due, as a session does.
    fn keep(&mut self, subscriptions: &[(&'static str, Subscription)]) {
        self.settle();
        if self.uplink.state().wants_list() {
            let (number, list) = self.uplink.state().write_list(false, subscriptions.iter().copied());
            self.uplink.publish_record(number, &list, Instant::now());
            self.settle();
        }
    }

    /// As [`Self::settle`], at a later time.
    fn settle_after(&mut self, time: Duration) {
        self.uplink.take_turn(Waker::noop(), Instant::now() + time).unwrap();
        self.settle();
    }

    fn leave(mut self) {
        self.uplink.stop_consuming();
        self.settle();
        assert!(self.uplink.is_stopped());
    }
}

/// A policy with which a queue refuses every message.
fn refusing() -> serde_json::Value {
    serde_json::json!({"max-length": 0, "overflow": "reject-publish"})
}

fn live() -> Subscription {
    let options = SubscribeOptions::of_qos(QoS::AtMostOnce);
    Subscription { options, identifier: Some(3), is_shared: false }
}

#[test]
fn the_next_connection_finds_subscriptions_and_messages_that_are_not_released() {
    let mut world = World::new();
    let mut first = world.link();
    assert_eq!(first.uplink.state().phase(), StatePhase::Missing);
    first.open(&[("live/+", live())]);
    for packet_id in 1..=3 {
        first.publish(packet_id, packet_id.into());
    }
    first.settle();
    first.release(2);
    first.settle();
    assert_eq!(first.events, ["Opened", "1 accepted", "2 accepted", "3 accepted"]);
    first.leave();
    for _ in 0..2 {
        let (mut next, session) = world.resumed();
        assert_eq!(session.received().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(session.subscriptions().collect::<Vec<_>>(), [("live/+", &live())]);
        assert_eq!((next.uplink.state().digest(3), next.uplink.state().digest(2)), (Some(3), None));
        next.leave();
    }
}

#[test]
fn records_are_removed_when_a_later_list_is_confirmed() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[("live/+", live())]);
    for packet_id in 1..=500 {
        link.publish(packet_id, 7);
        link.settle();
        if packet_id % 5 != 0 {
            link.release(packet_id);
        }
        link.keep(&[("live/+", live())]);
        assert!(link.uplink.state().has_capacity());
        assert!(world.count().unwrap() < 80, "{:?}", world.count());
    }
    link.leave();
    let (mut next, session) = world.resumed();
    assert!(session.received().eq((5..=500).step_by(5)));
    // The first list of this connection removes the records of the other one.
    for packet_id in (5..=500).step_by(5) {
        next.release(packet_id);
        next.keep(&[]);
    }
    assert!(world.count().unwrap() < 80);
    next.leave();
    let (_, session) = world.resumed();
    assert_eq!(session.received().count(), 0);
    assert_eq!(session.subscriptions().count(), 0);
}

#[test]
fn a_list_precedes_pending_records_which_fill_part_of_the_window() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[]);
    let (mut packet_id, mut rounds) = (0, Vec::new());
    for _ in 0..2 {
        let before = packet_id;
        while link.uplink.state().has_capacity() {
            packet_id += 1;
            link.publish(packet_id, 7);
        }
        rounds.push(packet_id - before);
        if link.uplink.state().wants_list() {
            let (number, list) = link.uplink.state().write_list(false, std::iter::empty());
            link.uplink.publish_record(number, &list, Instant::now());
        }
    }
    // The first list is one of them, and so is the second.
    assert_eq!(rounds, [63, 127]);
    link.settle();
    assert!(link.uplink.state().wants_list() && !link.uplink.state().has_capacity());
    link.keep(&[]);
    assert!(link.uplink.state().has_capacity() && !link.uplink.state().wants_list());
    assert_eq!(world.count(), Some(1));
}

#[test]
fn a_list_that_was_lost_upstream_ends_the_session() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[]);
    // As if RabbitMQ had confirmed the list, and then lost it with a node.
    let (number, _) = link.uplink.state().write_list(false, std::iter::empty());
    link.uplink.state().confirmed(number);
    link.settle();
    link.settle_after(Duration::from_secs(80));
    assert_eq!(link.events, ["Opened"]);
    assert!(link.uplink.next_deadline().is_some());
    link.settle_after(Duration::from_secs(100));
    assert!(link.events[1].starts_with("Lost("), "{:?}", link.events);
}

#[test]
fn a_record_without_a_queue_is_not_taken_for_kept() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[]);
    world.vhost().delete_queue(SessionId(0), NAME, false, false).unwrap();
    link.release(1);
    link.settle();
    assert!(link.events.iter().any(|event| event == "RecordRefused"), "{:?}", link.events);
}

#[test]
fn a_message_is_accepted_though_its_record_is_refused() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[]);
    world.apply(NAME, refusing());
    link.publish(1, 7);
    link.settle();
    assert_eq!(link.events, ["Opened", "Unrecorded", "1 accepted"]);
}

#[tokio::test]
async fn the_next_connection_does_not_take_a_message_that_was_never_confirmed_for_one_that_it_has() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[]);
    link.publish(1, 10);
    link.settle();
    link.publish(2, 20);
    // The confirm has not been read.
    assert!(!link.uplink.is_settled());
    link.uplink.revoke_unconfirmed().await.unwrap();
    link.leave();
    let (mut next, session) = world.resumed();
    assert_eq!(session.received().collect::<Vec<_>>(), [1]);
    assert_eq!(next.uplink.state().digest(2), None);
}

#[test]
fn the_next_connection_does_not_take_a_refused_message_for_one_that_it_has() {
    let mut world = World::new();
    world.refuse();
    let mut link = world.link();
    link.open(&[]);
    for packet_id in 1..=3 {
        link.publish(packet_id, 7);
    }
    // Before the upstream has answered.
    link.leave();
    let (_next, session) = world.resumed();
    assert_eq!(session.received().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_list_is_looked_at_again() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[("live/+", live())]);
    link.publish(1, 7);
    link.settle();
    // Its records are unacknowledged by a connection that RabbitMQ has not yet found to be lost, and whose consumer it
    // has removed.
    let mut next = world.link();
    let (mut reading, outbox) = (StateReading::default(), Arc::new(Outbox::new(1)));
    next.uplink.state().find(NAME);
    link.uplink.stop_consuming();
    let (mut looks, mut link) = (0, Some(link));
    while reading.advance(next.uplink.state(), NAME, false, &outbox) != ReadState::Read {
        tokio::time::sleep(Duration::from_millis(20)).await;
        next.settle();
        looks += 1;
        if looks == 3
            && let Some(link) = link.take()
        {
            link.leave();
        }
    }
    let session = next.uplink.state().restore(Session::new());
    assert_eq!(session.received().collect::<Vec<_>>(), [1]);
}

#[test]
fn messages_of_others_are_removed_and_those_of_a_server_are_not() {
    let mut world = World::new();
    let mut link = world.link();
    link.open(&[("live/+", live())]);
    link.publish(1, 7);
    link.settle();
    link.leave();
    let vhost = world.vhost();
    let publisher = vhost.publisher(&world.broker().authenticate_external("guest", true).unwrap());
    let mut publisher = publisher;
    for number in 0..600_u32 {
        let body = broker::Body::Copied(&number.to_be_bytes());
        let publish = broker::Publish { exchange: "", routing_key: NAME, properties: &PLAIN, body };
        publisher.publish(publish, NOW).unwrap();
        publisher.flush_all(NOW);
    }
    assert_eq!(world.count(), Some(602));
    let (_link, session) = world.resumed();
    assert_eq!((session.received().collect::<Vec<_>>(), session.subscriptions().count()), (vec![1], 1));
    assert_eq!(world.count(), Some(2));
}

/// A queue in which `messages` were found and `delivered` arrive. Returns whether all were read, after each.
fn read(messages: u32, delivered: &[&[u8]]) -> (StateQueue, Vec<bool>) {
    let mut state = StateQueue::default();
    state.find(NAME);
    state.read(messages);
    let mut is_read = Vec::new();
    for (body, delivery_tag) in delivered.iter().zip(1..) {
        let [consumer_tag, exchange, routing_key] = Default::default();
        let redelivered = true;
        let method =
            ContentMethod::Deliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key };
        state.handle_message(&ReceivedMessage { method, properties: PLAIN[..].into(), body: (*body).into() });
        is_read.push(state.phase() == StatePhase::Consuming);
    }
    (state, is_read)
}

/// A list with one subscription, followed by the records of this many messages.
fn records(messages: u16) -> Vec<Vec<u8>> {
    let mut state = StateQueue::default();
    let list = state.write_list(false, [("live/+", live())].into_iter()).1;
    let received = (1..=messages).map(|packet_id| state.write_received(packet_id, 7).1);
    std::iter::once(list).chain(received).collect()
}

#[test]
fn a_queue_is_read_to_its_end_though_the_connection_upstream_is_lost_meanwhile() {
    let records = records(3);
    let [list, first, second, third] = [0, 1, 2, 3].map(|at| &*records[at]);
    let (mut state, is_read) = read(5, &[b"stranger", list, first, second, list, first, second, third]);
    assert_eq!(is_read, [false, false, false, false, false, false, false, true]);
    let session = state.restore(Session::new());
    assert!(session.received().eq(1..=3) && session.subscription_count() == 1);
    // With a copy of the first record, and with the list after other records.
    let (_, is_read) = read(3, &[list, list, first, list, list, first]);
    assert_eq!(is_read.iter().position(|is_read| *is_read), Some(2));
    let (_, is_read) = read(4, &[list, list, first, list, list, first, second]);
    assert_eq!(is_read.iter().position(|is_read| *is_read), Some(6));
    let (mut state, is_read) = read(4, &[first, second, first, second, list, third]);
    assert_eq!(is_read, [false, false, false, false, false, true]);
    assert_eq!(state.restore(Session::new()).subscription_count(), 1);
}

#[test]
fn copies_in_a_queue_are_not_waited_for_twice() {
    let records = records(2);
    let [list, first, second] = [0, 1, 2].map(|at| &*records[at]);
    for delivered in [&[list, list, first][..], &[list, first, first], &[list, first, second, first, second]]
    {
        let (_, is_read) = read(delivered.len() as u32, delivered);
        assert_eq!(is_read.iter().position(|is_read| *is_read), Some(delivered.len() - 1), "{delivered:?}");
    }
}

#[test]
fn a_queue_whose_session_has_lost_its_own_is_deleted() {
    let mut world = World::new();
    let mut link = world.link();
    link.uplink.state().open(NAME, None, true, std::iter::empty());
    link.settle();
    link.leave();
    let mut next = world.link();
    let (mut reading, outbox) = (StateReading::default(), Arc::new(Outbox::new(1)));
    while reading.advance(next.uplink.state(), NAME, false, &outbox) != ReadState::Absent {
        next.settle();
    }
    assert_eq!(world.count(), None);
    assert!(next.events.is_empty() && next.uplink.state().name().is_none());
}

#[test]
fn a_client_that_may_not_publish_to_the_queue_leaves_none() {
    let mut world = World::new();
    let permissions = broker::Permissions {
        configure: ".*".to_owned(),
        write: "^amq\\.topic$".to_owned(),
        read: ".*".to_owned(),
    };
    world.vhost().set_permissions("guest", Some(&permissions)).unwrap();
    let mut link = world.link();
    link.open(&[]);
    assert_eq!(link.events, ["refused with 403"]);
    assert_eq!((link.uplink.state().usage(), world.count()), (StateUsage::Refused, None));
    link.leave();
}

#[test]
fn a_message_that_is_refused_is_refused_alone_and_has_no_record() {
    let mut world = World::new();
    let permissions =
        TopicPermissions { exchange: "amq.topic".to_owned(), write: "^ok".to_owned(), read: ".*".to_owned() };
    world.vhost().set_topic_permissions("guest", &permissions).unwrap();
    let mut link = world.link();
    link.open(&[]);
    link.publish(7, 7);
    link.settle();
    assert!(
        link.events[1].starts_with("PublishRefused") && link.events[1].contains("One(7)"),
        "{:?}",
        link.events
    );
    link.leave();
    let (_, session) = world.resumed();
    assert_eq!(session.received().count(), 0);
}
