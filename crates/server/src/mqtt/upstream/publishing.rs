//! The channel on which a client's messages are published.

use std::collections::VecDeque;

use amqp::method::{basic, channel, confirm};
use amqp::{Fault, Method};

use crate::mqtt::hub::EXCHANGE;
use crate::mqtt::session::Then;
use crate::upstream::client::AmqpClient;
use crate::upstream::confirms::{Confirmed, PublisherConfirms};

/// The channel's number.
pub(super) const PUBLISHING: u16 = 1;

/// The messages that a client has published and the upstream has not confirmed yet.
///
/// The channel is opened with the first message, and again after the upstream has closed it.
#[derive(Default)]
pub(super) struct PublishingChannel {
    is_open: bool,
    confirms: PublisherConfirms,
    /// The packet identifier of each unconfirmed message; 0 at QoS 0.
    unconfirmed: VecDeque<u16>,
    /// Refused messages that were not published, with the number of the message before each.
    refused: VecDeque<(u64, Then)>,
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
    ) {
        if !std::mem::replace(&mut self.is_open, true) {
            client.send(PUBLISHING, channel::Open { reserved_1: "" });
            client.send(PUBLISHING, confirm::Select { no_wait: true });
        }
        let publish = basic::Publish { exchange: EXCHANGE, routing_key, ..basic::Publish::default() };
        client.publish(PUBLISHING, publish, properties, body);
        self.confirms.published();
        self.unconfirmed.push_back(packet_id);
    }

    /// Answers a message that is not published, behind those before it.
    pub(super) fn refuse(&mut self, then: Then, mut answer: impl FnMut(Then)) {
        if self.unconfirmed.is_empty() {
            answer(then);
        } else {
            self.refused.push_back((self.confirms.last(), then));
        }
    }

    /// Handles a method of the upstream on this channel, and passes the answers that are due to `answer`. Returns the fault
    /// with which the upstream has closed the channel, and the messages that were not confirmed.
    pub(super) fn handle(
        &mut self,
        method: &Method<'_>,
        mut answer: impl FnMut(Then),
    ) -> Option<(Fault, Unconfirmed)> {
        let (number, multiple, verdict) = match method {
            Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, Confirmed::Acked),
            Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, Confirmed::Nacked),
            Method::ChannelClose(close) => return Some((super::uplink::announced(close), self.closed())),
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
    fn closed(&mut self) -> Unconfirmed {
        let unconfirmed = std::mem::take(self).unconfirmed;
        match (unconfirmed.len(), unconfirmed.front()) {
            (0, _) | (_, None) => Unconfirmed::None,
            (1, Some(packet_id)) => Unconfirmed::One(*packet_id),
            _ => Unconfirmed::Several,
        }
    }

    /// Number of messages that the upstream has not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The packet identifiers of unconfirmed messages of QoS 1 and 2.
    pub(super) fn unconfirmed_ids(&self) -> impl Iterator<Item = u16> {
        self.unconfirmed.iter().copied().filter(|packet_id| *packet_id != 0)
    }
}
