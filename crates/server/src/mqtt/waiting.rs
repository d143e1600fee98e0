//! Answers that wait for the disk, in order.

use std::sync::Arc;

use broker::{AnswerQueue, DiskPoint, Store, Waiter};

use super::session::PendingReply;

/// The answers of one client that wait for the disk, in order.
#[derive(Default)]
pub(super) struct PendingAnswers {
    /// `None` for a write that is not answered.
    queue: AnswerQueue<Option<PendingReply>>,
    /// Number of entries that hold messages for the client.
    sends: usize,
    /// Number of entries that answer a SUBSCRIBE.
    subscribes: usize,
    /// The writes that all entries so far have waited for.
    until: DiskPoint,
}

impl PendingAnswers {
    /// Adds an answer after all that wait. `nudge` is woken when [`next`](PendingAnswers::next) may have one.
    pub(super) fn push(
        &mut self,
        then: PendingReply,
        point: DiskPoint,
        store: Option<&Arc<Store>>,
        nudge: &Arc<dyn Waiter>,
    ) {
        self.sends += usize::from(matches!(then, PendingReply::Send { .. }));
        self.subscribes += usize::from(matches!(then, PendingReply::Subscribed { .. }));
        self.until = self.until.and(point);
        self.queue.push(Some(then), point, store, nudge);
    }

    /// Adds a write that is not answered, and yet counts among those that the client waits for.
    pub(super) fn push_write(
        &mut self,
        point: DiskPoint,
        store: Option<&Arc<Store>>,
        nudge: &Arc<dyn Waiter>,
    ) {
        self.until = self.until.and(point);
        self.queue.push(None, point, store, nudge);
    }

    /// The next answer whose writes are on disk.
    pub(super) fn next(&mut self, store: Option<&Arc<Store>>) -> Option<PendingReply> {
        let then = loop {
            if let Some(then) = self.queue.next(store)? {
                break then;
            }
        };
        self.sends -= usize::from(matches!(then, PendingReply::Send { .. }));
        self.subscribes -= usize::from(matches!(then, PendingReply::Subscribed { .. }));
        Some(then)
    }

    /// Whether messages for the client wait, which later ones must not overtake.
    pub(super) fn holds_messages(&self) -> bool {
        self.sends > 0
    }

    /// Whether a SUBACK waits, which retained messages must not overtake.
    pub(super) fn holds_subscriptions(&self) -> bool {
        self.subscribes > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The writes after which no answer waits any more.
    pub(super) fn until(&self) -> DiskPoint {
        self.until
    }

    /// Removes all answers. Called when there is no client left to answer.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingReply> {
        (self.sends, self.subscribes) = (0, 0);
        self.queue.drain().flatten()
    }
}
