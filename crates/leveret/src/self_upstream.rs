//! Detects an upstream that is this very server, whose clients would be forwarded to itself in a loop.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::config::{Config, SettingError};

/// Time for resolving the upstreams' names concurrently. An upstream whose name takes longer, or does not exist, is not
/// checked.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A bound address, and the setting of its listener.
type Bound = (&'static str, SocketAddr);

/// Refuses an upstream that is surely one of the bound addresses, and warns of one that may be.
///
/// # Errors
///
/// The first upstream that is this server.
pub(crate) async fn refuse_as_upstream(config: &Config, bound: &[Bound]) -> Result<(), SettingError> {
    // Most pools use other ports: then no name is resolved, and the start does not wait for DNS.
    let alike: Vec<_> = config.upstream.iter().filter(|upstream| has_port(bound, upstream.port)).collect();
    let names = alike.iter().map(|upstream| (upstream.host.clone(), upstream.port));
    let found = look_up(names, async |name| Ok(tokio::net::lookup_host(name).await?.collect())).await;
    for (upstream, sockets) in alike.into_iter().zip(found) {
        match verdict(&sockets, bound) {
            Verdict::Another => {}
            Verdict::Doubtful(key) => tracing::warn!(
                address = %upstream,
                "the upstream may be this server's own {key}: it has that port, at an address of this machine; if clients time out, \
                 give the address of the broker"
            ),
            Verdict::Own(key) => {
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

fn has_port(bound: &[Bound], port: u16) -> bool {
    bound.iter().any(|(_, own)| own.port() == port)
}

/// The addresses of each name, in this order, and none for a name that is not found in time.
async fn look_up<N: Send + 'static, F>(
    names: impl Iterator<Item = N>,
    resolve: impl Fn(N) -> F,
) -> Vec<Vec<SocketAddr>>
where
    F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
{
    let lookups: Vec<_> =
        names.map(|name| tokio::spawn(tokio::time::timeout(LOOKUP_TIMEOUT, resolve(name)))).collect();
    let mut found = Vec::new();
    for lookup in lookups {
        found.push(match lookup.await {
            Ok(Ok(Ok(sockets))) => sockets,
            _ => Vec::new(),
        });
    }
    found
}

/// Whether an upstream is this server, and the setting of the listener.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Another,
    /// Connections to one of its addresses may arrive here.
    Doubtful(&'static str),
    /// Connections to any of its addresses arrive here.
    Own(&'static str),
}

fn verdict(sockets: &[SocketAddr], bound: &[Bound]) -> Verdict {
    let key_of = |is_alike: fn(SocketAddr, SocketAddr) -> bool, wanted: SocketAddr| {
        bound.iter().find(|(_, own)| is_alike(*own, wanted)).map(|(key, _)| *key)
    };
    let sure: Vec<_> = sockets.iter().map(|wanted| key_of(is_same, *wanted)).collect();
    if let Some(Some(key)) = sure.first()
        && sure.iter().all(Option::is_some)
    {
        return Verdict::Own(key);
    }
    let doubtful = || sockets.iter().find_map(|wanted| key_of(may_be_same, *wanted));
    sure.iter().find_map(|key| *key).or_else(doubtful).map_or(Verdict::Another, Verdict::Doubtful)
}

/// Whether connections to `wanted` surely arrive at a listener that is bound to `own`.
fn is_same(own: SocketAddr, wanted: SocketAddr) -> bool {
    let (own_ip, ip) = (own.ip(), wanted.ip());
    own.port() == wanted.port()
        && own_ip.is_ipv4() == ip.is_ipv4()
        && (own_ip == ip
            // The system connects there over loopback.
            || ip.is_unspecified() && [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&own_ip)
            || own_ip.is_unspecified() && ip.is_loopback())
}

/// Whether they may. As a rule only an address of this machine can be bound, but not everywhere: with the system's setting
/// `ip_nonlocal_bind` any can, and IPVS (Kubernetes) gives the addresses of services to every node.
fn may_be_same(own: SocketAddr, wanted: SocketAddr) -> bool {
    // [::] takes connections over IPv4, too, unless the system says otherwise.
    let is_of_family = own.is_ipv6() || wanted.is_ipv4();
    own.port() == wanted.port()
        && own.ip().is_unspecified()
        && is_of_family
        && (wanted.ip().is_loopback() || UdpSocket::bind((wanted.ip(), 0)).is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Barrier;

    use super::*;

    fn of(wanted: &[&str], own: &str) -> Verdict {
        let wanted: Vec<SocketAddr> = wanted.iter().map(|wanted| wanted.parse().unwrap()).collect();
        verdict(&wanted, &[("amqp", own.parse().unwrap())])
    }

    #[test]
    fn an_upstream_is_refused_only_if_all_its_addresses_surely_are_this_server() {
        let own = Verdict::Own("amqp");
        assert_eq!(of(&["127.0.0.1:5673"], "127.0.0.1:5673"), own);
        assert_eq!(of(&["127.0.0.1:5673"], "0.0.0.0:5673"), own);
        assert_eq!(of(&["0.0.0.0:5673"], "0.0.0.0:5673"), own);
        assert_eq!(of(&["0.0.0.0:5673"], "127.0.0.1:5673"), own);
        assert_eq!(of(&["[::1]:5673"], "[::]:5673"), own);
        // A broker may be at one address of a name, and this server at another.
        assert_eq!(of(&["192.0.2.1:5673", "127.0.0.1:5673"], "127.0.0.1:5673"), Verdict::Doubtful("amqp"));
        assert_eq!(of(&["[::1]:5673", "127.0.0.1:5673"], "0.0.0.0:5673"), Verdict::Doubtful("amqp"));
    }

    #[test]
    fn one_that_is_elsewhere_is_another() {
        assert_eq!(of(&[], "127.0.0.1:5673"), Verdict::Another);
        assert_eq!(of(&["127.0.0.1:5672"], "127.0.0.1:5673"), Verdict::Another);
        assert_eq!(of(&["127.0.0.2:5673"], "127.0.0.1:5673"), Verdict::Another);
        assert_eq!(of(&["[::1]:5673"], "0.0.0.0:5673"), Verdict::Another, "another family");
        assert_eq!(of(&["0.0.0.0:5673"], "[::1]:5673"), Verdict::Another, "another family");
        // TEST-NET-1 (RFC 5737) is nobody's.
        assert_eq!(of(&["192.0.2.1:5673"], "127.0.0.1:5673"), Verdict::Another);
    }

    #[test]
    fn an_upstream_address_that_can_be_bound_is_only_doubtful() {
        assert_eq!(of(&["127.0.0.1:5673"], "[::]:5673"), Verdict::Doubtful("amqp"));
        // The machine's own address, if it has another than loopback.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
        if let Ok(own) = own {
            let wanted = SocketAddr::new(own.ip(), 5673);
            let expected =
                if own.ip().is_loopback() { Verdict::Own("amqp") } else { Verdict::Doubtful("amqp") };
            assert_eq!(verdict(&[wanted], &[("amqp", "0.0.0.0:5673".parse().unwrap())]), expected);
        }
    }

    #[tokio::test]
    async fn names_are_looked_up_all_at_once_and_one_that_is_not_found_is_left_out() {
        let both = Arc::new(Barrier::new(2));
        let names = ["a", "b", "gone"].into_iter();
        let found = look_up(names, |name| {
            let both = Arc::clone(&both);
            async move {
                if name == "gone" {
                    return Err(io::ErrorKind::NotFound.into());
                }
                both.wait().await;
                Ok(vec![([192, 0, 2, name.as_bytes()[0]], 1).into()])
            }
        });
        let found = found.await;
        assert_eq!(found, [vec![([192, 0, 2, b'a'], 1).into()], vec![([192, 0, 2, b'b'], 1).into()], vec![]]);
    }
}
