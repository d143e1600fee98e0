//! S6: a client's request takes as many turns as it needs. Time is the charged work.

use broker::{Binding, Queue, QueueDeclare, SessionId, Timestamp, VirtualHost};
use sync::work::{TURN, Turn};
use transport::Intent;

use super::*;

/// The excess of a turn over its budget: a message and its publishing to one queue.
const STEP: u64 = 60_000;

/// Number of turns after which a test gives up.
const ENDLESS: usize = 10_000;

const NOW: Timestamp = Timestamp(1);

fn declare(vhost: &Arc<VirtualHost>, name: &str) -> Arc<Queue> {
    let declare = QueueDeclare { name, ..QueueDeclare::default() };
    vhost.declare_queue(SessionId(u64::MAX), &declare, NOW).unwrap().queue
}

/// A server, its virtual host, and the first and last of `count` queues bound to amq.fanout.
fn wide(count: usize) -> (Arc<Shared>, Arc<VirtualHost>, [Arc<Queue>; 2]) {
    let broker = Broker::new(BrokerConfig::default());
    let shared = server_of(Arc::clone(&broker));
    let vhost = broker.vhost("/").unwrap();
    let bind = |number| {
        let name = format!("wide.{number}");
        let queue = declare(&vhost, &name);
        let binding = Binding { source: "amq.fanout", destination: &name, ..Binding::default() };
        vhost.bind_queue(SessionId(u64::MAX), &binding).unwrap();
        queue
    };
    let queues: Vec<_> = (0..count).map(bind).collect();
    let ends = [queues[0].clone(), queues[count - 1].clone()];
    (shared, vhost, ends)
}

/// Handles nudges and pending input in one turn, which must not exceed its budget; returns the answers.
fn turn(client: &mut Conversation) -> Vec<String> {
    let turn = Turn::begin();
    let now = client.now;
    client.connection.handle_nudge(now);
    if client.connection.intent() == Intent::Run {
        client.send(&[]);
    }
    let spent = turn.spent();
    assert!(spent <= u64::from(TURN) + STEP, "{spent} ns in one turn");
    client.received()
}

/// Runs turns until there are `count` answers; returns them, and the number of turns.
fn turns(client: &mut Conversation, count: usize) -> (Vec<String>, usize) {
    let mut answers = Vec::new();
    for turns in 1..ENDLESS {
        answers.extend(turn(client));
        if answers.len() >= count {
            return (answers, turns);
        }
    }
    panic!("{answers:?}");
}

const MESSAGES: usize = 500;

/// Sends to all queues and to `/queue/own`, alternately, in a transaction that also acknowledges a message of
/// `/queue/own`.
fn fill_transaction(client: &mut Conversation) {
    let reported = client.call(
        &[
            "SUBSCRIBE\nid:1\ndestination:/queue/own\nack:client\n\n",
            &send("/queue/own", "r", "acknowledged"),
        ]
        .join("\0"),
    );
    assert_eq!(reported, ["MESSAGE 1 false acknowledged", "RECEIPT r "]);
    let session = client.connection.protocol().session_name();
    client.call(
        &["BEGIN\ntransaction:t\n\n", &format!("ACK\nid:T_1@@{session}@@1\ntransaction:t\n\n")].join("\0"),
    );
    client.call("UNSUBSCRIBE\nid:1\n\n");
    let mut frames = String::new();
    for _ in 0..MESSAGES {
        for destination in ["/exchange/amq.fanout", "/queue/own"] {
            frames += &format!("SEND\ndestination:{destination}\ntransaction:t\n\nx\0");
        }
    }
    client.send(frames.as_bytes());
    assert!(client.unconsumed.is_empty() && client.received().is_empty());
}

fn add_input(client: &mut Conversation, frames: &[&str]) {
    frames.iter().for_each(|frame| client.unconsumed.extend_from_slice(format!("{frame}\0").as_bytes()));
}

#[test]
fn a_commit_takes_as_many_turns_as_it_needs_and_is_answered_after_the_last() {
    let (shared, vhost, [first, last]) = wide(50);
    let mut client = Conversation::open(&shared);
    fill_transaction(&mut client);
    assert_eq!(first.message_count(), 0);
    add_input(&mut client, &["COMMIT\ntransaction:t\nreceipt:c\n\n", &send("/queue/own", "later", "y")]);
    let (answers, turns) = turns(&mut client, 2);
    assert!(turns > 10, "{turns} turns");
    assert_eq!(answers, ["RECEIPT c ", "RECEIPT later "]);
    let own = vhost.queue(SessionId(u64::MAX), "own").unwrap();
    assert_eq!(
        (first.message_count(), last.message_count(), own.message_count(), own.unacked_count()),
        (MESSAGES as u64, MESSAGES as u64, MESSAGES as u64 + 1, 0)
    );
}

#[test]
fn a_commit_of_several_turns_is_completed_though_its_client_is_gone() {
    let (shared, vhost, [first, last]) = wide(50);
    let mut client = Conversation::open(&shared);
    fill_transaction(&mut client);
    add_input(&mut client, &["COMMIT\ntransaction:t\nreceipt:c\n\n"]);
    assert_eq!(turn(&mut client), Vec::<String>::new());
    assert!(first.message_count() < MESSAGES as u64);
    client.connection.handle_eof();
    let own = vhost.queue(SessionId(u64::MAX), "own").unwrap();
    assert_eq!(
        (first.message_count(), last.message_count(), own.message_count(), own.unacked_count()),
        (MESSAGES as u64, MESSAGES as u64, MESSAGES as u64, 0)
    );
}

#[test]
fn a_commit_that_fails_after_several_turns_gives_back_what_it_acknowledges() {
    let (shared, vhost, [first, _]) = wide(50);
    let exchange = broker::ExchangeDeclare { name: "gone", kind: "fanout", ..Default::default() };
    vhost.declare_exchange(&exchange).unwrap();
    let mut client = Conversation::open(&shared);
    fill_transaction(&mut client);
    // More than a turn validates.
    let frames = "SEND\ndestination:/queue/own\ntransaction:t\n\nx\0".repeat(1_000);
    client.send(frames.as_bytes());
    client.call("SEND\ndestination:/exchange/gone\ntransaction:t\n\nx");
    vhost.delete_exchange("gone", false).unwrap();
    add_input(&mut client, &["COMMIT\ntransaction:t\nreceipt:c\n\n"]);
    let (answers, turns) = turns(&mut client, 1);
    assert!(turns > 1, "{turns} turns");
    assert_eq!(answers, ["ERROR c not_found NOT_FOUND - no exchange 'gone' in vhost '/'"]);
    let own = vhost.queue(SessionId(u64::MAX), "own").unwrap();
    assert_eq!((first.message_count(), own.message_count(), own.unacked_count()), (0, 1, 0));
}

#[test]
fn a_request_waits_until_a_message_before_it_has_reached_very_many_queues() {
    let (shared, _, [first, last]) = wide(10_000);
    let mut client = Conversation::open(&shared);
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/amq/queue/wide.9999\nreceipt:s\n\n";
    add_input(&mut client, &["SEND\ndestination:/exchange/amq.fanout\n\nx", subscribe]);
    let first_turn = turn(&mut client);
    assert!(first_turn.is_empty() && first.message_count() == 1 && last.message_count() == 0);
    let (answers, turns) = turns(&mut client, 2);
    assert!(turns > 2, "{turns} turns");
    assert_eq!(answers, ["RECEIPT s ", "MESSAGE 1 false x"]);
}

const HELD: usize = 6_000;

/// A client with [`HELD`] unacknowledged messages of `/queue/own` in the mode `ack`, and that queue.
fn holding(ack: &str) -> (Conversation, Arc<Queue>) {
    let (shared, vhost, _) = wide(1);
    let mut client = Conversation::open(&shared);
    client.call(&format!("SUBSCRIBE\nid:1\ndestination:/queue/own\nack:{ack}\n\n"));
    let mut held = 0;
    for _ in 0..HELD / 100 {
        client.send("SEND\ndestination:/queue/own\n\nx\0".repeat(100).as_bytes());
        held += client.received().len();
    }
    let own = vhost.queue(SessionId(u64::MAX), "own").unwrap();
    assert_eq!((held, own.unacked_count()), (HELD, HELD as u64));
    (client, own)
}

#[test]
fn an_ack_of_very_many_messages_takes_as_many_turns_as_it_needs() {
    let (mut client, own) = holding("client");
    let session = client.connection.protocol().session_name();
    let ack = format!("ACK\nid:T_1@@{session}@@{HELD}\nreceipt:a\n\n");
    add_input(&mut client, &[&ack, "BEGIN\ntransaction:t\nreceipt:b\n\n"]);
    let (answers, turns) = turns(&mut client, 2);
    assert!(turns > 2, "{turns} turns");
    assert_eq!((answers, own.unacked_count()), (vec!["RECEIPT a ".to_owned(), "RECEIPT b ".to_owned()], 0));
}

/// Acknowledges the client's messages in a transaction, each with its own frame.
fn acknowledge_each(client: &mut Conversation) {
    let session = client.connection.protocol().session_name();
    client.call("BEGIN\ntransaction:t\n\n");
    for number in 1..=HELD {
        client.send(format!("ACK\nid:T_1@@{session}@@{number}\ntransaction:t\n\n\0").as_bytes());
    }
    assert!(client.received().is_empty());
}

#[test]
fn a_commit_of_very_many_acks_takes_as_many_turns_as_it_needs() {
    let (mut client, own) = holding("client-individual");
    acknowledge_each(&mut client);
    assert_eq!(own.unacked_count(), HELD as u64);
    add_input(&mut client, &["COMMIT\ntransaction:t\nreceipt:c\n\n"]);
    let (answers, turns) = turns(&mut client, 1);
    assert!(turns > 1, "{turns} turns");
    assert_eq!((answers, own.unacked_count()), (vec!["RECEIPT c ".to_owned()], 0));
}

#[test]
fn an_abort_of_very_many_acks_leaves_them_to_be_acknowledged() {
    let (mut client, own) = holding("client-individual");
    acknowledge_each(&mut client);
    client.call("ABORT\ntransaction:t\n\n");
    acknowledge_each(&mut client);
    add_input(&mut client, &["COMMIT\ntransaction:t\nreceipt:c\n\n"]);
    assert_eq!(turns(&mut client, 1).0, ["RECEIPT c "]);
    assert_eq!(own.unacked_count(), 0);
}

/// Takes turns until the client has an answer, or all its messages are back. Returns the answers, and the number of turns.
fn turns_until_back(client: &mut Conversation, own: &Queue) -> (Vec<String>, usize) {
    let all = HELD as u64;
    for turns in 1..ENDLESS {
        let answers = turn(client);
        let counts = (own.message_count(), own.unacked_count());
        if counts == (all, 0) {
            return (answers, turns);
        }
        assert_eq!((answers, counts), (Vec::new(), (0, all)));
    }
    panic!("{} messages are not back", own.unacked_count());
}

#[test]
fn the_end_of_a_subscription_with_very_many_messages_takes_turns_and_is_answered_after_the_last() {
    for request in ["UNSUBSCRIBE\nid:1\nreceipt:r\n\n", "DISCONNECT\nreceipt:r\n\n"] {
        let (mut client, own) = holding("client");
        add_input(&mut client, &[request]);
        let (answers, turns) = turns_until_back(&mut client, &own);
        assert!(turns > 2, "{turns} turns");
        assert_eq!((answers, own.consumer_count()), (vec!["RECEIPT r ".to_owned()], 0));
    }
}

#[test]
fn the_end_of_a_client_with_very_many_messages_takes_turns_though_it_is_gone() {
    let (mut client, own) = holding("client");
    let eof = Turn::begin();
    client.connection.handle_eof();
    drop(eof);
    let (_, turns) = turns_until_back(&mut client, &own);
    assert!(turns > 2, "{turns} turns");
}
