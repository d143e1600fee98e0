use std::sync::Arc;
use std::thread;

use amqp::RawTable;
use parking_lot::Mutex;

use super::*;
use crate::message::Body;
use crate::queue::QueueCapacity;
use crate::vhost::{Binding, ExchangeDeclare, QueueDeclare, VirtualHost};
use crate::{
    Broker, BrokerConfig, Compatibility, Consumer, ConsumerCapacity, ConsumerSpec, Offer, Overflow, Publish,
    SessionId, Timestamp,
};

const ME: SessionId = SessionId(1);
const NOW: Timestamp = Timestamp(1_000);

fn vhost() -> (Arc<Broker>, Arc<VirtualHost>) {
    let broker = Broker::new(BrokerConfig::default());
    let vhost = broker.vhost("/").unwrap();
    (broker, vhost)
}

fn policy(name: &str, pattern: &str, priority: i64, definition: &str) -> Policy {
    let definition =
        PolicyDefinition::parse(&serde_json::from_str(definition).unwrap(), Compatibility::V3_10).unwrap();
    let pattern = Pattern::new(pattern).unwrap();
    Policy { name: name.into(), pattern, priority, apply_to: ApplyTo::All, definition }
}

fn set_operator_policy(vhost: &Arc<VirtualHost>, policy: Policy, now: Timestamp) {
    vhost.put_operator_policy(policy);
    vhost.apply_policies(now);
}

fn queue(vhost: &Arc<VirtualHost>, name: &str, arguments: &[(&str, FieldValue)]) -> Arc<Queue> {
    let arguments: FieldTable = arguments.iter().cloned().collect();
    let bytes = arguments.encode();
    let arguments = RawTable::check(&bytes).unwrap();
    let declare = QueueDeclare { name, durable: true, arguments, ..Default::default() };
    vhost.declare_queue(ME, &declare, NOW).unwrap().queue
}

fn publish(broker: &Broker, vhost: &Arc<VirtualHost>, exchange: &str, key: &str) -> bool {
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let message = Publish { exchange, routing_key: key, properties: &[0, 0], body: Body::Copied(b"x") };
    vhost.publisher(&guest).publish(message, NOW).unwrap()
}

#[test]
fn the_highest_priority_alone_applies() {
    let (_broker, vhost) = vhost();
    vhost.set_policy(policy("low", "^q", 0, r#"{"max-length": 1, "message-ttl": 5}"#), NOW);
    vhost.set_policy(policy("high", "^q", 1, r#"{"max-length": 7}"#), NOW);
    vhost.set_policy(policy("other", "^x", 2, r#"{"max-length": 3}"#), NOW);
    let arguments = queue(&vhost, "q", &[]).arguments();
    assert_eq!((arguments.max_length, arguments.message_ttl), (Some(7), None));
}

#[test]
fn of_equal_priorities_the_first_name_applies_whatever_was_put_last() {
    let (_broker, vhost) = vhost();
    let queue = queue(&vhost, "q", &[]);
    let [small, generous] = [("small", r#"{"max-length": 5}"#), ("generous", r#"{"max-length": 1000}"#)];
    for (name, definition) in [small, generous, small, generous, generous] {
        vhost.set_policy(policy(name, "^q", 0, definition), NOW);
        set_operator_policy(&vhost, policy(name, "^q", 0, r#"{"expires": 9}"#), NOW);
    }
    assert_eq!(queue.arguments().max_length, Some(1000));
    let (name, operator) = vhost.with_policies(|policies| policies.names_for(&queue), |names| names);
    assert_eq!((name.as_deref(), operator.as_deref()), (Some("generous"), Some("generous")));
    vhost.remove_policy("generous", NOW);
    assert_eq!(queue.arguments().max_length, Some(5));
}

#[test]
fn policies_that_are_loaded_together_apply_together() {
    let (broker, vhost) = vhost();
    let queue = queue(&vhost, "q", &[]);
    (0..3).for_each(|_| assert!(publish(&broker, &vhost, "", "q")));
    let json = br#"{
        "parameters": [{"component": "operator_policy", "name": "o", "vhost": "/",
                        "value": {"pattern": "^q", "definition": {"expires": 9}}}],
        "policies": [{"vhost": "/", "name": "low", "pattern": "^q", "definition": {"max-length": 1}},
                     {"vhost": "/", "name": "high", "pattern": "^q", "priority": 1, "definition": {"max-length": 2}},
                     {"vhost": "/", "name": "wrong", "pattern": "^q", "definition": {"nope": 1}}]
    }"#;
    let error = broker.load(&crate::Definitions::from_json(json).unwrap(), NOW).unwrap_err();
    assert!(error.to_string().contains("'wrong'"), "{error}");
    // Policies before the error apply, and the one with the lower priority was never applied.
    assert_eq!((queue.arguments().max_length, queue.arguments().expires), (Some(2), Some(9)));
    assert_eq!(queue.message_count(), 2);
}

#[test]
fn in_rabbitmq_4_a_negative_delivery_limit_does_not_lift_a_policys() {
    let quorum = ("x-queue-type", FieldValue::text("quorum"));
    for (compatibility, limits) in [(Compatibility::V4, [3, 3, 2]), (Compatibility::V3_10, [-1, -1, 2])] {
        let broker = Broker::new(BrokerConfig { compatibility, ..BrokerConfig::default() });
        let vhost = broker.vhost("/").unwrap();
        vhost.set_policy(policy("p", "^p", 0, r#"{"delivery-limit": 3}"#), NOW);
        set_operator_policy(&vhost, policy("o", "^o", 0, r#"{"delivery-limit": 3}"#), NOW);
        let found = [("p", -1), ("o", -1), ("po", 2)].map(|(name, limit)| {
            let own = [quorum.clone(), ("x-delivery-limit", FieldValue::I32(limit))];
            queue(&vhost, name, &own).arguments().delivery_limit.unwrap()
        });
        assert_eq!(found, limits, "{compatibility:?}");
    }
}

#[test]
fn queues_of_the_same_policy_or_arguments_share_them() {
    let (_broker, vhost) = vhost();
    vhost.set_policy(policy("all", "^q", 0, r#"{"message-ttl": 5}"#), NOW);
    let [one, other] = ["q1", "q2"].map(|name| queue(&vhost, name, &[]).arguments());
    assert!(one.message_ttl == Some(5) && Arc::ptr_eq(&one, &other));
    let [plain, same] =
        ["a1", "a2"].map(|name| queue(&vhost, name, &[("x-message-ttl", FieldValue::I64(5))]));
    assert!(Arc::ptr_eq(&plain.arguments(), &one) && Arc::ptr_eq(&same.arguments(), &one));
}

#[test]
fn the_lowest_number_applies_and_otherwise_the_argument() {
    let (_broker, vhost) = vhost();
    let definition = r#"{"max-length": 5, "overflow": "reject-publish", "dead-letter-routing-key": "policy",
        "dead-letter-exchange": "policy"}"#;
    vhost.set_policy(policy("p", "", 0, definition), NOW);
    set_operator_policy(&vhost, policy("o", "", 0, r#"{"max-length": 4, "expires": 9}"#), NOW);
    let own = [
        ("x-max-length", FieldValue::I32(8)),
        ("x-expires", FieldValue::I32(6)),
        ("x-overflow", FieldValue::text("drop-head")),
        ("x-dead-letter-exchange", FieldValue::text("own")),
    ];
    let arguments = queue(&vhost, "q", &own).arguments();
    assert_eq!((arguments.max_length, arguments.expires), (Some(4), Some(6)));
    assert_eq!(arguments.overflow, Overflow::DropHead);
    let letters = arguments.dead_lettering.as_ref().unwrap();
    assert_eq!((&*letters.exchange, letters.routing_key.as_deref()), ("own", Some("policy")));
    let bare = queue(&vhost, "bare", &[]).arguments();
    assert_eq!((bare.overflow, bare.max_length), (Overflow::RejectPublish, Some(4)));
}

#[test]
fn a_queue_with_a_capacity_drops_its_oldest_messages_despite_policies() {
    let (broker, vhost) = vhost();
    vhost.set_policy(policy("p", "", 0, r#"{"max-length": 9, "overflow": "reject-publish"}"#), NOW);
    let capacity = Some(QueueCapacity { messages: 2, bytes: 100 });
    let declare = QueueDeclare { name: "q", capacity, ..Default::default() };
    let queue = vhost.declare_queue(ME, &declare, NOW).unwrap().queue;
    for _ in 0..5 {
        publish(&broker, &vhost, "", "q");
    }
    assert_eq!(queue.message_count(), 2);
    assert_eq!(broker.metrics().mqtt_messages_dropped.get(), 3);
    assert_eq!(broker.metrics().messages_refused.get(), 0);
    vhost.set_policy(policy("p", "", 0, r#"{"max-length": 1}"#), NOW);
    assert_eq!(queue.message_count(), 1, "a lower limit of a policy holds");
}

#[test]
fn a_policy_with_a_key_that_the_queue_type_does_not_support_is_skipped() {
    let (_broker, vhost) = vhost();
    vhost.set_policy(policy("quorum", "", 1, r#"{"delivery-limit": 2, "max-length": 1}"#), NOW);
    vhost.set_policy(policy("all", "", 0, r#"{"max-length": 9}"#), NOW);
    assert_eq!(queue(&vhost, "classic", &[]).arguments().max_length, Some(9));
    let quorum = queue(&vhost, "quorum", &[("x-queue-type", FieldValue::text("quorum"))]).arguments();
    assert_eq!((quorum.max_length, quorum.delivery_limit), (Some(1), Some(2)));
}

#[test]
fn existing_queues_get_a_policy_at_once_and_lose_it_when_it_is_removed() {
    let (broker, vhost) = vhost();
    let queue = queue(&vhost, "q", &[]);
    for _ in 0..3 {
        publish(&broker, &vhost, "", "q");
    }
    vhost.set_policy(policy("p", "^q$", 0, r#"{"max-length": 1, "expires": 50}"#), NOW);
    assert_eq!(queue.message_count(), 1);
    assert_eq!(broker.next_deadline(), Some(Timestamp(1_050)));
    vhost.remove_policy("p", NOW);
    assert_eq!(*queue.arguments(), QueueArguments::default());
    broker.expire(Timestamp(2_000));
    assert!(!queue.is_deleted());
}

/// A consumer that reads the message count of its own queue.
struct Onlooker {
    queue: Arc<Queue>,
    seen: Mutex<Vec<u64>>,
}

impl Consumer for Onlooker {
    fn accept(&self, offer: &mut Offer<'_>) -> ConsumerCapacity {
        while offer.next().is_some() {}
        // This thread has locked another queue.
        let count = thread::scope(|scope| scope.spawn(|| self.queue.message_count()).join().unwrap());
        self.seen.lock().push(count);
        ConsumerCapacity::More
    }
    fn cancelled(&self) {}
}

#[test]
fn a_long_queue_is_cut_in_bounded_steps_between_which_others_get_at_it() {
    let (broker, vhost) = vhost();
    let dead = queue(&vhost, "dead", &[]);
    let target = [
        ("x-dead-letter-exchange", FieldValue::text("")),
        ("x-dead-letter-routing-key", FieldValue::text("dead")),
    ];
    let queue = queue(&vhost, "q", &target);
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let mut publisher = vhost.publisher(&guest);
    for _ in 0..20_000 {
        let message =
            Publish { exchange: "", routing_key: "q", properties: &[0, 0], body: Body::Copied(b"x") };
        publisher.publish(message, NOW).unwrap();
    }
    publisher.flush(NOW);
    let onlooker = Arc::new(Onlooker { queue: queue.clone(), seen: Mutex::new(vec![20_000]) });
    let spec = ConsumerSpec {
        consumer: onlooker.clone(),
        session: ME,
        tag: "c",
        no_ack: true,
        exclusive: false,
        arguments: RawTable::default(),
    };
    dead.resume(dead.consume(spec).unwrap(), NOW);
    vhost.set_policy(policy("p", "^q$", 0, r#"{"max-length": 1}"#), NOW);
    broker.expire_all(NOW);
    assert_eq!(queue.message_count(), 1);
    let seen = onlooker.seen.lock();
    assert_eq!(seen.last(), Some(&1));
    assert!(seen.windows(2).all(|two| two[0] - two[1] <= 1_000), "{seen:?}");
}

#[test]
fn exchanges_get_and_lose_their_alternate_exchange() {
    let (broker, vhost) = vhost();
    queue(&vhost, "q", &[]);
    let binding = Binding { source: "amq.fanout", destination: "q", ..Default::default() };
    vhost.bind_queue(ME, &binding).unwrap();
    let declare = |name| ExchangeDeclare { name, kind: "direct", ..Default::default() };
    vhost.declare_exchange(&declare("before")).unwrap();
    assert!(!publish(&broker, &vhost, "before", "k"));
    vhost.set_policy(policy("p", "^(before|after)$", 0, r#"{"alternate-exchange": "amq.fanout"}"#), NOW);
    vhost.declare_exchange(&declare("after")).unwrap();
    assert!(publish(&broker, &vhost, "before", "k"));
    assert!(publish(&broker, &vhost, "after", "k"));
    vhost.remove_policy("p", NOW);
    assert!(!publish(&broker, &vhost, "before", "k"));
}

#[test]
fn apply_to_chooses_queues_or_exchanges() {
    let (_broker, vhost) = vhost();
    let only = |apply_to| Policy { apply_to, ..policy("p", "", 0, r#"{"max-length": 1}"#) };
    vhost.set_policy(only(ApplyTo::Exchanges), NOW);
    let queue = queue(&vhost, "q", &[]);
    assert_eq!(queue.arguments().max_length, None);
    vhost.set_policy(only(ApplyTo::Queues), NOW);
    assert_eq!(queue.arguments().max_length, Some(1));
    for (apply_to, limit) in [
        (ApplyTo::QueuesOf(QueueKind::Quorum), None),
        (ApplyTo::QueuesOf(QueueKind::Classic), Some(1)),
        (ApplyTo::Streams, None),
    ] {
        vhost.set_policy(only(apply_to), NOW);
        assert_eq!(queue.arguments().max_length, limit, "{apply_to:?}");
    }
}

/// A name for which matching `EXPLOSIVE` takes too many steps.
fn long_name() -> String {
    "a".repeat(200)
}

const EXPLOSIVE: &str = r"(a*)*\1b";

fn define(broker: &Broker, pattern: &str) -> Result<(), String> {
    let definition = serde_json::json!({"message-ttl": 5, "alternate-exchange": "other"});
    let entry = serde_json::json!({"vhost": "/", "name": "p", "pattern": pattern, "definition": definition});
    broker.define(store::catalogue::Section::Policies, entry, NOW).map_err(|error| error.to_string())
}

#[test]
fn a_pattern_that_takes_too_many_steps_on_an_existing_name_is_refused() {
    let (broker, vhost) = vhost();
    queue(&vhost, &long_name(), &[]);
    let error = define(&broker, EXPLOSIVE).unwrap_err();
    assert!(error.contains("takes too many steps on names such as 'aaa"), "{error}");
    assert_eq!(broker.definition(store::catalogue::Section::Policies, &["/", "p"]), None);
    define(&broker, "^a").unwrap();
    assert_eq!(vhost.find_queue(&long_name()).unwrap().arguments().message_ttl, Some(5));
}

#[test]
fn a_pattern_that_takes_too_many_steps_on_a_later_name_does_not_match_it() {
    let (broker, vhost) = vhost();
    define(&broker, EXPLOSIVE).unwrap();
    assert_eq!(queue(&vhost, &long_name(), &[]).arguments().message_ttl, None);
    assert_eq!(queue(&vhost, "ab", &[]).arguments().message_ttl, Some(5));
}

#[test]
fn policies_that_change_while_names_are_matched_are_matched_again() {
    let (_broker, vhost) = vhost();
    vhost.set_policy(policy("p", "^q", 0, r#"{"message-ttl": 5}"#), NOW);
    let q = queue(&vhost, "q", &[]);
    let matched = std::cell::Cell::new(0);
    let find = |policies: &PolicyTable| {
        matched.set(matched.get() + 1);
        if matched.get() == 1 {
            vhost.set_policy(policy("p", "^q", 0, r#"{"message-ttl": 6}"#), NOW);
        }
        policies.arguments_of(&q).message_ttl
    };
    assert_eq!(vhost.with_policies(find, |found| found), Some(6));
    assert_eq!(matched.get(), 2);
}

#[test]
fn a_virtual_host_can_be_used_while_names_are_matched() {
    let (broker, vhost) = vhost();
    let find = |_: &PolicyTable| {
        // Each of these locks the topology, for writing or reading.
        queue(&vhost, "q", &[]);
        assert!(publish(&broker, &vhost, "", "q"));
        vhost.delete_queue(ME, "q", false, false).unwrap();
    };
    vhost.with_policies(find, |()| ());
}
