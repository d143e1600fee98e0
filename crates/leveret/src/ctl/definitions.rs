//! Definitions as a file: users, virtual hosts, exchanges, queues and related objects.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::api::{Api, path};
use super::output::{self, Output};
use crate::Failure;

/// Actions on definitions.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum DefinitionCommand {
    /// Write all definitions to a file, or to standard output
    #[command(visible_alias = "definitions")]
    ExportDefinitions(File),
    /// Add the definitions of a file, or of standard input, to the existing ones
    ImportDefinitions(File),
}

#[derive(Debug, Args)]
pub(super) struct File {
    /// The virtual host, if only what belongs to it is wanted
    #[arg(short = 'p', long, value_name = "VHOST")]
    vhost: Option<String>,
    /// The file; - is standard input or output
    #[arg(default_value = "-")]
    file: PathBuf,
}

pub(super) fn run(command: &DefinitionCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        DefinitionCommand::ExportDefinitions(file) => {
            let text = serde_json::to_string_pretty(&api.get(&file.path())?).map_err(Failure::run)? + "\n";
            if file.is_standard() {
                return output::print(&text);
            }
            write(&file.file, &text).map_err(|error| file.fault(&error))?;
            output.done(&format!("definitions written to {}", file.file.display()))
        }
        DefinitionCommand::ImportDefinitions(file) => {
            let text = file.read().map_err(|error| file.fault(&error))?;
            let definitions: Result<Value, _> = serde_json::from_slice(&text);
            // The parser's messages do not quote the file.
            definitions
                .map_err(|error| Failure::Usage(format!("{}: is not JSON: {error}", file.file.display())))?;
            api.post(&file.path(), text)?;
            output.done("definitions imported")
        }
    }
}

impl File {
    fn path(&self) -> String {
        let mut parts = vec!["definitions"];
        parts.extend(self.vhost.as_deref());
        path(&parts)
    }

    fn is_standard(&self) -> bool {
        self.file == Path::new("-")
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        if !self.is_standard() {
            return fs::read(&self.file);
        }
        let mut text = Vec::new();
        io::stdin().lock().read_to_end(&mut text)?;
        Ok(text)
    }

    fn fault(&self, error: &io::Error) -> Failure {
        Failure::Run(format!("{}: {error}", self.file.display()))
    }
}

/// Writes the file. Definitions contain password hashes, so only its owner may access a new file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use io::Write as _;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
