//! Admission to the embedded broker: the login, and the claim to the session.

use std::sync::Arc;
use std::time::Instant;

use broker::{
    AuthorisedSession, Broker, BrokerError, Identity, LoginAnswer, LoginAttempt, LoginRefused, VirtualHost,
    Waiter,
};
use mqtt::{MqttVersion, ReasonCode};

use super::admission::{Admission, Admitting, AdmittingConnection, write};
use super::client::{Admitted, MqttClient};
use super::detached::DetachedSession;
use super::found_queues;
use super::hub::{BrokerClaim, ForeignSession, Hub, NOBODY, queue_name};
use super::login::{self, LoginAs, MqttLogin, MqttRefused, bad_credentials};
use super::repeating::Returning;
use super::session::MqttSession;
use super::session_ownership::{Claim, Owner, SessionUser};
use super::subscriptions::Class;
use crate::client::{BackendRequest, ConnectionCore, OutboxWaiter};
use crate::pending_authorisation::PendingAuthorisation;

/// A client between its CONNECT and its session on the embedded broker: login, then claim, then subscriptions.
pub(super) struct BrokerAdmission {
    hub: Arc<Hub>,
    login: MqttLogin,
    version: MqttVersion,
    /// The login request to another auth backend, until it is answered.
    asking: Option<BackendRequest<Result<Identity, LoginRefused>>>,
    /// Asks the user's auth backend about the subscriptions of the session that the client resumes.
    question: PendingAuthorisation,
    /// Whether the admission has registered to wait for [`DetachedSession::until`].
    awaits_disk: bool,
    /// The outcome of the claim, while it waits for the disk or for `question`; `Some(None)` if there is no earlier
    /// session.
    granted: Option<Option<Box<DetachedSession>>>,
    /// `None` until the login is accepted.
    accepted: Option<Accepted>,
}

/// A client whose login was accepted.
struct Accepted {
    user: SessionUser,
    /// `None` once the session has been created.
    authorised: Option<AuthorisedSession>,
    owner: Arc<Owner>,
    /// `None` once the session holds the claim, or the claim was released.
    claim: Option<Arc<BrokerClaim>>,
}

impl BrokerAdmission {
    /// Starts the login. If it is decided at once, also checks limits and claims the session.
    ///
    /// # Errors
    /// Returns why the client is refused.
    pub(super) fn new(
        hub: &Arc<Hub>,
        login: MqttLogin,
        core: &mut ConnectionCore,
        version: MqttVersion,
    ) -> Result<Self, MqttRefused> {
        let answer = authenticate(hub, &login, core)
            .inspect_err(|refused| refused.record(login.claimed_user(), core))?;
        let mut admission = Self {
            hub: Arc::clone(hub),
            login,
            version,
            asking: None,
            question: PendingAuthorisation::default(),
            awaits_disk: false,
            granted: None,
            accepted: None,
        };
        match answer {
            LoginAnswer::Now(validated) => admission.accepted = Some(admission.accept(validated, core)?),
            LoginAnswer::Later(answer) => {
                let (broker, client) = (Arc::clone(hub.broker()), admission.login.client_id().to_owned());
                let vhost = admission.vhost(core)?;
                let (hub, owner) = (Arc::clone(hub), admission.login.owner(&vhost));
                admission.asking = Some(BackendRequest::new(&core.outbox, async move {
                    // Topic permissions may refer to the client identifier.
                    let identity = answer.await?.as_client(&client);
                    broker.authorise_vhost(&identity, &vhost).await;
                    if identity.is_asked() && hub.is_without_user(&owner) {
                        authorise_resume(&broker, &identity, &owner).await;
                    }
                    Ok(identity)
                }));
            }
        }
        Ok(admission)
    }

    /// The virtual host that the client opens.
    fn vhost(&self, core: &ConnectionCore) -> Result<String, MqttRefused> {
        let Self { hub, login, .. } = self;
        let (vhost, _) = login.credentials(&hub.config, core.external.as_deref(), core.arrival.port())?;
        Ok(vhost.to_owned())
    }

    /// Opens the virtual host for the user, checks limits, and claims the session.
    ///
    /// # Errors
    /// Returns why the client is refused.
    fn accept(
        &self,
        validated: Result<Identity, LoginRefused>,
        core: &mut ConnectionCore,
    ) -> Result<Accepted, MqttRefused> {
        let Self { hub, login, version, .. } = self;
        let authorised = authorise(hub, login, validated, core)
            .inspect_err(|refused| refused.record(login.claimed_user(), core))?;
        core.user_is_external = !authorised.identity().is_listed();
        let user = SessionUser::of(authorised.identity());
        login::enter(core, &user.name, authorised.vhost().name())?;
        let owner = Arc::new(login.owner(authorised.vhost().name()));
        let claim = Claim::new(&core.outbox, Some(user.clone()));
        let may_adopt = || check_adoption(&authorised, &owner.client_id).is_ok();
        if let Err(foreign) = hub.claim(&owner, authorised.vhost(), &claim, may_adopt) {
            return Err(refuse_foreign(foreign, &owner, &user.name, core, *version));
        }
        Ok(Accepted { user, authorised: Some(authorised), owner, claim: Some(claim) })
    }

    /// Creates the client's session, from `detached_session` if it may be resumed.
    fn admit(
        &mut self,
        detached_session: Option<Box<DetachedSession>>,
        claim: Arc<BrokerClaim>,
        authorised: AuthorisedSession,
        entering: &mut AdmittingConnection<'_>,
    ) -> Admitting {
        let Self { hub, login, version, accepted, .. } = self;
        let Some(Accepted { owner, user, .. }) = accepted else { return Admitting::Pending };
        let AdmittingConnection { core, engine, now } = entering;
        if detached_session.as_ref().is_some_and(|detached_session| detached_session.is_found)
            && found_queues::check(&authorised, &owner.client_id, engine.wants_session()).is_err()
        {
            hub.release(owner, &claim, None);
            let (client_id, user) = (&owner.client_id, &user.name);
            let why = format!("user '{user}' may not have the queues of client identifier '{client_id}'");
            core.login_refused(user, &why);
            return Admitting::Refused(MqttRefused::foreign(*version, why));
        }
        let expiry = login.session_expiry(&hub.config);
        let admitted = Admitted {
            owner: Arc::clone(owner),
            claim,
            authorised,
            connection: core.id,
            expiry,
            is_bridge: login.is_bridge,
        };
        let at = core.shared.clock.timestamp(*now);
        let mut client = Box::new(MqttClient::new(&core.shared, hub, &core.outbox, admitted, at));
        let mut session = None;
        match detached_session {
            // A session is not resumed but ended if its user was deleted, it has expired, or its queue was deleted.
            Some(detached_session)
                if engine.wants_session()
                    && detached_session.belongs_to(user)
                    && !detached_session.is_over(at)
                    && !has_lost_its_queue(&detached_session, client.vhost(), &owner.client_id) =>
            {
                if detached_session.is_found {
                    found_queues::rebind(client.vhost(), &owner.client_id, &hub.config.exchange);
                }
                session = Some(client.adopt(*detached_session));
            }
            Some(detached_session) => hub.end(owner, client.vhost(), *detached_session, at),
            None => {}
        }
        let is_resumed = session.is_some();
        let mut out = Vec::new();
        let dropped = engine.accept(session, login.assigned(), *now, &mut out);
        write(core, out);
        dropped.into_iter().for_each(|tag| MqttSession::delivered(&mut *client, tag, 0, false));
        match client.resume(engine, is_resumed) {
            Ok(()) => Admitting::Admitted(client),
            Err(refusal) => Admitting::NotResumed(client, refusal),
        }
    }
}

impl Admission for BrokerAdmission {
    fn advance(&mut self, entering: &mut AdmittingConnection<'_>) -> Admitting {
        if let Some(validated) = self.asking.as_ref().and_then(BackendRequest::take_answer) {
            self.asking = None;
            match self.accept(validated, entering.core) {
                Ok(accepted) => self.accepted = Some(accepted),
                Err(refused) => return Admitting::Refused(refused),
            }
        }
        let Some(accepted) = &mut self.accepted else { return Admitting::Pending };
        let Some(claim) = accepted.claim.clone() else { return Admitting::Pending };
        if claim.is_superseded() {
            self.leave();
            let why = "superseded by a newer connection".into();
            return Admitting::Refused(MqttRefused::new(ReasonCode::SessionTakenOver, why));
        }
        if self.question.is_open() && !self.question.take_answered() {
            return Admitting::Pending;
        }
        let Some(detached_session) = self.granted.take().or_else(|| claim.take_granted()) else {
            return Admitting::Pending;
        };
        if let Some(store) = self.hub.store()
            && let Some(missing) =
                detached_session.as_ref().map(|detached_session| store.missing(detached_session.until))
            && !missing.is_empty()
            && entering.engine.wants_session()
        {
            // The CONNACK and the packets after it assert session state, such as received QoS 2 messages, that a crash
            // must not lose.
            if !std::mem::replace(&mut self.awaits_disk, true) {
                let waiter: Arc<dyn Waiter> = Arc::new(OutboxWaiter(Arc::clone(&entering.core.outbox)));
                store.wait_for(missing, &waiter);
                // The wait is not the client's fault, so its handshake timeout starts again.
                entering.core.deadline = Some(entering.now + entering.core.shared.config.handshake_timeout);
            }
            self.granted = Some(detached_session);
            return Admitting::Pending;
        }
        let Some(authorised) = accepted.authorised.take() else { return Admitting::Pending };
        let detached_session = detached_session.or_else(|| {
            let (client_id, exchange) = (&accepted.owner.client_id, &self.hub.config.exchange);
            found_queues::session(&authorised, client_id, exchange, entering.engine.wants_session())
        });
        let identity = authorised.identity();
        if identity.is_asked() {
            let wanted = detached_session.as_ref().filter(|_| entering.engine.wants_session());
            let returning = Returning {
                client_id: &accepted.owner.client_id,
                exchange: &self.hub.config.exchange,
                session: wanted.map(|detached_session| &detached_session.session),
                is_found: detached_session.as_ref().is_some_and(|detached_session| detached_session.is_found),
                will_key: self.login.will_key.as_deref(),
            };
            let core = &mut *entering.core;
            if returning.ask(&authorised).is_err() && self.question.ask(true, identity, &core.outbox) {
                // The wait is not the client's fault, and there may be many questions, so its handshake timeout starts
                // again.
                core.deadline = Some(entering.now + core.shared.config.handshake_timeout);
                accepted.authorised = Some(authorised);
                self.granted = Some(detached_session);
                return Admitting::Pending;
            }
        }
        accepted.claim = None;
        self.admit(detached_session, claim, authorised, entering)
    }

    fn leave(&mut self) {
        self.asking = None;
        if let Some(Accepted { claim: claims, owner, .. }) = &mut self.accepted
            && let Some(claim) = claims.take()
        {
            let left = self.granted.take().or_else(|| claim.take_granted()).flatten();
            // The state of a session made from existing queues is still in these queues.
            self.hub.release(owner, &claim, left.filter(|left| !left.is_found));
        }
    }
}

/// Whether the queue of the session's QoS 1 and 2 subscriptions was deleted, and the session's messages with it.
fn has_lost_its_queue(detached_session: &DetachedSession, vhost: &VirtualHost, client_id: &str) -> bool {
    detached_session.needs(Class::Qos1) && vhost.queue(NOBODY, &queue_name(client_id, 1)).is_err()
}

/// Whether the user may adopt a session of an earlier version, which recorded no user. Requires the permissions to delete
/// its queue and to read from it.
fn check_adoption(authorised: &AuthorisedSession, client_id: &str) -> Result<(), BrokerError> {
    let queue = queue_name(client_id, 1);
    authorised.check_delete_queue(&queue)?;
    authorised.check_read_queue(&queue)
}

/// Asks the user's auth backend about [`check_adoption`].
async fn authorise_resume(broker: &Broker, identity: &Identity, owner: &Owner) {
    if let Ok(authorised) = broker.authorised(identity, &owner.vhost) {
        // A refusal is repeated, and reported, when the session is claimed.
        let _ = identity.ask_for(|| check_adoption(&authorised, &owner.client_id)).await;
    }
}

/// Starts the user's authentication.
fn authenticate(hub: &Hub, login: &MqttLogin, core: &mut ConnectionCore) -> Result<LoginAnswer, MqttRefused> {
    let (broker, peer) = (hub.broker(), core.peer);
    let external = core.external.clone();
    let (vhost, login_as) = login.credentials(&hub.config, external.as_deref(), core.arrival.port())?;
    core.logs_in(login_as.user());
    Ok(match login_as {
        LoginAs::Password { user, password } => broker.log_in(LoginAttempt {
            user: user.to_owned(),
            secret: password.to_owned(),
            from: peer.ip(),
            is_loopback: peer.is_loopback(),
            now: Instant::now(),
            context: vec![("vhost", vhost.to_owned()), ("client_id", login.client_id().to_owned())],
        }),
        LoginAs::Identity(user) => LoginAnswer::Now(broker.authenticate_external(user, peer.is_loopback())),
    })
}

/// Opens the virtual host for the user.
fn authorise(
    hub: &Hub,
    login: &MqttLogin,
    validated: Result<Identity, LoginRefused>,
    core: &ConnectionCore,
) -> Result<AuthorisedSession, MqttRefused> {
    let broker = hub.broker();
    let (vhost, _) = login.credentials(&hub.config, core.external.as_deref(), core.arrival.port())?;
    let identity = validated.map_err(|why| match why {
        LoginRefused::LoopbackOnly => MqttRefused::new(ReasonCode::NotAuthorized, why.to_string()),
        why => bad_credentials(&why.to_string()),
    })?;
    // Topic permissions may refer to the client identifier.
    let identity = identity.as_client(login.client_id());
    broker.begin_session(&identity, vhost).map_err(|error| {
        let reason = match error {
            // As in RabbitMQ: the virtual host in front of the user name is wrong.
            BrokerError::NoVirtualHost(_) => ReasonCode::BadUserNameOrPassword,
            _ => ReasonCode::NotAuthorized,
        };
        MqttRefused::vhost(reason, error.into())
    })
}

/// The session belongs to another user. Older clients get the code that RabbitMQ sends if the user may not
/// have the session's queue (return code 3).
fn refuse_foreign(
    _: ForeignSession,
    owner: &Owner,
    user: &str,
    core: &mut ConnectionCore,
    version: MqttVersion,
) -> MqttRefused {
    let why = format!("client identifier '{}' belongs to another user than '{user}'", owner.client_id);
    core.login_refused(user, &why);
    MqttRefused::foreign(version, why)
}
