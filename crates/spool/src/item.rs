//! A message between the local queues and the broker's confirm.

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::backlogs::BacklogId;
use crate::envelope::Envelope;

/// Identifies a destination (an exchange with a routing key) or an exchange alone. A hash collision merely costs time: the
/// two are treated as one.
pub(crate) type DestinationKey = u64;

/// Computes the keys of destinations.
#[derive(Debug, Clone, Default)]
pub(crate) struct DestinationKeys(DefaultHashBuilder);

impl DestinationKeys {
    pub(crate) fn of(&self, exchange: &str, routing_key: &str) -> DestinationKey {
        self.0.hash_one((exchange, routing_key))
    }

    pub(crate) fn of_exchange(&self, exchange: &str) -> DestinationKey {
        self.0.hash_one(exchange)
    }
}

/// The queue from which a message was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The main local queue.
    Main,
    Backlog(BacklogId),
}

#[derive(Debug)]
pub(crate) struct Item<T> {
    /// Ascending in the order in which they were read.
    pub(crate) number: u64,
    /// Key of its exchange and routing key.
    pub(crate) destination: DestinationKey,
    pub(crate) envelope: Envelope,
    pub(crate) handle: T,
    pub(crate) source: Source,
    /// Set while it is in flight, if it had waited for its destination before.
    pub(crate) was_deferred: bool,
}

impl<T> Item<T> {
    /// Bytes of its record.
    pub(crate) fn bytes(&self) -> usize {
        self.envelope.bytes().len()
    }

    pub(crate) fn is_main(&self) -> bool {
        self.source == Source::Main
    }
}
