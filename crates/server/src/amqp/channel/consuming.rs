//! basic.consume and what follows from it: cancel, get, qos, and settling deliveries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::RawTable;
use amqp::error::{Fault, ReplyCode};
use amqp::method::basic;
use broker::{ConsumerSpec, Queue, REPLY_QUEUE};

use super::super::broker_session::Context;
use super::super::content::{Destination, write_message};
use super::super::deliveries::{ChannelConsumer, ConsumerKey, Deliveries};
use super::{Channel, Mode, Registered, Settlement, give_back, resume};

impl Channel {
    pub(super) fn consume(&mut self, context: &Context, consume: &basic::Consume<'_>) -> Result<(), Fault> {
        // RabbitMQ looks for the last queue declared before it looks at anything else.
        let name = self.queue_name(consume.queue)?;
        let tag: Box<str> = match consume.consumer_tag {
            "" => broker::generated_name("amq.ctag-").into(),
            tag => tag.into(),
        };
        if self.consumers.contains_key(&tag) {
            return Err(Fault::new(ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{tag}'")));
        }
        if consume.queue == REPLY_QUEUE {
            let queue = self.open_replies(context, consume.no_ack)?;
            let alone = basic::Consume { exclusive: false, arguments: RawTable::default(), ..*consume };
            return self.consume_from(context, &queue, tag, &alone);
        }
        context.seat.check_read_queue(name)?;
        let queue = context.vhost.queue(context.session, name)?;
        self.consume_from(context, &queue, tag, consume)
    }

    fn consume_from(
        &mut self,
        context: &Context,
        queue: &Arc<Queue>,
        tag: Box<str>,
        consume: &basic::Consume<'_>,
    ) -> Result<(), Fault> {
        let key = self.deliveries.add_consumer(self.prefetch.into(), consume.no_ack);
        let consumer = Arc::new(ChannelConsumer {
            deliveries: Arc::clone(&self.deliveries),
            key,
            tag: tag.clone(),
            no_ack: consume.no_ack,
            queue: Arc::clone(queue),
            cancellations: Arc::clone(&context.cancellations),
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
        self.consumers.insert(tag, Registered { key, queue: Arc::clone(queue), id });
        Ok(())
    }

    /// Makes the queue of the channel's consumer of replies (RabbitMQ, "Direct Reply-to").
    fn open_replies(&mut self, context: &Context, no_ack: bool) -> Result<Arc<Queue>, Fault> {
        let refuse = |text| Err(Fault::new(ReplyCode::PreconditionFailed, text));
        if self.replies.is_some() {
            return refuse("reply consumer already set");
        }
        if !no_ack {
            return refuse("reply consumer cannot acknowledge");
        }
        let queue = context.vhost.open_replies();
        self.publisher.set_reply_queue(Some(Arc::clone(queue.name())));
        self.replies = Some(Arc::clone(&queue));
        Ok(queue)
    }

    /// After the consumer of replies has been cancelled.
    pub(super) fn close_replies(&mut self, context: &Context) {
        if let Some(queue) = self.replies.take() {
            self.publisher.set_reply_queue(None);
            context.vhost.close_replies(&queue);
        }
    }

    pub(super) fn cancel(&mut self, context: &Context, cancel: &basic::Cancel<'_>) {
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

    /// The broker has cancelled a consumer, of this channel or of an earlier one with its number.
    pub(crate) fn cancelled_by_broker(
        &mut self,
        context: &Context,
        deliveries: &Arc<Deliveries>,
        key: ConsumerKey,
    ) {
        if !Arc::ptr_eq(deliveries, &self.deliveries) {
            return;
        }
        for (tag, consumer) in self.consumers.extract_if(|_, consumer| consumer.key == key) {
            self.deliveries.remove_consumer(consumer.key);
            if context.capabilities.consumer_cancel_notify {
                context.send(self.number, basic::Cancel { consumer_tag: &tag, no_wait: true });
            }
        }
    }

    pub(super) fn get(&mut self, context: &Context, get: &basic::Get<'_>) -> Result<(), Fault> {
        let name = self.queue_name(get.queue)?;
        context.seat.check_read_queue(name)?;
        let queue = context.vhost.queue(context.session, name)?;
        let Some(got) = queue.get(get.no_ack, context.now) else {
            context.send(self.number, basic::GetEmpty { reserved_1: "" });
            return Ok(());
        };
        let message = got.delivery.message();
        let method = basic::GetOk {
            delivery_tag: self.deliveries.register_get(&queue, &got.delivery, get.no_ack),
            redelivered: got.delivery.redelivered(),
            exchange: message.exchange(),
            routing_key: message.routing_key(),
            message_count: u32::try_from(got.remaining).unwrap_or(u32::MAX),
        };
        let properties = got.delivery.properties(queue.kind(), true);
        let destination = Destination { channel: self.number, frame_max: context.frame_max };
        context.outbox.append(|buf| {
            write_message(buf, destination, method.into(), &properties, message.body());
        });
        Ok(())
    }

    pub(super) fn qos(&mut self, context: &Context, qos: basic::Qos) -> Result<(), Fault> {
        if qos.prefetch_size != 0 {
            let text = format!("prefetch_size!=0 ({})", qos.prefetch_size);
            return Err(Fault::new(ReplyCode::NotImplemented, text));
        }
        if qos.global {
            resume(self.deliveries.set_channel_limit(qos.prefetch_count.into()), context);
        } else {
            self.prefetch = qos.prefetch_count;
        }
        context.send(self.number, basic::QosOk {});
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        context: &Context,
        tag: u64,
        multiple: bool,
        how: Settlement,
    ) -> Result<(), Fault> {
        let unknown = || Fault::new(ReplyCode::PreconditionFailed, format!("unknown delivery tag {tag}"));
        if let Mode::Tx(transaction) = &mut self.mode {
            let held = self.deliveries.hold(tag, multiple).ok_or_else(unknown)?;
            transaction.settle(how, held);
            return Ok(());
        }
        let (unsettled, resumable) = self.deliveries.settle(tag, multiple).ok_or_else(unknown)?;
        give_back(unsettled, how, context);
        resume(resumable, context);
        Ok(())
    }

    pub(super) fn recover(&mut self, context: &Context, requeue: bool) -> Result<(), Fault> {
        if !requeue {
            return Err(Fault::new(ReplyCode::NotImplemented, "requeue=false"));
        }
        let (unsettled, resumable) = self.deliveries.take_all();
        give_back(unsettled, Settlement::Requeue, context);
        resume(resumable, context);
        Ok(())
    }

    /// Whether the oldest delivery has been unsettled for `timeout`.
    pub(crate) fn is_overdue(&self, now: Instant, timeout: Duration) -> bool {
        self.deliveries.is_overdue(now, timeout)
    }

    /// Whether anything has been delivered, or may be at any time, that has to be settled.
    pub(crate) fn is_in_use(&self) -> bool {
        self.deliveries.is_in_use()
    }

    /// The connection's outbox has room again.
    pub(crate) fn resume_consumers(&self, context: &Context) {
        resume(self.deliveries.resumable(), context);
    }
}
