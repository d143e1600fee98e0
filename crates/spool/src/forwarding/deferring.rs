//! Messages that have to wait for their destination, in memory or in a backlog, and how they leave.

use std::time::Instant;

use super::{Forwarding, ForwardingChannel, Settled, channel_of};
use crate::backlogs::BacklogId;
use crate::deferred::DeferredSize;
use crate::item::{DestinationKey, Item, Source};
use crate::refusal::MessageRefusal;

impl<T> Forwarding<T> {
    /// Defers a message if earlier ones of its destination wait, or if its exchange refuses messages; returns it otherwise.
    pub(super) fn defer(&mut self, item: Item<T>) -> Option<Item<T>> {
        let destination = item.destination;
        let covering = self.covering(&item).or_else(|| self.backlog_if_silent(&item));
        let channel = self.channel_of(&item);
        if covering.is_none() && channel == ForwardingChannel::Fast && !self.deferred.contains(destination) {
            return Some(item);
        }
        if let Some(backlog) = covering {
            if !self.deferred.has_main(destination) && !self.main_in_flight.contains_key(&destination) {
                self.move_to(backlog, item);
                return None;
            }
            // Behind the waiting messages: an older message must not follow newer ones in the backlog.
            self.deferred.insert(item, channel);
            self.start_move(destination, backlog);
            return None;
        }
        self.deferred.insert(item, channel);
        self.shrink();
        None
    }

    pub(super) fn covering(&self, item: &Item<T>) -> Option<BacklogId> {
        if self.backlogs.is_empty() {
            return None;
        }
        self.backlogs.covering(&self.keys, item.destination, &item.envelope)
    }

    /// Creates a backlog for a destination that may have stalled a connection. Messages in flight from a backlog delay
    /// neither the move of later ones nor reads of the main queue. The exchange's backlog would not do: there, messages for
    /// other destinations would wait behind them.
    fn backlog_if_silent(&mut self, item: &Item<T>) -> Option<BacklogId> {
        let (destination, limit) = (item.destination, self.limits.backlogs);
        let is_wanted = self.silent.contains(&destination) && self.backlogs.may_create_own(limit);
        is_wanted.then(|| self.backlogs.create(&self.keys, destination, &item.envelope, limit))
    }

    pub(super) fn channel_of(&self, item: &Item<T>) -> ForwardingChannel {
        channel_of(&self.refused_exchanges, &self.keys, item)
    }

    pub(super) fn move_to(&mut self, backlog: BacklogId, item: Item<T>) {
        self.backlogs.joined(backlog);
        self.bytes -= item.bytes();
        self.settled.push_back(Settled::Deferred(backlog, item.handle));
    }

    /// Moves messages to backlogs if too many wait in memory.
    pub(super) fn shrink(&mut self) {
        let (size, limits) = (self.deferred.main(), self.limits);
        if size.messages < limits.deferred && size.bytes < limits.deferred_bytes {
            return;
        }
        self.move_largest(DeferredSize { messages: limits.deferred / 2, bytes: limits.deferred_bytes / 2 });
    }

    /// Frees the memory of messages that wait for their destination: those of the main queue move to backlogs, and those
    /// of a backlog are released while its destination pauses. Returns whether it freed any.
    pub fn free_memory(&mut self) -> bool {
        let before = self.bytes;
        self.move_largest(DeferredSize::default());
        for item in self.deferred.take_pausing(&self.backlogs) {
            self.release(item);
        }
        self.bytes < before
    }

    /// Moves messages of the destinations with the most bytes to backlogs, until at most `stay` remains.
    fn move_largest(&mut self, stay: DeferredSize) {
        let limits = self.limits;
        let largest: Vec<_> = self
            .deferred
            .largest(stay)
            .into_iter()
            .map(|(destination, front)| {
                let covering = self.backlogs.covering(&self.keys, destination, &front.envelope);
                let create =
                    || self.backlogs.create(&self.keys, destination, &front.envelope, limits.backlogs);
                (destination, covering.unwrap_or_else(create))
            })
            .collect();
        for (destination, backlog) in largest {
            self.start_move(destination, backlog);
        }
    }

    pub(super) fn start_move(&mut self, destination: DestinationKey, backlog: BacklogId) {
        if self.deferred.move_to(destination, backlog) {
            self.backlogs.plan_move(backlog);
        }
        self.finish_move(destination);
    }

    /// Moves the messages that have to go to a backlog, unless one of the main queue's is in flight and may return before
    /// them.
    pub(super) fn finish_move(&mut self, destination: DestinationKey) {
        if self.main_in_flight.contains_key(&destination) {
            return;
        }
        let Some((backlog, items)) = self.deferred.take_moving(destination) else { return };
        items.into_iter().for_each(|item| self.move_to(backlog, item));
        self.backlogs.complete_move(backlog);
        self.deferred.forget_unused(destination, &self.backlogs);
    }

    /// Does the work that is due for a destination after an answer of the broker.
    pub(super) fn answered(&mut self, destination: DestinationKey, now: Instant) {
        if !self.deferred.contains(destination) {
            return;
        }
        self.finish_move(destination);
        let unneeded = self.deferred.answered(destination, &self.backlogs, now);
        for item in unneeded {
            self.release(item);
        }
        self.shrink();
    }

    pub(super) fn release(&mut self, item: Item<T>) {
        self.bytes -= item.bytes();
        if let Source::Backlog(backlog) = item.source {
            self.backlogs.unloaded(backlog, &item.envelope);
        }
        self.settled.push_back(Settled::Released(item.handle));
    }

    pub(super) fn park(&mut self, item: Item<T>, refusal: MessageRefusal) {
        self.bytes -= item.bytes();
        self.settled.push_back(Settled::Parked(item.envelope, item.handle, refusal));
        if let Source::Backlog(backlog) = item.source {
            self.left_backlog(backlog);
        }
    }

    pub(super) fn left_backlog(&mut self, backlog: BacklogId) {
        if self.backlogs.left(backlog) {
            self.settled.push_back(Settled::Emptied(backlog));
        }
    }
}
