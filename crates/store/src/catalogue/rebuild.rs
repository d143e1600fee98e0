//! A new file of definitions from what can be read of one that is damaged.

use std::io;
use std::sync::Arc;

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableError};

use super::backend::{Backend, Doubt};
use super::check::copy;
use super::{CACHE, CREATED, CatalogueError, FILE, LAST_ID, META, Section, prepare};
use crate::disk::Disk;

/// Puts a new file in the place of the damaged one, which is kept as [`DAMAGED`]. Returns how many definitions it has.
///
/// # Errors
/// A file of which nothing can be read, and what the disk says.
pub(super) fn rebuild(disk: &Arc<dyn Disk>) -> Result<u64, CatalogueError> {
    let source = copy(&**disk).map_err(redb::Error::Io)?;
    let source = Builder::new().set_cache_size(CACHE).create_with_backend(source)?;
    disk.remove(REBUILT).map_err(redb::Error::Io)?;
    let doubt = Doubt::of(disk.clone()).map_err(redb::Error::Io)?;
    let backend = Backend::at(REBUILT, &doubt).map_err(redb::Error::Io)?;
    let target = prepare(Builder::new().set_cache_size(CACHE).create_with_backend(backend)?)?;
    let kept = transfer(&source, &target)?;
    drop(target);
    put_in_place(&**disk).map_err(redb::Error::Io)?;
    Ok(kept)
}

fn transfer(source: &Database, target: &Database) -> Result<u64, CatalogueError> {
    let (read, write) = (source.begin_read()?, target.begin_write()?);
    let mut kept = 0;
    for section in Section::ALL {
        let from = match read.open_table(section.table()) {
            Err(TableError::TableDoesNotExist(_)) => continue,
            table => table?,
        };
        let mut into = write.open_table(section.table())?;
        // Up to a damaged page from the front, and up to it from the end.
        let front = from.iter()?.map_while(Result::ok);
        let back = from.iter()?.rev().map_while(Result::ok);
        for (key, value) in front.chain(back) {
            kept += u64::from(into.insert(key.value(), value.value())?.is_none());
        }
    }
    let known = read.open_table(META).ok().and_then(|meta| Some(meta.get(LAST_ID).ok()??.value()));
    let mut meta = write.open_table(META)?;
    meta.insert(LAST_ID, known.unwrap_or(UNUSED_ID))?;
    meta.insert(CREATED, 1)?;
    drop(meta);
    write.commit()?;
    Ok(kept)
}

/// At no time is there no file: a broker would begin with none, and forget the messages.
fn put_in_place(disk: &dyn Disk) -> io::Result<()> {
    disk.sync_folder("")?;
    let (damaged, kept) = (disk.open(FILE)?, disk.open(DAMAGED)?);
    let (len, mut at) = (damaged.len()?, 0);
    let mut octets = vec![0; STEP];
    kept.set_len(len)?;
    while at < len {
        let read = damaged.read_at(&mut octets, at)?;
        kept.write_at(&octets[..read], at)?;
        at += STEP as u64;
    }
    kept.sync()?;
    disk.sync_folder("")?;
    disk.rename(REBUILT, FILE)?;
    disk.sync_folder("")
}

/// What a damaged file is kept as.
pub(crate) const DAMAGED: &str = "definitions.redb.damaged";
const REBUILT: &str = "definitions.redb.rebuilt";
/// Above any number that a queue ever had.
const UNUSED_ID: u64 = 1 << 48;
/// Octets that are copied at once.
const STEP: usize = 1 << 20;
