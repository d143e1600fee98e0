//! A queue's consumers, and whose turn it is.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use super::delivery::{Consumer, ConsumerId, Room};
use crate::SessionId;

/// All consumers of a queue.
#[derive(Default)]
pub(super) struct Consumers {
    entries: Slab<ConsumerEntry>,
    /// Consumers with room, by priority, the highest first. Groups go when their last member goes.
    groups: Vec<Group>,
    /// Told apart from consumers that had the same slot before.
    next_serial: u32,
    single_active: bool,
    /// The one consumer that may be served, of a queue with `x-single-active-consumer`.
    active: Option<u32>,
}

struct Group {
    priority: i64,
    members: usize,
    /// Whose turn it is next, of those that have room.
    with_room: VecDeque<u32>,
}

/// One consumer.
pub(super) struct ConsumerEntry {
    pub(super) consumer: Arc<dyn Consumer>,
    pub(super) no_ack: bool,
    pub(super) session: SessionId,
    pub(super) tag: Box<str>,
    pub(super) exclusive: bool,
    pub(super) priority: i64,
    serial: u32,
    /// Has said that it takes more.
    has_room: bool,
}

impl ConsumerEntry {
    pub(super) fn new(
        consumer: Arc<dyn Consumer>,
        session: SessionId,
        tag: &str,
        no_ack: bool,
        exclusive: bool,
        priority: i64,
    ) -> Self {
        Self { consumer, no_ack, session, tag: tag.into(), exclusive, priority, serial: 0, has_room: false }
    }
}

impl Consumers {
    pub(super) fn new(single_active: bool) -> Self {
        Self { single_active, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_single_active(&self) -> bool {
        self.single_active
    }

    pub(super) fn has_exclusive(&self) -> bool {
        self.entries.iter().any(|(_, entry)| entry.exclusive)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ConsumerEntry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Adds a consumer that has no room yet.
    pub(super) fn insert(&mut self, mut entry: ConsumerEntry) -> ConsumerId {
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        entry.serial = serial;
        let priority = entry.priority;
        match self.groups.binary_search_by(|group| priority.cmp(&group.priority)) {
            Ok(at) => self.groups[at].members += 1,
            Err(at) => self.groups.insert(at, Group { priority, members: 1, with_room: VecDeque::new() }),
        }
        let slot = self.entries.insert(entry) as u32;
        if self.single_active && self.active.is_none() {
            self.active = Some(slot);
        }
        ConsumerId(u64::from(serial) << 32 | u64::from(slot))
    }

    /// Removes a consumer, if it is still there.
    pub(super) fn remove(&mut self, id: ConsumerId) -> Option<ConsumerEntry> {
        let slot = self.slot(id)?;
        let entry = self.entries.remove(slot as usize);
        if let Some(at) = self.group_of(entry.priority) {
            let group = &mut self.groups[at];
            group.members -= 1;
            if group.members == 0 {
                self.groups.remove(at);
            } else if entry.has_room {
                group.with_room.retain(|&other| other != slot);
            }
        }
        if self.active == Some(slot) {
            self.active = None;
            self.activate_next();
        }
        Some(entry)
    }

    /// Notes that a consumer has room; whether it can be served now.
    pub(super) fn resume(&mut self, id: ConsumerId) -> bool {
        let Some(slot) = self.slot(id) else { return false };
        let entry = &mut self.entries[slot as usize];
        if !entry.has_room {
            entry.has_room = true;
            self.enlist(slot);
        }
        !self.single_active || self.active == Some(slot)
    }

    /// The consumer whose turn it is, and whether no other of its priority has room.
    pub(super) fn next(&self) -> Option<(u32, bool)> {
        let group = self.groups.iter().find(|group| !group.with_room.is_empty())?;
        Some((*group.with_room.front()?, group.with_room.len() == 1))
    }

    pub(super) fn get(&self, slot: u32) -> &ConsumerEntry {
        &self.entries[slot as usize]
    }

    /// Ends the turn of the consumer that [`Consumers::next`] named.
    pub(super) fn served(&mut self, slot: u32, room: Room) {
        let entry = &mut self.entries[slot as usize];
        let priority = entry.priority;
        entry.has_room = room == Room::More;
        let has_room = entry.has_room;
        let Some(at) = self.group_of(priority) else { return };
        let group = &mut self.groups[at];
        group.with_room.pop_front();
        if has_room {
            group.with_room.push_back(slot);
        }
    }

    fn slot(&self, id: ConsumerId) -> Option<u32> {
        let (serial, slot) = ((id.0 >> 32) as u32, id.0 as u32);
        self.entries.get(slot as usize).filter(|entry| entry.serial == serial).map(|_| slot)
    }

    fn group_of(&self, priority: i64) -> Option<usize> {
        self.groups.binary_search_by(|group| priority.cmp(&group.priority)).ok()
    }

    /// Lets a consumer with room be served, unless it has to wait for the active one to go.
    fn enlist(&mut self, slot: u32) {
        if self.single_active && self.active != Some(slot) {
            return;
        }
        if let Some(at) = self.group_of(self.entries[slot as usize].priority) {
            self.groups[at].with_room.push_back(slot);
        }
    }

    /// The longest waiting consumer of the highest priority becomes the active one.
    fn activate_next(&mut self) {
        let age = |serial: u32| self.next_serial.wrapping_sub(serial);
        let next = self.entries.iter().max_by_key(|(_, entry)| (entry.priority, age(entry.serial)));
        if let Some((slot, entry)) = next {
            let has_room = entry.has_room;
            self.active = Some(slot as u32);
            if has_room {
                self.enlist(slot as u32);
            }
        }
    }
}
