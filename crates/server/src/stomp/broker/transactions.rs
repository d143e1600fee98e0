//! BEGIN to COMMIT: messages and settlements that take effect together.
//!
//! As in RabbitMQ, whose adapter keeps the frames until COMMIT and then handles them, no message is routed and no right
//! is checked before. All messages are validated before the first is published, so that a failing commit has no effect. A
//! commit takes as many turns as it needs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use amqp::error::{Fault, ReplyCode};
use broker::{BrokerError, DiskPoint, Lsn, Publish, Returned};
use stomp::StompFault;
use stomp::server::{Settle, TransactionId};
use sync::work;

use super::session::BrokerStompSession;
use super::subscribing::settlement_of;
use crate::amqp::deliveries::{ChannelTeardown, CommittedSettlements, DeliverySettlement, HeldSettlement};
use crate::stomp::session::{of_fault, unknown_delivery};
use crate::stomp::transaction::{TransactionMessage, check_bytes};

/// The messages and settlements that wait for COMMIT.
#[derive(Default)]
pub(super) struct StompTransaction {
    messages: Vec<TransactionMessage>,
    settlements: Vec<TransactionSettlement>,
}

/// Deliveries that the client has acknowledged or rejected.
struct TransactionSettlement {
    subscription: u64,
    held: HeldSettlement,
}

impl From<TransactionSettlement> for HeldSettlement {
    fn from(settlement: TransactionSettlement) -> Self {
        settlement.held
    }
}

impl StompTransaction {
    /// Discards a transaction whose subscriptions end: its deliveries are to be requeued.
    pub(super) fn give_up(self, teardown: &mut ChannelTeardown) {
        self.settlements.into_iter().for_each(|settlement| teardown.add_held(settlement.held.unsettled));
    }
}

/// A transaction that is being committed.
pub(super) struct StompCommit {
    /// Messages that have not been published yet.
    messages: VecDeque<TransactionMessage>,
    /// Number of validated messages. Publishing starts once all are valid.
    checked: usize,
    /// The log position up to which the published messages have to be on disk.
    published: Option<Lsn>,
    /// Full queues have refused some of the messages.
    is_partial: bool,
    /// They follow the messages.
    settlements: CommittedSettlements<TransactionSettlement>,
}

impl StompCommit {
    /// Gives up the rest of a commit that has failed: the deliveries are to be requeued.
    pub(super) fn give_up(mut self, teardown: &mut ChannelTeardown) {
        self.settlements.take_unsettled().for_each(|unsettled| teardown.add_held(unsettled));
    }
}

/// The outcome of a commit.
#[derive(Default)]
pub(super) struct Committed {
    /// The changes to wait for.
    pub(super) until: DiskPoint,
    /// Whether full queues have refused some of the messages.
    pub(super) is_partial: bool,
}

impl BrokerStompSession {
    /// Keeps a message until COMMIT.
    pub(super) fn hold(
        &mut self,
        id: TransactionId,
        buffered: TransactionMessage,
        message: &Publish<'_>,
    ) -> Result<(), StompFault> {
        self.publisher.check(*message).map_err(of_fault)?;
        let bytes = buffered.bytes();
        check_bytes(self.transaction_bytes + bytes)?;
        if let Some(transaction) = self.transactions.get_mut(&id) {
            self.transaction_bytes += bytes;
            transaction.messages.push(buffered);
        }
        Ok(())
    }

    /// Keeps a settlement until COMMIT.
    pub(super) fn hold_settlement(&mut self, id: TransactionId, settle: Settle) -> Result<(), StompFault> {
        let unknown = || unknown_delivery(settle.delivery_tag);
        let own = self.subscriptions.get(&settle.subscription).ok_or_else(unknown)?;
        let unsettled = own.deliveries.hold(settle.delivery_tag, settle.cumulative).ok_or_else(unknown)?;
        let (how, deliveries) = (settlement_of(settle), Arc::clone(&own.deliveries));
        if let Some(transaction) = self.transactions.get_mut(&id) {
            let (subscription, held) = (settle.subscription, HeldSettlement { how, deliveries, unsettled });
            transaction.settlements.push(TransactionSettlement { subscription, held });
        }
        Ok(())
    }

    /// Commits a transaction, or continues the commit. Returns `None` if it takes more than the turn, and has to be
    /// called again in the next one.
    ///
    /// # Errors
    /// A fault ends the connection and the transaction. If only the user's auth backend has to be asked first, the call
    /// is repeated instead.
    pub(super) fn commit(&mut self, id: TransactionId) -> Result<Option<Committed>, StompFault> {
        let Some(mut commit) = self.commit.take().or_else(|| self.begin_commit(id)) else {
            return Ok(Some(Committed::default()));
        };
        let outcome = self.continue_commit(&mut commit);
        if !matches!(outcome, Ok(true)) {
            self.commit = Some(commit);
            return outcome.map(|_| None);
        }
        // The settlements were written to the log last.
        let settled = commit.settlements.until(self.context.store());
        let until = DiskPoint::from(settled.max(commit.published));
        Ok(Some(Committed { until, is_partial: commit.is_partial }))
    }

    fn begin_commit(&mut self, id: TransactionId) -> Option<Box<StompCommit>> {
        let StompTransaction { messages, settlements } = self.take_transaction(id)?;
        Some(Box::new(StompCommit {
            messages: messages.into(),
            checked: 0,
            published: None,
            is_partial: false,
            settlements: CommittedSettlements::new(settlements),
        }))
    }

    /// Continues a commit until the turn is over; returns whether it is done.
    fn continue_commit(&mut self, commit: &mut StompCommit) -> Result<bool, StompFault> {
        if !self.validate(commit)? || !self.publish_committed(commit)? {
            return Ok(false);
        }
        Ok(commit.settlements.proceed(self.context.now))
    }

    /// Validates messages of a commit until the turn is over; returns whether all are valid.
    fn validate(&self, commit: &mut StompCommit) -> Result<bool, StompFault> {
        let (mut checked, mut first_unasked) = (commit.checked, None);
        for message in commit.messages.range(checked.min(commit.messages.len())..) {
            work::charge(VALIDATION, 1);
            match self.publisher.check(message.message()) {
                Err(BrokerError::Unasked) => first_unasked = first_unasked.or(Some(checked)),
                valid => valid.map_err(of_fault)?,
            }
            checked += 1;
            if work::is_turn_over() {
                break;
            }
        }
        commit.checked = first_unasked.unwrap_or(checked);
        match first_unasked {
            Some(_) => Err(of_fault(BrokerError::Unasked)),
            None => Ok(checked >= commit.messages.len()),
        }
    }

    /// Publishes a commit's messages until the turn is over; returns whether all queues have all of them.
    fn publish_committed(&mut self, commit: &mut StompCommit) -> Result<bool, StompFault> {
        // Those of the last turn come first.
        if !self.flush_committed(commit) {
            return Ok(false);
        }
        while let Some(next) = commit.messages.front() {
            let published = self.publish(next.message(), next.receipt.as_deref());
            published.map_err(|fault| self.refused_at_commit(fault))?;
            commit.messages.pop_front();
            if work::is_turn_over() {
                return Ok(false);
            }
        }
        Ok(self.flush_committed(commit))
    }

    fn flush_committed(&mut self, commit: &mut StompCommit) -> bool {
        let flushed = self.flush_published();
        commit.published = commit.published.max(flushed.until);
        commit.is_partial |= !flushed.refused.is_empty();
        !flushed.unfinished
    }

    /// The fault for a message that is refused after publishing has begun, when the commit cannot be repeated.
    /// `is_unasked` is possible here only if all answers of the user's auth backend have just been forgotten.
    fn refused_at_commit(&self, fault: StompFault) -> StompFault {
        if !fault.is_unasked {
            return fault;
        }
        self.context.authorised.identity().end_operation();
        of_fault(Fault::new(ReplyCode::AccessRefused, RIGHTS_FORGOTTEN))
    }

    /// Aborts a transaction: its deliveries are unsettled again.
    pub(super) fn abort(&mut self, id: TransactionId) {
        let Some(transaction) = self.take_transaction(id) else { return };
        // Restored together, since each restore goes over all deliveries of the subscription.
        let mut back = BTreeMap::new();
        for TransactionSettlement { subscription, held } in transaction.settlements {
            let of_subscription = back.entry(subscription).or_insert_with(|| (held.deliveries, Vec::new()));
            of_subscription.1.extend(held.unsettled);
        }
        for (subscription, (deliveries, unsettled)) in back {
            if self.subscriptions.contains_key(&subscription) {
                deliveries.restore(unsettled);
            } else {
                // The subscription has ended, so they are requeued.
                DeliverySettlement::Requeue(Returned::Failed).apply_all(unsettled, self.context.now);
            }
        }
    }

    fn take_transaction(&mut self, id: TransactionId) -> Option<StompTransaction> {
        let transaction = self.transactions.remove(&id)?;
        self.transaction_bytes -= transaction.messages.iter().map(TransactionMessage::bytes).sum::<usize>();
        Some(transaction)
    }
}

/// Nanoseconds charged for the validation of a message.
const VALIDATION: u32 = 400;

/// The text of a refused commit during which all answers of the user's auth backend were forgotten.
const RIGHTS_FORGOTTEN: &str = "the rights of the user were forgotten during the commit";
