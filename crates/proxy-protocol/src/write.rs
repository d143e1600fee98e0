//! Encoding of headers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::read::{LOCAL, PROXY, TCP_OVER_IPV4, TCP_OVER_IPV6, UNSPECIFIED};
use crate::{ProxyHeader, ProxyVersion, SIGNATURE_V2};

/// Appends a header to `out`.
///
/// A header has one family for both addresses. IPv4 addresses in IPv6 form (`::ffff:192.0.2.1`) are written as IPv4; when
/// the other address is a real IPv6 one, both are written as IPv6.
pub fn write(version: ProxyVersion, header: &ProxyHeader, out: &mut Vec<u8>) {
    let addresses = match header {
        ProxyHeader::Local => None,
        ProxyHeader::Proxied { source, destination } => Some(one_family(*source, *destination)),
    };
    match version {
        ProxyVersion::V1 => out.extend_from_slice(line(addresses).as_bytes()),
        ProxyVersion::V2 => write_v2(addresses, out),
    }
}

fn line(addresses: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((source, destination)) = addresses else {
        // Version 1 has no LOCAL; a sender that does not name the client writes this.
        return "PROXY UNKNOWN\r\n".to_owned();
    };
    let protocol = if source.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (source.ip(), destination.ip());
    format!("PROXY {protocol} {from} {to} {} {}\r\n", source.port(), destination.port())
}

fn write_v2(addresses: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    out.extend_from_slice(&SIGNATURE_V2);
    let Some((source, destination)) = addresses else {
        out.extend_from_slice(&[VERSION | LOCAL, UNSPECIFIED, 0, 0]);
        return;
    };
    let (family, bytes) = if source.is_ipv4() { (TCP_OVER_IPV4, 4) } else { (TCP_OVER_IPV6, 16) };
    out.extend_from_slice(&[VERSION | PROXY, family, 0, 2 * bytes + 4]);
    for address in [source, destination] {
        match address.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
    }
    for address in [source, destination] {
        out.extend_from_slice(&address.port().to_be_bytes());
    }
}

/// Both addresses in one family: IPv4 if both have that form.
fn one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let with_ip = |address: SocketAddr, ip: IpAddr| SocketAddr::new(ip, address.port());
    let (from, to) = (source.ip().to_canonical(), destination.ip().to_canonical());
    if from.is_ipv4() == to.is_ipv4() {
        return (with_ip(source, from), with_ip(destination, to));
    }
    (with_ip(source, v6(from).into()), with_ip(destination, v6(to).into()))
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Version 2, in the upper half of the byte.
const VERSION: u8 = 0x20;
