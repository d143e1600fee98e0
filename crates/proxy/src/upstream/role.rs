//! What the channels of a connection that clients share are used for (P10).
//!
//! A broker with a memory or disk alarm stops reading a connection once it publishes, and everything behind that message
//! waits: acknowledgements, gets, declarations, closes (RabbitMQ, "Memory and Disk Alarms"; rabbit_reader.erl). So channels
//! that publish are kept on connections apart. A connection has a role while channels of it are in use.

use std::sync::Arc;

use super::slot::Slot;
use super::{Phase, State, Upstream};
use crate::link::ClientLink;

/// What the channels of a shared connection are used for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything but publishing.
    #[default]
    General,
    /// Publishing, and what belongs to it, such as confirms.
    Publishing,
}

/// A session that may place channels on a connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) link: Arc<ClientLink>,
    /// It has published here, or the connection is its own: it hears `connection.blocked`. Never cleared.
    publishes: bool,
}

impl Attached {
    pub(super) fn new(link: Arc<ClientLink>, publishes: bool) -> Self {
        Self { link, publishes }
    }
}

impl Upstream {
    /// Whether the broker has stopped reading the connection because of what was published there.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped()
    }

    /// Makes a connection with no other channel in use one for publishing; returns what an empty queue name has meant on the
    /// channel. `None`, and nothing is changed, where there are others.
    pub(crate) fn turn_publishing(&self, number: u16) -> Option<Option<Box<str>>> {
        let mut state = self.state.lock();
        if state.in_use != 1 || state.owner.is_some() || state.phase != Phase::Open {
            return None;
        }
        let Some(Slot::Leased(lease)) = state.slot(number) else { return None };
        let (link, last_queue) = (lease.link.clone(), lease.last_queue.clone());
        state.role = Some(Role::Publishing);
        state.publishes(&link);
        Some(last_queue)
    }
}

impl State {
    /// Whether a channel for this use may be placed here, among those of other clients.
    pub(super) fn takes(&self, role: Role) -> bool {
        let suits = self.role.is_none_or(|present| present == role);
        suits && (role == Role::Publishing || !self.is_stopped())
    }

    /// See [`Upstream::is_stopped`]. A broker that says `connection.blocked` where nobody publishes reads on.
    pub(super) fn is_stopped(&self) -> bool {
        self.blocked.is_some() && self.has_published
    }

    /// A client is about to publish here, perhaps not for the first time: it hears what the others have heard.
    pub(super) fn publishes(&mut self, link: &Arc<ClientLink>) {
        self.has_published = true;
        let attached = self.attached.iter_mut().find(|attached| Arc::ptr_eq(&attached.link, link));
        if let Some(attached) = attached
            && !std::mem::replace(&mut attached.publishes, true)
            && let Some(reason) = &self.blocked
        {
            attached.link.block(reason);
        }
    }

    /// The sessions that hear `connection.blocked`.
    pub(super) fn publishers(&self) -> impl Iterator<Item = &Arc<ClientLink>> {
        self.attached.iter().filter(|attached| attached.publishes).map(|attached| &attached.link)
    }

    /// A session is there no longer.
    pub(super) fn forget_attached(&mut self, link: &Arc<ClientLink>) {
        if self.blocked.is_some() && self.publishers().any(|other| Arc::ptr_eq(other, link)) {
            link.unblock();
        }
        self.attached.retain(|other| !Arc::ptr_eq(&other.link, link));
    }
}
