//! Definitions that survive a restart: keys and values in one redb file, which only the broker interprets.
//!
//! A change is queued at once and gets a [`Ticket`]; the caller answers its client when the ticket is committed.
//! [`Catalogue::commit_pending`] writes all queued changes in one transaction, so that many declarations share one sync.
//! Each round of the journal's committer calls it, see [`crate::Store`]; if it fails, the changes stay queued for the next
//! call.

mod backend;
mod check;
mod guard;
mod rebuild;
mod section;

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use sync::{Mutex, Rank};

pub(crate) use check::entries;
use check::is_missing;
pub use check::{DefinitionsReport, check, repair};
pub use section::Section;

use crate::disk::Disk;
use crate::waiters::{WaitList, Waiter, Waiters};
use backend::{Backend, UnsyncedState};
use guard::guarded;

/// The definitions on disk, in one redb file: changes are queued in memory, and the next round commits them together.
pub struct Catalogue {
    unsynced: Arc<UnsyncedState>,
    pending: Mutex<PendingChanges, { Rank::CatalogueChanges as u8 }>,
    writer: parking_lot::Mutex<CatalogueWriter>,
    committed: AtomicU64,
    commits: AtomicU64,
    waiters: Waiters,
    /// The last id assigned.
    last_id: AtomicU64,
    /// Called when there is something to commit.
    notifier: OnceLock<CommitNotifier>,
    was_empty: bool,
    /// Whether an operator's definitions have been loaded, see [`Catalogue::note_loaded`].
    loaded: AtomicBool,
    /// Bytes of uncommitted changes above which there is no capacity, see [`Catalogue::has_capacity`].
    pending_limit: usize,
}

/// The number of a change, which is committed together with all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ticket(u64);

/// The reason why the catalogue cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The file was written by a newer version of Leveret.
    #[error("{FILE} was written by a newer version (schema {found}, the newest known here is {known})")]
    Newer {
        /// Schema version of the file.
        found: u64,
        /// The newest schema version known here.
        known: u64,
    },
    /// The file is missing, although there are messages of queues that it would declare.
    #[error("{FILE} is missing, and there are messages of queues that it declares")]
    Missing,
    /// The database's error.
    #[error("{FILE}: {0}")]
    Database(#[source] redb::Error),
}

/// Called when a change is queued.
type CommitNotifier = Box<dyn Fn() + Send + Sync>;

/// Changes that no transaction has taken yet, in order.
#[derive(Default)]
struct PendingChanges {
    changes: Vec<Change>,
    /// The number of the last change.
    last: u64,
    /// Bytes of these changes, and of those in an uncommitted transaction.
    bytes: usize,
    /// Woken when these bytes are within the limit again.
    for_capacity: WaitList,
}

/// A change of one section.
pub struct Change {
    section: Section,
    key: Box<[u8]>,
    deed: ChangeOp,
}

impl Change {
    /// Puts a definition, in place of any with the same key. Keys are at most 1 MiB long.
    pub fn put(section: Section, key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { section, key: key.into(), deed: ChangeOp::Put(value.into()) }
    }

    /// Deletes a definition; does nothing if there is none with this key.
    pub fn delete(section: Section, key: Vec<u8>) -> Self {
        Self { section, key: key.into(), deed: ChangeOp::Delete }
    }

    /// Deletes all definitions whose keys begin with `prefix`, including those noted before.
    pub fn delete_all(section: Section, prefix: Vec<u8>) -> Self {
        Self { section, key: prefix.into(), deed: ChangeOp::DeleteAll }
    }

    /// Bytes of memory that it takes.
    fn weight(&self) -> usize {
        let value = if let ChangeOp::Put(value) = &self.deed { value.len() } else { 0 };
        size_of::<Self>() + self.key.len() + value
    }
}

enum ChangeOp {
    Put(Box<[u8]>),
    Delete,
    /// Deletes all definitions whose keys begin with this key.
    DeleteAll,
}

struct CatalogueWriter {
    /// `None` after a failure: redb must then be opened again.
    database: Option<Database>,
    /// Changes of a failed transaction, which are written before any others.
    left: Vec<Change>,
}

impl Catalogue {
    /// Whether a data directory has a catalogue; nothing was ever stored in one that has none.
    pub fn exists_in(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Opens the catalogue in a data directory, and creates it if it is missing.
    ///
    /// # Errors
    /// A newer schema; a file that is damaged or cannot be read or written, or that is missing although there are
    /// messages.
    pub fn open(disk: Arc<dyn Disk>) -> Result<Self, CatalogueError> {
        if is_missing(&*disk).map_err(redb::Error::Io)? {
            return Err(CatalogueError::Missing);
        }
        let unsynced = UnsyncedState::of(disk.clone()).map_err(redb::Error::Io)?;
        let database = open_database(&unsynced)?;
        disk.sync_dir("").map_err(redb::Error::Io)?;
        let read = database.begin_read()?;
        let meta = read.open_table(META)?;
        let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map(|number| number.value()));
        let last_id = number(LAST_ID)?.unwrap_or_default();
        let was_empty = number(CREATED)?.is_none();
        let loaded = number(LOADED)?.is_some();
        Ok(Self {
            unsynced,
            pending: Mutex::default(),
            writer: parking_lot::Mutex::new(CatalogueWriter { database: Some(database), left: Vec::new() }),
            committed: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            waiters: Waiters::default(),
            last_id: AtomicU64::new(last_id),
            notifier: OnceLock::new(),
            was_empty,
            loaded: AtomicBool::new(loaded),
            pending_limit: usize::MAX,
        })
    }

    /// Sets the function that is called when there is something to commit. It is called without the catalogue's locks held.
    /// Call this once.
    pub(crate) fn on_change(&self, notify: CommitNotifier) {
        let _ = self.notifier.set(notify);
    }

    /// Sets how many bytes of uncommitted changes there may be while there is capacity.
    pub(crate) fn set_pending_limit(&mut self, bytes: usize) {
        self.pending_limit = bytes;
    }

    /// Whether uncommitted changes are within the limit. Changes are queued in any case: a client that does not wait
    /// for its changes to be committed has to pause.
    pub(crate) fn has_capacity(&self) -> bool {
        self.pending.lock().bytes <= self.pending_limit
    }

    /// Wakes `waiter` once there [is capacity](Self::has_capacity); returns it if there is now.
    pub(crate) fn wait_for_capacity(&self, waiter: Arc<dyn Waiter>) -> Option<Arc<dyn Waiter>> {
        let mut pending = self.pending.lock();
        if pending.bytes <= self.pending_limit {
            return Some(waiter);
        }
        pending.for_capacity.add(waiter);
        None
    }

    /// Whether nothing has ever been committed to it.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// Whether an operator's definitions have ever been loaded into it.
    pub fn was_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Records that an operator's definitions have been loaded. The next commit of changes writes it: if there are none,
    /// the definitions have created nothing.
    pub fn note_loaded(&self) {
        self.loaded.store(true, Ordering::Relaxed);
    }

    /// Calls `each` with every definition of a section, ascending by key.
    ///
    /// # Errors
    /// A damaged file, or one that cannot be read.
    pub fn scan(&self, section: Section, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), CatalogueError> {
        let mut writer = self.writer.lock();
        let database = writer.database(&self.unsynced)?;
        guarded(|| {
            let read = database.begin_read()?;
            let table = match read.open_table(section.table()) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(()),
                table => table?,
            };
            for entry in table.iter()? {
                let (key, value) = entry?;
                each(key.value(), value.value());
            }
            Ok(())
        })
    }

    /// A new id, never assigned before, not even before a restart, provided that a later commit succeeds.
    pub fn new_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Prevents this id and all below from being assigned: it is in use, although the definitions file may not contain it.
    pub(crate) fn reserve_ids(&self, highest: u64) {
        self.last_id.fetch_max(highest, Ordering::Relaxed);
    }

    /// Queues a definition, which replaces any with the same key. Keys are at most 1 MiB long.
    pub fn put(&self, section: Section, key: Vec<u8>, value: Vec<u8>) -> Ticket {
        self.note([Change::put(section, key, value)])
    }

    /// Queues the deletion of a definition.
    pub fn delete(&self, section: Section, key: Vec<u8>) -> Ticket {
        self.note([Change::delete(section, key)])
    }

    /// Queues the deletion of all definitions whose keys begin with `prefix`, including those queued before this call.
    pub fn delete_all(&self, section: Section, prefix: Vec<u8>) -> Ticket {
        self.note([Change::delete_all(section, prefix)])
    }

    /// Ticket of the last change queued so far.
    pub fn last_noted(&self) -> Ticket {
        Ticket(self.pending.lock().last)
    }

    /// Whether a change, and all before it, is on disk.
    pub fn is_committed(&self, ticket: Ticket) -> bool {
        ticket.0 <= self.committed.load(Ordering::Acquire)
    }

    /// Whether changes wait for [`Self::commit_pending`].
    pub(crate) fn has_pending(&self) -> bool {
        !self.is_committed(self.last_noted())
    }

    /// Number of transactions committed since the start.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Wakes `waiter` once the ticket is committed.
    pub fn wait(&self, ticket: Ticket, waiter: Arc<dyn Waiter>) {
        self.waiters.wait(ticket.0, waiter);
    }

    /// Commits all changes queued before the call, and wakes their waiters. Does nothing if there are none.
    ///
    /// # Errors
    /// The disk's error. The changes stay queued, in order; call it again.
    pub fn commit_pending(&self) -> Result<(), CatalogueError> {
        // A caller with nothing to write does not wait for another caller's transaction.
        let last = self.pending.lock().last;
        if self.committed.load(Ordering::Acquire) == last {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        let (changes, last) = {
            let mut pending = self.pending.lock();
            (std::mem::take(&mut pending.changes), pending.last)
        };
        writer.left.extend(changes);
        let mut committed = Vec::new();
        if !writer.left.is_empty() {
            self.commit(&mut writer)?;
            committed = std::mem::take(&mut writer.left);
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
        drop(writer);
        self.committed.fetch_max(last, Ordering::AcqRel);
        self.waiters.reach(last);
        self.free(committed.iter().map(Change::weight).sum());
        Ok(())
    }

    /// Called when changes of this many bytes have been committed.
    fn free(&self, bytes: usize) {
        let mut pending = self.pending.lock();
        pending.bytes -= bytes;
        let has_capacity = pending.bytes <= self.pending_limit;
        let for_capacity = if has_capacity { pending.for_capacity.take() } else { WaitList::default() };
        drop(pending);
        for_capacity.wake();
    }

    fn commit(&self, writer: &mut CatalogueWriter) -> Result<(), CatalogueError> {
        let last_id = self.last_id.load(Ordering::Relaxed);
        let CatalogueWriter { database: slot, left } = writer;
        // Put back only on success.
        let database = match slot.take() {
            Some(database) => database,
            None => open_database(&self.unsynced)?,
        };
        let transaction = database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(LAST_ID, last_id)?;
            meta.insert(CREATED, 1)?;
            if self.was_loaded() {
                meta.insert(LOADED, 1)?;
            }
            meta.insert(SCHEMA, KNOWN_SCHEMA)?;
            let sections = Section::ALL.into_iter();
            for section in sections.filter(|&section| left.iter().any(|change| change.section == section)) {
                let mut table = transaction.open_table(section.table())?;
                for change in left.iter().filter(|change| change.section == section) {
                    match &change.deed {
                        ChangeOp::Put(value) => drop(table.insert(&*change.key, &**value)?),
                        ChangeOp::Delete => drop(table.remove(&*change.key)?),
                        ChangeOp::DeleteAll => {
                            let end = end_of(&change.key);
                            let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                            table
                                .retain_in::<&[u8], _>((Bound::Included(&*change.key), end), |_, _| false)?;
                        }
                    }
                }
            }
        }
        transaction.commit()?;
        *slot = Some(database);
        Ok(())
    }

    /// Queues changes that belong together: either all of them reach the disk, or none does.
    pub fn note(&self, changes: impl IntoIterator<Item = Change>) -> Ticket {
        // Collected before taking the lock: producing the changes may take long.
        let changes: Vec<Change> = changes.into_iter().collect();
        let mut bytes = 0;
        for change in &changes {
            debug_assert!(change.key.len() <= MAX_KEY, "a key of {} bytes", change.key.len());
            bytes += change.weight();
        }
        let mut pending = self.pending.lock();
        let is_first = pending.changes.is_empty() && !changes.is_empty();
        pending.last += changes.len() as u64;
        pending.bytes += bytes;
        pending.changes.extend(changes);
        let ticket = Ticket(pending.last);
        drop(pending);
        if is_first && let Some(notify) = self.notifier.get() {
            notify();
        }
        ticket
    }
}

impl CatalogueWriter {
    fn database(&mut self, unsynced: &Arc<UnsyncedState>) -> Result<&Database, CatalogueError> {
        if self.database.is_none() {
            self.database = Some(open_database(unsynced)?);
        }
        // The branch above has just set it.
        self.database.as_ref().ok_or(CatalogueError::Database(redb::Error::DatabaseClosed))
    }
}

/// The first key after those that begin with `prefix`, if there can be one.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Opens the database file, and creates it if it is missing.
fn open_database(unsynced: &Arc<UnsyncedState>) -> Result<Database, CatalogueError> {
    let backend = Backend::open(unsynced).map_err(redb::Error::Io)?;
    guarded(|| prepare(Builder::new().set_cache_size(CACHE).create_with_backend(backend)?))
}

/// Writes or checks the schema.
fn prepare(database: Database) -> Result<Database, CatalogueError> {
    let transaction = database.begin_write()?;
    let found = {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get(SCHEMA)?.map(|schema| schema.value());
        if found.is_none() {
            meta.insert(SCHEMA, KNOWN_SCHEMA)?;
        }
        found
    };
    match found {
        Some(found) if found > KNOWN_SCHEMA => {
            return Err(CatalogueError::Newer { found, known: KNOWN_SCHEMA });
        }
        Some(_) => transaction.abort()?,
        None => transaction.commit()?,
    }
    Ok(database)
}

/// Bytes of the longest key: a binding's, with two names and a routing key of 255 bytes each, and arguments of up to a
/// frame.
const MAX_KEY: usize = 1 << 20;

const FILE: &str = "definitions.redb";
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
const SCHEMA: &str = "schema";
/// Raised with every change of the file's contents. Version 1 had no list of the store's files; the first change of
/// such a file raises it.
const KNOWN_SCHEMA: u64 = 2;
const LAST_ID: &str = "last_id";
/// Present once anything has been committed.
const CREATED: &str = "created";
/// Present once an operator's definitions have been loaded.
const LOADED: &str = "definitions_loaded";
/// Bytes of the file that redb may cache. Definitions are read once, at start; everything that changes is in memory
/// anyway.
const CACHE: usize = 16 << 20;

impl<E: Into<redb::Error>> From<E> for CatalogueError {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl CatalogueError {
    /// Whether the file has changed since it was written, so that a repair may help.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Newer { .. } => false,
            // redb reports a file that is too short, or that is no database at all, as an I/O error.
            Self::Database(redb::Error::Io(error)) => {
                matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
            }
            Self::Missing | Self::Database(_) => true,
        }
    }
}

#[cfg(test)]
mod tests;
