//! Counters that many threads add to at once, without bouncing a cache line from core to core.

// Nothing waits for them, so they need not be tested in every interleaving.
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of shards. Beyond this many cores, several share one: that costs them less than more shards would cost a reader.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's shard; threads are assigned in turn.
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// A value with cache lines of its own: a write to a neighbour does not slow its readers.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CachePadded<T>(T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for CachePadded<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

/// A value for each of 16 groups of threads, 64 bytes apart.
#[derive(Debug)]
pub struct Shards<T>(Box<[CachePadded<T>; SHARDS]>);

impl<T: Default> Default for Shards<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T> Shards<T> {
    /// How many values there are.
    pub const COUNT: usize = SHARDS;

    /// The value of this thread's group.
    pub fn own(&self) -> &T {
        // A thread that is ending has already dropped its number.
        &self.0[SHARD.try_with(|shard| *shard).unwrap_or(0)]
    }

    /// The values of all groups, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &**shard)
    }
}

/// `N` monotonic counters. They are split among threads, at the cost of a kilobyte, when two threads first add to one of
/// them at the same moment. Without such contention they take no extra memory.
#[derive(Debug)]
pub struct ShardedCounters<const N: usize> {
    /// Counts from before they were split.
    whole: [AtomicU64; N],
    /// Counts since then.
    shards: OnceLock<Shards<Shard<N>>>,
}

#[derive(Debug)]
struct Shard<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Shard<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> Self {
        Self { whole: [const { AtomicU64::new(0) }; N], shards: OnceLock::new() }
    }
}

impl<const N: usize> ShardedCounters<N> {
    /// Adds to each of the counters.
    pub fn add(&self, counted: [u64; N]) {
        for (at, counted) in counted.into_iter().enumerate().filter(|(_, counted)| *counted > 0) {
            let shards = match self.shards.get() {
                Some(shards) => shards,
                None if self.add_to_whole(at, counted) => continue,
                None => self.split(),
            };
            shards.own().0[at].fetch_add(counted, Ordering::Relaxed);
        }
    }

    /// Adds to the unsplit counter; returns false without adding if another thread is adding at this moment.
    fn add_to_whole(&self, at: usize, counted: u64) -> bool {
        let (whole, relaxed) = (&self.whole[at], Ordering::Relaxed);
        let before = whole.load(relaxed);
        whole.compare_exchange(before, before.wrapping_add(counted), relaxed, relaxed).is_ok()
    }

    /// The current count at index `at`. It never decreases between two calls of one thread.
    pub fn get(&self, at: usize) -> u64 {
        let shards = self.shards.get().into_iter().flat_map(Shards::iter);
        let counts = shards.map(|shard| shard.0[at].load(Ordering::Relaxed));
        counts.fold(self.whole[at].load(Ordering::Relaxed), u64::wrapping_add)
    }

    /// Gives each group of threads counters of its own, from now on.
    fn split(&self) -> &Shards<Shard<N>> {
        self.shards.get_or_init(Shards::default)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn counts_are_the_same_whether_or_not_they_are_split() {
        let counters = ShardedCounters::<2>::default();
        counters.add([1, 10]);
        assert!(counters.shards.get().is_none(), "nobody was in the way");
        counters.split();
        counters.add([2, 0]);
        std::thread::scope(|scope| scope.spawn(|| counters.add([0, 20])).join().unwrap());
        assert_eq!([counters.get(0), counters.get(1)], [3, 30]);
        assert_eq!(counters.whole[0].load(Ordering::Relaxed), 1, "no longer touched");
    }

    #[test]
    fn threads_that_add_at_once_lose_nothing() {
        let counters = ShardedCounters::<1>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| counters.add([1])));
            }
        });
        assert_eq!(counters.get(0), 40_000);
    }

    #[test]
    fn threads_take_different_shares_in_lines_of_their_own() {
        let shards = Shards::<AtomicU64>::default();
        let address = || std::ptr::from_ref(shards.own()).addr();
        let others = [0; 2].map(|_| std::thread::scope(|scope| scope.spawn(address).join().unwrap()));
        assert_eq!(address(), address(), "a thread keeps its share");
        assert!(others[0].abs_diff(others[1]) >= 64);
        assert_eq!(others[0] % 64, 0);
    }
}
