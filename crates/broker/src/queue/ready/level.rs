//! The ready messages of one rank: of one priority, or all returned messages where these come first.

use std::sync::Arc;

use store::pages::QueueSegments;

use super::chunked::ChunkedDeque;
use super::returned::{Front, ReturnedMessages};
use super::run::{Plan, Run};
use super::waiting::{Next, Waiting};
use crate::queue::delivery::Delivery;

/// Messages that returned to their position are stored separately, in front of those that have never left: they are older,
/// and rare. If returned messages come first, one level contains all of them, and nothing else.
pub(super) struct Level {
    /// The priority of its messages, or a rank above all priorities, for returned messages.
    pub(super) rank: u8,
    /// Messages that were returned; `None` if there are none.
    pub(super) returned: Option<Box<ReturnedMessages>>,
    /// The messages that have never left; in a split level, only the first of them.
    head: ChunkedDeque<Waiting>,
    split: Option<Box<Split>>,
}

/// The part behind the head. The head can only be empty while the run is not.
struct Split {
    run: Run,
    tail: ChunkedDeque<Waiting>,
    /// Bytes of memory that messages in the head take.
    head_weight: u64,
}

/// A message that was taken.
pub(super) struct Popped {
    pub(super) delivery: Delivery,
    /// Bytes by which the part of the level that cannot be paged out has shrunk.
    pub(super) unpinned: u64,
    /// A load is needed.
    pub(super) needs_load: bool,
    /// The level has to be [joined](Level::join).
    pub(super) joins: bool,
}

impl Level {
    pub(super) fn new(rank: u8) -> Self {
        Self { rank, returned: None, head: ChunkedDeque::new(), split: None }
    }

    /// The number of messages, including those on disk.
    pub(super) fn len(&self) -> u64 {
        let split = self.split.as_ref().map_or(0, |split| split.run.messages() + split.tail.len() as u64);
        split + self.returned.as_ref().map_or(0, |returned| returned.len()) + self.head.len() as u64
    }

    #[inline]
    pub(super) fn push(&mut self, delivery: Delivery) {
        match &mut self.split {
            None => self.head.push_back(delivery.into()),
            Some(split) => split.tail.push_back(delivery.into()),
        }
    }

    #[inline]
    pub(super) fn front(&self) -> Option<Next> {
        match self.front_of_returned() {
            Some(Front::InMemory(next)) => Some(next),
            Some(Front::OnDisk(_)) => None,
            None => self.head.front().map(Waiting::next),
        }
    }

    #[inline]
    fn front_of_returned(&self) -> Option<Front> {
        self.returned.as_ref().and_then(|returned| returned.front())
    }

    /// Whether the level has messages, and the next one is on disk.
    #[inline]
    pub(super) fn is_on_disk(&self) -> bool {
        (self.split.is_some() || self.returned.is_some()) && self.front().is_none()
    }

    /// The earliest time at which the next message expires, if it is on disk.
    pub(super) fn expiry_on_disk(&self) -> Option<u64> {
        match self.front_of_returned() {
            Some(Front::OnDisk(expires)) => Some(expires),
            _ => self.split.as_ref().map(|split| split.run.expires),
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Popped> {
        if self.returned.is_some() {
            return self.pop_returned();
        }
        let delivery = self.head.pop_front()?.into_delivery();
        if let Some(split) = &mut self.split {
            let unpinned = delivery.message.weight();
            split.head_weight -= unpinned;
            let on_disk = !split.run.is_empty();
            let needs_load = on_disk && split.head_weight < LOW_HEAD;
            let joins = !on_disk && self.head.is_empty();
            return Some(Popped { delivery, unpinned, needs_load, joins });
        }
        Some(Popped { delivery, unpinned: 0, needs_load: false, joins: false })
    }

    fn pop_returned(&mut self) -> Option<Popped> {
        let returned = self.returned.as_mut()?;
        let before = returned.pinned();
        let delivery = returned.pop()?;
        let (unpinned, needs_load) = (before - returned.pinned(), returned.needs_load());
        self.returned.take_if(|returned| returned.len() == 0);
        Some(Popped { delivery, unpinned, needs_load, joins: false })
    }

    /// Adds a returned message. Returns the growth in bytes of the part of the level that cannot be paged out.
    pub(super) fn put_back(&mut self, place: u64, delivery: Delivery, stored: bool) -> u64 {
        let returned = self.returned.get_or_insert_default();
        let before = returned.pinned();
        returned.insert(place, delivery, stored);
        returned.pinned() - before
    }

    /// Adds messages that returned together. Returns the growth in bytes of the part of the level that cannot be paged out.
    pub(super) fn put_back_all(&mut self, messages: ReturnedMessages) -> u64 {
        let returned = self.returned.get_or_insert_default();
        let before = returned.pinned();
        returned.join(messages);
        returned.pinned() - before
    }

    /// All messages in memory.
    pub(super) fn iter(&self) -> impl Iterator<Item = Delivery> {
        let tail = self.split.iter().flat_map(|split| split.tail.iter());
        let returned = self.returned.iter().flat_map(|returned| returned.in_memory());
        returned.cloned().chain(self.head.iter().chain(tail).map(Waiting::to_delivery))
    }

    /// Removes the selected messages from memory, and returns how many bytes of memory belonged to the head
    /// of a split level.
    pub(super) fn extract(&mut self, which: impl Fn(&Delivery) -> bool, taken: &mut Vec<Delivery>) -> u64 {
        let mut keep = |waiting: &Waiting| {
            let delivery = waiting.to_delivery();
            let out = which(&delivery);
            if out {
                taken.push(delivery);
            }
            !out
        };
        let before: u64 = self.split.as_ref().map_or(0, |split| split.head_weight);
        self.head.retain(&mut keep);
        let Some(split) = &mut self.split else { return 0 };
        split.head_weight = weight_of(&self.head);
        let pinned = before - split.head_weight;
        split.tail.retain(keep);
        pinned
    }

    /// Whether a message that is added now would follow one on disk.
    #[inline]
    pub(super) fn takes_no_tail(&self) -> bool {
        self.split.as_ref().is_some_and(|split| split.tail.is_empty() && !split.run.is_empty())
    }

    pub(super) fn run(&self) -> Option<&Run> {
        self.split.as_ref().map(|split| &split.run)
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut Run> {
        self.split.as_mut().map(|split| &mut split.run)
    }

    /// The positions of messages on disk that the store has, as ranges that contain no other messages.
    pub(super) fn stored_ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let run = self.run().filter(|run| run.stored > 0);
        let returned = self.returned.iter().flat_map(|returned| returned.spans());
        returned.chain(run.into_iter().flat_map(Run::spans))
    }

    pub(super) fn take_page_segments(&mut self) -> Option<Arc<QueueSegments>> {
        self.split.as_mut().and_then(|split| split.run.page_segments.take())
    }

    pub(super) fn add_in_front_of_run(&mut self, delivery: &Delivery, single: bool) {
        if let Some(split) = &mut self.split {
            split.run.add_front(delivery, single);
        }
    }

    pub(super) fn add_to_run(&mut self, delivery: &Delivery, stored: bool, single: bool) {
        if let Some(split) = &mut self.split {
            split.run.add(delivery, stored, single);
        }
    }

    /// Adds a run found on disk behind the messages in memory. Returns the bytes of memory that belong to the
    /// head now.
    pub(super) fn restore_run(&mut self, run: Run) -> u64 {
        let head_weight = weight_of(&self.head);
        self.split = Some(Box::new(Split { run, tail: ChunkedDeque::new(), head_weight }));
        head_weight
    }

    /// The load that is needed next.
    pub(super) fn plan(&self, epoch: u64) -> Option<Plan> {
        let of_returned = self.returned.as_ref().and_then(|returned| returned.plan(self.rank, epoch));
        of_returned.or_else(|| self.plan_of_run(epoch))
    }

    fn plan_of_run(&self, epoch: u64) -> Option<Plan> {
        let split = self.split.as_ref().filter(|split| split.head_weight < LOW_HEAD)?;
        split.run.plan(self.rank, epoch)
    }

    /// Adds a loaded message of the run at the end of the head.
    pub(super) fn load(&mut self, delivery: Delivery, weight: u64) {
        if let Some(split) = &mut self.split {
            split.head_weight += weight;
        }
        self.head.push_back(delivery.into());
    }

    /// Splits the level after the first `window` bytes, if it is not split. Returns the bytes of memory that are now in the
    /// head; `None` if all messages fit into the head.
    pub(super) fn split(&mut self, window: u64) -> Option<u64> {
        if self.split.is_some() {
            return Some(0);
        }
        let mut first = ChunkedDeque::new();
        let mut head_weight = 0;
        while head_weight < window
            && let Some(waiting) = self.head.pop_front()
        {
            head_weight += waiting.message().weight();
            first.push_back(waiting);
        }
        let tail = std::mem::replace(&mut self.head, first);
        if tail.is_empty() {
            return None;
        }
        self.split = Some(Box::new(Split { run: Run::default(), tail, head_weight }));
        Some(head_weight)
    }

    /// The first message that has never left, in a level that is not split.
    pub(super) fn first_of_whole(&self) -> Option<&Waiting> {
        if self.split.is_none() { self.head.front() } else { None }
    }

    /// Takes the last message of the head of a split level, if the others use at least `window` bytes and `may_leave`
    /// allows it.
    pub(super) fn pop_head_back(
        &mut self,
        window: u64,
        may_leave: impl Fn(&Waiting) -> bool,
    ) -> Option<(Delivery, u64)> {
        let split = self.split.as_mut()?;
        let last = self.head.back().filter(|last| may_leave(last))?;
        let weight = last.message().weight();
        let rest = split.head_weight - weight;
        if rest < window {
            return None;
        }
        let delivery = self.head.pop_back()?.into_delivery();
        split.head_weight = rest;
        Some((delivery, weight))
    }

    /// The next message that would be paged out.
    pub(super) fn next_of_tail(&self) -> Option<&Waiting> {
        self.split.as_ref()?.tail.front()
    }

    /// The first messages that would be paged out.
    pub(super) fn first_of_tail(&self, most: usize, most_bytes: u64) -> Option<Vec<Delivery>> {
        let mut bytes = 0;
        let tail = self.split.as_ref()?.tail.iter().take(most);
        let first: Vec<_> = tail
            .take_while(|waiting| {
                let fits = bytes < most_bytes;
                // Very many queues may share the message, and each copies all of it.
                bytes += waiting.message().weight().max(waiting.message().body_len() as u64);
                fits
            })
            .map(Waiting::to_delivery)
            .collect();
        (!first.is_empty()).then_some(first)
    }

    pub(super) fn pop_tail(&mut self) -> Option<(Delivery, u64)> {
        let delivery = self.split.as_mut()?.tail.pop_front()?.into_delivery();
        let weight = delivery.message.weight();
        Some((delivery, weight))
    }

    /// The segments for messages that are not in the store.
    pub(super) fn page_segments(&mut self, new: impl Fn() -> Arc<QueueSegments>) -> Arc<QueueSegments> {
        match &mut self.split {
            Some(split) => split.run.page_segments.get_or_insert_with(new).clone(),
            None => new(),
        }
    }

    /// Joins head and tail if the run is empty. Returns the bytes of memory that no longer count as the
    /// head's, and the segments that are no longer needed.
    pub(super) fn join(&mut self) -> Option<(u64, Option<Arc<QueueSegments>>)> {
        let split = self.split.take_if(|split| split.run.is_empty())?;
        let Split { run, tail, head_weight } = *split;
        self.head.append(tail);
        Some((head_weight, run.page_segments))
    }
}

fn weight_of(messages: &ChunkedDeque<Waiting>) -> u64 {
    messages.iter().map(|waiting| waiting.message().weight()).sum()
}

/// The head is loaded up to this number of bytes: a consumer takes this many in some milliseconds, and a disk reads more in
/// that time.
const LOW_HEAD: u64 = 512 << 10;
