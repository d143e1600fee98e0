//! Limits of virtual hosts and of users.

use broker::{Compatibility, Section};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, number, require};
use super::error::ApiError;
use super::listing::list;

/// Component and name of the parameter that holds a virtual host's limits.
const OF_VHOST: [&str; 2] = ["vhost-limits", "limits"];

/// `GET /api/vhost-limits`, and those of a virtual host.
pub(super) fn of_vhosts(call: &Call) -> ApiAnswer {
    let mut items = Vec::new();
    for vhost in call.visible_vhosts()? {
        let limits = limits_of_vhost(call, vhost.name())?;
        if !limits.is_empty() {
            items.push((vhost.name().to_owned(), limits));
        }
    }
    list(call, items, |(vhost, _)| ("", vhost), |(vhost, value)| json!({"vhost": vhost, "value": value}))
}

/// `PUT /api/vhost-limits/{vhost}/{name}`.
pub(super) fn set_of_vhost(call: &Call) -> ApiAnswer {
    call.vhost()?;
    let value = value(call)?;
    let mut limits = limits_of_vhost(call, call.at("vhost"))?;
    limits.insert(call.at("name").to_owned(), value);
    put_of_vhost(call, limits)?;
    call.defined(Reply::no_content())
}

/// `DELETE /api/vhost-limits/{vhost}/{name}`. As in RabbitMQ, succeeds even if the limit was not set.
pub(super) fn clear_of_vhost(call: &Call) -> ApiAnswer {
    call.vhost()?;
    let mut limits = limits_of_vhost(call, call.at("vhost"))?;
    if limits.remove(call.at("name")).is_none() {
        return call.defined(Reply::no_content());
    }
    if limits.is_empty() {
        return call.delete_definition(Section::Parameters, &[call.at("vhost"), OF_VHOST[0], OF_VHOST[1]]);
    }
    put_of_vhost(call, limits)?;
    call.defined(Reply::no_content())
}

/// `GET /api/user-limits`, and those of a user.
pub(super) fn of_users(call: &Call) -> ApiAnswer {
    let wanted = call.at("user");
    let broker = call.broker()?;
    let shows_any = call.compatibility() == Compatibility::V3_10 || wanted.is_empty();
    if !shows_any && !call.user.sees_connections_of(wanted) {
        return Err(ApiError::not_authorised("User not authorised to access object"));
    }
    if !wanted.is_empty() && broker.definition(Section::Users, &[wanted]).is_none() {
        return Err(ApiError::not_found());
    }
    let mut items = Vec::new();
    for user in broker.definitions_of(Section::Users, &[]) {
        let limits = user["limits"].as_object().cloned().unwrap_or_default();
        let name = user["name"].as_str().unwrap_or_default();
        if !limits.is_empty() && (wanted.is_empty() || wanted == name) {
            items.push((name.to_owned(), limits));
        }
    }
    list(call, items, |(user, _)| ("", user), |(user, value)| json!({"user": user, "value": value}))
}

/// `PUT /api/user-limits/{user}/{name}`.
pub(super) fn set_of_user(call: &Call) -> ApiAnswer {
    let value = value(call)?;
    change_of_user(call, |limits| _ = limits.insert(call.at("name").to_owned(), value))
}

/// `DELETE /api/user-limits/{user}/{name}`. As in RabbitMQ, succeeds even if the limit was not set.
pub(super) fn clear_of_user(call: &Call) -> ApiAnswer {
    change_of_user(call, |limits| _ = limits.remove(call.at("name")))
}

fn change_of_user(call: &Call, change: impl FnOnce(&mut Map<String, Value>)) -> ApiAnswer {
    let user = call.broker()?.definition(Section::Users, &[call.at("user")]);
    let mut user = user.ok_or_else(ApiError::not_found)?;
    let mut limits = user["limits"].as_object().cloned().unwrap_or_default();
    change(&mut limits);
    user["limits"] = Value::Object(limits);
    call.define(Section::Users, user)?;
    call.defined(Reply::no_content())
}

fn value(call: &Call) -> Result<Value, ApiError> {
    let body = call.object()?;
    require(&body, &["value"])?;
    let value = body.get("value").and_then(number);
    value.map(Value::from).ok_or_else(|| ApiError::bad_request("value is not a number"))
}

/// The limits of a virtual host, as they are in definitions.
pub(super) fn limits_of_vhost(call: &Call, vhost: &str) -> Result<Map<String, Value>, ApiError> {
    let entry = call.broker()?.definition(Section::Parameters, &[vhost, OF_VHOST[0], OF_VHOST[1]]);
    Ok(entry.and_then(|entry| entry["value"].as_object().cloned()).unwrap_or_default())
}

fn put_of_vhost(call: &Call, limits: Map<String, Value>) -> Result<(), ApiError> {
    let [component, name] = OF_VHOST;
    let entry = json!({"vhost": call.at("vhost"), "component": component, "name": name, "value": limits});
    call.define(Section::Parameters, entry)
}
