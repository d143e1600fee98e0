//! `leveret ctl`: manual operations on a running server over its HTTP API, or on a data directory.
//!
//! The commands and their names are rabbitmqctl's as far as both have the feature. They use RabbitMQ's
//! management API, and work with a RabbitMQ server too.

mod act;
mod api;
mod column_names;
mod definitions;
mod discovery;
mod limits;
mod list;
mod migrate;
mod missing;
mod output;
mod permissions;
mod policies;
mod pool;
mod secret;
mod spool;
mod status;
mod store;
mod upgrade;
mod users;
mod variables;

use clap::{Arg, Args, Command, Subcommand};

use crate::Failure;

pub(crate) use api::{Api, Connection, encode, path};
pub(crate) use discovery::leveret;
pub(crate) use output::{print, printable, size};

/// The action, its target, and the form of the output.
#[derive(Debug, Args)]
pub(crate) struct CtlArguments {
    #[command(flatten)]
    connection: api::Connection,
    #[command(flatten)]
    output: output::Output,
    /// `status` if there is none.
    #[command(subcommand)]
    command: Option<CtlCommand>,
}

/// Actions by hand. The topics have no names of their own on the command line, but for those that say `store`.
#[derive(Debug, Subcommand)]
enum CtlCommand {
    #[command(flatten)]
    Status(status::StatusCommand),
    #[command(flatten)]
    List(list::ListCommand),
    #[command(flatten)]
    Users(users::UserCommand),
    #[command(flatten)]
    Permissions(permissions::PermissionCommand),
    #[command(flatten)]
    Policies(policies::PolicyCommand),
    #[command(flatten)]
    Limits(limits::LimitCommand),
    #[command(flatten)]
    Definitions(definitions::DefinitionCommand),
    #[command(flatten)]
    Act(act::ActCommand),
    #[command(flatten)]
    Pool(pool::PoolCommand),
    /// Migrate everything to a cluster while clients stay connected, and become the pool in front of it; or import
    Migrate(migrate::MigrateCommand),
    /// Check or repair a data directory that no broker is using
    #[command(subcommand, args(hidden_options()))]
    Store(store::StoreCommand),
}

/// The virtual host of a command.
#[derive(Debug, Args)]
struct Vhost {
    /// The virtual host
    #[arg(short = 'p', long, value_name = "VHOST", env = "LEVERET_CTL_VHOST", default_value = "/")]
    vhost: String,
}

/// The global options, hidden: for commands that ask no server.
fn hidden_options() -> Vec<Arg> {
    let options = output::Output::augment_args(api::Connection::augment_args(Command::new("ctl")));
    options.get_arguments().map(|option| option.clone().hide(true)).collect()
}

pub(crate) fn run(arguments: &CtlArguments) -> Result<(), Failure> {
    let CtlArguments { connection, output, command } = arguments;
    let api = || api::Api::new(connection, output.is_quiet());
    let Some(command) = command else {
        return status::run(&status::StatusCommand::Status, &api()?, output);
    };
    match command {
        CtlCommand::Store(command) => store::run(command),
        CtlCommand::Status(command) => status::run(command, &api()?, output),
        CtlCommand::List(command) => list::run(command, &api()?, output),
        CtlCommand::Users(command) => users::run(command, &api()?, output),
        CtlCommand::Permissions(command) => permissions::run(command, &api()?, output),
        CtlCommand::Policies(command) => policies::run(command, &api()?, output),
        CtlCommand::Limits(command) => limits::run(command, &api()?, output),
        CtlCommand::Definitions(command) => definitions::run(command, &api()?, output),
        CtlCommand::Act(command) => act::run(command, &api()?, output),
        CtlCommand::Pool(command) => pool::run(command, &api()?, output),
        CtlCommand::Migrate(command) => migrate::run(command, &api()?, connection, output),
    }
}
