//! A world with a simulated disk; the test itself runs the rounds of writing and the paging.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use amqp::{FieldValue, Properties};
use broker::*;
use store::disk::simulated::SimDisk;
use store::journal::{CommitOutcome, JournalSettings};
use store::{Recovered, Retirement, Rounds, StoreSettings};

use crate::world::*;

pub(crate) struct DiskWorld {
    pub(crate) world: World,
    pub(crate) disk: SimDisk,
    pub(crate) store: Arc<Store>,
    pub(crate) rounds: Rounds,
    /// Woken when the broker's timer has something to do.
    pub(crate) timer: Arc<WakeCounter>,
    /// Bytes of memory above which queues page.
    watermark: u64,
    compatibility: Compatibility,
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct WakeCounter(AtomicUsize);

impl Waiter for WakeCounter {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl WakeCounter {
    pub(crate) fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn start(disk: SimDisk, now: Timestamp, watermark: u64, compatibility: Compatibility) -> DiskWorld {
    let (store, rounds, recovered) = open(&disk);
    let timer = Arc::<WakeCounter>::default();
    let config = BrokerConfig {
        defaults: false,
        deadline_waker: Some(Arc::<WakeCounter>::clone(&timer)),
        paging_watermark: watermark,
        compatibility,
        ..BrokerConfig::default()
    };
    let broker = Broker::new(config);
    broker.restore(&store, recovered, now).expect("readable");
    if store.catalogue().was_empty() {
        broker.add_defaults();
    }
    let guest = broker.authenticate("guest", b"guest", true).unwrap();
    let vhost = broker.open(&guest, "/").unwrap();
    let publisher = vhost.publisher(&guest);
    let world = World { broker, vhost, publisher, now };
    DiskWorld { world, disk, store, rounds, timer, watermark, compatibility }
}

/// Opens the store with segments so small that messages soon move to their queue's segments.
fn open(disk: &SimDisk) -> (Arc<Store>, Rounds, Recovered) {
    let settings = StoreSettings {
        weigh: body_bytes,
        journal_segments: 1,
        queue_segment_size: 128 << 10,
        ..JournalSettings { segment_size: 128 << 10, pending_limit: 64 << 20, ..JournalSettings::default() }
            .into()
    };
    Store::open(Arc::new(disk.clone()), settings).expect("a store")
}

/// A world with memory for all messages.
pub(crate) fn disk_world(seed: u64) -> DiskWorld {
    paging(seed, u64::MAX)
}

pub(crate) fn paging(seed: u64, watermark: u64) -> DiskWorld {
    paging_as(Compatibility::V3_10, seed, watermark)
}

pub(crate) fn paging_as(compatibility: Compatibility, seed: u64, watermark: u64) -> DiskWorld {
    start(SimDisk::new(seed, 1 << 30), Timestamp(1_000_000), watermark, compatibility)
}

impl DiskWorld {
    pub(crate) fn durable(&self, name: &str, arguments: &[(&str, FieldValue)]) -> Arc<Queue> {
        let arguments = table(arguments);
        let declare = QueueDeclare { name, durable: true, arguments: raw(&arguments), ..Default::default() };
        self.world.declare(declare).unwrap().queue
    }

    pub(crate) fn queue(&self, name: &str) -> Arc<Queue> {
        self.world.vhost.queue(ME, name).expect("a queue")
    }

    pub(crate) fn publish(&mut self, exchange: &str, key: &str, body: &str) -> Flushed {
        self.publish_with(exchange, key, body, Properties::default().with_delivery_mode(2))
    }

    pub(crate) fn publish_with(
        &mut self,
        exchange: &str,
        routing_key: &str,
        body: &str,
        properties: Properties<'_>,
    ) -> Flushed {
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        let body = Body::Copied(body.as_bytes());
        let publish = Publish { exchange, routing_key, properties: &bytes, body };
        let World { publisher, now, .. } = &mut self.world;
        publisher.publish(publish, *now).unwrap();
        publisher.flush(*now)
    }

    /// Runs rounds until nothing is left to write.
    pub(crate) fn sync(&mut self) {
        while !matches!(self.rounds.step(), CommitOutcome::Idle) {}
    }

    /// Retires as many journal segments as it can.
    pub(crate) fn retire(&mut self) {
        self.sync();
        while matches!(self.rounds.retire(), Retirement::Done) {}
    }

    /// Pages until there is nothing left to do; returns whether there was anything.
    pub(crate) fn page(&self) -> bool {
        std::iter::from_fn(|| self.world.broker.page(self.world.now).then_some(())).count() > 0
    }

    /// Simulates a power failure and a restart.
    pub(crate) fn crash(&self) -> Self {
        self.crash_into(self.compatibility)
    }

    /// The same, and the broker follows this release from now on.
    pub(crate) fn crash_into(&self, compatibility: Compatibility) -> Self {
        start(self.disk.crash(), self.world.now, self.watermark, compatibility)
    }

    /// Takes the next message, from memory or disk.
    pub(crate) fn fetch(&self, queue: &Queue, no_ack: bool) -> Option<Delivery> {
        loop {
            let reported = Arc::new(WakeCounter::default());
            let waiter: Arc<dyn Waiter> = reported.clone();
            match queue.fetch(no_ack, self.world.now, &waiter) {
                Fetched::Got(got) => return Some(got.delivery),
                Fetched::Empty => return None,
                Fetched::Later => {
                    assert!(self.page(), "the message is not loaded");
                    assert_eq!(reported.times(), 1, "it was loaded");
                }
            }
        }
    }

    /// Takes all ready messages without acknowledgement.
    pub(crate) fn drain(&self, queue: &str) -> Vec<String> {
        let queue = self.queue(queue);
        std::iter::from_fn(|| self.fetch(&queue, true)).map(|delivery| text(&delivery)).collect()
    }
}
