//! Methods without an answer that change what others have declared.

use std::collections::VecDeque;

use amqp::Method;

use super::entry::What;

/// Methods without an answer that are to change what is remembered, in the order in which they were sent. The broker may
/// refuse them, which it says by closing the channel: they are taken out once it has answered something behind them.
#[derive(Debug, Default)]
pub(super) struct Changes(VecDeque<Change>);

/// One of them, encoded, and how many messages and answers it is behind.
#[derive(Debug)]
pub(super) struct Change {
    published: u64,
    asked: u64,
    pub(super) payload: Box<[u8]>,
}

impl Change {
    pub(super) fn new(published: u64, asked: u64, payload: &[u8]) -> Self {
        Self { published, asked, payload: payload.into() }
    }

    /// What it takes of memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        2 * size_of::<Self>() + self.payload.len()
    }

    /// What says that the broker is through with it.
    pub(super) fn what(&self) -> What {
        What::Told { published: self.published, asked: self.asked, count: 1 }
    }
}

impl Changes {
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(Change::bytes).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, change: Change) {
        self.0.push_back(change);
    }

    pub(super) fn first(&self) -> Option<&Change> {
        self.0.front()
    }

    pub(super) fn pop(&mut self) -> Option<Change> {
        self.0.pop_front()
    }

    /// Whether a method has to wait here: if it takes away what others may have declared, or adds to it behind one that
    /// does.
    pub(super) fn concern(&self, method: &Method<'_>) -> bool {
        takes_away(method) || (self.len() > 0 && adds(method))
    }
}

/// Whether a method takes away what others may have declared. A declaration of what lasts does: whatever had the name before
/// was another one.
pub(super) fn takes_away(method: &Method<'_>) -> bool {
    match method {
        Method::QueueDeclare(declare) => !declare.passive && (declare.durable || declare.exclusive),
        Method::ExchangeDeclare(declare) => !declare.passive && declare.durable,
        Method::QueueDelete(_)
        | Method::QueueUnbind(_)
        | Method::ExchangeDelete(_)
        | Method::ExchangeUnbind(_) => true,
        _ => false,
    }
}

fn adds(method: &Method<'_>) -> bool {
    matches!(
        method,
        Method::QueueDeclare(_) | Method::ExchangeDeclare(_) | Method::QueueBind(_) | Method::ExchangeBind(_)
    )
}
