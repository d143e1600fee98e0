//! A relay without WebSocket, for clients that speak the upstream server's protocol on a listener of their own.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use transport::{Outbox, PEER_CHECK, PeerState, PeerWatch as _, Stream};

use super::Relay;
use super::close::{HALF_CLOSED, RelayEnd};
use super::pending::Pending;
use super::run::close_both;
use super::upstream::connect;
use crate::server::{AcceptedConnection, ConnectionListEntry, Shared};

/// Bytes per read, on the stack. Bytes that the other side does not accept are kept, and reading stops.
const READ: usize = 16 * 1024;

/// Reads for one pair before other tasks get their turn.
const READS: usize = 32;

/// Joins a client to the upstream server of `relay`. A client that cannot be served is closed without an error, since its
/// protocol is not known here.
pub(crate) async fn run_plain(
    shared: Arc<Shared>,
    relay: Arc<Relay>,
    client: Stream,
    accepted: AcceptedConnection,
) {
    let record = shared.record(&accepted);
    let AcceptedConnection { id, peer, lease, .. } = accepted;
    // Never appended to: it represents the connection in the list that a drain waits for.
    let _listed = ConnectionListEntry::new(&shared, id, &Arc::new(Outbox::new(0)));
    let _place = lease;
    let listener = client.addresses().map(|(local, _)| local);
    let connecting = Box::pin(connect(&relay.config, peer, listener));
    let connected = tokio::select! {
        connected = connecting => connected.map_err(|error| format!("{}: {error}", relay.config.upstream)),
        () = shared.drain_begun() => Err(RelayEnd::Drain.to_string()),
    };
    let upstream = match connected {
        Ok(upstream) => upstream,
        Err(reason) => {
            tracing::warn!(connection = id, %peer, relay = relay.config.name, reason, "relay failed");
            return shared.closed(record, id, peer, 0, &reason);
        }
    };
    let mut pair = Pair::new(client, upstream, shared.config.write_timeout);
    let reason = {
        let mut drained = pin!(shared.wait_for_drain_slot(id));
        poll_fn(|cx| match drained.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(RelayEnd::Drain),
            Poll::Pending => pair.poll(cx),
        })
        .await
    };
    shared.metrics.bytes_received.add(pair.inward.moved);
    shared.closed(record, id, peer, pair.outward.moved, &reason.to_string());
    close_both(pair.client, pair.upstream).await;
}

/// A client and the upstream server.
pub(super) struct Pair {
    client: Stream,
    upstream: Stream,
    inward: Direction,
    outward: Direction,
    /// The longest time for which the client may accept no output. The upstream server may have a reason not to read,
    /// such as an alarm of RabbitMQ's. Then the client is not read either, for as long as that lasts.
    write_timeout: Duration,
    /// The reason why the pair ends, once one side has ended or the upstream has failed.
    reason: Option<RelayEnd>,
    /// The progress of the remaining direction, and since when there has been none.
    rest: Option<(Rest, Instant)>,
    /// Created when there is a deadline for the first time.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The remaining direction of a pair, with the bytes that it has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// The upstream has ended, and the client may still send something.
    ToUpstream(u64),
    /// The upstream has failed, but bytes that it sent before may be left.
    ToClient(u64),
    /// The client has ended. The upstream may still answer, or has yet to accept all that the client sent. Has the bytes
    /// of both directions.
    AfterClient(u64, u64),
}

/// One direction of a pair.
#[derive(Default)]
struct Direction {
    pending: Pending,
    /// Whether the reading side has ended or failed.
    has_ended: bool,
    /// Since when the writing side has not accepted the end.
    ending_since: Option<Instant>,
    /// Whether the writing side accepts no more bytes, so that further ones are discarded.
    is_deaf: bool,
    /// Whether the writing side has been shut down after the last byte, or accepts no more.
    is_over: bool,
    moved: u64,
}

/// The failed side of a direction.
enum DirectionFault {
    Reading(io::Error),
    Writing(io::Error),
}

impl Pair {
    pub(super) fn new(client: Stream, upstream: Stream, write_timeout: Duration) -> Self {
        let (inward, outward) = Default::default();
        Self { client, upstream, inward, outward, write_timeout, reason: None, rest: None, timer: None }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        // Each side of a direction fails once.
        while let Err(fault) = self.poll_directions(cx) {
            match fault {
                // Bytes that the upstream sent before may still be readable, and often contain the reason.
                RelayEnd::UpstreamFailed(_) if self.has_upstream_failed() => {}
                RelayEnd::UpstreamFailed(_) => self.reason = Some(fault),
                of_client => return Poll::Ready(of_client),
            }
        }
        let first_end = match (self.inward.has_ended, self.outward.has_ended) {
            (true, _) => Some(RelayEnd::Client),
            (false, true) => Some(RelayEnd::Upstream),
            (false, false) => None,
        };
        self.reason = self.reason.take().or(first_end);
        if self.outward.is_over && (self.inward.is_over || self.has_upstream_failed()) {
            return Poll::Ready(self.reason.take().unwrap_or(RelayEnd::Upstream));
        }
        self.poll_deadline(cx)
    }

    /// Moves bytes until a side fails.
    fn poll_directions(&mut self, cx: &mut Context<'_>) -> Result<(), RelayEnd> {
        match self.inward.poll(&mut self.client, &mut self.upstream, cx) {
            Poll::Ready(Err(DirectionFault::Reading(error))) => return Err(RelayEnd::ClientFailed(error)),
            Poll::Ready(Err(DirectionFault::Writing(error))) => return Err(RelayEnd::UpstreamFailed(error)),
            _ => {}
        }
        match self.outward.poll(&mut self.upstream, &mut self.client, cx) {
            Poll::Ready(Err(DirectionFault::Reading(error))) => Err(RelayEnd::UpstreamFailed(error)),
            Poll::Ready(Err(DirectionFault::Writing(error))) => Err(RelayEnd::ClientFailed(error)),
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    pub(super) fn is_upstream_stuck(&self) -> bool {
        self.inward.stuck_since().is_some()
    }

    fn has_upstream_failed(&self) -> bool {
        matches!(self.reason, Some(RelayEnd::UpstreamFailed(_)))
    }

    /// Ends the pair if the client accepts nothing for too long, or if the remaining side sends nothing more.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        let unaccepted = self.inward.stuck_since();
        // Its end may follow bytes that are not read.
        let has_client_ended =
            self.inward.has_ended || (unaccepted.is_some() && self.client.peer_state() != PeerState::Open);
        let rest = match self.outward.is_over {
            true => Some(Rest::ToUpstream(self.inward.moved)),
            false if self.has_upstream_failed() => Some(Rest::ToClient(self.outward.moved)),
            false if has_client_ended => Some(Rest::AfterClient(self.inward.moved, self.outward.moved)),
            false => None,
        };
        if self.rest.map(|(before, _)| before) != rest {
            self.rest = rest.map(|rest| (rest, Instant::now()));
        }
        let stuck = self.outward.stuck_since().map(|since| since + self.write_timeout);
        let silent = self.rest.map(|(_, since)| since.max(unaccepted.unwrap_or(since)) + HALF_CLOSED);
        let deadline = stuck.or(silent);
        let check = unaccepted.map(|_| Instant::now() + PEER_CHECK);
        let Some(next) = deadline.into_iter().chain(check).min() else {
            self.timer = None;
            return Poll::Pending;
        };
        if next > Instant::now() {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next)));
            timer.as_mut().reset(next);
            ready!(timer.as_mut().poll(cx));
            if Some(next) != deadline {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(match (stuck, rest, self.reason.take()) {
            (Some(_), ..) => RelayEnd::ClientStuck,
            (None, Some(Rest::AfterClient(..)), _) | (None, _, None) => RelayEnd::UpstreamLingered,
            (None, _, Some(reason)) => reason,
        })
    }
}

impl Direction {
    /// Ready when everything has been forwarded, including the end. To be polled again after a fault.
    fn poll<S>(&mut self, from: &mut S, to: &mut S, cx: &mut Context<'_>) -> Poll<Result<(), DirectionFault>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut bytes = [0; READ];
        for _ in 0..READS {
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            if !self.is_deaf {
                let written = ready!(self.pending.poll(to, cx));
                self.written(written)?;
            }
            if self.has_ended {
                if !self.is_deaf {
                    self.ending_since.get_or_insert_with(Instant::now);
                    let shut = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.written(shut)?;
                }
                self.is_over = true;
                continue;
            }
            let mut read = ReadBuf::new(&mut bytes);
            let outcome = ready!(Pin::new(&mut *from).poll_read(cx, &mut read));
            if outcome.is_err() || read.filled().is_empty() {
                self.has_ended = true;
                outcome.map_err(DirectionFault::Reading)?;
                continue;
            }
            self.moved += read.filled().len() as u64;
            if !self.is_deaf {
                let written = self.pending.send(to, cx, read.filled());
                self.written(written)?;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn written(&mut self, outcome: io::Result<()>) -> Result<(), DirectionFault> {
        outcome.map_err(|error| {
            self.is_deaf = true;
            self.pending.clear();
            DirectionFault::Writing(error)
        })
    }

    /// Since when the writing side has accepted no bytes, or not the end.
    fn stuck_since(&self) -> Option<Instant> {
        let end = self.ending_since.filter(|_| !self.is_over);
        self.pending.stuck_since().map(Instant::from_std).or(end)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    fn pair(write_timeout: Duration) -> (UnixStream, UnixStream, Pair) {
        let ((client, own_client), (own_upstream, upstream)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let pair = Pair::new(Stream::Unix(own_client), Stream::Unix(own_upstream), write_timeout);
        (client, upstream, pair)
    }

    #[tokio::test]
    async fn every_byte_arrives_and_each_direction_ends_separately() {
        let (mut client, mut upstream, mut pair) = pair(Duration::from_secs(60));
        let relaying = tokio::spawn(async move { poll_fn(|cx| pair.poll(cx)).await.to_string() });
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let (mut got, mut answer) = (Vec::new(), Vec::new());
        let request = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            client.read_to_end(&mut answer).await.unwrap();
        };
        let reply = async {
            upstream.read_to_end(&mut got).await.unwrap();
            upstream.write_all(b"bye").await.unwrap();
            upstream.shutdown().await.unwrap();
        };
        tokio::join!(request, reply);
        assert!(got == sent);
        assert_eq!(answer, b"bye");
        assert_eq!(relaying.await.unwrap(), "closed by client");
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (_client, mut upstream, mut pair) = pair(Duration::from_millis(50));
        let relaying = tokio::spawn(async move { poll_fn(|cx| pair.poll(cx)).await.to_string() });
        // More than the sockets buffer.
        let _ = upstream.write_all(&vec![0; 4 << 20]).await;
        assert_eq!(relaying.await.unwrap(), "client: write timed out");
    }

    #[tokio::test]
    async fn an_upstream_that_reads_nothing_for_now_keeps_its_client_waiting() {
        // No pause is shorter than that.
        let (mut client, mut upstream, mut pair) = pair(Duration::ZERO);
        let sent = vec![7; 4 << 20];
        let mut written = 0;
        // Polled by hand until the sockets accept no more, when the timer would end the pair.
        loop {
            let writing = poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_write(cx, &sent[written..])));
            let taken = match writing.await {
                Poll::Ready(taken) => taken.unwrap(),
                Poll::Pending => 0,
            };
            written += taken;
            let polled = poll_fn(|cx| Poll::Ready(pair.poll(cx))).await;
            assert!(polled.is_pending(), "the client is cut off after {written} bytes");
            if taken == 0 && pair.inward.pending.stuck_since().is_some() {
                break;
            }
            // The sockets' readiness comes from the runtime.
            tokio::task::yield_now().await;
        }
        assert!(written < sent.len());
        let relaying = tokio::spawn(async move { poll_fn(|cx| pair.poll(cx)).await.to_string() });
        let request = async {
            client.write_all(&sent[written..]).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let reply = async {
            upstream.read_to_end(&mut got).await.unwrap();
            upstream.shutdown().await.unwrap();
        };
        tokio::join!(request, reply);
        assert!(got == sent);
        assert_eq!(relaying.await.unwrap(), "closed by client");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_whose_upstream_has_closed_is_given_up_after_its_last_bytes() {
        let (mut client, mut upstream, mut pair) = pair(Duration::from_secs(60));
        let relaying = tokio::spawn(async move { poll_fn(|cx| pair.poll(cx)).await.to_string() });
        upstream.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        let end = Instant::now();
        for _ in 0..3 {
            tokio::time::sleep(HALF_CLOSED / 2).await;
            client.write_all(b"x").await.unwrap();
            assert_eq!(upstream.read_u8().await.unwrap(), b'x');
        }
        assert_eq!(relaying.await.unwrap(), "closed by upstream");
        assert!(end.elapsed() >= HALF_CLOSED * 5 / 2);
    }

    #[tokio::test]
    async fn the_last_bytes_of_an_upstream_that_no_longer_reads_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_upstream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut upstream = listener.accept().await.unwrap().0;
        let (mut client, own_client) = UnixStream::pair().unwrap();
        let mut pair =
            Pair::new(Stream::Unix(own_client), Stream::Tcp(own_upstream), Duration::from_secs(60));
        client.write_all(b"unread").await.unwrap();
        while pair.inward.moved == 0 {
            assert!(poll_fn(|cx| Poll::Ready(pair.poll(cx))).await.is_pending());
            tokio::task::yield_now().await;
        }
        upstream.readable().await.unwrap();
        upstream.write_all(b"ERROR").await.unwrap();
        // It has not read everything, so this is a reset.
        drop(upstream);
        client.write_all(b"more").await.unwrap();
        let relaying = tokio::spawn(async move { poll_fn(|cx| pair.poll(cx)).await.to_string() });
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"ERROR");
        assert!(relaying.await.unwrap().starts_with("upstream: "));
    }
}
