//! Accepting connections, and letting them go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::FieldTable;
use amqp::handshake::{Capabilities, ServerOffer};
use amqp::sasl::Mechanism;
use amqp::table::FieldValue;
use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use transport::{Ended, Outbox, Peer, Stream, drive};

use crate::amqp::connection::Connection;
use crate::door::{Clock, Door};
use crate::limits::{ConnectionCounter, ConnectionLimits};
use crate::listener::Listener;
use crate::metrics::Metrics;

/// How long to wait before accepting again after a shortage of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What listeners and sessions need to know; see the configuration reference for the defaults.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// Channels that a connection may have open; 0 is no limit.
    pub channel_max: u16,
    /// Octets of the largest frame.
    pub frame_max: u32,
    /// Suggested heartbeat interval in seconds; 0 is none.
    pub heartbeat: u16,
    /// Octets of the largest message body.
    pub max_message_size: u64,
    /// Octets that may wait to be written to one client before nothing more is read from it. Deliveries fill half of
    /// that at most, so that they alone never keep a consumer's acknowledgements from being read.
    pub outbox_limit: usize,
    /// How long a client may take from connecting to connection.open.
    pub handshake_timeout: Duration,
    /// How long a client may take nothing of what is written to it.
    pub write_timeout: Duration,
    /// How long a delivery from the embedded broker may go without being acknowledged before its channel is closed.
    pub consumer_timeout: Duration,
}

/// Everything that the connections of a server share.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) door: Door,
    /// What new connections are offered.
    offer: Mutex<Arc<ServerOffer>>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    counter: Arc<ConnectionCounter>,
    next_id: AtomicU64,
    draining: AtomicBool,
    /// The outboxes of all connections, to reach them when the server drains.
    connections: Mutex<Slab<Arc<Outbox>>>,
    /// The tasks that accept connections; each ends, and gives its socket back, when the drain begins.
    accepting: Mutex<Vec<JoinHandle<()>>>,
    /// Told when the last connection has gone.
    emptied: Notify,
}

impl Shared {
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn offer(&self) -> Arc<ServerOffer> {
        Arc::clone(&self.offer.lock())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// Accepts clients and joins them to a back end.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// A server without listeners. `version` is the product's, as told to clients.
    pub fn new(config: ServerConfig, door: Door, clock: Clock, version: &str) -> Self {
        let offer = ServerOffer {
            server_properties: server_properties(version),
            mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain],
            channel_max: config.channel_max,
            frame_max: config.frame_max,
            heartbeat: config.heartbeat,
        };
        let shared = Shared {
            counter: ConnectionCounter::new(config.connections),
            config,
            door,
            offer: Mutex::new(Arc::new(offer)),
            clock,
            metrics: Metrics::default(),
            next_id: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            connections: Mutex::default(),
            accepting: Mutex::default(),
            emptied: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Accepts AMQP clients from `listener` until [`Server::drain`].
    pub fn listen(&self, listener: Listener) {
        let shared = Arc::clone(&self.shared);
        let accepting = tokio::spawn(async move {
            while !shared.is_draining() {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = shared.drain_begun() => break,
                };
                match accepted {
                    Ok((stream, peer)) => accept(&shared, stream, peer),
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections for now");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        self.shared.accepting.lock().push(accepting);
    }

    /// Announces these server-properties to clients that connect from now on: those of the broker that stands behind.
    pub fn announce(&self, server_properties: FieldTable) {
        let mut offer = self.shared.offer.lock();
        if offer.server_properties != server_properties {
            *offer = Arc::new(ServerOffer { server_properties, ..ServerOffer::clone(&offer) });
        }
    }

    /// Counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Connections that are open or being opened.
    pub fn connection_count(&self) -> usize {
        self.shared.counter.total()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Stops accepting, tells every client 320 CONNECTION_FORCED, and waits until they have gone, for `timeout` at
    /// most. Returns how many had not gone by then.
    pub async fn drain(&self, timeout: Duration) -> usize {
        self.shared.start_draining();
        self.shared.emptied.notify_waiters();
        let outboxes: Vec<_> =
            self.shared.connections.lock().iter().map(|(_, outbox)| outbox.clone()).collect();
        outboxes.iter().for_each(|outbox| outbox.nudge());
        let accepting = std::mem::take(&mut *self.shared.accepting.lock());
        let all_gone = async {
            for task in accepting {
                // A task that panicked has given its socket back, too.
                let _ = task.await;
            }
            loop {
                let emptied = self.shared.emptied.notified();
                if self.shared.connections.lock().is_empty() {
                    break;
                }
                emptied.await;
            }
        };
        // Elapsed or not, the count below tells what happened.
        let _ = tokio::time::timeout(timeout, all_gone).await;
        self.shared.connections.lock().len()
    }
}

impl Shared {
    async fn drain_begun(&self) {
        loop {
            let changed = self.emptied.notified();
            if self.is_draining() {
                return;
            }
            changed.await;
        }
    }
}

fn accept(shared: &Arc<Shared>, stream: Stream, peer: Peer) {
    let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
    shared.metrics.connections_opened.add(1);
    let outbox = Arc::new(Outbox::new(shared.config.outbox_limit / 2));
    match shared.counter.enter(peer.ip()) {
        Ok(place) => {
            let connection =
                Connection::new(Arc::clone(shared), id, peer, Arc::clone(&outbox), place, Instant::now());
            tokio::spawn(run(Arc::clone(shared), stream, connection, outbox, id, peer));
        }
        Err(limit) => {
            // Dropped without an answer: a connection over the limit must cost as little as possible.
            shared.metrics.connections_refused.add(1);
            shared.metrics.connections_closed.add(1);
            tracing::warn!(connection = id, %peer, %limit, "connection refused");
        }
    }
}

async fn run(
    shared: Arc<Shared>,
    mut stream: Stream,
    mut connection: Connection,
    outbox: Arc<Outbox>,
    id: u64,
    peer: Peer,
) {
    let _listed = Listed::new(&shared, &outbox);
    let config = &shared.config;
    let ended = drive(&mut stream, &mut connection, &outbox, config.outbox_limit, config.write_timeout).await;
    let reason = match (connection.take_reason(), ended) {
        (Some(reason), _) => reason,
        (None, Ended::Finished | Ended::Eof) => "closed".to_owned(),
        (None, Ended::WriteTimeout) => "client takes nothing".to_owned(),
        (None, Ended::Io(error)) => error.to_string(),
    };
    tracing::info!(connection = id, %peer, reason, "connection closed");
}

/// A connection's place in the list of all; given back however its task ends.
struct Listed {
    shared: Arc<Shared>,
    key: usize,
}

impl Listed {
    fn new(shared: &Arc<Shared>, outbox: &Arc<Outbox>) -> Self {
        let key = shared.connections.lock().insert(Arc::clone(outbox));
        if shared.is_draining() {
            // The drain may have looked at the list before this connection was in it.
            outbox.nudge();
        }
        Self { shared: Arc::clone(shared), key }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.shared.metrics.connections_closed.add(1);
        let mut connections = self.shared.connections.lock();
        connections.remove(self.key);
        if connections.is_empty() {
            // A slab keeps its memory; an empty one can give it back.
            connections.shrink_to_fit();
            self.shared.emptied.notify_waiters();
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

fn server_properties(version: &str) -> FieldTable {
    let mut properties: FieldTable = [
        ("product", "Leveret"),
        ("version", version),
        ("platform", "Rust"),
        ("copyright", "Copyright the Leveret authors"),
        ("information", "Licensed under the Apache License 2.0"),
        ("cluster_name", "leveret@localhost"),
    ]
    .into_iter()
    .map(|(key, text)| (key, FieldValue::text(text)))
    .collect();
    Capabilities::ALL.add_to(&mut properties);
    properties
}
