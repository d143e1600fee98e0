//! Whose turn it is: busy connections leave room for quiet ones, and connections that are lost all at once are cleaned up
//! a few at a time.

use std::sync::OnceLock;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;

/// How many connections may go on at the same time that have used up a turn; no limit while unset.
static BUSY: OnceLock<Semaphore> = OnceLock::new();

/// From now on at most `turns` connections of this process go on at the same time that have more to do than fits into one
/// turn ([`sync::work`]). With more threads than that, whoever is quiet finds one that is free: connections that are being
/// opened, heartbeats, health checks. The first call counts.
pub fn limit_busy_turns(turns: usize) {
    // Set once, by the process that has just made its threads.
    let _ = BUSY.set(Semaphore::new(turns));
}

/// Waits for the next turn of a connection that has used one up: behind all other tasks that are ready on this thread, then
/// behind all busy connections that came before. To be dropped when the connection has caught up, or has used up this turn
/// as well.
pub(crate) async fn next_busy_turn() -> Option<SemaphorePermit<'static>> {
    yield_now().await;
    // Never closed, so that an error cannot come.
    BUSY.get()?.acquire().await.ok()
}

/// Connections that may be cleaned up before everybody else who is ready gets a turn. Each takes some tens of
/// microseconds, so that this many hold up the others for less than a millisecond.
pub(crate) const AT_ONCE: usize = 8;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Waits until a lost connection may be cleaned up. When a network or a proxy in front fails, tens of thousands are lost
/// in the same moment; worked off as they come they would hold up the living for as long as all of them take.
///
/// What is done until the next await belongs to the turn, whatever takes longer does not: nobody waits for a peer's
/// patience here.
pub async fn turn_to_end() {
    // Never closed, so that there is nothing to do about an error.
    let _turn = TURNS.acquire().await;
    yield_now().await;
}
