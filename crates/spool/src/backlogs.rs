//! Local queues for messages whose destination rejects them at present.

use hashbrown::HashMap;

use crate::envelope::Envelope;
use crate::item::{DestinationKey, DestinationKeys};

/// The most messages in memory of one destination's backlog.
const LOADED_OF_DESTINATION: usize = 1_000;

/// The same for an exchange's backlog, in which others may wait behind messages for a full queue.
const LOADED_OF_EXCHANGE: usize = 256;

/// Identifies a backlog. The ids of empty backlogs are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BacklogId(usize);

/// The messages that belong in a backlog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BacklogName {
    /// The exchange; empty for the default one.
    pub exchange: Box<str>,
    /// `None` for all routing keys without a backlog of their own.
    pub routing_key: Option<Box<str>>,
}

/// All backlogs of a main queue.
///
/// A backlog covers its destination; without one, the backlog of its exchange does, if there is one. Each message of a
/// covered destination in the backlog is older than each in the main queue: later messages follow it there.
#[derive(Debug, Default)]
pub(crate) struct Backlogs {
    slots: Vec<Option<Backlog>>,
    of_destinations: HashMap<DestinationKey, BacklogId>,
    of_exchanges: HashMap<DestinationKey, BacklogId>,
}

#[derive(Debug)]
struct Backlog {
    name: BacklogName,
    /// Key of the destination or exchange.
    key: DestinationKey,
    /// Number of its messages, those in memory included.
    messages: u64,
    /// Messages in memory or in flight.
    loaded: usize,
    /// Destinations whose messages will move here as soon as no earlier one is in flight.
    planned_moves: usize,
    /// Lower bound for the acceptance time of its oldest unloaded message: that of the last one loaded, of the oldest one
    /// unloaded since, or of the first one.
    oldest: u64,
}

impl Backlogs {
    pub(crate) fn is_empty(&self) -> bool {
        self.of_destinations.is_empty() && self.of_exchanges.is_empty()
    }

    /// Messages in all of them that are not in memory.
    pub(crate) fn not_loaded(&self) -> u64 {
        self.slots.iter().flatten().map(Backlog::not_loaded).sum()
    }

    pub(crate) fn name(&self, id: BacklogId) -> Option<&BacklogName> {
        self.slots.get(id.0)?.as_ref().map(|backlog| &backlog.name)
    }

    /// The backlog that covers a message's destination.
    pub(crate) fn covering(
        &self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
    ) -> Option<BacklogId> {
        if let Some(own) = self.of_destinations.get(&destination) {
            return Some(*own);
        }
        if self.of_exchanges.is_empty() {
            return None;
        }
        self.of_exchanges.get(&keys.of_exchange(envelope.exchange())).copied()
    }

    pub(crate) fn has_own(&self, destination: DestinationKey) -> bool {
        self.of_destinations.contains_key(&destination)
    }

    /// Whether another destination may have a backlog of its own.
    pub(crate) fn may_create_own(&self, limit: usize) -> bool {
        self.of_destinations.len() < limit
    }

    /// Creates a backlog for a destination that none covers: one for the destination, or, if there are `limit` of these
    /// already, one for its exchange.
    pub(crate) fn create(
        &mut self,
        keys: &DestinationKeys,
        destination: DestinationKey,
        envelope: &Envelope,
        limit: usize,
    ) -> BacklogId {
        let is_own = self.may_create_own(limit);
        let exchange = envelope.exchange();
        let routing_key = is_own.then(|| envelope.routing_key().into());
        let key = if is_own { destination } else { keys.of_exchange(exchange) };
        let name = BacklogName { exchange: exchange.into(), routing_key };
        self.add(Backlog {
            name,
            key,
            messages: 0,
            loaded: 0,
            planned_moves: 0,
            oldest: envelope.accepted_at(),
        })
    }

    /// Adds a backlog that was found after a restart.
    pub(crate) fn restore(&mut self, keys: &DestinationKeys, name: BacklogName, messages: u64) -> BacklogId {
        let key = match &name.routing_key {
            Some(routing_key) => keys.of(&name.exchange, routing_key),
            None => keys.of_exchange(&name.exchange),
        };
        self.add(Backlog { name, key, messages, loaded: 0, planned_moves: 0, oldest: u64::MAX })
    }

    fn add(&mut self, backlog: Backlog) -> BacklogId {
        let free = self.slots.iter().position(Option::is_none);
        let id = BacklogId(free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        }));
        let index = if backlog.name.routing_key.is_some() {
            &mut self.of_destinations
        } else {
            &mut self.of_exchanges
        };
        index.insert(backlog.key, id);
        self.slots[id.0] = Some(backlog);
        id
    }

    /// Records that a message joined the end of a backlog.
    pub(crate) fn joined(&mut self, id: BacklogId) {
        if let Some(backlog) = self.get_mut(id) {
            backlog.messages += 1;
        }
    }

    /// Records that the next message of a backlog is in memory.
    pub(crate) fn loaded(&mut self, id: BacklogId, envelope: &Envelope) {
        if let Some(backlog) = self.get_mut(id) {
            backlog.loaded += 1;
            backlog.oldest = envelope.accepted_at();
        }
    }

    /// Records that a loaded message has left permanently. Returns whether that emptied and removed the backlog.
    pub(crate) fn left(&mut self, id: BacklogId) -> bool {
        let Some(backlog) = self.get_mut(id) else { return false };
        backlog.messages -= 1;
        backlog.loaded -= 1;
        if backlog.messages > 0 || backlog.planned_moves > 0 {
            return false;
        }
        let (key, is_own) = (backlog.key, backlog.name.routing_key.is_some());
        let index = if is_own { &mut self.of_destinations } else { &mut self.of_exchanges };
        index.remove(&key);
        self.slots[id.0] = None;
        true
    }

    /// Records that the next message of a backlog was removed without being loaded. Returns whether that emptied and
    /// removed the backlog.
    pub(crate) fn skipped(&mut self, id: BacklogId) -> bool {
        if let Some(backlog) = self.get_mut(id) {
            backlog.loaded += 1;
        }
        self.left(id)
    }

    /// Records that messages of a destination will move to a backlog, which is retained until then.
    pub(crate) fn plan_move(&mut self, id: BacklogId) {
        if let Some(backlog) = self.get_mut(id) {
            backlog.planned_moves += 1;
        }
    }

    /// Records that the messages of a planned move are in the backlog.
    pub(crate) fn complete_move(&mut self, id: BacklogId) {
        if let Some(backlog) = self.get_mut(id) {
            backlog.planned_moves -= 1;
        }
    }

    /// Cancels all planned moves, and returns the backlogs without messages, which are thereby removed.
    pub(crate) fn forget_unused(&mut self) -> Vec<BacklogId> {
        let mut unused = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            slot.iter_mut().for_each(|backlog| backlog.planned_moves = 0);
            if let Some(backlog) = slot.take_if(|backlog| backlog.messages == 0) {
                self.of_destinations.remove(&backlog.key);
                self.of_exchanges.remove(&backlog.key);
                unused.push(BacklogId(at));
            }
        }
        unused
    }

    /// Records that a loaded message is only in the backlog again.
    pub(crate) fn unloaded(&mut self, id: BacklogId, envelope: &Envelope) {
        if let Some(backlog) = self.get_mut(id) {
            backlog.loaded -= 1;
            backlog.oldest = backlog.oldest.min(envelope.accepted_at());
        }
    }

    /// A backlog from which to load another message. `allowance` returns how many messages of a destination may be in
    /// flight; `is_busy` limits loading to the first messages.
    pub(crate) fn next_to_load(
        &self,
        is_busy: bool,
        from: usize,
        allowance: impl Fn(DestinationKey) -> usize,
    ) -> Option<BacklogId> {
        let count = self.slots.len();
        let wanted = |backlog: &Backlog| {
            let most = match &backlog.name.routing_key {
                Some(_) => LOADED_OF_DESTINATION.min(2 * allowance(backlog.key)),
                None => LOADED_OF_EXCHANGE,
            };
            if is_busy { most.min(1) } else { most }
        };
        let wants = |at: &usize| {
            let backlog = self.slots[*at].as_ref();
            backlog.is_some_and(|backlog| backlog.not_loaded() > 0 && backlog.loaded < wanted(backlog))
        };
        (0..count).map(|at| (from + at) % count).find(wants).map(BacklogId)
    }

    /// Lower bound for the acceptance time of the oldest message of backlogs with none in memory, as far as it is known.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let not_loaded = self.slots.iter().flatten().filter(|backlog| backlog.loaded == 0);
        not_loaded.map(|backlog| backlog.oldest).min().filter(|oldest| *oldest != u64::MAX)
    }

    fn get_mut(&mut self, id: BacklogId) -> Option<&mut Backlog> {
        self.slots.get_mut(id.0)?.as_mut()
    }
}

impl Backlog {
    fn not_loaded(&self) -> u64 {
        self.messages - self.loaded as u64
    }
}

impl BacklogId {
    /// The id after this one, where a search continues.
    pub(crate) fn following(self) -> usize {
        self.0 + 1
    }
}
