//! Counters, as plain atomics that may be read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of a broker's operations since it started, and of its current contents. Each value is
        /// exact; two values read one after the other need not belong to the same moment.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: SharedCounter,)*
            published: [Published; FrontEnd::COUNT],
        }

        impl Metrics {
            /// All counters with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Published messages that reached at least one queue.
    messages_routed,
    /// Published messages that reached none.
    messages_unroutable,
    /// Messages put into queues; a message counts once for each of its queues.
    messages_enqueued,
    /// Deliveries to consumers.
    messages_delivered,
    /// The number of these deliveries that need no acknowledgement.
    messages_delivered_auto_ack,
    /// Messages handed out by `get`.
    messages_got,
    /// The number of these that need no acknowledgement.
    messages_got_auto_ack,
    /// Calls of `get` on an empty queue.
    gets_empty,
    /// Deliveries and gets of messages that had been delivered before.
    messages_redelivered,
    /// Messages acknowledged by clients.
    messages_acked,
    /// Messages that clients returned to their queue.
    messages_requeued,
    /// Messages that a full queue refused.
    messages_refused,
    /// Messages that were dead-lettered.
    messages_dead_lettered,
    /// The number of these that a consumer had rejected.
    messages_dead_lettered_rejected,
    /// The number of these that had expired.
    messages_dead_lettered_expired,
    /// The number of these that exceeded a length limit.
    messages_dead_lettered_maxlen,
    /// The number of these that had been redelivered too often.
    messages_dead_lettered_delivery_limit,
    /// Dead letters dropped because the death of one message had led to too many letters.
    dead_letters_dropped,
    /// Ready messages that were moved from memory to disk, except those that never were in a queue's memory.
    messages_paged_out,
    /// Bytes of the bodies of messages paged out.
    bytes_paged_out,
    /// Messages that were loaded back into memory.
    messages_paged_in,
    /// Bytes of the bodies of messages paged in.
    bytes_paged_in,
    /// Writes of messages to disk so that they can leave memory. Messages in the store are on disk already.
    paging_writes,
    /// Reads of messages from disk to bring them back.
    paging_reads,
    /// Batches of publishes whose session had to pause until enough messages had left memory.
    paging_pauses,
    /// Failed attempts to page, which are repeated.
    paging_failures,
    /// Queues that exist.
    queues,
    /// Declarations of queues, whether they existed or were created.
    queues_declared,
    /// Queues created.
    queues_created,
    /// Queues deleted.
    queues_deleted,
    /// Exchanges that exist.
    exchanges,
    /// Bindings that exist.
    bindings,
    /// Consumers that exist.
    consumers,
}

/// The protocol of a client, by which publish metrics are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FrontEnd {
    /// AMQP 0-9-1.
    #[default]
    Amqp,
    /// MQTT, any version.
    Mqtt,
    /// STOMP, any version.
    Stomp,
}

impl FrontEnd {
    /// The number of front ends.
    pub const COUNT: usize = Self::Stomp as usize + 1;
}

/// Counters of the messages that clients of one front end have published.
#[derive(Debug, Default)]
pub struct Published {
    /// Messages that reached at least one queue.
    pub routed: SharedCounter,
    /// Messages that reached none.
    pub unroutable: SharedCounter,
    /// Channels, or their equivalent in other protocols, that have published and still exist.
    pub publishers: SharedCounter,
}

impl Metrics {
    /// The counters of one front end; summed over all front ends they equal the total counters.
    pub fn published(&self, by: FrontEnd) -> &Published {
        &self.published[by as usize]
    }
}

/// A counter, or a gauge.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: usize) {
        if n > 0 {
            self.0.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn sub(&self, n: usize) {
        if n > 0 {
            self.0.fetch_sub(n as u64, Ordering::Relaxed);
        }
    }
}
