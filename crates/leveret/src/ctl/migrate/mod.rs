//! `leveret ctl migrate`: everything of a broker moves to another, or from there, while clients go on.

mod definitions;
mod report;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use self::definitions::{Definition, DefinitionPlan, compare};
use self::report::Way;
use super::api::{Api, Connection, path};
use super::output::{self, Column, Output, printable};
use super::secret;
use crate::Failure;
use crate::config::UpstreamUrl;
use crate::http_client::Endpoint;

/// Interval of questions about the progress.
const LOOK: Duration = Duration::from_millis(200);
/// Interval of lines about it.
const TELL: Duration = Duration::from_secs(5);
/// Clients are asked to leave when what is left moves in this time.
const REST_TIME: Duration = Duration::from_secs(1);
/// How long no more than that is left, and nothing is refused, before they are.
const SETTLED: Duration = Duration::from_secs(2);
/// Or so few messages are left.
const FEW: u64 = 100;
/// How long a successor may take to serve.
const SUCCESSOR_TIME: Duration = Duration::from_mins(6);

/// Another broker, and what to do with it.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("way").required(true).multiple(false).args(["to", "from", "status", "stop"]))]
pub(super) struct MigrateCommand {
    /// Move out: the AMQP addresses of the cluster that everything moves to (amqp://HOST[:PORT] or amqps://, by commas). At the
    /// end this server is the pool in front of it
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "to_management")]
    to: Vec<String>,
    /// The management API of that cluster: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", requires = "to")]
    to_management: Option<String>,
    /// Move in: the AMQP addresses of the broker that everything comes from
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
    /// Tell what would be made and moved, and what cannot be; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on although some definitions are refused or differ there
    #[arg(long)]
    skip_refused: bool,
    /// Move messages until few are left, and stay a broker
    #[arg(long, requires = "to")]
    stay: bool,
    /// Show how far a move is
    #[arg(long)]
    status: bool,
    /// End a move; messages that have moved stay where they are
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
        return output.done("the move is ended; messages that have moved stay where they are");
    }
    let way = if command.to.is_empty() { Way::From } else { Way::To };
    let (addresses, management) = match way {
        Way::To => (&command.to, &command.to_management),
        Way::From => (&command.from, &command.from_management),
    };
    check_addresses(addresses)?;
    let management = management.as_deref().unwrap_or_default();
    let endpoint = Endpoint::parse(management)
        .map_err(|reason| Failure::Usage(format!("the URL of the management API {reason}")))?;
    let password = secret::other(&command.other_user, command.other_password_file.as_deref())?;
    let other = Api::of(connection, endpoint, &command.other_user, &password)?;
    let migrate = Migrate { command, api, other, way, addresses, password: &password, output };
    migrate.run()
}

const PATH: [&str; 2] = ["leveret", "migration"];

/// Checks the AMQP addresses. Everybody on the machine can read command lines, so they hold no password.
fn check_addresses(addresses: &[String]) -> Result<(), Failure> {
    let urls = UpstreamUrl::of_cluster(addresses)
        .map_err(|error| Failure::Usage(format!("the AMQP address {error}")))?;
    if urls.iter().any(|url| url.has_unused_parts) {
        return Err(Failure::Usage(
            "an AMQP address holds a user or a virtual host: use --other-user, and all virtual hosts move"
                .to_owned(),
        ));
    }
    Ok(())
}

fn status(api: &Api, output: &Output) -> Result<(), Failure> {
    let status = api.get(&path(&PATH))?;
    output.remark(&format!("phase: {}", status["phase"].as_str().unwrap_or_default()))?;
    let rows = status["queues"].as_array().cloned().unwrap_or_default();
    let places = ["vhost", "name", "state", "moved", "messages_ready", "messages_unacknowledged", "trouble"];
    output.rows(&places.map(Column::new), false, rows)
}

/// A move that is steered.
struct Migrate<'a> {
    command: &'a MigrateCommand,
    api: &'a Api,
    other: Api,
    way: Way,
    addresses: &'a [String],
    password: &'a str,
    output: &'a Output,
}

impl Migrate<'_> {
    fn run(&self) -> Result<(), Failure> {
        let status = self.api.get(&path(&PATH))?;
        match status["phase"].as_str() {
            Some("moved") if self.way == Way::To => {
                self.output.remark("everything has moved already: this server is a pool")?;
                return report::compare(&status, self.way, self.output);
            }
            // Another command has begun the end, and may be gone.
            Some("closing" | "last_definitions" | "moving_rest" | "handing_over") if self.way == Way::To => {
                return self.wait_for_pool(&status);
            }
            _ => {}
        }
        let tags = &self.other.get("/api/whoami")?["tags"];
        if !tags.to_string().contains("administrator") {
            return Err(Failure::Run(format!(
                "user '{}' is no administrator there",
                self.command.other_user
            )));
        }
        if self.command.dry_run {
            return self.dry_run(&status);
        }
        self.define(true)?;
        // On the way in, those that are only here do not matter.
        let vhosts = match self.way {
            Way::To => Value::Null,
            Way::From => names(&self.other.get("/api/vhosts")?),
        };
        let request = json!({
            "vhosts": vhosts,
            "direction": if self.way == Way::To { "to" } else { "from" }, "addresses": self.addresses,
            "user": self.command.other_user, "password": self.password,
        });
        self.api.post(&path(&PATH), request.to_string().into_bytes())?;
        self.wait_for_start()?;
        match self.way {
            Way::To => self.move_out(),
            Way::From => self.move_in(),
        }
    }

    /// The definitions of the one side that the other lacks.
    fn plan(&self) -> Result<DefinitionPlan, Failure> {
        let (here, there) = (self.api.get("/api/definitions")?, self.other.get("/api/definitions")?);
        Ok(match self.way {
            Way::To => compare(&here, &there),
            Way::From => compare(&there, &here),
        })
    }

    /// The side that the definitions are made at.
    fn target(&self) -> &Api {
        if self.way == Way::To { &self.other } else { self.api }
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
        let source = if self.way == Way::To { self.api } else { &self.other };
        let queues = source.get("/api/queues?disable_stats=false")?;
        let mut rows: Vec<Value> = queues.as_array().cloned().unwrap_or_default();
        rows.iter_mut().for_each(|row| row["remark"] = json!(remark(row)));
        let columns = ["vhost", "name", "type", "messages", "message_bytes", "remark"].map(Column::new);
        self.output.rows(&columns, false, rows)?;
        if self.way == Way::To && status["can_be_pool"] == false {
            self.output.remark(
                "this server could not become a pool: it needs a data_dir, and a listener with a port",
            )?;
        }
        self.output.remark("nothing was changed")
    }

    /// Definitions that the other broker is known to refuse.
    fn refused_in_advance(&self, plan: &DefinitionPlan) -> Result<Vec<String>, Failure> {
        let overview = self.target().get("/api/overview")?;
        let types: Vec<_> = overview["exchange_types"].as_array().into_iter().flatten().collect();
        let has = |name: &str| types.is_empty() || types.iter().any(|kind| kind["name"] == name);
        let exchanges =
            plan.missing.iter().filter_map(|definition| Some((definition, definition.type_name()?)));
        let unknown = exchanges.filter(|(_, kind)| !has(kind));
        Ok(unknown
            .map(|(definition, kind)| format!("{}: no type '{kind}' there", definition.line()))
            .collect())
    }

    /// Makes what is missing. All that is refused is told before anything is moved.
    fn define(&self, is_first: bool) -> Result<(), Failure> {
        let plan = self.plan()?;
        let mut refused = plan.conflicting.clone();
        let mut made = 0;
        let mut is_granted = false;
        for definition in &plan.missing {
            if !definition.is_vhost() && !std::mem::replace(&mut is_granted, true) {
                self.grant()?;
            }
            match definition.make(self.target()) {
                Ok(()) => made += 1,
                Err(failure) => refused.push(format!("{}: {}", definition.line(), failure.into_line())),
            }
        }
        for line in &plan.different {
            self.output.remark(&format!("{line}; it stays as it is there"))?;
        }
        for line in &plan.left_out {
            self.output.remark(&format!("{line} does not move: only a broker gives such names"))?;
        }
        if !is_granted {
            self.grant()?;
        }
        let present: usize = plan.present.values().sum();
        self.output.remark(&format!("{made} definitions made, {present} are there already"))?;
        for line in &refused {
            self.output.remark(&format!("refused: {line}"))?;
        }
        if refused.is_empty() || self.command.skip_refused || !is_first {
            return Ok(());
        }
        Err(Failure::Run(format!(
            "{} definitions are refused, and no message is moved; --skip-refused goes on without them",
            refused.len()
        )))
    }

    /// Gives the logins the permissions that moving and defining need, in virtual hosts where they have none.
    fn grant(&self) -> Result<(), Failure> {
        let sides = [(&self.other, " there"), (self.api, "")];
        for (api, place) in sides.into_iter().take(if self.way == Way::To { 1 } else { 2 }) {
            let (vhosts, user) = (api.get("/api/vhosts")?, api.user());
            for vhost in vhosts.as_array().into_iter().flatten().filter_map(|vhost| vhost["name"].as_str()) {
                let path = path(&["permissions", vhost, user]);
                if api.found(&path)?.is_none() {
                    api.put(&path, &json!({ "configure": ".*", "write": ".*", "read": ".*" }))?;
                    let told = format!("user '{user}' has all permissions in virtual host '{vhost}'{place}");
                    self.output.remark(&told)?;
                }
            }
        }
        Ok(())
    }

    fn wait_for_start(&self) -> Result<(), Failure> {
        loop {
            let status = self.api.get(&path(&PATH))?;
            match status["phase"].as_str() {
                Some("starting") => thread::sleep(LOOK),
                Some("failed") => return Err(failure(&status)),
                _ => return Ok(()),
            }
        }
    }

    /// Waits until little is left to move.
    fn wait_for_messages(&self) -> Result<Value, Failure> {
        let (mut told, begun, mut moved_before, mut few_since) = (Instant::now(), Instant::now(), None, None);
        loop {
            let status = self.api.get(&path(&PATH))?;
            if status["phase"] != "moving" {
                return Err(failure(&status));
            }
            let queues = || status["queues"].as_array().into_iter().flatten();
            let left = match self.way {
                Way::To => {
                    self.api.get("/api/overview")?["queue_totals"]["messages_ready"].as_u64().unwrap_or(0)
                }
                Way::From => u64::MAX,
            };
            let is_troubled = |queue: &&Value| queue["trouble"].is_string();
            let is_refused = |queue: &Value| queue["state"] == "refused";
            let moved: u64 = queues().filter_map(|queue| queue["moved"].as_u64()).sum();
            // At the rate since the beginning.
            let rate = (moved - *moved_before.get_or_insert(moved)) as f64 / begun.elapsed().as_secs_f64();
            let few = FEW.max((rate * REST_TIME.as_secs_f64()) as u64);
            if left > few || queues().any(|queue| is_troubled(&queue)) {
                few_since = None;
            }
            // Of a queue that has just been looked at, nobody knows yet what is refused.
            let is_little = left <= few && few_since.get_or_insert_with(Instant::now).elapsed() >= SETTLED;
            if status["is_done"] == true || is_little {
                return Ok(status);
            }
            let is_active =
                queues().any(|queue| matches!(queue["state"].as_str(), Some("moving" | "waiting")));
            if queues().any(is_refused) && !is_active {
                report::troubles(&status, self.output)?;
                return Err(Failure::Run(
                    "messages are refused by the other broker and stay here: remedy that and run the same command again"
                        .to_owned(),
                ));
            }
            if told.elapsed() >= TELL {
                told = Instant::now();
                self.output.remark(&format!("{moved} messages have moved"))?;
                // Clients may have declared queues meanwhile.
                if queues().any(|queue| {
                    queue["trouble"].as_str().is_some_and(|trouble| trouble.contains("no such queue"))
                }) {
                    self.define(false)?;
                }
                for queue in queues().filter(is_troubled) {
                    let text = |key: &str| queue[key].as_str().unwrap_or_default();
                    let (vhost, name, trouble) = (text("vhost"), text("name"), text("trouble"));
                    self.output.remark(&format!("queue '{name}' of virtual host '{vhost}': {trouble}"))?;
                }
            }
            thread::sleep(LOOK);
        }
    }

    fn move_out(&self) -> Result<(), Failure> {
        let before = self.wait_for_messages()?;
        if self.command.stay {
            return self.output.done("few messages are left; the move goes on until --stop");
        }
        self.api.post(&path(&["leveret", "migration", "cut-over"]), Vec::new())?;
        self.output.remark("clients are asked to leave, and the rest moves")?;
        self.wait_for_pool(&before)
    }

    /// Sees the change to a pool through.
    fn wait_for_pool(&self, before: &Value) -> Result<(), Failure> {
        let deadline = Instant::now() + SUCCESSOR_TIME;
        loop {
            // While one process has gone and the other starts, nobody answers.
            let status = self.api.get(&path(&PATH));
            let known = status.as_ref().ok();
            match known.and_then(|status| status["phase"].as_str()) {
                Some("last_definitions") => {
                    self.define(false)?;
                    self.api.post(&path(&["leveret", "migration", "finish"]), Vec::new())?;
                }
                Some("moved") => {
                    let status = status?;
                    self.output
                        .remark(&format!("this server is a pool in front of {}", status["addresses"]))?;
                    return report::compare(&status, self.way, self.output);
                }
                Some("failed") => return Err(failure(&status?)),
                // Another process with nothing to tell: a broker has taken over again.
                Some("none") if known.is_some_and(|status| status["process"] != before["process"]) => {
                    return Err(Failure::Run(
                        "the move is not complete, its log says why, and the server is a broker: run the same command again"
                            .to_owned(),
                    ));
                }
                _ if Instant::now() > deadline => {
                    return status.and(Err(Failure::Run("no pool has taken over".to_owned())));
                }
                _ => {}
            }
            thread::sleep(LOOK);
        }
    }

    fn move_in(&self) -> Result<(), Failure> {
        let status = self.wait_for_messages()?;
        self.api.remove(&path(&PATH))?;
        report::compare(&status, self.way, self.output)
    }
}

/// The names of objects.
fn names(objects: &Value) -> Value {
    objects.as_array().into_iter().flatten().map(|object| object["name"].clone()).collect()
}

fn failure(status: &Value) -> Failure {
    let phase = status["phase"].as_str().unwrap_or_default();
    let why = status["failure"].as_str().map_or_else(|| format!("the move is {phase}"), str::to_owned);
    Failure::Run(format!("{why}; run the same command again to go on"))
}

/// A warning about a queue that is to move.
fn remark(queue: &Value) -> &'static str {
    let text = |key: &str| queue[key].as_str().unwrap_or_default();
    match () {
        () if queue["exclusive"] == true => "exclusive: ends with its client, and does not move",
        () if text("name").starts_with("amq.") => "named by the broker: does not move",
        () if text("type") == "stream" => "a stream: does not move",
        () if queue["durable"] == false => "not durable: moves while this process runs",
        () if queue["auto_delete"] == true => "auto-delete: what clients hold at the end goes with it",
        () => "",
    }
}
