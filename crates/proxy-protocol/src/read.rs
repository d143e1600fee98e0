//! Parsing of headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{
    AcceptedVersions, FIXED_V2, MAX_LENGTH, MAX_V1_LENGTH, ParseError, ProxyHeader, ProxyVersion,
    SIGNATURE_V1, SIGNATURE_V2,
};

/// The result of [`parse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a header. At least this many bytes more belong to it; never 0.
    Incomplete(usize),
    /// A whole header.
    Complete {
        /// The decoded header.
        header: ProxyHeader,
        /// Length of the header in bytes; later bytes do not belong to it.
        length: usize,
    },
}

/// Parses a header at the front of `input`.
///
/// A receiver that reads exactly the number of bytes given by [`Parsed::Incomplete`], and parses again, never
/// consumes bytes that follow the header.
///
/// # Errors
/// As soon as the bytes cannot become an acceptable header.
pub fn parse(input: &[u8], accepted: AcceptedVersions) -> Result<Parsed, ParseError> {
    for (signature, version) in [(SIGNATURE_V1, ProxyVersion::V1), (&SIGNATURE_V2[..], ProxyVersion::V2)] {
        let seen = input.len().min(signature.len());
        if !input.is_empty() && input[..seen] == signature[..seen] {
            return match (accepted.includes(version), version) {
                (false, _) => Err(ParseError::VersionRefused(version)),
                (true, ProxyVersion::V1) => parse_v1(input),
                (true, ProxyVersion::V2) => parse_v2(input),
            };
        }
    }
    match input {
        [] => Ok(Parsed::Incomplete(MIN_V1_LENGTH)),
        _ => Err(ParseError::NotAHeader),
    }
}

/// `PROXY UNKNOWN\r\n`, the shortest header of all.
const MIN_V1_LENGTH: usize = 15;

/// A line such as `PROXY TCP4 192.0.2.1 192.0.2.2 50000 5672\r\n` (section 2.1).
fn parse_v1(input: &[u8]) -> Result<Parsed, ParseError> {
    let line = match input.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(end) if end + 2 > MAX_V1_LENGTH => return Err(ParseError::TooLong),
        Some(end) if input[end] == b'\n' => return Err(ParseError::Malformed("a line ends with CR LF")),
        Some(end) => match input.get(end + 1) {
            None => return Ok(Parsed::Incomplete(1)),
            Some(b'\n') => &input[..end],
            Some(_) => return Err(ParseError::Malformed("a line ends with CR LF")),
        },
        None if input.len() + 2 > MAX_V1_LENGTH => return Err(ParseError::TooLong),
        None => return Ok(Parsed::Incomplete(missing_v1(input))),
    };
    let length = line.len() + 2;
    let mut fields = line[SIGNATURE_V1.len()..].split(|&byte| byte == b' ');
    let header = match fields.next() {
        Some(b"TCP4") => addresses_v1::<Ipv4Addr>(fields)?,
        Some(b"TCP6") => addresses_v1::<Ipv6Addr>(fields)?,
        // The rest of the line is to be ignored.
        Some(b"UNKNOWN") => ProxyHeader::Local,
        _ => return Err(ParseError::Malformed("the protocol is TCP4, TCP6 or UNKNOWN")),
    };
    Ok(Parsed::Complete { header, length })
}

/// The minimum number of bytes that an unfinished line lacks.
fn missing_v1(line: &[u8]) -> usize {
    let shortest_address = match line.get(SIGNATURE_V1.len()..SIGNATURE_V1.len() + 5) {
        None => return MIN_V1_LENGTH.saturating_sub(line.len()).max(2),
        Some(b"TCP4 ") => "0.0.0.0".len(),
        Some(b"TCP6 ") => "::".len(),
        Some(_) => return MIN_V1_LENGTH.saturating_sub(line.len()).max(2),
    };
    let spaces = line.iter().filter(|&&byte| byte == b' ').count();
    // The fields of two addresses and two ports, each preceded by a space, that have not begun yet.
    let fields = [shortest_address, shortest_address, 1, 1];
    let begun = spaces.saturating_sub(1).min(fields.len());
    let current = if line.ends_with(b" ") { fields[begun - 1] } else { 0 };
    current + fields[begun..].iter().map(|shortest| 1 + shortest).sum::<usize>() + 2
}

fn addresses_v1<'f, A>(mut fields: impl Iterator<Item = &'f [u8]>) -> Result<ProxyHeader, ParseError>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let mut next = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let mut address = || next()?.parse::<A>().ok().map(Into::into);
    let (source, destination): (Option<IpAddr>, Option<IpAddr>) = (address(), address());
    let (Some(source), Some(destination)) = (source, destination) else {
        return Err(ParseError::Malformed("not an address of its family"));
    };
    let mut port = || next().and_then(port);
    let (Some(source_port), Some(destination_port)) = (port(), port()) else {
        return Err(ParseError::Malformed("not a port"));
    };
    if next().is_some() {
        return Err(ParseError::Malformed("more than two addresses and two ports"));
    }
    Ok(ProxyHeader::Proxied {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// Decimal, without sign or leading zeros.
fn port(text: &str) -> Option<u16> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    if canonical { text.parse().ok() } else { None }
}

/// A binary header (section 2.2).
fn parse_v2(input: &[u8]) -> Result<Parsed, ParseError> {
    let Some((fixed, rest)) = input.split_at_checked(FIXED_V2) else {
        return Ok(Parsed::Incomplete(FIXED_V2 - input.len()));
    };
    let (version_and_command, family_and_protocol) = (fixed[12], fixed[13]);
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if version_and_command >> 4 != 2 {
        return Err(ParseError::Malformed("the version is neither 1 nor 2"));
    }
    if FIXED_V2 + length > MAX_LENGTH {
        return Err(ParseError::TooLong);
    }
    let Some(addresses) = rest.get(..length) else {
        return Ok(Parsed::Incomplete(length - rest.len()));
    };
    let header = match version_and_command & 0x0f {
        LOCAL => ProxyHeader::Local,
        PROXY => addresses_v2(family_and_protocol, addresses)?,
        _ => return Err(ParseError::Malformed("the command is neither LOCAL nor PROXY")),
    };
    Ok(Parsed::Complete { header, length: FIXED_V2 + length })
}

/// Source, destination and their ports; the TLVs behind them are not used.
fn addresses_v2(family_and_protocol: u8, bytes: &[u8]) -> Result<ProxyHeader, ParseError> {
    const SHORT: ParseError = ParseError::Malformed("shorter than its addresses");
    let (source, destination, ports): (IpAddr, IpAddr, _) = match family_and_protocol {
        TCP_OVER_IPV4 => {
            let (source, rest) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
            let (destination, rest) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
            (Ipv4Addr::from(*source).into(), Ipv4Addr::from(*destination).into(), rest)
        }
        TCP_OVER_IPV6 => {
            let (source, rest) = bytes.split_first_chunk::<16>().ok_or(SHORT)?;
            let (destination, rest) = rest.split_first_chunk::<16>().ok_or(SHORT)?;
            (Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination).into(), rest)
        }
        UNSPECIFIED | UNIX_STREAM => return Ok(ProxyHeader::Local),
        _ => return Err(ParseError::Malformed("not a stream over IPv4, IPv6 or a Unix socket")),
    };
    let [a, b, c, d] = *ports.first_chunk::<4>().ok_or(SHORT)?;
    Ok(ProxyHeader::Proxied {
        source: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
    })
}

pub(crate) const LOCAL: u8 = 0;
pub(crate) const PROXY: u8 = 1;
pub(crate) const UNSPECIFIED: u8 = 0x00;
pub(crate) const TCP_OVER_IPV4: u8 = 0x11;
pub(crate) const TCP_OVER_IPV6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;
