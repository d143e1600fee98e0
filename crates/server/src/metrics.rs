//! Counters of the front end, which can be read at any time.

use broker::FrontEnd;
use sync::ShardedCounters;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of the listeners and sessions since the process started.
        #[derive(Debug, Default)]
        pub struct ServerMetrics {
            $($(#[$doc])* pub $name: Counter,)*
            confirms: [Confirms; FrontEnd::COUNT],
        }
    };
}

counters! {
    /// Connections accepted.
    connections_opened,
    /// Connections that have ended.
    connections_closed,
    /// Connections handed over to another process, or that were to be.
    connections_handed_over,
    /// Connections taken over from another process.
    connections_resumed,
    /// Connections turned away by a limit.
    connections_refused,
    /// Logins refused.
    logins_refused,
    /// Channels opened.
    channels_opened,
    /// Channels closed by either side or with their connection.
    channels_closed,
    /// Bytes received from clients.
    bytes_received,
    /// Messages returned to their publishers as unroutable.
    messages_returned,
    /// Messages of QoS 0 from MQTT clients that were dropped because no upstream could be reached.
    mqtt_messages_dropped,
}

/// Counters of the confirms that one front end sends to its publishers.
#[derive(Debug, Default)]
pub struct Confirms {
    /// Messages whose publisher asked for a confirm, or for its equivalent in the protocol.
    pub wanted: Counter,
    /// Messages confirmed to their publishers.
    pub given: Counter,
}

impl ServerMetrics {
    /// The counters of one front end.
    pub fn confirms(&self, of: FrontEnd) -> &Confirms {
        &self.confirms[of as usize]
    }
}

/// A counter that only grows, from 0 at the start of the process. A busy one is split among threads.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Counter(ShardedCounters<1>);

impl Counter {
    /// The number of events since the start of the process.
    pub fn get(&self) -> u64 {
        self.0.get(0)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.add([n]);
    }
}
