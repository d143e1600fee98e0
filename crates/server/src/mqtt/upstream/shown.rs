//! The sessions, groups and retained messages in front of an upstream, for operators.

use broker::Timestamp;

use super::group_table::GroupStatus;
use super::hub::{DetachedUpstream, UpstreamHub};
use super::retained::RetainedStatus;
use crate::clock::Clock;
use crate::mqtt::session_ownership::Owner;

/// Detached sessions that are listed before the lock of all sessions is released: some tens of microseconds.
pub(super) const SESSIONS_AT_ONCE: usize = 128;

/// A session without a connection, as far as this process knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetachedMqttSession {
    /// The client identifier in its CONNECT.
    pub client_id: String,
    /// The user that the session belongs to.
    pub user: String,
    /// The virtual host of its queues.
    pub vhost: String,
    /// Number of its subscriptions.
    pub subscriptions: usize,
    /// Seconds that the session outlives its connection; `u32::MAX` forever.
    pub expiry: u32,
    /// The wall clock's time when the connection ended.
    pub since: Timestamp,
}

impl DetachedMqttSession {
    pub(super) fn of(owner: &Owner, detached_session: &DetachedUpstream, clock: Clock) -> Self {
        Self {
            client_id: owner.client_id.to_string(),
            user: detached_session.user.to_string(),
            vhost: owner.vhost.to_string(),
            subscriptions: detached_session.session.subscription_count(),
            expiry: detached_session.expiry,
            since: clock.wall_time(detached_session.since),
        }
    }
}

impl UpstreamHub {
    /// The groups with members connected to this server, in no order.
    pub(crate) fn groups(&self) -> Vec<GroupStatus> {
        self.groups.status()
    }

    /// The retained messages of each virtual host with clients, in no order.
    pub(crate) fn retained_messages(&self) -> Vec<RetainedStatus> {
        self.retained.status()
    }
}
