//! Waiting out an outage of the upstreams (P7).

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Pool;
use crate::link::ClientLink;
use crate::refusal::Refusal;

impl Pool {
    /// Waits while all upstreams keep accepting connections and losing them again, but not beyond `end`.
    pub(crate) async fn wait_while_failing(&self, end: Instant) {
        if self.endpoints.all_failing() {
            // On timeout, the caller tries once more.
            let _ = tokio::time::timeout_at(end, self.endpoints.healed()).await;
        }
    }

    /// Waits until an upstream answers again. While none does, only the addresses themselves are probed, by
    /// [`super::endpoints`], however many clients wait.
    ///
    /// # Errors
    /// When `end` has come, or waiting is pointless: the pool is draining or the client is gone.
    pub(crate) async fn wait_out(
        &self,
        refusal: Refusal,
        end: Instant,
        client: &ClientLink,
    ) -> Result<(), Refusal> {
        let limit = self.config.outage_max;
        if limit.is_zero() || self.draining.load(Ordering::Acquire) || client.is_gone() {
            return Err(refusal);
        }
        let healed = tokio::time::timeout_at(end, self.wait_until_up_after(&refusal)).await;
        if healed.is_err() || Instant::now() >= end {
            return Err(Refusal::outage_timeout(limit, refusal));
        }
        Ok(())
    }

    /// The time until which a client that arrives now waits for an upstream to answer.
    pub(super) fn arrival_end(&self) -> Instant {
        Instant::now() + self.config.arrival_max
    }

    /// Like [`Self::wait_out`], for a client that has just arrived: it needs an upstream's verdict to be let
    /// in (P1), and is refused otherwise.
    ///
    /// # Errors
    /// When `end` has come, the refusal is no outage, or the pool is draining.
    pub(super) async fn wait_for_return(&self, refusal: Refusal, end: Instant) -> Result<(), Refusal> {
        if !refusal.is_outage() || self.draining.load(Ordering::Acquire) || Instant::now() >= end {
            return Err(refusal);
        }
        tokio::time::timeout_at(end, self.wait_until_up_after(&refusal)).await.map_err(|_| refusal)
    }

    /// Waits until it is worth trying again.
    async fn wait_until_up_after(&self, refusal: &Refusal) {
        if refusal.is_of_virtual_host() {
            // The broker answers, so it is not being probed, and nothing would notify.
            tokio::time::sleep(VIRTUAL_HOST_PAUSE).await;
        }
        self.endpoints.healed().await;
    }
}

/// The pause before retrying a virtual host that the broker could not open.
const VIRTUAL_HOST_PAUSE: Duration = Duration::from_secs(1);
