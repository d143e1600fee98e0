use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::packet::{
    Ack, AckKind, ConnAck, ConnectPacket, Disconnect, Filters, MqttVersion, Packet, Payload, PublishPacket,
    QoS, Requests, RetainHandling, Subscribe, SubscribeOptions, SubscribeRequest, Unsubscribe, Will,
};
use crate::properties::{PacketProperties, Property, PropertyList};
use crate::reason::ReasonCode;
use crate::session::{OutgoingMessage, Session, Subscription};
use crate::{MqttFault, PacketDecoder};

/// A connection, its output, and a clock.
struct Bench {
    connection: ServerConnection,
    out: Vec<u8>,
    now: Instant,
}

impl Bench {
    fn new(settings: MqttSettings) -> Self {
        Self { connection: ServerConnection::new(settings), out: Vec::new(), now: Instant::now() }
    }

    /// Passes a packet to the connection and describes the events it reports.
    fn say(&mut self, packet: &Packet<'_>) -> String {
        let mut bytes = Vec::new();
        packet.encode(self.connection.version(), &mut bytes);
        self.say_bytes(&bytes)
    }

    fn say_bytes(&mut self, bytes: &[u8]) -> String {
        let step = self.connection.handle_input(bytes, self.now, &mut self.out);
        assert_eq!(step.taken, bytes.len());
        match step.event {
            None => String::new(),
            Some(MqttEvent::Publish(publish)) => {
                format!("publish {} {}", publish.topic, String::from_utf8_lossy(&publish.payload))
            }
            Some(MqttEvent::Connect(connect)) => format!("connect {}", connect.client_id),
            Some(MqttEvent::Subscribe(event)) => {
                let lines = event.requests().map(|line| {
                    let verdict = line.filter.map_or_else(|code| code.text(), |_| "fine");
                    format!("{} {verdict} new={} retained={}", line.text, line.is_new, line.wants_retained)
                });
                lines.collect::<Vec<_>>().join(", ")
            }
            Some(event) => format!("{event:?}"),
        }
    }

    /// Describes the packets sent since the last call.
    fn heard(&mut self) -> Vec<String> {
        let bytes = std::mem::take(&mut self.out);
        let (mut at, mut heard) = (0, Vec::new());
        let mut decoder = PacketDecoder::new(self.connection.version(), u32::MAX);
        while at < bytes.len() {
            let step = decoder.decode(&bytes[at..]).expect("the server speaks the protocol");
            assert!(step.taken > 0, "a packet is cut off");
            at += step.taken;
            heard.extend(step.packet.map(|packet| describe(&packet)));
        }
        heard
    }

    fn connect(connect: ConnectPacket<'_>, settings: MqttSettings) -> Self {
        Self::resume(connect, settings, None)
    }

    fn resume(connect: ConnectPacket<'_>, settings: MqttSettings, earlier: Option<Session>) -> Self {
        let mut bench = Self::new(settings);
        let client = connect.client_id.to_owned();
        assert_eq!(bench.say(&Packet::Connect(Box::new(connect))), format!("connect {client}"));
        assert!(bench.connection.accept(earlier, None, bench.now, &mut bench.out).is_empty());
        bench
    }
}

fn describe(packet: &Packet<'_>) -> String {
    match packet {
        Packet::ConnAck(ConnAck { session_present, reason, .. }) => {
            format!("connack {reason} {session_present}")
        }
        Packet::Publish(publish) => format!(
            "publish {} {} {}{}",
            publish.packet_id,
            publish.topic,
            String::from_utf8_lossy(&publish.payload),
            if publish.dup { " again" } else { "" }
        ),
        Packet::Ack(ack) => format!("{:?} {} {}", ack.kind, ack.packet_id, ack.reason.text()),
        Packet::Disconnect(packet) => format!("disconnect {}", packet.reason),
        Packet::SubAck(packet) => format!("suback {} {:?}", packet.packet_id, packet.reasons),
        Packet::UnsubAck(packet) => format!("unsuback {} {:?}", packet.packet_id, packet.reasons),
        other => format!("{:?}", other.kind()),
    }
}

fn v5() -> ConnectPacket<'static> {
    ConnectPacket::new(MqttVersion::V5, "c")
}

fn publish(qos: QoS, packet_id: u16, payload: &'static [u8]) -> Packet<'static> {
    let (dup, retain, topic, properties) = (false, false, "a/b", PacketProperties::NONE);
    Packet::Publish(PublishPacket {
        dup,
        qos,
        retain,
        topic,
        packet_id,
        properties,
        payload: Payload::new(payload),
    })
}

fn ack(kind: AckKind, packet_id: u16) -> Packet<'static> {
    Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success))
}

fn message(qos: QoS, payload: &'static [u8]) -> OutgoingMessage {
    let payload = Bytes::from_static(payload);
    OutgoingMessage {
        topic: "a/b".into(),
        qos,
        retain: false,
        redelivered: false,
        properties: PropertyList::new(),
        payload,
    }
}

#[test]
fn a_5_0_client_is_sent_the_limits_that_differ_from_the_defaults() {
    let settings = MqttSettings {
        keep_alive_maximum: 30,
        session_expiry_maximum: 60,
        maximum_qos: QoS::AtLeastOnce,
        retain: false,
        shared: false,
        ..MqttSettings::default()
    };
    let asked = PropertyList::new().with(Property::SessionExpiryInterval(u32::MAX));
    let mut bench = Bench::new(settings);
    let connect = ConnectPacket { keep_alive: 100, client_id: "", properties: asked.as_properties(), ..v5() };
    assert_eq!(bench.say(&Packet::Connect(Box::new(connect))), "connect ");
    bench.connection.accept(None, Some("given"), bench.now, &mut bench.out);
    let mut decoder = PacketDecoder::new(MqttVersion::V5, u32::MAX);
    let step = decoder.decode(&bench.out).expect("it is a packet");
    let Some(Packet::ConnAck(connack)) = step.packet else { panic!("{step:?}") };
    let reported = connack.properties;
    assert_eq!(reported.assigned_client_identifier(), Some("given"));
    assert_eq!((reported.server_keep_alive(), reported.session_expiry_interval()), (Some(30), Some(60)));
    assert_eq!((bench.connection.keep_alive(), bench.connection.session_expiry()), (30, 60));
    assert_eq!(
        (reported.receive_maximum(), reported.maximum_packet_size()),
        (Some(65_535), Some(16 * 1024 * 1024))
    );
    assert_eq!((reported.topic_alias_maximum(), reported.maximum_qos()), (Some(16), Some(true)));
    assert_eq!(
        (reported.retain_available(), reported.shared_subscription_available()),
        (Some(false), Some(false))
    );
    assert_eq!(reported.wildcard_subscription_available(), None, "it may assume that");
    let patience = bench.connection.next_deadline().map(|deadline| deadline - bench.now);
    assert_eq!(patience, Some(Duration::from_secs(45)));
}

#[test]
fn a_refused_client_gets_a_connack_of_its_version() {
    let refused = |version, reason| {
        let mut bench = Bench::new(MqttSettings::default());
        let connect = ConnectPacket::new(version, "c");
        bench.say(&Packet::Connect(Box::new(connect)));
        let end = bench.connection.refuse(reason, "no", &mut bench.out).expect("it ends");
        assert_eq!((end.cause, end.session_expiry), (Cause::Server(reason), 0));
        bench.heard()
    };
    let reason = ReasonCode::BadUserNameOrPassword;
    assert_eq!(refused(MqttVersion::V5, reason), ["connack 0x86 Bad User Name or Password false"]);
    assert_eq!(refused(MqttVersion::V311, reason), ["connack 0x86 Bad User Name or Password false"]);
    assert_eq!(refused(MqttVersion::V31, ReasonCode::ServerBusy), ["connack 0x88 Server unavailable false"]);
}

#[test]
fn a_connect_that_cannot_be_is_refused_by_the_connection_itself() {
    let answer = |bytes: &[u8]| {
        let mut bench = Bench::new(MqttSettings::default());
        let reported = bench.say_bytes(bytes);
        assert!(reported.starts_with("Ended"), "{reported}");
        std::mem::take(&mut bench.out)
    };
    // Level 6, and level 2 under the old name.
    assert_eq!(
        answer(b"\x10\x0d\0\x04MQTT\x06\x02\0\0\0\0\0")[..4],
        [0x20, answer(b"\x10\x0d\0\x04MQTT\x06\x02\0\0\0\0\0").len() as u8 - 2, 0, 0x84]
    );
    assert_eq!(answer(b"\x10\x0e\0\x06MQIsdp\x02\x02\0\0\0\0"), [0x20, 2, 0, 1]);
    // 3.1.1 without a client identifier but with a session.
    assert_eq!(answer(b"\x10\x0c\0\x04MQTT\x04\0\0\0\0\0"), [0x20, 2, 0, 2]);
    // 3.1.1 with the reserved flag, HTTP, and a PINGREQ get no answer.
    assert_eq!(answer(b"\x10\x0c\0\x04MQTT\x04\x03\0\0\0\0"), []);
    assert_eq!(answer(b"GET / HTTP/1.1\r\n\r\n"), []);
    assert_eq!(answer(&[0xc0, 0]), []);
}

#[test]
fn nothing_is_read_until_the_server_has_decided() {
    let mut bench = Bench::new(MqttSettings::default());
    bench.say(&Packet::Connect(Box::new(v5())));
    let step = bench.connection.handle_input(&[0xc0, 0], bench.now, &mut bench.out);
    assert!(step.taken == 0 && step.event.is_none());
    bench.connection.accept(None, None, bench.now, &mut bench.out);
    assert_eq!(bench.say_bytes(&[0xc0, 0]), "");
    assert_eq!(bench.heard(), ["connack 0x00 Success false", "PingResp"]);
}

#[test]
fn a_silent_client_is_given_up_after_one_and_a_half_of_its_interval() {
    let mut bench = Bench::connect(ConnectPacket { keep_alive: 10, ..v5() }, MqttSettings::default());
    let start = bench.now;
    bench.now += Duration::from_secs(9);
    bench.say_bytes(&[0xc0, 0]);
    assert_eq!(bench.connection.next_deadline(), Some(start + Duration::from_secs(24)));
    bench.heard();
    assert_eq!(bench.connection.handle_deadline(start + Duration::from_secs(23), &mut bench.out), None);
    let end = bench.connection.handle_deadline(start + Duration::from_secs(24), &mut bench.out);
    assert_eq!(end.map(|end| end.cause), Some(Cause::KeepAlive));
    assert_eq!(bench.heard(), ["disconnect 0x8D Keep Alive timeout"]);
    assert_eq!(bench.connection.next_deadline(), None);
    let bench = Bench::connect(v5(), MqttSettings::default());
    assert_eq!(bench.connection.next_deadline(), None, "0 turns it off");
}

#[test]
fn a_qos_2_message_is_reported_once_and_acknowledged_step_by_step() {
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    bench.heard();
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "publish a/b x");
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "", "it is being published");
    assert_eq!(bench.heard(), [""; 0]);
    bench.connection.accepted(7, true, &mut bench.out);
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "");
    assert_eq!(bench.heard(), ["PubRec 7 Success", "PubRec 7 Success"]);
    assert_eq!(bench.say(&ack(AckKind::PubRel, 7)), "Released { packet_id: 7 }");
    bench.connection.complete(7, &mut bench.out);
    assert_eq!(bench.say(&ack(AckKind::PubRel, 7)), "");
    assert_eq!(bench.heard(), ["PubComp 7 Success", "PubComp 7 Packet Identifier not found"]);
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"y")), "publish a/b y", "the identifier is free");
}

#[test]
fn a_qos_2_identifier_of_an_earlier_connection_is_reported_to_compare() {
    let mut earlier = Session::new();
    earlier.set_earlier([7, 8, 9]);
    let mut bench = Bench::resume(v5(), MqttSettings::default(), Some(earlier));
    bench.heard();
    assert_eq!(bench.connection.session().received().collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "publish a/b x");
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "", "it is being compared");
    bench.connection.accepted(7, true, &mut bench.out);
    assert_eq!(bench.say(&publish(QoS::ExactlyOnce, 7, b"x")), "", "it was accepted on this connection");
    assert_eq!(bench.heard(), ["PubRec 7 Success", "PubRec 7 Success"]);
    for packet_id in [7, 8] {
        assert_eq!(
            bench.say(&ack(AckKind::PubRel, packet_id)),
            format!("Released {{ packet_id: {packet_id} }}")
        );
        bench.connection.complete(packet_id, &mut bench.out);
    }
    assert_eq!(bench.heard(), ["PubComp 7 Success", "PubComp 8 Success"]);
    assert_eq!(bench.connection.session().received().collect::<Vec<_>>(), [9]);
}

#[test]
fn unrouted_and_refused_publishes_are_reported_to_5_0_clients() {
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    bench.heard();
    bench.say(&publish(QoS::AtLeastOnce, 1, b"x"));
    bench.connection.accepted(1, false, &mut bench.out);
    bench.say(&publish(QoS::ExactlyOnce, 2, b"x"));
    assert_eq!(bench.connection.refuse_publish(2, ReasonCode::NotAuthorized, "no", &mut bench.out), None);
    assert_eq!(bench.heard(), ["PubAck 1 No matching subscribers", "PubRec 2 Not authorized"]);
    assert_eq!(bench.connection.session().received().count(), 0);
    let mut bench = Bench::connect(ConnectPacket::new(MqttVersion::V311, "c"), MqttSettings::default());
    bench.say(&publish(QoS::AtLeastOnce, 1, b"x"));
    let end = bench.connection.refuse_publish(1, ReasonCode::NotAuthorized, "no", &mut bench.out);
    assert_eq!(end.map(|end| end.cause), Some(Cause::Server(ReasonCode::NotAuthorized)));
}

#[test]
fn a_message_that_a_full_queue_has_refused_is_answered_in_5_0_alone_and_is_a_new_one_if_it_comes_again() {
    let v311 = || ConnectPacket::new(MqttVersion::V311, "c");
    for (connect, expected) in
        [(v5(), &["PubAck 1 Quota exceeded", "PubRec 2 Quota exceeded"][..]), (v311(), &[])]
    {
        let mut bench = Bench::connect(connect, MqttSettings::default());
        bench.heard();
        for (qos, packet_id) in [(QoS::AtLeastOnce, 1), (QoS::ExactlyOnce, 2)] {
            bench.say(&publish(qos, packet_id, b"x"));
            bench.connection.refuse_for_full_queue(packet_id, "", &mut bench.out);
        }
        assert_eq!(bench.heard(), expected);
        assert!(bench.connection.is_connected());
        for (qos, packet_id) in [(QoS::AtLeastOnce, 1), (QoS::ExactlyOnce, 2)] {
            assert_eq!(bench.say(&publish(qos, packet_id, b"x")), "publish a/b x");
            bench.connection.accepted(packet_id, true, &mut bench.out);
        }
        assert_eq!(bench.heard(), ["PubAck 1 Success", "PubRec 2 Success"]);
    }
}

#[test]
fn more_than_receive_maximum_ends_the_connection() {
    let mut bench = Bench::connect(v5(), MqttSettings { receive_maximum: 2, ..MqttSettings::default() });
    bench.heard();
    bench.say(&publish(QoS::AtLeastOnce, 1, b"x"));
    bench.say(&publish(QoS::ExactlyOnce, 2, b"x"));
    assert_eq!(bench.say(&publish(QoS::AtMostOnce, 0, b"free")), "publish a/b free");
    assert!(bench.say(&publish(QoS::AtLeastOnce, 3, b"x")).contains("ReceiveMaximumExceeded"));
    assert_eq!(bench.heard(), ["disconnect 0x93 Receive Maximum exceeded"]);
}

#[test]
fn deliveries_stop_at_the_clients_window_and_go_on_behind_its_acks() {
    let asked = PropertyList::new().with(Property::ReceiveMaximum(2));
    let mut bench =
        Bench::connect(ConnectPacket { properties: asked.as_properties(), ..v5() }, MqttSettings::default());
    bench.heard();
    assert_eq!(bench.connection.free_window(), 2);
    assert_eq!(bench.connection.deliver(message(QoS::AtLeastOnce, b"x"), 70, &mut bench.out), Ok(Some(1)));
    assert_eq!(bench.connection.deliver(message(QoS::ExactlyOnce, b"y"), 71, &mut bench.out), Ok(Some(2)));
    let full = bench.connection.deliver(message(QoS::AtLeastOnce, b"z"), 72, &mut bench.out);
    assert_eq!(full, Err(Undeliverable::NoCapacity));
    assert_eq!(bench.connection.deliver(message(QoS::AtMostOnce, b"q"), 0, &mut bench.out), Ok(None));
    assert_eq!(bench.connection.delivered(), 3, "one had no room");
    assert_eq!(bench.say(&ack(AckKind::PubComp, 2)), "", "it was not released");
    assert!(bench.say(&ack(AckKind::PubAck, 1)).starts_with("Delivered { tag: 70"));
    assert_eq!(bench.connection.free_window(), 1);
    assert!(bench.say(&ack(AckKind::PubRec, 2)).ends_with("to_be_released: true }"));
    bench.connection.release(2, &mut bench.out);
    assert_eq!(bench.connection.free_window(), 1, "it takes room until PUBCOMP");
    assert_eq!(bench.say(&ack(AckKind::PubComp, 2)), "Completed { tag: 71, packet_id: 2 }");
    assert_eq!(bench.connection.free_window(), 2);
    assert_eq!(bench.say(&ack(AckKind::PubRec, 9)), "");
    assert_eq!(
        bench.heard(),
        [
            "publish 1 a/b x",
            "publish 2 a/b y",
            "publish 0 a/b q",
            "PubRel 2 Success",
            "PubRel 9 Packet Identifier not found"
        ]
    );
}

#[test]
fn a_kept_session_goes_on_where_it_was_within_the_new_window() {
    let mut bench = Bench::connect(ConnectPacket { clean_start: false, ..v5() }, MqttSettings::default());
    for (tag, qos) in [(70, QoS::AtLeastOnce), (71, QoS::ExactlyOnce), (72, QoS::AtLeastOnce)] {
        bench.connection.deliver(message(qos, b"x"), tag, &mut bench.out).expect("there is room");
    }
    bench.say(&ack(AckKind::PubRec, 2));
    bench.connection.release(2, &mut bench.out);
    assert!(bench.connection.handle_eof().is_some() && bench.connection.handle_eof().is_none());
    let earlier = bench.connection.take_session();

    let asked = PropertyList::new().with(Property::ReceiveMaximum(2));
    let connect = ConnectPacket { clean_start: false, properties: asked.as_properties(), ..v5() };
    let mut bench = Bench::resume(connect, MqttSettings::default(), Some(earlier));
    assert_eq!(
        bench.heard(),
        ["connack 0x00 Success true", "publish 1 a/b x again", "PubRel 2 Success"],
        "in their order, as many as the client takes"
    );
    assert_eq!(bench.connection.free_window(), 0);
    assert!(bench.say(&ack(AckKind::PubAck, 1)).contains("tag: 70"));
    assert_eq!(bench.heard(), ["publish 3 a/b x again"]);
    assert!(bench.say(&ack(AckKind::PubAck, 3)).contains("tag: 72"));
    assert_eq!(bench.say(&ack(AckKind::PubComp, 2)), "Completed { tag: 71, packet_id: 2 }");
    assert_eq!(bench.connection.session().in_flight().count(), 0);
}

#[test]
fn the_window_is_the_lower_one_of_the_clients_and_the_servers() {
    for (server, client, window) in [(20, None, 20), (20, Some(3), 3), (2, Some(3), 2)] {
        let settings = MqttSettings { in_flight: server, ..MqttSettings::default() };
        let asked = client.map(Property::ReceiveMaximum);
        let asked = asked.into_iter().fold(PropertyList::new(), PropertyList::with);
        let mut bench = Bench::connect(ConnectPacket { properties: asked.as_properties(), ..v5() }, settings);
        assert_eq!(bench.connection.window(), window);
        let sent = (0..100).take_while(|tag| {
            let message = message(QoS::AtLeastOnce, b"x");
            bench.connection.deliver(message, *tag, &mut bench.out).is_ok()
        });
        assert_eq!(sent.count(), usize::from(window));
    }
}

#[test]
fn messages_larger_than_the_clients_maximum_are_never_sent() {
    let asked = PropertyList::new().with(Property::MaximumPacketSize(20));
    let connect = || ConnectPacket { clean_start: false, properties: asked.as_properties(), ..v5() };
    let mut bench = Bench::connect(connect(), MqttSettings::default());
    let large = || message(QoS::AtLeastOnce, b"twenty bytes are less");
    let refused = bench.connection.deliver(large(), 1, &mut bench.out);
    assert_eq!(refused, Err(Undeliverable::TooLarge));
    assert!(bench.connection.deliver(message(QoS::AtLeastOnce, b"x"), 1, &mut bench.out).is_ok());

    let mut roomy = Bench::connect(ConnectPacket { clean_start: false, ..v5() }, MqttSettings::default());
    roomy.connection.deliver(large(), 70, &mut roomy.out).expect("there is room");
    let mut bench = Bench::new(MqttSettings::default());
    bench.say(&Packet::Connect(Box::new(connect())));
    let earlier = roomy.connection.take_session();
    assert_eq!(bench.connection.accept(Some(earlier), None, bench.now, &mut bench.out), [70]);
    assert_eq!(bench.heard(), ["connack 0x00 Success true"]);
}

#[test]
fn topic_aliases_work_in_both_directions() {
    let asked = PropertyList::new().with(Property::TopicAliasMaximum(1));
    let mut bench =
        Bench::connect(ConnectPacket { properties: asked.as_properties(), ..v5() }, MqttSettings::default());
    let aliased = |topic, alias| {
        let properties = PropertyList::new().with(Property::TopicAlias(alias));
        let mut bytes = Vec::new();
        let (payload, properties) = (Payload::new(b"x"), properties.as_properties());
        let publish = PublishPacket {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: 0,
            properties,
            payload,
        };
        publish.encode(MqttVersion::V5, &mut bytes);
        bytes
    };
    assert_eq!(bench.say_bytes(&aliased("long/topic", 3)), "publish long/topic x");
    assert_eq!(bench.say_bytes(&aliased("", 3)), "publish long/topic x");
    assert_eq!(bench.say_bytes(&aliased("other", 3)), "publish other x");
    assert_eq!(bench.say_bytes(&aliased("", 3)), "publish other x");
    bench.heard();
    for _ in 0..2 {
        bench
            .connection
            .deliver(
                OutgoingMessage { topic: "first/topic".into(), ..message(QoS::AtMostOnce, b"1") },
                0,
                &mut bench.out,
            )
            .expect("it is sent");
        bench
            .connection
            .deliver(
                OutgoingMessage { topic: "second/topic".into(), ..message(QoS::AtMostOnce, b"2") },
                0,
                &mut bench.out,
            )
            .expect("it is sent");
    }
    let heard = bench.heard();
    assert_eq!(
        heard,
        ["publish 0 first/topic 1", "publish 0 second/topic 2", "publish 0  1", "publish 0 second/topic 2"]
    );
    assert!(bench.say_bytes(&aliased("", 4)).contains("topic alias is not defined"));
    assert_eq!(bench.heard(), ["disconnect 0x82 Protocol Error"]);
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    assert!(bench.say_bytes(&aliased("x", 17)).contains("TopicAliasInvalid"));
}

#[test]
fn subscriptions_are_judged_line_by_line() {
    let mut bench = Bench::connect(v5(), MqttSettings { shared: false, ..MqttSettings::default() });
    bench.heard();
    let known = Subscription::of(SubscribeOptions::default());
    bench.connection.session_mut().subscribe("known", known);
    let mut buffer = Vec::new();
    let if_new = SubscribeOptions { retain_handling: RetainHandling::IfNew, ..SubscribeOptions::default() };
    let requests = ["known", "new/+", "bad#", "$share/g/x"];
    let requests = requests.map(|filter| SubscribeRequest { filter, options: if_new });
    let packet = Subscribe {
        packet_id: 3,
        properties: PacketProperties::NONE,
        requests: Requests::write(&mut buffer, requests),
    };
    assert_eq!(
        bench.say(&Packet::Subscribe(packet)),
        "known fine new=false retained=false, new/+ fine new=true retained=true, \
         bad# Topic Filter invalid new=true retained=true, \
         $share/g/x Shared Subscriptions not supported new=true retained=true"
    );
    bench.connection.subscribed(3, [ReasonCode::Success, ReasonCode::TopicFilterInvalid], &mut bench.out);
    assert_eq!(bench.heard(), ["suback 3 [Success, TopicFilterInvalid]"]);
    let mut buffer = Vec::new();
    let filters = Filters::write(&mut buffer, ["known"]);
    let packet = Unsubscribe { packet_id: 4, properties: PacketProperties::NONE, filters };
    assert!(bench.say(&Packet::Unsubscribe(packet)).contains("known"));
    bench.connection.unsubscribed(4, [ReasonCode::NoSubscriptionExisted], &mut bench.out);
    assert_eq!(bench.heard(), ["unsuback 4 [NoSubscriptionExisted]"]);
}

#[test]
fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    let mut buffer = Vec::new();
    let options = SubscribeOptions { no_local: true, ..SubscribeOptions::default() };
    let requests = Requests::write(&mut buffer, [SubscribeRequest { filter: "$share/g/x", options }]);
    let packet = Packet::Subscribe(Subscribe { packet_id: 3, properties: PacketProperties::NONE, requests });
    assert!(bench.say(&packet).contains("ProtocolError"));
}

#[test]
fn the_will_is_due_unless_the_client_says_goodbye() {
    let properties =
        PropertyList::new().with(Property::WillDelayInterval(40)).with(Property::ContentType("t"));
    let will = Will {
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: properties.as_properties(),
        topic: "gone",
        payload: b"bye",
    };
    let asked = PropertyList::new().with(Property::SessionExpiryInterval(30));
    let connect = || ConnectPacket { will: Some(will), properties: asked.as_properties(), ..v5() };
    let bench = || Bench::connect(connect(), MqttSettings::default());
    let end = bench().connection.handle_eof().expect("it ends");
    assert_eq!((end.session_expiry, end.will_delay()), (30, Some(Duration::from_secs(30))));
    let will = end.will.expect("it is due");
    assert_eq!((&*will.topic, &*will.payload, will.delay, will.retain), ("gone", &b"bye"[..], 40, true));
    assert_eq!(will.properties, PropertyList::new().with(Property::ContentType("t")));
    let mut normal = bench();
    let reported = normal.say(&Packet::Disconnect(Disconnect::new(ReasonCode::Success)));
    assert!(reported.contains("will: None") && reported.contains("session_expiry: 30"), "{reported}");
    let reported = bench().say(&Packet::Disconnect(Disconnect::new(ReasonCode::DisconnectWithWill)));
    assert!(reported.contains("will: Some"), "{reported}");
    let mut taken_over = bench();
    taken_over.heard();
    let end = taken_over.connection.disconnect(ReasonCode::SessionTakenOver, "", &mut taken_over.out);
    assert!(end.is_some_and(|end| end.will.is_some()));
    assert_eq!(taken_over.heard(), ["disconnect 0x8E Session taken over"]);
}

#[test]
fn a_disconnect_has_a_reason_string_if_the_packet_fits() {
    for (most, reported) in [(1000, Some("closed")), (21, None)] {
        let asked = PropertyList::new().with(Property::MaximumPacketSize(most));
        let connect = ConnectPacket { properties: asked.as_properties(), ..v5() };
        let mut bench = Bench::connect(connect, MqttSettings::default());
        bench.out.clear();
        let reason = ReasonCode::AdministrativeAction;
        assert!(bench.connection.disconnect(reason, "closed", &mut bench.out).is_some());
        let mut decoder = PacketDecoder::new(MqttVersion::V5, 1000);
        let step = decoder.decode(&bench.out).expect("it is a packet");
        let Some(Packet::Disconnect(packet)) = step.packet else { unreachable!() };
        assert_eq!(packet.properties.reason_string(), reported);
    }
}

#[test]
fn a_disconnect_may_change_the_session_expiry_but_not_from_nothing() {
    let longer = PropertyList::new().with(Property::SessionExpiryInterval(9));
    let packet = Disconnect { reason: ReasonCode::Success, properties: longer.as_properties() };
    let asked = PropertyList::new().with(Property::SessionExpiryInterval(5));
    let mut bench =
        Bench::connect(ConnectPacket { properties: asked.as_properties(), ..v5() }, MqttSettings::default());
    assert!(bench.say(&Packet::Disconnect(packet)).contains("session_expiry: 9"));
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    assert!(bench.say(&Packet::Disconnect(packet)).contains("ProtocolError"));
}

#[test]
fn older_sessions_last_for_ever_or_not_at_all() {
    for (clean_start, expected) in [(true, 0), (false, u32::MAX)] {
        let connect = ConnectPacket { clean_start, ..ConnectPacket::new(MqttVersion::V31, "c") };
        let mut bench = Bench::connect(connect, MqttSettings::default());
        assert_eq!(bench.connection.wants_session(), !clean_start);
        assert_eq!(bench.connection.handle_eof().map(|end| end.session_expiry), Some(expected));
    }
}

#[test]
fn packets_out_of_place_end_the_connection() {
    let connack =
        ConnAck { session_present: false, reason: ReasonCode::Success, properties: PacketProperties::NONE };
    for packet in [Packet::Connect(Box::new(v5())), Packet::ConnAck(connack), Packet::PingResp] {
        let mut bench = Bench::connect(v5(), MqttSettings::default());
        bench.heard();
        assert!(bench.say(&packet).contains("ProtocolError"), "{packet:?}");
        assert_eq!(bench.heard(), ["disconnect 0x82 Protocol Error"]);
        assert_eq!(bench.say_bytes(b"anything"), "", "what follows is thrown away");
    }
    let mut bench = Bench::connect(v5(), MqttSettings::default());
    let end = bench.connection.fail(MqttFault::new(ReasonCode::PacketTooLarge, "too large"), &mut bench.out);
    assert!(end.is_some() && !bench.connection.is_connected());
}

#[test]
fn user_names_may_carry_a_vhost() {
    assert_eq!(split_user_name("guest"), (None, "guest"));
    assert_eq!(split_user_name("/:guest"), (Some("/"), "guest"));
    assert_eq!(split_user_name("a:b:guest"), (Some("a:b"), "guest"));
}

#[test]
fn an_idle_connection_is_small() {
    assert!(size_of::<ServerConnection>() <= 512, "{}", size_of::<ServerConnection>());
}
