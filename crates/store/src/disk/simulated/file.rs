//! A file of the simulated disk: its visible content, its durable content, and the sectors between.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::random::SimRandom;
use super::state::State;
use crate::disk::DiskFile;

/// An open file.
pub(super) struct SimFile {
    pub(super) disk: Arc<Mutex<State>>,
    pub(super) number: u64,
}

/// A file's content.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// The content that reads see.
    seen: Vec<u8>,
    /// The content on the medium.
    safe: Vec<u8>,
    /// Versions of sectors written since the last sync, oldest first. A crash leaves any of them, or the durable one.
    dirty: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The smallest length since the last sync, if the file was truncated.
    cut: Option<usize>,
    /// End of the written bytes; the rest up to the length is sparse, without allocated space.
    written: u64,
    reserved: u64,
}

type Sector = [u8; SECTOR as usize];

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.seen.len() as u64
    }

    pub(super) fn allocated(&self) -> u64 {
        self.written.max(self.reserved)
    }

    pub(super) fn reserve(&mut self, len: u64) {
        self.reserved = self.reserved.max(len);
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        if bytes.is_empty() {
            return;
        }
        let end = offset as usize + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        self.seen[offset as usize..end].copy_from_slice(bytes);
        self.written = self.written.max(end as u64);
        for sector in offset / SECTOR..=(end as u64 - 1) / SECTOR {
            let version = sector_of(&self.seen, sector).to_vec();
            self.dirty.entry(sector).or_default().push(version);
        }
    }

    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> usize {
        let start = (offset as usize).min(self.seen.len());
        let bytes = into.len().min(self.seen.len() - start);
        into[..bytes].copy_from_slice(&self.seen[start..start + bytes]);
        bytes
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if (len as usize) < self.seen.len() {
            self.cut = Some(self.cut.map_or(len as usize, |cut| cut.min(len as usize)));
        }
        self.seen.resize(len as usize, 0);
        self.dirty.retain(|sector, _| sector * SECTOR < len);
        self.written = self.written.min(len);
        self.reserved = self.reserved.min(len);
    }

    /// Writes the dirty sectors only: sectors that a failed sync has skipped count as clean.
    pub(super) fn sync(&mut self) {
        self.safe.truncate(self.cut.take().unwrap_or(usize::MAX));
        self.safe.resize(self.seen.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if let Some(newest) = versions.last() {
                put_sector(&mut self.safe, sector, newest);
            }
        }
    }

    /// Writes some of the dirty sectors to the medium, and marks all of them clean.
    pub(super) fn fail_sync(&mut self, random: &mut SimRandom) {
        self.safe = self.found(random);
        self.dirty.clear();
    }

    /// The content of the medium after a power failure.
    pub(super) fn after_power_loss(&self, random: &mut SimRandom) -> Self {
        let safe = self.found(random);
        let written = self.written.min(safe.len() as u64);
        Self { seen: safe.clone(), safe, dirty: BTreeMap::new(), cut: None, written, reserved: self.reserved }
    }

    pub(super) fn damage(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        self.dirty.clear();
        self.cut = None;
        change(&mut self.seen);
        self.written = self.written.min(self.len());
        self.safe.clone_from(&self.seen);
    }

    fn found(&self, random: &mut SimRandom) -> Vec<u8> {
        let mut found = self.safe.clone();
        // Crashes differ in how much was written back: almost nothing, almost all, or half.
        let odds = [30, 500, 970][random.below(3) as usize];
        if self.seen.len() != found.len() && random.chance(odds) {
            found.resize(self.seen.len(), 0);
        }
        for (sector, versions) in &self.dirty {
            if !random.chance(odds) {
                continue;
            }
            // Usually the newest version, sometimes an older one.
            let newest = versions.len() as u64 - 1;
            let chosen = if random.chance(700) { newest } else { random.below(newest + 1) };
            put_sector(&mut found, *sector, &versions[chosen as usize]);
        }
        found
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.lock().write(self.number, bytes, offset)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.disk.lock().content(self.number).read(into, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.lock().sync(self.number)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().content(self.number).len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.lock().set_len(self.number, len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.disk.lock().reserve(self.number, len)
    }
}

/// Writes the part of a sector that lies within the file.
fn put_sector(into: &mut [u8], sector: u64, bytes: &[u8]) {
    let start = ((sector * SECTOR) as usize).min(into.len());
    let len = (into.len() - start).min(bytes.len());
    into[start..start + len].copy_from_slice(&bytes[..len]);
}

fn sector_of(bytes: &[u8], sector: u64) -> Sector {
    let start = (sector * SECTOR) as usize;
    let end = bytes.len().min(start + SECTOR as usize);
    let mut copy = [0; SECTOR as usize];
    copy[..end - start].copy_from_slice(&bytes[start..end]);
    copy
}

/// Size of a sector in bytes, which a disk writes whole or not at all.
const SECTOR: u64 = 512;
