//! Login, and the rights of the user (RabbitMQ, "Management Plugin", access and permissions).

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::{
    Broker, Compatibility, Identity, LoginAnswer, LoginAttempt, LoginRefused, PendingAuthz, VirtualHost,
};

use super::error::ApiError;
use super::request::{Caller, foreign_detail};

/// A logged-in user who may use the API.
#[derive(Debug, Clone)]
pub(super) struct User {
    /// `None` without a broker to log in to: the user is then any client on this machine that reaches the
    /// listener.
    pub(super) identity: Option<Identity>,
    pub(super) tags: Vec<String>,
    level: Level,
}

/// Rights that follow from the user's tags, beyond those of `management`. An administrator has all of them;
/// `policymaker` and `monitoring` do not include each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    policymaker: bool,
    monitoring: bool,
    administrator: bool,
}

/// The users that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredTag {
    /// Everybody, logged in or not.
    Everybody,
    /// Users with a tag of the management plugin. If the path names a virtual host, they need access to it or
    /// the tag `administrator`.
    Anyone,
    /// As `Anyone`, but the tag `monitoring` suffices for any virtual host too.
    AnyoneMonitors,
    /// Users with access to the virtual host of the path, which administrators need too.
    Member,
    /// Tag `policymaker` with access to the virtual host, or `administrator`.
    Policymaker,
    /// Tag `monitoring` or `administrator`.
    Monitoring,
    /// Users with the tag `administrator`.
    Administrator,
}

impl RequiredTag {
    /// Whether changes by such users are changes of definitions.
    pub(super) fn defines(self) -> bool {
        matches!(self, Self::Policymaker | Self::Administrator)
    }
}

/// Logs why a login was refused, which the client is not told. The address is unknown over a Unix socket.
fn log_refusal(user: &str, peer: Caller, error: &str) {
    let peer = peer.ip.map_or_else(|| "unix".to_owned(), |ip| ip.to_string());
    tracing::warn!(peer, user, error, "HTTP login refused");
}

impl User {
    /// Validates the header Authorization.
    pub(super) async fn log_in(
        broker: &Arc<Broker>,
        headers: &HeaderMap,
        peer: Caller,
    ) -> Result<Self, ApiError> {
        let refused = || ApiError::login_failed(broker.compatibility());
        let (name, password) = credentials(headers).ok_or_else(refused)?;
        if name.len() > MAX_NAME {
            // No user has such a name. It is not logged, since it may be as long as a request's head.
            return Err(refused());
        }
        let attempt = LoginAttempt {
            user: name.clone(),
            secret: password,
            from: peer.ip,
            is_loopback: peer.is_local,
            now: Instant::now(),
            context: Vec::new(),
        };
        let validated = match broker.log_in(attempt) {
            LoginAnswer::Now(validated) => validated,
            LoginAnswer::Later(answer) => answer.await,
        };
        let identity = validated.map_err(|error| match error {
            LoginRefused::TooManyAttempts => ApiError::too_many_attempts(),
            error => {
                let detail = match error {
                    LoginRefused::LoopbackOnly => foreign_detail(headers).unwrap_or_default(),
                    _ => String::new(),
                };
                log_refusal(&name, peer, &format!("{error}{detail}"));
                refused()
            }
        })?;
        Self::of(broker, identity, peer)
    }

    /// A user whose login was accepted, and whose tags have to allow the API.
    pub(super) fn of(broker: &Broker, identity: Identity, peer: Caller) -> Result<Self, ApiError> {
        let tags = broker.tags(&identity);
        let has = |tag: &str| tags.iter().any(|own| own == tag);
        let administrator = has("administrator");
        let level = Level {
            policymaker: administrator || has("policymaker"),
            monitoring: administrator || has("monitoring"),
            administrator,
        };
        if !level.policymaker && !level.monitoring && !has("management") {
            log_refusal(identity.user(), peer, "user has no management tag");
            return Err(ApiError::not_authorised("Not management user"));
        }
        Ok(Self { identity: Some(identity), tags, level })
    }

    /// The operator: any client on this machine, where Leveret has no users of its own. The caller has checked
    /// both.
    pub(super) fn operator() -> Self {
        let level = Level { policymaker: true, monitoring: true, administrator: true };
        Self { identity: None, tags: vec!["administrator".to_owned()], level }
    }

    pub(super) fn name(&self) -> &str {
        self.identity.as_ref().map_or("operator", Identity::user)
    }

    /// Whether another auth backend than the broker's own list has let the user in.
    pub(super) fn is_external(&self) -> bool {
        self.identity.as_ref().is_some_and(Identity::is_external)
    }

    /// The questions to the user's auth backend that the last operation has left.
    pub(super) fn take_authz_request(&self) -> Option<PendingAuthz> {
        self.identity.as_ref()?.take_authz_request()
    }

    /// Like [`Self::check`]; asks the user's auth backend if it has one.
    pub(super) async fn check_asking(
        &self,
        broker: Option<&Broker>,
        who: RequiredTag,
        vhost: Option<&str>,
    ) -> Result<(), ApiError> {
        let check = || self.check(broker, who, vhost);
        match &self.identity {
            Some(identity) if identity.is_asked() => identity.ask_for(check).await,
            _ => check(),
        }
    }

    /// Checks whether the user may use a route, given the virtual host in its path, if any.
    pub(super) fn check(
        &self,
        broker: Option<&Broker>,
        who: RequiredTag,
        vhost: Option<&str>,
    ) -> Result<(), ApiError> {
        let level = self.level;
        let member = || vhost.is_none_or(|vhost| self.may_open(broker, vhost));
        let is_there =
            || vhost.is_none_or(|vhost| broker.is_some_and(|broker| broker.vhost(vhost).is_some()));
        // RabbitMQ 4 does not tell users whether there is a virtual host that they may not open.
        let conceals = broker.is_some_and(|broker| broker.compatibility() == Compatibility::V4);
        let refuse_stranger = |allowed: bool| match allowed {
            true => Ok(()),
            false if !conceals => Err(ApiError::not_authorised(NOT_MEMBER)),
            false if is_there() => Err(ApiError::missing("Not Found")),
            false => Err(ApiError::not_found()),
        };
        let refuse = |allowed: bool, reason: &'static str| {
            if allowed { Ok(()) } else { Err(ApiError::not_authorised(reason)) }
        };
        match who {
            RequiredTag::Anyone => refuse_stranger(level.administrator || member()),
            RequiredTag::AnyoneMonitors => refuse_stranger(level.monitoring || member()),
            // RabbitMQ informs administrators when the virtual host does not exist.
            RequiredTag::Member if !is_there() && (level.administrator || conceals) => {
                Err(ApiError::missing("vhost_not_found"))
            }
            RequiredTag::Member if level.administrator => refuse(member(), "Access refused."),
            RequiredTag::Member => refuse_stranger(member()),
            RequiredTag::Policymaker if conceals && level.policymaker => {
                refuse_stranger(level.administrator || member())
            }
            RequiredTag::Policymaker => refuse(
                level.administrator || (level.policymaker && member()),
                "User not authorised to access object",
            ),
            RequiredTag::Everybody => Ok(()),
            RequiredTag::Monitoring => refuse(level.monitoring, "Not monitor user"),
            RequiredTag::Administrator => refuse(level.administrator, "Not administrator user"),
        }
    }

    /// Whether the user may see all virtual hosts, everybody's connections and consumers, and the node.
    pub(super) fn is_monitor(&self) -> bool {
        self.level.monitoring
    }

    /// Whether lists across virtual hosts show this user the queues, exchanges, bindings and policies of `vhost`. As in
    /// RabbitMQ, the tag `monitoring` does not suffice.
    pub(super) fn sees_objects_in(&self, vhost: &VirtualHost, broker: &Broker) -> bool {
        self.level.administrator || self.may_open(Some(broker), vhost.name())
    }

    /// Whether this user may see that there is such a virtual host, and its figures.
    pub(super) fn sees(&self, vhost: &VirtualHost, broker: &Broker) -> bool {
        self.is_monitor() || self.may_open(Some(broker), vhost.name())
    }

    fn may_open(&self, broker: Option<&Broker>, vhost: &str) -> bool {
        let both = broker.zip(self.identity.as_ref());
        both.is_some_and(|(broker, identity)| broker.open(identity, vhost).is_ok())
    }

    /// Whether the user may see connections of `user`.
    pub(super) fn sees_connections_of(&self, user: &str) -> bool {
        self.is_monitor() || self.name() == user
    }

    /// Whether the user may close connections of `user`. Monitoring users may only close their own.
    pub(super) fn may_close_connections_of(&self, user: &str) -> bool {
        self.level.administrator || self.name() == user
    }
}

/// Maximum bytes of a user name: definitions with longer ones are refused.
const MAX_NAME: usize = 255;

const NOT_MEMBER: &str = "User not authorised to access virtual host";

/// User and password from the scheme `Basic` (RFC 7617), or a token from `Bearer` (RFC 6750), which names its user.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((String::new(), encoded.trim().as_bytes().to_vec()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let bytes = STANDARD.decode(encoded.trim()).ok()?;
    let colon = bytes.iter().position(|&byte| byte == b':')?;
    let name = String::from_utf8(bytes[..colon].to_vec()).ok()?;
    Some((name, bytes[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, StatusCode};
    use axum::response::IntoResponse as _;
    use broker::BrokerConfig;

    use super::*;

    fn parsed(value: &str) -> Option<(String, Vec<u8>)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        credentials(&headers)
    }

    #[test]
    fn a_password_may_hold_colons_and_a_name_may_not() {
        let value = format!("basic {}", STANDARD.encode("me:a:b"));
        assert_eq!(parsed(&value), Some(("me".to_owned(), b"a:b".to_vec())));
    }

    /// The status of the last of many attempts with different passwords.
    async fn last_of_many(length: usize) -> StatusCode {
        let broker = Broker::new(BrokerConfig::default());
        let here = Caller { ip: None, is_local: true };
        let mut last = StatusCode::OK;
        for password in 0..50 {
            let credentials = STANDARD.encode(format!("{}:{password}", "n".repeat(length)));
            let value = HeaderValue::from_str(&format!("Basic {credentials}")).unwrap();
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
            last = User::log_in(&broker, &headers, here).await.unwrap_err().into_response().status();
        }
        last
    }

    #[test]
    fn a_local_request_that_is_not_taken_for_one_is_explained() {
        let detail = |name: &'static str, value: &'static str| {
            foreign_detail(&HeaderMap::from_iter([(
                header::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]))
        };
        assert_eq!(detail("host", "foo").as_deref(), Some("; the request's Host is 'foo'"));
        assert_eq!(detail("via", "1.1 proxy").as_deref(), Some("; a proxy has passed the request on"));
        assert_eq!(detail("host", "localhost:15672"), None);
    }

    #[tokio::test]
    async fn a_name_that_nobody_can_have_is_refused_however_often() {
        assert_eq!(last_of_many(MAX_NAME + 1).await, StatusCode::UNAUTHORIZED);
        assert_eq!(last_of_many(MAX_NAME).await, StatusCode::TOO_MANY_REQUESTS);
    }

    #[test]
    fn a_token_names_its_user() {
        assert_eq!(parsed("Bearer a.b.c"), Some((String::new(), b"a.b.c".to_vec())));
    }

    #[test]
    fn anything_but_basic_and_bearer_is_no_login() {
        for value in ["Digest x", "Bearer", "Basic", "Basic !!!", "Basic bm9jb2xvbg=="] {
            assert_eq!(parsed(value), None, "{value}");
        }
    }
}
