//! Requests to the HTTP services of others: one connection each, within a time and a number of bytes.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use transport::tls::{ClientTls, ClientTlsConfig};
use transport::{ConnectOptions, Stream};

use crate::error::ServiceError;
use crate::url::ServiceUrl;

/// How long a service may take.
#[derive(Debug, Clone, Copy)]
pub struct ServiceTimes {
    /// To accept a connection.
    pub connect: Duration,
    /// For the whole request, the connection included.
    pub request: Duration,
}

/// Sends requests to one service.
pub struct ServiceClient {
    url: ServiceUrl,
    /// `None` without TLS.
    tls: Option<ClientTls>,
    times: ServiceTimes,
}

impl ServiceClient {
    /// A client that trusts the authorities in `files` if the URL is `https`.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(url: ServiceUrl, files: ClientTlsConfig, times: ServiceTimes) -> Result<Self, ServiceError> {
        let tls = if url.tls { Some(ClientTls::load(files).map_err(ServiceError::Tls)?.0) } else { None };
        Ok(Self { url, tls, times })
    }

    /// Whether nobody on the way can change the service's answers.
    pub fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Requests the URL itself; returns a body of at most `most` bytes. Redirections are not followed.
    ///
    /// # Errors
    /// The service does not answer in time, or not with 200.
    pub(crate) async fn get(&self, most: usize) -> Result<Bytes, ServiceError> {
        let ServiceTimes { request: within, .. } = self.times;
        let exchange = Box::pin(self.exchange(most));
        tokio::time::timeout(within, exchange).await.unwrap_or(Err(ServiceError::TimedOut(within)))
    }

    async fn exchange(&self, most: usize) -> Result<Bytes, ServiceError> {
        let request = Request::get(&self.url.path)
            .header(header::HOST, self.url.authority())
            .header(header::USER_AGENT, concat!("leveret/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(ServiceError::Request)?;
        let stream = TokioIo::new(self.connect().await.map_err(ServiceError::Connection)?);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(of_http)?;
        let connection = Abort(tokio::spawn(connection));
        let answer = sender.send_request(request).await.map_err(of_http)?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(ServiceError::Status(status));
        }
        let body = Limited::new(answer.into_body(), most).collect().await;
        drop(connection);
        match body {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(ServiceError::TooLong(most)),
            Err(error) => Err(ServiceError::Connection(io::Error::other(error))),
        }
    }

    async fn connect(&self) -> io::Result<Stream> {
        let options = ConnectOptions { timeout: self.times.connect, keepalive: self.times.request };
        let stream = Stream::connect(&self.url.host, self.url.port, options).await?;
        match &self.tls {
            Some(tls) => tls.connect(stream, &self.url.host).await,
            None => Ok(stream),
        }
    }
}

/// Ends the task of a connection when the request has ended, or is given up.
struct Abort(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The underlying error of the socket or TLS, since hyper's own message says little.
fn of_http(error: hyper::Error) -> ServiceError {
    match error.source() {
        Some(source) => ServiceError::Connection(io::Error::other(source.to_string())),
        None => ServiceError::Http(error),
    }
}
