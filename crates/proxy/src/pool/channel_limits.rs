//! Limits on the channels of a user (`max-channels`), learned from the brokers' refusals (P2).
//!
//! RabbitMQ counts the channels of a user on all connections. When one more than the limit is opened, it closes that
//! whole connection with 530 NOT_ALLOWED. The channels that were open on it continue on another connection, those that
//! were being opened are refused, and for [`LIMIT_TTL`] the pool opens no more channels than the broker had accepted.
//!
//! # Example
//! User `u` may have 6 channels. Five clients use one each, on a shared connection where another channel rests in confirm
//! mode. A sixth client needs one to consume, and the broker closes the connection. Because one of the six channels only
//! rested, all six clients get a channel on the next connection. A seventh client is refused by the pool, with the
//! broker's text. If it tries again while a channel rests, that channel is closed first.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amqp::{Fault, ReplyCode};
use sync::{Mutex, Rank};

use super::Pool;
use crate::upstream::{ChannelCounts, Lease, Placed, Role, Upstream};

/// The limits learned from brokers, by user.
#[derive(Debug, Default)]
pub(super) struct ChannelLimits {
    of_users: Mutex<HashMap<String, ChannelLimit>, { Rank::Leaf as u8 }>,
    /// Whether `of_users` may have entries; checked without the lock.
    any: AtomicBool,
}

#[derive(Debug, Clone)]
struct ChannelLimit {
    /// The broker's refusal.
    fault: Fault,
    /// Number of channels that the broker has accepted for the user.
    most: usize,
    ends_at: Instant,
    /// Number of channels that were lost with the connection and are expected to be opened again.
    to_resume: usize,
    /// Until when numbers are reserved for `to_resume`. Clients that have not reopened by then may be gone, or need no
    /// channel until they send something.
    resumed_by: Instant,
}

/// The number of channels that a user may have, if a broker has closed a connection over it. RabbitMQ's text ends with `(6)`
/// in 3.10 and with `6` in 4.3 (`rabbit_reader`).
pub(crate) fn channel_limit(fault: &Fault, user: &str) -> Option<usize> {
    let rest = fault.text.strip_prefix("number of channels opened for user '")?.strip_prefix(user)?;
    let most = rest.strip_prefix("' has reached the maximum allowed user limit of ")?;
    let in_brackets = most.strip_prefix('(').and_then(|most| most.strip_suffix(')'));
    in_brackets.unwrap_or(most).parse().ok().filter(|_| fault.code == ReplyCode::NotAllowed)
}

impl Pool {
    /// Leases a channel, within the limit of its user if that is known. Returns [`Placed::Limited`] while lost channels are
    /// expected to be reopened, or a channel that was given back waits for confirms; the caller should try again shortly.
    ///
    /// # Errors
    /// The broker's refusal, if the user has as many channels in use as the limit allows.
    pub(crate) fn lease(
        &self,
        upstream: &Upstream,
        lease: Lease,
        confirm: bool,
        role: Role,
    ) -> Result<Placed, Fault> {
        if !self.channel_limits.any.load(Ordering::Acquire) {
            return Ok(upstream.lease(lease, confirm, role, true));
        }
        let user = upstream.credentials().username.clone();
        let (link, again, now) = (lease.link.clone(), lease.again, lease.opened_at);
        // Locked until the channel is leased, so that concurrent leases do not exceed the limit together.
        let connections = self.connections.lock();
        let Some(limit) = self.channel_limits.of(&user, now) else {
            return Ok(upstream.lease(lease, confirm, role, true));
        };
        let of_user = connections.get(&user).map_or(&[][..], |of_user| of_user);
        let used: usize = of_user.iter().map(|other| other.channels_at_broker()).sum();
        let reserved = if again || now >= limit.resumed_by { 0 } else { limit.to_resume };
        match upstream.lease(lease, confirm, role, used + reserved < limit.most) {
            Placed::Limited => {
                // Closing a resting channel on any connection is preferred to waiting for confirms.
                let is_closing = of_user.iter().any(|other| other.close_one_for(&link, now));
                let is_settling = || of_user.iter().any(|other| other.wait_for_settling(&link));
                match is_closing {
                    true => Ok(Placed::Soon),
                    false if is_settling() || reserved > 0 => Ok(Placed::Limited),
                    false => Err(limit.fault),
                }
            }
            placed => {
                if again && matches!(placed, Placed::On(_)) {
                    self.channel_limits.resumed(&user);
                }
                Ok(placed)
            }
        }
    }

    /// Learns a user's limit from the fault with which a broker has closed a connection. Returns whether the channels that
    /// were being opened on it are to be refused, because all channels that the user may have are in use.
    pub(crate) fn learn_channel_limit(&self, upstream: &Upstream, fault: &Fault, now: Instant) -> bool {
        let user = &upstream.credentials().username;
        let Some(told) = channel_limit(fault, user) else { return false };
        let connections = self.connections.lock();
        let of_user = connections.get(user).into_iter().flatten();
        let all = of_user.fold(ChannelCounts::default(), |all, other| all + other.channel_counts());
        let lost = upstream.channel_counts();
        self.channel_limits.learn(user, told, fault, (all, lost), now)
    }
}

impl ChannelLimits {
    fn of(&self, user: &str, now: Instant) -> Option<ChannelLimit> {
        let mut of_users = self.of_users.lock();
        let limit = of_users.get(user).filter(|limit| now < limit.ends_at).cloned();
        if limit.is_none() {
            of_users.remove(user);
            self.any.store(!of_users.is_empty(), Ordering::Release);
        }
        limit
    }

    /// Counts a channel that was lost as opened again.
    fn resumed(&self, user: &str) {
        if let Some(limit) = self.of_users.lock().get_mut(user) {
            limit.to_resume = limit.to_resume.saturating_sub(1);
        }
    }

    /// Sets a user's limit. `all` counts the channels of all connections, `lost` those of the connection that ends.
    fn learn(
        &self,
        user: &str,
        told: usize,
        fault: &Fault,
        (all, lost): (ChannelCounts, ChannelCounts),
        now: Instant,
    ) -> bool {
        let mut of_users = self.of_users.lock();
        of_users.retain(|_, limit| now < limit.ends_at);
        let before = of_users.remove(user);
        // Clients of other pools may use part of the limit, so the number that was open here is taken. While lost channels
        // are being reopened, the broker may still count the lost ones, so the earlier number stays.
        let most = match &before {
            Some(limit) if all.reopening > 0 => limit.most.min(told),
            _ if all.reopening > 0 => told,
            _ => told.min(all.open.max(1)),
        };
        let expected = before.filter(|limit| now < limit.resumed_by).map_or(0, |limit| limit.to_resume);
        if of_users.len() < MAX_USERS {
            let limit = ChannelLimit {
                fault: fault.clone(),
                most,
                ends_at: now + LIMIT_TTL,
                to_resume: expected + lost.used + lost.reopening,
                resumed_by: now + RESUME_TIMEOUT,
            };
            of_users.insert(user.to_owned(), limit);
            self.any.store(true, Ordering::Release);
        }
        all.used + all.reopening >= most
    }
}

/// How long a learned limit is enforced before the broker is tried again. A raised limit takes effect within this time,
/// and a user that keeps exceeding its limit causes the loss of a connection at most this often.
const LIMIT_TTL: Duration = Duration::from_secs(30);
/// How long numbers stay reserved for lost channels: longer than a handshake with a busy broker takes.
const RESUME_TIMEOUT: Duration = Duration::from_secs(3);
/// Users whose limits are remembered; few reach their limit at the same time.
const MAX_USERS: usize = 1024;

#[cfg(test)]
mod tests {
    use amqp::Credentials;
    use amqp::frame::write_method;
    use amqp::method::channel;

    use super::*;
    use crate::PoolConfig;
    use crate::link::ClientLink;
    use crate::upstream::{Ledger, MovedState, Peer, Usage};

    fn over(most: usize) -> Fault {
        let text = format!(
            "number of channels opened for user 'u' has reached the maximum allowed user limit of ({most})"
        );
        Fault::new(ReplyCode::NotAllowed, text).on_connection()
    }

    fn counts(open: usize, used: usize, reopening: usize) -> ChannelCounts {
        ChannelCounts { open, used, reopening }
    }

    #[test]
    fn only_the_users_own_channel_limit_is_recognised() {
        assert_eq!(channel_limit(&over(6), "u"), Some(6));
        let text = "number of channels opened for user 'u' has reached the maximum allowed user limit of 6";
        assert_eq!(channel_limit(&Fault::new(ReplyCode::NotAllowed, text), "u"), Some(6));
        assert_eq!(channel_limit(&over(6), "v"), None);
        for text in [
            "number of channels opened (6) has reached the negotiated channel_max (6)",
            "number of channels opened for user 'u' has reached the maximum allowed user limit of (x)",
        ] {
            assert_eq!(channel_limit(&Fault::new(ReplyCode::NotAllowed, text), "u"), None);
        }
    }

    #[test]
    fn new_channels_are_refused_if_all_that_the_broker_allows_are_in_use() {
        let (limits, now) = (ChannelLimits::default(), Instant::now());
        // One of six rests.
        assert!(!limits.learn("u", 6, &over(6), (counts(6, 5, 0), counts(6, 5, 0)), now));
        assert_eq!(limits.of("u", now).map(|limit| (limit.most, limit.to_resume)), Some((6, 5)));
        (0..5).for_each(|_| limits.resumed("u"));
        assert!(limits.learn("u", 6, &over(6), (counts(6, 6, 0), counts(4, 4, 0)), now));
        assert_eq!(limits.of("u", now).map(|limit| (limit.most, limit.to_resume)), Some((6, 4)));
        assert!(limits.of("v", now).is_none() && limits.of("u", now + LIMIT_TTL).is_none());
    }

    #[test]
    fn a_users_limit_is_reduced_by_other_pools_but_not_by_channels_reopening() {
        let (limits, now) = (ChannelLimits::default(), Instant::now());
        assert!(limits.learn("u", 6, &over(6), (counts(4, 4, 0), counts(4, 4, 0)), now));
        assert_eq!(limits.of("u", now).map(|limit| limit.most), Some(4));
        // The broker has still counted the lost channels.
        assert!(limits.learn("u", 6, &over(6), (counts(1, 1, 3), counts(1, 1, 3)), now));
        assert_eq!(limits.of("u", now).map(|limit| limit.most), Some(4));
    }

    /// One connection has a channel that waits for a confirm, the other one has a resting channel.
    #[test]
    fn at_the_limit_a_channel_resting_on_another_connection_is_closed() {
        let pool = Pool::new(PoolConfig::new(Vec::new()));
        let (credentials, now) = (std::sync::Arc::new(Credentials::plain("u", "p")), Instant::now());
        let mut settling = Peer::new(&pool, &credentials, None, Role::Publishing, now);
        let mut resting = Peer::new(&pool, &credentials, None, Role::General, now);
        let lease = |peer: &mut Peer, role| {
            let link = ClientLink::departed(std::sync::Arc::default());
            let ledger = Ledger::new(&link, MovedState::default());
            let lease = Lease::new(link, ledger, 1, 1, now);
            pool.lease(&peer.connection.upstream, lease, role == Role::Publishing, role).unwrap()
        };
        for (peer, role) in [(&mut settling, Role::Publishing), (&mut resting, Role::General)] {
            let Placed::On(leased) = lease(peer, role) else { panic!("no channel") };
            let upstream = &peer.connection.upstream;
            upstream.outbox.append(|buf| write_method(buf.tail(), leased.channel, channel::Open::default()));
            let usage = Usage { published: u64::from(role == Role::Publishing), ..Usage::default() };
            assert!(upstream.release(leased.channel, usage, now));
            peer.read();
            peer.deliver(now);
        }
        pool.channel_limits.learn("u", 2, &over(2), (counts(2, 0, 0), counts(0, 0, 0)), now);
        assert_eq!(lease(&mut settling, Role::Publishing), Placed::Soon);
        resting.read();
        assert_eq!(resting.deliver(now), Some("channel.close-ok"));
        assert!(matches!(lease(&mut settling, Role::Publishing), Placed::On(_)));
        assert!(!settling.read(), "nothing is closed there");
    }

    #[test]
    fn the_number_of_remembered_users_is_bounded() {
        let (limits, now) = (ChannelLimits::default(), Instant::now());
        for n in 0..=MAX_USERS {
            limits.learn(&n.to_string(), 1, &over(1), (counts(1, 1, 0), counts(1, 1, 0)), now);
        }
        assert_eq!(limits.of_users.lock().len(), MAX_USERS);
    }
}
