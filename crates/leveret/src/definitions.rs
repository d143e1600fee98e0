//! The definitions that the embedded broker starts with: those of a file, and the first user.

use std::collections::HashSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use broker::{Broker, Definitions, LoginRefused, Section, Timestamp};

use crate::config::{Config, DefinitionsIf, SettingError, VerifyClient};
use crate::first_line;

/// Definitions and the file they were read from.
#[derive(Debug)]
pub(crate) struct DefinitionsFile {
    path: PathBuf,
    definitions: Definitions,
}

/// Reads the file named by the setting `definitions`, if any.
///
/// # Errors
///
/// The file cannot be read, or an entry of it is wrong.
pub(crate) fn read(config: &Config) -> Result<Option<DefinitionsFile>, SettingError> {
    let Some(path) = &config.definitions.0 else { return Ok(None) };
    let bytes = std::fs::read(path).map_err(|error| at_fault(path, error))?;
    let definitions = Definitions::from_json(&bytes).map_err(|error| at_fault(path, error))?;
    Ok(Some(DefinitionsFile { path: path.clone(), definitions }))
}

/// Defines what a broker has at its start: at the first one the first user and virtual host, and the definitions file when
/// `definitions_if` says so. `is_first` tells whether the broker has nothing yet.
///
/// # Errors
///
/// The password's file cannot be read, or an entry contradicts the broker's state, or cannot be stored.
pub(crate) fn start_with(
    broker: &Broker,
    config: &Config,
    file: Option<&DefinitionsFile>,
    is_first: bool,
    now: Timestamp,
) -> Result<(), SettingError> {
    let password = given_password(config)?;
    if is_first && (file.is_none() || password.is_some()) {
        let (user, vhost) = (&config.default_user.0, &config.default_vhost.0);
        let first = Definitions::first(user, password.as_deref().unwrap_or(GUEST), vhost);
        broker.load(&first, now).map_err(|error| SettingError::new("default_user", error))?;
        tracing::info!(user, vhost, "first start: made an administrator and a virtual host");
    } else if let Some(password) = &password {
        warn_of_another_password(broker, &config.default_user.0, password);
    }
    if let Some(DefinitionsFile { path, definitions }) = file {
        if !is_first && config.definitions_if == DefinitionsIf::Empty {
            tracing::info!(
                file = %path.display(),
                "definitions not loaded, as the data folder is not empty (definitions_if = \"always\" loads them all the same)"
            );
        } else {
            let loaded = broker.load(definitions, now).map_err(|error| at_fault(path, error))?;
            loaded.log(definitions, &path.display().to_string());
        }
    }
    warn_of_nobody(broker, config);
    Ok(())
}

/// The user that every broker begins with unless another is named, and its password.
const GUEST: &str = "guest";

/// The password of the first user, if one is given.
pub(crate) fn given_password(config: &Config) -> Result<Option<String>, SettingError> {
    if let Some(path) = &config.default_password_file.0 {
        let password = first_line::of_file(path);
        let fault = |error| SettingError::new("default_password_file", error).about(path.display());
        return password.map(Some).map_err(fault);
    }
    Ok(config.default_password.0.clone())
}

/// A password that is given and differs from that of the user has no effect, which its operator may not expect.
fn warn_of_another_password(broker: &Broker, user: &str, password: &str) {
    match broker.authenticate_from(user, password.as_bytes(), None, true, Instant::now()) {
        Ok(_) => {}
        Err(LoginRefused::UnknownUser) => {
            tracing::warn!(
                user,
                "default_user not made: that is for an empty data folder; use `leveret ctl add_user`"
            );
        }
        Err(_) => tracing::warn!(
            user,
            "default_password has no effect: the user has another password by now; use `leveret ctl change_password`"
        ),
    }
}

/// Warns if no client can log in, or none from another machine although it could connect.
fn warn_of_nobody(broker: &Broker, config: &Config) {
    let users = broker.definitions_of(Section::Users, &[]);
    let permissions = broker.definitions_of(Section::Permissions, &[]);
    let text = |entry: &serde_json::Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let takes_certificates = config.tls_verify_client != VerifyClient::Off;
    let with_password =
        users.iter().filter(|user| takes_certificates || !text(user, "password_hash").is_empty());
    let permitted: HashSet<String> = permissions.iter().map(|permission| text(permission, "user")).collect();
    let able = with_password.map(|user| text(user, "name")).filter(|user| permitted.contains(user));
    let mut able = able.peekable();
    if able.peek().is_none() {
        tracing::warn!(
            "nobody can log in: no user has both a password and permissions in a virtual host; default_user with \
             default_password makes one at the first start"
        );
    } else if able.all(|user| user == GUEST)
        && let Some((key, address)) = config.first_address_for_others()
    {
        tracing::warn!(
            "{key} listens on {address}, but guest, who may log in from this machine only, is the only user: make \
             another with default_user and default_password (at the first start), or with `leveret ctl add_user`"
        );
    }
}

fn at_fault(path: &Path, error: impl Error + Send + Sync + 'static) -> SettingError {
    SettingError::new("definitions", error).about(path.display())
}
