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

/// When a receipt is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Until {
    /// That many of the methods that have an answer were answered.
    Answered(u64),
    /// All messages up to the last of these numbers are confirmed. The receipt is for these: one of a SEND, all of a COMMIT.
    Confirmed(RangeInclusive<u64>),
    /// The subscription's consumer is yet to be made: that is due when the receipt is the first that waits.
    Consumes(u64),
    /// The key of this subscription, which shares a queue with others, is bound.
    Subscribed(u64),
    /// Everything is done, and the channel is closed.
    Closed,
}

impl UpstreamReceipts {
    pub(super) fn push(&mut self, receipt: Receipt, until: Until) {
        self.bytes += Receipt::cost(&receipt.id);
        self.waiting.push_back((receipt, until));
    }

    /// A queue has refused a message: the receipts that are for it become refusals.
    pub(super) fn refuse(&mut self, number: u64) {
        for (receipt, until) in &mut self.waiting {
            receipt.is_refused |= matches!(until, Until::Confirmed(own) if own.contains(&number));
        }
    }

    /// When the first receipt is due.
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
