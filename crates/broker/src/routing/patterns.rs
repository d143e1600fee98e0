//! Numbers the distinct binding keys, or the distinct arguments, of one exchange.
//!
//! A million bindings often share a few keys or argument sets, and then share their memory here; and a key or
//! argument set is compared with a message once for all bindings that have it.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use super::id_set::IdSet;

/// Byte strings with a set of destinations each. Strings of up to `INLINE` bytes need no allocation of their
/// own.
#[derive(Debug, Default)]
pub(crate) struct Patterns<const INLINE: usize> {
    entries: Slab<Entry<INLINE>>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry<const INLINE: usize> {
    bytes: SmallVec<[u8; INLINE]>,
    destinations: IdSet,
}

impl<const INLINE: usize> Patterns<INLINE> {
    pub(super) fn number_of(&self, bytes: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(bytes);
        self.numbers.find(hash, |&number| self.bytes(number) == bytes).copied()
    }

    /// The number of a byte string, a new one if it has none. A new number must be given a destination.
    pub(super) fn intern(&mut self, bytes: &[u8]) -> u32 {
        let Self { entries, numbers, hasher } = self;
        let hash = |bytes: &[u8]| hasher.hash_one(bytes);
        let same = |&number: &u32| entries[number as usize].bytes[..] == *bytes;
        match numbers.entry(hash(bytes), same, |&number| hash(&entries[number as usize].bytes)) {
            hashbrown::hash_table::Entry::Occupied(known) => *known.get(),
            hashbrown::hash_table::Entry::Vacant(vacant) => {
                let entry = entries.vacant_entry();
                let number = entry.key() as u32;
                vacant.insert(number);
                entry.insert(Entry { bytes: bytes.into(), destinations: IdSet::default() });
                number
            }
        }
    }

    pub(super) fn bytes(&self, number: u32) -> &[u8] {
        &self.entries[number as usize].bytes
    }

    pub(super) fn destinations(&self, number: u32) -> &IdSet {
        &self.entries[number as usize].destinations
    }

    /// Adds a destination; returns whether it is the first.
    pub(super) fn insert(&mut self, number: u32, destination: u32) -> bool {
        let destinations = &mut self.entries[number as usize].destinations;
        let first = destinations.is_empty();
        destinations.insert(destination);
        first
    }

    /// Removes a destination; returns whether it was the last. The number then has to be freed with `forget`.
    pub(super) fn remove(&mut self, number: u32, destination: u32) -> bool {
        let destinations = &mut self.entries[number as usize].destinations;
        destinations.remove(destination);
        destinations.is_empty()
    }

    /// Frees a number that has no destinations left.
    pub(super) fn forget(&mut self, number: u32) {
        let hash = self.hasher.hash_one(self.bytes(number));
        if let Ok(entry) = self.numbers.find_entry(hash, |&found| found == number) {
            entry.remove();
        }
        self.entries.remove(number as usize);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.numbers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_have_one_number_until_their_last_destination_goes() {
        let mut patterns = Patterns::<4>::default();
        let (short, long) = (patterns.intern(b"a"), patterns.intern(b"longer than inline"));
        assert!(patterns.insert(short, 1) && patterns.insert(long, 1));
        assert_eq!(patterns.intern(b"longer than inline"), long);
        assert!(!patterns.insert(long, 2), "not the first");
        assert!(!patterns.remove(long, 1), "not the last");
        assert!(patterns.remove(long, 2));
        patterns.forget(long);
        assert_eq!(
            (patterns.number_of(b"a"), patterns.number_of(b"longer than inline")),
            (Some(short), None)
        );
        assert!(patterns.remove(short, 1));
        patterns.forget(short);
        assert!(patterns.is_empty());
    }

    #[test]
    fn a_key_of_sixteen_bytes_takes_forty() {
        assert_eq!(size_of::<Entry<16>>(), 40);
    }
}
