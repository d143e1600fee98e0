//! A spool whose process is killed again and again, at any write to its disk, while the upstream vanishes, refuses and
//! returns, and an operator has parked messages forwarded again. Nothing confirmed is lost, the order is kept, and
//! messages are duplicated only where docs/spool.md says so.
//!
//! `LEVERET_CRASH_SEEDS=10000` runs more seeds, `LEVERET_CRASH_FIRST=n` starts at another one.

use std::collections::BTreeMap;
use std::ops::Range;

use amqp::{FieldTable, FieldValue, Properties};
use broker::Queue;
use spool::Envelope;
use store::journal::Lsn;

use super::dying_disk::DyingDisk;
use super::*;

/// The destinations: three queues, and an exchange that does not exist.
const QUEUES: [&str; 3] = ["a", "b", "c"];
const GONE: &str = "gone";

/// Long enough for the longest pause of a forwarder.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn nothing_confirmed_is_lost_and_the_order_is_kept() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("LEVERET_CRASH_FIRST").unwrap_or(0);
    let seeds = number("LEVERET_CRASH_SEEDS").unwrap_or(40);
    let mut sum = Outcome::default();
    for seed in first..first + seeds {
        match play(seed, Confirms::OnDisk) {
            Ok(outcome) => sum.add(outcome),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    println!("{seeds} seeds, {sum:?}");
    let Outcome { confirmed, deaths, repeated, parked, requeued, lost_links } = sum;
    for (what, count) in [
        ("confirmed", confirmed),
        ("deaths", deaths),
        ("repeated", repeated),
        ("parked", parked),
        ("requeued", requeued),
        ("lost links", lost_links),
    ] {
        assert!(count >= seeds / 2, "{what}: {sum:?}");
    }
}

#[test]
fn the_test_notices_confirms_that_do_not_wait_for_the_disk() {
    let broken = (0..30).filter(|&seed| play(seed, Confirms::Early).is_err()).count();
    assert!(broken > 10, "only {broken} of 30 runs noticed");
}

/// When a message counts as confirmed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Confirms {
    /// Once it is on disk, as in the spool.
    OnDisk,
    /// Once it is published, which a run has to detect as an error.
    Early,
}

/// Counts of a run's events.
#[derive(Debug, Default, Clone, Copy)]
struct Outcome {
    confirmed: u64,
    deaths: u64,
    /// Messages that arrived again.
    repeated: u64,
    parked: u64,
    /// Parked messages that were forwarded again.
    requeued: u64,
    lost_links: u64,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.confirmed += other.confirmed;
        self.deaths += other.deaths;
        self.repeated += other.repeated;
        self.parked += other.parked;
        self.requeued += other.requeued;
        self.lost_links += other.lost_links;
    }
}

fn play(seed: u64, confirms: Confirms) -> Result<Outcome, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(Run::new(seed, confirms).play())
}

/// A run determined by its seed.
struct Run {
    random: SimRandom,
    disk: DyingDisk,
    confirms: Confirms,
    upstream: Upstream,
    queues: Vec<Arc<Queue>>,
    /// Whether messages are published to the missing exchange. Each refusal makes others be repeated.
    refuses: bool,
    next: u32,
    /// The destination of each message, by number.
    published: Vec<&'static str>,
    confirmed: Vec<u32>,
    /// The numbers that arrived in each queue, in order, each with the epoch of its arrival.
    arrived: BTreeMap<&'static str, Vec<(u32, u64)>>,
    ids: BTreeMap<u32, String>,
    /// Number of connection losses and kills so far, after each of which messages may be redelivered.
    epoch: u64,
    outcome: Outcome,
}

impl Run {
    fn new(seed: u64, confirms: Confirms) -> Self {
        let disk = SimDisk::new(seed, 1 << 30);
        let upstream = Upstream::new();
        let queues = QUEUES.iter().map(|name| declare(&upstream, name)).collect();
        let mut random = SimRandom::new(seed ^ 0x0005_0001);
        Self {
            refuses: random.chance(500),
            random,
            disk: DyingDisk::new(disk),
            confirms,
            upstream,
            queues,
            next: 0,
            published: Vec::new(),
            confirmed: Vec::new(),
            arrived: BTreeMap::new(),
            ids: BTreeMap::new(),
            epoch: 0,
            outcome: Outcome::default(),
        }
    }

    async fn play(mut self) -> Result<Outcome, String> {
        for _ in 0..1 + self.random.below(4) {
            let found = self.live().await?;
            self.outcome.deaths += 1;
            self.epoch += 1;
            self.disk = DyingDisk::new(found);
        }
        let mut last = Simulated::on(Arc::new(self.disk.clone()), self.upstream.clone(), config());
        drop(last.queue());
        for _ in 0..3 {
            last.pass(LONG).await;
            self.take_arrived()?;
        }
        let left: u64 = last.spool.status().iter().map(|status| status.messages).sum();
        let parked = parked_numbers(&last);
        abort(&last);
        if left > 0 {
            return Err(format!("{left} messages are never forwarded"));
        }
        self.check(&parked)?;
        Ok(self.outcome)
    }

    /// Runs a process until it is killed; returns the disk as found afterwards.
    async fn live(&mut self) -> Result<SimDisk, String> {
        let mut site = Simulated::on(Arc::new(self.disk.clone()), self.upstream.clone(), config());
        let local = site.queue();
        let store = Arc::clone(site.spool.local.store().unwrap());
        let mut waiting = Vec::new();
        let steps = self.random.below(40);
        // Some are killed at a write, the others between two.
        if self.random.chance(700) {
            self.disk.die_after(self.random.below(4 * (steps + 1)), self.random.chance(700));
        }
        for _ in 0..steps {
            let durable = store.durable();
            match self.random.below(11) {
                0..4 => {
                    let numbers = self.publish(&site.spool, &local);
                    waiting.push((store.end(), numbers));
                }
                4..6 => drop(site.rounds.step()),
                6 => drop(site.rounds.retire()),
                7 => self.disturb(&site),
                // They will be refused again.
                8 => self.outcome.requeued += site.spool.requeue_parked(SpoolSelection::default()),
                _ => {
                    let time = Duration::from_millis([0, 1, 5, 200][self.random.below(4) as usize]);
                    tokio::time::sleep(time).await;
                }
            }
            if let Some(found) = self.disk.take_found() {
                // A confirm during or after the step of the kill does not count.
                return self.end(&site, &waiting, durable, found);
            }
            self.take_arrived()?;
        }
        let found = self.disk.die(self.random.chance(700));
        let durable = store.durable();
        self.end(&site, &waiting, durable, found)
    }

    fn end(
        &mut self,
        site: &Simulated,
        waiting: &[(Lsn, Range<u32>)],
        durable: Lsn,
        found: SimDisk,
    ) -> Result<SimDisk, String> {
        abort(site);
        self.upstream.lose();
        self.take_arrived()?;
        let is_confirmed = |end: &Lsn| *end <= durable || self.confirms == Confirms::Early;
        let confirmed = waiting.iter().filter(|(end, _)| is_confirmed(end));
        let before = self.confirmed.len();
        self.confirmed.extend(confirmed.flat_map(|(_, numbers)| numbers.clone()));
        self.outcome.confirmed += (self.confirmed.len() - before) as u64;
        Ok(found)
    }

    /// Publishes some messages to one destination, as from one read of a client.
    fn publish(&mut self, spool: &Spool, queue: &SpoolQueue) -> Range<u32> {
        let first = self.next;
        let to = match self.random.below(8) {
            0 if self.refuses => GONE,
            other => QUEUES[other as usize % QUEUES.len()],
        };
        let destination = if to == GONE { (GONE, "key") } else { ("", to) };
        self.next += 1 + self.random.below(20) as u32;
        let random = &mut self.random;
        let bodies = (first..self.next)
            .map(|number| format!("{number:06}{}", "x".repeat(random.below(3000) as usize)).into_bytes());
        let accepted_at = spool.local.timestamp(transport::now()).0;
        spool_bodies(spool, queue, destination, accepted_at, amqp::properties::NO_PROPERTIES, bodies);
        self.published.resize(self.next as usize, to);
        first..self.next
    }

    /// Loses the connection to the upstream, or makes the upstream vanish or return.
    fn disturb(&mut self, site: &Simulated) {
        let is_reachable = self.random.chance(600);
        site.is_reachable.store(is_reachable, Ordering::Relaxed);
        self.upstream.lose();
        self.epoch += 1;
        self.outcome.lost_links += 1;
    }

    fn take_arrived(&mut self) -> Result<(), String> {
        for (name, queue) in QUEUES.iter().zip(&self.queues) {
            while let Some(got) = queue.get(true, Timestamp::default()) {
                let message = got.delivery.message();
                let number = number_of(&message.body().to_vec());
                let headers = Properties::decode(message.properties()).unwrap().headers.unwrap().decode();
                let id = headers.get("x-leveret-spool-id").and_then(FieldValue::as_text).unwrap().to_owned();
                let known = self.ids.entry(number).or_insert_with(|| id.clone());
                if *known != id {
                    return Err(format!("{number} has the ids {known} and {id}"));
                }
                self.arrived.entry(name).or_default().push((number, self.epoch));
            }
        }
        Ok(())
    }

    fn check(&mut self, parked: &[u32]) -> Result<(), String> {
        let mut ids: Vec<&String> = self.ids.values().collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != self.ids.len() {
            return Err("two messages have the same id".to_owned());
        }
        let mut firsts = BTreeMap::new();
        for (queue, numbers) in &self.arrived {
            let mut last = None;
            for &(number, epoch) in numbers {
                if self.published[number as usize] != *queue {
                    return Err(format!("{number} is in {queue}"));
                }
                match firsts.insert(number, epoch) {
                    Some(before) if before == epoch && !self.refuses => {
                        return Err(format!("{number} came twice although nothing was lost"));
                    }
                    Some(_) => self.outcome.repeated += 1,
                    None if last.is_some_and(|last| last > number) => {
                        return Err(format!("{number} came after {last:?}: {numbers:?}"));
                    }
                    None => last = Some(number),
                }
            }
        }
        for &number in &self.confirmed {
            let is_there = match self.published[number as usize] {
                GONE => parked.contains(&number),
                _ => firsts.contains_key(&number),
            };
            if !is_there {
                return Err(format!("{number} is lost"));
            }
        }
        self.outcome.parked += parked.len() as u64;
        Ok(())
    }
}

/// Ends a process without running its tasks again.
fn abort(site: &Simulated) {
    site.spool.forwarders.lock().drain(..).for_each(|task| task.abort());
}

fn number_of(body: &[u8]) -> u32 {
    std::str::from_utf8(&body[..6]).unwrap().parse().unwrap()
}

fn parked_numbers(site: &Simulated) -> Vec<u32> {
    let mut numbers = Vec::new();
    while let Some(got) = site.spool.local.parked().queue().get(true, Timestamp::default()) {
        let envelope = Envelope::decode(got.delivery.message().body().to_vec().into()).unwrap();
        numbers.push(number_of(envelope.body()));
    }
    numbers
}

fn declare(upstream: &Upstream, name: &str) -> Arc<Queue> {
    let encoded = FieldTable::new().encode();
    let declare = broker::QueueDeclare {
        name,
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        arguments: amqp::RawTable::check(&encoded).unwrap(),
        type_name: None,
        capacity: None,
    };
    upstream.vhost().declare_queue(broker::SessionId(77), &declare, Timestamp::default()).unwrap().queue
}
