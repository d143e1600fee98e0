//! Admission in front of an upstream: the upstream login, the claim to the session, and the session's queues.

use std::sync::Arc;
use std::time::Instant;

use amqp::{Credentials, Fault, FieldTable, FieldValue, ReplyCode};
use broker::Compatibility;
use mqtt::session::Session;
use mqtt::{MqttVersion, ReasonCode};
use transport::Outbox;

use super::hub::{DetachedUpstream, UpstreamClaim, UpstreamHub};
use super::queue_requests::QueueRequest;
use super::retained::LogClient;
use super::session::{AdmittedUpstream, UpstreamSession};
use super::session_takeover::{EarlierConsumer, Watched, Watcher};
use super::state::{ReadState, StateEvent, StateReading, in_use};
use super::teardown::SessionTeardown;
use super::uplink::{Uplink, UplinkEvent};
use crate::backend::{Backend, LoginError, LoginRequest};
use crate::client::{BackendRequest, ConnectionCore, Ending};
use crate::mqtt::admission::{Admission, Admitting, AdmittingConnection, write};
use crate::mqtt::hub::queue_name;
use crate::mqtt::login::{self, LoginAs, MqttLogin, MqttRefused, bad_credentials};
use crate::mqtt::message::MessageMapping;
use crate::mqtt::session_ownership::{Claim, Owner, SessionUser};
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::open_refusal::OpenRefusal;
use crate::upstream::{self, OpenedUpstream, UpstreamRequest};

/// Prefix of the names of shared queues and of the sessions' queues.
pub(super) const SHARED_PREFIX: &str = "mqtt-subscription-";

/// The number of the request whose answer decides, and of the requests before it, whose answers are ignored.
const PROBE: u64 = 0;
const BEFORE: u64 = 1;

/// A client between its CONNECT and its session in front of an upstream.
pub(crate) struct UpstreamAdmission {
    hub: Arc<UpstreamHub>,
    login: MqttLogin,
    owner: Arc<Owner>,
    user: Box<str>,
    version: MqttVersion,
    stage: Stage,
}

enum Stage {
    /// Waits for the upstream's answer to the login.
    Asking(BackendRequest<Result<OpenedUpstream, LoginError>>),
    /// Waits for the announcement to other servers and for the claim.
    Claiming(Box<Claiming>),
    /// Waits for the answer to a request that finds the session's queue (true) or deletes it (false).
    Probing(Box<Claiming>, Option<Box<DetachedUpstream>>, bool),
    /// Reads the state queue; the flag says whether the session's queue was found.
    Reading(Box<Claiming>, Option<Box<DetachedUpstream>>, bool),
    Over,
}

struct Claiming {
    claim: Arc<UpstreamClaim>,
    uplink: Uplink,
    shared_login: UpstreamLogin,
    /// Its announcement to other servers, unless the client cannot connect to them with this session.
    watched: Option<Watched>,
    /// The wait for the consumer of the client's connection to another server.
    earlier: EarlierConsumer,
    reading: StateReading,
    /// Whether the state queue has been deleted because of a stale consumer.
    is_discarded: bool,
    /// The retained messages of its virtual host.
    log: LogClient,
}

impl UpstreamAdmission {
    /// Logs in to the upstream.
    ///
    /// # Errors
    /// The client has no complete credentials.
    pub(crate) fn new(
        hub: &Arc<UpstreamHub>,
        login: MqttLogin,
        core: &mut ConnectionCore,
        version: MqttVersion,
    ) -> Result<Self, MqttRefused> {
        let external = core.external.clone();
        let (vhost, login_as) = login
            .credentials(&hub.config, external.as_deref(), core.arrival.port())
            .inspect_err(|refused| refused.record(login.claimed_user(), core))?;
        let (user, credentials) = match login_as {
            LoginAs::Password { user, password } => (user, Credentials::plain(user, password)),
            // The pool replaces these credentials, or refuses the client.
            LoginAs::Identity(user) => {
                (user, Credentials { username: user.to_owned(), ..Credentials::external(None) })
            }
        };
        core.logs_in(user);
        let request = UpstreamRequest {
            credentials,
            vhost: vhost.into(),
            client: LoginRequest { id: core.id, peer: core.peer },
            client_properties: client_properties(login.client_id()),
        };
        let shared = Arc::clone(&core.shared);
        let asked = BackendRequest::new(&core.outbox, async move { upstream::open(&shared, request).await });
        let (owner, user) = (Arc::new(login.owner(vhost)), user.into());
        Ok(Self { hub: Arc::clone(hub), login, owner, user, version, stage: Stage::Asking(asked) })
    }

    /// Claims the session for a client that the upstream has accepted.
    fn accepted(
        &mut self,
        opened: OpenedUpstream,
        entering: &mut AdmittingConnection<'_>,
    ) -> Result<(), MqttRefused> {
        let AdmittingConnection { core, engine, now } = entering;
        login::enter(core, &self.user, &self.owner.vhost)?;
        let claim = Claim::new(&core.outbox, Some(SessionUser::named(&self.user)));
        if self.hub.claim(&self.owner, &claim).is_err() {
            let (client_id, user) = (&self.owner.client_id, &self.user);
            let why = format!("client identifier '{client_id}' belongs to another user than '{user}'");
            return Err(self.foreign(core, why));
        }
        let OpenedUpstream { client, credentials } = opened;
        let vhost = (*self.owner.vhost).into();
        let shared_login = UpstreamLogin { prefix: SHARED_PREFIX, credentials, vhost };
        let Backend::Upstream(pool) = &core.shared.backend else {
            unreachable!("the backend of this admission is an upstream")
        };
        let log = self.hub.retained.join(pool, &shared_login, &core.outbox);
        let watched = match &core.shared.backend {
            Backend::Upstream(pool) if self.may_come_elsewhere() => {
                let watcher = Watcher {
                    owner: Arc::clone(&self.owner),
                    claim: Arc::clone(&claim),
                    outbox: Arc::clone(&core.outbox),
                    resumes: engine.wants_session(),
                    at: self.hub.clock.wall(*now).0,
                };
                Some(self.hub.takeovers.announce(&self.hub.weak, pool, &shared_login, watcher))
            }
            _ => None,
        };
        let (uplink, earlier) = (Uplink::new(client, &self.hub.config), EarlierConsumer::default());
        let reading = StateReading::default();
        let claiming =
            Claiming { claim, uplink, shared_login, watched, earlier, reading, is_discarded: false, log };
        self.stage = Stage::Claiming(Box::new(claiming));
        Ok(())
    }

    /// Sends the request about the session's queue, once the client is announced and the claim is granted: finds it, or
    /// deletes it if the client wants no earlier session. Returns false if there is still something to wait for.
    fn probe(&mut self, wants_session: bool, compatibility: Compatibility, outbox: &Arc<Outbox>) -> bool {
        let Stage::Claiming(claiming) = &self.stage else { return false };
        if claiming.watched.as_ref().is_some_and(|watched| !watched.is_answered()) {
            return false;
        }
        if !claiming.log.is_decided(outbox) {
            return false;
        }
        let Some(detached_session) = claiming.claim.take_granted() else { return false };
        let Stage::Claiming(mut claiming) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return false;
        };
        let queue = queue_name(&self.owner.client_id, 1).into();
        if wants_session {
            // Also for a session that has expired here: the client may have used it on another server meanwhile.
            claiming.uplink.request(PROBE, QueueRequest::Find { queue });
            claiming.uplink.state().find(&self.state_queue());
        } else if self.login.assigned().is_none() {
            claiming.delete_session(&self.owner, compatibility);
        }
        self.stage = Stage::Probing(claiming, detached_session, wants_session);
        true
    }

    /// Deletes the session's queues. CONNACK then reports that there is no session, so that the client subscribes again.
    fn start_without_session(&mut self, core: &ConnectionCore) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Reading(mut claiming, detached_session, _) => {
                claiming.delete_session(&self.owner, core.shared.backend.compatibility());
                core.outbox.nudge();
                Stage::Probing(claiming, detached_session, false)
            }
            other => other,
        };
    }

    /// Whether the session's queue exists, but its remaining state is neither in the state queue nor known to this
    /// process.
    fn has_lost_its_state(&self, now: Instant) -> bool {
        let Stage::Reading(claiming, detached_session, true) = &self.stage else { return false };
        let at = self.hub.clock.timestamp(now);
        let is_known =
            |known: &DetachedUpstream| !known.is_forgotten && known.has_queue && !known.is_over(at);
        claiming.is_discarded && !detached_session.as_deref().is_some_and(is_known)
    }

    /// Whether the session's queue exists; `None` while the upstream has not answered.
    fn probed(&mut self, entering: &mut AdmittingConnection<'_>) -> Option<Result<bool, MqttRefused>> {
        let Stage::Probing(claiming, _, is_asked) = &mut self.stage else { return None };
        let waker = entering.core.outbox.nudging_waker();
        if let Err(fault) = claiming.uplink.take_turn(&waker, entering.now) {
            return Some(Err(unavailable(entering.core, &fault)));
        }
        if claiming.uplink.is_settled() && self.login.assigned().is_some() && !entering.engine.wants_session()
        {
            return Some(Ok(false));
        }
        if claiming.earlier.poll_pause() {
            let queue = queue_name(&self.owner.client_id, 1).into();
            claiming.uplink.request(PROBE, QueueRequest::Find { queue });
            claiming.uplink.state().find(&queue_name(&self.owner.client_id, 2));
            if let Err(fault) = claiming.uplink.take_turn(&waker, entering.now) {
                return Some(Err(unavailable(entering.core, &fault)));
            }
        }
        while let Some(event) = claiming.uplink.next_event() {
            let answer = match event {
                UplinkEvent::Answered(PROBE, answer) => answer,
                UplinkEvent::State(StateEvent::Lost(fault)) => {
                    return Some(Err(unavailable(entering.core, &fault)));
                }
                _ => continue,
            };
            if claiming.waits(&answer, &entering.core.outbox) {
                return None;
            }
            return Some(match answer {
                Ok(()) => Ok(*is_asked),
                // A client without permission for its queue may still publish.
                Err(fault) if matches!(fault.code, ReplyCode::NotFound | ReplyCode::AccessRefused) => {
                    Ok(false)
                }
                // The queue is exclusive: the session ends with its connection, which is open on another server.
                Err(fault) if fault.code == ReplyCode::ResourceLocked => {
                    Err(self.foreign(entering.core, fault.to_string()))
                }
                Err(fault) => Err(unavailable(entering.core, &fault)),
            });
        }
        None
    }

    /// Reads the state queue; `None` while the upstream has not answered. Otherwise returns whether it exists.
    fn read(&mut self, entering: &mut AdmittingConnection<'_>) -> Option<Result<bool, MqttRefused>> {
        let name = self.state_queue();
        let Stage::Reading(claiming, _, is_found) = &mut self.stage else { return None };
        let (core, is_found) = (&mut *entering.core, *is_found);
        loop {
            // Repeats until the upstream has to answer.
            let waker = core.outbox.nudging_waker();
            if let Err(fault) = claiming.uplink.take_turn(&waker, entering.now) {
                return Some(Err(unavailable(core, &fault)));
            }
            while let Some(event) = claiming.uplink.next_event() {
                if let UplinkEvent::State(StateEvent::Lost(fault)) = event {
                    return Some(Err(unavailable(core, &fault)));
                }
            }
            let asked = claiming.uplink.state().phase();
            match claiming.reading.advance(claiming.uplink.state(), &name, is_found, &core.outbox) {
                ReadState::Pending if claiming.uplink.state().phase() == asked => return None,
                ReadState::Pending => {}
                ReadState::Absent => return Some(Ok(false)),
                ReadState::Read => return Some(Ok(true)),
                ReadState::InUse if claiming.is_announced() && self.hub.note_state_in_use(&self.owner) => {
                    claiming.is_discarded = true;
                    claiming.reading.discard(claiming.uplink.state(), &core.outbox);
                }
                ReadState::InUse => return Some(Err(unavailable(core, &in_use()))),
            }
        }
    }

    /// The name of the state queue: the client's queue name with a 2 where its message queues have their QoS.
    fn state_queue(&self) -> String {
        queue_name(&self.owner.client_id, 2)
    }

    /// Whether the client may connect to another server with this session. If this server has assigned the identifier,
    /// the client learns it from CONNACK, and may resume its session elsewhere only if that outlives the connection.
    fn may_come_elsewhere(&self) -> bool {
        self.login.assigned().is_none() || self.login.session_expiry(&self.hub.config) > 0
    }

    fn foreign(&self, core: &mut ConnectionCore, why: String) -> MqttRefused {
        core.login_refused(&self.user, &why);
        MqttRefused::foreign(self.version, why)
    }

    /// Creates the session. The flags say whether its queue and its state queue exist.
    fn admit(
        &mut self,
        is_found: bool,
        has_state: bool,
        entering: &mut AdmittingConnection<'_>,
    ) -> Admitting {
        let (Stage::Probing(claiming, detached_session, _) | Stage::Reading(claiming, detached_session, _)) =
            std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Admitting::Pending;
        };
        let Claiming { claim, mut uplink, shared_login, watched, log, .. } = *claiming;
        self.hub.note_admitted(&self.owner);
        let AdmittingConnection { core, engine, now } = entering;
        let at = self.hub.clock.timestamp(*now);
        let is_there = |detached_session: &DetachedUpstream| {
            !detached_session.is_over(at) && is_found == detached_session.has_queue
        };
        let mut session = (is_found || has_state).then(Session::new);
        match detached_session {
            // A forgotten session is restored from the upstream's state alone, and its will is discarded.
            Some(detached_session) if detached_session.is_forgotten && session.is_some() => {
                drop(detached_session)
            }
            Some(detached_session)
                if !detached_session.is_forgotten
                    && engine.wants_session()
                    && is_there(&detached_session) =>
            {
                session = Some(detached_session.session);
            }
            Some(detached_session) => detached_session.end(),
            None => {}
        }
        // The upstream's state is newer than this process's.
        session = session.map(|session| uplink.state().restore(session));
        let expiry = self.login.session_expiry(&self.hub.config);
        let compatibility = core.shared.backend.compatibility();
        if engine.version().is_5() {
            engine.set_settings(Arc::clone(self.hub.settings(compatibility, expiry > 0, log.is_available())));
        }
        let mut out = Vec::new();
        engine.accept(session, self.login.assigned(), *now, &mut out);
        write(core, out);
        let admitted = AdmittedUpstream {
            owner: Arc::clone(&self.owner),
            claim,
            watched,
            user: self.user.clone(),
            uplink,
            shared_login,
            log,
            mapping: MessageMapping::of_upstream(compatibility),
            has_queue: is_found,
            is_found: is_found || has_state,
            expiry,
            is_bridge: self.login.is_bridge,
        };
        let mut client =
            Box::new(UpstreamSession::new(&core.shared, &self.hub, &core.outbox, admitted, *now));
        client.resume(engine);
        Admitting::Admitted(client)
    }
}

impl Claiming {
    /// Whether the queue still has a consumer, so that the request has to be repeated after a pause.
    fn waits(&mut self, answer: &Result<(), Fault>, outbox: &Arc<Outbox>) -> bool {
        let is_used = answer.is_ok() && self.uplink.consumers() > 0;
        self.is_announced() && self.earlier.pause(is_used, outbox)
    }

    /// Whether other servers have been notified of the client.
    fn is_announced(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_announced)
    }

    /// Requests that the queues of an earlier session be deleted.
    fn delete_session(&mut self, owner: &Owner, compatibility: Compatibility) {
        let queue = |qos| queue_name(&owner.client_id, qos).into();
        if compatibility == Compatibility::V4 {
            // RabbitMQ 4 also has a queue for QoS 0.
            self.uplink.request(BEFORE, QueueRequest::Delete { queue: queue(0) });
        }
        // Without if-unused, for which the pool would need an own connection for the client. A connection to another
        // server has its consumer cancelled, and is notified of this connection.
        self.uplink.request(BEFORE, QueueRequest::Delete { queue: queue(2) });
        self.uplink.request(PROBE, QueueRequest::Delete { queue: queue(1) });
    }
}

impl Admission for UpstreamAdmission {
    fn advance(&mut self, entering: &mut AdmittingConnection<'_>) -> Admitting {
        if let Stage::Asking(request) = &self.stage {
            let Some(answer) = request.take_answer() else { return Admitting::Pending };
            let answered = match answer {
                Ok(opened) => self.accepted(opened, entering),
                Err(error) => Err(refused(entering.core, &self.owner.vhost, &self.user, error)),
            };
            if let Err(refused) = answered {
                return Admitting::Refused(refused);
            }
        }
        if let Stage::Claiming(claiming) | Stage::Probing(claiming, ..) | Stage::Reading(claiming, ..) =
            &self.stage
            && claiming.claim.is_superseded()
        {
            self.leave();
            let why = "superseded by a newer connection".into();
            return Admitting::Refused(MqttRefused::new(ReasonCode::SessionTakenOver, why));
        }
        if let Stage::Claiming(claiming) = &self.stage
            && self.version.is_5()
            && self.login.retains_will
            && !claiming.log.is_available()
        {
            self.leave();
            let why = "a will cannot be retained".into();
            return Admitting::Refused(MqttRefused::new(ReasonCode::RetainNotSupported, why));
        }
        if let Stage::Claiming(_) = &self.stage
            && !self.probe(
                entering.engine.wants_session(),
                entering.core.shared.backend.compatibility(),
                &entering.core.outbox,
            )
        {
            return Admitting::Pending;
        }
        match self.probed(entering) {
            None => {}
            Some(Ok(is_found)) => match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Probing(claiming, detached_session, true) => {
                    self.stage = Stage::Reading(claiming, detached_session, is_found);
                }
                stage => {
                    self.stage = stage;
                    return self.admit(is_found, false, entering);
                }
            },
            Some(Err(refused)) => {
                self.leave();
                return Admitting::Refused(refused);
            }
        }
        let Stage::Reading(_, _, is_found) = &self.stage else { return Admitting::Pending };
        let is_found = *is_found;
        match self.read(entering) {
            None => Admitting::Pending,
            Some(Ok(false)) if self.has_lost_its_state(entering.now) => {
                self.start_without_session(entering.core);
                Admitting::Pending
            }
            Some(Ok(has_state)) => self.admit(is_found, has_state, entering),
            Some(Err(refused)) => {
                self.leave();
                Admitting::Refused(refused)
            }
        }
    }

    fn leave(&mut self) {
        let (claiming, detached_session) = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Claiming(claiming) => {
                let detached_session = claiming.claim.take_granted().flatten();
                (claiming, detached_session)
            }
            Stage::Probing(claiming, detached_session, _) | Stage::Reading(claiming, detached_session, _) => {
                (claiming, detached_session)
            }
            Stage::Asking(_) | Stage::Over => return,
        };
        let Claiming { claim, mut uplink, watched, .. } = *claiming;
        uplink.stop_consuming();
        // The teardown keeps the claim until a pending deletion is answered, which must not hit the next connection's
        // queue.
        SessionTeardown {
            hub: Arc::clone(&self.hub),
            owner: Arc::clone(&self.owner),
            claim,
            uplink,
            deletes: Vec::new(),
            leaves: Vec::new(),
            left: detached_session,
            will: None,
            watched,
        }
        .start(transport::now());
    }
}

/// The properties by which operators of the upstream know the client.
fn client_properties(client_id: &str) -> FieldTable {
    [("product", FieldValue::text("MQTT client")), ("client_id", FieldValue::text(client_id))]
        .into_iter()
        .collect()
}

/// The refusal for a client that the upstream has not accepted.
fn refused(core: &mut ConnectionCore, vhost: &str, user: &str, error: LoginError) -> MqttRefused {
    let refused = match error {
        LoginError::Refused { why, .. } => bad_credentials(&why),
        LoginError::Failed(fault) => match fault.code {
            ReplyCode::NotAllowed => {
                let reason = match OpenRefusal::of(&fault, vhost, user) {
                    // As in RabbitMQ: the virtual host in front of the user name is wrong.
                    OpenRefusal::NoVirtualHost => ReasonCode::BadUserNameOrPassword,
                    OpenRefusal::NoPermission => ReasonCode::NotAuthorized,
                    OpenRefusal::Limit => ReasonCode::QuotaExceeded,
                };
                MqttRefused::vhost(reason, fault)
            }
            ReplyCode::AccessRefused => MqttRefused::vhost(ReasonCode::NotAuthorized, fault),
            _ => return unavailable(core, &fault),
        },
    };
    refused.record(user, core);
    refused
}

/// The upstream cannot be asked.
fn unavailable(core: &mut ConnectionCore, fault: &Fault) -> MqttRefused {
    core.ends(Ending::Failed, || format!("upstream unavailable: {fault}"));
    MqttRefused::new(ReasonCode::ServerUnavailable, fault.to_string())
}
