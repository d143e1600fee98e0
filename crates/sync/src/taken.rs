//! Records which locks a thread takes, for tests.

use std::any::type_name;
use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::Rank;

/// A lock that a thread has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakenLock {
    rank: u8,
    /// The type of what it protects.
    pub contents: &'static str,
    /// Its address: no two locks share it at the same time.
    address: usize,
}

impl TakenLock {
    /// Its rank.
    pub fn rank(&self) -> Rank {
        Rank::ALL[usize::from(self.rank)]
    }
}

std::thread_local! {
    static TAKEN: RefCell<Option<BTreeSet<TakenLock>>> = const { RefCell::new(None) };
}

/// Runs `work`, and returns the locks that this thread took during it.
pub fn locks_taken(work: impl FnOnce()) -> BTreeSet<TakenLock> {
    struct Recording;
    impl Drop for Recording {
        fn drop(&mut self) {
            TAKEN.set(None);
        }
    }
    let recording = Recording;
    TAKEN.set(Some(BTreeSet::new()));
    work();
    let taken = TAKEN.take().unwrap_or_default();
    drop(recording);
    taken
}

/// Records that the thread takes the lock at `address`, which protects a `T`.
pub(crate) fn note<T>(rank: u8, address: usize) {
    // A thread that is ending has already dropped its set.
    let _ = TAKEN.try_with(|taken| {
        if let Some(taken) = &mut *taken.borrow_mut() {
            taken.insert(TakenLock { rank, contents: type_name::<T>(), address });
        }
    });
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::Mutex;

    #[test]
    fn locks_are_distinguished_by_address_and_named_by_their_contents() {
        let locks = [0, 1].map(Mutex::<u16, { Rank::Policies as u8 }>::new);
        let first = locks_taken(|| (0..2).for_each(|_| drop(locks[0].lock())));
        let both = locks_taken(|| locks.iter().for_each(|lock| drop(lock.try_lock())));
        drop(locks[0].lock());
        assert_eq!((first.len(), both.len(), both.intersection(&first).count()), (1, 2, 1));
        let taken = first.first().unwrap();
        assert_eq!((taken.rank(), taken.contents), (Rank::Policies, "u16"));
    }
}
