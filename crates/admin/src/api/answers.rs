//! Bounds the memory of responses that are being sent.
//!
//! Only a few responses are produced at once, but each stays in memory until its client has read it. Their
//! bytes are therefore counted until they are freed, and at the bound no request starts that may add to them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use tokio::sync::Notify;

use crate::http::AtWork;

/// Counts the bytes of responses that have not been sent yet.
#[derive(Default)]
pub(super) struct Answers {
    unread: AtomicUsize,
    freed: Notify,
}

/// The bytes of one response.
struct CountedAnswer {
    bytes: Vec<u8>,
    all: Arc<Answers>,
    /// Keeps the connection from being closed to make room until the response is sent.
    _at_work: Option<AtWork>,
}

impl Answers {
    /// Counts a response until its last piece is dropped, once it has been written or abandoned.
    pub(super) fn keep(self: &Arc<Self>, bytes: Vec<u8>, at_work: Option<AtWork>) -> Bytes {
        self.unread.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Bytes::from_owner(CountedAnswer { bytes, all: Arc::clone(self), _at_work: at_work })
    }

    /// Whether another response may be produced. Its size is unknown, so the responses then in progress can
    /// exceed the bound.
    pub(super) fn have_room(&self) -> bool {
        self.unread.load(Ordering::Relaxed) < MOST_UNREAD
    }

    #[cfg(test)]
    pub(super) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Waits until there is room.
    pub(super) async fn room(&self) {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Registered before the check, so that no notification is missed.
            freed.as_mut().enable();
            if self.have_room() {
                return;
            }
            freed.await;
        }
    }
}

impl AsRef<[u8]> for CountedAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedAnswer {
    fn drop(&mut self) {
        self.all.unread.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
        self.all.freed.notify_waiters();
    }
}

/// Bytes of unsent responses at which the next request has to wait: two lists of some 100,000 queues, or an
/// export of the largest definitions that can be imported again, plus as much besides.
pub(super) const MOST_UNREAD: usize = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_until_the_last_of_it_is_gone() {
        let answers = Arc::new(Answers::default());
        let mut first = answers.keep(vec![0; MOST_UNREAD], None);
        assert!(!answers.have_room());
        let rest = first.split_off(1);
        drop(first);
        assert!(!answers.have_room(), "all of it is in memory still");
        drop(rest);
        assert!(answers.have_room());
        assert_eq!(answers.unread(), 0);
    }
}
