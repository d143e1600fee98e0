//! The process as the management API sees it: listeners, connections, resources, the pool.

mod connection;
mod listeners;
mod pool;

use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::{
    ApiProcess, ChangePermit, ClientConnection, Counters, DetachedSession, ListenerInfo, MigrationError,
    MigrationStep, NodeInfo, TlsListener, UpgradeRefused,
};
use broker::{Store, Timestamp};
use serde_json::{Map, Value, json};
use server::{
    Backend, ClientProtocol, Clock, ForwardingMode, InUse, Limits, PROTOCOLS, Resource, Scopes, Server,
    SpoolSelection,
};
use transport::tls::ServerTls;

use crate::alarms::Levels;
use crate::announce::announced;
use crate::migration::{Migrator, MoveError};
use crate::signals::Drainer;
use crate::takeover::Upgrades;
use connection::ManagementView;
pub(crate) use pool::PoolLimits;

/// The running process as the API sees it.
pub(crate) struct Manager {
    server: Server,
    backend: Backend,
    clock: Clock,
    levels: Option<Arc<Levels>>,
    node: String,
    started: Instant,
    max_message_size: u64,
    hooks: Hooks,
}

/// Callbacks into other parts of the process.
pub(crate) struct Hooks {
    /// Returns the limits in effect.
    pub(crate) limits: Box<dyn Fn() -> Limits + Send + Sync>,
    /// Limits of the pool, if there is one.
    pub(crate) pool_limits: PoolLimits,
    /// Returns the settings in effect, as JSON.
    pub(crate) environment: Box<dyn Fn() -> Value + Send + Sync>,
    /// The certificates of listeners over TLS, if there are any.
    pub(crate) certificates: Option<Arc<ServerTls>>,
    /// Requests the drain of the process.
    pub(crate) drainer: Drainer,
    pub(crate) upgrades: Arc<Upgrades>,
    /// Moves messages to another broker, or from there.
    pub(crate) migrator: Arc<Migrator>,
}

/// Listeners over TLS, with the certificates and CA certificates now in use.
pub(crate) fn tls_listeners(tls: Option<&ServerTls>) -> Vec<TlsListener> {
    tls.map(|tls| listeners::over_tls(&announced(), &tls.in_use())).unwrap_or_default()
}

impl Manager {
    pub(crate) fn new(
        server: Server,
        backend: Backend,
        clock: Clock,
        levels: Option<Arc<Levels>>,
        max_message_size: u64,
        hooks: Hooks,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            backend,
            clock,
            levels,
            node: node_name(),
            started: Instant::now(),
            max_message_size,
            hooks,
        })
    }
}

impl ApiProcess for Manager {
    fn now(&self) -> Timestamp {
        self.clock.timestamp(Instant::now())
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn node_name(&self) -> &str {
        &self.node
    }

    fn node(&self) -> NodeInfo {
        let alarms = self.server.alarms();
        let levels = self.levels.as_deref();
        NodeInfo {
            name: self.node.clone(),
            uptime: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            memory_used: admin::resident_memory(),
            descriptors: admin::descriptors(),
            memory_limit: levels.and_then(Levels::memory_limit),
            memory_alarm: alarms.is_raised(Resource::Memory),
            disk_free: levels.filter(|levels| levels.disk_limit().is_some()).map(Levels::disk_free),
            disk_free_limit: levels.and_then(Levels::disk_limit),
            disk_alarm: alarms.is_raised(Resource::Disk),
        }
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        listeners::all(&announced())
    }

    fn tls_listeners(&self) -> Vec<TlsListener> {
        tls_listeners(self.hooks.certificates.as_deref())
    }

    fn counters(&self) -> Counters {
        let metrics = self.server.metrics();
        let confirmed = |of: &ClientProtocol| metrics.confirms(of.front_end).given.get();
        Counters {
            connections_opened: metrics.connections_opened.get(),
            connections_closed: metrics.connections_closed.get(),
            channels_opened: metrics.channels_opened.get(),
            channels_closed: metrics.channels_closed.get(),
            confirmed: PROTOCOLS.iter().map(confirmed).sum(),
            returned: metrics.messages_returned.get(),
        }
    }

    fn connection_count(&self) -> u64 {
        self.server.connection_count() as u64
    }

    fn connections(&self) -> Vec<Arc<dyn ClientConnection>> {
        let view = |connection| Arc::new(ManagementView(connection)) as Arc<dyn ClientConnection>;
        self.server.open_connections().into_iter().map(view).collect()
    }

    fn connection(&self, id: u64) -> Option<Arc<dyn ClientConnection>> {
        let connection = self.server.open_connection(id)?;
        Some(Arc::new(ManagementView(connection)))
    }

    fn connection_named(&self, name: &str) -> Option<Arc<dyn ClientConnection>> {
        let mut connections = self.server.open_connections().into_iter();
        let found = connections.find(|connection| connection::is_named(connection, name))?;
        Some(Arc::new(ManagementView(found)))
    }

    fn upstreams(&self) -> Vec<Value> {
        match &self.backend {
            Backend::Upstream(upstream) => pool::upstreams(upstream),
            Backend::Broker(_) => Vec::new(),
        }
    }

    fn upstream_connections(&self) -> Vec<Value> {
        match &self.backend {
            Backend::Upstream(upstream) => upstream.connections().iter().map(pool::connection).collect(),
            Backend::Broker(_) => Vec::new(),
        }
    }

    fn multiplexed_queues(&self) -> Vec<Value> {
        self.server.multiplexed_queues().iter().map(pool::multiplexed_queue).collect()
    }

    fn multiplexed_bindings(&self, queue: &str) -> Option<Vec<Value>> {
        let bindings = self.server.multiplexed_bindings(queue)?;
        Some(bindings.iter().map(pool::multiplexed_binding).collect())
    }

    fn detached_sessions(&self) -> Vec<DetachedSession> {
        self.server.detached_mqtt_sessions().into_iter().map(pool::detached).collect()
    }

    fn shared_groups(&self) -> Vec<Value> {
        self.server.mqtt_groups().iter().map(pool::shared_group).collect()
    }

    fn retained_messages(&self) -> Vec<Value> {
        self.server.retained_messages().iter().map(pool::retained).collect()
    }

    fn spool_queues(&self) -> Vec<Value> {
        let Some(spool) = self.server.spool() else { return Vec::new() };
        let mode = spool.mode();
        spool.status().iter().map(|queue| pool::spool_queue(queue, mode)).collect()
    }

    fn spool_store(&self) -> Option<Arc<Store>> {
        self.server.spool()?.store().cloned()
    }

    fn parked_messages(&self) -> Vec<Value> {
        let parked = self.server.spool().map(|spool| spool.parked_messages()).unwrap_or_default();
        parked.iter().map(pool::parked_message).collect()
    }

    fn requeue_parked(&self, user: Option<&str>, vhost: Option<&str>) -> Option<Value> {
        let spool = self.server.spool()?;
        let requeued = spool.requeue_parked(SpoolSelection { user, vhost });
        Some(json!({ "requeued": requeued, "remaining": spool.parked() }))
    }

    fn steer_spool(&self, action: &str) -> Option<Value> {
        let spool = self.server.spool()?;
        let mode = match action {
            "pause" => ForwardingMode::Paused,
            "drain" => ForwardingMode::Draining,
            _ => ForwardingMode::Running,
        };
        spool.set_mode(mode);
        Some(json!({ "state": mode.name() }))
    }

    fn purge_parked(&self, user: Option<&str>, vhost: Option<&str>) -> Option<Value> {
        Some(json!({ "purged": self.server.spool()?.purge_parked(SpoolSelection { user, vhost }) }))
    }

    fn purge_waiting(&self, user: &str, vhost: Option<&str>) -> Option<Value> {
        let selection = SpoolSelection { user: Some(user), vhost };
        Some(json!({ "purged": self.server.spool()?.purge_waiting(selection) }))
    }

    fn leases(&self) -> Option<Value> {
        match &self.backend {
            Backend::Upstream(upstream) => Some(pool::leases(&self.server, upstream)),
            Backend::Broker(_) => None,
        }
    }

    fn max_message_size(&self) -> u64 {
        self.max_message_size
    }

    fn frame_max(&self) -> u32 {
        self.server.frame_max()
    }

    fn consumer_timeout(&self) -> Duration {
        self.server.consumer_timeout()
    }

    fn blocks_publishers(&self) -> bool {
        let alarms = self.server.alarms();
        [Resource::Memory, Resource::Disk].into_iter().any(|resource| alarms.is_raised(resource))
    }

    fn connections_in_use(&self) -> u64 {
        self.server.in_use().connections.total as u64
    }

    fn connection_limit(&self) -> Option<u64> {
        limit((self.hooks.limits)().connections.total).map(|most| most as u64)
    }

    fn limits(&self) -> Value {
        let Limits { connections, connection_rate, channels, receive_rate, alarm_only } =
            (self.hooks.limits)();
        let exceeded: Map<String, Value> =
            self.server.exceeded().iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
        let InUse { connections: connections_used, channels: channels_used } = self.server.in_use();
        let mut reported = json!({
            "connections": scopes(connections), "connection_rate": scopes(connection_rate),
            "channels": scopes(channels), "receive_rate": scopes(receive_rate),
            "mode": if alarm_only { "alarm" } else { "enforce" }, "exceeded": exceeded,
            "open_connections": connections_used.total,
            "in_use": {"connections": used(connections_used), "channels": used(channels_used)},
        });
        if let Backend::Upstream(upstream) = &self.backend {
            reported["upstream"] = pool::limits(upstream, &self.hooks.pool_limits);
        }
        reported
    }

    fn environment(&self) -> Value {
        (self.hooks.environment)()
    }

    fn drain(&self) {
        self.hooks.drainer.ask();
    }

    fn upgrade(&self) -> Result<Value, UpgradeRefused> {
        self.hooks
            .upgrades
            .start()
            .map(|_| self.upgrade_status())
            .map_err(|error| UpgradeRefused(error.into()))
    }

    fn upgrade_status(&self) -> Value {
        self.hooks.upgrades.status()
    }

    fn migration(&self) -> Value {
        self.hooks.migrator.status()
    }

    fn begin_change(&self) -> Option<ChangePermit> {
        self.hooks.migrator.begin_change()
    }

    fn steer_migration(&self, step: MigrationStep<'_>) -> Result<Value, MigrationError> {
        let migrator = &self.hooks.migrator;
        let done = match step {
            MigrationStep::Start(request) => migrator.start(request),
            MigrationStep::CheckLogin(request) => migrator.check_login(request),
            MigrationStep::Stop => migrator.stop(),
            MigrationStep::CutOver(named) => migrator.cut_over(named),
            MigrationStep::Finish(named) => migrator.finish(named),
        };
        done.map_err(|error| match error {
            MoveError::NotNamed { .. } => MigrationError::OtherMove(error.into()),
            error => MigrationError::Refused(error.into()),
        })
    }
}

/// A limit; in the settings, 0 is none.
fn limit(most: usize) -> Option<usize> {
    (most > 0).then_some(most)
}

/// Limits as an object; `null` for no limit.
fn scopes(scopes: Scopes<usize>) -> Value {
    json!({
        "total": limit(scopes.total), "per_ip": limit(scopes.per_ip), "per_user": limit(scopes.per_user),
    })
}

fn used(scopes: Scopes<usize>) -> Value {
    json!({"total": scopes.total, "per_ip": scopes.per_ip, "per_user": scopes.per_user})
}

/// The node's name, derived from the host name as in RabbitMQ.
pub(crate) fn node_name() -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_str().ok().and_then(|name| name.split('.').next()).unwrap_or_default();
    format!("leveret@{}", if host.is_empty() { "localhost" } else { host })
}
