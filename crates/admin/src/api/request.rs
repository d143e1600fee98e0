//! Processes a request: routing, login, body, handler and response.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderName, Method, StatusCode, Uri, header, request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use broker::Compatibility;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::Api;
use super::call::{Call, Reply};
use super::durable;
use super::error::ApiError;
use super::login::{RequiredTag, User};
use super::routes::{self, Action, Found, Size};
use crate::http::{ActiveRequests, OverTls};
use crate::pieces::PiecewiseBody;

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    /// `None` for a Unix socket.
    pub(crate) ip: Option<IpAddr>,
    /// Over the loopback interface or a Unix socket.
    pub(crate) is_local: bool,
}

/// The routes under `/api`. Requests need a [`Caller`] among their extensions.
pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new().route("/api", any(handle)).route("/api/{*path}", any(handle)).with_state(api)
}

async fn handle(State(api): State<Arc<Api>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let served = api.served();
    let found = routes::find(head.uri.path(), served);
    let allow = found.as_ref().map_or_else(|| NO_ROUTE.to_owned(), Found::allow);
    let answer = match answer(api, found, &allow, &head, body).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    };
    with_headers(answer, Some(allow).filter(|_| served.compatibility == Compatibility::V4))
}

/// Middleware for routes outside the API: lets a request pass if its user may see everything in the API.
pub(crate) async fn for_monitors(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let user = log_in(&api, &head, RequiredTag::Monitoring).await;
    let checked = match user {
        Ok(user) => user.check_asking(api.broker.as_deref(), RequiredTag::Monitoring, None).await,
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(error) => error.into_response(),
    }
}

async fn answer(
    api: Arc<Api>,
    found: Option<Found>,
    allow: &str,
    head: &request::Parts,
    body: Body,
) -> Result<Response, ApiError> {
    if head.method == Method::OPTIONS {
        return Ok(response(Reply::no_content().allowing(allow.to_owned()), None));
    }
    let Some(found) = found else {
        return Err(match head.method {
            Method::GET | Method::HEAD => ApiError::not_found(),
            // Without a broker, paths of RabbitMQ's are missing that do have such methods.
            _ if api.broker.is_none() => ApiError::not_found(),
            _ => ApiError::method_not_allowed(allow.to_owned()),
        });
    };
    let Some(action) = found.action(&head.method) else {
        return Err(ApiError::method_not_allowed(allow.to_owned()));
    };
    check_origin(head)?;
    let user = log_in(&api, head, action.who).await?;
    user.check_asking(api.broker.as_deref(), action.who, found.vhost()).await?;
    // From here on the connection of a logged-in user is not closed to make room for others.
    let work = head.extensions.get::<ActiveRequests>().filter(|_| action.who != RequiredTag::Everybody);
    let at_work = work.map(ActiveRequests::begin);
    let is_change = !matches!(head.method, Method::GET | Method::HEAD) && !found.route.path.starts_with(OWN);
    // Definitions are changed by one request at a time. Queues, exchanges, bindings and messages are not definitions here:
    // users without a tag change them, too.
    let is_definition = is_change && action.who.defines();
    // Requests that wait for their turn to change definitions have permits of their own.
    let permits = if is_definition { &api.large_definitions } else { &api.large_messages };
    let (body, _large) = read(head, action, body, permits).await?;
    let Found { route, names } = found;
    let reason = head.headers.get("x-reason").and_then(|reason| reason.to_str().ok()).map(str::to_owned);
    let client = WaitingClient::default();
    let is_abandoned = Arc::clone(&client.is_gone);
    let query = query(&head.uri);
    let call = Call { api: Arc::clone(&api), user, names, query, body, reason, is_abandoned };
    let (call, run) = (Arc::new(call), action.run);
    let is_safe = matches!(head.method, Method::GET | Method::HEAD);
    loop {
        let changing = match is_definition {
            true => Some(begin_changing(&api, CHANGE_TIMEOUT).await?),
            false => None,
        };
        // Not while it waits for its turn: the end of a move does not wait as long for the permits.
        let permit = match is_change {
            true => Some(api.process.begin_change().ok_or_else(|| ApiError::not_yet(MOVED))?),
            false => None,
        };
        let thread = thread(&api, &head.method, ANSWER_TIMEOUT).await?;
        let (answers, until_sent, of_thread) = (Arc::clone(&api.answers), at_work.clone(), permit.clone());
        let running = Arc::clone(&call);
        let outcome = tokio::task::spawn_blocking(move || {
            // It ends although nobody may wait for it any more.
            let _permit = of_thread;
            let outcome = run(&running).map(|mut reply| {
                // Counted before the permit is released and the next request may run.
                let body = reply.body.take().map(|body| answers.keep(body, until_sent));
                (reply, body)
            });
            drop(changing);
            drop(thread);
            outcome
        });
        let outcome = outcome.await.map_err(|error| {
            // Not the path itself, which may hold a password.
            tracing::error!(%error, path = route.path, "management API request failed");
            ApiError::internal()
        })?;
        // Without the answers of the user's auth backend nothing was changed, and a list lacks virtual hosts.
        if (is_safe || outcome.is_err())
            && let Some(question) = call.user.take_authz_request()
        {
            drop(permit);
            question.await;
            continue;
        }
        let (reply, body) = outcome?;
        durable::wait(&api, &reply).await?;
        drop(permit);
        return Ok(response(reply, body));
    }
}

/// Notifies the thread that produces a response when the request is dropped, because its connection has ended.
#[derive(Default)]
struct WaitingClient {
    is_gone: Arc<AtomicBool>,
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Waits until no other request changes definitions.
async fn begin_changing(api: &Api, patience: Duration) -> Result<OwnedMutexGuard<()>, ApiError> {
    let changing = tokio::time::timeout(patience, Arc::clone(&api.changes).lock_owned()).await;
    changing.map_err(|_| ApiError::busy("the definitions are being changed by others"))
}

/// Waits for a permit to run on a thread, and for room for the response.
async fn thread(api: &Api, method: &Method, patience: Duration) -> Result<OwnedSemaphorePermit, ApiError> {
    // Their responses have no body.
    let is_short = matches!(*method, Method::PUT | Method::DELETE);
    let deadline = Instant::now() + patience;
    loop {
        let permit = tokio::time::timeout_at(deadline, Arc::clone(&api.threads).acquire_owned()).await;
        let permit = permit.map_err(|_| ApiError::busy("too many requests are being answered"))?;
        let permit = permit.map_err(|_| ApiError::internal())?;
        if is_short || api.answers.have_capacity() {
            return Ok(permit);
        }
        // Do not hold a permit while waiting.
        drop(permit);
        let has_capacity = tokio::time::timeout_at(deadline, api.answers.wait_for_capacity()).await;
        has_capacity
            .map_err(|_| ApiError::busy("too many responses are waiting for their clients to read them"))?;
    }
}

async fn log_in(api: &Api, head: &request::Parts, who: RequiredTag) -> Result<User, ApiError> {
    let caller = caller(&head.headers, &head.extensions);
    match &api.broker {
        _ if who == RequiredTag::Everybody => Ok(User::operator()),
        Some(broker) => User::log_in(broker, &head.headers, caller).await,
        None if caller.is_local => Ok(User::operator()),
        None => Err(ApiError::remote()),
    }
}

fn caller(headers: &HeaderMap, extensions: &Extensions) -> Caller {
    let nobody = Caller { ip: None, is_local: false };
    let caller = extensions.get::<Caller>().copied().unwrap_or(nobody);
    // Rights of local callers only (logging in as guest, and everything where there are no users) extend
    // neither to foreign pages in a browser on this machine, nor to the clients of a proxy on it.
    let is_local = caller.is_local && names_this_machine(headers) && !is_passed_on(headers);
    Caller { is_local, ..caller }
}

/// Whether a request comes from this machine, and not through a proxy on it.
pub(crate) fn is_local(headers: &HeaderMap, extensions: &Extensions) -> bool {
    caller(headers, extensions).is_local
}

/// Whether the header Host is an IP address or localhost. Any other name may have been pointed at this machine
/// by a stranger, whose page in a local browser then makes the request (DNS rebinding).
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Whether a proxy states that it forwards the request (RFC 7239, Via of RFC 9110, and their unstandardised
/// predecessors).
fn is_passed_on(headers: &HeaderMap) -> bool {
    headers.keys().map(HeaderName::as_str).any(|name| {
        matches!(name, "forwarded" | "via" | "x-real-ip" | "x-client-ip") || name.starts_with("x-forwarded")
    })
}

/// Why a request is not taken for one of this machine, wherever it comes from: the end of a sentence about that.
pub(super) fn foreign_detail(headers: &HeaderMap) -> Option<String> {
    if !names_this_machine(headers) {
        let host = headers.get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()));
        return Some(format!("; the request's Host is '{}'", host.unwrap_or_default()));
    }
    is_passed_on(headers).then(|| "; a proxy has passed the request on".to_owned())
}

/// Refuses changes requested by pages of another origin, which the browser names: the browser may hold the
/// password.
fn check_origin(head: &request::Parts) -> Result<(), ApiError> {
    if matches!(head.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let Some(origin) = head.headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // A page loaded without TLS may have been altered on the way. If this listener has no TLS, a proxy in front
    // of it may.
    let is_over_tls = head.extensions.get::<OverTls>().is_some();
    match (origin, host) {
        (Some((scheme, _)), _) if is_over_tls && scheme != "https" => Err(ApiError::foreign()),
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(ApiError::foreign()),
    }
}

/// Reads the body within its limits of size and time, if the route takes one. A large one first waits for a
/// permit.
async fn read<'a>(
    head: &request::Parts,
    action: &Action,
    body: Body,
    permits: &'a Semaphore,
) -> Result<(Bytes, Option<SemaphorePermit<'a>>), ApiError> {
    let most = match action.size {
        Size::Nothing => return Ok((Bytes::new(), None)),
        Size::Usual => USUAL_BODY,
        Size::Large => LARGE_BODY,
    };
    let announced = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let announced = announced.and_then(|length| length.parse::<usize>().ok());
    if announced.is_some_and(|announced| announced > most) {
        return Err(ApiError::too_large());
    }
    let permit = match action.size == Size::Large && announced.is_none_or(|announced| announced > USUAL_BODY)
    {
        true => Some(permit_for_large(permits, LARGE_BODY_TIMEOUT).await?),
        false => None,
    };
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, most).collect()).await {
        Err(_) => Err(ApiError::too_slow()),
        Ok(Ok(collected)) => Ok((collected.to_bytes(), permit)),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large()),
        Ok(Err(_)) => Err(ApiError::bad_request("the request body is incomplete")),
    }
}

/// Waits until a large body may be in memory.
async fn permit_for_large(permits: &Semaphore, patience: Duration) -> Result<SemaphorePermit<'_>, ApiError> {
    let permit = tokio::time::timeout(patience, permits.acquire()).await;
    permit
        .map_err(|_| ApiError::busy("too many large requests are being read"))?
        .map_err(|_| ApiError::internal())
}

/// The query as pairs, form-decoded.
fn query(uri: &Uri) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Builds the HTTP response from a reply and the body that was taken out of it.
fn response(reply: Reply, body: Option<PiecewiseBody>) -> Response {
    let mut response = match body {
        None => reply.status.into_response(),
        Some(body) => {
            (reply.status, [(header::CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [(header::LOCATION, reply.location), (header::ALLOW, reply.allow)] {
        if let Some(value) = value.and_then(|value| value.parse().ok()) {
            headers.insert(name, value);
        }
    }
    response
}

/// Completes a response; `allow` is the methods of the path if all responses are to tell them.
fn with_headers(mut response: Response, allow: Option<String>) -> Response {
    if let Some(allow) = allow.and_then(|allow| allow.parse().ok()) {
        response.headers_mut().entry(header::ALLOW).or_insert(allow);
    }
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        // As in RabbitMQ, without a body.
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}

/// The beginning of the paths whose methods change no definitions and no messages of a broker.
const OWN: &str = "leveret/";

/// Why a change is refused at the end of a move.
const MOVED: &str = "everything moves to another broker; try again in a moment";

/// The methods of a path that does not exist, as RabbitMQ lists them.
const NO_ROUTE: &str = "HEAD, GET, OPTIONS";

/// Maximum bytes of a usual body: a definition with a long list of arguments.
const USUAL_BODY: usize = 1 << 20;

/// Maximum bytes of a large body: the definitions of some 300,000 queues, or a message of 16 MiB in base64.
const LARGE_BODY: usize = 64 << 20;

/// Time for a body to arrive: 64 MiB at 18 Mbit/s.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time to wait until a large body may be read: those before it have to arrive, and an import has its turn to wait for.
const LARGE_BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time to wait for a permit, and for room for a response: requests take moments, and clients read their responses within
/// moments, or have stalled.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to wait for changes of definitions by others: an import of a large file takes many seconds, and who waits holds no
/// permit.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
