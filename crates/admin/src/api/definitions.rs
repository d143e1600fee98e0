//! Export and import of all definitions.

use broker::{Definitions, VirtualHost};
use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::error::ApiError;

/// `GET /api/definitions`.
pub(super) fn export(call: &Call) -> ApiAnswer {
    let mut file = call.broker()?.export(None);
    file.insert("product_name".to_owned(), json!("Leveret"));
    file.insert("product_version".to_owned(), json!(call.api.process.version()));
    file.insert("rabbitmq_version".to_owned(), json!(call.rabbitmq_version()));
    Ok(show(call, file))
}

/// `GET /api/definitions/{vhost}`.
pub(super) fn export_vhost(call: &Call) -> ApiAnswer {
    let vhost = call.vhost()?;
    Ok(show(call, call.broker()?.export(Some(&*vhost))))
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
    Reply::json(Value::Object(file))
}

fn load(call: &Call, file: &Map<String, Value>) -> ApiAnswer {
    let definitions =
        Definitions::from_map(file).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let _changing = call.api.changes.lock();
    call.broker()?
        .load(&definitions, call.now())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
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
