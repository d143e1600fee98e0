//! CONNECT: the client's credentials, checked by the backend, with RabbitMQ's error messages.

use std::sync::Arc;
use std::time::Instant;

use amqp::{Credentials, Fault, FieldTable, FieldValue, ReplyCode};
use broker::{Broker, BrokerError, LoginRefused, SessionId};
use stomp::StompFault;
use stomp::StompVersion;
use stomp::server::ConnectRequest;

use super::broker::BrokerStompSession;
use super::session::StompSession;
use super::upstream::UpstreamStompSession;
use crate::backend::{Backend, LoginError, LoginRequest};
use crate::client::{BackendRequest, ConnectionCore, Ending};
use crate::limits::LimitReached;
use crate::upstream::{self, OpenedUpstream, UpstreamRequest};

/// A login that was not refused.
pub(super) enum StompLogin {
    Accepted(Box<dyn StompSession>),
    /// The upstream is asked.
    Asked(Box<AskedLogin>),
}

/// A login that the upstream is asked about.
pub(super) struct AskedLogin {
    request: BackendRequest<Result<OpenedUpstream, LoginError>>,
    user: Box<str>,
    vhost: Box<str>,
    version: StompVersion,
}

/// Why a client is not logged in.
pub(super) enum LoginFailure {
    Refused(StompRefused),
    /// The upstream cannot be asked.
    Unavailable(String),
}

/// A refused login.
pub(super) struct StompRefused {
    pub(super) fault: StompFault,
    pub(super) ending: Ending,
}

impl From<StompFault> for LoginFailure {
    fn from(fault: StompFault) -> Self {
        Self::Refused(StompRefused { fault, ending: Ending::Refused })
    }
}

impl From<LimitReached> for LoginFailure {
    fn from(limit: LimitReached) -> Self {
        Self::Refused(StompRefused { fault: bad_connect(limit.to_string()), ending: Ending::Limit })
    }
}

/// Validates CONNECT.
pub(super) fn log_in(
    core: &mut ConnectionCore,
    connect: &ConnectRequest<'_>,
) -> Result<StompLogin, LoginFailure> {
    let shared = Arc::clone(&core.shared);
    let external = core.external.clone();
    let default = shared.config.stomp_default_user.as_deref();
    // A passcode without a login belongs to no user.
    let unnamed = external.as_deref().or(default.filter(|_| connect.passcode().is_none()));
    let (user, passcode) = match (connect.login(), connect.passcode(), unnamed) {
        (None, _, Some(user)) => (user, None),
        (Some(user), Some(passcode), _) => (user, Some(passcode)),
        // RabbitMQ's default is guest here. This server admits a client without a login only if the
        // operator has configured a user for it.
        _ => return Err(bad_connect("Missing login or passcode header(s)").into()),
    };
    // In RabbitMQ, a missing host means the default virtual host.
    let vhost = connect.host().unwrap_or("/");
    core.logs_in(user);
    core.enters(vhost);
    match &shared.backend {
        Backend::Broker(broker) => {
            let session = enter_broker(core, broker, (user, passcode), vhost, connect.version)?;
            Ok(StompLogin::Accepted(Box::new(session)))
        }
        Backend::Upstream(_) => {
            let credentials = match passcode {
                Some(passcode) => Credentials::plain(user, passcode),
                None => Credentials { username: user.to_owned(), ..Credentials::external(None) },
            };
            let client = LoginRequest { id: core.id, peer: core.peer };
            let described = [("product", "STOMP client"), ("version", connect.version.as_str())];
            let client_properties: FieldTable =
                described.into_iter().map(|(name, text)| (name, FieldValue::text(text))).collect();
            let request = UpstreamRequest { credentials, vhost: vhost.into(), client, client_properties };
            let server = Arc::clone(&shared);
            let asked = AskedLogin {
                request: BackendRequest::new(
                    &core.outbox,
                    async move { upstream::open(&server, request).await },
                ),
                user: user.into(),
                vhost: vhost.into(),
                version: connect.version,
            };
            Ok(StompLogin::Asked(Box::new(asked)))
        }
    }
}

/// Logs a client in to the embedded broker.
fn enter_broker(
    core: &mut ConnectionCore,
    broker: &Arc<Broker>,
    (user, passcode): (&str, Option<&str>),
    vhost: &str,
    version: StompVersion,
) -> Result<BrokerStompSession, LoginFailure> {
    let (ip, loopback) = (core.peer.ip(), core.peer.is_loopback());
    let validated = match passcode {
        None => broker.authenticate_external(user, loopback),
        Some(passcode) => broker.authenticate_from(user, passcode.as_bytes(), ip, loopback, Instant::now()),
    };
    let identity = validated.map_err(|why| {
        core.login_refused(user, &why.to_string());
        match why {
            LoginRefused::LoopbackOnly => bad_connect("non-loopback access denied"),
            _ => access_refused(user, broker.compatibility()),
        }
    })?;
    take_limits(core, user)?;
    let authorised = broker.authorised(&identity, vhost).map_err(|error| match error {
        BrokerError::NoVirtualHost(_) | BrokerError::VirtualHostRefused { .. } => {
            core.login_refused(user, &error.to_string());
            vhost_denied(vhost)
        }
        // A limit of the user or the virtual host was reached.
        error => bad_connect(error.to_string()),
    })?;
    let outbox = Arc::clone(&core.outbox);
    let session = BrokerStompSession::new(&core.shared, authorised, SessionId(core.id), version, outbox);
    session.map_err(|error| bad_connect(error.to_string()).into())
}

impl StompLogin {
    /// The outcome of a login that the upstream was asked about, once known.
    pub(super) fn poll(&self, core: &mut ConnectionCore) -> Option<Result<Self, LoginFailure>> {
        let Self::Asked(asked) = self else { return None };
        let answer = asked.request.take_answer()?;
        Some(asked.answered(core, answer).map(|session| Self::Accepted(Box::new(session))))
    }
}

impl AskedLogin {
    fn answered(
        &self,
        core: &mut ConnectionCore,
        answer: Result<OpenedUpstream, LoginError>,
    ) -> Result<UpstreamStompSession, LoginFailure> {
        let (user, vhost) = (&*self.user, &*self.vhost);
        let opened = match answer {
            Ok(opened) => opened,
            Err(LoginError::Refused { why, .. }) => {
                core.login_refused(user, &why);
                return Err(access_refused(user, core.shared.backend.compatibility()).into());
            }
            Err(LoginError::Failed(fault)) if fault.code == ReplyCode::ConnectionForced => {
                return Err(LoginFailure::Unavailable(fault.text.into_owned()));
            }
            Err(LoginError::Failed(Fault { code: ReplyCode::NotAllowed, .. })) => {
                return Err(vhost_denied(vhost).into());
            }
            Err(LoginError::Failed(fault)) => return Err(bad_connect(fault.reply_text()).into()),
        };
        take_limits(core, user)?;
        Ok(UpstreamStompSession::new(&core.shared, &core.outbox, opened, vhost, self.version))
    }
}

/// Counts the client against its user's limits.
fn take_limits(core: &mut ConnectionCore, user: &str) -> Result<(), LimitReached> {
    core.lease.log_in(user)?;
    core.lease.open_channel()
}

fn access_refused(user: &str, compatibility: broker::Compatibility) -> StompFault {
    bad_connect(format!("Access refused for user '{user}'{}", compatibility.end_of_stomp_refusals()))
}

fn vhost_denied(vhost: &str) -> StompFault {
    bad_connect(format!("Virtual host '{vhost}' access denied"))
}

fn bad_connect(detail: impl Into<std::borrow::Cow<'static, str>>) -> StompFault {
    StompFault::new("Bad CONNECT", detail)
}
