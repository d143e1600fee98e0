//! Direct exchanges: the routing key has to equal the binding's.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::id_set::IdSet;

/// Binding keys and the destinations under each.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    keys: HashTable<Key>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Key {
    /// Shared with the binding, which makes a million of them affordable.
    key: Arc<str>,
    destinations: IdSet,
}

impl Direct {
    pub(super) fn insert(&mut self, key: &Arc<str>, destination: u32) {
        let hash = self.hasher.hash_one(&**key);
        let hasher = &self.hasher;
        self.keys
            .entry(hash, |entry| *entry.key == **key, |entry| hasher.hash_one(&*entry.key))
            .or_insert_with(|| Key { key: key.clone(), destinations: IdSet::default() })
            .get_mut()
            .destinations
            .insert(destination);
    }

    pub(super) fn remove(&mut self, key: &str, destination: u32) {
        let hash = self.hasher.hash_one(key);
        if let Ok(mut entry) = self.keys.find_entry(hash, |entry| *entry.key == *key) {
            entry.get_mut().destinations.remove(destination);
            if entry.get().destinations.is_empty() {
                entry.remove();
            }
        }
    }

    pub(super) fn matches(&self, key: &str) -> Option<&IdSet> {
        let hash = self.hasher.hash_one(key);
        self.keys.find(hash, |entry| *entry.key == *key).map(|entry| &entry.destinations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_keys_match_and_nothing_stays_behind() {
        let mut direct = Direct::default();
        direct.insert(&"a".into(), 1);
        direct.insert(&"a".into(), 2);
        direct.insert(&"b".into(), 3);
        assert_eq!(direct.matches("a").unwrap().iter().collect::<Vec<_>>(), [1, 2]);
        assert!(direct.matches("A").is_none());
        direct.remove("a", 1);
        direct.remove("a", 2);
        direct.remove("missing", 2);
        assert!(direct.matches("a").is_none());
        assert_eq!(direct.keys.len(), 1);
    }
}
