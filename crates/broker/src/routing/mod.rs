//! Which bindings of one exchange match a message.

mod consistent_hash;
mod direct;
mod headers;
mod id_set;
mod topic;

use std::sync::Arc;

use amqp::FieldTable;

use consistent_hash::ConsistentHash;
pub(crate) use consistent_hash::{check_arguments as check_hash_arguments, weight_of};
use direct::Direct;
use headers::Headers;
pub(crate) use headers::check_arguments as check_headers_arguments;
use id_set::IdSet;
use topic::Topic;

/// The type of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Key equals key.
    Direct,
    /// Every binding.
    Fanout,
    /// Keys of words with wildcards.
    Topic,
    /// Headers against arguments.
    Headers,
    /// One binding each, by a hash and the bindings' weights.
    ConsistentHash,
}

impl ExchangeKind {
    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "direct" => Self::Direct,
            "fanout" => Self::Fanout,
            "topic" => Self::Topic,
            "headers" => Self::Headers,
            "x-consistent-hash" => Self::ConsistentHash,
            _ => return None,
        })
    }

    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::ConsistentHash => "x-consistent-hash",
        }
    }
}

/// What routing looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routed<'a> {
    /// The routing key, and those from the headers CC and BCC.
    pub(crate) keys: &'a [&'a str],
    /// The message's headers.
    pub(crate) headers: &'a [u8],
    /// All its properties, headers included, as in the content header.
    pub(crate) properties: &'a [u8],
}

/// One binding, as a router sees it. Destinations and bindings are numbers of the topology.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) binding: u32,
    pub(crate) destination: u32,
    pub(crate) key: &'a Arc<str>,
    pub(crate) arguments: &'a [u8],
}

/// The routing table of one exchange.
#[derive(Debug)]
pub(crate) enum Router {
    Direct(Direct),
    Fanout(IdSet),
    Topic(Box<Topic>),
    Headers(Box<Headers>),
    ConsistentHash(Box<ConsistentHash>),
}

impl Router {
    /// For a new exchange; its arguments have been checked.
    pub(crate) fn new(kind: ExchangeKind, arguments: &FieldTable) -> Self {
        match kind {
            ExchangeKind::Direct => Self::Direct(Direct::default()),
            ExchangeKind::Fanout => Self::Fanout(IdSet::default()),
            ExchangeKind::Topic => Self::Topic(Box::default()),
            ExchangeKind::Headers => Self::Headers(Box::default()),
            ExchangeKind::ConsistentHash => Self::ConsistentHash(Box::new(ConsistentHash::new(arguments))),
        }
    }

    /// Adds a binding that is not in the table yet.
    pub(crate) fn insert(&mut self, entry: Entry<'_>) {
        match self {
            Self::Direct(table) => table.insert(entry.key, entry.destination),
            Self::Fanout(set) => set.insert(entry.destination),
            Self::Topic(table) => table.insert(entry.key, entry.destination),
            Self::Headers(table) => table.insert(entry.binding, entry.arguments),
            Self::ConsistentHash(table) => table.insert(entry),
        }
    }

    /// Removes a binding that is in the table.
    pub(crate) fn remove(&mut self, entry: Entry<'_>) {
        match self {
            Self::Direct(table) => table.remove(entry.key, entry.destination),
            Self::Fanout(set) => {
                set.remove(entry.destination);
            }
            Self::Topic(table) => table.remove(entry.key, entry.destination),
            Self::Headers(table) => table.remove(entry.binding, entry.arguments),
            Self::ConsistentHash(table) => table.remove(entry),
        }
    }

    /// Calls `found` with the destinations that match, some perhaps more than once. `binding` looks a binding up:
    /// its destination and its arguments.
    pub(crate) fn matches<'t>(
        &self,
        routed: Routed<'_>,
        binding: impl Fn(u32) -> (u32, &'t [u8]),
        mut found: impl FnMut(u32),
    ) {
        match self {
            Self::Fanout(set) => set.iter().for_each(found),
            Self::Headers(table) => {
                table.matches(routed.headers, |id| binding(id).1, |id| found(binding(id).0));
            }
            Self::ConsistentHash(table) => table.choose(routed).into_iter().for_each(found),
            Self::Direct(table) => {
                let sets = routed.keys.iter().filter_map(|key| table.matches(key));
                sets.flat_map(IdSet::iter).for_each(found);
            }
            Self::Topic(table) => {
                for key in routed.keys {
                    table.matches(key, |set| set.iter().for_each(&mut found));
                }
            }
        }
    }

    /// Whether a message's headers or other properties, too, decide where it goes.
    pub(crate) fn looks_at_properties(&self) -> bool {
        match self {
            Self::Headers(_) => true,
            Self::ConsistentHash(table) => table.looks_at_properties(),
            Self::Direct(_) | Self::Fanout(_) | Self::Topic(_) => false,
        }
    }
}
