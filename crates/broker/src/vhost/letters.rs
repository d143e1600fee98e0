//! Sending dead letters on.

use std::collections::VecDeque;
use std::sync::Arc;

use store::journal::Transfer;
use sync::work;

use super::VirtualHost;
use crate::dead_letter::Letter;
use crate::metrics::Counter;
use crate::persistence::KeptMessages;
use crate::queue::{DeadLetter, DeathReason, Queue, Sender};
use crate::routing::Routed;
use crate::time::Timestamp;

/// What queues have dropped for letters that they were sent.
type Pending = VecDeque<(Arc<Queue>, Vec<DeadLetter>)>;

/// What it takes to write a dead letter and to find its queues, in nanoseconds.
const LETTER: u32 = 1_500;

impl VirtualHost {
    /// Routes what `from` has dropped to its dead-letter exchange, and what that makes other queues drop, and so on;
    /// then what `from` has dropped meanwhile. Called without any lock held, by the one whom the queue gave `dead`. A
    /// missing exchange swallows the letters.
    pub(crate) fn dead_letter(&self, from: &Queue, dead: Vec<DeadLetter>, now: Timestamp) {
        let mut pending = Pending::new();
        let mut dead = dead;
        let _turn = from.letters_turn();
        while !dead.is_empty() {
            let mut left = Vec::new();
            for letter in &dead {
                left.extend(self.send_letter(from, letter, now, &mut pending));
                while let Some((queue, dead)) = pending.pop_front() {
                    self.send_line(&queue, dead, now, &mut pending);
                }
            }
            from.letters_sent(left);
            dead = from.next_letters();
        }
    }

    /// Sends on what a queue has dropped for a letter, and what it drops meanwhile. A queue stands in `pending` once at
    /// most: after that its letters line up.
    fn send_line(&self, from: &Queue, dead: Vec<DeadLetter>, now: Timestamp, pending: &mut Pending) {
        let mut dead = dead;
        let _turn = from.letters_turn();
        while !dead.is_empty() {
            let left: Vec<_> =
                dead.iter().filter_map(|letter| self.send_letter(from, letter, now, pending)).collect();
            from.letters_sent(left);
            dead = from.next_letters();
        }
    }

    /// Sends one letter. Where it is kept, the store notes with the same record that it has arrived and that the message it was
    /// made of has left: a crash finds one of the two. Returns the position of that message if it is still to be settled.
    fn send_letter(
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
        let mut letter = Letter::write(from, &target.exchange, target.routing_key.as_deref(), dead, now);
        work::charge(LETTER, 1);
        self.metrics.messages_dead_lettered.add(1);
        self.dead_lettered_for(dead.reason).add(1);
        let queues = self.queues_of(&target.exchange, &letter);
        letter.message.share(queues.len());
        let message = [Arc::new(letter.message)];
        let kept = KeptMessages::keep(self.store(), &queues, &message);
        let share = budget / u32::try_from(queues.len()).unwrap_or(u32::MAX).max(1);
        let mut transfer = Transfer::default();
        for (at, queue) in queues.into_iter().enumerate() {
            // Its confirm, if there was one, has been given; a queue that is full loses the letter.
            let kept = kept.at(at).in_transfer(dead.stored.is_some().then_some(&mut transfer));
            let sender = Sender::DeadLetters { budget: share };
            let appended = queue.append(message.iter().cloned(), kept, now, sender, |_| {});
            if !appended.dead.is_empty() {
                pending.push_back((queue, appended.dead));
            }
        }
        match dead.stored {
            Some(position) if !transfer.is_empty() => {
                from.letter_transferred(position, &transfer);
                None
            }
            position => position,
        }
    }

    fn dead_lettered_for(&self, reason: DeathReason) -> &Counter {
        match reason {
            DeathReason::Rejected => &self.metrics.messages_dead_lettered_rejected,
            DeathReason::Expired => &self.metrics.messages_dead_lettered_expired,
            DeathReason::MaxLength => &self.metrics.messages_dead_lettered_maxlen,
            DeathReason::DeliveryLimit => &self.metrics.messages_dead_lettered_delivery_limit,
        }
    }

    fn queues_of(&self, exchange: &str, letter: &Letter) -> Vec<Arc<Queue>> {
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
        queues.retain(|queue| !letter.circles_to(queue.name()));
        queues
    }
}
