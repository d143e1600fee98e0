//! Operations for an operator's tools: single definitions ([`change`]), all of them at once ([`export`]), and
//! the existing exchanges, queues and bindings ([`views`]).
//!
//! No walk over everything happens under one lock: lists are collected in steps of bounded size, and the lock is released
//! in between. A list therefore need not be a snapshot; it includes an object that existed throughout exactly once.

mod book;
mod change;
mod export;
mod teardown;
mod views;

pub(crate) use book::DefinitionBook;
pub use views::{BindingEnd, BindingView, ExchangeView, PriorityCounts, QueueView};
