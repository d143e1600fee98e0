//! The proof that the server understood the request (RFC 6455, 4.2.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Sec-WebSocket-Accept for a Sec-WebSocket-Key.
pub(super) fn accept(key: &str) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

/// Sixteen bytes as a Sec-WebSocket-Key.
pub(super) fn encode(nonce: [u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// Whether `key` is base64 of sixteen bytes.
pub(super) fn is_valid(key: &str) -> bool {
    STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_example_gives_the_rfcs_answer() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(encode(*b"the sample nonce"), "dGhlIHNhbXBsZSBub25jZQ==");
    }
}
