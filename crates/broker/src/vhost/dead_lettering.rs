//! Sending dead letters.

use std::collections::VecDeque;
use std::sync::Arc;

use store::journal::Transfer;
use sync::work;

use super::VirtualHost;
use crate::dead_letter::DeadLetterPublish;
use crate::metrics::SharedCounter;
use crate::persistence::{LastStoring, StoredBatch};
use crate::queue::{DeadLetter, DeathReason, Queue, Sender, Step};
use crate::routing::Routed;
use crate::time::Timestamp;

/// Queues that dropped messages because dead letters arrived, each with the number of its own dead letters that this
/// thread has to send.
type Pending = VecDeque<(Arc<Queue>, usize)>;

/// Nanoseconds charged for creating a dead letter and finding its queues.
const LETTER: u32 = 1_500;

/// Nanoseconds charged for each destination queue, including the append.
const APPEND: u32 = 150;

impl VirtualHost {
    /// Routes the first queued dead letters of `from` to its dead-letter exchange, `at_least` this number if there are as many.
    /// Then sends the dead letters that other queues drop as a consequence, and so on, and finally those that `from` has
    /// dropped in the meantime, if they are not many. Ends early when the thread's turn is over, but not before it has sent
    /// one. Called without any lock held. Letters to a missing exchange are dropped. Returns the number of sent dead letters of
    /// `from`.
    pub(crate) fn dead_letter(&self, from: &Queue, at_least: usize, now: Timestamp) -> usize {
        let mut pending = Pending::new();
        self.send_line(from, at_least, Step::default(), &mut pending, now, |pending| {
            while let Some((queue, dead)) = pending.pop_front() {
                let mut sent = Step::default();
                // The rest could be left to the timer, unless it would fall further and further behind.
                if work::is_turn_over() && !queue.has_many_dead_letters() {
                    sent.end();
                }
                self.send_line(&queue, dead, sent, pending, now, |_| {});
            }
        })
    }

    /// Sends dead letters of a queue that has sent `sent` others, `at_least` this number if there are as many and the thread's
    /// turn lasts. `after_each` is called after each of them. Returns their number.
    ///
    /// No deadlock: if `from` is a queue that has received a dead letter, the caller holds the turn of another queue, and may
    /// wait here for the thread that holds the turn of `from`. A thread is given dead letters of a queue only while no other
    /// thread sends that queue's, so the thread that is waited for started after the caller. In a cycle of waiting threads,
    /// each would have started before the next, which is impossible.
    fn send_line(
        &self,
        from: &Queue,
        at_least: usize,
        mut sent: Step,
        pending: &mut Pending,
        now: Timestamp,
        mut after_each: impl FnMut(&mut Pending),
    ) -> usize {
        let mut count = 0;
        let _turn = from.dead_letters_turn();
        let mut dead = from.next_dead_letters(&sent, at_least);
        while !dead.is_empty() {
            let (mut letters, mut left) = (VecDeque::from(dead), Vec::new());
            while let Some(letter) = letters.pop_front() {
                count += 1;
                sent.add(&letter.message);
                left.extend(self.send_dead_letter(from, &letter, now, pending));
                after_each(pending);
                if work::is_turn_over() {
                    sent.end();
                    break;
                }
            }
            from.dead_letters_sent(left);
            if !letters.is_empty() {
                from.put_back_dead_letters(letters);
            }
            dead = from.next_dead_letters(&sent, 0);
        }
        count
    }

    /// Sends one letter. If it is stored, one record of the store contains both its arrival and the removal of the
    /// original message, so that after a crash exactly one of the two exists. Returns the position of the original
    /// message if that has still to be settled.
    fn send_dead_letter(
        &self,
        from: &Queue,
        dead: &DeadLetter,
        now: Timestamp,
        pending: &mut Pending,
    ) -> Option<u64> {
        let arguments = from.arguments();
        let Some(target) = arguments.dead_lettering.as_ref() else { return dead.stored };
        let Some(budget) = dead.budget.checked_sub(1) else {
            self.metrics.dead_letters_dropped.add(1);
            return dead.stored;
        };
        let (routing_key, at) = (target.routing_key.as_deref(), self.wall_time(now));
        let mut letter = DeadLetterPublish::write(from, &target.exchange, routing_key, dead, at);
        work::charge(LETTER, 1);
        self.metrics.messages_dead_lettered.add(1);
        self.dead_lettered_for(dead.reason).add(1);
        let queues = self.queues_of(&target.exchange, &letter);
        work::charge(APPEND, queues.len());
        letter.message.share(queues.len());
        let message = [Arc::new(letter.message)];
        let stored_batch = StoredBatch::keep(self.store(), LastStoring::of(&queues), &message);
        let share = budget / u32::try_from(queues.len()).unwrap_or(u32::MAX).max(1);
        let mut transfer = Transfer::default();
        let mut is_lost = queues.is_empty();
        for (at, queue) in queues.into_iter().enumerate() {
            // The original message was confirmed long ago, so a letter that a full queue refuses is lost.
            let queue_batch = stored_batch.at(at).in_transfer(dead.stored.is_some().then_some(&mut transfer));
            let sender = Sender::DeadLetters { budget: share };
            let appended =
                queue.append(message.iter().cloned(), queue_batch, now, sender, |_| is_lost = true);
            if appended.dead > 0 {
                pending.push_back((queue, appended.dead));
            }
        }
        if is_lost && arguments.promises_dead_letters() {
            self.metrics.dead_letters_lost.add(1);
        }
        match dead.stored {
            Some(position) if !transfer.is_empty() => {
                from.dead_letter_transferred(position, &transfer);
                None
            }
            position => position,
        }
    }

    fn dead_lettered_for(&self, reason: DeathReason) -> &SharedCounter {
        match reason {
            DeathReason::Rejected => &self.metrics.messages_dead_lettered_rejected,
            DeathReason::Expired => &self.metrics.messages_dead_lettered_expired,
            DeathReason::MaxLength => &self.metrics.messages_dead_lettered_maxlen,
            DeathReason::DeliveryLimit => &self.metrics.messages_dead_lettered_delivery_limit,
        }
    }

    fn queues_of(&self, exchange: &str, letter: &DeadLetterPublish) -> Vec<Arc<Queue>> {
        let headers = letter.headers().encode();
        let keys: Vec<&str> = letter.keys.iter().map(|key| &**key).collect();
        let routed = Routed { keys: &keys, headers: &headers, properties: letter.message.properties() };
        let topology = self.topology.read();
        let slot = match exchange {
            "" => None,
            name => match topology.exchange(name) {
                None => return Vec::new(),
                Some((slot, _)) => Some(slot),
            },
        };
        let mut queues = topology.route(slot, routed).queues;
        queues.retain(|queue| !letter.would_cycle(queue.name()));
        queues
    }
}

#[cfg(test)]
mod tests;
