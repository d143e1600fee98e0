//! Collects the messages of a queue during a restart.

use std::sync::Arc;

use store::RecoveredQueue;
use store::pages::Survey;

use crate::message::Message;
use crate::queue::{Delivery, NEVER, Queue, Run};

/// Bytes of memory that may still be filled with messages.
pub(super) struct LoadBudget(pub(super) u64);

/// The messages of a queue that have been found so far.
pub(super) struct Filling<'q> {
    pub(super) queue: &'q Arc<Queue>,
    next_position: u64,
    /// A summary of the messages in its segments.
    segments: Survey,
    /// The messages that have been loaded into memory.
    warm: Vec<Delivery>,
    /// The messages in its segments stay on disk.
    segments_are_on_disk: bool,
    /// All further messages stay on disk.
    is_on_disk: bool,
    /// The messages that stay on disk, for a queue without priorities, except those in its segments.
    on_disk: Option<Survey>,
    /// Position, body size in bytes, expiry and priority of the messages that stay on disk, for a queue with
    /// priorities.
    ranked: Vec<(u64, u32, u64, u8)>,
}

impl<'q> Filling<'q> {
    pub(super) fn new(queue: &'q Arc<Queue>, known: &RecoveredQueue, room: &mut LoadBudget) -> Self {
        let segments = known.segments;
        let is_on_disk = segments.live > 0 && !room.take(segments.weight + segments.live * USUAL_REST);
        let (next_position, warm, ranked) = (known.next_position, Vec::new(), Vec::new());
        let segments_are_on_disk = is_on_disk;
        Self { queue, next_position, segments, warm, segments_are_on_disk, is_on_disk, on_disk: None, ranked }
    }

    /// Whether the messages in its segments have to be read.
    pub(super) fn wants_segments(&self) -> bool {
        self.segments.live > 0 && (!self.segments_are_on_disk || self.priorities() > 0)
    }

    /// Adds a message that the store has read.
    pub(super) fn take(
        &mut self,
        message: &Arc<Message>,
        place: &store::StoredLocation,
        room: &mut LoadBudget,
    ) {
        let in_segments = self.segments.positions.is_some_and(|(_, last)| place.position <= last);
        self.is_on_disk |= !in_segments && !room.take(message.weight());
        let expires = if place.expires == 0 { NEVER } else { place.expires };
        let (position, deliveries, failures) = (place.position, place.deliveries, place.deliveries);
        let delivery = Delivery { position, expires, message: message.clone(), deliveries, failures };
        if self.is_on_disk { self.leave(&delivery) } else { self.warm.push(delivery) }
    }

    /// Gives the messages to the queue, and returns their number.
    pub(super) fn finish(mut self) -> u64 {
        self.warm.sort_unstable_by_key(|delivery| delivery.position);
        // The log's order is the queue's, with a few exceptions: everything in memory must precede everything
        // on disk.
        let segments =
            self.segments.positions.filter(|_| self.segments_are_on_disk && self.priorities() == 0);
        let first = [
            segments.map(|(first, _)| first),
            self.on_disk.and_then(|on_disk| on_disk.positions).map(|(first, _)| first),
            self.ranked.iter().map(|ranked| ranked.0).min(),
        ];
        if let Some(first) = first.into_iter().flatten().min() {
            let at = self.warm.partition_point(|delivery| delivery.position < first);
            self.warm.split_off(at).iter().for_each(|delivery| self.leave(delivery));
        }
        let mut runs: Vec<Run> = (0..=self.priorities()).map(|_| Run::default()).collect();
        if let Some(span) = segments {
            runs[0].add_stored(span, self.segments.live, self.segments.weight, self.segments.expires);
        }
        if let Some(Survey { live, weight, positions: Some(span), expires }) = self.on_disk {
            runs[0].add_stored(span, live, weight, expires);
        }
        self.ranked.sort_unstable();
        for (position, bytes, expires, priority) in self.ranked {
            runs[usize::from(priority)].add_one_stored(position, bytes.into(), expires);
        }
        let messages = self.warm.len() as u64 + runs.iter().map(Run::messages).sum::<u64>();
        self.queue.restore(self.warm, runs, self.next_position);
        messages
    }

    /// Records a message that stays on disk.
    fn leave(&mut self, delivery: &Delivery) {
        let (position, bytes) = (delivery.position, delivery.message.body_len());
        let highest = self.priorities();
        if highest > 0 {
            let priority = delivery.message.traits().priority.unwrap_or(0).min(highest);
            self.ranked.push((position, bytes as u32, delivery.expires, priority));
            return;
        }
        let on_disk = self.on_disk.get_or_insert_default();
        on_disk.live += 1;
        on_disk.weight += bytes as u64;
        on_disk.expires = on_disk.expires.min(delivery.expires);
        let (first, last) = on_disk.positions.unwrap_or((position, position));
        on_disk.positions = Some((first.min(position), last.max(position)));
    }

    fn priorities(&self) -> u8 {
        self.queue.highest_priority()
    }
}

impl LoadBudget {
    /// Takes `bytes` from the remaining memory; returns whether there were enough.
    fn take(&mut self, bytes: u64) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Bytes of memory that a message usually takes beside its body.
const USUAL_REST: u64 = 192;
