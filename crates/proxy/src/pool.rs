//! The pool: the set of upstream connections, and access to them.

pub(crate) mod background;
mod channel_limits;
mod connection_permits;
mod deletions;
mod endpoints;
mod guards;
mod outage;
mod placement;
mod restoring;
mod stalled;
mod unverified;
mod verification;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use amqp::handshake::product_and_version;
use amqp::sasl::Mechanism;
use amqp::{Capabilities, Credentials, Fault, FieldTable, Negotiated, ReplyCode};
use arc_swap::ArcSwap;
use sync::{Mutex, Rank};
use tokio::sync::{Notify, Semaphore};
use transport::Outbox;

use self::channel_limits::ChannelLimits;
pub(crate) use self::channel_limits::channel_limit;
pub(crate) use self::connection_permits::UnusedNotifier;
use self::connection_permits::{ConnectionPermit, PermitOutcome};
pub use self::deletions::DeletedVirtualHost;
use self::deletions::Deletions;
pub use self::endpoints::AddressState;
pub(crate) use self::endpoints::Endpoint;
use self::endpoints::{Endpoints, Reachability};
pub(crate) use self::guards::HandingOver;
#[cfg(test)]
pub(crate) use self::placement::OPENING_MAX;
pub(crate) use self::placement::PlacementRequest;
pub use self::verification::VerifiedLogin;
use crate::auth_gate::{AuthGate, Destination};
use crate::client_properties::ClientProperties;
use crate::config::{PoolConfig, QUEUED_CLIENT_MAX};
use crate::identities::Identities;
use crate::link::ClientLink;
use crate::metrics::{Counters, PoolMetrics, add};
use crate::quota::Quota;
use crate::refusal::Refusal;
use crate::replay_buffer::ReplayTotals;
use crate::session::ProxySession;
use crate::staging::Staging;
use crate::topology::Topologies;
use crate::upstream::{self, LoggedInConnection, Role, Upstream, UpstreamView};
use crate::waiting::Waiting;

/// Connections to the upstream brokers, and the entry point for clients.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    /// Held separately from `config`, because it changes while others use it.
    identities: ArcSwap<Identities>,
    /// Connections that have not ended, oldest first, by user name.
    connections: Mutex<HashMap<String, Vec<Arc<Upstream>>>, { Rank::PoolConnections as u8 }>,
    /// Remaining permits of [`PoolConfig::max_connections`]; connections being opened already hold theirs.
    permits: Arc<Semaphore>,
    /// Notifies waiters that a connection may be unused.
    unused: Arc<UnusedNotifier>,
    auth_gate: AuthGate,
    channel_limits: ChannelLimits,
    counters: Counters,
    next_id: AtomicU64,
    endpoints: Arc<Endpoints>,
    /// Client declarations that do not survive a broker restart.
    topologies: Arc<Topologies>,
    /// Bytes of clients' frames that are kept for replay.
    replay_totals: Arc<ReplayTotals>,
    /// The buffer space for incomplete messages.
    staging: Arc<Staging>,
    /// Bytes of frames that wait for placement.
    queued: Arc<Quota>,
    /// The backlog of clients that do not read.
    waiting: Arc<Waiting>,
    /// Held by the client that probes the brokers, on behalf of all clients that arrive meanwhile.
    asking: tokio::sync::Mutex<()>,
    draining: AtomicBool,
    /// Decides which client opens the next connection to be shared.
    opening: placement::Opening,
    growing: placement::Growing,
    /// Number of tasks that hand over departed clients' leftovers.
    handing_over: AtomicUsize,
    /// Notified when a connection was removed or a handover has ended.
    removed: Notify,
    /// The server-properties last received from a broker.
    server_properties: Mutex<Option<FieldTable>, { Rank::Leaf as u8 }>,
    /// Virtual hosts that a broker has deleted.
    deletions: Deletions,
    /// Whether a broker has closed a connection because of the declaration of a queue that is neither durable nor exclusive.
    denies_transient: AtomicBool,
}

/// The deprecated feature named in RabbitMQ 4's close text when such queues are not permitted.
const TRANSIENT_FEATURE: &str = "`transient_nonexcl_queues`";

/// Identifies a client in names and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The client connection's number.
    pub id: u64,
    /// The client's address and port, as text.
    pub peer: String,
}

/// A login that the broker has accepted, for [`Pool::open`].
#[derive(Debug)]
pub struct Login {
    credentials: Arc<Credentials>,
    info: ClientInfo,
    /// The connection on which the login was verified; `None` if an already open connection had verified the credentials.
    begun: Option<PermittedConnection>,
}

impl Login {
    /// The credentials that the broker has accepted: for a client with a certificate, the configured ones. Shared by all
    /// logins and connections with the same.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// The client that has logged in.
    pub fn info(&self) -> &ClientInfo {
        &self.info
    }
}

/// A connection that is logged in and has no virtual host open yet, with its permit. Boxed because a TLS stream is large.
type PermittedConnection = Box<(LoggedInConnection, Endpoint, ConnectionPermit)>;

/// The client's end of a session.
#[derive(Debug, Clone)]
pub struct ClientSide {
    /// The out-buffer of the client's connection.
    pub outbox: Arc<Outbox>,
    /// The limits negotiated on the client's connection.
    pub negotiated: Negotiated,
    /// The capabilities that the client has announced in its properties.
    pub capabilities: Capabilities,
    /// The client properties, as received.
    pub client_properties: FieldTable,
}

impl Pool {
    /// Creates an empty pool. It opens no connection before a client arrives.
    pub fn new(config: PoolConfig) -> Arc<Self> {
        let permits = connection_permits::connection_permits(config.max_connections);
        let staging = Staging::new(
            config.staging_total_max,
            config.streams_max(),
            config.staging_patience,
            permits.clone(),
        );
        let replay_totals = ReplayTotals {
            connected: Quota::new(config.replay_client_max, config.replay_total_max),
            departed: Quota::new(usize::MAX, config.departed_total_max),
        };
        Arc::new(Self {
            identities: ArcSwap::new(Arc::clone(&config.identities)),
            waiting: Arc::new(Waiting::new(config.waiting_total_max())),
            staging,
            queued: Quota::new(QUEUED_CLIENT_MAX, config.queued_total_max),
            endpoints: Arc::new(Endpoints::new(config.resolver.clone())),
            permits,
            unused: Arc::default(),
            config,
            connections: Mutex::default(),
            auth_gate: AuthGate::new(),
            channel_limits: ChannelLimits::default(),
            counters: Counters::default(),
            next_id: AtomicU64::new(1),
            topologies: Arc::default(),
            replay_totals: Arc::new(replay_totals),
            asking: tokio::sync::Mutex::default(),
            draining: AtomicBool::new(false),
            opening: placement::Opening::default(),
            growing: placement::Growing::default(),
            handing_over: AtomicUsize::new(0),
            removed: Notify::new(),
            server_properties: Mutex::new(None),
            denies_transient: AtomicBool::new(false),
            deletions: Deletions::default(),
        })
    }

    /// Verifies credentials with the broker (P1): by an open connection that was verified with the same ones
    /// less than `auth_ttl` ago, or by a handshake that begins now and continues in [`Self::open`].
    /// Credentials that a broker refused a moment ago are refused again without asking. While no broker can
    /// be asked, the client waits for `arrival_max`.
    ///
    /// # Errors
    /// The broker's refusal, or 320 CONNECTION_FORCED when no broker can be asked. The client should not
    /// receive the latter: its connection should end without a reply, like one to a dead broker.
    pub async fn authenticate(
        self: &Arc<Self>,
        credentials: Credentials,
        client: ClientInfo,
    ) -> Result<Login, Refusal> {
        self.authenticate_until(self.arrival_end(), credentials, client).await
    }

    /// Like [`Self::authenticate`], with the time until which an upstream is waited for.
    async fn authenticate_until(
        self: &Arc<Self>,
        end: tokio::time::Instant,
        credentials: Credentials,
        client: ClientInfo,
    ) -> Result<Login, Refusal> {
        let credentials = self.upstream_credentials(credentials)?;
        loop {
            if self.is_verified(&credentials) {
                return Ok(self.avoided(credentials, client));
            }
            self.check_not_refused(&credentials)?;
            self.wait_while_failing(end).await;
            let verified = || self.is_verified(&credentials).then_some(());
            // The address is not known before the connection attempt.
            let unknown_destination = Destination::default();
            let attempt =
                match Box::pin(self.enter(&credentials, false, &unknown_destination, end, verified)).await? {
                    PermitOutcome::Instead(()) => continue,
                    PermitOutcome::Begin(_handshake, permit) => {
                        self.check_not_refused(&credentials)?;
                        self.begin(permit, &credentials, &ClientProperties::SHARED).await
                    }
                };
            match attempt {
                Ok(begun) => {
                    let credentials = self.shared_copy(credentials);
                    self.auth_gate.verified(&credentials);
                    return Ok(Login { credentials, info: client, begun: Some(begun) });
                }
                Err(Refusal::Login(text)) => {
                    self.auth_gate.refuse(credentials, text.clone(), transport::now());
                    return Err(Refusal::Login(text));
                }
                Err(refusal) => self.wait_for_return(refusal, end).await?,
            }
        }
    }

    /// Learns from the fault with which a broker closes a connection.
    pub(crate) fn learn_from(&self, fault: &Fault) {
        if fault.code == ReplyCode::InternalError && fault.reply_text().contains(TRANSIENT_FEATURE) {
            self.denies_transient.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the broker closes the connection on a declaration of a queue that is neither durable nor exclusive.
    pub(crate) fn denies_transient(&self) -> bool {
        self.denies_transient.load(Ordering::Relaxed)
    }

    /// Replaces the upstream credentials of clients that log in with a certificate.
    pub fn set_identities(&self, identities: Identities) {
        self.identities.store(Arc::new(identities));
    }

    /// Whether clients may log in with a certificate (SASL EXTERNAL).
    pub fn takes_external(&self) -> bool {
        !self.identities.load().is_empty()
    }

    /// The credentials as the broker knows them: for a client with a certificate, the configured ones.
    fn upstream_credentials(&self, credentials: Credentials) -> Result<Credentials, Refusal> {
        if credentials.mechanism != Mechanism::External {
            return Ok(credentials);
        }
        self.identities.load().credentials(&credentials.username).ok_or_else(|| {
            let identity = &credentials.username;
            Refusal::Login(format!("no upstream user is configured for the certificate of '{identity}'"))
        })
    }

    fn check_not_refused(&self, credentials: &Credentials) -> Result<(), Refusal> {
        let Some(text) = self.auth_gate.refusal(credentials, transport::now()) else { return Ok(()) };
        add(&self.counters.refusals_repeated, 1);
        Err(Refusal::Login(text))
    }

    /// Creates a login without a handshake.
    fn avoided(&self, credentials: Credentials, info: ClientInfo) -> Login {
        add(&self.counters.handshakes_avoided, 1);
        add(&self.counters.round_trips_saved, HANDSHAKE_ROUND_TRIPS);
        Login { credentials: self.shared_copy(credentials), info, begun: None }
    }

    /// Opens a virtual host for a client (P1). The broker must have accepted these credentials for it less
    /// than `auth_ttl` ago on a connection that is still open, or accept them now.
    ///
    /// # Errors
    /// The broker's refusal, or 320 CONNECTION_FORCED when no broker can be asked.
    pub async fn open(
        self: &Arc<Self>,
        login: Login,
        virtual_host: &str,
        client: ClientSide,
    ) -> Result<ProxySession, Refusal> {
        let verified = self.verify_login(login, virtual_host).await?;
        Ok(self.open_verified(verified, client))
    }

    async fn verify_once(
        self: &Arc<Self>,
        begun: Option<PermittedConnection>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        end: tokio::time::Instant,
    ) -> Result<(), Refusal> {
        let verified = || self.is_verified_for(credentials, virtual_host).then_some(());
        if let Some(begun) = begun {
            // The broker accepted the credentials a moment ago, and this connection already holds its permit.
            let destination = self.destination(None, virtual_host);
            let _permit = Box::pin(self.auth_gate.enter_known(&destination, end)).await?;
            // Another client may have verified the credentials meanwhile.
            return if verified().is_some() {
                Ok(())
            } else {
                self.verify(begun, credentials, virtual_host).await
            };
        }
        let destination = self.destination(None, virtual_host);
        match Box::pin(self.enter(credentials, true, &destination, end, verified)).await? {
            PermitOutcome::Instead(()) => Ok(()),
            PermitOutcome::Begin(_handshake, permit) => {
                let begun = self.begin(permit, credentials, &ClientProperties::SHARED).await?;
                self.verify(begun, credentials, virtual_host).await
            }
        }
    }

    /// Whether connections to a broker are open, or one answered when it was last asked and has not lost a connection since;
    /// false before the first was asked.
    pub fn is_reachable(&self) -> bool {
        self.endpoints.any_up()
    }

    /// Whether a broker answers, if known. For a client that has sent nothing yet: its connection should be closed as
    /// by a dead broker while no upstream answers. A broker to which connections are open counts as answering. Returns
    /// `None` before the first probe, and after the last connection was lost; call [`Self::probe_endpoints`] then.
    /// Addresses that did not answer are probed in the background until they do.
    pub fn answers(&self) -> Option<bool> {
        match self.endpoints.reach() {
            Reachability::Answers => Some(true),
            Reachability::Silent => Some(false),
            Reachability::Unknown => None,
        }
    }

    /// Whether a broker answers. If that is not known, probes the brokers, once for all concurrent callers.
    pub async fn probe_endpoints(self: &Arc<Self>) -> bool {
        let _turn = self.asking.lock().await;
        match self.answers() {
            Some(answers) => answers,
            // A connection may have been opened meanwhile, even if probes get no reply.
            None => self.probe().await || self.answers() == Some(true),
        }
    }

    /// Checks whether a broker answers, and updates [`Self::is_reachable`]. To be called periodically. A broker with
    /// open connections is not probed, because it is known to answer, and RabbitMQ logs a warning for each probe.
    pub async fn check(self: &Arc<Self>) -> bool {
        if self.endpoints.any_in_use() {
            self.restore_soon();
            return true;
        }
        self.probe().await
    }

    /// Probes the brokers, in turn, by waiting for their first method; returns whether one answered.
    async fn probe(self: &Arc<Self>) -> bool {
        for endpoint in self.endpoints_in_order().await {
            if self.probe_one(&endpoint).await {
                return true;
            }
        }
        false
    }

    /// Probes concurrently the addresses whose failure would otherwise go unnoticed: those that have no open connections and
    /// are not probed in the background. With one address [`Self::check`] does that.
    pub async fn probe_idle(self: &Arc<Self>) {
        let all = self.endpoints_in_order().await;
        if all.len() < 2 {
            return;
        }
        let probe = |endpoint| {
            let pool = Arc::clone(self);
            background::run(async move {
                pool.probe_one(&endpoint).await;
            })
        };
        let idle = all.into_iter().filter(|endpoint| self.endpoints.is_idle(endpoint));
        let probes: Vec<_> = idle.filter_map(probe).collect();
        for probe in probes {
            // A probe has a timeout; a panic would have been reported.
            let _ = probe.await;
        }
    }

    /// Probes a broker by waiting for its first method; returns whether it answered.
    async fn probe_one(self: &Arc<Self>, endpoint: &Endpoint) -> bool {
        match self.ask(endpoint).await {
            Ok(properties) => {
                *self.server_properties.lock() = Some(properties);
                self.restore_soon();
                true
            }
            Err(error) => {
                add(&self.counters.connect_failures, 1);
                self.endpoints.set_failure_cause(endpoint, &error);
                if self.endpoints.record_no_answer(self, endpoint) {
                    endpoints::log_failure(endpoint, &error);
                }
                false
            }
        }
    }

    /// Waits for a broker's first method, and records that it answers. Retries if a connection to it is lost meanwhile,
    /// because the broker may have sent the reply before it died.
    async fn ask(&self, endpoint: &Endpoint) -> Result<FieldTable, Refusal> {
        loop {
            let asked_at = self.endpoints.asked_at(endpoint);
            let properties = upstream::probe(endpoint, &self.config).await?;
            if self.endpoints.has_answered(endpoint, asked_at) {
                return Ok(properties);
            }
        }
    }

    /// The broker's server-properties. Probes the brokers if none has sent them yet.
    pub async fn server_properties(self: &Arc<Self>) -> Option<FieldTable> {
        let known = self.server_properties.lock().clone();
        if known.is_some() {
            return known;
        }
        self.probe().await;
        self.server_properties.lock().clone()
    }

    /// The version in the server-properties that a broker sent last, such as `3.13.7`, if that is RabbitMQ.
    pub fn known_version(&self) -> Option<String> {
        let properties = self.server_properties.lock();
        let text = |name| properties.as_ref()?.get(name)?.as_text();
        text("version").filter(|_| text("product") == Some("RabbitMQ")).map(str::to_owned)
    }

    /// The product and version in the server-properties received last, such as `RabbitMQ 3.13.7`.
    pub fn known_product(&self) -> Option<String> {
        let properties = self.server_properties.lock();
        let (product, version) = product_and_version(properties.as_ref()?);
        Some(format!("{} {}", product?, version.unwrap_or_default()).trim_end().to_owned())
    }

    /// A snapshot of the pool's metrics.
    pub fn metrics(&self) -> PoolMetrics {
        let connections: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        let upstream::LoadSum { channels, resting, own, blocked } = upstream::loads(&connections);
        let (addresses, addresses_down) = self.endpoints.count();
        let (staging_waiting_clients, streams) = self.staging.counts();
        PoolMetrics {
            upstream_connections: connections.len(),
            blocked_connections: blocked,
            dedicated_connections: own,
            upstream_channels: channels,
            idle_channels: resting,
            opening_connections: self.taken().saturating_sub(connections.len()),
            replay_buffer_bytes: self.replay_totals.connected.bytes(),
            bytes_departed: self.replay_totals.departed.bytes(),
            bytes_staged: self.staging.bytes(),
            bytes_queued: self.queued.bytes(),
            bytes_waiting: self.waiting.bytes(),
            total_limit_moved_channels: self.waiting.over_total_limit(),
            staging_waiting_clients,
            streams,
            staging_waits: self.staging.wait_count(),
            clients_gave_way: self.staging.evicted_clients(),
            bytes_remembered: self.topologies.bytes(),
            addresses,
            addresses_down,
            ..self.counters.read()
        }
    }

    /// The upstream addresses, and whether each answers.
    pub fn addresses(&self) -> Vec<AddressState> {
        self.endpoints.states()
    }

    /// The open connections, oldest first.
    pub fn connections(&self) -> Vec<UpstreamView> {
        let mut connections: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        connections.sort_by_key(|upstream| upstream.id);
        connections.iter().map(|upstream| upstream.view()).collect()
    }

    /// Sends departed clients' remaining frames, then closes all connections cleanly. Waits for this until `limit` has passed.
    /// The closes are waited for only as long as `closing`, unless frames of departed clients are still unanswered. New
    /// connections are refused from then on. Sessions should have ended before.
    pub async fn drain(&self, limit: Duration, closing: Duration) {
        let end = tokio::time::Instant::now() + limit;
        let handed_over = self.wait_until(|| self.handing_over.load(Ordering::Acquire) == 0);
        // After the limit, shutdown continues: the brokers may be gone.
        let _ = tokio::time::timeout_at(end, handed_over).await;
        self.draining.store(true, Ordering::Release);
        let all: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        all.iter().for_each(|upstream| upstream.close("shutdown", transport::now()));
        // After the limit, shutdown continues without the brokers' answers.
        let emptied = self.wait_until(|| self.connections.lock().is_empty());
        let is_all_answered = self.replay_totals.departed.bytes() == 0;
        let end = if is_all_answered { end.min(tokio::time::Instant::now() + closing) } else { end };
        let _ = tokio::time::timeout_at(end, emptied).await;
    }

    /// Waits for a condition whose changes are notified by `removed`.
    async fn wait_until(&self, done: impl Fn() -> bool) {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            if done() {
                return;
            }
            removed.await;
        }
    }

    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The buffer space for incomplete messages.
    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// Bytes of frames that wait for placement.
    pub(crate) fn queued(&self) -> &Arc<Quota> {
        &self.queued
    }

    /// The backlog of clients that do not read.
    pub(crate) fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    /// Bytes of clients' frames that are kept for replay.
    pub(crate) fn replay_totals(&self) -> &Arc<ReplayTotals> {
        &self.replay_totals
    }

    /// Whether no more frames of departed clients may be kept.
    pub(crate) fn departed_is_full(&self) -> bool {
        !self.replay_totals.departed.has_capacity()
    }

    /// Notifies waiters that a connection may be unused.
    pub(crate) fn unused(&self) -> &Arc<UnusedNotifier> {
        &self.unused
    }

    /// Number of connections, including those being opened.
    fn taken(&self) -> usize {
        self.config.max_connections.saturating_sub(self.permits.available_permits())
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, upstream: Arc<Upstream>) {
        let user = upstream.credentials().username.clone();
        self.connections.lock().entry(user).or_default().push(upstream);
    }

    /// Removes a connection that has ended. `fault` is `None` if the pool has closed it.
    pub(crate) fn remove(self: &Arc<Self>, upstream: &Arc<Upstream>, fault: Option<&Fault>) {
        let mut connections = self.connections.lock();
        // A new secret does not change the user name.
        let user = &upstream.credentials().username;
        if let Some(of_user) = connections.get_mut(user) {
            of_user.retain(|other| !Arc::ptr_eq(other, upstream));
            if of_user.is_empty() {
                connections.remove(user);
            }
        }
        let virtual_host = &*upstream.virtual_host;
        if self.topologies.knows(virtual_host)
            && !connections.values().flatten().any(|other| *other.virtual_host == *virtual_host)
        {
            self.topologies.lost(virtual_host);
        }
        drop(connections);
        self.free();
        add(&self.counters.connections_lost, u64::from(fault.is_some()));
        // Any other fault concerns what was sent on this connection, not the broker.
        if fault.is_some_and(|fault| fault.code == ReplyCode::ConnectionForced) {
            self.endpoints.lost(self, &upstream.endpoint);
        } else {
            self.endpoints.closed(self, &upstream.endpoint);
        }
        self.removed.notify_waiters();
    }

    /// Whether the broker accepted these credentials less than `auth_ttl` ago on a connection that is still open.
    fn is_verified(&self, credentials: &Credentials) -> bool {
        self.newest(credentials, |upstream| upstream.is_verified_within(self.config.auth_ttl)).is_some()
    }

    /// The pool's shared copy of equal credentials, so that a password is not kept once per client.
    fn shared_copy(&self, credentials: Credentials) -> Arc<Credentials> {
        match self.newest(&credentials, |_| true) {
            Some(upstream) => upstream.credentials(),
            None => Arc::new(credentials),
        }
    }

    /// The newest connection with exactly these credentials, compared in constant time, for which `wanted` holds.
    fn newest(
        &self,
        credentials: &Credentials,
        wanted: impl Fn(&Arc<Upstream>) -> bool,
    ) -> Option<Arc<Upstream>> {
        let connections = self.connections.lock();
        let of_user = connections.get(&credentials.username)?;
        let same = |upstream: &&Arc<Upstream>| upstream.is_of(credentials);
        of_user.iter().rev().filter(same).find(|upstream| wanted(upstream)).cloned()
    }

    /// The addresses in the order in which to try them. If there are none, the names are resolved in the
    /// background.
    async fn endpoints_in_order(self: &Arc<Self>) -> Vec<Endpoint> {
        let endpoints = self.endpoints.in_order(&self.config.upstreams).await;
        if endpoints.is_empty() {
            self.endpoints.retry_resolution(self);
        }
        endpoints
    }

    /// Connects and logs in at the first address that answers.
    async fn begin(
        self: &Arc<Self>,
        permit: ConnectionPermit,
        credentials: &Credentials,
        announced: &ClientProperties,
    ) -> Result<PermittedConnection, Refusal> {
        Box::pin(self.connect_preferring(None, permit, credentials, announced)).await
    }

    /// Like [`Self::begin`], preferring the node `near`.
    async fn connect_preferring(
        self: &Arc<Self>,
        near: Option<SocketAddr>,
        permit: ConnectionPermit,
        credentials: &Credentials,
        announced: &ClientProperties,
    ) -> Result<PermittedConnection, Refusal> {
        let mut refusal = no_upstream();
        let mut endpoints = self.endpoints_in_order().await;
        if let Some(node) = near.filter(|node| self.endpoints.is_up(*node)) {
            // A stable sort: the other addresses keep their order.
            endpoints.sort_by_key(|endpoint| endpoint.socket != node);
        }
        for endpoint in endpoints {
            add(&self.counters.handshakes, 1);
            match Box::pin(LoggedInConnection::login(&endpoint, credentials, announced, &self.config)).await {
                Ok(begun) => {
                    self.endpoints.heard(&endpoint);
                    *self.server_properties.lock() = Some(begun.server_properties.clone());
                    return Ok(Box::new((begun, endpoint, permit)));
                }
                // Another node of the cluster would refuse the login as well.
                Err(Refusal::Login(text)) => {
                    self.endpoints.heard(&endpoint);
                    add(&self.counters.logins_refused, 1);
                    return Err(Refusal::Login(text));
                }
                Err(error) => {
                    add(&self.counters.connect_failures, 1);
                    self.endpoints.set_failure_cause(&endpoint, &error);
                    let is_new = error.is_outage() && self.endpoints.record_no_answer(self, &endpoint);
                    if !error.is_outage() {
                        self.endpoints.failed(self, &endpoint);
                    }
                    if is_new {
                        endpoints::log_failure(&endpoint, &error);
                    } else {
                        let error = error.cause(&endpoint);
                        tracing::warn!(address = %endpoint, error, "upstream connection failed");
                    }
                    refusal = error;
                }
            }
        }
        Err(refusal)
    }

    /// Opens the virtual host and starts the connection's task.
    async fn finish(
        self: &Arc<Self>,
        half_open: PermittedConnection,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        owner: Option<Arc<ClientLink>>,
        role: Option<Role>,
    ) -> Result<Arc<Upstream>, Refusal> {
        let (begun, endpoint, permit) = *half_open;
        let (stream, limits) = match Box::pin(begun.open(virtual_host, &self.config)).await {
            Ok(opened) => opened,
            Err(refusal) => {
                self.endpoints.blame(self, &endpoint, &refusal);
                return Err(refusal);
            }
        };
        permit.keep();
        self.endpoints.opened(&endpoint);
        let login = upstream::UpstreamIdentity {
            endpoint,
            credentials: credentials.clone(),
            virtual_host: virtual_host.into(),
        };
        // A client's own connection is of use to waiting logins only if it is the first that verifies their credentials.
        let helps_others = owner.is_none() || self.verified(credentials, virtual_host).is_none();
        let upstream = upstream::spawn(self, stream, limits, login, owner, role);
        if helps_others {
            self.unused.notify_all();
        }
        tracing::debug!(upstream = upstream.id, virtual_host, "upstream connection opened");
        if self.draining.load(Ordering::Acquire) {
            upstream.close("shutdown", transport::now());
        }
        Ok(upstream)
    }
}

/// Whether credentials are equal, compared in constant time unless they are the same object.
pub(crate) fn is_same(own: &Arc<Credentials>, credentials: &Credentials) -> bool {
    std::ptr::eq(&**own, credentials) || **own == *credentials
}

fn no_upstream() -> Refusal {
    Refusal::unreachable("no address is known")
}

/// Round trips of connecting: TCP, protocol header, `connection.start-ok`, and `connection.open`.
const HANDSHAKE_ROUND_TRIPS: u64 = 4;
