//! An authorization server: keys, and tokens that it signs.

use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::Timestamp;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::BrokerClock;
use crate::keys::{KeyOrigin, KeySet};
use crate::token::TokenPolicy;

/// The time of all tests, in seconds since 1970.
pub(super) const NOW: u64 = 2_000_000_000;

/// A key, and how it is published.
pub(super) struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    id: &'static str,
    pub(super) jwk: Value,
}

impl Signer {
    pub(super) fn new(algorithm: Algorithm, id: &'static str) -> Self {
        let random = SystemRandom::new();
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (key, mut jwk) = match algorithm {
            Algorithm::ES256 | Algorithm::ES384 => {
                let (form, curve) = match algorithm {
                    Algorithm::ES256 => (&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256"),
                    _ => (&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"),
                };
                let private = EcdsaKeyPair::generate_pkcs8(form, &random).unwrap();
                let pair = EcdsaKeyPair::from_pkcs8(form, private.as_ref()).unwrap();
                let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
                let jwk = json!({ "kty": "EC", "crv": curve, "x": text(x), "y": text(y) });
                (EncodingKey::from_ec_der(private.as_ref()), jwk)
            }
            Algorithm::EdDSA => {
                let private = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap();
                let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref()) });
                (EncodingKey::from_ed_der(private.as_ref()), jwk)
            }
            _ => {
                let secret = b"a secret that is shared by two, and long enough to be one";
                (EncodingKey::from_secret(secret), json!({ "kty": "oct", "k": text(secret) }))
            }
        };
        jwk["kid"] = id.into();
        Self { key, algorithm, id, jwk }
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.to_owned()), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }

    /// Signs without a key identifier.
    pub(super) fn sign_without_id(&self, claims: &Value) -> String {
        jsonwebtoken::encode(&Header::new(self.algorithm), claims, &self.key).unwrap()
    }
}

/// The keys as they are published.
pub(super) fn published(signers: &[&Signer]) -> String {
    let keys: Vec<_> = signers.iter().map(|signer| signer.jwk.clone()).collect();
    json!({ "keys": keys }).to_string()
}

pub(super) fn key_set(signers: &[&Signer]) -> KeySet {
    KeySet::parse(published(signers).as_bytes(), KeyOrigin::File).unwrap()
}

pub(super) fn policy() -> TokenPolicy {
    TokenPolicy {
        resource_server_id: "rabbitmq".into(),
        scope_prefix: "rabbitmq.".into(),
        verify_aud: true,
        ..TokenPolicy::default()
    }
}

/// A broker's clock that stands still.
pub(super) fn clock() -> BrokerClock {
    Arc::new(|| Timestamp(1000))
}

/// Claims that are valid at [`NOW`] and today, with changes to them.
pub(super) fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "sub": "alice", "aud": ["rabbitmq"], "exp": NOW + 60, "scope": "rabbitmq.read:*/* rabbitmq.tag:management",
    });
    for (claim, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => _ = claims.as_object_mut().unwrap().remove(claim),
            value => claims[claim] = value.clone(),
        }
    }
    claims
}
