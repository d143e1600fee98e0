//! Permissions of users.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Vhost;
use super::api::{Api, path};
use super::output::Output;
use crate::Failure;

/// Actions on permissions.
#[derive(Debug, Subcommand)]
pub(super) enum PermissionCommand {
    /// Set the permissions of a user: regular expressions for the names of queues and exchanges
    #[command(name = "set_permissions")]
    Set(Permissions),
    /// Clear the permissions of a user in a virtual host
    #[command(name = "clear_permissions")]
    Clear(UserPermissionsArgs),
    /// Set the topic permissions of a user: regular expressions for the routing keys of an exchange
    #[command(name = "set_topic_permissions")]
    SetTopic(TopicPermissions),
    /// Clear the topic permissions of a user, which restrict its routing keys
    #[command(name = "clear_topic_permissions")]
    ClearTopic(TopicPermissionsArgs),
    /// Clear the cache of auth_backends (http): the service is asked again about all users, including connected ones
    #[command(name = "clear_auth_backend_cache")]
    ClearAnswers,
}

#[derive(Debug, Args)]
pub(super) struct Permissions {
    #[command(flatten)]
    vhost: Vhost,
    /// The user
    user: String,
    /// A regular expression for what the user may declare and delete
    configure: String,
    /// A regular expression for what the user may publish to
    write: String,
    /// A regular expression for what the user may consume
    read: String,
}

#[derive(Debug, Args)]
pub(super) struct UserPermissionsArgs {
    #[command(flatten)]
    vhost: Vhost,
    /// The user
    user: String,
}

#[derive(Debug, Args)]
pub(super) struct TopicPermissions {
    #[command(flatten)]
    vhost: Vhost,
    /// The user
    user: String,
    /// The exchange
    exchange: String,
    /// A regular expression for the routing keys that the user may publish with
    write: String,
    /// A regular expression for the binding keys that the user may bind with
    read: String,
}

#[derive(Debug, Args)]
pub(super) struct TopicPermissionsArgs {
    #[command(flatten)]
    vhost: Vhost,
    /// The user
    user: String,
    /// Only for this exchange
    exchange: Option<String>,
}

/// The end of the refusal of permissions whose user or virtual host is unknown.
const VHOST_OR_USER_NOT_FOUND: &str = "vhost_or_user_not_found";

/// Sets permissions. A server that refuses them does not say whether the user or the virtual host is unknown.
fn put(api: &Api, kind: &str, vhost: &str, user: &str, value: &Value) -> Result<(), Failure> {
    api.put(&path(&[kind, vhost, user]), value).map_err(|failure| {
        if !matches!(&failure, Failure::Run(why) if why.ends_with(VHOST_OR_USER_NOT_FOUND)) {
            return failure;
        }
        let needed = [["vhosts", vhost], ["users", user]];
        needed.iter().find_map(|needed| api.get(&path(needed)).err()).unwrap_or(failure)
    })
}

pub(super) fn run(command: &PermissionCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        PermissionCommand::Set(Permissions { vhost, user, configure, write, read }) => {
            let value = json!({ "configure": configure, "write": write, "read": read });
            put(api, "permissions", &vhost.vhost, user, &value)?;
            output.done(&format!("permissions of '{user}' in virtual host '{}' set", vhost.vhost))
        }
        PermissionCommand::Clear(UserPermissionsArgs { vhost, user }) => {
            api.delete(&path(&["permissions", &vhost.vhost, user]))?;
            output.done(&format!("permissions of '{user}' in virtual host '{}' cleared", vhost.vhost))
        }
        PermissionCommand::SetTopic(TopicPermissions { vhost, user, exchange, write, read }) => {
            let value = json!({ "exchange": exchange, "write": write, "read": read });
            put(api, "topic-permissions", &vhost.vhost, user, &value)?;
            output.done(&format!("topic permissions of '{user}' for exchange '{exchange}' set"))
        }
        PermissionCommand::ClearTopic(TopicPermissionsArgs { vhost, user, exchange }) => {
            let mut parts = vec!["topic-permissions", &vhost.vhost, user];
            parts.extend(exchange.as_deref());
            api.delete(&path(&parts))?;
            output.done(&format!("topic permissions of '{user}' in virtual host '{}' cleared", vhost.vhost))
        }
        PermissionCommand::ClearAnswers => {
            api.delete(&path(&["leveret", "auth-cache"]))?;
            output.done("answers of auth_backends cleared")
        }
    }
}
