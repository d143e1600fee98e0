//! Open connections as the API shows them.

use std::sync::Arc;

use admin::{ChannelInfo, ClientConnection, ConnectionInfo, SessionInfo};
use broker::{MessageCounts, Timestamp};
use server::{ChannelStatus, OpenConnection, canonical};
use transport::Peer;

/// Implements the API's view of an open connection.
pub(super) struct ManagementView(pub(super) Arc<OpenConnection>);

impl ClientConnection for ManagementView {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn user(&self) -> &str {
        self.0.user()
    }

    fn vhost(&self) -> &str {
        self.0.vhost()
    }

    fn is_in_flow(&self, now: Timestamp) -> bool {
        self.0.is_in_flow(now)
    }

    fn is_blocked(&self) -> bool {
        self.0.is_blocked()
    }

    fn info(&self) -> ConnectionInfo {
        let connection = &self.0;
        let negotiated = connection.negotiated();
        let (peer_host, peer_port) = match connection.peer() {
            Peer::Ip(peer) => (canonical(peer).ip().to_string(), peer.port()),
            Peer::Unix => (String::new(), 0),
        };
        let local = connection.local();
        ConnectionInfo {
            peer_host,
            peer_port,
            host: local.map(|local| canonical(local).ip().to_string()).unwrap_or_default(),
            port: local.map_or(0, |local| local.port()),
            tls: connection.is_tls(),
            websocket: connection.is_websocket(),
            protocol: connection.protocol(),
            mechanism: connection.mechanism(),
            connected_at: connection.connected_at(),
            channel_max: negotiated.channel_max,
            frame_max: negotiated.frame_max,
            heartbeat: negotiated.heartbeat_secs,
            client_properties: broker::json_of(&connection.client_properties()),
            received: connection.received(),
            sent: connection.sent(),
            backlog: connection.backlog() as u64,
            channels: connection.channel_count() as u64,
        }
    }

    fn session(&self) -> Option<SessionInfo> {
        let session = self.0.session()?;
        Some(SessionInfo {
            client_id: self.0.client_id(),
            expiry: session.expiry(),
            subscriptions: session.subscriptions().into(),
            published: session.published(),
            delivered: session.delivered(),
        })
    }

    fn channels(&self, now: Timestamp) -> Vec<ChannelInfo> {
        self.0.channels_counted(now).iter().map(channel).collect()
    }

    fn byte_rates(&self, now: Timestamp) -> (f64, f64) {
        self.0.byte_rates(now)
    }

    fn close(&self, reason: &str) {
        self.0.close(reason);
    }
}

/// Whether a connection has this name. Checking the peer's port first rules out most connections cheaply.
pub(super) fn is_named(connection: &OpenConnection, wanted: &str) -> bool {
    match connection.peer() {
        Peer::Ip(peer) if !wanted.contains(&peer.port().to_string()) => false,
        _ => connection.name() == wanted,
    }
}

fn channel((status, counts): &(ChannelStatus, Option<MessageCounts>)) -> ChannelInfo {
    ChannelInfo {
        number: status.number,
        prefetch: status.prefetch,
        global_prefetch: status.global_prefetch,
        confirms: status.confirms,
        transactional: status.transactional,
        consumers: status.consumers as u64,
        unacknowledged: status.unacknowledged as u64,
        unconfirmed: status.unconfirmed,
        is_in_flow: status.is_in_flow,
        counts: *counts,
    }
}
