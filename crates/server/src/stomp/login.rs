//! CONNECT: the client's credentials, checked by the backend, with RabbitMQ's error messages.

use std::sync::Arc;
use std::time::Instant;

use amqp::{Credentials, Fault, FieldTable, FieldValue, ReplyCode};
use broker::{Broker, BrokerError, Identity, LoginAnswer, LoginAttempt, LoginRefused, SessionId};
use stomp::StompFault;
use stomp::StompVersion;
use stomp::server::ConnectRequest;

use super::broker::BrokerStompSession;
use super::session::StompSession;
use super::upstream::UpstreamStompSession;
use crate::backend::{Backend, LoginError, LoginRequest};
use crate::client::{BackendRequest, ConnectionCore, Ending, LOGIN_REFUSED, closed_by_server};
use crate::limits::LimitReached;
use crate::upstream::{self, OpenedUpstream, UpstreamRequest};

/// A login that was accepted or is being checked.
pub(super) enum StompLogin {
    Accepted(Box<dyn StompSession>),
    /// The upstream is being asked.
    Asked(Box<AskedLogin>),
    /// The embedded broker is asking another auth backend.
    AskedByBroker(Box<BrokerLogin>),
}

/// A login to the embedded broker that another auth backend is checking.
pub(super) struct BrokerLogin {
    request: BackendRequest<Result<Identity, LoginRefused>>,
    client: BrokerClient,
}

/// A client that is logging in to the embedded broker.
struct BrokerClient {
    broker: Arc<Broker>,
    /// As the client sent it.
    user: Box<str>,
    vhost: Box<str>,
    version: StompVersion,
}

/// A login that the upstream is checking.
pub(super) struct AskedLogin {
    request: BackendRequest<Result<OpenedUpstream, LoginError>>,
    user: Box<str>,
    vhost: Box<str>,
    version: StompVersion,
}

/// The reason why a client is not logged in.
pub(super) enum LoginFailure {
    Refused(StompFault),
    /// The upstream is unreachable.
    Unavailable(String),
}

impl From<StompFault> for LoginFailure {
    fn from(fault: StompFault) -> Self {
        Self::Refused(fault)
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
        _ => {
            // RabbitMQ counts refused credentials alone.
            core.ends(Ending::Refused, || LOGIN_REFUSED.to_owned());
            return Err(bad_connect("Missing login or passcode header(s)").into());
        }
    };
    // As in RabbitMQ, a missing host means the default virtual host.
    let vhost = connect.host().unwrap_or("/");
    core.logs_in(user);
    core.enters(vhost);
    match &shared.backend {
        Backend::Broker(broker) => {
            let client = BrokerClient {
                broker: Arc::clone(broker),
                user: user.into(),
                vhost: vhost.into(),
                version: connect.version,
            };
            match client.authenticate(core, passcode) {
                LoginAnswer::Now(validated) => {
                    Ok(StompLogin::Accepted(Box::new(client.enter(core, validated)?)))
                }
                LoginAnswer::Later(answer) => {
                    let (broker, vhost) = (Arc::clone(broker), client.vhost.clone());
                    let request = BackendRequest::new(&core.outbox, async move {
                        let identity = answer.await?;
                        broker.authorise_vhost(&identity, &vhost).await;
                        Ok(identity)
                    });
                    Ok(StompLogin::AskedByBroker(Box::new(BrokerLogin { request, client })))
                }
            }
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

impl BrokerClient {
    /// Starts the check of the login.
    fn authenticate(&self, core: &ConnectionCore, passcode: Option<&str>) -> LoginAnswer {
        let is_loopback = core.peer.is_loopback();
        match passcode {
            None => LoginAnswer::Now(self.broker.authenticate_external(&self.user, is_loopback)),
            Some(passcode) => self.broker.log_in(LoginAttempt {
                user: self.user.to_string(),
                secret: passcode.as_bytes().to_owned(),
                from: core.peer.ip(),
                is_loopback,
                now: Instant::now(),
                context: vec![("vhost", self.vhost.to_string())],
            }),
        }
    }

    /// Opens the virtual host for a client whose login has been checked.
    fn enter(
        &self,
        core: &mut ConnectionCore,
        validated: Result<Identity, LoginRefused>,
    ) -> Result<BrokerStompSession, LoginFailure> {
        let Self { broker, user: claimed, vhost, version } = self;
        let user = &**claimed;
        let identity = validated.map_err(|why| {
            core.login_refused(user, &why.to_string());
            match why {
                LoginRefused::LoopbackOnly => bad_connect("non-loopback access denied"),
                _ => access_refused(user, broker.compatibility()),
            }
        })?;
        let user = identity.user();
        core.user_is_external = !identity.is_listed();
        if user != &**claimed {
            core.logs_in(user);
        }
        take_limits(core, user)?;
        let authorised = broker.begin_session(&identity, vhost).map_err(|error| {
            core.vhost_refused(user, &Fault::from(error.clone()));
            match error {
                BrokerError::NoVirtualHost(_) | BrokerError::VirtualHostRefused { .. } => vhost_denied(vhost),
                // A limit of the user or the virtual host was reached.
                error => bad_connect(error.to_string()),
            }
        })?;
        let outbox = Arc::clone(&core.outbox);
        let session = BrokerStompSession::new(&core.shared, authorised, SessionId(core.id), *version, outbox);
        session.map_err(|error| bad_connect(error.to_string()).into())
    }
}

impl StompLogin {
    /// The outcome of a login that is being checked, once it is known.
    pub(super) fn poll(&self, core: &mut ConnectionCore) -> Option<Result<Self, LoginFailure>> {
        match self {
            Self::Accepted(_) => None,
            Self::Asked(asked) => {
                let answer = asked.request.take_answer()?;
                Some(asked.answered(core, answer).map(|session| Self::Accepted(Box::new(session))))
            }
            Self::AskedByBroker(asked) => {
                let validated = asked.request.take_answer()?;
                Some(asked.client.enter(core, validated).map(|session| Self::Accepted(Box::new(session))))
            }
        }
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
            Err(LoginError::Failed(fault)) if fault.code == ReplyCode::NotAllowed => {
                core.vhost_refused(user, &fault);
                return Err(vhost_denied(vhost).into());
            }
            Err(LoginError::Failed(fault)) => {
                core.ends(Ending::Refused, || closed_by_server(&fault));
                return Err(bad_connect(fault.reply_text()).into());
            }
        };
        take_limits(core, user)?;
        Ok(UpstreamStompSession::new(&core.shared, &core.outbox, opened, vhost, self.version))
    }
}

/// Counts the client against its user's limits.
fn take_limits(core: &mut ConnectionCore, user: &str) -> Result<(), StompFault> {
    let taken = core.lease.log_in(user).and_then(|()| core.lease.open_channel());
    taken.map_err(|limit: LimitReached| {
        core.ends(Ending::Limit, || limit.to_string());
        bad_connect(limit.to_string())
    })
}

fn access_refused(user: &str, compatibility: broker::Compatibility) -> StompFault {
    bad_connect(format!("Access refused for user '{user}'{}", compatibility.stomp_login_error_suffix()))
}

fn vhost_denied(vhost: &str) -> StompFault {
    bad_connect(format!("Virtual host '{vhost}' access denied"))
}

fn bad_connect(detail: impl Into<std::borrow::Cow<'static, str>>) -> StompFault {
    StompFault::new("Bad CONNECT", detail)
}
