//! The public keys of an authorization server (RFC 7517), with the algorithms of each.

use std::str::FromStr as _;

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

use crate::error::KeySetError;

/// The most keys of one set: authorization servers have a few, and large ones some dozens.
const MAX_KEYS: usize = 256;

/// The most keys tried for a token without a key identifier, which bounds the cost of a forged one: during rotation an
/// authorization server has the previous, the current and the next key.
const MAX_TRIED: usize = 3;

/// The origin of a set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    /// The operator's own file, which may have symmetric keys.
    File,
    /// A service, whose keys are public: with a symmetric key among them, anybody could sign.
    Network,
}

/// A set of keys that verify signatures.
#[derive(Debug)]
pub(crate) struct KeySet {
    keys: Vec<VerifyingKey>,
    origin: KeyOrigin,
}

/// A key, with the algorithms that it may be used with.
#[derive(Debug)]
pub(crate) struct VerifyingKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

impl KeySet {
    /// An empty set, until keys of this origin have been read.
    pub(crate) fn empty(origin: KeyOrigin) -> Self {
        Self { keys: Vec::new(), origin }
    }

    /// Whether keys from this origin may use this algorithm.
    pub(crate) fn may_have(&self, algorithm: Algorithm) -> bool {
        self.origin == KeyOrigin::File || !matches!(algorithm.family(), AlgorithmFamily::Hmac)
    }

    /// Parses a JSON Web Key Set. Keys for other purposes and of unknown types are skipped.
    ///
    /// # Errors
    /// The input is not such a set, or has no usable key.
    pub(crate) fn parse(json: &[u8], origin: KeyOrigin) -> Result<Self, KeySetError> {
        let set: Value = serde_json::from_slice(json).map_err(KeySetError::Json)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoKeys)?;
        if listed.len() > MAX_KEYS {
            return Err(KeySetError::TooManyKeys(MAX_KEYS));
        }
        let keys: Vec<_> = listed.iter().filter_map(|value| VerifyingKey::new(value, origin)).collect();
        if keys.is_empty() { Err(KeySetError::NoUsableKey) } else { Ok(Self { keys, origin }) }
    }

    /// The candidate keys for a token with this header.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> impl Iterator<Item = &VerifyingKey> {
        let fits = move |key: &&VerifyingKey| {
            key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id)
        };
        self.keys.iter().filter(fits).take(MAX_TRIED)
    }
}

impl VerifyingKey {
    /// Parses a key; `None` if it is not for verifying signatures.
    fn new(value: &Value, origin: KeyOrigin) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let common = &jwk.common;
        if matches!(&common.public_key_use, Some(purpose) if *purpose != PublicKeyUse::Signature) {
            return None;
        }
        if matches!(&common.key_operations, Some(operations) if !operations.contains(&KeyOperations::Verify))
        {
            return None;
        }
        let mut algorithms = algorithms_of(value, origin);
        if let Some(only) = &common.key_algorithm {
            let only = Algorithm::from_str(&only.to_string()).ok()?;
            algorithms.retain(|algorithm| *algorithm == only);
        }
        if algorithms.is_empty() {
            return None;
        }
        Some(Self { id: common.key_id.clone(), algorithms, key: DecodingKey::from_jwk(&jwk).ok()? })
    }
}

/// The algorithms for which a key of this kind can be used (RFC 7518, section 3.1; RFC 8037).
fn algorithms_of(key: &Value, origin: KeyOrigin) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512};
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    match (text("kty"), text("crv")) {
        (Some("RSA"), _) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        (Some("EC"), Some("P-256")) => vec![ES256],
        (Some("EC"), Some("P-384")) => vec![ES384],
        (Some("OKP"), Some("Ed25519")) => vec![EdDSA],
        (Some("oct"), _) if origin == KeyOrigin::File => vec![HS256, HS384, HS512],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OCT: &str = r#"{"kty":"oct","kid":"s","k":"c2VjcmV0"}"#;
    const ED: &str =
        r#"{"kty":"OKP","crv":"Ed25519","kid":"e","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;

    fn set(keys: &[&str], origin: KeyOrigin) -> Result<KeySet, KeySetError> {
        KeySet::parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes(), origin)
    }

    #[test]
    fn a_symmetric_key_counts_only_in_the_operators_file() {
        assert_eq!(set(&[OCT], KeyOrigin::File).unwrap().find(Some("s"), Algorithm::HS256).count(), 1);
        assert!(matches!(set(&[OCT], KeyOrigin::Network), Err(KeySetError::NoUsableKey)));
    }

    #[test]
    fn a_key_is_found_for_its_own_algorithms_alone() {
        let set = set(&[ED, OCT], KeyOrigin::File).unwrap();
        assert_eq!(set.find(Some("e"), Algorithm::EdDSA).count(), 1);
        assert_eq!(set.find(Some("e"), Algorithm::HS256).count(), 0, "a public key is no shared secret");
        assert_eq!(set.find(Some("x"), Algorithm::EdDSA).count(), 0);
        assert_eq!(set.find(None, Algorithm::EdDSA).count(), 1, "without an identifier");
    }

    #[test]
    fn keys_for_other_purposes_and_of_other_kinds_are_left_out() {
        let for_encryption = ED.replace(r#""kid""#, r#""use":"enc","kid""#);
        let to_sign = ED.replace(r#""kid""#, r#""key_ops":["sign"],"kid""#);
        let of_other_algorithm = ED.replace(r#""kid""#, r#""alg":"RSA-OAEP","kid""#);
        for key in [&for_encryption, &to_sign, &of_other_algorithm, r#"{"kty":"new"}"#, "5"] {
            assert_eq!(set(&[key, OCT], KeyOrigin::File).unwrap().keys.len(), 1, "{key}");
        }
    }

    #[test]
    fn anything_but_a_set_of_keys_is_refused() {
        for json in ["", "[]", "{}", r#"{"keys":5}"#, r#"{"keys":[]}"#] {
            assert!(KeySet::parse(json.as_bytes(), KeyOrigin::File).is_err(), "{json}");
        }
        let many = vec![OCT; MAX_KEYS + 1];
        assert!(matches!(set(&many, KeyOrigin::File), Err(KeySetError::TooManyKeys(_))));
    }
}
