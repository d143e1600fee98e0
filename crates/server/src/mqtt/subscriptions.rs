//! Finds a client's subscriptions that match a message.

use hashbrown::HashMap;
use mqtt::QoS;
use mqtt::session::Subscription;
use mqtt::topic::{TopicFilter, merged};
use sync::work;

use super::filter_index::{DottedFilters, FilterShapes};
use super::message::MessageMapping;
use super::on_demand::OnDemand;

/// Cost of a lookup among a client's subscriptions, in nanoseconds.
const LOOKUP: u32 = 100;

/// A client's subscriptions that are not shared, by topic. One lookup finds those without wildcards, and one per shape
/// the others; clients have few shapes even if they have many filters.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By filter.
    entries: HashMap<Box<str>, Subscription>,
    shapes: FilterShapes,
    /// Number of subscriptions with No Local.
    no_local: usize,
    /// Number of filters with a level `*`: a plain character in MQTT, but a wildcard in AMQP.
    stars: usize,
    /// Filters with a dot, which RabbitMQ treats as a slash.
    dotted: OnDemand<DottedFilters>,
}

/// Which of a client's two queues a subscription uses, as in RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Qos0,
    /// Includes QoS 2.
    Qos1,
}

/// How a message is sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FilterMatch {
    /// The highest QoS granted.
    pub(super) qos: QoS,
    /// Whether the publisher's RETAIN flag is passed on.
    pub(super) retain_as_published: bool,
    pub(super) identifiers: Vec<u32>,
}

impl FilterMatch {
    /// For a single subscription.
    pub(super) fn of(subscription: &Subscription) -> Self {
        Self {
            qos: subscription.options.qos,
            retain_as_published: subscription.options.retain_as_published,
            identifiers: subscription.identifier.into_iter().collect(),
        }
    }
}

/// The outcome of matching a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The message is sent to the client.
    Send(FilterMatch),
    /// The message is dropped: the client's other queue has it as well, or the client published it and No Local is set.
    Drop,
    /// No subscription matches.
    None,
}

impl Class {
    pub(super) const ALL: [Self; 2] = [Self::Qos0, Self::Qos1];

    pub(super) fn of(qos: QoS) -> Self {
        if qos == QoS::AtMostOnce { Self::Qos0 } else { Self::Qos1 }
    }

    /// The QoS in the name of its queue.
    pub(super) fn queue(self) -> u8 {
        match self {
            Self::Qos0 => 0,
            Self::Qos1 => 1,
        }
    }
}

impl Subscriptions {
    /// Adds a subscription, replacing one with the same filter.
    pub(super) fn insert(&mut self, filter: &str, subscription: Subscription) {
        self.remove(filter);
        self.shapes.add(filter);
        if filter.contains('.') {
            self.dotted.made().add(filter);
        }
        self.no_local += usize::from(subscription.options.no_local);
        self.stars += usize::from(has_star(filter));
        self.entries.insert(filter.into(), subscription);
    }

    pub(super) fn remove(&mut self, filter: &str) {
        let Some(removed) = self.entries.remove(filter) else { return };
        self.no_local -= usize::from(removed.options.no_local);
        self.stars -= usize::from(has_star(filter));
        self.shapes.remove(filter);
        if let Some(dotted) = self.dotted.get_mut() {
            dotted.remove(filter);
        }
    }

    /// The number of subscriptions.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The subscription with this filter.
    pub(super) fn get(&self, filter: &str) -> Option<&Subscription> {
        self.entries.get(filter)
    }

    /// Whether a subscription of a class has the same binding key as this filter.
    pub(super) fn binds(
        &self,
        filter: &str,
        mapping: MessageMapping,
        is_of_class: impl Fn(QoS) -> bool,
    ) -> bool {
        let is_of = |subscription: &Subscription| is_of_class(subscription.options.qos);
        if !self.are_scanned_for(filter, mapping) {
            // No other filter has this binding key.
            return self.entries.get(filter).is_some_and(is_of);
        }
        let key = mapping.key(filter);
        self.entries.iter().any(|(other, one)| is_of(one) && mapping.key(other) == key)
    }

    /// Whether other filters may have the same binding key, so that [`Self::binds`] compares all of them.
    pub(super) fn are_scanned_for(&self, filter: &str, mapping: MessageMapping) -> bool {
        let is_merged = mapping.merges_dots && (self.has_dotted() || filter.contains('.'));
        self.stars > 0 || has_star(filter) || is_merged
    }

    /// Whether any of them has a dot.
    fn has_dotted(&self) -> bool {
        self.dotted.get().is_some_and(|dotted| !dotted.is_empty())
    }

    /// Whether any of them has No Local.
    pub(super) fn any_no_local(&self) -> bool {
        self.no_local > 0
    }

    /// Matches a message from the queue of `class`. `is_own` means that the client published it.
    pub(super) fn match_topic(&self, topic: &str, class: Class, is_own: bool) -> Match {
        let mut matching = MatchState::new(class, is_own);
        self.each_match(topic, |subscription| matching.add(subscription));
        matching.finish()
    }

    /// Matches a message whose topic has slashes in place of dots: it comes from RabbitMQ, or an earlier version queued
    /// it.
    pub(super) fn match_merged(&self, topic: &str, class: Class, is_own: bool) -> Match {
        let mut matching = MatchState::new(class, is_own);
        self.each_match(topic, |subscription| matching.add(subscription));
        if let Some(dotted) = self.dotted.get() {
            dotted.each_match(topic, |filter| {
                self.entries.get(filter).into_iter().for_each(|subscription| matching.add(subscription));
            });
        }
        matching.finish()
    }

    /// Whether the subscriptions' bindings route a topic only if a subscription matches it. In AMQP, unlike in MQTT, a
    /// level `*` is a wildcard, and leading wildcards match topics that begin with `$`.
    pub(super) fn are_exact_for(&self, topic: &str) -> bool {
        self.stars == 0 && !topic.starts_with('$')
    }

    /// The maximum of lookups for a match.
    fn lookups(&self) -> usize {
        2 + self.shapes.len() + self.dotted.get().map_or(0, DottedFilters::shapes)
    }

    /// How a topic's retained message is sent, once for all matching subscriptions (section 3.3.4); `None` if none
    /// matches any more.
    pub(super) fn match_retained(&self, topic: &str) -> Option<FilterMatch> {
        let mut verdict = None;
        self.each_match(topic, |subscription| {
            let verdict: &mut FilterMatch = verdict.get_or_insert_default();
            verdict.qos = verdict.qos.max(subscription.options.qos);
            verdict.identifiers.extend(subscription.identifier);
        });
        verdict.iter_mut().for_each(|verdict| verdict.identifiers.sort_unstable());
        verdict
    }

    fn each_match(&self, topic: &str, mut each: impl FnMut(&Subscription)) {
        work::charge(LOOKUP, self.lookups());
        self.shapes.each_candidate(topic, |filter| self.entries.get(filter).into_iter().for_each(&mut each));
    }
}

/// The state collected while a message's subscriptions are visited.
struct MatchState {
    class: Class,
    is_own: bool,
    verdict: FilterMatch,
    is_matched: bool,
    is_wanted: bool,
    in_other: bool,
}

impl MatchState {
    fn new(class: Class, is_own: bool) -> Self {
        let verdict = FilterMatch::default();
        Self { class, is_own, verdict, is_matched: false, is_wanted: false, in_other: false }
    }

    fn add(&mut self, subscription: &Subscription) {
        let options = subscription.options;
        self.is_matched = true;
        if self.is_own && options.no_local {
            return;
        }
        let is_of_class = Class::of(options.qos) == self.class;
        self.in_other |= !is_of_class;
        self.is_wanted |= is_of_class;
        self.verdict.qos = self.verdict.qos.max(options.qos);
        self.verdict.retain_as_published |= options.retain_as_published;
        self.verdict.identifiers.extend(subscription.identifier);
    }

    fn finish(mut self) -> Match {
        self.verdict.identifiers.sort_unstable();
        match self.class {
            _ if !self.is_matched => Match::None,
            // The subscription that queued it was changed to QoS 0. Or it was removed after the copy in the other queue
            // had been dropped in favour of this one. Either way the message must not be lost (MQTT-3.8.4-4).
            Class::Qos1 if !self.is_wanted && self.in_other => Match::Send(self.verdict),
            _ if !self.is_wanted => Match::Drop,
            // Section 3.3.4: one copy, at the highest QoS.
            Class::Qos0 if self.in_other => Match::Drop,
            Class::Qos0 | Class::Qos1 => Match::Send(self.verdict),
        }
    }
}

/// Whether a message that was routed by the binding of `filter` (without `$share/group/`) is sent for it. False if the
/// topic begins with `$` and only AMQP's leading wildcards match it. A message that [`matches_only_by_star`] is sent, since
/// the queue may also serve the filter with `+`, whose members would miss the message.
pub(super) fn is_for(filter: &str, topic: &str) -> bool {
    !topic.starts_with('$')
        || filter_matches(filter, topic)
        // Dots and slashes are the same in an upstream, and in queues of earlier versions.
        || filter_matches(&merged(filter), &merged(topic))
}

/// Whether a message that came by the binding of `filter` came because a level `*` of that is a wildcard in AMQP.
pub(super) fn matches_only_by_star(filter: &str, topic: &str) -> bool {
    let with_plus = || filter.split('/').map(|level| if level == "*" { "+" } else { level });
    has_star(filter)
        && !filter_matches(filter, topic)
        && filter_matches(&with_plus().collect::<Vec<_>>().join("/"), topic)
}

/// Whether a topic matches a filter (without `$share/group/`), which may be invalid and then matches none.
pub(super) fn filter_matches(filter: &str, topic: &str) -> bool {
    TopicFilter::parse(filter, false).is_ok_and(|filter| filter.matches(topic))
}

/// Whether a filter has a level `*`: a plain character in MQTT, but a wildcard in AMQP.
pub(super) fn has_star(filter: &str) -> bool {
    filter.split('/').any(|level| level == "*")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mqtt::packet::SubscribeOptions;

    use super::*;
    use crate::mqtt::native::StoredForm;

    fn subscribe(subscriptions: &mut Subscriptions, filter: &str, qos: QoS, identifier: u32) {
        let options = SubscribeOptions::of_qos(qos);
        subscriptions
            .insert(filter, Subscription { options, identifier: Some(identifier), is_shared: false });
    }

    fn sent(qos: QoS, identifiers: &[u32]) -> Match {
        Match::Send(FilterMatch { qos, retain_as_published: false, identifiers: identifiers.to_vec() })
    }

    #[test]
    fn one_copy_is_sent_at_the_highest_quality_with_all_identifiers() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a/+", QoS::ExactlyOnce, 2);
        subscribe(&mut all, "a/b", QoS::AtLeastOnce, 3);
        assert_eq!(all.match_topic("a/b", Class::Qos1, false), sent(QoS::ExactlyOnce, &[1, 2, 3]));
        assert_eq!(all.match_topic("a/b", Class::Qos0, false), Match::Drop);
        assert_eq!(all.match_topic("a/b/c", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert_eq!(all.match_topic("b", Class::Qos0, false), Match::None);
        all.remove("a/+");
        all.remove("a/b");
        assert_eq!(all.match_topic("a/b", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        all.remove("a/#");
        assert!(all.entries.is_empty() && all.shapes.len() == 0);
    }

    #[test]
    fn a_retained_message_is_sent_once_for_all_subscriptions_that_match() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a/b", QoS::AtLeastOnce, 2);
        subscribe(&mut all, "a.b", QoS::ExactlyOnce, 3);
        let verdict = |topic| all.match_retained(topic).map(|verdict| (verdict.qos, verdict.identifiers));
        assert_eq!(verdict("a/b"), Some((QoS::AtLeastOnce, vec![1, 2])));
        assert_eq!(verdict("a"), Some((QoS::AtMostOnce, vec![1])));
        assert_eq!(verdict("c"), None);
    }

    #[test]
    fn a_message_is_not_for_a_filter_that_matches_its_topic_in_amqp_alone() {
        for (filter, topic, is_sent) in [
            ("#", "$x/y", false),
            ("+/y", "$x/y", false),
            ("$x/#", "$x/y", true),
            ("a/*", "a/b", true),
            ("a/*", "a/*", true),
            ("*/y", "$x/y", false),
            ("a/*.b", "a/*/b", true),
            ("a/+", "a/b", true),
            // Routed by a binding that was created outside MQTT.
            ("a", "b", true),
        ] {
            assert_eq!(is_for(filter, topic), is_sent, "{filter} and {topic}");
        }
    }

    #[test]
    fn a_dot_is_a_plain_character() {
        for (filter, topic, is_found) in [
            ("+/x", "a.b/x", true),
            ("hosts/+/status", "hosts/web1.example/status", true),
            ("x.y/+", "x.y/z.w", true),
            ("x.y/#", "x.y/z.w/v", true),
            ("+/+/x", "a.b/x", false),
            ("v1.2/x", "v1/2/x", false),
            ("+", "a.b/x", false),
            ("x.y/+", "x.z/w.v", false),
        ] {
            let mut all = Subscriptions::default();
            subscribe(&mut all, filter, QoS::AtMostOnce, 1);
            let expected = if is_found { sent(QoS::AtMostOnce, &[1]) } else { Match::None };
            assert_eq!(all.match_topic(topic, Class::Qos0, false), expected, "{filter} and {topic}");
            all.remove(filter);
            assert!(all.shapes.len() == 0 && all.match_retained(topic).is_none());
        }
    }

    #[test]
    fn messages_of_an_earlier_version_match_dots_as_slashes() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "v1.2/+", QoS::AtLeastOnce, 1);
        subscribe(&mut all, "v1/2/x", QoS::AtMostOnce, 2);
        assert_eq!(all.match_merged("v1/2/x", Class::Qos1, false), sent(QoS::AtLeastOnce, &[1, 2]));
        assert_eq!(all.match_topic("v1/2/x", Class::Qos0, false), sent(QoS::AtMostOnce, &[2]));
    }

    #[test]
    fn match_merged_finds_exactly_the_filters_that_match_with_dots_as_slashes() {
        const LEVELS: [&str; 5] = ["", "a", "b", "+", "#"];
        let mut filters: Vec<String> = LEVELS.map(str::to_owned).into();
        for length in 1..3 {
            let of_length = |filter: &&String| filter.matches(['.', '/']).count() + 1 == length;
            let starts =
                filters.iter().filter(of_length).flat_map(|start| [format!("{start}."), format!("{start}/")]);
            let longer: Vec<_> =
                starts.flat_map(|start| LEVELS.map(|level| format!("{start}{level}"))).collect();
            filters.extend(longer);
        }
        filters.retain(|filter| TopicFilter::parse(filter, false).is_ok());
        let filters: Vec<(u32, &String)> = (1..).zip(&filters).collect();
        let mut all = Subscriptions::default();
        filters.iter().for_each(|(number, filter)| subscribe(&mut all, filter, QoS::AtMostOnce, *number));
        let is_gone = |number: &u32| number.is_multiple_of(3);
        filters.iter().filter(|(number, _)| is_gone(number)).for_each(|(_, filter)| all.remove(filter));
        assert!(filters.iter().filter(|(_, filter)| filter.contains('.')).count() > 20);
        for topic in ["a", "b", "/", "a/b", "a/", "/b", "a/a/b", "a//b", "a/b/a/b", "$x/b"] {
            let matching = filters
                .iter()
                .filter(|(number, filter)| !is_gone(number) && filter_matches(&merged(filter), topic));
            let expected: Vec<u32> = matching.map(|(number, _)| *number).collect();
            let found = match all.match_merged(topic, Class::Qos0, false) {
                Match::Send(verdict) => verdict.identifiers,
                Match::Drop | Match::None => Vec::new(),
            };
            assert_eq!(found, expected, "{topic}");
        }
        filters.iter().for_each(|(_, filter)| all.remove(filter));
        assert!(!all.has_dotted() && all.lookups() == 2);
    }

    #[test]
    fn the_clients_own_message_is_sent_only_by_subscriptions_without_no_local() {
        let mut all = Subscriptions::default();
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::of_qos(QoS::AtLeastOnce) };
        all.insert("a", Subscription { options, identifier: Some(1), is_shared: false });
        assert!(all.any_no_local());
        assert_eq!(all.match_topic("a", Class::Qos1, true), Match::Drop);
        assert_eq!(all.match_topic("a", Class::Qos1, false), sent(QoS::AtLeastOnce, &[1]));
        subscribe(&mut all, "#", QoS::AtLeastOnce, 2);
        assert_eq!(all.match_topic("a", Class::Qos1, true), sent(QoS::AtLeastOnce, &[2]));
    }

    #[test]
    fn a_message_of_a_removed_subscription_is_sent_by_the_remaining_one() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/#", QoS::AtMostOnce, 1);
        subscribe(&mut all, "a/b", QoS::AtLeastOnce, 2);
        all.remove("a/b");
        assert_eq!(all.match_topic("a/b", Class::Qos1, false), sent(QoS::AtMostOnce, &[1]));
        let options = SubscribeOptions { no_local: true, ..SubscribeOptions::of_qos(QoS::AtMostOnce) };
        all.insert("a/#", Subscription::of(options));
        assert_eq!(
            all.match_topic("a/b", Class::Qos1, true),
            Match::Drop,
            "no_local drops the client's own message"
        );
    }

    #[test]
    fn a_star_is_plain_in_mqtt_and_a_wildcard_in_amqp() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "a/*", QoS::AtMostOnce, 1);
        assert_eq!(all.match_topic("a/*", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert_eq!(all.match_topic("a/b", Class::Qos0, false), Match::None, "though AMQP brings it");
        let exact = MessageMapping { form: StoredForm::Headers, merges_dots: false };
        assert!(all.binds("a/+", exact, |qos| qos == QoS::AtMostOnce));
        assert!(!all.binds("a.+", exact, |qos| qos == QoS::AtMostOnce));
        let merged = MessageMapping { merges_dots: true, ..exact };
        assert!(all.binds("a.+", merged, |qos| qos == QoS::AtMostOnce));
    }

    #[test]
    fn match_topic_finds_exactly_the_filters_that_match_one_by_one() {
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
            let matching = left.iter().filter(|(_, filter)| filter_matches(filter, topic));
            let mut expected: Vec<u32> = matching.map(|(identifier, _)| *identifier).collect();
            expected.sort_unstable();
            let found = match subscriptions.match_topic(topic, Class::Qos0, false) {
                Match::Send(verdict) => verdict.identifiers,
                Match::Drop | Match::None => Vec::new(),
            };
            assert_eq!(found, expected, "{topic}");
        }
    }

    #[test]
    fn leading_wildcards_match_no_dollar_topics() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "#", QoS::AtMostOnce, 1);
        assert_eq!(all.match_topic("$SYS/x", Class::Qos0, false), Match::None);
    }
}
