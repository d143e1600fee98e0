//! Whole conversations with the embedded broker, stepped without sockets and on a simulated clock.

mod disk;
mod limits;
mod sessions;
mod turns;

use std::sync::Arc;
use std::time::Instant;

use broker::{Broker, BrokerConfig, FrontEnd};
use stomp::{StompDecoder, StompVersion};
use transport::{Outbox, Peer, Protocol};

use super::connection::StompConnection;
use crate::alarms::Resource;
use crate::backend::Backend;
use crate::client::ClientConnection;
use crate::clock::Clock;
use crate::server::Shared;
use crate::simulated::{self, HANDSHAKE_TIMEOUT};

fn server() -> Arc<Shared> {
    server_of(Broker::new(BrokerConfig::default()))
}

fn server_of(broker: Arc<Broker>) -> Arc<Shared> {
    simulated::server_of(broker, Clock::start(), 2).shared()
}

/// A client, and the server's side of its connection.
struct Conversation {
    connection: ClientConnection<StompConnection>,
    outbox: Arc<Outbox>,
    now: Instant,
    version: StompVersion,
    /// Bytes sent that the server has not taken yet.
    unconsumed: Vec<u8>,
}

impl Conversation {
    fn connect(shared: &Arc<Shared>, peer: Peer) -> Self {
        let now = Instant::now();
        // Connection numbers identify the owners of exclusive queues.
        let id = 1 + shared.metrics.connections_opened.get();
        shared.metrics.connections_opened.add(1);
        let (connection, outbox) = simulated::connection(shared, id, peer, FrontEnd::Stomp, now);
        Self { connection, outbox, now, version: StompVersion::V12, unconsumed: Vec::new() }
    }

    /// Connects and logs in.
    fn open(shared: &Arc<Shared>) -> Self {
        let mut conversation = Self::connect(shared, Peer::Unix);
        let reported =
            conversation.call("CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n");
        assert!(reported[0].starts_with("CONNECTED"), "{reported:?}");
        conversation
    }

    /// Sends bytes that the server reads at once.
    fn send(&mut self, bytes: &[u8]) {
        self.unconsumed.extend_from_slice(bytes);
        let taken = self.connection.handle_input(&self.unconsumed, self.now);
        self.unconsumed.drain(..taken);
    }

    /// Sends frames, separated by NUL, in one read; returns the answers.
    fn call(&mut self, frames: &str) -> Vec<String> {
        self.send(format!("{frames}\0").as_bytes());
        self.received()
    }

    /// Nudges the server's task, and passes pending input in again.
    fn nudge(&mut self) -> Vec<String> {
        self.connection.handle_nudge(self.now);
        let now = self.now;
        let left = std::mem::take(&mut self.unconsumed);
        self.send(&left);
        self.now = now;
        self.received()
    }

    /// Returns the frames received, each with its command, distinguishing headers, and body.
    fn received(&mut self) -> Vec<String> {
        frames_in(&self.outbox.read_all(), self.version)
    }
}

/// A SEND with a receipt.
fn send(destination: &str, receipt: &str, body: &str) -> String {
    format!("SEND\ndestination:{destination}\npersistent:true\nreceipt:{receipt}\n\n{body}")
}

/// The server's frames in these bytes, each with its command, distinguishing headers, and body.
pub(super) fn frames_in(mut rest: &[u8], version: StompVersion) -> Vec<String> {
    let mut decoder = StompDecoder::of_servers(1 << 20);
    decoder.set_version(version);
    let mut frames = Vec::new();
    loop {
        let step = decoder.decode(rest).unwrap();
        if let Some(frame) = &step.frame {
            let view = ["receipt-id", "subscription", "message", "redelivered"];
            let headers: Vec<&str> = view.into_iter().filter_map(|name| frame.headers.get(name)).collect();
            let body = String::from_utf8_lossy(frame.body.bytes());
            frames.push(format!("{} {} {}", frame.command, headers.join(" "), body.trim_end()));
        }
        if step.taken == 0 {
            return frames;
        }
        rest = &rest[step.taken..];
    }
}
