//! A model of the store's contents, to compare with the real ones.

mod compare;

use std::collections::BTreeMap;
use std::sync::Arc;

use store::catalogue::{Section, Ticket};
use store::disk::simulated::{Faults, SimDisk, SimRandom};
use store::journal::{Entry, JournalSettings, MessageRef, QueueId, Range, Transfer};
use store::{Recovered, Retirement, Rounds, Store, StoreSettings, StoredQueue};

/// A run determined by its seed.
pub(crate) struct Run {
    random: SimRandom,
    disk: SimDisk,
    store: Arc<Store>,
    rounds: Rounds,
    queues: BTreeMap<u64, Queue>,
    /// Messages that were appended and have not reached a queue yet.
    on_their_way: Vec<(MessageRef, Body)>,
    serial: u64,
    deliveries: u32,
    /// The highest LSN that was ever reported to be on disk.
    sure: u64,
    outcome: Outcome,
    ignores_syncs: bool,
}

/// Counts of the events of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) confirmed: u64,
    pub(crate) crashes: u64,
    pub(crate) retired: u64,
}

struct Queue {
    stored: StoredQueue,
    declared: Ticket,
    deleted: Option<Ticket>,
    next: u64,
    messages: BTreeMap<u64, Message>,
}

struct Message {
    body: Body,
    expires: u64,
    enqueued: u64,
    /// It came with a transfer that was complete at `enqueued`, and must not be there without it.
    transferred: bool,
    settled: Option<u64>,
    /// LSNs from which on delivery counts hold, and the counts.
    delivered: Vec<(u64, u32)>,
}

#[derive(Clone, Copy)]
struct Body {
    serial: u64,
    len: usize,
}

type Checked = Result<(), String>;

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed, CAPACITY);
        if seed.is_multiple_of(UNPREALLOCATED) {
            disk.refuse_reservations();
        }
        let (store, rounds, _) = open(&disk).unwrap();
        Self {
            random: SimRandom::new(!seed),
            disk,
            store,
            rounds,
            queues: BTreeMap::new(),
            on_their_way: Vec::new(),
            serial: 0,
            deliveries: 0,
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
        for _ in 0..2 + self.random.below(4) {
            for _ in 0..self.random.below(200) {
                self.act()?;
            }
            self.crash()?;
        }
        Ok(self.outcome)
    }

    fn act(&mut self) -> Checked {
        match self.random.below(100) {
            0..30 => self.publish(),
            30..45 => self.settle(),
            45..48 => return self.dead_letter(),
            48..53 => self.deliver(),
            53..76 => self.step(),
            76..88 => self.retire(),
            88..92 => return self.read_some(),
            92..94 => self.change_faults(),
            94..95 => drop(self.store.journal().prepare_segment()),
            95..97 => self.change_queues(),
            _ => {
                let space = if self.random.chance(600) { CAPACITY } else { self.disk.used() + 2000 };
                self.disk.set_capacity(space);
            }
        }
        Ok(())
    }

    fn change_queues(&mut self) {
        let catalogue = self.store.catalogue().clone();
        if self.random.chance(300)
            && let Some(id) = self.any_queue()
            && let Some(queue) = self.queues.get_mut(&id)
        {
            queue.deleted = Some(catalogue.delete(Section::Queues, id.to_be_bytes().to_vec()));
            queue.stored.forget();
        } else if self.living().count() < QUEUES {
            let id = catalogue.new_id();
            let declared = catalogue.put(Section::Queues, id.to_be_bytes().to_vec(), Vec::new());
            let stored = self.store.queue(QueueId(id));
            let messages = BTreeMap::new();
            self.queues.insert(id, Queue { stored, declared, deleted: None, next: 0, messages });
        }
    }

    fn living(&self) -> impl Iterator<Item = u64> {
        self.queues.iter().filter(|(_, queue)| queue.deleted.is_none()).map(|(id, _)| *id)
    }

    fn any_queue(&mut self) -> Option<u64> {
        let count = self.living().count() as u64;
        let chosen = self.random.below(count) as usize;
        self.living().nth(chosen)
    }

    fn publish(&mut self) {
        for _ in 0..=self.random.below(4) {
            self.serial += 1;
            let len = match self.random.below(30) {
                0 => self.random.below(3 * SEGMENT) as usize,
                1..5 => self.random.below(4000) as usize,
                _ => self.random.below(300) as usize,
            };
            let body = Body { serial: self.serial, len };
            let bytes = body.bytes();
            let (start, end) = bytes.split_at(len / 3);
            self.on_their_way.push((self.store.append(&[start, end]).message, body));
        }
        if self.random.chance(800) {
            self.route();
        }
    }

    /// Routes the messages on their way to one queue or to two, some of them later than messages that came after them.
    fn route(&mut self) {
        let Some(first) = self.any_queue() else { return self.change_queues() };
        let mut targets = vec![first];
        if self.random.chance(200) {
            targets.extend(self.any_queue().filter(|second| *second != first));
        }
        let keep = if self.random.chance(200) { self.random.below(3) as usize } else { 0 };
        let mut on_their_way = std::mem::take(&mut self.on_their_way);
        let later = on_their_way.len().min(keep);
        self.on_their_way = on_their_way.drain(..later).collect();
        for (at, id) in targets.iter().enumerate() {
            self.enqueue(*id, &on_their_way, at + 1 == targets.len(), None);
        }
    }

    fn enqueue(
        &mut self,
        id: u64,
        bodies: &[(MessageRef, Body)],
        last: bool,
        transfer: Option<&mut Transfer>,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let mut entries = Vec::new();
        for &(message, _) in bodies {
            queue.next += 1 + self.random.below(8) / 7;
            let expires = if self.random.chance(200) { 1 + self.random.below(1 << 40) } else { 0 };
            entries.push(Entry { position: queue.next, message, expires, last });
        }
        let transferred = transfer.is_some();
        let enqueued = match transfer {
            None => queue.stored.enqueue(&entries).0,
            Some(transfer) => {
                queue.stored.enqueue_in_transfer(&entries, transfer);
                u64::MAX
            }
        };
        for (entry, &(_, body)) in entries.iter().zip(bodies) {
            let expires = entry.expires;
            let message =
                Message { body, expires, enqueued, transferred, settled: None, delivered: Vec::new() };
            queue.messages.insert(entry.position, message);
        }
    }

    fn settle(&mut self) {
        let Some(id) = self.any_queue() else { return };
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let mut ranges = Vec::new();
        // Usually the oldest, as consumers do.
        let front = queue.messages.iter().find(|(_, message)| message.settled.is_none());
        let front = front.map_or(0, |(position, _)| *position);
        for _ in 0..=self.random.below(3) {
            let first = if self.random.chance(600) { front } else { self.random.below(queue.next + 1) };
            let more = if self.random.chance(150) { 50 } else { 4 };
            ranges.push(Range { first, last: (first + self.random.below(more)).min(queue.next.max(first)) });
        }
        let lsn = queue.stored.settle(&ranges).0;
        for range in ranges {
            for (_, message) in queue.messages.range_mut(range.first..=range.last) {
                message.settled.get_or_insert(lsn);
            }
        }
    }

    /// Moves the first message of a queue to one or two others: after a crash it must be in either the first queue or
    /// the others, not in both.
    fn dead_letter(&mut self) -> Checked {
        let (Some(from), Some(to)) = (self.any_queue(), self.any_queue()) else { return Ok(()) };
        let Some(queue) = self.queues.get(&from) else { return Ok(()) };
        let first = queue.messages.iter().find(|(_, message)| message.settled.is_none());
        let Some((&position, message)) = first else { return Ok(()) };
        let body = message.body;
        let copy = self.store.append(&[&body.bytes()]).message;
        let mut targets = vec![to];
        targets.extend(self.any_queue().filter(|other| *other != to && self.random.chance(300)));
        let mut transfer = Transfer::default();
        let mut letters = Vec::new();
        for (at, id) in targets.iter().enumerate() {
            self.enqueue(*id, &[(copy, body)], at + 1 == targets.len(), Some(&mut transfer));
            letters.push((*id, self.queues[id].next));
            match self.random.below(12) {
                0 => self.step(),
                1 => self.retire(),
                2 => return self.crash(),
                _ => {}
            }
        }
        let Some(queue) = self.queues.get_mut(&from) else { return Ok(()) };
        let lsn = queue.stored.transfer(&[Range::one(position)], &transfer).0;
        queue.messages.entry(position).and_modify(|message| message.settled = Some(lsn));
        for (id, position) in letters {
            if let Some(letter) = self.queues.get_mut(&id).and_then(|to| to.messages.get_mut(&position)) {
                letter.enqueued = lsn;
            }
        }
        Ok(())
    }

    fn deliver(&mut self) {
        let Some(id) = self.any_queue() else { return };
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let first = self.random.below(queue.next);
        self.deliveries += 1;
        let (range, count) = (Range { first, last: (first + 3).min(queue.next.max(first)) }, self.deliveries);
        queue.stored.delivered(&[range], count);
        let lsn = self.store.end().0;
        for (_, message) in queue.messages.range_mut(range.first..=range.last) {
            message.delivered.push((lsn, count));
        }
    }

    fn step(&mut self) {
        drop(self.rounds.step());
        self.sure = self.sure.max(self.store.durable().0);
    }

    fn retire(&mut self) {
        if let Retirement::Done = self.rounds.retire() {
            self.outcome.retired += 1;
        }
        self.sure = self.sure.max(self.store.durable().0);
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
            self.rounds.close().map_err(|error| format!("not closed: {error}"))?;
        }
        self.sure = self.sure.max(self.store.durable().0);
        let committed = self.commits();
        self.disk = if self.random.chance(750) { self.disk.crash() } else { self.disk.kill() };
        self.disk.set_faults(Faults::default());
        self.disk.set_capacity(CAPACITY);
        if self.ignores_syncs {
            self.disk.lie_about_syncs();
        }
        let (store, rounds, recovered) = open(&self.disk)?;
        (self.store, self.rounds) = (store, rounds);
        self.on_their_way.clear();
        self.compare(recovered, &committed)
    }
}

impl Outcome {
    pub(crate) fn add(&mut self, other: &Self) {
        self.confirmed += other.confirmed;
        self.crashes += other.crashes;
        self.retired += other.retired;
    }
}

impl Body {
    fn bytes(self) -> Vec<u8> {
        let serial = self.serial;
        (0..self.len as u64).map(|at| (serial.wrapping_mul(31) ^ at.wrapping_mul(serial | 1)) as u8).collect()
    }
}

fn open(disk: &SimDisk) -> Result<(Arc<Store>, Rounds, Recovered), String> {
    let settings = StoreSettings {
        weigh: |payload| payload.len() as u32,
        journal: JournalSettings {
            segment_size: SEGMENT,
            pending_limit: 1 << 16,
            ..JournalSettings::default()
        },
        journal_segments: 2,
        queue_segment_size: 4 << 10,
        open_files: 3,
    };
    Store::open(Arc::new(disk.clone()), settings).map_err(|error| error.to_string())
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(otherwise()) }
}

const SEGMENT: u64 = 12 << 10;
const CAPACITY: u64 = 8 << 20;
/// One seed in this many has a disk that cannot reserve space.
const UNPREALLOCATED: u64 = 4;
const QUEUES: usize = 4;
