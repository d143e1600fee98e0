//! Answers that wait for the disk, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use broker::{Lsn, Store, Ticket, Waiter};
use mqtt::ReasonCode;

/// The action that follows once everything it waits for is on disk.
pub(super) enum Then {
    /// Sends PUBACK or PUBREC.
    Accept { packet_id: u16, matched: bool },
    /// Sends PUBACK or PUBREC with a failure.
    Refuse { packet_id: u16, reason: ReasonCode, text: &'static str },
    /// Sends PUBREL.
    Release { packet_id: u16 },
    /// Sends PUBCOMP.
    Complete { packet_id: u16 },
    /// Sends SUBACK, which retained messages follow.
    Subscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends UNSUBACK.
    Unsubscribed { packet_id: u16, reasons: Vec<ReasonCode> },
    /// Sends messages to the client whose identifiers had to be recorded first.
    Send { bytes: Vec<u8> },
}

/// The waiting actions of one client.
#[derive(Default)]
pub(super) struct PendingAnswers {
    entries: VecDeque<Entry>,
    /// Number of entries that hold messages for the client.
    sends: usize,
    /// Number of entries that answer a SUBSCRIBE.
    subscribes: usize,
}

struct Entry {
    then: Then,
    lsn: Option<Lsn>,
    ticket: Option<Ticket>,
}

impl PendingAnswers {
    /// Adds an action behind all that wait. `nudge` is woken when it is worth calling [`next`](PendingAnswers::next).
    pub(super) fn push(
        &mut self,
        then: Then,
        (lsn, ticket): (Option<Lsn>, Option<Ticket>),
        store: Option<&Arc<Store>>,
        nudge: &Arc<dyn Waiter>,
    ) {
        let (mut lsn, mut ticket) = (lsn, ticket);
        if let Some(store) = store {
            lsn = lsn.filter(|lsn| *lsn > store.durable());
            ticket = ticket.filter(|ticket| !store.catalogue().is_committed(*ticket));
            if let Some(lsn) = lsn {
                store.wait(lsn, Arc::clone(nudge));
            }
            if let Some(ticket) = ticket {
                store.catalogue().wait(ticket, Arc::clone(nudge));
            }
        }
        self.sends += usize::from(matches!(then, Then::Send { .. }));
        self.subscribes += usize::from(matches!(then, Then::Subscribed { .. }));
        self.entries.push_back(Entry { then, lsn, ticket });
    }

    /// The next action that is ready.
    pub(super) fn next(&mut self, store: Option<&Arc<Store>>) -> Option<Then> {
        let is_ready = |entry: &mut Entry| {
            store.is_none_or(|store| {
                entry.lsn.is_none_or(|lsn| lsn <= store.durable())
                    && entry.ticket.is_none_or(|ticket| store.catalogue().is_committed(ticket))
            })
        };
        let entry = self.entries.pop_front_if(is_ready)?;
        self.sends -= usize::from(matches!(entry.then, Then::Send { .. }));
        self.subscribes -= usize::from(matches!(entry.then, Then::Subscribed { .. }));
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
        Some(entry.then)
    }

    /// Whether messages for the client wait, which others must not overtake.
    pub(super) fn holds_messages(&self) -> bool {
        self.sends > 0
    }

    /// Whether a SUBACK waits, which retained messages must not overtake.
    pub(super) fn holds_subscriptions(&self) -> bool {
        self.subscribes > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all actions when there is no client left to answer.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Then> {
        (self.sends, self.subscribes) = (0, 0);
        std::mem::take(&mut self.entries).into_iter().map(|entry| entry.then)
    }
}
