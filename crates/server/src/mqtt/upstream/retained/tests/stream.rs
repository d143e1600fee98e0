//! An upstream with a log's stream, as far as a link uses it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amqp::frame::{self, FrameKind};
use amqp::method::{basic, channel, exchange, queue};
use amqp::properties::Properties;
use amqp::{ContentHeader, Fault, FieldValue, Frame, Method, RawTable, ReplyCode};
use parking_lot::Mutex;
use transport::{InnerOutbox, Outbox};

use super::super::record::Encoded;
use crate::amqp::session::BackendSession;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::task::{OpenError, OpenUpstream};

/// The stream, and the connections to it.
#[derive(Clone, Default)]
pub(super) struct TestStream(Arc<Mutex<StreamState>>);

#[derive(Default)]
struct StreamState {
    /// The exchange and message of each entry.
    entries: Vec<(String, Encoded)>,
    consumers: Vec<StreamConsumer>,
    /// The users with permission for the stream.
    permitted: HashSet<String>,
    /// The faults for the next declaration and for the next consumer.
    down: [Option<ReplyCode>; 2],
    /// The number of messages to confirm and drop.
    dropped: usize,
    /// The users that have declared it.
    asked: Vec<String>,
}

struct StreamConsumer {
    outbox: Arc<Outbox>,
    channel: u16,
    delivered: u64,
    user: String,
    is_lost: Arc<AtomicBool>,
}

impl TestStream {
    pub(super) fn permit(&self, user: &str) {
        self.0.lock().permitted.insert(user.to_owned());
    }

    /// Refuses the next declaration and the next consumer.
    pub(super) fn starts_slowly(&self, declaration: ReplyCode, consumer: ReplyCode) {
        self.0.lock().down = [Some(declaration), Some(consumer)];
    }

    /// Confirms and drops the next messages.
    pub(super) fn drop_next(&self, messages: usize) {
        self.0.lock().dropped = messages;
    }

    pub(super) fn forbid(&self, user: &str) {
        self.0.lock().permitted.remove(user);
    }

    /// The users that have asked for the stream since the last call.
    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().asked)
    }

    /// The users that consume from it.
    pub(super) fn readers(&self) -> Vec<String> {
        self.0.lock().consumers.iter().map(|consumer| consumer.user.clone()).collect()
    }

    /// Appends an entry, which is delivered to each consumer.
    pub(super) fn append(&self, exchange: &str, message: Encoded) {
        let mut state = self.0.lock();
        if let Some(left) = state.dropped.checked_sub(1) {
            return state.dropped = left;
        }
        state.entries.push((exchange.to_owned(), message));
        let StreamState { entries, consumers, .. } = &mut *state;
        let (at, entry) = (entries.len() - 1, &entries[entries.len() - 1]);
        consumers.iter_mut().for_each(|consumer| consumer.deliver(at, entry));
    }

    /// Closes all connections.
    pub(super) fn lose(&self) {
        let mut state = self.0.lock();
        for consumer in state.consumers.drain(..) {
            consumer.is_lost.store(true, Ordering::Relaxed);
            consumer.outbox.nudge();
        }
    }

    /// Deletes the stream and cancels its consumers.
    pub(super) fn delete(&self) {
        let mut state = self.0.lock();
        state.entries = Vec::new();
        for consumer in state.consumers.drain(..) {
            let cancel = basic::Cancel { consumer_tag: "", no_wait: true };
            respond(&consumer.outbox, consumer.channel, cancel);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    pub(super) fn client(&self, user: &str) -> AmqpClient {
        let inner = InnerOutbox::new(1 << 20);
        let outbox = Arc::clone(inner.outbox());
        let (stream, user, publishes) = (self.clone(), user.to_owned(), Vec::new());
        let session =
            StreamSession { stream, outbox, user, publishes, published: 0, is_lost: Arc::default() };
        AmqpClient::new(Box::new(session), inner, 0)
    }

    /// Opens connections for the logins of a log.
    pub(super) fn opener(&self, login: &UpstreamLogin) -> StreamLogin {
        StreamLogin { stream: self.clone(), user: login.credentials.username.clone() }
    }
}

/// A user's access to the stream.
pub(super) struct StreamLogin {
    stream: TestStream,
    user: String,
}

impl OpenUpstream for StreamLogin {
    async fn open(&self) -> Result<AmqpClient, OpenError> {
        Ok(self.stream.client(&self.user))
    }
}

impl StreamConsumer {
    fn deliver(&mut self, at: usize, (exchange, message): &(String, Encoded)) {
        self.delivered += 1;
        let Encoded { routing_key, properties, body } = message;
        let properties = stamped(properties, at as i64);
        let delivery_tag = self.delivered;
        let mut frames = Vec::new();
        let deliver = basic::Deliver { delivery_tag, exchange, routing_key, ..Default::default() };
        frame::write_method(&mut frames, self.channel, deliver);
        frame::write_content_header(&mut frames, self.channel, body.len() as u64, &properties);
        if !body.is_empty() {
            frame::write_body(&mut frames, self.channel, body);
        }
        self.outbox.append(|buf| buf.tail().extend_from_slice(&frames));
    }
}

/// The properties as RabbitMQ delivers them in a stream's message, with the offset. Malformed ones come from a test and
/// contain the offset already.
fn stamped(properties: &[u8], offset: i64) -> Vec<u8> {
    let Ok(mut amqp) = Properties::decode(properties) else { return properties.into() };
    let mut headers = amqp.headers.map(|headers| headers.decode()).unwrap_or_default();
    headers.remove("BCC");
    headers.insert("x-stream-offset", FieldValue::I64(offset));
    let headers = headers.encode();
    amqp.headers = RawTable::check(&headers).ok();
    let mut stamped = Vec::new();
    amqp.encode(&mut stamped);
    stamped
}

fn respond<'m>(outbox: &Outbox, channel: u16, method: impl Into<Method<'m>>) {
    let mut frames = Vec::new();
    frame::write_method(&mut frames, channel, method);
    outbox.append(|buf| buf.tail().extend_from_slice(&frames));
}

struct StreamSession {
    stream: TestStream,
    outbox: Arc<Outbox>,
    user: String,
    /// Messages that are being received.
    publishes: Vec<(String, Encoded)>,
    published: u64,
    is_lost: Arc<AtomicBool>,
}

impl StreamSession {
    fn refuse(&self, number: u16, code: ReplyCode) {
        let close = channel::Close { reply_code: code.code(), reply_text: "", class_id: 0, method_id: 0 };
        respond(&self.outbox, number, close);
    }

    fn take_down(&self, which: usize) -> Option<ReplyCode> {
        self.stream.0.lock().down[which].take()
    }

    fn handle_method(&mut self, number: u16, method: &Method<'_>) {
        let outbox = &self.outbox;
        match method {
            Method::ExchangeDeclare(_) => {
                self.stream.0.lock().asked.push(self.user.clone());
                respond(outbox, number, exchange::DeclareOk {});
            }
            Method::QueueDeclare(_) if !self.stream.0.lock().permitted.contains(&self.user) => {
                self.refuse(number, ReplyCode::AccessRefused);
            }
            Method::QueueDeclare(_) => match self.take_down(0) {
                Some(code) => self.refuse(number, code),
                None => respond(outbox, number, queue::DeclareOk::default()),
            },
            Method::QueueBind(_) => respond(outbox, number, queue::BindOk {}),
            Method::BasicConsume(consume) => {
                if let Some(code) = self.take_down(1) {
                    return self.refuse(number, code);
                }
                respond(outbox, number, basic::ConsumeOk { consumer_tag: "" });
                let offset =
                    consume.arguments.decode().get("x-stream-offset").and_then(FieldValue::as_integer);
                let (outbox, user) = (Arc::clone(outbox), self.user.clone());
                let is_lost = Arc::clone(&self.is_lost);
                let mut consumer = StreamConsumer { outbox, channel: number, delivered: 0, user, is_lost };
                let mut state = self.stream.0.lock();
                let first = offset.unwrap_or_default() as usize;
                for (at, entry) in state.entries.iter().enumerate().skip(first) {
                    consumer.deliver(at, entry);
                }
                state.consumers.push(consumer);
            }
            Method::BasicPublish(publish) => {
                let (routing_key, properties, body) =
                    (publish.routing_key.into(), Vec::new(), Default::default());
                self.publishes.push((publish.exchange.to_owned(), Encoded { routing_key, properties, body }));
            }
            _ => {}
        }
    }

    fn handle_published(&mut self, number: u16) {
        let Some((exchange, message)) = self.publishes.pop() else { return };
        self.published += 1;
        self.stream.append(&exchange, message);
        respond(&self.outbox, number, basic::Ack { delivery_tag: self.published, multiple: false });
    }
}

impl BackendSession for StreamSession {
    fn handle_frame(&mut self, frame: Frame<'_>, _rest: &[u8], _now: Instant) -> Result<usize, Fault> {
        match frame.kind {
            FrameKind::Method => self.handle_method(frame.channel, &Method::decode(frame.payload)?),
            FrameKind::Header => {
                let header = ContentHeader::decode(frame.payload)?;
                if let Some((_, message)) = self.publishes.last_mut() {
                    message.properties = header.properties.into();
                }
                if header.body_size == 0 {
                    self.handle_published(frame.channel);
                }
            }
            FrameKind::Body => {
                if let Some((_, message)) = self.publishes.last_mut() {
                    message.body = bytes::Bytes::copy_from_slice(frame.payload);
                }
                self.handle_published(frame.channel);
            }
            FrameKind::Heartbeat => {}
        }
        Ok(0)
    }

    fn takes(&mut self, _frame: &Frame<'_>, _now: Instant) -> bool {
        true
    }

    fn flush(&mut self, _now: Instant) {}

    fn handle_nudge(&mut self, _now: Instant) -> Result<(), Fault> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Fault::new(ReplyCode::ConnectionForced, "upstream connection lost"));
        }
        Ok(())
    }

    fn handle_capacity(&mut self, _now: Instant) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&mut self, _now: Instant) -> Result<(), Fault> {
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        true
    }

    fn update_secret(&mut self, _secret: &[u8]) -> Result<bool, Fault> {
        Ok(true)
    }

    fn channel_count(&self) -> usize {
        0
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn close(&mut self, now: Instant) -> bool {
        self.end(now);
        true
    }

    fn is_closed(&self) -> bool {
        true
    }

    fn end(&mut self, _now: Instant) {
        self.stream.0.lock().consumers.retain(|consumer| !Arc::ptr_eq(&consumer.outbox, &self.outbox));
    }
}
