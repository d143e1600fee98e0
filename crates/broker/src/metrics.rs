//! Counters, which may be read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use sync::ShardedCounters;

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident),* $(,)?) => {
        /// Counts of a broker's operations since it started, and of its current contents. Each value is
        /// exact; two values read one after the other need not belong to the same moment.
        ///
        /// The documentation of a counter is also its help text in the metrics.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $name: $kind,)*
            published: [Published; FrontEnd::COUNT],
        }

        impl Metrics {
            /// All counters: name, help text and value.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($help),+).trim_start(), self.$name.get())),*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages published by clients that were routed to at least one queue; each counts once, when it is routed.
    messages_routed: SharedCounter,
    /// Messages published by clients that were routed to no queue, whether returned or not; each counts once.
    messages_unroutable: SharedCounter,
    /// Messages enqueued, including dead letters and traces; each counts once per queue.
    messages_enqueued: SharedCounter,
    /// Messages delivered to consumers, when they are handed to their connection; each redelivery counts again.
    messages_delivered: SharedCounter,
    /// Messages delivered to consumers that do not acknowledge; also part of messages_delivered.
    messages_delivered_auto_ack: SharedCounter,
    /// Messages fetched with basic.get or over HTTP, when they leave the queue.
    messages_got: SharedCounter,
    /// Messages fetched with basic.get or over HTTP without acknowledgement; also part of messages_got.
    messages_got_auto_ack: SharedCounter,
    /// Fetches, with basic.get or over HTTP, that found their queue empty.
    gets_empty: SharedCounter,
    /// Messages delivered or fetched that had been delivered or fetched before; each time counts.
    messages_redelivered: SharedCounter,
    /// Messages acknowledged by clients, when the acknowledgement arrives; in a transaction, at its commit.
    messages_acked: SharedCounter,
    /// Messages returned to their queue by reject, nack or recover, or because their channel or session ended.
    messages_requeued: SharedCounter,
    /// Messages that a full queue with overflow reject-publish or reject-publish-dlx refused; each queue counts.
    messages_refused: SharedCounter,
    /// Messages of QoS 0 dropped, the oldest first, because their MQTT client was too slow (mqtt_queue_max).
    mqtt_messages_dropped: SharedCounter,
    /// Messages published to the dead-letter exchange of their queue, for any reason; each hop counts.
    messages_dead_lettered: SharedCounter,
    /// Messages dead-lettered because a consumer rejected them; also part of messages_dead_lettered.
    messages_dead_lettered_rejected: SharedCounter,
    /// Messages dead-lettered because their TTL expired; also part of messages_dead_lettered.
    messages_dead_lettered_expired: SharedCounter,
    /// Messages dead-lettered because a queue exceeded its maximum length; also part of messages_dead_lettered.
    messages_dead_lettered_maxlen: SharedCounter,
    /// Messages dead-lettered because they exceeded a delivery limit; also part of messages_dead_lettered.
    messages_dead_lettered_delivery_limit: SharedCounter,
    /// Dead letters dropped because a single message had caused too many of them.
    dead_letters_dropped: SharedCounter,
    /// Dead letters of queues with x-dead-letter-strategy=at-least-once that were routed to no queue, or that a full queue
    /// refused.
    dead_letters_lost: SharedCounter,
    /// Ready messages removed from their queue's memory and left on disk; each time counts.
    messages_paged_out: SharedCounter,
    /// Body bytes of messages that were paged out.
    bytes_paged_out: SharedCounter,
    /// Paged-out messages read back into memory before their delivery; each time counts.
    messages_paged_in: SharedCounter,
    /// Body bytes of paged-out messages that were read back into memory.
    bytes_paged_in: SharedCounter,
    /// Writes of a batch of messages to disk so that they can leave memory; persistent messages of durable
    /// queues need none.
    paging_writes: SharedCounter,
    /// Reads of a batch of paged-out messages from disk.
    paging_reads: SharedCounter,
    /// Times a publisher was paused until enough messages had been paged out; each queue counts.
    paging_pauses: SharedCounter,
    /// Times a publisher was throttled, for at most 50 ms, because its queue grew although its consumers could take more.
    publisher_holds: SharedCounter,
    /// Failed reads and writes of paged messages; each is retried within 30 seconds.
    paging_failures: SharedCounter,
    /// Queues that exist, in all virtual hosts.
    queues: SharedGauge,
    /// Queue declarations that succeeded, of new and of existing queues; passive ones do not count.
    queues_declared: SharedCounter,
    /// Queues created by a declaration; those restored at the start do not count.
    queues_created: SharedCounter,
    /// Queues deleted, expired ones and those of closed connections included.
    queues_deleted: SharedCounter,
    /// Exchanges that exist, in all virtual hosts; those that every virtual host has are included.
    exchanges: SharedGauge,
    /// Bindings that exist, in all virtual hosts; those of the default exchange do not count.
    bindings: SharedGauge,
    /// Consumers that exist, in all virtual hosts.
    consumers: SharedGauge,
}

/// The protocol of a client, by which publish metrics are grouped.
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
    /// Unroutable messages that were not returned.
    pub dropped: SharedCounter,
    /// Channels, or their equivalent in other protocols, that have published and still exist.
    pub publishers: SharedGauge,
    /// Sizes of the bodies of all of them, counted only if the followed release reports them.
    pub sizes: MessageSizes,
}

/// How many messages have had which size.
#[derive(Debug, Default)]
pub struct MessageSizes {
    buckets: [SharedCounter; MESSAGE_SIZES.len() + 1],
    bytes: SharedCounter,
}

/// Upper bounds of the size buckets in bytes, as in RabbitMQ 4.
pub const MESSAGE_SIZES: [u64; 8] =
    [100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000];

impl MessageSizes {
    /// The number of messages in each bucket; the last one is for sizes above all bounds.
    pub fn counts(&self) -> [u64; MESSAGE_SIZES.len() + 1] {
        self.buckets.each_ref().map(SharedCounter::get)
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub(crate) fn add(&self, batch: &SizesOfBatch) {
        for (bucket, &messages) in self.buckets.iter().zip(&batch.buckets) {
            bucket.add(messages);
        }
        self.bytes.add(batch.bytes);
    }
}

/// Message sizes of one publisher, added in batches, since other threads update the same counters.
#[derive(Debug, Default)]
pub(crate) struct SizesOfBatch {
    buckets: [usize; MESSAGE_SIZES.len() + 1],
    bytes: usize,
}

impl SizesOfBatch {
    pub(crate) fn count(&mut self, bytes: usize) {
        let bucket = MESSAGE_SIZES.iter().position(|&most| bytes as u64 <= most);
        self.buckets[bucket.unwrap_or(MESSAGE_SIZES.len())] += 1;
        self.bytes += bytes;
    }
}

impl Metrics {
    /// The counters of one front end; summed over all front ends they equal the total counters.
    pub fn published(&self, by: FrontEnd) -> &Published {
        &self.published[by as usize]
    }

    /// Unroutable messages that were not returned, of all front ends.
    pub fn messages_dropped(&self) -> u64 {
        self.published.iter().map(|published| published.dropped.get()).sum()
    }
}

/// A monotonic counter. All connections add to the same few, from all cores: busy ones are split among threads, and share
/// no cache line with another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct SharedCounter(ShardedCounters<1>);

impl SharedCounter {
    /// The count since the start.
    pub fn get(&self) -> u64 {
        self.0.get(0)
    }

    pub(crate) fn add(&self, n: usize) {
        self.0.add([n as u64]);
    }
}

/// The current number of objects.
#[derive(Debug, Default)]
pub struct SharedGauge(AtomicU64);

impl SharedGauge {
    /// The number of objects at this moment.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, n: usize) {
        self.0.fetch_sub(n as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_explains_itself_in_a_sentence() {
        for (name, help, _) in Metrics::default().iter() {
            assert!(help.ends_with('.') && help.split(' ').count() > 3, "{name}: {help}");
            assert!(!help.contains("  ") && help.starts_with(char::is_uppercase), "{name}: {help}");
        }
    }
}
