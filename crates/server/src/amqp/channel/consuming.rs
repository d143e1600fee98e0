//! basic.consume and related methods: cancel, get, qos, and settling deliveries.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amqp::RawTable;
use amqp::error::{Fault, ReplyCode};
use amqp::method::basic;
use broker::{
    ConsumerSpec, DequeueCounts, Fetched, Queue, QueueKind, REPLY_QUEUE, Returned, Tracer, VirtualHost,
};

use super::super::broker_session::{ChannelContext, LateGet};
use super::super::content::{Destination, write_message};
use super::super::deliveries::{
    BasicDeliver, Cancelled, ChannelConsumer, DeliverySettlement, HeldSettlement, Settlement, Settling,
    Unsettled,
};
use super::{Channel, Mode, RegisteredConsumer};

/// The rest of the deliveries that one method settles, which takes more than a turn.
pub(crate) struct UnfinishedSettlement {
    channel: u16,
    rest: Settlement,
    /// Whether it is answered with recover-ok.
    is_recover: bool,
}

impl Channel {
    pub(super) fn consume(
        &mut self,
        context: &ChannelContext,
        consume: &basic::Consume<'_>,
    ) -> Result<(), Fault> {
        // RabbitMQ resolves an empty queue name before it checks anything else.
        let name = self.queue_name(consume.queue)?;
        let tag: Box<str> = match consume.consumer_tag {
            "" => broker::generated_name("amq.ctag-").into(),
            tag => tag.into(),
        };
        if consume.queue == REPLY_QUEUE {
            self.check_reply_consumer(consume.no_ack)?;
        }
        if self.consumers.contains_key(&tag) {
            return Err(Fault::new(ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{tag}'")));
        }
        if consume.queue == REPLY_QUEUE {
            let queue = self.open_replies(context);
            let alone = basic::Consume { exclusive: false, arguments: RawTable::default(), ..*consume };
            return self.consume_from(context, &queue, tag, &alone);
        }
        context.authorised.check_read_queue(name)?;
        let queue = context.vhost.queue(context.session, name)?;
        if self.limited && queue.kind() == QueueKind::Quorum {
            let text = format!(
                "queue '{}' in vhost '{}' does not support global qos",
                queue.name(),
                context.vhost.name()
            );
            return Err(Fault::new(ReplyCode::NotImplemented, text));
        }
        self.consume_from(context, &queue, tag, consume)
    }

    fn consume_from(
        &mut self,
        context: &ChannelContext,
        queue: &Arc<Queue>,
        tag: Box<str>,
        consume: &basic::Consume<'_>,
    ) -> Result<(), Fault> {
        let settling = match &self.replies {
            Some(replies) if Arc::ptr_eq(replies, queue) => Settling::Reply,
            _ => Settling::of_queue(consume.no_ack),
        };
        let key = self.deliveries.add_consumer(self.prefetch.into(), settling);
        let consumer = Arc::new(ChannelConsumer {
            deliveries: Arc::clone(&self.deliveries),
            key,
            tag: tag.clone(),
            no_ack: consume.no_ack,
            prefetch: self.prefetch,
            queue: Arc::clone(queue),
            form: BasicDeliver,
        });
        let spec = ConsumerSpec {
            consumer,
            session: context.session,
            tag: &tag,
            no_ack: consume.no_ack,
            exclusive: consume.exclusive,
            arguments: consume.arguments,
        };
        let id = queue.consume(spec).inspect_err(|_| self.deliveries.remove_consumer(key))?;
        self.deliveries.activate(key, queue, id);
        if !consume.no_wait {
            context.send(self.number, basic::ConsumeOk { consumer_tag: &tag });
        }
        queue.resume(id, context.now);
        self.consumers.insert(tag, RegisteredConsumer { key, queue: Arc::clone(queue), id });
        Ok(())
    }

    /// Returns an error if a direct reply-to consumer cannot be added.
    fn check_reply_consumer(&self, no_ack: bool) -> Result<(), Fault> {
        let refuse = |text| Err(Fault::new(ReplyCode::PreconditionFailed, text));
        if !no_ack {
            return refuse("reply consumer cannot acknowledge");
        }
        if self.replies.is_some() {
            return refuse("reply consumer already set");
        }
        Ok(())
    }

    /// Creates the queue of the channel's direct reply-to consumer (RabbitMQ, "Direct Reply-to").
    fn open_replies(&mut self, context: &ChannelContext) -> Arc<Queue> {
        let queue = context.vhost.open_replies();
        self.publisher.get(context, self.number).set_reply_queue(Some(Arc::clone(queue.name())));
        self.replies = Some(Arc::clone(&queue));
        queue
    }

    /// Called after the direct reply-to consumer was cancelled.
    pub(crate) fn close_replies(&mut self, context: &ChannelContext) {
        if let Some(queue) = self.replies.take() {
            self.publisher.get(context, self.number).set_reply_queue(None);
            context.vhost.close_replies(&queue);
        }
    }

    pub(super) fn cancel(&mut self, context: &ChannelContext, cancel: &basic::Cancel<'_>) {
        if let Some(consumer) = self.consumers.remove(cancel.consumer_tag) {
            consumer.queue.cancel(consumer.id, context.now);
            self.deliveries.remove_consumer(consumer.key);
            if self.replies.as_ref().is_some_and(|replies| Arc::ptr_eq(replies, &consumer.queue)) {
                self.close_replies(context);
            }
        }
        if !cancel.no_wait {
            context.send(self.number, basic::CancelOk { consumer_tag: cancel.consumer_tag });
        }
    }

    /// Handles the broker's cancellation of a consumer of this channel, or of an earlier channel with the same number.
    pub(crate) fn cancelled_by_broker(&mut self, context: &ChannelContext, cancelled: &Cancelled) {
        let Cancelled { deliveries, key, tag } = cancelled;
        let known = self.consumers.get(tag).is_some_and(|consumer| consumer.key == *key);
        if !known || !Arc::ptr_eq(deliveries, &self.deliveries) {
            return;
        }
        self.consumers.remove(tag);
        self.deliveries.remove_consumer(*key);
        if context.capabilities.consumer_cancel_notify {
            context.send(self.number, basic::Cancel { consumer_tag: tag, no_wait: true });
        }
    }

    pub(super) fn get(&mut self, context: &ChannelContext, get: &basic::Get<'_>) -> Result<(), Fault> {
        let name = self.queue_name(get.queue)?;
        context.authorised.check_read_queue(name)?;
        let is_reply_queue = name != REPLY_QUEUE && context.vhost.has_replies(name);
        if is_reply_queue && context.vhost.compatibility().reveals_reply_queues() {
            let text = format!(
                "basic.get not supported by volatile queue '{name}' in vhost '{}'",
                context.vhost.name()
            );
            return Err(Fault::new(ReplyCode::NotImplemented, text));
        }
        let queue = context.vhost.queue(context.session, name)?;
        check_get(&queue, &context.vhost)?;
        self.fetch(context, queue, get.no_ack);
        Ok(())
    }

    /// Answers basic.get if the queue's next message is in memory. Otherwise the client is not read until it
    /// is, so that answers keep their order.
    pub(crate) fn fetch(&mut self, context: &ChannelContext, queue: Arc<Queue>, no_ack: bool) {
        let got = match queue.fetch(no_ack, context.now, context.nudge()) {
            Fetched::Got(got) => got,
            Fetched::Empty => {
                self.deliveries.count(DequeueCounts::got_nothing(), context.now);
                return context.send(self.number, basic::GetEmpty { reserved_1: "" });
            }
            Fetched::Later => return context.fetch_later(LateGet { channel: self.number, queue, no_ack }),
        };
        let message = got.delivery.message();
        let method = basic::GetOk {
            delivery_tag: self.deliveries.register_get(&queue, &got.delivery, no_ack, context.now),
            redelivered: got.delivery.redelivered(),
            exchange: message.exchange(),
            routing_key: message.routing_key(),
            message_count: u32::try_from(got.remaining).unwrap_or(u32::MAX),
        };
        if context.consumers.traces().are_wanted() && Tracer::reports(&queue, &got.delivery) {
            context.consumers.trace(self.number, &queue, true, vec![got.delivery.clone()]);
        }
        let properties = got.delivery.properties(&queue, true);
        let destination = Destination { channel: self.number, frame_max: context.frame_max };
        context.outbox.append(|buf| {
            write_message(buf, destination, method.into(), &properties, message.body());
        });
    }

    pub(super) fn qos(&mut self, context: &ChannelContext, qos: basic::Qos) -> Result<(), Fault> {
        if qos.prefetch_size != 0 {
            let text = format!("prefetch_size!=0 ({})", qos.prefetch_size);
            return Err(Fault::new(ReplyCode::NotImplemented, text));
        }
        if qos.global && context.vhost.compatibility().has_global_qos() {
            self.limited = qos.prefetch_count != 0;
            self.view.global_prefetch.store(qos.prefetch_count, Ordering::Relaxed);
            self.deliveries.set_channel_limit(qos.prefetch_count.into());
            self.deliveries.resume(context.now);
        } else {
            self.prefetch = qos.prefetch_count;
            self.view.prefetch.store(qos.prefetch_count, Ordering::Relaxed);
            // RabbitMQ also lifts the channel's limit.
            if std::mem::take(&mut self.limited) {
                self.view.global_prefetch.store(0, Ordering::Relaxed);
                self.deliveries.set_channel_limit(0);
                self.deliveries.resume(context.now);
            }
        }
        context.send(self.number, basic::QosOk {});
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        context: &ChannelContext,
        tag: u64,
        multiple: bool,
        how: DeliverySettlement,
    ) -> Result<(), Fault> {
        let unknown = || Fault::new(ReplyCode::PreconditionFailed, format!("unknown delivery tag {tag}"));
        if let Mode::Tx(transaction) = &mut self.mode {
            let unsettled = self.deliveries.hold(tag, multiple).ok_or_else(unknown)?;
            transaction.settle(HeldSettlement { how, deliveries: Arc::clone(&self.deliveries), unsettled });
            return Ok(());
        }
        let acked_at = (how == DeliverySettlement::Ack).then_some(context.now);
        let unsettled = self.deliveries.settle(tag, multiple, how, acked_at).ok_or_else(unknown)?;
        self.give_back(context, unsettled, how, false);
        Ok(())
    }

    pub(super) fn recover(
        &mut self,
        context: &ChannelContext,
        requeue: bool,
        is_answered: bool,
    ) -> Result<(), Fault> {
        if !requeue {
            return Err(Fault::new(ReplyCode::NotImplemented, "requeue=false"));
        }
        let how = DeliverySettlement::Requeue(Returned::Released);
        let all = self.deliveries.settle(0, true, how, None).unwrap_or_default();
        self.give_back(context, all, how, is_answered);
        Ok(())
    }

    /// Settles deliveries with their queues. If a turn is not enough, [`Channel::flush`] continues.
    fn give_back(
        &mut self,
        context: &ChannelContext,
        unsettled: Vec<(u64, Unsettled)>,
        how: DeliverySettlement,
        is_recover: bool,
    ) {
        match how.apply(&self.deliveries, unsettled, context.now) {
            Some(rest) => {
                context.settle_later(UnfinishedSettlement { channel: self.number, rest, is_recover });
            }
            None => self.settled(context, is_recover),
        }
    }

    /// Continues a settlement until the turn is over; returns whether it is done. A settlement that has begun is
    /// completed even if the channel ends.
    pub(super) fn continue_settling(&mut self, context: &ChannelContext) -> bool {
        let Some(settling) = context.take_settling(self.number) else { return true };
        if let Some(rest) = settling.rest.proceed(context.now) {
            context.settle_later(UnfinishedSettlement { rest, ..settling });
            return false;
        }
        self.settled(context, settling.is_recover);
        true
    }

    fn settled(&self, context: &ChannelContext, is_recover: bool) {
        if is_recover {
            context.send(self.number, basic::RecoverOk {});
        }
    }

    /// Whether the oldest delivery has been unsettled for `timeout`.
    pub(crate) fn is_overdue(&self, now: Instant, timeout: Duration) -> bool {
        self.deliveries.is_overdue(now, timeout)
    }

    /// Whether the client has deliveries to settle, or consumers that may get some.
    pub(crate) fn is_in_use(&self) -> bool {
        self.deliveries.is_in_use()
    }
}

impl UnfinishedSettlement {
    pub(crate) fn is_of(&self, channel: u16) -> bool {
        self.channel == channel
    }
}

/// Returns an error if basic.get is not allowed on a queue.
fn check_get(queue: &Queue, vhost: &VirtualHost) -> Result<(), Fault> {
    if queue.kind() == QueueKind::Quorum && queue.arguments().single_active_consumer {
        let text = format!(
            "cannot obtain access to locked queue '{}' in vhost '{}'. basic.get operations are not supported by {} \
             queues with single active consumer",
            queue.name(),
            vhost.name(),
            vhost.compatibility().quorum_queue_error_label()
        );
        return Err(Fault::new(ReplyCode::ResourceLocked, text));
    }
    Ok(())
}
