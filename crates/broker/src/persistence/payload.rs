//! The format of a message in the store.
//!
//! ```text
//! u8      form, 1; 2 if the header x-death is the broker's own; 3 and 4 are these two with an annotation in the headers
//! text    exchange
//! number  length of the routing key
//! number  length of the properties
//! number  blind copies, and each of them as a text
//!         routing key
//!         properties, as in a content header
//!         body, up to the end
//! ```
//! Numbers have seven bits in each byte, the lowest first, with the top bit set if more bytes follow; a text
//! is its length and its bytes. Values that the broker takes from the properties are not stored, but read from these again.

use smallvec::SmallVec;

use crate::inspect::broker_properties_of;
use crate::lru::LruList;
use crate::message::{Body, BodyView, BrokerProperties, Message};
use crate::names::ExchangeName;

/// Passes the payload of a message to `write`, in parts that are not copied.
pub(super) fn with_parts<R>(message: &Message, write: impl FnOnce(&[&[u8]]) -> R) -> R {
    let mut head: SmallVec<[u8; USUAL_HEAD]> = SmallVec::new();
    head.push(form_of(message.broker_properties()));
    put_text(&mut head, message.exchange());
    put_number(&mut head, message.routing_key().len());
    put_number(&mut head, message.properties().len());
    put_number(&mut head, message.blind_copies().count());
    message.blind_copies().for_each(|key| put_text(&mut head, key));
    let mut parts: SmallVec<[&[u8]; 4]> = SmallVec::new();
    parts.push(&head);
    parts.push(message.bytes());
    if let BodyView::Chunks(chunks) = message.body() {
        parts.extend(chunks.iter().map(|chunk| &chunk[..]));
    }
    write(&parts)
}

/// Bytes of the body in a payload, which count towards queue lengths.
pub fn body_bytes(payload: &[u8]) -> u32 {
    let body = || {
        let mut rest = payload.get(1..)?;
        take_text(&mut rest)?;
        let (key, properties) = (take_number(&mut rest)?, take_number(&mut rest)?);
        for _ in 0..take_number(&mut rest)? {
            take_text(&mut rest)?;
        }
        rest.len().checked_sub(key.checked_add(properties)?)
    };
    body().and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(0)
}

/// Decodes payloads. Messages share the name of their exchange, if few other exchanges occur in between.
#[derive(Default)]
pub(super) struct Decoder {
    exchanges: LruList<ExchangeName>,
}

impl Decoder {
    /// Decodes a payload; `None` if it was not produced by [`with_parts`] of this or an earlier version.
    pub(super) fn decode(&mut self, mut payload: &[u8]) -> Option<Message> {
        let from = &mut payload;
        let (&[form], rest) = from.split_first_chunk()?;
        let marks = form.checked_sub(FORM).filter(|marks| marks & !(DEAD_LETTER | ANNOTATED) == 0)?;
        let (is_dead_letter, is_annotated) = (marks & DEAD_LETTER != 0, marks & ANNOTATED != 0);
        *from = rest;
        let exchange = take_text(from)?;
        let (key, properties) = (take_number(from)?, take_number(from)?);
        let mut blind_copies: SmallVec<[&str; 2]> = SmallVec::new();
        for _ in 0..take_number(from)? {
            blind_copies.push(take_text(from)?);
        }
        let key = std::str::from_utf8(take(from, key)?).ok()?;
        let properties = take(from, properties)?;
        let broker_properties =
            BrokerProperties { is_dead_letter, is_annotated, ..broker_properties_of(properties)? };
        let message =
            Message::new(self.shared(exchange), key, properties, Body::Copied(payload), broker_properties);
        Some(message.with_blind_copies(&blind_copies))
    }

    fn shared(&mut self, exchange: &str) -> ExchangeName {
        self.exchanges.get_or_insert_with(|known| **known == *exchange, || exchange.into()).clone()
    }
}

fn form_of(broker_properties: BrokerProperties) -> u8 {
    let mark = |is_set, mark| if is_set { mark } else { 0 };
    FORM + mark(broker_properties.is_dead_letter, DEAD_LETTER)
        + mark(broker_properties.is_annotated, ANNOTATED)
}

fn put_text(into: &mut SmallVec<[u8; USUAL_HEAD]>, text: &str) {
    put_number(into, text.len());
    into.extend_from_slice(text.as_bytes());
}

fn put_number(into: &mut SmallVec<[u8; USUAL_HEAD]>, mut number: usize) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    let len = take_number(from)?;
    std::str::from_utf8(take(from, len)?).ok()
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(taken)
}

fn take_number(from: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..MAX_NUMBER_BITS).step_by(7) {
        let (&[byte], rest) = from.split_first_chunk()?;
        *from = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// First byte of a payload, which identifies the version of its format.
const FORM: u8 = 1;
/// Added to it for a message with such properties.
const DEAD_LETTER: u8 = 1;
const ANNOTATED: u8 = 2;
/// Bytes on the stack for the fields before the routing key: an exchange's name, and a few more.
const USUAL_HEAD: usize = 96;
/// Lengths are below 2^35: a record is below 4 GiB.
const MAX_NUMBER_BITS: u32 = 35;

#[cfg(test)]
mod tests {
    use amqp::Properties;
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::message::MAX_INLINE_BODY;

    fn encode(message: &Message) -> Vec<u8> {
        with_parts(message, |parts| parts.concat())
    }

    fn properties(expiration: Option<&str>, priority: Option<u8>) -> Vec<u8> {
        let mut properties = Properties::default().with_delivery_mode(2);
        properties.expiration = expiration;
        properties.priority = priority;
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was(
            exchange in ".{0,20}", key in ".{0,80}", body in prop::collection::vec(any::<u8>(), 0..3 * MAX_INLINE_BODY),
            cut: prop::sample::Index, chunked: bool, blind in prop::collection::vec("[a-z]{0,20}", 0..3),
            expiration in prop::option::of(0u32..), priority: Option<u8>, is_dead_letter: bool,
            is_annotated: bool,
        ) {
            let expiration = expiration.map(|millis| millis.to_string());
            let properties = properties(expiration.as_deref(), priority);
            let broker_properties = BrokerProperties { is_dead_letter, is_annotated, ..broker_properties_of(&properties).unwrap() };
            let at = cut.index(body.len() + 1);
            let chunks = [Bytes::copy_from_slice(&body[..at]), Bytes::copy_from_slice(&body[at..])];
            let given = if chunked { Body::Chunks(&chunks) } else { Body::Copied(&body) };
            let blind: Vec<&str> = blind.iter().map(|key| &**key).collect();
            let message = Message::new(exchange.as_str().into(), &key, &properties, given, broker_properties).with_blind_copies(&blind);
            let back = Decoder::default().decode(&encode(&message)).unwrap();
            prop_assert_eq!((back.exchange(), back.routing_key()), (&*exchange, &*key));
            prop_assert_eq!((back.properties(), back.body().to_vec()), (&*properties, body));
            prop_assert_eq!(body_bytes(&encode(&message)) as usize, back.body_len());
            prop_assert_eq!(back.broker_properties(), broker_properties);
            prop_assert_eq!(back.blind_copies().collect::<Vec<_>>(), blind);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 1..200), form: bool) {
            if form {
                bytes[0] = FORM;
            }
            let _ = Decoder::default().decode(&bytes);
            let _ = body_bytes(&bytes);
        }
    }

    #[test]
    fn these_are_the_bytes() {
        let properties = properties(None, None);
        let broker_properties = broker_properties_of(&properties).unwrap();
        let message = Message::new("ex".into(), "key", &properties, Body::Copied(b"body"), broker_properties);
        assert_eq!(encode(&message), b"\x01\x02ex\x03\x03\x00key\x10\x00\x02body");
        let message = message.with_blind_copies(&["b"]);
        assert_eq!(encode(&message), b"\x01\x02ex\x03\x03\x01\x01bkey\x10\x00\x02body");
        let broker_properties = BrokerProperties { is_dead_letter: true, ..broker_properties };
        let message = Message::new("ex".into(), "key", &properties, Body::Copied(b"body"), broker_properties);
        assert_eq!(encode(&message), b"\x02\x02ex\x03\x03\x00key\x10\x00\x02body");
        for (is_dead_letter, form) in [(false, 3), (true, 4)] {
            let broker_properties =
                BrokerProperties { is_dead_letter, is_annotated: true, ..broker_properties };
            let message =
                Message::new("ex".into(), "key", &properties, Body::Copied(b"body"), broker_properties);
            assert_eq!(encode(&message)[0], form);
        }
    }

    #[test]
    fn messages_of_the_same_exchange_share_its_name() {
        let mut decoder = Decoder::default();
        let mut decoded = |exchange: &str| {
            let properties = properties(None, None);
            let broker_properties = broker_properties_of(&properties).unwrap();
            let message =
                Message::new(exchange.into(), "key", &properties, Body::Copied(b""), broker_properties);
            decoder.decode(&encode(&message)).unwrap()
        };
        let [first, other, again] = ["one", "another", "one"].map(&mut decoded);
        assert_eq!((first.exchange(), other.exchange()), ("one", "another"));
        assert!(std::ptr::eq(first.exchange(), again.exchange()));
    }

    #[test]
    fn another_form_is_not_taken_for_this_one() {
        assert!(Decoder::default().decode(b"\x05\x02ex\x03\x03\x00key\x10\x00\x02body").is_none());
    }
}
