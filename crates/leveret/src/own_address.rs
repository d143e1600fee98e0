//! Notices an upstream that is this very server: every client would become a client of itself, again and again.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::config::{Config, SettingError};

/// Time for looking up an upstream's name. One that takes longer, or does not exist, is found out about later.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Refuses an upstream that is one of the bound addresses, which come with the settings of their listeners.
///
/// # Errors
///
/// The first such upstream.
pub(crate) async fn refuse_as_upstream(
    config: &Config,
    bound: &[(&'static str, SocketAddr)],
) -> Result<(), SettingError> {
    for upstream in &config.upstream {
        let lookup = tokio::net::lookup_host((upstream.host.as_str(), upstream.port));
        let Ok(Ok(sockets)) = tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await else { continue };
        for socket in sockets {
            if let Some((key, _)) = bound.iter().find(|(_, own)| is_same(*own, socket)) {
                let flag = key.replace('_', "-");
                let reason = format!(
                    "is this server's own {key}; give the address of the broker, or move this listener with --{flag}"
                );
                return Err(SettingError::new("upstream", reason).about(upstream));
            }
        }
    }
    Ok(())
}

/// Whether connections to `wanted` arrive at a listener that is bound to `own`.
fn is_same(own: SocketAddr, wanted: SocketAddr) -> bool {
    own.port() == wanted.port()
        && (own.ip() == wanted.ip()
            // The system connects there over loopback.
            || wanted.ip().is_unspecified() && own.ip().is_loopback()
            || own.ip().is_unspecified() && is_of_this_machine(wanted.ip()))
}

/// Only an address of this machine can be bound.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_ones_own_by_port_and_by_any_address_of_the_machine() {
        let same = |own: &str, wanted: &str| is_same(own.parse().unwrap(), wanted.parse().unwrap());
        assert!(same("127.0.0.1:5673", "127.0.0.1:5673"));
        assert!(same("0.0.0.0:5673", "127.0.0.1:5673"));
        assert!(same("0.0.0.0:5673", "0.0.0.0:5673"));
        assert!(same("127.0.0.1:5673", "0.0.0.0:5673"));
        assert!(same("[::]:5673", "[::1]:5673"));
        assert!(!same("127.0.0.1:5673", "127.0.0.1:5672"));
        assert!(!same("127.0.0.1:5673", "127.0.0.2:5673"));
        // TEST-NET-1 (RFC 5737) is nobody's.
        assert!(!same("0.0.0.0:5673", "192.0.2.1:5673"));
    }
}
