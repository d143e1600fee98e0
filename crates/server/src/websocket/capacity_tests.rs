//! Very many sessions in one process, more than a process may have sockets, over in-memory streams. Measures the memory
//! of a session without its socket, and the CPU time of heartbeats and occasional messages.
//!
//! `make capacity` runs it with two hundred thousand sessions.

mod amqp;
mod mqtt;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use broker::FrontEnd;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use transport::{Peer, PeerWatch};
use websocket::handshake::OriginRules;
use websocket::{DecoderLimits, FrameDecoder, MessageKind, Role, WebSocketEvent, encode};

use super::WebSocketConfig;
use super::routes::Routes;
use super::run::join;
use super::upgrade::UpgradeDecision;
use crate::access::Transport;
use crate::backend::Backend;
use crate::client::ProtocolState;
use crate::clock::Clock;
use crate::limits::{ConnectionCounter, ConnectionLimits};
use crate::server::{AcceptedConnection, Server, ServerConfig, Shared};
use crate::simulated::{self, resident_bytes};

/// Bytes per session that docs/benchmarks.md promises, without its socket's share of the process.
const ALLOWED_BYTES: u64 = 10 * 1024;
const HEARTBEAT: u16 = 60;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const KEY: [u8; 4] = [1, 2, 3, 4];
const REQUEST: &str = "GET PATH HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The requested number of sessions.
fn count() -> usize {
    std::env::var("LEVERET_SESSIONS").map_or(20_000, |count| count.parse().unwrap())
}

/// A server without listeners.
struct World {
    shared: Arc<Shared>,
    counter: Arc<ConnectionCounter>,
    config: WebSocketConfig,
    front_end: FrontEnd,
}

impl World {
    fn new(backend: Backend, front_end: FrontEnd) -> Self {
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
        let origins = OriginRules::default();
        let routes = Routes { protocols: vec![("/ws", front_end)], ..Routes::default() };
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
            front_end,
        }
    }

    fn open_connections(&self) -> usize {
        self.counter.total()
    }

    /// A client that has been upgraded.
    async fn connect<P: ProtocolState>(&self, number: usize) -> ClientEnd {
        let request = REQUEST.replace("PATH", self.config.routes.protocols[0].0);
        let validated =
            super::upgrade::request(&mut request.as_bytes(), &mut Vec::new(), Peer::Unix, &self.config).await;
        let Ok(UpgradeDecision::AcceptedUpgrade(granted)) = validated else { panic!("{validated:?}") };
        let accepted = AcceptedConnection {
            id: number as u64,
            peer: Peer::Unix,
            transport: Transport { protocol: self.front_end, websocket: true, tls: false },
            lease: self.counter.enter(None).unwrap(),
            since: Instant::now(),
            local: None,
            external: None,
        };
        let wire = Arc::new(Mutex::new(Wire::default()));
        let (shared, end) = (Arc::clone(&self.shared), ServerEnd(Arc::clone(&wire)));
        tokio::spawn(join::<P, _>(shared, end, accepted, granted, PING_INTERVAL));
        while std::mem::take(&mut wire.lock().outward).is_empty() {
            yield_now().await;
        }
        ClientEnd(wire)
    }

    /// Drops all clients at once, and waits until nothing of them is left.
    async fn drop_all(&self, clients: impl Iterator<Item = &ClientEnd>) {
        let begun = Instant::now();
        clients.for_each(ClientEnd::vanish);
        while self.open_connections() > 0 {
            yield_now().await;
        }
        println!("all dropped at once: gone after {:.1?}", begun.elapsed());
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

impl PeerWatch for ServerEnd {}

impl AsyncRead for ServerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.0.lock();
        if wire.inward.is_empty() && !wire.closed {
            wire.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        // The test's clients never send more at once than fits.
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

/// A client's end of the stream.
struct ClientEnd(Arc<Mutex<Wire>>);

impl ClientEnd {
    /// Sends bytes of its protocol in a message.
    fn send(&self, bytes: &[u8]) {
        let mut message = Vec::new();
        encode::message(&mut message, Some(KEY), MessageKind::Binary, bytes);
        self.send_raw(&message);
    }

    fn send_raw(&self, bytes: &[u8]) {
        let mut wire = self.0.lock();
        wire.inward.extend_from_slice(bytes);
        wire.wake();
    }

    /// Returns the bytes of its protocol that were received, and answers pings.
    fn read(&self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.0.lock().outward);
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
        let mut wire = self.0.lock();
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
