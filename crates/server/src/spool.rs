//! The spool: confirms publishes once they are on this host's disk, and forwards them to the upstream later.
//!
//! - [`rules`]: the choice of publishes.
//! - [`session`]: a client's session in front of the upstream, which spools matching publishes.
//! - [`local`]: the local queues, one for each virtual host and user, in a broker with its own data directory. No
//!   listener reaches that broker: sessions publish to it, and forwarders consume from it, directly.
//! - [`forwarder`] and [`link`]: the task of a user's queues, and its dialogue with the upstream through the pool. The
//!   crate `spool` decides about order, retries and refusals.
//! - [`mode`]: running, paused or draining, as set by an operator.
//! - [`parking`]: messages that the upstream refuses permanently. [`selection`]: the choice of
//!   messages by user and virtual host.
//!
//! Invariants: a publish is confirmed only when it is on disk. It is removed from disk only when the upstream has
//! confirmed it, or when it is on disk as a parked message. A client without a matching rule has a plain session of the
//! pool.
//!
//! Credentials that the upstream has accepted are remembered, on disk as salted hashes ([`logins`]). A client that
//! presents them is admitted before the upstream's decision ([`admission`]), which is requested as soon as the upstream
//! can be asked ([`provisional`], [`refusals`]).

mod admission;
mod forwarder;
mod link;
mod local;
mod logins;
mod mode;
mod parking;
mod provisional;
mod refusals;
mod rules;
mod selection;
mod session;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amqp::Fault;
use broker::{Broker, Store};
use parking_lot::Mutex;
use proxy::Pool;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::alarms::Alarms;
use crate::clock::Clock;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::task::{OpenError, OpenUpstream};
use crate::upstream::multiplexing::{PoolUpstream, UpstreamLogin};

pub(crate) use self::admission::PendingLogin;
use self::admission::{ask_upstream, now_of};
pub use self::local::SpoolStatus;
use self::local::{LocalSpool, SpoolQueue};
pub use self::mode::ForwardingMode;
pub use self::parking::ParkedMessage;
use self::provisional::{AskUpstream, ProvisionalLogins};
pub use self::rules::SpoolRule;
pub use self::selection::SpoolSelection;

/// Interval at which the age of the oldest message is compared with the limit.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Intervals between two checks for expired logins and unused queues.
const INTERVALS_OF_CLEANING: u32 = 60;

/// How long forwarders may take to release the messages that an operator drops: usually none, unless threads are busy.
const PURGE_LIMIT: Duration = Duration::from_secs(10);

/// The rules of a spool, and its limits.
#[derive(Debug, Clone)]
pub struct SpoolConfig {
    /// A publish is spooled if any rule matches.
    pub rules: Vec<SpoolRule>,
    /// Bytes of messages above which publishers are blocked.
    pub max_bytes: u64,
    /// Age of the oldest message above which publishers are blocked.
    pub max_age: Duration,
    /// How long the upstream may nack a message before it is parked; `None` for no limit.
    pub nacked_max: Option<Duration>,
    /// Whether a publish that a rule matches but that cannot be spooled is refused, instead of being published directly.
    pub refuses_others: bool,
    /// How long accepted credentials admit clients while the upstream cannot be asked.
    pub auth_max: Duration,
    /// The file with the remembered credentials, as salted hashes.
    pub logins: Option<PathBuf>,
    /// Bytes of the largest message that is spooled. Larger ones are published directly to the upstream.
    pub max_message: u64,
}

/// The forwarders' access to the upstream.
struct UpstreamAccess {
    connect: Box<dyn Fn(UpstreamLogin, bool) -> Connecting + Send + Sync>,
    /// Whether an upstream answers; `None` if unknown.
    answers: Box<dyn Fn() -> Option<bool> + Send + Sync>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<AmqpClient, OpenError>> + Send>>;

impl UpstreamAccess {
    /// Opens a connection for a login, not shared with other clients if it `is_isolated`.
    fn connect(&self, login: UpstreamLogin, is_isolated: bool) -> Connecting {
        (self.connect)(login, is_isolated)
    }

    fn answers(&self) -> Option<bool> {
        (self.answers)()
    }
}

/// A spool with its forwarders. Its queues outlive it on disk.
pub struct Spool {
    local: Arc<LocalSpool>,
    upstream: Arc<UpstreamAccess>,
    forwarders: Mutex<Vec<JoinHandle<()>>>,
    runtime: Handle,
    /// Clients about which the upstream has not decided, and the request for that.
    provisional: Arc<ProvisionalLogins>,
    ask: AskUpstream,
    /// Number of clients that were admitted before the upstream's decision.
    offline_logins: AtomicU64,
}

impl Spool {
    /// Starts forwarding the messages of `broker`, which only the spool uses. Must be called within a runtime.
    ///
    /// # Errors
    /// The broker has no default virtual host, or its queues are not those of a spool.
    pub fn start(
        broker: Arc<Broker>,
        pool: &Arc<Pool>,
        clock: Clock,
        config: SpoolConfig,
    ) -> Result<Arc<Self>, SpoolError> {
        let local = LocalSpool::open(broker, clock, config)?;
        let ask = ask_upstream(pool, &local);
        let (pool, asked) = (Arc::clone(pool), Arc::clone(pool));
        let connect = move |login, is_isolated| -> Connecting {
            let upstream = PoolUpstream::new(&pool, &login).without_replay(is_isolated);
            Box::pin(async move { upstream.open().await })
        };
        let answers = move || asked.answers();
        let upstream = UpstreamAccess { connect: Box::new(connect), answers: Box::new(answers) };
        Ok(Self::start_with(local, upstream, ask))
    }

    fn start_with(local: Arc<LocalSpool>, upstream: UpstreamAccess, ask: AskUpstream) -> Arc<Self> {
        let spool = Arc::new(Self {
            local,
            upstream: Arc::new(upstream),
            forwarders: Mutex::default(),
            runtime: Handle::current(),
            provisional: Arc::default(),
            ask,
            offline_logins: AtomicU64::new(0),
        });
        spool.local.check_limits();
        for queue in spool.local.queues() {
            spool.warn_of_unmatched(&queue);
            spool.forward(queue);
        }
        let watched = Arc::downgrade(&spool.local);
        tokio::spawn(async move {
            for interval in 1_u32.. {
                let Some(local) = watched.upgrade() else { break };
                local.count_unreadable();
                local.check_limits();
                local.delete_emptied();
                local.measure(WATCH_INTERVAL);
                if interval % INTERVALS_OF_CLEANING == 0 {
                    local.remove_unused(transport::now());
                    local.logins().expire(local.timestamp(transport::now()));
                }
                drop(local);
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        });
        spool
    }

    /// The alarms that block its publishers.
    pub fn alarms(&self) -> &Arc<Alarms> {
        self.local.alarms()
    }

    /// The store of its local queues; `None` if they are in memory only.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.local.store()
    }

    /// Number of connections whose publishers are blocked by a limit of the spool.
    pub fn blocked_connections(&self) -> usize {
        self.local.blocked_connections()
    }

    /// The mode that an operator has chosen.
    pub fn mode(&self) -> ForwardingMode {
        self.local.mode()
    }

    /// Pauses forwarding, resumes it, or empties the spool, until the process ends or another call.
    pub fn set_mode(&self, mode: ForwardingMode) {
        tracing::info!(mode = mode.name(), "spool mode changed by operator");
        self.local.set_mode(mode);
    }

    /// Number of clients admitted since the start before the upstream's decision.
    pub fn offline_logins(&self) -> u64 {
        self.offline_logins.load(Ordering::Relaxed)
    }

    fn count_offline_login(&self) {
        self.offline_logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of clients about whose login the upstream has not decided yet.
    pub fn unverified_clients(&self) -> usize {
        self.provisional.count()
    }

    /// The status of its local queues, in no order, with the reasons why they are not forwarded.
    pub fn status(&self) -> Vec<SpoolStatus> {
        self.local.queues().iter().map(|queue| self.local.status(queue)).collect()
    }

    /// Number of messages that the upstream has refused permanently.
    pub fn parked(&self) -> u64 {
        self.local.parked().count()
    }

    /// The first parked messages, oldest first. Blocks on the disk.
    pub fn parked_messages(&self) -> Vec<ParkedMessage> {
        self.local.parked().list(&self.local, now_of(&self.local))
    }

    /// Forwards parked messages again; returns their number. Blocks on the disk, possibly for long.
    pub fn requeue_parked(&self, selection: SpoolSelection<'_>) -> u64 {
        let queue_of = |envelope: &spool::Envelope| self.queue(envelope.vhost(), envelope.user()).ok();
        self.local.parked().requeue(&self.local, selection, transport::now(), queue_of)
    }

    /// Drops parked messages; returns their number. Blocks on the disk, possibly for long unless all are dropped.
    pub fn purge_parked(&self, selection: SpoolSelection<'_>) -> u64 {
        let count = self.local.parked().purge(selection, now_of(&self.local));
        self.local.check_limits();
        count
    }

    /// Drops unconfirmed messages, including those in flight; returns their number. Blocks until the forwarders have
    /// released them.
    pub fn purge_waiting(&self, selection: SpoolSelection<'_>) -> u64 {
        let is_selected = |queue: &Arc<SpoolQueue>| selection.contains(queue.vhost(), queue.user());
        let queues: Vec<_> = self.local.queues().into_iter().filter(is_selected).collect();
        let asked: Vec<_> = queues.into_iter().map(|queue| (queue.ask_for_purge(), queue)).collect();
        let deadline = std::time::Instant::now() + PURGE_LIMIT;
        let mut count = 0;
        for (answer, queue) in asked {
            let rest = deadline.saturating_duration_since(std::time::Instant::now());
            // A forwarder that has panicked or is ending does not answer. The messages that it holds are redelivered
            // after the next start.
            let by_forwarder = if queue.has_forwarder() { answer.recv_timeout(rest).ok() } else { None };
            count += by_forwarder.unwrap_or_else(|| self.local.purge(&queue));
        }
        self.local.check_limits();
        count
    }

    /// Waits for confirms of messages in flight and closes the upstream connections, within `limit`. Nothing is forwarded
    /// afterwards.
    pub async fn drain(&self, limit: Duration) {
        self.local.drain();
        let forwarders = std::mem::take(&mut *self.forwarders.lock());
        let all = async {
            for task in forwarders {
                // A panicked task has also ended.
                let _ = task.await;
            }
        };
        // After the limit, forwarders end with the process; the rest is forwarded after the next start.
        let _ = tokio::time::timeout(limit, all).await;
    }

    fn forward(&self, queue: Arc<SpoolQueue>) {
        let task = forwarder::run(Arc::clone(&self.local), queue, Arc::clone(&self.upstream));
        let mut forwarders = self.forwarders.lock();
        // Forwarders of removed queues, and panicked ones, which have been reported.
        forwarders.retain(|forwarder| !forwarder.is_finished());
        forwarders.push(self.runtime.spawn(task));
    }

    /// Warns of messages spooled under former rules: their user's clients now publish directly to the upstream.
    fn warn_of_unmatched(&self, queue: &SpoolQueue) {
        let (vhost, user) = (queue.vhost(), queue.user());
        if self.local.rules().exchanges_of(vhost, user).is_none() {
            let messages = queue.messages();
            tracing::warn!(
                vhost,
                user,
                messages,
                "no spool rule matches the user of these spooled messages: \
                 they are forwarded once an AMQP client of this user logs in"
            );
        }
    }

    /// The local queue for these publishers, with its forwarder started.
    fn queue(&self, vhost: &str, user: &str) -> Result<Arc<SpoolQueue>, Fault> {
        let (queue, is_new) = self.local.queue(vhost, user)?;
        if is_new {
            self.forward(Arc::clone(&queue));
        }
        Ok(queue)
    }
}

/// Why a spool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Its directory contains something else.
    #[error("not a spool directory: {0}")]
    Foreign(String),
}
