//! Receipts that wait until what they promise is kept.
//!
//! They go out in the order of the requests: who has one knows that everything before it has been done, too.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Flushed, Lsn, Store, Ticket, Waiter};

/// Bytes of receipts, with what is kept of each, that may wait before nothing more is read from the client.
const MAX_WAITING: usize = 256 * 1024;

/// The receipts of one connection that wait.
#[derive(Default)]
pub(super) struct Receipts {
    waiting: VecDeque<Receipt>,
    bytes: usize,
    /// Of messages that the publisher has not handed over: the place of each since the last time.
    unflushed: Vec<(u64, Box<str>)>,
}

/// A receipt that a client asked for.
#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) id: Box<str>,
    until: Until,
    /// A full queue has not taken the message.
    pub(super) is_refused: bool,
    /// It is about a message.
    pub(super) is_confirm: bool,
    /// The number of the subscription that it is about: its messages come behind the receipt.
    pub(super) starts: Option<u64>,
}

/// What has to be on disk, of definitions and of messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Until {
    pub(super) ticket: Option<Ticket>,
    pub(super) lsn: Option<Lsn>,
}

impl Until {
    /// Until definitions are kept.
    pub(super) fn ticket(ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), lsn: None }
    }

    fn is_over(&self, store: &Store) -> bool {
        self.ticket.is_none_or(|ticket| store.catalogue().is_committed(ticket))
            && self.lsn.is_none_or(|lsn| lsn <= store.durable())
    }
}

impl Receipts {
    /// A message with a receipt was given to the publisher, which had `before` messages since it was flushed.
    pub(super) fn published(&mut self, id: &str, before: u64) {
        self.bytes += cost(id);
        self.unflushed.push((before, id.into()));
    }

    /// The publisher was flushed.
    pub(super) fn flushed(&mut self, flushed: &Flushed) {
        for (place, id) in self.unflushed.drain(..) {
            let is_refused = flushed.refused.binary_search(&place).is_ok();
            let until = Until { lsn: flushed.until.filter(|_| !is_refused), ticket: None };
            self.waiting.push_back(Receipt { id, until, is_refused, is_confirm: true, starts: None });
        }
    }

    /// A request is done, but for `until`.
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

    /// The next receipt that need not wait any more. If the first that is there has to, `waiter` is woken when it is worth
    /// asking again.
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

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unflushed.is_empty()
    }

    /// Whether the client may ask for more.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < MAX_WAITING
    }
}

fn cost(id: &str) -> usize {
    id.len() + size_of::<Receipt>()
}
