//! The local queues of a spool, in a broker used by the spool only.
//!
//! - [`queue`]: the queues of one user in one virtual host.
//! - [`limits`]: bytes on disk, age and memory. [`status`] and [`rate`]: the operators' list.

mod limits;
mod queue;
mod rate;
mod status;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::properties::PERSISTENT;
use amqp::{Fault, FieldTable, FieldValue, Properties, RawTable, ReplyCode};
use broker::{
    Broker, Identity, Lsn, Publisher, Queue, QueueDeclare, SessionId, Store, Timestamp, VirtualHost,
};
use parking_lot::Mutex;
use spool::BacklogName;

use super::logins::RememberedLogins;
use super::mode::{ForwardingMode, ModeCell};
use super::parking::ParkedQueue;
use super::rules::SpoolRules;
use super::{SpoolConfig, SpoolError};
use crate::alarms::Alarms;
use crate::clock::Clock;

pub(super) use self::limits::{LoadedBytes, LoadingShare};
pub(crate) use self::queue::SpoolQueue;
pub use self::status::SpoolStatus;

/// The virtual host and the user in the private broker: a new broker's defaults.
const VHOST: &str = "/";
const USER: &str = "guest";

/// The queue of messages that the upstream has refused permanently.
const PARKED: &str = "parked";

/// The arguments that record a queue's virtual host and user, and a backlog's destination. A backlog without a key is for
/// a whole exchange.
const VHOST_ARGUMENT: &str = "x-leveret-spool-vhost";
const USER_ARGUMENT: &str = "x-leveret-spool-user";
const EXCHANGE_ARGUMENT: &str = "x-leveret-spool-exchange";
const KEY_ARGUMENT: &str = "x-leveret-spool-routing-key";

/// The session for all operations. No queue of a spool is exclusive.
const SESSION: SessionId = SessionId(0);

/// The local queues, and the limits of all of them together.
pub(crate) struct LocalSpool {
    vhost: Arc<VirtualHost>,
    identity: Identity,
    clock: Clock,
    config: SpoolConfig,
    rules: SpoolRules,
    logins: Arc<RememberedLogins>,
    queues: Mutex<SpoolQueues>,
    parked: ParkedQueue,
    /// Bytes of records in all local queues, without parked messages. Briefly negative if a message leaves before it is
    /// counted.
    bytes: AtomicI64,
    loaded: Arc<LoadedBytes>,
    /// The first half of this process's message ids, at random.
    ids: [u8; 8],
    next_id: AtomicU64,
    alarms: Arc<Alarms>,
    is_draining: AtomicBool,
    mode: ModeCell,
}

/// The queues by virtual host and user.
type SpoolQueues = HashMap<(Box<str>, Box<str>), Arc<SpoolQueue>>;

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
            parked: ParkedQueue::new(parked),
            bytes: AtomicI64::new(0),
            loaded: Arc::default(),
            ids: hasher.hash_one((std::process::id(), now.0)).to_be_bytes(),
            next_id: AtomicU64::new(0),
            alarms: Arc::default(),
            is_draining: AtomicBool::new(false),
            mode: ModeCell::new(),
            vhost,
        };
        local.restore();
        Ok(Arc::new(local))
    }

    /// Restores the queues of the previous process. A user's main queue is kept if any of the user's queues has messages.
    fn restore(&self) {
        let (mut main, mut backlogs) = (Vec::new(), Vec::new());
        for queue in self.vhost.all_queues() {
            let arguments = queue.own_arguments();
            let text = |key: &str| arguments.get(key).and_then(FieldValue::as_text).map(Box::<str>::from);
            let Some(key) = text(VHOST_ARGUMENT).zip(text(USER_ARGUMENT)) else { continue };
            let routing_key = text(KEY_ARGUMENT);
            let name = text(EXCHANGE_ARGUMENT).map(|exchange| BacklogName { exchange, routing_key });
            drop(arguments);
            match name {
                None => main.push((key, queue)),
                Some(_) if queue.message_count() == 0 => self.delete(&queue),
                Some(name) => backlogs.push((key, name, queue)),
            }
        }
        let mut queues = SpoolQueues::new();
        for (key, queue) in main {
            if queue.message_count() == 0 && backlogs.iter().all(|(of, ..)| *of != key) {
                // Users may be temporary; a user that returns gets a new queue.
                self.delete(&queue);
                continue;
            }
            let queue = SpoolQueue::new(key.0.clone(), key.1.clone(), queue);
            queues.insert(key, Arc::new(queue));
        }
        for (key, name, queue) in backlogs {
            match queues.get(&key) {
                Some(of) => of.restore_backlog(name, queue),
                // Main queues are created before their backlogs and deleted after them.
                None => tracing::error!(queue = &**queue.name(), "orphaned spool backlog (no main queue)"),
            }
        }
        let bytes = queues.values().map(|queue| queue.bytes()).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        *self.queues.lock() = queues;
    }

    fn delete(&self, queue: &Queue) {
        // Cannot fail for lack of permission, since no user is involved.
        let _ = self.vhost.delete_queue(SESSION, queue.name(), true, true);
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

    /// The wall clock's time at such a timestamp, for operators.
    pub(super) fn wall_time(&self, time: Timestamp) -> Timestamp {
        self.clock.wall_time(time)
    }

    pub(super) fn publisher(&self) -> Publisher {
        self.vhost.publisher(&self.identity)
    }

    pub(super) fn parked(&self) -> &ParkedQueue {
        &self.parked
    }

    /// The memory for loaded messages.
    pub(super) fn loaded(&self) -> &Arc<LoadedBytes> {
        &self.loaded
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

    /// A user's queue in a virtual host, and whether it was just created.
    pub(super) fn queue(&self, vhost: &str, user: &str) -> Result<(Arc<SpoolQueue>, bool), Fault> {
        let key = (Box::from(vhost), Box::from(user));
        // Locked until the queue exists: of two queues for one user, only one would be found after a restart.
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&key) {
            return Ok((Arc::clone(queue), false));
        }
        let queue = self.declare(owner(vhost, user)).map_err(Fault::from)?;
        let new = Arc::new(SpoolQueue::new(vhost.into(), user.into(), queue));
        queues.insert(key, Arc::clone(&new));
        Ok((new, true))
    }

    /// A user's queue in a virtual host, if it exists.
    pub(super) fn existing_queue(&self, vhost: &str, user: &str) -> Option<Arc<SpoolQueue>> {
        self.queues.lock().get(&(Box::from(vhost), Box::from(user))).cloned()
    }

    /// Removes the queues that have had no message and no client for [`UNUSED_MAX`], with their forwarders, so that
    /// queues of temporary users do not accumulate. Called periodically.
    pub(super) fn remove_unused(&self, now: Instant) {
        // While the store fails, their former messages may not be on disk in their new queues.
        let is_on_disk = self.store().is_none_or(|store| store.failing().is_none());
        let mut queues = self.queues.lock();
        queues.retain(|_, queue| {
            // Held by this map and its forwarder only. Sessions get queues from this map, which is locked.
            let has_nothing = queue.messages() == 0 && !queue.has_backlogs();
            let is_unused = Arc::strong_count(queue) <= 2 && has_nothing && is_on_disk;
            if !queue.note_unused(is_unused, now, UNUSED_MAX) {
                return true;
            }
            self.delete(queue.queue());
            queue.remove();
            false
        });
    }

    /// An unused backlog of a user's queue: one that has become empty, or a new one.
    pub(super) fn backlog(
        &self,
        queue: &SpoolQueue,
        name: &BacklogName,
    ) -> Result<Arc<Queue>, broker::BrokerError> {
        if let Some(emptied) = queue.reuse_backlog(name) {
            return Ok(emptied);
        }
        let mut arguments = owner(queue.vhost(), queue.user());
        arguments.insert(EXCHANGE_ARGUMENT, FieldValue::text(&*name.exchange));
        if let Some(routing_key) = &name.routing_key {
            arguments.insert(KEY_ARGUMENT, FieldValue::text(&**routing_key));
        }
        let backlog = self.declare(arguments)?;
        queue.add_backlog(name.clone(), Arc::clone(&backlog));
        Ok(backlog)
    }

    /// Called when a backlog has become empty. [`Self::delete_emptied`] deletes it once its former messages are on disk
    /// elsewhere.
    pub(super) fn release_backlog(&self, queue: &SpoolQueue, backlog: &Arc<Queue>) {
        self.left(queue, backlog.take_lost_bytes());
        let until = self.store().map_or(Lsn::default(), |store| store.end());
        queue.backlog_emptied(backlog, until);
    }

    /// Deletes the empty backlogs whose time has come. Called periodically.
    pub(super) fn delete_emptied(&self) {
        let durable = self.store().map_or(Lsn::default(), |store| store.durable());
        for queue in self.queues() {
            queue.take_emptied(durable).iter().for_each(|backlog| self.delete(backlog));
        }
    }

    /// Drops a user's messages that its forwarder does not hold; returns their number.
    pub(super) fn purge(&self, queue: &SpoolQueue) -> u64 {
        let backlogs = queue.backlogs();
        let queues = backlogs.iter().map(|(_, backlog)| backlog).chain([queue.queue()]);
        let mut count = 0;
        for (messages, bytes, _) in queues.map(|queue| queue.purge_counted()) {
            count += messages;
            self.left(queue, bytes);
        }
        let (vhost, user) = (queue.vhost(), queue.user());
        tracing::warn!(vhost, user, messages = count, "spooled messages dropped by operator");
        count
    }

    fn declare(&self, arguments: FieldTable) -> Result<Arc<Queue>, broker::BrokerError> {
        let now = self.clock.timestamp(Instant::now());
        declare(&self.vhost, &broker::generated_name("spool-"), &arguments, now)
    }

    pub(super) fn mode(&self) -> ForwardingMode {
        self.mode.get()
    }

    pub(super) fn set_mode(&self, mode: ForwardingMode) {
        self.mode.set(mode);
        self.check_limits();
        self.queues().iter().for_each(|queue| queue.waker().wake());
    }

    pub(super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        for queue in self.queues() {
            queue.waker().wake();
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }
}

/// How long a queue without messages and clients is kept for its user's next client.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(600);

/// The arguments that record whose messages a queue has.
fn owner(vhost: &str, user: &str) -> FieldTable {
    let mut arguments = FieldTable::new();
    arguments.insert(VHOST_ARGUMENT, FieldValue::text(vhost));
    arguments.insert(USER_ARGUMENT, FieldValue::text(user));
    arguments
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
        // Cannot fail, since it was just encoded from a table.
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

/// The fault for a session whose message could not be stored.
pub(super) fn not_stored(error: &dyn ToString) -> Fault {
    Fault::new(ReplyCode::InternalError, format!("message could not be spooled: {}", error.to_string()))
}
