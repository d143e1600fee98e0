//! Fairness: busy connections leave room for quiet ones, and connections that are lost all at once are cleaned up a few
//! at a time.

use std::sync::OnceLock;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;

/// How many connections that have used up a turn may run at the same time; no limit while unset.
static BUSY: OnceLock<Semaphore> = OnceLock::new();

/// Limits to `turns` how many connections of this process run at the same time that have more to do than fits into one
/// turn ([`sync::work`]). If there are more threads than that, quiet tasks find a free one: connections that are being
/// opened, heartbeats, health checks. Only the first call has an effect.
pub fn limit_busy_turns(turns: usize) {
    // Set once, by the process that has just made its threads.
    let _ = BUSY.set(Semaphore::new(turns));
}

/// Waits for the next turn of a connection, or of another task, that has used one up: behind all other tasks that are ready
/// on this thread, then behind all busy connections that came before. The permit is to be dropped when the connection has
/// caught up, or has used up this turn as well.
pub async fn next_busy_turn() -> Option<SemaphorePermit<'static>> {
    yield_now().await;
    // Never closed, so `acquire` cannot fail.
    BUSY.get()?.acquire().await.ok()
}

/// Connections that may be cleaned up before all other ready tasks get a turn. Each takes some tens of microseconds, so
/// this number holds up the others for less than a millisecond.
pub(crate) const AT_ONCE: usize = 8;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Waits until a lost connection may be cleaned up. When a network or a proxy in front fails, tens of thousands are
/// lost in the same moment; cleaned up all at once they would hold up the remaining connections for as long as all of
/// them take.
///
/// Only work up to the next await of the caller belongs to the turn; anything that takes longer does not, so no
/// connection waits here for another's peer.
pub async fn turn_to_end() {
    // Never closed, so there is no error to handle.
    let _turn = TURNS.acquire().await;
    yield_now().await;
}
