//! Replicas of quorum queues: a quorum queue has one, on this node, as on a RabbitMQ 4 that is not part of a cluster.

use axum::http::StatusCode;
use broker::QueueKind;
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, require};
use super::error::ApiError;

/// `GET /api/queues/quorum/{vhost}/{name}/status`. There is no Raft log whose positions could be shown.
pub(super) fn status(call: &Call) -> ApiAnswer {
    match kind(call) {
        None => Err(ApiError::not_found()),
        Some(QueueKind::Quorum) => Ok(Reply::json(json!([{
            "Node Name": call.api.process.node_name(), "Raft State": "leader", "Membership": "voter",
        }]))),
        Some(_) => Err(ApiError::unhealthy(json!({"status": "failed", "reason": OTHER_KIND}))),
    }
}

/// `POST /api/queues/quorum/{vhost}/{name}/replicas/add`: the replica on this node is there already.
pub(super) fn add(call: &Call) -> ApiAnswer {
    check_node(call)?;
    match kind(call) {
        None => Err(ApiError::not_yet("not_found")),
        Some(QueueKind::Quorum) => Ok(Reply::no_content()),
        Some(_) => Err(ApiError::not_yet(OTHER_KIND)),
    }
}

/// `DELETE /api/queues/quorum/{vhost}/{name}/replicas/delete`: the last replica stays.
pub(super) fn remove(call: &Call) -> ApiAnswer {
    let kind = kind(call).ok_or_else(ApiError::not_found)?;
    check_node(call)?;
    Err(ApiError::not_yet(if kind == QueueKind::Quorum { "last_node" } else { OTHER_KIND }))
}

/// `POST /api/queues/quorum/replicas/on/{node}/grow`: all quorum queues are on this node already.
pub(super) fn grow(call: &Call) -> ApiAnswer {
    require(&call.object()?, &["vhost_pattern", "queue_pattern", "strategy"])?;
    call.check_node()?;
    Ok(Reply::no_content())
}

/// `DELETE /api/queues/quorum/replicas/on/{node}/shrink`: accepted, and the last replicas stay.
pub(super) fn shrink(call: &Call) -> ApiAnswer {
    call.check_node()?;
    Ok(Reply { status: StatusCode::ACCEPTED, ..Reply::no_content() })
}

fn kind(call: &Call) -> Option<QueueKind> {
    Some(call.broker().ok()?.vhost(call.at("vhost"))?.find_queue(call.at("name"))?.kind())
}

/// The body has to name this node.
fn check_node(call: &Call) -> Result<(), ApiError> {
    let body: Map<String, Value> = call.object()?;
    require(&body, &["node"])?;
    match body["node"].as_str() == Some(call.api.process.node_name()) {
        true => Ok(()),
        false => Err(ApiError::bad_request("Node is not a cluster member")),
    }
}

const OTHER_KIND: &str = "classic_queue_not_supported";
