//! Users authenticated and authorized by an HTTP service, as with RabbitMQ's plugin rabbitmq_auth_backend_http.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use broker::{
    AuthzBackend, AuthzDecision, AuthzFuture, AuthzRequest, AuthzSubject, AuthzTarget, GUEST, LoginAttempt,
    LoginRefused,
};
use hyper::Method;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use transport::tls::{ClientTls, ClientTlsConfig};

use crate::cache::{AnswerCache, AnswerKey, AskedAt, CacheSettings};
use crate::error::{HttpAuthBackendError, ServiceError};
use crate::form::Form;
use crate::service::{ServiceClient, ServiceTimes, load_tls};
use crate::url::ServiceUrl;

/// The name of this auth backend in settings and logs.
pub(crate) const NAME: &str = "http";

/// The name with a cache.
pub(crate) const CACHED_NAME: &str = "cache:http";

/// RabbitMQ's module name, which refusals contain.
const MODULE: &str = "rabbit_auth_backend_http";

/// The most bytes of an answer: `allow` with all the tags that a user can have.
const MAX_ANSWER: usize = 4096;

/// The most login requests in progress at once, so that a flood of them overwhelms neither the service nor the requests of
/// users who are logged in.
const MAX_LOGINS: usize = 32;

/// The most authorization requests in progress at once.
const MAX_QUESTIONS: usize = 64;

/// The most tags of a user, and the most bytes of one.
const MAX_TAGS: usize = 64;
const MAX_TAG: usize = 255;

/// Bytes of the longest name of a user or virtual host. Longer ones are refused without a request: a service's complaint
/// about the request's length would not be an answer.
const MAX_NAME: usize = 255;

/// Interval between log messages about unanswered authorization requests: there may be thousands a second.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How a request is encoded (`auth_http.http_method`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpAuthBackendMethod {
    /// In the query of the URL.
    Get,
    /// As a form in the body, so that passwords do not appear in the service's logs.
    Post,
}

/// The URLs of a service, and how to query it.
#[derive(Debug, Clone)]
pub struct HttpAuthBackendSettings {
    /// `auth_http.user_path`: whether a user may log in.
    pub user: ServiceUrl,
    /// `auth_http.vhost_path`: whether the user may open a virtual host.
    pub vhost: ServiceUrl,
    /// `auth_http.resource_path`: whether the user may use a queue or an exchange.
    pub resource: ServiceUrl,
    /// `auth_http.topic_path`: whether the user may use a routing key of a topic exchange.
    pub topic: ServiceUrl,
    /// `auth_http.http_method`.
    pub method: HttpAuthBackendMethod,
    /// The certificates accepted from an `https` service.
    pub tls: ClientTlsConfig,
    /// Timeouts for connecting and for whole requests.
    pub times: ServiceTimes,
}

/// A service that is queried over HTTP about logins, and about each operation of the users that it has accepted.
#[derive(Clone)]
pub struct HttpAuthBackend {
    service: Arc<HttpService>,
    cache: Option<Arc<AnswerCache>>,
}

struct HttpService {
    user: ServiceClient,
    vhost: ServiceClient,
    resource: ServiceClient,
    topic: ServiceClient,
    method: Method,
    patience: Duration,
    logins: Semaphore,
    questions: Semaphore,
    /// Number of times that all answers were invalidated.
    generation: AtomicU32,
    complained: Mutex<Option<Instant>>,
}

/// The service's answer.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// `allow`, with the tags that follow it.
    Allow(Vec<String>),
    /// `deny`, with the reason that follows it.
    Deny(Option<String>),
}

impl HttpAuthBackend {
    /// Sends no request yet: the service may start after this server.
    ///
    /// # Errors
    /// The file of certificates cannot be used.
    pub fn new(settings: HttpAuthBackendSettings) -> Result<Self, ServiceError> {
        let HttpAuthBackendSettings { user, vhost, resource, topic, method, tls, times } = settings;
        let tls = load_tls(tls, &[&user, &vhost, &resource, &topic])?;
        let client = |url| {
            let client = ServiceClient::with_tls(url, tls.clone(), times);
            // As in RabbitMQ.
            client.reusing_connections().accepting(&[200, 201])
        };
        let service = HttpService {
            user: client(user),
            vhost: client(vhost),
            resource: client(resource),
            topic: client(topic),
            method: if method == HttpAuthBackendMethod::Post { Method::POST } else { Method::GET },
            patience: times.request,
            logins: Semaphore::new(MAX_LOGINS),
            questions: Semaphore::new(MAX_QUESTIONS),
            generation: AtomicU32::new(0),
            complained: Mutex::default(),
        };
        Ok(Self { service: Arc::new(service), cache: None })
    }

    /// The same service with a cache; `None` if the system provides no random bytes.
    #[must_use]
    pub fn cached(&self, settings: CacheSettings) -> Option<Self> {
        let cache = Some(Arc::new(AnswerCache::new(settings)?));
        Some(Self { service: Arc::clone(&self.service), cache })
    }

    /// The TLS of all connections to the service, whose files can be reloaded; `None` without an `https` URL.
    pub fn tls(&self) -> Option<&Arc<ClientTls>> {
        let HttpService { user, vhost, resource, topic, .. } = &*self.service;
        [user, vhost, resource, topic].into_iter().find_map(ServiceClient::tls)
    }

    /// Whether TLS protects passwords and answers on all URLs.
    pub fn is_over_tls(&self) -> bool {
        let HttpService { user, vhost, resource, topic, .. } = &*self.service;
        [user, vhost, resource, topic].iter().all(|client| client.is_over_tls())
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.cache.is_some() { CACHED_NAME } else { NAME }
    }

    /// Invalidates all answers, including those that sessions have cached.
    pub(crate) fn forget(&self) {
        self.service.generation.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    /// Authenticates a login; returns the user's tags.
    ///
    /// # Errors
    /// The service refuses it, or does not answer.
    pub(crate) async fn check_login(&self, attempt: &LoginAttempt) -> Result<Vec<String>, LoginRefused> {
        let backend = self.name();
        let refused = |why: &str| LoginRefused::Elsewhere { backend, why: why.into() };
        if attempt.user.is_empty() {
            return Err(refused("no user name"));
        }
        let is_too_long = |name: &str| name.len() > MAX_NAME;
        if is_too_long(&attempt.user) {
            return Err(refused("the user name is too long"));
        }
        if attempt.context.iter().any(|(field, value)| *field == "vhost" && is_too_long(value)) {
            return Err(refused("the name of the virtual host is too long"));
        }
        let tags = self.ask_login(attempt).await.map_err(|error| match error {
            HttpAuthBackendError::Denied(why) => refused(&why),
            error => LoginRefused::Unanswered { backend, why: error.to_string().into() },
        })?;
        // As with RabbitMQ's default `loopback_users`, whichever backend accepts the user.
        if attempt.user == GUEST && !attempt.is_loopback {
            return Err(LoginRefused::LoopbackOnly);
        }
        Ok(tags)
    }

    async fn ask_login(&self, attempt: &LoginAttempt) -> Result<Vec<String>, HttpAuthBackendError> {
        let mut form = Form::new().with("username", &attempt.user).with("password", &attempt.secret);
        for (name, value) in &attempt.context {
            form = form.with(name, value);
        }
        let form = form.into_text();
        let cached = self.cache_key("user", &form);
        let asked_at = AskedAt { generation: self.generation(), now: Instant::now() };
        if let Some((cache, key)) = cached
            && let Some(outcome) = cache.login(key, asked_at)
        {
            return outcome.map_err(|()| HttpAuthBackendError::denied(None));
        }
        let answer = self.service.ask(&self.service.user, &self.service.logins, form).await?;
        let outcome = match answer {
            Answer::Allow(tags) => Ok(tags),
            Answer::Deny(why) => Err(HttpAuthBackendError::denied(why)),
        };
        if let Some((cache, key)) = cached {
            let answered_at = AskedAt { now: Instant::now(), ..asked_at };
            cache.store_login(key, outcome.as_deref().map_err(|_| ()), answered_at);
        }
        outcome
    }

    async fn decide(&self, question: &AuthzRequest) -> AuthzDecision {
        let (path, client) = match question.about {
            AuthzTarget::VirtualHost { .. } => ("vhost", &self.service.vhost),
            AuthzTarget::Resource { .. } => ("resource", &self.service.resource),
            AuthzTarget::Topic { .. } => ("topic", &self.service.topic),
        };
        let form = form_of(question);
        let cached = self.cache_key(path, &form);
        let asked_at = AskedAt { generation: self.generation(), now: Instant::now() };
        if let Some((cache, key)) = cached
            && let Some(is_allowed) = cache.verdict(key, asked_at)
        {
            return if is_allowed { AuthzDecision::Allowed } else { AuthzDecision::Refused };
        }
        let is_allowed = match self.service.ask(client, &self.service.questions, form).await {
            Ok(Answer::Allow(tags)) if tags.is_empty() => true,
            Ok(Answer::Allow(_)) => {
                return self.service.log_unreachable(path, &HttpAuthBackendError::NoAnswer);
            }
            Ok(Answer::Deny(why)) => {
                if let Some(why) = why {
                    tracing::info!(user = &*question.user.name, path, error = why, "http: access denied");
                }
                false
            }
            Err(error) => return self.service.log_unreachable(path, &error),
        };
        if let Some((cache, key)) = cached {
            cache.store_verdict(key, is_allowed, AskedAt { now: Instant::now(), ..asked_at });
        }
        if is_allowed { AuthzDecision::Allowed } else { AuthzDecision::Refused }
    }

    fn cache_key(&self, path: &str, form: &str) -> Option<(&AnswerCache, AnswerKey)> {
        self.cache.as_ref().map(|cache| (&**cache, cache.key(path, form)))
    }
}

impl AuthzBackend for HttpAuthBackend {
    fn module(&self) -> &'static str {
        MODULE
    }

    fn ask(&self, question: AuthzRequest) -> AuthzFuture {
        let this = self.clone();
        Box::pin(async move { this.decide(&question).await })
    }

    fn generation(&self) -> u32 {
        self.service.generation.load(Ordering::Relaxed)
    }
}

impl HttpService {
    async fn ask(
        &self,
        client: &ServiceClient,
        permits: &Semaphore,
        form: String,
    ) -> Result<Answer, HttpAuthBackendError> {
        // One time limit for the permit and the request together.
        let deadline = tokio::time::Instant::now() + self.patience;
        let permit = tokio::time::timeout_at(deadline, permits.acquire()).await;
        let _permit =
            permit.map_err(|_| HttpAuthBackendError::Busy)?.map_err(|_| HttpAuthBackendError::Busy)?;
        let answer = client.submit(self.method.clone(), form, MAX_ANSWER);
        let body = tokio::time::timeout_at(deadline, answer).await;
        let body = body.unwrap_or(Err(ServiceError::TimedOut(self.patience)))?;
        Answer::parse(&body).ok_or(HttpAuthBackendError::NoAnswer)
    }

    /// Logs, at most once per interval, that the service does not answer.
    fn log_unreachable(&self, path: &str, error: &HttpAuthBackendError) -> AuthzDecision {
        let now = Instant::now();
        let mut complained = self.complained.lock();
        if complained.is_none_or(|last| now.saturating_duration_since(last) >= LOG_INTERVAL) {
            *complained = Some(now);
            tracing::error!(path, %error, "http: auth backend not responding: operation refused (auth_backends)");
        }
        AuthzDecision::Unanswered
    }
}

impl Answer {
    /// Parses the body of a response. Like RabbitMQ, ignores the case of the word, and lowercases tags.
    fn parse(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if word.eq_ignore_ascii_case("deny") {
            return Some(Self::Deny((!rest.is_empty()).then(|| rest.trim().escape_debug().to_string())));
        }
        if !word.eq_ignore_ascii_case("allow") {
            return None;
        }
        let tags: Vec<_> = rest.split_whitespace().map(str::to_lowercase).collect();
        let is_sound = tags.len() <= MAX_TAGS && tags.iter().all(|tag| tag.len() <= MAX_TAG);
        is_sound.then_some(Self::Allow(tags))
    }
}

/// The fields that RabbitMQ 4 sends.
fn form_of(question: &AuthzRequest) -> String {
    let AuthzSubject { name, tags, from, client_id } = &*question.user;
    let form = Form::new().with("username", &**name);
    let tags = tags.join(" ");
    let with_client = |form: Form, field: &str| match client_id {
        Some(id) => form.with(field, &**id),
        None => form,
    };
    let form = match &question.about {
        AuthzTarget::VirtualHost { vhost } => {
            let ip = from.map_or_else(|| "unknown".to_owned(), |ip| ip.to_canonical().to_string());
            with_client(form.with("vhost", &**vhost).with("ip", ip).with("tags", tags), "client_id")
        }
        AuthzTarget::Resource { vhost, kind, name, permission } => {
            let form = form.with("vhost", &**vhost).with("resource", kind).with("name", &**name);
            with_client(form.with("permission", permission).with("tags", tags), "client_id")
        }
        AuthzTarget::Topic { vhost, exchange, permission, routing_key } => {
            let form = form.with("vhost", &**vhost).with("resource", "topic").with("name", &**exchange);
            let form =
                form.with("permission", permission).with("tags", tags).with("routing_key", &**routing_key);
            let form = form.with("variable_map.username", &**name).with("variable_map.vhost", &**vhost);
            with_client(form, "variable_map.client_id")
        }
    };
    form.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(tags: &[&str]) -> Option<Answer> {
        Some(Answer::Allow(tags.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn answers_are_read_as_rabbitmq_reads_them() {
        assert_eq!(Answer::parse(b"allow"), allow(&[]));
        assert_eq!(Answer::parse(b" ALLOW \r\n"), allow(&[]));
        assert_eq!(
            Answer::parse(b"allow Administrator  management"),
            allow(&["administrator", "management"])
        );
        assert_eq!(Answer::parse(b"deny"), Some(Answer::Deny(None)));
        assert_eq!(Answer::parse(b"Deny not\x01today\n"), Some(Answer::Deny(Some("not\\u{1}today".into()))));
    }

    #[test]
    fn anything_else_is_no_answer() {
        let many = format!("allow {}", "t ".repeat(MAX_TAGS + 1));
        let long = format!("allow {}", "t".repeat(MAX_TAG + 1));
        for text in ["", "yes", "allowed", "denyx", "{\"allow\": true}", &many, &long] {
            assert_eq!(Answer::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Answer::parse(b"allow \xff"), None);
    }

    #[test]
    fn questions_have_rabbitmqs_fields() {
        let user = |client_id: Option<&str>| {
            let from = "::ffff:10.0.0.1".parse().ok();
            let tags = vec!["a".into(), "b".into()];
            Arc::new(AuthzSubject { name: "u".into(), tags, from, client_id: client_id.map(Into::into) })
        };
        let ask = |about, client| form_of(&AuthzRequest { user: user(client), about });
        let vhost: Arc<str> = "/".into();
        let open = AuthzTarget::VirtualHost { vhost: Arc::clone(&vhost) };
        assert_eq!(ask(open, None), "username=u&vhost=%2F&ip=10.0.0.1&tags=a+b");
        let (name, permission) = ("q 1".into(), "configure");
        let resource = AuthzTarget::Resource { vhost: Arc::clone(&vhost), kind: "queue", name, permission };
        assert_eq!(
            ask(resource, Some("c")),
            "username=u&vhost=%2F&resource=queue&name=q+1&permission=configure&tags=a+b&client_id=c"
        );
        let (exchange, routing_key) = ("t".into(), "a.b".into());
        let topic = AuthzTarget::Topic { vhost, exchange, permission: "write", routing_key };
        assert_eq!(
            ask(topic, Some("c")),
            "username=u&vhost=%2F&resource=topic&name=t&permission=write&tags=a+b&routing_key=a.b&variable_map.username=u&\
             variable_map.vhost=%2F&variable_map.client_id=c"
        );
    }
}
