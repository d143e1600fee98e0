//! A client's STOMP connection: login, heart-beats, and its session on the broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::FieldTable;
use amqp::handshake::Negotiated;
use broker::{BrokerError, LoginRefused, SessionId};
use stomp::server::{self as machine, ConnectRequest, EventKind, StompEnd, StompEvent, StompSettings};
use stomp::{StompFault, StompVersion};
use sync::work;
use transport::{Intent, Outbox, Peer, Protocol};

use super::session::{StompSession, of_broker};
use crate::access::AccessRecord;
use crate::amqp::connection::Ending;
use crate::backend::Backend;
use crate::limits::ConnectionLease;
use crate::registry::{Arrival, OpenConnection, Opening, RegisteredConnection};
use crate::server::{MAX_UNSPLIT_MESSAGE, Shared};

/// Time limit for the receipt of a client that has disconnected, which waits for the disk.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for the receipts of a client's requests while the server drains.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of one client's connection, driven by [`transport::drive`].
pub(crate) struct StompConnection {
    shared: Arc<Shared>,
    id: u64,
    peer: Peer,
    outbox: Arc<Outbox>,
    /// Released when the connection is dropped.
    place: ConnectionLease,
    machine: machine::StompServerConnection,
    session: Option<Box<StompSession>>,
    /// The user name of the client's verified certificate.
    external: Option<Arc<str>>,
    is_over: bool,
    /// Deadline of the login, of the last receipt, or of a drain.
    deadline: Option<Instant>,
    /// The client has used up its receive rate and is not read until then.
    rested_until: Option<Instant>,
    /// The client has sent DISCONNECT: nothing more is read.
    is_leaving: bool,
    /// Why the connection ended, for the log.
    reason: Option<String>,
    ending: Ending,
    /// The access-log record, if there is an access log.
    record: Option<Box<AccessRecord>>,
    arrival: Arrival,
    /// The entry in the registry, once the connection is open.
    registered: Option<RegisteredConnection>,
}

impl StompConnection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u64,
        peer: Peer,
        outbox: Arc<Outbox>,
        place: ConnectionLease,
        now: Instant,
    ) -> Self {
        let body_limit = shared.config.max_message_size.min(MAX_UNSPLIT_MESSAGE);
        let settings = StompSettings { body_limit, server: shared.product().to_owned() };
        let deadline = Some(now + shared.config.handshake_timeout);
        Self {
            machine: machine::StompServerConnection::new(Arc::new(settings), now),
            shared,
            id,
            peer,
            outbox,
            place,
            session: None,
            external: None,
            is_over: false,
            deadline,
            rested_until: None,
            is_leaving: false,
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

    /// Offers login by the client's verified certificate, if it names no other user. Called before the first input.
    pub(crate) fn offer_external(&mut self, user: Arc<str>) {
        self.external = Some(user);
    }

    /// Sets the connection's access-log record, if there is an access log.
    pub(crate) fn keep_record(&mut self, record: Option<Box<AccessRecord>>) {
        self.record = record;
    }

    /// Takes the access-log record when the connection has ended.
    pub(crate) fn take_record(&mut self) -> Option<Box<AccessRecord>> {
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

    /// The identifier of the session.
    #[cfg(test)]
    pub(super) fn session_name(&self) -> String {
        self.machine.session().to_string()
    }

    /// Takes bytes from the front of `input`; returns how many.
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
        if self.is_over { input.len() } else { taken }
    }

    /// Whether more can be taken now. Input refused because of the backlog is shown again when the client has
    /// read some of its output.
    fn takes(&self) -> bool {
        !self.is_over
            && self.session.as_ref().is_none_or(|session| session.has_room())
            && self.outbox.backlog() < self.shared.config.outbox_limit
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
            Some(Outcome::Done) if self.is_leaving => self.deadline = Some(now + LEAVE_TIMEOUT),
            Some(Outcome::Done) => {}
            Some(Outcome::Ended(end)) => self.ended(&end, now),
            Some(Outcome::Judged(validated)) => self.entered(validated, now),
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
            Some(StompEvent::Connect(connect)) => {
                let login =
                    StompLogin { shared: &self.shared, id: self.id, peer: self.peer, outbox: &self.outbox };
                let external = self.external.as_deref();
                Some(Outcome::Judged(login.validate(connect, external, &mut self.place, &mut self.record)))
            }
            Some(StompEvent::Request(request)) => {
                if let (Some(record), EventKind::Send { .. }) = (&mut self.record, &request.kind) {
                    record.published += 1;
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

    /// Handles the outcome of a login.
    fn entered(&mut self, validated: Result<Box<StompSession>, StompRefused>, now: Instant) {
        match validated {
            Ok(mut session) => {
                let mut out = Vec::new();
                self.machine.accept(Arc::clone(session.name()), now, &mut out);
                self.append(&out);
                self.register(&mut session, now);
                self.session = Some(session);
                self.deadline = None;
                match &self.record {
                    Some(record) => record.opened(),
                    None => {
                        tracing::info!(connection = self.id, peer = %self.peer, protocol = "stomp", "connection opened");
                    }
                }
            }
            Err(StompRefused { fault, ending }) => {
                self.ends(ending, || fault.to_string());
                self.fail(fault, None, now);
            }
        }
    }

    /// Makes the connection visible to operators. Closes it if its vhost or user was deleted while it was being opened.
    fn register(&mut self, session: &mut StompSession, now: Instant) {
        let authorised = &session.context.authorised;
        let view = OpenConnection::new(Opening {
            id: self.id,
            arrival: self.arrival,
            protocol: match session.context.version {
                StompVersion::V10 => "STOMP 1.0",
                StompVersion::V11 => "STOMP 1.1",
                StompVersion::V12 => "STOMP 1.2",
            },
            user: authorised.identity().user(),
            vhost: authorised.vhost().name(),
            mechanism: "",
            connected_at: self.shared.clock.timestamp(now).0,
            negotiated: Negotiated { channel_max: 0, frame_max: 0, heartbeat_secs: 0 },
            client_properties: &FieldTable::new(),
            outbox: &self.outbox,
        });
        session.opened(&view);
        self.registered = Some(self.shared.registry.register(Arc::clone(&view)));
        if let Some(reason) = self.shared.backend.missing(&view) {
            view.close(&reason);
        }
    }

    /// Ends the connection if an operator has asked for that.
    fn leave_if_asked(&mut self, now: Instant) {
        let asked = |registered: &RegisteredConnection| registered.connection().take_close_reason();
        if self.session.is_none() || self.is_over {
            return;
        }
        if let Some(reason) = self.registered.as_ref().and_then(asked) {
            self.ends(Ending::Refused, || format!("closed by server: CONNECTION_FORCED - {reason}"));
            let fault = amqp::Fault::new(amqp::ReplyCode::ConnectionForced, reason.into_string());
            self.fail(of_broker(fault), None, now);
        }
    }

    /// Answers requests whose changes are on disk. The answer to a DISCONNECT is the last.
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
                append(&self.outbox, &out);
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
        // Requests before the fault are in order.
        self.release_session(now);
        self.append(&out);
        if let Some(end) = end {
            self.ended(&end, now);
        }
    }

    /// While the server drains: closes the client once it has its receipts or the time limit has passed.
    fn leave_drained(&mut self, now: Instant) {
        if !self.shared.is_draining() || self.is_over || self.is_leaving {
            return;
        }
        let Some(session) = &self.session else {
            self.ends(Ending::Shutdown, || "server is shutting down".to_owned());
            return self.over(now);
        };
        let is_settled = session.is_settled();
        let deadline = *self.deadline.get_or_insert(now + SETTLE_TIMEOUT);
        if is_settled || deadline <= now {
            let text = "broker forced connection closure with reason 'shutdown'";
            self.ends(Ending::Shutdown, || format!("closed by server: CONNECTION_FORCED - {text}"));
            let fault = amqp::Fault::new(amqp::ReplyCode::ConnectionForced, text);
            self.fail(of_broker(fault), None, now);
        }
    }

    /// Called when the protocol has ended.
    fn ended(&mut self, end: &StompEnd, now: Instant) {
        let ending = match end {
            StompEnd::Disconnected | StompEnd::Eof => Ending::Normal,
            StompEnd::Silent | StompEnd::Fault(_) => Ending::Refused,
        };
        self.ends(ending, || end.to_string());
        self.over(now);
    }

    fn over(&mut self, now: Instant) {
        self.release_session(now);
        self.is_over = true;
        self.deadline = None;
    }

    /// Records how the connection ends, unless that is known already.
    fn ends(&mut self, ending: Ending, reason: impl FnOnce() -> String) {
        if self.reason.is_none() {
            self.ending = ending;
            self.reason = Some(reason());
        }
    }

    /// Ends the session if there still is one.
    fn release_session(&mut self, now: Instant) {
        if let Some(mut session) = self.session.take() {
            session.end(now);
        }
    }

    fn append(&self, bytes: &[u8]) {
        append(&self.outbox, bytes);
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
    Judged(Result<Box<StompSession>, StompRefused>),
    /// A fault, with the receipt that was asked for.
    Failed(StompFault, Option<Box<str>>),
}

/// The context in which a login is validated.
struct StompLogin<'l> {
    shared: &'l Arc<Shared>,
    id: u64,
    peer: Peer,
    outbox: &'l Arc<Outbox>,
}

/// Why a login failed.
struct StompRefused {
    fault: StompFault,
    ending: Ending,
}

impl From<StompFault> for StompRefused {
    fn from(fault: StompFault) -> Self {
        Self { fault, ending: Ending::Refused }
    }
}

impl StompLogin<'_> {
    /// Validates CONNECT, with RabbitMQ's error messages.
    fn validate(
        &self,
        connect: &ConnectRequest<'_>,
        external: Option<&str>,
        place: &mut ConnectionLease,
        record: &mut Option<Box<AccessRecord>>,
    ) -> Result<Box<StompSession>, StompRefused> {
        let Backend::Broker(broker) = &self.shared.backend else {
            return Err(bad_connect("STOMP is spoken by the embedded broker only").into());
        };
        let loopback = self.peer.is_loopback();
        let default = self.shared.config.stomp_default_user.as_deref();
        // A passcode without a login belongs to no user.
        let unnamed = external.or(default.filter(|_| connect.passcode().is_none()));
        let (user, validated) = match (connect.login(), connect.passcode(), unnamed) {
            (None, _, Some(user)) => (user, broker.authenticate_external(user, loopback)),
            (Some(user), Some(passcode), _) => {
                let (ip, now) = (self.peer.ip(), Instant::now());
                (user, broker.authenticate_from(user, passcode.as_bytes(), ip, loopback, now))
            }
            // RabbitMQ's default is guest here. This server admits a client without a login only if the
            // operator has configured a user for it.
            _ => return Err(bad_connect("Missing login or passcode header(s)").into()),
        };
        // In RabbitMQ, a missing host means the default virtual host.
        let vhost = connect.host().unwrap_or("/");
        if let Some(record) = record {
            (record.user, record.vhost) = (user.into(), vhost.into());
        }
        let identity = validated.map_err(|why| {
            self.shared.metrics.logins_refused.add(1);
            tracing::warn!(connection = self.id, peer = %self.peer, user, "login refused");
            bad_connect(match why {
                LoginRefused::LoopbackOnly => "non-loopback access denied".to_owned(),
                _ => format!("Access refused for user '{user}'\n"),
            })
        })?;
        let at_limit = |limit: crate::limits::LimitReached| StompRefused {
            fault: bad_connect(limit.to_string()),
            ending: Ending::Limit,
        };
        place.log_in(user).map_err(at_limit)?;
        place.open_channel().map_err(at_limit)?;
        let authorised = broker.authorised(&identity, vhost).map_err(|error| match error {
            BrokerError::NoVirtualHost(_) | BrokerError::VirtualHostRefused { .. } => {
                bad_connect(format!("Virtual host '{vhost}' access denied"))
            }
            // A limit of the user or the virtual host was reached.
            error => bad_connect(error.to_string()),
        })?;
        let outbox = Arc::clone(self.outbox);
        let session = StompSession::new(self.shared, authorised, SessionId(self.id), connect.version, outbox);
        session.map(Box::new).map_err(|error| bad_connect(error.to_string()).into())
    }
}

fn bad_connect(detail: impl Into<std::borrow::Cow<'static, str>>) -> StompFault {
    StompFault::new("Bad CONNECT", detail)
}

/// Cost of a frame before its request is handled, in nanoseconds: its headers are parsed.
const FRAME: u32 = 400;

/// The equivalent of basic.nack in AMQP.
fn full_queue() -> StompFault {
    StompFault::new(
        "Message refused",
        "A queue that the message was routed to is full and has not taken it.\n",
    )
}

crate::client::is_client!(StompConnection);

impl Protocol for StompConnection {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        let taken = self.take_input(input, now);
        self.shared.metrics.bytes_received.add(taken as u64);
        if let Some(registered) = &self.registered {
            registered.connection().has_received(taken);
        }
        if let Some(record) = &mut self.record {
            record.received += taken as u64;
        }
        // Logging in is exempt: its bytes are bounded, and it must not wait for other clients' traffic.
        if self.session.is_some() {
            self.rested_until = self.place.received(taken, now);
        }
        taken
    }

    fn handle_eof(&mut self) {
        let now = Instant::now();
        if self.session.is_none() {
            self.ends(Ending::Normal, || "client went away before it had logged in".to_owned());
        }
        if let Some(end) = self.machine.handle_eof() {
            self.ended(&end, now);
        }
        self.over(now);
    }

    fn handle_nudge(&mut self, now: Instant) {
        if let Some(session) = &mut self.session {
            let mut out = Vec::new();
            for (tag, number) in session.handle_nudge(now) {
                self.machine.cancelled(&tag, number, &mut out);
            }
            self.append(&out);
            self.settle_receipts(now);
        }
        self.leave_if_asked(now);
        self.leave_drained(now);
    }

    fn handle_room(&mut self) {
        if let Some(session) = &mut self.session {
            session.handle_room(Instant::now());
        }
    }

    fn handle_written(&mut self, now: Instant) {
        self.machine.handle_sent(now);
    }

    fn handle_deadline(&mut self, now: Instant) {
        let rests = self.intent() == Intent::Pause;
        self.rested_until = self.rested_until.filter(|until| now < *until);
        self.leave_drained(now);
        if self.is_over {
            return;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            if self.is_leaving {
                return self.leave(now);
            }
            if self.session.is_none() {
                self.ends(Ending::Refused, || "handshake timed out".to_owned());
                return self.over(now);
            }
        }
        if rests || self.outbox.backlog() >= self.shared.config.outbox_limit {
            self.machine.excuse_silence(now);
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
        let deadlines = [self.machine.next_deadline(), of_session, self.deadline, self.rested_until];
        deadlines.into_iter().flatten().min()
    }

    fn intent(&self) -> Intent {
        if self.is_over {
            return Intent::Finish;
        }
        let has_room = self.session.as_ref().is_none_or(|session| session.has_room());
        let rests = self.rested_until.is_some() && self.session.is_some();
        if has_room && !rests && !self.is_leaving { Intent::Run } else { Intent::Pause }
    }
}

impl Drop for StompConnection {
    fn drop(&mut self) {
        // The socket failed, or the peer stopped reading: the session has not been notified yet.
        self.release_session(Instant::now());
    }
}
