//! Users whom another authority than the broker's own list lets in: the interface to it, and what it says of them.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use super::{Account, Identity, IdentityDetails, LoginRefused, UserLimits, UserSpec};
use crate::broker::Broker;
use crate::time::Timestamp;

/// A login with a name and a secret, from whatever protocol.
#[derive(Clone)]
pub struct LoginAttempt {
    /// The user's name as the client tells it. May be empty.
    pub user: String,
    /// The password or token.
    pub secret: Vec<u8>,
    /// The client's address; `None` on a Unix socket.
    pub from: Option<IpAddr>,
    /// Whether the client is on this machine.
    pub is_loopback: bool,
    /// The time of the attempt, for the limit on guesses.
    pub now: Instant,
}

/// The outcome of a login, known or still to come.
pub enum LoginAnswer {
    /// It took no waiting.
    Now(Result<Identity, LoginRefused>),
    /// Another system is being asked. To be awaited outside any lock.
    Later(PendingAnswer),
}

/// A login about which another system is being asked.
pub type PendingAnswer = Pin<Box<dyn Future<Output = Result<Identity, LoginRefused>> + Send>>;

/// The authorities that are asked about a login, in their order, the broker's own users among them or not.
pub trait AuthBackends: Send + Sync {
    /// Decides about a login, by [`Broker::authenticate_from`] where it is the turn of the broker's own users.
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer;

    /// Decides about a new secret for a user whom another authority than the broker's own list has let in.
    fn renew(&self, identity: &Identity, secret: &[u8]) -> LoginAnswer;

    /// Whether users of the broker's own list may come in.
    fn takes_own_users(&self) -> bool;
}

/// A user whom another authority has let in, with the rights that it grants.
pub(crate) struct ExternalUser {
    /// Not in the broker's list: it has tags, no password and no limits.
    pub(crate) account: Arc<Account>,
    pub(crate) scopes: Box<[Box<str>]>,
    pub(crate) expires_at: Timestamp,
}

impl std::fmt::Debug for ExternalUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalUser").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// The same if they come from the same login.
impl PartialEq for ExternalUser {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.account, &other.account)
    }
}

impl Eq for ExternalUser {}

/// The rights that a token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRights {
    /// Scopes without their prefix: `read:*/*`, `write:%2F/orders`.
    pub scopes: Vec<Box<str>>,
    /// The user's tags, such as `administrator`.
    pub tags: Vec<String>,
    /// When the rights end.
    pub expires_at: Timestamp,
}

impl Identity {
    /// A user who has shown a token that was verified.
    pub fn of_token(name: &str, rights: TokenRights) -> Self {
        let TokenRights { scopes, tags, expires_at } = rights;
        let impersonator = tags.iter().any(|tag| tag == "impersonator");
        let spec = UserSpec {
            name: name.to_owned(),
            password: None,
            loopback_only: false,
            tags,
            limits: UserLimits::default(),
        };
        let account = Arc::new(Account::new(spec));
        let external = ExternalUser { account, scopes: scopes.into_boxed_slice(), expires_at };
        let details = IdentityDetails { client: None, external: Some(Arc::new(external)) };
        Self { name: name.into(), impersonator, details: Some(Arc::new(details)) }
    }

    /// The same login, with rights that end at another time; does nothing to a user of the broker's own list.
    #[must_use]
    pub fn until(mut self, expires_at: Timestamp) -> Self {
        if let Some(external) = self.external() {
            let (account, scopes) = (external.account.clone(), external.scopes.clone());
            let external = Some(Arc::new(ExternalUser { account, scopes, expires_at }));
            let client = self.details.as_ref().and_then(|details| details.client.clone());
            self.details = Some(Arc::new(IdentityDetails { client, external }));
        }
        self
    }

    pub(crate) fn external(&self) -> Option<&ExternalUser> {
        self.details.as_ref()?.external.as_deref()
    }

    /// Whether another authority than the broker's own list of users has let the user in.
    pub fn is_external(&self) -> bool {
        self.external().is_some()
    }

    /// When the user's rights end, unless they are renewed.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.external().map(|external| external.expires_at)
    }

    /// Whether the user's rights have ended.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|end| end <= now)
    }
}
