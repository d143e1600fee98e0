//! Finds the bindings of one exchange that match a message.
//!
//! An exchange stores each distinct binding key, and each distinct set of arguments, once ([`patterns`]),
//! with its destinations if the exchange type uses it. Each type adds its own way to find those that match.

mod consistent_hash;
mod headers;
mod id_set;
mod local_random;
mod patterns;
mod topic;
mod topic_index;

use std::borrow::Cow;

use amqp::FieldTable;

use consistent_hash::ConsistentHash;
pub(crate) use consistent_hash::{check_arguments as check_hash_arguments, weight_of};
use headers::HeadersTable;
pub(crate) use headers::check_arguments as check_headers_arguments;
use id_set::IdSet;
use local_random::LocalRandom;
pub(crate) use local_random::check_binding as check_local_random_binding;
use patterns::Patterns;
use topic::Topic;
pub use topic_index::TopicIndex;

use crate::compatibility::Compatibility;

/// The type of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// The binding key equals the routing key.
    Direct,
    /// All bindings match.
    Fanout,
    /// The binding key is a pattern of words with wildcards.
    Topic,
    /// The binding's arguments match the message's headers.
    Headers,
    /// One binding for each message, chosen by a hash and the bindings' weights.
    ConsistentHash,
    /// One bound queue for each message, chosen at random.
    LocalRandom,
}

impl ExchangeKind {
    /// The type with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "direct" => Self::Direct,
            "fanout" => Self::Fanout,
            "topic" => Self::Topic,
            "headers" => Self::Headers,
            "x-consistent-hash" => Self::ConsistentHash,
            "x-local-random" => Self::LocalRandom,
            _ => return None,
        })
    }

    /// The name as in `exchange.declare`, such as `x-consistent-hash`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
            Self::LocalRandom => "x-local-random",
        }
    }

    /// Whether the RabbitMQ that is followed has this type.
    pub fn exists_in(self, compatibility: Compatibility) -> bool {
        self != Self::LocalRandom || compatibility == Compatibility::V4
    }
}

/// The parts of a message used for routing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routed<'a> {
    /// The routing key, followed by those from the headers CC and BCC.
    pub(crate) keys: &'a [&'a str],
    /// The message's headers, encoded.
    pub(crate) headers: &'a [u8],
    /// All its properties, including headers, as in the content header.
    pub(crate) properties: &'a [u8],
}

/// A binding's key and arguments, as numbers in its exchange's [`Router`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BindingPattern {
    key: u32,
    arguments: u32,
}

/// The routing table of one exchange. Bindings and destinations are slot numbers of the topology.
#[derive(Debug)]
pub(crate) struct Router {
    keys: Keys,
    arguments: Arguments,
    table: Table,
}

/// Distinct binding keys. A random key of 16 digits, as some clients generate, is stored inline.
type Keys = Patterns<16>;

/// Distinct arguments, sorted by name. Two short headers are stored inline, and an `x-match` takes no space.
type Arguments = Patterns<32>;

/// The index by which an exchange type finds matching keys or arguments.
#[derive(Debug)]
enum Table {
    Direct,
    Fanout(IdSet),
    Topic(Box<Topic>),
    Headers(Box<HeadersTable>),
    ConsistentHash(Box<ConsistentHash>),
    LocalRandom(Box<LocalRandom>),
}

impl Router {
    /// Creates the table of a new exchange, whose arguments have been checked.
    pub(crate) fn new(kind: ExchangeKind, arguments: &FieldTable) -> Self {
        let table = match kind {
            ExchangeKind::Direct => Table::Direct,
            ExchangeKind::Fanout => Table::Fanout(IdSet::default()),
            ExchangeKind::Topic => Table::Topic(Box::default()),
            ExchangeKind::Headers => Table::Headers(Box::default()),
            ExchangeKind::ConsistentHash => Table::ConsistentHash(Box::new(ConsistentHash::new(arguments))),
            ExchangeKind::LocalRandom => Table::LocalRandom(Box::default()),
        };
        Self { keys: Keys::default(), arguments: Arguments::default(), table }
    }

    /// The numbers of a key and arguments, if a binding has them.
    pub(crate) fn find(&self, key: &str, arguments: &[u8]) -> Option<BindingPattern> {
        let key = self.keys.number_of(key.as_bytes())?;
        let arguments = match self.table {
            Table::Headers(_) => self.arguments.number_of(&headers::keep(arguments))?,
            _ if arguments.is_empty() => NO_ARGUMENTS,
            _ => self.arguments.number_of(arguments)?,
        };
        Some(BindingPattern { key, arguments })
    }

    /// The numbers of a key and arguments. New ones must get a binding with [`Router::insert`]; they are new
    /// only if no binding has both.
    pub(crate) fn intern(&mut self, key: &str, arguments: &[u8]) -> BindingPattern {
        let key = self.keys.intern(key.as_bytes());
        let arguments = match self.table {
            Table::Headers(_) => self.arguments.intern(&headers::keep(arguments)),
            // Nearly all bindings have no arguments, which only a headers exchange uses.
            _ if arguments.is_empty() => NO_ARGUMENTS,
            _ => self.arguments.intern(arguments),
        };
        BindingPattern { key, arguments }
    }

    /// The key and the arguments with these numbers.
    pub(crate) fn bytes(&self, pattern: BindingPattern) -> (&str, Cow<'_, [u8]>) {
        // It was interned from a `&str`.
        let key = std::str::from_utf8(self.keys.bytes(pattern.key)).unwrap_or_default();
        let arguments = match (&self.table, pattern.arguments) {
            (_, NO_ARGUMENTS) => Cow::Borrowed(&[][..]),
            (Table::Headers(_), arguments) => Cow::Owned(headers::given(self.arguments.bytes(arguments))),
            (_, arguments) => Cow::Borrowed(self.arguments.bytes(arguments)),
        };
        (key, arguments)
    }

    /// Adds a binding that is not in the table.
    pub(crate) fn insert(&mut self, binding: u32, destination: u32, pattern: BindingPattern) {
        let BindingPattern { key, arguments } = pattern;
        let (key_leads_to, arguments_lead_to) = self.ends(destination);
        let new_key = self.keys.insert(key, key_leads_to);
        let new_arguments = arguments != NO_ARGUMENTS && self.arguments.insert(arguments, arguments_lead_to);
        match &mut self.table {
            Table::Direct => {}
            Table::Fanout(set) => set.insert(destination),
            Table::Topic(table) if new_key => table.insert(&self.keys, key),
            Table::Topic(_) => {}
            Table::Headers(table) if new_arguments => table.insert(&self.arguments, arguments),
            Table::Headers(_) => {}
            Table::ConsistentHash(table) => table.insert(binding, destination, weight(&self.keys, key)),
            Table::LocalRandom(table) => table.insert(destination),
        }
    }

    /// Removes a binding that is in the table.
    pub(crate) fn remove(&mut self, binding: u32, destination: u32, pattern: BindingPattern) {
        let BindingPattern { key, arguments } = pattern;
        let (key_leads_to, arguments_lead_to) = self.ends(destination);
        let key_goes = self.keys.remove(key, key_leads_to);
        let arguments_go = arguments != NO_ARGUMENTS && self.arguments.remove(arguments, arguments_lead_to);
        match &mut self.table {
            Table::Direct => {}
            Table::Fanout(set) => {
                set.remove(destination);
            }
            Table::Topic(table) if key_goes => table.remove(&self.keys, key),
            Table::Topic(_) => {}
            Table::Headers(table) if arguments_go => table.remove(&self.arguments, arguments),
            Table::Headers(_) => {}
            Table::ConsistentHash(table) => table.remove(binding, destination),
            Table::LocalRandom(table) => table.remove(destination),
        }
        if key_goes {
            self.keys.forget(key);
        }
        if arguments_go {
            self.arguments.forget(arguments);
        }
    }

    /// Calls `found` with the matching destinations, some perhaps more than once.
    pub(crate) fn matches(&self, routed: Routed<'_>, mut found: impl FnMut(u32)) {
        match &self.table {
            Table::Fanout(set) => set.iter().for_each(found),
            Table::ConsistentHash(table) => table.choose(routed).into_iter().for_each(found),
            Table::LocalRandom(table) => table.choose().into_iter().for_each(found),
            Table::Headers(table) => table.matches(&self.arguments, routed.headers, found),
            Table::Direct => {
                let numbers = routed.keys.iter().filter_map(|key| self.keys.number_of(key.as_bytes()));
                numbers.flat_map(|number| self.keys.destinations(number).iter()).for_each(found);
            }
            Table::Topic(table) => {
                for key in routed.keys {
                    let each = |number| self.keys.destinations(number).iter().for_each(&mut found);
                    table.matches(&self.keys, key, each);
                }
            }
        }
    }

    /// Whether routing depends on a message's headers.
    pub(crate) fn looks_at_headers(&self) -> bool {
        matches!(self.table, Table::Headers(_))
    }

    /// Whether two messages with the same keys and headers may have different routes.
    pub(crate) fn routes_each_message(&self) -> bool {
        match &self.table {
            Table::ConsistentHash(table) => table.looks_at_properties(),
            Table::LocalRandom(_) => true,
            Table::Direct | Table::Fanout(_) | Table::Topic(_) | Table::Headers(_) => false,
        }
    }

    /// The destinations of the key and of the arguments of a binding. For the one that the exchange type does
    /// not use, bindings are only counted, under one destination for all.
    fn ends(&self, destination: u32) -> (u32, u32) {
        match self.table {
            Table::Direct | Table::Topic(_) => (destination, NOWHERE),
            Table::Headers(_) => (NOWHERE, destination),
            Table::Fanout(_) | Table::ConsistentHash(_) | Table::LocalRandom(_) => (NOWHERE, NOWHERE),
        }
    }
}

/// The weight given by a key. Keys were checked when they were bound.
fn weight(keys: &Keys, key: u32) -> u32 {
    std::str::from_utf8(keys.bytes(key)).ok().and_then(|key| weight_of(key).ok()).unwrap_or(1)
}

/// Represents empty arguments, which are not stored.
const NO_ARGUMENTS: u32 = u32::MAX;

/// A placeholder destination.
const NOWHERE: u32 = 0;
