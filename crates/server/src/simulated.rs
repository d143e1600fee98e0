//! The server that simulations step without sockets. Its limits are low, so that tests reach them.

mod authz_backend;
mod in_process_connector;

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::handshake::{Negotiated, OpenRequest};
use amqp::{Capabilities, FieldTable};
use broker::{Broker, FrontEnd};
use transport::{InnerOutbox, Outbox, Peer};

use crate::access::Transport;
use crate::backend::Backend;
use crate::client::{ClientConnection, ProtocolState};
use crate::clock::Clock;
use crate::limits::{ConnectionCounter, ConnectionLimits};
use crate::registry::{ConnectionEndpoints, NewConnection, OpenConnection};
use crate::server::{AcceptedConnection, Server, ServerConfig, Shared};
use crate::upstream::client::AmqpClient;

pub(crate) use authz_backend::SimulatedAuthzBackend;
pub(crate) use in_process_connector::InProcessConnector;

pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1800);
pub(crate) const FRAME_MAX: u32 = 4096;

/// Settings without limits on connections.
pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        limits: ConnectionLimits { total: 0, per_ip: 0, per_user: 0 }.into(),
        channel_max: 255,
        frame_max: FRAME_MAX,
        heartbeat: 0,
        max_message_size: 20_000,
        incomplete_limit: 1 << 20,
        inbox_total: 256 << 20,
        stomp_default_user: None,
        outbox_limit: 1 << 20,
        handshake_timeout: HANDSHAKE_TIMEOUT,
        write_timeout: Duration::from_secs(10),
        drain_idle_timeout: Duration::from_secs(2),
        consumer_timeout: CONSUMER_TIMEOUT,
        product: "Leveret".to_owned(),
        access_log: None,
    }
}

/// A server without listeners, on which a user may have `per_user` connections; 0 means no limit.
pub(crate) fn server_of(broker: Arc<Broker>, clock: Clock, per_user: usize) -> Server {
    let limits = ConnectionLimits { total: 0, per_ip: 0, per_user }.into();
    Server::new(ServerConfig { limits, ..config() }, Backend::Broker(broker), clock, "test")
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A connection from `peer`, accepted at `since`, with its own outbox and no input so far.
pub(crate) fn connection<P: ProtocolState>(
    shared: &Arc<Shared>,
    id: u64,
    peer: Peer,
    protocol: FrontEnd,
    since: Instant,
) -> (ClientConnection<P>, Arc<Outbox>) {
    let unlimited = ConnectionLimits { total: 0, per_ip: 0, per_user: 1 };
    let accepted = AcceptedConnection {
        id,
        peer,
        transport: Transport { protocol, websocket: false, tls: false },
        lease: ConnectionCounter::new(unlimited).enter(None).unwrap(),
        since,
        local: None,
        external: None,
    };
    let outbox = Arc::new(Outbox::new(1 << 20));
    (ClientConnection::new(shared, accepted, &outbox), outbox)
}

/// An AMQP client of the embedded broker within this process, as if the broker were its upstream.
pub(crate) fn amqp_client(shared: &Arc<Shared>, id: u64, user: &str) -> AmqpClient {
    let Backend::Broker(broker) = &shared.backend else { unreachable!() };
    let identity = broker.authenticate_external(user, true).unwrap();
    let negotiated = Negotiated { channel_max: 6, frame_max: FRAME_MAX, heartbeat_secs: 0 };
    let capabilities = Capabilities { consumer_cancel_notify: true, ..Capabilities::default() };
    let client_properties = FieldTable::new();
    let inner = InnerOutbox::new(1 << 20);
    let view = OpenConnection::new(NewConnection {
        id,
        arrival: ConnectionEndpoints { peer: Peer::Unix, local: None, tls: false, websocket: false },
        protocol: "",
        user,
        vhost: "/",
        mechanism: "",
        connected_at: 0,
        negotiated,
        client_properties: &client_properties,
        session: None,
        outbox: inner.outbox(),
    });
    let request = OpenRequest { virtual_host: "/".into(), negotiated, client_properties, capabilities };
    let outbox = Arc::clone(inner.outbox());
    let session = shared.backend.open_broker(shared, identity, id, &request, (outbox, view)).unwrap();
    AmqpClient::new(session, inner, FRAME_MAX)
}
