//! Topic exchanges: keys of words between dots; `*` stands for one word, `#` for any number of them.
//!
//! All patterns form one tree. Its edges lie in a single flat map from (node, word) to node, and words are numbers,
//! so that a node costs the same however many children it has, and a step down costs one look-up.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;
use smallvec::SmallVec;

use super::id_set::IdSet;

/// The patterns of a topic exchange.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    words: Words,
    /// Vacant until the first pattern; then slot [`ROOT`] is the root.
    nodes: Slab<Node>,
    edges: HashMap<(u32, u32), u32, RandomState>,
}

#[derive(Debug, Default)]
struct Node {
    /// Where patterns that end here lead.
    destinations: IdSet,
    /// Number of edges down from here, and in the top bits whether they include `*` and `#`.
    children: u32,
}

impl Topic {
    pub(super) fn insert(&mut self, pattern: &str, destination: u32) {
        if self.nodes.is_empty() {
            self.nodes.insert(Node::default());
        }
        let mut node = ROOT;
        for word in words_of(pattern) {
            let word = self.words.intern(word);
            let edge = self.edges.entry((node, word));
            node = match edge {
                hashbrown::hash_map::Entry::Occupied(child) => {
                    self.words.release(word);
                    *child.get()
                }
                hashbrown::hash_map::Entry::Vacant(edge) => {
                    let child = self.nodes.insert(Node::default()) as u32;
                    edge.insert(child);
                    self.nodes[node as usize].children += 1;
                    self.nodes[node as usize].children |= flag_of(word);
                    child
                }
            };
        }
        self.nodes[node as usize].destinations.insert(destination);
    }

    pub(super) fn remove(&mut self, pattern: &str, destination: u32) {
        let mut path: SmallVec<[(u32, u32, u32); 16]> = SmallVec::new();
        let mut node = ROOT;
        for word in words_of(pattern) {
            let Some(word) = self.words.find(word) else { return };
            let Some(&child) = self.edges.get(&(node, word)) else { return };
            path.push((node, word, child));
            node = child;
        }
        let Some(last) = self.nodes.get_mut(node as usize) else { return };
        last.destinations.remove(destination);
        for (parent, word, child) in path.into_iter().rev() {
            let node = &self.nodes[child as usize];
            if node.children & CHILDREN > 0 || !node.destinations.is_empty() {
                break;
            }
            self.nodes.remove(child as usize);
            self.edges.remove(&(parent, word));
            self.words.release(word);
            let parent = &mut self.nodes[parent as usize];
            parent.children -= 1;
            parent.children &= !flag_of(word);
        }
    }

    /// Calls `found` with the destinations of each matching pattern.
    ///
    /// Every (node, number of words consumed) is visited at most once: a node below one `#` can be reached with the
    /// same words left over in many ways only through a further `#`, and for each of those it is remembered from
    /// where on it has been followed.
    pub(super) fn matches<'a>(&'a self, key: &str, mut found: impl FnMut(&'a IdSet)) {
        if self.nodes.is_empty() {
            return;
        }
        // A `*` or `#` in a message's key is a word like any other, which no pattern can ask for.
        let number = |word| self.words.find(word).filter(|&word| word > HASH);
        let words: SmallVec<[Option<u32>; 16]> = words_of(key).map(number).collect();
        let mut followed: HashMap<u32, u32, RandomState> = HashMap::default();
        let mut pending: SmallVec<[Visit; 16]> = SmallVec::new();
        pending.push(Visit { node: ROOT, consumed: 0, below_hash: false });
        while let Some(Visit { node: at, consumed, below_hash }) = pending.pop() {
            let node = &self.nodes[at as usize];
            let mut step = |word: u32| {
                if let Some(&node) = self.edges.get(&(at, word)) {
                    pending.push(Visit { node, consumed: consumed + 1, below_hash });
                }
            };
            match words.get(consumed as usize) {
                None if !node.destinations.is_empty() => found(&node.destinations),
                None => {}
                Some(word) => {
                    if node.children & CHILDREN > 0 {
                        word.iter().for_each(|&word| step(word));
                    }
                    if node.children & HAS_STAR != 0 {
                        step(STAR);
                    }
                }
            }
            if node.children & HAS_HASH != 0
                && let Some(&node) = self.edges.get(&(at, HASH))
            {
                let mut end = words.len() as u32 + 1;
                if below_hash {
                    let from = followed.entry(node).or_insert(end);
                    end = *from;
                    *from = consumed.min(end);
                }
                pending.extend((consumed..end).map(|consumed| Visit { node, consumed, below_hash: true }));
            }
        }
    }
}

struct Visit {
    node: u32,
    consumed: u32,
    below_hash: bool,
}

/// RabbitMQ takes the empty key for no word at all, not for one empty word.
fn words_of(key: &str) -> impl Iterator<Item = &str> {
    let skip = usize::from(key.is_empty());
    key.split('.').skip(skip)
}

/// Words as numbers, counted so that they go when their last edge does.
#[derive(Debug)]
struct Words {
    words: Slab<Word>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Word {
    /// Inside for words of usual length, which saves an allocation for each of a million.
    text: SmallVec<[u8; 16]>,
    uses: u32,
}

impl Default for Words {
    fn default() -> Self {
        let mut words = Self { words: Slab::new(), ids: HashTable::new(), hasher: RandomState::default() };
        // Their first use is never released, so these two keep their numbers.
        words.intern("*");
        words.intern("#");
        words
    }
}

impl Words {
    fn find(&self, text: &str) -> Option<u32> {
        self.ids
            .find(self.hasher.hash_one(text.as_bytes()), |&id| {
                self.words[id as usize].text[..] == *text.as_bytes()
            })
            .copied()
    }

    fn intern(&mut self, text: &str) -> u32 {
        if let Some(id) = self.find(text) {
            self.words[id as usize].uses += 1;
            return id;
        }
        let id = self.words.insert(Word { text: text.as_bytes().into(), uses: 1 }) as u32;
        let Self { words, ids, hasher } = self;
        let hash = |&id: &u32| hasher.hash_one(&words[id as usize].text[..]);
        ids.insert_unique(hash(&id), id, hash);
        id
    }

    fn release(&mut self, id: u32) {
        let word = &mut self.words[id as usize];
        word.uses -= 1;
        if word.uses == 0 {
            let hash = self.hasher.hash_one(&word.text[..]);
            if let Ok(entry) = self.ids.find_entry(hash, |&found| found == id) {
                entry.remove();
            }
            self.words.remove(id as usize);
        }
    }
}

fn flag_of(word: u32) -> u32 {
    match word {
        STAR => HAS_STAR,
        HASH => HAS_HASH,
        _ => 0,
    }
}

const ROOT: u32 = 0;
const STAR: u32 = 0;
const HASH: u32 = 1;
const HAS_STAR: u32 = 1 << 31;
const HAS_HASH: u32 = 1 << 30;
const CHILDREN: u32 = HAS_HASH - 1;

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
