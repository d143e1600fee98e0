//! The order of auth backends.

use std::sync::Arc;
use std::time::Instant;

use broker::{Broker, BrokerConfig, Identity, LoginAnswer, LoginAttempt, LoginRefused};
use jsonwebtoken::Algorithm;
use serde_json::json;

use super::signer::{Signer, claims, clock, policy, published};
use crate::{AuthBackend, AuthChain, KeySource, OAuth2};

/// A broker that asks these auth backends, with a file of keys for the signer's tokens.
struct World {
    broker: Arc<Broker>,
    signer: Signer,
    _file: tempfile::NamedTempFile,
}

impl World {
    fn new(backends: impl FnOnce(OAuth2) -> Vec<AuthBackend>) -> Self {
        let signer = Signer::new(Algorithm::EdDSA, "k");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), published(&[&signer])).unwrap();
        let tokens = OAuth2::new(policy(), KeySource::File(file.path().to_owned()), clock()).unwrap();
        let broker = Broker::new(BrokerConfig::default());
        broker.set_auth_backends(Arc::new(AuthChain::new(backends(tokens))));
        Self { broker, signer, _file: file }
    }

    fn log_in(&self, user: &str, secret: &str) -> Result<Identity, LoginRefused> {
        let attempt = LoginAttempt {
            user: user.to_owned(),
            secret: secret.as_bytes().to_owned(),
            from: None,
            is_loopback: false,
            now: Instant::now(),
            context: Vec::new(),
        };
        now(self.broker.log_in(attempt))
    }

    fn token(&self, sub: &str) -> String {
        self.signer.sign(&claims(&json!({ "sub": sub })))
    }
}

fn now(answer: LoginAnswer) -> Result<Identity, LoginRefused> {
    match answer {
        LoginAnswer::Now(outcome) => outcome,
        LoginAnswer::Later(_) => panic!("nobody has to be waited for"),
    }
}

#[test]
fn the_next_backend_is_asked_when_one_refuses() {
    let world = World::new(|tokens| vec![AuthBackend::Internal, AuthBackend::OAuth2(tokens)]);
    assert_eq!(world.log_in("ignored", &world.token("alice")).unwrap().user(), "alice");
    assert_eq!(world.log_in("guest", "guest"), Err(LoginRefused::LoopbackOnly));
    let why = world.log_in("guest", "wrong").unwrap_err().to_string();
    assert_eq!(why, "auth_backends: internal: wrong password; oauth2: not a JSON Web Token");
}

#[test]
fn internal_users_are_refused_if_the_chain_lacks_the_internal_backend() {
    let world = World::new(|tokens| vec![AuthBackend::OAuth2(tokens)]);
    assert!(world.log_in("guest", "guest").is_err());
    assert!(world.broker.authenticate_external("guest", true).is_err(), "not with a certificate either");
    assert!(world.log_in("", &world.token("alice")).is_ok());
}

#[test]
fn expired_tokens_lock_out_nobody_and_guessed_passwords_do() {
    let world = World::new(|tokens| vec![AuthBackend::Internal, AuthBackend::OAuth2(tokens)]);
    for number in 0..100 {
        let outdated = world.signer.sign(&claims(&json!({ "exp": number })));
        assert!(world.log_in("u", &outdated).is_err());
    }
    assert!(world.log_in("u", &world.token("alice")).is_ok());
    for number in 0..100 {
        assert!(world.log_in("u", &number.to_string()).is_err());
    }
    assert_eq!(world.log_in("u", "another"), Err(LoginRefused::TooManyAttempts));
    assert!(world.log_in("u", &world.token("alice")).is_ok(), "a token is no guess");
}

#[test]
fn a_token_is_renewed_by_one_of_the_same_user() {
    let world = World::new(|tokens| vec![AuthBackend::Internal, AuthBackend::OAuth2(tokens)]);
    let alice = world.log_in("", &world.token("alice")).unwrap();
    let renew = |secret: &str| now(world.broker.renew(&alice, secret.as_bytes()));
    assert!(renew(&world.token("alice")).is_ok());
    let error = renew(&world.token("eve")).unwrap_err();
    assert_eq!(error.to_string(), "oauth2: the new token is for another user");
    assert!(renew("guest").is_err());
}
