//! AMQP inside WebSockets, for browsers.
//!
//! - [`upgrade`]: the HTTP request, validated before any state is kept for it.
//! - [`routes`]: the paths of protocols, relays and files.
//! - [`adapter`]: the frames around an AMQP connection, with the reasons for this design. [`client_frames`]: the client's
//!   frames.
//! - [`run()`]: a connection's lifetime, from its request to its last frame.
//! - [`webroot`]: files for requests that are not upgrades.
//!
//! Inside is a full session, with the same connection, backend, limits and access log as over TCP. Relays are
//! in [`crate::relay`].

mod adapter;
mod client_frames;
mod messages;
mod pings;
mod routes;
mod run;
mod upgrade;
mod webroot;

#[cfg(test)]
mod capacity_tests;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use ::websocket::handshake::OriginRules;

pub(crate) use adapter::FrameMapping;
pub(crate) use client_frames::{ClientFrames, DecodeStop, PeerEnd, close_answer};
pub(crate) use pings::{PingAction, Pings};
pub use routes::Routes;
pub(crate) use run::{join, refuse, run};
use transport::Peer;
pub(crate) use upgrade::{AcceptedUpgrade, answer_refusal};
pub use webroot::Webroot;

use crate::network::Network;

/// Settings of a WebSocket listener for its connections.
#[derive(Debug, Clone)]
pub struct WebSocketConfig {
    /// The origins whose pages may connect to AMQP.
    pub origins: OriginRules,
    /// How long a client may be silent before it is pinged, and then again before it is dropped; zero for never.
    pub ping_interval: Duration,
    /// Whether messages may be compressed (permessage-deflate) for clients that offer it.
    pub compression: bool,
    /// Reverse proxies whose Forwarded, X-Forwarded-For or X-Real-IP header names the client.
    pub proxies: Vec<Network>,
    /// Whether clients of Unix sockets count as such proxies.
    pub unix_proxies: bool,
    /// The protocols and files served, by path.
    pub routes: Routes,
}

impl WebSocketConfig {
    /// Whether a peer is trusted to name the client that it connects for.
    pub(crate) fn is_from_proxy(&self, peer: Peer) -> bool {
        peer.ip().map_or(self.unix_proxies, |ip| self.is_proxy(ip))
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(address))
    }
}
