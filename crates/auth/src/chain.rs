//! The auth backends in their order: the first that accepts a user also determines the user's permissions.

use std::sync::Arc;

use broker::{AuthBackends, AuthzSubject, Broker, Identity, LoginAnswer, LoginAttempt, LoginRefused};

use crate::http::HttpAuthBackend;
use crate::oauth::OAuth2;
use crate::token::looks_like_token;

/// An auth backend that authenticates users.
#[derive(Clone)]
pub enum AuthBackend {
    /// The broker's own list of users.
    Internal,
    /// JSON Web Tokens.
    OAuth2(OAuth2),
    /// A service that is queried over HTTP.
    Http(HttpAuthBackend),
    /// One backend that checks passwords, and one that authorizes: RabbitMQ's `auth_backends.1.authn` and `.authz`. Both
    /// have to accept the user.
    Split {
        /// Checks the password.
        authn: SplitAuthBackend,
        /// Authorizes the user's operations.
        authz: SplitAuthBackend,
    },
}

/// A backend for either authentication or authorization.
#[derive(Clone)]
pub enum SplitAuthBackend {
    /// The broker's own list of users.
    Internal,
    /// A service that is queried over HTTP.
    Http(HttpAuthBackend),
}

/// The auth backends that a login tries, one after the other, until one accepts the user.
pub struct AuthChain(Arc<[AuthBackend]>);

impl AuthBackend {
    fn name(&self) -> &'static str {
        match self {
            Self::Internal => INTERNAL,
            Self::OAuth2(_) => crate::oauth::NAME,
            Self::Http(http) => http.name(),
            Self::Split { authn, .. } => authn.name(),
        }
    }

    /// The backends that are queried over HTTP.
    fn services(&self) -> impl Iterator<Item = &HttpAuthBackend> {
        let both = match self {
            Self::Internal | Self::OAuth2(_) => [None, None],
            Self::Http(http) => [Some(http), None],
            Self::Split { authn, authz } => [authn.service(), authz.service()],
        };
        both.into_iter().flatten()
    }

    fn log_in(&self, broker: &Arc<Broker>, attempt: &LoginAttempt) -> LoginAnswer {
        match self {
            Self::Internal => {
                let LoginAttempt { user, secret, is_loopback, .. } = attempt;
                LoginAnswer::Now(broker.authenticate(user, secret, *is_loopback))
            }
            Self::OAuth2(tokens) => tokens.verify(&attempt.secret),
            Self::Http(http) => {
                let (http, attempt) = (http.clone(), attempt.clone());
                LoginAnswer::Later(Box::pin(async move {
                    let tags = http.check_login(&attempt).await?;
                    Ok(asked(http, &attempt, tags))
                }))
            }
            Self::Split { authn, authz } => {
                let (authn, authz) = (authn.clone(), authz.clone());
                let (broker, attempt) = (Arc::clone(broker), attempt.clone());
                LoginAnswer::Later(Box::pin(
                    async move { log_in_split(authn, authz, &broker, &attempt).await },
                ))
            }
        }
    }
}

impl SplitAuthBackend {
    fn name(&self) -> &'static str {
        match self {
            Self::Internal => INTERNAL,
            Self::Http(http) => http.name(),
        }
    }

    fn service(&self) -> Option<&HttpAuthBackend> {
        match self {
            Self::Internal => None,
            Self::Http(http) => Some(http),
        }
    }
}

/// The name of the internal user list in settings and logs.
const INTERNAL: &str = "internal";

/// The identity of a user accepted by an HTTP backend, with these tags.
fn asked(http: HttpAuthBackend, attempt: &LoginAttempt, tags: Vec<String>) -> Identity {
    let user = AuthzSubject { name: attempt.user.as_str().into(), tags, from: attempt.from, client_id: None };
    Identity::of_authz_backend(user, Arc::new(http))
}

/// Checks the password with one auth backend, then has the other one accept the user, too. The tags are those of the first;
/// if the second is the internal user list, those of both, as in RabbitMQ.
async fn log_in_split(
    authn: SplitAuthBackend,
    authz: SplitAuthBackend,
    broker: &Broker,
    attempt: &LoginAttempt,
) -> Result<Identity, LoginRefused> {
    let LoginAttempt { user, secret, is_loopback, from, .. } = attempt;
    match (authn, authz) {
        (SplitAuthBackend::Internal, SplitAuthBackend::Internal) => {
            broker.authenticate(user, secret, *is_loopback)
        }
        (SplitAuthBackend::Internal, SplitAuthBackend::Http(http)) => {
            let identity = broker.authenticate(user, secret, *is_loopback)?;
            http.check_login(attempt).await?;
            identity.authorised_by(broker, Arc::new(http), *from).ok_or(LoginRefused::UnknownUser)
        }
        (SplitAuthBackend::Http(http), SplitAuthBackend::Internal) => {
            let tags = http.check_login(attempt).await?;
            Ok(broker.listed(user, *is_loopback)?.with_tags(tags))
        }
        (SplitAuthBackend::Http(first), SplitAuthBackend::Http(second)) => {
            let tags = first.check_login(attempt).await?;
            second.check_login(attempt).await?;
            Ok(asked(second, attempt, tags))
        }
    }
}

impl AuthChain {
    /// The auth backends, in their order.
    pub fn new(backends: Vec<AuthBackend>) -> Self {
        Self(backends.into())
    }
}

impl AuthBackends for AuthChain {
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer {
        // Guessing a token is hopeless, and clients whose tokens have expired must not lock out others.
        let is_limited = !looks_like_token(&attempt.secret);
        if is_limited && let Err(refused) = broker.check_attempt(&attempt) {
            return LoginAnswer::Now(Err(refused));
        }
        let mut asking =
            ChainLogin { backends: Arc::clone(&self.0), at: 0, refusals: Vec::new(), is_limited };
        match asking.advance(broker, &attempt) {
            LoginAnswer::Now(outcome) => LoginAnswer::Now(outcome),
            LoginAnswer::Later(first) => {
                let broker = Arc::clone(broker);
                LoginAnswer::Later(Box::pin(async move {
                    let mut outcome = first.await;
                    loop {
                        match outcome {
                            Ok(identity) => return Ok(identity),
                            Err(refused) => asking.refused(refused),
                        }
                        match asking.advance(&broker, &attempt) {
                            LoginAnswer::Now(outcome) => return outcome,
                            LoginAnswer::Later(next) => outcome = next.await,
                        }
                    }
                }))
            }
        }
    }

    fn renew(&self, identity: &Identity, secret: &[u8]) -> LoginAnswer {
        if identity.is_asked() {
            // A login from the internal list does not expire.
            return LoginAnswer::Now(Ok(identity.clone()));
        }
        let mut tokens = self.0.iter().filter_map(|backend| match backend {
            AuthBackend::OAuth2(tokens) => Some(tokens),
            _ => None,
        });
        match tokens.next() {
            Some(tokens) => tokens.verify_renewed(secret, identity.user()),
            None => LoginAnswer::Now(Err(LoginRefused::UnknownUser)),
        }
    }

    fn allows_internal_users(&self) -> bool {
        self.0.iter().any(|backend| matches!(backend, AuthBackend::Internal))
    }

    fn clear_cache(&self) -> bool {
        let mut is_asked = false;
        for http in self.0.iter().flat_map(AuthBackend::services) {
            http.forget();
            is_asked = true;
        }
        is_asked
    }
}

/// The state of a login that tries the auth backends in turn.
struct ChainLogin {
    backends: Arc<[AuthBackend]>,
    /// Index of the current auth backend.
    at: usize,
    refusals: Vec<(&'static str, LoginRefused)>,
    is_limited: bool,
}

impl ChainLogin {
    /// Tries one auth backend after the other until one accepts, all have refused, or one answers later.
    fn advance(&mut self, broker: &Arc<Broker>, attempt: &LoginAttempt) -> LoginAnswer {
        while let Some(backend) = self.backends.get(self.at).cloned() {
            match backend.log_in(broker, attempt) {
                LoginAnswer::Now(Err(refused)) => self.refused(refused),
                answer => return answer,
            }
        }
        if self.is_limited && self.is_guess() {
            broker.note_failed_attempt(attempt);
        }
        LoginAnswer::Now(Err(self.refusal()))
    }

    /// Whether the password counts as a wrong guess. A service that does not answer is no evidence by itself. But a client
    /// can provoke that, for example by a long name, which must not hide a mismatch in the internal list.
    fn is_guess(&self) -> bool {
        let mut refusals = self.refusals.iter().map(|(_, refused)| refused);
        refusals.clone().any(|refused| *refused == LoginRefused::WrongPassword)
            || !refusals.any(|refused| matches!(refused, LoginRefused::Unanswered { .. }))
    }

    /// Records that the current auth backend has refused the login.
    fn refused(&mut self, refused: LoginRefused) {
        if let Some(backend) = self.backends.get(self.at) {
            self.refusals.push((backend.name(), refused));
        }
        self.at += 1;
    }

    /// The reasons of all backends, for the log; a user limited to loopback connections gets that reason.
    fn refusal(&mut self) -> LoginRefused {
        let of_place = self.refusals.iter().find(|(_, refused)| *refused == LoginRefused::LoopbackOnly);
        if of_place.is_some() || self.refusals.len() == 1 {
            let single = of_place.or(self.refusals.first()).map(|(_, refused)| refused.clone());
            return single.unwrap_or(LoginRefused::UnknownUser);
        }
        let reason = |(name, refused): &(&str, LoginRefused)| match refused {
            LoginRefused::Elsewhere { why, .. } => format!("{name}: {why}"),
            LoginRefused::Unanswered { .. } => refused.to_string(),
            refused => format!("{name}: {refused}"),
        };
        let reasons: Vec<_> = self.refusals.iter().map(reason).collect();
        LoginRefused::Elsewhere { backend: "auth_backends", why: reasons.join("; ").into() }
    }
}
