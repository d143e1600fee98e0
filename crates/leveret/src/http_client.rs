//! A small blocking HTTP client for `leveret ctl` and `leveret health`, with one connection per request over
//! TCP, TLS or a Unix socket.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::runtime::{self, Runtime};
use transport::tls::{ClientTls, ClientTlsConfig};
use transport::{ConnectOptions, DescriptorShare, HostAndPort, Stream, parse_port, split_host_and_port};

use crate::config::{ValueError, unix_path};

/// Sends requests to one server.
pub(crate) struct HttpClient {
    runtime: Runtime,
    endpoint: Endpoint,
    tls: Option<ClientTls>,
    authorization: Option<String>,
    timeout: Duration,
}

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `http://host:port/prefix` or `https://host:port/prefix`.
    Host {
        /// A name, or an IP address without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether it uses TLS.
        tls: bool,
        /// Prefix of every path; empty, or with a leading slash and no trailing one.
        prefix: String,
    },
    /// `unix:/path`.
    Unix(PathBuf),
}

/// A request.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    /// Path and query, already encoded.
    pub(crate) path: &'a str,
    /// JSON body, if any.
    pub(crate) body: Option<Vec<u8>>,
    /// An additional header.
    pub(crate) header: Option<(&'static str, &'a str)>,
}

/// A response with any status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header Server.
    pub(crate) server: Option<String>,
    pub(crate) body: Bytes,
}

/// Maximum size of a response's body in bytes: the definitions of a million queues.
const MAX_ANSWER: usize = 1 << 30;

/// Time limit for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Endpoint {
    /// Whether requests come there over the loopback interface or a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Host { host, .. } => {
                let ip = host.parse::<std::net::IpAddr>();
                ip.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
            }
        }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// Describes the mistake without quoting the URL, which may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, ValueError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix);
        }
        let fault =
            |fault| ValueError::Url { fault, expected: "http://host:port, https://host:port or unix:/path" };
        let (scheme, rest) = text.split_once("://").ok_or(fault("is not a URL"))?;
        let (tls, default_port) = match scheme {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return Err(fault("has an unknown scheme")),
        };
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(
                "holds a user: everybody can read command lines, so use --user, and the password's file or \
                        variable"
                    .into(),
            );
        }
        let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'?' && byte != b'#';
        if !rest.bytes().all(fits) {
            return Err(fault("is not plain"));
        }
        let (host, port) = split_host_and_port(authority).ok_or("has no valid host and port")?;
        let port = port.map_or(Some(default_port), parse_port).filter(|port| *port != 0);
        let port = port.ok_or("has no valid port (1 to 65535)")?;
        if host.is_empty() {
            return Err(fault("has no host"));
        }
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self::Host { host: host.to_owned(), port, tls, prefix })
    }

    fn prefix(&self) -> &str {
        match self {
            Self::Host { prefix, .. } => prefix,
            Self::Unix(_) => "",
        }
    }

    /// The `Host` field of requests.
    fn host_field(&self) -> String {
        match self {
            Self::Host { host, port, .. } => HostAndPort(host, *port).to_string(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, port, tls, prefix } => {
                let scheme = if *tls { "https" } else { "http" };
                write!(formatter, "{scheme}://{}{prefix}", HostAndPort(host, *port))
            }
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl HttpClient {
    /// A client that gives up on a request if its complete response takes longer than `timeout`. `files` name
    /// the trusted CA certificates and the client's own certificate for TLS.
    ///
    /// # Errors
    /// A file cannot be used, or the system lacks resources.
    pub(crate) fn new(endpoint: Endpoint, files: ClientTlsConfig, timeout: Duration) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let tls = match &endpoint {
            Endpoint::Host { tls: true, .. } => Some(ClientTls::load(files).map_err(io::Error::other)?.0),
            _ => None,
        };
        Ok(Self { runtime, endpoint, tls, authorization: None, timeout })
    }

    /// Adds the `Authorization` field to every request.
    pub(crate) fn authorize(&mut self, value: String) {
        self.authorization = Some(value);
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// The server cannot be reached, does not respond in time, or does not speak HTTP.
    pub(crate) fn ask(&self, ask: Ask<'_>) -> io::Result<Answer> {
        let exchange = async {
            let all = tokio::time::timeout(self.timeout, self.exchange(ask)).await;
            all.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
        };
        self.runtime.block_on(exchange)
    }

    async fn exchange(&self, ask: Ask<'_>) -> io::Result<Answer> {
        let request = self.request(ask)?;
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(cause)?;
        // Ends with the client's runtime at the latest.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(cause)?;
        let status = answer.status().as_u16();
        let server = answer.headers().get(header::SERVER);
        let server = server.and_then(|server| server.to_str().ok()).map(str::to_owned);
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok(Answer { status, server, body: body.map_err(io::Error::other)?.to_bytes() })
    }

    fn request(&self, ask: Ask<'_>) -> io::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(ask.method)
            .uri(format!("{}{}", self.endpoint.prefix(), ask.path))
            .header(header::HOST, self.endpoint.host_field())
            .header(header::USER_AGENT, concat!("leveret/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close");
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        if let Some((name, value)) = ask.header {
            request = request.header(name, value);
        }
        if ask.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        request.body(Full::from(ask.body.unwrap_or_default())).map_err(io::Error::other)
    }

    async fn connect(&self) -> io::Result<Stream> {
        match &self.endpoint {
            Endpoint::Unix(path) => Ok(Stream::Unix(tokio::net::UnixStream::connect(path).await?)),
            Endpoint::Host { host, port, .. } => {
                let options = ConnectOptions {
                    timeout: CONNECT_TIMEOUT,
                    keepalive: self.timeout,
                    share: DescriptorShare::Others,
                };
                let stream = Stream::connect(host, *port, options).await?;
                match &self.tls {
                    Some(tls) => tls.connect(stream, host).await,
                    None => Ok(stream),
                }
            }
        }
    }
}

/// The underlying error of the socket or TLS, since hyper's own message says little.
fn cause(error: hyper::Error) -> io::Error {
    if error.is_parse() {
        return io::Error::other("the server does not speak HTTP: is this its HTTP port (15672)?");
    }
    match error.source() {
        Some(source) => io::Error::other(source.to_string()),
        None => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_they_are_shown() {
        for url in ["http://127.0.0.1:15672", "https://[::1]:15671/rabbit", "unix:/run/leveret/http.sock"] {
            assert_eq!(Endpoint::parse(url).unwrap().to_string(), url);
        }
        assert_eq!(Endpoint::parse("http://broker/").unwrap().to_string(), "http://broker:80");
        assert_eq!(Endpoint::parse("https://broker/a/b/").unwrap().to_string(), "https://broker:443/a/b");
    }

    #[test]
    fn a_wrong_url_is_refused_without_being_quoted() {
        for url in [
            "",
            "broker:15672",
            "ftp://broker",
            "http://",
            "http://broker:0",
            "http://broker:port",
            "http://user:hunter2@broker:15672",
            "http://broker/?password=hunter2",
            "http://bro ker",
            "unix:relative",
        ] {
            let error = Endpoint::parse(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
