//! The fuzz targets on a small corpus and a few thousand mutations of it, without nightly and deterministically.

use mqtt::MqttVersion;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::bodies;
use crate::common::any_packet;

/// Mutations per target; enough to reach every branch of the bodies, within seconds in a debug build.
const MUTATIONS: usize = 2000;

/// Bytes that have a meaning in packets.
const TOKENS: [u8; 9] = [0, 1, 2, 0x32, 0x34, 0x62, 0x7f, 0x80, b'#'];

/// The inputs that a target's mutations start from.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    match target {
        "session" => vec![vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], session()],
        "topics" => {
            ["$share/g/a/+/# a/b/c", "# $SYS/x", "a//b a//b"].map(|text| text.as_bytes().to_vec()).to_vec()
        }
        _ => conversations(),
    }
}

/// A subscription, a message of QoS 1, one that is released, and an identifier that was received.
fn session() -> Vec<u8> {
    let mut bytes = vec![1, 0, 0, 0, 1, 0, 0, 0, 3];
    bytes.extend(b"a/#\x2d\0\0\0\x07\0\0\0\x02");
    bytes.extend([0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 0, 0, 0, 1]);
    bytes.extend(b"t\0\0\0\0\0\0\0\x01x");
    bytes.extend([0, 2, 0, 0, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 1, 0, 5]);
    bytes
}

/// A CONNECT of each version, followed by packets that a client may send.
fn conversations() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    [MqttVersion::V31, MqttVersion::V311, MqttVersion::V5]
        .into_iter()
        .flat_map(|version| {
            let mut connect = match version {
                MqttVersion::V31 => b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01c".to_vec(),
                MqttVersion::V311 => b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c".to_vec(),
                MqttVersion::V5 => b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c".to_vec(),
            };
            // A message of QoS 2 and its release, and acknowledgements of the server's deliveries.
            let empty: &[u8] = if version.is_5() { &[0] } else { &[] };
            let publish = [&[0x34, 6 + empty.len() as u8, 0, 1, b'a', 0, 1][..], empty, b"x"].concat();
            connect.extend(
                [&publish[..], &publish, &[0x62, 2, 0, 1], &[0x40, 2, 0, 2], &[0x50, 2, 0, 1]].concat(),
            );
            connect.extend([0x70, 2, 0, 1]);
            let mut sample = || any_packet(version).new_tree(&mut runner).expect("it can be made").current();
            let longer: Vec<_> =
                (0..12).map(|_| [&connect[..], &sample(), &sample(), &sample()].concat()).collect();
            [vec![connect.clone()], longer].concat()
        })
        .collect()
}

#[test]
fn the_targets_hold_on_the_corpus_and_its_mutations() {
    for (name, body) in bodies::TARGETS {
        mutations::check_mutations(&corpus(name), MUTATIONS, &TOKENS, body);
    }
}

#[test]
fn the_corpus_is_understood() {
    assert!(mqtt::session::Session::decode(&session()).is_ok());
}
