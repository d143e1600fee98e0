//! tx.*: publishes and settlements that take effect together, at commit.

use std::sync::atomic::Ordering;

use amqp::error::{Fault, ReplyCode};
use amqp::method::tx;
use broker::{Body, HeldRoute, DequeueCounts, Publish, Publisher, Timestamp};
use bytes::Bytes;

use super::super::broker_session::ChannelContext;
use super::super::deliveries::Unsettled;
use super::{Channel, DeliverySettlement, Mode, give_back};

/// Bytes that the publishes of one transaction may take. They are held in memory until commit, and a client
/// that never commits must not fill it: enough for several messages of the default maximum size.
const MAX_TRANSACTION_BYTES: usize = 128 * 1024 * 1024;

/// The publishes and settlements that wait for commit.
#[derive(Default)]
pub(super) struct ChannelTransaction {
    publishes: Vec<TransactionPublish>,
    /// Bytes in `publishes`.
    bytes: usize,
    settlements: Vec<(DeliverySettlement, Vec<(u64, Unsettled)>)>,
}

struct TransactionPublish {
    exchange: Box<str>,
    routing_key: Box<str>,
    mandatory: bool,
    properties: Box<[u8]>,
    body: [Bytes; 1],
    route: HeldRoute,
}

impl TransactionPublish {
    fn message(&self) -> Publish<'_> {
        Publish {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            properties: &self.properties,
            body: Body::Chunks(&self.body),
        }
    }
}

impl ChannelTransaction {
    /// Routes a message and holds it until commit. Errors in it are reported now, as by RabbitMQ.
    pub(super) fn publish(
        &mut self,
        publisher: &mut Publisher,
        message: Publish<'_>,
        mandatory: bool,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let route = publisher.hold(message, now)?;
        let body = match message.body {
            Body::Copied(bytes) => Bytes::copy_from_slice(bytes),
            Body::Chunks([chunk]) => chunk.clone(),
            Body::Chunks(chunks) => Bytes::from(chunks.concat()),
        };
        let names = message.exchange.len() + message.routing_key.len();
        self.bytes +=
            size_of::<TransactionPublish>() + names + message.properties.len() + body.len() + route.bytes();
        if self.bytes > MAX_TRANSACTION_BYTES {
            let text = format!("transaction larger than {MAX_TRANSACTION_BYTES} bytes");
            return Err(Fault::new(ReplyCode::ResourceError, text));
        }
        self.publishes.push(TransactionPublish {
            exchange: message.exchange.into(),
            routing_key: message.routing_key.into(),
            mandatory,
            properties: message.properties.into(),
            body: [body],
            route,
        });
        Ok(())
    }

    /// Holds a settlement until commit.
    pub(super) fn settle(&mut self, how: DeliverySettlement, unsettled: Vec<(u64, Unsettled)>) {
        self.settlements.push((how, unsettled));
    }

    /// The deliveries whose settlements are discarded.
    pub(super) fn into_unsettled(self) -> Vec<(u64, Unsettled)> {
        self.settlements.into_iter().flat_map(|(_, unsettled)| unsettled).collect()
    }
}

impl Channel {
    pub(super) fn tx_select(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        match self.mode {
            Mode::Plain => {
                self.mode = Mode::Tx(Box::default());
                self.view.transactional.store(true, Ordering::Relaxed);
            }
            Mode::Tx(_) => {}
            Mode::Confirm(_) => {
                return Err(Fault::new(
                    ReplyCode::PreconditionFailed,
                    "cannot switch from confirm to tx mode",
                ));
            }
        }
        context.send(self.number, tx::SelectOk {});
        Ok(())
    }

    pub(super) fn tx_commit(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let transaction = self.take_transaction()?;
        for buffered in &transaction.publishes {
            let publisher = self.publisher.get(context, self.number);
            match publisher.publish_held(buffered.message(), &buffered.route, context.now) {
                Ok(true) => {}
                Ok(false) => self.is_unroutable(context, buffered.message(), buffered.mandatory),
                Err(error) => {
                    // The channel is about to close, which requeues its deliveries.
                    self.deliveries.restore(transaction.into_unsettled());
                    return Err(error.into());
                }
            }
        }
        let flushed = self.publisher.flush_all(context.now);
        context.handed_over(&flushed, &self.view);
        self.count_published(context, flushed.count);
        let settles = !transaction.settlements.is_empty();
        for (how, unsettled) in transaction.settlements {
            self.deliveries.release(&unsettled);
            if how == DeliverySettlement::Ack {
                self.deliveries.count(DequeueCounts::acked(unsettled.len()), context.now);
            }
            give_back(unsettled, how, context);
            self.deliveries.resume(context.now);
        }
        // The settlements were written to the log last.
        let settled = context.store().filter(|_| settles).map(|store| store.end());
        context.hold_until(settled.max(flushed.until));
        if !flushed.refused.is_empty() {
            // All else has been committed, as in RabbitMQ.
            return Err(Fault::new(ReplyCode::PreconditionFailed, "partial tx completion"));
        }
        context.send(self.number, tx::CommitOk {});
        Ok(())
    }

    pub(super) fn tx_rollback(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let transaction = self.take_transaction()?;
        self.deliveries.restore(transaction.into_unsettled());
        context.send(self.number, tx::RollbackOk {});
        Ok(())
    }

    fn take_transaction(&mut self) -> Result<ChannelTransaction, Fault> {
        match &mut self.mode {
            Mode::Tx(transaction) => Ok(std::mem::take(&mut **transaction)),
            _ => Err(Fault::new(ReplyCode::PreconditionFailed, "channel is not transactional")),
        }
    }
}
