//! The auth gate: which credentials may start a handshake with the broker, and when.
//!
//! # Example
//! No connection is open. A thousand clients log in with guessed passwords, then A and B with passwords that a broker
//! has accepted before. At most 32 of the guesses are sent to a broker at a time; A and B do not wait for any of them.
//! A password that was just refused is refused again for a second without asking the broker. When all upstream
//! connections are taken, the 32 guesses keep their handshake permits while they wait for a connection permit, so at
//! most 32 of them are in front of A in that queue.
//!
//! A virtual host does not answer. Of forty clients with accepted passwords that open it, 16 wait in a handshake until it times
//! out, and the others wait for one of these 16 permits; the remaining 16 permits are left for other virtual hosts. One of two
//! nodes has frozen: at most eight clients wait in a handshake with that node, which leaves eight permits of the virtual host
//! for the other node.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use amqp::Credentials;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::refusal::Refusal;

/// Bounds concurrent handshakes, so that a reconnect storm of clients does not overload the broker with handshakes, and
/// keeps logins with wrong credentials from delaying those with known ones.
#[derive(Debug)]
pub(crate) struct AuthGate {
    /// Permits for credentials that a broker has accepted before.
    known: Semaphore,
    /// The part of the `known` permits that handshakes with one destination may hold. A destination has an entry while
    /// one of its permits is held or waited for.
    shares: Mutex<HashMap<Destination, Weak<Semaphore>>>,
    /// Permits for all other credentials. Such a client keeps its permit while it waits for a connection permit.
    unknown: Semaphore,
    /// The credentials accepted last for each user, at most [`VERIFIED_MAX`].
    verified: Mutex<HashMap<String, Arc<Credentials>>>,
    /// The credentials refused last, oldest first, at most [`REFUSED_MAX`].
    refused: Mutex<VecDeque<Refused>>,
}

/// The destination of a handshake, as far as it is known before the handshake begins. `node` is set only if the brokers
/// have several addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Destination {
    pub(crate) node: Option<SocketAddr>,
    pub(crate) virtual_host: Option<Box<str>>,
}

#[derive(Debug)]
struct Refused {
    credentials: Credentials,
    /// The broker's reply text.
    text: String,
    at: Instant,
}

/// Permission to begin a handshake, returned on drop.
#[derive(Debug)]
pub(crate) struct HandshakePermit<'d> {
    _held: Option<SemaphorePermit<'d>>,
    /// The permits from the shares of the node and of the virtual host.
    _shares: [Option<OwnedSemaphorePermit>; 2],
    /// Whether a broker has accepted the credentials before.
    pub(crate) is_known: bool,
}

impl AuthGate {
    pub(crate) fn new() -> Self {
        Self {
            known: Semaphore::new(HANDSHAKES_AT_ONCE),
            shares: Mutex::default(),
            unknown: Semaphore::new(HANDSHAKES_AT_ONCE),
            verified: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Waits for permission to begin a handshake, until `end`.
    ///
    /// # Errors
    /// 320 CONNECTION_FORCED when no permit was released by then.
    pub(crate) async fn enter(
        &self,
        credentials: &Credentials,
        destination: &Destination,
        end: tokio::time::Instant,
    ) -> Result<HandshakePermit<'_>, Refusal> {
        let is_known =
            self.verified.lock().get(&credentials.username).is_some_and(|known| **known == *credentials);
        if is_known {
            return self.enter_known(destination, end).await;
        }
        // The semaphore is never closed.
        let held = within(end, self.unknown.acquire()).await?.ok();
        Ok(HandshakePermit { _held: held, _shares: [None, None], is_known })
    }

    /// Like [`Self::enter`], with credentials that a broker had accepted when the caller arrived.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub(crate) async fn enter_known(
        &self,
        destination: &Destination,
        end: tokio::time::Instant,
    ) -> Result<HandshakePermit<'_>, Refusal> {
        let of_node = destination.node.map(|_| self.share(destination));
        let of_virtual_host = self.share(&Destination { node: None, ..destination.clone() });
        let permits = async {
            // The semaphores are never closed.
            let of_node = match of_node {
                Some(share) => share.acquire_owned().await.ok(),
                None => None,
            };
            let of_virtual_host = of_virtual_host.acquire_owned().await.ok();
            let held = self.known.acquire().await.ok();
            HandshakePermit { _held: held, _shares: [of_node, of_virtual_host], is_known: true }
        };
        within(end, permits).await
    }

    fn share(&self, destination: &Destination) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(destination).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let most = if destination.node.is_some() { HANDSHAKES_TO_NODE } else { HANDSHAKES_TO_VHOST };
        let share = Arc::new(Semaphore::new(most));
        shares.insert(destination.clone(), Arc::downgrade(&share));
        share
    }

    /// Records that a broker has accepted these credentials.
    pub(crate) fn verified(&self, credentials: &Arc<Credentials>) {
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX && !verified.contains_key(&credentials.username) {
            // Any entry will do: the forgotten user's next login only waits once with unknown credentials.
            let forgotten = verified.keys().next().cloned();
            forgotten.map(|user| verified.remove(&user));
        }
        verified.insert(credentials.username.clone(), credentials.clone());
    }

    /// Records that a broker has refused these credentials, with its reply text.
    pub(crate) fn refuse(&self, credentials: Credentials, text: String, now: Instant) {
        let mut verified = self.verified.lock();
        if verified.get(&credentials.username).is_some_and(|known| **known == credentials) {
            verified.remove(&credentials.username);
        }
        drop(verified);
        let mut refused = self.refused.lock();
        forget(&mut refused, now);
        if refused.len() == REFUSED_MAX {
            refused.pop_front();
        }
        refused.push_back(Refused { credentials, text, at: now });
    }

    /// The broker's reply text, if it refused exactly these credentials a moment ago.
    pub(crate) fn refusal(&self, credentials: &Credentials, now: Instant) -> Option<String> {
        let mut refused = self.refused.lock();
        forget(&mut refused, now);
        refused.iter().find(|refused| refused.credentials == *credentials).map(|refused| refused.text.clone())
    }
}

/// Waits until `end`, and [`MIN_WAIT`] in any case.
async fn within<T>(end: tokio::time::Instant, entering: impl Future<Output = T>) -> Result<T, Refusal> {
    let end = end.max(tokio::time::Instant::now() + MIN_WAIT);
    let entered = tokio::time::timeout_at(end, entering).await;
    entered.map_err(|_| Refusal::unreachable("other logins take too long"))
}

fn forget(refused: &mut VecDeque<Refused>, now: Instant) {
    while refused.front().is_some_and(|oldest| now >= oldest.at + REFUSAL_TTL) {
        refused.pop_front();
    }
}

/// Concurrent handshakes, of each kind. RabbitMQ spends milliseconds of CPU on each.
pub(crate) const HANDSHAKES_AT_ONCE: usize = 32;
/// Concurrent handshakes, with accepted credentials, with the same virtual host. Half of [`HANDSHAKES_AT_ONCE`], so
/// that a virtual host that does not answer leaves permits for others; no less, because many pools have only one
/// virtual host.
pub(crate) const HANDSHAKES_TO_VHOST: usize = HANDSHAKES_AT_ONCE / 2;
/// Concurrent handshakes with the same one of several nodes, for the same reason.
pub(crate) const HANDSHAKES_TO_NODE: usize = HANDSHAKES_TO_VHOST / 2;
/// The minimum time to wait for permission. Clients that are logged in already would otherwise retry in a busy loop
/// once their deadline has passed.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// How long a refusal is repeated without asking: long enough to shield the broker from a client that retries
/// in a loop, short enough that nobody has to wait for a newly set password to work.
pub(crate) const REFUSAL_TTL: Duration = Duration::from_secs(1);
/// Refusals remembered, so that guessing costs little memory; a client that retries in a loop is among the last.
pub(crate) const REFUSED_MAX: usize = 128;
/// Users whose credentials are remembered; few proxies serve more.
pub(crate) const VERIFIED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_refusal_is_repeated_for_a_moment_and_for_the_same_credentials_only() {
        let (gate, now) = (AuthGate::new(), Instant::now());
        gate.refuse(Credentials::plain("user", "wrong"), "no".to_owned(), now);
        let refusal = |password: &str, now| gate.refusal(&Credentials::plain("user", password), now);
        assert_eq!(refusal("wrong", now + REFUSAL_TTL / 2).as_deref(), Some("no"));
        assert_eq!(refusal("right", now + REFUSAL_TTL / 2), None);
        assert_eq!(refusal("wrong", now + REFUSAL_TTL), None);
    }

    #[test]
    fn remembered_refusals_and_logins_are_bounded() {
        let (gate, now) = (AuthGate::new(), Instant::now());
        for n in 0..=VERIFIED_MAX {
            gate.refuse(Credentials::plain(format!("user {n}"), "wrong"), "no".to_owned(), now);
            gate.verified(&Arc::new(Credentials::plain(format!("user {n}"), "right")));
        }
        assert_eq!(gate.refused.lock().len(), REFUSED_MAX);
        assert_eq!(gate.verified.lock().len(), VERIFIED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn p1_concurrent_handshakes_are_bounded_and_known_credentials_do_not_wait_for_unknown_ones() {
        let (gate, mut taken) = (AuthGate::new(), Vec::new());
        let known = Arc::new(Credentials::plain("user", "right"));
        gate.verified(&known);
        for credentials in [&Credentials::plain("user", "wrong"), &*known] {
            for n in 0..HANDSHAKES_AT_ONCE {
                let to = to(if n % 2 == 0 { "one" } else { "other" });
                taken.push(enter(&gate, credentials, &to).expect("a free permit"));
            }
            assert!(enter(&gate, credentials, &to("third")).is_none());
        }
        taken.pop();
        assert!(enter(&gate, &known, &to("third")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn p2_a_destination_that_does_not_answer_leaves_permits_for_others() {
        let (gate, mut taken) = (AuthGate::new(), Vec::new());
        let known = Arc::new(Credentials::plain("user", "right"));
        gate.verified(&known);
        for _ in 0..HANDSHAKES_TO_VHOST {
            taken.push(enter(&gate, &known, &to("hangs")).expect("a free permit"));
        }
        assert!(enter(&gate, &known, &to("hangs")).is_none());
        assert!(enter(&gate, &known, &to("answers")).is_some());
        // No login waits beyond the client's deadline.
        let end = tokio::time::Instant::now() + 3 * MIN_WAIT;
        let refusal = gate.enter(&known, &to("hangs"), end).await.unwrap_err();
        assert!(refusal.is_outage() && tokio::time::Instant::now() == end, "{refusal:?}");
        taken.pop();
        assert!(enter(&gate, &known, &to("hangs")).is_some());
        taken.clear();
        // A node that does not answer leaves permits to the other nodes.
        let frozen = Destination { node: Some(([10, 0, 0, 1], 1).into()), ..to("/") };
        for _ in 0..HANDSHAKES_TO_NODE {
            taken.push(enter(&gate, &known, &frozen).expect("a free permit"));
        }
        assert!(enter(&gate, &known, &frozen).is_none());
        assert!(enter(&gate, &known, &to("/")).is_some());
        drop(taken);
        gate.share(&to("last"));
        assert_eq!(gate.shares.lock().len(), 1, "the entries of other destinations are removed");
    }

    fn to(virtual_host: &str) -> Destination {
        Destination { virtual_host: Some(virtual_host.into()), ..Destination::default() }
    }

    /// A permit, if there is one at once.
    fn enter<'g>(
        gate: &'g AuthGate,
        credentials: &Credentials,
        to: &Destination,
    ) -> Option<HandshakePermit<'g>> {
        let mut context = Context::from_waker(Waker::noop());
        let end = tokio::time::Instant::now() + Duration::from_secs(3600);
        match std::pin::pin!(gate.enter(credentials, to, end)).poll(&mut context) {
            Poll::Ready(permit) => Some(permit.unwrap()),
            Poll::Pending => None,
        }
    }
}
