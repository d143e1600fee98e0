//! SUBSCRIBE, UNSUBSCRIBE, ACK and NACK.

use std::sync::Arc;

use amqp::{FieldTable, RawTable};
use broker::{Binding, ConsumerId, ConsumerSpec, DiskPoint, Queue, Returned, Ticket, Timestamp};
use stomp::destination::Destination;
use stomp::server::{AckMode, MessageForm, Settle, SubscriptionRequest};
use stomp::{Headers, StompFault};

use super::messages::Messages;
use super::session::BrokerStompSession;
use crate::amqp::content::Destination as Channel;
use crate::amqp::deliveries::{
    Cancelled, ChannelConsumer, ChannelTeardown, ConsumerKey, Deliveries, DeliverySettlement, Settling,
};
use crate::stomp::declaring::{Declaration, is_durable, subscription_queue};
use crate::stomp::destinations::{
    check_tag, consumer_priority, not_for, parse, refuse_header, refuse_selector,
};
use crate::stomp::properties::check_short;
use crate::stomp::session::{CancelledSubscription, of_fault, unknown_delivery};

/// A subscription's consumer.
pub(super) struct Subscription {
    pub(super) deliveries: Arc<Deliveries>,
    key: ConsumerKey,
    queue: Arc<Queue>,
    id: ConsumerId,
    /// The consumer tag.
    tag: Box<str>,
}

/// The properties of a new consumer.
pub(super) struct NewConsumer {
    /// The name under which the broker cancels the consumer: the subscription's number, or the name of a `/temp-queue`.
    pub(super) word: Box<str>,
    pub(super) form: MessageForm,
    pub(super) is_acked: bool,
    /// The prefetch; 0 means no limit.
    pub(super) limit: u16,
    pub(super) arguments: FieldTable,
}

impl Subscription {
    /// Starts the delivery of messages.
    pub(super) fn start(&self, now: Timestamp) {
        self.deliveries.activate(self.key, &self.queue, self.id);
        self.queue.resume(self.id, now);
    }

    /// Begins its end: it takes no messages any more, and is added to `teardown` with the unacknowledged ones. Returns
    /// the first delivery tag that it has not used.
    pub(super) fn end(self, teardown: &mut ChannelTeardown) -> u64 {
        self.deliveries.close(teardown);
        teardown.add_consumers(std::iter::once((self.queue, self.id)));
        self.deliveries.next_tag()
    }
}

impl BrokerStompSession {
    /// Adds a subscription, which has to be [started](crate::stomp::session::StompSession::start). Returns the changes to
    /// wait for.
    pub(super) fn subscribe(
        &mut self,
        subscribe: &SubscriptionRequest,
        headers: &Headers<'_>,
    ) -> Result<DiskPoint, StompFault> {
        refuse_selector(headers)?;
        refuse_header(headers, "x-stream-offset", "there are no streams")?;
        check_tag(&subscribe.form)?;
        let limit = headers.number("prefetch-count")?.unwrap_or(0);
        let destination = parse(&subscribe.destination)?;
        let (queue, ticket) = match &destination {
            Destination::Queue(name) => self.ensure_queue(name, headers, false)?,
            Destination::AmqQueue(name) | Destination::ReplyQueue(name) => {
                let queue = self.context.vhost.queue(self.context.session, name).map_err(of_fault)?;
                (queue, Ticket::default())
            }
            Destination::Exchange { .. } | Destination::Topic(_) => {
                self.bound_queue(&destination, headers)?
            }
            Destination::TempQueue(_) => return Err(not_for(&subscribe.destination, "SUBSCRIBE")),
        };
        let is_acked = subscribe.ack != AckMode::Auto;
        let word = subscribe.number.to_string().into();
        let arguments = match self.context.vhost.compatibility().has_stomp_priorities() {
            true => consumer_priority(headers)?.into_iter().collect(),
            false => FieldTable::new(),
        };
        let consumer = NewConsumer { word, form: subscribe.form.clone(), is_acked, limit, arguments };
        let subscription = self.consume(&queue, consumer)?;
        self.subscriptions.insert(subscribe.number, subscription);
        Ok(ticket.into())
    }

    /// Declares the subscription's own queue and binds it to the exchange.
    fn bound_queue(
        &mut self,
        destination: &Destination<'_>,
        headers: &Headers<'_>,
    ) -> Result<(Arc<Queue>, Ticket), StompFault> {
        let name = subscription_queue(destination, headers)?;
        // A repeated request keeps its generated name.
        let name = self.context.authorised.generated_name(|| name);
        check_short("x-queue-name", &name)?;
        let (source, routing_key) = destination.route();
        let binding = Binding { source, destination: &name, routing_key, arguments: RawTable::default() };
        self.context.authorised.authorise_subscription(&binding).map_err(of_fault)?;
        let is_new = self.context.vhost.queue(self.context.session, &name).is_err();
        let (queue, declared) =
            self.declare(&name, &Declaration::of_subscription(headers, self.context.vhost.compatibility())?)?;
        let context = &self.context;
        match context.authorised.bind_queue(context.session, &binding) {
            Ok(ticket) => Ok((queue, declared.max(ticket))),
            Err(error) => {
                // A new queue would never be consumed from, so it is deleted; the result does not matter. An existing
                // queue is in use, for example by a durable subscription.
                if is_new {
                    let _ = context.vhost.delete_queue(context.session, queue.name(), true, true);
                }
                Err(of_fault(error))
            }
        }
    }

    /// Adds a consumer to a queue; the caller [starts](Subscription::start) it.
    pub(super) fn consume(&self, queue: &Arc<Queue>, new: NewConsumer) -> Result<Subscription, StompFault> {
        let NewConsumer { word, form, is_acked, limit, arguments } = new;
        let arguments = arguments.encode();
        let context = &self.context;
        context.authorised.check_read_queue(queue.name()).map_err(of_fault)?;
        // Placeholders: STOMP has no channels and no frame size limit.
        let channel = Channel { channel: 0, frame_max: 0 };
        let deliveries = Deliveries::new(Arc::clone(&context.consumers), channel).starting_at(self.next_tag);
        let deliveries = Arc::new(deliveries);
        let key = deliveries.add_consumer(limit.into(), Settling::of_queue(!is_acked));
        let tag: Box<str> = form.tag().into();
        let consumer = ChannelConsumer {
            deliveries: Arc::clone(&deliveries),
            key,
            tag: word,
            no_ack: !is_acked,
            prefetch: limit,
            queue: Arc::clone(queue),
            form: Messages { form, view: self.context.view.clone() },
        };
        let spec = ConsumerSpec {
            consumer: Arc::new(consumer),
            session: context.session,
            tag: &tag,
            no_ack: !is_acked,
            exclusive: false,
            arguments: RawTable::check(&arguments).unwrap_or_default(),
        };
        let id = queue.consume(spec).map_err(of_fault)?;
        Ok(Subscription { deliveries, key, queue: Arc::clone(queue), id, tag })
    }

    /// Ends a subscription, as far as the turn lasts; returns whether it has ended. If not, this is to be called again in the
    /// next turn.
    pub(super) fn end_subscription(&mut self, number: u64) -> bool {
        if let Some(subscription) = self.subscriptions.remove(&number) {
            let teardown = self.teardown.insert(ChannelTeardown::default());
            let next_tag = subscription.end(teardown);
            self.next_tag = self.next_tag.max(next_tag);
        }
        let now = self.context.now;
        if self.teardown.as_mut().is_some_and(|teardown| !teardown.proceed(now)) {
            return false;
        }
        self.teardown = None;
        true
    }

    /// Deletes the queue of a subscription that has ended, if that is a durable one on a topic and the client ends it
    /// permanently.
    pub(super) fn unsubscribe(
        &self,
        destination: &str,
        headers: &Headers<'_>,
    ) -> Result<DiskPoint, StompFault> {
        let destination = parse(destination)?;
        if !matches!(destination, Destination::Topic(_)) || !is_durable(headers)? {
            return Ok(DiskPoint::default());
        }
        let name = subscription_queue(&destination, headers)?;
        let context = &self.context;
        context.authorised.check_delete_queue(&name).map_err(of_fault)?;
        let deleted = context.vhost.delete_queue(context.session, &name, false, false);
        deleted.map(|(_, ticket)| ticket.into()).map_err(of_fault)
    }

    /// Handles ACK or NACK. Returns the changes to wait for; `None` if it takes more than the turn, and has to be called
    /// again in the next one.
    pub(super) fn settle(&mut self, settle: Settle) -> Result<Option<DiskPoint>, StompFault> {
        if let Some(transaction) = settle.transaction {
            self.hold_settlement(transaction, settle)?;
            return Ok(Some(DiskPoint::default()));
        }
        let now = self.context.now;
        let rest = match self.settling.take() {
            Some(rest) => rest.proceed(now),
            None => {
                let unknown = || unknown_delivery(settle.delivery_tag);
                let own = self.subscriptions.get(&settle.subscription).ok_or_else(unknown)?;
                let how = settlement_of(settle);
                let unsettled = own.deliveries.settle(settle.delivery_tag, settle.cumulative, how, None);
                how.apply(&own.deliveries, unsettled.ok_or_else(unknown)?, now)
            }
        };
        if rest.is_some() {
            self.settling = rest;
            return Ok(None);
        }
        Ok(Some(DiskPoint::from(self.context.store().map(|store| store.end()))))
    }

    /// Handles a consumer cancelled by the broker. Returns its subscription, if the client has one.
    pub(super) fn cancelled(&mut self, cancelled: &Cancelled) -> Option<CancelledSubscription> {
        let is_it = |own: &Subscription| Arc::ptr_eq(&own.deliveries, &cancelled.deliveries);
        if self.replies.get(&cancelled.tag).is_some_and(|reply| is_it(&reply.subscription)) {
            // The next request creates another reply queue.
            self.replies.remove(&cancelled.tag);
            return None;
        }
        let number = cancelled.tag.parse().ok()?;
        self.subscriptions.get(&number).filter(|own| is_it(own))?;
        let own = self.subscriptions.remove(&number)?;
        let next_delivery_tag = own.deliveries.next_tag();
        self.next_tag = self.next_tag.max(next_delivery_tag);
        Some(CancelledSubscription { tag: own.tag, number, next_delivery_tag })
    }
}

/// The outcome of an ACK or NACK. RabbitMQ treats a NACK as basic.nack.
pub(super) fn settlement_of(settle: Settle) -> DeliverySettlement {
    if settle.is_ack {
        DeliverySettlement::Ack
    } else {
        DeliverySettlement::refusal(settle.requeue, Returned::Released)
    }
}
