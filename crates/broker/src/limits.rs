//! Counts open connections, channels and queues against limits.

use std::sync::atomic::{AtomicU64, Ordering};

use amqp::ReplyCode;

use crate::compatibility::Compatibility;
use crate::error::BrokerError;

/// Limits of one virtual host (RabbitMQ, "Virtual Hosts", limits); `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VirtualHostLimits {
    /// `max-connections`.
    pub max_connections: Option<u64>,
    /// `max-queues`.
    pub max_queues: Option<u64>,
}

/// The number of connections, channels or queues that exist now.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    /// Counts one more.
    ///
    /// # Errors
    /// Returns the limit if it is reached; nothing is counted then.
    pub(crate) fn enter(&self, limit: Option<u64>) -> Result<(), u64> {
        let below = |count: u64| limit.is_none_or(|limit| count < limit).then_some(count + 1);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below) {
            Ok(_) => Ok(()),
            Err(_) => Err(limit.unwrap_or(u64::MAX)),
        }
    }

    /// Subtracts `count`.
    pub(crate) fn leave(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }
}

pub(crate) fn vhost_is_full(vhost: &str, user: &str, limit: u64) -> BrokerError {
    not_allowed(format!(
        "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
    ))
}

pub(crate) fn too_many_connections(user: &str, limit: u64) -> BrokerError {
    not_allowed(format!("connection refused for user '{user}': user connection limit ({limit}) is reached"))
}

pub(crate) fn too_many_channels(user: &str, limit: u64, compatibility: Compatibility) -> BrokerError {
    let limit = compatibility.channel_limit(limit);
    not_allowed(format!(
        "number of channels opened for user '{user}' has reached the maximum allowed user limit of {limit}"
    ))
}

pub(crate) fn too_many_queues(queue: &str, vhost: &str, limit: u64) -> BrokerError {
    BrokerError::precondition(format!(
        "cannot declare queue '{queue}': queue limit in vhost '{vhost}' ({limit}) is reached"
    ))
}

fn not_allowed(text: String) -> BrokerError {
    BrokerError::Refused { code: ReplyCode::NotAllowed, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_stops_at_its_limit_until_others_leave() {
        let tally = Tally::default();
        assert_eq!(
            (tally.enter(Some(2)), tally.enter(Some(2)), tally.enter(Some(2))),
            (Ok(()), Ok(()), Err(2))
        );
        tally.leave(1);
        assert_eq!(tally.enter(Some(2)), Ok(()));
        assert_eq!(tally.enter(None), Ok(()), "no limit");
        assert_eq!(Tally::default().enter(Some(0)), Err(0));
    }
}
