//! Requests to external HTTP services, each with limits on time and bytes.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use transport::tls::{ClientTls, ClientTlsConfig};
use transport::{ConnectOptions, DescriptorShare, Stream};

use crate::error::ServiceError;
use crate::url::ServiceUrl;

/// The most idle connections. More are opened only while as many requests are in progress.
const MAX_IDLE: usize = 8;

/// Idle time before a TCP keepalive probe, and interval of probes: the shortest that systems support.
const MIN_KEEPALIVE: Duration = Duration::from_secs(1);

/// Timeouts of requests to a service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceTimes {
    /// For establishing the connection.
    pub connect: Duration,
    /// For the whole request, including the connection.
    pub request: Duration,
}

/// Sends requests to one service.
pub struct ServiceClient {
    url: ServiceUrl,
    /// `None` without TLS.
    tls: Option<Arc<ClientTls>>,
    times: ServiceTimes,
    /// Idle connections whose last response has been read; `None` if connections are not reused.
    idle: Option<Box<Mutex<Vec<Connection>>>>,
    /// The statuses of successful responses.
    accepted: &'static [u16],
}

/// A connection that serves one request after the other.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _task: Abort,
}

impl ServiceClient {
    /// A client that trusts the CA certificates in `files` if the URL is `https`. It opens a connection for each request.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(url: ServiceUrl, files: ClientTlsConfig, times: ServiceTimes) -> Result<Self, ServiceError> {
        let tls = load_tls(files, &[&url])?;
        Ok(Self::with_tls(url, tls, times))
    }

    /// Like [`Self::new`], with the TLS that several clients share, created by [`load_tls`] for all of their URLs.
    pub(crate) fn with_tls(url: ServiceUrl, tls: Option<Arc<ClientTls>>, times: ServiceTimes) -> Self {
        let tls = tls.filter(|_| url.tls);
        assert_eq!(tls.is_some(), url.tls, "an https URL needs TLS");
        Self { url, tls, times, idle: None, accepted: &[200] }
    }

    /// Reuses connections, for a service with frequent requests.
    #[must_use]
    pub(crate) fn reusing_connections(self) -> Self {
        Self { idle: Some(Box::default()), ..self }
    }

    /// Accepts responses with these statuses, instead of only 200.
    #[must_use]
    pub(crate) fn accepting(self, accepted: &'static [u16]) -> Self {
        Self { accepted, ..self }
    }

    /// The TLS of its connections, whose files can be reloaded; `None` without TLS.
    pub fn tls(&self) -> Option<&Arc<ClientTls>> {
        self.tls.as_ref()
    }

    /// Whether TLS protects the service's responses.
    pub fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Requests the URL itself; returns a body of at most `most` bytes. Redirects are not followed.
    ///
    /// # Errors
    /// The service does not answer in time, or not with an accepted status.
    pub(crate) async fn get(&self, most: usize) -> Result<Bytes, ServiceError> {
        self.request(Method::GET, &self.url.path, None, most).await
    }

    /// As [`Self::get`], with a form in the query of the URL (`GET`) or as the body (`POST`).
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn submit(
        &self,
        method: Method,
        form: String,
        most: usize,
    ) -> Result<Bytes, ServiceError> {
        if method == Method::POST {
            return self.request(method, &self.url.path, Some(form), most).await;
        }
        let separator = if self.url.path.contains('?') { '&' } else { '?' };
        let target = format!("{}{separator}{form}", self.url.path);
        self.request(method, &target, None, most).await
    }

    async fn request(
        &self,
        method: Method,
        target: &str,
        form: Option<String>,
        most: usize,
    ) -> Result<Bytes, ServiceError> {
        let ServiceTimes { request: within, .. } = self.times;
        let exchange = Box::pin(self.exchange(method, target, form, most));
        let outcome =
            tokio::time::timeout(within, exchange).await.unwrap_or(Err(ServiceError::TimedOut(within)));
        outcome.map_err(explained)
    }

    async fn exchange(
        &self,
        method: Method,
        target: &str,
        form: Option<String>,
        most: usize,
    ) -> Result<Bytes, ServiceError> {
        let form = form.map(Bytes::from);
        // A connection that the service has closed meanwhile does not count as a failure: its request was not read.
        while let Some(connection) = self.take_idle() {
            match self.exchange_on(connection, self.message(&method, target, form.clone())?, most).await {
                Err(ServiceError::Http(error)) if is_stale(&error) => {}
                outcome => return outcome,
            }
        }
        let message = self.message(&method, target, form)?;
        self.exchange_on(self.connect().await?, message, most).await
    }

    fn message(
        &self,
        method: &Method,
        target: &str,
        form: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, ServiceError> {
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, self.url.authority())
            .header(header::USER_AGENT, concat!("leveret/", env!("CARGO_PKG_VERSION")));
        if form.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        }
        if self.idle.is_none() {
            request = request.header(header::CONNECTION, "close");
        }
        request.body(Full::new(form.unwrap_or_default())).map_err(ServiceError::Request)
    }

    async fn exchange_on(
        &self,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Bytes, ServiceError> {
        let answer = connection.sender.send_request(request).await.map_err(ServiceError::Http)?;
        let status = answer.status().as_u16();
        if !self.accepted.contains(&status) {
            return Err(ServiceError::Status(status));
        }
        let body = Limited::new(answer.into_body(), most).collect().await;
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(ServiceError::TooLong(most)),
            Err(error) => return Err(ServiceError::Connection(io::Error::other(error))),
        };
        if let Some(idle) = &self.idle
            && connection.sender.ready().await.is_ok()
        {
            let mut idle = idle.lock();
            if idle.len() < MAX_IDLE {
                idle.push(connection);
            }
        }
        Ok(body)
    }

    /// An idle connection that is still open.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.as_ref()?.lock();
        while let Some(connection) = idle.pop() {
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(&self) -> Result<Connection, ServiceError> {
        let stream = TokioIo::new(self.open().await.map_err(ServiceError::Connection)?);
        let (sender, task) = http1::handshake(stream).await.map_err(ServiceError::Http)?;
        Ok(Connection { sender, _task: Abort(tokio::spawn(task)) })
    }

    async fn open(&self) -> io::Result<Stream> {
        let options = ConnectOptions {
            timeout: self.times.connect,
            keepalive: self.times.request.max(MIN_KEEPALIVE),
            share: DescriptorShare::Others,
        };
        let stream = Stream::connect(&self.url.host, self.url.port, options).await?;
        match &self.tls {
            Some(tls) => tls.connect(stream, &self.url.host).await,
            None => Ok(stream),
        }
    }
}

/// Loads the TLS of clients for these URLs, if one of them is `https`.
///
/// # Errors
/// A file cannot be used.
pub(crate) fn load_tls(
    files: ClientTlsConfig,
    urls: &[&ServiceUrl],
) -> Result<Option<Arc<ClientTls>>, ServiceError> {
    if !urls.iter().any(|url| url.tls) {
        return Ok(None);
    }
    let (tls, _) = ClientTls::load(files).map_err(ServiceError::Tls)?;
    Ok(Some(Arc::new(tls)))
}

/// Whether an idle connection was closed before its request was read.
fn is_stale(error: &hyper::Error) -> bool {
    let broken = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let broken = broken.is_some_and(|error| {
        matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    });
    broken || error.is_canceled() || error.is_closed() || error.is_incomplete_message()
}

/// The underlying error of the socket or TLS, since hyper's own message says little.
fn explained(error: ServiceError) -> ServiceError {
    match error {
        ServiceError::Http(error) => match error.source() {
            Some(source) => ServiceError::Connection(io::Error::other(source.to_string())),
            None => ServiceError::Http(error),
        },
        other => other,
    }
}

/// Ends the task of a connection when its last request has ended or is cancelled.
struct Abort(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
