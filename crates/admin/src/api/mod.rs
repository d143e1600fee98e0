//! The management API under `/api`: that of the embedded broker, compatible with RabbitMQ's where both have the thing
//! (docs/http-api.md tells what differs), and our own under `/api/leveret`, which is there in front of an upstream, too.
//!
//! * `door`: a request is authenticated by its head, its body is read within bounds, and its route (`routes`) runs
//!   on a thread that may wait for locks. The answer waits until what was changed is on disk (`durable`).
//! * `answers`: a bound on answers that wait to be read.
//! * `call`: what a route gets and gives. `login`: who may what. `listing`: pages, filters, sorting, columns.
//! * Everything else: the routes, by what they are about.
//! * [`Process`] and [`Connection`]: what the broker does not know, told by whoever joins it to listeners.
//!
//! Invariants: nobody's body is read before the login is good; no password is logged or shown; no list is gathered
//! under one lock; a change that was answered survives a crash.

mod answers;
mod bindings;
mod call;
mod certificates;
mod connections;
mod consumers;
mod definitions;
mod door;
mod durable;
mod error;
mod exchanges;
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
mod routes;
mod samples;
mod snapshot;
mod stats;
mod totals;
mod users;
mod vhosts;

use std::sync::Arc;

use broker::{Broker, SessionId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use door::{Caller, for_monitors, router};
pub use process::{
    CertificateFile, ChannelInfo, Connection, ConnectionInfo, Counters, ListenerInfo, NodeInfo, Process,
    TlsListener,
};

/// The management API of one process.
pub struct Api {
    /// `None` in front of an upstream.
    broker: Option<Arc<Broker>>,
    process: Arc<dyn Process>,
    /// Definitions are changed one at a time, so that what is read, changed and written back is nobody else's.
    changes: Mutex<()>,
    samples: samples::Samples,
    totals: totals::Totals,
    queues: snapshot::Snapshot,
    /// Requests at work.
    threads: Arc<Semaphore>,
    /// Large bodies in memory.
    large_bodies: Semaphore,
    /// Those that are being sent.
    answers: Arc<answers::Answers>,
}

impl Api {
    /// The API of a broker, if there is one, and the process around it.
    pub fn new(broker: Option<Arc<Broker>>, process: Arc<dyn Process>) -> Arc<Self> {
        Arc::new(Self {
            broker,
            process,
            changes: Mutex::default(),
            samples: samples::Samples::default(),
            totals: totals::Totals::default(),
            queues: snapshot::Snapshot::default(),
            threads: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
            large_bodies: Semaphore::new(LARGE_BODIES),
            answers: Arc::default(),
        })
    }
}

/// What is done over HTTP is no connection's, and owns no exclusive queue.
const SESSION: SessionId = SessionId(u64::MAX - 1);

/// Requests at work at once, each on a thread; others wait. Few, for each may hold a long list in memory.
const REQUESTS_AT_ONCE: usize = 4;

/// Bodies beyond the usual size (definitions, messages) in memory at once.
const LARGE_BODIES: usize = 4;

#[cfg(test)]
mod tests;
