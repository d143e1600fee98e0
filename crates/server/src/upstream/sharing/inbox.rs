//! The messages and answers that wait for one subscriber's own task.

use std::collections::VecDeque;
use std::sync::Arc;

use amqp::Fault;
use bytes::Bytes;
use smallvec::SmallVec;
use sync::{Mutex, Rank};
use transport::Outbox;

/// Numbers of subscriptions of one client. Most messages match one of them.
pub(crate) type SubscriptionNumbers = SmallVec<[u64; 1]>;

/// A message of the shared queue, which all its subscribers share.
#[derive(Debug)]
pub(crate) struct SharedMessage {
    /// The exchange that it was published to.
    pub(crate) exchange: Box<str>,
    pub(crate) routing_key: Box<str>,
    /// Flags and list of its properties, not validated.
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
    /// Whether the queue has delivered it before, to a connection that was lost.
    pub(crate) redelivered: bool,
}

impl SharedMessage {
    /// Bytes that it takes in an inbox.
    fn size(&self) -> usize {
        ENTRY + self.exchange.len() + self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

/// Bytes added for each message in an inbox: its entry, and its part of the message's own overhead.
const ENTRY: usize = 100;

/// An event for a subscriber.
#[derive(Debug)]
pub(crate) enum SharedEvent {
    /// The subscription with this number gets messages from now on.
    Subscribed(u64),
    /// The upstream has refused the binding key of this subscription, which is removed.
    Refused(u64, Fault),
    /// A message for these subscriptions.
    Message(SubscriptionNumbers, Arc<SharedMessage>),
    /// The client has not taken its messages in time. It gets nothing more; its connection must be closed.
    Overflowed,
    /// The upstream refuses the login, or the queue cannot be declared. It gets nothing more.
    Ended(Fault),
}

/// How many messages an inbox takes before it overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InboxLimits {
    pub(crate) messages: usize,
    /// Bytes of messages; a larger single one is taken as well.
    pub(crate) bytes: usize,
}

impl Default for InboxLimits {
    /// Room for a burst: a line of 10 Mbit/s takes this many bytes in four seconds. Less would end clients that are not
    /// slow, and more could be gathered by each slow one.
    fn default() -> Self {
        Self { messages: 16 * 1024, bytes: 4 * 1024 * 1024 }
    }
}

/// How a message that matches several subscriptions of a client is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Once for each of them, one number at a time (STOMP).
    PerSubscription,
    /// Once, with all their numbers (MQTT's subscription identifiers).
    PerClient,
}

/// The events for one subscriber. Its outbox is nudged when there is something to take.
pub(crate) struct SharedInbox {
    outbox: Arc<Outbox>,
    limits: InboxLimits,
    copies: Copies,
    contents: Mutex<InboxContents, { Rank::SharedInbox as u8 }>,
}

#[derive(Default)]
struct InboxContents {
    /// Answers, which do not wait for messages that the client has no room for.
    answers: VecDeque<SharedEvent>,
    messages: VecDeque<(SubscriptionNumbers, Arc<SharedMessage>)>,
    /// Bytes of `messages`.
    bytes: usize,
    /// The subscriber found no room for the next message; set until it tries again.
    stalled: bool,
    /// Set when nothing more is taken.
    end: Option<InboxEnd>,
}

enum InboxEnd {
    /// The last event, which has not been taken yet.
    Pending(SharedEvent),
    Taken,
}

/// The outcome of a message for an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Taken,
    /// It was the one too many.
    Overflowed,
    /// The inbox has overflowed before, or has ended.
    Ignored,
}

impl SharedInbox {
    /// An empty inbox of the client with this outbox.
    pub(crate) fn new(outbox: &Arc<Outbox>, limits: InboxLimits, copies: Copies) -> Arc<Self> {
        Arc::new(Self { outbox: Arc::clone(outbox), limits, copies, contents: Mutex::default() })
    }

    /// Takes the next event. Call it on each nudge, and when the client has room again, until it returns `None`; a caller
    /// that stops before that has to come back without a nudge. Answers come first. Without room for a message, all messages
    /// stay, and no nudge tells of further ones. [`SharedEvent::Overflowed`] and [`SharedEvent::Ended`] come before
    /// everything else, and are the last.
    pub(crate) fn take(&self, has_room: bool) -> Option<SharedEvent> {
        let mut contents = self.contents.lock();
        if let Some(end) = &mut contents.end {
            return match std::mem::replace(end, InboxEnd::Taken) {
                InboxEnd::Pending(event) => Some(event),
                InboxEnd::Taken => None,
            };
        }
        contents.stalled = false;
        if let Some(answer) = contents.answers.pop_front() {
            if contents.answers.is_empty() {
                contents.answers = VecDeque::new();
            }
            return Some(answer);
        }
        let (numbers, message) = contents.messages.front_mut()?;
        if !has_room {
            contents.stalled = true;
            return None;
        }
        if self.copies == Copies::PerSubscription && numbers.len() > 1 {
            return Some(SharedEvent::Message([numbers.remove(0)].into(), Arc::clone(message)));
        }
        let (numbers, message) = contents.messages.pop_front()?;
        contents.bytes -= message.size();
        if contents.messages.is_empty() {
            // An idle client holds no buffer.
            contents.messages = VecDeque::new();
        }
        Some(SharedEvent::Message(numbers, message))
    }

    /// Adds an answer.
    pub(super) fn push(&self, event: SharedEvent) {
        let mut contents = self.contents.lock();
        if contents.end.is_none() {
            contents.answers.push_back(event);
            drop(contents);
            self.outbox.nudge();
        }
    }

    /// Adds a message for these subscriptions.
    pub(super) fn push_message(&self, numbers: SubscriptionNumbers, message: &Arc<SharedMessage>) -> Pushed {
        let mut contents = self.contents.lock();
        if contents.end.is_some() {
            return Pushed::Ignored;
        }
        let bytes = contents.bytes + message.size();
        let waiting = contents.messages.len();
        if waiting > 0 && (waiting >= self.limits.messages || bytes > self.limits.bytes) {
            contents.end(SharedEvent::Overflowed);
            drop(contents);
            self.outbox.nudge();
            return Pushed::Overflowed;
        }
        contents.bytes = bytes;
        contents.messages.push_back((numbers, Arc::clone(message)));
        let stalled = contents.stalled;
        drop(contents);
        if !stalled {
            self.outbox.nudge();
        }
        Pushed::Taken
    }

    /// Replaces everything by the last event.
    pub(super) fn end(&self, fault: Fault) {
        let mut contents = self.contents.lock();
        if contents.end.is_none() {
            contents.end(SharedEvent::Ended(fault));
            drop(contents);
            self.nudge();
        }
    }

    /// Has the subscriber's task look at its state.
    pub(super) fn nudge(&self) {
        self.outbox.nudge();
    }
}

impl InboxContents {
    fn end(&mut self, event: SharedEvent) {
        *self = Self { end: Some(InboxEnd::Pending(event)), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use amqp::ReplyCode;

    use super::*;

    fn message(body: &'static [u8]) -> Arc<SharedMessage> {
        let (exchange, routing_key, properties) = ("amq.topic".into(), "k".into(), Bytes::new());
        let body = Bytes::from_static(body);
        Arc::new(SharedMessage { exchange, routing_key, properties, body, redelivered: false })
    }

    fn inbox(messages: usize, bytes: usize, copies: Copies) -> (Arc<SharedInbox>, transport::InnerOutbox) {
        let outer = transport::InnerOutbox::new(1);
        (SharedInbox::new(outer.outbox(), InboxLimits { messages, bytes }, copies), outer)
    }

    fn push(inbox: &SharedInbox, numbers: &[u64], body: &'static [u8]) -> Pushed {
        inbox.push_message(numbers.into(), &message(body))
    }

    /// The next event, as text.
    fn next(inbox: &SharedInbox) -> Option<String> {
        inbox.take(true).map(|event| match event {
            SharedEvent::Message(numbers, message) => {
                format!("{:?} {}", numbers.as_slice(), message.body.escape_ascii())
            }
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn a_message_for_several_subscriptions_is_one_or_several() {
        for (copies, expected) in [
            (Copies::PerClient, &["[1, 2, 3] a", "[3] b"][..]),
            (Copies::PerSubscription, &["[1] a", "[2] a", "[3] a", "[3] b"]),
        ] {
            let (inbox, outer) = inbox(10, 10_000, copies);
            push(&inbox, &[1, 2, 3], b"a");
            push(&inbox, &[3], b"b");
            assert!(outer.take_nudge());
            assert_eq!(std::iter::from_fn(|| next(&inbox)).collect::<Vec<_>>(), expected);
            let contents = inbox.contents.lock();
            assert_eq!((contents.bytes, contents.messages.capacity()), (0, 0));
        }
    }

    #[test]
    fn an_inbox_overflows_once_and_then_takes_nothing_more() {
        for (messages, bytes) in [(2, 10_000), (100, 2 * message(b"a").size())] {
            let (inbox, outer) = inbox(messages, bytes, Copies::PerSubscription);
            assert_eq!([(); 2].map(|()| push(&inbox, &[1], b"a")), [Pushed::Taken; 2]);
            outer.take_nudge();
            assert_eq!(push(&inbox, &[1], b"a"), Pushed::Overflowed);
            assert!(outer.take_nudge());
            assert_eq!(push(&inbox, &[1], b"a"), Pushed::Ignored);
            inbox.push(SharedEvent::Subscribed(2));
            inbox.end(Fault::new(ReplyCode::ConnectionForced, ""));
            assert_eq!((next(&inbox).as_deref(), next(&inbox)), (Some("Overflowed"), None));
        }
    }

    #[test]
    fn a_message_larger_than_the_limit_is_taken_alone() {
        let (inbox, _outer) = inbox(10, 1, Copies::PerClient);
        assert_eq!(push(&inbox, &[1], b"large"), Pushed::Taken);
        assert_eq!(next(&inbox).as_deref(), Some("[1] large"));
        assert_eq!(push(&inbox, &[1], b"large"), Pushed::Taken);
    }

    #[test]
    fn messages_wait_without_nudges_while_the_client_has_no_room() {
        let (inbox, outer) = inbox(10, 10_000, Copies::PerSubscription);
        inbox.push(SharedEvent::Subscribed(1));
        push(&inbox, &[1], b"a");
        inbox.push(SharedEvent::Subscribed(2));
        assert!(matches!(inbox.take(false), Some(SharedEvent::Subscribed(1))));
        assert!(
            matches!(inbox.take(false), Some(SharedEvent::Subscribed(2))),
            "it does not wait for the message"
        );
        assert!(inbox.take(false).is_none());
        outer.take_nudge();
        push(&inbox, &[1], b"b");
        assert!(!outer.take_nudge());
        assert_eq!(next(&inbox).as_deref(), Some("[1] a"));
        push(&inbox, &[1], b"c");
        assert!(outer.take_nudge());
    }
}
