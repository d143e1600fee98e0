//! Virtual hosts.

use broker::{Section, VirtualHost};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, text};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;
use super::stats;
use super::totals::Sum;

/// `GET /api/vhosts`.
pub(super) fn all(call: &Call) -> ApiAnswer {
    list(call, call.vhosts()?, |vhost| ("", vhost.name()), |vhost| show(call, vhost))
}

/// `GET /api/vhosts/{vhost}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    Ok(Reply::json(columns(call, show(call, &*call.vhost()?))))
}

/// `PUT /api/vhosts/{vhost}`. The user who adds one gets all permissions in it, as in RabbitMQ.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    let name = call.at("vhost");
    let _changing = call.api.changes.lock();
    let is_new = call.broker()?.vhost(name).is_none();
    let tags = match body.get("tags") {
        None | Some(Value::Null) => json!([]),
        Some(tags @ (Value::Array(_) | Value::String(_))) => tags.clone(),
        Some(_) => return Err(ApiError::bad_request("tags is neither a string nor a list of strings")),
    };
    let description = text(&body, "description", "")?;
    let mut definition = json!({"name": name, "description": description, "tags": tags});
    if let Some(traced) = traced(&body)? {
        definition["tracing"] = json!(traced);
    }
    call.define(Section::VirtualHosts, definition)?;
    if is_new {
        let all = ".*";
        call.define(
            Section::Permissions,
            json!({"vhost": name, "user": call.user.name(), "configure": all, "write": all, "read": all}),
        )?;
    }
    call.defined(Reply::put(is_new))
}

/// The requested state of tracing, if given. As in RabbitMQ, a boolean or the same as a string.
fn traced(body: &Map<String, Value>) -> Result<Option<bool>, ApiError> {
    match body.get("tracing") {
        None => Ok(None),
        Some(Value::Bool(traced)) => Ok(Some(*traced)),
        Some(Value::String(text)) if text == "true" => Ok(Some(true)),
        Some(Value::String(text)) if text == "false" => Ok(Some(false)),
        Some(other) => Err(ApiError::bad_request(json!(["not_boolean", other]))),
    }
}

/// `DELETE /api/vhosts/{vhost}`.
pub(super) fn remove(call: &Call) -> ApiAnswer {
    let _changing = call.api.changes.lock();
    let name = call.at("vhost");
    let reply = call.undefine(Section::VirtualHosts, &[name])?;
    for connection in call.api.process.connections() {
        if connection.vhost() == name {
            connection.close(&format!("vhost '{name}' is down"));
        }
    }
    Ok(reply)
}

fn show(call: &Call, vhost: &VirtualHost) -> Value {
    let definition =
        call.api.broker.as_ref().and_then(|broker| broker.definition(Section::VirtualHosts, &[vhost.name()]));
    let part = |key: &str, default: Value| {
        definition.as_ref().and_then(|definition| definition.get(key).cloned()).unwrap_or(default)
    };
    let description = part("description", json!(""));
    let tags = match part("tags", json!([])) {
        Value::String(tags) => tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect(),
        tags => tags,
    };
    let mut shown = Map::new();
    let mut put = |key: &str, value: Value| shown.insert(key.to_owned(), value);
    put("name", json!(vhost.name()));
    put("description", description.clone());
    put("tags", tags.clone());
    put("default_queue_type", json!("undefined"));
    put("metadata", json!({"description": description, "tags": tags}));
    put("tracing", json!(vhost.is_traced()));
    put("cluster_state", json!({call.api.process.node_name(): "running"}));
    let totals =
        call.api.broker.as_ref().map(|broker| call.api.totals.get(&call.api.queues, broker, call.now()));
    let Sum { ready, unacknowledged, counts } =
        totals.map(|totals| totals.of(vhost.name())).unwrap_or_default();
    put("messages", json!(ready + unacknowledged));
    put("messages_ready", json!(ready));
    put("messages_unacknowledged", json!(unacknowledged));
    if let Some(stats) = stats::of_queues(&counts) {
        put("message_stats", stats);
    }
    Value::Object(shown)
}
