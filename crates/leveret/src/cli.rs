//! The command line: `leveret serve`, `leveret config …`, `leveret ctl …`, and the commands that packages need.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command as ClapCommand, FromArgMatches, Parser, Subcommand};
use transport::parse_port;

use crate::config::{
    FILE_VARIABLE, Flags, SETTINGS, Setting, flag, mask_credentials, nearest, setting_meant,
};
use crate::ctl::CtlArguments;
use crate::health::HealthArguments;
use crate::http_address;
use crate::man_pages::{Completions, ManPages};
use crate::top::TopArguments;

/// A broker for AMQP 0-9-1, MQTT and STOMP, or a pool in front of one
#[derive(Debug, Parser)]
#[command(name = "leveret", version)]
pub(crate) struct CommandLine {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, one variant each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve clients: as a broker, or in front of one with --upstream
    Serve(Flags),
    /// Measure AMQP 0-9-1 brokers and proxies
    #[cfg(feature = "bench")]
    Bench(Box<bench::Arguments>),
    /// Check or print the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Inspect and manage a running server
    Ctl(Box<CtlArguments>),
    /// Watch a server in the terminal: rates, queues, connections and upstreams
    Top(Box<TopArguments>),
    /// Check the health of a running server; exit code 0 or 1
    Health(Box<HealthArguments>),
    /// Generate shell completions
    Completions(Completions),
    /// Print leveret(1), or write the man pages of all commands
    Man(ManPages),
}

/// Subcommands for configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report the first mistake in file, environment and flags; exit code 0 or 2
    Check(Flags),
    /// Show each value in effect and where it came from, as TOML
    Print(Flags),
    /// Print docs/configuration.md
    #[command(hide = true)]
    Reference,
    /// Print docs/commands.md
    #[command(hide = true)]
    Commands,
}

/// Formats a command-line error as one line, such as `unexpected argument '--amqq' found; did you mean --amqp ADDR?`.
pub(crate) fn usage_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let mut line = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    // Missing arguments, or the values that an argument may have: indented lines up to an empty one.
    let details: Vec<_> = lines.by_ref().map(str::trim).take_while(|detail| !detail.is_empty()).collect();
    if !details.is_empty() {
        line = format!("{line} {}", details.join(", "));
    }
    if let Some(hint) = unexpected(error).and_then(hint) {
        line.push_str(&hint);
    } else if error.kind() == ErrorKind::InvalidSubcommand {
        line.push_str(&subcommand_hint(error));
    } else if let Some(tip) = lines.find_map(|line| line.trim().strip_prefix("tip: ")) {
        line.push_str(", ");
        line.push_str(tip);
    }
    mask_credentials(&line)
}

/// The command that was meant by an unknown one.
fn subcommand_hint(error: &clap::Error) -> String {
    let name = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => name.as_str(),
        _ => "",
    };
    if let Some((_, command)) = ELSEWHERE.iter().find(|(rabbitmqctl, _)| *rabbitmqctl == name) {
        return format!("; see `{command}`");
    }
    let similar: &[String] = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(similar)) => similar,
        _ => &[],
    };
    match nearest(name, similar.iter().map(String::as_str)) {
        Some(nearest) => format!("; did you mean '{nearest}'?"),
        None => "; --help lists those that there are".to_owned(),
    }
}

/// Commands of rabbitmqctl that have another name here.
const ELSEWHERE: [(&str, &str); 4] = [
    ("stop", "leveret ctl drain"),
    ("shutdown", "leveret ctl drain"),
    ("cluster_status", "leveret ctl status"),
    ("node_health_check", "leveret health"),
];

/// The argument that a command with the settings as its flags does not know.
fn unexpected(error: &clap::Error) -> Option<&str> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else { return None };
    // `Usage: leveret serve ...`; the program may have another name.
    let usage = usage.to_string();
    if !matches!(usage.split_whitespace().nth(2), Some("serve" | "health" | "config")) {
        return None;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if error.kind() == ErrorKind::UnknownArgument => Some(argument),
        _ => None,
    }
}

/// Tells, as the end of a sentence, what an argument that is not known was meant to be.
fn hint(argument: &str) -> Option<String> {
    if let Some(flag_name) = argument.strip_prefix("--") {
        let key = setting_meant(flag_name)?;
        let setting = SETTINGS.iter().find(|setting| setting.key == key)?;
        return Some(match setting.is_secret {
            true => format!(
                "; everybody can read command lines, so set {} or --{}-file",
                setting.variable(),
                setting.flag()
            ),
            false => format!("; did you mean --{} {}?", setting.flag(), setting.kind),
        });
    }
    if ["amqp://", "amqps://"].iter().any(|scheme| argument.starts_with(scheme)) {
        return Some(format!("; to stand in front of that broker, --upstream {argument}"));
    }
    if argument.ends_with(".toml") {
        return Some(format!("; a file of settings is given as --config {argument}"));
    }
    let port = argument.rsplit(':').next().and_then(parse_port);
    port.map(|port| match argument.contains(':') {
        true => format!("; to listen there, --amqp {argument}"),
        false => format!("; to listen at that port, --amqp 127.0.0.1:{port}"),
    })
}

// Implemented by hand, because the arguments come from the declaration of the settings.
impl Args for Flags {
    fn augment_args(command: ClapCommand) -> ClapCommand {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!("The configuration file, TOML [env: {FILE_VARIABLE}]"));
        let settings = SETTINGS.iter().filter(|setting| !setting.is_secret).map(|setting| {
            let action = if setting.repeated { ArgAction::Append } else { ArgAction::Set };
            let argument = text_argument(setting.key);
            // The one switch that is on only for a command: it may stand without a value.
            let argument = match setting.key {
                // The last one counts: a process that is started by its predecessor has it once more.
                "take_over" => {
                    argument.num_args(0..=1).default_missing_value("on").overrides_with("take_over")
                }
                _ => argument,
            };
            argument.value_name(setting.kind).help_heading(setting.group).help(help(setting)).action(action)
        });
        command.arg(config).args(settings)
    }

    fn augment_args_for_update(command: ClapCommand) -> ClapCommand {
        Self::augment_args(command)
    }
}

/// The flags of a server that runs, for a command that looks for it. Help shows only those that say where it is.
#[derive(Debug)]
pub(crate) struct FindingFlags(pub(crate) Flags);

impl Args for FindingFlags {
    fn augment_args(command: ClapCommand) -> ClapCommand {
        Flags::augment_args(command).mut_args(|argument| {
            let id = argument.get_id().as_str();
            let is_hidden =
                !http_address::KEYS.contains(&id) && SETTINGS.iter().any(|setting| setting.key == id);
            argument.hide(is_hidden)
        })
    }

    fn augment_args_for_update(command: ClapCommand) -> ClapCommand {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FindingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Flags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// The setting's meaning, followed by a line with the defaults and the variable.
fn help(setting: &Setting) -> String {
    let mut lines: Vec<String> = setting.help.lines().map(|line| line.trim().to_owned()).collect();
    let with_upstream = setting.default_with_upstream.map(|default| format!(", with an upstream {default}"));
    lines.push(format!(
        "[default: {}{}] [env: {}]",
        setting.default,
        with_upstream.unwrap_or_default(),
        setting.variable()
    ));
    lines.join("\n")
}

fn text_argument(key: &'static str) -> Arg {
    Arg::new(key).long(flag(key)).value_parser(NonEmptyStringValueParser::new()).allow_negative_numbers(true)
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        for Setting { key, .. } in SETTINGS.iter().filter(|setting| !setting.is_secret) {
            if let Some(texts) = matches.get_many::<String>(key) {
                self.values.insert(key, texts.cloned().collect());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Flags, String> {
        let arguments = ["leveret", "serve"].iter().chain(arguments);
        match CommandLine::try_parse_from(arguments) {
            Ok(CommandLine { command: Command::Serve(flags) }) => Ok(flags),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(usage_line(&error)),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn flags_are_collected_under_their_keys() {
        let flags = parse(&[
            "--config",
            "f.toml",
            "--upstream",
            "amqp://a",
            "--upstream=amqp://b",
            "--frame-max",
            "-1",
        ])
        .unwrap();
        assert_eq!(flags.file, Some(PathBuf::from("f.toml")));
        assert_eq!(flags.values["upstream"], ["amqp://a", "amqp://b"]);
        assert_eq!(flags.values["frame_max"], ["-1"]);
        assert_eq!(flags.values.len(), 2);
    }

    #[test]
    fn the_help_tells_defaults_and_variables() {
        let help = CommandLine::try_parse_from(["leveret", "serve", "--help"]).unwrap_err().to_string();
        assert!(help.contains("--prometheus <ADDR>") && help.contains("--frame-max <N>"), "{help}");
        assert!(help.contains("[default: 131072] [env: LEVERET_FRAME_MAX]"), "{help}");
    }

    #[test]
    fn health_shows_its_own_settings_and_takes_those_of_the_server() {
        let help = CommandLine::try_parse_from(["leveret", "health", "--help"]).unwrap_err().to_string();
        assert!(
            help.contains("--ready") && help.contains("--config") && help.contains("--http <ADDR>"),
            "{help}"
        );
        assert!(!help.contains("--frame-max") && help.lines().count() < 30, "{help}");
        let parsed =
            CommandLine::try_parse_from(["leveret", "health", "--frame-max", "4096", "--http", "off"]);
        let Ok(CommandLine { command: Command::Health(arguments) }) = parsed else { panic!("{parsed:?}") };
        assert_eq!(arguments.flags.0.values["frame_max"], ["4096"]);
    }

    #[test]
    fn missing_arguments_possible_values_and_the_nearest_command_are_named() {
        for (arguments, line) in [
            (
                &["ctl", "set_permissions", "u", ".*", ".*"][..],
                "the following required arguments were not provided: <READ>",
            ),
            (
                &["ctl", "store", "check"][..],
                "the following required arguments were not provided: --data-dir <DIR>",
            ),
            (
                &["ctl", "migrate", "--to", "amqp://x"][..],
                "the following required arguments were not provided: --to-management <URL>",
            ),
            (
                &["ctl", "--format", "xml"][..],
                "invalid value 'xml' for '--format <FORMAT>' [possible values: table, json]",
            ),
            (&["ctl", "listqueues"][..], "unrecognized subcommand 'listqueues'; did you mean 'list_queues'?"),
            (&["ctl", "stop"][..], "unrecognized subcommand 'stop'; see `leveret ctl drain`"),
            (
                &["ctl", "cluster_status"][..],
                "unrecognized subcommand 'cluster_status'; see `leveret ctl status`",
            ),
            (
                &["ctl", "frobnicate"][..],
                "unrecognized subcommand 'frobnicate'; --help lists those that there are",
            ),
        ] {
            let error = CommandLine::try_parse_from(["leveret"].iter().chain(arguments)).unwrap_err();
            assert_eq!(usage_line(&error), line);
        }
    }

    #[test]
    fn help_is_a_command_at_each_level() {
        for arguments in [&["help"][..], &["help", "ctl"], &["ctl", "help"], &["ctl", "help", "list_queues"]]
        {
            let error = CommandLine::try_parse_from(["leveret"].iter().chain(arguments)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{arguments:?}");
        }
    }

    #[test]
    fn a_wrong_command_line_is_reported_in_one_line() {
        for (arguments, line) in [
            (&["--amqq", "off"][..], "unexpected argument '--amqq' found; did you mean --amqp ADDR?"),
            (&["--listen", ":5672"][..], "unexpected argument '--listen' found; did you mean --amqp ADDR?"),
            (&["--port=5672"][..], "unexpected argument '--port' found; did you mean --amqp ADDR?"),
            (&["--unheard-of"][..], "unexpected argument '--unheard-of' found"),
            (
                &["--default-password", "hunter2"][..],
                "unexpected argument '--default-password' found; everybody can read command lines, so set \
                 LEVERET_DEFAULT_PASSWORD or --default-password-file",
            ),
            (
                &["0.0.0.0:5672"][..],
                "unexpected argument '0.0.0.0:5672' found; to listen there, --amqp 0.0.0.0:5672",
            ),
            (
                &["leveret.toml"][..],
                "unexpected argument 'leveret.toml' found; a file of settings is given as --config leveret.toml",
            ),
            (&["--amqp"][..], "a value is required for '--amqp <ADDR>' but none was supplied"),
            (&["--amqp", ""][..], "a value is required for '--amqp <ADDR>' but none was supplied"),
            (
                &["--frame-max", "4096", "--frame-max", "4096"][..],
                "the argument '--frame-max <N>' cannot be used multiple times",
            ),
            (
                &["amqp://u:hunter2@a"][..],
                "unexpected argument 'amqp://***@a' found; to stand in front of that broker, --upstream amqp://***@a",
            ),
        ] {
            assert_eq!(parse(arguments).unwrap_err(), line);
        }
    }
}
