//! BEGIN to COMMIT: messages and settlements that take effect together.
//!
//! As in RabbitMQ, none of them takes effect before COMMIT. All messages are validated before the first is
//! published, so that a commit that fails has no effect.

use std::sync::Arc;

use broker::{Body, DiskPoint, Publish, Timestamp};
use bytes::Bytes;
use stomp::StompFault;
use stomp::server::{Settle, TransactionId};

use super::session::{StompSession, of_broker};
use super::subscribing::{StompSettlement, unknown_delivery};
use crate::amqp::deliveries::{Deliveries, Unsettled};

/// Bytes that the messages of a connection's open transactions may take. They are held in memory until commit, and a
/// client that never commits must not fill it: enough for several messages of the default maximum size, as for AMQP.
const MAX_HELD_BYTES: usize = 128 * 1024 * 1024;

/// The messages and settlements that wait for COMMIT.
#[derive(Default)]
pub(super) struct StompTransaction {
    messages: Vec<TransactionMessage>,
    settlements: Vec<TransactionSettlement>,
}

/// A message that waits for COMMIT.
pub(super) struct TransactionMessage {
    exchange: Box<str>,
    routing_key: Box<str>,
    properties: Box<[u8]>,
    body: [Bytes; 1],
    receipt: Option<Box<str>>,
}

/// Deliveries that the client has acknowledged or rejected. Until COMMIT they remain its own and count against
/// its prefetch.
struct TransactionSettlement {
    how: StompSettlement,
    subscription: u64,
    deliveries: Arc<Deliveries>,
    unsettled: Vec<(u64, Unsettled)>,
}

impl TransactionMessage {
    pub(super) fn new(message: &Publish<'_>, receipt: Option<&str>) -> Self {
        let body = match message.body {
            Body::Copied(bytes) => Bytes::copy_from_slice(bytes),
            Body::Chunks([chunk]) => chunk.clone(),
            Body::Chunks(chunks) => Bytes::from(chunks.concat()),
        };
        Self {
            exchange: message.exchange.into(),
            routing_key: message.routing_key.into(),
            properties: message.properties.into(),
            body: [body],
            receipt: receipt.map(Into::into),
        }
    }

    fn message(&self) -> Publish<'_> {
        Publish {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            properties: &self.properties,
            body: Body::Chunks(&self.body),
        }
    }

    fn bytes(&self) -> usize {
        let receipt = self.receipt.as_ref().map_or(0, |receipt| receipt.len());
        size_of::<Self>()
            + self.exchange.len()
            + self.routing_key.len()
            + self.properties.len()
            + self.body[0].len()
            + receipt
    }
}

impl StompTransaction {
    /// Discards a transaction whose subscriptions end: its deliveries are requeued.
    pub(super) fn give_up(self, now: Timestamp) {
        for TransactionSettlement { unsettled, .. } in self.settlements {
            StompSettlement::Requeue.apply(unsettled, now);
        }
    }
}

impl StompSession {
    /// Holds a message until COMMIT.
    pub(super) fn hold(
        &mut self,
        id: TransactionId,
        held: TransactionMessage,
        message: &Publish<'_>,
    ) -> Result<(), StompFault> {
        self.publisher.check(*message).map_err(of_broker)?;
        let bytes = held.bytes();
        if self.held_bytes + bytes > MAX_HELD_BYTES {
            let detail =
                format!("The transactions of a connection may hold {MAX_HELD_BYTES} bytes at most\n");
            return Err(StompFault::new("Transaction too large", detail));
        }
        if let Some(transaction) = self.transactions.get_mut(&id) {
            self.held_bytes += bytes;
            transaction.messages.push(held);
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
        messages.iter().try_for_each(|held| self.publisher.check(held.message())).map_err(of_broker)?;
        let Some(StompTransaction { messages, settlements }) = self.take_transaction(id) else {
            return Ok(DiskPoint::default());
        };
        for held in &messages {
            self.publish(held.message(), held.receipt.as_deref())?;
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
        self.held_bytes -= transaction.messages.iter().map(TransactionMessage::bytes).sum::<usize>();
        Some(transaction)
    }
}
