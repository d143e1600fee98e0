//! The broker: its users and its virtual hosts.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::deadlines::{DeadlineWaker, Deadlines};
use crate::error::BrokerError;
use crate::metrics::Metrics;
use crate::time::Timestamp;
use crate::users::{Identity, LoginRefused, UserSpec, Users};
use crate::vhost::VirtualHost;

/// How a broker starts.
#[derive(Clone)]
pub struct BrokerConfig {
    /// The users; by default RabbitMQ's guest.
    pub users: Vec<UserSpec>,
    /// Called when [`Broker::next_deadline`] has become earlier, so that the caller's timer can be set anew. It is
    /// called with a queue locked: it may wake somebody up and nothing else.
    pub deadline_waker: Option<DeadlineWaker>,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self { users: vec![UserSpec::guest()], deadline_waker: None }
    }
}

/// A broker.
pub struct Broker {
    vhosts: RwLock<HashMap<String, Arc<VirtualHost>>>,
    users: Users,
    metrics: Arc<Metrics>,
    deadlines: Arc<Deadlines>,
}

impl Broker {
    /// A broker with the virtual host `/`.
    pub fn new(config: BrokerConfig) -> Arc<Self> {
        let metrics = Arc::new(Metrics::default());
        let deadlines = Arc::new(Deadlines::new(config.deadline_waker));
        let vhost = VirtualHost::new(DEFAULT_VHOST, metrics.clone(), deadlines.clone());
        let vhosts = [(DEFAULT_VHOST.to_owned(), vhost)].into_iter().collect();
        Arc::new(Self { vhosts: RwLock::new(vhosts), users: Users::new(config.users), metrics, deadlines })
    }

    /// Checks a login.
    ///
    /// # Errors
    /// Why it is refused: for the log only.
    pub fn authenticate(
        &self,
        user: &str,
        password: &[u8],
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        self.users.authenticate(user, password, peer_is_loopback)
    }

    /// Opens a virtual host for a user.
    ///
    /// # Errors
    /// 530 when it does not exist, or the user has no access to it.
    pub fn open(&self, identity: &Identity, vhost: &str) -> Result<Arc<VirtualHost>, BrokerError> {
        let found = self.vhosts.read().get(vhost).cloned();
        let found = found.ok_or_else(|| BrokerError::NoVirtualHost(vhost.into()))?;
        if !self.users.may_open(identity.user(), vhost) {
            return Err(BrokerError::VirtualHostRefused {
                vhost: vhost.into(),
                user: identity.user().into(),
            });
        }
        Ok(found)
    }

    /// Adds a virtual host; one that exists stays as it is.
    pub fn add_vhost(&self, name: &str) -> Arc<VirtualHost> {
        let mut vhosts = self.vhosts.write();
        let new = || VirtualHost::new(name, self.metrics.clone(), self.deadlines.clone());
        vhosts.entry_ref(name).or_insert_with(new).clone()
    }

    /// Counters of all virtual hosts together.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// When [`Broker::expire`] next has something to do.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.earliest()
    }

    /// Does what has fallen due: messages and queues expire.
    pub fn expire(&self, now: Timestamp) {
        while let Some(queue) = self.deadlines.take_due(now) {
            queue.expire(now);
        }
    }
}

const DEFAULT_VHOST: &str = "/";
