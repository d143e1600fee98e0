//! Answers and confirms that wait for the disk: sent in order, and never before their changes are on disk.

use std::collections::VecDeque;

use amqp::properties::{PERSISTENT, Properties};
use broker::{Store, Timestamp};
use store::Rounds;
use store::disk::simulated::{Faults, SimDisk, SimRandom};
use store::journal::{CommitOutcome, JournalSettings, Lsn};
use sync::work::Turn;

use super::*;

/// A server with a disk, whose writes the test runs.
pub(super) struct Durable {
    pub(super) shared: Arc<Shared>,
    store: Arc<Store>,
    rounds: Rounds,
    disk: SimDisk,
}

impl Durable {
    pub(super) fn new(seed: u64, pending_limit: usize) -> Self {
        let disk = SimDisk::new(seed, 1 << 30);
        let settings =
            JournalSettings { segment_size: 64 << 10, pending_limit, ..JournalSettings::default() };
        let (store, rounds, recovered) = Store::open(Arc::new(disk.clone()), settings).unwrap();
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        broker.restore(&store, recovered, Timestamp::default()).unwrap();
        broker.add_defaults();
        store.catalogue().commit_pending().unwrap();
        Self { shared: server_of(broker), store, rounds, disk }
    }

    fn breaks(&self, breaks: bool) {
        let rate = if breaks { 1000 } else { 0 };
        self.disk.set_faults(Faults { write: rate, sync: rate, names: rate });
    }

    pub(super) fn write_all(&mut self) {
        self.breaks(false);
        while !matches!(self.rounds.step(), CommitOutcome::Idle) {}
    }
}

impl Conversation {
    /// Nudges the connection and passes pending input in again.
    pub(super) fn nudged(&mut self) -> Vec<String> {
        let now = self.now;
        self.connection.handle_nudge(now);
        if self.connection.intent() == Intent::Run {
            self.send(&[]);
        }
        self.received()
    }
}

pub(super) fn declare_durable(out: &mut Vec<u8>, name: &str) {
    frame::write_method(out, 1, queue::Declare { queue: name, durable: true, ..Default::default() });
}

fn publish_persistent(out: &mut Vec<u8>, body: &[u8]) {
    let mut properties = Vec::new();
    Properties::default().with_delivery_mode(PERSISTENT).encode(&mut properties);
    let publish = basic::Publish { routing_key: "q", ..Default::default() };
    write_content(out, 1, publish, &properties, body, FRAME_MAX);
}

/// A client in confirm mode with a durable queue.
fn confirming(durable: &mut Durable) -> Conversation {
    let mut client = Conversation::open(&durable.shared, 0);
    client.call(|out| declare_durable(out, "q"));
    durable.write_all();
    assert_eq!(client.nudged(), ["queue.declare-ok"]);
    client.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    client
}

#[test]
fn answers_and_confirms_keep_their_order_and_are_never_early() {
    for seed in 0..300 {
        Run::new(seed).play();
    }
}

/// Random actions of one client, and the answers that it expects.
struct Run {
    random: SimRandom,
    durable: Durable,
    client: Conversation,
    /// Log position that must be on disk before each publish may be confirmed, in order; `None` for transient messages.
    unconfirmed: VecDeque<Option<Lsn>>,
    confirmed: u64,
    /// Answers that are still expected, in order.
    answers: VecDeque<&'static str>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut durable = Durable::new(seed, 1 << 20);
        let client = confirming(&mut durable);
        let random = SimRandom::new(seed);
        Self { random, durable, client, unconfirmed: VecDeque::new(), confirmed: 0, answers: VecDeque::new() }
    }

    fn play(mut self) {
        for _ in 0..60 {
            match self.random.below(10) {
                0..5 => self.send_requests(),
                5 => self.durable.breaks(self.random.chance(500)),
                6..8 => drop(self.durable.rounds.step()),
                _ => self.nudge(),
            }
        }
        // Pending input is handled only after earlier requests have been answered.
        for _ in 0..100 {
            self.durable.write_all();
            self.nudge();
        }
        assert_eq!((self.unconfirmed.len(), self.answers.len()), (0, 0));
    }

    /// Sends a few requests in one read.
    fn send_requests(&mut self) {
        let mut bytes = Vec::new();
        for _ in 0..=self.random.below(4) {
            match self.random.below(8) {
                0..4 => {
                    publish_persistent(&mut bytes, b"kept");
                    self.unconfirmed.push_back(Some(Lsn(0)));
                }
                4 => {
                    publish(&mut bytes, "q", b"not kept", false);
                    self.unconfirmed.push_back(None);
                }
                5 | 6 => {
                    declare_durable(&mut bytes, ["r", "s", "t"][self.random.below(3) as usize]);
                    self.answers.push_back("queue.declare-ok");
                }
                _ => {
                    frame::write_method(
                        &mut bytes,
                        1,
                        basic::Qos { prefetch_count: 7, ..Default::default() },
                    );
                    self.answers.push_back("basic.qos-ok");
                }
            }
        }
        let before = self.durable.store.end();
        self.client.send(&bytes);
        self.note_taken(before);
        let heard = self.client.received();
        self.check_answers(heard);
    }

    fn nudge(&mut self) {
        let before = self.durable.store.end();
        let heard = self.client.nudged();
        self.note_taken(before);
        self.check_answers(heard);
    }

    /// Messages taken since `before` are now in the log.
    fn note_taken(&mut self, before: Lsn) {
        if self.durable.store.end() > before {
            let new = self.unconfirmed.iter_mut().flatten().filter(|until| **until == Lsn(0));
            new.for_each(|until| *until = Lsn(before.0 + 1));
        }
    }

    fn check_answers(&mut self, heard: Vec<String>) {
        for method in heard {
            let Some(ack) = method.strip_prefix("basic.ack ") else {
                assert_eq!(Some(&*method), self.answers.pop_front(), "an answer out of order");
                continue;
            };
            let tag: u64 = ack.trim_end_matches(" multiple").parse().unwrap();
            assert!(tag > self.confirmed, "{tag} after {}", self.confirmed);
            for _ in self.confirmed..tag {
                let until = self.unconfirmed.pop_front().expect("a publish");
                assert!(until.is_none_or(|until| until <= self.durable.store.durable()), "{tag} is early");
            }
            assert!(ack.ends_with(" multiple") || tag == self.confirmed + 1);
            self.confirmed = tag;
        }
    }
}

#[test]
fn a_full_journal_pauses_publishers_and_loses_no_message() {
    let mut durable = Durable::new(1, 4 << 10);
    let mut publisher = confirming(&mut durable);
    let mut consumer = Conversation::open(&durable.shared, 0);
    durable.breaks(true);
    let body = [7; 3000];
    let flood = |out: &mut Vec<u8>| (0..5).for_each(|_| publish_persistent(out, &body));
    assert_eq!(publisher.call(flood), [""; 0]);
    assert_eq!(publisher.connection.intent(), Intent::Pause);
    assert!(!durable.store.has_capacity());
    assert!(matches!(durable.rounds.step(), CommitOutcome::Failed(_)));
    assert_eq!(publisher.nudged(), [""; 0]);
    assert_eq!(publisher.connection.intent(), Intent::Pause);
    assert_eq!(publisher.call(flood), [""; 0], "held, not taken");
    // A consumer is not affected: messages in the queue are delivered.
    let get = |out: &mut Vec<u8>| {
        frame::write_method(out, 1, basic::Get { queue: "q", no_ack: true, ..Default::default() });
    };
    assert_eq!(consumer.call(get), ["basic.get-ok 4"]);
    durable.write_all();
    let mut heard = publisher.nudged();
    for _ in 0..10 {
        durable.write_all();
        heard.extend(publisher.nudged());
    }
    assert_eq!(heard.last().map(String::as_str), Some("basic.ack 10 multiple"));
    assert_eq!(publisher.connection.intent(), Intent::Run);
    assert_eq!(consumer.call(get), ["basic.get-ok 8"]);
}

#[test]
fn a_message_that_some_of_its_queues_have_reaches_the_others_though_the_journal_is_full() {
    const QUEUES: usize = 20_000;
    let mut durable = Durable::new(3, 4 << 10);
    let mut publisher = confirming(&mut durable);
    let mut wide = Conversation::open(&durable.shared, 0);
    fairness::declare_wide(&mut wide, QUEUES);
    let first_turn = Turn::begin();
    wide.call(|out| fairness::publish_wide(out, b"x"));
    drop(first_turn);
    let mut other = Conversation::open(&durable.shared, 0);
    assert_eq!((fairness::depth(&mut other, 0), fairness::depth(&mut other, QUEUES - 1)), (1, 0));
    durable.breaks(true);
    publisher.call(|out| (0..5).for_each(|_| publish_persistent(out, &[7; 3000])));
    assert!(!durable.store.has_capacity());
    let mut turns = 0;
    while fairness::depth(&mut other, QUEUES - 1) == 0 {
        fairness::turn(&mut wide);
        turns += 1;
        assert!(turns < 1_000, "it waits for the disk");
    }
}

#[test]
fn a_draining_server_sends_close_once_published_messages_are_confirmed() {
    let mut durable = Durable::new(2, 1 << 20);
    let mut publisher = confirming(&mut durable);
    durable.breaks(true);
    assert_eq!(publisher.call(|out| publish_persistent(out, b"kept")), [""; 0]);
    drop(durable.rounds.step());
    durable.shared.start_draining(Duration::ZERO, Duration::ZERO);
    assert_eq!(publisher.nudged(), [""; 0], "neither a confirm nor a goodbye");
    durable.write_all();
    let text = "connection.close CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";
    assert_eq!(publisher.nudged(), ["basic.ack 1", text]);
}
