//! Pauses for a thread that does a long job, such as listing all queues, beside threads that serve clients.
//!
//! Such a thread never blocks, so without an idle core the kernel preempts it only after some milliseconds, and a client
//! whose thread has just become ready waits that long. A thread that yields every half millisecond shortens this wait, and
//! costs nothing if no other thread is ready.

use std::cell::Cell;
use std::thread;

use crate::work::TURN;

thread_local! {
    /// Nanoseconds of work since this thread's last pause.
    static DONE: Cell<u64> = const { Cell::new(0) };
    static PAUSES: Cell<u64> = const { Cell::new(0) };
}

/// Counts work of a thread that serves no client, in nanoseconds, as [`work::charge`](crate::work::charge) does. The thread
/// yields to other ready threads each time it has done a [`TURN`] of work. Call it without locks that clients wait for.
#[inline]
pub fn pace(cost: u32) {
    let done = DONE.get() + u64::from(cost);
    DONE.set(done);
    if done >= u64::from(TURN) {
        pause();
    }
}

/// Drops items, each of which takes `each` nanoseconds to free, and pauses in between.
pub fn drop_at_pace<T>(each: u32, items: impl IntoIterator<Item = T>) {
    for item in items {
        drop(item);
        pace(each);
    }
}

/// Number of times that this thread has paused, for tests.
pub fn pauses() -> u64 {
    PAUSES.get()
}

#[cold]
fn pause() {
    DONE.set(0);
    PAUSES.set(PAUSES.get() + 1);
    thread::yield_now();
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_pauses_whenever_it_has_done_the_work_of_a_turn() {
        for _ in 0..25 {
            pace(TURN / 10);
        }
        assert_eq!(pauses(), 2);
        pace(TURN * 3);
        assert_eq!(pauses(), 3, "one is enough, however late");
        drop_at_pace(TURN / 10, [(); 25]);
        assert_eq!(pauses(), 5);
    }
}
