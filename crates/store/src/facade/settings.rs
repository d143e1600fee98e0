//! Configurable sizes of a store.

use crate::journal;
use crate::pages::SEGMENT_BYTES;

/// Sizes of a store.
#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Sizes of the journal.
    pub journal: journal::JournalSettings,
    /// Segments that the journal may have before the oldest is retired.
    pub journal_segments: usize,
    /// Bytes of a queue's own segments.
    pub queue_segment_size: u64,
    /// Files of queues' own segments that stay open, for all queues together.
    pub open_files: usize,
    /// The weight of a message in bytes, up to the length of its payload. [`super::RecoveredQueue`] sums it up.
    pub weigh: fn(&[u8]) -> u32,
}

impl Default for StoreSettings {
    fn default() -> Self {
        journal::JournalSettings::default().into()
    }
}

impl From<journal::JournalSettings> for StoreSettings {
    fn from(journal: journal::JournalSettings) -> Self {
        Self {
            journal,
            journal_segments: JOURNAL_SEGMENTS,
            queue_segment_size: SEGMENT_BYTES,
            open_files: OPEN_FILES,
            weigh: |payload| payload.len() as u32,
        }
    }
}

/// 256 MiB: messages that are settled within about a second of the fastest publishing are never written twice, and a
/// restart reads the journal in about a second.
const JOURNAL_SEGMENTS: usize = 4;
/// A small part of the 1,024 that a process may have by default; few queues are read or written at the same moment.
const OPEN_FILES: usize = 64;
