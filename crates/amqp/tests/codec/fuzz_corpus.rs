//! The fuzz targets on a small corpus and some thousand deterministic mutations of it, without nightly.

use amqp::content::write_content;
use amqp::frame::{PROTOCOL_HEADER, write_frame};
use amqp::method::{basic, channel, connection};
use amqp::properties::NO_PROPERTIES;
use amqp::{FrameKind, Method, frame};

use crate::bodies;
use crate::common::{golden_lines, golden_methods, unhex};

/// Per target; enough to reach every branch of the bodies, within a second in a debug build.
const MUTATIONS: usize = 3000;

/// Bytes with a special meaning.
const TOKENS: [u8; 7] = [0, 1, 4, 0x7f, 0x80, 0xce, 0xff];

/// The seeds of a target's mutations: bytes of other implementations, and whole conversations.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let hex = |kind| golden_lines(kind).map(|fields| unhex(&fields[0])).collect::<Vec<_>>();
    match target {
        "method" => golden_methods().map(|method| method.payload).collect(),
        "table" => hex("table"),
        "properties" => hex("properties"),
        "frame_stream" => vec![hex("frame").concat()],
        "server_handshake" => vec![
            conversation(&["connection.start-ok", "connection.close-ok"]),
            [conversation(&[]), methods(&[login(b"\0guest!\0p"), TUNE_OK, OPEN])].concat(),
            [conversation(&[]), methods(&[login(b"\0guest\0p"), SECURE_OK])].concat(),
        ],
        "client_handshake" => vec![
            methods(&[START, TUNE, OPEN_OK]),
            methods(&[
                START,
                Method::ConnectionSecure(connection::Secure { challenge: b"?" }),
                TUNE,
                OPEN_OK,
            ]),
            methods(&[START, Method::ConnectionClose(connection::Close::default())]),
        ],
        _ => vec![messages()],
    }
}

#[test]
fn the_targets_hold_on_the_corpus_and_its_mutations() {
    for (name, body) in bodies::TARGETS {
        mutations::check_mutations(&corpus(name), MUTATIONS, &TOKENS, body);
    }
}

#[test]
fn the_corpus_reaches_the_end_of_every_conversation() {
    // Otherwise the mutations would start from conversations that fail at their first frame.
    for (target, wanted) in [("server_handshake", "Open("), ("client_handshake", "Opened(")] {
        let seeds = corpus(target);
        let reached =
            |seed: &Vec<u8>| bodies::events(target, seed).iter().any(|event| event.starts_with(wanted));
        assert!(seeds.iter().any(reached), "{target}");
    }
}

const START: Method<'static> = Method::ConnectionStart(connection::Start {
    version_major: 0,
    version_minor: 9,
    server_properties: amqp::RawTable::EMPTY,
    mechanisms: b"AMQPLAIN PLAIN",
    locales: b"en_US",
});
const TUNE: Method<'static> =
    Method::ConnectionTune(connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 });
const OPEN_OK: Method<'static> = Method::ConnectionOpenOk(connection::OpenOk { reserved_1: "" });
const TUNE_OK: Method<'static> =
    Method::ConnectionTuneOk(connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 60 });
const OPEN: Method<'static> =
    Method::ConnectionOpen(connection::Open { virtual_host: "/", reserved_1: "", reserved_2: false });
const SECURE_OK: Method<'static> = Method::ConnectionSecureOk(connection::SecureOk { response: b"!" });

fn login(response: &[u8]) -> Method<'_> {
    connection::StartOk { mechanism: "PLAIN", response, ..Default::default() }.into()
}

fn methods(methods: &[Method<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    methods.iter().for_each(|method| frame::write_method(&mut out, 0, *method));
    out
}

/// The protocol header and golden methods.
fn conversation(names: &[&str]) -> Vec<u8> {
    let mut out = PROTOCOL_HEADER.to_vec();
    for method in golden_methods().filter(|method| names.contains(&method.name.as_str())) {
        write_frame(&mut out, FrameKind::Method, 0, |out| out.extend(method.payload));
    }
    out
}

fn messages() -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_method(&mut out, 2, channel::Open { reserved_1: "" });
    for (channel, length) in [(1, 0), (1, 5), (2, 300), (1, 5000), (2, 10_001), (2, 1)] {
        write_content(&mut out, channel, basic::Publish::default(), NO_PROPERTIES, &vec![7; length], 4096);
    }
    frame::write_method(&mut out, 1, channel::Close::default());
    out
}
