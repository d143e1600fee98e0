use std::sync::Arc;

use amqp::{FieldTable, FieldValue};

use super::*;
use crate::{Broker, BrokerConfig, Compatibility, QueueDeclare, Section, SessionId, Timestamp};

const NOW: Timestamp = Timestamp(1_000);

fn load(json: &str) -> Result<Arc<Broker>, String> {
    load_into(Compatibility::default(), json)
}

fn load_into(compatibility: Compatibility, json: &str) -> Result<Arc<Broker>, String> {
    let broker = Broker::new(BrokerConfig { defaults: false, compatibility, ..Default::default() });
    let definitions = Definitions::from_json(json.as_bytes()).map_err(|error| error.to_string())?;
    broker.load(&definitions, NOW).map_err(|error| error.to_string())?;
    Ok(broker)
}

#[test]
fn a_whole_file_is_loaded() {
    let broker = load(
        r#"{
        "rabbit_version": "3.10.8", "global_parameters": [{"name": "cluster_name", "value": "x"}],
        "vhosts": [{"name": "v"}],
        "users": [{"name": "u", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
                   "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "impersonator, x",
                   "limits": {"max-connections": 1}}],
        "permissions": [{"user": "u", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
        "topic_permissions": [{"user": "u", "vhost": "v", "exchange": "t", "write": "^a", "read": "^b"}],
        "policies": [{"vhost": "v", "name": "p", "pattern": "^q", "apply-to": "queues", "priority": 1,
                      "definition": {"max-length": 5}}],
        "parameters": [{"component": "vhost-limits", "name": "limits", "vhost": "v", "value": {"max-queues": 1}},
                       {"component": "operator_policy", "name": "o", "vhost": "v",
                        "value": {"pattern": "", "apply-to": "queues", "priority": 0, "definition": {"expires": 9}}}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false,
                    "arguments": {"x-message-ttl": 60000}}],
        "exchanges": [{"name": "e", "vhost": "v", "type": "direct", "durable": true, "auto_delete": false,
                       "internal": false, "arguments": {}}],
        "bindings": [{"source": "e", "vhost": "v", "destination": "q", "destination_type": "queue",
                      "routing_key": "k", "arguments": {}}]
    }"#,
    )
    .unwrap();
    let user = broker.authenticate("u", b"test12", false).unwrap();
    assert!(user.may_impersonate());
    let authorised = broker.authorised(&user, "v").unwrap();
    assert!(broker.authorised(&user, "v").is_err(), "the user's limit");
    let queue = authorised.vhost().queue(SessionId(1), "q").unwrap();
    let arguments = queue.arguments();
    assert_eq!(
        (arguments.message_ttl, arguments.max_length, arguments.expires),
        (Some(60_000), Some(5), Some(9))
    );
    let declare = crate::QueueDeclare { name: "second", ..Default::default() };
    assert!(
        authorised.vhost().declare_queue(SessionId(1), &declare, NOW).is_err(),
        "the virtual host's limit"
    );
    assert!(broker.vhost("/").is_none() && broker.authenticate("guest", b"guest", true).is_err());
}

/// With the keys that RabbitMQ 3.10 does not have.
#[test]
fn a_file_of_rabbitmq_4_is_loaded() {
    let broker = load(
        r#"{
        "rabbitmq_version": "4.3.6", "rabbitmq_definition_format": "cluster", "original_cluster_name": "rabbit@host",
        "explanation": "Definitions of cluster 'rabbit@host'",
        "vhosts": [{"name": "v", "limits": {"max-queues": 7},
                    "metadata": {"description": "d", "tags": ["t"], "default_queue_type": "quorum",
                                 "protected_from_deletion": true}}],
        "global_parameters": [{"name": "cluster_tags", "value": []}],
        "policies": [{"vhost": "v", "name": "p", "pattern": "^q", "apply-to": "quorum_queues", "priority": 0,
                      "definition": {"max-length": 5}},
                     {"vhost": "v", "name": "s", "pattern": "^s", "apply-to": "streams", "priority": 0,
                      "definition": {"max-length": 5}}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false, "type": "quorum",
                    "arguments": {"x-queue-type": "quorum"}}],
        "exchanges": [{"name": "e", "vhost": "v", "type": "fanout", "durable": true, "auto_delete": false,
                       "arguments": {}}]
    }"#,
    )
    .unwrap();
    let queue = broker.vhost("v").unwrap().queue(SessionId(1), "q").unwrap();
    assert_eq!(queue.arguments().max_length, Some(5));
    let vhost = broker.definition(Section::VirtualHosts, &["v"]).unwrap();
    assert_eq!(vhost["description"], "d");
    assert_eq!(
        (&vhost["default_queue_type"], &vhost["protected_from_deletion"]),
        (&"quorum".into(), &true.into())
    );
    // Another description does not lift the protection.
    broker
        .load(&Definitions::from_json(br#"{"vhosts": [{"name": "v", "description": "new"}]}"#).unwrap(), NOW)
        .unwrap();
    let vhost = broker.definition(Section::VirtualHosts, &["v"]).unwrap();
    assert_eq!((&vhost["description"], &vhost["protected_from_deletion"]), (&"new".into(), &true.into()));
}

#[test]
fn a_default_queue_type_that_is_unknown_is_ignored_by_3_10_and_refused_by_4() {
    for file in [
        r#"{"vhosts": [{"name": "v", "metadata": {"default_queue_type": "stream"}}]}"#,
        r#"{"vhosts": [{"name": "v", "default_queue_type": "stream"}]}"#,
    ] {
        let broker = load(file).unwrap();
        // It is not stored, because a start that follows release 4 would fail on it.
        assert_eq!(
            broker.definition(Section::VirtualHosts, &["v"]).unwrap(),
            serde_json::json!({"name": "v"})
        );
        let text = "vhost 'v': default_queue_type: there are no queues of type 'stream'";
        assert_eq!(load_into(Compatibility::V4, file).err().as_deref(), Some(text));
    }
}

#[test]
fn guest_stays_on_loopback() {
    let broker = load(r#"{"users": [{"name": "guest", "password": "guest", "tags": []}]}"#).unwrap();
    assert!(broker.authenticate("guest", b"guest", true).is_ok());
    assert!(broker.authenticate("guest", b"guest", false).is_err());
}

#[test]
fn loading_twice_changes_nothing() {
    let json = r#"{"vhosts": [{"name": "v"}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false, "arguments": {}}]}"#;
    let broker = load(json).unwrap();
    let definitions = Definitions::from_json(json.as_bytes()).unwrap();
    broker.load(&definitions, NOW).unwrap();
}

/// Exports contain bindings of server-named queues, and RabbitMQ's contain amq.rabbitmq.log.
#[test]
fn bindings_of_missing_reserved_names_are_skipped() {
    let of = |source: &str, destination: &str, kind: &str| {
        format!(
            r#"{{"source": "{source}", "vhost": "v", "destination": "{destination}", "destination_type": "{kind}",
                "routing_key": "k", "arguments": {{}}}}"#
        )
    };
    let file = |bindings: &[String]| {
        format!(
            r#"{{"vhosts": [{{"name": "v"}}], "bindings": [{}],
            "queues": [{{"name": "amq.gen-1", "vhost": "v", "durable": false, "auto_delete": true, "arguments": {{}}}},
                       {{"name": "q", "vhost": "v", "durable": true, "auto_delete": false, "arguments": {{}}}}]}}"#,
            bindings.join(", ")
        )
    };
    let broker = load(&file(&[
        of("amq.direct", "amq.gen-1", "queue"),
        of("amq.direct", "amq.missing", "exchange"),
        of("amq.missing", "q", "queue"),
        of("amq.direct", "q", "queue"),
        of("amq.direct", "amq.fanout", "exchange"),
    ]));
    let bindings = broker.unwrap().export(None)["bindings"].as_array().unwrap().clone();
    let mut destinations: Vec<_> = bindings.iter().filter_map(|one| one["destination"].as_str()).collect();
    destinations.sort_unstable();
    assert_eq!(destinations, ["amq.fanout", "q"]);
    // Other names have to exist.
    for missing in
        [of("amq.direct", "nope", "queue"), of("amq.direct", "nope", "exchange"), of("nope", "q", "queue")]
    {
        let error = load(&file(&[missing])).err().unwrap();
        assert!(error.contains("no ") && error.contains("'nope'"), "{error}");
    }
}

#[test]
fn the_entry_at_fault_is_named() {
    let cases = [
        ("[]", "invalid type: sequence, expected a map at line 1 column 0"),
        (r#"{"users": {}}"#, "users: not a list"),
        (r#"{"users": [{"tags": []}]}"#, "users[0]: missing field `name`"),
        (
            r#"{"vhosts": [{"name": "a"}, {"name": 5}]}"#,
            "vhosts[1]: invalid type: integer `5`, expected a string",
        ),
        (
            r#"{"users": [{"name": "u", "password_hash": "AAAA"}]}"#,
            "user 'u': password_hash has 3 bytes, not the 36 of salt and digest",
        ),
        (
            r#"{"permissions": [{"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}]}"#,
            "permissions of user 'u' in vhost 'v': user 'u' does not exist",
        ),
        (
            r#"{"vhosts": [{"name": "v"}], "policies": [{"vhost": "v", "name": "p", "pattern": "", "definition": {"x": 1}}]}"#,
            "policy 'p' in vhost 'v': x: not a recognised policy setting",
        ),
        (
            r#"{"vhosts": [{"name": "v"}], "parameters": [{"component": "shovel", "vhost": "v", "name": "s", "value": {}}]}"#,
            "parameter 's' in vhost 'v': component 'shovel' does not exist",
        ),
        (
            r#"{"vhosts": [{"name": "v"}], "parameters": [{"component": "vhost-limits", "vhost": "v", "name": "x", "value": {}}]}"#,
            "parameter 'x' in vhost 'v': vhost-limits are under the name 'limits', not 'x'",
        ),
        (
            r#"{"queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false}]}"#,
            "queue 'q' in vhost 'v': vhost 'v' does not exist",
        ),
        (
            r#"{"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false,
                "arguments": {"x-message-ttl": -1}}]}"#,
            "queue 'q' in vhost 'v': invalid arg 'x-message-ttl' for queue 'q' in vhost 'v': {value_negative,-1}",
        ),
        (
            r#"{"vhosts": [{"name": "v"}], "exchanges": [{"name": "e", "vhost": "v", "type": "nope", "durable": true,
                "auto_delete": false}]}"#,
            "exchange 'e' in vhost 'v': unknown exchange type 'nope'",
        ),
    ];
    for (json, line) in cases {
        assert_eq!(load(json).err().as_deref(), Some(line), "{json}");
    }
}

#[test]
fn an_error_keeps_the_one_that_caused_it() {
    let cause = |json: &str| {
        let broker = Broker::new(BrokerConfig::default());
        let definitions = Definitions::from_json(json.as_bytes()).unwrap();
        let error = broker.load(&definitions, NOW).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        (error.to_string(), cause)
    };
    let (text, source) = cause(
        r#"{"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": -1}}]}"#,
    );
    assert_eq!(text, "policy 'p' in vhost '/': max-length: -1 is not a whole number of at least 0");
    assert_eq!(source.as_deref(), Some("max-length: -1 is not a whole number of at least 0"));
    let (_, source) = cause(r#"{"users": [{"name": "u", "password_hash": "AAAA", "tags": ""}]}"#);
    assert_eq!(source.as_deref(), Some("password_hash has 3 bytes, not the 36 of salt and digest"));
    let permissions = r#"{"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}"#;
    assert_eq!(cause(&format!(r#"{{"permissions": [{permissions}]}}"#)).1, None);
}

#[test]
fn a_password_that_is_not_a_string_does_not_erase_the_password() {
    for password in ["null", "5", "[]"] {
        let file = format!(r#"{{"users": [{{"name": "u", "password": {password}}}]}}"#);
        let refused = load(&file).map(drop).unwrap_err();
        assert!(refused.starts_with("users[0] ('u'): invalid type"), "{refused}");
    }
}

#[test]
fn one_user_of_an_old_rabbitmq_does_not_stop_the_load() {
    let broker = load(
        r#"{"users": [{"name": "old", "password_hash": "YWJjZODzy6NRiTHUYpNJdsHFvNQ=",
                       "hashing_algorithm": "rabbit_password_hashing_md5"},
                      {"name": "new", "password": "x"}]}"#,
    )
    .unwrap();
    assert!(
        broker.authenticate("old", b"pw", false).is_ok() && broker.authenticate("old", b"x", false).is_err()
    );
    assert!(broker.has_user("new"));
}

fn check(json: &str) -> Result<(), String> {
    let definitions = Definitions::from_json(json.as_bytes()).unwrap();
    definitions.check(Compatibility::V4).map_err(|error| error.to_string())
}

#[test]
fn mistakes_that_every_broker_would_refuse_are_found_without_one() {
    for (file, reason) in [
        (r#"{"users": [{"name": "u", "password_hash": "!"}]}"#, "user 'u': password_hash is not base64"),
        (
            r#"{"policies": [{"vhost": "v", "name": "p", "pattern": "", "definition": {"max-lenght": 5}}]}"#,
            "policy 'p' in vhost 'v': ",
        ),
        (
            r#"{"policies": [{"vhost": "v", "name": "p", "pattern": "(", "definition": {"max-length": 5}}]}"#,
            "policy 'p' in vhost 'v': ",
        ),
        (
            r#"{"permissions": [{"user": "u", "vhost": "v", "configure": "(", "write": "", "read": ""}]}"#,
            "permissions of user 'u' in vhost 'v': ",
        ),
        (
            r#"{"parameters": [{"vhost": "v", "component": "nope", "name": "n", "value": {}}]}"#,
            "parameter 'n' in vhost 'v': component 'nope' does not exist",
        ),
        (
            r#"{"vhosts": [{"name": "v", "default_queue_type": "stream"}]}"#,
            "vhost 'v': default_queue_type: there are no queues of type 'stream'",
        ),
    ] {
        let found = check(file).unwrap_err();
        assert!(found.starts_with(reason), "{found}");
    }
}

#[test]
fn null_is_not_a_valid_argument_value() {
    for arguments in [r#"{"x": null}"#, r#"{"x": [1, null]}"#, r#"{"x": {"y": null}}"#] {
        let queue = format!(
            r#"{{"vhosts": [{{"name": "v"}}], "queues": [{{"name": "q", "vhost": "v", "durable": true, "auto_delete": false,
                "arguments": {arguments}}}]}}"#
        );
        let refused = load_into(Compatibility::V3_10, &queue).map(drop).unwrap_err();
        assert_eq!(refused, "queue 'q' in vhost 'v': null_not_allowed");
    }
}

/// A client may declare a queue with such a value, and the export must be loadable.
#[test]
fn a_void_value_is_exported_as_text() {
    let table: FieldTable = [("x", FieldValue::Void)].into_iter().collect();
    let exported = json_of(&table);
    assert_eq!(exported, serde_json::json!({"x": "undefined"}));
    assert!(arguments_of(exported.as_object().unwrap()).is_ok());
}

/// The first broker has a user, a virtual host and a queue that the file only names.
#[test]
fn definitions_that_some_broker_would_load_pass_the_check() {
    let file = r#"{
        "permissions": [{"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}],
        "topic_permissions": [{"user": "u", "vhost": "v", "exchange": "amq.topic", "write": "", "read": ""}],
        "parameters": [{"component": "vhost-limits", "name": "limits", "vhost": "v", "value": {"max-queues": 0}}],
        "policies": [{"vhost": "v", "name": "p", "pattern": "", "definition": {"max-length": 5}}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false,
                    "arguments": {"x-max-length": -1}}],
        "bindings": [{"source": "amq.topic", "vhost": "v", "destination": "q", "destination_type": "queue",
                      "routing_key": "", "arguments": {}}]
    }"#;
    let before = r#"{"users": [{"name": "u"}], "vhosts": [{"name": "v"}],
        "queues": [{"name": "q", "vhost": "v", "durable": true, "auto_delete": false}]}"#;
    let broker = load_into(Compatibility::V4, before).unwrap();
    let definitions = Definitions::from_json(file.as_bytes()).unwrap();
    broker.load(&definitions, NOW).unwrap();
    assert_eq!(check(file), Ok(()));
}

/// Checks a file against another process's existing objects, and compares the result with an actual load.
fn check_beside(existing: &str, file: &str) -> Result<(), String> {
    let broker = Broker::new(BrokerConfig::default());
    let of = |json: &str| Definitions::from_json(json.as_bytes()).unwrap();
    broker.load(&of(existing), Timestamp::default()).unwrap();
    let existing = Definitions::from_map(&broker.existing()).unwrap();
    let checked =
        of(file).check_beside(&existing, None, Compatibility::default()).map_err(|error| error.to_string());
    // The check agrees with an actual load.
    let loaded = broker.load(&of(file), Timestamp::default()).map(drop).map_err(|error| error.to_string());
    assert_eq!(checked, loaded);
    checked
}

/// A queue in `/`.
fn queue(name: &str, arguments: &str) -> String {
    format!(
        r#"{{"name": "{name}", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {arguments}}}"#
    )
}

fn binding(source: &str, arguments: &str) -> String {
    format!(
        r#"{{"source": "{source}", "vhost": "/", "destination": "q", "destination_type": "queue",
             "routing_key": "", "arguments": {arguments}}}"#
    )
}

#[test]
fn mistakes_that_depend_on_existing_objects_are_found() {
    let q = queue("q", "{}");
    let headers = r#"{"name": "h", "vhost": "/", "type": "headers", "durable": true, "auto_delete": false}"#;
    let existing = format!(r#"{{"queues": [{q}], "exchanges": [{headers}]}}"#);
    for (file, reason) in [
        (format!(r#"{{"queues": [{}]}}"#, queue("new", r#"{"x-max-length": -1}"#)), "queue 'new' in vhost '/': "),
        (
            r#"{"exchanges": [{"name": "x", "vhost": "/", "type": "nope", "durable": true, "auto_delete": false}]}"#
                .to_owned(),
            "exchange 'x' in vhost '/': ",
        ),
        (format!(r#"{{"bindings": [{}]}}"#, binding("none", "{}")), "binding of 'q' in vhost '/': "),
        (
            format!(r#"{{"bindings": [{}]}}"#, binding("h", r#"{"x-match": "some"}"#)),
            "binding of 'q' in vhost '/': ",
        ),
        (format!(r#"{{"queues": [{}]}}"#, queue("q", "{}").replace("\"/\"", "\"w\"")), "queue 'q' in vhost 'w': "),
    ] {
        let found = check_beside(&existing, &file).unwrap_err();
        assert!(found.starts_with(reason), "{found}");
    }
    // An existing queue is left unchanged, and can be bound.
    let there = queue("q", r#"{"x-max-length": -1}"#);
    let bindings = [binding("h", r#"{"x-match": "any"}"#), binding("amq.topic", "{}")].join(", ");
    check_beside(&existing, &format!(r#"{{"queues": [{there}], "bindings": [{bindings}]}}"#)).unwrap();
}

#[test]
fn a_limit_on_queues_counts_existing_queues() {
    let limit = |most: u32| {
        format!(
            r#""parameters": [{{"component": "vhost-limits", "vhost": "/", "name": "limits",
                               "value": {{"max-queues": {most}}}}}]"#
        )
    };
    let (q, r, s) = (queue("q", "{}"), queue("r", "{}"), queue("s", "{}"));
    let more = format!(r#"{{"queues": [{q}, {s}]}}"#);
    // Parameters are loaded before queues. There are two queues, and a limit of one is set afterwards.
    let broker = Broker::new(BrokerConfig::default());
    for file in [format!(r#"{{"queues": [{q}, {r}]}}"#), format!("{{{}}}", limit(1))] {
        broker.load(&Definitions::from_json(file.as_bytes()).unwrap(), Timestamp::default()).unwrap();
    }
    let existing = Definitions::from_map(&broker.existing()).unwrap();
    let check = |file: &str| {
        Definitions::from_json(file.as_bytes()).unwrap().check_beside(
            &existing,
            None,
            Compatibility::default(),
        )
    };
    assert!(check(&more).unwrap_err().to_string().starts_with("queue 's' in vhost '/': "));
    check(&format!(r#"{{{}, "queues": [{q}, {s}]}}"#, limit(3))).unwrap();
}

#[test]
fn auto_delete_and_exclusive_queues_do_not_count_as_existing() {
    let broker = Broker::new(BrokerConfig::default());
    let vhost = broker.vhost("/").unwrap();
    let declare = |name, durable, exclusive, auto_delete| {
        let declare = QueueDeclare { name, durable, exclusive, auto_delete, ..Default::default() };
        vhost.declare_queue(SessionId(1), &declare, Timestamp::default()).unwrap();
    };
    declare("transient", false, true, false);
    declare("exclusive", true, true, false);
    declare("auto-delete", true, false, true);
    declare("stays", true, false, false);
    let existing = broker.existing();
    let names: Vec<_> = existing["queues"].as_array().unwrap().iter().map(|queue| &queue["name"]).collect();
    assert_eq!(names, ["stays"]);
}
