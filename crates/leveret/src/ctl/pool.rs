//! Commands for features that RabbitMQ lacks: clients of the pool, its upstreams and savings, limits, the drain and the
//! upgrade.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api::{Api, path};
use super::list::ListArgs;
use super::missing;
use super::output::{Column, Output};
use super::spool::{self, SpoolCommand};
use super::upgrade;
use crate::Failure;

/// Questions to a Leveret, and actions on it.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum PoolCommand {
    /// Clients, and the upstream connections that serve them
    #[command(visible_alias = "clients")]
    ListClients(ListArgs),
    /// Upstream addresses, and whether they are reachable
    #[command(visible_alias = "upstreams")]
    ListUpstreams(ListArgs),
    /// Upstream connections, and how many share them
    ListUpstreamConnections(ListArgs),
    /// Queues of multiplexed subscriptions upstream, and the copies made of their messages
    ListMultiplexedQueues(ListArgs),
    /// The binding keys of a queue of multiplexed subscriptions upstream
    ListMultiplexedBindings(MultiplexedQueueArgs),
    /// MQTT and STOMP sessions, connected or not, in front of an upstream
    #[command(visible_alias = "sessions")]
    ListSessions(ListArgs),
    /// Groups of MQTT's shared subscriptions with members that are connected here
    ListSharedGroups(ListArgs),
    /// Retained MQTT messages of each virtual host upstream
    ListRetained(ListArgs),
    /// The spool of the pool: its messages and its state
    #[command(subcommand)]
    Spool(SpoolCommand),
    /// Channels leased to clients, and what sharing has saved
    Leases,
    /// The limits of this process, and how often they were exceeded
    Limits,
    /// The settings that the running server has in effect, and where they came from
    Environment(ListArgs),
    /// Shut the server down gracefully, as SIGTERM does
    Drain,
    /// Upgrade in place to the binary on the server's disk, which takes over without refusing any client
    Upgrade,
}

/// A list of what one multiplexed queue has.
#[derive(Debug, Args)]
pub(super) struct MultiplexedQueueArgs {
    /// The name of the queue upstream, as list_multiplexed_queues shows it
    queue: String,
    #[command(flatten)]
    list: ListArgs,
}

const CLIENT: [&str; 5] = ["name", "user", "vhost", "protocol", "connection_name"];
const MULTIPLEXED_QUEUE: [&str; 7] =
    ["name", "user", "vhost", "subscribers", "bindings", "messages_received", "copies_delivered"];

const SESSION: [&str; 7] = ["name", "user", "vhost", "protocol", "state", "persistent", "subscriptions"];
const GROUP: [&str; 5] = ["name", "vhost", "filter", "members", "messages_delivered"];
const RETAINED: [&str; 5] = ["vhost", "queue", "state", "topics", "bytes"];

/// The name of something that only a pool has, although a broker answers with an empty list.
fn of_pools(command: &PoolCommand) -> Option<&'static str> {
    Some(match command {
        PoolCommand::ListUpstreams(_) => "upstreams",
        PoolCommand::ListUpstreamConnections(_) => "upstream connections",
        PoolCommand::ListMultiplexedQueues(_) => "multiplexed queues",
        PoolCommand::ListSessions(_) => "sessions",
        PoolCommand::ListSharedGroups(_) => "shared groups",
        PoolCommand::ListRetained(_) => "retained messages",
        PoolCommand::Spool(_) => "spool",
        _ => return None,
    })
}

pub(super) fn run(command: &PoolCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    if let Some(what) = of_pools(command)
        && api.found(&path(&["overview"]))?.is_some_and(|overview| overview["mode"] == "broker")
    {
        return Err(Failure::Run(missing::only_for_a_pool(what)));
    }
    match command {
        PoolCommand::ListClients(list) => list.show(api, output, &["leveret", "clients"], &CLIENT, true),
        PoolCommand::ListUpstreams(list) => list.show(
            api,
            output,
            &["leveret", "upstreams"],
            &["address", "up", "connections", "cause"],
            false,
        ),
        PoolCommand::ListUpstreamConnections(list) => list.show(
            api,
            output,
            &["leveret", "connections"],
            &["name", "user", "vhost", "channels", "clients"],
            false,
        ),
        PoolCommand::ListMultiplexedQueues(list) => {
            list.show(api, output, &["leveret", "multiplexed-queues"], &MULTIPLEXED_QUEUE, false)
        }
        PoolCommand::ListMultiplexedBindings(MultiplexedQueueArgs { queue, list }) => {
            let parts = ["leveret", "multiplexed-queues", queue, "bindings"];
            list.show(api, output, &parts, &["key", "subscribers", "bound"], true)
        }
        PoolCommand::ListSessions(list) => list.show(api, output, &["leveret", "sessions"], &SESSION, true),
        PoolCommand::ListSharedGroups(list) => {
            list.show(api, output, &["leveret", "shared-groups"], &GROUP, true)
        }
        PoolCommand::ListRetained(list) => list.show(api, output, &["leveret", "retained"], &RETAINED, false),
        PoolCommand::Spool(command) => spool::run(command, api, output),
        PoolCommand::Environment(list) => {
            list.show(api, output, &["leveret", "environment"], &["key", "value", "origin", "live"], false)
        }
        PoolCommand::Leases => leases(api, output),
        PoolCommand::Limits => limits(api, output),
        PoolCommand::Drain => {
            api.post(&path(&["leveret", "drain"]), Vec::new())?;
            output.done("the server is draining")
        }
        PoolCommand::Upgrade => upgrade::run(api, output),
    }
}

/// Prints the limits as a table, or as JSON what the server answers.
fn limits(api: &Api, output: &Output) -> Result<(), Failure> {
    let whole = api.get(&path(&["leveret", "limits"]))?;
    if output.is_json() {
        return output.json(&whole);
    }
    if whole["mode"] == "alarm" {
        output
            .remark("limits_mode is alarm: clients above a limit are counted and logged, but not refused")?;
    }
    output.rows(&["limit", "in_use", "maximum", "exceeded"].map(Column::new), false, limit_rows(&whole))
}

/// A row for each limit: on clients, of all and of one address or user, and those of a pool on itself.
fn limit_rows(whole: &Value) -> Vec<Value> {
    let unlimited = |most: &Value| if most.is_null() { json!("unlimited") } else { most.clone() };
    let mut rows = Vec::new();
    for kind in ["connections", "connection_rate", "channels", "receive_rate"] {
        for scope in ["total", "per_ip", "per_user"] {
            let Some(most) = whole[kind].get(scope) else { continue };
            let name = if scope == "total" { kind.to_owned() } else { format!("{kind}_{scope}") };
            rows.push(json!({
                "in_use": whole["in_use"][kind][scope], "maximum": unlimited(most),
                "exceeded": whole["exceeded"][&name], "limit": name,
            }));
        }
    }
    for (kind, limit) in whole["upstream"].as_object().into_iter().flatten() {
        rows.push(json!({
            "limit": format!("upstream_{kind}"), "in_use": limit["in_use"], "maximum": unlimited(&limit["total"]),
        }));
    }
    rows
}

/// Prints one object, with a line for each of its members.
fn leases(api: &Api, output: &Output) -> Result<(), Failure> {
    let whole = api.get(&path(&["leveret", "leases"]))?;
    let members = whole.as_object().into_iter().flatten();
    let facts: Vec<(&str, Value)> = members.map(|(name, value)| (name.as_str(), value.clone())).collect();
    output.facts(&facts, &whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_a_row() {
        let rows = limit_rows(&json!({
            "connections": {"total": 77, "per_ip": null, "per_user": 3},
            "in_use": {"connections": {"total": 5, "per_ip": 2, "per_user": 1}},
            "exceeded": {"connections": 0, "connections_per_ip": 0, "connections_per_user": 4},
            "upstream": {"replay_bytes": {"total": 9, "in_use": 0}},
        }));
        let row = |limit, in_use, maximum: Value, exceeded: Value| json!({"limit": limit, "in_use": in_use, "maximum": maximum, "exceeded": exceeded});
        assert_eq!(
            rows[..3],
            [
                row("connections", 5, json!(77), json!(0)),
                row("connections_per_ip", 2, json!("unlimited"), json!(0)),
                row("connections_per_user", 1, json!(3), json!(4)),
            ]
        );
        assert_eq!(rows[3..], [json!({"limit": "upstream_replay_bytes", "in_use": 0, "maximum": 9})]);
    }
}
