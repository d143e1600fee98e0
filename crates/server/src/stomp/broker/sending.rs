//! SEND, and the queues and replies that it may need.

use std::sync::Arc;

use amqp::{FieldTable, RawTable};
use broker::{Body, FrontEnd, Publish, Queue, QueueDeclare, Ticket};
use bytes::Bytes;
use stomp::destination::Destination;
use stomp::server::{MessageForm, TransactionId};
use stomp::{FrameBody, Headers, StompFault};

use super::session::BrokerStompSession;
use super::subscribing::{NewConsumer, Subscription};
use crate::stomp::declaring::{Declaration, MAX_DECLARED};
use crate::stomp::destinations::{MAX_REPLIES, not_for, parse, too_many_replies};
use crate::stomp::properties::{check_length, to_amqp};
use crate::stomp::session::of_fault;
use crate::stomp::transaction::TransactionMessage;

/// The reply queue of a client's requests, and the subscription to it.
pub(super) struct Reply {
    queue: Arc<Queue>,
    pub(super) subscription: Subscription,
}

impl BrokerStompSession {
    /// Publishes a message, or holds it until its transaction is committed.
    pub(super) fn send(
        &mut self,
        destination: &str,
        headers: &Headers<'_>,
        body: &FrameBody<'_>,
        transaction: Option<TransactionId>,
    ) -> Result<(), StompFault> {
        let parsed = parse(destination)?;
        match &parsed {
            Destination::Queue(name) => _ = self.ensure_queue(name, headers, true)?,
            Destination::TempQueue(_) => return Err(not_for(destination, "SEND")),
            _ => {}
        }
        let reply_to = match headers.get("reply-to").map(Destination::parse) {
            Some(Ok(Destination::TempQueue(name))) => Some(self.reply_queue(&name)?),
            // RabbitMQ passes on any other destination; here plain names are passed on, too.
            _ => None,
        };
        let properties = to_amqp(headers, reply_to.as_deref())?;
        check_length(&properties, self.context.shared.config.most_properties())?;
        let (exchange, routing_key) = parsed.route();
        let chunk;
        let body = match body {
            FrameBody::Borrowed(bytes) => Body::Copied(bytes),
            FrameBody::Owned(bytes) => {
                chunk = [Bytes::clone(bytes)];
                Body::Chunks(&chunk)
            }
        };
        let message = Publish { exchange, routing_key, properties: &properties, body };
        let receipt = headers.get("receipt");
        match transaction {
            Some(transaction) => self.hold(transaction, TransactionMessage::new(&message, receipt), &message),
            None => self.publish(message, receipt),
        }
    }

    /// Passes a message to the publisher.
    pub(super) fn publish(&mut self, message: Publish<'_>, receipt: Option<&str>) -> Result<(), StompFault> {
        let before = self.unflushed;
        self.publisher.publish(message, self.context.now).map_err(of_fault)?;
        self.unflushed += 1;
        if let Some(receipt) = receipt {
            self.context.shared.metrics.confirms(FrontEnd::Stomp).wanted.add(1);
            self.receipts.published(receipt, before);
        }
        Ok(())
    }

    /// The queue of `/queue/NAME`, declared unless this connection has already done so.
    pub(super) fn ensure_queue(
        &mut self,
        name: &str,
        headers: &Headers<'_>,
        is_send: bool,
    ) -> Result<(Arc<Queue>, Ticket), StompFault> {
        if let Some(queue) = self.declared.get(name).filter(|queue| !queue.is_deleted()) {
            return Ok((Arc::clone(queue), Ticket::default()));
        }
        let (queue, ticket) = self.declare(name, &Declaration::of_queue(headers, is_send)?)?;
        if self.declared.len() >= MAX_DECLARED {
            self.declared.clear();
        }
        self.declared.insert(name.into(), Arc::clone(&queue));
        Ok((queue, ticket))
    }

    pub(super) fn declare(
        &mut self,
        name: &str,
        how: &Declaration,
    ) -> Result<(Arc<Queue>, Ticket), StompFault> {
        let arguments = how.arguments.encode();
        let declare = QueueDeclare {
            name,
            passive: false,
            durable: how.durable,
            exclusive: how.exclusive,
            auto_delete: how.auto_delete,
            arguments: RawTable::check(&arguments).unwrap_or_default(),
            type_name: None,
            capacity: None,
        };
        let context = &self.context;
        let declared = context.authorised.declare_queue(context.session, &declare, context.now);
        declared.map(|declared| (declared.queue, declared.ticket)).map_err(of_fault)
    }

    /// The reply queue for `/temp-queue/NAME`, created with a subscription to it at the first request.
    fn reply_queue(&mut self, name: &str) -> Result<String, StompFault> {
        if let Some(reply) = self.replies.get(name) {
            return Ok(reply.queue.name().to_string());
        }
        if self.replies.len() >= MAX_REPLIES {
            return Err(too_many_replies());
        }
        self.context.authorised.authorise_generated_queue().map_err(of_fault)?;
        let arguments = FieldTable::new();
        let own = Declaration { durable: false, auto_delete: true, exclusive: true, arguments };
        let (queue, _) = self.declare("", &own)?;
        let form = MessageForm::of_replies(self.context.version, Arc::clone(&self.context.name), name);
        let consumer = NewConsumer { word: name.into(), form, is_acked: false, limit: 0 };
        let subscription = self.consume(&queue, consumer)?;
        subscription.start(self.context.now);
        let queue_name = queue.name().to_string();
        self.replies.insert(name.into(), Reply { queue, subscription });
        Ok(queue_name)
    }
}
