use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use amqp::{FieldTable, FieldValue, Properties};
use broker::*;
use sync::work::{self, Turn};

use crate::disk_world::{WakeCounter, disk_world};
use crate::world::*;

pub(crate) fn dead_letter_to(key: &str) -> [(&'static str, FieldValue); 2] {
    [("x-dead-letter-exchange", FieldValue::text("")), ("x-dead-letter-routing-key", FieldValue::text(key))]
}

fn deaths(headers: &FieldTable) -> Vec<FieldTable> {
    let Some(FieldValue::Array(deaths)) = headers.get("x-death") else { panic!("{headers:?}") };
    deaths
        .iter()
        .map(|death| match death {
            FieldValue::Table(table) => table.clone(),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn field(table: &FieldTable, key: &str) -> String {
    table.get(key).and_then(FieldValue::as_text).unwrap_or_default().to_owned()
}

fn expiring_after(milliseconds: &str) -> Properties<'_> {
    Properties::default().with_expiration(milliseconds)
}

#[test]
fn a_rejected_message_is_dead_lettered_with_its_x_death_header() {
    let mut world = world();
    let queue = world.queue_with("q", &dead_letter_to("dead"));
    let dead = world.queue("dead");
    world.bind("q", "amq.direct", "k");
    let properties = Properties::default().with_expiration("60000").with_message_id("id".into());
    world.try_publish("amq.direct", "k", "m", properties).unwrap();
    queue.reject(vec![world.get(&queue)], Returned::Failed, world.now);
    assert_eq!(queue.unacked_count(), 0);
    let letter = world.get(&dead);
    assert_eq!((text(&letter), letter.redelivered()), ("m".into(), false));
    assert_eq!((letter.message().exchange(), letter.message().routing_key()), ("", "dead"));
    let properties = Properties::decode(letter.message().properties()).unwrap();
    assert_eq!((properties.expiration, properties.message_id), (None, Some("id".into())));
    let headers = headers_of(&letter);
    let names: Vec<&str> = headers.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"]);
    let death = &deaths(&headers)[0];
    let fields: Vec<&str> = death.iter().map(|(name, _)| name).collect();
    let expected = ["count", "reason", "queue", "time", "exchange", "routing-keys", "original-expiration"];
    assert_eq!(fields, expected);
    assert_eq!((field(death, "reason"), field(death, "queue")), ("rejected".into(), "q".into()));
    assert_eq!(
        (field(death, "exchange"), field(death, "original-expiration")),
        ("amq.direct".into(), "60000".into())
    );
    assert_eq!(death.get("time"), Some(&FieldValue::Timestamp(world.now.seconds())));
    assert_eq!(death.get("routing-keys"), Some(&FieldValue::Array(vec![FieldValue::text("k")])));
}

#[test]
fn the_time_of_a_death_is_that_of_the_wall_clock() {
    static BEHIND: WallOffset = WallOffset::new();
    let mut world = world_of(BrokerConfig { wall: &BEHIND, ..BrokerConfig::default() });
    let [exchange, key] = dead_letter_to("dead");
    let brief = world.queue_with("brief", &[exchange, key, ("x-message-ttl", FieldValue::I32(10))]);
    let dead = world.queue("dead");
    // The wall clock is set two hours ahead while the message waits, which does not affect its expiry.
    world.publish("", "brief", "m");
    BEHIND.set(-7_200_000);
    world.wait(9);
    assert_eq!((brief.message_count(), dead.message_count()), (1, 0));
    world.wait(1);
    let headers = headers_of(&world.get(&dead));
    let expected = FieldValue::Timestamp(world.now.seconds() + 7_200);
    assert_eq!(deaths(&headers)[0].get("time"), Some(&expected));
}

#[test]
fn a_second_death_counts_up_and_comes_first() {
    let mut world = world();
    let one = world.queue_with("one", &dead_letter_to("two"));
    let two = world.queue_with("two", &dead_letter_to("one"));
    world.publish("", "one", "m");
    for _ in 0..2 {
        one.reject(vec![world.get(&one)], Returned::Failed, world.now);
        two.reject(vec![world.get(&two)], Returned::Failed, world.now);
    }
    let deaths = deaths(&headers_of(&world.get(&one)));
    let summary: Vec<_> = deaths
        .iter()
        .map(|death| (field(death, "queue"), death.get("count").unwrap().as_integer()))
        .collect();
    assert_eq!(summary, [("two".into(), Some(2)), ("one".into(), Some(2))]);
}

/// The queue and count, if any, of each death in the header after one rejection from queue `one`, if the
/// publisher had sent the deaths in `sent`.
fn deaths_after(sent: &[(&str, Option<i64>)]) -> Vec<(String, Option<i64>)> {
    let mut world = world();
    let one = world.queue_with("one", &dead_letter_to("two"));
    let two = world.queue("two");
    let old = sent.iter().map(|(queue, count)| {
        let mut death: FieldTable =
            [("queue", FieldValue::text(*queue)), ("reason", FieldValue::text("rejected"))]
                .into_iter()
                .collect();
        if let Some(count) = count {
            death.insert("count", FieldValue::I64(*count));
        }
        FieldValue::Table(death)
    });
    let headers = table(&[("x-death", FieldValue::Array(old.collect()))]);
    let properties = Properties::default().with_headers(raw(&headers));
    world.try_publish("", "one", "m", properties).unwrap();
    one.reject(vec![world.get(&one)], Returned::Failed, world.now);
    let deaths = deaths(&headers_of(&world.get(&two)));
    let count = |death: &FieldTable| death.get("count").and_then(FieldValue::as_integer);
    deaths.iter().map(|death| (field(death, "queue"), count(death))).collect()
}

#[test]
fn deaths_of_the_old_form_are_merged_and_counted() {
    let expected = |deaths: &[(&str, Option<i64>)]| -> Vec<(String, Option<i64>)> {
        deaths.iter().map(|(queue, count)| ((*queue).to_owned(), *count)).collect()
    };
    // The counts of RabbitMQ 3.10.8.
    for (sent, left) in [
        (&[("one", None), ("one", None)][..], &[("one", Some(3))][..]),
        (
            &[("one", None), ("x", None), ("one", None), ("x", None), ("y", None)],
            &[("one", Some(3)), ("x", Some(2)), ("y", Some(1))],
        ),
        (&[("one", Some(3)), ("one", None), ("one", Some(5))], &[("one", Some(4))]),
        (&[("one", None), ("one", Some(5)), ("one", None)], &[("one", Some(4))]),
        (&[("x", Some(7)), ("x", None)], &[("one", Some(1)), ("x", Some(7))]),
        (&[("one", None)], &[("one", Some(1))]),
        (&[("x", None)], &[("one", Some(1)), ("x", None)]),
    ] {
        assert_eq!(deaths_after(sent), expected(left), "{sent:?}");
    }
}

#[test]
fn very_many_deaths_are_merged_at_the_cost_of_their_number() {
    // If each death required a search through all, this would take many minutes.
    let names: Vec<String> = (0..50_000).map(|number| number.to_string()).collect();
    let sent: Vec<_> = names.iter().map(|name| (&**name, None)).collect();
    assert_eq!(deaths_after(&sent).len(), names.len() + 1);
}

#[test]
fn dropping_from_a_full_queue_and_expiring_dead_letter_too() {
    let mut world = world();
    let [exchange, key] = dead_letter_to("dead");
    let dead = world.queue("dead");
    world.queue_with("short", &[exchange.clone(), key.clone(), ("x-max-length", FieldValue::I32(1))]);
    world.publish_all("short", &["1", "2"]);
    let letter = world.get(&dead);
    assert_eq!(
        (text(&letter), field(&headers_of(&letter), "x-first-death-reason")),
        ("1".into(), "maxlen".into())
    );
    world.queue_with("brief", &[exchange, key, ("x-message-ttl", FieldValue::I32(10))]);
    world.publish_all("brief", &["3"]);
    world.wait(10);
    let letter = world.get(&dead);
    assert_eq!(
        (text(&letter), field(&headers_of(&letter), "x-first-death-reason")),
        ("3".into(), "expired".into())
    );
}

#[test]
fn a_refused_message_is_dead_lettered_if_asked_for() {
    let mut world = world();
    let [exchange, key] = dead_letter_to("dead");
    let dead = world.queue("dead");
    let overflow = ("x-overflow", FieldValue::text("reject-publish-dlx"));
    world.queue_with("q", &[exchange, key, overflow, ("x-max-length", FieldValue::I32(1))]);
    world.publish_all("q", &["1", "2"]);
    assert_eq!(world.drain(&dead), ["2"]);
}

#[test]
fn dead_letters_may_cycle_only_if_clients_reject_them() {
    let mut world = world();
    let [exchange, to_wait] = dead_letter_to("wait");
    let [_, to_work] = dead_letter_to("work");
    let ttl = ("x-message-ttl", FieldValue::I32(10));
    let work = world.queue_with("work", &[exchange.clone(), to_wait]);
    let wait = world.queue_with("wait", &[exchange.clone(), to_work, ttl.clone()]);
    world.publish("", "work", "m");
    for _ in 0..3 {
        work.reject(vec![world.get(&work)], Returned::Failed, world.now);
        assert_eq!(wait.message_count(), 1);
        world.wait(10);
    }
    assert_eq!(work.message_count(), 1, "the cycle includes a rejection");
    let alone = world.queue_with("alone", &[exchange, ttl]);
    world.publish("", "alone", "m");
    alone.reject(vec![world.get(&alone)], Returned::Failed, world.now);
    assert_eq!(alone.message_count(), 1, "rejected: back to where it came from");
    world.wait(10);
    assert_eq!(alone.message_count(), 0, "expired: a cycle without a rejection ends");
}

#[test]
fn without_a_dead_letter_routing_key_a_letter_keeps_its_keys() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-dead-letter-exchange", FieldValue::text("amq.topic"))]);
    for name in ["dead", "copied", "blind"] {
        world.queue(name);
    }
    for (name, key) in [("dead", "q"), ("copied", "cc"), ("blind", "bcc")] {
        world.bind(name, "amq.topic", key);
    }
    let keys = |key: &str| FieldValue::Array(vec![FieldValue::text(key)]);
    let headers = table(&[("CC", keys("cc")), ("BCC", keys("bcc"))]);
    world.try_publish("", "q", "m", Properties::default().with_headers(raw(&headers))).unwrap();
    queue.reject(vec![world.get(&queue)], Returned::Failed, world.now);
    for name in ["dead", "copied", "blind"] {
        let letters = world.vhost.queue(ME, name).unwrap();
        assert_eq!(world.drain(&letters), ["m"], "{name}");
    }
}

#[test]
fn messages_are_dropped_without_a_dead_letter_exchange_or_with_a_missing_one() {
    let mut world = world();
    let queue = world.queue_with("q", &[("x-dead-letter-exchange", FieldValue::text("missing"))]);
    world.publish("", "q", "m");
    queue.reject(vec![world.get(&queue)], Returned::Failed, world.now);
    assert_eq!(queue.message_count(), 0);
}

#[test]
fn a_queue_that_expires_or_is_deleted_takes_its_messages_along() {
    let mut world = world();
    let [exchange, key] = dead_letter_to("dead");
    let dead = world.queue("dead");
    world.queue_with("q", &[exchange, key, ("x-expires", FieldValue::I32(10))]);
    world.publish("", "q", "m");
    world.wait(10);
    assert!(world.vhost.queue(ME, "q").is_err());
    assert_eq!(dead.message_count(), 0);
}

#[test]
fn dead_lettering_among_full_queues_ends() {
    let mut world = world();
    let full =
        [("x-max-length", FieldValue::I32(0)), ("x-dead-letter-exchange", FieldValue::text("amq.fanout"))];
    for n in 0..12 {
        let name = format!("q{n}");
        world.queue_with(&name, &full);
        world.bind(&name, "amq.fanout", "");
    }
    world.publish("amq.fanout", "", "m");
    assert!(world.broker.metrics().dead_letters_dropped.get() > 0);
}

#[test]
fn a_queue_that_gets_a_message_and_its_dead_letter_has_the_message_first() {
    let mut world = world();
    let both = world.queue("both");
    let arguments = [&dead_letter_to("both")[..], &[("x-message-ttl", FieldValue::I32(0))]].concat();
    for (queue, arguments) in [("a", &arguments[..]), ("z", &arguments[..])] {
        world.queue_with(queue, arguments);
        world.bind(queue, "amq.fanout", "");
    }
    world.bind("both", "amq.fanout", "");
    world.publish("amq.fanout", "", "m");
    let exchange = |delivery: broker::Delivery| delivery.message().exchange().to_owned();
    let order: Vec<String> = (0..3).map(|_| exchange(world.get(&both))).collect();
    assert_eq!(order, ["amq.fanout", "", ""]);
}

/// A dead letter may cause at most a thousand others, because full queues may dead-letter in cycles. Messages that were due
/// before do not count.
#[test]
fn expired_messages_survive_dead_letters_that_arrive_before_they_leave() {
    let mut world = world();
    let retry = world.queue_with("retry", &dead_letter_to("done"));
    let work = world.queue_with("work", &dead_letter_to("retry"));
    let done = world.queue("done");
    world.try_publish("", "retry", "head", expiring_after("100")).unwrap();
    for _ in 0..3_000 {
        world.try_publish("", "retry", "m", expiring_after("10")).unwrap();
    }
    world.publish_all("work", &["letter", "letter"]);
    world.now = world.now.after(100);
    for _ in 0..2 {
        work.reject(vec![world.get(&work)], Returned::Failed, world.now);
    }
    world.wait(0);
    assert_eq!((work.message_count(), retry.message_count(), done.message_count()), (0, 2, 3_001));
}

#[test]
fn chains_of_queues_lose_nothing_when_all_of_their_messages_have_expired() {
    let mut world = world();
    let ttl = ("x-message-ttl", FieldValue::I32(10));
    let with_ttl = |to: &str| dead_letter_to(to).into_iter().chain([ttl.clone()]).collect::<Vec<_>>();
    let chain =
        [("a", "b"), ("b", "c"), ("c", "done")].map(|(name, to)| world.queue_with(name, &with_ttl(to)));
    let done = world.queue("done");
    for name in ["a", "b", "c"] {
        (0..3_000).for_each(|_| world.publish_all(name, &["m"]));
    }
    (0..4).for_each(|_| world.wait(10));
    assert_eq!(chain.map(|queue| queue.message_count()), [0; 3]);
    assert_eq!(done.message_count(), 9_000);
}

/// RabbitMQ has dropped the expired messages by then.
#[test]
fn a_dead_letter_takes_the_place_of_expired_messages_in_a_full_queue() {
    let mut world = world();
    let full = [("x-max-length", FieldValue::I32(10)), ("x-overflow", FieldValue::text("reject-publish"))];
    let full = world.queue_with("full", &full);
    let work = world.queue_with("work", &dead_letter_to("full"));
    for _ in 0..10 {
        world.try_publish("", "full", "m", expiring_after("100")).unwrap();
    }
    world.publish_all("work", &["letter"]);
    world.now = world.now.after(100);
    work.reject(vec![world.get(&work)], Returned::Failed, world.now);
    assert_eq!((work.message_count(), full.message_count()), (0, 1));
    assert_eq!(text(&world.get(&full)), "letter");
}

/// Otherwise other publishers' confirms would wait until everything expired is dead-lettered.
#[test]
fn expired_messages_wait_for_store_capacity_to_be_dead_lettered() {
    const MB: usize = 1_000_000;
    let mut disk_world = disk_world(41);
    let [exchange, key] = dead_letter_to("dead");
    let brief =
        disk_world.world.queue_with("brief", &[exchange, key, ("x-message-ttl", FieldValue::I32(10))]);
    let forgetful = disk_world.world.queue_with("forgetful", &[("x-message-ttl", FieldValue::I32(10))]);
    let dead = disk_world.durable("dead", &[]);
    disk_world.publish("", "forgetful", "m");
    let body = "x".repeat(MB);
    (0..150).for_each(|_| drop(disk_world.publish("", "brief", &body)));
    disk_world.world.wait(10);
    let sent = dead.message_count();
    assert!((60..=80).contains(&sent), "{sent} MB, of which the store takes 64 MiB at a time");
    assert_eq!(brief.message_count() + sent, 150);
    assert_eq!(forgetful.message_count(), 0, "what is only dropped does not wait");
    assert_eq!(disk_world.world.broker.next_deadline(), None);
    let woken = disk_world.timer.times();
    disk_world.sync();
    assert!(disk_world.timer.times() > woken);
    while brief.message_count() > 0 {
        disk_world.world.wait(0);
        disk_world.sync();
    }
    assert_eq!(dead.message_count(), 150);
}

/// Operators may free space by a policy without a dead-letter exchange.
#[test]
fn messages_that_are_only_dropped_need_no_store_capacity() {
    let mut disk_world = disk_world(42);
    let long = disk_world.durable("long", &[]);
    let body = "x".repeat(100_000);
    while disk_world.world.vhost.has_capacity() {
        disk_world.publish("", "long", &body);
    }
    (0..600).for_each(|_| drop(disk_world.publish("", "long", "small")));
    let definition = serde_json::from_str(r#"{"max-length": 1}"#).unwrap();
    let definition = PolicyDefinition::parse(&definition, Compatibility::V3_10).unwrap();
    let pattern = Pattern::new("^long$").unwrap();
    let policy = Policy { name: "p".into(), pattern, priority: 0, apply_to: ApplyTo::All, definition };
    disk_world.world.vhost.set_policy(policy, disk_world.world.now);
    assert_eq!(long.message_count(), 1);
}

#[test]
fn a_get_behind_very_many_dead_letters_waits_for_them() {
    let mut world = world();
    let [exchange, key] = dead_letter_to("dead");
    let brief = world.queue_with("brief", &[exchange, key, ("x-message-ttl", FieldValue::I32(10))]);
    let dead = world.queue("dead");
    (0..3_000).for_each(|_| world.publish_all("brief", &["old"]));
    world.now = world.now.after(10);
    let counter = Arc::<WakeCounter>::default();
    let waiter: Arc<dyn Waiter> = Arc::<WakeCounter>::clone(&counter);
    for _ in 0..2 {
        assert!(matches!(brief.fetch(true, world.now, &waiter), Fetched::Later));
    }
    assert!(dead.message_count() < 3_000 && counter.times() == 0);
    world.wait(0);
    assert_eq!((dead.message_count(), counter.times()), (3_000, 1));
    assert!(matches!(brief.fetch(true, world.now, &waiter), Fetched::Empty));
}

/// Publishes a message; returns whether all queues have it.
fn publish_to(publisher: &mut Publisher, exchange: &str, routing_key: &str, body: &str) -> bool {
    let (properties, body) = (amqp::properties::NO_PROPERTIES, Body::Copied(body.as_bytes()));
    publisher.publish(Publish { exchange, routing_key, properties, body }, NOW).unwrap();
    !publisher.flush(NOW).unfinished
}

const NOW: Timestamp = Timestamp(1_000_000);

/// The publisher sends its dead letters in its next turn, once the other queue has its message. No thread may block until then.
#[test]
fn a_publisher_whose_turn_ends_between_two_queues_does_not_block_others() {
    let World { broker, vhost, publisher: mut slow, .. } = world();
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let mut world = World { publisher: vhost.publisher(&guest), broker, vhost, now: NOW };
    for (name, dead) in [("a", "dead.a"), ("b", "dead.b")] {
        world.queue(dead);
        let [exchange, key] = dead_letter_to(dead);
        world.queue_with(name, &[exchange, key, ("x-max-length", FieldValue::I32(1))]);
        world.bind(name, "amq.fanout", "");
    }
    assert!(publish_to(&mut slow, "amq.fanout", "", "0"));
    let turn = Turn::begin();
    work::charge(work::TURN, 1);
    assert!(!publish_to(&mut slow, "amq.fanout", "", "1"), "one queue has it");
    drop(turn);
    // More than may wait for the thread that has to send them.
    const COUNT: u32 = 5_000;
    let (done, is_done) = mpsc::sync_channel(4);
    let mut fast = world.vhost.publisher(&guest);
    thread::spawn(move || {
        for body in 2..COUNT {
            for queue in ["a", "b"] {
                assert!(publish_to(&mut fast, "", queue, &body.to_string()));
            }
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_mins(1)).expect("the other publisher waits for the slow one");
    assert!(!slow.flush(NOW).unfinished);
    world.wait(0);
    let sent = |name: &str| world.drain(&world.queue(name));
    let [a, b] = ["dead.a", "dead.b"].map(sent);
    let all: Vec<_> = (0..COUNT - 1).map(|body| body.to_string()).collect();
    // The second queue has the slow publisher's message last.
    let mut late = all.clone();
    late.retain(|body| body != "1");
    late.push((COUNT - 1).to_string());
    assert!((a == all && b == late) || (b == all && a == late), "{} and {} sent", a.len(), b.len());
}

/// Each queue's dead letters are routed to the others, so threads that send one queue's letters also have to send those
/// of another.
#[test]
fn queues_that_dead_letter_to_each_other_do_not_deadlock() {
    let mut world = world();
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    const QUEUES: [&str; 3] = ["a", "b", "c"];
    let queues = QUEUES.map(|name| {
        let limits = [
            ("x-max-length", FieldValue::I32(1)),
            ("x-dead-letter-exchange", FieldValue::text("amq.fanout")),
        ];
        let queue = world.queue_with(name, &limits);
        world.bind(name, "amq.fanout", "");
        queue
    });
    let (done, is_done) = mpsc::sync_channel(4);
    for at in 0..4 {
        let (mut publisher, done) = (world.vhost.publisher(&guest), done.clone());
        thread::spawn(move || {
            for body in 0..500 {
                publish_to(&mut publisher, "", QUEUES[(at + body) % 3], "m");
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..4 {
        is_done.recv_timeout(Duration::from_mins(2)).expect("publishers wait for each other");
    }
    world.wait(0);
    assert_eq!(queues.map(|queue| queue.message_count()), [1, 1, 1]);
}

#[test]
fn letters_that_should_arrive_at_least_once_are_counted_if_they_are_lost() {
    let mut world = world();
    world.exchange("unbound", "fanout");
    let full = [("x-max-length", FieldValue::I32(1)), ("x-overflow", FieldValue::text("reject-publish"))];
    let full = world.queue_with("full", &full);
    let strategy = ("x-dead-letter-strategy", FieldValue::text("at-least-once"));
    let refusing = ("x-overflow", FieldValue::text("reject-publish"));
    let [to_nobody, to_full] = [("unbound", "k"), ("", "full")].map(|(exchange, key)| {
        [
            ("x-queue-type", FieldValue::text("quorum")),
            ("x-dead-letter-exchange", FieldValue::text(exchange)),
            ("x-dead-letter-routing-key", FieldValue::text(key)),
        ]
    });
    let mut lost_by = |name: &str, arguments: Vec<(&str, FieldValue)>| {
        let arguments = table(&arguments);
        let declare = QueueDeclare { name, durable: true, arguments: raw(&arguments), ..Default::default() };
        let queue = world.declare(declare).unwrap().queue;
        world.publish_all(name, &["1", "2"]);
        let before = world.broker.metrics().dead_letters_lost.get();
        queue.reject(vec![world.get(&queue), world.get(&queue)], Returned::Failed, world.now);
        world.broker.metrics().dead_letters_lost.get() - before
    };
    assert_eq!(lost_by("a", [&to_nobody[..], &[strategy.clone(), refusing.clone()]].concat()), 2);
    assert_eq!(
        lost_by("b", [&to_full[..], &[strategy.clone(), refusing.clone()]].concat()),
        1,
        "one arrived"
    );
    // Other strategies do not count lost letters.
    assert_eq!(lost_by("c", [&to_full[..], &[refusing]].concat()), 0);
    assert_eq!(lost_by("d", [&to_full[..], &[strategy]].concat()), 0);
    assert_eq!(full.message_count(), 1);
}
