//! A stream whose reads are delayed for a moment while its peer writes so often and so little that waking up costs more
//! than the work.
//!
//! This is interrupt coalescing, as in a network card: thousands of small writes of a busy broker are read every other
//! millisecond, and forwarded to clients in as few writes. Meanwhile the socket is deregistered from the runtime's poll,
//! since each of the peer's writes would otherwise wake a thread, even with no reader waiting.

mod pace;

use std::io::{self, IoSlice, Write};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::{PeerWatch, Stream, now};
use pace::{Pace, WAIT};

/// A stream with delayed reads. Only TCP reads are delayed; other streams are read as data arrives.
///
/// While it is busy, received data may wait for two milliseconds, and so may the end of the stream. It is busy if its peer
/// batches several items in each of many writes, and sends no less while reads are delayed.
#[derive(Debug)]
pub struct Paced {
    source: Source,
    pace: Pace,
    taken: Arc<AtomicU64>,
    /// Set while a read is delayed; reused for the next one.
    timer: Option<Pin<Box<Sleep>>>,
    waits: bool,
}

#[derive(Debug)]
enum Source {
    Polled(Stream),
    /// Deregistered from the runtime's poll. The socket is non-blocking.
    Unpolled(std::net::TcpStream),
    /// The runtime failed to register or to deregister the socket.
    Lost,
}

impl Paced {
    /// Wraps `stream`. `taken` counts the items, such as frames, that the reader extracts from it.
    pub fn new(stream: Stream, taken: Arc<AtomicU64>) -> Self {
        let pace = Pace::new(now());
        Self { source: Source::Polled(stream), pace, taken, timer: None, waits: false }
    }

    /// The stream, registered with the runtime's poll.
    fn polled(&mut self) -> io::Result<Pin<&mut Stream>> {
        if let Source::Unpolled(_) = self.source
            && let Source::Unpolled(stream) = mem::replace(&mut self.source, Source::Lost)
        {
            self.source = Source::Polled(Stream::Tcp(TcpStream::from_std(stream)?));
        }
        match &mut self.source {
            Source::Polled(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Delays the next read, if the stream supports it.
    fn wait(&mut self) -> io::Result<()> {
        if !matches!(self.source, Source::Polled(Stream::Tcp(_))) {
            return Ok(());
        }
        if let Source::Polled(Stream::Tcp(stream)) = mem::replace(&mut self.source, Source::Lost) {
            self.source = Source::Unpolled(stream.into_std()?);
        }
        self.waits = true;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(tokio::time::Instant::now() + WAIT),
            None => self.timer = Some(Box::pin(sleep(WAIT))),
        }
        Ok(())
    }

    fn poll_waited(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.waits
            && let Some(timer) = &mut self.timer
        {
            ready!(timer.as_mut().poll(cx));
            self.waits = false;
        }
        Poll::Ready(())
    }
}

impl PeerWatch for Paced {}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_waited(cx));
        let before = buf.filled().len();
        ready!(self.polled()?.poll_read(cx, buf))?;
        let bytes = buf.filled().len() - before;
        let taken = self.taken.load(Ordering::Relaxed);
        if self.pace.read(bytes, taken, now()) && bytes > 0 {
            self.wait()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Source::Unpolled(stream) = &mut self.source {
            match stream.write_vectored(bufs) {
                // Only the runtime's poll reports when the socket is writable.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return Poll::Ready(written),
            }
        }
        self.polled()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.source {
            Source::Polled(stream) => Pin::new(stream).poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polled()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Two ends of a TCP connection, the first read at a pace.
    async fn pair() -> (Paced, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (far, near) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let near = Stream::from_tcp(near.unwrap().0).unwrap();
        (Paced::new(near, Arc::default()), far.unwrap())
    }

    fn waits(paced: &Paced) -> bool {
        matches!(paced.source, Source::Unpolled(_))
    }

    #[tokio::test]
    async fn everything_arrives_in_order_whether_reading_waits_or_not() {
        const LEN: u32 = 100_000;
        let (mut paced, mut far) = pair().await;
        let writer = tokio::spawn(async move {
            for number in 0..LEN {
                far.write_all(&number.to_be_bytes()).await.unwrap();
            }
        });
        let (mut read, mut reads, mut buf) = (Vec::new(), 0, vec![0; 1000]);
        loop {
            let bytes = paced.read(&mut buf).await.unwrap();
            if bytes == 0 {
                break;
            }
            read.extend_from_slice(&buf[..bytes]);
            reads += 1;
            if reads % 2 == 0 {
                paced.wait().unwrap();
                assert!(waits(&paced));
            }
        }
        writer.await.unwrap();
        let expected: Vec<u8> = (0..LEN).flat_map(u32::to_be_bytes).collect();
        assert!(read == expected, "{} bytes of {}", read.len(), expected.len());
    }

    #[tokio::test]
    async fn data_received_during_the_wait_is_read_without_more_arriving() {
        let (mut paced, mut far) = pair().await;
        paced.wait().unwrap();
        far.write_all(b"before").await.unwrap();
        let mut buf = [0; 6];
        paced.read_exact(&mut buf).await.unwrap();
        assert_eq!(&buf, b"before");
        assert!(!waits(&paced));
    }

    #[tokio::test]
    async fn more_than_the_socket_takes_is_written_while_reading_waits() {
        const LEN: usize = 16 * 1024 * 1024;
        let (mut paced, mut far) = pair().await;
        let reader = tokio::spawn(async move {
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            read
        });
        let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
        for piece in bytes.chunks(LEN / 4) {
            paced.wait().unwrap();
            assert!(waits(&paced));
            paced.write_all(piece).await.unwrap();
        }
        paced.wait().unwrap();
        paced.shutdown().await.unwrap();
        assert!(reader.await.unwrap() == bytes);
    }

    #[tokio::test]
    async fn the_end_of_the_stream_is_seen_after_the_wait() {
        let (mut paced, far) = pair().await;
        paced.wait().unwrap();
        drop(far);
        let end = tokio::time::timeout(Duration::from_secs(60), paced.read(&mut [0; 8])).await.unwrap();
        assert_eq!(end.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_stream_that_is_not_tcp_is_read_as_it_comes() {
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        let mut paced = Paced::new(Stream::Unix(near), Arc::default());
        paced.wait().unwrap();
        assert!(!waits(&paced));
        far.write_all(b"now").await.unwrap();
        paced.read_exact(&mut [0; 3]).await.unwrap();
    }

    #[tokio::test]
    async fn a_busy_stream_of_gathered_things_comes_to_wait() {
        let (mut paced, mut far) = pair().await;
        let taken = paced.taken.clone();
        let writer = tokio::spawn(async move {
            // Until the reader has seen enough.
            while far.write_all(&[0; 100]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let mut buf = [0; 100];
        let busy = async {
            while !paced.waits {
                paced.read_exact(&mut buf).await.unwrap();
                taken.fetch_add(1000, Ordering::Relaxed);
            }
        };
        tokio::time::timeout(Duration::from_secs(60), busy).await.unwrap();
        assert!(waits(&paced));
        drop(paced);
        writer.await.unwrap();
    }
}
