//! Sending dead letters on.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::VirtualHost;
use crate::dead_letter::Letter;
use crate::persistence::KeptMessages;
use crate::queue::{DeadLetter, Queue};
use crate::routing::Routed;
use crate::time::Timestamp;

impl VirtualHost {
    /// Routes what `from` has dropped to its dead-letter exchange, and what that makes other queues drop, and so on.
    /// Called without any lock held. A missing exchange swallows the letters.
    pub(crate) fn dead_letter(&self, from: &Queue, dead: Vec<DeadLetter>, now: Timestamp) {
        let positions: SmallVec<[u64; 4]> = dead.iter().filter_map(|dead| dead.stored).collect();
        for cause in dead {
            let mut pending: VecDeque<(Arc<Queue>, Vec<DeadLetter>)> = VecDeque::new();
            self.send_letters(from, &[cause], now, &mut pending);
            let mut letters = 0;
            while let Some((queue, dead)) = pending.pop_front() {
                letters += dead.len();
                if letters > MAX_LETTERS_OF_A_CAUSE {
                    self.metrics.dead_letters_dropped.add(dead.len());
                } else {
                    self.send_letters(&queue, &dead, now, &mut pending);
                }
                queue.letters_sent(dead.iter().filter_map(|dead| dead.stored));
            }
        }
        // Not before the letters are written down: a crash in between must lose none.
        from.letters_sent(positions.into_iter());
    }

    fn send_letters(
        &self,
        from: &Queue,
        dead: &[DeadLetter],
        now: Timestamp,
        pending: &mut VecDeque<(Arc<Queue>, Vec<DeadLetter>)>,
    ) {
        let arguments = from.arguments();
        let Some(target) = arguments.dead_lettering.as_ref() else { return };
        for dead in dead {
            let mut letter = Letter::write(from, &target.exchange, target.routing_key.as_deref(), dead, now);
            self.metrics.messages_dead_lettered.add(1);
            let queues = self.queues_of(&target.exchange, &letter);
            letter.message.share(queues.len());
            let message = [Arc::new(letter.message)];
            let kept = KeptMessages::keep(self.store(), &queues, &message);
            for (at, queue) in queues.into_iter().enumerate() {
                // Its confirm, if there was one, has been given; a queue that is full loses the letter.
                let appended = queue.append(message.iter().cloned(), kept.at(at), now, |_| {});
                if !appended.dead.is_empty() {
                    pending.push_back((queue, appended.dead));
                }
            }
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

/// Most letters that one dead message may lead to by way of queues that drop it in turn. Circles are cut, but full
/// queues that all dead-letter to each other still have as many ways through them as there are orders of the queues.
const MAX_LETTERS_OF_A_CAUSE: usize = 1_000;
