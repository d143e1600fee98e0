//! The client behind a reverse proxy: `Forwarded` (RFC 7239), `X-Forwarded-For`, `X-Real-IP`.
//!
//! Any client can send these headers. They are trusted only as far as trusted proxies wrote them: the addresses are
//! read from the last to the first, and the first one that is not a trusted proxy's own is the client's.

use std::net::{IpAddr, SocketAddr};

use crate::handshake::Head;

/// The most addresses examined: proxy chains are short, and a longer list is forged.
const MAX_HOPS: usize = 16;

/// The headers name different clients. A proxy that writes one of them may pass the others on as its client sent them,
/// so there is no way to tell which is true.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("Forwarded, X-Forwarded-For and X-Real-IP name different clients")]
pub struct ConflictingHeaders;

/// The address of the client, according to a trusted peer: the caller has checked that `is_trusted` holds for it.
/// `None` if there is no such header, or one that cannot be understood: then only the peer itself is known.
///
/// # Errors
/// If two headers name different clients.
pub fn client(
    head: &Head<'_>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Result<Option<IpAddr>, ConflictingHeaders> {
    let plain = |element: &str| Some(element.to_owned());
    let reported = [
        first_untrusted(last_hops(head, "forwarded", forwarded_for), &is_trusted),
        first_untrusted(last_hops(head, "x-forwarded-for", plain), &is_trusted),
        first_untrusted(last_hops(head, "x-real-ip", plain), &is_trusted),
    ];
    // Behind several proxies, X-Real-IP is often the address of the next proxy.
    let mut untrusted = reported.iter().flatten().filter(|address| !is_trusted(**address));
    let client = untrusted.next();
    if untrusted.any(|other| Some(other) != client) {
        return Err(ConflictingHeaders);
    }
    Ok(client.or(reported.iter().flatten().next()).copied())
}

/// The first hop that is not a trusted proxy's own, or else the last one examined.
fn first_untrusted(hops: Vec<Option<String>>, is_trusted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let mut client = None;
    for hop in hops {
        // Nothing beyond an unknown hop (`unknown`, `_hidden`, nonsense) can be trusted.
        let Some(address) = hop.as_deref().and_then(node_address) else { break };
        client = Some(address);
        if !is_trusted(address) {
            break;
        }
    }
    client
}

/// The elements of all headers of that name, the last one first.
fn last_hops(head: &Head<'_>, name: &str, read: impl Fn(&str) -> Option<String>) -> Vec<Option<String>> {
    let elements: Vec<&str> = head.all(name).flat_map(|value| split_outside_quotes(value, ',')).collect();
    elements.iter().rev().take(MAX_HOPS).map(|element| read(element.trim())).collect()
}

/// The `for` parameter of an element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<String> {
    split_outside_quotes(element, ';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| unquoted(value.trim()))
    })
}

/// The pieces of `text` between separators that are not in a quoted string.
fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |character: char| {
        if escaped {
            escaped = false;
        } else if quoted && character == '\\' {
            escaped = true;
        } else if character == '"' {
            quoted = !quoted;
        }
        !quoted && character == separator
    })
}

/// The content of a quoted string, or the token unchanged.
fn unquoted(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut content = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        content.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    content
}

/// The address of `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn node_address(node: &str) -> Option<IpAddr> {
    let address = node.parse().ok().or_else(|| node.parse().ok().map(|address: SocketAddr| address.ip()));
    let address = address.or_else(|| {
        let (address, port) = node.strip_prefix('[')?.split_once(']')?;
        // RFC 7239 allows obfuscated ports (`_x`).
        (port.is_empty() || port.starts_with(":_")).then(|| address.parse().ok())?
    });
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(headers: &[(&str, &str)]) -> Option<String> {
        let headers: Vec<u8> =
            headers.iter().flat_map(|(name, value)| format!("{name}: {value}\r\n").into_bytes()).collect();
        let request = [b"GET / HTTP/1.1\r\n".as_slice(), &headers, b"\r\n"].concat();
        let (head, _) = Head::parse(&request).unwrap().unwrap();
        client(&head, is_proxy).unwrap().map(|address| address.to_string())
    }

    fn is_proxy(address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if address.octets()[0] == 10)
    }

    #[test]
    fn forwarded_addresses_prepended_by_the_client_are_ignored() {
        let headers = [("X-Forwarded-For", "127.0.0.1, 192.0.2.7, 10.0.0.9")];
        assert_eq!(reported(&headers).as_deref(), Some("192.0.2.7"));
        let headers = [
            ("Forwarded", "for=127.0.0.1"),
            ("Forwarded", "for=192.0.2.7;proto=https, For=\"10.0.0.9:4711\""),
        ];
        assert_eq!(reported(&headers).as_deref(), Some("192.0.2.7"));
    }

    #[test]
    fn every_way_to_write_an_address_is_understood() {
        for (value, address) in [
            ("for=192.0.2.60", "192.0.2.60"),
            ("by=10.0.0.1;for=192.0.2.60:80;host=\"a;for=1.1.1.1,b\"", "192.0.2.60"),
            ("FOR=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=\"[2001:db8::1]\"", "2001:db8::1"),
            ("for=\"[2001:db8::1]:_port\"", "2001:db8::1"),
            ("for=\"\\192.0.2.1\"", "192.0.2.1"),
        ] {
            assert_eq!(reported(&[("Forwarded", value)]).as_deref(), Some(address), "{value}");
        }
        assert_eq!(reported(&[("X-Real-IP", "2001:db8::1")]).as_deref(), Some("2001:db8::1"));
        assert_eq!(reported(&[("X-Forwarded-For", "::ffff:192.0.2.1")]).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn conflicting_headers_are_not_trusted() {
        let validated = |headers: &str| {
            let request = format!("GET / HTTP/1.1\r\n{headers}\r\n");
            let (head, _) = Head::parse(request.as_bytes()).unwrap().unwrap();
            client(&head, is_proxy).map(|address| address.map(|address| address.to_string()))
        };
        // A header forged by the client, and one written by its proxy.
        for made_up in ["Forwarded: for=127.0.0.1\r\n", "X-Real-IP: 127.0.0.1\r\n"] {
            assert_eq!(
                validated(&format!("{made_up}X-Forwarded-For: 192.0.2.7\r\n")),
                Err(ConflictingHeaders)
            );
        }
        let real = Ok(Some("192.0.2.7".to_owned()));
        for rest in ["X-Real-IP: 192.0.2.7\r\n", "X-Real-IP: 10.0.0.2\r\n", "Forwarded: for=unknown\r\n"] {
            assert_eq!(validated(&format!("X-Forwarded-For: 192.0.2.7, 10.0.0.2\r\n{rest}")), real);
        }
    }

    #[test]
    fn unknown_or_malformed_forwarded_values_report_no_address() {
        for value in
            ["for=unknown", "for=_hidden", "for=", "proto=https", "", "\"", "for=1.2.3", "for=\"[::1"]
        {
            assert_eq!(reported(&[("Forwarded", value)]), None, "{value}");
        }
    }

    #[test]
    fn behind_trusted_proxies_only_the_first_of_them_is_the_client() {
        let headers = [("X-Forwarded-For", "10.0.0.3, 10.0.0.2")];
        assert_eq!(reported(&headers).as_deref(), Some("10.0.0.3"));
    }
}
