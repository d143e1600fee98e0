//! S6: one method that settles very many deliveries, and the end of a client that has as many, take as many turns as they need.
//! The clock is the work that is charged.

use amqp::method::connection;
use amqp::{FieldValue, RawTable};
use broker::{Queue, SessionId, Timestamp};
use sync::work::{TURN, Turn};

use super::fairness::{ENDLESS, STEP, turn};
use super::*;
use crate::backend::Backend;

/// Deliveries that the client has not settled.
const DELIVERIES: u32 = 12_000;
const ALL: u64 = DELIVERIES as u64;

/// The queue `q`, and a client with all of its messages, whose bodies are their numbers.
fn holder() -> (Arc<Shared>, Arc<Queue>, Conversation) {
    let (shared, queue, mut client) = consumer(0);
    // From now on the client only has what it has.
    client.call(|out| frame::write_method(out, 1, basic::Cancel { consumer_tag: "c", no_wait: true }));
    (shared, queue, client)
}

/// The same with the client's consumer, whose prefetch is this.
fn consumer(prefetch_count: u16) -> (Arc<Shared>, Arc<Queue>, Conversation) {
    let broker = Broker::new(BrokerConfig::default());
    let shared = simulated::server_of(Arc::clone(&broker), Clock::start(), 0).shared();
    let mut client = Conversation::open(&shared, 0);
    client.call(|out| {
        declare(out, "q");
        frame::write_method(out, 1, basic::Qos { prefetch_count, ..Default::default() });
    });
    consume(&mut client);
    let mut delivered = 0;
    for first in (0..DELIVERIES).step_by(100) {
        let batch = |out: &mut Vec<u8>| {
            (first..first + 100).for_each(|body| publish(out, "q", body.to_string().as_bytes(), false));
        };
        delivered += client.call(batch).len();
    }
    let queue = broker.vhost("/").unwrap().queue(SessionId(u64::MAX), "q").unwrap();
    assert_eq!((delivered, queue.unacked_count()), (DELIVERIES as usize, ALL));
    (shared, queue, client)
}

fn consume(client: &mut Conversation) {
    let consume = basic::Consume { queue: "q", consumer_tag: "c", no_wait: true, ..Default::default() };
    client.call(|out| frame::write_method(out, 1, consume));
}

/// Has the client send a method and a declaration after it; takes turns until both are answered, and calls `look` before each.
/// Returns the answers, and the number of turns.
fn turns<'m>(
    client: &mut Conversation,
    method: impl Into<Method<'m>>,
    mut look: impl FnMut(),
) -> (Vec<String>, usize) {
    frame::write_method(&mut client.unconsumed, 1, method.into());
    declare(&mut client.unconsumed, "after");
    let mut answers = Vec::new();
    for turns in 1..ENDLESS {
        look();
        let spent = turn(client);
        assert!(spent <= u64::from(TURN) + 2 * STEP, "{spent} ns in one turn");
        answers.extend(client.received());
        if answers.last().is_some_and(|last| last.starts_with("queue.declare-ok")) {
            return (answers, turns);
        }
    }
    panic!("{answers:?}");
}

fn drain(queue: &Queue) -> Vec<u32> {
    let got = || queue.get(true, Timestamp(1));
    let number = |body: Vec<u8>| String::from_utf8(body).unwrap().parse().unwrap();
    std::iter::from_fn(got).map(|got| number(got.delivery.message().body().to_vec())).collect()
}

#[test]
fn very_many_acknowledgements_take_as_many_turns_as_they_need() {
    let (_, queue, mut client) = holder();
    let (answers, turns) = turns(&mut client, basic::Ack { delivery_tag: 0, multiple: true }, || ());
    assert!(turns > 3, "{turns} turns");
    assert_eq!((answers.len(), queue.unacked_count(), queue.message_count()), (1, 0, 0));
}

#[test]
fn very_many_messages_are_requeued_in_one_step_after_as_many_turns_as_they_need() {
    let nack = basic::Nack { delivery_tag: 0, multiple: true, requeue: true };
    for (method, answers) in [(Method::from(nack), 1), (basic::Recover { requeue: true }.into(), 2)] {
        let (_, queue, mut client) = holder();
        let look = || {
            let counts = (queue.message_count(), queue.unacked_count());
            assert!(counts == (0, ALL) || counts == (ALL, 0), "{counts:?}");
        };
        let (answered, turns) = turns(&mut client, method, look);
        assert!(turns > 3, "{turns} turns");
        assert_eq!(answered.len(), answers, "{answered:?}");
        assert_eq!(drain(&queue), (0..DELIVERIES).collect::<Vec<_>>());
    }
}

#[test]
fn a_settlement_of_several_turns_is_completed_though_its_client_is_gone() {
    let nack = |requeue| basic::Nack { delivery_tag: 0, multiple: true, requeue };
    let ack = basic::Ack { delivery_tag: 0, multiple: true };
    for (method, left) in [(Method::from(ack), 0), (nack(false).into(), 0), (nack(true).into(), DELIVERIES)] {
        let (_, queue, mut client) = holder();
        frame::write_method(&mut client.unconsumed, 1, method);
        turn(&mut client);
        assert!(queue.unacked_count() > 0);
        client.connection.handle_eof();
        assert_eq!(queue.unacked_count(), 0);
        assert_eq!(drain(&queue), (0..left).collect::<Vec<_>>());
    }
}

#[test]
fn a_commit_of_very_many_acknowledgements_takes_as_many_turns_as_it_needs() {
    let (_, queue, mut client) = holder();
    client.call(|out| {
        frame::write_method(out, 1, tx::Select {});
        frame::write_method(out, 1, basic::Ack { delivery_tag: 0, multiple: true });
    });
    let (answers, turns) = turns(&mut client, tx::Commit {}, || ());
    assert!(turns > 3, "{turns} turns");
    assert_eq!((&*answers[0], answers.len(), queue.unacked_count()), ("tx.commit-ok", 2, 0));
}

#[test]
fn a_consumer_gets_the_credit_of_what_it_requeues_only_once_that_is_back() {
    const NEWER: u32 = 10;
    let nack = basic::Nack { delivery_tag: 0, multiple: true, requeue: true };
    for method in [Method::from(nack), basic::Recover { requeue: true }.into()] {
        // It may have one more.
        let (shared, queue, mut client) = consumer(DELIVERIES as u16 + 1);
        let mut publisher = Conversation::open(&shared, 0);
        frame::write_method(&mut client.unconsumed, 1, method);
        turn(&mut client);
        assert_eq!(queue.unacked_count(), ALL, "still on their way");
        publisher.call(|out| (0..NEWER).for_each(|_| publish(out, "q", b"newer", false)));
        assert_eq!((queue.message_count(), queue.unacked_count()), (u64::from(NEWER) - 1, ALL + 1));
    }
}

/// Takes turns until `is_over`, between which the queue has either all messages or none, and a bystander is served. Returns the
/// number of turns.
fn turns_until(
    client: &mut Conversation,
    bystander: &mut Conversation,
    queue: &Queue,
    mut is_over: impl FnMut(&mut Conversation) -> bool,
) -> usize {
    for turns in 1..ENDLESS {
        let spent = turn(client);
        assert!(spent <= u64::from(TURN) + 2 * STEP, "{spent} ns in one turn");
        let counts = (queue.message_count(), queue.unacked_count());
        assert!(counts == (0, ALL) || counts == (ALL, 0), "{counts:?}");
        assert_eq!(bystander.call(|out| declare(out, "bystander")), ["queue.declare-ok"]);
        if is_over(client) {
            assert_eq!(counts, (ALL, 0));
            return turns;
        }
    }
    panic!("it does not end");
}

/// Declares an exclusive queue of the client.
fn declare_exclusive(shared: &Shared, client: &mut Conversation) -> Arc<Queue> {
    client.call(|out| {
        let declare = queue::Declare { queue: "own", exclusive: true, ..Default::default() };
        frame::write_method(out, 1, declare);
    });
    let Backend::Broker(broker) = &shared.backend else { panic!("it has an upstream") };
    broker.vhost("/").unwrap().queue(SessionId(1), "own").unwrap()
}

#[test]
fn the_end_of_a_channel_with_very_many_deliveries_takes_turns_and_is_answered_after_the_last() {
    let unknown = basic::Ack { delivery_tag: ALL + 1, multiple: false };
    let closes = [
        (1, Method::from(channel::Close::default()), "channel.close-ok"),
        (1, unknown.into(), "channel.close PRECONDITION_FAILED - unknown delivery tag 12001"),
        (0, connection::Close::default().into(), "connection.close-ok"),
        (2, unknown.into(), "connection.close CHANNEL_ERROR - expected 'channel.open'"),
    ];
    for (number, method, answer) in closes {
        let (shared, queue, mut client) = consumer(0);
        let own = declare_exclusive(&shared, &mut client);
        let mut bystander = Conversation::open(&shared, 0);
        frame::write_method(&mut client.unconsumed, number, method);
        let turns = turns_until(&mut client, &mut bystander, &queue, |client| {
            let answers = client.received();
            assert!(answers.is_empty() || answers == [answer], "{answers:?}");
            !answers.is_empty()
        });
        assert!(turns > 3, "{turns} turns");
        assert_eq!(own.is_deleted(), number != 1, "{answer}");
        assert_eq!(queue.consumer_count(), 0);
        assert_eq!(drain(&queue), (0..DELIVERIES).collect::<Vec<_>>());
    }
}

#[test]
fn the_end_of_a_connection_with_very_many_deliveries_takes_turns_though_its_client_is_gone() {
    let (shared, queue, mut client) = consumer(0);
    let own = declare_exclusive(&shared, &mut client);
    let mut bystander = Conversation::open(&shared, 0);
    let eof = Turn::begin();
    client.connection.handle_eof();
    assert!(eof.spent() <= u64::from(TURN) + STEP);
    drop(eof);
    assert!(!own.is_deleted(), "it ends after the channels");
    let turns = turns_until(&mut client, &mut bystander, &queue, |_| own.is_deleted());
    assert!(turns > 3, "{turns} turns");
    assert_eq!(drain(&queue), (0..DELIVERIES).collect::<Vec<_>>());
}

#[tokio::test]
async fn other_tasks_have_turns_while_a_connection_ends_whose_socket_has_failed() {
    let (_shared, queue, mut client) = consumer(0);
    let ends = async {
        client.connection.end().await;
        assert_eq!((queue.message_count(), queue.unacked_count()), (ALL, 0));
    };
    let looks = async {
        let mut looks = 0;
        while queue.unacked_count() > 0 {
            tokio::task::yield_now().await;
            looks += 1;
        }
        looks
    };
    let ((), looks) = tokio::join!(ends, looks);
    assert!(looks > 3, "{looks} looks");
}

#[test]
fn messages_are_back_though_the_end_of_their_client_is_cut_short() {
    let (shared, queue, mut client) = consumer(0);
    frame::write_method(&mut client.unconsumed, 1, channel::Close::default());
    turn(&mut client);
    assert_eq!(queue.unacked_count(), ALL);
    // As at the end of the process's time to drain.
    drop(client);
    assert_eq!((queue.message_count(), queue.unacked_count(), queue.consumer_count()), (ALL, 0, 0));
    drop(shared);
    assert_eq!(drain(&queue), (0..DELIVERIES).collect::<Vec<_>>());
}

#[test]
fn the_next_single_active_consumer_starts_with_what_an_end_of_several_turns_returns() {
    let shared = server();
    let mut client = Conversation::open(&shared, 0);
    let arguments: FieldTable =
        [("x-single-active-consumer", FieldValue::Boolean(true))].into_iter().collect();
    let arguments = arguments.encode();
    client.call(|out| {
        let arguments = RawTable::check(&arguments).unwrap();
        frame::write_method(out, 1, queue::Declare { queue: "q", arguments, ..Default::default() });
    });
    consume(&mut client);
    let mut next = Conversation::open(&shared, 0);
    consume(&mut next);
    let mut publisher = Conversation::open(&shared, 0);
    for _ in 0..DELIVERIES / 100 {
        publisher.call(|out| (0..100).for_each(|_| publish(out, "q", b"older", false)));
        client.received();
    }
    frame::write_method(&mut client.unconsumed, 1, channel::Close::default());
    turn(&mut client);
    publisher.call(|out| publish(out, "q", b"newer", false));
    let mut bodies = Vec::new();
    for _ in 0..ENDLESS {
        turn(&mut client);
        turn(&mut next);
        bodies.extend(next.bodies());
        if bodies.len() as u64 > ALL {
            break;
        }
    }
    let (last, older) = bodies.split_last().unwrap();
    assert!(last == b"newer" && older.iter().all(|body| body == b"older"));
}
