//! Clients that are let in without asking a broker, because their caller answers for them.

use std::sync::Arc;

use amqp::Credentials;

use super::{ClientInfo, ClientSide, Login, Pool};
use crate::session::ProxySession;

impl Pool {
    /// A login for which the caller answers instead of a broker: it knows that one has accepted these credentials, and
    /// that none can be asked now. For a spool, which keeps such a client's messages until a broker has decided.
    pub fn vouched(&self, credentials: Credentials, client: ClientInfo) -> Login {
        Login { credentials: self.shared_copy(credentials), info: client, begun: None, is_vouched: true }
    }

    /// Opens a virtual host for a client of [`Self::vouched`] without asking a broker. Its channels open at once; whatever
    /// else needs the upstream waits as for any client during an outage (P7), and is then done with these credentials or
    /// refused.
    pub fn open_vouched(
        self: &Arc<Self>,
        login: Login,
        virtual_host: &str,
        client: ClientSide,
    ) -> ProxySession {
        let Login { credentials, info, .. } = login;
        ProxySession::new(self.clone(), credentials, virtual_host, &info, client, transport::now())
    }
}

impl Login {
    /// Whether it was vouched for, and no broker has been asked.
    pub fn is_vouched(&self) -> bool {
        self.is_vouched
    }
}
