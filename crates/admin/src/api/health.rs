//! Health checks: 200 on success, 503 with the problem on failure.

use broker::{Body, Publish, QueueDeclare};
use serde_json::{Value, json};

use super::SESSION;
use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use super::messages::{publisher, take_one};

/// `GET /api/aliveness-test/{vhost}`: declares a queue, publishes to it and gets the message.
pub(super) fn aliveness(call: &Call) -> ApiAnswer {
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

/// `GET /api/health/checks/port-listener/{port}`.
pub(super) fn port(call: &Call) -> ApiAnswer {
    let port: u16 = call.at("port").parse().map_err(|_| ApiError::bad_request("port is not a number"))?;
    let ports: Vec<u16> = call.api.process.listeners().iter().map(|listener| listener.port).collect();
    if ports.contains(&port) {
        return Ok(Reply::json(json!({"status": "ok", "port": port})));
    }
    let reason = "No active listener";
    Err(ApiError::unhealthy(json!({"status": "failed", "reason": reason, "missing": port, "ports": ports})))
}

/// `GET /api/health/checks/protocol-listener/{protocol}`.
pub(super) fn protocol(call: &Call) -> ApiAnswer {
    let asked = call.at("protocol");
    let wanted = asked.to_ascii_lowercase();
    let protocols: Vec<&str> =
        call.api.process.listeners().iter().map(|listener| listener.protocol).collect();
    if let Some(protocol) = protocols.iter().find(|protocol| is_name_of(&wanted, protocol)) {
        return Ok(Reply::json(json!({"status": "ok", "protocol": protocol})));
    }
    let reason = "No active listener";
    let body = json!({"status": "failed", "reason": reason, "missing": asked, "protocols": protocols});
    Err(ApiError::unhealthy(body))
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

/// Checks of clusters, which always succeed on a single node.
pub(super) fn single(_: &Call) -> ApiAnswer {
    Ok(Reply::json(json!({"status": "ok", "reason": "single node cluster"})))
}

fn ok() -> ApiAnswer {
    Ok(Reply::json(json!({"status": "ok"})))
}

const QUEUE: &str = "aliveness-test";
