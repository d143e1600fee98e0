//! Logins: the internal list of users, and other auth backends.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::Broker;
use crate::network::network_of;
use crate::users::{AuthBackends, Identity, LoginAnswer, LoginAttempt, LoginRefused, MAX_NAME};

impl Broker {
    /// Checks a login.
    ///
    /// # Errors
    /// The reason for the refusal, which is for the log only.
    pub fn authenticate(
        &self,
        user: &str,
        password: &[u8],
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        self.users.authenticate(user, password, peer_is_loopback)
    }

    /// Sets the auth backends for logins. Call it once.
    pub fn set_auth_backends(&self, backends: Arc<dyn AuthBackends>) {
        let _ = self.auth_backends.set(backends);
    }

    /// Checks a client's login with the configured backends, in their order.
    pub fn log_in(self: &Arc<Self>, attempt: LoginAttempt) -> LoginAnswer {
        match self.auth_backends.get() {
            Some(backends) => backends.log_in(self, attempt),
            None => {
                let LoginAttempt { user, secret, from, is_loopback, now, .. } = &attempt;
                LoginAnswer::Now(self.authenticate_from(user, secret, *from, *is_loopback, *now))
            }
        }
    }

    /// Checks a new secret of a user who has logged in. Any secret is accepted for an internal user: only credentials that
    /// expire are renewed (RabbitMQ's `rabbit_auth_backend_internal:state_can_expire/0`).
    pub fn renew(&self, identity: &Identity, secret: &[u8]) -> LoginAnswer {
        match self.auth_backends.get().filter(|_| identity.is_external()) {
            Some(backends) => backends.renew(identity, secret),
            None => LoginAnswer::Now(Ok(identity.clone())),
        }
    }

    /// Clears the cached answers of all auth backends, those in open sessions included. Returns whether there is any
    /// such backend.
    pub fn clear_cache(&self) -> bool {
        self.auth_backends.get().is_some_and(|backends| backends.clear_cache())
    }

    /// Requests permission to open a virtual host, if another auth backend authorizes the user: [`Self::begin_session`]
    /// then uses the answer. Set the name of an MQTT client before ([`Identity::as_client`]).
    pub async fn authorise_vhost(&self, identity: &Identity, vhost: &str) {
        if let Some(found) = self.vhost(vhost).filter(|_| identity.is_asked()) {
            while let (Err(_), Some(question)) = (found.check_open(identity), identity.take_authz_request()) {
                question.await;
            }
        }
    }

    /// Checks a client's login and limits guessing: after 30 different wrong passwords for a user from one
    /// [network](network_of) within a minute, further logins are refused unchecked until the minute is over.
    /// `from` is `None` on a Unix socket.
    ///
    /// # Errors
    /// The reason for the refusal, which is for the log only.
    pub fn authenticate_from(
        &self,
        user: &str,
        password: &[u8],
        from: Option<IpAddr>,
        peer_is_loopback: bool,
        now: Instant,
    ) -> Result<Identity, LoginRefused> {
        self.may_attempt(user, from, now)?;
        let validated = self.authenticate(user, password, peer_is_loopback);
        if validated.is_err() {
            self.attempts.failed(from.map(network_of), user, password, now);
        }
        validated
    }

    /// Limits guessing as [`Broker::authenticate_from`] does, for auth backends that check secrets themselves.
    ///
    /// # Errors
    /// Too many attempts have failed.
    pub fn check_attempt(&self, attempt: &LoginAttempt) -> Result<(), LoginRefused> {
        self.may_attempt(&attempt.user, attempt.from, attempt.now)
    }

    /// Counts an attempt that [`Broker::check_attempt`] has allowed, and that has failed.
    pub fn note_failed_attempt(&self, attempt: &LoginAttempt) {
        self.attempts.failed(attempt.from.map(network_of), &attempt.user, &attempt.secret, attempt.now);
    }

    fn may_attempt(&self, user: &str, from: Option<IpAddr>, now: Instant) -> Result<(), LoginRefused> {
        if user.len() > MAX_NAME {
            // No user has such a name. It is not stored, since it may be as long as a frame.
            return Err(LoginRefused::UnknownUser);
        }
        if self.attempts.may_try(from.map(network_of), user, now) {
            Ok(())
        } else {
            Err(LoginRefused::TooManyAttempts)
        }
    }

    /// Logs in a user whose identity was verified elsewhere, such as by a TLS client certificate.
    ///
    /// # Errors
    /// The reason for the refusal, which is for the log only.
    pub fn authenticate_external(
        &self,
        user: &str,
        peer_is_loopback: bool,
    ) -> Result<Identity, LoginRefused> {
        if self.auth_backends.get().is_some_and(|backends| !backends.allows_internal_users()) {
            return Err(LoginRefused::UnknownUser);
        }
        self.users.authenticate_external(user, peer_is_loopback)
    }

    /// The internal user whose password another auth backend has checked.
    ///
    /// # Errors
    /// There is no such user, or it may log in only over the loopback interface.
    pub fn listed(&self, user: &str, peer_is_loopback: bool) -> Result<Identity, LoginRefused> {
        self.users.authenticate_external(user, peer_is_loopback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BrokerConfig;

    #[test]
    fn guessing_from_the_addresses_of_one_ipv6_network_is_guessing_from_one_address() {
        let broker = Broker::new(BrokerConfig::default());
        let now = Instant::now();
        let guess = |number: u64, from: &str| {
            let password = number.to_string();
            broker.authenticate_from("u", password.as_bytes(), from.parse().ok(), false, now).unwrap_err()
        };
        for number in 0..30 {
            assert_ne!(guess(number, &format!("2001:db8:0:1::{number}")), LoginRefused::TooManyAttempts);
        }
        assert_eq!(guess(30, "2001:db8:0:1::ffff"), LoginRefused::TooManyAttempts);
        assert_ne!(guess(30, "2001:db8:0:2::1"), LoginRefused::TooManyAttempts);
    }
}
