//! How many connections there may be: in all, from one address, and of one user.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Limits on connections; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections in all.
    pub total: usize,
    /// Connections from one IP address. Unix sockets are not counted here.
    pub per_ip: usize,
    /// Connections logged in as one user.
    pub per_user: usize,
}

/// Which limit a connection would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitReached {
    /// [`ConnectionLimits::total`].
    Total(usize),
    /// [`ConnectionLimits::per_ip`].
    PerIp(usize),
    /// [`ConnectionLimits::per_user`].
    PerUser(usize),
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total(limit) => write!(f, "connection limit ({limit}) is reached"),
            Self::PerIp(limit) => write!(f, "connection limit per address ({limit}) is reached"),
            Self::PerUser(limit) => write!(f, "connection limit per user ({limit}) is reached"),
        }
    }
}

impl std::error::Error for LimitReached {}

/// Counts connections against their limits.
#[derive(Debug)]
pub struct ConnectionCounter {
    limits: ConnectionLimits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_ip: HashMap<IpAddr, usize>,
    by_user: HashMap<Arc<str>, usize>,
}

/// A counted connection; dropping it gives its place back.
#[derive(Debug)]
pub struct Place {
    counter: Arc<ConnectionCounter>,
    ip: Option<IpAddr>,
    user: Option<Arc<str>>,
}

impl ConnectionCounter {
    /// Nothing counted yet.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Counts a new connection, from `ip` unless it came through a Unix socket.
    ///
    /// # Errors
    /// The limit that stands against it; it is not counted then.
    pub fn enter(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Place, LimitReached> {
        let mut counts = self.counts.lock();
        if is_reached(counts.total, self.limits.total) {
            return Err(LimitReached::Total(self.limits.total));
        }
        let ip = counts.add_ip(ip, self.limits.per_ip)?;
        counts.total += 1;
        Ok(Place { counter: Arc::clone(self), ip, user: None })
    }

    /// Connections counted now.
    pub fn total(&self) -> usize {
        self.counts.lock().total
    }
}

impl Counts {
    /// Counts one connection more from `ip`; returns the address that it is counted under.
    fn add_ip(&mut self, ip: Option<IpAddr>, limit: usize) -> Result<Option<IpAddr>, LimitReached> {
        // An IPv4 client of a dual-stack listener is the same client.
        let Some(ip) = ip.map(|ip| ip.to_canonical()) else { return Ok(None) };
        let count = self.by_ip.get(&ip).copied().unwrap_or(0);
        if is_reached(count, limit) {
            return Err(LimitReached::PerIp(limit));
        }
        self.by_ip.insert(ip, count + 1);
        Ok(Some(ip))
    }
}

impl Place {
    /// Counts the connection for the address that it turned out to come from: one that came through a load balancer
    /// entered without.
    ///
    /// # Errors
    /// When there are as many connections from that address as allowed.
    pub fn locate(&mut self, ip: Option<IpAddr>) -> Result<(), LimitReached> {
        let mut counts = self.counter.counts.lock();
        let ip = counts.add_ip(ip, self.counter.limits.per_ip)?;
        if let Some(before) = std::mem::replace(&mut self.ip, ip) {
            decrease(&mut counts.by_ip, &before);
        }
        Ok(())
    }

    /// Counts the connection for the user that it has logged in as.
    ///
    /// # Errors
    /// When the user has as many connections as allowed.
    pub fn log_in(&mut self, user: &str) -> Result<(), LimitReached> {
        let mut counts = self.counter.counts.lock();
        let count = counts.by_user.get(user).copied().unwrap_or(0);
        if is_reached(count, self.counter.limits.per_user) {
            return Err(LimitReached::PerUser(self.counter.limits.per_user));
        }
        let user: Arc<str> = user.into();
        counts.by_user.insert(Arc::clone(&user), count + 1);
        self.user = Some(user);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counter.counts.lock();
        counts.total -= 1;
        if let Some(ip) = &self.ip {
            decrease(&mut counts.by_ip, ip);
        }
        if let Some(user) = &self.user {
            decrease(&mut counts.by_user, user);
        }
    }
}

fn is_reached(count: usize, limit: usize) -> bool {
    limit != 0 && count >= limit
}

/// Counts one less, and forgets the key at zero: strangers must not make the map grow.
fn decrease<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn counter(total: usize, per_ip: usize, per_user: usize) -> Arc<ConnectionCounter> {
        ConnectionCounter::new(ConnectionLimits { total, per_ip, per_user })
    }

    #[test]
    fn a_place_given_back_can_be_taken_again() {
        let counter = counter(2, 1, 0);
        let place = counter.enter(Some(HERE)).unwrap();
        assert_eq!(counter.enter(Some(HERE)).unwrap_err(), LimitReached::PerIp(1));
        let _unix = counter.enter(None).unwrap();
        assert_eq!(counter.enter(None).unwrap_err(), LimitReached::Total(2));
        drop(place);
        let _again = counter.enter(Some(HERE)).unwrap();
        assert_eq!(counter.total(), 2);
    }

    #[test]
    fn a_mapped_address_counts_as_the_one_that_it_maps() {
        let counter = counter(0, 1, 0);
        let _place = counter.enter(Some(HERE)).unwrap();
        let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        assert!(counter.enter(Some(mapped.into())).is_err());
    }

    #[test]
    fn a_place_is_counted_where_its_client_is() {
        let counter = counter(0, 1, 0);
        let mut first = counter.enter(None).unwrap();
        first.locate(Some(HERE)).unwrap();
        let mut second = counter.enter(None).unwrap();
        assert_eq!(second.locate(Some(HERE)), Err(LimitReached::PerIp(1)));
        let there = std::net::Ipv4Addr::new(192, 0, 2, 1).into();
        second.locate(Some(there)).unwrap();
        first.locate(Some(std::net::Ipv4Addr::new(192, 0, 2, 2).into())).unwrap();
        second.locate(Some(HERE)).unwrap();
        drop((first, second));
        assert!(counter.counts.lock().by_ip.is_empty());
    }

    #[test]
    fn users_are_counted_apart_and_forgotten() {
        let counter = counter(0, 0, 1);
        let mut first = counter.enter(None).unwrap();
        let mut second = counter.enter(None).unwrap();
        first.log_in("a").unwrap();
        assert_eq!(second.log_in("a"), Err(LimitReached::PerUser(1)));
        second.log_in("b").unwrap();
        drop((first, second));
        assert!(counter.counts.lock().by_user.is_empty());
    }
}
