//! Receipts wait for the disk: sent in order, and never before their changes are on disk.

use std::sync::Arc;

use broker::{Store, Timestamp};
use store::Rounds;
use store::disk::simulated::SimDisk;
use store::journal::{CommitOutcome, JournalSettings};

use super::*;

/// A server with a disk, whose writes the test runs.
struct Durable {
    shared: Arc<Shared>,
    store: Arc<Store>,
    rounds: Rounds,
}

impl Durable {
    fn new() -> Self {
        let disk = SimDisk::new(7, 1 << 30);
        let settings =
            JournalSettings { segment_size: 64 << 10, pending_limit: 1 << 20, ..JournalSettings::default() };
        let (store, rounds, recovered) = Store::open(Arc::new(disk), settings).unwrap();
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        broker.restore(&store, recovered, Timestamp::default()).unwrap();
        broker.add_defaults();
        store.catalogue().commit_pending().unwrap();
        Self { shared: server_of(broker), store, rounds }
    }

    fn write_all(&mut self) {
        self.store.catalogue().commit_pending().unwrap();
        while !matches!(self.rounds.step(), CommitOutcome::Idle) {}
    }
}

#[test]
fn receipts_for_persistent_messages_and_all_later_ones_wait_for_the_disk() {
    let mut durable = Durable::new();
    let mut conversation = Conversation::open(&durable.shared);
    let frames = [&send("/queue/q", "a", "x"), "BEGIN\ntransaction:t\nreceipt:b\n\n"].join("\0");
    assert_eq!(conversation.call(&frames), [""; 0]);
    durable.write_all();
    assert_eq!(conversation.nudge(), ["RECEIPT a ", "RECEIPT b "]);
}

#[test]
fn a_durable_subscription_is_confirmed_when_it_is_on_disk() {
    let mut durable = Durable::new();
    let mut conversation = Conversation::open(&durable.shared);
    let subscribe = "SUBSCRIBE\nid:1\ndestination:/topic/a\ndurable:true\nauto-delete:false\nreceipt:r\n\n";
    assert_eq!(conversation.call(subscribe), [""; 0]);
    durable.write_all();
    assert_eq!(conversation.nudge(), ["RECEIPT r "]);
}

#[test]
fn a_commit_is_confirmed_when_its_messages_and_acknowledgements_are_on_disk() {
    let mut durable = Durable::new();
    let mut conversation = Conversation::open(&durable.shared);
    conversation.call(&send("/queue/q", "r", "x"));
    durable.write_all();
    conversation.nudge();
    conversation.call("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n");
    let session = conversation.connection.protocol().session_name();
    let frames = [
        "BEGIN\ntransaction:t\n\n".to_owned(),
        format!("ACK\nid:T_1@@{session}@@1\ntransaction:t\n\n"),
        send("/queue/other", "s\ntransaction:t", "y"),
        "COMMIT\ntransaction:t\nreceipt:c\n\n".to_owned(),
    ];
    assert_eq!(conversation.call(&frames.join("\0")), [""; 0]);
    durable.write_all();
    assert_eq!(conversation.nudge(), ["RECEIPT s ", "RECEIPT c "]);
}

#[test]
fn a_client_that_disconnects_is_kept_until_its_last_receipt() {
    let mut durable = Durable::new();
    let mut conversation = Conversation::open(&durable.shared);
    let frames = [&send("/queue/q", "a", "x"), "DISCONNECT\nreceipt:b\n\n"].join("\0");
    assert_eq!(conversation.call(&frames), [""; 0]);
    durable.write_all();
    assert_eq!(conversation.nudge(), ["RECEIPT a ", "RECEIPT b "]);
    assert_eq!(conversation.connection.intent(), transport::Intent::Finish);
}

#[test]
fn reading_pauses_while_too_many_receipts_wait_for_the_disk() {
    let mut durable = Durable::new();
    let mut conversation = Conversation::open(&durable.shared);
    let long = "r".repeat(10_000);
    for _ in 0..100 {
        conversation.call(&send("/queue/q", &long, "x"));
    }
    assert_eq!(conversation.connection.intent(), transport::Intent::Pause);
    assert!(conversation.unconsumed.len() > 500_000, "{} bytes were left", conversation.unconsumed.len());
    let mut receipts = 0;
    while receipts < 100 {
        durable.write_all();
        let some = conversation.nudge().len();
        assert!(some > 0, "stuck after {receipts} receipts");
        receipts += some;
    }
}
