//! A disk with little space: publishers are blocked when it is full and unblocked once all messages are consumed, any
//! number of times, and settled messages do not reappear. The log never goes below the limit of free space by more than
//! the messages already accepted.
//!
//! `LEVERET_SPACE_SEEDS=10000` runs more seeds.

use std::sync::Arc;

use store::disk::Disk;
use store::disk::simulated::{SimDisk, SimRandom};
use store::journal::{CommitOutcome, Entry, JournalSettings, QueueId, Range};
use store::{Recovered, Retirement, Rounds, Store, StoreSettings, StoredQueue};

#[test]
fn a_full_disk_works_again_after_everything_is_consumed() {
    let seeds = std::env::var("LEVERET_SPACE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let mut filled = 0;
    for seed in 0..seeds {
        let mut run = Run::new(seed);
        for cycle in 0..4 {
            filled += run.fill(cycle);
            run.consume(cycle);
            if run.random.chance(300) {
                run.start_again();
            }
        }
    }
    assert!(filled > 20 * seeds, "only {filled} messages");
}

#[test]
fn a_disk_filled_by_another_program_does_not_make_the_store_hang() {
    for seed in 0..10 {
        let mut run = Run::with(seed, DEFINITIONS + 8 * SEGMENT, SEGMENT);
        run.work();
        run.fill(0);
        // Another program uses up all remaining space.
        let (capacity, used) = (run.capacity, run.disk.used());
        run.disk.set_capacity(used);
        while run.live > 0 {
            run.take(50, true);
            run.work();
            assert_eq!(run.store.durable(), run.store.end(), "seed {seed}: acknowledgements are on disk");
        }
        run.disk.set_capacity(capacity);
        run.work();
        assert!(!run.is_blocked(true), "seed {seed}");
        assert!(run.fill(1) > 0, "seed {seed}");
    }
}

#[test]
fn messages_in_many_queues_are_not_copied_to_each_of_them_below_the_limit() {
    for capacity in [24, 32, 48] {
        let mut run = Run::with_queues(40, 3, DEFINITIONS + capacity * SEGMENT, 4 * SEGMENT);
        for cycle in 0..3 {
            let mut published = 0;
            while !run.is_blocked(false) {
                run.publish_to_all(&[cycle; 20_000]);
                published += 1;
                assert!(published < 10_000, "publishers are never blocked");
                run.rounds.step();
                run.rounds.retire();
                assert!(run.free() + SEGMENT / 2 > run.limit, "{published}: {}", run.describe());
            }
            assert!(published > 50, "{published}");
            // The brake does not delay publishers that are not blocked, and consumers can free all the space.
            run.work();
            assert!(run.free() + SEGMENT / 2 > run.limit, "{}", run.describe());
            run.settle_all();
            assert_eq!(run.store.durable(), run.store.end());
            assert!(!run.is_blocked(true), "{}", run.describe());
        }
    }
}

#[test]
fn publishers_do_not_wait_for_a_retirement_that_does_not_fit() {
    let mut run = Run::with_queues(40, 3, DEFINITIONS + 32 * SEGMENT, 4 * SEGMENT);
    let space = |run: &Run| run.free() - run.limit;
    while space(&run) > 6 * SEGMENT {
        run.publish_to_all(&[1; 20_000]);
        run.rounds.step();
        run.rounds.retire();
    }
    assert!(matches!(run.rounds.retire(), Retirement::Idle), "{}", run.describe());
    assert!(run.store.journal().segments().len() > 8 && run.store.has_capacity(), "{}", run.describe());
}

/// All queues need the first message of the segment, and none needs its other messages.
#[test]
fn a_segment_with_a_few_messages_of_many_queues_is_retired_if_their_copies_fit() {
    for (body, is_retired) in [(20_000, true), (100_000, false)] {
        let mut run = Run::with_queues(40, 5, DEFINITIONS + 32 * SEGMENT, 4 * SEGMENT);
        run.publish_to_all(&vec![1; body]);
        let first = run.store.journal().segments()[0].first;
        while run.free() - run.limit > 10 * SEGMENT {
            run.publish_to_all(&[2; 2_000]);
            for queue in &mut run.queues {
                queue.stored.settle(&[Range::one(queue.next)]);
            }
            run.rounds.step();
        }
        run.work();
        assert_eq!(run.store.journal().segments()[0].first > first, is_retired, "{body}: {}", run.describe());
    }
}

#[test]
fn spare_segments_are_freed_and_none_is_prepared_below_the_limit_of_free_space() {
    let run = Run::with(1, 40 * SEGMENT, 4 * SEGMENT);
    assert!(run.store.journal().prepare_segment().expect("prepared"));
    let prepared = run.disk.used();
    assert!(prepared >= SEGMENT);
    run.disk.set_capacity(prepared + 5 * SEGMENT);
    let mut run = run;
    run.work();
    assert!(run.disk.used() + SEGMENT / 2 <= prepared, "not freed: {}", run.describe());
    assert!(!run.store.journal().prepare_segment().expect("no error"), "prepared again");
}

struct Run {
    random: SimRandom,
    disk: SimDisk,
    capacity: u64,
    limit: u64,
    store: Arc<Store>,
    rounds: Rounds,
    queues: Vec<Queue>,
    live: usize,
}

struct Queue {
    stored: StoredQueue,
    next: u64,
    live: Vec<u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = SimRandom::new(seed);
        let capacity = DEFINITIONS + SEGMENT * (2 + random.below(10)) + random.below(SEGMENT);
        let limit = SEGMENT / 2 + random.below(SEGMENT);
        Self::with(seed, capacity, limit)
    }

    fn with(seed: u64, capacity: u64, limit: u64) -> Self {
        Self::with_queues(QUEUES, seed, capacity, limit)
    }

    fn with_queues(queues: u64, seed: u64, capacity: u64, limit: u64) -> Self {
        let disk = SimDisk::new(seed, capacity);
        let (store, rounds, _) = open(&disk, limit);
        let queue = |id| Queue { stored: store.queue(QueueId(id)), next: 0, live: Vec::new() };
        let queues = (1..=queues).map(queue).collect();
        Self { random: SimRandom::new(!seed), disk, capacity, limit, store, rounds, queues, live: 0 }
    }

    fn free(&self) -> u64 {
        self.disk.free_space().expect("free space")
    }

    fn describe(&self) -> String {
        let len =
            |file: &String| (file.clone(), self.disk.open(file).expect("a file").len().expect("a length"));
        let journal = self.disk.files().into_iter().filter(|file| !file.starts_with("queues"));
        let files: Vec<_> = journal.map(|file| len(&file)).collect();
        let (free, limit, used) = (self.free(), self.limit, self.disk.used());
        let segments = self.store.journal().segments();
        format!("{free} free, limit {limit}, {used} used of {}, {files:?}, {segments:?}", self.capacity)
    }

    /// Like the alarm: once blocked, a little more than the limit is needed.
    fn is_blocked(&self, was: bool) -> bool {
        let limit = if was { self.limit + self.limit / 20 } else { self.limit };
        self.free() < limit || self.store.needs_space()
    }

    /// Publishes until publishers are blocked, and returns the number of messages published.
    fn fill(&mut self, cycle: u64) -> u64 {
        let mut published = 0;
        while !self.is_blocked(false) {
            assert!(published < 100_000, "publishers are never blocked");
            let len =
                if self.random.chance(50) { self.random.below(SEGMENT / 4) } else { self.random.below(600) };
            let at = self.random.below(QUEUES) as usize;
            let appended = self.store.append(&[&vec![cycle as u8; len as usize]]);
            let queue = &mut self.queues[at];
            queue.next += 1;
            queue.stored.enqueue(&[Entry {
                position: queue.next,
                message: appended.message,
                expires: 0,
                last: true,
            }]);
            queue.live.push(queue.next);
            (self.live, published) = (self.live + 1, published + 1);
            if appended.full || self.random.chance(400) {
                let before = self.free();
                let step = self.rounds.step();
                assert!(matches!(step, CommitOutcome::Committed), "{step:?} with {before} free");
            }
            if self.random.chance(200) {
                self.rounds.retire();
            }
            if self.random.chance(100) {
                drop(self.store.journal().prepare_segment());
            }
            if self.random.chance(300) {
                self.take(1, false);
            }
        }
        self.work();
        assert!(self.free() + SEGMENT / 2 > self.limit, "{}", self.describe());
        published
    }

    /// Publishes a message that all queues share.
    fn publish_to_all(&mut self, body: &[u8]) {
        let message = self.store.append(&[body]).message;
        let last = self.queues.len();
        for (at, queue) in (1..).zip(&mut self.queues) {
            queue.next += 1;
            let entry = Entry { position: queue.next, message, expires: 0, last: at == last };
            queue.stored.enqueue(&[entry]);
            queue.live.push(queue.next);
        }
        self.live += last;
    }

    /// Consumes everything, each queue with one acknowledgement.
    fn settle_all(&mut self) {
        for queue in &mut self.queues {
            queue.stored.settle(&[Range { first: 1, last: queue.next }]);
            queue.live.clear();
        }
        self.live = 0;
        self.work();
    }

    /// Consumes everything, after which publishers must no longer be blocked.
    fn consume(&mut self, cycle: u64) {
        self.take(self.live, false);
        self.work();
        assert_eq!(self.store.durable(), self.store.end());
        let free = self.free();
        assert!(!self.is_blocked(true), "cycle {cycle}: {free} free, limit {}", self.limit);
    }

    /// Settles `count` messages, the oldest of a queue or any.
    fn take(&mut self, count: usize, in_order: bool) {
        for _ in 0..count.min(self.live) {
            let with_some: Vec<_> =
                (0..self.queues.len()).filter(|at| !self.queues[*at].live.is_empty()).collect();
            let queue = &mut self.queues[with_some[self.random.below(with_some.len() as u64) as usize]];
            let chosen = if in_order { 0 } else { self.random.below(queue.live.len() as u64) as usize };
            let position = queue.live.remove(chosen);
            queue.stored.settle(&[Range::one(position)]);
            self.live -= 1;
        }
    }

    /// Does the work that the store's threads do when they have time.
    fn work(&mut self) {
        for _ in 0..200 {
            let stepped = matches!(self.rounds.step(), CommitOutcome::Committed | CommitOutcome::Failed(_));
            let retired = matches!(self.rounds.retire(), Retirement::Done);
            if !stepped && !retired && self.store.durable() == self.store.end() {
                break;
            }
        }
    }

    fn start_again(&mut self) {
        self.disk = self.disk.kill();
        let (store, rounds, recovered) = open(&self.disk, self.limit);
        drop(recovered);
        (self.store, self.rounds) = (store, rounds);
        for (id, queue) in (1..).zip(&mut self.queues) {
            queue.stored = self.store.queue(QueueId(id));
            let back = queue.stored.read(0, usize::MAX, usize::MAX).expect("readable");
            assert!(back.iter().map(|message| message.position).eq(queue.live.iter().copied()));
        }
    }
}

fn open(disk: &SimDisk, limit: u64) -> (Arc<Store>, Rounds, Recovered) {
    let settings = StoreSettings {
        queue_segment_size: SEGMENT / 8,
        ..JournalSettings {
            segment_size: SEGMENT,
            pending_limit: SEGMENT as usize,
            ..JournalSettings::default()
        }
        .into()
    };
    let opened = Store::open(Arc::new(disk.clone()), settings).expect("a store");
    opened.0.set_disk_free_limit(limit);
    opened
}

const SEGMENT: u64 = 256 << 10;
const QUEUES: u64 = 3;
/// Bytes of disk that the file of definitions takes from the beginning.
const DEFINITIONS: u64 = 2 << 20;
