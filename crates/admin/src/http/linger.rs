//! The end of a connection: bytes that the client still sends are read for a moment, so that it receives the
//! last response.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream that reads and discards all received bytes when it is shut down.
///
/// Closing a socket with unread bytes resets the connection, and the client may lose a response that it has not
/// read yet (RFC 9112, 9.6).
pub(super) struct Lingering<S> {
    stream: S,
    bound: Duration,
    more: RequestIncomplete,
    /// Runs once the writing side is closed.
    until: Option<Pin<Box<Sleep>>>,
}

/// Set when the client is in the middle of sending a request. Shutdown of the stream then completes only once
/// the client has closed it too, or the bound has passed.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestIncomplete(Arc<AtomicBool>);

impl RequestIncomplete {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Maximum number of bytes discarded per read.
const PIECE: usize = 4096;

impl<S> Lingering<S> {
    pub(super) fn new(stream: S, bound: Duration, more: RequestIncomplete) -> Self {
        Self { stream, bound, more, until: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.until.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        let bound = this.bound;
        let until = this.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(bound)));
        loop {
            if until.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut dropped = [0; PIECE];
            let mut buffer = ReadBuf::new(&mut dropped);
            match Pin::new(&mut this.stream).poll_read(context, &mut buffer) {
                Poll::Pending if this.more.is_set() => return Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn more_comes() -> RequestIncomplete {
        let more = RequestIncomplete::default();
        more.set();
        more
    }

    #[tokio::test]
    async fn shutdown_reads_incoming_bytes_until_the_client_closes() {
        let (mine, mut theirs) = tokio::io::duplex(16);
        let mut stream = Lingering::new(mine, Duration::from_secs(60), more_comes());
        let send = async {
            assert_eq!(theirs.read(&mut [0; 1]).await.unwrap(), 0, "shut down first");
            theirs.write_all(&[7; 1000]).await.unwrap();
            drop(theirs);
        };
        let (ended, ()) = tokio::join!(stream.shutdown(), send);
        ended.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_stays_is_not_waited_for() {
        let (mine, _theirs) = tokio::io::duplex(16);
        Lingering::new(mine, Duration::from_millis(10), more_comes()).shutdown().await.unwrap();
        let (mine, mut theirs) = tokio::io::duplex(16);
        theirs.write_all(&[7; 10]).await.unwrap();
        let hour = Duration::from_hours(1);
        Lingering::new(mine, hour, RequestIncomplete::default()).shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn several_buffers_are_written_at_once() {
        let (mine, mut theirs) = tokio::io::duplex(16);
        let mut stream = Lingering::new(mine, Duration::from_millis(10), RequestIncomplete::default());
        assert!(stream.is_write_vectored());
        let buffers = [&b"head "[..], b"body"].map(IoSlice::new);
        assert_eq!(stream.write_vectored(&buffers).await.unwrap(), 9);
        drop(stream);
        let mut text = String::new();
        theirs.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "head body");
    }
}
