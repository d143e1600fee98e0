//! Permissions that an external auth backend decides, operation by operation: the requests to it, and its answers.
//!
//! Checks never wait, since many run under a lock. A check without an answer fails with [`crate::BrokerError::Unasked`] and
//! queues its request here. The session discards that outcome, sends the request ([`Identity::take_authz_request`]), reads
//! nothing from its client until the answer arrives, and then repeats the operation from its start. An operation changes
//! nothing before its checks have passed.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use hashbrown::{HashMap, HashSet};
use sync::{Mutex, Rank};

use super::Access;
use crate::names::Resource;
use crate::users::Identity;

/// The most answers cached per session, for later operations. RabbitMQ caches 12 for each channel; all channels of a
/// connection share these.
const MAX_CACHED: usize = 1024;

/// The most requests of one operation, such as an MQTT client that resumes a session with many subscriptions. Their answers
/// are stored until the operation ends, and take a hundred bytes each in addition to their names.
const MAX_OF_OPERATION: usize = 16 * 1024;

/// The most concurrent requests of one operation: many subscriptions then take fewer round trips, and one session leaves
/// most of an auth backend's capacity to others.
const MAX_AT_ONCE: usize = 8;

/// An auth backend that authorizes each operation of its users.
pub trait AuthzBackend: Send + Sync {
    /// The name of RabbitMQ's equivalent module, for refusals.
    fn module(&self) -> &'static str;
    /// Creates a request. It is sent when the future is polled.
    fn ask(&self, question: AuthzRequest) -> AuthzFuture;
    /// Changes when all earlier answers become invalid.
    fn generation(&self) -> u32;
}

/// A decision that the auth backend has yet to make.
pub type AuthzFuture = Pin<Box<dyn Future<Output = AuthzDecision> + Send>>;

/// The pending requests of an operation, for the session to await.
pub type PendingAuthz = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer to a request; all but `Allowed` refuse the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthzDecision {
    /// The user may.
    Allowed,
    /// The user may not.
    Refused,
    /// The auth backend could not be queried, or gave no valid answer. The operation is refused.
    Unanswered,
}

/// A request, with all the details that an auth backend may use.
#[derive(Debug, Clone)]
pub struct AuthzRequest {
    /// The user and its connection.
    pub user: Arc<AuthzSubject>,
    /// The operation to be authorized.
    pub about: AuthzTarget,
}

/// The user of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct AuthzSubject {
    /// The name used at the login.
    pub name: Box<str>,
    /// The tags that the auth backend returned at the login.
    pub tags: Vec<String>,
    /// The client's address; `None` on a Unix socket.
    pub from: Option<IpAddr>,
    /// The name of an MQTT client.
    pub client_id: Option<Box<str>>,
}

/// The operation of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AuthzTarget {
    /// Opening a virtual host.
    VirtualHost {
        /// Its name.
        vhost: Arc<str>,
    },
    /// An operation on a queue or an exchange.
    Resource {
        /// The virtual host.
        vhost: Arc<str>,
        /// `queue` or `exchange`.
        kind: &'static str,
        /// The name of the queue or exchange.
        name: Box<str>,
        /// `configure`, `write` or `read`.
        permission: &'static str,
    },
    /// A routing key on a topic exchange.
    Topic {
        /// The virtual host.
        vhost: Arc<str>,
        /// The name of the exchange.
        exchange: Box<str>,
        /// `write` to publish, `read` to bind.
        permission: &'static str,
        /// The routing key.
        routing_key: Box<str>,
    },
}

/// The permissions of one login, shared by its session and publishers.
pub(crate) struct ExternalPermissions {
    backend: Arc<dyn AuthzBackend>,
    user: Arc<AuthzSubject>,
    answers: Mutex<Answers, { Rank::Leaf as u8 }>,
}

#[derive(Default)]
struct Answers {
    /// The auth backend's generation of these answers: the current one, or that at the start of the current operation.
    generation: u32,
    /// The number of operations that have ended. An answer to a request of an earlier one is too late.
    operation: u64,
    allowed: HashSet<AuthzTarget>,
    /// The same, in order of arrival.
    order: VecDeque<AuthzTarget>,
    /// Refusals for the current operation: RabbitMQ caches no refusals either.
    refused: HashMap<AuthzTarget, AuthzDecision>,
    /// Number of requests of the current operation.
    asked: usize,
    /// The requests that have not been taken yet, in order.
    pending: Vec<AuthzTarget>,
    /// The same, for lookups.
    is_pending: HashSet<AuthzTarget>,
    /// The name generated by the current operation.
    generated: Option<String>,
}

impl ExternalPermissions {
    pub(crate) fn new(backend: Arc<dyn AuthzBackend>, user: AuthzSubject) -> Self {
        Self { backend, user: Arc::new(user), answers: Mutex::default() }
    }

    /// The same user as an MQTT client of this name, without cached answers.
    pub(crate) fn as_client(&self, name: &str) -> Self {
        let AuthzSubject { name: user, tags, from, .. } = &*self.user;
        let (user, tags) = (user.clone(), tags.clone());
        let client = AuthzSubject { name: user, tags, from: *from, client_id: Some(name.into()) };
        Self::new(Arc::clone(&self.backend), client)
    }

    pub(crate) fn user(&self) -> &AuthzSubject {
        &self.user
    }

    pub(crate) fn module(&self) -> &'static str {
        self.backend.module()
    }

    /// The generation of the valid answers. It does not change during an operation.
    pub(crate) fn generation(&self) -> u32 {
        let generation = self.backend.generation();
        let answers = self.answers.lock();
        if answers.asked > 0 { answers.generation } else { generation }
    }

    /// The decision; `None` if it has to be requested, which is recorded.
    pub(crate) fn decide(&self, about: AuthzTarget) -> Option<AuthzDecision> {
        let generation = self.backend.generation();
        let mut answers = self.answers.lock();
        // An operation uses answers of one generation, so that its passed checks remain valid.
        if answers.asked == 0 && answers.generation != generation {
            answers.generation = generation;
            answers.allowed.clear();
            answers.order.clear();
        }
        if answers.allowed.contains(&about) {
            return Some(AuthzDecision::Allowed);
        }
        if let Some(verdict) = answers.refused.get(&about) {
            return Some(*verdict);
        }
        if answers.is_pending.contains(&about) {
            return None;
        }
        if answers.asked >= MAX_OF_OPERATION {
            return Some(AuthzDecision::Unanswered);
        }
        answers.asked += 1;
        answers.is_pending.insert(about.clone());
        answers.pending.push(about);
        None
    }

    /// The requests to be sent, and the number of their operation.
    fn take_pending(&self) -> (Vec<AuthzTarget>, u64) {
        let mut answers = self.answers.lock();
        answers.is_pending.clear();
        (std::mem::take(&mut answers.pending), answers.operation)
    }

    /// Sends all requests, a few at once. If one gets no answer, the others do not wait for theirs.
    async fn ask(&self, questions: Vec<AuthzTarget>, operation: u64) {
        let mut questions = questions.into_iter();
        let mut asked: Vec<(AuthzTarget, AuthzFuture)> = Vec::new();
        let is_answered = std::future::poll_fn(|context| {
            loop {
                let free = MAX_AT_ONCE - asked.len();
                asked.extend(questions.by_ref().take(free).map(|about| {
                    let question = AuthzRequest { user: Arc::clone(&self.user), about: about.clone() };
                    (about, self.backend.ask(question))
                }));
                let mut is_answered = true;
                let answered = asked.extract_if(.., |(about, verdict)| {
                    let Poll::Ready(verdict) = verdict.as_mut().poll(context) else { return false };
                    is_answered &= verdict != AuthzDecision::Unanswered;
                    self.note(about, verdict, operation);
                    true
                });
                let answered = answered.count();
                if !is_answered || (asked.is_empty() && questions.len() == 0) {
                    return Poll::Ready(is_answered);
                }
                // Send as many more, if there are any.
                if answered == 0 || questions.len() == 0 {
                    return Poll::Pending;
                }
            }
        })
        .await;
        if !is_answered {
            let rest = asked.into_iter().map(|(about, _)| about).chain(questions);
            rest.for_each(|about| self.note(&about, AuthzDecision::Unanswered, operation));
        }
    }

    /// Stores an answer, unless its operation has been abandoned.
    fn note(&self, about: &AuthzTarget, verdict: AuthzDecision, operation: u64) {
        let mut answers = self.answers.lock();
        if answers.operation != operation {
            return;
        }
        if verdict != AuthzDecision::Allowed {
            answers.refused.insert(about.clone(), verdict);
        } else if answers.allowed.insert(about.clone()) {
            answers.order.push_back(about.clone());
        }
    }

    /// Ends the current operation.
    fn end_operation(&self) {
        let mut answers = self.answers.lock();
        answers.operation += 1;
        answers.refused = HashMap::new();
        answers.asked = 0;
        answers.generated = None;
        answers.pending = Vec::new();
        answers.is_pending = HashSet::new();
        while answers.order.len() > MAX_CACHED {
            if let Some(oldest) = answers.order.pop_front() {
                answers.allowed.remove(&oldest);
            }
        }
    }

    /// The name generated by the current operation: when repeated, it gets the same one.
    pub(crate) fn generated(&self, generate: impl FnOnce() -> String) -> String {
        let mut answers = self.answers.lock();
        if answers.asked == 0 {
            // This operation is not a repetition: the name may be another operation's.
            answers.generated = None;
        }
        answers.generated.get_or_insert_with(generate).clone()
    }
}

impl Access {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

impl AuthzTarget {
    pub(crate) fn resource(vhost: &Arc<str>, resource: Resource, name: &str, access: Access) -> Self {
        let (vhost, kind) = (Arc::clone(vhost), resource.word());
        Self::Resource { vhost, kind, name: name.into(), permission: access.word() }
    }

    pub(crate) fn topic(vhost: &Arc<str>, exchange: &str, key: &str, access: Access) -> Self {
        let (vhost, permission) = (Arc::clone(vhost), access.word());
        Self::Topic { vhost, exchange: exchange.into(), permission, routing_key: key.into() }
    }
}

impl Identity {
    /// Whether an external auth backend authorizes each operation of the user.
    pub fn is_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// The requests of the last operation, to be awaited without locks before it is repeated.
    pub fn take_authz_request(&self) -> Option<PendingAuthz> {
        let asked = self.asked()?;
        let (questions, operation) = asked.take_pending();
        if questions.is_empty() {
            return None;
        }
        let asked = Arc::clone(asked);
        Some(Box::pin(async move { asked.ask(questions, operation).await }))
    }

    /// Called after an operation that was repeated or abandoned: refusals are then requested again.
    pub fn end_operation(&self) {
        if let Some(asked) = self.asked() {
            asked.end_operation();
        }
    }

    /// Repeats an operation until it needs no more answers.
    ///
    /// # Errors
    /// As the operation.
    pub async fn ask_for<T, E>(&self, mut operation: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        loop {
            let outcome = operation();
            match self.take_authz_request() {
                Some(question) if outcome.is_err() => question.await,
                _ => {
                    self.end_operation();
                    return outcome;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
