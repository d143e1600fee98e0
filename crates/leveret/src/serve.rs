//! `leveret serve`: joins listeners, back end and HTTP, and takes them down in order.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use admin::Source;
use broker::{Broker, BrokerConfig};
use proxy::{Pool, PoolConfig, UpstreamAddress};
use server::{Clock, ConnectionLimits, Door, Listener, Server, ServerConfig};
use tokio::sync::{Notify, oneshot};

use crate::announce::announce;
use crate::config::{Config, ListenAddr};
use crate::definitions;
use crate::signals::DrainRequest;
use crate::status::Status;

/// How often the upstream's reachability is looked at while no client has tried it.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// Serves until a signal asks for a drain and the drain is over.
///
/// # Errors
///
/// Something could not start; the message begins with the key of the setting at fault.
pub(crate) async fn run(config: Config) -> Result<(), ServeError> {
    // Before anything is announced: who reads the announcement may send a signal at once.
    let mut drain = DrainRequest::from_signals().map_err(ServeError::Signals)?;
    for upstream in config.upstream.iter().filter(|upstream| upstream.has_unused_parts) {
        tracing::warn!(%upstream, "user, password and vhost of the upstream URL are not used: clients bring their own");
    }

    let clock = Clock::start();
    let door = open_door(&config, clock)?;
    let server = Server::new(server_config(&config), door.clone(), clock, env!("CARGO_PKG_VERSION"));
    if let Door::Upstream(pool) = &door {
        watch_upstream(Arc::clone(pool), server.clone());
    }
    let status = Arc::new(Status::new(server.clone(), door.clone()));
    let amqp = listen_for_amqp(&config.amqp).await?;
    let http = listen_for_http(&config.http).await?;
    if let Some(listener) = amqp {
        server.listen(listener);
    }
    // Last to go, so that probes see the drain.
    let (http_may_end, http_end) = oneshot::channel::<()>();
    let http_task = http.map(|listener| {
        let source = Arc::clone(&status) as Arc<dyn Source>;
        tokio::spawn(admin::serve(listener, source, async {
            let _ = http_end.await;
        }))
    });

    drain.wait().await;
    status.start_draining();
    let left = server.drain(config.drain_timeout).await;
    if left > 0 {
        tracing::warn!(connections = left, "drain_timeout is over; the remaining connections are cut");
    }
    if let Door::Upstream(pool) = &door {
        pool.drain(config.drain_timeout).await;
    }

    drop(http_may_end);
    if let Some(task) = http_task {
        let _ = task.await;
    }
    Ok(())
}

/// Starts what clients are joined to.
fn open_door(config: &Config, clock: Clock) -> Result<Door, ServeError> {
    if config.upstream.is_empty() {
        return start_broker(config, clock).map(Door::Broker);
    }
    Ok(Door::Upstream(Pool::new(pool_config(config))))
}

/// Keeps an eye on the upstream: whether it can be reached, and what it calls itself, which clients are told in turn.
fn watch_upstream(pool: Arc<Pool>, server: Server) {
    tokio::spawn(async move {
        loop {
            if pool.probe().await
                && let Some(properties) = pool.server_properties().await
            {
                server.announce(properties);
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        }
    });
}

/// Makes the embedded broker, and the task that lets its messages and queues expire in time.
fn start_broker(config: &Config, clock: Clock) -> Result<Arc<Broker>, ServeError> {
    let definitions = definitions::read(config).map_err(ServeError::Definitions)?;
    let changed = Arc::new(Notify::new());
    let waker = Arc::clone(&changed);
    let broker = Broker::new(BrokerConfig {
        defaults: definitions.is_none(),
        deadline_waker: Some(Arc::new(move || waker.notify_one())),
    });
    if let Some(definitions) = definitions {
        definitions.load_into(&broker, clock.timestamp(Instant::now())).map_err(ServeError::Definitions)?;
    }
    let expiring = Arc::clone(&broker);
    tokio::spawn(async move {
        loop {
            match expiring.next_deadline() {
                None => changed.notified().await,
                Some(deadline) => tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep_until(clock.instant(deadline).into()) => {
                        expiring.expire(clock.timestamp(Instant::now()));
                    }
                },
            }
        }
    });
    Ok(broker)
}

fn server_config(config: &Config) -> ServerConfig {
    let connections = |limit: Option<u32>| limit.map_or(0, |most| most as usize);
    ServerConfig {
        connections: ConnectionLimits {
            total: connections(config.max_connections.0),
            per_ip: connections(config.max_connections_per_ip.0),
            per_user: connections(config.max_connections_per_user.0),
        },
        channel_max: config.channel_max,
        frame_max: config.frame_max,
        heartbeat: config.heartbeat,
        max_message_size: config.max_message_size.0,
        outbox_limit: usize::try_from(config.outbox_limit.0).unwrap_or(usize::MAX),
        handshake_timeout: config.handshake_timeout,
        write_timeout: config.write_timeout,
        consumer_timeout: config.consumer_timeout,
    }
}

fn pool_config(config: &Config) -> PoolConfig {
    let upstreams = config.upstream.iter();
    let upstreams = upstreams.map(|url| UpstreamAddress { host: url.host.clone(), port: url.port }).collect();
    PoolConfig {
        auth_ttl: config.auth_ttl,
        connect_timeout: config.upstream_timeout,
        write_timeout: config.write_timeout,
        max_message_size: config.max_message_size.0,
        ..PoolConfig::new(upstreams)
    }
}

/// Why serving could not start.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// The listener of the setting `key` could not be bound.
    Listen { key: &'static str, address: ListenAddr, error: io::Error },
    /// The handlers of signals could not be installed.
    Signals(io::Error),
    /// The definitions cannot be loaded; the line begins with the key and names the entry at fault.
    Definitions(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { key, address, error } => {
                write!(formatter, "{key}: cannot listen on {address}: {error}")
            }
            Self::Definitions(line) => formatter.write_str(line),
            Self::Signals(error) => write!(formatter, "cannot catch signals: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { error, .. } | Self::Signals(error) => Some(error),
            Self::Definitions(_) => None,
        }
    }
}

/// Binds and announces the AMQP listener, unless it is off.
async fn listen_for_amqp(address: &ListenAddr) -> Result<Option<Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { host, port } => Listener::bind_tcp(host, *port).await,
        ListenAddr::Unix(path) => Listener::bind_unix(path).await,
    };
    let listener =
        bound.map_err(|error| ServeError::Listen { key: "amqp", address: address.clone(), error })?;
    match &listener {
        Listener::Tcp(_) => announce("amqp", &format!("amqp://{listener}")),
        Listener::Unix(..) => announce("amqp", &address.to_string()),
    }
    Ok(Some(listener))
}

/// Binds and announces the HTTP listener, unless it is off.
async fn listen_for_http(address: &ListenAddr) -> Result<Option<admin::Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { host, port } => admin::Listener::tcp(host, *port).await,
        ListenAddr::Unix(path) => admin::Listener::unix(path).await,
    };
    let failed = |error| ServeError::Listen { key: "http", address: address.clone(), error };
    let listener = bound.map_err(failed)?;
    match listener.local_addr().map_err(failed)? {
        Some(bound) => announce("http", &format!("http://{bound}")),
        None => announce("http", &address.to_string()),
    }
    Ok(Some(listener))
}
