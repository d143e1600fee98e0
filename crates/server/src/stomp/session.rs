//! The session of a logged-in client, as used by its connection.

use std::sync::Arc;
use std::time::Instant;

use amqp::ReplyCode;
use stomp::server::Request;
use stomp::{StompFault, StompVersion};

use crate::registry::OpenConnection;

/// A client's session on a backend: the embedded broker or an upstream. It writes the client's messages to the
/// connection's outbox itself.
pub(super) trait StompSession: Send {
    /// The identifier of the session.
    fn name(&self) -> &Arc<str>;
    /// The version of the protocol.
    fn version(&self) -> StompVersion;
    /// The user that the client has logged in as.
    fn user(&self) -> &str;
    /// The virtual host.
    fn vhost(&self) -> &str;
    /// Called when the connection is open and visible to operators.
    fn opened(&mut self, view: &Arc<OpenConnection>);
    /// Handles a request. Its receipt is returned by [`StompSession::next_receipt`].
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle(&mut self, request: &Request<'_>, now: Instant) -> Result<(), StompFault>;
    /// The next receipt whose request is done.
    fn next_receipt(&mut self) -> Option<Receipt>;
    /// Starts the delivery of a subscription whose receipt was sent, if the subscription still exists.
    fn start(&mut self, number: u64);
    /// Called at the end of a batch of frames.
    fn flush(&mut self, now: Instant);
    /// Called after the outbox was nudged. Returns the subscriptions that the backend has cancelled.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_nudge(&mut self, now: Instant) -> Result<Vec<CancelledSubscription>, StompFault>;
    /// The receipt requested by the frame whose fault [`StompSession::handle_nudge`] has returned.
    fn take_failed_receipt(&mut self) -> Option<Box<str>> {
        None
    }
    /// Called when the connection's outbox has capacity again.
    fn handle_capacity(&mut self, now: Instant);
    /// The latest time at which to call [`StompSession::handle_deadline`].
    fn next_deadline(&self) -> Option<Instant>;
    /// Called when [`StompSession::next_deadline`] may have passed.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_deadline(&mut self, now: Instant) -> Result<(), StompFault>;
    /// Whether more requests can be taken. If not, the outbox is nudged when they can.
    fn has_capacity(&self) -> bool;
    /// Whether no receipt waits. If one does, the outbox is nudged when that may have changed.
    fn is_settled(&self) -> bool;
    /// Upstream connections that the session uses, if any, for the log.
    fn upstreams(&self) -> Vec<String> {
        Vec::new()
    }
    /// The connection has ended, in whatever way: flushes its publishes and releases everything it holds. If
    /// [`StompSession::has_ended`] is false after that, the outbox is nudged, and this is to be called again in the next turn.
    fn end(&mut self, now: Instant);
    /// Whether [`StompSession::end`] has done everything.
    fn has_ended(&self) -> bool {
        true
    }
}

/// A subscription that the backend has cancelled.
#[derive(Debug)]
pub(super) struct CancelledSubscription {
    pub(super) tag: Box<str>,
    pub(super) number: u64,
    /// All messages of the subscription that the client may still acknowledge have lower delivery tags.
    pub(super) next_delivery_tag: u64,
}

/// A receipt that a client requested.
#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) id: Box<str>,
    /// Whether a full queue has refused the message, or one of the transaction's.
    pub(super) is_refused: bool,
    /// Whether it is for a message.
    pub(super) is_confirm: bool,
    /// The number of the subscription that it is for, whose delivery starts after the receipt.
    pub(super) starts: Option<u64>,
}

/// Bytes of waiting receipts, with their entries, at which the client is no longer read.
pub(super) const MAX_WAITING_RECEIPTS: usize = 256 * 1024;

impl Receipt {
    /// Bytes that a waiting receipt with this identifier takes.
    pub(super) fn cost(id: &str) -> usize {
        id.len() + size_of::<Self>()
    }
}

/// Converts a backend's error as RabbitMQ's adapter does: the name of the reply code, and its text.
pub(super) fn of_fault(error: impl Into<amqp::Fault>) -> StompFault {
    let fault = error.into();
    let is_unasked = fault.is_unasked;
    StompFault { is_unasked, ..StompFault::new(fault.code.name().to_lowercase(), fault.reply_text()) }
}

/// The fault for an ACK or NACK of a message that the client does not have.
pub(super) fn unknown_delivery(delivery_tag: u64) -> StompFault {
    let text = format!("unknown delivery tag {delivery_tag}");
    of_fault(amqp::Fault::new(ReplyCode::PreconditionFailed, text))
}
