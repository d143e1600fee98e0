//! The dialogue with the upstream: declares and binds the log, reads it from the last offset on, and publishes markers
//! and copies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, confirm, exchange, queue};
use amqp::{Fault, FieldTable, FieldValue, Method, RawTable, ReplyCode};
use sync::{AtomicWaker, work};

use super::LOG;
use super::log::{LogRead, RetainedLog};
use super::record::{self, BINDING_KEY, Encoded};
use crate::upstream::client::{
    AmqpClient, ClientEvent, ContentMethod, ReceivedMessage, announced, misses_exchange,
};
use crate::upstream::confirms::{Confirmed, PublisherConfirms};
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::dialogue::{Dialogue, DialogueLink};
use crate::upstream::multiplexing::link::LinkEnd;
use crate::upstream::multiplexing::task::LinkedQueue;

/// Prefetch of the log's consumer: at a round trip of 20 ms the upstream can still send 50,000 entries a second.
const WINDOW: u16 = 1000;

/// Unconfirmed markers and copies at which no more copies are made.
const MAX_UNCONFIRMED: u64 = 64;

/// The time after which a marker that was not read back is published again. A RabbitMQ that has just started confirms,
/// and drops, messages for queues that it has not started yet.
pub(super) const MARKER_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of the channel that declares, binds and publishes.
const PUBLISHING: u16 = 1;

/// The number of the channel that consumes.
const READING: u16 = 2;

/// Nanoseconds charged for a method or entry: for parsing it and for updating the tree.
const METHOD: u32 = 2000;

/// Picoseconds charged for a byte of an entry.
const BODY_BYTE: u32 = 150;

/// Reads a log with one login.
pub(super) struct LogReader {
    pub(super) log: Arc<RetainedLog>,
    pub(super) login: UpstreamLogin,
    /// Whether the login waits until it may be used.
    pub(super) is_waiting: bool,
}

/// An upstream connection that reads the log.
pub(super) type LogLink = DialogueLink<LogDialogue>;

pub(super) struct LogDialogue {
    log: Arc<RetainedLog>,
    login: UpstreamLogin,
    stage: LogStage,
    /// Whether the upstream has confirmed that the queue exists.
    is_declared: bool,
    confirms: PublisherConfirms,
    /// The number of the marker that was published last; 0 for none.
    marker: u64,
    /// When `marker` was published.
    marker_at: Instant,
    /// The number of the last marker that was read on this connection.
    reached: u64,
    /// Whether the publishing channel has to be opened again.
    reopens: bool,
    /// Until the first entry on this connection: the offset that it should have.
    expected: Option<u64>,
    /// The last delivery tag received, and the last one acknowledged.
    received: u64,
    acked: u64,
    /// Set when the connection has to be closed.
    end: Option<LinkEnd>,
}

/// The progress of the declaration; each stage is a request that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStage {
    Exchange,
    Queue,
    /// The binding to `mqtt_exchange`.
    Publishers,
    /// The binding to the log's own exchange.
    Own,
    Consumer,
    Reading,
}

impl LinkedQueue for LogReader {
    type Link = LogLink;
    const NAME: &'static str = "retained messages of MQTT";

    fn login(&self) -> &UpstreamLogin {
        &self.login
    }

    fn waker(&self) -> &AtomicWaker {
        &self.log.waker
    }

    fn link(self: &Arc<Self>, client: AmqpClient, _now: Instant) -> LogLink {
        LogLink::new(&self.log, &self.login, client)
    }

    fn handle_lost(&self) {
        self.log.copy_again();
    }

    fn expire(&self, now: Instant) {
        self.log.expire(now);
        if self.is_waiting {
            // The last usable login may be gone, in which case the log's status changes.
            self.log.choose_login(now);
        }
    }

    fn end_if_unused(&self, now: Instant) -> bool {
        let is_over = match self.is_waiting {
            true => self.log.has_login(now),
            false => !self.log.needs(&self.login),
        };
        self.log.end_if_unused(now) || is_over
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.log.next_deadline(self.is_waiting)
    }
}

impl LogLink {
    /// Starts to declare the log.
    pub(super) fn new(log: &Arc<RetainedLog>, login: &UpstreamLogin, client: AmqpClient) -> Self {
        log.ticket_of_reader();
        let dialogue = LogDialogue {
            log: Arc::clone(log),
            login: login.clone(),
            stage: LogStage::Exchange,
            is_declared: false,
            confirms: PublisherConfirms::default(),
            marker: 0,
            marker_at: transport::now(),
            reached: 0,
            reopens: false,
            expected: None,
            received: 0,
            acked: 0,
            end: None,
        };
        let mut link = Self { client, dialogue };
        link.client.send(PUBLISHING, channel::Open { reserved_1: "" });
        link.dialogue.request(&mut link.client);
        link
    }
}

impl Dialogue for LogDialogue {
    fn expire(&mut self, now: Instant) {
        self.log.expire(now);
    }

    fn handle(&mut self, event: ClientEvent<'_>, client: &mut AmqpClient) {
        let stage = self.stage;
        self.handle_event(event);
        if stage != self.stage {
            self.request(client);
        }
    }

    fn end(&mut self) -> &mut Option<LinkEnd> {
        &mut self.end
    }

    fn next_deadline(&self) -> Option<Instant> {
        let marker = (self.marker > self.reached).then(|| self.marker_at + MARKER_TIMEOUT);
        self.log.next_deadline(false).into_iter().chain(marker).min()
    }

    fn send(&mut self, client: &mut AmqpClient, now: Instant) {
        if self.stage != LogStage::Reading {
            return;
        }
        if self.received > self.acked {
            self.acked = self.received;
            client.send(READING, basic::Ack { delivery_tag: self.received, multiple: true });
        }
        // The marker of an earlier connection may be read first. The reader's own ticket makes it publish a later one.
        if (self.marker <= self.reached || self.marker_at + MARKER_TIMEOUT <= now)
            && let Some(number) = self.log.wanted_marker(self.reached)
        {
            (self.marker, self.marker_at) = (number, now);
            self.publish(client, &record::marker(self.log.process, number));
        }
        // Only what was read up to a marker is known to be current, and so may be copied.
        while self.reached > 0
            && client.has_capacity()
            && !work::is_turn_over()
            && self.confirms.last() - self.confirms.settled() < MAX_UNCONFIRMED
            && self.log.has_copies()
            && let Some(copy) = self.log.next_copy()
        {
            self.publish(client, &copy);
        }
    }
}

impl LogDialogue {
    fn handle_event(&mut self, event: ClientEvent<'_>) {
        work::charge(METHOD, 1);
        match event {
            ClientEvent::Message(_, message) => self.handle_entry(&message),
            ClientEvent::Method(PUBLISHING, method) => match method {
                Method::ExchangeDeclareOk(_) => self.stage = LogStage::Queue,
                Method::QueueDeclareOk(_) => {
                    self.is_declared = true;
                    self.stage = LogStage::Publishers;
                }
                Method::QueueBindOk(_) if self.stage == LogStage::Publishers => self.stage = LogStage::Own,
                Method::QueueBindOk(_) => self.stage = LogStage::Consumer,
                Method::BasicAck(ack) => {
                    self.confirms.settle(ack.delivery_tag, ack.multiple, Confirmed::Acked, |_, _| {});
                }
                // The stream has failed: another connection reads and writes it again.
                Method::BasicNack(_) => self.lose("the log has failed"),
                Method::ChannelClose(close) => self.handle_closed(announced(&close)),
                _ => {}
            },
            ClientEvent::Method(READING, method) => match method {
                Method::BasicConsumeOk(_) => {
                    self.stage = LogStage::Reading;
                    self.log.handle_bound(&self.login);
                }
                Method::ChannelClose(close) => self.handle_closed(announced(&close)),
                Method::BasicCancel(_) => {
                    self.log.handle_replaced();
                    self.lose("the log was deleted");
                }
                _ => {}
            },
            ClientEvent::Method(..) => {}
        }
    }

    fn lose(&mut self, why: &'static str) {
        self.end = Some(LinkEnd::Lost(Fault::new(ReplyCode::ConnectionForced, why)));
    }

    /// Handles the closing of a channel by the upstream. An existing log is used even if it was declared with other
    /// arguments.
    fn handle_closed(&mut self, fault: Fault) {
        let is_there = matches!(fault.code, ReplyCode::AccessRefused | ReplyCode::PreconditionFailed);
        self.stage = match self.stage {
            LogStage::Exchange if is_there => LogStage::Queue,
            LogStage::Queue if fault.code == ReplyCode::PreconditionFailed => LogStage::Publishers,
            LogStage::Reading if fault.code != ReplyCode::AccessRefused => {
                return self.end = Some(LinkEnd::Lost(fault));
            }
            // Without the exchange nothing is published, and so nothing retained.
            LogStage::Publishers if misses_exchange(&fault, self.log.publishers()) => {
                return self.end = Some(LinkEnd::Refused(fault));
            }
            _ if self.is_down(fault.code) => return self.end = Some(LinkEnd::Lost(fault)),
            _ => return self.end = Some(LinkEnd::Refused(fault)),
        };
        // The channel is closed, and the confirms with it.
        self.confirms = PublisherConfirms::default();
        self.reopens = true;
    }

    /// Whether a fault means that the stream exists but has not started: RabbitMQ accepts clients before it has started
    /// streams. 3.10 reports such a stream as not found, 4 as having no replica.
    fn is_down(&self, code: ReplyCode) -> bool {
        match self.stage {
            LogStage::Exchange | LogStage::Reading => false,
            LogStage::Consumer if code == ReplyCode::PreconditionFailed => true,
            // A declaration would create a stream that does not exist.
            LogStage::Queue => code == ReplyCode::NotFound,
            _ => self.is_declared && code == ReplyCode::NotFound,
        }
    }

    /// Handles a message of any kind, from anybody who may publish to one of the exchanges or to the queue.
    fn handle_entry(&mut self, received: &ReceivedMessage<'_>) {
        let ContentMethod::Deliver { delivery_tag, exchange, routing_key, .. } = &received.method else {
            return;
        };
        self.received = *delivery_tag;
        work::charge_bytes(BODY_BYTE, received.body.len());
        let (publishers, properties) = (self.log.publishers(), &received.properties);
        let Some(placed) = record::read(publishers, exchange, routing_key, properties, &received.body) else {
            let fault = Fault::new(ReplyCode::PreconditionFailed, "the log's queue is not a stream");
            return self.end = Some(LinkEnd::Refused(fault));
        };
        if let Some(expected) = self.expected.take()
            && expected > 0
            && placed.offset > expected
        {
            // The upstream has already dropped the entries that were to be read next.
            self.log.handle_replaced();
            return self.lose("the log has gone on without this reader");
        }
        match self.log.read(placed) {
            LogRead::Entry => {}
            LogRead::Marker(number) => {
                if self.reached == 0 {
                    let (vhost, topics) = (self.log.vhost(), self.log.topics());
                    tracing::info!(vhost, topics, "reading retained MQTT messages");
                }
                self.reached = number;
            }
            LogRead::Replaced => {
                self.log.handle_replaced();
                self.lose("the log was replaced");
            }
        }
    }

    /// Sends the request of the current stage.
    fn request(&mut self, client: &mut AmqpClient) {
        if std::mem::take(&mut self.reopens) {
            client.send(PUBLISHING, channel::Open { reserved_1: "" });
        }
        let (queue, durable) = (LOG, true);
        match self.stage {
            LogStage::Exchange => {
                let (exchange, kind) = (LOG, "fanout");
                let declare = exchange::Declare { exchange, kind, durable, ..Default::default() };
                client.send(PUBLISHING, declare);
            }
            LogStage::Queue => {
                let limits = self.log.limits();
                let arguments: FieldTable = [
                    ("x-queue-type", FieldValue::text("stream")),
                    ("x-max-length-bytes", FieldValue::I64(limits.maximum as i64)),
                    ("x-stream-max-segment-size-bytes", FieldValue::I64(limits.segment as i64)),
                ]
                .into_iter()
                .collect();
                let arguments = arguments.encode();
                let arguments = RawTable::check(&arguments).unwrap_or_default();
                client.send(PUBLISHING, queue::Declare { queue, durable, arguments, ..Default::default() });
            }
            LogStage::Publishers => {
                let (exchange, routing_key) = (self.log.publishers(), BINDING_KEY);
                client.send(PUBLISHING, queue::Bind { queue, exchange, routing_key, ..Default::default() });
            }
            LogStage::Own => {
                client.send(PUBLISHING, queue::Bind { queue, exchange: LOG, ..Default::default() });
            }
            LogStage::Consumer => self.consume(client),
            LogStage::Reading => {}
        }
    }

    fn consume(&mut self, client: &mut AmqpClient) {
        client.send(PUBLISHING, confirm::Select { no_wait: true });
        let next = self.log.next_offset();
        self.expected = Some(next);
        let offset = match i64::try_from(next) {
            Ok(next) if next > 0 => FieldValue::I64(next),
            _ => FieldValue::text("first"),
        };
        let arguments: FieldTable = [("x-stream-offset", offset)].into_iter().collect();
        let arguments = arguments.encode();
        let arguments = RawTable::check(&arguments).unwrap_or_default();
        client.send(READING, channel::Open { reserved_1: "" });
        client.send(READING, basic::Qos { prefetch_size: 0, prefetch_count: WINDOW, global: false });
        client
            .send(READING, basic::Consume { queue: LOG, consumer_tag: LOG, arguments, ..Default::default() });
    }

    fn publish(&mut self, client: &mut AmqpClient, message: &Encoded) {
        work::charge(METHOD, 1);
        work::charge_bytes(BODY_BYTE, message.body.len());
        self.confirms.published();
        let Encoded { routing_key, properties, body } = message;
        let publish = basic::Publish { exchange: LOG, routing_key, ..Default::default() };
        client.publish(PUBLISHING, publish, properties, body);
    }
}
