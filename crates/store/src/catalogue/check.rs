//! Looking at the definitions' file without changing it, and mending it.

use std::io;
use std::sync::Arc;

use redb::backends::InMemoryBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTableMetadata, StorageBackend, TableError};

use super::backend::{Backend, Doubt};
use super::rebuild::rebuild;
use super::{CACHE, CatalogueError, FILE, Section, prepare};
use crate::disk::Disk;

/// What was found in the definitions' file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefinitionsReport {
    /// Whether there is one.
    pub exists: bool,
    /// Definitions of each section.
    pub entries: Vec<(Section, u64)>,
    /// Whether the database's own structure is damaged.
    pub damaged: bool,
    /// Whether it was beyond mending, and a repair has made a new file of what can be read.
    pub rebuilt: bool,
}

/// Verifies all of the definitions' file, in a copy in memory.
///
/// # Errors
/// A file that cannot be read or is of a newer version; damage that cannot be mended.
pub fn check(disk: &dyn Disk) -> Result<DefinitionsReport, CatalogueError> {
    if !exists(disk).map_err(redb::Error::Io)? {
        return Ok(DefinitionsReport::default());
    }
    let copy = copy(disk).map_err(redb::Error::Io)?;
    verify(prepare(Builder::new().set_cache_size(CACHE).create_with_backend(copy)?)?)
}

/// Mends the structure of the definitions' file, or makes a new one of what can be read, and reports what was wrong and what
/// is left. The damaged file is kept, under another name.
///
/// # Errors
/// A file that cannot be read or written or is of a newer version; one of which nothing can be read.
pub fn repair(disk: Arc<dyn Disk>) -> Result<DefinitionsReport, CatalogueError> {
    if !exists(&*disk).map_err(redb::Error::Io)? {
        return Ok(DefinitionsReport::default());
    }
    // In a copy at first: what is beyond mending is to be left as it is.
    match check(&*disk) {
        Ok(report) if !report.damaged => Ok(report),
        Err(error @ (CatalogueError::Newer { .. } | CatalogueError::Database(redb::Error::Io(_)))) => {
            Err(error)
        }
        Ok(_) => mend(disk),
        Err(_) => {
            rebuild(&disk)?;
            Ok(DefinitionsReport { damaged: true, rebuilt: true, ..check(&*disk)? })
        }
    }
}

fn mend(disk: Arc<dyn Disk>) -> Result<DefinitionsReport, CatalogueError> {
    let doubt = Doubt::of(disk).map_err(redb::Error::Io)?;
    let backend = Backend::open(&doubt).map_err(redb::Error::Io)?;
    verify(prepare(Builder::new().set_cache_size(CACHE).create_with_backend(backend)?)?)
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
    Ok(DefinitionsReport { exists: true, entries, damaged, rebuilt: false })
}

fn exists(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list("")?.iter().any(|name| name == FILE))
}

pub(super) fn copy(disk: &dyn Disk) -> io::Result<InMemoryBackend> {
    let (file, memory) = (disk.open(FILE)?, InMemoryBackend::new());
    let len = file.len()?;
    memory.set_len(len)?;
    let (mut at, mut octets) = (0, vec![0; STEP]);
    while at < len {
        let read = file.read_at(&mut octets, at)?;
        memory.write(at, &octets[..read])?;
        at += STEP as u64;
    }
    Ok(memory)
}

/// Octets that are copied at once.
const STEP: usize = 1 << 20;
