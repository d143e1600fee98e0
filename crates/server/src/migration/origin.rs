//! Headers with the data that a message loses when it moves, appended to its own.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use amqp::properties::find_header;
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use broker::{Delivery, Queue};

/// The exchange that it was published to; empty for the default exchange.
pub(super) const EXCHANGE: &str = "x-leveret-exchange";
/// Set if it had been delivered before, since `redelivered` is reset.
const REDELIVERED: &str = "x-leveret-redelivered";
/// Its id, by which duplicates can be detected.
const ID: &str = "x-leveret-move-id";

/// Prefix of the names of migration exchanges.
const PREFIX: &str = "leveret.move.";

/// The maximum size of the properties with these headers: smaller than any frame that brokers negotiate by default (128
/// KiB), less frame and header. Larger properties are left without them.
const MAX_PROPERTIES: usize = 128 * 1024 - 64;

/// The exchange through which a queue's messages move. `broker_id` distinguishes it from those of other brokers that move
/// to the same one.
pub(super) fn exchange_for(broker_id: &str, queue: &str) -> String {
    format!("{PREFIX}{broker_id}.{:016x}", fnv(&[queue.as_bytes()]))
}

/// FNV-1a with 64 bits over the parts with their lengths: the same after every restart and in every release.
fn fnv(parts: &[&[u8]]) -> u64 {
    let lengths = parts.iter().map(|part| (part.len() as u64).to_be_bytes());
    let bytes =
        parts.iter().zip(lengths).flat_map(|(part, length)| length.into_iter().chain(part.iter().copied()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A number that distinguishes this process from earlier ones, for queues that end with it.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_nanos() as u64
    })
}

/// The origin of a message.
#[derive(Debug, Clone)]
pub(super) struct Origin<'a> {
    exchange: &'a str,
    is_redelivered: bool,
    /// The same for each copy of the message, and different for all other messages.
    id: String,
}

impl<'a> Origin<'a> {
    /// `broker_id` is the same for all migrations of this broker.
    pub(super) fn of(broker_id: &str, queue: &Queue, delivery: &'a Delivery) -> Self {
        let message = delivery.message();
        // A queue that was deleted and declared again has another number.
        let [known, number] = match queue.number() {
            Some(number) => [0, number],
            None => [process_number(), queue.id()],
        };
        let (known, number, body) = (known.to_be_bytes(), number.to_be_bytes(), message.body().to_bytes());
        // An empty queue's positions may start again after a restart.
        let (key, properties) = (message.routing_key().as_bytes(), message.properties());
        let hash = fnv(&[queue.name().as_bytes(), &known, &number, key, properties, &body]);
        let id = format!("{broker_id}-{hash:016x}-{}", delivery.position());
        Self { exchange: message.exchange(), is_redelivered: delivery.redelivered(), id }
    }
}

/// The properties with the headers of the origin appended; their own bytes are unchanged.
pub(super) fn with_origin<'p>(bytes: &'p [u8], origin: Origin<'_>) -> Cow<'p, [u8]> {
    let Ok(mut properties) = Properties::decode(bytes) else { return Cow::Borrowed(bytes) };
    let mut added = FieldTable::new();
    // A message that has moved before keeps its first origin.
    if find_header(bytes, EXCHANGE).is_none() {
        added.insert(EXCHANGE, FieldValue::text(origin.exchange));
    }
    if find_header(bytes, ID).is_none() {
        added.insert(ID, FieldValue::text(origin.id));
    }
    if origin.is_redelivered {
        added.insert(REDELIVERED, FieldValue::Boolean(true));
    }
    let own = properties.headers.map(|headers| headers.bytes()).unwrap_or_default();
    let headers = [own, &added.encode()].concat();
    if added.is_empty() || bytes.len() + headers.len() - own.len() > MAX_PROPERTIES {
        return Cow::Borrowed(bytes);
    }
    properties.headers = RawTable::check(&headers).ok();
    let mut out = Vec::with_capacity(bytes.len() + headers.len() + 4);
    properties.encode(&mut out);
    Cow::Owned(out)
}

/// The exchange that another broker's message was published to: its first origin, if it has moved to that broker before.
pub(super) fn first_exchange<'e>(exchange: &'e str, properties: &[u8]) -> Cow<'e, str> {
    if !exchange.starts_with(PREFIX) {
        return Cow::Borrowed(exchange);
    }
    let first = find_header(properties, EXCHANGE);
    match first.as_ref().and_then(FieldValue::as_text) {
        Some(first) => Cow::Owned(first.to_owned()),
        None => Cow::Borrowed(exchange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(exchange: &str, is_redelivered: bool) -> Origin<'_> {
        Origin { exchange, is_redelivered, id: "b-0-7".to_owned() }
    }

    #[test]
    fn names_are_the_same_in_every_release() {
        assert_eq!(exchange_for("b", "q"), "leveret.move.b.e6016d3a248dd039");
        assert_ne!(fnv(&[b"a", b"b"]), fnv(&[b"ab", b""]), "their lengths count");
    }

    #[test]
    fn a_messages_own_properties_stay_as_they_are() {
        let own: FieldTable =
            [("CC", FieldValue::text("x")), ("n", FieldValue::I64(1))].into_iter().collect();
        let encoded = own.encode();
        let mut bytes = Vec::new();
        let properties = Properties::default().with_priority(3).with_user_id("u");
        properties.with_headers(RawTable::check(&encoded).unwrap()).encode(&mut bytes);
        let moved = with_origin(&bytes, origin("events", true));
        let read = Properties::decode(&moved).unwrap();
        assert_eq!((read.priority, read.user_id), (Some(3), Some("u")));
        let headers = read.headers.unwrap();
        assert!(headers.bytes().starts_with(&encoded));
        let headers = headers.decode();
        assert_eq!(headers.get(EXCHANGE), Some(&FieldValue::text("events")));
        assert_eq!(headers.get(REDELIVERED), Some(&FieldValue::Boolean(true)));
        assert_eq!(headers.get(ID), Some(&FieldValue::text("b-0-7")));
        assert_eq!(first_exchange(&exchange_for("b", "q"), &moved), "events");
        assert_eq!(first_exchange("other", &moved), "other");
        // A second migration keeps the first origin.
        let again = with_origin(&moved, origin("leveret.move.0", false));
        assert_eq!(again, moved);
    }

    #[test]
    fn properties_that_leave_no_space_stay_alone() {
        let own: FieldTable = [("n", FieldValue::text("x".repeat(MAX_PROPERTIES)))].into_iter().collect();
        let encoded = own.encode();
        let mut bytes = Vec::new();
        Properties::default().with_headers(RawTable::check(&encoded).unwrap()).encode(&mut bytes);
        assert_eq!(*with_origin(&bytes, origin("", true)), *bytes);
    }
}
