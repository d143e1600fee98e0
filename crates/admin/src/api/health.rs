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
    let wanted = match asked.to_ascii_lowercase().as_str() {
        "amqp" | "amqp091" | "amqp0.9.1" => "amqp".to_owned(),
        "amqps" | "amqp091-tls" | "amqp/ssl" | "amqp+tls" => "amqp/ssl".to_owned(),
        "mqtts" | "mqtt/ssl" | "mqtt+tls" => "mqtt/ssl".to_owned(),
        "stomps" | "stomp/ssl" | "stomp+tls" => "stomp/ssl".to_owned(),
        "web-mqtt" | "http/web-mqtt" => "http/web-mqtt".to_owned(),
        "web-stomp" | "http/web-stomp" => "http/web-stomp".to_owned(),
        other => other.to_owned(),
    };
    let protocols: Vec<&str> =
        call.api.process.listeners().iter().map(|listener| listener.protocol).collect();
    if protocols.contains(&wanted.as_str()) {
        return Ok(Reply::json(json!({"status": "ok", "protocol": wanted})));
    }
    let reason = "No active listener";
    let body = json!({"status": "failed", "reason": reason, "missing": asked, "protocols": protocols});
    Err(ApiError::unhealthy(body))
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
