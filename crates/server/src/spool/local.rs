//! The local queues of a spool, in a broker that is the spool's alone.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amqp::properties::PERSISTENT;
use amqp::{Credentials, Fault, FieldTable, FieldValue, Properties, RawTable, ReplyCode};
use broker::{Broker, Identity, Publisher, Queue, QueueDeclare, SessionId, Store, Timestamp, VirtualHost};
use parking_lot::Mutex;
use sync::AtomicWaker;
use transport::Outbox;

use super::course::{Course, Rate, SpoolCourse};
use super::logins::RememberedLogins;
use super::rules::SpoolRules;
use super::{SpoolConfig, SpoolError};
use crate::alarms::{Alarms, Blocked, Resource};
use crate::backend::Clock;

/// The virtual host and the user of the private broker: those of a new one.
const VHOST: &str = "/";
const USER: &str = "guest";

/// The queue of messages that the upstream has refused for good.
const PARKED: &str = "parked";

/// The arguments by which the other queues tell whose messages they have.
const VHOST_ARGUMENT: &str = "x-leveret-spool-vhost";
const USER_ARGUMENT: &str = "x-leveret-spool-user";

/// The session to which nothing is exclusive: no queue of a spool is.
const SESSION: SessionId = SessionId(0);

/// Says that a queue has no message.
const NO_MESSAGE: u64 = u64::MAX;

/// The local queues, and the limits of all of them together.
pub(crate) struct LocalSpool {
    vhost: Arc<VirtualHost>,
    identity: Identity,
    clock: Clock,
    config: SpoolConfig,
    rules: SpoolRules,
    logins: Arc<RememberedLogins>,
    queues: Mutex<SpoolQueues>,
    parked: Arc<Queue>,
    /// Bytes of records in all local queues; those of parked messages are not among them.
    bytes: AtomicU64,
    /// Bytes of the records of parked messages, which take room on the disk as well.
    parked_bytes: AtomicU64,
    /// Bytes of records that all forwarders have in memory.
    loaded: AtomicUsize,
    /// The first half of the ids of this process, at random.
    ids: [u8; 8],
    next_id: AtomicU64,
    alarms: Arc<Alarms>,
    is_draining: AtomicBool,
    course: Course,
}

/// The queues by virtual host and user.
type SpoolQueues = HashMap<(Box<str>, Box<str>), Arc<SpoolQueue>>;

/// The messages of one user in one virtual host.
pub(crate) struct SpoolQueue {
    vhost: Box<str>,
    user: Box<str>,
    queue: Arc<Queue>,
    /// Wakes the forwarder when there are messages, credentials or a drain.
    waker: Arc<AtomicWaker>,
    /// Bytes of records that are in the queue.
    bytes: AtomicU64,
    /// When the oldest message was accepted, in milliseconds since 1970, as far as the forwarder knows.
    oldest: AtomicU64,
    /// Messages that it was given since the start.
    accepted: AtomicU64,
    pub(super) forwarded: AtomicU64,
    pub(super) parked: AtomicU64,
    /// Messages that wait because the upstream has nacked one of their exchange and key.
    pub(super) held: AtomicU64,
    /// Set when parked messages are to be tried again; cleared by the forwarder.
    is_requeued: AtomicBool,
    /// When it was first seen without messages and clients; `None` while it has any.
    unused_since: Mutex<Option<Instant>>,
    /// Set when it has been removed: its forwarder ends.
    is_removed: AtomicBool,
    login: Mutex<ForwarderLogin>,
    /// Raised while its oldest message is too old.
    alarms: Arc<Alarms>,
    /// How fast messages are accepted, and forwarded.
    rates: Mutex<(Rate, Rate)>,
}

#[derive(Default)]
struct ForwarderLogin {
    /// The credentials that the upstream has accepted last.
    credentials: Option<Arc<Credentials>>,
    /// Why nothing is being forwarded.
    trouble: Option<Box<str>>,
}

/// A local queue, for operators.
#[derive(Debug, Clone, PartialEq)]
pub struct SpoolStatus {
    /// The virtual host upstream.
    pub vhost: Box<str>,
    /// The user who has published the messages, and as whom they are forwarded.
    pub user: Box<str>,
    /// Messages that the upstream has not confirmed.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Seconds since the oldest of them was accepted.
    pub oldest_seconds: Option<u64>,
    /// Messages that wait because the upstream has nacked one of their exchange and key.
    pub held: u64,
    /// Messages that have been accepted a second, lately.
    pub accept_rate: f64,
    /// Messages that the upstream has confirmed a second, lately.
    pub forward_rate: f64,
    /// Messages that have been accepted since the start.
    pub accepted: u64,
    /// Messages that the upstream has confirmed since the start.
    pub forwarded: u64,
    /// Messages that it has refused for good since the start.
    pub parked: u64,
    /// Why nothing is being forwarded, if something prevents it.
    pub trouble: Option<Box<str>>,
}

impl LocalSpool {
    pub(super) fn open(
        broker: Arc<Broker>,
        clock: Clock,
        config: SpoolConfig,
    ) -> Result<Arc<Self>, SpoolError> {
        let foreign = |error: &dyn ToString| SpoolError::Foreign(error.to_string());
        let vhost = broker.vhost(VHOST).ok_or_else(|| foreign(&"it has no virtual host '/'"))?;
        let identity = broker.authenticate_external(USER, true).map_err(|error| foreign(&error))?;
        let now = clock.timestamp(Instant::now());
        let parked = declare(&vhost, PARKED, &FieldTable::new(), now).map_err(|error| foreign(&error))?;
        let hasher = RandomState::new();
        let local = Self {
            identity,
            clock,
            rules: SpoolRules(config.rules.clone()),
            logins: Arc::new(RememberedLogins::open(config.logins.clone(), config.auth_max, now)),
            config,
            queues: Mutex::default(),
            parked_bytes: AtomicU64::new(parked.view().ready_bytes),
            parked,
            bytes: AtomicU64::new(0),
            loaded: AtomicUsize::new(0),
            ids: hasher.hash_one((std::process::id(), now.0)).to_be_bytes(),
            next_id: AtomicU64::new(0),
            alarms: Arc::default(),
            is_draining: AtomicBool::new(false),
            course: Course::new(),
            vhost,
        };
        for queue in local.vhost.all_queues() {
            let arguments = queue.own_arguments();
            let text = |key: &str| arguments.get(key).and_then(FieldValue::as_text).map(Box::from);
            let Some((vhost, user)) = text(VHOST_ARGUMENT).zip(text(USER_ARGUMENT)) else { continue };
            drop(arguments);
            if queue.message_count() == 0 {
                // Users may come and go; one that comes again gets another. It has no user who could mind its deletion.
                let _ = local.vhost.delete_queue(SESSION, queue.name(), true, true);
                continue;
            }
            let queue = SpoolQueue::new(vhost, user, queue);
            local.bytes.fetch_add(queue.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            local.queues.lock().insert((queue.vhost.clone(), queue.user.clone()), Arc::new(queue));
        }
        Ok(Arc::new(local))
    }

    pub(crate) fn rules(&self) -> &SpoolRules {
        &self.rules
    }

    pub(super) fn logins(&self) -> &Arc<RememberedLogins> {
        &self.logins
    }

    pub(super) fn config(&self) -> &SpoolConfig {
        &self.config
    }

    pub(super) fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    pub(super) fn vhost(&self) -> &Arc<VirtualHost> {
        &self.vhost
    }

    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.vhost.store()
    }

    pub(super) fn timestamp(&self, now: Instant) -> Timestamp {
        self.clock.timestamp(now)
    }

    pub(super) fn publisher(&self) -> Publisher {
        self.vhost.publisher(&self.identity)
    }

    pub(super) fn parked(&self) -> &Arc<Queue> {
        &self.parked
    }

    pub(super) fn parked_count(&self) -> u64 {
        self.parked.message_count()
    }

    pub(super) fn queues(&self) -> Vec<Arc<SpoolQueue>> {
        self.queues.lock().values().cloned().collect()
    }

    /// An id that no other message has.
    pub(super) fn next_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.ids);
        id[8..].copy_from_slice(&self.next_id.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        id
    }

    /// The queue of a user in a virtual host, and whether it has just been created.
    pub(super) fn queue(&self, vhost: &str, user: &str) -> Result<(Arc<SpoolQueue>, bool), Fault> {
        let key = (Box::from(vhost), Box::from(user));
        // Held until the queue is there: of two queues for the same user only one would be found after a restart.
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&key) {
            return Ok((Arc::clone(queue), false));
        }
        let mut arguments = FieldTable::new();
        arguments.insert(VHOST_ARGUMENT, FieldValue::text(vhost));
        arguments.insert(USER_ARGUMENT, FieldValue::text(user));
        let now = self.clock.timestamp(Instant::now());
        let name = broker::generated_name("spool-");
        let queue = declare(&self.vhost, &name, &arguments, now).map_err(Fault::from)?;
        let new = Arc::new(SpoolQueue::new(vhost.into(), user.into(), queue));
        queues.insert(key, Arc::clone(&new));
        Ok((new, true))
    }

    /// Removes the queues that have had no message and no client for `UNUSED_MAX`, so that those of users that are gone do not
    /// accumulate. Their forwarders end. To be called now and then.
    pub(super) fn remove_unused(&self, now: Instant) {
        let mut queues = self.queues.lock();
        queues.retain(|_, queue| {
            // Only this map and its forwarder have it; sessions get theirs from this map, which is locked.
            let view = queue.queue.view();
            let is_unused = Arc::strong_count(queue) <= 2 && view.ready + view.unacknowledged == 0;
            let since = is_unused.then(|| *queue.unused_since.lock().get_or_insert(now));
            let Some(since) = since else {
                *queue.unused_since.lock() = None;
                return true;
            };
            if now.saturating_duration_since(since) < UNUSED_MAX {
                return true;
            }
            // It has no user who could mind its deletion.
            let _ = self.vhost.delete_queue(SESSION, queue.queue.name(), true, true);
            queue.is_removed.store(true, Ordering::Release);
            queue.waker.wake();
            false
        });
    }

    /// A record of this number of bytes is parked.
    pub(super) fn parked_more(&self, bytes: u64) {
        self.parked_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A record of this number of bytes is parked no longer.
    pub(super) fn parked_less(&self, bytes: u64) {
        self.parked_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Drops all parked messages; returns their number.
    pub(super) fn purge_parked(&self) -> u64 {
        // Messages that are parked at the same time may be counted as gone until the next start, never the reverse.
        let bytes = self.parked.view().ready_bytes;
        let count = self.parked.purge().0;
        let lowered = |parked: u64| Some(parked.saturating_sub(bytes));
        // Never refused: the function always has a value.
        let _ = self.parked_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowered);
        self.check_limits();
        count
    }

    /// Bytes on the disk that `spool_max_bytes` limits.
    fn all_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.parked_bytes.load(Ordering::Relaxed)
    }

    /// A forwarder has this much in memory now, and had that much before.
    pub(super) fn loaded(&self, now: usize, before: usize) {
        self.loaded.fetch_add(now, Ordering::Relaxed);
        self.loaded.fetch_sub(before, Ordering::Relaxed);
    }

    /// Whether forwarders may have more in memory.
    pub(super) fn may_load(&self) -> bool {
        self.loaded.load(Ordering::Relaxed) < MAX_LOADED
    }

    /// A record of this number of bytes has been given to a queue.
    pub(super) fn accepted(&self, queue: &SpoolQueue, bytes: u64, at: u64) {
        queue.accepted.fetch_add(1, Ordering::Relaxed);
        queue.bytes.fetch_add(bytes, Ordering::Relaxed);
        queue.oldest.fetch_min(at, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records of this number of bytes have left a queue.
    pub(super) fn left(&self, queue: &SpoolQueue, bytes: u64) {
        queue.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Called after each change of the bytes: checks the limits if that may matter.
    pub(super) fn changed(&self) {
        let is_full = self.all_bytes() >= self.config.max_bytes;
        if is_full || self.alarms.is_raised(Resource::Spool) || self.alarms.is_raised(Resource::Draining) {
            self.check_limits();
        }
    }

    /// Blocks publishers, or lets them go on, according to the limits. Takes time in proportion to the number of queues.
    pub(super) fn check_limits(&self) {
        for queue in self.queues() {
            self.check_age(&queue);
        }
        if self.course.get() == SpoolCourse::Draining && !self.is_empty() {
            self.alarms.raise(Resource::Draining);
        } else {
            self.alarms.clear(Resource::Draining);
        }
        let (bytes, max) = (self.all_bytes(), self.config.max_bytes);
        if bytes >= max {
            if self.alarms.raise(Resource::Spool) {
                tracing::warn!(bytes, max, "the spool is full: publishers blocked");
            }
        } else if bytes <= max - max / MARGIN && self.alarms.clear(Resource::Spool) {
            tracing::info!(bytes, max, "the spool has room again");
        }
    }

    /// Blocks the publishers of a queue whose oldest message is too old, and no others: nobody may have logged in for it.
    fn check_age(&self, queue: &SpoolQueue) {
        let (vhost, user) = (&*queue.vhost, &*queue.user);
        let limit = self.config.max_age.as_millis() as u64;
        if self.age(queue).is_some_and(|age| age > limit) {
            if queue.alarms.raise(Resource::Spool) {
                tracing::warn!(
                    vhost,
                    user,
                    "spooled messages are older than spool_max_age: publishers blocked"
                );
            }
        } else if queue.alarms.clear(Resource::Spool) {
            tracing::info!(vhost, user, "spooled messages are young enough again");
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Whether an operator has drained the spool, and nothing is left in it.
    pub(super) fn is_drained(&self) -> bool {
        self.course.get() == SpoolCourse::Draining && self.is_empty()
    }

    pub(super) fn course(&self) -> SpoolCourse {
        self.course.get()
    }

    pub(super) fn set_course(&self, course: SpoolCourse) {
        self.course.set(course);
        self.check_limits();
        self.queues().iter().for_each(|queue| queue.waker.wake());
    }

    /// Measures the rates, an interval after the call before.
    pub(super) fn measure(&self, interval: Duration) {
        for queue in self.queues() {
            let (accepted, forwarded) = &mut *queue.rates.lock();
            accepted.measure(queue.accepted.load(Ordering::Relaxed), interval);
            forwarded.measure(queue.forwarded.load(Ordering::Relaxed), interval);
        }
    }

    /// Milliseconds since the oldest message of a queue was accepted.
    fn age(&self, queue: &SpoolQueue) -> Option<u64> {
        let now = self.clock.timestamp(Instant::now()).0;
        let oldest = Some(queue.oldest.load(Ordering::Relaxed)).filter(|oldest| *oldest != NO_MESSAGE);
        oldest.map(|oldest| now.saturating_sub(oldest))
    }

    /// Connections that are blocked because of the spool.
    pub(super) fn blocked_connections(&self) -> usize {
        let of_queues: usize = self.queues().iter().map(|queue| queue.alarms.blocked_connections()).sum();
        self.alarms.blocked_connections() + of_queues
    }

    /// Registers a publisher as blocked, as far as a limit of the spool or of its queue is exceeded.
    pub(super) fn block(&self, queue: &SpoolQueue, outbox: &Arc<Outbox>) -> Option<(Blocked, &'static str)> {
        if !self.alarms.stand() && !queue.alarms.stand() {
            return None;
        }
        self.alarms.block(outbox).or_else(|| queue.alarms.block(outbox))
    }

    pub(super) fn status(&self, queue: &SpoolQueue) -> SpoolStatus {
        let view = queue.queue.view();
        let (accept_rate, forward_rate) = *queue.rates.lock();
        SpoolStatus {
            vhost: queue.vhost.clone(),
            user: queue.user.clone(),
            messages: view.ready + view.unacknowledged,
            bytes: queue.bytes.load(Ordering::Relaxed),
            oldest_seconds: self.age(queue).map(|age| age / 1000),
            held: queue.held.load(Ordering::Relaxed),
            accept_rate: accept_rate.get(),
            forward_rate: forward_rate.get(),
            accepted: queue.accepted.load(Ordering::Relaxed),
            forwarded: queue.forwarded.load(Ordering::Relaxed),
            parked: queue.parked.load(Ordering::Relaxed),
            trouble: queue.login.lock().trouble.clone(),
        }
    }

    pub(super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        for queue in self.queues() {
            queue.waker.wake();
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

/// How long a queue without messages and clients is there for the next client of its user.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(600);

/// Bytes of records that all forwarders together have in memory at most. A forwarder that has none may read one message
/// beyond, so that each of them gets on.
const MAX_LOADED: usize = 128 << 20;

/// A share of the limit in bytes by which the spool has to fall below it before publishers go on, so that they are not
/// blocked again by the next message.
const MARGIN: u64 = 20;

impl SpoolQueue {
    fn new(vhost: Box<str>, user: Box<str>, queue: Arc<Queue>) -> Self {
        Self {
            vhost,
            user,
            bytes: AtomicU64::new(queue.view().ready_bytes),
            queue,
            waker: Arc::default(),
            oldest: AtomicU64::new(NO_MESSAGE),
            accepted: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            held: AtomicU64::new(0),
            is_requeued: AtomicBool::new(false),
            unused_since: Mutex::new(None),
            is_removed: AtomicBool::new(false),
            login: Mutex::default(),
            alarms: Arc::default(),
            rates: Mutex::default(),
        }
    }

    /// Parked messages are in the queue again.
    pub(super) fn requeued(&self) {
        self.is_requeued.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether that has happened since the last call.
    pub(super) fn take_requeued(&self) -> bool {
        self.is_requeued.load(Ordering::Relaxed) && self.is_requeued.swap(false, Ordering::Acquire)
    }

    /// Whether it has been removed, and nothing comes to it any more.
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    pub(super) fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(super) fn waker(&self) -> &Arc<AtomicWaker> {
        &self.waker
    }

    /// The forwarder knows when the oldest message was accepted.
    pub(super) fn set_oldest(&self, at: Option<u64>) {
        self.oldest.store(at.unwrap_or(NO_MESSAGE), Ordering::Relaxed);
    }

    /// The upstream has accepted a client's credentials.
    pub(super) fn logged_in(&self, credentials: Arc<Credentials>) {
        let mut login = self.login.lock();
        let is_known = login.credentials.as_ref().is_some_and(|known| Arc::ptr_eq(known, &credentials));
        if is_known && login.trouble.is_none() {
            return;
        }
        (login.credentials, login.trouble) = (Some(credentials), None);
        drop(login);
        self.waker.wake();
    }

    /// A client has presented credentials about which the upstream has not decided. They are used if there are no others.
    pub(super) fn offer_login(&self, credentials: &Arc<Credentials>) {
        self.login.lock().credentials.get_or_insert_with(|| Arc::clone(credentials));
        self.waker.wake();
    }

    pub(super) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.login.lock().credentials.clone()
    }

    /// Remembers why nothing is being forwarded, or that nothing prevents it. Returns whether that is news.
    pub(super) fn set_trouble(&self, trouble: Option<&str>) -> bool {
        let mut login = self.login.lock();
        let is_new = login.trouble.as_deref() != trouble;
        if is_new {
            login.trouble = trouble.map(Box::from);
        }
        is_new
    }
}

fn declare(
    vhost: &Arc<VirtualHost>,
    name: &str,
    arguments: &FieldTable,
    now: Timestamp,
) -> Result<Arc<Queue>, broker::BrokerError> {
    let encoded = arguments.encode();
    let declare = QueueDeclare {
        name,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        // It has just been encoded from a table.
        arguments: RawTable::check(&encoded).unwrap_or_default(),
        type_name: None,
        capacity: None,
    };
    vhost.declare_queue(SESSION, &declare, now).map(|declared| declared.queue)
}

/// The properties of a message that has to survive a restart.
pub(super) fn persistent(headers: Option<&FieldTable>) -> Vec<u8> {
    let encoded = headers.map(FieldTable::encode);
    let headers = encoded.as_deref().and_then(|encoded| RawTable::check(encoded).ok());
    let mut properties = Vec::new();
    Properties { headers, delivery_mode: Some(PERSISTENT), ..Properties::default() }.encode(&mut properties);
    properties
}

/// The fault of a session whose message could not be stored.
pub(super) fn not_stored(error: &dyn ToString) -> Fault {
    Fault::new(ReplyCode::InternalError, format!("message could not be spooled: {}", error.to_string()))
}
