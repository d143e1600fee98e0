//! Moves messages of a queue from memory to disk and back.

use std::sync::Arc;

use store::pages::QueueSegments;

use super::level::Level;
use super::waiting::Waiting;
use super::{Plan, ReadyStore, Run};
use crate::queue::delivery::Delivery;

/// The messages that are not in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OnDisk {
    pub(crate) messages: u64,
    /// Bytes of the bodies of these messages.
    pub(crate) bytes: u64,
}

/// Messages that have to be written before they can leave memory.
pub(in crate::queue) struct ToWrite {
    rank: u8,
    epoch: u64,
    /// The messages in order, including those that are in the store.
    pub(in crate::queue) deliveries: Vec<Delivery>,
    /// The segments to write to.
    pub(in crate::queue) segments: Arc<QueueSegments>,
}

/// How much of a queue leaves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The messages between the first and the last ones of each level.
    Usual,
    /// All but a few of the first messages.
    Short,
    /// All that is in the store, and costs no write.
    Stored,
}

/// The outcome of a page-out step.
pub(in crate::queue) enum PagedOut {
    /// No (more) messages can leave memory.
    Nothing,
    /// These messages have left memory; drop them without the queue's lock.
    Freed(Vec<Delivery>),
    /// Write these messages first: see [`ReadyStore::written`].
    Write(ToWrite),
}

impl ReadyStore {
    /// The positions of messages on disk that the store has, as ranges that contain no other messages.
    pub(in crate::queue) fn stored_ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.levels.iter().flat_map(Level::stored_ranges)
    }

    /// Puts the runs found on disk, each with the rank of its level, behind the messages in memory, in a queue that is
    /// being restored.
    pub(in crate::queue) fn restore_runs(&mut self, runs: impl IntoIterator<Item = (u8, Run)>) {
        for (rank, run) in runs.into_iter().filter(|(_, run)| !run.is_empty()) {
            self.len += run.messages() as usize;
            self.bytes += run.bytes;
            self.on_disk.messages += run.messages();
            self.on_disk.bytes += run.bytes;
            let at = self.level_at(rank);
            self.pinned += self.levels[at].restore_run(run);
        }
    }

    /// Requests a load of the front of the next run, if the next message is on disk.
    pub(in crate::queue) fn want_load(&mut self) {
        self.needs_load |= self.is_on_disk();
    }

    /// Whether messages of a run need to be loaded.
    #[inline]
    pub(in crate::queue) fn needs_load(&self) -> bool {
        self.needs_load
    }

    /// The next load; `None` if it is no longer needed.
    pub(in crate::queue) fn plan_load(&mut self) -> Option<Plan> {
        let plan = self.levels.iter().rev().find_map(|level| level.plan(self.epoch));
        self.needs_load &= plan.is_some();
        plan
    }

    /// Adds loaded messages: all of the plan up to `through`, in order, each with whether it is in the store.
    /// Removes and returns those of a run that `which` selects.
    pub(in crate::queue) fn loaded(
        &mut self,
        plan: &Plan,
        found: Vec<(Delivery, bool)>,
        through: u64,
        which: impl Fn(&Delivery) -> bool,
    ) -> Vec<Delivery> {
        self.needs_load = false;
        if plan.epoch != self.epoch {
            return Vec::new();
        }
        let Ok(at) = self.find_level(plan.rank) else { return Vec::new() };
        if plan.of_returned {
            self.returned_loaded(at, plan, found, through);
            return Vec::new();
        }
        let Some(run) = self.levels[at].run_mut() else { return Vec::new() };
        let before = run.on_disk();
        let mut out = Vec::new();
        let mut loaded = Vec::with_capacity(found.len());
        for (delivery, stored) in found {
            run.remove(&delivery, stored);
            if which(&delivery) { out.push(delivery) } else { loaded.push(delivery) }
        }
        let lost = run.passed(through);
        let after = run.on_disk();
        self.on_disk.messages -= before.messages - after.messages;
        self.on_disk.bytes -= before.bytes - after.bytes;
        self.len -= out.len() + lost.messages as usize;
        self.bytes -= lost.bytes + out.iter().map(|delivery| delivery.message.body_len() as u64).sum::<u64>();
        for delivery in loaded {
            let weight = delivery.message.weight();
            self.resident += weight;
            self.pinned += weight;
            self.levels[at].load(delivery, weight);
        }
        self.join_exhausted();
        out
    }

    fn returned_loaded(&mut self, at: usize, plan: &Plan, found: Vec<(Delivery, bool)>, through: u64) {
        let Some(returned) = &mut self.levels[at].returned else { return };
        let found = found.into_iter().map(|(delivery, _)| delivery).collect();
        let before = returned.pinned();
        let reloaded = returned.loaded(plan, found, through);
        self.pinned = self.pinned - before + returned.pinned();
        self.resident += reloaded.weight;
        self.on_disk.messages -= reloaded.passed.messages;
        self.on_disk.bytes -= reloaded.passed.bytes;
        self.len -= reloaded.lost.messages as usize;
        self.bytes -= reloaded.lost.bytes;
        self.levels[at].returned.take_if(|returned| returned.len() == 0);
    }

    /// Pages out messages: those in the store at once, others after they are [written](Self::written).
    pub(in crate::queue) fn page_out(
        &mut self,
        extent: Extent,
        page_segments: impl Fn() -> Arc<QueueSegments>,
    ) -> PagedOut {
        let single = self.levels.len() == 1;
        for at in 0..self.levels.len() {
            let freed = self.page_out_returned(at, extent);
            if !freed.is_empty() {
                return PagedOut::Freed(freed);
            }
            // A head may only be empty if there is a run.
            let first = self.levels[at].first_of_whole();
            if extent == Extent::Stored && first.is_some_and(|first| !self.stores.includes(first.message())) {
                continue;
            }
            let Some(pinned) = self.levels[at].split(extent.window()) else { continue };
            self.pinned += pinned;
            let mut freed = self.page_out_head(at, extent, single);
            while freed.len() < STEP_MESSAGES
                && self.levels[at].next_of_tail().is_some_and(|next| self.stores.includes(next.message()))
            {
                self.move_to_run(at, single, &mut freed);
            }
            if !freed.is_empty() {
                return PagedOut::Freed(freed);
            }
            if extent != Extent::Stored
                && let Some(deliveries) = self.levels[at].first_of_tail(STEP_MESSAGES, STEP_BYTES)
            {
                let segments = self.levels[at].page_segments(&page_segments);
                let (rank, epoch) = (self.levels[at].rank, self.epoch);
                return PagedOut::Write(ToWrite { rank, epoch, deliveries, segments });
            }
        }
        PagedOut::Nothing
    }

    /// Makes the last messages of a head the first of the run.
    fn page_out_head(&mut self, level: usize, extent: Extent, single: bool) -> Vec<Delivery> {
        let mut freed = Vec::new();
        if extent == Extent::Usual {
            return freed;
        }
        let stores = self.stores;
        let may_leave = |last: &Waiting| stores.includes(last.message());
        while freed.len() < STEP_MESSAGES
            && let Some((delivery, weight)) = self.levels[level].pop_head_back(extent.window(), may_leave)
        {
            self.resident -= weight;
            self.pinned -= weight;
            self.on_disk.add(&delivery);
            self.levels[level].add_in_front_of_run(&delivery, single);
            freed.push(delivery);
        }
        freed
    }

    fn page_out_returned(&mut self, level: usize, extent: Extent) -> Vec<Delivery> {
        let Some(returned) = &mut self.levels[level].returned else { return Vec::new() };
        let before = returned.pinned();
        let freed = returned.page_out(extent, STEP_MESSAGES);
        self.pinned = self.pinned - before + returned.pinned();
        for delivery in &freed {
            self.resident -= delivery.message.weight();
            self.on_disk.add(delivery);
        }
        freed
    }

    /// Called when messages have been written: those that are still in the tail leave memory.
    pub(in crate::queue) fn written(&mut self, written: ToWrite) -> Vec<Delivery> {
        let mut freed = written.deliveries;
        let last = freed.last().map(|delivery| delivery.position);
        freed.clear();
        let Some(last) = last.filter(|_| written.epoch == self.epoch) else { return freed };
        let Ok(at) = self.find_level(written.rank) else { return freed };
        let single = self.levels.len() == 1;
        // A level that was joined meanwhile no longer uses its segments.
        while self.levels[at].next_of_tail().is_some_and(|waiting| waiting.next().position <= last) {
            self.move_to_run(at, single, &mut freed);
        }
        freed
    }

    /// Segments that are no longer needed.
    pub(in crate::queue) fn take_discarded(&mut self) -> Vec<Arc<QueueSegments>> {
        std::mem::take(&mut self.discarded)
    }

    pub(in crate::queue) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    fn move_to_run(&mut self, level: usize, single: bool, freed: &mut Vec<Delivery>) {
        let Some((delivery, weight)) = self.levels[level].pop_tail() else { return };
        let stored = self.stores.includes(&delivery.message);
        self.resident -= weight;
        self.on_disk.add(&delivery);
        self.levels[level].add_to_run(&delivery, stored, single);
        freed.push(delivery);
    }
}

impl Extent {
    /// Bytes of memory below which a queue is not worth the work.
    pub(in crate::queue) fn least(self) -> u64 {
        match self {
            Self::Usual => 128 << 10,
            Self::Short => 16 << 10,
            Self::Stored => 0,
        }
    }

    /// Bytes of memory that stay at the front when a level is split: consumers start with them while more are loaded.
    pub(super) fn window(self) -> u64 {
        match self {
            Self::Usual => 64 << 10,
            Self::Short => 8 << 10,
            Self::Stored => 0,
        }
    }
}

impl OnDisk {
    pub(super) fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.bytes += delivery.message.body_len() as u64;
    }
}

/// Messages paged out under the queue's lock: this takes some ten microseconds.
const STEP_MESSAGES: usize = 512;
/// Bytes per write, which stay in memory meanwhile.
const STEP_BYTES: u64 = 1 << 20;
