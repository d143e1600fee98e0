//! Methods with no-wait that change other clients' declarations.

use std::collections::VecDeque;

use amqp::Method;

use super::entry::EntryKind;

/// Methods with no-wait whose changes to the remembered topology are pending, in the order in which they were sent. The
/// broker may refuse them by closing the channel, so each is applied once the broker has answered a later method.
#[derive(Debug, Default)]
pub(super) struct Changes(VecDeque<PendingChange>);

/// One such method, encoded, with the number of messages and requests in front of it.
#[derive(Debug)]
pub(super) struct PendingChange {
    published: u64,
    asked: u64,
    pub(super) payload: Box<[u8]>,
}

impl PendingChange {
    pub(super) fn new(published: u64, asked: u64, payload: &[u8]) -> Self {
        Self { published, asked, payload: payload.into() }
    }

    /// Memory used, in bytes.
    pub(super) fn bytes(&self) -> usize {
        2 * size_of::<Self>() + self.payload.len()
    }

    /// The ledger entry whose completion means that the broker has processed this method.
    pub(super) fn what(&self) -> EntryKind {
        EntryKind::Unanswered { published: self.published, asked: self.asked, count: 1 }
    }
}

impl Changes {
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(PendingChange::bytes).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, change: PendingChange) {
        self.0.push_back(change);
    }

    pub(super) fn first(&self) -> Option<&PendingChange> {
        self.0.front()
    }

    pub(super) fn pop(&mut self) -> Option<PendingChange> {
        self.0.pop_front()
    }

    /// Whether a method has to wait here: if it removes entities that other clients may have declared, or adds entities
    /// after a method that does.
    pub(super) fn concern(&self, method: &Method<'_>) -> bool {
        takes_away(method) || (self.len() > 0 && adds(method))
    }
}

/// Whether a method removes entities that other clients may have declared. A durable or exclusive declaration does,
/// because a transient entity that had the name must be gone.
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
