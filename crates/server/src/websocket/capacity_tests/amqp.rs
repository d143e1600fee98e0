//! AMQP sessions on the embedded broker.

use std::time::{Duration, Instant};

use ::amqp::content::write_content;
use ::amqp::frame::{self, Frame, HEARTBEAT as HEARTBEAT_FRAME};
use ::amqp::handshake::{ClientHandshake, ClientOffer};
use ::amqp::method::{Method, basic, channel, queue};
use ::amqp::properties::NO_PROPERTIES;
use ::amqp::sasl::Credentials;
use ::amqp::{FieldTable, FrameKind};

use broker::{Broker, BrokerConfig};

use super::*;
use crate::amqp::connection::AmqpConnection;

/// Interval at which each session's client acts; it publishes every second time.
const ROUND: Duration = Duration::from_millis(27_500);
/// Steps of a round.
const STEPS: u32 = 275;

#[tokio::test]
#[ignore = "a measurement of minutes: make capacity"]
async fn each_amqp_session_takes_less_than_10_kib() {
    let (count, world) =
        (count(), World::new(Backend::Broker(Broker::new(BrokerConfig::default())), FrontEnd::Amqp));
    let mut members = Vec::with_capacity(count);
    for _ in 0..100 {
        members.push(open(&world, members.len()).await);
    }
    let (before, begun) = (resident_bytes(), Instant::now());
    while members.len() < count {
        members.push(open(&world, members.len()).await);
    }
    let grown = resident_bytes() - before;
    let each = grown / (count - 100) as u64;
    let opened = begun.elapsed();
    println!("{count} sessions: opened in {opened:.1?}, {each} bytes each, {} MiB", grown >> 20);
    let (cpu, begun) = (cpu_seconds(), Instant::now());
    for round in 0..2 {
        look_after(&mut members, round).await;
    }
    let cores = (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64();
    println!("heartbeats, pings and a message of each in {:.0?}: {cores:.3} cores, both ends", ROUND * 2);
    assert!(members.iter_mut().all(|member| member.delivered == 1), "each has published once");
    assert_eq!(world.open_connections(), count, "all have stayed");
    assert!(each < ALLOWED_BYTES, "{each} bytes each");
    world.drop_all(members.iter().map(|member| &member.end)).await;
}

/// A session with a channel, a queue of its own and a consumer on it.
async fn open(world: &World, number: usize) -> Member {
    let mut member = Member { end: world.connect::<AmqpConnection>(number).await, delivered: 0 };
    member.subscribe(&number.to_string()).await;
    member
}

/// One round: every client reads its input, and publishes or sends a heartbeat in turn.
async fn look_after(members: &mut [Member], round: usize) {
    let mut ticks = tokio::time::interval(ROUND / STEPS);
    let part = members.len().div_ceil(STEPS as usize);
    for (step, some) in members.chunks_mut(part).enumerate() {
        ticks.tick().await;
        for (at, member) in some.iter_mut().enumerate() {
            let number = step * part + at;
            let awaited = member.delivered + u32::from(number % 2 == round);
            if awaited > member.delivered {
                member.publish(&number.to_string());
            } else {
                member.end.send(&HEARTBEAT_FRAME);
            }
            while member.delivered < awaited {
                yield_now().await;
                member.methods();
            }
        }
    }
}

/// A client, played by the test.
struct Member {
    end: ClientEnd,
    /// Bodies received.
    delivered: u32,
}

impl Member {
    async fn subscribe(&mut self, queue: &str) {
        let mut handshake = ClientHandshake::new(ClientOffer {
            credentials: Arc::new(Credentials::plain("guest", *b"guest")),
            virtual_host: "/".into(),
            client_properties: FieldTable::new(),
            channel_max: 0,
            frame_max: 0,
            heartbeat: HEARTBEAT,
        });
        while !handshake.is_open() {
            let mut out = Vec::new();
            handshake.poll_output(&mut out);
            if !out.is_empty() {
                self.end.send(&out);
            }
            yield_now().await;
            handshake.handle_input(&self.end.read());
            handshake.poll_event();
        }
        let mut out = Vec::new();
        frame::write_method(&mut out, 1, channel::Open { reserved_1: "" });
        frame::write_method(&mut out, 1, queue::Declare { queue, exclusive: true, ..Default::default() });
        frame::write_method(&mut out, 1, basic::Consume { queue, no_ack: true, ..Default::default() });
        self.end.send(&out);
        while !self.methods().contains(&"basic.consume-ok") {
            yield_now().await;
        }
    }

    fn publish(&self, queue: &str) {
        let mut out = Vec::new();
        let publish = basic::Publish { routing_key: queue, ..Default::default() };
        write_content(&mut out, 1, publish, NO_PROPERTIES, b"a message now and then", 0);
        self.end.send(&out);
    }

    /// Reads, counts bodies, and returns the names of methods.
    fn methods(&mut self) -> Vec<&'static str> {
        let bytes = self.end.read();
        let (mut rest, mut names) = (&bytes[..], Vec::new());
        while let Some(frame) = Frame::parse(rest, 0).unwrap() {
            match frame.kind {
                FrameKind::Method => names.push(Method::decode(frame.payload).unwrap().name()),
                FrameKind::Body => self.delivered += 1,
                FrameKind::Header | FrameKind::Heartbeat => {}
            }
            rest = &rest[frame.wire_len()..];
        }
        assert!(rest.is_empty(), "messages hold whole frames");
        names
    }
}
