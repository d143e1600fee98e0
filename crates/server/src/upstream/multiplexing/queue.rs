//! A shared queue, used by its subscribers and its own task.

use std::sync::Arc;
use std::time::Instant;

use amqp::{Credentials, Fault};
use sync::{AtomicWaker, Mutex, Rank, work};

use super::fan_out::{FanOut, MatchedBindings};
use super::inbox::SubscriberInbox;
use super::link::MultiplexedLink;
use super::requests::{KeyRequest, Unasked};
use super::state::{MultiplexedCounts, SubscriberId, SubscribersState};
use super::task::LinkedQueue;
use crate::upstream::client::AmqpClient;

/// Slots visited before the queue's lock is released for a moment: some tens of microseconds.
pub(super) const SLOTS_AT_ONCE: usize = 128;

/// The login with which a shared queue is declared.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamLogin {
    /// Prefix of the queue's name, such as `stomp-subscription-`.
    pub(crate) prefix: &'static str,
    /// Credentials that the upstream has accepted from the subscriber.
    pub(crate) credentials: Arc<Credentials>,
    /// The virtual host that the upstream has opened for the subscriber.
    pub(crate) vhost: Box<str>,
}

/// A queue upstream that is shared by the subscribers with one login.
pub(crate) struct MultiplexedQueue {
    login: UpstreamLogin,
    /// The exchange that all keys are bound to.
    exchange: Arc<str>,
    state: Mutex<SubscribersState, { Rank::MultiplexedQueue as u8 }>,
    /// Wakes the queue's task.
    waker: AtomicWaker,
}

/// A shared queue, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiplexedQueueStatus {
    /// The protocol of the subscribers, as in the scheme of a URL.
    pub protocol: &'static str,
    /// The user whose clients share the queue.
    pub user: String,
    /// The virtual host of the queue.
    pub vhost: String,
    /// The exchange that the queue is bound to.
    pub exchange: String,
    /// The name of the queue upstream; `None` while there is no connection.
    pub queue: Option<String>,
    /// Clients that share the queue.
    pub subscribers: usize,
    /// Number of distinct binding keys, including those without a subscriber.
    pub bindings: usize,
    /// Messages received from the upstream.
    pub received: u64,
    /// Copies of these messages passed to subscribers.
    pub copies: u64,
    /// QoS 0 messages dropped for clients that did not take them fast enough.
    pub dropped: u64,
    /// Subscribers disconnected because they did not take their messages fast enough.
    pub overflowed: u64,
    /// Upstream connections lost. Messages published until the next connection was ready are missing.
    pub lost: u64,
}

/// A binding key of a shared queue, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiplexedBindingStatus {
    /// The key with which the queue is bound to its exchange.
    pub key: Arc<str>,
    /// Clients with a subscription to the key; 0 if it is about to be unbound.
    pub subscribers: usize,
    /// Whether the upstream has bound the key.
    pub is_bound: bool,
}

impl UpstreamLogin {
    /// The subscribers' protocol, with which the queues' names begin.
    fn protocol(&self) -> &'static str {
        self.prefix.split_once('-').map_or(self.prefix, |(protocol, _)| protocol)
    }
}

impl MultiplexedQueue {
    pub(super) fn new(login: UpstreamLogin, exchange: &Arc<str>) -> Arc<Self> {
        let state = Mutex::new(SubscribersState::new(transport::now()));
        Arc::new(Self { login, exchange: Arc::clone(exchange), state, waker: AtomicWaker::new() })
    }

    /// Adds a subscriber. Returns `None` if the queue has ended and another one has to be used.
    pub(super) fn join(self: &Arc<Self>, inbox: &Arc<SubscriberInbox>) -> Option<MultiplexedSubscriber> {
        let id = self.state.lock().join(inbox)?;
        Some(MultiplexedSubscriber { queue: Arc::clone(self), id })
    }

    pub(super) fn exchange(&self) -> &Arc<str> {
        &self.exchange
    }

    /// The queue's status for operators.
    pub(super) fn status(&self) -> MultiplexedQueueStatus {
        let state = self.state.lock();
        MultiplexedQueueStatus {
            protocol: self.login.protocol(),
            user: self.login.credentials.username.clone(),
            vhost: self.login.vhost.to_string(),
            exchange: self.exchange.to_string(),
            queue: state.queue().map(|name| name.to_string()),
            subscribers: state.subscribers.len(),
            bindings: state.bindings.len(),
            received: state.counts.received,
            copies: state.counts.copies,
            dropped: state.counts.dropped,
            overflowed: state.counts.overflowed,
            lost: state.counts.lost,
        }
    }

    /// Whether the queue has this name upstream.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.state.lock().queue().is_some_and(|queue| **queue == *name)
    }

    /// Its binding keys for operators, in the order of their first use. The lock is released in between.
    pub(super) fn bindings(&self) -> Vec<MultiplexedBindingStatus> {
        let mut ids: Vec<_> = self.state.lock().bindings.keys().copied().collect();
        ids.sort_unstable();
        let mut all = Vec::with_capacity(ids.len());
        for some in ids.chunks(SLOTS_AT_ONCE) {
            let state = self.state.lock();
            let has_queue = state.queue().is_some();
            let found = some.iter().filter_map(|id| state.bindings.get(id));
            all.extend(found.map(|binding| MultiplexedBindingStatus {
                key: Arc::clone(&binding.key),
                subscribers: binding.subscribers.len(),
                is_bound: has_queue && binding.is_bound,
            }));
        }
        all
    }

    /// The numbers of subscribers and bindings, and the counts.
    pub(super) fn figures(&self) -> (usize, usize, MultiplexedCounts) {
        let state = self.state.lock();
        (state.subscribers.len(), state.bindings.len(), state.counts)
    }

    /// Called at shutdown: the queue ends as soon as it has no subscriber.
    pub(super) fn drain(&self) {
        self.state.lock().drain();
        self.waker.wake();
    }

    /// As [`SubscribersState::handle_declared`].
    pub(super) fn handle_declared(&self, name: &Arc<str>) {
        self.state.lock().handle_declared(name);
    }

    /// As [`SubscribersState::handle_bound`].
    pub(super) fn handle_bound(&self, now: Instant) -> Result<(), Unasked> {
        self.state.lock().handle_bound(now)
    }

    /// As [`SubscribersState::handle_unbound`].
    pub(super) fn handle_unbound(&self) -> Result<(), Unasked> {
        self.state.lock().handle_unbound()
    }

    /// As [`SubscribersState::handle_refused`].
    pub(super) fn handle_refused(&self, fault: &Fault) -> Result<Arc<str>, Unasked> {
        self.state.lock().handle_refused(fault)
    }

    /// Passes the next requests to `send`; returns whether there was one.
    pub(super) fn take_requests(&self, mut send: impl FnMut(KeyRequest)) -> bool {
        let mut state = self.state.lock();
        let requests = std::iter::from_fn(|| state.next_request()).take(SLOTS_AT_ONCE);
        requests.map(&mut send).count() > 0
    }

    /// As [`SubscribersState::matching`].
    pub(super) fn matching(
        &self,
        exchange: &str,
        routing_key: &str,
        properties: &[u8],
    ) -> Option<MatchedBindings> {
        self.state.lock().matching(exchange, routing_key, properties)
    }

    /// Passes on answers, and then the message, until both have reached all subscribers or the turn is over. Returns
    /// whether nothing is left.
    pub(super) fn hand_out(&self, current: &mut Option<FanOut>) -> bool {
        loop {
            let mut state = self.state.lock();
            // A subscription's answer must precede its messages.
            let is_done = state.answer(SLOTS_AT_ONCE)
                && current.as_mut().is_none_or(|fan_out| state.fan_out(fan_out, SLOTS_AT_ONCE));
            drop(state);
            if is_done {
                *current = None;
                return true;
            }
            if work::is_turn_over() {
                return false;
            }
        }
    }

    /// Abandons the queue. Returns its subscribers' inboxes, which the caller has to notify.
    pub(super) fn end(&self) -> Vec<Arc<SubscriberInbox>> {
        self.state.lock().end()
    }

    /// Calls `act` with the state, and wakes the queue's task if there is work for it.
    fn change<R>(&self, act: impl FnOnce(&mut SubscribersState) -> R) -> R {
        let mut state = self.state.lock();
        let deadline = state.next_deadline();
        let result = act(&mut state);
        let wakes = state.requests.has_unsent() || state.next_deadline() != deadline;
        drop(state);
        if wakes {
            self.waker.wake();
        }
        result
    }
}

impl LinkedQueue for MultiplexedQueue {
    type Link = MultiplexedLink;
    const NAME: &'static str = "multiplexed subscriptions";

    fn login(&self) -> &UpstreamLogin {
        &self.login
    }

    fn waker(&self) -> &AtomicWaker {
        &self.waker
    }

    fn link(self: &Arc<Self>, client: AmqpClient, now: Instant) -> MultiplexedLink {
        MultiplexedLink::new(self, client, now)
    }

    fn handle_lost(&self) {
        self.state.lock().handle_lost();
    }

    /// Unbinds keys that have been unused for long enough.
    fn expire(&self, now: Instant) {
        self.state.lock().expire(now);
    }

    fn end_if_unused(&self, now: Instant) -> bool {
        self.state.lock().end_if_unused(now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.state.lock().next_deadline()
    }
}

/// A client's membership of a shared queue. Dropping it removes all its subscriptions.
pub(crate) struct MultiplexedSubscriber {
    queue: Arc<MultiplexedQueue>,
    id: SubscriberId,
}

impl MultiplexedSubscriber {
    /// Adds a subscription with a number of the client's choice. The answer goes to its inbox: at once if the key is
    /// bound, otherwise when the upstream has bound or refused it.
    pub(crate) fn subscribe(&self, binding_key: &str, number: u64) {
        self.queue.change(|state| state.subscribe(self.id, binding_key, number));
    }

    /// Removes a subscription. Events with its number may still be in the inbox, and an answer may still arrive.
    pub(crate) fn unsubscribe(&self, binding_key: &str, number: u64) {
        let now = transport::now();
        self.queue.change(|state| state.unsubscribe(self.id, binding_key, number, now));
    }

    /// Whether the client may be read. If not, it has requested many bindings that the upstream has not answered; its
    /// outbox is nudged when there is capacity again.
    pub(crate) fn has_capacity(&self) -> bool {
        self.queue.state.lock().has_capacity(self.id)
    }
}

impl Drop for MultiplexedSubscriber {
    fn drop(&mut self) {
        let now = transport::now();
        self.queue.change(|state| state.leave(self.id, now));
    }
}
