//! The server's end of one connection.
//!
//! # Order of the calls
//! 1. [`Connection::handle_input`] with what has come, again and again until it takes nothing and tells nothing; each
//!    call ends at one event. What is to be sent is appended to `out` by each call, in order.
//! 2. [`Event::Connect`]: the server judges the login, and answers with [`Connection::accept`], or ends it with
//!    [`Connection::fail`]. Nothing is read until then.
//! 3. [`Event::Request`]: the server does it and, when it is done for good, answers its receipt with
//!    [`Connection::receipt`]; or it ends the connection with [`Connection::fail`]. What is wrong with a request as such
//!    never gets that far. What a transaction holds until its end is the server's to keep.
//! 4. Messages for the client: [`MessageForm::begin`], from wherever they come; consumers that the broker has cancelled:
//!    [`Connection::cancelled`].
//! 5. [`Connection::next_deadline`] tells when [`Connection::handle_deadline`] is to be called at the latest, which
//!    [`Connection::handle_sent`] puts off; time-outs of the login and of writing are the caller's.
//! 6. The end is told once, as an [`End`]: by an event, or returned by the call that made it. After
//!    [`Kind::Disconnect`] the server ends it by [`Connection::leave`], behind the receipt.

mod connection;
mod event;
mod form;
mod heart_beat;
mod request;
#[cfg(test)]
mod tests;

pub use connection::{Connection, Settings, Step};
pub use event::{AckMode, Connect, End, Event, Kind, Request, Settle, SubscribeEvent, TransactionId};
pub use form::MessageForm;
