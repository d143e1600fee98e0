//! tx.*: publishes and settlements that take effect together, at commit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use amqp::error::{Fault, ReplyCode};
use amqp::method::tx;
use broker::{Body, Flushed, HeldRoute, Publish, Publisher, Timestamp};
use bytes::Bytes;
use sync::work;

use super::super::broker_session::ChannelContext;
use super::super::deliveries::{CommittedSettlements, HeldSettlement, Unsettled};
use super::{Channel, Mode};

/// Bytes that the publishes of one transaction may take. They are held in memory until commit, and a client
/// that never commits must not fill it: enough for several messages of the default maximum size.
const MAX_TRANSACTION_BYTES: usize = 128 * 1024 * 1024;

/// The publishes and settlements that wait for tx.commit.
#[derive(Default)]
pub(super) struct ChannelTransaction {
    publishes: Vec<TransactionPublish>,
    /// Bytes in `publishes`.
    bytes: usize,
    settlements: Vec<HeldSettlement>,
    /// The last transaction, from a tx.commit that takes more than a turn until it is answered. No frame is taken meanwhile.
    commit: Option<Box<Commit>>,
}

/// A transaction that is being committed, which may take several turns.
struct Commit {
    /// Publishes that have not been published yet.
    publishes: VecDeque<TransactionPublish>,
    /// The result of the publishes, once all queues have them.
    flushed: Option<Flushed>,
    /// They follow the publishes.
    settlements: CommittedSettlements<HeldSettlement>,
}

impl From<ChannelTransaction> for Commit {
    fn from(transaction: ChannelTransaction) -> Self {
        Self {
            publishes: transaction.publishes.into(),
            flushed: None,
            settlements: CommittedSettlements::new(transaction.settlements),
        }
    }
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
    /// Routes a message and keeps it until commit. Errors in the message are reported now, as by RabbitMQ.
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
    pub(super) fn settle(&mut self, settlement: HeldSettlement) {
        self.settlements.push(settlement);
    }

    /// Discards what waits, but no commit that has begun. Returns the number of the deliveries that are to be as before, and
    /// these.
    pub(super) fn discard(&mut self) -> (usize, impl Iterator<Item = (u64, Unsettled)> + use<>) {
        let commit = self.commit.take();
        let discarded = std::mem::replace(self, Self { commit, ..Self::default() });
        let count = discarded.settlements.iter().map(|held| held.unsettled.len()).sum();
        (count, discarded.settlements.into_iter().flat_map(|held| held.unsettled))
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

    /// Begins a commit. If a turn is not enough, [`Channel::flush`] continues.
    pub(super) fn tx_commit(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let transaction = self.transaction()?;
        let commit = std::mem::take(transaction).into();
        transaction.commit = Some(Box::new(commit));
        self.continue_commit(context).map(drop)
    }

    /// Whether a method has to be continued in the connection's next turn.
    pub(crate) fn has_unfinished_method(&self, context: &ChannelContext) -> bool {
        context.is_settling(self.number) || self.is_committing()
    }

    pub(super) fn is_committing(&self) -> bool {
        matches!(&self.mode, Mode::Tx(transaction) if transaction.commit.is_some())
    }

    fn transaction(&mut self) -> Result<&mut ChannelTransaction, Fault> {
        match &mut self.mode {
            Mode::Tx(transaction) => Ok(transaction),
            _ => Err(Fault::new(ReplyCode::PreconditionFailed, "channel is not transactional")),
        }
    }

    /// Continues a commit until the turn is over; returns whether it is done. A commit that has begun is completed even
    /// if the channel ends, since some queues have its messages.
    pub(super) fn continue_commit(&mut self, context: &ChannelContext) -> Result<bool, Fault> {
        let Some(mut commit) = self.transaction()?.commit.take() else { return Ok(true) };
        if !self.publish_held(context, &mut commit)? {
            self.transaction()?.commit = Some(commit);
            return Ok(false);
        }
        if !commit.settlements.proceed(context.now) {
            self.transaction()?.commit = Some(commit);
            return Ok(false);
        }
        let flushed = commit.flushed.unwrap_or_default();
        // The settlements were written to the log last.
        let settled = commit.settlements.until(context.store());
        context.hold_until(settled.max(flushed.until));
        if !flushed.refused.is_empty() {
            // The other publishes have been committed, as in RabbitMQ.
            return Err(Fault::new(ReplyCode::PreconditionFailed, "partial tx completion"));
        }
        context.send(self.number, tx::CommitOk {});
        Ok(true)
    }

    /// Publishes the messages of a commit until the turn is over; returns whether all queues have all of them.
    fn publish_held(&mut self, context: &ChannelContext, commit: &mut Commit) -> Result<bool, Fault> {
        while let Some(next) = commit.publishes.front() {
            let publisher = self.publisher.get(context, self.number);
            match publisher.publish_held(next.message(), &next.route, context.now) {
                Ok(None) => return Ok(false),
                Ok(Some(true)) => {}
                Ok(Some(false)) => self.is_unroutable(context, next.message(), next.mandatory),
                Err(error) => {
                    // The channel is about to close, which requeues its deliveries.
                    self.deliveries.restore(commit.settlements.take_unsettled().flatten().collect());
                    return Err(error.into());
                }
            }
            commit.publishes.pop_front();
            if work::is_turn_over() {
                return Ok(false);
            }
        }
        if commit.flushed.is_none() {
            let flushed = self.publisher.flush(context.now).unwrap_or_default();
            if flushed.unfinished {
                return Ok(false);
            }
            context.handed_over(&flushed, &self.view);
            self.count_published(context, flushed.count);
            commit.flushed = Some(flushed);
        }
        Ok(true)
    }

    pub(super) fn tx_rollback(&mut self, context: &ChannelContext) -> Result<(), Fault> {
        let (_, unsettled) = self.transaction()?.discard();
        self.deliveries.restore(unsettled.collect());
        context.send(self.number, tx::RollbackOk {});
        Ok(())
    }
}
