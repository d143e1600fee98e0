//! The spool on a disk, with the embedded broker as its upstream, on tokio's paused clock.

mod crashes;
mod deferring;
mod dying_disk;
mod failures;
mod forwarding;
mod limits;
mod parking;
mod provisional;
mod unused;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};
use broker::{Broker, BrokerConfig, Publish, Timestamp};
use parking_lot::Mutex;
use spool::SpooledMessage;
use store::disk::Disk;
use store::disk::simulated::{SimDisk, SimRandom};
use store::journal::JournalSettings;
use store::{Rounds, Store};

use super::local::{LocalSpool, SpoolQueue, persistent};
use super::provisional::AskUpstream;
use super::{Connecting, Spool, SpoolConfig, SpoolRule, SpoolSelection, UpstreamAccess};
use crate::clock::Clock;
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::task::{OpenError, OpenUpstream};
use crate::upstream::multiplexing::tests::{USER, Upstream};

/// A spool with a disk, whose writes the test runs.
struct Simulated {
    spool: Arc<Spool>,
    /// The broker of the local queues.
    broker: Arc<Broker>,
    rounds: Rounds,
    upstream: Upstream,
    /// Whether the upstream can be reached.
    is_reachable: Arc<AtomicBool>,
    /// For each requested connection, whether it was to be isolated.
    isolated: Arc<Mutex<Vec<bool>>>,
    /// Credentials that the upstream refuses.
    refused: Arc<Mutex<Vec<Credentials>>>,
    /// Whether a forwarder panics when it requests a connection.
    is_broken: Arc<AtomicBool>,
}

impl Simulated {
    fn new(disk: &SimDisk, config: SpoolConfig) -> Self {
        Self::on(Arc::new(disk.clone()), Upstream::new(), config)
    }

    fn with_clock(clock: Clock, disk: &SimDisk, config: SpoolConfig) -> Self {
        Self::start(Arc::new(disk.clone()), Upstream::new(), clock, config)
    }

    /// A spool on a disk that may have messages, in front of an upstream.
    fn on(disk: Arc<dyn Disk>, upstream: Upstream, config: SpoolConfig) -> Self {
        Self::start(disk, upstream, Clock::start(), config)
    }

    fn start(disk: Arc<dyn Disk>, upstream: Upstream, clock: Clock, config: SpoolConfig) -> Self {
        let settings =
            JournalSettings { segment_size: 64 << 10, pending_limit: 1 << 20, ..JournalSettings::default() };
        let (store, rounds, recovered) = Store::open(disk, settings).unwrap();
        let broker = Broker::new(BrokerConfig { defaults: false, ..BrokerConfig::default() });
        broker.restore(&store, recovered, Timestamp::default()).unwrap();
        if store.catalogue().was_empty() {
            broker.add_defaults();
        }
        store.catalogue().commit_pending().unwrap();
        let is_reachable = Arc::new(AtomicBool::new(true));
        let is_broken = Arc::new(AtomicBool::new(false));
        let (behind, reachable, broken) =
            (upstream.clone(), Arc::clone(&is_reachable), Arc::clone(&is_broken));
        let isolated = Arc::<Mutex<Vec<bool>>>::default();
        let asked = Arc::clone(&isolated);
        let refused = Arc::<Mutex<Vec<Credentials>>>::default();
        let bad = Arc::clone(&refused);
        let connect = move |login: UpstreamLogin, is_isolated| -> Connecting {
            assert!(!broken.load(Ordering::Relaxed), "the forwarder fails on purpose");
            asked.lock().push(is_isolated);
            let is_refused = bad.lock().contains(&login.credentials);
            let (behind, is_reachable) = (behind.clone(), reachable.load(Ordering::Relaxed));
            Box::pin(async move {
                if is_refused {
                    let fault = Fault::new(ReplyCode::AccessRefused, "Login was refused");
                    return Err(OpenError::Refused(fault));
                }
                if is_reachable {
                    return behind.open().await;
                }
                let fault = Fault::new(ReplyCode::ConnectionForced, "no upstream reachable");
                Err(OpenError::Unreachable(fault))
            })
        };
        let known = Arc::clone(&is_reachable);
        let answers = move || Some(known.load(Ordering::Relaxed));
        let access = UpstreamAccess { connect: Box::new(connect), answers: Box::new(answers) };
        let local = LocalSpool::open(Arc::clone(&broker), clock, config).unwrap();
        let ask: AskUpstream = Arc::new(|_, _| Box::pin(std::future::pending()));
        let spool = Spool::start_with(local, access, ask);
        Self { spool, broker, rounds, upstream, is_reachable, isolated, refused, is_broken }
    }

    fn write_all(&mut self) {
        while !matches!(self.rounds.step(), store::journal::CommitOutcome::Idle) {}
    }

    /// The user's local queue, after a client has logged in.
    fn queue(&self) -> Arc<SpoolQueue> {
        let queue = self.spool.queue("/", USER).unwrap();
        queue.logged_in(Arc::new(Credentials::plain(USER, "secret")));
        queue
    }

    /// The state of the user's queues.
    fn status(&self) -> super::SpoolStatus {
        let [status] = &self.spool.status()[..] else { panic!("one user") };
        status.clone()
    }

    /// Runs the tasks until they only wait for time, and advances the time.
    async fn pass(&mut self, time: Duration) {
        tokio::time::sleep(time).await;
        self.write_all();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

fn config() -> SpoolConfig {
    SpoolConfig {
        rules: vec![SpoolRule::new(None, None, None).unwrap()],
        max_bytes: 16 << 20,
        max_age: Duration::from_secs(3600),
        nacked_max: None,
        refuses_others: false,
        auth_max: Duration::from_secs(3600),
        logins: None,
        max_message: 10_000,
    }
}

/// Spools messages for an exchange, with these numbers as bodies.
fn spool_some(
    spool: &Spool,
    queue: &SpoolQueue,
    exchange: &str,
    routing_key: &str,
    numbers: std::ops::Range<u32>,
) {
    let accepted_at = spool.local.timestamp(transport::now()).0;
    spool_at(spool, queue, (exchange, routing_key), accepted_at, numbers);
}

/// The same for messages that were accepted at this time, in milliseconds since 1970.
fn spool_at(
    spool: &Spool,
    queue: &SpoolQueue,
    (exchange, routing_key): (&str, &str),
    accepted_at: u64,
    numbers: std::ops::Range<u32>,
) {
    spool_bodies(
        spool,
        queue,
        (exchange, routing_key),
        accepted_at,
        amqp::properties::NO_PROPERTIES,
        numbers.map(|number| number.to_string().into()),
    );
}

/// Spools a message of this size.
fn spool_large(spool: &Spool, queue: &SpoolQueue, exchange: &str, bytes: usize) {
    let accepted_at = spool.local.timestamp(transport::now()).0;
    let properties = amqp::properties::NO_PROPERTIES;
    spool_bodies(spool, queue, (exchange, "k"), accepted_at, properties, [vec![b'x'; bytes]].into_iter());
}

fn spool_bodies(
    spool: &Spool,
    queue: &SpoolQueue,
    (exchange, routing_key): (&str, &str),
    accepted_at: u64,
    properties: &[u8],
    bodies: impl Iterator<Item = Vec<u8>>,
) {
    let local = &spool.local;
    let mut publisher = local.publisher();
    for body in bodies {
        let mut record = Vec::new();
        SpooledMessage {
            vhost: queue.vhost(),
            user: queue.user(),
            exchange,
            routing_key,
            accepted_at,
            id: local.next_id(),
            properties,
            body: &body,
        }
        .encode(&mut record)
        .unwrap();
        let publish = Publish {
            exchange: "",
            routing_key: queue.queue().name(),
            properties: &persistent(None),
            body: broker::Body::Copied(&record),
        };
        assert!(publisher.publish(publish, Timestamp::default()).unwrap());
        local.accepted(queue, record.len() as u64, accepted_at);
    }
    publisher.flush_all(Timestamp::default());
    queue.waker().wake();
}
