//! Operations of an operator's tools, to read and to change.

use std::sync::{Arc, mpsc};
use std::thread;

use broker::{
    Binding, BindingEnd, Broker, BrokerConfig, BrokerError, Definitions, ExchangeDeclare, QueueDeclare,
    Section, SessionId, Store, Timestamp,
};
use serde_json::{Value, json};

use crate::disk_world::disk_world;

const NOW: Timestamp = Timestamp(1);
const NO_SESSION: SessionId = SessionId(u64::MAX);

fn broker() -> Arc<Broker> {
    Broker::new(BrokerConfig::default())
}

fn load(broker: &Broker, sections: &Value) {
    let definitions = Definitions::from_map(sections.as_object().unwrap()).unwrap();
    broker.load(&definitions, NOW).unwrap();
}

fn queue(vhost: &str, name: &str) -> Value {
    json!({"name": name, "vhost": vhost, "durable": true, "auto_delete": false, "arguments": {"x-max-length": 5}})
}

#[test]
fn exported_definitions_can_be_loaded_and_exported_again() {
    let (one, other) = (broker(), broker());
    load(
        &one,
        &json!({
            "vhosts": [{"name": "v", "description": "d", "tags": ["a"]}],
            "users": [{"name": "u", "password": "p", "tags": "monitoring"}],
            "permissions": [{"user": "u", "vhost": "v", "configure": "", "write": ".*", "read": "^q"}],
            "policies": [{"name": "p", "vhost": "v", "pattern": "^q", "definition": {"max-length": 3}}],
            "global_parameters": [{"name": "g", "value": {"a": [1]}}],
            "queues": [queue("v", "q"), {"name": "t", "vhost": "v", "durable": false, "auto_delete": false}],
            "exchanges": [{"name": "e", "vhost": "v", "type": "topic", "durable": true, "auto_delete": false}],
            "bindings": [{"source": "e", "vhost": "v", "destination": "q", "destination_type": "queue",
                "routing_key": "a.*", "arguments": {"n": 1}}],
        }),
    );
    let exported = one.export(None);
    load(&other, &Value::Object(exported.clone()));
    assert_eq!(other.export(None), exported);
    assert_eq!(exported["queues"][0]["arguments"], json!({"x-max-length": 5}));
    assert!(other.authenticate("u", b"p", true).is_ok(), "the password came along");
    let vhost = other.vhost("v").unwrap();
    assert!(other.export(Some(&vhost)).get("users").is_none(), "which belong to no virtual host");
}

/// As in RabbitMQ, which skips the queue and creates all bindings.
#[test]
fn definitions_bind_queues_that_are_exclusive_to_clients() {
    let broker = broker();
    let vhost = broker.vhost("/").unwrap();
    let mine = QueueDeclare { name: "mine", exclusive: true, ..QueueDeclare::default() };
    vhost.declare_queue(SessionId(1), &mine, NOW).unwrap();
    let binding = |destination: &str| {
        json!({"source": "amq.direct", "vhost": "/", "destination": destination, "destination_type": "queue",
            "routing_key": destination, "arguments": {}})
    };
    load(
        &broker,
        &json!({"queues": [queue("/", "mine"), queue("/", "other")], "bindings": [binding("mine"), binding("other")]}),
    );
    let bound = |queue| vhost.bindings_to_queue(queue).unwrap().len();
    assert_eq!(["mine", "other"].map(bound), [1, 1]);
}

#[test]
fn the_thread_that_exports_very_many_queues_pauses_in_between() {
    let broker = broker();
    let queues: Vec<Value> = (0..2_000).map(|number| queue("/", &format!("q{number}"))).collect();
    load(&broker, &json!({ "queues": queues }));
    let before = sync::pace::pauses();
    assert_eq!(broker.export(None)["queues"].as_array().map(Vec::len), Some(2_000));
    assert!(sync::pace::pauses() - before >= 10, "no more than 200 queues at a time");
}

#[test]
fn a_deleted_virtual_host_takes_everything_with_it() {
    let broker = broker();
    load(
        &broker,
        &json!({
            "vhosts": [{"name": "v"}],
            "permissions": [{"user": "guest", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
            "policies": [{"name": "p", "vhost": "v", "pattern": "", "definition": {"max-length": 3}}],
            "queues": [queue("v", "q")],
            "bindings": [{"source": "amq.topic", "vhost": "v", "destination": "q", "destination_type": "queue",
                "routing_key": "#", "arguments": {}}],
        }),
    );
    let before =
        (broker.metrics().queues.get(), broker.metrics().bindings.get(), broker.metrics().exchanges.get());
    assert_eq!(before, (1, 1, 12));
    let queue = broker.vhost("v").unwrap().find_queue("q").unwrap();
    assert!(broker.delete_definition(Section::VirtualHosts, &["v"], NOW));
    assert!(broker.vhost("v").is_none() && queue.is_deleted());
    let after =
        (broker.metrics().queues.get(), broker.metrics().bindings.get(), broker.metrics().exchanges.get());
    assert_eq!(after, (0, 0, 6));
    for section in [Section::VirtualHosts, Section::Permissions, Section::Policies] {
        assert!(broker.definitions_of(section, &[]).iter().all(|entry| entry["vhost"] != "v"), "{section:?}");
    }
    assert!(!broker.delete_definition(Section::VirtualHosts, &["v"], NOW), "it is gone");
}

/// Names of the entries on disk in a section, except those of the standard exchanges.
fn written(store: &Store, section: Section) -> Vec<String> {
    let mut found = Vec::new();
    store.catalogue().scan(section, |key, _| found.push(key.escape_ascii().to_string())).unwrap();
    found.retain(|key| !key.contains("amq."));
    found
}

#[test]
fn declarations_in_a_deleted_vhost_are_not_in_the_next_of_its_name() {
    let mut disk_world = disk_world(1);
    let broker = disk_world.world.broker.clone();
    let vhost = broker.add_vhost("v");
    let (declared, some_are_there) = mpsc::sync_channel(1);
    let client = vhost.clone();
    let declaring = thread::spawn(move || {
        for number in 0.. {
            let name = &*format!("q{number}");
            let queue = QueueDeclare { name, durable: true, ..QueueDeclare::default() };
            if let Err(error) = client.declare_queue(NO_SESSION, &queue, NOW) {
                return error;
            }
            let exchange =
                ExchangeDeclare { name, kind: "topic", durable: true, ..ExchangeDeclare::default() };
            let binding = Binding { source: name, destination: name, ..Binding::default() };
            let _ = client.declare_exchange(&exchange).and_then(|_| client.bind_queue(NO_SESSION, &binding));
            let _ = declared.try_send(());
        }
        unreachable!("it is deleted before")
    });
    load(&broker, &json!({"vhosts": [{"name": "v"}]}));
    some_are_there.recv().unwrap();
    assert!(broker.delete_definition(Section::VirtualHosts, &["v"], NOW));
    assert_eq!(declaring.join().unwrap(), BrokerError::NoVirtualHost("v".to_owned()));
    let exchange = ExchangeDeclare { name: "e", kind: "topic", durable: true, ..ExchangeDeclare::default() };
    assert!(vhost.declare_exchange(&exchange).is_err() && vhost.is_gone());
    let metrics = broker.metrics();
    assert_eq!((metrics.queues.get(), metrics.bindings.get(), metrics.exchanges.get()), (0, 0, 6));

    load(&broker, &json!({"vhosts": [{"name": "v"}]}));
    disk_world.sync();
    for section in [Section::Exchanges, Section::Queues, Section::Bindings] {
        assert!(written(&disk_world.store, section).is_empty(), "{section:?}");
    }
    let again = disk_world.crash().world.broker.vhost("v").unwrap();
    assert_eq!(again.all_queues().len(), 0);
}

#[test]
fn entries_for_a_deleted_virtual_host_are_deleted_and_others_are_kept() {
    let mut disk_world = disk_world(3);
    let broker = disk_world.world.broker.clone();
    load(&broker, &json!({"vhosts": [{"name": "v"}, {"name": "va"}]}));
    let (vhost, other) = (broker.vhost("v").unwrap(), broker.vhost("va").unwrap());
    let sections = [
        Section::MqttSessions,
        Section::MqttReceived,
        Section::MqttInFlight,
        Section::MqttRetained,
        Section::MqttPendingRetained,
        Section::MqttGroups,
    ];
    for section in sections {
        assert!(vhost.note(|catalogue| catalogue.put(section, b"\x01vc".to_vec(), Vec::new())).is_some());
        assert!(other.note(|catalogue| catalogue.put(section, b"\x02vac".to_vec(), Vec::new())).is_some());
    }
    // Some of the entries are on disk already, and some are not.
    disk_world.sync();
    vhost.note(|catalogue| catalogue.put(sections[0], b"\x01vd".to_vec(), Vec::new()));
    assert!(broker.delete_definition(Section::VirtualHosts, &["v"], NOW));
    load(&broker, &json!({"vhosts": [{"name": "v"}]}));
    for section in sections {
        assert!(vhost.note(|catalogue| catalogue.put(section, b"\x01vc".to_vec(), Vec::new())).is_none());
    }
    disk_world.sync();
    for section in sections {
        assert_eq!(written(&disk_world.store, section), ["\\x02vac"], "{section:?}");
    }
}

#[test]
fn a_deleted_and_recreated_user_has_no_permissions() {
    let broker = broker();
    let user = json!({"users": [{"name": "u", "password": "p", "tags": ""}]});
    load(&broker, &user);
    load(
        &broker,
        &json!({"permissions": [{"user": "u", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]}),
    );
    let identity = broker.authenticate("u", b"p", true).unwrap();
    assert!(broker.open(&identity, "/").is_ok());
    assert!(broker.delete_definition(Section::Users, &["u"], NOW));
    assert!(broker.authenticate("u", b"p", true).is_err());
    load(&broker, &user);
    assert!(broker.open(&identity, "/").is_err());
}

#[test]
fn policies_and_operator_policies_are_shown_with_the_merged_result() {
    let broker = broker();
    let vhost = broker.vhost("/").unwrap();
    let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
    let queue = vhost.declare_queue(NO_SESSION, &declare, NOW).unwrap().queue;
    let policy =
        json!({"name": "p", "vhost": "/", "pattern": "", "definition": {"max-length": 9, "message-ttl": 5}});
    broker.define(Section::Policies, policy, NOW).unwrap();
    let body = json!({"pattern": "", "definition": {"max-length": 4}, "apply-to": "queues"});
    let operator = json!({"component": "operator_policy", "name": "o", "vhost": "/", "value": body});
    broker.define(Section::Parameters, operator, NOW).unwrap();
    let (name, operator, merged) = broker.policies_of_queue(&vhost, &queue);
    assert_eq!((name.as_deref(), operator.as_deref()), (Some("p"), Some("o")));
    assert_eq!(merged, json!({"max-length": 4, "message-ttl": 5}), "the lower limit");
    assert_eq!(queue.arguments().max_length, Some(4));
    assert!(broker.delete_definition(Section::Parameters, &["/", "operator_policy", "o"], NOW));
    assert_eq!(queue.arguments().max_length, Some(9));
}

#[test]
fn bindings_are_found_from_both_ends() {
    let broker = broker();
    let bind = |key: &str| {
        json!({"bindings": [{"source": "amq.direct", "vhost": "/", "destination": "q", "destination_type": "queue",
            "routing_key": key, "arguments": {}}]})
    };
    load(&broker, &json!({"queues": [queue("/", "q")]}));
    for number in 0..2500 {
        load(&broker, &bind(&number.to_string()));
    }
    let vhost = broker.vhost("/").unwrap();
    assert_eq!(vhost.bindings_to_queue("q").unwrap().len(), 2500);
    assert_eq!(vhost.bindings_of_exchange("amq.direct").unwrap().len(), 2500);
    assert!(vhost.bindings_to_exchange("amq.direct").unwrap().is_empty());
    assert!(vhost.bindings_to_queue("none").is_none());
    let (mut steps, mut found, mut from) = (0, 0, Some(0));
    while let Some(at) = from {
        let (some, next) = vhost.bindings_from(at, 1000);
        assert!(
            some.len() <= 1000 && some.iter().all(|binding| binding.destination_type == BindingEnd::Queue)
        );
        (steps, found, from) = (steps + 1, found + some.len(), next);
    }
    assert_eq!(found, 2500);
    assert!(steps >= 3, "never more than a thousand places under one lock");
}

#[test]
fn a_name_longer_than_a_short_string_is_refused_before_anything_changes() {
    let broker = broker();
    let long = "x".repeat(256);
    let refused = |section: Section, entry: Value| {
        let refused = broker.define(section, entry, NOW).unwrap_err().to_string();
        assert!(refused.contains("255 are the most"), "{refused}");
    };
    refused(Section::VirtualHosts, json!({"name": long}));
    assert!(broker.vhost(&long).is_none());
    let policy = json!({"name": long, "vhost": "/", "pattern": "", "definition": {"max-length": 1}});
    refused(Section::Policies, policy);
    let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
    let queue = broker.vhost("/").unwrap().declare_queue(NO_SESSION, &declare, NOW).unwrap().queue;
    assert_eq!(queue.arguments().max_length, None, "a refused policy has no effect");
    let topic = json!({"user": "guest", "vhost": "/", "exchange": long, "write": "", "read": ""});
    refused(Section::TopicPermissions, topic);
}
