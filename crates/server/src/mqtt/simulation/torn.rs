//! Crashes in the middle of a disk round: the definitions are complete, and the message log is not.

use super::*;

/// The disk after a crash in the middle of a write: the last record of the message log is incomplete.
fn torn(disk: &SimDisk) -> SimDisk {
    torn_at(disk, log_end(disk) - 1)
}

/// The disk after a crash when the message log had been written up to `at`.
pub(super) fn torn_at(disk: &SimDisk, at: usize) -> SimDisk {
    let torn = disk.kill();
    torn.damage(&log(&torn), |bytes| bytes[at..].fill(0));
    torn
}

/// The end of the message log, without trailing zeros.
pub(super) fn log_end(disk: &SimDisk) -> usize {
    let (mut end, copy) = (0, disk.kill());
    copy.damage(&log(&copy), |bytes| end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    end
}

fn log(disk: &SimDisk) -> String {
    disk.files().into_iter().filter(|name| name.contains("journal")).max().unwrap()
}

#[test]
fn a_qos_2_message_partly_lost_by_a_torn_log_goes_to_the_missing_queues_only() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    for name in ["r1", "r2"] {
        let mut reader = world.connected(MqttVersion::V311, name, 1);
        reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    }
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"]);
    let mut disk = torn(&disk);
    std::mem::forget(writer);
    drop(world);

    let counts = |world: &World| {
        let vhost = world.hub.broker().vhost("/").unwrap();
        ["r1", "r2"].map(|name| {
            let name = format!("mqtt-subscription-{name}qos1");
            vhost.queue(broker::SessionId(0), &name).unwrap().message_count()
        })
    };
    // Another crash, after the log has grown, must not change anything.
    let mut world = World::on(&disk);
    assert_eq!(counts(&world).iter().sum::<u64>(), 1);
    let mut other = world.connected(MqttVersion::V311, "other", 0);
    for packet_id in 1..5 {
        other.publish(&mut world, "t", QoS::AtLeastOnce, packet_id);
    }
    std::mem::forget(other);
    disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    assert_eq!(counts(&world).iter().sum::<u64>(), 1 + 2 * 4);
    let mut writer = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "writer") };
    writer.send(&mut world, Packet::Connect(Box::new(connect)));
    let again = PublishPacket { dup: true, ..message("t", QoS::ExactlyOnce, 5) };
    assert_eq!(writer.send(&mut world, Packet::Publish(again)), ["pubrec 5 success"]);
    assert_eq!(counts(&world), [5, 5]);
    assert_eq!(writer.send(&mut world, Packet::Publish(again)), ["pubrec 5 success"]);
    assert_eq!(writer.ack(&mut world, AckKind::PubRel, 5), ["pubcomp 5 success"]);
    assert_eq!(counts(&world), [5, 5]);
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"], "another one");
    assert_eq!(counts(&world), [6, 6]);
}

#[test]
fn a_message_left_in_a_shared_queue_by_a_torn_log_is_not_in_the_session() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut worker = world.connected(MqttVersion::V5, "w1", 60);
    worker.subscribe_at(&mut world, "$share/g/t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 1);
    assert_eq!(worker.received(&mut world), ["publish t ExactlyOnce 1"]);
    std::mem::forget((worker, writer));
    let (whole, torn) = (disk.kill(), torn(&disk));
    drop(world);

    for (disk, by_session) in [(whole, true), (torn, false)] {
        let mut world = World::on(&disk);
        let mut other = world.connected(MqttVersion::V5, "w2", 60);
        let answers = other.subscribe_at(&mut world, "$share/g/t", QoS::ExactlyOnce);
        let mut first = world.client(MqttVersion::V5);
        let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
        let properties = list.as_properties();
        let connect =
            ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(MqttVersion::V5, "w1") };
        let again = first.send(&mut world, Packet::Connect(Box::new(connect)));
        let came = [again, answers].concat();
        let copies: Vec<_> = came.iter().filter(|packet| packet.starts_with("publish")).collect();
        assert_eq!(copies.len(), 1, "{came:?}");
        assert_eq!(copies[0].ends_with("dup"), by_session);
    }
}

#[test]
fn a_message_has_left_its_queue_on_disk_before_the_client_may_complete_it() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V5, "reader", 60);
    reader.subscribe_at(&mut world, "t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 1);
    assert_eq!(reader.received(&mut world), ["publish t ExactlyOnce 1"]);
    let mut bytes = Vec::new();
    Packet::Ack(Ack::new(AckKind::PubRec, 1, ReasonCode::Success)).encode(MqttVersion::V5, &mut bytes);
    assert_eq!(reader.connection.handle_input(&bytes, reader.now), bytes.len());
    // The session reaches the disk before the queue's record.
    world.hub.store().unwrap().catalogue().commit_pending().unwrap();
    assert!(
        reader.look().is_empty(),
        "a PUBCOMP would end the session's part while the queue still has its own"
    );
    assert_eq!(reader.received(&mut world), ["pubrel 1 success"]);
}

#[test]
fn messages_of_several_shared_queues_are_neither_lost_nor_duplicated_by_a_torn_log() {
    const FILTERS: [&str; 2] = ["$share/g/t", "$share/h/t"];
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut worker = world.connected(MqttVersion::V5, "w1", 60);
    for filter in FILTERS {
        worker.subscribe_at(&mut world, filter, QoS::ExactlyOnce);
    }
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 1);
    let before = log_end(&disk);
    // Both are taken in one batch, and each queue logs its own acknowledgement.
    assert_eq!(worker.received(&mut world), ["publish t ExactlyOnce 1", "publish t ExactlyOnce 2"]);
    let after = log_end(&disk);
    std::mem::forget((worker, writer));
    drop(world);

    let mut by_session = Vec::new();
    // No record is shorter than this step.
    for at in (before..after).step_by(8) {
        let mut world = World::on(&torn_at(&disk, at));
        let mut first = world.client(MqttVersion::V5);
        let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
        let properties = list.as_properties();
        let connect =
            ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(MqttVersion::V5, "w1") };
        let mut came = first.send(&mut world, Packet::Connect(Box::new(connect)));
        let mut other = world.connected(MqttVersion::V5, "w2", 60);
        for filter in FILTERS {
            came.append(&mut other.subscribe_at(&mut world, filter, QoS::ExactlyOnce));
        }
        came.append(&mut first.received(&mut world));
        let copies = came.iter().filter(|packet| packet.starts_with("publish"));
        let (again, anew): (Vec<_>, Vec<_>) = copies.partition(|packet| packet.ends_with("dup"));
        assert_eq!(again.len() + anew.len(), FILTERS.len(), "torn at {at}: {came:?}");
        by_session.push(again.len());
    }
    by_session.dedup();
    assert_eq!(
        by_session,
        [0, 1],
        "without its last record the first queue has let go, and the second has not"
    );
}
