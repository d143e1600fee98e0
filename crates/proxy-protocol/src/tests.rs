//! Golden vectors, and properties.

use proptest::prelude::*;

use super::*;

fn proxied(source: &str, destination: &str) -> ProxyHeader {
    ProxyHeader::Proxied { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

/// Reads like a careful receiver: exactly the number of bytes that the parser asks for.
fn receive(stream: &[u8], accepted: AcceptedVersions) -> Result<(ProxyHeader, usize), ParseError> {
    let mut taken = 0;
    loop {
        match parse(&stream[..taken], accepted)? {
            Parsed::Incomplete(more) => {
                assert!(more > 0);
                taken += more;
                assert!(taken <= stream.len(), "asks for more than the header");
            }
            Parsed::Complete { header, length } => {
                assert_eq!(length, taken, "took more than the header");
                return Ok((header, length));
            }
        }
    }
}

#[track_caller]
fn reads(bytes: &[u8], header: ProxyHeader) {
    let followed = [bytes, b"AMQP\0\0\x09\x01"].concat();
    assert_eq!(receive(&followed, AcceptedVersions::Any), Ok((header, bytes.len())));
    assert_eq!(
        parse(&followed, AcceptedVersions::Any),
        Ok(Parsed::Complete { header, length: bytes.len() }),
        "in one read"
    );
}

#[track_caller]
fn refuses(bytes: &[u8], error: ParseError) {
    assert_eq!(parse(bytes, AcceptedVersions::Any), Err(error), "{bytes:?}");
}

/// Examples and limits of the specification's section 2.1.
#[test]
fn lines_of_version_1_are_read() {
    reads(
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
        proxied("192.168.0.1:56324", "192.168.0.11:443"),
    );
    reads(
        b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
        proxied("255.255.255.255:65535", "255.255.255.255:65535"),
    );
    reads(
        b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
        proxied(
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
        ),
    );
    reads(b"PROXY TCP6 ::1 ::2 0 1\r\n", proxied("[::1]:0", "[::2]:1"));
    reads(b"PROXY UNKNOWN\r\n", ProxyHeader::Local);
    reads(b"PROXY UNKNOWN ffff:f::f ffff:f::f 65535 65535\r\n", ProxyHeader::Local);
    let longest = [&b"PROXY UNKNOWN "[..], &[b'x'; 91], b"\r\n"].concat();
    assert_eq!(longest.len(), MAX_V1_LENGTH);
    reads(&longest, ProxyHeader::Local);
}

#[test]
fn broken_lines_of_version_1_are_refused() {
    use ParseError::Malformed;
    for line in [
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443 1\r\n",
        "PROXY TCP4 192.168.0.1  192.168.0.11 56324 443\r\n",
        "PROXY TCP4 ::1 ::1 1 1\r\n",
        "PROXY TCP6 127.0.0.1 127.0.0.1 1 1\r\n",
        "PROXY TCP4 192.168.0.01 192.168.0.11 1 1\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 65536 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 +1 443\r\n",
        "PROXY TCP4 192.168.0.1 192.168.0.11 01 443\r\n",
        "PROXY UDP4 192.168.0.1 192.168.0.11 1 443\r\n",
        "PROXY  TCP4 192.168.0.1 192.168.0.11 1 443\r\n",
        "PROXY \r\n",
        "PROXY UNKNOWN\rX",
        "PROXY UNKNOWN\n",
    ] {
        assert!(matches!(parse(line.as_bytes(), AcceptedVersions::Any), Err(Malformed(_))), "{line:?}");
    }
    refuses(&[&b"PROXY UNKNOWN "[..], &[b'x'; 92], b"\r\n"].concat(), ParseError::TooLong);
    refuses(&[&b"PROXY UNKNOWN "[..], &[b'x'; 92]].concat(), ParseError::TooLong);
}

const V2: &[u8] = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a";

fn v2(rest: &[u8]) -> Vec<u8> {
    [V2, rest].concat()
}

#[test]
fn headers_of_version_2_are_read() {
    // From 127.0.0.1:50000 to 127.0.0.1:5672.
    reads(
        &v2(b"\x21\x11\x00\x0c\x7f\x00\x00\x01\x7f\x00\x00\x01\xc3\x50\x16\x28"),
        proxied("127.0.0.1:50000", "127.0.0.1:5672"),
    );
    let sixteen = |last: u8| [[0x20, 0x01, 0x0d, 0xb8].as_slice(), &[0; 11], &[last]].concat();
    reads(
        &v2(&[b"\x21\x21\x00\x24", &*sixteen(1), &*sixteen(2), b"\xff\xff\x16\x27"].concat()),
        proxied("[2001:db8::1]:65535", "[2001:db8::2]:5671"),
    );
    // A health check, and one with a TLV.
    reads(&v2(b"\x20\x00\x00\x00"), ProxyHeader::Local);
    reads(&v2(b"\x20\x00\x00\x07\x04\x00\x04abcd"), ProxyHeader::Local);
    // A checksum TLV behind the addresses.
    reads(
        &v2(b"\x21\x11\x00\x13\x0a\x00\x00\x01\x0a\x00\x00\x02\x00\x01\x00\x02\x03\x00\x04\x9b\x91\x58\x21"),
        proxied("10.0.0.1:1", "10.0.0.2:2"),
    );
    // An unspecified family, and a Unix socket.
    reads(&v2(b"\x21\x00\x00\x00"), ProxyHeader::Local);
    reads(&v2(&[&b"\x21\x31\x00\xd8"[..], &[b'/'; 216]].concat()), ProxyHeader::Local);
}

#[test]
fn broken_headers_of_version_2_are_refused() {
    use ParseError::Malformed;
    refuses(&v2(b"\x11\x11\x00\x00"), Malformed("the version is neither 1 nor 2"));
    refuses(&v2(b"\x22\x11\x00\x00"), Malformed("the command is neither LOCAL nor PROXY"));
    refuses(&v2(b"\x21\x12\x00\x00"), Malformed("not a stream over IPv4, IPv6 or a Unix socket"));
    refuses(&v2(b"\x21\x11\x00\x0b\0\0\0\0\0\0\0\0\0\0\0"), Malformed("shorter than its addresses"));
    refuses(&v2(b"\x21\x21\x00\x0c\0\0\0\0\0\0\0\0\0\0\0\0"), Malformed("shorter than its addresses"));
    refuses(&v2(b"\x21\x11\x0f\xf1"), ParseError::TooLong);
    assert_eq!(parse(&v2(b"\x21\x11\x0f\xf0"), AcceptedVersions::Any), Ok(Parsed::Incomplete(4080)));
}

#[test]
fn bytes_that_are_not_a_header_are_refused_at_once() {
    for bytes in [&b"A"[..], b"AMQP", b"\x16\x03\x01", b"GET /", b"PRO_", b"\r\n\r\n\r"] {
        refuses(bytes, ParseError::NotAHeader);
    }
}

#[test]
fn a_version_that_is_not_accepted_is_refused_at_once() {
    let only = AcceptedVersions::Only;
    assert_eq!(parse(b"P", only(ProxyVersion::V2)), Err(ParseError::VersionRefused(ProxyVersion::V1)));
    assert_eq!(parse(b"\r\n", only(ProxyVersion::V1)), Err(ParseError::VersionRefused(ProxyVersion::V2)));
    assert_eq!(receive(b"PROXY UNKNOWN\r\n", only(ProxyVersion::V1)), Ok((ProxyHeader::Local, 15)));
}

#[track_caller]
fn writes(header: ProxyHeader, line: &str, rest: &[u8]) {
    let mut out = Vec::new();
    write(ProxyVersion::V1, &header, &mut out);
    assert_eq!(out, line.as_bytes());
    out.clear();
    write(ProxyVersion::V2, &header, &mut out);
    assert_eq!(out, v2(rest));
}

#[test]
fn headers_are_written_in_one_family() {
    writes(ProxyHeader::Local, "PROXY UNKNOWN\r\n", b"\x20\x00\x00\x00");
    writes(
        proxied("192.0.2.1:1", "192.0.2.2:2"),
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02",
    );
    writes(
        proxied("[::ffff:192.0.2.1]:1", "192.0.2.2:2"),
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x00\x01\x00\x02",
    );
    let mut mixed = b"\x21\x21\x00\x24".to_vec();
    mixed.extend("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    mixed.extend("::ffff:192.0.2.2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    mixed.extend([0, 1, 0, 2]);
    writes(
        proxied("[2001:db8::1]:1", "192.0.2.2:2"),
        "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1 2\r\n",
        &mixed,
    );
}

fn address() -> impl Strategy<Value = SocketAddr> {
    any::<(std::net::IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

proptest! {
    #[test]
    fn written_headers_are_read_back(source in address(), destination in address(), first in any::<bool>()) {
        let version = if first { ProxyVersion::V1 } else { ProxyVersion::V2 };
        let mut bytes = Vec::new();
        write(version, &ProxyHeader::Proxied { source, destination }, &mut bytes);
        let read = receive(&bytes, AcceptedVersions::Only(version));
        let Ok((ProxyHeader::Proxied { source: from, destination: to }, length)) = read else {
            panic!("{read:?}");
        };
        prop_assert_eq!((canonical(from), canonical(to)), (canonical(source), canonical(destination)));
        prop_assert_eq!(length, bytes.len());
    }

    #[test]
    fn no_bytes_make_the_parser_panic_or_grow(
        start in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", b"PROXY TCP6 ", V2]),
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [start, &rest].concat();
        match parse(&bytes, AcceptedVersions::Any) {
            Ok(Parsed::Incomplete(more)) => prop_assert!(more > 0 && bytes.len() + more <= MAX_LENGTH),
            Ok(Parsed::Complete { length, .. }) => prop_assert!(length <= bytes.len()),
            Err(_) => {}
        }
    }

    #[test]
    fn a_header_in_pieces_is_the_same_header(source in address(), destination in address(), first in any::<bool>()) {
        let version = if first { ProxyVersion::V1 } else { ProxyVersion::V2 };
        let mut bytes = Vec::new();
        write(version, &ProxyHeader::Proxied { source, destination }, &mut bytes);
        for cut in 0..bytes.len() {
            let parsed = parse(&bytes[..cut], AcceptedVersions::Any);
            let Ok(Parsed::Incomplete(more)) = parsed else { panic!("{cut}: {parsed:?}") };
            prop_assert!(cut + more <= bytes.len(), "{cut} + {more} of {}", bytes.len());
        }
    }
}
