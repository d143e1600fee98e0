//! Packets and bytes per second of the codec, and messages per second of a connection: `cargo bench -p mqtt`.
//!
//! Decoding borrows the payloads and does not touch them, so the useful figure there is messages per second.

use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mqtt::packet::{Ack, AckKind, ConnectPacket, Payload, PublishPacket};
use mqtt::server::{MqttEvent, MqttSettings, ServerConnection};
use mqtt::session::OutgoingMessage;
use mqtt::{MqttVersion, Packet, PacketDecoder, PacketProperties, Property, PropertyList, QoS, ReasonCode};

/// Bytes of payload: a measured value, a common message, and a large one.
const SIZES: [usize; 3] = [16, 1024, 64 * 1024];
/// Bytes in one receive buffer.
const BUFFER: usize = 256 * 1024;
const TOPIC: &str = "site/7/sensor/12/temperature";

/// A receive buffer full of PUBLISH packets, and their number.
fn published(version: MqttVersion, size: usize, qos: QoS) -> (Vec<u8>, usize) {
    let list = PropertyList::new()
        .with(Property::ContentType("application/json"))
        .with(Property::UserProperty("trace", "0af7651916cd43dd"));
    let properties = if version.is_5() { list.as_properties() } else { PacketProperties::NONE };
    let payload = vec![7; size];
    let packet_id = u16::from(qos != QoS::AtMostOnce);
    let payload = Payload::new(&payload);
    let publish =
        PublishPacket { dup: false, qos, retain: false, topic: TOPIC, packet_id, properties, payload };
    let (mut out, mut count) = (Vec::new(), 0);
    while out.len() < BUFFER {
        publish.encode(version, &mut out);
        count += 1;
    }
    (out, count)
}

fn decode(c: &mut Criterion) {
    for (name, version) in [("decode_3.1.1", MqttVersion::V311), ("decode_5.0", MqttVersion::V5)] {
        let mut group = c.benchmark_group(name);
        for size in SIZES {
            let (input, count) = published(version, size, QoS::AtMostOnce);
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter(|| {
                    let mut decoder = PacketDecoder::new(version, u32::MAX);
                    let mut at = 0;
                    while at < input.len() {
                        at += black_box(decoder.decode(&input[at..]).expect("it is valid")).taken;
                    }
                });
            });
        }
        group.finish();
    }
}

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode");
    for size in SIZES {
        let payload = vec![7; size];
        let payload = Payload::new(&payload);
        let (qos, properties) = (QoS::AtMostOnce, PacketProperties::NONE);
        let publish =
            PublishPacket { dup: false, qos, retain: false, topic: TOPIC, packet_id: 0, properties, payload };
        let mut out = Vec::with_capacity(BUFFER);
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| {
                out.clear();
                black_box(&publish).encode(MqttVersion::V5, &mut out);
            });
        });
    }
    group.finish();
}

fn connected() -> ServerConnection {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    Packet::Connect(Box::new(ConnectPacket::new(MqttVersion::V5, "c"))).encode(MqttVersion::V5, &mut bytes);
    let (mut connection, now) = (ServerConnection::new(MqttSettings::default()), Instant::now());
    connection.handle_input(&bytes, now, &mut out);
    connection.accept(None, None, now, &mut out);
    connection
}

/// Messages of QoS 1 through a connection, in both directions.
fn sessions(c: &mut Criterion) {
    let mut group = c.benchmark_group("session");
    let (input, count) = published(MqttVersion::V5, 16, QoS::AtLeastOnce);
    let (mut connection, mut out, now) = (connected(), Vec::new(), Instant::now());
    group.throughput(Throughput::Elements(count as u64));
    group.bench_function("publish_and_accept", |b| {
        b.iter(|| {
            out.clear();
            let mut at = 0;
            while at < input.len() {
                let step = connection.handle_input(&input[at..], now, &mut out);
                at += step.taken;
                if let Some(MqttEvent::Publish(publish)) = step.event {
                    let packet_id = publish.packet_id;
                    connection.accepted(packet_id, true, &mut out);
                }
            }
        });
    });
    let (qos, properties, payload) = (QoS::AtLeastOnce, PropertyList::new(), Bytes::from_static(&[7; 16]));
    let message =
        OutgoingMessage { topic: TOPIC.into(), qos, retain: false, redelivered: false, properties, payload };
    let mut ack = Vec::new();
    group.throughput(Throughput::Elements(1));
    group.bench_function("deliver_and_ack", |b| {
        b.iter(|| {
            out.clear();
            let sent = connection.deliver(message.clone(), 1, &mut out).expect("there is room");
            ack.clear();
            let packet_id = sent.expect("it has an identifier");
            Ack::new(AckKind::PubAck, packet_id, ReasonCode::Success).encode(MqttVersion::V5, &mut ack);
            black_box(connection.handle_input(&ack, now, &mut out));
        });
    });
    group.finish();
}

criterion_group!(benches, decode, encode, sessions);
criterion_main!(benches);
