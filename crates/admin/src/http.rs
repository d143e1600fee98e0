//! The HTTP server: accepts, limits and ends connections, and routes each request to its handler.
//!
//! A stranger who can reach the address can neither shut others out nor make the server's memory grow.
//! Connections are limited, and at the limit the oldest one that is not at work is closed to make room
//! (`connections`). A request counts as work from its login on (`work`), and no body is read before. A
//! request's head is limited in size and time, and a response that the client does not read is abandoned.
//! Health and metrics are served even while all connections are at work.
//!
//! Every request gets a response. If the unread rest of its body blocks the next request, the response says
//! that the connection closes (`service`), and the client gets time to read it (`linger`).

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::Response;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

use self::connections::OpenConnections;
use self::linger::{Lingering, RequestIncomplete};
pub(crate) use self::service::OverTls;
use self::service::Service;
pub(crate) use self::work::{ActiveRequest, ActiveRequests};
use crate::api;
use crate::listener::{AcceptedStream, AdminListener};
use crate::write_timeout::WriteTimeoutStream;
use crate::{Source, dashboard, health, metrics, page};

mod connections;
mod linger;
mod service;
mod work;

/// Serves HTTP until `shutdown` completes, then finishes the requests in progress within a few seconds.
///
/// Dropping the future closes the listener and every connection at once.
pub async fn serve(
    listener: impl Into<AdminListener>,
    source: Arc<dyn Source>,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(LIMITS, listener.into(), router(source), shutdown).await;
}

/// Serves only the metrics, with the same limits and shutdown as `serve`.
pub async fn serve_metrics(
    listener: impl Into<AdminListener>,
    source: Arc<dyn Source>,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(LIMITS, listener.into(), finished(metrics::router(source)), shutdown).await;
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Maximum number of open connections.
    connections: usize,
    /// Additional connections for health and metrics while all of the above are at work.
    reserve: usize,
    /// From the moment a request may start, which includes the idle time between requests, to the end of its
    /// head. The TLS handshake has the same time before that.
    head: Duration,
    /// Time without the client accepting any byte of a response.
    stall: Duration,
    /// From the end of the last response until the client closes the connection.
    linger: Duration,
    /// From the shutdown request to the end of the last connection.
    drain: Duration,
}

const LIMITS: Limits = Limits {
    // A few scrapers, probes and browsers; each connection may hold a few dozen KiB.
    connections: 256,
    // Each answers one probe and closes.
    reserve: 32,
    // Ample for a head. Scrapers come less often than this and reconnect each time, at a negligible cost.
    head: Duration::from_secs(10),
    // Even over a very poor network a scraper reads something in this time.
    stall: Duration::from_secs(10),
    // A few round trips around the world, for bytes the client sent before the response reached it.
    linger: Duration::from_secs(1),
    // Responses take milliseconds; this is for clients that read them slowly.
    drain: Duration::from_secs(2),
};

/// The largest head of a request, in bytes: room for a browser's cookies of other services on the same host.
const MAX_HEAD: usize = 16 * 1024;

/// The pause after a failed accept. The usual cause is a lack of file descriptors, where an immediate retry
/// would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn serve_within(
    limits: Limits,
    listener: AdminListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let router = TowerToHyperService::new(strict(router, listener.strict()));
    let mut connections = OpenConnections::new(limits.connections, limits.reserve);
    // Nothing is ever sent: dropping the sender is the signal.
    let (open, draining) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            arrived = accept(&listener) => {
                let work = ActiveRequests::default();
                let (caller, is_over_tls) = (arrived.caller(), arrived.is_over_tls());
                connections.admit(work.clone(), caller.ip, |admitted| {
                    let more_comes = RequestIncomplete::default();
                    let inner = router.clone();
                    let service = Service { inner, caller, is_over_tls, work, admitted, more_comes };
                    serve_connection(limits, arrived, service, draining.clone())
                });
            }
        }
    }
    drop((listener, open));
    connections.finish(limits.drain).await;
}

async fn accept(listener: &AdminListener) -> AcceptedStream {
    loop {
        match listener.accept().await {
            Ok(arrived) => return arrived,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the error concerns only this connection, whose client gave up before it was accepted; the next may
/// be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, InvalidInput, NotConnected};
    // setsockopt(2) fails with EINVAL on a connection that has been reset in the meantime.
    matches!(error.kind(), ConnectionAborted | ConnectionReset | NotConnected | InvalidInput)
}

async fn serve_connection(
    limits: Limits,
    arrived: AcceptedStream,
    service: Service,
    mut draining: watch::Receiver<()>,
) {
    let stream = tokio::select! {
        stream = tokio::time::timeout(limits.head, arrived.stream()) => stream,
        _ = draining.changed() => return,
    };
    let stream = match stream {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "HTTP connection ended"),
        Err(_) => return tracing::debug!("HTTP connection ended: TLS handshake timed out"),
    };
    let stream = WriteTimeoutStream::new(stream, limits.stall);
    let stream = TokioIo::new(Lingering::new(stream, limits.linger, service.more_comes.clone()));
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

fn router(source: Arc<dyn Source>) -> Router {
    let probes_and_page = Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(dashboard::router())
        .merge(page::router())
        .with_state(Arc::clone(&source));
    let ours = match source.management() {
        Some(api) => metrics::router_beside(Arc::clone(&api), source).merge(api::router(api)),
        None => metrics::router(source),
    };
    finished(ours.merge(probes_and_page))
}

/// Adds the parts that all responses share: the fallback, the Host check and the security headers.
fn finished(router: Router) -> Router {
    router
        .fallback(async || (StatusCode::NOT_FOUND, "not found\n"))
        .layer(middleware::from_fn(service::check_host))
        .layer(middleware::map_response(with_security_headers))
}

/// The default Content-Security-Policy: a response may load nothing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
);

/// No page of another origin may frame, embed or MIME-sniff a response from here, and none may be cached
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

/// Adds Strict-Transport-Security to every response, if configured. There is no default, since the header
/// applies to all ports of the host, including those without TLS, and outlives the setting.
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
