//! Random binding keys, and the bindings and messages that each exchange type derives from them.

use std::fmt::Write;

use amqp::properties::{NO_PROPERTIES, Properties};
use amqp::{FieldTable, FieldValue, RawTable};

use super::arguments::StudiedExchange;
use crate::random::Random;

/// The keys that each queue of a level is bound with.
#[derive(Debug)]
pub(super) struct Keys {
    kind: StudiedExchange,
    drawn: Vec<u64>,
}

/// A binding, or a message that matches it.
#[derive(Debug, Default)]
pub(super) struct KeyShape {
    pub(super) key: String,
    /// A binding's arguments, or a message's encoded properties.
    bytes: Vec<u8>,
}

impl KeyShape {
    /// The arguments of a binding.
    pub(super) fn arguments(&self) -> RawTable<'_> {
        // It was encoded by `FieldTable` and is therefore valid; without bytes it is the empty table.
        RawTable::check(&self.bytes).unwrap_or_default()
    }

    /// The properties of a message.
    pub(super) fn properties(&self) -> &[u8] {
        if self.bytes.is_empty() { NO_PROPERTIES } else { &self.bytes }
    }
}

impl Keys {
    pub(super) fn draw(kind: StudiedExchange, count: u64, random: &mut Random) -> Self {
        Self { kind, drawn: (0..count).map(|_| random.next()).collect() }
    }

    /// All bindings, in order. Of topic patterns, every fourth has a `*` and every fourth a `#`.
    pub(super) fn bindings(&self) -> Vec<KeyShape> {
        self.drawn.iter().enumerate().map(|(index, &drawn)| self.binding(index, drawn)).collect()
    }

    /// A message that matches one binding, drawn at random, of each queue (all of them on a fanout exchange).
    pub(super) fn message(&self, random: &mut Random) -> KeyShape {
        let drawn = self.drawn[random.below(self.drawn.len())];
        let mut shape = KeyShape { key: plain(self.kind, drawn), bytes: Vec::new() };
        if self.kind == StudiedExchange::Headers {
            let headers = headers(drawn).encode();
            if let Ok(headers) = RawTable::check(&headers) {
                Properties::default().with_headers(headers).encode(&mut shape.bytes);
            }
        }
        shape
    }

    fn binding(&self, index: usize, drawn: u64) -> KeyShape {
        let mut shape = KeyShape { key: plain(self.kind, drawn), bytes: Vec::new() };
        match (self.kind, index % 4) {
            (StudiedExchange::Topic, 2) => shape.key.replace_range(9..13, "*"),
            (StudiedExchange::Topic, 3) => shape.key.replace_range(14.., "#"),
            (StudiedExchange::Headers, _) => {
                let mut table = headers(drawn);
                table.insert("x-match", FieldValue::text("all"));
                shape.bytes = table.encode();
            }
            _ => {}
        }
        shape
    }
}

/// Sixteen hexadecimal digits; for a topic exchange, in three words.
fn plain(kind: StudiedExchange, drawn: u64) -> String {
    let mut key = String::with_capacity(18);
    let words = (drawn >> 32, drawn >> 16 & 0xffff, drawn & 0xffff);
    // Writing to a String cannot fail.
    let _ = match kind {
        StudiedExchange::Topic => write!(key, "{:08x}.{:04x}.{:04x}", words.0, words.1, words.2),
        _ => write!(key, "{drawn:016x}"),
    };
    key
}

fn headers(drawn: u64) -> FieldTable {
    let text = |number: u64| FieldValue::text(format!("{number:08x}"));
    [("a", text(drawn >> 32)), ("b", text(drawn & 0xffff_ffff))].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_keys_and_none_twice() {
        let keys = |seed| Keys::draw(StudiedExchange::Direct, 1000, &mut Random::new(seed)).drawn;
        assert_eq!(keys(7), keys(7));
        assert_ne!(keys(7), keys(8));
        let mut drawn = keys(7);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 1000);
    }

    #[test]
    fn topic_patterns_have_wildcards_in_place_of_words_that_messages_carry() {
        let keys = Keys { kind: StudiedExchange::Topic, drawn: vec![0x0123_4567_89ab_cdef; 4] };
        let patterns: Vec<String> = keys.bindings().into_iter().map(|shape| shape.key).collect();
        assert_eq!(
            patterns,
            ["01234567.89ab.cdef", "01234567.89ab.cdef", "01234567.*.cdef", "01234567.89ab.#"]
        );
        assert_eq!(keys.message(&mut Random::new(1)).key, "01234567.89ab.cdef");
    }

    #[test]
    fn headers_are_in_arguments_and_messages_alike() {
        let keys = Keys::draw(StudiedExchange::Headers, 1, &mut Random::new(1));
        let arguments = keys.bindings()[0].arguments().decode();
        let message = keys.message(&mut Random::new(1));
        let headers = Properties::decode(message.properties()).unwrap().headers.unwrap().decode();
        assert_eq!(arguments.get("a"), headers.get("a"));
        assert_eq!(arguments.get("b"), headers.get("b"));
        assert_eq!((arguments.len(), headers.len()), (3, 2));
    }
}
