//! The body of the fuzz target on headers, whole, cut and with bytes changed, so that it is also checked
//! without nightly.

#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "public for the fuzz target")]
mod targets;

use proptest::prelude::*;

const HEADERS: [&[u8]; 6] = [
    b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nAMQP",
    b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 65535 0\r\n",
    b"PROXY UNKNOWN whatever follows\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x7f\x00\x00\x01\x7f\x00\x00\x01\xc3\x50\x16\x28AMQP",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x03abc",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\x00\x24\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x01\0\x02",
];

proptest! {
    #[test]
    fn headers_that_were_tampered_with_break_nothing(
        header in prop::sample::select(HEADERS.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut bytes = header.to_vec();
        for (at, byte) in changes {
            *at.get_mut(&mut bytes[..]) = byte;
        }
        targets::header(&bytes);
        targets::header(&bytes[..length.index(bytes.len() + 1)]);
    }

    #[test]
    fn any_bytes_break_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        targets::header(&bytes);
    }
}
