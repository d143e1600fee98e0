//! Bindings that are not remembered, and that may keep an auto-delete exchange alive.

use std::collections::HashSet;

use super::change::Node;
use super::declarer::hash;

/// The hashes of a virtual host's exchanges that are the sources of such bindings. They are kept when no declaring client
/// is left, because the bindings still exist. A false entry only causes a needless declaration.
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

/// Exchanges of one virtual host, 8 bytes each. When the set is full, as when applications use a new name for each request,
/// it is cleared. This matters only for an exchange that is declared again after all its clients have gone.
const EXCHANGES_MAX: usize = 1024;
/// Virtual hosts without other state, some of which may not exist any more. Cleared in the same way.
pub(super) const VHOSTS_MAX: usize = 256;
