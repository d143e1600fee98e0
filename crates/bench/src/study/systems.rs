//! The systems under test: those of the command line, and Leveret's own processes that a study starts in addition.

use std::ops::Deref;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use transport::HostAndPort;

use super::managed_process::ManagedProcess;
use crate::error::Error;
use crate::uri::Uri;
use crate::usage::check;
use crate::watched::{self, Watched};

/// A system under test.
#[derive(Debug, Clone)]
pub(crate) struct System {
    /// Its name in the report.
    pub(crate) name: String,
    /// Its address and credentials.
    pub(crate) uri: Uri,
    /// The sources of its CPU time and memory.
    pub(crate) watched: Watched,
}

/// The options that select systems.
#[derive(Debug, Clone, Args)]
pub(crate) struct SystemArguments {
    /// The system under test, as amqp://user:password@host:port/vhost, or amqps:// with the parameters cacertfile,
    /// certfile, keyfile, verify and server_name_indication
    #[arg(long, value_name = "URI", conflicts_with = "systems", default_value = "amqp://localhost")]
    uri: String,
    /// A system under test with a name, and where its CPU time and memory are read: processes with their children by id,
    /// name or systemd unit, or the broker's own figures over HTTP; repeat to compare systems, round by round
    #[arg(
        long = "system",
        value_name = "NAME=URI[,pid=N][,process=NAME][,unit=NAME][,prometheus=URL][,management=URL]"
    )]
    systems: Vec<String>,
    /// Start Leveret's broker, or its pool in front of the first system, and measure them as well, as the systems broker
    /// and pool
    #[arg(long = "with", value_enum, value_name = "WHAT,...", value_delimiter = ',')]
    with: Vec<ExtraSystem>,
    /// Systems that are known already; replaces the options above.
    #[arg(skip)]
    pub(crate) given: Option<Systems>,
}

/// A program that can be started as an additional system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExtraSystem {
    /// Leveret's broker
    Broker,
    /// Leveret's pool
    Pool,
}

impl ExtraSystem {
    fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Pool => "pool",
        }
    }
}

/// Systems, and the processes that are killed once the last user is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Systems {
    all: Vec<System>,
    /// Kept alive until the systems are dropped.
    _processes: Arc<Vec<ManagedProcess>>,
}

impl From<Vec<System>> for Systems {
    fn from(all: Vec<System>) -> Self {
        Self { all, _processes: Arc::default() }
    }
}

impl Deref for Systems {
    type Target = [System];

    fn deref(&self) -> &[System] {
        &self.all
    }
}

impl SystemArguments {
    /// The systems named, and those to be started.
    ///
    /// # Errors
    /// A `--system` or URI cannot be parsed, or a program cannot be started.
    pub(crate) fn systems(&self) -> Result<Systems, Error> {
        if let Some(given) = &self.given {
            return Ok(given.clone());
        }
        let mut all = parse_systems(&self.uri, &self.systems)?;
        let mut processes = Vec::new();
        let mut with = self.with.clone();
        with.sort_by_key(|with| *with as u8);
        with.dedup();
        for what in with {
            let name = what.name();
            check(
                all.iter().all(|system| system.name != name),
                &format!("--system: the name {name} is taken by --with {name}"),
            )?;
            let first = &all[0];
            let process = match what {
                ExtraSystem::Broker => ManagedProcess::broker()?,
                ExtraSystem::Pool => ManagedProcess::pool(&upstream(&first.uri)?)?,
            };
            let mut system = match what {
                ExtraSystem::Broker => process.system(name, &Uri::parse("amqp://guest:guest@localhost")?)?,
                ExtraSystem::Pool => process.system(name, &first.uri)?,
            };
            if what == ExtraSystem::Pool {
                // Both processes do the work.
                system.watched = system.watched.with(&first.watched);
            }
            all.push(system);
            processes.push(process);
        }
        Ok(Systems { all, _processes: Arc::new(processes) })
    }
}

/// The address at which a pool finds its broker; clients bring their own credentials.
fn upstream(uri: &Uri) -> Result<String, Error> {
    check(uri.tls.is_none(), "--with pool: the first system is reached over TLS; start the pool yourself")?;
    Ok(format!("amqp://{}", HostAndPort(&uri.host, uri.port)))
}

/// Parses the systems of a command line: `given`, or else the one at `uri`.
pub(crate) fn parse_systems(uri: &str, given: &[String]) -> Result<Vec<System>, Error> {
    if given.is_empty() {
        let uri = Uri::parse(uri)?;
        return Ok(vec![System { name: "default".into(), uri, watched: Watched::default() }]);
    }
    let mut systems: Vec<System> = Vec::new();
    for text in given {
        let system = parse_system(text)?;
        check(
            systems.iter().all(|other| other.name != system.name),
            &format!("--system: the name {:?} is given twice", system.name),
        )?;
        systems.push(system);
    }
    Ok(systems)
}

fn parse_system(text: &str) -> Result<System, Error> {
    let fail =
        |what: &str| Error::Usage(format!("--system: {what}; it is written name=uri{}", watched::FORM));
    let (name, rest) = text.split_once('=').ok_or_else(|| fail("there is no name"))?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(fail(&format!("{name:?} is not a name of letters, digits, - and _")));
    }
    let (watched, uri) = Watched::take_from(rest)?;
    Ok(System { name: name.into(), uri: Uri::parse(uri)?, watched })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::parse;

    fn systems(arguments: &[&str]) -> Result<Systems, Error> {
        parse::<SystemArguments>(arguments).unwrap().systems()
    }

    #[test]
    fn systems_have_names_uris_and_processes() {
        let own = std::process::id();
        let system = format!("a=amqp://u:p,w@h:1/v,pid={own},pid=1");
        let systems = systems(&["--system", &system, "--system", "b=amqps://h"]).unwrap();
        assert_eq!((&*systems[0].name, &*systems[0].uri.password, &*systems[0].uri.vhost), ("a", "p,w", "v"));
        assert_eq!(systems[0].watched.pids, [own, 1]);
        assert!(systems[1].name == "b" && systems[1].uri.tls.is_some());
    }

    #[test]
    fn invalid_systems_are_refused_before_anything_is_started() {
        for arguments in [
            &["--system", "amqp://h"][..],
            &["--system", "a=amqp://h,pid=x"],
            &["--system", "a.b=amqp://h"],
            &["--system", "a=amqp://h", "--system", "a=amqp://h"],
            &["--system", "pool=amqp://h", "--with", "pool"],
            &["--uri", "amqps://h", "--with", "pool"],
            &["--uri", "http://h"],
        ] {
            assert!(systems(arguments).unwrap_err().is_usage(), "{arguments:?}");
        }
    }
}
