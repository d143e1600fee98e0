//! Persists the broker's clock across restarts, together with its offset from the wall clock.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use broker::{Catalogue, CatalogueError, Section, Timestamp};
use parking_lot::Mutex;
use server::{Clock, ClockReading};

/// How often the wall clock is read. After it was set, timestamps visible to others are wrong until then, and stored ones are
/// if the process is killed.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often the clock is stored while nothing else is: after a power failure it continues from there, even if the machine's
/// wall clock stops while it is off.
const STORED_AFTER: Duration = Duration::from_mins(10);

/// The key of the only entry of its section.
const KEY: &[u8] = b"clock";

/// The clock of a data directory.
pub(crate) struct StoredClock {
    clock: Clock,
    catalogue: Arc<Catalogue>,
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
        let mut reading = None;
        catalogue.scan(Section::Clock, |_, value| reading = decode(value))?;
        if let Some(reading) = reading {
            clock.resume(reading);
        }
        let stored = Mutex::new(Stored { ahead: None, at: Instant::now() });
        Ok(Self { clock, catalogue: Arc::clone(catalogue), stored })
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
}
