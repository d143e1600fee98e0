//! A client's upstream connection: its AMQP channels, and the upstream's answers on them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Instant;

use amqp::Fault;
use sync::work;

use super::group_consumers::{GROUPS, GroupConsumers, GroupEvent};
use super::publishing::{PUBLISHING, PublishAnswer, PublishingChannel, PublishingClosed, Unconfirmed};
use super::queue_consumer::{CONSUMING, QueuedMessage, SessionConsumer};
use super::queue_requests::{QueueRequest, QueueRequests, REQUESTING};
use super::state::{OPENING, STATE, StateEvent, StateQueue};
use crate::mqtt::MqttConfig;
use crate::mqtt::on_demand::OnDemand;
use crate::mqtt::session::PendingReply;
use crate::upstream::client::{AmqpClient, ClientEvent};
use crate::upstream::confirms::Confirmed;

/// Unanswered messages and requests at which the client is no longer read.
const MAX_UNANSWERED: usize = 1024;

/// Cost of a method of the upstream, in nanoseconds.
const METHOD: u32 = 300;

/// A client's channels upstream, each of which is open only while it is needed.
pub(super) struct Uplink {
    client: AmqpClient,
    channels: UplinkChannels,
    /// Whether the last turn left the upstream unread because too many messages wait.
    is_paused: bool,
}

struct UplinkChannels {
    publishing: PublishingChannel,
    consumer: SessionConsumer,
    /// Allocated for the first shared subscription.
    groups: OnDemand<GroupConsumers>,
    requests: QueueRequests,
    /// Allocated for a persistent session.
    state: OnDemand<StateQueue>,
    /// Refused messages whose records have to be revoked, since their client may send them again.
    refused: Vec<u16>,
    /// Events that have not been taken.
    events: VecDeque<UplinkEvent>,
}

/// An event for the session.
#[derive(Debug)]
pub(super) enum UplinkEvent {
    /// The answer to a message.
    Published(PendingReply),
    /// The upstream has closed the publishing channel.
    PublishRefused(Fault, Unconfirmed),
    /// The answer to the request with this number.
    Answered(u64, Result<(), Fault>),
    /// The session's queue is not consumed any more.
    ConsumerLost(Fault),
    /// An event of the consumer of a shared subscription with this key.
    Group(usize, GroupEvent),
    /// Records were confirmed.
    Recorded,
    /// The upstream has refused a record.
    RecordRefused,
    /// The upstream has published a message, but refused its record.
    Unrecorded,
    State(StateEvent),
}

impl Uplink {
    pub(super) fn new(client: AmqpClient, config: &MqttConfig) -> Self {
        let (consumer, groups, state, refused, events) = Default::default();
        let (publishing, requests) = (PublishingChannel::new(&config.exchange), QueueRequests::new(config));
        let channels = UplinkChannels { publishing, consumer, groups, requests, state, refused, events };
        Self { client, channels, is_paused: false }
    }

    /// Publishes a message. `properties` are the encoded flags and list.
    pub(super) fn publish(
        &mut self,
        packet_id: u16,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
        now: Instant,
    ) {
        let Self { client, channels, .. } = self;
        channels.publishing.publish(client, packet_id, routing_key, properties, body, now);
    }

    /// Publishes a message (routing key, properties, body) with its record in the state queue.
    pub(super) fn publish_recorded(
        &mut self,
        packet_id: u16,
        message: (&str, &[u8], &[u8]),
        record: &[u8],
        now: Instant,
    ) {
        let Self { client, channels: UplinkChannels { publishing, state, .. }, .. } = self;
        let queue = state.get().and_then(StateQueue::name).unwrap_or_default();
        publishing.publish_recorded(client, packet_id, message, (queue, record), now);
    }

    /// Publishes a record to the state queue.
    pub(super) fn publish_record(&mut self, number: u64, record: &[u8], now: Instant) {
        let Self { client, channels: UplinkChannels { publishing, state, .. }, .. } = self;
        let queue = state.get().and_then(StateQueue::name).unwrap_or_default();
        publishing.publish_record(client, number, (queue, record), now);
    }

    /// The session's state queue, allocated if necessary. Its requests are sent in the next turn.
    pub(super) fn state(&mut self) -> &mut StateQueue {
        self.channels.state.made()
    }

    /// The session's state queue, if it has been allocated.
    pub(super) fn used_state(&self) -> Option<&StateQueue> {
        self.channels.state.get()
    }

    /// Queues the answer to a message that is not published, after the answers to earlier messages.
    pub(super) fn answer(&mut self, then: PendingReply) {
        let UplinkChannels { publishing, refused, events, .. } = &mut self.channels;
        publishing.answer_behind(then, |then| answer(refused, events, then));
    }

    /// Adds a request; its answer has this number.
    pub(super) fn request(&mut self, number: u64, request: QueueRequest) {
        self.channels.requests.push(number, request);
    }

    /// The consumer count of the queue that was found last.
    pub(super) fn consumers(&self) -> u32 {
        self.channels.requests.consumers()
    }

    /// See [`QueueRequests::take_in_use`].
    pub(super) fn take_in_use(&mut self) -> Vec<Box<str>> {
        self.channels.requests.take_in_use()
    }

    /// Starts to consume from the session's queue.
    pub(super) fn consume(&mut self, queue: &str, window: u16) {
        self.channels.consumer.start(&mut self.client, queue, window);
    }

    /// Acknowledges a message from the session's queue, in the next turn.
    pub(super) fn acknowledge(&mut self, delivery_tag: u64) {
        self.channels.consumer.acknowledge(delivery_tag);
    }

    /// The consumer of the session's queue.
    pub(super) fn consumer(&mut self) -> &mut SessionConsumer {
        &mut self.channels.consumer
    }

    /// Starts to consume from the queue of a shared subscription. Returns the key of the consumer.
    pub(super) fn consume_shared(&mut self, queue: &str, window: u16) -> usize {
        self.channels.groups.made().start(&mut self.client, queue, window)
    }

    /// Cancels a shared subscription's consumer; see [`GroupConsumers::cancel`].
    pub(super) fn cancel_shared(&mut self, consumer: usize) {
        self.channels.groups.made().cancel(&mut self.client, consumer);
    }

    /// Closes a shared subscription's consumer; see [`GroupConsumers::stop`].
    pub(super) fn stop_shared(&mut self, consumer: usize, then: Vec<QueueRequest>) {
        let UplinkChannels { groups, requests, .. } = &mut self.channels;
        groups.made().stop(&mut self.client, consumer, then, requests);
    }

    /// The next message of a shared subscription, with the key of its consumer.
    pub(super) fn take_shared(&mut self) -> Option<(usize, QueuedMessage)> {
        self.channels.groups.get_mut()?.take()
    }

    /// Acknowledges a message of a shared subscription.
    pub(super) fn acknowledge_shared(&mut self, consumer: usize, delivery_tag: u64) {
        if let Some(groups) = self.channels.groups.get() {
            groups.acknowledge(&mut self.client, consumer, delivery_tag);
        }
    }

    /// Whether messages wait for the client.
    pub(super) fn has_messages(&self) -> bool {
        let UplinkChannels { consumer, groups, .. } = &self.channels;
        consumer.has_messages() || groups.get().is_some_and(GroupConsumers::has_messages)
    }

    /// Whether there is no consumer, and no unacknowledged message.
    pub(super) fn is_stopped(&self) -> bool {
        let UplinkChannels { consumer, groups, state, .. } = &self.channels;
        consumer.is_stopped()
            && groups.get().is_none_or(GroupConsumers::is_empty)
            && state.get().is_none_or(StateQueue::is_stopped)
    }

    /// Stops consuming; see [`SessionConsumer::stop`].
    pub(super) fn stop_consuming(&mut self) {
        self.channels.consumer.stop(&mut self.client);
        if let Some(state) = self.channels.state.get_mut() {
            state.stop();
        }
    }

    /// Sends pending methods and handles the upstream's answers. `waker` is woken when the next turn is due.
    ///
    /// # Errors
    /// The fault that ends the upstream connection.
    pub(super) fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<(), Fault> {
        self.client.handle_nudge(waker, now)?;
        self.channels.publishing.rest(&mut self.client, now);
        if self.channels.events.is_empty()
            && let Some(groups) = self.channels.groups.get_mut()
        {
            groups.release_gone();
        }
        loop {
            self.channels.revoke_refused(&mut self.client, now);
            self.channels.requests.send(&mut self.client);
            self.channels.consumer.send(&mut self.client);
            self.channels.send_parts(&mut self.client, now);
            self.client.flush(now)?;
            if !self.client.has_received() {
                return Ok(());
            }
            self.is_paused = !self.is_reading();
            if self.is_paused {
                return Ok(());
            }
            let mut received = self.client.take_received();
            while self.is_reading()
                && let Some(event) = received.next(&mut self.client)?
            {
                work::charge(METHOD, 1);
                self.channels.handle(event);
            }
            self.client.put_back(received);
        }
    }

    /// Whether the upstream is read. While answers are outstanding it is read even if many messages wait: the client may
    /// not take those before it has answers that follow them.
    fn is_reading(&self) -> bool {
        let UplinkChannels { consumer, groups, state, .. } = &self.channels;
        let is_full = consumer.is_full() || groups.get().is_some_and(GroupConsumers::is_full);
        !is_full
            || !self.is_settled()
            || state.get().is_some_and(StateQueue::is_waiting)
            || groups.get().is_some_and(GroupConsumers::is_changing)
    }

    /// Whether another turn would read what the last one left unread.
    pub(super) fn can_resume(&self) -> bool {
        self.is_paused && self.is_reading()
    }

    /// The next event.
    pub(super) fn next_event(&mut self) -> Option<UplinkEvent> {
        let event = self.channels.events.pop_front();
        if self.channels.events.is_empty() {
            self.channels.events = VecDeque::new();
        }
        event
    }

    /// Whether the client may be read. If not, the waker is woken when that may have changed.
    pub(super) fn has_capacity(&self) -> bool {
        self.client.has_capacity()
            && self.channels.publishing.unconfirmed() + self.channels.requests.len() < MAX_UNANSWERED
    }

    /// Whether all messages and requests have been answered.
    pub(super) fn is_settled(&self) -> bool {
        self.channels.publishing.unconfirmed() == 0 && self.channels.requests.len() == 0
    }

    /// Whether requests are unanswered.
    pub(super) fn has_requests(&self) -> bool {
        self.channels.requests.len() > 0
    }

    /// The latest time at which to call [`Self::take_turn`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let UplinkChannels { publishing, state, .. } = &self.channels;
        let of_state = state.get().and_then(StateQueue::next_deadline);
        let deadlines = [self.client.next_deadline(), publishing.next_deadline(), of_state];
        deadlines.into_iter().flatten().min()
    }

    /// Waits until everything is answered and nothing is consumed. Events are passed to `each`.
    ///
    /// # Errors
    /// The fault that ends the upstream connection.
    pub(super) async fn settle(&mut self, each: impl FnMut(UplinkEvent)) -> Result<(), Fault> {
        self.until(|uplink| uplink.is_settled() && uplink.is_stopped(), each).await
    }

    /// Revokes the records of unconfirmed messages, and waits until that is confirmed: the client's next connection must
    /// not treat these messages as published.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub(super) async fn revoke_unconfirmed(&mut self) -> Result<(), Fault> {
        let UplinkChannels { publishing, refused, .. } = &mut self.channels;
        let before = refused.len();
        refused.extend(publishing.unconfirmed_recorded());
        if refused.len() == before {
            return Ok(());
        }
        // It is too late to report the other answers.
        self.until(|uplink| uplink.channels.publishing.has_answered_records(), drop).await
    }

    /// Waits until all requests have been answered.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub(super) async fn settle_requests(&mut self, each: impl FnMut(UplinkEvent)) -> Result<(), Fault> {
        self.until(|uplink| !uplink.has_requests(), each).await
    }

    async fn until(
        &mut self,
        is_done: impl Fn(&Self) -> bool,
        mut each: impl FnMut(UplinkEvent),
    ) -> Result<(), Fault> {
        poll_fn(|context| {
            let turn = self.take_turn(context.waker(), transport::now());
            std::iter::from_fn(|| self.next_event()).for_each(&mut each);
            match turn {
                Ok(()) if is_done(self) => Poll::Ready(Ok(())),
                Ok(()) => Poll::Pending,
                Err(fault) => Poll::Ready(Err(fault)),
            }
        })
        .await
    }

    /// Ends the upstream connection. Published messages are still forwarded.
    pub(super) fn end(&mut self, now: Instant) {
        self.channels.requests.send(&mut self.client);
        self.channels.consumer.send(&mut self.client);
        self.client.end(now);
    }
}

impl UplinkChannels {
    fn handle(&mut self, event: ClientEvent<'_>) {
        let Self { publishing, consumer, groups, requests, state, refused, events } = self;
        match event {
            // Only records are published as mandatory here.
            ClientEvent::Message(number, _) if PUBLISHING.contains(&number) => {
                events.push_back(UplinkEvent::RecordRefused);
            }
            ClientEvent::Message(OPENING, _) => {
                events.extend(state.made().first_list_returned().map(UplinkEvent::State));
            }
            ClientEvent::Message(STATE, message) => state.made().handle_message(&message),
            ClientEvent::Method(number @ (STATE | OPENING), method) => {
                events.extend(state.made().handle(number, &method).map(UplinkEvent::State));
            }
            ClientEvent::Message(CONSUMING, message) => consumer.handle_message(message),
            ClientEvent::Method(number, method) if PUBLISHING.contains(&number) => {
                let closed = publishing.handle(number, &method, |answered| match answered {
                    PublishAnswer::Client(then) => answer(refused, events, then),
                    PublishAnswer::Record(number, Confirmed::Acked) => {
                        state.made().confirmed(number);
                        events.push_back(UplinkEvent::Recorded);
                    }
                    PublishAnswer::Record(_, Confirmed::Nacked) => {
                        events.push_back(UplinkEvent::RecordRefused);
                    }
                    PublishAnswer::Unrecorded => events.push_back(UplinkEvent::Unrecorded),
                });
                if let Some(PublishingClosed { fault, unconfirmed, refused: behind }) = closed {
                    if let Unconfirmed::One(packet_id) = unconfirmed {
                        refused.push(packet_id);
                    }
                    events.push_back(UplinkEvent::PublishRefused(fault, unconfirmed));
                    behind.into_iter().for_each(|then| answer(refused, events, then));
                }
            }
            ClientEvent::Method(CONSUMING, method) => {
                events.extend(consumer.handle(&method).map(UplinkEvent::ConsumerLost));
            }
            ClientEvent::Method(REQUESTING, method) => {
                let answered = requests.handle(&method);
                events.extend(answered.map(|(number, answer)| UplinkEvent::Answered(number, answer)));
            }
            ClientEvent::Message(number, message) if number >= GROUPS => {
                groups.made().handle_message(number, message);
            }
            ClientEvent::Method(number, method) if number >= GROUPS => {
                let event = groups.made().handle(number, &method, requests);
                events.extend(event.map(|(consumer, event)| UplinkEvent::Group(consumer, event)));
            }
            ClientEvent::Message(..) | ClientEvent::Method(..) => {}
        }
    }
}

impl UplinkChannels {
    /// Sends pending methods of shared subscriptions and of the state queue.
    fn send_parts(&mut self, client: &mut AmqpClient, now: Instant) {
        if let Some(groups) = self.groups.get_mut() {
            groups.send(client);
        }
        let is_settled = self.publishing.unconfirmed() == 0;
        if let Some(state) = self.state.get_mut() {
            self.events.extend(state.send(client, is_settled, now).map(UplinkEvent::State));
        }
    }

    /// Publishes records that revoke those of refused messages. Must precede closing the state queue's consumer: the next
    /// connection must not treat such a message as published.
    fn revoke_refused(&mut self, client: &mut AmqpClient, now: Instant) {
        let Self { publishing, state, refused, .. } = self;
        let refused = std::mem::take(refused);
        let Some(state) = state.get_mut() else { return };
        for packet_id in refused {
            if state.name().is_some() && state.digest(packet_id).is_some() {
                let (number, record) = state.write_released(packet_id);
                publishing.publish_record(client, number, (state.name().unwrap_or_default(), &record), now);
            }
        }
    }
}

/// Adds the answer to a message.
fn answer(refused: &mut Vec<u16>, events: &mut VecDeque<UplinkEvent>, then: PendingReply) {
    if let PendingReply::Refuse { packet_id, .. } | PendingReply::QueueFull { packet_id } = then {
        refused.push(packet_id);
    }
    events.push_back(UplinkEvent::Published(then));
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.client.end(transport::now());
    }
}
