//! Retained messages that a new subscription has matched reach the client even if it disconnects, or the server is
//! killed, before it has acknowledged them.

use ::mqtt::packet::{Filters, RetainHandling, Unsubscribe};
use broker::Section;

use super::*;

/// More messages than the client's window.
const MANY: usize = 30;

/// The maximum of messages in flight to a client.
const WINDOW: usize = 20;

fn retain(world: &mut World, topic: &str, qos: QoS, payload: &[u8]) {
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    let message = PublishPacket { retain: true, payload: Payload::new(payload), ..message(topic, qos, 1) };
    assert_eq!(writer.send(world, Packet::Publish(message)).len(), usize::from(qos != QoS::AtMostOnce));
    if qos == QoS::ExactlyOnce {
        writer.ack(world, AckKind::PubRel, 1);
    }
}

fn retain_many(world: &mut World, qos: QoS) {
    for number in 0..MANY {
        retain(world, &format!("r/{number:02}"), qos, b"x");
    }
}

/// Reconnects a client of 5.0 to its session; returns its packets.
fn back(world: &mut World, name: &str) -> (Client, Vec<String>) {
    let mut client = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let connect = ConnectPacket {
        clean_start: false,
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, name)
    };
    let mut answers = client.send(world, Packet::Connect(Box::new(connect)));
    let rest = answers.split_off(1);
    assert_eq!(answers, ["connack Success present"]);
    (client, rest)
}

/// Topics and packet identifiers of messages.
fn messages(packets: &[String]) -> Vec<(String, u16)> {
    let messages = packets.iter().filter(|packet| packet.starts_with("publish"));
    let parts = messages.map(|packet| packet.split(' ').collect::<Vec<_>>());
    parts.map(|parts| (parts[1].to_owned(), parts[3].parse().unwrap())).collect()
}

/// Acknowledges every message received, and returns their topics.
fn take_all(client: &mut Client, world: &mut World, mut packets: Vec<String>) -> Vec<String> {
    let mut topics = Vec::new();
    while !packets.is_empty() {
        let mut next = Vec::new();
        for packet in &packets {
            let parts: Vec<&str> = packet.split(' ').collect();
            let id = |at: usize| parts[at].parse().unwrap();
            match parts[0] {
                "publish" => {
                    topics.push(parts[1].to_owned());
                    let kind = match parts[2] {
                        "AtLeastOnce" => AckKind::PubAck,
                        "ExactlyOnce" => AckKind::PubRec,
                        _ => continue,
                    };
                    next.append(&mut client.ack(world, kind, id(3)));
                }
                "pubrel" => next.append(&mut client.ack(world, AckKind::PubComp, id(1))),
                other => panic!("{other}"),
            }
        }
        packets = next;
    }
    topics
}

fn kill(client: Client, world: World, disk: &SimDisk) -> SimDisk {
    // The connection sends nothing more.
    std::mem::forget(client);
    let killed = disk.kill();
    drop(world);
    killed
}

fn pending_on_disk(world: &mut World) -> usize {
    world.round();
    let mut count = 0;
    world.hub.store().unwrap().catalogue().scan(Section::MqttPendingRetained, |_, _| count += 1).unwrap();
    count
}

fn all_topics() -> Vec<String> {
    (0..MANY).map(|number| format!("r/{number:02}")).collect()
}

fn subscribed(world: &mut World, qos: QoS) -> (Client, Vec<String>) {
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    let answers = reader.subscribe_at(world, "r/#", qos);
    assert_eq!(answers.len(), 1 + WINDOW, "{answers:?}");
    (reader, answers[1..].to_vec())
}

#[test]
fn after_a_kill_only_unacknowledged_qos_1_retained_messages_are_sent() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let (mut reader, came) = subscribed(&mut world, QoS::AtLeastOnce);
    for (_, packet_id) in &messages(&came)[..5] {
        reader.ack(&mut world, AckKind::PubAck, *packet_id);
    }
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    assert_eq!(pending_on_disk(&mut world), MANY - 5);
    let (mut reader, came) = back(&mut world, "reader");
    assert!(came.iter().all(|packet| packet.ends_with(" retain")), "{came:?}");
    assert_eq!(take_all(&mut reader, &mut world, came), all_topics()[5..]);
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn pending_messages_are_on_disk_when_the_suback_is_sent() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    let (mut buffer, mut bytes) = (Vec::new(), Vec::new());
    let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: "#", options }]);
    Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests })
        .encode(MqttVersion::V5, &mut bytes);
    reader.connection.handle_input(&bytes, reader.now);
    assert!(reader.look().is_empty(), "not yet");
    let mut came = Vec::new();
    while came.is_empty() {
        world.round();
        came = reader.look();
    }
    assert_eq!(came[0], "suback Granted QoS 1");
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let (mut reader, came) = back(&mut world, "reader");
    assert_eq!(take_all(&mut reader, &mut world, came), all_topics());
}

#[test]
fn at_qos_2_each_message_arrives_once_across_a_kill() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::ExactlyOnce);
    let (mut reader, came) = subscribed(&mut world, QoS::ExactlyOnce);
    // Some messages are complete, some released by the server only, and others just sent.
    let first = messages(&came);
    let mut taken: Vec<String> = first[..6].iter().map(|(topic, _)| topic.clone()).collect();
    for (at, (_, packet_id)) in first[..6].iter().enumerate() {
        assert_eq!(
            reader.ack(&mut world, AckKind::PubRec, *packet_id),
            [format!("pubrel {packet_id} success")]
        );
        if at < 3 {
            assert_eq!(reader.ack(&mut world, AckKind::PubComp, *packet_id).len(), 1, "the next one");
        }
    }
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let (mut reader, came) = back(&mut world, "reader");
    let (again, _): (Vec<_>, Vec<_>) = came.iter().partition(|packet| packet.contains(" dup "));
    assert_eq!(again.len(), WINDOW - 3, "packets in flight keep their identifiers: {came:?}");
    taken.append(&mut take_all(&mut reader, &mut world, came));
    taken.sort();
    assert_eq!(taken, all_topics());
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn a_client_that_leaves_midway_gets_every_unacked_message_on_reconnect() {
    for disk in [Some(SimDisk::new(1, 1 << 30)), None] {
        let mut world = disk.as_ref().map_or_else(World::new, World::on);
        retain_many(&mut world, QoS::AtLeastOnce);
        let (reader, came) = subscribed(&mut world, QoS::AtLeastOnce);
        drop(reader);
        let (mut reader, again) = back(&mut world, "reader");
        let again = take_all(&mut reader, &mut world, again);
        assert_eq!((came.len(), again), (WINDOW, all_topics()));
    }
}

#[test]
fn pending_messages_survive_an_orderly_shutdown() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let (reader, _) = subscribed(&mut world, QoS::AtLeastOnce);
    drop(reader);
    world.round();
    drop(world);
    let mut world = World::on(&disk);
    let (mut reader, came) = back(&mut world, "reader");
    assert_eq!(take_all(&mut reader, &mut world, came), all_topics());
}

#[test]
fn the_newer_of_replaced_messages_is_sent_and_cleared_ones_are_not() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    for topic in ["cleared", "lower", "replaced", "stays"] {
        retain(&mut world, topic, QoS::AtLeastOnce, b"old");
    }
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    assert_eq!(reader.subscribe_at(&mut world, "+", QoS::AtLeastOnce).len(), 5);
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    retain(&mut world, "replaced", QoS::AtLeastOnce, b"newer");
    retain(&mut world, "lower", QoS::AtMostOnce, b"newer");
    retain(&mut world, "cleared", QoS::AtLeastOnce, b"");
    let (_reader, came) = back(&mut world, "reader");
    let (retained, live): (Vec<_>, Vec<_>) = came.iter().partition(|packet| packet.ends_with(" retain"));
    assert_eq!(
        retained,
        [
            "publish lower AtMostOnce 0 retain",
            "publish replaced AtLeastOnce 1 dup retain",
            "publish stays AtLeastOnce 2 dup retain"
        ]
    );
    assert_eq!(live.len(), 3, "newer messages are sent as live ones: {came:?}");
}

#[test]
fn an_expired_retained_message_is_no_longer_pending() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    let list = PropertyList::new().with(Property::MessageExpiryInterval(600));
    let message = PublishPacket {
        retain: true,
        properties: list.as_properties(),
        ..message("brief", QoS::AtLeastOnce, 1)
    };
    writer.send(&mut world, Packet::Publish(message));
    let mut reader = world.connected(MqttVersion::V5, "reader", 3600);
    assert_eq!(reader.subscribe_at(&mut world, "#", QoS::AtLeastOnce).len(), 2);
    drop(writer);
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let mut reader = world.client(MqttVersion::V5);
    reader.now += std::time::Duration::from_secs(601);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let connect = ConnectPacket {
        clean_start: false,
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "reader")
    };
    let answers = reader.send(&mut world, Packet::Connect(Box::new(connect)));
    assert_eq!(answers, ["connack Success present"]);
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn resubscribing_adds_no_second_pending_copy_for_a_filter() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let (mut reader, mut came) = subscribed(&mut world, QoS::AtLeastOnce);
    for filter in ["r/#", "#", "r/+", "r/#"] {
        assert_eq!(reader.subscribe_at(&mut world, filter, QoS::AtLeastOnce).len(), 1, "its window is full");
    }
    assert_eq!(pending_on_disk(&mut world), MANY);
    came = take_all(&mut reader, &mut world, came);
    // Messages in flight are sent a second time, since the client has subscribed again.
    let filters = 3;
    assert_eq!(came.len(), WINDOW + filters * MANY);
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn a_topic_subscribed_again_in_flight_stays_pending_until_the_second_ack() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain(&mut world, "t", QoS::AtLeastOnce, b"x");
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    for expected in ["publish t AtLeastOnce 1 retain", "publish t AtLeastOnce 2 retain"] {
        assert_eq!(reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce)[1..], [expected]);
    }
    reader.ack(&mut world, AckKind::PubAck, 1);
    assert_eq!(pending_on_disk(&mut world), 1);
    reader.ack(&mut world, AckKind::PubAck, 2);
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn retain_handling_decides_which_messages_are_pending_after_a_kill() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain(&mut world, "t", QoS::AtLeastOnce, b"x");
    let handling =
        |retain_handling| SubscribeOptions { retain_handling, ..SubscribeOptions::of_qos(QoS::AtLeastOnce) };
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    let subscribe = |reader: &mut Client, world: &mut World, retain_handling| {
        reader.subscribe(world, "t", handling(retain_handling)).len() - 1
    };
    assert_eq!(subscribe(&mut reader, &mut world, RetainHandling::Never), 0);
    assert_eq!(
        subscribe(&mut reader, &mut world, RetainHandling::IfNew),
        0,
        "the subscription exists already"
    );
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let (mut reader, came) = back(&mut world, "reader");
    assert!(came.is_empty(), "no message was pending: {came:?}");
    let list = PropertyList::new().with(Property::SubscriptionIdentifier(7));
    let mut buffer = Vec::new();
    let options = handling(RetainHandling::Always);
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: "t", options }]);
    let packet = Subscribe { packet_id: 1, properties: list.as_properties(), requests };
    assert_eq!(reader.send(&mut world, Packet::Subscribe(packet)).len(), 2);
    // Replaces the subscription for which the message was pending, which must not lose it.
    assert_eq!(subscribe(&mut reader, &mut world, RetainHandling::IfNew), 0);
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let (_, came) = back(&mut world, "reader");
    assert_eq!(came, ["publish t AtLeastOnce 1 dup retain"], "though Retain As Published is not set");
}

#[test]
fn identifiers_of_all_matching_subscriptions_are_sent_again() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain(&mut world, "a/b", QoS::AtLeastOnce, b"x");
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    for (filter, identifier) in [("a/+", 7), ("a/b", 8)] {
        let list = PropertyList::new().with(Property::SubscriptionIdentifier(identifier));
        let mut buffer = Vec::new();
        let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
        let requests = Requests::write(&mut buffer, [SubscribeRequest { filter, options }]);
        let packet = Subscribe { packet_id: 1, properties: list.as_properties(), requests };
        reader.send(&mut world, Packet::Subscribe(packet));
    }
    let disk = kill(reader, world, &disk);

    let mut world = World::on(&disk);
    let mut reader = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let connect = ConnectPacket {
        clean_start: false,
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "reader")
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(MqttVersion::V5, &mut bytes);
    reader.connection.handle_input(&bytes, reader.now);
    world.round();
    reader.connection.handle_nudge(reader.now);
    let bytes = reader.outbox.read_all();
    let (mut decoder, mut rest, mut identifiers) =
        (PacketDecoder::new(MqttVersion::V5, u32::MAX), &bytes[..], vec![]);
    while !rest.is_empty() {
        let step = decoder.decode(rest).unwrap();
        if let Some(Packet::Publish(publish)) = step.packet {
            identifiers.extend(publish.properties.iter().filter_map(|property| match property {
                Property::SubscriptionIdentifier(identifier) => Some(identifier),
                _ => None,
            }));
        }
        rest = &rest[step.taken..];
    }
    assert_eq!(identifiers, [7, 8]);
}

#[test]
fn messages_of_unsubscribed_or_qos_0_subscriptions_are_not_pending() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let mut fast = world.connected(MqttVersion::V5, "fast", 60);
    assert_eq!(fast.subscribe_at(&mut world, "#", QoS::AtMostOnce).len(), 1 + MANY);
    assert_eq!(pending_on_disk(&mut world), 0);
    let (mut reader, came) = subscribed(&mut world, QoS::AtLeastOnce);
    let mut buffer = Vec::new();
    let filters = Filters::write(&mut buffer, ["r/#"]);
    let packet = Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters };
    assert_eq!(reader.send(&mut world, Packet::Unsubscribe(packet)).len(), 1);
    assert_eq!(take_all(&mut reader, &mut world, came).len(), WINDOW, "what was under way stays so");
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn an_ended_sessions_pending_messages_do_not_reach_a_new_session() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    retain_many(&mut world, QoS::AtLeastOnce);
    let (reader, _) = subscribed(&mut world, QoS::AtLeastOnce);
    drop(reader);
    assert_eq!(pending_on_disk(&mut world), MANY);
    drop(world.connected(MqttVersion::V5, "reader", 0));
    assert_eq!(pending_on_disk(&mut world), 0);
}

#[test]
fn each_filter_of_a_subscribe_is_sent_its_own_copy() {
    let mut world = World::new();
    retain(&mut world, "a/b", QoS::AtLeastOnce, b"x");
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    let mut buffer = Vec::new();
    let request = |filter, qos| SubscribeRequest { filter, options: SubscribeOptions::of_qos(qos) };
    let requests = [request("a/+", QoS::AtMostOnce), request("#", QoS::AtLeastOnce)];
    let requests = Requests::write(&mut buffer, requests);
    let packet = Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests };
    let answers = reader.send(&mut world, Packet::Subscribe(packet));
    let expected = [
        "suback Success,Granted QoS 1",
        "publish a/b AtMostOnce 0 retain",
        "publish a/b AtLeastOnce 1 retain",
    ];
    assert_eq!(answers, expected);
}

#[test]
fn retained_topics_with_dots_reach_matching_subscribers_unchanged() {
    let mut world = World::new();
    retain(&mut world, "hosts/web1.example/status", QoS::AtLeastOnce, b"x");
    for filter in ["hosts/+/status", "hosts/web1.example/status", "hosts/#", "hosts/web1.example/+"] {
        let mut reader = world.connected(MqttVersion::V5, "reader", 60);
        let answers = reader.subscribe_at(&mut world, filter, QoS::AtLeastOnce);
        assert_eq!(messages(&answers).len(), 1, "{filter}: {answers:?}");
        assert!(answers[1].starts_with("publish hosts/web1.example/status AtLeastOnce"), "{answers:?}");
    }
}

#[test]
fn pending_topics_of_removed_subscriptions_are_dropped_in_turns() {
    let mut world = World::new();
    let many = 2_500;
    for number in 0..many {
        retain(&mut world, &format!("r/{number}"), QoS::AtMostOnce, b"x");
    }
    let mut reader = world.connected(MqttVersion::V5, "reader", 0);
    let mut bytes = Vec::new();
    let mut buffer = Vec::new();
    let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: "r/#", options }]);
    Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests })
        .encode(MqttVersion::V5, &mut bytes);
    let mut buffer = Vec::new();
    let filters = Filters::write(&mut buffer, ["r/#"]);
    Packet::Unsubscribe(Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters })
        .encode(MqttVersion::V5, &mut bytes);
    reader.connection.handle_input(&bytes, reader.now);
    let answers = reader.received(&mut world);
    assert_eq!(messages(&answers).len(), 0, "{answers:?}");
    // Messages retained afterwards still arrive.
    assert_eq!(messages(&reader.subscribe_at(&mut world, "r/7", QoS::AtLeastOnce)).len(), 1);
}
