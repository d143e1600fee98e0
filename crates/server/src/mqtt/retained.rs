//! Retained messages: the last one of each topic, for later subscribers (section 3.3.1.3).
//!
//! Each virtual host has a tree of topic levels. A subscription visits the nodes that its filter can match; a change
//! visits as many nodes as its topic has levels. Retained messages are in memory. The embedded broker stores them as
//! definitions, an upstream in a log of its own ([`super::upstream`]).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use broker::{Section, Ticket, Timestamp, VirtualHost};
use bytes::Bytes;
use hashbrown::HashMap;
use mqtt::session::OutgoingMessage;
use mqtt::topic::TopicFilter;
use mqtt::{Holder, PacketProperties, Property, PropertyList, QoS};
use sync::{Mutex, MutexGuard, Rank, RwLock, work};

use super::message::{Incoming, left, push_expiry, stored_properties};
use super::subscriptions::FilterMatch;

/// The maximum of bytes that all retained messages of a virtual host may take.
pub(super) const MAX_BYTES: usize = 256 << 20;

/// Approximate bytes of a retained message besides its content.
const OWN_BYTES: usize = 128;

/// Approximate bytes of a tree node besides its name: with the smallest table that a map allocates for its
/// first child. Topics of very many levels take far more bytes in nodes than in characters.
const NODE_BYTES: usize = 288;

/// Nodes or messages that one part of a search visits. The tree is unlocked between parts.
pub(super) const MAX_VISITED: usize = 1000;

/// Cost of one visit, in nanoseconds.
pub(super) const VISITED: u32 = 150;

/// Cost of a change of what is retained, in nanoseconds: of the tree, of the definitions on disk, and of the two flushes that
/// keep the order of the topic's messages.
const RETAINED: u32 = 2_500;

/// One retained message.
#[derive(Debug, PartialEq)]
pub(super) struct RetainedMessage {
    pub(super) topic: Arc<str>,
    pub(super) qos: QoS,
    /// All but the Message Expiry Interval.
    pub(super) properties: PropertyList,
    pub(super) payload: Bytes,
    /// On the broker's clock; in front of an upstream on the wall clock, since other servers read and write it.
    pub(super) expires: Option<Timestamp>,
}

impl RetainedMessage {
    fn weight(&self) -> usize {
        OWN_BYTES + self.topic.len() + self.properties.as_properties().bytes().len() + self.payload.len()
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// The message for a new subscription: with RETAIN even if Retain As Published is not set (section 3.3.1.3).
    pub(super) fn to_subscriber(&self, verdict: &FilterMatch, now: Timestamp) -> OutgoingMessage {
        let mut properties = self.properties.clone();
        push_expiry(&mut properties, left(self.expires, now));
        verdict.identifiers.iter().for_each(|id| properties.push(Property::SubscriptionIdentifier(*id)));
        OutgoingMessage {
            topic: (*self.topic).into(),
            qos: verdict.qos.min(self.qos),
            retain: true,
            redelivered: false,
            properties,
            payload: self.payload.clone(),
        }
    }
}

/// The memory limit for retained messages is reached.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The retained messages of a virtual host.
pub(super) struct Retained {
    vhost: Arc<VirtualHost>,
    topics: TopicOrder,
    tree: RwLock<RetainedTree, { Rank::RetainedTree as u8 }>,
}

/// Serialises the retained publishes of a topic. Otherwise, if two clients publish at once, one message might stay
/// retained although subscribers got the other one last. Topics share a few locks.
struct TopicOrder {
    locks: [TopicLock; TOPIC_LOCKS],
    hasher: RandomState,
}

type TopicLock = Mutex<(), { Rank::RetainedTopics as u8 }>;

/// Held from retaining a message of a topic until all queues have the message.
pub(super) type TopicGuard<'a> = MutexGuard<'a, (), { Rank::RetainedTopics as u8 }>;

/// Enough that two topics that are published to at once rarely share a lock.
const TOPIC_LOCKS: usize = 256;

impl TopicOrder {
    fn new() -> Self {
        Self { locks: std::array::from_fn(|_| TopicLock::new(())), hasher: RandomState::default() }
    }

    fn lock(&self, topic: &str) -> TopicGuard<'_> {
        self.locks[self.hasher.hash_one(topic) as usize % TOPIC_LOCKS].lock()
    }
}

/// Retained messages in memory, by the levels of their topics.
#[derive(Default)]
pub(super) struct RetainedTree {
    root: Node,
    bytes: usize,
    /// The topics of messages that expire, by expiry time and the message's serial number.
    expiries: BTreeMap<(Timestamp, u64), Arc<str>>,
    /// The serial number of the next message.
    next_serial: u64,
    /// If searches may scan all messages: the messages in the order in which they were set, so that a scan can be
    /// continued.
    listed: Option<BTreeMap<u64, Arc<RetainedMessage>>>,
}

/// The progress of a search for the messages that a filter matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RetainedSearch {
    #[default]
    Begun,
    /// All messages are being scanned; the next one has this serial number, or this offset in a log.
    Scanned(u64),
    Done,
}

#[derive(Default)]
struct Node {
    message: Option<Arc<RetainedMessage>>,
    /// The serial number of the message.
    serial: u64,
    children: HashMap<Box<str>, Node>,
}

impl Retained {
    pub(super) fn new(vhost: &Arc<VirtualHost>) -> Self {
        let tree = RetainedTree { listed: Some(BTreeMap::new()), ..RetainedTree::default() };
        Self { vhost: Arc::clone(vhost), topics: TopicOrder::new(), tree: RwLock::new(tree) }
    }

    /// Begins to publish a message that is retained or clears its topic. The caller first changes the retained message,
    /// so that a new subscriber misses nothing, then publishes the message to all queues, and then drops the guard. So
    /// the message that subscribers get last is the retained one.
    pub(super) fn begin_publish(&self, topic: &str) -> TopicGuard<'_> {
        self.topics.lock(topic)
    }

    /// Retains a message in place of the topic's previous one; an empty payload removes that. Called between
    /// [`Self::begin_publish`] and publishing the message. Returns the change to wait for.
    ///
    /// # Errors
    /// Fails if the memory limit is reached; the previous message then stays.
    pub(super) fn replace(
        &self,
        topic: &str,
        message: &Incoming<'_>,
        payload: Bytes,
        now: Timestamp,
    ) -> Result<Option<Ticket>, Full> {
        work::charge(RETAINED, 1);
        if payload.is_empty() {
            return Ok(self.clear(topic));
        }
        let expiry = message.properties.message_expiry_interval();
        let properties = stored_properties(&message.properties);
        let expires = expiry.map(|seconds| now.after(u64::from(seconds) * 1000));
        self.set(RetainedMessage { topic: topic.into(), qos: message.qos, properties, payload, expires }, now)
    }

    /// Retains a message, replacing the topic's previous one. Returns the change to wait for.
    ///
    /// # Errors
    /// Fails if the limit is reached even after the messages that have expired by `now` are removed.
    pub(super) fn set(&self, message: RetainedMessage, now: Timestamp) -> Result<Option<Ticket>, Full> {
        let mut tree = self.tree.write();
        while !tree.has_capacity(&message) {
            let expired = tree.remove_expired(now).ok_or(Full)?;
            self.write_cleared(&expired);
        }
        Ok(self.persist(&tree.set(message)))
    }

    /// Removes the message of a topic. Returns the change to wait for, if there was one.
    pub(super) fn clear(&self, topic: &str) -> Option<Ticket> {
        let mut tree = self.tree.write();
        tree.clear(topic).then_some(())?;
        self.write_cleared(topic)
    }

    /// The next messages, unexpired at `now`, of topics that a filter matches. Call it until `search` is
    /// [`RetainedSearch::Done`]. A message that is set meanwhile may be missing or come twice; its subscriber also gets
    /// it as a live message.
    pub(super) fn matching(
        &self,
        filter: &TopicFilter<'_>,
        search: &mut RetainedSearch,
        now: Timestamp,
    ) -> Vec<Arc<RetainedMessage>> {
        self.tree.read().search(filter, search, now)
    }

    /// The message of a topic, unless expired at `now`.
    pub(super) fn get(&self, topic: &str, now: Timestamp) -> Option<Arc<RetainedMessage>> {
        self.tree.read().get(topic, now)
    }

    /// Adds a message that was on disk.
    pub(super) fn restore(&self, message: RetainedMessage) {
        // It was within the limit when it was stored.
        self.tree.write().set(message);
    }

    fn write_cleared(&self, topic: &str) -> Option<Ticket> {
        self.vhost.note(|catalogue| catalogue.delete(Section::MqttRetained, key(self.vhost.name(), topic)))
    }

    fn persist(&self, message: &RetainedMessage) -> Option<Ticket> {
        let key = key(self.vhost.name(), &message.topic);
        self.vhost.note(|catalogue| catalogue.put(Section::MqttRetained, key, encode(message)))
    }
}

impl RetainedTree {
    /// A part of a search, see [`Retained::matching`]. If the filter can match few nodes, they are searched in the tree;
    /// otherwise all messages are scanned.
    fn search(
        &self,
        filter: &TopicFilter<'_>,
        search: &mut RetainedSearch,
        now: Timestamp,
    ) -> Vec<Arc<RetainedMessage>> {
        let from = match self.begin(filter.filter(), search, now) {
            Ok(found) => return found,
            Err(next) => next,
        };
        let mut found = Vec::new();
        let listed = self.listed.iter().flat_map(|listed| listed.range(from..));
        for (visited, (serial, message)) in listed.enumerate() {
            if visited == MAX_VISITED {
                *search = RetainedSearch::Scanned(*serial);
                break;
            }
            work::charge(VISITED, 1);
            if filter.matches(&message.topic) && !message.is_expired(now) {
                found.push(Arc::clone(message));
            }
        }
        found
    }

    /// Starts a search in the tree, which is complete if the filter (without `$share/group/`) visits few nodes. Otherwise
    /// returns the number from which all messages have to be scanned.
    pub(super) fn begin(
        &self,
        filter: &str,
        search: &mut RetainedSearch,
        now: Timestamp,
    ) -> Result<Vec<Arc<RetainedMessage>>, u64> {
        match std::mem::replace(search, RetainedSearch::Done) {
            RetainedSearch::Begun => {
                let mut left = MAX_VISITED;
                let found = self.matching_within(filter, now, &mut left);
                work::charge(VISITED, MAX_VISITED - left);
                found.ok_or(0)
            }
            RetainedSearch::Scanned(next) => Err(next),
            RetainedSearch::Done => Ok(Vec::new()),
        }
    }

    /// The messages, unexpired at `now`, that a filter without `$share/group/` matches. `None` if that takes more than
    /// `left` visits. Subtracts the visits from `left`.
    fn matching_within(
        &self,
        filter: &str,
        now: Timestamp,
        left: &mut usize,
    ) -> Option<Vec<Arc<RetainedMessage>>> {
        let mut found = Vec::new();
        let levels: Vec<&str> = filter.split('/').collect();
        let is_complete = self.root.collect(&levels, true, left, &mut |message| {
            if !message.is_expired(now) {
                found.push(Arc::clone(message));
            }
        });
        is_complete.then_some(found)
    }

    /// The message of a topic, unless expired at `now`.
    pub(super) fn get(&self, topic: &str, now: Timestamp) -> Option<Arc<RetainedMessage>> {
        let levels: Vec<&str> = topic.split('/').collect();
        let found = self.root.find(&levels)?;
        (!found.is_expired(now)).then(|| Arc::clone(found))
    }

    /// Whether a message fits into the memory limit, in place of its topic's previous one.
    pub(super) fn has_capacity(&self, message: &RetainedMessage) -> bool {
        let mut node = Some(&self.root);
        let mut wanted = message.weight();
        for level in message.topic.split('/') {
            node = node.and_then(|node| node.children.get(level));
            wanted += node.map_or(node_weight(level), |_| 0);
        }
        let replaced = node.and_then(|node| node.message.as_ref()).map_or(0, |old| old.weight());
        self.bytes - replaced + wanted <= MAX_BYTES
    }

    /// Retains a message, replacing the topic's previous one.
    pub(super) fn set(&mut self, message: RetainedMessage) -> Arc<RetainedMessage> {
        let message = Arc::new(message);
        let Self { root, bytes, expiries, next_serial, listed } = self;
        let mut node = root;
        for level in message.topic.split('/') {
            node = node.children.entry_ref(level).or_insert_with(|| {
                *bytes += node_weight(level);
                Node::default()
            });
        }
        let old = node.message.replace(Arc::clone(&message));
        let old_serial = std::mem::replace(&mut node.serial, *next_serial);
        if let Some(listed) = listed {
            if old.is_some() {
                listed.remove(&old_serial);
            }
            listed.insert(*next_serial, Arc::clone(&message));
        }
        if let Some(at) = old.as_ref().and_then(|old| old.expires) {
            expiries.remove(&(at, old_serial));
        }
        if let Some(at) = message.expires {
            expiries.insert((at, *next_serial), Arc::clone(&message.topic));
        }
        *next_serial += 1;
        *bytes = *bytes + message.weight() - old.map_or(0, |old| old.weight());
        message
    }

    /// Removes the message of a topic; returns whether there was one.
    pub(super) fn clear(&mut self, topic: &str) -> bool {
        let levels: Vec<&str> = topic.split('/').collect();
        let Some((serial, expires, freed)) = self.root.remove(&levels) else { return false };
        self.bytes -= freed;
        if let Some(at) = expires {
            self.expiries.remove(&(at, serial));
        }
        if let Some(listed) = &mut self.listed {
            listed.remove(&serial);
        }
        true
    }

    /// Removes the message with the earliest expiry if that has passed; returns its topic.
    pub(super) fn remove_expired(&mut self, now: Timestamp) -> Option<Arc<str>> {
        let (_, topic) = self.expiries.first_key_value().filter(|((at, _), _)| *at <= now)?;
        let topic = Arc::clone(topic);
        work::charge(VISITED, 1);
        self.clear(&topic);
        Some(topic)
    }
}

fn node_weight(level: &str) -> usize {
    NODE_BYTES + level.len()
}

impl Node {
    /// Removes a message and the nodes that it leaves empty. Returns its serial number, its expiry and the freed bytes.
    fn remove(&mut self, levels: &[&str]) -> Option<(u64, Option<Timestamp>, usize)> {
        let Some((level, rest)) = levels.split_first() else {
            let message = self.message.take()?;
            return Some((self.serial, message.expires, message.weight()));
        };
        let child = self.children.get_mut(*level)?;
        let (serial, expires, mut freed) = child.remove(rest)?;
        if child.message.is_none() && child.children.is_empty() {
            self.children.remove(*level);
            freed += node_weight(level);
        }
        Some((serial, expires, freed))
    }

    fn find(&self, levels: &[&str]) -> Option<&Arc<RetainedMessage>> {
        let node = levels.iter().try_fold(self, |node, level| node.children.get(*level))?;
        node.message.as_ref()
    }

    /// Visits at most `left` nodes; returns whether that was enough. Section 4.7.2: leading wildcards do not match topics
    /// that begin with `$`.
    fn collect(
        &self,
        levels: &[&str],
        is_first: bool,
        left: &mut usize,
        each: &mut impl FnMut(&Arc<RetainedMessage>),
    ) -> bool {
        let Some(others) = left.checked_sub(1) else { return false };
        *left = others;
        let Some((level, rest)) = levels.split_first() else {
            self.message.iter().for_each(each);
            return true;
        };
        let visible = |name: &str| !(is_first && name.starts_with('$'));
        let mut children = self.children.iter().filter(|(name, _)| visible(name)).map(|(_, child)| child);
        match *level {
            "#" => {
                if !is_first {
                    self.message.iter().for_each(&mut *each);
                }
                children.all(|child| child.collect(levels, false, left, each))
            }
            "+" => children.all(|child| child.collect(rest, false, left, each)),
            level => self.children.get(level).is_none_or(|child| child.collect(rest, false, left, each)),
        }
    }
}

/// The name of the virtual host, then the topic.
fn key(vhost: &str, topic: &str) -> Vec<u8> {
    super::disk::key(&[vhost, topic])
}

fn encode(message: &RetainedMessage) -> Vec<u8> {
    let mut bytes = vec![FORM, message.qos as u8];
    bytes.extend_from_slice(&message.expires.map_or(0, |at| at.0).to_be_bytes());
    let properties = message.properties.as_properties();
    bytes.extend_from_slice(&(properties.bytes().len() as u32).to_be_bytes());
    bytes.extend_from_slice(properties.bytes());
    bytes.extend_from_slice(&message.payload);
    bytes
}

/// Decodes the output of [`encode`] and the virtual host of its key; `None` if malformed.
pub(super) fn decode<'k>(key: &'k [u8], value: &[u8]) -> Option<(&'k str, RetainedMessage)> {
    let names = super::disk::names::<2>(key)?;
    let (&[FORM, qos], rest) = value.split_first_chunk()? else { return None };
    let (expires, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (properties, payload) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    let checked = PacketProperties::check(properties, Holder::Publish).ok()?;
    let message = RetainedMessage {
        topic: names[1].into(),
        qos: QoS::from_level(qos)?,
        properties: checked.iter().fold(PropertyList::new(), PropertyList::with),
        payload: Bytes::copy_from_slice(payload),
        expires: Some(u64::from_be_bytes(*expires)).filter(|at| *at != 0).map(Timestamp),
    };
    Some((names[0], message))
}

/// First byte of a stored message: the version of its format.
const FORM: u8 = 1;

#[cfg(test)]
mod tests {
    use broker::{Broker, BrokerConfig};

    use super::*;

    fn nothing_retained() -> Retained {
        Retained::new(&Broker::new(BrokerConfig::default()).vhost("/").unwrap())
    }

    fn message(topic: &str, payload: &[u8]) -> RetainedMessage {
        RetainedMessage {
            topic: topic.into(),
            qos: QoS::AtLeastOnce,
            properties: PropertyList::new().with(Property::ContentType("x")),
            payload: Bytes::copy_from_slice(payload),
            expires: None,
        }
    }

    fn found(retained: &Retained, filter: &str) -> Vec<String> {
        let mut topics: Vec<_> =
            all_matching(retained, filter).iter().map(|message| message.topic.to_string()).collect();
        topics.sort();
        topics
    }

    fn all_matching(retained: &Retained, filter: &str) -> Vec<Arc<RetainedMessage>> {
        let filter = TopicFilter::parse(filter, true).unwrap();
        let (mut search, mut found) = (RetainedSearch::default(), Vec::new());
        while search != RetainedSearch::Done {
            found.append(&mut retained.matching(&filter, &mut search, Timestamp(100)));
        }
        found
    }

    const TOPICS: [&str; 9] = ["a", "a/b", "a/b/c", "/a", "a/", "b//c", "$SYS/x", "$SYS", "ä/b"];

    #[test]
    fn a_search_finds_exactly_the_topics_that_the_filter_matches() {
        let retained = nothing_retained();
        for topic in TOPICS {
            retained.set(message(topic, b"1"), Timestamp(0)).unwrap();
        }
        for filter in [
            "#", "+", "a", "a/#", "a/+", "+/b", "+/b/#", "/#", "/+", "+/+", "b/+/c", "$SYS/#", "$SYS/+",
            "a/b/c/#", "z",
        ] {
            let parsed = TopicFilter::parse(filter, true).unwrap();
            let mut expected: Vec<_> =
                TOPICS.iter().filter(|topic| parsed.matches(topic)).map(ToString::to_string).collect();
            expected.sort();
            assert_eq!(found(&retained, filter), expected, "{filter}");
        }
    }

    #[test]
    fn the_last_message_of_a_topic_is_kept_and_a_cleared_one_leaves_nothing() {
        let retained = nothing_retained();
        for payload in [b"1", b"2"] {
            retained.set(message("a/b", payload), Timestamp(0)).unwrap();
        }
        let kept = all_matching(&retained, "a/b");
        assert_eq!((kept.len(), &*kept[0].payload), (1, &b"2"[..]));
        retained.set(message("a", b"3"), Timestamp(0)).unwrap();
        retained.clear("a/b");
        retained.clear("never");
        assert_eq!(found(&retained, "#"), ["a"]);
        retained.clear("a");
        let tree = retained.tree.read();
        assert!(tree.root.children.is_empty() && tree.bytes == 0);
        assert!(tree.listed.as_ref().unwrap().is_empty());
    }

    #[test]
    fn a_search_in_parts_finds_every_message_that_stays() {
        const MANY: usize = 3 * MAX_VISITED;
        let retained = nothing_retained();
        let set = |topic: &str, payload| retained.set(message(topic, payload), Timestamp(0)).unwrap();
        (0..MANY).for_each(|number| _ = set(&format!("{number}/{}", number % 2), b"1"));
        for filter in ["#", "+/1"] {
            let parsed = TopicFilter::parse(filter, true).unwrap();
            let (mut search, mut found, mut parts) = (RetainedSearch::default(), Vec::new(), 0);
            while search != RetainedSearch::Done {
                let turn = work::Turn::begin();
                found.append(&mut retained.matching(&parsed, &mut search, Timestamp(0)));
                assert!(turn.spent() <= 2 * MAX_VISITED as u64 * u64::from(VISITED), "{filter}");
                parts += 1;
                // Other messages change meanwhile, both behind and ahead of the search.
                retained.clear("0/0");
                set("1/1", b"2");
                set(&format!("{}/0", MANY - 2), b"2");
            }
            assert!(parts > 2, "{filter} in {parts}");
            let topics: std::collections::HashSet<&str> =
                found.iter().map(|message| &*message.topic).collect();
            let expected = (1..MANY).filter(|number| filter == "#" || number % 2 == 1);
            for topic in expected.map(|number| format!("{number}/{}", number % 2)) {
                assert!(topics.contains(&*topic), "{topic} of {filter}");
            }
            set("0/0", b"1");
        }
    }

    #[test]
    fn expired_messages_are_not_found() {
        let retained = nothing_retained();
        retained
            .set(RetainedMessage { expires: Some(Timestamp(100)), ..message("old", b"") }, Timestamp(0))
            .unwrap();
        retained
            .set(RetainedMessage { expires: Some(Timestamp(101)), ..message("young", b"") }, Timestamp(0))
            .unwrap();
        assert_eq!(found(&retained, "#"), ["young"]);
    }

    #[test]
    fn retained_messages_take_bounded_memory() {
        let retained = nothing_retained();
        let large = vec![0; MAX_BYTES / 2];
        retained.set(message("a", &large), Timestamp(0)).unwrap();
        assert_eq!(retained.set(message("b", &large), Timestamp(0)), Err(Full));
        retained.clear("a");
        assert!(retained.set(message("b", &large), Timestamp(0)).is_ok());
    }

    #[test]
    fn expired_messages_free_space_and_unexpired_ones_are_kept() {
        let retained = nothing_retained();
        let payload = Bytes::from(vec![0; MAX_BYTES / 3]);
        let large = |topic, expires: Option<u64>| RetainedMessage {
            payload: payload.clone(),
            expires: expires.map(Timestamp),
            ..message(topic, b"")
        };
        retained.set(large("a", Some(10)), Timestamp(0)).unwrap();
        retained.set(large("b", Some(20)), Timestamp(0)).unwrap();
        for (now, fits) in [(9, false), (10, true)] {
            assert_eq!(retained.set(large("c", None), Timestamp(now)).is_ok(), fits, "at {now}");
        }
        assert_eq!(retained.set(large("d", None), Timestamp(19)), Err(Full));
        let tree = retained.tree.read();
        assert!(tree.root.find(&["a"]).is_none() && tree.root.find(&["b"]).is_some());
        assert_eq!(tree.expiries.keys().map(|(at, _)| at.0).collect::<Vec<_>>(), [20]);
    }

    #[test]
    fn at_the_limit_a_message_can_be_replaced_and_its_freed_bytes_are_counted() {
        let retained = nothing_retained();
        let large = vec![0; MAX_BYTES - 1024];
        let expiring = |at| RetainedMessage { expires: Some(Timestamp(at)), ..message("a", &large) };
        retained.set(expiring(10), Timestamp(0)).unwrap();
        assert_eq!(retained.set(message("b", &[0; 1024]), Timestamp(0)), Err(Full));
        assert!(retained.set(expiring(20), Timestamp(0)).is_ok(), "in place of the previous one");
        assert_eq!(retained.set(message("a", &vec![0; MAX_BYTES]), Timestamp(0)), Err(Full));
        assert_eq!(
            retained.set(message("b", &[0; 1024]), Timestamp(10)),
            Err(Full),
            "the expired message is removed"
        );
        retained.set(message("a", b"1"), Timestamp(0)).unwrap();
        assert!(retained.tree.read().expiries.is_empty());
        retained.clear("a");
        assert_eq!(retained.tree.read().bytes, 0);
    }

    #[test]
    fn a_message_at_the_limit_evicts_no_more_expired_ones_than_it_needs() {
        const MANY: usize = 100;
        let retained = nothing_retained();
        let payload = Bytes::from(vec![0; MAX_BYTES / MANY - 1024]);
        let set = |number: usize, expires: Option<u64>, now: u64| {
            let (payload, expires) = (payload.clone(), expires.map(Timestamp));
            let message = RetainedMessage { payload, expires, ..message(&number.to_string(), b"") };
            retained.set(message, Timestamp(now)).map(drop)
        };
        (0..MANY).for_each(|number| set(number, Some(1 + number as u64), 0).unwrap());
        assert_eq!(set(MANY, None, 0), Err(Full));
        set(MANY, None, 1_000).unwrap();
        let tree = retained.tree.read();
        assert_eq!(tree.expiries.len(), MANY - 1, "the message that expired first is removed");
        assert!(tree.root.find(&["0"]).is_none() && tree.root.find(&["1"]).is_some());
    }

    #[test]
    fn topics_of_many_levels_count_with_their_nodes() {
        const LEVELS: usize = 200;
        let retained = nothing_retained();
        let topic = |number: usize| format!("{number}{}", "/".repeat(LEVELS - 1));
        let bytes = || retained.tree.read().bytes;
        for number in 0..10 {
            retained.set(message(&topic(number), b""), Timestamp(0)).unwrap();
        }
        // The smallest table that a map allocates has four slots.
        let before = bytes();
        assert!(before > 10 * LEVELS * 4 * size_of::<(Box<str>, Node)>(), "{before}");
        // Replacing an existing message takes no further memory.
        retained.set(message(&topic(0), b""), Timestamp(0)).unwrap();
        assert_eq!(bytes(), before);
        (0..10).for_each(|number| _ = retained.clear(&topic(number)));
        assert_eq!(bytes(), 0);
        assert!(retained.tree.read().root.children.is_empty());
    }

    #[test]
    fn stored_messages_round_trip() {
        let written = RetainedMessage { expires: Some(Timestamp(7)), ..message("a/b", b"payload") };
        let (key, value) = (key("v", "a/b"), encode(&written));
        assert_eq!(decode(&key, &value), Some(("v", written)));
        for cut in 0..15 {
            assert_eq!(decode(&key, &value[..cut]), None, "{cut} bytes");
        }
    }
}
