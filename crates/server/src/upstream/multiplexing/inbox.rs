//! The messages and answers that wait for one subscriber's task.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use amqp::Fault;
use bytes::Bytes;
use hashbrown::HashSet;
use smallvec::SmallVec;
use sync::{Mutex, Rank};
use transport::Outbox;

use super::budget::{InboxBudget, InboxShare};
use super::waiting::{WaitingMessage, WaitingMessages};

/// The numbers of a client's matching subscriptions; mostly one.
pub(crate) type SubscriptionNumbers = SmallVec<[u64; 1]>;

/// A message of the shared queue. All its subscribers share one copy.
#[derive(Debug)]
pub(crate) struct MultiplexedMessage {
    /// The exchange that it was published to.
    pub(crate) exchange: Box<str>,
    pub(crate) routing_key: Box<str>,
    /// The encoded flags and list of its properties, not validated.
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
    /// Whether the queue has delivered it before, on a connection that was lost.
    pub(crate) redelivered: bool,
    /// Its share of the budget of all inboxes, taken by the first inbox.
    share: OnceLock<InboxShare>,
    /// Whether it may be dropped for a slow client regardless of the subscription, once that has been determined.
    is_droppable: OnceLock<bool>,
}

impl MultiplexedMessage {
    pub(crate) fn new(
        exchange: impl Into<Box<str>>,
        routing_key: impl Into<Box<str>>,
        (properties, body): (Bytes, Bytes),
        redelivered: bool,
    ) -> Self {
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        let (share, is_droppable) = Default::default();
        Self { exchange, routing_key, properties, body, redelivered, share, is_droppable }
    }

    /// Bytes that it counts in an inbox.
    pub(super) fn size(&self) -> usize {
        ENTRY + self.exchange.len() + self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

/// Bytes added per message in an inbox: its entry, and a share of the message's overhead.
pub(super) const ENTRY: usize = 100;

/// An event for a subscriber.
#[derive(Debug)]
pub(crate) enum SubscriberEvent {
    /// The subscription with this number is active from now on.
    Subscribed(u64),
    /// The upstream has refused the binding key of this subscription, which is removed.
    Refused(u64, Fault),
    /// A message for these subscriptions.
    Message(SubscriptionNumbers, Arc<MultiplexedMessage>),
    /// The client has not taken its messages fast enough. It gets nothing more, and its connection has to be closed.
    Overflowed,
    /// The upstream refuses the login, or the queue cannot be declared. The client gets nothing more.
    Ended(Fault),
}

/// The limits of an inbox, above which it overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InboxLimits {
    pub(crate) messages: usize,
    /// Bytes of messages; a single larger message is accepted.
    pub(crate) bytes: usize,
}

impl Default for InboxLimits {
    /// Enough for a burst: a link of 10 Mbit/s takes four seconds for it. With less, clients that are not slow would be
    /// disconnected; with more, each slow client could hold too much.
    fn default() -> Self {
        Self { messages: 16 * 1024, bytes: 4 * 1024 * 1024 }
    }
}

/// How a message that matches several subscriptions of a client is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Once for each of them, one number at a time (STOMP).
    PerSubscription,
    /// Once, with all their numbers (MQTT's subscription identifiers).
    PerClient,
}

/// Whether a message may be dropped for a slow client, such as one of QoS 0.
pub(crate) type IsDroppable = fn(&MultiplexedMessage) -> bool;

/// The events for one subscriber. Its outbox is nudged when there is an event.
pub(crate) struct SubscriberInbox {
    outbox: Arc<Outbox>,
    limits: InboxLimits,
    /// Shared by all inboxes of the server.
    budget: Arc<InboxBudget>,
    copies: Copies,
    /// `None` if a slow client has to be disconnected without dropping messages first.
    is_droppable: Option<IsDroppable>,
    contents: Mutex<InboxContents, { Rank::SubscriberInbox as u8 }>,
}

#[derive(Default)]
struct InboxContents {
    /// Answers, which do not wait for messages that the client has no capacity for.
    answers: VecDeque<SubscriberEvent>,
    /// `None` while no message waits.
    messages: Option<Box<WaitingMessages>>,
    /// Subscriptions whose messages may be dropped only if [`IsDroppable`] says so; `None` if there are none.
    reliable: Option<Box<HashSet<u64>>>,
    /// Whether the subscriber had no capacity for the next message at its last attempt.
    stalled: bool,
    /// Set when no more events are accepted.
    end: Option<InboxEnd>,
}

enum InboxEnd {
    /// The last event, which has yet to be taken.
    Pending(SubscriberEvent),
    Taken,
}

/// Bytes that may wait for each client in any case: what arrives between two turns of a client that reads.
const ALWAYS: usize = 64 * 1024;

/// The outcome of adding a message to an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Taken,
    /// It was added, and this many droppable messages were dropped for it, oldest first.
    Displaced(u64),
    /// It was dropped, and counts among this many dropped messages.
    Dropped(u64),
    /// It exceeded the limit, and the inbox has overflowed.
    Overflowed,
    /// The inbox has overflowed before, or has ended.
    Ignored,
}

impl SubscriberInbox {
    /// An empty inbox of the client with this outbox.
    pub(crate) fn new(
        outbox: &Arc<Outbox>,
        limits: InboxLimits,
        budget: &Arc<InboxBudget>,
        copies: Copies,
        is_droppable: Option<IsDroppable>,
    ) -> Arc<Self> {
        let (outbox, budget, contents) = (Arc::clone(outbox), Arc::clone(budget), Mutex::default());
        Arc::new(Self { outbox, limits, budget, copies, is_droppable, contents })
    }

    /// As [`Self::new`], with its own budget and without droppable messages.
    #[cfg(test)]
    pub(crate) fn of_test(outbox: &Arc<Outbox>, limits: InboxLimits, copies: Copies) -> Arc<Self> {
        Self::new(outbox, limits, &InboxBudget::new(256 << 20), copies, None)
    }

    /// Sets whether a subscription's messages may be dropped only if [`IsDroppable`] says so. At first all may.
    pub(crate) fn set_reliable(&self, number: u64, is_reliable: bool) {
        let mut contents = self.contents.lock();
        if is_reliable {
            contents.reliable.get_or_insert_default().insert(number);
        } else if let Some(reliable) = &mut contents.reliable {
            reliable.remove(&number);
        }
    }

    /// Takes the next event. To be called at each nudge, and when the client has capacity again, until it returns `None`;
    /// a caller that stops earlier must call again without a nudge. Answers come first. Without capacity for a message,
    /// all messages stay, and no nudge announces further ones. [`SubscriberEvent::Overflowed`] and
    /// [`SubscriberEvent::Ended`] come before everything else, and are the last.
    pub(crate) fn take(&self, has_capacity: bool) -> Option<SubscriberEvent> {
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
        let InboxContents { messages, stalled, .. } = &mut *contents;
        let waiting = messages.as_mut()?;
        if !has_capacity {
            *stalled = true;
            return None;
        }
        let first = waiting.first_mut()?;
        if self.copies == Copies::PerSubscription && first.numbers.len() > 1 {
            let number = first.numbers.remove(0);
            return Some(SubscriberEvent::Message([number].into(), Arc::clone(&first.message)));
        }
        let WaitingMessage { numbers, message, .. } = waiting.pop()?;
        if waiting.len() == 0 {
            // An idle client holds no buffer.
            *messages = None;
        }
        self.budget.give_back(ENTRY);
        Some(SubscriberEvent::Message(numbers, message))
    }

    /// Adds an answer.
    pub(super) fn push(&self, event: SubscriberEvent) {
        let mut contents = self.contents.lock();
        if contents.end.is_none() {
            contents.answers.push_back(event);
            drop(contents);
            self.outbox.nudge();
        }
    }

    /// Adds a message for these subscriptions.
    pub(super) fn push_message(
        &self,
        numbers: SubscriptionNumbers,
        message: &Arc<MultiplexedMessage>,
    ) -> Pushed {
        let mut contents = self.contents.lock();
        if contents.end.is_some() {
            return Pushed::Ignored;
        }
        // Taken first, since the limit depends on the remaining budget.
        message.share.get_or_init(|| self.budget.take(message.size()));
        let is_droppable = self.may_drop(&contents, &numbers, message);
        let mut dropped = 0;
        while self.is_full(&contents, message) {
            let has_dropped = contents.messages.as_mut().is_some_and(|waiting| waiting.drop_oldest());
            if !has_dropped && !is_droppable {
                self.end_contents(&mut contents, SubscriberEvent::Overflowed);
                drop(contents);
                self.outbox.nudge();
                return Pushed::Overflowed;
            }
            dropped += 1;
            if !has_dropped {
                return Pushed::Dropped(dropped);
            }
            self.budget.give_back(ENTRY);
        }
        contents.messages.get_or_insert_default().push(numbers, message, is_droppable);
        self.budget.use_up(ENTRY);
        let stalled = contents.stalled;
        drop(contents);
        if !stalled {
            self.outbox.nudge();
        }
        if dropped == 0 { Pushed::Taken } else { Pushed::Displaced(dropped) }
    }

    /// Whether a message exceeds the client's limits, or the budget that the other inboxes leave. One message is always
    /// accepted, and so are some small ones: clients that do not read must not cause other clients to lose messages.
    fn is_full(&self, contents: &InboxContents, message: &MultiplexedMessage) -> bool {
        let Some(waiting) = contents.messages.as_ref().filter(|waiting| waiting.len() > 0) else {
            return false;
        };
        let most = self.limits.bytes.min(self.budget.left().max(ALWAYS));
        waiting.len() >= self.limits.messages || waiting.bytes() + message.size() > most
    }

    fn may_drop(
        &self,
        contents: &InboxContents,
        numbers: &SubscriptionNumbers,
        message: &MultiplexedMessage,
    ) -> bool {
        let Some(is_droppable) = self.is_droppable else { return false };
        let is_reliable =
            |number| contents.reliable.as_ref().is_some_and(|reliable| reliable.contains(number));
        !numbers.iter().any(is_reliable) || *message.is_droppable.get_or_init(|| is_droppable(message))
    }

    /// Discards everything, and sets the last event.
    pub(super) fn end(&self, fault: Fault) {
        let mut contents = self.contents.lock();
        if contents.end.is_none() {
            self.end_contents(&mut contents, SubscriberEvent::Ended(fault));
            drop(contents);
            self.nudge();
        }
    }

    /// Discards everything, and sets the last event.
    fn end_contents(&self, contents: &mut InboxContents, event: SubscriberEvent) {
        self.budget.give_back(contents.overhead());
        *contents = InboxContents { end: Some(InboxEnd::Pending(event)), ..InboxContents::default() };
    }

    /// Nudges the subscriber's task.
    pub(super) fn nudge(&self) {
        self.outbox.nudge();
    }
}

impl Drop for SubscriberInbox {
    fn drop(&mut self) {
        self.budget.give_back(self.contents.get_mut().overhead());
    }
}

impl InboxContents {
    /// Bytes of the budget that its entries take.
    fn overhead(&self) -> usize {
        self.messages.as_ref().map_or(0, |waiting| waiting.overhead())
    }
}

#[cfg(test)]
mod tests {
    use amqp::ReplyCode;

    use super::*;

    fn message(body: &'static [u8]) -> Arc<MultiplexedMessage> {
        Arc::new(MultiplexedMessage::new("amq.topic", "k", (Bytes::new(), Bytes::from_static(body)), false))
    }

    fn inbox(
        messages: usize,
        bytes: usize,
        copies: Copies,
    ) -> (Arc<SubscriberInbox>, transport::InnerOutbox) {
        let outer = transport::InnerOutbox::new(1);
        (SubscriberInbox::of_test(outer.outbox(), InboxLimits { messages, bytes }, copies), outer)
    }

    fn push(inbox: &SubscriberInbox, numbers: &[u64], body: &'static [u8]) -> Pushed {
        inbox.push_message(numbers.into(), &message(body))
    }

    /// The next event, as text.
    fn next(inbox: &SubscriberInbox) -> Option<String> {
        inbox.take(true).map(|event| match event {
            SubscriberEvent::Message(numbers, message) => {
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
            assert!(contents.messages.is_none());
            assert_eq!(inbox.budget.used(), 0);
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
            inbox.push(SubscriberEvent::Subscribed(2));
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
    fn messages_wait_without_nudges_while_the_client_has_no_capacity() {
        let (inbox, outer) = inbox(10, 10_000, Copies::PerSubscription);
        inbox.push(SubscriberEvent::Subscribed(1));
        push(&inbox, &[1], b"a");
        inbox.push(SubscriberEvent::Subscribed(2));
        assert!(matches!(inbox.take(false), Some(SubscriberEvent::Subscribed(1))));
        assert!(
            matches!(inbox.take(false), Some(SubscriberEvent::Subscribed(2))),
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
    /// An inbox that drops messages with an upper-case body, within `budget`.
    fn dropping(messages: usize, bytes: usize, budget: &Arc<InboxBudget>) -> Arc<SubscriberInbox> {
        let outer = transport::InnerOutbox::new(1);
        let limits = InboxLimits { messages, bytes };
        let is_upper: IsDroppable = |message| message.body.is_ascii() && message.body[0].is_ascii_uppercase();
        let inbox = SubscriberInbox::new(outer.outbox(), limits, budget, Copies::PerClient, Some(is_upper));
        inbox.set_reliable(1, true);
        inbox
    }

    fn rest(inbox: &SubscriberInbox) -> Vec<String> {
        std::iter::from_fn(|| next(inbox)).collect()
    }

    #[test]
    fn droppable_messages_go_first_the_oldest_of_them_first_and_the_others_keep_their_order() {
        let budget = InboxBudget::new(1 << 20);
        let inbox = dropping(4, 10_000, &budget);
        for body in [&b"a"[..], b"B", b"c", b"D"] {
            assert_eq!(push(&inbox, &[1], body), Pushed::Taken);
        }
        assert_eq!(push(&inbox, &[1], b"e"), Pushed::Displaced(1));
        // A subscription that is not reliable allows any message to be dropped.
        assert_eq!(push(&inbox, &[2], b"f"), Pushed::Displaced(1));
        assert_eq!(push(&inbox, &[1], b"g"), Pushed::Displaced(1));
        assert_eq!(push(&inbox, &[1], b"H"), Pushed::Dropped(1), "itself");
        assert_eq!(rest(&inbox), ["[1] a", "[1] c", "[1] e", "[1] g"]);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_client_is_closed_only_if_messages_would_be_lost_that_may_not_be_dropped() {
        let budget = InboxBudget::new(1 << 20);
        let inbox = dropping(2, 10_000, &budget);
        push(&inbox, &[1], b"a");
        push(&inbox, &[1, 2], b"b");
        assert_eq!(push(&inbox, &[2], b"c"), Pushed::Dropped(1));
        assert_eq!(push(&inbox, &[1], b"d"), Pushed::Overflowed);
        assert_eq!(budget.used(), 0);
        assert_eq!(rest(&inbox), ["Overflowed"]);
    }

    #[test]
    fn a_subscription_that_is_reliable_no_more_lets_messages_be_dropped() {
        let inbox = dropping(1, 10_000, &InboxBudget::new(1 << 20));
        inbox.set_reliable(1, false);
        push(&inbox, &[1], b"a");
        assert_eq!(push(&inbox, &[1], b"b"), Pushed::Displaced(1));
        assert_eq!(rest(&inbox), ["[1] b"]);
    }

    #[test]
    fn all_inboxes_together_stay_within_their_budget_and_leave_some_of_it() {
        const MESSAGE: usize = 10_000;
        let body: &'static [u8] = Box::leak(vec![b'X'; MESSAGE].into());
        let budget = InboxBudget::new(100 * MESSAGE);
        let slow: Vec<_> = (0..9).map(|_| dropping(usize::MAX, usize::MAX, &budget)).collect();
        for _ in 0..100 {
            slow.iter().for_each(|inbox| _ = push(inbox, &[1], body));
        }
        // Ten shares, so that one is left.
        assert!((80 * MESSAGE..95 * MESSAGE).contains(&budget.used()), "{}", budget.used());
        let quick = dropping(usize::MAX, usize::MAX, &budget);
        assert_eq!([(); 3].map(|()| push(&quick, &[1], body)), [Pushed::Taken; 3]);
        drop((slow, quick));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_client_has_its_messages_though_others_that_do_not_read_have_used_up_all() {
        let body: &'static [u8] = Box::leak(vec![b'X'; 2 << 20].into());
        let budget = InboxBudget::new(1 << 20);
        let hog = dropping(10, usize::MAX, &budget);
        assert_eq!((push(&hog, &[1], body), budget.left()), (Pushed::Taken, 0));
        let quick = dropping(100, usize::MAX, &budget);
        for _ in 0..3 {
            assert_eq!([&b"a"[..], b"b", b"c"].map(|body| push(&quick, &[1], body)), [Pushed::Taken; 3]);
            assert_eq!(rest(&quick).len(), 3);
        }
        let small: &'static [u8] = &[b'x'; 10_000];
        let taken = (0..100).take_while(|_| push(&quick, &[1], small) == Pushed::Taken).count();
        assert!((5..10).contains(&taken), "{taken}");
    }

    #[test]
    fn a_message_that_waits_for_many_takes_its_memory_once() {
        let body: &'static [u8] = Box::leak(vec![b'X'; 10_000].into());
        let budget = InboxBudget::new(1 << 20);
        let inboxes: Vec<_> = (0..1000).map(|_| dropping(10, 20_000, &budget)).collect();
        let shared = message(body);
        inboxes.iter().for_each(|inbox| _ = inbox.push_message([1].as_slice().into(), &shared));
        assert_eq!(budget.used(), shared.size() + 1000 * ENTRY);
    }
}
