//! Samples the consumers of a queue: whether they, on average, wait for turns of this server.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Consumers;
use crate::SessionId;
use crate::time::Timestamp;

/// Samples of the consumers of a queue that was long enough at some time to throttle its publishers.
pub(super) struct ConsumerSampling {
    /// The number of consumers of each session.
    sessions: HashMap<SessionId, usize>,
    /// The position, in the order of [`Consumers::listed`], at which the next sample starts.
    next: usize,
    /// When the last sample was taken.
    at: Timestamp,
    /// The share of consumers that lagged, in units of 1/[`ALL`], averaged over the last samples.
    share: u32,
}

impl Consumers {
    /// Whether consumers lag: on average a quarter of those sampled. A consumer lags if its connection [has been
    /// busy](crate::Consumer::busy_since_rest) without becoming idle since an earlier sample. One that becomes idle again
    /// and again waits for its client, however much it consumes.
    ///
    /// All consumers with capacity have been served, or the backlog would be short. So lower priorities count as much as
    /// higher ones.
    pub(in crate::queue) fn sample_lag(&mut self, now: Timestamp) -> bool {
        let sampling = self.sampling();
        if now < sampling.at.after(SAMPLING_INTERVAL) {
            return sampling.share >= BEHIND;
        }
        let share = if now < sampling.at.after(FORGOTTEN_AFTER) { sampling.share } else { 0 };
        let first = sampling.next;
        let (mut found, mut behind) = (0, 0);
        if let Some(single) = &self.single {
            let active = single.active;
            active.into_iter().for_each(|slot| (found, behind) = (1, self.sample_consumer(slot)));
        } else {
            found = self.listed.len().min(SAMPLE_SIZE);
            for at in first..first + found {
                behind += self.sample_consumer(self.listed[at % self.listed.len()]);
            }
        }
        let sample = ALL * behind / (found as u32).max(1);
        let next = (first + found) % self.listed.len().max(1);
        let sampling = self.sampling();
        (sampling.next, sampling.at) = (next, now);
        sampling.share = ((HISTORY - 1) * share + sample) / HISTORY;
        sampling.share >= BEHIND
    }

    /// Samples one consumer; returns 1 if it lags.
    fn sample_consumer(&mut self, slot: u32) -> u32 {
        let entry = &mut self.entries[slot as usize];
        let busy = entry.consumer.busy_since_rest();
        let before = std::mem::replace(&mut entry.seen_busy, busy);
        (busy.is_some() && busy == before).into()
    }

    /// Whether this session has a consumer.
    pub(in crate::queue) fn are_of(&mut self, session: SessionId) -> bool {
        self.sampling().sessions.contains_key(&session)
    }

    /// The first call counts the sessions of all consumers.
    fn sampling(&mut self) -> &mut ConsumerSampling {
        let entries = &self.entries;
        self.sampling.get_or_insert_with(|| {
            let mut sampling =
                ConsumerSampling { sessions: HashMap::new(), next: 0, at: Timestamp(0), share: 0 };
            entries.iter().for_each(|(_, entry)| sampling.joined(entry.session));
            Box::new(sampling)
        })
    }
}

impl ConsumerSampling {
    pub(super) fn joined(&mut self, session: SessionId) {
        *self.sessions.entry(session).or_default() += 1;
    }

    pub(super) fn left(&mut self, session: SessionId) {
        if let Entry::Occupied(mut count) = self.sessions.entry(session) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Milliseconds between two samples: long for a connection that keeps up, which becomes idle in between, and short for one
/// that waits behind the turns of others.
const SAMPLING_INTERVAL: u64 = 2;

/// Consumers in one sample, under the queue's lock.
const SAMPLE_SIZE: usize = 16;

/// The share that represents all consumers.
const ALL: u32 = 1024;

/// The share that counts as lagging. If publishers take their turns, most consumers lag, except those that wait for their
/// clients.
const BEHIND: u32 = ALL / 4;

/// The number of samples that the share averages; in tests of all interleavings, only the last one.
const HISTORY: u32 = if cfg!(feature = "loom") { 1 } else { 8 };

/// Milliseconds after which samples expire.
const FORGOTTEN_AFTER: u64 = 100;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::*;
    use super::*;
    use crate::queue::Offer;

    /// A connection: 0 while it is idle, otherwise one more than the number of times that it was idle.
    #[derive(Default)]
    struct Connection(AtomicU32);

    impl Consumer for Connection {
        fn accept(&self, _: &mut Offer<'_>) -> ConsumerCapacity {
            ConsumerCapacity::Full
        }
        fn cancelled(&self) {}
        fn busy_since_rest(&self) -> Option<u32> {
            self.0.load(Ordering::Relaxed).checked_sub(1)
        }
    }

    struct World {
        consumers: Consumers,
        all: Vec<(ConsumerId, Arc<Connection>)>,
        now: Timestamp,
    }

    impl World {
        fn new(single: bool, count: u64) -> Self {
            let mut world =
                Self { consumers: Consumers::new(single), all: Vec::new(), now: Timestamp(1_000) };
            (0..count).for_each(|session| world.join(session));
            world
        }

        fn join(&mut self, session: u64) {
            let connection = Arc::<Connection>::default();
            let entry = ConsumerEntry::new(connection.clone(), SessionId(session), "", false, false, 0);
            self.all.push((self.consumers.insert(entry), connection));
        }

        fn set(&self, at: usize, busy: u32) {
            self.all[at].1.0.store(busy, Ordering::Relaxed);
        }

        /// The answers of that many samples.
        fn sample(&mut self, times: usize) -> Vec<bool> {
            let answer = |_| {
                self.now = self.now.after(SAMPLING_INTERVAL);
                self.consumers.sample_lag(self.now)
            };
            (0..times).map(answer).collect()
        }
    }

    #[test]
    fn a_consumer_that_waits_for_turns_is_behind_and_one_that_keeps_resting_is_not() {
        for count in [1, 4, 40] {
            let mut world = World::new(false, count);
            // Busy at each sample, but idle in between.
            for rests in 1..100 {
                (0..world.all.len()).for_each(|at| world.set(at, rests));
                assert_eq!(world.sample(1), [false], "{count} consumers");
            }
            // From now on it is never idle.
            let answers = world.sample(30);
            let first = answers.iter().position(|answer| *answer).expect("behind at last");
            assert!((2..=12).contains(&first) && answers[first..].iter().all(|answer| *answer));
            // One sample is taken per interval, and old ones expire.
            world.set(0, 0);
            assert!(world.consumers.sample_lag(world.now));
            world.now = world.now.after(FORGOTTEN_AFTER);
            assert_eq!(world.sample(1), [false]);
        }
    }

    #[test]
    fn a_consumer_that_is_held_up_now_and_then_is_not_behind() {
        let mut world = World::new(false, 1);
        for moment in 0..1_000 {
            // One time in eight, its work takes longer than the sampling interval.
            world.set(0, 1 + moment - u32::from(moment % 8 == 0));
            assert_eq!(world.sample(1), [false], "{moment}");
        }
    }

    #[test]
    fn a_quarter_of_the_consumers_is_enough_wherever_they_are() {
        let mut world = World::new(false, 1_000);
        // Most consumers have left, and the remaining ones are far apart.
        let mut left = Vec::new();
        for (at, (id, connection)) in std::mem::take(&mut world.all).into_iter().enumerate() {
            if at % 100 == 99 {
                left.push((id, connection));
            } else {
                assert!(world.consumers.remove(id).is_some());
            }
        }
        world.all = left;
        (0..2).for_each(|at| world.set(at, 1));
        assert!(world.sample(30).iter().all(|answer| !answer));
        (0..4).for_each(|at| world.set(at, 1));
        assert!(world.sample(30).last().unwrap());
    }

    #[test]
    fn only_the_single_active_consumer_counts() {
        let mut world = World::new(true, 10);
        (1..10).for_each(|at| world.set(at, 1));
        assert!(world.sample(30).iter().all(|answer| !answer));
        world.set(0, 1);
        assert!(world.sample(30).last().unwrap());
        let first = world.all[0].0;
        world.consumers.remove(first);
        (1..10).for_each(|at| world.set(at, 0));
        assert!(!world.sample(30).last().unwrap(), "its successor rests");
    }

    #[test]
    fn sessions_are_known_while_they_have_a_consumer() {
        let mut world = World::new(false, 2);
        assert!(world.consumers.are_of(SessionId(1)) && !world.consumers.are_of(SessionId(2)));
        world.join(2);
        world.join(2);
        for gone in [3, 2] {
            assert!(world.consumers.are_of(SessionId(2)));
            let (id, _) = world.all[gone];
            world.consumers.remove(id);
        }
        assert!(!world.consumers.are_of(SessionId(2)));
    }
}
