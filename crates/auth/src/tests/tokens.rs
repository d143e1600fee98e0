//! The conditions under which tokens are accepted, and their users.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::{Identity, Timestamp};
use jsonwebtoken::Algorithm;
use serde_json::{Value, json};

use super::signer::{NOW, Signer, claims, key_set, policy};
use crate::error::TokenError;
use crate::token::{MAX_TOKEN, TokenPolicy, looks_like_token};

/// Verifies a token with these changes to valid claims.
fn verify_changed(policy: &TokenPolicy, changes: &Value) -> Result<Identity, TokenError> {
    let signer = Signer::new(Algorithm::EdDSA, "e");
    policy.verify(signer.sign(&claims(changes)).as_bytes(), &key_set(&[&signer]), NOW)
}

fn refused(changes: &Value) -> TokenError {
    verify_changed(&policy(), changes).unwrap_err()
}

#[test]
fn a_token_is_verified_with_each_kind_of_key() {
    for algorithm in
        [Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA, Algorithm::HS256, Algorithm::HS512]
    {
        let signer = Signer::new(algorithm, "k");
        for token in [signer.sign(&claims(&json!({}))), signer.sign_without_id(&claims(&json!({})))] {
            let identity = policy().verify(token.as_bytes(), &key_set(&[&signer]), NOW).unwrap();
            assert_eq!(identity.user(), "alice", "{algorithm:?}");
            assert_eq!(identity.expires_at(), Some(Timestamp((NOW + 60) * 1000)));
            assert!(identity.is_external());
        }
    }
}

#[test]
fn a_changed_token_is_refused() {
    let signer = Signer::new(Algorithm::ES256, "k");
    let keys = key_set(&[&signer]);
    let token = signer.sign(&claims(&json!({})));
    let parts: Vec<_> = token.split('.').collect();
    let other = URL_SAFE_NO_PAD.encode(claims(&json!({ "sub": "eve" })).to_string());
    let verify = |token: &str| policy().verify(token.as_bytes(), &keys, NOW).map(|_| ());
    assert_eq!(verify(&format!("{}.{other}.{}", parts[0], parts[2])), Err(TokenError::Signature));
    assert_eq!(verify(&format!("{}.{}.", parts[0], parts[1])), Err(TokenError::Signature));
    let of_other_key = Signer::new(Algorithm::ES256, "k").sign(&claims(&json!({})));
    assert_eq!(verify(&of_other_key), Err(TokenError::Signature));
}

#[test]
fn an_algorithm_that_its_key_is_not_for_is_refused() {
    let signer = Signer::new(Algorithm::EdDSA, "k");
    let keys = key_set(&[&signer]);
    let token = signer.sign(&claims(&json!({})));
    let rest = token.split_once('.').unwrap().1;
    for (header, error) in [
        (json!({ "alg": "none" }), TokenError::Algorithm),
        (json!({ "alg": "None", "kid": "k" }), TokenError::Algorithm),
        (json!({ "kid": "k" }), TokenError::Algorithm),
        (json!({ "alg": "HS256", "kid": "k" }), TokenError::UnknownKey),
        (json!({ "alg": "ES256", "kid": "k" }), TokenError::UnknownKey),
        (json!({ "alg": "EdDSA", "kid": "other" }), TokenError::UnknownKey),
        (json!({ "alg": "EdDSA", "kid": 5 }), TokenError::KeyId),
        (json!({ "alg": "EdDSA", "kid": "k", "crit": ["x"] }), TokenError::Critical),
        (json!({ "alg": "EdDSA", "kid": "k", "more": 1 }), TokenError::Signature),
    ] {
        let forged = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header.to_string()));
        assert_eq!(policy().verify(forged.as_bytes(), &keys, NOW).unwrap_err(), error, "{header}");
    }
    let unsigned =
        format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), rest.split_once('.').unwrap().0);
    assert_eq!(policy().verify(unsigned.as_bytes(), &keys, NOW).unwrap_err(), TokenError::Algorithm);
}

#[test]
fn anything_but_a_token_is_refused() {
    let keys = key_set(&[&Signer::new(Algorithm::EdDSA, "k")]);
    for text in ["", "guest", "a.b", "a.b.c", "....", "\u{e4}.b.c"] {
        assert_eq!(
            policy().verify(text.as_bytes(), &keys, NOW).unwrap_err(),
            TokenError::NotAToken,
            "{text}"
        );
        assert!(!looks_like_token(text.as_bytes()));
    }
    let long = vec![b'a'; MAX_TOKEN + 1];
    assert_eq!(policy().verify(&long, &keys, NOW).unwrap_err(), TokenError::TooLong);
}

#[test]
fn a_token_counts_from_its_nbf_until_its_exp() {
    let expired = |expired_at| TokenError::Expired { expired_at, now: NOW };
    assert_eq!(refused(&json!({ "exp": NOW })), expired(NOW));
    assert_eq!(refused(&json!({ "exp": 5.5 })), expired(5));
    assert_eq!(refused(&json!({ "exp": null })), TokenError::NoExpiry);
    assert_eq!(refused(&json!({ "exp": "soon" })), TokenError::NoExpiry);
    assert_eq!(refused(&json!({ "nbf": NOW + 1 })), TokenError::NotYetValid);
    assert_eq!(refused(&json!({ "nbf": "now" })), TokenError::NotYetValid);
    assert!(verify_changed(&policy(), &json!({ "nbf": NOW, "exp": NOW + 1 })).is_ok());
    let endless = verify_changed(&policy(), &json!({ "exp": 1e300 })).unwrap();
    assert!(endless.expires_at() < Some(Timestamp(2 * NOW * 1000)), "within reach of a timer");
}

#[test]
fn a_token_for_another_server_is_refused_unless_that_is_switched_off() {
    for aud in [json!("other"), json!(["other"]), json!(null)] {
        assert_eq!(refused(&json!({ "aud": aud })), TokenError::Audience);
        let careless = TokenPolicy { verify_aud: false, ..policy() };
        assert!(verify_changed(&careless, &json!({ "aud": aud })).is_ok());
    }
}

#[test]
fn the_first_configured_claim_names_the_user() {
    let name = |changes: &Value| {
        let preferring = TokenPolicy { username_claims: vec!["email".into(), "upn".into()], ..policy() };
        verify_changed(&preferring, changes).map(|identity| identity.user().to_owned())
    };
    assert_eq!(name(&json!({ "upn": "u", "email": 5 })).unwrap(), "u");
    assert_eq!(name(&json!({})).unwrap(), "alice");
    assert_eq!(name(&json!({ "sub": null, "client_id": "c" })).unwrap(), "c");
    assert_eq!(name(&json!({ "sub": null })).unwrap(), "unknown");
    assert_eq!(name(&json!({ "sub": "" })), Err(TokenError::UserName));
    assert_eq!(name(&json!({ "sub": "x".repeat(256) })), Err(TokenError::UserName));
}

#[test]
fn no_mutation_of_a_token_is_accepted() {
    let signer = Signer::new(Algorithm::ES256, "k");
    let keys = key_set(&[&signer]);
    let token = signer.sign(&claims(&json!({}))).into_bytes();
    let tokens = b".=-_eyJ";
    mutations::check_mutations(std::slice::from_ref(&token), 3_000, tokens, |mutated| {
        assert_eq!(policy().verify(mutated, &keys, NOW).is_ok(), mutated == token);
    });
}

#[test]
fn any_claims_are_read_without_a_panic_and_give_no_user_without_a_name() {
    let signer = Signer::new(Algorithm::HS256, "k");
    let keys = key_set(&[&signer]);
    let policy = TokenPolicy { additional_scopes_keys: vec!["realm.roles".to_owned()], ..policy() };
    let seen = claims(&json!({ "nbf": NOW, "realm": { "roles": ["a.read:*/*", "b"] }, "client_id": "c" }));
    mutations::check_mutations(&[seen.to_string().into_bytes()], 3_000, b"\"{}[],:0-\\", |mutated| {
        let Ok(claims) = serde_json::from_slice::<Value>(mutated) else { return };
        if let Ok(identity) = policy.verify(signer.sign(&claims).as_bytes(), &keys, NOW) {
            assert!(!identity.user().is_empty() && identity.expires_at().is_some());
        }
    });
}
