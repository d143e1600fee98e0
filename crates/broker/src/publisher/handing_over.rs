//! Hands a batch to the queues of its route and sends the resulting dead letters, in as many turns as that takes.

use std::collections::VecDeque;
use std::sync::Arc;

use store::journal::Lsn;
use sync::work;

use super::{Publisher, Route, Share};
use crate::SessionId;
use crate::message::Message;
use crate::names::ExchangeName;
use crate::persistence::StoredBatch;
use crate::queue::{Load, Queue, Sender};

/// A batch that is being handed to the queues of its route.
pub(super) struct PartialFlush {
    route: Arc<Route>,
    batch: Vec<Arc<Message>>,
    load: Load,
    stored_batch: StoredBatch,
    /// The index of the batch's first message among the publishes since the last flush.
    first: u64,
    /// The number of the route's queues that have the batch.
    done: usize,
    /// The number of dead letters to send, for each index of a queue in the route. They are sent when all queues have the
    /// batch, so that a queue that receives both has the messages first, as in RabbitMQ, where each queue is a process. Until
    /// then they stay in their queue, from which other threads send them if too many wait.
    letters: VecDeque<(usize, usize)>,
    /// The indices of queues whose dead letters other threads send.
    lined_up: VecDeque<usize>,
}

impl PartialFlush {
    /// Leaves dead letters to the broker's timer, except for one of each queue whose other senders wait for this publisher.
    pub(super) fn leave_dead_letters(&mut self) {
        self.lined_up.clear();
        self.letters.iter_mut().for_each(|(_, dead)| *dead = 1);
    }
}

impl Publisher {
    /// Hands the batch to the queues of its route. Returns whether all of them have it and the resulting dead letters are
    /// sent. If not, because the turn is over, progress was made by at least one queue or one dead letter.
    pub(crate) fn hand_over(&mut self) -> bool {
        // As in RabbitMQ, the trace of a message precedes the message.
        if let Some(tracer) = &mut self.tracer
            && !tracer.hand_over()
        {
            return false;
        }
        // An unfinished batch comes first, or later messages would overtake it.
        if let Some(handing) = self.handing_over.take()
            && !self.go_on(*handing)
        {
            return false;
        }
        let Some(route) = self.route.clone().filter(|_| !self.batch.is_empty()) else { return true };
        let batch = std::mem::take(&mut self.batch);
        if batch.len() >= BUSY_BATCH {
            route.own_exchange.get_or_init(|| ExchangeName::from(&*route.exchange));
        }
        let load = Load::of(batch.len(), std::mem::take(&mut self.batch_bytes) as u64);
        let count = batch.len() as u64;
        if !self.is_tracer {
            self.through.published += count;
            self.through.enqueued += if route.counts { count * route.queues.len() as u64 } else { 0 };
            self.vhost.metrics().messages_routed.add(batch.len());
            self.published().routed.add(batch.len());
        }
        let stored_batch = StoredBatch::keep(self.vhost.store(), route.storing, &batch);
        self.flushed.full |= stored_batch.full;
        // The batch consists of the latest publishes without gaps, because an unroutable one has another route and ends
        // the batch.
        let first = self.flushed.count - count;
        let (letters, lined_up) = (VecDeque::new(), VecDeque::new());
        self.go_on(PartialFlush { route, batch, load, stored_batch, first, done: 0, letters, lined_up })
    }

    /// Hands the batch to one queue after the other, taking each queue's lock once, and sends the resulting dead letters,
    /// until all is done or the turn is over.
    fn go_on(&mut self, mut handing: PartialFlush) -> bool {
        let count = handing.route.queues.len();
        while handing.done < count {
            self.append_to_next_queue(&mut handing);
            if handing.done < count && work::is_turn_over() {
                return self.pause(handing);
            }
        }
        if !self.send_dead_letters(&mut handing) {
            return self.pause(handing);
        }
        let mut batch = handing.batch;
        if self.batch.is_empty() {
            // Its allocation is reused for the next batch.
            batch.clear();
            self.batch = batch;
        }
        true
    }

    /// Leaves the rest to the next turn.
    fn pause(&mut self, handing: PartialFlush) -> bool {
        // Boxed only here, because most batches fit into a turn.
        self.handing_over = Some(Box::new(handing));
        false
    }

    /// Sends the dead letters of a batch that all queues have. Returns whether all are sent. If not, because the turn is
    /// over, at least one more was sent.
    fn send_dead_letters(&mut self, handing: &mut PartialFlush) -> bool {
        let PartialFlush { route, letters, lined_up, .. } = handing;
        if letters.is_empty() && lined_up.is_empty() {
            return true;
        }
        // This publisher's own dead letters come first, because later ones of the same queues wait for them.
        while let Some((at, dead)) = letters.front_mut() {
            let sent = self.vhost.dead_letter(&route.queues[*at], *dead, self.now);
            *dead = dead.saturating_sub(sent);
            if *dead == 0 || sent == 0 {
                letters.pop_front();
            }
            if work::is_turn_over() && !(letters.is_empty() && lined_up.is_empty()) {
                return false;
            }
        }
        while let Some(&at) = lined_up.front() {
            if !route.queues[at].wait_for_dead_letters(self.now) {
                return false;
            }
            lined_up.pop_front();
            if work::is_turn_over() && !lined_up.is_empty() {
                return false;
            }
        }
        // A publisher pauses for its dead letters as for its messages.
        self.flushed.full |= !self.vhost.has_capacity();
        true
    }

    /// Hands the batch to the next queue of its route.
    fn append_to_next_queue(&mut self, handing: &mut PartialFlush) {
        let PartialFlush { route, batch, load, stored_batch, first, done, letters, lined_up } = handing;
        let at = *done;
        *done += 1;
        let queue = &route.queues[at];
        work::charge(APPEND, 1);
        work::charge(ENQUEUE, batch.len());
        let refused = &mut self.flushed.refused;
        let refuse = |at: usize| refused.push(*first + at as u64);
        let sender = if self.is_tracer {
            Sender::Tracer
        } else {
            Sender::Publisher(self.session.map(|session| SessionId(session.get())))
        };
        let appended = if at + 1 == route.queues.len() {
            queue.append(batch.drain(..), stored_batch.at(at), self.now, sender, refuse)
        } else {
            queue.append(batch.iter().cloned(), stored_batch.at(at), self.now, sender, refuse)
        };
        note_share(&mut self.shares, queue, appended.until);
        self.flushed.until = self.flushed.until.max(appended.until);
        self.flushed.full |= appended.full;
        if appended.holds
            && let Some(added) = self.overdraft.add(*load)
        {
            self.flushed.hold = Some(Box::new(queue.hold(added)));
        }
        if appended.lined_up {
            lined_up.push_back(at);
        } else if appended.dead > 0 {
            letters.push_back((at, appended.dead));
        }
    }
}

fn note_share(shares: &mut Option<Vec<Share>>, queue: &Queue, until: Option<Lsn>) {
    if let (Some(shares), Some(until)) = (shares, until) {
        shares.push(Share { queue: queue.name().clone(), until });
    }
}

/// Batches of at least this many messages make their route count as busy, which is worth its own copy of the exchange's name.
const BUSY_BATCH: usize = 16;

/// Nanoseconds charged for appending a batch to a queue.
const APPEND: u32 = 200;
/// Nanoseconds charged for each message of such a batch.
const ENQUEUE: u32 = 80;
