//! When other tasks see a connection as busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sync::work;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Ended, Intent, Protocol, drive};
use crate::outbox::Outbox;

/// Answers each byte, stops at `q`, and pauses for as long as it is asked to.
struct Bytes {
    outbox: Arc<Outbox>,
    pauses: Arc<AtomicBool>,
    has_ended: bool,
}

impl Protocol for Bytes {
    fn handle_input(&mut self, input: &[u8], _now: Instant) -> usize {
        // In the first turn after a pause it still counts as paused.
        assert!(input[0] == b'q' || self.outbox.busy_since_rest().is_some(), "in its turn");
        self.outbox.append(|buf| buf.tail().extend_from_slice(&input[..1]));
        self.has_ended = input[0] == b'q';
        // A turn's work.
        work::charge(work::TURN, 1);
        1
    }
    fn handle_eof(&mut self) {}
    fn handle_nudge(&mut self, _now: Instant) {
        self.outbox.append(|buf| buf.tail().push(b'n'));
    }
    fn handle_capacity(&mut self) {}
    fn handle_written(&mut self, _now: Instant) {}
    fn handle_deadline(&mut self, _now: Instant) {}
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
    fn intent(&self) -> Intent {
        match (self.has_ended, self.pauses.load(Ordering::Relaxed)) {
            (true, _) => Intent::Finish,
            (_, true) => Intent::Pause,
            _ => Intent::Run,
        }
    }
}

/// The connection runs on the test's only thread while the test waits.
#[tokio::test]
async fn a_connection_is_busy_from_the_wake_up_to_the_end_of_its_work_unless_it_does_not_read() {
    let (mut near, mut far) = tokio::io::duplex(64);
    let (outbox, pauses) = (Arc::new(Outbox::new(1024)), Arc::new(AtomicBool::new(false)));
    let mut protocol = Bytes { outbox: Arc::clone(&outbox), pauses: Arc::clone(&pauses), has_ended: false };
    let connection = tokio::spawn({
        let outbox = Arc::clone(&outbox);
        async move { drive(&mut far, &mut protocol, &outbox, 1024, Duration::from_secs(60)).await }
    });
    let is_busy = || outbox.busy_since_rest().is_some();
    let rested = async || {
        while is_busy() {
            tokio::task::yield_now().await;
        }
    };
    let mut answer = [0; 2];
    near.write_all(b"ab").await.unwrap();
    near.read_exact(&mut answer[..1]).await.unwrap();
    assert!(is_busy(), "the other byte did not fit into the turn");
    near.read_exact(&mut answer[1..]).await.unwrap();
    rested().await;
    outbox.nudge();
    assert!(is_busy(), "it has been woken");
    near.read_exact(&mut answer[..1]).await.unwrap();
    rested().await;
    // Its peer's byte wakes it as well.
    near.write_all(b"c").await.unwrap();
    assert!(is_busy());
    near.read_exact(&mut answer[..1]).await.unwrap();
    rested().await;
    pauses.store(true, Ordering::Relaxed);
    outbox.nudge();
    near.read_exact(&mut answer[..1]).await.unwrap();
    rested().await;
    outbox.nudge();
    assert!(!is_busy(), "it does not read, however often it is woken");
    near.read_exact(&mut answer[..1]).await.unwrap();
    pauses.store(false, Ordering::Relaxed);
    outbox.nudge();
    near.write_all(b"q").await.unwrap();
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"nq");
    assert!(matches!(connection.await.unwrap(), Ended::Finished));
}
