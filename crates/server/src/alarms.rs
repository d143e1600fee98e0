//! Resource alarms: while one stands, whoever publishes is not read any further.
//!
//! As in RabbitMQ (<https://www.rabbitmq.com/docs/alarms>): a connection is blocked by the first message that it publishes
//! while an alarm stands, and hears of it then if it knows `connection.blocked`; who only consumes never notices. Blocked
//! connections are woken when the last alarm is cleared; raising one wakes nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use transport::Outbox;

/// What this machine can run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Space on the disk of the data folder.
    Disk,
}

/// The alarms that stand, and the connections that they block. Shared by the connections of a server and whoever measures
/// its resources.
#[derive(Debug, Default)]
pub struct Alarms {
    /// A bit for each resource. Changed with `blocked` locked, so that no connection waits for a change that has been.
    raised: AtomicU8,
    blocked: Mutex<HashMap<u64, Arc<Outbox>>>,
    next_id: AtomicU64,
}

/// A connection's place among the blocked ones, until dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    alarms: Arc<Alarms>,
    id: u64,
}

impl Alarms {
    /// Raises the alarm for a resource; returns whether it did not stand before.
    pub fn raise(&self, resource: Resource) -> bool {
        let _blocked = self.blocked.lock();
        self.raised.fetch_or(bit(resource), Ordering::Release) & bit(resource) == 0
    }

    /// Clears the alarm for a resource; returns whether it stood before. Connections go on when none stands any more.
    pub fn clear(&self, resource: Resource) -> bool {
        let blocked = self.blocked.lock();
        let before = self.raised.fetch_and(!bit(resource), Ordering::Release);
        if before != bit(resource) {
            return before & bit(resource) != 0;
        }
        let outboxes: Vec<_> = blocked.values().cloned().collect();
        drop(blocked);
        outboxes.iter().for_each(|outbox| outbox.nudge());
        true
    }

    /// Whether the alarm for a resource stands.
    pub fn is_raised(&self, resource: Resource) -> bool {
        self.raised.load(Ordering::Acquire) & bit(resource) != 0
    }

    /// Connections that have been told to wait and do not go on yet.
    pub fn blocked_connections(&self) -> usize {
        self.blocked.lock().len()
    }

    /// Whether any alarm stands.
    #[inline]
    pub(crate) fn stand(&self) -> bool {
        self.raised.load(Ordering::Acquire) != 0
    }

    /// Notes that a connection waits: its outbox is nudged when no alarm stands any more. `None` if none stands now.
    /// With it the reason, in RabbitMQ's words.
    pub(crate) fn block(self: &Arc<Self>, outbox: &Arc<Outbox>) -> Option<(Blocked, &'static str)> {
        let mut blocked = self.blocked.lock();
        let reason = reason(self.raised.load(Ordering::Relaxed))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        blocked.insert(id, Arc::clone(outbox));
        Some((Blocked { alarms: Arc::clone(self), id }, reason))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let mut blocked = self.alarms.blocked.lock();
        blocked.remove(&self.id);
        if blocked.is_empty() {
            // There may have been many.
            blocked.shrink_to_fit();
        }
    }
}

const MEMORY: u8 = 1;
const DISK: u8 = 2;

fn bit(resource: Resource) -> u8 {
    match resource {
        Resource::Memory => MEMORY,
        Resource::Disk => DISK,
    }
}

fn reason(raised: u8) -> Option<&'static str> {
    match (raised & MEMORY != 0, raised & DISK != 0) {
        (false, false) => None,
        (true, false) => Some("low on memory"),
        (false, true) => Some("low on disk"),
        (true, true) => Some("low on disk & memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let alarms = Alarms::default();
        assert!(alarms.raise(Resource::Memory));
        assert!(!alarms.raise(Resource::Memory));
        assert!(alarms.raise(Resource::Disk));
        assert!(alarms.clear(Resource::Memory));
        assert!(!alarms.clear(Resource::Memory));
        assert!(alarms.is_raised(Resource::Disk) && !alarms.is_raised(Resource::Memory));
        assert!(alarms.clear(Resource::Disk));
        assert!(!alarms.stand());
    }

    #[test]
    fn the_reason_names_what_is_low() {
        let (alarms, outbox) = (Arc::new(Alarms::default()), Arc::new(Outbox::new(1)));
        let reason = || alarms.block(&outbox).map(|(_, reason)| reason);
        assert_eq!(reason(), None);
        alarms.raise(Resource::Disk);
        assert_eq!(reason(), Some("low on disk"));
        alarms.raise(Resource::Memory);
        assert_eq!(reason(), Some("low on disk & memory"));
        alarms.clear(Resource::Disk);
        assert_eq!(reason(), Some("low on memory"));
        assert_eq!(alarms.blocked_connections(), 0, "dropped at once");
    }
}
