//! How much of the disk the log may use.
//!
//! | free space above the limit | the log |
//! |---|---|
//! | more than three segments | puts a segment aside in advance, and keeps retired ones to be overwritten |
//! | less than two segments ("short") | gives those back, and takes small segments as it needs them |
//! | nothing | publishers are blocked by the alarm; acknowledgements and declarations continue |
//!
//! There is also a reserve of small segments, which are used when the disk is full although it should not be:
//! acknowledgements must get to the disk, or the space of consumed messages could never be freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::segment::DATA_START;
use crate::disk::Disk;

/// Shared by the code that appends, writes, prepares and retires.
pub(super) struct Space {
    disk: Arc<dyn Disk>,
    segment_size: u64,
    /// Bytes that are to stay free.
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
    pub(super) fn look(&self) -> bool {
        let enough = if self.is_short() { ENOUGH_AGAIN } else { ENOUGH };
        let short = self.above_limit() < self.segment_size.saturating_mul(enough);
        self.short.store(short, Ordering::Relaxed);
        short
    }

    /// Whether space was short at the last measurement.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Bytes that may be used without going below the limit. A disk that does not report its free space has enough.
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

    /// Bytes of records that a segment which begins now is to have.
    pub(super) fn capacity(&self) -> u64 {
        let size = if self.is_short() { self.small_segment() } else { self.segment_size };
        size.saturating_sub(DATA_START)
    }
}

/// Segments that must fit above the limit: the current one may have to be replaced at any time, and one is put aside.
const ENOUGH: u64 = 2;
/// One more, so that giving one back is not the reason to put it aside again.
const ENOUGH_AGAIN: u64 = 3;
/// A small segment is this fraction of a segment: 4 MiB. It is given back soon, and still holds thousands of messages.
const SMALL: u64 = 16;
