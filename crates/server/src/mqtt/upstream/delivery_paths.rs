//! The paths by which messages reach a client, live subscriptions and the session's queue, and a filter's change from one
//! to the other. The new path is bound before the old one is removed, so that no message is missed.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::mqtt::on_demand::OnDemand;
use crate::mqtt::subscriptions::{Class, filter_matches};
use crate::upstream::multiplexing::MultiplexedMessage;

/// The time that a live subscription lingers once the session's queue is bound in its place: earlier messages may still
/// be on their way through the shared queue.
const LINGER: Duration = Duration::from_secs(1);

/// The maximum of lingering subscriptions. Above it the oldest ends at once.
const MAX_LINGERING: usize = 64;

/// The time that a live message waits for its copy from the session's queue, so that it is not sent twice.
const DEFERRAL: Duration = Duration::from_millis(500);

/// The maximum of deferred live messages, and of remembered messages from the queue: several windows. Messages beyond it
/// may be sent twice.
const MAX_REMEMBERED: usize = 256;

/// The maximum of bytes of deferred bodies.
const MAX_DEFERRED_BYTES: usize = 1024 * 1024;

/// A client's delivery paths: for each filter, a live subscription or the session's queue.
#[derive(Default)]
pub(super) struct DeliveryPaths {
    /// The number of filters with each binding key, for each [`Class`].
    filters: HashMap<Box<str>, [u32; 2]>,
    /// Allocated when the first filter changes its path.
    changing: OnDemand<ChangingPaths>,
}

/// Filters whose path changes, and messages that may arrive by both paths meanwhile.
#[derive(Default)]
struct ChangingPaths {
    /// Changes whose new path is not bound yet, by filter.
    changes: HashMap<Box<str>, PathChange>,
    /// Lingering live subscriptions, each with the time at which it ends.
    lingering: VecDeque<(Instant, Box<str>)>,
    /// Hashes of messages from the session's queue that may arrive live as well.
    remembered: VecDeque<u64>,
    /// Live messages whose copies have not come from the session's queue: the time until which each waits, its hash, and
    /// the message.
    deferred: VecDeque<(Instant, u64, Arc<MultiplexedMessage>)>,
    /// Bytes of the bodies in `deferred`.
    deferred_bytes: usize,
    hasher: RandomState,
}

/// A path change that waits for the upstream's answer.
pub(super) struct PathChange {
    /// The number of the request that binds the new path.
    pub(super) number: u64,
    pub(super) class: Class,
}

impl DeliveryPaths {
    /// Counts a filter with this key that needs a path.
    pub(super) fn add(&mut self, key: &str, class: Class) {
        self.filters.entry_ref(key).or_default()[class as usize] += 1;
    }

    /// Removes a filter with this key from the count. Returns whether it was the last.
    pub(super) fn remove(&mut self, key: &str, class: Class) -> bool {
        let Some(counts) = self.filters.get_mut(key) else { return true };
        let count = &mut counts[class as usize];
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if *counts == [0; 2] {
            self.filters.remove(key);
        }
        is_last
    }

    /// The number of filters with this key that need a path.
    pub(super) fn count(&self, key: &str, class: Class) -> u32 {
        self.filters.get(key).map_or(0, |counts| counts[class as usize])
    }

    /// Whether a filter with this key needs a path.
    pub(super) fn needs(&self, key: &str, class: Class) -> bool {
        self.count(key, class) > 0
    }

    /// Begins a filter's path change. Returns the change that this one replaces.
    pub(super) fn change(&mut self, filter: &str, change: PathChange) -> Option<PathChange> {
        self.changing.made().changes.insert(filter.into(), change)
    }

    /// Takes a filter's path change.
    pub(super) fn take_change(&mut self, filter: &str) -> Option<PathChange> {
        self.changing.get_mut()?.changes.remove(filter)
    }

    /// Takes a filter's path change if the request with this number is for it.
    pub(super) fn take_changed(&mut self, filter: &str, number: u64) -> Option<PathChange> {
        let changes = &mut self.changing.get_mut()?.changes;
        changes.get(filter).filter(|change| change.number == number)?;
        changes.remove(filter)
    }

    /// Makes a live subscription linger. Returns one that has to end at once instead, above the limit.
    pub(super) fn linger(&mut self, filter: &str, now: Instant) -> Option<Box<str>> {
        let lingering = &mut self.changing.made().lingering;
        lingering.push_back((now + LINGER, filter.into()));
        if lingering.len() > MAX_LINGERING { self.next_over(now + LINGER) } else { None }
    }

    /// The next lingering subscription that is over by `now`.
    pub(super) fn next_over(&mut self, now: Instant) -> Option<Box<str>> {
        let changing = self.changing.get_mut()?;
        let (_, filter) = changing.lingering.pop_front_if(|(until, _)| *until <= now)?;
        changing.settle();
        Some(filter)
    }

    /// Ends a filter's lingering subscriptions. Returns their number, which is above 1 if the filter has changed its path
    /// several times.
    pub(super) fn stop_lingering(&mut self, filter: &str) -> usize {
        let Some(changing) = self.changing.get_mut() else { return 0 };
        let before = changing.lingering.len();
        changing.lingering.retain(|(_, other)| **other != *filter);
        changing.settle();
        before - changing.lingering.len()
    }

    /// When [`Self::next_over`] or [`Self::next_deferred`] is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let changing = self.changing.get()?;
        let deferred = changing.deferred.front().map(|(until, ..)| *until);
        changing.lingering.front().map(|(until, _)| *until).into_iter().chain(deferred).min()
    }

    /// Notes a message from the session's queue that may arrive live as well.
    pub(super) fn note_queued(&mut self, routing_key: &str, properties: &[u8], body: &[u8]) {
        let Some(changing) = self.changing.get_mut() else { return };
        let ChangingPaths { lingering, remembered, deferred, deferred_bytes, hasher, .. } = changing;
        if lingering.is_empty() && deferred.is_empty() {
            return;
        }
        let hash = hasher.hash_one((routing_key, properties, body));
        if let Some(at) = deferred.iter().position(|(_, other, _)| *other == hash) {
            deferred.remove(at);
            *deferred_bytes -= body.len();
            return;
        }
        if remembered.len() == MAX_REMEMBERED {
            remembered.pop_front();
        }
        remembered.push_back(hash);
    }

    /// Whether a lingering subscription matches a topic.
    pub(super) fn is_lingering(&self, topic: &str) -> bool {
        let changing = self.changing.get();
        changing.is_some_and(|changing| {
            changing.lingering.iter().any(|(_, filter)| filter_matches(filter, topic))
        })
    }

    /// Defers a message of a lingering subscription until its copy comes from the session's queue.
    pub(super) fn defer(&mut self, message: &Arc<MultiplexedMessage>, now: Instant) {
        let changing = self.changing.made();
        let hash = changing.hasher.hash_one((&*message.routing_key, &*message.properties, &*message.body));
        if let Some(at) = changing.remembered.iter().position(|other| *other == hash) {
            changing.remembered.remove(at);
            return;
        }
        changing.deferred_bytes += message.body.len();
        changing.deferred.push_back((now + DEFERRAL, hash, Arc::clone(message)));
    }

    /// The next deferred message that has waited long enough, or exceeds the limits.
    pub(super) fn next_deferred(&mut self, now: Instant) -> Option<Arc<MultiplexedMessage>> {
        let ChangingPaths { deferred, deferred_bytes, .. } = self.changing.get_mut()?;
        let is_full = deferred.len() > MAX_REMEMBERED || *deferred_bytes > MAX_DEFERRED_BYTES;
        let (_, _, message) = deferred.pop_front_if(|(until, ..)| is_full || *until <= now)?;
        *deferred_bytes -= message.body.len();
        if deferred.is_empty() {
            *deferred = VecDeque::new();
        }
        Some(message)
    }
}

impl ChangingPaths {
    fn settle(&mut self) {
        if self.lingering.is_empty() {
            self.remembered = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_path_ends_with_its_last_filter() {
        let mut paths = DeliveryPaths::default();
        paths.add("a", Class::Qos0);
        paths.add("a", Class::Qos0);
        paths.add("a", Class::Qos1);
        assert!(!paths.remove("a", Class::Qos0) && paths.needs("a", Class::Qos0));
        assert!(paths.remove("a", Class::Qos0) && !paths.needs("a", Class::Qos0));
        assert!(paths.remove("a", Class::Qos1) && paths.filters.is_empty());
    }

    fn live(body: &str) -> Arc<MultiplexedMessage> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Arc::new(MultiplexedMessage::new("amq.topic", "a.b", (Bytes::new(), body), false))
    }

    fn deferred(paths: &mut DeliveryPaths, now: Instant) -> Vec<Bytes> {
        std::iter::from_fn(|| paths.next_deferred(now)).map(|message| message.body.clone()).collect()
    }

    #[test]
    fn a_message_that_arrives_by_both_paths_is_sent_once() {
        let (mut paths, now) = (DeliveryPaths::default(), Instant::now());
        paths.note_queued("a.b", &[], b"1");
        assert!(paths.changing.get().is_none() && !paths.is_lingering("a/b"), "nothing lingers");
        assert_eq!(paths.linger("a/+", now), None);
        assert!(paths.is_lingering("a/b") && !paths.is_lingering("b"));
        // By the queue first, and by the live subscription first.
        paths.note_queued("a.b", &[], b"1");
        for body in ["0", "1", "1", "2"] {
            paths.defer(&live(body), now);
        }
        paths.note_queued("a.b", &[], b"2");
        assert!(deferred(&mut paths, now).is_empty());
        assert_eq!(deferred(&mut paths, now + DEFERRAL), ["0", "1"]);
        assert_eq!(paths.next_over(now), None);
        assert_eq!(paths.next_over(now + LINGER).as_deref(), Some("a/+"));
        assert!(!paths.is_lingering("a/b") && paths.next_deadline().is_none());
    }

    #[test]
    fn few_live_subscriptions_linger_and_few_messages_are_remembered() {
        let (mut paths, now) = (DeliveryPaths::default(), Instant::now());
        let over: Vec<_> = (0..100).filter_map(|number| paths.linger(&number.to_string(), now)).collect();
        assert_eq!(over.len(), 100 - MAX_LINGERING);
        (0..1000_u32).for_each(|number| paths.note_queued("k", &[], &number.to_be_bytes()));
        assert_eq!(paths.changing.made().remembered.len(), MAX_REMEMBERED);
        (0..=MAX_REMEMBERED).for_each(|number| paths.defer(&live(&number.to_string()), now));
        assert_eq!(deferred(&mut paths, now), ["0"]);
        assert_eq!(deferred(&mut paths, now + DEFERRAL).len(), MAX_REMEMBERED);
        paths.defer(&live(&"x".repeat(MAX_DEFERRED_BYTES + 1)), now);
        assert_eq!((deferred(&mut paths, now).len(), paths.changing.made().deferred_bytes), (1, 0));
        assert_eq!(paths.linger("99", now).as_deref(), Some("36"));
        assert_eq!((paths.stop_lingering("99"), paths.stop_lingering("0")), (2, 0));
    }
}
