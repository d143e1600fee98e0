//! The open connections, and the choice of which one is closed to make room for a new one.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use broker::network_of;
use tokio::task::{AbortHandle, JoinSet};

use super::work::ActiveRequests;

/// The open connections, never more than the limits.
pub(super) struct OpenConnections {
    tasks: JoinSet<()>,
    usual: ConnectionPermits,
    /// Used while all the usual connections are at work.
    reserve: ConnectionPermits,
}

/// The requests that a connection may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Requests of every kind are served.
    Usual,
    /// Only health and metrics, which must be served under any load.
    Probes,
}

impl OpenConnections {
    pub(super) fn new(usual: usize, reserve: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            usual: ConnectionPermits::new(usual, usual - usual / OTHERS_SHARE),
            reserve: ConnectionPermits::new(reserve, reserve),
        }
    }

    /// Runs a connection. At the limit, a connection that is not at work is closed for it: one that is between
    /// requests, has not finished sending one, or whose client has not logged in (such a client's requests take
    /// milliseconds). The oldest connection of the address with the most is chosen, so that an address with
    /// many displaces only its own. If all are at work, the new connection goes to the reserve: no request is
    /// cut short for a new connection. Some are left for others: an address that has all but these counts as at the limit.
    pub(super) fn admit<C>(
        &mut self,
        work: ActiveRequests,
        from: Option<IpAddr>,
        connection: impl FnOnce(Admitted) -> C,
    ) where
        C: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        let from = from.map(network_of);
        let (places, admitted) = if self.usual.free_permit(from) {
            (&mut self.usual, Admitted::Usual)
        } else if self.reserve.free_permit(from) {
            (&mut self.reserve, Admitted::Probes)
        } else {
            return tracing::debug!("HTTP connection refused: limit reached");
        };
        let task = self.tasks.spawn(connection(admitted));
        places.by_age.push_back(Open { task, work, from });
    }

    /// Waits until all have ended, and aborts the rest after the bound.
    pub(super) async fn finish(mut self, bound: Duration) {
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(bound, all_ended).await.is_err() {
            tracing::debug!(left = self.tasks.len(), "closing HTTP connections timed out");
        }
        self.tasks.shutdown().await;
    }
}

/// One in this many of the usual connections is for other addresses than the one with the most. That may be a proxy with all
/// the clients behind it, or a user whose requests take as long as they may.
const OTHERS_SHARE: usize = 4;

struct ConnectionPermits {
    limit: usize,
    /// The limit of one address.
    per_address: usize,
    /// Oldest first; may contain connections that have ended.
    by_age: VecDeque<Open>,
}

struct Open {
    task: AbortHandle,
    work: ActiveRequests,
    /// `None` for a Unix socket.
    from: Option<IpAddr>,
}

impl ConnectionPermits {
    fn new(limit: usize, per_address: usize) -> Self {
        Self { limit, per_address, by_age: VecDeque::new() }
    }

    /// Closes a connection that is not at work if the limit is reached. Returns whether there is room for one
    /// more `from` this address.
    fn free_permit(&mut self, from: Option<IpAddr>) -> bool {
        if self.by_age.len() >= self.per_address {
            self.by_age.retain(|open| !open.task.is_finished());
        }
        if self.by_age.iter().filter(|open| open.from == from).count() >= self.per_address {
            let idle = self.by_age.iter().position(|open| open.from == from && open.work.is_over());
            return self.close(idle);
        }
        if self.by_age.len() < self.limit {
            return true;
        }
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for open in &self.by_age {
            *counts.entry(open.from).or_default() += 1;
        }
        let idle = self.by_age.iter().enumerate().filter(|(_, open)| open.work.is_over());
        // `min_by_key` returns the first of several minima, which is the oldest connection.
        let least = idle.min_by_key(|(_, open)| Reverse(counts.get(&open.from).copied()));
        let oldest = least.map(|(at, _)| at);
        self.close(oldest)
    }

    fn close(&mut self, at: Option<usize>) -> bool {
        let closed = at.and_then(|at| self.by_age.remove(at));
        closed.inspect(|open| open.task.abort()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits a connection that never ends by itself; returns which requests it may make.
    fn admit(connections: &mut OpenConnections, from: &str, work: &ActiveRequests) -> Option<Admitted> {
        let mut announced = None;
        connections.admit(work.clone(), from.parse().ok(), |admitted| {
            announced = Some(admitted);
            std::future::pending()
        });
        announced
    }

    fn open_from(connections: &OpenConnections) -> Vec<String> {
        let open = connections.usual.by_age.iter().chain(&connections.reserve.by_age);
        open.map(|open| open.from.unwrap().to_string()).collect()
    }

    #[tokio::test]
    async fn an_address_with_many_takes_connections_from_nobody_but_itself() {
        let mut connections = OpenConnections::new(4, 1);
        for from in ["10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.0.9"] {
            admit(&mut connections, from, &ActiveRequests::default());
        }
        for _ in 0..100 {
            admit(&mut connections, "10.0.0.9", &ActiveRequests::default());
        }
        assert_eq!(open_from(&connections), ["10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.0.9"]);
        admit(&mut connections, "10.0.0.3", &ActiveRequests::default());
        assert_eq!(open_from(&connections), ["10.0.0.1", "10.0.0.2", "10.0.0.9", "10.0.0.3"]);
    }

    #[tokio::test]
    async fn a_network_of_ipv6_counts_as_an_address() {
        let mut connections = OpenConnections::new(3, 1);
        for from in
            ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:1::3", "2001:db8:0:1::4"]
        {
            admit(&mut connections, from, &ActiveRequests::default());
        }
        assert_eq!(open_from(&connections), ["2001:db8::", "2001:db8:0:1::", "2001:db8:0:1::"]);
    }

    #[tokio::test]
    async fn an_address_whose_requests_take_long_leaves_connections_to_others() {
        let mut connections = OpenConnections::new(8, 1);
        let work: Vec<_> = (0..6).map(|_| ActiveRequests::default()).collect();
        let mut at_work: Vec<_> = work.iter().map(ActiveRequests::begin).collect();
        for work in &work {
            assert_eq!(admit(&mut connections, "10.0.0.1", work), Some(Admitted::Usual));
        }
        assert_eq!(admit(&mut connections, "10.0.0.1", &ActiveRequests::default()), Some(Admitted::Probes));
        for _ in 0..2 {
            assert_eq!(
                admit(&mut connections, "10.0.0.2", &ActiveRequests::default()),
                Some(Admitted::Usual)
            );
        }
        // A connection of its own makes room for another, and none of the others'.
        at_work.pop();
        assert_eq!(admit(&mut connections, "10.0.0.1", &ActiveRequests::default()), Some(Admitted::Usual));
        let others = open_from(&connections).iter().filter(|from| *from == "10.0.0.2").count();
        assert_eq!(others, 2);
    }

    #[tokio::test]
    async fn while_all_are_at_work_the_reserve_is_for_probes() {
        let mut connections = OpenConnections::new(2, 1);
        let work = [ActiveRequests::default(), ActiveRequests::default()];
        let at_work = [work[0].begin(), work[1].begin()];
        for work in &work {
            assert_eq!(admit(&mut connections, "10.0.0.1", work), Some(Admitted::Usual));
        }
        for _ in 0..3 {
            assert_eq!(
                admit(&mut connections, "10.0.0.2", &ActiveRequests::default()),
                Some(Admitted::Probes)
            );
        }
        assert_eq!(open_from(&connections), ["10.0.0.1", "10.0.0.1", "10.0.0.2"]);
        drop(at_work);
        assert_eq!(admit(&mut connections, "10.0.0.2", &ActiveRequests::default()), Some(Admitted::Usual));
    }
}
