//! Users who come with a token of an authorization server.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use broker::{Identity, LoginAnswer, LoginRefused};

use crate::error::{KeySetError, TokenError};
use crate::source::{CachedKeys, KeySource};
use crate::token::TokenPolicy;

/// The name of this authority in settings and logs.
pub(crate) const NAME: &str = "oauth2";

/// Verifies the tokens of one authorization server.
#[derive(Clone)]
pub struct OAuth2 {
    policy: Arc<TokenPolicy>,
    keys: Arc<CachedKeys>,
}

impl OAuth2 {
    /// Tokens that `keys` verify, and that mean what `policy` says.
    ///
    /// # Errors
    /// The keys are in a file, and it cannot be used.
    pub fn new(policy: TokenPolicy, keys: KeySource) -> Result<Self, KeySetError> {
        Ok(Self { policy: Arc::new(policy), keys: Arc::new(CachedKeys::new(keys)?) })
    }

    /// Reads unknown keys at every request for them.
    #[cfg(test)]
    pub(crate) fn eager(policy: TokenPolicy, keys: KeySource) -> Self {
        let keys = CachedKeys::with_interval(keys, std::time::Duration::ZERO).unwrap();
        Self { policy: Arc::new(policy), keys: Arc::new(keys) }
    }

    /// Reads the file of keys again.
    ///
    /// # Errors
    /// The file cannot be used, and the keys stay as they were.
    pub fn reload(&self) -> Result<(), KeySetError> {
        self.keys.reload()
    }

    /// Verifies a token. If its key is not known, the keys are read again first.
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
        match self.verify_now(token, user) {
            Err(TokenError::UnknownKey) if self.keys.may_read(now) => {
                let (this, token, user) = (self.clone(), token.to_owned(), user.map(str::to_owned));
                LoginAnswer::Later(Box::pin(async move {
                    this.keys.read_after(seen).await;
                    this.verify_now(&token, user.as_deref()).map_err(refused)
                }))
            }
            outcome => LoginAnswer::Now(outcome.map_err(refused)),
        }
    }

    fn verify_now(&self, token: &[u8], user: Option<&str>) -> Result<Identity, TokenError> {
        let keys = self.keys.current().unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let identity = self.policy.verify(token, &keys, now)?;
        match user {
            Some(user) if user != identity.user() => Err(TokenError::OtherUser),
            _ => Ok(identity),
        }
    }
}

fn refused(error: TokenError) -> LoginRefused {
    LoginRefused::Elsewhere { backend: NAME, why: error.to_string().into() }
}
