//! Answers that wait for a message that is only on disk: sent in order, and never get-empty.

use broker::{Broker, BrokerConfig, Store, Timestamp};
use store::disk::simulated::SimDisk;
use store::journal::JournalSettings;

use super::*;

const MESSAGES: usize = 300;

/// A server whose long queues are paged to disk, and its broker, whose paging the test drives.
fn paging_server() -> (Arc<Shared>, Arc<Broker>) {
    let disk = SimDisk::new(1, 1 << 30);
    let (store, _rounds, recovered) = Store::open(Arc::new(disk), JournalSettings::default()).unwrap();
    let config = BrokerConfig { defaults: false, paging_watermark: 0, ..BrokerConfig::default() };
    let broker = Broker::new(config);
    broker.restore(&store, recovered, Timestamp::default()).unwrap();
    broker.add_defaults();
    store.catalogue().commit_pending().unwrap();
    (server_of(Arc::clone(&broker)), broker)
}

fn page(broker: &Broker) {
    while broker.page(Timestamp(1)) {}
}

fn declare(out: &mut Vec<u8>, passive: bool) {
    frame::write_method(out, 1, queue::Declare { queue: "q", passive, ..Default::default() });
}

fn get(out: &mut Vec<u8>) {
    frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
}

/// A client, and a queue whose messages are mostly on disk.
fn backlog() -> (Conversation, Arc<Broker>) {
    let (shared, broker) = paging_server();
    let mut client = Conversation::open(&shared, 0);
    client.call(|out| declare(out, false));
    client.call(|out| {
        for _ in 0..MESSAGES {
            let publish = basic::Publish { routing_key: "q", ..Default::default() };
            write_content(out, 1, publish, NO_PROPERTIES, &[7; 2000], FRAME_MAX);
        }
    });
    page(&broker);
    assert!(broker.paging_status().paged_messages > MESSAGES as u64 / 2);
    (client, broker)
}

/// Nudges the client's connection; returns the methods received.
fn nudged(client: &mut Conversation) -> Vec<String> {
    let now = client.now;
    client.connection.handle_nudge(now);
    if client.connection.intent() == Intent::Run {
        client.send(&[]);
    }
    client.received()
}

#[test]
fn pipelined_gets_are_answered_in_order_and_before_later_methods() {
    let (mut client, broker) = backlog();
    let mut answers = client.call(|out| {
        (0..MESSAGES).for_each(|_| get(out));
        declare(out, true);
        get(out);
    });
    assert!(!answers.is_empty() && answers.len() < MESSAGES, "the rest waits");
    assert_eq!(client.connection.intent(), Intent::Pause, "reading is paused");
    assert_eq!(nudged(&mut client), Vec::<String>::new(), "an unrelated nudge has no effect");
    while answers.len() < MESSAGES + 2 {
        page(&broker);
        let more = nudged(&mut client);
        assert!(!more.is_empty());
        answers.extend(more);
    }
    let mut expected: Vec<_> = (0..MESSAGES).rev().map(|left| format!("basic.get-ok {left}")).collect();
    expected.extend(["queue.declare-ok".to_owned(), "basic.get-empty".to_owned()]);
    assert_eq!(answers, expected);
    assert_eq!(client.connection.intent(), Intent::Run);
}

#[test]
fn a_get_that_waits_is_answered_when_the_queue_is_purged() {
    let (mut client, _broker) = backlog();
    let other = Arc::clone(&client.shared);
    let answers = client.call(|out| (0..MESSAGES).for_each(|_| get(out)));
    let mut other = Conversation::open(&other, 0);
    other.call(|out| frame::write_method(out, 1, queue::Purge { queue: "q", ..Default::default() }));
    let rest = nudged(&mut client);
    assert_eq!(rest, vec!["basic.get-empty"; MESSAGES - answers.len()]);
}

#[test]
fn a_client_that_goes_while_its_get_waits_takes_nothing_with_it() {
    let (mut client, broker) = backlog();
    let answers = client.call(|out| (0..MESSAGES).for_each(|_| get(out))).len();
    let shared = Arc::clone(&client.shared);
    drop(client);
    page(&broker);
    let mut other = Conversation::open(&shared, 0);
    let left = MESSAGES - answers - 1;
    assert_eq!(other.call(get), [format!("basic.get-ok {left}")]);
}
