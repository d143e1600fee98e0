//! A client's channels with the embedded broker as its upstream, stepped without sockets.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use amqp::ReplyCode;
use broker::{Broker, BrokerConfig, Permissions, QueueKind, SessionId, TopicPermissions};
use mqtt::ReasonCode;

use super::publishing::Unconfirmed;
use super::queue_consumer::MAX_ARRIVED;
use super::queue_requests::QueueRequest;
use super::uplink::{Uplink, UplinkEvent};
use crate::backend::Backend;
use crate::clock::Clock;
use crate::mqtt::MqttConfig;
use crate::mqtt::session::PendingReply;
use crate::server::Shared;
use crate::simulated;
use crate::upstream::client::misses_exchange;

const QUEUE: &str = "mqtt-subscription-meqos1";
/// The encoded flags and list of empty properties.
const PLAIN: [u8; 2] = [0; 2];
const WINDOW: u16 = 2;

struct World {
    shared: Arc<Shared>,
    clients: u64,
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

    fn uplink(&mut self) -> Uplink {
        self.uplink_with(QueueKind::Classic)
    }

    /// A connection that declares queues of this type.
    fn uplink_with(&mut self, durable_queue_type: QueueKind) -> Uplink {
        self.clients += 1;
        let config = MqttConfig { durable_queue_type, ..MqttConfig::of_test(Arc::default()) };
        Uplink::new(simulated::amqp_client(&self.shared, self.clients, "guest"), &config)
    }

    /// The number of ready and of unacknowledged messages in the session's queue; `None` if there is none.
    fn counts(&self) -> Option<(u64, u64)> {
        let queue = self.broker().vhost("/").unwrap().queue(SessionId(0), QUEUE).ok()?;
        Some((queue.message_count(), queue.unacked_count()))
    }
}

/// A client's connection upstream.
pub(super) fn uplink(shared: &Arc<Shared>, id: u64) -> Uplink {
    let config = MqttConfig::of_test(Arc::default());
    Uplink::new(simulated::amqp_client(shared, id, "guest"), &config)
}

/// Runs both sides until they are idle. Returns the events.
fn settle(uplink: &mut Uplink) -> Vec<String> {
    // More turns than an answer of the broker takes.
    for _ in 0..8 {
        uplink.take_turn(Waker::noop(), Instant::now()).unwrap();
    }
    std::iter::from_fn(|| uplink.next_event()).map(reported).collect()
}

fn reported(event: UplinkEvent) -> String {
    match event {
        UplinkEvent::Published(PendingReply::Accept { packet_id, .. }) => format!("{packet_id} accepted"),
        UplinkEvent::Published(PendingReply::Refuse { packet_id, reason, .. }) => {
            format!("{packet_id} {reason}")
        }
        UplinkEvent::Published(PendingReply::QueueFull { packet_id }) => format!("{packet_id} queue full"),
        UplinkEvent::PublishRefused(fault, Unconfirmed::One(packet_id)) => {
            format!("{packet_id} refused with {}", fault.code.code())
        }
        UplinkEvent::Answered(number, Ok(())) => format!("{number} done"),
        UplinkEvent::Answered(number, Err(fault)) => format!("{number} {}", fault.code.code()),
        other => format!("{other:?}"),
    }
}

fn declare(uplink: &mut Uplink) {
    uplink.request(1, QueueRequest::Declare { queue: QUEUE.into(), expires: Some(60_000) });
    uplink.request(2, QueueRequest::Bind { queue: QUEUE.into(), key: "a.#".into() });
    assert_eq!(settle(uplink), ["1 done", "2 done"]);
}

fn bodies(uplink: &mut Uplink) -> Vec<(u64, bool, String)> {
    std::iter::from_fn(|| uplink.consumer().take())
        .map(|message| (message.delivery_tag, message.redelivered, message.body.escape_ascii().to_string()))
        .collect()
}

#[test]
fn a_session_without_qos_2_makes_nothing_for_its_state_queue() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    declare(&mut uplink);
    uplink.consume(QUEUE, WINDOW);
    uplink.publish(7, "a.b", &PLAIN, b"1", Instant::now());
    uplink.answer(PendingReply::Refuse { packet_id: 8, reason: ReasonCode::TopicNameInvalid, text: "" });
    settle(&mut uplink);
    assert_eq!(bodies(&mut uplink), [(1, false, "1".to_owned())]);
    uplink.stop_consuming();
    settle(&mut uplink);
    assert!(uplink.is_settled() && uplink.is_stopped() && uplink.used_state().is_none());
}

#[test]
fn messages_are_answered_in_their_order_when_they_are_confirmed() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    uplink.publish(7, "a", &PLAIN, b"1", Instant::now());
    uplink.publish(0, "a", &PLAIN, b"2", Instant::now());
    uplink.answer(PendingReply::Refuse { packet_id: 8, reason: ReasonCode::TopicNameInvalid, text: "" });
    uplink.publish(9, "a", &PLAIN, b"3", Instant::now());
    assert!(!uplink.is_settled());
    assert_eq!(settle(&mut uplink), ["7 accepted", "8 0x90 Topic Name invalid", "9 accepted"]);
    assert!(uplink.is_settled());
    uplink.answer(PendingReply::Refuse { packet_id: 10, reason: ReasonCode::TopicNameInvalid, text: "" });
    assert_eq!(settle(&mut uplink), ["10 0x90 Topic Name invalid"]);
}

#[test]
fn a_channel_without_messages_is_closed_and_opened_again() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    for packet_id in 1..4 {
        uplink.publish(packet_id, "a", &PLAIN, b"x", Instant::now());
        assert_eq!(settle(&mut uplink), [format!("{packet_id} accepted")]);
        let idle = uplink.next_deadline().unwrap();
        uplink.take_turn(Waker::noop(), idle).unwrap();
        assert!(settle(&mut uplink).is_empty());
        assert_ne!(uplink.next_deadline(), Some(idle));
    }
}

#[test]
fn a_message_that_may_not_be_published_is_refused_and_the_next_is_published() {
    let mut world = World::new();
    let permissions =
        TopicPermissions { exchange: "amq.topic".to_owned(), write: "^ok".to_owned(), read: ".*".to_owned() };
    world.broker().vhost("/").unwrap().set_topic_permissions("guest", &permissions).unwrap();
    let mut uplink = world.uplink();
    uplink.publish(7, "no", &PLAIN, b"1", Instant::now());
    // Its answer follows that of the message before it.
    uplink.answer(PendingReply::Refuse { packet_id: 9, reason: ReasonCode::TopicNameInvalid, text: "" });
    assert_eq!(settle(&mut uplink), ["7 refused with 403", "9 0x90 Topic Name invalid"]);
    uplink.publish(8, "ok", &PLAIN, b"2", Instant::now());
    assert_eq!(settle(&mut uplink), ["8 accepted"]);
}

#[test]
fn a_request_that_is_refused_costs_no_other_its_answer() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    let queue = || QUEUE.into();
    uplink.request(1, QueueRequest::Find { queue: queue() });
    uplink.request(2, QueueRequest::Declare { queue: queue(), expires: None });
    uplink.request(3, QueueRequest::Bind { queue: "none".into(), key: "k".into() });
    uplink.request(4, QueueRequest::Bind { queue: queue(), key: "k".into() });
    let expected = ["1 404", "2 done", "3 404", "4 done"];
    assert_eq!(settle(&mut uplink), expected);
    // The channel was closed, and is opened again.
    uplink.request(5, QueueRequest::Find { queue: queue() });
    uplink.request(6, QueueRequest::Unbind { queue: queue(), key: "k".into() });
    uplink.request(7, QueueRequest::Delete { queue: queue() });
    uplink.request(8, QueueRequest::Delete { queue: queue() });
    assert_eq!(settle(&mut uplink), ["5 done", "6 done", "7 done", "8 done"]);
    assert_eq!(world.counts(), None);
}

#[test]
fn messages_that_the_client_has_not_acknowledged_return_to_their_queue_in_their_order() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    declare(&mut uplink);
    for (packet_id, body) in [(1, "1"), (2, "2"), (3, "3")] {
        uplink.publish(packet_id, "a.b", &PLAIN, body.as_bytes(), Instant::now());
    }
    uplink.consume(QUEUE, WINDOW);
    settle(&mut uplink);
    assert_eq!(bodies(&mut uplink), [(1, false, "1".to_owned()), (2, false, "2".to_owned())]);
    uplink.acknowledge(1);
    settle(&mut uplink);
    assert_eq!(bodies(&mut uplink), [(3, false, "3".to_owned())]);
    assert_eq!(world.counts(), Some((0, 2)));
    uplink.stop_consuming();
    assert!(!uplink.is_stopped());
    settle(&mut uplink);
    assert!(uplink.is_stopped());
    assert_eq!(world.counts(), Some((2, 0)));
    let mut next = world.uplink();
    next.consume(QUEUE, WINDOW);
    settle(&mut next);
    assert_eq!(bodies(&mut next), [(1, true, "2".to_owned()), (2, true, "3".to_owned())]);
}

#[test]
fn a_client_that_is_slow_holds_few_bytes_and_still_has_its_answers() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    declare(&mut uplink);
    let body = vec![b'x'; MAX_ARRIVED / 100];
    for packet_id in 1..=300 {
        uplink.publish(packet_id, "a.b", &PLAIN, &body, Instant::now());
    }
    assert_eq!(settle(&mut uplink).len(), 300);
    uplink.consume(QUEUE, 300);
    settle(&mut uplink);
    let arrived = |uplink: &mut Uplink| std::iter::from_fn(|| uplink.consumer().take()).count();
    assert_eq!(arrived(&mut uplink), 100);
    assert!(uplink.can_resume());
    settle(&mut uplink);
    assert!(!uplink.can_resume());
    uplink.publish(1000, "nobody", &PLAIN, b"x", Instant::now());
    assert_eq!(settle(&mut uplink), ["1000 accepted"]);
    let mut rest = arrived(&mut uplink);
    settle(&mut uplink);
    rest += arrived(&mut uplink);
    assert_eq!(rest, 200);
}

#[test]
fn a_session_learns_that_its_queue_was_deleted() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    declare(&mut uplink);
    uplink.consume(QUEUE, WINDOW);
    settle(&mut uplink);
    let vhost = world.broker().vhost("/").unwrap();
    vhost.delete_queue(SessionId(0), QUEUE, false, false).unwrap();
    uplink.take_turn(Waker::noop(), Instant::now()).unwrap();
    let lost = uplink.next_event();
    assert!(matches!(lost, Some(UplinkEvent::ConsumerLost(fault)) if fault.code == ReplyCode::NotFound));
}

const GROUP: &str = "mqtt-subscription-g/a-shared";

/// The bodies of shared subscriptions' messages, with their consumers and delivery tags.
fn shared(uplink: &mut Uplink) -> Vec<(usize, u64, String)> {
    std::iter::from_fn(|| uplink.take_shared())
        .map(|(consumer, message)| (consumer, message.delivery_tag, message.body.escape_ascii().to_string()))
        .collect()
}

/// Binds a group's queue, and consumes from it. Returns the consumer's key.
fn join(uplink: &mut Uplink) -> usize {
    uplink.request(1, QueueRequest::Declare { queue: GROUP.into(), expires: Some(60_000) });
    uplink.request(2, QueueRequest::Bind { queue: GROUP.into(), key: "a".into() });
    assert_eq!(settle(uplink), ["1 done", "2 done"]);
    let consumer = uplink.consume_shared(GROUP, WINDOW);
    assert_eq!(settle(uplink), [format!("Group({consumer}, Consuming)")]);
    consumer
}

fn has_group(world: &World) -> bool {
    world.broker().vhost("/").unwrap().queue(SessionId(0), GROUP).is_ok()
}

fn leave() -> QueueRequest {
    QueueRequest::LeaveGroup { mark: GROUP.into(), queue: GROUP.into() }
}

#[test]
fn a_member_that_leaves_keeps_the_messages_that_it_has_sent_and_returns_the_others() {
    let mut world = World::new();
    let (mut uplink, mut other) = (world.uplink(), world.uplink());
    let consumer = join(&mut uplink);
    for (packet_id, body) in [(1, "1"), (2, "2"), (3, "3")] {
        uplink.publish(packet_id, "a", &PLAIN, body.as_bytes(), Instant::now());
    }
    settle(&mut uplink);
    let (_, first) = uplink.take_shared().unwrap();
    assert_eq!((first.delivery_tag, &*first.body), (1, &b"1"[..]));
    uplink.cancel_shared(consumer);
    assert!(settle(&mut uplink).contains(&format!("Group({consumer}, Cancelled)")));
    assert!(!uplink.has_messages() && !uplink.is_stopped());
    let heir = join(&mut other);
    assert_eq!(shared(&mut other), [(heir, 1, "2".to_owned()), (heir, 2, "3".to_owned())]);
    uplink.acknowledge_shared(consumer, 1);
    uplink.stop_shared(consumer, vec![leave()]);
    assert_eq!(settle(&mut uplink), [format!("Group({consumer}, Closed)"), "0 406".to_owned()]);
    assert!(uplink.is_stopped() && has_group(&world), "the other one has it");
    other.stop_shared(heir, vec![leave()]);
    assert_eq!(settle(&mut other), [format!("Group({heir}, Closed)"), "0 done".to_owned()]);
    assert!(!has_group(&world));
}

#[test]
fn the_queue_of_a_group_stays_while_a_session_marks_it() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    declare(&mut uplink);
    let mark = || GROUP.into();
    uplink.request(3, QueueRequest::DeclareMark { mark: mark() });
    uplink.request(4, QueueRequest::BindMark { queue: QUEUE.into(), mark: mark() });
    assert_eq!(settle(&mut uplink), ["3 done", "4 done"]);
    let consumer = join(&mut uplink);
    uplink.stop_shared(consumer, vec![leave()]);
    settle(&mut uplink);
    assert!(has_group(&world));
    // The group's exchange is auto-deleted with the session's queue.
    uplink.request(5, QueueRequest::Delete { queue: QUEUE.into() });
    uplink.request(6, leave());
    assert_eq!(settle(&mut uplink), ["5 done", "6 done"]);
    assert!(!has_group(&world));
}

/// Another member leaves between the two requests, which deletes the exchange.
#[test]
fn a_session_marks_a_group_though_the_last_one_that_marked_it_leaves_at_that_moment() {
    let mut world = World::new();
    let (mut uplink, mut other) = (world.uplink(), world.uplink());
    declare(&mut uplink);
    let (mark, queue) = (|| GROUP.into(), || QUEUE.into());
    other.request(1, QueueRequest::Declare { queue: "other".into(), expires: None });
    other.request(2, QueueRequest::DeclareMark { mark: mark() });
    other.request(3, QueueRequest::BindMark { queue: "other".into(), mark: mark() });
    settle(&mut other);
    uplink.request(3, QueueRequest::DeclareMark { mark: mark() });
    assert_eq!(settle(&mut uplink), ["3 done"]);
    other.request(4, QueueRequest::UnbindMark { queue: "other".into(), mark: mark() });
    assert_eq!(settle(&mut other), ["4 done"]);
    uplink.request(4, QueueRequest::BindMark { queue: queue(), mark: mark() });
    uplink.request(5, QueueRequest::Find { queue: queue() });
    assert_eq!(settle(&mut uplink), ["0 done", "4 done", "5 done"]);
    let consumer = join(&mut uplink);
    uplink.stop_shared(consumer, vec![leave()]);
    settle(&mut uplink);
    assert!(has_group(&world), "the group's queue is marked by a session");
    // A missing queue, or an exchange that always vanishes, is not retried forever.
    uplink.request(6, QueueRequest::BindMark { queue: "none".into(), mark: mark() });
    assert_eq!(settle(&mut uplink), ["6 404"]);
    let permissions = Permissions { configure: "^mqtt".to_owned(), ..Permissions::all() };
    world.broker().vhost("/").unwrap().set_permissions("guest", Some(&permissions)).unwrap();
    uplink.request(7, QueueRequest::BindMark { queue: queue(), mark: "gone".into() });
    uplink.request(8, QueueRequest::Find { queue: queue() });
    let reported: Vec<_> = (0..4).flat_map(|_| settle(&mut uplink)).collect();
    assert_eq!(reported, ["0 403", "0 403", "0 403", "0 403", "0 403", "7 404", "8 done"]);
}

#[test]
fn a_consumer_that_is_refused_or_cancelled_costs_the_others_nothing() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    let consumer = join(&mut uplink);
    let refused = uplink.consume_shared("none", WINDOW);
    let events = settle(&mut uplink);
    assert!(events[0].starts_with(&format!("Group({refused}, Lost(")), "{events:?}");
    uplink.publish(1, "a", &PLAIN, b"1", Instant::now());
    settle(&mut uplink);
    assert_eq!(shared(&mut uplink), [(consumer, 1, "1".to_owned())]);
    world.broker().vhost("/").unwrap().delete_queue(SessionId(0), GROUP, false, false).unwrap();
    let events = settle(&mut uplink);
    assert!(events[0].starts_with(&format!("Group({consumer}, Lost(")), "{events:?}");
    settle(&mut uplink);
    assert!(uplink.is_stopped());
}

#[test]
fn the_key_of_a_consumer_that_is_gone_is_not_used_again_before_its_event_is_handled() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    let lost = uplink.consume_shared("none", WINDOW);
    // Its event follows others.
    (0..8).for_each(|_| uplink.take_turn(Waker::noop(), Instant::now()).unwrap());
    let next = uplink.consume_shared("none", WINDOW);
    assert_ne!(next, lost);
    let events = settle(&mut uplink);
    for (event, key) in events.iter().zip([lost, next]) {
        assert!(event.starts_with(&format!("Group({key}, Lost(")), "{events:?}");
    }
    settle(&mut uplink);
    assert_eq!(uplink.consume_shared("none", WINDOW), lost);
}

#[test]
fn the_queue_of_a_group_is_left_although_its_consumer_is_gone() {
    let mut world = World::new();
    let mut uplink = world.uplink();
    let consumer = join(&mut uplink);
    let lost = uplink.consume_shared("none", WINDOW);
    (0..8).for_each(|_| uplink.take_turn(Waker::noop(), Instant::now()).unwrap());
    uplink.stop_shared(consumer, Vec::new());
    settle(&mut uplink);
    assert!(has_group(&world));
    uplink.stop_shared(lost, vec![leave()]);
    assert_eq!(settle(&mut uplink), ["0 done"]);
    assert!(!has_group(&world));
}

/// RabbitMQ does not delete a quorum queue if-unused, and closes the connection instead.
#[test]
fn a_queue_that_may_be_a_quorum_queue_is_deleted_once_it_has_no_consumer() {
    let mut world = World::new();
    let (mut quorum, mut classic) = (world.uplink_with(QueueKind::Quorum), world.uplink());
    declare(&mut quorum);
    let queue = world.broker().vhost("/").unwrap().queue(SessionId(0), QUEUE).unwrap();
    assert_eq!(queue.kind(), QueueKind::Quorum);
    // A queue declared with other arguments is used as it is.
    classic.request(1, QueueRequest::Declare { queue: QUEUE.into(), expires: Some(60_000) });
    classic.request(2, QueueRequest::Bind { queue: QUEUE.into(), key: "b".into() });
    assert_eq!(settle(&mut classic), ["1 406", "2 done"]);
    classic.consume(QUEUE, WINDOW);
    settle(&mut classic);
    let delete = || QueueRequest::DeleteUnused { queue: QUEUE.into() };
    // Later requests wait for both of its steps.
    quorum.request(3, delete());
    quorum.request(4, QueueRequest::Find { queue: QUEUE.into() });
    assert_eq!(settle(&mut quorum), ["3 done", "4 done"]);
    classic.stop_consuming();
    settle(&mut classic);
    classic.request(5, delete());
    classic.request(6, QueueRequest::Find { queue: QUEUE.into() });
    classic.request(7, delete());
    assert_eq!(settle(&mut classic), ["5 done", "6 404", "7 404"]);
}

#[test]
fn a_missing_exchange_is_reported() {
    let world = World::new();
    let config = MqttConfig { exchange: "events".into(), ..MqttConfig::of_test(Arc::default()) };
    let mut uplink = Uplink::new(simulated::amqp_client(&world.shared, 1, "guest"), &config);
    uplink.request(1, QueueRequest::Declare { queue: QUEUE.into(), expires: None });
    uplink.request(2, QueueRequest::Bind { queue: QUEUE.into(), key: "a".into() });
    uplink.publish(3, "a", &PLAIN, b"x", Instant::now());
    for _ in 0..8 {
        uplink.take_turn(Waker::noop(), Instant::now()).unwrap();
    }
    let mut faults = Vec::new();
    while let Some(event) = uplink.next_event() {
        match event {
            UplinkEvent::Answered(1, Ok(())) => {}
            UplinkEvent::Answered(2, Err(fault)) | UplinkEvent::PublishRefused(fault, _) => {
                faults.push(fault)
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(faults.len(), 2);
    assert!(faults.iter().all(|fault| misses_exchange(fault, "events") && !misses_exchange(fault, "event")));
    uplink.request(4, QueueRequest::Find { queue: "events".into() });
    uplink.take_turn(Waker::noop(), Instant::now()).unwrap();
    let Some(UplinkEvent::Answered(4, Err(fault))) = uplink.next_event() else { panic!("not answered") };
    assert!(fault.code == ReplyCode::NotFound && !misses_exchange(&fault, "events"), "{fault}");
}
