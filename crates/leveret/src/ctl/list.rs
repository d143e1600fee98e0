//! The `list_*` commands.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::api::{Api, encode, path};
use super::column_names;
use super::output::{Column, Output};
use crate::Failure;

/// Listings.
#[derive(Debug, Subcommand)]
pub(super) enum ListCommand {
    /// Queues [columns: name messages, and others of the API such as messages_ready consumers state policy]
    #[command(name = "list_queues", visible_alias = "queues")]
    Queues(VhostListArgs),
    /// Exchanges [columns: name type, and others]
    #[command(name = "list_exchanges", visible_alias = "exchanges")]
    Exchanges(VhostListArgs),
    /// Bindings [columns: source destination destination_type routing_key arguments]
    #[command(name = "list_bindings", visible_alias = "bindings")]
    Bindings(VhostListArgs),
    /// Consumers
    #[command(name = "list_consumers", visible_alias = "consumers")]
    Consumers(VhostListArgs),
    /// Connections, whatever their virtual host
    #[command(name = "list_connections", visible_alias = "connections")]
    Connections(ListArgs),
    /// Channels, whatever their virtual host
    #[command(name = "list_channels", visible_alias = "channels")]
    Channels(ListArgs),
    /// Users and their tags
    #[command(name = "list_users", visible_alias = "users")]
    Users(ListArgs),
    /// Virtual hosts
    #[command(name = "list_vhosts", visible_alias = "vhosts")]
    Vhosts(ListArgs),
    /// The permissions of users in a virtual host
    #[command(name = "list_permissions", visible_alias = "permissions")]
    Permissions(VhostListArgs),
    /// The topic permissions of users in a virtual host
    #[command(name = "list_topic_permissions")]
    TopicPermissions(VhostListArgs),
    /// The permissions of a user in every virtual host
    #[command(name = "list_user_permissions")]
    UserPermissions(UserListArgs),
    /// The topic permissions of a user in every virtual host
    #[command(name = "list_user_topic_permissions")]
    UserTopicPermissions(UserListArgs),
    /// Policies of a virtual host
    #[command(name = "list_policies", visible_alias = "policies")]
    Policies(VhostListArgs),
    /// Operator policies of a virtual host
    #[command(name = "list_operator_policies")]
    OperatorPolicies(VhostListArgs),
    /// Limits of a virtual host
    #[command(name = "list_vhost_limits")]
    VhostLimits(VhostListArgs),
    /// Limits of a user
    #[command(name = "list_user_limits")]
    UserLimits(UserListArgs),
}

/// A list of one virtual host.
#[derive(Debug, Args)]
pub(super) struct VhostListArgs {
    #[command(flatten)]
    vhost: super::Vhost,
    /// List those of all virtual hosts, with a column for the virtual host; overrides --vhost
    // Not declared as conflicting with --vhost, which a variable may have set.
    #[arg(long)]
    all_vhosts: bool,
    /// The columns to show
    columns: Vec<String>,
}

/// A list of all there is.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// The columns to show
    columns: Vec<String>,
}

/// A list of what one user has.
#[derive(Debug, Args)]
pub(super) struct UserListArgs {
    /// The user
    user: String,
    /// The columns to show
    columns: Vec<String>,
}

/// Rows per request, for lists that the server returns in pages: it then never holds a long list for one
/// client.
const PAGE: usize = 500;

pub(super) fn run(command: &ListCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    use ListCommand as List;
    match command {
        List::Queues(list) => list.show(api, output, "queues", &["name", "messages"], true),
        List::Exchanges(list) => list.show(api, output, "exchanges", &["name", "type"], true),
        List::Bindings(list) => list.show(api, output, "bindings", &BINDING, false),
        List::Consumers(list) => list.show(api, output, "consumers", &CONSUMER, false),
        List::Policies(list) => list.show(api, output, "policies", &POLICY, false),
        List::OperatorPolicies(list) => list.show(api, output, "operator-policies", &POLICY, false),
        List::Permissions(list) => list.show_of_vhost(api, output, "permissions", &PERMISSION),
        List::TopicPermissions(list) => {
            list.show_of_vhost(api, output, "topic-permissions", &TOPIC_PERMISSION)
        }
        List::VhostLimits(list) => list.show(api, output, "vhost-limits", &["vhost", "value"], false),
        List::Connections(list) => list.show(api, output, &["connections"], &CONNECTION, true),
        List::Channels(list) => list.show(api, output, &["channels"], &CHANNEL, true),
        List::Users(list) => list.show(api, output, &["users"], &["name", "tags"], false),
        List::Vhosts(list) => list.show(api, output, &["vhosts"], &["name"], false),
        List::UserPermissions(list) => {
            list.show(api, output, &["users", &list.user, "permissions"], &USER_PERMISSION)
        }
        List::UserTopicPermissions(list) => {
            list.show(api, output, &["users", &list.user, "topic-permissions"], &USER_TOPIC_PERMISSION)
        }
        List::UserLimits(list) => list.show(api, output, &["user-limits", &list.user], &["user", "value"]),
    }
}

const BINDING: [&str; 5] = ["source", "destination", "destination_type", "routing_key", "arguments"];
const CONSUMER: [&str; 6] =
    ["queue.name", "channel_details.name", "consumer_tag", "ack_required", "prefetch_count", "active"];
const POLICY: [&str; 5] = ["name", "pattern", "apply-to", "definition", "priority"];
const PERMISSION: [&str; 4] = ["user", "configure", "write", "read"];
const TOPIC_PERMISSION: [&str; 4] = ["user", "exchange", "write", "read"];
const USER_PERMISSION: [&str; 4] = ["vhost", "configure", "write", "read"];
const USER_TOPIC_PERMISSION: [&str; 4] = ["vhost", "exchange", "write", "read"];
const CONNECTION: [&str; 5] = ["name", "user", "vhost", "state", "channels"];
const CHANNEL: [&str; 5] = ["name", "user", "vhost", "consumer_count", "messages_unacknowledged"];

impl VhostListArgs {
    /// `/api/KIND/VHOST`, or `/api/KIND` for every virtual host.
    fn show(
        &self,
        api: &Api,
        output: &Output,
        kind: &str,
        usual: &[&str],
        in_pages: bool,
    ) -> Result<(), Failure> {
        let columns = self.columns(usual);
        let path = match self.all_vhosts {
            true => path(&[kind]),
            false => path(&[kind, &self.vhost.vhost]),
        };
        let rows = if in_pages { pages(api, &path, &columns)? } else { rows(api, &path)? };
        column_names::check(api, &path, &self.columns, usual, &rows)?;
        output.rows(&columns, !self.columns.is_empty(), rows)
    }

    /// `/api/vhosts/VHOST/KIND`, or `/api/KIND` for every virtual host.
    fn show_of_vhost(&self, api: &Api, output: &Output, kind: &str, usual: &[&str]) -> Result<(), Failure> {
        let columns = self.columns(usual);
        let path = match self.all_vhosts {
            true => path(&[kind]),
            false => path(&["vhosts", &self.vhost.vhost, kind]),
        };
        let rows = rows(api, &path)?;
        column_names::check(api, &path, &self.columns, usual, &rows)?;
        output.rows(&columns, !self.columns.is_empty(), rows)
    }

    fn columns(&self, usual: &[&str]) -> Vec<Column> {
        let mut columns = chosen_or_usual(&self.columns, usual);
        if self.all_vhosts && !columns.iter().any(|column| column.place() == "vhost") {
            columns.insert(0, Column::new("vhost"));
        }
        columns
    }
}

impl ListArgs {
    /// Shows the list at `/api/` and these path segments.
    pub(super) fn show(
        &self,
        api: &Api,
        output: &Output,
        parts: &[&str],
        usual: &[&str],
        in_pages: bool,
    ) -> Result<(), Failure> {
        let (columns, path) = (chosen_or_usual(&self.columns, usual), path(parts));
        let rows = if in_pages { pages(api, &path, &columns)? } else { rows(api, &path)? };
        column_names::check(api, &path, &self.columns, usual, &rows)?;
        output.rows(&columns, !self.columns.is_empty(), rows)
    }
}

impl UserListArgs {
    fn show(&self, api: &Api, output: &Output, parts: &[&str], usual: &[&str]) -> Result<(), Failure> {
        let (columns, path) = (chosen_or_usual(&self.columns, usual), path(parts));
        let rows = rows(api, &path)?;
        column_names::check(api, &path, &self.columns, usual, &rows)?;
        output.rows(&columns, !self.columns.is_empty(), rows)
    }
}

fn chosen_or_usual(chosen: &[String], usual: &[&str]) -> Vec<Column> {
    match chosen {
        [] => usual.iter().map(|place| Column::headed(place.trim_end_matches(".name"), place)).collect(),
        chosen => chosen.iter().map(|place| Column::new(place)).collect(),
    }
}

fn rows(api: &Api, path: &str) -> Result<Vec<Value>, Failure> {
    match api.get(path)? {
        Value::Array(rows) => Ok(rows),
        _ => Err(Failure::Run(format!("{path}: the response is not a list"))),
    }
}

/// Fetches all pages of a list, one after the other.
fn pages(api: &Api, path: &str, columns: &[Column]) -> Result<Vec<Value>, Failure> {
    let wanted: Vec<_> = columns.iter().map(|column| encode(column.place())).collect();
    let (mut rows, mut page, mut pages) = (Vec::new(), 1, 1);
    while page <= pages {
        let columns = wanted.join(",");
        let query = format!("{path}?page={page}&page_size={PAGE}&pagination=true&columns={columns}");
        match api.get(&query)? {
            // A server without pagination returns everything.
            Value::Array(all) => return Ok(all),
            Value::Object(mut answer) => {
                pages = answer.get("page_count").and_then(Value::as_u64).unwrap_or(1);
                if let Some(Value::Array(items)) = answer.remove("items") {
                    rows.extend(items);
                }
            }
            _ => return Err(Failure::Run(format!("{path}: the response is not a list"))),
        }
        page += 1;
    }
    Ok(rows)
}
