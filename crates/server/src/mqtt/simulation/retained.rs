//! Retained messages of clients that publish to a topic concurrently, and at the limit of retained bytes.

use bytes::Bytes;
use sync::work::{self, TURN};

use super::*;
use crate::mqtt::retained::{MAX_BYTES, RetainedMessage};

const ONLINE: PublishPacket<'_> = retained(QoS::AtMostOnce, 0);

const fn retained(qos: QoS, packet_id: u16) -> PublishPacket<'static> {
    PublishPacket {
        dup: false,
        qos,
        retain: true,
        topic: "t",
        packet_id,
        properties: PacketProperties::NONE,
        payload: Payload::new(b"x"),
    }
}

/// A client with a retained will that is larger than the topic's present message.
fn mortal(world: &mut World) -> Client {
    let mut client = world.client(MqttVersion::V311);
    let properties = PacketProperties::NONE;
    let will = ::mqtt::packet::Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        properties,
        topic: "t",
        payload: &[0; 2048],
    };
    let connect = ConnectPacket { will: Some(will), ..ConnectPacket::new(MqttVersion::V311, "mortal") };
    client.send(world, Packet::Connect(Box::new(connect)));
    client
}

fn reader(world: &mut World, name: &str) -> Client {
    let mut reader = world.connected(MqttVersion::V311, name, 0);
    reader.subscribe_at(world, "t", QoS::AtLeastOnce);
    reader
}

/// Runs a publish during which its connection's turn ends, and then publishes to the same topic.
fn check_last_delivered_is_retained(publish: impl FnOnce(&mut World)) {
    let mut world = World::new();
    let readers = ["one", "another"].map(|name| reader(&mut world, name));
    let mut first = world.connected(MqttVersion::V311, "first", 0);
    let mut bytes = Vec::new();
    Packet::Publish(ONLINE).encode(first.version, &mut bytes);
    let turn = work::Turn::begin();
    work::charge(TURN - 100, 1);
    assert_eq!(first.connection.handle_input(&bytes, first.now), bytes.len());
    assert!(work::is_turn_over());
    drop(turn);
    publish(&mut world);
    first.received(&mut world);
    for mut reader in readers {
        assert_eq!(reader.received(&mut world), ["publish t AtMostOnce 0", "publish t AtLeastOnce 1"]);
    }
    let mut late = world.connected(MqttVersion::V311, "late", 0);
    let answers = late.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    assert_eq!(answers, ["suback Granted QoS 1", "publish t AtLeastOnce 1 retain"]);
}

#[test]
fn the_message_that_subscribers_get_last_is_the_retained_one() {
    check_last_delivered_is_retained(|world| {
        let mut second = world.connected(MqttVersion::V311, "second", 0);
        let answers = second.send(world, Packet::Publish(retained(QoS::AtLeastOnce, 1)));
        assert_eq!(answers, ["puback 1 success"]);
    });
    check_last_delivered_is_retained(|world| drop(mortal(world)));
}

#[test]
fn past_the_limit_messages_are_refused_and_wills_are_sent_but_not_retained() {
    let mut world = World::new();
    let mut reader = reader(&mut world, "reader");
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    writer.send(&mut world, Packet::Publish(ONLINE));
    assert_eq!(reader.received(&mut world), ["publish t AtMostOnce 0"]);
    let mortal = mortal(&mut world);
    let vhost = world.hub.broker().vhost("/").unwrap();
    let large = RetainedMessage {
        topic: "large".into(),
        qos: QoS::AtMostOnce,
        properties: PropertyList::new(),
        payload: Bytes::from(vec![0; MAX_BYTES - 2048]),
        expires: None,
    };
    world.hub.retained(&vhost).set(large, broker::Timestamp(0)).unwrap();
    let offline = PublishPacket { payload: Payload::new(&[0; 2048]), ..retained(QoS::AtLeastOnce, 1) };
    assert_eq!(writer.send(&mut world, Packet::Publish(offline)), ["puback 1 quota exceeded"]);
    assert_eq!(reader.received(&mut world), [""; 0], "it was not published");
    assert!(world.hub.retained(&vhost).get("t", broker::Timestamp(0)).is_some());
    drop(mortal);
    assert_eq!(reader.received(&mut world), ["publish t AtLeastOnce 1"]);
    assert!(world.hub.retained(&vhost).get("t", broker::Timestamp(0)).is_none());
}
