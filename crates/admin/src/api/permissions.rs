//! Permissions and topic permissions.

use broker::{Compatibility, Section};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, require, text};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;

/// `GET /api/permissions`, and those of a virtual host or of a user.
pub(super) fn all(call: &Call) -> ApiAnswer {
    show_all(call, Section::Permissions)
}

/// `GET /api/permissions/{vhost}/{user}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let names = [call.at("vhost"), call.at("user")];
    let entry = call.broker()?.definition(Section::Permissions, &names);
    Ok(Reply::json(columns(call, entry.ok_or_else(ApiError::not_found)?)))
}

/// `PUT /api/permissions/{vhost}/{user}`.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["configure", "write", "read"])?;
    let mut entry = entry(call)?;
    for key in ["configure", "write", "read"] {
        entry.insert(key.to_owned(), text(&body, key, "")?.into());
    }
    let is_new =
        call.broker()?.definition(Section::Permissions, &[call.at("vhost"), call.at("user")]).is_none();
    call.define(Section::Permissions, Value::Object(entry))?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/permissions/{vhost}/{user}`.
pub(super) fn clear(call: &Call) -> ApiAnswer {
    call.delete_definition(Section::Permissions, &[call.at("vhost"), call.at("user")])
}

/// `GET /api/topic-permissions`, and those of a virtual host, of a user, or both.
pub(super) fn all_topic(call: &Call) -> ApiAnswer {
    let is_of_one = !call.at("vhost").is_empty() && !call.at("user").is_empty();
    let broker = call.broker()?;
    let names = [call.at("vhost"), call.at("user")];
    if is_of_one && broker.definitions_of(Section::TopicPermissions, &names).is_empty() {
        return Err(ApiError::not_found());
    }
    show_all(call, Section::TopicPermissions)
}

/// `PUT /api/topic-permissions/{vhost}/{user}`.
pub(super) fn set_topic(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["exchange", "write", "read"])?;
    let mut entry = entry(call)?;
    for key in ["exchange", "write", "read"] {
        entry.insert(key.to_owned(), text(&body, key, "")?.into());
    }
    let exchange = text(&body, "exchange", "")?;
    // RabbitMQ 3.10 also takes it for exchanges that are still to come.
    if call.compatibility() == Compatibility::V4 && call.vhost()?.exchange_view(exchange).is_none() {
        return Err(ApiError::bad_request(json!(["no_such_exchange", exchange])));
    }
    // As in RabbitMQ, the user's restrictions are one thing, whatever the exchanges.
    let names = [call.at("vhost"), call.at("user")];
    let is_new = call.broker()?.definitions_of(Section::TopicPermissions, &names).is_empty();
    call.define(Section::TopicPermissions, Value::Object(entry))?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/topic-permissions/{vhost}/{user}`, or of one exchange.
pub(super) fn clear_topic(call: &Call) -> ApiAnswer {
    let (vhost, user) = (call.at("vhost"), call.at("user"));
    if !call.at("exchange").is_empty() {
        return call.delete_definition(Section::TopicPermissions, &[vhost, user, call.at("exchange")]);
    }
    let broker = call.broker()?;
    let entries = broker.definitions_of(Section::TopicPermissions, &[vhost, user]);
    if entries.is_empty() {
        return Err(ApiError::not_found());
    }
    for exchange in entries.iter().filter_map(|entry| entry["exchange"].as_str()) {
        broker.delete_definition(Section::TopicPermissions, &[vhost, user, exchange], call.now());
    }
    call.defined(Reply::no_content())
}

/// A new entry with virtual host and user filled in; fails with 400 unless both exist.
fn entry(call: &Call) -> Result<Map<String, Value>, ApiError> {
    let (vhost, user) = (call.at("vhost"), call.at("user"));
    let broker = call.broker()?;
    if broker.vhost(vhost).is_none() || broker.definition(Section::Users, &[user]).is_none() {
        return Err(ApiError::bad_request("vhost_or_user_not_found"));
    }
    Ok(Map::from_iter([("vhost".to_owned(), json!(vhost)), ("user".to_owned(), json!(user))]))
}

fn show_all(call: &Call, section: Section) -> ApiAnswer {
    let broker = call.broker()?;
    let (vhost, user) = (call.at("vhost"), call.at("user"));
    if !vhost.is_empty() && broker.vhost(vhost).is_none()
        || !user.is_empty() && broker.definition(Section::Users, &[user]).is_none()
    {
        return Err(ApiError::not_found());
    }
    let mut entries = broker.definitions_of(section, &[]);
    entries.retain(|entry| {
        (vhost.is_empty() || entry["vhost"] == vhost) && (user.is_empty() || entry["user"] == user)
    });
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let items: Vec<_> =
        entries.into_iter().map(|entry| ((text(&entry, "user"), text(&entry, "vhost")), entry)).collect();
    list(call, items, |((user, vhost), _)| (user, vhost), |(_, entry)| entry.clone())
}
