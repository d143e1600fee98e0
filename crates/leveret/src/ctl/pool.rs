//! Commands for features that RabbitMQ lacks: clients of the pool, its upstreams and savings, limits, the drain and the
//! upgrade.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::api::{Api, path};
use super::list::ListArgs;
use super::output::Output;
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

pub(super) fn run(command: &PoolCommand, api: &Api, output: &Output) -> Result<(), Failure> {
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
        PoolCommand::Leases => facts(api, output, "leases"),
        PoolCommand::Limits => facts(api, output, "limits"),
        PoolCommand::Drain => {
            api.post(&path(&["leveret", "drain"]), Vec::new())?;
            output.done("the server is draining")
        }
        PoolCommand::Upgrade => upgrade::run(api, output),
    }
}

/// Prints one object, with a line for each of its members.
fn facts(api: &Api, output: &Output, what: &str) -> Result<(), Failure> {
    let whole = api.get(&path(&["leveret", what]))?;
    let members = whole.as_object().into_iter().flatten();
    let facts: Vec<(&str, Value)> = members.map(|(name, value)| (name.as_str(), value.clone())).collect();
    output.facts(&facts, &whole)
}
