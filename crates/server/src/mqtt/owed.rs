//! Retained messages that a client is still owed: new subscriptions have matched their topics, and the client does not have
//! them yet.
//!
//! Topics are noted, not messages: what is sent is what is retained when it is sent. Of a message that has been replaced
//! meanwhile the client gets the later one, of one that has been cleared nothing, and no old message is kept for a client that
//! takes its time. A topic is owed once, however many subscriptions match it and however often a client subscribes: what a
//! client can heap up here is bounded by what is retained.
//!
//! What a session that outlives its connection is owed at QoS 1 and 2 is on disk ([`broker::Section::MqttOwed`]) before its
//! SUBACK: at QoS 1 until the client has acknowledged it, at QoS 2 until the session has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk;
use super::hub::Owner;

/// What one client is owed.
#[derive(Default)]
pub(super) struct Owed {
    /// Topics whose message is to be sent, and whether they are on disk.
    topics: BTreeMap<Arc<str>, bool>,
    /// How many of them are on disk.
    noted: usize,
    /// Topics that are on disk and whose message was sent at QoS 1, by its tag. No more than the client's window.
    sent: Vec<(u64, Arc<str>)>,
}

impl Owed {
    /// Notes a topic; `is_noted` tells that it is on disk, or will be.
    pub(super) fn add(&mut self, topic: Arc<str>, is_noted: bool) {
        let before = self.topics.entry(topic).or_default();
        self.noted += usize::from(is_noted && !*before);
        *before |= is_noted;
    }

    /// Whether another topic may be noted on disk.
    pub(super) fn may_note(&self) -> bool {
        self.noted + self.sent.len() < MOST_NOTED
    }

    /// The topic whose message is the next to be sent.
    pub(super) fn first(&self) -> Option<&Arc<str>> {
        self.topics.first_key_value().map(|(topic, _)| topic)
    }

    /// Takes it out, to be sent; and whether it is on disk.
    pub(super) fn take_first(&mut self) -> Option<(Arc<str>, bool)> {
        let first = self.topics.pop_first();
        self.noted -= usize::from(matches!(first, Some((_, true))));
        first
    }

    /// The message of a topic that is on disk was sent at QoS 1.
    pub(super) fn sent(&mut self, tag: u64, topic: Arc<str>) {
        self.sent.push((tag, topic));
    }

    /// A message has been acknowledged: its topic, if that is on disk.
    pub(super) fn acknowledged(&mut self, tag: u64) -> Option<Arc<str>> {
        let at = self.sent.iter().position(|(sent, _)| *sent == tag)?;
        Some(self.sent.swap_remove(at).1)
    }

    /// Whether a topic is to stay on disk: it may have come to be owed again.
    pub(super) fn needs(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|is_noted| *is_noted)
            || self.sent.iter().any(|(_, sent)| **sent == *topic)
    }

    /// Whether nothing is to be sent or acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.sent.is_empty()
    }
}

/// Topics that one client may be owed on disk at a time. They are written before anybody's next confirm: more of them, for a
/// subscription to everything, would hold that up. What goes beyond is owed for as long as the connection lasts.
const MOST_NOTED: usize = 10_000;

/// The key of what a client is owed of one topic.
pub(super) fn owed_key(owner: &Owner, topic: &str) -> Vec<u8> {
    disk::key(&[&owner.vhost, &owner.client_id, topic])
}

/// What [`owed_key`] made a key of; `None` if it is not well-formed.
pub(super) fn read_key(key: &[u8]) -> Option<(Owner, Arc<str>)> {
    let [vhost, client_id, topic] = disk::names(key)?;
    Some((Owner { vhost: vhost.into(), client_id: client_id.into() }, topic.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_owed_once_and_stays_noted_until_nobody_waits_for_it() {
        let mut owed = Owed::default();
        for is_noted in [false, true, false] {
            owed.add("t".into(), is_noted);
        }
        let (topic, is_noted) = owed.take_first().unwrap();
        assert!(is_noted && owed.first().is_none() && !owed.needs("t"));
        owed.sent(7, topic);
        assert!(owed.needs("t") && !owed.is_empty());
        // It is subscribed again before it is acknowledged.
        owed.add("t".into(), true);
        assert_eq!((owed.acknowledged(8), owed.acknowledged(7).as_deref()), (None, Some("t")));
        assert!(owed.needs("t"));
        owed.take_first();
        assert!(!owed.needs("t") && owed.is_empty());
    }

    #[test]
    fn what_is_owed_for_the_moment_need_not_be_on_disk() {
        let mut owed = Owed::default();
        owed.add("t".into(), false);
        assert!(!owed.needs("t") && !owed.is_empty());
    }

    #[test]
    fn a_bounded_number_of_topics_is_on_disk() {
        let mut owed = Owed::default();
        for number in 0..MOST_NOTED {
            assert!(owed.may_note());
            owed.add(number.to_string().into(), true);
            owed.add(number.to_string().into(), true);
        }
        assert!(!owed.may_note());
        let (topic, _) = owed.take_first().unwrap();
        assert!(owed.may_note());
        owed.sent(1, topic);
        assert!(!owed.may_note(), "until it is acknowledged");
        owed.acknowledged(1);
        assert!(owed.may_note());
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let owner = Owner { vhost: "/".into(), client_id: "größe".into() };
        let key = owed_key(&owner, "a/b");
        assert_eq!(read_key(&key), Some((owner, "a/b".into())));
        assert_eq!(read_key(&key[..key.len() - 1]), None);
    }
}
