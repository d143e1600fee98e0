//! The spool: publishes that are confirmed once they are on this host's disk, and forwarded to the upstream later.
//!
//! - [`rules`]: which publishes it takes.
//! - [`session`]: a client's session in front of the upstream, whose matching publishes it takes.
//! - [`local`]: the local queues, one for each virtual host and user, in a broker with a data directory of its own. No listener
//!   reaches that broker; sessions publish to it, and forwarders take from it, without AMQP in between.
//! - [`forwarder`] and [`link`]: the task of a user's queues, and its conversation with the upstream through the pool. The
//!   order of messages, retries and refusals are decided by the crate `spool`.
//! - [`mode`]: whether an operator has paused the spool, or drains it.
//! - [`parking`]: messages that the upstream refuses permanently. [`selection`]: the choice of
//!   messages by user and virtual host.
//!
//! Invariants: a publish is confirmed only when it is on disk; it leaves the disk only when the upstream has confirmed it, or
//! when it is on disk as a parked one. A client without a matching rule has a session of the pool and nothing else.
//!
//! Credentials that the upstream has accepted are remembered, on disk as salted hashes ([`logins`]). A client that presents
//! them is admitted before the upstream has decided ([`admission`]), which then decides as soon as it can be asked
//! ([`provisional`], [`refusals`]).

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

/// Intervals between two looks at what has expired or is unused.
const INTERVALS_OF_CLEANING: u32 = 60;

/// How long forwarders may take to give back the messages that an operator drops: each at once, if threads have time for it.
const PURGE_LIMIT: Duration = Duration::from_secs(10);

/// The rules of a spool, and its limits.
#[derive(Debug, Clone)]
pub struct SpoolConfig {
    /// A publish is taken if any of them matches.
    pub rules: Vec<SpoolRule>,
    /// Bytes of messages above which publishers are blocked.
    pub max_bytes: u64,
    /// Age of the oldest message above which publishers are blocked.
    pub max_age: Duration,
    /// For how long the upstream may nack a message before it is parked; `None` for no limit.
    pub nacked_max: Option<Duration>,
    /// Whether a publish that a rule matches, and that cannot be spooled, is refused instead of going directly to the upstream.
    pub refuses_others: bool,
    /// How long credentials that the upstream has accepted admit clients while it cannot be asked.
    pub auth_max: Duration,
    /// The file in which they are remembered, as salted hashes.
    pub logins: Option<PathBuf>,
    /// Bytes of the largest message that is taken. Larger ones go directly to the upstream.
    pub max_message: u64,
}

/// How forwarders reach the upstream.
struct UpstreamAccess {
    connect: Box<dyn Fn(UpstreamLogin, bool) -> Connecting + Send + Sync>,
    /// Whether an upstream answers; `None` if that is not known.
    answers: Box<dyn Fn() -> Option<bool> + Send + Sync>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<AmqpClient, OpenError>> + Send>>;

impl UpstreamAccess {
    /// Opens a connection for a login, which is shared with nobody if it `is_isolated`.
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
    /// Clients about which the upstream has not decided, and how it is asked.
    provisional: Arc<ProvisionalLogins>,
    ask: AskUpstream,
    /// Number of clients that were admitted before the upstream had decided.
    offline_logins: AtomicU64,
}

impl Spool {
    /// Starts to forward what `broker` has, which is the spool's alone. Must be called within a runtime.
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

    /// The store of its local queues; `None` if these are in memory alone.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.local.store()
    }

    /// Connections whose publishers wait because a limit of the spool is exceeded.
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

    /// Clients that were admitted since the start before the upstream had decided about their login.
    pub fn offline_logins(&self) -> u64 {
        self.offline_logins.load(Ordering::Relaxed)
    }

    fn count_offline_login(&self) {
        self.offline_logins.fetch_add(1, Ordering::Relaxed);
    }

    /// Clients about whose login the upstream has not decided yet.
    pub fn unverified_clients(&self) -> usize {
        self.provisional.count()
    }

    /// Its local queues, in no order, each with what keeps it from being forwarded.
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

    /// Forwards parked messages again; returns their number. Blocks on the disk, for long if there are many.
    pub fn requeue_parked(&self, selection: SpoolSelection<'_>) -> u64 {
        let queue_of = |envelope: &spool::Envelope| self.queue(envelope.vhost(), envelope.user()).ok();
        self.local.parked().requeue(&self.local, selection, transport::now(), queue_of)
    }

    /// Drops parked messages; returns their number. Blocks on the disk, for long if there are many, unless it is for all.
    pub fn purge_parked(&self, selection: SpoolSelection<'_>) -> u64 {
        let count = self.local.parked().purge(selection, now_of(&self.local));
        self.local.check_limits();
        count
    }

    /// Drops messages that the upstream has not confirmed, also those in flight; returns their number. Blocks until the
    /// forwarders have given them back.
    pub fn purge_waiting(&self, selection: SpoolSelection<'_>) -> u64 {
        let is_selected = |queue: &Arc<SpoolQueue>| selection.contains(queue.vhost(), queue.user());
        let queues: Vec<_> = self.local.queues().into_iter().filter(is_selected).collect();
        let asked: Vec<_> = queues.into_iter().map(|queue| (queue.ask_for_purge(), queue)).collect();
        let deadline = std::time::Instant::now() + PURGE_LIMIT;
        let mut count = 0;
        for (answer, queue) in asked {
            let rest = deadline.saturating_duration_since(std::time::Instant::now());
            // A forwarder that has panicked, or ends, answers nothing; what it has read is redelivered after the next start.
            let by_forwarder = if queue.has_forwarder() { answer.recv_timeout(rest).ok() } else { None };
            count += by_forwarder.unwrap_or_else(|| self.local.purge(&queue));
        }
        self.local.check_limits();
        count
    }

    /// Lets messages in flight be confirmed, and closes the connections to the upstream, within `limit`. Nothing is forwarded
    /// from then on.
    pub async fn drain(&self, limit: Duration) {
        self.local.drain();
        let forwarders = std::mem::take(&mut *self.forwarders.lock());
        let all = async {
            for task in forwarders {
                // A task that has panicked has ended, too.
                let _ = task.await;
            }
        };
        // Past the limit they end with the process; the rest is forwarded after the next start.
        let _ = tokio::time::timeout(limit, all).await;
    }

    fn forward(&self, queue: Arc<SpoolQueue>) {
        let task = forwarder::run(Arc::clone(&self.local), queue, Arc::clone(&self.upstream));
        let mut forwarders = self.forwarders.lock();
        // Forwarders of removed queues, and those that have panicked, which is reported already.
        forwarders.retain(|forwarder| !forwarder.is_finished());
        forwarders.push(self.runtime.spawn(task));
    }

    /// Reports messages from the time of other rules: the clients of their user publish directly to the upstream now.
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

    /// The local queue for these publishers, and its forwarder.
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
    /// Its directory holds something else.
    #[error("not a spool directory: {0}")]
    Foreign(String),
}
