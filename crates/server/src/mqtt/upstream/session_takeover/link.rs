//! The dialogue with the upstream: declares the exchange and the queue, announces clients, and receives the announcements
//! of all processes.

use std::sync::Arc;
use std::time::Instant;

use amqp::method::{basic, channel, confirm, exchange, queue};
use amqp::properties::Properties;
use amqp::{Fault, FieldTable, FieldValue, Method, RawTable, ReplyCode};
use sync::work;

use super::EXCHANGE;
use super::announcement::Announcement;
use super::watch::Watch;
use crate::upstream::client::announced;
use crate::upstream::client::{AmqpClient, ClientEvent, ContentMethod, ReceivedMessage};
use crate::upstream::confirms::{Confirmed, PublisherConfirms};
use crate::upstream::multiplexing::dialogue::{Dialogue, DialogueLink};
use crate::upstream::multiplexing::link::LinkEnd;
use crate::upstream::multiplexing::task::LinkedQueue;

/// The queue's `x-max-length`. The upstream drops older announcements, so that they cost it little memory.
const MAX_QUEUED: i32 = 10_000;

/// Prefetch of the queue's consumer.
const WINDOW: u16 = 1000;

/// The channel that declares the exchange and publishes. The upstream refuses either by closing it.
const ANNOUNCING: u16 = 1;

/// The channel that consumes.
const CONSUMING: u16 = 2;

/// Nanoseconds charged for a method or message: for parsing it and for the lookup.
const METHOD: u32 = 500;

/// Picoseconds charged for a byte of a message.
const BODY_BYTE: u32 = 150;

/// An upstream connection of a takeover queue.
pub(crate) type TakeoverLink = DialogueLink<TakeoverDialogue>;

pub(crate) struct TakeoverDialogue {
    watch: Arc<Watch>,
    /// The queue's name. Each connection declares another one, since the last connection's queue may still exist.
    name: Box<str>,
    stage: LinkStage,
    confirms: PublisherConfirms,
    /// The last delivery tag received, and the last one acknowledged.
    received: u64,
    acked: u64,
    /// Set when the connection has to be closed.
    end: Option<LinkEnd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkStage {
    /// The exchange is being declared.
    Declaring,
    /// The exchange exists. The queue's declaration follows, on a new channel if the channel `reopens`.
    Declared { reopens: bool },
    /// The queue is being declared.
    Binding,
    /// Announcements are received and can be published.
    Bound,
}

impl TakeoverLink {
    /// Starts to declare the exchange.
    pub(super) fn new(watch: &Arc<Watch>, mut client: AmqpClient, _now: Instant) -> Self {
        client.send(ANNOUNCING, channel::Open { reserved_1: "" });
        let (exchange, kind) = (EXCHANGE, "fanout");
        client.send(ANNOUNCING, exchange::Declare { exchange, kind, durable: true, ..Default::default() });
        let dialogue = TakeoverDialogue {
            watch: Arc::clone(watch),
            name: broker::generated_name(watch.login().prefix).into(),
            stage: LinkStage::Declaring,
            confirms: PublisherConfirms::default(),
            received: 0,
            acked: 0,
            end: None,
        };
        Self { client, dialogue }
    }
}

impl Dialogue for TakeoverDialogue {
    fn expire(&mut self, now: Instant) {
        self.watch.expire(now);
    }

    fn end(&mut self) -> &mut Option<LinkEnd> {
        &mut self.end
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.watch.next_deadline()
    }

    fn handle(&mut self, event: ClientEvent<'_>, _: &mut AmqpClient) {
        work::charge(METHOD, 1);
        match event {
            ClientEvent::Message(_, message) => self.handle_message(&message),
            ClientEvent::Method(ANNOUNCING, method) => match method {
                Method::ExchangeDeclareOk(_) => self.stage = LinkStage::Declared { reopens: false },
                Method::BasicAck(ack) => self.confirmed(ack.delivery_tag, ack.multiple),
                // A queue was full or has failed, so its process does not receive the announcement.
                Method::BasicNack(nack) => self.confirmed(nack.delivery_tag, nack.multiple),
                Method::ChannelClose(close) => self.handle_refusal(&close),
                _ => {}
            },
            ClientEvent::Method(CONSUMING, method) => match method {
                Method::BasicConsumeOk(_) => {
                    self.stage = LinkStage::Bound;
                    self.watch.handle_bound();
                }
                Method::ChannelClose(close) => self.handle_failure(&close),
                Method::BasicCancel(_) => {
                    let fault = Fault::new(ReplyCode::ConnectionForced, "the queue was deleted");
                    self.end = Some(LinkEnd::Lost(fault));
                }
                _ => {}
            },
            ClientEvent::Method(..) => {}
        }
    }

    fn send(&mut self, client: &mut AmqpClient, _: Instant) {
        if let LinkStage::Declared { reopens } = self.stage {
            if reopens {
                client.send(ANNOUNCING, channel::Open { reserved_1: "" });
            }
            client.send(ANNOUNCING, confirm::Select { no_wait: true });
            self.bind(client);
            self.stage = LinkStage::Binding;
        }
        if self.received > self.acked {
            self.acked = self.received;
            client.send(CONSUMING, basic::Ack { delivery_tag: self.received, multiple: true });
        }
        while self.stage == LinkStage::Bound
            && client.has_capacity()
            && !work::is_turn_over()
            && let Some(member) = self.watch.next_unsent()
        {
            work::charge(METHOD, 1);
            self.confirms.published();
            let mut properties = Vec::new();
            let user = &*self.watch.login().credentials.username;
            Properties::default().with_user_id(user).encode(&mut properties);
            let publish = basic::Publish { exchange: EXCHANGE, ..Default::default() };
            let body = self.watch.announce(&member);
            client.publish(ANNOUNCING, publish, &properties, body.as_bytes());
        }
    }
}

impl TakeoverDialogue {
    fn confirmed(&mut self, number: u64, multiple: bool) {
        let watch = &self.watch;
        self.confirms.settle(number, multiple, Confirmed::Acked, |_, _| watch.handle_confirmed());
    }

    /// Handles a message of any kind, from anybody who may publish to the exchange or to the queue.
    fn handle_message(&mut self, received: &ReceivedMessage<'_>) {
        let ContentMethod::Deliver { delivery_tag, exchange, .. } = &received.method else { return };
        self.received = *delivery_tag;
        work::charge_bytes(BODY_BYTE, received.body.len());
        if **exchange != *EXCHANGE {
            return;
        }
        // The upstream has verified that it is the publisher's user name.
        let user = Properties::decode(&received.properties).ok().and_then(|properties| properties.user_id);
        if user == Some(&*self.watch.login().credentials.username)
            && let Some(announcement) = Announcement::parse(&received.body)
        {
            self.watch.handle_announcement(&announcement);
        }
    }

    /// Handles the closing of the channel for announcements.
    fn handle_refusal(&mut self, close: &channel::Close<'_>) {
        let fault = announced(close);
        match (self.stage, fault.code) {
            // The exchange may exist although the user may not declare it.
            (LinkStage::Declaring, ReplyCode::AccessRefused) => {
                self.stage = LinkStage::Declared { reopens: true };
            }
            // The exchange was deleted.
            (LinkStage::Bound, ReplyCode::NotFound) => self.end = Some(LinkEnd::Lost(fault)),
            _ => self.end = Some(LinkEnd::Refused(fault)),
        }
    }

    /// Handles the closing of the consuming channel.
    fn handle_failure(&mut self, close: &channel::Close<'_>) {
        let fault = announced(close);
        let is_lost = self.stage == LinkStage::Bound;
        self.end = Some(if is_lost { LinkEnd::Lost(fault) } else { LinkEnd::Refused(fault) });
    }

    fn bind(&self, client: &mut AmqpClient) {
        let (queue, exchange) = (&*self.name, EXCHANGE);
        let arguments: FieldTable = [("x-max-length", FieldValue::I32(MAX_QUEUED))].into_iter().collect();
        let arguments = arguments.encode();
        let arguments = RawTable::check(&arguments).unwrap_or_default();
        client.send(CONSUMING, channel::Open { reserved_1: "" });
        client.send(CONSUMING, queue::Declare { queue, exclusive: true, arguments, ..Default::default() });
        client.send(CONSUMING, queue::Bind { queue, exchange, ..Default::default() });
        client.send(CONSUMING, basic::Qos { prefetch_size: 0, prefetch_count: WINDOW, global: false });
        client.send(CONSUMING, basic::Consume { queue, consumer_tag: queue, ..Default::default() });
    }
}
