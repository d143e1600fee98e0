//! What waits for all clients together, and how much of it one of them may cause.
//!
//! Everybody may have a share of what is left, and a little in any case, as queues in the memory of a switch may
//! (Choudhury and Hahne, "Dynamic queue length thresholds for multipriority traffic", 1997). The more clients do not
//! read, the less waits for each of them; whoever reads finds room at any time, so that nobody has to be chosen who is
//! closed. What does not wait here waits at the broker: a client's own connection is not read meanwhile, and consumers
//! on a shared one move to one of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transport::Tally;

use crate::metrics::add;

/// The room for what clients have not read yet.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// What waits.
    tally: Arc<Tally>,
    /// Bytes that should wait at most.
    most: usize,
    /// How often a channel's consumers found no room although they were within their own budget.
    squeezed: AtomicU64,
}

impl Waiting {
    /// Room for so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Where the backlog of a client's out-buffer is to be counted.
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

    /// A channel's consumers found no room.
    pub(crate) fn count_squeezed(&self) {
        add(&self.squeezed, 1);
    }

    /// How many did.
    pub(crate) fn squeezed(&self) -> u64 {
        self.squeezed.load(Ordering::Relaxed)
    }
}

/// One client may have one part in this many of what is left: a few that do not read leave most of it to others, and as
/// many as there may be never take the last of it.
const SHARE: usize = 8;
/// Bytes that may wait for a client however many do not read: some small messages or answers. What all clients together
/// have is bounded by [`Waiting::most`] and this for each of them.
pub(crate) const ALWAYS: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use transport::Outbox;

    use super::*;

    const MOST: usize = 64 * 1024 * 1024;
    const MESSAGE: usize = 4096;

    fn clients(waiting: &Waiting, count: usize) -> Vec<Outbox> {
        let client = |_| {
            let outbox = Outbox::new(usize::MAX);
            outbox.count_in(waiting.tally());
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

    #[test]
    fn s2_what_waits_for_all_clients_is_bounded_however_many_do_not_read() {
        for count in [1, 10, 100, 1000, 8000] {
            let waiting = Waiting::new(MOST);
            let outboxes = clients(&waiting, count);
            while outboxes.iter().filter(|outbox| fill(&waiting, outbox)).count() > 0 {}
            let total: usize = outboxes.iter().map(Outbox::backlog).sum();
            assert_eq!(total, waiting.bytes());
            assert!(total <= MOST.max(count * ALWAYS), "{count} clients: {total}");
            let least = outboxes.iter().map(Outbox::backlog).min().unwrap();
            assert!(
                least + MESSAGE >= (MOST / (count + SHARE)).max(ALWAYS),
                "{count} clients: {least} bytes"
            );
        }
    }

    #[test]
    fn p3_whoever_reads_finds_room_while_others_hold_what_they_can() {
        let waiting = Waiting::new(MOST);
        let hostile = clients(&waiting, 10_000);
        while hostile.iter().filter(|outbox| fill(&waiting, outbox)).count() > 0 {}
        let reader = clients(&waiting, 1).remove(0);
        for _ in 0..10_000 {
            assert!(fill(&waiting, &reader));
            reader.read_all();
        }
        drop(hostile);
        assert_eq!(waiting.allowance(), MOST / SHARE);
    }
}
