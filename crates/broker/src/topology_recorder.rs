//! The stored form of a virtual host's topology: durable exchanges and queues, and bindings between them.
//!
//! Exchanges and queues have numbers that are never reused, and bindings are stored under the numbers of
//! their ends. An exchange or queue that is deleted and declared again therefore does not inherit bindings of
//! its predecessor that a crash left behind.

use std::sync::Arc;

use amqp::RawTable;
use store::catalogue::{Catalogue, Section};

use crate::queue::Queue;
use crate::routing::ExchangeKind;
use crate::topology::{Exchange, NumberedEnd};

/// Stores the changes to one virtual host's topology.
pub(crate) struct TopologyRecorder {
    catalogue: Arc<Catalogue>,
    vhost: Arc<str>,
}

impl TopologyRecorder {
    pub(crate) fn new(catalogue: Arc<Catalogue>, vhost: Arc<str>) -> Self {
        Self { catalogue, vhost }
    }

    pub(crate) fn new_number(&self) -> u64 {
        self.catalogue.new_id()
    }

    pub(crate) fn exchange_declared(&self, exchange: &Exchange, number: u64) {
        let flags = flag(exchange.auto_delete, AUTO_DELETE) | flag(exchange.internal, INTERNAL);
        let mut value = start_value(number, flags);
        push_text(&mut value, exchange.kind.name());
        value.extend_from_slice(&exchange.arguments.encode());
        self.catalogue.put(Section::Exchanges, key(&[&self.vhost, &exchange.name]), value);
    }

    pub(crate) fn exchange_deleted(&self, name: &str) {
        self.catalogue.delete(Section::Exchanges, key(&[&self.vhost, name]));
    }

    pub(crate) fn queue_declared(&self, queue: &Queue, number: u64) {
        let properties = queue.properties();
        let mut value = start_value(number, flag(properties.auto_delete, AUTO_DELETE));
        value.extend_from_slice(&queue.own_arguments().encode());
        self.catalogue.put(Section::Queues, key(&[&self.vhost, queue.name()]), value);
    }

    pub(crate) fn queue_deleted(&self, name: &str) {
        self.catalogue.delete(Section::Queues, key(&[&self.vhost, name]));
    }

    pub(crate) fn bound(&self, source: u64, to: NumberedEnd, routing_key: &str, arguments: &[u8]) {
        let key = binding_key(source, to, routing_key, arguments);
        self.catalogue.put(Section::Bindings, key, Vec::new());
    }

    pub(crate) fn unbound(&self, source: u64, to: NumberedEnd, routing_key: &str, arguments: &[u8]) {
        self.catalogue.delete(Section::Bindings, binding_key(source, to, routing_key, arguments));
    }
}

/// An exchange or a queue as it was stored.
#[derive(Debug, PartialEq)]
pub(crate) struct WrittenEnd<'a> {
    pub(crate) vhost: &'a str,
    pub(crate) name: &'a str,
    pub(crate) number: u64,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
    /// The type, for exchanges only.
    pub(crate) kind: Option<ExchangeKind>,
    pub(crate) arguments: RawTable<'a>,
}

/// A binding as it was stored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrittenBinding<'a> {
    pub(crate) source: u64,
    pub(crate) to: NumberedEnd,
    pub(crate) routing_key: &'a str,
    pub(crate) arguments: &'a [u8],
}

/// Decodes an exchange; `None` if it is malformed.
pub(crate) fn read_exchange<'a>(key: &'a [u8], value: &'a [u8]) -> Option<WrittenEnd<'a>> {
    let (mut end, mut rest) = read_end(key, value)?;
    end.kind = Some(ExchangeKind::from_name(take_text(&mut rest)?)?);
    end.arguments = RawTable::check(rest).ok()?;
    Some(end)
}

/// Decodes a queue; `None` if it is malformed.
pub(crate) fn read_queue<'a>(key: &'a [u8], value: &'a [u8]) -> Option<WrittenEnd<'a>> {
    let (mut end, rest) = read_end(key, value)?;
    end.arguments = RawTable::check(rest).ok()?;
    Some(end)
}

/// Decodes a binding; `None` if it is malformed.
pub(crate) fn read_binding(key: &[u8]) -> Option<WrittenBinding<'_>> {
    let (source, rest) = key.split_first_chunk()?;
    let (&[kind], rest) = rest.split_first_chunk()?;
    let (number, mut rest) = rest.split_first_chunk()?;
    let to = NumberedEnd { is_exchange: kind == EXCHANGE, number: u64::from_be_bytes(*number) };
    let routing_key = take_text(&mut rest)?;
    Some(WrittenBinding { source: u64::from_be_bytes(*source), to, routing_key, arguments: rest })
}

/// Encodes names, each preceded by its length: AMQP names have at most 255 bytes.
pub(crate) fn key(names: &[&str]) -> Vec<u8> {
    let mut key = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    names.iter().for_each(|name| push_text(&mut key, name));
    key
}

fn binding_key(source: u64, to: NumberedEnd, routing_key: &str, arguments: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(18 + routing_key.len() + arguments.len());
    key.extend_from_slice(&source.to_be_bytes());
    key.push(if to.is_exchange { EXCHANGE } else { QUEUE });
    key.extend_from_slice(&to.number.to_be_bytes());
    push_text(&mut key, routing_key);
    key.extend_from_slice(arguments);
    key
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn start_value(number: u64, flags: u8) -> Vec<u8> {
    let mut value = vec![FORM];
    value.extend_from_slice(&number.to_be_bytes());
    value.push(flags);
    value
}

/// Decodes the part that exchanges and queues have in common, and returns it with the rest.
fn read_end<'a>(mut key: &'a [u8], value: &'a [u8]) -> Option<(WrittenEnd<'a>, &'a [u8])> {
    let (vhost, name) = (take_text(&mut key)?, take_text(&mut key)?);
    let (&[FORM], rest) = value.split_first_chunk()? else { return None };
    let (number, rest) = rest.split_first_chunk()?;
    let (&[flags], rest) = rest.split_first_chunk()?;
    let end = WrittenEnd {
        vhost,
        name,
        number: u64::from_be_bytes(*number),
        auto_delete: flags & AUTO_DELETE != 0,
        internal: flags & INTERNAL != 0,
        kind: None,
        arguments: RawTable::default(),
    };
    Some((end, rest))
}

fn push_text(into: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= 255, "short strings have 255 bytes at most");
    into.push(text.len() as u8);
    into.extend_from_slice(text.as_bytes());
}

fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    let (&[len], rest) = from.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(len.into())?;
    *from = rest;
    std::str::from_utf8(text).ok()
}

/// First byte of an entry, which identifies the version of its format.
const FORM: u8 = 1;
const AUTO_DELETE: u8 = 1;
const INTERNAL: u8 = 2;
const QUEUE: u8 = 0;
const EXCHANGE: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bindings_are_read_as_they_were_written(
            source: u64, is_exchange: bool, number: u64, routing_key in ".{0,60}",
            arguments in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let to = NumberedEnd { is_exchange, number };
            let written = binding_key(source, to, &routing_key, &arguments);
            let expected = WrittenBinding { source, to, routing_key: &routing_key, arguments: &arguments };
            prop_assert_eq!(read_binding(&written), Some(expected));
        }

        #[test]
        fn reading_damaged_entries_does_not_panic(
            key in prop::collection::vec(any::<u8>(), 0..40), value in prop::collection::vec(0u8..4, 0..40),
        ) {
            let _ = (read_exchange(&key, &value), read_queue(&key, &value), read_binding(&key));
        }
    }
}
