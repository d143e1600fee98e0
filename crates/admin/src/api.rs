//! The management API under `/api`: that of the embedded broker, compatible with RabbitMQ's where both have the
//! feature (docs/http-api.md lists the differences), and Leveret's own under `/api/leveret`, which also exists
//! in front of an upstream.
//!
//! * `door` authenticates a request by its head, reads its body within bounds, and runs its route (`routes`) on
//!   a thread that may wait for locks. The response waits until the changes are on disk (`durable`).
//! * `answers` bounds the memory of responses that wait to be read.
//! * `call`: a route's request and reply. `login`: users and their rights. `listing`: pages, filters, sorting,
//!   columns.
//! * All other modules: the routes, by subject.
//! * [`Process`] and [`ClientConnection`]: facts that the broker does not know, supplied by the code that joins it to
//!   listeners.
//!
//! Invariants: no body is read before a successful login; no password is logged or shown; no list is collected
//! under a single lock; a change that was acknowledged survives a crash.

mod answers;
mod bindings;
mod call;
mod certificates;
mod connections;
mod consumers;
mod definitions;
mod durable;
mod error;
mod exchanges;
mod features;
mod health;
mod leveret;
mod limits;
mod listing;
mod login;
mod messages;
mod openapi;
mod overview;
mod parameters;
mod parts;
mod permissions;
mod policies;
mod process;
mod properties;
mod queues;
mod quorum;
mod request;
mod routes;
mod samples;
mod sessions;
mod snapshot;
mod stats;
mod totals;
mod users;
mod vhosts;

use std::sync::Arc;

use broker::{Broker, SessionId};
use tokio::sync::{Mutex, Semaphore};

pub use process::{
    CertificateFile, ChangePermit, ChannelInfo, ClientConnection, ConnectionInfo, Counters, DetachedSession,
    ListenerInfo, MigrationError, MigrationStep, NodeInfo, Process, SessionInfo, TlsListener, UpgradeRefused,
};
pub(crate) use request::{Caller, for_monitors, is_local, router};

/// The management API of one process.
pub struct Api {
    /// `None` in front of an upstream.
    broker: Option<Arc<Broker>>,
    process: Arc<dyn Process>,
    /// Serialises changes of definitions, so that none interferes with another's read, modify and write. Taken before
    /// a permit, of which changes that wait would otherwise hold all.
    changes: Arc<Mutex<()>>,
    samples: samples::Samples,
    totals: totals::Totals,
    queues: snapshot::Snapshot,
    /// Permits of requests that are running.
    threads: Arc<Semaphore>,
    /// Permits of large bodies in memory: those of messages.
    large_messages: Semaphore,
    /// And those of definitions, which wait for `changes` with them.
    large_definitions: Semaphore,
    /// Responses that are being sent.
    answers: Arc<answers::Answers>,
}

impl Api {
    /// Creates the API of a broker, if there is one, and of the process around it.
    pub fn new(broker: Option<Arc<Broker>>, process: Arc<dyn Process>) -> Arc<Self> {
        Arc::new(Self {
            broker,
            process,
            changes: Arc::default(),
            samples: samples::Samples::default(),
            totals: totals::Totals::default(),
            queues: snapshot::Snapshot::default(),
            threads: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
            large_messages: Semaphore::new(LARGE_MESSAGES),
            large_definitions: Semaphore::new(LARGE_DEFINITIONS),
            answers: Arc::default(),
        })
    }

    fn served(&self) -> routes::Served {
        let broker = self.broker.as_ref();
        let compatibility = broker.map(|broker| broker.compatibility()).unwrap_or_default();
        routes::Served { has_broker: broker.is_some(), compatibility }
    }
}

/// Session of operations over HTTP. It belongs to no connection and owns no exclusive queue.
const SESSION: SessionId = SessionId(u64::MAX - 1);

/// Requests that may run at once, each on a thread; others wait. The number is small because each may hold a
/// long list in memory.
const REQUESTS_AT_ONCE: usize = 4;

/// Messages beyond the usual size of a body that may be in memory at once.
const LARGE_MESSAGES: usize = 3;

/// Definitions beyond it that may be: one after the other changes anything.
const LARGE_DEFINITIONS: usize = 1;

#[cfg(test)]
mod tests;
