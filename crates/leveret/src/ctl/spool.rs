//! `leveret ctl spool`: what waits in the spool of a pool, and what it does.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::api::{Api, encode, path};
use super::list::ListArgs;
use super::output::Output;
use crate::Failure;

/// Questions to a spool, and actions on it.
#[derive(Debug, Subcommand)]
pub(super) enum SpoolCommand {
    /// Messages by user and virtual host: their age, the rates, and what keeps them from being forwarded
    List(ListArgs),
    /// Messages that the upstream has refused permanently
    Parked(ListArgs),
    /// Forward parked messages again, after the waiting ones
    Requeue(Selection),
    /// Drop parked messages, or those of a user that wait
    Purge(Purge),
    /// Forward nothing until `resume`; publishes are accepted as before
    Pause,
    /// Accept publishes and forward them again, after `pause` or `drain`
    Resume,
    /// Forward everything while publishers are blocked; their publishes go directly to the upstream then, until `resume`
    Drain,
}

/// The messages of all users and virtual hosts, or of some.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Only those of this user
    #[arg(long, value_name = "USER")]
    of_user: Option<String>,
    /// Only those in this virtual host
    #[arg(long)]
    vhost: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Purge {
    #[command(flatten)]
    selection: Selection,
    /// Drop the messages of a user that are not forwarded yet, instead of parked ones. Their publishers have got confirms
    /// for them, and there is no other copy
    #[arg(long, requires = "of_user")]
    waiting: bool,
    /// Drop them; without it the command drops nothing, and shows how many messages of the user wait
    #[arg(long)]
    yes: bool,
}

const QUEUE: [&str; 10] = [
    "user",
    "vhost",
    "state",
    "messages",
    "bytes",
    "max_bytes",
    "oldest_seconds",
    "accept_rate",
    "forward_rate",
    "waits_for",
];
const PARKED: [&str; 5] = ["user", "vhost", "exchange", "routing_key", "reason"];

pub(super) fn run(command: &SpoolCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    let (action, done) = match command {
        SpoolCommand::List(list) => return list.show(api, output, &["leveret", "spool"], &QUEUE, false),
        SpoolCommand::Parked(list) => {
            return list.show(api, output, &["leveret", "spool", "parked"], &PARKED, false);
        }
        SpoolCommand::Requeue(selection) => {
            let parked = path(&["leveret", "spool", "parked", "requeue"]);
            let answer = api.post(&(parked + &selection.query()), Vec::new())?;
            let (requeued, left) = (&answer["requeued"], &answer["remaining"]);
            return output
                .done(&format!("{requeued} parked messages are forwarded again, {left} are parked"));
        }
        SpoolCommand::Purge(purge) => return purge.run(api, output),
        SpoolCommand::Pause => ("pause", "forwarding paused"),
        SpoolCommand::Resume => ("resume", "forwarding resumed"),
        SpoolCommand::Drain => ("drain", "draining; publishers are blocked until the spool is empty"),
    };
    api.post(&path(&["leveret", "spool", action]), Vec::new())?;
    output.done(done)?;
    if action == "drain" {
        return remark_remaining_messages(api, output);
    }
    Ok(())
}

impl Purge {
    /// Messages are dropped only by somebody who knows what that means.
    fn run(&self, api: &Api, output: &Output) -> Result<(), Failure> {
        let Self { selection, waiting, yes } = self;
        let (kind, what) = match waiting {
            true => ("waiting", "messages that were not forwarded"),
            false => ("parked", "parked messages"),
        };
        if *yes {
            let answer = api.remove(&(path(&["leveret", "spool", kind]) + &selection.query()))?;
            return output.done(&format!("{} {what} are dropped", answer["purged"]));
        }
        // The list of parked messages has only the first of them, so they are not counted.
        let messages = match waiting {
            true => {
                let queues = queues(api)?;
                let selected = queues.iter().filter(|queue| selection.contains(queue));
                selected.filter_map(|queue| queue["messages"].as_u64()).sum::<u64>().to_string()
            }
            false => "parked".to_owned(),
        };
        Err(Failure::Usage(format!(
            "would drop {messages} messages whose publishers already have confirms; add --yes"
        )))
    }
}

/// Prints what a drain waits for.
fn remark_remaining_messages(api: &Api, output: &Output) -> Result<(), Failure> {
    for queue in queues(api)?.iter().filter(|queue| queue["messages"] != 0) {
        let text = |key: &str| queue[key].as_str().unwrap_or_default().to_owned();
        let (messages, user, vhost) = (&queue["messages"], text("user"), text("vhost"));
        let reason = queue["waits_for"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
        output.remark(&format!(
            "{messages} messages of user '{user}' in virtual host '{vhost}' are left{reason}"
        ))?;
    }
    Ok(())
}

fn queues(api: &Api) -> Result<Vec<Value>, Failure> {
    match api.get(&path(&["leveret", "spool"]))? {
        Value::Array(queues) => Ok(queues),
        _ => Ok(Vec::new()),
    }
}

impl Selection {
    /// As the query of a request.
    fn query(&self) -> String {
        let given = [("user", &self.of_user), ("vhost", &self.vhost)];
        let given = given.iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let parts: Vec<_> = given.map(|(name, value)| format!("{name}={}", encode(value))).collect();
        if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
    }

    fn contains(&self, queue: &Value) -> bool {
        let given = [("user", &self.of_user), ("vhost", &self.vhost)];
        given.iter().all(|(name, value)| value.as_deref().is_none_or(|value| queue[*name] == value))
    }
}
