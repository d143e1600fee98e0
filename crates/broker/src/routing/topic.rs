//! Topic exchanges: keys are words separated by dots; `*` stands for one word, `#` for any number of them.
//!
//! All patterns form one tree, whose edges are in a single flat table, so that a node costs the same
//! regardless of the number of its children, and a step down costs one lookup. A path ends where only one
//! pattern continues: the edge leads to the pattern itself, and the remaining words are compared one by one.
//! Most patterns with a distinctive early word thus take one edge and no node.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;
use smallvec::SmallVec;

use super::Keys;

/// The tree of patterns, which are numbers in the exchange's [`Keys`].
#[derive(Debug, Default)]
pub(crate) struct Topic {
    /// Vacant until the first pattern; then slot [`ROOT`] is the root.
    nodes: Slab<Node>,
    edges: HashTable<Edge>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Node {
    /// The last word on the path to this node.
    word: SmallVec<[u8; 16]>,
    /// The pattern that ends here, or [`NONE`].
    pattern: u32,
    /// Number of edges down from here, and in the top bits whether they include `*` and `#`.
    children: u32,
}

/// A step down. Its word is that of the node it leads to, or part of the pattern it leads to.
#[derive(Debug)]
struct Edge {
    /// The hash of the upper node and the word.
    hash: u32,
    from: u32,
    /// A node, or with [`LEAF`] a pattern.
    to: u32,
}

type Words<'a> = SmallVec<[&'a [u8]; 16]>;

impl Topic {
    /// Adds a pattern that is not in the tree.
    pub(super) fn insert(&mut self, keys: &Keys, pattern: u32) {
        if self.nodes.is_empty() {
            self.nodes.insert(Node::new(b""));
        }
        let words: Words<'_> = words_of(keys.bytes(pattern)).collect();
        let mut at = ROOT;
        for (depth, &word) in words.iter().enumerate() {
            at = match self.step(keys, at, depth, word) {
                None if is_simple(&words, depth) => return self.add_edge(at, word, pattern | LEAF),
                None => {
                    let node = self.nodes.insert(Node::new(word)) as u32;
                    self.add_edge(at, word, node);
                    node
                }
                Some(leaf) if leaf & LEAF != 0 => self.split(keys, at, depth, word, leaf),
                Some(node) => node,
            };
        }
        self.nodes[at as usize].pattern = pattern;
    }

    /// Removes a pattern that is in the tree. Must be called while it still has its bytes.
    pub(super) fn remove(&mut self, keys: &Keys, pattern: u32) {
        let words: Words<'_> = words_of(keys.bytes(pattern)).collect();
        let mut path: SmallVec<[(u32, u32); 16]> = SmallVec::new();
        let mut at = ROOT;
        for (depth, &word) in words.iter().enumerate() {
            let Some(to) = self.step(keys, at, depth, word) else { return };
            if to & LEAF != 0 {
                self.remove_edge(at, word, to);
                break;
            }
            path.push((at, to));
            at = to;
        }
        let last = &mut self.nodes[at as usize];
        if last.pattern == pattern {
            last.pattern = NONE;
        }
        for ((parent, child), word) in path.iter().zip(&words).rev() {
            let node = &self.nodes[*child as usize];
            if node.children & CHILDREN > 0 {
                break;
            }
            let ends_here = node.pattern;
            self.remove_edge(*parent, word, *child);
            self.nodes.remove(*child as usize);
            if ends_here != NONE {
                self.add_edge(*parent, word, ends_here | LEAF);
                break;
            }
        }
    }

    /// Calls `found` with each pattern that matches, once.
    ///
    /// Every pair (node, number of words consumed) is visited at most once: a node below one `#` can be
    /// reached in several ways with the same words left over only through a further `#`, and for each of
    /// those the search records the word from which it has been followed.
    pub(super) fn matches(&self, keys: &Keys, key: &str, mut found: impl FnMut(u32)) {
        if self.nodes.is_empty() {
            return;
        }
        let words: Words<'_> = words_of(key.as_bytes()).collect();
        let mut followed: HashMap<u32, u32, RandomState> = HashMap::default();
        let mut pending: SmallVec<[Visit; 16]> = SmallVec::new();
        pending.push(Visit { to: ROOT, depth: 0, consumed: 0, below_hash: false });
        while let Some(Visit { to: at, depth, consumed, below_hash }) = pending.pop() {
            // A leaf stands for the rest of a single pattern, which is matched without nodes.
            if at & LEAF != 0 {
                let pattern = at & !LEAF;
                let tail = words_of(keys.bytes(pattern)).skip(depth as usize);
                if tail_matches(tail, &words[consumed as usize..]) {
                    found(pattern);
                }
                continue;
            }
            let node = &self.nodes[at as usize];
            let below = depth + 1;
            let mut step = |word: &[u8]| {
                if let Some(to) = self.step(keys, at, depth as usize, word) {
                    pending.push(Visit { to, depth: below, consumed: consumed + 1, below_hash });
                }
            };
            // The key ends here, or its next word is consumed by the same word or by `*`.
            match words.get(consumed as usize) {
                None if node.pattern != NONE => found(node.pattern),
                None => {}
                Some(&word) => {
                    // A `*` or `#` in a message's key is a word like any other, which no pattern can match
                    // literally.
                    if node.children & CHILDREN > 0 && flag_of(word) == 0 {
                        step(word);
                    }
                    if node.children & HAS_STAR != 0 {
                        step(STAR);
                    }
                }
            }
            // `#` consumes any number of the remaining words; below another `#`, only from words that it was not followed from.
            if node.children & HAS_HASH != 0
                && let Some(to) = self.step(keys, at, depth as usize, HASH)
            {
                let mut end = words.len() as u32 + 1;
                if below_hash {
                    let from = followed.entry(to).or_insert(end);
                    end = *from;
                    *from = consumed.min(end);
                }
                let visit = |consumed| Visit { to, depth: below, consumed, below_hash: true };
                pending.extend((consumed..end).map(visit));
            }
        }
    }

    /// The target of an edge from a node `depth` words down.
    fn step(&self, keys: &Keys, from: u32, depth: usize, word: &[u8]) -> Option<u32> {
        let hash = hash(&self.hasher, from, word);
        let found = self.edges.find(spread(hash), |edge| {
            edge.hash == hash && edge.from == from && self.word_to(keys, edge.to, depth) == Some(word)
        });
        found.map(|edge| edge.to)
    }

    /// The word that leads to a node or a pattern from `depth` words down.
    fn word_to<'a>(&'a self, keys: &'a Keys, to: u32, depth: usize) -> Option<&'a [u8]> {
        match to & LEAF {
            0 => Some(&self.nodes[to as usize].word),
            _ => words_of(keys.bytes(to & !LEAF)).nth(depth),
        }
    }

    /// Puts a node between an edge and the pattern it leads to.
    fn split(&mut self, keys: &Keys, from: u32, depth: usize, word: &[u8], leaf: u32) -> u32 {
        let node = self.nodes.insert(Node::new(word)) as u32;
        self.remove_edge(from, word, leaf);
        self.add_edge(from, word, node);
        match words_of(keys.bytes(leaf & !LEAF)).nth(depth + 1) {
            None => self.nodes[node as usize].pattern = leaf & !LEAF,
            Some(next) => self.add_edge(node, next, leaf),
        }
        node
    }

    fn add_edge(&mut self, from: u32, word: &[u8], to: u32) {
        let hash = hash(&self.hasher, from, word);
        self.edges.insert_unique(spread(hash), Edge { hash, from, to }, |edge| spread(edge.hash));
        let parent = &mut self.nodes[from as usize];
        parent.children += 1;
        parent.children |= flag_of(word);
    }

    fn remove_edge(&mut self, from: u32, word: &[u8], to: u32) {
        let hash = hash(&self.hasher, from, word);
        if let Ok(edge) = self.edges.find_entry(spread(hash), |edge| edge.from == from && edge.to == to) {
            edge.remove();
            let parent = &mut self.nodes[from as usize];
            parent.children -= 1;
            parent.children &= !flag_of(word);
        }
    }
}

impl Node {
    fn new(word: &[u8]) -> Self {
        Self { word: word.into(), pattern: NONE, children: 0 }
    }
}

struct Visit {
    /// The target, as in [`Edge`].
    to: u32,
    /// The number of pattern words on the path.
    depth: u32,
    /// The number of words of the key that they matched.
    consumed: u32,
    below_hash: bool,
}

/// Whether the words after that at `depth` may be compared one by one, which finds the pattern at most once:
/// there is no `#` among them, or it is the last word and there is none before it.
fn is_simple(words: &[&[u8]], depth: usize) -> bool {
    match words[depth + 1..].iter().position(|word| *word == HASH) {
        None => true,
        Some(at) => depth + 1 + at == words.len() - 1 && !words[..=depth].contains(&HASH),
    }
}

fn tail_matches<'a>(tail: impl Iterator<Item = &'a [u8]>, words: &[&[u8]]) -> bool {
    let mut words = words.iter();
    for pattern in tail {
        if pattern == HASH {
            return true;
        }
        if words.next().is_none_or(|word| pattern != STAR && pattern != *word) {
            return false;
        }
    }
    words.next().is_none()
}

/// RabbitMQ treats the empty key as no words, not as one empty word.
fn words_of(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let skip = usize::from(key.is_empty());
    key.split(|byte| *byte == b'.').skip(skip)
}

fn hash(hasher: &RandomState, from: u32, word: &[u8]) -> u32 {
    (hasher.hash_one((from, word)) >> 32) as u32
}

/// The table uses bits from both ends.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

fn flag_of(word: &[u8]) -> u32 {
    match word {
        STAR => HAS_STAR,
        HASH => HAS_HASH,
        _ => 0,
    }
}

const STAR: &[u8] = b"*";
const HASH: &[u8] = b"#";
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;
const LEAF: u32 = 1 << 31;
const HAS_STAR: u32 = 1 << 31;
const HAS_HASH: u32 = 1 << 30;
const CHILDREN: u32 = HAS_HASH - 1;

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
