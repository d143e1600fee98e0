//! Which of a client's subscriptions a message belongs to.
//!
//! A topic's way through AMQP is not without loss: `/` and `.` become one. So filters are compared in the form in which
//! topics come back from there.

use hashbrown::HashMap;
use mqtt::QoS;
use mqtt::session::Subscription;
use mqtt::topic::{TopicFilter, filter_to_binding_key, routing_key_to_topic};

/// A client's subscriptions that are not shared, found by topic: those without wildcards at once, the others one by one.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    exact: HashMap<Box<str>, Vec<Entry>>,
    wild: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// As it was sent.
    filter: Box<str>,
    /// As it comes back.
    canonical: Box<str>,
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
        let entry = Entry { filter: filter.into(), canonical: canonical(filter).into(), subscription };
        if filter.contains(['+', '#']) {
            self.wild.push(entry);
        } else {
            self.exact.entry_ref(&*entry.canonical.clone()).or_default().push(entry);
        }
    }

    pub(super) fn remove(&mut self, filter: &str) {
        self.wild.retain(|entry| *entry.filter != *filter);
        let canonical = canonical(filter);
        if let Some(entries) = self.exact.get_mut(canonical.as_str()) {
            entries.retain(|entry| *entry.filter != *filter);
            if entries.is_empty() {
                self.exact.remove(canonical.as_str());
            }
        }
    }

    /// Whether a subscription of a class has the same binding as this filter's.
    pub(super) fn binds(&self, filter: &str, class: Class) -> bool {
        let key = filter_to_binding_key(filter);
        let same = |entry: &Entry| entry.class() == class && filter_to_binding_key(&entry.filter) == key;
        self.exact.values().flatten().chain(&self.wild).any(same)
    }

    /// Whether the client wants nothing of its own in any of them.
    pub(super) fn any_no_local(&self) -> bool {
        let all = self.exact.values().flatten().chain(&self.wild);
        all.into_iter().any(|entry| entry.subscription.options.no_local)
    }

    /// What becomes of a message that came through the queue of `class`. `is_own` tells that the client published it.
    pub(super) fn judge(&self, topic: &str, class: Class, is_own: bool) -> Match {
        let exact = self.exact.get(topic).into_iter().flatten();
        let wild = self.wild.iter().filter(|entry| matches(&entry.canonical, topic));
        let mut verdict = Verdict::default();
        let (mut is_matched, mut is_wanted, mut in_other) = (false, false, false);
        for entry in exact.chain(wild) {
            let options = entry.subscription.options;
            is_matched = true;
            if is_own && options.no_local {
                continue;
            }
            in_other |= entry.class() != class;
            is_wanted |= entry.class() == class;
            verdict.qos = verdict.qos.max(options.qos);
            verdict.retain_as_published |= options.retain_as_published;
            verdict.identifiers.extend(entry.subscription.identifier);
        }
        match class {
            _ if !is_matched => Match::None,
            _ if !is_wanted => Match::Drop,
            // Section 3.3.4: one copy, at the highest quality.
            Class::Qos0 if in_other => Match::Drop,
            Class::Qos0 | Class::Qos1 => Match::Send(verdict),
        }
    }
}

impl Entry {
    fn class(&self) -> Class {
        Class::of(self.subscription.options.qos)
    }
}

/// A filter in the form in which topics come back.
pub(super) fn canonical(filter: &str) -> String {
    routing_key_to_topic(filter)
}

fn matches(filter: &str, topic: &str) -> bool {
    TopicFilter::parse(filter, false).is_ok_and(|filter| filter.matches(topic))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(all.judge("a/b", Class::Qos1, false), sent(QoS::ExactlyOnce, &[3, 1, 2]));
        assert_eq!(all.judge("a/b", Class::Qos0, false), Match::Drop);
        assert_eq!(all.judge("a/b/c", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert_eq!(all.judge("b", Class::Qos0, false), Match::None);
        all.remove("a/+");
        all.remove("a/b");
        assert_eq!(all.judge("a/b", Class::Qos0, false), sent(QoS::AtMostOnce, &[1]));
        assert!(all.exact.is_empty());
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
    fn wildcards_in_front_match_no_topics_of_the_server() {
        let mut all = Subscriptions::default();
        subscribe(&mut all, "#", QoS::AtMostOnce, 1);
        assert_eq!(all.judge("$SYS/x", Class::Qos0, false), Match::None);
    }
}
