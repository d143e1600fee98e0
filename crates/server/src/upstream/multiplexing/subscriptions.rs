//! The shared queues of a server.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amqp::{Capabilities, Fault, FieldTable, Negotiated, ReplyCode};
use proxy::{ClientInfo, ClientSide, Pool, Refusal};
use sync::{Mutex, Rank};
use transport::InnerOutbox;

use super::budget::InboxBudget;
use super::inbox::SubscriberInbox;
use super::queue::{
    MultiplexedBindingStatus, MultiplexedQueue, MultiplexedQueueStatus, MultiplexedSubscriber, UpstreamLogin,
};
use super::state::MultiplexedCounts;
use super::task::{self, LinkedQueue, OpenError, OpenUpstream};
use crate::upstream::client::AmqpClient;

/// The maximum frame size within the process, in bytes: RabbitMQ's default.
const FRAME_MAX: u32 = 128 * 1024;

/// Bytes of waiting deliveries at which the upstream is not read: some turns' worth.
const MAX_BACKLOG: usize = 1024 * 1024;

/// Channels of a shared queue's connection, or of one for takeovers.
const CHANNELS: u16 = 2;

/// The queues that live subscriptions share upstream, one for each login, virtual host, protocol and exchange.
pub(crate) struct MultiplexedSubscriptions {
    table: Mutex<SharedTable, { Rank::MultiplexedSubscriptions as u8 }>,
    budget: Arc<InboxBudget>,
    is_draining: AtomicBool,
}

/// All shared queues with running tasks, and the counts of ended ones.
#[derive(Default)]
struct SharedTable {
    /// The queues that new subscribers join.
    by_login: HashMap<(LoginKey, Arc<str>), Arc<MultiplexedQueue>>,
    /// Queues that were abandoned, and replaced before their tasks ended.
    replaced: Vec<Arc<MultiplexedQueue>>,
    /// Counts of queues whose tasks have ended.
    ended: MultiplexedCounts,
}

/// Totals of all shared queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MultiplexedTotals {
    /// Queues with running tasks.
    pub queues: usize,
    /// Clients that share one of these queues.
    pub subscribers: usize,
    /// Number of binding keys of all queues, including those without a subscriber.
    pub bindings: usize,
    /// Bytes of messages that wait for clients.
    pub waiting_bytes: usize,
    /// Counts since the start of the server, including ended queues.
    pub counts: MultiplexedCounts,
}

/// A login, compared by all its parts, since permissions may depend on the secret, as with tokens.
pub(crate) struct LoginKey(pub(crate) UpstreamLogin);

impl MultiplexedSubscriptions {
    /// Without subscribers. `inbox_total` is the budget of all inboxes, in bytes.
    pub(crate) fn new(inbox_total: usize) -> Self {
        let (table, is_draining) = Default::default();
        Self { table, budget: InboxBudget::new(inbox_total), is_draining }
    }

    /// The budget of all inboxes.
    pub(crate) fn budget(&self) -> &Arc<InboxBudget> {
        &self.budget
    }

    /// Adds a subscriber to keys of an exchange, whose events go to `inbox`. The upstream must have accepted the login.
    /// Must be called within a runtime, since the first subscriber of a login starts the task that opens the upstream
    /// connection.
    pub(crate) fn join(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        (login, exchange): (&UpstreamLogin, &Arc<str>),
        inbox: &Arc<SubscriberInbox>,
    ) -> MultiplexedSubscriber {
        let upstream = || PoolUpstream::new(pool, login);
        self.join_by((login, exchange), inbox, upstream)
    }

    /// As [`Self::join`], with `upstream` to open the connections of a new queue.
    pub(super) fn join_by<U: OpenUpstream>(
        self: &Arc<Self>,
        (login, exchange): (&UpstreamLogin, &Arc<str>),
        inbox: &Arc<SubscriberInbox>,
        upstream: impl FnOnce() -> U,
    ) -> MultiplexedSubscriber {
        let key = (LoginKey(login.clone()), Arc::clone(exchange));
        let mut table = self.table.lock();
        if let Some(subscriber) = table.by_login.get(&key).and_then(|queue| queue.join(inbox)) {
            return subscriber;
        }
        loop {
            let queue = MultiplexedQueue::new(login.clone(), exchange);
            if self.is_draining.load(Ordering::Acquire) {
                queue.drain();
            }
            // A new queue cannot have ended.
            let Some(subscriber) = queue.join(inbox) else { continue };
            let replaced = table.by_login.insert(key, Arc::clone(&queue));
            table.replaced.extend(replaced);
            drop(table);
            tokio::spawn(run(Arc::clone(self), queue, upstream()));
            return subscriber;
        }
    }

    /// The queues' status for operators, in no order.
    pub(crate) fn status(&self) -> Vec<MultiplexedQueueStatus> {
        self.running().iter().map(|queue| queue.status()).collect()
    }

    /// The binding keys of the queue with this name upstream; `None` if there is none.
    pub(crate) fn bindings(&self, name: &str) -> Option<Vec<MultiplexedBindingStatus>> {
        let queue = self.running().into_iter().find(|queue| queue.is_named(name))?;
        Some(queue.bindings())
    }

    /// The totals for operators. Counts never decrease.
    pub(crate) fn totals(&self) -> MultiplexedTotals {
        let table = self.table.lock();
        let (queues, counts) = (table.running(), table.ended);
        drop(table);
        let mut totals = MultiplexedTotals {
            queues: queues.len(),
            waiting_bytes: self.budget.used(),
            counts,
            ..MultiplexedTotals::default()
        };
        for queue in queues {
            let (subscribers, bindings, counts) = queue.figures();
            totals.subscribers += subscribers;
            totals.bindings += bindings;
            totals.counts.add(counts);
        }
        totals
    }

    /// Called at shutdown: each queue is abandoned as soon as its last subscriber has left.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.running().iter().for_each(|queue| queue.drain());
    }

    /// The queues with running tasks.
    pub(super) fn running(&self) -> Vec<Arc<MultiplexedQueue>> {
        self.table.lock().running()
    }

    fn remove(&self, queue: &Arc<MultiplexedQueue>) {
        let key = (LoginKey(queue.login().clone()), Arc::clone(queue.exchange()));
        let mut table = self.table.lock();
        if table.by_login.get(&key).is_some_and(|other| Arc::ptr_eq(other, queue)) {
            table.by_login.remove(&key);
        } else {
            table.replaced.retain(|other| !Arc::ptr_eq(other, queue));
        }
        // Under the same lock, so that the totals never omit or double it.
        let (_, _, counts) = queue.figures();
        table.ended.add(counts);
    }
}

impl SharedTable {
    /// The queues with running tasks.
    fn running(&self) -> Vec<Arc<MultiplexedQueue>> {
        self.by_login.values().chain(&self.replaced).cloned().collect()
    }
}

async fn run(all: Arc<MultiplexedSubscriptions>, queue: Arc<MultiplexedQueue>, upstream: impl OpenUpstream) {
    let listed = ListedQueue { all, queue };
    task::run(Arc::clone(&listed.queue), upstream).await;
}

/// A queue's entry in the table, removed when its task ends.
struct ListedQueue {
    all: Arc<MultiplexedSubscriptions>,
    queue: Arc<MultiplexedQueue>,
}

impl Drop for ListedQueue {
    fn drop(&mut self) {
        self.all.remove(&self.queue);
    }
}

/// The table's hasher has a random key, so that its order reveals nothing about a secret.
impl Hash for LoginKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let UpstreamLogin { prefix, credentials, vhost } = &self.0;
        (prefix, vhost, credentials.mechanism, &credentials.username).hash(state);
        credentials.secret.expose().hash(state);
    }
}

impl PartialEq for LoginKey {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&self.0, &other.0);
        one.prefix == other.prefix
            && one.vhost == other.vhost
            && (Arc::ptr_eq(&one.credentials, &other.credentials) || one.credentials == other.credentials)
    }
}

impl Eq for LoginKey {}

/// Connections through the pool.
pub(crate) struct PoolUpstream {
    pool: Arc<Pool>,
    login: UpstreamLogin,
    /// Set if the pool must not publish unconfirmed messages again. The value says whether the connection is isolated.
    without_replay: Option<bool>,
}

impl PoolUpstream {
    pub(crate) fn new(pool: &Arc<Pool>, login: &UpstreamLogin) -> Self {
        Self { pool: Arc::clone(pool), login: login.clone(), without_replay: None }
    }

    /// For callers that publish unconfirmed messages again themselves: [`proxy::ProxySession::without_replay`].
    pub(crate) fn without_replay(self, is_isolated: bool) -> Self {
        Self { without_replay: Some(is_isolated), ..self }
    }
}

impl OpenUpstream for PoolUpstream {
    async fn open(&self) -> Result<AmqpClient, OpenError> {
        let UpstreamLogin { prefix, credentials, vhost } = &self.login;
        let info = ClientInfo { id: 0, peer: format!("{prefix}*, shared") };
        let login = Box::pin(self.pool.authenticate(credentials.copy(), info)).await.map_err(of_refusal)?;
        let inner = InnerOutbox::new(MAX_BACKLOG);
        let client = ClientSide {
            outbox: Arc::clone(inner.outbox()),
            negotiated: Negotiated { channel_max: CHANNELS, frame_max: FRAME_MAX, heartbeat_secs: 0 },
            capabilities: Capabilities::ALL,
            client_properties: FieldTable::new(),
        };
        let mut session = Box::pin(self.pool.open(login, vhost, client)).await.map_err(of_refusal)?;
        if let Some(is_isolated) = self.without_replay {
            session = session.without_replay(is_isolated);
        }
        Ok(AmqpClient::new(Box::new(session), inner, FRAME_MAX))
    }
}

/// Distinguishes a refusal by the upstream from a failure to ask it.
fn of_refusal(refusal: Refusal) -> OpenError {
    match refusal {
        Refusal::Login(text) => OpenError::Refused(Fault::new(ReplyCode::AccessRefused, text)),
        Refusal::Fault(fault) if matches!(fault.code, ReplyCode::AccessRefused | ReplyCode::NotAllowed) => {
            OpenError::Refused(fault)
        }
        Refusal::Fault(fault) => OpenError::Unreachable(fault),
    }
}
