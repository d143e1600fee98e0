//! The consumers of a client's shared subscriptions.

use std::collections::VecDeque;

use amqp::method::{basic, channel};
use amqp::{Fault, Method, ReplyCode};
use slab::Slab;

use super::queue_consumer::{MAX_ARRIVED, QueuedMessage};
use super::queue_requests::{QueueRequest, QueueRequests};
use crate::upstream::client::{AmqpClient, ReceivedMessage, announced};

/// The number of the first consumer's channel.
pub(super) const GROUPS: u16 = 7;

/// The maximum of shared subscriptions per client. Each has a channel upstream, and RabbitMQ allows 2,047 per connection.
pub(super) const MAX_GROUPS: u16 = 256;

/// A client's consumers. Each has its own channel, so that a refused or lost one does not affect the others, and so that
/// closing the channel requeues its messages for the group.
#[derive(Default)]
pub(super) struct GroupConsumers {
    consumers: Slab<GroupConsumer>,
    /// The key from which the next message is searched.
    next: usize,
    /// Number of waiting messages of all consumers, and their bytes.
    arrived: usize,
    bytes: usize,
}

struct GroupConsumer {
    state: GroupConsumerState,
    /// Messages that have not been sent to the client yet.
    arrived: VecDeque<QueuedMessage>,
    /// Delivery tags of messages that arrived during the cancellation and have to be requeued.
    returning: Vec<u64>,
    /// The requests that follow once its messages are requeued.
    then: Vec<QueueRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupConsumerState {
    /// Until basic.consume-ok.
    Opening,
    Consuming,
    /// basic.cancel was sent. Messages are requeued, except those that the client has yet to acknowledge.
    Cancelling,
    /// Cancelled; until the client has acknowledged its messages.
    Draining,
    /// The upstream has cancelled it; its channel has to be closed.
    Cancelled,
    /// Until channel.close-ok.
    Closing,
    /// Its channel is closed; events about it may still have to be handled.
    Gone,
}

/// An event of a consumer.
#[derive(Debug)]
pub(super) enum GroupEvent {
    Consuming,
    /// Cancelled: no further message arrives.
    Cancelled,
    /// The upstream has refused or ended it.
    Lost(Fault),
    /// Its channel is closed and its messages are requeued.
    Closed,
}

impl GroupConsumers {
    /// Starts to consume from a queue. Returns the key of the consumer.
    pub(super) fn start(&mut self, client: &mut AmqpClient, queue: &str, window: u16) -> usize {
        let (arrived, returning, then) = Default::default();
        let key = self.consumers.insert(GroupConsumer {
            state: GroupConsumerState::Opening,
            arrived,
            returning,
            then,
        });
        let channel = channel_of(key);
        client.send(channel, channel::Open { reserved_1: "" });
        client.send(channel, basic::Qos { prefetch_size: 0, prefetch_count: window, global: false });
        client.send(channel, basic::Consume { queue, consumer_tag: TAG, ..Default::default() });
        key
    }

    /// Cancels a consumer and requeues its messages, except those that the client has yet to acknowledge.
    pub(super) fn cancel(&mut self, client: &mut AmqpClient, key: usize) {
        let Some(consumer) = self.existing(key) else { return };
        client.send(channel_of(key), basic::Cancel { consumer_tag: TAG, no_wait: false });
        consumer.state = GroupConsumerState::Cancelling;
        let arrived = std::mem::take(&mut consumer.arrived);
        self.forget(&arrived);
        for QueuedMessage { delivery_tag, .. } in arrived {
            client.send(channel_of(key), give_back(delivery_tag));
        }
    }

    /// Closes a consumer's channel, which requeues its messages. The requests in `then` follow; if the channel is already
    /// closed they are added to `requests` at once.
    pub(super) fn stop(
        &mut self,
        client: &mut AmqpClient,
        key: usize,
        then: Vec<QueueRequest>,
        requests: &mut QueueRequests,
    ) {
        let Some(consumer) = self.existing(key) else {
            return then.into_iter().for_each(|request| requests.push(UNANSWERED, request));
        };
        let arrived = std::mem::take(&mut consumer.arrived);
        consumer.then.extend(then);
        close(client, key, consumer);
        self.forget(&arrived);
    }

    /// A consumer whose channel is not closed.
    fn existing(&mut self, key: usize) -> Option<&mut GroupConsumer> {
        self.consumers.get_mut(key).filter(|consumer| consumer.state != GroupConsumerState::Gone)
    }

    /// Subtracts messages that will not be sent to the client.
    fn forget(&mut self, arrived: &VecDeque<QueuedMessage>) {
        self.arrived -= arrived.len();
        self.bytes -= arrived.iter().map(QueuedMessage::bytes).sum::<usize>();
    }

    /// Frees the keys of consumers that are gone. Called once all events about them have been handled.
    pub(super) fn release_gone(&mut self) {
        self.consumers.retain(|_, consumer| consumer.state != GroupConsumerState::Gone);
        if self.consumers.is_empty() {
            self.consumers = Slab::new();
        }
    }

    /// Closes the channels of consumers that the upstream has cancelled, and requeues messages.
    pub(super) fn send(&mut self, client: &mut AmqpClient) {
        for (key, consumer) in &mut self.consumers {
            match consumer.state {
                GroupConsumerState::Cancelled => close(client, key, consumer),
                GroupConsumerState::Closing | GroupConsumerState::Gone => {}
                _ => {
                    for delivery_tag in std::mem::take(&mut consumer.returning) {
                        client.send(channel_of(key), give_back(delivery_tag));
                    }
                }
            }
        }
    }

    /// Whether there are no consumers.
    pub(super) fn is_empty(&self) -> bool {
        self.consumers.iter().all(|(_, consumer)| consumer.state == GroupConsumerState::Gone)
    }

    /// Whether a consumer waits for an answer of the upstream.
    pub(super) fn is_changing(&self) -> bool {
        self.consumers.iter().any(|(_, consumer)| {
            use GroupConsumerState::{Cancelling, Closing, Opening};
            matches!(consumer.state, Opening | Cancelling | Closing)
        })
    }

    /// Whether the upstream should not be read until messages have been taken.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_ARRIVED
    }

    /// Whether messages for the client wait here.
    pub(super) fn has_messages(&self) -> bool {
        self.arrived > 0
    }

    /// Acknowledges a message upstream.
    pub(super) fn acknowledge(&self, client: &mut AmqpClient, key: usize, delivery_tag: u64) {
        let is_open = |consumer: &GroupConsumer| {
            use GroupConsumerState::{Cancelled, Closing, Gone};
            !matches!(consumer.state, Cancelled | Closing | Gone)
        };
        if self.consumers.get(key).is_some_and(is_open) {
            client.send(channel_of(key), basic::Ack { delivery_tag, multiple: false });
        }
    }

    /// The next message for the client, from each consumer in turn, with the consumer's key.
    pub(super) fn take(&mut self) -> Option<(usize, QueuedMessage)> {
        if self.arrived == 0 {
            return None;
        }
        let slots = self.consumers.capacity();
        let mut keys = (0..slots).map(|at| (self.next + at) % slots);
        let key =
            keys.find(|key| self.consumers.get(*key).is_some_and(|consumer| !consumer.arrived.is_empty()))?;
        self.next = key + 1;
        let consumer = self.consumers.get_mut(key)?;
        let message = consumer.arrived.pop_front()?;
        if consumer.arrived.is_empty() {
            consumer.arrived = VecDeque::new();
        }
        self.arrived -= 1;
        self.bytes -= message.bytes();
        Some((key, message))
    }

    /// Handles a message from the upstream.
    pub(super) fn handle_message(&mut self, channel: u16, message: ReceivedMessage<'_>) {
        let Some(consumer) = self.consumers.get_mut(key_of(channel)) else { return };
        let Some(message) = QueuedMessage::of(message) else { return };
        match consumer.state {
            GroupConsumerState::Consuming => {
                self.bytes += message.bytes();
                self.arrived += 1;
                consumer.arrived.push_back(message);
            }
            GroupConsumerState::Opening | GroupConsumerState::Cancelling | GroupConsumerState::Draining => {
                consumer.returning.push(message.delivery_tag);
            }
            GroupConsumerState::Cancelled | GroupConsumerState::Closing | GroupConsumerState::Gone => {}
        }
    }

    /// Handles a method of the upstream on a consumer's channel. Requests that follow a closed consumer are added to
    /// `requests`. Returns the event with the consumer's key.
    pub(super) fn handle(
        &mut self,
        channel: u16,
        method: &Method<'_>,
        requests: &mut QueueRequests,
    ) -> Option<(usize, GroupEvent)> {
        let key = key_of(channel);
        let consumer = self.existing(key)?;
        let is_closing = consumer.state == GroupConsumerState::Closing;
        let event = match method {
            Method::BasicConsumeOk(_) if consumer.state == GroupConsumerState::Opening => {
                consumer.state = GroupConsumerState::Consuming;
                return Some((key, GroupEvent::Consuming));
            }
            Method::BasicCancelOk(_) if consumer.state == GroupConsumerState::Cancelling => {
                consumer.state = GroupConsumerState::Draining;
                return Some((key, GroupEvent::Cancelled));
            }
            Method::BasicCancel(_) if !is_closing => {
                consumer.state = GroupConsumerState::Cancelled;
                let arrived = std::mem::take(&mut consumer.arrived);
                self.forget(&arrived);
                let fault = Fault::new(ReplyCode::NotFound, "the queue of a shared subscription was deleted");
                return Some((key, GroupEvent::Lost(fault)));
            }
            Method::ChannelClose(close) if !is_closing => GroupEvent::Lost(announced(close)),
            // Both sides may close the channel at once.
            Method::ChannelClose(_) | Method::ChannelCloseOk(_) => GroupEvent::Closed,
            _ => return None,
        };
        // Keeps the key reserved until this event has been handled.
        consumer.state = GroupConsumerState::Gone;
        let (arrived, then) = (std::mem::take(&mut consumer.arrived), std::mem::take(&mut consumer.then));
        consumer.returning = Vec::new();
        self.forget(&arrived);
        then.into_iter().for_each(|request| requests.push(UNANSWERED, request));
        Some((key, event))
    }
}

fn close(client: &mut AmqpClient, key: usize, consumer: &mut GroupConsumer) {
    if consumer.state != GroupConsumerState::Closing {
        consumer.state = GroupConsumerState::Closing;
        client.close_channel(channel_of(key));
    }
}

/// The method that requeues a message.
fn give_back(delivery_tag: u64) -> basic::Nack {
    basic::Nack { delivery_tag, multiple: false, requeue: true }
}

fn channel_of(key: usize) -> u16 {
    // There are at most `MAX_GROUPS`.
    GROUPS + u16::try_from(key).unwrap_or(MAX_GROUPS)
}

fn key_of(channel: u16) -> usize {
    usize::from(channel.saturating_sub(GROUPS))
}

/// RabbitMQ's name for the consumers of its MQTT clients.
const TAG: &str = "mqtt";

/// The number of requests whose answers are ignored.
const UNANSWERED: u64 = 0;
