//! The end of channels, which takes as many turns as it needs.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{ConsumerId, Delivery, Queue, Requeue, Timestamp};
use hashbrown::HashMap;
use sync::work;

use super::Unsettled;
use super::settlement::{AT_ONCE, SETTLEMENT};

/// The consumers and unsettled deliveries of channels that end together. Each queue gets its deliveries back at once: if they
/// came back channel by channel, it would deliver them to the next channel, and count a failure each time. Until then its
/// consumers stay, though they take nothing any more ([`Deliveries::close`](super::Deliveries::close)).
#[derive(Default)]
pub(crate) struct ChannelTeardown {
    /// Not sorted by queue yet, as `unsettled`.
    consumers: VecDeque<ChannelItems<(Arc<Queue>, ConsumerId)>>,
    unsettled: VecDeque<ChannelItems<Unsettled>>,
    queues: VecDeque<QueueTeardown>,
    /// Indices in `queues`, by the queues' ids, until the first of them is done.
    by_id: HashMap<u64, usize>,
    /// The number of channels with unsettled deliveries.
    channels: usize,
    /// Upper bound of the number of these deliveries.
    most: usize,
}

/// Consumers or deliveries of a channel.
type ChannelItems<T> = Box<dyn Iterator<Item = T> + Send>;

struct QueueTeardown {
    queue: Arc<Queue>,
    consumers: Vec<ConsumerId>,
    /// Set once all consumers are known.
    requeue: Option<Requeue>,
}

impl ChannelTeardown {
    /// Adds consumers of a channel that take nothing any more.
    pub(crate) fn add_consumers(
        &mut self,
        consumers: impl Iterator<Item = (Arc<Queue>, ConsumerId)> + Send + 'static,
    ) {
        self.consumers.push_back(Box::new(consumers));
    }

    /// Adds the unsettled deliveries of a channel, at most this number.
    pub(crate) fn add(&mut self, most: usize, unsettled: impl Iterator<Item = Unsettled> + Send + 'static) {
        if most > 0 {
            self.channels += 1;
            self.most += most;
            self.unsettled.push_back(Box::new(unsettled));
        }
    }

    /// Adds deliveries that were [held](super::Deliveries::hold).
    pub(crate) fn add_held(&mut self, held: Vec<(u64, Unsettled)>) {
        self.add(held.len(), held.into_iter().map(|(_, entry)| entry));
    }

    /// Has the consumers leave their queues, and gives the deliveries back to them, until the turn is over; returns whether all
    /// of that is done. Nothing may be added after the first call.
    #[must_use]
    pub(crate) fn proceed(&mut self, now: Timestamp) -> bool {
        self.sort_consumers() && self.sort_deliveries() && self.leave(now)
    }

    fn sort_consumers(&mut self) -> bool {
        while let Some(step) = next_step(&mut self.consumers) {
            for (queue, consumer) in step {
                self.of(&queue).consumers.push(consumer);
            }
            if work::is_turn_over() {
                return false;
            }
        }
        true
    }

    fn sort_deliveries(&mut self) -> bool {
        let (several, most) = (self.channels > 1, self.most);
        while let Some(step) = next_step(&mut self.unsettled) {
            for (queue, deliveries) in by_queue(step) {
                let QueueTeardown { queue, consumers, requeue } = self.of(&queue);
                let begin = || Requeue::of_leaving(queue, std::mem::take(consumers), most, several);
                requeue.get_or_insert_with(begin).add(deliveries);
            }
            if work::is_turn_over() {
                return false;
            }
        }
        true
    }

    fn leave(&mut self, now: Timestamp) -> bool {
        while let Some(QueueTeardown { queue, consumers, requeue }) = self.queues.pop_front() {
            work::charge(SETTLEMENT, 1);
            let mut requeue = requeue.unwrap_or_else(|| Requeue::of_leaving(&queue, consumers, 0, false));
            while !requeue.proceed(now) {
                if work::is_turn_over() {
                    let requeue = Some(requeue);
                    self.queues.push_front(QueueTeardown { queue, consumers: Vec::new(), requeue });
                    return false;
                }
            }
            requeue.finish(now);
            if work::is_turn_over() {
                return self.queues.is_empty();
            }
        }
        true
    }

    fn of(&mut self, queue: &Arc<Queue>) -> &mut QueueTeardown {
        let next = self.queues.len();
        // Consumers and deliveries mostly follow others of the same queue.
        let at = match self.queues.back() {
            Some(last) if Arc::ptr_eq(&last.queue, queue) => next - 1,
            _ => *self.by_id.entry(queue.id()).or_insert(next),
        };
        if at == next {
            let queue = Arc::clone(queue);
            self.queues.push_back(QueueTeardown { queue, consumers: Vec::new(), requeue: None });
        }
        &mut self.queues[at]
    }
}

/// The next items of the first channel that has any left, charged to the turn; `None` if no channel has.
fn next_step<T>(channels: &mut VecDeque<ChannelItems<T>>) -> Option<Vec<T>> {
    while let Some(channel) = channels.front_mut() {
        let step: Vec<_> = channel.take(AT_ONCE).collect();
        if !step.is_empty() {
            work::charge(SETTLEMENT, step.len());
            return Some(step);
        }
        channels.pop_front();
    }
    None
}

/// Deliveries, in order, with their queues: each queue once.
pub(super) fn by_queue(unsettled: impl IntoIterator<Item = Unsettled>) -> Vec<(Arc<Queue>, Vec<Delivery>)> {
    let mut queues: Vec<(Arc<Queue>, Vec<Delivery>)> = Vec::new();
    let mut by_id = HashMap::new();
    for Unsettled { queue, delivery, .. } in unsettled {
        let next = queues.len();
        // Deliveries mostly follow others of the same queue.
        let at = match queues.last() {
            Some((last, _)) if Arc::ptr_eq(last, &queue) => next - 1,
            _ => *by_id.entry(queue.id()).or_insert(next),
        };
        if at == next {
            queues.push((queue, Vec::new()));
        }
        queues[at].1.push(delivery);
    }
    queues
}
