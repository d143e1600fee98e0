//! Strategies for packets. The packets are encoded by the codec itself; `differential.rs` and `golden.rs`
//! check it against other implementations.

use mqtt::packet::{
    Ack, AckKind, Auth, ConnAck, ConnectPacket, Disconnect, Filters, Payload, PublishPacket, Reasons,
    Requests, RetainHandling, SubAck, Subscribe, SubscribeOptions, SubscribeRequest, UnsubAck, Unsubscribe,
    Will,
};
use mqtt::{Holder, MqttVersion, Packet, PacketProperties, Property, PropertyList, QoS, ReasonCode};
use proptest::prelude::*;
use proptest::sample::select;

/// Generates any of the three versions.
pub fn any_version() -> impl Strategy<Value = MqttVersion> {
    select(&[MqttVersion::V31, MqttVersion::V311, MqttVersion::V5][..])
}

/// The bytes of a valid packet of this version.
pub fn any_packet(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let mut kinds = vec![
        any_connect(version),
        any_connack(version),
        any_publish(version),
        any_publish(version),
        any_ack(version),
        any_subscribe(version),
        any_unsubscribe(version),
        any_suback(version),
        any_disconnect(version),
        Just(vec![0xc0, 0]).boxed(),
        Just(vec![0xd0, 0]).boxed(),
    ];
    if version.is_5() {
        kinds.push(any_auth());
    }
    proptest::strategy::Union::new(kinds).boxed()
}

fn encoded(version: MqttVersion, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

/// Text without NUL.
fn text() -> BoxedStrategy<String> {
    "[^\\x00\\p{C}]{0,12}".boxed()
}

fn topic() -> BoxedStrategy<String> {
    "[a-zé/$ ]{1,12}".boxed()
}

fn filter() -> BoxedStrategy<String> {
    select(&["#", "+", "a/b", "a/+/c", "a/#", "$share/g/a/+", "/", "é/+"][..]).prop_map(str::to_owned).boxed()
}

fn data() -> BoxedStrategy<Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..20).boxed()
}

/// A valid property list for `holder`; empty before 5.0.
pub fn any_properties(version: MqttVersion, holder: Holder) -> BoxedStrategy<PropertyList> {
    if !version.is_5() {
        return Just(PropertyList::new()).boxed();
    }
    let material = (
        any::<u32>(),
        proptest::collection::vec((text(), text()), 0..3),
        topic(),
        text(),
        data(),
        any::<[u16; 4]>(),
        any::<u8>(),
    );
    material
        .prop_map(move |(wanted, users, topic, text, data, shorts, flags)| {
            let [a, b, c, d] = shorts;
            let long = u32::from(a) << 16 | u32::from(b);
            let flag = |bit: u8| flags & 1 << bit != 0;
            let mut all = vec![
                Property::PayloadFormatIndicator(flag(0)),
                Property::MessageExpiryInterval(long),
                Property::ContentType(&text),
                Property::ResponseTopic(&topic),
                Property::CorrelationData(&data),
                Property::SubscriptionIdentifier(long % 268_435_455 + 1),
                Property::SessionExpiryInterval(long),
                Property::AssignedClientIdentifier(&text),
                Property::ServerKeepAlive(a),
                Property::AuthenticationMethod(&text),
                Property::RequestProblemInformation(flag(1)),
                Property::WillDelayInterval(long),
                Property::RequestResponseInformation(flag(2)),
                Property::ResponseInformation(&text),
                Property::ServerReference(&text),
                Property::ReasonString(&text),
                Property::ReceiveMaximum(c.max(1)),
                Property::TopicAliasMaximum(b),
                Property::TopicAlias(d.max(1)),
                Property::MaximumQos(flag(3)),
                Property::RetainAvailable(flag(4)),
                Property::MaximumPacketSize(long.max(1)),
                Property::WildcardSubscriptionAvailable(flag(5)),
                Property::SubscriptionIdentifiersAvailable(flag(6)),
                Property::SharedSubscriptionAvailable(flag(7)),
            ];
            let at = usize::from(a) % all.len();
            all.rotate_left(at);
            let mut list = PropertyList::new();
            for (at, property) in all.into_iter().enumerate() {
                if wanted & 1 << at != 0 && property.is_allowed_in(holder) {
                    list.push(property);
                    if property.id() == 21 && flag(0) {
                        list.push(Property::AuthenticationData(&data));
                    }
                }
            }
            users.iter().for_each(|(name, value)| list.push(Property::UserProperty(name, value)));
            list
        })
        .boxed()
}

fn any_qos() -> impl Strategy<Value = QoS> {
    select(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][..])
}

fn any_connect(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let will = (any_qos(), any::<bool>(), any_properties(version, Holder::Will), topic(), data());
    let login = (proptest::option::of(text()), proptest::option::of(data()));
    let rest = (any::<bool>(), any::<u16>(), any_properties(version, Holder::Connect), text());
    (proptest::option::of(will), login, rest)
        .prop_map(move |(will, (user, password), (clean_start, keep_alive, properties, client_id))| {
            let will = will.as_ref().map(|(qos, retain, properties, topic, payload)| Will {
                qos: *qos,
                retain: *retain,
                properties: properties.as_properties(),
                topic,
                payload,
            });
            let password = password.as_deref().filter(|_| version.is_5() || user.is_some());
            let connect = ConnectPacket {
                clean_start,
                keep_alive,
                properties: properties.as_properties(),
                will,
                user_name: user.as_deref(),
                password,
                ..ConnectPacket::new(version, &client_id)
            };
            encoded(version, &Packet::Connect(Box::new(connect)))
        })
        .boxed()
}

fn any_connack(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let reasons = [
        ReasonCode::Success,
        ReasonCode::NotAuthorized,
        ReasonCode::ServerUnavailable,
        ReasonCode::BadUserNameOrPassword,
    ];
    (any::<bool>(), select(reasons.to_vec()), any_properties(version, Holder::ConnAck))
        .prop_map(move |(present, reason, properties)| {
            let session_present = present && !reason.is_error();
            let properties = properties.as_properties();
            encoded(version, &Packet::ConnAck(ConnAck { session_present, reason, properties }))
        })
        .boxed()
}

/// A valid PUBLISH, sometimes a large one.
pub fn any_publish(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let payload = prop_oneof![
        9 => data(),
        1 => (7_900usize..9_000, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]).boxed(),
    ];
    let ids = (any::<bool>(), any_qos(), any::<bool>(), 1..u16::MAX);
    (ids, topic(), any_properties(version, Holder::Publish), payload)
        .prop_map(move |((dup, qos, retain, packet_id), topic, properties, payload)| {
            let packet_id = if qos == QoS::AtMostOnce { 0 } else { packet_id };
            let publish = PublishPacket {
                dup: dup && qos != QoS::AtMostOnce,
                qos,
                retain,
                topic: &topic,
                packet_id,
                properties: properties.as_properties(),
                payload: Payload::new(&payload),
            };
            encoded(version, &Packet::Publish(publish))
        })
        .boxed()
}

fn any_ack(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let kinds = [AckKind::PubAck, AckKind::PubRec, AckKind::PubRel, AckKind::PubComp];
    (select(kinds.to_vec()), 1..u16::MAX, any::<bool>(), any_properties(version, Holder::Ack))
        .prop_map(move |(kind, packet_id, fails, properties)| {
            let reason = match kind {
                _ if !fails || !version.is_5() => ReasonCode::Success,
                AckKind::PubAck | AckKind::PubRec => ReasonCode::QuotaExceeded,
                AckKind::PubRel | AckKind::PubComp => ReasonCode::PacketIdentifierNotFound,
            };
            let properties = properties.as_properties();
            encoded(version, &Packet::Ack(Ack { kind, packet_id, reason, properties }))
        })
        .boxed()
}

fn any_subscribe(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let handling = select(&[RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never][..]);
    let line = (filter(), any_qos(), any::<bool>(), handling);
    let lines = proptest::collection::vec(line, 1..4);
    (1..u16::MAX, lines, any_properties(version, Holder::Subscribe))
        .prop_map(move |(packet_id, lines, properties)| {
            let mut buffer = Vec::new();
            let requests = lines.iter().map(|(filter, qos, flag, handling)| {
                let mut options = SubscribeOptions::of_qos(*qos);
                if version.is_5() {
                    options.no_local = *flag && !filter.starts_with('$');
                    options.retain_as_published = *flag;
                    options.retain_handling = *handling;
                }
                SubscribeRequest { filter, options }
            });
            let requests = Requests::write(&mut buffer, requests);
            let properties = properties.as_properties();
            encoded(version, &Packet::Subscribe(Subscribe { packet_id, properties, requests }))
        })
        .boxed()
}

fn any_unsubscribe(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let filters = proptest::collection::vec(filter(), 1..4);
    (1..u16::MAX, filters, any_properties(version, Holder::Unsubscribe))
        .prop_map(move |(packet_id, filters, properties)| {
            let mut buffer = Vec::new();
            let filters = Filters::write(&mut buffer, filters.iter().map(String::as_str));
            let properties = properties.as_properties();
            encoded(version, &Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }))
        })
        .boxed()
}

fn any_suback(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let reasons = [ReasonCode::Success, ReasonCode::UnspecifiedError, ReasonCode::NotAuthorized];
    let reasons = proptest::collection::vec(select(reasons.to_vec()), 1..4);
    (any::<bool>(), 1..u16::MAX, reasons, any_properties(version, Holder::SubAck))
        .prop_map(move |(subscribed, packet_id, reasons, properties)| {
            let mut buffer = Vec::new();
            let reasons = Reasons::write(&mut buffer, reasons);
            let properties = if version.is_5() { properties.as_properties() } else { PacketProperties::NONE };
            encoded(
                version,
                &match subscribed {
                    true => Packet::SubAck(SubAck { packet_id, properties, reasons }),
                    false => Packet::UnsubAck(UnsubAck { packet_id, properties, reasons }),
                },
            )
        })
        .boxed()
}

fn any_disconnect(version: MqttVersion) -> BoxedStrategy<Vec<u8>> {
    let reasons = [ReasonCode::Success, ReasonCode::DisconnectWithWill, ReasonCode::ServerShuttingDown];
    (select(reasons.to_vec()), any_properties(version, Holder::Disconnect))
        .prop_map(move |(reason, properties)| {
            let reason = if version.is_5() { reason } else { ReasonCode::Success };
            let properties = properties.as_properties();
            encoded(version, &Packet::Disconnect(Disconnect { reason, properties }))
        })
        .boxed()
}

fn any_auth() -> BoxedStrategy<Vec<u8>> {
    (any::<bool>(), any_properties(MqttVersion::V5, Holder::Auth))
        .prop_map(|(goes_on, mut properties)| {
            let reason = if goes_on { ReasonCode::ContinueAuthentication } else { ReasonCode::Success };
            if properties.as_properties().authentication_method().is_none() {
                properties.push(Property::AuthenticationMethod("SCRAM"));
            }
            let properties = properties.as_properties();
            encoded(MqttVersion::V5, &Packet::Auth(Auth { reason, properties }))
        })
        .boxed()
}
