//! Binds, announces and serves listeners.

use std::net::SocketAddr;

use admin::WebSocketPorts;
use broker::FrontEnd;
use server::{ListenerKind, PROTOCOLS, Preface, Server};
use transport::{Inherited, Listener};

use crate::announce::{Announced, announce};
use crate::config::{Config, ListenAddr};
use crate::relays::ServedRelays;
use crate::self_upstream::refuse_as_upstream;
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
    pub(crate) async fn bind(config: &Config, inherited: &Inherited) -> Result<Self, ServeError> {
        let mut bound = Vec::new();
        for protocol in &PROTOCOLS {
            for kind in &protocol.listeners {
                if let Some(listener) = bind(*kind, config.listen_address(kind.setting), inherited).await? {
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
        let of_each = self.0.iter().map(|(_, kind, listener)| (kind.setting, listener.local_addresses()));
        of_each
            .flat_map(|(key, addresses)| addresses.into_iter().map(move |address| (key, address)))
            .collect()
    }

    /// The sockets of all.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.0.iter().map(|(.., listener)| listener)
    }

    /// The ports on which the page in the browser may connect.
    pub(crate) fn websocket_ports(&self) -> WebSocketPorts {
        let port = |tls: bool| {
            let (.., listener) = self.0.iter().find(|(protocol, kind, _)| {
                *protocol == FrontEnd::Amqp && kind.websocket && kind.tls == tls
            })?;
            listener.local_addresses().first().map(SocketAddr::port)
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
pub(crate) async fn bind(
    kind: ListenerKind,
    address: &ListenAddr,
    inherited: &Inherited,
) -> Result<Option<Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => {
            Listener::bind_tcp(&address.places(), inherited).await
        }
        ListenAddr::Unix(path) => Listener::bind_unix(path, inherited).await,
    };
    let listener =
        bound.map_err(|error| ServeError::Listen { key: kind.setting, address: address.clone(), error })?;
    if let ListenAddr::Unix(_) = address {
        announce(Announced { kind, url: address.to_string() });
    }
    for address in listener.local_addresses() {
        announce(Announced { kind, url: format!("{}://{address}", kind.scheme) });
    }
    Ok(Some(listener))
}
