//! Receipts that wait until their requests' changes are on disk.
//!
//! They are sent in the order of the requests, so that a receipt implies that all earlier requests are done as well.

use std::sync::Arc;

use broker::{AnswerQueue, DiskPoint, Flushed, Store, Waiter};

use crate::stomp::session::{MAX_WAITING_RECEIPTS, Receipt};

/// The waiting receipts of one connection.
#[derive(Default)]
pub(super) struct Receipts {
    waiting: AnswerQueue<Receipt>,
    bytes: usize,
    /// Receipts for messages that the publisher has not flushed: the message's index since the last flush, and the
    /// receipt.
    unflushed: Vec<(u64, Box<str>)>,
}

impl Receipts {
    /// Called when a message with a receipt was passed to the publisher, after `before` others since its last flush.
    pub(super) fn published(&mut self, id: &str, before: u64) {
        self.bytes += Receipt::cost(id);
        self.unflushed.push((before, id.into()));
    }

    /// Called when the publisher was flushed. `waiter` is woken when [`next`](Self::next) may have a receipt.
    pub(super) fn flushed(
        &mut self,
        flushed: &Flushed,
        store: Option<&Arc<Store>>,
        waiter: &Arc<dyn Waiter>,
    ) {
        for (place, id) in self.unflushed.drain(..) {
            let is_refused = flushed.refused.binary_search(&place).is_ok();
            let until = flushed.until.filter(|_| !is_refused);
            let receipt = Receipt { id, is_refused, is_confirm: true, starts: None };
            self.waiting.push(receipt, until.into(), store, waiter);
        }
    }

    /// Called when a request is done except for the writes `until`.
    pub(super) fn done(
        &mut self,
        receipt: Receipt,
        until: DiskPoint,
        (store, waiter): (Option<&Arc<Store>>, &Arc<dyn Waiter>),
    ) {
        self.bytes += Receipt::cost(&receipt.id);
        self.waiting.push(receipt, until, store, waiter);
    }

    /// The next receipt whose writes are on disk.
    pub(super) fn next(&mut self, store: Option<&Arc<Store>>) -> Option<Receipt> {
        let receipt = self.waiting.next(store)?;
        self.bytes -= Receipt::cost(&receipt.id);
        Some(receipt)
    }

    /// Whether no receipt waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unflushed.is_empty()
    }

    /// Whether the client may send more requests.
    pub(super) fn has_capacity(&self) -> bool {
        self.bytes < MAX_WAITING_RECEIPTS
    }
}
