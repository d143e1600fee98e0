//! Clients that open a virtual host before a broker has decided about their login.

use std::sync::Arc;
use std::time::Duration;

use amqp::Credentials;

use super::{ClientInfo, ClientSide, Pool};
use crate::session::ProxySession;

/// Longest interval between two checks of [`Pool::wait_for_broker`].
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Pool {
    /// Opens a virtual host for a client without asking a broker. For a spool, which knows that a broker has accepted
    /// these credentials before. The session's channels open at once. Everything that needs the upstream waits as during
    /// an outage (P7), and is then carried out with these credentials or refused.
    pub fn open_unverified(
        self: &Arc<Self>,
        credentials: Credentials,
        info: &ClientInfo,
        virtual_host: &str,
        client: ClientSide,
    ) -> ProxySession {
        let credentials = self.shared_copy(credentials);
        ProxySession::new(self.clone(), credentials, virtual_host, info, client, transport::now())
    }

    /// Waits while it is known that no broker answers, without asking one.
    pub async fn wait_for_broker(&self) {
        while self.answers() == Some(false) {
            // The notification may concern another address than the one that answers first.
            let _ = tokio::time::timeout(MAX_CHECK_INTERVAL, self.endpoints.healed()).await;
        }
    }
}
