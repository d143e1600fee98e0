//! Inspects the definitions' file without changing it, and repairs it.

use std::io;
use std::sync::Arc;

use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend, TableError,
};

use super::backend::{Backend, UnsyncedState};
use super::guard::guarded;
use super::rebuild::rebuild;
use super::{CACHE, CatalogueError, FILE, Section, prepare};
use crate::disk::Disk;
use crate::journal;
use crate::pages::DURABLE_DIR as QUEUES;

/// Findings about the definitions' file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefinitionsReport {
    /// Whether the file exists.
    pub exists: bool,
    /// Whether the file is missing although there are messages that need it.
    pub missing: bool,
    /// Number of definitions in each section.
    pub entries: Vec<(Section, u64)>,
    /// Whether the database's own structure is damaged.
    pub damaged: bool,
    /// Whether it was beyond repair, and a new file was built from the readable definitions.
    pub rebuilt: bool,
    /// The new name of the damaged file, if a repair has renamed it.
    pub put_aside: Option<String>,
}

/// Verifies the whole definitions file, in a copy in memory.
///
/// # Errors
/// A file that cannot be read or is of a newer version; damage that cannot be repaired.
pub fn check(disk: &dyn Disk) -> Result<DefinitionsReport, CatalogueError> {
    if !exists(disk).map_err(redb::Error::Io)? {
        let missing = is_missing(disk).map_err(redb::Error::Io)?;
        return Ok(DefinitionsReport { missing, ..DefinitionsReport::default() });
    }
    let copy = copy(disk).map_err(redb::Error::Io)?;
    guarded(|| verify(prepare(Builder::new().set_cache_size(CACHE).create_with_backend(copy)?)?))
}

/// Calls `each` with every definition of a section, without changing anything. There are none if the file is missing or
/// unreadable.
pub(crate) fn entries(disk: &dyn Disk, section: Section, mut each: impl FnMut(&[u8], &[u8])) {
    let read = guarded(|| {
        if !exists(disk).map_err(redb::Error::Io)? {
            return Ok(());
        }
        let copy = copy(disk).map_err(redb::Error::Io)?;
        let database = Builder::new().set_cache_size(CACHE).create_with_backend(copy)?;
        let read = database.begin_read()?;
        for entry in read.open_table(section.table())?.iter()? {
            let (key, value) = entry?;
            each(key.value(), value.value());
        }
        Ok(())
    });
    // `check` reports damage of the file.
    drop(read);
}

/// Repairs the structure of the definitions file, or builds a new one from the readable definitions, even if there are
/// none. Reports the damage and the remaining definitions. The damaged file is kept under another name.
///
/// # Errors
/// A file that cannot be read or written or is of a newer version.
pub fn repair(disk: Arc<dyn Disk>) -> Result<DefinitionsReport, CatalogueError> {
    if !exists(&*disk).map_err(redb::Error::Io)? {
        if !is_missing(&*disk).map_err(redb::Error::Io)? {
            return Ok(DefinitionsReport::default());
        }
        rebuild(&disk)?;
        return Ok(DefinitionsReport { missing: true, rebuilt: true, ..check(&*disk)? });
    }
    // In a copy first: a file beyond repair must stay unchanged.
    match check(&*disk) {
        Ok(report) if !report.damaged => Ok(report),
        Err(error) if !error.is_damage() => Err(error),
        Ok(_) => mend(disk),
        Err(_) => {
            let put_aside = rebuild(&disk)?;
            Ok(DefinitionsReport { damaged: true, rebuilt: true, put_aside, ..check(&*disk)? })
        }
    }
}

fn mend(disk: Arc<dyn Disk>) -> Result<DefinitionsReport, CatalogueError> {
    let unsynced = UnsyncedState::of(disk).map_err(redb::Error::Io)?;
    let backend = Backend::open(&unsynced).map_err(redb::Error::Io)?;
    guarded(|| verify(prepare(Builder::new().set_cache_size(CACHE).create_with_backend(backend)?)?))
}

fn verify(mut database: Database) -> Result<DefinitionsReport, CatalogueError> {
    let damaged = !database.check_integrity()?;
    let read = database.begin_read()?;
    let mut entries = Vec::new();
    for section in Section::ALL {
        let count = match read.open_table(section.table()) {
            Err(TableError::TableDoesNotExist(_)) => 0,
            table => table?.len()?,
        };
        entries.push((section, count));
    }
    Ok(DefinitionsReport { exists: true, entries, damaged, ..DefinitionsReport::default() })
}

/// Whether there is a file that is not empty.
pub(super) fn exists(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list("")?.iter().any(|name| name == FILE) && disk.open(FILE)?.len()? > 0)
}

/// Whether the definitions file is missing or empty although there are messages, which are never stored before it.
pub(super) fn is_missing(disk: &dyn Disk) -> io::Result<bool> {
    Ok(!exists(disk)? && (journal::has_segments(disk)? || !disk.list(QUEUES)?.is_empty()))
}

pub(super) fn copy(disk: &dyn Disk) -> io::Result<InMemoryBackend> {
    let (file, memory) = (disk.open(FILE)?, InMemoryBackend::new());
    let len = file.len()?;
    memory.set_len(len)?;
    let (mut at, mut bytes) = (0, vec![0; STEP]);
    while at < len {
        let read = file.read_at(&mut bytes, at)?;
        memory.write(at, &bytes[..read])?;
        at += STEP as u64;
    }
    Ok(memory)
}

/// Bytes copied at once.
const STEP: usize = 1 << 20;
