//! MQTT messages as RabbitMQ 4 delivers them to AMQP clients, and AMQP messages as it delivers them to MQTT clients
//! ([`Compatibility::annotates_mqtt`]).
//!
//! | MQTT | AMQP |
//! |---|---|
//! | topic | routing key on the exchange, `/` as `.` and `.` as `/` |
//! | QoS | delivery_mode |
//! | Message Expiry Interval | expiration, and the time of publishing as timestamp |
//! | Content Type | content_type |
//! | Response Topic | header `x-reply-to-topic`, as a routing key |
//! | Correlation Data | correlation_id if it is text, otherwise header `x-correlation-id` |
//! | User Property | header of that name, the first if a name repeats |
//!
//! Values that do not fit are left out. All that AMQP cannot express is kept in an [annotation](ANNOTATION), from which
//! MQTT clients get the message as it was published.

use std::time::Duration;

use amqp::properties::{PERSISTENT, ShortBytes};
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::{ANNOTATION, Compatibility, FrontEnd, Message, Publisher, Timestamp, VirtualHost};
use mqtt::topic::check_name;
use mqtt::{Holder, PacketProperties, Property, PropertyList, QoS};

use super::message::{self, Incoming, MAX_EXPIRY_SECONDS, MAX_SHORT, MessageMapping, Outgoing, TRANSIENT};

/// The annotation as a header, where no broker hides it from AMQP clients. A byte array is used since RabbitMQ makes no
/// User Property of it.
const ANNOTATION_HEADER: &str = "x-leveret-mqtt";

const REPLY_TO_TOPIC: &str = "x-reply-to-topic";
const CORRELATION: &str = "x-correlation-id";

/// The form in which a message's MQTT side is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredForm {
    /// In headers that all clients see ([`super::message`]).
    Headers,
    /// In AMQP properties and headers only.
    Plain,
    /// In an annotation.
    Annotation,
    /// In AMQP properties and headers, with the rest in a header that other clients ignore.
    AnnotationHeader,
}

impl StoredForm {
    pub(super) fn of(message: &Message, compatibility: Compatibility) -> Self {
        match message.broker_properties().is_annotated {
            true => Self::Annotation,
            false if compatibility.annotates_mqtt() => Self::Plain,
            false => Self::Headers,
        }
    }
}

/// Configures a publisher for an MQTT client.
pub(super) fn publisher(publisher: Publisher, vhost: &VirtualHost) -> Publisher {
    let publisher = publisher.of(FrontEnd::Mqtt);
    if vhost.compatibility().annotates_mqtt() { publisher.with_mqtt_annotation() } else { publisher }
}

/// Encodes the AMQP properties (flags and list).
pub(super) fn to_amqp(message: &Incoming<'_>, mapping: MessageMapping, now: Timestamp) -> Vec<u8> {
    let properties = &message.properties;
    let mut headers = FieldTable::new();
    match (mapping.form, annotation(message)) {
        (StoredForm::Annotation, Some(annotation)) => {
            headers.insert(ANNOTATION, FieldValue::LongString(annotation));
        }
        (StoredForm::AnnotationHeader, Some(annotation)) if !is_complete(message) => {
            headers.insert(ANNOTATION_HEADER, FieldValue::ByteArray(annotation));
        }
        _ => {}
    }
    if let Some(topic) = properties.response_topic() {
        headers.insert(REPLY_TO_TOPIC, FieldValue::text(mapping.key(topic)));
    }
    let correlation = properties.correlation_data();
    let short = correlation.filter(|data| data.len() <= MAX_SHORT && std::str::from_utf8(data).is_ok());
    if let Some(data) = correlation.filter(|_| short.is_none()) {
        headers.insert(CORRELATION, FieldValue::LongString(data.into()));
    }
    for (name, value) in properties.user_properties() {
        let is_routing = matches!(name, "CC" | "BCC");
        if name.len() <= MAX_SHORT && !is_routing && headers.get(name).is_none() {
            headers.insert(name, FieldValue::text(value));
        }
    }
    let delivery_mode = if message.qos == QoS::AtMostOnce { TRANSIENT } else { PERSISTENT };
    let mut amqp = Properties::default().with_delivery_mode(delivery_mode);
    let expiry = properties.message_expiry_interval().map(|seconds| seconds.min(MAX_EXPIRY_SECONDS));
    let expiration = expiry.map(|seconds| (u64::from(seconds) * 1000).to_string());
    amqp.expiration = expiration.as_deref();
    amqp.timestamp = expiry.map(|_| now.seconds());
    amqp.content_type = properties.content_type().filter(|kind| kind.len() <= MAX_SHORT);
    amqp.correlation_id = short.map(ShortBytes);
    let headers = headers.encode();
    amqp.headers = RawTable::check(&headers).ok().filter(|headers| !headers.is_empty());
    let mut bytes = Vec::new();
    amqp.encode(&mut bytes);
    bytes
}

/// Whether the AMQP properties and headers express all of a message. Brokers may sort headers.
fn is_complete(message: &Incoming<'_>) -> bool {
    let properties = &message.properties;
    let names = || properties.user_properties().map(|(name, _)| name);
    message.qos != QoS::ExactlyOnce
        && !message.retain
        && message.client_id.is_none()
        && properties.payload_format_indicator().is_none()
        && properties.content_type().is_none_or(|kind| kind.len() <= MAX_SHORT)
        && names().all(|name| name.len() <= MAX_SHORT && !matches!(name, "CC" | "BCC" | ""))
        && names().zip(names().skip(1)).all(|(before, name)| before < name)
}

/// The annotation of a message; `None` if AMQP clients see all of it.
///
/// ```text
/// u8   QoS, 4 if it is retained, 8 if the publisher follows
/// u16  length of the publisher's client identifier, and it
///      properties but Topic Alias and Message Expiry Interval
/// ```
fn annotation(message: &Incoming<'_>) -> Option<Vec<u8>> {
    let properties = message::stored_properties(&message.properties);
    let properties = properties.as_properties();
    let is_plain = message.qos != QoS::ExactlyOnce && !message.retain && message.client_id.is_none();
    if is_plain && properties.is_empty() {
        return None;
    }
    let mut bytes = vec![message.qos as u8 | if message.retain { RETAINED } else { 0 }];
    if let Some(client) = message.client_id {
        bytes[0] |= FROM_CLIENT;
        // Client identifiers are shorter than queue names, which have at most 255 bytes.
        bytes.extend_from_slice(&(client.len() as u16).to_be_bytes());
        bytes.extend_from_slice(client.as_bytes());
    }
    bytes.extend_from_slice(properties.bytes());
    Some(bytes)
}

const RETAINED: u8 = 4;
const FROM_CLIENT: u8 = 8;
const QOS: u8 = 3;

/// The annotation of a stored message.
struct Annotated<'a> {
    qos: QoS,
    retain: bool,
    client_id: Option<&'a str>,
    properties: PacketProperties<'a>,
}

impl<'a> Annotated<'a> {
    fn read(headers: &'a FieldTable, form: StoredForm) -> Option<Self> {
        let bytes = match form {
            StoredForm::Headers | StoredForm::Plain => return None,
            StoredForm::Annotation => match headers.get(ANNOTATION)? {
                FieldValue::LongString(bytes) => bytes,
                _ => return None,
            },
            StoredForm::AnnotationHeader => match headers.get(ANNOTATION_HEADER)? {
                FieldValue::ByteArray(bytes) => bytes,
                _ => return None,
            },
        };
        let (&[marks], mut rest) = bytes.split_first_chunk()?;
        let mut client_id = None;
        if marks & FROM_CLIENT != 0 {
            let (len, after) = rest.split_first_chunk()?;
            let (client, after) = after.split_at_checked(u16::from_be_bytes(*len).into())?;
            client_id = Some(std::str::from_utf8(client).ok()?);
            rest = after;
        }
        let properties = PacketProperties::check(rest, Holder::Publish).ok()?;
        Some(Self {
            qos: QoS::from_level(marks & QOS)?,
            retain: marks & RETAINED != 0,
            client_id,
            properties,
        })
    }
}

/// The part of a message that matters for delivering it, whatever the client's version.
pub(super) fn outgoing(topic: String, properties: &Properties<'_>, form: StoredForm) -> Outgoing {
    // An AMQP message need not survive a restart unless its delivery_mode says so.
    let is_persistent = properties.delivery_mode == Some(PERSISTENT);
    let qos = if is_persistent { QoS::AtLeastOnce } else { QoS::AtMostOnce };
    let mut outgoing = Outgoing { topic, qos, retain: false, client_id: None };
    if form != StoredForm::Plain {
        let headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
        if let Some(annotated) = Annotated::read(&headers, form) {
            (outgoing.qos, outgoing.retain) = (annotated.qos, annotated.retain);
            outgoing.client_id = annotated.client_id.map(Into::into);
        }
    }
    outgoing
}

/// The properties for a client of 5.0. `left` is the time until the message expires.
pub(super) fn to_mqtt(
    properties: &Properties<'_>,
    mapping: MessageMapping,
    left: Option<Duration>,
) -> PropertyList {
    let headers = properties.headers.map(|headers| headers.decode()).unwrap_or_default();
    let mut list = PropertyList::new();
    message::push_expiry(&mut list, left);
    if let Some(annotated) = Annotated::read(&headers, mapping.form) {
        return annotated.properties.iter().fold(list, PropertyList::with);
    }
    message::push_content_type(&mut list, properties);
    let reply_to = headers.get(REPLY_TO_TOPIC).and_then(FieldValue::as_text);
    let reply_to = reply_to.map(|key| mapping.topic(key));
    let reply_to = reply_to.filter(|topic| !topic.contains('\0') && check_name(topic).is_ok());
    if let Some(topic) = &reply_to {
        list.push(Property::ResponseTopic(topic));
    }
    let long = match headers.get(CORRELATION) {
        Some(FieldValue::LongString(bytes)) if properties.correlation_id.is_none() => Some(&**bytes),
        _ => None,
    };
    if let Some(data) = properties.correlation_id.map(|id| id.0).or(long) {
        list.push(Property::CorrelationData(data));
    }
    for (name, value) in headers.iter() {
        let is_told =
            (name == REPLY_TO_TOPIC && reply_to.is_some()) || (name == CORRELATION && long.is_some());
        let value = match value {
            FieldValue::Void => Some(String::new()),
            value => message::as_text(value),
        };
        if let Some(value) = value.filter(|_| !is_told) {
            message::push_user_property(&mut list, name, &value);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(7_000);
    const ANNOTATED: MessageMapping = MessageMapping { form: StoredForm::Annotation, merges_dots: false };
    const PLAIN: MessageMapping = MessageMapping { form: StoredForm::Plain, merges_dots: true };

    fn incoming<'m>(qos: QoS, properties: PacketProperties<'m>) -> Incoming<'m> {
        Incoming { qos, dup: false, retain: false, properties, client_id: None }
    }

    #[test]
    fn a_plain_message_needs_no_header() {
        for (qos, delivery_mode) in [(QoS::AtMostOnce, 1), (QoS::AtLeastOnce, 2)] {
            let bytes = to_amqp(&incoming(qos, PacketProperties::NONE), ANNOTATED, NOW);
            let amqp = Properties::decode(&bytes).unwrap();
            assert_eq!(amqp, Properties::default().with_delivery_mode(delivery_mode));
            assert_eq!(outgoing("t".to_owned(), &amqp, StoredForm::Plain).qos, qos);
        }
    }

    #[test]
    fn mqtt_clients_get_all_of_a_message() {
        let long = "x".repeat(MAX_SHORT + 1);
        let list = PropertyList::new()
            .with(Property::PayloadFormatIndicator(true))
            .with(Property::ContentType(&long))
            .with(Property::ResponseTopic("answers.of/me"))
            .with(Property::CorrelationData(&[0xff, 0]))
            .with(Property::UserProperty("b", "1"))
            .with(Property::UserProperty("a", "2"))
            .with(Property::UserProperty("b", "3"))
            .with(Property::UserProperty("CC", "4"));
        let properties = list.as_properties();
        let message =
            Incoming { retain: true, client_id: Some("me"), ..incoming(QoS::ExactlyOnce, properties) };
        let bytes = to_amqp(&message, ANNOTATED, NOW);
        let amqp = Properties::decode(&bytes).unwrap();
        let read = outgoing("t".to_owned(), &amqp, StoredForm::Annotation);
        assert_eq!((read.qos, read.retain, read.client_id.as_deref()), (QoS::ExactlyOnce, true, Some("me")));
        assert_eq!(to_mqtt(&amqp, ANNOTATED, None), list);
    }

    #[test]
    fn amqp_clients_get_the_properties_that_amqp_can_express() {
        let list = PropertyList::new()
            .with(Property::ContentType("text/plain"))
            .with(Property::ResponseTopic("answers.of/me"))
            .with(Property::CorrelationData(&[0xff, 0]))
            .with(Property::MessageExpiryInterval(60))
            .with(Property::UserProperty("b", "1"))
            .with(Property::UserProperty("b", "3"))
            .with(Property::UserProperty("CC", "4"));
        let bytes = to_amqp(&incoming(QoS::AtLeastOnce, list.as_properties()), ANNOTATED, NOW);
        let amqp = Properties::decode(&bytes).unwrap();
        assert_eq!((amqp.content_type, amqp.reply_to), (Some("text/plain"), None));
        assert_eq!((amqp.expiration, amqp.timestamp), (Some("60000"), Some(7)));
        assert_eq!(amqp.correlation_id, None);
        let mut headers = amqp.headers.unwrap().decode();
        headers.remove(ANNOTATION);
        let expected: FieldTable = [
            (REPLY_TO_TOPIC, FieldValue::text("answers/of.me")),
            (CORRELATION, FieldValue::LongString([0xff, 0][..].into())),
            ("b", FieldValue::text("1")),
        ]
        .into_iter()
        .collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn amqp_headers_become_properties_and_user_properties() {
        let headers: FieldTable = [
            (REPLY_TO_TOPIC, FieldValue::text("answers.me")),
            (CORRELATION, FieldValue::text("c")),
            ("nothing", FieldValue::Void),
            ("x-mqtt-dup", FieldValue::Boolean(true)),
        ]
        .into_iter()
        .collect();
        let encoded = headers.encode();
        let amqp = Properties::default().with_headers(RawTable::check(&encoded).unwrap()).with_reply_to("q");
        let expected = PropertyList::new()
            .with(Property::ResponseTopic("answers/me"))
            .with(Property::CorrelationData(b"c"))
            .with(Property::UserProperty("nothing", ""))
            .with(Property::UserProperty("x-mqtt-dup", "true"));
        assert_eq!(to_mqtt(&amqp, PLAIN, None), expected);
        // correlation_id is the message's own.
        let both = amqp.with_correlation_id(ShortBytes(b"d"));
        let list = to_mqtt(&both, PLAIN, None);
        assert_eq!(list.as_properties().correlation_data(), Some(&b"d"[..]));
        assert!(list.as_properties().user_properties().any(|pair| pair == (CORRELATION, "c")));
    }
}
