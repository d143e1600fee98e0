//! Parameters of virtual hosts and of the broker as a whole.

use broker::Section;
use serde_json::{Value, json};

use super::call::{ApiAnswer, Call, Reply, require};
use super::error::ApiError;
use super::listing::list;
use super::overview::columns;

/// `GET /api/parameters`, and those of a component, everywhere or in a virtual host.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let component = call.at("component");
    let mut items = Vec::new();
    for vhost in call.vhosts()? {
        for entry in call.broker()?.definitions_of(Section::Parameters, &[vhost.name()]) {
            if component.is_empty() || entry["component"] == component {
                items.push((vhost.name().to_owned(), name_of(&entry), entry));
            }
        }
    }
    list(call, items, |(vhost, name, _)| (vhost, name), |(_, _, entry)| entry.clone())
}

/// `GET /api/parameters/{component}/{vhost}/{name}`.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let entry = call.broker()?.definition(Section::Parameters, &names(call));
    Ok(Reply::json(columns(call, entry.ok_or_else(ApiError::not_found)?)))
}

/// `PUT /api/parameters/{component}/{vhost}/{name}`.
pub(super) fn set(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["value"])?;
    call.vhost()?;
    let [vhost, component, name] = names(call);
    let is_new = call.broker()?.definition(Section::Parameters, &names(call)).is_none();
    let entry = json!({"vhost": vhost, "component": component, "name": name, "value": body["value"]});
    call.define(Section::Parameters, entry)?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/parameters/{component}/{vhost}/{name}`.
pub(super) fn clear(call: &Call) -> ApiAnswer {
    call.delete_definition(Section::Parameters, &names(call))
}

/// `GET /api/global-parameters`.
pub(super) fn all_global(call: &Call) -> ApiAnswer {
    let entries = call.broker()?.definitions_of(Section::GlobalParameters, &[]);
    let items: Vec<_> = entries.into_iter().map(|entry| (name_of(&entry), entry)).collect();
    list(call, items, |(name, _)| ("", name), |(_, entry)| entry.clone())
}

/// `GET /api/global-parameters/{name}`.
pub(super) fn one_global(call: &Call) -> ApiAnswer {
    let entry = call.broker()?.definition(Section::GlobalParameters, &[call.at("name")]);
    Ok(Reply::json(columns(call, entry.ok_or_else(ApiError::not_found)?)))
}

/// `PUT /api/global-parameters/{name}`.
pub(super) fn set_global(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["value"])?;
    let name = call.at("name");
    let is_new = call.broker()?.definition(Section::GlobalParameters, &[name]).is_none();
    call.define(Section::GlobalParameters, json!({"name": name, "value": body["value"]}))?;
    call.defined(Reply::put(is_new))
}

/// `DELETE /api/global-parameters/{name}`.
pub(super) fn clear_global(call: &Call) -> ApiAnswer {
    call.delete_definition(Section::GlobalParameters, &[call.at("name")])
}

fn names(call: &Call) -> [&str; 3] {
    [call.at("vhost"), call.at("component"), call.at("name")]
}

fn name_of(entry: &Value) -> String {
    entry["name"].as_str().unwrap_or_default().to_owned()
}
