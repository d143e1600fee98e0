//! An open connection's state in front of an upstream.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use amqp::method::{basic, channel};
use amqp::{Method, Properties};
use broker::{Compatibility, FrontEnd};
use hashbrown::{HashMap, HashSet};
use stomp::destination::PublishedTo;
use stomp::server::{EventKind, MessageForm, Request, TransactionId};
use stomp::{END_OF_FRAME, StompFault, StompVersion};
use sync::work;
use transport::Outbox;

use super::awaited::{Awaited, AwaitedAnswers};
use super::deferred::DeferredRequest;
use super::live::LiveSubscriptions;
use super::receipts::{Until, UpstreamReceipts};
use super::transactions::UpstreamTransaction;
use super::unsettled::UnsettledDeliveries;
use crate::registry::OpenConnection;
use crate::server::Shared;
use crate::stomp::properties::write_headers;
use crate::stomp::session::{CancelledSubscription, Receipt, StompSession, of_fault};
use crate::upstream::OpenedUpstream;
use crate::upstream::client::{AmqpClient, ClientEvent, ContentMethod, ReceivedMessage, announced};
use crate::upstream::confirms::{Confirmed, PublisherConfirms};

/// The connection's only channel.
pub(super) const CHANNEL: u16 = 1;

/// Unanswered methods at which the client is no longer read.
const MAX_AWAITED: usize = 1024;

/// Cost of a MESSAGE frame in nanoseconds: for decoding and encoding its headers.
pub(super) const MESSAGE: u32 = 700;

/// A connection's session in front of an upstream.
pub(in crate::stomp) struct UpstreamStompSession {
    pub(super) shared: Arc<Shared>,
    pub(super) client: AmqpClient,
    /// Wakes the connection's task when the upstream has sent something.
    waker: Waker,
    pub(super) outbox: Arc<Outbox>,
    /// The connection's entry in the registry; `None` until it is open.
    view: Option<Arc<OpenConnection>>,
    pub(super) name: Arc<str>,
    /// The subscriptions that use the shared queue.
    pub(super) live: LiveSubscriptions,
    pub(super) version: StompVersion,
    pub(super) compatibility: Compatibility,
    /// The unanswered methods.
    pub(super) awaited: AwaitedAnswers,
    /// Whether the channel is in confirm mode.
    pub(super) confirming: bool,
    pub(super) confirms: PublisherConfirms,
    pub(super) receipts: UpstreamReceipts,
    /// By subscription number.
    pub(super) subscriptions: HashMap<u64, UpstreamSubscription>,
    /// The subscriptions' numbers, by consumer tag.
    pub(super) numbers: HashMap<Box<str>, u64>,
    /// Consumer tags that the channel has used.
    pub(super) used_tags: HashSet<Box<str>>,
    pub(super) unsettled: UnsettledDeliveries,
    /// The prefetch for further consumers; `None` until one was set.
    pub(super) prefetch: Option<u16>,
    pub(super) transactions: HashMap<TransactionId, UpstreamTransaction>,
    /// Bytes of messages in `transactions`.
    pub(super) transaction_bytes: usize,
    /// Queues that this connection has declared.
    pub(super) declared: HashSet<Box<str>>,
    /// The reply queues, by `/temp-queue` name.
    pub(super) replies: HashMap<Box<str>, Box<str>>,
    /// Number of reply queues declared.
    pub(super) next_reply: u64,
    /// A request in progress. No other request is taken meanwhile.
    pub(super) deferred: Option<DeferredRequest>,
    /// The subscription whose receipt has to be sent before its messages: nothing is received until it is started.
    /// Subscriptions to the shared queue wait separately.
    starting: Option<u64>,
    leaving: Leaving,
    ended: bool,
}

/// A subscription and its consumer.
pub(super) struct UpstreamSubscription {
    pub(super) form: MessageForm,
    /// The consumer tag, once the consumer was requested.
    pub(super) consumer: Option<Box<str>>,
    pub(super) queue: Box<str>,
    /// Whether the client acknowledges.
    pub(super) is_acked: bool,
    /// The prefetch; 0 means no limit.
    pub(super) prefetch: u16,
    /// The consumer's arguments: the offset in a stream, and the priority.
    pub(super) arguments: amqp::FieldTable,
    /// Whether its receipt has to be sent before its messages.
    pub(super) has_receipt: bool,
    /// The binding key, if it has no consumer but uses the shared queue.
    pub(super) live: Option<Box<str>>,
    /// Whether it is for the reply queue of a `/temp-queue`, to which the client has not subscribed.
    pub(super) is_reply: bool,
}

/// The progress of a DISCONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// DISCONNECT was received; the channel is closed once all earlier requests are done.
    Asked,
    /// The channel is being closed.
    Closing,
    Closed,
}

impl UpstreamStompSession {
    /// The session of a client that is logged in upstream.
    pub(in crate::stomp) fn new(
        shared: &Arc<Shared>,
        outbox: &Arc<Outbox>,
        OpenedUpstream { mut client, credentials }: OpenedUpstream,
        vhost: &str,
        version: StompVersion,
    ) -> Self {
        client.send(CHANNEL, channel::Open { reserved_1: "" });
        let mut awaited = AwaitedAnswers::default();
        awaited.push(Awaited::Answer);
        shared.metrics.channels_opened.add(1);
        // The channel is opened in the next turn.
        outbox.nudge();
        Self {
            compatibility: shared.backend.compatibility(),
            shared: Arc::clone(shared),
            client,
            waker: outbox.nudging_waker(),
            outbox: Arc::clone(outbox),
            view: None,
            name: broker::generated_name("session-").into(),
            live: LiveSubscriptions::new(shared, outbox, credentials, vhost),
            version,
            awaited,
            confirming: false,
            confirms: PublisherConfirms::default(),
            receipts: UpstreamReceipts::default(),
            subscriptions: HashMap::new(),
            numbers: HashMap::new(),
            used_tags: HashSet::new(),
            unsettled: UnsettledDeliveries::default(),
            prefetch: None,
            transactions: HashMap::new(),
            transaction_bytes: 0,
            declared: HashSet::new(),
            replies: HashMap::new(),
            next_reply: 0,
            deferred: None,
            starting: None,
            leaving: Leaving::No,
            ended: false,
        }
    }

    /// Sends a method that has an answer.
    pub(super) fn request<'m>(&mut self, method: impl Into<Method<'m>>, awaited: Awaited) {
        self.client.send(CHANNEL, method);
        self.awaited.push(awaited);
    }

    /// The condition that all methods so far are answered.
    pub(super) fn all_answered(&self) -> Until {
        Until::Answered(self.awaited.last())
    }

    /// Runs the upstream client, and handles its events. Returns the cancelled subscriptions.
    fn poll_upstream(&mut self, now: Instant) -> Result<Vec<CancelledSubscription>, StompFault> {
        let mut cancelled = Vec::new();
        self.client.handle_nudge(&self.waker, now).map_err(of_fault)?;
        let received = self.receive(&mut cancelled).and_then(|()| self.receive_live());
        // In any case, messages that were sent to the client must not be delivered again.
        self.acknowledge_done();
        received?;
        self.continue_deferred();
        self.consume_next();
        self.client.flush(now).map_err(of_fault)?;
        if self.leaving == Leaving::Closing && self.client.is_closed() {
            self.leaving = Leaving::Closed;
        }
        if self.may_go_on() || (self.client.has_received() && self.takes_messages()) {
            // The turn is over, or an answer has arrived within it.
            self.outbox.nudge();
        }
        Ok(cancelled)
    }

    /// Whether messages for the client can be taken.
    fn takes_messages(&self) -> bool {
        self.starting.is_none() && self.outbox.has_capacity()
    }

    fn receive(&mut self, cancelled: &mut Vec<CancelledSubscription>) -> Result<(), StompFault> {
        if !self.takes_messages() {
            return Ok(());
        }
        let mut received = self.client.take_received();
        let mut outcome = Ok(());
        while outcome.is_ok() && self.takes_messages() && !work::is_turn_over() {
            outcome = match received.next(&mut self.client) {
                Ok(Some(event)) => self.handle_event(event, cancelled),
                Ok(None) => break,
                Err(fault) => Err(of_fault(fault)),
            };
        }
        self.client.put_back(received);
        outcome
    }

    fn handle_event(
        &mut self,
        event: ClientEvent<'_>,
        cancelled: &mut Vec<CancelledSubscription>,
    ) -> Result<(), StompFault> {
        match event {
            ClientEvent::Message(_, message) => self.message(&message),
            ClientEvent::Method(_, Method::BasicAck(ack)) => {
                self.confirmed(ack.delivery_tag, ack.multiple, Confirmed::Acked);
            }
            ClientEvent::Method(_, Method::BasicNack(nack)) => {
                self.confirmed(nack.delivery_tag, nack.multiple, Confirmed::Nacked);
            }
            ClientEvent::Method(_, Method::BasicCancel(cancel)) => {
                cancelled.extend(self.cancelled(cancel.consumer_tag));
            }
            ClientEvent::Method(_, Method::ChannelClose(close)) => {
                return Err(of_fault(announced(&close)));
            }
            ClientEvent::Method(_, Method::ChannelFlow(flow)) => {
                self.client.send(CHANNEL, channel::FlowOk { active: flow.active });
            }
            ClientEvent::Method(_, answer) => return self.answer(&answer),
        }
        Ok(())
    }

    /// Handles the answer to a method.
    fn answer(&mut self, answer: &Method<'_>) -> Result<(), StompFault> {
        match (self.awaited.answer(answer), answer) {
            (Some(Awaited::Consumer(number, _)), _) => {
                let has_receipt = |own: &UpstreamSubscription| own.has_receipt;
                if self.subscriptions.get(&number).is_some_and(has_receipt) {
                    self.starting = Some(number);
                }
            }
            (Some(Awaited::ReplyQueue(name)), Method::QueueDeclareOk(ok)) => {
                return self.reply_queue_declared(name, ok.queue);
            }
            _ => {}
        }
        Ok(())
    }

    fn confirmed(&mut self, number: u64, multiple: bool, verdict: Confirmed) {
        let Self { confirms, receipts, deferred, .. } = self;
        confirms.settle(number, multiple, verdict, |number, verdict| {
            if verdict == Confirmed::Nacked {
                receipts.refuse(number);
                deferred.iter_mut().for_each(|deferred| deferred.refuse(number));
            }
        });
    }

    /// Handles the upstream's cancellation of a consumer. Returns the subscription, if it is one of the client's.
    fn cancelled(&mut self, tag: &str) -> Option<CancelledSubscription> {
        let number = self.numbers.remove(tag)?;
        let own = self.subscriptions.remove(&number)?;
        self.declared.remove(&own.queue);
        if own.is_reply {
            // The next request declares another reply queue.
            self.replies.retain(|_, queue| *queue != own.queue);
            return None;
        }
        // The client may still acknowledge them, but they return to the queue, if that exists.
        let unsettled = self.unsettled.take_all(number);
        self.requeue(&unsettled);
        let next_delivery_tag = unsettled.last().map_or(0, |last| last + 1);
        Some(CancelledSubscription { tag: own.form.tag().into(), number, next_delivery_tag })
    }

    /// Writes a message to the client.
    fn message(&mut self, message: &ReceivedMessage<'_>) {
        let ContentMethod::Deliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key } =
            &message.method
        else {
            return;
        };
        if matches!(self.leaving, Leaving::Closing | Leaving::Closed) {
            // It could not be acknowledged any more.
            return;
        }
        work::charge(MESSAGE, 1);
        let found = self
            .numbers
            .get(consumer_tag)
            .and_then(|number| Some((*number, self.subscriptions.get(number)?)));
        let Some((number, own)) = found else {
            // The subscription has ended meanwhile.
            self.client
                .send(CHANNEL, basic::Nack { delivery_tag: *delivery_tag, multiple: false, requeue: true });
            return;
        };
        let published = PublishedTo { exchange, routing_key };
        let head = (published, *delivery_tag, *redelivered);
        write_message(&self.outbox, &own.form, head, &message.properties, &message.body);
        self.count_delivered();
        if own.is_acked {
            self.unsettled.add(*delivery_tag, number);
        } else {
            self.unsettled.add_done(*delivery_tag);
        }
    }

    /// Counts a message that was sent to the client.
    pub(super) fn count_delivered(&self) {
        let session = self.view.as_ref().and_then(|view| view.session());
        session.inspect(|session| session.count_delivered());
    }

    /// Requests the consumer of the first waiting receipt, if that is a subscription's.
    fn consume_next(&mut self) {
        if let Some(&mut Until::Consumes(number)) = self.receipts.first() {
            let until = self.begin(number);
            if let Some(first) = self.receipts.first() {
                *first = until;
            }
        }
    }
}

/// Writes a MESSAGE of a subscription with this form. `properties` are the encoded flags and list.
pub(super) fn write_message(
    outbox: &Outbox,
    form: &MessageForm,
    (published, delivery_tag, redelivered): (PublishedTo<'_>, u64, bool),
    properties: &[u8],
    body: &[u8],
) {
    let properties = Properties::decode(properties).unwrap_or_default();
    outbox.append(|buf| {
        let mut frame = form.begin(buf.tail(), published, delivery_tag, redelivered);
        write_headers(&mut frame, &properties);
        frame.end_head(body.len());
        buf.tail().extend_from_slice(body);
        buf.tail().extend_from_slice(END_OF_FRAME);
    });
}

impl StompSession for UpstreamStompSession {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn version(&self) -> StompVersion {
        self.version
    }

    fn user(&self) -> &str {
        self.live.user()
    }

    fn vhost(&self) -> &str {
        self.live.vhost()
    }

    fn opened(&mut self, view: &Arc<OpenConnection>) {
        self.view = Some(Arc::clone(view));
    }

    fn handle(&mut self, request: &Request<'_>, _: Instant) -> Result<(), StompFault> {
        let receipt = request.receipt();
        let until = match &request.kind {
            EventKind::Send { destination, body, transaction } => {
                return self.send(destination, &request.headers, body, *transaction);
            }
            EventKind::Subscribe(subscribe) => self.subscribe(subscribe, &request.headers)?,
            EventKind::Unsubscribe { number, destination } => {
                self.unsubscribe(*number, destination, &request.headers)?
            }
            EventKind::Settle(settle) => self.settle(*settle)?,
            EventKind::SettleCancelled => self.all_answered(),
            EventKind::Begin(transaction) => {
                self.transactions.insert(*transaction, UpstreamTransaction::default());
                self.all_answered()
            }
            EventKind::Commit(transaction) => {
                self.commit(*transaction, receipt);
                return Ok(());
            }
            EventKind::Abort(transaction) => {
                self.abort(*transaction);
                self.all_answered()
            }
            EventKind::Disconnect => {
                self.leaving = Leaving::Asked;
                // The channel is closed in the next turn.
                self.outbox.nudge();
                Until::Closed
            }
        };
        if let Some(id) = receipt {
            let starts = match &request.kind {
                EventKind::Subscribe(subscribe) => Some(subscribe.number),
                _ => None,
            };
            let receipt = Receipt { id: id.into(), is_refused: false, is_confirm: false, starts };
            self.receipts.push(receipt, until);
        }
        self.consume_next();
        Ok(())
    }

    fn next_receipt(&mut self) -> Option<Receipt> {
        let is_due = match self.receipts.first()? {
            Until::Answered(number) => self.awaited.has_answered(*number),
            Until::Confirmed(own) => *own.end() <= self.confirms.settled(),
            Until::Consumes(_) => false,
            Until::Subscribed(number) => !self.live.is_pending(*number),
            Until::Closed => self.leaving == Leaving::Closed,
        };
        if !is_due {
            return None;
        }
        let receipt = self.receipts.take()?;
        if receipt.is_confirm {
            self.shared.metrics.confirms(FrontEnd::Stomp).given.add(1);
        }
        // The next receipt may be a subscription's, whose consumer is requested now.
        self.outbox.nudge();
        Some(receipt)
    }

    fn start(&mut self, number: u64) {
        if self.starting == Some(number) {
            self.starting = None;
        }
        self.live.start(number);
        self.outbox.nudge();
    }

    fn flush(&mut self, now: Instant) {
        if self.client.flush(now).is_err() {
            // An error is reported at the next nudge.
            self.outbox.nudge();
        }
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<Vec<CancelledSubscription>, StompFault> {
        let cancelled = self.poll_upstream(now)?;
        let is_last = matches!(self.receipts.first(), None | Some(Until::Closed));
        if self.leaving == Leaving::Asked && is_last && self.deferred.is_none() {
            self.leaving = if self.client.close(now) { Leaving::Closed } else { Leaving::Closing };
        }
        Ok(cancelled)
    }

    fn handle_capacity(&mut self, _: Instant) {
        self.outbox.nudge();
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.client.next_deadline()
    }

    fn handle_deadline(&mut self, _: Instant) -> Result<(), StompFault> {
        if self.client.next_deadline().is_some() {
            self.outbox.nudge();
        }
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        // While a basic.consume is unanswered, nothing may cancel the consumer or have the pool move it to another
        // connection. The answer could be lost then; in RabbitMQ 3.10, a consumer cancelled before its answer breaks the
        // channel.
        self.deferred.is_none()
            && !self.awaited.has_consumers()
            && self.awaited.len() < MAX_AWAITED
            && self.receipts.has_capacity()
            && self.live.has_capacity()
            && self.client.has_capacity()
    }

    fn is_settled(&self) -> bool {
        self.receipts.is_empty()
            && self.deferred.is_none()
            && matches!(self.leaving, Leaving::No | Leaving::Closed)
    }

    fn upstreams(&self) -> Vec<String> {
        self.client.upstreams()
    }

    fn end(&mut self, now: Instant) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.live.end();
        self.client.end(now);
        self.shared.metrics.channels_closed.add(1);
    }
}
