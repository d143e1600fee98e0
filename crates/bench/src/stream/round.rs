//! One round on one system: set-up, load, measured window, drain, and what came of it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use amqp::Method;
use amqp::method::{basic, confirm, queue};

use super::arguments::{Acks, Length, System, Workload};
use super::consumer::{Consumed, Consumer};
use super::message::{Batch, CHANNEL, IDENTITY_LEN, STAMPED_LEN, Style};
use super::producer::{self, Produced, Task};
use super::shared::Shared;
use super::window::{Sampler, Snapshot};
use crate::client::Connection;
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::report::{Counts, Round};

/// How long no delivery may come, after the last publish, until what is missing counts as lost.
const DRAIN_QUIET: Duration = Duration::from_secs(2);
/// How often the coordinating thread looks.
const TICK: Duration = Duration::from_millis(20);

/// Live figures, for a progress display.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Messages published so far in this round.
    pub published: u64,
    /// Messages consumed so far in this round.
    pub consumed: u64,
    /// Share of the round that is over, 0 to 1.
    pub done: f64,
}

/// Runs one round and tells `watch` how it goes. Also returns what the server says it is.
pub(crate) fn run(
    system: &System,
    workload: &Workload,
    watch: &mut dyn FnMut(Progress),
) -> Result<(Round, String), ClientError> {
    let mut control = Connection::open(&system.uri, "leveret bench: control")?;
    control.open_channel(CHANNEL)?;
    let salt = next_salt();
    let queues = queue_names(workload, salt);
    if !workload.predeclared {
        declare(&mut control, workload, &queues)?;
    }
    let server = describe_server(&control);
    let shared = Shared::new(workload.producers, salt);
    let outcome = load(system, workload, &queues, &shared, watch);
    let deleted = if workload.predeclared { Ok(()) } else { delete(&mut control, &queues) };
    control.close();
    // What ended the load tells more than what it broke afterwards.
    let round = outcome?;
    deleted.map(|()| (round, server))
}

/// Distinguishes rounds, and to a degree processes, so that messages left over in a queue are not taken for ours.
fn next_salt() -> u8 {
    static ROUND: AtomicU8 = AtomicU8::new(0);
    (std::process::id() as u8).wrapping_add(ROUND.fetch_add(1, Relaxed))
}

fn queue_names(workload: &Workload, salt: u8) -> Vec<String> {
    let base = match &workload.queue {
        Some(name) => name.clone(),
        None => format!("leveret-bench-{}-{salt}", std::process::id()),
    };
    match workload.queues {
        1 => vec![base],
        n => (1..=n).map(|number| format!("{base}-{number}")).collect(),
    }
}

fn declare(control: &mut Connection, workload: &Workload, queues: &[String]) -> Result<(), ClientError> {
    for name in queues {
        let declare = queue::Declare {
            queue: name,
            durable: workload.persistent,
            // A generated queue goes with its consumers, should this process be killed.
            auto_delete: workload.queue.is_none() && workload.consumers > 0,
            ..Default::default()
        };
        control.call(CHANNEL, declare, |m| matches!(m, Method::QueueDeclareOk(_)).then_some(()))?;
        // Without producers, what is in the queue is the load.
        if workload.producers > 0 {
            let purge = queue::Purge { queue: name, ..Default::default() };
            control.call(CHANNEL, purge, |m| matches!(m, Method::QueuePurgeOk(_)).then_some(()))?;
        }
    }
    Ok(())
}

fn delete(control: &mut Connection, queues: &[String]) -> Result<(), ClientError> {
    for name in queues {
        let delete = queue::Delete { queue: name, ..Default::default() };
        control.call(CHANNEL, delete, |m| matches!(m, Method::QueueDeleteOk(_)).then_some(()))?;
    }
    Ok(())
}

fn describe_server(connection: &Connection) -> String {
    let text = |key| connection.opened.server_properties.get(key).and_then(|value| value.as_text());
    let parts = [text("product"), text("version"), text("platform")];
    match parts.into_iter().flatten().collect::<Vec<_>>().join(" ") {
        nothing if nothing.is_empty() => "unknown".into(),
        description => description,
    }
}

/// Connects everybody, then lets them loose.
fn load(
    system: &System,
    workload: &Workload,
    queues: &[String],
    shared: &Shared,
    watch: &mut dyn FnMut(Progress),
) -> Result<Round, ClientError> {
    let mut consumers = Vec::new();
    for index in 0..workload.consumers {
        consumers.push(subscribe(system, workload, &queues[index % queues.len()], index)?);
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
            let numbered = workload.size >= IDENTITY_LEN;
            let consumer = Consumer::new(shared, workload.producers, workload.acks, numbered);
            consuming.push(scope.spawn(move || guarded(shared, || consumer.run(connection))));
        }
        let mut producing = Vec::new();
        for (index, connection) in producers.into_iter().enumerate() {
            let task = task(workload, shared, &queues[index % queues.len()], index, &connection);
            producing.push(scope.spawn(move || guarded(shared, || producer::run(task, connection))));
        }
        let mut window =
            coordinate(&system.pids, workload, shared, watch, || producing.iter().all(|p| p.is_finished()));
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
    queue: &str,
    index: usize,
) -> Result<Connection, ClientError> {
    let mut connection = Connection::open(&system.uri, &format!("leveret bench: consumer {index}"))?;
    connection.open_channel(CHANNEL)?;
    if let Acks::Manual { prefetch, .. } = workload.acks
        && prefetch > 0
    {
        let qos = basic::Qos { prefetch_count: prefetch, ..Default::default() };
        connection.call(CHANNEL, qos, |m| matches!(m, Method::BasicQosOk(_)).then_some(()))?;
    }
    let no_ack = workload.acks == Acks::Automatic;
    let consume = basic::Consume { queue, consumer_tag: "c", no_ack, ..Default::default() };
    connection.call(CHANNEL, consume, |m| matches!(m, Method::BasicConsumeOk(_)).then_some(()))?;
    Ok(connection)
}

fn open_producer(system: &System, workload: &Workload, index: usize) -> Result<Connection, ClientError> {
    let mut connection = Connection::open(&system.uri, &format!("leveret bench: producer {index}"))?;
    connection.open_channel(CHANNEL)?;
    if workload.confirms > 0 {
        let select = confirm::Select { no_wait: false };
        connection.call(CHANNEL, select, |m| matches!(m, Method::ConfirmSelectOk(_)).then_some(()))?;
    }
    Ok(connection)
}

fn task<'s>(
    workload: &Workload,
    shared: &'s Shared,
    queue: &str,
    index: usize,
    connection: &Connection,
) -> Task<'s> {
    let style = Style {
        queue,
        size: workload.size,
        persistent: workload.persistent,
        mandatory: workload.mandatory,
        frame_max: connection.opened.negotiated.frame_max,
    };
    Task {
        shared,
        // The plan has checked that there are no more producers than an identity can tell apart.
        batch: Batch::new(&style, shared.salt, index as u16),
        confirms: workload.confirms,
        rate: workload.rate,
        messages: match workload.length {
            Length::Messages(messages) => Some(messages),
            Length::Timed { .. } => None,
        },
        backlog: workload.is_coupled().then_some(workload.limit_backlog),
    }
}

/// Runs a thread's work, so that its failure ends the round for all.
pub(super) fn guarded<T>(shared: &Shared, work: impl FnOnce() -> Result<T, ClientError>) -> Option<T> {
    match shared.timed(work) {
        Ok(outcome) => Some(outcome),
        Err(error) => {
            shared.fail(error);
            None
        }
    }
}

/// Joins threads; those that failed have told [`Shared::fail`] and are left out.
fn join<T>(threads: Vec<ScopedJoinHandle<'_, Option<T>>>, what: &'static str) -> Result<Vec<T>, ClientError> {
    let mut outcomes = Vec::new();
    for thread in threads {
        outcomes.extend(thread.join().map_err(|_| ClientError::Panicked(what))?);
    }
    Ok(outcomes)
}

/// The part of a round that is measured.
pub(super) struct Window<'p> {
    pub(super) sampler: Sampler<'p>,
    start: Snapshot,
    /// `None` until everything has arrived, in a round that is counted in messages.
    pub(super) end: Option<Snapshot>,
}

/// Sees the load through its warm-up and its measured window.
pub(super) fn coordinate<'p>(
    pids: &'p [u32],
    workload: &Workload,
    shared: &Shared,
    watch: &mut dyn FnMut(Progress),
    producers_finished: impl Fn() -> bool,
) -> Window<'p> {
    let mut sampler = Sampler::new(pids);
    let mut tick = |sampler: &mut Sampler<'_>, done: f64| {
        thread::sleep(TICK);
        sampler.tick();
        let (published, consumed) = (shared.published.load(Relaxed), shared.consumed.load(Relaxed));
        watch(Progress { published, consumed, done });
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
            while began.elapsed() < whole && tick(&mut sampler, done(began.elapsed())) {}
            let end = sampler.snapshot(shared);
            shared.measure_until.store(end.at, SeqCst);
            shared.stop_publishing.store(true, SeqCst);
            Window { sampler, start, end: Some(end) }
        }
        Length::Messages(messages) => {
            let start = sampler.snapshot_at_start(shared);
            let publishing = workload.producers > 0;
            let expected = messages * if publishing { workload.producers } else { workload.consumers } as u64;
            loop {
                let so_far = if publishing { &shared.published } else { &shared.consumed }.load(Relaxed);
                let over = if publishing { producers_finished() } else { so_far >= expected };
                if over || !tick(&mut sampler, so_far as f64 / expected as f64) {
                    return Window { sampler, start, end: None };
                }
            }
        }
    }
}

/// Waits until every message has arrived, or nothing has for a while.
fn drain(workload: &Workload, shared: &Shared, returned: u64) {
    let expected = shared.published.load(SeqCst).saturating_sub(returned);
    let arrived = || {
        if workload.size >= IDENTITY_LEN {
            shared.ledgers().iter().map(|ledger| ledger.received()).sum()
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
    shared: &Shared,
    Window { sampler, start, .. }: &Window<'_>,
    end: &Snapshot,
    (produced, consumed): (&[Produced], &[Consumed]),
) -> Round {
    let counts = counts(workload, shared, produced, consumed);
    let published = end.published.since(&start.published);
    let delivered = end.consumed.since(&start.consumed);
    let messages = if workload.consumers > 0 { delivered.count } else { published.count };
    let latency = merged(consumed.iter().map(|consumer| &consumer.latencies));
    let confirm_latency = merged(produced.iter().map(|producer| &producer.confirm_latencies));
    Round {
        seconds: end.seconds_since(start),
        publish_rate: published.per_second(),
        consume_rate: (workload.consumers > 0).then(|| delivered.per_second()),
        confirm_rate: (workload.confirms > 0).then(|| end.confirmed.since(&start.confirmed).per_second()),
        latency: if workload.size >= STAMPED_LEN { latency.percentiles() } else { None },
        confirm_latency: confirm_latency.percentiles(),
        counts,
        processes: sampler.process_usage(start, end, messages),
        generator: sampler.generator_usage(start, end),
    }
}

fn counts(workload: &Workload, shared: &Shared, produced: &[Produced], consumed: &[Consumed]) -> Counts {
    let total = |of: fn(&Produced) -> u64| produced.iter().map(of).sum::<u64>();
    let seen = |of: fn(&Consumed) -> u64| consumed.iter().map(of).sum::<u64>();
    let published = total(|p| p.published);
    let (nacked, returned) = (total(|p| p.nacked), total(|p| p.returned));
    let deliveries = shared.consumed.load(SeqCst);
    let ledgers = shared.ledgers();
    let arrived = match workload.size {
        IDENTITY_LEN.. => ledgers.iter().map(|ledger| ledger.received()).sum(),
        _ => deliveries,
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
        duplicated: ledgers.iter().map(|ledger| ledger.duplicated()).sum(),
        reordered: seen(|c| c.reordered),
        redelivered: seen(|c| c.redelivered),
        foreign: seen(|c| c.foreign),
        blocked: total(|p| p.blocked),
    }
}

fn merged<'l>(all: impl Iterator<Item = &'l Latencies>) -> Latencies {
    all.fold(Latencies::new(), |mut sum, one| {
        sum.add(one);
        sum
    })
}
