//! The body of the fuzz target. `tests/fuzz_corpus.rs` includes this file and runs the same body without nightly.
//!
//! To fuzz, run `cargo +nightly fuzz run header` in `crates/proxy-protocol`.

use proxy_protocol::{AcceptedVersions, MAX_LENGTH, Parsed, ProxyHeader, ProxyVersion, parse, write};

/// Parsing a header does not depend on how reads split it, never asks for bytes beyond its end, and the
/// header survives encoding.
pub fn header(input: &[u8]) {
    let whole = parse(input, AcceptedVersions::Any);
    let mut taken = 0;
    let in_pieces = loop {
        match parse(&input[..taken], AcceptedVersions::Any) {
            Ok(Parsed::Incomplete(more)) => {
                assert!(more > 0 && taken + more <= MAX_LENGTH, "asks for {more} behind {taken}");
                if taken + more > input.len() {
                    break None;
                }
                taken += more;
            }
            other => break Some(other),
        }
    };
    if let Some(Ok(Parsed::Complete { length, .. })) = in_pieces {
        assert_eq!(length, taken, "took more than the header");
    }
    let Ok(Parsed::Complete { header, .. }) = whole else { return };
    assert_eq!(in_pieces, Some(whole));
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let mut bytes = Vec::new();
        write(version, &header, &mut bytes);
        let length = bytes.len();
        let again = parse(&bytes, AcceptedVersions::Only(version));
        let Ok(Parsed::Complete { header: again, length: read }) = again else { panic!("{again:?}") };
        assert_eq!((canonical(again), read), (canonical(header), length));
    }
}

/// Addresses may have been written in the other family's form.
fn canonical(mut header: ProxyHeader) -> ProxyHeader {
    if let ProxyHeader::Proxied { source, destination } = &mut header {
        for address in [source, destination] {
            address.set_ip(address.ip().to_canonical());
            // Scope and flow are not transported.
            *address = std::net::SocketAddr::new(address.ip(), address.port());
        }
    }
    header
}
