//! Numbers of the pool, as they are seen from outside.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::{Durations, Histogram};
use crate::upstream::Remains;

/// A snapshot of the pool. Gauges are at the time of the call, counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolMetrics {
    /// Upstream connections that are open.
    pub upstream_connections: usize,
    /// Those of them that the broker has blocked.
    pub blocked_connections: usize,
    /// Those of them that belong to one client at the moment.
    pub own_connections: usize,
    /// Upstream channels that are leased, or not yet clean or closed.
    pub upstream_channels: usize,
    /// Upstream channels that are open and clean, and wait for a client.
    pub resting_channels: usize,
    /// Clients with an open session.
    pub clients: usize,
    /// Handshakes begun with an upstream.
    pub handshakes: u64,
    /// Logins answered without a handshake.
    pub handshakes_avoided: u64,
    /// Upstream channels leased to clients' channels.
    pub leases: u64,
    /// Of those, the ones that were open already.
    pub leases_reused: u64,
    /// Round trips to an upstream that clients were spared.
    pub round_trips_saved: u64,
    /// Connection attempts and handshakes that failed, refused logins not counted.
    pub connect_failures: u64,
    /// Upstream connections that ended otherwise than by the pool's wish.
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
    /// Channels that went on elsewhere after their upstream connection was lost.
    pub channels_recovered: u64,
    /// Channels whose consumers went on on a connection of the client's own, because the client was too slow to share one.
    pub consumers_moved: u64,
    /// Of those, the channels whose clients were within their own budget, but too much waited for all clients together.
    pub consumers_squeezed: u64,
    /// Channels that had sent messages outside confirm mode when their upstream connection was lost, or closed for an error,
    /// which were too large to be kept: they may be lost, and nobody will say so.
    pub channels_unconfirmed: u64,
    /// Bytes kept for clients until upstreams answer for them.
    pub bytes_kept: usize,
    /// Bytes kept of what clients had sent that are gone, until upstreams answer for something behind it.
    pub bytes_departed: usize,
    /// Messages of clients that are gone, sent again after their upstream connection was lost.
    pub messages_departed_resent: u64,
    /// Messages of clients that are gone which may be lost: no upstream answered in time, too many bytes were kept already, or
    /// the message was too large to be kept.
    pub messages_departed_lost: u64,
    /// Bytes of messages that clients have not sent completely, held until they are.
    pub bytes_staged: usize,
    /// Clients that are not read because there is no room for messages that are not complete.
    pub clients_in_line: usize,
    /// Upstream connections on which clients stream for the same reason.
    pub lanes: usize,
    /// How often a client had to wait for that.
    pub messages_lined_up: u64,
    /// Clients that were ended because they held such room for too long while others waited.
    pub clients_gave_way: u64,
    /// Bytes of what clients have declared that ends with a broker, remembered to be declared again.
    pub bytes_remembered: usize,
    /// Exchanges, queues and bindings that were declared again.
    pub declarations_repeated: u64,
    /// Clients that were ended with 320 because something they had declared could not be.
    pub clients_not_restored: u64,
    /// Bytes of clients whose channels wait for an upstream connection.
    pub bytes_held: usize,
    /// Bytes that clients have not read yet.
    pub bytes_waiting: usize,
    /// Upstream connections that are being opened.
    pub opening_connections: usize,
    /// How often a client waited for an upstream connection because as many were open as there may be.
    pub connections_awaited: u64,
    /// Logins that a broker refused.
    pub logins_refused: u64,
    /// How long what clients sent waited here for an upstream connection's socket to take it; one batch at a time of each
    /// connection is looked at.
    pub queueing: Durations,
    /// Upstream addresses that are known.
    pub addresses: usize,
    /// Those of them that did not answer last.
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
    /// What a client that is gone had under way is not sent again.
    pub(crate) fn count_lost(&self, remains: &Remains) {
        let too_large = remains.too_large.len() as u64;
        add(&self.messages_departed_lost, remains.messages + remains.lost + too_large);
    }

    /// A channel was leased, which its client has been told to be open without asking.
    pub(crate) fn count_lease(&self, fresh: bool) {
        add(&self.leases, 1);
        add(&self.leases_reused, u64::from(!fresh));
    }
}

/// Adds to a counter that nothing is ordered by.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
