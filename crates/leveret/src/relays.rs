//! Relays and the webroot, which WebSocket listeners serve besides AMQP.

use std::path::Path;
use std::sync::Arc;

use broker::FrontEnd;
use proxy_protocol::ProxyVersion;
use server::{
    ClientProtocol, ConnectionLimits, ListenerKind, PROTOCOLS, Preface, Relay, RelayConfig, RelayUpstream,
    Routes, Server, WebSocketConfig, Webroot,
};
use transport::tls::ClientTls;
use transport::{Inherited, Listener};

use crate::config::{Config, OutboundHeader, RelayEntry, RelayUrl, SettingError};
use crate::descriptors;
use crate::listen::bind;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// The relays and the webroot.
pub(crate) struct ServedRelays {
    /// To the upstream's ports for protocols that are relayed to them.
    upstream: Vec<(FrontEnd, Arc<Relay>)>,
    /// In the order of the setting.
    relays: Vec<Arc<Relay>>,
    webroot: Option<Arc<Webroot>>,
}

impl ServedRelays {
    /// Creates the relays and opens the webroot as configured.
    ///
    /// # Errors
    ///
    /// The webroot cannot be opened as a directory.
    pub(crate) fn new(config: &Config, tls: &Tls) -> Result<Self, ServeError> {
        let relays = config.relay.0.iter().enumerate().map(|(at, relay)| {
            if !relay.upstream_verify.0 {
                tracing::warn!(
                    relay = relay.name(),
                    "upstream_verify is off: the certificate of the relay's upstream is NOT VERIFIED"
                );
            }
            Relay::new(relay_config(config, relay, tls, at))
        });
        let relays = relays.collect();
        let transfers = descriptors::webroot_transfers(config);
        let open = |path: &Path| {
            let at_fault = |error| SettingError::new("webroot", error).about(path.display());
            Webroot::open(path, transfers).map(Arc::new).map_err(at_fault)
        };
        let webroot = config.webroot.0.as_deref().map(open).transpose().map_err(ServeError::Setting)?;
        let upstream = PROTOCOLS.iter().filter_map(|protocol| {
            let setting = protocol.upstream_port?;
            let url = config.upstream_port(setting)?;
            Some((protocol.front_end, Relay::new(upstream_relay(config, tls, protocol, setting, url))))
        });
        Ok(Self { upstream: upstream.collect(), relays, webroot })
    }

    /// The routes of a protocol's own WebSocket listeners. Those of AMQP have all protocols, relays and files.
    pub(crate) fn routes(&self, of: FrontEnd, config: &Config) -> Routes {
        let mut routes = Routes::default();
        let has_all = of == FrontEnd::Amqp;
        if has_all {
            let by_path = config.relay.0.iter().zip(&self.relays);
            let by_path = by_path.filter_map(|(entry, relay)| Some((entry.path.clone()?, Arc::clone(relay))));
            routes.relays = by_path.collect();
            routes.webroot.clone_from(&self.webroot);
        }
        for protocol in PROTOCOLS.iter().filter(|protocol| has_all || protocol.front_end == of) {
            let paths = if has_all { protocol.paths_beside_amqp } else { protocol.paths };
            if let Some(relay) = self.upstream(protocol.front_end) {
                let relayed = |path: &&'static str| (*path, protocol.front_end, Arc::clone(relay));
                routes.upstream.extend(paths.iter().map(relayed));
            } else if config.upstream.is_empty() || protocol.is_pooled {
                routes.protocols.extend(paths.iter().map(|path| (*path, protocol.front_end)));
            }
        }
        routes
    }

    /// The relay to the upstream's port for a protocol, if there is one.
    pub(crate) fn upstream(&self, protocol: FrontEnd) -> Option<&Arc<Relay>> {
        self.upstream.iter().find(|(own, _)| *own == protocol).map(|(_, relay)| relay)
    }

    /// Binds and announces the listeners of the relays that have their own.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn listen(
        &self,
        config: &Config,
        inherited: &Inherited,
    ) -> Result<Vec<RelayListener>, ServeError> {
        let mut listeners = Vec::new();
        for (entry, relay) in config.relay.0.iter().zip(&self.relays) {
            let kind = relay_listener(entry.tls.0);
            let Some(listener) = bind(kind, &entry.listen, inherited).await? else { continue };
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

/// The bound listener of a relay.
pub(crate) struct RelayListener {
    pub(crate) listener: Listener,
    relay: Arc<Relay>,
    tls: bool,
}

/// The setting of relays.
pub(crate) const RELAY: &str = "relay";

/// The listener of a relay. RabbitMQ has none; the name of its protocol follows RabbitMQ's pattern.
pub(crate) fn relay_listener(tls: bool) -> ListenerKind {
    let (scheme, rabbitmq_name) = if tls { ("wss", "https/relay") } else { ("ws", "http/relay") };
    ListenerKind { setting: RELAY, scheme, rabbitmq_name, websocket: true, tls }
}

/// Bytes pass unchanged in both directions; the client and the upstream settle the protocol version.
fn upstream_relay(
    config: &Config,
    tls: &Tls,
    protocol: &ClientProtocol,
    setting: &str,
    url: &RelayUrl,
) -> RelayConfig {
    RelayConfig {
        name: setting.to_owned(),
        upstream: relay_upstream(url, tls.client.as_ref()),
        connect_timeout: config.upstream_timeout,
        proxy_protocol: outbound_header(config.upstream_proxy_protocol),
        subprotocols: protocol.subprotocols.iter().map(ToString::to_string).collect(),
        origins: config.ws_origins.0.clone(),
        connections: ConnectionLimits::default(),
        text: protocol.relayed_text,
    }
}

/// `tls` is used only if the URL asks for TLS.
fn relay_upstream(url: &RelayUrl, tls: Option<&Arc<ClientTls>>) -> RelayUpstream {
    match (url, tls) {
        (RelayUrl::Unix(path), _) => RelayUpstream::Unix(path.clone()),
        (RelayUrl::Host { host, port, tls: true }, Some(tls)) => {
            RelayUpstream::Tls { host: host.clone(), port: *port, tls: Arc::clone(tls) }
        }
        (RelayUrl::Host { host, port, .. }, _) => RelayUpstream::Tcp { host: host.clone(), port: *port },
    }
}

fn outbound_header(header: OutboundHeader) -> Option<ProxyVersion> {
    match header {
        OutboundHeader::Off => None,
        OutboundHeader::V1 => Some(ProxyVersion::V1),
        OutboundHeader::V2 => Some(ProxyVersion::V2),
    }
}

fn relay_config(config: &Config, relay: &RelayEntry, tls: &Tls, at: usize) -> RelayConfig {
    let limit = |limit: Option<u32>| limit.map_or(0, |most| most as usize);
    RelayConfig {
        name: relay.name(),
        upstream: relay_upstream(&relay.upstream, tls.relays.get(at).and_then(Option::as_ref)),
        connect_timeout: relay.connect_timeout,
        proxy_protocol: outbound_header(relay.proxy_protocol),
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
