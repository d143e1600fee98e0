//! Retained messages that new subscriptions get.

use sync::work;

use super::reading::{client, link, log, retain, turn};
use super::stream::TestStream;
use super::*;
use crate::mqtt::upstream::retained::RetainedWait;
use crate::mqtt::upstream::retained::delivering::RetainedSession;
use crate::mqtt::upstream::retained::link::LogLink;
use crate::upstream::multiplexing::link::LinkStep;

/// More topics than a turn can visit.
const TOPICS: usize = 10_000;

fn many() -> RetainedTopics {
    let limits = LogLimits { maximum: 64 << 20, segment: 4 << 20 };
    let mut topics = RetainedTopics::new(limits, 0);
    for number in 0..TOPICS {
        let entry = original(&format!("t/{number}/x"), b"1", &PropertyList::new(), QoS::AtMostOnce);
        topics.read(placed(EXCHANGE, &entry, number as u64), NOW);
    }
    topics
}

#[test]
fn a_filter_pays_for_the_topics_that_are_looked_at_and_looks_at_some_at_a_time() {
    let topics = many();
    let names = |found: &[Arc<RetainedMessage>]| {
        let mut names: Vec<_> = found.iter().map(|message| message.topic.to_string()).collect();
        names.sort_unstable();
        names
    };
    let mut all: Vec<_> = (0..TOPICS).map(|number| format!("t/{number}/x")).collect();
    all.sort_unstable();
    for (filter, expected) in [
        ("#", all.clone()),
        ("t/+/x", all),
        ("+/+/none", vec![]),
        ("t/77/x", vec!["t/77/x".to_owned()]),
        ("t/77/#", vec!["t/77/x".to_owned()]),
    ] {
        let is_narrow = filter.contains("77");
        let (mut progress, mut found, mut calls) = (RetainedSearch::default(), Vec::new(), 0);
        let whole = work::Turn::begin();
        while progress != RetainedSearch::Done {
            let before = whole.spent();
            found.extend(topics.matching(filter, &mut progress, NOW));
            assert!(whole.spent() - before < u64::from(work::TURN), "a turn at most");
            calls += 1;
        }
        assert_eq!(names(&found), expected, "{filter}");
        assert_eq!((calls == 1, whole.spent() > u64::from(work::TURN)), (is_narrow, !is_narrow), "{filter}");
    }
}

#[test]
fn topics_changed_between_two_search_steps_are_found_in_their_new_state() {
    let mut topics = many();
    let mut progress = RetainedSearch::default();
    let mut found = topics.matching("#", &mut progress, NOW);
    let last = TOPICS as u64;
    for (at, (number, payload)) in [(TOPICS - 1, ""), (TOPICS - 2, "2"), (0, "2")].into_iter().enumerate() {
        let topic = format!("t/{number}/x");
        let entry = original(&topic, payload.as_bytes(), &PropertyList::new(), QoS::AtMostOnce);
        topics.read(placed(EXCHANGE, &entry, last + at as u64), NOW);
    }
    while progress != RetainedSearch::Done {
        found.extend(topics.matching("#", &mut progress, NOW));
    }
    let mut changed: Vec<_> = found.iter().filter(|message| *message.payload == *b"2").collect();
    changed.sort_by(|one, other| one.topic.cmp(&other.topic));
    let names: Vec<_> = changed.iter().map(|message| &*message.topic).collect();
    assert_eq!(names, ["t/0/x".to_owned(), format!("t/{}/x", TOPICS - 2)]);
    assert!(!found.iter().any(|message| *message.topic == format!("t/{}/x", TOPICS - 1)));
    // One has been found in both states.
    assert_eq!(found.len(), TOPICS);
}

/// A session that waits for the retained messages of `filters`; the log has not been read since its ticket.
fn waiting(link: &mut LogLink, client: LogClient, outbox: &Arc<Outbox>, filters: &[&str]) -> RetainedSession {
    assert_eq!(turn(link), Ok(LinkStep::Idle));
    let mut session = RetainedSession::new(client);
    let filters = filters.iter().map(|filter| Arc::from(*filter)).collect();
    session.advance(&mut RetainedWait::Wanted(filters), outbox, transport::now());
    session
}

#[tokio::test(start_paused = true)]
async fn many_filters_of_one_client_take_several_turns() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    (0..100).for_each(|number| retain(&stream, &format!("t/{number}"), b"x"));
    let filters: Vec<_> = (0..100).map(|number| format!("+/+/{number}")).chain(["t/+".to_owned()]).collect();
    let filters: Vec<_> = filters.iter().map(String::as_str).collect();
    let mut session = waiting(&mut link, client, &outbox, &filters);
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    let mut turns = 0;
    while !session.has_messages() {
        let turn = work::Turn::begin();
        session.collect(|_| true, NOW);
        assert!(turn.spent() < 2 * u64::from(work::TURN), "{} ns", turn.spent());
        turns += 1;
    }
    assert!(turns > 2, "{turns} turns");
}

#[tokio::test(start_paused = true)]
async fn a_copy_follows_a_live_message_if_it_is_the_same() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    retain(&stream, "same", b"1");
    retain(&stream, "newer", b"1");
    retain(&stream, "other", b"1");
    let mut session = waiting(&mut link, client, &outbox, &["#"]);
    // By an older subscription, or by the new one before the log has been read.
    session.sent_live("same", b"1", &outbox);
    session.sent_live("newer", b"2", &outbox);
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    session.collect(|_| true, NOW);
    assert_eq!(session.sendable(), ["other", "same"]);
    // The live message arrives while the copy waits.
    session.sent_live("other", b"2", &outbox);
    assert_eq!(session.sendable(), ["same"]);
    retain(&stream, "other", b"2");
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    assert_eq!(session.sendable(), ["other", "same"]);
}

#[tokio::test(start_paused = true)]
async fn very_many_live_messages_while_the_log_cannot_be_read_are_not_remembered() {
    let (log, stream) = (log(), TestStream::default());
    let (client, outbox) = client(&log, USER);
    let mut link = link(&log, &stream);
    retain(&stream, "0", b"old");
    let mut session = waiting(&mut link, client, &outbox, &["#"]);
    let taken = allocation_counter::measure(|| {
        for number in 0..50_000 {
            session.sent_live(&number.to_string(), b"new", &outbox);
        }
    });
    assert!(taken.bytes_current < 200 << 10, "{} bytes", taken.bytes_current);
    // The log may be older than the live messages, since it was read before.
    retain(&stream, "0", b"new");
    assert_eq!(turn(&mut link), Ok(LinkStep::Idle));
    session.collect(|_| true, NOW);
    assert_eq!(session.sendable(), ["0"]);
    assert_eq!(&*session.log.get("0", NOW).unwrap().payload, b"new");
}
