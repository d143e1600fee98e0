//! Resource alarms: while one is raised, publishing connections are not read.
//!
//! As in RabbitMQ (<https://www.rabbitmq.com/docs/alarms>), a connection is blocked by the first message that
//! it publishes while an alarm is raised, and is notified then if it supports `connection.blocked`; a
//! connection that only consumes is not affected. Blocked connections are woken when the last alarm is cleared;
//! raising one wakes no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use transport::Outbox;

/// A resource of this machine that can run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Space on the disk of the data directory.
    Disk,
    /// The space of a spool, within its limits.
    Spool,
    /// A user's share of a spool.
    SpoolShare,
    /// A spool that an operator is draining.
    Draining,
}

/// The raised alarms and the connections that they block. Shared by the connections of a server and the code
/// that measures its resources.
#[derive(Debug, Default)]
pub struct Alarms {
    /// One bit per resource. Changed with `blocked` locked, so that no connection waits for an alarm that has
    /// already been cleared.
    raised: AtomicU8,
    blocked: Mutex<HashMap<u64, Arc<Outbox>>>,
    next_id: AtomicU64,
}

/// Registration of a blocked connection, removed when dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    alarms: Arc<Alarms>,
    id: u64,
}

impl Alarms {
    /// Raises the alarm for a resource; returns whether it was newly raised.
    pub fn raise(&self, resource: Resource) -> bool {
        let _blocked = self.blocked.lock();
        self.raised.fetch_or(bit(resource), Ordering::Release) & bit(resource) == 0
    }

    /// Clears the alarm for a resource; returns whether it was raised. Blocked connections continue once no alarm is
    /// raised any more.
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

    /// Whether the alarm for a resource is raised.
    pub fn is_raised(&self, resource: Resource) -> bool {
        self.raised.load(Ordering::Acquire) & bit(resource) != 0
    }

    /// Number of connections that are blocked.
    pub fn blocked_connections(&self) -> usize {
        self.blocked.lock().len()
    }

    /// Whether any alarm is raised.
    #[inline]
    pub(crate) fn any_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire) != 0
    }

    /// Registers a blocked connection, whose outbox is nudged when no alarm is raised any more. Returns the registration
    /// and the reason in RabbitMQ's words, or `None` if no alarm is raised now.
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
            // The map may have grown large.
            blocked.shrink_to_fit();
        }
    }
}

const MEMORY: u8 = 1;
const DISK: u8 = 2;
const SPOOL: u8 = 4;
const DRAINING: u8 = 8;
const SPOOL_SHARE: u8 = 16;

fn bit(resource: Resource) -> u8 {
    match resource {
        Resource::Memory => MEMORY,
        Resource::Disk => DISK,
        Resource::Spool => SPOOL,
        Resource::Draining => DRAINING,
        Resource::SpoolShare => SPOOL_SHARE,
    }
}

fn reason(raised: u8) -> Option<&'static str> {
    if raised & (SPOOL | SPOOL_SHARE) != 0 {
        return Some("spool has reached a limit");
    }
    if raised & DRAINING != 0 {
        return Some("spool is being drained");
    }
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
    fn each_alarm_change_is_reported_once() {
        let alarms = Alarms::default();
        assert!(alarms.raise(Resource::Memory));
        assert!(!alarms.raise(Resource::Memory));
        assert!(alarms.raise(Resource::Disk));
        assert!(alarms.clear(Resource::Memory));
        assert!(!alarms.clear(Resource::Memory));
        assert!(alarms.is_raised(Resource::Disk) && !alarms.is_raised(Resource::Memory));
        assert!(alarms.clear(Resource::Disk));
        assert!(!alarms.any_raised());
    }

    #[test]
    fn the_blocked_reason_names_each_low_resource() {
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
