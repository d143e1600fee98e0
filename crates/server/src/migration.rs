//! Moving out, and the way in: the messages of this broker's queues move to another broker's queues of the same names, or from
//! there to here, while clients continue.
//!
//! - [`window`]: how many messages are in flight, in order. Sans-IO.
//! - [`origin`]: headers with what a message loses by its move.
//! - [`run`]: the turns of a conversation with the other broker about one queue.
//! - [`outgoing`]: one queue's messages on their way there.
//! - [`exchanges`]: those that the messages leave by, on record and deleted.
//! - [`incoming`]: one queue's messages on their way here.
//! - [`counting`]: how many messages queues have there.
//! - [`keeping`]: queues that expire there are used.
//! - [`progress`]: how each queue stands.
//!
//! Invariants: a message leaves the disk of the one broker only when the other has confirmed it; messages of a queue keep their
//! order; a message that the other broker refuses stays where it is, with those behind it. Nothing about single messages is
//! remembered: after a crash of either side, the messages that were in flight are moved again.
//!
//! Out of scope: definitions (`leveret ctl migrate` copies them), and the process's change to a pool.

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

/// Pause between two looks at all queues; it is longer if the looks take long.
const MIN_SURVEY_PAUSE: Duration = Duration::from_millis(100);
/// The longest one, however many queues there are: new messages wait for it.
const MAX_SURVEY_PAUSE: Duration = Duration::from_secs(2);
/// A look takes at most this share of the time, if that is not longer.
const SURVEY_SHARE: u32 = 10;

/// The time that looks at queues take, by which the pause between them is measured. Waits are none of it.
#[derive(Default)]
struct SurveyPause(Duration);

impl SurveyPause {
    /// Looks at queues.
    fn look<T>(&mut self, look: impl FnOnce() -> T) -> T {
        let begun = transport::now();
        let found = look();
        self.0 += transport::now() - begun;
        found
    }

    /// The pause after the looks since the last one.
    fn take(&mut self) -> Duration {
        (mem::take(&mut self.0) * SURVEY_SHARE).clamp(MIN_SURVEY_PAUSE, MAX_SURVEY_PAUSE)
    }
}

/// Whether messages leave this broker or come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveDirection {
    /// To the other broker.
    Out,
    /// From the other broker.
    In,
}

/// A move, and the login for it.
pub struct MigrationConfig {
    /// Whether messages leave, or come.
    pub direction: MoveDirection,
    /// Nothing comes while one of them stands.
    pub alarms: Arc<Alarms>,
    /// Connections to the other broker.
    pub pool: Arc<Pool>,
    /// A login there with all permissions in all virtual hosts.
    pub user: String,
    /// The password of `user` there.
    pub password: String,
    /// The virtual hosts that take part; `None` for all.
    pub vhosts: Option<Vec<String>>,
    /// Queues, by virtual host and name, whose messages stay.
    pub skipped: Vec<(String, String)>,
    /// A text that tells this broker's messages apart from those of others, for their ids.
    pub broker_id: String,
    /// The exchanges that may be at the other broker, on disk.
    pub exchanges: ExchangeRecord,
}

/// A move of all queues, until it is stopped.
pub struct Migration {
    context: Arc<MoveContext>,
    pool: Arc<Pool>,
    /// Set once it has begun.
    task: Mutex<Option<JoinHandle<()>>>,
}

type ConnectTarget = dyn Fn(&str, bool) -> TargetConnectFuture + Send + Sync;
type TargetConnectFuture = Pin<Box<dyn Future<Output = Result<AmqpClient, OpenError>> + Send>>;

/// The part that all queues' moves share.
struct MoveContext {
    broker: Arc<Broker>,
    clock: Clock,
    direction: MoveDirection,
    /// As in [`MigrationConfig`].
    alarms: Arc<Alarms>,
    /// Opens a connection to the other broker, in a virtual host, which is shared with nobody if the flag is set.
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
    /// Ends the pause before the next look.
    retried: Notify,
    /// Set when no further message is to move.
    is_stopped: AtomicBool,
    /// Set once the other broker has taken a message with another user's user_id.
    may_impersonate: AtomicBool,
}

/// A queue that moves.
struct MovingQueue {
    context: Arc<MoveContext>,
    vhost: Arc<VirtualHost>,
    queue: Arc<Queue>,
    _permit: OwnedSemaphorePermit,
}

impl Migration {
    /// A move of messages of all queues but exclusive ones, which does not [`begin`](Self::begin) by itself.
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

    /// Whether messages leave this broker, or come to it.
    pub fn direction(&self) -> MoveDirection {
        self.context.direction
    }

    /// Checks the login at the other broker in every virtual host.
    ///
    /// # Errors
    /// It is refused in one, or nobody answers there.
    pub async fn check_logins(&self) -> Result<(), MoveLoginError> {
        for vhost in self.context.vhosts() {
            run::close(self.context.connect(vhost.name(), false).await?).await;
        }
        Ok(())
    }

    /// Deletes the exchanges that a crash in the middle of an earlier move has left at the other broker, as far as it answers.
    /// To be called before [`Self::begin`].
    pub async fn delete_left_exchanges(&self) {
        exchanges::delete_left(&self.context).await;
    }

    /// The queues that have had messages since the start, in order. `ready` and `unacked` are those of this moment.
    pub fn queues(&self) -> Vec<MovedQueue> {
        self.context.progress.all(&self.context.broker)
    }

    /// Whether nothing is left to move at this moment but what clients hold: here, or, on the way in, there.
    pub fn is_done(&self) -> bool {
        let Self { context, .. } = self;
        context.queues().iter().all(|(vhost, queue)| match context.direction {
            MoveDirection::Out => queue.message_count() == 0 && !context.progress.is_moving(vhost, queue),
            MoveDirection::In => context.progress.was_empty(vhost, queue),
        })
    }

    /// Tries again at once what the other broker has refused.
    pub fn retry(&self) {
        self.context.progress.retry();
        self.context.retried.notify_one();
    }

    /// Messages of this broker that have not moved, those that clients hold included.
    pub fn messages_left(&self) -> u64 {
        let queues = self.context.queues();
        queues.iter().map(|(_, queue)| queue.message_count() + queue.unacked_count()).sum()
    }

    /// The ready messages among them, which can move now.
    pub fn ready_left(&self) -> u64 {
        self.context.queues().iter().map(|(_, queue)| queue.message_count()).sum()
    }

    /// Asks how many messages the queues that have moved have at the other broker.
    ///
    /// # Errors
    /// It cannot be asked.
    pub async fn count_target_messages(&self) -> Result<(), MoveLoginError> {
        counting::count(&self.context).await
    }

    /// Lets messages in flight be answered; no other moves from then on.
    pub async fn stop(&self) {
        self.context.is_stopped.store(true, Ordering::Release);
        // Every move holds a permit, and ends soon.
        let all = self.context.permits.acquire_many(AT_ONCE as u32).await;
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        drop(all);
        // Past the limit, exchanges that lead to one queue each are left there until the next move or restart.
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

/// Why there is no session at the other broker.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MoveLoginError {
    /// It refuses the login or the virtual host.
    #[error("other broker refused the login: {0}")]
    Refused(String),
    /// Nobody answers there, or not now.
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

/// Whether a queue's messages may move: exclusive ones belong to a connection here, and queues that a broker has named cannot
/// be made at another.
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

    /// Moves messages, and keeps queues at the other broker that would expire, until the move is stopped.
    async fn move_all(self: Arc<Self>) {
        match self.direction {
            MoveDirection::Out => _ = tokio::join!(self.start_moves(), keeping::keep(&self)),
            MoveDirection::In => self.start_moves().await,
        }
    }

    /// Starts a task for each queue that has something to move and may be tried, again and again.
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
                // Others have their turns between the virtual hosts.
                tokio::task::yield_now().await;
            }
            // A retry may come at any time.
            let _ = tokio::time::timeout(pause.take(), self.retried.notified()).await;
        }
    }

    /// Records the exchanges of queues that are tried for the first time.
    async fn record_exchanges(&self, vhost: &VirtualHost, queues: &[Arc<Queue>]) {
        if self.direction == MoveDirection::Out {
            let new = queues.iter().filter(|queue| !self.progress.is_known(vhost, queue));
            let names = new.map(|queue| exchange_for(&self.broker_id, queue.name())).collect();
            self.exchanges.will_make(vhost.name(), names).await;
        }
    }

    /// Whether anything may have to move: only the other broker knows what is there.
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
