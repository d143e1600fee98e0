//! One round on one system: set-up, load, measured window, drain, and results.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use amqp::Method;
use amqp::handshake::product_and_version;
use amqp::method::{basic, confirm};

use super::consumer::{Consumed, Consumer};
use super::message::{Batch, CHANNEL, MessageStyle};
use super::producer::{self, Produced, ProducerTask};
use super::shared::RoundState;
use super::topology::Topology;
use super::window::{Sampler, Snapshot};
use super::workload::{Acks, Length, Workload};
use crate::client::{Connection, STALL_TIMEOUT};
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::metric::grouped;
use crate::report::{Counts, Round};
use crate::study::systems::System;
use crate::watched::Watched;

/// How long no delivery may arrive, after the last publish, before missing messages count as lost.
const DRAIN_QUIET: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 2000 });
/// The polling interval of the coordinating thread.
const TICK: Duration = Duration::from_millis(20);

/// Live figures, for a progress display.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Messages published so far in this round.
    pub(crate) published: u64,
    /// Messages consumed so far in this round.
    pub(crate) consumed: u64,
    /// Share of the round that is over, 0 to 1.
    pub(crate) done: f64,
}

/// Runs one round and reports its progress to `watch`. Also returns the server's product and version.
pub(crate) fn run(
    system: &System,
    workload: &Workload,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Round, String), ClientError> {
    let mut control = Connection::open(&system.uri, "leveret bench: control")?;
    control.open_channel(CHANNEL)?;
    let salt = next_salt();
    let mut topology = Topology::new(workload, salt);
    topology.declare(&mut control)?;
    let server = describe_server(&control);
    let shared = RoundState::new(workload.producers, salt);
    let outcome = load(system, workload, &topology, &shared, watch);
    let deleted = topology.delete(&mut control);
    control.close();
    // The failure that ended the load is more informative than later ones that it caused.
    let round = outcome?;
    deleted.map(|()| (round, server))
}

/// Distinguishes rounds, and to a degree processes, so that messages left over in a queue are not mistaken for new ones.
fn next_salt() -> u8 {
    static ROUND: AtomicU8 = AtomicU8::new(0);
    (std::process::id() as u8).wrapping_add(ROUND.fetch_add(1, Relaxed))
}

fn describe_server(connection: &Connection) -> String {
    let properties = &connection.opened.server_properties;
    let (product, version) = product_and_version(properties);
    let platform = properties.get("platform").and_then(|value| value.as_text());
    let parts = [product, version, platform];
    match parts.into_iter().flatten().collect::<Vec<_>>().join(" ") {
        nothing if nothing.is_empty() => "unknown".into(),
        description => description,
    }
}

/// Connects all producers and consumers, then starts them together.
fn load(
    system: &System,
    workload: &Workload,
    topology: &Topology<'_>,
    shared: &RoundState,
    watch: &mut dyn FnMut(Progress),
) -> Result<Round, ClientError> {
    let mut consumers = Vec::new();
    for index in 0..workload.consumers {
        consumers.push(subscribe(system, workload, topology, index)?);
    }
    let mut producers = Vec::new();
    for index in 0..workload.producers {
        producers.push(open_producer(system, workload, index)?);
    }
    if let Length::Messages(_) = workload.length {
        shared.measure_from.store(0, SeqCst);
    }
    shared.begin();
    thread::scope(|scope| {
        let mut consuming = Vec::new();
        for connection in consumers {
            let consumer = Consumer::new(shared, workload);
            consuming.push(scope.spawn(move || guarded(shared, || consumer.run(connection))));
        }
        let mut producing = Vec::new();
        for (index, connection) in producers.into_iter().enumerate() {
            let task = task(workload, shared, topology, index, &connection);
            producing.push(scope.spawn(move || guarded(shared, || producer::run(task, connection))));
        }
        let mut window = coordinate(&system.watched, workload, shared, watch, || {
            producing.iter().all(|p| p.is_finished())
        });
        let produced = join(producing, "producer")?;
        let returned: u64 = produced.iter().map(|p| p.returned + p.nacked).sum();
        if workload.consumers > 0 && workload.producers > 0 {
            drain(workload, shared, returned);
        }
        let end = window.end.take().unwrap_or_else(|| window.sampler.snapshot_at_end(shared));
        shared.stop.store(true, SeqCst);
        let consumed = join(consuming, "consumer")?;
        if let Some(failure) = shared.take_failure() {
            return Err(failure);
        }
        Ok(result(workload, shared, &window, &end, (&produced, &consumed)))
    })
}

fn subscribe(
    system: &System,
    workload: &Workload,
    topology: &Topology<'_>,
    index: usize,
) -> Result<Connection, ClientError> {
    let mut connection = Connection::open(&system.uri, &format!("leveret bench: consumer {index}"))?;
    for channel in channels(workload) {
        connection.open_channel(channel)?;
        if let Acks::Manual { prefetch, .. } = workload.acks
            && prefetch > 0
        {
            let qos = basic::Qos { prefetch_count: prefetch, ..Default::default() };
            connection.call(channel, qos, |m| matches!(m, Method::BasicQosOk(_)).then_some(()))?;
        }
    }
    topology.subscribe(&mut connection, index, channels(workload))?;
    Ok(connection)
}

fn open_producer(system: &System, workload: &Workload, index: usize) -> Result<Connection, ClientError> {
    let mut connection = Connection::open(&system.uri, &format!("leveret bench: producer {index}"))?;
    for channel in channels(workload) {
        connection.open_channel(channel)?;
        if workload.confirms > 0 {
            let select = confirm::Select { no_wait: false };
            connection.call(channel, select, |m| matches!(m, Method::ConfirmSelectOk(_)).then_some(()))?;
        }
    }
    Ok(connection)
}

/// Numbers of the channels of a connection.
fn channels(workload: &Workload) -> Range<u16> {
    CHANNEL..CHANNEL + workload.channels
}

fn task<'s>(
    workload: &Workload,
    shared: &'s RoundState,
    topology: &Topology<'_>,
    index: usize,
    connection: &Connection,
) -> ProducerTask<'s> {
    let body: Vec<u8> = (0..workload.size).map(|n| n as u8).collect();
    let bodies = match &workload.bodies[..] {
        [] => vec![&body[..]],
        files => files.iter().map(|file| &file.bytes[..]).collect(),
    };
    let style = MessageStyle {
        exchange: workload.exchange.as_deref().unwrap_or_default(),
        keys: topology.keys_of(index),
        bodies,
        numbered: workload.bodies.is_empty(),
        properties: &workload.properties.encode(workload.persistent),
        mandatory: workload.mandatory,
        frame_max: connection.opened.negotiated.frame_max,
        channels: workload.channels,
    };
    ProducerTask {
        shared,
        // The plan has checked that an identity can distinguish this many producers.
        batch: Batch::new(&style, shared.salt, index as u16),
        confirms: workload.confirms,
        channels: workload.channels,
        schedule: workload.rate.clone(),
        messages: match workload.length {
            Length::Messages(messages) => Some(messages),
            Length::Timed { .. } => None,
        },
        backlog: workload.is_coupled().then_some(workload.limit_backlog),
    }
}

/// Runs a thread's work; its failure ends the round for all threads.
pub(super) fn guarded<T>(shared: &RoundState, work: impl FnOnce() -> Result<T, ClientError>) -> Option<T> {
    match shared.timed(work) {
        Ok(outcome) => Some(outcome),
        Err(error) => {
            shared.fail(error);
            None
        }
    }
}

/// Joins threads; those that failed have called [`RoundState::fail`] and are left out.
fn join<T>(threads: Vec<ScopedJoinHandle<'_, Option<T>>>, what: &'static str) -> Result<Vec<T>, ClientError> {
    let mut outcomes = Vec::new();
    for thread in threads {
        outcomes.extend(thread.join().map_err(|_| ClientError::Panicked(what))?);
    }
    Ok(outcomes)
}

/// The number of parts of the measured time whose rates are reported.
const PARTS: u32 = 10;

/// The part of a round that is measured.
pub(super) struct Window<'p> {
    /// Times and message counts at the edges of its parts.
    marks: Vec<(u64, u64)>,
    pub(super) sampler: Sampler<'p>,
    start: Snapshot,
    /// `None` until all messages have arrived, in a round that is counted in messages.
    pub(super) end: Option<Snapshot>,
}

/// Supervises the load during its warm-up and its measured window.
pub(super) fn coordinate<'p>(
    watched: &'p Watched,
    workload: &Workload,
    shared: &RoundState,
    watch: &mut dyn FnMut(Progress),
    producers_finished: impl Fn() -> bool,
) -> Window<'p> {
    let mut sampler = Sampler::new(watched);
    let mut notify = |done: f64| {
        let (published, consumed) = (shared.published.load(Relaxed), shared.consumed.load(Relaxed));
        watch(Progress { published, consumed, done });
    };
    // Reports at least once, however short the round is.
    notify(0.0);
    let mut tick = |sampler: &mut Sampler<'_>, done: f64| {
        thread::sleep(TICK);
        sampler.tick();
        notify(done);
        !shared.stop.load(Relaxed)
    };
    match workload.length {
        Length::Timed { warmup, measure } => {
            let (began, whole) = (Instant::now(), warmup + measure);
            let done = |elapsed: Duration| elapsed.as_secs_f64() / whole.as_secs_f64();
            while began.elapsed() < warmup && tick(&mut sampler, done(began.elapsed())) {}
            sampler.reset_peak();
            let start = sampler.snapshot(shared);
            shared.measure_from.store(start.at, SeqCst);
            let mut marks = vec![mark(workload, shared)];
            while began.elapsed() < whole && tick(&mut sampler, done(began.elapsed())) {
                if began.elapsed() >= warmup + measure * marks.len() as u32 / PARTS {
                    marks.push(mark(workload, shared));
                }
            }
            let end = sampler.snapshot(shared);
            shared.measure_until.store(end.at, SeqCst);
            shared.stop_publishing.store(true, SeqCst);
            Window { sampler, start, end: Some(end), marks }
        }
        Length::Messages(messages) => {
            let start = sampler.snapshot_at_start(shared);
            let publishing = workload.producers > 0;
            let expected = messages * if publishing { workload.producers } else { workload.consumers } as u64;
            let (mut progress, mut last_change) = (shared.progress(), Instant::now());
            loop {
                let so_far = if publishing { &shared.published } else { &shared.consumed }.load(Relaxed);
                let over = if publishing { producers_finished() } else { so_far >= expected };
                if over || !tick(&mut sampler, so_far as f64 / expected as f64) {
                    return Window { sampler, start, end: None, marks: Vec::new() };
                }
                let now = shared.progress();
                // Without producers here, those elsewhere may begin later.
                if now != progress || !publishing && so_far == 0 {
                    (progress, last_change) = (now, Instant::now());
                } else if last_change.elapsed() >= STALL_TIMEOUT {
                    shared.fail(stopped(workload, shared, expected));
                }
            }
        }
    }
}

/// The error of a system that has done nothing for [`STALL_TIMEOUT`], with what it has done of the round.
fn stopped(workload: &Workload, shared: &RoundState, expected: u64) -> ClientError {
    let count = |done: &str, count: &AtomicU64| format!("{} {done}", grouped(count.load(SeqCst) as f64));
    let mut done = Vec::new();
    if workload.producers > 0 {
        done.push(count("published", &shared.published));
    }
    if workload.confirms > 0 {
        done.push(count("confirmed", &shared.confirmed));
    }
    if workload.consumers > 0 {
        done.push(count("delivered", &shared.consumed));
    }
    let (patience, expected) = (STALL_TIMEOUT.as_secs(), grouped(expected as f64));
    ClientError::Stopped(format!(
        "nothing has happened for {patience} s; of {expected} messages {}",
        done.join(", ")
    ))
}

/// The current time, and the message count that determines the rate.
fn mark(workload: &Workload, shared: &RoundState) -> (u64, u64) {
    let count = match workload {
        Workload { consumers: 1.., .. } => &shared.consumed,
        Workload { confirms: 1.., .. } => &shared.confirmed,
        _ => &shared.published,
    };
    (shared.now(), count.load(Relaxed))
}

/// Messages per second between marks.
fn timeline(marks: &[(u64, u64)]) -> Vec<f64> {
    let rate =
        |pair: &[(u64, u64)]| (pair[1].1 - pair[0].1) as f64 * 1e9 / (pair[1].0 - pair[0].0).max(1) as f64;
    marks.windows(2).map(rate).collect()
}

/// Waits until every message has arrived, or no message has for a while.
fn drain(workload: &Workload, shared: &RoundState, returned: u64) {
    let expected = shared.published.load(SeqCst).saturating_sub(returned);
    let arrived = || {
        if workload.is_numbered() {
            shared.trackers().iter().map(|tracker| tracker.received()).sum()
        } else {
            shared.consumed.load(Relaxed)
        }
    };
    let (mut last_count, mut last_change) = (shared.consumed.load(Relaxed), Instant::now());
    while arrived() < expected && last_change.elapsed() < DRAIN_QUIET && !shared.stop.load(Relaxed) {
        thread::sleep(TICK);
        let count = shared.consumed.load(Relaxed);
        if count != last_count {
            (last_count, last_change) = (count, Instant::now());
        }
    }
}

pub(super) fn result(
    workload: &Workload,
    shared: &RoundState,
    Window { sampler, start, marks, .. }: &Window<'_>,
    end: &Snapshot,
    (produced, consumed): (&[Produced], &[Consumed]),
) -> Round {
    let counts = counts(workload, shared, produced, consumed);
    let published = end.published.since(&start.published);
    let delivered = end.consumed.since(&start.consumed);
    let messages = if workload.consumers > 0 { delivered.count } else { published.count };
    let unsent = || produced.iter().map(|producer| &producer.unsent_latencies);
    let latency = merged(consumed.iter().map(|consumer| &consumer.latencies).chain(unsent()));
    let confirmed = produced.iter().map(|producer| &producer.confirm_latencies);
    let confirm_latency = merged(confirmed.chain(unsent().filter(|_| workload.confirms > 0)));
    Round {
        seconds: end.seconds_since(start),
        publish_rate: published.per_second(),
        consume_rate: (workload.consumers > 0).then(|| delivered.per_second()),
        confirm_rate: (workload.confirms > 0).then(|| end.confirmed.since(&start.confirmed).per_second()),
        latency: latency.percentiles().filter(|_| workload.consumers > 0 && workload.is_stamped()),
        confirm_latency: confirm_latency.percentiles(),
        counts,
        processes: sampler.process_usage(start, end, messages),
        generator: sampler.generator_usage(start, end),
        timeline: timeline(marks),
    }
}

fn counts(workload: &Workload, shared: &RoundState, produced: &[Produced], consumed: &[Consumed]) -> Counts {
    let total = |of: fn(&Produced) -> u64| produced.iter().map(of).sum::<u64>();
    let seen = |of: fn(&Consumed) -> u64| consumed.iter().map(of).sum::<u64>();
    let published = total(|p| p.published);
    let (nacked, returned) = (total(|p| p.nacked), total(|p| p.returned));
    let deliveries = shared.consumed.load(SeqCst);
    let trackers = shared.trackers();
    let arrived = if workload.is_numbered() {
        trackers.iter().map(|tracker| tracker.received()).sum()
    } else {
        deliveries
    };
    let comparable = workload.producers > 0 && workload.consumers > 0;
    Counts {
        published,
        consumed: deliveries,
        confirmed: shared.confirmed.load(SeqCst),
        nacked,
        returned,
        unconfirmed: total(|p| p.unconfirmed),
        odd_confirms: total(|p| p.odd_confirms),
        lost: if comparable {
            published.saturating_sub(nacked + returned).saturating_sub(arrived)
        } else {
            0
        },
        duplicated: if workload.is_copied() {
            0
        } else {
            trackers.iter().map(|tracker| tracker.duplicated()).sum()
        },
        copied: workload.is_copied(),
        reordered: seen(|c| c.reordered),
        redelivered: seen(|c| c.redelivered),
        foreign: seen(|c| c.foreign),
        blocked: total(|p| p.blocked),
        unsent: total(|p| p.unsent),
    }
}

fn merged<'l>(all: impl Iterator<Item = &'l Latencies>) -> Latencies {
    all.fold(Latencies::new(), |mut sum, one| {
        sum.add(one);
        sum
    })
}
