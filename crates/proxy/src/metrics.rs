//! Metrics of the pool: one table of their fields, names and texts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::{Durations, Histogram};
use crate::upstream::UnsettledEntries;

/// Declares each metric once: the doc comment is the help text, the literal the name that Prometheus sees.
macro_rules! pool_metrics {
    (
        gauges { $(#[doc = $gauge_help:literal] $gauge:ident = $gauge_name:literal;)* }
        counters { $(#[doc = $counter_help:literal] $counter:ident = $counter_name:literal;)* }
        counters_of_parts { $(#[doc = $part_help:literal] $part:ident = $part_name:literal;)* }
    ) => {
        /// A snapshot of the pool. Gauges are at the time of the call, counters since the start.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct PoolMetrics {
            $(#[doc = $gauge_help] pub $gauge: usize,)*
            $(#[doc = $counter_help] pub $counter: u64,)*
            $(#[doc = $part_help] pub $part: u64,)*
            /// How long client data waited for an upstream connection's socket to take it; each connection samples
            /// one batch at a time.
            pub queueing: Durations,
        }

        impl PoolMetrics {
            /// Name, help text and value of each gauge.
            pub fn gauges(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($gauge_name, $gauge_help.trim_ascii_start(), self.$gauge as u64),)*].into_iter()
            }

            /// Name, help text and value of each counter.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [
                    $(($counter_name, $counter_help.trim_ascii_start(), self.$counter),)*
                    $(($part_name, $part_help.trim_ascii_start(), self.$part),)*
                ]
                .into_iter()
            }
        }

        /// The pool's own counters; touched once per batch, not per frame.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            pub(crate) clients: AtomicUsize,
            $(pub(crate) $counter: AtomicU64,)*
            pub(crate) queueing: Histogram,
        }

        impl Counters {
            /// A snapshot without the values that the pool's parts have.
            pub(crate) fn read(&self) -> PoolMetrics {
                PoolMetrics {
                    clients: self.clients.load(Ordering::Relaxed),
                    $($counter: self.$counter.load(Ordering::Relaxed),)*
                    queueing: self.queueing.read(),
                    ..PoolMetrics::default()
                }
            }
        }
    };
}

pool_metrics! {
    gauges {
        /// Upstream connections currently open.
        upstream_connections = "leveret_upstream_connections";
        /// Upstream connections dedicated to one client.
        dedicated_connections = "leveret_upstream_dedicated_connections";
        /// Upstream connections blocked by their broker.
        blocked_connections = "leveret_upstream_blocked_connections";
        /// Upstream channels in use.
        upstream_channels = "leveret_upstream_channels";
        /// Upstream channels that are open and idle, ready to be leased to a client.
        idle_channels = "leveret_upstream_idle_channels";
        /// Clients of the pool with an open session.
        clients = "leveret_pool_clients";
        /// Upstream connections being opened.
        opening_connections = "leveret_upstream_opening_connections";
        /// Known upstream addresses.
        addresses = "leveret_upstream_addresses";
        /// Upstream addresses whose last connection attempt failed.
        addresses_down = "leveret_upstream_addresses_down";
        /// Bytes of clients' frames buffered for a replay until an upstream answers them.
        replay_buffer_bytes = "leveret_upstream_replay_buffer_bytes";
        /// Bytes of transient topology stored to be redeclared after an upstream connection is lost.
        bytes_remembered = "leveret_upstream_topology_bytes";
        /// Bytes sent by disconnected clients that no upstream has answered yet, including overhead.
        bytes_departed = "leveret_upstream_departed_bytes";
        /// Bytes of incomplete messages buffered until their clients have sent the rest.
        bytes_staged = "leveret_upstream_staged_bytes";
        /// Clients that are paused until their incomplete messages can be buffered.
        staging_waiting_clients = "leveret_upstream_staging_waiting_clients";
        /// Upstream connections that stream incomplete messages which could not be buffered.
        streams = "leveret_upstream_streaming_connections";
        /// Bytes of clients waiting for an upstream connection or for the end of an outage.
        bytes_queued = "leveret_upstream_held_bytes";
        /// Bytes waiting for clients of the pool to read them.
        bytes_waiting = "leveret_upstream_unread_bytes";
    }
    counters {
        /// AMQP handshakes started with an upstream.
        handshakes = "leveret_upstream_handshakes_total";
        /// Logins answered without an AMQP handshake with an upstream.
        handshakes_avoided = "leveret_upstream_handshakes_avoided_total";
        /// Upstream channels leased to clients' channels.
        leases = "leveret_upstream_leases_total";
        /// Leases of upstream channels that were already open.
        leases_reused = "leveret_upstream_leases_reused_total";
        /// Round trips to an upstream saved for clients.
        round_trips_saved = "leveret_upstream_round_trips_saved_total";
        /// Logins refused from the cache because an upstream had just refused the same credentials.
        refusals_repeated = "leveret_upstream_refusals_repeated_total";
        /// Messages sent to upstreams.
        messages_to_upstreams = "leveret_upstream_sent_messages_total";
        /// Messages received from upstreams, including returned ones.
        messages_from_upstreams = "leveret_upstream_received_messages_total";
        /// Failed attempts to connect to an upstream.
        connect_failures = "leveret_upstream_connect_failures_total";
        /// Upstream connections lost.
        connections_lost = "leveret_upstream_connections_lost_total";
        /// Upstream connections on which the broker answered nothing any more, perhaps because of one queue.
        connections_stalled = "leveret_upstream_stalled_connections_total";
        /// Messages republished after their upstream connection was lost.
        messages_replayed = "leveret_upstream_replayed_messages_total";
        /// Channels recovered on another upstream connection after theirs was lost.
        channels_recovered = "leveret_upstream_recovered_channels_total";
        /// Channels moved to a dedicated upstream connection because their consumers were too slow.
        channels_moved = "leveret_upstream_moved_channels_total";
        /// Exchanges, queues and bindings redeclared after an upstream connection was lost.
        declarations_repeated = "leveret_upstream_topology_restored_total";
        /// Clients closed with 320 because their topology could not be redeclared.
        clients_not_restored = "leveret_upstream_topology_lost_clients_total";
        /// Times a client waited because the limit of upstream connections was reached.
        connections_awaited = "leveret_upstream_awaited_connections_total";
        /// Channels that may have lost unconfirmed messages over 1 MiB with their upstream connection.
        channels_unconfirmed = "leveret_upstream_unconfirmed_channels_total";
        /// Messages of disconnected clients republished after their upstream connection was lost.
        messages_departed_resent = "leveret_upstream_departed_resent_messages_total";
        /// Messages of disconnected clients that may be lost: no upstream answered or confirmed in time, or at a limit.
        messages_departed_lost = "leveret_upstream_departed_lost_messages_total";
        /// Logins refused by an upstream.
        logins_refused = "leveret_upstream_refused_logins_total";
        /// Bytes sent to upstreams.
        bytes_to_upstreams = "leveret_upstream_sent_bytes_total";
        /// Bytes received from upstreams.
        bytes_from_upstreams = "leveret_upstream_received_bytes_total";
        /// Frames received from upstreams.
        frames_from_upstreams = "leveret_upstream_received_frames_total";
    }
    counters_of_parts {
        /// Channels moved to a dedicated upstream connection because too many bytes were waiting for all clients together.
        total_limit_moved_channels = "leveret_upstream_total_limit_moved_channels_total";
        /// Times a client waited until its incomplete message could be buffered.
        staging_waits = "leveret_upstream_staging_waits_total";
        /// Clients closed because their message stayed incomplete while others waited to buffer theirs.
        clients_gave_way = "leveret_upstream_evicted_clients_total";
    }
}

impl Counters {
    /// Counts messages of a departed client that are not sent again.
    pub(crate) fn count_lost(&self, remains: &UnsettledEntries) {
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
