//! A queue's credit in simulated time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

/// A publisher's connection.
#[derive(Default)]
struct Publisher {
    /// Set while it is held; cleared when it is woken.
    on_hold: AtomicBool,
    /// Messages published.
    published: AtomicU64,
}

impl Waiter for Publisher {
    fn wake(&self) {
        assert!(self.on_hold.swap(false, Ordering::Relaxed), "woken once");
    }
}

/// A queue with publishers and consumers that take turns, without sockets: the turns are its clock.
struct World {
    credit: PublisherCredit,
    ready: usize,
    publishers: Vec<Arc<Publisher>>,
    /// When each publisher was held last.
    paused_since: Vec<u64>,
    overdrafts: Vec<PublisherLoad>,
    /// Microseconds.
    now: u64,
    consumed: u64,
    most_ready: usize,
    /// The longest time that any publisher was held, in microseconds.
    longest_pause: u64,
    holds: u64,
}

impl World {
    fn new(publishers: usize) -> Self {
        Self {
            credit: PublisherCredit::default(),
            ready: 0,
            publishers: (0..publishers).map(|_| Arc::default()).collect(),
            paused_since: vec![0; publishers],
            overdrafts: (0..publishers).map(|_| PublisherLoad::default()).collect(),
            now: 1_000_000,
            consumed: 0,
            most_ready: 0,
            longest_pause: 0,
            holds: 0,
        }
    }

    fn millis(&self) -> Timestamp {
        Timestamp(self.now / 1000)
    }

    fn load(&self) -> Load {
        Load::of(self.ready, 0)
    }

    /// A publisher has a turn, unless it is held; returns whether it had one.
    fn publish(&mut self, at: usize, count: usize, sample_lag: bool) -> bool {
        let publisher = Arc::clone(&self.publishers[at]);
        if publisher.on_hold.load(Ordering::Relaxed) {
            return false;
        }
        self.ready += count;
        self.most_ready = self.most_ready.max(self.ready);
        publisher.published.fetch_add(count as u64, Ordering::Relaxed);
        let (load, now) = (self.load(), self.millis());
        let charge_backlog = self.credit.charge_backlog(load, now, || sample_lag);
        self.credit.released(load, 0, now).wake();
        let batch = Load::of(count, 0);
        let Some(added) = charge_backlog.then(|| self.overdrafts[at].add(batch)).flatten() else {
            return true;
        };
        self.overdrafts[at] = PublisherLoad::default();
        let waiter: Arc<dyn Waiter> = Arc::<Publisher>::clone(&publisher);
        publisher.on_hold.store(true, Ordering::Relaxed);
        if self.credit.hold((load, self.ready), added, now, &waiter) {
            self.paused_since[at] = self.now;
            self.holds += 1;
        } else {
            publisher.on_hold.store(false, Ordering::Relaxed);
        }
        true
    }

    /// A consumer takes messages, up to `most`.
    fn consume(&mut self, most: usize) {
        let taken = self.ready.min(most);
        self.ready -= taken;
        self.consumed += taken as u64;
        self.credit.released(self.load(), taken, self.millis()).wake();
    }

    /// Time passes, and a timer that is due fires.
    fn pass(&mut self, micros: u64) {
        self.now += micros;
        if self.credit.due().is_some_and(|due| due <= self.millis()) {
            self.credit.expire(self.millis()).wake();
            self.credit.released(self.load(), 0, self.millis()).wake();
        }
    }

    fn published(&self) -> u64 {
        self.publishers.iter().map(|publisher| publisher.published.load(Ordering::Relaxed)).sum()
    }

    fn on_hold(&self) -> usize {
        self.publishers.iter().filter(|publisher| publisher.on_hold.load(Ordering::Relaxed)).count()
    }
}

/// The growth at which the first publisher continues where consumers take few.
const LOW_LOAD: u64 = MAX_BACKLOG_GROWTH / 2;

/// Messages of a publisher's turn and of a consumer's, which cost as much.
const PUBLISHES: usize = 900;
const DELIVERIES: usize = 600;
/// Microseconds of a turn on two cores.
const TURN_TIME: u64 = 250;

/// A connection that is ready to run.
enum Ready {
    Publisher(usize),
    Consumer,
}

/// All connections take turns for some seconds, in the order in which they become ready.
fn saturate(publishers: usize, consumers: usize, seconds: u64, sample_lag: bool) -> World {
    let mut world = World::new(publishers);
    let end = world.now + seconds * 1_000_000;
    let mut ready: VecDeque<Ready> = (0..publishers).map(Ready::Publisher).collect();
    ready.extend((0..consumers).map(|_| Ready::Consumer));
    let mut on_hold = vec![false; publishers];
    while world.now < end {
        for (at, on_hold) in on_hold.iter_mut().enumerate() {
            if *on_hold && !world.publishers[at].on_hold.load(Ordering::Relaxed) {
                *on_hold = false;
                world.longest_pause = world.longest_pause.max(world.now - world.paused_since[at]);
                ready.push_back(Ready::Publisher(at));
            }
        }
        match ready.pop_front() {
            Some(Ready::Publisher(at)) => {
                world.publish(at, PUBLISHES, sample_lag);
                world.pass(TURN_TIME);
                on_hold[at] = world.publishers[at].on_hold.load(Ordering::Relaxed);
                if !on_hold[at] {
                    ready.push_back(Ready::Publisher(at));
                }
            }
            Some(Ready::Consumer) => {
                let is_idle = world.ready == 0;
                world.consume(DELIVERIES);
                // A consumer without deliveries rests until there are some, which takes little of others' time.
                world.pass(if is_idle { 5 } else { TURN_TIME });
                ready.push_back(Ready::Consumer);
            }
            None => world.pass(TURN_TIME),
        }
    }
    world
}

#[test]
fn holding_publishers_lets_consumers_keep_up() {
    for (publishers, consumers) in [(1, 1), (2, 2), (10, 10), (50, 10)] {
        let [free, world] = [false, true].map(|sample_lag| saturate(publishers, consumers, 5, sample_lag));
        // Without throttling, consumers lag; otherwise the comparison would be meaningless.
        assert!(free.consumed * 10 < free.published() * 7, "{publishers} publishers: {}", free.consumed);
        assert!(world.consumed * 100 >= world.published() * 97, "{publishers} publishers");
        assert!(world.most_ready < 100_000, "{publishers} publishers: {} ready", world.most_ready);
        assert!(world.consumed >= free.consumed, "{publishers} publishers: {}", world.consumed);
    }
}

#[test]
fn publishers_have_equal_shares_and_none_is_held_for_long() {
    for publishers in [20, 50] {
        let world = saturate(publishers, 10, 5, true);
        let shares = world.publishers.iter().map(|publisher| publisher.published.load(Ordering::Relaxed));
        let (least, most) = (shares.clone().min().unwrap(), shares.max().unwrap());
        assert!(most - least <= most / 4, "{publishers} publishers: {least} to {most}");
        let bound = MAX_PAUSE * 1000 + 2 * TURN_TIME;
        assert!(world.holds > 10 && world.longest_pause <= bound, "{} µs", world.longest_pause);
    }
}

#[test]
fn publishers_are_not_held_for_consumers_that_wait_for_their_clients() {
    let world = saturate(10, 1, 2, false);
    assert_eq!((world.holds, world.on_hold()), (0, 0));
    assert!(world.most_ready > 100_000);
}

#[test]
fn publishers_are_not_held_if_that_does_not_help() {
    let mut world = World::new(10);
    let (start, mut turns, mut paused) = (world.now, 0, 0);
    while world.now < start + 60_000_000 {
        for at in 0..10 {
            let had_a_turn = world.publish(at, PUBLISHES, true);
            turns += u64::from(had_a_turn);
            paused += u64::from(!had_a_turn);
        }
        world.pass(2_500);
        // 400 messages a second, by clients that cannot do more.
        world.consume(1);
    }
    // After one second, two, four, eight, sixteen and so on.
    assert!((10..=70).contains(&world.holds), "{} holds", world.holds);
    assert!(paused * 50 < turns, "{paused} of {turns} turns");
}

#[test]
fn a_publisher_is_held_for_50_ms_at_most_and_those_of_other_queues_not_at_all() {
    let mut world = World::new(2);
    world.publish(0, MAX_BACKLOG_GROWTH as usize + 1, true);
    let since = world.millis();
    assert_eq!((world.on_hold(), world.credit.due()), (1, Some(since.after(50))));
    world.pass(49_000);
    assert_eq!(world.on_hold(), 1);
    world.pass(1_000);
    assert_eq!((world.on_hold(), world.credit.due()), (0, None));
    let mut other = PublisherCredit::default();
    assert!(!other.charge_backlog(Load::of(MAX_BACKLOG_GROWTH as usize, 0), world.millis(), || true));
}

#[test]
fn the_publisher_held_first_resumes_first_and_more_as_the_backlog_shrinks() {
    let mut world = World::new(3);
    world.publish(0, MAX_BACKLOG_GROWTH as usize + 1, true);
    world.publish(1, MAX_BURST as usize, true);
    world.publish(2, 2 * MAX_BURST as usize, true);
    assert_eq!(world.on_hold(), 3);
    let on_hold = |world: &World| {
        world.publishers.iter().map(|one| one.on_hold.load(Ordering::Relaxed)).collect::<Vec<_>>()
    };
    world.consume(world.ready - LOW_LOAD as usize - 1);
    assert_eq!(on_hold(&world), [true; 3]);
    world.consume(1);
    assert_eq!(on_hold(&world), [false, true, true]);
    // As much as it had added itself.
    world.consume(MAX_BURST as usize - 1);
    assert_eq!(on_hold(&world), [false, true, true]);
    world.consume(1);
    assert_eq!(on_hold(&world), [false, false, true]);
    world.consume(2 * MAX_BURST as usize - 1);
    assert_eq!(on_hold(&world), [false, false, true]);
    world.consume(1);
    assert_eq!(on_hold(&world), [false; 3]);
    world.consume(world.ready);
    assert!(world.credit.is_unused(), "nothing is left of it");
}

#[test]
fn all_publishers_continue_soon_once_the_queue_is_empty() {
    let mut world = World::new(20);
    (0..20).for_each(|at| assert!(world.publish(at, MAX_BACKLOG_GROWTH as usize, true)));
    let on_hold = world.on_hold();
    assert!(on_hold > 10);
    world.consume(world.ready - 1);
    assert_eq!(world.on_hold(), on_hold - 1);
    world.consume(1);
    assert_eq!(world.on_hold(), on_hold - 1 - RELEASED_WHEN_EMPTY);
    for _ in 0..on_hold / RELEASED_WHEN_EMPTY {
        world.pass(1_000);
    }
    assert_eq!((world.on_hold(), world.credit.due()), (0, None));
}

#[test]
fn a_publisher_of_single_messages_is_held_at_most_once_per_burst() {
    let mut world = World::new(1);
    world.publish(0, 2 * MAX_BACKLOG_GROWTH as usize, false);
    let mut published = 0;
    for _ in 0..100_000 {
        published += u64::from(world.publish(0, 1, true));
        // Other publishers keep the backlog from shrinking, so the publisher is held for the maximum time.
        world.ready += 2;
        world.consume(2);
        world.pass(100);
    }
    assert!((50..=published / MAX_BURST).contains(&world.holds), "{} holds of {published}", world.holds);
}

#[test]
fn a_backlog_that_grew_while_throttling_was_off_is_reduced_later() {
    let mut world = World::new(10);
    let end = world.now + 10_000_000;
    // In the first 60 ms consumers take nothing, and in the next second less than is published.
    while world.now < end {
        let slow = world.now < 2_060_000;
        (0..10).for_each(|at| _ = world.publish(at, PUBLISHES, true));
        world.pass(30_000);
        if world.now > 1_060_000 {
            world.consume(if slow { 3_000 } else { 9_500 });
        }
    }
    assert!(world.most_ready > 100_000, "it was left alone");
    assert!(world.ready < 40_000, "{} ready", world.ready);
}

#[test]
fn of_a_queue_that_was_long_before_only_growth_counts() {
    let mut world = World::new(1);
    world.ready = 1_000_000;
    assert!(world.publish(0, 1, true) && world.publish(0, MAX_BACKLOG_GROWTH as usize, true));
    assert_eq!(world.on_hold(), 0);
    world.consume(500_000);
    world.publish(0, MAX_BACKLOG_GROWTH as usize, true);
    assert_eq!(world.on_hold(), 0);
    world.publish(0, MAX_BURST as usize, true);
    assert_eq!(world.on_hold(), 1);
}

#[test]
fn large_messages_count_by_their_bytes() {
    assert_eq!(Load::of(10, 10 << 20), Load::of(10 << 10, 0));
    let mut credit = PublisherCredit::default();
    assert!(credit.charge_backlog(Load::of(9, 9 << 20), Timestamp(1), || true));
}

#[test]
fn all_publishers_continue_when_the_queue_has_no_consumer_left() {
    let mut world = World::new(2);
    world.publish(0, MAX_BACKLOG_GROWTH as usize + 1, true);
    world.publish(1, MAX_BURST as usize, true);
    assert_eq!(world.on_hold(), 2);
    world.credit.release_all().wake();
    assert!(world.on_hold() == 0 && world.credit.is_unused() && world.credit.due().is_none());
}

proptest! {
    #[test]
    fn held_publishers_are_woken_once_and_in_time(steps in proptest::collection::vec((0u8..6, 0usize..4, 0usize..20_000), 1..300)) {
        let mut world = World::new(4);
        for (step, at, amount) in steps {
            match step {
                0..=2 => _ = world.publish(at, amount, step > 0),
                3 => world.consume(amount),
                4 => world.pass(amount as u64),
                _ => world.pass(1_000 * amount as u64),
            }
            // A deadline is set as long as a publisher is held, and it is not late.
            prop_assert_eq!(world.on_hold() > 0, world.credit.due().is_some());
            prop_assert!(world.credit.due().is_none_or(|due| due <= world.millis().after(MAX_PAUSE)));
        }
    }
}

#[test]
fn where_consumers_take_many_more_may_wait_for_them() {
    let mut world = World::new(1);
    // 20,000 in 10 ms, and the backlog stays as it is.
    world.ready = MAX_BACKLOG_GROWTH as usize + 1;
    for _ in 0..20 {
        world.ready += 20_000;
        world.publish(0, 0, false);
        world.consume(20_000);
        world.pass(10_000);
    }
    let first = world.ready;
    world.ready += 3 * MAX_BACKLOG_GROWTH as usize;
    world.publish(0, MAX_BURST as usize, true);
    assert_eq!(world.on_hold(), 0);
    world.ready = first + 4 * MAX_BACKLOG_GROWTH as usize;
    world.publish(0, MAX_BURST as usize, true);
    assert_eq!(world.on_hold(), 1);
}
