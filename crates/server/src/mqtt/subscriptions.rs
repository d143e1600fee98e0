//! Which of a client's subscriptions a message belongs to.
//!
//! A topic's way through AMQP is not without loss: `/` and `.` become one. So filters are compared in the form in which
//! topics come back from there.

use hashbrown::HashMap;
use mqtt::QoS;
use mqtt::session::Subscription;
use mqtt::topic::{TopicFilter, filter_to_binding_key, routing_key_to_topic};

/// A client's subscriptions that are not shared, found by topic. Those without wildcards are found at once, the others by one
/// look for each shape that there is, of which clients have few however many filters they have.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By their filters in the form in which they come back.
    entries: HashMap<Box<str>, Vec<Entry>>,
    /// Shapes of filters with wildcards, and how many have each.
    shapes: HashMap<Box<str>, usize>,
    /// The same of filters as they were sent, of those with dots alone: their levels are other ones.
    dotted: HashMap<Box<str>, usize>,
    /// How many want nothing of the client's own.
    no_local: usize,
    /// How many have a level `*`, which is a letter to MQTT and a wildcard to AMQP.
    stars: usize,
}

#[derive(Debug)]
struct Entry {
    /// As it was sent.
    filter: Box<str>,
    subscription: Subscription,
}

/// Which of a client's two queues a subscription's messages go through, as in RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Qos0,
    /// QoS 2 as well.
    Qos1,
}

/// How a message is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The highest quality that was granted.
    pub(super) qos: QoS,
    /// RETAIN of the publisher is told.
    pub(super) retain_as_published: bool,
    pub(super) identifiers: Vec<u32>,
}

/// What becomes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// It is sent.
    Send(Verdict),
    /// It is not: the client's other queue has it, too, or the client does not want what is its own.
    Drop,
    /// No subscription matches.
    None,
}

impl Class {
    pub(super) fn of(qos: QoS) -> Self {
        if qos == QoS::AtMostOnce { Self::Qos0 } else { Self::Qos1 }
    }
}

impl Subscriptions {
    /// Notes a subscription, in place of one with the same filter.
    pub(super) fn insert(&mut self, filter: &str, subscription: Subscription) {
        self.remove(filter);
        let canonical = canonical(filter);
        for (shapes, shape) in self.shapes_of(filter, &canonical) {
            *shapes.entry_ref(shape.as_str()).or_default() += 1;
        }
        self.no_local += usize::from(subscription.options.no_local);
        self.stars += usize::from(has_star(&canonical));
        let entry = Entry { filter: filter.into(), subscription };
        let same = self.entries.entry_ref(canonical.as_str()).or_default();
        // There is nearly always one.
        same.reserve_exact(1);
        same.push(entry);
    }

    pub(super) fn remove(&mut self, filter: &str) {
        let canonical = canonical(filter);
        let Some(entries) = self.entries.get_mut(canonical.as_str()) else { return };
        let Some(at) = entries.iter().position(|entry| *entry.filter == *filter) else { return };
        let removed = entries.swap_remove(at);
        if entries.is_empty() {
            self.entries.remove(canonical.as_str());
        }
        self.no_local -= usize::from(removed.subscription.options.no_local);
        self.stars -= usize::from(has_star(&canonical));
        for (shapes, shape) in self.shapes_of(filter, &canonical) {
            let Some(count) = shapes.get_mut(shape.as_str()) else { continue };
            *count -= 1;
            if *count == 0 {
                shapes.remove(shape.as_str());
            }
        }
    }

    /// The shapes of a filter, and where they are counted.
    fn shapes_of(
        &mut self,
        filter: &str,
        canonical: &str,
    ) -> impl Iterator<Item = (&mut HashMap<Box<str>, usize>, String)> {
        let as_sent = shape(filter).filter(|_| filter.contains('.')).map(|shape| (&mut self.dotted, shape));
        shape(canonical).map(|shape| (&mut self.shapes, shape)).into_iter().chain(as_sent)
    }

    /// Whether a subscription of a class has the same binding as this filter's.
    pub(super) fn binds(&self, filter: &str, class: Class) -> bool {
        let canonical = canonical(filter);
        if self.stars == 0 && !has_star(&canonical) {
            // No other form has the same key.
            let same = self.entries.get(canonical.as_str()).into_iter().flatten();
            return same.into_iter().any(|entry| entry.class() == class);
        }
        let key = filter_to_binding_key(filter);
        let same = |entry: &Entry| entry.class() == class && filter_to_binding_key(&entry.filter) == key;
        self.entries.values().flatten().any(same)
    }

    /// Whether the client wants nothing of its own in any of them.
    pub(super) fn any_no_local(&self) -> bool {
        self.no_local > 0
    }

    /// What becomes of a message that came through the queue of `class`. `is_own` tells that the client published it.
    pub(super) fn judge(&self, topic: &str, class: Class, is_own: bool) -> Match {
        let mut verdict = Verdict::default();
        let (mut is_matched, mut is_wanted, mut in_other) = (false, false, false);
        self.each_match(topic, |entry| {
            let options = entry.subscription.options;
            is_matched = true;
            if is_own && options.no_local {
                return;
            }
            in_other |= entry.class() != class;
            is_wanted |= entry.class() == class;
            verdict.qos = verdict.qos.max(options.qos);
            verdict.retain_as_published |= options.retain_as_published;
            verdict.identifiers.extend(entry.subscription.identifier);
        });
        verdict.identifiers.sort_unstable();
        match class {
            _ if !is_matched => Match::None,
            // The subscription that it came by has been changed to QoS 0, or has gone when its copy in the other queue had
            // been dropped for this one. It must not be lost by that (MQTT-3.8.4-4).
            Class::Qos1 if !is_wanted && in_other => Match::Send(verdict),
            _ if !is_wanted => Match::Drop,
            // Section 3.3.4: one copy, at the highest quality.
            Class::Qos0 if in_other => Match::Drop,
            Class::Qos0 | Class::Qos1 => Match::Send(verdict),
        }
    }

    /// How the retained message of a topic is sent, which a subscription has asked for; `None` if there is no such
    /// subscription any more. All that match count (section 3.3.4), since one copy is sent for all.
    pub(super) fn judge_retained(&self, topic: &str) -> Option<Verdict> {
        let mut verdict = None;
        let mut add = |entry: &Entry| {
            let verdict: &mut Verdict = verdict.get_or_insert_default();
            verdict.qos = verdict.qos.max(entry.subscription.options.qos);
            verdict.identifiers.extend(entry.subscription.identifier);
        };
        let canonical = canonical(topic);
        self.each_match(&canonical, &mut add);
        if topic.contains('.') {
            // Retained messages have not been through AMQP: it is their own topic that was asked for.
            self.each_match_as_sent(topic, |entry| {
                if !entry.matches_canonical(&canonical) {
                    add(entry);
                }
            });
        }
        verdict.iter_mut().for_each(|verdict| verdict.identifiers.sort_unstable());
        verdict
    }

    /// Those with wildcards that match a topic as MQTT alone has it.
    fn each_match_as_sent(&self, topic: &str, mut each: impl FnMut(&Entry)) {
        let mut filter = String::new();
        let dotted = self.dotted.keys().filter(|shape| !self.shapes.contains_key(*shape));
        for shape in self.shapes.keys().chain(dotted) {
            if fill(shape, topic, &mut filter) {
                let same = self.entries.get(canonical(&filter).as_str()).into_iter().flatten();
                same.filter(|entry| *entry.filter == *filter).for_each(&mut each);
            }
        }
    }

    fn each_match(&self, topic: &str, mut each: impl FnMut(&Entry)) {
        self.entries.get(topic).into_iter().flatten().for_each(&mut each);
        let mut filter = String::new();
        for shape in self.shapes.keys() {
            if fill(shape, topic, &mut filter) {
                self.entries.get(filter.as_str()).into_iter().flatten().for_each(&mut each);
            }
        }
    }
}

impl Entry {
    fn matches_canonical(&self, topic: &str) -> bool {
        let filter = canonical(&self.filter);
        TopicFilter::parse(&filter, false).is_ok_and(|filter| filter.matches(topic))
    }

    fn class(&self) -> Class {
        Class::of(self.subscription.options.qos)
    }
}

/// A filter in the form in which topics come back.
pub(super) fn canonical(filter: &str) -> String {
    routing_key_to_topic(filter)
}

/// A filter's wildcards, each in its place: the other levels are empty. `None` if it has none.
fn shape(filter: &str) -> Option<String> {
    if !filter.contains(['+', '#']) {
        return None;
    }
    let levels = filter.split('/').map(|level| if matches!(level, "+" | "#") { level } else { "" });
    Some(levels.collect::<Vec<_>>().join("/"))
}

/// Puts together the only filter of a shape that can match a topic; false if none can (sections 4.7.1 and 4.7.2).
fn fill(shape: &str, topic: &str, filter: &mut String) -> bool {
    filter.clear();
    if topic.starts_with('$') && shape.starts_with(['+', '#']) {
        return false;
    }
    let mut names = topic.split('/');
    for (at, wanted) in shape.split('/').enumerate() {
        if at > 0 {
            filter.push('/');
        }
        if wanted == "#" {
            // It stands for the level above as well.
            filter.push('#');
            return true;
        }
        let Some(name) = names.next() else { return false };
        filter.push_str(if wanted == "+" { wanted } else { name });
    }
    names.next().is_none()
}

fn has_star(filter: &str) -> bool {
    filter.split('/').any(|level| level == "*")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mqtt::packet::SubscribeOptions;

    use super::*;

    fn subscribe(subscriptions: &mut Subscriptions, filter: &str, qos: QoS, identifier: u32) {
        let options = SubscribeOptions::of_qos(qos);
        subscriptions.insert(filter, Subscription { options, identifier: Some(identifier) });
    }

    fn sent(qos: QoS, identifiers: &[u32]) -> Match {
        Match::Send(Verdict { qos, retain_as_published: false, identifiers: identifiers.to_vec() })
    }

    #[test]
    fn one_copy_is_sent_at_the_highest_quality_with_all_identifiers() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a/+", QoS::ExactlyOnce, 2);
        subscribe(&mut all, "a/b", QoS::AtLeastOnce, 3);
        assert_eq!(all.judge("a/b", Class::Qos1, false), sent(QoS::ExactlyOnce, &[1, 2, 3]));
        assert_eq!(all.judge("a/b", Class::Qos0, false), Match::Drop);
        assert_eq!(all.judge("a/b/c", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert_eq!(all.judge("b", Class::Qos0, false), Match::None);
        all.remove("a/+");
        all.remove("a/b");
        assert_eq!(all.judge("a/b", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        all.remove("a/#");
        assert!(all.entries.is_empty() && all.shapes.is_empty());
    }

    #[test]
    fn a_retained_message_is_sent_once_for_all_subscriptions_that_match() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a.b", QoS::AtLeastOnce, 2);
        subscribe(&mut all, "b", QoS::ExactlyOnce, 3);
        let verdict = |topic| all.judge_retained(topic).map(|verdict| (verdict.qos, verdict.identifiers));
        assert_eq!(verdict("a.b"), Some((QoS::AtLeastOnce, vec![1, 2])), "as it comes back");
        assert_eq!(verdict("a"), Some((QoS::AtMostOnce, vec![1])));
        assert_eq!(verdict("c"), None);
    }

    #[test]
    fn a_retained_message_whose_topic_has_dots_is_found_as_it_was_asked_for() {
        for (filter, topic, is_found) in [
            ("+/x", "a.b/x", true),
            ("hosts/+/status", "hosts/web1.example/status", true),
            ("x.y/+", "x.y/z.w", true),
            ("x.y/#", "x.y/z.w/v", true),
            ("+/+/x", "a.b/x", true),
            ("+", "a.b/x", false),
            ("x.y/+", "x.z/w.v", false),
        ] {
            let mut all = Subscriptions::default();
            subscribe(&mut all, filter, QoS::AtLeastOnce, 1);
            let found = all.judge_retained(topic).map(|verdict| verdict.identifiers);
            assert_eq!(found, is_found.then_some(vec![1]), "{filter} and {topic}");
            all.remove(filter);
            assert!(all.shapes.is_empty() && all.dotted.is_empty() && all.judge_retained(topic).is_none());
        }
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a.b/#", QoS::AtLeastOnce, 1);
        subscribe(&mut all, "+/#", QoS::AtMostOnce, 2);
        assert_eq!(all.judge_retained("a.b/c").unwrap().identifiers, [1, 2], "each once");
    }

    #[test]
    fn what_is_the_clients_own_is_sent_where_it_is_wanted() {
        let mut all = Subscriptions::default();
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::of_qos(QoS::AtLeastOnce) };
        all.insert("a", Subscription { options, identifier: Some(1) });
        assert!(all.any_no_local());
        assert_eq!(all.judge("a", Class::Qos1, true), Match::Drop);
        assert_eq!(all.judge("a", Class::Qos1, false), sent(QoS::AtLeastOnce, &[1]));
        subscribe(&mut all, "#", QoS::AtLeastOnce, 2);
        assert_eq!(all.judge("a", Class::Qos1, true), sent(QoS::AtLeastOnce, &[2]));
    }

    #[test]
    fn what_came_by_a_subscription_that_was_changed_is_sent_by_the_one_that_is_left() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a/b", QoS::AtLeastOnce, 2);
        all.remove("a/b");
        assert_eq!(all.judge("a/b", Class::Qos1, false), sent(QoS::AtMostOnce, &[1]));
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::of_qos(QoS::AtMostOnce) };
        all.insert("a/#", Subscription { options, identifier: None });
        assert_eq!(all.judge("a/b", Class::Qos1, true), Match::Drop, "nobody wants it");
    }

    #[test]
    fn filters_with_dots_match_what_comes_back_with_slashes() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "v1.2/x", QoS::AtMostOnce, 1);
        assert_eq!(all.judge("v1/2/x", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert!(all.binds("v1/2/x", Class::Qos0) && !all.binds("v1/2/x", Class::Qos1));
    }

    #[test]
    fn a_star_is_a_letter_to_mqtt_and_a_wildcard_to_amqp() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/*", QoS::AtMostOnce, 1);
        assert_eq!(all.judge("a/*", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert_eq!(all.judge("a/b", Class::Qos0, false), Match::None, "though AMQP brings it");
        assert!(all.binds("a/+", Class::Qos0));
    }

    #[test]
    fn what_is_found_is_what_each_filter_by_itself_would_match() {
        const LEVELS: [&str; 6] = ["", "a", "b", "$x", "+", "#"];
        let digits = |mut number: usize| {
            let levels = std::iter::from_fn(|| {
                let level = number % 7;
                number /= 7;
                LEVELS.get(level).copied()
            });
            levels.take(4).collect::<Vec<_>>().join("/")
        };
        let all: BTreeSet<String> = (0..7_usize.pow(4)).map(digits).collect();
        let valid = |text: &&String| TopicFilter::parse(text, false).is_ok();
        let filters: Vec<(u32, &String)> = (1..).zip(all.iter().filter(valid)).collect();
        let mut subscriptions = Subscriptions::default();
        for (identifier, filter) in &filters {
            subscribe(&mut subscriptions, filter, QoS::AtMostOnce, *identifier);
        }
        let (gone, left): (Vec<_>, Vec<_>) =
            filters.into_iter().partition(|(identifier, _)| identifier % 2 == 0);
        gone.iter().for_each(|(_, filter)| subscriptions.remove(filter));
        assert!(left.len() > 100);
        for topic in all.iter().filter(|topic| !topic.is_empty() && !topic.contains(['+', '#'])) {
            let matching = left.iter().filter(|(_, filter)| {
                TopicFilter::parse(filter, false).is_ok_and(|filter| filter.matches(topic))
            });
            let mut expected: Vec<u32> = matching.map(|(identifier, _)| *identifier).collect();
            expected.sort_unstable();
            let found = match subscriptions.judge(topic, Class::Qos0, false) {
                Match::Send(verdict) => verdict.identifiers,
                Match::Drop | Match::None => Vec::new(),
            };
            assert_eq!(found, expected, "{topic}");
        }
    }

    #[test]
    fn wildcards_in_front_match_no_topics_of_the_server() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "#", QoS::AtMostOnce, 1);
        assert_eq!(all.judge("$SYS/x", Class::Qos0, false), Match::None);
    }
}
