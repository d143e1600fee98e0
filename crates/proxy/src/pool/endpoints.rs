//! The addresses of the brokers: which exist, which answer, and which to use next.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sync::{Mutex, Rank};
use tokio::sync::Notify;

use super::{Pool, background};
use crate::config::UpstreamAddress;
use crate::refusal::Refusal;
use crate::resolver::Resolver;

/// One address of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// As configured.
    pub(crate) address: UpstreamAddress,
    /// One of the addresses that the name resolves to.
    pub(crate) socket: SocketAddr,
}

/// All addresses. Those that do not answer are probed in the background, ever less often, until they do;
/// clients are sent there only while there is no other.
#[derive(Debug)]
pub(super) struct Endpoints {
    resolver: Arc<dyn Resolver>,
    known: Mutex<Vec<EndpointState>, { Rank::Leaf as u8 }>,
    /// The names whose last lookup failed, and why.
    unresolved: Mutex<Vec<(UpstreamAddress, String)>, { Rank::Leaf as u8 }>,
    /// When each name was last resolved.
    asked: Mutex<Vec<(UpstreamAddress, Instant)>, { Rank::Leaf as u8 }>,
    /// Set while no name resolves to an address, and the names are retried in the background.
    nameless: AtomicBool,
    /// Rotates between equally good addresses.
    turn: AtomicUsize,
    /// Notified when an address answers again.
    healed: Notify,
}

#[derive(Debug)]
struct EndpointState {
    endpoint: Endpoint,
    /// When its name last resolved to it.
    resolved_at: Instant,
    /// Whether the last lookup of its name did not return it.
    is_gone: bool,
    connections: usize,
    /// Consecutive failures in short succession.
    failures: u32,
    failed_at: Option<Instant>,
    /// Whether it did not answer, or lost its last connection, and is being probed.
    down: bool,
    /// Until when it is tried last, because a virtual host was down on it.
    lacks_until: Option<Instant>,
    /// Whether it is being probed because it lost one connection while others stayed open.
    is_doubted: bool,
    /// Whether it answered the last probe or handshake; `None` before the first.
    answered: Option<bool>,
    /// Whether client declarations may exist on it. Set when it answers, cleared when they are counted as lost.
    has_state: bool,
    /// Number of connections to it that were lost, plus the number of times that it stopped answering.
    losses: u64,
    /// Why it did not answer. Cleared when it answers.
    cause: Option<String>,
}

/// An upstream address, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressState {
    /// As configured, with the IP address that its name resolves to.
    pub address: String,
    /// Whether it has open connections, or answered when it was last asked and has not lost one since; `None` until it is
    /// asked.
    pub is_up: Option<bool>,
    /// Number of open connections.
    pub connections: usize,
    /// Why it is not known to be up, or if it is, why the last new connection to it failed.
    pub cause: Option<String>,
}

/// The value of [`EndpointState::losses`] when a probe began. A reply may be on its way when the broker dies, so it is
/// ignored if the broker has lost a connection since the probe began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbeGeneration(u64);

/// Whether a broker would answer a client that comes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reachability {
    /// A broker has open connections, or answered when it was last asked and has not lost a connection since.
    Answers,
    /// None answered when it was last asked.
    Silent,
    /// No broker was asked, or none since it lost a connection.
    Unknown,
}

impl EndpointState {
    /// A broker whose connections work is not dead, whatever it replies to new ones: it may be at its
    /// connection limit, or slow to greet.
    fn is_in_use(&self) -> bool {
        self.connections > 0
    }

    /// Whether a client that comes now would be answered, as far as known.
    fn answers(&self) -> bool {
        self.is_in_use() || (!self.down && self.answered == Some(true))
    }

    /// Whether a virtual host on it has been down lately.
    fn lacks_any(&self, now: Instant) -> bool {
        self.lacks_until.is_some_and(|until| now < until)
    }

    /// Whether declarations on it have to be counted as lost now. True once, when it does not answer and no connection is left.
    fn take_lost_state(&mut self) -> bool {
        self.answered == Some(false) && !self.is_in_use() && std::mem::take(&mut self.has_state)
    }

    fn set_answered(&mut self) {
        self.answered = Some(true);
        self.has_state = true;
        self.cause = None;
    }

    fn state(&self) -> AddressState {
        let is_up = if self.answers() {
            Some(true)
        } else if self.down {
            Some(false)
        } else {
            self.answered
        };
        let unknown = if is_up == Some(false) { "not responding" } else { "not asked yet" };
        let cause = || self.cause.clone().unwrap_or_else(|| unknown.to_owned());
        AddressState {
            address: self.endpoint.to_string(),
            is_up,
            connections: self.connections,
            cause: if is_up == Some(true) { self.cause.clone() } else { Some(cause()) },
        }
    }

    /// Marks it as not answering, or as having lost a connection. Returns whether it was not marked before: concurrent
    /// reports count as one failure.
    fn mark_down(&mut self) -> bool {
        let is_new = !self.down;
        if is_new {
            self.losses += 1;
            self.count_failure();
        }
        is_new
    }

    fn count_failure(&mut self) {
        let now = transport::now();
        let soon = self.failed_at.is_some_and(|before| now < before + FAILURE_WINDOW);
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
    pub(super) fn new(resolver: Arc<dyn Resolver>) -> Self {
        Self {
            resolver,
            known: Mutex::default(),
            unresolved: Mutex::default(),
            asked: Mutex::default(),
            nameless: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            healed: Notify::new(),
        }
    }

    /// The addresses in the order in which to try them. First those that answer, by number of connections, except that
    /// addresses their name no longer resolves to, and those where a virtual host is down, come last among them. Then those
    /// that do not answer, by number of failures.
    pub(super) async fn in_order(self: &Arc<Self>, configured: &[UpstreamAddress]) -> Vec<Endpoint> {
        for address in configured {
            self.look_up(address).await;
        }
        let known = self.known.lock();
        let now = transport::now();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % known.len().max(1);
        let mut order: Vec<&EndpointState> = known[turn..].iter().chain(&known[..turn]).collect();
        // A stable sort, so that equally good addresses take turns.
        order.sort_by_key(|known| {
            let load = if known.down { known.failures as usize } else { known.connections };
            (known.down, known.is_gone, known.lacks_any(now), load)
        });
        order.into_iter().map(|known| known.endpoint.clone()).collect()
    }

    /// Resolves a name if its last lookup has expired. Waits only briefly if some addresses are known.
    async fn look_up(self: &Arc<Self>, address: &UpstreamAddress) {
        let has_some = self.known.lock().iter().any(|known| known.endpoint.address == *address);
        if has_some && !self.is_due(address) {
            return;
        }
        let (endpoints, address) = (self.clone(), address.clone());
        let resolving = async move { endpoints.resolve(&address).await };
        let Some(lookup) = background::run(resolving) else { return };
        if has_some {
            // The lookup continues in the background for later callers.
            let _ = tokio::time::timeout(LOOKUP_WAIT, lookup).await;
        } else {
            // The lookup has a timeout; a panic would have been reported.
            let _ = lookup.await;
        }
    }

    /// Whether the caller has to resolve the name again. True for one caller per expiry, whether its lookup succeeds or not.
    fn is_due(&self, address: &UpstreamAddress) -> bool {
        if address.host.parse::<IpAddr>().is_ok() {
            return false;
        }
        let (mut asked, now) = (self.asked.lock(), transport::now());
        match asked.iter_mut().find(|(other, _)| other == address) {
            Some((_, at)) if now < *at + self.resolver.holds() => false,
            Some((_, at)) => {
                *at = now;
                true
            }
            None => {
                asked.push((address.clone(), now));
                true
            }
        }
    }

    /// Resolves a name. Earlier addresses stay if the lookup fails, or while they have connections.
    async fn resolve(&self, address: &UpstreamAddress) {
        let lookup = self.resolver.resolve(&address.host, address.port);
        match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(sockets)) if !sockets.is_empty() => self.resolved(address, &sockets),
            Ok(Ok(_)) => {
                tracing::warn!(%address, "upstream name resolves to no address");
                self.record_unresolved(address, "its name resolves to no address".to_owned());
            }
            Ok(Err(error)) => {
                tracing::warn!(%address, %error, "upstream name not found");
                self.record_unresolved(address, format!("its name is not found: {error}"));
            }
            Err(_) => {
                tracing::warn!(%address, "upstream name lookup timed out");
                self.record_unresolved(address, "name lookup timed out".to_owned());
            }
        }
    }

    fn record_unresolved(&self, address: &UpstreamAddress, cause: String) {
        let mut unresolved = self.unresolved.lock();
        unresolved.retain(|(other, _)| other != address);
        unresolved.push((address.clone(), cause));
    }

    fn resolved(&self, address: &UpstreamAddress, sockets: &[SocketAddr]) {
        self.unresolved.lock().retain(|(other, _)| other != address);
        let (mut known, now) = (self.known.lock(), transport::now());
        known.retain_mut(|known| {
            if known.endpoint.address != *address {
                return true;
            }
            known.is_gone = !sockets.contains(&known.endpoint.socket);
            // A lookup may return only a subset of a name's addresses, so an address that is down is not forgotten at once.
            let is_missed = known.down && now < known.resolved_at + FORGOTTEN_AFTER;
            !known.is_gone || known.connections > 0 || is_missed
        });
        let mut is_more = false;
        for &socket in sockets {
            let endpoint = Endpoint { address: address.clone(), socket };
            match known.iter_mut().find(|known| known.endpoint == endpoint) {
                Some(known) => known.resolved_at = now,
                None => {
                    is_more = true;
                    known.push(EndpointState {
                        endpoint,
                        resolved_at: now,
                        is_gone: false,
                        connections: 0,
                        failures: 0,
                        failed_at: None,
                        down: false,
                        lacks_until: None,
                        is_doubted: false,
                        answered: None,
                        has_state: false,
                        losses: 0,
                        cause: None,
                    });
                }
            }
        }
        drop(known);
        if is_more {
            // A new address is presumed up: waiters for an upstream may try it.
            self.healed.notify_waiters();
        }
    }

    /// Whether a node is up, so that further connections may go to it. False after a failure even while connections to it
    /// are open: the node may have frozen, which the open connections detect only later, and each new connection would first
    /// wait for its timeout.
    pub(super) fn is_up(&self, node: SocketAddr) -> bool {
        let now = transport::now();
        let is_up = |known: &EndpointState| !known.is_gone && !known.down && !known.lacks_any(now);
        self.known.lock().iter().any(|known| known.endpoint.socket == node && is_up(known))
    }

    /// Records that a connection to it was opened.
    pub(super) fn opened(&self, endpoint: &Endpoint) {
        self.with(endpoint, |known| known.connections += 1);
        self.answers_if(endpoint, |_| true);
    }

    /// Records that a connection to it was closed.
    pub(super) fn closed(&self, pool: &Pool, endpoint: &Endpoint) {
        let is_lost = self.with(endpoint, |known| {
            known.connections = known.connections.saturating_sub(1);
            known.take_lost_state()
        });
        if is_lost == Some(true) {
            pool.topologies.lost_all();
        }
    }

    /// Records that a connection to it was lost, and probes it in the background. If other connections are open, it is probed
    /// once and not marked as down: the broker may have closed only this connection, on an operator's request or because a
    /// token has expired.
    pub(super) fn lost(&self, pool: &Arc<Pool>, endpoint: &Endpoint) {
        let change = |known: &mut EndpointState| {
            known.connections = known.connections.saturating_sub(1);
            known.losses += 1;
            if known.is_in_use() && !known.down {
                let is_first = !std::mem::replace(&mut known.is_doubted, true);
                return (false, false, is_first);
            }
            // Set at once, so that a broker without connections does not count as answering.
            known.cause.get_or_insert_with(|| "an open connection was lost".to_owned());
            (known.mark_down(), known.take_lost_state(), false)
        };
        let (is_new, is_lost, is_to_be_probed) = self.with(endpoint, change).unwrap_or_default();
        if is_to_be_probed {
            background::run(probe_once(Arc::downgrade(pool), endpoint.clone()));
        }
        if is_lost {
            pool.topologies.lost_all();
        }
        if is_new {
            background::run(probe_until_up(Arc::downgrade(pool), endpoint.clone()));
        }
    }

    /// Called before a probe, for [`Self::has_answered`].
    pub(super) fn asked_at(&self, endpoint: &Endpoint) -> ProbeGeneration {
        ProbeGeneration(self.with(endpoint, |known| known.losses).unwrap_or_default())
    }

    /// Records that it has answered a probe. Returns false, and changes nothing, if it has lost a connection since the
    /// probe began.
    pub(super) fn has_answered(&self, endpoint: &Endpoint, asked_at: ProbeGeneration) -> bool {
        self.answers_if(endpoint, |known| known.losses == asked_at.0)
    }

    /// Records that it answers, if the condition holds. Returns false otherwise.
    fn answers_if(&self, endpoint: &Endpoint, so: impl FnOnce(&EndpointState) -> bool) -> bool {
        let changed = self.with(endpoint, |known| {
            let is_so = so(known);
            if is_so {
                known.set_answered();
            }
            (is_so, is_so && std::mem::take(&mut known.down))
        });
        // `None` if the address was forgotten meanwhile.
        let (is_so, was_down) = changed.unwrap_or((true, false));
        if was_down {
            tracing::info!(target: STATE, %endpoint, "upstream reachable again");
        }
        if is_so {
            self.healed.notify_waiters();
        }
        is_so
    }

    /// Records that it has answered, but leaves it marked as down: it has let no client in yet, and may lose those that log in.
    pub(super) fn heard(&self, endpoint: &Endpoint) {
        self.with(endpoint, EndpointState::set_answered);
    }

    /// Records that it does not answer a probe or handshake. Returns whether it did before.
    pub(super) fn record_no_answer(&self, pool: &Arc<Pool>, endpoint: &Endpoint) -> bool {
        let is_new = self.mark_unanswered(pool, endpoint);
        self.failed(pool, endpoint);
        is_new
    }

    /// Records that it does not answer; returns whether it did before. The broker may have stopped and lost its
    /// transient topology, unless connections to it are open. It is not known which node of a cluster had which part,
    /// so everything is declared again, which is harmless where it still exists.
    fn mark_unanswered(&self, pool: &Pool, endpoint: &Endpoint) -> bool {
        let change = |known: &mut EndpointState| {
            (known.answered.replace(false) != Some(false), known.take_lost_state())
        };
        let (is_new, is_lost) = self.with(endpoint, change).unwrap_or_default();
        if is_lost {
            pool.topologies.lost_all();
        }
        is_new
    }

    /// Records that no name resolves to an address. Retries in the background until one does.
    pub(super) fn retry_resolution(&self, pool: &Arc<Pool>) {
        if !self.nameless.swap(true, Ordering::AcqRel) {
            background::run(find(Arc::downgrade(pool)));
        }
    }

    /// Whether a broker would answer a client that comes now.
    pub(super) fn reach(&self) -> Reachability {
        let known = self.known.lock();
        let record_no_answer = if known.is_empty() {
            self.nameless.load(Ordering::Acquire)
        } else {
            known.iter().all(|known| known.answered == Some(false))
        };
        if known.iter().any(EndpointState::answers) {
            Reachability::Answers
        } else if record_no_answer {
            Reachability::Silent
        } else {
            Reachability::Unknown
        }
    }

    /// Whether connections to any address are open.
    pub(super) fn any_in_use(&self) -> bool {
        self.known.lock().iter().any(EndpointState::is_in_use)
    }

    /// Whether any address has open connections, or answered its last probe and has not lost a connection since.
    pub(super) fn any_up(&self) -> bool {
        self.known.lock().iter().any(EndpointState::answers)
    }

    /// Records that it does not answer. Probes it in the background until it does.
    pub(super) fn failed(&self, pool: &Arc<Pool>, endpoint: &Endpoint) {
        if self.with(endpoint, EndpointState::mark_down) == Some(true) {
            background::run(probe_until_up(Arc::downgrade(pool), endpoint.clone()));
        }
    }

    /// Whether to wait for [`Self::healed`] before connecting: every address is down, has no open connections, and has
    /// failed repeatedly.
    pub(super) fn all_failing(&self) -> bool {
        let known = self.known.lock();
        let keeps_failing = |known: &EndpointState| known.down && known.failures > 1 && !known.is_in_use();
        !known.is_empty() && known.iter().all(keeps_failing)
    }

    /// Waits until an address is up; if no name resolves to an address, for [`BACKOFF_MAX`].
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
            // No address is probed, so nothing would notify.
            tokio::time::sleep(BACKOFF_MAX).await;
        } else {
            healed.await;
        }
    }

    /// Number of addresses, and how many of them are down.
    pub(super) fn count(&self) -> (usize, usize) {
        let known = self.known.lock();
        (known.len(), known.iter().filter(|known| known.down).count())
    }

    /// Handles a refusal to open a virtual host. If the virtual host is down, the address stays up but is tried last for
    /// [`LACKS_FOR`], because another address may serve it.
    pub(super) fn blame(&self, pool: &Arc<Pool>, endpoint: &Endpoint, refusal: &Refusal) {
        if refusal.is_of_virtual_host() {
            self.with(endpoint, |known| known.lacks_until = Some(transport::now() + LACKS_FOR));
        } else if refusal.is_outage() {
            self.set_failure_cause(endpoint, refusal);
            self.failed(pool, endpoint);
        }
    }

    /// Sets the reason, shown to operators, why it did not answer.
    pub(super) fn set_failure_cause(&self, endpoint: &Endpoint, error: &Refusal) {
        self.with(endpoint, |known| known.cause = Some(error.cause(endpoint)));
    }

    /// Whether it has no open connections and is not being probed, so that a failure of it would go unnoticed.
    pub(super) fn is_idle(&self, endpoint: &Endpoint) -> bool {
        self.with(endpoint, |known| !known.down && !known.is_in_use()) == Some(true)
    }

    /// Every address, and every name that does not resolve to one.
    pub(super) fn states(&self) -> Vec<AddressState> {
        let (mut states, known): (Vec<_>, Vec<_>) = {
            let known = self.known.lock();
            known.iter().map(|known| (known.state(), known.endpoint.address.clone())).unzip()
        };
        let unresolved = self.unresolved.lock();
        let nameless = unresolved.iter().filter(|(address, _)| !known.contains(address));
        states.extend(nameless.map(|(address, cause)| AddressState {
            address: address.to_string(),
            is_up: Some(false),
            connections: 0,
            cause: Some(cause.clone()),
        }));
        states
    }

    fn backoff(&self, endpoint: &Endpoint, random: u64) -> Option<Duration> {
        self.with(endpoint, |known| known.down.then(|| backoff(known.failures, random)))?
    }

    fn with<T>(&self, endpoint: &Endpoint, change: impl FnOnce(&mut EndpointState) -> T) -> Option<T> {
        self.known.lock().iter_mut().find(|known| known.endpoint == *endpoint).map(change)
    }
}

/// The tracing target of log lines that report a change of state. Log lines that may repeat use another target.
const STATE: &str = "proxy::state";

/// Logs that a broker that answered, or was not asked before, does not answer.
pub(super) fn log_failure(endpoint: &Endpoint, error: &Refusal) {
    tracing::warn!(target: STATE, address = %endpoint, error = error.cause(endpoint), "upstream connection failed");
}

/// Probes an address that has lost one of its connections.
async fn probe_once(pool: Weak<Pool>, endpoint: Endpoint) {
    let Some(pool) = pool.upgrade() else { return };
    if !pool.draining.load(Ordering::Acquire) {
        pool.probe_one(&endpoint).await;
    }
    pool.endpoints.with(&endpoint, |known| known.is_doubted = false);
}

/// Probes an address until it is up, or its name no longer resolves to it.
async fn probe_until_up(pool: Weak<Pool>, endpoint: Endpoint) {
    loop {
        let pause = |pool: Arc<Pool>| pool.endpoints.backoff(&endpoint, (pool.config.random)());
        let Some(pause) = pool.upgrade().and_then(pause) else { return };
        tokio::time::sleep(pause).await;
        let Some(pool) = pool.upgrade() else { return };
        if pool.draining.load(Ordering::Acquire) {
            return;
        }
        match pool.ask(&endpoint).await {
            Ok(_) => return pool.restore_soon(),
            Err(error) => {
                pool.endpoints.with(&endpoint, EndpointState::count_failure);
                pool.endpoints.set_failure_cause(&endpoint, &error);
                if pool.endpoints.mark_unanswered(&pool, &endpoint) {
                    log_failure(&endpoint, &error);
                } else {
                    let error = error.cause(&endpoint);
                    tracing::debug!(address = %endpoint, error, "upstream still unreachable");
                }
                // Its name may resolve to other addresses by now, and no other task resolves it while no address answers.
                let endpoints = pool.endpoints.clone();
                drop(pool);
                endpoints.look_up(&endpoint.address).await;
            }
        }
    }
}

/// Resolves the names of the brokers until one yields an address.
async fn find(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(BACKOFF_MAX).await;
        let Some(pool) = pool.upgrade() else { return };
        let found = !pool.endpoints.in_order(&pool.config.upstreams).await.is_empty();
        if found || pool.draining.load(Ordering::Acquire) {
            return pool.endpoints.nameless.store(false, Ordering::Release);
        }
    }
}

/// The pause after this number of failures: doubled each time, with a random factor between a half and one,
/// so that many proxies do not reconnect at once.
fn backoff(failures: u32, random: u64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10));
    let longest = doubled.min(BACKOFF_MAX);
    longest / 2 + (longest / 2).mul_f64(random as f64 / u64::MAX as f64)
}

/// The first pause: a restarted broker, or another one of a cluster, may answer at once.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest pause: a broker that returns is noticed soon, and one probe costs it next to nothing.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long an address is tried last after a virtual host was down on it. This does not delay clients if there is no other
/// address.
const LACKS_FOR: Duration = Duration::from_secs(10);
/// Failures further apart than this are not consecutive.
const FAILURE_WINDOW: Duration = Duration::from_secs(30);
/// Timeout for resolving a name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller that already knows some addresses waits for a lookup, which normally takes milliseconds.
const LOOKUP_WAIT: Duration = Duration::from_millis(500);
/// How long an address that does not answer, and that its name no longer resolves to, is remembered.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
