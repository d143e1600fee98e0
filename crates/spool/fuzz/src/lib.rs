//! The property that the fuzz target checks. `tests/fuzz_corpus.rs` includes this file and runs the same body without
//! nightly.
//!
//! Run it for real with `cargo +nightly fuzz run envelope` in `crates/spool`.

use bytes::Bytes;
use spool::Envelope;

/// A record that decodes is written as the same bytes again.
pub fn envelope(input: &[u8]) {
    let Ok(envelope) = Envelope::decode(Bytes::copy_from_slice(input)) else { return };
    let mut encoded = Vec::new();
    assert_eq!(envelope.message().encode(&mut encoded), Ok(()));
    assert_eq!(encoded, input);
}
