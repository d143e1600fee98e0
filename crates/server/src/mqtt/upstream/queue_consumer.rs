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

/// Bytes of messages that wait for a client that is slow. Past that many no more are read: the pool has bounds of its own for
/// what the upstream sends.
pub(super) const MAX_ARRIVED: usize = 1 << 20;

/// A message from the session's queue.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) delivery_tag: u64,
    pub(super) redelivered: bool,
    pub(super) exchange: Box<str>,
    pub(super) routing_key: Box<str>,
    /// Flags and list, not validated.
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

/// The consumer, whose window bounds the messages that wait here and those that the client has not acknowledged.
#[derive(Default)]
pub(super) struct SessionConsumer {
    state: ConsumerState,
    /// Messages that were not sent to the client yet.
    arrived: VecDeque<QueuedMessage>,
    /// Bytes of those.
    bytes: usize,
    unacked: UnackedTags,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ConsumerState {
    #[default]
    None,
    Consuming,
    /// Until channel.close-ok: messages are discarded, and return to the queue.
    Closing,
}

impl SessionConsumer {
    /// Starts consuming, with at most `window` unacknowledged messages.
    pub(super) fn start(&mut self, client: &mut AmqpClient, queue: &str, window: u16) {
        if self.state == ConsumerState::None {
            client.send(CONSUMING, channel::Open { reserved_1: "" });
            client.send(CONSUMING, basic::Qos { prefetch_size: 0, prefetch_count: window, global: false });
            client.send(CONSUMING, basic::Consume { queue, consumer_tag: TAG, ..Default::default() });
            self.state = ConsumerState::Consuming;
        }
    }

    /// Stops, and returns all messages that are not acknowledged to the queue. They are there, in their order, when nobody
    /// consumes from it, and when [`Self::is_stopped`].
    pub(super) fn stop(&mut self, client: &mut AmqpClient) {
        self.send(client);
        (self.arrived, self.bytes, self.unacked) = Default::default();
        if self.state == ConsumerState::Consuming {
            client.close_channel(CONSUMING);
            self.state = ConsumerState::Closing;
        }
    }

    /// Whether there is no consumer, and no unacknowledged message.
    pub(super) fn is_stopped(&self) -> bool {
        self.state == ConsumerState::None
    }

    /// Acknowledges a message upstream, with the next [`Self::send`].
    pub(super) fn acknowledge(&mut self, delivery_tag: u64) {
        self.unacked.acknowledge(delivery_tag);
    }

    /// Sends the acknowledgements that are due.
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

    /// Whether no more messages should be read before some were taken.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_ARRIVED
    }

    /// Handles a message of the upstream.
    pub(super) fn handle_message(&mut self, message: ReceivedMessage<'_>) {
        if self.state == ConsumerState::Consuming
            && let Some(message) = QueuedMessage::of(message)
        {
            self.bytes += message.bytes();
            self.unacked.delivered(message.delivery_tag);
            self.arrived.push_back(message);
        }
    }

    /// Handles a method of the upstream on this channel. Returns the fault that has ended the consumer.
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
