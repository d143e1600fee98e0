//! Exchanges.

use std::sync::Arc;

use broker::{ExchangeDeclare, ExchangeView, VirtualHost, json_of};
use serde_json::{Value, json};

use super::call::{ApiAnswer, Call, Reply, arguments, flag, raw, short, text};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;
use super::stats;

/// `GET /api/exchanges`, and those of a virtual host.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let mut items = Vec::new();
    for vhost in call.vhosts()? {
        items.extend(vhost.all_exchanges().into_iter().map(|view| (Arc::clone(&vhost), view)));
    }
    list(call, items, |(vhost, view)| (vhost.name(), &view.name), |(vhost, view)| show(call, vhost, view))
}

/// `GET /api/exchanges/{vhost}/{name}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let (vhost, view) = find(call)?;
    let mut shown = show(call, &vhost, &view);
    if let Some(shown) = shown.as_object_mut() {
        shown.insert("incoming".to_owned(), json!([]));
        shown.insert("outgoing".to_owned(), json!([]));
    }
    Ok(Reply::json(columns(call, shown)))
}

/// `PUT /api/exchanges/{vhost}/{name}`.
pub(super) fn declare(call: &Call) -> ApiAnswer {
    let authorised = call.authorised()?;
    let mut body = call.object()?;
    let arguments = arguments(call, &mut body)?;
    let declare = ExchangeDeclare {
        name: short("the exchange's name", call.at("name"))?,
        kind: match body.get("type") {
            // RabbitMQ's answer names the type.
            Some(Value::Null) => "null",
            _ => text(&body, "type", "direct")?,
        },
        passive: false,
        durable: flag(&body, "durable", false)?,
        auto_delete: flag(&body, "auto_delete", false)?,
        internal: flag(&body, "internal", false)?,
        arguments: raw(&arguments)?,
    };
    let is_new = authorised.vhost().exchange_view(declare.name).is_none();
    let ticket = authorised.declare_exchange(&declare)?;
    Ok(Reply::put(is_new).when_defined(ticket))
}

/// `DELETE /api/exchanges/{vhost}/{name}`.
pub(super) fn delete(call: &Call) -> ApiAnswer {
    let (_, view) = find(call)?;
    let authorised = call.authorised()?;
    authorised.check_delete_exchange(&view.name)?;
    let ticket = authorised.vhost().delete_exchange(&view.name, call.asks("if-unused"))?;
    Ok(Reply::no_content().when_defined(ticket))
}

/// The exchange named in a path, where the default exchange is called `amq.default`.
pub(super) fn name(part: &str) -> &str {
    if part == "amq.default" { "" } else { part }
}

fn find(call: &Call) -> Result<(Arc<VirtualHost>, ExchangeView), ApiError> {
    let vhost = call.vhost()?;
    let view = vhost.exchange_view(name(call.at("name"))).ok_or_else(ApiError::not_found)?;
    Ok((vhost, view))
}

fn show(call: &Call, vhost: &VirtualHost, view: &ExchangeView) -> Value {
    let mut shown = json!({
        "name": &*view.name, "vhost": vhost.name(), "type": view.kind, "durable": view.durable,
        "auto_delete": view.auto_delete, "internal": view.internal, "arguments": json_of(&view.arguments),
        "user_who_performed_action": "rmq-internal",
    });
    if let Some(shown) = shown.as_object_mut() {
        if let Some(policy) = vhost.policy_of_exchange(&view.name) {
            shown.insert("policy".to_owned(), policy.into());
        }
        if let Some(stats) = view.flow(call.now()).and_then(stats::of_exchange) {
            shown.insert("message_stats".to_owned(), stats);
        }
    }
    shown
}
