//! Sessions of other protocols in front of an upstream, which they use over AMQP, through the pool.
//!
//! - [`client`]: an AMQP client within this process, connected to a session of the pool.
//! - [`confirms`]: the confirms of its messages.
//! - [`open_refusal`]: the reasons why a virtual host was not opened. [`retry`]: the pauses between attempts.
//! - [`multiplexing`]: live subscriptions of many clients that share one queue.
//!
//! Invariants: everything that a client of another protocol does is done upstream as its own user. Nothing is
//! acknowledged to it before the upstream has confirmed it.

pub(crate) mod client;
pub(crate) mod confirms;
pub(crate) mod multiplexing;
pub(crate) mod open_refusal;
pub(crate) mod retry;

use std::sync::Arc;

use amqp::handshake::{Negotiated, OpenRequest};
use amqp::{Capabilities, Credentials, FieldTable};
use transport::InnerOutbox;

use self::client::AmqpClient;
use crate::backend::{BackendLogin, LoginError, LoginRequest};
use crate::server::Shared;

/// Channels that a client of another protocol uses: for publishing, for consuming, for MQTT's requests, and two for the state
/// of an MQTT session. MQTT's publishing channel may be opened again while it is being closed, and each of its 256 shared
/// subscriptions has a channel, or two while one is being replaced.
const CHANNEL_MAX: u16 = 6 + 2 * 256;

/// A client of another protocol to log in upstream.
pub(crate) struct UpstreamRequest {
    pub(crate) credentials: Credentials,
    pub(crate) vhost: Box<str>,
    pub(crate) client: LoginRequest,
    /// The client-properties for the upstream.
    pub(crate) client_properties: FieldTable,
}

/// A client of another protocol that the upstream has accepted.
pub(crate) struct OpenedUpstream {
    pub(crate) client: AmqpClient,
    /// The credentials that the upstream has accepted.
    pub(crate) credentials: Arc<Credentials>,
}

/// Logs a client in upstream, and opens its virtual host.
///
/// # Errors
/// The upstream refuses the login or the virtual host, or is unreachable.
pub(crate) async fn open(
    shared: &Arc<Shared>,
    request: UpstreamRequest,
) -> Result<OpenedUpstream, LoginError> {
    let UpstreamRequest { credentials, vhost, client, client_properties } = request;
    let BackendLogin::Upstream(login) = shared.backend.login(credentials, client).await? else {
        return Err(LoginError::Failed(amqp::Fault::new(
            amqp::ReplyCode::InternalError,
            "logged in at another back end",
        )));
    };
    let credentials = Arc::clone(login.credentials());
    let frame_max = shared.config.frame_max;
    let request = OpenRequest {
        virtual_host: vhost.into(),
        negotiated: Negotiated { channel_max: CHANNEL_MAX, frame_max, heartbeat_secs: 0 },
        client_properties,
        capabilities: Capabilities { consumer_cancel_notify: true, ..Capabilities::default() },
    };
    let inner = InnerOutbox::new(shared.config.outbox_limit / 2);
    let session = shared.backend.open_upstream(login, &request, Arc::clone(inner.outbox())).await;
    let client = AmqpClient::new(session.map_err(LoginError::Failed)?, inner, frame_max);
    Ok(OpenedUpstream { client, credentials })
}
