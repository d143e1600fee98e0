//! The channel on which a client's messages are published.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, confirm};
use amqp::{Fault, Method};

use crate::mqtt::hub::EXCHANGE;
use crate::mqtt::session::Then;
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
#[derive(Default)]
pub(super) struct PublishingChannel {
    is_open: bool,
    /// The index of its number.
    current: usize,
    /// The other number's channel is being closed.
    is_other_closing: bool,
    /// When the last message was published, until the channel is closed.
    published: Option<Instant>,
    confirms: PublisherConfirms,
    /// The packet identifier of each unconfirmed message; 0 at QoS 0.
    unconfirmed: VecDeque<u16>,
    /// Refused messages that were not published, with the number of the message before each.
    refused: VecDeque<(u64, Then)>,
}

/// The end of the channel for publishing, which the upstream has closed.
#[derive(Debug)]
pub(super) struct PublishingClosed {
    pub(super) fault: Fault,
    pub(super) unconfirmed: Unconfirmed,
    /// The answers to messages behind those, which were not published.
    pub(super) refused: Vec<Then>,
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
        let number = PUBLISHING[self.current];
        self.published = Some(now);
        if !std::mem::replace(&mut self.is_open, true) {
            client.send(number, channel::Open { reserved_1: "" });
            client.send(number, confirm::Select { no_wait: true });
        }
        let publish = basic::Publish { exchange: EXCHANGE, routing_key, ..basic::Publish::default() };
        client.publish(number, publish, properties, body);
        self.confirms.published();
        self.unconfirmed.push_back(packet_id);
    }

    /// When to call [`Self::rest`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let rests = self.is_open && self.unconfirmed.is_empty() && !self.is_other_closing;
        self.published.filter(|_| rests).map(|published| published + IDLE)
    }

    /// Closes the channel if it is idle.
    pub(super) fn rest(&mut self, client: &mut AmqpClient, now: Instant) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let reply_code = amqp::ReplyCode::Success.code();
            let close = channel::Close { reply_code, reply_text: "", class_id: 0, method_id: 0 };
            client.send(PUBLISHING[self.current], close);
            *self = Self { current: 1 - self.current, is_other_closing: true, ..Self::default() };
        }
    }

    /// Answers a message that is not published, behind those before it.
    pub(super) fn refuse(&mut self, then: Then, mut answer: impl FnMut(Then)) {
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
        mut answer: impl FnMut(Then),
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
        let Self { confirms, unconfirmed, refused, .. } = self;
        confirms.settle(number, multiple, verdict, |number, verdict| {
            match (unconfirmed.pop_front().unwrap_or_default(), verdict) {
                (0, _) => {}
                // The upstream is not asked whether a queue has it.
                (packet_id, Confirmed::Acked) => answer(Then::Accept { packet_id, matched: true }),
                (packet_id, Confirmed::Nacked) => answer(Then::refused_by_queue(packet_id)),
            }
            while let Some((_, then)) = refused.pop_front_if(|(after, _)| *after <= number) {
                answer(then);
            }
        });
        if unconfirmed.is_empty() {
            *unconfirmed = VecDeque::new();
        }
        None
    }

    /// The upstream has closed the channel. The next message opens it again.
    fn closed(&mut self, fault: Fault) -> PublishingClosed {
        let Self { current, is_other_closing, unconfirmed, refused, .. } = std::mem::take(self);
        (self.current, self.is_other_closing) = (current, is_other_closing);
        let unconfirmed = match (unconfirmed.len(), unconfirmed.front()) {
            (0, _) | (_, None) => Unconfirmed::None,
            (1, Some(packet_id)) => Unconfirmed::One(*packet_id),
            _ => Unconfirmed::Several,
        };
        PublishingClosed { fault, unconfirmed, refused: refused.into_iter().map(|(_, then)| then).collect() }
    }

    /// Number of messages that the upstream has not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }
}
