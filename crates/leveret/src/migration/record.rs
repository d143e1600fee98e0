//! The record of a move in the data directory: whose messages these are, and where they have moved to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{Config, Effective, SettingError, UpstreamUrl, ValueError, without_effect};

/// The file's name.
const NAME: &str = "migration.json";

/// The name of the file for exchanges: a line of JSON for those that are made together.
const EXCHANGES: &str = "migration-exchanges.jsonl";

/// A broker's record of its moves. It has no password: clients log in with their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MoveRecord {
    /// Part of message ids, which distinguishes this broker's messages from those of others.
    pub(super) broker_id: String,
    /// Set once everything has moved: this process is a pool from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<MovedTo>,
}

/// Where everything has moved to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MovedTo {
    /// The addresses as `upstream` has them.
    pub(super) upstream: Vec<String>,
    /// The counts at the end, for `leveret ctl migrate`.
    pub(super) queues: Value,
}

/// The file in the data directory.
#[derive(Debug, Clone)]
pub(crate) struct RecordFile(PathBuf);

impl RecordFile {
    /// `None` if nothing is to be stored.
    ///
    /// # Errors
    ///
    /// The setting names no directory.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, ValueError> {
        Ok(config.data_dir.directory()?.map(|directory| Self(directory.join(NAME))))
    }

    /// The file beside it for exchanges that may be at other brokers.
    pub(super) fn exchanges(&self) -> PathBuf {
        self.0.with_file_name(EXCHANGES)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Reads it; `None` if there is none.
    pub(super) fn read(&self) -> io::Result<Option<MoveRecord>> {
        match fs::read(&self.0) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, for its owner alone. It is on disk on return, whole or as before.
    pub(super) fn write(&self, record: &MoveRecord) -> io::Result<()> {
        server::replace_private_file(&self.0, &serde_json::to_vec_pretty(record)?)
    }
}

/// The settings with the upstream of the record, if everything has moved and no layer names an upstream. The addresses of
/// listeners stay those of the broker.
///
/// # Errors
///
/// The record cannot be read.
pub(crate) fn obey(effective: &Effective) -> Result<Config, SettingError> {
    let mut config = effective.config.clone();
    // Without a directory there is no record; a broker says why there is none.
    let Ok(Some(file)) = RecordFile::of(&config) else { return Ok(config) };
    // One that is none, or cannot be read, is reported by who opens it.
    if file.path().parent().is_some_and(|directory| fs::read_dir(directory).is_err()) {
        return Ok(config);
    }
    let path = file.path().display().to_string();
    let at_fault = |error: io::Error| SettingError::new("data_dir", error).about(&path);
    let Some(MovedTo { upstream, .. }) = file.read().map_err(at_fault)?.and_then(|record| record.moved)
    else {
        return Ok(config);
    };
    if effective.is_set("upstream") {
        // Set to off, the record is about to be forgotten.
        if !config.upstream.is_empty() {
            tracing::info!(
                record = path,
                "upstream is set: the record that this broker has moved has no effect"
            );
        }
        return Ok(config);
    }
    config.upstream = UpstreamUrl::of_cluster(&upstream)
        .map_err(|error| SettingError::new("data_dir", error).about(&path))?;
    let (amqp, http) = (&config.amqp, &config.http);
    let of_broker = without_effect(&config).join(", ");
    let remove = if of_broker.is_empty() { String::new() } else { format!(", and remove {of_broker}") };
    tracing::warn!(
        record = path,
        "this broker has moved, and is a pool in front of {to}. Write upstream = {upstream:?}, amqp = \"{amqp}\" and http = \
         \"{http}\" into the configuration{remove}; to go back to the broker, whose queues are empty, set upstream = \"off\"",
        to = upstream.join(", "),
    );
    Ok(config)
}

/// Whether the settings are those of a broker, and its record says that it is one no more. Called once the data directory is
/// this process's alone.
///
/// # Errors
///
/// The record cannot be read.
pub(crate) fn is_outdated(config: &Config, effective: &Effective) -> Result<bool, SettingError> {
    if !config.upstream.is_empty() || effective.is_set("upstream") {
        return Ok(false);
    }
    Ok(!obey(effective)?.upstream.is_empty())
}

/// Forgets that everything has moved, if `upstream` is set to `off`: an operator has gone back to the broker, and messages
/// come here again. By the record the first start without the setting would be the pool again, with these messages left
/// behind. Called once the data directory is this process's alone.
///
/// # Errors
///
/// The record cannot be read or written.
pub(crate) fn forget_if_off(config: &Config, effective: &Effective) -> Result<(), SettingError> {
    if !config.upstream.is_empty() || !effective.is_set("upstream") {
        return Ok(());
    }
    let Ok(Some(file)) = RecordFile::of(config) else { return Ok(()) };
    let path = file.path().display().to_string();
    let at_fault = |error: io::Error| SettingError::new("data_dir", error).about(&path);
    let Some(mut record) = file.read().map_err(at_fault)? else { return Ok(()) };
    let Some(moved) = record.moved.take() else { return Ok(()) };
    file.write(&record).map_err(at_fault)?;
    tracing::info!(
        record = path,
        "upstream is off: this is the broker again, and the record that it has moved to {} is removed",
        moved.upstream.join(", "),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::{Environment, Flags, load};

    /// The settings of a start with this directory, and with `upstream` if that is given.
    fn settings(directory: &Path, upstream: Option<&str>) -> Effective {
        let directory = ("data_dir", vec![directory.display().to_string()]);
        let upstream = upstream.map(|address| ("upstream", vec![address.to_owned()]));
        let values = BTreeMap::from_iter([directory].into_iter().chain(upstream));
        load(&Flags { file: None, values }, &Environment::default()).unwrap()
    }

    #[test]
    fn a_broker_that_is_one_again_stays_one_without_the_setting() {
        let directory = tempfile::tempdir().unwrap();
        let file = RecordFile(directory.path().join(NAME));
        let moved = MovedTo { upstream: vec!["amqp://rabbit:5672".to_owned()], queues: Value::Null };
        file.write(&MoveRecord { broker_id: "b".to_owned(), moved: Some(moved) }).unwrap();
        let start = |upstream| {
            let effective = settings(directory.path(), upstream);
            let config = obey(&effective).unwrap();
            forget_if_off(&config, &effective).unwrap();
            config
        };
        let is_pool = |config: Config| !config.upstream.is_empty();
        assert!(is_pool(start(None)) && is_pool(start(Some("amqp://other:5672"))) && is_pool(start(None)));
        assert!(!is_pool(start(Some("off"))));
        assert!(!is_pool(start(None)), "messages that came meanwhile would be left behind");
        let record = MoveRecord { broker_id: "b".to_owned(), moved: None };
        assert_eq!(file.read().unwrap(), Some(record), "its messages keep their ids");
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_is_its_owners() {
        let directory = tempfile::tempdir().unwrap();
        let file = RecordFile(directory.path().join(NAME));
        assert_eq!(file.read().unwrap(), None);
        let mut record = MoveRecord { broker_id: "b".to_owned(), moved: None };
        file.write(&record).unwrap();
        let upstream = vec!["amqp://rabbit:5672".to_owned()];
        record.moved = Some(MovedTo { upstream, queues: Value::Null });
        file.write(&record).unwrap();
        assert_eq!(file.read().unwrap(), Some(record));
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(file.path(), "{").unwrap();
        assert!(
            file.read().is_err(),
            "a broker that has moved must not serve as one because its record is damaged"
        );
    }
}
