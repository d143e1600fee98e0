//! Keys that change, in a file and at a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use broker::{Identity, LoginAnswer, LoginRefused};
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use transport::tls::ClientTlsConfig;

use super::signer::{Signer, claims, policy, published};
use crate::error::KeySetError;
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
        let files = ClientTlsConfig { authorities: None, certificate: None, server_name: None, verify: true };
        let times = ServiceTimes { connect: PATIENCE, request: PATIENCE };
        KeySource::Service(ServiceClient::new(self.url.clone(), files, times).unwrap())
    }
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
    let tokens = OAuth2::eager(policy(), service.source());
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
    let tokens = OAuth2::new(policy(), service.source()).unwrap();
    for _ in 0..10 {
        assert!(verify(&tokens, &Signer::new(Algorithm::EdDSA, "invented")).await.is_err());
    }
    assert_eq!(service.asked(), 1);
    assert!(verify(&tokens, &known).await.is_ok());
}

#[tokio::test]
async fn keys_stay_while_the_service_answers_with_something_else() {
    let known = Signer::new(Algorithm::EdDSA, "known");
    let service = Service::start(published(&[&known])).await;
    let tokens = OAuth2::eager(policy(), service.source());
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
    assert!(verify(&OAuth2::eager(policy(), service.source()), &shared).await.is_err());
}

#[tokio::test]
async fn a_file_is_read_again_when_it_is_asked_for_and_for_an_unknown_key() {
    let (old, new) = (Signer::new(Algorithm::EdDSA, "old"), Signer::new(Algorithm::EdDSA, "new"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |signers: &[&Signer]| std::fs::write(file.path(), published(signers)).unwrap();
    write(&[&old]);
    let tokens = OAuth2::new(policy(), KeySource::File(file.path().to_owned())).unwrap();
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
    assert!(matches!(OAuth2::new(policy(), missing), Err(KeySetError::File { .. })));
}
