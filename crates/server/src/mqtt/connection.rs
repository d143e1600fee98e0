//! A client's MQTT connection: CONNECT, its session, and the path between socket and engine.

use std::sync::Arc;
use std::time::Instant;

use amqp::handshake::Negotiated;
use amqp::{FieldTable, FieldValue};
use broker::Compatibility;
use mqtt::server::{Cause, MqttEnd, MqttEvent, ServerConnection as Engine};
use mqtt::{MqttFault, MqttVersion, ReasonCode, packet};
use sync::work;
use transport::Intent;

use super::MqttBackend;
use super::admission::{Admission, Admitting, AdmittingConnection, write};
use super::delivering::Out;
use super::late_input::LateInput;
use super::login::{MqttLogin, MqttRefused};
use super::session::{ClientIdentity, CloseReason, MqttSession, PendingReply, Refusal, Request};
use crate::alarms::Blocked;
use crate::client::{ConnectionCore, Ending, ProtocolState, SETTLE_TIMEOUT, closed_by_server};
use crate::registry::{ClientSession, NewConnection, OpenConnection};
use crate::websocket::FrameMapping;

/// The MQTT part of a client's connection.
pub(crate) struct MqttConnection {
    core: ConnectionCore,
    backend: MqttBackend,
    engine: Engine,
    phase: MqttPhase,
    intent: Intent,
    /// Set while an alarm is raised and the client has published.
    blocked: Option<Blocked>,
    late_input: LateInput,
}

enum MqttPhase {
    /// CONNECT has not been received.
    Start,
    /// CONNECT has been received, and its answer waits for the backend or for the client's session.
    Admitting(Box<dyn Admission>),
    Open(Box<dyn MqttSession>),
    Over,
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
                self.core.session().inspect(|session| session.count_published());
                self.block_if_alarmed();
            }
            Next::Refused { packet_id: 0, refusal } => {
                self.fail(MqttFault::new(refusal.reason, refusal.text));
            }
            Next::Refused { packet_id, refusal } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                client.refuse(packet_id, refusal);
            }
            Next::Subscribe { packet_id, requests } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                client.subscribe(&mut self.engine, packet_id, requests);
                self.set_intent();
            }
            Next::Unsubscribe { packet_id, filters } => {
                let MqttPhase::Open(client) = &mut self.phase else { return };
                client.unsubscribe(&mut self.engine, packet_id, filters);
                self.set_intent();
            }
            Next::Ended(end) => self.ended(*end),
        }
    }

    fn connect(&mut self, login: Result<MqttLogin, MqttRefused>, now: Instant) {
        let version = self.engine.version();
        match login.and_then(|login| self.backend.admit(login, &mut self.core, version)) {
            Ok(admission) => self.phase = MqttPhase::Admitting(admission),
            Err(refused) => return self.refuse(&refused),
        }
        self.intent = Intent::Pause;
        self.advance(now);
    }

    fn refuse(&mut self, refused: &MqttRefused) {
        let mut out = Vec::new();
        self.engine.refuse(refused.reason, refused.reported, &mut out);
        write(&self.core, out);
        self.core.ends(Ending::Refused, || closed_by_server(&refused.why));
        self.finish();
    }

    /// Admits the client if its admission can be completed by now.
    fn advance(&mut self, now: Instant) {
        let Self { core, engine, phase, .. } = self;
        let MqttPhase::Admitting(admission) = phase else { return };
        match admission.advance(&mut AdmittingConnection { core, engine, now }) {
            Admitting::Pending => {}
            Admitting::Refused(refused) => {
                self.phase = MqttPhase::Over;
                self.refuse(&refused);
            }
            Admitting::NotResumed(client, Refusal { reason, text }) => {
                self.phase = MqttPhase::Open(client);
                self.core
                    .ends(Ending::Refused, || format!("the session cannot be resumed: {reason} ({text})"));
                self.fail(MqttFault::new(reason, "the session cannot be resumed"));
            }
            Admitting::Admitted(mut client) => {
                self.register(&mut *client, now);
                self.phase = MqttPhase::Open(client);
                self.set_intent();
            }
        }
    }

    /// Makes the connection visible to operators.
    fn register(&mut self, client: &mut dyn MqttSession, now: Instant) {
        let ClientIdentity { user, vhost, client_id } = client.identity();
        // As RabbitMQ shows it.
        let client_properties: FieldTable =
            [("client_id", FieldValue::text(client_id))].into_iter().collect();
        let view = OpenConnection::new(NewConnection {
            id: self.core.id,
            arrival: self.core.arrival,
            protocol: protocol_name(self.engine.version(), self.core.shared.backend.compatibility()),
            user,
            vhost,
            mechanism: "",
            connected_at: self.core.shared.clock.wall(now).0,
            negotiated: Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs: self.engine.keep_alive() },
            client_properties: &client_properties,
            session: Some(ClientSession::new(self.engine.session_expiry())),
            outbox: &self.core.outbox,
        });
        client.opened(&view);
        self.core.opened(view);
    }

    /// Ends an admission that is not complete.
    fn leave_admission(&mut self) {
        if let MqttPhase::Admitting(mut admission) = std::mem::replace(&mut self.phase, MqttPhase::Over) {
            admission.leave();
        }
    }

    /// Takes packets until the client has no more capacity, and counts their bytes in `taken`. Returns whether input was
    /// left over for lack of capacity.
    fn take_packets(&mut self, input: &[u8], now: Instant, taken: &mut usize) -> bool {
        let mut at = 0;
        while self.takes() {
            work::charge(PACKET, 1);
            let mut out = Vec::new();
            let Self { engine, phase, backend, core, .. } = self;
            let step = engine.handle_input(&input[at..], now, &mut out);
            let has_event = step.event.is_some();
            let next = match step.event {
                None => Next::Nothing,
                Some(event) => Next::of(event, phase, |connect| {
                    let shared = &core.shared;
                    MqttLogin::of(connect, backend.mapping(shared), shared.config.most_properties())
                }),
            };
            let step_taken = step.taken;
            write(&self.core, out);
            at += step_taken;
            *taken += step_taken;
            self.act(next, now);
            if step_taken == 0 && !has_event {
                return false;
            }
        }
        true
    }

    /// Whether another packet may be taken.
    fn takes(&self) -> bool {
        self.intent == Intent::Run && !self.core.is_backlogged() && !work::is_turn_over()
    }

    /// Called at the end of a batch of input, or after a nudge: flushes everything.
    fn after_batch(&mut self, now: Instant) {
        let MqttPhase::Open(client) = &mut self.phase else { return };
        client.flush(&mut self.engine);
        self.answer(now);
    }

    /// Sends answers whose changes are on disk, and messages.
    fn answer(&mut self, now: Instant) {
        while !self.core.outbox.is_closed() {
            let MqttPhase::Open(client) = &mut self.phase else { return };
            let mut out = Vec::new();
            while let Some(then) = client.next_answer() {
                if let Some(end) = apply(then, &mut self.engine, &mut out) {
                    write(&self.core, out);
                    return self.ended(end);
                }
            }
            self.core.outbox.append(|buf| buf.tail().extend_from_slice(&out));
            client.deliver(&mut self.engine);
            if !self.core.outbox.has_capacity() || !client.has_deliverable(&self.engine) {
                break;
            }
        }
        self.note_session();
        self.set_intent();
        self.leave_when_settled(now);
    }

    /// Publishes the session's current figures to operators' lists.
    fn note_session(&self) {
        if let Some(session) = self.core.session() {
            session.set_subscriptions(self.engine.session().subscription_count());
            session.set_delivered(self.engine.delivered());
        }
    }

    /// Sets whether the connection is read.
    fn set_intent(&mut self) {
        let MqttPhase::Open(client) = &self.phase else { return };
        let reads = client.has_capacity() && self.blocked.is_none();
        self.intent = if reads { Intent::Run } else { Intent::Pause };
    }

    /// Stops reading a client that publishes while an alarm is raised.
    fn block_if_alarmed(&mut self) {
        if self.blocked.is_none()
            && self.core.shared.alarms.any_raised()
            && let Some((place, _)) = self.core.shared.alarms.block(&self.core.outbox)
        {
            self.blocked = Some(place);
            self.core.view().inspect(|view| view.set_blocked(true));
        }
        self.set_intent();
    }

    fn fail(&mut self, fault: MqttFault) {
        let mut out = Vec::new();
        let end = self.engine.fail(fault, &mut out);
        write(&self.core, out);
        if let Some(end) = end {
            self.ended(end);
        }
    }

    /// Ends the connection from the server's side.
    fn disconnect(&mut self, close_reason: &CloseReason) {
        let mut out = Vec::new();
        let end = self.engine.disconnect(close_reason.reason, &close_reason.text, &mut out);
        write(&self.core, out);
        if let Some(end) = end {
            self.ended(end);
        }
    }

    /// Handles the end that the engine has reported.
    fn ended(&mut self, end: MqttEnd) {
        let (ending, reason) = describe(&end, self.core.shared.is_draining());
        self.core.ends(ending, || reason);
        self.leave(Some(end));
        self.finish();
    }

    fn leave(&mut self, end: Option<MqttEnd>) {
        if let MqttPhase::Admitting(_) = &self.phase {
            self.leave_admission();
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

    /// While the server drains: disconnects an open client once its publishes are acknowledged or the time
    /// limit has passed.
    fn leave_when_settled(&mut self, now: Instant) {
        let MqttPhase::Open(client) = &self.phase else { return };
        if !self.core.must_leave() {
            return;
        }
        let deadline = self.core.settle_deadline(now, SETTLE_TIMEOUT);
        if client.is_settled() || deadline <= now {
            self.disconnect(&CloseReason::new(ReasonCode::ServerShuttingDown, "server is shutting down"));
        }
    }
}

/// The action for an event, which is borrowed and has to be released first.
enum Next {
    Nothing,
    Connect(Box<Result<MqttLogin, MqttRefused>>),
    Published,
    Refused { packet_id: u16, refusal: Refusal },
    Subscribe { packet_id: u16, requests: Vec<Request> },
    Unsubscribe { packet_id: u16, filters: Vec<Box<str>> },
    Ended(Box<MqttEnd>),
}

impl Next {
    fn of(
        event: MqttEvent<'_>,
        phase: &mut MqttPhase,
        log_in: impl FnOnce(&packet::ConnectPacket<'_>) -> Result<MqttLogin, MqttRefused>,
    ) -> Self {
        match (event, phase) {
            (MqttEvent::Connect(connect), _) => Self::Connect(Box::new(log_in(&connect))),
            (MqttEvent::Ended(end), _) => Self::Ended(Box::new(end)),
            (event, MqttPhase::Open(client)) => Self::of_open(event, &mut **client),
            _ => Self::Nothing,
        }
    }

    fn of_open(event: MqttEvent<'_>, client: &mut dyn MqttSession) -> Self {
        match event {
            MqttEvent::Publish(publish) => return Self::of_publish(&publish, client),
            MqttEvent::Released { packet_id } => client.released(packet_id),
            MqttEvent::Delivered { tag, packet_id, reason, to_be_released } => {
                client.delivered(tag, packet_id, to_be_released);
                if reason.is_error() {
                    client.completed(packet_id);
                }
            }
            MqttEvent::Completed { packet_id, .. } => client.completed(packet_id),
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

    fn of_publish(publish: &packet::PublishPacket<'_>, client: &mut dyn MqttSession) -> Self {
        match client.publish(publish) {
            Ok(()) => Self::Published,
            Err(refusal) => Self::Refused { packet_id: publish.packet_id, refusal },
        }
    }
}

/// The protocol with its version, as that release of RabbitMQ shows it.
fn protocol_name(version: MqttVersion, compatibility: Compatibility) -> &'static str {
    match (version, compatibility) {
        (MqttVersion::V31, Compatibility::V3_10) => "MQTT 3.1.0",
        (MqttVersion::V311, Compatibility::V3_10) => "MQTT 3.1.1",
        (MqttVersion::V31, Compatibility::V4) => "MQTT 3-1",
        (MqttVersion::V311, Compatibility::V4) => "MQTT 3-1-1",
        // RabbitMQ 3.10 does not speak it.
        (MqttVersion::V5, _) => "MQTT 5-0",
    }
}

/// Sends an answer that is due. Some end the connection.
fn apply(then: PendingReply, engine: &mut Engine, out: &mut Vec<u8>) -> Option<MqttEnd> {
    match then {
        PendingReply::Accept { packet_id, matched } => engine.accepted(packet_id, matched, out),
        PendingReply::Refuse { packet_id, reason, text } => {
            return engine.refuse_publish(packet_id, reason, text, out);
        }
        PendingReply::QueueFull { packet_id } => {
            engine.refuse_for_full_queue(packet_id, "a queue is full", out)
        }
        PendingReply::Release { packet_id } => engine.release(packet_id, out),
        PendingReply::Complete { packet_id } => engine.complete(packet_id, out),
        PendingReply::Subscribed { packet_id, reasons } => {
            // MQTT 3.1 has no code for a failure.
            if engine.version() == MqttVersion::V31
                && let Some(reason) = reasons.iter().find(|reason| reason.is_error())
            {
                return engine.fail(MqttFault::new(*reason, "subscription refused"), out);
            }
            engine.subscribed(packet_id, reasons, out);
        }
        PendingReply::Unsubscribed { packet_id, reasons } => engine.unsubscribed(packet_id, reasons, out),
        PendingReply::Send { bytes } => out.extend_from_slice(&bytes),
    }
    None
}

fn describe(end: &MqttEnd, draining: bool) -> (Ending, String) {
    match end.cause {
        Cause::Client(ReasonCode::Success) => (Ending::Normal, "closed by client".to_owned()),
        Cause::Client(reason) => (Ending::Normal, format!("closed by client: {reason}")),
        Cause::Fault(fault) => (Ending::Refused, closed_by_server(fault)),
        Cause::KeepAlive => (Ending::Refused, "client was silent for too long".to_owned()),
        Cause::Eof => (Ending::Normal, "client unexpectedly closed TCP connection".to_owned()),
        Cause::Server(_) if draining => (Ending::Shutdown, "server is shutting down".to_owned()),
        Cause::Server(reason) => (Ending::Refused, closed_by_server(reason)),
    }
}

/// Cost of a packet before its content is handled, in nanoseconds.
const PACKET: u32 = 200;

impl ProtocolState for MqttConnection {
    const CARRIAGE: FrameMapping = FrameMapping::Bytes;

    /// # Panics
    /// Panics if the server has not [started](crate::Server::start_mqtt) MQTT.
    fn new(core: ConnectionCore, _now: Instant) -> Self {
        let backend = core.shared.mqtt().expect("MQTT is started before anybody listens for it").clone();
        let engine = Engine::new(Arc::clone(&backend.config().settings));
        Self {
            core,
            backend,
            engine,
            phase: MqttPhase::Start,
            intent: Intent::Run,
            blocked: None,
            late_input: LateInput::default(),
        }
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
        self.late_input.received();
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        let mut taken = 0;
        loop {
            let at = taken;
            let was_full = self.take_packets(&input[at..], now, &mut taken);
            self.after_batch(now);
            // The batch itself may have freed capacity, and then no later event would make the rest of the input be
            // taken.
            if !(was_full && self.takes()) {
                break;
            }
        }
        if matches!(self.phase, MqttPhase::Over) { input.len() } else { taken }
    }

    fn handle_eof(&mut self, now: Instant) {
        match self.phase {
            MqttPhase::Start => {
                self.core.ends(Ending::Normal, || "client closed the connection before CONNECT".to_owned())
            }
            _ => self.core.ends(Ending::Normal, || "client unexpectedly closed TCP connection".to_owned()),
        }
        self.end_session(now);
        self.finish();
    }

    fn handle_nudge(&mut self, now: Instant) {
        if self.core.shared.is_draining() && !self.is_open() && !matches!(self.phase, MqttPhase::Over) {
            self.core.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            self.leave_admission();
            return self.finish();
        }
        self.advance(now);
        let MqttPhase::Open(client) = &mut self.phase else { return };
        client.set_time(now);
        if let Some(close_reason) = client.handle_nudge() {
            if close_reason.reason == ReasonCode::SessionTakenOver && self.late_input.read_on() {
                return self.core.outbox.nudge();
            }
            return self.disconnect(&close_reason);
        }
        if let Some(why) = self.core.take_close_reason() {
            return self.disconnect(&CloseReason::new(ReasonCode::AdministrativeAction, String::from(why)));
        }
        if self.blocked.is_some() && !self.core.shared.alarms.any_raised() {
            self.blocked = None;
            self.core.view().inspect(|view| view.set_blocked(false));
        }
        self.after_batch(now);
    }

    fn handle_capacity(&mut self, now: Instant) {
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
            self.answer(now);
        }
    }

    fn handle_deadline(&mut self, now: Instant, is_unread: bool) {
        if !self.is_open() && self.core.is_late(now) {
            self.core.ends(Ending::Refused, || "handshake timed out".to_owned());
            self.leave_admission();
            return self.finish();
        }
        if let MqttPhase::Open(client) = &mut self.phase {
            client.set_time(now);
        }
        self.leave_when_settled(now);
        if is_unread {
            self.engine.pause_keep_alive(now);
        }
        let engine = &mut self.engine;
        let ended = self.core.outbox.append(|buf| engine.handle_deadline(now, &mut Out(buf)));
        if let Some(end) = ended.flatten() {
            return self.ended(end);
        }
        if let MqttPhase::Open(client) = &self.phase
            && client.next_deadline().is_some_and(|deadline| deadline <= now)
        {
            self.handle_nudge(now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_session = match &self.phase {
            MqttPhase::Open(client) => client.next_deadline(),
            _ => None,
        };
        [self.engine.next_deadline(), of_session].into_iter().flatten().min()
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
            self.leave(end);
        }
    }
}
