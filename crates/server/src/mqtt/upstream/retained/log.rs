//! The log of retained messages of one virtual host: the topics read from it, its clients, and their waits.

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

/// The longest time that a client waits to learn whether messages are retained: enough for the handshakes of a first
/// upstream connection. Afterwards it assumes that they are.
pub(super) const MAX_DECISION: Duration = Duration::from_secs(2);

/// The time that the log is still read after the last client has left, so that the next client need not wait for a
/// complete read.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Waiting clients at which those with closed connections are removed.
const MIN_PRUNED: usize = 1024;

/// The log of one virtual host, shared by its sessions and its task.
pub(in super::super) struct RetainedLog {
    vhost: Box<str>,
    /// The `mqtt_exchange`, through which retained messages reach the log.
    publishers: Arc<str>,
    /// A random number that distinguishes this reader's markers from others'.
    pub(super) process: u64,
    limits: LogLimits,
    clock: Clock,
    state: Mutex<LogState, { Rank::RetainedTree as u8 }>,
    /// Wakes the log's task.
    pub(super) waker: AtomicWaker,
}

struct LogState {
    topics: RetainedTopics,
    /// Served instead of `topics` until the log that has replaced this one has been read completely.
    previous: Option<PreviousTopics>,
    /// The number of times that another log has been served in place of the last one.
    replaced: u64,
    logins: LogLogins,
    status: LogStatus,
    /// Clients that wait for the status to be decided, each with its deadline.
    undecided: VecDeque<(Instant, Arc<Outbox>)>,
    /// The number of the last ticket.
    tickets: u64,
    /// The last ticket whose marker has been read.
    reached: u64,
    /// Clients that wait for a ticket.
    waiting: VecDeque<(u64, Arc<Outbox>)>,
    /// The length of `waiting` at which closed connections are removed from it.
    pruned_at: usize,
    /// When the last client left; `None` while there are clients.
    unused_since: Option<Instant>,
    is_draining: bool,
    /// Set when the log is abandoned; it then accepts no client.
    has_ended: bool,
    /// Whether a message was dropped because of the limits, which is logged once.
    is_overfull: bool,
}

/// Whether messages are retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogStatus {
    /// Whether the log exists is not known yet.
    Undecided,
    /// The log exists and receives every retained message.
    Bound,
    /// No login has permission to read and declare it.
    Refused,
}

/// The progress of a search for the topics that a filter matches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogProgress {
    /// The value of `replaced` for the log that is searched.
    log: u64,
    topics: RetainedSearch,
}

impl LogProgress {
    pub(super) fn is_done(self) -> bool {
        self.topics == RetainedSearch::Done
    }
}

/// The topics of a log that was replaced.
struct PreviousTopics {
    topics: RetainedTopics,
    /// The last ticket at the time of the replacement.
    tickets: u64,
}

/// A changed status, of which waiting clients have to be notified after unlocking.
#[must_use]
struct StatusChange {
    is_new: bool,
    nudged: Vec<Arc<Outbox>>,
}

impl StatusChange {
    /// Notifies them. Returns whether the status differs from the earlier one.
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

    /// Adds a client; `None` if the log has ended and another one has to be used.
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

    /// The login to try next. If there is none, clients no longer wait for one.
    pub(super) fn choose_login(&self, now: Instant) -> Option<UpstreamLogin> {
        let mut state = self.state.lock();
        let next = state.logins.next(now);
        let change = next.is_none().then(|| state.set_status(LogStatus::Refused));
        drop(state);
        change.map(StatusChange::nudge);
        next
    }

    /// Whether there is a login to try.
    pub(super) fn has_login(&self, now: Instant) -> bool {
        self.state.lock().logins.next(now).is_some()
    }

    /// See [`LogLogins::needs`].
    pub(super) fn needs(&self, login: &UpstreamLogin) -> bool {
        self.state.lock().logins.needs(login)
    }

    /// Called when the upstream has refused the log to a login. Returns whether clients learn now that nothing is
    /// retained.
    pub(super) fn handle_refusal(&self, login: &UpstreamLogin) -> bool {
        let (mut state, now) = (self.state.lock(), transport::now());
        state.logins.handle_refused(login, now);
        let is_over = !state.logins.is_worth_waiting(now);
        let change = is_over.then(|| state.set_status(LogStatus::Refused));
        drop(state);
        change.is_some_and(StatusChange::nudge)
    }

    /// Called when the log is declared and bound, and this login reads it.
    pub(super) fn handle_bound(&self, login: &UpstreamLogin) {
        let mut state = self.state.lock();
        state.logins.handle_accepted(login);
        let change = state.set_status(LogStatus::Bound);
        drop(state);
        change.nudge();
    }

    /// Called when the log was deleted or replaced by another one.
    pub(super) fn handle_replaced(&self) {
        let mut state = self.state.lock();
        let topics = std::mem::replace(&mut state.topics, RetainedTopics::new(self.limits, self.process));
        let topics = state.previous.take().map_or(topics, |previous| previous.topics);
        state.previous = Some(PreviousTopics { topics, tickets: state.tickets });
        state.status = LogStatus::Undecided;
    }

    /// Handles an entry.
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
            // The new log may contain markers published before the replacement, which do not prove that all of it has
            // been read.
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

    /// The number of a marker to publish, if a ticket after `last` is waiting.
    pub(super) fn wanted_marker(&self, last: u64) -> Option<u64> {
        Some(self.state.lock().tickets).filter(|tickets| *tickets > last)
    }

    /// Adds a ticket of the reader itself, when its connection starts.
    pub(super) fn ticket_of_reader(&self) {
        self.state.lock().tickets += 1;
    }

    /// The offset to read from.
    pub(super) fn next_offset(&self) -> u64 {
        self.state.lock().topics.next()
    }

    /// Number of topics with a retained message.
    pub(super) fn topics(&self) -> usize {
        self.state.lock().topics.len()
    }

    /// The log's status for operators.
    pub(super) fn status(&self) -> RetainedStatus {
        let state = self.state.lock();
        RetainedStatus::new(&self.vhost, state.status, (state.topics.len(), state.topics.bytes()))
    }

    /// The next entry that has to be copied to the log's end.
    pub(super) fn next_copy(&self) -> Option<Encoded> {
        let now = self.now();
        self.state.lock().topics.next_copy(now)
    }

    /// Whether entries have to be copied.
    pub(super) fn has_copies(&self) -> bool {
        self.state.lock().topics.has_copies()
    }

    /// Starts the copying again, since copies may have been lost.
    pub(super) fn copy_again(&self) {
        self.state.lock().topics.copy_again();
    }

    /// The wall clock's time. Expiry times are on it, since other servers write them.
    fn now(&self) -> Timestamp {
        self.clock.wall(transport::now())
    }

    /// Nudges clients whose wait for the status is over.
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

    /// The next time for [`Self::expire`] or [`Self::end_if_unused`] and, if `retries`, for retrying a refused login.
    pub(super) fn next_deadline(&self, retries: bool) -> Option<Instant> {
        let state = self.state.lock();
        let unused = state.unused_since.map(|since| since + state.idle_time());
        let retry = retries.then(|| state.logins.next_retry(transport::now())).flatten();
        let undecided = state.undecided.front().map(|(end, _)| *end);
        unused.into_iter().chain(retry).chain(undecided).min()
    }

    /// Called at shutdown: the log is abandoned as soon as it has no client.
    pub(super) fn drain(&self) {
        self.state.lock().is_draining = true;
        self.waker.wake();
    }

    /// Abandons the log.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let change = state.set_status(LogStatus::Refused);
        drop(state);
        change.nudge();
    }
}

/// The kind of entry that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogRead {
    Entry,
    /// This reader's own marker.
    Marker(u64),
    /// The log is a new one.
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

    /// Adds a client that waits for the status until `end`. Returns false if it waits already.
    fn wait_until(&mut self, end: Instant, outbox: &Arc<Outbox>) -> bool {
        let at = self.undecided.partition_point(|(other, _)| *other < end);
        let mut with_it = self.undecided.range(at..).take_while(|(other, _)| *other == end);
        let is_new = !with_it.any(|(_, other)| Arc::ptr_eq(other, outbox));
        if is_new {
            self.undecided.insert(at, (end, Arc::clone(outbox)));
        }
        is_new
    }

    /// The topics that clients are served from.
    fn served(&self) -> &RetainedTopics {
        self.previous.as_ref().map_or(&self.topics, |previous| &previous.topics)
    }

    fn idle_time(&self) -> Duration {
        if self.is_draining { Duration::ZERO } else { IDLE_TIMEOUT }
    }
}

/// A client's use of its virtual host's log, until it is dropped.
pub(in super::super) struct LogClient {
    log: Arc<RetainedLog>,
    login: UpstreamLogin,
    since: Instant,
}

impl LogClient {
    fn status(&self) -> LogStatus {
        self.log.state.lock().status
    }

    /// Whether it is known whether messages are retained, or the client has waited for that long enough. If not, its
    /// outbox is nudged when that changes.
    pub(in super::super) fn is_decided(&self, outbox: &Arc<Outbox>) -> bool {
        transport::now() >= self.since + MAX_DECISION || !self.must_wait(outbox)
    }

    /// Whether messages are retained, as far as is known.
    pub(in super::super) fn is_available(&self) -> bool {
        self.status() != LogStatus::Refused
    }

    /// Whether a retained publish has to wait for the log. If so, the outbox is nudged when it need not wait any more,
    /// and every [`MAX_DECISION`] until then.
    pub(in super::super) fn must_wait(&self, outbox: &Arc<Outbox>) -> bool {
        let mut state = self.log.state.lock();
        if state.status != LogStatus::Undecided {
            return false;
        }
        if state.wait_until(self.next_end(transport::now()), outbox) {
            drop(state);
            // The task's deadline may be later, or it may have none.
            self.log.waker.wake();
        }
        true
    }

    /// The next time at which a waiting client is nudged. It stays the same until it has passed, so that repeated calls
    /// add one wait.
    fn next_end(&self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.since).as_nanos() / MAX_DECISION.as_nanos();
        self.since + MAX_DECISION * u32::try_from(passed + 1).unwrap_or(u32::MAX)
    }

    /// Number of waits for the status, of all clients.
    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.log.state.lock().undecided.len()
    }

    /// Whether a message with this key and size may be retained.
    ///
    /// # Errors
    /// The limit is reached.
    pub(super) fn check(&self, routing_key: &str, properties: &[u8], payload: usize) -> Result<(), Refusal> {
        let size = record::size_of(routing_key, properties, payload);
        let has_capacity = || {
            let now = self.log.now();
            let mut state = self.log.state.lock();
            // If the log is not read here, another server's log may still have capacity.
            state.status == LogStatus::Refused || state.topics.has_capacity(&merged(routing_key), size, now)
        };
        if payload == 0 || has_capacity() {
            return Ok(());
        }
        Err(Refusal { reason: ReasonCode::QuotaExceeded, text: "retained message limit reached" })
    }

    /// The header that makes a message an entry of the log.
    pub(super) fn header(&self, message: &Incoming<'_>) -> (&'static str, FieldValue) {
        record::original(message, self.log.now())
    }

    /// A ticket for the log's present end; the outbox is nudged when the log has been read up to it. `None` if the log is
    /// not read.
    pub(super) fn ticket(&self, outbox: &Arc<Outbox>) -> Option<u64> {
        let mut state = self.log.state.lock();
        if state.status == LogStatus::Refused {
            return None;
        }
        state.tickets += 1;
        let ticket = state.tickets;
        if state.waiting.len() >= state.pruned_at {
            // Clients may connect and disconnect in great numbers while the log cannot be read.
            state.waiting.retain(|(_, outbox)| !outbox.is_closed());
            state.pruned_at = MIN_PRUNED.max(2 * state.waiting.len());
        }
        state.waiting.push_back((ticket, Arc::clone(outbox)));
        drop(state);
        self.log.waker.wake();
        Some(ticket)
    }

    /// Whether the log has been read up to a ticket, or is not read at all.
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
            // The progress refers to another log's offsets.
            *progress = LogProgress { log: state.replaced, topics: RetainedSearch::Begun };
        }
        state.served().matching(&merged(filter), &mut progress.topics, now)
    }

    /// The retained message of a topic.
    pub(super) fn get(&self, topic: &str, now: Timestamp) -> Option<Arc<RetainedMessage>> {
        self.log.state.lock().served().get(topic, now)
    }
}

impl Drop for LogClient {
    fn drop(&mut self) {
        self.log.leave(&self.login);
    }
}
