//! Connections that are lost all at once are cleaned up a few at a time.

use tokio::sync::Semaphore;
use tokio::task::yield_now;

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
