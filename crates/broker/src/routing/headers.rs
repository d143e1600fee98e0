//! Headers exchanges: a binding's arguments are compared with the message's headers.
//!
//! Bindings are found through an index: one that asks for *all* its pairs lies under one of them (the rarest when it
//! was made), one that asks for *any* under each. Candidates are then compared in full.

use std::hash::BuildHasher;

use amqp::{FieldTable, FieldValue};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::id_set::IdSet;
use crate::arguments::in_erlang;
use crate::error::BrokerError;
use crate::table_view::{ValueView, entries};

/// The bindings of a headers exchange, by the numbers they have in the topology, which keeps their arguments.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    /// Hash of a (name, value) pair, or of a name with a void value, to the bindings under it.
    index: HashMap<u64, IdSet, RandomState>,
    /// Bindings that ask for all of no pairs.
    always: IdSet,
    hasher: RandomState,
}

impl Headers {
    pub(super) fn insert(&mut self, binding: u32, arguments: &[u8]) {
        let pattern = Pattern::of(arguments);
        let hashes = self.hashes_of(&pattern);
        if pattern.any {
            hashes.into_iter().for_each(|hash| self.index.entry(hash).or_default().insert(binding));
            return;
        }
        let crowd = |hash: &u64| self.index.get(hash).map_or(0, IdSet::len);
        match hashes.into_iter().min_by_key(crowd) {
            Some(rarest) => self.index.entry(rarest).or_default().insert(binding),
            None => self.always.insert(binding),
        }
    }

    pub(super) fn remove(&mut self, binding: u32, arguments: &[u8]) {
        let pattern = Pattern::of(arguments);
        for hash in self.hashes_of(&pattern) {
            if let hashbrown::hash_map::Entry::Occupied(mut entry) = self.index.entry(hash) {
                entry.get_mut().remove(binding);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        self.always.remove(binding);
    }

    /// Calls `found` with each binding that matches, more than once perhaps; `arguments` gives a binding's.
    pub(super) fn matches<'a>(
        &self,
        headers: &[u8],
        arguments: impl Fn(u32) -> &'a [u8],
        mut found: impl FnMut(u32),
    ) {
        self.always.iter().for_each(&mut found);
        let message = Message::of(headers);
        let mut visit = |hash: u64| {
            for binding in self.index.get(&hash).into_iter().flat_map(IdSet::iter) {
                if Pattern::of(arguments(binding)).accepts(&message) {
                    found(binding);
                }
            }
        };
        for (name, value) in &message.headers {
            visit(self.hash(name, value));
            visit(self.hash(name, &ValueView::Void));
        }
    }

    /// Without repetition, so that removing undoes inserting.
    fn hashes_of(&self, pattern: &Pattern<'_>) -> SmallVec<[u64; 4]> {
        let mut hashes: SmallVec<[u64; 4]> =
            pattern.pairs().map(|(name, value)| self.hash(name, &value)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    fn hash(&self, name: &str, value: &ValueView<'_>) -> u64 {
        match value {
            ValueView::Void => self.hasher.hash_one((name, 0u8)),
            ValueView::Integer(value) => self.hasher.hash_one((name, 1u8, value)),
            // `0.0 == -0.0`, so both have to hash alike.
            ValueView::Float(value) => self.hasher.hash_one((name, 2u8, (value + 0.0).to_bits())),
            ValueView::Boolean(value) => self.hasher.hash_one((name, 3u8, value)),
            ValueView::Text(octets) => self.hasher.hash_one((name, 4u8, octets)),
            ValueView::Array(octets) => self.hasher.hash_one((name, 5u8, octets)),
            ValueView::Other(letter, octets) => self.hasher.hash_one((name, letter, octets)),
        }
    }
}

/// Refuses an `x-match` that RabbitMQ does not know.
pub(crate) fn check_arguments(arguments: &FieldTable) -> Result<(), BrokerError> {
    let text = match arguments.get("x-match") {
        None => return Ok(()),
        Some(FieldValue::LongString(mode)) => match &mode[..] {
            b"all" | b"any" | b"all-with-x" | b"any-with-x" => return Ok(()),
            other => format!(
                "Invalid x-match field value <<\"{}\">>; expected all, any, all-with-x, or any-with-x",
                String::from_utf8_lossy(other)
            ),
        },
        Some(other) => format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            other.type_name(),
            in_erlang(other)
        ),
    };
    Err(BrokerError::precondition(text))
}

/// What a binding asks for.
struct Pattern<'a> {
    arguments: &'a [u8],
    any: bool,
    /// Whether names that start with `x-` take part. `x-match` itself never does.
    with_x: bool,
}

impl<'a> Pattern<'a> {
    fn of(arguments: &'a [u8]) -> Self {
        let mode = match entries(arguments).find(|(name, _)| *name == "x-match") {
            Some((_, ValueView::Text(mode))) => mode,
            _ => b"all",
        };
        let (any, with_x) = match mode {
            b"any" => (true, false),
            b"any-with-x" => (true, true),
            b"all-with-x" => (false, true),
            _ => (false, false),
        };
        Self { arguments, any, with_x }
    }

    fn pairs(&self) -> impl Iterator<Item = (&'a str, ValueView<'a>)> {
        let with_x = self.with_x;
        entries(self.arguments)
            .filter(move |(name, _)| *name != "x-match" && (with_x || !name.starts_with("x-")))
    }

    fn accepts(&self, message: &Message<'_>) -> bool {
        let mut present = self.pairs().map(|(name, value)| match message.get(name) {
            None => false,
            // A binding without a value asks for presence only.
            Some(found) => value == ValueView::Void || value == found,
        });
        if self.any { present.any(|found| found) } else { present.all(|found| found) }
    }
}

/// A message's headers, sorted for looking up.
struct Message<'a> {
    headers: SmallVec<[(&'a str, ValueView<'a>); 8]>,
}

impl<'a> Message<'a> {
    fn of(headers: &'a [u8]) -> Self {
        let mut headers: SmallVec<[_; 8]> = entries(headers).collect();
        headers.sort_by_key(|(name, _)| *name);
        Self { headers }
    }

    fn get(&self, name: &str) -> Option<ValueView<'a>> {
        let at = self.headers.binary_search_by_key(&name, |(name, _)| name).ok()?;
        Some(self.headers[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, FieldValue)]) -> Vec<u8> {
        entries.iter().cloned().collect::<FieldTable>().encode()
    }

    /// Whether one binding matches, through the index.
    fn matches(binding: &[(&str, FieldValue)], headers: &[(&str, FieldValue)]) -> bool {
        let (arguments, headers) = (table(binding), table(headers));
        let mut exchange = Headers::default();
        exchange.insert(3, &arguments);
        let mut found = false;
        exchange.matches(&headers, |_| &arguments, |binding| found |= binding == 3);
        exchange.remove(3, &arguments);
        assert!(exchange.index.is_empty() && exchange.always.is_empty(), "removing left something behind");
        found
    }

    fn text(text: &str) -> FieldValue {
        FieldValue::text(text)
    }

    #[test]
    fn all_needs_every_pair_and_is_the_default() {
        let binding = [("a", text("1")), ("b", FieldValue::I32(2))];
        assert!(matches(&binding, &[("a", text("1")), ("b", FieldValue::I64(2)), ("c", text("3"))]));
        assert!(!matches(&binding, &[("a", text("1"))]));
        assert!(!matches(&binding, &[("a", text("1")), ("b", text("2"))]), "types differ");
        assert!(matches(&[], &[]), "all of nothing");
    }

    #[test]
    fn any_needs_one_pair() {
        let binding = [("x-match", text("any")), ("a", text("1")), ("b", text("2"))];
        assert!(matches(&binding, &[("b", text("2"))]));
        assert!(!matches(&binding, &[("b", text("1"))]));
        assert!(!matches(&[("x-match", text("any"))], &[("b", text("1"))]), "any of nothing");
    }

    #[test]
    fn a_void_value_asks_for_presence() {
        assert!(matches(&[("a", FieldValue::Void)], &[("a", text("whatever"))]));
        assert!(!matches(&[("a", FieldValue::Void)], &[("b", text("whatever"))]));
    }

    #[test]
    fn names_with_x_count_only_when_asked_for() {
        let binding = |mode| [("x-match", text(mode)), ("x-a", text("1")), ("b", text("2"))];
        assert!(matches(&binding("all"), &[("b", text("2"))]));
        assert!(!matches(&binding("all-with-x"), &[("b", text("2"))]));
        assert!(matches(&binding("all-with-x"), &[("b", text("2")), ("x-a", text("1"))]));
        assert!(!matches(&binding("any"), &[("x-a", text("1"))]));
        assert!(matches(&binding("any-with-x"), &[("x-a", text("1"))]));
    }

    #[test]
    fn the_rarest_pair_carries_a_binding() {
        let mut exchange = Headers::default();
        for id in 0..100 {
            let arguments = table(&[("format", text("pdf")), ("id", FieldValue::I32(id))]);
            exchange.insert(id as u32, &arguments);
        }
        assert!(exchange.index.values().all(|set| set.len() == 1));
    }

    #[test]
    fn an_unknown_x_match_is_refused_in_rabbitmqs_words() {
        let refused = |value| {
            let arguments: FieldTable = [("x-match", value)].into_iter().collect();
            check_arguments(&arguments).unwrap_err().to_string()
        };
        assert_eq!(
            refused(text("bad")),
            "Invalid x-match field value <<\"bad\">>; expected all, any, all-with-x, or any-with-x"
        );
        assert_eq!(
            refused(FieldValue::Boolean(true)),
            "Invalid x-match field type bool (value true); expected longstr"
        );
    }
}
