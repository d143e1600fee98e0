//! An AMQP client within this process: its server is a backend session, and no bytes cross a socket.

use std::borrow::Cow;
use std::task::Waker;
use std::time::Instant;

use amqp::content::{Assembled, Assembler, Content, write_content};
use amqp::frame::{self, Frame, FrameKind};
use amqp::method::{basic, channel};
use amqp::{ContentHeader, Fault, Method, ReplyCode};
use transport::InnerOutbox;

use crate::amqp::session::BackendSession;

/// Bytes of sent frames that may wait for the backend before [`AmqpClient::has_capacity`] returns false: some small
/// messages, or one larger one.
const MAX_UNSENT: usize = 64 * 1024;

/// Capacity in bytes that is kept for the next read while the client is busy.
const SPARE: usize = 16 * 1024;

/// The client's side of a [`BackendSession`].
///
/// Sans-IO. Each round calls [`Self::handle_nudge`], then [`Self::take_received`] and its events, then [`Self::flush`].
/// The waker given to `handle_nudge` is woken when another round is due.
pub(crate) struct AmqpClient {
    session: Box<dyn BackendSession>,
    inner: InnerOutbox,
    received: Received,
    /// Frames that the session has not taken yet.
    unsent: Vec<u8>,
    /// The fault that has ended the session.
    fault: Option<Fault>,
    /// Messages that are being received, by channel. Most clients use few channels.
    contents: Vec<(u16, Assembler<ContentMethod>)>,
    /// The maximum frame size, in bytes.
    frame_max: u32,
}

/// Bytes that the server has sent.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bytes: Vec<u8>,
    /// How many of them have been handled.
    handled: usize,
}

impl Received {
    /// The next event, if it is complete.
    ///
    /// # Errors
    /// A fault for bytes that are not AMQP.
    pub(crate) fn next(&mut self, client: &mut AmqpClient) -> Result<Option<ClientEvent<'_>>, Fault> {
        while let Some(frame) = Frame::parse(&self.bytes[self.handled..], 0)? {
            self.handled += frame.wire_len();
            if let Some(event) = client.event(frame)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn is_empty(&self) -> bool {
        self.handled == self.bytes.len()
    }

    /// Whether a complete frame is available, or bytes that are not a frame.
    fn has_frame(&self) -> bool {
        !matches!(Frame::parse(&self.bytes[self.handled..], 0), Ok(None))
    }
}

/// A method or message of the server.
#[derive(Debug)]
pub(crate) enum ClientEvent<'a> {
    /// A method without content. A channel that the server closes has been answered already.
    Method(u16, Method<'a>),
    /// A message, with its channel.
    Message(u16, ReceivedMessage<'a>),
}

/// A message from the server.
#[derive(Debug)]
pub(crate) struct ReceivedMessage<'a> {
    /// The method that carries it.
    pub(crate) method: ContentMethod,
    /// The encoded flags and list of its properties, not validated.
    pub(crate) properties: Cow<'a, [u8]>,
    pub(crate) body: Cow<'a, [u8]>,
}

/// A method that carries content.
#[derive(Debug)]
pub(crate) enum ContentMethod {
    /// basic.deliver
    Deliver {
        consumer_tag: Box<str>,
        delivery_tag: u64,
        redelivered: bool,
        exchange: Box<str>,
        routing_key: Box<str>,
    },
    /// basic.return.
    Return,
    /// basic.get-ok, which this client never requests.
    GetOk,
}

impl AmqpClient {
    /// A client of `session`, which writes to `inner`. Frames have at most `frame_max` bytes.
    pub(crate) fn new(session: Box<dyn BackendSession>, inner: InnerOutbox, frame_max: u32) -> Self {
        let (received, unsent, contents) = Default::default();
        Self { session, inner, received, unsent, fault: None, contents, frame_max }
    }

    /// Sends a method. Call [`Self::flush`] at the end of the batch.
    pub(crate) fn send<'m>(&mut self, channel: u16, method: impl Into<Method<'m>>) {
        frame::write_method(&mut self.unsent, channel, method);
    }

    /// Closes a channel, which requeues its unacknowledged messages and ends its consumers in one step, before
    /// channel.close-ok.
    pub(crate) fn close_channel(&mut self, number: u16) {
        let reply_code = amqp::ReplyCode::Success.code();
        self.send(number, channel::Close { reply_code, reply_text: "", class_id: 0, method_id: 0 });
    }

    /// Publishes a message. `properties` are the encoded flags and list.
    pub(crate) fn publish(
        &mut self,
        channel: u16,
        publish: basic::Publish<'_>,
        properties: &[u8],
        body: &[u8],
    ) {
        write_content(&mut self.unsent, channel, publish, properties, body, self.frame_max);
    }

    /// Whether more can be sent. If not, the waker is woken when that may have changed.
    pub(crate) fn has_capacity(&self) -> bool {
        self.unsent.len() < MAX_UNSENT && self.session.has_capacity()
    }

    /// Lets the session handle events. `waker` is woken when the next call is due.
    ///
    /// # Errors
    /// The fault that ends the session.
    pub(crate) fn handle_nudge(&mut self, waker: &Waker, now: Instant) -> Result<(), Fault> {
        self.inner.register(waker);
        self.check()?;
        let outcome = self.nudge_session(now);
        self.ends_by(outcome)
    }

    fn nudge_session(&mut self, now: Instant) -> Result<(), Fault> {
        if self.inner.take_nudge() {
            self.session.handle_nudge(now)?;
        }
        if self.inner.take_capacity() {
            self.session.handle_capacity(now);
        }
        if self.session.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.session.handle_deadline(now)?;
        }
        Ok(())
    }

    /// Returns the fault if the session has ended by one.
    fn check(&self) -> Result<(), Fault> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Remembers the fault that ends the session, which reports it only once.
    fn ends_by(&mut self, outcome: Result<(), Fault>) -> Result<(), Fault> {
        self.fault = outcome.as_ref().err().cloned();
        outcome
    }

    /// The latest time at which to call [`Self::handle_nudge`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.session.next_deadline()
    }

    /// Passes sent frames to the session, as far as it takes them.
    ///
    /// # Errors
    /// The fault that ends the session.
    pub(crate) fn flush(&mut self, now: Instant) -> Result<(), Fault> {
        self.check()?;
        let mut taken = 0;
        let outcome = self.hand_over(&mut taken, now);
        if taken == self.unsent.len() || outcome.is_err() {
            self.unsent = Vec::new();
        } else {
            self.unsent.drain(..taken);
        }
        self.session.flush(now);
        self.ends_by(outcome)?;
        // This round may have read the output that left no capacity. The waker is woken if the session sends more.
        if self.inner.take_capacity() {
            self.session.handle_capacity(now);
        }
        Ok(())
    }

    /// Passes frames to the session; counts their bytes in `taken`, including those of a frame that fails.
    fn hand_over(&mut self, taken: &mut usize, now: Instant) -> Result<(), Fault> {
        while let Some(frame) = Frame::parse(&self.unsent[*taken..], 0)? {
            if !self.session.takes(&frame, now) {
                break;
            }
            *taken += frame.wire_len();
            *taken += self.session.handle_frame(frame, &self.unsent[*taken..], now)?;
        }
        Ok(())
    }

    /// Takes received bytes, for [`Received::next`] and then [`Self::put_back`]. No more are read while a complete frame
    /// is unhandled, so that the backend notices a client that takes nothing.
    pub(crate) fn take_received(&mut self) -> Received {
        let mut received = std::mem::take(&mut self.received);
        if !received.has_frame() {
            received.bytes.drain(..received.handled);
            received.handled = 0;
            self.inner.read(&mut received.bytes);
        }
        received
    }

    /// Keeps unhandled bytes for the next call.
    pub(crate) fn put_back(&mut self, mut received: Received) {
        if received.is_empty() && received.bytes.capacity() > SPARE {
            received = Received::default();
        }
        self.received = received;
    }

    /// Whether there is input for [`Self::take_received`].
    pub(crate) fn has_received(&self) -> bool {
        self.received.has_frame() || self.inner.outbox().backlog() > 0
    }

    /// The event that a frame completes.
    fn event<'f>(&mut self, frame: Frame<'f>) -> Result<Option<ClientEvent<'f>>, Fault> {
        let channel = frame.channel;
        let assembled = match frame.kind {
            FrameKind::Heartbeat => return Ok(None),
            FrameKind::Method => {
                let method = match Method::decode(frame.payload) {
                    Ok(method) => method,
                    Err(error) => {
                        let content = ContentMethod::of_bytes(frame.payload).ok_or(error)?;
                        self.content(channel).expect(content, DELIVER);
                        return Ok(None);
                    }
                };
                if let Some(content) = ContentMethod::of(&method) {
                    self.content(channel).expect(content, method.ids());
                    return Ok(None);
                }
                if matches!(method, Method::ChannelClose(_)) {
                    self.contents.retain(|(of, _)| *of != channel);
                    self.send(channel, channel::CloseOk {});
                }
                return Ok(Some(ClientEvent::Method(channel, method)));
            }
            FrameKind::Header => {
                self.content(channel).header(ContentHeader::decode(frame.payload)?, u64::MAX)?
            }
            FrameKind::Body => self.content(channel).body(frame.payload)?,
        };
        Ok(match assembled {
            Assembled::More => None,
            Assembled::Complete(Content { method, properties, body }) => {
                Some(ClientEvent::Message(channel, ReceivedMessage { method, properties, body }))
            }
        })
    }

    fn content(&mut self, channel: u16) -> &mut Assembler<ContentMethod> {
        let at = self.contents.iter().position(|(of, _)| *of == channel).unwrap_or_else(|| {
            self.contents.push((channel, Assembler::new()));
            self.contents.len() - 1
        });
        &mut self.contents[at].1
    }

    /// The upstream connections of its channels, for the log.
    pub(crate) fn upstreams(&self) -> Vec<String> {
        self.session.upstreams()
    }

    /// Closes the connection. Returns true if that is done; otherwise the waker is woken when [`Self::is_closed`].
    pub(crate) fn close(&mut self, now: Instant) -> bool {
        self.session.close(now)
    }

    /// Closes the connection, and discards further input. Returns true if that is done or has failed; otherwise `waker`
    /// is woken when this has to be called again.
    pub(crate) fn close_unread(&mut self, waker: &Waker, now: Instant) -> bool {
        let has_failed = self.handle_nudge(waker, now).is_err();
        let mut received = self.take_received();
        while let Ok(Some(_)) = received.next(self) {}
        self.put_back(received);
        has_failed || self.close(now) || self.is_closed()
    }

    /// Whether [`Self::close`] has finished.
    pub(crate) fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Ends the session in any state. Messages that it has received are still published, unless it has failed.
    pub(crate) fn end(&mut self, now: Instant) {
        // A fault has ended the session already.
        let _ = self.flush(now);
        self.session.end(now);
    }

    /// Ends the session in any state; unconfirmed messages may be lost.
    pub(crate) fn discard(&mut self, now: Instant) {
        self.session.discard(now);
    }
}

/// Class and method id of basic.deliver.
const DELIVER: (u16, u16) = (60, 60);

/// The fault by which the server has closed a channel.
pub(crate) fn announced(close: &channel::Close<'_>) -> Fault {
    Fault::announced(close.reply_code, close.reply_text, (close.class_id, close.method_id))
}

/// Whether the server has refused a request because this exchange does not exist. RabbitMQ also answers 404 NOT_FOUND for
/// a missing queue, and names the missing object in the text.
pub(crate) fn misses_exchange(fault: &Fault, exchange: &str) -> bool {
    // LavinMQ begins with a capital letter.
    let names = |word: &str| fault.text.contains(&format!("{word} '{exchange}'"));
    fault.code == ReplyCode::NotFound && (names("exchange") || names("Exchange"))
}

impl ContentMethod {
    /// The basic.deliver in a method frame's payload, with U+FFFD in place of invalid UTF-8: brokers treat exchange names
    /// and routing keys as bytes.
    fn of_bytes(payload: &[u8]) -> Option<Self> {
        let (consumer_tag, rest) = short_string(payload.strip_prefix(&[0, 60, 0, 60])?)?;
        let (delivery_tag, rest) = rest.split_first_chunk()?;
        let (flags, rest) = rest.split_first()?;
        let (exchange, rest) = short_string(rest)?;
        let (routing_key, rest) = short_string(rest)?;
        let delivery_tag = u64::from_be_bytes(*delivery_tag);
        let redelivered = flags & 1 == 1;
        rest.is_empty().then_some(Self::Deliver {
            consumer_tag,
            delivery_tag,
            redelivered,
            exchange,
            routing_key,
        })
    }

    /// The method with its strings copied, if it carries content.
    fn of(method: &Method<'_>) -> Option<Self> {
        match method {
            Method::BasicDeliver(deliver) => Some(Self::Deliver {
                consumer_tag: deliver.consumer_tag.into(),
                delivery_tag: deliver.delivery_tag,
                redelivered: deliver.redelivered,
                exchange: deliver.exchange.into(),
                routing_key: deliver.routing_key.into(),
            }),
            Method::BasicReturn(_) => Some(Self::Return),
            Method::BasicGetOk(_) => Some(Self::GetOk),
            _ => None,
        }
    }
}

/// A short string at the front of `bytes`, and the rest.
fn short_string(bytes: &[u8]) -> Option<(Box<str>, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((String::from_utf8_lossy(text).into(), rest))
}
