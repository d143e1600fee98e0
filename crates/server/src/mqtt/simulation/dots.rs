//! Dots and slashes in topics are distinct, and messages queued by earlier versions, which merged them, are not lost.

use broker::{Section, SessionId, Timestamp};

use super::*;
use crate::mqtt::detached::DetachedSession;

/// Rewrites all sessions on disk in the format of the previous version.
fn as_before(world: &mut World) {
    let catalogue = Arc::clone(world.hub.store().unwrap().catalogue());
    let mut found = Vec::new();
    catalogue.scan(Section::MqttSessions, |key, value| found.push((key.to_vec(), value.to_vec()))).unwrap();
    for (key, value) in found {
        let user = [&[0, 0, 0, 5][..], b"guest", &[0; 8]].concat();
        let at = value.windows(user.len()).position(|part| part == user).unwrap();
        let older = [&[2][..], &value[1..at], &value[at + user.len()..]].concat();
        assert!(DetachedSession::decode(&older, Timestamp(1)).unwrap().is_merged);
        catalogue.put(Section::MqttSessions, key, older);
    }
    world.round();
}

/// Replaces the binding of a queue by that of the previous version.
fn bind_as_before(world: &World, queue: &str, key: &str, before: &str) {
    let vhost = world.hub.broker().vhost("/").unwrap();
    let binding = |routing_key| broker::Binding {
        source: "amq.topic",
        destination: queue,
        routing_key,
        arguments: Default::default(),
    };
    vhost.unbind_queue(SessionId(0), &binding(key)).unwrap();
    vhost.bind_queue(SessionId(0), &binding(before)).unwrap();
}

#[test]
fn a_dot_in_a_topic_is_not_a_slash() {
    let mut world = World::new();
    let mut dots = world.connected(MqttVersion::V311, "dots", 0);
    dots.subscribe_at(&mut world, "v1.2/+", QoS::AtLeastOnce);
    let mut slashes = world.connected(MqttVersion::V311, "slashes", 0);
    slashes.subscribe_at(&mut world, "v1/2/+", QoS::AtLeastOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    for topic in ["v1.2/x.y", "v1/2/x", "v1/2.x"] {
        writer.publish(&mut world, topic, QoS::AtMostOnce, 0);
    }
    assert_eq!(dots.received(&mut world), ["publish v1.2/x.y AtMostOnce 0"]);
    assert_eq!(slashes.received(&mut world), ["publish v1/2/x AtMostOnce 0"]);
}

#[test]
fn a_session_of_the_previous_version_gets_its_queued_and_new_messages() {
    const QUEUE: &str = "mqtt-subscription-readerqos1";
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let (mut reader, _) = resumed(&mut world, "reader", 60);
    reader.subscribe_at(&mut world, "v1.2/+", QoS::AtLeastOnce);
    drop(reader);
    // The previous version did not distinguish `v1.2/x` and `v1/2/x`.
    bind_as_before(&world, QUEUE, "v1/2.*", "v1.2.*");
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    assert_eq!(writer.publish(&mut world, "v1/2/x", QoS::AtLeastOnce, 1).len(), 1);
    drop(writer);
    as_before(&mut world);
    drop(world);

    // Twice, since the client may connect after the second start.
    drop(World::on(&disk));
    let mut world = World::on(&disk);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, "v1.2/y", QoS::AtLeastOnce, 1);
    writer.publish(&mut world, "v1/2/z", QoS::AtLeastOnce, 2);
    let (_, answers) = resumed(&mut world, "reader", 60);
    let expected =
        ["connack Success present", "publish v1/2/x AtLeastOnce 1", "publish v1.2/y AtLeastOnce 2"];
    assert_eq!(answers, expected);
}

/// A shared subscription whose queue had a name in an earlier version that another filter's queue has today.
struct RenamedGroup {
    filter: &'static str,
    queue: &'static str,
    before: &'static str,
    filter_of_before: &'static str,
    /// Published before and after the upgrade, and delivered to the subscription.
    topics: [&'static str; 2],
}

#[test]
fn the_previous_versions_shared_subscription_queue_is_emptied() {
    check_emptied(&RenamedGroup {
        filter: "$share/g/v1.2/x",
        queue: "mqtt-shared-subscription-g/v1/2.x",
        before: "mqtt-shared-subscription-g/v1.2.x",
        filter_of_before: "$share/g/v1/2/x",
        topics: ["v1/2/x", "v1.2/x"],
    });
    check_emptied(&RenamedGroup {
        filter: "$share/g/v1/*/x",
        queue: "mqtt-shared-subscription-g/v1.+.x",
        before: "mqtt-shared-subscription-g/v1.*.x",
        filter_of_before: "$share/g/v1/+/x",
        topics: ["v1/*/x", "v1/*/x"],
    });
}

fn check_emptied(group: &RenamedGroup) {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    // Creates the old queue; everything else that this creates is removed again.
    let (mut maker, _) = resumed(&mut world, "maker", 60);
    maker.subscribe_at(&mut world, group.filter_of_before, QoS::AtLeastOnce);
    let (mut worker, _) = resumed(&mut world, "worker", 60);
    worker.subscribe_at(&mut world, group.filter, QoS::AtLeastOnce);
    drop((maker, worker));
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, group.topics[0], QoS::AtLeastOnce, 1);
    drop(writer);
    let vhost = world.hub.broker().vhost("/").unwrap();
    assert!(vhost.queue(SessionId(0), group.before).is_ok());
    vhost.delete_queue(SessionId(0), group.queue, false, false).unwrap();
    let catalogue = Arc::clone(world.hub.store().unwrap().catalogue());
    as_before(&mut world);
    catalogue.delete(Section::MqttSessions, crate::mqtt::disk::key(&["/", "maker"]));
    world.round();
    drop((world, vhost));

    let mut world = World::on(&disk);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, group.topics[1], QoS::AtLeastOnce, 1);
    let (mut worker, answers) = resumed(&mut world, "worker", 60);
    let mut topics: Vec<_> = answers[1..].iter().map(|answer| answer.split(' ').nth(1).unwrap()).collect();
    topics.sort_unstable();
    let mut expected = group.topics;
    expected.sort_unstable();
    assert_eq!(topics, expected, "{answers:?}");
    for packet_id in [1, 2] {
        worker.ack(&mut world, AckKind::PubAck, packet_id);
    }
    let mut buffer = Vec::new();
    let filters = ::mqtt::packet::Filters::write(&mut buffer, [group.filter]);
    let packet = ::mqtt::packet::Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters };
    worker.send(&mut world, Packet::Unsubscribe(packet));
    let vhost = world.hub.broker().vhost("/").unwrap();
    for queue in [group.before, group.queue] {
        assert!(vhost.queue(SessionId(0), queue).is_err(), "{queue}");
    }
}
