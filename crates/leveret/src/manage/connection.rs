//! An open connection as the API shows it.

use std::net::SocketAddr;
use std::sync::Arc;

use admin::{ChannelInfo, Connection, ConnectionInfo};
use broker::{MessageCounts, Timestamp};
use server::{ChannelStatus, OpenConnection};
use transport::Peer;

/// A connection that can be shown.
pub(super) struct Shown(pub(super) Arc<OpenConnection>);

impl Connection for Shown {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn name(&self) -> String {
        name(&self.0)
    }

    fn user(&self) -> &str {
        self.0.user()
    }

    fn vhost(&self) -> &str {
        self.0.vhost()
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

    fn channels(&self, now: Timestamp) -> Vec<ChannelInfo> {
        self.0.channels_counted(now).iter().map(channel).collect()
    }

    fn octet_rates(&self, now: Timestamp) -> (f64, f64) {
        self.0.octet_rates(now)
    }

    fn close(&self, reason: &str) {
        self.0.close(reason);
    }
}

/// Whether a connection has this name. The number at its end tells most of them apart for less.
pub(super) fn is_named(connection: &OpenConnection, wanted: &str) -> bool {
    match connection.peer() {
        Peer::Ip(peer) if !wanted.contains(&peer.port().to_string()) => false,
        _ => name(connection) == wanted,
    }
}

/// As RabbitMQ names connections: `peer:port -> host:port`.
fn name(connection: &OpenConnection) -> String {
    name_of(connection.peer(), connection.local(), connection.id())
}

fn name_of(peer: Peer, local: Option<SocketAddr>, id: u64) -> String {
    match (peer, local) {
        (Peer::Ip(peer), Some(local)) => format!("{} -> {}", canonical(peer), canonical(local)),
        (Peer::Ip(peer), None) => format!("{} -> unix #{id}", canonical(peer)),
        // Unix sockets have no port that would tell them apart.
        (Peer::Unix, _) => format!("unix #{id}"),
    }
}

/// Who comes over IPv4 to a listener of both families has an address of IPv4, as in everything else that is shown.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
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
        counts: *counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_one_form_in_names() {
        let mapped = |port| address(&format!("[::ffff:127.0.0.1]:{port}"));
        let name = name_of(Peer::Ip(mapped(5000)), Some(mapped(5672)), 1);
        assert_eq!(name, "127.0.0.1:5000 -> 127.0.0.1:5672");
        assert_eq!(name_of(Peer::Ip(mapped(5000)), None, 7), "127.0.0.1:5000 -> unix #7");
        let six = name_of(Peer::Ip(address("[::1]:1")), Some(address("[::1]:2")), 1);
        assert_eq!(six, "[::1]:1 -> [::1]:2");
    }
}
