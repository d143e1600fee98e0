//! MQTT sessions in front of an upstream, each with a live subscription: those to the same topics share a queue there.

use ::mqtt::packet::{
    ConnectPacket, Payload, PublishPacket, Requests, Subscribe, SubscribeOptions, SubscribeRequest,
};
use ::mqtt::server::MqttSettings;
use ::mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, QoS};
use broker::{Broker, BrokerConfig};

use super::*;
use crate::mqtt::{MqttBackend, MqttConfig, MqttConnection, UpstreamHub};
use crate::simulated::InProcessConnector;

const V311: MqttVersion = MqttVersion::V311;
/// Number of topics, each with many sessions.
const TOPICS: usize = 1000;
/// Queues upstream: the shared one, the takeover queue, and the log of retained messages.
const MAX_QUEUES: usize = 3;

#[tokio::test]
#[ignore = "a measurement of minutes: make capacity"]
async fn each_mqtt_session_in_front_of_an_upstream_takes_less_than_10_kib() {
    let broker = Broker::new(BrokerConfig::default());
    let upstream = simulated::server_of(broker, Clock::start(), 0).shared();
    let Backend::Broker(broker) = &upstream.backend else { unreachable!() };
    let vhost = broker.vhost("/").unwrap();
    let world = World::new(Backend::Upstream(InProcessConnector::to(&upstream).pool()), FrontEnd::Mqtt);
    let settings = Arc::new(MqttSettings::default());
    let config = MqttConfig::of_test(settings);
    world.shared.set_mqtt(MqttBackend::Upstream(UpstreamHub::new(config, Clock::start())));

    let count = count();
    let mut members = Vec::with_capacity(count);
    for number in 0..100.max(TOPICS) {
        members.push(open(&world, number).await);
    }
    let (before, first, begun) = (resident_bytes(), members.len(), Instant::now());
    while members.len() < count {
        members.push(open(&world, members.len()).await);
    }
    let grown = resident_bytes() - before;
    let each = grown / (count - first) as u64;
    let opened = begun.elapsed();
    println!("{count} MQTT sessions: opened in {opened:.1?}, {each} bytes each, {} MiB", grown >> 20);
    let queues = vhost.all_queues().len();
    println!("{queues} queues upstream");
    assert!(queues <= MAX_QUEUES);

    let (cpu, begun) = (cpu_seconds(), Instant::now());
    for (topic, member) in members.iter_mut().take(TOPICS).enumerate() {
        member.publish(topic);
        while member.delivered == 0 {
            yield_now().await;
            member.read();
        }
    }
    for member in &mut members {
        while member.delivered == 0 {
            yield_now().await;
            member.read();
        }
    }
    println!(
        "a message to each, {TOPICS} of them through the upstream: {:.1?}, {:.1} s of CPU, both ends",
        begun.elapsed(),
        cpu_seconds() - cpu
    );
    assert!(members.iter().all(|member| member.delivered == 1));
    assert_eq!(world.open_connections(), count, "all have stayed");
    assert!(each < ALLOWED_BYTES, "{each} bytes each");
    world.drop_all(members.iter().map(|member| &member.end)).await;
}

/// A session with a subscription.
async fn open(world: &World, number: usize) -> Member {
    let mut member = Member { end: world.connect::<MqttConnection>(number).await, delivered: 0, answered: 0 };
    member.send(Packet::Connect(Box::new(ConnectPacket {
        clean_start: true,
        user_name: Some("guest"),
        password: Some(b"guest"),
        ..ConnectPacket::new(V311, &number.to_string())
    })));
    member.wait_for_answers(1).await;
    let (mut buffer, filter) = (Vec::new(), topic_of(number));
    let options = SubscribeOptions::of_qos(QoS::AtMostOnce);
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: &filter, options }]);
    member.send(Packet::Subscribe(Subscribe { packet_id: 1, properties: PacketProperties::NONE, requests }));
    member.wait_for_answers(2).await;
    member
}

fn topic_of(number: usize) -> String {
    format!("topic/{}", number % TOPICS)
}

/// A client, played by the test.
struct Member {
    end: ClientEnd,
    /// Messages received.
    delivered: u32,
    /// Other packets received.
    answered: u32,
}

impl Member {
    fn send(&self, packet: Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(V311, &mut bytes);
        self.end.send(&bytes);
    }

    fn publish(&self, number: usize) {
        let (properties, payload) = (PacketProperties::NONE, Payload::new(b"a message now and then"));
        let (dup, retain, packet_id, qos, topic) = (false, false, 0, QoS::AtMostOnce, &*topic_of(number));
        self.send(Packet::Publish(PublishPacket { dup, qos, retain, topic, packet_id, properties, payload }));
    }

    async fn wait_for_answers(&mut self, count: u32) {
        while self.answered < count {
            yield_now().await;
            self.read();
        }
    }

    fn read(&mut self) {
        let bytes = self.end.read();
        let (mut decoder, mut rest) = (PacketDecoder::new(V311, u32::MAX), &bytes[..]);
        while !rest.is_empty() {
            let step = decoder.decode(rest).unwrap();
            match step.packet {
                Some(Packet::Publish(_)) => self.delivered += 1,
                Some(_) => self.answered += 1,
                None => {}
            }
            rest = &rest[step.taken..];
        }
    }
}
