//! A connection that sends requests one at a time, or many ahead of their answers.

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use amqp::frame::{write_body, write_content_header, write_method};
use amqp::method::{basic, confirm};
use amqp::{FrameKind, Method};

use super::CHANNEL;
use crate::client::{
    Connection, Fill, HeartbeatTimer, STALL_TIMEOUT, check_close, expect_method, is_timeout,
};
use crate::error::ClientError;
use crate::uri::Uri;

/// How long a system may do nothing while answers are pending: some need more than a minute to delete one queue.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Requests are written in pieces of about this size when pipelined, to make the cost of a write negligible.
const PIECE_BYTES: usize = 32 * 1024;
/// Most requests and messages without an answer. Their answers, of 40 bytes or less each, fit into the socket's
/// buffers, so that a system that stops reading when it cannot write does not deadlock with this client.
const MAX_AHEAD: u64 = 8192;

/// One channel in confirm mode.
pub(super) struct ConfirmedChannel {
    connection: Connection,
    heartbeat: HeartbeatTimer,
    pipelined: bool,
    out: Vec<u8>,
    /// Requests without an answer.
    unanswered: u64,
    unconfirmed: Unconfirmed,
    returned: u64,
    /// How long no message may be confirmed while any are unconfirmed.
    patience: Duration,
}

impl ConfirmedChannel {
    /// Connects, opens a channel and selects confirms.
    pub(super) fn open(uri: &Uri, pipelined: bool) -> Result<Self, ClientError> {
        let mut connection = Connection::open(uri, "leveret bench routing")?;
        connection.open_channel(CHANNEL)?;
        connection.call(CHANNEL, confirm::Select { no_wait: false }, |method| {
            matches!(method, Method::ConfirmSelectOk(_)).then_some(())
        })?;
        Ok(Self {
            heartbeat: HeartbeatTimer::new(connection.heartbeat_interval()),
            connection,
            pipelined,
            out: Vec::new(),
            unanswered: 0,
            unconfirmed: Unconfirmed::default(),
            returned: 0,
            patience: STALL_TIMEOUT,
        })
    }

    /// The same for a connection whose messages may have to wait for another connection's requests.
    pub(super) fn beside_requests(self) -> Self {
        Self { patience: TIMEOUT, ..self }
    }

    /// Product and version that the system announced.
    pub(super) fn server(&self) -> String {
        self.connection.server()
    }

    /// Sends a request that has exactly one answer; waits for it unless pipelined.
    pub(super) fn request<'m>(&mut self, request: impl Into<Method<'m>>) -> Result<(), ClientError> {
        write_method(&mut self.out, CHANNEL, request);
        self.unanswered += 1;
        self.pace()
    }

    /// Publishes a mandatory message; waits for its confirm unless pipelined.
    pub(super) fn publish(
        &mut self,
        exchange: &str,
        key: &str,
        properties: &[u8],
    ) -> Result<(), ClientError> {
        let publish = basic::Publish { exchange, routing_key: key, mandatory: true, ..Default::default() };
        write_method(&mut self.out, CHANNEL, publish);
        write_content_header(&mut self.out, CHANNEL, BODY.len() as u64, properties);
        write_body(&mut self.out, CHANNEL, BODY);
        self.unconfirmed.sent();
        self.pace()
    }

    /// Waits until all requests are answered and all messages confirmed.
    pub(super) fn finish(&mut self) -> Result<(), ClientError> {
        self.wait_until(0)
    }

    /// The number of messages returned as unroutable since the last call.
    pub(super) fn take_returned(&mut self) -> u64 {
        std::mem::take(&mut self.returned)
    }

    /// Closes the connection.
    pub(super) fn close(self) {
        self.connection.close();
    }

    /// The underlying connection, once nothing is pending.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    fn outstanding(&self) -> u64 {
        self.unanswered + self.unconfirmed.count
    }

    fn pace(&mut self) -> Result<(), ClientError> {
        if !self.pipelined {
            return self.wait_until(0);
        }
        if self.out.len() >= PIECE_BYTES {
            self.flush()?;
            if self.outstanding() > MAX_AHEAD {
                self.wait_until(MAX_AHEAD / 2)?;
            }
        }
        Ok(())
    }

    fn wait_until(&mut self, most: u64) -> Result<(), ClientError> {
        self.flush()?;
        let mut progress = Instant::now();
        while self.outstanding() > most {
            // Heartbeats are no progress.
            if self.receive_answers()? {
                progress = Instant::now();
            }
            self.check_patience(progress)?;
            if let Some(frame) = self.heartbeat.poll() {
                self.out.extend_from_slice(frame);
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Fails if the system has done nothing since `progress` for the whole timeout.
    fn check_patience(&self, progress: Instant) -> Result<(), ClientError> {
        match self.unanswered {
            0 if progress.elapsed() > self.patience => {
                let (unconfirmed, patience) = (self.unconfirmed.count, self.patience.as_secs());
                let text = format!(
                    "{unconfirmed} messages are unconfirmed, and none was confirmed for {patience} s"
                );
                Err(ClientError::Stopped(text))
            }
            1.. if progress.elapsed() > TIMEOUT => Err(ClientError::TimedOut("a step of the routing study")),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        let (mut written, mut progress) = (0, Instant::now());
        while written < self.out.len() {
            match (&self.connection.stream).write(&self.out[written..]) {
                Ok(n) => (written, progress) = (written + n, Instant::now()),
                // The system may be waiting for this client to read.
                Err(error) if is_timeout(&error) => {
                    if self.receive_answers()? {
                        progress = Instant::now();
                    }
                    self.check_patience(progress)?;
                }
                Err(cause) => return Err(ClientError::Io { doing: "sending requests", cause }),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Reads once and handles the input; returns whether it had answers or confirms.
    fn receive_answers(&mut self) -> Result<bool, ClientError> {
        let before = self.outstanding();
        let Connection { stream, receiver, .. } = &mut self.connection;
        match receiver.fill(stream).map_err(ClientError::io("waiting for answers"))? {
            Fill::Data => {}
            Fill::Quiet => return Ok(false),
            Fill::Eof => return Err(ClientError::Closed("the server closed the socket".into())),
        }
        while let Some(frame) = receiver.next_frame()? {
            // Heartbeats, and the contents of returned messages, are ignored.
            if frame.kind != FrameKind::Method {
                continue;
            }
            match expect_method(&frame)? {
                Method::BasicAck(ack) => self.unconfirmed.settle(ack.delivery_tag, ack.multiple),
                Method::BasicNack(_) => {
                    return Err(ClientError::Protocol("a message was refused with basic.nack".into()));
                }
                Method::BasicReturn(_) => self.returned += 1,
                Method::ConnectionBlocked(_) | Method::ConnectionUnblocked(_) => {}
                method => {
                    check_close(&method)?;
                    let unasked = || ClientError::Protocol(format!("unexpected {}", method.name()));
                    self.unanswered = self.unanswered.checked_sub(1).ok_or_else(unasked)?;
                }
            }
        }
        Ok(self.outstanding() < before)
    }
}

const BODY: &[u8] = b"sixteen bytes...";

/// Unconfirmed messages, by delivery tag.
#[derive(Debug, Default)]
struct Unconfirmed {
    /// Whether each is settled, from tag `first` on.
    settled: VecDeque<bool>,
    /// All tags before this one are settled. Tags start at 1.
    before: u64,
    count: u64,
}

impl Unconfirmed {
    fn sent(&mut self) {
        self.settled.push_back(false);
        self.count += 1;
    }

    fn settle(&mut self, tag: u64, multiple: bool) {
        let last = tag.saturating_sub(self.before).min(self.settled.len() as u64) as usize;
        let first = if multiple { 1 } else { last.max(1) };
        for settled in self.settled.range_mut(first - 1..last) {
            self.count -= u64::from(!*settled);
            *settled = true;
        }
        while self.settled.front() == Some(&true) {
            self.settled.pop_front();
            self.before += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_count_once_in_any_order() {
        let mut unconfirmed = Unconfirmed::default();
        (0..5).for_each(|_| unconfirmed.sent());
        let counts = [(4, false), (4, false), (2, true), (1, false), (3, true), (5, true), (5, true)].map(
            |(tag, multiple)| {
                unconfirmed.settle(tag, multiple);
                unconfirmed.count
            },
        );
        assert_eq!(counts, [4, 4, 2, 2, 1, 0, 0]);
        unconfirmed.sent();
        unconfirmed.settle(6, false);
        assert_eq!((unconfirmed.count, unconfirmed.before), (0, 6));
    }
}
