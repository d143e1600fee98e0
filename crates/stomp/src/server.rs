//! The server's end of one connection.
//!
//! # Order of the calls
//! 1. [`StompServerConnection::handle_input`] with the received bytes, repeatedly until it consumes nothing and reports
//!    nothing; each call stops after one event. Each call appends the bytes to be sent to `out`, in order.
//! 2. [`StompEvent::Connect`]: the server authenticates the client and answers with [`StompServerConnection::accept`], or
//!    ends the connection with [`StompServerConnection::fail`]. Nothing is read until then.
//! 3. [`StompEvent::Request`]: the server performs the request and, once it is complete, confirms its receipt with
//!    [`StompServerConnection::receipt`]; or it ends the connection with [`StompServerConnection::fail`]. A request
//!    that is invalid in itself is never reported. The server stores the contents of a transaction until its end.
//! 4. Messages for the client: [`MessageForm::begin`], from any source; consumers cancelled by the broker:
//!    [`StompServerConnection::cancelled`].
//! 5. [`StompServerConnection::next_deadline`] returns the latest time for [`StompServerConnection::handle_deadline`];
//!    [`StompServerConnection::handle_sent`] postpones it. Timeouts of the login and of writing are up to the caller.
//! 6. The end is reported once, as an [`StompEnd`]: by an event, or by the call that caused it. After
//!    [`EventKind::Disconnect`] the server calls [`StompServerConnection::leave`], once the receipt is written.

mod connection;
mod event;
mod form;
mod heart_beat;
mod request;
#[cfg(test)]
mod tests;

pub use connection::{StompServerConnection, StompSettings, StompStep};
pub use event::{
    AckMode, ConnectRequest, EventKind, Request, Settle, StompEnd, StompEvent, SubscriptionRequest,
    TransactionId,
};
pub use form::MessageForm;
