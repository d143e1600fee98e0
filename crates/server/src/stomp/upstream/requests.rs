//! SEND, SUBSCRIBE, UNSUBSCRIBE, ACK and NACK as AMQP methods.

use amqp::method::{basic, confirm, queue};
use amqp::{FieldTable, FieldValue, RawTable};
use broker::{Body, FrontEnd, Publish};
use stomp::destination::Destination;
use stomp::server::{AckMode, MessageForm, Settle, SubscriptionRequest, TransactionId};
use stomp::{FrameBody, Headers, StompFault};

use super::awaited::Awaited;
use super::deferred::DeferredRequest;
use super::receipts::Until;
use super::session::{CHANNEL, UpstreamStompSession, UpstreamSubscription};
use super::unsettled::SettledRun;
use crate::stomp::declaring::{Declaration, MAX_DECLARED, is_durable, subscription_queue};
use crate::stomp::destinations::{
    check_replies, check_tag, consumer_priority, not_for, parse, refuse_selector,
};
use crate::stomp::properties::check_short;
use crate::stomp::sending::{SendRequest, message_body};
use crate::stomp::session::{Receipt, unknown_delivery};
use crate::stomp::transaction::TransactionMessage;

/// Prefetch of a subscription without acknowledgements: enough for 4,000 messages a second at a round trip of 50 ms, and
/// few enough for the consumer to share its upstream connection.
const WINDOW: u16 = 200;

/// The maximum of used consumer tags that a connection remembers; above it, all are forgotten.
const MAX_USED_TAGS: usize = 1024;

/// Numbers of subscriptions to `/temp-queue` queues, counted down from here; a client's own subscriptions count up from
/// 1.
const REPLY_NUMBERS: u64 = u64::MAX;

impl UpstreamStompSession {
    /// Publishes a message, or keeps it until its transaction is committed.
    pub(super) fn send(
        &mut self,
        destination: &str,
        headers: &Headers<'_>,
        body: &FrameBody<'_>,
        transaction: Option<TransactionId>,
    ) -> Result<(), StompFault> {
        let request = SendRequest::parse(destination, headers)?;
        if let Destination::Queue(name) = &request.destination {
            self.ensure_queue(name, headers, true)?;
        }
        let reply_to = request.reply_name.as_deref().and_then(|name| self.replies.get(name));
        let properties = request.properties(reply_to.map(|queue| &**queue), &self.shared.config)?;
        let (exchange, routing_key) = request.destination.route();
        let message = Publish { exchange, routing_key, properties: &properties, body: message_body(body) };
        let receipt = headers.get("receipt");
        match request.reply_name.as_deref().filter(|_| reply_to.is_none()) {
            Some(name) => {
                self.declare_reply_queue(name, TransactionMessage::new(&message, receipt), transaction)
            }
            None => match transaction {
                Some(transaction) => self.hold(transaction, TransactionMessage::new(&message, receipt)),
                None => {
                    self.publish(message, receipt);
                    Ok(())
                }
            },
        }
    }

    /// Publishes a message. The first message with a receipt switches the channel to confirm mode.
    pub(super) fn publish(&mut self, message: Publish<'_>, receipt: Option<&str>) {
        if receipt.is_some() {
            self.select_confirms();
        }
        let Publish { exchange, routing_key, properties, body } = message;
        let joined;
        let body = match body {
            Body::Copied(bytes) => bytes,
            Body::Chunks([chunk]) => chunk,
            Body::Chunks(chunks) => {
                joined = chunks.concat();
                &joined
            }
        };
        let publish = basic::Publish { exchange, routing_key, ..basic::Publish::default() };
        self.client.publish(CHANNEL, publish, properties, body);
        let number = self.confirming.then(|| self.confirms.published());
        if let (Some(id), Some(number)) = (receipt, number) {
            self.shared.metrics.confirms(FrontEnd::Stomp).wanted.add(1);
            let receipt = Receipt { id: id.into(), is_refused: false, is_confirm: true, starts: None };
            self.receipts.push(receipt, Until::Confirmed(number..=number));
        }
    }

    pub(super) fn select_confirms(&mut self) {
        if !std::mem::replace(&mut self.confirming, true) {
            self.request(confirm::Select { no_wait: false }, Awaited::Answer);
        }
    }

    /// Declares the queue of `/queue/NAME`, unless this connection has declared it already.
    fn ensure_queue(&mut self, name: &str, headers: &Headers<'_>, is_send: bool) -> Result<(), StompFault> {
        if self.declared.contains(name) {
            return Ok(());
        }
        self.declare(name, &Declaration::of_queue(headers, is_send)?, Awaited::Answer);
        if self.declared.len() >= MAX_DECLARED {
            self.declared.clear();
        }
        self.declared.insert(name.into());
        Ok(())
    }

    fn declare(&mut self, name: &str, how: &Declaration, awaited: Awaited) {
        let arguments = how.arguments.encode();
        let declare = queue::Declare {
            queue: name,
            durable: how.durable,
            exclusive: how.exclusive,
            auto_delete: how.auto_delete,
            arguments: RawTable::check(&arguments).unwrap_or_default(),
            ..queue::Declare::default()
        };
        self.request(declare, awaited);
    }

    /// Declares the reply queue of `/temp-queue/NAME`. The message is sent once the queue's name is known.
    fn declare_reply_queue(
        &mut self,
        name: &str,
        message: TransactionMessage,
        transaction: Option<TransactionId>,
    ) -> Result<(), StompFault> {
        check_replies(self.replies.len())?;
        check_short("the name of a temporary queue", self.reply_form(name).tag())?;
        self.declare("", &Declaration::of_replies(), Awaited::ReplyQueue(name.into()));
        self.deferred = Some(DeferredRequest::Send { message, transaction });
        Ok(())
    }

    fn reply_form(&self, name: &str) -> MessageForm {
        MessageForm::of_replies(self.version, self.name.clone(), name)
    }

    /// Called when a reply queue has been declared: consumes from it, and sends the message that waits for it.
    pub(super) fn reply_queue_declared(&mut self, name: Box<str>, queue: &str) -> Result<(), StompFault> {
        let number = REPLY_NUMBERS - self.next_reply;
        self.next_reply += 1;
        let form = self.reply_form(&name);
        self.subscriptions.insert(
            number,
            UpstreamSubscription { is_reply: true, ..UpstreamSubscription::new(form, queue) },
        );
        self.consume(number);
        self.replies.insert(name, queue.into());
        let Some(DeferredRequest::Send { mut message, transaction }) = self.deferred.take() else {
            return Ok(());
        };
        message.set_reply_to(queue);
        match transaction {
            Some(transaction) => self.hold(transaction, message),
            None => {
                self.publish(message.message(), message.receipt.as_deref());
                Ok(())
            }
        }
    }

    /// Adds a subscription. Returns the condition for its receipt.
    pub(super) fn subscribe(
        &mut self,
        subscribe: &SubscriptionRequest,
        headers: &Headers<'_>,
    ) -> Result<Until, StompFault> {
        refuse_selector(headers)?;
        check_tag(&subscribe.form)?;
        let prefetch = headers.number("prefetch-count")?.unwrap_or(0);
        let destination = parse(&subscribe.destination)?;
        if let Destination::Topic(key) = &destination
            && subscribe.ack == AckMode::Auto
            && self.live.may_share(headers, self.compatibility)?
        {
            let live = Some((**key).into());
            let own = UpstreamSubscription::new(subscribe.form.clone(), "");
            let has_receipt = headers.get("receipt").is_some();
            return Ok(
                self.add_subscription(subscribe.number, UpstreamSubscription { live, has_receipt, ..own })
            );
        }
        let queue = match &destination {
            Destination::Queue(name) => {
                self.ensure_queue(name, headers, false)?;
                name.to_string()
            }
            Destination::AmqQueue(name) | Destination::ReplyQueue(name) => name.to_string(),
            Destination::Exchange { .. } | Destination::Topic(_) => {
                self.bound_queue(&destination, headers)?
            }
            Destination::TempQueue(_) => return Err(not_for(&subscribe.destination, "SUBSCRIBE")),
        };
        let offset = headers.get("x-stream-offset").map(|text| ("x-stream-offset", stream_offset(text)));
        let arguments = offset.into_iter().chain(consumer_priority(headers)?).collect();
        let own = UpstreamSubscription {
            is_acked: subscribe.ack != AckMode::Auto,
            prefetch,
            arguments,
            has_receipt: headers.get("receipt").is_some(),
            ..UpstreamSubscription::new(subscribe.form.clone(), &queue)
        };
        Ok(self.add_subscription(subscribe.number, own))
    }

    /// Adds a subscription, whose delivery starts after its receipt. Returns the condition for the receipt.
    fn add_subscription(&mut self, number: u64, own: UpstreamSubscription) -> Until {
        let waits = own.has_receipt && !self.receipts.is_empty();
        self.subscriptions.insert(number, own);
        if waits { Until::Consumes(number) } else { self.begin(number) }
    }

    /// Requests a subscription's consumer, or its binding on the shared queue. Returns the condition for its receipt.
    pub(super) fn begin(&mut self, number: u64) -> Until {
        if let Some(key) = self.subscriptions.get(&number).and_then(|own| own.live.clone()) {
            self.live.subscribe(&key, number);
            return Until::Subscribed(number);
        }
        self.consume(number);
        self.all_answered()
    }

    /// Declares the subscription's own queue and binds it to the exchange.
    fn bound_queue(
        &mut self,
        destination: &Destination<'_>,
        headers: &Headers<'_>,
    ) -> Result<String, StompFault> {
        let name = subscription_queue(destination, headers)?;
        check_short("x-queue-name", &name)?;
        self.declare(&name, &Declaration::of_subscription(headers, self.compatibility)?, Awaited::Answer);
        let (exchange, routing_key) = destination.route();
        let bind = queue::Bind { queue: &name, exchange, routing_key, ..queue::Bind::default() };
        self.request(bind, Awaited::Answer);
        Ok(name)
    }

    /// Requests a subscription's consumer, always with acknowledgements.
    fn consume(&mut self, number: u64) {
        let Some(own) = self.subscriptions.get_mut(&number) else { return };
        let prefetch_count = match own.prefetch {
            0 if !own.is_acked => WINDOW,
            given => given,
        };
        // Deliveries for an earlier consumer with this tag may still arrive.
        let tag = own.form.tag();
        let consumer_tag: Box<str> = match self.used_tags.contains(tag) {
            true => broker::generated_name("T_").into(),
            false => tag.into(),
        };
        if self.used_tags.len() >= MAX_USED_TAGS {
            self.used_tags.clear();
        }
        self.used_tags.insert(consumer_tag.clone());
        own.consumer = Some(consumer_tag.clone());
        self.numbers.insert(consumer_tag.clone(), number);
        let queue = own.queue.clone();
        let arguments = own.arguments.encode();
        if self.prefetch != Some(prefetch_count) {
            self.prefetch = Some(prefetch_count);
            let qos = basic::Qos { prefetch_size: 0, prefetch_count, global: false };
            self.request(qos, Awaited::Answer);
        }
        let consume = basic::Consume {
            queue: &queue,
            consumer_tag: &consumer_tag,
            arguments: RawTable::check(&arguments).unwrap_or_default(),
            ..basic::Consume::default()
        };
        self.request(consume, Awaited::Consumer(number, consumer_tag.clone()));
    }

    /// Ends a subscription. Also deletes its queue, if it is a durable subscription to a topic that the client ends
    /// permanently.
    pub(super) fn unsubscribe(
        &mut self,
        number: u64,
        destination: &str,
        headers: &Headers<'_>,
    ) -> Result<Until, StompFault> {
        let destination = parse(destination)?;
        let removed = self.subscriptions.remove(&number);
        if let Some(key) = removed.as_ref().and_then(|own| own.live.as_deref()) {
            self.live.unsubscribe(key, number);
        }
        if let Some(tag) = removed.and_then(|own| own.consumer) {
            self.numbers.remove(&tag);
            let cancel = basic::Cancel { consumer_tag: &tag, no_wait: false };
            self.request(cancel, Awaited::Cancel(tag.clone()));
            let unsettled = self.unsettled.take_all(number);
            self.requeue(&unsettled);
        }
        if matches!(destination, Destination::Topic(_)) && is_durable(headers)? {
            let name = subscription_queue(&destination, headers)?;
            check_short("x-queue-name", &name)?;
            self.request(queue::Delete { queue: &name, ..queue::Delete::default() }, Awaited::Answer);
        }
        Ok(self.all_answered())
    }

    /// Handles ACK or NACK.
    pub(super) fn settle(&mut self, settle: Settle) -> Result<Until, StompFault> {
        let Settle { subscription, delivery_tag, cumulative, transaction, .. } = settle;
        let taken = self.unsettled.take(delivery_tag, subscription, cumulative);
        let tags = taken.ok_or_else(|| unknown_delivery(delivery_tag))?;
        match transaction.and_then(|transaction| self.transactions.get_mut(&transaction)) {
            Some(transaction) => transaction.hold_settlement(settle, tags),
            None => self.apply(settle, &tags),
        }
        Ok(self.all_answered())
    }

    /// Settles deliveries upstream.
    pub(super) fn apply(&mut self, settle: Settle, tags: &[u64]) {
        for SettledRun { delivery_tag, multiple } in self.unsettled.settle(tags) {
            if settle.is_ack {
                self.client.send(CHANNEL, basic::Ack { delivery_tag, multiple });
            } else {
                self.client.send(CHANNEL, basic::Nack { delivery_tag, multiple, requeue: settle.requeue });
            }
        }
    }

    /// Requeues deliveries.
    pub(super) fn requeue(&mut self, tags: &[u64]) {
        for SettledRun { delivery_tag, multiple } in self.unsettled.settle(tags) {
            self.client.send(CHANNEL, basic::Nack { delivery_tag, multiple, requeue: true });
        }
    }

    /// Acknowledges deliveries that the client does not have to acknowledge.
    pub(super) fn acknowledge_done(&mut self) {
        let done = self.unsettled.take_done();
        for SettledRun { delivery_tag, multiple } in self.unsettled.settle(&done) {
            self.client.send(CHANNEL, basic::Ack { delivery_tag, multiple });
        }
    }
}

impl UpstreamSubscription {
    /// A subscription without acknowledgements.
    pub(super) fn new(form: MessageForm, queue: &str) -> Self {
        Self {
            form,
            consumer: None,
            queue: queue.into(),
            is_acked: false,
            prefetch: 0,
            arguments: FieldTable::new(),
            has_receipt: false,
            live: None,
            is_reply: false,
        }
    }
}

/// Parses the header `x-stream-offset` as RabbitMQ's adapter does: `offset=` or `timestamp=` with a number, or a word.
fn stream_offset(text: &str) -> FieldValue {
    let number = |prefix: &str| text.strip_prefix(prefix)?.parse().ok();
    if let Some(offset) = number("offset=") {
        return FieldValue::I64(offset);
    }
    match number("timestamp=").and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => FieldValue::Timestamp(seconds),
        None => FieldValue::text(text),
    }
}
