//! `message_stats` with rates, on a clock that the tests move.

use super::*;

/// A broker and its API, with a clock that the test moves.
struct Asked {
    quiet: Arc<Quiet>,
    broker: Arc<Broker>,
    api: Arc<Api>,
}

impl Asked {
    fn new() -> Self {
        let (quiet, broker) = (Arc::new(Quiet::default()), Broker::new(BrokerConfig::default()));
        let api = Api::new(Some(Arc::clone(&broker)), quiet.clone());
        Self { quiet, broker, api }
    }

    fn wait(&self, millis: u64) {
        self.quiet.later.fetch_add(millis, Ordering::Relaxed);
    }

    fn publish(&self, exchange: &str, key: &str, count: usize) {
        let message =
            json!({"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"});
        let call = call(&self.api, &[("vhost", "/"), ("name", exchange)], &[], &message);
        (0..count).for_each(|_| drop(shown(messages::publish(&call))));
    }

    /// The statistics of one object in the virtual host.
    fn stats(&self, one: impl Fn(&Call) -> call::ApiAnswer, name: &str) -> Value {
        let call = call(&self.api, &[("vhost", "/"), ("name", name)], &[], &json!({}));
        shown(one(&call))["message_stats"].take()
    }
}

#[test]
fn queues_exchanges_and_virtual_hosts_show_counts_and_rates() {
    let asked = Asked::new();
    declare(&asked.broker, "q");
    for (one, name) in [(queues::one as fn(&Call) -> call::ApiAnswer, "q"), (exchanges::one, "amq.default")] {
        assert_eq!(asked.stats(one, name), Value::Null, "{name}: nothing has happened");
    }
    assert_eq!(asked.stats(vhosts::one, ""), Value::Null);
    asked.publish("amq.default", "q", 10);
    asked.wait(5_000);
    assert_eq!(asked.stats(queues::one, "q"), json!({"publish": 10, "publish_details": {"rate": 2.0}}));
    let through = asked.stats(exchanges::one, "amq.default");
    assert_eq!((&through["publish_in"], &through["publish_out_details"]["rate"]), (&json!(10), &json!(2.0)));
    asked.wait(5_000);
    assert_eq!(asked.stats(queues::one, "q")["publish_details"]["rate"], 0.0);
    assert_eq!(asked.stats(exchanges::one, "amq.default")["publish_in_details"]["rate"], 0.0);
}

#[test]
fn a_virtual_host_counts_each_message_once() {
    let asked = Asked::new();
    let vhost = asked.broker.vhost("/").unwrap();
    for name in ["a", "b"] {
        declare(&asked.broker, name);
        let binding = broker::Binding { source: "amq.fanout", destination: name, ..Default::default() };
        vhost.bind_queue(SESSION, &binding).unwrap();
    }
    asked.publish("amq.fanout", "", 3);
    asked.publish("amq.default", "nowhere", 1);
    let stats = asked.stats(vhosts::one, "");
    assert_eq!(stats["publish"], 4);
    assert_eq!(asked.stats(queues::one, "a")["publish"], 3);
}

#[test]
fn queues_are_sorted_by_rate() {
    let asked = Asked::new();
    for (name, count) in [("slow", 1), ("none", 0), ("fast", 3)] {
        declare(&asked.broker, name);
        asked.publish("amq.default", name, count);
    }
    asked.wait(5_000);
    let query =
        [("sort", "message_stats.publish_details.rate"), ("sort_reverse", "true"), ("columns", "name")];
    let all = shown(queues::all(&call(&asked.api, &[], &query, &json!({}))));
    assert_eq!(all, json!([{"name": "fast"}, {"name": "slow"}, {"name": "none"}]));
}
