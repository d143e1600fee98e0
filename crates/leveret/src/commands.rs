//! The reference of all commands, generated from the declaration of the command line.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use crate::cli::CommandLine;

const INTRODUCTION: &str = "\
# Commands

<!-- Written by `leveret config commands` from the declaration of the command line; a test compares them. -->

The commands of `leveret`, with their own flags if these are few. `leveret COMMAND --help` says what each flag means, and
so do the man pages (`leveret man --output DIR`). The flags of `leveret serve`, which `config` and `health` take as well,
are the [settings](configuration.md).
";

/// Commands with more arguments are shown without them, to keep the row readable.
const MAX_SHOWN: usize = 10;

/// docs/commands.md.
pub(crate) fn reference() -> String {
    let mut command = CommandLine::command();
    command.build();
    let mut page = INTRODUCTION.to_owned();
    section(&mut page, "leveret", &command);
    for group in shown(&command).filter(|command| command.has_subcommands()) {
        section(&mut page, &format!("leveret {}", group.get_name()), group);
    }
    page
}

/// A table with a command's subcommands, and the flags that all of them take.
fn section(page: &mut String, title: &str, command: &Command) {
    let heading = format!("\n## `{title}`\n\n");
    page.push_str(&heading);
    let shared: Vec<_> = arguments(command, true).collect();
    if !shared.is_empty() {
        let _ = writeln!(page, "{} takes `{}`.\n", takers(command), shared.join(" "));
    }
    page.push_str("| command | |\n|---|---|\n");
    for below in shown(command) {
        let mut usage = vec![below.get_name().to_owned()];
        if below.has_subcommands() {
            usage.push("COMMAND".to_owned());
        } else if takes_settings(below) {
            usage.push("[SETTINGS]".to_owned());
        } else {
            let own: Vec<_> = arguments(below, false).collect();
            if own.len() > MAX_SHOWN { usage.push("[FLAGS]".to_owned()) } else { usage.extend(own) }
        }
        let about = below.get_about().map(ToString::to_string).unwrap_or_default();
        let _ =
            writeln!(page, "| `{}` | {} |", usage.join(" ").replace('|', "\\|"), about.replace('|', "\\|"));
    }
}

/// The subcommands that take their group's flags: all, except those that hide them.
fn takers(command: &Command) -> String {
    let hides =
        |below: &&Command| below.get_arguments().any(|flag| flag.is_global_set() && flag.is_hide_set());
    let others: Vec<_> =
        shown(command).filter(hides).map(|below| format!("`{}`", below.get_name())).collect();
    if others.is_empty() {
        "Each of them".to_owned()
    } else {
        format!("Each of them but {}", others.join(", "))
    }
}

/// The subcommands but hidden ones and `help`, which every command with subcommands has.
pub(crate) fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Whether the settings are the command's flags.
fn takes_settings(command: &Command) -> bool {
    command.get_arguments().any(|argument| argument.get_long() == Some("max-message-size"))
}

/// The command's own arguments, or those that it shares with its subcommands, as a usage line has them.
fn arguments(command: &Command, is_shared: bool) -> impl Iterator<Item = String> {
    let of_kind = move |argument: &&Arg| {
        argument.is_global_set() == is_shared
            && !argument.is_hide_set()
            && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    command.get_arguments().filter(of_kind).map(|argument| {
        let text = argument.to_string();
        let is_bracketed = text.starts_with('[');
        if argument.is_required_set() || is_bracketed { text } else { format!("[{text}]") }
    })
}

#[cfg(all(test, feature = "bench"))]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        assert!(
            std::fs::read_to_string(path).unwrap() == reference(),
            "docs/commands.md is out of date: cargo run -- config commands > docs/commands.md"
        );
    }

    #[test]
    fn every_row_describes_its_command() {
        let reference = reference();
        let rows: Vec<_> = reference.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(rows.len() > 80, "{reference}");
        let empty: Vec<_> = rows.iter().filter(|row| row.ends_with("|  |")).collect();
        assert!(empty.is_empty(), "{empty:?}");
        assert!(
            rows.iter().any(|row| row.starts_with("| `add_user ")) && !reference.contains("config reference")
        );
    }
}
