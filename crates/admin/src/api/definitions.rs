//! Export and import of all definitions.

use broker::{Compatibility, Definitions, QueueKind, Section, VirtualHost};
use serde_json::{Map, Value, json};
use sync::pace::pace;

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;
use super::limits::limits_of_vhost;
use super::{overview, vhosts};
use crate::pieces::Pieces;

/// `GET /api/definitions`.
pub(super) fn export(call: &Call) -> ApiAnswer {
    let mut file = call.broker()?.export(None);
    add_versions(call, &mut file);
    if call.compatibility() == Compatibility::V4 {
        for vhost in file.get_mut("vhosts").and_then(Value::as_array_mut).into_iter().flatten() {
            let name = vhost["name"].as_str().unwrap_or_default();
            *vhost = json!({
                "name": name, "limits": limits_of_vhost(call, name)?, "metadata": vhosts::metadata(vhost),
            });
        }
        let cluster = overview::name_of_cluster(call);
        add_origin(&mut file, "cluster", "original_cluster_name", &cluster);
    }
    Ok(show(call, file))
}

/// `GET /api/definitions/{vhost}`.
pub(super) fn export_vhost(call: &Call) -> ApiAnswer {
    let (broker, vhost) = (call.broker()?, call.vhost()?);
    let mut file = broker.export(Some(&*vhost));
    if call.compatibility() == Compatibility::V4 {
        add_versions(call, &mut file);
        for section in ["parameters", "policies"] {
            for entry in file.get_mut(section).and_then(Value::as_array_mut).into_iter().flatten() {
                entry.as_object_mut().map(|entry| entry.remove("vhost"));
            }
        }
        let definition = broker.definition(Section::VirtualHosts, &[vhost.name()]).unwrap_or_default();
        let metadata = vhosts::metadata(&definition);
        file.insert("description".to_owned(), metadata["description"].clone());
        file.insert("metadata".to_owned(), metadata);
        file.insert("limits".to_owned(), limits_of_vhost(call, vhost.name())?.into());
        add_origin(&mut file, "virtual host", "original_vhost_name", vhost.name());
    }
    Ok(show(call, file))
}

fn add_versions(call: &Call, file: &mut Map<String, Value>) {
    file.insert("product_name".to_owned(), json!("Leveret"));
    file.insert("product_version".to_owned(), json!(call.api.process.version()));
    file.insert("rabbitmq_version".to_owned(), json!(call.rabbitmq_version()));
}

/// Adds what RabbitMQ 4 reports about the place where a file is from.
fn add_origin(file: &mut Map<String, Value>, what: &str, key: &str, name: &str) {
    let format = if what == "cluster" { "cluster" } else { "single_virtual_host" };
    file.insert("rabbitmq_definition_format".to_owned(), json!(format));
    file.insert("explanation".to_owned(), json!(format!("Definitions of {what} '{name}'")));
    file.insert(key.to_owned(), json!(name));
}

/// `POST /api/definitions`. As in RabbitMQ, the entries before the first invalid one stay loaded.
pub(super) fn import(call: &Call) -> ApiAnswer {
    load(call, &call.object()?)
}

/// `POST /api/definitions/{vhost}`.
pub(super) fn import_vhost(call: &Call) -> ApiAnswer {
    let vhost = call.vhost()?;
    let mut file = call.object()?;
    file.retain(|section, _| IN_VHOST.contains(&section.as_str()));
    put_vhost(&mut file, &vhost);
    load(call, &file)
}

fn show(call: &Call, mut file: Map<String, Value>) -> Reply {
    file.insert("rabbit_version".to_owned(), json!(call.rabbitmq_version()));
    Reply::text(written(file, call.compatibility() == Compatibility::V4))
}

/// Writes a file, and frees each entry once it is written.
fn written(file: Map<String, Value>, with_queue_types: bool) -> Pieces {
    let mut out = Pieces::default();
    let mut before = "{";
    for (section, value) in file {
        out.add(before.as_bytes());
        before = ",";
        out.add_json(&section);
        out.add(b":");
        let entries = match value {
            Value::Array(entries) => entries,
            value => {
                out.add_json(&value);
                continue;
            }
        };
        out.add(b"[");
        for (at, mut entry) in entries.into_iter().enumerate() {
            if at > 0 {
                out.add(b",");
            }
            if with_queue_types && section == "queues" {
                add_queue_type(&mut entry);
            }
            out.add_json(&entry);
            drop(entry);
            pace(FREED);
        }
        out.add(b"]");
    }
    out.add(if before == "{" { b"{}" } else { b"}" });
    out
}

/// Adds the type of a queue, which RabbitMQ 4 writes beside the arguments as well.
fn add_queue_type(queue: &mut Value) {
    let kind = queue["arguments"]["x-queue-type"].as_str().unwrap_or(QueueKind::default().name());
    queue["type"] = json!(kind);
}

fn load(call: &Call, file: &Map<String, Value>) -> ApiAnswer {
    let definitions =
        Definitions::from_map(file).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let loaded = call.broker()?.load(&definitions, call.now());
    let loaded = loaded.map_err(|error| ApiError::bad_request(error.to_string()))?;
    loaded.log(&definitions, call.user.name());
    call.defined(Reply::no_content())
}

/// Adds the virtual host to all entries: definitions of a single virtual host do not name it.
fn put_vhost(file: &mut Map<String, Value>, vhost: &VirtualHost) {
    for entry in file.values_mut().filter_map(Value::as_array_mut).flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("vhost".to_owned(), vhost.name().into());
        }
    }
}

/// Sections whose entries belong to a virtual host.
const IN_VHOST: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];

/// Nanoseconds for freeing an entry, with its names and values.
const FREED: u32 = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: usize) -> Map<String, Value> {
        let queue = |number| json!({"name": format!("q{number}"), "vhost": "/", "arguments": {}});
        let queues = (0..count).map(queue).collect();
        let sections =
            [("users", json!([])), ("queues", Value::Array(queues)), ("rabbit_version", json!("3"))];
        sections.into_iter().map(|(section, entries)| (section.to_owned(), entries)).collect()
    }

    #[test]
    fn a_file_is_written_as_json_however_many_entries_it_has() {
        for file in [Map::new(), queues(0), queues(1), queues(3)] {
            let expected = Value::Object(file.clone()).to_string();
            assert_eq!(String::from_utf8(written(file, false).into_bytes()).unwrap(), expected);
        }
        let with_types: Value = serde_json::from_slice(&written(queues(2), true).into_bytes()).unwrap();
        assert_eq!(with_types["queues"][1]["type"], "classic");
    }

    #[test]
    fn the_thread_that_writes_very_many_entries_pauses_in_between() {
        let before = sync::pace::pauses();
        written(queues(20_000), false);
        assert!(sync::pace::pauses() - before >= 20, "no more than a thousand entries at a time");
    }
}
