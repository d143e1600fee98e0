//! Writes spooled publishes to disk, and confirms them.

use std::sync::Arc;
use std::time::Instant;

use amqp::method::basic;
use spool::Answer;

use super::{SpooledPublish, SpoolingSession};

impl SpoolingSession {
    /// Flushes publishes to the local queue. Returns whether all are there; if not, the rest follows in the next turn.
    pub(super) fn flush_spooled(&mut self, now: Instant) -> bool {
        if self.unflushed.is_empty() {
            return true;
        }
        let flushed = self.publisher.flush(self.local.timestamp(now));
        if flushed.unfinished {
            self.publish_gate.pause_for_turn();
            return false;
        }
        if flushed.full {
            self.publish_gate.pause(self.local.vhost());
        }
        let publishes = std::mem::take(&mut self.unflushed);
        self.queue.waker().wake();
        self.local.changed(&self.queue);
        match (flushed.until, self.local.store()) {
            (Some(until), Some(store)) => {
                self.waiting.push_back((until, publishes));
                store.wait(until, Arc::clone(&self.nudge));
            }
            _ => self.stored(publishes),
        }
        true
    }

    /// Confirms the publishes that are on disk by now.
    pub(super) fn after_disk(&mut self) {
        let Some(durable) = self.local.store().map(|store| store.durable()) else { return };
        while let Some((_, publishes)) = self.waiting.pop_front_if(|(until, _)| *until <= durable) {
            self.stored(publishes);
        }
        if self.is_on_disk() {
            self.waits_for_disk = false;
        }
    }

    /// Whether everything that was spooled for the client is on disk.
    pub(super) fn is_on_disk(&self) -> bool {
        self.unflushed.is_empty() && self.waiting.is_empty()
    }

    /// Confirms these publishes, which are on disk.
    pub(super) fn stored(&mut self, mut publishes: Vec<SpooledPublish>) {
        publishes.sort_by_key(|publish| publish.channel);
        for run in publishes.chunk_by(|one, next| (one.channel, one.opening) == (next.channel, next.opening))
        {
            let (number, opening) = (run[0].channel, run[0].opening);
            let Some(channel) = self.channels.get_mut(number).filter(|channel| channel.opening == opening)
            else {
                continue;
            };
            let numbers: Vec<u64> = run.iter().filter_map(|publish| publish.number).collect();
            let Some(confirms) = channel.confirms().filter(|_| !numbers.is_empty()) else { continue };
            let (contents, outbox) = (&mut self.contents, &self.outbox);
            confirms.settle(&numbers, |Answer { delivery_tag, multiple }| {
                contents.send(outbox, number, basic::Ack { delivery_tag, multiple });
            });
        }
    }
}
