//! Topics as AMQP routing keys and back, as RabbitMQ's MQTT plugin translates them: `/` and `.` change places with each
//! other in one direction only, `+` is `*`, `#` is `#`.
//!
//! What is lost, as it is with RabbitMQ: a dot within a level becomes a level separator for subscribers. Unlike there, a
//! `*` in a routing key stays one: as a `+` it would be in no topic name. Both worlds' wildcards differ in one more thing: `#` at the end of a binding key
//! matches no word as well, and so does `#` at the end of a filter (`a/#` matches `a`), so nothing need be done.

/// The routing key of a message that was published to `topic`.
pub fn topic_to_routing_key(topic: &str) -> String {
    let letter = |letter| match letter {
        '/' => '.',
        '+' => '*',
        other => other,
    };
    topic.chars().map(letter).collect()
}

/// The binding key of a subscription to `filter`, which is without `$share/group/`.
pub fn filter_to_binding_key(filter: &str) -> String {
    topic_to_routing_key(filter)
}

/// The topic under which a message with this routing key is delivered.
pub fn routing_key_to_topic(key: &str) -> String {
    key.replace('.', "/")
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
    fn a_topic_without_dots_and_stars_comes_back_as_it_was() {
        for topic in ["a/b/c", "/", "a//b", "$SYS/x y"] {
            assert_eq!(routing_key_to_topic(&topic_to_routing_key(topic)), topic);
        }
        assert_eq!(routing_key_to_topic(&topic_to_routing_key("v1.2/x")), "v1/2/x", "as in RabbitMQ");
    }
}
