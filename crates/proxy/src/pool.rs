//! The pool: which connections there are, and who may use them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amqp::{Capabilities, Credentials, Fault, FieldTable, Negotiated, ReplyCode};
use parking_lot::Mutex;
use tokio::sync::Notify;
use transport::Outbox;

use crate::config::PoolConfig;
use crate::doorkeeper::Doorkeeper;
use crate::link::{ClientLink, Event};
use crate::metrics::{Counters, PoolMetrics, add};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::upstream::{self, Begun, Upstream};

/// Connections to the upstream brokers, and the door through which clients come to them.
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    /// Connections that have not ended, oldest first, by user name.
    connections: Mutex<HashMap<String, Vec<Arc<Upstream>>>>,
    /// How many connections there are, those being opened included.
    count: AtomicUsize,
    doorkeeper: Doorkeeper,
    counters: Counters,
    next_id: AtomicU64,
    /// Which address the next connection starts with.
    next_address: AtomicUsize,
    /// Whether the last attempt to reach a broker succeeded.
    reachable: AtomicBool,
    draining: AtomicBool,
    /// How many tasks hand over what clients left behind.
    handing_over: AtomicUsize,
    /// A connection was removed, or something was handed over.
    removed: Notify,
    /// As a broker sent them last.
    server_properties: Mutex<Option<FieldTable>>,
}

/// Who a client is, for names and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The client connection's number.
    pub id: u64,
    /// Where the client is.
    pub peer: String,
}

/// A login that the broker has accepted. What [`Pool::open`] asks for.
#[derive(Debug)]
pub struct Login {
    credentials: Arc<Credentials>,
    info: ClientInfo,
    /// The connection on which the login was verified, when it was not one that is open already.
    begun: Option<(Begun, Reserved)>,
}

/// The client's end of a session.
#[derive(Debug, Clone)]
pub struct ClientSide {
    /// The out-buffer of the client's connection.
    pub outbox: Arc<Outbox>,
    /// The limits of the client's connection.
    pub negotiated: Negotiated,
    /// What the client knows.
    pub capabilities: Capabilities,
    /// As the client sent them.
    pub client_properties: FieldTable,
}

impl Pool {
    /// An empty pool. Nothing is connected before a client comes.
    pub fn new(config: PoolConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            connections: Mutex::default(),
            count: AtomicUsize::new(0),
            doorkeeper: Doorkeeper::new(),
            counters: Counters::default(),
            next_id: AtomicU64::new(1),
            next_address: AtomicUsize::new(0),
            reachable: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            handing_over: AtomicUsize::new(0),
            removed: Notify::new(),
            server_properties: Mutex::new(None),
        })
    }

    /// Verifies credentials with the broker (P1): by a connection that is open and was verified with the same ones less
    /// than `auth_ttl` ago, or by a handshake that begins now and goes on in [`Self::open`]. What a broker refused a moment
    /// ago is refused again without asking.
    ///
    /// # Errors
    /// The broker's refusal, or 320 CONNECTION_FORCED when no broker can be asked.
    pub async fn authenticate(
        self: &Arc<Self>,
        credentials: Credentials,
        client: ClientInfo,
    ) -> Result<Login, Refusal> {
        if self.is_verified(&credentials) {
            return Ok(self.avoided(credentials, client));
        }
        self.check_not_refused(&credentials)?;
        let _permit = self.doorkeeper.enter(&credentials).await;
        // Somebody else may have done it meanwhile.
        if self.is_verified(&credentials) {
            return Ok(self.avoided(credentials, client));
        }
        self.check_not_refused(&credentials)?;
        match self.begin(&credentials, SHARED_NAME).await {
            Ok(begun) => {
                let credentials = self.shared_copy(credentials);
                self.doorkeeper.verified(&credentials);
                Ok(Login { credentials, info: client, begun: Some(begun) })
            }
            Err(Refusal::Login(text)) => {
                self.doorkeeper.refuse(credentials, text.clone(), Instant::now());
                Err(Refusal::Login(text))
            }
            Err(other) => Err(other),
        }
    }

    fn check_not_refused(&self, credentials: &Credentials) -> Result<(), Refusal> {
        self.doorkeeper.refusal(credentials, Instant::now()).map_or(Ok(()), |text| Err(Refusal::Login(text)))
    }

    /// A login without a handshake.
    fn avoided(&self, credentials: Credentials, info: ClientInfo) -> Login {
        add(&self.counters.handshakes_avoided, 1);
        Login { credentials: self.shared_copy(credentials), info, begun: None }
    }

    /// Opens a virtual host for a client (P1): the broker has accepted these credentials for it less than `auth_ttl` ago
    /// on a connection that is open, or does so now.
    ///
    /// # Errors
    /// The broker's refusal, or 320 CONNECTION_FORCED when no broker can be asked.
    pub async fn open(
        self: &Arc<Self>,
        login: Login,
        virtual_host: &str,
        client: ClientSide,
    ) -> Result<Session, Refusal> {
        let Login { credentials, info, begun } = login;
        if !self.is_verified_for(&credentials, virtual_host) {
            let _permit = self.doorkeeper.enter(&credentials).await;
            let begun = match begun {
                Some(begun) => begun,
                None => self.begin(&credentials, SHARED_NAME).await?,
            };
            self.finish(begun, &credentials, virtual_host, None).await?;
        }
        Ok(Session::new(self.clone(), credentials, virtual_host, &info, client))
    }

    /// Whether the last attempt to reach a broker succeeded; false before the first.
    pub fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// Asks the brokers, in turn, for their first words; returns whether one answered, as [`Self::is_reachable`] does
    /// from then on.
    pub async fn probe(&self) -> bool {
        for address in self.addresses() {
            match upstream::probe(address, &self.config).await {
                Ok(properties) => {
                    *self.server_properties.lock() = Some(properties);
                    self.reachable.store(true, Ordering::Relaxed);
                    return true;
                }
                Err(error) => tracing::debug!(%address, %error, "upstream does not answer"),
            }
        }
        self.reachable.store(false, Ordering::Relaxed);
        false
    }

    /// The broker's server-properties, if it has ever been heard; asks when it has not.
    pub async fn server_properties(&self) -> Option<FieldTable> {
        let known = self.server_properties.lock().clone();
        if known.is_some() {
            return known;
        }
        self.probe().await;
        self.server_properties.lock().clone()
    }

    /// The pool's numbers now.
    pub fn metrics(&self) -> PoolMetrics {
        let connections: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        let (upstream_channels, own_connections) = upstream::loads(&connections);
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PoolMetrics {
            upstream_connections: connections.len(),
            own_connections,
            upstream_channels,
            clients: counters.clients.load(Ordering::Relaxed),
            handshakes: read(&counters.handshakes),
            handshakes_avoided: read(&counters.handshakes_avoided),
            connect_failures: read(&counters.connect_failures),
            connections_lost: read(&counters.connections_lost),
            octets_to_upstreams: read(&counters.octets_to_upstreams),
            frames_from_upstreams: read(&counters.frames_from_upstreams),
            octets_from_upstreams: read(&counters.octets_from_upstreams),
        }
    }

    /// Hands over what clients left behind, then closes all connections cleanly, and waits until they are closed or
    /// `limit` has passed. New ones are refused from then on. Sessions should have ended before.
    pub async fn drain(&self, limit: Duration) {
        let end = tokio::time::Instant::now() + limit;
        let handed_over = self.wait_until(|| self.handing_over.load(Ordering::Acquire) == 0);
        // Past the limit the process goes on: the brokers may be gone.
        let _ = tokio::time::timeout_at(end, handed_over).await;
        self.draining.store(true, Ordering::Release);
        let all: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        all.iter().for_each(|upstream| upstream.close("shutdown"));
        // Past the limit the process goes on without the brokers' answers.
        let emptied = self.wait_until(|| self.connections.lock().is_empty());
        let _ = tokio::time::timeout_at(end, emptied).await;
    }

    /// Waits for something that `removed` tells of.
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

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, upstream: Arc<Upstream>) {
        let user = upstream.credentials.username.clone();
        self.connections.lock().entry(user).or_default().push(upstream);
    }

    pub(crate) fn remove(&self, upstream: &Arc<Upstream>, expected: bool) {
        let mut connections = self.connections.lock();
        if let Some(of_user) = connections.get_mut(&upstream.credentials.username) {
            of_user.retain(|other| !Arc::ptr_eq(other, upstream));
            if of_user.is_empty() {
                connections.remove(&upstream.credentials.username);
            }
        }
        drop(connections);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if !expected {
            add(&self.counters.connections_lost, 1);
        }
        self.removed.notify_waiters();
    }

    /// A connection that shares its channels among clients, if there is one with room. The newest one, so that the older
    /// ones empty and can be closed.
    pub(crate) fn find_shared(&self, credentials: &Credentials, virtual_host: &str) -> Option<Arc<Upstream>> {
        self.newest(credentials, |upstream| {
            *upstream.virtual_host == *virtual_host && upstream.takes_shared()
        })
    }

    /// A connection that nobody uses, made the client's own. The last one with room for others is left to them, so that
    /// the warm path stays warm (P6).
    pub(crate) fn find_own(
        &self,
        credentials: &Credentials,
        virtual_host: &str,
        link: &Arc<ClientLink>,
    ) -> Option<Arc<Upstream>> {
        let newest = self.find_shared(credentials, virtual_host)?;
        let is_older = |upstream: &Arc<Upstream>| !Arc::ptr_eq(upstream, &newest);
        self.newest(credentials, |upstream| {
            *upstream.virtual_host == *virtual_host && is_older(upstream) && upstream.try_own(link)
        })
    }

    /// Opens a connection for a session that waits for it; an event tells it when that is done.
    pub(crate) fn open_for(
        self: &Arc<Self>,
        link: Arc<ClientLink>,
        credentials: Arc<Credentials>,
        virtual_host: Box<str>,
        own_name: Option<String>,
    ) {
        let pool = self.clone();
        tokio::spawn(async move {
            let own = own_name.is_some();
            let result = match own_name {
                Some(name) => pool.own_connection(&credentials, &virtual_host, &name, link.clone()).await,
                None => pool.shared_connection(&credentials, &virtual_host).await,
            };
            if let Err(Event::Ready { own: true, result: Ok(upstream) }) =
                link.push(Event::Ready { own, result })
            {
                upstream.give_back(false);
            }
        });
    }

    /// A connection with room, opened if there is none.
    pub(crate) async fn shared_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
    ) -> Result<Arc<Upstream>, Refusal> {
        let _permit = self.doorkeeper.enter(credentials).await;
        // Somebody else may have opened one meanwhile.
        if let Some(upstream) = self.find_shared(credentials, virtual_host) {
            return Ok(upstream);
        }
        let begun = self.begin(credentials, SHARED_NAME).await?;
        self.finish(begun, credentials, virtual_host, None).await
    }

    /// A new connection that belongs to one client.
    async fn own_connection(
        self: &Arc<Self>,
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        name: &str,
        owner: Arc<ClientLink>,
    ) -> Result<Arc<Upstream>, Refusal> {
        let _permit = self.doorkeeper.enter(credentials).await;
        let begun = self.begin(credentials, name).await?;
        self.finish(begun, credentials, virtual_host, Some(owner)).await
    }

    /// Whether the broker accepted these credentials less than `auth_ttl` ago on a connection that is still open.
    fn is_verified(&self, credentials: &Credentials) -> bool {
        self.newest(credentials, |upstream| self.is_fresh(upstream)).is_some()
    }

    fn is_verified_for(&self, credentials: &Credentials, virtual_host: &str) -> bool {
        let fresh =
            |upstream: &Arc<Upstream>| *upstream.virtual_host == *virtual_host && self.is_fresh(upstream);
        self.newest(credentials, fresh).is_some()
    }

    fn is_fresh(&self, upstream: &Arc<Upstream>) -> bool {
        upstream.verified_at.elapsed() < self.config.auth_ttl && upstream.is_open()
    }

    /// The pool's own copy of equal credentials, so that a password is not kept once per client.
    fn shared_copy(&self, credentials: Credentials) -> Arc<Credentials> {
        match self.newest(&credentials, |_| true) {
            Some(upstream) => upstream.credentials.clone(),
            None => Arc::new(credentials),
        }
    }

    /// The newest connection with these very credentials, compared in constant time, that is `wanted`.
    fn newest(
        &self,
        credentials: &Credentials,
        wanted: impl Fn(&Arc<Upstream>) -> bool,
    ) -> Option<Arc<Upstream>> {
        let connections = self.connections.lock();
        let of_user = connections.get(&credentials.username)?;
        let same = |upstream: &&Arc<Upstream>| {
            std::ptr::eq(&*upstream.credentials, credentials) || *upstream.credentials == *credentials
        };
        of_user.iter().rev().filter(same).find(|upstream| wanted(upstream)).cloned()
    }

    /// Connects and logs in, at the first address that answers.
    async fn begin(
        self: &Arc<Self>,
        credentials: &Credentials,
        name: &str,
    ) -> Result<(Begun, Reserved), Refusal> {
        let reserved = self.reserve()?;
        let mut refusal = no_upstream();
        for address in self.addresses() {
            add(&self.counters.handshakes, 1);
            match Begun::login(address, credentials, name, &self.config).await {
                Ok(begun) => {
                    self.reachable.store(true, Ordering::Relaxed);
                    *self.server_properties.lock() = Some(begun.server_properties.clone());
                    return Ok((begun, reserved));
                }
                // A broker has spoken: another one would say the same.
                Err(Refusal::Login(text)) => {
                    self.reachable.store(true, Ordering::Relaxed);
                    return Err(Refusal::Login(text));
                }
                Err(error) => {
                    tracing::warn!(%address, %error, "upstream connection failed");
                    add(&self.counters.connect_failures, 1);
                    refusal = error;
                }
            }
        }
        self.reachable.store(false, Ordering::Relaxed);
        Err(refusal)
    }

    /// Opens the virtual host and starts the connection's task.
    async fn finish(
        self: &Arc<Self>,
        (begun, reserved): (Begun, Reserved),
        credentials: &Arc<Credentials>,
        virtual_host: &str,
        owner: Option<Arc<ClientLink>>,
    ) -> Result<Arc<Upstream>, Refusal> {
        let (stream, limits) = begun.open(virtual_host, &self.config).await?;
        reserved.keep();
        let upstream = upstream::spawn(self, stream, limits, credentials.clone(), virtual_host, owner);
        tracing::debug!(upstream = upstream.id, virtual_host, "upstream connection opened");
        if self.draining.load(Ordering::Acquire) {
            upstream.close("shutdown");
        }
        Ok(upstream)
    }

    fn reserve(self: &Arc<Self>) -> Result<Reserved, Refusal> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Refusal::unreachable("shutting down"));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.config.max_connections {
            self.count.fetch_sub(1, Ordering::Relaxed);
            let text = format!("all {} upstream connections are in use", self.config.max_connections);
            return Err(Refusal::Fault(Fault::new(ReplyCode::ResourceError, text)));
        }
        Ok(Reserved(Some(self.clone())))
    }

    /// The addresses, starting with another one each time.
    fn addresses(&self) -> impl Iterator<Item = &crate::config::UpstreamAddress> {
        let all = &self.config.upstreams;
        let first = self.next_address.fetch_add(1, Ordering::Relaxed) % all.len().max(1);
        all[first..].iter().chain(&all[..first])
    }
}

/// One of [`PoolConfig::max_connections`], given back when dropped.
#[derive(Debug)]
struct Reserved(Option<Arc<Pool>>);

impl Reserved {
    /// The connection exists now; [`Pool::remove`] will give the place back.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps [`Pool::drain`] waiting until what a client left behind is handed over.
#[derive(Debug)]
pub(crate) struct HandingOver(Arc<Pool>);

impl HandingOver {
    pub(crate) fn begin(pool: &Arc<Pool>) -> Self {
        pool.handing_over.fetch_add(1, Ordering::AcqRel);
        Self(pool.clone())
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.0
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        self.0.handing_over.fetch_sub(1, Ordering::AcqRel);
        self.0.removed.notify_waiters();
    }
}

fn no_upstream() -> Refusal {
    Refusal::unreachable("no address is configured")
}

/// The connection_name of connections that clients share.
const SHARED_NAME: &str = "Leveret";
