//! Builds a new file of definitions from the readable parts of one that is damaged, cut off or missing.

use std::io;
use std::sync::Arc;

use redb::backends::InMemoryBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableError};

use super::backend::{Backend, UnsyncedState};
use super::check::{copy, exists};
use super::guard::guarded;
use super::{CACHE, CREATED, CatalogueError, FILE, LAST_ID, LOADED, META, Section, prepare};
use crate::disk::{Disk, name_for_damaged};

/// Replaces a damaged file, which is kept under another name, or a missing one by a new file. Returns the new name of the
/// damaged file; `None` if there was none.
///
/// # Errors
/// The disk's error.
pub(super) fn rebuild(disk: &Arc<dyn Disk>) -> Result<Option<String>, CatalogueError> {
    disk.remove(REBUILT).map_err(redb::Error::Io)?;
    let unsynced = UnsyncedState::of(disk.clone()).map_err(redb::Error::Io)?;
    let backend = Backend::at(REBUILT, &unsynced).map_err(redb::Error::Io)?;
    let target = prepare(Builder::new().set_cache_size(CACHE).create_with_backend(backend)?)?;
    match source(&**disk)? {
        Some(source) => transfer(&source, &target)?,
        None => start_empty(&target)?,
    }
    drop(target);
    Ok(put_in_place(&**disk).map_err(redb::Error::Io)?)
}

/// The damaged database, if it can be opened at all.
fn source(disk: &dyn Disk) -> Result<Option<Database>, CatalogueError> {
    if !exists(disk).map_err(redb::Error::Io)? {
        return Ok(None);
    }
    let open = |copy: InMemoryBackend| {
        guarded(|| Ok(Builder::new().set_cache_size(CACHE).create_with_backend(copy)?)).ok()
    };
    if let Some(database) = open(copy(disk).map_err(redb::Error::Io)?) {
        return Ok(Some(database));
    }
    // A truncated file may be readable once it is padded to the length in its header.
    let padded = copy(disk).map_err(redb::Error::Io)?;
    let Some(len) = promised_len(&padded) else { return Ok(None) };
    let longer = padded.len().is_ok_and(|now| now < len) && padded.set_len(len).is_ok();
    Ok(if longer { open(padded) } else { None })
}

/// The file's length according to its header (the design document of redb, "File format": all regions are full except
/// for the last one).
fn promised_len(file: &InMemoryBackend) -> Option<u64> {
    let mut header = [0; HEADER];
    file.read(0, &mut header).ok()?;
    let number = |at: usize| header[at..].first_chunk().map(|four| u64::from(u32::from_le_bytes(*four)));
    let (page, region_header, region) = (number(12)?, number(16)?, number(20)?);
    let (full_regions, trailing) = (number(24)?, number(28)?);
    let full = full_regions.checked_mul(region_header + region)?;
    let last = if trailing > 0 { region_header + trailing } else { 0 };
    let len = full.checked_add(last)?.checked_add(1)?.checked_mul(page)?;
    (len <= MAX_SALVAGED).then_some(len)
}

fn transfer(source: &Database, target: &Database) -> Result<(), CatalogueError> {
    let write = target.begin_write()?;
    let mut users = 0;
    for section in Section::ALL {
        let mut found = Vec::new();
        // Definitions found before a damaged page are retained.
        drop(guarded(|| read_section(source, section, &mut found)));
        let mut into = write.open_table(section.table())?;
        let mut new = 0;
        for (key, value) in found {
            new += u64::from(into.insert(&*key, &*value)?.is_none());
        }
        users += if section == Section::Users { new } else { 0 };
    }
    let known = |name| {
        let number = guarded(|| {
            let read = source.begin_read()?;
            Ok(read.open_table(META)?.get(name)?.map(|number| number.value()))
        });
        number.ok().flatten()
    };
    let mut meta = write.open_table(META)?;
    meta.insert(LAST_ID, known(LAST_ID).unwrap_or(UNUSED_ID))?;
    if let Some(loaded) = known(LOADED) {
        meta.insert(LOADED, loaded)?;
    }
    // Without any user nobody could log in: the next start then adds the default definitions.
    if users > 0 {
        meta.insert(CREATED, 1)?;
    }
    drop(meta);
    write.commit()?;
    Ok(())
}

type RecoveredEntries = Vec<(Vec<u8>, Vec<u8>)>;

fn read_section(
    source: &Database,
    section: Section,
    found: &mut RecoveredEntries,
) -> Result<(), CatalogueError> {
    let read = source.begin_read()?;
    let table = match read.open_table(section.table()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        table => table?,
    };
    // From the start up to a damaged page, and from the end back to it.
    let whole = found.len();
    for entry in table.iter()?.map_while(Result::ok) {
        found.push((entry.0.value().to_vec(), entry.1.value().to_vec()));
    }
    if (found.len() - whole) as u64 == redb::ReadableTableMetadata::len(&table)? {
        return Ok(());
    }
    for entry in table.iter()?.rev().map_while(Result::ok) {
        found.push((entry.0.value().to_vec(), entry.1.value().to_vec()));
    }
    Ok(())
}

/// For a file with nothing readable: the next start treats it as new, but assigns no id again.
fn start_empty(target: &Database) -> Result<(), CatalogueError> {
    let write = target.begin_write()?;
    write.open_table(META)?.insert(LAST_ID, UNUSED_ID)?;
    write.commit()?;
    Ok(())
}

/// The file exists at all times: without it a broker would start with no definitions, and drop the messages.
fn put_in_place(disk: &dyn Disk) -> io::Result<Option<String>> {
    let mut put_aside = None;
    disk.sync_dir("")?;
    if exists(disk)? {
        let name = name_for_damaged(disk, FILE)?;
        let (damaged, aside) = (disk.open(FILE)?, disk.open(&name)?);
        let (len, mut at) = (damaged.len()?, 0);
        let mut bytes = vec![0; STEP];
        aside.set_len(len)?;
        while at < len {
            let read = damaged.read_at(&mut bytes, at)?;
            aside.write_at(&bytes[..read], at)?;
            at += STEP as u64;
        }
        aside.sync()?;
        disk.sync_dir("")?;
        put_aside = Some(name);
    }
    disk.rename(REBUILT, FILE)?;
    disk.sync_dir("")?;
    Ok(put_aside)
}

const REBUILT: &str = "definitions.redb.rebuilt";
/// Above any id that a queue ever had.
const UNUSED_ID: u64 = 1 << 48;
/// Bytes copied at once.
const STEP: usize = 1 << 20;
/// Bytes of the header that are read.
const HEADER: usize = 32;
/// The most bytes to which a truncated file is padded in memory: a header with a greater length is probably wrong.
const MAX_SALVAGED: u64 = 4 << 30;
