//! Relays and the webroot, which WebSocket listeners serve besides AMQP.

use std::sync::Arc;

use proxy_protocol::ProxyVersion;
use server::{
    ConnectionLimits, Listener, Preface, Relay, RelayConfig, RelayUpstream, Routes, Server, TextRule,
    WebSocketConfig, Webroot,
};
use transport::tls::ClientTls;

use crate::config::{Config, OutboundHeader, RelayEntry, RelayUrl};
use crate::listen::bind;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// The relays and the webroot.
pub(crate) struct ServedRelays {
    /// To the upstream's STOMP port.
    stomp: Option<Arc<Relay>>,
    /// To the upstream's MQTT port.
    mqtt: Option<Arc<Relay>>,
    /// In the order of the setting.
    relays: Vec<Arc<Relay>>,
    webroot: Option<Arc<Webroot>>,
}

impl ServedRelays {
    /// Creates the relays and opens the webroot as configured.
    ///
    /// # Errors
    ///
    /// The webroot cannot be opened as a folder.
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
        let stomp = config.upstream_stomp.0.as_ref().map(|url| Relay::new(stomp_relay(config, tls, url)));
        let mqtt = config.upstream_mqtt.0.as_ref().map(|url| Relay::new(mqtt_relay(config, tls, url)));
        Ok(Self { stomp, mqtt, relays, webroot })
    }

    /// The routes of `ws` and `wss`.
    pub(crate) fn routes(&self, config: &Config) -> Routes {
        let by_path = config.relay.0.iter().zip(&self.relays);
        let by_path = by_path.filter_map(|(entry, relay)| Some((entry.path.clone()?, Arc::clone(relay))));
        let relays = by_path
            .chain(at(self.stomp.as_ref(), Routes::STOMP_BESIDE_AMQP))
            .chain(at(self.mqtt.as_ref(), Routes::MQTT_BESIDE_AMQP))
            .collect();
        let mqtt = if config.upstream.is_empty() { Routes::MQTT_BESIDE_AMQP } else { &[] };
        let stomp = if config.upstream.is_empty() { Routes::STOMP_BESIDE_AMQP } else { &[] };
        let webroot = self.webroot.clone();
        Routes { amqp: true, mqtt, stomp, relays, webroot, ..Routes::default() }
    }

    /// The routes of `web_stomp` and `web_stomps`.
    pub(crate) fn web_stomp_routes(&self, config: &Config) -> Routes {
        let relays = at(self.stomp.as_ref(), Routes::WEB_STOMP).collect();
        let stomp = if config.upstream.is_empty() { Routes::WEB_STOMP } else { &[] };
        Routes { stomp, relays, ..Routes::default() }
    }

    /// The relay to the upstream's STOMP port, if there is one.
    pub(crate) fn stomp(&self) -> Option<&Arc<Relay>> {
        self.stomp.as_ref()
    }

    /// The routes of `web_mqtt` and `web_mqtts`.
    pub(crate) fn web_mqtt_routes(&self, config: &Config) -> Routes {
        let relays = at(self.mqtt.as_ref(), Routes::WEB_MQTT).collect();
        let mqtt = if config.upstream.is_empty() { Routes::WEB_MQTT } else { &[] };
        Routes { mqtt, relays, ..Routes::default() }
    }

    /// The relay to the upstream's MQTT port, if there is one.
    pub(crate) fn mqtt(&self) -> Option<&Arc<Relay>> {
        self.mqtt.as_ref()
    }

    /// Binds and announces the listeners of the relays that have their own.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound; the first such failure is returned.
    pub(crate) async fn listen(&self, config: &Config) -> Result<Vec<RelayListener>, ServeError> {
        let mut listeners = Vec::new();
        for (entry, relay) in config.relay.0.iter().zip(&self.relays) {
            let scheme = if entry.tls.0 { "wss" } else { "ws" };
            let Some(listener) = bind("relay", scheme, &entry.listen).await? else { continue };
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
    listener: Listener,
    relay: Arc<Relay>,
    tls: bool,
}

/// Routes each of these paths to the relay, if there is one.
fn at(relay: Option<&Arc<Relay>>, paths: &[&str]) -> impl Iterator<Item = (String, Arc<Relay>)> {
    relay.into_iter().flat_map(move |relay| paths.iter().map(|path| ((*path).to_owned(), Arc::clone(relay))))
}

fn stomp_relay(config: &Config, tls: &Tls, url: &RelayUrl) -> RelayConfig {
    RelayConfig {
        subprotocols: Routes::STOMP_SUBPROTOCOLS.map(str::to_owned).to_vec(),
        text: TextRule::Accept,
        ..upstream_relay(config, tls, "upstream_stomp", url)
    }
}

fn mqtt_relay(config: &Config, tls: &Tls, url: &RelayUrl) -> RelayConfig {
    RelayConfig {
        subprotocols: Routes::MQTT_SUBPROTOCOLS.map(str::to_owned).to_vec(),
        ..upstream_relay(config, tls, "upstream_mqtt", url)
    }
}

/// Bytes pass unchanged in both directions; the client and the upstream settle the protocol version.
fn upstream_relay(config: &Config, tls: &Tls, setting: &str, url: &RelayUrl) -> RelayConfig {
    RelayConfig {
        name: setting.to_owned(),
        upstream: relay_upstream(url, tls.client.as_ref()),
        connect_timeout: config.upstream_timeout,
        proxy_protocol: outbound_header(config.upstream_proxy_protocol),
        subprotocols: Vec::new(),
        origins: config.ws_origins.0.clone(),
        connections: ConnectionLimits::default(),
        text: TextRule::Refuse,
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
