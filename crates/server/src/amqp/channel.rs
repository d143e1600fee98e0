//! One channel of a connection on the embedded broker: its methods and its lifetime.

mod confirms;
mod consuming;
mod declaring;
mod publishing;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amqp::content::Assembler;
use amqp::error::{Fault, ReplyCode};
use amqp::method::{Method, access, basic, channel, confirm};
use broker::{ConsumerId, Queue, Returned};
use hashbrown::HashMap;

use self::confirms::ChannelConfirms;
pub(super) use self::consuming::UnfinishedSettlement;
pub(super) use self::publishing::WaitingPublish;
use self::publishing::{LazyPublisher, PendingPublish};
use self::transaction::ChannelTransaction;
use super::broker_session::ChannelContext;
use super::deliveries::{ChannelTeardown, ConsumerKey, Deliveries, DeliverySettlement};
use crate::registry::OpenChannel;

/// An open channel.
///
/// A client may open very many channels and use few, so state of more than a few words is allocated on first use.
pub(crate) struct Channel {
    number: u16,
    deliveries: Arc<Deliveries>,
    publisher: LazyPublisher,
    assembler: Assembler<PendingPublish>,
    mode: Mode,
    /// By consumer tag.
    consumers: HashMap<Box<str>, RegisteredConsumer>,
    /// basic.qos with global=false: the prefetch of future consumers; 0 means no limit.
    prefetch: u16,
    /// Whether `basic.qos` with `global` has limited the channel as a whole.
    limited: bool,
    /// The last declared queue, which an empty queue name refers to.
    last_queue: Option<Box<str>>,
    /// The queue of the channel's direct reply-to consumer.
    replies: Option<Arc<Queue>>,
    /// The channel's entry in the registry.
    view: Arc<OpenChannel>,
}

/// The channel's mode, which decides when publishes take effect and whether they are confirmed.
enum Mode {
    Plain,
    Confirm(Box<ChannelConfirms>),
    Tx(Box<ChannelTransaction>),
}

/// A consumer of the channel.
struct RegisteredConsumer {
    /// The consumer's key in the channel's [`Deliveries`].
    key: ConsumerKey,
    queue: Arc<Queue>,
    id: ConsumerId,
}

impl Channel {
    pub(crate) fn new(number: u16, deliveries: Arc<Deliveries>) -> Self {
        let view = OpenChannel::new(number, Arc::clone(&deliveries));
        Self {
            number,
            deliveries,
            publisher: LazyPublisher::default(),
            assembler: Assembler::new(),
            mode: Mode::Plain,
            consumers: HashMap::new(),
            prefetch: 0,
            limited: false,
            last_queue: None,
            replies: None,
            view,
        }
    }

    pub(crate) fn view(&self) -> &Arc<OpenChannel> {
        &self.view
    }

    /// Returns an error if a method is not allowed now.
    pub(crate) fn check_method(&self) -> Result<(), Fault> {
        self.assembler.check_method()
    }

    /// Handles any method except basic.publish and those that open and close the channel.
    pub(crate) fn handle_method(
        &mut self,
        context: &ChannelContext,
        method: Method<'_>,
    ) -> Result<(), Fault> {
        self.flush_all(context);
        match method {
            Method::ExchangeDeclare(m) => self.exchange_declare(context, &m),
            Method::ExchangeDelete(m) => self.exchange_delete(context, &m),
            Method::ExchangeBind(m) => self.exchange_bind(context, &m),
            Method::ExchangeUnbind(m) => self.exchange_unbind(context, &m),
            Method::QueueDeclare(m) => self.queue_declare(context, &m),
            Method::QueueBind(m) => self.queue_bind(context, &m),
            Method::QueueUnbind(m) => self.queue_unbind(context, &m),
            Method::QueuePurge(m) => self.queue_purge(context, &m),
            Method::QueueDelete(m) => self.queue_delete(context, &m),
            Method::BasicQos(m) => self.qos(context, m),
            Method::BasicConsume(m) => self.consume(context, &m),
            Method::BasicCancel(m) => {
                self.cancel(context, &m);
                Ok(())
            }
            Method::BasicGet(m) => self.get(context, &m),
            Method::BasicAck(m) => self.settle(context, m.delivery_tag, m.multiple, DeliverySettlement::Ack),
            Method::BasicNack(m) => self.settle(
                context,
                m.delivery_tag,
                m.multiple,
                DeliverySettlement::refusal(m.requeue, Returned::Released),
            ),
            Method::BasicReject(m) => self.settle(
                context,
                m.delivery_tag,
                false,
                DeliverySettlement::refusal(m.requeue, Returned::Failed),
            ),
            Method::BasicRecover(basic::Recover { requeue }) => self.recover(context, requeue, true),
            Method::BasicRecoverAsync(basic::RecoverAsync { requeue }) => {
                self.recover(context, requeue, false)
            }
            Method::ConfirmSelect(m) => self.confirm_select(context, m),
            Method::TxSelect(_) => self.tx_select(context),
            Method::TxCommit(_) => self.tx_commit(context),
            Method::TxRollback(_) => self.tx_rollback(context),
            Method::ChannelFlow(channel::Flow { active: true }) => {
                context.send(self.number, channel::FlowOk { active: true });
                Ok(())
            }
            Method::ChannelFlow(_) => Err(Fault::new(ReplyCode::NotImplemented, "active=false")),
            // AMQP 0-9-1 abolished tickets; old clients request one and never use it.
            Method::AccessRequest(_) => {
                context.send(self.number, access::RequestOk { reserved_1: 1 });
                Ok(())
            }
            _ => Err(Fault::new(ReplyCode::CommandInvalid, "unimplemented method")),
        }
    }

    /// Begins the channel's end: its consumers take nothing any more. They and the unsettled deliveries are added to
    /// `teardown`.
    pub(crate) fn begin_end(&mut self, teardown: &mut ChannelTeardown) {
        if let Mode::Tx(transaction) = &mut self.mode {
            let (count, unsettled) = transaction.discard();
            teardown.add(count, unsettled.map(|(_, entry)| entry));
        }
        self.deliveries.close(teardown);
        let consumers = std::mem::take(&mut self.consumers);
        teardown.add_consumers(consumers.into_values().map(|consumer| (consumer.queue, consumer.id)));
    }

    /// Flushes what the channel has published, before anything comes back, and completes a method that takes several turns;
    /// returns `false` if this is to be called again in the next turn.
    pub(crate) fn finish_publishing(
        &mut self,
        context: &ChannelContext,
        teardown: &mut ChannelTeardown,
    ) -> bool {
        // The fault of a commit is of no interest any more.
        if matches!(self.flush(context), Ok(false)) {
            return false;
        }
        self.leave_confirms(context);
        // A commit that has failed returns what it was to settle.
        self.deliveries.close(teardown);
        true
    }

    fn confirm_select(&mut self, context: &ChannelContext, select: confirm::Select) -> Result<(), Fault> {
        match self.mode {
            Mode::Plain => self.mode = Mode::Confirm(Box::default()),
            Mode::Confirm(_) => {}
            Mode::Tx(_) => {
                return Err(Fault::new(
                    ReplyCode::PreconditionFailed,
                    "cannot switch from tx to confirm mode",
                ));
            }
        }
        self.view.confirms.store(true, Ordering::Relaxed);
        if !select.no_wait {
            context.send(self.number, confirm::SelectOk {});
        }
        Ok(())
    }

    /// The queue that a method names; an empty name means the channel's last declared queue.
    fn queue_name<'n>(&'n self, name: &'n str) -> Result<&'n str, Fault> {
        match (name, &self.last_queue) {
            ("", Some(last)) => Ok(last),
            ("", None) => Err(broker::BrokerError::NoPreviousQueue.into()),
            (name, _) => Ok(name),
        }
    }
}
