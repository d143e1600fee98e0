//! Accepts connections and drains them.

mod drain;
mod succession;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use amqp::FieldTable;
use amqp::content::max_properties_len;
use amqp::handshake::{Capabilities, ServerOffer};
use amqp::sasl::Mechanism;
use amqp::table::FieldValue;
use broker::{Compatibility, FrontEnd};
use slab::Slab;
use sync::{Mutex, Rank};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use transport::{DescriptorShare, Ended, Listener, Outbox, Peer, Stream, drive};

use self::drain::DrainSchedule;
pub use self::succession::{DepartingClient, MAX_CLIENT_STATE, ResumeError};
use crate::access::{AccessLog, AccessRecord, Transport};
use crate::alarms::Alarms;
use crate::amqp::incomplete::Incomplete;
use crate::backend::Backend;
use crate::client::{ClientConnection, ProtocolState};
use crate::clock::Clock;
use crate::limits::{ConnectionCounter, ConnectionLease, Exceeded, InUse, LimitReached, Limits};
use crate::metrics::ServerMetrics;
use crate::mqtt::{
    self, DetachedMqttSession, GroupStatus, MqttBackend, MqttConfig, MqttRestoreError, MqttUpstreamTotals,
    RetainedStatus, UpstreamHub,
};
use crate::preface::{Preface, PrefaceError};
use crate::protocols::ClientProtocol;
use crate::registry::{OpenConnection, Registry};
use crate::relay::{self, Relay};
use crate::spool::Spool;
use crate::upstream::multiplexing::{
    MultiplexedBindingStatus, MultiplexedQueueStatus, MultiplexedSubscriptions, MultiplexedTotals,
};
use crate::websocket::{self, WebSocketConfig};

/// Pause before accepting again after a shortage of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of the largest message over MQTT and STOMP. Each client's message is buffered until it is complete,
/// and no total bounds those buffers.
pub const MAX_UNSPLIT_MESSAGE: u64 = 16 << 20;

/// Bytes that are reserved, in the frame of a message's properties, for headers that the server adds.
const ADDED_HEADERS: usize = 1024;

impl ServerConfig {
    /// The maximum size of properties that a client of another protocol may publish, in bytes: AMQP consumers get them in
    /// one frame, which is never split.
    pub(crate) fn most_properties(&self) -> usize {
        max_properties_len(self.frame_max).saturating_sub(ADDED_HEADERS)
    }
}

/// Settings of listeners and sessions; see the configuration reference for the defaults.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections, their rate, and channels: of all clients, per address and per user.
    pub limits: Limits,
    /// Channels that a connection may have open; 0 means no limit.
    pub channel_max: u16,
    /// Bytes of the largest frame.
    pub frame_max: u32,
    /// Suggested heartbeat interval in seconds; 0 is none.
    pub heartbeat: u16,
    /// Bytes of the largest message body.
    pub max_message_size: u64,
    /// The maximum of bytes of incomplete messages, of all clients of the embedded broker.
    pub incomplete_limit: usize,
    /// The maximum of bytes of messages that wait for clients whose subscriptions share a queue upstream.
    pub inbox_total: usize,
    /// The user that STOMP clients without a login act as; `None` refuses them.
    pub stomp_default_user: Option<String>,
    /// Bytes that may wait to be written to one client before nothing more is read from it. Deliveries fill half of
    /// that at most, so that they alone never keep a consumer's acknowledgements from being read.
    pub outbox_limit: usize,
    /// Time limit for a client from connecting to connection.open.
    pub handshake_timeout: Duration,
    /// Time limit for a client to accept some of what is written to it.
    pub write_timeout: Duration,
    /// Time limit for an idle client to close its connection while the server drains.
    pub drain_idle_timeout: Duration,
    /// Time limit for a delivery from the embedded broker to be acknowledged before its channel is closed.
    pub consumer_timeout: Duration,
    /// The `product` in the server-properties sent to clients of the embedded broker.
    pub product: String,
    /// The access log, if connections are logged.
    pub access_log: Option<Arc<AccessLog>>,
}

/// State shared by all connections of a server.
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) backend: Backend,
    /// The product, a slash, and its version.
    product: String,
    /// Server properties and mechanisms offered to new connections.
    offer: Mutex<Offers, { Rank::Leaf as u8 }>,
    pub(crate) clock: Clock,
    pub(crate) metrics: ServerMetrics,
    pub(crate) alarms: Arc<Alarms>,
    /// Budget for partially received messages on the embedded broker.
    pub(crate) incomplete: Arc<Incomplete>,
    /// The sessions of MQTT clients, if they are served.
    mqtt: OnceLock<MqttBackend>,
    /// The spool in front of the upstream, if there is one.
    spool: OnceLock<Arc<Spool>>,
    /// The queues that live subscriptions share upstream.
    pub(crate) subscriptions: Arc<MultiplexedSubscriptions>,
    counter: Arc<ConnectionCounter>,
    pub(crate) registry: Arc<Registry>,
    next_id: AtomicU64,
    /// Set when the drain begins.
    departures: OnceLock<DrainSchedule>,
    /// Set when the drain has asked every client to leave: later ones leave at once.
    all_must_leave: AtomicBool,
    /// The process that takes clients over when this server drains, if any.
    successor: Mutex<Option<mpsc::Sender<DepartingClient>>, { Rank::Leaf as u8 }>,
    /// The numbers and outboxes of all connections, to nudge them when the server drains.
    connections: Mutex<Slab<(u64, Arc<Outbox>)>, { Rank::Leaf as u8 }>,
    /// The tasks that accept connections; each ends and releases its socket when the drain begins.
    accepting: Mutex<Vec<JoinHandle<()>>, { Rank::Leaf as u8 }>,
    /// Notified when the last connection has ended.
    emptied: Notify,
}

impl Shared {
    /// The product, a slash, and its version.
    pub(crate) fn product(&self) -> &str {
        &self.product
    }

    /// The sessions of MQTT clients, if they are served.
    pub(crate) fn mqtt(&self) -> Option<&MqttBackend> {
        self.mqtt.get()
    }

    /// The spool in front of the upstream, if there is one.
    pub(crate) fn spool(&self) -> Option<&Arc<Spool>> {
        self.spool.get()
    }

    #[cfg(test)]
    pub(crate) fn set_mqtt(&self, backend: MqttBackend) {
        let _ = self.mqtt.set(backend);
    }

    pub(crate) fn offer(&self) -> Arc<ServerOffer> {
        Arc::clone(&self.offer.lock().plain)
    }

    /// The offer to clients with a verified certificate, if such a certificate can be used to log in.
    pub(crate) fn offer_with_external(&self) -> Option<Arc<ServerOffer>> {
        self.backend.takes_external().then(|| Arc::clone(&self.offer.lock().with_external))
    }
}

/// The offers to clients without and with a verified certificate.
struct Offers {
    plain: Arc<ServerOffer>,
    with_external: Arc<ServerOffer>,
}

impl Offers {
    fn new(plain: ServerOffer) -> Self {
        let mut mechanisms = plain.mechanisms.clone();
        mechanisms.push(Mechanism::External);
        let with_external = Arc::new(ServerOffer { mechanisms, ..plain.clone() });
        Self { plain: Arc::new(plain), with_external }
    }
}

/// Accepts clients and joins them to a backend.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// A server without listeners. `version` is the product's version, which is sent to clients.
    pub fn new(config: ServerConfig, backend: Backend, clock: Clock, version: &str) -> Self {
        let offer = ServerOffer {
            server_properties: server_properties(&config.product, version, &backend),
            mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain],
            channel_max: config.channel_max,
            frame_max: config.frame_max,
            heartbeat: config.heartbeat,
        };
        let shared = Shared {
            counter: ConnectionCounter::new(config.limits),
            incomplete: Incomplete::new(config.incomplete_limit),
            subscriptions: Arc::new(MultiplexedSubscriptions::new(config.inbox_total)),
            config,
            backend,
            product: format!("{PRODUCT}/{version}"),
            offer: Mutex::new(Offers::new(offer)),
            clock,
            metrics: ServerMetrics::default(),
            alarms: Arc::default(),
            registry: Arc::default(),
            mqtt: OnceLock::new(),
            spool: OnceLock::new(),
            next_id: AtomicU64::new(1),
            departures: OnceLock::new(),
            all_must_leave: AtomicBool::new(false),
            successor: Mutex::default(),
            connections: Mutex::default(),
            accepting: Mutex::default(),
            emptied: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Accepts clients of a protocol from `listener`, each after its `preface`, until [`Server::drain`]. With a
    /// `relay` they are joined to another server that speaks the protocol; MQTT without one requires
    /// [`Server::start_mqtt`].
    pub fn listen(
        &self,
        protocol: FrontEnd,
        listener: Listener,
        preface: Preface,
        relay: Option<Arc<Relay>>,
    ) {
        self.accept_from(listener, ListenerContext { preface, websocket: None, protocol, relay });
    }

    /// Restores the sessions of MQTT clients and starts their expiry. Must be called within a runtime, before
    /// any client is served.
    ///
    /// # Errors
    /// Stored state cannot be read.
    pub fn start_mqtt(&self, config: MqttConfig) -> Result<(), MqttRestoreError> {
        let backend = match &self.shared.backend {
            Backend::Broker(broker) => mqtt::start(broker, config, self.shared.clock)?,
            Backend::Upstream(_) => MqttBackend::Upstream(UpstreamHub::new(config, self.shared.clock)),
        };
        // A second call changes nothing.
        let _ = self.shared.mqtt.set(backend);
        Ok(())
    }

    /// The spool in front of the upstream, if there is one.
    pub fn spool(&self) -> Option<&Arc<Spool>> {
        self.shared.spool()
    }

    /// Spools publishes of AMQP clients that connect from now on. To be called once, before any client is served.
    pub fn set_spool(&self, spool: Arc<Spool>) {
        // A second call changes nothing.
        let _ = self.shared.spool.set(spool);
    }

    /// Accepts WebSocket clients for the routes of `config` from `listener`, each after its `preface`, until
    /// [`Server::drain`].
    pub fn listen_websocket(&self, listener: Listener, preface: Preface, config: WebSocketConfig) {
        let websocket = Some(Arc::new(config));
        let protocol = FrontEnd::default();
        self.accept_from(listener, ListenerContext { preface, websocket, protocol, relay: None });
    }

    fn accept_from(&self, listener: Listener, entrance: ListenerContext) {
        let shared = Arc::clone(&self.shared);
        let accepting = tokio::spawn(async move {
            while !shared.is_draining() {
                let accepted = tokio::select! {
                    accepted = listener.accept(DescriptorShare::Clients) => accepted,
                    () = shared.drain_begun() => break,
                };
                match accepted {
                    Ok((stream, peer)) => accept(&shared, &entrance, stream, peer),
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        self.shared.accepting.lock().push(accepting);
    }

    /// Announces these server-properties, the upstream broker's, to clients that connect from now on.
    pub fn announce(&self, server_properties: FieldTable) {
        let mut offer = self.shared.offer.lock();
        if offer.plain.server_properties != server_properties {
            *offer = Offers::new(ServerOffer { server_properties, ..ServerOffer::clone(&offer.plain) });
        }
    }

    /// The counters of listeners and sessions.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.shared.metrics
    }

    /// The alarms that block publishers on the embedded broker.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.shared.alarms
    }

    /// Bytes of the largest frame that clients may negotiate.
    pub fn frame_max(&self) -> u32 {
        self.shared.config.frame_max
    }

    /// Time limit for a delivery to be acknowledged.
    pub fn consumer_timeout(&self) -> Duration {
        self.shared.config.consumer_timeout
    }

    /// The connections that clients have opened, in the order of their arrival.
    pub fn open_connections(&self) -> Vec<Arc<OpenConnection>> {
        self.shared.registry.all()
    }

    /// The open connection with this number.
    pub fn open_connection(&self, id: u64) -> Option<Arc<OpenConnection>> {
        self.shared.registry.get(id)
    }

    /// Number of connections that are open or being opened.
    pub fn connection_count(&self) -> usize {
        self.shared.counter.total()
    }

    /// Replaces the limits; open connections stay.
    pub fn set_limits(&self, limits: Limits) {
        self.shared.counter.set_limits(limits);
    }

    /// The queues that live subscriptions share upstream, in no order.
    pub fn multiplexed_queues(&self) -> Vec<MultiplexedQueueStatus> {
        self.shared.subscriptions.status()
    }

    /// The totals of all shared queues.
    pub fn multiplexed_totals(&self) -> MultiplexedTotals {
        self.shared.subscriptions.totals()
    }

    /// The binding keys of the shared queue with this name upstream; `None` if no queue has it.
    pub fn multiplexed_bindings(&self, queue: &str) -> Option<Vec<MultiplexedBindingStatus>> {
        self.shared.subscriptions.bindings(queue)
    }

    /// The totals of MQTT clients in front of an upstream; `None` if they are not served there.
    pub fn mqtt_upstream_totals(&self) -> Option<MqttUpstreamTotals> {
        self.mqtt_upstream().map(|hub| hub.totals())
    }

    /// The detached MQTT sessions that are known in front of an upstream, oldest first.
    pub fn detached_mqtt_sessions(&self) -> Vec<DetachedMqttSession> {
        self.mqtt_upstream().map(|hub| hub.detached()).unwrap_or_default()
    }

    /// The groups of shared subscriptions, in front of an upstream, with members connected to this server, in no order.
    pub fn mqtt_groups(&self) -> Vec<GroupStatus> {
        self.mqtt_upstream().map(|hub| hub.groups()).unwrap_or_default()
    }

    /// The retained messages in front of an upstream, by virtual hosts with clients, in no order.
    pub fn retained_messages(&self) -> Vec<RetainedStatus> {
        self.mqtt_upstream().map(|hub| hub.retained_messages()).unwrap_or_default()
    }

    fn mqtt_upstream(&self) -> Option<&UpstreamHub> {
        match self.shared.mqtt()? {
            MqttBackend::Upstream(hub) => Some(hub),
            MqttBackend::Broker(_) => None,
        }
    }

    /// How much of each limited resource is in use.
    pub fn in_use(&self) -> InUse {
        self.shared.counter.in_use()
    }

    /// How many client connections may be open at the same time, 0 for no limit.
    pub fn connection_limit(&self) -> usize {
        self.shared.counter.connection_limit()
    }

    /// How often each limit was exceeded.
    pub fn exceeded(&self) -> &Exceeded {
        self.shared.counter.exceeded()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    /// The number of another connection.
    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn refuse(&self, id: u64, peer: Peer, transport: Transport, limit: LimitReached) {
        self.metrics.connections_refused.add(1);
        self.metrics.connections_closed.add(1);
        // The limit itself logs that it was reached, at most once a second.
        tracing::debug!(connection = id, %peer, %limit, "connection refused");
        if let Some(log) = &self.config.access_log {
            AccessRecord::new(log, id, peer, transport, Instant::now()).closed(0, &limit.to_string());
        }
    }

    /// Starts the access-log record of a connection, if there is an access log.
    pub(crate) fn record(&self, accepted: &AcceptedConnection) -> Option<Box<AccessRecord>> {
        let AcceptedConnection { id, peer, transport, since, .. } = *accepted;
        self.config.access_log.as_ref().map(|log| AccessRecord::new(log, id, peer, transport, since))
    }

    /// Logs that a connection has ended after `sent` bytes to the client: to the access log, or else to the
    /// process log.
    pub(crate) fn closed(
        &self,
        record: Option<Box<AccessRecord>>,
        id: u64,
        peer: Peer,
        sent: u64,
        reason: &str,
    ) {
        match record {
            Some(record) => record.closed(sent, reason),
            None => tracing::info!(connection = id, %peer, reason, "connection closed"),
        }
    }
}

/// Settings of a listener for its clients.
#[derive(Clone)]
struct ListenerContext {
    preface: Preface,
    /// Set if clients use WebSocket; its routes then decide the protocol.
    websocket: Option<Arc<WebSocketConfig>>,
    /// The protocol that clients speak.
    protocol: FrontEnd,
    /// Set if clients are joined to another server that speaks it.
    relay: Option<Arc<Relay>>,
}

/// A client that has connected and been counted.
pub(crate) struct AcceptedConnection {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) transport: Transport,
    pub(crate) lease: ConnectionLease,
    pub(crate) since: Instant,
    /// The server's end of the connection; `None` for a Unix socket.
    pub(crate) local: Option<SocketAddr>,
    /// The user name of a verified client certificate.
    pub(crate) external: Option<Arc<str>>,
}

impl AcceptedConnection {
    /// Creates the server's end of the connection, and the outbox that collects its output.
    pub(crate) fn into_client<P: ProtocolState>(
        self,
        shared: &Arc<Shared>,
    ) -> (ClientConnection<P>, Arc<Outbox>) {
        let outbox = Arc::new(Outbox::new(shared.config.outbox_limit / 2));
        (ClientConnection::new(shared, self, &outbox), outbox)
    }
}

fn accept(shared: &Arc<Shared>, entrance: &ListenerContext, stream: Stream, peer: Peer) {
    let id = shared.next_id();
    shared.metrics.connections_opened.add(1);
    match shared.counter.enter(entrance.counted_ip(peer)) {
        Ok(lease) => {
            let transport = entrance.transport();
            let local = stream.addresses().map(|(local, _)| local);
            let accepted = AcceptedConnection {
                id,
                peer,
                transport,
                lease,
                since: Instant::now(),
                local,
                external: None,
            };
            let shared = Arc::clone(shared);
            if entrance.preface.is_empty() {
                enter(shared, entrance, stream, accepted);
            } else {
                tokio::spawn(receive(shared, entrance.clone(), stream, accepted));
            }
        }
        Err(limit) => {
            shared.refuse(id, peer, entrance.transport(), limit);
            // Over TCP it is dropped without an answer, so that a connection over the limit costs as little as possible.
            if let Some(config) = &entrance.websocket
                && entrance.preface.is_empty()
            {
                tokio::spawn(websocket::refuse(Arc::clone(shared), Arc::clone(config), stream, peer, limit));
            }
        }
    }
}

impl ListenerContext {
    fn transport(&self) -> Transport {
        let Self { preface, websocket, protocol, .. } = self;
        Transport { protocol: *protocol, websocket: websocket.is_some(), tls: preface.tls.is_some() }
    }

    /// The address that a connection is counted under. A load balancer or reverse proxy is not itself a client;
    /// its header names the client.
    fn counted_ip(&self, peer: Peer) -> Option<IpAddr> {
        let is_reverse_proxy = self.websocket.as_ref().is_some_and(|config| config.is_from_proxy(peer));
        if is_reverse_proxy || self.preface.is_from_proxy(peer) { None } else { peer.ip() }
    }
}

/// Takes a connection through its preface, within the time limit of the login.
async fn receive(
    shared: Arc<Shared>,
    entrance: ListenerContext,
    stream: Stream,
    mut accepted: AcceptedConnection,
) {
    let deadline = accepted.since + shared.config.handshake_timeout;
    // Boxed: the state of a TLS handshake is large and needed only briefly.
    let passing = Box::pin(pass(&shared, &entrance.preface, stream, &mut accepted));
    let passed = tokio::select! {
        passed = tokio::time::timeout_at(deadline.into(), passing) => Some(passed),
        () = shared.cuts_logins() => None,
    };
    let reason = match passed {
        Some(Ok(Ok(Some(stream)))) => return enter(shared, &entrance, stream, accepted),
        // The client was refused, and that has been logged.
        Some(Ok(Ok(None))) => return,
        Some(Ok(Err(error))) => error.to_string(),
        Some(Err(_)) => "handshake timed out".to_owned(),
        None => "server is shutting down".to_owned(),
    };
    shared.metrics.connections_closed.add(1);
    shared.closed(shared.record(&accepted), accepted.id, accepted.peer, 0, &reason);
}

/// Starts the task of a connection that has passed its preface.
fn enter(shared: Arc<Shared>, entrance: &ListenerContext, stream: Stream, accepted: AcceptedConnection) {
    if let Some(config) = entrance.websocket.clone() {
        tokio::spawn(websocket::run(shared, config, stream, accepted));
    } else if let Some(relay) = entrance.relay.clone() {
        tokio::spawn(relay::run_plain(shared, relay, stream, accepted));
    } else {
        (ClientProtocol::of(entrance.protocol).start)(shared, stream, accepted);
    }
}

/// Handles the PROXY protocol, the limits of the address that it gives, and TLS.
async fn pass(
    shared: &Shared,
    preface: &Preface,
    mut stream: Stream,
    accepted: &mut AcceptedConnection,
) -> Result<Option<Stream>, PrefaceError> {
    let from_proxy = preface.is_from_proxy(accepted.peer);
    accepted.peer = preface.real_peer(&mut stream, accepted.peer).await?;
    if from_proxy && let Err(limit) = accepted.lease.set_client_address(accepted.peer.ip()) {
        shared.refuse(accepted.id, accepted.peer, accepted.transport, limit);
        return Ok(None);
    }
    let passed = preface.secure(stream).await?;
    accepted.external = passed.external;
    Ok(Some(passed.stream))
}

/// Runs a connection. Builds its state before the future, which would otherwise hold the arguments as well.
pub(crate) fn run<P: ProtocolState>(
    shared: Arc<Shared>,
    mut stream: Stream,
    accepted: AcceptedConnection,
) -> impl Future<Output = ()> + Send + 'static {
    let AcceptedConnection { id, peer, .. } = accepted;
    let (mut connection, outbox) = accepted.into_client::<P>(&shared);
    let listed = ConnectionListEntry::new(&shared, id, &outbox);
    async move {
        let config = &shared.config;
        let ended =
            drive(&mut stream, &mut connection, &outbox, config.outbox_limit, config.write_timeout).await;
        // Boxed: what it takes to hand a client over is large, and needed only at the end.
        Box::pin(succession::finish(&shared, stream, connection, (id, peer), ended, outbox.sent())).await;
        drop(listed);
    }
}

/// Why a connection ended, for the log: as its protocol reports it, or else its socket.
pub(crate) fn reason_of(reason: Option<&str>, ended: Ended) -> String {
    match (reason, ended) {
        (Some(reason), _) => reason.to_owned(),
        (None, Ended::Finished | Ended::Eof | Ended::HandedOver(_)) => "closed".to_owned(),
        (None, Ended::WriteTimeout) => "write timed out".to_owned(),
        (None, Ended::Io(error)) => error.to_string(),
    }
}

/// A connection's entry in the list of all, removed however its task ends.
pub(crate) struct ConnectionListEntry {
    shared: Arc<Shared>,
    key: usize,
}

impl ConnectionListEntry {
    /// `id` is the connection's number.
    pub(crate) fn new(shared: &Arc<Shared>, id: u64, outbox: &Arc<Outbox>) -> Self {
        let key = shared.connections.lock().insert((id, Arc::clone(outbox)));
        if shared.is_draining() {
            // The drain may have walked the list before this connection was in it.
            outbox.nudge();
        }
        Self { shared: Arc::clone(shared), key }
    }
}

impl Drop for ConnectionListEntry {
    fn drop(&mut self) {
        self.shared.metrics.connections_closed.add(1);
        let mut connections = self.shared.connections.lock();
        connections.remove(self.key);
        if connections.is_empty() {
            // A slab keeps its memory; an empty one can release it.
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

/// The name of this product.
const PRODUCT: &str = "Leveret";

/// The server-properties of the embedded broker. Clients derive supported features from `version`, so it is
/// RabbitMQ's; some check `product` as well, which is therefore a setting. The real product is named beside them.
fn server_properties(product: &str, version: &str, backend: &Backend) -> FieldTable {
    let compatibility = match backend {
        Backend::Broker(broker) => broker.compatibility(),
        // Until the upstream has told its own.
        Backend::Upstream(_) => Compatibility::default(),
    };
    let mut properties: FieldTable = [
        ("product", product),
        ("version", compatibility.version()),
        ("implementation", PRODUCT),
        ("implementation_version", version),
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
