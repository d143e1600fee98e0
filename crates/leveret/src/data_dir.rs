//! The data directory: its lock and its contents.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;

use broker::Broker;
use server::Clock;
use store::catalogue::Catalogue;
use store::disk::RealDisk;
use store::{DirectoryLock, LockError, Recovered, Rounds, RunningStore, Store, StoreSettings};

use crate::config::{Config, SettingError};
use crate::definitions::{self, Before};
use crate::pagers::Pagers;
use crate::serve::ServeError;
use crate::spool;
use crate::stored_clock::StoredClock;

const KEY: &str = "data_dir";

/// An open data directory. Dropping it writes the last changes and then releases the directory.
pub(crate) struct DataDirectory {
    /// Stopped before the store.
    pagers: Option<Pagers>,
    clock: Arc<StoredClock>,
    running: Option<RunningStore>,
    _lock: DirectoryLock,
}

/// Loads the initial contents of a new broker: those of the data directory, if there is one, and the definitions
/// file, or otherwise the defaults of a new broker. All of it is on disk on return. The clock continues where that of the
/// directory's last process ended.
///
/// # Errors
///
/// The definitions cannot be loaded, or the directory cannot be used.
pub(crate) fn fill(
    broker: &Broker,
    config: &Config,
    clock: Clock,
) -> Result<Option<DataDirectory>, ServeError> {
    // A mistake in the file is found before the directory is read, which may take minutes.
    let file = definitions::read(config).map_err(ServeError::Setting)?;
    let path = config.data_dir.directory();
    let path = path.map_err(|error| ServeError::DataDirectory(SettingError::new(KEY, error)))?;
    let start = |before| {
        let now = clock.timestamp(Instant::now());
        definitions::start_with(broker, config, file.as_ref(), before, now).map_err(ServeError::Setting)
    };
    let Some(path) = path else {
        tracing::warn!("data_dir is off: all data is kept in memory only and lost on exit");
        start(Before::Nothing)?;
        return Ok(None);
    };
    // Nothing of a start that fails here is stored: the next one is the first again.
    let (directory, messages) = load(broker, &path, config.disk_free_limit.0, clock, |store| {
        start(Before::of(broker, store.catalogue()))
    })?;
    tracing::info!(directory = %path.display(), messages, "recovered definitions and persistent messages");
    Ok(Some(directory))
}

/// Looks for a mistake in the setting, without creating the directory or reading what is in it.
///
/// # Errors
///
/// No directory is set, or something else has its name.
pub(crate) fn check(config: &Config) -> Result<(), ServeError> {
    let path = config.data_dir.directory();
    let path = path.map_err(|error| ServeError::Setting(SettingError::new(KEY, error)))?;
    let Some(path) = path.filter(|_| config.uses_data_dir()) else { return Ok(()) };
    let error = match std::fs::metadata(&path) {
        Ok(found) if !found.is_dir() => io::Error::from(io::ErrorKind::NotADirectory),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => error,
        _ => return Ok(()),
    };
    Err(ServeError::Setting(SettingError::new(KEY, unusable(&error)).about(path.display())))
}

/// Whether nothing was ever stored in the directory that this process is to use.
pub(crate) fn is_new(config: &Config) -> bool {
    let Ok(Some(path)) = config.data_dir.directory() else { return false };
    let path = if config.upstream.is_empty() { path } else { path.join(spool::DIR) };
    config.uses_data_dir() && !Catalogue::exists_in(&path)
}

/// Loads the broker of a spool, whose directory has nothing else. All of it is on disk on return. The clock continues as by
/// [`fill`].
///
/// # Errors
///
/// The directory cannot be used.
pub(crate) fn fill_spool(
    broker: &Broker,
    path: &Path,
    disk_free_limit: u64,
    clock: Clock,
) -> Result<DataDirectory, ServeError> {
    let (directory, messages) = load(broker, path, disk_free_limit, clock, |store| {
        if store.catalogue().was_empty() {
            broker.add_defaults();
        }
        Ok(())
    })?;
    tracing::info!(directory = %path.display(), messages, "recovered spooled messages");
    Ok(directory)
}

/// Loads the contents of a directory, and stores what `complete` adds to them. Returns the number of messages, too.
fn load(
    broker: &Broker,
    path: &Path,
    disk_free_limit: u64,
    clock: Clock,
    complete: impl FnOnce(&Store) -> Result<(), ServeError>,
) -> Result<(DataDirectory, u64), ServeError> {
    let at_fault = |error| ServeError::DataDirectory(SettingError::new(KEY, error).about(path.display()));
    let Opened { lock, store, clock, rounds, recovered } =
        open(path, disk_free_limit, clock).map_err(at_fault)?;
    let messages = broker.restore(&store, recovered, clock.now()).map_err(|error| at_fault(error.into()))?;
    complete(&store)?;
    clock.store();
    store.catalogue().commit_pending().map_err(|error| at_fault(error.into()))?;
    let running = rounds.start().map_err(|error| at_fault(error.into()))?;
    Ok((DataDirectory { pagers: None, clock, running: Some(running), _lock: lock }, messages))
}

impl DataDirectory {
    /// Keeps the paging threads running until the directory is dropped.
    pub(crate) fn keep(&mut self, pagers: Pagers) {
        self.pagers = Some(pagers);
    }

    /// Its clock, until it is dropped.
    pub(crate) fn clock(&self) -> Weak<StoredClock> {
        Arc::downgrade(&self.clock)
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        drop(self.pagers.take());
        self.clock.end();
        if let Some(Err(error)) = self.running.take().map(RunningStore::close) {
            tracing::error!(%error, "cannot write last changes: unconfirmed ones lost");
        }
    }
}

struct Opened {
    lock: DirectoryLock,
    store: Arc<Store>,
    clock: Arc<StoredClock>,
    rounds: Rounds,
    recovered: Recovered,
}

/// The error of a directory that cannot be opened, with a remedy.
fn unusable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(
                "{error}; the user that runs Leveret has to own the directory, or give another one with --data-dir"
            )
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            format!("{error}; it has to be a directory, or one that can be made")
        }
        _ => error.to_string(),
    }
}

fn open(path: &Path, disk_free_limit: u64, clock: Clock) -> Result<Opened, Box<dyn Error + Send + Sync>> {
    let disk = RealDisk::new(path).map_err(|error| unusable(&error))?;
    let lock = DirectoryLock::take(path).map_err(|error| match error {
        LockError::Taken { .. } => {
            format!("{error}: stop that one, or give this one a directory of its own with --data-dir")
        }
        LockError::Io(error) => unusable(&error),
    })?;
    let settings = StoreSettings { weigh: broker::body_bytes, ..StoreSettings::default() };
    let (store, rounds, recovered) =
        Store::open(Arc::new(disk), settings).map_err(|error| match error.is_damage() {
            true => {
                let directory = path.display();
                format!(
                    "{error}; for details run `leveret ctl store check --data-dir {directory}`; `leveret ctl store \
                     repair --data-dir {directory}` discards what cannot be read"
                )
            }
            false => error.to_string(),
        })?;
    store.set_disk_free_limit(disk_free_limit);
    // Under the lock: the process before this one has stored it for the last time.
    let clock = Arc::new(StoredClock::resume(clock, store.catalogue())?);
    Ok(Opened { lock, store, clock, rounds, recovered })
}
