//! Persists the broker's clock across restarts, together with its offsets from the wall clock and from the machine's
//! monotonic clock. Until the machine reboots, the monotonic clock shows how much time has passed, even if the wall clock was
//! set while no process was running.

use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::{Catalogue, CatalogueError, Section, Timestamp};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use server::{Clock, ClockReading};

/// How often the wall clock is read. After it was set, timestamps visible to others are wrong until then, and stored ones are
/// if the power fails.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often the clock is stored while nothing else is: after a power failure it continues from there, even if the machine's
/// wall clock stops while it is off.
const STORED_AFTER: Duration = Duration::from_mins(10);

/// The key of the offset from the wall clock.
const KEY: &[u8] = b"clock";

/// The key of the offset from the monotonic clock. It sorts before `KEY`: earlier versions use the last entry that they read.
const UPTIME_KEY: &[u8] = b"boot";

/// The clock of a data directory.
pub(crate) struct StoredClock {
    clock: Clock,
    catalogue: Arc<Catalogue>,
    /// `None` if the system does not tell.
    boot: Option<Boot>,
    /// As it was stored last.
    stored: Mutex<Stored>,
}

struct Stored {
    ahead: Option<i64>,
    at: Instant,
}

impl StoredClock {
    /// Continues with the clock where the directory's last process stored it.
    ///
    /// # Errors
    /// The catalogue cannot be read.
    pub(crate) fn resume(clock: Clock, catalogue: &Arc<Catalogue>) -> Result<Self, CatalogueError> {
        let (mut reading, mut uptime) = (None, None);
        catalogue.scan(Section::Clock, |key, value| match key {
            KEY => reading = decode(value),
            UPTIME_KEY => uptime = UptimeReading::decode(value),
            _ => {}
        })?;
        let boot = Boot::current();
        if let Some(reading) = reading {
            let continued = uptime.and_then(|stored| stored.continued(boot?, uptime_millis()));
            clock.resume(reading, continued);
        }
        let stored = Mutex::new(Stored { ahead: None, at: Instant::now() });
        Ok(Self { clock, catalogue: Arc::clone(catalogue), boot, stored })
    }

    /// The current time of the broker's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.timestamp(Instant::now())
    }

    /// Stores it with the catalogue's next commit, which soon follows.
    pub(crate) fn store(&self) {
        // Hold the lock until this is recorded, or another thread's earlier reading could be stored last.
        let mut stored = self.stored.lock();
        let reading = self.clock.reading();
        *stored = Stored { ahead: Some(reading.ahead), at: Instant::now() };
        self.catalogue.put(Section::Clock, KEY.to_vec(), encode(reading));
        if let Some(boot) = self.boot {
            let uptime = UptimeReading { boot, uptime: uptime_millis(), time: self.now() };
            self.catalogue.put(Section::Clock, UPTIME_KEY.to_vec(), uptime.encode());
        }
    }

    /// Stores it if the wall clock was set, or after a while.
    fn store_if_due(&self) {
        let is_due = {
            let stored = self.stored.lock();
            stored.ahead != Some(self.clock.reading().ahead) || stored.at.elapsed() >= STORED_AFTER
        };
        if is_due {
            self.store();
        }
    }

    /// Stores it for the last time.
    pub(crate) fn end(&self) {
        observe(self.clock);
        self.store();
    }
}

/// Starts the task that follows the wall clock, and stores its distance for as long as there is a directory.
pub(crate) fn follow(clock: Clock, stored: Weak<StoredClock>) {
    tokio::spawn(async move {
        loop {
            observe(clock);
            if let Some(stored) = stored.upgrade() {
                stored.store_if_due();
            }
            tokio::time::sleep(INTERVAL).await;
        }
    });
}

fn observe(clock: Clock) {
    if let Some(step_ms) = clock.observe_wall() {
        tracing::info!(
            step_ms,
            "the system clock was set, or the system suspended: deadlines stay as they are"
        );
    }
}

/// A start of the machine, and what may make its monotonic clock another for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Boot {
    /// The kernel's random number for it (random(4), `boot_id`).
    id: u128,
    /// The inode number of the time namespace (time_namespaces(7)); 0 if the kernel has none.
    namespace: u64,
}

/// The clock, and how long the machine had been running then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UptimeReading {
    boot: Boot,
    /// Milliseconds by the monotonic clock.
    uptime: u64,
    time: Timestamp,
}

impl Boot {
    fn current() -> Option<Self> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()?;
        let namespace = std::fs::metadata("/proc/self/ns/time").map_or(0, |file| file.ino());
        Some(Self { id, namespace })
    }
}

/// The monotonic clock in milliseconds.
fn uptime_millis() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

impl UptimeReading {
    /// The time by the clock now; `None` if this is another start of the machine.
    fn continued(self, boot: Boot, uptime: u64) -> Option<Timestamp> {
        let elapsed = uptime.checked_sub(self.uptime).filter(|_| self.boot == boot)?;
        Some(self.time.after(elapsed))
    }

    /// The id of the boot (16, big-endian), the time namespace (8), the uptime and the time in milliseconds (8 each).
    fn encode(self) -> Vec<u8> {
        let Self { boot, uptime, time } = self;
        [
            &boot.id.to_be_bytes()[..],
            &boot.namespace.to_be_bytes(),
            &uptime.to_be_bytes(),
            &time.0.to_be_bytes(),
        ]
        .concat()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (id, rest) = value.split_first_chunk()?;
        let (namespace, rest) = rest.split_first_chunk()?;
        let (uptime, rest) = rest.split_first_chunk()?;
        let time = u64::from_be_bytes(rest.try_into().ok()?);
        let boot = Boot { id: u128::from_be_bytes(*id), namespace: u64::from_be_bytes(*namespace) };
        Some(Self { boot, uptime: u64::from_be_bytes(*uptime), time: Timestamp(time) })
    }
}

/// The time in milliseconds (8, big-endian), and how far it is ahead of the wall clock (8, big-endian, signed).
fn encode(reading: ClockReading) -> Vec<u8> {
    [reading.time.0.to_be_bytes(), reading.ahead.to_be_bytes()].concat()
}

fn decode(value: &[u8]) -> Option<ClockReading> {
    let (time, ahead) = value.split_first_chunk()?;
    let ahead = i64::from_be_bytes(ahead.try_into().ok()?);
    Some(ClockReading { time: Timestamp(u64::from_be_bytes(*time)), ahead })
}

#[cfg(test)]
mod tests {
    use store::disk::RealDisk;

    use super::*;

    #[test]
    fn a_stored_reading_is_read_back_and_nothing_else_is() {
        for (time, ahead) in [(1_800_000_000_000, 0), (u64::MAX, i64::MIN), (0, 7_200_000)] {
            let reading = ClockReading { time: Timestamp(time), ahead };
            assert_eq!(decode(&encode(reading)), Some(reading));
            assert_eq!(decode(&encode(reading)[1..]), None);
            assert_eq!(decode(&[&encode(reading)[..], &[0]].concat()), None);
        }
    }

    const BOOT: Boot = Boot { id: 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef, namespace: 4_026_531_834 };

    #[test]
    fn time_is_counted_by_the_machine_until_it_is_restarted() {
        let stored = UptimeReading { boot: BOOT, uptime: 5_000, time: Timestamp(1_800_000_000_000) };
        assert_eq!(stored.continued(BOOT, 7_000), Some(Timestamp(1_800_000_002_000)));
        assert_eq!(stored.continued(Boot { id: 1, ..BOOT }, 7_000), None);
        // A container whose monotonic clock is another.
        assert_eq!(stored.continued(Boot { namespace: 1, ..BOOT }, 7_000), None);
        assert_eq!(stored.continued(BOOT, 4_999), None);
    }

    #[test]
    fn a_stored_uptime_is_read_back_and_nothing_else_is() {
        let reading = UptimeReading { boot: BOOT, uptime: u64::MAX, time: Timestamp(1) };
        assert_eq!(UptimeReading::decode(&reading.encode()), Some(reading));
        assert_eq!(UptimeReading::decode(&reading.encode()[1..]), None);
        assert_eq!(UptimeReading::decode(&[&reading.encode()[..], &[0]].concat()), None);
        // Earlier versions read whichever entry comes last.
        assert!(UPTIME_KEY < KEY && decode(&reading.encode()).is_none());
    }

    #[test]
    fn this_machine_tells_how_long_it_has_been_running() {
        let boot = Boot::current().unwrap();
        assert!(boot.id != 0 && Boot::current() == Some(boot));
        let before = uptime_millis();
        assert!(before > 0 && uptime_millis() >= before);
    }

    #[test]
    fn a_step_of_the_wall_clock_before_a_kill_changes_no_deadline() {
        let directory = tempfile::tempdir().unwrap();
        let catalogue =
            Arc::new(Catalogue::open(Arc::new(RealDisk::new(directory.path()).unwrap())).unwrap());
        // By the last reading this clock was two hours behind the wall clock, which has been set back since then.
        let (time, hour) = (Timestamp(1_800_000_000_000), 3_600_000);
        let wall = Clock::start().timestamp(Instant::now());
        let ahead = i64::try_from(time.0).unwrap() - i64::try_from(wall.0).unwrap() - 2 * hour;
        catalogue.put(Section::Clock, KEY.to_vec(), encode(ClockReading { time, ahead }));
        let boot = Boot::current().unwrap();
        let reading = UptimeReading { boot, uptime: uptime_millis(), time };
        catalogue.put(Section::Clock, UPTIME_KEY.to_vec(), reading.encode());
        catalogue.commit_pending().unwrap();
        let resumed = StoredClock::resume(Clock::start(), &catalogue).unwrap();
        let now = resumed.now();
        assert!((time..=time.after(uptime_millis() - reading.uptime)).contains(&now), "{now:?}");
        // The next process continues by what was stored.
        resumed.store();
        catalogue.commit_pending().unwrap();
        let next = StoredClock::resume(Clock::start(), &catalogue).unwrap();
        assert!((now..=time.after(uptime_millis() - reading.uptime)).contains(&next.now()));
    }
}
