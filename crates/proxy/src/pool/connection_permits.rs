//! Permits for upstream connections, and the wait queue when all are taken.
//!
//! Waiters get released permits in turn. Meanwhile unused connections are closed to make room for others, the
//! longest idle first, whatever their credentials and virtual host. Of the clients whose credentials no
//! broker has accepted yet only a few may wait, see [`crate::auth_gate`].
//!
//! # Example
//! All 4,096 permits are taken; one connection is unused. A, B and C each need a connection of their own. The unused
//! connection is closed for A, which gets its permit. B and C wait, in this order, and without a handshake permit. When
//! another client's own connection with C's credentials and virtual host becomes unused, C takes it over, before B. The
//! next connection that ends leaves its permit to B; after 3 s without one B is refused with 506.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amqp::{Credentials, Fault, ReplyCode};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::Pool;
use crate::auth_gate::{Destination, HandshakePermit};
use crate::metrics::add;
use crate::refusal::Refusal;
use crate::upstream::FIRST_USE_TIMEOUT;

/// A permit for one of [`crate::PoolConfig::max_connections`], returned on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit(OwnedSemaphorePermit);

impl ConnectionPermit {
    /// Called when the connection exists: [`Pool::remove`] will return the permit.
    pub(super) fn keep(self) {
        self.0.forget();
    }
}

/// Notifies waiters that a connection may have become unused.
#[derive(Debug, Default)]
pub(crate) struct UnusedNotifier {
    /// Whether there may be an unused connection.
    some: AtomicBool,
    changed: Notify,
}

impl UnusedNotifier {
    /// Reports that a connection may have become unused.
    pub(crate) fn notify(&self) {
        self.some.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Reports a new connection. Wakes all waiters, because many may wait for the same connection.
    pub(super) fn notify_all(&self) {
        self.some.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// The outcome of [`Pool::enter`].
pub(super) enum PermitOutcome<'p, T> {
    /// An alternative has come up; no new connection is needed.
    Instead(T),
    /// The client may begin a handshake.
    Begin(HandshakePermit<'p>, ConnectionPermit),
}

impl Pool {
    /// Waits until `end` for permission to begin a handshake, and for a connection permit, unless there is an
    /// alternative `instead`. `accepted` is true for a session's credentials: a broker has accepted them, even if the
    /// auth gate has accepted other credentials of the same user since.
    ///
    /// # Errors
    /// 506 RESOURCE_ERROR when no connection permit is free, 320 CONNECTION_FORCED when the pool is draining or no handshake
    /// permit is free.
    pub(super) async fn enter<T>(
        &self,
        credentials: &Credentials,
        accepted: bool,
        destination: &Destination,
        end: Instant,
        instead: impl Fn() -> Option<T>,
    ) -> Result<PermitOutcome<'_, T>, Refusal> {
        let handshake = match accepted {
            true => self.auth_gate.enter_known(destination, end).await?,
            false => self.auth_gate.enter(credentials, destination, end).await?,
        };
        // Another client may have opened one meanwhile.
        if let Some(other) = instead() {
            return Ok(PermitOutcome::Instead(other));
        }
        if let Some(permit) = self.free_permit()? {
            return Ok(PermitOutcome::Begin(handshake, permit));
        }
        // A client with known credentials releases its handshake permit while it waits for a connection permit. Clients
        // with unknown credentials keep theirs, so that only that number of them may wait for connection permits, and
        // none of them holds a connection permit while it waits for a handshake permit.
        let unknown = (!handshake.is_known).then_some(handshake);
        let permit = match self.wait_for_permit(end, &instead).await? {
            Ok(permit) => permit,
            Err(other) => {
                // The notification may matter to the next waiter.
                self.unused.changed.notify_one();
                return Ok(PermitOutcome::Instead(other));
            }
        };
        let handshake = match unknown {
            Some(handshake) => handshake,
            None => self.auth_gate.enter_known(destination, end).await?,
        };
        match instead() {
            Some(other) => Ok(PermitOutcome::Instead(other)),
            None => Ok(PermitOutcome::Begin(handshake, permit)),
        }
    }

    /// The destination of a handshake with a virtual host: at the node `near` if that is up and one of several.
    pub(super) fn destination(&self, near: Option<SocketAddr>, virtual_host: &str) -> Destination {
        let node = near.filter(|node| self.endpoints.count().0 > 1 && self.endpoints.is_up(*node));
        Destination { node, virtual_host: Some(virtual_host.into()) }
    }

    /// A connection permit, for optional connections; never waits.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub(super) fn permit_at_once(&self) -> Result<ConnectionPermit, Refusal> {
        self.free_permit()?.ok_or_else(|| self.all_taken(""))
    }

    /// Whether all permits are taken.
    pub(super) fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// A permit, if one is free and no client waits for it.
    fn free_permit(&self) -> Result<Option<ConnectionPermit>, Refusal> {
        if self.draining.load(Ordering::Acquire) {
            return Err(Refusal::unreachable("shutting down"));
        }
        Ok(self.permits.clone().try_acquire_owned().ok().map(ConnectionPermit))
    }

    /// Waits in turn for a permit, or for an alternative `instead`.
    async fn wait_for_permit<T>(
        &self,
        end: Instant,
        instead: &impl Fn() -> Option<T>,
    ) -> Result<Result<ConnectionPermit, T>, Refusal> {
        add(&self.counters.connections_awaited, 1);
        let mut permit = std::pin::pin!(self.permits.clone().acquire_owned());
        let (began, mut is_worth_checking) = (Instant::now(), true);
        // Whether an unused connection was opened so recently that its client may still use it. It may be closed later.
        let mut is_any_new = false;
        loop {
            let mut changed = std::pin::pin!(self.unused.changed.notified());
            changed.as_mut().enable();
            if let Some(other) = instead() {
                return Ok(Err(other));
            }
            if is_worth_checking {
                is_any_new = self.close_longest_unused();
            }
            // No notification is sent when a channel comes to rest on a connection in use, so the waiter polls. The
            // longer it has waited, the less often it polls, because each search locks the pool's table.
            let now = Instant::now();
            let pause = (now - began).max(CHECK_INTERVAL);
            let pause = if is_any_new { pause.min(FIRST_USE_TIMEOUT) } else { pause };
            let next_check = end.min(now + pause);
            tokio::select! {
                biased;
                // The semaphore is never closed.
                Ok(permit) = &mut permit => {
                    let draining = self.draining.load(Ordering::Acquire);
                    return if draining { Err(Refusal::unreachable("shutting down")) } else { Ok(Ok(ConnectionPermit(permit))) };
                }
                () = changed => is_worth_checking = true,
                () = tokio::time::sleep_until(next_check) => {
                    if next_check == end {
                        return match instead() {
                            Some(other) => Ok(Err(other)),
                            None => Err(self.all_taken(", and none became free in time")),
                        };
                    }
                    // The connection that was closed to make room may still be closing.
                    is_worth_checking = std::mem::take(&mut is_any_new);
                }
            }
        }
    }

    /// Closes the longest-idle unused connection, if there is one. Returns true if all unused connections were opened too
    /// recently to be closed.
    fn close_longest_unused(&self) -> bool {
        if !self.unused.some.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut connections: Vec<_> = self.connections.lock().values().flatten().cloned().collect();
        connections.retain(|upstream| upstream.unused_since().is_some());
        connections.sort_by_cached_key(|upstream| upstream.unused_since());
        let is_closed = connections
            .iter()
            .any(|upstream| upstream.close_unused("connection limit reached", transport::now()));
        let is_any_new = !is_closed && connections.iter().any(|upstream| upstream.unused_since().is_some());
        if is_closed || is_any_new {
            // There may be more, for the next waiter.
            self.unused.some.store(true, Ordering::Release);
        }
        is_any_new
    }

    fn all_taken(&self, more: &str) -> Refusal {
        let text = format!("all {} upstream connections are in use{more}", self.config.max_connections);
        Refusal::Fault(Fault::new(ReplyCode::ResourceError, text))
    }

    /// Returns the permit of a connection that has ended.
    pub(super) fn free(&self) {
        self.permits.add_permits(1);
    }
}

/// Creates the semaphore of connection permits.
pub(super) fn connection_permits(count: usize) -> Arc<tokio::sync::Semaphore> {
    Arc::new(tokio::sync::Semaphore::new(count.min(tokio::sync::Semaphore::MAX_PERMITS)))
}

/// Minimum interval at which a waiter polls.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::PoolConfig;

    #[tokio::test(start_paused = true)]
    async fn an_alternative_that_appears_without_a_wakeup_is_found_at_the_deadline() {
        let pool = Pool::new(PoolConfig { max_connections: 0, ..PoolConfig::new(Vec::new()) });
        let looks = Cell::new(0);
        // There is no alternative when the client arrives, nor when it begins to wait.
        let instead = || (looks.replace(looks.get() + 1) == 2).then_some(());
        let end = Instant::now() + CHECK_INTERVAL / 2;
        let entered = pool
            .enter(&Credentials::plain("user", "right"), false, &Destination::default(), end, instead)
            .await;
        assert!(matches!(entered, Ok(PermitOutcome::Instead(()))));
    }
}
