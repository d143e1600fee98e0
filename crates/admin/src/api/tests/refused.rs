//! Messages, arguments and limits that are refused, and those that are accepted.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use broker::{Compatibility, Section};

use super::*;

const DEFAULT_EXCHANGE: &[(&str, &str)] = &[("vhost", "/"), ("name", "amq.default")];

fn status(answer: call::ApiAnswer) -> StatusCode {
    match answer {
        Ok(reply) => reply.status,
        Err(error) => error.into_response().status(),
    }
}

fn message(properties: &Value) -> Value {
    json!({"properties": properties, "routing_key": "q", "payload": "x", "payload_encoding": "string"})
}

fn publish(api: &Arc<Api>, message: &Value) -> StatusCode {
    status(messages::publish(&call(api, DEFAULT_EXCHANGE, &[], message)))
}

#[test]
fn properties_that_no_frame_takes_are_not_published() {
    let (broker, api) = world();
    declare(&broker, "q");
    let headers = |bytes: usize| message(&json!({"headers": {"h": "x".repeat(bytes)}}));
    // Around the text: frame 8, class, weight and size 12, flags 2, length 4, key 2, letter 1, length 4.
    let most = FRAME_MAX as usize - 33;
    assert_eq!(publish(&api, &headers(most)), StatusCode::OK);
    assert_eq!(publish(&api, &headers(most + 1)), StatusCode::BAD_REQUEST);
    assert_eq!(publish(&api, &headers(most * 10)), StatusCode::BAD_REQUEST);
    assert_eq!(broker.vhost("/").unwrap().find_queue("q").unwrap().message_count(), 1);
}

#[test]
fn properties_are_not_read_if_they_are_very_long() {
    let (broker, api) = world();
    declare(&broker, "q");
    let zeros = vec![0; 1 << 20];
    assert_eq!(publish(&api, &message(&json!({"headers": {"a": zeros}}))), StatusCode::BAD_REQUEST);
    let mut others = message(&json!({}));
    others["unknown"] = json!(zeros);
    assert_eq!(publish(&api, &others), StatusCode::OK);
}

#[test]
fn nothing_is_published_while_an_alarm_stands() {
    let broker = Broker::new(BrokerConfig::default());
    let process = Arc::new(Quiet::default());
    let api = Api::new(Some(Arc::clone(&broker)), Arc::clone(&process) as Arc<dyn Process>);
    declare(&broker, "q");
    process.alarm.store(true, Ordering::Relaxed);
    assert_eq!(publish(&api, &message(&json!({}))), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(broker.vhost("/").unwrap().find_queue("q").unwrap().message_count(), 0);
    process.alarm.store(false, Ordering::Relaxed);
    assert_eq!(publish(&api, &message(&json!({}))), StatusCode::OK);
}

#[test]
fn arguments_that_no_client_could_send_are_refused() {
    let (broker, api) = world();
    declare(&broker, "q");
    let with = |count: usize| {
        let arguments: serde_json::Map<_, _> = (0..count).map(|n| (format!("k{n}"), json!(n))).collect();
        json!({"arguments": arguments})
    };
    let names = [("vhost", "/"), ("name", "new"), ("source", "amq.headers"), ("destination", "q")];
    let routes: [fn(&Call) -> call::ApiAnswer; 3] = [queues::declare, exchanges::declare, bindings::bind];
    for (at, run) in routes.into_iter().enumerate() {
        let answer = |count| status(run(&call(&api, &names, &[], &with(count))));
        assert_eq!(answer(50_000), StatusCode::BAD_REQUEST, "route {at}");
        assert_eq!(answer(50), StatusCode::CREATED, "route {at}");
    }
}

#[test]
fn a_limit_that_is_not_set_can_be_lifted() {
    let (_, api) = world();
    let of = |key: &'static str, value: &str| {
        let names = [(key, value), ("name", if key == "user" { "max-connections" } else { "max-queues" })];
        let call = call(&api, &names, &[], &json!({}));
        status(if key == "user" { limits::clear_of_user(&call) } else { limits::clear_of_vhost(&call) })
    };
    assert_eq!(of("user", "guest"), StatusCode::NO_CONTENT);
    assert_eq!(of("vhost", "/"), StatusCode::NO_CONTENT);
    assert_eq!(of("user", "nobody"), StatusCode::NOT_FOUND);
    assert_eq!(of("vhost", "nowhere"), StatusCode::NOT_FOUND);
}

#[test]
fn virtual_hosts_count_only_messages_of_their_own_queues() {
    let (broker, api) = world();
    declare(&broker, "q");
    assert!(vhosts::set(&call(&api, &[("vhost", "other")], &[], &json!({}))).is_ok());
    assert_eq!(publish(&api, &message(&json!({}))), StatusCode::OK);
    let all = shown(vhosts::all(&call(&api, &[], &[], &json!({}))));
    let held = |at: usize| (all[at]["name"].as_str(), all[at]["messages_ready"].as_u64());
    assert_eq!((held(0), held(1)), ((Some("/"), Some(1)), (Some("other"), Some(0))));
}

/// With 3.10 there is no request that lifts the protection, which definitions of a RabbitMQ 4 or an earlier start may have set.
#[test]
fn a_protected_virtual_host_is_deleted_where_protection_cannot_be_lifted() {
    let cases = [
        (Compatibility::V3_10, StatusCode::NO_CONTENT),
        (Compatibility::V4, StatusCode::PRECONDITION_FAILED),
    ];
    for (compatibility, expected) in cases {
        let broker = Broker::new(BrokerConfig { compatibility, ..BrokerConfig::default() });
        let api = Api::new(Some(Arc::clone(&broker)), Arc::new(Quiet::default()));
        let guarded = json!({"name": "v", "metadata": {"protected_from_deletion": true}});
        broker.define(Section::VirtualHosts, guarded, Timestamp(1)).unwrap();
        assert_eq!(status(vhosts::remove(&call(&api, &[("vhost", "v")], &[], &json!({})))), expected);
        assert_eq!(broker.vhost("v").is_none(), compatibility == Compatibility::V3_10);
    }
}

#[test]
fn the_limit_of_connections_is_reached_when_no_more_fits() {
    for (connection_limit, expected) in
        [(None, StatusCode::OK), (Some(1), StatusCode::OK), (Some(0), StatusCode::SERVICE_UNAVAILABLE)]
    {
        let process = Arc::new(Quiet { connection_limit, ..Quiet::default() });
        let api = Api::new(Some(Broker::new(BrokerConfig::default())), process);
        assert_eq!(status(health::connection_limit(&call(&api, &[], &[], &json!({})))), expected);
    }
}

#[test]
fn paths_of_this_node_alone_exist() {
    let (_broker, api) = world();
    let routes: [fn(&Call) -> call::ApiAnswer; 2] = [health::alarms_of_node, overview::reset];
    for route in routes {
        let at = |names: &[(&'static str, &str)]| status(route(&call(&api, names, &[], &json!({}))));
        assert!(at(&[]).is_success() && at(&[("node", "leveret@here")]).is_success());
        assert_eq!(at(&[("node", "leveret@there")]), StatusCode::NOT_FOUND);
    }
}
