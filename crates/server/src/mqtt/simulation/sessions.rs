//! Sessions that change while messages are pending or unacknowledged.

use std::time::Duration;

use super::*;

#[test]
fn acknowledgements_come_in_the_order_of_the_messages_though_one_is_refused() {
    let mut world = World::new();
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    let long = "x".repeat(256);
    let mut bytes = Vec::new();
    for (topic, packet_id) in [("t", 1), (long.as_str(), 2), ("t", 3)] {
        message(topic, QoS::AtLeastOnce, packet_id).encode(MqttVersion::V5, &mut bytes);
    }
    writer.connection.handle_input(&bytes, writer.now);
    let expected = [
        "puback 1 no matching subscribers",
        "puback 2 topic name invalid",
        "puback 3 no matching subscribers",
    ];
    assert_eq!(writer.received(&mut world), expected);
}

#[test]
fn queued_messages_are_not_lost_when_the_subscription_changes_to_qos_0() {
    // More messages than the client's window.
    const MANY: u16 = 30;
    for goes_again in [false, true] {
        let mut world = World::new();
        let (mut reader, _) = resumed(&mut world, "reader", 60);
        reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
        drop(reader);
        let mut writer = world.connected(MqttVersion::V5, "writer", 0);
        for packet_id in 1..=MANY {
            writer.publish(&mut world, "t", QoS::AtLeastOnce, packet_id);
        }
        let (mut reader, mut came) = resumed(&mut world, "reader", 60);
        came.append(&mut reader.subscribe_at(&mut world, "t", QoS::AtMostOnce));
        if goes_again {
            drop(reader);
            (reader, came) = resumed(&mut world, "reader", 60);
        }
        let (mut acknowledged, mut plain) = (0, 0);
        while !came.is_empty() {
            let mut next = Vec::new();
            for packet in &came {
                let parts: Vec<&str> = packet.split(' ').collect();
                match parts[..] {
                    ["publish", "t", "AtLeastOnce", packet_id, ..] => {
                        acknowledged += 1;
                        let packet_id = packet_id.parse().unwrap();
                        next.append(&mut reader.ack(&mut world, AckKind::PubAck, packet_id));
                    }
                    ["publish", "t", "AtMostOnce", ..] => plain += 1,
                    ["connack" | "suback", ..] => {}
                    _ => panic!("{packet}"),
                }
            }
            came = next;
        }
        assert_eq!((acknowledged, plain), (20, MANY - 20), "goes again: {goes_again}");
        let vhost = world.hub.broker().vhost("/").unwrap();
        let queue = vhost.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap();
        assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
    }
}

#[test]
fn a_session_that_is_to_end_with_its_connection_does_not_survive_a_crash() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut client, _) = resumed(&mut world, "me", u32::MAX);
    client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(client);
    let (mut client, answers) = resumed(&mut world, "me", 0);
    assert_eq!(answers, ["connack Success present"]);
    assert!(client.received(&mut world).is_empty());
    std::mem::forget(client);
    let disk = disk.kill();
    drop(world);

    // The session has ended before the first client connects.
    let mut world = World::on(&disk);
    assert_eq!(world.hub.next_deadline(), None);
    let vhost = world.hub.broker().vhost("/").unwrap();
    assert!(vhost.queue(broker::SessionId(0), "mqtt-subscription-meqos1").is_err());
    assert_eq!(resumed(&mut world, "me", 60).1, ["connack Success"]);
}

#[test]
fn packet_ids_received_by_a_session_are_forgotten_with_it() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut client, _) = resumed(&mut world, "me", 60);
    assert_eq!(client.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 no matching subscribers"]);
    drop(client);
    let (mut client, answers) = resumed(&mut world, "me", 0);
    assert_eq!(answers, ["connack Success present"]);
    assert_eq!(client.ack(&mut world, AckKind::PubRel, 5), ["pubcomp 5 success"]);
    drop(client);
    let (client, answers) = resumed(&mut world, "me", 60);
    assert_eq!(answers, ["connack Success"]);
    drop(client);
    world.round();
    let disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V5, "reader", 0);
    reader.subscribe_at(&mut world, "t", QoS::AtMostOnce);
    let (mut client, answers) = resumed(&mut world, "me", 60);
    assert_eq!(answers, ["connack Success present"]);
    assert_eq!(client.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"]);
    assert_eq!(
        reader.received(&mut world),
        ["publish t AtMostOnce 0"],
        "the identifier is free for a new message"
    );
}

#[test]
fn a_sessions_queue_follows_changes_of_its_expiry() {
    const QUEUE: &str = "mqtt-subscription-meqos1";
    let x_expires = |world: &World| {
        let vhost = world.hub.broker().vhost("/").unwrap();
        let queue = vhost.queue(broker::SessionId(0), QUEUE).unwrap();
        let view = queue.own_arguments().get("x-expires").and_then(amqp::FieldValue::as_integer);
        assert_eq!(queue.arguments().expires, view.map(|view| u64::try_from(view).unwrap()));
        view
    };
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut client, _) = resumed(&mut world, "me", 60);
    client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    assert_eq!(x_expires(&world), Some(60_000));
    drop(client);
    for (expiry, expected) in [(90, Some(90_000)), (u32::MAX, None), (30, Some(30_000))] {
        let (client, answers) = resumed(&mut world, "me", expiry);
        assert_eq!((answers[0].as_str(), x_expires(&world)), ("connack Success present", expected));
        drop(client);
    }
    let (mut client, _) = resumed(&mut world, "me", 30);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(40));
    let disconnect = Disconnect { reason: ReasonCode::Success, properties: list.as_properties() };
    client.send(&mut world, Packet::Disconnect(disconnect));
    assert_eq!(x_expires(&world), Some(40_000));
    world.round();
    drop((client, world));
    assert_eq!(x_expires(&World::on(&disk)), Some(40_000), "it is on disk");
}

#[test]
fn an_expired_session_is_not_resumed_even_if_not_yet_removed() {
    let mut world = World::new();
    let (mut client, _) = resumed(&mut world, "me", 60);
    client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(client);
    let mut client = world.client(MqttVersion::V5);
    client.now += Duration::from_secs(61);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V5, "me") };
    assert_eq!(client.send(&mut world, Packet::Connect(Box::new(connect))), ["connack Success"]);
}

#[test]
fn a_will_that_could_not_be_published_is_refused_at_once() {
    let long = "x".repeat(256);
    let too_long = PropertyList::new().with(Property::ContentType(&long));
    for (topic, list, expected) in [
        (long.as_str(), PropertyList::new(), "connack Topic Name invalid"),
        ("t", too_long, "connack Implementation specific error"),
        ("t", PropertyList::new(), "connack Success"),
    ] {
        let mut world = World::new();
        let mut client = world.client(MqttVersion::V5);
        let properties = list.as_properties();
        let will =
            ::mqtt::packet::Will { qos: QoS::AtMostOnce, retain: false, properties, topic, payload: b"gone" };
        let connect = ConnectPacket { will: Some(will), ..ConnectPacket::new(MqttVersion::V5, "x") };
        assert_eq!(client.send(&mut world, Packet::Connect(Box::new(connect))), [expected]);
    }
}

#[tokio::test]
async fn packets_sent_before_a_reconnect_count_even_if_read_late() {
    let mut world = World::new();
    let mut heir = world.connected(MqttVersion::V5, "heir", 0);
    heir.subscribe_at(&mut world, "will", QoS::AtMostOnce);
    let will = ::mqtt::packet::Will {
        qos: QoS::AtMostOnce,
        retain: false,
        properties: PacketProperties::NONE,
        topic: "will",
        payload: b"gone",
    };
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let connect = ConnectPacket {
        clean_start: false,
        will: Some(will),
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "me")
    };
    let mut first = world.client(MqttVersion::V5);
    assert_eq!(first.send(&mut world, Packet::Connect(Box::new(connect))), ["connack Success"]);
    first.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    heir.publish(&mut world, "t", QoS::AtLeastOnce, 1);
    assert_eq!(first.received(&mut world), ["publish t AtLeastOnce 1"]);

    let (near, mut far) = tokio::io::duplex(1024);
    send_last(near, MqttVersion::V5, 1).await;
    let (mut second, answers) = resumed(&mut world, "me", 60);
    assert!(answers.is_empty(), "the first connection has the session: {answers:?}");
    let Client { connection, outbox, .. } = &mut first;
    transport::drive(&mut far, connection, outbox, 1 << 20, Duration::from_secs(5)).await;
    assert_eq!(second.received(&mut world), ["connack Success present"], "and no message again");
    assert_eq!(heir.received(&mut world), [""; 0], "and no will");
}
