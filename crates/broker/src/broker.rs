//! The broker: its users and its virtual hosts.

mod logins;

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use store::catalogue::Catalogue;
use store::{Store, Waiter};
use sync::{Rank, RwLock, work};

use crate::compatibility::Compatibility;
use crate::deadlines::Deadlines;
use crate::error::BrokerError;
use crate::manage::DefinitionBook;
use crate::metrics::Metrics;
use crate::paging::Paging;
use crate::permissions::AuthorisedSession;
use crate::time::{NO_OFFSET, Timestamp, WallOffset};
use crate::users::{Account, Attempts, AuthBackends, Identity, UserSpec, Users};
use crate::vhost::VirtualHost;

/// Configuration with which a broker starts.
#[derive(Clone)]
pub struct BrokerConfig {
    /// The broker's name, as RabbitMQ names its nodes.
    pub node: String,
    /// Start with the virtual host `/` and RabbitMQ's user guest with full permissions in it; otherwise with
    /// nothing, as RabbitMQ does when it loads definitions.
    pub defaults: bool,
    /// Woken when [`Broker::next_deadline`] has become earlier, so that the caller can reset its timer.
    pub deadline_waker: Option<Arc<dyn Waiter>>,
    /// Bytes of memory that ready messages may take before those of long queues are paged out to disk, if
    /// there is a store; 0 pages them out at once, `u64::MAX` never.
    pub paging_watermark: u64,
    /// Woken when [`Broker::page`] has work to do.
    pub paging_waker: Option<Arc<dyn Waiter>>,
    /// The RabbitMQ release whose behaviour it follows.
    pub compatibility: Compatibility,
    /// Offset of the times that it is given from the wall clock, which clients see.
    pub wall: &'static WallOffset,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            node: "leveret@localhost".into(),
            defaults: true,
            deadline_waker: None,
            paging_watermark: u64::MAX,
            paging_waker: None,
            compatibility: Compatibility::default(),
            wall: &NO_OFFSET,
        }
    }
}

/// A message broker: users, virtual hosts, and the queues in them.
pub struct Broker {
    /// The node name.
    node: Arc<str>,
    vhosts: RwLock<HashMap<String, Arc<VirtualHost>>, { Rank::VirtualHosts as u8 }>,
    users: Users,
    attempts: Attempts,
    /// Definitions as they were entered.
    book: DefinitionBook,
    metrics: Arc<Metrics>,
    deadlines: Arc<Deadlines>,
    paging: Arc<Paging>,
    compatibility: Compatibility,
    wall: &'static WallOffset,
    /// The store for durable objects and messages, if any.
    store: OnceLock<Arc<Store>>,
    vhost_watcher: OnceLock<VhostWatcher>,
    /// The auth backends for logins; unset means the internal list of users.
    auth_backends: OnceLock<Arc<dyn AuthBackends>>,
}

/// Called with the name of a virtual host that has been deleted.
type VhostWatcher = Box<dyn Fn(&str) + Send + Sync>;

impl Broker {
    /// Creates a broker, with the default user and virtual host if [`BrokerConfig::defaults`] is set.
    pub fn new(config: BrokerConfig) -> Arc<Self> {
        let broker = Arc::new(Self {
            node: config.node.into(),
            vhosts: RwLock::default(),
            users: Users::default(),
            attempts: Attempts::default(),
            book: DefinitionBook::default(),
            metrics: Arc::default(),
            deadlines: Arc::new(Deadlines::new(config.deadline_waker)),
            paging: Arc::new(Paging::new(config.paging_watermark, config.paging_waker)),
            compatibility: config.compatibility,
            wall: config.wall,
            store: OnceLock::new(),
            vhost_watcher: OnceLock::new(),
            auth_backends: OnceLock::new(),
        });
        if config.defaults {
            broker.add_defaults();
        }
        broker
    }

    /// The RabbitMQ release whose behaviour it follows.
    pub fn compatibility(&self) -> Compatibility {
        self.compatibility
    }

    /// Adds or changes a user. Open connections are not closed.
    pub fn put_user(&self, user: UserSpec) {
        self.users.put(user);
    }

    /// The tags of a user; `None` if there is no such user.
    pub fn tags_of(&self, user: &str) -> Option<Vec<String>> {
        self.users.account(user).map(|account| account.tags())
    }

    /// The tags of a user who has logged in; empty if it has been deleted.
    pub fn tags(&self, identity: &Identity) -> Vec<String> {
        match identity.external() {
            Some(external) => external.tags.clone(),
            None => {
                let of_list = self.account(identity).map(|account| account.tags()).unwrap_or_default();
                let others = identity.added_tags().iter().filter(|tag| !of_list.contains(tag)).cloned();
                let others: Vec<_> = others.collect();
                of_list.into_iter().chain(others).collect()
            }
        }
    }

    /// The account of a user who has logged in.
    pub(crate) fn account(&self, identity: &Identity) -> Option<Arc<Account>> {
        match identity.external() {
            Some(external) => Some(external.account.clone()),
            None => self.users.account(identity.user()),
        }
    }

    pub(crate) fn remove_account(&self, user: &str) {
        self.users.remove(user);
    }

    pub(crate) fn book(&self) -> &DefinitionBook {
        &self.book
    }

    pub(crate) fn all_vhosts(&self) -> Vec<Arc<VirtualHost>> {
        self.vhosts.read().values().cloned().collect()
    }

    /// Removes a virtual host from the list of names.
    pub(crate) fn remove_vhost(&self, name: &str) -> Option<Arc<VirtualHost>> {
        self.vhosts.write().remove(name)
    }

    /// Whether there is a user of this name.
    pub fn has_user(&self, name: &str) -> bool {
        self.users.account(name).is_some()
    }

    /// Sets `watcher`, which is called with the name of each virtual host that has been deleted, before
    /// another can be created under that name. It can be set once.
    pub fn on_vhost_deleted(&self, watcher: Box<dyn Fn(&str) + Send + Sync>) {
        let _ = self.vhost_watcher.set(watcher);
    }

    pub(crate) fn notify_vhost_gone(&self, name: &str) {
        if let Some(watcher) = self.vhost_watcher.get() {
            watcher(name);
        }
    }

    /// Opens a virtual host for a user.
    ///
    /// # Errors
    /// 530 when it does not exist, or the user has no access to it.
    pub fn open(&self, identity: &Identity, vhost: &str) -> Result<Arc<VirtualHost>, BrokerError> {
        let found = self.vhost(vhost).ok_or_else(|| BrokerError::NoVirtualHost(vhost.into()))?;
        found.check_open(identity)?;
        Ok(found)
    }

    /// Opens a virtual host for a connection, which counts against the limits of the user and the virtual
    /// host until the [`AuthorisedSession`] is dropped.
    ///
    /// # Errors
    /// As [`Broker::open`]; 530 when a limit is reached, which RabbitMQ checks first.
    pub fn authorised(&self, identity: &Identity, vhost: &str) -> Result<AuthorisedSession, BrokerError> {
        let found = self.vhost(vhost).ok_or_else(|| BrokerError::NoVirtualHost(vhost.into()))?;
        let account = self.account(identity).ok_or_else(|| refused(identity, vhost))?;
        let authorised = AuthorisedSession::take(found, identity.clone(), account)?;
        authorised.vhost().check_open(identity)?;
        Ok(authorised)
    }

    /// Like [`Broker::authorised`], at the start of a client's session. Opening the virtual host is an operation of its
    /// own, which began with [`Broker::authorise_vhost`] and ends here.
    ///
    /// # Errors
    /// As [`Broker::authorised`].
    pub fn begin_session(&self, identity: &Identity, vhost: &str) -> Result<AuthorisedSession, BrokerError> {
        let authorised = self.authorised(identity, vhost);
        identity.end_operation();
        authorised
    }

    /// The virtual host of this name.
    pub fn vhost(&self, name: &str) -> Option<Arc<VirtualHost>> {
        self.vhosts.read().get(name).cloned()
    }

    /// Adds a virtual host; an existing one is not changed.
    pub fn add_vhost(&self, name: &str) -> Arc<VirtualHost> {
        let mut vhosts = self.vhosts.write();
        let new = || {
            let (metrics, deadlines, paging) =
                (self.metrics.clone(), self.deadlines.clone(), self.paging.clone());
            let (node, compatibility) = (self.node.clone(), self.compatibility);
            let vhost = VirtualHost::new(name, node, metrics, deadlines, paging, compatibility, self.wall);
            if let Some(store) = self.store.get() {
                vhost.keep(store);
            }
            vhost
        };
        vhosts.entry_ref(name).or_insert_with(new).clone()
    }

    /// Starts to store durable objects and messages. All existing ones have been read from the store.
    pub(crate) fn keep(&self, store: &Arc<Store>) {
        let vhosts = self.vhosts.write();
        let _ = self.store.set(store.clone());
        self.paging.keep(store);
        vhosts.values().for_each(|vhost| vhost.keep(store));
    }

    /// The store for durable objects and messages, if any.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// The part of the store that holds definitions.
    pub fn catalogue(&self) -> Option<&Arc<Catalogue>> {
        self.store().map(|store| store.catalogue())
    }

    pub(crate) fn paging(&self) -> &Paging {
        &self.paging
    }

    /// Counters summed over all virtual hosts.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The time at which [`Broker::expire`] next has work to do, possibly in the past. Dead letters that wait for capacity
    /// in the store are due once there is some: then the waker is called.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.deadlines.has_awaiting_capacity() {
            if self.paging.has_capacity() {
                return Some(Timestamp::default());
            }
            self.deadlines.wait_for_capacity(&self.paging);
        }
        self.deadlines.earliest()
    }

    /// Handles everything that is due, as a timer would.
    #[cfg(test)]
    pub(crate) fn expire_all(&self, now: Timestamp) {
        while self.next_deadline().is_some_and(|due| due <= now) {
            self.expire(now);
        }
    }

    /// Expires the messages and queues that are due, and sends dead letters while the store has capacity. If there are very
    /// many, it handles only some of them: the rest has a deadline no later than `now`, so a timer that yields to others in
    /// between continues at once.
    pub fn expire(&self, now: Timestamp) {
        let mut dropped = 0;
        for _ in 0..EXPIRED_QUEUES {
            let Some(queue) = self.deadlines.take_due(now) else { break };
            dropped += queue.expire(now);
            if dropped >= EXPIRED_MESSAGES || work::is_turn_over() {
                break;
            }
        }
        let mut sent = 0;
        for _ in 0..EXPIRED_QUEUES {
            if sent >= EXPIRED_MESSAGES || !self.paging.has_capacity() {
                return;
            }
            let Some(queue) = self.deadlines.take_awaiting_capacity() else { return };
            sent += queue.continue_dead_lettering(now);
            if work::is_turn_over() {
                return;
            }
        }
    }
}

fn refused(identity: &Identity, vhost: &str) -> BrokerError {
    BrokerError::VirtualHostRefused { vhost: vhost.into(), user: identity.user().into() }
}

/// Queues checked in one [`Broker::expire`]; deleting one takes some ten microseconds.
const EXPIRED_QUEUES: usize = 256;

/// Number of dropped messages after which one [`Broker::expire`] stops: about a millisecond if they are
/// dead-lettered.
const EXPIRED_MESSAGES: usize = 1024;
