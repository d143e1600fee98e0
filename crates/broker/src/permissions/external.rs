//! Rights that another party decides about, operation by operation: what it is asked, and its answers.
//!
//! Checks never wait, since many are made under a lock. A check whose answer is missing fails with
//! [`crate::BrokerError::Unasked`] and leaves its question here. The session discards that outcome, takes the question
//! ([`Identity::take_authz_request`]), reads nothing from its client until it has been answered, and then repeats the operation
//! from its start. An operation changes nothing before its checks have passed.

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

/// Cached answers of a user's session, for its next operations. RabbitMQ caches 12 for each channel; all channels of
/// a connection share these.
const MAX_CACHED: usize = 1024;

/// Questions of one operation, such as an MQTT client's return to a session with many subscriptions. Their answers count
/// until it is over, and take a hundred bytes each besides their names.
const MAX_OF_OPERATION: usize = 16 * 1024;

/// Questions of one operation that are asked at once: many subscriptions do not take as many round trips, and one session
/// leaves most of an auth backend's capacity to others.
const MAX_AT_ONCE: usize = 8;

/// An auth backend that is asked about each operation of the users that it has let in.
pub trait AuthzBackend: Send + Sync {
    /// The name of the module of RabbitMQ that does the same, for refusals.
    fn module(&self) -> &'static str;
    /// Asks. Nothing is sent before the answer is awaited.
    fn ask(&self, question: AuthzRequest) -> AuthzFuture;
    /// Changes when all earlier answers are to be forgotten.
    fn generation(&self) -> u32;
}

/// A verdict that is being waited for.
pub type AuthzFuture = Pin<Box<dyn Future<Output = AuthzDecision> + Send>>;

/// The questions of an operation, with which the session waits for the answers.
pub type PendingAuthz = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The answer to a question; all but the first refuse the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthzDecision {
    /// The user may.
    Allowed,
    /// The user may not.
    Refused,
    /// The auth backend could not be asked, or its answer is none. The user may not either.
    Unanswered,
}

/// A question, with all that an auth backend may want to know.
#[derive(Debug, Clone)]
pub struct AuthzRequest {
    /// The user and its connection.
    pub user: Arc<AuthzSubject>,
    /// The operation that it wants to carry out.
    pub about: AuthzTarget,
}

/// The user that a question is about.
#[derive(Debug, PartialEq, Eq)]
pub struct AuthzSubject {
    /// As it has logged in.
    pub name: Box<str>,
    /// The tags, as the auth backend told them at the login.
    pub tags: Vec<String>,
    /// The client's address; `None` on a Unix socket.
    pub from: Option<IpAddr>,
    /// The name of an MQTT client.
    pub client_id: Option<Box<str>>,
}

/// The operation that a question is about.
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

/// The rights of one login, shared by its session and publishers.
pub(crate) struct ExternalPermissions {
    backend: Arc<dyn AuthzBackend>,
    user: Arc<AuthzSubject>,
    answers: Mutex<Answers, { Rank::Leaf as u8 }>,
}

#[derive(Default)]
struct Answers {
    /// The auth backend's generation that they belong to: that of now, or of the beginning of the operation that is under way.
    generation: u32,
    /// The number of operations that are over. An answer to a question of an earlier one comes too late.
    operation: u64,
    allowed: HashSet<AuthzTarget>,
    /// The same in the order in which they came.
    order: VecDeque<AuthzTarget>,
    /// Refusals for the operation in progress: RabbitMQ caches no refusal either.
    refused: HashMap<AuthzTarget, AuthzDecision>,
    /// The number of questions that the operation has asked.
    asked: usize,
    /// The questions that have not been taken yet, in their order.
    pending: Vec<AuthzTarget>,
    /// The same, to be found.
    is_pending: HashSet<AuthzTarget>,
    /// The name that the operation has generated.
    generated: Option<String>,
}

impl ExternalPermissions {
    pub(crate) fn new(backend: Arc<dyn AuthzBackend>, user: AuthzSubject) -> Self {
        Self { backend, user: Arc::new(user), answers: Mutex::default() }
    }

    /// The same user as an MQTT client of this name, about whom nothing has been asked yet.
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

    /// The generation of the answers that count now. It does not change during an operation.
    pub(crate) fn generation(&self) -> u32 {
        let generation = self.backend.generation();
        let answers = self.answers.lock();
        if answers.asked > 0 { answers.generation } else { generation }
    }

    /// The verdict; `None` if it is yet to be asked for, which is noted.
    pub(crate) fn decide(&self, about: AuthzTarget) -> Option<AuthzDecision> {
        let generation = self.backend.generation();
        let mut answers = self.answers.lock();
        // An operation is decided by answers of one generation: what it has checked stays as it was.
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

    /// The questions that are yet to be asked, and the operation that they belong to.
    fn take_pending(&self) -> (Vec<AuthzTarget>, u64) {
        let mut answers = self.answers.lock();
        answers.is_pending.clear();
        (std::mem::take(&mut answers.pending), answers.operation)
    }

    /// Asks all of the questions, a few at once. If one gets no answer, the others do not wait for theirs.
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
                // As many more are asked, if there are any.
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

    /// Notes an answer, unless its operation has been given up.
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

    /// The operation is over.
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

    /// The name that the operation has generated, or now generates: repeated, it has the same.
    pub(crate) fn generated(&self, generate: impl FnOnce() -> String) -> String {
        let mut answers = self.answers.lock();
        if answers.asked == 0 {
            // It is not repeated: the name may be another operation's.
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
    /// Whether another auth backend decides about each operation of the user.
    pub fn is_asked(&self) -> bool {
        self.asked().is_some()
    }

    /// The questions that the last operation has left, to be awaited outside any lock before it is repeated.
    pub fn take_authz_request(&self) -> Option<PendingAuthz> {
        let asked = self.asked()?;
        let (questions, operation) = asked.take_pending();
        if questions.is_empty() {
            return None;
        }
        let asked = Arc::clone(asked);
        Some(Box::pin(async move { asked.ask(questions, operation).await }))
    }

    /// Called after an operation that was repeated, or is given up: another one asks again about what was refused.
    pub fn end_operation(&self) {
        if let Some(asked) = self.asked() {
            asked.end_operation();
        }
    }

    /// Repeats an operation until nothing more is to be asked about it.
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
