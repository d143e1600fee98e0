//! The replacement of a connection that the broker has stopped reading: see [`crate::upstream`]'s `stall`.

use std::sync::Arc;
use std::time::Duration;

use super::{PlacementRequest, Pool, background};
use crate::upstream::Upstream;

impl Pool {
    /// Checks, until it succeeds, whether the broker of a stalled connection answers on another connection. Opens one if
    /// clients have no other connection that they may use.
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

    /// Whether the broker of a stalled connection answers on a new connection. Clients use the new one from then on; if they
    /// have another one already, or may not have more, it is closed once the broker has sent `connection.start`.
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
            // An answer of another node does not tell whether this node is frozen.
            Ok(opened) => opened.endpoint.socket == node,
            Err(refusal) if refusal.is_outage() => false,
            // The user may have reached its connection limit.
            Err(_) => self.ask(&stalled.endpoint).await.is_ok(),
        }
    }
}

/// The pause between attempts, for a broker that refuses connections at once.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
