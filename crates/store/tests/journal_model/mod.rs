//! A model of the journal's contents, to compare with the real ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use store::disk::simulated::{Faults, SimDisk, SimRandom};
use store::journal::{
    CommitOutcome, Committer, Entry, Journal, JournalSettings, LiveMessage, MessageRef, QueueId, Range,
    RecoveredJournal, RetireError, open,
};

/// A run determined by its seed.
pub(crate) struct Run {
    random: SimRandom,
    disk: SimDisk,
    committer: Committer,
    queues: BTreeMap<u64, Queue>,
    /// Messages that were appended and have not reached a queue yet, with the serial number and length of their bodies.
    on_their_way: Vec<(MessageRef, u64, usize)>,
    serial: u64,
    /// The highest LSN that was ever reported to be on disk.
    sure: u64,
    outcome: Outcome,
    ignores_syncs: bool,
}

/// Counts of the events of a run.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) confirmed: u64,
    pub(crate) crashes: u64,
}

#[derive(Default)]
struct Queue {
    next: u64,
    messages: BTreeMap<u64, Message>,
}

struct Message {
    serial: u64,
    len: usize,
    expires: u64,
    enqueued: u64,
    settled: Option<u64>,
    /// LSNs from which on delivery counts hold, and the counts.
    delivered: Vec<(u64, u32)>,
    /// It has a copy elsewhere.
    moved: bool,
    /// Whether that copy is known to be settled.
    persisted: bool,
    /// It was settled when a segment retired: it may be gone even if its settle record was not on disk.
    given_up: bool,
}

type Checked = Result<(), String>;

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed, CAPACITY);
        let (committer, _) = open_journal(&disk).unwrap();
        Self {
            random: SimRandom::new(!seed),
            disk,
            committer,
            queues: BTreeMap::new(),
            on_their_way: Vec::new(),
            serial: 0,
            sure: 0,
            outcome: Outcome::default(),
            ignores_syncs: false,
        }
    }

    pub(crate) fn with_ignored_syncs(mut self) -> Self {
        self.ignores_syncs = true;
        self.disk.lie_about_syncs();
        self
    }

    pub(crate) fn play(mut self) -> Result<Outcome, String> {
        for _ in 0..2 + self.random.below(5) {
            for _ in 0..self.random.below(120) {
                self.act()?;
            }
            self.crash()?;
        }
        Ok(self.outcome)
    }

    fn journal(&self) -> Arc<Journal> {
        self.committer.journal().clone()
    }

    fn act(&mut self) -> Checked {
        match self.random.below(100) {
            0..35 => self.publish(),
            35..55 => self.settle(),
            55..60 => self.deliver(),
            60..85 => self.step(),
            85..90 => return self.read_some(),
            90..95 => return self.retire(),
            95..97 => self.change_faults(),
            97..98 => drop(self.journal().prepare_segment()),
            _ => self.disk.set_capacity(if self.random.chance(600) {
                CAPACITY
            } else {
                self.disk.used() + 2000
            }),
        }
        Ok(())
    }

    fn publish(&mut self) {
        let journal = self.journal();
        for _ in 0..=self.random.below(4) {
            self.serial += 1;
            let len = match self.random.below(30) {
                0 => self.random.below(3 * SEGMENT) as usize,
                1..5 => self.random.below(4000) as usize,
                _ => self.random.below(200) as usize,
            };
            let body = body(self.serial, len);
            let (start, end) = body.split_at(len / 3);
            if let Ok(message) = journal.append(&[start, end]) {
                self.on_their_way.push((message, self.serial, len));
            }
        }
        if self.random.chance(800) {
            self.route();
        }
    }

    /// Routes the messages on their way to one queue, or each to two.
    fn route(&mut self) {
        let journal = self.journal();
        let on_their_way = std::mem::take(&mut self.on_their_way);
        let first = self.random.below(QUEUES);
        let targets = if self.random.chance(200) { vec![first, (first + 1) % QUEUES] } else { vec![first] };
        for (at, id) in targets.iter().enumerate() {
            let queue = self.queues.entry(*id).or_default();
            let mut entries = Vec::new();
            for &(message, ..) in &on_their_way {
                queue.next += 1 + self.random.below(8) / 7;
                let expires = if self.random.chance(200) { 1 + self.random.below(1 << 40) } else { 0 };
                entries.push(Entry { position: queue.next, message, expires, last: at + 1 == targets.len() });
            }
            let lsn = journal.enqueue(&journal.queue(QueueId(*id)), &entries).0;
            for (entry, &(_, serial, len)) in entries.iter().zip(&on_their_way) {
                let message = Message {
                    serial,
                    len,
                    expires: entry.expires,
                    enqueued: lsn,
                    settled: None,
                    delivered: Vec::new(),
                    moved: false,
                    persisted: false,
                    given_up: false,
                };
                queue.messages.insert(entry.position, message);
            }
        }
    }

    fn settle(&mut self) {
        let (journal, id) = (self.journal(), self.random.below(QUEUES));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let mut ranges = Vec::new();
        for _ in 0..=self.random.below(3) {
            let first = self.random.below(queue.next + 1);
            let more = if self.random.chance(100) { 50 } else { 3 };
            ranges.push(Range { first, last: (first + self.random.below(more)).min(queue.next) });
        }
        let lsn = journal.settle(&journal.queue(QueueId(id)), &ranges).0;
        for range in ranges {
            for (_, message) in queue.messages.range_mut(range.first..=range.last) {
                message.settled.get_or_insert(lsn);
            }
        }
    }

    fn deliver(&mut self) {
        let (journal, id) = (self.journal(), self.random.below(QUEUES));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let first = self.random.below(queue.next + 1);
        let (range, count) = (Range { first, last: first + 3 }, 1 + self.random.below(9) as u32);
        let lsn = journal.delivered(&journal.queue(QueueId(id)), &[range], count).0;
        for (_, message) in queue.messages.range_mut(range.first..=range.last) {
            message.delivered.push((lsn, count));
        }
    }

    fn step(&mut self) {
        let before = self.journal().end();
        if let CommitOutcome::Committed = self.committer.step() {
            let durable = self.journal().durable();
            assert!(durable <= before && self.journal().failing().is_none());
        }
        self.sure = self.sure.max(self.journal().durable().0);
    }

    fn read_some(&mut self) -> Checked {
        let id = self.random.below(QUEUES);
        let Some(queue) = self.queues.get(&id) else { return Ok(()) };
        let journal = self.journal();
        let log = journal.queue(QueueId(id));
        let from = self.random.below(queue.next + 1);
        let mut reader = journal.reader(1 + self.random.below(5000) as usize);
        for live in log.messages_from(from, 10) {
            let read = reader.read(live.message).map_err(|error| error.to_string())?;
            let message = &queue.messages[&live.position];
            check(read == body(message.serial, message.len), || format!("wrong body at {}", live.position))?;
        }
        Ok(())
    }

    fn retire(&mut self) -> Checked {
        let journal = self.journal();
        let Some(oldest) = journal.segments().first().copied().filter(|oldest| oldest.sealed) else {
            return Ok(());
        };
        let mut reader = journal.reader(4096);
        for (log, live) in journal.live_messages(oldest) {
            let queue = self.queues.get_mut(&log.id().0).ok_or("an unknown queue")?;
            for LiveMessage { position, message, expires, .. } in &live {
                let read = reader.read(*message).map_err(|error| error.to_string())?;
                let expected = queue.messages.get_mut(position).ok_or("an unknown message")?;
                check(read == body(expected.serial, expected.len), || format!("wrong body at {position}"))?;
                check(*expires == expected.expires, || format!("wrong expiry at {position}"))?;
                expected.moved = true;
            }
            let late = journal.moved(&log, live.iter().map(|live| live.position));
            check(late.is_empty(), || "settled meanwhile".into())?;
        }
        for message in self.queues.values_mut().flat_map(|queue| queue.messages.values_mut()) {
            message.persisted |= message.moved && message.settled.is_some();
            message.given_up |= message.settled.is_some();
        }
        match journal.retire(oldest) {
            Err(RetireError::Busy(now)) => {
                check(now.live > 0 && !self.on_their_way.is_empty(), || format!("{now:?} is busy"))
            }
            Ok(()) | Err(RetireError::Disk(_)) => Ok(()),
        }
    }

    fn change_faults(&mut self) {
        let rate = |random: &mut SimRandom| if random.chance(700) { 0 } else { random.below(300) };
        let (write, sync, names) = (rate(&mut self.random), rate(&mut self.random), rate(&mut self.random));
        self.disk.set_faults(Faults { write, sync, names });
    }

    fn crash(&mut self) -> Checked {
        self.outcome.crashes += 1;
        if self.random.chance(100) {
            self.disk.set_faults(Faults::default());
            self.disk.set_capacity(CAPACITY);
            self.committer.close().map_err(|error| format!("not closed: {error}"))?;
        }
        self.sure = self.sure.max(self.journal().durable().0);
        self.outcome.confirmed +=
            self.queues.values().flat_map(|queue| queue.messages.values()).fold(0, |sum, message| {
                sum + u64::from(message.enqueued <= self.sure && message.settled.is_none())
            });
        self.disk = if self.random.chance(750) { self.disk.crash() } else { self.disk.kill() };
        self.disk.set_faults(Faults::default());
        self.disk.set_capacity(CAPACITY);
        if self.ignores_syncs {
            self.disk.lie_about_syncs();
        }
        let (committer, recovered) = open_journal(&self.disk)?;
        self.committer = committer;
        self.on_their_way.clear();
        self.compare(&recovered)
    }

    /// The journal must hold the state of a prefix of the log, up to where it was cut.
    fn compare(&mut self, recovered: &RecoveredJournal) -> Checked {
        let journal = self.journal();
        let end = journal.end().0;
        check(end >= self.sure, || format!("the log ends at {end}, and was on disk up to {}", self.sure))?;
        for (id, queue) in &mut self.queues {
            let log = journal.queue(QueueId(*id));
            let found = recovered.queues.iter().find(|found| found.queue.id() == log.id());
            let settled = found.map_or(&[][..], |found| &found.settled);
            let next = found.map_or(0, |found| found.next_position);
            queue.messages.retain(|_, message| message.enqueued <= end);
            let mut live: BTreeMap<_, _> =
                log.messages_from(0, usize::MAX).into_iter().map(|live| (live.position, live)).collect();
            for (position, message) in &mut queue.messages {
                message.settled = message.settled.filter(|lsn| *lsn <= end);
                message.delivered.retain(|(lsn, _)| *lsn <= end);
                let back = live.remove(position);
                message.check(*position, back, settled).map_err(|wrong| format!("queue {id}: {wrong}"))?;
                if let Some(back) = back {
                    let read = journal.read(back.message).map_err(|error| error.to_string())?;
                    check(read == body(message.serial, message.len), || format!("wrong body at {position}"))?;
                    check(message.moved || next > *position, || format!("next position {next}"))?;
                }
            }
            check(live.is_empty(), || format!("queue {id}: invented {live:?}"))?;
            let again =
                queue.messages.iter().filter(|(_, message)| message.moved).map(|(position, _)| *position);
            journal.moved(&log, again);
        }
        Ok(())
    }
}

impl Message {
    fn check(&self, position: u64, back: Option<LiveMessage>, settled: &[Range]) -> Checked {
        let reported = settled.iter().any(|range| (range.first..=range.last).contains(&position));
        match (self.settled, back) {
            (Some(_), Some(_)) => Err(format!("{position} is back")),
            (Some(_), None) => check(!self.moved || self.persisted || reported, || {
                format!("{position} is not reported as settled")
            }),
            (None, None) => check(self.moved || self.given_up, || format!("{position} is missing")),
            (None, Some(live)) => {
                let count = self.delivered.iter().map(|(_, count)| *count).max().unwrap_or(0);
                check(self.moved || live.deliveries == count, || {
                    format!("{position} was delivered {count} times")
                })?;
                check(live.expires == self.expires, || format!("{position} expires otherwise"))
            }
        }
    }
}

fn open_journal(disk: &SimDisk) -> Result<(Committer, RecoveredJournal), String> {
    let settings =
        JournalSettings { segment_size: SEGMENT, pending_limit: 1 << 16, ..JournalSettings::default() };
    open(Arc::new(disk.clone()), settings, Box::new(())).map_err(|error| error.to_string())
}

fn body(serial: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (serial.wrapping_mul(31) ^ at.wrapping_mul(serial | 1)) as u8).collect()
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(otherwise()) }
}

const SEGMENT: u64 = 12 << 10;
const CAPACITY: u64 = 1 << 20;
const QUEUES: u64 = 3;
