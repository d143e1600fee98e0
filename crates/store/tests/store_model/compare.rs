//! Compares after a crash: messages that must be there, must not be, or may be either way.

use std::collections::{BTreeMap, BTreeSet};

use store::catalogue::Section;
use store::journal::QueueId;
use store::pages::Stored;
use store::{Recovered, StoredLocation, StoredQueue};

use super::{Checked, Message, Run, check};

/// Numbers of the queues whose declaration, and of those whose deletion, was reported to be on disk.
pub(super) struct Commits {
    declared: BTreeSet<u64>,
    deleted: BTreeSet<u64>,
}

impl Run {
    pub(super) fn commits(&mut self) -> Commits {
        let catalogue = self.store.catalogue();
        let (mut declared, mut deleted) = (BTreeSet::new(), BTreeSet::new());
        for (id, queue) in &self.queues {
            if catalogue.is_committed(queue.declared) {
                declared.insert(*id);
            }
            if queue.deleted.is_some_and(|deleted| catalogue.is_committed(deleted)) {
                deleted.insert(*id);
            }
            let sure = |message: &&Message| message.enqueued <= self.sure && message.settled.is_none();
            self.outcome.confirmed += queue.messages.values().filter(sure).count() as u64;
        }
        Commits { declared, deleted }
    }

    pub(super) fn compare(&mut self, recovered: Recovered, commits: &Commits) -> Checked {
        let end = self.store.end().0;
        check(end >= self.sure, || format!("the log ends at {end}, and was on disk up to {}", self.sure))?;
        let mut known = BTreeSet::new();
        let keep = |key: &[u8], _: &[u8]| {
            known.extend(key.first_chunk().map(|id| u64::from_be_bytes(*id)));
        };
        self.store.catalogue().scan(Section::Queues, keep).map_err(|error| error.to_string())?;
        let next: BTreeMap<_, _> =
            recovered.queues().map(|found| (found.id.0, found.next_position)).collect();
        for id in next.keys().filter(|id| !known.contains(id)) {
            self.store.forget(QueueId(*id));
        }
        let mut found = places(recovered)?;
        self.queues.retain(|id, _| {
            known.contains(id) || !commits.declared.contains(id) || !commits.deleted.contains(id)
        });
        for id in &commits.declared {
            let gone = self.queues.get(id).is_none_or(|queue| queue.deleted.is_some());
            check(known.contains(id) || gone, || format!("queue {id} is missing"))?;
        }
        check(commits.deleted.is_disjoint(&known), || "a deleted queue is back".into())?;
        self.queues.retain(|id, _| known.contains(id));
        for (id, queue) in &mut self.queues {
            queue.stored = self.store.queue(QueueId(*id));
            queue.deleted = None;
            queue.next = next.get(id).copied().unwrap_or(0);
            let mut back = read_all(&queue.stored)?;
            let places = found.remove(id).unwrap_or_default();
            let wrong = |wrong: String| format!("queue {id}: {wrong}");
            check(places.len() == back.len(), || wrong(format!("{} and {}", places.len(), back.len())))?;
            for (stored, (place, payload)) in back.values().zip(places.values()) {
                let same = (stored.position, stored.deliveries, stored.expires.unwrap_or(0));
                check(same == (place.position, place.deliveries, place.expires), || {
                    wrong(format!("{place:?}"))
                })?;
                check(stored.payload == *payload, || wrong(format!("{} differs", place.position)))?;
                check(queue.next > place.position, || wrong(format!("next position {}", queue.next)))?;
            }
            for (position, message) in &mut queue.messages {
                message
                    .check(back.remove(position), end)
                    .map_err(|what| wrong(format!("{position} {what}")))?;
            }
            check(back.is_empty(), || wrong(format!("invented {:?}", back.keys())))?;
            // Settle records found behind this may yet be lost: they were not reported to be on disk.
            let durable = self.store.durable().0;
            queue.messages.retain(|_, message| message.settled.is_none_or(|lsn| lsn > durable));
            // Positions below were named by records that are lost.
            queue.next = queue.next.max(queue.messages.keys().next_back().map_or(0, |last| last + 1));
        }
        check(found.is_empty(), || format!("unknown queues {:?}", found.keys()))
    }

    pub(super) fn read_some(&mut self) -> Checked {
        let Some(id) = self.any_queue() else { return Ok(()) };
        let from = self.random.below(self.queues[&id].next + 1);
        let (messages, bytes) = (1 + self.random.below(10) as usize, self.random.below(3000) as usize);
        let queue = &self.queues[&id];
        let faults = |error: &store::StoreError| error.to_string().contains("simulated");
        let read = match queue.stored.read(from, messages, bytes) {
            Err(error) if faults(&error) => return Ok(()),
            read => read.map_err(|error| error.to_string())?,
        };
        let mut space = bytes;
        let live = queue.messages.range(from..).filter(|(_, message)| message.settled.is_none());
        let mut expected = Vec::new();
        for (position, message) in live.take(messages) {
            if message.body.len > space && !expected.is_empty() {
                break;
            }
            space = space.saturating_sub(message.body.len);
            expected.push((*position, message.expires, message.count(u64::MAX)));
        }
        let found: Vec<_> =
            read.iter().map(|read| (read.position, read.expires.unwrap_or(0), read.deliveries)).collect();
        let is_start = found.len() <= expected.len() && found[..] == expected[..found.len()];
        check(is_start && found.is_empty() == expected.is_empty(), || {
            format!("queue {id} from {from}: read {found:?}, not {expected:?}")
        })?;
        for stored in &read {
            let body = queue.messages[&stored.position].body;
            check(stored.payload == body.bytes(), || format!("wrong body at {}", stored.position))?;
        }
        Ok(())
    }
}

impl Message {
    /// The highest delivery count in the log up to an LSN.
    fn count(&self, end: u64) -> u32 {
        self.delivered.iter().filter(|(lsn, _)| *lsn <= end).map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// Compares with the recovered message, and continues from its state.
    fn check(&mut self, back: Option<Stored>, end: u64) -> Checked {
        let settled = self.settled.is_some_and(|lsn| lsn <= end);
        let Some(back) = back else {
            check(settled || self.enqueued > end, || "is missing".into())?;
            // A record that was lost never comes back.
            self.settled = self.settled.filter(|_| settled).or(Some(0));
            return Ok(());
        };
        check(!settled, || "is back".into())?;
        check(!self.transferred || self.enqueued <= end, || "is here and where it came from".into())?;
        self.transferred = false;
        check(back.payload == self.body.bytes(), || "has a wrong body".into())?;
        check(back.expires.unwrap_or(0) == self.expires, || "expires otherwise".into())?;
        let reported = (self.count(end)..=self.count(u64::MAX)).contains(&back.deliveries);
        check(reported, || format!("was delivered {} times", back.deliveries))?;
        self.delivered.retain(|(lsn, _)| *lsn <= end);
        self.delivered.push((end, back.deliveries));
        self.settled = None;
        self.enqueued = self.enqueued.min(end);
        Ok(())
    }
}

/// By queue and position.
type Places = BTreeMap<u64, BTreeMap<u64, (StoredLocation, Vec<u8>)>>;

fn places(recovered: Recovered) -> Result<Places, String> {
    let mut found = Places::new();
    let mut twice = None;
    let read = recovered.read(
        |_| true,
        |payload, places| {
            for place in places {
                let queue = found.entry(place.queue.0).or_default();
                twice = queue
                    .insert(place.position, (*place, payload.to_vec()))
                    .map(|(place, _)| place)
                    .or(twice);
            }
        },
    );
    read.map_err(|error| error.to_string())?;
    check(twice.is_none(), || format!("found twice: {twice:?}"))?;
    Ok(found)
}

fn read_all(queue: &StoredQueue) -> Result<BTreeMap<u64, Stored>, String> {
    let (mut found, mut from) = (BTreeMap::new(), 0);
    loop {
        let read = queue.read(from, 7, 2000).map_err(|error| error.to_string())?;
        let Some(last) = read.last() else { return Ok(found) };
        check(read.windows(2).all(|pair| pair[0].position < pair[1].position), || "out of order".into())?;
        from = last.position + 1;
        found.extend(read.into_iter().map(|stored| (stored.position, stored)));
    }
}
