//! BEGIN to COMMIT: messages and settlements that take effect together.
//!
//! As in RabbitMQ, none of them takes effect before COMMIT. All messages are validated before the first is
//! published, so that a commit that fails has no effect.

use std::sync::Arc;

use amqp::error::{Fault, ReplyCode};
use broker::{BrokerError, DiskPoint, Publish};
use stomp::StompFault;
use stomp::server::{Settle, TransactionId};

use super::session::BrokerStompSession;
use super::subscribing::StompSettlement;
use crate::amqp::deliveries::{ChannelTeardown, Deliveries, Unsettled};
use crate::stomp::session::{of_fault, unknown_delivery};
use crate::stomp::transaction::{TransactionMessage, check_bytes};

/// The messages and settlements that wait for COMMIT.
#[derive(Default)]
pub(super) struct StompTransaction {
    messages: Vec<TransactionMessage>,
    settlements: Vec<TransactionSettlement>,
}

/// Deliveries that the client has acknowledged or rejected. Until COMMIT they remain its own and count against
/// its prefetch.
struct TransactionSettlement {
    how: StompSettlement,
    subscription: u64,
    deliveries: Arc<Deliveries>,
    unsettled: Vec<(u64, Unsettled)>,
}

impl StompTransaction {
    /// Discards a transaction whose subscriptions end: its deliveries are to be requeued.
    pub(super) fn give_up(self, departure: &mut ChannelTeardown) {
        self.settlements.into_iter().for_each(|settlement| departure.add(settlement.unsettled));
    }
}

impl BrokerStompSession {
    /// Holds a message until COMMIT.
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

    /// Holds a settlement until COMMIT.
    pub(super) fn hold_settlement(&mut self, id: TransactionId, settle: Settle) -> Result<(), StompFault> {
        let unknown = || unknown_delivery(settle.delivery_tag);
        let own = self.subscriptions.get(&settle.subscription).ok_or_else(unknown)?;
        let unsettled = own.deliveries.hold(settle.delivery_tag, settle.cumulative).ok_or_else(unknown)?;
        let (how, deliveries) = (StompSettlement::of(settle), Arc::clone(&own.deliveries));
        if let Some(transaction) = self.transactions.get_mut(&id) {
            let subscription = settle.subscription;
            transaction.settlements.push(TransactionSettlement { how, subscription, deliveries, unsettled });
        }
        Ok(())
    }

    /// Commits a transaction. Returns the changes to wait for.
    pub(super) fn commit(&mut self, id: TransactionId) -> Result<DiskPoint, StompFault> {
        let messages = self.transactions.get(&id).map_or(&[][..], |transaction| &transaction.messages);
        // A fault ends the connection, and the transaction with it.
        let mut is_unasked = false;
        for buffered in messages {
            match self.publisher.check(buffered.message()) {
                Err(BrokerError::Unasked) => is_unasked = true,
                checked => checked.map_err(of_fault)?,
            }
        }
        if is_unasked {
            return Err(of_fault(BrokerError::Unasked));
        }
        let Some(StompTransaction { messages, settlements }) = self.take_transaction(id) else {
            return Ok(DiskPoint::default());
        };
        for buffered in &messages {
            let published = self.publish(buffered.message(), buffered.receipt.as_deref());
            published.map_err(|fault| self.refused_at_commit(fault))?;
        }
        let published = self.flush_published();
        let now = self.context.now;
        let settles = !settlements.is_empty();
        for TransactionSettlement { how, deliveries, unsettled, .. } in settlements {
            deliveries.release(&unsettled);
            how.apply(unsettled, now);
            deliveries.resume(now);
        }
        // The settlements were written to the log last.
        let settled = self.context.store().filter(|_| settles).map(|store| store.end());
        Ok(DiskPoint::from(settled.max(published)))
    }

    /// The fault for a message that is refused once its transaction has been taken apart: that cannot be repeated. The user's
    /// auth backend can only be missing then if all its answers were forgotten a moment ago.
    fn refused_at_commit(&self, fault: StompFault) -> StompFault {
        if !fault.is_unasked {
            return fault;
        }
        self.context.authorised.identity().end_operation();
        of_fault(Fault::new(ReplyCode::AccessRefused, RIGHTS_FORGOTTEN))
    }

    /// Aborts a transaction: its deliveries are as before.
    pub(super) fn abort(&mut self, id: TransactionId) {
        let Some(transaction) = self.take_transaction(id) else { return };
        for TransactionSettlement { subscription, deliveries, unsettled, .. } in transaction.settlements {
            if self.subscriptions.contains_key(&subscription) {
                deliveries.restore(unsettled);
            } else {
                StompSettlement::Requeue.apply(unsettled, self.context.now);
            }
        }
    }

    fn take_transaction(&mut self, id: TransactionId) -> Option<StompTransaction> {
        let transaction = self.transactions.remove(&id)?;
        self.transaction_bytes -= transaction.messages.iter().map(TransactionMessage::bytes).sum::<usize>();
        Some(transaction)
    }
}

/// The text of the refusal of a commit during which all answers of the user's auth backend were forgotten.
const RIGHTS_FORGOTTEN: &str = "the rights of the user were forgotten during the commit";
