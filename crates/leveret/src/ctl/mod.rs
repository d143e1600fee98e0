//! `leveret ctl`: what is done by hand.

mod store;

use clap::Subcommand;

pub(crate) use store::StoreCommand;

use crate::Failure;

/// What can be done by hand.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// A data folder that no broker is using
    #[command(subcommand)]
    Store(StoreCommand),
}

pub(crate) fn run(command: &CtlCommand) -> Result<(), Failure> {
    match command {
        CtlCommand::Store(command) => store::run(command),
    }
}
