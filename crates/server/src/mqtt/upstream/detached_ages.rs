//! Bounds the memory of detached sessions: the oldest are forgotten first.
//!
//! A forgotten session has not ended. Its messages and bindings are in its queue upstream, where the client finds them
//! when it reconnects, as on a Leveret that never had the session. A delayed will is kept: the client may reconnect
//! before it is due.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use mqtt::session::Session;

use crate::mqtt::session_ownership::Owner;

/// The maximum of bytes of all detached sessions: 200,000 clients with a subscription each.
const MAX_BYTES: usize = 128 << 20;

/// The maximum of bytes of one detached session, some thousand filters, so that it does not displace many others.
const MAX_SESSION_BYTES: usize = 256 << 10;

/// Bytes of a detached session without subscriptions: its entries in tables, its owner and its user.
const SESSION: usize = 512;

/// Bytes of a subscription besides its filter, and of an unreleased QoS 2 message.
const ENTRY: usize = 64;

/// Detached sessions in the order in which they were detached.
#[derive(Debug)]
pub(super) struct DetachedAges {
    by_age: BTreeMap<u64, Arc<Owner>>,
    last: u64,
    bytes: usize,
    max_bytes: usize,
}

impl Default for DetachedAges {
    fn default() -> Self {
        Self::with_limit(MAX_BYTES)
    }
}

/// A detached session's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DetachedAge {
    number: u64,
    bytes: usize,
}

impl DetachedAges {
    /// With a limit of this many bytes.
    pub(super) fn with_limit(max_bytes: usize) -> Self {
        Self { by_age: BTreeMap::new(), last: 0, bytes: 0, max_bytes }
    }

    /// Adds a session. Returns `None` if it is too large to be remembered.
    pub(super) fn add(&mut self, owner: &Arc<Owner>, session: &Session) -> Option<DetachedAge> {
        let bytes = bytes_of(session);
        (bytes <= MAX_SESSION_BYTES).then(|| {
            self.last += 1;
            self.bytes += bytes;
            self.by_age.insert(self.last, Arc::clone(owner));
            DetachedAge { number: self.last, bytes }
        })
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, age: DetachedAge) {
        if self.by_age.remove(&age.number).is_some() {
            self.bytes -= age.bytes;
        }
    }

    /// The oldest session, if the limit is exceeded: the caller has to remove it.
    pub(super) fn excess(&self) -> Option<&Arc<Owner>> {
        self.by_age.values().next().filter(|_| self.bytes > self.max_bytes)
    }

    /// The sessions after `number`, oldest first, each with its number.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &Arc<Owner>)> {
        self.by_age.range((Bound::Excluded(number), Bound::Unbounded)).map(|(number, owner)| (*number, owner))
    }

    /// The number of sessions, and their bytes.
    pub(super) fn totals(&self) -> (usize, usize) {
        (self.by_age.len(), self.bytes)
    }
}

/// The approximate memory of a session here, in bytes.
fn bytes_of(session: &Session) -> usize {
    let subscriptions = session.subscriptions().map(|(filter, _)| filter.len() + ENTRY).sum::<usize>();
    SESSION + subscriptions + session.received().count() * ENTRY
}

#[cfg(test)]
mod tests {
    use mqtt::packet::{QoS, SubscribeOptions};
    use mqtt::session::Subscription;

    use super::*;

    fn owner(number: usize) -> Arc<Owner> {
        Arc::new(Owner { vhost: "/".into(), client_id: number.to_string().into() })
    }

    fn session(filters: usize) -> Session {
        let mut session = Session::new();
        for number in 0..filters {
            let options = SubscribeOptions::of_qos(QoS::AtLeastOnce);
            session.subscribe(&format!("{number:0>36}"), Subscription::of(options));
        }
        session
    }

    #[test]
    fn the_oldest_sessions_are_forgotten_first() {
        let mut ages = DetachedAges::with_limit(3 * (SESSION + 100));
        let mine: Vec<_> = (0..5).map(|number| ages.add(&owner(number), &session(1)).unwrap()).collect();
        ages.remove(mine[1]);
        assert_eq!(ages.totals(), (4, 4 * (SESSION + 100)));
        assert_eq!(ages.excess(), Some(&owner(0)));
        ages.remove(mine[0]);
        ages.remove(mine[0]);
        assert_eq!((ages.excess(), ages.totals()), (None, (3, 3 * (SESSION + 100))));
    }

    #[test]
    fn a_session_with_too_many_subscriptions_is_not_remembered() {
        let mut ages = DetachedAges::default();
        assert!(ages.add(&owner(0), &session(MAX_SESSION_BYTES / 100 + 1)).is_none());
        assert!(ages.add(&owner(0), &session(2000)).is_some());
    }
}
