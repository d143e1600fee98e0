//! Subscriptions that go with the connection, on the queue that all clients of a login share.

use std::sync::Arc;

use amqp::Fault;
use hashbrown::HashMap;
use transport::Outbox;

use crate::backend::Backend;
use crate::server::Shared;
use crate::upstream::sharing::{
    Copies, InboxLimits, SharedEvent, SharedInbox, SharedLogin, SharedMessage, SharedSubscriber,
};

/// The live subscriptions of one client.
pub(super) struct LiveFilters {
    login: SharedLogin,
    /// Since the first subscription.
    shared: Option<SharedPart>,
    /// The number under which each binding key is subscribed to.
    keys: HashMap<Box<str>, u64>,
    /// Earlier numbers of keys that were subscribed to again, by the later number: they end when that has its answer.
    replaced: Vec<(u64, Box<str>, u64)>,
    /// A message that the client had no window for.
    held: Option<Arc<SharedMessage>>,
}

struct SharedPart {
    inbox: Arc<SharedInbox>,
    subscriber: SharedSubscriber,
}

/// An event of the shared queue.
#[derive(Debug)]
pub(super) enum LiveEvent {
    /// The answer to the subscription with this number.
    Answered(u64, Result<(), Fault>),
    Message(Arc<SharedMessage>),
    /// The client did not take its messages in time.
    Overflowed,
    /// There will be no more messages.
    Ended(Fault),
}

impl LiveFilters {
    pub(super) fn new(login: SharedLogin) -> Self {
        let (shared, keys, replaced, held) = Default::default();
        Self { login, shared, keys, replaced, held }
    }

    /// Subscribes to a binding key; the answer has this number.
    pub(super) fn subscribe(&mut self, shared: &Shared, outbox: &Arc<Outbox>, key: &str, number: u64) {
        let Backend::Upstream(pool) = &shared.backend else { return };
        let part = self.shared.get_or_insert_with(|| {
            let inbox = SharedInbox::new(outbox, InboxLimits::default(), Copies::PerClient);
            let subscriber = shared.subscriptions.join(pool, &self.login, &inbox);
            SharedPart { inbox, subscriber }
        });
        part.subscriber.subscribe(key, number);
        if let Some(before) = self.keys.insert(key.into(), number) {
            self.replaced.push((number, key.into(), before));
        }
    }

    /// Ends the subscription to a binding key.
    pub(super) fn unsubscribe(&mut self, key: &str) {
        if let (Some(number), Some(part)) = (self.keys.remove(key), &self.shared) {
            part.subscriber.unsubscribe(key, number);
        }
    }

    /// The next event. Without room for a message, messages wait.
    pub(super) fn take(&mut self, has_room: bool) -> Option<LiveEvent> {
        if has_room && let Some(message) = self.held.take() {
            return Some(LiveEvent::Message(message));
        }
        let event = self.shared.as_ref()?.inbox.take(has_room && self.held.is_none())?;
        Some(match event {
            SharedEvent::Subscribed(number) => {
                self.end_replaced(number);
                LiveEvent::Answered(number, Ok(()))
            }
            SharedEvent::Refused(number, fault) => {
                self.end_replaced(number);
                self.keys.retain(|_, of| *of != number);
                LiveEvent::Answered(number, Err(fault))
            }
            SharedEvent::Message(_, message) => LiveEvent::Message(message),
            SharedEvent::Overflowed => LiveEvent::Overflowed,
            SharedEvent::Ended(fault) => LiveEvent::Ended(fault),
        })
    }

    /// Returns a message for which there was no window.
    pub(super) fn hold(&mut self, message: Arc<SharedMessage>) {
        self.held = Some(message);
    }

    /// Whether a message waits for a window.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Whether the client may be read.
    pub(super) fn has_room(&self) -> bool {
        self.shared.as_ref().is_none_or(|part| part.subscriber.has_room())
    }

    fn end_replaced(&mut self, number: u64) {
        let Some(part) = &self.shared else { return };
        for (_, key, before) in self.replaced.extract_if(.., |(by, ..)| *by == number) {
            part.subscriber.unsubscribe(&key, before);
        }
    }
}
