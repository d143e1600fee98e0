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

/// Longest time that a client waits for its announcement: enough for the handshakes of a first connection upstream.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// Time that a queue stays after its last client: the next client of the login is announced without a handshake.
pub(in super::super) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a login that was refused tries again: permissions may have been granted.
pub(super) const REFUSAL_TTL: Duration = Duration::from_secs(60);

/// A takeover queue, as its clients and its own task see it.
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
    /// Connections that are to be announced.
    unsent: VecDeque<Arc<WatchedConnection>>,
    /// Connections whose announcements the upstream has not confirmed, in the order of publishing.
    unconfirmed: VecDeque<Arc<WatchedConnection>>,
    /// Connections that wait, with their deadlines. May contain some that no longer wait.
    waiting: VecDeque<(Instant, Arc<WatchedConnection>)>,
    last_number: u64,
    /// Number of connections, and of holds.
    count: usize,
    /// Since when there has been neither.
    unused_since: Option<Instant>,
    is_draining: bool,
    /// The upstream has refused the queue, or its announcements: nobody waits for it.
    is_refused: bool,
    /// Set when the queue is given up; it then takes no client.
    has_ended: bool,
}

/// A connection that has been accepted.
pub(in super::super) struct Watcher {
    pub(in super::super) owner: Arc<Owner>,
    pub(in super::super) claim: Arc<UpstreamClaim>,
    pub(in super::super) outbox: Arc<Outbox>,
    /// Whether it continues with its session.
    pub(in super::super) resumes: bool,
    /// Milliseconds since 1970 by the wall clock.
    pub(in super::super) at: u64,
}

/// A connection's entry.
pub(super) struct WatchedConnection {
    watcher: Watcher,
    number: u64,
    /// [`WAITING`], or how the wait has ended.
    wait: AtomicU8,
    /// Whether this process has received its announcement: those that come later are of later connections.
    is_back: AtomicBool,
    /// [`NOBODY`], or the code of [`TakenBy`].
    taken: AtomicU8,
}

const WAITING: u8 = 0;
const ANNOUNCED: u8 = 1;
const LOCAL: u8 = 2;

const NOBODY: u8 = 0;
const RESUMING: u8 = 1;
const CLEAN: u8 = 2;

/// The connection elsewhere that has taken a client over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum TakenBy {
    /// It continues with the session.
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

    /// Adds the first connection.
    pub(super) fn begin(self: &Arc<Self>, watcher: Watcher) -> Watched {
        self.add(&mut self.state.lock(), watcher)
    }

    /// Adds a connection, to be announced. Returns it if the queue has ended, and another one is to be used.
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

    /// A connection has left, or a hold.
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

    /// The next connection to be announced.
    pub(super) fn next_unsent(&self) -> Option<Arc<WatchedConnection>> {
        let mut state = self.state.lock();
        let member = std::iter::from_fn(|| state.unsent.pop_front()).find(|member| member.waits())?;
        state.unconfirmed.push_back(Arc::clone(&member));
        Some(member)
    }

    /// The upstream has confirmed the first announcement that it had not.
    pub(super) fn handle_confirmed(&self) {
        let member = self.state.lock().unconfirmed.pop_front();
        member.inspect(|member| member.answer(ANNOUNCED));
    }

    /// An announcement of the login's own user has come.
    pub(super) fn handle_announcement(&self, announcement: &Announcement<'_>) {
        // Locked until a connection has heard of it: one that leaves finds all that it had an entry for.
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

    /// Closes a connection if the announcement is of a later one. All queues have the announcements, but those that are
    /// published at the same time not in the same order: then the numbers decide, and at most one connection stays.
    fn supersede(&self, member: &WatchedConnection, announcement: &Announcement<'_>, by: TakenBy) {
        let is_later = member.is_back.load(Ordering::Relaxed)
            || (announcement.number, announcement.process) > (member.number, &*self.process);
        if is_later {
            let code = if by == TakenBy::Clean { CLEAN } else { RESUMING };
            member.taken.store(code, Ordering::Release);
            member.watcher.claim.supersede();
        }
    }

    /// The upstream has refused the queue: connections are taken over within this process alone.
    pub(super) fn refuse(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_refused = true;
            (state.unsent, state.unconfirmed) = Default::default();
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|(_, member)| member.answer(LOCAL));
    }

    /// The upstream delivers from the queue.
    pub(super) fn handle_bound(&self) {
        self.state.lock().is_refused = false;
    }

    /// From now on the queue ends as soon as it has no client.
    pub(super) fn drain(&self) {
        self.state.lock().is_draining = true;
        self.waker.wake();
    }

    /// Gives the queue up.
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

    /// Ends waits.
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

    /// The announcement of this connection by a process.
    pub(super) fn announcement<'a>(&'a self, process: &'a str) -> Announcement<'a> {
        let (number, resumes, client_id) = (self.number, self.watcher.resumes, self.client_id());
        Announcement { process, number, resumes, client_id }
    }
}

impl Watch {
    /// The body of a connection's announcement.
    pub(super) fn announce(&self, member: &WatchedConnection) -> String {
        member.announcement(&self.process).encode()
    }
}

/// A connection's entry among those of its login. Dropping it removes it.
pub(in super::super) struct Watched {
    watch: Arc<Watch>,
    member: Arc<WatchedConnection>,
}

impl Watched {
    /// Whether the connection need not wait: it has been announced, or cannot be.
    pub(in super::super) fn is_answered(&self) -> bool {
        !self.member.waits()
    }

    /// Whether the other processes have its announcement.
    pub(in super::super) fn is_announced(&self) -> bool {
        self.member.wait.load(Ordering::Acquire) == ANNOUNCED
    }

    /// Keeps the queue for what is left of the connection: later ones of its client to other servers are still heard of.
    pub(in super::super) fn hold(&self) -> WatchHold {
        self.watch.state.lock().count += 1;
        WatchHold { watch: Arc::clone(&self.watch) }
    }

    /// The connection to another server that has taken the client over, if one has.
    pub(in super::super) fn taken(&self) -> Option<TakenBy> {
        self.member.taken()
    }

    /// Removes the entry. Returns what [`Self::taken`] is at the end: an announcement that comes later is about the client's
    /// detached session.
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

/// A hold on the takeover queue of a login, without an entry there: an announcement of the client then is about its detached
/// session. Dropping it gives it up.
pub(in super::super) struct WatchHold {
    watch: Arc<Watch>,
}

impl Drop for WatchHold {
    fn drop(&mut self) {
        self.watch.count_down();
    }
}
