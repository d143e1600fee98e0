//! The broker's answers, and the loss of a connection.

use std::time::{Duration, Instant};

use super::{CAREFUL_WINDOW, Forwarding, ForwardingChannel, SILENT_MAX, Settled};
use crate::item::{Item, Source};
use crate::refusal::{FaultCertainty, MessageRefusal};

impl<T> Forwarding<T> {
    /// Handles confirms of the broker, by a channel's delivery tags.
    pub fn acked(&mut self, channel: ForwardingChannel, delivery_tag: u64, multiple: bool, now: Instant) {
        for item in self.channel_mut(channel).take(delivery_tag, multiple) {
            self.remove_from_flight(&item);
            if self.suspect.is_some_and(|(id, _)| id == item.envelope.id()) {
                self.suspect = None;
            }
            self.nacks.ended(&self.keys, item.destination, &item.envelope);
            self.silent.remove(&item.destination);
            self.confirmed += 1;
            if channel == ForwardingChannel::Careful {
                self.careful_confirmed += 1;
                self.refused_exchanges.confirmed(&self.keys, item.destination, &item.envelope);
            }
            self.bytes -= item.bytes();
            self.settled.push_back(Settled::Forwarded(item.handle));
            if item.was_deferred {
                self.deferred.left(item.destination, true);
            }
            if let Source::Backlog(backlog) = item.source {
                self.left_backlog(backlog);
            }
            self.answered(item.destination, now);
        }
        self.widen();
    }

    fn widen(&mut self) {
        if self.window < self.limits.window && self.confirmed >= self.window {
            self.window = self.limits.window.min(2 * self.window);
            self.confirmed = 0;
        }
        if self.careful_confirmed >= self.caution.confirms_to_grow * self.careful_window {
            self.careful_window = CAREFUL_WINDOW.min(2 * self.careful_window);
            self.careful_confirmed = 0;
        }
    }

    /// Handles nacks, such as those for a full queue: the messages are retried later, or parked if that has gone on for too
    /// long. `at` is the time in milliseconds since 1970, or `None` if nothing can be parked now.
    pub fn nacked(
        &mut self,
        channel: ForwardingChannel,
        delivery_tag: u64,
        multiple: bool,
        now: Instant,
        at: Option<u64>,
    ) {
        for item in self.channel_mut(channel).take(delivery_tag, multiple) {
            self.remove_from_flight(&item);
            let destination = item.destination;
            self.silent.remove(&destination);
            let lasted = self.nacks.nacked(&self.keys, destination, &item.envelope, now);
            let age = at.map(|at| Duration::from_millis(at.saturating_sub(item.envelope.accepted_at())));
            let is_over = |max| lasted >= max && age.is_some_and(|age| age >= max);
            if self.limits.nacked_max.is_some_and(is_over) {
                // No further pause, so that the messages behind it are attempted.
                if item.was_deferred {
                    self.deferred.left(destination, false);
                }
                self.park(item, MessageRefusal::of_nacks(lasted));
            } else {
                let channel = self.channel_of(&item);
                self.deferred.nacked(item, channel);
            }
            self.answered(destination, now);
        }
    }

    /// Handles a channel that the broker has closed because of one of the messages in flight there.
    pub fn refused(&mut self, channel: ForwardingChannel, refusal: MessageRefusal, now: Instant) {
        let mut back = self.channel_mut(channel).close();
        back.iter().for_each(|item| self.remove_from_flight(item));
        if channel == ForwardingChannel::Careful {
            (self.careful_window, self.careful_confirmed) = (1, 0);
        }
        match back.len() {
            0 => {}
            1 => {
                let culprit = back.remove(0);
                self.blame(culprit, refusal, now);
            }
            count => {
                let named = back.iter().find(|item| refusal.names_exchange_of(&item.envelope));
                let is_known = named.is_some_and(|named| {
                    self.refused_exchanges.add(&self.keys, named.destination, &named.envelope, true)
                });
                if !is_known && channel == ForwardingChannel::Fast {
                    (self.window, self.confirmed) = ((count / 2).max(1), 0);
                }
            }
        }
        self.put_back(back, now);
    }

    /// Parks the message that was in flight alone when the broker refused one.
    fn blame(&mut self, culprit: Item<T>, refusal: MessageRefusal, now: Instant) {
        let (destination, envelope) = (culprit.destination, culprit.envelope.clone());
        self.nacks.ended(&self.keys, destination, &envelope);
        self.silent.remove(&destination);
        self.refused_exchanges.remember(&envelope, &refusal, now);
        let is_named = refusal.names_exchange_of(&envelope);
        if self.refused_exchanges.add(&self.keys, destination, &envelope, is_named) {
            // Further messages of its exchange that the broker refuses are found on the careful channel.
            (self.window, self.confirmed) = (self.limits.window, 0);
        }
        if culprit.was_deferred {
            self.deferred.left(destination, false);
        }
        self.park(culprit, refusal);
        self.answered(destination, now);
    }

    /// Handles a broker that has stopped reading the connection; call it before [`Self::lost`]. It stops because of a queue
    /// that accepts messages and confirms none, such as a quorum queue without a majority. From now on only one message of
    /// that queue's destination is in flight until the broker answers: RabbitMQ stops reading only at 32 unconfirmed
    /// messages. If the connection `is_isolated`, the destination is one of those in flight: the first one that was not
    /// suspected before is suspected now. Otherwise it may be a destination of another client.
    ///
    /// # Example
    /// Messages for the queues D, A, D, B, A were published in this order, and the first ones for A and B are confirmed.
    /// RabbitMQ has read those before that for B, and so D is suspected. A is not: RabbitMQ may not have read the last one.
    pub fn stalled(&mut self, is_isolated: bool) {
        for channel in [&self.fast, &self.careful] {
            // A destination that was suspected before had a single message in flight, for which no broker stops.
            let is_new = |item: &&Item<T>| is_isolated && !self.silent.contains(&item.destination);
            let first = channel.unanswered().find(is_new);
            for item in channel.passed_over().chain(first) {
                if self.silent.len() >= SILENT_MAX {
                    self.silent.clear();
                }
                self.silent.insert(item.destination);
            }
        }
    }

    /// Handles the loss of the connection, with whatever was published on its channels, and releases all messages. `close`
    /// has the code and text of the broker's connection.close if there was one: the message that caused it is parked once
    /// it is found. Returns whether that search continues, which needs another connection.
    pub fn lost(&mut self, close: Option<MessageRefusal>) -> bool {
        let mut back = self.fast.close();
        back.extend(self.careful.close());
        let sought = close
            .map(|close| (close.certainty(), close))
            .filter(|(certainty, _)| *certainty != FaultCertainty::None);
        let is_sought = sought.is_some() && !back.is_empty();
        if let Some((certainty, close)) = sought {
            match &back[..] {
                [] => {}
                [alone] => {
                    let id = alone.envelope.id();
                    let before =
                        self.suspect.filter(|(suspect, _)| *suspect == id).map_or(0, |(_, times)| times);
                    self.suspect = Some((id, before + 1));
                    (self.window, self.confirmed) = (1, 0);
                    if certainty == FaultCertainty::Certain || before + 1 >= close.attempts() {
                        self.suspect = None;
                        self.window = self.limits.window;
                        back.drain(..).for_each(|item| self.park(item, close.clone()));
                    }
                }
                all => (self.window, self.confirmed) = ((all.len() / 2).max(1), 0),
            }
        }
        back.extend(std::mem::take(&mut self.queued));
        back.extend(self.deferred.take_all());
        back.into_iter().for_each(|item| self.release(item));
        self.main_in_flight.clear();
        self.settled.extend(self.backlogs.forget_unused().into_iter().map(Settled::Emptied));
        (self.careful_window, self.careful_confirmed) = (1, 0);
        is_sought
    }

    /// Schedules messages without an answer, in order, to be published before all others.
    fn put_back(&mut self, back: Vec<Item<T>>, now: Instant) {
        let mut destinations = Vec::new();
        for item in back.into_iter().rev() {
            // After a nack, a later message of the destination may have been in flight; it belongs behind that one.
            if item.was_deferred || self.deferred.contains(item.destination) {
                destinations.push(item.destination);
                let channel = self.channel_of(&item);
                self.deferred.returned(item, channel);
            } else {
                self.queued.push_front(item);
            }
        }
        // Once all of them are back: those that move to a backlog do so in order.
        destinations.into_iter().for_each(|destination| self.answered(destination, now));
    }
}
