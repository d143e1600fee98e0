//! Maps MQTT messages to AMQP messages, and back; as RabbitMQ 4 does in [`native`].
//!
//! Properties that exist in both map to each other; the rest of an MQTT message travels in headers:
//!
//! | MQTT | AMQP |
//! |---|---|
//! | topic | routing key on the exchange, `/` as `.` and `.` as `/` |
//! | QoS | delivery_mode, header `x-mqtt-publish-qos` |
//! | DUP | header `x-mqtt-dup` |
//! | RETAIN | header `x-mqtt-retain`, when it is set |
//! | Message Expiry Interval | expiration, with the remaining time |
//! | Content Type | content_type |
//! | Response Topic | reply_to, as a routing key |
//! | Correlation Data | correlation_id |
//! | User Property | header of that name; if a name repeats or is reserved, `x-mqtt-user-properties` as well |
//! | Payload Format Indicator | header `x-mqtt-payload-format-indicator` |
//!
//! Headers of AMQP messages become User Properties if they are text, numbers or booleans; other headers, and
//! AMQP's other properties, have no counterpart.

use std::time::Duration;

use amqp::properties::{PERSISTENT, ShortBytes};
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::{Compatibility, Timestamp};
use bytes::Bytes;
use mqtt::session::OutgoingMessage;
use mqtt::topic::{check_name, merged, routing_key_to_topic, topic_to_routing_key};
use mqtt::{Property, PropertyList, QoS, ReasonCode};

use super::native::{self, StoredForm};
use super::subscriptions::FilterMatch;

/// Headers that RabbitMQ's plugin sets as well.
const PUBLISH_QOS: &str = "x-mqtt-publish-qos";
const DUP: &str = "x-mqtt-dup";
const RETAIN: &str = "x-mqtt-retain";
/// The publisher's client identifier, for subscriptions with No Local.
const CLIENT: &str = "x-mqtt-client-id";
const PAYLOAD_FORMAT: &str = "x-mqtt-payload-format-indicator";
/// All User Properties in order, alternating names and values.
const USER_PROPERTIES: &str = "x-mqtt-user-properties";
/// Prefix of all headers set here.
const OURS: &str = "x-mqtt-";

/// The delivery_mode of a message that need not survive a restart, which RabbitMQ's plugin sets as well.
pub(super) const TRANSIENT: u8 = 1;

/// Bytes of the longest AMQP short string: a routing key, a content type and others.
pub(super) const MAX_SHORT: usize = 255;

/// The longest expiration that AMQP brokers accept: ten years. A longer MQTT expiry counts as none.
pub(super) const MAX_EXPIRY_SECONDS: u32 = 10 * 365 * 24 * 60 * 60;

/// A message received from a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incoming<'m> {
    pub(super) qos: QoS,
    pub(super) dup: bool,
    pub(super) retain: bool,
    pub(super) properties: mqtt::PacketProperties<'m>,
    /// The publisher's client identifier, if it has to be included.
    pub(super) client_id: Option<&'m str>,
}

/// The reason why a message cannot be expressed in AMQP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConversionError {
    pub(super) reason: ReasonCode,
    pub(super) text: &'static str,
}

/// The part of an AMQP message that matters to MQTT clients.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) topic: String,
    /// The published QoS. As in RabbitMQ, QoS 1 if the message does not say.
    pub(super) qos: QoS,
    pub(super) retain: bool,
    /// The publisher's client identifier, if included.
    pub(super) client_id: Option<Box<str>>,
}

/// How MQTT messages are mapped for a backend's AMQP clients, and AMQP messages for its MQTT clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageMapping {
    /// The form of published messages.
    pub(super) form: StoredForm,
    /// Whether a dot in a topic is the same as a slash, as in RabbitMQ.
    pub(super) merges_dots: bool,
}

impl MessageMapping {
    /// That of the embedded broker.
    pub(super) fn of_broker(compatibility: Compatibility) -> Self {
        let form = if compatibility.annotates_mqtt() { StoredForm::Annotation } else { StoredForm::Headers };
        Self { form, merges_dots: false }
    }

    /// RabbitMQ's MQTT plugin's mapping, since its clients exchange messages with this server's.
    pub(super) fn of_upstream(compatibility: Compatibility) -> Self {
        let form =
            if compatibility.annotates_mqtt() { StoredForm::AnnotationHeader } else { StoredForm::Headers };
        Self { form, merges_dots: true }
    }

    /// The routing key of a topic, or the binding key of a filter without `$share/group/`.
    pub(super) fn key(self, topic: &str) -> String {
        if self.merges_dots { topic_to_routing_key(&merged(topic)) } else { topic_to_routing_key(topic) }
    }

    /// The topic of a routing key.
    pub(super) fn topic(self, key: &str) -> String {
        if self.merges_dots { merged(key).into_owned() } else { routing_key_to_topic(key) }
    }

    /// The routing key of a topic name.
    ///
    /// # Errors
    /// Fails if it is too long for AMQP.
    pub(super) fn routing_key(self, topic: &str) -> Result<String, ConversionError> {
        if topic.len() > MAX_SHORT {
            return Err(ConversionError {
                reason: ReasonCode::TopicNameInvalid,
                text: "topic longer than 255 bytes",
            });
        }
        Ok(self.key(topic))
    }
}

/// Encodes the AMQP properties (flags and list). `now` is the wall clock's time.
///
/// # Errors
/// Fails for a property that is too long for AMQP, unless only MQTT clients read it.
pub(super) fn to_amqp(
    message: &Incoming<'_>,
    mapping: MessageMapping,
    now: Timestamp,
) -> Result<Vec<u8>, ConversionError> {
    match mapping.form {
        StoredForm::Headers => with_headers(message, mapping),
        StoredForm::Plain | StoredForm::Annotation | StoredForm::AnnotationHeader => {
            Ok(native::to_amqp(message, mapping, now))
        }
    }
}

/// Checks the length of encoded properties.
///
/// # Errors
/// Fails if consumers cannot be sent that many bytes ([`ServerConfig::most_properties`](crate::ServerConfig)).
pub(super) fn check_length(properties: &[u8], most: usize) -> Result<(), ConversionError> {
    if properties.len() <= most {
        return Ok(());
    }
    Err(ConversionError { reason: ReasonCode::QuotaExceeded, text: "properties too large for AMQP" })
}

/// Encodes the properties, with those that AMQP lacks in headers.
fn with_headers(message: &Incoming<'_>, mapping: MessageMapping) -> Result<Vec<u8>, ConversionError> {
    let mut headers = FieldTable::new();
    headers.insert(PUBLISH_QOS, FieldValue::I8(level(message.qos)));
    headers.insert(DUP, FieldValue::Boolean(message.dup));
    if message.retain {
        headers.insert(RETAIN, FieldValue::Boolean(true));
    }
    if let Some(client) = message.client_id {
        headers.insert(CLIENT, FieldValue::text(client));
    }
    let properties = &message.properties;
    if let Some(is_text) = properties.payload_format_indicator() {
        headers.insert(PAYLOAD_FORMAT, FieldValue::Boolean(is_text));
    }
    put_user_properties(properties, &mut headers);
    let delivery_mode = if message.qos == QoS::AtMostOnce { TRANSIENT } else { PERSISTENT };
    let mut amqp = Properties::default().with_delivery_mode(delivery_mode);
    let expiry = properties.message_expiry_interval().map(|seconds| seconds.min(MAX_EXPIRY_SECONDS));
    let expiration = expiry.map(|seconds| (u64::from(seconds) * 1000).to_string());
    amqp.expiration = expiration.as_deref();
    amqp.content_type = properties.content_type();
    let reply_to = properties.response_topic().map(|topic| mapping.key(topic));
    amqp.reply_to = reply_to.as_deref();
    amqp.correlation_id = properties.correlation_data().map(ShortBytes);
    for len in [
        amqp.content_type.map_or(0, str::len),
        amqp.reply_to.map_or(0, str::len),
        amqp.correlation_id.map_or(0, |id| id.0.len()),
    ] {
        if len > MAX_SHORT {
            let text = "content type, response topic or correlation data longer than 255 bytes";
            return Err(ConversionError { reason: ReasonCode::ImplementationSpecificError, text });
        }
    }
    let headers = headers.encode();
    amqp.headers = RawTable::check(&headers).ok();
    let mut bytes = Vec::new();
    amqp.encode(&mut bytes);
    Ok(bytes)
}

fn put_user_properties(properties: &mqtt::PacketProperties<'_>, headers: &mut FieldTable) {
    let mut is_reported_whole = true;
    for (name, value) in properties.user_properties() {
        if name.len() > MAX_SHORT || headers.get(name).is_some() || is_reserved(name) {
            is_reported_whole = false;
        } else {
            headers.insert(name, FieldValue::text(value));
        }
    }
    if !is_reported_whole {
        let pairs = properties.user_properties();
        let pairs = pairs.flat_map(|(name, value)| [FieldValue::text(name), FieldValue::text(value)]);
        headers.insert(USER_PROPERTIES, FieldValue::Array(pairs.collect()));
    }
}

/// Whether the broker interprets this header, so that a User Property must not become one.
fn is_reserved(name: &str) -> bool {
    name.starts_with(OURS) || matches!(name, "CC" | "BCC" | "x-death" | "")
}

/// Reads the properties that matter for delivering a message, whatever the client's version. `None` if its
/// topic is not valid in MQTT: it is empty or has a wildcard.
pub(super) fn outgoing(topic: String, properties: &Properties<'_>, form: StoredForm) -> Option<Outgoing> {
    check_name(&topic).ok().filter(|()| !topic.contains('\0'))?;
    if form != StoredForm::Headers {
        return Some(native::outgoing(topic, properties, form));
    }
    let mut outgoing = Outgoing { topic, qos: QoS::AtLeastOnce, retain: false, client_id: None };
    if let Some(headers) = properties.headers.filter(|headers| !headers.is_empty()) {
        let headers = headers.decode();
        let qos = headers.get(PUBLISH_QOS).and_then(FieldValue::as_integer);
        outgoing.qos =
            qos.and_then(|qos| QoS::from_level(u8::try_from(qos).ok()?)).unwrap_or(QoS::AtLeastOnce);
        outgoing.retain = matches!(headers.get(RETAIN), Some(FieldValue::Boolean(true)));
        outgoing.client_id = headers.get(CLIENT).and_then(FieldValue::as_text).map(Into::into);
    }
    Some(outgoing)
}

/// The properties for an MQTT 5.0 client. `left` is the time until the message expires.
pub(super) fn to_mqtt(
    properties: &Properties<'_>,
    mapping: MessageMapping,
    left: Option<Duration>,
) -> PropertyList {
    if mapping.form != StoredForm::Headers {
        return native::to_mqtt(properties, mapping, left);
    }
    let mut list = PropertyList::new();
    let headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
    if let Some(FieldValue::Boolean(is_text)) = headers.get(PAYLOAD_FORMAT) {
        list.push(Property::PayloadFormatIndicator(*is_text));
    }
    push_expiry(&mut list, left);
    push_content_type(&mut list, properties);
    let reply_to = properties.reply_to.map(|key| mapping.topic(key));
    if let Some(topic) = reply_to.as_deref().filter(|topic| is_text(topic) && check_name(topic).is_ok()) {
        list.push(Property::ResponseTopic(topic));
    }
    if let Some(id) = properties.correlation_id {
        list.push(Property::CorrelationData(id.0));
    }
    if let Some(FieldValue::Array(pairs)) = headers.get(USER_PROPERTIES) {
        let texts: Vec<&str> = pairs.iter().filter_map(FieldValue::as_text).collect();
        texts.chunks_exact(2).for_each(|pair| push_user_property(&mut list, pair[0], pair[1]));
    } else {
        for (name, value) in headers.iter().filter(|(name, _)| !name.starts_with(OURS)) {
            if let Some(value) = as_text(value) {
                push_user_property(&mut list, name, &value);
            }
        }
    }
    list
}

/// A message and the data that its delivery to a client depends on.
pub(super) struct Addressed<'m> {
    pub(super) outgoing: Outgoing,
    pub(super) properties: &'m Properties<'m>,
    pub(super) mapping: MessageMapping,
    /// The time until it expires.
    pub(super) left: Option<Duration>,
    pub(super) redelivered: bool,
    pub(super) payload: Bytes,
}

impl Addressed<'_> {
    /// The message to send for the subscriptions that have matched.
    pub(super) fn into_message(self, verdict: &FilterMatch, is_5: bool) -> OutgoingMessage {
        let mut list = PropertyList::new();
        if is_5 {
            list = to_mqtt(self.properties, self.mapping, self.left);
            verdict.identifiers.iter().for_each(|id| list.push(Property::SubscriptionIdentifier(*id)));
        }
        OutgoingMessage {
            topic: self.outgoing.topic.into(),
            qos: self.outgoing.qos.min(verdict.qos),
            retain: self.outgoing.retain && verdict.retain_as_published,
            redelivered: self.redelivered,
            properties: list,
            payload: self.payload,
        }
    }
}

/// The properties of a published message that its later delivery needs.
pub(super) fn stored_properties(properties: &mqtt::PacketProperties<'_>) -> PropertyList {
    let stored_properties = properties
        .iter()
        .filter(|property| !matches!(property, Property::MessageExpiryInterval(_) | Property::TopicAlias(_)));
    stored_properties.fold(PropertyList::new(), PropertyList::with)
}

pub(super) fn push_expiry(list: &mut PropertyList, left: Option<Duration>) {
    if let Some(left) = left {
        let seconds = left.as_millis().div_ceil(1000);
        list.push(Property::MessageExpiryInterval(u32::try_from(seconds).unwrap_or(u32::MAX)));
    }
}

pub(super) fn push_content_type(list: &mut PropertyList, properties: &Properties<'_>) {
    if let Some(kind) = properties.content_type.filter(|text| is_text(text)) {
        list.push(Property::ContentType(kind));
    }
}

pub(super) fn push_user_property(list: &mut PropertyList, name: &str, value: &str) {
    if is_text(name) && is_text(value) && value.len() <= mqtt::wire::MAX_STRING {
        list.push(Property::UserProperty(name, value));
    }
}

/// Whether MQTT allows this string.
fn is_text(text: &str) -> bool {
    !text.contains('\0')
}

pub(super) fn as_text(value: &FieldValue) -> Option<String> {
    Some(match value {
        FieldValue::LongString(_) => value.as_text()?.to_owned(),
        FieldValue::Boolean(flag) => flag.to_string(),
        FieldValue::F32(number) => number.to_string(),
        FieldValue::F64(number) => number.to_string(),
        FieldValue::Timestamp(seconds) => seconds.to_string(),
        other => other.as_integer()?.to_string(),
    })
}

fn level(qos: QoS) -> i8 {
    match qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => 1,
        QoS::ExactlyOnce => 2,
    }
}

/// The time until a message expires.
pub(super) fn left(expires: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    expires.map(|at| Duration::from_millis(at.0.saturating_sub(now.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: MessageMapping = MessageMapping { form: StoredForm::Headers, merges_dots: false };

    fn encoded(message: &Incoming<'_>) -> Vec<u8> {
        to_amqp(message, HEADERS, Timestamp::default()).unwrap()
    }

    fn there_and_back(list: &PropertyList, left: Option<Duration>) -> PropertyList {
        let properties = list.as_properties();
        let message =
            Incoming { qos: QoS::ExactlyOnce, dup: false, retain: true, properties, client_id: Some("me") };
        let bytes = encoded(&message);
        let amqp = Properties::decode(&bytes).unwrap();
        let outgoing = outgoing("a/b".to_owned(), &amqp, StoredForm::Headers).unwrap();
        assert_eq!((outgoing.topic.as_str(), outgoing.qos, outgoing.retain), ("a/b", QoS::ExactlyOnce, true));
        assert_eq!(outgoing.client_id.as_deref(), Some("me"));
        to_mqtt(&amqp, HEADERS, left)
    }

    #[test]
    fn every_property_comes_back() {
        let list = PropertyList::new()
            .with(Property::PayloadFormatIndicator(true))
            .with(Property::MessageExpiryInterval(7))
            .with(Property::ContentType("text/plain"))
            .with(Property::ResponseTopic("answers/me"))
            .with(Property::CorrelationData(&[0xff, 0]))
            .with(Property::UserProperty("b", "1"))
            .with(Property::UserProperty("a", "2"));
        assert_eq!(there_and_back(&list, Some(Duration::from_millis(6001))), list);
    }

    #[test]
    fn a_message_that_is_of_use_for_longer_than_amqp_can_tell_is_taken() {
        let broker = broker::Broker::new(broker::BrokerConfig::default());
        let vhost = broker.vhost("/").unwrap();
        let publisher = vhost.publisher(&broker.authenticate_external("guest", true).unwrap());
        for seconds in [1, MAX_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS + 1, u32::MAX] {
            let list = PropertyList::new().with(Property::MessageExpiryInterval(seconds));
            let (qos, properties) = (QoS::AtLeastOnce, list.as_properties());
            let message = Incoming { qos, dup: false, retain: false, properties, client_id: None };
            let properties = encoded(&message);
            let body = broker::Body::Copied(mqtt::packet::Payload::new(b"x").bytes());
            let publish =
                broker::Publish { exchange: "amq.topic", routing_key: "t", properties: &properties, body };
            assert!(publisher.check(publish).is_ok(), "{seconds}");
        }
    }

    #[test]
    fn user_properties_keep_their_order_and_their_repeats() {
        let list = PropertyList::new()
            .with(Property::UserProperty("b", "1"))
            .with(Property::UserProperty("a", "2"))
            .with(Property::UserProperty("b", "3"));
        assert_eq!(there_and_back(&list, None), list);
    }

    #[test]
    fn no_user_property_becomes_a_header_that_the_broker_obeys() {
        let list = PropertyList::new()
            .with(Property::UserProperty("BCC", "q"))
            .with(Property::UserProperty("x-mqtt-publish-qos", "0"))
            .with(Property::UserProperty("x-mqtt-client-id", "somebody"));
        assert_eq!(there_and_back(&list, None), list);
    }

    #[test]
    fn properties_are_those_that_amqp_clients_know() {
        let list = PropertyList::new()
            .with(Property::MessageExpiryInterval(7))
            .with(Property::ContentType("text/plain"))
            .with(Property::ResponseTopic("answers/me"))
            .with(Property::CorrelationData(b"id"))
            .with(Property::UserProperty("k", "v"));
        let (qos, properties) = (QoS::AtLeastOnce, list.as_properties());
        let message = Incoming { qos, dup: true, retain: false, properties, client_id: None };
        let bytes = encoded(&message);
        let amqp = Properties::decode(&bytes).unwrap();
        assert_eq!((amqp.expiration, amqp.content_type), (Some("7000"), Some("text/plain")));
        assert_eq!((amqp.reply_to, amqp.correlation_id), (Some("answers.me"), Some("id".into())));
        assert_eq!(amqp.delivery_mode, Some(PERSISTENT));
        let headers = amqp.headers.unwrap().decode();
        assert_eq!(headers.get("k").and_then(FieldValue::as_text), Some("v"));
        assert_eq!(headers.get(DUP), Some(&FieldValue::Boolean(true)));
        assert_eq!(headers.get(PUBLISH_QOS), Some(&FieldValue::I8(1)));
    }

    #[test]
    fn topics_and_properties_too_long_for_amqp_are_refused() {
        let long = "x".repeat(256);
        assert_eq!(HEADERS.routing_key(&long).unwrap_err().reason, ReasonCode::TopicNameInvalid);
        for property in [
            Property::ContentType(&long),
            Property::ResponseTopic(&long),
            Property::CorrelationData(&[0; 256]),
        ] {
            let list = PropertyList::new().with(property);
            let (qos, properties) = (QoS::AtMostOnce, list.as_properties());
            assert!(
                to_amqp(
                    &Incoming { qos, dup: false, retain: false, properties, client_id: None },
                    HEADERS,
                    Timestamp::default(),
                )
                .is_err()
            );
        }
    }

    #[test]
    fn an_amqp_message_has_qos_1_and_its_scalar_headers_become_user_properties() {
        let table: FieldTable = [
            ("text", FieldValue::text("t")),
            ("number", FieldValue::I32(-5)),
            ("flag", FieldValue::Boolean(true)),
            ("table", FieldValue::Table(FieldTable::new())),
        ]
        .into_iter()
        .collect();
        let encoded = table.encode();
        let properties = Properties::default().with_headers(RawTable::check(&encoded).unwrap());
        assert_eq!(outgoing("a".to_owned(), &properties, StoredForm::Headers).unwrap().qos, QoS::AtLeastOnce);
        let expected = PropertyList::new()
            .with(Property::UserProperty("text", "t"))
            .with(Property::UserProperty("number", "-5"))
            .with(Property::UserProperty("flag", "true"));
        assert_eq!(to_mqtt(&properties, HEADERS, None), expected);
    }

    #[test]
    fn a_routing_key_that_is_no_topic_name_is_no_message_of_mqtt() {
        for key in ["", "a.+", "a.#", "a\0"] {
            assert!(
                outgoing(routing_key_to_topic(key), &Properties::default(), StoredForm::Headers).is_none(),
                "{key:?}"
            );
        }
    }
}
