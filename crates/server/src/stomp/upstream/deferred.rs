//! Requests that take more than one turn, because they wait for an answer or are large. Nothing more is taken from the client
//! meanwhile.

use std::collections::VecDeque;

use stomp::server::{Settle, TransactionId};

use super::receipts::Until;
use super::session::UpstreamStompSession;
use crate::stomp::session::Receipt;
use crate::stomp::transaction::TransactionMessage;

/// A request that is not done.
pub(super) enum DeferredRequest {
    /// A SEND that waits for the queue of its reply.
    Send { message: TransactionMessage, transaction: Option<TransactionId> },
    /// A COMMIT whose messages are being published.
    Commit {
        messages: VecDeque<TransactionMessage>,
        settlements: Vec<(Settle, Vec<u64>)>,
        receipt: Option<Box<str>>,
    },
}

impl UpstreamStompSession {
    /// Goes on with the deferred request, as far as that is possible.
    pub(super) fn go_on_with_deferred(&mut self) {
        match self.deferred.take() {
            Some(DeferredRequest::Commit { mut messages, settlements, receipt }) => {
                while self.client.has_room()
                    && let Some(held) = messages.pop_front()
                {
                    self.publish(held.message(), held.receipt.as_deref());
                }
                if messages.is_empty() {
                    settlements.iter().for_each(|(settle, tags)| self.apply(*settle, tags));
                    let until = if self.confirming { self.all_confirmed() } else { self.all_answered() };
                    self.done(receipt.as_deref(), until);
                } else {
                    self.deferred = Some(DeferredRequest::Commit { messages, settlements, receipt });
                }
            }
            other => self.deferred = other,
        }
    }

    /// Whether the deferred request can go on without an answer of the upstream.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(self.deferred, Some(DeferredRequest::Commit { .. })) && self.client.has_room()
    }

    /// A request other than SUBSCRIBE is done but for `until`.
    pub(super) fn done(&mut self, receipt: Option<&str>, until: Until) {
        if let Some(id) = receipt {
            let receipt = Receipt { id: id.into(), is_refused: false, is_confirm: false, starts: None };
            self.receipts.push(receipt, until);
        }
    }
}
