//! Very many sessions in one process, more than a process may have sockets, over in-memory streams: the memory
//! of a session without its socket, and the CPU time of heartbeats and occasional messages.
//!
//! `make capacity` runs it with two hundred thousand sessions.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use amqp::content::write_content;
use amqp::frame::{self, Frame, HEARTBEAT as HEARTBEAT_FRAME};
use amqp::handshake::{ClientHandshake, ClientOffer};
use amqp::method::{Method, basic, channel, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::sasl::Credentials;
use amqp::{FieldTable, FrameKind};
use broker::{Broker, BrokerConfig, FrontEnd};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use transport::Peer;
use websocket::handshake::OriginRules;
use websocket::{DecoderLimits, FrameDecoder, MessageKind, Role, WebSocketEvent, encode};

use super::WebSocketConfig;
use super::routes::Routes;
use super::run::join;
use super::upgrade::{Judged, request};
use crate::access::Transport;
use crate::amqp::connection::AmqpConnection;
use crate::backend::{Backend, Clock};
use crate::limits::{ConnectionCounter, ConnectionLimits};
use crate::server::{Newcomer, Server, ServerConfig, Shared};
use crate::simulated::{self, resident_bytes};

/// Bytes per session that docs/benchmarks.md promises, without its socket's share of the process.
const ALLOWED_BYTES: u64 = 10 * 1024;
const HEARTBEAT: u16 = 60;
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Interval at which each session's client is served; it publishes every second time.
const ROUND: Duration = Duration::from_millis(27_500);
/// Steps of a round.
const STEPS: u32 = 275;
const KEY: [u8; 4] = [1, 2, 3, 4];
const REQUEST: &[u8] = b"GET /ws/amqp HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[tokio::test]
#[ignore = "a measurement of minutes: make capacity"]
async fn each_session_takes_less_than_10_kib() {
    let count = std::env::var("LEVERET_SESSIONS").map_or(20_000, |count| count.parse().unwrap());
    let world = World::new();
    let mut members = Vec::with_capacity(count);
    for _ in 0..100 {
        members.push(world.open(members.len()).await);
    }
    let (before, begun) = (resident_bytes(), Instant::now());
    while members.len() < count {
        members.push(world.open(members.len()).await);
    }
    let grown = resident_bytes() - before;
    let each = grown / (count - 100) as u64;
    let opened = begun.elapsed();
    println!("{count} sessions: opened in {opened:.1?}, {each} bytes each, {} MiB", grown >> 20);
    let (cpu, begun) = (cpu_seconds(), Instant::now());
    for round in 0..2 {
        world.look_after(&mut members, round).await;
    }
    let cores = (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64();
    println!("heartbeats, pings and a message of each in {:.0?}: {cores:.3} cores, both ends", ROUND * 2);
    assert!(members.iter_mut().all(|member| member.delivered == 1), "each has published once");
    assert_eq!(world.open_connections(), count, "all have stayed");
    assert!(each < ALLOWED_BYTES, "{each} bytes each");
    let begun = Instant::now();
    members.iter().for_each(Member::vanish);
    while world.open_connections() > 0 {
        yield_now().await;
    }
    println!("all dropped at once: gone after {:.1?}", begun.elapsed());
}

/// A server without listeners.
struct World {
    shared: Arc<Shared>,
    counter: Arc<ConnectionCounter>,
    config: WebSocketConfig,
}

impl World {
    fn new() -> Self {
        let unlimited = ConnectionLimits { total: 0, per_ip: 0, per_user: 0 };
        let config = ServerConfig {
            limits: unlimited.into(),
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: HEARTBEAT,
            max_message_size: 16 << 20,
            incomplete_limit: 256 << 20,
            write_timeout: Duration::from_secs(30),
            ..simulated::config()
        };
        let backend = Backend::Broker(Broker::new(BrokerConfig::default()));
        let origins = OriginRules::default();
        let routes = Routes { protocols: vec![("/ws/amqp", FrontEnd::Amqp)], ..Routes::default() };
        let config_of_websockets = WebSocketConfig {
            origins,
            ping_interval: PING_INTERVAL,
            compression: false,
            proxies: Vec::new(),
            unix_proxies: false,
            routes,
        };
        Self {
            shared: Server::new(config, backend, Clock::start(), "test").shared(),
            counter: ConnectionCounter::new(unlimited),
            config: config_of_websockets,
        }
    }

    fn open_connections(&self) -> usize {
        self.counter.total()
    }

    /// A session with a channel, a queue of its own and a consumer on it.
    async fn open(&self, number: usize) -> Member {
        let validated = request(&mut &*REQUEST, &mut Vec::new(), Peer::Unix, &self.config).await;
        let Ok(Judged::Granted(granted)) = validated else { panic!("{validated:?}") };
        let newcomer = Newcomer {
            id: number as u64,
            peer: Peer::Unix,
            transport: Transport { protocol: FrontEnd::Amqp, websocket: true, tls: false },
            lease: self.counter.enter(None).unwrap(),
            since: Instant::now(),
            local: None,
            external: None,
        };
        let wire = Arc::new(Mutex::new(Wire::default()));
        let (shared, end) = (Arc::clone(&self.shared), ServerEnd(Arc::clone(&wire)));
        tokio::spawn(join::<AmqpConnection, _>(shared, end, newcomer, granted, PING_INTERVAL));
        let mut member = Member { wire, delivered: 0 };
        member.subscribe(&number.to_string()).await;
        member
    }

    /// One round: every client reads its input, and publishes or sends a heartbeat in turn.
    async fn look_after(&self, members: &mut [Member], round: usize) {
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
                    member.send(&HEARTBEAT_FRAME);
                }
                while member.delivered < awaited {
                    yield_now().await;
                    member.methods();
                }
            }
        }
    }
}

/// The buffers of an in-memory socket.
#[derive(Default)]
struct Wire {
    inward: Vec<u8>,
    outward: Vec<u8>,
    reader: Option<Waker>,
    closed: bool,
}

impl Wire {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

struct ServerEnd(Arc<Mutex<Wire>>);

impl AsyncRead for ServerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.0.lock();
        if wire.inward.is_empty() && !wire.closed {
            wire.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // A test's client never sends more at once than fits.
        buf.put_slice(&std::mem::take(&mut wire.inward));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServerEnd {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().outward.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A client, which is the test itself.
struct Member {
    wire: Arc<Mutex<Wire>>,
    /// Bodies received.
    delivered: u32,
}

impl Member {
    async fn subscribe(&mut self, queue: &str) {
        while std::mem::take(&mut self.wire.lock().outward).is_empty() {
            yield_now().await;
        }
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
                self.send(&out);
            }
            yield_now().await;
            handshake.handle_input(&self.read());
            handshake.poll_event();
        }
        let mut out = Vec::new();
        frame::write_method(&mut out, 1, channel::Open { reserved_1: "" });
        frame::write_method(&mut out, 1, queue::Declare { queue, exclusive: true, ..Default::default() });
        frame::write_method(&mut out, 1, basic::Consume { queue, no_ack: true, ..Default::default() });
        self.send(&out);
        while !self.methods().contains(&"basic.consume-ok") {
            yield_now().await;
        }
    }

    fn publish(&self, queue: &str) {
        let mut out = Vec::new();
        let publish = basic::Publish { routing_key: queue, ..Default::default() };
        write_content(&mut out, 1, publish, NO_PROPERTIES, b"a message now and then", 0);
        self.send(&out);
    }

    /// Sends AMQP.
    fn send(&self, bytes: &[u8]) {
        let mut message = Vec::new();
        encode::message(&mut message, Some(KEY), MessageKind::Binary, bytes);
        self.send_raw(&message);
    }

    fn send_raw(&self, bytes: &[u8]) {
        let mut wire = self.wire.lock();
        wire.inward.extend_from_slice(bytes);
        wire.wake();
    }

    /// Reads, counts bodies, and returns the names of methods.
    fn methods(&mut self) -> Vec<&'static str> {
        let bytes = self.read();
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

    /// Returns the AMQP bytes received and answers pings.
    fn read(&self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.wire.lock().outward);
        let mut decoder = FrameDecoder::new(Role::Client, DecoderLimits::NONE);
        let (mut taken, mut payload) = (0, Vec::new());
        loop {
            let step = decoder.decode(&bytes[taken..], &mut payload).unwrap();
            taken += step.taken;
            match step.event {
                None => return payload,
                Some(WebSocketEvent::Ping(ping)) => {
                    let mut pong = Vec::new();
                    encode::pong(&mut pong, Some(KEY), ping.payload());
                    self.send_raw(&pong);
                }
                Some(WebSocketEvent::Close(close)) => panic!("{close:?}"),
                Some(_) => {}
            }
        }
    }

    fn vanish(&self) {
        let mut wire = self.wire.lock();
        wire.closed = true;
        wire.wake();
    }
}

/// User and system CPU time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // Fields 14 and 15 of proc_pid_stat(5), in hundredths of a second; the second field, the name, may contain spaces.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
