//! Users.

use broker::{Compatibility, Section};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, object, require, text};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;

/// `GET /api/users`.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let users = call.broker()?.definitions_of(Section::Users, &[]);
    show_all(call, users)
}

/// `GET /api/users/without-permissions`.
pub(super) fn without_permissions(call: &Call) -> ApiAnswer {
    let broker = call.broker()?;
    let permissions = broker.definitions_of(Section::Permissions, &[]);
    let mut users = broker.definitions_of(Section::Users, &[]);
    users.retain(|user| permissions.iter().all(|entry| entry["user"] != user["name"]));
    show_all(call, users)
}

/// `GET /api/users/{user}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let user = call.broker()?.definition(Section::Users, &[call.at("user")]);
    Ok(Reply::json(columns(call, show(&user.ok_or_else(ApiError::not_found)?))))
}

/// `PUT /api/users/{user}`.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    if !body.contains_key("tags") {
        return Err(ApiError::bad_request("tags_not_present"));
    }
    let name = call.at("user");
    let before = call.broker()?.definition(Section::Users, &[name]);
    let mut entry = Map::new();
    entry.insert("name".to_owned(), name.into());
    entry.insert("tags".to_owned(), tags(&body)?);
    if body.contains_key("password") && body.contains_key("password_hash") {
        return Err(ApiError::bad_request("both_password_and_password_hash_are_provided"));
    }
    for key in ["password", "password_hash", "hashing_algorithm"] {
        match body.get(key) {
            None => {}
            Some(Value::String(given)) => drop(entry.insert(key.to_owned(), given.as_str().into())),
            // RabbitMQ stores this, and so a user whom no password lets in.
            Some(Value::Null) if key == "hashing_algorithm" => {}
            // Not taken for none, with which the user would lose the password. It is not quoted, as it may be one.
            Some(_) => return Err(ApiError::bad_request(format!("{key} is not a string"))),
        }
    }
    let limits = before.as_ref().map_or_else(|| json!({}), |before| before["limits"].clone());
    entry.insert("limits".to_owned(), limits);
    call.define(Section::Users, Value::Object(entry))?;
    call.defined(Reply::put(before.is_none()))
}

/// `DELETE /api/users/{user}`.
pub(super) fn remove(call: &Call) -> ApiAnswer {
    let reply = call.delete_definition(Section::Users, &[call.at("user")])?;
    close_connections(call, call.at("user"));
    Ok(reply)
}

/// `POST /api/users/bulk-delete`. RabbitMQ 3.10 deletes none if one of them does not exist.
pub(super) fn remove_many(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["users"])?;
    let names: Vec<&str> = match body.get("users") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => return Err(ApiError::bad_request("users is not a list of names")),
    };
    let broker = call.broker()?;
    if call.compatibility() == Compatibility::V3_10
        && let Some(missing) = names.iter().find(|name| broker.definition(Section::Users, &[name]).is_none())
    {
        return Err(ApiError::bad_request(json!(["no_such_user", missing])));
    }
    for name in names {
        broker.delete_definition(Section::Users, &[name], call.now());
        close_connections(call, name);
    }
    call.defined(Reply::no_content())
}

fn close_connections(call: &Call, user: &str) {
    for connection in call.api.process.connections() {
        if connection.user() == user {
            connection.close(&format!("user '{user}' is deleted"));
        }
    }
}

/// Tags are a list, or one string separated by commas.
fn tags(body: &Map<String, Value>) -> Result<Value, ApiError> {
    match body.get("tags") {
        Some(Value::Array(tags)) if tags.iter().all(Value::is_string) => Ok(Value::Array(tags.clone())),
        Some(Value::String(_)) => text(body, "tags", "").map(Value::from),
        _ => Err(ApiError::bad_request("tags is neither a string nor a list of strings")),
    }
}

fn show_all(call: &Call, users: Vec<Value>) -> ApiAnswer {
    list(call, users, |user| ("", user["name"].as_str().unwrap_or_default()), show)
}

/// A user as RabbitMQ shows it. A user without a password has a hashing algorithm all the same.
fn show(user: &Value) -> Value {
    let mut shown = user.clone();
    if let Some(shown) = shown.as_object_mut() {
        shown.entry("hashing_algorithm").or_insert_with(|| json!("rabbit_password_hashing_sha256"));
        let limits = object(shown, "limits").unwrap_or_default();
        shown.insert("limits".to_owned(), Value::Object(limits));
    }
    shown
}
