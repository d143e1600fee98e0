//! All definitions as RabbitMQ exports them (RabbitMQ, "Definition Export and Import").

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use store::catalogue::Section;
use sync::pace::{drop_at_pace, pace};

use super::views::{BindingEnd, STEP};
use crate::broker::Broker;
use crate::definitions::json_of;
use crate::vhost::VirtualHost;

impl Broker {
    /// The sections of a definitions file, for all virtual hosts or for one. For one, as in RabbitMQ, queues,
    /// exchanges and bindings do not name it, and users and permissions are left out. Exclusive
    /// queues and the exchanges that every virtual host has are not exported.
    pub fn export(&self, only: Option<&VirtualHost>) -> Map<String, Value> {
        let mut file = Map::new();
        let prefix: Vec<&str> = only.iter().map(|vhost| vhost.name()).collect();
        let sections: &[Section] = match only {
            Some(_) => &[Section::Parameters, Section::Policies],
            None => &[
                Section::Users,
                Section::VirtualHosts,
                Section::Permissions,
                Section::TopicPermissions,
                Section::Parameters,
                Section::GlobalParameters,
                Section::Policies,
            ],
        };
        for &section in sections {
            let mut entries = self.definitions_of(section, &prefix);
            if section == Section::Users {
                entries.iter_mut().for_each(name_algorithm);
            }
            file.insert(section.name().to_owned(), Value::Array(entries));
        }
        let vhosts = match only {
            Some(vhost) => self.vhost(vhost.name()).into_iter().collect(),
            None => self.vhosts(),
        };
        let (mut queues, mut exchanges, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
        for vhost in &vhosts {
            export_topology(vhost, &mut queues, &mut exchanges, &mut bindings);
        }
        file.insert("queues".to_owned(), Value::Array(queues));
        file.insert("exchanges".to_owned(), Value::Array(exchanges));
        file.insert("bindings".to_owned(), Value::Array(bindings));
        if only.is_some() {
            let sections = ["queues", "exchanges", "bindings"];
            let of_sections = file.iter_mut().filter(|(section, _)| sections.contains(&section.as_str()));
            for entry in of_sections.filter_map(|(_, entries)| entries.as_array_mut()).flatten() {
                pace(CHANGED);
                entry.as_object_mut().map(|entry| entry.remove("vhost"));
            }
        }
        file
    }
}

/// RabbitMQ expects the algorithm even if the hash is empty.
fn name_algorithm(user: &mut Value) {
    if let Some(user) = user.as_object_mut() {
        user.entry("hashing_algorithm").or_insert_with(|| json!("rabbit_password_hashing_sha256"));
    }
}

fn export_topology(
    vhost: &Arc<VirtualHost>,
    queues: &mut Vec<Value>,
    exchanges: &mut Vec<Value>,
    bindings: &mut Vec<Value>,
) {
    let ends = export_ends(vhost, queues, exchanges);
    export_bindings(vhost, &ends, bindings);
    drop_at_pace(FREED, ends.queues);
    drop_at_pace(FREED, ends.exchanges);
}

/// The queues in the export, and the exchanges in it or in every virtual host. Clients may create and bind others before
/// the bindings are listed.
#[derive(Default)]
struct ListedEnds {
    queues: HashSet<Arc<str>>,
    exchanges: HashSet<Arc<str>>,
}

fn export_ends(vhost: &Arc<VirtualHost>, queues: &mut Vec<Value>, exchanges: &mut Vec<Value>) -> ListedEnds {
    let name = vhost.name();
    let mut ends = ListedEnds::default();
    let all = vhost.all_queues();
    ends.queues.reserve(all.len());
    for queue in all {
        pace(EXPORTED);
        let properties = queue.properties();
        if properties.owner.is_none() {
            ends.queues.insert(queue.name().clone());
            queues.push(json!({
                "name": &**queue.name(), "vhost": name, "durable": properties.durable,
                "auto_delete": properties.auto_delete,
                "arguments": json_of(&queue.own_arguments()),
            }));
        }
    }
    for exchange in vhost.all_exchanges() {
        pace(EXPORTED);
        ends.exchanges.insert(exchange.name.clone());
        if !exchange.name.is_empty() && !exchange.name.starts_with("amq.") {
            exchanges.push(json!({
                "name": &*exchange.name, "vhost": name, "type": exchange.kind, "durable": exchange.durable,
                "auto_delete": exchange.auto_delete, "internal": exchange.internal,
                "arguments": json_of(&exchange.arguments),
            }));
        }
    }
    ends
}

/// Exports the bindings between listed queues and exchanges: a file with others could not be loaded.
fn export_bindings(vhost: &VirtualHost, ends: &ListedEnds, bindings: &mut Vec<Value>) {
    let name = vhost.name();
    let mut from = Some(0);
    while let Some(at) = from {
        let (found, next) = vhost.bindings_from(at, STEP);
        from = next;
        for binding in found {
            pace(EXPORTED);
            let (destination_type, destinations) = match binding.destination_type {
                BindingEnd::Queue => ("queue", &ends.queues),
                BindingEnd::Exchange => ("exchange", &ends.exchanges),
            };
            if !ends.exchanges.contains(&binding.source) || !destinations.contains(&binding.destination) {
                continue;
            }
            bindings.push(json!({
                "source": &*binding.source, "vhost": name, "destination": &*binding.destination,
                "destination_type": destination_type, "routing_key": binding.routing_key,
                "arguments": json_of(&binding.arguments),
            }));
        }
    }
}

/// Nanoseconds for creating an entry, for removing a value from one, and for freeing a name.
const EXPORTED: u32 = 3_000;
const CHANGED: u32 = 200;
const FREED: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Binding, Broker, Definitions, ExchangeDeclare, SessionId};

    #[test]
    fn bindings_of_exchanges_that_are_declared_meanwhile_are_left_out() {
        let broker = Broker::new(Default::default());
        let vhost = broker.vhost("/").unwrap();
        let declare =
            |name| vhost.declare_exchange(&ExchangeDeclare { name, kind: "topic", ..Default::default() });
        let bind = |source, destination| {
            let binding = Binding { source, destination, ..Default::default() };
            vhost.bind_exchange(&binding).unwrap();
        };
        declare("before").unwrap();
        let (mut queues, mut exchanges, mut bindings) = <(Vec<Value>, Vec<Value>, Vec<Value>)>::default();
        let ends = export_ends(&vhost, &mut queues, &mut exchanges);
        declare("meanwhile").unwrap();
        let queue = crate::QueueDeclare { name: "meanwhile", ..Default::default() };
        vhost.declare_queue(SessionId(1), &queue, Default::default()).unwrap();
        bind("before", "meanwhile");
        bind("meanwhile", "before");
        bind("amq.topic", "before");
        bind("before", "amq.fanout");
        let binding = Binding { source: "before", destination: "meanwhile", ..Default::default() };
        vhost.bind_queue(SessionId(1), &binding).unwrap();
        export_bindings(&vhost, &ends, &mut bindings);
        let mut pairs: Vec<_> = bindings.iter().map(|one| (&one["source"], &one["destination"])).collect();
        pairs.sort_by_key(|(source, _)| source.as_str());
        assert_eq!(
            pairs,
            [(&json!("amq.topic"), &json!("before")), (&json!("before"), &json!("amq.fanout"))]
        );

        let mut file = Map::new();
        file.insert("exchanges".to_owned(), exchanges.into());
        file.insert("bindings".to_owned(), bindings.into());
        let other = Broker::new(Default::default());
        other.load(&Definitions::from_map(&file).unwrap(), Default::default()).unwrap();
    }
}
