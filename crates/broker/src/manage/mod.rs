//! What an operator's tools read and change: definitions one at a time ([`change`]), all of them at once ([`export`]),
//! and what exchanges, queues and bindings there are ([`views`]).
//!
//! Nothing here walks everything under a lock: lists are gathered in steps of bounded size, between which the lock is
//! released. So a list need not show one moment; what existed throughout is in it once.

mod book;
mod change;
mod export;
mod teardown;
mod views;

pub(crate) use book::Book;
pub use views::{BindingEnd, BindingView, ExchangeView, QueueView};
