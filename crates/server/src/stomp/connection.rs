//! A client's STOMP connection: login, heart-beats, and its session on the broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::FieldTable;
use amqp::handshake::Negotiated;
use stomp::server::{self as machine, EventKind, StompEnd, StompEvent, StompSettings};
use stomp::{StompFault, StompVersion};
use sync::work;
use transport::{Intent, Outbox};

use super::login::{LoginFailure, StompLogin, log_in};
use super::session::{CancelledSubscription, StompSession, of_fault};
use crate::client::{ConnectionCore, Ending, ProtocolState, SETTLE_TIMEOUT, closed_by_server};
use crate::registry::{ClientSession, NewConnection, OpenConnection};
use crate::server::MAX_UNSPLIT_MESSAGE;
use crate::websocket::FrameMapping;

/// Time limit for the receipt of a DISCONNECT, which waits for the disk.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The STOMP part of a client's connection.
pub(crate) struct StompConnection {
    core: ConnectionCore,
    machine: machine::StompServerConnection,
    session: Option<Box<dyn StompSession>>,
    /// The session once its end has begun, until it has [ended](StompSession::has_ended), which may take several turns.
    ending: Option<Box<dyn StompSession>>,
    /// The login that the upstream is asked about. Nothing is read meanwhile.
    login: Option<StompLogin>,
    is_over: bool,
    /// Whether the client has sent DISCONNECT. It is not read any more then.
    is_leaving: bool,
}

impl StompConnection {
    /// The identifier of the session.
    #[cfg(test)]
    pub(super) fn session_name(&self) -> String {
        self.machine.session().to_string()
    }

    /// Whether more input can be taken. Input refused because of the backlog is passed in again when the client has read
    /// some output.
    fn takes(&self) -> bool {
        !self.is_over
            && self.login.is_none()
            && self.session.as_ref().is_none_or(|session| session.has_capacity())
            && !self.core.is_backlogged()
            && !work::is_turn_over()
    }

    /// Handles one frame, if there is one. Returns the bytes taken, and whether there was a frame.
    fn step(&mut self, input: &[u8], now: Instant) -> (usize, bool) {
        work::charge(FRAME, 1);
        let mut out = Vec::new();
        let (taken, outcome) = self.take_frame(input, now, &mut out);
        self.append(&out);
        match outcome {
            None => return (taken, false),
            Some(Outcome::Done) if self.is_leaving => {
                self.note_upstreams();
                self.core.deadline = Some(now + LEAVE_TIMEOUT);
            }
            Some(Outcome::Done) => {}
            Some(Outcome::Ended(end)) => self.ended(&end, now),
            Some(Outcome::LogIn(login)) => self.logs_in(login, now),
            Some(Outcome::Failed(fault, receipt)) => self.fail(fault, receipt.as_deref(), now),
        }
        (taken, true)
    }

    /// The part of a step that borrows the machine's event.
    fn take_frame(&mut self, input: &[u8], now: Instant, out: &mut Vec<u8>) -> (usize, Option<Outcome>) {
        let step = self.machine.handle_input(input, now, out);
        let outcome = match &step.event {
            None => None,
            Some(StompEvent::Ended(end)) => Some(Outcome::Ended(end.clone())),
            Some(StompEvent::Connect(connect)) => Some(Outcome::LogIn(log_in(&mut self.core, connect))),
            Some(StompEvent::Request(request)) => {
                if let EventKind::Send { .. } = &request.kind {
                    if let Some(record) = &mut self.core.record {
                        record.published += 1;
                    }
                    self.core.session().inspect(|session| session.count_published());
                }
                self.is_leaving |= matches!(request.kind, EventKind::Disconnect);
                self.session.as_mut().map(|session| match session.handle(request, now) {
                    Ok(()) => Outcome::Done,
                    Err(fault) => Outcome::Failed(fault, request.receipt().map(Into::into)),
                })
            }
        };
        (step.taken, outcome)
    }

    /// Handles a login that is decided, refused, or being checked.
    fn logs_in(&mut self, login: Result<StompLogin, LoginFailure>, now: Instant) {
        match login {
            Ok(StompLogin::Accepted(session)) => self.entered(session, now),
            Ok(asked) => self.login = Some(asked),
            Err(LoginFailure::Refused(fault)) => {
                self.core.ends(Ending::Refused, || closed_by_server(&fault));
                self.fail(fault, None, now);
            }
            // The client must not see a refusal: its connection is closed as if its broker were down.
            Err(LoginFailure::Unavailable(reason)) => {
                self.core.ends(Ending::Failed, || reason);
                self.over(now);
            }
        }
    }

    /// Handles a successful login.
    fn entered(&mut self, mut session: Box<dyn StompSession>, now: Instant) {
        let mut out = Vec::new();
        self.machine.accept(Arc::clone(session.name()), now, &mut out);
        self.append(&out);
        self.register(&mut *session, now);
        self.session = Some(session);
    }

    /// Makes the connection visible to operators.
    fn register(&mut self, session: &mut dyn StompSession, now: Instant) {
        // In whole seconds, as RabbitMQ shows it.
        let heart_beat = self.machine.expected_heart_beat().map_or(0, |interval| interval.as_secs());
        let heartbeat_secs = u16::try_from(heart_beat).unwrap_or(u16::MAX);
        let view = OpenConnection::new(NewConnection {
            id: self.core.id,
            arrival: self.core.arrival,
            protocol: match session.version() {
                StompVersion::V10 => "STOMP 1.0",
                StompVersion::V11 => "STOMP 1.1",
                StompVersion::V12 => "STOMP 1.2",
            },
            user: session.user(),
            vhost: session.vhost(),
            mechanism: "",
            connected_at: self.core.shared.clock.wall(now).0,
            negotiated: Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs },
            client_properties: &FieldTable::new(),
            session: Some(ClientSession::default()),
            outbox: &self.core.outbox,
        });
        session.opened(&view);
        self.core.opened(view);
    }

    /// Publishes the session's current figures to operators' lists.
    fn note_session(&self) {
        if let Some(session) = self.core.session() {
            session.set_subscriptions(self.machine.subscription_count());
        }
    }

    /// Ends the connection if an operator has closed it.
    fn leave_if_asked(&mut self, now: Instant) {
        if self.session.is_none() || self.is_over {
            return;
        }
        if let Some(reason) = self.core.take_close_reason() {
            self.core.ends(Ending::Refused, || format!("closed by server: CONNECTION_FORCED - {reason}"));
            let fault = amqp::Fault::new(amqp::ReplyCode::ConnectionForced, reason.into_string());
            self.fail(of_fault(fault), None, now);
        }
    }

    /// Sends the receipts that are due. The receipt of a DISCONNECT is the last.
    fn settle_receipts(&mut self, now: Instant) {
        let Some(session) = &mut self.session else { return };
        let mut out = Vec::new();
        while let Some(receipt) = session.next_receipt() {
            if receipt.is_refused {
                self.machine.refused(&full_queue(), &receipt.id, &mut out);
            } else {
                self.machine.receipt(&receipt.id, &mut out);
            }
            if let Some(number) = receipt.starts {
                // The receipt precedes the subscription's messages.
                append(&self.core.outbox, &out);
                out.clear();
                session.start(number);
            }
        }
        let is_settled = session.is_settled();
        self.append(&out);
        if self.is_leaving && is_settled && !self.is_over {
            self.leave(now);
        }
        self.leave_drained(now);
    }

    fn leave(&mut self, now: Instant) {
        if let Some(end) = self.machine.leave() {
            self.ended(&end, now);
        }
    }

    /// Ends the connection with an ERROR.
    fn fail(&mut self, fault: StompFault, receipt: Option<&str>, now: Instant) {
        let mut out = Vec::new();
        let end = self.machine.fail(fault, receipt, &mut out);
        // Requests before the fault still take effect.
        self.end_session(now);
        self.append(&out);
        if let Some(end) = end {
            self.ended(&end, now);
        }
    }

    /// During a drain: closes the client once it has its receipts, or after the time limit.
    fn leave_drained(&mut self, now: Instant) {
        if !self.core.shared.is_draining() || self.is_over || self.is_leaving {
            return;
        }
        let Some(session) = &self.session else {
            self.core.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            return self.over(now);
        };
        if !self.core.must_leave() {
            return;
        }
        let is_settled = session.is_settled();
        let deadline = self.core.settle_deadline(now, SETTLE_TIMEOUT);
        if is_settled || deadline <= now {
            let text = "broker forced connection closure with reason 'shutdown'";
            self.core.ends(Ending::Shutdown, || format!("closed by server: CONNECTION_FORCED - {text}"));
            let fault = amqp::Fault::new(amqp::ReplyCode::ConnectionForced, text);
            self.fail(of_fault(fault), None, now);
        }
    }

    /// Called when the protocol has ended.
    fn ended(&mut self, end: &StompEnd, now: Instant) {
        let ending = match end {
            StompEnd::Disconnected | StompEnd::Eof => Ending::Normal,
            StompEnd::Silent | StompEnd::Fault(_) => Ending::Refused,
        };
        self.core.ends(ending, || end.to_string());
        self.over(now);
    }

    fn over(&mut self, now: Instant) {
        self.login = None;
        self.end_session(now);
        self.is_over = true;
        self.core.deadline = None;
    }

    /// Records the session's upstream connections, for the log, while it has them.
    fn note_upstreams(&mut self) {
        if let (Some(session), Some(record)) = (&self.session, &mut self.core.record)
            && record.upstreams.is_empty()
        {
            record.upstreams = session.upstreams();
        }
    }

    fn append(&self, bytes: &[u8]) {
        append(&self.core.outbox, bytes);
    }
}

fn append(outbox: &Outbox, bytes: &[u8]) {
    if !bytes.is_empty() {
        outbox.append(|buf| buf.tail().extend_from_slice(bytes));
    }
}

/// The outcome of a frame.
enum Outcome {
    Done,
    Ended(StompEnd),
    LogIn(Result<StompLogin, LoginFailure>),
    /// A fault, with the receipt that the frame asked for.
    Failed(StompFault, Option<Box<str>>),
}

/// Cost of a frame before its request is handled, in nanoseconds: for parsing its headers.
const FRAME: u32 = 400;

/// The equivalent of AMQP's basic.nack.
fn full_queue() -> StompFault {
    StompFault::new(
        "Message refused",
        "A queue that the message was routed to is full and has not taken it.\n",
    )
}

impl ProtocolState for StompConnection {
    const CARRIAGE: FrameMapping = FrameMapping::Text;

    fn new(core: ConnectionCore, now: Instant) -> Self {
        let shared = &core.shared;
        let body_limit = shared.config.max_message_size.min(MAX_UNSPLIT_MESSAGE);
        let settings = StompSettings { body_limit, server: shared.product().to_owned() };
        let machine = machine::StompServerConnection::new(Arc::new(settings), now);
        Self { core, machine, session: None, ending: None, login: None, is_over: false, is_leaving: false }
    }

    fn core(&self) -> &ConnectionCore {
        &self.core
    }

    fn core_mut(&mut self) -> &mut ConnectionCore {
        &mut self.core
    }

    fn is_open(&self) -> bool {
        self.session.is_some()
    }

    fn take_input(&mut self, input: &[u8], now: Instant) -> usize {
        let mut taken = 0;
        while self.takes() {
            let (step, reported) = self.step(&input[taken..], now);
            taken += step;
            self.settle_receipts(now);
            if step == 0 && !reported {
                break;
            }
        }
        if let Some(session) = &mut self.session {
            session.flush(now);
        }
        self.settle_receipts(now);
        self.note_session();
        if self.is_over { input.len() } else { taken }
    }

    fn handle_eof(&mut self, now: Instant) {
        if self.session.is_none() {
            self.core.ends(Ending::Normal, || "client closed the connection before login".to_owned());
        }
        if let Some(end) = self.machine.handle_eof() {
            self.ended(&end, now);
        }
        self.over(now);
    }

    fn handle_nudge(&mut self, now: Instant) {
        if self.is_ending() {
            self.end_session(now);
        }
        if let Some(answered) = self.login.as_ref().and_then(|login| login.poll(&mut self.core)) {
            self.login = None;
            self.logs_in(answered, now);
        }
        if let Some(session) = &mut self.session {
            match session.handle_nudge(now) {
                Ok(cancelled) => {
                    let mut out = Vec::new();
                    for CancelledSubscription { tag, number, next_delivery_tag } in cancelled {
                        self.machine.cancelled(&tag, number, next_delivery_tag, &mut out);
                    }
                    self.append(&out);
                    self.note_session();
                    self.settle_receipts(now);
                }
                Err(fault) => {
                    let receipt = session.take_failed_receipt();
                    self.fail(fault, receipt.as_deref(), now);
                }
            }
        }
        self.leave_if_asked(now);
        self.leave_drained(now);
    }

    fn handle_capacity(&mut self, now: Instant) {
        if let Some(session) = &mut self.session {
            session.handle_capacity(now);
        }
    }

    fn handle_written(&mut self, now: Instant) {
        self.machine.handle_sent(now);
    }

    fn handle_deadline(&mut self, now: Instant, is_unread: bool) {
        self.leave_drained(now);
        if self.is_over {
            return;
        }
        if self.core.is_late(now) {
            if self.is_leaving {
                return self.leave(now);
            }
            if self.session.is_none() {
                self.core.ends(Ending::Refused, || "handshake timed out".to_owned());
                return self.over(now);
            }
        }
        if is_unread {
            self.machine.pause_heart_beat(now);
        }
        let mut out = Vec::new();
        let end = self.machine.handle_deadline(now, &mut out);
        self.append(&out);
        if let Some(end) = end {
            return self.ended(&end, now);
        }
        if let Some(session) = &mut self.session
            && let Err(fault) = session.handle_deadline(now)
        {
            self.fail(fault, None, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let of_session = self.session.as_ref().and_then(|session| session.next_deadline());
        [self.machine.next_deadline(), of_session].into_iter().flatten().min()
    }

    fn intent(&self) -> Intent {
        if self.is_over {
            return Intent::Finish;
        }
        let has_capacity = self.session.as_ref().is_none_or(|session| session.has_capacity());
        if has_capacity && self.login.is_none() && !self.is_leaving { Intent::Run } else { Intent::Pause }
    }

    fn end_session(&mut self, now: Instant) {
        self.note_upstreams();
        if let Some(mut session) = self.session.take().or_else(|| self.ending.take()) {
            session.end(now);
            self.ending = (!session.has_ended()).then_some(session);
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.is_some()
    }
}
