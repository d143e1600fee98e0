//! The total backlog of all clients, and how much of it one client may cause.
//!
//! Each client may use a share of the remaining space, and a small amount in any case, like queues in the shared memory
//! of a switch (Choudhury and Hahne, "Dynamic queue length thresholds for multipriority traffic", 1997). The more
//! clients do not read, the less may wait for each of them. A client that reads always gets space, so no client has to
//! be closed to free some. Further messages wait at the broker: a client's own connection is not read meanwhile, and
//! consumers on a shared one move to one of their own.
//!
//! # Example
//! The total is 256 MiB. If A alone does not read, up to 28.4 MiB wait for it: an eighth of the other 227.6 MiB. If a
//! hundred clients do not read, 2.4 MiB wait for each of them, an eighth of the 18.9 MiB that they leave. B, which reads,
//! may have as much waiting as each of them. If 20,000 clients do not read, B may still have 16 KiB waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transport::Tally;

use crate::metrics::add;

/// The shared limit on the backlog of all clients.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Bytes that wait.
    tally: Arc<Tally>,
    /// Maximum bytes that should wait.
    most: usize,
    /// How often a channel's consumers exceeded their share of the total although they were within their own budget.
    over_total_limit: AtomicU64,
}

impl Waiting {
    /// Creates a limit of `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// The tally in which the backlog of a client's out-buffer is to be counted.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Bytes that may wait for one client now.
    #[inline]
    pub(crate) fn allowance(&self) -> usize {
        (self.most.saturating_sub(self.tally.bytes()) / SHARE).max(ALWAYS)
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.tally.bytes()
    }

    /// Counts a channel whose consumers exceeded their share of the total.
    pub(crate) fn count_over_total_limit(&self) {
        add(&self.over_total_limit, 1);
    }

    /// How often that happened.
    pub(crate) fn over_total_limit(&self) -> u64 {
        self.over_total_limit.load(Ordering::Relaxed)
    }
}

/// One client may use one part in this many of the remaining space. A few clients that do not read leave most of it to
/// others, and no number of them exhausts it.
pub(crate) const SHARE: usize = 8;
/// Bytes that may wait for a client however many do not read: some small messages or replies. The total for
/// all clients is bounded by [`Waiting::most`] plus this for each of them.
pub(crate) const ALWAYS: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use transport::Outbox;

    use super::*;

    const MAX_BYTES: usize = 64 * 1024 * 1024;
    const MESSAGE: usize = 4096;

    fn clients(waiting: &Waiting, count: usize) -> Vec<Outbox> {
        let client = |_| {
            let outbox = Outbox::new(usize::MAX);
            outbox.count_towards(waiting.tally());
            outbox
        };
        (0..count).map(client).collect()
    }

    fn fill(waiting: &Waiting, outbox: &Outbox) -> bool {
        let takes = outbox.backlog() + MESSAGE <= waiting.allowance();
        if takes {
            outbox.append(|buf| buf.push(vec![0; MESSAGE].into()));
        }
        takes
    }

    /// Fills all of them, up to what each may have.
    fn fill_all(waiting: &Waiting, outboxes: &[Outbox]) {
        while outboxes.iter().filter(|outbox| fill(waiting, outbox)).count() > 0 {
            let (total, count) = (waiting.bytes(), outboxes.len());
            assert!(total <= MAX_BYTES.max(count * ALWAYS), "{count} clients: {total}");
        }
    }

    #[test]
    fn s2_total_waiting_bytes_are_bounded_for_any_number_of_slow_clients() {
        for count in [1, 10, 100, 1000, 8000] {
            let waiting = Waiting::new(MAX_BYTES);
            let outboxes = clients(&waiting, count);
            fill_all(&waiting, &outboxes);
            let total: usize = outboxes.iter().map(Outbox::backlog).sum();
            assert_eq!(total, waiting.bytes());
            let least = outboxes.iter().map(Outbox::backlog).min().unwrap();
            assert!(
                least + MESSAGE >= (MAX_BYTES / (count + SHARE)).max(ALWAYS),
                "{count} clients: {least} bytes"
            );
        }
    }

    #[test]
    fn p3_a_reading_client_gets_capacity_while_others_hold_all_they_can() {
        let waiting = Waiting::new(MAX_BYTES);
        let hostile = clients(&waiting, 10_000);
        fill_all(&waiting, &hostile);
        let reader = clients(&waiting, 1).remove(0);
        for _ in 0..10_000 {
            assert!(fill(&waiting, &reader));
            reader.read_all();
        }
        drop(hostile);
        assert_eq!(waiting.allowance(), MAX_BYTES / SHARE);
    }
}
