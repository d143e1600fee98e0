use amqp::frame::{OVERHEAD, write_content_header, write_method};
use amqp::method::{basic, confirm, queue};
use amqp::properties::NO_PROPERTIES;

use super::entry::SHARED_BYTES;
use super::*;
use crate::replay_buffer::ReplayTotals;
use crate::topology::{Declarer, Topologies};

pub(super) fn message(key: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_method(&mut out, 3, basic::Publish { routing_key: key, ..Default::default() });
    write_content_header(&mut out, 3, 0, NO_PROPERTIES);
    out
}

pub(super) fn payload<'m>(method: impl Into<Method<'m>>) -> Vec<u8> {
    let mut out = Vec::new();
    method.into().encode(&mut out);
    out
}

/// The prefetch state with this limit for each consumer.
fn each(prefetch: u16) -> PrefetchState {
    let mut state = PrefetchState::default();
    state.set(prefetch, false);
    state
}

fn ledger(carried: MovedState) -> Arc<Ledger> {
    Ledger::new(&ClientLink::nobody(), carried)
}

/// A ledger that accounts for its bytes in `replay_totals`.
pub(super) fn counted(replay_totals: &Arc<ReplayTotals>) -> Arc<Ledger> {
    let outbox = Arc::new(transport::Outbox::new(0));
    let link =
        ClientLink::new(1, outbox, 0, amqp::Capabilities::default(), replay_totals.clone(), Arc::default());
    Ledger::new(&Arc::new(link), MovedState::default())
}

pub(super) fn keys(frames: &[u8]) -> Vec<String> {
    let methods = stored_frames(frames).filter(|(kind, _)| *kind == FrameKind::Method);
    methods
        .map(|(_, payload)| match Method::decode(payload).unwrap() {
            Method::BasicPublish(publish) => publish.routing_key.to_owned(),
            other => other.name().to_owned(),
        })
        .collect()
}

#[test]
fn unanswered_frames_stay_in_order_and_confirms_keep_their_numbers() {
    let first = ledger(MovedState::default());
    first.set_base(100);
    first.messages(&[message("1"), message("2"), message("3")].concat(), 3);
    first.method(
        &payload(queue::Declare { queue: "q", ..Default::default() }),
        true,
        PrefetchState::default(),
    );
    first.messages(&message("4"), 1);
    assert_eq!(first.confirmed(101, false).number, 1);
    assert_eq!(first.confirmed(103, false).number, 3);
    let remains = first.take();
    assert_eq!(keys(&remains.frames), ["2", "queue.declare", "4"]);
    assert_eq!(remains.messages, 2);

    let second = ledger(remains.carried);
    second.messages(&[message("2"), message("4"), message("5")].concat(), 3);
    assert_eq!(second.confirmed(2, false).number, 4);
    let remains = second.take();
    assert_eq!(keys(&remains.frames), ["2", "5"]);

    let third = ledger(remains.carried);
    third.messages(&[message("2"), message("5"), message("6")].concat(), 3);
    assert_eq!(third.confirmed(1, false).number, 2);
    assert_eq!(third.confirmed(3, true).number, 6);
    assert_eq!(third.take().carried.numbers, ConfirmNumbers { offset: 6, gaps: vec![] });
}

#[test]
fn confirm_select_stays_behind_messages_that_are_unproven() {
    let select = |no_wait| payload(confirm::Select { no_wait });
    for no_wait in [true, false] {
        let first = ledger(MovedState::default());
        first.unconfirmed_messages(&message("a"), 1);
        first.method(&select(no_wait), !no_wait, PrefetchState::default());
        first.messages(&message("1"), 1);
        let remains = first.take();
        assert_eq!(keys(&remains.frames), ["a", "confirm.select", "1"]);
        assert!(!remains.carried.confirming);

        for is_confirmed in [true, false] {
            let second = ledger(remains.carried.clone());
            second.unconfirmed_messages(&message("a"), 1);
            second.method(&select(no_wait), !no_wait, PrefetchState::default());
            second.messages(&[message("1"), message("2")].concat(), 2);
            second.method(&select(true), false, PrefetchState::default());
            if is_confirmed {
                assert_eq!(second.confirmed(1, false).number, 1);
            } else if no_wait {
                second.prove();
                assert!(second.answers_proof());
            } else {
                second.answered(Some(&confirm::SelectOk {}.into()), None);
            }
            let remains = second.take();
            let left = keys(&remains.frames);
            // A confirm settles a `confirm.select` with no-wait. One with a reply is sent again while the reply is pending.
            let has_select = is_confirmed && !no_wait;
            assert_eq!(left.contains(&"confirm.select".to_owned()), has_select);
            assert_eq!(left.last().unwrap(), "2");
            assert!(remains.carried.confirming, "{no_wait} {is_confirmed}");
        }
    }
}

#[test]
fn confirm_select_behind_nothing_that_is_unproven_is_not_kept() {
    let ledger = ledger(MovedState::default());
    ledger.unconfirmed_messages(&message("a"), 1);
    ledger.prove();
    assert!(ledger.answers_proof());
    ledger.method(&payload(confirm::Select { no_wait: true }), false, PrefetchState::default());
    assert!(!ledger.has_entries());
    ledger.messages(&message("1"), 1);
    let remains = ledger.take();
    assert_eq!(keys(&remains.frames), ["1"]);
    assert!(remains.carried.confirming);
}

#[test]
fn confirm_select_is_kept_behind_any_number_of_methods_without_an_answer() {
    let ledger = ledger(MovedState::default());
    ledger.unconfirmed_messages(&message("a"), 1);
    ledger.method(&payload(confirm::Select { no_wait: true }), false, PrefetchState::default());
    let bind = payload(queue::Bind { no_wait: true, ..Default::default() });
    for _ in 0..=UNANSWERED_MAX {
        ledger.method(&bind, false, PrefetchState::default());
    }
    assert_eq!(keys(&ledger.take().frames)[..3], ["a", "confirm.select", "queue.bind"]);
}

#[test]
fn an_answer_covers_the_no_wait_methods_in_front_of_it() {
    let ledger = ledger(MovedState::default());
    let bind = payload(queue::Bind { no_wait: true, ..Default::default() });
    ledger.method(&bind, false, PrefetchState::default());
    ledger.method(&payload(queue::Declare::default()), true, PrefetchState::default());
    ledger.method(&bind, false, PrefetchState::default());
    ledger.answered(None, None);
    assert_eq!(keys(&ledger.take().frames), ["queue.bind"]);
}

#[test]
fn the_number_of_kept_no_wait_methods_is_bounded() {
    let ledger = ledger(MovedState::default());
    let bind = |queue: &str| payload(queue::Bind { queue, no_wait: true, ..Default::default() });
    for number in 1..=2 * UNANSWERED_MAX {
        ledger.method(&bind(&number.to_string()), false, PrefetchState::default());
    }
    let frames = ledger.take().frames;
    let queues: Vec<String> = stored_frames(&frames)
        .map(|(_, payload)| match Method::decode(payload).unwrap() {
            Method::QueueBind(bind) => bind.queue.to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let last: Vec<String> =
        (UNANSWERED_MAX + 1..=2 * UNANSWERED_MAX).map(|number| number.to_string()).collect();
    assert_eq!(queues, last);
}

#[test]
fn consumers_are_known_by_server_generated_tags_and_forgotten_when_cancelled() {
    let ledger = ledger(MovedState::default());
    let consume = |tag| payload(basic::Consume { consumer_tag: tag, ..Default::default() });
    for tag in ["", "cancelled", "ours", "unanswered"] {
        ledger.method(&consume(tag), true, each(7));
    }
    for consumer_tag in ["amq.ctag-1", "cancelled", "ours"] {
        ledger.answered(Some(&basic::ConsumeOk { consumer_tag }.into()), Some("last"));
    }
    ledger.cancelled("cancelled");
    let remains = ledger.take();
    let again = |consumer: &Consumer| match Method::decode(&consumer.again()).unwrap() {
        Method::BasicConsume(consume) => {
            (consume.consumer_tag.to_owned(), consume.queue.to_owned(), consume.no_wait)
        }
        other => panic!("{other:?}"),
    };
    let made = |tag: &str| (tag.to_owned(), "last".to_owned(), true);
    let consumers: Vec<_> = remains.carried.consumers.iter().map(again).collect();
    assert_eq!(consumers, [made("amq.ctag-1"), made("ours")]);
    assert!(remains.carried.consumers.iter().all(|consumer| consumer.prefetch == each(7)));
    assert_eq!(keys(&remains.frames), ["basic.consume"]);
}

#[test]
fn a_message_too_large_to_be_kept_is_named_and_leaves_a_gap() {
    let first = ledger(MovedState::default());
    first.messages(&message("1"), 1);
    first.publish(&payload(basic::Publish { routing_key: "2", ..Default::default() }));
    let mut header = Vec::new();
    write_content_header(&mut header, 0, 11, NO_PROPERTIES);
    first.content(FrameKind::Header, stored_frames(&header).next().unwrap().1, 10);
    first.content(FrameKind::Body, &[0; 11], 10);
    first.messages(&message("3"), 1);
    let remains = first.take();
    assert_eq!(remains.too_large, [2]);
    assert_eq!(keys(&remains.frames), ["1", "3"]);
    let second = ledger(remains.carried);
    second.messages(&[message("1"), message("3")].concat(), 2);
    assert_eq!(second.confirmed(1, false).number, 1);
    assert_eq!(second.confirmed(2, false).number, 3);
}

#[test]
fn thousands_of_methods_under_way_take_hardly_more_than_their_bytes() {
    const REQUESTS: usize = 2000;
    let replay_totals = Arc::<ReplayTotals>::default();
    let ledger = counted(&replay_totals);
    let declare = payload(queue::Declare { queue: "hostile", passive: true, ..Default::default() });
    for asked in 1..=REQUESTS {
        ledger.method(&declare, true, PrefetchState::default());
        let frames = asked * (declare.len() + OVERHEAD);
        let taken = replay_totals.connected.bytes();
        assert!(taken < 2 * frames + 256, "{taken} bytes for {frames}");
    }
    let record = ledger.record.lock();
    let places = record.entries.capacity() * size_of::<SentEntry>();
    let buffers: usize = record.entries.iter().map(|entry| entry.frames.capacity()).sum();
    assert!(places + buffers <= replay_totals.connected.bytes(), "all that is taken is counted");
    drop(record);
    for _ in 0..REQUESTS {
        ledger.answered(None, None);
    }
    assert_eq!(replay_totals.connected.bytes(), 0);
    assert!(!ledger.has_entries());
}

#[test]
fn the_memory_for_many_entries_is_freed_when_they_are_settled() {
    let ledger = ledger(MovedState::default());
    for _ in 0..10_000 {
        ledger.messages(&message("m"), 1);
    }
    for tag in 1..10_000 {
        ledger.confirmed(tag, false);
        let record = ledger.record.lock();
        assert!(record.entries.capacity() <= (4 * record.entries.len() + 4).max(SMALL_CAPACITY));
    }
    assert!(ledger.record.lock().entries.capacity() <= SMALL_CAPACITY);
}

#[test]
fn bytes_of_answered_methods_are_released_in_small_steps() {
    let replay_totals = Arc::<ReplayTotals>::default();
    let ledger = counted(&replay_totals);
    let declare = payload(queue::Declare { queue: "hostile", passive: true, ..Default::default() });
    for _ in 0..1000 {
        ledger.method(&declare, true, PrefetchState::default());
    }
    for left in (0..1000).rev() {
        ledger.answered(None, None);
        let most = 2 * left * (declare.len() + OVERHEAD) + 2 * SHARED_BYTES;
        assert!(replay_totals.connected.bytes() < most, "{left} are left");
    }
}

#[test]
fn answered_methods_behind_an_unconfirmed_message_take_no_memory() {
    let replay_totals = Arc::<ReplayTotals>::default();
    let ledger = counted(&replay_totals);
    ledger.messages(&message("slow"), 1);
    for _ in 0..10_000 {
        ledger.method(&payload(queue::Declare::default()), true, PrefetchState::default());
        ledger.answered(None, None);
    }
    assert!(replay_totals.connected.bytes() < SHARED_BYTES);
    ledger.method(&payload(queue::Delete::default()), true, PrefetchState::default());
    assert_eq!(keys(&ledger.take().frames), ["slow", "queue.delete"]);
    assert_eq!(replay_totals.connected.bytes(), 0);
}

#[test]
fn a_consumer_keeps_its_own_prefetch_behind_methods_that_are_answered() {
    let ledger = ledger(MovedState::default());
    ledger.messages(&message("slow"), 1);
    ledger.method(
        &payload(basic::Qos { prefetch_count: 7, ..Default::default() }),
        true,
        PrefetchState::default(),
    );
    ledger.answered(None, None);
    ledger.method(&payload(basic::Consume { consumer_tag: "c", ..Default::default() }), true, each(7));
    ledger.answered(Some(&basic::ConsumeOk { consumer_tag: "c" }.into()), None);
    let prefetches: Vec<_> =
        ledger.take().carried.consumers.iter().map(|consumer| consumer.prefetch).collect();
    assert_eq!(prefetches, [each(7)]);
}

#[test]
fn an_unanswered_qos_is_sent_again_after_the_consumer_before_it() {
    let ledger = ledger(MovedState::default());
    let qos = |prefetch_count| payload(basic::Qos { prefetch_count, ..Default::default() });
    ledger.method(&qos(5), true, each(5));
    ledger.answered(Some(&basic::QosOk {}.into()), None);
    ledger.method(&payload(basic::Consume { consumer_tag: "c", ..Default::default() }), true, each(5));
    ledger.method(&qos(7), true, each(7));
    let remains = ledger.take();
    assert_eq!(remains.carried.prefetch, each(5));
    assert_eq!(keys(&remains.frames), ["basic.consume", "basic.qos"]);
}

#[test]
fn a_truncated_refusal_of_an_offset_is_ignored_if_several_queues_match() {
    let (long, other) = (format!("{}1", "q".repeat(240)), format!("{}2", "q".repeat(240)));
    let text = format!("PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{long}");
    let text = format!("{}...", &text[..252]);
    for (queues, is_found) in [(vec![&long], true), (vec![&long, &other], false)] {
        let ledger = ledger(MovedState::default());
        for queue in queues {
            let consume = basic::Consume { queue, consumer_tag: queue, ..Default::default() };
            ledger.method(&payload(consume), true, PrefetchState::default());
            ledger.answered(Some(&basic::ConsumeOk { consumer_tag: queue }.into()), None);
            ledger.record_offset(queue.as_bytes(), 5, true);
        }
        assert_eq!(ledger.clear_offset_unless_stream(&text), is_found);
    }
}

/// A client's ledger, and another client that has declared the queue "q", for which something is remembered.
fn with_a_declarer() -> (Arc<ClientLink>, Arc<Ledger>, Arc<Topologies>) {
    let topologies = Arc::<Topologies>::default();
    let credentials = Arc::new(amqp::Credentials::plain("user", "right"));
    let declarer = || Declarer::new(topologies.clone(), "/", credentials.clone());
    let declare = queue::Declare { queue: "q", ..Default::default() };
    declarer().carried_out(Some(&ClientLink::nobody()), &declare.into(), None);
    let link = ClientLink::new(
        1,
        Arc::new(transport::Outbox::new(0)),
        0,
        amqp::Capabilities::default(),
        Arc::default(),
        Arc::default(),
    );
    let link = Arc::new(link.with_declarer(declarer()));
    let ledger = Ledger::new(&link, MovedState::default());
    (link, ledger, topologies)
}

#[test]
fn no_wait_methods_remove_declarations_only_once_they_are_not_refused() {
    let (delete, durable) = (
        payload(queue::Delete { queue: "q", no_wait: true, ..Default::default() }),
        payload(queue::Declare { queue: "q", durable: true, no_wait: true, ..Default::default() }),
    );
    for method in [&delete, &durable] {
        let (_link, ledger, topologies) = with_a_declarer();
        ledger.method(method, false, PrefetchState::default());
        assert!(topologies.bytes() > 0);
        assert!(ledger.is_unproven().0, "no proof would be requested");
        drop(ledger.take());
        assert!(topologies.bytes() > 0, "the channel was closed");

        ledger.method(method, false, PrefetchState::default());
        ledger.method(&payload(basic::Qos::default()), true, PrefetchState::default());
        ledger.answered(None, None);
        assert_eq!(topologies.bytes(), 0);
    }
    let (_link, ledger, topologies) = with_a_declarer();
    ledger.method(&delete, false, PrefetchState::default());
    ledger.prove();
    assert!(ledger.answers_proof());
    assert_eq!(topologies.bytes(), 0);

    let (_link, ledger, topologies) = with_a_declarer();
    ledger.method(&delete, false, PrefetchState::default());
    ledger.messages(&message("q"), 1);
    ledger.confirmed(1, false);
    assert_eq!(topologies.bytes(), 0);
}

#[test]
fn a_declaration_after_a_delete_is_remembered() {
    let delete = queue::Delete { queue: "q", no_wait: true, ..Default::default() };
    let declare = queue::Declare { queue: "q", ..Default::default() };
    let (_link, ledger, topologies) = with_a_declarer();
    ledger.method(&payload(delete), false, PrefetchState::default());
    ledger.method(&payload(queue::Declare { no_wait: true, ..declare }), false, PrefetchState::default());
    ledger.closed();
    assert!(topologies.bytes() > 0);

    let (_link, ledger, topologies) = with_a_declarer();
    ledger.method(&payload(delete), false, PrefetchState::default());
    ledger.method(&payload(declare), true, PrefetchState::default());
    ledger.answered(Some(&queue::DeclareOk { queue: "q", ..Default::default() }.into()), None);
    assert!(topologies.bytes() > 0);
    let again = payload(queue::Delete { no_wait: false, ..delete });
    ledger.method(&again, true, PrefetchState::default());
    ledger.answered(Some(&queue::DeleteOk { message_count: 0 }.into()), None);
    assert_eq!(topologies.bytes(), 0);
}
