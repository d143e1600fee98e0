//! The format of an entry of the log of retained messages.
//!
//! The header [`HEADER`], a byte array, has what the message itself does not: RabbitMQ 3.10 drops arrays and tables from
//! the headers of a stream's messages. The routing key is the topic's, and the body is the payload.
//!
//! ```text
//! u8   kind: 252 original, 253 copy, 254 copy of a removal, 255 marker
//! u64  version, of copies alone
//! u8   QoS                                           \
//! u64  milliseconds since 1970 of its expiry, or 0    } of originals and copies
//!      properties of the PUBLISH packet              /
//! u64  process and u64 number, of markers alone
//! ```

use amqp::properties::{PERSISTENT, find_header};
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::Timestamp;
use bytes::Bytes;
use mqtt::topic::{check_name, merged};
use mqtt::{Holder, PacketProperties, Property, PropertyList, QoS};

use super::LOG;
use crate::mqtt::message::{Incoming, stored_properties};
use crate::mqtt::retained::RetainedMessage;

/// The header of an entry.
const HEADER: &str = "x-leveret-retained";

/// The header that RabbitMQ adds to a stream's messages.
const OFFSET: &str = "x-stream-offset";

/// The first word of a retained message's second routing key.
const FIRST_WORD: &str = "%leveret-retained";

/// The key by which the log is bound. A pattern whose wildcard matches the first word of one routing key of a message
/// also matches the other key, so no other queue receives a message through the second key alone.
pub(super) const BINDING_KEY: &str = "%leveret-retained.#";

// Not valid in UTF-8, so that no text of a client is mistaken for an entry.
const ORIGINAL: u8 = 252;
const COPY: u8 = 253;
const REMOVAL: u8 = 254;
const MARKER: u8 = 255;

/// Bytes of an entry in the log besides payload, key and header: more than RabbitMQ needs, so that copies are made early
/// enough.
const OWN_BYTES: u64 = 160;

/// A decoded entry.
#[derive(Debug, PartialEq)]
pub(super) enum LogEntry {
    /// A topic's message was set or removed.
    Topic(TopicEntry),
    /// The marker of a process that waits for the log's end to be read.
    Marker { process: u64, number: u64 },
    /// A message that somebody else published.
    Foreign,
}

/// A topic's message, or its removal.
#[derive(Debug, PartialEq)]
pub(super) struct TopicEntry {
    /// A copy's version; an original's is its offset.
    pub(super) version: Option<u64>,
    pub(super) topic: Box<str>,
    /// `None` if it was removed.
    pub(super) message: Option<RetainedMessage>,
}

/// An entry with its offset.
#[derive(Debug, PartialEq)]
pub(super) struct Placed {
    pub(super) offset: u64,
    /// Its bytes in the log, approximately.
    pub(super) size: u64,
    pub(super) entry: LogEntry,
}

/// An encoded entry: a message for the upstream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Encoded {
    pub(super) routing_key: Box<str>,
    /// The encoded flags and list.
    pub(super) properties: Vec<u8>,
    pub(super) body: Bytes,
}

/// The second routing key of a retained message.
pub(super) fn second_key(routing_key: &str) -> String {
    let rest = routing_key.find('.').map_or("", |at| &routing_key[at..]);
    format!("{FIRST_WORD}{rest}")
}

/// The header of a message as a client publishes it.
pub(super) fn original(message: &Incoming<'_>, now: Timestamp) -> (&'static str, FieldValue) {
    let expiry = message.properties.message_expiry_interval();
    let expires = expiry.map(|seconds| now.after(u64::from(seconds) * 1000));
    let mut bytes = vec![ORIGINAL];
    describe(message.qos, expires, &stored_properties(&message.properties), &mut bytes);
    (HEADER, FieldValue::ByteArray(bytes))
}

/// A copy of a topic's message.
pub(super) fn copy(version: u64, message: &RetainedMessage) -> Encoded {
    let mut bytes = vec![COPY];
    bytes.extend_from_slice(&version.to_be_bytes());
    describe(message.qos, message.expires, &message.properties, &mut bytes);
    encode(&message.topic, bytes, message.payload.clone())
}

/// A copy of the removal of a topic's message.
pub(super) fn removal(version: u64, topic: &str) -> Encoded {
    let mut bytes = vec![REMOVAL];
    bytes.extend_from_slice(&version.to_be_bytes());
    encode(topic, bytes, Bytes::new())
}

/// A marker of this process.
pub(super) fn marker(process: u64, number: u64) -> Encoded {
    let mut bytes = vec![MARKER];
    bytes.extend_from_slice(&process.to_be_bytes());
    bytes.extend_from_slice(&number.to_be_bytes());
    encode("", bytes, Bytes::new())
}

fn describe(qos: QoS, expires: Option<Timestamp>, properties: &PropertyList, out: &mut Vec<u8>) {
    out.push(qos as u8);
    out.extend_from_slice(&expires.map_or(0, |at| at.0).to_be_bytes());
    out.extend_from_slice(properties.as_properties().bytes());
}

fn encode(topic: &str, header: Vec<u8>, body: Bytes) -> Encoded {
    let headers: FieldTable = [(HEADER, FieldValue::ByteArray(header))].into_iter().collect();
    let headers = headers.encode();
    let mut amqp = Properties::default().with_delivery_mode(PERSISTENT);
    amqp.headers = RawTable::check(&headers).ok();
    let mut properties = Vec::new();
    amqp.encode(&mut properties);
    Encoded { routing_key: mqtt::topic::topic_to_routing_key(topic).into(), properties, body }
}

/// Decodes a message of the log. Originals come through `publishers`, the exchange of MQTT clients; copies and markers
/// through the log's exchange, to which fewer users may publish. Returns `None` if the queue is not a stream: a stream's
/// messages always have an offset.
pub(super) fn read(
    publishers: &str,
    exchange: &str,
    routing_key: &str,
    properties: &[u8],
    body: &[u8],
) -> Option<Placed> {
    let size = OWN_BYTES + (routing_key.len() + properties.len() + body.len()) as u64;
    let offset = find_header(properties, OFFSET)?.as_integer()?;
    let offset = u64::try_from(offset).ok()?;
    let header = match find_header(properties, HEADER) {
        // RabbitMQ 4 turns a byte array into a long string.
        Some(FieldValue::ByteArray(header) | FieldValue::LongString(header)) => header,
        _ => return Some(Placed { offset, size, entry: LogEntry::Foreign }),
    };
    let kind = header.first().copied().unwrap_or_default();
    let is_at_home = if kind == ORIGINAL { exchange == publishers } else { exchange == LOG };
    let entry = is_at_home.then(|| entry(routing_key, &header, body)).flatten().filter(|entry| match entry {
        // A version above the entry's own offset would hide all later entries.
        LogEntry::Topic(topic) => topic.version.is_none_or(|version| version < offset),
        _ => true,
    });
    Some(Placed { offset, size, entry: entry.unwrap_or(LogEntry::Foreign) })
}

fn entry(routing_key: &str, header: &[u8], body: &[u8]) -> Option<LogEntry> {
    let (kind, rest) = header.split_first()?;
    if *kind == MARKER {
        let (process, rest) = number(rest)?;
        let (number, _) = number(rest)?;
        return Some(LogEntry::Marker { process, number });
    }
    let topic = merged(routing_key);
    check_name(&topic).ok().filter(|()| !topic.contains('\0'))?;
    let topic: Box<str> = (*topic).into();
    let (version, rest) = match *kind {
        ORIGINAL => (None, rest),
        COPY | REMOVAL => number(rest).map(|(version, rest)| (Some(version), rest))?,
        _ => return None,
    };
    if *kind == REMOVAL || body.is_empty() {
        return Some(LogEntry::Topic(TopicEntry { version, topic, message: None }));
    }
    let (qos, rest) = rest.split_first()?;
    let (expires, rest) = number(rest)?;
    let checked = PacketProperties::check(rest, Holder::Publish).ok()?;
    let is_publishers = |property: &Property<'_>| !matches!(property, Property::SubscriptionIdentifier(_));
    let properties = stored_properties(&checked);
    let properties = properties.as_properties().iter().filter(is_publishers);
    let message = RetainedMessage {
        topic: (*topic).into(),
        qos: QoS::from_level(*qos)?,
        properties: properties.fold(PropertyList::new(), PropertyList::with),
        payload: Bytes::copy_from_slice(body),
        expires: Some(expires).filter(|at| *at != 0).map(Timestamp),
    };
    Some(LogEntry::Topic(TopicEntry { version, topic, message: Some(message) }))
}

/// A number at the front of `bytes`, and the rest.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

/// The bytes that a message takes in the log.
pub(super) fn size_of(routing_key: &str, properties: &[u8], payload: usize) -> u64 {
    OWN_BYTES + (routing_key.len() + properties.len() + payload) as u64
}
