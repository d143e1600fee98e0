//! Sessions and their queues after a restart.

use store::Retirement;

use super::*;

fn has_queue(world: &World, name: &str) -> bool {
    world.hub.broker().vhost("/").unwrap().queue(broker::SessionId(0), name).is_ok()
}

/// The packet identifier of a message.
fn id_of(publish: &str) -> u16 {
    publish.split(' ').nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_queue_that_restarts_its_positions_loses_no_message() {
    let disk = SimDisk::new(1, 1 << 30);
    let settings = || StoreSettings {
        journal_segments: 1,
        ..JournalSettings { segment_size: 16 << 10, ..JournalSettings::default() }.into()
    };
    let mut world = World::with(&disk, settings());
    let (mut reader, _) = resumed(&mut world, "reader", 60);
    reader.subscribe_at(&mut world, "t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    let publish = |world: &mut World, writer: &mut Client, topic: &str, packet_id| {
        let answer = writer.publish(world, topic, QoS::ExactlyOnce, packet_id);
        assert_eq!(answer, [format!("pubrec {packet_id} success")]);
        writer.ack(world, AckKind::PubRel, packet_id);
    };
    // The client has acknowledged three, and has five whose PUBREL it has not answered.
    for number in 0..8 {
        publish(&mut world, &mut writer, "t", 1);
        let came = reader.received(&mut world);
        let packet_id = id_of(&came[0]);
        assert_eq!(
            reader.ack(&mut world, AckKind::PubRec, packet_id),
            [format!("pubrel {packet_id} success")]
        );
        if number < 3 {
            reader.ack(&mut world, AckKind::PubComp, packet_id);
        }
    }
    std::mem::forget(reader);
    // Writes for another queue until the journal segment with the records of the reader's queue is retired.
    let (mut other, _) = resumed(&mut world, "other", 60);
    other.subscribe_at(&mut world, "u", QoS::AtLeastOnce);
    drop(other);
    let payload = vec![0; 2000];
    for _ in 0..40 {
        let large = PublishPacket { payload: Payload::new(&payload), ..message("u", QoS::AtLeastOnce, 2) };
        assert_eq!(writer.send(&mut world, Packet::Publish(large)), ["puback 2 success"]);
    }
    while matches!(world.rounds.as_mut().unwrap().retire(), Retirement::Done) {}
    world.round();
    std::mem::forget(writer);
    drop(world);

    let mut world = World::with(&disk, settings());
    let queue = |world: &World| {
        let vhost = world.hub.broker().vhost("/").unwrap();
        vhost.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap()
    };
    assert_eq!(queue(&world).next_position(), 0, "the queue's positions restart at 0");
    // A second restart changes nothing.
    world.round();
    drop(world);
    let mut world = World::with(&disk, settings());
    let (mut reader, came) = resumed(&mut world, "reader", 60);
    assert_eq!((came.len(), &*came[0]), (1 + 5, "connack Success present"));
    for release in &came[1..] {
        let packet_id = release.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(release.starts_with("pubrel"), "{release}");
        reader.ack(&mut world, AckKind::PubComp, packet_id);
    }
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    for number in 0..12 {
        publish(&mut world, &mut writer, "t", 1);
        let came = reader.received(&mut world);
        assert!(
            came.len() == 1 && came[0].starts_with("publish t ExactlyOnce"),
            "message {number}: {came:?}"
        );
        let packet_id = id_of(&came[0]);
        reader.ack(&mut world, AckKind::PubRec, packet_id);
        reader.ack(&mut world, AckKind::PubComp, packet_id);
    }
    assert_eq!((queue(&world).message_count(), queue(&world).unacked_count()), (0, 0));
}

#[test]
fn messages_in_flight_are_not_taken_for_those_of_a_new_queue() {
    let mut world = World::new();
    let (mut reader, _) = resumed(&mut world, "reader", 60);
    reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
    assert_eq!(reader.received(&mut world), ["publish t AtLeastOnce 1"]);
    let mut buffer = Vec::new();
    let filters = ::mqtt::packet::Filters::write(&mut buffer, ["t"]);
    let packet = ::mqtt::packet::Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters };
    reader.send(&mut world, Packet::Unsubscribe(packet));
    let vhost = world.hub.broker().vhost("/").unwrap();
    vhost.delete_queue(broker::SessionId(0), "mqtt-subscription-readerqos1", false, false).unwrap();
    drop(reader);
    let (mut reader, came) = resumed(&mut world, "reader", 60);
    assert_eq!(came, ["connack Success present", "publish t AtLeastOnce 1 dup"]);
    reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
    assert_eq!(reader.received(&mut world), ["publish t AtLeastOnce 2"]);
    let queue = vhost.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap();
    reader.ack(&mut world, AckKind::PubAck, 1);
    assert_eq!(queue.unacked_count(), 1, "the acknowledgement is that of the other message");
    reader.ack(&mut world, AckKind::PubAck, 2);
    assert_eq!(queue.unacked_count(), 0);
}

#[test]
fn a_session_ends_with_its_queue() {
    for restarts in [false, true] {
        let disk = SimDisk::new(1, 1 << 30);
        let mut world = World::on(&disk);
        for (name, qos) in [("reader", QoS::AtLeastOnce), ("lossy", QoS::AtMostOnce)] {
            let (mut client, _) = resumed(&mut world, name, 60);
            client.subscribe_at(&mut world, "t", qos);
        }
        let mut writer = world.connected(MqttVersion::V5, "writer", 0);
        writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
        let vhost = world.hub.broker().vhost("/").unwrap();
        let name = "mqtt-subscription-readerqos1";
        vhost.delete_queue(broker::SessionId(0), name, false, false).unwrap();
        if restarts {
            world.round();
            drop((writer, world, vhost));
            world = World::on(&disk);
        }
        let (reader, came) = resumed(&mut world, "reader", 60);
        assert_eq!(came, ["connack Success"], "its message is lost, and its client has to know");
        let vhost = world.hub.broker().vhost("/").unwrap();
        assert!(vhost.queue(broker::SessionId(0), name).is_err(), "it has no subscription");
        let (_lossy, came) = resumed(&mut world, "lossy", 60);
        assert_eq!(came[0], "connack Success present", "its session needs no such queue");
        drop(reader);
        let (mut reader, came) = resumed(&mut world, "reader", 60);
        assert_eq!(came, ["connack Success present"], "the new session");
        reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
        drop(reader);
        assert_eq!(resumed(&mut world, "reader", 60).1, ["connack Success present"]);
    }
}

#[test]
fn a_persistent_session_shares_a_durable_queue_even_if_another_joined_first() {
    const GROUP: &str = "mqtt-shared-subscription-g/t";
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut brief = world.connected(MqttVersion::V5, "brief", 0);
    brief.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    let (mut persistent, _) = resumed(&mut world, "lasting", 60);
    persistent.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    drop((brief, persistent));
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    assert_eq!(writer.publish(&mut world, "t", QoS::AtLeastOnce, 1), ["puback 1 success"]);
    drop((writer, world));

    let mut world = World::on(&disk);
    let (persistent, came) = resumed(&mut world, "lasting", 60);
    assert_eq!(came, ["connack Success present", "publish t AtLeastOnce 1"]);
    drop(persistent);
    // An earlier version deleted the queue at the next start.
    let vhost = world.hub.broker().vhost("/").unwrap();
    vhost.delete_queue(broker::SessionId(0), GROUP, false, false).unwrap();
    world.round();
    drop(world);
    let mut world = World::on(&disk);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    assert_eq!(writer.publish(&mut world, "t", QoS::AtLeastOnce, 1), ["puback 1 success"]);
    let (_persistent, came) = resumed(&mut world, "lasting", 60);
    assert_eq!(came, ["connack Success present", "publish t AtLeastOnce 1"]);
}

#[test]
fn a_kill_leaves_no_queues_of_clients_without_a_session() {
    const OWN: &str = "mqtt-subscription-briefqos1";
    const GROUP: &str = "mqtt-shared-subscription-g/t";
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut brief = world.connected(MqttVersion::V5, "brief", 0);
    brief.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    brief.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    let (mut persistent, _) = resumed(&mut world, "lasting", 60);
    persistent.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    persistent.subscribe_at(&mut world, "$share/h/t", QoS::AtLeastOnce);
    assert!(has_queue(&world, OWN) && has_queue(&world, GROUP));
    // Queues that an application or a migration has declared under such names, one of them under a client's queue name.
    let vhost = world.hub.broker().vhost("/").unwrap();
    let [name, moved, again] =
        ["mqtt-subscription-anotherqos1", "mqtt-shared-subscription-moved/t", "mqtt-shared-subscription-i/t"];
    let mut deprived = world.connected(MqttVersion::V5, "deprived", 0);
    deprived.subscribe_at(&mut world, "$share/i/t", QoS::AtLeastOnce);
    vhost.delete_queue(broker::SessionId(0), again, false, false).unwrap();
    for name in [name, moved, again] {
        let declare = broker::QueueDeclare { name, durable: true, ..broker::QueueDeclare::default() };
        vhost.declare_queue(broker::SessionId(0), &declare, broker::Timestamp::default()).unwrap();
    }
    // A client that shares such a queue does not cause its deletion.
    brief.subscribe_at(&mut world, "$share/moved/t", QoS::AtLeastOnce);
    world.round();
    std::mem::forget((brief, persistent, deprived));
    let disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    assert!(!has_queue(&world, OWN) && !has_queue(&world, GROUP));
    for kept in ["mqtt-subscription-lastingqos1", "mqtt-shared-subscription-h/t", name, moved, again] {
        assert!(has_queue(&world, kept), "{kept}");
    }
    // Only queues that MQTT still has are recorded.
    for _ in 0..3 {
        world.round();
    }
    let mut noted = 0;
    world.hub.store().unwrap().catalogue().scan(broker::Section::MqttGroups, |_, _| noted += 1).unwrap();
    assert_eq!(noted, 1);
}
