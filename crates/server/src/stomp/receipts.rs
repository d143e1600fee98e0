//! Receipts that wait until their requests are on disk.
//!
//! They are sent in the order of the requests: a client that has a receipt knows that all earlier requests are
//! done, too.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Flushed, Lsn, Store, Ticket, Waiter};

/// Bytes of waiting receipts, including their entries, at which the client is no longer read.
const MAX_WAITING: usize = 256 * 1024;

/// The waiting receipts of one connection.
#[derive(Default)]
pub(super) struct Receipts {
    waiting: VecDeque<Receipt>,
    bytes: usize,
    /// Receipts for messages that the publisher has not flushed, each with the message's index since the last flush.
    unflushed: Vec<(u64, Box<str>)>,
}

/// A receipt that a client asked for.
#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) id: Box<str>,
    until: Until,
    /// A full queue has refused the message.
    pub(super) is_refused: bool,
    /// It confirms a message.
    pub(super) is_confirm: bool,
    /// The number of the subscription that it confirms, whose messages are sent after the receipt.
    pub(super) starts: Option<u64>,
}

/// The changes to definitions and to messages that must be on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Until {
    pub(super) ticket: Option<Ticket>,
    pub(super) lsn: Option<Lsn>,
}

impl Until {
    /// Waits for a change to definitions.
    pub(super) fn ticket(ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), lsn: None }
    }

    fn is_over(&self, store: &Store) -> bool {
        self.ticket.is_none_or(|ticket| store.catalogue().is_committed(ticket))
            && self.lsn.is_none_or(|lsn| lsn <= store.durable())
    }
}

impl Receipts {
    /// Called when a message with a receipt was given to the publisher, as message number `before` since its
    /// last flush.
    pub(super) fn published(&mut self, id: &str, before: u64) {
        self.bytes += cost(id);
        self.unflushed.push((before, id.into()));
    }

    /// Called when the publisher was flushed.
    pub(super) fn flushed(&mut self, flushed: &Flushed) {
        for (place, id) in self.unflushed.drain(..) {
            let is_refused = flushed.refused.binary_search(&place).is_ok();
            let until = Until { lsn: flushed.until.filter(|_| !is_refused), ticket: None };
            self.waiting.push_back(Receipt { id, until, is_refused, is_confirm: true, starts: None });
        }
    }

    /// Called when a request is done except for `until`.
    pub(super) fn done(&mut self, id: &str, until: Until, starts: Option<u64>) {
        self.bytes += cost(id);
        self.waiting.push_back(Receipt {
            id: id.into(),
            until,
            is_refused: false,
            is_confirm: false,
            starts,
        });
    }

    /// The next receipt that need not wait any more. If the first one has to wait, `waiter` is woken when it is
    /// worth asking again.
    pub(super) fn next(&mut self, store: Option<&Arc<Store>>, waiter: &Arc<dyn Waiter>) -> Option<Receipt> {
        let first = self.waiting.front()?;
        if let Some(store) = store
            && !first.until.is_over(store)
        {
            let Until { ticket, lsn } = first.until;
            if let Some(ticket) = ticket.filter(|ticket| !store.catalogue().is_committed(*ticket)) {
                store.catalogue().wait(ticket, Arc::clone(waiter));
            }
            if let Some(lsn) = lsn.filter(|lsn| *lsn > store.durable()) {
                store.wait(lsn, Arc::clone(waiter));
            }
            return None;
        }
        let receipt = self.waiting.pop_front()?;
        self.bytes -= cost(&receipt.id);
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(receipt)
    }

    /// Whether no receipt waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unflushed.is_empty()
    }

    /// Whether the client may send more requests.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < MAX_WAITING
    }
}

fn cost(id: &str) -> usize {
    id.len() + size_of::<Receipt>()
}
