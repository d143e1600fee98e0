//! Retained messages pending for a client: new subscriptions have matched their topics, and the client does not
//! have them yet.
//!
//! Topics are recorded, not messages. The client gets the message that is retained when it is sent: a later one if it was
//! replaced, none if it was cleared. So no old message is kept for a slow client. Each filter that matches a topic gets
//! its own copy (section 3.3.1.3), however often a client subscribes with it. The memory of a client's pending copies is
//! bounded by the retained topics, and by [`MAX_COPIES`] beyond one copy of each. Above that, and after a restart, one
//! copy of a topic serves all matching filters.
//!
//! Messages pending at QoS 1 and 2 for a session that outlives its connection are on disk
//! ([`broker::Section::MqttPendingRetained`]) before its SUBACK: at QoS 1 until the client has acknowledged them, at QoS 2
//! until the session holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk;
use super::session_ownership::Owner;

/// The pending retained messages of one client.
#[derive(Default)]
pub(super) struct PendingRetained {
    /// Topics whose message is to be sent.
    topics: BTreeMap<Arc<str>, PendingTopic>,
    /// Number of topics recorded on disk.
    noted: usize,
    /// Number of pending filters of all topics, beyond one per topic.
    more_copies: usize,
    /// Topics on disk whose message was sent at QoS 1, by its tag. Bounded by the client's window.
    sent: Vec<(u64, Arc<str>)>,
}

#[derive(Default)]
struct PendingTopic {
    /// It is on disk, or will be.
    is_noted: bool,
    /// It was pending before a restart, and may have been sent then.
    is_redelivered: bool,
    /// Each filter gets a copy; if empty, one copy serves all matching filters.
    filters: Vec<Arc<str>>,
}

/// A copy of a retained message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingCopy {
    pub(super) topic: Arc<str>,
    pub(super) is_noted: bool,
    pub(super) is_redelivered: bool,
    /// The subscription that gets it; `None` for all that match.
    pub(super) filter: Option<Arc<str>>,
}

impl PendingRetained {
    /// Records a topic that a subscription has matched; `is_noted` if it is on disk or will be.
    pub(super) fn add(&mut self, topic: Arc<str>, is_noted: bool, filter: &Arc<str>) {
        let is_new = !self.topics.contains_key(&topic);
        let before = self.topics.entry(topic).or_default();
        self.noted += usize::from(is_noted && !before.is_noted);
        before.is_noted |= is_noted;
        if is_new {
            before.filters.push(Arc::clone(filter));
        } else if before.filters.is_empty() || before.filters.contains(filter) {
            // A copy for this filter is pending already.
        } else if self.more_copies < MAX_COPIES {
            before.filters.push(Arc::clone(filter));
            self.more_copies += 1;
        } else {
            self.more_copies -= before.filters.len() - 1;
            before.filters = Vec::new();
        }
    }

    /// Adds a topic that was on disk before a restart.
    pub(super) fn restore(&mut self, topic: Arc<str>) {
        let restored = PendingTopic { is_noted: true, is_redelivered: true, filters: Vec::new() };
        self.noted += usize::from(self.topics.insert(topic, restored).is_none());
    }

    /// Whether another topic may be recorded on disk.
    pub(super) fn may_note(&self) -> bool {
        self.noted + self.sent.len() < MAX_NOTED
    }

    /// The next copy to be sent.
    pub(super) fn first(&self) -> Option<PendingCopy> {
        let (topic, pending_retained) = self.topics.first_key_value()?;
        Some(PendingCopy {
            topic: Arc::clone(topic),
            is_noted: pending_retained.is_noted,
            is_redelivered: pending_retained.is_redelivered,
            filter: pending_retained.filters.first().cloned(),
        })
    }

    /// Removes that copy, which is being sent.
    pub(super) fn pop_first(&mut self) {
        let Some(mut first) = self.topics.first_entry() else { return };
        if first.get().filters.len() > 1 {
            first.get_mut().filters.remove(0);
            self.more_copies -= 1;
            return;
        }
        self.noted -= usize::from(first.remove().is_noted);
    }

    /// Removes all copies of a topic that were not sent.
    pub(super) fn discard(&mut self, topic: &str) {
        if let Some(discarded) = self.topics.remove(topic) {
            self.noted -= usize::from(discarded.is_noted);
            self.more_copies -= discarded.filters.len().saturating_sub(1);
        }
    }

    /// Records that the message of a topic on disk was sent at QoS 1.
    pub(super) fn sent(&mut self, tag: u64, topic: Arc<str>) {
        self.sent.push((tag, topic));
    }

    /// Called when a message was acknowledged: returns its topic, if that is on disk.
    pub(super) fn acknowledged(&mut self, tag: u64) -> Option<Arc<str>> {
        let at = self.sent.iter().position(|(sent, _)| *sent == tag)?;
        Some(self.sent.swap_remove(at).1)
    }

    /// Whether a topic must stay on disk, for example because it has become pending again.
    pub(super) fn needs(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|pending_retained| pending_retained.is_noted)
            || self.sent.iter().any(|(_, sent)| **sent == *topic)
    }

    /// The topics to be sent.
    #[cfg(test)]
    pub(super) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(|topic| &**topic)
    }

    /// Whether nothing is to be sent or acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.sent.is_empty()
    }
}

/// Pending topics that one client may have on disk. They are written before any client's next confirm, which more of them
/// would delay, for example for a subscription to `#`. Further topics are pending only while the connection lasts.
const MAX_NOTED: usize = 10_000;

/// Pending copies that one client may have beyond one per topic, for overlapping filters: about 16 bytes each.
const MAX_COPIES: usize = 10_000;

/// The key of a client's pending topic.
pub(super) fn pending_key(owner: &Owner, topic: &str) -> Vec<u8> {
    disk::key(&[&owner.vhost, &owner.client_id, topic])
}

/// Decodes a key of [`pending_key`]; `None` if it is malformed.
pub(super) fn read_key(key: &[u8]) -> Option<(Owner, Arc<str>)> {
    let [vhost, client_id, topic] = disk::names(key)?;
    Some((Owner { vhost: vhost.into(), client_id: client_id.into() }, topic.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(pending_retained: &mut PendingRetained, topic: &str, is_noted: bool, filter: &str) {
        pending_retained.add(topic.into(), is_noted, &filter.into());
    }

    fn take_first(pending_retained: &mut PendingRetained) -> PendingCopy {
        let first = pending_retained.first().unwrap();
        pending_retained.pop_first();
        first
    }

    #[test]
    fn a_topic_is_pending_once_to_a_filter_and_stays_noted_until_nobody_waits_for_it() {
        let mut pending_retained = PendingRetained::default();
        for is_noted in [false, true, false] {
            add(&mut pending_retained, "t", is_noted, "t");
        }
        let PendingCopy { topic, is_noted, .. } = take_first(&mut pending_retained);
        assert!(is_noted && pending_retained.first().is_none() && !pending_retained.needs("t"));
        pending_retained.sent(7, topic);
        assert!(pending_retained.needs("t") && !pending_retained.is_empty());
        // The client subscribes again before it acknowledges the message.
        add(&mut pending_retained, "t", true, "t");
        assert_eq!(
            (pending_retained.acknowledged(8), pending_retained.acknowledged(7).as_deref()),
            (None, Some("t"))
        );
        assert!(pending_retained.needs("t"));
        take_first(&mut pending_retained);
        assert!(!pending_retained.needs("t") && pending_retained.is_empty());
    }

    #[test]
    fn each_filter_has_a_pending_copy_and_above_the_limit_one_is_for_all() {
        let mut pending_retained = PendingRetained::default();
        for filter in ["#", "t", "+", "t"] {
            add(&mut pending_retained, "t", true, filter);
        }
        let filters = |pending_retained: &mut PendingRetained| {
            take_first(pending_retained).filter.map(|filter| filter.to_string())
        };
        for expected in ["#", "t", "+"] {
            assert!(pending_retained.needs("t"));
            assert_eq!(filters(&mut pending_retained).as_deref(), Some(expected));
        }
        assert!(
            pending_retained.is_empty() && !pending_retained.needs("t") && pending_retained.more_copies == 0
        );
        for number in 0..=MAX_COPIES {
            add(&mut pending_retained, "t", true, &number.to_string());
        }
        add(&mut pending_retained, "u", true, "u");
        assert_eq!((pending_retained.more_copies, pending_retained.topics.len()), (MAX_COPIES, 2));
        add(&mut pending_retained, "t", true, "one more");
        assert_eq!((pending_retained.more_copies, filters(&mut pending_retained)), (0, None));
        assert_eq!(filters(&mut pending_retained).as_deref(), Some("u"));
        pending_retained.restore("r".into());
        add(&mut pending_retained, "r", true, "#");
        let copy = take_first(&mut pending_retained);
        assert!(copy.is_redelivered && copy.filter.is_none() && pending_retained.is_empty());
        assert_eq!((pending_retained.noted, pending_retained.more_copies), (0, 0));
    }

    #[test]
    fn a_topic_pending_only_in_memory_need_not_be_on_disk() {
        let mut pending_retained = PendingRetained::default();
        add(&mut pending_retained, "t", false, "t");
        assert!(!pending_retained.needs("t") && !pending_retained.is_empty());
    }

    #[test]
    fn a_bounded_number_of_topics_is_on_disk() {
        let mut pending_retained = PendingRetained::default();
        for number in 0..MAX_NOTED {
            assert!(pending_retained.may_note());
            add(&mut pending_retained, &number.to_string(), true, "#");
            add(&mut pending_retained, &number.to_string(), true, "#");
        }
        assert!(!pending_retained.may_note());
        let PendingCopy { topic, .. } = take_first(&mut pending_retained);
        assert!(pending_retained.may_note());
        pending_retained.sent(1, topic);
        assert!(!pending_retained.may_note(), "until it is acknowledged");
        pending_retained.acknowledged(1);
        assert!(pending_retained.may_note());
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let owner = Owner { vhost: "/".into(), client_id: "größe".into() };
        let key = pending_key(&owner, "a/b");
        assert_eq!(read_key(&key), Some((owner, "a/b".into())));
        assert_eq!(read_key(&key[..key.len() - 1]), None);
    }
}
