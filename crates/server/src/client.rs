//! A client's connection of any protocol: the common state, and how the server runs it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::Fault;
use broker::Waiter;
use parking_lot::Mutex;
use sync::work;
use tokio::task::JoinHandle;
use transport::{Intent, Outbox, Peer, Protocol, next_busy_turn};

use crate::access::AccessRecord;
use crate::amqp::connection::ConnectionState;
use crate::limits::ConnectionLease;
use crate::registry::{ClientSession, ConnectionEndpoints, OpenConnection, RegisteredConnection};
use crate::server::{AcceptedConnection, Shared};
use crate::websocket::FrameMapping;

/// Time limit for the answers to a client's requests, including its confirms, during a drain.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The recorded end of a connection whose login was refused, in all protocols.
pub(crate) const LOGIN_REFUSED: &str = "login refused";

/// The recorded end of a connection that the server closes with an error, in all protocols.
pub(crate) fn closed_by_server(error: impl Display) -> String {
    format!("closed by server: {error}")
}

/// Bytes of a user name that are logged. Users have no longer ones, but an MQTT client may send 64 KiB.
const MAX_USER: usize = 255;

/// Bytes of a reason that are logged: enough for the names of a user and a virtual host, and the text around them.
const MAX_REASON: usize = 640;

/// The first bytes of a text, at most `most`.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// How a connection ended, for transports that report it in their own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client closed it or disconnected.
    Normal,
    /// The server shuts down.
    Shutdown,
    /// A limit on connections is reached.
    Limit,
    /// The client was refused or violated the protocol.
    Refused,
    /// The server or the backend failed.
    Failed,
}

/// The state that connections of all protocols have.
pub(crate) struct ConnectionCore {
    pub(crate) shared: Arc<Shared>,
    /// The connection's number, from 1.
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) outbox: Arc<Outbox>,
    /// The connection's entry in the limits' counts, released when it is dropped.
    pub(crate) lease: ConnectionLease,
    /// The user name of the client's verified certificate.
    pub(crate) external: Option<Arc<str>>,
    /// Whether another auth backend authenticated the user. Set by the login.
    pub(crate) user_is_external: bool,
    /// The addresses and the transport of the connection.
    pub(crate) arrival: ConnectionEndpoints,
    /// Deadline of the login, or of the end of the connection.
    pub(crate) deadline: Option<Instant>,
    /// The client has exceeded its receive rate, and is not read until then.
    rested_until: Option<Instant>,
    /// How and why the connection ended, once known.
    end: Option<(Ending, String)>,
    /// The access-log record, if there is an access log.
    pub(crate) record: Option<Box<AccessRecord>>,
    /// Whether the client depends on its upstream connection, and so cannot be handed over to another process.
    pub(crate) depends_on_upstream: bool,
    /// The state for the process that takes the connection over, once its socket can be handed over.
    pub(crate) departing: Option<Box<ConnectionState>>,
    /// The entry in the registry, once the connection is open.
    registered: Option<RegisteredConnection>,
}

impl ConnectionCore {
    fn new(shared: &Arc<Shared>, accepted: AcceptedConnection, outbox: &Arc<Outbox>) -> Self {
        let record = shared.record(&accepted);
        let AcceptedConnection { id, peer, transport, lease, since, local, external } = accepted;
        Self {
            shared: Arc::clone(shared),
            id,
            peer,
            outbox: Arc::clone(outbox),
            lease,
            external,
            user_is_external: false,
            arrival: ConnectionEndpoints { peer, local, tls: transport.tls, websocket: transport.websocket },
            deadline: Some(since + shared.config.handshake_timeout),
            rested_until: None,
            end: None,
            record,
            depends_on_upstream: false,
            departing: None,
            registered: None,
        }
    }

    /// Records how the connection ends, unless that has been recorded already.
    pub(crate) fn ends(&mut self, ending: Ending, reason: impl FnOnce() -> String) {
        self.end.get_or_insert_with(|| (ending, reason()));
    }

    /// Whether it has been recorded how the connection ends.
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Sets the user, for the access log.
    pub(crate) fn logs_in(&mut self, user: &str) {
        if let Some(record) = &mut self.record {
            record.user = user.into();
        }
    }

    /// Sets the virtual host, for the access log.
    pub(crate) fn enters(&mut self, vhost: &str) {
        if let Some(record) = &mut self.record {
            record.vhost = vhost.into();
        }
    }

    /// Counts and logs a refused login, and records it as the end of the connection. `why` is for the log alone. Both
    /// arguments may contain the client's input, and are truncated.
    pub(crate) fn login_refused(&mut self, user: &str, why: &str) {
        self.count_refused(user, why);
        self.ends(Ending::Refused, || LOGIN_REFUSED.to_owned());
    }

    /// Counts and logs the refusal of a virtual host after an accepted login, and records it as the end of the connection,
    /// unless a limit was recorded before.
    pub(crate) fn vhost_refused(&mut self, user: &str, fault: &Fault) {
        // A limit of this process has been logged already.
        if !self.has_end() {
            self.count_refused(user, &fault.text);
        }
        self.ends(Ending::Refused, || closed_by_server(fault));
    }

    fn count_refused(&self, user: &str, why: &str) {
        self.shared.metrics.logins_refused.add(1);
        let (user, error) = (cut(user, MAX_USER), cut(why, MAX_REASON));
        tracing::warn!(connection = self.id, peer = %self.peer, user, error, "login refused");
    }

    /// Called when the connection is open: logs it, makes it visible to operators, and closes it if its virtual host or
    /// user was deleted while it was being opened.
    pub(crate) fn opened(&mut self, view: Arc<OpenConnection>) {
        self.deadline = None;
        match &self.record {
            Some(record) => record.opened(),
            None => {
                let (user, protocol) = (view.user(), view.protocol());
                tracing::info!(connection = self.id, peer = %self.peer, protocol, user, "connection opened");
            }
        }
        self.registered = Some(self.shared.registry.register(Arc::clone(&view)));
        if let Some(reason) = self.shared.backend.missing(&view, self.user_is_external) {
            view.close(&reason);
        }
    }

    /// The entry in the registry, while the connection is open.
    pub(crate) fn view(&self) -> Option<&Arc<OpenConnection>> {
        self.registered.as_ref().map(RegisteredConnection::connection)
    }

    /// Whether the client may be handed over to another process. With TLS or WebSocket it may not, since their state is
    /// in this process.
    pub(crate) fn may_be_handed_over(&self) -> bool {
        let ConnectionEndpoints { tls, websocket, .. } = self.arrival;
        !tls && !websocket && !self.depends_on_upstream && self.shared.hands_over()
    }

    /// Publishes the client's number of channels in front of an upstream to operators' lists.
    pub(crate) fn set_upstream_channels(&self, count: usize) {
        if let Some(registered) = &self.registered {
            registered.connection().set_upstream_channels(count);
        }
    }

    /// The reason if an operator has closed the connection. Returned once.
    pub(crate) fn take_close_reason(&self) -> Option<Box<str>> {
        self.registered.as_ref().and_then(|registered| registered.connection().take_close_reason())
    }

    /// The session's entry for operators, while the connection is open.
    pub(crate) fn session(&self) -> Option<&ClientSession> {
        self.registered.as_ref().and_then(|registered| registered.connection().session())
    }

    /// Whether the client reads too slowly: it is not read until it has read some of its output.
    pub(crate) fn is_backlogged(&self) -> bool {
        self.outbox.backlog() >= self.shared.config.outbox_limit
    }

    /// Whether the server drains, and this client's time to leave has come.
    pub(crate) fn must_leave(&self) -> bool {
        self.shared.must_leave(self.id)
    }

    /// The time at which a client that still waits for answers has to leave during a drain: `limit` after the first call.
    pub(crate) fn settle_deadline(&mut self, now: Instant, limit: Duration) -> Instant {
        *self.deadline.get_or_insert(now + limit)
    }

    /// Whether [`Self::deadline`] has passed.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Counts received bytes. After the login they count against the receive rate. Those of the login do not: they are
    /// bounded, and a login must not wait because of other clients' traffic.
    fn received(&mut self, taken: usize, is_open: bool, now: Instant) {
        self.shared.metrics.bytes_received.add(taken as u64);
        if let Some(registered) = &self.registered {
            registered.connection().has_received(taken);
        }
        if let Some(record) = &mut self.record {
            record.received += taken as u64;
        }
        if is_open {
            self.rested_until = self.lease.received(taken, now);
        }
    }
}

/// A request to the backend that a connection's task waits for. Aborted when dropped.
pub(crate) struct BackendRequest<A> {
    task: JoinHandle<()>,
    /// Stored by the task before it nudges the outbox.
    answer: Arc<Mutex<Option<A>>>,
}

impl<A: Send + 'static> BackendRequest<A> {
    /// Starts the request. `outbox` is nudged when [`Self::take_answer`] has the answer.
    pub(crate) fn new(outbox: &Arc<Outbox>, request: impl Future<Output = A> + Send + 'static) -> Self {
        let answer = Arc::new(Mutex::new(None));
        let (outbox, slot) = (Arc::clone(outbox), Arc::clone(&answer));
        let task = tokio::spawn(async move {
            let answer = request.await;
            *slot.lock() = Some(answer);
            outbox.nudge();
        });
        Self { task, answer }
    }

    /// The answer, once it has arrived.
    pub(crate) fn take_answer(&self) -> Option<A> {
        self.answer.lock().take()
    }
}

impl<A> Drop for BackendRequest<A> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Nudges a connection's task when something that its session waits for is done.
pub(crate) struct OutboxWaiter(pub(crate) Arc<Outbox>);

impl Waiter for OutboxWaiter {
    fn wake(&self) {
        self.0.nudge();
    }
}

/// A protocol's part of a client's connection. The methods are called like those of [`Protocol`].
pub(crate) trait ProtocolState: Send + Sized + 'static {
    /// The mapping of its bytes to WebSocket messages.
    const CARRIAGE: FrameMapping;

    /// A connection that was accepted at `now` and has received nothing yet.
    fn new(core: ConnectionCore, now: Instant) -> Self;
    fn core(&self) -> &ConnectionCore;
    fn core_mut(&mut self) -> &mut ConnectionCore;
    /// Whether the client has logged in, and the connection has not ended.
    fn is_open(&self) -> bool;
    /// Takes bytes from the front of `input`; returns how many.
    fn take_input(&mut self, input: &[u8], now: Instant) -> usize;
    fn handle_eof(&mut self, now: Instant);
    fn handle_nudge(&mut self, now: Instant);
    fn handle_capacity(&mut self, now: Instant);
    fn handle_written(&mut self, _now: Instant) {}
    /// `is_unread` says that the client has not been read for a while, so that its silence means nothing.
    fn handle_deadline(&mut self, now: Instant, is_unread: bool);
    /// The time for [`Self::handle_deadline`], if that is not the core's deadline.
    fn next_deadline(&self) -> Option<Instant>;
    fn intent(&self) -> Intent;
    /// Ends the session if there still is one: the socket failed, or the peer stopped reading. If it [is still
    /// ending](Self::is_ending) after that, this is to be called again in the next turn.
    fn end_session(&mut self, now: Instant);
    /// Whether the session has begun to end, and needs more turns for that.
    fn is_ending(&self) -> bool {
        false
    }
}

/// The server's side of a client's connection, driven by [`transport::drive`].
pub(crate) struct ClientConnection<P: ProtocolState>(P);

impl<P: ProtocolState> ClientConnection<P> {
    /// With its output in `outbox`.
    pub(crate) fn new(shared: &Arc<Shared>, accepted: AcceptedConnection, outbox: &Arc<Outbox>) -> Self {
        let since = accepted.since;
        Self(P::new(ConnectionCore::new(shared, accepted, outbox), since))
    }

    /// For a connection handed over by another process. `resume` creates the protocol's part.
    pub(crate) fn resume(
        shared: &Arc<Shared>,
        accepted: AcceptedConnection,
        outbox: &Arc<Outbox>,
        resume: impl FnOnce(ConnectionCore) -> P,
    ) -> Self {
        Self(resume(ConnectionCore::new(shared, accepted, outbox)))
    }

    /// Takes the state for the process that takes the connection over.
    pub(crate) fn take_departing(&mut self) -> Option<ConnectionState> {
        self.0.core_mut().departing.take().map(|state| *state)
    }

    /// Takes the access-log record when the connection has ended.
    pub(crate) fn take_record(&mut self) -> Option<Box<AccessRecord>> {
        self.0.core_mut().record.take()
    }

    /// Ends the session of a connection that has ended, in as many turns as that takes.
    pub(crate) async fn end(&mut self) {
        let mut permit = None;
        loop {
            let turn = work::Turn::begin();
            self.0.end_session(transport::now());
            drop(turn);
            drop(permit.take());
            if !self.0.is_ending() {
                return;
            }
            permit = next_busy_turn().await;
        }
    }

    /// Why the connection ended, if its protocol knows.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.core().end.as_ref().map(|(_, reason)| reason.as_str())
    }

    /// How and why the connection ended, as far as known.
    pub(crate) fn ending(&self) -> (Ending, &str) {
        self.0.core().end.as_ref().map_or((Ending::Normal, ""), |(ending, reason)| (*ending, reason))
    }

    /// The protocol's part.
    #[cfg(test)]
    pub(crate) fn protocol(&self) -> &P {
        &self.0
    }
}

impl<P: ProtocolState> Protocol for ClientConnection<P> {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        let taken = self.0.take_input(input, now);
        let is_open = self.0.is_open();
        self.0.core_mut().received(taken, is_open, now);
        taken
    }

    fn handle_eof(&mut self) {
        self.0.handle_eof(transport::now());
    }

    fn handle_nudge(&mut self, now: Instant) {
        self.0.handle_nudge(now);
    }

    fn handle_capacity(&mut self) {
        self.0.handle_capacity(Instant::now());
    }

    fn handle_written(&mut self, now: Instant) {
        self.0.handle_written(now);
    }

    fn handle_deadline(&mut self, now: Instant) {
        let is_unread = self.intent() == Intent::Pause || self.0.core().is_backlogged();
        let core = self.0.core_mut();
        core.rested_until = core.rested_until.filter(|until| now < *until);
        self.0.handle_deadline(now, is_unread);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let core = self.0.core();
        [self.0.next_deadline(), core.deadline, core.rested_until].into_iter().flatten().min()
    }

    fn intent(&self) -> Intent {
        match self.0.intent() {
            Intent::Run if self.0.core().rested_until.is_some() && self.0.is_open() => Intent::Pause,
            intent => intent,
        }
    }
}

impl<P: ProtocolState> Drop for ClientConnection<P> {
    fn drop(&mut self) {
        self.0.end_session(transport::now());
        while self.0.is_ending() {
            self.0.end_session(transport::now());
        }
    }
}
