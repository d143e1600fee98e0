//! Counters, as plain atomics that anyone may read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a broker has done since it started, and what it holds now. Each value is exact; two values read one
        /// after the other need not belong to the same moment.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
            published: [Published; 3],
        }

        impl Metrics {
            /// All counters by name.
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
    /// Of those: the ones that count as acknowledged once taken.
    messages_delivered_auto_ack,
    /// Messages handed out by `get`.
    messages_got,
    /// Of those: the ones that count as acknowledged once taken.
    messages_got_auto_ack,
    /// `get` on an empty queue.
    gets_empty,
    /// Of deliveries and gets: those that had been delivered before.
    messages_redelivered,
    /// Messages acknowledged by clients.
    messages_acked,
    /// Messages that clients gave back to their queue.
    messages_requeued,
    /// Messages that a full queue refused.
    messages_refused,
    /// Messages that were dead-lettered.
    messages_dead_lettered,
    /// Of those: the ones that a consumer had rejected.
    messages_dead_lettered_rejected,
    /// The ones that had expired.
    messages_dead_lettered_expired,
    /// The ones that were too many.
    messages_dead_lettered_maxlen,
    /// The ones that had come back too often.
    messages_dead_lettered_delivery_limit,
    /// Dead letters dropped because the death of one message had led to too many.
    dead_letters_dropped,
    /// Ready messages that left memory for the disk, those that never were in a queue's memory aside.
    messages_paged_out,
    /// Bytes of their bodies.
    bytes_paged_out,
    /// Messages that came back from there.
    messages_paged_in,
    /// Bytes of their bodies.
    bytes_paged_in,
    /// Times that messages were written so that they can leave memory. Those that the store keeps are there already.
    paging_writes,
    /// Times that messages were read to bring them back.
    paging_reads,
    /// Batches of publishes whose session had to pause until enough had left memory.
    paging_pauses,
    /// Attempts to page that failed. They are repeated.
    paging_failures,
    /// Queues that exist.
    queues,
    /// Declarations of queues that were there, or came to be.
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

/// How a client speaks, which metrics are told by.
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

/// What the clients of one front end have published.
#[derive(Debug, Default)]
pub struct Published {
    /// Messages that reached at least one queue.
    pub routed: Counter,
    /// Messages that reached none.
    pub unroutable: Counter,
    /// Channels, or what stands for them, that have published and are still there.
    pub publishers: Counter,
}

impl Metrics {
    /// What the clients of a front end have published; together it is what the counters of all say.
    pub fn published(&self, by: FrontEnd) -> &Published {
        &self.published[by as usize]
    }
}

/// A number that goes up, or up and down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present value.
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
