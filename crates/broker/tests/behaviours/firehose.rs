//! Publishes and deliveries are reported to the queues bound to `amq.rabbitmq.trace`.
//! `tests/blackbox/firehose.py` compares the reports with those of RabbitMQ.

use std::sync::Arc;

use amqp::{FieldValue, Properties};
use broker::*;
use sync::work::{TURN, Turn};

use crate::world::{World, headers_of, text, world};

const TRACE: &str = "amq.rabbitmq.trace";

struct Named;

impl TracedConnection for Named {
    fn name(&self) -> String {
        "here -> there".to_owned()
    }
}

/// A world that is traced, and the queue that receives the traces.
fn traced() -> (World, Arc<Queue>) {
    let mut world = world();
    let hears = world.queue("hears");
    world.bind("hears", TRACE, "#");
    world.publisher.set_connection(Arc::new(Named), 5);
    world.vhost.set_traced(true);
    (world, hears)
}

/// Routing keys and bodies of the traces received.
fn heard(world: &World, hears: &Queue) -> Vec<(String, String)> {
    let got = std::iter::from_fn(|| hears.get(true, world.now));
    got.map(|got| (got.delivery.message().routing_key().to_owned(), text(&got.delivery))).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, body)| ((*key).to_owned(), (*body).to_owned())).collect()
}

/// A tracer of deliveries to a client.
fn tracer(world: &World) -> Tracer {
    let guest = world.broker.authenticate("guest", b"guest", true).unwrap();
    world.vhost.tracer(&guest, Some(&Named))
}

#[test]
fn a_traced_publish_shows_its_exchange_keys_and_queues() {
    let (mut world, hears) = traced();
    for queue in ["b", "a"] {
        world.queue(queue);
        world.bind(queue, "amq.direct", "k");
    }
    let headers = [("BCC", FieldValue::Array(vec![FieldValue::text("blind")]))];
    let headers = crate::world::table(&headers);
    let properties = Properties::default().with_headers(crate::world::raw(&headers));
    assert!(world.try_publish("amq.direct", "k", "body", properties).unwrap());
    let reported = world.get(&hears);
    assert_eq!(
        (reported.message().routing_key(), text(&reported)),
        ("publish.amq.direct", "body".to_owned())
    );
    let reported = headers_of(&reported);
    let texts =
        |texts: &[&str]| FieldValue::Array(texts.iter().map(|text| FieldValue::text(*text)).collect());
    for (name, value) in [
        ("exchange_name", FieldValue::text("amq.direct")),
        ("routing_keys", texts(&["k", "blind"])),
        ("vhost", FieldValue::text("/")),
        ("connection", FieldValue::text("here -> there")),
        ("channel", FieldValue::I32(5)),
        ("user", FieldValue::text("guest")),
        ("routed_queues", texts(&["a", "b"])),
    ] {
        assert_eq!(reported.get(name), Some(&value), "{name}");
    }
}

#[test]
fn a_message_is_traced_before_its_queues_receive_it() {
    let (mut world, hears) = traced();
    // The queue receives both messages, so their order is visible.
    world.bind("hears", "amq.fanout", "");
    world.publish("amq.fanout", "", "body");
    assert_eq!(heard(&world, &hears), pairs(&[("publish.amq.fanout", "body"), ("", "body")]));
}

#[test]
fn nothing_is_traced_while_tracing_is_off() {
    let (mut world, hears) = traced();
    world.vhost.set_traced(false);
    world.publish("amq.direct", "k", "before");
    world.vhost.set_traced(true);
    world.publish("amq.direct", "k", "while");
    world.vhost.set_traced(false);
    world.publish("amq.direct", "k", "after");
    assert_eq!(heard(&world, &hears), pairs(&[("publish.amq.direct", "while")]));
}

#[test]
fn traces_are_not_traced_again_nor_are_dead_letters_as_published() {
    let (mut world, hears) = traced();
    world.exchange("letters", "fanout");
    let dead = world.queue("dead");
    world.bind("dead", "letters", "");
    let arguments =
        [("x-max-length", FieldValue::I32(1)), ("x-dead-letter-exchange", FieldValue::text("letters"))];
    let full = world.queue_with("full", &arguments);
    world.bind("full", TRACE, "publish.amq.direct");
    world.publish("amq.direct", "k", "1");
    world.publish("amq.direct", "k", "2");
    let expected = pairs(&[("publish.amq.direct", "1"), ("publish.amq.direct", "2")]);
    assert_eq!(heard(&world, &hears), expected);
    assert_eq!((world.drain(&full), world.drain(&dead)), (vec!["2".to_owned()], vec!["1".to_owned()]));
}

#[test]
fn deliveries_are_traced_with_their_queue_unless_they_are_traces() {
    let (mut world, hears) = traced();
    let queue = world.queue("q");
    world.vhost.set_traced(false);
    world.publish("", "q", "body");
    world.vhost.set_traced(true);
    let delivery = world.get(&queue);
    let mut tracer = tracer(&world);
    tracer.delivered(3, &queue, &delivery, true, world.now);
    queue.requeue(vec![delivery], Returned::Failed, world.now);
    tracer.delivered(3, &queue, &world.get(&queue), true, world.now);
    tracer.flush_all(world.now);
    for redelivered in [0, 1] {
        let reported = world.get(&hears);
        assert_eq!((reported.message().routing_key(), text(&reported)), ("deliver.q", "body".to_owned()));
        assert_eq!(headers_of(&reported).get("redelivered"), Some(&FieldValue::I32(redelivered)));
        assert_eq!(headers_of(&reported).get("routed_queues"), None);
        tracer.delivered(3, &hears, &reported, true, world.now);
    }
    tracer.flush_all(world.now);
    assert_eq!(hears.message_count(), 0);
}

#[test]
fn traces_count_neither_as_published_nor_as_routed() {
    let (mut world, hears) = traced();
    world.publish("amq.direct", "nowhere", "body");
    assert_eq!(hears.message_count(), 1);
    let counts = hears.view_counted(world.now).1;
    assert_eq!(counts.map_or(0, |counts| counts.publish.total), 0);
    assert!(world.vhost.exchange_view(TRACE).unwrap().flow(world.now).is_none());
    let metrics = world.broker.metrics();
    assert_eq!((metrics.messages_routed.get(), metrics.messages_unroutable.get()), (0, 1));
}

#[test]
fn a_held_message_is_traced_when_it_is_held() {
    let (mut world, hears) = traced();
    world.queue("q");
    let held = |body| Publish {
        exchange: "",
        routing_key: "q",
        properties: amqp::properties::NO_PROPERTIES,
        body: Body::Copied(body),
    };
    world.publisher.hold(held(b"given up"), world.now).unwrap();
    let committed = world.publisher.hold(held(b"committed"), world.now).unwrap();
    world.publisher.flush(world.now);
    let expected = pairs(&[("publish.", "given up"), ("publish.", "committed")]);
    assert_eq!(heard(&world, &hears), expected);
    let routed = world.publisher.publish_held(held(b"committed"), &committed, world.now);
    assert!(matches!(routed, Ok(Some(true))));
    world.publisher.flush(world.now);
    assert_eq!(heard(&world, &hears), []);
}

#[test]
fn clients_may_not_publish_to_its_exchange_while_it_does() {
    let (mut world, hears) = traced();
    world.publish("amq.direct", "k", "body");
    let refused = world.try_publish(TRACE, "publish.forged", "x", Properties::default());
    assert_eq!(refused.unwrap_err().reply_code().code(), 403);
    assert_eq!(heard(&world, &hears), pairs(&[("publish.amq.direct", "body")]));
}

#[test]
fn a_firehose_with_very_many_queues_is_served_in_turns() {
    const QUEUES: usize = 10_000;
    let (mut world, hears) = traced();
    for number in 0..QUEUES {
        let name = format!("wide.{number}");
        world.queue(&name);
        world.bind(&name, TRACE, "#");
    }
    world.queue("q");
    let publish = Publish {
        exchange: "",
        routing_key: "q",
        properties: amqp::properties::NO_PROPERTIES,
        body: Body::Copied(b"body"),
    };
    let mut turns = 0;
    let turn = Turn::begin();
    assert!(world.publisher.publish(publish, world.now).unwrap());
    let mut unfinished = world.publisher.flush(world.now).unfinished;
    assert!(unfinished && world.vhost.queue(crate::world::ME, "q").unwrap().message_count() == 0);
    drop(turn);
    while unfinished {
        turns += 1;
        let turn = Turn::begin();
        unfinished = world.publisher.flush(world.now).unfinished;
        assert!(turn.spent() <= u64::from(TURN) + 1_000, "{} ns", turn.spent());
    }
    assert!(turns > 3, "{turns}");
    assert_eq!((hears.message_count(), world.drain(&world.queue("q"))), (1, vec!["body".to_owned()]));
}
