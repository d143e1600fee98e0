//! All connections to one system: opened, held open, dropped.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::net::lookup_host;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use super::arguments::WebSocketsSettings;
use super::kernel::slab_bytes;
use super::member::{self, FleetState, Phase, Role};
use super::report::{ConnectionLevel, Dropped, WebSocketsSystem};
use super::tally::Tally;
use super::target::WebSocketTarget;
use crate::error::ClientError;
use crate::process::{TreeUsage, own_cpu_seconds, tree_usage};
use crate::study::Watch;

/// Connections that observe the system while the others are dropped.
const BYSTANDERS: u32 = 10;
/// How often memory is compared with its limit while connections are opened.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long bystanders observe the system before the others are dropped, and afterwards.
const WATCH: Duration = Duration::from_secs(3);
/// How long messages in transit at the end of a level may take.
const LATE: Duration = Duration::from_millis(500);
/// How long a server may take to notice that connections are closed.
const GONE: Duration = Duration::from_secs(3);

/// Measures a system at each level. `watch` receives the share that is done, and a description of the current step.
///
/// # Errors
/// Not even one connection can be opened.
pub(super) async fn measure(
    system: &WebSocketTarget,
    settings: &WebSocketsSettings,
    watch: Watch<'_>,
) -> Result<WebSocketsSystem, ClientError> {
    let fleet = Fleet::new(system, settings).await?;
    // The first connection is not counted: it makes the server allocate things that it allocates only once.
    let first = member::open(Arc::clone(&fleet.shared), u32::MAX, Role::Ordinary).await;
    let first = first.map_err(Box::new).map_err(ClientError::Member)?;
    drop(first);
    sleep(LATE).await;
    let mut study =
        FleetStudy { baseline: fleet.usage(), slab: slab_bytes(), fleet, members: JoinSet::new(), next: 0 };
    let mut report = WebSocketsSystem {
        name: system.name.clone(),
        round: 1,
        target: system.target.clone(),
        baseline_bytes: study.baseline.rss_bytes,
        levels: Vec::new(),
        stopped: None,
        dropped: None,
    };
    let share = |done: f64| done / (settings.connections.len() + 1) as f64;
    for (done, &connections) in settings.connections.iter().enumerate() {
        watch(share(done as f64), &format!("{}: opening {connections} connections", system.name));
        let opening = study.open(connections).await;
        watch(share(done as f64 + 0.5), &format!("{}: holding {} connections", system.name, study.next));
        report.stopped = opening.stopped.clone();
        report.levels.push(study.hold(opening).await);
        if report.stopped.is_some() {
            break;
        }
    }
    watch(share(settings.connections.len() as f64), &format!("{}: dropping connections", system.name));
    match study.drop_all().await {
        Ok(dropped) => report.dropped = Some(dropped),
        // If the server is too busy for ten more connections, the results measured so far are kept.
        Err(why) => drop(report.stopped.get_or_insert(format!("ten more could not be opened: {why}"))),
    }
    study.end().await;
    Ok(report)
}

struct Fleet {
    shared: Arc<FleetState>,
    pids: Vec<u32>,
}

impl Fleet {
    async fn new(system: &WebSocketTarget, settings: &WebSocketsSettings) -> Result<Self, ClientError> {
        let target = &system.target;
        let resolving = ClientError::io("resolving the host name");
        let mut addresses = lookup_host((target.host.as_str(), target.port)).await.map_err(resolving)?;
        let address = addresses.next().ok_or(ClientError::Protocol("the host has no address".to_owned()))?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = FleetState {
            target: target.clone(),
            address,
            settings: settings.clone(),
            run: since_1970.as_nanos() as u64,
            start: Instant::now(),
            phase: watch::Sender::new(Phase::Hold),
            open: AtomicUsize::new(0),
            tally: Mutex::default(),
            lost: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), pids: system.pids.clone() })
    }

    fn usage(&self) -> TreeUsage {
        tree_usage(&self.pids)
    }
}

/// The measurements while a level's connections were opened.
struct Opening {
    opened: usize,
    seconds: f64,
    cpu_seconds: f64,
    stopped: Option<String>,
}

struct FleetStudy {
    fleet: Fleet,
    baseline: TreeUsage,
    slab: u64,
    members: JoinSet<()>,
    /// The number of the next connection.
    next: u32,
}

impl FleetStudy {
    /// Opens connections until there are `connections`, one is refused, or the memory limit is reached.
    async fn open(&mut self, connections: u32) -> Opening {
        let shared = Arc::clone(&self.fleet.shared);
        let (begin, before, cpu) =
            (Instant::now(), shared.open.load(Relaxed), self.fleet.usage().cpu_seconds);
        let mut opening = JoinSet::new();
        let mut stopped = None;
        let mut look = interval(CHECK_INTERVAL);
        loop {
            while stopped.is_none() && self.next < connections && opening.len() < shared.settings.opening {
                opening.spawn(member::open(Arc::clone(&shared), self.next, Role::Ordinary));
                self.next += 1;
            }
            tokio::select! {
                opened = opening.join_next() => match opened {
                    None => break,
                    Some(Ok(Ok(member))) => {
                        self.members.spawn(member.run());
                    }
                    Some(Ok(Err(why))) => drop(stopped.get_or_insert_with(|| why.to_string())),
                    Some(Err(panicked)) => drop(stopped.get_or_insert(panicked.to_string())),
                },
                _ = look.tick(), if shared.settings.memory_limit.is_some() => {
                    let rss = self.fleet.usage().rss_bytes;
                    if shared.settings.memory_limit.is_some_and(|limit| rss > limit) {
                        stopped.get_or_insert(format!("memory of {rss} bytes is over the limit"));
                    }
                }
            }
        }
        Opening {
            opened: shared.open.load(Relaxed).saturating_sub(before),
            seconds: begin.elapsed().as_secs_f64(),
            cpu_seconds: self.fleet.usage().cpu_seconds - cpu,
            stopped,
        }
    }

    /// Lets messages and heartbeats continue for the time of a level.
    async fn hold(&self, opening: Opening) -> ConnectionLevel {
        let shared = &self.fleet.shared;
        self.count(None);
        let (begin, own, cpu) = (Instant::now(), own_cpu_seconds(), self.fleet.usage().cpu_seconds);
        sleep(shared.settings.hold).await;
        let (usage, seconds) = (self.fleet.usage(), begin.elapsed().as_secs_f64());
        let generator_cores = (own_cpu_seconds() - own) / seconds;
        let Tally { published, received, latencies, .. } = self.counted().await;
        let connections = shared.open.load(Relaxed);
        let each = |grown: u64| grown as f64 / connections.max(1) as f64;
        let lost = shared.lost.lock().map(|mut lost| std::mem::take(&mut *lost)).unwrap_or_default();
        ConnectionLevel {
            connections,
            opened: opening.opened,
            opening_seconds: opening.seconds,
            opening_cpu_seconds: opening.cpu_seconds,
            rss_bytes: usage.rss_bytes,
            bytes_per_connection: each(usage.rss_bytes.saturating_sub(self.baseline.rss_bytes)),
            kernel_bytes_per_connection: each(slab_bytes().saturating_sub(self.slab)),
            cpu_cores: (usage.cpu_seconds - cpu) / seconds,
            generator_cores,
            published,
            received,
            latency: latencies.percentiles(),
            lost: lost.1,
            lost_because: lost.0,
        }
    }

    /// Drops all connections at once, while bystanders observe from a separate thread, since closing this
    /// number of sockets keeps this thread busy for a while.
    async fn drop_all(&self) -> Result<Dropped, ClientError> {
        let shared = &self.fleet.shared;
        let connections = shared.open.load(Relaxed);
        let (opened, all_open) = oneshot::channel();
        let bystanders = Arc::clone(shared);
        let bystanders = thread::spawn(move || run_bystanders(bystanders, opened));
        let opened = all_open.await.map_err(|_| ClientError::Panicked("bystanders"))?;
        opened?;
        // Messages in flight on the dropped connections are lost.
        self.count(Some(Role::Bystander));
        sleep(WATCH).await;
        let before = self.counted().await;
        self.count(Some(Role::Bystander));
        shared.phase.send_replace(Phase::Drop);
        sleep(WATCH).await;
        let during = self.counted().await;
        sleep(GONE).await;
        let rss_bytes = self.fleet.usage().rss_bytes;
        shared.phase.send_replace(Phase::End);
        bystanders.join().map_err(|_| ClientError::Panicked("bystanders"))?;
        let missing = during.published.saturating_sub(during.received);
        let [before, during] = [before, during].map(|tally| tally.latencies.percentiles());
        Ok(Dropped { connections, before, during, missing, rss_bytes })
    }

    async fn end(mut self) {
        self.fleet.shared.phase.send_replace(Phase::End);
        while self.members.join_next().await.is_some() {}
        sleep(GONE).await;
    }

    /// Counts the messages that are sent from now on, by all members or by those with one role.
    fn count(&self, only: Option<Role>) {
        self.fleet.shared.tally(|tally, now| *tally = Tally::begin(now, only));
    }

    /// Ends the count, and returns it once the last messages had time to arrive.
    async fn counted(&self) -> Tally {
        self.fleet.shared.tally(Tally::end);
        sleep(LATE).await;
        self.fleet.shared.tally(|tally, _| std::mem::take(tally))
    }
}

/// Opens the bystanders, signals `opened`, and runs them.
fn run_bystanders(shared: Arc<FleetState>, opened: oneshot::Sender<Result<(), ClientError>>) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        // If the study has ended, the receiver is gone.
        Err(error) => return drop(opened.send(Err(ClientError::io("starting the runtime")(error)))),
    };
    runtime.block_on(async {
        let mut members = JoinSet::new();
        for number in 0..BYSTANDERS {
            match member::open(Arc::clone(&shared), u32::MAX - 1 - number, Role::Bystander).await {
                Ok(member) => drop(members.spawn(member.run())),
                Err(why) => return drop(opened.send(Err(ClientError::Member(Box::new(why))))),
            }
        }
        drop(opened.send(Ok(())));
        while members.join_next().await.is_some() {}
    });
}
