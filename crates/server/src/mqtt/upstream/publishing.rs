//! The channel on which a client's messages are published.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, confirm};
use amqp::{Fault, Method};

use super::state;
use crate::mqtt::session::PendingReply;
use crate::upstream::client::{AmqpClient, announced};
use crate::upstream::confirms::{Confirmed, PublisherConfirms};

/// The channel's numbers. One is open at a time; the other may be opened while the first is being closed.
pub(super) const PUBLISHING: [u16; 2] = [1, 4];

/// The time without a publish after which the channel is closed, so that clients that seldom publish share few channels
/// upstream. Opening it again costs no round trip.
const IDLE: Duration = Duration::from_secs(5);

/// A client's publishing channel, with the messages that the upstream has not confirmed.
///
/// The channel is opened for the first message, and again after it was closed.
pub(super) struct PublishingChannel {
    /// The `mqtt_exchange`.
    exchange: Arc<str>,
    is_open: bool,
    /// The index of the current number.
    current: usize,
    /// Whether the channel with the other number is being closed.
    is_other_closing: bool,
    /// When the last message was published; `None` while the channel is closed.
    published: Option<Instant>,
    confirms: PublisherConfirms,
    /// The unconfirmed messages, in order.
    unconfirmed: VecDeque<PublishedMessage>,
    /// Whether the upstream has refused a message whose record's answer follows.
    is_refused: bool,
    /// Answers to messages that were not published, each with the number of the message before it.
    refused: VecDeque<(u64, PendingReply)>,
}

/// The state of the publishing channel when the upstream closed it.
#[derive(Debug)]
pub(super) struct PublishingClosed {
    pub(super) fault: Fault,
    pub(super) unconfirmed: Unconfirmed,
    /// The answers to messages after the unconfirmed ones that were not published.
    pub(super) refused: Vec<PendingReply>,
}

/// An unconfirmed message.
#[derive(Debug, Clone, Copy)]
enum PublishedMessage {
    /// A client's message, by packet identifier; 0 at QoS 0.
    Plain(u16),
    /// A client's message that is followed by its record.
    BeforeRecord(u16),
    /// The record of the message before it.
    RecordOf(u16),
    /// Another record, by its number.
    Record(u64),
}

impl PublishedMessage {
    /// The packet identifier of the client's message.
    fn packet_id(self) -> Option<u16> {
        match self {
            Self::Plain(packet_id) | Self::BeforeRecord(packet_id) | Self::RecordOf(packet_id) => {
                Some(packet_id)
            }
            Self::Record(_) => None,
        }
    }
}

/// An answer of the upstream.
#[derive(Debug)]
pub(super) enum PublishAnswer {
    /// The answer to the client.
    Client(PendingReply),
    /// The record with this number was confirmed or refused.
    Record(u64, Confirmed),
    /// A message was published, but its record refused.
    Unrecorded,
}

/// The messages that were unconfirmed when the upstream closed the channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unconfirmed {
    None,
    /// The refused message, by packet identifier.
    One(u16),
    /// Several: which of them was refused, and which were published, is unknown.
    Several,
}

impl PublishingChannel {
    /// A closed channel.
    pub(super) fn new(exchange: &Arc<str>) -> Self {
        let (confirms, unconfirmed, refused) = Default::default();
        Self {
            exchange: Arc::clone(exchange),
            is_open: false,
            current: 0,
            is_other_closing: false,
            published: None,
            confirms,
            unconfirmed,
            is_refused: false,
            refused,
        }
    }

    /// Publishes a message. `properties` are the encoded flags and list.
    pub(super) fn publish(
        &mut self,
        client: &mut AmqpClient,
        packet_id: u16,
        routing_key: &str,
        properties: &[u8],
        body: &[u8],
        now: Instant,
    ) {
        self.send(client, (routing_key, properties, body), now);
        self.published(PublishedMessage::Plain(packet_id));
    }

    /// Publishes a message (routing key, properties, body) directly followed by its record, so that a connection loss in
    /// between is unlikely.
    pub(super) fn publish_recorded(
        &mut self,
        client: &mut AmqpClient,
        packet_id: u16,
        message: (&str, &[u8], &[u8]),
        record: (&str, &[u8]),
        now: Instant,
    ) {
        let number = self.send(client, message, now);
        self.published(PublishedMessage::BeforeRecord(packet_id));
        state::publish(client, number, record.0, record.1);
        self.published(PublishedMessage::RecordOf(packet_id));
    }

    /// Publishes a record (queue name, record); the answer has this number.
    pub(super) fn publish_record(
        &mut self,
        client: &mut AmqpClient,
        number: u64,
        record: (&str, &[u8]),
        now: Instant,
    ) {
        let channel = self.open(client, now);
        state::publish(client, channel, record.0, record.1);
        self.published(PublishedMessage::Record(number));
    }

    /// Opens the channel, if it is closed; returns its number.
    fn open(&mut self, client: &mut AmqpClient, now: Instant) -> u16 {
        let number = PUBLISHING[self.current];
        self.published = Some(now);
        if !std::mem::replace(&mut self.is_open, true) {
            client.send(number, channel::Open { reserved_1: "" });
            client.send(number, confirm::Select { no_wait: true });
        }
        number
    }

    fn send(&mut self, client: &mut AmqpClient, message: (&str, &[u8], &[u8]), now: Instant) -> u16 {
        let number = self.open(client, now);
        let (routing_key, properties, body) = message;
        let exchange = &*self.exchange;
        let publish = basic::Publish { exchange, routing_key, ..basic::Publish::default() };
        client.publish(number, publish, properties, body);
        number
    }

    fn published(&mut self, message: PublishedMessage) {
        self.confirms.published();
        self.unconfirmed.push_back(message);
    }

    /// The next time at which to call [`Self::rest`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let rests = self.is_open && self.unconfirmed.is_empty() && !self.is_other_closing;
        self.published.filter(|_| rests).map(|published| published + IDLE)
    }

    /// Closes the channel if it has been idle for long enough.
    pub(super) fn rest(&mut self, client: &mut AmqpClient, now: Instant) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            client.close_channel(PUBLISHING[self.current]);
            *self = Self { current: 1 - self.current, is_other_closing: true, ..Self::new(&self.exchange) };
        }
    }

    /// Queues the answer to a message that is not published, after the answers to earlier messages.
    pub(super) fn answer_behind(&mut self, then: PendingReply, mut answer: impl FnMut(PendingReply)) {
        if self.unconfirmed.is_empty() {
            answer(then);
        } else {
            self.refused.push_back((self.confirms.last(), then));
        }
    }

    /// Handles a method of the upstream on this channel, and passes due answers to `answer`. Returns the unconfirmed
    /// messages if the upstream has closed the channel.
    pub(super) fn handle(
        &mut self,
        number_of: u16,
        method: &Method<'_>,
        mut answer: impl FnMut(PublishAnswer),
    ) -> Option<PublishingClosed> {
        let (number, multiple, verdict) = match method {
            Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, Confirmed::Acked),
            Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, Confirmed::Nacked),
            Method::ChannelClose(close) if number_of == PUBLISHING[self.current] => {
                return Some(self.closed(announced(close)));
            }
            // The channel is closed by both sides.
            Method::ChannelCloseOk(_) | Method::ChannelClose(_) => {
                self.is_other_closing = false;
                return None;
            }
            _ => return None,
        };
        let Self { confirms, unconfirmed, refused, is_refused, .. } = self;
        confirms.settle(number, multiple, verdict, |number, verdict| {
            let is_acked = verdict == Confirmed::Acked;
            match unconfirmed.pop_front() {
                None | Some(PublishedMessage::Plain(0)) => {}
                Some(PublishedMessage::BeforeRecord(_)) => *is_refused = !is_acked,
                Some(PublishedMessage::Record(number)) => answer(PublishAnswer::Record(number, verdict)),
                Some(PublishedMessage::Plain(packet_id)) => {
                    answer(PublishAnswer::Client(verdict_on(packet_id, is_acked)));
                }
                // The message is published, so the client must not be made to send it again.
                Some(PublishedMessage::RecordOf(packet_id)) => {
                    let is_published = !std::mem::take(is_refused);
                    if is_published && !is_acked {
                        answer(PublishAnswer::Unrecorded);
                    }
                    answer(PublishAnswer::Client(verdict_on(packet_id, is_published)));
                }
            }
            while let Some((_, then)) = refused.pop_front_if(|(after, _)| *after <= number) {
                answer(PublishAnswer::Client(then));
            }
        });
        if unconfirmed.is_empty() {
            *unconfirmed = VecDeque::new();
        }
        None
    }

    /// Handles the closing of the channel by the upstream. The next message opens it again.
    fn closed(&mut self, fault: Fault) -> PublishingClosed {
        let closed = Self::new(&self.exchange);
        let Self { current, is_other_closing, unconfirmed, refused, .. } = std::mem::replace(self, closed);
        (self.current, self.is_other_closing) = (current, is_other_closing);
        let mut ids = unconfirmed.iter().map(|message| message.packet_id());
        let unconfirmed = match ids.next() {
            None => Unconfirmed::None,
            // A message and its record count as one.
            Some(Some(packet_id))
                if unconfirmed.len() == 1 || ids.all(|id| id == Some(packet_id) && packet_id != 0) =>
            {
                Unconfirmed::One(packet_id)
            }
            _ => Unconfirmed::Several,
        };
        PublishingClosed { fault, unconfirmed, refused: refused.into_iter().map(|(_, then)| then).collect() }
    }

    /// Number of messages that the upstream has not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The packet identifiers of unconfirmed messages that have a record.
    pub(super) fn unconfirmed_recorded(&self) -> impl Iterator<Item = u16> {
        self.verdicts().filter_map(|(message, verdict)| match message {
            PublishedMessage::BeforeRecord(packet_id) if verdict != Some(Confirmed::Acked) => Some(packet_id),
            _ => None,
        })
    }

    /// Whether the upstream has answered all records that were published without a message.
    pub(super) fn has_answered_records(&self) -> bool {
        !self
            .verdicts()
            .any(|(message, verdict)| matches!(message, PublishedMessage::Record(_)) && verdict.is_none())
    }

    /// The unconfirmed messages, each with its confirm so far.
    fn verdicts(&self) -> impl Iterator<Item = (PublishedMessage, Option<Confirmed>)> {
        self.unconfirmed.iter().copied().zip(self.confirms.verdicts())
    }
}

fn verdict_on(packet_id: u16, is_published: bool) -> PendingReply {
    // The confirm does not tell whether a queue has it.
    let accept = PendingReply::Accept { packet_id, matched: true };
    if is_published { accept } else { PendingReply::QueueFull { packet_id } }
}
