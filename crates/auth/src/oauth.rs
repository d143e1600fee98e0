//! Users who log in with a token of an authorization server.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use broker::{Identity, LoginAnswer, LoginRefused, Timestamp};

use crate::error::{KeySetError, TokenError};
#[cfg(test)]
use crate::source::KeyTimes;
use crate::source::{CachedKeys, KeySource};
use crate::token::TokenPolicy;

/// The name of this auth backend in settings and logs.
pub(crate) const NAME: &str = "oauth2";

/// Verifies the tokens of one authorization server.
#[derive(Clone)]
pub struct OAuth2 {
    policy: Arc<TokenPolicy>,
    keys: Arc<CachedKeys>,
    clock: BrokerClock,
}

/// The broker's clock, by which its sessions notice that a token has expired. Adjustments of the wall clock do not affect
/// it.
pub type BrokerClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

impl OAuth2 {
    /// Accepts tokens that `keys` verify, interpreted by `policy`. Tokens are valid by the wall clock, and identities
    /// expire at the same instant by `clock`.
    ///
    /// # Errors
    /// The keys come from a file that cannot be used.
    pub fn new(policy: TokenPolicy, keys: KeySource, clock: BrokerClock) -> Result<Self, KeySetError> {
        Ok(Self { policy: Arc::new(policy), keys: Arc::new(CachedKeys::new(keys)?), clock })
    }

    /// Reads keys at intervals other than the defaults, by the wall clock.
    #[cfg(test)]
    pub(crate) fn with_times(policy: TokenPolicy, keys: KeySource, times: KeyTimes) -> Self {
        let keys = CachedKeys::with_times(keys, times).unwrap();
        Self { policy: Arc::new(policy), keys: Arc::new(keys), clock: Arc::new(wall_clock) }
    }

    /// Reads the file of keys again.
    ///
    /// # Errors
    /// The file cannot be used; the keys are unchanged then.
    pub fn reload(&self) -> Result<(), KeySetError> {
        self.keys.reload()
    }

    /// Verifies a token. If its key is unknown, the keys are read again first.
    pub(crate) fn verify(&self, token: &[u8]) -> LoginAnswer {
        self.verify_for(token, None)
    }

    /// Verifies the new token of a user.
    pub(crate) fn verify_renewed(&self, token: &[u8], user: &str) -> LoginAnswer {
        self.verify_for(token, Some(user))
    }

    fn verify_for(&self, token: &[u8], user: Option<&str>) -> LoginAnswer {
        let (now, seen) = (Instant::now(), self.keys.reads());
        self.keys.renew_old(now);
        let outcome = self.verify_now(token, user);
        let needs_keys = match &outcome {
            // Its key may have been withdrawn. If the service does not answer, the known keys remain in use.
            Ok(_) => self.keys.are_outdated(now),
            Err(TokenError::UnknownKey) => true,
            Err(_) => false,
        };
        if !needs_keys || !self.keys.may_read(now) {
            return LoginAnswer::Now(outcome.map_err(refused));
        }
        let (this, token, user) = (self.clone(), token.to_owned(), user.map(str::to_owned));
        LoginAnswer::Later(Box::pin(async move {
            this.keys.read_after(seen).await;
            this.verify_now(&token, user.as_deref()).map_err(refused)
        }))
    }

    fn verify_now(&self, token: &[u8], user: Option<&str>) -> Result<Identity, TokenError> {
        let now = wall_clock();
        let identity = self.policy.verify(token, &self.keys.current(), now.seconds())?;
        if user.is_some_and(|user| user != identity.user()) {
            return Err(TokenError::OtherUser);
        }
        let left = identity.expires_at().map_or(0, |end| end.0.saturating_sub(now.0));
        Ok(identity.until((self.clock)().after(left)))
    }
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

fn refused(error: TokenError) -> LoginRefused {
    LoginRefused::Elsewhere { backend: NAME, why: error.to_string().into() }
}
