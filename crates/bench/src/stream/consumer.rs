//! The consuming side: one thread parses deliveries in the receive buffer and acknowledges them.

use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use amqp::frame::write_method;
use amqp::method::{basic, connection};
use amqp::{ContentHeader, Frame, FrameKind, Method};
use socket2::SockRef;

use super::message::{CHANNEL, Identity, STAMPED_LEN, read_stamp};
use super::shared::RoundState;
use super::workload::{Acks, Workload};
use crate::client::{Connection, Fill, HeartbeatTimer, Receiver, check_close, expect_method, is_timeout};
use crate::error::ClientError;
use crate::latency::Latencies;

/// How long the server may take to answer connection.close, including deliveries before the answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most runs of messages that are recorded before the trackers are locked.
const MAX_RUNS: usize = 4096;

/// The results of one consumer.
#[derive(Debug, Default)]
pub(crate) struct Consumed {
    pub(crate) latencies: Latencies,
    /// Deliveries with the redelivered flag.
    pub(crate) redelivered: u64,
    /// First deliveries that came after a later message of their producer.
    pub(crate) reordered: u64,
    /// Messages of another round or another program.
    pub(crate) foreign: u64,
}

/// Subscribes to `queue` and consumes until the round stops.
pub(crate) struct Consumer<'s> {
    shared: &'s RoundState,
    acks: Acks,
    /// Whether bodies are long enough to be numbered.
    numbered: bool,
    outcome: Consumed,
    /// The state of each channel.
    channel_states: Vec<ChannelState>,
    /// Messages recorded since the trackers were last updated.
    runs: Vec<ConsecutiveMessages>,
    producers: usize,
    count: u64,
    output: Vec<u8>,
    closed: bool,
}

/// The state of a channel: the delivery being received, and the unacknowledged messages.
#[derive(Debug, Default)]
struct ChannelState {
    state: State,
    /// Highest sequence number seen on this channel, plus one, for each channel of each producer.
    next: Vec<u64>,
    unacked: u16,
    last_tag: u64,
    redelivered: bool,
    /// The first bytes of the body, up to `head_len`.
    head: [u8; STAMPED_LEN],
    head_len: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Method,
    Header,
    Body(u64),
}

/// Consecutive messages of one producer.
#[derive(Debug, Clone, Copy)]
struct ConsecutiveMessages {
    producer: u16,
    first: u64,
    count: u64,
    /// It arrived after a later one, without the redelivered flag.
    late: bool,
}

impl<'s> Consumer<'s> {
    pub(crate) fn new(shared: &'s RoundState, workload: &Workload) -> Self {
        let Workload { producers, channels, acks, .. } = *workload;
        let next = vec![0; producers * usize::from(channels)];
        Self {
            shared,
            acks,
            numbered: workload.is_numbered(),
            outcome: Consumed::default(),
            channel_states: (0..channels)
                .map(|_| ChannelState { next: next.clone(), ..ChannelState::default() })
                .collect(),
            runs: Vec::with_capacity(MAX_RUNS),
            producers,
            count: 0,
            output: Vec::new(),
            closed: false,
        }
    }

    /// Consumes until the round stops, then closes the connection.
    pub(crate) fn run(mut self, connection: Connection) -> Result<Consumed, ClientError> {
        let mut heartbeat = HeartbeatTimer::new(connection.heartbeat_interval());
        let Connection { stream, mut receiver, .. } = connection;
        let mut stopping_since: Option<Instant> = None;
        loop {
            // Deliveries may already be in the buffer, after consume-ok.
            let now = self.shared.now();
            self.take_frames(&mut receiver, now)?;
            self.settle(now);
            if self.closed {
                return Ok(self.outcome);
            }
            match stopping_since {
                None if self.shared.stop.load(Relaxed) => {
                    self.acknowledge();
                    write_method(&mut self.output, 0, NORMAL_CLOSE);
                    stopping_since = Some(Instant::now());
                }
                Some(since) if since.elapsed() > CLOSE_TIMEOUT => return Ok(self.outcome),
                _ => {}
            }
            if let Some(frame) = heartbeat.poll() {
                self.output.extend_from_slice(frame);
            }
            self.send(&stream)?;
            match receiver.fill(&stream).map_err(ClientError::io("consuming"))? {
                Fill::Data => {}
                // The rest of a batch of acknowledgements must not wait for messages that may never arrive.
                Fill::Quiet => self.acknowledge(),
                Fill::Eof if stopping_since.is_some() => return Ok(self.outcome),
                Fill::Eof => return Err(ClientError::Closed("the server closed a consumer's socket".into())),
            }
        }
    }

    fn take_frames(&mut self, receiver: &mut Receiver, now: u64) -> Result<(), ClientError> {
        while let Some(frame) = receiver.next_frame()? {
            let index = usize::from(frame.channel.wrapping_sub(CHANNEL));
            let Some(channel_state) = self.channel_states.get_mut(index) else {
                match frame.kind {
                    FrameKind::Heartbeat => continue,
                    FrameKind::Method if frame.channel == 0 => self.other_method(&frame)?,
                    kind => {
                        let channel = frame.channel;
                        return Err(ClientError::Protocol(format!("a {kind:?} frame on channel {channel}")));
                    }
                }
                continue;
            };
            let whole = match (channel_state.state, frame.kind) {
                (State::Method, FrameKind::Method) => {
                    if !channel_state.deliver(frame.payload) {
                        self.other_method(&frame)?;
                    }
                    false
                }
                (State::Header, FrameKind::Header) => {
                    channel_state.header(ContentHeader::decode(frame.payload)?.body_size)
                }
                (State::Body(left), FrameKind::Body) => channel_state.body(left, frame.payload)?,
                (state, kind) => {
                    return Err(ClientError::Protocol(format!("a {kind:?} frame in state {state:?}")));
                }
            };
            if whole {
                self.delivered(index, now);
            }
        }
        Ok(())
    }

    fn other_method(&mut self, frame: &Frame<'_>) -> Result<(), ClientError> {
        let method = expect_method(frame)?;
        match method {
            Method::ConnectionCloseOk(_) => self.closed = true,
            Method::ConnectionBlocked(_) | Method::ConnectionUnblocked(_) => {}
            _ => {
                check_close(&method)?;
                return Err(ClientError::Protocol(format!("unexpected {} on a consumer", method.name())));
            }
        }
        Ok(())
    }

    /// Handles a complete delivery.
    #[inline]
    fn delivered(&mut self, index: usize, now: u64) {
        let channel_state = &mut self.channel_states[index];
        channel_state.state = State::Method;
        self.count += 1;
        self.outcome.redelivered += u64::from(channel_state.redelivered);
        if self.numbered {
            let head = &channel_state.head[..channel_state.head_len];
            match Identity::read(head, self.shared.salt) {
                Some(identity) if usize::from(identity.producer) < self.producers => {
                    if let Some(stamp) = read_stamp(head)
                        && self.shared.measures(stamp)
                    {
                        self.outcome.latencies.record(now.saturating_sub(stamp));
                    }
                    self.note(index, identity);
                }
                _ => self.outcome.foreign += 1,
            }
        }
        if let Acks::Manual { every, .. } = self.acks {
            let channel_state = &mut self.channel_states[index];
            channel_state.unacked += 1;
            if channel_state.unacked >= every {
                channel_state.acknowledge(CHANNEL + index as u16, &mut self.output);
            }
        }
    }

    #[inline]
    fn note(&mut self, index: usize, Identity { producer, sequence }: Identity) {
        // Only messages that took the same channels keep their order.
        let channels = self.channel_states.len();
        let theirs = if channels == 1 { 0 } else { sequence as usize % channels };
        let channel_state = &mut self.channel_states[index];
        let next = &mut channel_state.next[usize::from(producer) * channels + theirs];
        let late = sequence < *next && !channel_state.redelivered;
        *next = (*next).max(sequence + 1);
        match self.runs.last_mut() {
            Some(run)
                if run.producer == producer && run.first + run.count == sequence && run.late == late =>
            {
                run.count += 1;
            }
            _ => {
                if self.runs.len() == MAX_RUNS {
                    self.flush_runs();
                }
                self.runs.push(ConsecutiveMessages { producer, first: sequence, count: 1, late });
            }
        }
    }

    fn flush_runs(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let mut trackers = self.shared.trackers();
        for run in self.runs.drain(..) {
            let tracker = &mut trackers[usize::from(run.producer)];
            let before = tracker.received();
            tracker.arrived(run.first, run.count);
            if run.late {
                // A repeated message is a duplicate, not one out of order.
                self.outcome.reordered += tracker.received() - before;
            }
        }
    }

    /// Publishes the results of one read.
    fn settle(&mut self, now: u64) {
        if self.count > 0 {
            self.flush_runs();
            self.shared.consumed.fetch_add(self.count, Relaxed);
            self.shared.last_arrival.fetch_max(now, Relaxed);
            self.shared.backlog.notify();
            self.count = 0;
        }
    }

    fn acknowledge(&mut self) {
        for (channel, channel_state) in (CHANNEL..).zip(&mut self.channel_states) {
            channel_state.acknowledge(channel, &mut self.output);
        }
    }

    /// Sends as much as the socket accepts. If this blocked, a server that waits for this client to read would wait forever.
    fn send(&mut self, stream: &TcpStream) -> Result<(), ClientError> {
        if self.output.is_empty() {
            return Ok(());
        }
        match SockRef::from(stream).send_with_flags(&self.output, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => drop(self.output.drain(..sent)),
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(ClientError::Io { doing: "acknowledging", cause: error }),
        }
        Ok(())
    }
}

impl ChannelState {
    /// Begins a delivery; returns whether the method was one.
    #[inline]
    fn deliver(&mut self, payload: &[u8]) -> bool {
        let Some((tag, redelivered)) = parse_deliver(payload) else { return false };
        (self.last_tag, self.redelivered, self.state) = (tag, redelivered, State::Header);
        true
    }

    /// Returns whether the delivery is complete without a body.
    #[inline]
    fn header(&mut self, body_size: u64) -> bool {
        self.head_len = 0;
        self.state = State::Body(body_size);
        body_size == 0
    }

    /// Handles a piece of the body, of which `left` bytes were missing; returns whether it was the last.
    #[inline]
    fn body(&mut self, left: u64, piece: &[u8]) -> Result<bool, ClientError> {
        let Some(left) = left.checked_sub(piece.len() as u64) else {
            return Err(ClientError::Protocol("a body longer than its header says".into()));
        };
        let take = piece.len().min(STAMPED_LEN - self.head_len);
        self.head[self.head_len..self.head_len + take].copy_from_slice(&piece[..take]);
        self.head_len += take;
        self.state = State::Body(left);
        Ok(left == 0)
    }

    #[inline]
    fn acknowledge(&mut self, channel: u16, output: &mut Vec<u8>) {
        if self.unacked > 0 {
            let ack = basic::Ack { delivery_tag: self.last_tag, multiple: self.unacked > 1 };
            write_method(output, channel, ack);
            self.unacked = 0;
        }
    }
}

const NORMAL_CLOSE: connection::Close<'_> =
    connection::Close { reply_code: 200, reply_text: "Goodbye", class_id: 0, method_id: 0 };

/// Delivery tag and redelivered flag of a basic.deliver; `None` for any other method. The names in it are
/// skipped without validation, since nothing here needs them.
#[inline]
fn parse_deliver(payload: &[u8]) -> Option<(u64, bool)> {
    let rest = payload.strip_prefix(&[0, 60, 0, 60])?;
    let (&tag_len, rest) = rest.split_first()?;
    let (delivery_tag, rest) = rest.get(usize::from(tag_len)..)?.split_first_chunk()?;
    Some((u64::from_be_bytes(*delivery_tag), rest.first()? & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_distinguished_from_other_methods() {
        let mut payload = Vec::new();
        let deliver = basic::Deliver {
            consumer_tag: "tag",
            delivery_tag: 1 << 40,
            redelivered: true,
            exchange: "e",
            routing_key: "k",
        };
        Method::from(deliver).encode(&mut payload);
        assert_eq!(parse_deliver(&payload), Some((1 << 40, true)));
        (0..17).for_each(|n| assert_eq!(parse_deliver(&payload[..n]), None));
        payload[3] = 71;
        assert_eq!(parse_deliver(&payload), None);
    }
}
