//! The single entry from front ends to the backends: the embedded broker or the upstream pool.

use std::sync::Arc;
use std::time::Instant;

use amqp::error::{Fault, ReplyCode};
use amqp::handshake::OpenRequest;
use amqp::sasl::{Credentials, Mechanism};
use broker::{Broker, Compatibility, Identity, LoginAnswer, LoginAttempt, LoginRefused, SessionId};
use transport::{Outbox, Peer};

use crate::amqp::broker_session::BrokerSession;
use crate::amqp::session::BackendSession;
use crate::registry::OpenConnection;
use crate::server::Shared;
use crate::spool::PendingLogin;

/// The backend that serves clients.
#[derive(Clone)]
pub enum Backend {
    /// The broker in this process.
    Broker(Arc<Broker>),
    /// Shared connections to another broker.
    Upstream(Arc<proxy::Pool>),
}

/// The client of a login.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoginRequest {
    /// The connection's number.
    pub(crate) id: u64,
    pub(crate) peer: Peer,
}

/// An accepted login, held until a virtual host is opened with it.
pub(crate) enum BackendLogin {
    Broker(Identity),
    Upstream(proxy::Login),
    /// The login of an AMQP client in front of a spool, whose credentials the upstream has not verified yet.
    Pending(PendingLogin),
}

/// The reason why a login failed.
pub(crate) enum LoginError {
    /// The credentials were refused.
    Refused {
        /// The text of the 403.
        text: String,
        /// The reason for operators, which the client does not get.
        why: String,
    },
    /// The credentials could not be checked. 320 CONNECTION_FORCED if no upstream answers.
    Failed(Fault),
}

impl From<proxy::Refusal> for LoginError {
    fn from(refusal: proxy::Refusal) -> Self {
        match refusal {
            proxy::Refusal::Login(text) => Self::Refused { text, why: "refused by the upstream".to_owned() },
            proxy::Refusal::Fault(fault) => Self::Failed(fault),
        }
    }
}

impl LoginError {
    /// As a fault that ends the connection.
    pub(crate) fn into_fault(self) -> Fault {
        match self {
            Self::Refused { text, .. } => Fault::new(ReplyCode::AccessRefused, text).on_connection(),
            Self::Failed(fault) => fault,
        }
    }
}

impl Backend {
    /// Whether it is the broker in this process.
    pub(crate) fn is_broker(&self) -> bool {
        matches!(self, Self::Broker(_))
    }

    /// Whether a verified client certificate can be used to log in. An upstream would need the certificate itself, and a
    /// proof of possession that only the client can make. So in front of an upstream it works only if the pool has other
    /// credentials for it.
    pub(crate) fn takes_external(&self) -> bool {
        match self {
            Self::Broker(_) => true,
            Self::Upstream(pool) => pool.takes_external(),
        }
    }

    /// Whether the backend can serve a client that has not sent anything yet; `None` if only [`Self::probe_endpoints`]
    /// can find out.
    pub(crate) fn answers(&self) -> Option<bool> {
        match self {
            Self::Broker(_) => Some(true),
            Self::Upstream(pool) => pool.answers(),
        }
    }

    /// Like [`Self::answers`], but asks the upstream if that is not known.
    pub(crate) async fn probe_endpoints(&self) -> bool {
        match self {
            Self::Broker(_) => true,
            Self::Upstream(pool) => pool.probe_endpoints().await,
        }
    }

    /// The release of RabbitMQ whose behaviour clients get. An upstream that is not RabbitMQ counts as the older one.
    pub(crate) fn compatibility(&self) -> Compatibility {
        match self {
            Self::Broker(broker) => broker.compatibility(),
            Self::Upstream(pool) => {
                let major = pool.known_version().and_then(|version| version.split('.').next()?.parse().ok());
                if major.is_some_and(|major: u32| major >= 4) {
                    Compatibility::V4
                } else {
                    Compatibility::V3_10
                }
            }
        }
    }

    /// Checks credentials if that takes no waiting; returns `None` otherwise.
    pub(crate) fn login_at_once(
        &self,
        credentials: &Credentials,
        client: LoginRequest,
    ) -> Option<Result<BackendLogin, LoginError>> {
        let Self::Broker(broker) = self else { return None };
        let mechanism = credentials.mechanism;
        if mechanism == Mechanism::External {
            return Some(login_external(broker, credentials, client));
        }
        if !matches!(mechanism, Mechanism::Plain | Mechanism::AmqPlain) {
            return Some(Err(refused(mechanism, "unknown mechanism")));
        }
        // A password does not prove the right to act as another user (SASL authzid).
        if credentials.authorize_as.as_deref().is_some_and(|other| other != credentials.username) {
            return Some(Err(refused(mechanism, "a password for another user's session")));
        }
        match broker.log_in(attempt_of(credentials, client.peer)) {
            LoginAnswer::Now(validated) => Some(of_broker(mechanism, validated)),
            // Nothing has been asked yet; [`Self::login`] asks, and waits.
            LoginAnswer::Later(_) => None,
        }
    }

    /// Checks credentials, with the upstream or with the embedded broker's other auth backend if necessary.
    pub(crate) async fn login(
        &self,
        credentials: Credentials,
        client: LoginRequest,
    ) -> Result<BackendLogin, LoginError> {
        match self {
            Self::Broker(broker) => {
                let validated = match broker.log_in(attempt_of(&credentials, client.peer)) {
                    LoginAnswer::Now(validated) => validated,
                    LoginAnswer::Later(answer) => answer.await,
                };
                of_broker(credentials.mechanism, validated)
            }
            Self::Upstream(pool) => {
                let asked = pool.authenticate(credentials, info_of(client)).await;
                asked.map(BackendLogin::Upstream).map_err(LoginError::from)
            }
        }
    }

    /// Asks whether a user may open a virtual host of the embedded broker, if another auth backend decides about that.
    pub(crate) async fn authorise_vhost(&self, identity: &Identity, vhost: &str) {
        if let Self::Broker(broker) = self {
            broker.authorise_vhost(identity, vhost).await;
        }
    }

    /// Opens a virtual host of the embedded broker.
    pub(crate) fn open_broker(
        &self,
        shared: &Arc<Shared>,
        identity: Identity,
        connection: u64,
        request: &OpenRequest,
        (outbox, view): (Arc<Outbox>, Arc<OpenConnection>),
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let Self::Broker(broker) = self else {
            return Err(Fault::new(ReplyCode::InternalError, "logged in at another back end"));
        };
        let authorised = broker.begin_session(&identity, &request.virtual_host)?;
        let session = BrokerSession::new(shared, authorised, SessionId(connection), request, outbox, view);
        Ok(Box::new(session))
    }

    /// Returns a reason if an open connection has to be closed because its virtual host or its user was deleted. A user
    /// authenticated by another auth backend is not in the broker's list.
    pub(crate) fn missing(&self, connection: &OpenConnection, user_is_external: bool) -> Option<String> {
        let Self::Broker(broker) = self else { return None };
        if broker.vhost(connection.vhost()).is_none() {
            return Some(format!("vhost '{}' is down", connection.vhost()));
        }
        let is_deleted = !user_is_external && !broker.has_user(connection.user());
        is_deleted.then(|| format!("user '{}' is deleted", connection.user()))
    }

    /// Opens a virtual host of the upstream.
    pub(crate) async fn open_upstream(
        &self,
        login: proxy::Login,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let Self::Upstream(pool) = self else {
            return Err(Fault::new(ReplyCode::InternalError, "logged in at another back end"));
        };
        let client = client_side(request, outbox);
        match pool.open(login, &request.virtual_host, client).await {
            Ok(session) => Ok(Box::new(session)),
            Err(refusal) => Err(LoginError::from(refusal).into_fault()),
        }
    }

    /// Resumes a client's session of another process, whose pool was in front of the same upstream.
    ///
    /// # Errors
    /// The upstream's refusal, or 320 CONNECTION_FORCED if none can be asked within the pool's timeout for outages.
    pub(crate) async fn resume_upstream(
        &self,
        session: (Credentials, proxy::SessionState),
        client: LoginRequest,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Result<Box<dyn BackendSession>, Fault> {
        let Self::Upstream(pool) = self else {
            let text = "upstream changed: the client's broker is not served here any more";
            return Err(Fault::new(ReplyCode::ConnectionForced, text));
        };
        let side = client_side(request, outbox);
        match pool.resume(session, info_of(client), &request.virtual_host, side).await {
            Ok(session) => Ok(Box::new(session)),
            Err(refusal) => Err(LoginError::from(refusal).into_fault()),
        }
    }
}

pub(crate) fn info_of(client: LoginRequest) -> proxy::ClientInfo {
    proxy::ClientInfo { id: client.id, peer: client.peer.to_string() }
}

/// The client's side of a pool session, whose answers go to `outbox`.
pub(crate) fn client_side(request: &OpenRequest, outbox: Arc<Outbox>) -> proxy::ClientSide {
    proxy::ClientSide {
        outbox,
        negotiated: request.negotiated,
        capabilities: request.capabilities,
        client_properties: request.client_properties.clone(),
    }
}

/// Logs in the user named by a verified certificate. As in RabbitMQ, the client's own response is ignored.
fn login_external(
    broker: &Broker,
    credentials: &Credentials,
    client: LoginRequest,
) -> Result<BackendLogin, LoginError> {
    let validated = broker.authenticate_external(&credentials.username, client.peer.is_loopback());
    validated.map(BackendLogin::Broker).map_err(|why| refused(credentials.mechanism, why))
}

/// A login with a name and a secret, as the broker checks it.
pub(crate) fn attempt_of(credentials: &Credentials, peer: Peer) -> LoginAttempt {
    LoginAttempt {
        user: credentials.username.clone(),
        secret: credentials.secret.expose().to_vec(),
        from: peer.ip(),
        is_loopback: peer.is_loopback(),
        now: Instant::now(),
        context: Vec::new(),
    }
}

fn of_broker(
    mechanism: Mechanism,
    validated: Result<Identity, LoginRefused>,
) -> Result<BackendLogin, LoginError> {
    validated.map(BackendLogin::Broker).map_err(|why| refused(mechanism, why))
}

fn refused(mechanism: Mechanism, why: impl ToString) -> LoginError {
    LoginError::Refused { text: mechanism.refusal_text(), why: why.to_string() }
}
