//! The request that a route's handler receives, and the reply it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amqp::frame::max_body_payload;
use amqp::{FieldTable, RawTable};
use axum::http::StatusCode;
use broker::{
    AuthorisedSession, Broker, Compatibility, DiskPoint, Lsn, Section, Store, Ticket, Timestamp, VirtualHost,
    arguments_of,
};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::Api;
use super::error::ApiError;
use super::login::User;
use super::parts;
use crate::pieces::Pieces;

/// A request whose user is known and has the tag that the route requires.
pub(super) struct Call {
    pub(super) api: Arc<Api>,
    pub(super) user: User,
    /// The variable parts of the path by their names, decoded.
    pub(super) names: Vec<(&'static str, String)>,
    /// The query, decoded, in order.
    pub(super) query: Vec<(String, String)>,
    pub(super) body: Bytes,
    /// Value of the header X-Reason.
    pub(super) reason: Option<String>,
    /// Set once the client has gone.
    pub(super) is_abandoned: Arc<AtomicBool>,
}

/// The outcome of a request.
pub(super) type ApiAnswer = Result<Reply, ApiError>;

/// The response to a request that succeeded.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// The body as encoded JSON, if there is one.
    pub(super) body: Option<Pieces>,
    pub(super) location: Option<String>,
    /// The methods of the path, in a response to OPTIONS.
    pub(super) allow: Option<String>,
    /// The reply is sent once this is on disk.
    pub(super) until: DiskPoint,
    /// The store that writes it; `None` for the embedded broker's.
    pub(super) store: Option<Arc<Store>>,
}

impl Reply {
    /// 200 with this body.
    pub(super) fn json(body: impl Into<Value>) -> Self {
        Self::text(body.into().to_string().into_bytes())
    }

    /// 200 with a body that is encoded JSON already.
    pub(super) fn text(body: impl Into<Pieces>) -> Self {
        Self {
            status: StatusCode::OK,
            body: Some(body.into()),
            location: None,
            allow: None,
            until: DiskPoint::default(),
            store: None,
        }
    }

    pub(super) fn no_content() -> Self {
        Self {
            status: StatusCode::NO_CONTENT,
            body: None,
            location: None,
            allow: None,
            until: DiskPoint::default(),
            store: None,
        }
    }

    /// 201 for a new object, 204 for one that existed.
    pub(super) fn put(is_new: bool) -> Self {
        let status = if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
        Self { status, ..Self::no_content() }
    }

    pub(super) fn allowing(self, methods: String) -> Self {
        Self { status: StatusCode::OK, allow: Some(methods), ..self }
    }

    pub(super) fn when_defined(mut self, ticket: Ticket) -> Self {
        self.until.ticket = Some(ticket);
        self
    }

    pub(super) fn when_stored(mut self, lsn: Option<Lsn>) -> Self {
        self.until.lsn = lsn;
        self
    }

    /// Waits for everything that was written to the journal of `store` so far.
    pub(super) fn when_stored_in(mut self, store: Option<Arc<Store>>) -> Self {
        self.until.lsn = store.as_ref().map(|store| store.end());
        self.store = store;
        self
    }
}

impl Call {
    /// The embedded broker. Routes that need it do not exist without it.
    pub(super) fn broker(&self) -> Result<&Arc<Broker>, ApiError> {
        self.api.broker.as_ref().ok_or_else(ApiError::not_found)
    }

    /// The release of RabbitMQ whose answers are given.
    pub(super) fn compatibility(&self) -> Compatibility {
        self.api.served().compatibility
    }

    /// The release of RabbitMQ that tools may take this for.
    pub(super) fn rabbitmq_version(&self) -> &'static str {
        self.compatibility().version()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.api.process.now()
    }

    /// A variable part of the path; empty if the path has no such part.
    pub(super) fn at(&self, part: &str) -> &str {
        self.names.iter().find(|(name, _)| *name == part).map_or("", |(_, value)| value)
    }

    fn has(&self, part: &str) -> bool {
        self.names.iter().any(|(name, _)| *name == part)
    }

    /// Refuses a query with other keys (400), or with one that is empty: what a mistyped key should have narrowed down concerns
    /// everything.
    pub(super) fn queries_only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.query.iter().find(|(key, value)| !known.contains(&key.as_str()) || value.is_empty()) {
            Some((key, _)) => Err(ApiError::bad_request(format!("{key}: not known here, or empty"))),
            None => Ok(()),
        }
    }

    /// Fails once the client has gone. Long lists check this before each item.
    pub(super) fn check_awaited(&self) -> Result<(), ApiError> {
        match self.is_abandoned.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(ApiError::not_yet("request cancelled")),
        }
    }

    pub(super) fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub(super) fn asks(&self, key: &str) -> bool {
        self.query(key) == Some("true")
    }

    /// Refuses a path with the name of another node (404).
    pub(super) fn check_node(&self) -> Result<(), ApiError> {
        let is_here = !self.has("node") || self.at("node") == self.api.process.node_name();
        if is_here { Ok(()) } else { Err(ApiError::not_found()) }
    }

    /// The virtual host of the path.
    pub(super) fn vhost(&self) -> Result<Arc<VirtualHost>, ApiError> {
        self.broker()?.vhost(self.at("vhost")).ok_or_else(ApiError::not_found)
    }

    /// The virtual hosts whose objects the user may see, or the one in the path, for which `request` has checked the user's
    /// access.
    pub(super) fn vhosts(&self) -> Result<Vec<Arc<VirtualHost>>, ApiError> {
        self.vhosts_where(User::sees_objects_in)
    }

    /// The virtual hosts that the user may see themselves, with their figures, limits and consumers; or the one in the path.
    pub(super) fn visible_vhosts(&self) -> Result<Vec<Arc<VirtualHost>>, ApiError> {
        self.vhosts_where(User::sees)
    }

    fn vhosts_where(
        &self,
        shows: fn(&User, &VirtualHost, &Broker) -> bool,
    ) -> Result<Vec<Arc<VirtualHost>>, ApiError> {
        if self.has("vhost") {
            return Ok(vec![self.vhost()?]);
        }
        let broker = self.broker()?;
        let mut vhosts = broker.vhosts();
        vhosts.retain(|vhost| shows(&self.user, vhost, broker));
        Ok(vhosts)
    }

    /// The user's authorised session in the virtual host of the path, which checks permissions.
    pub(super) fn authorised(&self) -> Result<AuthorisedSession, ApiError> {
        let identity = self.user.identity.as_ref().ok_or_else(ApiError::not_found)?;
        Ok(self.broker()?.authorised(identity, self.at("vhost"))?)
    }

    /// The body as an object; an empty body counts as an empty object.
    pub(super) fn object(&self) -> Result<Map<String, Value>, ApiError> {
        if self.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Map::new());
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(object)) => Ok(object),
            _ => Err(ApiError::bad_request("not_json")),
        }
    }

    /// The members of a large body with these names. Other members are skipped and take no memory.
    pub(super) fn parts(&self, names: &'static [&'static str]) -> Result<Map<String, Value>, ApiError> {
        parts::read(&self.body, names)
    }

    /// Completes a change of the definitions: the reply waits until it is on disk.
    pub(super) fn defined(&self, reply: Reply) -> ApiAnswer {
        Ok(reply.when_defined(self.broker()?.last_defined()))
    }

    /// Adds or changes a definition.
    pub(super) fn define(&self, section: Section, entry: Value) -> Result<(), ApiError> {
        Ok(self.broker()?.define(section, entry, self.now())?)
    }

    /// Removes a definition; 404 if it does not exist.
    pub(super) fn delete_definition(&self, section: Section, names: &[&str]) -> ApiAnswer {
        if !self.broker()?.delete_definition(section, names, self.now()) {
            return Err(ApiError::not_found());
        }
        self.defined(Reply::no_content())
    }
}

/// Refuses a body that lacks any of these keys.
pub(super) fn require(body: &Map<String, Value>, keys: &[&str]) -> Result<(), ApiError> {
    let missing: Vec<&str> = keys.iter().filter(|&&key| !body.contains_key(key)).copied().collect();
    if missing.is_empty() { Ok(()) } else { Err(ApiError::key_missing(&missing)) }
}

/// Reads a boolean, which RabbitMQ also accepts as a string.
pub(super) fn flag(body: &Map<String, Value>, key: &str, default: bool) -> Result<bool, ApiError> {
    match body.get(key) {
        None => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(other) => Err(ApiError::bad_request(json!(["not_boolean", other]))),
    }
}

/// Reads a string that may be omitted. `null` is none: where it stood for an empty string, a pattern would match everything.
pub(super) fn text<'b>(
    body: &'b Map<String, Value>,
    key: &str,
    default: &'b str,
) -> Result<&'b str, ApiError> {
    match body.get(key) {
        None => Ok(default),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(ApiError::bad_request(format!("{key} is not a string: {other}"))),
    }
}

/// As [`text`], for the strings that may also be `null`, as in RabbitMQ: then they are empty.
pub(super) fn text_or_null<'b>(body: &'b Map<String, Value>, key: &str) -> Result<&'b str, ApiError> {
    match body.get(key) {
        Some(Value::Null) => Ok(""),
        _ => text(body, key, ""),
    }
}

/// Reads an integer, which RabbitMQ also accepts as a string.
pub(super) fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// Removes the object under a key from the body. RabbitMQ accepts an empty list as an empty object, and fails for `null`.
pub(super) fn object(body: &mut Map<String, Value>, key: &str) -> Result<Map<String, Value>, ApiError> {
    match body.remove(key) {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object),
        Some(Value::Array(items)) if items.is_empty() => Ok(Map::new()),
        Some(other) => Err(ApiError::bad_request(format!("{key} is not an object: {other}"))),
    }
}

/// The arguments of a declaration or binding, encoded as an AMQP table.
pub(super) fn arguments(call: &Call, body: &mut Map<String, Value>) -> Result<Vec<u8>, ApiError> {
    let encoded = table(&object(body, "arguments")?)?.encode();
    let most = max_body_payload(call.api.process.frame_max());
    match encoded.len() {
        length if length <= most => Ok(encoded),
        length => Err(ApiError::bad_request(format!(
            "the arguments have {length} bytes, but {most} are the most that a client could send"
        ))),
    }
}

/// Arguments or headers as an AMQP table.
pub(super) fn table(arguments: &Map<String, Value>) -> Result<FieldTable, ApiError> {
    arguments_of(arguments).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Encoded arguments in the form that the broker accepts.
pub(super) fn raw(arguments: &[u8]) -> Result<RawTable<'_>, ApiError> {
    RawTable::check(arguments).map_err(|error| ApiError::bad_request(format!("arguments: {error}")))
}

/// Checks that a name or key fits into an AMQP short string of 255 bytes.
pub(super) fn short<'t>(what: &str, text: &'t str) -> Result<&'t str, ApiError> {
    match text.len() {
        0..=255 => Ok(text),
        longer => {
            Err(ApiError::bad_request(format!("{what} has {longer} bytes, more than the limit of 255")))
        }
    }
}
