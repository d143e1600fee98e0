//! Waiting out an outage of the upstreams (P7).

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::Pool;
use crate::link::ClientLink;
use crate::refusal::Refusal;

impl Pool {
    /// Waits while upstreams let clients in only to lose them again, but not beyond `end`.
    pub(crate) async fn wait_while_failing(&self, end: Instant) {
        if self.endpoints.keep_failing() {
            // At the end of its time the caller tries once more.
            let _ = tokio::time::timeout_at(end, self.endpoints.healed()).await;
        }
    }

    /// Waits until an upstream answers again. While none does, nothing is tried but the addresses themselves, by
    /// [`super::endpoints`], however many clients wait.
    ///
    /// # Errors
    /// When `end` has come, or waiting is no use: the pool is draining or the client is gone.
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
        let healed = tokio::time::timeout_at(end, self.endpoints.healed()).await;
        if healed.is_err() || Instant::now() >= end {
            return Err(Refusal::in_vain(limit, refusal));
        }
        Ok(())
    }

    /// Until when a client that arrives now waits for an upstream to answer.
    pub(super) fn arrival_end(&self) -> Instant {
        Instant::now() + self.config.arrival_max
    }

    /// The same for a client that has just arrived: it is let in only by an upstream's word (P1), and refused otherwise.
    ///
    /// # Errors
    /// When `end` has come, the refusal is no outage, or the pool is draining.
    pub(super) async fn wait_for_return(&self, refusal: Refusal, end: Instant) -> Result<(), Refusal> {
        if !refusal.is_outage() || self.draining.load(Ordering::Acquire) || Instant::now() >= end {
            return Err(refusal);
        }
        tokio::time::timeout_at(end, self.endpoints.healed()).await.map_err(|_| refusal)
    }
}
