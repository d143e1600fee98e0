//! The HTTP server: accepts, bounds and ends connections, and sends each request to its answer.
//!
//! A stranger who reaches the address can neither keep it from others nor make it grow: there is a bound on
//! connections, and when it is reached the oldest idle one makes room; a request's head has a size and a time; an
//! answer that is not read is given up.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::middleware;
use axum::response::Response;
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::api::{self, Caller};
use crate::listener::{Arrived, Listener};
use crate::stall::StallTimeout;
use crate::{Source, dashboard, health, metrics, page};

/// Serves HTTP until `shutdown` is over, then finishes the requests at hand within a few seconds.
///
/// Dropping the future closes the listener and every connection at once.
pub async fn serve(
    listener: impl Into<Listener>,
    source: Arc<dyn Source>,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(LIMITS, listener.into(), router(source), shutdown).await;
}

/// Serves the metrics and nothing else, in the same way.
pub async fn serve_metrics(
    listener: impl Into<Listener>,
    source: Arc<dyn Source>,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(LIMITS, listener.into(), finished(metrics::router(source)), shutdown).await;
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Open connections.
    connections: usize,
    /// From the first moment a request may come, so between requests too, to the end of its head. As much before that for
    /// the handshake of TLS.
    head: Duration,
    /// Without one octet of an answer being taken.
    stall: Duration,
    /// From the request to shut down to the end of the last connection.
    drain: Duration,
}

const LIMITS: Limits = Limits {
    // A few scrapers, probes and browsers; each connection may hold a few dozen KiB.
    connections: 256,
    // Ample for a head. Scrapers come less often and open a connection each time, which costs nothing that matters.
    head: Duration::from_secs(10),
    // A scraper behind the worst network takes something in this time.
    stall: Duration::from_secs(10),
    // Answers take milliseconds; this is for clients that are slow to take them.
    drain: Duration::from_secs(2),
};

/// The largest head of a request, in octets: room for a browser's cookies of other services on the same host.
const MAX_HEAD: usize = 16 * 1024;

/// The pause after a failed accept, which is usually want of file descriptors: trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The router, for a connection whose other end it is told of.
#[derive(Clone)]
struct Service {
    inner: TowerToHyperService<Router>,
    caller: Caller,
    is_over_tls: bool,
    work: Work,
}

/// Among the extensions of a request that came over TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.caller);
        if self.is_over_tls {
            request.extensions_mut().insert(OverTls);
        }
        let at_work = self.work.begin();
        request.extensions_mut().insert(at_work.clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(at_work);
            answer
        })
    }
}

/// How many requests of a connection are at work; with HTTP/1.1 one at most, but for an answer that is still sent.
#[derive(Debug, Clone, Default)]
struct Work(Arc<AtomicUsize>);

/// Keeps a connection from having to make room: while a request is at work, and for as long as its answer says so.
#[derive(Debug)]
pub(crate) struct AtWork(Work);

impl Work {
    fn begin(&self) -> AtWork {
        self.0.fetch_add(1, Ordering::Relaxed);
        AtWork(self.clone())
    }

    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Clone for AtWork {
    fn clone(&self) -> Self {
        self.0.begin()
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_within(
    limits: Limits,
    listener: Listener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let router = TowerToHyperService::new(strict(router, listener.strict()));
    let mut connections = Connections::new(limits.connections);
    // Nothing is sent: that the sender is gone is the message.
    let (open, draining) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            arrived = accept(&listener) => {
                let work = Work::default();
                let (caller, is_over_tls) = (arrived.caller(), arrived.is_over_tls());
                let service = Service { inner: router.clone(), caller, is_over_tls, work: work.clone() };
                connections.admit(work, converse(limits, arrived, service, draining.clone()));
            }
        }
    }
    drop((listener, open));
    connections.finish(limits.drain).await;
}

async fn accept(listener: &Listener) -> Arrived {
    loop {
        match listener.accept().await {
            Ok(arrived) => return arrived,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the client gave up before it was accepted; the next one may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    // setsockopt(2) on a connection that was reset meanwhile says EINVAL.
    matches!(error.kind(), ConnectionAborted | ConnectionReset | NotConnected | InvalidInput)
}

async fn converse(limits: Limits, arrived: Arrived, service: Service, mut draining: watch::Receiver<()>) {
    let stream = tokio::select! {
        stream = tokio::time::timeout(limits.head, arrived.stream()) => stream,
        _ = draining.changed() => return,
    };
    let stream = match stream {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "HTTP connection ended"),
        Err(_) => return tracing::debug!("HTTP connection ended: no TLS handshake in time"),
    };
    let stream = TokioIo::new(StallTimeout::new(stream, limits.stall));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(MAX_HEAD)
            .serve_connection(stream, service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = draining.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

/// The open connections, never more than their limit.
struct Connections {
    limit: usize,
    tasks: JoinSet<()>,
    /// Oldest first; some may have ended.
    by_age: VecDeque<(AbortHandle, Work)>,
}

impl Connections {
    fn new(limit: usize) -> Self {
        Self { limit, tasks: JoinSet::new(), by_age: VecDeque::new() }
    }

    /// Runs a connection. At the limit the oldest one that is not at work ends for it: it is between requests, or there
    /// to keep others out, for what a stranger may ask takes milliseconds. If all are at work, it is the new one that
    /// ends: nobody's request is cut for who has only just come.
    fn admit(&mut self, work: Work, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        if self.by_age.len() >= self.limit {
            self.by_age.retain(|(task, _)| !task.is_finished());
        }
        if self.by_age.len() >= self.limit {
            let idle = self.by_age.iter().position(|(_, work)| work.is_over());
            let Some((oldest, _)) = idle.and_then(|idle| self.by_age.remove(idle)) else {
                tracing::debug!("refused an HTTP connection, for all of them are at work");
                return;
            };
            oldest.abort();
        }
        self.by_age.push_back((self.tasks.spawn(connection), work));
    }

    /// Waits for all to end, and after the bound ends them.
    async fn finish(mut self, bound: Duration) {
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(bound, all_ended).await.is_err() {
            tracing::debug!(left = self.tasks.len(), "HTTP connections did not end in time");
        }
        self.tasks.shutdown().await;
    }
}

fn router(source: Arc<dyn Source>) -> Router {
    let probes_and_page = Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(dashboard::router())
        .merge(page::router())
        .with_state(Arc::clone(&source));
    let api = source.management().map_or_else(Router::new, api::router);
    finished(Router::new().merge(metrics::router(source)).merge(probes_and_page).merge(api))
}

/// Adds what every answer has.
fn finished(router: Router) -> Router {
    router
        .fallback(async || (StatusCode::NOT_FOUND, "not found\n"))
        .layer(middleware::map_response(with_security_headers))
}

/// What an answer may load, unless it says otherwise: nothing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
);

/// No page of another origin may frame, sniff, embed or cache what is answered here
/// (<https://owasp.org/www-project-secure-headers/>).
const SECURITY_HEADERS: [(header::HeaderName, HeaderValue); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        header::HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Adds to every answer over TLS for how long this host is to be asked that way only. It is never told without being
/// asked for: it holds for all ports of the host, those without TLS included, and outlives the setting.
fn strict(router: Router, strict: Option<Duration>) -> Router {
    let Some(strict) = strict else { return router };
    let value = HeaderValue::try_from(format!("max-age={}", strict.as_secs()));
    let value = value.unwrap_or(HeaderValue::from_static("max-age=0"));
    router.layer(middleware::map_response(move |mut response: Response| {
        response.headers_mut().insert(header::STRICT_TRANSPORT_SECURITY, value.clone());
        std::future::ready(response)
    }))
}

async fn with_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.extend(SECURITY_HEADERS);
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(POLICY);
    response
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "http_tls_tests.rs"]
mod tls_tests;
