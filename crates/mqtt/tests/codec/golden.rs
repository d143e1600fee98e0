//! Packets as the specifications and other implementations write them.

use mqtt::packet::{AckKind, RetainHandling};
use mqtt::{MqttVersion, Packet, PacketDecoder, QoS, ReasonCode};

/// Made by `fixtures/make_golden.py` with paho-mqtt.
const FIXTURES: &str = include_str!("fixtures/golden.txt");

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |digit: u8| char::from(digit).to_digit(16).expect("it is a digit") as u8;
    digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

fn check(version: MqttVersion, bytes: &[u8], check: impl FnOnce(&Packet<'_>)) {
    let mut decoder = PacketDecoder::new(version, u32::MAX);
    let step = decoder.decode(bytes).unwrap_or_else(|fault| panic!("{fault}: {bytes:x?}"));
    assert_eq!(step.taken, bytes.len());
    let packet = step.packet.expect("it is whole");
    check(&packet);
    let mut again = Vec::new();
    packet.encode(version, &mut again);
    assert_eq!(again, bytes, "{packet:?}");
}

#[test]
fn the_connect_of_the_specification() {
    // MQTT 5.0, figure 3-6, with a client identifier, a will, a user and a password.
    let bytes = unhex(
        "10 33 0004 4d515454 05 ce 000a 05 11 0000000a 0002 6331 05 18 00000007 0004 77696c6c 0003 627965 0004 75736572 \
         0006 736563726574",
    );
    check(MqttVersion::V5, &bytes, |packet| {
        let Packet::Connect(connect) = packet else { panic!("{packet:?}") };
        assert_eq!((connect.version, connect.clean_start, connect.keep_alive), (MqttVersion::V5, true, 10));
        assert_eq!(connect.properties.session_expiry_interval(), Some(10));
        let will = connect.will.expect("it has one");
        assert_eq!(
            (will.qos, will.retain, will.topic, will.payload),
            (QoS::AtLeastOnce, false, "will", &b"bye"[..])
        );
        assert_eq!(will.properties.will_delay_interval(), Some(7));
        assert_eq!((connect.user_name, connect.password), (Some("user"), Some(&b"secret"[..])));
        assert!(
            !format!("{packet:?}").contains("secret") && !format!("{packet:?}").contains("115"),
            "it is not printed"
        );
    });
}

#[test]
fn the_subscribe_of_the_specification() {
    // Section 3.8.3: a/b at QoS 1, c/d at QoS 2, with packet identifier 10.
    check(MqttVersion::V311, &unhex("82 0e 000a 0003 612f62 01 0003 632f64 02"), |packet| {
        let Packet::Subscribe(subscribe) = packet else { panic!("{packet:?}") };
        let lines: Vec<_> = subscribe.requests.iter().map(|line| (line.filter, line.options.qos)).collect();
        assert_eq!(lines, [("a/b", QoS::AtLeastOnce), ("c/d", QoS::ExactlyOnce)]);
    });
    check(MqttVersion::V5, &unhex("82 0c 000a 03 0b 8101 0003 612f62 2d"), |packet| {
        let Packet::Subscribe(subscribe) = packet else { panic!("{packet:?}") };
        assert_eq!(subscribe.properties.subscription_identifier(), Some(129));
        let options = subscribe.requests.iter().next().expect("there is one").options;
        assert_eq!(
            (options.qos, options.no_local, options.retain_as_published),
            (QoS::AtLeastOnce, true, true)
        );
        assert_eq!(options.retain_handling, RetainHandling::Never);
    });
}

#[test]
fn acknowledgements_in_all_their_lengths() {
    let read = |version, bytes: &str| {
        let bytes = unhex(bytes);
        let mut decoder = PacketDecoder::new(version, u32::MAX);
        match decoder.decode(&bytes).expect("it is valid").packet {
            Some(Packet::Ack(ack)) => {
                (ack.kind, ack.packet_id, ack.reason, ack.properties.reason_string().is_some())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(MqttVersion::V311, "40 02 0001"), (AckKind::PubAck, 1, ReasonCode::Success, false));
    assert_eq!(
        read(MqttVersion::V5, "50 03 0001 10"),
        (AckKind::PubRec, 1, ReasonCode::NoMatchingSubscribers, false)
    );
    assert_eq!(read(MqttVersion::V5, "62 04 0001 00 00"), (AckKind::PubRel, 1, ReasonCode::Success, false));
    assert_eq!(
        read(MqttVersion::V5, "70 08 0001 92 04 1f 0001 78"),
        (AckKind::PubComp, 1, ReasonCode::PacketIdentifierNotFound, true)
    );
}

#[test]
fn packets_that_the_specification_calls_malformed_are_refused() {
    let cases = [
        ("QoS 3", "36 05 0001 61 0001"),
        ("DUP at QoS 0", "38 03 0001 61"),
        ("packet identifier 0", "32 05 0001 61 0000"),
        ("flags of SUBSCRIBE", "80 08 000a 0003 612f62 01"),
        ("flags of SUBSCRIBE in 3.1 only", "8a 08 000a 0003 612f62 01"),
        ("flags of PINGREQ", "c1 00"),
        ("a PINGREQ with a body", "c0 01 00"),
        ("SUBSCRIBE of nothing", "82 02 000a"),
        ("reserved bits of options", "82 08 000a 0003 612f62 81"),
        ("QoS 3 in options", "82 08 000a 0003 612f62 03"),
        ("wildcard in a topic name", "30 03 0001 23"),
        ("empty topic name", "30 02 0000"),
        ("will flags without a will", "10 0d 0004 4d515454 04 0a 0000 0001 63"),
        ("password without a user", "10 10 0004 4d515454 04 42 0000 0001 63 0001 78"),
        ("reserved flag of CONNECT", "10 0d 0004 4d515454 04 03 0000 0001 63"),
        ("bytes left over", "40 03 0001 00"),
        ("packet type 0", "00 00"),
        ("AUTH before 5.0", "f0 00"),
    ];
    for (name, bytes) in cases {
        let bytes = unhex(bytes);
        let mut decoder = PacketDecoder::new(MqttVersion::V311, u32::MAX);
        let reported = decoder.decode(&bytes);
        assert!(reported.is_err(), "{name}: {reported:?}");
    }
    let mut decoder = PacketDecoder::new(MqttVersion::V31, u32::MAX);
    assert!(decoder.decode(&unhex("8a 08 000a 0003 612f62 01")).is_ok(), "MQTT 3.1 has DUP there");
}

#[test]
fn packets_of_paho_mqtt_are_read_and_written_as_they_are() {
    let mut count = 0;
    for line in FIXTURES.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split(' ');
        let (Some(version), Some(kind), Some(bytes)) = (fields.next(), fields.next(), fields.next()) else {
            panic!("{line}")
        };
        let version = match version {
            "3" => MqttVersion::V31,
            "4" => MqttVersion::V311,
            _ => MqttVersion::V5,
        };
        check(version, &unhex(bytes), |packet| assert_eq!(format!("{:?}", packet.kind()), kind));
        count += 1;
    }
    assert!(count >= 30, "{count} packets");
}
