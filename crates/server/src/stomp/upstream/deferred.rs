//! Requests that take more than one turn, because they wait for an answer or are large. No other request is taken
//! meanwhile.

use std::collections::VecDeque;

use stomp::server::{Settle, TransactionId};

use super::receipts::Until;
use super::session::UpstreamStompSession;
use crate::stomp::session::Receipt;
use crate::stomp::transaction::TransactionMessage;

/// A request that is in progress.
pub(super) enum DeferredRequest {
    /// A SEND that waits for the declaration of its reply queue.
    Send { message: TransactionMessage, transaction: Option<TransactionId> },
    /// A COMMIT whose messages are being published.
    Commit {
        messages: VecDeque<TransactionMessage>,
        settlements: Vec<(Settle, Vec<u64>)>,
        receipt: Option<Box<str>>,
        /// Number of the last message published before the commit.
        published: u64,
        /// Whether a queue has refused one of the commit's messages.
        is_refused: bool,
    },
}

impl UpstreamStompSession {
    /// Continues the deferred request as far as possible.
    pub(super) fn continue_deferred(&mut self) {
        match self.deferred.take() {
            Some(DeferredRequest::Commit { mut messages, settlements, receipt, published, is_refused }) => {
                while self.client.has_capacity()
                    && let Some(buffered) = messages.pop_front()
                {
                    self.publish(buffered.message(), buffered.receipt.as_deref());
                }
                if messages.is_empty() {
                    settlements.iter().for_each(|(settle, tags)| self.apply(*settle, tags));
                    let until = match self.confirming {
                        true => Until::Confirmed(published + 1..=self.confirms.last()),
                        false => self.all_answered(),
                    };
                    if let Some(id) = receipt {
                        self.receipts
                            .push(Receipt { id, is_refused, is_confirm: false, starts: None }, until);
                    }
                } else {
                    let left =
                        DeferredRequest::Commit { messages, settlements, receipt, published, is_refused };
                    self.deferred = Some(left);
                }
            }
            other => self.deferred = other,
        }
    }

    /// Whether the deferred request can continue without an answer of the upstream.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(self.deferred, Some(DeferredRequest::Commit { .. })) && self.client.has_capacity()
    }
}

impl DeferredRequest {
    /// Called when a queue has refused a message. If it is one of a COMMIT whose receipt does not wait yet, the receipt
    /// becomes a refusal.
    pub(super) fn refuse(&mut self, number: u64) {
        if let Self::Commit { published, is_refused, .. } = self {
            *is_refused |= number > *published;
        }
    }
}
