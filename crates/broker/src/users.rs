//! Users and logging in.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;
use subtle::ConstantTimeEq;

/// Somebody who has logged in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    name: Arc<str>,
    impersonator: bool,
}

impl Identity {
    /// The user's name.
    pub fn user(&self) -> &str {
        &self.name
    }

    /// Whether the user may publish under other users' names (tag `impersonator`).
    pub fn may_impersonate(&self) -> bool {
        self.impersonator
    }
}

/// Why a login was refused: for the log. The peer learns only that it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefused {
    /// No user of this name.
    UnknownUser,
    /// The password is another one.
    WrongPassword,
    /// The user may only log in from the machine that the broker runs on.
    LoopbackOnly,
}

impl LoginRefused {
    /// The text of the 403 that ends the connection, without the code's name in front.
    pub fn reply_text(mechanism: &str) -> String {
        format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        )
    }
}

impl fmt::Display for LoginRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownUser => "no such user",
            Self::WrongPassword => "wrong password",
            Self::LoopbackOnly => "user can only log in via localhost",
        })
    }
}

impl std::error::Error for LoginRefused {}

/// A user to be created.
#[derive(Clone)]
pub struct UserSpec {
    /// The name.
    pub name: String,
    /// The password.
    pub password: Vec<u8>,
    /// Refuse logins that do not come over the loopback interface.
    pub loopback_only: bool,
    /// `administrator`, `impersonator`, and whatever the operator likes.
    pub tags: Vec<String>,
    /// Names of the virtual hosts that the user may open.
    pub vhosts: Vec<String>,
}

impl UserSpec {
    /// RabbitMQ's default user: guest with password guest, an administrator, on `/`, over loopback only.
    pub fn guest() -> Self {
        Self {
            name: "guest".into(),
            password: b"guest".to_vec(),
            loopback_only: true,
            tags: vec!["administrator".into()],
            vhosts: vec!["/".into()],
        }
    }
}

impl fmt::Debug for UserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserSpec").field("name", &self.name).field("tags", &self.tags).finish_non_exhaustive()
    }
}

/// All users of a broker.
pub(crate) struct Users {
    by_name: RwLock<HashMap<String, UserSpec>>,
}

impl Users {
    pub(crate) fn new(users: Vec<UserSpec>) -> Self {
        let by_name = users.into_iter().map(|user| (user.name.clone(), user)).collect();
        Self { by_name: RwLock::new(by_name) }
    }

    pub(crate) fn authenticate(
        &self,
        name: &str,
        password: &[u8],
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        let users = self.by_name.read();
        let user = users.get(name).ok_or(LoginRefused::UnknownUser)?;
        if !bool::from(user.password.ct_eq(password)) {
            return Err(LoginRefused::WrongPassword);
        }
        if user.loopback_only && !peer_is_loopback {
            return Err(LoginRefused::LoopbackOnly);
        }
        let impersonator = user.tags.iter().any(|tag| tag == "impersonator");
        Ok(Identity { name: name.into(), impersonator })
    }

    pub(crate) fn may_open(&self, name: &str, vhost: &str) -> bool {
        self.by_name.read().get(name).is_some_and(|user| user.vhosts.iter().any(|allowed| allowed == vhost))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Somebody who has logged in.
    pub(crate) fn identity(name: &str, impersonator: bool) -> Identity {
        Identity { name: name.into(), impersonator }
    }

    #[test]
    fn guest_logs_in_over_loopback_only() {
        let users = Users::new(vec![UserSpec::guest()]);
        assert_eq!(users.authenticate("guest", b"guest", true).unwrap().user(), "guest");
        assert_eq!(users.authenticate("guest", b"guest", false), Err(LoginRefused::LoopbackOnly));
    }

    #[test]
    fn wrong_names_and_passwords_are_refused() {
        let users = Users::new(vec![UserSpec::guest()]);
        assert_eq!(users.authenticate("guest", b"gues", true), Err(LoginRefused::WrongPassword));
        assert_eq!(users.authenticate("guest", b"guesT", true), Err(LoginRefused::WrongPassword));
        assert_eq!(users.authenticate("nobody", b"", true), Err(LoginRefused::UnknownUser));
    }

    #[test]
    fn debug_output_holds_no_password() {
        let shown = format!("{:?}", UserSpec { password: b"secret".to_vec(), ..UserSpec::guest() });
        assert!(!shown.contains("secret"), "{shown}");
    }
}
