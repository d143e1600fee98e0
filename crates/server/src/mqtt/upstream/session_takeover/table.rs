//! The takeover queues of this process.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use amqp::Fault;
use proxy::Pool;
use sync::{Mutex, Rank};

use super::EXCHANGE;
use super::watch::{Watch, Watched, Watcher};
use crate::mqtt::upstream::hub::UpstreamHub;
use crate::upstream::multiplexing::task::{LinkedQueue, OpenUpstream, serve, unless_unused};
use crate::upstream::multiplexing::{LoginKey, PoolUpstream, UpstreamLogin};

/// The maximum of remembered logins whose refusal was logged. Above it, refusals may be logged again.
const MAX_LOGGED: usize = 1024;

/// One queue for each login and virtual host with clients.
pub(in super::super) struct Takeovers {
    /// The random name of this process.
    pub(super) process: Box<str>,
    watches: Mutex<HashMap<LoginKey, Arc<Watch>>, { Rank::MultiplexedSubscriptions as u8 }>,
    is_draining: AtomicBool,
    /// The users that may not announce takeovers, with the virtual hosts, so that each is logged once.
    refused: Mutex<HashSet<(Box<str>, Box<str>)>, { Rank::Leaf as u8 }>,
}

impl Takeovers {
    pub(in super::super) fn new() -> Arc<Self> {
        let (watches, is_draining, refused) = Default::default();
        Arc::new(Self { process: broker::generated_name("").into(), watches, is_draining, refused })
    }

    /// Announces a client that the upstream has accepted with `login`. Its outbox is nudged once that is done. Must be
    /// called within a runtime, since the first client of a login starts its queue's task.
    pub(in super::super) fn announce(
        self: &Arc<Self>,
        hub: &Weak<UpstreamHub>,
        pool: &Arc<Pool>,
        login: &UpstreamLogin,
        watcher: Watcher,
    ) -> Watched {
        self.announce_by(hub, login, watcher, |login| PoolUpstream::new(pool, login))
    }

    /// As [`Self::announce`], with `upstream` to open the connections of a new queue.
    pub(super) fn announce_by<U: OpenUpstream>(
        self: &Arc<Self>,
        hub: &Weak<UpstreamHub>,
        login: &UpstreamLogin,
        watcher: Watcher,
        upstream: impl FnOnce(&UpstreamLogin) -> U,
    ) -> Watched {
        let login = UpstreamLogin { prefix: QUEUE_PREFIX, ..login.clone() };
        let key = LoginKey(login.clone());
        let mut watches = self.watches.lock();
        let joined = match watches.get(&key) {
            Some(watch) => watch.join(watcher),
            None => Err(watcher),
        };
        let watcher = match joined {
            Ok(watched) => return watched,
            Err(watcher) => watcher,
        };
        let upstream = upstream(&login);
        let watch = Watch::new(&self.process, login, hub, self.is_draining.load(Ordering::Acquire));
        let watched = watch.begin(watcher);
        watches.insert(key, Arc::clone(&watch));
        drop(watches);
        tokio::spawn(run(ListedWatch { all: Arc::clone(self), watch }, upstream));
        watched
    }

    /// Called at shutdown: each queue is abandoned as soon as its last client has left.
    pub(in super::super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        let watches: Vec<_> = self.watches.lock().values().cloned().collect();
        watches.iter().for_each(|watch| watch.drain());
    }

    /// Logs that a login cannot announce takeovers, once per user and virtual host.
    fn log_refusal(&self, login: &UpstreamLogin, fault: &Fault) {
        let (user, vhost) = (&login.credentials.username, &login.vhost);
        let mut refused = self.refused.lock();
        if refused.len() >= MAX_LOGGED {
            refused.clear();
        }
        if refused.insert((user.as_str().into(), vhost.clone())) {
            drop(refused);
            tracing::warn!(
                user,
                %vhost,
                %fault,
                exchange = EXCHANGE,
                "MQTT session takeover limited to connections of this server"
            );
        }
    }

    #[cfg(test)]
    pub(super) fn logged(&self) -> usize {
        self.refused.lock().len()
    }

    #[cfg(test)]
    pub(in super::super) fn watches(&self) -> usize {
        self.watches.lock().len()
    }
}

/// Prefix of the queues' names.
const QUEUE_PREFIX: &str = "leveret.mqtt.takeover-";

async fn run(listed: ListedWatch, upstream: impl OpenUpstream) {
    let watch = &listed.watch;
    while let Some(fault) = serve(watch, &upstream).await {
        listed.all.log_refusal(watch.login(), &fault);
        watch.refuse();
        if unless_unused(&**watch, tokio::time::sleep(super::watch::REFUSAL_TTL)).await.is_none() {
            return;
        }
    }
}

/// A queue's entry in the table, removed when its task ends.
struct ListedWatch {
    all: Arc<Takeovers>,
    watch: Arc<Watch>,
}

impl Drop for ListedWatch {
    fn drop(&mut self) {
        // Also if the task has panicked, so that clients do not wait in vain.
        self.watch.end();
        let key = LoginKey(self.watch.login().clone());
        let mut watches = self.all.watches.lock();
        // Another queue may have been added since.
        if watches.get(&key).is_some_and(|other| Arc::ptr_eq(other, &self.watch)) {
            watches.remove(&key);
        }
    }
}
