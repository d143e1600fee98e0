//! Messages of QoS 1 and 2 in flight to the client (section 4.3).

use std::collections::VecDeque;

use super::OutgoingMessage;
use crate::packet::QoS;

/// The messages in the order of their first sending, in which they are also sent again (section 4.6).
#[derive(Debug, Default)]
pub struct Outgoing {
    entries: VecDeque<InFlight>,
    /// The packet identifier assigned last.
    last_id: u16,
    /// Number of identifiers after `last_id` that are known to be free.
    free_ids: u16,
    /// Entries at the end of the queue that were not sent again since the client reconnected.
    unsent: usize,
    /// See [`InFlight::sequence`].
    next_sequence: u64,
}

/// A message in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    /// The packet identifier, shared with the client.
    pub packet_id: u16,
    /// The tag by which the broker knows it.
    pub tag: u64,
    /// Its number in the order of first sending.
    pub sequence: u64,
    /// How far its acknowledgement has come.
    pub stage: Stage,
}

/// The progress of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// PUBLISH was sent; PUBACK or PUBREC is expected. The message is stored in case it has to be sent again.
    Published(OutgoingMessage),
    /// PUBREC was received; the server stores that before it sends PUBREL.
    Received,
    /// PUBREL was sent; PUBCOMP is expected.
    Released,
}

impl InFlight {
    /// Whether it is of QoS 2; a message that has left `Published` always is.
    pub fn is_exactly_once(&self) -> bool {
        !matches!(&self.stage, Stage::Published(message) if message.qos != QoS::ExactlyOnce)
    }
}

impl Outgoing {
    /// The messages in order.
    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.entries.iter()
    }

    /// Messages that count towards the client's Receive Maximum.
    pub(crate) fn sent(&self) -> usize {
        self.entries.len() - self.unsent
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Adds a message that is being sent, and assigns an identifier. One must be free.
    pub(crate) fn add(&mut self, tag: u64, message: OutgoingMessage) -> u16 {
        debug_assert!(self.unsent == 0 && self.entries.len() < usize::from(u16::MAX));
        while self.free_ids == 0 {
            self.find_free_ids();
        }
        self.free_ids -= 1;
        self.last_id = next_id(self.last_id);
        let (packet_id, sequence) = (self.last_id, self.next_sequence);
        self.next_sequence += 1;
        self.entries.push_back(InFlight { packet_id, tag, sequence, stage: Stage::Published(message) });
        packet_id
    }

    /// A message that is in flight.
    pub(super) fn get(&self, packet_id: u16) -> Option<&InFlight> {
        self.entries.get(self.position(packet_id)?)
    }

    /// Sets `free_ids`, and skips the next identifier if it is in use. Identifiers are assigned in ascending order, so this
    /// scan of the entries is rare.
    fn find_free_ids(&mut self) {
        let last = self.last_id;
        let distances = self.entries.iter().map(|entry| distance(last, entry.packet_id));
        // The distance from the last identifier to itself is the longest one.
        self.free_ids = distances.min().unwrap_or(u16::MAX) - 1;
        if self.free_ids == 0 {
            self.last_id = next_id(last);
        }
    }

    /// Restores an entry that was on disk, behind those before it.
    pub(super) fn restore(&mut self, entry: InFlight) {
        (self.last_id, self.free_ids) = (entry.packet_id, 0);
        self.next_sequence = entry.sequence.saturating_add(1);
        self.entries.push_back(entry);
        self.unsent += 1;
    }

    pub(crate) fn find(&mut self, packet_id: u16) -> Option<&mut InFlight> {
        let at = self.position(packet_id)?;
        self.entries.get_mut(at)
    }

    /// The index of a message that was sent. Nearly always the entries have identifiers without gaps, and the first one is
    /// acknowledged first.
    fn position(&self, packet_id: u16) -> Option<usize> {
        let sent = self.sent();
        let has_id = |at: usize| self.entries.get(at).is_some_and(|entry| entry.packet_id == packet_id);
        let first = self.entries.front()?.packet_id;
        let guess = if first == packet_id { 0 } else { usize::from(distance(first, packet_id)) };
        if guess < sent && has_id(guess) {
            return Some(guess);
        }
        (0..sent).find(|at| has_id(*at))
    }

    /// Removes a message that is complete.
    pub(crate) fn remove(&mut self, packet_id: u16) -> Option<InFlight> {
        let at = self.position(packet_id)?;
        self.entries.remove(at)
    }

    pub(super) fn forget(&mut self, tag: u64) {
        if let Some(at) = self.entries.iter().position(|entry| entry.tag == tag) {
            self.unsent -= usize::from(at >= self.sent());
            self.entries.remove(at);
        }
    }

    pub(super) fn remap_tags(&mut self, mut tag: impl FnMut(u64) -> Option<u64>) -> bool {
        let mut has_changed = false;
        for entry in &mut self.entries {
            if let Some(tag) = tag(entry.tag) {
                entry.tag = tag;
                has_changed = true;
            }
        }
        has_changed
    }

    /// Returns the next entry to be sent again, and counts it as sent.
    pub(crate) fn next_unsent(&mut self) -> Option<&mut InFlight> {
        let at = self.entries.len().checked_sub(self.unsent).filter(|_| self.unsent > 0)?;
        self.unsent -= 1;
        self.entries.get_mut(at)
    }

    /// Prepares for a new connection: all entries are to be sent again, except messages that `keep` rejects,
    /// whose tags are returned.
    pub(crate) fn resume(&mut self, keep: impl Fn(&OutgoingMessage) -> bool) -> Vec<u64> {
        let mut dropped = Vec::new();
        self.entries.retain(|entry| match &entry.stage {
            Stage::Published(message) if !keep(message) => {
                dropped.push(entry.tag);
                false
            }
            _ => true,
        });
        self.unsent = self.entries.len();
        dropped
    }
}

/// The identifier after another; 0 is none.
fn next_id(id: u16) -> u16 {
    id.checked_add(1).unwrap_or(1)
}

/// Number of steps of [`next_id`] from one identifier to another: at least one, and [`u16::MAX`] to itself.
fn distance(from: u16, to: u16) -> u16 {
    if to > from { to - from } else { u16::MAX - (from - to) }
}
