//! Verifies a token: its signature, then its claims. The caller passes the time.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::{Identity, Timestamp, TokenPermissions};
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value};
use sync::work;

use crate::claims::{audience_contains, numeric_date, tags_of};
use crate::error::TokenError;
use crate::keys::KeySet;

/// The most bytes of a token: those with many scopes have a few thousand.
pub(crate) const MAX_TOKEN: usize = 32 << 10;

/// The most bytes of a user's name, the same as for internal users.
const MAX_NAME: usize = 255;

/// Seconds after which a connection's token expires at the latest: timers reach only some decades ahead.
const MAX_LIFETIME: u64 = 10 * 365 * 86_400;

/// Cost of verifying a token's signature, in nanoseconds: that of the slowest algorithm.
const VERIFICATION: u32 = 200_000;

/// The name of a user whose token names none, as in RabbitMQ.
const UNKNOWN_USER: &str = "unknown";

/// The meaning of tokens: the settings of RabbitMQ's plugin, by its names (`auth_oauth2.*`).
#[derive(Debug, Clone, Default)]
pub struct TokenPolicy {
    /// `resource_server_id`: must be in a token's `aud`.
    pub resource_server_id: String,
    /// `scope_prefix`: only scopes with this prefix count; it is removed.
    pub scope_prefix: String,
    /// `verify_aud`: whether to check `aud`.
    pub verify_aud: bool,
    /// `preferred_username_claims`: the claims that may name the user, in front of `sub` and `client_id`.
    pub username_claims: Vec<String>,
    /// `additional_scopes_key`: paths of further claims with scopes, such as `realm_access.roles`.
    pub additional_scopes_keys: Vec<String>,
    /// `scope_aliases`: the scopes that a scope or role stands for.
    pub scope_aliases: BTreeMap<String, Vec<String>>,
}

impl TokenPolicy {
    /// Verifies a token at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// The first reason to refuse it; [`TokenError::UnknownKey`] if reading the keys again might help.
    pub(crate) fn verify(&self, token: &[u8], keys: &KeySet, now: u64) -> Result<Identity, TokenError> {
        let claims = verified_claims(token, keys)?;
        if self.verify_aud && !audience_contains(&claims, &self.resource_server_id) {
            return Err(TokenError::Audience);
        }
        let expired_at = claims.get("exp").and_then(numeric_date).ok_or(TokenError::NoExpiry)?;
        if expired_at <= now {
            return Err(TokenError::Expired { expired_at, now });
        }
        if claims.get("nbf").is_some_and(|start| numeric_date(start).is_none_or(|start| start > now)) {
            return Err(TokenError::NotYetValid);
        }
        let scopes = self.scopes(&claims)?;
        let name = self.user_name(&claims);
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(TokenError::UserName);
        }
        let tags = tags_of(&scopes);
        let scopes = scopes.into_iter().map(String::into_boxed_str).collect();
        let expires_at = Timestamp(expired_at.min(now.saturating_add(MAX_LIFETIME)).saturating_mul(1000));
        Ok(Identity::of_token(name, TokenPermissions { scopes, tags, expires_at }))
    }

    fn user_name<'c>(&self, claims: &'c Map<String, Value>) -> &'c str {
        let preferred = self.username_claims.iter().map(String::as_str);
        let mut named = preferred.chain(["sub", "client_id"]).filter_map(|claim| claims.get(claim)?.as_str());
        named.next().unwrap_or(UNKNOWN_USER)
    }
}

/// Whether a secret has the form of a token: such a secret does not count as a guessed password.
pub(crate) fn looks_like_token(secret: &[u8]) -> bool {
    Parts::of(secret).is_ok_and(|parts| parts.header.contains_key("alg"))
}

/// A token's parts before its signature is verified.
struct Parts<'t> {
    header: Map<String, Value>,
    text: &'t str,
}

impl<'t> Parts<'t> {
    fn of(token: &'t [u8]) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::TooLong);
        }
        let text = std::str::from_utf8(token).map_err(|_| TokenError::NotAToken)?;
        let (header, rest) = text.split_once('.').ok_or(TokenError::NotAToken)?;
        if rest.split('.').count() != 2 {
            return Err(TokenError::NotAToken);
        }
        let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| TokenError::NotAToken)?;
        let header = serde_json::from_slice(&header).map_err(|_| TokenError::NotAToken)?;
        Ok(Self { header, text })
    }
}

/// The claims of a token whose signature is that of one of the keys.
fn verified_claims(token: &[u8], keys: &KeySet) -> Result<Map<String, Value>, TokenError> {
    let Parts { header, text } = Parts::of(token)?;
    if header.contains_key("crit") {
        return Err(TokenError::Critical);
    }
    let algorithm = header.get("alg").and_then(Value::as_str).and_then(|name| name.parse::<Algorithm>().ok());
    let algorithm = algorithm.ok_or(TokenError::Algorithm)?;
    if !keys.may_have(algorithm) {
        return Err(TokenError::Algorithm);
    }
    let id = match header.get("kid") {
        None => None,
        Some(id) => Some(id.as_str().ok_or(TokenError::KeyId)?),
    };
    // The claims are checked here, with the caller's time; the library verifies only the signature.
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    let mut refused = TokenError::UnknownKey;
    for key in keys.find(id, algorithm) {
        work::charge(VERIFICATION, 1);
        match jsonwebtoken::decode::<Value>(text, &key.key, &validation) {
            Ok(decoded) => {
                let Value::Object(claims) = decoded.claims else { return Err(TokenError::Claims) };
                return Ok(claims);
            }
            Err(error) => {
                refused = match error.kind() {
                    jsonwebtoken::errors::ErrorKind::Json(_) | jsonwebtoken::errors::ErrorKind::Utf8(_) => {
                        TokenError::Claims
                    }
                    _ => TokenError::Signature,
                };
            }
        }
    }
    Err(refused)
}
