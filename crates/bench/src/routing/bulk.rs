//! The studies of bulk deletion: how they affect other clients, and how long they take.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amqp::Method;
use amqp::method::{channel, exchange, queue};

use super::CHANNEL;
use super::arguments::{RoutingStudy, StudiedExchange};
use super::keys::Keys;
use super::report::Bulk;
use super::session::ConfirmedChannel;
use crate::client::Connection;
use crate::error::ClientError;
use crate::latency::Latencies;
use crate::random::Random;
use crate::study::systems::System;

/// Deletes a queue with `count` bindings, while another connection publishes to the same exchange, a message at a
/// time, and measures its waits for confirms.
pub(super) fn deletion(system: &System, kind: StudiedExchange, count: u64) -> Result<Bulk, ClientError> {
    let (exchange, large) = (name("exchange"), name("large"));
    let mut session = ConfirmedChannel::open(&system.uri, true)?;
    session.request(exchange::Declare { exchange: &exchange, kind: kind.name(), ..Default::default() })?;
    let start = Instant::now();
    let mut random = Random::new(1);
    bind_new_queue(&mut session, &exchange, &large, &Keys::draw(kind, count, &mut random))?;
    let make_seconds = start.elapsed().as_secs_f64();
    let own_keys = Keys::draw(kind, 1, &mut random);
    bind_new_queue(&mut session, &exchange, &name("small"), &own_keys)?;

    let (began, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let publisher = Publisher { system, exchange: &exchange, keys: &own_keys, began: &began, done: &done };
    let (gone, waits) = thread::scope(|scope| {
        let waits = scope.spawn(|| publisher.run());
        thread::sleep(BEFORE);
        began.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let deleted = session
            .request(queue::Delete { queue: &large, ..Default::default() })
            .and_then(|()| session.finish())
            .map(|()| start.elapsed().as_secs_f64());
        // A system may answer first and delete the bindings later: the measurement includes that.
        thread::sleep(AFTER);
        done.store(true, Ordering::Relaxed);
        (deleted, waits.join().map_err(|_| ClientError::Panicked("publishing")))
    });
    let (gone_seconds, (before, during)) = (gone?, waits??);
    session.request(queue::Delete { queue: &name("small"), ..Default::default() })?;
    session.request(exchange::Delete { exchange: &exchange, ..Default::default() })?;
    session.finish()?;
    session.close();
    Ok(Bulk {
        study: RoutingStudy::Deletion,
        exchange: kind,
        system: system.name.clone(),
        count,
        make_seconds,
        gone_seconds,
        confirms_before: before.percentiles(),
        confirms_during: during.percentiles(),
    })
}

/// Closes a connection that has `count` exclusive queues, each bound to one auto-delete exchange. The
/// exchange disappears with its last binding, which shows when the last queue is gone.
pub(super) fn exclusive(system: &System, count: u64) -> Result<Bulk, ClientError> {
    let exchange = name("exchange");
    let mut session = ConfirmedChannel::open(&system.uri, true)?;
    let kind = StudiedExchange::Direct.name();
    session.request(exchange::Declare {
        exchange: &exchange,
        kind,
        auto_delete: true,
        ..Default::default()
    })?;
    let start = Instant::now();
    for number in 0..count {
        let queue = name(&number.to_string());
        session.request(queue::Declare { queue: &queue, exclusive: true, ..Default::default() })?;
        let routing_key = queue.as_str();
        let bind = queue::Bind { queue: &queue, exchange: &exchange, routing_key, ..Default::default() };
        session.request(bind)?;
    }
    session.finish()?;
    let make_seconds = start.elapsed().as_secs_f64();
    let mut observer = Connection::open(&system.uri, "leveret bench routing observer")?;
    let start = Instant::now();
    session.into_connection().close();
    while exists(&mut observer, &exchange)? {
        if start.elapsed() > TIMEOUT {
            return Err(ClientError::TimedOut("the end of exclusive queues"));
        }
        thread::sleep(CHECK_INTERVAL);
    }
    let gone_seconds = start.elapsed().as_secs_f64();
    observer.close();
    Ok(Bulk {
        study: RoutingStudy::Exclusive,
        exchange: StudiedExchange::Direct,
        system: system.name.clone(),
        count,
        make_seconds,
        gone_seconds,
        confirms_before: None,
        confirms_during: None,
    })
}

/// Whether an exchange exists. Each check needs a channel, since the answer may close it.
fn exists(connection: &mut Connection, exchange: &str) -> Result<bool, ClientError> {
    connection.open_channel(CHANNEL)?;
    let question = exchange::Declare { exchange, kind: "direct", passive: true, ..Default::default() };
    let exists = |method: &Method<'_>| matches!(method, Method::ExchangeDeclareOk(_)).then_some(());
    match connection.call(CHANNEL, question, exists) {
        Ok(()) => {
            let close = channel::Close { reply_code: 200, reply_text: "seen", ..Default::default() };
            connection
                .call(CHANNEL, close, |method| matches!(method, Method::ChannelCloseOk(_)).then_some(()))?;
            Ok(true)
        }
        Err(ClientError::Closed(text)) if text.starts_with("404") => Ok(false),
        Err(error) => Err(error),
    }
}

fn bind_new_queue(
    session: &mut ConfirmedChannel,
    exchange: &str,
    queue: &str,
    keys: &Keys,
) -> Result<(), ClientError> {
    session.request(queue::Declare { queue, ..Default::default() })?;
    for binding in keys.bindings() {
        session.request(queue::Bind {
            queue,
            exchange,
            routing_key: &binding.key,
            arguments: binding.arguments(),
            ..Default::default()
        })?;
    }
    session.finish()
}

/// Publishes messages one at a time, and waits for the confirm of each.
struct Publisher<'a> {
    system: &'a System,
    exchange: &'a str,
    keys: &'a Keys,
    /// Set when the deletion begins, and `done` when it is over.
    began: &'a AtomicBool,
    done: &'a AtomicBool,
}

impl Publisher<'_> {
    /// Returns the waits in nanoseconds: those of messages confirmed before the deletion began, and all others.
    fn run(&self) -> Result<(Latencies, Latencies), ClientError> {
        let mut session = ConfirmedChannel::open(&self.system.uri, false)?.beside_requests();
        let message = self.keys.message(&mut Random::new(0));
        let (mut before, mut during) = (Latencies::new(), Latencies::new());
        while !self.done.load(Ordering::Relaxed) {
            let start = Instant::now();
            session.publish(self.exchange, &message.key, message.properties())?;
            let nanos = start.elapsed().as_nanos() as u64;
            let which = if self.began.load(Ordering::Relaxed) { &mut during } else { &mut before };
            which.record(nanos);
        }
        session.close();
        Ok((before, during))
    }
}

fn name(part: &str) -> String {
    format!("leveret-bench-bulk-{}-{part}", process::id())
}

/// The undisturbed time of the publisher before the deletion, for comparison.
const BEFORE: Duration = Duration::from_millis(500);
/// How long the publisher continues after the deletion was answered.
const AFTER: Duration = Duration::from_millis(300);
/// The interval between checks whether everything is gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The time limit for everything to be gone.
const TIMEOUT: Duration = Duration::from_secs(300);
