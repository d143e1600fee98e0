//! The messages that wait in an inbox, some of which may be dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use super::inbox::{ENTRY, MultiplexedMessage, SubscriptionNumbers};

/// Messages in the order of their arrival.
#[derive(Default)]
pub(super) struct WaitingMessages {
    /// Messages that may be dropped, and the others. Each has its number in the order of arrival.
    droppable: VecDeque<WaitingMessage>,
    others: VecDeque<WaitingMessage>,
    /// The number of the next message.
    next_place: u64,
    /// Bytes of both.
    bytes: usize,
}

pub(super) struct WaitingMessage {
    place: u64,
    pub(super) numbers: SubscriptionNumbers,
    pub(super) message: Arc<MultiplexedMessage>,
}

impl WaitingMessages {
    pub(super) fn len(&self) -> usize {
        self.droppable.len() + self.others.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the budget that its entries take, without the messages.
    pub(super) fn overhead(&self) -> usize {
        ENTRY * self.len()
    }

    pub(super) fn push(
        &mut self,
        numbers: SubscriptionNumbers,
        message: &Arc<MultiplexedMessage>,
        is_droppable: bool,
    ) {
        let (place, message) = (self.next_place, Arc::clone(message));
        self.next_place += 1;
        self.bytes += message.size();
        let line = if is_droppable { &mut self.droppable } else { &mut self.others };
        line.push_back(WaitingMessage { place, numbers, message });
    }

    /// The oldest message.
    pub(super) fn first_mut(&mut self) -> Option<&mut WaitingMessage> {
        self.first_line_mut().front_mut()
    }

    /// Removes the oldest message.
    pub(super) fn pop(&mut self) -> Option<WaitingMessage> {
        let first = self.first_line_mut().pop_front()?;
        self.bytes -= first.message.size();
        Some(first)
    }

    /// Removes the oldest message that may be dropped. Returns whether there was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let oldest = self.droppable.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, |oldest| oldest.message.size());
        oldest.is_some()
    }

    /// The list with the oldest message.
    fn first_line_mut(&mut self) -> &mut VecDeque<WaitingMessage> {
        let place = |line: &VecDeque<WaitingMessage>| line.front().map_or(u64::MAX, |first| first.place);
        if place(&self.droppable) < place(&self.others) { &mut self.droppable } else { &mut self.others }
    }
}
