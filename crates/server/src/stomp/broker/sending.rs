//! SEND, and the queues and reply queues that it may need.

use std::sync::Arc;

use amqp::{FieldTable, RawTable};
use broker::{FrontEnd, Publish, Queue, QueueDeclare, Ticket};
use stomp::destination::Destination;
use stomp::server::{MessageForm, TransactionId};
use stomp::{FrameBody, Headers, StompFault};

use super::session::BrokerStompSession;
use super::subscribing::{NewConsumer, Subscription};
use crate::stomp::declaring::{Declaration, MAX_DECLARED};
use crate::stomp::destinations::check_replies;
use crate::stomp::sending::{SendRequest, message_body};
use crate::stomp::session::of_fault;
use crate::stomp::transaction::TransactionMessage;

/// The reply queue of a client's requests, and the subscription to it.
pub(super) struct Reply {
    queue: Arc<Queue>,
    pub(super) subscription: Subscription,
}

impl BrokerStompSession {
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
        let reply_to = request.reply_name.as_deref().map(|name| self.reply_queue(name)).transpose()?;
        let properties = request.properties(reply_to.as_deref(), &self.context.shared.config)?;
        let (exchange, routing_key) = request.destination.route();
        let message = Publish { exchange, routing_key, properties: &properties, body: message_body(body) };
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

    /// The queue of `/queue/NAME`, declared unless this connection has declared it already.
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

    /// The reply queue for `/temp-queue/NAME`, created with a subscription to it for the first request.
    fn reply_queue(&mut self, name: &str) -> Result<String, StompFault> {
        if let Some(reply) = self.replies.get(name) {
            return Ok(reply.queue.name().to_string());
        }
        check_replies(self.replies.len())?;
        self.context.authorised.authorise_generated_queue().map_err(of_fault)?;
        let (queue, _) = self.declare("", &Declaration::of_replies())?;
        let form = MessageForm::of_replies(self.context.version, Arc::clone(&self.context.name), name);
        let consumer =
            NewConsumer { word: name.into(), form, is_acked: false, limit: 0, arguments: FieldTable::new() };
        let subscription = self.consume(&queue, consumer)?;
        subscription.start(self.context.now);
        let queue_name = queue.name().to_string();
        self.replies.insert(name.into(), Reply { queue, subscription });
        Ok(queue_name)
    }
}
