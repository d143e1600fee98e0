//! A virtual host that is deleted and created again has no state of the deleted one.

use broker::{Section, Timestamp};

use super::*;

/// Deletes the virtual host `/`, and creates another one.
fn recreate_vhost(world: &World) {
    let broker = world.hub.broker();
    assert!(broker.delete_definition(Section::VirtualHosts, &["/"], Timestamp(1)));
    broker.add_defaults();
}

/// Number of MQTT definitions on disk.
fn written(world: &mut World) -> usize {
    for _ in 0..3 {
        world.round();
    }
    let mut count = 0;
    for section in [
        Section::MqttSessions,
        Section::MqttReceived,
        Section::MqttRetained,
        Section::MqttPendingRetained,
        Section::MqttGroups,
    ] {
        world.hub.store().unwrap().catalogue().scan(section, |_, _| count += 1).unwrap();
    }
    count
}

fn resumed(world: &mut World, name: &str) -> (Client, Vec<String>) {
    let mut client = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, name) };
    let answers = client.send(world, Packet::Connect(Box::new(connect)));
    (client, answers)
}

fn retain(client: &mut Client, world: &mut World) -> Vec<String> {
    let kept = PublishPacket { retain: true, ..message("kept", QoS::AtLeastOnce, 3) };
    client.send(world, Packet::Publish(kept))
}

#[test]
fn sessions_and_retained_messages_go_with_their_virtual_host() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut away = world.connected(MqttVersion::V311, "away", 1);
    away.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    away.publish(&mut world, "t", QoS::ExactlyOnce, 5);
    assert_eq!(retain(&mut away, &mut world), ["puback 3 success"]);
    drop(away);
    let mut mortal = world.connected(MqttVersion::V5, "mortal", 60);
    mortal.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    drop(mortal);
    assert!(written(&mut world) >= 4 && world.hub.next_deadline().is_some());
    recreate_vhost(&world);
    assert_eq!((written(&mut world), world.hub.next_deadline()), (0, None));
    let (mut client, answers) = resumed(&mut world, "away");
    assert_eq!(answers, ["connack Success"]);
    assert_eq!(client.subscribe_at(&mut world, "#", QoS::AtLeastOnce), ["suback Granted QoS 1"]);
    drop((client, world));

    let mut world = World::on(&disk);
    let (mut client, answers) = resumed(&mut world, "mortal");
    assert_eq!(answers, ["connack Success"]);
    assert_eq!(client.subscribe_at(&mut world, "#", QoS::AtLeastOnce), ["suback Granted QoS 1"]);
}

#[test]
fn a_deleted_vhosts_clients_are_disconnected_and_leave_nothing_in_a_new_one() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut old = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let will = ::mqtt::packet::Will {
        qos: QoS::AtMostOnce,
        retain: true,
        properties: PacketProperties::NONE,
        topic: "will",
        payload: b"gone",
    };
    let connect = ConnectPacket {
        will: Some(will),
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "me")
    };
    old.send(&mut world, Packet::Connect(Box::new(connect)));
    old.subscribe_at(&mut world, "$share/g/t", QoS::AtLeastOnce);
    recreate_vhost(&world);
    let (mut new, answers) = resumed(&mut world, "me");
    assert_eq!(answers, ["connack Success"], "the client does not wait for the old session");
    new.subscribe_at(&mut world, "will", QoS::AtLeastOnce);
    let before = written(&mut world);
    // Packets sent before the client is notified.
    let mut bytes = Vec::new();
    let kept = PublishPacket { retain: true, ..message("kept", QoS::ExactlyOnce, 3) };
    kept.encode(MqttVersion::V5, &mut bytes);
    old.connection.handle_input(&bytes, old.now);
    let reported = old.received(&mut world);
    assert!(reported.iter().any(|packet| packet == "disconnect Administrative action"), "{reported:?}");
    drop(old);
    assert_eq!(written(&mut world), before);
    assert!(new.received(&mut world).is_empty(), "not even the will");
    drop(new);
    let (mut new, answers) = resumed(&mut world, "me");
    assert_eq!(answers, ["connack Success present"]);
    assert_eq!(new.subscribe_at(&mut world, "#", QoS::AtLeastOnce), ["suback Granted QoS 1"]);
}

#[test]
fn a_client_waiting_for_a_session_of_a_deleted_vhost_is_refused() {
    let mut world = World::new();
    let holder = world.connected(MqttVersion::V5, "me", 60);
    let mut waiting = world.client(MqttVersion::V5);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V5, "me") };
    assert!(waiting.send(&mut world, Packet::Connect(Box::new(connect))).is_empty());
    recreate_vhost(&world);
    assert_eq!(waiting.look(), ["connack Session taken over"]);
    drop((holder, waiting));
    let (_, answers) = resumed(&mut world, "me");
    assert_eq!(answers, ["connack Success"]);
}

#[test]
fn records_an_earlier_version_left_of_a_deleted_vhost_are_removed() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut client = world.connected(MqttVersion::V311, "me", 1);
    retain(&mut client, &mut world);
    drop(client);
    let store = Arc::clone(world.hub.store().unwrap());
    let mut copied = Vec::new();
    for section in [Section::MqttSessions, Section::MqttRetained] {
        let catalogue = store.catalogue();
        catalogue.scan(section, |key, value| copied.push((section, key.to_vec(), value.to_vec()))).unwrap();
    }
    assert_eq!(copied.len(), 2);
    for (section, mut key, value) in copied {
        key[1] = b'?';
        store.catalogue().put(section, key, value);
    }
    assert_eq!(written(&mut world), 4);
    drop((store, world));
    assert_eq!(written(&mut World::on(&disk)), 2);
}
