//! Health checks: 200 on success, 503 with the problem on failure.

use broker::{Body, Compatibility, Publish, QueueDeclare};
use serde_json::{Value, json};

use super::SESSION;
use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use super::messages::{publisher, take_one};

/// `GET /api/aliveness-test/{vhost}`: declares a queue, publishes to it and gets the message. RabbitMQ 4 only checks that the
/// user may open the virtual host.
pub(super) fn aliveness(call: &Call) -> ApiAnswer {
    if call.compatibility() == Compatibility::V4 {
        call.vhost()?;
        return ok();
    }
    let failed = |error| ApiError::of_operation(&error);
    let authorised = call.authorised()?;
    let declare = QueueDeclare { name: QUEUE, ..QueueDeclare::default() };
    authorised.check_read_queue(QUEUE).map_err(failed)?;
    let declared = authorised.declare_queue(SESSION, &declare, call.now()).map_err(failed)?;
    let mut publisher = publisher(&authorised);
    let publish = Publish {
        exchange: "",
        routing_key: QUEUE,
        properties: amqp::properties::NO_PROPERTIES,
        body: Body::Copied(b"test_message"),
    };
    publisher.publish(publish, call.now()).map_err(failed)?;
    publisher.flush(call.now());
    match take_one(call, &authorised, &declared.queue) {
        Some(_) => ok(),
        None => Err(ApiError::unhealthy(json!({"status": "failed", "reason": "no message came back"}))),
    }
}

/// `GET /api/health/checks/alarms`, and `local-alarms`.
pub(super) fn alarms(call: &Call) -> ApiAnswer {
    let node = call.api.process.node();
    let alarms = [("memory", node.memory_alarm), ("disk", node.disk_alarm)];
    let stand: Vec<Value> = alarms
        .iter()
        .filter(|(_, stands)| *stands)
        .map(|(resource, _)| json!({"node": node.name, "resource": resource}))
        .collect();
    if stand.is_empty() {
        return ok();
    }
    let reason = "resource alarm(s) in effect";
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason, "alarms": stand})))
}

/// `GET /api/healthchecks/node`, also with the name of the node.
pub(super) fn alarms_of_node(call: &Call) -> ApiAnswer {
    call.check_node()?;
    alarms(call)
}

/// `GET /api/health/checks/port-listener/{port}`.
pub(super) fn port(call: &Call) -> ApiAnswer {
    let port: u16 = call.at("port").parse().map_err(|_| ApiError::bad_request("Invalid port"))?;
    let ports: Vec<u16> = call.api.process.listeners().iter().map(|listener| listener.port).collect();
    if ports.contains(&port) {
        return Ok(Reply::json(json!({"status": "ok", "port": port})));
    }
    let reason = "No active listener";
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason, "missing": port, "ports": ports})))
}

/// `GET /api/health/checks/protocol-listener/{protocol}`.
pub(super) fn protocol(call: &Call) -> ApiAnswer {
    let wanted = call.at("protocol").to_ascii_lowercase();
    let protocols = protocols_of(call);
    if let Some(protocol) = protocols.iter().find(|protocol| is_name_of(&wanted, protocol)) {
        return Ok(Reply::json(json!({"status": "ok", "protocol": protocol})));
    }
    Err(no_listener(&json!(wanted), &protocols))
}

/// `GET /api/health/checks/protocol-listener/{protocols}`.
pub(super) fn protocols(call: &Call) -> ApiAnswer {
    let wanted = call.at("protocols").to_ascii_lowercase();
    let protocols = protocols_of(call);
    let is_served = |wanted: &str| protocols.iter().any(|protocol| is_name_of(wanted, protocol));
    let missing: Vec<&str> = wanted.split(',').map(str::trim).filter(|wanted| !is_served(wanted)).collect();
    if missing.is_empty() {
        return Ok(Reply::json(json!({"status": "ok", "protocols": protocols})));
    }
    Err(no_listener(&json!(missing), &protocols))
}

/// The protocols of all listeners, each once.
fn protocols_of(call: &Call) -> Vec<&'static str> {
    let mut protocols: Vec<_> =
        call.api.process.listeners().iter().map(|listener| listener.protocol).collect();
    protocols.sort_unstable();
    protocols.dedup();
    protocols
}

fn no_listener(missing: &Value, protocols: &[&str]) -> ApiError {
    let reason = "No active listener";
    ApiError::unhealthy(
        json!({"status": "failed", "reason": reason, "missing": missing, "protocols": protocols}),
    )
}

/// Whether this is one of RabbitMQ's names of a listener's protocol.
fn is_name_of(name: &str, protocol: &str) -> bool {
    let is_tls_name = |plain: &str| name.strip_prefix(plain).is_some_and(|rest| matches!(rest, "s" | "+tls"));
    name == protocol
        || protocol.strip_suffix("/ssl").is_some_and(is_tls_name)
        || protocol.strip_prefix("http/").is_some_and(|web| web.starts_with("web-") && web == name)
        || matches!((protocol, name), ("amqp", "amqp091" | "amqp0.9.1") | ("amqp/ssl", "amqp091-tls"))
}

/// Checks that always succeed in Leveret.
pub(super) fn fine(_: &Call) -> ApiAnswer {
    ok()
}

/// `GET /api/health/checks/metadata-store/initialized/with-data`.
pub(super) fn defined(call: &Call) -> ApiAnswer {
    if !call.broker()?.vhosts().is_empty() {
        return ok();
    }
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": "there are no virtual hosts"})))
}

/// `GET /api/health/checks/below-node-connection-limit`.
pub(super) fn connection_limit(call: &Call) -> ApiAnswer {
    let process = &call.api.process;
    let (most, open) = (process.connection_limit(), process.connections_in_use());
    if most.is_none_or(|most| open < most) {
        return ok();
    }
    let reason = "node connection limit is reached";
    Err(ApiError::unhealthy(
        json!({"status": "failed", "reason": reason, "connections": open, "limit": most}),
    ))
}

/// Checks of clusters, which always succeed on a single node.
pub(super) fn single(_: &Call) -> ApiAnswer {
    Ok(Reply::json(json!({"status": "ok", "reason": "single node cluster"})))
}

fn ok() -> ApiAnswer {
    Ok(Reply::json(json!({"status": "ok"})))
}

const QUEUE: &str = "aliveness-test";
