//! Throttles publishers while a queue's backlog grows although its consumers could take more: they wait for turns of this
//! server, which the publishers use up.
//!
//! The backlog is the credit. It may grow by [`MAX_BACKLOG_GROWTH`], or by what consumers take in [`RATE_WINDOW`], above
//! its lowest level. Beyond that, each publisher is held once it has added [`MAX_BURST`] more. Publishers continue in order
//! when consumers have taken as much as they added, or after at most [`MAX_PAUSE`], since a held connection may also
//! publish to other queues. So a connection that publishes single messages between other work is held as rarely as one that
//! only publishes. If throttling does not help, because consumers take little even while nobody publishes, it is off for a
//! second, then for two, and so on. The backlog of that time is reduced when throttling helps again.
//!
//! # Example
//! Ten publishers fill a queue with 300,000 messages a second, and its consumers take 250,000, since the twenty
//! connections have equal turns and a delivery costs more than a publish. 160 ms later 8,192 messages are ready,
//! and each publisher is held at the end of its turn of 900. Consumers have the processor for themselves. When 4,096
//! are ready the first publisher continues, and for each 900 that are taken from then on one more, with a turn's
//! messages: as many as the consumers take.
//!
//! No sockets, no clock and no lock: the queue calls it under its own lock, with its backlog and the time.

use std::collections::VecDeque;
use std::sync::Arc;

use store::Waiter;

use crate::time::Timestamp;

/// The state of a queue whose backlog is or was recently above [`MAX_BACKLOG_GROWTH`]; empty for all others.
#[derive(Default)]
pub(super) struct PublisherCredit(Option<Box<Throttle>>);

/// The size of a backlog: the larger of its messages and the KiB of their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Load(u64);

impl Load {
    pub(crate) fn of(messages: usize, bytes: u64) -> Self {
        Self((messages as u64).max(bytes >> 10))
    }
}

/// How much a publisher has added to queues whose credit is used up, since it was last held. It is small, since each
/// publishing channel has one; its maximum is far above [`MAX_BURST`].
#[derive(Debug, Default)]
pub(crate) struct PublisherLoad(u16);

impl PublisherLoad {
    /// Adds a batch; returns the sum if the publisher has to be held for it.
    pub(crate) fn add(&mut self, batch: Load) -> Option<Load> {
        self.0 = self.0.saturating_add(u16::try_from(batch.0).unwrap_or(u16::MAX));
        let sum = u64::from(self.0);
        (sum >= MAX_BURST).then_some(Load(sum))
    }
}

/// From the first time that the backlog exceeds [`MAX_BACKLOG_GROWTH`] until it is short again.
struct Throttle {
    /// The load above which the backlog may grow by [`MAX_BACKLOG_GROWTH`]: the lowest since the start, or since throttling
    /// did not help. It decreases to `floor` while throttling helps.
    lowest: u64,
    /// The lowest load since the start.
    floor: u64,
    /// Set with the first held publisher, cleared when none is held.
    pause: Option<Pause>,
    /// No publisher is held before this time.
    disabled_until: Timestamp,
    /// Milliseconds for which throttling was last off; 0 once it has helped.
    backoff: u64,
    /// Start time of the count in `taken`.
    since: Timestamp,
    /// Messages that consumers have taken since then.
    taken: u64,
    /// Messages that they took in the last complete [`RATE_WINDOW`].
    pace: u64,
    /// The held publishers, in order.
    waiting: VecDeque<PausedPublisher>,
}

struct PausedPublisher {
    since: Timestamp,
    /// Load that it has added since it was last held, and will probably add when it continues.
    added: u64,
    waiter: Arc<dyn Waiter>,
}

/// A time during which at least one publisher is held.
struct Pause {
    /// When it started, or when throttling was last found to help.
    since: Timestamp,
    /// Messages that consumers have taken since then.
    taken: u64,
    /// The number of taken messages that shows that throttling helps.
    helps_from: u64,
    /// Taken messages for which no publisher has continued yet, counted while the backlog is short enough.
    unpaid: u64,
    /// Set while nothing is ready: more publishers continue shortly afterwards.
    empty_since: Option<Timestamp>,
}

/// Publishers to be woken once the queue's lock is released.
#[must_use]
#[derive(Default)]
pub(super) struct Released(Vec<Arc<dyn Waiter>>);

impl Released {
    pub(super) fn wake(self) {
        self.0.iter().for_each(|waiter| waiter.wake());
    }
}

impl PublisherCredit {
    /// Whether there is nothing to release.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// Called after messages were appended and consumers served: whether their publisher has used up its credit.
    /// `sample_lag` returns whether consumers wait for turns of this server.
    #[inline]
    pub(super) fn charge_backlog(
        &mut self,
        load: Load,
        now: Timestamp,
        sample_lag: impl FnOnce() -> bool,
    ) -> bool {
        if self.0.is_none() && load.0 <= MAX_BACKLOG_GROWTH {
            return false;
        }
        self.look(load, now, sample_lag)
    }

    #[cold]
    fn look(&mut self, load: Load, now: Timestamp, sample_lag: impl FnOnce() -> bool) -> bool {
        // An existing backlog does not count against the publishers.
        let lowest = if load.0 < 2 * MAX_BACKLOG_GROWTH { 0 } else { load.0 };
        let episode = self.0.get_or_insert_with(|| Box::new(Throttle::new(lowest)));
        if now < episode.disabled_until {
            return false;
        }
        episode.sink(load);
        // After each turn if others are held: otherwise it would get turn after turn while they wait.
        let is_due = !episode.waiting.is_empty() && load.0 > 0;
        (is_due || load.0 > episode.lowest.saturating_add(episode.high())) && sample_lag()
    }

    /// Holds a publisher, which has `added` to the backlog, unless the backlog has shrunk meanwhile; returns whether it is
    /// held. [`Self::released`] or [`Self::expire`] wakes it.
    pub(super) fn hold(
        &mut self,
        (load, messages): (Load, usize),
        added: Load,
        now: Timestamp,
        waiter: &Arc<dyn Waiter>,
    ) -> bool {
        let Some(episode) = &mut self.0 else { return false };
        let is_short = load.0 <= episode.lowest.saturating_add(episode.high() / 2);
        if now < episode.disabled_until || load.0 == 0 || (is_short && episode.waiting.is_empty()) {
            return false;
        }
        let messages = |part: u64| (messages as u64 * part / load.0).max(1);
        let helps_from = messages(MIN_CONSUMED);
        episode.pause.get_or_insert(Pause { since: now, taken: 0, helps_from, unpaid: 0, empty_since: None });
        let paused = PausedPublisher { since: now, added: messages(added.0), waiter: Arc::clone(waiter) };
        episode.waiting.push_back(paused);
        true
    }

    /// Called before the queue's lock is released: `taken` is the number of messages that consumers have taken since
    /// the last call. Returns the publishers that may continue.
    pub(super) fn released(&mut self, load: Load, taken: usize, now: Timestamp) -> Released {
        let Some(episode) = &mut self.0 else { return Released::default() };
        if now >= episode.disabled_until {
            episode.sink(load);
        }
        episode.count(taken as u64, now);
        let low = episode.lowest.saturating_add(episode.high() / 2);
        let Some(pause) = &mut episode.pause else {
            if load.0 <= MAX_BACKLOG_GROWTH / 2 && now >= episode.disabled_until.after(episode.backoff) {
                self.0 = None;
            }
            return Released::default();
        };
        pause.taken += taken as u64;
        if pause.taken >= pause.helps_from {
            episode.backoff = 0;
        }
        pause.empty_since = (load.0 == 0).then_some(now);
        if load.0 > low {
            // The first one continues as soon as the backlog is short enough.
            pause.unpaid = episode.waiting.front().map_or(0, |first| first.added);
            return Released::default();
        }
        // Messages taken above that level have freed no credit.
        pause.unpaid += (taken as u64).min(low - load.0);
        let paid = |paused: &&PausedPublisher| {
            let rest = pause.unpaid.checked_sub(paused.added);
            pause.unpaid = rest.unwrap_or(pause.unpaid);
            rest.is_some()
        };
        let paid = episode.waiting.iter().take_while(paid).count();
        episode.release(if load.0 == 0 { paid.max(RELEASED_WHEN_EMPTY) } else { paid })
    }

    /// The time at which to call [`Self::expire`].
    pub(super) fn due(&self) -> Option<Timestamp> {
        let episode = self.0.as_ref()?;
        let longest = episode.waiting.front()?.since.after(MAX_PAUSE);
        let empty_since = episode.pause.as_ref().and_then(|pause| pause.empty_since);
        Some(empty_since.map_or(longest, |since| longest.min(since.after(1))))
    }

    /// Releases publishers that have been held for the maximum time. If consumers have taken little meanwhile, they are the
    /// bottleneck, and throttling is off for a time.
    pub(super) fn expire(&mut self, now: Timestamp) -> Released {
        let Some(episode) = &mut self.0 else { return Released::default() };
        let Some(pause) = &mut episode.pause else { return Released::default() };
        if now >= pause.since.after(MAX_PAUSE) {
            if pause.taken < pause.helps_from {
                return episode.give_up(now);
            }
            episode.backoff = 0;
            (pause.since, pause.taken) = (now, 0);
        }
        let due = episode.waiting.iter().take_while(|paused| paused.since.after(MAX_PAUSE) <= now).count();
        episode.release(due)
    }

    /// Releases all publishers: the queue has no consumers, or was deleted.
    pub(super) fn release_all(&mut self) -> Released {
        self.0.take().map(|mut episode| episode.release(usize::MAX)).unwrap_or_default()
    }
}

impl Throttle {
    fn new(lowest: u64) -> Self {
        Self {
            lowest,
            floor: lowest,
            pause: None,
            disabled_until: Timestamp(0),
            backoff: 0,
            since: Timestamp(0),
            taken: 0,
            pace: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The growth at which publishers are held. The first one continues at half of it, which keeps consumers busy until it
    /// has been woken.
    fn high(&self) -> u64 {
        self.pace.clamp(MAX_BACKLOG_GROWTH, HIGHEST)
    }

    /// The backlog may grow from this load on.
    fn sink(&mut self, load: Load) {
        self.lowest = self.lowest.min(load.0);
        self.floor = self.floor.min(load.0);
    }

    /// Counts messages that consumers have taken.
    fn count(&mut self, taken: u64, now: Timestamp) {
        self.taken += taken;
        let elapsed = now.0.saturating_sub(self.since.0);
        if elapsed >= RATE_WINDOW {
            self.pace = self.taken * RATE_WINDOW / elapsed;
            (self.since, self.taken) = (now, 0);
            if self.backoff == 0 {
                self.lowest -= (self.lowest - self.floor).div_ceil(DRAIN_SHARE);
            }
        }
    }

    /// Releases the first publishers, at most `count`.
    fn release(&mut self, count: usize) -> Released {
        let next = self.waiting.len().min(count);
        let released = self.waiting.drain(..next).map(|paused| paused.waiter).collect();
        if self.waiting.is_empty() {
            self.pause = None;
        }
        Released(released)
    }

    /// Releases all publishers, and turns throttling off for a time, since it does not help.
    fn give_up(&mut self, now: Timestamp) -> Released {
        self.backoff = (2 * self.backoff).clamp(MIN_BACKOFF, MAX_BACKOFF);
        self.disabled_until = now.after(self.backoff);
        // The backlog of that time counts as pre-existing until throttling helps.
        self.lowest = u64::MAX - MAX_BACKLOG_GROWTH;
        self.release(usize::MAX)
    }
}

/// Load that a publisher may add between two holds beyond its credit: about as much as fits into its turn. In tests of all
/// interleavings, one message.
const MAX_BURST: u64 = if cfg!(feature = "loom") { 1 } else { 512 };

/// The smallest growth of the load at which publishers are held: more than a publisher's turn. In tests of all
/// interleavings, two messages.
const MAX_BACKLOG_GROWTH: u64 = if cfg!(feature = "loom") { 2 } else { 8 * 1024 };

/// The same for consumers that take very many.
const HIGHEST: u64 = 4 * MAX_BACKLOG_GROWTH;

/// Milliseconds of consumption by which a backlog may grow: long compared to the time to wake a publisher, and short for a
/// message that waits.
const RATE_WINDOW: u64 = 32;

/// Publishers that continue at once, and in each millisecond, while nothing is ready.
const RELEASED_WHEN_EMPTY: usize = 4;

/// The share of the backlog from the time without throttling that is removed in each [`RATE_WINDOW`]: two thirds of it in a
/// second.
const DRAIN_SHARE: u64 = 32;

/// Longest time in milliseconds for which a publisher is held.
const MAX_PAUSE: u64 = 50;

/// The load that consumers have to take in [`MAX_PAUSE`] to show that throttling helps: 512 messages, 10,000 a second.
const MIN_CONSUMED: u64 = 512;

/// Shortest and longest time in milliseconds for which throttling is off after it did not help.
const MIN_BACKOFF: u64 = 1_000;
const MAX_BACKOFF: u64 = 32_000;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
