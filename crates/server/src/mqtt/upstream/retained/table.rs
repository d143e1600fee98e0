//! The logs of this process, and their tasks.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proxy::Pool;
use sync::{Mutex, Rank};
use transport::Outbox;

use super::LOG;
use super::link::LogReader;
use super::log::{LogClient, RetainedLog};
use super::status::RetainedStatus;
use super::topics::LogLimits;
use crate::clock::Clock;
use crate::upstream::multiplexing::task::{OpenUpstream, serve, unless_unused};
use crate::upstream::multiplexing::{PoolUpstream, UpstreamLogin};

/// The log of each virtual host with clients.
pub(in super::super) struct RetainedLogs {
    clock: Clock,
    limits: LogLimits,
    /// The `mqtt_exchange`.
    publishers: Arc<str>,
    logs: Mutex<HashMap<Box<str>, Arc<RetainedLog>>, { Rank::RetainedTrees as u8 }>,
    is_draining: AtomicBool,
}

impl RetainedLogs {
    pub(in super::super) fn new(clock: Clock, publishers: &Arc<str>) -> Arc<Self> {
        Self::with_limits(clock, publishers, super::LIMITS)
    }

    /// With other limits.
    pub(super) fn with_limits(clock: Clock, publishers: &Arc<str>, limits: LogLimits) -> Arc<Self> {
        let (logs, is_draining, publishers) =
            (Mutex::default(), AtomicBool::new(false), Arc::clone(publishers));
        Arc::new(Self { clock, limits, publishers, logs, is_draining })
    }

    /// Adds a client that the upstream has accepted with `login`. Its outbox is nudged once it is known whether messages
    /// are retained. Must be called within a runtime, since the first client of a virtual host starts its log's task.
    pub(in super::super) fn join(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        login: &UpstreamLogin,
        outbox: &Arc<Outbox>,
    ) -> LogClient {
        let pool = Arc::clone(pool);
        self.join_by(login, outbox, move |login| PoolUpstream::new(&pool, login))
    }

    /// As [`Self::join`], with `upstream` to open the log's connections.
    pub(super) fn join_by<U: OpenUpstream>(
        self: &Arc<Self>,
        login: &UpstreamLogin,
        outbox: &Arc<Outbox>,
        upstream: impl Fn(&UpstreamLogin) -> U + Send + Sync + 'static,
    ) -> LogClient {
        let login = UpstreamLogin { prefix: LOG, ..login.clone() };
        let mut logs = self.logs.lock();
        if let Some(client) = logs.get(&login.vhost).and_then(|log| log.join(&login, outbox)) {
            return client;
        }
        loop {
            let is_draining = self.is_draining.load(Ordering::Acquire);
            let log = RetainedLog::new(&login.vhost, &self.publishers, self.limits, self.clock, is_draining);
            // A new log cannot have ended.
            let Some(client) = log.join(&login, outbox) else { continue };
            logs.insert(login.vhost.clone(), Arc::clone(&log));
            drop(logs);
            tokio::spawn(run(ListedLog { all: Arc::clone(self), log }, login, upstream));
            return client;
        }
    }

    /// The status of all logs for operators, in no order.
    pub(in super::super) fn status(&self) -> Vec<RetainedStatus> {
        let logs: Vec<_> = self.logs.lock().values().cloned().collect();
        logs.iter().map(|log| log.status()).collect()
    }

    /// Called at shutdown: each log is abandoned as soon as its last client has left.
    pub(in super::super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        let logs: Vec<_> = self.logs.lock().values().cloned().collect();
        logs.iter().for_each(|log| log.drain());
    }
}

/// Reads a log with the login of one of its clients, or with another one if the upstream refuses that.
async fn run<U: OpenUpstream>(
    listed: ListedLog,
    first: UpstreamLogin,
    upstream: impl Fn(&UpstreamLogin) -> U,
) {
    let log = &listed.log;
    let mut login = first;
    while !log.has_ended() {
        let next = log.choose_login(transport::now());
        let is_waiting = next.is_none();
        login = next.unwrap_or(login);
        let reader = Arc::new(LogReader { log: Arc::clone(log), login: login.clone(), is_waiting });
        if is_waiting {
            unless_unused(&*reader, pending::<()>()).await;
        } else if let Some(fault) = serve(&reader, &upstream(&login)).await
            && log.handle_refusal(&login)
        {
            let (user, vhost) = (&login.credentials.username, log.vhost());
            tracing::warn!(user, vhost, %fault, queue = LOG, "MQTT messages not retained");
        }
    }
}

/// A log's entry in the table, removed when its task ends.
struct ListedLog {
    all: Arc<RetainedLogs>,
    log: Arc<RetainedLog>,
}

impl Drop for ListedLog {
    fn drop(&mut self) {
        // Also if the task has panicked, so that clients do not wait in vain.
        self.log.end();
        let mut logs = self.all.logs.lock();
        // Another log may have been added since.
        if logs.get(self.log.vhost()).is_some_and(|other| Arc::ptr_eq(other, &self.log)) {
            logs.remove(self.log.vhost());
        }
    }
}
