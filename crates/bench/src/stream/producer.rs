//! The publishing side: one thread writes batches, another reads confirms, returns and connection.blocked. A
//! producer that waits for each confirm does both on one thread, as a synchronous client does.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use amqp::frame::write_method;
use amqp::method::{basic, connection};
use amqp::{Frame, FrameKind, Method};

use super::confirms::ConfirmWindow;
use super::message::{Batch, CHANNEL};
use super::pacer::Pacer;
use super::schedule::Schedule;
use super::shared::RoundState;
use crate::client::{Connection, Fill, HeartbeatTimer, Receiver, check_close, expect_method, is_timeout};
use crate::error::ClientError;
use crate::latency::Latencies;

/// How long a socket may be blocked after the end, outstanding confirms may take after the last publish, and the server's
/// answer to connection.close.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest sleep of a paced producer, so that it notices the end of the round.
const MAX_SLEEP: Duration = Duration::from_millis(20);

/// The results of one producer.
#[derive(Debug, Default)]
pub(crate) struct Produced {
    /// Messages written to the socket.
    pub(crate) published: u64,
    /// Latencies from publish to confirm.
    pub(crate) confirm_latencies: Latencies,
    /// Messages refused by basic.nack.
    pub(crate) nacked: u64,
    /// Messages returned by basic.return.
    pub(crate) returned: u64,
    /// Confirms of messages that were not waiting for one.
    pub(crate) odd_confirms: u64,
    /// Messages still unconfirmed at the end.
    pub(crate) unconfirmed: u64,
    /// How often the server sent connection.blocked.
    pub(crate) blocked: u64,
    /// Messages of a schedule that were due before the end of the measured time, and not sent.
    pub(crate) unsent: u64,
    /// How late the unsent messages of the measured time were at its end, which is the least latency that they would have had.
    pub(crate) unsent_latencies: Latencies,
}

/// The parameters of a producer.
#[derive(Debug)]
pub(crate) struct ProducerTask<'s> {
    pub(crate) shared: &'s RoundState,
    pub(crate) batch: Batch,
    /// Most unconfirmed messages; 0 is no confirms.
    pub(crate) confirms: usize,
    /// Number of channels, which messages take in turn.
    pub(crate) channels: u16,
    pub(crate) schedule: Option<Schedule>,
    /// Stops after this number of messages.
    pub(crate) messages: Option<u64>,
    /// Most messages in transit; `None` is no limit.
    pub(crate) backlog: Option<u64>,
}

/// Publishes until the round stops or `task.messages` are sent, waits for confirms, and closes the connection.
pub(crate) fn run(task: ProducerTask<'_>, connection: Connection) -> Result<Produced, ClientError> {
    let window = ConfirmWindow::new(task.confirms, task.channels);
    let done = AtomicBool::new(false);
    let heartbeat = HeartbeatTimer::new(connection.heartbeat_interval());
    let Connection { stream, mut receiver, .. } = connection;
    let shared = task.shared;
    let mut watcher = Watcher { shared, window: &window, done: &done, outcome: Produced::default() };
    if task.confirms == 1 {
        let mut sender = Sender::new(task, &window, &done, &stream, heartbeat);
        sender.run(|_| watcher.read(&stream, &mut receiver).map(drop))?;
        done.store(true, SeqCst);
        let outcome = watcher.run(&stream, receiver)?;
        return Ok(sender.complete(outcome));
    }
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            shared.timed(|| watcher.run(&stream, receiver)).inspect_err(|_| done.store(true, SeqCst))
        });
        let mut sender = Sender::new(task, &window, &done, &stream, heartbeat);
        let sent = sender.run(|sender| {
            sender.wait_for_capacity();
            Ok(())
        });
        // A watcher that failed knows the reason; the sender only noticed that the socket failed.
        done.store(true, SeqCst);
        if matches!(sent, Err(ClientError::TimedOut(_))) {
            // The round has failed: the watcher has nothing to wait for.
            shared.stop.store(true, SeqCst);
        }
        let outcome = watching.join().map_err(|_| ClientError::Panicked("confirm"))??;
        sent?;
        Ok(sender.complete(outcome))
    })
}

struct Sender<'a> {
    task: ProducerTask<'a>,
    window: &'a ConfirmWindow,
    /// Set when the watcher failed.
    done: &'a AtomicBool,
    stream: &'a TcpStream,
    heartbeat: HeartbeatTimer,
    /// The number of the next message.
    sequence: u64,
    /// See [`Produced::unsent`].
    unsent: u64,
    /// See [`Produced::unsent_latencies`].
    unsent_latencies: Latencies,
}

impl<'a> Sender<'a> {
    fn new(
        task: ProducerTask<'a>,
        window: &'a ConfirmWindow,
        done: &'a AtomicBool,
        stream: &'a TcpStream,
        heartbeat: HeartbeatTimer,
    ) -> Self {
        let unsent_latencies = Latencies::new();
        Self { task, window, done, stream, heartbeat, sequence: 0, unsent: 0, unsent_latencies }
    }

    /// Adds what the sender knows to what the watcher has counted.
    fn complete(self, counted: Produced) -> Produced {
        let Self { window, sequence: published, unsent, unsent_latencies, .. } = self;
        Produced { published, unconfirmed: window.unconfirmed(), unsent, unsent_latencies, ..counted }
    }

    /// Publishes until the end, and calls `wait` while it cannot.
    fn run(&mut self, mut wait: impl FnMut(&Self) -> Result<(), ClientError>) -> Result<(), ClientError> {
        let shared = self.task.shared;
        let mut pacer = Pacer::new(self.task.schedule.clone(), shared.now());
        let mut stamps = Vec::with_capacity(self.task.batch.capacity());
        while !self.is_over() {
            self.send_heartbeat()?;
            let available = self.available();
            if available == 0 {
                wait(self)?;
                continue;
            }
            let now = shared.now();
            pacer.take_due(now, available, &mut stamps);
            if stamps.is_empty() {
                shared.producing.fetch_add(1, Relaxed);
                let until_due = Duration::from_nanos(pacer.next_due().saturating_sub(now));
                std::thread::sleep(until_due.min(MAX_SLEEP));
                continue;
            }
            if !self.publish(&stamps)? {
                return Ok(());
            }
        }
        if !self.end_schedule(&mut pacer, &mut stamps)? {
            return Ok(());
        }
        self.finish(wait)
    }

    /// At the end of a timed round at a fixed rate: sends the messages that were due before it and may be sent, at most a
    /// batch, and counts the others as late. Otherwise a stall that lasts until the end would count against few messages or
    /// none. Returns false if the round failed before the socket accepted the batch.
    fn end_schedule(&mut self, pacer: &mut Pacer, stamps: &mut Vec<u64>) -> Result<bool, ClientError> {
        let shared = self.task.shared;
        let end = shared.measure_until.load(SeqCst);
        if self.task.schedule.is_none() || end == u64::MAX || self.done.load(Relaxed) {
            return Ok(true);
        }
        let last = end.saturating_sub(1);
        pacer.take_due(last, self.available(), stamps);
        if !stamps.is_empty() && !self.publish(stamps)? {
            return Ok(false);
        }
        loop {
            pacer.take_due(last, self.task.batch.capacity(), stamps);
            if stamps.is_empty() {
                return Ok(true);
            }
            self.unsent += stamps.len() as u64;
            for &stamp in stamps.iter().filter(|&&stamp| shared.measures(stamp)) {
                self.unsent_latencies.record(end - stamp);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.task.shared.stop_publishing.load(Relaxed)
            || self.done.load(Relaxed)
            || self.task.messages.is_some_and(|messages| self.sequence >= messages)
    }

    /// The number of messages that may be sent now.
    fn available(&self) -> usize {
        if self.window.blocked.load(Relaxed) {
            return 0;
        }
        let mut available = self.task.batch.capacity() as u64;
        if let Some(messages) = self.task.messages {
            available = available.min(messages - self.sequence);
        }
        if self.task.confirms > 0 {
            available = available.min(self.window.available());
        }
        if let Some(backlog) = self.task.backlog {
            available = available.min(backlog.saturating_sub(self.task.shared.under_way()));
        }
        available as usize
    }

    fn wait_for_capacity(&self) {
        if self.window.unconfirmed() > 0 && self.is_over() {
            return self.window.changed.wait_unless(|| self.window.unconfirmed() == 0);
        }
        let signal = match self.task.backlog {
            Some(_) if !self.window.blocked.load(Relaxed) => &self.task.shared.backlog,
            _ => &self.window.changed,
        };
        signal.wait_unless(|| self.available() > 0);
    }

    /// Sends one batch; returns false if the round failed before the socket accepted it.
    ///
    /// # Errors
    /// The socket's error; also if the system has not read for [`FINISH_TIMEOUT`] since publishing was to stop.
    fn publish(&mut self, stamps: &[u64]) -> Result<bool, ClientError> {
        if self.task.confirms > 0 {
            self.window.sending(stamps);
        }
        let bytes = self.task.batch.fill(self.sequence, stamps);
        let (shared, mut stopped) = (self.task.shared, None);
        let mut stalled = || {
            shared.stop_publishing.load(Relaxed)
                && stopped.get_or_insert_with(Instant::now).elapsed() > FINISH_TIMEOUT
        };
        let accepted = || {
            shared.producing.fetch_add(1, Relaxed);
        };
        let written = write(self.stream, bytes, || shared.stop.load(Relaxed) || stalled(), accepted)?;
        let complete = written == bytes.len();
        let messages = self.task.batch.complete(self.sequence, written);
        self.sequence += messages as u64;
        self.task.shared.published.fetch_add(messages as u64, Relaxed);
        self.task.shared.last_publish.fetch_max(self.task.shared.now(), Relaxed);
        if !complete && !shared.stop.load(Relaxed) {
            return Err(ClientError::TimedOut("publishing: the system reads no more"));
        }
        Ok(complete)
    }

    fn send_heartbeat(&mut self) -> Result<(), ClientError> {
        if let Some(frame) = self.heartbeat.poll() {
            write(self.stream, frame, || self.done.load(Relaxed), || {})?;
        }
        Ok(())
    }

    fn finish(&mut self, mut wait: impl FnMut(&Self) -> Result<(), ClientError>) -> Result<(), ClientError> {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        // All threads are to stop before the producers have ended if the round has failed.
        let stop = &self.task.shared.stop;
        let over = || self.done.load(Relaxed) || stop.load(Relaxed) || Instant::now() > deadline;
        while self.window.unconfirmed() > 0 && !over() {
            wait(self)?;
        }
        let mut goodbye = Vec::new();
        write_method(
            &mut goodbye,
            0,
            connection::Close { reply_code: 200, reply_text: "Goodbye", ..Default::default() },
        );
        write(self.stream, &goodbye, over, || {})?;
        Ok(())
    }
}

/// Writes all bytes, unless `give_up` while the socket is blocked; returns the number of bytes written. Calls `accepted`
/// whenever the socket has accepted some.
fn write(
    mut stream: &TcpStream,
    bytes: &[u8],
    mut give_up: impl FnMut() -> bool,
    accepted: impl Fn(),
) -> Result<usize, ClientError> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(n) => {
                written += n;
                accepted();
            }
            Err(error) if is_timeout(&error) && give_up() => break,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(ClientError::Io { doing: "publishing", cause: error }),
        }
    }
    Ok(written)
}

/// Reads the frames that the server sends to a publisher.
struct Watcher<'a> {
    shared: &'a RoundState,
    window: &'a ConfirmWindow,
    /// Set by the sender once it has sent all messages.
    done: &'a AtomicBool,
    outcome: Produced,
}

impl Watcher<'_> {
    fn run(mut self, stream: &TcpStream, mut receiver: Receiver) -> Result<Produced, ClientError> {
        let mut done_since: Option<Instant> = None;
        loop {
            if self.done.load(Relaxed) {
                let since = *done_since.get_or_insert_with(Instant::now);
                if since.elapsed() > FINISH_TIMEOUT || self.shared.stop.load(Relaxed) {
                    return Ok(self.outcome);
                }
            }
            if self.read(stream, &mut receiver)? {
                return Ok(self.outcome);
            }
        }
    }

    /// Reads once, and handles the frames; returns true on connection.close-ok, or at the end of the stream if all was sent.
    fn read(&mut self, stream: &TcpStream, receiver: &mut Receiver) -> Result<bool, ClientError> {
        match receiver.fill(stream).map_err(ClientError::io("reading confirms"))? {
            Fill::Data | Fill::Quiet => {}
            Fill::Eof if self.done.load(Relaxed) => return Ok(true),
            Fill::Eof => return Err(ClientError::Closed("the server closed a producer's socket".into())),
        }
        let now = self.shared.now();
        while let Some(frame) = receiver.next_frame()? {
            if self.frame(&frame, now)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Handles a frame; returns true on connection.close-ok.
    fn frame(&mut self, frame: &Frame<'_>, now: u64) -> Result<bool, ClientError> {
        match frame.kind {
            FrameKind::Heartbeat => return Ok(false),
            FrameKind::Header | FrameKind::Body if self.outcome.returned > 0 => return Ok(false),
            _ => {}
        }
        let method = expect_method(frame)?;
        match method {
            Method::BasicAck(basic::Ack { delivery_tag, multiple }) => {
                self.settled(frame.channel, delivery_tag, multiple, true, now)
            }
            Method::BasicNack(basic::Nack { delivery_tag, multiple, .. }) => {
                self.settled(frame.channel, delivery_tag, multiple, false, now);
            }
            Method::BasicReturn(_) => {
                self.outcome.returned += 1;
            }
            Method::ConnectionBlocked(_) => {
                self.outcome.blocked += 1;
                self.window.blocked.store(true, Relaxed);
            }
            Method::ConnectionUnblocked(_) => {
                self.window.blocked.store(false, Relaxed);
                self.window.changed.notify();
            }
            Method::ConnectionCloseOk(_) => return Ok(true),
            _ => {
                check_close(&method)?;
                return Err(ClientError::Protocol(format!("unexpected {} on a producer", method.name())));
            }
        }
        Ok(false)
    }

    fn settled(&mut self, channel: u16, tag: u64, multiple: bool, accepted: bool, now: u64) {
        let Self { shared, window, outcome, .. } = self;
        let mut count = 0;
        let known = window.settle(channel.wrapping_sub(CHANNEL), tag, multiple, |stamp| {
            count += 1;
            if shared.measures(stamp) {
                outcome.confirm_latencies.record(now.saturating_sub(stamp));
            }
        });
        outcome.odd_confirms += u64::from(!known);
        if accepted {
            shared.confirmed.fetch_add(count, Relaxed);
            shared.last_confirm.fetch_max(now, Relaxed);
        } else {
            outcome.nacked += count;
        }
    }
}
