//! The addresses of the brokers: which there are, which of them answer, and which is next.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Pool;
use crate::config::UpstreamAddress;
use crate::upstream;

/// One address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// As it is configured.
    pub(crate) address: UpstreamAddress,
    /// One of those that the name stands for.
    pub(crate) socket: SocketAddr,
}

/// All of them. Those that do not answer are asked again in the background, ever less often, until they do; clients are
/// sent there only while there is no other.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    known: Mutex<Vec<Known>>,
    /// Which of equals is next.
    turn: AtomicUsize,
    /// One answers again.
    healed: Notify,
}

#[derive(Debug)]
struct Known {
    endpoint: Endpoint,
    resolved_at: Instant,
    connections: usize,
    /// Failures, one soon after the other.
    failures: u32,
    failed_at: Option<Instant>,
    /// It did not answer last, and is being asked again.
    down: bool,
}

impl Known {
    fn count_failure(&mut self) {
        let now = Instant::now();
        let soon = self.failed_at.is_some_and(|before| now < before + FAILURES_COUNT_WITHIN);
        self.failures = if soon { self.failures.saturating_add(1) } else { 1 };
        self.failed_at = Some(now);
        self.down = true;
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.address.host.parse::<IpAddr>().is_ok() {
            self.socket.fmt(f)
        } else {
            write!(f, "{} ({})", self.address, self.socket.ip())
        }
    }
}

impl Endpoints {
    /// The addresses in the order in which to try them: those that answer, with the fewest connections first, then the
    /// others, with the fewest failures first.
    pub(super) async fn in_order(&self, configured: &[UpstreamAddress]) -> Vec<Endpoint> {
        for address in configured {
            if self.is_stale(address) {
                self.resolve(address).await;
            }
        }
        let known = self.known.lock();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % known.len().max(1);
        let mut order: Vec<&Known> = known[turn..].iter().chain(&known[..turn]).collect();
        // Stable, so that equals take turns.
        order.sort_by_key(|known| {
            (known.down, if known.down { known.failures as usize } else { known.connections })
        });
        order.into_iter().map(|known| known.endpoint.clone()).collect()
    }

    fn is_stale(&self, address: &UpstreamAddress) -> bool {
        let known = self.known.lock();
        let mut of_address = known.iter().filter(|known| known.endpoint.address == *address);
        let is_name = address.host.parse::<IpAddr>().is_err();
        of_address.next().is_none_or(|known| is_name && known.resolved_at.elapsed() > NAME_HOLDS)
    }

    /// Looks a name up. What it stood for before stays when that fails, and where connections are.
    async fn resolve(&self, address: &UpstreamAddress) {
        let lookup = tokio::net::lookup_host((address.host.as_str(), address.port));
        let sockets: Vec<SocketAddr> = match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(sockets)) => sockets.collect(),
            Ok(Err(error)) => return tracing::warn!(%address, %error, "upstream name not found"),
            Err(_) => return tracing::warn!(%address, "no answer about the upstream's name in time"),
        };
        let (mut known, now) = (self.known.lock(), Instant::now());
        known.retain(|known| {
            let gone = known.endpoint.address == *address && !sockets.contains(&known.endpoint.socket);
            !gone || known.connections > 0 || known.down
        });
        for socket in sockets {
            let endpoint = Endpoint { address: address.clone(), socket };
            match known.iter_mut().find(|known| known.endpoint == endpoint) {
                Some(known) => known.resolved_at = now,
                None => known.push(Known {
                    endpoint,
                    resolved_at: now,
                    connections: 0,
                    failures: 0,
                    failed_at: None,
                    down: false,
                }),
            }
        }
    }

    /// A connection is open there.
    pub(super) fn opened(&self, endpoint: &Endpoint) {
        self.with(endpoint, |known| known.connections += 1);
        self.answers(endpoint);
    }

    /// A connection there has ended.
    pub(super) fn closed(&self, endpoint: &Endpoint) {
        self.with(endpoint, |known| known.connections = known.connections.saturating_sub(1));
    }

    fn answers(&self, endpoint: &Endpoint) {
        if self.with(endpoint, |known| std::mem::take(&mut known.down)) == Some(true) {
            tracing::info!(%endpoint, "upstream answers again");
        }
        self.healed.notify_waiters();
    }

    /// It does not answer, or lost a connection. Asks it again in the background until it answers.
    pub(super) fn failed(&self, pool: &Arc<Pool>, endpoint: &Endpoint) {
        // However many find out at once, it is one failure.
        let is_new = self.with(endpoint, |known| {
            let is_new = !known.down;
            if is_new {
                known.count_failure();
            }
            is_new
        });
        if is_new == Some(true)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(heal(Arc::downgrade(pool), endpoint.clone()));
        }
    }

    /// Whether trying should wait for [`Self::healed`]: none answers, and those that are back keep failing.
    pub(super) fn keep_failing(&self) -> bool {
        let known = self.known.lock();
        !known.is_empty() && known.iter().all(|known| known.down && known.failures > 1)
    }

    /// Waits until it is worth trying again.
    pub(super) async fn healed(&self) {
        let mut healed = std::pin::pin!(self.healed.notified());
        healed.as_mut().enable();
        let none = {
            let known = self.known.lock();
            if known.iter().any(|known| !known.down) {
                return;
            }
            known.is_empty()
        };
        if none {
            // Names that mean nothing are nobody's to ask.
            tokio::time::sleep(BACKOFF_MAX).await;
        } else {
            healed.await;
        }
    }

    /// How many there are, and how many of them are down.
    pub(super) fn count(&self) -> (usize, usize) {
        let known = self.known.lock();
        (known.len(), known.iter().filter(|known| known.down).count())
    }

    /// Each as text, whether it is up, and its connections.
    pub(super) fn states(&self) -> Vec<(String, bool, usize)> {
        let known = self.known.lock();
        let state = |known: &Known| (known.endpoint.to_string(), !known.down, known.connections);
        known.iter().map(state).collect()
    }

    fn backoff(&self, endpoint: &Endpoint) -> Option<Duration> {
        self.with(endpoint, |known| {
            known.down.then(|| backoff(known.failures, RandomState::new().hash_one(0)))
        })?
    }

    fn with<T>(&self, endpoint: &Endpoint, change: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.known.lock().iter_mut().find(|known| known.endpoint == *endpoint).map(change)
    }
}

/// Asks an address until it answers, or somebody else found out that it does.
async fn heal(pool: Weak<Pool>, endpoint: Endpoint) {
    loop {
        let Some(pause) = pool.upgrade().and_then(|pool| pool.endpoints.backoff(&endpoint)) else { return };
        tokio::time::sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.draining.load(Ordering::Acquire) {
            return;
        }
        match upstream::probe(&endpoint, &pool.config).await {
            Ok(_) => return pool.endpoints.answers(&endpoint),
            Err(error) => {
                tracing::debug!(%endpoint, %error, "upstream still does not answer");
                pool.endpoints.with(&endpoint, Known::count_failure);
            }
        }
    }
}

/// The pause after so many failures: doubled each time, and anything from half to all of it, so that many proxies do not
/// come at once.
fn backoff(failures: u32, random: u64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10));
    let longest = doubled.min(BACKOFF_MAX);
    longest / 2 + (longest / 2).mul_f64(random as f64 / u64::MAX as f64)
}

/// The first pause: a restarted broker, or another one of a cluster, may be there at once.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest pause: a broker that returns is not left alone for long, and one question costs it next to nothing.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Failures further apart than this are not a row of them.
const FAILURES_COUNT_WITHIN: Duration = Duration::from_secs(30);
/// How long the addresses of a name are used before it is looked up again.
const NAME_HOLDS: Duration = Duration::from_secs(10);
/// How long looking a name up may take; those known already are used meanwhile by those who come later.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_grows_up_to_a_limit_and_jitters_downwards_only() {
        for random in [0, u64::MAX / 2, u64::MAX] {
            for (failures, longest) in [(1, BACKOFF_MIN), (2, BACKOFF_MIN * 2), (100, BACKOFF_MAX)] {
                let pause = backoff(failures, random);
                assert!(pause >= longest / 2 && pause <= longest, "{failures}: {pause:?}");
            }
        }
    }

    fn address(host: &str, port: u16) -> UpstreamAddress {
        UpstreamAddress { host: host.to_owned(), port, tls: false }
    }

    #[tokio::test]
    async fn those_that_answer_come_first_and_of_them_the_least_used() {
        let endpoints = Endpoints::default();
        let configured = [address("127.0.0.1", 1), address("127.0.0.1", 2), address("::1", 3)];
        let all = endpoints.in_order(&configured).await;
        let by_port = |port| all.iter().find(|endpoint| endpoint.socket.port() == port).unwrap();
        endpoints.opened(by_port(1));
        endpoints.opened(by_port(1));
        endpoints.opened(by_port(2));
        let pool = Pool::new(crate::PoolConfig::new(Vec::new()));
        endpoints.failed(&pool, by_port(3));
        let order = endpoints.in_order(&configured).await;
        assert_eq!(order.iter().map(|endpoint| endpoint.socket.port()).collect::<Vec<_>>(), [2, 1, 3]);
        assert_eq!(endpoints.count(), (3, 1));
        endpoints.answers(by_port(3));
        assert_eq!(endpoints.in_order(&configured).await[0].socket.port(), 3);
    }

    #[tokio::test]
    async fn a_name_stands_for_all_of_its_addresses() {
        let endpoints = Endpoints::default();
        let configured = [address("localhost", 1)];
        let expected: Vec<_> = tokio::net::lookup_host(("localhost", 1)).await.unwrap().collect();
        let found: Vec<_> =
            endpoints.in_order(&configured).await.into_iter().map(|endpoint| endpoint.socket).collect();
        assert!(!found.is_empty() && expected.iter().all(|socket| found.contains(socket)), "{found:?}");
    }
}
