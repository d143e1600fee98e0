//! Queues of clients without a session: RabbitMQ's plugin created them, and a migration brought them here.

use ::mqtt::packet::{Filters, Unsubscribe};
use amqp::{FieldTable, FieldValue, RawTable};
use broker::{Binding, Body, Permissions, Publish, Queue, QueueDeclare, SessionId, Timestamp, VirtualHost};

use super::*;

const OTHER: SessionId = SessionId(1_000_000);
const QUEUE: &str = "mqtt-subscription-meqos1";

fn vhost(world: &World) -> Arc<VirtualHost> {
    world.hub.broker().vhost("/").unwrap()
}

fn declare(world: &World) -> Arc<Queue> {
    let declare = QueueDeclare { name: QUEUE, durable: true, ..QueueDeclare::default() };
    vhost(world).declare_queue(OTHER, &declare, Timestamp::default()).unwrap().queue
}

fn bind(world: &World, routing_key: &str, arguments: &FieldTable) {
    let arguments = arguments.encode();
    let arguments = RawTable::check(&arguments).unwrap();
    let binding = Binding { source: "amq.topic", destination: QUEUE, routing_key, arguments };
    vhost(world).bind_queue(OTHER, &binding).unwrap();
}

/// Publishes a persistent message as an AMQP client does.
fn publish_over_amqp(world: &World, routing_key: &str) {
    let broker = world.hub.broker();
    let identity = broker.authenticate_external("guest", true).unwrap();
    let mut publisher = vhost(world).publisher(&identity);
    // The encoded properties: delivery_mode alone.
    let properties = [0x10, 0, 2];
    let publish =
        Publish { exchange: "amq.topic", routing_key, properties: &properties, body: Body::Copied(b"x") };
    publisher.publish(publish, Timestamp::default()).unwrap();
    publisher.flush_all(Timestamp::default());
}

#[test]
fn a_queue_with_its_bindings_is_the_session_of_a_client_that_returns() {
    let mut world = World::new();
    let queue = declare(&world);
    bind(&world, "a.*", &FieldTable::new());
    let options: FieldTable = [("x-mqtt-subscription-opts", FieldValue::text("some"))].into_iter().collect();
    bind(&world, "b/c", &options);
    for key in ["a.1", "b/c"] {
        publish_over_amqp(&world, key);
    }
    assert_eq!(queue.message_count(), 2);
    let (mut client, answers) = resumed(&mut world, "me", 60);
    let expected = ["connack Success present", "publish a/1 AtLeastOnce 1", "publish b.c AtLeastOnce 2"];
    assert_eq!(answers, expected);
    let (mut buffer, packet_id) = (Vec::new(), 1);
    let filters = Filters::write(&mut buffer, ["a/+", "b.c"]);
    let packet = Unsubscribe { packet_id, properties: PacketProperties::NONE, filters };
    let answers = client.send(&mut world, Packet::Unsubscribe(packet));
    assert_eq!(answers, ["unsuback Success,Success"]);
    assert_eq!(vhost(&world).bindings_to_queue(QUEUE).unwrap().len(), 0);
    drop(client);
    let (_client, answers) = resumed(&mut world, "me", 60);
    assert_eq!(answers.len(), 3, "{answers:?}");
}

#[test]
fn a_message_by_a_binding_of_somebody_else_reaches_the_client() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 60);
    client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    bind(&world, "other", &FieldTable::new());
    publish_over_amqp(&world, "other");
    assert_eq!(client.received(&mut world), ["publish other AtLeastOnce 1"]);
    // Messages that match its subscription in AMQP only are not delivered.
    client.subscribe_at(&mut world, "x/*", QoS::AtLeastOnce);
    publish_over_amqp(&world, "x.y");
    publish_over_amqp(&world, "t");
    assert_eq!(client.received(&mut world), ["publish t AtLeastOnce 2"]);
}

#[test]
fn queues_without_a_session_are_kept_from_users_without_permission_for_them() {
    let mut world = World::new();
    let queue = declare(&world);
    bind(&world, "t", &FieldTable::new());
    publish_over_amqp(&world, "t");
    let permit = |world: &World, configure: &str| {
        let all = Permissions { configure: configure.into(), ..Permissions::all() };
        vhost(world).set_permissions("guest", Some(&all)).unwrap();
    };
    permit(&world, "^own-");
    for (clean_start, version) in [
        (true, MqttVersion::V5),
        (false, MqttVersion::V5),
        (true, MqttVersion::V311),
        (false, MqttVersion::V311),
    ] {
        let mut client = world.client(version);
        let connect = ConnectPacket { clean_start, ..ConnectPacket::new(version, "me") };
        let answers = client.send(&mut world, Packet::Connect(Box::new(connect)));
        let refused = if version.is_5() { "Not authorized" } else { "Server unavailable" };
        assert_eq!(answers, [format!("connack {refused}")]);
        drop(client);
        assert_eq!((vhost(&world).all_queues().len(), queue.message_count()), (1, 1));
    }
    permit(&world, ".*");
    let mut client = world.connected(MqttVersion::V5, "me", 0);
    assert_eq!(vhost(&world).all_queues().len(), 0, "a clean start");
    // A queue that somebody else declares while the client is connected is not a part of its session.
    let queue = declare(&world);
    bind(&world, "t", &FieldTable::new());
    publish_over_amqp(&world, "t");
    permit(&world, "^own-");
    assert_eq!(client.subscribe_at(&mut world, "u", QoS::AtLeastOnce), ["suback Not authorized"]);
    drop(client);
    assert_eq!((vhost(&world).all_queues().len(), queue.message_count()), (1, 1));
}
