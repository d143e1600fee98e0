//! AMQP inside of WebSockets: what browsers can speak.
//!
//! - [`upgrade`]: the HTTP request, judged before anything is kept for it.
//! - [`routes`]: what is served at which path: AMQP, relays, files.
//! - [`adapter`]: the frames around an AMQP connection, and why it is done that way.
//! - [`run`]: a connection's life, from its request to its last frame.
//! - [`webroot`]: files for requests that are no upgrades.
//!
//! What is inside is a full session: the same connection, door, limits and access as over TCP. Relays have a folder of
//! their own ([`crate::relay`]).

mod adapter;
mod messages;
mod pings;
mod routes;
mod run;
mod upgrade;
mod webroot;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod very_many;

use std::net::IpAddr;
use std::time::Duration;

use ::websocket::handshake::OriginRules;

pub(crate) use adapter::MAX_WAITING_CONTROL;
pub(crate) use pings::{PingAction, Pings};
pub use routes::Routes;
pub(crate) use run::{refuse, run};
use transport::Peer;
pub(crate) use upgrade::answer_refusal;
pub use webroot::Webroot;

use crate::network::Network;

/// What the connections of a WebSocket listener need to know.
#[derive(Debug, Clone)]
pub struct WebSocketConfig {
    /// Which pages may connect to AMQP.
    pub origins: OriginRules,
    /// How long a client may be silent before it is pinged, and then again before it is given up; zero for never.
    pub ping_interval: Duration,
    /// Whether messages may be compressed (permessage-deflate), for clients that offer it.
    pub compression: bool,
    /// Reverse proxies that tell whom they speak for in Forwarded, X-Forwarded-For or X-Real-IP.
    pub proxies: Vec<Network>,
    /// Whether clients of Unix sockets are among them.
    pub unix_proxies: bool,
    /// What is served.
    pub routes: Routes,
}

impl WebSocketConfig {
    /// Whether a peer is believed when it tells whom it speaks for.
    pub(crate) fn is_from_proxy(&self, peer: Peer) -> bool {
        peer.ip().map_or(self.unix_proxies, |ip| self.is_proxy(ip))
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(address))
    }
}
