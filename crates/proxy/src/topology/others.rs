//! Bindings that are not remembered, and that may keep an auto-delete exchange alive.

use std::collections::HashSet;

use super::change::Node;
use super::declarer::hash;

/// The exchanges of a virtual host that such bindings begin at, by their hashes. They stay when no client is left that has
/// declared anything, because the bindings do. One that is here needlessly is declared again needlessly.
#[derive(Debug, Default)]
pub(super) struct UntrackedBindings(HashSet<u64>);

impl UntrackedBindings {
    pub(super) fn insert(&mut self, exchange: &Node) {
        if exchange.is_built_in() {
            return;
        }
        if self.0.len() >= EXCHANGES_MAX {
            self.0.clear();
        }
        self.0.insert(hash(exchange));
    }

    pub(super) fn has(&self, exchange: &Node) -> bool {
        self.0.contains(&hash(exchange))
    }

    pub(super) fn remove(&mut self, exchange: &Node) {
        self.0.remove(&hash(exchange));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Exchanges of one virtual host, 8 bytes each. Above that, as when applications make up a name for each request, it begins
/// again: that makes a difference only for an exchange whose clients all have gone, and that is declared again.
const EXCHANGES_MAX: usize = 1024;
/// Virtual hosts of which nothing else is known, some of which may not exist any more; likewise.
pub(super) const VHOSTS_MAX: usize = 256;
