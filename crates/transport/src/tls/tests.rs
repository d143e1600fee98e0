//! Handshakes between the two sides, with certificates made on the spot.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SanType as San,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::stream::Stream;

/// An authority, and the folder for what it issues.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn issue(
        &self,
        name: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateFiles {
        let mut params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertificateFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    fn issue_for(&self, name: &str) -> CertificateFiles {
        self.issue(name, &[name], |_| {})
    }

    fn server(&self, certificates: Vec<CertificateFiles>) -> ServerTlsConfig {
        ServerTlsConfig {
            certificates,
            client_certificates: ClientCertificates::Off,
            login_from: LoginFrom::DistinguishedName,
        }
    }

    fn requiring(&self, certificates: Vec<CertificateFiles>) -> ServerTlsConfig {
        ServerTlsConfig {
            client_certificates: ClientCertificates::Required { authorities: self.ca() },
            ..self.server(certificates)
        }
    }

    fn client(&self) -> ClientTlsConfig {
        ClientTlsConfig { authorities: Some(self.ca()), certificate: None, server_name: None, verify: true }
    }
}

fn load_server(config: ServerTlsConfig) -> ServerTls {
    ServerTls::load(config).unwrap()
}

fn load_client(config: ClientTlsConfig) -> ClientTls {
    ClientTls::load(config).unwrap().0
}

/// Both ends' outcomes; the client has read the server's greeting when it succeeded.
async fn meet(
    server: &ServerTls,
    client: &ClientTls,
    host: &str,
) -> (Result<TlsAccepted, String>, Result<Stream, String>) {
    let (here, there) = UnixStream::pair().unwrap();
    let accepting = async {
        let mut accepted = server.accept(Stream::Unix(here)).await?;
        accepted.stream.write_all(b"hello").await?;
        accepted.stream.flush().await?;
        std::io::Result::Ok(accepted)
    };
    let connecting = async {
        let mut stream = client.connect(Stream::Unix(there), host).await?;
        let mut greeting = [0; 5];
        stream.read_exact(&mut greeting).await?;
        assert_eq!(&greeting, b"hello");
        std::io::Result::Ok(stream)
    };
    let (accepted, connected) = tokio::join!(accepting, connecting);
    (accepted.map_err(|error| error.to_string()), connected.map_err(|error| error.to_string()))
}

/// The certificate that the client was shown.
fn shown(stream: &Stream) -> Vec<u8> {
    let Stream::Tls(stream) = stream else { panic!("no TLS") };
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(path: &Path) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_file(path).unwrap().to_vec()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_an_end_without_goodbye_is_an_end() {
    let authority = Authority::new();
    let server = load_server(authority.server(vec![authority.issue_for("localhost")]));
    let client = load_client(authority.client());
    let (accepted, connected) = meet(&server, &client, "localhost").await;
    let (mut near, mut far) = (accepted.unwrap().stream, connected.unwrap());
    let large = vec![7; 1_000_000];
    let sending = async {
        far.write_all(&large).await.unwrap();
        far.flush().await.unwrap();
        // The socket alone is closed.
        drop(far);
    };
    let mut received = Vec::new();
    let (_, bytes) = tokio::join!(sending, near.read_to_end(&mut received));
    assert_eq!((bytes.unwrap(), received == large), (1_000_000, true));
}

#[tokio::test]
async fn a_client_is_shown_the_certificate_for_the_name_that_it_asks_for() {
    let authority = Authority::new();
    let first = authority.issue_for("first.example");
    let second = authority.issue("second", &["second.example", "*.wild.example"], |_| {});
    let server = load_server(authority.server(vec![first.clone(), second.clone()]));
    let client = load_client(ClientTlsConfig { verify: false, ..authority.client() });
    for (host, files) in [
        ("first.example", &first),
        ("SECOND.example", &second),
        ("a.wild.example", &second),
        ("a.b.wild.example", &first),
        ("unknown.example", &first),
        ("127.0.0.1", &first),
    ] {
        let (_, connected) = meet(&server, &client, host).await;
        assert!(shown(&connected.unwrap()) == der(&files.certificate), "{host}");
    }
}

#[tokio::test]
async fn a_client_tells_what_is_wrong_with_a_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = load_server(authority.server(vec![authority.issue_for("localhost")]));
    let expired = authority.issue("expired", &["localhost"], |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let expired = load_server(authority.server(vec![expired]));
    let (client, stranger) = (load_client(authority.client()), load_client(other.client()));
    for (server, client, host, text) in [
        (&good, &client, "elsewhere", "TLS: the server's certificate is not for 'elsewhere'"),
        (&good, &client, "127.0.0.1", "TLS: the server's certificate is not for '127.0.0.1'"),
        (
            &good,
            &stranger,
            "localhost",
            "TLS: the server's certificate was not issued by an authority that is believed",
        ),
        (&expired, &client, "localhost", "TLS: the server's certificate has expired"),
    ] {
        let (accepted, connected) = meet(server, client, host).await;
        assert_eq!(connected.unwrap_err(), text);
        assert!(accepted.unwrap_err().starts_with("TLS: refused by the other side: "));
    }
    let named = load_client(ClientTlsConfig { server_name: Some("localhost".into()), ..authority.client() });
    assert!(meet(&good, &named, "elsewhere").await.1.is_ok());
    let blind = load_client(ClientTlsConfig { verify: false, ..other.client() });
    assert!(meet(&expired, &blind, "elsewhere").await.1.is_ok());
}

#[tokio::test]
async fn a_required_certificate_has_to_be_there_and_good() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = load_server(authority.requiring(vec![authority.issue_for("localhost")]));
    let with = |certificate| load_client(ClientTlsConfig { certificate, ..authority.client() });
    let (accepted, connected) = meet(&server, &with(None), "localhost").await;
    assert_eq!(accepted.unwrap_err(), "TLS: the client has no certificate");
    assert!(connected.is_err());
    let (accepted, _) = meet(&server, &with(Some(other.issue_for("client"))), "localhost").await;
    let text = "TLS: the client's certificate was not issued by an authority that is believed";
    assert_eq!(accepted.unwrap_err(), text);
    let (accepted, connected) = meet(&server, &with(Some(authority.issue_for("client"))), "localhost").await;
    assert!(accepted.is_ok() && connected.is_ok());
}

#[tokio::test]
async fn an_optional_certificate_may_be_missing() {
    let authority = Authority::new();
    let server = load_server(ServerTlsConfig {
        client_certificates: ClientCertificates::Optional { authorities: authority.ca() },
        ..authority.server(vec![authority.issue_for("localhost")])
    });
    let (accepted, _) = meet(&server, &load_client(authority.client()), "localhost").await;
    assert_eq!(accepted.unwrap().login, None);
}

#[tokio::test]
async fn the_login_is_the_configured_part_of_the_certificate() {
    let authority = Authority::new();
    let localhost = authority.issue_for("localhost");
    let certificate = authority.issue("client", &["client.example"], |params| {
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, " Hares, Ltd. ");
        name.push(DnType::OrganizationalUnitName, "Fl\u{fc}gel#");
        name.push(DnType::CommonName, "worker");
        name.push(DnType::CustomDnType(vec![1, 2, 3, 4]), "x");
        params.subject_alt_names.push(San::Rfc822Name("me@example".try_into().unwrap()));
    });
    let client = load_client(ClientTlsConfig { certificate: Some(certificate), ..authority.client() });
    for (login_from, login) in [
        (LoginFrom::DistinguishedName, Some("1.2.3.4=x,CN=worker,OU=Fl\\C3\\BCgel#,O=\\ Hares\\, Ltd.\\ ")),
        (LoginFrom::CommonName, Some("worker")),
        (LoginFrom::SubjectAlternativeName(SanType::Dns), Some("client.example")),
        (LoginFrom::SubjectAlternativeName(SanType::Email), Some("me@example")),
        (LoginFrom::SubjectAlternativeName(SanType::Uri), None),
    ] {
        let config = ServerTlsConfig { login_from, ..authority.requiring(vec![localhost.clone()]) };
        let (accepted, _) = meet(&load_server(config), &client, "localhost").await;
        assert_eq!(accepted.unwrap().login.as_deref(), login, "{login_from:?}");
    }
}

#[tokio::test]
async fn a_reload_changes_what_new_clients_see_and_a_failed_one_nothing() {
    let authority = Authority::new();
    let files = authority.issue_for("localhost");
    let server = load_server(authority.server(vec![files.clone()]));
    let client = load_client(authority.client());
    let (accepted, connected) = meet(&server, &client, "localhost").await;
    let (mut near, mut far) = (accepted.unwrap().stream, connected.unwrap());
    let old = shown(&far);

    let key = std::fs::read(&files.key).unwrap();
    authority.issue_for("localhost");
    let new_key = std::fs::read(&files.key).unwrap();
    std::fs::write(&files.key, key).unwrap();
    let error = server.reload().unwrap_err();
    assert_eq!(error.file, TlsFile::Key);
    assert!(error.reason.contains("is not the key of the certificate in"), "{error}");
    assert!(shown(&meet(&server, &client, "localhost").await.1.unwrap()) == old);

    std::fs::write(&files.key, new_key).unwrap();
    server.reload().unwrap();
    let certificates = &server.in_use().certificates;
    assert_eq!(
        (certificates[0].names.as_slice(), certificates[0].in_time),
        (&["localhost".to_owned()][..], true)
    );
    assert!(shown(&meet(&server, &client, "localhost").await.1.unwrap()) == der(&files.certificate));

    // The connection from before lives on.
    near.write_all(b"still").await.unwrap();
    near.flush().await.unwrap();
    let mut still = [0; 5];
    far.read_exact(&mut still).await.unwrap();
    assert_eq!(&still, b"still");
}

#[test]
fn the_end_of_every_certificate_in_use_is_told_and_follows_a_reload() {
    let authority = Authority::new();
    let until = |day| {
        authority.issue("server", &["localhost"], |params| {
            params.not_after = rcgen::date_time_ymd(2041, 2, day);
        })
    };
    let files = until(3);
    let text = std::fs::read_to_string(&files.certificate).unwrap();
    std::fs::write(&files.certificate, text + &authority.issuer.pem()).unwrap();
    let server = load_server(authority.requiring(vec![files]));
    let in_use = server.in_use();
    let [own, chain] = &in_use.certificates[0].ends[..] else { panic!("{in_use:?}") };
    assert_eq!((own.at, own.text.as_str()), (2_243_462_400, "2041-02-03 0:00:00"));
    let authorities = in_use.authorities.as_ref().unwrap();
    assert_eq!((&authorities.path, &authorities.ends), (&authority.ca(), &vec![chain.clone()]));

    until(4);
    assert_eq!(server.in_use(), in_use, "not yet");
    server.reload().unwrap();
    let ends = &server.in_use().certificates[0].ends;
    assert_eq!((ends.len(), ends[0].at), (1, 2_243_462_400 + 86_400));
}

#[tokio::test]
async fn a_client_that_does_not_speak_tls_is_told_apart() {
    let authority = Authority::new();
    let server = load_server(authority.server(vec![authority.issue_for("localhost")]));
    for (bytes, text) in [
        (&b"AMQP\0\0\x09\x01"[..], "TLS: the client does not speak TLS"),
        (&b""[..], "TLS: closed during the handshake"),
    ] {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bytes).await.unwrap();
        there.shutdown().await.unwrap();
        assert_eq!(server.accept(Stream::Unix(here)).await.unwrap_err().to_string(), text);
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_reason() {
    let authority = Authority::new();
    let good = authority.issue_for("good");
    let fault = |certificate: &Path, key: &Path| {
        let files = CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() };
        let error = ServerTls::load(authority.server(vec![files])).unwrap_err();
        (error.file, error.reason)
    };
    let (file, reason) = fault(&authority.path("missing"), &good.key);
    assert_eq!(file, TlsFile::Certificate);
    assert!(reason.contains("missing: cannot be read: No such file"), "{reason}");
    let (file, reason) = fault(&good.key, &good.key);
    assert_eq!(file, TlsFile::Certificate);
    assert!(reason.ends_with("holds no certificate in PEM form"), "{reason}");
    let (file, reason) = fault(&good.certificate, &good.certificate);
    assert_eq!(file, TlsFile::Key);
    assert!(reason.ends_with("holds no private key in PEM form that is not encrypted"), "{reason}");
}
