//! Local random exchanges: each message goes to one of the bound queues of this node, chosen at random (RabbitMQ, "Local
//! Random Exchange"). All queues are on this node here.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;

use super::id_set::IdSet;
use crate::arguments::QueueKind;
use crate::error::BrokerError;

/// The bindings of a local random exchange.
#[derive(Debug, Default)]
pub(crate) struct LocalRandom {
    destinations: IdSet,
    /// Messages so far; their hashes, whose seed is random, are the random numbers.
    chosen: AtomicU64,
    seed: RandomState,
}

impl LocalRandom {
    pub(super) fn insert(&mut self, destination: u32) {
        self.destinations.insert(destination);
    }

    pub(super) fn remove(&mut self, destination: u32) {
        self.destinations.remove(destination);
    }

    /// The destination of a message, if there is any binding: each with the same probability.
    pub(super) fn choose(&self) -> Option<u32> {
        let random = self.seed.hash_one(self.chosen.fetch_add(1, Ordering::Relaxed));
        let at = (u128::from(random) * self.destinations.len() as u128) >> u64::BITS;
        self.destinations.get(at as usize)
    }
}

/// Validates a binding of a queue, or of an exchange (`None`), with the key `key`.
///
/// # Errors
/// 406 a key that is not empty, an exchange, or a queue that is not a classic one, in the words of RabbitMQ.
pub(crate) fn check_binding(key: &str, queue: Option<QueueKind>) -> Result<(), BrokerError> {
    let why = match queue {
        _ if !key.is_empty() => format!("Non empty binding '{key}' key not permitted"),
        Some(QueueKind::Classic) => return Ok(()),
        Some(QueueKind::Quorum) => {
            "Queue type rabbit_quorum_queue not valid for this exchange type".to_owned()
        }
        None => "Destination not found".to_owned(),
    };
    Err(BrokerError::precondition(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_destination_gets_its_share_however_often_it_is_bound() {
        let mut table = LocalRandom::default();
        assert_eq!(table.choose(), None);
        for destination in [3, 3, 3, 5, 7, 9] {
            table.insert(destination);
        }
        table.remove(9);
        let mut counts = [0u32; 10];
        (0..30_000).filter_map(|_| table.choose()).for_each(|destination| counts[destination as usize] += 1);
        // Twenty standard deviations around a third.
        for destination in [3, 5, 7] {
            assert!((8_400..=11_600).contains(&counts[destination]), "{counts:?}");
        }
        assert_eq!(counts.iter().sum::<u32>(), counts[3] + counts[5] + counts[7]);
    }
}
