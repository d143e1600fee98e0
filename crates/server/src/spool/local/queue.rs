//! The local queues of one user in one virtual host.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use amqp::Credentials;
use broker::{Lsn, Queue};
use parking_lot::Mutex;
use spool::BacklogName;

use sync::AtomicWaker;

use super::rate::Rate;
use crate::alarms::Alarms;

/// `oldest` of a queue without messages.
const NO_MESSAGE: u64 = u64::MAX;

/// The reason why nothing is forwarded after the forwarder has panicked.
const FAILED: &str = "its forwarder has failed; restart Leveret";

/// The messages of one user in one virtual host: a main queue, and backlogs for destinations that accept none at present.
pub(crate) struct SpoolQueue {
    vhost: Box<str>,
    user: Box<str>,
    queue: Arc<Queue>,
    backlogs: Mutex<Vec<LocalBacklog>>,
    /// Wakes the forwarder when there are messages, credentials or a drain.
    waker: Arc<AtomicWaker>,
    /// Bytes of records in the queues. Briefly negative if a message leaves before it is counted.
    bytes: AtomicI64,
    /// When the oldest message that the forwarder knows was accepted, in milliseconds since 1970.
    oldest: AtomicU64,
    /// Messages accepted since the start.
    pub(super) accepted: AtomicU64,
    pub(in crate::spool) forwarded: AtomicU64,
    pub(in crate::spool) parked: AtomicU64,
    /// Messages that wait for their destination.
    pub(in crate::spool) deferred: AtomicU64,
    /// Set when parked messages are forwarded again; cleared by the forwarder.
    is_requeued: AtomicBool,
    /// When it was first found without messages and clients; `None` while it has any.
    unused_since: Mutex<Option<Instant>>,
    /// Set when it has been removed, which ends its forwarder.
    is_removed: AtomicBool,
    /// Set when its forwarder has panicked, until the process ends.
    has_failed: AtomicBool,
    /// Set when a message could not be parked for lack of space, until there is some.
    waits_for_parking: AtomicBool,
    /// Callers that wait for the forwarder to drop all messages, and to report their number.
    purges: Mutex<Vec<SyncSender<u64>>>,
    /// Set until the forwarder has released all messages and started again with the local queues' content.
    needs_restart: AtomicBool,
    login: Mutex<ForwarderLogin>,
    /// Raised while its oldest message is too old, a message cannot be parked, or its messages exceed their share.
    pub(in crate::spool) alarms: Arc<Alarms>,
    /// The rates at which messages are accepted and forwarded.
    pub(super) rates: Mutex<(Rate, Rate)>,
}

/// The local queue of a backlog.
struct LocalBacklog {
    name: BacklogName,
    queue: Arc<Queue>,
    /// Set when it has become empty: the log position after which its former messages are on disk elsewhere. If it were
    /// deleted before that, a crash could lose them.
    emptied: Option<Lsn>,
}

/// The maximum of a user's credentials that are kept. The last accepted login may have used an old password that the pool
/// still remembers, while the one before works.
const MAX_CREDENTIALS: usize = 4;

#[derive(Default)]
struct ForwarderLogin {
    /// Distinct credentials that the upstream has accepted, most recent first, or ones of an unverified client. Those
    /// that the upstream has refused since come last.
    credentials: VecDeque<Arc<Credentials>>,
    /// Number of credentials that the upstream has refused to the forwarder in a row.
    refused: usize,
    /// Number of logins that may let the forwarder continue.
    logins: u64,
    /// The reason why nothing is being forwarded.
    trouble: Option<Box<str>>,
}

impl SpoolQueue {
    pub(super) fn new(vhost: Box<str>, user: Box<str>, queue: Arc<Queue>) -> Self {
        Self {
            vhost,
            user,
            bytes: AtomicI64::new(bytes_of(&queue)),
            queue,
            backlogs: Mutex::default(),
            waker: Arc::default(),
            oldest: AtomicU64::new(NO_MESSAGE),
            accepted: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            parked: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            is_requeued: AtomicBool::new(false),
            unused_since: Mutex::default(),
            is_removed: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            waits_for_parking: AtomicBool::new(false),
            purges: Mutex::default(),
            needs_restart: AtomicBool::new(false),
            login: Mutex::default(),
            alarms: Arc::default(),
            rates: Mutex::default(),
        }
    }

    /// Adds a backlog that was found at the start.
    pub(super) fn restore_backlog(&self, name: BacklogName, queue: Arc<Queue>) {
        self.add_bytes(bytes_of(&queue));
        self.add_backlog(name, queue);
    }

    pub(super) fn add_backlog(&self, name: BacklogName, queue: Arc<Queue>) {
        self.backlogs.lock().push(LocalBacklog { name, queue, emptied: None });
    }

    /// Called when a backlog has become empty: it may be deleted once the log is on disk up to `until`.
    pub(super) fn backlog_emptied(&self, queue: &Arc<Queue>, until: Lsn) {
        let mut backlogs = self.backlogs.lock();
        if let Some(backlog) = backlogs.iter_mut().find(|backlog| Arc::ptr_eq(&backlog.queue, queue)) {
            backlog.emptied = Some(until);
        }
    }

    /// Reuses an empty backlog that has not been deleted. If a destination had two backlogs, the order of their messages
    /// would be unknown after a crash.
    pub(super) fn reuse_backlog(&self, name: &BacklogName) -> Option<Arc<Queue>> {
        let mut backlogs = self.backlogs.lock();
        let backlog = backlogs.iter_mut().find(|backlog| backlog.name == *name)?;
        backlog.emptied = None;
        Some(Arc::clone(&backlog.queue))
    }

    /// Removes and returns the empty backlogs that may be deleted with the log on disk up to `durable`.
    pub(super) fn take_emptied(&self, durable: Lsn) -> Vec<Arc<Queue>> {
        let mut backlogs = self.backlogs.lock();
        let emptied =
            backlogs.extract_if(.., |backlog| backlog.emptied.is_some_and(|until| until <= durable));
        emptied.map(|backlog| backlog.queue).collect()
    }

    /// The backlogs that are in use.
    pub(in crate::spool) fn backlogs(&self) -> Vec<(BacklogName, Arc<Queue>)> {
        let backlogs = self.backlogs.lock();
        let used = backlogs.iter().filter(|backlog| backlog.emptied.is_none());
        used.map(|backlog| (backlog.name.clone(), Arc::clone(&backlog.queue))).collect()
    }

    /// Whether it has backlogs that are in use or not deleted yet.
    pub(in crate::spool) fn has_backlogs(&self) -> bool {
        !self.backlogs.lock().is_empty()
    }

    /// Number of messages in all its queues.
    pub(in crate::spool) fn messages(&self) -> u64 {
        let backlogs = self.backlogs();
        let queues = backlogs.iter().map(|(_, queue)| queue).chain([&self.queue]);
        queues.map(|queue| queue.view()).map(|view| view.ready + view.unacknowledged).sum()
    }

    /// Called when parked messages have been moved back to the queue.
    pub(in crate::spool) fn requeued(&self) {
        self.is_requeued.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether [`Self::requeued`] was called since the last call.
    pub(in crate::spool) fn take_requeued(&self) -> bool {
        self.is_requeued.load(Ordering::Relaxed) && self.is_requeued.swap(false, Ordering::Acquire)
    }

    /// Requests that the forwarder drops all messages. The result receives their number.
    pub(in crate::spool) fn ask_for_purge(&self) -> Receiver<u64> {
        let (sender, answer) = sync_channel(1);
        self.purges.lock().push(sender);
        self.request_restart();
        answer
    }

    /// Requests that the forwarder releases all messages and starts again with the local queues' content.
    pub(super) fn request_restart(&self) {
        self.needs_restart.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether [`Self::request_restart`] was requested.
    pub(in crate::spool) fn needs_restart(&self) -> bool {
        self.needs_restart.load(Ordering::Acquire)
    }

    /// Called by the forwarder when it starts again: returns the callers that wait for a purge. `None` if there was no
    /// request.
    pub(in crate::spool) fn take_purges(&self) -> Option<Vec<SyncSender<u64>>> {
        if !self.needs_restart() {
            return None;
        }
        let mut purges = self.purges.lock();
        self.needs_restart.store(false, Ordering::Release);
        Some(std::mem::take(&mut purges))
    }

    /// Records whether it is unused now. Returns whether it has been for as long as `max`.
    pub(super) fn note_unused(&self, is_unused: bool, now: Instant, max: Duration) -> bool {
        let mut since = self.unused_since.lock();
        if !is_unused {
            *since = None;
            return false;
        }
        now.saturating_duration_since(*since.get_or_insert(now)) >= max
    }

    /// Marks it as removed, which ends its forwarder.
    pub(super) fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether it has been removed, so that nothing is added any more.
    pub(in crate::spool) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Called when its forwarder has panicked.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Whether it waits for parking space.
    pub(in crate::spool) fn waits_for_parking(&self) -> bool {
        self.waits_for_parking.load(Ordering::Acquire)
    }

    /// Returns the earlier value.
    pub(super) fn set_waits_for_parking(&self, waits_for_parking: bool) -> bool {
        self.waits_for_parking.swap(waits_for_parking, Ordering::AcqRel)
    }

    /// Lets a forwarder continue that waits for a login.
    pub(super) fn retry(&self) {
        self.login.lock().logins += 1;
        self.waker.wake();
    }

    /// Whether its forwarder is running.
    pub(in crate::spool) fn has_forwarder(&self) -> bool {
        !self.has_failed() && !self.is_removed()
    }

    /// Whether its forwarder has panicked.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub(in crate::spool) fn vhost(&self) -> &str {
        &self.vhost
    }

    pub(in crate::spool) fn user(&self) -> &str {
        &self.user
    }

    /// The main queue.
    pub(in crate::spool) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(in crate::spool) fn waker(&self) -> &Arc<AtomicWaker> {
        &self.waker
    }

    /// Bytes of records in its queues.
    pub(super) fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add_bytes(&self, bytes: i64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// When the oldest message was accepted, in milliseconds since 1970, if known.
    pub(super) fn oldest(&self) -> Option<u64> {
        Some(self.oldest.load(Ordering::Relaxed)).filter(|oldest| *oldest != NO_MESSAGE)
    }

    /// Called when a message was accepted at this time.
    pub(super) fn accepted_at(&self, at: u64) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.oldest.fetch_min(at, Ordering::Relaxed);
    }

    /// Called by the forwarder with the time of the oldest message. If it knows none although there are messages, as
    /// after a lost connection, the old time is kept.
    pub(in crate::spool) fn set_oldest(&self, at: Option<u64>) {
        if at.is_none() && (self.oldest().is_none() || self.messages() > 0) {
            return;
        }
        self.oldest.store(at.unwrap_or(NO_MESSAGE), Ordering::Relaxed);
    }

    /// Called when the upstream has accepted a client's credentials.
    pub(in crate::spool) fn logged_in(&self, credentials: Arc<Credentials>) {
        let mut login = self.login.lock();
        // Always counted, since the forwarder may be waiting for the upstream's answer to other credentials.
        login.logins += 1;
        let is_first = login.credentials.front().is_some_and(|first| **first == *credentials);
        if is_first && login.trouble.is_none() {
            return;
        }
        login.credentials.retain(|known| **known != *credentials);
        login.credentials.push_front(credentials);
        login.credentials.truncate(MAX_CREDENTIALS);
        (login.refused, login.trouble) = (0, None);
        drop(login);
        self.waker.wake();
    }

    /// Adds credentials that the upstream has not decided about. They are used only if there are no others.
    pub(in crate::spool) fn offer_login(&self, credentials: &Arc<Credentials>) {
        let mut login = self.login.lock();
        login.logins += 1;
        if login.credentials.is_empty() {
            login.credentials.push_back(Arc::clone(credentials));
        }
        drop(login);
        self.waker.wake();
    }

    pub(in crate::spool) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.login.lock().credentials.front().cloned()
    }

    /// Called when the upstream has accepted the forwarder's credentials.
    pub(in crate::spool) fn login_accepted(&self) {
        self.login.lock().refused = 0;
    }

    /// Called when the upstream has permanently refused the forwarder's credentials. Returns whether there are others to
    /// try before it waits.
    pub(in crate::spool) fn login_refused(&self, credentials: &Credentials) -> bool {
        let mut login = self.login.lock();
        let Some(at) = login.credentials.iter().position(|known| **known == *credentials) else {
            return true;
        };
        login.credentials.remove(at).into_iter().for_each(|refused| login.credentials.push_back(refused));
        login.refused += 1;
        if login.refused < login.credentials.len() {
            return true;
        }
        login.refused = 0;
        false
    }

    /// Changes with each login that may let the forwarder continue.
    pub(in crate::spool) fn logins(&self) -> u64 {
        self.login.lock().logins
    }

    pub(super) fn trouble(&self) -> Option<Box<str>> {
        if self.has_failed() {
            return Some(FAILED.into());
        }
        self.login.lock().trouble.clone()
    }

    /// Sets the reason why nothing is forwarded, or clears it. Returns whether that is a change.
    pub(in crate::spool) fn set_trouble(&self, trouble: Option<&str>) -> bool {
        let mut login = self.login.lock();
        let is_new = login.trouble.as_deref() != trouble;
        if is_new {
            login.trouble = trouble.map(Box::from);
        }
        is_new
    }
}

/// Bytes of a queue's records, before any has been taken from it.
fn bytes_of(queue: &Queue) -> i64 {
    i64::try_from(queue.view().ready_bytes).unwrap_or(i64::MAX)
}
