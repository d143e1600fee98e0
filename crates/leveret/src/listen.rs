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
        Listener::Tcp(_) => announce(&name, &format!("{scheme}://{listener}")),
        Listener::Unix(..) => announce(&name, &address.to_string()),
    }
    Ok(Some(listener))
}
