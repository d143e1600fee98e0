use std::sync::atomic::{AtomicBool, Ordering};

use amqp::{FieldTable, FieldValue, RawTable};
use store::disk::simulated::SimDisk;
use store::journal::JournalSettings;
use store::{Store, Waiter};

use super::*;
use crate::message::{Body, BrokerProperties, Message};
use crate::vhost::{Binding, QueueDeclare};
use crate::{
    Broker, BrokerConfig, Delivery, Fetched, ForeignMessage, Publish, Publisher, Returned, SessionId,
};

const ME: SessionId = SessionId(1);
const NOW: Timestamp = Timestamp(1_000);

fn queue(vhost: &Arc<VirtualHost>, name: &str, arguments: &[(&str, FieldValue)]) -> Arc<Queue> {
    let arguments = arguments.iter().cloned().collect::<FieldTable>().encode();
    let arguments = RawTable::check(&arguments).unwrap();
    vhost.declare_queue(ME, &QueueDeclare { name, arguments, ..Default::default() }, NOW).unwrap().queue
}

/// As [`append_bodies`], for bodies that are numbers.
fn append(queue: &Arc<Queue>, bodies: std::ops::Range<u32>) -> usize {
    append_bodies(queue, bodies.map(|body| body.to_string().into_bytes()))
}

/// Appends messages with these bodies to a queue with a maximum length of one. Returns the number of dead letters that the
/// caller has to send.
fn append_bodies(queue: &Arc<Queue>, bodies: impl IntoIterator<Item = Vec<u8>>) -> usize {
    let new = |body: Vec<u8>| {
        Message::new("".into(), queue.name(), &[0, 0], Body::Copied(&body), BrokerProperties::default())
    };
    let messages: Vec<_> = bodies.into_iter().map(|body| Arc::new(new(body))).collect();
    let nowhere = StoredBatch::keep(None, LastStoring::of(std::slice::from_ref(queue)), &messages);
    queue.append(messages.into_iter(), nowhere.at(0), NOW, Sender::Publisher(None), |_| {}).dead
}

/// The bodies that have arrived, in order.
fn drain(queue: &Queue) -> Vec<u32> {
    std::iter::from_fn(|| queue.get(true, NOW))
        .map(|got| String::from_utf8(got.delivery.message().body().to_vec()).unwrap().parse().unwrap())
        .collect()
}

fn world() -> (Arc<Broker>, Arc<VirtualHost>, Arc<Queue>, Arc<Queue>) {
    let broker = Broker::new(BrokerConfig::default());
    let vhost = broker.vhost("/").unwrap();
    let dead = queue(&vhost, "dead", &[]);
    let arguments = [
        ("x-max-length", FieldValue::I32(1)),
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    let short = queue(&vhost, "short", &arguments);
    (broker, vhost, short, dead)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Waiter for Woken {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn dead_letters_of_consumers_wait_until_the_store_has_capacity() {
    let broker = Broker::new(BrokerConfig::default());
    let settings = JournalSettings { pending_limit: 4 << 10, ..JournalSettings::default() };
    let (store, mut rounds, recovered) = Store::open(Arc::new(SimDisk::new(1, 1 << 30)), settings).unwrap();
    broker.restore(&store, recovered, NOW).unwrap();
    let vhost = broker.vhost("/").unwrap();
    let durable = |name, arguments: &[(&str, FieldValue)]| {
        let arguments = arguments.iter().cloned().collect::<FieldTable>().encode();
        let arguments = RawTable::check(&arguments).unwrap();
        let declare = QueueDeclare { name, arguments, durable: true, ..Default::default() };
        vhost.declare_queue(ME, &declare, NOW).unwrap().queue
    };
    let dead = durable("dead", &[]);
    let to_dead = [
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    let queue = durable("q", &to_dead);
    rounds.step();
    let mut properties = Vec::new();
    amqp::Properties::default().with_delivery_mode(2).encode(&mut properties);
    let message = |_| ForeignMessage::new("", "q", &properties, &[0; 1 << 20]).unwrap();
    queue.take_in((0..40).map(message).collect(), NOW);
    assert!(!store.has_capacity());
    let woken = Arc::new(Woken::default());
    let waiter: Arc<dyn Waiter> = woken.clone();
    let mut rejected = 0;
    while let Fetched::Got(got) = queue.fetch(false, NOW, &waiter) {
        queue.reject(vec![got.delivery], Returned::Failed, NOW);
        rejected += 1;
    }
    assert_eq!(
        (rejected, queue.message_count()),
        (33, 7),
        "no consumer gets more until 32 MiB of letters are sent"
    );
    let pending = store.journal().pending_bytes();
    broker.expire_all(NOW);
    assert!(dead.message_count() == 0 && store.journal().pending_bytes() == pending);
    while dead.message_count() < 33 {
        rounds.step();
        broker.expire(NOW);
    }
    rounds.step();
    broker.expire_all(NOW);
    assert!(woken.0.load(Ordering::Relaxed) && matches!(queue.fetch(false, NOW, &waiter), Fetched::Got(_)));
}

#[test]
fn publishers_do_not_run_far_ahead_of_pending_dead_letters() {
    let (_broker, vhost, short, dead) = world();
    let own = append(&short, 0..2);
    for from in (2..20_002).step_by(200) {
        append(&short, from..from + 200);
    }
    vhost.dead_letter(&short, own, NOW);
    // A publisher continues once few dead letters wait, whoever has sent them.
    short.wait_for_dead_letters(NOW);
    let sent = dead.message_count();
    assert!((20_000 - 4_096..20_000).contains(&sent), "{sent} sent");
}

#[test]
fn the_letters_of_a_turn_are_bounded_by_their_bytes_too() {
    let (_broker, vhost, short, dead) = world();
    let large = |count| append_bodies(&short, (0..count).map(|_| vec![0; 1 << 20]));
    let own = large(2);
    (0..10).for_each(|_| assert_eq!(large(1), 0));
    vhost.dead_letter(&short, own, NOW);
    assert_eq!(dead.message_count(), 4);
}

/// Otherwise one client's thread would send everything that other threads drop meanwhile.
#[test]
fn a_sender_leaves_most_letters_of_other_threads_to_them() {
    let (broker, vhost, short, dead) = world();
    let own = append(&short, 0..2);
    assert_eq!(own, 1);
    for from in (2..2_002).step_by(200) {
        assert_eq!(append(&short, from..from + 200), 0, "they line up");
    }
    vhost.dead_letter(&short, own, NOW);
    assert_eq!(dead.message_count(), 512);
    // The next thread that drops a message sends at least as many.
    let next = append(&short, 2_002..2_003);
    vhost.dead_letter(&short, next, NOW);
    assert_eq!(dead.message_count(), 512 + 512);
    // The timer sends the rest.
    broker.expire_all(NOW);
    assert_eq!(drain(&dead), (0..2_002).collect::<Vec<_>>());
    assert_eq!((drain(&short), broker.next_deadline()), (vec![2_002], None));
}

#[test]
fn letters_that_are_left_outlive_their_queue() {
    let (broker, vhost, short, dead) = world();
    let own = append(&short, 0..2);
    for from in (2..1_002).step_by(200) {
        append(&short, from..from + 200);
    }
    vhost.dead_letter(&short, own, NOW);
    let gone = Arc::downgrade(&short);
    vhost.delete_queue(ME, "short", false, false).unwrap();
    drop(short);
    broker.expire_all(NOW);
    assert_eq!(drain(&dead), (0..1_001).collect::<Vec<_>>());
    assert!(gone.upgrade().is_none());
}

/// The number of queues that get each dead letter of [`wide_world`].
const WIDE: usize = 100;

/// Nanoseconds by which a turn may exceed its budget: one dead letter, and some calls.
const LAST_LETTER: u64 = 100_000;

/// A queue with this additional argument whose dead letters are routed to [`WIDE`] queues; and the last of these.
fn wide_world(argument: Option<(&str, FieldValue)>) -> (Arc<Broker>, Arc<Queue>, Arc<Queue>) {
    let broker = Broker::new(BrokerConfig::default());
    let vhost = broker.vhost("/").unwrap();
    let bind = |number| {
        let name = format!("dead.{number}");
        let dead = queue(&vhost, &name, &[]);
        let binding = Binding { source: "amq.fanout", destination: &name, ..Binding::default() };
        vhost.bind_queue(ME, &binding).unwrap();
        dead
    };
    let dead: Vec<_> = (0..WIDE).map(bind).collect();
    let mut arguments = vec![("x-dead-letter-exchange", FieldValue::text("amq.fanout"))];
    arguments.extend(argument);
    let from = queue(&vhost, "q", &arguments);
    (broker, from, dead[WIDE - 1].clone())
}

/// Lets the timer send the rest, and checks the length of each turn; returns the number of turns.
fn turns_of_timer(broker: &Broker, now: Timestamp) -> usize {
    let mut turns = 0;
    while broker.next_deadline().is_some_and(|due| due <= now) {
        let turn = work::Turn::begin();
        broker.expire(now);
        assert!(turn.spent() < u64::from(work::TURN) + LAST_LETTER, "{} ns in one turn", turn.spent());
        turns += 1;
    }
    turns
}

fn take_all(queue: &Queue) -> Vec<Delivery> {
    std::iter::from_fn(|| queue.get(false, NOW)).map(|got| got.delivery).collect()
}

#[test]
fn dead_letters_of_one_rejection_take_as_many_turns_as_they_need() {
    const LETTERS: u32 = 3_000;
    let (broker, from, dead) = wide_world(None);
    append(&from, 0..LETTERS);
    let deliveries = take_all(&from);
    let turn = work::Turn::begin();
    from.reject(deliveries, Returned::Failed, NOW);
    assert!(turn.spent() < u64::from(work::TURN) + LAST_LETTER, "{} ns in one turn", turn.spent());
    drop(turn);
    let sent = dead.message_count();
    assert!(sent > 0 && sent < 100, "{sent} sent");
    // Later dead letters do not overtake the queued ones.
    append(&from, LETTERS..LETTERS + 1);
    from.reject(take_all(&from), Returned::Failed, NOW);
    assert!(turns_of_timer(&broker, NOW) > 50);
    assert_eq!(drain(&dead), (0..=LETTERS).collect::<Vec<_>>());
}

#[test]
fn consumers_get_nothing_while_many_letters_of_consumers_wait() {
    let (broker, from, dead) = wide_world(None);
    append(&from, 0..6_000);
    let deliveries = take_all(&from);
    append(&from, 6_000..6_001);
    let turn = work::Turn::begin();
    from.reject(deliveries, Returned::Failed, NOW);
    drop(turn);
    let woken = Arc::new(Woken::default());
    let waiter: Arc<dyn Waiter> = woken.clone();
    assert!(matches!(from.fetch(true, NOW, &waiter), Fetched::Later));
    // The same holds while a thread sends some.
    let taken = from.next_dead_letters(&Step::default(), 1);
    assert!(!taken.is_empty() && matches!(from.fetch(true, NOW, &waiter), Fetched::Later));
    from.put_back_dead_letters(taken.into());
    turns_of_timer(&broker, NOW);
    assert!(woken.0.load(Ordering::Relaxed) && matches!(from.fetch(true, NOW, &waiter), Fetched::Got(_)));
    assert_eq!(drain(&dead), (0..6_000).collect::<Vec<_>>());
}

#[test]
fn messages_that_expire_at_once_are_sent_to_many_queues_in_many_turns() {
    const LETTERS: u32 = 3_000;
    let (broker, from, dead) = wide_world(Some(("x-message-ttl", FieldValue::I32(10))));
    append(&from, 0..LETTERS);
    assert!(turns_of_timer(&broker, NOW.after(10)) > 50);
    assert_eq!((drain(&dead), from.message_count()), ((0..LETTERS).collect(), 0));
}

/// A publisher of the broker's default virtual host.
fn publisher(broker: &Broker) -> Publisher {
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    broker.vhost("/").unwrap().publisher(&guest)
}

fn publish(publisher: &mut Publisher, queue: &str, bodies: std::ops::Range<u32>) {
    for body in bodies {
        let body = body.to_string();
        let body = Body::Copied(body.as_bytes());
        let message = Publish { exchange: "", routing_key: queue, properties: &[0, 0], body };
        assert!(publisher.publish(message, NOW).unwrap());
    }
}

/// Flushes a publisher, and checks each of its turns; returns their number.
fn turns_of_flush(publisher: &mut Publisher) -> usize {
    for turns in 1.. {
        let turn = work::Turn::begin();
        let flushed = publisher.flush(NOW);
        assert!(turn.spent() < u64::from(work::TURN) + LAST_LETTER, "{} ns in one turn", turn.spent());
        if !flushed.unfinished {
            return turns;
        }
    }
    unreachable!()
}

/// Appends messages with these bodies, and lets a consumer reject them all at once in one turn.
fn reject_at_once(queue: &Arc<Queue>, bodies: std::ops::Range<u32>) {
    let take = |body| {
        append(queue, body..body + 1);
        queue.get(false, NOW).unwrap().delivery
    };
    let deliveries = bodies.map(take).collect();
    let _turn = work::Turn::begin();
    queue.reject(deliveries, Returned::Failed, NOW);
}

/// A queue that drops a message for each new one.
const SHORT: (&str, FieldValue) = ("x-max-length", FieldValue::I32(1));

#[test]
fn a_publisher_waits_in_turns_of_its_own_while_letters_of_consumers_are_many() {
    const REJECTED: u32 = 6_000;
    let (broker, from, dead) = wide_world(Some(SHORT));
    // A thread that has a letter to send in its next turn.
    assert_eq!(append(&from, 0..2), 1);
    reject_at_once(&from, 2..REJECTED);
    let mut publisher = publisher(&broker);
    publish(&mut publisher, "q", REJECTED..REJECTED + 3);
    assert!(turns_of_flush(&mut publisher) > 50);
    let sent = dead.message_count();
    assert!((1_900..2_500).contains(&sent), "{sent} sent");
    turns_of_timer(&broker, NOW);
    assert_eq!(drain(&dead), (0..REJECTED + 2).collect::<Vec<_>>());
}

#[test]
fn letters_of_a_publish_take_as_many_turns_as_they_need_and_are_sent_before_its_confirm() {
    const MESSAGES: u32 = 250;
    let (broker, _, dead) = wide_world(Some(SHORT));
    let mut publisher = publisher(&broker);
    publish(&mut publisher, "q", 0..MESSAGES);
    assert!(turns_of_flush(&mut publisher) > 5);
    assert_eq!(drain(&dead), (0..MESSAGES - 1).collect::<Vec<_>>());
}

#[test]
fn a_publisher_that_ends_leaves_its_letters_to_the_timer() {
    const MESSAGES: u32 = 250;
    let (broker, _, dead) = wide_world(Some(SHORT));
    let mut publisher = publisher(&broker);
    publish(&mut publisher, "q", 0..MESSAGES);
    let turn = work::Turn::begin();
    drop(publisher);
    assert!(turn.spent() < u64::from(work::TURN) + LAST_LETTER, "{} ns in one turn", turn.spent());
    drop(turn);
    assert!(dead.message_count() < 50);
    turns_of_timer(&broker, NOW);
    assert_eq!(drain(&dead), (0..MESSAGES - 1).collect::<Vec<_>>());
}

#[test]
fn a_letter_to_a_queue_with_letters_of_consumers_leaves_these_to_others() {
    const REJECTED: u32 = 2_000;
    let (broker, via, dead) = wide_world(Some(SHORT));
    let vhost = broker.vhost("/").unwrap();
    let to_via = [
        SHORT,
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("q")),
    ];
    queue(&vhost, "first", &to_via);
    reject_at_once(&via, 0..REJECTED);
    append(&via, REJECTED..REJECTED + 1);
    let mut publisher = publisher(&broker);
    publish(&mut publisher, "first", REJECTED + 1..REJECTED + 3);
    let turns = turns_of_flush(&mut publisher);
    assert!(turns < 5, "{turns} turns");
    turns_of_timer(&broker, NOW);
    assert_eq!(drain(&dead), (0..=REJECTED).collect::<Vec<_>>());
}

#[test]
fn messages_requeued_above_the_limit_are_dropped_in_as_many_turns_as_that_takes() {
    const MESSAGES: u32 = 3_000;
    let limit = |most| ("x-max-length", FieldValue::I32(most));
    let (broker, from, dead) = wide_world(Some(limit(MESSAGES as i32)));
    append(&from, 0..MESSAGES);
    let held = take_all(&from);
    append(&from, MESSAGES..2 * MESSAGES);
    let turn = work::Turn::begin();
    from.requeue(held, Returned::Failed, NOW);
    assert!(turn.spent() < u64::from(work::TURN) + LAST_LETTER, "{} ns in one turn", turn.spent());
    drop(turn);
    assert!(from.message_count() > u64::from(MESSAGES) && dead.message_count() < 100);
    assert!(turns_of_timer(&broker, NOW) > 50);
    assert_eq!(drain(&dead), (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(drain(&from), (MESSAGES..2 * MESSAGES).collect::<Vec<_>>());
}
