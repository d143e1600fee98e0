//! The table of a segment's states at the head of `segment`, checked with random events on a disk that fails and loses
//! power: a segment changes only as the table says, and each line of the table but one happens.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::disk::simulated::{Faults, SimRandom};
use crate::pages::PagesError;
use crate::pages::segment::SegmentPhase;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Open,
    Sealed,
    Retired,
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Append,
    FailedSync,
    Settle,
    Persist,
    Reap,
    Restart,
}

use Event::*;
use State::*;

/// All transitions. Any other pair of a state and an event leaves the state as it is.
const TABLE: &[(State, Event, &[State])] = &[
    (Absent, Append, &[Open]),
    (Absent, FailedSync, &[Open]),
    (Open, Append, &[Open, Sealed, Retired]),
    (Open, FailedSync, &[Open, Sealed, Retired]),
    (Open, Persist, &[Open, Removed, Absent]),
    (Open, Reap, &[Open, Removed, Absent]),
    (Sealed, Settle, &[Sealed, Retired]),
    (Retired, Persist, &[Removed, Absent]),
    (Retired, Reap, &[Removed]),
    (Removed, Persist, &[Removed, Absent]),
    (Absent, Restart, &[Sealed, Retired, Removed]),
    (Open, Restart, &[Absent, Sealed, Retired, Removed]),
    (Sealed, Restart, &[Absent, Sealed, Retired, Removed]),
    (Retired, Restart, &[Absent, Sealed, Retired, Removed]),
    (Removed, Restart, &[Absent, Sealed, Retired, Removed]),
];

struct World {
    disk: SimDisk,
    segments: QueueSegments,
    next: u64,
    /// How many messages are transient, in thousandths.
    transient: u64,
    seen: BTreeSet<(State, Event, State)>,
}

impl World {
    /// The states of the segments, by number; all others are absent.
    fn states(&self) -> BTreeMap<u64, State> {
        let (writer, state) = (self.segments.writer.lock(), self.segments.state.lock());
        let removed = writer.orphans.iter().map(|file| (file.sequence, Removed));
        let retired = state.dead.iter().map(|file| (file.sequence, Retired));
        let used = state
            .segments
            .iter()
            .map(|segment| (segment.file.sequence, if segment.is_open() { Open } else { Sealed }));
        let all: Vec<_> = removed.chain(retired).chain(used).collect();
        let states: BTreeMap<u64, State> = all.iter().copied().collect();
        assert_eq!(states.len(), all.len(), "a segment is in two states: {all:?}");
        states
    }

    /// The files are those that the second table promises.
    fn has_its_files(&self, states: &BTreeMap<u64, State>) {
        let state = self.segments.state.lock();
        let files = self.disk.files();
        for segment in &state.segments {
            let there = files.contains(&segment.file.path());
            let length = if there { self.disk.open(&segment.file.path()).unwrap().len().unwrap() } else { 0 };
            match &segment.phase {
                SegmentPhase::Sealed => assert!(length >= segment.shape.length),
                SegmentPhase::Open(end) => {
                    let flushing = end.flushing.as_ref().map_or(0, |bytes| bytes.len());
                    let all = end.written + (flushing + end.buffer.len()) as u64;
                    assert_eq!(all, segment.shape.length);
                    assert!(length >= end.written);
                    assert!(!files.contains(&segment.file.index_path()));
                }
            }
        }
        for (sequence, _) in states.iter().filter(|(_, state)| **state == Removed) {
            assert!(!files.contains(&format!("queues/7/{sequence:016x}.segment")));
        }
        let open = states.iter().filter(|(_, state)| **state == Open).map(|(sequence, _)| *sequence);
        assert!(open.clone().count() <= 1);
        assert!(open.max().is_none_or(|open| open + 1 == state.next_sequence));
    }

    fn step(&mut self, event: Event, random: &mut SimRandom) {
        let before = self.states();
        self.act(event, random);
        let after = self.states();
        self.has_its_files(&after);
        let numbers: BTreeSet<u64> = before.keys().chain(after.keys()).copied().collect();
        for number in numbers {
            let of = |states: &BTreeMap<u64, State>| states.get(&number).copied().unwrap_or(Absent);
            let (old, new) = (of(&before), of(&after));
            let line = TABLE.iter().find(|(state, on, _)| (*state, *on) == (old, event));
            let allowed =
                line.map_or(new == old, |(_, _, next)| next.contains(&new) || new == old && event != Restart);
            assert!(allowed, "segment {number}: {event:?} turned {old:?} into {new:?}");
            self.seen.insert((old, event, new));
        }
    }

    fn act(&mut self, event: Event, random: &mut SimRandom) {
        let io = |outcome: Result<(), PagesError>| match outcome {
            Ok(()) | Err(PagesError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        };
        match event {
            Append => {
                let transient = random.chance(self.transient);
                if append_one(&self.segments, self.next, transient).is_ok() {
                    self.next += 1;
                }
            }
            FailedSync => {
                self.disk.fail_sync(0);
                io(self.segments.sync());
                // It was not needed if there was nothing to sync.
                self.disk.fail_sync(u64::MAX);
                // Positions that were lost with the file may be used again.
                let last = self.segments.state.lock().last;
                self.next = last.map_or(self.next, |last| last + 1);
            }
            Settle => {
                let from = random.below(self.next + 1);
                self.segments.settle([from..=from + random.below(40)]);
            }
            Persist => {
                if random.chance(200) {
                    self.disk.set_faults(Faults { sync: 500, ..Faults::default() });
                }
                io(self.segments.persist_settled());
                self.disk.set_faults(Faults::default());
            }
            Reap => io(self.segments.reap()),
            Restart => {
                self.disk = if random.chance(300) { self.disk.kill() } else { self.disk.crash() };
                let (segments, recovered) = reopen(&self.disk);
                self.segments = segments;
                self.next = recovered.last.map_or(self.next, |last| last + 1);
            }
        }
        if event == Append && random.chance(150) {
            // A sync that succeeds changes no state.
            io(self.segments.sync());
        }
    }
}

#[test]
fn a_segment_changes_as_the_table_says_and_every_line_of_it_happens() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let mut random = SimRandom::new(seed);
        let disk = SimDisk::new(seed, 1 << 30);
        let segments = create(&disk);
        let transient = if seed % 2 == 0 { 200 } else { 920 };
        let mut world = World { disk, segments, next: 0, transient, seen };
        for _ in 0..150 {
            let event = match random.below(100) {
                0..70 => Append,
                70..74 => FailedSync,
                74..84 => Settle,
                84..91 => Persist,
                91..97 => Reap,
                _ => Restart,
            };
            world.step(event, &mut random);
        }
        seen = world.seen;
    }
    for (state, event, next) in
        TABLE.iter().flat_map(|(state, event, next)| next.iter().map(move |next| (state, event, next)))
    {
        // It takes some ten thousand lives.
        if (*state, *event, *next) == (Absent, Restart, Retired) {
            continue;
        }
        assert!(seen.contains(&(*state, *event, *next)), "{event:?} never turned {state:?} into {next:?}");
    }
}
