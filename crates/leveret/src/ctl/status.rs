//! The state of a server.

use clap::Subcommand;
use serde_json::{Value, json};

use super::api::{Api, path};
use super::output::Output;
use crate::Failure;

/// Questions.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum StatusCommand {
    /// The state of the server, its contents and its resources
    Status,
    /// Check that the server answers, and that no alarm is in effect; exit code 0 or 1
    Ping,
}

pub(super) fn run(command: &StatusCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        StatusCommand::Status => status(api, output),
        StatusCommand::Ping => {
            api.get(&path(&["health", "checks", "alarms"]))?;
            output.done("the server responds, and no alarm is in effect")
        }
    }
}

fn status(api: &Api, output: &Output) -> Result<(), Failure> {
    let overview = api.get(&path(&["overview"]))?;
    // A Leveret in front of an upstream has none.
    let nodes = api.found(&path(&["nodes"]))?.unwrap_or_default();
    let node = nodes.get(0).unwrap_or(&Value::Null);
    let reported = |place: &str| overview.pointer(place).cloned().unwrap_or(Value::Null);
    let used = |key: &str| node.get(key).cloned().unwrap_or(Value::Null);
    let is_pool = reported("/mode") == "proxy";
    let (upstreams, leases) = match is_pool {
        true => (api.get(&path(&["leveret", "upstreams"]))?, api.get(&path(&["leveret", "leases"]))?),
        false => (Value::Null, Value::Null),
    };
    let mut facts = if is_pool { pool_facts(&upstreams, &leases) } else { Vec::new() };
    facts.extend([
        ("product", reported("/product_name")),
        ("version", reported("/product_version")),
        // A pool follows the release of its upstream, which this is not.
        ("rabbitmq_version", if is_pool { Value::Null } else { reported("/rabbitmq_version") }),
        ("cluster_name", reported("/cluster_name")),
        ("node", reported("/node")),
        ("uptime_ms", used("uptime")),
        ("connections", reported("/object_totals/connections")),
        ("channels", reported("/object_totals/channels")),
        ("exchanges", reported("/object_totals/exchanges")),
        ("queues", reported("/object_totals/queues")),
        ("consumers", reported("/object_totals/consumers")),
        ("messages", reported("/queue_totals/messages")),
        ("messages_ready", reported("/queue_totals/messages_ready")),
        ("messages_unacknowledged", reported("/queue_totals/messages_unacknowledged")),
        ("mem_used", used("mem_used")),
        ("mem_limit", used("mem_limit")),
        ("mem_alarm", used("mem_alarm")),
        ("disk_free", used("disk_free")),
        ("disk_free_limit", used("disk_free_limit")),
        ("disk_free_alarm", used("disk_free_alarm")),
        ("fd_used", used("fd_used")),
        ("fd_total", used("fd_total")),
    ]);
    let mut whole = json!({ "overview": overview, "nodes": nodes });
    if is_pool {
        whole["upstreams"] = upstreams;
        whole["leases"] = leases;
    }
    output.facts(&facts, &whole)
}

/// A pool's clients, its upstreams, and what it saves.
fn pool_facts(upstreams: &Value, leases: &Value) -> Vec<(&'static str, Value)> {
    let figure = |name: &'static str| (name, leases.get(name).cloned().unwrap_or(Value::Null));
    let mut facts = vec![("mode", Value::from("pool")), figure("clients")];
    for upstream in upstreams.as_array().into_iter().flatten() {
        let text = |key: &str| upstream[key].as_str().unwrap_or_default();
        let state = match upstream["up"].as_bool() {
            Some(true) if upstream["connections"] == 1 => "up, 1 connection".to_owned(),
            Some(true) => format!("up, {} connections", upstream["connections"]),
            Some(false) => format!("down: {}", text("cause")),
            None => text("cause").to_owned(),
        };
        facts.push(("upstream", Value::from(format!("{} {state}", text("address")))));
    }
    facts.extend(SAVINGS.map(figure));
    facts
}

const SAVINGS: [&str; 4] =
    ["upstream_connections", "connections_saved", "handshakes_avoided", "round_trips_saved"];
