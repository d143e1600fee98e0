//! The log of retained messages of one virtual host: what was read of it, the clients that need it, and those that wait for it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::FieldValue;
use broker::Timestamp;
use mqtt::ReasonCode;
use mqtt::topic::merged;
use sync::{AtomicWaker, Mutex, Rank};
use transport::Outbox;

use super::logins::LogLogins;
use super::record::{self, Encoded, LogEntry, Placed};
use super::status::RetainedStatus;
use super::topics::{LogLimits, RetainedTopics};
use crate::clock::Clock;
use crate::mqtt::message::Incoming;
use crate::mqtt::retained::{RetainedMessage, RetainedSearch};
use crate::mqtt::session::Refusal;
use crate::upstream::multiplexing::UpstreamLogin;

/// Longest time that a client waits to learn whether messages are retained: enough for the handshakes of a first connection
/// upstream. After that it counts as so.
pub(super) const MAX_DECISION: Duration = Duration::from_secs(2);

/// Time that the log is read after the last client has gone: the next one need not wait until all of it has been read again.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients that wait for the log at which those that are gone are removed.
const MIN_PRUNED: usize = 1024;

/// The log of one virtual host, as sessions and its own task see it.
pub(in super::super) struct RetainedLog {
    vhost: Box<str>,
    /// The exchange of clients' messages, from which those that are retained come.
    publishers: Arc<str>,
    /// A random number that tells markers of this log's reader from others.
    pub(super) process: u64,
    limits: LogLimits,
    clock: Clock,
    state: Mutex<LogState, { Rank::RetainedTree as u8 }>,
    /// Wakes the log's task.
    pub(super) waker: AtomicWaker,
}

struct LogState {
    topics: RetainedTopics,
    /// Served until the log that has taken this one's place has been read once.
    previous: Option<PreviousTopics>,
    /// Number of logs that were served before.
    replaced: u64,
    logins: LogLogins,
    status: LogStatus,
    /// Clients that wait for another status, by their deadlines.
    undecided: VecDeque<(Instant, Arc<Outbox>)>,
    /// The number of the last ticket.
    tickets: u64,
    /// The last ticket up to whose time the log was read.
    reached: u64,
    /// Clients that wait for a ticket.
    waiting: VecDeque<(u64, Arc<Outbox>)>,
    /// Number of those at which closed connections are removed from them.
    pruned_at: usize,
    /// Since when there has been no client.
    unused_since: Option<Instant>,
    is_draining: bool,
    /// Set when the log is given up; it then takes no client.
    has_ended: bool,
    /// Whether a message was dropped for lack of room, which is logged once.
    is_overfull: bool,
}

/// Whether messages are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStatus {
    /// It is not known whether the log is there.
    Undecided,
    /// The log is there, and gets each message that is to be retained.
    Bound,
    /// No login may read and declare it.
    Refused,
}

/// How far the topics that a filter matches have been found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogProgress {
    /// Number of logs that were served before the one that is looked through.
    log: u64,
    topics: RetainedSearch,
}

impl LogProgress {
    pub(super) fn is_done(self) -> bool {
        self.topics == RetainedSearch::Done
    }
}

/// The topics of the log that was replaced.
struct PreviousTopics {
    topics: RetainedTopics,
    /// The last ticket at that time.
    tickets: u64,
}

/// A status that was set, of which those that wait are to be notified without the lock.
#[must_use]
struct StatusChange {
    is_new: bool,
    nudged: Vec<Arc<Outbox>>,
}

impl StatusChange {
    /// Returns whether the status is another one than before.
    fn nudge(self) -> bool {
        self.nudged.iter().for_each(|outbox| outbox.nudge());
        self.is_new
    }
}

impl RetainedLog {
    pub(super) fn new(
        vhost: &str,
        publishers: &Arc<str>,
        limits: LogLimits,
        clock: Clock,
        is_draining: bool,
    ) -> Arc<Self> {
        let number = || RandomState::new().hash_one(vhost);
        let process = number();
        let state = LogState {
            topics: RetainedTopics::new(limits, number()),
            previous: None,
            replaced: 0,
            logins: LogLogins::default(),
            status: LogStatus::Undecided,
            undecided: VecDeque::new(),
            tickets: 0,
            reached: 0,
            waiting: VecDeque::new(),
            pruned_at: MIN_PRUNED,
            unused_since: None,
            is_draining,
            has_ended: false,
            is_overfull: false,
        };
        let (state, waker) = (Mutex::new(state), AtomicWaker::new());
        let publishers = Arc::clone(publishers);
        Arc::new(Self { vhost: vhost.into(), publishers, process, limits, clock, state, waker })
    }

    pub(super) fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(super) fn publishers(&self) -> &Arc<str> {
        &self.publishers
    }

    pub(super) fn limits(&self) -> LogLimits {
        self.limits
    }

    /// Adds a client; `None` if the log has ended, and another one is to be used.
    pub(super) fn join(self: &Arc<Self>, login: &UpstreamLogin, outbox: &Arc<Outbox>) -> Option<LogClient> {
        let mut state = self.state.lock();
        if state.has_ended {
            return None;
        }
        state.unused_since = None;
        let since = transport::now();
        if state.logins.join(login, since) && state.status == LogStatus::Refused {
            state.status = LogStatus::Undecided;
        }
        if state.status == LogStatus::Undecided {
            state.wait_until(since + MAX_DECISION, outbox);
        }
        drop(state);
        self.waker.wake();
        Some(LogClient { log: Arc::clone(self), login: login.clone(), since })
    }

    fn leave(&self, login: &UpstreamLogin) {
        let mut state = self.state.lock();
        state.logins.leave(login);
        if !state.logins.has_clients() {
            state.unused_since = Some(transport::now());
        }
        drop(state);
        self.waker.wake();
    }

    /// The login that is to be tried next. If there is none, nobody waits for one any more.
    pub(super) fn choose_login(&self, now: Instant) -> Option<UpstreamLogin> {
        let mut state = self.state.lock();
        let next = state.logins.next(now);
        let change = next.is_none().then(|| state.set_status(LogStatus::Refused));
        drop(state);
        change.map(StatusChange::nudge);
        next
    }

    /// Whether there is one.
    pub(super) fn has_login(&self, now: Instant) -> bool {
        self.state.lock().logins.next(now).is_some()
    }

    /// As [`LogLogins::needs`].
    pub(super) fn needs(&self, login: &UpstreamLogin) -> bool {
        self.state.lock().logins.needs(login)
    }

    /// The upstream has refused the log to a login. Returns whether clients learn only now that nothing is retained.
    pub(super) fn handle_refusal(&self, login: &UpstreamLogin) -> bool {
        let (mut state, now) = (self.state.lock(), transport::now());
        state.logins.handle_refused(login, now);
        let is_over = !state.logins.is_worth_waiting(now);
        let change = is_over.then(|| state.set_status(LogStatus::Refused));
        drop(state);
        change.is_some_and(StatusChange::nudge)
    }

    /// The log is declared and bound, and read by this login.
    pub(super) fn handle_bound(&self, login: &UpstreamLogin) {
        let mut state = self.state.lock();
        state.logins.handle_accepted(login);
        let change = state.set_status(LogStatus::Bound);
        drop(state);
        change.nudge();
    }

    /// The log was deleted, or another one has taken its place.
    pub(super) fn handle_replaced(&self) {
        let mut state = self.state.lock();
        let topics = std::mem::replace(&mut state.topics, RetainedTopics::new(self.limits, self.process));
        let topics = state.previous.take().map_or(topics, |previous| previous.topics);
        state.previous = Some(PreviousTopics { topics, tickets: state.tickets });
        state.status = LogStatus::Undecided;
    }

    /// Handles what was read. Returns whether it was this reader's own marker.
    pub(super) fn read(&self, placed: Placed) -> LogRead {
        let now = self.now();
        let mut state = self.state.lock();
        if let LogEntry::Marker { process, number } = placed.entry
            && process == self.process
            && number > state.reached
            && number <= state.tickets
        {
            if placed.offset < state.topics.next() {
                return LogRead::Replaced;
            }
            state.topics.read(placed, now);
            state.reached = number;
            // A marker of before may be in the new log, too, and does not tell that all of it has been read.
            if state.previous.take_if(|previous| number > previous.tickets).is_some() {
                state.replaced += 1;
            }
            let mut nudged = Vec::new();
            while let Some((_, outbox)) = state.waiting.pop_front_if(|(ticket, _)| *ticket <= number) {
                nudged.push(outbox);
            }
            drop(state);
            nudged.iter().for_each(|outbox| outbox.nudge());
            return LogRead::Marker(number);
        }
        if !state.topics.read(placed, now) && !std::mem::replace(&mut state.is_overfull, true) {
            drop(state);
            tracing::warn!(vhost = &*self.vhost, "too many retained messages: some dropped");
        }
        LogRead::Entry
    }

    /// The number of a marker to be published, if one later than `last` is asked for.
    pub(super) fn wanted_marker(&self, last: u64) -> Option<u64> {
        Some(self.state.lock().tickets).filter(|tickets| *tickets > last)
    }

    /// A ticket of the reader itself, for a connection that begins.
    pub(super) fn ticket_of_reader(&self) {
        self.state.lock().tickets += 1;
    }

    /// The offset to read from.
    pub(super) fn next_offset(&self) -> u64 {
        self.state.lock().topics.next()
    }

    /// Number of topics with a message.
    pub(super) fn topics(&self) -> usize {
        self.state.lock().topics.len()
    }

    /// The log for operators.
    pub(super) fn status(&self) -> RetainedStatus {
        let state = self.state.lock();
        RetainedStatus::new(&self.vhost, state.status, (state.topics.len(), state.topics.bytes()))
    }

    /// The next entry to be copied to the log's end.
    pub(super) fn next_copy(&self) -> Option<Encoded> {
        let now = self.now();
        self.state.lock().topics.next_copy(now)
    }

    /// Whether there may be one.
    pub(super) fn has_copies(&self) -> bool {
        self.state.lock().topics.has_copies()
    }

    /// Copies may not have arrived.
    pub(super) fn copy_again(&self) {
        self.state.lock().topics.copy_again();
    }

    /// The wall clock's time: messages expire by it, since other servers have written their times.
    fn now(&self) -> Timestamp {
        self.clock.wall(transport::now())
    }

    /// Ends waits.
    pub(super) fn expire(&self, now: Instant) {
        let mut state = self.state.lock();
        let mut nudged = Vec::new();
        while let Some((_, outbox)) = state.undecided.pop_front_if(|(end, _)| *end <= now) {
            nudged.push(outbox);
        }
        drop(state);
        nudged.iter().for_each(|outbox| outbox.nudge());
    }

    pub(super) fn end_if_unused(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let idle_time = state.idle_time();
        state.has_ended |= state.unused_since.is_some_and(|since| now >= since + idle_time);
        state.has_ended
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// The next time for the two before, and for a login that was refused if `retries`.
    pub(super) fn next_deadline(&self, retries: bool) -> Option<Instant> {
        let state = self.state.lock();
        let unused = state.unused_since.map(|since| since + state.idle_time());
        let retry = retries.then(|| state.logins.next_retry(transport::now())).flatten();
        let undecided = state.undecided.front().map(|(end, _)| *end);
        unused.into_iter().chain(retry).chain(undecided).min()
    }

    /// From now on the log is given up as soon as it has no client.
    pub(super) fn drain(&self) {
        self.state.lock().is_draining = true;
        self.waker.wake();
    }

    /// Gives the log up.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let change = state.set_status(LogStatus::Refused);
        drop(state);
        change.nudge();
    }
}

/// The kind of an entry that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogRead {
    Entry,
    /// This reader's own marker.
    Marker(u64),
    /// The log is another one than before.
    Replaced,
}

impl LogState {
    fn set_status(&mut self, status: LogStatus) -> StatusChange {
        let is_new = std::mem::replace(&mut self.status, status) != status;
        let mut nudged: Vec<_> = self.undecided.drain(..).map(|(_, who)| who).collect();
        if status == LogStatus::Refused {
            nudged.extend(self.waiting.drain(..).map(|(_, who)| who));
        }
        StatusChange { is_new, nudged }
    }

    /// Adds a client that waits for another status until `end`. Returns false if it does already.
    fn wait_until(&mut self, end: Instant, outbox: &Arc<Outbox>) -> bool {
        let at = self.undecided.partition_point(|(other, _)| *other < end);
        let mut with_it = self.undecided.range(at..).take_while(|(other, _)| *other == end);
        let is_new = !with_it.any(|(_, other)| Arc::ptr_eq(other, outbox));
        if is_new {
            self.undecided.insert(at, (end, Arc::clone(outbox)));
        }
        is_new
    }

    /// The topics whose messages clients are sent.
    fn served(&self) -> &RetainedTopics {
        self.previous.as_ref().map_or(&self.topics, |previous| &previous.topics)
    }

    fn idle_time(&self) -> Duration {
        if self.is_draining { Duration::ZERO } else { IDLE_TIMEOUT }
    }
}

/// A client's hold on the log of its virtual host. Dropping it gives it up.
pub(in super::super) struct LogClient {
    log: Arc<RetainedLog>,
    login: UpstreamLogin,
    since: Instant,
}

impl LogClient {
    fn status(&self) -> LogStatus {
        self.log.state.lock().status
    }

    /// Whether it is known whether messages are retained, or the client is not to wait for that any longer. If not, its outbox
    /// is nudged when that is so: it may have been known when the client came.
    pub(in super::super) fn is_decided(&self, outbox: &Arc<Outbox>) -> bool {
        transport::now() >= self.since + MAX_DECISION || !self.must_wait(outbox)
    }

    /// Whether messages are retained, or may be.
    pub(in super::super) fn is_available(&self) -> bool {
        self.status() != LogStatus::Refused
    }

    /// Whether a message that is to be retained has to wait for the log. If so, the outbox is nudged when it need not, and now
    /// and then before that.
    pub(in super::super) fn must_wait(&self, outbox: &Arc<Outbox>) -> bool {
        let mut state = self.log.state.lock();
        if state.status != LogStatus::Undecided {
            return false;
        }
        if state.wait_until(self.next_end(transport::now()), outbox) {
            drop(state);
            // The task may wait for a later time, or for none.
            self.log.waker.wake();
        }
        true
    }

    /// When the outbox of a client that waits is nudged again: always the same time until that has come, so that a client
    /// waits once however often it asks.
    fn next_end(&self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.since).as_nanos() / MAX_DECISION.as_nanos();
        self.since + MAX_DECISION * u32::try_from(passed + 1).unwrap_or(u32::MAX)
    }

    /// Entries of all clients that wait for another status.
    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.log.state.lock().undecided.len()
    }

    /// Whether a message with this key and size may be retained.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn check(&self, routing_key: &str, properties: &[u8], payload: usize) -> Result<(), Refusal> {
        let size = record::size_of(routing_key, properties, payload);
        let has_capacity = || {
            let now = self.log.now();
            let mut state = self.log.state.lock();
            // There may be room in a log that is not read here.
            state.status == LogStatus::Refused || state.topics.has_capacity(&merged(routing_key), size, now)
        };
        if payload == 0 || has_capacity() {
            return Ok(());
        }
        Err(Refusal { reason: ReasonCode::QuotaExceeded, text: "retained message limit reached" })
    }

    /// The header by which the log knows a message.
    pub(super) fn header(&self, message: &Incoming<'_>) -> (&'static str, FieldValue) {
        record::original(message, self.log.now())
    }

    /// A ticket for the log as it is now; the outbox is nudged when it has been read. `None` if it is not read.
    pub(super) fn ticket(&self, outbox: &Arc<Outbox>) -> Option<u64> {
        let mut state = self.log.state.lock();
        if state.status == LogStatus::Refused {
            return None;
        }
        state.tickets += 1;
        let ticket = state.tickets;
        if state.waiting.len() >= state.pruned_at {
            // While the log cannot be read, clients come and go.
            state.waiting.retain(|(_, outbox)| !outbox.is_closed());
            state.pruned_at = MIN_PRUNED.max(2 * state.waiting.len());
        }
        state.waiting.push_back((ticket, Arc::clone(outbox)));
        drop(state);
        self.log.waker.wake();
        Some(ticket)
    }

    /// Whether the log has been read as far as it went at the time of a ticket, or is not read.
    pub(super) fn has_reached(&self, ticket: u64) -> bool {
        let state = self.log.state.lock();
        state.reached >= ticket || state.status == LogStatus::Refused
    }

    /// Messages of the topics that a filter matches, as [`RetainedTopics::matching`] finds them.
    pub(super) fn matching(
        &self,
        filter: &str,
        progress: &mut LogProgress,
        now: Timestamp,
    ) -> Vec<Arc<RetainedMessage>> {
        let state = self.log.state.lock();
        if progress.log != state.replaced {
            // Offsets are those of another log.
            *progress = LogProgress { log: state.replaced, topics: RetainedSearch::Begun };
        }
        state.served().matching(&merged(filter), &mut progress.topics, now)
    }

    /// The message of a topic.
    pub(super) fn get(&self, topic: &str, now: Timestamp) -> Option<Arc<RetainedMessage>> {
        self.log.state.lock().served().get(topic, now)
    }
}

impl Drop for LogClient {
    fn drop(&mut self) {
        self.log.leave(&self.login);
    }
}
