//! The definitions that the embedded broker starts with: those of a file, and the first user.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use broker::{Broker, Definitions, DefinitionsError, LoginRefused, Section, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::catalogue::Catalogue;

use crate::config::{Config, DefinitionsIf, SettingError, VerifyClient};
use crate::password_file;
use crate::serve::ServeError;

/// Definitions and the file they were read from.
#[derive(Debug)]
pub(crate) struct DefinitionsFile {
    path: PathBuf,
    definitions: Definitions,
}

/// The objects of a broker that another process will take over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExistingObjects {
    /// See [`Broker::existing`].
    objects: Map<String, Value>,
    /// Whether there are only default objects, so that the next start loads definitions: see [`Before`].
    is_untouched: bool,
}

impl ExistingObjects {
    pub(crate) fn of(broker: &Broker, only_if_untouched: bool) -> Self {
        let was_loaded = broker.catalogue().is_some_and(|catalogue| catalogue.was_loaded());
        let is_untouched = !was_loaded && has_defaults_alone(broker);
        let is_listed = is_untouched || !only_if_untouched;
        Self { objects: if is_listed { broker.existing() } else { Map::new() }, is_untouched }
    }
}

/// Checks the files of definitions and of the first user's password for mistakes. If the broker's data directory is in use, the
/// running process has it: `existing` then asks that process for its objects. Without its answer it is not known whether the
/// file's queues, exchanges and bindings can be declared.
///
/// # Errors
///
/// One of them cannot be used, or that process does not answer.
pub(crate) fn check(
    config: &Config,
    existing: impl FnOnce(bool) -> io::Result<Option<ExistingObjects>>,
) -> Result<(), ServeError> {
    let file = read(config).map_err(ServeError::Setting)?;
    let password = given_password(config).map_err(ServeError::Setting)?;
    let Some(DefinitionsFile { path, definitions }) = file else { return Ok(()) };
    let existing = if begins_with_nothing(config) {
        Some(ExistingObjects { objects: Map::new(), is_untouched: true })
    } else {
        existing(config.definitions_if != DefinitionsIf::Always).map_err(ServeError::TakeOver)?
    };
    check_beside(config, password, &definitions, existing)
        .map_err(|error| ServeError::Setting(at_fault(&path, error)))
}

fn check_beside(
    config: &Config,
    password: Option<String>,
    definitions: &Definitions,
    existing: Option<ExistingObjects>,
) -> Result<(), DefinitionsError> {
    let is_always = config.definitions_if == DefinitionsIf::Always;
    match existing.filter(|existing| existing.is_untouched || is_always) {
        Some(ExistingObjects { objects, is_untouched }) => {
            let existing = Definitions::from_map(&objects)?;
            let first = password.filter(|_| is_untouched);
            let first = first.map(|password| {
                Definitions::first(&config.default_user.0, &password, &config.default_vhost.0)
            });
            definitions.check_beside(&existing, first.as_ref(), config.compatibility)
        }
        // They are not loaded, or nothing is known of the broker.
        None => definitions.check(config.compatibility),
    }
}

/// Whether there is no data directory, or nothing in it.
fn begins_with_nothing(config: &Config) -> bool {
    let Ok(directory) = config.data_dir.directory() else { return false };
    directory.is_none_or(|directory| match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    })
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

/// The contents of a broker before the definitions are considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing yet: this is its first start.
    Nothing,
    /// Only the user and the virtual host that a start without any of these settings creates, whatever applications have
    /// declared. A package may have started it before its operator could configure it.
    Defaults,
    /// A definitions file, and what has been changed since.
    Definitions,
    /// Users, permissions or policies that its operators have made without a file.
    Others,
}

impl Before {
    /// The contents of a data directory, from which the broker has been restored.
    pub(crate) fn of(broker: &Broker, catalogue: &Catalogue) -> Self {
        if catalogue.was_empty() {
            Self::Nothing
        } else if catalogue.was_loaded() {
            Self::Definitions
        } else if has_defaults_alone(broker) {
            Self::Defaults
        } else {
            Self::Others
        }
    }
}

/// Whether operators have defined nothing: there is only the first user of a start without settings, and its objects.
fn has_defaults_alone(broker: &Broker) -> bool {
    let count = |section| broker.definitions_of(section, &[]).len();
    let is_one = |section, names: &[&str]| count(section) == 1 && broker.definition(section, names).is_some();
    let further =
        [Section::TopicPermissions, Section::Parameters, Section::GlobalParameters, Section::Policies];
    is_one(Section::Users, &[GUEST])
        && is_one(Section::VirtualHosts, &[ROOT])
        && is_one(Section::Permissions, &[ROOT, GUEST])
        && further.into_iter().all(|section| count(section) == 0)
        && broker.authenticate(GUEST, GUEST.as_bytes(), true).is_ok()
}

/// Defines what a broker has at its start: the first user and virtual host, unless it has others already, and the definitions
/// file when `definitions_if` says so.
///
/// # Errors
///
/// The password's file cannot be read although it is needed, or an entry contradicts the broker's state, or cannot be stored.
pub(crate) fn start_with(
    broker: &Broker,
    config: &Config,
    file: Option<&DefinitionsFile>,
    before: Before,
    now: Timestamp,
) -> Result<(), SettingError> {
    let is_untouched = matches!(before, Before::Nothing | Before::Defaults);
    let password = match given_password(config) {
        Err(error) if !is_untouched => {
            tracing::warn!("{error}; ignored: broker already has users");
            None
        }
        password => password?,
    };
    let (user, vhost) = (&config.default_user.0, &config.default_vhost.0);
    let is_user_made = match before {
        Before::Nothing => file.is_none() || password.is_some(),
        Before::Defaults => password.is_some() || file.is_none() && vhost != ROOT,
        // With definitions that lack users, nobody could create one.
        Before::Definitions | Before::Others => {
            password.is_some() && broker.definitions_of(Section::Users, &[]).is_empty()
        }
    };
    if is_user_made {
        let first = Definitions::first(user, password.as_deref().unwrap_or(GUEST), vhost);
        broker.load(&first, now).map_err(|error| SettingError::new("default_user", error))?;
        tracing::info!(user, vhost, "first start: created administrator and virtual host");
    } else if let Some(password) = &password {
        warn_of_another_password(broker, user, password);
    }
    if let Some(file) = file {
        if is_untouched || config.definitions_if == DefinitionsIf::Always {
            load(broker, file, now)?;
        } else {
            report_not_loaded(file, before);
        }
    }
    let is_defined = is_user_made || file.is_some();
    if before == Before::Defaults && is_defined && broker.authenticate(GUEST, GUEST.as_bytes(), true).is_ok()
    {
        tracing::warn!(
            "the user guest of an earlier start is still there, with its password guest, for this machine only: `leveret ctl \
             delete_user guest` deletes it"
        );
    }
    warn_of_nobody(broker, config);
    Ok(())
}

/// Loads a file, and notes that it was.
fn load(broker: &Broker, file: &DefinitionsFile, now: Timestamp) -> Result<(), SettingError> {
    let DefinitionsFile { path, definitions } = file;
    let loaded = broker.load(definitions, now).map_err(|error| at_fault(path, error))?;
    if let Some(catalogue) = broker.catalogue() {
        catalogue.note_loaded();
    }
    loaded.log(definitions, &path.display().to_string());
    Ok(())
}

fn report_not_loaded(file: &DefinitionsFile, before: Before) {
    let file = file.path.display();
    if before == Before::Definitions {
        tracing::info!(
            %file,
            "definitions not loaded: already loaded at an earlier start, later changes are kept \
             (definitions_if = \"always\" loads them at every start)"
        );
    } else {
        tracing::warn!(
            %file,
            "definitions not loaded: would overwrite existing users, permissions or policies; to load them, set \
             definitions_if = \"always\" or use `leveret ctl import_definitions`"
        );
    }
}

/// The user that every broker begins with unless another is named, and its password.
const GUEST: &str = "guest";

/// The virtual host that every broker begins with unless another is named.
const ROOT: &str = "/";

/// The password of the first user, if one is given.
pub(crate) fn given_password(config: &Config) -> Result<Option<String>, SettingError> {
    if let Some(path) = &config.default_password_file.0 {
        let password = password_file::of_file(path);
        let fault = |error| SettingError::new("default_password_file", error).about(path.display());
        return password.map(Some).map_err(fault);
    }
    Ok(config.default_password.0.clone())
}

/// A configured password that differs from the user's has no effect, which the operator may not expect.
fn warn_of_another_password(broker: &Broker, user: &str, password: &str) {
    match broker.authenticate_from(user, password.as_bytes(), None, true, Instant::now()) {
        Ok(_) => {}
        Err(LoginRefused::UnknownUser) => {
            tracing::warn!(
                user,
                "default_user ignored: broker already has users; use `leveret ctl add_user`"
            );
        }
        Err(_) => tracing::warn!(
            user,
            "default_password ignored: user already has another password; use `leveret ctl change_password`"
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

#[cfg(test)]
mod tests {
    use broker::BrokerConfig;
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_shown_to_a_successor_that_will_load_definitions() {
        let broker = Broker::new(BrokerConfig::default());
        let shown = |only_if_untouched| {
            let existing = ExistingObjects::of(&broker, only_if_untouched);
            (existing.is_untouched, existing.objects.contains_key("queues"))
        };
        assert_eq!(shown(true), (true, true));
        let defined = Map::from_iter([("vhosts".to_owned(), json!([{ "name": "other" }]))]);
        broker.load(&Definitions::from_map(&defined).unwrap(), Timestamp::default()).unwrap();
        assert_eq!(shown(false), (false, true));
        assert_eq!(shown(true), (false, false));
    }
}
