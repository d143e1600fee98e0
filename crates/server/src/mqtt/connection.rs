//! A client's MQTT connection: CONNECT, its session, and the path between socket and engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::handshake::Negotiated;
use broker::FrontEnd;
use mqtt::server::{Cause, MqttEnd, MqttEvent, ServerConnection as Engine};
use mqtt::{MqttFault, ReasonCode, packet};
use sync::work;
use transport::{Intent, Outbox, Peer, Protocol};

use super::client::{Admitted, MqttClient, Refusal};
use super::delivering::Out;
use super::hub::{Claim, ForeignSession, Hub, Owner};
use super::login::{self, MqttLogin};
use super::subscribing::Request;
use super::waiting::Then;
use crate::access::AccessRecord;
use crate::alarms::Blocked;
use crate::amqp::connection::Ending;
use crate::limits::ConnectionLease;
use crate::registry::{Arrival, OpenConnection, Opening, RegisteredConnection};
use crate::server::Shared;

/// Time limit for the acknowledgements of a client's publishes while the server drains.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers waiting for the disk at which the client is no longer read.
const MAX_WAITING: usize = 1024;

/// The state of one client's connection, driven by [`transport::drive`].
pub(crate) struct MqttConnection {
    shared: Arc<Shared>,
    hub: Arc<Hub>,
    id: u64,
    peer: Peer,
    outbox: Arc<Outbox>,
    /// Released when the connection is dropped.
    place: ConnectionLease,
    engine: Engine,
    phase: MqttPhase,
    intent: Intent,
    /// Deadline of the login, or of a drain.
    deadline: Option<Instant>,
    /// The client has used up its receive rate and is not read until then.
    rested_until: Option<Instant>,
    /// Set while an alarm is raised and the client has published.
    blocked: Option<Blocked>,
    /// The user name of the client's verified certificate.
    external: Option<Arc<str>>,
    reason: Option<String>,
    ending: Ending,
    record: Option<Box<AccessRecord>>,
    arrival: Arrival,
    /// The entry in the registry, once the connection is open.
    registered: Option<RegisteredConnection>,
}

enum MqttPhase {
    /// CONNECT has not been received.
    Start,
    /// The login was accepted; the client is admitted as soon as it has its session.
    Claiming(Box<Claiming>),
    Open(Box<MqttClient>),
    Over,
}

struct Claiming {
    login: MqttLogin,
    owner: Arc<Owner>,
    claim: Arc<Claim>,
}

impl MqttConnection {
    /// # Panics
    /// Panics if the server has not [started](crate::Server::start_mqtt) MQTT.
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u64,
        peer: Peer,
        outbox: Arc<Outbox>,
        place: ConnectionLease,
        now: Instant,
    ) -> Self {
        let hub = Arc::clone(shared.mqtt().expect("MQTT is started before anybody listens for it"));
        let deadline = Some(now + shared.config.handshake_timeout);
        let engine = Engine::new(Arc::clone(&hub.config.settings));
        Self {
            shared,
            hub,
            id,
            peer,
            outbox,
            place,
            engine,
            phase: MqttPhase::Start,
            intent: Intent::Run,
            deadline,
            rested_until: None,
            blocked: None,
            external: None,
            reason: None,
            ending: Ending::Normal,
            record: None,
            arrival: Arrival::of(peer),
            registered: None,
        }
    }

    /// Notes where the connection came from and to. Called before the first input.
    pub(crate) fn arrived(&mut self, arrival: Arrival) {
        self.arrival = arrival;
    }

    /// Offers login by the client's verified certificate, which stands for `user`. Called before the first input.
    pub(crate) fn offer_external(&mut self, user: Arc<str>) {
        self.external = Some(user);
    }

    /// Sets the connection's access-log record, if there is an access log.
    pub(crate) fn keep_record(&mut self, record: Option<Box<AccessRecord>>) {
        self.record = record;
    }

    /// Takes the access-log record when the connection has ended.
    pub(crate) fn take_record(&mut self) -> Option<Box<AccessRecord>> {
        self.go();
        self.record.take()
    }

    /// Why the connection ended, if its protocol knows.
    pub(crate) fn take_reason(&mut self) -> Option<String> {
        self.reason.take()
    }

    /// How the connection ended, and why, as far as known.
    pub(crate) fn ending(&self) -> (Ending, &str) {
        (self.ending, self.reason.as_deref().unwrap_or_default())
    }

    fn take_input(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        while self.intent == Intent::Run
            && self.outbox.backlog() < self.shared.config.outbox_limit
            && !work::is_turn_over()
        {
            work::charge(PACKET, 1);
            let mut out = Vec::new();
            let Self { engine, phase, .. } = self;
            let step = engine.handle_input(&input[taken..], now, &mut out);
            let has_event = step.event.is_some();
            let next = match step.event {
                None => Next::Nothing,
                Some(event) => Next::of(event, phase),
            };
            let step_taken = step.taken;
            self.write(out);
            taken += step_taken;
            self.act(next, now);
            if step_taken == 0 && !has_event {
                break;
            }
        }
        self.after_batch(now);
        if matches!(self.phase, MqttPhase::Over) { input.len() } else { taken }
    }

    /// Performs the action that follows from an event.
    fn act(&mut self, next: Next, now: Instant) {
        match next {
            Next::Nothing => {}
            Next::Connect(login) => self.connect(*login, now),
            Next::Published => {
                if let Some(record) = &mut self.record {
                    record.published += 1;
                }
                self.block_if_alarmed();
            }
            Next::Refused { packet_id: 0, refusal } => {
                self.fail(MqttFault::new(refusal.reason, refusal.text));
            }
            Next::Refused { packet_id, refusal: Refusal { reason, text } } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                // Acknowledgements are sent in the order of their messages (MQTT-4.6.0-2).
                client.flush_published();
                client.wait(Then::Refuse { packet_id, reason, text }, (None, None));
            }
            Next::Subscribe { packet_id, requests } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                let reasons = client.subscribe(&mut self.engine, packet_id, requests);
                // MQTT 3.1 has no code for a failure.
                if self.engine.version() == mqtt::MqttVersion::V31
                    && let Some(reason) = reasons.into_iter().find(|reason| reason.is_error())
                {
                    self.fail(MqttFault::new(reason, "subscription refused"));
                }
            }
            Next::Unsubscribe { packet_id, filters } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                client.unsubscribe(&mut self.engine, packet_id, filters);
            }
            Next::Ended(end) => self.ended(*end),
        }
    }

    fn connect(&mut self, login: Result<MqttLogin, login::MqttRefused>, now: Instant) {
        let login = match login.and_then(|login| self.validate(login)) {
            Ok(login) => login,
            Err(refused) => return self.refuse(&refused),
        };
        let owner = Arc::new(login.owner());
        let claim = Claim::new(&self.outbox, Some(login.user().into()));
        if let Some(vhost) = login.vhost()
            && let Err(foreign) = self.hub.claim(&owner, vhost, &claim, || login.may_adopt())
        {
            return self.refuse_foreign(foreign, &owner, &login);
        }
        self.phase = MqttPhase::Claiming(Box::new(Claiming { login, owner, claim }));
        self.intent = Intent::Pause;
        self.claimed(now);
    }

    /// Authenticates the client, and checks limits.
    fn validate(&mut self, login: MqttLogin) -> Result<MqttLogin, login::MqttRefused> {
        let validated = login.validate(&self.hub, self.peer, self.external.as_deref());
        if let Some(record) = &mut self.record
            && let Some((user, vhost)) = login::names(&validated)
        {
            (record.user, record.vhost) = (user.into(), vhost.into());
        }
        let login = validated.inspect_err(|refused| {
            self.shared.metrics.logins_refused.add(1);
            tracing::warn!(connection = self.id, peer = %self.peer, why = %refused.why, "login refused");
        })?;
        if let Err(limit) = self.place.log_in(login.user()) {
            self.ends(Ending::Limit, || limit.to_string());
            return Err(login::MqttRefused::new(ReasonCode::QuotaExceeded, limit.to_string()));
        }
        Ok(login)
    }

    /// The session belongs to another user. Older clients get the code that RabbitMQ sends if the user may not
    /// have the session's queue (return code 3).
    fn refuse_foreign(&mut self, _: ForeignSession, owner: &Owner, login: &MqttLogin) {
        let user = login.user();
        let why =
            format!("the session of client identifier '{}' is not that of user '{user}'", owner.client_id);
        self.shared.metrics.logins_refused.add(1);
        tracing::warn!(connection = self.id, peer = %self.peer, why, "login refused");
        let reason = match self.engine.version() {
            mqtt::MqttVersion::V5 => ReasonCode::NotAuthorized,
            mqtt::MqttVersion::V31 | mqtt::MqttVersion::V311 => ReasonCode::ServerUnavailable,
        };
        self.refuse(&login::MqttRefused {
            reason,
            why,
            reported: "client identifier in use by another user",
        });
    }

    fn refuse(&mut self, refused: &login::MqttRefused) {
        let mut out = Vec::new();
        self.engine.refuse(refused.reason, refused.reported, &mut out);
        self.write(out);
        self.ends(Ending::Refused, || format!("refused: {}", refused.why));
        self.finish();
    }

    /// Admits the client if it has its session by now.
    fn claimed(&mut self, now: Instant) {
        let MqttPhase::Claiming(claiming) = &self.phase else { return };
        if claiming.claim.is_superseded() {
            let refused =
                login::MqttRefused::new(ReasonCode::SessionTakenOver, "another connection has come".into());
            self.leave_claim();
            return self.refuse(&refused);
        }
        let Some(kept) = claiming.claim.take_granted() else { return };
        let MqttPhase::Claiming(claiming) = std::mem::replace(&mut self.phase, MqttPhase::Over) else {
            return;
        };
        let Claiming { mut login, owner, claim } = *claiming;
        let Some(authorised) = login.take_authorised() else { return };
        let expiry = login.session_expiry(&self.hub.config);
        let admitted = Admitted {
            owner: Arc::clone(&owner),
            claim: Arc::clone(&claim),
            authorised,
            connection: self.id,
            expiry,
            is_bridge: login.is_bridge,
        };
        let at = self.shared.clock.timestamp(now);
        let mut client = Box::new(MqttClient::new(&self.shared, &self.hub, &self.outbox, admitted, at));
        let mut session = None;
        match kept {
            // The session of a deleted user is ended, and so is one that has expired together with its queue.
            Some(kept)
                if self.engine.wants_session() && kept.belongs_to(login.user()) && !kept.is_over(at) =>
            {
                session = Some(client.adopt(*kept));
            }
            Some(kept) => self.hub.end(&owner, client.vhost(), *kept, at),
            None => {}
        }
        let is_resumed = session.is_some();
        let mut out = Vec::new();
        let dropped = self.engine.accept(session, login.assigned(), now, &mut out);
        self.write(out);
        dropped.into_iter().for_each(|tag| client.delivered(tag, 0, false));
        if let Err(Refusal { reason, text }) = client.resume(&self.engine) {
            // The session stays for a user with permission.
            self.phase = MqttPhase::Open(client);
            self.ends(Ending::Refused, || format!("the session cannot be resumed: {reason} ({text})"));
            return self.fail(MqttFault::new(reason, "the session cannot be resumed"));
        }
        client.own_session();
        if client.outlives() {
            client.write_down(self.engine.session());
        } else if is_resumed {
            client.write_down_mortal(self.engine.session());
        }
        match &self.record {
            Some(record) => record.opened(),
            None => {
                let user = login.user();
                tracing::info!(connection = self.id, peer = %self.peer, user, client = &*owner.client_id, "connection opened");
            }
        }
        self.deadline = None;
        self.register(&mut client, at.0);
        self.phase = MqttPhase::Open(client);
        self.intent = Intent::Run;
    }

    /// Makes the connection visible to operators. Closes it if its vhost or user was deleted while it was being opened.
    fn register(&mut self, client: &mut MqttClient, connected_at: u64) {
        let view = OpenConnection::new(Opening {
            id: self.id,
            arrival: self.arrival,
            protocol: match self.engine.version() {
                mqtt::MqttVersion::V31 => "MQTT 3.1",
                mqtt::MqttVersion::V311 => "MQTT 3.1.1",
                mqtt::MqttVersion::V5 => "MQTT 5-0",
            },
            user: client.authorised.identity().user(),
            vhost: client.vhost().name(),
            mechanism: "",
            connected_at,
            negotiated: Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs: 0 },
            client_properties: &client.view_properties(),
            outbox: &self.outbox,
        });
        client.opened(&view);
        self.registered = Some(self.shared.registry.register(Arc::clone(&view)));
        if let Some(reason) = self.shared.backend.missing(&view) {
            view.close(&reason);
        }
    }

    /// Releases a claim that is not used.
    fn leave_claim(&mut self) {
        if let MqttPhase::Claiming(claiming) = std::mem::replace(&mut self.phase, MqttPhase::Over) {
            let left = claiming.claim.take_granted().flatten();
            self.hub.release(&claiming.owner, &claiming.claim, left);
        }
    }

    /// Called at the end of a batch of input, or after a nudge: flushes everything.
    fn after_batch(&mut self, now: Instant) {
        let MqttPhase::Open(client) = &mut self.phase else { return };
        client.flush(&self.engine);
        self.answer(now);
    }

    /// Sends answers whose changes are on disk, and messages.
    fn answer(&mut self, now: Instant) {
        let store = self.hub.store().cloned();
        while !self.outbox.is_closed() {
            let MqttPhase::Open(client) = &mut self.phase else { return };
            let mut out = Vec::new();
            while let Some(then) = client.waiting.next(store.as_ref()) {
                if let Some(end) = apply(then, client, &mut self.engine, &mut out) {
                    self.write(out);
                    return self.ended(end);
                }
            }
            self.outbox.append(|buf| buf.tail().extend_from_slice(&out));
            client.deliver(&mut self.engine);
            if !client.has_arrivals(&self.engine) || !self.outbox.has_room() || !client.may_be_traced() {
                break;
            }
        }
        self.set_intent();
        self.leave_when_settled(now);
    }

    /// Sets whether the client is read.
    fn set_intent(&mut self) {
        let MqttPhase::Open(client) = &self.phase else { return };
        let reads = client.room.is_there() && self.blocked.is_none() && client.waiting.len() < MAX_WAITING;
        self.intent = if reads { Intent::Run } else { Intent::Pause };
    }

    /// Stops reading a client that publishes while an alarm is raised.
    fn block_if_alarmed(&mut self) {
        if self.blocked.is_none()
            && self.shared.alarms.stand()
            && let Some((place, _)) = self.shared.alarms.block(&self.outbox)
        {
            self.blocked = Some(place);
        }
        self.set_intent();
    }

    fn fail(&mut self, fault: MqttFault) {
        let mut out = Vec::new();
        let end = self.engine.fail(fault, &mut out);
        self.write(out);
        if let Some(end) = end {
            self.ended(end);
        }
    }

    /// Ends the connection from the server's side.
    fn disconnect(&mut self, reason: ReasonCode) {
        let mut out = Vec::new();
        let end = self.engine.disconnect(reason, &mut out);
        self.write(out);
        if let Some(end) = end {
            self.ended(end);
        }
    }

    /// Handles the end that the engine has reported.
    fn ended(&mut self, end: MqttEnd) {
        let (ending, reason) = describe(&end, self.shared.is_draining());
        self.ends(ending, || reason);
        self.leave_claim_or_session(Some(end));
        self.finish();
    }

    fn leave_claim_or_session(&mut self, end: Option<MqttEnd>) {
        if let MqttPhase::Claiming(_) = &self.phase {
            self.leave_claim();
        }
        if let MqttPhase::Open(_) = &self.phase
            && let MqttPhase::Open(mut client) = std::mem::replace(&mut self.phase, MqttPhase::Over)
        {
            let end = end.or_else(|| self.engine.handle_eof());
            client.set_time(Instant::now());
            if let Some(end) = end {
                client.end(self.engine.take_session(), end);
            }
        }
        self.phase = MqttPhase::Over;
    }

    /// The socket has closed, whatever the engine knows of it.
    fn go(&mut self) {
        if !matches!(self.phase, MqttPhase::Over) {
            let end = self.engine.handle_eof();
            self.leave_claim_or_session(end);
        }
    }

    fn ends(&mut self, ending: Ending, reason: impl FnOnce() -> String) {
        if self.reason.is_none() {
            self.ending = ending;
            self.reason = Some(reason());
        }
    }

    fn finish(&mut self) {
        self.phase = MqttPhase::Over;
        self.intent = Intent::Finish;
        self.deadline = None;
        self.blocked = None;
    }

    fn write(&self, out: Vec<u8>) {
        if !out.is_empty() {
            self.outbox.append(|buf| buf.push(out.into()));
        }
    }

    /// While the server drains: disconnects an open client once its publishes are acknowledged or the time
    /// limit has passed.
    fn leave_when_settled(&mut self, now: Instant) {
        let MqttPhase::Open(client) = &self.phase else { return };
        if !self.shared.is_draining() {
            return;
        }
        let deadline = *self.deadline.get_or_insert(now + SETTLE_TIMEOUT);
        if client.is_settled() || deadline <= now {
            self.disconnect(ReasonCode::ServerShuttingDown);
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, MqttPhase::Open(_))
    }
}

crate::client::is_client!(MqttConnection);

/// The action for an event, which is borrowed and has to be released first.
enum Next {
    Nothing,
    Connect(Box<Result<MqttLogin, login::MqttRefused>>),
    Published,
    Refused { packet_id: u16, refusal: Refusal },
    Subscribe { packet_id: u16, requests: Vec<Request> },
    Unsubscribe { packet_id: u16, filters: Vec<Box<str>> },
    Ended(Box<MqttEnd>),
}

impl Next {
    fn of(event: MqttEvent<'_>, phase: &mut MqttPhase) -> Self {
        match (event, phase) {
            (MqttEvent::Connect(connect), _) => Self::Connect(Box::new(MqttLogin::of(&connect))),
            (MqttEvent::Ended(end), _) => Self::Ended(Box::new(end)),
            (event, MqttPhase::Open(client)) => Self::of_open(event, client),
            _ => Self::Nothing,
        }
    }

    fn of_open(event: MqttEvent<'_>, client: &mut MqttClient) -> Self {
        match event {
            MqttEvent::Publish(publish) => return Self::of_publish(&publish, client),
            MqttEvent::Released { packet_id } => client.released(packet_id),
            MqttEvent::Delivered { tag, packet_id, to_be_released, .. } => {
                client.delivered(tag, packet_id, to_be_released);
            }
            MqttEvent::Completed { .. } => client.changed = true,
            MqttEvent::Subscribe(event) => {
                return Self::Subscribe { packet_id: event.packet_id(), requests: Request::all(&event) };
            }
            MqttEvent::Unsubscribe { packet_id, filters } => {
                return Self::Unsubscribe { packet_id, filters: filters.iter().map(Into::into).collect() };
            }
            MqttEvent::Connect(_) | MqttEvent::Ended(_) => {}
        }
        Self::Nothing
    }

    fn of_publish(publish: &packet::PublishPacket<'_>, client: &mut MqttClient) -> Self {
        match client.publish(publish) {
            Ok(()) => Self::Published,
            Err(refusal) => Self::Refused { packet_id: publish.packet_id, refusal },
        }
    }
}

/// Performs an action that has waited for the disk. Some of them end the connection.
fn apply(then: Then, client: &mut MqttClient, engine: &mut Engine, out: &mut Vec<u8>) -> Option<MqttEnd> {
    match then {
        Then::Accept { packet_id, matched } => {
            client.shared.metrics.confirms(FrontEnd::Mqtt).given.add(1);
            engine.accepted(packet_id, matched, out);
        }
        Then::Refuse { packet_id, reason, text } => {
            return engine.refuse_publish(packet_id, reason, text, out);
        }
        Then::Release { packet_id } => engine.release(packet_id, out),
        Then::Complete { packet_id } => engine.complete(packet_id, out),
        Then::Subscribed { packet_id, reasons } => engine.subscribed(packet_id, reasons, out),
        Then::Unsubscribed { packet_id, reasons } => engine.unsubscribed(packet_id, reasons, out),
        Then::Send { bytes } => out.extend_from_slice(&bytes),
    }
    None
}

fn describe(end: &MqttEnd, draining: bool) -> (Ending, String) {
    match end.cause {
        Cause::Client(ReasonCode::Success) => (Ending::Normal, "closed by client".to_owned()),
        Cause::Client(reason) => (Ending::Normal, format!("closed by client: {reason}")),
        Cause::Fault(fault) => (Ending::Refused, format!("closed by server: {fault}")),
        Cause::KeepAlive => (Ending::Refused, "client was silent for too long".to_owned()),
        Cause::Eof => (Ending::Normal, "client went away without closing the connection".to_owned()),
        Cause::Server(_) if draining => (Ending::Shutdown, "server is shutting down".to_owned()),
        Cause::Server(reason) => (Ending::Refused, format!("closed by server: {reason}")),
    }
}

/// Cost of a packet before its content is handled, in nanoseconds.
const PACKET: u32 = 200;

impl Protocol for MqttConnection {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        let was_open = self.is_open();
        let taken = self.take_input(input, now);
        self.shared.metrics.bytes_received.add(taken as u64);
        if let Some(registered) = &self.registered {
            registered.connection().has_received(taken);
        }
        if let Some(record) = &mut self.record {
            record.received += taken as u64;
        }
        // Logging in is exempt: its bytes are bounded, and it must not wait for other clients' traffic.
        if was_open && self.is_open() {
            self.rested_until = self.place.received(taken, now);
        }
        taken
    }

    fn handle_eof(&mut self) {
        match self.phase {
            MqttPhase::Start => self.ends(Ending::Normal, || "client went away without a CONNECT".to_owned()),
            _ => self.ends(Ending::Normal, || "client went away without closing the connection".to_owned()),
        }
        self.go();
        self.finish();
    }

    fn handle_nudge(&mut self, now: Instant) {
        if self.shared.is_draining() && !self.is_open() && !matches!(self.phase, MqttPhase::Over) {
            self.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            self.leave_claim();
            return self.finish();
        }
        self.claimed(now);
        let MqttPhase::Open(client) = &mut self.phase else { return };
        client.set_time(now);
        if client.claim().is_superseded() && !client.vhost().is_gone() {
            return self.disconnect(ReasonCode::SessionTakenOver);
        }
        if self
            .registered
            .as_ref()
            .is_some_and(|registered| registered.connection().take_close_reason().is_some())
            || client.has_lost_a_queue()
            || client.claim().is_superseded()
        {
            return self.disconnect(ReasonCode::AdministrativeAction);
        }
        client.room.resume(client.vhost());
        if !self.shared.alarms.stand() {
            self.blocked = None;
        }
        self.after_batch(now);
    }

    fn handle_room(&mut self) {
        let now = Instant::now();
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
            self.answer(now);
        }
    }

    fn handle_written(&mut self, _now: Instant) {}

    fn handle_deadline(&mut self, now: Instant) {
        let rests = self.intent() == Intent::Pause;
        self.rested_until = self.rested_until.filter(|until| now < *until);
        if !self.is_open() && self.deadline.is_some_and(|deadline| deadline <= now) {
            self.ends(Ending::Refused, || "handshake timed out".to_owned());
            self.leave_claim();
            return self.finish();
        }
        self.leave_when_settled(now);
        if rests || self.outbox.backlog() >= self.shared.config.outbox_limit {
            // We do not read what the client sends, so its silence means nothing.
            self.engine.note_unread(now);
        }
        let engine = &mut self.engine;
        let ended = self.outbox.append(|buf| engine.handle_deadline(now, &mut Out(buf)));
        if let Some(end) = ended.flatten() {
            self.ended(end);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.engine.next_deadline(), self.deadline, self.rested_until].into_iter().flatten().min()
    }

    fn intent(&self) -> Intent {
        match self.intent {
            Intent::Run if self.rested_until.is_some() && self.is_open() => Intent::Pause,
            intent => intent,
        }
    }
}

impl Drop for MqttConnection {
    fn drop(&mut self) {
        // The socket failed, or the peer stopped reading: the session has not been notified yet.
        self.go();
    }
}
