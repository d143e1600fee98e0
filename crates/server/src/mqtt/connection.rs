//! A client's MQTT connection: CONNECT, its session, and the path between socket and engine.

use std::sync::Arc;
use std::time::Instant;

use amqp::handshake::Negotiated;
use broker::{Compatibility, DiskPoint, FrontEnd};
use mqtt::server::{Cause, MqttEnd, MqttEvent, ServerConnection as Engine};
use mqtt::{MqttFault, ReasonCode, packet};
use sync::work;
use transport::Intent;

use super::client::{Admitted, MqttClient, Refusal};
use super::delivering::Out;
use super::hub::{Claim, ForeignSession, Hub, Owner};
use super::login::{self, MqttLogin};
use super::subscribing::Request;
use super::waiting::Then;
use crate::alarms::Blocked;
use crate::client::{ConnectionCore, Ending, ProtocolState};
use crate::registry::{OpenConnection, Opening};
use crate::websocket::Carriage;

/// Answers waiting for the disk at which the client is no longer read.
const MAX_WAITING: usize = 1024;

/// The MQTT part of a client's connection.
pub(crate) struct MqttConnection {
    core: ConnectionCore,
    hub: Arc<Hub>,
    engine: Engine,
    phase: MqttPhase,
    intent: Intent,
    /// Set while an alarm is raised and the client has published.
    blocked: Option<Blocked>,
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
    /// Performs the action that follows from an event.
    fn act(&mut self, next: Next, now: Instant) {
        match next {
            Next::Nothing => {}
            Next::Connect(login) => self.connect(*login, now),
            Next::Published => {
                if let Some(record) = &mut self.core.record {
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
                client.wait(Then::Refuse { packet_id, reason, text }, DiskPoint::default());
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
        let claim = Claim::new(&self.core.outbox, Some(login.user().into()));
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
        let claimed = login.user().to_owned();
        let validated = login.validate(&self.hub, self.core.peer, self.core.external.as_deref());
        let login = validated.inspect_err(|refused| self.core.login_refused(&claimed, &refused.why))?;
        self.core.logs_in(login.user());
        self.core.enters(login.vhost_name());
        if let Err(limit) = self.core.lease.log_in(login.user()) {
            self.core.ends(Ending::Limit, || limit.to_string());
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
        self.core.login_refused(user, &why);
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
        self.core.ends(Ending::Refused, || format!("refused: {}", refused.why));
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
            connection: self.core.id,
            expiry,
            is_bridge: login.is_bridge,
        };
        let at = self.core.shared.clock.timestamp(now);
        let mut client =
            Box::new(MqttClient::new(&self.core.shared, &self.hub, &self.core.outbox, admitted, at));
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
            self.core.ends(Ending::Refused, || format!("the session cannot be resumed: {reason} ({text})"));
            return self.fail(MqttFault::new(reason, "the session cannot be resumed"));
        }
        client.own_session();
        if client.outlives() {
            client.write_down(self.engine.session());
        } else if is_resumed {
            client.write_down_mortal(self.engine.session());
        }
        self.register(&mut client, at.0);
        self.phase = MqttPhase::Open(client);
        self.intent = Intent::Run;
    }

    /// Makes the connection visible to operators.
    fn register(&mut self, client: &mut MqttClient, connected_at: u64) {
        let view = OpenConnection::new(Opening {
            id: self.core.id,
            arrival: self.core.arrival,
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
            outbox: &self.core.outbox,
        });
        client.opened(&view);
        self.core.opened(view);
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
        while !self.core.outbox.is_closed() {
            let MqttPhase::Open(client) = &mut self.phase else { return };
            let mut out = Vec::new();
            while let Some(then) = client.waiting.next(store.as_ref()) {
                if let Some(end) = apply(then, client, &mut self.engine, &mut out) {
                    self.write(out);
                    return self.ended(end);
                }
            }
            self.core.outbox.append(|buf| buf.tail().extend_from_slice(&out));
            client.deliver(&mut self.engine);
            if !client.has_arrivals(&self.engine) || !self.core.outbox.has_room() || !client.may_be_traced() {
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
            && self.core.shared.alarms.stand()
            && let Some((place, _)) = self.core.shared.alarms.block(&self.core.outbox)
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
        let (ending, reason) = describe(&end, self.core.shared.is_draining());
        self.core.ends(ending, || reason);
        self.leave_claim_or_session(Some(end));
        self.finish();
    }

    fn leave_claim_or_session(&mut self, end: Option<MqttEnd>) {
        if let MqttPhase::Claiming(_) = &self.phase {
            self.leave_claim();
        }
        if let MqttPhase::Open(_) = &self.phase
            && let MqttPhase::Open(client) = std::mem::replace(&mut self.phase, MqttPhase::Over)
        {
            let end = end.or_else(|| self.engine.handle_eof());
            if let Some(end) = end {
                client.end(self.engine.take_session(), end);
            }
        }
        self.phase = MqttPhase::Over;
    }

    fn finish(&mut self) {
        self.phase = MqttPhase::Over;
        self.intent = Intent::Finish;
        self.core.deadline = None;
        self.blocked = None;
    }

    fn write(&self, out: Vec<u8>) {
        if !out.is_empty() {
            self.core.outbox.append(|buf| buf.push(out.into()));
        }
    }

    /// While the server drains: disconnects an open client once its publishes are acknowledged or the time
    /// limit has passed.
    fn leave_when_settled(&mut self, now: Instant) {
        let MqttPhase::Open(client) = &self.phase else { return };
        if !self.core.shared.is_draining() {
            return;
        }
        let deadline = self.core.settle_deadline(now);
        if client.is_settled() || deadline <= now {
            self.disconnect(ReasonCode::ServerShuttingDown);
        }
    }
}

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
    fn of(event: MqttEvent<'_>, phase: &mut MqttPhase, compatibility: Compatibility) -> Self {
        match (event, phase) {
            (MqttEvent::Connect(connect), _) => {
                Self::Connect(Box::new(MqttLogin::of(&connect, compatibility)))
            }
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

impl ProtocolState for MqttConnection {
    const CARRIAGE: Carriage = Carriage::Bytes;

    /// # Panics
    /// Panics if the server has not [started](crate::Server::start_mqtt) MQTT.
    fn new(core: ConnectionCore, _now: Instant) -> Self {
        let hub = Arc::clone(core.shared.mqtt().expect("MQTT is started before anybody listens for it"));
        let engine = Engine::new(Arc::clone(&hub.config.settings));
        Self { core, hub, engine, phase: MqttPhase::Start, intent: Intent::Run, blocked: None }
    }

    fn core(&self) -> &ConnectionCore {
        &self.core
    }

    fn core_mut(&mut self) -> &mut ConnectionCore {
        &mut self.core
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, MqttPhase::Open(_))
    }

    fn take_input(&mut self, input: &[u8], now: Instant) -> usize {
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        let mut taken = 0;
        while self.intent == Intent::Run && !self.core.is_backlogged() && !work::is_turn_over() {
            work::charge(PACKET, 1);
            let mut out = Vec::new();
            let compatibility = self.hub.broker().compatibility();
            let Self { engine, phase, .. } = self;
            let step = engine.handle_input(&input[taken..], now, &mut out);
            let has_event = step.event.is_some();
            let next = match step.event {
                None => Next::Nothing,
                Some(event) => Next::of(event, phase, compatibility),
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

    fn handle_eof(&mut self, now: Instant) {
        match self.phase {
            MqttPhase::Start => {
                self.core.ends(Ending::Normal, || "client went away without a CONNECT".to_owned())
            }
            _ => self
                .core
                .ends(Ending::Normal, || "client went away without closing the connection".to_owned()),
        }
        self.end_session(now);
        self.finish();
    }

    fn handle_nudge(&mut self, now: Instant) {
        if self.core.shared.is_draining() && !self.is_open() && !matches!(self.phase, MqttPhase::Over) {
            self.core.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            self.leave_claim();
            return self.finish();
        }
        self.claimed(now);
        let MqttPhase::Open(client) = &mut self.phase else { return };
        client.set_time(now);
        if client.claim().is_superseded() && !client.vhost().is_gone() {
            return self.disconnect(ReasonCode::SessionTakenOver);
        }
        if self.core.take_close_reason().is_some()
            || client.has_lost_a_queue()
            || client.claim().is_superseded()
        {
            return self.disconnect(ReasonCode::AdministrativeAction);
        }
        client.room.resume(client.vhost());
        if !self.core.shared.alarms.stand() {
            self.blocked = None;
        }
        self.after_batch(now);
    }

    fn handle_room(&mut self, now: Instant) {
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
            self.answer(now);
        }
    }

    fn handle_deadline(&mut self, now: Instant, is_unread: bool) {
        if !self.is_open() && self.core.is_late(now) {
            self.core.ends(Ending::Refused, || "handshake timed out".to_owned());
            self.leave_claim();
            return self.finish();
        }
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        self.leave_when_settled(now);
        if is_unread {
            self.engine.note_unread(now);
        }
        let engine = &mut self.engine;
        let ended = self.core.outbox.append(|buf| engine.handle_deadline(now, &mut Out(buf)));
        if let Some(end) = ended.flatten() {
            self.ended(end);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.engine.next_deadline()
    }

    fn intent(&self) -> Intent {
        self.intent
    }

    fn end_session(&mut self, now: Instant) {
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        if !matches!(self.phase, MqttPhase::Over) {
            let end = self.engine.handle_eof();
            self.leave_claim_or_session(end);
        }
    }
}
