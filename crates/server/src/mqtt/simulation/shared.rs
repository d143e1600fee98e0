//! Sessions whose client comes back with another version of MQTT, to which `$share/g/t` means something else.

use ::mqtt::packet::{Filters, Unsubscribe};

use super::*;

const FILTER: &str = "$share/g/t";
const GROUP: &str = "mqtt-shared-subscription-g/t";

/// The queues of the group, and the bindings of the client's own queue.
fn topology(world: &World) -> (bool, Vec<String>) {
    let vhost = world.hub.broker().vhost("/").unwrap();
    let bindings = vhost.bindings_to_queue("mqtt-subscription-meqos1").unwrap_or_default();
    let keys = bindings.iter().filter(|binding| *binding.source == *world.hub.config.exchange);
    let keys = keys.map(|binding| binding.routing_key.to_string()).collect();
    (vhost.queue(broker::SessionId(0), GROUP).is_ok(), keys)
}

fn back(world: &mut World, version: MqttVersion) -> (Client, Vec<String>) {
    if version.is_5() {
        return resumed(world, "me", 60);
    }
    let mut client = world.client(version);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(version, "me") };
    let answers = client.send(world, Packet::Connect(Box::new(connect)));
    (client, answers)
}

fn unsubscribe(client: &mut Client, world: &mut World) -> Vec<String> {
    let mut buffer = Vec::new();
    let filters = Filters::write(&mut buffer, [FILTER]);
    let packet = Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters };
    client.send(world, Packet::Unsubscribe(packet))
}

/// As a member that crashes or just leaves.
fn leave(client: Client, world: World, disk: &SimDisk, restarts: bool) -> World {
    drop(client);
    if !restarts {
        return world;
    }
    drop(world);
    World::on(disk)
}

#[test]
fn a_member_of_a_group_stays_one_with_a_client_of_3_1_1() {
    for restarts in [false, true] {
        let disk = SimDisk::new(1, 1 << 30);
        let mut world = World::on(&disk);
        let mut client = world.connected(MqttVersion::V5, "me", 60);
        assert_eq!(client.subscribe_at(&mut world, FILTER, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
        let mut writer = world.connected(MqttVersion::V311, "writer", 0);
        writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
        assert_eq!(client.received(&mut world), ["publish t AtLeastOnce 1"]);
        client.ack(&mut world, AckKind::PubAck, 1);
        drop(writer);
        let mut world = leave(client, world, &disk, restarts);
        let (mut client, answers) = back(&mut world, MqttVersion::V311);
        assert_eq!(answers, ["connack Success present"]);
        let mut writer = world.connected(MqttVersion::V311, "writer", 0);
        writer.publish(&mut world, "t", QoS::AtLeastOnce, 1);
        assert_eq!(client.received(&mut world).len(), 1, "restarts: {restarts}");
        // It is the same subscription, and no retained messages come for it.
        assert_eq!(client.subscribe_at(&mut world, FILTER, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
        assert_eq!(topology(&world), (true, Vec::new()));
        assert_eq!(unsubscribe(&mut client, &mut world).len(), 1);
        assert_eq!(topology(&world), (false, Vec::new()), "it was the last member");
    }
}

#[test]
fn an_ordinary_subscription_stays_one_until_a_client_of_5_0_subscribes() {
    for restarts in [false, true] {
        let disk = SimDisk::new(1, 1 << 30);
        let mut world = World::on(&disk);
        let mut client = world.connected(MqttVersion::V311, "me", 60);
        assert_eq!(client.subscribe_at(&mut world, FILTER, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
        let mut world = leave(client, world, &disk, restarts);
        let own = (false, vec!["$share.g.t".to_owned()]);
        assert_eq!(topology(&world), own);
        let (mut client, answers) = back(&mut world, MqttVersion::V5);
        assert_eq!(answers, ["connack Success present"]);
        assert_eq!(topology(&world), own);
        let mut writer = world.connected(MqttVersion::V311, "writer", 0);
        writer.publish(&mut world, FILTER, QoS::AtLeastOnce, 1);
        assert_eq!(client.received(&mut world), ["publish $share/g/t AtLeastOnce 1"]);
        assert_eq!(client.subscribe_at(&mut world, FILTER, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
        assert_eq!(topology(&world), (true, Vec::new()));
        writer.publish(&mut world, FILTER, QoS::AtLeastOnce, 2);
        writer.publish(&mut world, "t", QoS::AtLeastOnce, 3);
        assert_eq!(client.received(&mut world), ["publish t AtLeastOnce 2"]);
        assert_eq!(unsubscribe(&mut client, &mut world), ["unsuback Success"]);
        assert_eq!(topology(&world), (false, Vec::new()));
    }
}
