//! The shared-subscription groups with members connected to this server, for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use sync::{Mutex, Rank};

/// All groups with members connected to this server.
#[derive(Default)]
pub(super) struct GroupTable {
    groups: Mutex<HashMap<GroupKey, Arc<GroupEntry>>, { Rank::Leaf as u8 }>,
    /// Messages sent to members, including groups that have ended.
    delivered: AtomicU64,
}

/// Identifies a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    vhost: Arc<str>,
    queue: Box<str>,
}

struct GroupEntry {
    key: GroupKey,
    /// As written by the first member.
    filter: Box<str>,
    /// Modified only under the table's lock.
    members: AtomicU64,
    delivered: AtomicU64,
}

/// A shared-subscription group, as far as this process knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The name of its queue upstream.
    pub queue: String,
    /// The queue's virtual host.
    pub vhost: String,
    /// The filter of its subscriptions: `$share/GROUP/FILTER`.
    pub filter: String,
    /// Members connected to this server.
    pub members: u64,
    /// Messages sent to members since the first of the present ones joined.
    pub delivered: u64,
}

/// The totals of all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupTotals {
    /// Groups with members connected to this server.
    pub(super) groups: usize,
    /// Members connected to this server, counted once per group.
    pub(super) members: u64,
    /// Messages sent to members since the start.
    pub(super) delivered: u64,
}

impl GroupTable {
    /// Adds a member of the group with this queue.
    pub(super) fn join(self: &Arc<Self>, vhost: &Arc<str>, queue: &str, filter: &str) -> GroupMember {
        let key = GroupKey { vhost: Arc::clone(vhost), queue: queue.into() };
        let mut groups = self.groups.lock();
        let entry = groups.entry(key).or_insert_with_key(|key| {
            let (members, delivered) = Default::default();
            Arc::new(GroupEntry { key: key.clone(), filter: filter.into(), members, delivered })
        });
        entry.members.fetch_add(1, Ordering::Relaxed);
        GroupMember { table: Arc::clone(self), entry: Arc::clone(entry) }
    }

    /// The groups for operators, in no order.
    pub(super) fn status(&self) -> Vec<GroupStatus> {
        let entries: Vec<_> = self.groups.lock().values().cloned().collect();
        let show = |entry: &Arc<GroupEntry>| GroupStatus {
            queue: entry.key.queue.to_string(),
            vhost: entry.key.vhost.to_string(),
            filter: entry.filter.to_string(),
            members: entry.members.load(Ordering::Relaxed),
            delivered: entry.delivered.load(Ordering::Relaxed),
        };
        entries.iter().map(show).collect()
    }

    /// The totals for operators.
    pub(super) fn totals(&self) -> GroupTotals {
        let groups = self.groups.lock();
        GroupTotals {
            groups: groups.len(),
            members: groups.values().map(|entry| entry.members.load(Ordering::Relaxed)).sum(),
            delivered: self.delivered.load(Ordering::Relaxed),
        }
    }
}

/// A client's membership of a group, until it is dropped.
pub(super) struct GroupMember {
    table: Arc<GroupTable>,
    entry: Arc<GroupEntry>,
}

impl GroupMember {
    /// Counts a message that was sent to the member.
    pub(super) fn count_delivered(&self) {
        self.entry.delivered.fetch_add(1, Ordering::Relaxed);
        self.table.delivered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        let mut groups = self.table.groups.lock();
        if self.entry.members.fetch_sub(1, Ordering::Relaxed) == 1 {
            groups.remove(&self.entry.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_listed_while_it_has_members_and_its_messages_stay_counted() {
        let table = Arc::new(GroupTable::default());
        let (here, there): (Arc<str>, Arc<str>) = ("/".into(), "there".into());
        let first = table.join(&here, "q", "$share/g/a");
        let second = table.join(&here, "q", "$share/g/a");
        let other = table.join(&there, "q", "$share/g/a");
        first.count_delivered();
        second.count_delivered();
        drop(first);
        let mut all = table.status();
        all.sort_unstable_by(|one, other| one.vhost.cmp(&other.vhost));
        let reported: Vec<_> =
            all.iter().map(|group| (&*group.vhost, group.members, group.delivered)).collect();
        assert_eq!(reported, [("/", 1, 2), ("there", 1, 0)]);
        assert_eq!(table.totals(), GroupTotals { groups: 2, members: 2, delivered: 2 });
        drop((second, other));
        assert_eq!(table.status(), []);
        assert_eq!(table.totals(), GroupTotals { groups: 0, members: 0, delivered: 2 });
    }
}
