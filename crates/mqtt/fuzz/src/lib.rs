//! The properties that the fuzz targets check. `tests/codec/fuzz_corpus.rs` includes this file and runs the
//! same bodies without nightly.
//!
//! Run one for real with `cargo +nightly fuzz run packets` in `crates/mqtt`.

use std::time::Instant;

use mqtt::server::{MqttEvent, MqttSettings, ServerConnection};
use mqtt::session::{Session, Subscription};
use mqtt::topic::{self, TopicFilter};
use mqtt::{MqttFault, MqttVersion, Packet, PacketDecoder, QoS, ReasonCode};

/// A target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets, by name.
pub const TARGETS: [Target; 4] =
    [("packets", packets), ("connection", connection), ("session", session), ("topics", topics)];

/// Packets and faults do not depend on how a stream was cut into reads, and a decoded packet can be encoded
/// and decoded again to the same packet.
pub fn packets(input: &[u8]) {
    for version in [MqttVersion::V31, MqttVersion::V311, MqttVersion::V5] {
        let whole = reported(version, input, input.len().max(1));
        for step in [1, 7, 64] {
            assert_eq!(reported(version, input, step), whole, "{step} bytes at a time");
        }
    }
}

/// The packets of a stream, encoded again, and the fault that ended it.
fn reported(version: MqttVersion, input: &[u8], step: usize) -> (Vec<Vec<u8>>, Option<MqttFault>) {
    let mut decoder = PacketDecoder::new(version, 20_000);
    let mut heard = Vec::new();
    let (mut start, mut end) = (0, 0);
    loop {
        match decoder.decode(&input[start..end]) {
            Ok(step) => {
                start += step.taken;
                if let Some(packet) = step.packet {
                    heard.push(round_trip(version, &packet));
                    continue;
                }
            }
            Err(fault) => return (heard, Some(fault)),
        }
        if end == input.len() {
            return (heard, None);
        }
        end = (end + step).min(input.len());
    }
}

fn round_trip(version: MqttVersion, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    let mut decoder = PacketDecoder::new(version, u32::MAX);
    let step = decoder.decode(&bytes).expect("what is encoded can be decoded");
    assert_eq!((step.taken, step.packet.as_ref()), (bytes.len(), Some(packet)));
    bytes
}

/// The server's end answers any input within the protocol, stays within the window, and ends once.
pub fn connection(input: &[u8]) {
    let settings = MqttSettings { receive_maximum: 3, in_flight: 3, ..MqttSettings::default() };
    let (mut connection, mut out, now) = (ServerConnection::new(settings), Vec::new(), Instant::now());
    let (mut at, mut ended, mut tag) = (0, false, 0);
    loop {
        let step = connection.handle_input(&input[at..], now, &mut out);
        at += step.taken;
        let taken = step.taken;
        let Some(event) = step.event else {
            if taken == 0 || at == input.len() {
                break;
            }
            continue;
        };
        assert!(!ended, "something came behind the end");
        let version = answer(event).apply(&mut connection, now, &mut out, &mut ended);
        if connection.is_connected() && connection.free_window() > 0 {
            tag += 1;
            let message = mqtt::session::OutgoingMessage {
                topic: "some/topic".into(),
                qos: if tag % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce },
                retain: false,
                redelivered: false,
                properties: mqtt::PropertyList::new(),
                payload: copy(&input[..at.min(5)]),
            };
            let _ = connection.deliver(message, tag, &mut out);
        }
        assert!(connection.session().in_flight().count() <= 3);
        check_output(version, &out);
    }
    ended |= connection.handle_eof().is_some();
    assert!(ended && connection.handle_eof().is_none());
    session_round_trip(&connection.take_session());
}

fn copy(bytes: &[u8]) -> bytes::Bytes {
    mqtt::packet::Payload::new(bytes).to_bytes()
}

/// The server's reaction to an event, which no longer borrows from the event.
enum Answer {
    Accept,
    Accepted(u16),
    Complete(u16),
    Release(u16),
    Subscribed(u16, Vec<(String, Subscription)>),
    Unsubscribed(u16, Vec<String>),
    Ended,
    Nothing,
}

fn answer(event: MqttEvent<'_>) -> Answer {
    match event {
        MqttEvent::Connect(_) => Answer::Accept,
        MqttEvent::Publish(publish) => {
            assert!(topic::check_name(publish.topic).is_ok(), "aliases are resolved");
            Answer::Accepted(publish.packet_id)
        }
        MqttEvent::Released { packet_id } => Answer::Complete(packet_id),
        MqttEvent::Delivered { packet_id, to_be_released: true, .. } => Answer::Release(packet_id),
        MqttEvent::Subscribe(event) => {
            let identifier = event.identifier();
            let lines = event.requests().map(|line| {
                let is_shared = line.filter.is_ok_and(|filter| filter.group().is_some());
                let subscription = Subscription { options: line.options, identifier, is_shared };
                (line.text.to_owned(), subscription)
            });
            Answer::Subscribed(event.packet_id(), lines.collect())
        }
        MqttEvent::Unsubscribe { packet_id, filters } => {
            Answer::Unsubscribed(packet_id, filters.iter().map(str::to_owned).collect())
        }
        MqttEvent::Ended(_) => Answer::Ended,
        MqttEvent::Delivered { .. } | MqttEvent::Completed { .. } => Answer::Nothing,
    }
}

impl Answer {
    fn apply(
        self,
        connection: &mut ServerConnection,
        now: Instant,
        out: &mut Vec<u8>,
        ended: &mut bool,
    ) -> MqttVersion {
        match self {
            Self::Accept => drop(connection.accept(None, None, now, out)),
            Self::Accepted(packet_id) => connection.accepted(packet_id, packet_id % 2 == 0, out),
            Self::Complete(packet_id) => connection.complete(packet_id, out),
            Self::Release(packet_id) => connection.release(packet_id, out),
            Self::Subscribed(packet_id, lines) => {
                let reasons = vec![ReasonCode::Success; lines.len()];
                for (text, subscription) in lines {
                    connection.session_mut().subscribe(&text, subscription);
                }
                connection.subscribed(packet_id, reasons, out);
            }
            Self::Unsubscribed(packet_id, filters) => {
                let reasons = vec![ReasonCode::Success; filters.len()];
                for filter in filters {
                    connection.session_mut().unsubscribe(&filter);
                }
                connection.unsubscribed(packet_id, reasons, out);
            }
            Self::Ended => *ended = true,
            Self::Nothing => {}
        }
        connection.version()
    }
}

fn check_output(version: MqttVersion, out: &[u8]) {
    let (mut decoder, mut at) = (PacketDecoder::new(version, u32::MAX), 0);
    while at < out.len() {
        let step = decoder.decode(&out[at..]).expect("the server speaks the protocol");
        assert!(step.packet.is_some(), "a packet is cut off");
        at += step.taken;
    }
}

/// Decoding a session from any bytes does not panic, and a session that could be decoded is encoded to the same bytes.
pub fn session(input: &[u8]) {
    if let Ok(session) = Session::decode(input) {
        session_round_trip(&session);
    }
}

fn session_round_trip(session: &Session) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    session.encode(&mut first);
    let back = Session::decode(&first).expect("it was a session");
    back.encode(&mut second);
    assert_eq!(first, second);
}

/// A filter matches itself where it has no wildcard, and everything matches `#`.
pub fn topics(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (filter, name) = text.split_once(' ').unwrap_or((&text, "a/b"));
    if topic::check_name(name).is_ok() {
        assert_eq!(topic::routing_key_to_topic(&topic::topic_to_routing_key(name)), name);
        let all = TopicFilter::parse("#", true).expect("it is valid");
        assert_eq!(all.matches(name), !name.starts_with('$'));
    }
    if let Ok(filter) = TopicFilter::parse(filter, true) {
        let matched = filter.matches(name);
        if !filter.has_wildcard() {
            assert_eq!(matched, filter.filter() == name);
        }
    }
}
