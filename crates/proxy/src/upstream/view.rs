//! A snapshot of an upstream connection, for display.

use std::time::Duration;

use super::slot::Slot;
use super::{Phase, Upstream};

/// An upstream connection at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamView {
    /// The broker's address and the connection's number, as in the log.
    pub name: String,
    /// The broker's address alone.
    pub address: String,
    /// The user that is logged in there.
    pub user: String,
    /// The virtual host that it has opened.
    pub vhost: String,
    /// How long ago it was opened.
    pub age: Duration,
    /// Whether it takes new channels.
    pub is_open: bool,
    /// Whether it belongs to one client alone.
    pub is_own: bool,
    /// The broker's reason for `connection.blocked`, while it is blocked.
    pub blocked: Option<String>,
    /// Channels that are neither free nor resting.
    pub channels: usize,
    /// Channels that rest: open, clean and not leased.
    pub resting: usize,
    /// Bytes waiting for the broker to take them.
    pub backlog: usize,
    /// The clients whose channels are here, by the numbers of their connections.
    pub clients: Vec<u64>,
}

impl Upstream {
    pub(crate) fn view(&self) -> UpstreamView {
        let state = self.state.lock();
        let leased = state.slots.iter().filter_map(|slot| match slot {
            Slot::Leased(lease) => Some(lease.link.client),
            _ => None,
        });
        let owner = state.owner.iter().map(|owner| owner.client);
        let mut clients: Vec<u64> = leased.chain(owner).collect();
        clients.sort_unstable();
        clients.dedup();
        UpstreamView {
            name: format!("{}#{}", self.endpoint, self.id),
            address: self.endpoint.to_string(),
            user: self.credentials.load().username.clone(),
            vhost: self.virtual_host.to_string(),
            age: transport::now().saturating_duration_since(self.opened_at),
            is_open: state.phase == Phase::Open,
            is_own: state.owner.is_some(),
            blocked: state.blocked.as_ref().map(|reason| reason.to_string()),
            channels: state.in_use,
            resting: state.resting.len(),
            backlog: self.outbox.backlog(),
            clients,
        }
    }
}
