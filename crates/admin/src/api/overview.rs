//! The broker as a whole: overview, node and cluster name.

use std::sync::Arc;

use broker::{Broker, Compatibility, ExchangeKind, PasswordHash, QueueKind, Section, VirtualHost};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use super::call::{ApiAnswer, Call, Reply, require};
use super::error::ApiError;
use super::listing::{list, select};
use super::process::ListenerInfo;
use super::snapshot::of_vhost;
use super::stats;
use super::totals::Sum;

/// `GET /api/overview`. Users who may not see everything are shown no node and no listeners, and the figures of what they may
/// see, as in RabbitMQ.
pub(super) fn overview(call: &Call) -> ApiAnswer {
    let node = call.api.process.node();
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| body.insert(key.to_owned(), value);
    put("management_version", json!(call.rabbitmq_version()));
    put("rates_mode", json!("basic"));
    put("sample_retention_policies", json!({"basic": [], "detailed": [], "global": []}));
    put("product_version", json!(call.api.process.version()));
    put("product_name", json!("Leveret"));
    put("rabbitmq_version", json!(call.rabbitmq_version()));
    put("cluster_name", json!(name_of_cluster(call)));
    if call.compatibility() == Compatibility::V4 {
        put("cluster_tags", tags_of_cluster(call));
        put("node_tags", json!({}));
        put("default_queue_type", json!(QueueKind::default().name()));
        put("is_op_policy_updating_enabled", json!(true));
        put("require_definition_json_extension", json!(false));
    }
    put("disable_stats", json!(false));
    put("enable_queue_totals", json!(false));
    put("statistics_db_event_queue", json!(0));
    put("mode", json!(if call.api.broker.is_some() { "broker" } else { "proxy" }));
    // RabbitMQ counts them for everybody alike.
    put("churn_rates", churn(call));
    if call.user.is_monitor() {
        put("node", json!(node.name));
        put("listeners", listeners(call, &node.name));
        put("contexts", contexts(call, &node.name));
        put("object_totals", object_totals(call));
    }
    if let Ok(broker) = call.broker() {
        put("exchange_types", exchange_types(call));
        if call.user.is_monitor() {
            put("message_stats", message_stats(call, broker));
            put("queue_totals", queue_totals(call, broker));
        } else {
            let vhosts = call.visible_vhosts()?;
            let totals = call.api.totals.get(&call.api.queues, broker, call.now());
            let sum = vhosts.iter().map(|vhost| totals.of(vhost.name())).sum::<Sum>();
            put("message_stats", stats::of_queues(&sum.counts).unwrap_or_else(|| json!({})));
            put("queue_totals", visible_queue_totals(sum));
            put("object_totals", visible_object_totals(call, broker, &vhosts));
        }
    }
    Ok(Reply::json(columns(call, Value::Object(body))))
}

/// `GET /api/whoami`.
pub(super) fn whoami(call: &Call) -> ApiAnswer {
    let mut shown = json!({"name": call.user.name(), "tags": call.user.tags});
    if call.compatibility() == Compatibility::V4 {
        shown["is_internal_user"] = json!(true);
    }
    Ok(Reply::json(shown))
}

/// `GET /api/version`.
pub(super) fn version(call: &Call) -> ApiAnswer {
    Ok(Reply::json(call.rabbitmq_version()))
}

/// `GET /api/auth`: the only login is by user and password.
pub(super) fn auth(_: &Call) -> ApiAnswer {
    Ok(Reply::json(json!({"enable_uaa": false, "uaa_client_id": "", "uaa_location": ""})))
}

/// `GET /api/auth/hash_password/{password}`: what `password_hash` of a user is to be for that password.
pub(super) fn hash_password(call: &Call) -> ApiAnswer {
    let (hash, _) = PasswordHash::new(call.at("password").as_bytes()).write();
    Ok(Reply::json(json!({"ok": hash})))
}

/// `DELETE /api/reset`, and of the node: no figures are collected that could be forgotten.
pub(super) fn reset(call: &Call) -> ApiAnswer {
    call.check_node()?;
    Ok(Reply::no_content())
}

/// `GET /api/extensions`.
pub(super) fn extensions(_: &Call) -> ApiAnswer {
    Ok(Reply::json(json!([])))
}

/// `GET /api/cluster-name`.
pub(super) fn cluster_name(call: &Call) -> ApiAnswer {
    Ok(Reply::json(json!({"name": name_of_cluster(call)})))
}

/// `PUT /api/cluster-name`.
pub(super) fn set_cluster_name(call: &Call) -> ApiAnswer {
    let body = call.object()?;
    require(&body, &["name"])?;
    let name = body.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| ApiError::bad_request("name is not a string"))?;
    call.define(Section::GlobalParameters, json!({"name": CLUSTER_NAME, "value": name}))?;
    call.defined(Reply::no_content())
}

/// `POST /api/rebalance/queues`.
pub(super) fn rebalance(_: &Call) -> ApiAnswer {
    Ok(Reply::no_content())
}

/// `GET /api/nodes`.
pub(super) fn nodes(call: &Call) -> ApiAnswer {
    list(call, vec![show_node(call)], |_| ("", ""), Clone::clone)
}

/// `GET /api/nodes/{node}`.
pub(super) fn node(call: &Call) -> ApiAnswer {
    let shown = show_node(call);
    match shown.get("name") == Some(&json!(call.at("node"))) {
        true => Ok(Reply::json(columns(call, shown))),
        false => Err(ApiError::not_found()),
    }
}

/// Keeps only the columns in the query.
pub(super) fn columns(call: &Call, value: Value) -> Value {
    match call.query("columns") {
        None => value,
        Some(columns) => select(&value, &columns.split(',').collect::<Vec<_>>()),
    }
}

/// The listeners, with RabbitMQ's names of their protocols.
fn listeners(call: &Call, node: &str) -> Value {
    let show = |listener: &ListenerInfo| {
        let mut shown = json!({
            "node": node, "protocol": listener.protocol, "ip_address": listener.host, "port": listener.port,
            "socket_opts": {},
        });
        if call.compatibility() == Compatibility::V4 {
            shown["tls"] = json!(listener.is_tls());
        }
        shown
    };
    Value::Array(call.api.process.listeners().iter().map(show).collect())
}

fn contexts(call: &Call, node: &str) -> Value {
    let listeners = call.api.process.listeners();
    let http = listeners.iter().filter(|listener| matches!(listener.protocol, "http" | "https"));
    let show = |listener: &ListenerInfo| {
        json!({
            "node": node, "description": "Leveret", "path": "/", "ip": listener.host,
            "port": listener.port.to_string(), "ssl_opts": [], "cowboy_opts": "[]",
        })
    };
    Value::Array(http.map(show).collect())
}

/// The global parameter `cluster_tags`, which RabbitMQ stores as a list if it is empty.
fn tags_of_cluster(call: &Call) -> Value {
    let set = call.api.broker.as_ref();
    let set = set.and_then(|broker| broker.definition(Section::GlobalParameters, &["cluster_tags"]));
    set.map(|mut set| set["value"].take()).filter(Value::is_object).unwrap_or_else(|| json!({}))
}

/// The name that operators have given to the broker, or else that of the node.
pub(super) fn name_of_cluster(call: &Call) -> String {
    let set = call.api.broker.as_ref().and_then(|broker| {
        broker.definition(Section::GlobalParameters, &[CLUSTER_NAME])?["value"].as_str().map(str::to_owned)
    });
    set.unwrap_or_else(|| call.api.process.node_name().to_owned())
}

fn exchange_types(call: &Call) -> Value {
    let show = |(name, about): &(&str, &str)| json!({"name": name, "description": about, "enabled": true});
    let exists = |(name, _): &&(&str, &str)| {
        ExchangeKind::from_name(name).is_some_and(|kind| kind.exists_in(call.compatibility()))
    };
    Value::Array(EXCHANGE_TYPES.iter().filter(exists).map(show).collect())
}

fn message_stats(call: &Call, broker: &Broker) -> Value {
    let (metrics, counters) = (broker.metrics(), call.api.process.counters());
    let (mut stats, samples) = (Map::new(), &call.api.samples);
    let (delivered, got) = (metrics.messages_delivered.get(), metrics.messages_got.get());
    let delivered_no_ack = metrics.messages_delivered_auto_ack.get();
    let got_no_ack = metrics.messages_got_auto_ack.get();
    let mut show = |series, count| samples.show(&mut stats, series, series, count);
    show("ack", metrics.messages_acked.get());
    show("confirm", counters.confirmed);
    show("deliver", delivered.saturating_sub(delivered_no_ack));
    show("deliver_get", delivered + got);
    show("deliver_no_ack", delivered_no_ack);
    show("drop_unroutable", metrics.messages_dropped());
    show("get", got.saturating_sub(got_no_ack));
    show("get_empty", metrics.gets_empty.get());
    show("get_no_ack", got_no_ack);
    show("publish", metrics.messages_routed.get() + metrics.messages_unroutable.get());
    show("redeliver", metrics.messages_redelivered.get());
    show("return_unroutable", counters.returned);
    Value::Object(stats)
}

fn churn(call: &Call) -> Value {
    let (mut churn, samples) = (Map::new(), &call.api.samples);
    let counters = call.api.process.counters();
    let mut show = |series, count| samples.show(&mut churn, series, series, count);
    show("channel_closed", counters.channels_closed);
    show("channel_created", counters.channels_opened);
    show("connection_closed", counters.connections_closed);
    show("connection_created", counters.connections_opened);
    if let Some(broker) = &call.api.broker {
        let metrics = broker.metrics();
        show("queue_created", metrics.queues_created.get());
        show("queue_declared", metrics.queues_declared.get());
        show("queue_deleted", metrics.queues_deleted.get());
    }
    Value::Object(churn)
}

fn object_totals(call: &Call) -> Value {
    let counters = call.api.process.counters();
    let channels = counters.channels_opened.saturating_sub(counters.channels_closed);
    let connections = call.api.process.connection_count();
    match &call.api.broker {
        None => json!({"channels": channels, "connections": connections}),
        Some(broker) => {
            let metrics = broker.metrics();
            json!({
                "channels": channels, "connections": connections, "consumers": metrics.consumers.get(),
                // RabbitMQ also counts the default exchange of each virtual host.
                "exchanges": metrics.exchanges.get() + broker.vhosts().len() as u64,
                "queues": metrics.queues.get(),
            })
        }
    }
}

fn queue_totals(call: &Call, broker: &Broker) -> Value {
    let Sum { ready, unacknowledged, .. } =
        call.api.totals.get(&call.api.queues, broker, call.now()).of_all();
    let (mut shown, samples) = (Map::new(), &call.api.samples);
    samples.show(&mut shown, "queue_totals.messages", "messages", ready + unacknowledged);
    samples.show(&mut shown, "queue_totals.ready", "messages_ready", ready);
    samples.show(&mut shown, "queue_totals.unacknowledged", "messages_unacknowledged", unacknowledged);
    Value::Object(shown)
}

/// Messages in the queues that the user may see. There are no rates: samples are taken of all queues together.
fn visible_queue_totals(Sum { ready, unacknowledged, .. }: Sum) -> Value {
    json!({
        "messages": ready + unacknowledged, "messages_ready": ready, "messages_unacknowledged": unacknowledged,
    })
}

/// Counts what the virtual hosts that the user may open contain, and the user's own connections. As in RabbitMQ, no
/// consumers.
fn visible_object_totals(call: &Call, broker: &Broker, vhosts: &[Arc<VirtualHost>]) -> Value {
    let queues = call.api.queues.get(broker);
    let mut connections = call.api.process.connections();
    connections.retain(|connection| call.user.sees_connections_of(connection.user()));
    json!({
        "channels": connections.iter().map(|connection| connection.info().channels).sum::<u64>(),
        "connections": connections.len(),
        "exchanges": vhosts.iter().map(|vhost| vhost.all_exchanges().len()).sum::<usize>(),
        "queues": vhosts.iter().map(|vhost| of_vhost(&queues, vhost.name()).len()).sum::<usize>(),
    })
}

fn show_node(call: &Call) -> Value {
    let node = call.api.process.node();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut shown = json!({
        "name": node.name, "type": "disc", "running": true, "uptime": node.uptime, "os_pid": std::process::id().to_string(),
        "processors": processors, "rates_mode": "basic", "partitions": [], "being_drained": false,
        "mem_alarm": node.memory_alarm, "disk_free_alarm": node.disk_alarm, "exchange_types": exchange_types(call),
        "auth_mechanisms": MECHANISMS.iter().map(|(name, about)| {
            json!({"name": name, "description": about, "enabled": true})
        }).collect::<Vec<_>>(),
        "applications": [{
            "name": "leveret", "description": "Leveret", "version": call.api.process.version(),
        }],
        "contexts": contexts(call, &node.name), "cluster_links": [], "config_files": [], "enabled_plugins": [],
        "log_files": [], "net_ticktime": 60,
    });
    if call.compatibility() == Compatibility::V4 {
        shown["rabbitmq_version"] = json!(call.rabbitmq_version());
    }
    let (open, most) = node.descriptors;
    // Tasks stand for Erlang's processes. There is no limit: the largest number that clients read stands for none.
    let tasks = Handle::try_current().ok().map(|runtime| runtime.metrics());
    let known = [
        ("mem_used", node.memory_used),
        ("mem_limit", node.memory_limit),
        ("disk_free", node.disk_free),
        ("disk_free_limit", node.disk_free_limit),
        ("fd_used", open),
        ("fd_total", most),
        ("sockets_used", Some(call.api.process.connection_count())),
        // RabbitMQ has no limit of its own for these either, and says so.
        ("sockets_total", Some(0)),
        ("run_queue", tasks.as_ref().map(|tasks| tasks.global_queue_depth() as u64)),
        ("proc_used", tasks.as_ref().map(|tasks| tasks.num_alive_tasks() as u64)),
        ("proc_total", tasks.is_some().then_some(u64::from(u32::MAX))),
    ];
    if let Some(shown) = shown.as_object_mut() {
        for (key, value) in known {
            if let Some(value) = value {
                shown.insert(key.to_owned(), value.into());
            }
        }
    }
    shown
}

const CLUSTER_NAME: &str = "cluster_name";

const EXCHANGE_TYPES: &[(&str, &str)] = &[
    ("direct", "AMQP direct exchange, as per the AMQP specification"),
    ("fanout", "AMQP fanout exchange, as per the AMQP specification"),
    ("headers", "AMQP headers exchange, as per the AMQP specification"),
    ("topic", "AMQP topic exchange, as per the AMQP specification"),
    ("x-consistent-hash", "Consistent Hashing Exchange"),
    ("x-local-random", "Picks one random local binding (queue) to route via (to)."),
];

const MECHANISMS: &[(&str, &str)] = &[
    ("AMQPLAIN", "QPid AMQPLAIN mechanism"),
    ("EXTERNAL", "SASL EXTERNAL authentication mechanism"),
    ("PLAIN", "SASL PLAIN authentication mechanism"),
];
