//! The state of a channel under its lock: its unsettled deliveries and its consumers' credit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use broker::{ConsumerId, Queue, ThroughputCounters};
use slab::Slab;

use super::{ConsumerKey, Unsettled};

/// Tombstones are swept from the unsettled deliveries when they outnumber both the live entries and this constant, so
/// that one delivery that is never settled does not let the list grow without bound.
pub(super) const RETAINED_TOMBSTONES: usize = 64;

/// Capacity for unsettled deliveries that a channel keeps when there are few: more than most prefetches, at about 70
/// bytes each. Without a prefetch a client may have received a whole queue.
pub(super) const RETAINED_CAPACITY: usize = 1024;

/// The delivering state of a channel.
#[derive(Default)]
pub(super) struct DeliveringChannel {
    /// The last delivery tag assigned; the first is 1.
    pub(super) last_tag: u64,
    /// In ascending order of delivery tag. A settled entry leaves a tombstone until it reaches the front.
    pub(super) unsettled: VecDeque<(u64, Option<Unsettled>)>,
    /// Number of live entries in `unsettled`.
    pub(super) unsettled_count: usize,
    /// Deliveries that use credit, which `channel_limit` bounds. Settlements in an open transaction still count.
    pub(super) consumed_count: usize,
    /// basic.qos with global=true; 0 means no limit.
    pub(super) channel_limit: usize,
    pub(super) consumers: Slab<Credit>,
    /// Serial number of the next consumer.
    pub(super) next_serial: u64,
    /// Consumers that have credit of their own and wait for the channel's, by ticket.
    pub(super) waiting: BTreeMap<u64, ConsumerKey>,
    next_ticket: u64,
    /// The time and the next delivery tag at each call to [`Deliveries::is_overdue`](super::Deliveries::is_overdue),
    /// while older deliveries are unsettled.
    pub(super) marks: VecDeque<(u64, Instant)>,
    /// Counts of deliveries and acknowledgements.
    pub(super) passing: ThroughputCounters,
}

/// One consumer's share of the channel's credit.
pub(super) struct Credit {
    pub(super) serial: u64,
    /// The prefetch; 0 means no limit.
    pub(super) limit: usize,
    pub(super) settling: Settling,
    pub(super) unsettled: usize,
    pub(super) standing: Standing,
    /// Whether the connection's wait queue has just resumed it, so that it need not queue again.
    pub(super) in_turn: bool,
    /// The queue to resume it on; `None` until the queue has accepted the consumer.
    pub(super) registration: Option<(Arc<Queue>, ConsumerId)>,
}

/// How a consumer's deliveries are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settling {
    /// By the client.
    Client,
    /// On delivery (`no_ack`). Uses none of the channel's credit, but waits while there is none: as in RabbitMQ
    /// (`rabbit_limiter:can_send/3`), unsettled deliveries of other consumers hold it back.
    Delivery,
    /// On delivery, without any limit: a reply comes from its sender and not from a queue (RabbitMQ, "Direct Reply-to").
    Reply,
}

impl Settling {
    /// For a consumer of a queue.
    pub(crate) fn of_queue(no_ack: bool) -> Self {
        if no_ack { Self::Delivery } else { Self::Client }
    }
}

/// Whether a consumer is offered messages by its queue. If not, because it has reported that it is full: the event that
/// changes that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Messages are offered.
    Served,
    /// Waits for the settlement of one of its deliveries or, if new, for
    /// [`Deliveries::activate`](super::Deliveries::activate).
    Exhausted,
    /// Waits in [`DeliveringChannel::waiting`] under this ticket.
    Waiting(u64),
    /// Waits in the connection's wait queue under this ticket.
    OutboxFull(u64),
}

impl DeliveringChannel {
    pub(super) fn take_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    pub(super) fn has(&self, key: ConsumerKey) -> bool {
        self.consumers.get(key.place).is_some_and(|credit| credit.serial == key.serial)
    }

    pub(super) fn credit_mut(&mut self, key: ConsumerKey) -> Option<&mut Credit> {
        self.consumers.get_mut(key.place).filter(|credit| credit.serial == key.serial)
    }

    /// Whether the channel's limit allows a delivery.
    fn channel_has_credit(&self) -> bool {
        self.channel_limit == 0 || self.consumed_count < self.channel_limit
    }

    /// Whether a consumer may take a delivery; false for one that was removed.
    pub(super) fn has_credit(&self, key: ConsumerKey) -> bool {
        self.consumers.get(key.place).is_some_and(|credit| {
            let is_limited = credit.settling != Settling::Reply;
            credit.serial == key.serial && (!is_limited || credit.has_own() && self.channel_has_credit())
        })
    }

    /// Records that a consumer could not take a message for lack of credit.
    pub(super) fn exhaust(&mut self, key: ConsumerKey) {
        let Some(credit) = self.credit_mut(key) else { return };
        if credit.has_own() {
            self.wait(key);
        } else {
            credit.standing = Standing::Exhausted;
        }
    }

    /// Adds a consumer to the wait queue for the channel's credit.
    fn wait(&mut self, key: ConsumerKey) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        if let Some(credit) = self.credit_mut(key) {
            credit.standing = Standing::Waiting(ticket);
            self.waiting.insert(ticket, key);
        }
    }

    /// Takes the next consumer from the wait queue for the channel's credit, if there is any credit.
    pub(super) fn next_with_credit(&mut self) -> Option<(Arc<Queue>, ConsumerId)> {
        if !self.channel_has_credit() {
            return None;
        }
        let (_, key) = self.waiting.pop_first()?;
        let credit = self.credit_mut(key)?;
        credit.standing = Standing::Served;
        credit.registration.clone()
    }

    pub(super) fn push(&mut self, tag: u64, entry: Unsettled) {
        if let Some(key) = entry.consumer {
            self.consumed_count += 1;
            if let Some(credit) = self.credit_mut(key) {
                credit.unsettled += 1;
            }
        }
        self.unsettled_count += 1;
        self.unsettled.push_back((tag, Some(entry)));
    }

    /// Gives back the credit of deliveries that were removed.
    pub(super) fn release(&mut self, taken: &[(u64, Unsettled)]) {
        taken.iter().filter_map(|(_, entry)| entry.consumer).for_each(|key| self.give_back(key, 1));
    }

    /// Gives a consumer the credit of this number of deliveries back.
    pub(super) fn give_back(&mut self, key: ConsumerKey, count: usize) {
        self.consumed_count -= count;
        if let Some(credit) = self.credit_mut(key) {
            credit.unsettled -= count;
            if credit.standing == Standing::Exhausted && credit.has_own() {
                self.wait(key);
            }
        }
    }

    pub(super) fn take(&mut self, tag: u64, multiple: bool) -> Option<Vec<(u64, Unsettled)>> {
        if multiple { self.take_up_to(tag) } else { Some(vec![(tag, self.take_one(tag)?)]) }
    }

    fn take_one(&mut self, tag: u64) -> Option<Unsettled> {
        let at = match self.unsettled.front() {
            Some((front, _)) if *front == tag => 0,
            _ => self.unsettled.binary_search_by_key(&tag, |(other, _)| *other).ok()?,
        };
        let entry = self.unsettled[at].1.take()?;
        self.unsettled_count -= 1;
        self.drop_leading_tombstones();
        if self.unsettled.len() > 2 * self.unsettled_count + RETAINED_TOMBSTONES {
            self.unsettled.retain(|(_, entry)| entry.is_some());
        }
        self.give_back_memory();
        Some(entry)
    }

    /// Returns `None` if `tag` itself is not outstanding, even if lower tags are, as in RabbitMQ.
    pub(super) fn take_up_to(&mut self, tag: u64) -> Option<Vec<(u64, Unsettled)>> {
        let end = if tag == 0 {
            self.unsettled.len()
        } else {
            let at = self.unsettled.binary_search_by_key(&tag, |(other, _)| *other).ok()?;
            self.unsettled[at].1.as_ref()?;
            at + 1
        };
        let taken: Vec<_> =
            self.unsettled.drain(..end).filter_map(|(tag, entry)| Some((tag, entry?))).collect();
        self.unsettled_count -= taken.len();
        self.drop_leading_tombstones();
        self.give_back_memory();
        Some(taken)
    }

    /// Takes all deliveries of a channel that ends, and returns them with their number. Their credit is of no use any more.
    pub(super) fn take_at_end(&mut self) -> (usize, VecDeque<(u64, Option<Unsettled>)>) {
        (std::mem::take(&mut self.unsettled_count), std::mem::take(&mut self.unsettled))
    }

    /// Puts taken deliveries back: into their tombstones where these still exist, the others by one merge, since single
    /// insertions would each move all later entries.
    pub(super) fn restore(&mut self, entries: Vec<(u64, Unsettled)>) {
        self.unsettled_count += entries.len();
        let mut missing = Vec::new();
        for (tag, entry) in entries {
            match self.unsettled.binary_search_by_key(&tag, |(other, _)| *other) {
                Ok(at) => self.unsettled[at].1 = Some(entry),
                Err(_) => missing.push((tag, Some(entry))),
            }
        }
        if !missing.is_empty() {
            self.unsettled.extend(missing);
            // The sort detects the ascending runs, and merges them.
            self.unsettled.make_contiguous().sort_by_key(|(tag, _)| *tag);
        }
    }

    /// Keeps an outstanding delivery at the front: its age is the oldest.
    fn drop_leading_tombstones(&mut self) {
        while self.unsettled.front().is_some_and(|(_, entry)| entry.is_none()) {
            self.unsettled.pop_front();
        }
    }

    /// Shrinks after a burst of deliveries was settled: from a quarter full to half full, so that it is rarely done.
    fn give_back_memory(&mut self) {
        let (len, capacity) = (self.unsettled.len(), self.unsettled.capacity());
        if capacity > RETAINED_CAPACITY && len < capacity / 4 {
            self.unsettled.shrink_to(RETAINED_CAPACITY.max(2 * len));
        }
    }
}

/// The credit that deliveries have used, as the numbers of deliveries of consumers, some of which may be there repeatedly.
#[derive(Debug, Default)]
pub(super) struct UsedCredit(Vec<(ConsumerKey, usize)>);

impl UsedCredit {
    pub(super) fn by(unsettled: &[(u64, Unsettled)]) -> Self {
        let mut used: Vec<(ConsumerKey, usize)> = Vec::new();
        for key in unsettled.iter().filter_map(|(_, entry)| entry.consumer) {
            match used.last_mut() {
                Some((last, count)) if *last == key => *count += 1,
                _ => used.push((key, 1)),
            }
        }
        Self(used)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConsumerKey, usize)> {
        self.0.iter().copied()
    }
}

impl Credit {
    /// Whether its own limit, if any, allows a delivery.
    pub(super) fn has_own(&self) -> bool {
        self.limit == 0 || self.unsettled < self.limit
    }
}
