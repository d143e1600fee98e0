//! Policies and operator policies.

use broker::Section;
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply, object, require, text};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;

/// The parameter component of operator policies.
const OPERATOR: &str = "operator_policy";

/// `GET /api/policies`, and those of a virtual host.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let mut entries = Vec::new();
    for vhost in call.vhosts()? {
        entries.extend(call.broker()?.definitions_of(Section::Policies, &[vhost.name()]));
    }
    show_all(call, entries)
}

/// `GET /api/policies/{vhost}/{name}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let entry = call.broker()?.definition(Section::Policies, &[call.at("vhost"), call.at("name")]);
    Ok(Reply::json(columns(call, entry.ok_or_else(ApiError::not_found)?)))
}

/// `PUT /api/policies/{vhost}/{name}`. It applies to queues and exchanges at once.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let mut entry = body(call)?;
    let (vhost, name) = (call.at("vhost"), call.at("name"));
    call.vhost()?;
    entry.insert("vhost".to_owned(), vhost.into());
    entry.insert("name".to_owned(), name.into());
    let is_new = call.broker()?.definition(Section::Policies, &[vhost, name]).is_none();
    call.define(Section::Policies, Value::Object(entry))?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/policies/{vhost}/{name}`.
pub(super) fn clear(call: &Call) -> ApiAnswer {
    call.delete_definition(Section::Policies, &[call.at("vhost"), call.at("name")])
}

/// `GET /api/operator-policies`, and those of a virtual host.
pub(super) fn all_operator(call: &Call) -> ApiAnswer {
    let mut entries = Vec::new();
    for vhost in call.vhosts()? {
        entries.extend(call.broker()?.definitions_of(Section::Parameters, &[vhost.name(), OPERATOR]));
    }
    show_all(call, entries.iter().map(flat).collect())
}

/// `GET /api/operator-policies/{vhost}/{name}`.
pub(super) fn one_operator(call: &Call) -> ApiAnswer {
    let names = [call.at("vhost"), OPERATOR, call.at("name")];
    let entry = call.broker()?.definition(Section::Parameters, &names);
    Ok(Reply::json(columns(call, flat(&entry.ok_or_else(ApiError::not_found)?))))
}

/// `PUT /api/operator-policies/{vhost}/{name}`.
pub(super) fn set_operator(call: &Call) -> ApiAnswer {
    let value = Value::Object(body(call)?);
    let (vhost, name) = (call.at("vhost"), call.at("name"));
    call.vhost()?;
    let is_new = call.broker()?.definition(Section::Parameters, &[vhost, OPERATOR, name]).is_none();
    let entry = json!({"vhost": vhost, "component": OPERATOR, "name": name, "value": value});
    call.define(Section::Parameters, entry)?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/operator-policies/{vhost}/{name}`.
pub(super) fn clear_operator(call: &Call) -> ApiAnswer {
    call.delete_definition(Section::Parameters, &[call.at("vhost"), OPERATOR, call.at("name")])
}

/// The policy in the body, with defaults for omitted members.
fn body(call: &Call) -> Result<Map<String, Value>, ApiError> {
    let mut body = call.object()?;
    require(&body, &["pattern", "definition"])?;
    let priority = match body.get("priority") {
        None => 0,
        Some(given) => given.as_i64().ok_or_else(|| ApiError::bad_request("priority is not an integer"))?,
    };
    let mut entry = Map::new();
    entry.insert("pattern".to_owned(), text(&body, "pattern", "")?.into());
    entry.insert("definition".to_owned(), Value::Object(object(&mut body, "definition")?));
    entry.insert("priority".to_owned(), priority.into());
    entry.insert("apply-to".to_owned(), text(&body, "apply-to", "all")?.into());
    Ok(entry)
}

/// Converts a parameter to the form of a policy.
fn flat(parameter: &Value) -> Value {
    let mut shown = parameter["value"].clone();
    if let Some(shown) = shown.as_object_mut() {
        shown.insert("vhost".to_owned(), parameter["vhost"].clone());
        shown.insert("name".to_owned(), parameter["name"].clone());
    }
    shown
}

fn show_all(call: &Call, entries: Vec<Value>) -> ApiAnswer {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let items: Vec<_> =
        entries.into_iter().map(|entry| ((text(&entry, "vhost"), text(&entry, "name")), entry)).collect();
    list(call, items, |((vhost, name), _)| (vhost, name), |(_, entry)| entry.clone())
}
