//! The fuzz target on a small corpus and a few thousand mutations of it, without nightly and deterministically.

/// The body of the fuzz target.
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "public in the crate of the fuzz targets")]
mod bodies;

use spool::SpooledMessage;

fn record(exchange: &str, body: &[u8]) -> Vec<u8> {
    let message = SpooledMessage {
        vhost: "/",
        user: "guest",
        exchange,
        routing_key: "key",
        accepted_at: 1_700_000_000_000,
        id: [7; 16],
        properties: &[0x10, 0, 2],
        body,
    };
    let mut out = Vec::new();
    message.encode(&mut out).unwrap();
    out
}

#[test]
fn the_envelope_target_holds() {
    let corpus = [record("", b""), record("orders", b"a body"), Vec::new()];
    mutations::check_mutations(&corpus, 20_000, &[0, 1, 2, 0xff], bodies::envelope);
}
