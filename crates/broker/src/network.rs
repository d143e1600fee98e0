//! The unit by which clients are counted per address.

use std::net::{IpAddr, Ipv6Addr};

/// The addresses that count as one: an IPv4 address, also when mapped to IPv6, or the /64 network of an IPv6 address. A
/// client with one IPv6 address can use the 2^64 addresses of its network.
pub fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_counts_by_itself_and_an_ipv6_address_as_its_network() {
        for (ip, network) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:0:1::2", "2001:db8:0:1::"),
            ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::"),
        ] {
            assert_eq!(network_of(ip.parse().unwrap()).to_string(), network);
        }
    }
}
