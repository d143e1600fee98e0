//! The memory of all queues, updated by every batch of messages.

// std's atomic, not `sync`'s: no thread waits for this counter, so loom need not test its interleavings.
use std::sync::atomic::AtomicI64;

use sync::Shards;
use sync::atomic::{AtomicU64, Ordering};

/// A sum of bytes. Threads accumulate small changes locally: a sum that all cores update with each batch would move from
/// cache to cache.
///
/// An example: with a slack of 256 KiB a thread that adds 100 KiB three times changes the sum once, by 300 KiB.
pub(super) struct Memory {
    /// The sum of all reported changes; its error is at most [`Memory::slack`] per shard.
    reported: AtomicU64,
    unreported: Shards<AtomicI64>,
    /// Bytes that a thread may accumulate before it reports them.
    slack: i64,
}

/// A change of the reported sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryChange {
    pub(super) before: u64,
    pub(super) now: u64,
}

impl Memory {
    /// A sum that is compared with `watermark` bytes: its error is at most a sixty-fourth of those, and 4 MiB.
    pub(super) fn new(watermark: u64) -> Self {
        let share = watermark / MAX_UNREPORTED_PART / Shards::<AtomicI64>::COUNT as u64;
        Self {
            reported: AtomicU64::new(0),
            unreported: Shards::default(),
            slack: i64::try_from(share).unwrap_or(MAX_UNREPORTED).min(MAX_UNREPORTED),
        }
    }

    /// Replaces a queue's share. Returns the change of the reported sum, which exactly one thread gets; `None` if it has
    /// not changed.
    #[inline]
    pub(super) fn change(&self, before: u64, now: u64) -> Option<MemoryChange> {
        let change = now.wrapping_sub(before).cast_signed();
        if change == 0 {
            return None;
        }
        let own = self.unreported.own();
        let unreported = own.fetch_add(change, Ordering::Relaxed) + change;
        if unreported.abs() <= self.slack {
            return None;
        }
        // Another thread with the same shard may have reported it.
        let change = own.swap(0, Ordering::Relaxed).cast_unsigned();
        let before = self.reported.fetch_add(change, Ordering::Relaxed);
        (change != 0)
            .then(|| MemoryChange { before: as_bytes(before), now: as_bytes(before.wrapping_add(change)) })
    }

    /// The reported sum, on which all decisions are based.
    pub(super) fn known(&self) -> u64 {
        as_bytes(self.reported.load(Ordering::Relaxed))
    }

    /// The sum; exact while nothing changes it.
    pub(super) fn exact(&self) -> u64 {
        let unreported =
            self.unreported.iter().map(|unreported| unreported.load(Ordering::Relaxed).cast_unsigned());
        as_bytes(unreported.fold(self.reported.load(Ordering::Relaxed), u64::wrapping_add))
    }
}

/// A thread may report that memory was freed before another reports that it was taken.
fn as_bytes(sum: u64) -> u64 {
    u64::try_from(sum.cast_signed()).unwrap_or(0)
}

/// The largest error of the reported sum, as a fraction of the watermark.
const MAX_UNREPORTED_PART: u64 = 64;

/// The most bytes that a thread accumulates: some hundred batches of small messages.
const MAX_UNREPORTED: i64 = 256 << 10;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reports_only_large_changes_and_the_exact_sum_is_still_right() {
        let memory = Memory::new(u64::MAX);
        let slack = MAX_UNREPORTED as u64;
        assert_eq!(memory.change(0, slack), None);
        assert_eq!((memory.known(), memory.exact()), (0, slack));
        assert_eq!(memory.change(10, 11), Some(MemoryChange { before: 0, now: slack + 1 }));
        assert_eq!((memory.known(), memory.exact()), (slack + 1, slack + 1));
        assert_eq!(memory.change(slack, 0), None);
        assert_eq!((memory.known(), memory.exact()), (slack + 1, 1));
        assert_eq!(memory.change(7, 7), None);
    }

    #[test]
    fn a_small_watermark_has_every_change_reported() {
        let memory = Memory::new(1000);
        assert_eq!(memory.change(0, 1), Some(MemoryChange { before: 0, now: 1 }));
        assert_eq!(memory.change(1, 0), Some(MemoryChange { before: 1, now: 0 }));
    }

    #[test]
    fn the_sum_is_never_negative_when_another_thread_frees_memory_first() {
        let memory = Memory::new(1000);
        memory.change(50, 0);
        assert_eq!((memory.known(), memory.exact()), (0, 0));
        memory.change(0, 50);
        assert_eq!((memory.known(), memory.exact()), (0, 0));
    }

    #[test]
    fn no_change_is_lost_between_threads() {
        let memory = Memory::new(u64::MAX);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10_000_u64).for_each(|step| _ = memory.change(step * 100, step * 100 + 99))
                });
            }
        });
        assert_eq!(memory.exact(), 4 * 10_000 * 99);
    }
}
