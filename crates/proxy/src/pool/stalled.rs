//! The replacement of a connection that the broker has stopped reading: see [`crate::upstream`]'s `stall`.

use std::sync::Arc;
use std::time::Duration;

use super::{PlacementRequest, Pool, background};
use crate::upstream::Upstream;

impl Pool {
    /// Looks for another connection at the broker of a stalled one until that answers, and opens one if there is none that
    /// clients may use meanwhile.
    pub(crate) fn replace_stalled(self: &Arc<Self>, upstream: &Arc<Upstream>) {
        let (pool, upstream) = (self.clone(), upstream.clone());
        background::run(async move {
            while upstream.is_stalled() {
                if Box::pin(pool.is_answered_beside(&upstream)).await {
                    return upstream.set_replaced(transport::now());
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }

    /// Whether the broker of a stalled connection answers on a new one: that clients use from then on, or, if they have another
    /// one or may not have more, one that is closed once the broker has greeted.
    async fn is_answered_beside(self: &Arc<Self>, stalled: &Upstream) -> bool {
        let (credentials, role) = (stalled.credentials(), stalled.role());
        let (mut count, mut has_capacity) = (0, false);
        self.each(&credentials, &stalled.virtual_host, |other| {
            if let Some(shared) = other.shared(false, role).filter(|shared| !shared.is_stalled) {
                count += 1;
                has_capacity |= shared.load.is_some();
            }
        });
        let node = stalled.endpoint.socket;
        let is_wanted = stalled.is_shared().0 && count < self.config.max_shared_connections;
        if !is_wanted || has_capacity || self.is_full() {
            return self.ask(&stalled.endpoint).await.is_ok();
        }
        let sought = PlacementRequest { confirm: false, role, near: Some(node) };
        match self.open_another(&credentials, &stalled.virtual_host, sought).await {
            // Another node says nothing of this one, which may be frozen.
            Ok(opened) => opened.endpoint.socket == node,
            Err(refusal) if refusal.is_outage() => false,
            // The user may have all the connections that it may have.
            Err(_) => self.ask(&stalled.endpoint).await.is_ok(),
        }
    }
}

/// The pause between attempts: a broker that refuses connections is not asked all the time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
