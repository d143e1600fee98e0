//! The fuzz targets on a small corpus and some thousand mutations of it, without nightly and the same every time.

use crate::bodies;

/// Per target; enough to reach every branch of the bodies, within seconds in a debug build.
const MUTATIONS: usize = 3000;

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
        let corpus = corpus();
        corpus.iter().for_each(|seed| body(seed));
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        for _ in 0..MUTATIONS {
            let mut input = corpus[random.below(corpus.len())].clone();
            for _ in 0..=random.below(4) {
                mutate(&mut input, &mut random);
            }
            body(&input);
        }
    }
}

fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(5) {
        0 => input.truncate(at),
        1 => input.insert(at, random.octet()),
        2 if at < input.len() => drop(input.remove(at)),
        3 if at < input.len() => input[at] ^= 1 << random.below(8),
        _ if at < input.len() => {
            input[at] =
                [0, b'\n', b'\r', b':', b'\\', b'@', b'/', b'1', 0xff, random.octet()][random.below(10)];
        }
        _ => {}
    }
}

/// Xorshift: the same sequence every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn octet(&mut self) -> u8 {
        (self.next() >> 32) as u8
    }
}
