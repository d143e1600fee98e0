//! Positions on disk that an answer depends on, and the answers that wait for them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Store;
use crate::catalogue::Ticket;
use crate::journal::Lsn;
use crate::waiters::Waiter;

/// The writes that must be on disk before an answer. Each kind of write reaches the disk in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskPoint {
    /// The last change to definitions.
    pub ticket: Option<Ticket>,
    /// The last position of the journal.
    pub lsn: Option<Lsn>,
}

impl From<Ticket> for DiskPoint {
    fn from(ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), lsn: None }
    }
}

impl From<Option<Ticket>> for DiskPoint {
    fn from(ticket: Option<Ticket>) -> Self {
        Self { ticket, lsn: None }
    }
}

impl From<Option<Lsn>> for DiskPoint {
    fn from(lsn: Option<Lsn>) -> Self {
        Self { ticket: None, lsn }
    }
}

impl DiskPoint {
    /// Both this point and `other`.
    pub fn and(self, other: Self) -> Self {
        Self { ticket: self.ticket.max(other.ticket), lsn: self.lsn.max(other.lsn) }
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl Store {
    /// The part of `point` that is not on disk yet.
    pub fn missing(&self, point: DiskPoint) -> DiskPoint {
        DiskPoint {
            ticket: point.ticket.filter(|ticket| !self.catalogue().is_committed(*ticket)),
            lsn: point.lsn.filter(|lsn| *lsn > self.durable()),
        }
    }

    /// Wakes `waiter` once for each kind of write in `point`, when it is on disk; at once if it is.
    pub fn wait_for(&self, point: DiskPoint, waiter: &Arc<dyn Waiter>) {
        if let Some(ticket) = point.ticket {
            self.catalogue().wait(ticket, Arc::clone(waiter));
        }
        if let Some(lsn) = point.lsn {
            self.wait(lsn, Arc::clone(waiter));
        }
    }
}

/// Answers to one client that wait for the disk. They are sent in the order of the requests, so an answer that depends on
/// no write still waits for those before it.
#[derive(Debug)]
pub struct AnswerQueue<A> {
    waiting: VecDeque<(DiskPoint, A)>,
}

impl<A> Default for AnswerQueue<A> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<A> AnswerQueue<A> {
    /// Adds an answer at the end. `waiter` is woken when [`next`](Self::next) may return something. Without a store no
    /// answer waits.
    pub fn push(
        &mut self,
        answer: A,
        point: DiskPoint,
        store: Option<&Arc<Store>>,
        waiter: &Arc<dyn Waiter>,
    ) {
        let missing = store.map_or(DiskPoint::default(), |store| {
            let missing = store.missing(point);
            // Waiters for the same write are woken together.
            if self.waiting.back().is_none_or(|(last, _)| *last != missing) {
                store.wait_for(missing, waiter);
            }
            missing
        });
        self.waiting.push_back((missing, answer));
    }

    /// The next answer, if its writes are on disk.
    pub fn next(&mut self, store: Option<&Arc<Store>>) -> Option<A> {
        let is_ready =
            |entry: &mut (DiskPoint, A)| store.is_none_or(|store| store.missing(entry.0).is_empty());
        let (_, answer) = self.waiting.pop_front_if(is_ready)?;
        if self.waiting.is_empty() {
            // An idle client holds no memory for answers.
            self.waiting = VecDeque::new();
        }
        Some(answer)
    }

    /// Whether no answer waits for the disk.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of answers that wait for the disk, or for an earlier answer.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes all answers when the client is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = A> + use<A> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, answer)| answer)
    }
}
