//! Listeners: bound, and announced.

use server::Listener;

use crate::announce::announce;
use crate::config::ListenAddr;
use crate::serve::ServeError;

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
        Listener::Tcp(_) => announce(&name, scheme, &format!("{scheme}://{listener}")),
        Listener::Unix(..) => announce(&name, scheme, &address.to_string()),
    }
    Ok(Some(listener))
}

/// The same for a listener of HTTP.
///
/// # Errors
///
/// It cannot be bound.
pub(crate) async fn bind_http(
    key: &'static str,
    scheme: &str,
    address: &ListenAddr,
) -> Result<Option<admin::Listener>, ServeError> {
    let bound = match address {
        ListenAddr::Off => return Ok(None),
        ListenAddr::Tcp { host, port } => admin::Listener::tcp(host, *port).await,
        ListenAddr::Unix(path) => admin::Listener::unix(path).await,
    };
    let failed = |error| ServeError::Listen { key, address: address.clone(), error };
    let listener = bound.map_err(failed)?;
    match listener.local_addr().map_err(failed)? {
        Some(bound) => announce(key, scheme, &format!("{scheme}://{bound}")),
        None => announce(key, scheme, &address.to_string()),
    }
    Ok(Some(listener))
}
