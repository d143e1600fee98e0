//! The open connections and their channels, for operators to list and close.
//!
//! A connection and its channels record changes in atomics as they happen; readers never hold a lock that a
//! session needs for more than a moment.

mod bytes;
mod flow;
mod session;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use amqp::handshake::Negotiated;
use amqp::{FieldTable, RawTable};
use broker::{MessageCounts, Publishing, Timestamp, TracedConnection};
use sync::{Mutex, Rank};
use transport::{Outbox, Peer};

use self::bytes::ByteRates;
use self::flow::FlowMark;
pub use self::session::ClientSession;
use crate::amqp::deliveries::Deliveries;

/// All open connections, by number.
#[derive(Default)]
pub(crate) struct Registry {
    open: Mutex<BTreeMap<u64, Arc<OpenConnection>>, { Rank::Leaf as u8 }>,
}

/// A connection that a client has opened.
pub struct OpenConnection {
    id: u64,
    arrival: ConnectionEndpoints,
    protocol: &'static str,
    user: Box<str>,
    vhost: Box<str>,
    mechanism: &'static str,
    /// Milliseconds since 1970.
    connected_at: u64,
    negotiated: Negotiated,
    /// Encoded, which takes the least memory: few are ever read.
    client_properties: Box<[u8]>,
    session: Option<ClientSession>,
    received: AtomicU64,
    /// Sorted by number. Most connections have one channel, for which a tree would take more memory.
    channels: Mutex<Vec<Arc<OpenChannel>>, { Rank::Leaf as u8 }>,
    /// Channels in front of an upstream, whose state is not known here; 0 on the embedded broker.
    upstream_channels: AtomicU16,
    outbox: Arc<Outbox>,
    byte_rates: ByteRates,
    flow: FlowMark,
    /// Set while an alarm blocks its publishes.
    is_blocked: AtomicBool,
    asked_to_close: AtomicBool,
    close_reason: Mutex<Option<Box<str>>, { Rank::Leaf as u8 }>,
}

/// The addresses of a connection, and its transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionEndpoints {
    pub(crate) peer: Peer,
    /// The server's address; `None` for a Unix socket.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) tls: bool,
    /// Whether it came as a WebSocket.
    pub(crate) websocket: bool,
}

impl ConnectionEndpoints {
    /// The server's port; `None` for a Unix socket.
    pub(crate) fn port(&self) -> Option<u16> {
        self.local.map(|local| local.port())
    }
}

/// The properties of a connection that is being opened.
pub(crate) struct NewConnection<'a> {
    pub(crate) id: u64,
    pub(crate) arrival: ConnectionEndpoints,
    /// The protocol with its version, as RabbitMQ names it.
    pub(crate) protocol: &'static str,
    pub(crate) user: &'a str,
    pub(crate) vhost: &'a str,
    /// SASL name of the login mechanism; empty if the protocol has none.
    pub(crate) mechanism: &'static str,
    /// Milliseconds since 1970.
    pub(crate) connected_at: u64,
    pub(crate) negotiated: Negotiated,
    pub(crate) client_properties: &'a FieldTable,
    /// The session of MQTT or STOMP.
    pub(crate) session: Option<ClientSession>,
    pub(crate) outbox: &'a Arc<Outbox>,
}

/// An open channel.
pub(crate) struct OpenChannel {
    number: u16,
    deliveries: Arc<Deliveries>,
    pub(crate) prefetch: AtomicU16,
    pub(crate) global_prefetch: AtomicU16,
    pub(crate) confirms: AtomicBool,
    pub(crate) transactional: AtomicBool,
    /// Publishes whose confirm has not been sent yet. Set when a batch's publishes have been flushed, and when confirms
    /// are sent.
    pub(crate) unconfirmed: AtomicU64,
    /// Most channels either publish or consume.
    publishing: OnceLock<Box<ChannelPublishing>>,
}

/// The state of a channel at one moment.
#[derive(Debug, Clone, Copy)]
pub struct ChannelStatus {
    /// The number in frames of the connection, from 1 to `channel-max`.
    pub number: u16,
    /// `basic.qos` for future consumers; 0 means no limit.
    pub prefetch: u16,
    /// `basic.qos` of the channel as a whole; 0 means no limit.
    pub global_prefetch: u16,
    /// Whether publishes are confirmed.
    pub confirms: bool,
    /// Whether publishes and acknowledgements are transactional.
    pub transactional: bool,
    /// Consumers that were started on the channel and not cancelled.
    pub consumers: usize,
    /// Number of deliveries not yet settled.
    pub unacknowledged: usize,
    /// Number of publishes in confirm mode whose confirm has not been sent yet.
    pub unconfirmed: u64,
    /// Whether a queue holds its publisher, or has done so in the last second; false where no time was given.
    pub is_in_flow: bool,
}

/// The part of a channel that only publishers need.
#[derive(Default)]
struct ChannelPublishing {
    counts: Publishing,
    flow: FlowMark,
}

/// A connection's entry in the registry, removed when dropped.
pub(crate) struct RegisteredConnection {
    registry: Arc<Registry>,
    connection: Arc<OpenConnection>,
}

impl Registry {
    /// All connections in the order of their arrival. The lock is released every [`STEP`] connections.
    pub(crate) fn all(&self) -> Vec<Arc<OpenConnection>> {
        let (mut all, mut after) = (Vec::new(), Bound::Unbounded);
        loop {
            let before = all.len();
            let open = self.open.lock();
            all.extend(open.range((after, Bound::Unbounded)).take(STEP).map(|(_, found)| Arc::clone(found)));
            drop(open);
            match all.last() {
                Some(last) if all.len() > before => after = Bound::Excluded(last.id),
                _ => return all,
            }
        }
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<OpenConnection>> {
        self.open.lock().get(&id).cloned()
    }

    pub(crate) fn register(self: &Arc<Self>, connection: Arc<OpenConnection>) -> RegisteredConnection {
        self.open.lock().insert(connection.id, Arc::clone(&connection));
        RegisteredConnection { registry: Arc::clone(self), connection }
    }
}

impl RegisteredConnection {
    pub(crate) fn connection(&self) -> &Arc<OpenConnection> {
        &self.connection
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.registry.open.lock().remove(&self.connection.id);
    }
}

impl OpenConnection {
    pub(crate) fn new(opening: NewConnection<'_>) -> Arc<Self> {
        let NewConnection { id, arrival, protocol, mechanism, connected_at, negotiated, .. } = opening;
        Arc::new(Self {
            id,
            arrival,
            protocol,
            user: opening.user.into(),
            vhost: opening.vhost.into(),
            mechanism,
            connected_at,
            negotiated,
            client_properties: opening.client_properties.encode().into(),
            session: opening.session,
            received: AtomicU64::new(0),
            channels: Mutex::default(),
            upstream_channels: AtomicU16::new(0),
            outbox: Arc::clone(opening.outbox),
            byte_rates: ByteRates::default(),
            flow: FlowMark::default(),
            is_blocked: AtomicBool::new(false),
            asked_to_close: AtomicBool::new(false),
            close_reason: Mutex::default(),
        })
    }

    /// The connection's number, which is also its session's.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The address of the client, as the PROXY header gives it if there is one.
    pub fn peer(&self) -> Peer {
        self.arrival.peer
    }

    /// The server's end of the connection; `None` for a Unix socket.
    pub fn local(&self) -> Option<SocketAddr> {
        self.arrival.local
    }

    /// Its name, as RabbitMQ names connections: `peer:port -> host:port`.
    pub fn name(&self) -> String {
        name_of(self.peer(), self.local(), self.id)
    }

    /// Whether it came over TLS.
    pub fn is_tls(&self) -> bool {
        self.arrival.tls
    }

    /// Whether it came as a WebSocket.
    pub fn is_websocket(&self) -> bool {
        self.arrival.websocket
    }

    /// Its protocol with the version, as RabbitMQ names it.
    pub fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// The user that has logged in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The virtual host that the client has opened (`connection.open`).
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// SASL name of the mechanism by which the user logged in.
    pub fn mechanism(&self) -> &'static str {
        self.mechanism
    }

    /// When it was opened, in milliseconds since 1970.
    pub fn connected_at(&self) -> u64 {
        self.connected_at
    }

    /// The limits that client and server agreed on.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The client-properties that the client sent.
    pub fn client_properties(&self) -> FieldTable {
        RawTable::check(&self.client_properties).map(|table| table.decode()).unwrap_or_default()
    }

    /// The identifier of an MQTT client.
    pub fn client_id(&self) -> Option<String> {
        let properties = self.session.as_ref().map(|_| self.client_properties())?;
        properties.get("client_id")?.as_text().map(str::to_owned)
    }

    /// Its MQTT or STOMP session.
    pub fn session(&self) -> Option<&ClientSession> {
        self.session.as_ref()
    }

    /// Bytes received since it was opened.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes written to the client since it was opened.
    pub fn sent(&self) -> u64 {
        self.outbox.sent()
    }

    /// Bytes queued for the client and not yet written.
    pub fn backlog(&self) -> usize {
        self.outbox.backlog()
    }

    /// Its channels, by number.
    pub fn channels(&self) -> Vec<ChannelStatus> {
        let channels = self.channels.lock().clone();
        channels.iter().map(|channel| channel.status()).collect()
    }

    /// Like [`Self::channels`], with each channel's message counts as of `now`; `None` for a channel without any.
    pub fn channels_counted(&self, now: Timestamp) -> Vec<(ChannelStatus, Option<MessageCounts>)> {
        let channels = self.channels.lock().clone();
        channels.iter().map(|channel| (channel.status_at(now), channel.counts(now))).collect()
    }

    /// Bytes per second received from and sent to the client since the previous call, if that was some seconds
    /// ago; zero at the first call.
    pub fn byte_rates(&self, now: Timestamp) -> (f64, f64) {
        self.byte_rates.look(self.received(), self.sent(), now)
    }

    /// Called when a queue has held one of its publishers.
    pub(crate) fn in_flow(&self, now: Timestamp) {
        self.flow.set(now);
    }

    /// Whether a queue holds one of its publishers, or has done so in the last second.
    pub fn is_in_flow(&self, now: Timestamp) -> bool {
        self.flow.is_recent(now)
    }

    /// Sets whether an alarm blocks it.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Whether an alarm blocks it: it has published since the alarm was raised.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// The number of its channels.
    pub fn channel_count(&self) -> usize {
        self.channels.lock().len() + usize::from(self.upstream_channels.load(Ordering::Relaxed))
    }

    /// Sets the number of its channels in front of an upstream.
    pub(crate) fn set_upstream_channels(&self, count: usize) {
        // Channel numbers have 16 bits.
        self.upstream_channels.store(u16::try_from(count).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    /// Asks the connection to close itself with 320 CONNECTION_FORCED and this text.
    pub fn close(&self, reason: &str) {
        *self.close_reason.lock() = Some(reason.into());
        self.asked_to_close.store(true, Ordering::Release);
        self.outbox.nudge();
    }

    /// Takes the reason of a requested close, if there is one.
    pub(crate) fn take_close_reason(&self) -> Option<Box<str>> {
        if !self.asked_to_close.load(Ordering::Acquire) {
            return None;
        }
        self.close_reason.lock().take()
    }

    pub(crate) fn has_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn channel_opened(&self, channel: Arc<OpenChannel>) {
        let mut channels = self.channels.lock();
        let at = channels.partition_point(|open| open.number < channel.number);
        channels.insert(at, channel);
    }

    /// Removes all channels when the connection ends. A later `channel_closed` for one of them has no effect.
    pub(crate) fn all_channels_closed(&self) {
        *self.channels.lock() = Vec::new();
    }

    pub(crate) fn channel_closed(&self, number: u16) {
        let mut channels = self.channels.lock();
        if let Ok(at) = channels.binary_search_by_key(&number, |open| open.number) {
            channels.remove(at);
        }
    }
}

impl TracedConnection for OpenConnection {
    fn name(&self) -> String {
        self.name()
    }
}

fn name_of(peer: Peer, local: Option<SocketAddr>, id: u64) -> String {
    match (peer, local) {
        (Peer::Ip(peer), Some(local)) => format!("{} -> {}", canonical(peer), canonical(local)),
        (Peer::Ip(peer), None) => format!("{} -> unix #{id}", canonical(peer)),
        // Unix sockets have no port that would distinguish them.
        (Peer::Unix, _) => format!("unix #{id}"),
    }
}

/// An address for display: an IPv4 client of a dual-stack listener has its IPv4 address.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl OpenChannel {
    pub(crate) fn new(number: u16, deliveries: Arc<Deliveries>) -> Arc<Self> {
        Arc::new(Self {
            number,
            deliveries,
            prefetch: AtomicU16::new(0),
            global_prefetch: AtomicU16::new(0),
            confirms: AtomicBool::new(false),
            transactional: AtomicBool::new(false),
            unconfirmed: AtomicU64::new(0),
            publishing: OnceLock::new(),
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Called when a queue has held its publisher.
    pub(crate) fn in_flow(&self, now: Timestamp) {
        self.publishing.get_or_init(Box::default).flow.set(now);
    }

    /// The channel's counters for published messages.
    pub(crate) fn publishing(&self) -> &Publishing {
        &self.publishing.get_or_init(Box::default).counts
    }

    fn counts(&self, now: Timestamp) -> Option<MessageCounts> {
        let (passed, publishing) = (self.deliveries.passed(now), self.publishing.get());
        if passed.is_none() && publishing.is_none() {
            return None;
        }
        let mut counts = passed.unwrap_or_default();
        publishing.into_iter().for_each(|publishing| publishing.counts.add_to(&mut counts, now));
        Some(counts)
    }

    fn status_at(&self, now: Timestamp) -> ChannelStatus {
        let is_in_flow = self.publishing.get().is_some_and(|publishing| publishing.flow.is_recent(now));
        ChannelStatus { is_in_flow, ..self.status() }
    }

    fn status(&self) -> ChannelStatus {
        let (consumers, unacknowledged) = self.deliveries.counts();
        ChannelStatus {
            number: self.number,
            prefetch: self.prefetch.load(Ordering::Relaxed),
            global_prefetch: self.global_prefetch.load(Ordering::Relaxed),
            confirms: self.confirms.load(Ordering::Relaxed),
            transactional: self.transactional.load(Ordering::Relaxed),
            consumers,
            unacknowledged,
            unconfirmed: self.unconfirmed.load(Ordering::Relaxed),
            is_in_flow: false,
        }
    }
}

/// Connections copied per hold of the lock, which takes some microseconds.
const STEP: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::content::Destination;
    use crate::amqp::deliveries::ConnectionConsumers;

    fn opened(registry: &Arc<Registry>, id: u64) -> RegisteredConnection {
        let outbox = Arc::new(Outbox::new(0));
        registry.register(OpenConnection::new(NewConnection {
            id,
            arrival: ConnectionEndpoints { peer: Peer::Unix, local: None, tls: false, websocket: false },
            protocol: "AMQP 0-9-1",
            user: "u",
            vhost: "/",
            mechanism: "PLAIN",
            connected_at: 1,
            negotiated: Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs: 0 },
            client_properties: &[("n", amqp::FieldValue::I32(1))].into_iter().collect(),
            session: None,
            outbox: &outbox,
        }))
    }

    #[test]
    fn connection_names_use_one_form_of_an_address() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mapped = |port| address(&format!("[::ffff:127.0.0.1]:{port}"));
        let name = name_of(Peer::Ip(mapped(5000)), Some(mapped(5672)), 1);
        assert_eq!(name, "127.0.0.1:5000 -> 127.0.0.1:5672");
        assert_eq!(name_of(Peer::Ip(mapped(5000)), None, 7), "127.0.0.1:5000 -> unix #7");
        let six = name_of(Peer::Ip(address("[::1]:1")), Some(address("[::1]:2")), 1);
        assert_eq!(six, "[::1]:1 -> [::1]:2");
    }

    #[test]
    fn all_are_listed_in_order_though_the_lock_is_released_in_between() {
        let registry = Arc::new(Registry::default());
        let open: Vec<_> = (0..2 * STEP as u64 + 1).map(|id| opened(&registry, id)).collect();
        let listed: Vec<u64> = registry.all().iter().map(|connection| connection.id()).collect();
        assert_eq!(listed, (0..2 * STEP as u64 + 1).collect::<Vec<_>>());
        drop(open);
        assert!(registry.all().is_empty(), "closed connections are not listed");
    }

    #[test]
    fn channels_are_closed_one_by_one_or_all_at_once() {
        let registry = Arc::new(Registry::default());
        let registered = opened(&registry, 1);
        let connection = registered.connection();
        let consumers = Arc::new(ConnectionConsumers::new(Arc::clone(&connection.outbox)));
        for channel in [3, 1, 2] {
            let destination = Destination { channel, frame_max: 4096 };
            let deliveries = Arc::new(Deliveries::new(Arc::clone(&consumers), destination));
            connection.channel_opened(OpenChannel::new(channel, deliveries));
        }
        connection.channel_closed(2);
        let numbers: Vec<u16> = connection.channels().iter().map(|channel| channel.number).collect();
        assert_eq!(numbers, [1, 3]);
        connection.all_channels_closed();
        connection.channel_closed(1);
        assert_eq!(connection.channel_count(), 0);
    }

    #[test]
    fn a_connection_is_asked_to_close_once() {
        let registry = Arc::new(Registry::default());
        let registered = opened(&registry, 7);
        assert_eq!(registered.connection().take_close_reason(), None);
        registry.get(7).unwrap().close("enough");
        assert_eq!(registered.connection().take_close_reason().as_deref(), Some("enough"));
        assert_eq!(registered.connection().take_close_reason(), None);
    }

    #[test]
    fn client_properties_are_as_the_client_sent_them() {
        let registry = Arc::new(Registry::default());
        let registered = opened(&registry, 1);
        let properties = registered.connection().client_properties();
        assert_eq!(properties.get("n"), Some(&amqp::FieldValue::I32(1)));
    }
}
