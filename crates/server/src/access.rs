//! The access log: one line for each connection that was opened, and one with the reason for each that has ended.
//!
//! Sessions pass finished lines to a writer thread and never wait for it: when it cannot keep up, lines are
//! dropped, and a line gives their number. No line contains a secret.

mod line;
mod writer;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use broker::FrontEnd;
use transport::Peer;

use crate::protocols::ClientProtocol;

pub use self::line::AccessFormat;
use self::line::{LogLine, Value};
pub use self::writer::{AccessLog, AccessLogWriter};

/// The data logged about one connection.
#[derive(Debug)]
pub(crate) struct AccessRecord {
    log: Arc<AccessLog>,
    id: u64,
    peer: Peer,
    transport: Transport,
    since: Instant,
    pub(crate) user: Box<str>,
    pub(crate) vhost: Box<str>,
    /// Messages that the client published.
    pub(crate) published: u64,
    pub(crate) received: u64,
    /// Upstream connections of the client's channels, each as address and number.
    pub(crate) upstreams: Vec<String>,
}

/// The protocol layers of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transport {
    pub(crate) protocol: FrontEnd,
    pub(crate) websocket: bool,
    pub(crate) tls: bool,
}

impl Transport {
    fn name(self) -> Cow<'static, str> {
        let name = ClientProtocol::of(self.protocol).scheme();
        if self.websocket { format!("{name}+ws").into() } else { name.into() }
    }
}

impl AccessRecord {
    pub(crate) fn new(
        log: &Arc<AccessLog>,
        id: u64,
        peer: Peer,
        transport: Transport,
        since: Instant,
    ) -> Box<Self> {
        let (user, vhost) = Default::default();
        let log = Arc::clone(log);
        let (published, received, upstreams) = (0, 0, Vec::new());
        Box::new(Self { log, id, peer, transport, since, user, vhost, published, received, upstreams })
    }

    /// Logs that the client has been admitted.
    pub(crate) fn opened(&self) {
        let mut line = self.begin("open");
        line.add("handshake_ms", Value::Number(self.elapsed_ms()));
        self.log.write(line.finish());
    }

    /// Logs that the connection has ended, after `sent` bytes to the client.
    pub(crate) fn closed(&self, sent: u64, reason: &str) {
        let mut line = self.begin("close");
        line.add("duration_ms", Value::Number(self.elapsed_ms()));
        line.add("received_bytes", Value::Number(self.received));
        line.add("sent_bytes", Value::Number(sent));
        line.add("published_messages", Value::Number(self.published));
        if !self.upstreams.is_empty() {
            line.add("upstreams", Value::List(&self.upstreams));
        }
        line.add("reason", Value::Text(reason));
        self.log.write(line.finish());
    }

    fn begin(&self, event: &'static str) -> LogLine {
        let mut line = LogLine::new(self.log.format(), SystemTime::now(), event);
        line.add("connection", Value::Number(self.id));
        line.add("client", Value::Text(&self.peer.to_string()));
        line.add("protocol", Value::Text(&self.transport.name()));
        line.add("tls", Value::Flag(self.transport.tls));
        if !self.user.is_empty() {
            line.add("user", Value::Text(&self.user));
        }
        if !self.vhost.is_empty() {
            line.add("vhost", Value::Text(&self.vhost));
        }
        line
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
