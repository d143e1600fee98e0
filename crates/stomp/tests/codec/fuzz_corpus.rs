//! The fuzz targets on a small corpus and a few thousand mutations of it, without nightly and deterministically.

use crate::bodies;

/// Mutations per target; enough to reach every branch of the bodies, within seconds in a debug build.
const MUTATIONS: usize = 3000;

/// Bytes that have a meaning in frames.
const TOKENS: [u8; 9] = [0, b'\n', b'\r', b':', b'\\', b'@', b'/', b'1', 0xff];

/// Conversations of clients of all versions.
fn corpus() -> Vec<Vec<u8>> {
    ["1.0", "1.1", "1.2"]
        .map(|version| {
            let connect =
                format!("CONNECT\naccept-version:{version}\nheart-beat:1000,0\nlogin:a\npasscode:b\n\n\0\n");
            let id = if version == "1.2" { "id" } else { "message-id" };
            let ack = format!("ACK\n{id}:T_1@@session-fuzz@@1\nreceipt:r\\c1\ntransaction:t\n\n\0");
            [
                connect.as_str(),
                "SUBSCRIBE\r\nid:1\r\ndestination:/queue/a%2Fb\r\nack:client\r\n\r\n\0\r\n",
                "SUBSCRIBE\ndestination:/topic/a.*\n\n\0",
                "BEGIN\ntransaction:t\n\n\0",
                "SEND\ndestination:/exchange/e/k\ncontent-length:5\ntransaction:t\nreceipt:1\n\na\0b\nc\0",
                "SEND\ndestination:/temp-queue/x\n\nno length\0\n\n",
                &ack,
                "COMMIT\ntransaction:t\nreceipt:2\n\n\0",
                "UNSUBSCRIBE\nid:1\n\n\0",
                "DISCONNECT\nreceipt:3\n\n\0",
            ]
            .concat()
            .into_bytes()
        })
        .to_vec()
}

#[test]
fn the_targets_hold_on_the_corpus_and_its_mutations() {
    for (_, body) in bodies::TARGETS {
        mutations::check_mutations(&corpus(), MUTATIONS, &TOKENS, body);
    }
}
