//! The consumer of a session's own queue.

use std::collections::VecDeque;

use amqp::method::{basic, channel};
use amqp::{Fault, Method};

use super::unacked::UnackedTags;
use crate::upstream::client::{AmqpClient, ContentMethod, ReceivedMessage, announced};

/// The channel's number.
pub(super) const CONSUMING: u16 = 2;

/// RabbitMQ's name for the consumers of its MQTT clients.
const TAG: &str = "mqtt";

/// Bytes of messages that may wait for a slow client. Above it the consumer is not read; the pool has its own limits for
/// what the upstream sends.
pub(super) const MAX_ARRIVED: usize = 1 << 20;

/// A message from the session's queue.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) delivery_tag: u64,
    pub(super) redelivered: bool,
    pub(super) exchange: Box<str>,
    pub(super) routing_key: Box<str>,
    /// The encoded flags and list, not validated.
    pub(super) properties: Box<[u8]>,
    pub(super) body: Vec<u8>,
}

impl QueuedMessage {
    /// The message that was delivered to a consumer.
    pub(super) fn of(message: ReceivedMessage<'_>) -> Option<Self> {
        let ReceivedMessage { method, properties, body } = message;
        let ContentMethod::Deliver { delivery_tag, redelivered, exchange, routing_key, .. } = method else {
            return None;
        };
        let (properties, body) = (properties.into(), body.into_owned());
        Some(Self { delivery_tag, redelivered, exchange, routing_key, properties, body })
    }

    pub(super) fn bytes(&self) -> usize {
        self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

/// The consumer. Its prefetch bounds the messages that wait here and those that the client has not acknowledged.
#[derive(Default)]
pub(super) struct SessionConsumer {
    state: ConsumerState,
    /// Messages that have not been sent to the client yet.
    arrived: VecDeque<QueuedMessage>,
    /// Bytes of these messages.
    bytes: usize,
    unacked: UnackedTags,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ConsumerState {
    #[default]
    None,
    Consuming,
    /// Until channel.close-ok: messages are discarded, and the upstream requeues them.
    Closing,
}

impl SessionConsumer {
    /// Starts consuming, with `window` as prefetch.
    pub(super) fn start(&mut self, client: &mut AmqpClient, queue: &str, window: u16) {
        if self.state == ConsumerState::None {
            client.send(CONSUMING, channel::Open { reserved_1: "" });
            client.send(CONSUMING, basic::Qos { prefetch_size: 0, prefetch_count: window, global: false });
            client.send(CONSUMING, basic::Consume { queue, consumer_tag: TAG, ..Default::default() });
            self.state = ConsumerState::Consuming;
        }
    }

    /// Closes the channel, which requeues all unacknowledged messages. Once [`Self::is_stopped`], they are in the queue
    /// in their order if nobody else consumes from it.
    pub(super) fn stop(&mut self, client: &mut AmqpClient) {
        self.send(client);
        (self.arrived, self.bytes, self.unacked) = Default::default();
        if self.state == ConsumerState::Consuming {
            client.close_channel(CONSUMING);
            self.state = ConsumerState::Closing;
        }
    }

    /// Whether there is no consumer and no unacknowledged message.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == ConsumerState::None
    }

    /// Acknowledges a message upstream at the next [`Self::send`].
    pub(super) fn acknowledge(&mut self, delivery_tag: u64) {
        self.unacked.acknowledge(delivery_tag);
    }

    /// Sends pending acknowledgements.
    pub(super) fn send(&mut self, client: &mut AmqpClient) {
        if self.state == ConsumerState::Consuming {
            self.unacked.take_due(|ack| client.send(CONSUMING, ack));
        }
    }

    /// The next message for the client.
    pub(super) fn take(&mut self) -> Option<QueuedMessage> {
        let message = self.arrived.pop_front()?;
        self.bytes -= message.bytes();
        if self.arrived.is_empty() {
            self.arrived = VecDeque::new();
        }
        Some(message)
    }

    /// Whether messages for the client wait here.
    pub(super) fn has_messages(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether the upstream should not be read until messages have been taken.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_ARRIVED
    }

    /// Handles a message from the upstream.
    pub(super) fn handle_message(&mut self, message: ReceivedMessage<'_>) {
        if self.state == ConsumerState::Consuming
            && let Some(message) = QueuedMessage::of(message)
        {
            self.bytes += message.bytes();
            self.unacked.delivered(message.delivery_tag);
            self.arrived.push_back(message);
        }
    }

    /// Handles a method of the upstream on this channel. Returns the fault if the consumer has ended.
    pub(super) fn handle(&mut self, method: &Method<'_>) -> Option<Fault> {
        match method {
            Method::ChannelCloseOk(_) => {
                self.state = ConsumerState::None;
                None
            }
            Method::BasicCancel(_) if self.state == ConsumerState::Consuming => {
                *self = Self::default();
                Some(Fault::new(amqp::ReplyCode::NotFound, "the session's queue was deleted"))
            }
            Method::ChannelClose(close) => {
                let is_lost = self.state == ConsumerState::Consuming;
                *self = Self::default();
                is_lost.then(|| announced(close))
            }
            _ => None,
        }
    }
}
