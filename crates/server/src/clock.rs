//! The broker's clock, and its offset from the wall clock.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::{Timestamp, WallOffset};

/// Milliseconds by which the wall clock has to move against the monotonic clock to count as set. Corrections of the speed
/// (adjtime) move both.
const MIN_STEP: u64 = 100;

/// The maximum time between reading the two clocks. If it takes longer, the thread was not running in between, and the
/// offset is unknown.
const MAX_READING: Duration = Duration::from_millis(10);

/// The number of attempts to read both.
const READINGS: usize = 3;

/// Milliseconds since 1970 that never go backwards: a monotonic clock that starts at the wall clock's time.
///
/// The clock does not follow when the wall clock is set, since messages would then expire early or late. With a data
/// directory it continues the previous process's clock ([`Clock::resume`]). So times that are stored there stay correct,
/// even if the wall clock was wrong when that process started. Times for others are on the wall clock ([`Clock::wall`]).
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    started_at_ms: u64,
    timeline: &'static Timeline,
}

/// The state that all copies of a clock share.
#[derive(Debug)]
struct Timeline {
    /// Milliseconds by which the clock was moved when it was resumed.
    shift: AtomicI64,
    offset: WallOffset,
}

/// The process's timeline; a process has at most one data directory.
static TIMELINE: Timeline = Timeline::new();

/// A reading of a clock, stored for the next process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Milliseconds since 1970 on this clock.
    pub time: Timestamp,
    /// Milliseconds by which `time` was ahead of the wall clock.
    pub ahead: i64,
}

impl Timeline {
    const fn new() -> Self {
        Self { shift: AtomicI64::new(0), offset: WallOffset::new() }
    }
}

impl Clock {
    /// Starts at the wall clock's time.
    pub fn start() -> Self {
        Self::start_at(Instant::now(), wall_clock(), &TIMELINE)
    }

    fn start_at(started: Instant, wall: Timestamp, timeline: &'static Timeline) -> Self {
        Self { started, started_at_ms: wall.0, timeline }
    }

    /// The broker's time at `now`.
    pub fn timestamp(&self, now: Instant) -> Timestamp {
        let elapsed = now.saturating_duration_since(self.started).as_millis() as u64;
        Timestamp(self.base().saturating_add(elapsed))
    }

    /// The instant of a broker time.
    pub fn instant(&self, time: Timestamp) -> Instant {
        self.started + Duration::from_millis(time.0.saturating_sub(self.base()))
    }

    /// The broker's time at `started`.
    fn base(&self) -> u64 {
        self.started_at_ms.saturating_add_signed(self.timeline.shift.load(Ordering::Relaxed))
    }

    /// The wall clock's time at `now`, from its last reading, without a system call.
    pub fn wall(&self, now: Instant) -> Timestamp {
        self.wall_time(self.timestamp(now))
    }

    /// The wall clock's time at a broker time.
    pub fn wall_time(&self, time: Timestamp) -> Timestamp {
        self.timeline.offset.wall_time(time)
    }

    /// The offset between the two clocks, for a broker.
    pub fn wall_offset(&self) -> &'static WallOffset {
        &self.timeline.offset
    }

    /// Continues the clock of an earlier process. Must be called before the times are used.
    ///
    /// `continued` is that clock's time now, according to the machine's monotonic clock; `None` if the machine was
    /// restarted since the reading. In that case the time since the reading is taken from the wall clock. If that is
    /// behind the reading, it is or was wrong, as on a machine whose clock stops when it is off: then no time has passed.
    pub fn resume(&self, stored: ClockReading, continued: Option<Timestamp>) {
        self.resume_at(stored, continued, Instant::now(), wall_clock());
    }

    fn resume_at(&self, stored: ClockReading, continued: Option<Timestamp>, now: Instant, wall: Timestamp) {
        let by_wall = || Timestamp(wall.0.saturating_add_signed(stored.ahead));
        let resumed = continued.unwrap_or_else(by_wall).max(stored.time).0;
        let shift = difference(resumed, self.timestamp(now).0);
        self.timeline.shift.fetch_add(shift, Ordering::Relaxed);
        self.timeline.offset.set(difference(resumed, wall.0));
    }

    /// The clock now, to be stored.
    pub fn reading(&self) -> ClockReading {
        ClockReading { time: self.timestamp(Instant::now()), ahead: self.timeline.offset.millis() }
    }

    /// Reads the wall clock. Returns the milliseconds by which it has been set since the last call or, after a suspension
    /// of the machine, how long that lasted.
    pub fn observe_wall(&self) -> Option<i64> {
        for _ in 0..READINGS {
            let (before, wall, after) = (Instant::now(), wall_clock(), Instant::now());
            if after - before <= MAX_READING {
                return self.observe_wall_at(before, wall);
            }
        }
        None
    }

    fn observe_wall_at(&self, now: Instant, wall: Timestamp) -> Option<i64> {
        let ahead = difference(self.timestamp(now).0, wall.0);
        let step = self.timeline.offset.millis().saturating_sub(ahead);
        let is_set = step.unsigned_abs() > MIN_STEP;
        is_set.then(|| {
            self.timeline.offset.set(ahead);
            step
        })
    }
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// `one - other`, saturating.
fn difference(one: u64, other: u64) -> i64 {
    let magnitude = i64::try_from(one.abs_diff(other)).unwrap_or(i64::MAX);
    if one >= other { magnitude } else { -magnitude }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    /// The right time, in milliseconds.
    const NOON: u64 = 1_800_000_000_000;

    /// A clock with its own timeline.
    pub(crate) fn started_at(now: Instant, wall: u64) -> Clock {
        Clock::start_at(now, Timestamp(wall), Box::leak(Box::new(Timeline::new())))
    }

    /// A clock started while the wall clock was off by this many milliseconds, which has since been corrected.
    pub(crate) fn corrected(now: Instant, off: i64) -> Clock {
        let wall = clock_now();
        let clock = started_at(now, wall.saturating_add_signed(off));
        assert_eq!(clock.observe_wall_at(now, Timestamp(wall)), Some(-off));
        clock
    }

    fn clock_now() -> u64 {
        wall_clock().0
    }

    fn after(now: Instant, millis: u64) -> Instant {
        now + Duration::from_millis(millis)
    }

    #[test]
    fn a_clock_does_not_follow_when_the_wall_clock_is_set() {
        let now = Instant::now();
        let clock = started_at(now, NOON);
        assert_eq!(clock.timestamp(after(now, 5)), Timestamp(NOON + 5));
        assert_eq!(clock.observe_wall_at(after(now, 10), Timestamp(NOON + 10 + HOUR)), Some(HOUR as i64));
        assert_eq!(clock.timestamp(after(now, 15)), Timestamp(NOON + 15));
        assert_eq!(clock.instant(Timestamp(NOON + 20)), after(now, 20));
        assert_eq!(clock.wall(after(now, 15)), Timestamp(NOON + 15 + HOUR));
        assert_eq!(clock.wall_time(Timestamp(NOON)), Timestamp(NOON + HOUR));
        assert_eq!(clock.observe_wall_at(after(now, 20), Timestamp(NOON + 20)), Some(-(HOUR as i64)));
        assert_eq!(clock.wall(after(now, 20)), Timestamp(NOON + 20));
    }

    #[test]
    fn a_wall_clock_that_was_read_a_little_late_has_not_been_set() {
        let now = Instant::now();
        let clock = started_at(now, NOON);
        assert_eq!(clock.observe_wall_at(now, Timestamp(NOON + MIN_STEP)), None);
        assert_eq!(clock.observe_wall_at(now, Timestamp(NOON - MIN_STEP)), None);
        assert_eq!(clock.wall(now), Timestamp(NOON));
        assert_eq!(clock.observe_wall_at(now, Timestamp(NOON + MIN_STEP + 1)), Some(MIN_STEP as i64 + 1));
        assert_eq!(clock.wall(now), Timestamp(NOON + MIN_STEP + 1));
    }

    /// Each row: the wall clock's error when the first process starts, and after the clock was set.
    #[test]
    fn the_next_process_continues_the_time_of_one_whose_wall_clock_was_set() {
        let rows: [(i64, i64); 4] = [(-2, 0), (2, 0), (0, -2), (-500_000, 0)];
        for (at_start, later) in rows {
            let (now, hour) = (Instant::now(), HOUR as i64);
            let right =
                |millis: u64, error: i64| Timestamp((NOON + millis).saturating_add_signed(error * hour));
            let clock = started_at(now, right(0, at_start).0);
            let deadline = clock.timestamp(after(now, 500)).after(60_000);
            assert_eq!(
                clock.observe_wall_at(after(now, 1_000), right(1_000, later)),
                Some((later - at_start) * hour)
            );
            let stored = ClockReading { time: clock.timestamp(after(now, 1_000)), ..clock.reading() };
            // It ends, and the next process starts twenty seconds later.
            let begun = after(now, 7_000_000);
            let next = started_at(begun, right(20_500, later).0);
            next.resume_at(stored, None, begun, right(20_500, later));
            assert_eq!(next.instant(deadline), after(begun, 40_000), "{at_start} {later}");
            assert_eq!(next.wall(after(begun, 5)), right(20_505, later), "{at_start} {later}");
            assert_eq!(next.observe_wall_at(after(begun, 5), right(20_505, later)), None);
        }
    }

    #[test]
    fn a_clock_continues_where_it_was_if_the_wall_clock_is_behind() {
        let now = Instant::now();
        let stored = ClockReading { time: Timestamp(NOON), ahead: 0 };
        // A machine whose clock has no battery.
        let clock = started_at(now, 5_000);
        clock.resume_at(stored, None, after(now, 100), Timestamp(5_100));
        assert_eq!(clock.timestamp(after(now, 100)), Timestamp(NOON));
        assert_eq!(clock.wall(after(now, 200)), Timestamp(5_200));
        assert!(clock.observe_wall_at(after(now, 300), Timestamp(NOON + HOUR)).is_some());
        assert_eq!(clock.timestamp(after(now, 300)), Timestamp(NOON + 200));
        assert_eq!(clock.wall(after(now, 300)), Timestamp(NOON + HOUR));
    }

    /// Each row: how the wall clock was set between the last reading, or the kill after it, and the next start.
    #[test]
    fn a_step_that_no_process_has_seen_changes_nothing_while_the_machine_runs() {
        for step in [-2 * HOUR as i64, 0, 2 * HOUR as i64] {
            let now = Instant::now();
            let clock = started_at(now, NOON);
            let stored = ClockReading { time: clock.timestamp(now), ahead: 0 };
            let (begun, continued) = (after(now, 20_000), Timestamp(NOON + 20_000));
            let wall = Timestamp((NOON + 20_000).saturating_add_signed(step));
            let next = started_at(begun, wall.0);
            next.resume_at(stored, Some(continued), begun, wall);
            assert_eq!(next.timestamp(begun), continued, "{step}");
            assert_eq!((next.wall(begun), next.observe_wall_at(begun, wall)), (wall, None), "{step}");
        }
    }

    #[test]
    fn implausible_readings_are_ignored() {
        let now = Instant::now();
        for (time, ahead) in [(0, i64::MIN), (u64::MAX, 0), (0, i64::MAX), (u64::MAX, i64::MAX)] {
            let clock = started_at(now, NOON);
            clock.resume_at(ClockReading { time: Timestamp(time), ahead }, None, now, Timestamp(NOON));
            let _ = (clock.wall(now), clock.timestamp(after(now, 5)), clock.reading());
            let _ = clock.observe_wall_at(after(now, 10), Timestamp(0));
        }
    }
}
