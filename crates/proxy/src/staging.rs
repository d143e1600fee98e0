//! The room for incomplete messages, and the wait queue of clients when there is none.
//!
//! Each client may always hold a little; beyond that its bytes count towards a total. A client that finds no
//! room is no longer read and joins the *line*, a wait queue. The first in the queue continues as soon as
//! there is room again, or as a *stream*: it goes out on an upstream connection of its own, of which only a part
//! may be used for this, and only while connection permits are available. So a burst of large messages is
//! waited out. Clients that never complete theirs are limited by a patience, which counts only while somebody
//! waits: clients that have held room, or a streaming connection, for longer give way, the longest first, and
//! no more of them than the waiters need.
//!
//! Bytes read from a client before it joined the wait queue count when it continues: at most one read for
//! each of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::link::{ClientLink, Event};
use crate::metrics::add;

/// State of the room for incomplete messages, shared by all clients.
#[derive(Debug)]
pub(crate) struct Staging {
    /// Bytes that count towards the total.
    bytes: AtomicUsize,
    /// Maximum of `bytes`.
    most: usize,
    streams_max: usize,
    /// Connection permits of the pool, of which streaming needs a free one.
    places: Arc<Semaphore>,
    /// How long a message may be incomplete while somebody waits for room.
    patience: Duration,
    /// Whether the wait queue is non-empty.
    pressed: AtomicBool,
    /// The origin of [`ClientUsage::since`].
    epoch: Instant,
    table: Mutex<Table>,
    /// How often a client had to wait.
    lined_up: AtomicU64,
    /// Clients that were disconnected to make room.
    gave_way: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    /// Streaming connections in use.
    streams: usize,
    line: BTreeMap<Ticket, Waiter>,
    /// Counted bytes that clients in the wait queue already hold.
    held_in_line: usize,
    next_ticket: u64,
    /// Clients that hold or have held room or a streaming connection, by the addresses of their links.
    holders: HashMap<usize, Arc<ClientLink>>,
    /// Whether a task attends to the wait queue.
    attended: bool,
}

/// A position in the wait queue. Clients that have already waited with the same message come first, so that a
/// message of many reads need not wait behind all others each time.
type Ticket = (TicketRank, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TicketRank {
    Again,
    First,
}

#[derive(Debug)]
struct Waiter {
    link: Arc<ClientLink>,
    /// The client's bytes that count towards the total.
    counted: usize,
    /// Bytes that the client already holds and that do not count yet.
    need: usize,
}

/// A client's budget share, as other clients see it.
#[derive(Debug, Default)]
pub(crate) struct ClientUsage {
    /// Lower bound of the time since which it has held room or a streaming connection, in microseconds from
    /// [`Staging::epoch`] plus 1; 0 if it holds neither.
    since: AtomicU64,
    /// The client's bytes that count towards the total.
    bytes: AtomicUsize,
    /// Whether it streams on a connection of its own.
    stream: AtomicBool,
    /// The state of its ticket: one of the constants below.
    standing: AtomicU8,
}

/// Not in the wait queue.
const OUTSIDE: u8 = 0;
const IN_LINE: u8 = 1;
/// Granted; the client only has to collect it.
const HAS_ROOM: u8 = 2;
const HAS_LANE: u8 = 3;

/// The outcome of a client's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Its bytes count now, and more may come.
    Room,
    /// It may stream on a connection of its own until its messages have been passed on.
    Stream,
}

impl Staging {
    /// Creates room for `most` bytes and `streams_max` streaming connections, as far as `places` has permits
    /// for their connections.
    pub(crate) fn new(
        most: usize,
        streams_max: usize,
        patience: Duration,
        places: Arc<Semaphore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            most,
            streams_max,
            places,
            patience,
            pressed: AtomicBool::new(false),
            epoch: Instant::now(),
            table: Mutex::default(),
            lined_up: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
        })
    }

    /// How long a message may be incomplete while somebody waits for room.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether somebody waits for room.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst)
    }

    /// Counts a client that is disconnected to make room.
    pub(crate) fn count_gave_way(&self) {
        add(&self.gave_way, 1);
    }

    /// How many clients were disconnected to make room.
    pub(crate) fn gave_way(&self) -> u64 {
        self.gave_way.load(Ordering::Relaxed)
    }

    /// How often a client had to wait.
    pub(crate) fn lined_up(&self) -> u64 {
        self.lined_up.load(Ordering::Relaxed)
    }

    /// Clients in the wait queue, and streaming connections in use.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.line.len(), table.streams)
    }

    /// Asks clients that have held room or a streaming connection for longer than the patience to give way,
    /// the longest first, as far as the waiters need it. Each checks the condition itself. Returns false if
    /// nobody waits.
    pub(crate) fn press(&self, now: Instant) -> bool {
        let mut table = self.table.lock();
        self.serve(&mut table);
        if table.line.is_empty() {
            table.attended = false;
            return false;
        }
        let latest = self.stamp(now).saturating_sub(self.patience.as_micros() as u64);
        let mut stale: Vec<(u64, &Arc<ClientLink>)> = table
            .holders
            .values()
            .map(|link| (link.usage.since.load(Ordering::Relaxed), link))
            .filter(|(since, link)| {
                let waits = link.usage.standing.load(Ordering::Relaxed) != OUTSIDE;
                *since != 0 && *since <= latest && !waits
            })
            .collect();
        stale.sort_unstable_by_key(|(since, _)| *since);
        let mut needs = table.line.values().map(|waiter| waiter.need).peekable();
        let (mut gained, mut giving_way) = (0, Vec::new());
        for (_, link) in stale {
            let Some(need) = needs.peek().copied() else { break };
            gained += if link.usage.stream.load(Ordering::Relaxed) {
                need
            } else {
                link.usage.bytes.load(Ordering::Relaxed)
            };
            giving_way.push(link.clone());
            while let Some(need) = needs.next_if(|need| *need <= gained) {
                gained -= need;
            }
        }
        drop(needs);
        drop(table);
        giving_way.into_iter().for_each(|link| link.notify(Event::GiveWay));
        true
    }

    /// Serves the wait queue after room or a streaming connection was freed.
    fn freed(&self) {
        if self.is_pressed() {
            self.serve(&mut self.table.lock());
        }
    }

    /// Grants available room and streaming connections to the wait queue, in order.
    fn serve(&self, table: &mut Table) {
        while let Some(first) = table.line.first_entry() {
            let need = first.get().need;
            let bytes = self.bytes.load(Ordering::SeqCst);
            // If only waiting clients hold any room, they would wait for each other forever: one continues,
            // whatever its size, and the next one follows when it is done or gives way.
            let stuck = bytes == table.held_in_line && table.streams == 0;
            let standing = if stuck || bytes + need <= self.most {
                self.bytes.fetch_add(need, Ordering::SeqCst);
                HAS_ROOM
            } else if table.streams < self.streams_max && table.streams < self.places.available_permits() {
                // The connections of all clients that already stream may still have to be opened.
                table.streams += 1;
                HAS_LANE
            } else {
                break;
            };
            let Waiter { link, counted, .. } = first.remove();
            table.held_in_line -= counted;
            link.usage.standing.store(standing, Ordering::Release);
            link.outbox.nudge();
        }
        self.pressed.store(!table.line.is_empty(), Ordering::SeqCst);
    }

    /// Attends to the wait queue until it is empty.
    fn attend(self: &Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let staging = self.clone();
        runtime.spawn(async move {
            let step = (staging.patience / LOOKS_IN_PATIENCE).max(STEP_MIN);
            loop {
                tokio::time::sleep(step).await;
                if !staging.press(Instant::now()) {
                    break;
                }
            }
        });
    }

    fn stamp(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64 + 1
    }
}

/// One client's handle to the room.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    staging: Arc<Staging>,
    /// The client's bytes that count towards the total.
    counted: usize,
    /// Its ticket and the bytes it needs, until it collects the grant.
    ticket: Option<(Ticket, usize)>,
    /// Whether it has waited since it last held nothing.
    waited: bool,
    /// Whether it is in `holders`.
    known: bool,
    stream: bool,
    /// Bytes of bodies that arrived since progress was last checked.
    came: usize,
    /// When it was warned that it will give way; reset by progress.
    warned: Option<Instant>,
    /// Time before which lack of progress is not held against it.
    excused: Option<Instant>,
}

impl BudgetShare {
    pub(crate) fn new(staging: Arc<Staging>) -> Self {
        Self {
            staging,
            counted: 0,
            ticket: None,
            waited: false,
            known: false,
            stream: false,
            came: 0,
            warned: None,
            excused: None,
        }
    }

    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// Reports the bytes that the client holds at the end of a batch. Returns false if there is no room: then
    /// it has to wait.
    #[inline]
    pub(crate) fn settle(&mut self, staged: usize, link: &Arc<ClientLink>) -> bool {
        let wanted = staged.saturating_sub(ALWAYS);
        if wanted == self.counted && self.ticket.is_none() {
            return true;
        }
        self.resettle(wanted, link)
    }

    #[cold]
    fn resettle(&mut self, wanted: usize, link: &Arc<ClientLink>) -> bool {
        if wanted > self.counted {
            if self.ticket.is_some() {
                return true;
            }
            let more = wanted - self.counted;
            let all = self.staging.bytes.load(Ordering::Relaxed);
            if self.staging.is_pressed() || all + more > self.staging.most {
                return false;
            }
            self.staging.bytes.fetch_add(more, Ordering::SeqCst);
            self.set_counted(wanted, link);
            return true;
        }
        // It no longer needs what it waited for.
        self.leave_line(link);
        let less = self.counted - wanted;
        self.set_counted(wanted, link);
        if less > 0 {
            self.waited = false;
            self.staging.bytes.fetch_sub(less, Ordering::SeqCst);
            self.staging.freed();
        }
        true
    }

    fn set_counted(&mut self, counted: usize, link: &Arc<ClientLink>) {
        let held = self.holds();
        self.counted = counted;
        link.usage.bytes.store(counted, Ordering::Relaxed);
        if !held || !self.holds() {
            // Both refer to the bytes held so far.
            self.came = 0;
            self.warned = None;
        }
        if !self.holds() {
            link.usage.since.store(0, Ordering::Relaxed);
            self.waited = false;
        } else if !held {
            self.hold_since(Instant::now(), link);
        }
    }

    /// Whether the client holds room or a streaming connection.
    pub(crate) fn holds(&self) -> bool {
        self.counted > 0 || self.stream
    }

    /// Records that the client has held room or a streaming connection since `since`.
    pub(crate) fn hold_since(&mut self, since: Instant, link: &Arc<ClientLink>) {
        link.usage.since.store(self.staging.stamp(since), Ordering::Relaxed);
        if !self.known {
            self.known = true;
            self.staging.table.lock().holders.insert(Arc::as_ptr(link) as usize, link.clone());
        }
    }

    /// Puts the client into the wait queue. The grant is available when it is nudged, or at once.
    pub(crate) fn line_up(&mut self, staged: usize, link: &Arc<ClientLink>) {
        let need = staged.saturating_sub(ALWAYS).saturating_sub(self.counted);
        let turn =
            if std::mem::replace(&mut self.waited, true) { TicketRank::Again } else { TicketRank::First };
        let mut table = self.staging.table.lock();
        table.next_ticket += 1;
        let ticket = (turn, table.next_ticket);
        link.usage.standing.store(IN_LINE, Ordering::Release);
        table.line.insert(ticket, Waiter { link: link.clone(), counted: self.counted, need });
        table.held_in_line += self.counted;
        // Set before looking for room: a client that frees some looks here afterwards.
        self.staging.pressed.store(true, Ordering::SeqCst);
        self.staging.serve(&mut table);
        let attend = !table.line.is_empty() && !std::mem::replace(&mut table.attended, true);
        drop(table);
        self.ticket = Some((ticket, need));
        add(&self.staging.lined_up, 1);
        if attend {
            self.staging.attend();
        }
    }

    /// Whether the client is in the wait queue, or has not collected its grant yet.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.ticket.is_some()
    }

    /// Collects the grant that the client waited for, once.
    pub(crate) fn take_grant(&mut self, link: &Arc<ClientLink>, now: Instant) -> Option<Grant> {
        let (_, need) = self.ticket?;
        let standing = link.usage.standing.load(Ordering::Acquire);
        if standing == IN_LINE {
            return None;
        }
        link.usage.standing.store(OUTSIDE, Ordering::Release);
        self.ticket = None;
        // It was not read meanwhile.
        self.excused = Some(now);
        self.warned = None;
        if standing == HAS_LANE {
            self.stream = true;
            self.came = 0;
            link.usage.stream.store(true, Ordering::Relaxed);
            self.hold_since(now, link);
            return Some(Grant::Stream);
        }
        self.set_counted(self.counted + need, link);
        self.hold_since(now, link);
        Some(Grant::Room)
    }

    fn leave_line(&mut self, link: &Arc<ClientLink>) {
        let Some((ticket, need)) = self.ticket.take() else { return };
        let mut table = self.staging.table.lock();
        table.held_in_line -= table.line.remove(&ticket).map_or(0, |waiter| waiter.counted);
        match link.usage.standing.swap(OUTSIDE, Ordering::AcqRel) {
            HAS_ROOM => {
                self.staging.bytes.fetch_sub(need, Ordering::SeqCst);
            }
            HAS_LANE => table.streams -= 1,
            _ => {}
        }
        self.staging.serve(&mut table);
    }

    #[inline]
    pub(crate) fn has_stream(&self) -> bool {
        self.stream
    }

    /// Counts bytes of a message's body that arrived.
    #[inline]
    pub(crate) fn count_came(&mut self, bytes: usize) {
        self.came += bytes;
    }

    /// Whether enough has arrived since the last call to justify the room or the streaming connection.
    pub(crate) fn makes_progress(&mut self) -> bool {
        std::mem::take(&mut self.came) >= if self.stream { LANE_PROGRESS } else { ROOM_PROGRESS }
    }

    /// Whether it was warned a while ago that it will give way. The first call warns it.
    pub(crate) fn is_warned(&mut self, now: Instant) -> bool {
        let since = *self.warned.get_or_insert(now);
        now.saturating_duration_since(since) >= self.staging.patience / WARNINGS_IN_PATIENCE
    }

    /// Gives up the streaming connection.
    pub(crate) fn give_up_stream(&mut self, link: &Arc<ClientLink>) {
        if !std::mem::take(&mut self.stream) {
            return;
        }
        link.usage.stream.store(false, Ordering::Relaxed);
        self.set_counted(self.counted, link);
        let mut table = self.staging.table.lock();
        table.streams -= 1;
        self.staging.serve(&mut table);
    }

    /// Excuses the client for its lack of progress until now.
    pub(crate) fn excuse(&mut self, now: Instant, link: &Arc<ClientLink>) {
        self.excused = Some(now);
        self.warned = None;
        self.hold_since(now, link);
    }

    /// Time before which lack of progress is not held against the client.
    pub(crate) fn excused(&self) -> Option<Instant> {
        self.excused
    }

    /// Releases everything when the client is gone.
    pub(crate) fn leave(&mut self, link: &Arc<ClientLink>) {
        self.give_up_stream(link);
        self.settle(0, link);
        if std::mem::take(&mut self.known) {
            self.staging.table.lock().holders.remove(&(Arc::as_ptr(link) as usize));
        }
    }
}

/// Bytes of incomplete messages that a client may hold however much others do: messages of usual sizes are
/// never held up, however they are split. A body in one frame waits in the read buffer until it is complete.
const ALWAYS: usize = 16 * 1024;
/// Bytes that must arrive on a streaming connection within the patience, so that a message of
/// [`crate::session::STAGING_LIMIT`] does not occupy it for more than 16 times as long; hardly any network
/// link is slower.
const LANE_PROGRESS: usize = 64 * 1024;
/// The same where room is held, which is scarcer for waiters: at this rate four times the patience suffices.
/// A client whose rate is limited is not to blame for it.
const ROOM_PROGRESS: usize = 256 * 1024;
/// How many times the patience progress may excuse an incomplete message: by then the largest one would be
/// complete.
pub(crate) const EXCUSED_FOR: u32 = 5;
/// A client gives way only if it was warned the patience divided by this ago, and could be read both then and now.
const WARNINGS_IN_PATIENCE: u32 = 8;
/// How often the wait queue is attended to within the patience.
const LOOKS_IN_PATIENCE: u32 = 4;
/// Lower bound of the step, for a patience of zero in tests.
const STEP_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
