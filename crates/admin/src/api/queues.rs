//! Queues.

use broker::{Compatibility, PriorityCounts, QueueDeclare, QueueKind, VirtualHost, json_of};
use serde_json::{Map, Value, json};

use super::SESSION;
use super::call::{ApiAnswer, Call, Reply, arguments, flag, raw, short, text};
use super::connections::details;
use super::consumers::consumers_of_queue;
use super::error::ApiError;
use super::listing::list_sorted;
use super::overview::columns;
use super::snapshot::{CollectedItem, of_vhost};
use super::stats;

/// `GET /api/queues`, and those of a virtual host.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let broker = call.broker()?;
    let vhosts = call.vhosts()?;
    let queues = call.api.queues.get(broker);
    let show = |listed: &CollectedItem| show(call, listed);
    if let [vhost] = &vhosts[..] {
        return list_sorted(call, of_vhost(&queues, vhost.name()), CollectedItem::key, show);
    }
    if vhosts.len() == broker.vhosts().len() {
        return list_sorted(call, &queues, CollectedItem::key, show);
    }
    let seen = vhosts.iter().flat_map(|vhost| of_vhost(&queues, vhost.name()));
    let seen: Vec<CollectedItem> = seen.cloned().collect();
    list_sorted(call, &seen, CollectedItem::key, show)
}

/// `GET /api/queues/{vhost}/{name}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let listed = find(call)?;
    let mut shown = show(call, &listed);
    if let Some(shown) = shown.as_object_mut() {
        let consumers = consumers_of_queue(call, listed.vhost.name(), &listed.queue);
        shown.insert("consumer_details".to_owned(), consumers.into());
        shown.insert("incoming".to_owned(), json!([]));
        shown.insert("deliveries".to_owned(), json!([]));
    }
    Ok(Reply::json(columns(call, shown)))
}

/// `PUT /api/queues/{vhost}/{name}`.
pub(super) fn declare(call: &Call) -> ApiAnswer {
    let authorised = call.authorised()?;
    let mut body = call.object()?;
    let arguments = arguments(call, &mut body)?;
    check_node(call, &body)?;
    let declare = QueueDeclare {
        name: short("the queue's name", call.at("name"))?,
        passive: false,
        durable: flag(&body, "durable", false)?,
        exclusive: flag(&body, "exclusive", false)?,
        auto_delete: flag(&body, "auto_delete", false)?,
        arguments: raw(&arguments)?,
        type_name: None,
        capacity: None,
    };
    if declare.exclusive {
        return Err(ApiError::bad_request(
            "an exclusive queue would be gone with the answer to this request",
        ));
    }
    let is_new = authorised.vhost().find_queue(declare.name).is_none();
    let declared = authorised.declare_queue(SESSION, &declare, call.now())?;
    Ok(Reply::put(is_new).when_defined(declared.ticket))
}

/// Refuses to declare a queue on a node other than this one. As in RabbitMQ, the host may be omitted.
fn check_node(call: &Call, body: &Map<String, Value>) -> Result<(), ApiError> {
    let own = call.api.process.node_name();
    let node = text(body, "node", own)?;
    let is_own = node == own || own.split_once('@').is_some_and(|(name, _)| name == node);
    if is_own { Ok(()) } else { Err(ApiError::bad_request(format!("Node {node} is not a cluster member"))) }
}

/// `DELETE /api/queues/{vhost}/{name}`.
pub(super) fn delete(call: &Call) -> ApiAnswer {
    let listed = find(call)?;
    let name = listed.queue.name();
    let authorised = call.authorised()?;
    authorised.check_delete_queue(name)?;
    let (_, ticket) =
        authorised.vhost().delete_queue(SESSION, name, call.asks("if-unused"), call.asks("if-empty"))?;
    Ok(Reply::no_content().when_defined(ticket))
}

/// `DELETE /api/queues/{vhost}/{name}/contents`.
pub(super) fn purge(call: &Call) -> ApiAnswer {
    let listed = find(call)?;
    let authorised = call.authorised()?;
    authorised.check_read_queue(listed.queue.name())?;
    let (_, until) = authorised.vhost().purge(SESSION, listed.queue.name())?;
    Ok(Reply::no_content().when_stored(until))
}

/// `POST /api/queues/{vhost}/{name}/actions`: does nothing, since there are no mirrors to synchronise. RabbitMQ 4 has no
/// mirrors either.
pub(super) fn act(call: &Call) -> ApiAnswer {
    find(call)?;
    let has_mirrors = call.compatibility() == Compatibility::V3_10;
    match call.object()?.get("action") {
        Some(Value::String(action)) if has_mirrors && matches!(&**action, "sync" | "cancel_sync") => {
            Ok(Reply::no_content())
        }
        Some(other) => Err(ApiError::bad_request(json!(["unknown", other]))),
        None => Err(ApiError::key_missing(&["action"])),
    }
}

fn find(call: &Call) -> Result<CollectedItem, ApiError> {
    let vhost = call.vhost()?;
    let queue = vhost.find_queue(call.at("name")).ok_or_else(ApiError::not_found)?;
    Ok(CollectedItem { vhost, queue })
}

fn show(call: &Call, listed: &CollectedItem) -> Value {
    let CollectedItem { vhost, queue } = listed;
    let properties = queue.properties();
    let (view, counts) = queue.view_counted(call.now());
    let mut shown = Map::new();
    let mut put = |key: &str, value: Value| shown.insert(key.to_owned(), value);
    put("name", json!(&**queue.name()));
    put("vhost", json!(vhost.name()));
    put("node", json!(call.api.process.node_name()));
    put("type", json!(queue.type_name()));
    put("state", json!("running"));
    put("durable", json!(properties.durable));
    put("auto_delete", json!(properties.auto_delete));
    put("exclusive", json!(properties.owner.is_some()));
    put("arguments", json_of(&queue.own_arguments()));
    put("messages", json!(view.ready + view.unacknowledged));
    put("messages_ready", json!(view.ready));
    put("messages_unacknowledged", json!(view.unacknowledged));
    put("message_bytes_ready", json!(view.ready_bytes));
    put("messages_paged_out", json!(view.paged));
    put("messages_ram", json!(view.ready.saturating_sub(view.paged) + view.unacknowledged));
    put("consumers", json!(view.consumers));
    let (active, exclusive) = queue.special_consumers();
    put("single_active_consumer_tag", json!(active));
    put("exclusive_consumer_tag", json!(exclusive));
    match call.compatibility() {
        Compatibility::V3_10 => {
            put("recoverable_slaves", Value::Null);
        }
        Compatibility::V4 => {
            put("internal", json!(false));
            put("internal_owner", json!(false));
        }
    }
    if queue.kind() == QueueKind::Quorum {
        let node = call.api.process.node_name();
        put("leader", json!(node));
        put("members", json!([node]));
        put("online", json!([node]));
    }
    if let Some(stats) = counts.as_ref().and_then(stats::of_queues) {
        put("message_stats", stats);
    }
    put_policies(call, vhost, listed, &mut put);
    put_priorities(listed, &mut put);
    if let Some(owner) = properties.owner.and_then(|owner| call.api.process.connection(owner.0)) {
        put("owner_pid_details", details(&*owner));
    }
    Value::Object(shown)
}

/// The fields of quorum queues of RabbitMQ 4.
fn put_priorities(listed: &CollectedItem, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    let Some(PriorityCounts { by_priority, returned }) = listed.queue.priorities() else { return };
    let limit = listed.queue.delivery_limit();
    put("delivery_limit", limit.map_or_else(|| json!("unlimited"), |limit| json!(limit)));
    put("messages_active_priorities", json!(by_priority.len()));
    let counts = by_priority.iter().map(|(priority, messages)| (priority.to_string(), json!(messages)));
    put("messages_by_priority", Value::Object(counts.collect()));
    put("messages_ready_returned", json!(returned));
}

fn put_policies(
    call: &Call,
    vhost: &VirtualHost,
    listed: &CollectedItem,
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
) {
    let Some(broker) = &call.api.broker else { return };
    let (policy, operator, definition) = broker.policies_of_queue(vhost, &listed.queue);
    put("policy", json!(policy));
    put("operator_policy", json!(operator));
    put("effective_policy_definition", definition);
}
