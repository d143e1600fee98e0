//! Decides how much of the disk the log may use.
//!
//! | free space above the limit | the log |
//! |---|---|
//! | at least two segments (three, after it was short) | prepares a segment in advance, and retains retired ones for reuse |
//! | less than two segments ("short") | frees those, and creates small segments as it needs them |
//! | nothing | publishers are blocked by the alarm; acknowledgements and declarations continue |
//!
//! There is also a reserve of small segments, for a disk that is full despite the limit: acknowledgements must reach the
//! disk, or the space of consumed messages could never be freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::segment::DATA_START;
use crate::disk::Disk;

/// Shared by the code that appends, writes, prepares and retires.
pub(super) struct Space {
    disk: Arc<dyn Disk>,
    segment_size: u64,
    /// Bytes that must stay free.
    limit: AtomicU64,
    short: AtomicBool,
}

impl Space {
    pub(super) fn new(disk: Arc<dyn Disk>, segment_size: u64) -> Self {
        Self { disk, segment_size, limit: AtomicU64::new(0), short: AtomicBool::new(false) }
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Measures the free space, and returns whether it is short.
    pub(super) fn measure(&self) -> bool {
        let enough = if self.is_short() { ENOUGH_AGAIN } else { ENOUGH };
        let short = self.above_limit() < self.segment_size.saturating_mul(enough);
        self.short.store(short, Ordering::Relaxed);
        short
    }

    /// Whether space was short at the last measurement.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Bytes that may be used without going below the limit. A disk that does not report its free space counts as large
    /// enough.
    pub(super) fn above_limit(&self) -> u64 {
        self.free().saturating_sub(self.limit.load(Ordering::Relaxed))
    }

    /// Bytes that are free.
    pub(super) fn free(&self) -> u64 {
        self.disk.free_space().unwrap_or(u64::MAX)
    }

    /// Bytes of a small segment file.
    pub(super) fn small_segment(&self) -> u64 {
        (self.segment_size / SMALL).clamp(2 * DATA_START, self.segment_size.max(2 * DATA_START))
    }

    /// Bytes of records for a segment that starts now.
    pub(super) fn capacity(&self) -> u64 {
        let size = if self.is_short() { self.small_segment() } else { self.segment_size };
        size.saturating_sub(DATA_START)
    }
}

/// Segments that must fit above the limit: the current one may have to be replaced at any time, and one is prepared in
/// advance.
const ENOUGH: u64 = 2;
/// One more, so that removing one does not immediately cause another one to be prepared.
const ENOUGH_AGAIN: u64 = 3;
/// The divisor for small segments, which have 4 MiB. They are retired soon, and still hold thousands of messages.
const SMALL: u64 = 16;
