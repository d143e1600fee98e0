//! A takeover queue of this process, with the clients of its login.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sync::{AtomicWaker, Mutex, Rank};
use transport::Outbox;

use super::announcement::Announcement;
use super::link::TakeoverLink;
use crate::mqtt::session_ownership::Owner;
use crate::mqtt::upstream::hub::{UpstreamClaim, UpstreamHub};
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::task::LinkedQueue;

/// The longest time that a client waits for its announcement: enough for the handshakes of a first upstream connection.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// The time that a queue stays after its last client, so that the login's next client is announced without a handshake.
pub(in super::super) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time after which a refused login is tried again, since permissions may have been granted.
pub(super) const REFUSAL_TTL: Duration = Duration::from_secs(60);

/// A takeover queue, shared by its clients and its task.
pub(super) struct Watch {
    login: UpstreamLogin,
    process: Box<str>,
    hub: Weak<UpstreamHub>,
    state: Mutex<WatchState, { Rank::MultiplexedQueue as u8 }>,
    /// Wakes the queue's task.
    waker: AtomicWaker,
}

#[derive(Default)]
struct WatchState {
    /// The latest connection of each client.
    members: HashMap<Box<str>, Arc<WatchedConnection>>,
    /// Connections that have to be announced.
    unsent: VecDeque<Arc<WatchedConnection>>,
    /// Connections whose announcements are unconfirmed, in the order of publishing.
    unconfirmed: VecDeque<Arc<WatchedConnection>>,
    /// Connections that wait, each with its deadline. May contain connections that no longer wait.
    waiting: VecDeque<(Instant, Arc<WatchedConnection>)>,
    last_number: u64,
    /// The number of connections and of [`WatchHold`]s.
    count: usize,
    /// When `count` became 0; `None` above 0.
    unused_since: Option<Instant>,
    is_draining: bool,
    /// Whether the upstream has refused the queue or its announcements, so that clients do not wait for it.
    is_refused: bool,
    /// Set when the queue is abandoned; it then accepts no client.
    has_ended: bool,
}

/// A connection that the upstream has accepted.
pub(in super::super) struct Watcher {
    pub(in super::super) owner: Arc<Owner>,
    pub(in super::super) claim: Arc<UpstreamClaim>,
    pub(in super::super) outbox: Arc<Outbox>,
    /// Whether the client resumes its session.
    pub(in super::super) resumes: bool,
    /// Milliseconds since 1970 on the wall clock.
    pub(in super::super) at: u64,
}

/// A connection's entry.
pub(super) struct WatchedConnection {
    watcher: Watcher,
    number: u64,
    /// [`WAITING`], or the outcome of the wait.
    wait: AtomicU8,
    /// Whether this process has received its own announcement of it: announcements after that are of later connections.
    is_back: AtomicBool,
    /// [`NOBODY`], or the code of the [`TakenBy`].
    taken: AtomicU8,
}

const WAITING: u8 = 0;
const ANNOUNCED: u8 = 1;
const LOCAL: u8 = 2;

const NOBODY: u8 = 0;
const RESUMING: u8 = 1;
const CLEAN: u8 = 2;

/// The kind of the connection to another server that has taken the client over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum TakenBy {
    /// It resumes the session.
    Resuming,
    /// It has ended the session.
    Clean,
}

impl Watch {
    pub(super) fn new(
        process: &str,
        login: UpstreamLogin,
        hub: &Weak<UpstreamHub>,
        is_draining: bool,
    ) -> Arc<Self> {
        let state = Mutex::new(WatchState { is_draining, ..WatchState::default() });
        let (process, hub) = (process.into(), Weak::clone(hub));
        Arc::new(Self { login, process, hub, state, waker: AtomicWaker::new() })
    }

    /// Adds the first connection of a new queue.
    pub(super) fn begin(self: &Arc<Self>, watcher: Watcher) -> Watched {
        self.add(&mut self.state.lock(), watcher)
    }

    /// Adds a connection, to be announced. Returns it if the queue has ended and another one has to be used.
    pub(super) fn join(self: &Arc<Self>, watcher: Watcher) -> Result<Watched, Watcher> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Err(watcher);
        }
        let watched = self.add(&mut state, watcher);
        drop(state);
        self.waker.wake();
        Ok(watched)
    }

    fn add(self: &Arc<Self>, state: &mut WatchState, watcher: Watcher) -> Watched {
        state.unused_since = None;
        state.count += 1;
        state.last_number = watcher.at.max(state.last_number.saturating_add(1));
        let wait = AtomicU8::new(if state.is_refused { LOCAL } else { WAITING });
        let (number, is_back, taken) = (state.last_number, AtomicBool::new(false), AtomicU8::new(NOBODY));
        let member = Arc::new(WatchedConnection { watcher, number, wait, is_back, taken });
        state.members.insert(member.client_id().into(), Arc::clone(&member));
        if !state.is_refused {
            state.unsent.push_back(Arc::clone(&member));
            state.waiting.push_back((transport::now() + MAX_WAIT, Arc::clone(&member)));
        }
        Watched { watch: Arc::clone(self), member }
    }

    fn leave(&self, member: &Arc<WatchedConnection>) {
        member.answer(LOCAL);
        let mut state = self.state.lock();
        if state.members.get(member.client_id()).is_some_and(|other| Arc::ptr_eq(other, member)) {
            state.members.remove(member.client_id());
        }
        drop(state);
        self.count_down();
    }

    /// Called when a connection or a hold has ended.
    fn count_down(&self) {
        let mut state = self.state.lock();
        state.count -= 1;
        if state.count == 0 {
            state.members = HashMap::new();
            state.unused_since = Some(transport::now());
            drop(state);
            self.waker.wake();
        }
    }

    /// The next connection to announce.
    pub(super) fn next_unsent(&self) -> Option<Arc<WatchedConnection>> {
        let mut state = self.state.lock();
        let member = std::iter::from_fn(|| state.unsent.pop_front()).find(|member| member.waits())?;
        state.unconfirmed.push_back(Arc::clone(&member));
        Some(member)
    }

    /// Handles the confirm of the oldest unconfirmed announcement.
    pub(super) fn handle_confirmed(&self) {
        let member = self.state.lock().unconfirmed.pop_front();
        member.inspect(|member| member.answer(ANNOUNCED));
    }

    /// Handles an announcement of the login's own user.
    pub(super) fn handle_announcement(&self, announcement: &Announcement<'_>) {
        // Locked until the connection has been superseded: so a connection that leaves sees all announcements made while
        // it had an entry.
        let state = self.state.lock();
        let member = state.members.get(announcement.client_id);
        if announcement.process == &*self.process {
            member
                .filter(|member| member.number == announcement.number)
                .inspect(|member| member.is_back.store(true, Ordering::Relaxed));
            return;
        }
        let by = if announcement.resumes { TakenBy::Resuming } else { TakenBy::Clean };
        match member {
            Some(member) => self.supersede(member, announcement, by),
            None => {
                drop(state);
                let Some(hub) = self.hub.upgrade() else { return };
                let (vhost, client_id) = ((*self.login.vhost).into(), announcement.client_id.into());
                hub.forget(&Owner { vhost, client_id }, &self.login.credentials.username, by);
            }
        }
    }

    /// Closes a connection if the announcement is of a later one. All queues get all announcements, but simultaneous ones
    /// in different orders: then the numbers decide, so that at most one connection remains.
    fn supersede(&self, member: &WatchedConnection, announcement: &Announcement<'_>, by: TakenBy) {
        let is_later = member.is_back.load(Ordering::Relaxed)
            || (announcement.number, announcement.process) > (member.number, &*self.process);
        if is_later {
            let code = if by == TakenBy::Clean { CLEAN } else { RESUMING };
            member.taken.store(code, Ordering::Release);
            member.watcher.claim.supersede();
        }
    }

    /// Called when the upstream has refused the queue: sessions are then taken over within this process only.
    pub(super) fn refuse(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_refused = true;
            (state.unsent, state.unconfirmed) = Default::default();
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|(_, member)| member.answer(LOCAL));
    }

    /// Called when the queue is bound and consumed.
    pub(super) fn handle_bound(&self) {
        self.state.lock().is_refused = false;
    }

    /// Called at shutdown: the queue is abandoned as soon as it has no client.
    pub(super) fn drain(&self) {
        self.state.lock().is_draining = true;
        self.waker.wake();
    }

    /// Abandons the queue.
    pub(super) fn end(&self) {
        self.state.lock().has_ended = true;
        self.refuse();
    }
}

impl LinkedQueue for Watch {
    type Link = TakeoverLink;
    const NAME: &'static str = "takeovers of MQTT clients";

    fn login(&self) -> &UpstreamLogin {
        &self.login
    }

    fn waker(&self) -> &AtomicWaker {
        &self.waker
    }

    fn link(self: &Arc<Self>, client: AmqpClient, now: Instant) -> TakeoverLink {
        TakeoverLink::new(self, client, now)
    }

    fn handle_lost(&self) {
        let mut state = self.state.lock();
        while let Some(member) = state.unconfirmed.pop_back() {
            state.unsent.push_front(member);
        }
    }

    /// Ends the waits that are over.
    fn expire(&self, now: Instant) {
        let mut state = self.state.lock();
        while let Some((_, member)) =
            state.waiting.pop_front_if(|(end, member)| *end <= now || !member.waits())
        {
            member.answer(LOCAL);
        }
        while state.unsent.pop_front_if(|member| !member.waits()).is_some() {}
    }

    fn end_if_unused(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let idle_time = state.idle_time();
        state.has_ended |= state.unused_since.is_some_and(|since| now >= since + idle_time);
        state.has_ended
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        let unused = state.unused_since.map(|since| since + state.idle_time());
        unused.into_iter().chain(state.waiting.front().map(|(end, _)| *end)).min()
    }
}

impl WatchState {
    fn idle_time(&self) -> Duration {
        if self.is_draining { Duration::ZERO } else { IDLE_TIMEOUT }
    }
}

impl WatchedConnection {
    fn client_id(&self) -> &str {
        &self.watcher.owner.client_id
    }

    fn waits(&self) -> bool {
        self.wait.load(Ordering::Acquire) == WAITING
    }

    fn taken(&self) -> Option<TakenBy> {
        match self.taken.load(Ordering::Acquire) {
            RESUMING => Some(TakenBy::Resuming),
            CLEAN => Some(TakenBy::Clean),
            _ => None,
        }
    }

    fn answer(&self, answer: u8) {
        let answered = self.wait.compare_exchange(WAITING, answer, Ordering::AcqRel, Ordering::Relaxed);
        if answered.is_ok() {
            self.watcher.outbox.nudge();
        }
    }

    /// The announcement of this connection, in the name of `process`.
    pub(super) fn announcement<'a>(&'a self, process: &'a str) -> Announcement<'a> {
        let (number, resumes, client_id) = (self.number, self.watcher.resumes, self.client_id());
        Announcement { process, number, resumes, client_id }
    }
}

impl Watch {
    /// The message body that announces a connection.
    pub(super) fn announce(&self, member: &WatchedConnection) -> String {
        member.announcement(&self.process).encode()
    }
}

/// A connection's entry, removed when it is dropped.
pub(in super::super) struct Watched {
    watch: Arc<Watch>,
    member: Arc<WatchedConnection>,
}

impl Watched {
    /// Whether the wait is over: the connection has been announced, or cannot be.
    pub(in super::super) fn is_answered(&self) -> bool {
        !self.member.waits()
    }

    /// Whether the announcement is in all other processes' queues.
    pub(in super::super) fn is_announced(&self) -> bool {
        self.member.wait.load(Ordering::Acquire) == ANNOUNCED
    }

    /// Keeps the queue during a teardown, so that later connections of the client to other servers are still noticed.
    pub(in super::super) fn hold(&self) -> WatchHold {
        self.watch.state.lock().count += 1;
        WatchHold { watch: Arc::clone(&self.watch) }
    }

    /// How a connection to another server has taken the client over, if one has.
    pub(in super::super) fn taken(&self) -> Option<TakenBy> {
        self.member.taken()
    }

    /// Removes the entry. Returns the final value of [`Self::taken`]: later announcements are about the client's detached
    /// session.
    pub(in super::super) fn leave(self) -> Option<TakenBy> {
        let member = Arc::clone(&self.member);
        drop(self);
        member.taken()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.leave(&self.member);
    }
}

/// Keeps a login's takeover queue without an entry in it, until dropped. Announcements of the client are then about its
/// detached session.
pub(in super::super) struct WatchHold {
    watch: Arc<Watch>,
}

impl Drop for WatchHold {
    fn drop(&mut self) {
        self.watch.count_down();
    }
}
