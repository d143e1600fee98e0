//! Accounts for the queues' memory, and schedules their disk work.
//!
//! Queues report their memory here, once per batch. Above the watermark, long queues are asked to page out messages until
//! an eighth less is in memory; if that is not enough, all others are, too ([`sweep`]). The callers of [`Broker::page`]
//! (threads, in a server) read and write the disk; no queue is locked meanwhile. A publisher that fills a long queue faster
//! than that [waits](crate::VirtualHost::wait_for_capacity).

mod memory;
mod sweep;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use store::{Store, WaitList, Waiter};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Mutex, Rank, work};

use self::memory::{Memory, MemoryChange};
use self::sweep::{Sweep, growth};
use crate::broker::Broker;
use crate::queue::{Queue, ReadyStore};
use crate::time::Timestamp;

/// The messages of a broker's queues, in memory and on disk. Each value is exact except for messages that
/// several queues share: for these each queue counts its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagingStatus {
    /// Bytes of memory that ready messages take.
    pub resident: u64,
    /// Ready messages that are on disk only.
    pub paged_messages: u64,
    /// Bytes of the bodies of these messages.
    pub paged_bytes: u64,
    /// Bytes of memory above which queues page out messages; `u64::MAX` for never.
    pub watermark: u64,
}

/// A broker's paging. Its locks are acquired after those of queues.
pub(crate) struct Paging {
    resident: Memory,
    paged_messages: AtomicU64,
    paged_bytes: AtomicU64,
    to_page_out: AtomicU64,
    watermark: u64,
    /// The queues' count exceeds the watermark.
    is_over_watermark: AtomicBool,
    /// The process uses so much memory that messages have to be paged out, whatever the queues' count.
    is_under_pressure: AtomicBool,
    /// Memory of the process when that last made queues page out, or the minimum since.
    relieved_at: AtomicU64,
    /// The long queues have not been asked to page out yet.
    relief: AtomicBool,
    /// Pages out messages of short queues.
    sweep: Sweep,
    /// Queues that are or were long.
    long: Mutex<LongQueues, { Rank::Leaf as u8 }>,
    jobs: Mutex<VecDeque<Arc<Queue>>, { Rank::Leaf as u8 }>,
    /// Messages of purged and deleted queues whose memory has yet to be freed.
    to_free: Mutex<Vec<ReadyStore>, { Rank::Leaf as u8 }>,
    /// Publishers and the broker's timer, while they wait for memory to be paged out.
    for_capacity: Mutex<WaitList, { Rank::Leaf as u8 }>,
    waker: Option<Arc<dyn Waiter>>,
    store: OnceLock<Arc<Store>>,
}

/// Queues that are or were long. Deleted ones stay in memory until they are removed here.
#[derive(Debug, Default)]
struct LongQueues {
    queues: Vec<Weak<Queue>>,
    /// Their number when the deleted ones were last removed.
    live_after_sweep: usize,
}

impl LongQueues {
    /// Adds a queue. Removes the deleted ones whenever the list has doubled since the last removal.
    fn add(&mut self, queue: Weak<Queue>) {
        if self.queues.len() >= MAX_LONG_QUEUES.max(2 * self.live_after_sweep) {
            self.queues.retain(|queue| queue.strong_count() > 0);
            self.live_after_sweep = self.queues.len();
        }
        self.queues.push(queue);
    }
}

/// A queue's contribution to the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) resident: u64,
    pub(crate) paged_messages: u64,
    pub(crate) paged_bytes: u64,
    /// Bytes of memory that a long queue can page out.
    pub(crate) to_page_out: u64,
}

impl Broker {
    /// Performs one step of paging: reads or writes messages of one queue, or frees those of a purged or deleted one.
    /// Blocks on the disk. Returns false if there is nothing to do.
    pub fn page(&self, now: Timestamp) -> bool {
        let paging = self.paging();
        if paging.free_next() {
            return true;
        }
        paging.page_out_long_queues(now);
        let Some(queue) = paging.next_job() else { return self.sweep(now) };
        queue.page(now);
        true
    }

    /// Reports the memory of the process, and the `limit` at which publishers are blocked. From half-way between the paging
    /// watermark and that limit on, queues page out as if the watermark were exceeded. Their own count does not include the
    /// allocator's overhead; and each queue counts only a share of a shared message, even if it is the last one with it.
    pub fn memory_used(&self, used: u64, limit: Option<u64>) {
        self.paging().memory_used(used, limit.unwrap_or(u64::MAX));
    }

    /// The memory and disk usage of its queues.
    pub fn paging_status(&self) -> PagingStatus {
        self.paging().paging_status()
    }
}

impl Paging {
    pub(crate) fn new(watermark: u64, waker: Option<Arc<dyn Waiter>>) -> Self {
        Self {
            resident: Memory::new(watermark),
            paged_messages: AtomicU64::new(0),
            paged_bytes: AtomicU64::new(0),
            to_page_out: AtomicU64::new(0),
            watermark,
            is_over_watermark: AtomicBool::new(false),
            is_under_pressure: AtomicBool::new(false),
            relieved_at: AtomicU64::new(0),
            relief: AtomicBool::new(false),
            sweep: Sweep::new(),
            long: Mutex::default(),
            jobs: Mutex::default(),
            to_free: Mutex::default(),
            for_capacity: Mutex::default(),
            waker,
            store: OnceLock::new(),
        }
    }

    /// Enables paging to the disk of this store.
    pub(crate) fn keep(&self, store: &Arc<Store>) {
        let _ = self.store.set(store.clone());
        // The threads that restored messages may have no further change to report.
        self.compare_with_watermark(self.resident.exact());
    }

    /// The store, without which paging is off.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    pub(crate) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Whether memory exceeds the watermark.
    #[inline]
    pub(crate) fn is_over_watermark(&self) -> bool {
        self.counts_too_much() || self.is_under_pressure()
    }

    fn counts_too_much(&self) -> bool {
        self.is_over_watermark.load(Ordering::Relaxed)
    }

    fn is_under_pressure(&self) -> bool {
        self.is_under_pressure.load(Ordering::Relaxed)
    }

    /// Called by one thread at a time, see [`Broker::memory_used`].
    fn memory_used(&self, used: u64, limit: u64) {
        let is_off = self.watermark == u64::MAX || limit == u64::MAX || self.store().is_none();
        let threshold = if is_off { u64::MAX } else { u64::midpoint(self.watermark, limit).min(limit) };
        let before = self.relieved_at.load(Ordering::Relaxed).min(used);
        self.relieved_at.store(before, Ordering::Relaxed);
        if used <= threshold {
            if self.is_under_pressure() && used < threshold - threshold / 8 {
                self.is_under_pressure.store(false, Ordering::Relaxed);
            }
            return;
        }
        if !self.is_under_pressure.swap(true, Ordering::Relaxed) {
            tracing::info!(used, threshold, "memory use above paging watermark: paging out messages");
        } else if used <= before.saturating_add(growth(before)) {
            return;
        }
        self.relieved_at.store(used, Ordering::Relaxed);
        self.relief.store(true, Ordering::Release);
        self.sweep.want();
        self.wake();
    }

    /// Updates the counts after a queue's contents have changed. Called under the queue's lock.
    #[inline]
    pub(crate) fn count(&self, before: Counted, now: Counted) {
        let resident = self.resident.change(before.resident, now.resident);
        if let Some(MemoryChange { now: resident, .. }) = resident {
            self.compare_with_watermark(resident);
        }
        if before.paged_messages != now.paged_messages {
            change(&self.paged_messages, before.paged_messages, now.paged_messages);
            change(&self.paged_bytes, before.paged_bytes, now.paged_bytes);
        }
        let paid = before.to_page_out != now.to_page_out
            && change(&self.to_page_out, before.to_page_out, now.to_page_out) == 0;
        let has_capacity =
            resident.is_some_and(|reported| reported.before > self.limit() && reported.now <= self.limit());
        if paid || has_capacity {
            // Exactly one thread sees each crossing of the limit; a waiter that registers later sees the counts set by
            // that thread.
            let waiting = self.for_capacity.lock().take();
            waiting.wake();
            if paid && self.sweep.is_wanted() {
                self.wake();
            }
        }
    }

    fn compare_with_watermark(&self, resident: u64) {
        if resident > self.watermark {
            if !self.counts_too_much()
                && self.store().is_some()
                && !self.is_over_watermark.swap(true, Ordering::Relaxed)
            {
                self.relief.store(true, Ordering::Release);
                self.wake();
            }
            if self.store().is_some() && self.sweep.is_due(resident) {
                self.wake();
            }
        } else if self.counts_too_much() && resident < self.watermark - self.watermark / 8 {
            self.is_over_watermark.store(false, Ordering::Relaxed);
            self.sweep.begin_anew();
        }
    }

    /// Whether memory is far above the watermark, and some of it can be paged out.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_over_watermark() && self.resident.known() > self.limit() && self.has_long_queues()
    }

    /// Whether long queues still have to page out.
    fn has_long_queues(&self) -> bool {
        self.to_page_out.load(Ordering::Relaxed) > 0
    }

    /// Whether the backlog of unwritten messages and definitions and the memory of long queues are within their limits.
    pub(crate) fn has_capacity(&self) -> bool {
        self.store().is_none_or(|store| store.has_capacity()) && !self.is_behind()
    }

    /// Wakes `waiter` when it should check again whether there [is capacity](Self::has_capacity); at once if there is.
    pub(crate) fn wait_for_capacity(&self, waiter: Arc<dyn Waiter>) {
        let mut waiting = self.for_capacity.lock();
        if self.is_behind() {
            waiting.add(waiter);
            return;
        }
        drop(waiting);
        match self.store() {
            Some(store) => store.wait_for_capacity(waiter),
            None => waiter.wake(),
        }
    }

    fn limit(&self) -> u64 {
        self.watermark.saturating_add(LEEWAY)
    }

    /// Registers a queue that has become long. Called under its lock.
    pub(crate) fn is_long(&self, queue: &Weak<Queue>) {
        self.long.lock().add(queue.clone());
    }

    /// Schedules a queue that has work to do, which must not be scheduled already. Called under its lock.
    pub(crate) fn ask(&self, queue: Arc<Queue>) {
        self.jobs.lock().push_back(queue);
        self.wake();
    }

    /// Frees the memory of messages that have left their queue. Very many are left to the callers of [`Broker::page`], if
    /// there is a store: a million would block a client's thread for a tenth of a second.
    pub(crate) fn free(&self, messages: ReadyStore) {
        if self.waker.is_some() && self.store().is_some() && messages.len() > FREED_AT_ONCE {
            self.to_free.lock().push(messages);
            self.wake();
        } else {
            // Charged before the work, so that other tasks get their turn first if it is long.
            work::charge(FREED_MESSAGE, messages.len());
        }
    }

    fn free_next(&self) -> bool {
        let next = self.to_free.lock().pop();
        next.is_some()
    }

    fn next_job(&self) -> Option<Arc<Queue>> {
        self.jobs.lock().pop_front()
    }

    /// Asks all long queues to page out messages, if the watermark was exceeded.
    fn page_out_long_queues(&self, now: Timestamp) {
        if !self.relief.swap(false, Ordering::AcqRel) {
            return;
        }
        let long = std::mem::take(&mut self.long.lock().queues);
        let is_still_long =
            |queue: &Weak<Queue>| queue.upgrade().is_some_and(|queue| queue.is_still_long(now));
        let still: Vec<_> = long.into_iter().filter(is_still_long).collect();
        let mut long = self.long.lock();
        long.queues.extend(still);
        long.live_after_sweep = long.queues.len();
    }

    fn paging_status(&self) -> PagingStatus {
        PagingStatus {
            resident: self.resident.exact(),
            paged_messages: self.paged_messages.load(Ordering::Relaxed),
            paged_bytes: self.paged_bytes.load(Ordering::Relaxed),
            watermark: self.watermark,
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// Replaces a queue's share in a sum, and returns the sum.
#[inline]
fn change(sum: &AtomicU64, before: u64, now: u64) -> u64 {
    if before <= now {
        sum.fetch_add(now - before, Ordering::Relaxed) + (now - before)
    } else {
        sum.fetch_sub(before - now, Ordering::Relaxed) - (before - now)
    }
}

/// Messages freed by the thread that has purged or deleted their queue: a fraction of a millisecond.
const FREED_AT_ONCE: usize = 1024;
/// Nanoseconds charged for each freed message.
const FREED_MESSAGE: u32 = 100;
/// The list of long queues is not checked for deleted ones below this length.
const MAX_LONG_QUEUES: usize = 64;
/// Bytes in memory above the watermark at which publishers wait: enough to keep the disk busy, and little above the budget.
const LEEWAY: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use store::StoreSettings;
    use store::disk::simulated::SimDisk;
    use store::journal::JournalSettings;

    use crate::*;

    #[derive(Debug, Default)]
    struct Wakes(AtomicUsize);

    impl Waiter for Wakes {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn very_many_messages_are_freed_by_the_paging_threads() {
        let wakes = Arc::new(Wakes::default());
        let broker =
            Broker::new(BrokerConfig { paging_waker: Some(wakes.clone()), ..BrokerConfig::default() });
        let settings = StoreSettings::from(JournalSettings::default());
        let (store, _rounds, recovered) = Store::open(Arc::new(SimDisk::new(1, 1 << 30)), settings).unwrap();
        broker.restore(&store, recovered, Timestamp(1)).unwrap();
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&guest, "/").unwrap();
        let mut publisher = vhost.publisher(&guest);
        let (now, session) = (Timestamp(1), SessionId(1));
        let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
        vhost.declare_queue(session, &declare, now).unwrap();
        let mut publish = |count: usize| {
            for _ in 0..count {
                let (properties, body) = (amqp::properties::NO_PROPERTIES, Body::Copied(b""));
                publisher.publish(Publish { exchange: "", routing_key: "q", properties, body }, now).unwrap();
            }
            publisher.flush(now);
        };
        let many = 2 * super::FREED_AT_ONCE;
        publish(many / 2);
        assert_eq!(vhost.purge(session, "q").unwrap().0, many as u64 / 2);
        assert!(!broker.page(now), "few are freed at once");
        publish(many);
        assert_eq!(vhost.purge(session, "q").unwrap().0, many as u64);
        publish(many);
        assert_eq!(vhost.delete_queue(session, "q", false, false).unwrap().0, many as u64);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert_eq!([(); 3].map(|()| broker.page(now)), [true, true, false]);
    }

    const QUEUES: [&str; 4] = ["a", "b", "c", "d"];

    /// Publishes 100 messages of 100,000 bytes to four queues, and calls `each` after each of them.
    fn fan_out(broker: &Broker, each: impl Fn(&VirtualHost)) {
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&guest, "/").unwrap();
        for name in QUEUES {
            let declare = QueueDeclare { name, ..QueueDeclare::default() };
            vhost.declare_queue(SessionId(1), &declare, Timestamp(1)).unwrap();
            let binding = Binding { source: "amq.fanout", destination: name, ..Binding::default() };
            vhost.bind_queue(SessionId(1), &binding).unwrap();
        }
        let mut publisher = vhost.publisher(&guest);
        for _ in 0..100 {
            let (properties, body) = (amqp::properties::NO_PROPERTIES, Body::Copied(&[0; 100_000]));
            let publish = Publish { exchange: "amq.fanout", routing_key: "", properties, body };
            publisher.publish(publish, Timestamp(1)).unwrap();
            publisher.flush(Timestamp(1));
            each(&vhost);
        }
    }

    fn broker_on(disk: &SimDisk, paging_watermark: u64) -> (Arc<Broker>, Arc<Store>) {
        let broker = Broker::new(BrokerConfig { paging_watermark, ..BrokerConfig::default() });
        let settings = StoreSettings::from(JournalSettings::default());
        let (store, _, recovered) = Store::open(Arc::new(disk.clone()), settings).unwrap();
        broker.restore(&store, recovered, Timestamp(1)).unwrap();
        (broker, store)
    }

    #[test]
    fn the_last_queue_with_a_shared_message_pages_out_when_the_process_has_too_much() {
        let mebibyte = 1 << 20;
        let (broker, _store) = broker_on(&SimDisk::new(1, 1 << 30), 4 * mebibyte);
        fan_out(&broker, |vhost| {
            QUEUES[1..].iter().for_each(|name| _ = vhost.purge(SessionId(1), name).unwrap());
        });
        let page = |used| {
            broker.memory_used(used, Some(20 * mebibyte));
            while broker.page(Timestamp(1)) {}
            broker.paging_status()
        };
        let held = page(12 * mebibyte);
        assert!(held.resident < 4 * mebibyte && held.paged_messages == 0, "a quarter is counted: {held:?}");
        let held = page(13 * mebibyte);
        assert!(held.paged_messages > 80 && broker.paging().is_over_watermark(), "{held:?}");
        page(11 * mebibyte);
        assert!(broker.paging().is_over_watermark(), "a little less changes nothing");
        page(10 * mebibyte);
        assert!(!broker.paging().is_over_watermark());
    }

    #[test]
    fn nothing_is_paged_out_into_the_space_that_is_to_stay_free() {
        let disk = SimDisk::new(1, 1 << 30);
        let (broker, store) = broker_on(&disk, 1 << 20);
        let (before, most) = (disk.used(), 12 << 20);
        store.set_disk_free_limit((1 << 30) - before - most);
        fan_out(&broker, |_| {});
        let page = |now| while broker.page(now) {};
        page(Timestamp(1));
        let held = broker.paging_status();
        assert!(disk.used() - before <= most && held.paged_bytes > most / 2, "{held:?}, {}", disk.used());
        assert!(broker.metrics().paging_failures.get() > 0);
        // Once there is space, it is tried again.
        store.set_disk_free_limit(0);
        broker.expire_all(Timestamp(60_000));
        page(Timestamp(60_000));
        assert!(broker.paging_status().paged_bytes > 2 * most, "{:?}", broker.paging_status());
    }

    #[test]
    fn long_queues_that_are_deleted_leave_nothing_behind() {
        let broker = Broker::new(BrokerConfig::default());
        let guest = broker.authenticate("guest", b"guest", true).unwrap();
        let vhost = broker.open(&guest, "/").unwrap();
        let mut publisher = vhost.publisher(&guest);
        let (now, session) = (Timestamp(1), SessionId(1));
        let body = vec![0; 300_000];
        for _ in 0..1_000 {
            let declare = QueueDeclare { name: "q", ..QueueDeclare::default() };
            vhost.declare_queue(session, &declare, now).unwrap();
            let (properties, body) = (amqp::properties::NO_PROPERTIES, Body::Copied(&body));
            publisher.publish(Publish { exchange: "", routing_key: "q", properties, body }, now).unwrap();
            publisher.flush(now);
            vhost.delete_queue(session, "q", false, false).unwrap();
        }
        let long_queues = broker.paging().long.lock().queues.len();
        assert!((1..=super::MAX_LONG_QUEUES).contains(&long_queues), "{long_queues}");
    }
}
