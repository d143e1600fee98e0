//! Passes a connection's requests to the router, and handles the unread rest of their bodies afterwards.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request as RouterRequest;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;

use super::connections::Admitted;
use super::linger::RequestIncomplete;
use super::work::ActiveRequests;
use crate::api::Caller;

/// The router as seen by one connection: adds the connection's details to each request.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) inner: TowerToHyperService<Router>,
    pub(super) caller: Caller,
    pub(super) is_over_tls: bool,
    pub(super) work: ActiveRequests,
    pub(super) admitted: Admitted,
    /// Set if the client sends bytes that no handler reads.
    pub(super) more_comes: RequestIncomplete,
}

/// Request extension that marks a request received over TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if self.admitted == Admitted::Probes && !is_probe(request.uri().path()) {
            self.more_comes.set();
            return Box::pin(std::future::ready(Ok(closing(busy()))));
        }
        let mut request = request.map(|body| SharedBody(Arc::new(Mutex::new(body))));
        request.extensions_mut().insert(self.caller);
        request.extensions_mut().insert(self.work.clone());
        if self.is_over_tls {
            request.extensions_mut().insert(OverTls);
        }
        let body = request.body().clone();
        let is_asked_for = request.headers().contains_key(header::EXPECT);
        // Connections of the reserve must be free again soon.
        let is_last = self.admitted == Admitted::Probes;
        let (answer, more_comes) = (self.inner.call(request), self.more_comes.clone());
        Box::pin(async move {
            let answer = answer.await?;
            let has_ended = body.has_ended(is_asked_for).await;
            if !has_ended {
                more_comes.set();
            }
            Ok(if is_last || !has_ended { closing(answer) } else { answer })
        })
    }
}

/// Whether the reserve serves this path.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

fn busy() -> Response {
    let text = "too many connections: only /healthz, /readyz and /metrics are served\n";
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Announces that the connection closes after this response.
fn closing(mut answer: Response) -> Response {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Refuses requests with several Host headers or none: a proxy in front of this server may have acted on
/// another host (RFC 9112, 3.2).
pub(super) async fn check_host(request: RouterRequest, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    match (hosts, request.version()) {
        (1, _) | (0, Version::HTTP_10 | Version::HTTP_09) => next.run(request).await,
        _ => closing((StatusCode::BAD_REQUEST, "there has to be one header Host\n").into_response()),
    }
}

/// A body whose rest can still be read once its request has been answered.
#[derive(Clone)]
struct SharedBody(Arc<Mutex<Incoming>>);

impl Body for SharedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}

impl SharedBody {
    /// Reads and discards the rest of the body if it is short and arrives soon, since the next request follows
    /// it. Returns whether the body has ended; otherwise the connection cannot be reused, and the response must
    /// say so. A client that sent `Expect` (`is_asked_for`) has its answer in the response and may not send the
    /// body at all.
    async fn has_ended(mut self, is_asked_for: bool) -> bool {
        if self.is_end_stream() {
            return true;
        }
        if is_asked_for || self.size_hint().lower() > MAX_UNREAD_BODY {
            return false;
        }
        tokio::time::timeout(REMAINING_BYTES_TIMEOUT, self.drain()).await == Ok(true)
    }

    async fn drain(&mut self) -> bool {
        let mut left = MAX_UNREAD_BODY;
        while let Some(frame) = self.frame().await {
            let length = frame.map_or(u64::MAX, |frame| frame.data_ref().map_or(0, |data| data.len() as u64));
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return false,
            }
        }
        true
    }
}

/// Number of unwanted bytes of a body up to which reading them costs less than another connection.
const MAX_UNREAD_BODY: u64 = 64 << 10;

/// Time for those bytes to arrive. A client that sends a request in several pieces sends them in quick
/// succession.
const REMAINING_BYTES_TIMEOUT: Duration = Duration::from_secs(1);
