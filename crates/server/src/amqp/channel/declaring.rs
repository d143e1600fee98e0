//! exchange.* and queue.*.

use amqp::error::{Fault, ReplyCode};
use amqp::method::{Method, exchange, queue};
use broker::{Binding, ExchangeDeclare, QueueDeclare};

use super::super::broker_session::ChannelContext;
use super::Channel;

impl Channel {
    pub(super) fn exchange_declare(
        &self,
        context: &ChannelContext,
        m: &exchange::Declare<'_>,
    ) -> Result<(), Fault> {
        let declare = ExchangeDeclare {
            name: m.exchange,
            kind: m.kind,
            passive: m.passive,
            durable: m.durable,
            auto_delete: m.auto_delete,
            internal: m.internal,
            arguments: m.arguments,
        };
        context.hold_until(context.authorised.declare_exchange(&declare)?);
        self.answer(context, m.no_wait, exchange::DeclareOk {});
        Ok(())
    }

    pub(super) fn exchange_delete(
        &self,
        context: &ChannelContext,
        m: &exchange::Delete<'_>,
    ) -> Result<(), Fault> {
        context.authorised.check_delete_exchange(m.exchange)?;
        context.hold_until(context.vhost.delete_exchange(m.exchange, m.if_unused)?);
        self.answer(context, m.no_wait, exchange::DeleteOk {});
        Ok(())
    }

    pub(super) fn exchange_bind(
        &self,
        context: &ChannelContext,
        m: &exchange::Bind<'_>,
    ) -> Result<(), Fault> {
        let binding = Binding {
            source: m.source,
            destination: m.destination,
            routing_key: m.routing_key,
            arguments: m.arguments,
        };
        context.hold_until(context.authorised.bind_exchange(&binding)?);
        self.answer(context, m.no_wait, exchange::BindOk {});
        Ok(())
    }

    pub(super) fn exchange_unbind(
        &self,
        context: &ChannelContext,
        m: &exchange::Unbind<'_>,
    ) -> Result<(), Fault> {
        let binding = Binding {
            source: m.source,
            destination: m.destination,
            routing_key: m.routing_key,
            arguments: m.arguments,
        };
        context.hold_until(context.authorised.unbind_exchange(&binding)?);
        self.answer(context, m.no_wait, exchange::UnbindOk {});
        Ok(())
    }

    pub(super) fn queue_declare(
        &mut self,
        context: &ChannelContext,
        m: &queue::Declare<'_>,
    ) -> Result<(), Fault> {
        if broker::is_reply_name(m.queue) {
            return self.declare_replies(context, m);
        }
        let declare = QueueDeclare {
            name: m.queue,
            passive: m.passive,
            durable: m.durable,
            exclusive: m.exclusive,
            auto_delete: m.auto_delete,
            arguments: m.arguments,
            type_name: None,
            capacity: None,
        };
        let declared = context.authorised.declare_queue(context.session, &declare, context.now)?;
        context.hold_until(declared.ticket);
        let name = declared.queue.name();
        self.last_queue = Some((&**name).into());
        let ok = queue::DeclareOk {
            queue: name,
            message_count: u32::try_from(declared.messages).unwrap_or(u32::MAX),
            consumer_count: u32::try_from(declared.consumers).unwrap_or(u32::MAX),
        };
        self.answer(context, m.no_wait, ok);
        Ok(())
    }

    /// Declares a reply queue passively, by which a responder checks that the requester still exists.
    fn declare_replies(&mut self, context: &ChannelContext, m: &queue::Declare<'_>) -> Result<(), Fault> {
        if !context.vhost.has_replies(m.queue) {
            let text = format!("no queue '{}' in vhost '{}'", m.queue, context.vhost.name());
            return Err(Fault::new(ReplyCode::NotFound, text));
        }
        self.last_queue = Some(m.queue.into());
        let ok = queue::DeclareOk { queue: m.queue, message_count: 0, consumer_count: 1 };
        self.answer(context, m.no_wait, ok);
        Ok(())
    }

    pub(super) fn queue_bind(&self, context: &ChannelContext, m: &queue::Bind<'_>) -> Result<(), Fault> {
        let binding = self.queue_binding(m.exchange, m.queue, m.routing_key)?;
        Self::check_may_be_bound(context, &binding)?;
        let binding = Binding { arguments: m.arguments, ..binding };
        context.hold_until(context.authorised.bind_queue(context.session, &binding)?);
        self.answer(context, m.no_wait, queue::BindOk {});
        Ok(())
    }

    pub(super) fn queue_unbind(&self, context: &ChannelContext, m: &queue::Unbind<'_>) -> Result<(), Fault> {
        let binding = self.queue_binding(m.exchange, m.queue, m.routing_key)?;
        Self::check_may_be_bound(context, &binding)?;
        let binding = Binding { arguments: m.arguments, ..binding };
        context.hold_until(context.authorised.unbind_queue(context.session, &binding)?);
        context.send(self.number, queue::UnbindOk {});
        Ok(())
    }

    pub(super) fn queue_purge(&self, context: &ChannelContext, m: &queue::Purge<'_>) -> Result<(), Fault> {
        let name = self.queue_name(m.queue)?;
        context.authorised.check_read_queue(name)?;
        let (purged, until) = context.vhost.purge(context.session, name)?;
        context.hold_until(until);
        let message_count = u32::try_from(purged).unwrap_or(u32::MAX);
        self.answer(context, m.no_wait, queue::PurgeOk { message_count });
        Ok(())
    }

    pub(super) fn queue_delete(&self, context: &ChannelContext, m: &queue::Delete<'_>) -> Result<(), Fault> {
        let name = self.queue_name(m.queue)?;
        context.authorised.check_delete_queue(name)?;
        let (deleted, ticket) = context.vhost.delete_queue(context.session, name, m.if_unused, m.if_empty)?;
        context.hold_until(ticket);
        let message_count = u32::try_from(deleted).unwrap_or(u32::MAX);
        self.answer(context, m.no_wait, queue::DeleteOk { message_count });
        Ok(())
    }

    /// The binding of a queue. An empty queue name means the last declared queue, and then an empty routing key its name
    /// (AMQP 0-9-1, queue.bind).
    fn check_may_be_bound(context: &ChannelContext, binding: &Binding<'_>) -> Result<(), Fault> {
        let name = binding.destination;
        let is_reply_queue = name != broker::REPLY_QUEUE && broker::is_reply_name(name);
        if is_reply_queue && context.vhost.compatibility().reveals_reply_queues() {
            let text = "cannot bind or unbind to a volatile (direct reply-to) queue";
            return Err(Fault::new(ReplyCode::AccessRefused, text));
        }
        Ok(())
    }

    fn queue_binding<'n>(
        &'n self,
        exchange: &'n str,
        queue: &'n str,
        key: &'n str,
    ) -> Result<Binding<'n>, Fault> {
        let destination = self.queue_name(queue)?;
        let routing_key = if queue.is_empty() && key.is_empty() { destination } else { key };
        Ok(Binding { source: exchange, destination, routing_key, ..Default::default() })
    }

    fn answer<'m>(&self, context: &ChannelContext, no_wait: bool, method: impl Into<Method<'m>>) {
        if !no_wait {
            context.send(self.number, method);
        }
    }
}
