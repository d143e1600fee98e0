//! BEGIN to COMMIT: messages and settlements that are sent upstream together.
//!
//! As in RabbitMQ's adapter, none of them is sent before COMMIT.

use stomp::StompFault;
use stomp::server::{Settle, TransactionId};

use super::receipts::Until;
use super::session::UpstreamStompSession;
use super::unsettled::SettledRun;
use crate::stomp::transaction::{MAX_HELD_BYTES, TransactionMessage, too_large};

/// The messages and settlements that wait for COMMIT.
#[derive(Default)]
pub(super) struct UpstreamTransaction {
    messages: Vec<TransactionMessage>,
    settlements: Vec<(Settle, Vec<u64>)>,
}

impl UpstreamTransaction {
    /// Holds the settlement of these deliveries.
    pub(super) fn hold_settlement(&mut self, settle: Settle, tags: Vec<u64>) {
        self.settlements.push((settle, tags));
    }

    /// The deliveries whose settlement is held.
    pub(super) fn held(&self) -> impl Iterator<Item = u64> {
        self.settlements.iter().flat_map(|(_, tags)| tags.iter().copied())
    }
}

impl UpstreamStompSession {
    /// Holds a message until COMMIT.
    pub(super) fn hold(&mut self, id: TransactionId, message: TransactionMessage) -> Result<(), StompFault> {
        let bytes = message.bytes();
        if self.held_bytes + bytes > MAX_HELD_BYTES {
            return Err(too_large());
        }
        if let Some(transaction) = self.transactions.get_mut(&id) {
            self.held_bytes += bytes;
            transaction.messages.push(message);
        }
        Ok(())
    }

    /// Commits a transaction. Returns when its receipt is due: if it `has_receipt`, once its messages are confirmed.
    pub(super) fn commit(&mut self, id: TransactionId, has_receipt: bool) -> Until {
        let Some(UpstreamTransaction { messages, settlements }) = self.take_transaction(id) else {
            return self.all_answered();
        };
        if has_receipt && !messages.is_empty() {
            self.select_confirms();
        }
        for held in &messages {
            self.publish(held.message(), held.receipt.as_deref());
        }
        // One by one: those of the transaction that follow may be settled in another way.
        for (settle, tags) in settlements {
            tags.iter()
                .for_each(|tag| self.apply_to(settle, SettledRun { delivery_tag: *tag, multiple: false }));
        }
        if has_receipt && !messages.is_empty() {
            Until::Confirmed(self.confirms.last())
        } else {
            self.all_answered()
        }
    }

    /// Aborts a transaction: its deliveries are as before.
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
        self.held_bytes -= transaction.messages.iter().map(TransactionMessage::bytes).sum::<usize>();
        Some(transaction)
    }
}
