//! Requeues the deliveries of closing channels.

use std::sync::Arc;

use broker::{ConsumerId, Delivery, Queue, Timestamp};
use hashbrown::HashMap;

use super::Unsettled;

/// The consumers and unsettled deliveries of channels that close together, by queue. Each queue gets its deliveries back
/// in one step. Channel by channel, it would deliver them to the next closing channel, and count a failed delivery each
/// time.
#[derive(Default)]
pub(crate) struct ChannelTeardown {
    queues: Vec<ClosingChannel>,
    /// Indices in `queues`, by the queues' ids.
    by_id: HashMap<u64, usize>,
    /// The number of channels with unsettled deliveries.
    channels: usize,
}

struct ClosingChannel {
    queue: Arc<Queue>,
    consumers: Vec<ConsumerId>,
    deliveries: Vec<Delivery>,
}

impl ChannelTeardown {
    /// Adds a consumer that accepts nothing any more ([`Deliveries::close`](super::Deliveries::close)).
    pub(crate) fn add_consumer(&mut self, queue: &Arc<Queue>, consumer: ConsumerId) {
        self.of(queue).consumers.push(consumer);
    }

    /// Adds the unsettled deliveries of a channel.
    pub(crate) fn add(&mut self, unsettled: Vec<(u64, Unsettled)>) {
        self.channels += usize::from(!unsettled.is_empty());
        for (_, entry) in unsettled {
            self.of(&entry.queue).deliveries.push(entry.delivery);
        }
    }

    /// Removes the consumers from their queues, and requeues the deliveries.
    pub(crate) fn leave(self, now: Timestamp) {
        for ClosingChannel { queue, consumers, mut deliveries } in self.queues {
            if self.channels > 1 {
                // Some queues keep the order in which messages are requeued.
                deliveries.sort_by_key(Delivery::position);
            }
            queue.leave(&consumers, deliveries, now);
        }
    }

    fn of(&mut self, queue: &Arc<Queue>) -> &mut ClosingChannel {
        let next = self.queues.len();
        // Consecutive deliveries mostly come from the same queue.
        let at = match self.queues.last() {
            Some(last) if Arc::ptr_eq(&last.queue, queue) => next - 1,
            _ => *self.by_id.entry(queue.id()).or_insert(next),
        };
        if at == next {
            let queue = Arc::clone(queue);
            self.queues.push(ClosingChannel { queue, consumers: Vec::new(), deliveries: Vec::new() });
        }
        &mut self.queues[at]
    }
}

/// Unsettled deliveries grouped by queue, in order.
pub(super) fn by_queue(
    unsettled: Vec<(u64, Unsettled)>,
) -> impl Iterator<Item = (Arc<Queue>, Vec<Delivery>)> {
    let mut all = ChannelTeardown::default();
    all.add(unsettled);
    all.queues.into_iter().map(|departing| (departing.queue, departing.deliveries))
}
