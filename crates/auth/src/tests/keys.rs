//! Keys that change, in a file and at a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::{Identity, LoginAnswer, LoginRefused};
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use transport::tls::ClientTlsConfig;

use super::signer::{Signer, claims, clock, policy, published};
use crate::error::KeySetError;
use crate::keys::{KeyOrigin, KeySet};
use crate::source::KeyTimes;
use crate::{KeySource, OAuth2, ServiceClient, ServiceTimes, ServiceUrl};

const PATIENCE: Duration = Duration::from_secs(30);

/// A service that answers every request with the same text, until it is changed.
struct Service {
    url: ServiceUrl,
    answer: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Service {
    async fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServiceUrl::parse(&format!("http://{}/keys", listener.local_addr().unwrap())).unwrap();
        let (answer, asked) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
        let (answers, count) = (Arc::clone(&answer), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                count.fetch_add(1, Ordering::Relaxed);
                let body = answers.lock().clone();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        Self { url, answer, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn source(&self) -> KeySource {
        let files = ClientTlsConfig { ca: None, certificate: None, server_name: None, verify: true };
        let times = ServiceTimes { connect: PATIENCE, request: PATIENCE };
        KeySource::Service(Box::new(ServiceClient::new(self.url.clone(), files, times).unwrap()))
    }
}

/// Reads unknown keys at every request for them.
fn eager(source: KeySource) -> OAuth2 {
    OAuth2::with_times(policy(), source, KeyTimes { interval: Duration::ZERO, ..KeyTimes::default() })
}

async fn verify(tokens: &OAuth2, signer: &Signer) -> Result<Identity, LoginRefused> {
    match tokens.verify(signer.sign(&claims(&json!({}))).as_bytes()) {
        LoginAnswer::Now(outcome) => outcome,
        LoginAnswer::Later(answer) => answer.await,
    }
}

#[tokio::test]
async fn a_key_that_the_service_has_by_now_is_found() {
    let (old, new) = (Signer::new(Algorithm::EdDSA, "old"), Signer::new(Algorithm::EdDSA, "new"));
    let service = Service::start(published(&[&old])).await;
    let tokens = eager(service.source());
    assert_eq!(service.asked(), 0, "it may start later");
    assert!(verify(&tokens, &old).await.is_ok());
    assert!(verify(&tokens, &old).await.is_ok());
    assert_eq!(service.asked(), 1, "its keys are cached");
    assert!(verify(&tokens, &new).await.is_err());
    *service.answer.lock() = published(&[&new]);
    assert!(verify(&tokens, &new).await.is_ok());
    assert!(verify(&tokens, &old).await.is_err(), "withdrawn");
}

#[tokio::test]
async fn invented_key_identifiers_load_nobody() {
    let known = Signer::new(Algorithm::EdDSA, "known");
    let service = Service::start(published(&[&known])).await;
    let tokens = OAuth2::new(policy(), service.source(), clock()).unwrap();
    for _ in 0..10 {
        assert!(verify(&tokens, &Signer::new(Algorithm::EdDSA, "invented")).await.is_err());
    }
    assert_eq!(service.asked(), 1);
    assert!(verify(&tokens, &known).await.is_ok());
}

#[tokio::test]
async fn a_token_waits_for_outdated_keys_and_one_of_a_withdrawn_key_is_refused() {
    let (old, new) = (Signer::new(Algorithm::EdDSA, "old"), Signer::new(Algorithm::EdDSA, "new"));
    let service = Service::start(published(&[&old])).await;
    let times = KeyTimes { interval: Duration::ZERO, max_age: Duration::ZERO, ..KeyTimes::default() };
    let tokens = OAuth2::with_times(policy(), service.source(), times);
    assert!(verify(&tokens, &old).await.is_ok());
    "<html>".clone_into(&mut service.answer.lock());
    for asked in 2..5 {
        assert!(verify(&tokens, &old).await.is_ok(), "the service is out of order");
        assert_eq!(service.asked(), asked, "what has failed makes no key younger");
    }
    *service.answer.lock() = published(&[&new]);
    assert!(verify(&tokens, &old).await.is_err(), "withdrawn");
    let cautious = OAuth2::with_times(policy(), service.source(), KeyTimes { interval: PATIENCE, ..times });
    assert!(verify(&cautious, &new).await.is_ok());
    let asked = service.asked();
    assert!(verify(&cautious, &new).await.is_ok());
    assert_eq!(service.asked(), asked, "not so soon again");
}

#[tokio::test]
async fn tokens_that_no_key_of_a_service_can_verify_load_nobody() {
    let signer = Signer::new(Algorithm::EdDSA, "e");
    let service = Service::start(published(&[&signer])).await;
    let tokens = eager(service.source());
    let token = signer.sign(&claims(&json!({})));
    let rest = token.split_once('.').unwrap().1;
    for header in [json!({ "alg": "HS256", "kid": "e" }), json!({ "alg": "EdDSA", "kid": 5 })] {
        let forged = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header.to_string()));
        assert!(matches!(tokens.verify(forged.as_bytes()), LoginAnswer::Now(Err(_))), "{header}");
    }
    assert_eq!(service.asked(), 0);
}

#[tokio::test]
async fn a_token_ends_by_the_brokers_clock() {
    let signer = Signer::new(Algorithm::EdDSA, "e");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), published(&[&signer])).unwrap();
    let tokens = OAuth2::new(policy(), KeySource::File(file.path().to_owned()), clock()).unwrap();
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let token = signer.sign(&claims(&json!({ "exp": wall + 3600 })));
    let LoginAnswer::Now(Ok(identity)) = tokens.verify(token.as_bytes()) else { panic!() };
    let left = identity.expires_at().unwrap().0 - clock()().0;
    assert!((3_500_000..=3_600_000).contains(&left), "{left} ms");
}

#[tokio::test]
async fn keys_stay_while_the_service_answers_with_something_else() {
    let known = Signer::new(Algorithm::EdDSA, "known");
    let service = Service::start(published(&[&known])).await;
    let tokens = eager(service.source());
    assert!(verify(&tokens, &known).await.is_ok());
    for answer in ["<html>".to_owned(), "x".repeat(2 << 20), r#"{"keys":[]}"#.to_owned()] {
        *service.answer.lock() = answer;
        assert!(verify(&tokens, &Signer::new(Algorithm::EdDSA, "other")).await.is_err());
        assert!(verify(&tokens, &known).await.is_ok());
    }
}

#[tokio::test]
async fn a_symmetric_key_of_a_service_is_none() {
    let shared = Signer::new(Algorithm::HS256, "s");
    let service = Service::start(published(&[&shared, &Signer::new(Algorithm::EdDSA, "e")])).await;
    assert!(verify(&eager(service.source()), &shared).await.is_err());
}

#[tokio::test]
async fn a_file_is_read_again_when_it_is_asked_for_and_for_an_unknown_key() {
    let (old, new) = (Signer::new(Algorithm::EdDSA, "old"), Signer::new(Algorithm::EdDSA, "new"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |signers: &[&Signer]| std::fs::write(file.path(), published(signers)).unwrap();
    write(&[&old]);
    let tokens = OAuth2::new(policy(), KeySource::File(file.path().to_owned()), clock()).unwrap();
    assert!(verify(&tokens, &old).await.is_ok());
    write(&[&new]);
    assert!(verify(&tokens, &new).await.is_ok(), "unknown so far");
    write(&[&old]);
    tokens.reload().unwrap();
    assert!(verify(&tokens, &old).await.is_ok() && verify(&tokens, &new).await.is_err());
    std::fs::write(file.path(), "nothing").unwrap();
    assert!(tokens.reload().is_err());
    assert!(verify(&tokens, &old).await.is_ok(), "as before");
}

#[test]
fn a_file_that_is_missing_stops_the_start() {
    let missing = KeySource::File("/nowhere/keys.json".into());
    assert!(matches!(OAuth2::new(policy(), missing, clock()), Err(KeySetError::File { .. })));
}

#[test]
fn any_key_set_is_read_or_refused() {
    let signers = [
        Signer::new(Algorithm::ES256, "a"),
        Signer::new(Algorithm::EdDSA, "b"),
        Signer::new(Algorithm::HS256, "c"),
    ];
    let seen = json!({ "keys": signers.map(|signer| signer.jwk) }).to_string().into_bytes();
    mutations::check_mutations(&[seen], 3_000, b"\"{}[],:-_=", |mutated| {
        let _ = KeySet::parse(mutated, KeyOrigin::File);
    });
}
