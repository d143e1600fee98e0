//! Topic names and topic filters (section 4.7), shared subscriptions (section 4.8.2), and their AMQP counterparts.

mod amqp;

pub use amqp::{filter_to_binding_key, merged, routing_key_to_topic, topic_to_routing_key};

use crate::fault::MqttFault;
use crate::properties::PacketProperties;
use crate::reason::ReasonCode;

/// Validates a topic name, which a message is published to.
///
/// # Errors
/// Topic Name invalid: it is empty or contains a wildcard (MQTT-3.3.2-2, MQTT-4.7.3-1). Decoding the packet
/// has ruled out U+0000 and names that are too long.
pub fn check_name(name: &str) -> Result<(), MqttFault> {
    if name.is_empty() {
        return Err(MqttFault::new(ReasonCode::TopicNameInvalid, "empty topic name"));
    }
    if name.bytes().any(|byte| matches!(byte, b'+' | b'#')) {
        return Err(MqttFault::new(ReasonCode::TopicNameInvalid, "topic name with a wildcard"));
    }
    Ok(())
}

/// Validates the Response Topic, which must be a topic name (MQTT-3.3.2-14).
pub(crate) fn check_response(properties: &PacketProperties<'_>) -> Result<(), MqttFault> {
    if properties.is_empty() {
        return Ok(());
    }
    match properties.response_topic() {
        Some(topic) if check_name(topic).is_err() => {
            Err(MqttFault::protocol("response topic is not a topic name"))
        }
        _ => Ok(()),
    }
}

/// A valid topic filter of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicFilter<'a> {
    /// The group that shares the subscription.
    group: Option<&'a str>,
    /// The filter without `$share/group/`.
    filter: &'a str,
}

impl<'a> TopicFilter<'a> {
    /// Validates a filter as it stands in a SUBSCRIBE. If `shared` is set, as from MQTT 5.0 on,
    /// `$share/group/filter` is a shared subscription; otherwise it is an ordinary filter.
    ///
    /// # Errors
    /// Topic Filter invalid: it is empty, a wildcard is not alone in its level, `#` is not the last level
    /// (section 4.7.1), or a share has no name, a name with a wildcard, or no filter (section 4.8.2).
    pub fn parse(text: &'a str, shared: bool) -> Result<Self, MqttFault> {
        const INVALID: MqttFault = MqttFault::new(ReasonCode::TopicFilterInvalid, "invalid topic filter");
        let (group, filter) = match text.strip_prefix(SHARE).filter(|_| shared) {
            Some(rest) => {
                let (group, filter) = rest.split_once('/').ok_or(INVALID)?;
                if group.is_empty() || group.contains(['+', '#']) {
                    return Err(INVALID);
                }
                (Some(group), filter)
            }
            None if shared && text == "$share" => return Err(INVALID),
            None => (None, text),
        };
        let is_valid = !filter.is_empty() && {
            let mut levels = filter.split('/');
            levels
                .by_ref()
                .take_while(|level| *level != "#")
                .all(|level| !level.contains(['+', '#']) || level == "+")
                && levels.next().is_none()
        };
        if is_valid { Ok(Self { group, filter }) } else { Err(INVALID) }
    }

    /// The name of the group that shares the subscription.
    pub fn group(&self) -> Option<&'a str> {
        self.group
    }

    /// The filter that topic names are matched against, without `$share/group/`.
    pub fn filter(&self) -> &'a str {
        self.filter
    }

    /// Whether it has a wildcard.
    pub fn has_wildcard(&self) -> bool {
        self.filter.contains(['+', '#'])
    }

    /// Whether it matches this topic name (sections 4.7.1 and 4.7.2).
    pub fn matches(&self, name: &str) -> bool {
        if name.starts_with('$') && self.filter.starts_with(['+', '#']) {
            return false;
        }
        let (mut levels, mut names) = (self.filter.split('/'), name.split('/'));
        loop {
            match (levels.next(), names.next()) {
                // It also matches the level above.
                (Some("#"), _) | (None, None) => return true,
                (Some("+"), Some(_)) => {}
                (Some(level), Some(name)) if level == name => {}
                _ => return false,
            }
        }
    }
}

/// Prefix of a shared subscription.
const SHARE: &str = "$share/";

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(filter: &str, name: &str) -> bool {
        TopicFilter::parse(filter, true).expect("the filter is valid").matches(name)
    }

    #[test]
    fn topic_names_have_no_wildcards() {
        assert!(check_name("a/b").is_ok() && check_name("/").is_ok() && check_name("a b/$x").is_ok());
        for name in ["", "a/+", "a#"] {
            assert_eq!(
                check_name(name).map_err(|fault| fault.code),
                Err(ReasonCode::TopicNameInvalid),
                "{name}"
            );
        }
    }

    #[test]
    fn wildcards_fill_a_level_and_the_multi_level_one_is_last() {
        for filter in ["#", "+", "sport/#", "+/tennis/#", "sport/+/player1", "/", "//", "+/+", "/+", "$SYS/#"]
        {
            assert!(TopicFilter::parse(filter, true).is_ok(), "{filter}");
        }
        for filter in ["", "sport/tennis#", "sport/#/ranking", "sport+", "a/+b", "#/", "##", "+#"] {
            assert!(TopicFilter::parse(filter, true).is_err(), "{filter}");
        }
    }

    #[test]
    fn filters_match_as_the_examples_of_the_specification_say() {
        for name in
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"]
        {
            assert!(matches("sport/tennis/player1/#", name), "{name}");
        }
        assert!(matches("sport/#", "sport"));
        assert!(matches("sport/tennis/+", "sport/tennis/player1"));
        assert!(!matches("sport/tennis/+", "sport/tennis/player1/ranking"));
        assert!(!matches("sport/+", "sport") && matches("sport/+", "sport/"));
        assert!(matches("+/+", "/finance") && matches("/+", "/finance") && !matches("+", "/finance"));
        assert!(!matches("#", "$SYS/x") && !matches("+/monitor/Clients", "$SYS/monitor/Clients"));
        assert!(matches("$SYS/#", "$SYS/x") && matches("$SYS/monitor/+", "$SYS/monitor/Clients"));
        assert!(!matches("ACCOUNTS", "Accounts") && !matches("a/b", "a") && !matches("a", "a/b"));
    }

    #[test]
    fn shared_subscriptions_have_a_group_and_a_filter() {
        let shared = TopicFilter::parse("$share/workers/jobs/+", true).expect("it is valid");
        assert_eq!((shared.group(), shared.filter()), (Some("workers"), "jobs/+"));
        assert!(shared.matches("jobs/1") && shared.has_wildcard());
        for filter in
            ["$share", "$share/", "$share/group", "$share/group/", "$share//x", "$share/g+/x", "$share/g/a#"]
        {
            assert!(TopicFilter::parse(filter, true).is_err(), "{filter}");
        }
        let plain = TopicFilter::parse("$share/workers/jobs", false).expect("it is valid before 5.0");
        assert_eq!((plain.group(), plain.filter()), (None, "$share/workers/jobs"));
    }
}
