//! An auth backend that accepts every user, and whose decisions about operations the test makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use broker::{
    AuthBackends, AuthzBackend, AuthzDecision, AuthzFuture, AuthzRequest, AuthzSubject, AuthzTarget, Broker,
    Identity, LoginAnswer, LoginAttempt,
};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// An auth backend of a broker. The test decides about its users' operations.
pub(crate) struct SimulatedAuthzBackend {
    answers: Arc<Answers>,
    runtime: Runtime,
}

#[derive(Default)]
struct Answers {
    /// Whether questions wait until the test answers them.
    waits: AtomicBool,
    waiting: Mutex<Vec<(String, oneshot::Sender<AuthzDecision>)>>,
    /// All questions so far, as text.
    asked: Mutex<Vec<String>>,
    /// The questions that are answered with a refusal.
    refused: Mutex<Vec<&'static str>>,
    generation: AtomicU32,
}

/// The same, as the broker's auth backend.
struct Everybody(Arc<Answers>);

impl SimulatedAuthzBackend {
    /// Accepts every user of `broker`, those of its own list as such, and answers each question at once.
    pub(crate) fn of(broker: &Broker) -> Self {
        let answers = Arc::<Answers>::default();
        broker.set_auth_backends(Arc::new(Everybody(Arc::clone(&answers))));
        Self { answers, runtime: tokio::runtime::Builder::new_current_thread().build().unwrap() }
    }

    /// Runs `action`, which starts requests, and then all requests as far as possible.
    pub(crate) fn run<T>(&self, action: impl FnOnce() -> T) -> T {
        self.runtime.block_on(async {
            let value = action();
            // More than any chain of tasks that wake each other.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            value
        })
    }

    /// Makes further questions wait.
    pub(crate) fn hold_back(&self) {
        self.answers.waits.store(true, Ordering::Relaxed);
    }

    /// Answers all waiting questions, and later ones at once.
    pub(crate) fn release(&self, verdict: AuthzDecision) {
        self.answers.waits.store(false, Ordering::Relaxed);
        for (_, answer) in std::mem::take(&mut *self.answers.waiting.lock()) {
            let _ = answer.send(verdict);
        }
        self.run(|| ());
    }

    /// Returns the questions since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.answers.asked.lock())
    }

    /// Refuses these questions.
    pub(crate) fn refuse(&self, refused: &[&'static str]) {
        *self.answers.refused.lock() = refused.to_vec();
    }

    /// Clears all cached answers.
    pub(crate) fn forget(&self) {
        self.answers.generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl AuthBackends for Everybody {
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer {
        let authz = Arc::new(Self(Arc::clone(&self.0)));
        let identity = match broker.listed(&attempt.user, true) {
            Ok(listed) => listed.authorised_by(broker, authz, None).unwrap(),
            Err(_) => {
                let name = attempt.user.into();
                let user = AuthzSubject { name, tags: Vec::new(), from: None, client_id: None };
                Identity::of_authz_backend(user, authz)
            }
        };
        LoginAnswer::Later(Box::pin(std::future::ready(Ok(identity))))
    }

    fn renew(&self, identity: &Identity, _: &[u8]) -> LoginAnswer {
        LoginAnswer::Now(Ok(identity.clone()))
    }

    fn allows_internal_users(&self) -> bool {
        false
    }
}

impl AuthzBackend for Everybody {
    fn module(&self) -> &'static str {
        "rabbit_auth_backend_http"
    }

    fn ask(&self, question: AuthzRequest) -> AuthzFuture {
        let text = match question.about {
            AuthzTarget::VirtualHost { .. } => return Box::pin(std::future::ready(AuthzDecision::Allowed)),
            AuthzTarget::Resource { kind, name, permission, .. } => format!("{permission} {kind} {name}"),
            AuthzTarget::Topic { exchange, permission, routing_key, .. } => {
                format!("{permission} topic {exchange} {routing_key}")
            }
        };
        self.0.asked.lock().push(text.clone());
        if self.0.waits.load(Ordering::Relaxed) {
            let (answer, verdict) = oneshot::channel();
            self.0.waiting.lock().push((text, answer));
            return Box::pin(async { verdict.await.unwrap_or(AuthzDecision::Unanswered) });
        }
        let is_refused = self.0.refused.lock().contains(&&*text);
        let verdict = if is_refused { AuthzDecision::Refused } else { AuthzDecision::Allowed };
        Box::pin(std::future::ready(verdict))
    }

    fn generation(&self) -> u32 {
        self.0.generation.load(Ordering::Relaxed)
    }
}
