//! Topics as AMQP routing keys and back, translated as in RabbitMQ's MQTT plugin: `/` becomes `.`, a filter's
//! `+` becomes `*`, `#` stays `#`.
//!
//! Unlike there, a dot within a level of a topic is not confused with the `/` between levels: the two are exchanged, so that
//! `v1.2/x` is the routing key `v1/2.x`. A topic without a dot has the same key as in RabbitMQ. Each topic has a key of its
//! own, of the same length; the words of the key are the levels of the topic, so that wildcards match the same in both.
//!
//! A `*` in a routing key is left as it is, since no topic name may contain `+`. In one more case the
//! wildcards could differ but do not: `#` at the end of a binding key also matches zero words, and `#` at the
//! end of a filter also matches zero levels (`a/#` matches `a`), so it needs no translation.

use std::borrow::Cow;

/// The routing key of a message that was published to `topic`.
pub fn topic_to_routing_key(topic: &str) -> String {
    let letter = |letter| match letter {
        '+' => '*',
        other => exchanged(other),
    };
    topic.chars().map(letter).collect()
}

/// The binding key of a subscription to `filter`, which does not include `$share/group/`.
pub fn filter_to_binding_key(filter: &str) -> String {
    topic_to_routing_key(filter)
}

/// The topic under which a message with this routing key is delivered.
pub fn routing_key_to_topic(key: &str) -> String {
    key.chars().map(exchanged).collect()
}

/// The AMQP form of a topic or filter that earlier versions used, where `.` and `/` were the same: it finds the data that
/// they left on disk. Text without a dot is returned unchanged.
pub fn merged(text: &str) -> Cow<'_, str> {
    if text.contains('.') { Cow::Owned(text.replace('.', "/")) } else { Cow::Borrowed(text) }
}

/// Exchanges `.` and `/`.
fn exchanged(letter: char) -> char {
    match letter {
        '/' => '.',
        '.' => '/',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_become_routing_keys_as_in_rabbitmq() {
        assert_eq!(topic_to_routing_key("sensors/kitchen/temp"), "sensors.kitchen.temp");
        assert_eq!(topic_to_routing_key("/leading//empty/"), ".leading..empty.");
        assert_eq!(topic_to_routing_key("größe/日本/é"), "größe.日本.é");
        assert_eq!(filter_to_binding_key("sensors/+/#"), "sensors.*.#");
    }

    #[test]
    fn routing_keys_become_topics() {
        assert_eq!(routing_key_to_topic("sensors.kitchen.temp"), "sensors/kitchen/temp");
        assert_eq!(routing_key_to_topic("a*b"), "a*b");
        assert_eq!(routing_key_to_topic("größe.日本"), "größe/日本");
    }

    #[test]
    fn every_topic_has_a_key_of_its_own_and_comes_back_as_it_was() {
        for (topic, key) in [
            ("a/b/c", "a.b.c"),
            ("/", "."),
            ("a//b", "a..b"),
            ("$SYS/x y", "$SYS.x y"),
            ("v1.2/x", "v1/2.x"),
            ("v1/2.x", "v1.2/x"),
            ("hosts/web1.example.org/up", "hosts.web1/example/org.up"),
            (".", "/"),
        ] {
            assert_eq!(topic_to_routing_key(topic), key);
            assert_eq!(routing_key_to_topic(key), topic);
        }
        assert_eq!(filter_to_binding_key("hosts/+/v1.#"), "hosts.*.v1/#");
    }

    #[test]
    fn earlier_versions_took_dots_for_slashes() {
        assert_eq!(merged("v1.2/x"), "v1/2/x");
        assert!(matches!(merged("a/b"), Cow::Borrowed("a/b")));
    }
}
