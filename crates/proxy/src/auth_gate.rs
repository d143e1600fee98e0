//! The auth gate: which credentials may start a handshake with the broker, and when.
//!
//! # Example
//! No connection is open. A thousand clients come with guessed passwords, then A and B with passwords that a broker
//! has accepted before. 32 of the guesses are put to a broker at a time, each in turn; A and B do not wait for any of
//! them. A password that was just refused is refused again for a second without asking. When all upstream connections
//! are taken, the 32 guesses keep their permits while they wait for one, so that no more than 32 stand before A there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::Credentials;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bounds concurrent handshakes, so that a storm of clients does not become a storm of handshakes, and keeps
/// wrong credentials from delaying good ones.
#[derive(Debug)]
pub(crate) struct AuthGate {
    /// Permits for credentials that a broker has accepted before.
    known: Semaphore,
    /// Permits for all others, which keep theirs while they wait for a connection permit.
    strangers: Semaphore,
    /// The credentials accepted last for each user, at most [`VERIFIED_MAX`].
    verified: Mutex<HashMap<String, Arc<Credentials>>>,
    /// The credentials refused last, oldest first, at most [`REFUSED_MAX`].
    refused: Mutex<VecDeque<Refused>>,
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
    /// Whether a broker has accepted the credentials before.
    pub(crate) is_known: bool,
}

impl AuthGate {
    pub(crate) fn new() -> Self {
        Self {
            known: Semaphore::new(HANDSHAKES_AT_ONCE),
            strangers: Semaphore::new(HANDSHAKES_AT_ONCE),
            verified: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Waits for permission to begin a handshake.
    pub(crate) async fn enter(&self, credentials: &Credentials) -> HandshakePermit<'_> {
        let is_known =
            self.verified.lock().get(&credentials.username).is_some_and(|known| **known == *credentials);
        if is_known {
            return self.enter_known().await;
        }
        // The semaphore is never closed.
        HandshakePermit { _held: self.strangers.acquire().await.ok(), is_known }
    }

    /// Like [`Self::enter`], with credentials that a broker had accepted when the caller arrived.
    pub(crate) async fn enter_known(&self) -> HandshakePermit<'_> {
        // The semaphore is never closed.
        HandshakePermit { _held: self.known.acquire().await.ok(), is_known: true }
    }

    /// Records that a broker has accepted these credentials.
    pub(crate) fn verified(&self, credentials: &Arc<Credentials>) {
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX && !verified.contains_key(&credentials.username) {
            // Any entry will do: a forgotten user only queues with the unknown ones once.
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

fn forget(refused: &mut VecDeque<Refused>, now: Instant) {
    while refused.front().is_some_and(|oldest| now >= oldest.at + REFUSAL_HOLDS) {
        refused.pop_front();
    }
}

/// Concurrent handshakes, of each kind. RabbitMQ spends milliseconds of CPU on each.
pub(crate) const HANDSHAKES_AT_ONCE: usize = 32;
/// How long a refusal is repeated without asking: long enough to shield the broker from a client that retries
/// in a loop, short enough that nobody has to wait for a newly set password to work.
pub(crate) const REFUSAL_HOLDS: Duration = Duration::from_secs(1);
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
        assert_eq!(refusal("wrong", now + REFUSAL_HOLDS / 2).as_deref(), Some("no"));
        assert_eq!(refusal("right", now + REFUSAL_HOLDS / 2), None);
        assert_eq!(refusal("wrong", now + REFUSAL_HOLDS), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (gate, now) = (AuthGate::new(), Instant::now());
        for n in 0..=VERIFIED_MAX {
            gate.refuse(Credentials::plain(format!("user {n}"), "wrong"), "no".to_owned(), now);
            gate.verified(&Arc::new(Credentials::plain(format!("user {n}"), "right")));
        }
        assert_eq!(gate.refused.lock().len(), REFUSED_MAX);
        assert_eq!(gate.verified.lock().len(), VERIFIED_MAX);
    }

    #[test]
    fn p1_handshakes_at_once_are_few_and_unknown_credentials_keep_no_known_ones_waiting() {
        let (gate, mut taken) = (AuthGate::new(), Vec::new());
        let known = Arc::new(Credentials::plain("user", "right"));
        gate.verified(&known);
        for credentials in [&Credentials::plain("user", "wrong"), &*known] {
            for _ in 0..HANDSHAKES_AT_ONCE {
                taken.push(enter(&gate, credentials).expect("a free permit"));
            }
            assert!(enter(&gate, credentials).is_none());
        }
        taken.pop();
        assert!(enter(&gate, &known).is_some());
    }

    /// A permit, if there is one at once.
    fn enter<'g>(gate: &'g AuthGate, credentials: &Credentials) -> Option<HandshakePermit<'g>> {
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::pin!(gate.enter(credentials)).poll(&mut context) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }
}
