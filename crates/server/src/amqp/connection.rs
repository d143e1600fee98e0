//! A client's AMQP connection: handshake, heartbeats, channel 0, and the session on the backend.

mod succession;

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::channel::{ConnectionLife, ConnectionStep};
use amqp::error::{Fault, ReplyCode};
use amqp::frame::{self, Frame, FrameKind, HEARTBEAT};
use amqp::handshake::{OpenRequest, ServerEnd, ServerEvent, ServerHandshake};
use amqp::heartbeat::{Heartbeat, HeartbeatAction};
use amqp::method::{Method, connection};
use amqp::sasl::{Credentials, Mechanism};
use sync::work;
use transport::Intent;

use self::succession::PROTOCOL;
pub(crate) use self::succession::{ConnectionState, closing};
use super::session::{BackendSession, Deferral};
use crate::backend::{BackendLogin, LoginError, LoginRequest};
use crate::client::{
    BackendRequest, ConnectionCore, Ending, LOGIN_REFUSED, ProtocolState, SETTLE_TIMEOUT, closed_by_server,
};
use crate::registry::{NewConnection, OpenConnection};
use crate::spool::PendingLogin;
use crate::websocket::FrameMapping;

/// Time limit for a client's close-ok before its socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The AMQP part of a client's connection.
pub(crate) struct AmqpConnection {
    core: ConnectionCore,
    phase: AmqpPhase,
    /// The session once its end has begun, until it has [ended](BackendSession::has_ended), which may take several turns.
    ending: Option<Box<dyn BackendSession>>,
    /// The error of a connection.close that follows once the session has ended.
    unsent_close: Option<Box<Fault>>,
    /// Open or closing, once past the handshake.
    life: ConnectionLife,
    /// Channels counted by `count_channels`; 0 before and after the session.
    channels: usize,
    intent: Intent,
    heartbeat: Heartbeat,
    /// The negotiated maximum frame size, in bytes.
    frame_max: u32,
    asking: Option<BackendRequest<Answer>>,
}

enum AmqpPhase {
    Handshake(Box<Handshake>),
    Open(Box<dyn BackendSession>),
    /// A connection handed over by another process whose session is not open here yet; with its future registry entry.
    Resuming(Arc<OpenConnection>),
    /// The client sent connection.close, and its session has not finished closing.
    Leaving(Box<dyn BackendSession>),
    /// The server sent connection.close: everything but close-ok is discarded.
    Closing,
    Over,
}

struct Handshake {
    machine: ServerHandshake,
    /// Whether the backend is known to be available. Until then nothing is sent to the client.
    admitted: bool,
    login: Option<BackendLogin>,
    mechanism: &'static str,
    /// The future registry entry, while the backend opens the session.
    view: Option<Arc<OpenConnection>>,
    user: String,
}

enum Answer {
    /// Whether the backend is available.
    Available(bool),
    Login(Result<BackendLogin, LoginError>),
    Open(Result<Box<dyn BackendSession>, Fault>),
}

impl AmqpConnection {
    fn ending_with(&self, code: ReplyCode) -> Ending {
        match code {
            ReplyCode::ConnectionForced if self.core.shared.is_draining() => Ending::Shutdown,
            ReplyCode::ConnectionForced | ReplyCode::InternalError => Ending::Failed,
            _ => Ending::Refused,
        }
    }

    /// Whether the handshake may proceed. While no upstream is available, the client's connection is closed before
    /// `connection.start`, as if its broker were down: client libraries reconnect after that. Some give up for good after
    /// a later error, such as a failed login.
    fn admit(&mut self) -> bool {
        let AmqpPhase::Handshake(handshake) = &mut self.phase else { return true };
        if handshake.admitted {
            return true;
        }
        match self.core.shared.backend.answers() {
            Some(true) => handshake.admitted = true,
            // A probe may take longer than clients wait for a handshake.
            _ if self.core.shared.admits_offline() => handshake.admitted = true,
            Some(false) => self.close_abruptly(NO_UPSTREAM.to_owned()),
            None => {
                let shared = Arc::clone(&self.core.shared);
                self.ask(async move { Answer::Available(shared.backend.probe_endpoints().await) });
                return false;
            }
        }
        true
    }

    /// Closes the connection without an error frame, like a broker that crashes.
    fn close_abruptly(&mut self, reason: String) {
        self.core.ends(Ending::Failed, || reason);
        self.finish();
    }

    fn step_handshake(&mut self, now: Instant) {
        let AmqpPhase::Handshake(handshake) = &mut self.phase else { return };
        let event = handshake.machine.poll_event();
        self.core.outbox.append(|buf| handshake.machine.poll_output(buf.tail()));
        match event {
            None => {}
            Some(ServerEvent::Authenticate(credentials)) => self.authenticate(credentials, now),
            Some(ServerEvent::Open(request)) => self.open(*request, now),
            // None of the offered mechanisms has a second step.
            Some(ServerEvent::Response(_)) => {
                self.fail(Fault::new(ReplyCode::CommandInvalid, "unexpected secure-ok"), now);
            }
            Some(ServerEvent::Ended(end)) => {
                let ending = match &end {
                    ServerEnd::ClosedByPeer | ServerEnd::Eof => Ending::Normal,
                    ServerEnd::Faulted(fault) => self.ending_with(fault.code),
                    ServerEnd::BadProtocolHeader | ServerEnd::LoginRefused => Ending::Refused,
                };
                self.core.ends(ending, || describe(&end));
                self.finish();
            }
        }
    }

    fn authenticate(&mut self, mut credentials: Credentials, now: Instant) {
        if let AmqpPhase::Handshake(handshake) = &mut self.phase {
            if credentials.mechanism == Mechanism::External
                && let Some(user) = &self.core.external
            {
                credentials.username = user.to_string();
            }
            handshake.user.clone_from(&credentials.username);
            handshake.mechanism = credentials.mechanism.name();
            self.core.logs_in(&handshake.user);
        }
        let shared = Arc::clone(&self.core.shared);
        let client = LoginRequest { id: self.core.id, peer: self.core.peer };
        match shared.backend.login_at_once(&credentials, client) {
            Some(result) => self.answered(Answer::Login(result), now),
            None => self.ask(async move { Answer::Login(shared.login_amqp(credentials, client).await) }),
        }
    }

    fn open(&mut self, request: OpenRequest, now: Instant) {
        let AmqpPhase::Handshake(handshake) = &mut self.phase else { return };
        let Some(login) = handshake.login.take() else {
            return self.fail(Fault::new(ReplyCode::InternalError, "not logged in"), now);
        };
        if let Err(limit) = self.core.lease.log_in(&handshake.user) {
            let text = format!(
                "access to vhost '{}' refused for user '{}': {limit}",
                request.virtual_host, handshake.user
            );
            self.core.ends(Ending::Limit, || limit.to_string());
            return self.answered(Answer::Open(Err(Fault::new(ReplyCode::NotAllowed, text))), now);
        }
        self.core.enters(&request.virtual_host);
        self.frame_max = request.negotiated.frame_max;
        self.heartbeat = Heartbeat::new(request.negotiated.heartbeat_secs, now);
        let shared = Arc::clone(&self.core.shared);
        let outbox = Arc::clone(&self.core.outbox);
        let view = OpenConnection::new(NewConnection {
            id: self.core.id,
            arrival: self.core.arrival,
            protocol: PROTOCOL,
            user: &handshake.user,
            vhost: &request.virtual_host,
            mechanism: handshake.mechanism,
            connected_at: shared.clock.wall(now).0,
            negotiated: request.negotiated,
            client_properties: &request.client_properties,
            session: None,
            outbox: &outbox,
        });
        handshake.view = Some(Arc::clone(&view));
        match login {
            BackendLogin::Broker(identity) if identity.is_asked() => {
                let (asked, id) = (Arc::clone(&shared), self.core.id);
                self.ask(async move {
                    asked.backend.authorise_vhost(&identity, &request.virtual_host).await;
                    Answer::Open(asked.backend.open_broker(&asked, identity, id, &request, (outbox, view)))
                });
            }
            BackendLogin::Broker(identity) => {
                let session =
                    shared.backend.open_broker(&shared, identity, self.core.id, &request, (outbox, view));
                self.answered(Answer::Open(session), now);
            }
            BackendLogin::Upstream(login) => {
                let login = PendingLogin::decided(login);
                self.ask(async move { Answer::Open(shared.open_amqp(login, &request, outbox).await) });
            }
            BackendLogin::Pending(login) => {
                self.ask(async move { Answer::Open(shared.open_amqp(login, &request, outbox).await) });
            }
        }
    }

    /// Sends a request to the backend without blocking the connection's task. Input waits for the answer.
    fn ask(&mut self, question: impl Future<Output = Answer> + Send + 'static) {
        self.intent = Intent::Pause;
        self.asking = Some(BackendRequest::new(&self.core.outbox, question));
    }

    fn answered(&mut self, answer: Answer, now: Instant) {
        self.asking = None;
        if let AmqpPhase::Resuming(_) = &self.phase {
            return self.resumed(answer, now);
        }
        let AmqpPhase::Handshake(handshake) = &mut self.phase else { return };
        self.intent = Intent::Run;
        match answer {
            Answer::Available(true) => {
                handshake.admitted = true;
                return;
            }
            Answer::Available(false) => return self.close_abruptly(NO_UPSTREAM.to_owned()),
            // The backend is unavailable. The client must not receive a refusal, or a close that looks like one.
            Answer::Login(Err(LoginError::Failed(fault))) | Answer::Open(Err(fault))
                if fault.code == ReplyCode::ConnectionForced =>
            {
                return self.close_abruptly(fault.text.into_owned());
            }
            Answer::Login(Ok(login)) => {
                if let BackendLogin::Broker(identity) = &login {
                    self.core.user_is_external = !identity.is_listed();
                    // The user is named by the token.
                    if identity.user() != handshake.user {
                        identity.user().clone_into(&mut handshake.user);
                        self.core.logs_in(&handshake.user);
                    }
                }
                handshake.login = Some(login);
                handshake.machine.accept_login();
            }
            Answer::Login(Err(LoginError::Refused { text, why })) => {
                // Recorded now: a client may disconnect before the handshake ends.
                self.core.login_refused(&handshake.user, &why);
                handshake.machine.refuse_login(text);
            }
            Answer::Login(Err(LoginError::Failed(fault))) => return self.fail(fault, now),
            Answer::Open(Ok(session)) => {
                handshake.machine.accept_open();
                self.core.outbox.append(|buf| handshake.machine.poll_output(buf.tail()));
                let view = handshake.view.take();
                self.phase = AmqpPhase::Open(session);
                if let Some(view) = view {
                    self.core.opened(view);
                }
                return;
            }
            Answer::Open(Err(fault)) => {
                if fault.code == ReplyCode::NotAllowed {
                    self.core.vhost_refused(&handshake.user, &fault);
                }
                let (code, reason) = (fault.code, closed_by_server(&fault));
                handshake.machine.refuse_open(fault);
                self.core.ends(self.ending_with(code), || reason);
            }
        }
        self.step_handshake(now);
    }

    /// Handles frames of an open connection; returns the number of bytes taken.
    fn take_frames(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        // Input that is not taken because of the backlog is passed in again when the client has read some output.
        while matches!(self.phase, AmqpPhase::Open(_) | AmqpPhase::Closing)
            && !self.core.is_backlogged()
            && !work::is_turn_over()
        {
            work::charge(FRAME, 1);
            let frame = match Frame::parse(&input[taken..], self.frame_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(fault) => {
                    self.fail(fault, now);
                    // Frame boundaries are lost, so close-ok could not be recognised.
                    self.finish();
                    return input.len();
                }
            };
            if let AmqpPhase::Open(session) = &mut self.phase
                && frame.channel != 0
                && !session.takes(&frame, now)
            {
                break;
            }
            let before = taken;
            taken += frame.wire_len();
            match self.take_frame(frame, &input[taken..], now) {
                Ok(more) => taken += more,
                Err(fault) => match self.take_deferral() {
                    None => self.fail(fault, now),
                    Some(Deferral::Frame) => {
                        taken = before;
                        break;
                    }
                    Some(Deferral::Rest) => break,
                },
            }
        }
        self.count_channels();
        if let AmqpPhase::Open(session) = &mut self.phase {
            session.flush(now);
            self.intent = if session.has_capacity() { Intent::Run } else { Intent::Pause };
        }
        self.leave_when_settled(now);
        taken
    }

    fn take_deferral(&mut self) -> Option<Deferral> {
        match &mut self.phase {
            AmqpPhase::Open(session) => session.take_deferral(),
            _ => None,
        }
    }

    /// Handles one frame, and possibly some of `rest`; returns the number of bytes taken from `rest`.
    fn take_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        match self.life.frame(&frame)? {
            ConnectionStep::Channel => {
                let opens_channel = is_method(&frame, CHANNEL_OPEN);
                if opens_channel {
                    // Channels that were closed in this turn no longer count.
                    self.count_channels();
                    self.core.lease.open_channel().map_err(|limit| {
                        Fault::new(ReplyCode::NotAllowed, limit.to_string()).on_connection()
                    })?;
                }
                let AmqpPhase::Open(session) = &mut self.phase else { return Ok(0) };
                let publishes = u64::from(is_method(&frame, BASIC_PUBLISH));
                let taken = session.handle_frame(frame, rest, now)?;
                if let Some(record) = &mut self.core.record {
                    record.published += publishes + publishes_in(&rest[..taken], self.frame_max);
                }
                if opens_channel {
                    self.count_channels();
                }
                return Ok(taken);
            }
            ConnectionStep::Heartbeat | ConnectionStep::Discard => {}
            ConnectionStep::Deliver(method) => self.take_method(method)?,
            ConnectionStep::Close => {
                if let Ok(Method::ConnectionClose(close)) = Method::decode(frame.payload) {
                    self.core.ends(Ending::Normal, || describe_close(&close));
                }
                self.leave(now);
            }
            ConnectionStep::AnswerClose => self.send(connection::CloseOk {}),
            ConnectionStep::Closed => self.finish(),
        }
        Ok(0)
    }

    /// Handles the client's connection.close, which is answered once the session has closed.
    fn leave(&mut self, now: Instant) {
        self.note_upstreams();
        if let AmqpPhase::Open(mut session) = std::mem::replace(&mut self.phase, AmqpPhase::Over) {
            if !session.close(now) {
                self.phase = AmqpPhase::Leaving(session);
                self.core.deadline = Some(now + CLOSE_TIMEOUT);
                return;
            }
            self.end(session, now);
        }
        self.send(connection::CloseOk {});
        self.finish();
    }

    /// Ends a session, which is no longer the client's. Work that does not fit into this turn follows in the next ones.
    fn end(&mut self, mut session: Box<dyn BackendSession>, now: Instant) {
        session.end(now);
        if session.has_ended() {
            self.send_close();
        } else {
            self.ending = Some(session);
        }
    }

    fn take_method(&mut self, method: Method<'_>) -> Result<(), Fault> {
        if let (AmqpPhase::Open(session), Method::ConnectionUpdateSecret(update)) = (&mut self.phase, method)
            && session.update_secret(update.new_secret)?
        {
            self.send(connection::UpdateSecretOk {});
        }
        Ok(())
    }

    /// Closes the connection with an error. connection.close follows the end of the session, as in RabbitMQ: a client that
    /// reconnects may then declare its exclusive queues again.
    fn fail(&mut self, fault: Fault, now: Instant) {
        self.end_session(now);
        self.core.ends(self.ending_with(fault.code), || closed_by_server(&fault));
        self.unsent_close = Some(Box::new(fault));
        if self.ending.is_none() {
            self.send_close();
        }
        self.asking = None;
        self.life.start_closing();
        self.phase = AmqpPhase::Closing;
        self.count_channels();
        self.intent = Intent::Run;
        self.core.deadline = Some(now + CLOSE_TIMEOUT);
    }

    fn send_close(&mut self) {
        let Some(fault) = self.unsent_close.take() else { return };
        let reply_text = fault.reply_text();
        let (class_id, method_id) = fault.method;
        self.send(connection::Close {
            reply_code: fault.code.code(),
            reply_text: &reply_text,
            class_id,
            method_id,
        });
    }

    /// Whether the end of the session has begun, and takes further turns.
    fn is_session_ending(&self) -> bool {
        match &self.phase {
            AmqpPhase::Leaving(session) => !session.has_ended(),
            _ => self.ending.is_some(),
        }
    }

    /// During a drain: closes an open client once its publishes are confirmed, or after the time limit.
    fn leave_when_settled(&mut self, now: Instant) {
        if !self.is_open() || !self.core.must_leave() || self.leaves_for_successor(now) {
            return;
        }
        let AmqpPhase::Open(session) = &self.phase else { return };
        let deadline = self.core.settle_deadline(now, SETTLE_TIMEOUT);
        let is_settled = session.is_settled();
        if is_settled || deadline <= now {
            let is_idle = is_settled && self.core.outbox.backlog() == 0;
            self.fail(Fault::new(ReplyCode::ConnectionForced, SHUTDOWN), now);
            if is_idle {
                // Only close-ok is missing, which a suspended or vanished client never sends.
                self.core.deadline = Some(now + self.core.shared.config.drain_idle_timeout);
            }
        }
    }

    /// Whether heartbeats are sent and expected.
    fn is_alive(&self) -> bool {
        matches!(self.phase, AmqpPhase::Open(_) | AmqpPhase::Resuming(_))
    }

    /// Records the session's upstream connections, for the log, while it has them.
    fn note_upstreams(&mut self) {
        if let (AmqpPhase::Open(session), Some(record)) = (&self.phase, &mut self.core.record)
            && record.upstreams.is_empty()
        {
            record.upstreams = session.upstreams();
        }
    }

    /// Updates the counts of open channels, for the limits and, in front of an upstream, for operators. Sessions of the
    /// broker count their own channels for operators.
    fn count_channels(&mut self) {
        let open = match &self.phase {
            AmqpPhase::Open(session) => session.channel_count(),
            _ => 0,
        };
        self.core.lease.keep_channels(open);
        let before = std::mem::replace(&mut self.channels, open);
        if open == before || self.core.shared.backend.is_broker() {
            return;
        }
        let metrics = &self.core.shared.metrics;
        metrics.channels_opened.add(open.saturating_sub(before) as u64);
        metrics.channels_closed.add(before.saturating_sub(open) as u64);
        self.core.set_upstream_channels(open);
    }

    fn finish(&mut self) {
        self.send_close();
        self.asking = None;
        self.phase = AmqpPhase::Over;
        self.count_channels();
        self.intent = Intent::Finish;
        self.core.deadline = None;
    }

    fn send<'m>(&self, method: impl Into<Method<'m>>) {
        let method = method.into();
        self.core.outbox.append(|buf| frame::write_method(buf.tail(), 0, method));
    }
}

impl ProtocolState for AmqpConnection {
    const CARRIAGE: FrameMapping = FrameMapping::AmqpFrames;

    fn new(core: ConnectionCore, now: Instant) -> Self {
        // A verified certificate permits a login with EXTERNAL, which is therefore offered.
        let external = core.external.as_ref().and_then(|_| core.shared.offer_with_external());
        let machine = ServerHandshake::new(external.unwrap_or_else(|| core.shared.offer()));
        Self {
            core,
            ending: None,
            unsent_close: None,
            phase: AmqpPhase::Handshake(Box::new(Handshake {
                machine,
                admitted: false,
                login: None,
                mechanism: "",
                view: None,
                user: String::new(),
            })),
            life: ConnectionLife::default(),
            channels: 0,
            intent: Intent::Run,
            heartbeat: Heartbeat::new(0, now),
            frame_max: 0,
            asking: None,
        }
    }

    fn core(&self) -> &ConnectionCore {
        &self.core
    }

    fn core_mut(&mut self) -> &mut ConnectionCore {
        &mut self.core
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, AmqpPhase::Open(_))
    }

    fn take_input(&mut self, input: &[u8], now: Instant) -> usize {
        self.heartbeat.received(now);
        let mut taken = 0;
        if !self.admit() {
            return 0;
        }
        while let AmqpPhase::Handshake(handshake) = &mut self.phase {
            let step = handshake.machine.handle_input(&input[taken..]);
            taken += step;
            self.step_handshake(now);
            if step == 0 {
                break;
            }
        }
        match self.phase {
            AmqpPhase::Open(_) | AmqpPhase::Closing => taken + self.take_frames(&input[taken..], now),
            AmqpPhase::Handshake(_) | AmqpPhase::Resuming(_) => taken,
            // Input after the client's connection.close is discarded.
            AmqpPhase::Leaving(_) | AmqpPhase::Over => input.len(),
        }
    }

    fn handle_eof(&mut self, now: Instant) {
        match &mut self.phase {
            AmqpPhase::Handshake(handshake) => {
                handshake.machine.handle_eof();
                self.core
                    .ends(Ending::Normal, || "client closed the connection during the handshake".to_owned());
            }
            AmqpPhase::Open(_) => {
                self.core.ends(Ending::Normal, || "client unexpectedly closed TCP connection".to_owned());
            }
            AmqpPhase::Resuming(_) | AmqpPhase::Leaving(_) | AmqpPhase::Closing | AmqpPhase::Over => {}
        }
        self.end_session(now);
        self.finish();
    }

    fn handle_nudge(&mut self, now: Instant) {
        if let Some(session) = self.ending.take() {
            self.end(session, now);
        }
        if let Some(answer) = self.asking.as_ref().and_then(BackendRequest::take_answer) {
            self.answered(answer, now);
        }
        if self.is_open()
            && let Some(reason) = self.core.take_close_reason()
        {
            return self.fail(Fault::new(ReplyCode::ConnectionForced, reason.into_string()), now);
        }
        let shared = &self.core.shared;
        if shared.is_draining() && matches!(self.phase, AmqpPhase::Handshake(_)) && !shared.hands_over() {
            self.core.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            return self.finish();
        }
        if let AmqpPhase::Leaving(session) = &mut self.phase {
            match session.handle_nudge(now) {
                Ok(()) if !session.is_closed() => {}
                // With a close-ok, the client would consider its messages published.
                Err(fault) if session.has_waiting_frames() => {
                    self.fail(fault, now);
                    // The client has closed, and may never answer another close.
                    self.finish();
                }
                // Any other error does not matter to a client that is closing.
                Ok(()) | Err(_) => {
                    self.end_session(now);
                    self.send(connection::CloseOk {});
                    self.finish();
                }
            }
            return;
        }
        if let AmqpPhase::Open(session) = &mut self.phase {
            match session.handle_nudge(now) {
                Ok(()) => {
                    self.intent = if session.has_capacity() { Intent::Run } else { Intent::Pause };
                    self.count_channels();
                }
                Err(fault) => self.fail(fault, now),
            }
        }
        self.leave_when_settled(now);
    }

    fn handle_capacity(&mut self, now: Instant) {
        if let AmqpPhase::Open(session) | AmqpPhase::Leaving(session) = &mut self.phase {
            session.handle_capacity(now);
        }
    }

    fn handle_written(&mut self, now: Instant) {
        self.heartbeat.sent(now);
    }

    fn handle_deadline(&mut self, now: Instant, is_unread: bool) {
        self.leave_when_settled(now);
        if !self.is_alive() && self.core.is_late(now) {
            if self.is_session_ending() {
                // The limit is for the client; the end continues with each turn.
                self.core.deadline = Some(now + CLOSE_TIMEOUT);
                return;
            }
            if let AmqpPhase::Leaving(session) = &self.phase {
                let is_answered = session.has_stored_publishes();
                self.end_session(now);
                if is_answered {
                    self.send(connection::CloseOk {});
                }
            }
            self.core.ends(Ending::Refused, || "handshake timed out".to_owned());
            self.finish();
            return;
        }
        if !self.is_alive() {
            return;
        }
        if is_unread {
            self.heartbeat.received(now);
        }
        match self.heartbeat.poll(now) {
            HeartbeatAction::None => {}
            HeartbeatAction::SendHeartbeat => {
                self.core.outbox.append(|buf| buf.tail().extend_from_slice(&HEARTBEAT));
            }
            HeartbeatAction::PeerDead => {
                self.end_session(now);
                self.core.ends(Ending::Refused, || "missed heartbeats from client".to_owned());
                self.finish();
            }
        }
        if let AmqpPhase::Open(session) = &mut self.phase
            && let Err(fault) = session.handle_deadline(now)
        {
            self.fail(fault, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_session = match &self.phase {
            AmqpPhase::Open(session) => session.next_deadline(),
            AmqpPhase::Resuming(_) => None,
            _ => return None,
        };
        [self.heartbeat.next_deadline(), of_session].into_iter().flatten().min()
    }

    fn intent(&self) -> Intent {
        self.intent
    }

    fn end_session(&mut self, now: Instant) {
        self.note_upstreams();
        let session = match std::mem::replace(&mut self.phase, AmqpPhase::Over) {
            AmqpPhase::Open(session) | AmqpPhase::Leaving(session) => Some(session),
            other => {
                self.phase = other;
                self.ending.take()
            }
        };
        if let Some(session) = session {
            self.end(session, now);
        }
        // After a failed socket, this is the last call for the connection.
        self.count_channels();
    }

    fn is_ending(&self) -> bool {
        self.ending.is_some()
    }
}

/// Whether the frame is a method with these class and method ids.
fn is_method(frame: &Frame<'_>, numbers: [u8; 4]) -> bool {
    frame.kind == FrameKind::Method && frame.payload.starts_with(&numbers)
}

/// Number of messages that begin in complete frames.
fn publishes_in(mut bytes: &[u8], frame_max: u32) -> u64 {
    let mut count = 0;
    while let Ok(Some(frame)) = Frame::parse(bytes, frame_max) {
        count += u64::from(is_method(&frame, BASIC_PUBLISH));
        bytes = &bytes[frame.wire_len()..];
    }
    count
}

/// RabbitMQ's text for clients of a node that is shut down.
pub(crate) const SHUTDOWN: &str = "broker forced connection closure with reason 'shutdown'";

/// The reason why a client was not admitted while no upstream was available.
const NO_UPSTREAM: &str = "no upstream reachable";

/// Cost of a frame before its method is handled, in nanoseconds.
const FRAME: u32 = 40;

const CHANNEL_OPEN: [u8; 4] = [0, 20, 0, 10];
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];

fn describe_close(close: &connection::Close<'_>) -> String {
    if close.reply_code == ReplyCode::Success.code() {
        "closed by client".to_owned()
    } else {
        format!("closed by client: {} {}", close.reply_code, close.reply_text)
    }
}

fn describe(end: &ServerEnd) -> String {
    match end {
        ServerEnd::BadProtocolHeader => "peer does not speak AMQP 0-9-1".to_owned(),
        ServerEnd::LoginRefused => LOGIN_REFUSED.to_owned(),
        ServerEnd::Faulted(fault) => closed_by_server(fault),
        ServerEnd::ClosedByPeer => "closed by client during the handshake".to_owned(),
        ServerEnd::Eof => "client closed the connection during the handshake".to_owned(),
    }
}
