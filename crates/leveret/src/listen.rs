//! Binds and announces listeners.

use std::net::SocketAddr;

use server::{Listener, Preface};

use crate::announce::announce;
use crate::config::{Config, ListenAddr};
use crate::serve::{ServeError, trusted_proxies};
use crate::tls::Tls;

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
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => Listener::bind_tcp(&address.places()).await,
        ListenAddr::Unix(path) => Listener::bind_unix(path).await,
    };
    let listener = bound.map_err(|error| ServeError::Listen { key, address: address.clone(), error })?;
    let name = key.replace('_', "-");
    match &listener {
        Listener::Tcp(listeners) => announce_all(&name, scheme, listeners.local_addresses()),
        Listener::Unix(..) => announce(&name, scheme, &address.to_string()),
    }
    Ok(Some(listener))
}

/// Calls `listen` for the listener without TLS and the one with it, if they are configured.
pub(crate) fn serve_both(
    (plain, over_tls): (Option<Listener>, Option<Listener>),
    config: &Config,
    tls: &Tls,
    listen: impl Fn(Listener, Preface),
) {
    for (listener, tls) in [(plain, None), (over_tls, tls.server.clone())] {
        if let Some(listener) = listener {
            listen(listener, Preface { proxies: trusted_proxies(config), tls });
        }
    }
}

/// The same as `bind` for an HTTP listener.
///
/// # Errors
///
/// It cannot be bound.
pub(crate) async fn bind_http(
    key: &'static str,
    scheme: &str,
    address: &ListenAddr,
) -> Result<Option<admin::AdminListener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { .. } | ListenAddr::Several(_) => admin::AdminListener::tcp(&address.places()).await,
        ListenAddr::Unix(path) => admin::AdminListener::unix(path).await,
    };
    let listener = bound.map_err(|error| ServeError::Listen { key, address: address.clone(), error })?;
    if let ListenAddr::Unix(_) = address {
        announce(key, scheme, &address.to_string());
    }
    announce_all(key, scheme, listener.local_addresses());
    Ok(Some(listener))
}

/// Announces each address on a line of its own.
fn announce_all(name: &str, scheme: &str, bound: impl IntoIterator<Item = SocketAddr>) {
    bound.into_iter().for_each(|address| announce(name, scheme, &format!("{scheme}://{address}")));
}
