//! A client's AMQP connection upstream: its channels, and what the upstream answers on them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Instant;

use amqp::Fault;
use sync::work;

use super::publishing::{PUBLISHING, PublishingChannel, PublishingClosed, Unconfirmed};
use super::queue_consumer::{CONSUMING, SessionConsumer};
use super::queue_requests::{QueueRequest, QueueRequests, REQUESTING};
use crate::mqtt::session::Then;
use crate::upstream::client::{AmqpClient, ClientEvent};

/// Messages and requests that the upstream has not answered at which the client is no longer read.
const MAX_UNANSWERED: usize = 1024;

/// Cost of a method of the upstream, in nanoseconds.
const METHOD: u32 = 300;

/// A client's channels upstream, each of which is open only while it is needed.
pub(super) struct Uplink {
    client: AmqpClient,
    channels: UplinkChannels,
    /// Whether the last turn has left messages unread because too many wait.
    is_paused: bool,
}

#[derive(Default)]
struct UplinkChannels {
    publishing: PublishingChannel,
    consumer: SessionConsumer,
    requests: QueueRequests,
    /// Events that were not taken yet.
    events: VecDeque<UplinkEvent>,
}

/// An event for the session.
#[derive(Debug)]
pub(super) enum UplinkEvent {
    /// The answer to a message.
    Published(Then),
    /// The upstream has closed the channel for publishing.
    PublishRefused(Fault, Unconfirmed),
    /// The answer to the request with this number.
    Answered(u64, Result<(), Fault>),
    /// The session's queue is not consumed any more.
    ConsumerLost(Fault),
}

impl Uplink {
    pub(super) fn new(client: AmqpClient) -> Self {
        Self { client, channels: UplinkChannels::default(), is_paused: false }
    }

    /// Publishes a message. `properties` are flags and list as they are on the wire.
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

    /// Answers a message that is not published, behind those before it.
    pub(super) fn refuse(&mut self, then: Then) {
        let UplinkChannels { publishing, events, .. } = &mut self.channels;
        publishing.refuse(then, |then| events.push_back(UplinkEvent::Published(then)));
    }

    /// Makes a request, whose answer has this number.
    pub(super) fn request(&mut self, number: u64, request: QueueRequest) {
        self.channels.requests.push(number, request);
    }

    /// The number of consumers of the queue that was found last.
    pub(super) fn consumers(&self) -> u32 {
        self.channels.requests.consumers()
    }

    /// Starts to consume from the session's queue.
    pub(super) fn consume(&mut self, queue: &str, window: u16) {
        self.channels.consumer.start(&mut self.client, queue, window);
    }

    /// Acknowledges a message from the session's queue.
    pub(super) fn acknowledge(&mut self, delivery_tag: u64) {
        self.channels.consumer.acknowledge(&mut self.client, delivery_tag);
    }

    /// The consumer of the session's queue.
    pub(super) fn consumer(&mut self) -> &mut SessionConsumer {
        &mut self.channels.consumer
    }

    /// Whether messages of the session's queue wait for the client.
    pub(super) fn has_messages(&self) -> bool {
        self.channels.consumer.has_messages()
    }

    /// Whether nothing is consumed, and no message is unacknowledged.
    pub(super) fn is_stopped(&self) -> bool {
        self.channels.consumer.is_stopped()
    }

    /// Stops consuming; see [`SessionConsumer::stop`].
    pub(super) fn stop_consuming(&mut self) {
        self.channels.consumer.stop(&mut self.client);
    }

    /// Sends what is to be sent, and takes what the upstream has answered. `waker` is woken when that is due again.
    ///
    /// # Errors
    /// The fault that ends the connection upstream.
    pub(super) fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<(), Fault> {
        self.client.handle_nudge(waker, now)?;
        self.channels.publishing.rest(&mut self.client, now);
        loop {
            self.channels.requests.send(&mut self.client);
            self.channels.consumer.send(&mut self.client);
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

    /// Whether the upstream is read. The answers that the client waits for come behind messages: it may not take these before
    /// it has those.
    fn is_reading(&self) -> bool {
        !self.channels.consumer.is_full() || !self.is_settled()
    }

    /// Whether another turn reads what the last one has left.
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

    /// Whether the client may be read. If not, the waker is woken when it is worth asking again.
    pub(super) fn has_room(&self) -> bool {
        self.client.has_room()
            && self.channels.publishing.unconfirmed() + self.channels.requests.len() < MAX_UNANSWERED
    }

    /// Whether everything has been answered.
    pub(super) fn is_settled(&self) -> bool {
        self.channels.publishing.unconfirmed() == 0 && self.channels.requests.len() == 0
    }

    /// Whether requests have no answer.
    pub(super) fn has_requests(&self) -> bool {
        self.channels.requests.len() > 0
    }

    /// The latest time for [`Self::take_turn`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.client.next_deadline(), self.channels.publishing.next_deadline()].into_iter().flatten().min()
    }

    /// Waits until everything has been answered and nothing is consumed. Events are passed to `each`.
    ///
    /// # Errors
    /// The fault that ends the connection upstream.
    pub(super) async fn settle(&mut self, each: impl FnMut(UplinkEvent)) -> Result<(), Fault> {
        self.until(|uplink| uplink.is_settled() && uplink.is_stopped(), each).await
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

    /// Ends the connection upstream: what was published is still passed on.
    pub(super) fn end(&mut self, now: Instant) {
        self.channels.requests.send(&mut self.client);
        self.client.end(now);
    }
}

impl UplinkChannels {
    fn handle(&mut self, event: ClientEvent<'_>) {
        let Self { publishing, consumer, requests, events } = self;
        match event {
            ClientEvent::Message(CONSUMING, message) => consumer.handle_message(message),
            ClientEvent::Method(number, method) if PUBLISHING.contains(&number) => {
                let closed =
                    publishing.handle(number, &method, |then| events.push_back(UplinkEvent::Published(then)));
                if let Some(PublishingClosed { fault, unconfirmed, refused }) = closed {
                    events.push_back(UplinkEvent::PublishRefused(fault, unconfirmed));
                    events.extend(refused.into_iter().map(UplinkEvent::Published));
                }
            }
            ClientEvent::Method(CONSUMING, method) => {
                events.extend(consumer.handle(&method).map(UplinkEvent::ConsumerLost));
            }
            ClientEvent::Method(REQUESTING, method) => {
                let answered = requests.handle(&method);
                events.extend(answered.map(|(number, answer)| UplinkEvent::Answered(number, answer)));
            }
            ClientEvent::Message(..) | ClientEvent::Method(..) => {}
        }
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.client.end(transport::now());
    }
}
