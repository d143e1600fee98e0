//! A bound on how long a peer may accept none of the bytes written to it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail with `TimedOut` after `bound` without progress. Reads are passed on.
pub(crate) struct StallTimeout<S> {
    stream: S,
    bound: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimeout<S> {
    pub(crate) fn new(stream: S, bound: Duration) -> Self {
        Self { stream, bound, stalled: None }
    }

    /// Starts, checks or clears the timer, depending on the outcome of an attempt to write.
    fn watch<T>(&mut self, context: &mut Context<'_>, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.stalled = None;
            return attempt;
        }
        let bound = self.bound;
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(bound)));
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let attempt = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.watch(context, attempt)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let attempt = Pin::new(&mut this.stream).poll_flush(context);
        this.watch(context, attempt)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let attempt = Pin::new(&mut this.stream).poll_shutdown(context);
        this.watch(context, attempt)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_ends_the_write() {
        let (mine, _theirs) = tokio::io::duplex(16);
        let mut stream = StallTimeout::new(mine, Duration::from_millis(10));
        let error = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_reader_that_takes_a_little_at_a_time_is_served() {
        let (mine, mut theirs) = tokio::io::duplex(16);
        let mut stream = StallTimeout::new(mine, Duration::from_secs(60));
        let write = async {
            stream.write_all(&[7; 1000]).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let read = async {
            let mut taken = Vec::new();
            let mut byte = [0; 1];
            while theirs.read(&mut byte).await.unwrap() > 0 {
                taken.push(byte[0]);
            }
            taken
        };
        let ((), taken) = tokio::join!(write, read);
        assert_eq!(taken, [7; 1000]);
        assert!(stream.stalled.is_none());
    }
}
