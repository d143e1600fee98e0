//! Samples the resources of the embedded broker, and raises and clears its alarms.

mod limits;
mod sources;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;
use std::{io, thread};

use broker::Broker;
use server::{Alarms, Resource};

use crate::config::{ByteSize, Watermark};
pub(crate) use limits::memory_total;
use sources::{Sources, System};

/// Time between two samples while no limit is near.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two samples while a limit is near.
const INTERVAL_NEAR: Duration = Duration::from_millis(100);
/// Time between two samples while fast publishers may reach the disk limit at any moment: messages that arrive
/// before the next sample exceed it.
const INTERVAL_CLOSE: Duration = Duration::from_millis(10);
/// Distance from the disk limit, in bytes, below which [`INTERVAL_CLOSE`] applies.
const CLOSE: u64 = 256 << 20;
/// Distance from a limit, in bytes, below which it is near: about as much as fast publishers send between two
/// samples.
const NEAR: u64 = 2 << 30;

/// The limits and the last measured free disk space, in bytes. The process metrics include its memory.
#[derive(Debug)]
pub(crate) struct Levels {
    /// [`NO_LIMIT`] for none.
    memory_limit: AtomicU64,
    /// Bytes of memory that this process may use, as last determined; [`NO_LIMIT`] if that is not known.
    memory_total: AtomicU64,
    /// `None` without a data directory.
    disk_limit: Option<AtomicU64>,
    disk_free: AtomicU64,
}

/// Stands for no limit: no process has as much memory.
const NO_LIMIT: u64 = u64::MAX;

impl Levels {
    fn new(memory_limit: Option<u64>, disk_limit: Option<u64>) -> Self {
        Self {
            memory_limit: AtomicU64::new(memory_limit.unwrap_or(NO_LIMIT)),
            memory_total: AtomicU64::new(NO_LIMIT),
            disk_limit: disk_limit.map(AtomicU64::new),
            disk_free: AtomicU64::new(0),
        }
    }

    /// Replaces the limits; the sampler applies them within a second.
    pub(crate) fn set_limits(&self, watermark: Watermark, disk_free_limit: ByteSize) {
        self.set_memory_limit(watermark, limits::memory_total());
        if let Some(limit) = &self.disk_limit {
            limit.store(disk_free_limit.0, Ordering::Relaxed);
        }
    }

    /// A `total` that cannot be determined now is as it was: a share of it must not become no limit.
    fn set_memory_limit(&self, watermark: Watermark, total: Option<u64>) {
        if let Some(total) = total {
            self.memory_total.store(total, Ordering::Relaxed);
        }
        let total = Some(self.memory_total.load(Ordering::Relaxed)).filter(|total| *total != NO_LIMIT);
        self.memory_limit.store(watermark.of(total).unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }

    /// Bytes of memory above which the memory alarm is raised; `None` for no limit.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        Some(self.memory_limit.load(Ordering::Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// Free bytes below which the disk alarm is raised; `None` without a data directory.
    pub(crate) fn disk_limit(&self) -> Option<u64> {
        self.disk_limit.as_ref().map(|limit| limit.load(Ordering::Relaxed))
    }

    /// Free bytes on the data directory's file system, as last measured.
    pub(crate) fn disk_free(&self) -> u64 {
        self.disk_free.load(Ordering::Relaxed)
    }
}

/// Runs the sampler until dropped.
pub(crate) struct Sampler {
    levels: Arc<Levels>,
    /// Dropping it ends the thread.
    _alive: SyncSender<()>,
}

impl Sampler {
    /// Measures once, so that alarms are raised before the first client connects, and continues in a thread of
    /// its own, since a file system may be slow to respond. `directory` is the data directory, and the store of
    /// `broker` is in it.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(crate) fn start(
        alarms: Arc<Alarms>,
        watermark: Watermark,
        disk_free_limit: ByteSize,
        directory: Option<PathBuf>,
        broker: Arc<Broker>,
    ) -> io::Result<Self> {
        give_memory_back();
        let memory_total = limits::memory_total();
        let levels = Arc::new(Levels::new(None, directory.as_ref().map(|_| disk_free_limit.0)));
        levels.set_memory_limit(watermark, memory_total);
        let (memory_limit, disk_limit) = (levels.memory_limit(), levels.disk_limit());
        tracing::info!(memory_bytes = memory_limit, disk_free_bytes = disk_limit, "resource limits");
        let sources = System::new(directory, Some(broker), memory_total);
        let watch = Watch { alarms, levels: Arc::clone(&levels), sources };
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

/// Lets jemalloc return freed memory to the system in a background thread. Otherwise it does so only during
/// allocations and deallocations; with blocked publishers and empty queues there are none, and the alarm would
/// never clear.
fn give_memory_back() {
    #[cfg(feature = "jemalloc")]
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!(%error, "jemalloc background threads unavailable: freed memory is returned late");
    }
}

/// Compares measurements with the limits.
struct Watch<S> {
    alarms: Arc<Alarms>,
    levels: Arc<Levels>,
    sources: S,
}

impl<S: Sources> Watch<S> {
    /// Measures once; returns the time until the next sample. A failed measurement changes no alarm.
    fn sample(&self) -> Duration {
        // With no limit, none is ever near, and an alarm from an earlier limit is cleared.
        let memory = self.sample_memory(self.levels.memory_limit().unwrap_or(NO_LIMIT));
        let disk = self.levels.disk_limit().map_or(INTERVAL, |limit| self.sample_disk(limit));
        if memory { disk.min(INTERVAL_NEAR) } else { disk }
    }

    /// Raises or clears the memory alarm; returns whether the limit is near or reached.
    fn sample_memory(&self, limit: u64) -> bool {
        let Some(used) = self.sources.memory_used() else { return false };
        self.sources.page(used, self.levels.memory_limit());
        if used > limit {
            if self.alarms.raise(Resource::Memory) {
                tracing::warn!(used, limit, "memory alarm set: publishers blocked");
            }
        } else if used <= limit - margin(limit) && self.alarms.clear(Resource::Memory) {
            tracing::info!(used, limit, "memory alarm cleared");
        }
        limit != NO_LIMIT && used.saturating_add(NEAR) > limit
    }

    /// Raises or clears the disk alarm; returns the time until the next sample.
    fn sample_disk(&self, limit: u64) -> Duration {
        self.sources.keep_free(limit);
        // If the store cannot confirm anything, publishers are blocked regardless of the reported free space.
        let needs_space = self.sources.needs_space();
        let Some(free) = self.sources.disk_free() else { return INTERVAL };
        self.levels.disk_free.store(free, Ordering::Relaxed);
        if free < limit || needs_space {
            if self.alarms.raise(Resource::Disk) {
                if free < limit {
                    tracing::warn!(free, limit, "disk alarm set: publishers blocked");
                } else {
                    tracing::warn!(
                        free,
                        limit,
                        "disk alarm set, as the store cannot write: publishers blocked"
                    );
                }
            }
        } else if free >= limit.saturating_add(margin(limit)) && self.alarms.clear(Resource::Disk) {
            tracing::info!(free, limit, "disk alarm cleared");
        }
        match free.checked_sub(limit) {
            Some(left) if left >= NEAR && !needs_space => INTERVAL,
            Some(left) if left < CLOSE && !needs_space => INTERVAL_CLOSE,
            _ => INTERVAL_NEAR,
        }
    }
}

/// Distance from the limit at which an alarm is cleared, so that it does not toggle with every message.
fn margin(limit: u64) -> u64 {
    limit / 20
}

#[cfg(test)]
mod tests;
