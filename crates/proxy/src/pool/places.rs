//! The places that there are for upstream connections, and waiting for one when all are taken.
//!
//! Those who wait get the places that become free in turn. Meanwhile connections that nobody uses make room for others,
//! the one first that has been idle for longest, whatever credentials and virtual host it is for. Of those whose
//! credentials no broker has accepted yet only a few stand in line, see [`crate::doorkeeper`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::Pool;
use crate::doorkeeper::Permit;
use crate::metrics::add;
use crate::refusal::Refusal;

/// One of [`crate::PoolConfig::max_connections`], given back when dropped.
#[derive(Debug)]
pub(super) struct Place(OwnedSemaphorePermit);

impl Place {
    /// The connection exists now; [`Pool::remove`] will give the place back.
    pub(super) fn keep(self) {
        self.0.forget();
    }
}

/// Tells that a connection may have come out of use.
#[derive(Debug, Default)]
pub(crate) struct Unused {
    /// It is worth looking for one.
    some: AtomicBool,
    told: Notify,
}

impl Unused {
    /// A connection may have come out of use.
    pub(crate) fn tell(&self) {
        self.some.store(true, Ordering::Release);
        self.told.notify_one();
    }

    /// There is a connection that was not there before. Many may wait for the same: all of them look.
    pub(super) fn tell_all(&self) {
        self.some.store(true, Ordering::Release);
        self.told.notify_waiters();
    }
}

/// What a client that needs a connection gets.
pub(super) enum Entered<'p, T> {
    /// It need not open one.
    Instead(T),
    /// It may begin a handshake.
    Begin(Permit<'p>, Place),
}

impl Pool {
    /// Waits for the permission to begin a handshake, and until `end` for a place, unless there is something `instead`. A
    /// session's credentials were `accepted` by a broker, though others of the same user may have been since.
    ///
    /// # Errors
    /// 506 RESOURCE_ERROR when there is no place, 320 CONNECTION_FORCED when the pool is draining.
    pub(super) async fn enter<T>(
        &self,
        credentials: &Credentials,
        accepted: bool,
        end: Instant,
        instead: impl Fn() -> Option<T>,
    ) -> Result<Entered<'_, T>, Refusal> {
        let permit = match accepted {
            true => self.doorkeeper.enter_known().await,
            false => self.doorkeeper.enter(credentials).await,
        };
        // Somebody else may have opened one meanwhile.
        if let Some(other) = instead() {
            return Ok(Entered::Instead(other));
        }
        if let Some(place) = self.free_place()? {
            return Ok(Entered::Begin(permit, place));
        }
        // Nobody's handshake waits for somebody known who has no place for one. Strangers keep the permission, so that only as
        // many of them stand in line, and none waits for it with a place in hand.
        let stranger = (!permit.is_known).then_some(permit);
        let place = match self.wait_for_place(end, &instead).await? {
            Ok(place) => place,
            Err(other) => {
                // What told this one may be worth knowing for the next one who waits.
                self.unused.told.notify_one();
                return Ok(Entered::Instead(other));
            }
        };
        let permit = match stranger {
            Some(permit) => permit,
            None => self.doorkeeper.enter_known().await,
        };
        match instead() {
            Some(other) => Ok(Entered::Instead(other)),
            None => Ok(Entered::Begin(permit, place)),
        }
    }

    /// A place, for what can do without.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub(super) fn place_at_once(&self) -> Result<Place, Refusal> {
        self.free_place()?.ok_or_else(|| self.all_taken(""))
    }

    /// Whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// A place, if one is free and nobody waits for it.
    fn free_place(&self) -> Result<Option<Place>, Refusal> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Refusal::unreachable("shutting down"));
        }
        Ok(self.places.clone().try_acquire_owned().ok().map(Place))
    }

    /// Waits in turn for a place, or for something `instead`.
    async fn wait_for_place<T>(
        &self,
        end: Instant,
        instead: &impl Fn() -> Option<T>,
    ) -> Result<Result<Place, T>, Refusal> {
        add(&self.counters.connections_awaited, 1);
        let mut place = std::pin::pin!(self.places.clone().acquire_owned());
        let (began, mut was_told) = (Instant::now(), true);
        loop {
            let mut told = std::pin::pin!(self.unused.told.notified());
            told.as_mut().enable();
            if let Some(other) = instead() {
                return Ok(Err(other));
            }
            if was_told {
                self.make_room();
            }
            // Nobody tells of a channel that comes to rest on a connection in use. The longer one has waited the less often it
            // looks, for each look costs all others a moment of the pool's table.
            let now = Instant::now();
            let look_again = end.min(now + (now - began).max(LOOK_AGAIN));
            tokio::select! {
                biased;
                // The semaphore is never closed.
                Ok(permit) = &mut place => {
                    let draining = self.draining.load(Ordering::Acquire);
                    return if draining { Err(Refusal::unreachable("shutting down")) } else { Ok(Ok(Place(permit))) };
                }
                () = told => was_told = true,
                () = tokio::time::sleep_until(look_again) => {
                    if look_again == end {
                        return match instead() {
                            Some(other) => Ok(Err(other)),
                            None => Err(self.all_taken(", and none became free in time")),
                        };
                    }
                    // The room that was made may still be on its way.
                    was_told = false;
                }
            }
        }
    }

    /// Closes the connection that nobody has used for longest, if there is one.
    fn make_room(&self) {
        if !self.unused.some.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut connections: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        connections.retain(|upstream| upstream.unused_since().is_some());
        connections.sort_by_cached_key(|upstream| upstream.unused_since());
        if connections.into_iter().any(|upstream| upstream.close_unused("room for others")) {
            // There may be more, for the next one who waits.
            self.unused.some.store(true, Ordering::Release);
        }
    }

    fn all_taken(&self, more: &str) -> Refusal {
        let text = format!("all {} upstream connections are in use{more}", self.config.max_connections);
        Refusal::Fault(Fault::new(ReplyCode::ResourceError, text))
    }

    /// A connection has ended.
    pub(super) fn free(&self) {
        self.places.add_permits(1);
    }
}

/// So many places.
pub(super) fn places(count: usize) -> Arc<tokio::sync::Semaphore> {
    Arc::new(tokio::sync::Semaphore::new(count.min(tokio::sync::Semaphore::MAX_PERMITS)))
}

/// After this time at least one who waits looks by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::PoolConfig;

    #[tokio::test]
    async fn what_came_without_a_word_is_found_at_the_end() {
        let pool = Pool::new(PoolConfig { max_connections: 0, ..PoolConfig::new(Vec::new()) });
        let looks = Cell::new(0);
        // When it comes, and when it begins to wait, there is nothing yet.
        let instead = || (looks.replace(looks.get() + 1) == 2).then_some(());
        let end = Instant::now() + LOOK_AGAIN / 2;
        let entered = pool.enter(&Credentials::plain("user", "right"), false, end, instead).await;
        assert!(matches!(entered, Ok(Entered::Instead(()))));
    }
}
