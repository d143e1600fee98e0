//! Bounds the memory of responses that are being sent.
//!
//! Only a few responses are produced at once, but each stays in memory until its client has read it. Their
//! bytes are therefore counted until they are freed, and at the bound no request starts that may add to them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use tokio::sync::Notify;

use crate::http::ActiveRequest;
use crate::pieces::{Pieces, PiecewiseBody};

/// Counts the bytes of responses that have not been sent yet.
#[derive(Default)]
pub(super) struct Answers {
    unread: AtomicUsize,
    freed: Notify,
}

/// Bytes of one response.
struct CountedPiece {
    bytes: Vec<u8>,
    all: Arc<Answers>,
    /// Set on the last piece. Prevents eviction of the connection until the response is sent.
    _at_work: Option<ActiveRequest>,
}

impl Answers {
    /// Counts each piece of a response until it is dropped, once it has been written or abandoned.
    pub(super) fn keep(self: &Arc<Self>, pieces: Pieces, at_work: Option<ActiveRequest>) -> PiecewiseBody {
        let mut pieces = pieces.into_pieces().peekable();
        let mut counted = Vec::new();
        let mut at_work = at_work;
        while let Some(bytes) = pieces.next() {
            self.unread.fetch_add(bytes.capacity(), Ordering::Relaxed);
            let at_work = at_work.take_if(|_| pieces.peek().is_none());
            counted.push(Bytes::from_owner(CountedPiece { bytes, all: Arc::clone(self), _at_work: at_work }));
        }
        counted.into_iter().collect()
    }

    /// Whether another response may be produced. Its size is unknown, so the responses then in progress can
    /// exceed the bound.
    pub(super) fn have_capacity(&self) -> bool {
        self.unread.load(Ordering::Relaxed) < MAX_UNREAD
    }

    #[cfg(test)]
    pub(super) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Waits until there is capacity.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Registered before the check, so that no notification is missed.
            freed.as_mut().enable();
            if self.have_capacity() {
                return;
            }
            freed.await;
        }
    }
}

impl AsRef<[u8]> for CountedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        self.all.unread.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
        self.all.freed.notify_waiters();
    }
}

/// Bytes of unsent responses at which the next request has to wait: two lists of some 100,000 queues, or an
/// export of the largest definitions that can be imported again, plus as much besides.
pub(super) const MAX_UNREAD: usize = 128 << 20;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::http::ActiveRequests;

    #[tokio::test]
    async fn a_piece_of_an_answer_counts_until_the_last_of_it_is_gone() {
        let answers = Arc::new(Answers::default());
        let mut written = Pieces::from(vec![0; MAX_UNREAD]);
        written.append(Pieces::from(vec![0; 7]));
        let mut body = answers.keep(written, None);
        assert!(!answers.have_capacity());
        let mut first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let rest = first.split_off(1);
        drop(first);
        assert!(!answers.have_capacity(), "all of it is in memory still");
        drop(rest);
        assert!(answers.have_capacity());
        assert_eq!(answers.unread(), 7);
        drop(body);
        assert_eq!(answers.unread(), 0);
    }

    #[tokio::test]
    async fn a_connection_is_at_work_until_the_last_piece_is_gone() {
        let (answers, work) = (Arc::new(Answers::default()), ActiveRequests::default());
        let mut written = Pieces::from(vec![0; 9]);
        written.append(Pieces::from(vec![0; 7]));
        let mut body = answers.keep(written, Some(work.begin()));
        drop(body.frame().await);
        assert!(!work.is_over());
        let last = body.frame().await;
        assert!(body.frame().await.is_none() && !work.is_over());
        drop(last);
        assert!(work.is_over());
    }
}
