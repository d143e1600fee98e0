//! S6: busy clients leave other clients their turns. Time is the charged work.

use amqp::{FieldValue, RawTable};
use broker::Compatibility;
use sync::work::{TURN, Turn};

use super::*;

/// The excess of a turn over its budget: the largest indivisible step, a batch of messages for one queue. Add `MATCH` for
/// each queue of a message, since the queues of a route are looked up in one step.
pub(super) const STEP: u64 = 60_000;
const MATCH: u64 = 30;
const EXCHANGE: &str = "wide";
/// Number of turns after which a test gives up.
pub(super) const ENDLESS: usize = 100_000;

/// The number of publishers, of messages that each publishes at once, and of queues.
const LOADS: [(usize, usize, usize); 4] = [(4, 5_000, 0), (4, 5_000, 1), (4, 500, 100), (3, 3, 10_000)];

/// Handles nudges and pending input in one turn; returns the cost.
pub(super) fn turn(client: &mut Conversation) -> u64 {
    let turn = Turn::begin();
    let now = client.now;
    client.connection.handle_nudge(now);
    if client.connection.intent() == Intent::Run {
        client.send(&[]);
    }
    turn.spent()
}

fn name(number: usize) -> String {
    format!("wide.{number}")
}

/// A server with `queues` queues bound to a fanout exchange, and a client of it.
fn fanout(queues: usize) -> (Arc<Shared>, Conversation) {
    fanout_with(queues, &[])
}

/// Like [`fanout`], with queues of these arguments.
fn fanout_with(queues: usize, arguments: &[(&str, FieldValue)]) -> (Arc<Shared>, Conversation) {
    let shared = simulated::server_of(Broker::new(BrokerConfig::default()), Clock::start(), 0).shared();
    let mut client = Conversation::open(&shared, 0);
    declare_wide_with(&mut client, queues, arguments);
    (shared, client)
}

/// Has a client declare `queues` queues bound to a fanout exchange.
pub(super) fn declare_wide(client: &mut Conversation, queues: usize) {
    declare_wide_with(client, queues, &[]);
}

fn declare_wide_with(client: &mut Conversation, queues: usize, arguments: &[(&str, FieldValue)]) {
    let arguments = arguments.iter().cloned().collect::<FieldTable>().encode();
    let arguments = RawTable::check(&arguments).unwrap();
    client.call(|out| {
        frame::write_method(
            out,
            1,
            exchange::Declare { exchange: EXCHANGE, kind: "fanout", ..Default::default() },
        );
    });
    for number in 0..queues {
        let name = name(number);
        client.call(|out| {
            let declare = queue::Declare { queue: &name, arguments, ..Default::default() };
            frame::write_method(out, 1, declare);
            let bind = queue::Bind { queue: &name, exchange: EXCHANGE, ..Default::default() };
            frame::write_method(out, 1, bind);
        });
    }
}

pub(super) fn publish_wide(out: &mut Vec<u8>, body: &[u8]) {
    let publish = basic::Publish { exchange: EXCHANGE, routing_key: "k", ..Default::default() };
    write_content(out, 1, publish, NO_PROPERTIES, body, FRAME_MAX);
}

/// The number of messages in a queue, according to its declare-ok.
pub(super) fn depth(client: &mut Conversation, number: usize) -> u32 {
    let (mut bytes, name) = (Vec::new(), name(number));
    frame::write_method(&mut bytes, 1, queue::Declare { queue: &name, passive: true, ..Default::default() });
    client.send(&bytes);
    let answer = client.outbox.read_all();
    let frame = Frame::parse(&answer, 0).unwrap().unwrap();
    match Method::decode(frame.payload).unwrap() {
        Method::QueueDeclareOk(ok) => ok.message_count,
        other => panic!("{}", other.name()),
    }
}

#[test]
fn no_turn_is_longer_than_it_may_be_and_a_bystander_waits_for_one_only() {
    for (publishers, messages, queues) in LOADS {
        let (shared, mut bystander) = fanout(queues);
        let mut input = Vec::new();
        (0..messages).for_each(|_| publish_wide(&mut input, b""));
        let mut busy: Vec<_> = (0..publishers).map(|_| Conversation::open(&shared, 0)).collect();
        busy.iter_mut().for_each(|client| client.unconsumed.extend_from_slice(&input));
        let mut turns = 0;
        // A publisher whose input was taken gets another turn for pending work.
        let mut quiet = 0;
        while quiet < 2 * publishers {
            let client = &mut busy[turns % publishers];
            let spent = turn(client);
            let most = u64::from(TURN) + STEP + MATCH * queues as u64;
            assert!(spent <= most, "{publishers} to {queues}: {spent} ns in one turn");
            quiet = if spent < 1_000 { quiet + 1 } else { 0 };
            turns += 1;
            assert!(turns < ENDLESS, "{publishers} to {queues}");
            // The other client's requests are answered between two turns of the publishers.
            let asks = Turn::begin();
            let answers = bystander.call(|out| {
                declare(out, "visit");
                publish(out, "visit", b"x", false);
                frame::write_method(
                    out,
                    1,
                    basic::Get { queue: "visit", no_ack: true, ..Default::default() },
                );
            });
            assert_eq!(answers, ["queue.declare-ok", "basic.get-ok 0"]);
            assert!(asks.spent() < u64::from(TURN) / 10);
        }
        assert!(busy.iter().all(|client| client.unconsumed.is_empty()));
        for number in [0, queues / 2, queues.saturating_sub(1)].into_iter().filter(|number| *number < queues)
        {
            assert_eq!(
                depth(&mut bystander, number),
                (publishers * messages) as u32,
                "queue {number} of {queues}"
            );
        }
    }
}

#[test]
fn a_confirm_waits_for_all_of_many_queues_and_a_later_get_sees_the_message() {
    const QUEUES: usize = 20_000;
    let (shared, mut other) = fanout(QUEUES);
    let mut client = Conversation::open(&shared, 0);
    client.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    let last = name(QUEUES - 1);
    let first_turn = Turn::begin();
    let answers = client.call(|out| {
        publish_wide(out, b"x");
        frame::write_method(out, 1, basic::Get { queue: &last, no_ack: true, ..Default::default() });
    });
    drop(first_turn);
    assert_eq!(answers, Vec::<String>::new());
    assert_eq!((depth(&mut other, 0), depth(&mut other, QUEUES - 1)), (1, 0));
    let mut answers = Vec::new();
    let mut turns = 1;
    while answers.len() < 2 {
        turn(&mut client);
        turns += 1;
        assert!(turns < ENDLESS);
        answers.extend(client.received());
    }
    assert!(turns > 3, "{turns} turns");
    assert_eq!(answers, ["basic.ack 1", "basic.get-ok 0"]);
    assert_eq!(depth(&mut other, QUEUES / 2), 1);
}

#[test]
fn a_consumer_of_a_long_queue_gets_it_in_many_turns() {
    const MESSAGES: usize = 15_000;
    let mut client = Conversation::open(&server(), 0);
    client.call(|out| declare(out, "q"));
    for _ in 0..MESSAGES / 100 {
        client.call(|out| (0..100).for_each(|_| publish(out, "q", b"", false)));
    }
    let mut bytes = Vec::new();
    let consume = basic::Consume { queue: "q", no_ack: true, ..Default::default() };
    frame::write_method(&mut bytes, 1, consume);
    client.unconsumed = bytes;
    let (mut delivered, mut turns) = (0, 0);
    while delivered < MESSAGES {
        let spent = turn(&mut client);
        // A single consumer takes up to 1,024 messages at once.
        assert!(spent <= u64::from(TURN) + 2 * STEP, "{spent} ns in one turn");
        delivered += client.received().iter().filter(|method| *method == "basic.deliver").count();
        turns += 1;
        assert!(turns < ENDLESS);
    }
    assert!(turns > 1);
}

#[test]
fn a_publisher_leaves_deliveries_that_are_too_many_to_the_consumers_own_turns() {
    const MESSAGES: usize = 20_000;
    let (shared, mut consumer) = fanout(1);
    let queue = name(0);
    consumer.call(|out| {
        frame::write_method(out, 1, basic::Consume { queue: &queue, no_ack: true, ..Default::default() });
    });
    let mut publisher = Conversation::open(&shared, 0);
    let mut input = Vec::new();
    (0..MESSAGES).for_each(|_| publish_wide(&mut input, b""));
    publisher.unconsumed = input;
    let (mut delivered, mut turns) = (0, 0);
    while delivered < MESSAGES {
        for client in [&mut publisher, &mut consumer] {
            let spent = turn(client);
            assert!(spent <= u64::from(TURN) + 2 * STEP, "{spent} ns in one turn");
        }
        delivered += consumer.received().iter().filter(|method| *method == "basic.deliver").count();
        turns += 1;
        assert!(turns < ENDLESS, "{delivered} delivered");
    }
}

/// Alternates publishers and consumers until all `messages` are confirmed or refused; returns the deliveries and the
/// refusals.
fn confirmed_turns(
    publisher: &mut Conversation,
    consumers: &mut [Conversation],
    messages: u64,
) -> (usize, usize) {
    let mut input = Vec::new();
    (0..messages).for_each(|_| publish_wide(&mut input, b""));
    publisher.call(|out| frame::write_method(out, 1, confirm::Select { no_wait: false }));
    publisher.unconsumed = input;
    let (mut delivered, mut refused, mut answered, mut turns) = (0, 0, 0, 0);
    while answered < messages {
        assert!(turn(publisher) <= u64::from(TURN) + 2 * STEP);
        for consumer in &mut *consumers {
            assert!(turn(consumer) <= u64::from(TURN) + 2 * STEP);
            delivered += consumer.received().iter().filter(|method| *method == "basic.deliver").count();
        }
        for method in publisher.received() {
            refused += usize::from(method == "basic.nack");
            if let Some(tag) = method.strip_prefix("basic.ack ") {
                answered = tag.split(' ').next().unwrap().parse().unwrap();
            }
        }
        turns += 1;
        assert!(turns < ENDLESS, "{answered} answered");
    }
    (delivered, refused)
}

fn consume_all(consumer: &mut Conversation, queues: impl Iterator<Item = usize>) {
    for queue in queues {
        let queue = name(queue);
        let consume = basic::Consume { queue: &queue, no_ack: true, no_wait: true, ..Default::default() };
        consumer.call(|out| frame::write_method(out, 1, consume));
    }
}

#[test]
fn messages_for_a_ready_consumer_are_not_expired_dropped_or_refused() {
    const MESSAGES: u64 = 20_000;
    let (ttl, length) = (("x-message-ttl", FieldValue::I64(0)), ("x-max-length", FieldValue::I64(10)));
    let refuse = ("x-overflow", FieldValue::text("reject-publish"));
    for arguments in [&[ttl][..], std::slice::from_ref(&length), &[length.clone(), refuse]] {
        let (shared, mut consumer) = fanout_with(1, arguments);
        consume_all(&mut consumer, 0..1);
        let mut publisher = Conversation::open(&shared, 0);
        let (delivered, refused) =
            confirmed_turns(&mut publisher, std::slice::from_mut(&mut consumer), MESSAGES);
        assert_eq!((delivered, refused), (MESSAGES as usize, 0), "{arguments:?}");
    }
}

#[test]
fn a_message_to_very_many_queues_misses_none_whose_consumer_is_ready() {
    const QUEUES: usize = 10_000;
    const CONSUMERS: usize = 20;
    let (shared, _client) = fanout_with(QUEUES, &[("x-message-ttl", FieldValue::I64(0))]);
    let mut consumers: Vec<_> = (0..CONSUMERS).map(|_| Conversation::open(&shared, 0)).collect();
    for (number, consumer) in consumers.iter_mut().enumerate() {
        consume_all(consumer, (number..QUEUES).step_by(CONSUMERS));
        consumer.received();
    }
    let mut publisher = Conversation::open(&shared, 0);
    assert_eq!(confirmed_turns(&mut publisher, &mut consumers, 3), (3 * QUEUES, 0));
}

#[test]
fn requeued_messages_are_not_dropped_at_turn_end_if_a_consumer_is_ready() {
    // More than one turn delivers.
    const MESSAGES: usize = 8_000;
    let config = BrokerConfig { compatibility: Compatibility::V4, ..BrokerConfig::default() };
    let shared = simulated::server_of(Broker::new(config), Clock::start(), 0).shared();
    let mut holder = Conversation::open(&shared, 0);
    let arguments: FieldTable =
        [("x-queue-type", FieldValue::text("quorum")), ("x-max-length", FieldValue::I64(10))]
            .into_iter()
            .collect();
    let arguments = arguments.encode();
    let consume = |out: &mut Vec<u8>| {
        frame::write_method(out, 1, basic::Consume { queue: "q", no_wait: true, ..Default::default() });
    };
    let deliveries = |client: &mut Conversation| {
        client.received().iter().filter(|method| *method == "basic.deliver").count()
    };
    holder.call(|out| {
        let arguments = RawTable::check(&arguments).unwrap();
        let declare = queue::Declare { queue: "q", durable: true, arguments, ..Default::default() };
        frame::write_method(out, 1, declare);
    });
    holder.call(consume);
    let mut publisher = Conversation::open(&shared, 0);
    let mut held = 0;
    for _ in 0..MESSAGES {
        publisher.call(|out| publish(out, "q", b"", false));
        held += deliveries(&mut holder);
    }
    assert_eq!(held, MESSAGES);
    let mut others = [Conversation::open(&shared, 0), Conversation::open(&shared, 0)];
    others.iter_mut().for_each(|other| drop(other.call(consume)));
    frame::write_method(&mut holder.unconsumed, 1, channel::Close::default());
    let (mut taken, mut turns) = (0, 0);
    while holder.received().is_empty() {
        turn(&mut holder);
        taken += others.iter_mut().map(deliveries).sum::<usize>();
        turns += 1;
        assert!(turns < ENDLESS);
    }
    for other in &mut others {
        turn(other);
        taken += deliveries(other);
    }
    assert_eq!(taken, MESSAGES);
}

/// Publishes to all queues and to the first one, alternately, in a transaction that also acknowledges a message of the
/// first one.
fn fill_transaction(client: &mut Conversation, messages: usize) {
    let queue = name(0);
    client.call(|out| {
        publish(out, &queue, b"acknowledged", false);
        frame::write_method(out, 1, tx::Select {});
        frame::write_method(out, 1, basic::Get { queue: &queue, ..Default::default() });
        frame::write_method(out, 1, basic::Ack { delivery_tag: 1, multiple: false });
    });
    for number in 0..messages {
        publish_wide(&mut client.unconsumed, b"");
        if number % 10 == 0 {
            publish(&mut client.unconsumed, &queue, b"", false);
        }
    }
    let mut turns = 0;
    while !client.unconsumed.is_empty() {
        turn(client);
        turns += 1;
        assert!(turns < ENDLESS);
    }
    client.received();
}

#[test]
fn a_commit_takes_as_many_turns_as_it_needs_and_is_answered_after_the_last() {
    const QUEUES: usize = 300;
    const MESSAGES: usize = 1_000;
    let (shared, mut other) = fanout(QUEUES);
    let mut client = Conversation::open(&shared, 0);
    fill_transaction(&mut client, MESSAGES);
    assert_eq!(depth(&mut other, 0), 0);
    let last = name(QUEUES - 1);
    frame::write_method(&mut client.unconsumed, 1, tx::Commit {});
    frame::write_method(
        &mut client.unconsumed,
        1,
        basic::Get { queue: &last, no_ack: true, ..Default::default() },
    );
    let (mut answers, mut turns) = (Vec::new(), 0);
    while answers.len() < 2 {
        if let Some(first) = answers.first() {
            assert_eq!(first, "tx.commit-ok");
        }
        let spent = turn(&mut client);
        assert!(spent <= u64::from(TURN) + STEP, "{spent} ns in one turn");
        answers.extend(client.received());
        turns += 1;
        assert!(turns < ENDLESS);
    }
    assert!(turns > 10, "{turns} turns");
    assert_eq!(answers, ["tx.commit-ok".to_owned(), format!("basic.get-ok {}", MESSAGES - 1)]);
    assert_eq!((depth(&mut other, 0), depth(&mut other, 1)), (1_100, 1_000));
}

#[test]
fn a_commit_of_several_turns_is_completed_though_its_client_is_gone() {
    let (shared, mut other) = fanout(300);
    let mut client = Conversation::open(&shared, 0);
    fill_transaction(&mut client, 1_000);
    frame::write_method(&mut client.unconsumed, 1, tx::Commit {});
    turn(&mut client);
    let begun = depth(&mut other, 1);
    assert!(begun < 1_000 && client.received().is_empty());
    client.connection.handle_eof();
    assert_eq!((depth(&mut other, 0), depth(&mut other, 299)), (1_100, 1_000));
}

#[test]
fn a_commit_of_several_turns_that_a_full_queue_refuses_closes_its_channel() {
    let arguments =
        [("x-max-length", FieldValue::I64(10)), ("x-overflow", FieldValue::text("reject-publish"))];
    let (shared, mut other) = fanout_with(300, &arguments);
    let mut client = Conversation::open(&shared, 0);
    fill_transaction(&mut client, 1_000);
    frame::write_method(&mut client.unconsumed, 1, tx::Commit {});
    let (mut answers, mut turns) = (Vec::new(), 0);
    while answers.is_empty() {
        turn(&mut client);
        answers.extend(client.received());
        turns += 1;
        assert!(turns < ENDLESS);
    }
    assert!(turns > 10, "{turns} turns");
    assert_eq!(answers, ["channel.close PRECONDITION_FAILED - partial tx completion"]);
    assert_eq!((depth(&mut other, 0), depth(&mut other, 299)), (10, 10));
}
