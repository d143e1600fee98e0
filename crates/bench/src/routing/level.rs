//! One level on one system: increasing numbers of queues, then decreasing ones.

use std::process;
use std::time::Instant;

use amqp::method::{exchange, queue};

use super::arguments::{BindingLevel, RoutingPlan, StudiedExchange};
use super::keys::{KeyShape, Keys};
use super::report::RoutingPoint;
use super::session::ConfirmedChannel;
use crate::error::ClientError;
use crate::random::Random;
use crate::study::systems::System;

/// The parameters of a level on a system.
pub(super) struct LevelTask<'a> {
    pub(super) plan: &'a RoutingPlan,
    pub(super) system: &'a System,
    pub(super) kind: StudiedExchange,
    pub(super) level: &'a BindingLevel,
    /// Estimated seconds of the first point.
    pub(super) expected: f64,
}

/// The results of a level.
#[derive(Debug, Default)]
pub(super) struct LevelOutcome {
    pub(super) points: Vec<RoutingPoint>,
    /// The first number of queues that was left out.
    pub(super) skipped: Option<u64>,
    /// Estimated seconds of the first point of the next level.
    pub(super) expected: f64,
}

impl LevelTask<'_> {
    /// Runs the level; `watch` receives the number of queues at each point.
    pub(super) fn run(&self, mut watch: impl FnMut(u64)) -> Result<LevelOutcome, ClientError> {
        let limit = self.plan.limit().as_secs_f64();
        let base = self.plan.settings.base as f64;
        let mut outcome = LevelOutcome { expected: self.expected * base, ..LevelOutcome::default() };
        if self.expected > limit {
            outcome.skipped = self.level.queues.first().copied();
            return Ok(outcome);
        }
        // The keys are the same for every system.
        let mut random = Random::new(SEED + u64::from(self.level.exponent));
        let keys = Keys::draw(self.kind, self.level.bindings, &mut random);
        let mut scene = LevelContext::set_up(self, &keys)?;
        let mut made = 0;
        let mut expected = 0.0;
        for &queues in &self.level.queues {
            if expected > limit {
                outcome.skipped = Some(queues);
                break;
            }
            watch(queues);
            let point = scene.grow(made, queues, &keys, &mut random)?;
            let seconds = point.create_seconds + point.publish_seconds;
            if made == 0 {
                outcome.expected = point.create_seconds * base;
            }
            expected = seconds * base;
            made = queues;
            outcome.points.push(point);
        }
        for at in (0..outcome.points.len()).rev() {
            let point = &mut outcome.points[at];
            watch(point.queues);
            point.delete_seconds = scene.shrink(point.queues - point.created, point.queues)?;
        }
        scene.tear_down()?;
        Ok(outcome)
    }
}

/// An arbitrary number; the same in every run.
const SEED: u64 = 0x01e7_e4e7;

struct LevelContext<'a> {
    task: &'a LevelTask<'a>,
    session: ConfirmedChannel,
    exchange: String,
    bindings: Vec<KeyShape>,
    /// Resident memory without queues, in bytes.
    rss_before: u64,
}

impl<'a> LevelContext<'a> {
    fn set_up(task: &'a LevelTask<'a>, keys: &Keys) -> Result<Self, ClientError> {
        let session = ConfirmedChannel::open(&task.system.uri, task.plan.settings.pipelined)?;
        let exchange = format!("leveret-bench-routing-{}", process::id());
        let bindings = keys.bindings();
        let mut scene = Self { task, session, exchange, bindings, rss_before: 0 };
        scene.declare_exchange()?;
        scene.rss_before = scene.rss();
        Ok(scene)
    }

    fn declare_exchange(&mut self) -> Result<(), ClientError> {
        let (exchange, kind) = (self.exchange.as_str(), self.task.kind.name());
        self.session.request(exchange::Declare { exchange, kind, ..Default::default() })?;
        self.session.finish()
    }

    /// Adds queues with their bindings until there are `queues`, then publishes.
    fn grow(
        &mut self,
        made: u64,
        queues: u64,
        keys: &Keys,
        random: &mut Random,
    ) -> Result<RoutingPoint, ClientError> {
        let start = Instant::now();
        for number in made..queues {
            self.create(&self.queue(number))?;
        }
        self.session.finish()?;
        let create_seconds = start.elapsed().as_secs_f64();
        let rss = self.rss();
        let messages = self.task.plan.settings.messages_for(queues);
        let publish_seconds = self.publish(messages, keys, random)?;
        self.purge(queues)?;
        Ok(RoutingPoint {
            queues,
            created: queues - made,
            create_seconds,
            messages,
            publish_seconds,
            delete_seconds: 0.0,
            rss_bytes: (rss > 0).then(|| rss.saturating_sub(self.rss_before)),
        })
    }

    fn create(&mut self, name: &str) -> Result<(), ClientError> {
        self.session.request(queue::Declare { queue: name, ..Default::default() })?;
        for binding in &self.bindings {
            self.session.request(queue::Bind {
                queue: name,
                exchange: &self.exchange,
                routing_key: &binding.key,
                arguments: binding.arguments(),
                ..Default::default()
            })?;
        }
        Ok(())
    }

    fn publish(&mut self, messages: u64, keys: &Keys, random: &mut Random) -> Result<f64, ClientError> {
        let shapes: Vec<KeyShape> = (0..messages).map(|_| keys.message(random)).collect();
        let start = Instant::now();
        for shape in &shapes {
            self.session.publish(&self.exchange, &shape.key, shape.properties())?;
        }
        self.session.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        match self.session.take_returned() {
            0 => Ok(seconds),
            returned => Err(ClientError::Protocol(format!(
                "{returned} messages came back as unroutable, though queues are bound with their keys"
            ))),
        }
    }

    /// Purges all queues, which is not timed, so that deleting a queue does not include deleting its messages.
    fn purge(&mut self, queues: u64) -> Result<(), ClientError> {
        for number in 0..queues {
            let name = self.queue(number);
            self.session.request(queue::Purge { queue: &name, ..Default::default() })?;
        }
        self.session.finish()
    }

    /// Deletes the queues from number `left` on.
    fn shrink(&mut self, left: u64, queues: u64) -> Result<f64, ClientError> {
        let start = Instant::now();
        for number in left..queues {
            let name = self.queue(number);
            self.session.request(queue::Delete { queue: &name, ..Default::default() })?;
        }
        self.session.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn tear_down(mut self) -> Result<(), ClientError> {
        self.session.request(exchange::Delete { exchange: &self.exchange, ..Default::default() })?;
        self.session.finish()?;
        self.session.close();
        Ok(())
    }

    fn queue(&self, number: u64) -> String {
        format!("{}-{number}", self.exchange)
    }

    /// Resident memory in bytes; 0 if no process is known.
    fn rss(&self) -> u64 {
        self.task.system.watched.usage().rss_bytes.unwrap_or_default()
    }
}
