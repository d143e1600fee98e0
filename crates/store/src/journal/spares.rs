//! Segment files that are ready to be overwritten, and retired ones that will be.
//!
//! Numbers are assigned in the order of use, so the order of names is the order of the log. A name is durable before its
//! file is used, and the removal of a retired file is durable before the next one is removed. After a crash, at most the
//! file that was retired last exists again, never one from the middle.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::segment::{self, DIR, SharedFile};
use super::space::Space;
use crate::disk::{Disk, DiskFile, is_full, reserve_if_possible};

/// Spare files, shared by the code that writes, prepares and retires.
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    space: Arc<Space>,
    segment_size: u64,
    state: Mutex<SparesState>,
    used_one: Condvar,
}

/// How a file is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preallocation {
    /// Filled with zeros: later syncs have only bytes to write.
    Zeros,
    /// Allocated: later syncs also have to record which blocks are in use, whose cost is negligible for large groups.
    Reserved,
}

struct SparesState {
    /// Numbers of files that are ready, ascending.
    ready: VecDeque<u64>,
    next_sequence: u64,
    /// The directory must be synced before any file in it is used.
    unsynced: bool,
    /// Number of small segments that are reserved, see [`RESERVED_SEGMENTS`].
    reserved: usize,
    /// A reserved segment was used or freed, and has not been replaced.
    is_reserve_used: bool,
    /// The log already has the message that the file system cannot reserve space.
    is_lack_logged: bool,
    /// Numbers of abandoned files that could not be removed yet.
    leftover: Vec<u64>,
    retiring: VecDeque<SharedFile>,
    /// Set once the first file of `retiring` is renamed or removed: its new number if it got one.
    renamed: Option<Option<u64>>,
    stopping: bool,
}

impl Spares {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        space: Arc<Space>,
        segment_size: u64,
        ready: Vec<u64>,
        leftover: Vec<u64>,
        next_sequence: u64,
    ) -> Self {
        // Spare files of an earlier run. In a copied directory their space may not be allocated.
        let names = disk.list(DIR).unwrap_or_default();
        let size = space.small_segment();
        let is_there = |path: &String| names.iter().any(|name| *path == format!("{DIR}/{name}"));
        let holds = |path: &String| disk.open(path).is_ok_and(|file| file.reserve(size).is_ok());
        let reserved =
            (0..RESERVED_SEGMENTS).map(reserve_path).take_while(|path| is_there(path) && holds(path)).count();
        let state = SparesState {
            ready: ready.into(),
            next_sequence,
            unsynced: true,
            reserved,
            is_reserve_used: false,
            is_lack_logged: false,
            leftover,
            retiring: VecDeque::new(),
            renamed: None,
            stopping: false,
        };
        Self { disk, space, segment_size, state: Mutex::new(state), used_one: Condvar::new() }
    }

    /// Opens a file with space for `needed` bytes to start a segment in, under a durable name. If it is not used, it must
    /// be removed. While space is short the file is small, and grows only with the records written to it.
    pub(super) fn take(&self, needed: u64) -> io::Result<(u64, Box<dyn DiskFile>, u64)> {
        let mut size = self.segment_size;
        if self.space.measure() {
            // They would be started and hardly filled.
            self.give_back();
            let small = self.space.small_segment();
            size = if self.space.above_limit() < small { needed } else { small };
        }
        match self.begin(needed.max(size)) {
            Err(error) if is_full(&error) => {
                self.give_back();
                self.begin(needed).or_else(|error| self.begin_reserved(needed, error))
            }
            begun => begun,
        }
    }

    /// Like `take`, in a reserved segment, after the disk was found full. The file is renamed and its space is never freed
    /// in between, when another process might take it.
    fn begin_reserved(&self, needed: u64, error: io::Error) -> io::Result<(u64, Box<dyn DiskFile>, u64)> {
        let size = self.space.small_segment();
        let mut state = self.state.lock();
        if !is_full(&error) || state.reserved == 0 || needed > size {
            return Err(error);
        }
        state.reserved -= 1;
        state.is_reserve_used = true;
        let sequence = state.next_number();
        state.unsynced = true;
        self.disk.rename(&reserve_path(state.reserved), &segment::path(sequence))?;
        drop(state);
        self.opened(sequence, size, true)
    }

    /// Opens a file that is ready, or a new one of `size` bytes.
    fn begin(&self, size: u64) -> io::Result<(u64, Box<dyn DiskFile>, u64)> {
        let mut state = self.state.lock();
        if state.unsynced {
            self.disk.sync_dir(DIR)?;
            state.unsynced = false;
        }
        let ready = state.ready.pop_front();
        let sequence = ready.unwrap_or_else(|| state.next_number());
        drop(state);
        self.used_one.notify_one();
        self.opened(sequence, size, ready.is_none())
    }

    fn opened(&self, sequence: u64, size: u64, is_new: bool) -> io::Result<(u64, Box<dyn DiskFile>, u64)> {
        let opened = self.open(sequence, size, is_new);
        if opened.is_err() {
            self.remove(sequence);
        }
        let (file, len) = opened?;
        Ok((sequence, file, len))
    }

    fn open(&self, sequence: u64, needed: u64, new: bool) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let file = self.disk.open(&segment::path(sequence))?;
        let len = file.len()?;
        if len < needed {
            reserve_if_possible(&*file, needed)?;
            file.set_len(needed)?;
        }
        if new {
            self.disk.sync_dir(DIR)?;
        }
        Ok((file, len.max(needed)))
    }

    /// Removes an abandoned file. If it reappears after a crash it does no harm, as long as the file that replaced it
    /// exists.
    pub(super) fn remove(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.unsynced = true;
        if self.disk.remove(&segment::path(sequence)).is_err() {
            state.leftover.push(sequence);
        }
    }

    /// Removes prepared files. The log then takes space as it needs it.
    pub(super) fn give_back(&self) {
        let ready = std::mem::take(&mut self.state.lock().ready);
        ready.into_iter().for_each(|sequence| self.remove(sequence));
    }

    /// Reserves small segments for a full disk, unless that is done or space is insufficient.
    pub(super) fn ensure_reserve(&self) {
        let mut state = self.state.lock();
        let size = self.space.small_segment();
        let is_complete = state.reserved == RESERVED_SEGMENTS;
        if is_complete || self.space.above_limit() < 2 * RESERVED_SEGMENTS as u64 * size {
            return;
        }
        while state.reserved < RESERVED_SEGMENTS {
            let path = reserve_path(state.reserved);
            if let Err(error) = self.disk.open(&path).and_then(|file| file.reserve(size)) {
                drop(self.disk.remove(&path));
                // Some file systems cannot reserve space, so there is no reserve; others are full although they report free
                // space.
                let is_full = is_full(&error);
                state.is_reserve_used &= is_full;
                let is_lacking = error.kind() == io::ErrorKind::Unsupported;
                if is_lacking && !std::mem::replace(&mut state.is_lack_logged, true) {
                    tracing::warn!(
                        %error,
                        "the file system cannot reserve space: while the disk is full, acknowledgements wait for space"
                    );
                }
                return;
            }
            state.reserved += 1;
        }
        state.is_reserve_used = false;
    }

    /// Frees the reserve: the disk is full, and the pending records do not fit into a reserved segment.
    pub(super) fn release_reserve(&self) {
        let mut state = self.state.lock();
        // An earlier run may have left one.
        let names = self.disk.list(DIR).unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(RESERVE_NAME)) {
            if self.disk.remove(&format!("{DIR}/{name}")).is_ok() {
                state.is_reserve_used = true;
            }
        }
        state.reserved = 0;
    }

    /// Whether part of the reserve was used, and there is not enough space to replace it.
    pub(super) fn is_reserve_used(&self) -> bool {
        self.state.lock().is_reserve_used
    }

    /// Prepares a file if there is none, and space is not short. Returns `false` if it did not.
    pub(super) fn prepare(&self, preallocation: Preallocation) -> io::Result<bool> {
        if !self.state.lock().ready.is_empty() || self.space.measure() {
            return Ok(false);
        }
        self.disk.remove(PREPARING)?;
        let file = self.disk.open(PREPARING)?;
        match preallocation {
            Preallocation::Zeros => segment::fill(&*file, self.segment_size)?,
            Preallocation::Reserved => segment::reserve(&*file, self.segment_size)?,
        }
        let mut state = self.state.lock();
        let sequence = state.next_number();
        self.disk.rename(PREPARING, &segment::path(sequence))?;
        state.unsynced = true;
        if let Err(error) = self.disk.sync_dir(DIR) {
            drop(self.disk.remove(&segment::path(sequence)));
            return Err(error);
        }
        state.unsynced = false;
        state.ready.push_back(sequence);
        Ok(true)
    }

    /// Recycles files that the log no longer needs, and those that an earlier call failed to recycle.
    pub(super) fn recycle(&self, files: impl IntoIterator<Item = SharedFile>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.retiring.extend(files);
        // The removal of earlier files must be durable first, or they may be back after a crash when this file is not.
        if !state.retiring.is_empty() {
            while let Some(sequence) = state.leftover.last() {
                self.disk.remove(&segment::path(*sequence))?;
                state.leftover.pop();
                state.unsynced = true;
            }
        }
        if state.unsynced && !state.retiring.is_empty() {
            self.disk.sync_dir(DIR)?;
            state.unsynced = false;
        }
        while let Some(file) = state.retiring.front() {
            let (old, keep) = (file.header.sequence, file.len == self.segment_size);
            let new = match state.renamed {
                Some(new) => new,
                None => self.rename(&mut state, old, keep)?,
            };
            state.renamed = Some(new);
            self.disk.sync_dir(DIR)?;
            state.renamed = None;
            state.retiring.pop_front();
            // If a number was assigned meanwhile, this one would be used out of order.
            match new {
                Some(new) if state.next_sequence == new + 1 => state.ready.push_back(new),
                Some(new) => state.leftover.push(new),
                None => {}
            }
        }
        Ok(())
    }

    fn rename(&self, state: &mut SparesState, old: u64, keep: bool) -> io::Result<Option<u64>> {
        if !keep || state.ready.len() >= RETAINED_SPARES || self.space.is_short() {
            self.disk.remove(&segment::path(old))?;
            return Ok(None);
        }
        let new = state.next_number();
        match self.disk.rename(&segment::path(old), &segment::path(new)) {
            Ok(()) => Ok(Some(new)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until a spare file is used. Returns `false` when the thread has to stop.
    pub(super) fn wait_until_used(&self) -> bool {
        let mut state = self.state.lock();
        while !state.ready.is_empty() && !state.stopping {
            self.used_one.wait(&mut state);
        }
        !state.stopping
    }

    /// Pauses, or returns earlier when the thread has to stop.
    pub(super) fn pause(&self, time: std::time::Duration) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.used_one.wait_for(&mut state, time);
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.used_one.notify_all();
    }
}

impl SparesState {
    fn next_number(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }
}

fn reserve_path(number: usize) -> String {
    format!("{DIR}/{RESERVE_NAME}-{number}")
}

/// The name of a file that is being filled.
const PREPARING: &str = "journal/preparing";
/// Reserved segments are `reserve-0` and so on.
const RESERVE_NAME: &str = "reserve";
/// Number of reserved small segments: for the records pending when the disk is full, and for later acknowledgements.
const RESERVED_SEGMENTS: usize = 2;
/// Number of retired segments that are retained to be overwritten; more would only waste space.
const RETAINED_SPARES: usize = 3;
