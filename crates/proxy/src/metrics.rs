//! Numbers of the pool, as they are seen from outside.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A snapshot of the pool. Gauges are at the time of the call, counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolMetrics {
    /// Upstream connections that are open.
    pub upstream_connections: usize,
    /// Those of them that belong to one client at the moment.
    pub own_connections: usize,
    /// Upstream channels that are leased or not yet closed.
    pub upstream_channels: usize,
    /// Clients with an open session.
    pub clients: usize,
    /// Handshakes begun with an upstream.
    pub handshakes: u64,
    /// Logins answered without a handshake.
    pub handshakes_avoided: u64,
    /// Connection attempts and handshakes that failed, refused logins not counted.
    pub connect_failures: u64,
    /// Upstream connections that ended otherwise than by the pool's wish.
    pub connections_lost: u64,
    /// Octets handed over to upstreams by clients.
    pub octets_to_upstreams: u64,
    /// Frames that upstreams sent.
    pub frames_from_upstreams: u64,
    /// Octets that upstreams sent.
    pub octets_from_upstreams: u64,
}

/// The counters behind [`PoolMetrics`]; touched once per batch, not per frame.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) clients: AtomicUsize,
    pub(crate) handshakes: AtomicU64,
    pub(crate) handshakes_avoided: AtomicU64,
    pub(crate) connect_failures: AtomicU64,
    pub(crate) connections_lost: AtomicU64,
    pub(crate) octets_to_upstreams: AtomicU64,
    pub(crate) frames_from_upstreams: AtomicU64,
    pub(crate) octets_from_upstreams: AtomicU64,
}

/// Adds to a counter that nothing is ordered by.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
