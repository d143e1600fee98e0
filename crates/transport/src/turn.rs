//! Fairness: busy connections leave threads for quiet ones, and connections that are lost all at once are cleaned up a few
//! at a time.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;

/// How many connections that have used up a turn may run at the same time; unset means no limit.
static BUSY: OnceLock<Semaphore> = OnceLock::new();

/// How many TLS handshakes may take a step at the same time; unset means no limit. A step with a signature occupies a
/// thread for up to some milliseconds, and any client can start any number of handshakes. Handshakes do not wait for busy
/// connections, which may never become idle.
pub(crate) struct HandshakeTurns(OnceLock<Semaphore>);

/// The handshakes of clients.
pub(crate) static ACCEPTING: HandshakeTurns = HandshakeTurns(OnceLock::new());

/// Handshakes with servers, which do not wait for clients' handshakes.
pub(crate) static CONNECTING: HandshakeTurns = HandshakeTurns(OnceLock::new());

/// Limits to `turns` how many busy connections, those with more work than fits into one turn ([`sync::work`]), run at the
/// same time, and how many TLS handshakes take a step. With more threads than that, quiet tasks find a free one: new
/// connections, heartbeats, health checks. A turn that exceeds its budget wakes a thread. Only the first call has an
/// effect.
pub fn limit_busy_turns(turns: usize) {
    // The process sets it once, right after it has started its threads.
    let _ = BUSY.set(Semaphore::new(turns));
    ACCEPTING.limit(turns);
    CONNECTING.limit(turns);
    sync::work::on_overrun(crate::blocking::relieve);
}

impl HandshakeTurns {
    fn limit(&self, turns: usize) {
        let _ = self.0.set(Semaphore::new(turns));
    }

    /// Waits for a turn. `None` if there is no limit.
    pub(crate) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so `acquire` cannot fail.
        self.0.get()?.acquire().await.ok()
    }

    /// Runs a handshake. Each of its steps takes a turn; waiting for the peer does not.
    pub(crate) async fn run<T>(&self, handshake: impl Future<Output = T>) -> T {
        let mut handshake = pin!(handshake);
        loop {
            let turn = self.next().await;
            let step = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
            drop(turn);
            if let Poll::Ready(outcome) = step {
                return outcome;
            }
            // Until the peer has sent or taken something.
            let mut is_woken = false;
            poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        }
    }
}

/// Waits for the next turn of a task that has used one up: after all other ready tasks of this thread, then after all busy
/// connections that came before. Drop the permit when the task has caught up, or has used up this turn as well.
pub async fn next_busy_turn() -> Option<SemaphorePermit<'static>> {
    yield_now().await;
    // Never closed, so `acquire` cannot fail.
    BUSY.get()?.acquire().await.ok()
}

/// Connections that may be cleaned up on a thread before its other ready tasks run. Each takes some tens of microseconds,
/// so this delays other tasks by less than a millisecond.
pub(crate) const AT_ONCE: usize = 8;

thread_local! {
    /// One per thread, since the clean-up delays the other tasks of its own thread.
    static TURNS: Arc<Semaphore> = Arc::new(Semaphore::new(AT_ONCE));
}

/// Waits until a lost connection may be cleaned up. When a network or a load balancer fails, tens of thousands are lost in
/// the same moment. Cleaning them all up at once would delay the remaining connections for as long as all of them take.
///
/// The turn covers only the work up to the caller's next await, so no connection waits here for another's peer.
pub async fn turn_to_end() {
    let turns = TURNS.with(Arc::clone);
    // Never closed, so there is no error to handle.
    let _turn = turns.acquire().await;
    yield_now().await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_handshake_has_no_turn_while_it_waits_for_its_peer() {
        let turns = HandshakeTurns(OnceLock::new());
        turns.limit(1);
        let (said, steps) = (Notify::new(), AtomicUsize::new(0));
        let handshake = || async {
            steps.fetch_add(1, Ordering::Relaxed);
            said.notified().await;
            steps.fetch_add(1, Ordering::Relaxed);
        };
        let others = async {
            while steps.load(Ordering::Relaxed) < 2 {
                yield_now().await;
            }
            // Both wait, and a third gets through.
            turns.run(std::future::ready(())).await;
            let turn = turns.next().await;
            said.notify_waiters();
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(steps.load(Ordering::Relaxed), 2, "there is no turn for either");
            drop(turn);
        };
        tokio::join!(turns.run(handshake()), turns.run(handshake()), others);
        assert_eq!(steps.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_handshakes_take_a_step_than_there_are_turns() {
        let turns = Arc::new(HandshakeTurns(OnceLock::new()));
        turns.limit(2);
        let (at_work, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let handshakes = (0..100).map(|_| {
            let (turns, at_work, most) = (Arc::clone(&turns), Arc::clone(&at_work), Arc::clone(&most));
            let handshake = poll_fn(move |_| {
                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                at_work.fetch_sub(1, Ordering::SeqCst);
                Poll::Ready(())
            });
            tokio::spawn(async move { turns.run(handshake).await })
        });
        for handshake in handshakes.collect::<Vec<_>>() {
            handshake.await.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= 2);
    }
}
