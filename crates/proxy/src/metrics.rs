//! Metrics of the pool.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::{Durations, Histogram};
use crate::upstream::Remains;

/// A snapshot of the pool. Gauges are at the time of the call, counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolMetrics {
    /// Upstream connections that are open.
    pub upstream_connections: usize,
    /// Upstream connections that the broker has blocked.
    pub blocked_connections: usize,
    /// Upstream connections that currently belong to one client.
    pub own_connections: usize,
    /// Upstream channels that are leased, or not yet clean or closed.
    pub upstream_channels: usize,
    /// Upstream channels that are open and clean, and wait for a client to lease them.
    pub resting_channels: usize,
    /// Clients with an open session.
    pub clients: usize,
    /// Handshakes begun with an upstream.
    pub handshakes: u64,
    /// Logins answered without a handshake.
    pub handshakes_avoided: u64,
    /// Upstream channels leased to clients' channels.
    pub leases: u64,
    /// Leases of upstream channels that were already open.
    pub leases_reused: u64,
    /// Upstream round trips that clients were spared.
    pub round_trips_saved: u64,
    /// Connection attempts and handshakes that failed, refused logins not counted.
    pub connect_failures: u64,
    /// Upstream connections that ended without the pool closing them.
    pub connections_lost: u64,
    /// Refusals repeated without asking the broker.
    pub refusals_repeated: u64,
    /// Messages that clients sent for upstreams.
    pub messages_to_upstreams: u64,
    /// Messages that upstreams sent for clients, returned ones included.
    pub messages_from_upstreams: u64,
    /// Bytes handed over to upstreams by clients.
    pub bytes_to_upstreams: u64,
    /// Frames that upstreams sent.
    pub frames_from_upstreams: u64,
    /// Bytes that upstreams sent.
    pub bytes_from_upstreams: u64,
    /// Messages sent again after their upstream connection was lost.
    pub messages_replayed: u64,
    /// Channels that continued elsewhere after their upstream connection was lost.
    pub channels_recovered: u64,
    /// Channels whose consumers moved to the client's own connection, because the client was too slow to share one.
    pub consumers_moved: u64,
    /// Channels whose consumers moved although their clients were within their own budget, because the total
    /// backlog of all clients was too large.
    pub consumers_squeezed: u64,
    /// Channels with messages outside confirm mode, too large to be kept, when their upstream connection was
    /// lost or closed for an error: these messages may be lost without notice.
    pub channels_unconfirmed: u64,
    /// Bytes kept for connected clients until upstreams answer for them.
    pub bytes_kept: usize,
    /// Bytes kept of frames that departed clients had sent, until upstreams answer for something behind them.
    pub bytes_departed: usize,
    /// Messages of departed clients sent again after their upstream connection was lost.
    pub messages_departed_resent: u64,
    /// Messages of departed clients that may be lost: no upstream answered in time, too many bytes were kept
    /// already, or the message was too large to be kept.
    pub messages_departed_lost: u64,
    /// Bytes of incomplete messages held from clients.
    pub bytes_staged: usize,
    /// Clients that are not read because there is no room for incomplete messages.
    pub clients_in_line: usize,
    /// Upstream connections on which clients stream for the same reason.
    pub streams: usize,
    /// How often a client had to wait for that room.
    pub messages_lined_up: u64,
    /// Clients that were disconnected because they held such room for too long while others waited.
    pub clients_gave_way: u64,
    /// Bytes of client declarations that do not survive a broker restart, remembered to be declared again.
    pub bytes_remembered: usize,
    /// Exchanges, queues and bindings that were declared again.
    pub declarations_repeated: u64,
    /// Clients that were closed with 320 because one of their declarations could not be repeated.
    pub clients_not_restored: u64,
    /// Bytes of frames whose channels wait for an upstream connection.
    pub bytes_held: usize,
    /// Bytes that wait for clients to read them.
    pub bytes_waiting: usize,
    /// Upstream connections that are being opened.
    pub opening_connections: usize,
    /// How often a client waited for an upstream connection because the maximum number was open.
    pub connections_awaited: u64,
    /// Logins that a broker refused.
    pub logins_refused: u64,
    /// How long client data waited for an upstream connection's socket to take it; each connection samples
    /// one batch at a time.
    pub queueing: Durations,
    /// Known upstream addresses.
    pub addresses: usize,
    /// Addresses that did not answer when last asked.
    pub addresses_down: usize,
}

/// The counters behind [`PoolMetrics`]; touched once per batch, not per frame.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) clients: AtomicUsize,
    pub(crate) handshakes: AtomicU64,
    pub(crate) handshakes_avoided: AtomicU64,
    pub(crate) leases: AtomicU64,
    pub(crate) leases_reused: AtomicU64,
    pub(crate) round_trips_saved: AtomicU64,
    pub(crate) connect_failures: AtomicU64,
    pub(crate) connections_lost: AtomicU64,
    pub(crate) refusals_repeated: AtomicU64,
    pub(crate) messages_to_upstreams: AtomicU64,
    pub(crate) messages_from_upstreams: AtomicU64,
    pub(crate) bytes_to_upstreams: AtomicU64,
    pub(crate) frames_from_upstreams: AtomicU64,
    pub(crate) bytes_from_upstreams: AtomicU64,
    pub(crate) messages_replayed: AtomicU64,
    pub(crate) channels_recovered: AtomicU64,
    pub(crate) consumers_moved: AtomicU64,
    pub(crate) channels_unconfirmed: AtomicU64,
    pub(crate) messages_departed_resent: AtomicU64,
    pub(crate) messages_departed_lost: AtomicU64,
    pub(crate) logins_refused: AtomicU64,
    pub(crate) connections_awaited: AtomicU64,
    pub(crate) declarations_repeated: AtomicU64,
    pub(crate) clients_not_restored: AtomicU64,
    pub(crate) queueing: Histogram,
}

impl Counters {
    /// Counts messages of a departed client that are not sent again.
    pub(crate) fn count_lost(&self, remains: &Remains) {
        let too_large = remains.too_large.len() as u64;
        add(&self.messages_departed_lost, remains.messages + remains.lost + too_large);
    }

    /// Counts a lease of a channel, whose `channel.open` the proxy answered itself.
    pub(crate) fn count_lease(&self, fresh: bool) {
        add(&self.leases, 1);
        add(&self.leases_reused, u64::from(!fresh));
    }
}

/// Adds to a counter that orders nothing else.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
