//! The authorities in their order: the first that lets a user in is the one whose rights count.

use std::sync::Arc;

use broker::{AuthBackends, Broker, Identity, LoginAnswer, LoginAttempt, LoginRefused};

use crate::oauth::OAuth2;
use crate::token::looks_like_token;

/// An authority that may let a user in.
#[derive(Clone)]
pub enum ChainLink {
    /// The broker's own list of users.
    Internal,
    /// Tokens.
    OAuth2(OAuth2),
}

/// Authorities that are asked about a login, one after the other, until one lets the user in.
pub struct AuthChain(Arc<[ChainLink]>);

impl ChainLink {
    fn name(&self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::OAuth2(_) => crate::oauth::NAME,
        }
    }

    fn log_in(&self, broker: &Broker, attempt: &LoginAttempt) -> LoginAnswer {
        match self {
            Self::Internal => {
                let LoginAttempt { user, secret, is_loopback, .. } = attempt;
                LoginAnswer::Now(broker.authenticate(user, secret, *is_loopback))
            }
            Self::OAuth2(tokens) => tokens.verify(&attempt.secret),
        }
    }
}

impl AuthChain {
    /// The authorities, in their order.
    pub fn new(links: Vec<ChainLink>) -> Self {
        Self(links.into())
    }
}

impl AuthBackends for AuthChain {
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer {
        // To guess at a token is hopeless, and clients whose tokens have expired must not lock others out.
        let is_limited = !looks_like_token(&attempt.secret);
        if is_limited && let Err(refused) = broker.check_attempt(&attempt) {
            return LoginAnswer::Now(Err(refused));
        }
        let mut asking = Asking { links: Arc::clone(&self.0), at: 0, refusals: Vec::new(), is_limited };
        match asking.go_on(broker, &attempt) {
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
                        match asking.go_on(&broker, &attempt) {
                            LoginAnswer::Now(outcome) => return outcome,
                            LoginAnswer::Later(next) => outcome = next.await,
                        }
                    }
                }))
            }
        }
    }

    fn renew(&self, identity: &Identity, secret: &[u8]) -> LoginAnswer {
        let mut tokens = self.0.iter().filter_map(|link| match link {
            ChainLink::OAuth2(tokens) => Some(tokens),
            ChainLink::Internal => None,
        });
        match tokens.next() {
            Some(tokens) => tokens.verify_renewed(secret, identity.user()),
            None => LoginAnswer::Now(Err(LoginRefused::UnknownUser)),
        }
    }

    fn takes_own_users(&self) -> bool {
        self.0.iter().any(|link| matches!(link, ChainLink::Internal))
    }
}

/// A login on its way through the authorities.
struct Asking {
    links: Arc<[ChainLink]>,
    /// The authority whose turn it is.
    at: usize,
    refusals: Vec<(&'static str, LoginRefused)>,
    is_limited: bool,
}

impl Asking {
    /// Asks one authority after the other until one accepts, all have refused, or one has to be waited for.
    fn go_on(&mut self, broker: &Broker, attempt: &LoginAttempt) -> LoginAnswer {
        while let Some(link) = self.links.get(self.at).cloned() {
            match link.log_in(broker, attempt) {
                LoginAnswer::Now(Err(refused)) => self.refused(refused),
                answer => return answer,
            }
        }
        if self.is_limited {
            broker.note_failed_attempt(attempt);
        }
        LoginAnswer::Now(Err(self.refusal()))
    }

    /// The authority whose turn it was has refused the login.
    fn refused(&mut self, refused: LoginRefused) {
        if let Some(link) = self.links.get(self.at) {
            self.refusals.push((link.name(), refused));
        }
        self.at += 1;
    }

    /// All authorities' reasons, for the log; a user who may only come from this machine is told so.
    fn refusal(&mut self) -> LoginRefused {
        let of_place = self.refusals.iter().find(|(_, refused)| *refused == LoginRefused::LoopbackOnly);
        if of_place.is_some() || self.refusals.len() == 1 {
            let single = of_place.or(self.refusals.first()).map(|(_, refused)| refused.clone());
            return single.unwrap_or(LoginRefused::UnknownUser);
        }
        let reason = |(name, refused): &(&str, LoginRefused)| match refused {
            LoginRefused::Elsewhere { why, .. } => format!("{name}: {why}"),
            refused => format!("{name}: {refused}"),
        };
        let reasons: Vec<_> = self.refusals.iter().map(reason).collect();
        LoginRefused::Elsewhere { backend: "auth_backends", why: reasons.join("; ").into() }
    }
}
