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

/// The channel's numbers, of which it has one at a time: another is opened while the earlier one is being closed.
pub(super) const PUBLISHING: [u16; 2] = [1, 4];

/// The time without a message after which the channel is closed, so that clients that publish now and then share a few
/// channels upstream. Opening it again costs no round trip.
const IDLE: Duration = Duration::from_secs(5);

/// The messages that a client has published and the upstream has not confirmed yet.
///
/// The channel is opened with the first message, and again after it was closed.
pub(super) struct PublishingChannel {
    /// The exchange of clients' messages.
    exchange: Arc<str>,
    is_open: bool,
    /// The index of its number.
    current: usize,
    /// The other number's channel is being closed.
    is_other_closing: bool,
    /// When the last message was published, until the channel is closed.
    published: Option<Instant>,
    confirms: PublisherConfirms,
    /// The unconfirmed messages.
    unconfirmed: VecDeque<PublishedMessage>,
    /// Whether the upstream has refused a message whose record follows.
    is_refused: bool,
    /// Refused messages that were not published, with the number of the message before each.
    refused: VecDeque<(u64, PendingReply)>,
}

/// The end of the channel for publishing, which the upstream has closed.
#[derive(Debug)]
pub(super) struct PublishingClosed {
    pub(super) fault: Fault,
    pub(super) unconfirmed: Unconfirmed,
    /// The answers to messages behind those, which were not published.
    pub(super) refused: Vec<PendingReply>,
}

/// A message that is not confirmed.
#[derive(Debug, Clone, Copy)]
enum PublishedMessage {
    /// A message of a client, by its packet identifier; 0 at QoS 0.
    Plain(u16),
    /// A message of a client that is followed by its record.
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

/// The answer of the upstream.
#[derive(Debug)]
pub(super) enum PublishAnswer {
    /// For the client.
    Client(PendingReply),
    /// The record with this number is confirmed, or refused.
    Record(u64, Confirmed),
    /// A message is published, and its record refused.
    Unrecorded,
}

/// The messages that were unconfirmed when the upstream closed the channel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unconfirmed {
    None,
    /// The one that was refused, by its packet identifier.
    One(u16),
    /// It is not known which of them was refused, and which have been published.
    Several,
}

impl PublishingChannel {
    /// A channel that is not open.
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

    /// Publishes a message. `properties` are flags and list as they are on the wire.
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

    /// Publishes a message (its routing key, properties and body) with its record right behind it: a connection that is lost in
    /// between is as unlikely as can be.
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

    /// Publishes a record (the name of its queue, and itself); the answer has this number.
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

    /// When to call [`Self::rest`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let rests = self.is_open && self.unconfirmed.is_empty() && !self.is_other_closing;
        self.published.filter(|_| rests).map(|published| published + IDLE)
    }

    /// Closes the channel if it is idle.
    pub(super) fn rest(&mut self, client: &mut AmqpClient, now: Instant) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            client.close_channel(PUBLISHING[self.current]);
            *self = Self { current: 1 - self.current, is_other_closing: true, ..Self::new(&self.exchange) };
        }
    }

    /// Answers a message that is not published, behind those before it.
    pub(super) fn answer_behind(&mut self, then: PendingReply, mut answer: impl FnMut(PendingReply)) {
        if self.unconfirmed.is_empty() {
            answer(then);
        } else {
            self.refused.push_back((self.confirms.last(), then));
        }
    }

    /// Handles a method of the upstream on this channel, and passes the answers that are due to `answer`. Returns what was
    /// left of the channel if the upstream has closed it.
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
            // Both sides close it.
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
                // A client whose message is published must not be asked to send it again.
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

    /// The upstream has closed the channel. The next message opens it again.
    fn closed(&mut self, fault: Fault) -> PublishingClosed {
        let closed = Self::new(&self.exchange);
        let Self { current, is_other_closing, unconfirmed, refused, .. } = std::mem::replace(self, closed);
        (self.current, self.is_other_closing) = (current, is_other_closing);
        let mut ids = unconfirmed.iter().map(|message| message.packet_id());
        let unconfirmed = match ids.next() {
            None => Unconfirmed::None,
            // A message and its record are one.
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

    /// The packet identifiers of the messages with a record that the upstream has not confirmed.
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

    /// The unconfirmed messages with what the upstream has said of each.
    fn verdicts(&self) -> impl Iterator<Item = (PublishedMessage, Option<Confirmed>)> {
        self.unconfirmed.iter().copied().zip(self.confirms.verdicts())
    }
}

fn verdict_on(packet_id: u16, is_published: bool) -> PendingReply {
    // The upstream is not asked whether a queue has it.
    let accept = PendingReply::Accept { packet_id, matched: true };
    if is_published { accept } else { PendingReply::QueueFull { packet_id } }
}
