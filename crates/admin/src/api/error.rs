//! Error responses in RabbitMQ's form: `{"error": …, "reason": …}`.

use amqp::ReplyCode;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use broker::{BrokerError, Compatibility, DefinitionsError};
use serde_json::{Value, json};

/// The reason why a request is refused.
#[derive(Debug, PartialEq)]
pub(super) struct ApiError {
    status: StatusCode,
    error: &'static str,
    reason: Value,
    /// Send a challenge for other credentials (WWW-Authenticate).
    challenge: bool,
    /// The methods of the path, for the header Allow.
    allow: Option<String>,
    /// Sent instead of `error` and `reason`.
    body: Option<Value>,
    /// Tell the client when to try again (Retry-After).
    is_passing: bool,
}

impl ApiError {
    fn new(status: StatusCode, error: &'static str, reason: impl Into<Value>) -> Self {
        Self {
            status,
            error,
            reason: reason.into(),
            challenge: false,
            allow: None,
            body: None,
            is_passing: false,
        }
    }

    /// 401 for a request without valid credentials.
    pub(super) fn login_failed(followed: Compatibility) -> Self {
        let reason = match followed {
            Compatibility::V3_10 => "Login failed",
            Compatibility::V4 => "Not_Authorized",
        };
        let refused = Self::new(StatusCode::UNAUTHORIZED, "not_authorized", reason);
        Self { challenge: true, ..refused }
    }

    /// 401 for a user without the necessary rights.
    pub(super) fn not_authorised(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// 400 for a request that is not valid.
    pub(super) fn bad_request(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// 429 for a client with too many failed logins.
    pub(super) fn too_many_attempts() -> Self {
        let reason = "Too many failed logins, try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", reason)
    }

    /// 403 for a page of another origin.
    pub(super) fn foreign() -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "requests from other origins are not accepted")
    }

    /// 403 for a client that is not on this machine.
    pub(super) fn remote() -> Self {
        let reason = "in front of an upstream the API is served on the loopback interface and Unix sockets only, \
            and not through a proxy";
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// 503 with the given body.
    pub(super) fn unhealthy(body: Value) -> Self {
        let refused = Self::new(StatusCode::SERVICE_UNAVAILABLE, "", Value::Null);
        Self { body: Some(body), ..refused }
    }

    /// 503 for a request that cannot be served at present.
    pub(super) fn not_yet(reason: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
    }

    /// The same for one that has waited long enough, and will be served once others have been.
    pub(super) fn busy(reason: &'static str) -> Self {
        Self { is_passing: true, ..Self::not_yet(reason) }
    }

    /// 400 with the given `error` text.
    pub(super) fn invalid(error: &'static str, reason: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, reason)
    }

    /// 404 for a path or an object that does not exist.
    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", "Not Found")
    }

    /// 404 with a reason.
    pub(super) fn missing(reason: impl Into<Value>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// 409 for a request that is about another object than the one that is there.
    pub(super) fn conflict(reason: String) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", reason)
    }

    /// 412 for an object whose state forbids the change.
    pub(super) fn precondition_failed(reason: String) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", reason)
    }

    /// 405 for a method that the path does not have.
    pub(super) fn method_not_allowed(allow: String) -> Self {
        let refused = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method Not Allowed");
        Self { allow: Some(allow), ..refused }
    }

    /// 408 for a body that does not arrive in time.
    pub(super) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the request body did not arrive in time")
    }

    /// 413 for a body over the limit of its route.
    pub(super) fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "the request body is too large")
    }

    /// 500 for a failure whose cause is logged.
    pub(super) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "see the log")
    }

    /// Error of an operation that AMQP clients have too: the reason starts with the name of the reply code.
    pub(super) fn of_operation(error: &BrokerError) -> Self {
        let code = error.reply_code();
        let reason = format!("{} - {error}", code.name());
        match code {
            ReplyCode::NotFound => Self::missing(reason),
            ReplyCode::AccessRefused => Self::not_authorised(reason),
            _ => Self::bad_request(format!("{} {reason}", code.code())),
        }
    }

    /// A message that was not accepted: always 400, since RabbitMQ does not distinguish the causes.
    pub(super) fn of_publish(error: &BrokerError) -> Self {
        let code = error.reply_code();
        Self::bad_request(format!("{} {} - {error}", code.code(), code.name()))
    }

    pub(super) fn key_missing(keys: &[&str]) -> Self {
        let keys: Vec<_> = keys.iter().map(|key| format!("{{key_missing,{key}}}")).collect();
        Self::bad_request(format!("[{}]", keys.join(",")))
    }
}

/// Error of a definition: RabbitMQ leaves out the names of reply codes here.
impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> Self {
        match error.reply_code() {
            ReplyCode::NotFound => Self::missing(error.to_string()),
            ReplyCode::AccessRefused => Self::not_authorised("Access refused."),
            _ => Self::bad_request(error.to_string()),
        }
    }
}

impl From<DefinitionsError> for ApiError {
    fn from(error: DefinitionsError) -> Self {
        Self::bad_request(format!("Validation failed\n\n{error}\n"))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.body.unwrap_or_else(|| json!({"error": self.error, "reason": self.reason}));
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, body.to_string()).into_response();
        if self.challenge {
            let realm = HeaderValue::from_static("Basic realm=\"Leveret Management\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
        }
        if self.is_passing {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        response
    }
}

/// Seconds after which a client whose request has not been served may ask again.
const RETRY_AFTER: &str = "5";
