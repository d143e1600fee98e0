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
    let name = vhost.name();
    // Valid destinations of bindings: a file that names others could not be loaded.
    let all = vhost.all_queues();
    let mut exported = HashSet::with_capacity(all.len());
    for queue in all {
        pace(EXPORTED);
        let properties = queue.properties();
        if properties.owner.is_none() {
            exported.insert(queue.name().clone());
            queues.push(json!({
                "name": &**queue.name(), "vhost": name, "durable": properties.durable,
                "auto_delete": properties.auto_delete,
                "arguments": json_of(&queue.own_arguments()),
            }));
        }
    }
    for exchange in vhost.all_exchanges() {
        pace(EXPORTED);
        if !exchange.name.is_empty() && !exchange.name.starts_with("amq.") {
            exchanges.push(json!({
                "name": &*exchange.name, "vhost": name, "type": exchange.kind, "durable": exchange.durable,
                "auto_delete": exchange.auto_delete, "internal": exchange.internal,
                "arguments": json_of(&exchange.arguments),
            }));
        }
    }
    let mut from = Some(0);
    while let Some(at) = from {
        let (found, next) = vhost.bindings_from(at, STEP);
        from = next;
        for binding in found {
            pace(EXPORTED);
            let destination_type = match binding.destination_type {
                BindingEnd::Queue if !exported.contains(&binding.destination) => continue,
                BindingEnd::Queue => "queue",
                BindingEnd::Exchange => "exchange",
            };
            bindings.push(json!({
                "source": &*binding.source, "vhost": name, "destination": &*binding.destination,
                "destination_type": destination_type, "routing_key": binding.routing_key,
                "arguments": json_of(&binding.arguments),
            }));
        }
    }
    drop_at_pace(FREED, exported);
}

/// Nanoseconds for making an entry, of removing a value from one, and of freeing a name.
const EXPORTED: u32 = 3_000;
const CHANGED: u32 = 200;
const FREED: u32 = 50;
