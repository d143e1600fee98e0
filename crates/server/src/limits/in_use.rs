//! How much of each limited resource is in use.

use std::sync::atomic::Ordering;

use super::{ConnectionCounter, Members, Scopes};

/// Current use of the limited resources: in total, by the busiest address, and by the busiest user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InUse {
    /// Connections, including those that are being opened.
    pub connections: Scopes<usize>,
    /// Channels that are open, on all connections of a scope.
    pub channels: Scopes<usize>,
}

impl ConnectionCounter {
    /// Visits every address and user once. No connection is admitted meanwhile, for less than a millisecond
    /// with 10,000 of them.
    pub fn in_use(&self) -> InUse {
        let counts = self.counts.lock();
        let (ip, user) = (counts.by_ip.most(), counts.by_user.most());
        let all = self.total.channels.load(Ordering::Relaxed);
        InUse {
            connections: Scopes { total: counts.connections, per_ip: ip.0, per_user: user.0 },
            channels: Scopes { total: all, per_ip: ip.1, per_user: user.1 },
        }
    }
}

impl<K> Members<K> {
    /// The highest number of connections, and of channels, that any one member has.
    fn most(&self) -> (usize, usize) {
        self.members.values().fold((0, 0), |(connections, channels), member| {
            let own = member.share.channels.load(Ordering::Relaxed);
            (connections.max(member.connections), channels.max(own))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::Limits;
    use super::*;

    #[test]
    fn in_use_reports_the_busiest_ip_and_user_without_closed_connections() {
        let counter = ConnectionCounter::new(Limits::default());
        let address = |last| Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)));
        let mut places: Vec<_> = [1, 1, 2].map(|last| counter.enter(address(last)).unwrap()).into();
        for (place, user) in places.iter_mut().zip(["ada", "bob", "bob"]) {
            place.log_in(user).unwrap();
        }
        for _ in 0..5 {
            places[2].open_channel().unwrap();
        }
        places[0].open_channel().unwrap();
        let scopes = |total, per_ip, per_user| Scopes { total, per_ip, per_user };
        let expected = InUse { connections: scopes(3, 2, 2), channels: scopes(6, 5, 5) };
        assert_eq!(counter.in_use(), expected);
        places.truncate(1);
        let expected = InUse { connections: scopes(1, 1, 1), channels: scopes(1, 1, 1) };
        assert_eq!(counter.in_use(), expected);
        places.clear();
        assert_eq!(counter.in_use(), InUse::default());
    }
}
