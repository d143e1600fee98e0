//! `leveret ctl migrate`: everything of a broker moves to another, or from there, while clients go on.

mod defining;
mod definitions;
mod following;
mod last_definitions;
mod report;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use server::MoveDirection;

use self::definitions::{Definition, DefinitionPlan, compare, export, is_own_name};
use super::api::{Api, Connection, path};
use super::output::{self, Column, Output, printable};
use super::secret;
use crate::Failure;
use crate::config::UpstreamUrl;
use crate::http_client::Endpoint;
use crate::migration::{MoveError, direction_name, is_same_cluster};

/// Another broker, and what to do with it.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("way").required(true).multiple(false).args(["to", "from", "status", "stop"]))]
pub(super) struct MigrateCommand {
    /// Export: the AMQP addresses of the cluster that everything moves to (amqp://HOST or amqps://HOST, with or without a
    /// port, by commas). At the end this server is the pool in front of it
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "to_management")]
    to: Vec<String>,
    /// The management API of that cluster: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "to")]
    to_management: Option<String>,
    /// Import: the AMQP addresses of the broker that everything comes from
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "from_management")]
    from: Vec<String>,
    /// The management API of that broker
    #[arg(long, value_name = "URL", requires = "from")]
    from_management: Option<String>,
    /// An administrator there. The password is in LEVERET_CTL_OTHER_PASSWORD or in --other-password-file
    #[arg(long, value_name = "NAME", env = "LEVERET_CTL_OTHER_USER", default_value = "guest")]
    other_user: String,
    /// A file whose first line is that password
    #[arg(long, value_name = "FILE", env = "LEVERET_CTL_OTHER_PASSWORD_FILE")]
    other_password_file: Option<PathBuf>,
    /// Show what would be created and moved, and what cannot be; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Continue although some definitions are refused or differ there
    #[arg(long)]
    skip_refused: bool,
    /// Move messages until few are left, and stay a broker
    #[arg(long, requires = "to")]
    stay: bool,
    /// Show how far a migration is
    #[arg(long)]
    status: bool,
    /// End a migration; messages that have moved stay where they are
    #[arg(long)]
    stop: bool,
}

pub(super) fn run(
    command: &MigrateCommand,
    api: &Api,
    connection: &Connection,
    output: &Output,
) -> Result<(), Failure> {
    if command.status {
        return status(api, output);
    }
    if command.stop {
        api.remove(&path(&PATH))?;
        return output.done("the migration is ended; messages that have moved stay where they are");
    }
    let way = if command.to.is_empty() { MoveDirection::In } else { MoveDirection::Out };
    let (addresses, management) = match way {
        MoveDirection::Out => (&command.to, &command.to_management),
        MoveDirection::In => (&command.from, &command.from_management),
    };
    let addresses = checked_addresses(addresses)?;
    let management = management.as_deref().unwrap_or_default();
    let endpoint = Endpoint::parse(management)
        .map_err(|reason| Failure::Usage(format!("the URL of the management API {reason}")))?;
    let password = secret::other(&command.other_user, command.other_password_file.as_deref())?;
    let other = Api::of(connection, endpoint, &command.other_user, &password)?;
    let intervals = Intervals::default();
    let migrate = Migrate { command, api, other, way, addresses, password: &password, output, intervals };
    migrate.run()
}

/// Why a server cannot become a pool.
const CANNOT_CHANGE: &str = "this server could not become a pool: it needs a data_dir, a listener with a port, and no setting \
    upstream (upstream is set if it is off as well)";

const PATH: [&str; 2] = ["leveret", "migration"];

/// The phases from the moment in which clients are closed: what follows is the same for all commands with that target.
const END_PHASES: [&str; 5] = ["closing", "last_definitions", "moving_rest", "handing_over", "moved"];

/// The AMQP addresses as the server shows them. Everybody on the machine can read command lines, so they hold no password.
fn checked_addresses(addresses: &[String]) -> Result<Vec<String>, Failure> {
    let urls = UpstreamUrl::of_cluster(addresses)
        .map_err(|error| Failure::Usage(format!("the AMQP address {error}")))?;
    if urls.iter().any(|url| url.has_unused_parts) {
        return Err(Failure::Usage(
            "an AMQP address holds a user or a virtual host: use --other-user, and all virtual hosts move"
                .to_owned(),
        ));
    }
    Ok(urls.iter().map(ToString::to_string).collect())
}

fn status(api: &Api, output: &Output) -> Result<(), Failure> {
    let status = api.get(&path(&PATH))?;
    output.remark(&format!("phase: {}", status["phase"].as_str().unwrap_or_default()))?;
    let rows = status["queues"].as_array().cloned().unwrap_or_default();
    let keys = ["vhost", "name", "state", "moved", "messages_ready", "messages_unacknowledged", "trouble"];
    output.rows(&report::columns(&keys), false, rows)
}

/// A move that is steered.
struct Migrate<'a> {
    command: &'a MigrateCommand,
    api: &'a Api,
    other: Api,
    way: MoveDirection,
    /// The AMQP addresses of the other broker, as the server shows them.
    addresses: Vec<String>,
    password: &'a str,
    output: &'a Output,
    intervals: Intervals,
}

impl Migrate<'_> {
    fn run(&self) -> Result<(), Failure> {
        let status = self.api.get(&path(&PATH))?;
        if !self.command.dry_run {
            self.check_same(&status)?;
        }
        match status["phase"].as_str() {
            Some("moved") if self.way == MoveDirection::Out => {
                self.output.remark("everything has moved already: this server is a pool")?;
                return report::compare(&status, self.way, self.output);
            }
            // Another command has begun the end, and may be gone.
            Some(phase)
                if self.way == MoveDirection::Out && END_PHASES.contains(&phase) && !self.command.dry_run =>
            {
                return self.wait_for_pool(&status);
            }
            _ => {}
        }
        let tags = &self.other.get("/api/whoami")?["tags"];
        if !tags.to_string().contains("administrator") {
            return Err(Failure::Run(format!(
                "user '{}' is not an administrator there",
                self.command.other_user
            )));
        }
        if self.command.dry_run {
            return self.dry_run(&status);
        }
        self.check_change(&status)?;
        self.check_other()?;
        let skipped = self.define(true)?;
        // On the way in, those that are only here do not matter.
        let vhosts = match self.way {
            MoveDirection::Out => Value::Null,
            MoveDirection::In => names(&self.other.get("/api/vhosts")?),
        };
        let mut request = self.with_login();
        request["vhosts"] = vhosts;
        request["skip"] = json!(skipped);
        let start = || self.api.post(&path(&PATH), request.to_string().into_bytes());
        // Another command may have been about to begin the same move.
        let started = start().or_else(|failure| {
            let is_begun = self.api.get(&path(&PATH))?["phase"] == "moving";
            if is_begun { start() } else { Err(failure) }
        });
        let later = [&["starting"], &END_PHASES[..]].concat();
        started.map(drop).or_else(|failure| self.unless_in(&later, failure))?;
        self.wait_for_start()?;
        match self.way {
            MoveDirection::Out => self.move_out(),
            MoveDirection::In => self.move_in(),
        }
    }

    /// The members of a request by which the server knows the move of this command.
    fn named(&self) -> Value {
        json!({"direction": direction_name(self.way), "addresses": self.addresses})
    }

    /// The same, with the login at the other broker.
    fn with_login(&self) -> Value {
        let mut request = self.named();
        request["user"] = json!(self.command.other_user);
        request["password"] = json!(self.password);
        request
    }

    /// Takes a step of this command's move.
    fn step(&self, step: &str) -> Result<(), Failure> {
        let named = self.named().to_string().into_bytes();
        self.api.post(&path(&[PATH[0], PATH[1], step]), named).map(drop)
    }

    /// Checks that a move under way, or one that has made a pool of this server, is the one of this command.
    fn check_same(&self, status: &Value) -> Result<(), Failure> {
        let phase = status["phase"].as_str().unwrap_or_default();
        if !["starting", "moving"].contains(&phase) && !END_PHASES.contains(&phase) {
            return Ok(());
        }
        let addresses = status["addresses"].as_array().into_iter().flatten();
        let addresses: Vec<_> = addresses.filter_map(Value::as_str).map(str::to_owned).collect();
        let direction = status["direction"].as_str().unwrap_or(direction_name(self.way));
        if direction == direction_name(self.way) && is_same_cluster(&addresses, &self.addresses) {
            return Ok(());
        }
        let to = addresses.join(", ");
        Err(Failure::Run(match phase {
            "starting" | "moving" => {
                MoveError::OtherMove { direction: direction.to_owned(), addresses: to }.to_string()
            }
            "moved" => {
                format!("everything has moved to {to} already, and this server is the pool in front of it")
            }
            _ => format!("everything moves to {to}, and this server is about to be the pool in front of it"),
        }))
    }

    /// The outcome of a step that was refused: none, if another command with the same target has taken it before, to one of
    /// these phases.
    fn unless_in(&self, phases: &[&str], failure: Failure) -> Result<(), Failure> {
        let status = self.api.get(&path(&PATH))?;
        if !status["phase"].as_str().is_some_and(|phase| phases.contains(&phase)) {
            return Err(failure);
        }
        self.check_same(&status)
    }

    /// Checks, before anything moves, that this server can become a pool, and that its API can be asked then.
    fn check_change(&self, status: &Value) -> Result<(), Failure> {
        if self.way == MoveDirection::In || self.command.stay {
            return Ok(());
        }
        if status["can_be_pool"] == false {
            return Err(Failure::Run(CANNOT_CHANGE.to_owned()));
        }
        if !self.api.endpoint().is_local() {
            return Err(Failure::Usage(
                "a pool answers only on its own machine: run this there, with a --url of 127.0.0.1 or unix:, or use --stay"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that the other broker is another one.
    fn check_other(&self) -> Result<(), Failure> {
        let id = |api: &Api| Ok::<_, Failure>(api.get("/api/overview")?["node"].clone());
        let is_same = self.api.endpoint() == self.other.endpoint();
        if is_same && id(self.api)? == id(&self.other)? {
            return Err(Failure::Usage(
                "the management API of the other broker is that of this server".to_owned(),
            ));
        }
        Ok(())
    }

    /// The definitions of the one side that the other lacks.
    fn plan(&self) -> Result<DefinitionPlan, Failure> {
        let (here, there) = (export(self.api)?, export(&self.other)?);
        Ok(match self.way {
            MoveDirection::Out => compare(&here, &there),
            MoveDirection::In => compare(&there, &here),
        })
    }

    /// The side that the definitions are made at.
    fn target(&self) -> &Api {
        if self.way == MoveDirection::Out { &self.other } else { self.api }
    }

    fn dry_run(&self, status: &Value) -> Result<(), Failure> {
        let plan = self.plan()?;
        for Definition { kind, names, .. } in &plan.missing {
            let names: Vec<_> = names.iter().map(|name| format!("'{}'", printable(name))).collect();
            output::print(&format!("would make {kind} {}\n", names.join(" ")))?;
        }
        for line in plan.conflicting.iter().chain(&plan.different) {
            output::print(&format!("{}\n", printable(line)))?;
        }
        for line in self.refused_in_advance(&plan)? {
            output::print(&format!("{line}\n"))?;
        }
        let source = if self.way == MoveDirection::Out { self.api } else { &self.other };
        let queues = source.get("/api/queues?disable_stats=false")?;
        let mut rows: Vec<Value> = queues.as_array().cloned().unwrap_or_default();
        rows.iter_mut().for_each(|row| row["remark"] = json!(remark(row, self.way)));
        let columns = ["vhost", "name", "type", "messages", "message_bytes_ready", "remark"].map(Column::new);
        self.output.rows(&columns, false, rows)?;
        if self.way == MoveDirection::Out && status["can_be_pool"] == false {
            self.output.remark(CANNOT_CHANGE)?;
        }
        self.output.remark("nothing was changed")?;
        self.try_login()
    }

    /// Lets the server try the login at the other broker, as a move would, in the virtual hosts in which that is possible
    /// before definitions are made and permissions given.
    ///
    /// # Errors
    ///
    /// It is refused, or nobody answers there.
    fn try_login(&self) -> Result<(), Failure> {
        let permissions = self.other.found(&path(&["users", &self.command.other_user, "permissions"]))?;
        let permissions = permissions.iter().flat_map(|all| all.as_array()).flatten();
        let allowed: Vec<_> = permissions.filter_map(|of| of["vhost"].as_str()).collect();
        let concerned = match self.way {
            MoveDirection::Out => names(&self.api.get("/api/vhosts")?),
            MoveDirection::In => json!(allowed),
        };
        let concerned = concerned.as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut vhosts: Vec<_> = concerned.filter(|vhost| allowed.contains(vhost)).collect();
        if vhosts.is_empty() {
            // Any one shows whether the password is accepted.
            vhosts.extend(allowed.first());
        }
        if vhosts.is_empty() {
            let user = &self.command.other_user;
            return self.output.remark(&format!(
                "the AMQP login was not tried: user '{user}' has no permissions in any virtual host there yet"
            ));
        }
        let mut request = self.with_login();
        request["vhosts"] = json!(vhosts);
        let checked =
            self.api.post(&path(&[PATH[0], PATH[1], "check-login"]), request.to_string().into_bytes())?;
        match checked["failure"].as_str() {
            Some(why) => Err(Failure::Run(why.to_owned())),
            None => self.output.remark("the AMQP login there is accepted"),
        }
    }
}

/// Pauses between requests.
struct Intervals {
    /// Between questions about the progress.
    look: Duration,
    /// Between signs of life to a server that waits for the last definitions.
    sign_of_life: Duration,
    /// Before the last definitions are tried again.
    retry: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            look: Duration::from_millis(200),
            // Six of them in the time for which the server waits for one.
            sign_of_life: Duration::from_secs(5),
            retry: Duration::from_secs(1),
        }
    }
}

/// The names of objects.
fn names(objects: &Value) -> Value {
    objects.as_array().into_iter().flatten().map(|object| object["name"].clone()).collect()
}

/// A warning about a queue that is to move.
fn remark(queue: &Value, way: MoveDirection) -> &'static str {
    let text = |key: &str| queue[key].as_str().unwrap_or_default();
    match () {
        () if queue["exclusive"] == true => "exclusive: ends with its client, and does not move",
        () if is_own_name(&queue["name"]) => "named by the broker: does not move",
        () if text("type") == "stream" => "a stream: does not move",
        () if queue["auto_delete"] == true && way == MoveDirection::In => {
            "auto-delete: its messages stay there"
        }
        () if queue["durable"] == false => "not durable: moves while this process runs",
        () if queue["auto_delete"] == true => "auto-delete: what clients hold at the end goes with it",
        () => "",
    }
}
