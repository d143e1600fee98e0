//! Roles of shared connections: publishing, or everything else (P10).
//!
//! A broker with a memory or disk alarm stops reading a connection once it publishes, and everything behind
//! that message waits: acknowledgements, gets, declarations, closes (RabbitMQ, "Memory and Disk Alarms";
//! rabbit_reader.erl). So channels that publish are kept on separate connections. A connection has a role
//! while channels of it are in use.

use std::sync::Arc;

use amqp::Credentials;

use super::slot::Slot;
use super::{Phase, Upstream, UpstreamState};
use crate::link::ClientLink;

/// The use of the channels of a shared connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Everything but publishing.
    #[default]
    General,
    /// Publishing, with confirms and everything else that belongs to it.
    Publishing,
}

/// A session that may place channels on a connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) link: Arc<ClientLink>,
    /// Whether it has published here, or owns the connection: it then receives `connection.blocked`. Never cleared.
    publishes: bool,
    /// Its credentials, if they differ from the connection's.
    pub(super) renewed: Option<Arc<Credentials>>,
}

impl Attached {
    pub(super) fn new(link: Arc<ClientLink>, publishes: bool) -> Self {
        Self { link, publishes, renewed: None }
    }
}

impl Upstream {
    /// Whether the broker has stopped reading the connection because of what was published there.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped()
    }

    /// The broker's reason for that, if [`Self::is_stopped`].
    pub(crate) fn stopped_for(&self) -> Option<Box<str>> {
        let state = self.state.lock();
        state.blocked.clone().filter(|_| state.is_stopped())
    }

    /// The role of its channels.
    pub(crate) fn role(&self) -> Role {
        self.state.lock().role.unwrap_or_default()
    }

    /// Gives the connection the publishing role if only this channel is in use; returns the queue that an empty name
    /// meant on the channel. Returns `None`, and changes nothing, if other channels are in use.
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

impl UpstreamState {
    /// Whether a channel with this role may be placed here, among those of other clients.
    pub(super) fn takes(&self, role: Role) -> bool {
        let has_role = self.role.is_none_or(|present| present == role);
        has_role && (role == Role::Publishing || !self.is_stopped())
    }

    /// See [`Upstream::is_stopped`]. After `connection.blocked` a broker keeps reading connections that have
    /// not published.
    pub(super) fn is_stopped(&self) -> bool {
        self.blocked.is_some() && self.has_published
    }

    /// Records that a client is about to publish here. On its first publish, it is notified if the connection is blocked.
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

    /// The sessions that receive `connection.blocked`.
    pub(super) fn publishers(&self) -> impl Iterator<Item = &Arc<ClientLink>> {
        self.attached.iter().filter(|attached| attached.publishes).map(|attached| &attached.link)
    }

    /// Detaches a session.
    pub(super) fn forget_attached(&mut self, link: &Arc<ClientLink>) {
        if self.blocked.is_some() && self.publishers().any(|other| Arc::ptr_eq(other, link)) {
            link.unblock();
        }
        self.attached.retain(|other| !Arc::ptr_eq(&other.link, link));
    }
}
