//! The OpenAPI description, generated from the table of routes.

use serde_json::{Map, Value, json};

use super::call::{ApiAnswer, Call, Reply};
use super::login::RequiredTag;
use super::routes::{Action, ROUTES, Route, Served, Size, Verb};

/// `GET /api/openapi.json`.
pub(super) fn description(call: &Call) -> ApiAnswer {
    Ok(Reply::json(describe(call.api.process.version(), call.api.served())))
}

/// Describes the routes that an API has.
fn describe(version: &str, served: Served) -> Value {
    let mut paths = Map::new();
    for route in ROUTES.iter().filter(|route| served.has(route)) {
        let mut actions = Map::new();
        actions.insert("parameters".to_owned(), path_parameters(route));
        for action in route.actions {
            actions.insert(action.verb.name().to_lowercase(), operation(route, action));
        }
        paths.insert(format!("/{}", route.path), Value::Object(actions));
    }
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Leveret", "version": version,
            "description": "The management API, compatible with RabbitMQ's where both have the thing.",
        },
        "servers": [{"url": "/api"}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": schemas(),
        },
    })
}

fn path_parameters(route: &Route) -> Value {
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}});
    Value::Array(names.map(parameter).collect())
}

fn operation(route: &Route, action: &Action) -> Value {
    let mut operation = json!({
        "summary": action.about, "operationId": format!("{} {}", action.verb.name(), route.path),
        "tags": [route.path.split('/').next().unwrap_or_default()], "responses": responses(route, action),
    });
    let Some(described) = operation.as_object_mut() else { return operation };
    if action.who != RequiredTag::Everybody {
        described.insert("security".to_owned(), json!([{"basic": []}]));
    }
    let query = query_parameters(route, action);
    if !query.is_empty() {
        described.insert("parameters".to_owned(), query.into());
    }
    if let Some(schema) = body_of(route, action) {
        let required = schema.get("required").is_some();
        let body = json!({"required": required, "content": {"application/json": {"schema": schema}}});
        described.insert("requestBody".to_owned(), body);
    }
    operation
}

fn query_parameters(route: &Route, action: &Action) -> Vec<Value> {
    let query =
        |name: &str, schema: Value| json!({"name": name, "in": "query", "required": false, "schema": schema});
    let flag = || json!({"type": "boolean"});
    let text = || json!({"type": "string"});
    match action.verb {
        Verb::Get if action.is_list => vec![
            query("page", json!({"type": "integer", "minimum": 1})),
            query("page_size", json!({"type": "integer", "minimum": 1, "maximum": 500})),
            query("name", json!({"type": "string"})),
            query("use_regex", flag()),
            query("sort", json!({"type": "string"})),
            query("sort_reverse", flag()),
            query("columns", json!({"type": "string"})),
        ],
        Verb::Delete if route.path == "queues/{vhost}/{name}" => {
            vec![query("if-empty", flag()), query("if-unused", flag())]
        }
        Verb::Delete if route.path == "exchanges/{vhost}/{name}" => vec![query("if-unused", flag())],
        Verb::Delete | Verb::Post if route.path.starts_with("leveret/spool/parked") => {
            vec![query("user", text()), query("vhost", text())]
        }
        Verb::Delete if route.path == "leveret/spool/waiting" => {
            let user = json!({"name": "user", "in": "query", "required": true, "schema": text()});
            vec![user, query("vhost", text())]
        }
        _ => Vec::new(),
    }
}

fn responses(route: &Route, action: &Action) -> Value {
    let refused = |about: &str| json!({"description": about, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}});
    let mut responses = Map::new();
    let mut put = |status: &str, response: Value| responses.insert(status.to_owned(), response);
    let is_get = action.verb == Verb::Get || route.path.ends_with("/get") || route.path.ends_with("/publish");
    if is_get {
        let schema = if action.is_list {
            json!({"$ref": "#/components/schemas/List"})
        } else if route.path.ends_with("/get") {
            json!({"type": "array", "items": {"type": "object"}})
        } else if matches!(route.path, "extensions" | "feature-flags" | "leveret/environment")
            || route.path.starts_with("deprecated-features")
            || route.path.starts_with("queues/quorum/")
        {
            json!({"type": "array"})
        } else if route.path == "version" {
            json!({"type": "string"})
        } else {
            json!({"type": "object"})
        };
        put("200", json!({"description": "Here it is", "content": {"application/json": {"schema": schema}}}));
    }
    if matches!(action.verb, Verb::Put) || route.path.contains("/e/") && action.verb == Verb::Post {
        put("201", json!({"description": "It is new"}));
    }
    if !is_get {
        let status = if route.path.ends_with("/shrink") { "202" } else { "204" };
        put(status, json!({"description": "Done"}));
    }
    put("400", refused("Something is wrong with the request"));
    put("401", refused("The login is wrong, or the user may not"));
    put("403", refused("The request comes from a page of another origin, or from another machine"));
    put("404", refused("It is not there"));
    put("408", refused("The body did not come in time"));
    if names_move(route) {
        put("409", refused("Another move is under way than the one that is named"));
    }
    if action.verb == Verb::Delete && route.path == "vhosts/{vhost}" {
        put("412", refused("It is protected from deletion"));
    }
    put("413", refused("The body is too large"));
    put("429", refused("Too many failed logins"));
    let unwell = json!({"description": "Not well, or the disk does not take the change", "content": {"application/json": {"schema": {"type": "object"}}}});
    put("503", unwell);
    Value::Object(responses)
}

/// Whether requests may name the move that they are about.
fn names_move(route: &Route) -> bool {
    matches!(route.path, "leveret/migration/cut-over" | "leveret/migration/finish")
}

/// The schema of an action's body, if it takes one.
fn body_of(route: &Route, action: &Action) -> Option<Value> {
    let name = match (action.verb, route.path) {
        (Verb::Get, _) => return None,
        _ if action.size == Size::Nothing => return None,
        (_, path) if path.starts_with("definitions") || path == "all-configuration" => "Definitions",
        (_, path) if path.starts_with("feature-flags/") => "Anything",
        _ if names_move(route) => "Move",
        (_, path) if path.ends_with("/grow") => "Growth",
        (_, path) if path.contains("/replicas/") => "Replica",
        (_, path) if path.ends_with("/publish") => "Publish",
        (_, path) if path.ends_with("/get") => "Get",
        (_, path) if path.ends_with("/actions") => "QueueAction",
        (_, path) if path.starts_with("queues/") => "Queue",
        (_, path) if path.starts_with("exchanges/") => "Exchange",
        (_, path) if path.starts_with("bindings/") => "Binding",
        (_, path) if path.starts_with("vhosts/") => "VirtualHost",
        (_, "users/bulk-delete") => "Users",
        (_, path) if path.starts_with("users/") => "User",
        (_, path) if path.starts_with("permissions/") => "Permission",
        (_, path) if path.starts_with("topic-permissions/") => "TopicPermission",
        (_, path) if path.contains("policies/") => "Policy",
        (_, path) if path.contains("-limits/") => "Limit",
        (_, "cluster-name") => "Name",
        _ => "Value",
    };
    let schemas = schemas();
    let required = schemas.get(name).is_some_and(|schema| schema.get("required").is_some());
    let mut reference = json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]});
    if let (true, Some(reference)) = (required, reference.as_object_mut()) {
        reference.insert("required".to_owned(), schemas[name]["required"].clone());
    }
    Some(reference)
}

/// The members by which a request names a move.
fn move_names() -> Value {
    let direction = json!({"type": "string", "enum": ["to", "from"]});
    json!({"direction": direction, "addresses": {"type": "array", "items": {"type": "string"}}})
}

fn schemas() -> Value {
    let text = || json!({"type": "string"});
    let flag = || json!({"type": "boolean"});
    let object = |properties: Value, required: &[&str]| {
        let mut schema = json!({"type": "object", "properties": properties});
        if let (false, Some(schema)) = (required.is_empty(), schema.as_object_mut()) {
            schema.insert("required".to_owned(), json!(required));
        }
        schema
    };
    let anything = || json!({"type": "object"});
    let tags = || json!({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});
    json!({
        "Error": object(json!({"error": text(), "reason": {}}), &["error", "reason"]),
        "List": {"oneOf": [
            {"type": "array", "items": {"type": "object"}},
            object(json!({
                "items": {"type": "array", "items": {"type": "object"}}, "page": {"type": "integer"},
                "page_count": {"type": "integer"}, "page_size": {"type": "integer"},
                "item_count": {"type": "integer"}, "filtered_count": {"type": "integer"},
                "total_count": {"type": "integer"},
            }), &["items", "page", "page_count", "page_size", "item_count", "filtered_count", "total_count"]),
        ]},
        "Definitions": object(json!({}), &[]),
        "Anything": anything(),
        "Publish": object(json!({
            "properties": anything(), "routing_key": text(), "payload": text(),
            "payload_encoding": {"type": "string", "enum": ["string", "base64"]},
        }), &["properties", "routing_key", "payload", "payload_encoding"]),
        "Get": object(json!({
            "count": {"type": "integer", "minimum": 0},
            "ackmode": {"type": "string", "enum": [
                "ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false",
            ]},
            "encoding": {"type": "string", "enum": ["auto", "base64"]},
            "truncate": {"type": "integer", "minimum": 0},
        }), &["count", "ackmode", "encoding"]),
        "QueueAction": object(json!({"action": {"type": "string", "enum": ["sync", "cancel_sync"]}}), &["action"]),
        "Queue": object(json!({
            "durable": flag(), "auto_delete": flag(), "arguments": anything(),
        }), &[]),
        "Exchange": object(json!({
            "type": text(), "durable": flag(), "auto_delete": flag(), "internal": flag(), "arguments": anything(),
        }), &[]),
        "Binding": object(json!({"routing_key": text(), "arguments": anything()}), &[]),
        "VirtualHost": object(json!({
            "description": text(), "tags": tags(),
            "default_queue_type": {"type": "string", "enum": ["classic", "quorum"]},
        }), &[]),
        "Users": object(json!({"users": {"type": "array", "items": text()}}), &["users"]),
        "User": object(json!({
            "password": text(), "password_hash": text(), "hashing_algorithm": text(), "tags": tags(),
        }), &["tags"]),
        "Permission": object(json!({"configure": text(), "write": text(), "read": text()}), &["configure", "write", "read"]),
        "TopicPermission": object(json!({"exchange": text(), "write": text(), "read": text()}), &["exchange", "write", "read"]),
        "Policy": object(json!({
            "pattern": text(), "definition": anything(), "priority": {"type": "integer"},
            "apply-to": {"type": "string", "enum": [
                "all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges",
            ]},
        }), &["pattern", "definition"]),
        "Limit": object(json!({"value": {"type": "integer"}}), &["value"]),
        "Move": object(move_names(), &[]),
        "Growth": object(json!({
            "vhost_pattern": text(), "queue_pattern": text(), "strategy": {"type": "string", "enum": ["all", "even"]},
        }), &["vhost_pattern", "queue_pattern", "strategy"]),
        "Replica": object(json!({"node": text()}), &["node"]),
        "Name": object(json!({"name": text()}), &["name"]),
        "Value": object(json!({"value": {}}), &["value"]),
    })
}

#[cfg(test)]
mod tests {
    use broker::Compatibility;

    use super::*;

    #[test]
    fn every_route_is_described() {
        for compatibility in [Compatibility::V3_10, Compatibility::V4] {
            every_route_of_a_release_is_described(Served { has_broker: true, compatibility });
        }
    }

    fn every_route_of_a_release_is_described(served: Served) {
        let description = describe("1", served);
        for route in ROUTES.iter().filter(|route| served.has(route)) {
            let described = &description["paths"][format!("/{}", route.path)];
            for action in route.actions {
                assert!(described[action.verb.name().to_lowercase()].is_object(), "{}", route.path);
            }
        }
        let without = describe("1", Served { has_broker: false, ..served });
        assert!(without["paths"]["/queues"].is_null() && without["paths"]["/leveret/limits"].is_object());
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let served = Served { has_broker: true, compatibility: Compatibility::V4 };
        let mut names: Vec<String> = ROUTES
            .iter()
            .filter(|route| served.has(route))
            .flat_map(|route| {
                route.actions.iter().map(|action| format!("{} {}", action.verb.name(), route.path))
            })
            .collect();
        let before = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
