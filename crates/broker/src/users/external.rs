//! Users of external auth backends: the interface to these, and the permissions that they grant.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use super::{Account, Identity, IdentityDetails, LoginRefused, UserLimits, UserSpec, is_impersonator};
use crate::broker::Broker;
use crate::permissions::{AuthzBackend, AuthzSubject, ExternalPermissions};
use crate::time::Timestamp;

/// A login with a name and a secret, from whatever protocol.
#[derive(Clone)]
pub struct LoginAttempt {
    /// The user's name as the client gives it. May be empty.
    pub user: String,
    /// The password or token.
    pub secret: Vec<u8>,
    /// The client's address; `None` on a Unix socket.
    pub from: Option<IpAddr>,
    /// Whether the client is on this machine.
    pub is_loopback: bool,
    /// The time of the attempt, for the limit on guesses.
    pub now: Instant,
    /// Further facts known to the protocol, by RabbitMQ's names: `vhost` for a client of MQTT or STOMP, `client_id` for one
    /// of MQTT.
    pub context: Vec<(&'static str, String)>,
}

/// The outcome of a login, known or pending.
pub enum LoginAnswer {
    /// It is known at once.
    Now(Result<Identity, LoginRefused>),
    /// An external system is being queried. Await it without locks.
    Later(PendingAnswer),
}

/// A login that an external system is deciding.
pub type PendingAnswer = Pin<Box<dyn Future<Output = Result<Identity, LoginRefused>> + Send>>;

/// The auth backends that a login tries, in order, with or without the internal user list.
pub trait AuthBackends: Send + Sync {
    /// Decides about a login, by [`Broker::authenticate_from`] for the internal user list.
    fn log_in(&self, broker: &Arc<Broker>, attempt: LoginAttempt) -> LoginAnswer;

    /// Decides about a new secret of a user of an external auth backend.
    fn renew(&self, identity: &Identity, secret: &[u8]) -> LoginAnswer;

    /// Whether internal users may log in, with their own permissions.
    fn allows_internal_users(&self) -> bool;

    /// Invalidates all cached answers. Returns whether there is any external auth backend.
    fn clear_cache(&self) -> bool {
        false
    }
}

/// A user accepted by an external auth backend, with the permissions that it grants.
pub(crate) struct ExternalUser {
    /// Counts connections and channels. It is not in the internal list, and has no limits, unless that list has checked the
    /// password.
    pub(crate) account: Arc<Account>,
    pub(crate) tags: Vec<String>,
    /// Whether the internal list has checked the password, and another auth backend only authorizes.
    is_listed: bool,
    rights: ExternalRights,
    /// `None` if the login does not expire.
    pub(crate) expires_at: Option<Timestamp>,
}

#[derive(Clone)]
enum ExternalRights {
    /// The scopes of a token.
    Scopes(Box<[Box<str>]>),
    /// Decided by an authz backend, for each operation.
    Asked(Arc<ExternalPermissions>),
}

impl ExternalUser {
    /// The scopes of a token.
    pub(crate) fn scopes(&self) -> Option<&[Box<str>]> {
        match &self.rights {
            ExternalRights::Scopes(scopes) => Some(scopes),
            ExternalRights::Asked(_) => None,
        }
    }

    fn with(&self, rights: ExternalRights, expires_at: Option<Timestamp>) -> Arc<Self> {
        let (account, tags) = (self.account.clone(), self.tags.clone());
        Arc::new(Self { account, tags, is_listed: self.is_listed, rights, expires_at })
    }

    /// The same login as an MQTT client of this name.
    pub(super) fn as_client(self: &Arc<Self>, name: &str) -> Arc<Self> {
        match &self.rights {
            ExternalRights::Scopes(_) => Arc::clone(self),
            // Its answers stay valid.
            ExternalRights::Asked(asked) if asked.user().client_id.as_deref() == Some(name) => {
                Arc::clone(self)
            }
            ExternalRights::Asked(asked) => {
                self.with(ExternalRights::Asked(Arc::new(asked.as_client(name))), self.expires_at)
            }
        }
    }
}

impl std::fmt::Debug for ExternalUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalUser").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Equal if they come from the same login.
impl PartialEq for ExternalUser {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.account, &other.account)
    }
}

impl Eq for ExternalUser {}

/// The permissions that a token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPermissions {
    /// Scopes without their prefix: `read:*/*`, `write:%2F/orders`.
    pub scopes: Vec<Box<str>>,
    /// The user's tags, such as `administrator`.
    pub tags: Vec<String>,
    /// When the permissions expire.
    pub expires_at: Timestamp,
}

impl Identity {
    /// A user who has presented a verified token.
    pub fn of_token(name: &str, rights: TokenPermissions) -> Self {
        let TokenPermissions { scopes, tags, expires_at } = rights;
        let (account, rights) = (unlisted(name, &tags), ExternalRights::Scopes(scopes.into_boxed_slice()));
        let is_listed = false;
        Self::of_external(
            name,
            ExternalUser { account, tags, is_listed, rights, expires_at: Some(expires_at) },
        )
    }

    /// A user accepted by `backend`, which authorizes its operations one by one.
    pub fn of_authz_backend(user: AuthzSubject, backend: Arc<dyn AuthzBackend>) -> Self {
        let account = unlisted(&user.name, &user.tags);
        Self::for_external(account, false, user, backend)
    }

    fn for_external(
        account: Arc<Account>,
        is_listed: bool,
        user: AuthzSubject,
        backend: Arc<dyn AuthzBackend>,
    ) -> Self {
        let (name, tags) = (user.name.clone(), user.tags.clone());
        let rights = ExternalRights::Asked(Arc::new(ExternalPermissions::new(backend, user)));
        Self::of_external(&name, ExternalUser { account, tags, is_listed, rights, expires_at: None })
    }

    fn of_external(name: &str, external: ExternalUser) -> Self {
        let impersonator = is_impersonator(&external.tags);
        let details =
            IdentityDetails { client: None, external: Some(Arc::new(external)), added_tags: Vec::new() };
        Self { name: name.into(), impersonator, details: Some(Arc::new(details)) }
    }

    /// The same internal user, with `backend` authorizing its operations one by one. The limits of its connections and
    /// channels are still those of the internal list. `None` if it has been deleted.
    #[must_use]
    pub fn authorised_by(
        &self,
        broker: &Broker,
        backend: Arc<dyn AuthzBackend>,
        from: Option<IpAddr>,
    ) -> Option<Self> {
        let account = broker.account(self)?;
        let user = AuthzSubject { name: self.user().into(), tags: broker.tags(self), from, client_id: None };
        Some(Self::for_external(account, true, user, backend))
    }

    /// The same internal user, with tags added by another auth backend.
    #[must_use]
    pub fn with_tags(mut self, tags: Vec<String>) -> Self {
        self.impersonator |= is_impersonator(&tags);
        let details = self.details.as_deref().cloned().unwrap_or_default();
        self.details = Some(Arc::new(IdentityDetails { added_tags: tags, ..details }));
        self
    }

    /// The tags that another auth backend has added to the internal ones.
    pub(crate) fn added_tags(&self) -> &[String] {
        self.details.as_ref().map_or(&[], |details| &details.added_tags)
    }

    /// The permissions that an external auth backend decides.
    pub(crate) fn asked(&self) -> Option<&Arc<ExternalPermissions>> {
        match &self.external()?.rights {
            ExternalRights::Asked(asked) => Some(asked),
            ExternalRights::Scopes(_) => None,
        }
    }

    /// The same login, with another expiry of its permissions; does nothing for an internal user.
    #[must_use]
    pub fn until(mut self, expires_at: Timestamp) -> Self {
        if let Some(external) = self.external() {
            let external = Some(external.with(external.rights.clone(), Some(expires_at)));
            let details = self.details.as_deref().cloned().unwrap_or_default();
            self.details = Some(Arc::new(IdentityDetails { external, ..details }));
        }
        self
    }

    pub(crate) fn external(&self) -> Option<&ExternalUser> {
        self.details.as_ref()?.external.as_deref()
    }

    /// Whether an external auth backend accepted the user.
    pub fn is_external(&self) -> bool {
        self.external().is_some()
    }

    /// Whether the user is in the internal list, whoever authorizes it: it no longer exists once it is deleted there.
    pub fn is_listed(&self) -> bool {
        self.external().is_none_or(|external| external.is_listed)
    }

    /// When the user's permissions expire, unless they are renewed.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.external().and_then(|external| external.expires_at)
    }

    /// Whether the user's permissions have expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|end| end <= now)
    }
}

/// The account of a user who is not in the internal list.
fn unlisted(name: &str, tags: &[String]) -> Arc<Account> {
    let spec = UserSpec {
        name: name.to_owned(),
        password: None,
        loopback_only: false,
        tags: tags.to_owned(),
        limits: UserLimits::default(),
    };
    Arc::new(Account::new(spec))
}
