//! The listeners of STOMP.

use std::sync::Arc;

use server::{Listener, Preface, Server};

use crate::announce::announce;
use crate::config::{Config, ListenAddr};
use crate::relays::Relays;
use crate::serve::{ServeError, trusted_proxies, websocket_config};
use crate::tls::Tls;

/// The listeners of STOMP, bound.
pub(crate) struct StompListeners {
    stomp: Option<Listener>,
    stomps: Option<Listener>,
    web_stomp: Option<Listener>,
}

impl StompListeners {
    /// Binds and announces those that are on.
    ///
    /// # Errors
    ///
    /// The first that cannot be bound.
    pub(crate) async fn bind(config: &Config) -> Result<Self, ServeError> {
        Ok(Self {
            stomp: bind("stomp", "stomp", &config.stomp).await?,
            stomps: bind("stomps", "stomps", &config.stomps).await?,
            web_stomp: bind("web_stomp", "ws", &config.web_stomp).await?,
        })
    }

    /// Starts accepting.
    pub(crate) fn serve(self, server: &Server, config: &Config, relays: &Relays, tls: &Tls) {
        if let Some(relay) = relays.stomp() {
            server.relay_stomp(Arc::clone(relay));
        }
        for (listener, tls) in [(self.stomp, None), (self.stomps, tls.server.clone())] {
            if let Some(listener) = listener {
                server.listen_stomp(listener, Preface { proxies: trusted_proxies(config), tls });
            }
        }
        if let Some(listener) = self.web_stomp {
            let preface = Preface { proxies: trusted_proxies(config), tls: None };
            let config = websocket_config(config, relays.web_stomp_routes(config));
            server.listen_websocket(listener, preface, config);
        }
    }
}

/// Binds and announces the listener of the setting `key`, unless it is off.
///
/// # Errors
///
/// It cannot be bound.
pub(crate) async fn bind(
    key: &'static str,
    scheme: &str,
    address: &ListenAddr,
) -> Result<Option<Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { host, port } => Listener::bind_tcp(host, *port).await,
        ListenAddr::Unix(path) => Listener::bind_unix(path).await,
    };
    let listener = bound.map_err(|error| ServeError::Listen { key, address: address.clone(), error })?;
    let name = key.replace('_', "-");
    match &listener {
        Listener::Tcp(_) => announce(&name, &format!("{scheme}://{listener}")),
        Listener::Unix(..) => announce(&name, &address.to_string()),
    }
    Ok(Some(listener))
}
