//! Virtual hosts.

use broker::{Compatibility, QueueKind, Section, VirtualHost};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, text_or_null};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;
use super::stats;
use super::totals::Sum;

/// `GET /api/vhosts`.
pub(super) fn all(call: &Call) -> ApiAnswer {
    list(call, call.visible_vhosts()?, |vhost| ("", vhost.name()), |vhost| show(call, vhost))
}

/// `GET /api/vhosts/{vhost}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    Ok(Reply::json(columns(call, show(call, &*call.vhost()?))))
}

/// `PUT /api/vhosts/{vhost}`. The user who adds one gets all permissions in it, as in RabbitMQ; the scopes of a token are
/// not the broker's to change.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    let name = call.at("vhost");
    let is_new = call.broker()?.vhost(name).is_none();
    let tags = match body.get("tags") {
        None | Some(Value::Null) => json!([]),
        Some(tags @ (Value::Array(_) | Value::String(_))) => tags.clone(),
        Some(_) => return Err(ApiError::bad_request("tags is neither a string nor a list of strings")),
    };
    let description = text_or_null(&body, "description")?;
    let mut definition = json!({"name": name, "description": description, "tags": tags});
    if call.compatibility() == Compatibility::V4 {
        definition["default_queue_type"] = default_queue_type(&body)?;
    }
    if let Some(traced) = traced(&body)? {
        definition["tracing"] = json!(traced);
    }
    call.define(Section::VirtualHosts, definition)?;
    if is_new && !call.user.is_external() {
        let all = ".*";
        call.define(
            Section::Permissions,
            json!({"vhost": name, "user": call.user.name(), "configure": all, "write": all, "read": all}),
        )?;
    }
    call.defined(Reply::put(is_new))
}

/// The requested type of queues that are declared without one.
fn default_queue_type(body: &Map<String, Value>) -> Result<Value, ApiError> {
    // An older name, which RabbitMQ 4 still reads.
    match body.get("default_queue_type").or_else(|| body.get("defaultqueuetype")) {
        None | Some(Value::Null) => Ok(json!(QueueKind::Classic.name())),
        Some(kind) if [QueueKind::Classic, QueueKind::Quorum].iter().any(|known| kind == known.name()) => {
            Ok(kind.clone())
        }
        Some(Value::String(other)) => {
            Err(ApiError::bad_request(format!("{other} is not a valid queue type")))
        }
        Some(_) => Err(ApiError::bad_request("default_queue_type is not a string")),
    }
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
    let name = call.at("vhost");
    if call.compatibility().has_vhost_deletion_protection() && is_protected(call, name) {
        return Err(ApiError::precondition_failed(format!(
            "Refusing to delete virtual host '{name}' because it is protected from deletion"
        )));
    }
    let reply = call.delete_definition(Section::VirtualHosts, &[name])?;
    for connection in call.api.process.connections() {
        if connection.vhost() == name {
            connection.close(&format!("vhost '{name}' is down"));
        }
    }
    Ok(reply)
}

/// `POST /api/vhosts/{vhost}/start/{node}`: virtual hosts run as long as the node.
pub(super) fn start(call: &Call) -> ApiAnswer {
    let (vhost, node) = (call.at("vhost"), call.at("node"));
    if node != call.api.process.node_name() {
        return Err(ApiError::bad_request(match call.compatibility() {
            Compatibility::V3_10 => format!("Request to node {node} failed with nodedown"),
            Compatibility::V4 => format!("Unknown node: {node}"),
        }));
    }
    if call.broker()?.vhost(vhost).is_none() {
        let reason = format!("Request to node {node} failed with {{no_such_vhost,<<\"{vhost}\">>}}");
        return Err(ApiError::bad_request(reason));
    }
    Ok(Reply::no_content())
}

/// `POST /api/vhosts/{vhost}/deletion/protection`.
pub(super) fn protect(call: &Call) -> ApiAnswer {
    set_protected(call, true)?.ok_or_else(|| {
        let vhost = call.at("vhost");
        ApiError::missing(format!(
            "Cannot enable deletion protection of virtual host '{vhost}' because it does not exist"
        ))
    })
}

/// `DELETE /api/vhosts/{vhost}/deletion/protection`.
pub(super) fn unprotect(call: &Call) -> ApiAnswer {
    set_protected(call, false)?.ok_or_else(ApiError::not_found)
}

/// Protects a virtual host from deletion, or no longer; `None` if it does not exist.
fn set_protected(call: &Call, protected: bool) -> Result<Option<Reply>, ApiError> {
    let definition = call.broker()?.definition(Section::VirtualHosts, &[call.at("vhost")]);
    let Some(mut definition) = definition else { return Ok(None) };
    definition[PROTECTED] = json!(protected);
    call.define(Section::VirtualHosts, definition)?;
    call.defined(Reply::no_content()).map(Some)
}

fn is_protected(call: &Call, vhost: &str) -> bool {
    let broker = call.api.broker.as_ref();
    let definition = broker.and_then(|broker| broker.definition(Section::VirtualHosts, &[vhost]));
    definition.is_some_and(|definition| definition.get(PROTECTED) == Some(&json!(true)))
}

/// The definition of a virtual host without its name, in the form of RabbitMQ 4.
pub(super) fn metadata(definition: &Value) -> Value {
    let part = |key: &str, default: Value| definition.get(key).cloned().unwrap_or(default);
    let tags = match part("tags", json!([])) {
        Value::String(tags) => tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect(),
        tags => tags,
    };
    let mut metadata = json!({
        "description": part("description", json!("")), "tags": tags,
        "default_queue_type": part("default_queue_type", json!(QueueKind::Classic.name())),
    });
    if let Some(protected) = definition.get(PROTECTED) {
        metadata[PROTECTED] = protected.clone();
    }
    metadata
}

fn show(call: &Call, vhost: &VirtualHost) -> Value {
    let definition =
        call.api.broker.as_ref().and_then(|broker| broker.definition(Section::VirtualHosts, &[vhost.name()]));
    let mut metadata = metadata(&definition.unwrap_or_default());
    let mut shown = Map::new();
    let mut put = |key: &str, value: Value| shown.insert(key.to_owned(), value);
    put("name", json!(vhost.name()));
    put("description", metadata["description"].clone());
    put("tags", metadata["tags"].clone());
    match call.compatibility() {
        Compatibility::V3_10 => {
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.retain(|key, _| OF_3_10.contains(&&**key));
            }
            put("default_queue_type", json!("undefined"));
        }
        Compatibility::V4 => {
            put("default_queue_type", metadata["default_queue_type"].clone());
            put(PROTECTED, json!(is_protected(call, vhost.name())));
        }
    }
    put("metadata", metadata);
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

/// The keys of a virtual host's metadata in RabbitMQ 3.10.
const OF_3_10: [&str; 2] = ["description", "tags"];

/// The key of a virtual host's definition that forbids its deletion.
const PROTECTED: &str = "protected_from_deletion";
