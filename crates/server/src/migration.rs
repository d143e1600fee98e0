//! Migration: moves the messages of this broker's queues to another broker's queues of the same names, or from there to
//! here, while clients continue.
//!
//! - [`window`]: the messages in flight, in order. Sans-IO.
//! - [`origin`]: headers with the data that a message loses when it moves.
//! - [`run`]: the turns of a dialogue with the other broker about one queue.
//! - [`outgoing`]: moves a queue's messages there.
//! - [`exchanges`]: records and deletes the exchanges that they leave through.
//! - [`incoming`]: moves a queue's messages here.
//! - [`counting`]: counts the messages of queues there.
//! - [`keeping`]: keeps queues there from expiring.
//! - [`progress`]: the state of each queue.
//!
//! Invariants: a message is removed from one broker's disk only when the other has confirmed it. Messages of a queue keep
//! their order. A message that the other broker refuses stays where it is, with all later ones. No state about single
//! messages is kept: after a crash of either side, the messages in flight are moved again.
//!
//! Out of scope: definitions (`leveret ctl migrate` copies them), and turning the process into a pool.

mod counting;
mod exchanges;
mod incoming;
mod keeping;
mod origin;
mod outgoing;
mod progress;
mod run;
#[cfg(test)]
mod tests;
mod window;

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amqp::Credentials;
use broker::{Broker, Queue, Timestamp, VirtualHost};
use parking_lot::Mutex;
use proxy::Pool;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

pub use self::exchanges::ExchangeRecord;
use self::origin::exchange_for;
use self::progress::ProgressTable;
pub use self::progress::{MovedQueue, MovedQueueState};
use crate::alarms::Alarms;
use crate::clock::Clock;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::task::{OpenError, OpenUpstream as _};
use crate::upstream::multiplexing::{PoolUpstream, UpstreamLogin};

/// Queues that move at a time. Each has some MiB in flight, and a channel there.
const AT_ONCE: usize = 16;

/// The minimum pause between two surveys of all queues; it is longer if surveys take long.
const MIN_SURVEY_PAUSE: Duration = Duration::from_millis(100);
/// The maximum pause, however many queues there are: new messages wait for it.
const MAX_SURVEY_PAUSE: Duration = Duration::from_secs(2);
/// The pause is this many times as long as a survey, within these limits.
const SURVEY_SHARE: u32 = 10;

/// Measures the time that surveys take, without waits, and derives the pause between them.
#[derive(Default)]
struct SurveyPause(Duration);

impl SurveyPause {
    /// Runs a part of a survey.
    fn look<T>(&mut self, look: impl FnOnce() -> T) -> T {
        let begun = transport::now();
        let found = look();
        self.0 += transport::now() - begun;
        found
    }

    /// The pause after the survey.
    fn take(&mut self) -> Duration {
        (mem::take(&mut self.0) * SURVEY_SHARE).clamp(MIN_SURVEY_PAUSE, MAX_SURVEY_PAUSE)
    }
}

/// The direction of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveDirection {
    /// To the other broker.
    Out,
    /// From the other broker.
    In,
}

/// The settings of a migration, with its login.
pub struct MigrationConfig {
    /// Whether messages leave, or come.
    pub direction: MoveDirection,
    /// No messages are fetched while one of them is raised.
    pub alarms: Arc<Alarms>,
    /// Connections to the other broker.
    pub pool: Arc<Pool>,
    /// A user there with all permissions in all virtual hosts.
    pub user: String,
    /// The password of `user` there.
    pub password: String,
    /// The virtual hosts to migrate; `None` for all.
    pub vhosts: Option<Vec<String>>,
    /// Queues, by virtual host and name, whose messages are not moved.
    pub skipped: Vec<(String, String)>,
    /// A text that distinguishes this broker's messages from other brokers', for their ids.
    pub broker_id: String,
    /// The record of exchanges that may exist at the other broker.
    pub exchanges: ExchangeRecord,
}

/// A migration of all queues, until it is stopped.
pub struct Migration {
    context: Arc<MoveContext>,
    pool: Arc<Pool>,
    /// Set once it has started.
    task: Mutex<Option<JoinHandle<()>>>,
}

type ConnectTarget = dyn Fn(&str, bool) -> TargetConnectFuture + Send + Sync;
type TargetConnectFuture = Pin<Box<dyn Future<Output = Result<AmqpClient, OpenError>> + Send>>;

/// The state shared by all queues' runs.
struct MoveContext {
    broker: Arc<Broker>,
    clock: Clock,
    direction: MoveDirection,
    /// As in [`MigrationConfig`].
    alarms: Arc<Alarms>,
    /// Opens a connection to the other broker, in a virtual host; not shared with other runs if the flag is set.
    connect: Box<ConnectTarget>,
    /// The user of these connections.
    user: String,
    /// As in [`MigrationConfig`].
    vhosts: Option<Vec<String>>,
    skipped: Vec<(String, String)>,
    broker_id: String,
    exchanges: ExchangeRecord,
    progress: ProgressTable,
    permits: Arc<Semaphore>,
    /// Ends the pause before the next survey.
    retried: Notify,
    /// Set when the migration is stopped: no further message is moved.
    is_stopped: AtomicBool,
    /// Set once the other broker has accepted a message with another user's user_id.
    may_impersonate: AtomicBool,
}

/// A queue with a run in progress.
struct MovingQueue {
    context: Arc<MoveContext>,
    vhost: Arc<VirtualHost>,
    queue: Arc<Queue>,
    _permit: OwnedSemaphorePermit,
}

impl Migration {
    /// A migration of all queues except exclusive ones, which has to be [started](Self::begin).
    pub fn new(broker: Arc<Broker>, clock: Clock, config: MigrationConfig) -> Arc<Self> {
        let MigrationConfig {
            direction,
            alarms,
            pool,
            user,
            password,
            vhosts,
            skipped,
            broker_id,
            exchanges,
        } = config;
        let credentials = Arc::new(Credentials::plain(user.clone(), password));
        let of_login = Arc::clone(&pool);
        let connect = move |vhost: &str, is_isolated: bool| -> TargetConnectFuture {
            connect_target(&of_login, &credentials, vhost, is_isolated)
        };
        let context = MoveContext {
            broker,
            clock,
            direction,
            alarms,
            connect: Box::new(connect),
            user,
            vhosts,
            skipped,
            broker_id,
            exchanges,
            progress: ProgressTable::default(),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            retried: Notify::new(),
            is_stopped: AtomicBool::new(false),
            may_impersonate: AtomicBool::new(false),
        };
        let context = Arc::new(context);
        Arc::new(Self { context, pool, task: Mutex::default() })
    }

    /// Starts to move messages. Must be called within a runtime.
    pub fn begin(&self) {
        let context = Arc::clone(&self.context);
        self.task.lock().get_or_insert_with(|| tokio::spawn(context.move_all()));
    }

    /// The direction of the migration.
    pub fn direction(&self) -> MoveDirection {
        self.context.direction
    }

    /// Checks the login at the other broker in every virtual host.
    ///
    /// # Errors
    /// The login is refused in one of them, or the other broker is unreachable.
    pub async fn check_logins(&self) -> Result<(), MoveLoginError> {
        for vhost in self.context.vhosts() {
            run::close(self.context.connect(vhost.name(), false).await?).await;
        }
        Ok(())
    }

    /// Deletes the exchanges that a crash during an earlier migration has left at the other broker, as far as it answers.
    /// Must precede [`Self::begin`].
    pub async fn delete_left_exchanges(&self) {
        exchanges::delete_left(&self.context).await;
    }

    /// The queues that have had messages since the start, in order. `ready` and `unacked` are current.
    pub fn queues(&self) -> Vec<MovedQueue> {
        self.context.progress.all(&self.context.broker)
    }

    /// Whether nothing but unacknowledged messages is left to move now: here, or for an incoming migration, there.
    pub fn is_done(&self) -> bool {
        let Self { context, .. } = self;
        context.queues().iter().all(|(vhost, queue)| match context.direction {
            MoveDirection::Out => queue.message_count() == 0 && !context.progress.is_moving(vhost, queue),
            MoveDirection::In => context.progress.was_empty(vhost, queue),
        })
    }

    /// Tries messages again at once that the other broker has refused.
    pub fn retry(&self) {
        self.context.progress.retry();
        self.context.retried.notify_one();
    }

    /// Messages of this broker that have not moved, including unacknowledged ones.
    pub fn messages_left(&self) -> u64 {
        let queues = self.context.queues();
        queues.iter().map(|(_, queue)| queue.message_count() + queue.unacked_count()).sum()
    }

    /// The ready messages among them, which can be moved now.
    pub fn ready_left(&self) -> u64 {
        self.context.queues().iter().map(|(_, queue)| queue.message_count()).sum()
    }

    /// Counts the messages of migrated queues at the other broker.
    ///
    /// # Errors
    /// The other broker is unreachable.
    pub async fn count_target_messages(&self) -> Result<(), MoveLoginError> {
        counting::count(&self.context).await
    }

    /// Waits for the answers to messages in flight; no further message is moved.
    pub async fn stop(&self) {
        self.context.is_stopped.store(true, Ordering::Release);
        // Every run holds a permit, and ends soon.
        let all = self.context.permits.acquire_many(AT_ONCE as u32).await;
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        drop(all);
        // After the limit, the exchanges are left there until the next migration or restart; each routes to one queue
        // only.
        if self.context.direction == MoveDirection::Out {
            let _ = tokio::time::timeout(run::CLOSE_TIMEOUT, exchanges::delete_own(&self.context)).await;
        }
        self.pool.drain(run::CLOSE_TIMEOUT, run::CLOSE_TIMEOUT).await;
    }
}

/// Checks a login at another broker in these virtual hosts, without any move, and closes the connections of `pool`.
///
/// # Errors
/// As for [`Migration::check_logins`].
pub async fn check_target_login(
    pool: &Arc<Pool>,
    user: &str,
    password: &str,
    vhosts: &[String],
) -> Result<(), MoveLoginError> {
    let credentials = Arc::new(Credentials::plain(user, password));
    let check_all = async {
        for vhost in vhosts {
            run::close(connect_target(pool, &credentials, vhost, false).await?).await;
        }
        Ok(())
    };
    let checked = check_all.await;
    pool.drain(run::CLOSE_TIMEOUT, run::CLOSE_TIMEOUT).await;
    checked
}

fn connect_target(
    pool: &Arc<Pool>,
    credentials: &Arc<Credentials>,
    vhost: &str,
    is_isolated: bool,
) -> TargetConnectFuture {
    let login = UpstreamLogin { prefix: "move-", credentials: Arc::clone(credentials), vhost: vhost.into() };
    let upstream = PoolUpstream::new(pool, &login).without_replay(is_isolated);
    Box::pin(async move { upstream.open().await })
}

/// The reason why there is no session at the other broker.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MoveLoginError {
    /// The other broker refuses the login or the virtual host.
    #[error("other broker refused the login: {0}")]
    Refused(String),
    /// The other broker is unreachable, or does not answer now.
    #[error("other broker not responding: {0}")]
    Unreachable(String),
}

impl From<OpenError> for MoveLoginError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Refused(fault) => Self::Refused(fault.reply_text()),
            OpenError::Unreachable(fault) => Self::Unreachable(fault.reply_text()),
        }
    }
}

/// Whether a queue's messages may move. Exclusive queues belong to a connection here, and server-named queues cannot be
/// declared at another broker.
fn may_move(queue: &Queue) -> bool {
    queue.properties().owner.is_none() && !queue.name().starts_with("amq.")
}

impl MoveContext {
    async fn connect(&self, vhost: &str, is_isolated: bool) -> Result<AmqpClient, OpenError> {
        (self.connect)(vhost, is_isolated).await
    }

    /// The virtual hosts whose queues move.
    fn vhosts(&self) -> Vec<Arc<VirtualHost>> {
        let mut vhosts = self.broker.vhosts();
        if let Some(names) = &self.vhosts {
            vhosts.retain(|vhost| names.iter().any(|name| name == vhost.name()));
        }
        vhosts
    }

    /// The queues that move, with their virtual hosts.
    fn queues(&self) -> Vec<(Arc<VirtualHost>, Arc<Queue>)> {
        let of = |vhost: Arc<VirtualHost>| {
            let queues = self.queues_of(&vhost);
            queues.into_iter().map(move |queue| (Arc::clone(&vhost), queue))
        };
        self.vhosts().into_iter().flat_map(of).collect()
    }

    fn queues_of(&self, vhost: &VirtualHost) -> Vec<Arc<Queue>> {
        let mut queues = vhost.all_queues();
        let is_skipped = |queue: &Queue| {
            self.skipped.iter().any(|(home, name)| home == vhost.name() && **name == **queue.name())
        };
        queues.retain(|queue| may_move(queue) && !is_skipped(queue));
        queues
    }

    fn timestamp(&self, now: Instant) -> Timestamp {
        self.clock.timestamp(now)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Moves messages, and keeps queues at the other broker from expiring, until the migration is stopped.
    async fn move_all(self: Arc<Self>) {
        match self.direction {
            MoveDirection::Out => _ = tokio::join!(self.start_moves(), keeping::keep(&self)),
            MoveDirection::In => self.start_moves().await,
        }
    }

    /// Repeatedly starts a run for each queue that has something to move and is due.
    async fn start_moves(self: &Arc<Self>) {
        let mut pause = SurveyPause::default();
        while !self.is_stopped() {
            for vhost in self.vhosts() {
                let due = pause.look(|| {
                    let mut queues = self.queues_of(&vhost);
                    queues.retain(|queue| self.is_wanted(queue) && self.progress.is_due(&vhost, queue));
                    queues
                });
                for some in due.chunks(exchanges::AT_ONCE) {
                    self.record_exchanges(&vhost, some).await;
                    for queue in some {
                        self.start_move(&vhost, Arc::clone(queue)).await;
                    }
                }
                // Other tasks have their turns between the virtual hosts.
                tokio::task::yield_now().await;
            }
            // A retry may be requested at any time.
            let _ = tokio::time::timeout(pause.take(), self.retried.notified()).await;
        }
    }

    /// Records the exchanges of queues that are tried for the first time.
    async fn record_exchanges(&self, vhost: &VirtualHost, queues: &[Arc<Queue>]) {
        if self.direction == MoveDirection::Out {
            let new = queues.iter().filter(|queue| !self.progress.is_known(vhost, queue));
            let names = new.map(|queue| exchange_for(&self.broker_id, queue.name())).collect();
            self.exchanges.record_new(vhost.name(), names).await;
        }
    }

    /// Whether the queue may have messages to move. For an incoming migration only the other broker knows.
    fn is_wanted(&self, queue: &Queue) -> bool {
        self.direction == MoveDirection::In || queue.message_count() > 0
    }

    async fn start_move(self: &Arc<Self>, vhost: &Arc<VirtualHost>, queue: Arc<Queue>) {
        let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return };
        if self.is_stopped() {
            return;
        }
        let (context, vhost) = (Arc::clone(self), Arc::clone(vhost));
        self.progress.begun(&vhost, &queue);
        let moving = MovingQueue { context, vhost, queue, _permit: permit };
        tokio::spawn(async move {
            let end = match moving.context.direction {
                MoveDirection::Out => outgoing::run(&moving).await,
                MoveDirection::In => incoming::run(&moving).await,
            };
            moving.context.progress.ended(&moving.vhost, &moving.queue, end, transport::now());
        });
    }
}
