//! `leveret serve`: connects listeners, backend and HTTP, and shuts them down in order.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::Api;
use broker::{Broker, BrokerConfig, Compatibility};
use parking_lot::Mutex;
use proxy::{DeletedVirtualHost, Pool, PoolConfig, UpstreamAddress, UpstreamTransport};
use proxy_protocol::{AcceptedVersions, ProxyVersion};
use server::{
    AccessLogWriter, Backend, Clock, Limits, MqttRestoreError, Routes, Scopes, Server, ServerConfig,
    TrustedProxies, WebSocketConfig,
};
use sync::work;
use tokio::sync::Notify;
use transport::Inherited;

use crate::alarms::{self, Levels, Sampler};
use crate::bound::BoundListeners;
use crate::config::{
    Config, Effective, Flags, InboundHeader, Limit, LimitsMode, ListenAddr, OutboundHeader, SettingError,
    VerifyClient, flag,
};
use crate::data_dir::{self, DataDirectory};
use crate::descriptors;
use crate::http::Http;
use crate::logs::ProcessLog;
use crate::manage::{Hooks, Manager, PoolLimits, node_name};
use crate::migration::{self, Migrator, MigratorConfig, TakeoverError};
use crate::mqtt::mqtt_config;
use crate::notify::Notifier;
use crate::pagers::{PagerNotifier, Pagers};
use crate::reload::{DrainTimes, Reloader};
use crate::setting_files::SettingFiles;
use crate::signals::{self, AddressesWanted, Caught, DrainReason, DrainRequest, Drainer};
use crate::spool::SpoolDirectory;
use crate::status::Status;
use crate::stored_clock;
use crate::takeover::{Offer, Succession, Upgrades};
use crate::tls::Tls;

/// Interval of the checks whether the upstream is reachable.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Number of these intervals between probes of the upstreams that no client uses. Brokers log such probes.
const IDLE_PROBE_CHECKS: u32 = 15;

/// Serves until a drain is requested and complete. `left` is the time that the ends of the logs may still take.
///
/// # Errors
///
/// Something could not start; the message begins with the key of the setting at fault.
pub(crate) async fn run(
    flags: Flags,
    effective: Effective,
    log: ProcessLog,
    inherited: Inherited,
    left: &mut Duration,
) -> Result<(), ServeError> {
    let config = migration::obey(&effective).map_err(ServeError::Setting)?;
    // Before any announcement, since its reader may send a signal at once.
    let caught = signals::catch(&log).map_err(ServeError::Signals)?;
    let Caught { mut drain, addresses_wanted, drainer, reload, upgrade } = caught;
    let notifier = Notifier::of_process().map_err(ServeError::Notifier)?;
    descriptors::raise_limit();
    warn_of_ignored(&effective);

    // Everything else is read before the data directory is: that may take minutes, and needs the process before this one to
    // end.
    let clock = Clock::start();
    let files = open_files(&config, clock)?;

    // From the beginning: a process that takes over is watched while it reads its data directory.
    tokio::spawn(notifier.clone().stay_alive());
    let Some(mut succession) = Succession::begin(&config, &inherited, &drain).await? else {
        return Ok(());
    };
    let (config, files) = obey_again(&effective, config, files, clock)?;
    descriptors::reserve(&config, !config.upstream.is_empty());
    let offer = Offer::start(&config, &drainer, &notifier).map_err(ServeError::TakeOver)?;

    let bound = BoundListeners::bind_before_first_start(&config, &files, &inherited).await?;
    let (backend, data_dir) = open_backend(&config, &effective, &files, clock)?;
    let SettingFiles { tls, relays, logins, access_log, .. } = files;
    let server = create_server(&config, &backend, clock, access_log.as_deref())?;
    let spool = open_spool(&config, &backend, &server, clock)?;
    follow_clock(clock, data_dir.as_ref(), spool.as_ref());
    let sampler = start_sampler(&config, &server, &backend)?;
    let listeners = match bound {
        Some(bound) => bound,
        None => BoundListeners::bind(&config, &relays, &tls, &inherited).await?,
    };
    listeners.announce();
    let levels = sampler.as_ref().map(|sampler| Arc::clone(sampler.levels()));
    let spool_levels = spool.as_ref().map(|spool| Arc::clone(spool.levels()));
    let any_levels = levels.clone().or_else(|| spool_levels.clone());
    let status = create_status(&server, &backend, &listeners, any_levels, &tls);
    succession.complete(&backend, &server, &drain).await?;
    let BoundListeners { clients, relays: of_relays, http, sockets } = listeners;
    clients.serve(&server, &config, &relays, &tls);
    relays.serve(of_relays, &server, &config, &tls);
    notifier.keep(&sockets);
    offer.open(sockets, server.clone(), embedded(&backend), succession.has_replaced());
    let upgrades = Upgrades::serve_of_process(&offer, &drainer, upgrade).map_err(ServeError::TakeOver)?;
    // Operators come after clients; readiness is announced when both are served.
    let reloader = Arc::new(Reloader {
        flags,
        effective: Mutex::new(effective),
        log,
        tls,
        access_log: access_log.clone(),
        server: server.clone(),
        backend: backend.clone(),
        levels,
        spool_levels,
        notifier: notifier.clone(),
        upgrades,
        logins,
    });
    tokio::spawn(Arc::clone(&reloader).serve(reload));
    let migrator = create_migrator(&reloader, clock, &config, &drainer, &offer);
    status.manage(management(&reloader, clock, drainer, Arc::clone(&migrator)));
    let http = Http::serve(http, &status, release_of_addresses(addresses_wanted, &drain, &reloader));
    notifier.ready();

    let (times, handed_over) = wait_for_end(&mut drain, &notifier, &status, &reloader, &migrator).await;
    offer.withdraw();
    end_sessions(&server, spool.as_ref(), &backend, times).await;
    reloader.upgrades.successor_ended().await;

    // HTTP ends last, so that a client that has requested the drain over HTTP can watch it.
    http.end().await;
    if let Some(access_log) = access_log {
        *left = access_log.end(*left);
    }
    // After the last session has ended, so that its changes are stored.
    drop((data_dir, spool));
    handed_over.map_err(ServeError::TakeoverError)
}

/// Reads and opens what the settings name besides the data directory.
fn open_files(config: &Config, clock: Clock) -> Result<SettingFiles, ServeError> {
    warn_of_open_listeners(config);
    SettingFiles::open(config, clock)
}

/// The settings and files as they are now, if those that were read are a broker's: the process before this one may have moved
/// everything to another broker before it ended.
fn obey_again(
    effective: &Effective,
    config: Config,
    files: SettingFiles,
    clock: Clock,
) -> Result<(Config, SettingFiles), ServeError> {
    if !config.upstream.is_empty() {
        return Ok((config, files));
    }
    let config = migration::obey(effective).map_err(ServeError::Setting)?;
    if config.upstream.is_empty() {
        return Ok((config, files));
    }
    let files = open_files(&config, clock)?;
    Ok((config, files))
}

/// Creates the part that moves messages to another broker, or from there.
fn create_migrator(
    reloader: &Reloader,
    clock: Clock,
    config: &Config,
    drainer: &Drainer,
    offer: &Offer,
) -> Arc<Migrator> {
    Migrator::new(MigratorConfig {
        broker: embedded(&reloader.backend),
        server: reloader.server.clone(),
        clock,
        config: config.clone(),
        is_upstream_set: reloader.effective.lock().is_set("upstream"),
        drainer: drainer.clone(),
        offer: offer.clone(),
    })
}

/// Waits until the process is to end, and if everything has moved to another broker, until a successor takes over. Returns how
/// long sessions have to end, and whether it has.
async fn wait_for_end(
    drain: &mut DrainRequest,
    notifier: &Notifier,
    status: &Status,
    reloader: &Reloader,
    migrator: &Migrator,
) -> (DrainTimes, Result<(), TakeoverError>) {
    let reason = drain.wait().await;
    notifier.stopping(reason, reloader.drain_times(reason).total());
    status.start_draining();
    drain.delayed(reloader.drain_times(reason).delay).await;
    let handed_over = if drain.wait().await == DrainReason::CutOver {
        let timeout = reloader.drain_times(DrainReason::CutOver).timeout;
        migrator.run_cut_over(&reloader.upgrades, drain, timeout).await
    } else {
        migrator.halt().await;
        Ok(())
    };
    (reloader.drain_times(drain.wait().await), handed_over)
}

/// Creates the server, and starts what it knows of its backend.
fn create_server(
    config: &Config,
    backend: &Backend,
    clock: Clock,
    access_log: Option<&AccessLogWriter>,
) -> Result<Server, ServeError> {
    let version = env!("CARGO_PKG_VERSION");
    let server = Server::new(server_config(config, access_log), backend.clone(), clock, version);
    server.start_mqtt(mqtt_config(config)).map_err(ServeError::MqttSessions)?;
    if let Backend::Upstream(pool) = backend {
        watch_upstream(Arc::clone(pool), server.clone(), advice(config));
        tokio::spawn(close_deleted(Arc::clone(pool), server.clone()));
    }
    Ok(server)
}

/// Creates what is shown over HTTP.
fn create_status(
    server: &Server,
    backend: &Backend,
    listeners: &BoundListeners,
    levels: Option<Arc<Levels>>,
    tls: &Tls,
) -> Arc<Status> {
    let ports = listeners.clients.websocket_ports();
    Arc::new(Status::new(server.clone(), backend.clone(), ports, levels, tls.server.clone()))
}

/// Opens the spool, if there is one, and lets clients publish to it.
fn open_spool(
    config: &Config,
    backend: &Backend,
    server: &Server,
    clock: Clock,
) -> Result<Option<SpoolDirectory>, ServeError> {
    let spool = SpoolDirectory::open(config, backend, clock)?;
    spool.iter().for_each(|spool| server.set_spool(Arc::clone(spool.spool())));
    Ok(spool)
}

/// Follows the wall clock, and stores its distance in the directory that there is.
fn follow_clock(clock: Clock, data_dir: Option<&DataDirectory>, spool: Option<&SpoolDirectory>) {
    let stored_clock = data_dir.map(DataDirectory::clock).or_else(|| spool.map(SpoolDirectory::clock));
    stored_clock::follow(clock, stored_clock.unwrap_or_default());
}

/// Waits until a signal or a successor has requested the drain, and until its delay is over: another process may then bind
/// the addresses. A drain that was requested over HTTP is watched there to the end.
fn release_of_addresses(
    mut wanted: AddressesWanted,
    drain: &DrainRequest,
    reloader: &Arc<Reloader>,
) -> impl Future<Output = ()> + Send + 'static {
    let (mut drain, reloader) = (drain.clone(), Arc::clone(reloader));
    async move {
        wanted.wait().await;
        let reason = drain.wait().await;
        drain.delayed(reloader.drain_times(reason).delay).await;
    }
}

/// Time for the closes of the upstream connections when sessions have used up `drain_timeout`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Lets sessions end by themselves for as long as `drain_spread` and `drain_timeout`, then cuts them. A spool, and the
/// upstream connections behind it, have what is left of that time, but at least a moment: the brokers expect a close. They have
/// no more than a moment if a successor waits.
async fn end_sessions(server: &Server, spool: Option<&SpoolDirectory>, backend: &Backend, times: DrainTimes) {
    let drain_timeout = times.timeout;
    let end = Instant::now() + times.spread + drain_timeout;
    let rest = || end.saturating_duration_since(Instant::now()).max(CLOSE_TIMEOUT.min(drain_timeout));
    let left = server.drain(times.spread, drain_timeout).await;
    if left > 0 {
        tracing::warn!(connections = left, "drain_timeout exceeded: closing the remaining connections");
    }
    if let Some(spool) = spool {
        spool.spool().drain(rest().min(times.answers)).await;
    }
    if let Backend::Upstream(pool) = backend {
        // It hands over what departed clients wrote: without a spool in as much time as clients had.
        let limit = if spool.is_some() { rest() } else { drain_timeout };
        pool.drain(limit, limit.min(times.answers)).await;
    }
}

/// Creates the management API.
fn management(reloader: &Arc<Reloader>, clock: Clock, drainer: Drainer, migrator: Arc<Migrator>) -> Arc<Api> {
    let config = reloader.effective.lock().config.clone();
    let (of_limits, of_environment) = (Arc::clone(reloader), Arc::clone(reloader));
    let manager = Manager::new(
        reloader.server.clone(),
        reloader.backend.clone(),
        clock,
        reloader.levels.clone(),
        config.max_message_size.of_broker(),
        Hooks {
            pool_limits: PoolLimits {
                connections: config.upstream_connections_total,
                replay_bytes: config.upstream_replay_total.0,
            },
            limits: Box::new(move || of_limits.limits(&of_limits.effective.lock().config)),
            environment: Box::new(move || of_environment.effective.lock().to_json()),
            certificates: reloader.tls.server.clone(),
            drainer,
            upgrades: Arc::clone(&reloader.upgrades),
            migrator,
        },
    );
    Api::new(embedded(&reloader.backend), manager)
}

/// The embedded broker, if that is the backend.
fn embedded(backend: &Backend) -> Option<Arc<Broker>> {
    match backend {
        Backend::Broker(broker) => Some(Arc::clone(broker)),
        Backend::Upstream(_) => None,
    }
}

/// Starts the sampler of memory and disk for the embedded broker.
fn start_sampler(config: &Config, server: &Server, backend: &Backend) -> Result<Option<Sampler>, ServeError> {
    let Backend::Broker(broker) = backend else { return Ok(None) };
    let directory = config.data_dir.directory().ok().flatten().filter(|_| broker.store().is_some());
    let (watermark, disk_free_limit) = (config.memory_high_watermark, config.disk_free_limit);
    let (alarms, broker) = (Arc::clone(server.alarms()), Arc::clone(broker));
    let sampler = Sampler::start(alarms, watermark, disk_free_limit, directory, broker);
    sampler.map(Some).map_err(ServeError::Sampler)
}

/// Warns at startup about variables and parts of URLs that have no effect.
fn warn_of_ignored(effective: &Effective) {
    if let Some(ignored) = &effective.ignored {
        tracing::warn!("{ignored}");
    }
    for upstream in effective.config.upstream.iter().filter(|upstream| upstream.has_unused_parts) {
        tracing::warn!(address = %upstream, "ignoring user, password and vhost of the upstream URL: clients use their own");
    }
}

/// Warns at startup about settings that remove protection or have no effect.
fn warn_of_open_listeners(config: &Config) {
    if config.has_upstream_over_tls() && !config.upstream_verify.0 {
        tracing::warn!(
            "upstream_verify is off: upstream certificates are NOT VERIFIED, passwords and messages can be intercepted"
        );
    }
    let maps_certificates = config.upstream_external.0.is_some();
    if !config.upstream.is_empty() && config.tls_verify_client != VerifyClient::Off && !maps_certificates {
        tracing::warn!(
            "client certificates are verified, but not accepted as a login (EXTERNAL): upstream_external is off"
        );
    }
}

/// The load balancers whose PROXY protocol headers are trusted.
pub(crate) fn trusted_proxies(config: &Config) -> Option<Arc<TrustedProxies>> {
    let accepted = match config.proxy_protocol {
        InboundHeader::Off => return None,
        InboundHeader::V1 => AcceptedVersions::Only(ProxyVersion::V1),
        InboundHeader::V2 => AcceptedVersions::Only(ProxyVersion::V2),
        InboundHeader::Any => AcceptedVersions::Any,
    };
    let trusted = &config.trusted_proxies;
    Some(Arc::new(TrustedProxies { accepted, networks: trusted.networks.clone(), unix: trusted.unix }))
}

/// Starts the backend: the pool to the upstream, or the embedded broker with its data directory and the auth backends that it
/// asks about logins.
fn open_backend(
    config: &Config,
    effective: &Effective,
    files: &SettingFiles,
    clock: Clock,
) -> Result<(Backend, Option<DataDirectory>), ServeError> {
    if config.upstream.is_empty() {
        let (broker, directory) = start_broker(config, clock)?;
        if migration::is_outdated(config, effective).map_err(ServeError::Setting)? {
            return Err(ServeError::HasMoved);
        }
        migration::forget_if_off(config, effective).map_err(ServeError::Setting)?;
        files.logins.serve(&broker);
        log_mode(config);
        return Ok((Backend::Broker(broker), directory));
    }
    log_mode(config);
    let pool_config =
        PoolConfig { identities: Arc::clone(&files.identities), ..pool_config(config, &files.tls) };
    let backend = Backend::Upstream(Pool::new(pool_config));
    Ok((backend, None))
}

/// Logs what this process is, in one line.
fn log_mode(config: &Config) {
    let version = env!("CARGO_PKG_VERSION");
    if config.upstream.is_empty() {
        let follows = config.compatibility.version();
        tracing::info!(version, "mode: broker, as RabbitMQ {follows}; no upstream is set");
        return;
    }
    let upstreams: Vec<_> = config.upstream.iter().map(ToString::to_string).collect();
    let directory =
        if config.spool.0.is_empty() { "no data directory" } else { "its data directory holds the spool" };
    tracing::info!(version, "mode: pool in front of {}; {directory}", upstreams.join(", "));
}

/// Checks whether the upstream is reachable, and passes its server-properties on to clients. Logs the first result.
fn watch_upstream(pool: Arc<Pool>, server: Server, advice: &'static str) {
    tokio::spawn(async move {
        for checks in 0_u32.. {
            // An upstream that hangs does not hold up what is to be known of the others.
            let idle = async {
                if checks % IDLE_PROBE_CHECKS == 0 {
                    pool.probe_idle().await;
                }
            };
            let answering = async {
                if pool.check().await
                    && let Some(properties) = pool.server_properties().await
                {
                    server.announce(properties);
                }
            };
            tokio::join!(idle, answering);
            if checks == 0 {
                log_upstreams(&pool, advice);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    });
}

/// The things to look at if no upstream answers.
fn advice(config: &Config) -> &'static str {
    if config.upstream.iter().any(|upstream| upstream.tls) {
        "is the broker running, is --upstream its port for TLS, and does --upstream-ca name the CA of its certificate?"
    } else {
        "is the broker running, and is --upstream its AMQP port?"
    }
}

/// Logs which upstreams answer, or `advice`. The pool has warned of those that do not.
fn log_upstreams(pool: &Pool, advice: &str) {
    let product = pool.known_product().unwrap_or_default();
    for state in pool.addresses().into_iter().filter(|state| state.is_up == Some(true)) {
        tracing::info!(address = state.address, product, "upstream reachable");
    }
    if !pool.is_reachable() {
        tracing::warn!("no upstream reachable: closing clients until one is; {advice}");
    }
}

/// Closes the clients of virtual hosts that are deleted upstream, including those without any upstream channel.
async fn close_deleted(pool: Arc<Pool>, server: Server) {
    loop {
        let DeletedVirtualHost { name, reason } = pool.deleted_virtual_host().await;
        let concerned = server.open_connections();
        let concerned = concerned.iter().filter(|connection| connection.vhost() == &*name);
        concerned.for_each(|connection| connection.close(&reason));
    }
}

/// Creates the embedded broker, and the task that expires its messages and queues.
fn start_broker(config: &Config, clock: Clock) -> Result<(Arc<Broker>, Option<DataDirectory>), ServeError> {
    let watermark = config.memory_paging_watermark.of(alarms::memory_total()).unwrap_or(u64::MAX);
    let NewBroker { broker, changed, notifier } = NewBroker::create(watermark, config.compatibility, clock);
    let mut directory = data_dir::fill(&broker, config, clock)?;
    if let Some(directory) = &mut directory {
        directory.keep(Pagers::start(&broker, notifier, clock).map_err(ServeError::Pagers)?);
    }
    start_timer(&broker, changed, clock);
    Ok((broker, directory))
}

/// A broker that has nothing yet.
pub(crate) struct NewBroker {
    pub(crate) broker: Arc<Broker>,
    /// Notified when its next deadline has become earlier.
    pub(crate) changed: Arc<Notify>,
    /// Notified when it has messages to page.
    pub(crate) notifier: Arc<PagerNotifier>,
}

impl NewBroker {
    /// `paging_watermark` is the memory in bytes that ready messages may take.
    pub(crate) fn create(paging_watermark: u64, compatibility: Compatibility, clock: Clock) -> Self {
        let changed = Arc::new(Notify::new());
        let waker = Arc::clone(&changed);
        let notifier = Arc::new(PagerNotifier::default());
        let broker = Broker::new(BrokerConfig {
            node: node_name(),
            defaults: false,
            deadline_waker: Some(Arc::new(move || waker.notify_one())),
            paging_watermark,
            paging_waker: Some(Arc::clone(&notifier) as _),
            compatibility,
            wall: clock.wall_offset(),
        });
        Self { broker, changed, notifier }
    }
}

/// Starts the task that expires a broker's messages and queues.
pub(crate) fn start_timer(broker: &Arc<Broker>, changed: Arc<Notify>, clock: Clock) {
    let expiring = Arc::clone(broker);
    tokio::spawn(async move {
        loop {
            match expiring.next_deadline() {
                None => changed.notified().await,
                Some(deadline) => tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep_until(clock.instant(deadline).into()) => {
                        {
                            let _turn = work::Turn::begin();
                            expiring.expire(clock.timestamp(Instant::now()));
                        }
                        // Other deadlines may already have passed.
                        tokio::task::yield_now().await;
                    }
                },
            }
        }
    });
}

/// The limits on clients of a broker, or of a pool.
pub(crate) fn limits(config: &Config, is_pool: bool) -> Limits {
    let scopes = |total: Limit, per_ip: Limit, per_user: Limit| Scopes {
        total: total.or_none(),
        per_ip: per_ip.or_none(),
        per_user: per_user.or_none(),
    };
    Limits {
        connections: Scopes {
            total: descriptors::connection_limit(config, is_pool),
            ..scopes(config.max_connections, config.max_connections_per_ip, config.max_connections_per_user)
        },
        connection_rate: scopes(
            config.max_connection_rate,
            config.max_connection_rate_per_ip,
            config.max_connection_rate_per_user,
        ),
        channels: scopes(config.max_channels, config.max_channels_per_ip, config.max_channels_per_user),
        receive_rate: Scopes {
            total: config.max_receive_rate.or_none(),
            per_ip: config.max_receive_rate_per_ip.or_none(),
            per_user: config.max_receive_rate_per_user.or_none(),
        },
        alarm_only: config.limits_mode == LimitsMode::Alarm,
    }
}

fn server_config(config: &Config, access_log: Option<&AccessLogWriter>) -> ServerConfig {
    ServerConfig {
        limits: limits(config, !config.upstream.is_empty()),
        channel_max: config.channel_max,
        frame_max: config.frame_max,
        heartbeat: config.heartbeat,
        max_message_size: config.max_message_size.of_broker(),
        incomplete_limit: incomplete_limit(config),
        inbox_total: usize::try_from(config.upstream_inbox_total.0).unwrap_or(usize::MAX),
        stomp_default_user: config.stomp_default_user.0.clone(),
        outbox_limit: usize::try_from(config.outbox_limit.0).unwrap_or(usize::MAX),
        handshake_timeout: config.handshake_timeout,
        write_timeout: config.write_timeout,
        drain_idle_timeout: config.drain_idle_timeout,
        consumer_timeout: config.consumer_timeout,
        product: config.server_product.0.clone(),
        access_log: access_log.map(|writer| Arc::clone(writer.log())),
    }
}

/// Bytes of incomplete messages that are allowed: a quarter of the memory at which publishers are blocked, so
/// that messages that clients may never complete cannot block publishers by themselves, and at least two
/// messages of the maximum size.
fn incomplete_limit(config: &Config) -> usize {
    let watermark = config.memory_high_watermark.of(alarms::memory_total());
    let share = watermark.map_or(INCOMPLETE_WITHOUT_WATERMARK, |bytes| bytes / 4);
    usize::try_from(share.max(2 * config.max_message_size.of_broker())).unwrap_or(usize::MAX)
}

/// Bytes of incomplete messages that are allowed without a `memory_high_watermark`.
const INCOMPLETE_WITHOUT_WATERMARK: u64 = 1 << 30;

pub(crate) fn websocket_config(config: &Config, routes: Routes) -> WebSocketConfig {
    WebSocketConfig {
        origins: config.ws_origins.0.clone(),
        ping_interval: config.ws_ping_interval,
        compression: config.ws_compression.0,
        proxies: config.ws_trusted_proxies.networks.clone(),
        unix_proxies: config.ws_trusted_proxies.unix,
        routes,
    }
}

pub(crate) fn pool_config(config: &Config, tls: &Tls) -> PoolConfig {
    let upstreams = config.upstream.iter();
    let upstreams = upstreams
        .map(|url| UpstreamAddress { host: url.host.clone(), port: url.port, tls: url.tls })
        .collect();
    PoolConfig {
        auth_ttl: config.auth_ttl,
        connect_timeout: config.upstream_timeout,
        write_timeout: config.write_timeout,
        max_message_size: config.max_message_size.0.map(|most| most.0),
        max_shared_connections: usize::from(config.upstream_connections_max),
        min_shared_connections: usize::from(config.upstream_connections_min),
        max_channels_per_connection: config.upstream_channels_max,
        max_connections: config.upstream_connections_total as usize,
        idle_timeout: config.upstream_idle_timeout,
        outage_max: config.upstream_outage_max,
        arrival_max: config.upstream_arrival_max,
        heartbeat_secs: config.upstream_heartbeat,
        consumer_budget: usize::try_from(config.upstream_consumer_budget.0).unwrap_or(usize::MAX),
        replay_client_max: usize::try_from(config.upstream_replay_client.0).unwrap_or(usize::MAX),
        replay_total_max: usize::try_from(config.upstream_replay_total.0).unwrap_or(usize::MAX),
        transport: UpstreamTransport {
            tls: tls.client.clone(),
            proxy_protocol: match config.upstream_proxy_protocol {
                OutboundHeader::Off => None,
                OutboundHeader::V1 => Some(ProxyVersion::V1),
                OutboundHeader::V2 => Some(ProxyVersion::V2),
            },
        },
        ..PoolConfig::new(upstreams)
    }
}

/// Errors that prevent the server from starting.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The listener of the setting `key` could not be bound.
    #[error("{key}: cannot listen on {address}: {error}{}", remedy(key, address, error))]
    Listen {
        key: &'static str,
        address: ListenAddr,
        #[source]
        error: io::Error,
    },
    /// The handlers of signals could not be installed.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    /// The service manager cannot be notified.
    #[error("NOTIFY_SOCKET: {0}")]
    Notifier(#[source] io::Error),
    /// Memory and disk cannot be watched.
    #[error("cannot watch memory and disk: {0}")]
    Sampler(#[source] io::Error),
    /// Messages cannot be paged.
    #[error("cannot page messages: {0}")]
    Pagers(#[source] io::Error),
    /// A file that a setting names is wrong: a mistake of the configuration.
    #[error(transparent)]
    Setting(SettingError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDirectory(SettingError),
    /// The directory of the spool has something else.
    #[error("data_dir: {0}")]
    Spool(#[source] server::SpoolError),
    /// The place of the process before this one cannot be taken, or offered to another.
    #[error("take_over: {0}")]
    TakeOver(#[source] io::Error),
    /// The upstream does not answer this process, and may answer the one before it.
    #[error("take_over: no upstream reachable; the running process continues")]
    NotReady,
    /// A signal has come before the place of the process before this one was taken.
    #[error("take_over: interrupted before this process has taken over")]
    Interrupted,
    /// Another process has made a pool of this broker while this one started.
    #[error(
        "data_dir: migration to another broker just completed; the next start is the pool in front of it"
    )]
    HasMoved,
    /// A pool was to follow this process.
    #[error(transparent)]
    TakeoverError(TakeoverError),
    /// The stored sessions of MQTT clients cannot be read.
    #[error(transparent)]
    MqttSessions(MqttRestoreError),
}

/// Tells, as the end of an error's line, what to do about an address that cannot be listened on.
fn remedy(key: &str, address: &ListenAddr, error: &io::Error) -> String {
    let flag = flag(key);
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let upstream = match (key, address) {
                ("amqp", ListenAddr::Tcp { .. }) => {
                    format!("; if that is the broker to stand in front of, --upstream amqp://{address}")
                }
                _ => String::new(),
            };
            format!(
                "; another process has it (`ss -ltnp` shows which): stop that, or choose another with --{flag}{upstream}"
            )
        }
        io::ErrorKind::PermissionDenied
            if address.places().iter().any(|(_, port)| *port < FIRST_FREE_PORT) =>
        {
            format!(
                "; ports below {FIRST_FREE_PORT} need CAP_NET_BIND_SERVICE: systemd gives it by AmbientCapabilities, \
             `setcap cap_net_bind_service=+ep` to a program; or choose another with --{flag}"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this machine has no such address (0.0.0.0 and [::] stand for all that it has)".to_owned()
        }
        _ => String::new(),
    }
}

/// The lowest port that needs no privilege, unless the system says otherwise (ip(7), `ip_unprivileged_port_start`).
const FIRST_FREE_PORT: u16 = 1024;
