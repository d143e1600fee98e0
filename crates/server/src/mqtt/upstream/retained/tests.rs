//! Several processes that read and write one log, and copy its entries while the oldest are dropped.

mod logins;
mod matching;
mod reading;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use amqp::properties::Properties;
use amqp::{Credentials, FieldTable, FieldValue, RawTable};
use broker::{Compatibility, Timestamp};
use bytes::Bytes;
use mqtt::{Property, PropertyList, QoS};
use transport::Outbox;

use super::log::LogClient;
use super::logins::REFUSAL_TTL;
use super::publishing::BlindCopies;
use super::record::{self, Encoded, LogEntry, Placed, TopicEntry};
use super::topics::{LogLimits, RetainedTopics};
use super::{LOG, RetainedLogs};
use crate::clock::Clock;
use crate::clock::tests::corrected;
use crate::mqtt::message::{Incoming, MessageMapping, to_amqp};
use crate::mqtt::retained::{RetainedMessage, RetainedSearch};
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::tests::{USER, Upstream, settle};

const NOW: Timestamp = Timestamp(1_000_000);
const LIMITS: LogLimits = LogLimits { maximum: 64 << 10, segment: 4 << 10 };

/// A stream of the upstream.
#[derive(Default)]
struct TestLog {
    /// The exchange and message of each entry.
    entries: VecDeque<(&'static str, Encoded)>,
    /// The offset of the first entry.
    first: u64,
    bytes: u64,
}

impl TestLog {
    fn append(&mut self, exchange: &'static str, message: Encoded) {
        self.bytes += size(&message);
        self.entries.push_back((exchange, message));
        while self.bytes > LIMITS.maximum
            && let Some((_, dropped)) = self.entries.pop_front()
        {
            self.first += 1;
            self.bytes -= size(&dropped);
        }
    }

    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn set(&mut self, topic: &str, payload: &str) {
        self.append(EXCHANGE, original(topic, payload.as_bytes(), &PropertyList::new(), QoS::AtLeastOnce));
    }

    /// Lets `topics` read up to `most` entries.
    fn read(&self, topics: &mut RetainedTopics, most: usize) {
        let from = topics.next().saturating_sub(self.first);
        for (at, (exchange, message)) in self.entries.iter().enumerate().skip(from as usize).take(most) {
            topics.read(placed(exchange, message, self.first + at as u64), NOW);
        }
    }

    /// The messages that a process finds that starts to read now.
    fn fresh(&self) -> BTreeMap<String, String> {
        let mut topics = RetainedTopics::new(LIMITS, 0);
        self.read(&mut topics, usize::MAX);
        found(&topics)
    }
}

/// The size without the allowance for what the upstream adds.
fn size(message: &Encoded) -> u64 {
    (message.properties.len() + message.body.len() + message.routing_key.len()) as u64
}

fn found(topics: &RetainedTopics) -> BTreeMap<String, String> {
    let text = |message: &RetainedMessage| message.payload.escape_ascii().to_string();
    let found = matching(topics, "#");
    found.iter().map(|message| (message.topic.to_string(), text(message))).collect()
}

fn matching(topics: &RetainedTopics, filter: &str) -> Vec<Arc<RetainedMessage>> {
    let (mut progress, mut found) = (RetainedSearch::default(), Vec::new());
    while progress != RetainedSearch::Done {
        found.extend(topics.matching(filter, &mut progress, NOW));
    }
    found
}

/// A message as a client's session publishes it.
fn original(topic: &str, payload: &[u8], properties: &PropertyList, qos: QoS) -> Encoded {
    let properties = properties.as_properties();
    let message = Incoming { qos, dup: false, retain: true, properties, client_id: None };
    let mapping = MessageMapping::of_upstream(Compatibility::V4);
    let routing_key = mapping.routing_key(topic).unwrap();
    let mut copies = BlindCopies::default();
    copies.add(record::second_key(&routing_key), record::original(&message, NOW));
    let properties = copies.apply(to_amqp(&message, mapping, NOW).unwrap());
    Encoded { routing_key: routing_key.into(), properties, body: Bytes::copy_from_slice(payload) }
}

/// The `mqtt_exchange`.
const EXCHANGE: &str = "events";

/// The entry with its offset, as a reader decodes it.
fn placed(exchange: &str, message: &Encoded, offset: u64) -> Placed {
    let mut amqp = Properties::decode(&message.properties).unwrap();
    let mut headers = amqp.headers.map(|headers| headers.decode()).unwrap_or_default();
    headers.remove("BCC");
    headers.insert("x-stream-offset", FieldValue::I64(offset as i64));
    let headers = headers.encode();
    amqp.headers = RawTable::check(&headers).ok();
    let mut properties = Vec::new();
    amqp.encode(&mut properties);
    record::read(EXCHANGE, exchange, &message.routing_key, &properties, &message.body).unwrap()
}

/// A generator of reproducible numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A process whose copies reach the log with a delay.
struct Process {
    topics: RetainedTopics,
    /// Whether it has read to the log's end once.
    is_current: bool,
    unsent: VecDeque<Encoded>,
}

#[test]
fn retained_messages_survive_while_their_log_entries_are_dropped() {
    for seed in 1..=3 {
        let (mut numbers, mut log, mut expected) = (Numbers(seed), TestLog::default(), BTreeMap::new());
        let process = |jitter| Process {
            topics: RetainedTopics::new(LIMITS, jitter),
            is_current: false,
            unsent: VecDeque::new(),
        };
        let mut processes = [process(0), process(1000), process(3000)];
        for round in 0..3000 {
            // Some topics seldom change, and must not be lost.
            let topic = match numbers.below(50) {
                0 => format!("seldom/{}", numbers.below(20)),
                _ => format!("often/{}", numbers.below(4)),
            };
            if numbers.below(3) == 0 {
                log.set(&topic, "");
                expected.remove(&topic);
            } else {
                log.set(&topic, &round.to_string());
                expected.insert(topic, round.to_string());
            }
            let process = &mut processes[numbers.below(3) as usize];
            log.read(&mut process.topics, numbers.below(12) as usize);
            process.is_current |= process.topics.next() == log.end();
            if process.is_current
                && let Some(copy) = process.topics.next_copy(NOW)
            {
                process.unsent.push_back(copy);
            }
            if process.unsent.len() > 5 || numbers.below(8) == 0 {
                process.unsent.drain(..).for_each(|copy| log.append(LOG, copy));
            }
            if round % 100 == 0 {
                assert_eq!(log.fresh(), expected, "seed {seed}, round {round}");
            }
        }
        assert!(log.first > 500, "the log went round");
        for process in &mut processes {
            log.read(&mut process.topics, usize::MAX);
            assert_eq!(found(&process.topics), expected);
            assert!(process.topics.known() < 30, "removals are forgotten");
        }
    }
}

#[test]
fn a_copy_that_comes_behind_a_removal_does_not_bring_the_message_back() {
    let (mut log, mut topics) = (TestLog::default(), RetainedTopics::new(LIMITS, 0));
    log.set("a", "old");
    let stale = record::copy(0, &message("a", b"old"));
    log.set("a", "");
    log.append(LOG, stale);
    log.read(&mut topics, usize::MAX);
    assert!(found(&topics).is_empty() && log.fresh().is_empty());
    // Repeats until a process that starts to read begins at the copy.
    let mut copies = 0;
    while log.first < 3 {
        log.set("b", "x");
        log.read(&mut topics, usize::MAX);
        while let Some(copy) = topics.next_copy(NOW) {
            copies += 1;
            log.append(LOG, copy);
        }
        if log.first > 0 {
            assert!(!log.fresh().contains_key("a"), "at {}", log.first);
        }
    }
    assert_eq!(copies, 1, "the removal, once");
}

#[test]
fn a_copy_sets_no_topic_that_its_original_has_not_set() {
    let (mut log, mut topics) = (TestLog::default(), RetainedTopics::new(LIMITS, 0));
    log.first = 10;
    log.set("a", "1");
    log.set("b", "1");
    log.set("c", "1");
    log.set("c", "");
    log.set("end", "1");
    for (version, topic) in [(10, "b"), (11, "a"), (12, "new"), (14, "a")] {
        log.append(LOG, record::copy(version, &message(topic, b"forged")));
        log.append(LOG, record::removal(version, topic));
    }
    // A late copy, by another process, of what has been removed since.
    log.append(LOG, record::copy(12, &message("c", b"1")));
    // A copy of an entry that was dropped before this process started to read.
    log.append(LOG, record::copy(9, &message("old", b"1")));
    log.read(&mut topics, usize::MAX);
    let expected = ["a", "b", "end", "old"].map(|topic| (topic.to_owned(), "1".to_owned()));
    assert_eq!(found(&topics), BTreeMap::from(expected));
}

#[test]
fn entries_that_were_read_before_and_those_without_capacity_change_nothing() {
    let (mut log, mut topics) = (TestLog::default(), RetainedTopics::new(LIMITS, 0));
    log.set("a", "1");
    log.set("a", "2");
    log.read(&mut topics, usize::MAX);
    let again = placed(EXCHANGE, &log.entries[0].1, 0);
    assert!(topics.read(again, NOW));
    assert_eq!(found(&topics)["a"], "2");
    let large = original("large", &[0; 20 << 10], &PropertyList::new(), QoS::AtLeastOnce);
    assert!(!topics.has_capacity("large", 20 << 10, NOW) && topics.has_capacity("a", 15 << 10, NOW));
    // Another process still had capacity for one.
    assert!(topics.read(placed(EXCHANGE, &large, 2), NOW));
    assert!(!topics.read(placed(EXCHANGE, &Encoded { routing_key: "b".into(), ..large }, 3), NOW));
    assert_eq!(found(&topics).into_keys().collect::<Vec<_>>(), ["a", "large"]);
}

#[test]
fn expired_messages_free_space_and_are_not_copied() {
    let mut topics = RetainedTopics::new(LIMITS, 0);
    let expiring = |seconds| PropertyList::new().with(Property::MessageExpiryInterval(seconds));
    let entry = |topic, seconds| original(topic, &[0; 12 << 10], &expiring(seconds), QoS::AtLeastOnce);
    topics.read(placed(EXCHANGE, &entry("short", 1), 0), NOW);
    let later = NOW.after(1000);
    assert_eq!((topics.len(), topics.get("short", later)), (1, None));
    assert!(!topics.has_capacity("b", 12 << 10, NOW) && topics.has_capacity("b", 12 << 10, later));
    topics.read(placed(EXCHANGE, &entry("long", 60), 1), later);
    assert!(topics.get("long", later).is_some());
    for offset in 2..8 {
        let filler = original("filler", &[0; 10 << 10], &PropertyList::new(), QoS::AtMostOnce);
        topics.read(placed(EXCHANGE, &filler, offset), later);
    }
    let copy = topics.next_copy(later).unwrap();
    assert_eq!((&*copy.routing_key, topics.next_copy(later)), ("long", None));
    topics.copy_again();
    assert_eq!(topics.next_copy(later).as_ref(), Some(&copy));
    topics.copy_again();
    assert_eq!(topics.next_copy(NOW.after(60_000)), None);
}

fn message(topic: &str, payload: &[u8]) -> RetainedMessage {
    RetainedMessage {
        topic: topic.into(),
        qos: QoS::AtLeastOnce,
        properties: PropertyList::new(),
        payload: Bytes::copy_from_slice(payload),
        expires: None,
    }
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let list = PropertyList::new()
        .with(Property::MessageExpiryInterval(60))
        .with(Property::UserProperty("b", "1"))
        .with(Property::UserProperty("a", "2"))
        .with(Property::UserProperty("b", "3"));
    let persistent = list.as_properties().iter().skip(1).fold(PropertyList::new(), PropertyList::with);
    let written = original("v1.2/ä", b"\0\xff", &list, QoS::ExactlyOnce);
    let Placed { entry, .. } = placed(EXCHANGE, &written, 7);
    let LogEntry::Topic(TopicEntry { version: None, topic, message: Some(message) }) = entry else {
        panic!("{entry:?}");
    };
    // In the form in which RabbitMQ delivers it.
    assert_eq!((&*topic, &*message.topic, message.qos), ("v1/2/ä", "v1/2/ä", QoS::ExactlyOnce));
    assert_eq!((&message.properties, message.expires), (&persistent, Some(NOW.after(60_000))));
    assert_eq!(&*message.payload, b"\0\xff");
    let copy = placed(LOG, &record::copy(5, &message), 8).entry;
    assert_eq!(copy, LogEntry::Topic(TopicEntry { version: Some(5), topic, message: Some(message) }));
    let removal = placed(LOG, &record::removal(5, "a/b"), 8).entry;
    let none = TopicEntry { version: Some(5), topic: "a/b".into(), message: None };
    assert_eq!(removal, LogEntry::Topic(none));
    let marker = placed(LOG, &record::marker(1, 2), 8).entry;
    assert_eq!(marker, LogEntry::Marker { process: 1, number: 2 });
}

#[test]
fn messages_that_are_not_valid_log_entries_are_skipped() {
    let good = original("a", b"x", &PropertyList::new(), QoS::AtLeastOnce);
    let read = |exchange, message: &Encoded, offset| placed(exchange, message, offset).entry;
    assert_ne!(read(EXCHANGE, &good, 8), LogEntry::Foreign);
    for (exchange, message) in [
        (LOG, good.clone()),
        ("", good.clone()),
        (EXCHANGE, record::copy(5, &message("a", b"x"))),
        (EXCHANGE, record::removal(5, "a")),
        (EXCHANGE, record::marker(1, 2)),
        // Such a copy would hide all entries before that offset.
        (LOG, record::copy(8, &message("a", b"x"))),
        (LOG, record::removal(u64::MAX, "a")),
        (EXCHANGE, Encoded { routing_key: "".into(), ..good.clone() }),
        (EXCHANGE, Encoded { routing_key: "a.#".into(), ..good.clone() }),
        (EXCHANGE, Encoded { routing_key: "a\0".into(), ..good }),
    ] {
        assert_eq!(read(exchange, &message, 8), LogEntry::Foreign, "{exchange} {message:?}");
    }
    // All truncated headers.
    let whole = record::copy(5, &message("a", b"x"));
    let headers = Properties::decode(&whole.properties).unwrap().headers.unwrap().decode();
    let Some(FieldValue::ByteArray(header)) = headers.get("x-leveret-retained") else { panic!() };
    for cut in 0..header.len() {
        let headers: FieldTable =
            [("x-leveret-retained", FieldValue::ByteArray(header[..cut].into()))].into_iter().collect();
        let headers = headers.encode();
        let mut properties = Vec::new();
        Properties::default().with_headers(RawTable::check(&headers).unwrap()).encode(&mut properties);
        let message = Encoded { properties, ..whole.clone() };
        assert_eq!(read(LOG, &message, 8), LogEntry::Foreign, "{cut} bytes");
    }
    assert_eq!(record::read(EXCHANGE, EXCHANGE, "a", &whole.properties, b""), None, "not from a stream");
}

#[test]
fn the_second_key_differs_in_the_first_word_alone() {
    for (key, expected) in [("a.b.c", ".b.c"), ("a", ""), (".x", ".x"), ("", ""), ("a.", ".")] {
        assert_eq!(record::second_key(key), format!("%leveret-retained{expected}"));
    }
}

fn join(logs: &Arc<RetainedLogs>, upstream: &Upstream, user: &str) -> (LogClient, Arc<Outbox>) {
    let credentials = Arc::new(Credentials::plain(user, "secret"));
    let login = UpstreamLogin { prefix: "", credentials, vhost: "/".into() };
    let (outbox, upstream) = (Arc::new(Outbox::new(1)), upstream.clone());
    (logs.join_by(&login, &outbox, move |_| upstream.clone()), outbox)
}

/// Other servers, with other clocks, read it.
#[tokio::test(start_paused = true)]
async fn a_message_expires_by_the_wall_clock() {
    let now = transport::now();
    let clock = corrected(now, -7_200_000);
    let logs = RetainedLogs::with_limits(clock, &EXCHANGE.into(), LIMITS);
    let (client, _) = join(&logs, &Upstream::new(), USER);
    let properties = PropertyList::new().with(Property::MessageExpiryInterval(60));
    let properties = properties.as_properties();
    let message = Incoming { qos: QoS::AtMostOnce, dup: false, retain: true, properties, client_id: None };
    assert_eq!(client.header(&message), record::original(&message, clock.wall(now)));
    assert_ne!(client.header(&message), record::original(&message, clock.timestamp(now)));
}

/// The embedded broker has no streams.
#[tokio::test(start_paused = true)]
async fn an_upstream_without_streams_retains_nothing() {
    let upstream = Upstream::new();
    let logs = RetainedLogs::with_limits(Clock::start(), &EXCHANGE.into(), LIMITS);
    let (first, outbox) = join(&logs, &upstream, USER);
    assert!(!first.is_decided(&outbox) && first.is_available() && first.must_wait(&outbox));
    let ticket = first.ticket(&outbox).unwrap();
    assert!(!first.has_reached(ticket));
    settle().await;
    assert!(first.is_decided(&outbox) && !first.is_available() && !first.must_wait(&outbox));
    assert!(
        first.has_reached(ticket) && first.ticket(&outbox).is_none(),
        "without a log there is nothing to wait for"
    );
    // The second client's login is tried.
    let (second, other) = join(&logs, &upstream, "guest");
    assert!(!second.is_decided(&other));
    settle().await;
    assert!(second.is_decided(&other) && !second.is_available() && !first.is_available());
    tokio::time::sleep(REFUSAL_TTL + Duration::from_secs(1)).await;
    assert!(!first.is_available(), "tried again, and refused again");
    drop((first, second));
    logs.drain();
    settle().await;
    let (third, outbox) = join(&logs, &upstream, USER);
    assert!(!third.is_decided(&outbox), "another log");
}
