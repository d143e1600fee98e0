//! Relays and the webroot: what WebSocket listeners serve besides AMQP.

use std::sync::Arc;

use proxy_protocol::Version;
use server::{
    ConnectionLimits, Listener, Preface, Relay, RelayConfig, RelayUpstream, Routes, Server, WebSocketConfig,
    Webroot,
};

use crate::announce::announce;
use crate::config::{Config, ListenAddr, OutboundHeader, RelayEntry, RelayUrl};
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// What is served besides AMQP.
pub(crate) struct Relays {
    /// In the order of the setting.
    relays: Vec<Arc<Relay>>,
    webroot: Option<Arc<Webroot>>,
}

impl Relays {
    /// Makes what the settings ask for.
    ///
    /// # Errors
    ///
    /// The webroot is no folder.
    pub(crate) fn new(config: &Config, tls: &Tls) -> Result<Self, ServeError> {
        let relays = config.relay.0.iter().enumerate().map(|(at, relay)| {
            if !relay.upstream_verify.0 {
                tracing::warn!(
                    relay = relay.name(),
                    "upstream_verify is off: the certificate of the server behind is NOT VERIFIED; anybody on the way \
                     can read along"
                );
            }
            Relay::new(relay_config(config, relay, tls, at))
        });
        let relays = relays.collect();
        let webroot = config.webroot.0.as_deref().map(Webroot::open).transpose();
        let webroot = webroot.map_err(ServeError::Webroot)?.map(Arc::new);
        Ok(Self { relays, webroot })
    }

    /// What `ws` and `wss` serve.
    pub(crate) fn routes(&self, config: &Config) -> Routes {
        let by_path = config.relay.0.iter().zip(&self.relays);
        let by_path = by_path.filter_map(|(entry, relay)| Some((entry.path.clone()?, Arc::clone(relay))));
        Routes { amqp: true, relays: by_path.collect(), everywhere: None, webroot: self.webroot.clone() }
    }

    /// Binds the listeners of the relays that have their own, and announces them.
    ///
    /// # Errors
    ///
    /// The first that cannot be bound.
    pub(crate) async fn listen(&self, config: &Config) -> Result<Vec<RelayListener>, ServeError> {
        let mut listeners = Vec::new();
        for (entry, relay) in config.relay.0.iter().zip(&self.relays) {
            let address = &entry.listen;
            let bound = match address {
                ListenAddr::Off => continue,
                ListenAddr::Tcp { host, port } => Listener::bind_tcp(host, *port).await,
                ListenAddr::Unix(path) => Listener::bind_unix(path).await,
            };
            let failed = |error| ServeError::Listen { key: "relay", address: address.clone(), error };
            let listener = bound.map_err(failed)?;
            let scheme = if entry.tls.0 { "wss" } else { "ws" };
            match &listener {
                Listener::Tcp(_) => announce("relay", &format!("{scheme}://{listener}")),
                Listener::Unix(..) => announce("relay", &address.to_string()),
            }
            listeners.push(RelayListener { listener, relay: Arc::clone(relay), tls: entry.tls.0 });
        }
        Ok(listeners)
    }

    /// Starts accepting.
    pub(crate) fn serve(&self, listeners: Vec<RelayListener>, server: &Server, config: &Config, tls: &Tls) {
        for RelayListener { listener, relay, tls: with_tls } in listeners {
            let tls = tls.server.clone().filter(|_| with_tls);
            let preface = Preface { proxies: trusted_proxies(config), tls };
            let everywhere = Some(relay);
            let routes = Routes { everywhere, webroot: self.webroot.clone(), ..Routes::default() };
            let config = WebSocketConfig { routes, ..websocket_config(config, Routes::default()) };
            server.listen_websocket(listener, preface, config);
        }
    }
}

/// A relay's own listener, bound.
pub(crate) struct RelayListener {
    listener: Listener,
    relay: Arc<Relay>,
    tls: bool,
}

fn relay_config(config: &Config, relay: &RelayEntry, tls: &Tls, at: usize) -> RelayConfig {
    let limit = |limit: Option<u32>| limit.map_or(0, |most| most as usize);
    RelayConfig {
        name: relay.name(),
        upstream: match (&relay.upstream, tls.relays.get(at).cloned().flatten()) {
            (RelayUrl::Unix(path), _) => RelayUpstream::Unix(path.clone()),
            (RelayUrl::Host { host, port, .. }, None) => {
                RelayUpstream::Tcp { host: host.clone(), port: *port }
            }
            (RelayUrl::Host { host, port, .. }, Some(tls)) => {
                RelayUpstream::Tls { host: host.clone(), port: *port, tls }
            }
        },
        connect_timeout: relay.connect_timeout,
        proxy_protocol: match relay.proxy_protocol {
            OutboundHeader::Off => None,
            OutboundHeader::V1 => Some(Version::V1),
            OutboundHeader::V2 => Some(Version::V2),
        },
        subprotocols: relay.subprotocols.clone(),
        origins: relay.origins.as_ref().unwrap_or(&config.ws_origins).0.clone(),
        connections: ConnectionLimits {
            total: limit(relay.max_connections.0),
            per_ip: limit(relay.max_connections_per_ip.0),
            per_user: 0,
        },
        text: relay.text,
    }
}
