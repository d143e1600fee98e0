//! Clients that disconnect while the upstream accepts nothing, so that they are not read.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::websocket::{MessageKind, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{Instant, timeout};
use transport::Stream;

use super::TextRule;
use super::close::{HALF_CLOSED, RelayEnd};
use super::plain::Pair;
use super::pump::Pump;

const PING_INTERVAL: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

async fn tcp() -> (TcpStream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (peer, Stream::Tcp(listener.accept().await.unwrap().0))
}

fn unix() -> (UnixStream, Stream) {
    let (peer, stream) = UnixStream::pair().unwrap();
    (peer, Stream::Unix(stream))
}

/// A relay, with or without WebSocket.
enum Relayed {
    Plain(Box<Pair>),
    WebSocket(Box<Pump>),
}

impl Relayed {
    fn plain(client: Stream, upstream: Stream) -> Self {
        Self::Plain(Box::new(Pair::new(client, upstream, WRITE_TIMEOUT)))
    }

    fn websocket(client: Stream, upstream: Stream) -> Self {
        Self::WebSocket(Box::new(Pump::new(client, upstream, TextRule::Accept, PING_INTERVAL, WRITE_TIMEOUT)))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RelayEnd> {
        match self {
            Self::Plain(pair) => pair.poll(cx),
            Self::WebSocket(pump) => pump.poll(cx),
        }
    }

    fn is_stuck(&self) -> bool {
        match self {
            Self::Plain(pair) => pair.is_upstream_stuck(),
            Self::WebSocket(pump) => pump.is_upstream_stuck(),
        }
    }

    /// 64 KiB from the client to the upstream.
    fn message(&self) -> Vec<u8> {
        let (payload, mut message) = ([b'x'; 1 << 16], Vec::new());
        match self {
            Self::Plain(_) => message.extend(payload),
            Self::WebSocket(_) => {
                encode::message(&mut message, Some([0; 4]), MessageKind::Binary, &payload);
            }
        }
        message
    }

    /// Sends messages until the upstream accepts no more; with `fills`, until the client's socket accepts no more either.
    /// Returns the number of bytes.
    async fn stall(&mut self, client: &mut (impl AsyncWrite + Unpin), fills: bool) -> usize {
        let message = self.message();
        let (mut written, mut refused) = (0, 0);
        while !self.is_stuck() || (fills && refused < 100) {
            let rest = &message[written % message.len()..];
            let taken = poll_fn(|cx| {
                assert!(self.poll(cx).is_pending(), "the relay has ended");
                Poll::Ready(match Pin::new(&mut *client).poll_write(cx, rest) {
                    Poll::Ready(taken) => taken.unwrap(),
                    Poll::Pending => 0,
                })
            });
            let taken = taken.await;
            written += taken;
            refused = if taken == 0 { refused + 1 } else { 0 };
            tokio::task::yield_now().await;
        }
        written
    }

    /// Why the relay ends.
    fn end(mut self) -> impl Future<Output = String> {
        let end = async move { poll_fn(|cx| self.poll(cx)).await.to_string() };
        async { timeout(Duration::from_secs(3600), end).await.expect("the relay ends") }
    }
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> usize {
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    while let read @ 1.. = stream.read(&mut buffer).await.unwrap() {
        count += read;
    }
    count
}

#[tokio::test(start_paused = true)]
async fn a_client_that_resets_is_given_up_if_the_upstream_accepts_nothing_for_a_while() {
    for of in [Relayed::plain, Relayed::websocket] {
        let ((mut client, own_client), (_upstream, own_upstream)) = (tcp().await, tcp().await);
        let mut relayed = of(own_client, own_upstream);
        relayed.stall(&mut client, true).await;
        client.set_zero_linger().unwrap();
        drop(client);
        let begin = Instant::now();
        let reason = relayed.end().await;
        assert!(reason.contains("client"), "{reason}");
        assert!(begin.elapsed() >= HALF_CLOSED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_is_given_up_if_the_upstream_accepts_nothing_for_a_while() {
    for of in [Relayed::plain, Relayed::websocket] {
        let ((mut client, own_client), (_upstream, own_upstream)) = (unix(), unix());
        let mut relayed = of(own_client, own_upstream);
        relayed.stall(&mut client, false).await;
        drop(client);
        let begin = Instant::now();
        let reason = relayed.end().await;
        assert!(reason.contains("client"), "{reason}");
        assert!(begin.elapsed() >= HALF_CLOSED);
    }
}

/// Its end is behind bytes that its own system has yet to send.
#[tokio::test(start_paused = true)]
async fn a_websocket_that_closes_with_bytes_left_to_send_is_found_by_a_ping() {
    let ((mut client, own_client), (_upstream, own_upstream)) = (tcp().await, tcp().await);
    let mut relayed = Relayed::websocket(own_client, own_upstream);
    relayed.stall(&mut client, true).await;
    drop(client);
    let begin = Instant::now();
    let reason = relayed.end().await;
    assert!(reason.contains("client"), "{reason}");
    assert!(begin.elapsed() >= HALF_CLOSED);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_is_not_given_up_however_long_the_upstream_accepts_nothing() {
    for of in [Relayed::plain, Relayed::websocket] {
        let ((mut client, own_client), (_upstream, own_upstream)) = (tcp().await, tcp().await);
        let mut relayed = of(own_client, own_upstream);
        relayed.stall(&mut client, true).await;
        let polled = timeout(HALF_CLOSED * 100, poll_fn(|cx| relayed.poll(cx))).await;
        assert!(polled.is_err(), "{polled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_client_that_has_closed_arrive_if_the_upstream_reads_again_in_time() {
    let ((mut client, own_client), (mut upstream, own_upstream)) = (unix(), unix());
    let mut relayed = Relayed::plain(own_client, own_upstream);
    let sent = relayed.stall(&mut client, true).await;
    drop(client);
    let relaying = tokio::spawn(relayed.end());
    tokio::time::sleep(HALF_CLOSED / 2).await;
    assert_eq!(read_all(&mut upstream).await, sent);
    drop(upstream);
    relaying.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_does_not_end_with_its_client_is_given_up() {
    let ((mut client, own_client), (mut upstream, own_upstream)) = (unix(), unix());
    let relaying = tokio::spawn(Relayed::plain(own_client, own_upstream).end());
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut upstream).await, 0);
    let begin = Instant::now();
    for _ in 0..3 {
        tokio::time::sleep(HALF_CLOSED / 2).await;
        upstream.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
    }
    assert_eq!(relaying.await.unwrap(), "closed by client; upstream close timed out");
    assert!(begin.elapsed() >= HALF_CLOSED * 5 / 2);
}
