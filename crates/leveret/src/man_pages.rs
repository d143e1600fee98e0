//! Man pages and shell completions, generated from the declaration of the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::Failure;
use crate::cli::CommandLine;
use crate::commands::shown;
use crate::ctl;

/// Which completions.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Which man pages.
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// Write the pages of all commands into this directory, instead of the first to standard output
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// The script that makes a shell complete the command line.
pub(crate) fn completions(wanted: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(wanted.shell, &mut CommandLine::command(), "leveret", &mut script);
    print(&script)
}

/// Prints leveret(1), or writes the man pages of all commands.
pub(crate) fn man(wanted: &ManPages) -> Result<(), Failure> {
    let mut command = CommandLine::command();
    command.build();
    match &wanted.output {
        None => print(&page(&command).map_err(Failure::run)?),
        Some(directory) => write_all(&command, directory).map_err(|error| {
            let directory = directory.display();
            Failure::Run(format!("{directory}: {error}"))
        }),
    }
}

/// Writes a page for the command and for each of its subcommands: `leveret-config-print.1`.
fn write_all(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let name = page_name(command);
    fs::write(directory.join(format!("{name}.1")), page(command)?)?;
    shown(command).try_for_each(|below| write_all(below, directory))
}

/// The page's name: `leveret-config-print` for `leveret config print`.
fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).replace(' ', "-")
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let name = page_name(command);
    Man::new(command.clone().name(name).version(env!("CARGO_PKG_VERSION")))
        .section("1")
        .source(concat!("leveret ", env!("CARGO_PKG_VERSION")))
        .manual("Leveret")
        .render(&mut bytes)?;
    Ok(bytes)
}

fn print(text: &[u8]) -> Result<(), Failure> {
    ctl::print(&String::from_utf8_lossy(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page_with_its_flags() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = CommandLine::command();
        command.build();
        write_all(&command, directory.path()).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let serve = read("leveret-serve.1");
        assert!(serve.contains(".TH leveret-serve 1") && serve.contains("max\\-message\\-size"), "{serve}");
        assert!(read("leveret.1").contains("leveret\\-serve(1)"));
        assert!(read("leveret-config-print.1").contains("leveret\\-config\\-print"));
        assert!(!directory.path().join("leveret-config-reference.1").exists());
    }

    #[test]
    fn completions_know_commands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut CommandLine::command(), "leveret", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("serve") && script.contains("max-message-size"), "{shell}");
        }
    }
}
