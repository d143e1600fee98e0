//! The dialogue with the upstream: declares the queue, binds keys, and receives messages.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use amqp::method::{basic, channel, queue};
use amqp::{Fault, Method, ReplyCode};
use bytes::Bytes;
use sync::work;

use super::fan_out::FanOut;
use super::inbox::MultiplexedMessage;
use super::queue::MultiplexedQueue;
use super::requests::{KeyRequest, Unasked};
use super::task::{LinkedQueue, UpstreamLink};
use crate::upstream::client::{
    AmqpClient, ClientEvent, ContentMethod, ReceivedMessage, announced, misses_exchange,
};

/// Prefetch of the queue's consumer. Messages are acknowledged once they are in the inboxes, so at a round trip of 20 ms
/// the upstream can still send 50,000 a second.
const WINDOW: u16 = 1000;

/// The channel that consumes. No request of a subscriber can make the upstream close it.
const CONSUMING: u16 = 1;

/// The channel that binds and unbinds keys. The upstream refuses a key by closing it.
const BINDING: u16 = 2;

/// Nanoseconds charged for an answer from the upstream.
const METHOD: u32 = 200;

/// An upstream connection that is declaring the queue, or delivers from it.
pub(crate) struct MultiplexedLink {
    client: AmqpClient,
    conversation: Conversation,
}

struct Conversation {
    queue: Arc<MultiplexedQueue>,
    /// The queue's name. Each connection declares another one, since the last connection's queue may still exist.
    name: Arc<str>,
    /// Whether the upstream delivers from the queue, so that keys can be bound.
    is_consuming: bool,
    /// Whether a key has been bound.
    has_bound: bool,
    /// Whether the channel for bindings has to be opened again.
    reopens: bool,
    /// The message that is being fanned out.
    current: Option<FanOut>,
    /// The last delivery tag received, and the last one acknowledged.
    received: u64,
    acked: u64,
    now: Instant,
    /// Set when the connection has to be closed.
    end: Option<LinkEnd>,
}

/// The end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkStep {
    /// The link waits for its waker or its deadline.
    Idle,
    /// There is more to do than fits into a turn.
    TurnOver,
}

/// The reason why a connection has to be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// Another connection may work.
    Lost(Fault),
    /// The upstream refuses the queue, and would refuse it on another connection as well.
    Refused(Fault),
}

impl MultiplexedLink {
    /// Starts to declare a queue and to consume from it.
    pub(super) fn new(shared: &Arc<MultiplexedQueue>, client: AmqpClient, now: Instant) -> Self {
        let name: Arc<str> = broker::generated_name(shared.login().prefix).into();
        let conversation = Conversation {
            queue: Arc::clone(shared),
            name: Arc::clone(&name),
            is_consuming: false,
            has_bound: false,
            reopens: false,
            current: None,
            received: 0,
            acked: 0,
            now,
            end: None,
        };
        let mut link = Self { client, conversation };
        let client = &mut link.client;
        client.send(CONSUMING, channel::Open { reserved_1: "" });
        client.send(CONSUMING, queue::Declare { queue: &name, exclusive: true, ..Default::default() });
        client.send(CONSUMING, basic::Qos { prefetch_size: 0, prefetch_count: WINDOW, global: false });
        client.send(CONSUMING, basic::Consume { queue: &name, consumer_tag: &name, ..Default::default() });
        client.send(BINDING, channel::Open { reserved_1: "" });
        link
    }
}

impl UpstreamLink for MultiplexedLink {
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<LinkStep, LinkEnd> {
        let Self { client, conversation } = self;
        conversation.now = now;
        conversation.queue.expire(now);
        client.handle_nudge(waker, now).map_err(LinkEnd::Lost)?;
        loop {
            // An earlier turn may not have completed a message's fan-out.
            let is_done = conversation.hand_out();
            let handled = if is_done { conversation.receive(client).map_err(LinkEnd::Lost)? } else { 0 };
            if let Some(end) = conversation.end.take() {
                return Err(end);
            }
            conversation.answer(client).map_err(LinkEnd::Lost)?;
            if work::is_turn_over() {
                return Ok(LinkStep::TurnOver);
            }
            if is_done && handled == 0 {
                return Ok(LinkStep::Idle);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.client.next_deadline().into_iter().chain(self.conversation.queue.next_deadline()).min()
    }

    fn close(&mut self, waker: &Waker, now: Instant) -> bool {
        self.client.close_unread(waker, now)
    }
}

impl Drop for MultiplexedLink {
    fn drop(&mut self) {
        self.client.end(transport::now());
    }
}

impl Conversation {
    /// Handles received events as long as the turn lasts. Returns their number.
    fn receive(&mut self, client: &mut AmqpClient) -> Result<usize, Fault> {
        let mut received = client.take_received();
        let mut handled = 0;
        while self.end.is_none()
            && !work::is_turn_over()
            && let Some(event) = received.next(client)?
        {
            handled += 1;
            self.handle(event);
            if !self.hand_out() {
                break;
            }
        }
        client.put_back(received);
        Ok(handled)
    }

    fn handle(&mut self, event: ClientEvent<'_>) {
        match event {
            ClientEvent::Message(CONSUMING, message) => return self.handle_message(message),
            ClientEvent::Method(CONSUMING, method) => match method {
                Method::BasicConsumeOk(_) => {
                    self.is_consuming = true;
                    self.queue.handle_declared(&self.name);
                }
                Method::ChannelClose(close) => self.handle_failure(&close),
                Method::BasicCancel(_) => self.is_lost("the queue was deleted"),
                _ => {}
            },
            ClientEvent::Method(BINDING, method) => {
                let handled = match method {
                    Method::QueueBindOk(_) => {
                        self.has_bound = true;
                        self.queue.handle_bound(self.now)
                    }
                    Method::QueueUnbindOk(_) => self.queue.handle_unbound(),
                    Method::ChannelClose(close) => self.handle_refusal(&close),
                    _ => Ok(()),
                };
                if handled == Err(Unasked) {
                    self.is_lost("unexpected answer");
                }
            }
            // An upstream that is blocked matters to publishers only.
            ClientEvent::Method(..) | ClientEvent::Message(..) => {}
        }
        work::charge(METHOD, 1);
    }

    fn handle_message(&mut self, received: ReceivedMessage<'_>) {
        let ContentMethod::Deliver { delivery_tag, redelivered, exchange, routing_key, .. } = received.method
        else {
            return;
        };
        self.received = delivery_tag;
        let ReceivedMessage { properties, body, .. } = received;
        let Some(matched) = self.queue.matching(&exchange, &routing_key, &properties) else { return };
        let (properties, body) = (Bytes::from(properties.into_owned()), Bytes::from(body.into_owned()));
        let message = MultiplexedMessage::new(exchange, routing_key, (properties, body), redelivered);
        self.current = Some(FanOut::new(message, matched));
    }

    /// Handles the closing of the consuming channel.
    fn handle_failure(&mut self, close: &channel::Close<'_>) {
        let fault = announced(close);
        let refused = !self.is_consuming && fault.code != ReplyCode::NotFound;
        self.end = Some(if refused { LinkEnd::Refused(fault) } else { LinkEnd::Lost(fault) });
    }

    /// Handles the closing of the binding channel: the first unanswered request is refused.
    fn handle_refusal(&mut self, close: &channel::Close<'_>) -> Result<(), Unasked> {
        let fault = announced(close);
        // Either the queue was deleted, and the consuming channel is notified as well; or the exchange was deleted, and
        // all keys have to be bound again. If the exchange never existed, each key is refused.
        let has_no_exchange = misses_exchange(&fault, self.queue.exchange());
        if fault.code == ReplyCode::NotFound && (!has_no_exchange || self.has_bound) {
            self.end = Some(LinkEnd::Lost(fault));
            return Ok(());
        }
        let key = self.queue.handle_refused(&fault)?;
        self.reopens = true;
        tracing::debug!(queue = &*self.name, key = &*key, %fault, "binding of a shared subscription refused");
        Ok(())
    }

    fn is_lost(&mut self, why: &'static str) {
        self.end = Some(LinkEnd::Lost(Fault::new(ReplyCode::ConnectionForced, why)));
    }

    fn hand_out(&mut self) -> bool {
        self.queue.hand_out(&mut self.current)
    }

    /// Acknowledges messages that were fanned out, and sends requests.
    fn answer(&mut self, client: &mut AmqpClient) -> Result<(), Fault> {
        let handed_out = self.received - u64::from(self.current.is_some());
        if handed_out > self.acked {
            self.acked = handed_out;
            client.send(CONSUMING, basic::Ack { delivery_tag: handed_out, multiple: true });
        }
        if std::mem::take(&mut self.reopens) {
            client.send(BINDING, channel::Open { reserved_1: "" });
        }
        client.flush(self.now)?;
        while self.is_consuming && client.has_capacity() && !work::is_turn_over() {
            let sent = self.queue.take_requests(|request| {
                work::charge(METHOD, 1);
                send(client, &self.name, self.queue.exchange(), &request);
            });
            if !sent {
                break;
            }
            client.flush(self.now)?;
        }
        Ok(())
    }
}

fn send(client: &mut AmqpClient, queue: &str, exchange: &str, request: &KeyRequest) {
    match request {
        KeyRequest::Bind(key) => {
            client.send(BINDING, queue::Bind { queue, exchange, routing_key: key, ..Default::default() });
        }
        KeyRequest::Unbind(key) => {
            client.send(BINDING, queue::Unbind { queue, exchange, routing_key: key, ..Default::default() });
        }
    }
}
