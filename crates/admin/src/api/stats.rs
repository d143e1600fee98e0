//! `message_stats` of queues, exchanges, channels and virtual hosts, as RabbitMQ shows them: the group of
//! publishing counters and the group of delivery counters each appear as a whole once one of their counters is
//! above zero.

use broker::{Count, MessageCounts};
use serde_json::{Map, Value, json};

/// Statistics of a queue or a virtual host.
pub(super) fn of_queues(counts: &MessageCounts) -> Option<Value> {
    stats(&[&[("publish", counts.publish)], &leaving(counts)])
}

/// Statistics of a channel.
pub(super) fn of_channel(counts: &MessageCounts) -> Option<Value> {
    let entering = [
        ("publish", counts.publish),
        ("confirm", counts.confirm),
        ("return_unroutable", counts.return_unroutable),
        ("drop_unroutable", counts.drop_unroutable),
    ];
    stats(&[&entering, &leaving(counts)])
}

/// Statistics of an exchange: messages published to it, and enqueued copies of them.
pub(super) fn of_exchange((published, enqueued): (Count, Count)) -> Option<Value> {
    stats(&[&[("publish_in", published)], &[("publish_out", enqueued)]])
}

fn leaving(counts: &MessageCounts) -> [(&'static str, Count); 8] {
    [
        ("ack", counts.ack),
        ("deliver", counts.deliver),
        ("deliver_get", counts.deliver_get()),
        ("deliver_no_ack", counts.deliver_no_ack),
        ("get", counts.get),
        ("get_empty", counts.get_empty),
        ("get_no_ack", counts.get_no_ack),
        ("redeliver", counts.redeliver),
    ]
}

/// `None` if all counters are zero.
fn stats(groups: &[&[(&str, Count)]]) -> Option<Value> {
    let mut shown = Map::new();
    for group in groups.iter().filter(|group| group.iter().any(|(_, count)| count.total > 0)) {
        for (name, count) in *group {
            shown.insert((*name).to_owned(), count.total.into());
            shown.insert(format!("{name}_details"), json!({"rate": count.rate()}));
        }
    }
    (!shown.is_empty()).then_some(Value::Object(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(total: u64, recent: u64) -> Count {
        Count { total, recent }
    }

    #[test]
    fn statistics_omit_events_that_never_happened() {
        let nothing = MessageCounts::default();
        assert_eq!((of_queues(&nothing), of_channel(&nothing)), (None, None));
        assert_eq!(of_exchange((count(0, 0), count(0, 0))), None);
        let publishing = MessageCounts { publish: count(7, 5), ..nothing };
        let shown = json!({"publish": 7, "publish_details": {"rate": 1.0}});
        assert_eq!(of_queues(&publishing), Some(shown));
    }

    #[test]
    fn delivery_statistics_include_the_related_counters() {
        let counts = MessageCounts { get: count(2, 0), deliver: count(3, 30), ..MessageCounts::default() };
        let shown = of_queues(&counts).unwrap();
        let reported = |key: &str| (shown[key].as_u64(), shown[format!("{key}_details")]["rate"].as_f64());
        assert_eq!(reported("deliver_get"), (Some(5), Some(6.0)));
        assert_eq!(reported("ack"), (Some(0), Some(0.0)));
        assert_eq!(shown.get("publish"), None);
    }
}
