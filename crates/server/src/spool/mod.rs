//! The spool: publishes that are confirmed once they are on this host's disk, and forwarded to the upstream later.
//!
//! - [`rules`]: which publishes it takes.
//! - [`session`]: a client's session in front of the upstream, whose matching publishes it takes.
//! - [`local`]: the local queues, one for each virtual host and user, in a broker with a data folder of its own. No listener
//!   reaches that broker; sessions publish to it, and forwarders take from it, without AMQP in between.
//! - [`forwarder`] and [`link`]: the task of a user's queues, and its conversation with the upstream through the pool. The
//!   order of messages, retries and refusals are decided by the crate `spool`.
//! - [`mode`]: whether an operator has paused the spool, or drains it.
//! - [`parking`]: messages that the upstream refuses for good.
//!
//! Invariants: a publish is confirmed only when it is on disk; it leaves the disk only when the upstream has confirmed it, or
//! when it is on disk as a parked one. A client without a matching rule has a session of the pool and nothing else.
//!
//! Credentials that the upstream has accepted are remembered in memory, and as salted hashes on disk ([`logins`]): with them a
//! client is let in while no upstream can be asked, until one has been ([`unasked`]).

mod forwarder;
mod link;
mod local;
mod logins;
mod mode;
mod parking;
mod rules;
mod session;
#[cfg(test)]
mod tests;
mod unasked;

use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use amqp::handshake::OpenRequest;
use amqp::{Credentials, Fault, ReplyCode};
use broker::{Broker, Timestamp};
use parking_lot::Mutex;
use proxy::Pool;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use transport::{InnerOutbox, Outbox};

use crate::alarms::Alarms;
use crate::amqp::session::BackendSession;
use crate::backend::{BackendLogin, Clock, LoginError, LoginRequest};
use crate::server::Shared;
use crate::upstream::client::AmqpClient;
use crate::upstream::sharing::task::{OpenError, OpenUpstream};
use crate::upstream::sharing::{PoolUpstream, SharedLogin};

pub use self::local::SpoolStatus;
use self::local::{LocalSpool, SpoolQueue};
pub use self::mode::ForwardingMode;
pub use self::parking::ParkedMessage;
pub use self::rules::SpoolRule;
use self::session::SpoolingSession;

/// Interval at which the age of the oldest message is compared with the limit.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// An upstream that has not decided about a login in this time counts as one that cannot be asked, if the spool knows the
/// login: the Java client waits 5 seconds for a whole handshake.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// The rules of a spool, and its limits.
#[derive(Debug, Clone)]
pub struct SpoolConfig {
    /// A publish is taken if any of them matches.
    pub rules: Vec<SpoolRule>,
    /// Bytes of messages above which publishers are blocked.
    pub max_bytes: u64,
    /// Age of the oldest message above which publishers are blocked.
    pub max_age: Duration,
    /// Whether a publish that a rule matches, and that cannot be spooled, is refused instead of going directly to the upstream.
    pub refuses_others: bool,
    /// How long credentials that the upstream has accepted let clients in while it cannot be asked.
    pub auth_max: Duration,
    /// The file in which they are remembered, as salted hashes.
    pub logins: Option<PathBuf>,
    /// Bytes of the largest message that is taken. Larger ones go directly to the upstream.
    pub max_message: u64,
}

/// How forwarders reach the upstream.
struct UpstreamAccess {
    connect: Box<dyn Fn(SharedLogin) -> Connecting + Send + Sync>,
    /// Whether an upstream answers; `None` if that is not known.
    answers: Box<dyn Fn() -> Option<bool> + Send + Sync>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<AmqpClient, OpenError>> + Send>>;

impl UpstreamAccess {
    /// Opens a connection for a login.
    fn connect(&self, login: SharedLogin) -> Connecting {
        (self.connect)(login)
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
        let (pool, asked) = (Arc::clone(pool), Arc::clone(pool));
        let connect = move |login| -> Connecting {
            let upstream = PoolUpstream::new(&pool, &login);
            Box::pin(async move { upstream.open().await })
        };
        let answers = move || asked.answers();
        let upstream = UpstreamAccess { connect: Box::new(connect), answers: Box::new(answers) };
        Self::start_with(broker, upstream, clock, config)
    }

    fn start_with(
        broker: Arc<Broker>,
        upstream: UpstreamAccess,
        clock: Clock,
        config: SpoolConfig,
    ) -> Result<Arc<Self>, SpoolError> {
        let local = LocalSpool::open(broker, clock, config)?;
        let (upstream, forwarders) = (Arc::new(upstream), Mutex::default());
        let spool = Arc::new(Self { local, upstream, forwarders, runtime: Handle::current() });
        for queue in spool.local.queues() {
            spool.forward(queue);
        }
        let watched = Arc::downgrade(&spool.local);
        tokio::spawn(async move {
            while let Some(local) = watched.upgrade() {
                local.check_limits();
                local.measure(WATCH_INTERVAL);
                drop(local);
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        });
        Ok(spool)
    }

    /// The alarms that block its publishers.
    pub fn alarms(&self) -> &Arc<Alarms> {
        self.local.alarms()
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
        tracing::info!(mode = mode.name(), "an operator has changed the mode of the spool");
        self.local.set_mode(mode);
    }

    /// Clients that were let in since the start without asking the upstream.
    pub fn let_in(&self) -> u64 {
        self.local.logins().let_in()
    }

    /// Its local queues, in no order, each with what keeps it from being forwarded.
    pub fn status(&self) -> Vec<SpoolStatus> {
        self.local.queues().iter().map(|queue| self.local.status(queue)).collect()
    }

    /// Number of messages that the upstream has refused for good.
    pub fn parked(&self) -> u64 {
        self.local.parked().count()
    }

    /// The first parked messages, oldest first. Blocks on the disk.
    pub fn parked_messages(&self) -> Vec<ParkedMessage> {
        self.local.parked().list(now_of(&self.local))
    }

    /// Forwards parked messages again; returns their number. Blocks on the disk, for long if there are many.
    pub fn requeue_parked(&self) -> u64 {
        let queue_of = |envelope: &spool::Envelope| self.queue(envelope.vhost(), envelope.user()).ok();
        self.local.parked().requeue(&self.local, transport::now(), queue_of)
    }

    /// Drops all parked messages; returns their number.
    pub fn purge_parked(&self) -> u64 {
        let count = self.local.parked().purge();
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
        self.forwarders.lock().push(self.runtime.spawn(task));
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
    /// Its folder holds something else.
    #[error("the folder is not that of a spool: {0}")]
    Foreign(String),
}

impl Shared {
    /// Opens a virtual host of the upstream for an AMQP client: with the spool's rules around it, if any of them may match its
    /// publishes.
    ///
    /// # Errors
    /// As [`crate::Backend::open_upstream`].
    pub(crate) async fn open_amqp(
        self: &Arc<Self>,
        login: proxy::Login,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let credentials: Arc<Credentials> = Arc::clone(login.credentials());
        let (user, is_vouched) = (credentials.username.clone(), login.is_vouched());
        let exchanges = self.spool().and_then(|spool| {
            let exchanges = spool.local.rules().exchanges_of(&request.virtual_host, &user)?;
            Some((Arc::clone(spool), exchanges))
        });
        let Some((spool, exchanges)) = exchanges else {
            if is_vouched {
                return Err(cannot_be_asked());
            }
            return self.backend.open_upstream(login, request, outbox).await;
        };
        let local = Arc::clone(&spool.local);
        let vhost = &*request.virtual_host;
        if is_vouched && !local.logins().vouch_for(Some(vhost), &credentials, now_of(&local)).await {
            return Err(cannot_be_asked());
        }
        let inner = InnerOutbox::new(self.config.outbox_limit / 2);
        let opened = self.backend.open_upstream(login, request, Arc::clone(inner.outbox())).await;
        if let Err(fault) = &opened
            && fault.code == ReplyCode::NotAllowed
        {
            local.logins().refused(Some(vhost), &credentials);
        }
        let session = opened?;
        let queue = spool.queue(vhost, &user)?;
        let unasked = if is_vouched {
            local.logins().lets_in();
            Some(queue.let_in(Arc::clone(&credentials), &outbox))
        } else {
            local.logins().accepted(vhost, &credentials, now_of(&local));
            queue.logged_in(Arc::clone(&credentials));
            None
        };
        let (inner, login) = ((session, inner), (credentials, unasked));
        Ok(Box::new(SpoolingSession::new(self, inner, (local, queue), login, exchanges, request, outbox)))
    }

    /// Whether a client may be let in although no upstream answers, if its credentials are right.
    pub(crate) fn lets_in_offline(&self) -> bool {
        self.spool().is_some_and(|spool| spool.local.logins().has_any(now_of(&spool.local)))
    }

    /// Checks the credentials of an AMQP client by asking the upstream; while it cannot be asked, by what the spool remembers.
    pub(crate) async fn login_amqp(
        self: &Arc<Self>,
        credentials: Credentials,
        client: LoginRequest,
    ) -> Result<BackendLogin, LoginError> {
        if !self.lets_in_offline() {
            return self.backend.login(credentials, client).await;
        }
        let presented = Arc::new(credentials.copy());
        if self.backend.answers() == Some(false)
            && let Some(login) = self.vouch_for(&presented, client).await
        {
            return Ok(login);
        }
        let mut asking = pin!(self.backend.login(credentials, client));
        let asked = match tokio::time::timeout(ASKED_FOR, asking.as_mut()).await {
            Ok(asked) => asked,
            Err(_) => match self.vouch_for(&presented, client).await {
                Some(login) => return Ok(login),
                None => asking.await,
            },
        };
        match &asked {
            Err(LoginError::Failed(fault)) if fault.code == ReplyCode::ConnectionForced => {
                self.vouch_for(&presented, client).await.map_or(asked, Ok)
            }
            Err(LoginError::Refused { .. }) => {
                if let Some(spool) = self.spool() {
                    spool.local.logins().refused(None, &presented);
                }
                asked
            }
            _ => asked,
        }
    }

    async fn vouch_for(&self, credentials: &Arc<Credentials>, client: LoginRequest) -> Option<BackendLogin> {
        let local = &self.spool()?.local;
        let is_known = local.logins().vouch_for(None, credentials, now_of(local)).await;
        if is_known { self.backend.vouched(credentials.copy(), client) } else { None }
    }
}

fn now_of(local: &LocalSpool) -> Timestamp {
    local.timestamp(transport::now())
}

/// As for any client while no upstream answers: its connection ends like one to a dead broker.
fn cannot_be_asked() -> Fault {
    Fault::new(ReplyCode::ConnectionForced, "no upstream answers")
}
