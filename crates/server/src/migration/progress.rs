//! The state of each queue's migration, and when it is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker::{Broker, Queue, VirtualHost};
use parking_lot::Mutex;
use sync::BackOff;

use super::run::RunEnd;
use crate::upstream::retry::RETRY;

/// The pause after a queue was empty there, or only had unacknowledged messages.
pub(super) const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a refused message, unless an operator retries earlier.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// The state of a queue's migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MovedQueueState {
    /// Messages are moving.
    Moving,
    /// The queue was empty, or only had unacknowledged messages.
    Empty,
    /// It is tried again soon: the receiving queue is full or missing, the other broker does not answer, or other queues
    /// have their turns.
    Waiting,
    /// Its next message is refused permanently.
    Refused,
}

impl MovedQueueState {
    /// The name for operators, one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::Empty => "empty",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
        }
    }
}

/// A queue's migration, for operators.
#[derive(Debug, Clone)]
pub struct MovedQueue {
    /// The name of its virtual host.
    pub vhost: Arc<str>,
    /// The queue's name on both sides.
    pub name: Arc<str>,
    /// The state of its migration.
    pub state: MovedQueueState,
    /// Messages moved since the start of the process.
    pub moved: u64,
    /// Bytes of their bodies.
    pub moved_bytes: u64,
    /// Messages among them that may have been duplicated: their confirms were lost with the connection.
    pub maybe_twice: u64,
    /// Messages of the receiving queue before the first one moved; `None` if unknown.
    pub before: Option<u64>,
    /// Messages of the queue at the other broker at the last count.
    pub there: Option<u64>,
    /// Messages here that are ready.
    pub ready: u64,
    /// Messages here that are unacknowledged.
    pub unacked: u64,
    /// The reason why it is not moving.
    pub trouble: Option<String>,
    /// The kind of the reason: `full`, `missing` (at the other broker), `consumers` (others are served first), `refused` or
    /// `lost` (no connection).
    pub cause: Option<&'static str>,
}

/// The queues' migrations, by virtual host and queue.
#[derive(Debug, Default)]
pub(super) struct ProgressTable(Mutex<BTreeMap<QueueKey, QueueProgress>>);

/// The names of a virtual host and of a queue in it.
pub(super) type QueueKey = (Arc<str>, Arc<str>);

#[derive(Debug)]
struct QueueProgress {
    shown: MovedQueue,
    /// The time of the next attempt; `None` during a run.
    due: Option<Instant>,
    /// The pause before the next attempt if this run moves nothing.
    back_off: BackOff,
    /// `moved` when the run started.
    moved_before: u64,
    care: Concurrency,
    /// Whether the exchange may still exist at the other broker. Set when a run starts, and cleared once it is deleted.
    leaves_exchange: bool,
}

/// The precautions of the next run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Concurrency {
    /// Number of messages that are moved one by one at first; 0 for none.
    pub(super) messages: usize,
    /// Whether it has its own connection, so that faults are caused by its messages.
    pub(super) is_isolated: bool,
    /// Whether the exchange at the other broker is deleted before it is declared.
    pub(super) renews_exchange: bool,
}

impl ProgressTable {
    /// Whether the queue may be tried now.
    pub(super) fn is_due(&self, vhost: &VirtualHost, queue: &Queue) -> bool {
        let known = self.0.lock();
        let found = known.get(&key(vhost, queue));
        found.is_none_or(|progress| progress.due.is_some_and(|due| due <= transport::now()))
    }

    pub(super) fn begun(&self, vhost: &VirtualHost, queue: &Queue) {
        let mut known = self.0.lock();
        let progress = known.entry(key(vhost, queue)).or_insert_with_key(|(vhost, name)| QueueProgress {
            shown: MovedQueue {
                vhost: Arc::clone(vhost),
                name: Arc::clone(name),
                state: MovedQueueState::Moving,
                moved: 0,
                moved_bytes: 0,
                maybe_twice: 0,
                before: None,
                there: None,
                ready: 0,
                unacked: 0,
                trouble: None,
                cause: None,
            },
            due: None,
            back_off: RETRY,
            moved_before: 0,
            care: Concurrency::default(),
            leaves_exchange: false,
        });
        progress.due = None;
        progress.moved_before = progress.shown.moved;
        progress.shown.state = MovedQueueState::Moving;
        progress.leaves_exchange = true;
    }

    /// The precautions of the queue's next run.
    pub(super) fn care(&self, vhost: &VirtualHost, queue: &Queue) -> Concurrency {
        self.0.lock().get(&key(vhost, queue)).map_or_else(Concurrency::default, |progress| progress.care)
    }

    /// Whether the queue has been tried.
    pub(super) fn is_known(&self, vhost: &VirtualHost, queue: &Queue) -> bool {
        self.0.lock().contains_key(&key(vhost, queue))
    }

    /// The queues whose exchanges may still exist at the other broker.
    pub(super) fn left_exchanges(&self) -> Vec<QueueKey> {
        let known = self.0.lock();
        known.iter().filter(|(_, left)| left.leaves_exchange).map(|(key, _)| key.clone()).collect()
    }

    /// Records that a run's exchange does not exist at the other broker any more.
    pub(super) fn exchange_deleted(&self, vhost: &VirtualHost, queue: &Queue) {
        if let Some(progress) = self.0.lock().get_mut(&key(vhost, queue)) {
            progress.leaves_exchange = false;
        }
    }

    /// Changes what operators see of a queue.
    pub(super) fn note(&self, vhost: &VirtualHost, queue: &Queue, change: impl FnOnce(&mut MovedQueue)) {
        if let Some(progress) = self.0.lock().get_mut(&key(vhost, queue)) {
            change(&mut progress.shown);
        }
    }

    /// Records the end of a run.
    pub(super) fn ended(&self, vhost: &VirtualHost, queue: &Queue, end: RunEnd, now: Instant) {
        let mut known = self.0.lock();
        let Some(progress) = known.get_mut(&key(vhost, queue)) else { return };
        if progress.shown.moved != progress.moved_before {
            progress.back_off.reset();
        }
        let (state, pause) = match &end {
            RunEnd::Empty | RunEnd::Stopped => (MovedQueueState::Empty, EMPTY_PAUSE),
            RunEnd::Refused(_) => (MovedQueueState::Refused, REFUSED_PAUSE),
            RunEnd::Suspect(_) | RunEnd::Limited => (MovedQueueState::Waiting, Duration::ZERO),
            RunEnd::Full | RunEnd::Missing | RunEnd::Lost(_) | RunEnd::OtherConsumers => {
                (MovedQueueState::Waiting, progress.back_off.pause())
            }
        };
        let messages = match end {
            RunEnd::Suspect(messages) => messages,
            RunEnd::Refused(_) | RunEnd::Full | RunEnd::Lost(_) => 1,
            _ => 0,
        };
        let is_isolated = matches!(end, RunEnd::Suspect(_) | RunEnd::Refused(_));
        // RabbitMQ 4 may continue to list a binding through which it routes nothing.
        let renews_exchange = end == RunEnd::Missing;
        progress.care = Concurrency { messages, is_isolated, renews_exchange };
        progress.shown.cause = end.cause();
        let trouble = end.trouble();
        if progress.shown.trouble != trouble {
            let (vhost, queue) = (&*progress.shown.vhost, &*progress.shown.name);
            match &trouble {
                Some(trouble) => tracing::warn!(vhost, queue, trouble, "queue migration stalled"),
                None => tracing::info!(vhost, queue, "queue migration resumed"),
            }
        }
        (progress.shown.state, progress.shown.trouble) = (state, trouble);
        progress.due = Some(now + pause);
    }

    /// Whether a run is in progress.
    pub(super) fn is_moving(&self, vhost: &VirtualHost, queue: &Queue) -> bool {
        self.state_of(vhost, queue) == Some(MovedQueueState::Moving)
    }

    /// Whether the last run found no messages.
    pub(super) fn was_empty(&self, vhost: &VirtualHost, queue: &Queue) -> bool {
        self.state_of(vhost, queue) == Some(MovedQueueState::Empty)
    }

    fn state_of(&self, vhost: &VirtualHost, queue: &Queue) -> Option<MovedQueueState> {
        self.0.lock().get(&key(vhost, queue)).map(|progress| progress.shown.state)
    }

    /// Lets refused messages be tried at once.
    pub(super) fn retry(&self) {
        for progress in self.0.lock().values_mut().filter(|progress| progress.due.is_some()) {
            progress.due = Some(transport::now());
            progress.back_off.reset();
            if progress.shown.state == MovedQueueState::Refused {
                progress.shown.state = MovedQueueState::Waiting;
            }
        }
    }

    /// Forgets the counts of queues at the other broker.
    pub(super) fn forget_counts(&self) {
        self.0.lock().values_mut().for_each(|progress| progress.shown.there = None);
    }

    /// The queues' migrations, for operators.
    pub(super) fn all(&self, broker: &Broker) -> Vec<MovedQueue> {
        let mut all: Vec<_> = self.0.lock().values().map(|progress| progress.shown.clone()).collect();
        for shown in &mut all {
            let queue = broker.vhost(&shown.vhost).and_then(|vhost| vhost.find_queue(&shown.name));
            if let Some(queue) = queue {
                let (ready, unacked) = (queue.message_count(), queue.unacked_count());
                // Messages in flight count as unacknowledged here.
                (shown.ready, shown.unacked) = (ready, unacked);
            }
        }
        all
    }
}

fn key(vhost: &VirtualHost, queue: &Queue) -> QueueKey {
    (vhost.name().into(), Arc::clone(queue.name()))
}

#[cfg(test)]
mod tests {
    use broker::{BrokerConfig, QueueDeclare, SessionId, Timestamp};

    use super::*;

    #[test]
    fn pauses_grow_while_nothing_moves_and_an_operator_ends_them() {
        let broker = Broker::new(BrokerConfig::default());
        let vhost = broker.vhost("/").unwrap();
        let declare = QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() };
        let queue = vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap().queue;
        let table = ProgressTable::default();
        assert!(table.is_due(&vhost, &queue), "never tried");
        let mut pauses = Vec::new();
        let now = transport::now();
        for moved in [0, 0, 0, 1, 0] {
            table.begun(&vhost, &queue);
            assert!(!table.is_due(&vhost, &queue) && table.is_moving(&vhost, &queue));
            table.note(&vhost, &queue, |shown| shown.moved += moved);
            table.ended(&vhost, &queue, RunEnd::Full, now);
            let due = table.0.lock()[&key(&vhost, &queue)].due.unwrap();
            pauses.push((due - now).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 100, 200]);
        let careful = |messages, is_isolated| Concurrency { messages, is_isolated, renews_exchange: false };
        assert_eq!(table.care(&vhost, &queue), careful(1, false), "the next may be full again");
        table.ended(&vhost, &queue, RunEnd::Refused("no".to_owned()), now);
        assert!(!table.is_due(&vhost, &queue));
        let [shown] = &*table.all(&broker) else { panic!("one queue") };
        assert_eq!((shown.state, shown.trouble.as_deref()), (MovedQueueState::Refused, Some("no")));
        table.retry();
        assert!(table.is_due(&vhost, &queue));
        table.begun(&vhost, &queue);
        table.ended(&vhost, &queue, RunEnd::Suspect(7), now);
        assert_eq!(table.care(&vhost, &queue), careful(7, true));
        table.ended(&vhost, &queue, RunEnd::Missing, now);
        assert!(table.care(&vhost, &queue).renews_exchange);
        table.ended(&vhost, &queue, RunEnd::Empty, now);
        assert!(table.was_empty(&vhost, &queue) && table.care(&vhost, &queue) == Concurrency::default());
        assert_eq!(table.left_exchanges(), [key(&vhost, &queue)]);
        table.exchange_deleted(&vhost, &queue);
        assert_eq!(table.left_exchanges(), []);
    }
}
