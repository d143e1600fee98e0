//! tx.*: publishes and settlements that take effect together, at commit.

use std::sync::atomic::Ordering;

use amqp::error::{Fault, ReplyCode};
use amqp::method::tx;
use broker::{Body, BrokerError, Leaving, Publish, Publisher, Timestamp};
use bytes::Bytes;

use super::super::broker_session::ChannelContext;
use super::super::deliveries::Unsettled;
use super::{Channel, DeliverySettlement, Mode, give_back};
use crate::pending_authorisation::RIGHTS_FORGOTTEN;

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
    /// Holds a message until commit. Errors in it are reported now, as by RabbitMQ.
    pub(super) fn publish(
        &mut self,
        publisher: &mut Publisher,
        message: Publish<'_>,
        mandatory: bool,
        now: Timestamp,
    ) -> Result<(), Fault> {
        publisher.hold(message, now)?;
        let body = match message.body {
            Body::Copied(bytes) => Bytes::copy_from_slice(bytes),
            Body::Chunks([chunk]) => chunk.clone(),
            Body::Chunks(chunks) => Bytes::from(chunks.concat()),
        };
        self.bytes += size_of::<TransactionPublish>() + message.properties.len() + body.len();
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
        self.ask_about_transaction(context)?;
        let transaction = self.take_transaction()?;
        for buffered in &transaction.publishes {
            match self
                .publisher
                .get(context, self.number)
                .publish_in_transaction(buffered.message(), context.now)
            {
                Ok(true) => {}
                Ok(false) => self.is_unroutable(context, buffered.message(), buffered.mandatory),
                Err(BrokerError::NoExchange { .. })
                    if context.vhost.compatibility().commits_to_deleted_exchanges() =>
                {
                    self.is_unroutable(context, buffered.message(), buffered.mandatory);
                }
                Err(error) => {
                    // The channel is about to close, which requeues its deliveries.
                    self.deliveries.restore(transaction.into_unsettled());
                    return Err(refused_at_commit(context, error));
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
                self.deliveries.count(Leaving::acked(unsettled.len()), context.now);
            }
            give_back(unsettled, how, context);
            self.deliveries.resume(context.now);
        }
        // The settlements were written to the log last.
        let settled = context.store().filter(|_| settles).map(|store| store.end());
        context.hold_until(settled.max(flushed.until));
        context.send(self.number, tx::CommitOk {});
        Ok(())
    }

    pub(super) fn tx_rollback(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let transaction = self.take_transaction()?;
        self.deliveries.restore(transaction.into_unsettled());
        context.send(self.number, tx::RollbackOk {});
        Ok(())
    }

    /// Has the user's auth backend, if there is one, asked about all publishes that it has not been asked about, and refuses
    /// the transaction if one of them is refused: commit does not stop half-way.
    fn ask_about_transaction(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let Mode::Tx(transaction) = &self.mode else { return Ok(()) };
        if !context.authorised.identity().is_asked() {
            return Ok(());
        }
        let publisher = self.publisher.get(context, self.number);
        let mut is_unasked = false;
        for buffered in &transaction.publishes {
            match publisher.check(buffered.message()) {
                Err(BrokerError::Unasked) => is_unasked = true,
                Err(error) if error.reply_code() == ReplyCode::AccessRefused => return Err(error.into()),
                // Commit meets any other error at its place.
                _ => {}
            }
        }
        if is_unasked { Err(BrokerError::Unasked.into()) } else { Ok(()) }
    }

    fn take_transaction(&mut self) -> Result<ChannelTransaction, Fault> {
        match &mut self.mode {
            Mode::Tx(transaction) => Ok(std::mem::take(&mut **transaction)),
            _ => Err(Fault::new(ReplyCode::PreconditionFailed, "channel is not transactional")),
        }
    }
}

/// The fault for a publish that is refused once its transaction has been taken apart: that cannot be repeated. The user's
/// auth backend can only be missing then if all its answers were forgotten a moment ago.
fn refused_at_commit(context: &ChannelContext, error: BrokerError) -> Fault {
    if error == BrokerError::Unasked {
        context.authorised.identity().end_operation();
        return Fault::new(ReplyCode::AccessRefused, RIGHTS_FORGOTTEN);
    }
    error.into()
}
