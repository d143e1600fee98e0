//! A bound on the memory of answers that are being sent.
//!
//! Threads make few answers at once, but each stays in memory until its reader has taken it. So bytes are counted
//! until they are freed, and while there are too many no request starts that may add to them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use tokio::sync::Notify;

use crate::http::AtWork;

/// Bytes of answers that are not sent yet.
#[derive(Default)]
pub(super) struct Answers {
    unread: AtomicUsize,
    freed: Notify,
}

/// The bytes of one.
struct Answer {
    bytes: Vec<u8>,
    all: Arc<Answers>,
    /// Its connection need not make room meanwhile.
    _at_work: Option<AtWork>,
}

impl Answers {
    /// Counts an answer until the last of it is dropped, which is when it has been written or given up.
    pub(super) fn keep(self: &Arc<Self>, bytes: Vec<u8>, at_work: Option<AtWork>) -> Bytes {
        self.unread.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Bytes::from_owner(Answer { bytes, all: Arc::clone(self), _at_work: at_work })
    }

    /// Whether another may be made. It may be of any size, so there is more than the bound by those that are at work.
    pub(super) fn have_room(&self) -> bool {
        self.unread.load(Ordering::Relaxed) < MOST_UNREAD
    }

    #[cfg(test)]
    pub(super) fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Waits for that.
    pub(super) async fn room(&self) {
        loop {
            let mut freed = pin!(self.freed.notified());
            // Before looking, so that nothing is missed.
            freed.as_mut().enable();
            if self.have_room() {
                return;
            }
            freed.await;
        }
    }
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.all.unread.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
        self.all.freed.notify_waiters();
    }
}

/// Bytes of answers at which the next has to wait: two lists of some 100,000 queues, or one of the largest
/// definitions that could be loaded again and as much beside it.
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
