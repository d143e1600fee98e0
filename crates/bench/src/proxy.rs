//! `bench proxy`: the cost of a connection for each message if the broker is far away, directly and through a
//! proxy next to the client.
//!
//! The latency link stands before the broker. `direct` connects through it; proxies have it as their
//! upstream, so that clients reach them at once and they reach the broker over the link.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use transport::HostAndPort;

use crate::error::{ClientError, Error};
use crate::link::{self, Link, LinkShape, resolve};
use crate::mailbox::Mailbox;
use crate::metric::{Fate, Metric};
use crate::one_shot::OneShotMessage;
use crate::process;
use crate::study::arguments::{Common, CommonArguments, Defaults, round_trips};
use crate::study::managed_process::ManagedProcess;
use crate::study::meter::{IdleUsage, Meter};
use crate::study::report::{Axis, Parameter, StudyReport};
use crate::study::systems::System;
use crate::study::systems::parse_systems;
use crate::study::workers::WorkerConfig;
use crate::study::{Cell, Sample, StudyInfo, Watch, run as run_study};
use crate::uri::Uri;
use crate::usage::check;
use crate::watched::Watched;

/// Publish with a connection for each message to a broker that is far away, directly and through a proxy nearby
///
/// Starts Leveret's pool by itself, and one that spools all publishes. Other proxies are started beforehand, with the
/// address that --listen names as their upstream, and named with --system.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProxyArguments {
    /// The broker, as amqp://user:password@host:port/vhost, and where its CPU time is read, as for --system
    #[arg(
        long,
        value_name = "URI[,pid=N][,process=NAME][,unit=NAME][,prometheus=URL]",
        default_value = "amqp://localhost"
    )]
    uri: String,
    /// Brokers that are known already, the first as `uri` and the others as `beside`; replace those options and `pids`.
    #[arg(skip)]
    pub(crate) brokers: Vec<System>,
    /// Process id of the broker, whose CPU time is sampled; may be repeated
    #[arg(long = "pid", value_name = "N")]
    pids: Vec<u32>,
    /// Another broker, measured in the same rounds as direct-NAME and, through pools of its own, as leveret-NAME and
    /// spool-NAME; may be repeated
    #[arg(long, value_name = "NAME=URI[,pid=N]")]
    beside: Vec<String>,
    /// Another proxy, whose upstream is the link, as name=uri[,pid=N]...; may be repeated
    #[arg(long = "system", value_name = "NAME=URI[,pid=N]")]
    systems: Vec<String>,
    /// Where the link to the broker listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Do not start Leveret's pool, with a spool or without
    #[arg(long)]
    no_pool: bool,
    /// Do not start Leveret's pool with a spool
    #[arg(long)]
    no_spool: bool,
    /// Do not measure without a proxy
    #[arg(long)]
    no_direct: bool,
    /// Round trips to the broker in milliseconds [default: 0,1,5,10,50,100; with --quick 0,5,50]
    #[arg(long, value_name = "MS,...", value_delimiter = ',')]
    latency: Vec<f64>,
    /// Clients that publish side by side
    #[arg(long, value_name = "N", default_value_t = 1)]
    clients: usize,
    /// Body size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    size: usize,
    #[command(flatten)]
    pub(crate) common: CommonArguments,
}

/// A checked command line.
#[derive(Debug)]
pub(crate) struct ProxyPlan {
    /// The broker, and those beside it.
    brokers: Vec<System>,
    listen: SocketAddr,
    pool: bool,
    spool: bool,
    direct: bool,
    others: Vec<System>,
    round_trips: Vec<f64>,
    clients: usize,
    body: Vec<u8>,
    /// How long to measure the CPU use of idle processes.
    idle: Duration,
    pub(crate) common: Common,
}

const DEFAULTS: Defaults = Defaults { rounds: 3, seconds: 2.0, quick_rounds: 1, quick_seconds: 0.5 };
/// At the longest round trip, each client sends at least this many messages.
const FEWEST: u64 = 3;
const NO_CONFIRM: &str = "no confirm";
const CONFIRM: &str = "confirm";
/// Names of the systems that this study provides itself.
const DIRECT: &str = "direct";
const POOL: &str = "leveret";
const SPOOL: &str = "spool";
/// More would test the machine instead.
const MAX_CLIENTS: usize = 1000;
const LARGEST_BODY: usize = 128 << 20;

impl ProxyArguments {
    /// Checks the arguments against each other.
    pub(crate) fn plan(&self) -> Result<ProxyPlan, Error> {
        let others = named(&self.systems)?;
        check(
            !(self.no_direct && self.no_pool && others.is_empty()),
            "--no-direct and --no-pool leave nothing to measure",
        )?;
        check((1..=MAX_CLIENTS).contains(&self.clients), "--clients must be between 1 and 1000")?;
        check(self.size <= LARGEST_BODY, "--size must be at most 128 MiB")?;
        if let Some(pid) = self.pids.iter().find(|pid| !process::exists(**pid)) {
            return Err(Error::Usage(format!("--pid: there is no process {pid}")));
        }
        let default: &[f64] =
            if self.common.quick { &[0.0, 5.0, 50.0] } else { &[0.0, 1.0, 5.0, 10.0, 50.0, 100.0] };
        let latency = if self.latency.is_empty() { default } else { &self.latency };
        let mut brokers = self.brokers.clone();
        if brokers.is_empty() {
            let (watched, uri) = Watched::take_from(&self.uri)?;
            let watched = watched.with(&Watched::processes(&self.pids));
            brokers.push(System { name: "broker".into(), uri: Uri::parse(uri)?, watched });
            brokers.extend(named(&self.beside)?);
        }
        let ours = |name: &str| {
            brokers
                .iter()
                .enumerate()
                .any(|at| [DIRECT, POOL, SPOOL].iter().any(|way| way_to(at, way) == name))
        };
        check(
            !others.iter().any(|system| ours(&system.name)),
            "--system: the names direct, leveret and spool are taken, and with - and the name of a broker beside",
        )?;
        Ok(ProxyPlan {
            brokers,
            listen: resolve("--listen", &self.listen)?,
            pool: !self.no_pool,
            spool: !self.no_pool && !self.no_spool,
            direct: !self.no_direct,
            others,
            round_trips: round_trips(latency)?,
            clients: self.clients,
            body: vec![b'x'; self.size],
            idle: Duration::from_secs_f64(if self.common.quick { 0.5 } else { 2.0 }),
            common: self.common.check(DEFAULTS)?,
        })
    }
}

/// The name of a way to a broker, of which the first needs none.
fn way_to((number, broker): (usize, &System), way: &str) -> String {
    if number == 0 { way.to_owned() } else { format!("{way}-{}", broker.name) }
}

fn named(systems: &[String]) -> Result<Vec<System>, Error> {
    if systems.is_empty() { Ok(Vec::new()) } else { parse_systems("", systems) }
}

/// A broker with the link before it.
struct FarBroker<'p> {
    broker: &'p System,
    /// The pools, killed when this is dropped, before their upstream vanishes with the link.
    _pools: Vec<ManagedProcess>,
    link: Link,
    /// The queue of all messages to this broker.
    mailbox: Mailbox,
    /// The ways to it that are measured.
    systems: Vec<System>,
}

impl<'p> FarBroker<'p> {
    /// Starts the link and the pool.
    fn start(plan: &ProxyPlan, (number, broker): (usize, &'p System)) -> Result<Self, Error> {
        let any_port = SocketAddr::new(plan.listen.ip(), 0);
        let listen = if number == 0 { plan.listen } else { any_port };
        let target = resolve("--uri", &HostAndPort(&broker.uri.host, broker.uri.port).to_string())?;
        let failed = |cause| Error::Link { address: listen.to_string(), cause };
        let link = Link::start(listen, target, [LinkShape::default(); 2]).map_err(failed)?;
        let upstream = format!("amqp://{}", link.address());
        let pool = plan.pool.then(|| (POOL, ManagedProcess::pool(&upstream)));
        let spool = plan.spool.then(|| (SPOOL, ManagedProcess::spool(&upstream)));
        let mut systems = Vec::new();
        if plan.direct {
            let uri = through(&broker.uri, link.address());
            systems.push(System { name: way_to((number, broker), DIRECT), uri, watched: Watched::default() });
        }
        let mut pools = Vec::new();
        for (way, started) in pool.into_iter().chain(spool) {
            let pool = started?;
            systems.push(pool.system(&way_to((number, broker), way), &broker.uri)?);
            pools.push(pool);
        }
        let mailbox = Mailbox::open(&broker.uri).map_err(Error::of(&broker.name))?;
        Ok(Self { broker, _pools: pools, link, mailbox, systems })
    }
}

/// Runs the study.
pub(crate) fn run(plan: &ProxyPlan, watch: Watch<'_>) -> Result<StudyReport, Error> {
    let started = plan.brokers.iter().enumerate().map(|broker| FarBroker::start(plan, broker));
    let mut places = started.collect::<Result<Vec<_>, _>>()?;
    // Other proxies have the first broker's link as their upstream.
    places[0].systems.extend(plan.others.iter().cloned());
    let report = measure(plan, &mut places, watch);
    let closed: Vec<_> = places
        .into_iter()
        .map(|place| place.mailbox.close().map_err(Error::of(&place.broker.name)))
        .collect();
    let report = report?;
    closed.into_iter().collect::<Result<(), _>>()?;
    Ok(report)
}

/// The same credentials and vhost at another address.
pub(crate) fn through(uri: &Uri, address: SocketAddr) -> Uri {
    uri.at(&address.ip().to_string(), address.port())
}

fn measure(plan: &ProxyPlan, places: &mut [FarBroker<'_>], watch: Watch<'_>) -> Result<StudyReport, Error> {
    let cells: Vec<Cell> = [NO_CONFIRM, CONFIRM]
        .into_iter()
        .flat_map(|scenario| {
            plan.round_trips.iter().map(move |&at| Cell { scenario, axis: Axis::RoundTrip, at })
        })
        .collect();
    let systems: Vec<System> = places.iter().flat_map(|place| place.systems.clone()).collect();
    let behind: Vec<usize> =
        places.iter().enumerate().flat_map(|(number, place)| vec![number; place.systems.len()]).collect();
    let queues: Vec<String> = places.iter().map(|place| place.mailbox.name().to_owned()).collect();
    watch(0.0, "what everybody uses when idle");
    let message = |system: usize, confirm| OneShotMessage {
        uri: &systems[system].uri,
        queue: &queues[behind[system]],
        body: &plan.body,
        confirm,
        persistent: false,
    };
    let of = |system: usize| Error::of(&systems[system].name);
    for system in 0..systems.len() {
        message(system, true).post().map_err(of(system))?;
    }
    let mut groups: Vec<&Watched> = systems.iter().map(|system| &system.watched).collect();
    groups.extend(places.iter().map(|place| &place.broker.watched));
    let idle = IdleUsage::measure(&groups, plan.idle);
    let (idle, brokers_idle) = idle.split_at(systems.len());
    for place in places.iter_mut() {
        let count = place.systems.len() as u64;
        place.mailbox.empty(count).map_err(Error::of(&place.broker.name))?;
    }
    let servers: Vec<String> = places.iter().map(|place| place.mailbox.server()).collect();
    let outline = StudyInfo {
        name: "proxy",
        title: "A connection for each message, to a broker far away",
        parameters: parameters(plan, &servers),
        cells: &cells,
        systems: &systems,
    };
    let place_of =
        |name: &str| systems.iter().position(|system| system.name == name).map_or(0, |at| behind[at]);
    let about = |system: &System| Ok(servers[place_of(&system.name)].clone());
    let mut report = run_study(outline, &plan.common, watch, about, |cell, system| {
        let place = &mut places[behind[system]];
        place.link.set_round_trip(Duration::from_secs_f64(cell.at / 1e3));
        let message = message(system, cell.scenario == CONFIRM);
        let broker_idle = &brokers_idle[behind[system]];
        let (sample, count) = one_round(plan, &message, &idle[system], broker_idle).map_err(of(system))?;
        let arrived = place.mailbox.empty(count).map_err(of(system))?;
        Ok(with_losses(sample, count, arrived))
    })?;
    report.notes.extend(notes(plan, &systems, idle, brokers_idle));
    let lateness = places.iter().filter_map(|place| place.link.lateness());
    report.notes.extend(lateness.map(|late| link::exactness(late.p50)));
    Ok(report)
}

/// Measures one round, after one message that is not measured; also returns how many messages were sent in all.
fn one_round(
    plan: &ProxyPlan,
    message: &OneShotMessage<'_>,
    idle: &IdleUsage,
    broker_idle: &IdleUsage,
) -> Result<(Sample, u64), ClientError> {
    message.post()?;
    let meter = Meter::start(idle, broker_idle);
    let config = WorkerConfig { workers: plan.clients, time: plan.common.time, min_steps: FEWEST };
    let (sample, count) = message.measure(config, meter)?;
    Ok((sample, count + 1))
}

fn with_losses(mut sample: Sample, sent: u64, arrived: u64) -> Sample {
    sample.add(Metric::Count(Fate::Lost), sent.saturating_sub(arrived) as f64);
    sample
}

fn parameters(plan: &ProxyPlan, servers: &[String]) -> Vec<Parameter> {
    let brokers = plan.brokers.iter().zip(servers);
    let brokers: Vec<_> = brokers.map(|(broker, server)| format!("{server} at {}", broker.uri)).collect();
    vec![
        Parameter::new("broker", brokers.join(", ")),
        Parameter::new("clients", plan.clients),
        Parameter::new("body", format!("{} bytes", plan.body.len())),
        Parameter::new("seconds a round", plan.common.time.as_secs_f64()),
    ]
}

fn notes(
    plan: &ProxyPlan,
    systems: &[System],
    idle: &[IdleUsage],
    brokers_idle: &[IdleUsage],
) -> Vec<String> {
    let mut notes = vec![
        "Each message is connect, log in, open a channel, publish, close the connection; its time is that of all of \
         it. The link takes a round trip for TCP's handshake, as a network does."
            .to_owned(),
    ];
    let all = plan.brokers.iter().chain(systems).zip(brokers_idle.iter().chain(idle));
    let watched: Vec<String> = all
        .filter(|(system, _)| !system.watched.is_empty())
        .map(|(system, idle)| format!("{:.3} for {}", idle.cores(), system.name))
        .collect();
    if plan.brokers.iter().any(|broker| !broker.watched.is_empty()) {
        notes.push(format!(
            "CPU each is without what the processes use when idle, which was, in cores, {}. Where few messages were \
             sent it is uncertain: 10 ms is the least that the kernel tells apart.",
            watched.join(", ")
        ));
    }
    notes
}
