//! Power failures at any moment, on a disk that sometimes fails: synced messages survive, and messages persisted as settled
//! stay settled.
//!
//! `LEVERET_CRASH_SEEDS=10000` runs more seeds, `LEVERET_CRASH_FIRST=n` begins at another.

use std::collections::BTreeSet;

use super::*;
use crate::disk::simulated::{Faults, SimRandom};
use crate::pages::PagesError;

/// A queue and the state it must have after a crash.
struct Life {
    disk: SimDisk,
    segments: QueueSegments,
    next: u64,
    /// Persistent messages that the caller has not settled.
    live: BTreeSet<u64>,
    /// The live messages that are not synced, of which the caller has copies.
    unsynced: BTreeSet<u64>,
    /// Settled, and not known to be persisted.
    settled: BTreeSet<u64>,
    /// Settled permanently.
    gone: BTreeSet<u64>,
}

impl Life {
    fn step(&mut self, random: &mut SimRandom) {
        match random.below(12) {
            0..=5 => self.append(random),
            6..=7 => {
                let from = random.below(self.next + 1);
                let to = from + random.below(20);
                self.segments.settle([from..=to]);
                for position in self.live.range(from..=to).copied().collect::<Vec<_>>() {
                    self.live.remove(&position);
                    self.unsynced.remove(&position);
                    self.settled.insert(position);
                }
            }
            8..=9 => self.sync(),
            10 => {
                if self.segments.persist_settled().is_ok() {
                    self.gone.append(&mut self.settled);
                }
            }
            _ => {
                let from = random.below(self.next + 1);
                match self.segments.read(from, 5, 300) {
                    Ok(read) => {
                        read.iter().for_each(|message| assert_eq!(message.payload, payload(message.position)))
                    }
                    Err(PagesError::Io { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn append(&mut self, random: &mut SimRandom) {
        for _ in 0..=random.below(8) {
            let position = self.next;
            let transient = random.chance(200);
            match append_one(&self.segments, position, transient) {
                Ok(()) if transient => {}
                Ok(()) => {
                    self.live.insert(position);
                    self.unsynced.insert(position);
                }
                Err(failed) => {
                    assert!(matches!(failed.error, PagesError::Io { .. }), "{failed}");
                    assert_eq!(failed.taken, 0);
                    return;
                }
            }
            self.next += 1 + random.below(2);
        }
    }

    /// Like the owner of a journal: appends unsynced messages again before each attempt.
    fn sync(&mut self) {
        for position in &self.unsynced {
            if let Err(failed) = append_one(&self.segments, *position, false) {
                assert!(matches!(failed.error, PagesError::Io { .. }), "{failed}");
                return;
            }
        }
        if self.segments.sync().is_ok() {
            self.unsynced.clear();
        }
    }

    /// The power fails, or the process is killed.
    fn crash(self, random: &mut SimRandom) -> Self {
        let killed = random.chance(300);
        let disk = if killed { self.disk.kill() } else { self.disk.crash() };
        disk.set_faults(Faults::default());
        disk.set_capacity(1 << 30);
        let report = small(&disk).check(QUEUE).unwrap();
        assert!(report.is_sound(), "{report:?}");
        let (segments, recovered) = small(&disk).open(QUEUE, Repair::Refuse).unwrap();
        let found: BTreeSet<u64> = positions(&segments).into_iter().collect();
        assert_eq!(recovered.live, found.len() as u64);
        for position in self.live.difference(&self.unsynced) {
            assert!(found.contains(position), "{position} was synced and is lost");
        }
        for position in &self.gone {
            assert!(!found.contains(position), "{position} was settled for good and is back");
        }
        for position in &found {
            assert!(
                self.live.contains(position) || self.settled.contains(position),
                "{position} came from nowhere"
            );
        }
        assert!(recovered.last.is_none_or(|last| last < self.next));
        // Messages that are not found were neither synced nor promised: as after a real restart, their positions are
        // assigned again. Like a journal, settle again the positions whose settlement was not persisted.
        segments.settle(self.settled.iter().map(|position| *position..=*position));
        let last = recovered.last.max(self.gone.last().copied()).max(self.settled.last().copied());
        let live = found.difference(&self.settled).copied().collect();
        Self {
            disk,
            segments,
            next: last.map_or(0, |last| last + 1),
            live,
            unsynced: BTreeSet::new(),
            ..self
        }
    }
}

fn several_lives(seed: u64) {
    let mut random = SimRandom::new(seed);
    let disk = SimDisk::new(seed, 1 << 30);
    let segments = create(&disk);
    let none = BTreeSet::new;
    let (live, unsynced, settled, gone) = (none(), none(), none(), none());
    let mut life = Life { disk, segments, next: 0, live, unsynced, settled, gone };
    for _ in 0..3 {
        if random.chance(600) {
            let mut rate = || random.below(3) * random.below(60);
            life.disk.set_faults(Faults { write: rate(), sync: rate(), names: rate() });
        }
        for _ in 0..random.below(80) {
            if random.chance(30) {
                life.disk.set_capacity(life.disk.used() + random.below(3000));
            } else if random.chance(60) {
                life.disk.set_capacity(1 << 30);
            }
            life.step(&mut random);
        }
        life = life.crash(&mut random);
    }
}

#[test]
fn synced_messages_survive_a_crash_and_settled_ones_stay_settled() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("LEVERET_CRASH_FIRST").unwrap_or(0);
    let seeds: u64 = number("LEVERET_CRASH_SEEDS").unwrap_or(400);
    for seed in first..first + seeds {
        let outcome = std::panic::catch_unwind(|| several_lives(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
