//! Leveret: a pool in front of AMQP 0-9-1 brokers, or such a broker itself, in one binary.
//!
//! This crate contains only arguments, configuration, wiring and signals; everything else lives in other
//! crates.

mod alarms;
mod announce;
mod bound;
mod cli;
mod commands;
mod config;
mod ctl;
mod data_dir;
mod definitions;
mod descriptors;
mod fd_passing;
mod health;
mod http;
mod http_address;
mod http_client;
mod identities;
mod listen;
mod logins;
mod logs;
mod man_pages;
mod manage;
mod migration;
mod mqtt;
mod notify;
mod pagers;
mod password_file;
mod relays;
mod reload;
mod self_upstream;
mod serve;
mod service_sockets;
mod setting_files;
mod signals;
mod spool;
mod status;
mod stored_clock;
mod takeover;
mod tls;
mod top;

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use server::LAST_LINES_TIMEOUT;
use transport::Inherited;

use cli::{Command, CommandLine, ConfigCommand};
use config::{Effective, Environment, Flags};
use logs::ProcessLog;
use serve::ServeError;
use setting_files::SettingFiles;

// Long-lived connections of changing size fragment the system's allocator; jemalloc returns memory to the
// system. .cargo/config.toml sets how soon.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit code for a failure while running.
const FAILED: u8 = 1;
/// The exit code for wrong usage or configuration.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => return refuse_command_line(&error),
    };
    let result = match command_line.command {
        Command::Serve(flags) => return serve(flags),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => return benchmark(*arguments),
        Command::Config(command) => configuration(&command),
        Command::Ctl(arguments) => ctl::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Health(arguments) => {
            load(&arguments.flags.0).and_then(|effective| health::run(&arguments, &effective))
        }
        Command::Completions(wanted) => man_pages::completions(&wanted),
        Command::Man(wanted) => man_pages::man(&wanted),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The error of a command, which determines the exit code.
#[derive(Debug)]
enum Failure {
    Usage(String),
    Run(String),
    /// A server does not answer, or cannot at the moment: the same may do well later.
    Passing(String),
}

impl Failure {
    fn usage(error: impl fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    fn run(error: impl fmt::Display) -> Self {
        Self::Run(error.to_string())
    }

    fn into_line(self) -> String {
        match self {
            Self::Usage(line) | Self::Run(line) | Self::Passing(line) => line,
        }
    }

    fn report(self) -> ExitCode {
        self.report_to(|line| {
            let _ = writeln!(io::stderr(), "{line}");
        })
    }

    /// As [`Self::report`], before there is a log. A server ends even if nobody reads its standard error: a supervisor, or the
    /// process that it was to take over from, waits for its end.
    fn report_without_log(self) -> ExitCode {
        self.report_to(logs::write_without_log)
    }

    fn report_to(self, write: impl FnOnce(&str)) -> ExitCode {
        let code = match self {
            Self::Usage(_) => WRONG_USAGE,
            Self::Run(_) | Self::Passing(_) => FAILED,
        };
        write(&format!("leveret: {}", self.into_line()));
        ExitCode::from(code)
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Setting(error) => Self::usage(error),
            error => Self::run(error),
        }
    }
}

/// Prints help and versions unchanged, and errors as one line.
fn refuse_command_line(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(WRONG_USAGE)
        }
        // It may be the command line of a server.
        _ => Failure::Usage(cli::usage_line(error)).report_without_log(),
    }
}

fn load(flags: &Flags) -> Result<Effective, Failure> {
    config::load(flags, &Environment::of_process()).map_err(Failure::usage)
}

fn serve(flags: Flags) -> ExitCode {
    let started = load(&flags).and_then(|effective| {
        // Before the log has its thread.
        let (inherited, unused) = service_sockets::inherit();
        let log = logs::start(&effective.config).map_err(|error| Failure::run(format!("log: {error}")))?;
        for (index, error) in unused {
            tracing::warn!(%error, index, "unused file descriptor from the service manager");
        }
        Ok((effective, log, inherited))
    });
    let (effective, log, inherited) = match started {
        Ok(started) => started,
        Err(failure) => return failure.report_without_log(),
    };
    announce::begin(log.queue());
    let mut left = LAST_LINES_TIMEOUT - LAST_OF_LOG;
    let result = run_server(flags, effective, &log, inherited, &mut left);
    // From here on nothing else is logged that operators have to see.
    log.report_repeats();
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report_to(|line| log.write_failure(line)),
    };
    left = announce::end(left);
    log.end(left + LAST_OF_LOG);
    code
}

/// The part of [`LAST_LINES_TIMEOUT`] that other logs leave to that of the process, which says why it ends.
const LAST_OF_LOG: Duration = Duration::from_secs(1);

/// `left` is the time that the ends of the logs may still take.
fn run_server(
    flags: Flags,
    effective: Effective,
    log: &ProcessLog,
    inherited: Inherited,
    left: &mut Duration,
) -> Result<(), Failure> {
    let busy = effective.config.worker_threads.count();
    transport::limit_busy_turns(busy);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(busy + RESERVED_THREADS)
        .thread_name("leveret")
        .enable_all()
        .build()
        .map_err(|error| Failure::Run(format!("worker_threads: cannot start: {error}")))?;
    runtime.spawn(log.clone().keep_reporting());
    let result = runtime.block_on(serve::run(flags, effective, log.clone(), inherited, left));
    // Tasks that are still running have exceeded their time limit and are not waited for.
    runtime.shutdown_background();
    result.map_err(Failure::from)
}

/// Threads in addition to those that busy connections may occupy. Short work (a connecting client, a heartbeat,
/// a health check) finds one of them free, and the system's scheduler prefers it to threads that have been
/// running all along.
const RESERVED_THREADS: usize = 1;

#[cfg(feature = "bench")]
fn benchmark(arguments: bench::Arguments) -> ExitCode {
    match bench::run(arguments) {
        Ok(bench::Outcome::Met) => ExitCode::SUCCESS,
        Ok(bench::Outcome::NotMet) => ExitCode::from(FAILED),
        Err(error) if error.is_usage() => Failure::usage(error).report(),
        Err(error) => Failure::run(error).report(),
    }
}

fn configuration(command: &ConfigCommand) -> Result<(), Failure> {
    let text = match command {
        ConfigCommand::Check(flags) => {
            let config = load(flags)?.config;
            return SettingFiles::check(&config).map_err(Failure::from);
        }
        ConfigCommand::Print(flags) => load(flags)?.to_toml(),
        ConfigCommand::Reference => config::reference(),
        ConfigCommand::Commands => commands::reference(),
    };
    ctl::print(&text)
}
