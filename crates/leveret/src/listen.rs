//! Binds, announces and serves listeners.

use std::net::SocketAddr;

use admin::WebSocketPorts;
use broker::FrontEnd;
use server::{Listener, ListenerKind, PROTOCOLS, Preface, Server};

use crate::announce::{Announced, announce};
use crate::config::{Config, ListenAddr};
use crate::own_address::refuse_as_upstream;
use crate::relays::ServedRelays;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// The bound listeners of the protocols of clients.
pub(crate) struct ClientListeners(Vec<(FrontEnd, ListenerKind, Listener)>);

impl ClientListeners {
    /// Binds and announces the configured listeners.
    ///
    /// # Errors
    ///
    /// A listener cannot be bound, or is the upstream; the first such failure is returned.
    pub(crate) async fn bind(config: &Config) -> Result<Self, ServeError> {
        let mut bound = Vec::new();
        for protocol in &PROTOCOLS {
            for kind in &protocol.listeners {
                if let Some(listener) = bind(*kind, config.listen_address(kind.setting)).await? {
                    bound.push((protocol.front_end, *kind, listener));
                }
            }
        }
        let bound = Self(bound);
        refuse_as_upstream(config, &bound.addresses()).await.map_err(ServeError::Setting)?;
        Ok(bound)
    }

    /// The bound TCP addresses, with the settings of their listeners.
    fn addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        let tcp = self.0.iter().filter_map(|(_, kind, listener)| match listener {
            Listener::Tcp(listeners) => Some((kind.setting, listeners.local_addresses())),
            Listener::Unix(..) => None,
        });
        tcp.flat_map(|(key, addresses)| addresses.map(move |address| (key, address))).collect()
    }

    /// The ports on which the page in the browser may connect.
    pub(crate) fn websocket_ports(&self) -> WebSocketPorts {
        let port = |tls: bool| {
            let (.., listener) = self.0.iter().find(|(protocol, kind, _)| {
                *protocol == FrontEnd::Amqp && kind.websocket && kind.tls == tls
            })?;
            match listener {
                Listener::Tcp(listeners) => listeners.local_addresses().next().map(|address| address.port()),
                Listener::Unix(..) => None,
            }
        };
        WebSocketPorts { ws: port(false), wss: port(true) }
    }

    /// Starts accepting.
    pub(crate) fn serve(self, server: &Server, config: &Config, relays: &ServedRelays, tls: &Tls) {
        for (protocol, kind, listener) in self.0 {
            let tls = tls.server.clone().filter(|_| kind.tls);
            let preface = Preface { proxies: trusted_proxies(config), tls };
            if kind.websocket {
                let websocket = websocket_config(config, relays.routes(protocol, config));
                server.listen_websocket(listener, preface, websocket);
            } else {
                server.listen(protocol, listener, preface, relays.upstream(protocol).cloned());
            }
        }
    }
}

/// Binds and announces a listener, unless it is off.
///
/// # Errors
///
/// It cannot be bound.
pub(crate) async fn bind(kind: ListenerKind, address: &ListenAddr) -> Result<Option<Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => Listener::bind_tcp(&address.places()).await,
        ListenAddr::Unix(path) => Listener::bind_unix(path).await,
    };
    let listener =
        bound.map_err(|error| ServeError::Listen { key: kind.setting, address: address.clone(), error })?;
    match &listener {
        Listener::Tcp(listeners) => announce_all(kind, listeners.local_addresses()),
        Listener::Unix(..) => announce(Announced { kind, url: address.to_string() }),
    }
    Ok(Some(listener))
}

/// The same as `bind` for an HTTP listener.
///
/// # Errors
///
/// It cannot be bound.
pub(crate) async fn bind_http(
    kind: ListenerKind,
    address: &ListenAddr,
) -> Result<Option<admin::AdminListener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => admin::AdminListener::tcp(&address.places()).await,
        ListenAddr::Unix(path) => admin::AdminListener::unix(path).await,
    };
    let listener =
        bound.map_err(|error| ServeError::Listen { key: kind.setting, address: address.clone(), error })?;
    if let ListenAddr::Unix(_) = address {
        announce(Announced { kind, url: address.to_string() });
    }
    announce_all(kind, listener.local_addresses());
    Ok(Some(listener))
}

/// Announces each address on a line of its own.
fn announce_all(kind: ListenerKind, bound: impl IntoIterator<Item = SocketAddr>) {
    for address in bound {
        announce(Announced { kind, url: format!("{}://{address}", kind.scheme) });
    }
}
