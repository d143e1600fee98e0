//! Limits of virtual hosts and users.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Vhost;
use super::api::{Api, path};
use super::output::Output;
use super::policies::json_argument;
use crate::Failure;

/// Actions on limits.
#[derive(Debug, Subcommand)]
pub(super) enum LimitCommand {
    /// Limit a virtual host: {"max-connections": N, "max-queues": N}; -1 lifts one
    #[command(name = "set_vhost_limits")]
    SetVhost(VhostLimits),
    /// Lift the limits of a virtual host
    #[command(name = "clear_vhost_limits")]
    ClearVhost(Vhost),
    /// Limit a user: {"max-connections": N, "max-channels": N}; -1 lifts one
    #[command(name = "set_user_limits")]
    SetUser(UserLimits),
    /// Lift a limit of a user, or all
    #[command(name = "clear_user_limits")]
    ClearUser(ClearUserLimits),
}

#[derive(Debug, Args)]
pub(super) struct VhostLimits {
    #[command(flatten)]
    vhost: Vhost,
    /// The limits as JSON
    limits: String,
}

#[derive(Debug, Args)]
pub(super) struct UserLimits {
    /// The user
    user: String,
    /// The limits as JSON
    limits: String,
}

#[derive(Debug, Args)]
pub(super) struct ClearUserLimits {
    /// The user
    user: String,
    /// max-connections, max-channels or all
    #[arg(default_value = "all")]
    limit: String,
}

const VHOST_LIMITS: [&str; 2] = ["max-connections", "max-queues"];
const USER_LIMITS: [&str; 2] = ["max-connections", "max-channels"];

pub(super) fn run(command: &LimitCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        LimitCommand::SetVhost(VhostLimits { vhost, limits }) => {
            set(api, &["vhost-limits", &vhost.vhost], &VHOST_LIMITS, limits)?;
            output.done(&format!("limits of virtual host '{}' set", vhost.vhost))
        }
        LimitCommand::ClearVhost(vhost) => {
            clear(api, &["vhost-limits", &vhost.vhost], &VHOST_LIMITS)?;
            output.done(&format!("limits of virtual host '{}' cleared", vhost.vhost))
        }
        LimitCommand::SetUser(UserLimits { user, limits }) => {
            set(api, &["user-limits", user], &USER_LIMITS, limits)?;
            output.done(&format!("limits of user '{user}' set"))
        }
        LimitCommand::ClearUser(ClearUserLimits { user, limit }) => {
            let limits: Vec<_> =
                USER_LIMITS.iter().copied().filter(|known| limit == "all" || limit == known).collect();
            if limits.is_empty() {
                return Err(Failure::Usage(format!(
                    "there is no limit '{limit}': {}",
                    USER_LIMITS.join(", ")
                )));
            }
            clear(api, &["user-limits", user], &limits)?;
            output.done(&format!("limits of user '{user}' cleared"))
        }
    }
}

/// Sets limits, each of which is a resource of its own. All are validated before the first is set.
fn set(api: &Api, place: &[&str], known: &[&str], limits: &str) -> Result<(), Failure> {
    let limits = json_argument("limits", limits)?;
    let Value::Object(limits) = limits else { return Ok(()) };
    for (name, value) in &limits {
        let fault = |reason: &str| Failure::Usage(format!("limits: '{name}' {reason}"));
        if !known.contains(&name.as_str()) {
            return Err(fault(&format!("is none of {}", known.join(", "))));
        }
        if value.as_i64().is_none() {
            return Err(fault("is not an integer"));
        }
    }
    for (name, value) in limits {
        api.put(&path(&[place, &[name.as_str()]].concat()), &json!({ "value": value }))?;
    }
    Ok(())
}

/// Clears those of the limits that are set.
fn clear(api: &Api, place: &[&str], limits: &[&str]) -> Result<(), Failure> {
    let reported = api.get(&path(place))?;
    let is_set =
        |limit: &&&str| reported.pointer("/0/value").is_some_and(|value| value.get(**limit).is_some());
    let mut set = limits.iter().filter(is_set);
    set.try_for_each(|limit| api.delete(&path(&[place, &[*limit]].concat())))
}
