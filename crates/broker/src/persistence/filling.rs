//! Collects the messages of a queue during a restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use store::RecoveredQueue;
use store::pages::Survey;

use crate::message::{Message, USUAL_WEIGHT_WITHOUT_BODY};
use crate::queue::{Delivery, NEVER, Queue, Run};

/// Bytes of memory still available for messages.
pub(super) struct LoadBudget(pub(super) u64);

/// The messages of a queue that were found so far.
pub(super) struct QueueRecovery<'q> {
    pub(super) queue: &'q Arc<Queue>,
    next_position: u64,
    /// A summary of the messages in its segments.
    segments: Survey,
    /// The messages loaded into memory.
    warm: Vec<Delivery>,
    /// The messages in its segments stay on disk.
    segments_are_on_disk: bool,
    /// All further messages stay on disk.
    is_on_disk: bool,
    /// Summary of the messages that stay on disk, except those in its segments, for a queue without priorities.
    on_disk: Option<Survey>,
    /// The messages in its segments that stay on disk, by rank, for a queue with priorities.
    runs: BTreeMap<u8, Run>,
    /// Position, body size in bytes, expiry and rank of the other messages that stay on disk, for a queue with
    /// priorities.
    ranked: Vec<(u64, u32, u64, u8)>,
}

impl<'q> QueueRecovery<'q> {
    pub(super) fn new(queue: &'q Arc<Queue>, known: &RecoveredQueue, space: &mut LoadBudget) -> Self {
        let segments = known.segments;
        let is_on_disk =
            segments.live > 0 && !space.take(segments.weight + segments.live * USUAL_WEIGHT_WITHOUT_BODY);
        Self {
            queue,
            next_position: known.next_position,
            segments,
            warm: Vec::new(),
            segments_are_on_disk: is_on_disk,
            is_on_disk,
            on_disk: None,
            runs: BTreeMap::new(),
            ranked: Vec::new(),
        }
    }

    /// Whether the messages in its segments have to be read.
    pub(super) fn wants_segments(&self) -> bool {
        self.segments.live > 0 && (!self.segments_are_on_disk || self.has_priorities())
    }

    /// Adds a message that the store has read.
    pub(super) fn take(
        &mut self,
        message: &Arc<Message>,
        place: &store::StoredLocation,
        space: &mut LoadBudget,
    ) {
        let in_segments = self.segments.positions.is_some_and(|(_, last)| place.position <= last);
        self.is_on_disk |= !in_segments && !space.take(message.weight());
        let expires = if place.expires == 0 { NEVER } else { place.expires };
        let (position, deliveries, failures) = (place.position, place.deliveries, place.deliveries);
        let delivery = Delivery { position, expires, message: message.clone(), deliveries, failures };
        match self.is_on_disk {
            // Segments are read in the order of their messages, and before everything else.
            true if in_segments && self.has_priorities() => {
                let run = self.runs.entry(self.rank_of(&delivery)).or_default();
                run.add_one_stored(position, message.body_len() as u64, expires);
            }
            true => self.leave(&delivery),
            false => self.warm.push(delivery),
        }
    }

    /// Passes the messages to the queue, and returns their number.
    pub(super) fn finish(mut self) -> u64 {
        self.warm.sort_unstable_by_key(|delivery| delivery.position);
        // The log's order is the queue's, with a few exceptions: everything in memory must precede everything on disk.
        let segments =
            self.segments.positions.filter(|_| self.segments_are_on_disk && !self.has_priorities());
        let first = [
            segments.map(|(first, _)| first),
            self.on_disk.and_then(|on_disk| on_disk.positions).map(|(first, _)| first),
            self.ranked.iter().map(|ranked| ranked.0).min(),
        ];
        if let Some(first) = first.into_iter().flatten().min() {
            let at = self.warm.partition_point(|delivery| delivery.position < first);
            self.warm.split_off(at).iter().for_each(|delivery| self.leave(delivery));
        }
        let mut runs = self.runs;
        let surveyed = segments.map(|span| Survey { positions: Some(span), ..self.segments });
        for Survey { live, weight, positions, expires } in surveyed.into_iter().chain(self.on_disk) {
            if let Some(span) = positions {
                runs.entry(0).or_default().add_stored(span, live, weight, expires);
            }
        }
        self.ranked.sort_unstable();
        for (position, bytes, expires, rank) in self.ranked {
            runs.entry(rank).or_default().add_one_stored(position, bytes.into(), expires);
        }
        let messages = self.warm.len() as u64 + runs.values().map(Run::messages).sum::<u64>();
        self.queue.restore(self.warm, runs, self.next_position);
        messages
    }

    /// Records a message that stays on disk.
    fn leave(&mut self, delivery: &Delivery) {
        let (position, bytes) = (delivery.position, delivery.message.body_len());
        if self.has_priorities() {
            self.ranked.push((position, bytes as u32, delivery.expires, self.rank_of(delivery)));
            return;
        }
        let on_disk = self.on_disk.get_or_insert_default();
        on_disk.live += 1;
        on_disk.weight += bytes as u64;
        on_disk.expires = on_disk.expires.min(delivery.expires);
        let (first, last) = on_disk.positions.unwrap_or((position, position));
        on_disk.positions = Some((first.min(position), last.max(position)));
    }

    fn has_priorities(&self) -> bool {
        self.queue.delivery_order().has_priorities()
    }

    fn rank_of(&self, delivery: &Delivery) -> u8 {
        self.queue.delivery_order().restored_rank(&delivery.message, delivery.deliveries)
    }
}

impl LoadBudget {
    /// Takes `bytes` from the budget; returns whether there were enough.
    fn take(&mut self, bytes: u64) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}
