use std::path::PathBuf;

use rcgen::CertifiedKey;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use transport::Stream;
use transport::tls::{
    CertificateFiles, ClientCertificates, ClientTls, ClientTlsConfig, LoginFrom, ServerTls, ServerTlsConfig,
};

use super::tests::{PATIENT, Server, bound_listener};
use super::*;

/// A certificate for localhost, and the TLS configuration of both ends that trust it.
struct Ends {
    directory: TempDir,
    server: Arc<ServerTls>,
    client: ClientTls,
}

impl Ends {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        issue(&directory);
        let files = CertificateFiles { certificate: path(&directory, "cert"), key: path(&directory, "key") };
        let server = ServerTls::load(ServerTlsConfig {
            certificates: vec![files],
            client_certificates: ClientCertificates::Off,
            login_from: LoginFrom::CommonName,
        });
        let server = Arc::new(server.unwrap());
        let client = believing(&directory);
        Self { directory, server, client }
    }

    async fn start(&self, limits: Limits, strict: Duration) -> Server {
        let listener = bound_listener().await.over_tls(Arc::clone(&self.server), strict);
        Server::start_on(listener, limits, 0).await
    }

    async fn connect(&self, server: &Server) -> io::Result<Stream> {
        self.client.connect(Stream::from_tcp(server.connect().await)?, "localhost").await
    }
}

fn path(directory: &TempDir, name: &str) -> PathBuf {
    directory.path().join(name)
}

fn issue(directory: &TempDir) {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path(directory, "cert"), cert.pem()).unwrap();
    std::fs::write(path(directory, "key"), signing_key.serialize_pem()).unwrap();
}

fn believing(directory: &TempDir) -> ClientTls {
    let ca = Some(path(directory, "cert"));
    let files = ClientTlsConfig { ca, certificate: None, server_name: None, verify: true };
    ClientTls::load(files).unwrap().0
}

async fn ask(stream: &mut Stream) -> String {
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed too early");
    }
    String::from_utf8(answer).unwrap()
}

const NEVER: Duration = Duration::ZERO;

#[tokio::test]
async fn requests_over_tls_are_answered_and_nothing_is_strict_unless_asked_for() {
    let ends = Ends::new();
    let hour = (Duration::from_hours(1), Some("max-age=3600"));
    for (strict, reported) in [(NEVER, None), (Duration::from_millis(500), None), hour] {
        let server = ends.start(PATIENT, strict).await;
        let mut stream = ends.connect(&server).await.unwrap();
        let answer = ask(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("\r\nx-content-type-options: nosniff\r\n"), "{answer}");
        let found = answer.lines().find_map(|line| line.strip_prefix("strict-transport-security: "));
        assert_eq!(found, reported);
        ask(&mut stream).await;
    }
}

#[tokio::test]
async fn a_handshake_that_is_not_finished_has_an_end_and_so_has_idleness_after_one() {
    let ends = Ends::new();
    let server = ends.start(Limits { head: Duration::from_millis(50), ..PATIENT }, NEVER).await;
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    // On a slow machine this may come too late, and the connection is reset.
    let _ = half.write_all(b"\x16\x03\x01\x02\x00\x01").await;
    for stream in [&mut silent, &mut half] {
        assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap_or_default(), 0);
    }
    // On a slow machine this one may be cut off in its handshake.
    if let Ok(mut idle) = ends.connect(&server).await {
        let mut rest = String::new();
        let _ = idle.read_to_string(&mut rest).await;
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408 "), "{rest}");
    }
}

#[tokio::test]
async fn at_the_limit_an_unfinished_handshake_is_closed() {
    let ends = Ends::new();
    let server = ends.start(Limits { connections: 1, ..PATIENT }, NEVER).await;
    let mut silent = server.connect().await;
    silent.write_all(b"\x16").await.unwrap();
    ask(&mut ends.connect(&server).await.unwrap()).await;
    // The connection is reset if its bytes were not read.
    let _ = silent.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn shutting_down_does_not_wait_for_a_handshake() {
    let ends = Ends::new();
    let server = ends.start(Limits { drain: Duration::from_hours(1), ..PATIENT }, NEVER).await;
    let mut silent = server.connect().await;
    // Accepted after the silent one, whose handshake has therefore begun.
    ask(&mut ends.connect(&server).await.unwrap()).await;
    server.shutdown.send(()).unwrap();
    tokio::time::timeout(Duration::from_mins(2), server.task).await.expect("it waited").unwrap();
    assert_eq!(silent.read_to_end(&mut Vec::new()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_reload_shows_the_new_certificate_to_new_connections_and_leaves_the_others() {
    let ends = Ends::new();
    let server = ends.start(PATIENT, NEVER).await;
    let mut before = ends.connect(&server).await.unwrap();
    ask(&mut before).await;
    issue(&ends.directory);
    ends.server.prepare_reload().unwrap().apply();
    assert!(ends.connect(&server).await.is_err(), "the old certificate is not shown any more");
    let new = Ends { client: believing(&ends.directory), ..ends };
    ask(&mut new.connect(&server).await.unwrap()).await;
    ask(&mut before).await;
}
