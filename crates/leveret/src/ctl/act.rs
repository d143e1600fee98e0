//! Operations on queues, exchanges, connections and running virtual hosts.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Vhost;
use super::api::{Api, path};
use super::output::Output;
use crate::Failure;
use crate::config::ValueError;

/// Actions on queues, connections and a running virtual host.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum ActCommand {
    /// Drop the ready messages of a queue
    PurgeQueue(QueueName),
    /// Delete a queue
    DeleteQueue(DeleteQueue),
    /// Delete an exchange
    DeleteExchange(DeleteExchange),
    /// Close a connection, by the name that list_connections shows
    CloseConnection(CloseConnection),
    /// Close all connections of a user
    CloseAllUserConnections(CloseAll),
    /// Enable the firehose tracer of a virtual host (exchange amq.rabbitmq.trace) until trace_off or a restart
    TraceOn(Vhost),
    /// Disable the firehose tracer of a virtual host
    TraceOff(Vhost),
}

#[derive(Debug, Args)]
pub(super) struct QueueName {
    #[command(flatten)]
    vhost: Vhost,
    /// The queue
    queue: String,
}

#[derive(Debug, Args)]
pub(super) struct DeleteQueue {
    #[command(flatten)]
    queue: QueueName,
    /// Only if there is no message in it
    #[arg(long)]
    if_empty: bool,
    /// Only if it has no consumer
    #[arg(long)]
    if_unused: bool,
}

#[derive(Debug, Args)]
pub(super) struct DeleteExchange {
    #[command(flatten)]
    vhost: Vhost,
    /// The exchange
    exchange: String,
    /// Only if nothing is bound to it
    #[arg(long)]
    if_unused: bool,
}

#[derive(Debug, Args)]
pub(super) struct CloseConnection {
    /// The connection
    name: String,
    /// The reason, sent to the client (ASCII)
    #[arg(default_value = REASON, value_parser = reason)]
    reason: String,
}

#[derive(Debug, Args)]
pub(super) struct CloseAll {
    /// The user
    user: String,
    /// The reason, sent to the clients (ASCII)
    #[arg(default_value = REASON, value_parser = reason)]
    reason: String,
}

const REASON: &str = "closed by leveret ctl";

pub(super) fn run(command: &ActCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        ActCommand::PurgeQueue(QueueName { vhost, queue }) => {
            api.delete(&path(&["queues", &vhost.vhost, queue, "contents"]))?;
            output.done(&format!("queue '{queue}' purged"))
        }
        ActCommand::DeleteQueue(DeleteQueue { queue: QueueName { vhost, queue }, if_empty, if_unused }) => {
            let conditions = [("if-empty", *if_empty), ("if-unused", *if_unused)];
            api.delete(&(path(&["queues", &vhost.vhost, queue]) + &query(&conditions)))?;
            output.done(&format!("queue '{queue}' deleted"))
        }
        ActCommand::DeleteExchange(DeleteExchange { vhost, exchange, if_unused }) => {
            let conditions = query(&[("if-unused", *if_unused)]);
            api.delete(&(path(&["exchanges", &vhost.vhost, exchange]) + &conditions))?;
            output.done(&format!("exchange '{exchange}' deleted"))
        }
        ActCommand::CloseConnection(CloseConnection { name, reason }) => {
            api.delete_because(&path(&["connections", name]), reason)?;
            output.done(&format!("connection '{name}' closed"))
        }
        ActCommand::CloseAllUserConnections(CloseAll { user, reason }) => {
            api.delete_because(&path(&["connections", "username", user]), reason)?;
            output.done(&format!("connections of user '{user}' closed"))
        }
        ActCommand::TraceOn(Vhost { vhost }) => {
            trace(api, vhost, true)?;
            output.done(&format!("tracing enabled in virtual host '{vhost}'"))
        }
        ActCommand::TraceOff(Vhost { vhost }) => {
            trace(api, vhost, false)?;
            output.done(&format!("tracing disabled in virtual host '{vhost}'"))
        }
    }
}

/// Switches tracing. The request has to repeat the rest of the definition, or it would be cleared; and the virtual host has to
/// exist, or it would be created.
fn trace(api: &Api, vhost: &str, tracing: bool) -> Result<(), Failure> {
    let path = path(&["vhosts", vhost]);
    let found = api.get(&path)?;
    let mut changed = json!({ "tracing": tracing });
    for key in ["description", "tags", "default_queue_type"] {
        // RabbitMQ 3.10 shows `undefined`, which is no type of queues.
        if let Some(value) = found.get(key).filter(|value| *value != "undefined") {
            changed[key] = value.clone();
        }
    }
    api.put(&path, &changed)
}

/// Checks that a header can carry the reason (RFC 9110, section 5.5): servers silently drop others.
fn reason(text: &str) -> Result<String, ValueError> {
    match text.chars().find(|each| !matches!(each, ' '..='~')) {
        None => Ok(text.to_owned()),
        Some(other) => Err(ValueError::Text {
            text: other.escape_default().to_string(),
            fault: "is not printable ASCII",
        }),
    }
}

/// The conditions that are set, as a query string.
fn query(conditions: &[(&str, bool)]) -> String {
    let wanted: Vec<_> =
        conditions.iter().filter(|(_, wanted)| *wanted).map(|(name, _)| format!("{name}=true")).collect();
    if wanted.is_empty() { String::new() } else { format!("?{}", wanted.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_would_not_arrive_is_refused() {
        assert_eq!(reason("moved to rack 7 (~noon)").as_deref(), Ok("moved to rack 7 (~noon)"));
        for text in ["größer", "two\nlines", "\u{7f}"] {
            assert!(reason(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_conditions_that_are_wanted_are_asked_for() {
        assert_eq!(query(&[("if-empty", false), ("if-unused", false)]), "");
        assert_eq!(query(&[("if-empty", true), ("if-unused", true)]), "?if-empty=true&if-unused=true");
    }
}
