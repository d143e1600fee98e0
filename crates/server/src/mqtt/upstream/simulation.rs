//! Whole conversations of MQTT clients in front of an upstream, on tokio's paused clock. The upstream is the embedded
//! broker, and the pool's connections to it are in process.

mod persistent_sessions;
mod subscribing;

use std::sync::Arc;
use std::time::Duration;

use ::mqtt::packet::{
    Ack, AckKind, ConnectPacket, Filters, Payload, PublishPacket, Requests, Subscribe, SubscribeOptions,
    SubscribeRequest, Unsubscribe, Will,
};
use ::mqtt::server::MqttSettings;
use ::mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, Property, PropertyList, QoS, ReasonCode};
use broker::{
    Binding, Broker, BrokerConfig, FrontEnd, Permissions, Queue, QueueDeclare, SessionId, Timestamp,
    TopicPermissions, VirtualHost,
};
use transport::{Intent, Outbox, Peer, Protocol};

use super::admission::SHARED_PREFIX;
use super::hub::UpstreamHub;
use crate::backend::Backend;
use crate::client::ClientConnection;
use crate::clock::Clock;
use crate::mqtt::simulation::{describe, send_last};
use crate::mqtt::{MqttBackend, MqttConfig, MqttConnection};
use crate::server::{Server, Shared};
use crate::simulated::{self, InProcessConnector};

const V5: MqttVersion = MqttVersion::V5;
const V311: MqttVersion = MqttVersion::V311;

/// The `mqtt_exchange`.
const EXCHANGE: &str = "amq.topic";

/// A time in which everything happens that waits for no deadline.
const SOON: Duration = Duration::from_millis(100);

/// An upstream, and a server in front of it.
struct World {
    upstream: Arc<Shared>,
    shared: Arc<Shared>,
    hub: Arc<UpstreamHub>,
    connector: Arc<InProcessConnector>,
    next_id: u64,
}

impl World {
    fn new() -> Self {
        let (broker, clock) = (Broker::new(BrokerConfig::default()), Clock::start());
        let upstream = simulated::server_of(broker, clock, 0).shared();
        let connector = InProcessConnector::to(&upstream);
        Self::with(upstream, connector, clock)
    }

    /// Another server in front of the same upstream.
    fn beside(&self) -> Self {
        Self::with(Arc::clone(&self.upstream), Arc::clone(&self.connector), self.hub.clock)
    }

    fn with(upstream: Arc<Shared>, connector: Arc<InProcessConnector>, clock: Clock) -> Self {
        let pool = connector.pool();
        let shared = Server::new(simulated::config(), Backend::Upstream(pool), clock, "test").shared();
        let settings = Arc::new(MqttSettings::default());
        let hub = UpstreamHub::new(MqttConfig::of_test(settings), clock);
        shared.set_mqtt(MqttBackend::Upstream(Arc::clone(&hub)));
        Self { upstream, shared, hub, connector, next_id: 1 }
    }

    /// Passes on the answers of the upstream, or holds them back.
    fn let_answers_through(&self, open: bool) {
        self.connector.let_answers_through(open);
    }

    fn vhost(&self) -> Arc<VirtualHost> {
        let Backend::Broker(broker) = &self.upstream.backend else { unreachable!() };
        broker.vhost("/").unwrap()
    }

    /// A client's queue upstream.
    fn queue(&self, client_id: &str) -> Option<Arc<Queue>> {
        let name = format!("mqtt-subscription-{client_id}qos1");
        self.vhost().all_queues().into_iter().find(|queue| **queue.name() == *name)
    }

    /// A queue upstream that is bound to a topic.
    fn listen(&self, topic: &str) -> Arc<Queue> {
        let (vhost, session) = (self.vhost(), SessionId(0));
        let declare = QueueDeclare { name: topic, ..QueueDeclare::default() };
        let declared = vhost.declare_queue(session, &declare, Timestamp(0)).unwrap();
        let binding =
            Binding { source: EXCHANGE, destination: topic, routing_key: topic, ..Binding::default() };
        vhost.bind_queue(session, &binding).unwrap();
        declared.queue
    }

    /// The queue that live subscriptions share.
    fn multiplexed_queue(&self) -> Arc<Queue> {
        let is_shared = |name: &str| name.starts_with(SHARED_PREFIX) && !name.contains("qos");
        self.vhost().all_queues().into_iter().find(|queue| is_shared(queue.name())).unwrap()
    }

    /// The keys that the shared queue is bound with.
    fn shared_keys(&self) -> Vec<String> {
        let bindings = self.vhost().bindings_to_queue(self.multiplexed_queue().name()).unwrap();
        let of_topics = bindings.into_iter().filter(|binding| &*binding.source == EXCHANGE);
        of_topics.map(|binding| binding.routing_key.to_string()).collect()
    }

    /// Deletes the shared queue, like an operator.
    fn delete_shared_queue(&self) {
        let (vhost, queue) = (self.vhost(), self.multiplexed_queue());
        let mut owners = self.connector.connection_ids().map(SessionId);
        assert!(owners.any(|owner| vhost.delete_queue(owner, queue.name(), false, false).is_ok()));
    }

    /// A client that is connected and has sent nothing.
    fn client(&mut self, version: MqttVersion) -> Client {
        let now = transport::now();
        let (connection, outbox) =
            simulated::connection(&self.shared, self.next_id, Peer::Unix, FrontEnd::Mqtt, now);
        self.next_id += 1;
        Client { connection, outbox, version }
    }

    /// Connects an MQTT 5.0 client with this session expiry in seconds. Returns the answer to its CONNECT as well.
    async fn connect(&mut self, client_id: &str, clean_start: bool, expiry: u32) -> (Client, Vec<String>) {
        let mut client = self.client(V5);
        client.connect(client_id, clean_start, expiry);
        let answer = client.answers().await;
        (client, answer)
    }

    /// Connects an MQTT 3.1.1 client with a persistent session. Returns the answer to its CONNECT as well.
    async fn resume(&mut self, client_id: &str) -> (Client, Vec<String>) {
        let mut client = self.client(V311);
        client.connect(client_id, false, 0);
        let answer = client.answers().await;
        (client, answer)
    }
}

/// A client, and the server's side of its connection.
struct Client {
    connection: ClientConnection<MqttConnection>,
    outbox: Arc<Outbox>,
    version: MqttVersion,
}

impl Client {
    /// Sends CONNECT.
    fn connect(&mut self, client_id: &str, clean_start: bool, expiry: u32) {
        self.connect_as(client_id, clean_start, expiry, None);
    }

    /// Sends CONNECT, with a will on `topic` that is delayed by this many seconds.
    fn connect_with_will(&mut self, client_id: &str, topic: &str, delay: u32) {
        let list = PropertyList::new().with(Property::WillDelayInterval(delay));
        let (qos, properties) = (QoS::AtLeastOnce, list.as_properties());
        let will = Will { topic, qos, retain: false, properties, payload: b"gone" };
        self.connect_as(client_id, true, u32::MAX, Some(will));
    }

    fn connect_as(&mut self, client_id: &str, clean_start: bool, expiry: u32, will: Option<Will<'_>>) {
        let list = PropertyList::new().with(Property::SessionExpiryInterval(expiry));
        let properties = if self.version.is_5() { list.as_properties() } else { PacketProperties::NONE };
        self.send(Packet::Connect(Box::new(ConnectPacket {
            clean_start,
            user_name: Some("guest"),
            password: Some(b"guest"),
            properties,
            will,
            ..ConnectPacket::new(self.version, client_id)
        })));
    }

    fn send(&mut self, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(self.version, &mut bytes);
        assert_eq!(self.connection.handle_input(&bytes, transport::now()), bytes.len());
    }

    fn subscribe(&mut self, filter: &str, qos: QoS) {
        self.subscribe_all([filter], qos);
    }

    /// Subscribes to all of these filters in one packet.
    fn subscribe_all<'a>(&mut self, filters: impl IntoIterator<Item = &'a str>, qos: QoS) {
        let mut buffer = Vec::new();
        let options = SubscribeOptions::of_qos(qos);
        let requests = filters.into_iter().map(|filter| SubscribeRequest { filter, options });
        let requests = Requests::write(&mut buffer, requests);
        self.send(Packet::Subscribe(Subscribe {
            packet_id: 1,
            properties: PacketProperties::NONE,
            requests,
        }));
    }

    fn unsubscribe(&mut self, filter: &str) {
        let mut buffer = Vec::new();
        let filters = Filters::write(&mut buffer, [filter]);
        self.send(Packet::Unsubscribe(Unsubscribe {
            packet_id: 1,
            properties: PacketProperties::NONE,
            filters,
        }));
    }

    fn publish(&mut self, topic: &str, qos: QoS, packet_id: u16, dup: bool) {
        let (properties, payload) = (PacketProperties::NONE, Payload::new(b"x"));
        let retain = false;
        self.send(Packet::Publish(PublishPacket { dup, qos, retain, topic, packet_id, properties, payload }));
    }

    fn release(&mut self, packet_id: u16) {
        self.send(Packet::Ack(Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success)));
    }

    /// The next answers to a client whose state queue is checked several times, since it is empty.
    async fn first_answer(&mut self) -> Vec<String> {
        for _ in 0..30 {
            let answers = self.answers().await;
            if !answers.is_empty() {
                return answers;
            }
        }
        Vec::new()
    }

    /// Lets all tasks run for a while. Returns the packets received.
    async fn answers(&mut self) -> Vec<String> {
        let mut packets = Vec::new();
        for _ in 0..10 {
            tokio::time::sleep(SOON / 10).await;
            self.connection.handle_nudge(transport::now());
            let bytes = self.outbox.read_all();
            let (mut decoder, mut rest) = (PacketDecoder::new(self.version, u32::MAX), &bytes[..]);
            while !rest.is_empty() {
                let step = decoder.decode(rest).unwrap();
                packets.extend(step.packet.map(describe));
                rest = &rest[step.taken..];
            }
        }
        packets
    }
}
