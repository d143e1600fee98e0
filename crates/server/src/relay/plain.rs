//! A relay without WebSocket, for clients that speak the upstream server's protocol on a listener of their own.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};
use transport::{Outbox, Stream};

use super::Relay;
use super::pending::Pending;
use super::upstream::connect;
use crate::server::{AcceptedConnection, Listed, Shared};

/// Bytes per read, on the stack. Bytes that the other side does not accept are kept, and reading stops.
const READ: usize = 16 * 1024;

/// Reads for one pair before others get their turn.
const READS: usize = 32;

/// The reason why a pair ended.
enum PlainRelayEnd {
    Closed,
    Failed(&'static str, io::Error),
    ClientStuck,
    Drain,
}

impl fmt::Display for PlainRelayEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Failed(side, error) => write!(f, "{side}: {error}"),
            Self::ClientStuck => f.write_str("client: write timed out"),
            Self::Drain => f.write_str("server is shutting down"),
        }
    }
}

/// Joins a client to the upstream server of `relay`. A client that cannot be served is closed without an error,
/// as its protocol is not known here.
pub(crate) async fn run_plain(
    shared: Arc<Shared>,
    relay: Arc<Relay>,
    client: Stream,
    accepted: AcceptedConnection,
) {
    let record = shared.record(&accepted);
    let AcceptedConnection { id, peer, lease, .. } = accepted;
    // Never appended to: it represents the connection in the list that a drain waits for.
    let _listed = Listed::new(&shared, id, &Arc::new(Outbox::new(0)));
    let _place = lease;
    let listener = client.addresses().map(|(local, _)| local);
    let connecting = Box::pin(connect(&relay.config, peer, listener));
    let connected = tokio::select! {
        connected = connecting => connected.map_err(|error| format!("{}: {error}", relay.config.upstream)),
        () = shared.drain_begun() => Err(PlainRelayEnd::Drain.to_string()),
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
        let mut drained = pin!(shared.departure_of(id));
        poll_fn(|cx| match drained.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(PlainRelayEnd::Drain),
            Poll::Pending => pair.poll(cx),
        })
        .await
    };
    shared.metrics.bytes_received.add(pair.inward.moved);
    shared.closed(record, id, peer, pair.outward.moved, &reason.to_string());
}

/// A client and the upstream server.
struct Pair {
    client: Stream,
    upstream: Stream,
    inward: Direction,
    outward: Direction,
    /// How long the client may accept none of what is written to it. The upstream server may have its reasons to read nothing,
    /// such as an alarm of RabbitMQ's: then the client is not read, either.
    write_timeout: Duration,
    /// Created when the client stops accepting for the first time.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Bytes on their way from one side to the other.
#[derive(Default)]
struct Direction {
    pending: Pending,
    /// The reading side has ended.
    has_ended: bool,
    /// The writing side has been shut down.
    is_over: bool,
    moved: u64,
}

impl Pair {
    fn new(client: Stream, upstream: Stream, write_timeout: Duration) -> Self {
        let (inward, outward) = Default::default();
        Self { client, upstream, inward, outward, write_timeout, timer: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PlainRelayEnd> {
        let inward = self.inward.poll(&mut self.client, &mut self.upstream, cx);
        if let Poll::Ready(Err(error)) = inward {
            return Poll::Ready(PlainRelayEnd::Failed("client or upstream", error));
        }
        let outward = self.outward.poll(&mut self.upstream, &mut self.client, cx);
        match (inward, outward) {
            (_, Poll::Ready(Err(error))) => Poll::Ready(PlainRelayEnd::Failed("upstream or client", error)),
            (Poll::Ready(_), Poll::Ready(_)) => Poll::Ready(PlainRelayEnd::Closed),
            _ => self.poll_stuck(cx),
        }
    }

    /// Gives up if the client accepts nothing for too long.
    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Poll<PlainRelayEnd> {
        let Some(since) = self.outward.pending.stuck_since() else {
            self.timer = None;
            return Poll::Pending;
        };
        let deadline = since + self.write_timeout;
        if deadline <= Instant::now() {
            return Poll::Ready(PlainRelayEnd::ClientStuck);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline.into())));
        timer.as_mut().reset(deadline.into());
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(PlainRelayEnd::ClientStuck)
    }
}

impl Direction {
    /// Ready when everything has been passed on, including the end.
    fn poll<S>(&mut self, from: &mut S, to: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut bytes = [0; READ];
        for _ in 0..READS {
            if self.is_over {
                return Poll::Ready(Ok(()));
            }
            ready!(self.pending.poll(to, cx))?;
            if self.has_ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.is_over = true;
                continue;
            }
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *from).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                self.has_ended = true;
            } else {
                self.moved += read.filled().len() as u64;
                self.pending.send(to, cx, read.filled())?;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    fn pair(write_timeout: Duration) -> (UnixStream, UnixStream, Pair) {
        let ((client, own_client), (own_upstream, upstream)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let pair = Pair::new(Stream::Unix(own_client), Stream::Unix(own_upstream), write_timeout);
        (client, upstream, pair)
    }

    #[tokio::test]
    async fn every_byte_arrives_and_the_end_of_each_direction_by_itself() {
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
        assert_eq!(relaying.await.unwrap(), "closed");
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
        // Nobody is stuck for less than that.
        let (mut client, mut upstream, mut pair) = pair(Duration::ZERO);
        let sent = vec![7; 4 << 20];
        let mut written = 0;
        // Polled by hand until the sockets take no more: then the timer would have ended it.
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
        assert_eq!(relaying.await.unwrap(), "closed");
    }
}
