//! Users and logins.

mod attempts;
mod external;
mod password;

use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use sync::{Rank, RwLock};

pub(crate) use attempts::Attempts;
pub(crate) use external::ExternalUser;
pub use external::{AuthBackends, LoginAnswer, LoginAttempt, PendingAnswer, TokenPermissions};
pub use password::PasswordHash;

use crate::limits::Tally;
use crate::permissions::ClientName;

/// A user who has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    name: Arc<str>,
    impersonator: bool,
    /// Rarely set, and therefore separate: every publisher has an identity.
    details: Option<Arc<IdentityDetails>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct IdentityDetails {
    /// The name of an MQTT client.
    client: Option<Arc<ClientName>>,
    /// `None` for an internal user.
    external: Option<Arc<ExternalUser>>,
    /// Tags from the auth backend that has checked the password of an internal user.
    added_tags: Vec<String>,
}

impl Identity {
    /// The same user as an MQTT client of this name, which topic permissions may refer to.
    #[must_use]
    pub fn as_client(self, name: &str) -> Self {
        let details = self.details.as_deref().cloned().unwrap_or_default();
        let external = details.external.as_ref().map(|external| external.as_client(name));
        let client = Some(Arc::new(ClientName::new(name)));
        Self { details: Some(Arc::new(IdentityDetails { client, external, ..details })), ..self }
    }

    pub(crate) fn client(&self) -> Option<&ClientName> {
        self.details.as_ref()?.client.as_deref()
    }

    /// The user's name, as `user-id` has it (AMQP 0-9-1, basic class).
    pub fn user(&self) -> &str {
        &self.name
    }

    /// Whether the user may publish under other users' names (tag `impersonator`).
    pub(crate) fn may_impersonate(&self) -> bool {
        self.impersonator
    }
}

/// The reason why a login was refused, for the log only: the peer only learns that it was refused.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LoginRefused {
    /// No user of this name.
    #[error("no such user")]
    UnknownUser,
    /// The password is wrong, or the user has none.
    #[error("wrong password")]
    WrongPassword,
    /// The password is empty, which is never valid.
    #[error("blank password")]
    BlankPassword,
    /// The user may only log in over the loopback interface.
    #[error("user can only log in via localhost")]
    LoopbackOnly,
    /// Too many wrong passwords were tried for the user from the same address.
    #[error("too many failed login attempts")]
    TooManyAttempts,
    /// An external auth backend could not be queried, which is not the user's fault. `why` contains nothing of the secret.
    #[error("{backend} unavailable: {why}")]
    Unanswered {
        /// The name of the auth backend, as the configuration has it.
        backend: &'static str,
        /// The reason.
        why: Box<str>,
    },
    /// An external auth backend refused the user. `why` contains nothing of the secret.
    #[error("{backend}: {why}")]
    Elsewhere {
        /// The name of the auth backend, as the configuration has it.
        backend: &'static str,
        /// The reason.
        why: Box<str>,
    },
}

impl LoginRefused {
    /// The text of the 403 that ends the connection, without the code's name in front.
    pub fn reply_text(mechanism: &str) -> String {
        format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        )
    }
}

/// A user's account, as the operator defines it.
#[derive(Debug, Clone)]
pub struct UserSpec {
    /// The name, by which the account is identified.
    pub name: String,
    /// The password's hash; without one a login with a password is impossible.
    pub password: Option<PasswordHash>,
    /// Refuse logins that do not come over the loopback interface.
    pub loopback_only: bool,
    /// `administrator`, `impersonator`, and any others that the operator chooses.
    pub tags: Vec<String>,
    /// Limits of the user's connections and channels.
    pub limits: UserLimits,
}

/// Limits of one user over all virtual hosts (RabbitMQ, "Per-User Resource Limits"); `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserLimits {
    /// `max-connections`.
    pub max_connections: Option<u64>,
    /// `max-channels`, on all connections together.
    pub max_channels: Option<u64>,
}

impl UserSpec {
    /// RabbitMQ's default user: guest with password guest, an administrator, over loopback only.
    pub fn guest() -> Self {
        Self {
            name: GUEST.into(),
            password: Some(PasswordHash::new(b"guest")),
            loopback_only: true,
            tags: vec!["administrator".into()],
            limits: UserLimits::default(),
        }
    }
}

impl UserSpec {
    /// Logs in a user whose identity has been verified.
    fn log_in(&self, peer_is_loopback: bool) -> Result<Identity, LoginRefused> {
        if self.loopback_only && !peer_is_loopback {
            return Err(LoginRefused::LoopbackOnly);
        }
        let impersonator = is_impersonator(&self.tags);
        Ok(Identity { name: self.name.as_str().into(), impersonator, details: None })
    }
}

/// Whether the tags let a user publish under other users' names.
fn is_impersonator(tags: &[String]) -> bool {
    tags.iter().any(|tag| tag == "impersonator")
}

/// Bytes of the longest name that a user may have.
pub(crate) const MAX_NAME: usize = 255;

/// The default user, and the only one in RabbitMQ's default `loopback_users`.
pub const GUEST: &str = "guest";

/// All users of a broker.
#[derive(Default)]
pub(crate) struct Users {
    by_name: RwLock<HashMap<String, Arc<Account>>, { Rank::Users as u8 }>,
}

/// A user, with counts of open connections and channels.
pub(crate) struct Account {
    spec: ArcSwap<UserSpec>,
    pub(crate) connections: Tally,
    pub(crate) channels: Tally,
}

impl Account {
    fn new(spec: UserSpec) -> Self {
        let spec = ArcSwap::from_pointee(spec);
        Self { spec, connections: Tally::default(), channels: Tally::default() }
    }

    pub(crate) fn tags(&self) -> Vec<String> {
        self.spec.load().tags.clone()
    }

    pub(crate) fn limits(&self) -> UserLimits {
        self.spec.load().limits
    }
}

impl Users {
    /// Adds a user, or changes an existing one.
    pub(crate) fn put(&self, user: UserSpec) {
        let mut users = self.by_name.write();
        if let Some(account) = users.get(&user.name) {
            account.spec.store(Arc::new(user));
            return;
        }
        users.insert(user.name.clone(), Arc::new(Account::new(user)));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.by_name.write().remove(name);
    }

    pub(crate) fn account(&self, name: &str) -> Option<Arc<Account>> {
        self.by_name.read().get(name).cloned()
    }

    pub(crate) fn authenticate(
        &self,
        name: &str,
        password: &[u8],
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        if password.is_empty() {
            return Err(LoginRefused::BlankPassword);
        }
        let Some(account) = self.account(name) else {
            PasswordHash::matches_nobody(password);
            return Err(LoginRefused::UnknownUser);
        };
        let user = account.spec.load();
        let Some(hash) = &user.password else {
            PasswordHash::matches_nobody(password);
            return Err(LoginRefused::WrongPassword);
        };
        if !hash.matches(password) {
            return Err(LoginRefused::WrongPassword);
        }
        user.log_in(peer_is_loopback)
    }

    pub(crate) fn authenticate_external(
        &self,
        name: &str,
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        let account = self.account(name).ok_or(LoginRefused::UnknownUser)?;
        account.spec.load().log_in(peer_is_loopback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        let users = Users::default();
        users.put(UserSpec::guest());
        users
    }

    #[test]
    fn guest_logs_in_over_loopback_only() {
        let users = users();
        assert_eq!(users.authenticate("guest", b"guest", true).unwrap().user(), "guest");
        assert_eq!(users.authenticate("guest", b"guest", false), Err(LoginRefused::LoopbackOnly));
    }

    #[test]
    fn wrong_names_and_passwords_are_refused() {
        let users = users();
        assert_eq!(users.authenticate("guest", b"gues", true), Err(LoginRefused::WrongPassword));
        assert_eq!(users.authenticate("guest", b"guesT", true), Err(LoginRefused::WrongPassword));
        assert_eq!(users.authenticate("nobody", b"x", true), Err(LoginRefused::UnknownUser));
    }

    #[test]
    fn a_wrong_password_does_not_tell_that_the_user_is_bound_to_loopback() {
        assert_eq!(users().authenticate("guest", b"x", false), Err(LoginRefused::WrongPassword));
    }

    #[test]
    fn nobody_logs_in_without_a_password() {
        let users = users();
        users.put(UserSpec { name: "blank".into(), password: None, ..UserSpec::guest() });
        assert_eq!(users.authenticate("blank", b"", true), Err(LoginRefused::BlankPassword));
        assert_eq!(users.authenticate("blank", b"x", true), Err(LoginRefused::WrongPassword));
        users.put(UserSpec { password: Some(PasswordHash::new(b"")), ..UserSpec::guest() });
        assert_eq!(users.authenticate("guest", b"", true), Err(LoginRefused::BlankPassword));
    }

    #[test]
    fn externally_authenticated_users_need_no_password_but_must_exist() {
        let users = users();
        users.put(UserSpec {
            name: "CN=worker".into(),
            password: None,
            loopback_only: false,
            ..UserSpec::guest()
        });
        assert_eq!(users.authenticate_external("CN=worker", false).unwrap().user(), "CN=worker");
        assert_eq!(users.authenticate_external("CN=other", false), Err(LoginRefused::UnknownUser));
        assert_eq!(users.authenticate_external("guest", false), Err(LoginRefused::LoopbackOnly));
    }

    #[test]
    fn a_changed_user_is_changed_at_once() {
        let users = users();
        let tags = vec!["impersonator".into()];
        users.put(UserSpec { password: Some(PasswordHash::new(b"new")), tags, ..UserSpec::guest() });
        assert_eq!(users.authenticate("guest", b"guest", true), Err(LoginRefused::WrongPassword));
        assert!(users.authenticate("guest", b"new", true).unwrap().may_impersonate());
    }
}
