//! Crashes in the middle of a round of the disk: definitions are there, and the log of messages is not whole.

use super::*;

/// The disk after a crash in the middle of a write: the last record of the log of messages is not whole.
fn torn(disk: &SimDisk) -> SimDisk {
    let torn = disk.kill();
    let log = torn.files().into_iter().filter(|name| name.contains("journal")).max().unwrap();
    torn.damage(&log, |octets| {
        let last = octets.iter().rposition(|octet| *octet != 0).unwrap();
        octets[last] ^= 1;
    });
    torn
}

#[test]
fn a_message_of_qos_2_that_a_torn_log_has_left_to_some_queues_goes_to_the_others_alone() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    for name in ["r1", "r2"] {
        let mut reader = world.connected(Version::V311, name, 1);
        reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    }
    let mut writer = world.connected(Version::V311, "writer", 1);
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
    // Another crash, when the log has become longer than it was, is to change nothing.
    let mut world = World::on(&disk);
    assert_eq!(counts(&world).iter().sum::<u64>(), 1);
    let mut other = world.connected(Version::V311, "other", 0);
    for packet_id in 1..5 {
        other.publish(&mut world, "t", QoS::AtLeastOnce, packet_id);
    }
    std::mem::forget(other);
    disk = disk.kill();
    drop(world);

    let mut world = World::on(&disk);
    assert_eq!(counts(&world).iter().sum::<u64>(), 1 + 2 * 4);
    let mut writer = world.client(Version::V311);
    let connect = Connect { clean_start: false, ..Connect::new(Version::V311, "writer") };
    writer.send(&mut world, Packet::Connect(Box::new(connect)));
    let again = Publish { dup: true, ..message("t", QoS::ExactlyOnce, 5) };
    assert_eq!(writer.send(&mut world, Packet::Publish(again)), ["pubrec 5 success"]);
    assert_eq!(counts(&world), [5, 5]);
    assert_eq!(writer.send(&mut world, Packet::Publish(again)), ["pubrec 5 success"]);
    assert_eq!(writer.ack(&mut world, AckKind::PubRel, 5), ["pubcomp 5 success"]);
    assert_eq!(counts(&world), [5, 5]);
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"], "another one");
    assert_eq!(counts(&world), [6, 6]);
}

#[test]
fn a_message_that_a_torn_log_has_left_to_a_shared_queue_is_not_the_sessions_too() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut worker = world.connected(Version::V5, "w1", 60);
    worker.subscribe_at(&mut world, "$share/g/t", QoS::ExactlyOnce);
    let mut writer = world.connected(Version::V311, "writer", 1);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 1);
    assert_eq!(worker.received(&mut world), ["publish t ExactlyOnce 1"]);
    std::mem::forget((worker, writer));
    let (whole, torn) = (disk.kill(), torn(&disk));
    drop(world);

    for (disk, by_session) in [(whole, true), (torn, false)] {
        let mut world = World::on(&disk);
        let mut other = world.connected(Version::V5, "w2", 60);
        let answers = other.subscribe_at(&mut world, "$share/g/t", QoS::ExactlyOnce);
        let mut first = world.client(Version::V5);
        let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
        let properties = list.as_properties();
        let connect = Connect { clean_start: false, properties, ..Connect::new(Version::V5, "w1") };
        let again = first.send(&mut world, Packet::Connect(Box::new(connect)));
        let came = [again, answers].concat();
        let copies: Vec<_> = came.iter().filter(|packet| packet.starts_with("publish")).collect();
        assert_eq!(copies.len(), 1, "{came:?}");
        assert_eq!(copies[0].ends_with("dup"), by_session);
    }
}
