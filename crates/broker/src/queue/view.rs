//! Views of a queue, for display.

use super::Queue;
use super::state::QueueState;
use crate::manage::{PriorityCounts, QueueView};
use crate::rates::MessageCounts;
use crate::time::Timestamp;

impl Queue {
    /// Its counts, read at one moment.
    pub fn view(&self) -> QueueView {
        self.state.lock().view()
    }

    /// The counts, and the throughput counters as of `now`; `None` if nothing was ever counted.
    pub fn view_counted(&self, now: Timestamp) -> (QueueView, Option<MessageCounts>) {
        let state = self.state.lock();
        (state.view(), state.passing.read(now))
    }

    /// Its ready messages by priority; `None` unless its returned messages precede all others (quorum queues of RabbitMQ
    /// 4).
    pub fn priorities(&self) -> Option<PriorityCounts> {
        let order = self.delivery_order();
        order.returned_first.then(|| {
            let (by_priority, returned) = self.state.lock().ready.by_priority();
            PriorityCounts { by_priority, returned }
        })
    }

    /// The number of failed deliveries of a message after which it is dropped; `None` for no limit.
    pub fn delivery_limit(&self) -> Option<u64> {
        self.delivery_limit_of(&self.arguments())
    }

    /// The tag of the single active consumer (`x-single-active-consumer`), and that of the exclusive
    /// consumer.
    pub fn special_consumers(&self) -> (Option<String>, Option<String>) {
        let state = self.state.lock();
        let active = state.consumers.active_tag().map(str::to_owned);
        let exclusive =
            state.consumers.iter().find(|entry| entry.exclusive).map(|entry| entry.tag.to_string());
        (active, exclusive)
    }
}

impl QueueState {
    fn view(&self) -> QueueView {
        QueueView {
            ready: self.ready.len() as u64,
            unacknowledged: self.unacked,
            ready_bytes: self.ready.bytes(),
            paged: self.ready.on_disk().messages,
            consumers: self.consumers.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use amqp::RawTable;

    use super::*;
    use crate::queue::{Consumer, ConsumerCapacity, Offer};
    use crate::{Broker, BrokerConfig, ConsumerSpec, QueueDeclare, SessionId};

    /// A consumer that takes nothing, on a channel with this number.
    struct On(u16);

    impl Consumer for On {
        fn accept(&self, _: &mut Offer<'_>) -> ConsumerCapacity {
            ConsumerCapacity::Full
        }
        fn cancelled(&self) {}
        fn channel(&self) -> u16 {
            self.0
        }
    }

    fn queue() -> Arc<Queue> {
        let vhost = Broker::new(BrokerConfig::default()).vhost("/").unwrap();
        let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
        vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue
    }

    #[test]
    fn consumers_are_listed_by_channel_until_they_leave() {
        let queue = queue();
        let consume = |session, channel: u16, tag| {
            let (consumer, arguments) = (Arc::new(On(channel)), RawTable::EMPTY);
            let session = SessionId(session);
            let spec = ConsumerSpec { consumer, session, tag, no_ack: false, exclusive: false, arguments };
            queue.consume(spec).unwrap()
        };
        let all = [consume(1, 1, "a"), consume(1, 2, "b"), consume(2, 1, "c")];
        let tags =
            |infos: Vec<crate::ConsumerInfo>| infos.into_iter().map(|info| info.tag).collect::<Vec<_>>();
        assert_eq!(tags(queue.consumers_of(SessionId(1), 2)), ["b"]);
        assert_eq!(tags(queue.consumers()).len(), 3);
        queue.cancel(all[0], Timestamp(1));
        assert_eq!(tags(queue.consumers()), ["b", "c"]);
        all[1..].iter().for_each(|&id| queue.cancel(id, Timestamp(1)));
        assert!(queue.consumers().is_empty());
        consume(3, 1, "d");
        assert_eq!(tags(queue.consumers_of(SessionId(3), 1)), ["d"]);
    }

    #[test]
    fn listing_consumers_does_not_lock_a_queue_without_consumers() {
        let queue = queue();
        let (sender, answer) = mpsc::sync_channel(1);
        let busy = queue.state.lock();
        let asked = queue.clone();
        thread::spawn(move || {
            sender.send((asked.consumers().len(), asked.consumers_of(SessionId(1), 1).len()))
        });
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)), Ok((0, 0)));
        drop(busy);
    }
}
