//! The sampler of the embedded broker's resources, which raises and clears its alarms.

mod limits;
mod sources;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;
use std::{io, thread};

use server::{Alarms, Resource};
use store::Store;

use crate::config::{ByteSize, Watermark};
pub(crate) use limits::memory_total;
use sources::{Sources, System};

/// How long between two samples while all is well.
const INTERVAL: Duration = Duration::from_secs(1);
/// And while a limit is near.
const INTERVAL_NEAR: Duration = Duration::from_millis(100);
/// And while fast publishers may reach the limit of the disk at any moment: what they bring until the next sample is beyond it.
const INTERVAL_CLOSE: Duration = Duration::from_millis(10);
/// Bytes from the limit of the disk within which it is so close.
const CLOSE: u64 = 256 << 20;
/// Bytes from a limit within which it is near: fast publishers bring about as much between two samples.
const NEAR: u64 = 2 << 30;

/// The limits, and what was last measured of the disk, in bytes. The process's memory is among its own metrics.
#[derive(Debug)]
pub(crate) struct Levels {
    /// [`NO_LIMIT`] for none.
    memory_limit: AtomicU64,
    /// `None` without a data folder.
    disk_limit: Option<AtomicU64>,
    disk_free: AtomicU64,
}

/// No process has as much memory.
const NO_LIMIT: u64 = u64::MAX;

impl Levels {
    fn new(memory_limit: Option<u64>, disk_limit: Option<u64>) -> Self {
        Self {
            memory_limit: AtomicU64::new(memory_limit.unwrap_or(NO_LIMIT)),
            disk_limit: disk_limit.map(AtomicU64::new),
            disk_free: AtomicU64::new(0),
        }
    }

    /// From now on these are the limits; the sampler finds out within a second what follows from them.
    pub(crate) fn set_limits(&self, watermark: Watermark, disk_free_limit: ByteSize) {
        let memory_limit = watermark.of(limits::memory_total()).unwrap_or(NO_LIMIT);
        self.memory_limit.store(memory_limit, Ordering::Relaxed);
        if let Some(limit) = &self.disk_limit {
            limit.store(disk_free_limit.0, Ordering::Relaxed);
        }
    }

    /// Memory above which its alarm is raised, if it ever is.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        Some(self.memory_limit.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Free space below which its alarm is raised; `None` without a data folder.
    pub(crate) fn disk_limit(&self) -> Option<u64> {
        self.disk_limit.as_ref().map(|limit| limit.load(Ordering::Relaxed))
    }

    /// Free space on the data folder's file system.
    pub(crate) fn disk_free(&self) -> u64 {
        self.disk_free.load(Ordering::Relaxed)
    }
}

/// Runs the sampler until dropped.
pub(crate) struct Sampler {
    levels: Arc<Levels>,
    /// Its end is what the thread waits for.
    _alive: SyncSender<()>,
}

impl Sampler {
    /// Measures once, so that alarms stand before the first client comes, and goes on in a thread of its own: a file
    /// system may take long to answer. `folder` is the data folder, and `store` what lies in it.
    ///
    /// # Errors
    ///
    /// There can be no thread.
    pub(crate) fn start(
        alarms: Arc<Alarms>,
        watermark: Watermark,
        disk_free_limit: ByteSize,
        folder: Option<PathBuf>,
        store: Option<Arc<Store>>,
    ) -> io::Result<Self> {
        give_memory_back();
        let memory_limit = watermark.of(limits::memory_total());
        let levels = Arc::new(Levels::new(memory_limit, folder.as_ref().map(|_| disk_free_limit.0)));
        tracing::info!(
            memory_bytes = memory_limit,
            disk_free_bytes = levels.disk_limit(),
            "publishers are blocked beyond these"
        );
        let watch = Watch { alarms, levels: Arc::clone(&levels), sources: System { folder, store } };
        let mut interval = watch.sample();
        let (alive, end) = mpsc::sync_channel(0);
        let run = move || {
            while end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                interval = watch.sample();
            }
        };
        thread::Builder::new().name("alarms".to_owned()).spawn(run)?;
        Ok(Self { levels, _alive: alive })
    }

    pub(crate) fn levels(&self) -> &Arc<Levels> {
        &self.levels
    }
}

/// jemalloc returns freed memory to the system when others are allocated or freed; when publishers wait and the queues
/// are empty, nothing is, and the alarm would stand for ever. With a thread of its own it needs no occasion.
fn give_memory_back() {
    #[cfg(feature = "jemalloc")]
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!(%error, "freed memory may be given back late, and a memory alarm stand longer than it should");
    }
}

/// Holds what it measures against the limits.
struct Watch<S> {
    alarms: Arc<Alarms>,
    levels: Arc<Levels>,
    sources: S,
}

impl<S: Sources> Watch<S> {
    /// Measures once; returns how long it may take until the next time. What cannot be measured now changes nothing.
    fn sample(&self) -> Duration {
        // Without a limit nothing comes near it, and an alarm of an earlier one is cleared.
        let memory = self.sample_memory(self.levels.memory_limit().unwrap_or(NO_LIMIT));
        let disk = self.levels.disk_limit().map_or(INTERVAL, |limit| self.sample_disk(limit));
        if memory { disk.min(INTERVAL_NEAR) } else { disk }
    }

    /// Whether the limit is near, or reached.
    fn sample_memory(&self, limit: u64) -> bool {
        let Some(used) = self.sources.memory_used() else { return false };
        if used > limit {
            if self.alarms.raise(Resource::Memory) {
                tracing::warn!(used, limit, "low on memory: publishers are blocked");
            }
        } else if used <= limit - margin(limit) && self.alarms.clear(Resource::Memory) {
            tracing::info!(used, limit, "enough memory again");
        }
        limit != NO_LIMIT && used.saturating_add(NEAR) > limit
    }

    /// Returns how long it may take until the next time.
    fn sample_disk(&self, limit: u64) -> Duration {
        self.sources.keep_free(limit);
        // Where nothing can be confirmed, publishers are told, whatever the file system says of its free space.
        let needs_space = self.sources.needs_space();
        let Some(free) = self.sources.disk_free() else { return INTERVAL };
        self.levels.disk_free.store(free, Ordering::Relaxed);
        if free < limit || needs_space {
            if self.alarms.raise(Resource::Disk) {
                tracing::warn!(free, limit, needs_space, "low on disk: publishers are blocked");
            }
        } else if free >= limit.saturating_add(margin(limit)) && self.alarms.clear(Resource::Disk) {
            tracing::info!(free, limit, "enough disk again");
        }
        match free.checked_sub(limit) {
            Some(left) if left >= NEAR && !needs_space => INTERVAL,
            Some(left) if left < CLOSE && !needs_space => INTERVAL_CLOSE,
            _ => INTERVAL_NEAR,
        }
    }
}

/// How far from its limit a level has to be for an alarm to be cleared, so that it does not come and go with every message.
fn margin(limit: u64) -> u64 {
    limit / 20
}

#[cfg(test)]
mod tests;
