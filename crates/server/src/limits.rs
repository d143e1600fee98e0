//! Limits of clients' use: connections, new connections per second, channels, and bytes per second. Each is in total, per
//! address (of IPv6: per [network](network_of)), and per user.
//!
//! [`Limits`] holds the limits, [`ConnectionCounter`] counts against them, and [`ConnectionLease`] is one connection's
//! share of the counts. With [`Limits::alarm_only`] an excess is counted and logged as usual but allowed, which
//! shows what limits would do before they are enforced.

mod bucket;
mod exceeded;
mod in_use;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use broker::network_of;
use hashbrown::HashMap;
use parking_lot::Mutex;

use self::bucket::Bucket;
pub use self::exceeded::Exceeded;
pub use self::in_use::InUse;

/// One number for each scope of a limit; as a limit, 0 means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes<T> {
    /// All clients of the process, whatever their address and user.
    pub total: T,
    /// Clients from one IP address. Unix sockets have none.
    pub per_ip: T,
    /// Clients logged in as one user.
    pub per_user: T,
}

/// Connections that may be open at one time, in each scope.
pub type ConnectionLimits = Scopes<usize>;

/// All limits on clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time.
    pub connections: ConnectionLimits,
    /// New connections per second, and the size of a burst. A user's connections are counted at login.
    pub connection_rate: Scopes<usize>,
    /// Channels at one time.
    pub channels: Scopes<usize>,
    /// Bytes received per second after login, and the size of a burst. Bytes beyond that stay in the socket
    /// until the client may send again; this is not an error.
    pub receive_rate: Scopes<usize>,
    /// Refuses and delays nobody, but counts and logs every excess.
    pub alarm_only: bool,
}

impl From<ConnectionLimits> for Limits {
    fn from(connections: ConnectionLimits) -> Self {
        Self { connections, ..Self::default() }
    }
}

/// The resource that a limit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// [`Limits::connections`]
    Connections,
    /// [`Limits::connection_rate`]
    ConnectionRate,
    /// [`Limits::channels`]
    Channels,
    /// [`Limits::receive_rate`]
    ReceiveRate,
}

/// The clients that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All clients.
    Total,
    /// The clients from one address.
    PerIp,
    /// The clients of one user.
    PerUser,
}

/// A limit that a client would exceed.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached {
    /// The resource that is used up: connections, their rate, or channels.
    pub what: Limited,
    /// The clients that share the limit.
    pub scope: Scope,
    /// The configured limit: a number, or a number per second for rates.
    pub most: usize,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, unit) = match self.what {
            Limited::Connections => ("connection limit", ""),
            Limited::ConnectionRate => ("connection rate limit", "/s"),
            Limited::Channels => ("channel limit", ""),
            Limited::ReceiveRate => ("receive rate limit", " B/s"),
        };
        let scope = match self.scope {
            Scope::Total => "",
            Scope::PerIp => " per address",
            Scope::PerUser => " per user",
        };
        write!(f, "{what}{scope} ({}{unit}) is reached", self.most)
    }
}

/// Counts connections and their use of resources against the limits.
#[derive(Debug)]
pub struct ConnectionCounter {
    /// Operators change the limits at run time.
    limits: ArcSwap<Limits>,
    counts: Mutex<Counts>,
    /// Share of all clients together.
    total: Arc<Share>,
    exceeded: Exceeded,
}

#[derive(Debug)]
struct Counts {
    connections: usize,
    arrivals: Bucket,
    by_ip: Members<IpAddr>,
    by_user: Members<Arc<str>>,
}

/// The clients counted by what they share a limit on: an address or a user.
#[derive(Debug)]
struct Members<K> {
    members: HashMap<K, Member>,
    /// The number of members at which those remembered only for their rate are swept.
    sweep_at: usize,
}

#[derive(Debug)]
struct Member {
    connections: usize,
    arrivals: Bucket,
    share: Arc<Share>,
}

/// The counts that connections update without locking [`Counts`].
#[derive(Debug)]
struct Share {
    channels: AtomicUsize,
    received: Mutex<Bucket>,
}

/// A counted connection; dropping it removes it from the counts.
#[derive(Debug)]
pub struct ConnectionLease {
    counter: Arc<ConnectionCounter>,
    ip: Option<(IpAddr, Arc<Share>)>,
    user: Option<(Arc<str>, Arc<Share>)>,
    /// Channels counted for this connection.
    channels: usize,
}

impl ConnectionCounter {
    /// A counter with no connections.
    pub fn new(limits: impl Into<Limits>) -> Arc<Self> {
        let (limits, now) = (limits.into(), Instant::now());
        let counts = Counts {
            connections: 0,
            arrivals: Bucket::full(limits.connection_rate.total, now),
            by_ip: Members::default(),
            by_user: Members::default(),
        };
        let total = Arc::new(Share::new(limits.receive_rate.total, now));
        let limits = ArcSwap::from_pointee(limits);
        Arc::new(Self { limits, counts: Mutex::new(counts), total, exceeded: Exceeded::default() })
    }

    /// Replaces the limits. Connections over a new limit stay open and are counted.
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(Arc::new(limits));
    }

    fn limits(&self) -> Guard<Arc<Limits>> {
        self.limits.load()
    }

    /// Counts a new connection, from `ip` unless it came through a Unix socket.
    ///
    /// # Errors
    /// Returns the limit that refuses the connection, which is then not counted.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<ConnectionLease, LimitReached> {
        let now = Instant::now();
        let mut counts = self.counts.lock();
        let most = self.limits().connections.total;
        self.check(counts.connections, most, Limited::Connections, Scope::Total)?;
        let ip = self.add_ip(&mut counts, ip, now)?;
        if let Err(reached) = self.take_arrival(&mut counts.arrivals, Scope::Total, now) {
            self.remove_ip(&mut counts, ip.as_ref(), now);
            return Err(reached);
        }
        counts.connections += 1;
        Ok(ConnectionLease { counter: Arc::clone(self), ip, user: None, channels: 0 })
    }

    /// Counts a connection that another process has admitted, regardless of the limits.
    pub(crate) fn resume(self: &Arc<Self>, ip: Option<IpAddr>) -> ConnectionLease {
        let mut counts = self.counts.lock();
        let ip = ip.map(network_of).map(|ip| (ip, self.count(&mut counts.by_ip, &ip, Scope::PerIp)));
        counts.connections += 1;
        ConnectionLease { counter: Arc::clone(self), ip, user: None, channels: 0 }
    }

    /// How many connections may be open at the same time, 0 for no limit.
    pub(crate) fn connection_limit(&self) -> usize {
        self.limits().connections.total
    }

    /// Number of connections counted now.
    pub fn total(&self) -> usize {
        self.counts.lock().connections
    }

    /// How often each limit was exceeded.
    pub fn exceeded(&self) -> &Exceeded {
        &self.exceeded
    }

    /// Returns an error if the limit is reached and the client is to be refused.
    fn check(&self, count: usize, most: usize, what: Limited, scope: Scope) -> Result<(), LimitReached> {
        if most == 0 || count < most {
            return Ok(());
        }
        self.exceed(LimitReached { what, scope, most })
    }

    fn exceed(&self, reached: LimitReached) -> Result<(), LimitReached> {
        let alarm_only = self.limits().alarm_only;
        self.exceeded.note(reached, alarm_only);
        if alarm_only { Ok(()) } else { Err(reached) }
    }

    fn take_arrival(&self, arrivals: &mut Bucket, scope: Scope, now: Instant) -> Result<(), LimitReached> {
        let most = self.limits().connection_rate.of(scope);
        if most == 0 || arrivals.take_one(most, now) {
            return Ok(());
        }
        self.exceed(LimitReached { what: Limited::ConnectionRate, scope, most })
    }

    /// Counts one more connection from `ip`; returns the network that it is counted under.
    fn add_ip(
        &self,
        counts: &mut Counts,
        ip: Option<IpAddr>,
        now: Instant,
    ) -> Result<Option<(IpAddr, Arc<Share>)>, LimitReached> {
        let Some(ip) = ip.map(network_of) else { return Ok(None) };
        let share = self.add(&mut counts.by_ip, &ip, Scope::PerIp, now)?;
        Ok(Some((ip, share)))
    }

    /// Counts a connection without checking the limits.
    fn count<K: Hash + Eq + Clone>(&self, members: &mut Members<K>, key: &K, scope: Scope) -> Arc<Share> {
        let (limits, now) = (self.limits(), Instant::now());
        let member = members.members.entry(key.clone()).or_insert_with(|| Member::new(&limits, scope, now));
        member.connections += 1;
        Arc::clone(&member.share)
    }

    fn add<K: Hash + Eq + Clone>(
        &self,
        members: &mut Members<K>,
        key: &K,
        scope: Scope,
        now: Instant,
    ) -> Result<Arc<Share>, LimitReached> {
        let limits = self.limits();
        members.sweep(&limits, scope, now);
        let member = members.members.entry(key.clone()).or_insert_with(|| Member::new(&limits, scope, now));
        let most = limits.connections.of(scope);
        let checked = self
            .check(member.connections, most, Limited::Connections, scope)
            .and_then(|()| self.take_arrival(&mut member.arrivals, scope, now));
        if let Err(reached) = checked {
            members.forget(key, &limits, scope, now);
            return Err(reached);
        }
        member.connections += 1;
        Ok(Arc::clone(&member.share))
    }

    fn remove_ip(&self, counts: &mut Counts, ip: Option<&(IpAddr, Arc<Share>)>, now: Instant) {
        if let Some((ip, _)) = ip {
            counts.by_ip.remove(ip, &self.limits(), Scope::PerIp, now);
        }
    }
}

impl ConnectionLease {
    /// Counts the connection under its real address. Behind a load balancer that becomes known only later, and the
    /// connection is entered without an address.
    ///
    /// # Errors
    /// Returns the limit that refuses a connection from that address.
    pub(crate) fn set_client_address(&mut self, ip: Option<IpAddr>) -> Result<(), LimitReached> {
        let (counter, now) = (&self.counter, Instant::now());
        let mut counts = counter.counts.lock();
        let ip = counter.add_ip(&mut counts, ip, now)?;
        let before = std::mem::replace(&mut self.ip, ip);
        counter.remove_ip(&mut counts, before.as_ref(), now);
        Ok(())
    }

    /// Counts the connection for the user that it has logged in as.
    ///
    /// # Errors
    /// Returns the limit that refuses another connection of the user.
    pub fn log_in(&mut self, user: &str) -> Result<(), LimitReached> {
        let user: Arc<str> = user.into();
        let mut counts = self.counter.counts.lock();
        let share = self.counter.add(&mut counts.by_user, &user, Scope::PerUser, Instant::now())?;
        self.user = Some((user, share));
        Ok(())
    }

    /// Counts the connection for a user that another process has admitted, regardless of the limits.
    pub(crate) fn resume(&mut self, user: &str) {
        let user: Arc<str> = user.into();
        let share = self.counter.count(&mut self.counter.counts.lock().by_user, &user, Scope::PerUser);
        self.user = Some((user, share));
    }

    /// Counts the channels that another process has opened, regardless of the limits.
    pub(crate) fn resume_channels(&mut self, count: usize) {
        for (_, share) in self.shares() {
            share.channels.fetch_add(count, Ordering::Relaxed);
        }
        self.channels += count;
    }

    /// Counts one more channel.
    ///
    /// # Errors
    /// Returns the limit that refuses the channel.
    pub fn open_channel(&mut self) -> Result<(), LimitReached> {
        let counter = &self.counter;
        let most = counter.limits().channels;
        for (scope, share) in self.shares() {
            let count = share.channels.load(Ordering::Relaxed);
            counter.check(count, most.of(scope), Limited::Channels, scope)?;
        }
        for (_, share) in self.shares() {
            share.channels.fetch_add(1, Ordering::Relaxed);
        }
        self.channels += 1;
        Ok(())
    }

    /// Reduces the number of channels counted to `left`.
    pub(crate) fn keep_channels(&mut self, left: usize) {
        let gone = self.channels.saturating_sub(left);
        if gone > 0 {
            for (_, share) in self.shares() {
                share.channels.fetch_sub(gone, Ordering::Relaxed);
            }
            self.channels = left;
        }
    }

    /// Charges bytes that were received. Returns when more may be received, if not now.
    pub fn received(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let limits = self.counter.limits();
        if limits.receive_rate == Scopes::default() {
            return None;
        }
        let charge = |(scope, share): (Scope, &Arc<Share>)| {
            let most = limits.receive_rate.of(scope);
            if most == 0 {
                return None;
            }
            let until = share.received.lock().charge(bytes, most, now)?;
            let reached = LimitReached { what: Limited::ReceiveRate, scope, most };
            self.counter.exceed(reached).is_err().then_some(until)
        };
        // All scopes are charged, even if one of them already makes the client wait.
        self.shares().filter_map(charge).fold(None, |latest, until| latest.max(Some(until)))
    }

    fn shares(&self) -> impl Iterator<Item = (Scope, &Arc<Share>)> {
        let ip = self.ip.as_ref().map(|(_, share)| (Scope::PerIp, share));
        let user = self.user.as_ref().map(|(_, share)| (Scope::PerUser, share));
        [Some((Scope::Total, &self.counter.total)), ip, user].into_iter().flatten()
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        self.keep_channels(0);
        let now = Instant::now();
        let mut counts = self.counter.counts.lock();
        counts.connections -= 1;
        self.counter.remove_ip(&mut counts, self.ip.as_ref(), now);
        if let Some((user, _)) = &self.user {
            counts.by_user.remove(user, &self.counter.limits(), Scope::PerUser, now);
        }
    }
}

impl<K> Default for Members<K> {
    fn default() -> Self {
        Self { members: HashMap::new(), sweep_at: SWEEP_AT_LEAST }
    }
}

impl<K: Hash + Eq> Members<K> {
    fn remove(&mut self, key: &K, limits: &Limits, scope: Scope, now: Instant) {
        if let Some(member) = self.members.get_mut(key) {
            member.connections -= 1;
        }
        self.forget(key, limits, scope, now);
    }

    /// Forgets a member without connections, unless its buckets are still refilling: reconnecting must not
    /// reset its rate.
    fn forget(&mut self, key: &K, limits: &Limits, scope: Scope, now: Instant) {
        if self.members.get(key).is_some_and(|member| member.is_forgettable(limits, scope, now)) {
            self.members.remove(key);
        }
    }

    /// Occasionally forgets all members that need not be remembered, so that unknown clients cannot make the map grow.
    /// The amortised cost per new member is one lookup.
    fn sweep(&mut self, limits: &Limits, scope: Scope, now: Instant) {
        if self.members.len() >= self.sweep_at {
            self.members.retain(|_, member| !member.is_forgettable(limits, scope, now));
            self.sweep_at = (self.members.len() * 2).max(SWEEP_AT_LEAST);
        }
    }
}

impl Member {
    fn new(limits: &Limits, scope: Scope, now: Instant) -> Self {
        Self {
            connections: 0,
            arrivals: Bucket::full(limits.connection_rate.of(scope), now),
            share: Arc::new(Share::new(limits.receive_rate.of(scope), now)),
        }
    }

    fn is_forgettable(&self, limits: &Limits, scope: Scope, now: Instant) -> bool {
        self.connections == 0
            && self.arrivals.is_full(limits.connection_rate.of(scope), now)
            && self.share.received.lock().is_full(limits.receive_rate.of(scope), now)
    }
}

impl Share {
    fn new(receive_rate: usize, now: Instant) -> Self {
        Self { channels: AtomicUsize::new(0), received: Mutex::new(Bucket::full(receive_rate, now)) }
    }
}

impl Scopes<usize> {
    fn of(&self, scope: Scope) -> usize {
        match scope {
            Scope::Total => self.total,
            Scope::PerIp => self.per_ip,
            Scope::PerUser => self.per_user,
        }
    }
}

/// Maps with fewer members are not swept.
const SWEEP_AT_LEAST: usize = 1024;
