//! Moves a queue's messages to the queue of the same name at the other broker.
//!
//! They are published to a fanout exchange that is bound to that queue only. So they keep their routing keys, and headers
//! such as CC route nowhere else.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Instant;

use amqp::method::{basic, channel, confirm, exchange, queue};
use amqp::{Method, Properties};
use broker::{Delivery, Fetched, Overflow, Returned, Waiter};
use sync::work;

use super::MovingQueue;
use super::exchanges::delete_one;
use super::origin::{Origin, exchange_for, with_origin};
use super::run::{CHANNEL, CLOSE_TIMEOUT, MAX_RUN, MoveStep, MoveTurns, RunEnd, close, drive};
use super::window::{InFlight, Window};
use crate::upstream::client::{AmqpClient, ClientEvent, ContentMethod};

/// Nanoseconds charged for reading and publishing a message.
const PUBLISH: u32 = 1_500;
/// The reason why no message moves to a full queue that dead-letters what it refuses.
const FULL_WITH_DEAD_LETTERS: &str = "the queue that is to receive the messages is full, and has dead-lettered a copy of one (reject-publish-dlx)";

/// Nanoseconds charged for an answer.
const METHOD: u32 = 200;

/// Publishes the queue's messages until none is left or none can be moved.
pub(super) async fn run(moving: &MovingQueue) -> RunEnd {
    let client = match moving.connect().await {
        Ok(client) => client,
        Err(end) => return end,
    };
    let mut outgoing = OutgoingMove::new(moving, client);
    outgoing.begin();
    let end = drive(&mut outgoing).await;
    let Some(mut client) = outgoing.release(&end) else { return end };
    if end.is_in_order() {
        let exchange = exchange_for(&moving.context.broker_id, moving.queue.name());
        let deleted = tokio::time::timeout(CLOSE_TIMEOUT, delete_one(&mut client, exchange)).await;
        // Otherwise the next run, or the end of the migration, deletes the exchange.
        if deleted == Ok(true) {
            moving.context.progress.exchange_deleted(&moving.vhost, &moving.queue);
        }
        close(client).await;
    } else {
        // Its unconfirmed messages have been requeued here.
        client.discard(transport::now());
    }
    end
}

/// A connection to the other broker, and the messages on it.
pub(super) struct OutgoingMove<'m> {
    moving: &'m MovingQueue,
    /// `None` once the run has ended.
    client: Option<AmqpClient>,
    exchange: String,
    window: Window<Delivery>,
    /// A message that waits until all earlier ones are answered.
    next: Option<InFlight<Delivery>>,
    /// Whether no other run shares the connection.
    is_isolated: bool,
    /// Set by confirm.select-ok.
    is_open: bool,
    /// Whether the queue was empty at the last fetch.
    is_empty: bool,
    /// When messages could first be sent.
    begun: Instant,
    heard_at: Instant,
}

impl<'m> OutgoingMove<'m> {
    pub(super) fn new(moving: &'m MovingQueue, client: AmqpClient) -> Self {
        let care = moving.care();
        let now = transport::now();
        Self {
            moving,
            client: Some(client),
            exchange: exchange_for(&moving.context.broker_id, moving.queue.name()),
            window: Window::new(care.messages),
            is_isolated: care.is_isolated,
            next: None,
            is_open: false,
            is_empty: false,
            begun: now,
            heard_at: now,
        }
    }

    /// Whether no further message is sent in this run.
    fn is_ending(&self, now: Instant) -> bool {
        self.moving.context.is_stopped() || now.saturating_duration_since(self.begun) >= MAX_RUN
    }

    /// Requests the exchange and its binding to the queue.
    pub(super) fn begin(&mut self) {
        let Some(client) = &mut self.client else { return };
        let (queue, exchange) = (&**self.moving.queue.name(), &*self.exchange);
        client.send(CHANNEL, channel::Open { reserved_1: "" });
        client.send(CHANNEL, queue::Declare { queue, passive: true, ..Default::default() });
        // Not durable, so that it ends with the other broker at the latest.
        let declare = exchange::Declare { exchange, kind: "fanout", ..Default::default() };
        if self.moving.care().renews_exchange {
            // Not every broker ignores the deletion of a missing exchange.
            client.send(CHANNEL, declare);
            client.send(CHANNEL, exchange::Delete { exchange, ..Default::default() });
        }
        client.send(CHANNEL, declare);
        client.send(CHANNEL, queue::Bind { queue, exchange, ..Default::default() });
        client.send(CHANNEL, confirm::Select { no_wait: false });
    }

    /// Requeues unconfirmed messages, and returns the connection, if there still is one.
    fn release(&mut self, end: &RunEnd) -> Option<AmqpClient> {
        let client = self.client.take();
        let twice = match end {
            RunEnd::Full | RunEnd::Empty | RunEnd::Limited => 0,
            // The channel was closed because of the only message on it.
            RunEnd::Refused(_) => 0,
            _ => self.window.unanswered() as u64,
        };
        let mut back = self.window.end();
        back.extend(self.next.take().map(|next| next.item));
        let MovingQueue { context, vhost, queue, .. } = self.moving;
        if !back.is_empty() {
            queue.requeue(back, Returned::Unseen, context.timestamp(transport::now()));
        }
        context.progress.note(vhost, queue, |shown| shown.maybe_twice += twice);
        client
    }

    /// Handles received events; returns their number.
    fn receive(&mut self) -> Result<usize, RunEnd> {
        let Some(mut client) = self.client.take() else { return Ok(0) };
        let mut received = client.take_received();
        let (mut handled, mut outcome, mut confirmed) = (0, Ok(()), Vec::new());
        while !work::is_turn_over() && outcome.is_ok() {
            outcome = match received.next(&mut client) {
                Ok(None) => break,
                Ok(Some(event)) => self.handle(event, &mut confirmed),
                Err(fault) => Err(self.fault(&fault)),
            };
            work::charge(METHOD, 1);
            handled += 1;
        }
        client.put_back(received);
        self.client = Some(client);
        if handled > 0 {
            self.heard_at = transport::now();
        }
        self.forget(confirmed);
        outcome.map(|()| handled)
    }

    fn handle(
        &mut self,
        event: ClientEvent<'_>,
        confirmed: &mut Vec<InFlight<Delivery>>,
    ) -> Result<(), RunEnd> {
        let (tag, multiple, is_ack) = match event {
            ClientEvent::Method(_, Method::BasicAck(ack)) => (ack.delivery_tag, ack.multiple, true),
            ClientEvent::Method(_, Method::BasicNack(nack)) => (nack.delivery_tag, nack.multiple, false),
            ClientEvent::Method(_, Method::ChannelClose(close)) => {
                return Err(RunEnd::closed(&close, self.window.count()));
            }
            ClientEvent::Method(_, Method::QueueDeclareOk(declared)) => {
                let there = u64::from(declared.message_count);
                let MovingQueue { context, vhost, queue, .. } = self.moving;
                context.progress.note(vhost, queue, |shown| {
                    shown.before.get_or_insert(there);
                    shown.there = Some(there);
                });
                return Ok(());
            }
            ClientEvent::Method(_, Method::ConfirmSelectOk(_)) => {
                (self.is_open, self.begun) = (true, transport::now());
                return Ok(());
            }
            // The queue or its binding was deleted; later confirms mean nothing.
            ClientEvent::Message(_, message) if matches!(message.method, ContentMethod::Return) => {
                return Err(RunEnd::Missing);
            }
            ClientEvent::Method(..) | ClientEvent::Message(..) => return Ok(()),
        };
        confirmed.extend(self.window.answered(tag, multiple, is_ack));
        Ok(())
    }

    /// Removes messages that the other broker has confirmed.
    fn forget(&self, confirmed: Vec<InFlight<Delivery>>) {
        if confirmed.is_empty() {
            return;
        }
        let MovingQueue { context, vhost, queue, .. } = self.moving;
        if confirmed.iter().any(|message| message.is_doubtful) {
            context.may_impersonate.store(true, Ordering::Relaxed);
        }
        let deliveries: Vec<_> = confirmed.into_iter().map(|message| message.item).collect();
        let (count, bytes) = (deliveries.len() as u64, deliveries.iter().map(body_bytes).sum::<u64>());
        queue.ack(deliveries, context.timestamp(transport::now()));
        context.progress.note(vhost, queue, |shown| {
            shown.moved += count;
            shown.moved_bytes += bytes;
        });
    }

    /// Publishes as long as the turn lasts and there is capacity; returns the number of messages.
    fn publish(&mut self, waker: &Waker, now: Instant) -> Result<usize, RunEnd> {
        let mut published = 0;
        let wake = waker.clone();
        let waiter: Arc<dyn Waiter> = Arc::new(move || wake.wake_by_ref());
        while self.is_open && self.window.has_capacity() && !self.is_ending(now) {
            if work::is_turn_over() || !self.has_capacity(now)? {
                break;
            }
            let Some(message) = self.next.take().or_else(|| self.fetch(&waiter, now)) else { break };
            if !self.window.takes(&message) {
                self.next = Some(message);
                break;
            }
            if self.window.count() == 0 {
                // There was nothing to answer until now.
                self.heard_at = now;
            }
            self.send(&message.item);
            self.window.published(message);
            published += 1;
            work::charge(PUBLISH, 1);
        }
        Ok(published)
    }

    fn has_capacity(&mut self, now: Instant) -> Result<bool, RunEnd> {
        let Some(client) = &mut self.client else { return Ok(false) };
        if !client.has_capacity() {
            let flushed = client.flush(now);
            let has_capacity = client.has_capacity();
            return flushed.map(|()| has_capacity).map_err(|fault| self.fault(&fault));
        }
        Ok(true)
    }

    fn fault(&self, fault: &amqp::Fault) -> RunEnd {
        RunEnd::of_fault(fault, self.window.count(), self.is_isolated)
    }

    fn fetch(&mut self, waiter: &Arc<dyn Waiter>, now: Instant) -> Option<InFlight<Delivery>> {
        let MovingQueue { context, queue, .. } = self.moving;
        match queue.fetch(false, context.timestamp(now), waiter) {
            Fetched::Got(got) => {
                self.is_empty = false;
                let message = got.delivery.message();
                let bytes = message.body_len() + message.properties().len();
                let is_doubtful = !context.may_impersonate.load(Ordering::Relaxed)
                    && self.has_other_user_id(message.properties());
                Some(InFlight { item: got.delivery, bytes, is_doubtful })
            }
            Fetched::Empty => {
                self.is_empty = true;
                None
            }
            Fetched::Later => None,
        }
    }

    /// Whether the message's user_id is not the login's user, which only an impersonator may publish.
    fn has_other_user_id(&self, properties: &[u8]) -> bool {
        let user = Properties::decode(properties).ok().and_then(|properties| properties.user_id);
        user.is_some_and(|user| user != self.moving.context.user)
    }

    fn send(&mut self, delivery: &Delivery) {
        let Some(client) = &mut self.client else { return };
        let (message, queue) = (delivery.message(), &self.moving.queue);
        let origin = Origin::of(&self.moving.context.broker_id, queue, delivery);
        let published = delivery.published_properties();
        let properties = with_origin(&published, origin);
        let publish = basic::Publish {
            exchange: &self.exchange,
            routing_key: message.routing_key(),
            mandatory: true,
            ..Default::default()
        };
        client.publish(CHANNEL, publish, &properties, &message.body().to_bytes());
    }

    /// The end of the run, if it has ended without a fault.
    fn end_of_turn(&mut self, now: Instant) -> Result<(), RunEnd> {
        if self.moving.queue.is_deleted() {
            return Err(RunEnd::Empty);
        }
        if self.window.is_over() {
            // Each attempt would dead-letter another copy there.
            let makes_copies = self.moving.queue.arguments().overflow == Overflow::RejectPublishDlx;
            return Err(match makes_copies {
                true => RunEnd::Refused(FULL_WITH_DEAD_LETTERS.to_owned()),
                false => RunEnd::Full,
            });
        }
        if self.window.count() > 0 {
            return Ok(());
        }
        if self.moving.context.is_stopped() {
            return Err(RunEnd::Stopped);
        }
        // A later run moves messages that arrive later: there may be very many queues with few messages.
        if self.is_empty {
            return Err(RunEnd::Empty);
        }
        if self.is_open && self.is_ending(now) { Err(RunEnd::Limited) } else { Ok(()) }
    }
}

impl MoveTurns for OutgoingMove<'_> {
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<MoveStep, RunEnd> {
        if let Some(Err(fault)) = self.client.as_mut().map(|client| client.handle_nudge(waker, now)) {
            return Err(self.fault(&fault));
        }
        loop {
            let done = self.receive()? + self.publish(waker, now)?;
            if let Some(Err(fault)) = self.client.as_mut().map(|client| client.flush(now)) {
                return Err(self.fault(&fault));
            }
            if work::is_turn_over() {
                return Ok(MoveStep::TurnOver);
            }
            if done == 0 {
                break;
            }
        }
        self.end_of_turn(now).map(|()| MoveStep::Idle)
    }

    fn waits_for_answer(&self) -> bool {
        !self.is_open || self.window.count() > 0
    }

    fn heard_at(&self) -> Instant {
        self.heard_at
    }
}

impl Drop for OutgoingMove<'_> {
    fn drop(&mut self) {
        // Set only if the task was aborted.
        if let Some(mut client) = mem::take(&mut self.client) {
            client.discard(transport::now());
            self.release(&RunEnd::Stopped);
        }
    }
}

fn body_bytes(delivery: &Delivery) -> u64 {
    delivery.message().body_len() as u64
}
