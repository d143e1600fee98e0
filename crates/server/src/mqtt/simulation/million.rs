//! A million subscriptions of some thousand sessions in one process: the memory per subscription, and the cost of a
//! message that has one subscriber among them.
//!
//! `make capacity ARGS="--only subscriptions"` runs it in full.

use super::*;
use crate::simulated::resident_bytes;

/// Filters per session.
const EACH: usize = 500;

/// Filters per SUBSCRIBE.
const AT_ONCE: usize = 100;

/// Messages timed at each level.
const MESSAGES: usize = 20_000;

/// Bytes per subscription that docs/benchmarks.md promises, including the session's share and the test's own client.
const ALLOWED_BYTES: u64 = 1024;

#[test]
#[ignore = "a measurement of a minute: make capacity ARGS=\"--only subscriptions\""]
fn a_million_subscriptions_take_less_than_a_kib_each() {
    let count = std::env::var("LEVERET_SUBSCRIPTIONS").map_or(20_000_usize, |count| count.parse().unwrap());
    let mut world = World::new();
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    let mut readers: Vec<Client> = Vec::new();
    // Excludes one-time allocations from the count.
    readers.push(subscriber(&mut world, 0));
    measure(&mut world, &mut writer, &mut readers);
    let before = resident_bytes();
    for part in [100, 10, 1] {
        let begun = Instant::now();
        let (had, wanted) = (readers.len(), (count / part).div_ceil(EACH).max(2));
        while readers.len() < wanted {
            readers.push(subscriber(&mut world, readers.len()));
        }
        let added = (readers.len() - had) * EACH;
        let subscribing = begun.elapsed().as_secs_f64() * 1e6 / added.max(1) as f64;
        let grown = resident_bytes().saturating_sub(before) / ((readers.len() - 1) * EACH) as u64;
        let (sending, arriving) = measure(&mut world, &mut writer, &mut readers);
        println!(
            "{} subscriptions of {} sessions: {grown} bytes each; {subscribing:.2} µs to subscribe; a message is \
             with its queue after {sending:.2} µs, and with its subscriber after {:.2} µs",
            readers.len() * EACH,
            readers.len(),
            sending + arriving
        );
        if part == 1 && count >= 1_000_000 {
            assert!(grown < ALLOWED_BYTES, "{grown} bytes each");
        }
    }
    let (begun, all) = (Instant::now(), readers.len() * EACH);
    drop(readers);
    println!("all sessions ended: {:.2} µs a subscription", begun.elapsed().as_secs_f64() * 1e6 / all as f64);
    assert_eq!(world.hub.broker().metrics().bindings.get(), 0);
}

/// A session with its own filters, half of them without wildcards.
fn subscriber(world: &mut World, number: usize) -> Client {
    let mut client = world.connected(MqttVersion::V5, &format!("device-{number}"), 0);
    for from in (0..EACH).step_by(AT_ONCE) {
        let filters: Vec<String> = (from..from + AT_ONCE).map(|at| filter(number, at)).collect();
        let mut buffer = Vec::new();
        let options = SubscribeOptions::of_qos(QoS::AtMostOnce);
        let requests = filters.iter().map(|filter| SubscribeRequest { filter, options });
        let requests = Requests::write(&mut buffer, requests);
        let packet = Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests };
        let answers = client.send(world, Packet::Subscribe(packet));
        assert!(answers.len() == 1 && answers[0].matches("Success").count() == AT_ONCE, "{answers:?}");
    }
    client
}

fn filter(session: usize, at: usize) -> String {
    match at % 4 {
        0 | 1 => format!("site/{session}/device/{at}/temperature"),
        2 => format!("site/{session}/device/{at}/+/set"),
        _ => format!("site/{session}/device/{at}/log/#"),
    }
}

/// A topic that only this filter matches.
fn topic(session: usize, at: usize) -> String {
    match at % 4 {
        0 | 1 => format!("site/{session}/device/{at}/temperature"),
        2 => format!("site/{session}/device/{at}/valve/set"),
        _ => format!("site/{session}/device/{at}/log/boot/1"),
    }
}

/// Publishes to a sample of the subscriptions, and checks that each message reaches its subscriber. Returns the
/// microseconds until the message is in its queue, and from there until it is written to its subscriber.
fn measure(world: &mut World, writer: &mut Client, readers: &mut [Client]) -> (f64, f64) {
    let (mut sending, mut arriving) = (0.0, 0.0);
    // A step coprime to the number of subscriptions visits all of them out of order.
    let all = readers.len() * EACH;
    for at in (0..MESSAGES).map(|number| number * 7_919_003 % all) {
        let (session, at) = (at / EACH, at % EACH);
        let topic = topic(session, at);
        let mut bytes = Vec::new();
        message(&topic, QoS::AtMostOnce, 0).encode(MqttVersion::V5, &mut bytes);
        let begun = Instant::now();
        writer.connection.handle_input(&bytes, writer.now);
        let published = Instant::now();
        let came = readers[session].look();
        (sending, arriving) =
            (sending + (published - begun).as_secs_f64(), arriving + published.elapsed().as_secs_f64());
        assert_eq!(came, [format!("publish {topic} AtMostOnce 0")]);
    }
    assert!(writer.received(world).is_empty());
    (sending * 1e6 / MESSAGES as f64, arriving * 1e6 / MESSAGES as f64)
}
