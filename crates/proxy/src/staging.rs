//! The buffer space for incomplete messages, and the wait queue of clients when it is exhausted.
//!
//! Each client may always hold a little; beyond that its bytes count towards a total. A client that gets no space is no
//! longer read and joins the wait queue. The first in the queue continues as soon as there is space again, or as a
//! *stream*: its messages go out on an upstream connection of its own. Only one in
//! [`STREAM_SHARE`](crate::config::STREAM_SHARE) upstream connections may be used for streams, and only while
//! connection permits are available. So a burst of large messages is waited out. Clients that never complete their
//! messages are limited by a patience, which counts only while other clients wait: clients that have held space, or a
//! stream, for longer give way, the longest first, and no more of them than the waiters need.
//!
//! Bytes read from a client before it joined the wait queue count when it continues: at most one read for
//! each of them.
//!
//! # Example
//! 256 MiB count at most, the patience is 10 s, and of 8 upstream connections an eighth, one, may be for a
//! stream. Other clients use all but 60 KiB of the room. A, B and C each begin a message of 1 MiB, and have sent 64 KiB
//! of it, of which 48 KiB count.
//! - A finds room, and leaves 12 KiB of it.
//! - B finds too little and joins the wait queue. It is the first there and nobody streams yet: B's 64 KiB go out
//!   on a connection of its own, and the rest as it arrives. From now on B holds no room.
//! - C finds too little and the stream in use: it waits, and is not read.
//! - When A's next read has the rest of its message, A releases its 48 KiB, and C continues with them (with only more
//!   of it, A would wait, in front of C). When B completes its message first, C streams.
//! - When neither sends anything, A or B gives way, whichever has held its place for longer: after 10 s it is warned,
//!   and when it is looked at again, 2.5 s later, closed with 506, unless its message progresses in between. C continues.
//!   The other one stays, because nobody waits any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sync::{Mutex, Rank};
use tokio::sync::Semaphore;

use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::pool::background;

/// The buffer space for incomplete messages, shared by all clients.
#[derive(Debug)]
pub(crate) struct Staging {
    /// Maximum of [`StagingState::bytes`].
    most: usize,
    /// Maximum of [`StagingState::streams`].
    streams_max: usize,
    /// Connection permits of the pool. A stream is granted only if one is free.
    permits: Arc<Semaphore>,
    /// How long a message may be incomplete while a client waits for space.
    patience: Duration,
    state: Mutex<StagingState, { Rank::IncompleteMessages as u8 }>,
    /// Bytes of incomplete messages of all clients, whether they count or not.
    staged: AtomicUsize,
    /// How often a client had to wait.
    wait_count: AtomicU64,
    /// Clients that were disconnected to free space.
    evicted_clients: AtomicU64,
}

#[derive(Debug, Default)]
struct StagingState {
    /// Bytes that count towards the total.
    bytes: usize,
    /// The part of `bytes` that clients in the wait queue hold.
    bytes_queued: usize,
    /// Streams in use, or granted and not yet collected.
    streams: usize,
    /// The wait queue: the addresses of clients' links, and the bytes that each needs to continue.
    queue: BTreeMap<Ticket, (usize, usize)>,
    next_ticket: u64,
    /// Clients that have held or waited for space, until they leave, by the addresses of their links.
    clients: HashMap<usize, StagingClient>,
    /// Whether a task attends to the wait queue.
    attended: bool,
}

/// A position in the wait queue: whether the client waits with a new message, and a sequence number. Clients that have
/// already waited with the same message come first, so that a message of many reads does not wait behind all others
/// after each read.
type Ticket = (bool, u64);

/// The state of one client: its holdings, and its wait.
#[derive(Debug)]
struct StagingClient {
    link: Arc<ClientLink>,
    /// Its bytes that count towards the total.
    counted: usize,
    /// Whether it streams, or may as soon as it collects its grant.
    streams: bool,
    /// Since when it has held space or a stream, at the earliest.
    since: Option<Instant>,
    wait: Wait,
}

#[derive(Debug, Clone, Copy, Default)]
enum Wait {
    #[default]
    None,
    Queued(Ticket),
    /// Granted, and not collected by the client yet.
    Granted(Grant),
}

/// The outcome of a client's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Its bytes count now, and more may come.
    Capacity,
    /// It may stream on a connection of its own until its messages have been passed on.
    Stream,
}

impl Staging {
    /// Creates a buffer of `most` bytes with up to `streams_max` streams, which need free connection permits.
    pub(crate) fn new(
        most: usize,
        streams_max: usize,
        patience: Duration,
        permits: Arc<Semaphore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            most,
            streams_max,
            permits,
            patience,
            state: Mutex::default(),
            staged: AtomicUsize::new(0),
            wait_count: AtomicU64::new(0),
            evicted_clients: AtomicU64::new(0),
        })
    }

    /// Bytes of incomplete messages of all clients.
    pub(crate) fn bytes(&self) -> usize {
        self.staged.load(Ordering::Relaxed)
    }

    /// How many clients were disconnected to free space.
    pub(crate) fn evicted_clients(&self) -> u64 {
        self.evicted_clients.load(Ordering::Relaxed)
    }

    /// How often a client had to wait.
    pub(crate) fn wait_count(&self) -> u64 {
        self.wait_count.load(Ordering::Relaxed)
    }

    /// Clients in the wait queue, and streams in use.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.queue.len(), state.streams)
    }

    /// Asks clients that have held space or a stream for longer than the patience to give way, the longest first, as
    /// far as the waiters need it. Each client checks the condition itself: see [`BudgetShare::overdue`]. Returns false
    /// if no client waits.
    fn press(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        // Permits may have been released since.
        state.serve(self);
        if state.queue.is_empty() {
            state.attended = false;
            return false;
        }
        // Clients that wait themselves are not read, so they cannot complete their messages.
        let mut stale: Vec<(Instant, &StagingClient)> = state
            .clients
            .values()
            .filter(|client| matches!(client.wait, Wait::None))
            .filter_map(|client| Some((client.since?, client)))
            .filter(|(since, _)| now.saturating_duration_since(*since) >= self.patience)
            .collect();
        stale.sort_unstable_by_key(|(since, _)| *since);
        // Each stale client is matched with the first waiters whose needs its bytes, or its stream, satisfy.
        let mut needs = state.queue.values().map(|(_, need)| *need).peekable();
        let (mut gained, mut giving_way) = (0, Vec::new());
        for (_, client) in stale {
            let Some(need) = needs.peek().copied() else { break };
            gained += if client.streams { need } else { client.counted };
            giving_way.push(client.link.clone());
            while let Some(need) = needs.next_if(|need| *need <= gained) {
                gained -= need;
            }
        }
        drop(needs);
        drop(state);
        giving_way.into_iter().for_each(|link| link.notify(Event::GiveWay));
        true
    }

    /// Attends to the wait queue until it is empty.
    fn attend(self: &Arc<Self>) {
        let staging = self.clone();
        background::run(async move {
            let step = (staging.patience / CHECKS_PER_TIMEOUT).max(STEP_MIN);
            loop {
                tokio::time::sleep(step).await;
                if !staging.press(transport::now()) {
                    break;
                }
            }
        });
    }
}

impl StagingState {
    /// Grants available space and streams to the wait queue, in order.
    fn serve(&mut self, staging: &Staging) {
        while let Some(first) = self.queue.first_entry() {
            let (link, need) = *first.get();
            // If all space is held by waiting clients, they would deadlock. So the first continues whatever it needs,
            // and the next follows when it is done or gives way.
            let is_stuck = self.bytes == self.bytes_queued && self.streams == 0;
            let grant = if is_stuck || self.bytes + need <= staging.most {
                Grant::Capacity
            } else if self.streams < staging.streams_max && self.streams < staging.permits.available_permits()
            {
                // The connections of clients that already stream may still have to be opened, and need permits as well.
                Grant::Stream
            } else {
                break;
            };
            first.remove();
            let Some(client) = self.clients.get_mut(&link) else { continue };
            self.bytes_queued -= client.counted;
            match grant {
                Grant::Capacity => {
                    client.counted += need;
                    self.bytes += need;
                }
                Grant::Stream => {
                    client.streams = true;
                    self.streams += 1;
                }
            }
            client.wait = Wait::Granted(grant);
            client.link.outbox.nudge();
        }
    }

    fn client(&mut self, link: &Arc<ClientLink>) -> &mut StagingClient {
        self.clients.entry(address(link)).or_insert_with(|| StagingClient {
            link: link.clone(),
            counted: 0,
            streams: false,
            since: None,
            wait: Wait::None,
        })
    }

    /// Sets what a client holds, which replaces a grant. The client does not wait any more.
    fn hold(&mut self, link: &Arc<ClientLink>, counted: usize, streams: bool) {
        let client = self.client(link);
        let wait = std::mem::take(&mut client.wait);
        let (bytes_before, streamed) = (client.counted, client.streams);
        (client.counted, client.streams) = (counted, streams);
        client.since = client.since.filter(|_| counted > 0 || streams);
        if let Wait::Queued(ticket) = wait {
            self.queue.remove(&ticket);
            self.bytes_queued -= bytes_before;
        }
        self.bytes = self.bytes - bytes_before + counted;
        self.streams = self.streams - usize::from(streamed) + usize::from(streams);
    }
}

/// One client's handle to the buffer space.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    staging: Arc<Staging>,
    /// Bytes of the client's incomplete messages at the end of the last batch.
    staged: usize,
    /// The part of them that counts towards the total.
    counted: usize,
    streams: bool,
    /// Whether it is in the wait queue, or has not collected its grant yet.
    waits: bool,
    /// Whether it has waited since it last released anything.
    waited: bool,
    /// Bytes of bodies that arrived since progress was last checked.
    came: usize,
    /// When it was warned that it will give way; reset by progress.
    warned: Option<Instant>,
    /// The client is not overdue for lack of progress before this time.
    excused: Option<Instant>,
}

impl BudgetShare {
    pub(crate) fn new(staging: Arc<Staging>) -> Self {
        Self {
            staging,
            staged: 0,
            counted: 0,
            streams: false,
            waits: false,
            waited: false,
            came: 0,
            warned: None,
            excused: None,
        }
    }

    /// Reports the bytes that the client holds at the end of a batch. Returns false if there is no space for them and
    /// the client has to wait.
    #[inline]
    pub(crate) fn settle(&mut self, staged: usize, link: &Arc<ClientLink>, now: Instant) -> bool {
        if staged != self.staged {
            // One addition, which wraps around if there are fewer bytes than before.
            self.staging.staged.fetch_add(staged.wrapping_sub(self.staged), Ordering::Relaxed);
            self.staged = staged;
        }
        let wanted = staged.saturating_sub(ALWAYS);
        (wanted == self.counted && !self.waits) || self.reconcile(wanted, link, now)
    }

    #[cold]
    fn reconcile(&mut self, wanted: usize, link: &Arc<ClientLink>, now: Instant) -> bool {
        let had_capacity = self.holds();
        if wanted > self.counted {
            // It needs more space, unless it already waits for it.
            if self.waits {
                return true;
            }
            let mut state = self.staging.state.lock();
            if !state.queue.is_empty() || state.bytes + (wanted - self.counted) > self.staging.most {
                return false;
            }
            state.hold(link, wanted, self.streams);
            if !had_capacity {
                state.client(link).since = Some(now);
            }
        } else {
            // It needs less space, or no longer the space that it waited for.
            let mut state = self.staging.state.lock();
            state.hold(link, wanted, self.streams);
            state.serve(&self.staging);
            self.waited &= wanted == self.counted;
        }
        (self.counted, self.waits) = (wanted, false);
        if !had_capacity || !self.holds() {
            self.reset_progress();
        }
        true
    }

    /// Whether the client holds space or a stream.
    fn holds(&self) -> bool {
        self.counted > 0 || self.streams
    }

    /// Resets progress and warnings, which refer to what the client has held so far.
    fn reset_progress(&mut self) {
        self.came = 0;
        self.warned = None;
        self.waited &= self.holds();
    }

    /// Puts the client into the wait queue. The grant is available when it is nudged, or at once.
    pub(crate) fn line_up(&mut self, link: &Arc<ClientLink>) {
        let need = self.staged.saturating_sub(ALWAYS).saturating_sub(self.counted);
        let is_new = !std::mem::replace(&mut self.waited, true);
        let mut state = self.staging.state.lock();
        state.next_ticket += 1;
        let ticket = (is_new, state.next_ticket);
        state.client(link).wait = Wait::Queued(ticket);
        state.queue.insert(ticket, (address(link), need));
        state.bytes_queued += self.counted;
        state.serve(&self.staging);
        let attend = !state.queue.is_empty() && !std::mem::replace(&mut state.attended, true);
        drop(state);
        self.waits = true;
        add(&self.staging.wait_count, 1);
        if attend {
            self.staging.attend();
        }
    }

    /// Whether the client is in the wait queue, or has not collected its grant yet.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Collects the grant that the client waited for, once.
    pub(crate) fn take_grant(&mut self, link: &Arc<ClientLink>, now: Instant) -> Option<Grant> {
        if !self.waits {
            return None;
        }
        let mut state = self.staging.state.lock();
        let client = state.client(link);
        let Wait::Granted(grant) = client.wait else { return None };
        client.wait = Wait::None;
        client.since = Some(now);
        (self.counted, self.streams) = (client.counted, client.streams);
        drop(state);
        self.waits = false;
        // The client was not read meanwhile.
        self.excused = Some(now);
        self.reset_progress();
        Some(grant)
    }

    #[inline]
    pub(crate) fn has_stream(&self) -> bool {
        self.streams
    }

    /// Gives up the stream.
    pub(crate) fn give_up_stream(&mut self, link: &Arc<ClientLink>) {
        if !std::mem::take(&mut self.streams) {
            return;
        }
        let mut state = self.staging.state.lock();
        let client = state.client(link);
        client.streams = false;
        client.since = client.since.filter(|_| client.counted > 0);
        state.streams -= 1;
        state.serve(&self.staging);
        drop(state);
        if !self.holds() {
            self.reset_progress();
        }
    }

    /// Counts bytes of a message's body that arrived.
    #[inline]
    pub(crate) fn count_came(&mut self, bytes: usize) {
        self.came += bytes;
    }

    /// Called when the client is asked to give way. Returns for how long its messages have been incomplete, if that is
    /// longer than the patience and another client waits. `began` is the start of the oldest incomplete message that
    /// holds space or is streamed, and `is_read` whether the client is read.
    pub(crate) fn overdue(
        &mut self,
        began: Option<Instant>,
        is_read: bool,
        link: &Arc<ClientLink>,
        now: Instant,
    ) -> Option<Duration> {
        let mut state = self.staging.state.lock();
        if !self.holds() || self.waits || state.queue.is_empty() {
            return None;
        }
        let patience = self.staging.patience;
        let is_enough =
            std::mem::take(&mut self.came) >= if self.streams { STREAM_PROGRESS } else { STAGED_PROGRESS };
        // The bytes that arrive may belong to other messages than the one that holds the space.
        let is_old = |began| now.saturating_duration_since(began) > patience * MAX_EXCUSES;
        let progresses = is_enough && (self.streams || !began.is_some_and(is_old));
        // It cannot complete a message while it is not read.
        let since = if began.is_none() || !is_read || progresses {
            (self.excused, self.warned) = (Some(now), None);
            now
        } else {
            began.max(self.excused).unwrap_or(now)
        };
        let stuck = now.saturating_duration_since(since);
        if stuck < patience || stuck.is_zero() {
            state.client(link).since = Some(since);
            return None;
        }
        Some(stuck)
    }

    /// Whether an overdue client was warned a while ago that it will give way, so that it is disconnected now.
    /// The first call warns it: it may not have been read until a moment ago.
    pub(crate) fn must_be_evicted(&mut self, now: Instant) -> bool {
        let warned = *self.warned.get_or_insert(now);
        let must_be_evicted =
            now.saturating_duration_since(warned) >= self.staging.patience / WARNINGS_PER_TIMEOUT;
        add(&self.staging.evicted_clients, u64::from(must_be_evicted));
        must_be_evicted
    }

    /// Releases everything when the client is gone.
    pub(crate) fn leave(&mut self, link: &Arc<ClientLink>) {
        self.staging.staged.fetch_sub(std::mem::take(&mut self.staged), Ordering::Relaxed);
        (self.counted, self.streams, self.waits) = (0, false, false);
        let mut state = self.staging.state.lock();
        if state.clients.contains_key(&address(link)) {
            state.hold(link, 0, false);
            state.clients.remove(&address(link));
            state.serve(&self.staging);
        }
    }
}

/// The key of a client.
fn address(link: &Arc<ClientLink>) -> usize {
    Arc::as_ptr(link) as usize
}

/// Bytes of incomplete messages that each client may always hold, so that messages of usual sizes are never delayed,
/// however they are split into reads. A body in one frame waits in the read buffer until it is complete.
pub(crate) const ALWAYS: usize = 16 * 1024;
/// Bytes that must arrive on a stream within the patience, so that a message of
/// [`crate::session::STAGING_LIMIT`] does not occupy it for more than 16 times as long; hardly any network
/// link is slower.
pub(crate) const STREAM_PROGRESS: usize = 64 * 1024;
/// The same for a message that is buffered, because waiters depend more on that space: at this rate four times the
/// patience suffices. A client that reaches it does not have to give way, even if its rate is limited.
pub(crate) const STAGED_PROGRESS: usize = 256 * 1024;
/// Progress no longer counts for a message that has been incomplete for this many times the patience: at the required
/// rate the largest message would be complete.
const MAX_EXCUSES: u32 = 5;
/// A client gives way only if it was warned at least the patience divided by this earlier, and was read both then and now.
const WARNINGS_PER_TIMEOUT: u32 = 8;
/// How often the wait queue is attended to within the patience.
const CHECKS_PER_TIMEOUT: u32 = 4;
/// Lower bound of the step, for a patience of zero in tests.
const STEP_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
