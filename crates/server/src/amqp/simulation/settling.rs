//! S6: a method that settles very many deliveries takes as many turns as it needs. Time is the charged work.

use broker::{Queue, SessionId, Timestamp};
use sync::work::TURN;

use super::fairness::{ENDLESS, STEP, turn};
use super::*;

/// Deliveries that the client has not settled.
const DELIVERIES: u32 = 12_000;

/// The queue `q`, and a client with all of its messages, whose bodies are their numbers.
fn holder() -> (Arc<Shared>, Arc<Queue>, Conversation) {
    let broker = Broker::new(BrokerConfig::default());
    let shared = simulated::server_of(Arc::clone(&broker), Clock::start(), 0).shared();
    let mut client = Conversation::open(&shared, 0);
    client.call(|out| {
        declare(out, "q");
        let consume = basic::Consume { queue: "q", consumer_tag: "c", no_wait: true, ..Default::default() };
        frame::write_method(out, 1, consume);
    });
    let mut delivered = 0;
    for first in (0..DELIVERIES).step_by(100) {
        let batch = |out: &mut Vec<u8>| {
            (first..first + 100).for_each(|body| publish(out, "q", body.to_string().as_bytes(), false));
        };
        delivered += client.call(batch).len();
    }
    let queue = broker.vhost("/").unwrap().queue(SessionId(u64::MAX), "q").unwrap();
    assert_eq!((delivered, queue.unacked_count()), (DELIVERIES as usize, u64::from(DELIVERIES)));
    // The client gets no further deliveries.
    client.call(|out| frame::write_method(out, 1, basic::Cancel { consumer_tag: "c", no_wait: true }));
    (shared, queue, client)
}

/// Sends a method followed by a declaration. Runs turns until both are answered, with a call of `look` before each.
/// Returns the answers and the number of turns.
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
    let all = u64::from(DELIVERIES);
    let nack = basic::Nack { delivery_tag: 0, multiple: true, requeue: true };
    for (method, answers) in [(Method::from(nack), 1), (basic::Recover { requeue: true }.into(), 2)] {
        let (_, queue, mut client) = holder();
        let look = || {
            let counts = (queue.message_count(), queue.unacked_count());
            assert!(counts == (0, all) || counts == (all, 0), "{counts:?}");
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
