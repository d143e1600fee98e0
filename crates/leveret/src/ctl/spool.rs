//! `leveret ctl spool`: what waits in the spool of a pool, and what it does.

use clap::Subcommand;

use super::api::{Api, path};
use super::list::Everywhere;
use super::output::Output;
use crate::Failure;

/// Questions to a spool, and actions on it.
#[derive(Debug, Subcommand)]
pub(super) enum SpoolCommand {
    /// Messages by user and virtual host: their age, the rates, and what keeps them from being forwarded
    List(Everywhere),
    /// Messages that the upstream has refused for good
    Parked(Everywhere),
    /// Forward all parked messages again, behind those that wait
    Requeue,
    /// Drop all parked messages
    Purge,
    /// Forward nothing until `resume`; publishes are accepted as before
    Pause,
    /// Accept publishes and forward them again, after `pause` or `drain`
    Resume,
    /// Forward everything while publishers are blocked; their publishes go directly to the upstream then, until `resume`
    Drain,
}

const QUEUE: [&str; 9] = [
    "user",
    "vhost",
    "state",
    "messages",
    "bytes",
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
        SpoolCommand::Requeue => {
            let answer = api.post(&path(&["leveret", "spool", "parked", "requeue"]), Vec::new())?;
            let (requeued, left) = (&answer["requeued"], &answer["remaining"]);
            return output
                .done(&format!("{requeued} parked messages are forwarded again, {left} are parked"));
        }
        SpoolCommand::Purge => {
            let answer = api.remove(&path(&["leveret", "spool", "parked"]))?;
            return output.done(&format!("{} parked messages are dropped", answer["purged"]));
        }
        SpoolCommand::Pause => ("pause", "nothing is forwarded"),
        SpoolCommand::Resume => ("resume", "publishes are accepted and forwarded"),
        SpoolCommand::Drain => ("drain", "everything is forwarded, and nothing is accepted"),
    };
    api.post(&path(&["leveret", "spool", action]), Vec::new())?;
    output.done(done)
}
