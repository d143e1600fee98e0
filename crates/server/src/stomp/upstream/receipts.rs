//! Receipts that wait until the upstream has answered or confirmed their requests. They are sent in the order of the
//! requests.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::stomp::session::{MAX_WAITING_RECEIPTS, Receipt};

/// The waiting receipts of one connection.
#[derive(Default)]
pub(super) struct UpstreamReceipts {
    waiting: VecDeque<(Receipt, Until)>,
    bytes: usize,
}

/// The condition for sending a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Until {
    /// All methods up to this number are answered.
    Answered(u64),
    /// All messages up to the end of the range are confirmed. The range has the receipt's own messages: one for SEND, all
    /// for COMMIT.
    Confirmed(RangeInclusive<u64>),
    /// The subscription's consumer has not been requested, which happens when this receipt is the first in the queue.
    Consumes(u64),
    /// The key of this subscription to the shared queue is bound.
    Subscribed(u64),
    /// Everything is done, and the channel is closed.
    Closed,
}

impl UpstreamReceipts {
    pub(super) fn push(&mut self, receipt: Receipt, until: Until) {
        self.bytes += Receipt::cost(&receipt.id);
        self.waiting.push_back((receipt, until));
    }

    /// Called when a queue has refused a message: its receipts become refusals.
    pub(super) fn refuse(&mut self, number: u64) {
        for (receipt, until) in &mut self.waiting {
            receipt.is_refused |= matches!(until, Until::Confirmed(own) if own.contains(&number));
        }
    }

    /// The condition of the first receipt.
    pub(super) fn first(&mut self) -> Option<&mut Until> {
        self.waiting.front_mut().map(|(_, until)| until)
    }

    /// Takes the first receipt.
    pub(super) fn take(&mut self) -> Option<Receipt> {
        let (receipt, _) = self.waiting.pop_front()?;
        self.bytes -= Receipt::cost(&receipt.id);
        Some(receipt)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the client may send more requests.
    pub(super) fn has_capacity(&self) -> bool {
        self.bytes < MAX_WAITING_RECEIPTS
    }
}
