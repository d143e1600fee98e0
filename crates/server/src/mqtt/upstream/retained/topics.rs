//! The retained message of each topic, as read from the log so far, and the choice of the entries that are copied to the
//! log's end.
//!
//! The upstream drops the log's oldest segments when the log is full. An entry that is still needed is copied before
//! that, once more than half of the log's maximum follows it. An entry's version is its offset; a copy has the version of
//! its original. A topic's retained message is the entry with the highest version, wherever it is in the log. A process
//! may copy an entry before it has read a newer one, so a copy may follow a newer entry; readers then ignore the copy.
//!
//! If this reader has read the offset that a copy claims as its original, the copy counts only if that is the topic's
//! current entry. So whoever may write copies cannot set topics beyond its topic permissions, except for readers that
//! started after the original was dropped.
//!
//! A removal is forgotten once half of the maximum follows it, unless such an older copy follows it: a process that
//! starts to read after the removal was dropped would accept the copy. In that case the removal is copied as well, and
//! then follows the older copy.
//!
//! Example: `a` is set at offset 1 and removed at 5. A process that has read up to 4 copies version 1, as entry 6. A
//! reader that knows version 5 sees entry 6, and later copies the removal: entry 900, with version 5. A process that
//! starts to read at 6 reads `a`, and its removal at 900.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use broker::Timestamp;
use hashbrown::HashMap;
use mqtt::topic::TopicFilter;
use sync::work;

use super::record::{self, Encoded, LogEntry, Placed, TopicEntry};
use crate::mqtt::retained::{MAX_VISITED, RetainedMessage, RetainedSearch, RetainedTree, VISITED};

/// Sizes in bytes of the log of one virtual host.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLimits {
    /// The upstream drops the oldest segments above this size.
    pub(super) maximum: u64,
    /// The size of a segment.
    pub(super) segment: u64,
}

impl LogLimits {
    /// The size of the needed entries up to which clients may retain more. Each of them is copied once while half of the
    /// maximum is written; above this limit, copies would cause further copies.
    fn of_publishers(self) -> u64 {
        self.maximum / 4
    }

    /// The size up to which entries are accepted: publishers of several processes may together exceed their limit, since
    /// they do not see each other's messages at once.
    fn of_readers(self) -> u64 {
        self.maximum / 8 * 3
    }

    /// The bytes that follow an entry when it is copied.
    fn of_copies(self) -> u64 {
        self.maximum / 2
    }
}

/// The maximum of remembered removals. Above it the oldest are forgotten early. A process that starts after such a
/// removal was dropped might then accept a late copy of the message.
const MAX_REMOVALS: usize = 100_000;

/// The maximum of entries that the search for one copy visits, so that a turn ends.
const MAX_SCANNED: usize = 1000;

/// The topics of a log.
pub(super) struct RetainedTopics {
    limits: LogLimits,
    /// Bytes added to [`LogLimits::of_copies`], different in each process, so that the first process makes most copies
    /// alone.
    jitter: u64,
    tree: RetainedTree,
    known: HashMap<Arc<str>, KnownTopic>,
    /// The topics by the offset of their latest entry.
    places: BTreeMap<u64, Arc<str>>,
    /// The offsets of topics without a message.
    removals: BTreeSet<u64>,
    /// Bytes of the entries of topics with a message.
    live: u64,
    /// The first offset that was read.
    first: Option<u64>,
    /// The next offset to read.
    next: u64,
    /// Bytes of all entries that were read.
    end: u64,
    /// The offset of the last entry that was passed on to be copied.
    copied: Option<u64>,
}

/// A topic's entry with the highest version.
#[derive(Debug, Clone, Copy)]
struct KnownTopic {
    version: u64,
    /// The offset of the last entry with this version.
    offset: u64,
    /// [`RetainedTopics::end`] after that entry.
    at: u64,
    /// Bytes of that entry.
    size: u64,
    has_message: bool,
    /// Whether an entry with a lower version follows it.
    is_followed: bool,
}

impl RetainedTopics {
    /// A log that was not read yet. `jitter` is a random number.
    pub(super) fn new(limits: LogLimits, jitter: u64) -> Self {
        let jitter = jitter % (limits.maximum / 8).max(1);
        let (tree, known, places, removals) = Default::default();
        let (live, first, next, end, copied) = (0, None, 0, 0, None);
        Self { limits, jitter, tree, known, places, removals, live, first, next, end, copied }
    }

    /// The offset to read from.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Number of topics with a message.
    pub(super) fn len(&self) -> usize {
        self.known.len() - self.removals.len()
    }

    /// Bytes of the entries of topics with a message.
    pub(super) fn bytes(&self) -> u64 {
        self.live
    }

    /// Handles an entry, unless it was read before. Returns false for a message that exceeds the limits.
    pub(super) fn read(&mut self, placed: Placed, now: Timestamp) -> bool {
        let Placed { offset, size, entry } = placed;
        if offset < self.next {
            return true;
        }
        self.next = offset + 1;
        self.end += size;
        let first = *self.first.get_or_insert(offset);
        let LogEntry::Topic(TopicEntry { version, topic, message }) = entry else { return true };
        if let Some(copied) = version
            && copied >= first
            && self.known.get(&*topic).is_none_or(|known| copied > known.version)
        {
            // The entry that it claims to copy was read, and was not this topic's or has been removed since: the copy is
            // forged or late.
            return true;
        }
        let version = version.unwrap_or(offset);
        if let Some(known) = self.known.get_mut(&*topic)
            && version <= known.version
        {
            if version < known.version {
                known.is_followed = true;
            } else {
                self.copied_to(&topic, offset, size);
            }
            return true;
        }
        self.forget(&topic);
        let message = message.filter(|message| !message.is_expired(now));
        let wanted = message.is_some();
        let message = message.filter(|message| self.takes(message, size, now));
        let has_message = message.is_some();
        match message {
            Some(message) => _ = self.tree.set(message),
            None => _ = self.tree.clear(&topic),
        }
        let topic: Arc<str> = (*topic).into();
        let is_followed = false;
        let known = KnownTopic { version, offset, at: self.end, size, has_message, is_followed };
        self.place(topic, known);
        while self.removals.len() > MAX_REMOVALS
            && let Some(oldest) = self.removals.first().copied()
        {
            self.forget_at(oldest);
        }
        wanted == has_message
    }

    /// Whether a message that was read is within the limits. Its topic's previous entry is not counted any more.
    fn takes(&mut self, message: &RetainedMessage, size: u64, now: Timestamp) -> bool {
        let fits = |all: &Self| all.live + size <= all.limits.of_readers() && all.tree.has_capacity(message);
        if !fits(self) {
            self.expire(now);
        }
        fits(self)
    }

    /// Moves a topic to the offset of the copy of its entry.
    fn copied_to(&mut self, topic: &str, offset: u64, size: u64) {
        let Some((topic, mut known)) = self.unindex(topic) else { return };
        (known.offset, known.at, known.size, known.is_followed) = (offset, self.end, size, false);
        self.place(topic, known);
    }

    fn place(&mut self, topic: Arc<str>, known: KnownTopic) {
        if known.has_message {
            self.live += known.size;
        } else {
            self.removals.insert(known.offset);
        }
        self.places.insert(known.offset, Arc::clone(&topic));
        self.known.insert(topic, known);
    }

    fn unindex(&mut self, topic: &str) -> Option<(Arc<str>, KnownTopic)> {
        let (topic, known) = self.known.remove_entry(topic)?;
        if known.has_message {
            self.live -= known.size;
        } else {
            self.removals.remove(&known.offset);
        }
        self.places.remove(&known.offset);
        Some((topic, known))
    }

    fn forget(&mut self, topic: &str) {
        self.unindex(topic);
    }

    fn forget_at(&mut self, offset: u64) {
        if let Some(topic) = self.places.get(&offset).cloned() {
            self.forget(&topic);
        }
    }

    /// Removes expired messages.
    fn expire(&mut self, now: Timestamp) {
        while let Some(topic) = self.tree.remove_expired(now) {
            self.removed_here(&topic);
        }
    }

    /// Marks a topic as removed whose message has expired.
    fn removed_here(&mut self, topic: &str) {
        self.tree.clear(topic);
        if let Some((topic, known)) = self.unindex(topic) {
            self.place(topic, KnownTopic { has_message: false, ..known });
        }
    }

    /// Whether a client may retain a message of this size.
    pub(super) fn has_capacity(&mut self, topic: &str, size: u64, now: Timestamp) -> bool {
        let before = self.known.get(topic).filter(|known| known.has_message).map_or(0, |known| known.size);
        let fits = |all: &Self| all.live.saturating_sub(before) + size <= all.limits.of_publishers();
        if !fits(self) {
            self.expire(now);
        }
        fits(self)
    }

    /// The retained message of a topic.
    pub(super) fn get(&self, topic: &str, now: Timestamp) -> Option<Arc<RetainedMessage>> {
        self.tree.get(topic, now)
    }

    /// The next messages of topics that a filter matches. Call it until `progress` is [`RetainedSearch::Done`]. A message
    /// that is set or copied meanwhile may come twice.
    ///
    /// If the filter can match few nodes, they are searched in the tree. Otherwise all topics are scanned in the order of
    /// their entries, so that the scan can be continued at an offset.
    pub(super) fn matching(
        &self,
        filter: &str,
        progress: &mut RetainedSearch,
        now: Timestamp,
    ) -> Vec<Arc<RetainedMessage>> {
        let from = match self.tree.begin(filter, progress, now) {
            Ok(found) => return found,
            Err(next) => next,
        };
        let mut found = Vec::new();
        let Ok(filter) = TopicFilter::parse(filter, false) else { return found };
        for (visited, (offset, topic)) in self.places.range(from..).enumerate() {
            if visited == MAX_VISITED {
                *progress = RetainedSearch::Scanned(*offset);
                break;
            }
            work::charge(VISITED, 1);
            if filter.matches(topic) {
                found.extend(self.tree.get(topic, now));
            }
        }
        found
    }

    /// The next entry to copy to the log's end. The log must have been read to its end.
    pub(super) fn next_copy(&mut self, now: Timestamp) -> Option<Encoded> {
        let from = self.copied.map_or(Bound::Unbounded, Bound::Excluded);
        let mut forgotten = Vec::new();
        let mut copy = None;
        for (offset, topic) in self.places.range((from, Bound::Unbounded)).take(MAX_SCANNED) {
            let Some(known) = self.known.get(topic) else { continue };
            if known.at + self.limits.of_copies() + self.jitter >= self.end {
                break;
            }
            self.copied = Some(*offset);
            let message = self.tree.get(topic, now).filter(|_| known.has_message);
            match message {
                Some(message) => copy = Some(record::copy(known.version, &message)),
                None if known.is_followed => copy = Some(record::removal(known.version, topic)),
                None => forgotten.push(Arc::clone(topic)),
            }
            if copy.is_some() {
                break;
            }
        }
        for topic in forgotten {
            self.tree.clear(&topic);
            self.forget(&topic);
        }
        copy
    }

    /// Whether [`Self::next_copy`] may have an entry.
    pub(super) fn has_copies(&self) -> bool {
        let from = self.copied.map_or(Bound::Unbounded, Bound::Excluded);
        let first = self.places.range((from, Bound::Unbounded)).next();
        let known = first.and_then(|(_, topic)| self.known.get(topic));
        known.is_some_and(|known| known.at + self.limits.of_copies() + self.jitter < self.end)
    }

    /// Starts the copying again, since copies may have been lost.
    pub(super) fn copy_again(&mut self) {
        self.copied = None;
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}
