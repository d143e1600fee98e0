//! Users and virtual hosts.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api::{Api, path};
use super::output::Output;
use super::secret::{self, LOGIN, NEW};
use crate::Failure;

/// Actions on users and virtual hosts.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum UserCommand {
    /// Add a user
    AddUser(NewUser),
    /// Change the password of a user
    ChangePassword(NewPassword),
    /// Clear the password of a user, who then cannot log in with one
    ClearPassword(User),
    /// Delete a user
    DeleteUser(User),
    /// Set the tags of a user, such as administrator, monitoring, management or policymaker
    SetUserTags(Tags),
    /// Check that the user of this command can log in
    AuthenticateUser(Authenticate),
    /// Add a virtual host
    AddVhost(VhostName),
    /// Delete a virtual host and everything in it
    DeleteVhost(VhostName),
}

/// A user to be added. The password comes from LEVERET_CTL_NEW_PASSWORD, from a file or from standard input.
#[derive(Debug, Args)]
pub(super) struct NewUser {
    #[command(flatten)]
    password: NewPassword,
    /// A tag, such as administrator; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct NewPassword {
    /// The user
    name: String,
    /// Where rabbitmqctl takes the password.
    #[arg(hide = true)]
    password: Option<String>,
    /// A file whose first line is the new password; without it, that is in LEVERET_CTL_NEW_PASSWORD or on standard input
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Authenticate {
    /// Where rabbitmqctl takes the user and the password.
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Why a password is no argument.
const PASSWORDS_ARE_SEEN: &str = "give the password, which everybody could read on a command line,";

#[derive(Debug, Args)]
pub(super) struct User {
    /// The user
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct Tags {
    /// The user
    name: String,
    /// The tags
    tags: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct VhostName {
    /// The virtual host
    name: String,
}

pub(super) fn run(command: &UserCommand, api: &Api, output: &Output) -> Result<(), Failure> {
    match command {
        UserCommand::AddUser(new) => add_user(new, api, output),
        UserCommand::ChangePassword(new) => {
            new.check()?;
            let tags = tags_of(&user(api, &new.name)?);
            let password = new.read()?;
            api.put(&path(&["users", &new.name]), &json!({ "password": password, "tags": tags }))?;
            output.done(&format!("password of user '{}' changed", new.name))
        }
        UserCommand::ClearPassword(User { name }) => {
            let tags = tags_of(&user(api, name)?);
            api.put(&path(&["users", name]), &json!({ "password_hash": "", "tags": tags }))?;
            output.done(&format!("user '{name}' has no password"))
        }
        UserCommand::DeleteUser(User { name }) => {
            api.delete(&path(&["users", name]))?;
            output.done(&format!("user '{name}' deleted"))
        }
        UserCommand::SetUserTags(Tags { name, tags }) => set_tags(name, tags, api, output),
        UserCommand::AuthenticateUser(Authenticate { words }) => {
            if !words.is_empty() {
                return Err(Failure::Usage(format!(
                    "authenticate_user takes no arguments: name the user with --user, and {PASSWORDS_ARE_SEEN} in {LOGIN} or \
                     --password-file"
                )));
            }
            api.get(&path(&["whoami"]))?;
            output.done(&format!("user '{}' can log in", api.user()))
        }
        UserCommand::AddVhost(VhostName { name }) => {
            let path = path(&["vhosts", name]);
            if api.found(&path)?.is_some() {
                return Err(Failure::Run(format!("virtual host '{name}' exists already")));
            }
            api.put(&path, &json!({}))?;
            output.done(&format!("virtual host '{name}' added"))
        }
        UserCommand::DeleteVhost(VhostName { name }) => {
            api.delete(&path(&["vhosts", name]))?;
            output.done(&format!("virtual host '{name}' deleted"))
        }
    }
}

impl NewPassword {
    /// Refuses a password among the arguments, without repeating it.
    fn check(&self) -> Result<(), Failure> {
        match self.password {
            None => Ok(()),
            Some(_) => Err(Failure::Usage(format!(
                "{PASSWORDS_ARE_SEEN} on standard input, in {NEW} or with --new-password-file"
            ))),
        }
    }

    fn read(&self) -> Result<String, Failure> {
        secret::new_password(&self.name, self.new_password_file.as_deref())
    }
}

fn add_user(new: &NewUser, api: &Api, output: &Output) -> Result<(), Failure> {
    new.password.check()?;
    let name = &new.password.name;
    let path = path(&["users", name]);
    if api.found(&path)?.is_some() {
        return Err(Failure::Run(format!("user '{name}' exists already")));
    }
    let password = new.password.read()?;
    api.put(&path, &json!({ "password": password, "tags": new.tags.join(",") }))?;
    output.done(&format!("user '{name}' added"))
}

/// Sets the tags. The request has to repeat the password's hash, or the password would be removed.
fn set_tags(name: &str, tags: &[String], api: &Api, output: &Output) -> Result<(), Failure> {
    let user = user(api, name)?;
    let mut changed = json!({ "tags": tags.join(",") });
    for key in ["password_hash", "hashing_algorithm"] {
        if let Some(value) = user.get(key) {
            changed[key] = value.clone();
        }
    }
    api.put(&path(&["users", name]), &changed)?;
    output.done(&match tags {
        [] => format!("tags of user '{name}' cleared"),
        tags => format!("tags of user '{name}' set: {}", tags.join(" ")),
    })
}

fn user(api: &Api, name: &str) -> Result<Value, Failure> {
    let found = api.found(&path(&["users", name]))?;
    found.ok_or_else(|| Failure::Run(format!("user '{name}' not found")))
}

/// A user's tags separated by commas, as requests send them; servers return a list or a comma-separated string.
fn tags_of(user: &Value) -> String {
    match user.get("tags") {
        Some(Value::Array(tags)) => tags.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(Value::String(tags)) => tags.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_understood_as_a_list_and_by_commas() {
        assert_eq!(tags_of(&json!({ "tags": ["administrator", "x"] })), "administrator,x");
        assert_eq!(tags_of(&json!({ "tags": "administrator,x" })), "administrator,x");
        assert_eq!(tags_of(&json!({})), "");
    }
}
