//! Values by binding key, for routing outside of an exchange.

use std::fmt;

use super::topic::Topic;
use super::{Keys, NOWHERE};

/// Values by the binding keys of a topic exchange. A message's routing key finds them like bindings in an exchange of the
/// broker: in time proportional to its words and to the matching keys.
///
/// An example: with values for `a.*` and `a.#`, the routing key `a.b` finds both, and `a` the second.
pub struct TopicIndex<T> {
    keys: Keys,
    topic: Topic,
    /// By the number of the key.
    values: Vec<Option<T>>,
}

impl<T> TopicIndex<T> {
    /// The value of exactly this binding key.
    pub fn get(&self, binding_key: &str) -> Option<&T> {
        let number = self.keys.number_of(binding_key.as_bytes())?;
        self.values.get(number as usize)?.as_ref()
    }

    /// Sets the value of a binding key, and returns the previous one.
    pub fn insert(&mut self, binding_key: &str, value: T) -> Option<T> {
        let number = self.keys.intern(binding_key.as_bytes());
        if self.keys.insert(number, NOWHERE) {
            self.topic.insert(&self.keys, number);
        }
        let slot = number as usize;
        if slot >= self.values.len() {
            self.values.resize_with(slot + 1, || None);
        }
        self.values[slot].replace(value)
    }

    /// Removes a binding key, and returns its value.
    pub fn remove(&mut self, binding_key: &str) -> Option<T> {
        let number = self.keys.number_of(binding_key.as_bytes())?;
        if self.keys.remove(number, NOWHERE) {
            self.topic.remove(&self.keys, number);
            self.keys.forget(number);
        }
        self.values.get_mut(number as usize)?.take()
    }

    /// Passes the value of each binding key that matches a routing key to `found`, once.
    pub fn matches(&self, routing_key: &str, mut found: impl FnMut(&T)) {
        self.topic.matches(&self.keys, routing_key, |number| {
            if let Some(value) = self.values.get(number as usize).and_then(Option::as_ref) {
                found(value);
            }
        });
    }
}

impl<T> Default for TopicIndex<T> {
    fn default() -> Self {
        Self { keys: Keys::default(), topic: Topic::default(), values: Vec::new() }
    }
}

impl<T> fmt::Debug for TopicIndex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopicIndex").field("keys", &self.values.iter().flatten().count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(index: &TopicIndex<u32>, routing_key: &str) -> Vec<u32> {
        let mut found = Vec::new();
        index.matches(routing_key, |value| found.push(*value));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_routing_key_finds_the_values_of_the_binding_keys_that_match() {
        let mut index = TopicIndex::default();
        for (value, key) in ["a.b", "a.*", "a.#", "#", "*.b", "a.b.c"].into_iter().enumerate() {
            assert_eq!(index.insert(key, value as u32), None);
        }
        assert_eq!(found(&index, "a.b"), [0, 1, 2, 3, 4]);
        assert_eq!(found(&index, "a"), [2, 3]);
        assert_eq!(found(&index, ""), [3]);
        assert_eq!((index.get("a.*"), index.get("a.c")), (Some(&1), None));
    }

    #[test]
    fn a_key_has_one_value_and_its_number_is_reused_without_it() {
        let mut index = TopicIndex::default();
        assert_eq!((index.insert("k", 1), index.insert("k", 2)), (None, Some(1)));
        assert_eq!(found(&index, "k"), [2]);
        assert_eq!((index.remove("k"), index.remove("k")), (Some(2), None));
        assert_eq!(index.insert("l", 3), None);
        assert_eq!((found(&index, "k"), found(&index, "l")), (vec![], vec![3]));
    }
}
