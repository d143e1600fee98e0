//! Shared subscriptions: what their members get, how they join and leave, and sessions that a client resumes with another
//! version of MQTT, in which `$share/g/t` has another meaning.

use std::sync::Barrier;
use std::thread;

use ::mqtt::packet::{Filters, Unsubscribe};

use super::*;
use crate::mqtt::leftovers;

const FILTER: &str = "$share/g/t";
const GROUP: &str = "mqtt-shared-subscription-g/t";

/// Whether the group's queue exists, and the bindings of the client's own queue.
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
    begin_unsubscribe(client);
    client.received(world)
}

fn begin_unsubscribe(client: &mut Client) {
    let mut buffer = Vec::new();
    let filters = Filters::write(&mut buffer, [FILTER]);
    take(
        client,
        Packet::Unsubscribe(Unsubscribe { packet_id: 2, properties: PacketProperties::NONE, filters }),
    );
}

fn begin_subscribe(client: &mut Client) {
    let mut buffer = Vec::new();
    let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: FILTER, options }]);
    take(client, Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests }));
}

/// Passes the client's packet to its connection; the answer may wait for the disk.
fn take(client: &mut Client, packet: Packet<'_>) {
    let mut bytes = Vec::new();
    packet.encode(client.version, &mut bytes);
    assert_eq!(client.connection.handle_input(&bytes, client.now), bytes.len());
}

/// Disconnects a member, with a crash of the server if it `restarts`.
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
        // It is still the same subscription, so no retained messages are sent for it.
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

#[test]
fn leading_wildcards_of_shared_subscriptions_match_no_dollar_topics() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let filters = ["$share/g/#", "$share/g/a/+", "$share/g/a/*"];
    for (number, filter) in filters.into_iter().enumerate() {
        let mut member = world.connected(MqttVersion::V5, &number.to_string(), 60);
        assert_eq!(member.subscribe_at(&mut world, filter, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
    }
    // Also for resumed sessions.
    let mut members = [0, 1, 2].map(|number: u32| resumed(&mut world, &number.to_string(), 60).0);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    for topic in ["$x/secret", "a/b", "a/*"] {
        writer.publish(&mut world, topic, QoS::AtLeastOnce, 1);
    }
    let got = members.each_mut().map(|member| member.received(&mut world));
    let (b, star) = ("publish a/b AtLeastOnce 1", "publish a/* AtLeastOnce");
    assert_eq!(got[0], [b.to_owned(), format!("{star} 2")]);
    assert_eq!(got[1], [b.to_owned(), format!("{star} 2")]);
    assert_eq!(got[2], [format!("{star} 1")], "a level * is a wildcard in AMQP alone");
    // Messages that are not sent have to be acknowledged all the same.
    let queues = world.hub.broker().vhost("/").unwrap().all_queues();
    let star = queues.iter().find(|queue| queue.name().ends_with("g/a.+")).unwrap();
    assert_eq!((star.message_count(), star.unacked_count()), (0, 1));
}

/// The threads start with different delays in each round.
#[test]
fn a_client_joins_a_group_while_its_last_member_leaves() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut leaving = world.connected(MqttVersion::V5, "one", 0);
    let mut joining = world.connected(MqttVersion::V5, "other", 0);
    assert_eq!(leaving.subscribe_at(&mut world, FILTER, QoS::AtLeastOnce), ["suback Granted QoS 1"]);
    for round in 0..1000 {
        let (begin, delay) = (Barrier::new(2), round % 50 * 20);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                begin_subscribe(&mut joining);
            });
            begin.wait();
            (0..delay).for_each(|_| std::hint::spin_loop());
            begin_unsubscribe(&mut leaving);
        });
        assert_eq!(leaving.received(&mut world), ["unsuback Success"]);
        assert_eq!(joining.received(&mut world), ["suback Granted QoS 1"], "round {round}");
        let queue = world.hub.broker().vhost("/").unwrap().queue(broker::SessionId(0), GROUP).unwrap();
        let noted = leftovers::noted_groups(world.hub.store().unwrap().catalogue()).unwrap();
        assert_eq!(noted.values().copied().collect::<Vec<_>>(), [queue.number().unwrap()], "round {round}");
        std::mem::swap(&mut leaving, &mut joining);
    }
}
