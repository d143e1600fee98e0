//! Compares the definitions of two brokers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::Failure;
use crate::ctl::api::{Api, path};

/// An object that can be defined.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Definition {
    /// Its kind, as in `queue`.
    pub(super) kind: &'static str,
    /// Its names, from the virtual host on.
    pub(super) names: Vec<String>,
    request: DefinitionRequest,
}

#[derive(Debug, Clone, PartialEq)]
enum DefinitionRequest {
    Put { path: String, body: Value },
    Post { path: String, body: Value },
}

/// How the definitions of one broker stand at the other.
#[derive(Debug, Default)]
pub(super) struct DefinitionPlan {
    /// Definitions that the other broker lacks, in an order in which they can be created.
    pub(super) missing: Vec<Definition>,
    /// How many it has already, by kind.
    pub(super) present: BTreeMap<&'static str, usize>,
    /// Definitions that differ there in a way that prevents messages from moving, or clients from being served.
    pub(super) conflicting: Vec<String>,
    /// Definitions that differ there in other ways, and are not changed.
    pub(super) different: Vec<String>,
    /// Queues that cannot be created: brokers keep names that begin with `amq.` for themselves.
    pub(super) left_out: Vec<String>,
}

/// Compares an export of one broker with one of the other.
pub(super) fn compare(here: &Value, there: &Value) -> DefinitionPlan {
    let mut plan = DefinitionPlan::default();
    for section in &SECTIONS {
        let known: BTreeMap<Vec<String>, &Value> =
            entries(there, section.name).map(|entry| (section.names(entry), entry)).collect();
        for entry in entries(here, section.name).filter(|entry| section.concerns(entry)) {
            let names = section.names(entry);
            if section.name == "queues" && is_own_name(&entry["name"]) {
                plan.left_out.push(format!("queue {}", shown(&names)));
                continue;
            }
            let Some(found) = known.get(&names) else {
                plan.missing.push(section.definition(names, entry));
                continue;
            };
            *plan.present.entry(section.kind).or_default() += 1;
            let differing = section.compared.iter().filter(|key| !is_same(&entry[**key], &found[**key]));
            let differing: Vec<_> = differing.copied().collect();
            if !differing.is_empty() {
                let line =
                    format!("{} {}: {} differs there", section.kind, shown(&names), differing.join(", "));
                let list = if section.must_agree { &mut plan.conflicting } else { &mut plan.different };
                list.push(line);
            }
        }
    }
    plan
}

/// A section of a file of definitions.
struct DefinitionSection {
    name: &'static str,
    kind: &'static str,
    /// The members that identify an entry.
    keys: &'static [&'static str],
    /// The members that have to be the same.
    compared: &'static [&'static str],
    /// Whether an entry that differs is in the way.
    must_agree: bool,
}

/// In the order in which they depend on each other.
const SECTIONS: [DefinitionSection; 11] = [
    section("vhosts", "virtual host", &["name"], &[], false),
    section("users", "user", &["name"], &["password_hash", "tags"], false),
    section(USER_LIMITS, "user limit", &["user", "name"], &["value"], false),
    section("permissions", "permission", &["vhost", "user"], &["configure", "write", "read"], false),
    section(
        "topic_permissions",
        "topic permission",
        &["vhost", "user", "exchange"],
        &["write", "read"],
        false,
    ),
    section("parameters", "parameter", &["vhost", "component", "name"], &["value"], false),
    section("global_parameters", "global parameter", &["name"], &["value"], false),
    section(
        "policies",
        "policy",
        &["vhost", "name"],
        &["pattern", "apply-to", "definition", "priority"],
        false,
    ),
    section(
        "exchanges",
        "exchange",
        &["vhost", "name"],
        &["type", "durable", "auto_delete", "internal"],
        true,
    ),
    section("queues", "queue", &["vhost", "name"], &["durable", "auto_delete", "arguments"], true),
    section(
        "bindings",
        "binding",
        &["vhost", "source", "destination_type", "destination", "routing_key", "arguments"],
        &[],
        false,
    ),
];

const fn section(
    name: &'static str,
    kind: &'static str,
    keys: &'static [&'static str],
    compared: &'static [&'static str],
    must_agree: bool,
) -> DefinitionSection {
    DefinitionSection { name, kind, keys, compared, must_agree }
}

/// The section of users' limits, which no export of RabbitMQ has.
const USER_LIMITS: &str = "user_limits";

/// An export of a broker, with its users' limits.
///
/// # Errors
///
/// It does not answer, or the user may not ask.
pub(super) fn export(api: &Api) -> Result<Value, Failure> {
    let mut export = api.get("/api/definitions")?;
    // A broker without such limits has no such path.
    let limits = api.found("/api/user-limits")?.unwrap_or_default();
    export[USER_LIMITS] = limit_by_limit(&limits);
    Ok(export)
}

/// An entry for each limit, from one for each user.
fn limit_by_limit(users: &Value) -> Value {
    let limits = |user: &Value| -> Vec<Value> {
        let limit = |(name, value)| json!({ "user": user["user"], "name": name, "value": value });
        user["value"].as_object().into_iter().flatten().map(limit).collect()
    };
    users.as_array().into_iter().flatten().flat_map(limits).collect()
}

/// Parameters of a broker as a whole, which are its own.
const OWN_PARAMETERS: [&str; 3] = ["cluster_name", "internal_cluster_id", "cluster_tags"];

impl DefinitionSection {
    fn names(&self, entry: &Value) -> Vec<String> {
        let text = |key: &&str| match &entry[*key] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // RabbitMQ writes empty arguments as a list at times.
            Value::Array(items) if items.is_empty() => "{}".to_owned(),
            other => other.to_string(),
        };
        self.keys.iter().map(text).collect()
    }

    fn concerns(&self, entry: &Value) -> bool {
        let name = entry["name"].as_str().unwrap_or_default();
        match self.name {
            "global_parameters" => !OWN_PARAMETERS.contains(&name),
            // Every virtual host has its own.
            "exchanges" => !is_own_name(&entry["name"]),
            "bindings" => entry["destination_type"] != "queue" || !is_own_name(&entry["destination"]),
            _ => true,
        }
    }

    fn definition(&self, names: Vec<String>, entry: &Value) -> Definition {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let of = |keys: &[&str]| -> Value {
            let member = |key: &&str| Some(((*key).to_owned(), entry.get(*key)?.clone()));
            Value::Object(keys.iter().filter_map(member).collect())
        };
        let (vhost, name) = (text("vhost"), text("name"));
        let put = |parts: &[&str], body: Value| DefinitionRequest::Put { path: path(parts), body };
        let request = match self.name {
            "vhosts" => put(&["vhosts", name], vhost_body(entry)),
            "users" => put(&["users", name], user_body(entry)),
            USER_LIMITS => put(&["user-limits", text("user"), name], of(&["value"])),
            "permissions" => put(&["permissions", vhost, text("user")], of(&["configure", "write", "read"])),
            "topic_permissions" => {
                put(&["topic-permissions", vhost, text("user")], of(&["exchange", "write", "read"]))
            }
            "parameters" => parameter(vhost, text("component"), name, entry),
            "global_parameters" => put(&["global-parameters", name], of(&["name", "value"])),
            "policies" => {
                put(&["policies", vhost, name], of(&["pattern", "apply-to", "definition", "priority"]))
            }
            "exchanges" => put(
                &["exchanges", vhost, name],
                of(&["type", "durable", "auto_delete", "internal", "arguments"]),
            ),
            "queues" => put(&["queues", vhost, name], of(&["durable", "auto_delete", "arguments"])),
            _ => {
                let to = if text("destination_type") == "exchange" { "e" } else { "q" };
                let parts = ["bindings", vhost, "e", text("source"), to, text("destination")];
                DefinitionRequest::Post { path: path(&parts), body: of(&["routing_key", "arguments"]) }
            }
        };
        Definition { kind: self.kind, names, request }
    }
}

fn vhost_body(entry: &Value) -> Value {
    let mut body = Map::new();
    let metadata = |key: &str| entry.get(key).or_else(|| entry["metadata"].get(key)).cloned();
    if let Some(description) = metadata("description").filter(Value::is_string) {
        body.insert("description".to_owned(), description);
    }
    if let Some(Value::Array(tags)) = metadata("tags")
        && !tags.is_empty()
    {
        let tags: Vec<_> = tags.iter().filter_map(Value::as_str).collect();
        body.insert("tags".to_owned(), tags.join(",").into());
    }
    if let Some(Value::String(kind)) = metadata("default_queue_type")
        && kind != "undefined"
    {
        body.insert("default_queue_type".to_owned(), kind.into());
    }
    Value::Object(body)
}

fn user_body(entry: &Value) -> Value {
    let tags = match &entry["tags"] {
        Value::Array(tags) => tags.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        tags => tags.as_str().unwrap_or_default().to_owned(),
    };
    let mut body = json!({ "password_hash": entry["password_hash"], "tags": tags });
    if let Some(algorithm) = entry.get("hashing_algorithm") {
        body["hashing_algorithm"] = algorithm.clone();
    }
    body
}

fn parameter(vhost: &str, component: &str, name: &str, entry: &Value) -> DefinitionRequest {
    let value = &entry["value"];
    match component {
        "operator_policy" => {
            DefinitionRequest::Put { path: path(&["operator-policies", vhost, name]), body: value.clone() }
        }
        _ => DefinitionRequest::Put {
            path: path(&["parameters", component, vhost, name]),
            body: json!({ "component": component, "vhost": vhost, "name": name, "value": value }),
        },
    }
}

fn entries<'v>(file: &'v Value, section: &str) -> impl Iterator<Item = &'v Value> {
    file[section].as_array().into_iter().flatten()
}

/// Whether only a broker may give this name.
pub(super) fn is_own_name(name: &Value) -> bool {
    name.as_str().is_some_and(|name| name.starts_with("amq."))
}

/// Whether two values mean the same: tags may be a list or a text, and nothing may be written in several ways.
fn is_same(one: &Value, other: &Value) -> bool {
    let plain = |value: &Value| match value {
        Value::Null | Value::Bool(false) => Value::String(String::new()),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",").into()
        }
        Value::Object(members) => {
            let mut members = members.clone();
            // RabbitMQ 4 writes the default out.
            members.retain(|key, value| !(key == "x-queue-type" && value == "classic"));
            if members.is_empty() { Value::String(String::new()) } else { Value::Object(members) }
        }
        other => other.clone(),
    };
    plain(one) == plain(other)
}

impl Definition {
    /// Makes the object.
    ///
    /// # Errors
    ///
    /// The broker refuses it.
    pub(super) fn make(&self, api: &Api) -> Result<(), Failure> {
        match &self.request {
            DefinitionRequest::Put { path, body } => api.put(path, body),
            DefinitionRequest::Post { path, body } => api.post(path, body.to_string().into_bytes()).map(drop),
        }
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        format!("{} {}", self.kind, shown(&self.names))
    }

    pub(super) fn is_vhost(&self) -> bool {
        self.kind == "virtual host"
    }

    /// The type of an exchange.
    pub(super) fn type_name(&self) -> Option<&str> {
        match &self.request {
            DefinitionRequest::Put { body, .. } if self.kind == "exchange" => body["type"].as_str(),
            _ => None,
        }
    }
}

fn shown(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(plan: &DefinitionPlan) -> Vec<String> {
        plan.missing.iter().map(Definition::line).collect()
    }

    #[test]
    fn missing_definitions_are_listed_in_the_order_of_creation() {
        let here = json!({
            "bindings": [{
                "source": "e", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k",
                "arguments": {},
            }],
            "queues": [
                {"name": "q", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}},
                {"name": "amq.gen-1", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}},
            ],
            "vhosts": [{"name": "/"}, {"name": "two", "metadata": {"tags": ["a"], "description": "d"}}],
            "global_parameters": [{"name": "cluster_name", "value": "x"}],
        });
        let there = json!({"vhosts": [{"name": "/", "metadata": {}}], "queues": []});
        let plan = compare(&here, &there);
        let expected = ["virtual host 'two'", "queue '/' 'q'", "binding '/' 'e' 'queue' 'q' 'k' '{}'"];
        assert_eq!(lines(&plan), expected);
        let body = json!({"description": "d", "tags": "a"});
        assert_eq!(plan.missing[0].request, DefinitionRequest::Put { path: "/api/vhosts/two".into(), body });
        assert_eq!(plan.left_out, ["queue '/' 'amq.gen-1'"]);
        assert_eq!(plan.present.get("virtual host"), Some(&1));
        assert!(compare(&here, &here).missing.is_empty());
    }

    #[test]
    fn a_queue_that_differs_is_in_the_way_and_a_user_is_not() {
        let queue =
            |arguments: Value| json!({"name": "q", "vhost": "/", "durable": true, "arguments": arguments});
        let user = |hash: &str, tags: Value| json!({"name": "u", "password_hash": hash, "tags": tags});
        let here = json!({"queues": [queue(json!({}))], "users": [user("x", json!("a"))]});
        let same = json!({"queues": [queue(json!({"x-queue-type": "classic"}))], "users": [user("x", json!(["a"]))]});
        let plan = compare(&here, &same);
        assert!(plan.conflicting.is_empty() && plan.different.is_empty(), "{plan:?}");
        let other = json!({"queues": [queue(json!({"x-max-length": 1}))], "users": [user("y", json!("a"))]});
        let plan = compare(&here, &other);
        assert_eq!(plan.conflicting, ["queue '/' 'q': arguments differs there"]);
        assert_eq!(plan.different, ["user 'u': password_hash differs there"]);
    }

    #[test]
    fn each_limit_of_a_user_is_made_by_itself() {
        let listed = json!([{"user": "u", "value": {"max-channels": 5, "max-connections": 2}}]);
        let here = json!({"user_limits": limit_by_limit(&listed)});
        let there =
            json!({"user_limits": limit_by_limit(&json!([{"user": "u", "value": {"max-channels": 7}}]))});
        let plan = compare(&here, &there);
        assert_eq!(plan.different, ["user limit 'u' 'max-channels': value differs there"]);
        assert_eq!(lines(&plan), ["user limit 'u' 'max-connections'"]);
        let path = "/api/user-limits/u/max-connections".to_owned();
        assert_eq!(plan.missing[0].request, DefinitionRequest::Put { path, body: json!({"value": 2}) });
    }

    #[test]
    fn operator_policies_have_a_path_of_their_own() {
        let entry =
            json!({"vhost": "/", "component": "operator_policy", "name": "p", "value": {"pattern": ".*"}});
        let plan = compare(&json!({"parameters": [entry]}), &json!({}));
        let body = json!({"pattern": ".*"});
        let path = "/api/operator-policies/%2F/p".to_owned();
        assert_eq!(plan.missing[0].request, DefinitionRequest::Put { path, body });
    }
}
