//! Moves a queue's messages here, from the queue of the same name at the other broker.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, queue};
use amqp::{FieldTable, FieldValue, Method, RawTable};
use broker::{ForeignMessage, Lsn, Waiter};
use sync::work;

use super::MovingQueue;
use super::origin::first_exchange;
use super::run::{CHANNEL, MAX_RUN, MoveStep, MoveTurns, RunEnd, close, drive};
use crate::upstream::client::{AmqpClient, ClientEvent, ContentMethod, ReceivedMessage};

/// Prefetch of the consumer at the other broker.
const PREFETCH: u16 = 1_000;

/// The reason why messages of a queue do not move that would be deleted with it.
const AUTO_DELETE: &str =
    "an auto-delete queue would be deleted there when its messages have come: they stay, for its consumers";

/// The consumer tag, by which operators there recognise the consumer.
const TAG: &str = "leveret-move";

/// Time without a message after which the queue there is checked for messages.
const LINGER: Duration = Duration::from_millis(500);

/// Nanoseconds charged for reading and storing a message.
const STORE: u32 = 2_000;

/// Consumes the queue's messages there until none is left.
pub(super) async fn run(moving: &MovingQueue) -> RunEnd {
    let client = match moving.connect().await {
        Ok(client) => client,
        Err(end) => return end,
    };
    let mut incoming = IncomingMove::new(moving, client);
    incoming.begin();
    let end = drive(&mut incoming).await;
    incoming.give_back();
    // A queue that exists only here has nothing to move.
    let is_unknown = end == RunEnd::Missing && incoming.there.is_none();
    if let Some(client) = incoming.client.take() {
        // Unacknowledged deliveries return to their queue there.
        close(client).await;
    }
    if is_unknown { RunEnd::Empty } else { end }
}

/// A connection to the other broker, and the messages from it.
pub(super) struct IncomingMove<'m> {
    moving: &'m MovingQueue,
    /// `None` once the run has ended.
    client: Option<AmqpClient>,
    /// Messages of this turn, with their delivery tags.
    arrived: Vec<(u64, ForeignMessage)>,
    /// Delivery tags of stored messages, each with the log position that has to be on disk before the acknowledgement.
    stored: VecDeque<(u64, Option<Lsn>)>,
    /// The message count of the queue there at the last check.
    there: Option<u32>,
    /// Since when no message has arrived.
    idle_since: Instant,
    /// Whether a check of the queue there is unanswered.
    is_asked: bool,
    /// Whether the last check has found messages for which no consumer was started yet.
    is_wanted: bool,
    /// The maximum of messages in this run: no more than fit into the queue here, since the queue there may count how
    /// often they are requeued. They are acknowledged together at the end. `None` for no limit.
    limit: Option<u64>,
    /// The delivery tag up to which messages have to be acknowledged.
    to_acknowledge: Option<u64>,
    /// Messages that this run has stored.
    count: u64,
    /// Set if this broker cannot take a message.
    trouble: Option<RunEnd>,
    cancelling: Cancelling,
    begun: Instant,
    heard_at: Instant,
}

/// The state of cancelling the consumer when the run's time is over. Messages delivered until then are still stored,
/// since requeued ones may count as failed there.
#[derive(Debug, PartialEq, Eq)]
enum Cancelling {
    No,
    Asked,
    Done,
}

impl<'m> IncomingMove<'m> {
    pub(super) fn new(moving: &'m MovingQueue, client: AmqpClient) -> Self {
        let now = transport::now();
        Self {
            moving,
            client: Some(client),
            arrived: Vec::new(),
            stored: VecDeque::new(),
            there: None,
            idle_since: now,
            is_asked: true,
            is_wanted: false,
            limit: None,
            to_acknowledge: None,
            count: 0,
            trouble: None,
            cancelling: Cancelling::No,
            begun: now,
            heard_at: now,
        }
    }

    pub(super) fn begin(&mut self) {
        let MovingQueue { context, vhost, queue, .. } = self.moving;
        let before = queue.message_count() + queue.unacked_count();
        context.progress.note(vhost, queue, |shown| _ = shown.before.get_or_insert(before));
        let Some(client) = &mut self.client else { return };
        client.send(CHANNEL, channel::Open { reserved_1: "" });
        client.send(CHANNEL, queue::Declare { queue: queue.name(), passive: true, ..Default::default() });
    }

    /// Consumes, with a lower priority than all other consumers.
    fn consume(&mut self) {
        let Some(client) = &mut self.client else { return };
        let arguments: FieldTable = [("x-priority", FieldValue::I32(-1000))].into_iter().collect();
        let arguments = arguments.encode();
        let arguments = RawTable::check(&arguments).unwrap_or_default();
        let limit = self.limit.and_then(|limit| u16::try_from(limit).ok());
        let prefetch_count = limit.map_or(PREFETCH, |limit| limit.min(PREFETCH));
        client.send(CHANNEL, basic::Qos { prefetch_size: 0, prefetch_count, global: false });
        let queue = self.moving.queue.name();
        client.send(CHANNEL, basic::Consume { queue, consumer_tag: TAG, arguments, ..Default::default() });
    }

    /// Requeues messages that have arrived and are not stored. If they returned with the connection, they would count as
    /// failed there.
    fn give_back(&mut self) {
        let Some(client) = &mut self.client else { return };
        if let Some(delivery_tag) = self.to_acknowledge.take() {
            client.send(CHANNEL, basic::Ack { delivery_tag, multiple: true });
        }
        client.send(CHANNEL, basic::Cancel { consumer_tag: TAG, no_wait: true });
        // Tag 0 stands for all of them.
        client.send(CHANNEL, basic::Nack { delivery_tag: 0, multiple: true, requeue: true });
        // If that fails, the connection is lost, and they return as failed deliveries.
        let _ = client.flush(transport::now());
    }

    /// Whether an alarm is raised, during which publishers are not read and no messages are fetched.
    fn is_blocked(&self) -> bool {
        self.moving.context.alarms.any_raised() || !self.moving.vhost.has_capacity()
    }

    fn receive(&mut self, now: Instant) -> Result<usize, RunEnd> {
        if self.is_blocked() {
            (self.heard_at, self.idle_since) = (now, now);
            return Ok(0);
        }
        let Some(mut client) = self.client.take() else { return Ok(0) };
        let mut received = client.take_received();
        let (mut handled, mut outcome) = (0, Ok(()));
        while !work::is_turn_over() && outcome.is_ok() && self.trouble.is_none() {
            outcome = match received.next(&mut client) {
                Ok(None) => break,
                Ok(Some(event)) => self.handle(event, now),
                Err(fault) => Err(RunEnd::lost(&fault)),
            };
            handled += 1;
        }
        client.put_back(received);
        self.client = Some(client);
        if mem::take(&mut self.is_wanted) {
            self.consume();
        }
        if handled > 0 {
            self.heard_at = now;
        }
        outcome.map(|()| handled)
    }

    fn handle(&mut self, event: ClientEvent<'_>, now: Instant) -> Result<(), RunEnd> {
        match event {
            ClientEvent::Method(_, Method::QueueDeclareOk(declared)) => {
                let is_first = self.there.is_none();
                self.there = Some(declared.message_count);
                (self.is_asked, self.idle_since) = (false, now);
                let there = u64::from(declared.message_count);
                let MovingQueue { context, vhost, queue, .. } = self.moving;
                context.progress.note(vhost, queue, |shown| shown.there = Some(there));
                match (is_first, there) {
                    (_, 0) => Err(RunEnd::Empty),
                    (true, _) if queue.properties().auto_delete => {
                        Err(RunEnd::Refused(AUTO_DELETE.to_owned()))
                    }
                    (true, _) if queue.capacity_before_refusal() == Some(0) => Err(RunEnd::Full),
                    (true, _) => {
                        let is_careful = self.moving.care().messages > 0;
                        let prefetch =
                            queue.capacity_before_refusal().map(|prefetch| prefetch.min(PREFETCH.into()));
                        self.limit = if is_careful { Some(1) } else { prefetch };
                        self.is_wanted = true;
                        Ok(())
                    }
                    (false, _) => Err(RunEnd::OtherConsumers),
                }
            }
            ClientEvent::Method(_, Method::ChannelClose(close)) => Err(RunEnd::closed(&close, 0)),
            ClientEvent::Method(_, Method::BasicCancel(_)) => Err(RunEnd::Missing),
            ClientEvent::Method(_, Method::BasicCancelOk(_)) => {
                self.cancelling = Cancelling::Done;
                Ok(())
            }
            ClientEvent::Message(_, message) => {
                self.arrive(&message, now);
                Ok(())
            }
            ClientEvent::Method(..) => Ok(()),
        }
    }

    fn arrive(&mut self, message: &ReceivedMessage<'_>, now: Instant) {
        let ContentMethod::Deliver { delivery_tag, exchange, routing_key, .. } = &message.method else {
            return;
        };
        self.idle_since = now;
        work::charge(STORE, 1);
        let exchange = first_exchange(exchange, &message.properties);
        match ForeignMessage::new(&exchange, routing_key, &message.properties, &message.body) {
            Some(arrived) => self.arrived.push((*delivery_tag, arrived)),
            None => {
                self.trouble = Some(RunEnd::Refused("the properties of a message are malformed".to_owned()))
            }
        }
    }

    /// Stores the messages of this turn.
    fn store(&mut self, now: Instant) {
        if self.arrived.is_empty() {
            return;
        }
        let MovingQueue { context, vhost, queue, .. } = self.moving;
        let (tags, messages): (Vec<_>, Vec<_>) = mem::take(&mut self.arrived).into_iter().unzip();
        let taken = queue.take_in(messages, context.timestamp(now));
        let mut refused = taken.refused.into_iter().peekable();
        let mut count = 0;
        for (at, tag) in tags.into_iter().enumerate() {
            if refused.next_if_eq(&at).is_some() {
                let gone = queue.is_deleted();
                self.trouble = Some(if gone { RunEnd::Empty } else { RunEnd::Full });
                if let Some(client) = &mut self.client {
                    let nack = basic::Nack { delivery_tag: tag, multiple: false, requeue: true };
                    client.send(CHANNEL, nack);
                }
            } else {
                self.stored.push_back((tag, taken.until));
                count += 1;
            }
        }
        self.count += count;
        context.progress.note(vhost, queue, |shown| shown.moved += count);
    }

    /// Acknowledges stored messages that are on disk.
    fn acknowledge(&mut self, waker: &Waker) {
        let store = self.moving.context.broker.store();
        let durable = store.map(|store| store.durable());
        let is_safe = |until: Option<Lsn>| until.is_none() || durable.is_none() || until <= durable;
        let mut safe = None;
        while let Some((tag, until)) = self.stored.front().copied() {
            if !is_safe(until) {
                let wake = waker.clone();
                let waiter: Arc<dyn Waiter> = Arc::new(move || wake.wake_by_ref());
                if let (Some(store), Some(until)) = (store, until) {
                    store.wait(until, waiter);
                }
                break;
            }
            safe = Some(tag);
            self.stored.pop_front();
        }
        // Earlier messages are stored or requeued.
        self.to_acknowledge = safe.or(self.to_acknowledge);
        if self.limit.is_some() {
            // An acknowledgement would free the prefetch for further messages.
            return;
        }
        if let (Some(delivery_tag), Some(client)) = (self.to_acknowledge.take(), &mut self.client) {
            client.send(CHANNEL, basic::Ack { delivery_tag, multiple: true });
        }
    }

    /// Cancels the consumer if the run's time is over.
    fn cancel_in_time(&mut self, now: Instant) {
        let is_over = self.count > 0 && now.saturating_duration_since(self.begun) >= MAX_RUN;
        if is_over
            && self.limit.is_none()
            && self.cancelling == Cancelling::No
            && let Some(client) = &mut self.client
        {
            client.send(CHANNEL, basic::Cancel { consumer_tag: TAG, no_wait: false });
            (self.cancelling, self.heard_at) = (Cancelling::Asked, now);
        }
    }

    /// The end of the run, if it has ended without a fault.
    fn end_of_turn(&mut self, now: Instant) -> Result<(), RunEnd> {
        if !self.stored.is_empty() {
            return Ok(());
        }
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble);
        }
        if self.moving.context.is_stopped() {
            return Err(RunEnd::Stopped);
        }
        let is_idle = now.saturating_duration_since(self.idle_since) >= LINGER;
        if self.limit.is_some_and(|limit| self.count >= limit || self.count > 0 && is_idle) {
            return Err(RunEnd::Limited);
        }
        if self.cancelling == Cancelling::Done {
            return Err(RunEnd::Limited);
        }
        if self.cancelling == Cancelling::No && !self.is_asked && is_idle {
            // There was nothing to answer until now.
            (self.is_asked, self.heard_at) = (true, now);
            if let Some(client) = &mut self.client {
                let queue = self.moving.queue.name();
                client.send(CHANNEL, queue::Declare { queue, passive: true, ..Default::default() });
                client.flush(now).map_err(|fault| RunEnd::lost(&fault))?;
            }
        }
        Ok(())
    }
}

impl MoveTurns for IncomingMove<'_> {
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<MoveStep, RunEnd> {
        let lost = |fault: amqp::Fault| RunEnd::lost(&fault);
        if let Some(client) = &mut self.client {
            client.handle_nudge(waker, now).map_err(lost)?;
        }
        self.cancel_in_time(now);
        loop {
            // The prefetch bounds the messages that arrive while the disk falls behind.
            let received = self.receive(now);
            self.store(now);
            self.acknowledge(waker);
            let handled = received?;
            if let Some(client) = &mut self.client {
                client.flush(now).map_err(lost)?;
            }
            if work::is_turn_over() {
                return Ok(MoveStep::TurnOver);
            }
            if handled == 0 {
                break;
            }
        }
        self.end_of_turn(now).map(|()| MoveStep::Idle)
    }

    fn waits_for_answer(&self) -> bool {
        self.is_asked || self.cancelling == Cancelling::Asked
    }

    fn heard_at(&self) -> Instant {
        self.heard_at
    }
}

impl Drop for IncomingMove<'_> {
    fn drop(&mut self) {
        if let Some(mut client) = self.client.take() {
            client.discard(transport::now());
        }
    }
}
