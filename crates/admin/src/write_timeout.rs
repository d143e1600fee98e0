//! Bounds how long a peer may accept none of the bytes written to it, and how long a write delays others.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes fail with `TimedOut` after `bound` without progress, and are small. Reads are passed on.
pub(crate) struct WriteTimeoutStream<S> {
    stream: S,
    bound: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
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

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let attempt =
            Pin::new(&mut this.stream).poll_write(context, &bytes[..bytes.len().min(WRITTEN_AT_ONCE)]);
        this.watch(context, attempt)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let (mut some, mut count, mut left) = ([IoSlice::new(&[]); BUFFERS_AT_ONCE], 0, WRITTEN_AT_ONCE);
        for (part, buffer) in some.iter_mut().zip(buffers) {
            *part = IoSlice::new(&buffer[..buffer.len().min(left)]);
            left -= part.len();
            count += 1;
        }
        let attempt = Pin::new(&mut this.stream).poll_write_vectored(context, &some[..count]);
        this.watch(context, attempt)
    }

    /// Without it, hyper would copy a response of any length, at once, to have it behind its head.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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

/// Bytes of a write. A task may make 128 before other tasks have their turn on its thread (tokio's cooperative scheduling), and
/// a megabyte takes about as long to copy to a socket as a session's turn. A scrape of many objects has tens of megabytes, all
/// of which a reader on another core may take as they are written.
const WRITTEN_AT_ONCE: usize = 8 << 10;

/// Maximum buffers per write: a response's head and body are two.
const BUFFERS_AT_ONCE: usize = 4;

#[cfg(test)]
mod tests {
    use std::future::{Future as _, poll_fn};
    use std::pin::pin;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_ends_the_write() {
        let (mine, _theirs) = tokio::io::duplex(16);
        let mut stream = WriteTimeoutStream::new(mine, Duration::from_millis(10));
        let error = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_reader_that_takes_a_little_at_a_time_is_served() {
        let (mine, mut theirs) = tokio::io::duplex(16);
        let mut stream = WriteTimeoutStream::new(mine, Duration::from_secs(60));
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

    #[tokio::test]
    async fn a_reader_that_takes_everything_at_once_does_not_keep_other_tasks_from_their_turn() {
        const WHOLE: usize = 16 << 20;
        let response = vec![7; WHOLE];
        let (head, body) = response.split_at(100);
        let (mine, mut theirs) = tokio::io::duplex(WHOLE);
        let mut stream = WriteTimeoutStream::new(mine, Duration::from_secs(60));
        assert!(stream.is_write_vectored());
        let mut turns = 0;
        {
            let write = async {
                let written = stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]).await.unwrap();
                assert_eq!(written, WRITTEN_AT_ONCE, "both in one write");
                stream.write_all(&response[written..]).await.unwrap();
            };
            let mut write = pin!(write);
            poll_fn(|context| {
                turns += 1;
                write.as_mut().poll(context)
            })
            .await;
        }
        assert!(turns >= WHOLE / (128 * WRITTEN_AT_ONCE), "{turns} turns");
        drop(stream);
        let mut taken = Vec::new();
        theirs.read_to_end(&mut taken).await.unwrap();
        assert!(taken == response);
    }
}
