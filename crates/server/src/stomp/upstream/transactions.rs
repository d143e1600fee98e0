//! BEGIN to COMMIT: messages and settlements that are sent upstream together.
//!
//! As in RabbitMQ's adapter, none of them is sent before COMMIT.

use stomp::StompFault;
use stomp::server::{Settle, TransactionId};

use super::deferred::DeferredRequest;
use super::session::UpstreamStompSession;
use crate::stomp::transaction::{TransactionMessage, check_bytes};

/// The messages and settlements that wait for COMMIT.
#[derive(Default)]
pub(super) struct UpstreamTransaction {
    messages: Vec<TransactionMessage>,
    settlements: Vec<(Settle, Vec<u64>)>,
}

impl UpstreamTransaction {
    /// Keeps the settlement of these deliveries until COMMIT.
    pub(super) fn hold_settlement(&mut self, settle: Settle, tags: Vec<u64>) {
        self.settlements.push((settle, tags));
    }
}

impl UpstreamStompSession {
    /// Keeps a message until COMMIT.
    pub(super) fn hold(&mut self, id: TransactionId, message: TransactionMessage) -> Result<(), StompFault> {
        let bytes = message.bytes();
        check_bytes(self.transaction_bytes + bytes)?;
        if let Some(transaction) = self.transactions.get_mut(&id) {
            self.transaction_bytes += bytes;
            transaction.messages.push(message);
        }
        Ok(())
    }

    /// Commits a transaction: publishes its messages, over as many turns as the pool's capacity takes. With a receipt
    /// they are confirmed.
    pub(super) fn commit(&mut self, id: TransactionId, receipt: Option<&str>) {
        let UpstreamTransaction { messages, settlements } = self.take_transaction(id).unwrap_or_default();
        if receipt.is_some() && !messages.is_empty() {
            self.select_confirms();
        }
        self.deferred = Some(DeferredRequest::Commit {
            messages: messages.into(),
            settlements,
            receipt: receipt.map(Into::into),
            published: self.confirms.last(),
            is_refused: false,
        });
        self.continue_deferred();
        if self.deferred.is_some() {
            self.outbox.nudge();
        }
    }

    /// Aborts a transaction: its deliveries are unsettled again.
    pub(super) fn abort(&mut self, id: TransactionId) {
        let Some(transaction) = self.take_transaction(id) else { return };
        for (Settle { subscription, .. }, tags) in transaction.settlements {
            if self.subscriptions.contains_key(&subscription) {
                self.unsettled.restore(&tags, subscription);
            } else {
                self.requeue(&tags);
            }
        }
    }

    fn take_transaction(&mut self, id: TransactionId) -> Option<UpstreamTransaction> {
        let transaction = self.transactions.remove(&id)?;
        self.transaction_bytes -= transaction.messages.iter().map(TransactionMessage::bytes).sum::<usize>();
        Some(transaction)
    }
}
