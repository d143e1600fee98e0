//! A forwarder's dialogue with the upstream, on two channels in confirm mode.

use std::borrow::Cow;
use std::fmt::Write;
use std::task::Waker;
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, confirm};
use amqp::{Fault, FieldValue, Method, Properties, RawTable};
use spool::{Envelope, ForwardingChannel, MessageRefusal};
use sync::work;

use super::forwarder::Forwarder;
use crate::upstream::client::{AmqpClient, ClientEvent, announced};

use self::ForwardingChannel::{Careful, Fast};

/// Nanoseconds charged for an answer of the upstream.
const METHOD: u32 = 200;
/// Nanoseconds charged for publishing a message.
const PUBLISH: u32 = 1_000;

/// The time after which a connection with nothing to forward is closed.
const IDLE: Duration = Duration::from_secs(10);

/// The header with a message's id, by which consumers detect duplicates.
const ID_HEADER: &str = "x-leveret-spool-id";

/// A forwarder's upstream connection.
pub(super) struct SpoolLink {
    client: AmqpClient,
    channels: [ChannelState; 2],
    /// Since when there has been nothing to do; `None` while there is.
    idle_since: Option<Instant>,
}

/// The state of a channel, until the upstream closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelState {
    Closed,
    /// Until confirm.select-ok.
    Opening,
    Open,
}

/// The end of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SpoolStep {
    /// The link waits for its waker or its deadline.
    Idle,
    /// There is more to do than fits into a turn.
    TurnOver,
    /// There has been nothing to forward for a while, or other credentials have to be used.
    Unused,
}

impl SpoolLink {
    pub(super) fn new(client: AmqpClient) -> Self {
        Self { client, channels: [ChannelState::Closed; 2], idle_since: None }
    }

    /// Opens the channels that are needed.
    fn open_channels(&mut self, forwarder: &Forwarder) {
        for channel in [Fast, Careful] {
            let state = &mut self.channels[channel as usize];
            if *state == ChannelState::Closed && forwarder.wants_channel(channel) {
                *state = ChannelState::Opening;
                self.client.send(number_of(channel), channel::Open { reserved_1: "" });
                self.client.send(number_of(channel), confirm::Select { no_wait: false });
            }
        }
    }

    fn is_open(&self) -> bool {
        !self.channels.contains(&ChannelState::Opening)
    }

    /// Handles what has been received, and publishes what may be.
    ///
    /// # Errors
    /// The connection is lost, or not usable any more.
    pub(super) fn take_turn(
        &mut self,
        forwarder: &mut Forwarder,
        waker: &Waker,
        now: Instant,
    ) -> Result<SpoolStep, Fault> {
        self.client.handle_nudge(waker, now)?;
        forwarder.begin_turn(self.is_open(), now);
        loop {
            let handled = self.receive(forwarder, now)?;
            if forwarder.is_to_be_renewed() {
                // Must precede opening a channel again that the upstream has closed: its messages count as in flight.
                return Ok(SpoolStep::Unused);
            }
            forwarder.settle(now);
            self.open_channels(forwarder);
            let mut published = 0;
            for channel in ForwardingChannel::POLL_ORDER {
                published += self.publish(channel, forwarder, now)?;
            }
            let has_settled = forwarder.settle(now);
            self.open_channels(forwarder);
            self.client.flush(now)?;
            let is_busy = handled + published > 0 || has_settled;
            if is_busy {
                // Also if the turn ends here or the answer comes within it: the next turn could not tell that there was
                // work.
                self.idle_since = None;
            }
            if work::is_turn_over() {
                return Ok(SpoolStep::TurnOver);
            }
            if !is_busy {
                break;
            }
        }
        forwarder.check_answers(now);
        if forwarder.has_work() {
            self.idle_since = None;
            return Ok(SpoolStep::Idle);
        }
        let since = *self.idle_since.get_or_insert(now);
        let is_over = forwarder.is_draining() || now.saturating_duration_since(since) >= IDLE;
        Ok(if is_over { SpoolStep::Unused } else { SpoolStep::Idle })
    }

    /// The latest time of the next turn.
    pub(super) fn next_deadline(&self, forwarder: &Forwarder) -> Option<Instant> {
        let unused = self.idle_since.map(|since| since + IDLE);
        let of_forwarder = forwarder.next_deadline(self.is_open());
        self.client.next_deadline().into_iter().chain(of_forwarder).chain(unused).min()
    }

    pub(super) fn close(&mut self, waker: &Waker, now: Instant) -> bool {
        self.client.close_unread(waker, now)
    }

    /// Handles events as long as the turn lasts; returns their number.
    fn receive(&mut self, forwarder: &mut Forwarder, now: Instant) -> Result<usize, Fault> {
        let mut received = self.client.take_received();
        let (mut handled, mut outcome) = (0, Ok(()));
        while !work::is_turn_over()
            && outcome.is_ok()
            && let Some(event) = received.next(&mut self.client)?
        {
            handled += 1;
            work::charge(METHOD, 1);
            let ClientEvent::Method(number, method) = event else { continue };
            let Some(channel) = [Fast, Careful].into_iter().find(|channel| number_of(*channel) == number)
            else {
                continue;
            };
            match method {
                Method::ConfirmSelectOk(_) => {
                    self.channels[channel as usize] = ChannelState::Open;
                    forwarder.opened(channel, now);
                }
                Method::BasicAck(ack) => forwarder.acked(channel, ack.delivery_tag, ack.multiple, now),
                Method::BasicNack(nack) => forwarder.nacked(channel, nack.delivery_tag, nack.multiple, now),
                Method::ChannelClose(close) => {
                    self.channels[channel as usize] = ChannelState::Closed;
                    outcome = closed(forwarder, channel, &close, now);
                }
                _ => {}
            }
        }
        self.client.put_back(received);
        outcome.map(|()| handled)
    }

    /// Publishes as long as the turn lasts and the upstream has capacity; returns the number of messages.
    fn publish(
        &mut self,
        channel: ForwardingChannel,
        forwarder: &mut Forwarder,
        now: Instant,
    ) -> Result<usize, Fault> {
        let mut published = 0;
        while !work::is_turn_over() {
            if !self.client.has_capacity() {
                self.client.flush(now)?;
                if !self.client.has_capacity() {
                    break;
                }
            }
            let Some(envelope) = forwarder.next_to_publish(channel, now) else { break };
            let (exchange, routing_key) = (envelope.exchange(), envelope.routing_key());
            let publish = basic::Publish { exchange, routing_key, ..Default::default() };
            let properties = with_id(&envelope);
            self.client.publish(number_of(channel), publish, &properties, envelope.body());
            published += 1;
            work::charge(PUBLISH, 1);
        }
        Ok(published)
    }
}

impl Drop for SpoolLink {
    fn drop(&mut self) {
        // Unconfirmed messages are on disk, and are published again.
        self.client.discard(transport::now());
    }
}

/// The channel's number on the connection.
fn number_of(channel: ForwardingChannel) -> u16 {
    match channel {
        Fast => 1,
        Careful => 2,
    }
}

/// Handles the closing of a channel by the upstream: because of a message, or for another reason.
fn closed(
    forwarder: &mut Forwarder,
    channel: ForwardingChannel,
    close: &channel::Close<'_>,
    now: Instant,
) -> Result<(), Fault> {
    let refusal = MessageRefusal { code: close.reply_code, text: close.reply_text.to_owned() };
    if refusal.is_of_permissions() && forwarder.renews_after_refusal() {
        return Ok(());
    }
    if refusal.is_permanent() && forwarder.refused(channel, refusal, now) {
        return Ok(());
    }
    Err(announced(close))
}

/// The message's properties with its id among the headers.
fn with_id(envelope: &Envelope) -> Cow<'_, [u8]> {
    let bytes = envelope.properties();
    // They were validated when the message was spooled.
    let Ok(mut properties) = Properties::decode(bytes) else { return Cow::Borrowed(bytes) };
    let id = FieldValue::text(hexadecimal(envelope.id()));
    let encoded = properties.headers.unwrap_or_default().with_entry(ID_HEADER, &id);
    properties.headers = RawTable::check(&encoded).ok();
    let mut out = Vec::with_capacity(bytes.len() + encoded.len());
    properties.encode(&mut out);
    Cow::Owned(out)
}

/// The maximum of bytes that [`with_id`] adds: the length of the table, the name, a type, a length and the id.
pub(super) const ID_BYTES: usize = 4 + 1 + ID_HEADER.len() + 1 + 4 + 32;

fn hexadecimal(id: [u8; 16]) -> String {
    id.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
