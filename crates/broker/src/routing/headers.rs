//! Headers exchanges: a binding's arguments are compared with the message's headers.
//!
//! Distinct arguments are found through an index: those that require *all* their pairs are listed under one
//! of them (the rarest when they were added), those that require *any* under each. Candidates are then
//! compared in full.

mod encoded;
mod matching;

use std::hash::BuildHasher;

use amqp::{FieldValue, RawTable};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;
use smallvec::SmallVec;

use super::Arguments;
use super::id_set::IdSet;
use crate::arguments::in_erlang;
use crate::error::BrokerError;
use crate::table_view::{ValueView, entries};
pub(super) use encoded::{given, keep};
use matching::{SortedHeaders as Message, Term, asked};

/// Finds the arguments that match a message. They are numbers of the exchange's [`Arguments`], which stores
/// them in the form produced by [`keep`].
#[derive(Debug, Default)]
pub(crate) struct HeadersTable {
    anchors: HashTable<Anchor>,
    /// Sets of arguments for anchors that have more than one.
    crowds: Slab<IdSet>,
    /// The number of pairs under anchors that match any value. If it is 0, the search for them is skipped.
    voids: usize,
    /// Arguments that require all of no pairs, which always match.
    always: IdSet,
    hasher: RandomState,
}

/// The arguments listed under one pair. Eight bytes; most of a million arguments need one each.
#[derive(Debug)]
struct Anchor {
    /// The hash of the pair. Other pairs with the same hash share the anchor, since candidates are compared
    /// anyway.
    hash: u32,
    /// The only arguments listed here, or with [`CROWD`] the index of a set of them.
    arguments: u32,
}

/// A pair by which arguments may be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    hash: u32,
    void: bool,
}

impl HeadersTable {
    pub(super) fn insert(&mut self, all: &Arguments, number: u32) {
        let (any, pairs) = self.pairs_of(all.bytes(number));
        if any {
            pairs.into_iter().for_each(|pair| self.add(pair, number));
            return;
        }
        match pairs.into_iter().min_by_key(|pair| (self.crowd_at(pair.hash), pair.void)) {
            Some(rarest) => self.add(rarest, number),
            None => self.always.insert(number),
        }
    }

    /// Must be called while `number` still has its bytes.
    pub(super) fn remove(&mut self, all: &Arguments, number: u32) {
        for pair in self.pairs_of(all.bytes(number)).1 {
            self.take(pair, number);
        }
        self.always.remove(number);
    }

    /// Calls `found` with the destinations of all matching arguments.
    pub(super) fn matches(&self, all: &Arguments, headers: &[u8], mut found: impl FnMut(u32)) {
        self.always.iter().for_each(|number| all.destinations(number).iter().for_each(&mut found));
        let message = Message::of(headers);
        let mut matched: SmallVec<[u32; 16]> = SmallVec::new();
        for (name, value) in message.pairs() {
            self.candidates(all, &message, hash(&self.hasher, name, value), &mut matched);
            if self.voids > 0 {
                self.candidates(all, &message, hash(&self.hasher, name, Term::Void), &mut matched);
            }
        }
        // Arguments that require any pair may have been found by several.
        matched.sort_unstable();
        matched.dedup();
        for number in matched {
            all.destinations(number).iter().for_each(&mut found);
        }
    }

    /// Adds the matching arguments under an anchor.
    fn candidates(
        &self,
        all: &Arguments,
        message: &Message<'_>,
        hash: u32,
        matched: &mut SmallVec<[u32; 16]>,
    ) {
        let Some(anchor) = self.anchors.find(spread(hash), |anchor| anchor.hash == hash) else { return };
        let mut look_at = |number| {
            if message.matches(all.bytes(number)) {
                matched.push(number);
            }
        };
        match anchor.crowd() {
            None => look_at(anchor.arguments),
            Some(crowd) => self.crowds[crowd].iter().for_each(look_at),
        }
    }

    fn add(&mut self, pair: Pair, number: u32) {
        self.voids += usize::from(pair.void);
        let same = |anchor: &Anchor| anchor.hash == pair.hash;
        match self.anchors.entry(spread(pair.hash), same, |anchor| spread(anchor.hash)) {
            Entry::Vacant(vacant) => {
                vacant.insert(Anchor { hash: pair.hash, arguments: number });
            }
            Entry::Occupied(mut entry) => {
                let anchor = entry.get_mut();
                let crowd = anchor.crowd().unwrap_or_else(|| {
                    let mut crowd = IdSet::default();
                    crowd.insert(anchor.arguments);
                    let at = self.crowds.insert(crowd);
                    anchor.arguments = at as u32 | CROWD;
                    at
                });
                self.crowds[crowd].insert(number);
            }
        }
    }

    /// Removes `number` from the anchor of a pair, if it is listed there.
    fn take(&mut self, pair: Pair, number: u32) {
        let same = |anchor: &Anchor| anchor.hash == pair.hash;
        let Ok(mut entry) = self.anchors.find_entry(spread(pair.hash), same) else { return };
        let taken = match entry.get().crowd() {
            None if entry.get().arguments == number => {
                entry.remove();
                true
            }
            None => false,
            Some(at) => {
                let crowd = &mut self.crowds[at];
                let taken = crowd.remove(number);
                // A set has at least two members: a single one is stored in the anchor.
                let last = if crowd.len() == 1 { crowd.iter().next() } else { None };
                if let Some(last) = last {
                    entry.get_mut().arguments = last;
                    self.crowds.remove(at);
                }
                taken
            }
        };
        self.voids -= usize::from(taken && pair.void);
    }

    fn crowd_at(&self, hash: u32) -> usize {
        let anchor = self.anchors.find(spread(hash), |anchor| anchor.hash == hash);
        anchor.map_or(0, |anchor| anchor.crowd().map_or(1, |crowd| self.crowds[crowd].len()))
    }

    /// Whether any of the pairs suffices, and the pairs without repetition, so that removal undoes insertion.
    fn pairs_of(&self, encoded_arguments: &[u8]) -> (bool, SmallVec<[Pair; 4]>) {
        let (mode, asked) = asked(encoded_arguments);
        let pair = |(name, value)| Pair { hash: hash(&self.hasher, name, value), void: value == Term::Void };
        let mut pairs: SmallVec<[Pair; 4]> = asked.map(pair).collect();
        pairs.sort_unstable();
        pairs.dedup_by(|next, pair| {
            let same = next.hash == pair.hash;
            pair.void |= same && next.void;
            same
        });
        (mode.any, pairs)
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.anchors.is_empty() && self.crowds.is_empty() && self.always.is_empty() && self.voids == 0
    }
}

impl Anchor {
    /// The index of its set in `crowds`, if it has one.
    fn crowd(&self) -> Option<usize> {
        (self.arguments & CROWD != 0).then_some((self.arguments & !CROWD) as usize)
    }
}

fn hash(hasher: &RandomState, name: &str, value: Term<'_>) -> u32 {
    (hasher.hash_one((name, value)) >> 32) as u32
}

/// The table uses bits from both ends.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

const CROWD: u32 = 1 << 31;

/// Refuses an `x-match` that RabbitMQ does not know.
pub(crate) fn check_arguments(arguments: RawTable<'_>) -> Result<(), BrokerError> {
    match entries(arguments.bytes()).find(|(name, _)| *name == X_MATCH) {
        None => return Ok(()),
        Some((_, ValueView::Text(mode))) if encoded::MODES.contains(&mode) => return Ok(()),
        Some(_) => {}
    }
    let text = match arguments.decode().get(X_MATCH) {
        Some(FieldValue::LongString(other)) => format!(
            "Invalid x-match field value <<\"{}\">>; expected all, any, all-with-x, or any-with-x",
            String::from_utf8_lossy(other)
        ),
        Some(other) => format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            other.type_name(),
            in_erlang(other)
        ),
        None => return Ok(()),
    };
    Err(BrokerError::precondition(text))
}

const X_MATCH: &str = "x-match";

#[cfg(test)]
mod tests;
