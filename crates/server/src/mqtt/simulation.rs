//! Whole conversations of MQTT clients with the embedded broker, stepped without sockets.

mod deleted_vhost;
mod dots;
mod external_authz;
mod found_queues;
mod in_flight;
mod million;
mod pending_retained;
mod received;
mod restarts;
mod retained;
mod sessions;
mod shared;
mod torn;
mod turns;
mod users;

use std::sync::Arc;
use std::time::Instant;

use ::mqtt::packet::{
    Ack, AckKind, ConnectPacket, Disconnect, Payload, PublishPacket, Reasons, Requests, Subscribe,
    SubscribeOptions, SubscribeRequest,
};
use ::mqtt::server::MqttSettings;
use ::mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, Property, PropertyList, QoS, ReasonCode};
use broker::{Broker, BrokerConfig, FrontEnd};
use store::disk::simulated::SimDisk;
use store::journal::JournalSettings;
use store::{Rounds, Store, StoreSettings};
use transport::{Intent, Outbox, Peer, Protocol};

use super::hub::Hub;
use super::{MqttBackend, MqttConfig, MqttConnection};
use crate::client::ClientConnection;
use crate::clock::Clock;
use crate::server::Shared;
use crate::simulated::{self, server_of};

/// A server, possibly with a disk, whose rounds the test runs.
struct World {
    shared: Arc<Shared>,
    hub: Arc<Hub>,
    rounds: Option<Rounds>,
    next_id: u64,
}

impl World {
    fn new() -> Self {
        Self::of(Broker::new(BrokerConfig::default()), None)
    }

    /// A server restored from a disk.
    fn on(disk: &SimDisk) -> Self {
        // Large enough for a test, but small, since each crash copies the disk.
        let settings = JournalSettings { segment_size: 1 << 20, ..JournalSettings::default() };
        Self::with(disk, settings)
    }

    fn with(disk: &SimDisk, settings: impl Into<StoreSettings>) -> Self {
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        let (store, mut rounds, recovered) = Store::open(Arc::new(disk.clone()), settings).unwrap();
        let is_new = store.catalogue().was_empty();
        let now = Clock::start().timestamp(Instant::now());
        broker.restore(&store, recovered, now).unwrap();
        if is_new {
            broker.add_defaults();
        }
        rounds.step();
        Self::of(broker, Some(rounds))
    }

    fn of(broker: Arc<Broker>, rounds: Option<Rounds>) -> Self {
        let clock = Clock::start();
        let server = server_of(Arc::clone(&broker), clock, 0);
        let config = MqttConfig {
            anonymous_user: Some("guest".to_owned()),
            ..MqttConfig::of_test(Arc::new(MqttSettings::default()))
        };
        let hub = Hub::new(broker, config, clock);
        hub.load(clock.timestamp(Instant::now())).unwrap();
        let shared = server.shared();
        shared.set_mqtt(MqttBackend::Broker(Arc::clone(&hub)));
        Self { shared, hub, rounds, next_id: 1 }
    }

    fn round(&mut self) {
        if let Some(rounds) = &mut self.rounds {
            rounds.step();
        }
    }

    fn client(&mut self, version: MqttVersion) -> Client {
        let now = Instant::now();
        let (connection, outbox) =
            simulated::connection(&self.shared, self.next_id, Peer::Unix, FrontEnd::Mqtt, now);
        self.next_id += 1;
        Client { connection, outbox, version, now }
    }

    /// A client that is admitted. With an `expiry` of 0 the session begins and ends with the connection.
    fn connected(&mut self, version: MqttVersion, name: &str, expiry: u32) -> Client {
        let mut client = self.client(version);
        let list = PropertyList::new().with(Property::SessionExpiryInterval(expiry));
        let properties = if version.is_5() { list.as_properties() } else { PacketProperties::NONE };
        let connect =
            ConnectPacket { clean_start: expiry == 0, properties, ..ConnectPacket::new(version, name) };
        let answer = client.send(self, Packet::Connect(Box::new(connect)));
        assert!(answer[0].starts_with("connack Success"), "{answer:?}");
        client
    }
}

/// A client, and the server's side of its connection.
struct Client {
    connection: ClientConnection<MqttConnection>,
    outbox: Arc<Outbox>,
    version: MqttVersion,
    now: Instant,
}

impl Client {
    fn send(&mut self, world: &mut World, packet: Packet<'_>) -> Vec<String> {
        let mut bytes = Vec::new();
        packet.encode(self.version, &mut bytes);
        let taken = self.connection.handle_input(&bytes, self.now);
        assert_eq!(taken, bytes.len());
        self.received(world)
    }

    /// Runs all disk writes, and returns the packets received.
    fn received(&mut self, world: &mut World) -> Vec<String> {
        let mut all = self.look();
        for _ in 0..3 {
            world.round();
            all.append(&mut self.look());
        }
        all
    }

    /// Returns the packets received, without running disk writes.
    fn look(&mut self) -> Vec<String> {
        self.connection.handle_nudge(self.now);
        let bytes = self.outbox.read_all();
        let (mut decoder, mut rest) = (PacketDecoder::new(self.version, u32::MAX), &bytes[..]);
        let mut packets = Vec::new();
        while !rest.is_empty() {
            let step = decoder.decode(rest).unwrap();
            packets.extend(step.packet.map(describe));
            rest = &rest[step.taken..];
        }
        packets
    }

    /// Returns the packets received after another connection has claimed the session. The socket has no further input.
    fn taken_over(&mut self) -> Vec<String> {
        assert!(self.look().is_empty(), "the socket is to be read first");
        self.look()
    }

    fn subscribe(&mut self, world: &mut World, filter: &str, options: SubscribeOptions) -> Vec<String> {
        let mut buffer = Vec::new();
        let requests = Requests::write(&mut buffer, [SubscribeRequest { filter, options }]);
        let packet = Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests };
        self.send(world, Packet::Subscribe(packet))
    }

    fn subscribe_at(&mut self, world: &mut World, filter: &str, qos: QoS) -> Vec<String> {
        self.subscribe(world, filter, SubscribeOptions::of_qos(qos))
    }

    fn publish(&mut self, world: &mut World, topic: &str, qos: QoS, packet_id: u16) -> Vec<String> {
        self.send(world, Packet::Publish(message(topic, qos, packet_id)))
    }

    fn ack(&mut self, world: &mut World, kind: AckKind, packet_id: u16) -> Vec<String> {
        self.send(world, Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)))
    }
}

fn message(topic: &str, qos: QoS, packet_id: u16) -> PublishPacket<'_> {
    PublishPacket {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id,
        properties: PacketProperties::NONE,
        payload: Payload::new(b"x"),
    }
}

/// Sends a client's last packets: the acknowledgement of the message with this packet identifier, and DISCONNECT.
pub(super) async fn send_last(mut socket: tokio::io::DuplexStream, version: MqttVersion, packet_id: u16) {
    let mut bytes = Vec::new();
    Packet::Ack(Ack::new(AckKind::PubAck, packet_id, ReasonCode::Success)).encode(version, &mut bytes);
    Packet::Disconnect(Disconnect::new(ReasonCode::Success)).encode(version, &mut bytes);
    tokio::io::AsyncWriteExt::write_all(&mut socket, &bytes).await.unwrap();
}

pub(super) fn describe(packet: Packet<'_>) -> String {
    match packet {
        Packet::ConnAck(ack) => {
            format!("connack {}{}", ack.reason.text(), if ack.session_present { " present" } else { "" })
        }
        Packet::Publish(publish) => {
            let retain = if publish.retain { " retain" } else { "" };
            let dup = if publish.dup { " dup" } else { "" };
            format!("publish {} {:?} {}{dup}{retain}", publish.topic, publish.qos, publish.packet_id)
        }
        Packet::Ack(ack) => format!("{:?} {} {}", ack.kind, ack.packet_id, ack.reason.text()).to_lowercase(),
        Packet::SubAck(ack) => format!("suback {}", texts(&ack.reasons)),
        Packet::UnsubAck(ack) => format!("unsuback {}", texts(&ack.reasons)),
        Packet::Disconnect(disconnect) => format!("disconnect {}", disconnect.reason.text()),
        other => format!("{other:?}"),
    }
}

fn texts(reasons: &Reasons<'_>) -> String {
    reasons.iter().map(ReasonCode::text).collect::<Vec<_>>().join(",")
}

/// Connects a client that resumes its session, with this session expiry in seconds; returns the packets that it gets.
fn resumed(world: &mut World, name: &str, expiry: u32) -> (Client, Vec<String>) {
    let mut client = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(expiry));
    let properties = if expiry > 0 { list.as_properties() } else { PacketProperties::NONE };
    let connect =
        ConnectPacket { clean_start: false, properties, ..ConnectPacket::new(MqttVersion::V5, name) };
    let answers = client.send(world, Packet::Connect(Box::new(connect)));
    (client, answers)
}

#[test]
fn a_message_is_delivered_at_the_lower_qos_of_publisher_and_subscriber() {
    let mut world = World::new();
    let mut reader = world.connected(MqttVersion::V311, "reader", 0);
    assert_eq!(reader.subscribe_at(&mut world, "a/+", QoS::AtLeastOnce), ["suback Granted QoS 1"]);
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    assert_eq!(writer.publish(&mut world, "a/b", QoS::ExactlyOnce, 7), ["pubrec 7 success"]);
    assert_eq!(
        writer.publish(&mut world, "nobody", QoS::AtLeastOnce, 8),
        ["puback 8 no matching subscribers"]
    );
    assert_eq!(reader.received(&mut world), ["publish a/b AtLeastOnce 1"]);
    writer.publish(&mut world, "a/c", QoS::AtMostOnce, 0);
    assert_eq!(reader.received(&mut world), ["publish a/c AtMostOnce 0"]);
}

#[test]
fn retained_messages_come_to_later_subscribers_on_wildcards_too() {
    let mut world = World::new();
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    for topic in ["a/1", "a/2"] {
        writer.send(
            &mut world,
            Packet::Publish(PublishPacket { retain: true, ..message(topic, QoS::AtMostOnce, 0) }),
        );
    }
    let clear =
        PublishPacket { retain: true, payload: Payload::new(b""), ..message("a/2", QoS::AtMostOnce, 0) };
    writer.send(&mut world, Packet::Publish(clear));
    let mut reader = world.connected(MqttVersion::V311, "reader", 0);
    let answers = reader.subscribe_at(&mut world, "a/#", QoS::AtMostOnce);
    assert_eq!(answers, ["suback Success", "publish a/1 AtMostOnce 0 retain"]);
}

#[test]
fn a_second_connection_takes_the_session_over() {
    let mut world = World::new();
    let mut first = world.connected(MqttVersion::V5, "me", 60);
    first.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    let mut second = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let connect = ConnectPacket {
        clean_start: false,
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "me")
    };
    assert!(second.send(&mut world, Packet::Connect(Box::new(connect))).is_empty());
    assert_eq!(first.taken_over(), ["disconnect Session taken over"]);
    assert_eq!(first.connection.intent(), Intent::Finish);
    assert_eq!(second.look(), ["connack Success present"]);
    assert_eq!(second.publish(&mut world, "t", QoS::AtMostOnce, 0), ["publish t AtMostOnce 0"]);
}

#[test]
fn a_reconnecting_client_gets_unacknowledged_and_newly_queued_messages() {
    let mut world = World::new();
    let mut reader = world.connected(MqttVersion::V311, "reader", 1);
    reader.subscribe_at(&mut world, "t/#", QoS::AtLeastOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, "t/1", QoS::AtLeastOnce, 1);
    assert_eq!(reader.received(&mut world), ["publish t/1 AtLeastOnce 1"]);
    drop(reader);
    writer.publish(&mut world, "t/2", QoS::AtLeastOnce, 2);
    let mut reader = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "reader") };
    let answers = reader.send(&mut world, Packet::Connect(Box::new(connect)));
    let expected = ["connack Success present", "publish t/1 AtLeastOnce 1 dup", "publish t/2 AtLeastOnce 2"];
    assert_eq!(answers, expected);
    reader.ack(&mut world, AckKind::PubAck, 1);
    reader.ack(&mut world, AckKind::PubAck, 2);
    let queue = world.hub.broker().vhost("/").unwrap();
    let queue = queue.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap();
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0));
}

#[test]
fn sessions_end_with_their_time_and_wills_are_published_after_their_delay() {
    let mut world = World::new();
    let mut reader = world.connected(MqttVersion::V5, "reader", 0);
    reader.subscribe_at(&mut world, "will", QoS::AtMostOnce);
    let mut client = world.client(MqttVersion::V5);
    let list = PropertyList::new().with(Property::SessionExpiryInterval(60));
    let will_list = PropertyList::new().with(Property::WillDelayInterval(5));
    let will = ::mqtt::packet::Will {
        qos: QoS::AtMostOnce,
        retain: false,
        properties: will_list.as_properties(),
        topic: "will",
        payload: b"gone",
    };
    let connect = ConnectPacket {
        will: Some(will),
        properties: list.as_properties(),
        ..ConnectPacket::new(MqttVersion::V5, "mortal")
    };
    client.send(&mut world, Packet::Connect(Box::new(connect)));
    client.subscribe_at(&mut world, "x", QoS::AtLeastOnce);
    drop(client);
    assert!(reader.received(&mut world).is_empty());
    let due = world.hub.next_deadline().unwrap();
    world.hub.expire(due);
    assert_eq!(reader.received(&mut world), ["publish will AtMostOnce 0"]);
    let vhost = world.hub.broker().vhost("/").unwrap();
    let queue = || vhost.queue(broker::SessionId(0), "mqtt-subscription-mortalqos1");
    assert!(queue().is_ok());
    let end = world.hub.next_deadline().unwrap();
    assert!(end > due);
    world.hub.expire(end);
    assert!(queue().is_err() && world.hub.next_deadline().is_none());
}

#[test]
fn a_shared_subscription_gives_each_message_to_one() {
    let mut world = World::new();
    let mut workers: Vec<_> =
        ["w1", "w2"].into_iter().map(|name| world.connected(MqttVersion::V5, name, 0)).collect();
    for worker in &mut workers {
        worker.subscribe_at(&mut world, "$share/g/jobs/#", QoS::AtMostOnce);
    }
    let mut writer = world.connected(MqttVersion::V5, "writer", 0);
    for _ in 0..10 {
        writer.publish(&mut world, "jobs/1", QoS::AtMostOnce, 0);
    }
    let counts: Vec<_> = workers.iter_mut().map(|worker| worker.received(&mut world).len()).collect();
    assert_eq!(counts, [5, 5]);
    let disconnect = Disconnect { reason: ReasonCode::Success, properties: PacketProperties::NONE };
    for worker in &mut workers {
        worker.send(&mut world, Packet::Disconnect(disconnect));
    }
    let vhost = world.hub.broker().vhost("/").unwrap();
    assert!(vhost.queue(broker::SessionId(0), "mqtt-shared-subscription-g/jobs.#").is_err());
}

#[test]
fn no_local_subscriptions_get_no_own_messages() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V5, "me", 0);
    let options = SubscribeOptions { no_local: true, ..SubscribeOptions::of_qos(QoS::AtMostOnce) };
    client.subscribe(&mut world, "t", options);
    assert!(client.publish(&mut world, "t", QoS::AtMostOnce, 0).is_empty());
    let mut other = world.connected(MqttVersion::V5, "other", 0);
    other.publish(&mut world, "t", QoS::AtMostOnce, 0);
    assert_eq!(client.received(&mut world), ["publish t AtMostOnce 0"]);
}

#[test]
fn a_client_refused_at_connect_gets_the_reason() {
    let mut world = World::new();
    let mut client = world.client(MqttVersion::V5);
    let connect = ConnectPacket {
        user_name: Some("guest"),
        password: Some(b"wrong"),
        ..ConnectPacket::new(MqttVersion::V5, "x")
    };
    let answer = client.send(&mut world, Packet::Connect(Box::new(connect)));
    assert_eq!(answer, ["connack Bad User Name or Password"]);
    let mut client = world.client(MqttVersion::V5);
    let connect = ConnectPacket {
        user_name: Some("nowhere:guest"),
        password: Some(b"guest"),
        ..ConnectPacket::new(MqttVersion::V5, "x")
    };
    let answer = client.send(&mut world, Packet::Connect(Box::new(connect)));
    assert_eq!(answer, ["connack Bad User Name or Password"]);
    let mut client = world.client(MqttVersion::V5);
    let long = "x".repeat(240);
    let answer =
        client.send(&mut world, Packet::Connect(Box::new(ConnectPacket::new(MqttVersion::V5, &long))));
    assert_eq!(answer, ["connack Client Identifier not valid"]);
}

#[test]
fn an_acknowledgement_waits_for_the_disk_and_the_message_survives() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V311, "reader", 1);
    reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(reader);
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    let mut bytes = Vec::new();
    message("t", QoS::AtLeastOnce, 9).encode(MqttVersion::V311, &mut bytes);
    writer.connection.handle_input(&bytes, writer.now);
    assert!(writer.look().is_empty(), "it is not on disk");
    assert_eq!(writer.received(&mut world), ["puback 9 success"]);
    drop((writer, world));

    let mut world = World::on(&disk);
    let mut reader = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "reader") };
    let answers = reader.send(&mut world, Packet::Connect(Box::new(connect)));
    assert_eq!(answers, ["connack Success present", "publish t AtLeastOnce 1"]);
}

#[test]
fn a_message_of_qos_2_is_published_once_across_a_restart() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V311, "reader", 1);
    reader.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    drop(reader);
    let mut writer = world.connected(MqttVersion::V311, "writer", 1);
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"]);
    drop((writer, world));

    let mut world = World::on(&disk);
    let mut writer = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "writer") };
    writer.send(&mut world, Packet::Connect(Box::new(connect)));
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"], "known");
    assert_eq!(writer.ack(&mut world, AckKind::PubRel, 5), ["pubcomp 5 success"]);
    assert_eq!(writer.publish(&mut world, "t", QoS::ExactlyOnce, 5), ["pubrec 5 success"], "another one");
    let vhost = world.hub.broker().vhost("/").unwrap();
    let queue = vhost.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap();
    assert_eq!(queue.message_count(), 2);
}

#[test]
fn a_message_of_qos_2_keeps_its_identifier_across_a_restart() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V311, "reader", 1);
    reader.subscribe_at(&mut world, "t", QoS::ExactlyOnce);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 1);
    writer.publish(&mut world, "t", QoS::ExactlyOnce, 2);
    let received = reader.received(&mut world);
    assert_eq!(received, ["publish t ExactlyOnce 1", "publish t ExactlyOnce 2"]);
    assert_eq!(reader.ack(&mut world, AckKind::PubRec, 1), ["pubrel 1 success"]);
    // Killed: the connections must send nothing more.
    std::mem::forget((reader, writer));
    drop(world);

    let mut world = World::on(&disk);
    let mut reader = world.client(MqttVersion::V311);
    let connect = ConnectPacket { clean_start: false, ..ConnectPacket::new(MqttVersion::V311, "reader") };
    let answers = reader.send(&mut world, Packet::Connect(Box::new(connect)));
    let expected = ["connack Success present", "pubrel 1 success", "publish t ExactlyOnce 2 dup"];
    assert_eq!(answers, expected);
    assert!(reader.ack(&mut world, AckKind::PubComp, 1).is_empty());
    assert_eq!(reader.ack(&mut world, AckKind::PubRec, 2), ["pubrel 2 success"]);
    assert!(reader.ack(&mut world, AckKind::PubComp, 2).is_empty());
    let vhost = world.hub.broker().vhost("/").unwrap();
    let queue = vhost.queue(broker::SessionId(0), "mqtt-subscription-readerqos1").unwrap();
    assert_eq!((queue.message_count(), queue.unacked_count()), (0, 0), "no message is left to be sent again");
}

#[test]
fn retained_messages_survive_a_restart() {
    let disk = SimDisk::new(1, 1 << 30);
    let mut world = World::on(&disk);
    let mut writer = world.connected(MqttVersion::V311, "writer", 0);
    let kept = PublishPacket { retain: true, ..message("a/b", QoS::AtLeastOnce, 1) };
    assert_eq!(writer.send(&mut world, Packet::Publish(kept)), ["puback 1 success"]);
    drop((writer, world));
    let mut world = World::on(&disk);
    let mut reader = world.connected(MqttVersion::V311, "reader", 0);
    let answers = reader.subscribe_at(&mut world, "#", QoS::AtLeastOnce);
    assert_eq!(answers, ["suback Granted QoS 1", "publish a/b AtLeastOnce 1 retain"]);
}

#[test]
fn a_client_without_a_session_leaves_nothing() {
    let mut world = World::new();
    let mut client = world.connected(MqttVersion::V311, "brief", 0);
    client.subscribe_at(&mut world, "t", QoS::AtLeastOnce);
    client.subscribe_at(&mut world, "u", QoS::AtMostOnce);
    drop(client);
    let vhost = world.hub.broker().vhost("/").unwrap();
    for queue in ["mqtt-subscription-briefqos0", "mqtt-subscription-briefqos1"] {
        assert!(vhost.queue(broker::SessionId(0), queue).is_err(), "{queue}");
    }
}

/// User Properties of about `len` bytes in all.
fn user_properties(len: usize) -> PropertyList {
    let value = "x".repeat(500);
    let names: Vec<String> = (0..len / 500).map(|number| format!("name{number:03}")).collect();
    names.iter().fold(PropertyList::new(), |list, name| list.with(Property::UserProperty(name, &value)))
}

#[test]
fn properties_that_consumers_of_amqp_cannot_be_sent_are_refused() {
    let mut world = World::new();
    // The maximum frame size is 4 KiB here.
    let (fits, too_large) = (user_properties(2_500), user_properties(4_000));
    let mut client = world.connected(MqttVersion::V5, "me", 0);
    client.subscribe_at(&mut world, "t", QoS::AtMostOnce);
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let ack = if qos == QoS::AtLeastOnce { "puback" } else { "pubrec" };
        let large = PublishPacket { properties: too_large.as_properties(), ..message("t", qos, 1) };
        assert_eq!(client.send(&mut world, Packet::Publish(large)), [format!("{ack} 1 quota exceeded")]);
    }
    let small = PublishPacket { properties: fits.as_properties(), ..message("t", QoS::AtLeastOnce, 1) };
    let mut answers = client.send(&mut world, Packet::Publish(small));
    answers.sort();
    assert_eq!(answers, ["puback 1 success", "publish t AtMostOnce 0"]);
    let large = PublishPacket { properties: too_large.as_properties(), ..message("t", QoS::AtMostOnce, 0) };
    assert_eq!(client.send(&mut world, Packet::Publish(large)), ["disconnect Quota exceeded"]);
    for (properties, expected) in [(&fits, "connack Success"), (&too_large, "connack Quota exceeded")] {
        let properties = properties.as_properties();
        let (topic, payload, retain) = ("will", &b"gone"[..], false);
        let will = ::mqtt::packet::Will { qos: QoS::AtMostOnce, retain, properties, topic, payload };
        let connect = ConnectPacket { will: Some(will), ..ConnectPacket::new(MqttVersion::V5, "mortal") };
        let mut client = world.client(MqttVersion::V5);
        assert_eq!(client.send(&mut world, Packet::Connect(Box::new(connect))), [expected]);
    }
}
