//! Users whose operations another auth backend authorises.

use super::torn::{log_end, torn_at};
use super::*;
use crate::simulated::SimulatedAuthzBackend;

/// Connects a client as `alice`, who is not in the broker's own list, with a persistent session.
fn alice(world: &mut World, authz: &SimulatedAuthzBackend, name: &str) -> (Client, Vec<String>) {
    connect(world, authz, ("alice", name), None)
}

fn connect(
    world: &mut World,
    authz: &SimulatedAuthzBackend,
    (user, name): (&str, &str),
    will: Option<::mqtt::packet::Will<'_>>,
) -> (Client, Vec<String>) {
    let mut client = world.client(MqttVersion::V311);
    let connect = ConnectPacket {
        clean_start: false,
        user_name: Some(user),
        password: Some(b"secret"),
        will,
        ..ConnectPacket::new(MqttVersion::V311, name)
    };
    let mut bytes = Vec::new();
    Packet::Connect(Box::new(connect)).encode(MqttVersion::V311, &mut bytes);
    authz.run(|| client.connection.handle_input(&bytes, client.now));
    let answers = settled(&mut client, world, authz);
    (client, answers)
}

/// Returns the packets received until no answer or write is outstanding.
fn settled(client: &mut Client, world: &mut World, authz: &SimulatedAuthzBackend) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..16 {
        all.append(&mut authz.run(|| client.received(world)));
    }
    all
}

fn send(
    client: &mut Client,
    world: &mut World,
    authz: &SimulatedAuthzBackend,
    packet: Packet<'_>,
) -> Vec<String> {
    let mut all = authz.run(|| client.send(world, packet));
    all.append(&mut settled(client, world, authz));
    all
}

fn counts(world: &World, names: [&str; 2]) -> [u64; 2] {
    let vhost = world.hub.broker().vhost("/").unwrap();
    names.map(|name| {
        let name = format!("mqtt-subscription-{name}qos1");
        vhost.queue(broker::SessionId(0), &name).unwrap().message_count()
    })
}

#[test]
fn a_qos_2_message_that_waits_for_permission_goes_only_to_the_missing_queues() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    for name in ["r1", "r2"] {
        let mut reader = world.connected(MqttVersion::V311, name, 1);
        reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    }
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let (mut writer, _) = alice(&mut world, &authz, "writer");
    let publish = message("t", QoS::ExactlyOnce, 5);
    let answers = send(&mut writer, &mut world, &authz, Packet::Publish(publish));
    assert_eq!(answers, ["pubrec 5 success"]);
    let disk = torn_at(&disk, log_end(&disk) - 1);
    std::mem::forget(writer);
    drop((world, authz));

    let mut world = World::on(&disk);
    assert_eq!(counts(&world, ["r1", "r2"]).iter().sum::<u64>(), 1);
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let (mut writer, answers) = alice(&mut world, &authz, "writer");
    assert_eq!(answers, ["connack Success present"]);
    authz.asked();
    let again = PublishPacket { dup: true, ..publish };
    let answers = send(&mut writer, &mut world, &authz, Packet::Publish(again));
    assert_eq!(answers, ["pubrec 5 success"]);
    assert_eq!(authz.asked(), ["write exchange amq.topic", "write topic amq.topic t"]);
    assert_eq!(counts(&world, ["r1", "r2"]), [1, 1]);
}

#[test]
fn a_will_is_asked_about_at_connect_and_published_as_soon_as_its_client_has_gone() {
    let mut world = World::new();
    let mut reader = world.connected(MqttVersion::V311, "reader", 0);
    reader.subscribe_at(&mut world, "gone", QoS::AtMostOnce);
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let will = ::mqtt::packet::Will {
        qos: QoS::AtMostOnce,
        retain: false,
        properties: PacketProperties::NONE,
        topic: "gone",
        payload: b"me",
    };
    let (client, answers) = connect(&mut world, &authz, ("alice", "mortal"), Some(will));
    assert_eq!(answers, ["connack Success"]);
    assert_eq!(authz.asked(), ["write exchange amq.topic", "write topic amq.topic gone"]);
    // No task runs here, so the will cannot have waited for one.
    drop(client);
    assert_eq!(reader.received(&mut world), ["publish gone AtMostOnce 0"]);
}

#[test]
fn a_client_returns_to_a_queue_without_a_session() {
    let mut world = World::new();
    let vhost = world.hub.broker().vhost("/").unwrap();
    let queue = broker::QueueDeclare {
        name: "mqtt-subscription-meqos1",
        durable: true,
        ..broker::QueueDeclare::default()
    };
    vhost.declare_queue(broker::SessionId(0), &queue, broker::Timestamp::default()).unwrap();
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let (_client, answers) = alice(&mut world, &authz, "me");
    assert_eq!(answers, ["connack Success present"]);
    let asked = ["configure queue mqtt-subscription-meqos1", "read queue mqtt-subscription-meqos1"];
    assert_eq!(authz.asked(), asked);
}

#[test]
fn a_session_stays_its_users_when_another_backend_decides_about_the_rights() {
    let mut world = World::new();
    drop(world.connected(MqttVersion::V311, "me", 60));
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let (_client, answers) = alice(&mut world, &authz, "me");
    assert_eq!(answers, ["connack Server unavailable"], "the session belongs to another user");
    let (_client, answers) = connect(&mut world, &authz, ("guest", "me"), None);
    assert_eq!(answers, ["connack Success present"]);
}

#[test]
fn all_subscriptions_of_a_session_are_asked_about_in_one_pass_and_resumed() {
    const FILTERS: usize = 1200;
    let mut world = World::new();
    let authz = SimulatedAuthzBackend::of(world.hub.broker());
    let (mut client, _) = alice(&mut world, &authz, "me");
    for number in 0..FILTERS {
        let (filter, mut buffer) = (format!("t/{number}"), Vec::new());
        let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
        let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: &filter, options }]);
        let packet = Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests };
        authz.run(|| client.send(&mut world, Packet::Subscribe(packet)));
        for _ in 0..6 {
            authz.run(|| client.look());
        }
    }
    drop(client);
    authz.asked();
    authz.hold_back();
    let (mut client, answers) = alice(&mut world, &authz, "me");
    assert_eq!(answers, [""; 0]);
    // The limit of 64 applies to one operation's questions, not to those of a session.
    assert!(authz.asked().len() < 64);
    authz.release(broker::AuthzDecision::Allowed);
    let answers = settled(&mut client, &mut world, &authz);
    assert_eq!(answers, ["connack Success present"]);
    let topics = authz.asked().iter().filter(|asked| asked.starts_with("read topic")).count();
    assert!(topics <= FILTERS, "each is asked about once");
}
