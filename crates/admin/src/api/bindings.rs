//! Bindings, and the properties keys that distinguish bindings between the same source and destination.

use amqp::FieldTable;
use broker::{Binding, BindingEnd, BindingView, VirtualHost, json_of};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::SESSION;
use super::call::{ApiAnswer, Call, Reply, arguments, raw, short, text_or_null};
use super::error::ApiError;
use super::exchanges;
use super::listing::list;
use super::overview::columns;

/// A binding and its virtual host.
struct Item {
    vhost: String,
    view: BindingView,
    /// Sort key: source, destination type, destination and routing key.
    ends: String,
}

/// `GET /api/bindings`, and those of a virtual host, including each queue's implicit binding from the default
/// exchange.
pub(super) fn all(call: &Call) -> ApiAnswer {
    let mut items = Vec::new();
    for vhost in call.vhosts()? {
        let put = |view| Item::new(vhost.name(), view);
        items.extend(vhost.all_queues().iter().map(|queue| put(implicit(queue.name()))));
        let mut from = Some(0);
        while let Some(at) = from {
            let (found, next) = vhost.bindings_from(at, STEP);
            items.extend(found.into_iter().map(put));
            from = next;
        }
    }
    show_all(call, items)
}

/// `GET /api/queues/{vhost}/{name}/bindings`.
pub(super) fn to_queue(call: &Call) -> ApiAnswer {
    show_found(call, of_queue(&*call.vhost()?, call.at("name")))
}

/// `GET /api/exchanges/{vhost}/{name}/bindings/source`.
pub(super) fn from_exchange(call: &Call) -> ApiAnswer {
    let vhost = call.vhost()?;
    let found = match exchanges::name(call.at("name")) {
        "" => vhost.all_queues().iter().map(|queue| implicit(queue.name())).collect(),
        name => vhost.bindings_of_exchange(name).unwrap_or_default(),
    };
    show_found(call, found)
}

/// `GET /api/exchanges/{vhost}/{name}/bindings/destination`.
pub(super) fn to_exchange(call: &Call) -> ApiAnswer {
    let vhost = call.vhost()?;
    let found = match exchanges::name(call.at("name")) {
        "" => Vec::new(),
        name => vhost.bindings_to_exchange(name).unwrap_or_default(),
    };
    show_found(call, found)
}

/// `GET /api/bindings/{vhost}/e/{source}/q/{destination}`, and `/e/{exchange}`.
pub(super) fn between(call: &Call) -> ApiAnswer {
    show_found(call, of_ends(call)?)
}

/// `GET` of one binding, by its properties key.
pub(super) fn one(call: &Call) -> ApiAnswer {
    let item = Item::new(call.at("vhost"), find(call)?);
    Ok(Reply::json(columns(call, show(&item))))
}

/// `POST`: creates a binding.
pub(super) fn bind(call: &Call) -> ApiAnswer {
    let authorised = call.authorised()?;
    let mut body = call.object()?;
    let arguments = arguments(call, &mut body)?;
    let (destination, is_queue) = destination(call);
    let key = short("routing_key", text_or_null(&body, "routing_key")?)?;
    let binding = Binding {
        source: exchanges::name(call.at("source")),
        destination,
        routing_key: key,
        arguments: raw(&arguments)?,
    };
    let ticket = match is_queue {
        true => authorised.bind_queue(SESSION, &binding)?,
        false => authorised.bind_exchange(&binding)?,
    };
    let key = properties_key(key, &binding.arguments.decode());
    let location = format!("{}/{}", quote(destination), quote(&key));
    Ok(Reply { location: Some(location), ..Reply::put(true) }.when_defined(ticket))
}

/// `DELETE` of one binding, by its properties key.
pub(super) fn unbind(call: &Call) -> ApiAnswer {
    let view = find(call)?;
    let arguments = view.arguments.encode();
    let binding = Binding {
        source: &view.source,
        destination: &view.destination,
        routing_key: &view.routing_key,
        arguments: raw(&arguments)?,
    };
    let authorised = call.authorised()?;
    let ticket = match view.destination_type {
        BindingEnd::Queue => authorised.unbind_queue(SESSION, &binding)?,
        BindingEnd::Exchange => authorised.unbind_exchange(&binding)?,
    };
    Ok(Reply::no_content().when_defined(ticket))
}

/// The destination in the path, and whether it is a queue.
fn destination(call: &Call) -> (&str, bool) {
    match call.at("exchange") {
        "" => (call.at("destination"), true),
        exchange => (exchanges::name(exchange), false),
    }
}

/// The bindings to a queue; none if it does not exist.
fn of_queue(vhost: &VirtualHost, name: &str) -> Vec<BindingView> {
    let Some(mut found) = vhost.bindings_to_queue(name) else { return Vec::new() };
    found.push(implicit(&name.into()));
    found
}

/// The bindings between the source and the destination in the path. As in RabbitMQ, ends that do not exist have none.
fn of_ends(call: &Call) -> Result<Vec<BindingView>, ApiError> {
    let vhost = call.vhost()?;
    let source = exchanges::name(call.at("source"));
    let (destination, is_queue) = destination(call);
    let mut found = match is_queue {
        true => of_queue(&vhost, destination),
        false => vhost.bindings_to_exchange(destination).unwrap_or_default(),
    };
    found.retain(|view| &*view.source == source);
    Ok(found)
}

fn find(call: &Call) -> Result<BindingView, ApiError> {
    let wanted = call.at("props");
    let is_it = |view: &BindingView| properties_key(&view.routing_key, &view.arguments) == wanted;
    of_ends(call)?.into_iter().find(is_it).ok_or_else(ApiError::not_found)
}

/// The binding that every queue has from the default exchange.
fn implicit(queue: &std::sync::Arc<str>) -> BindingView {
    BindingView {
        source: "".into(),
        destination: queue.clone(),
        destination_type: BindingEnd::Queue,
        routing_key: queue.to_string(),
        arguments: FieldTable::new(),
    }
}

fn show_found(call: &Call, found: Vec<BindingView>) -> ApiAnswer {
    let vhost = call.at("vhost");
    show_all(call, found.into_iter().map(|view| Item::new(vhost, view)).collect())
}

fn show_all(call: &Call, items: Vec<Item>) -> ApiAnswer {
    list(call, items, |item| (&item.vhost, &item.ends), show)
}

impl Item {
    fn new(vhost: &str, view: BindingView) -> Self {
        let ends =
            [&*view.source, end_of(view.destination_type), &view.destination, &view.routing_key].join("\0");
        Self { vhost: vhost.to_owned(), view, ends }
    }
}

fn show(item: &Item) -> Value {
    let view = &item.view;
    json!({
        "source": &*view.source, "vhost": item.vhost, "destination": &*view.destination,
        "destination_type": end_of(view.destination_type), "routing_key": view.routing_key,
        "arguments": json_of(&view.arguments),
        "properties_key": properties_key(&view.routing_key, &view.arguments),
    })
}

fn end_of(end: BindingEnd) -> &'static str {
    match end {
        BindingEnd::Queue => "queue",
        BindingEnd::Exchange => "exchange",
    }
}

/// The key that distinguishes a binding from others between the same ends: the routing key, and a hash of the
/// arguments. It is opaque to clients, so for bindings with arguments it need not match RabbitMQ's.
fn properties_key(routing_key: &str, arguments: &FieldTable) -> String {
    let quoted = quote(routing_key).replace('~', "%7E");
    match (routing_key, arguments.is_empty()) {
        ("", true) => "~".to_owned(),
        (_, true) => quoted,
        (_, false) => format!("{quoted}~{:016x}", hash(&arguments.encode())),
    }
}

/// FNV-1a of 64 bits: the same on every machine and after every restart.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Encodes as forms do, like RabbitMQ here: a space becomes a plus.
fn quote(text: &str) -> String {
    utf8_percent_encode(text, QUOTED).to_string().replace("%20", "+")
}

const QUOTED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Entries of the bindings table visited per lock acquisition: well below a millisecond.
const STEP: usize = 1000;

#[cfg(test)]
mod tests {
    use amqp::FieldValue;

    use super::*;

    #[test]
    fn keys_without_arguments_are_those_of_rabbitmq() {
        let none = FieldTable::new();
        assert_eq!(properties_key("", &none), "~");
        assert_eq!(properties_key("a.b", &none), "a.b");
        assert_eq!(properties_key("a/b c~", &none), "a%2Fb+c%7E");
    }

    #[test]
    fn arguments_tell_bindings_apart() {
        let table = |n| [("x", FieldValue::I64(n))].into_iter().collect::<FieldTable>();
        let (one, other) = (properties_key("k", &table(1)), properties_key("k", &table(2)));
        assert_ne!(one, other);
        assert!(one.starts_with("k~") && one.len() == 18, "{one}");
    }

    #[test]
    fn a_location_survives_being_decoded_once() {
        assert_eq!(quote("a%2Fb+c~x"), "a%252Fb%2Bc~x");
    }
}
