//! The room for messages that clients have not sent completely, and who waits when there is none.
//!
//! Everybody may hold a little whatever others hold; what goes beyond counts, up to a total. A client that finds no room
//! is not read any more and stands in a *line*. Whoever is first in it goes on as soon as there is room again, or on a
//! *lane*: it streams on an upstream connection of its own, of which only a part may be taken for this, and only while
//! there are places for more. So a moment of many large messages is waited out. Against those that never complete theirs
//! there is a patience, which counts only while somebody stands in line: who has held room, or a lane, for longer gives
//! way, the longest first, and no more of them than those in line need.
//!
//! What is read of a client before it stands in line counts when it goes on: a read for each of them at most.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::link::{ClientLink, Event};
use crate::metrics::add;

/// What all clients have there.
#[derive(Debug)]
pub(crate) struct Staging {
    /// Bytes that count.
    bytes: AtomicUsize,
    /// How many there may be.
    most: usize,
    lanes_max: usize,
    /// The places for upstream connections that are free.
    places: Arc<Semaphore>,
    /// How long a message may be incomplete while somebody stands in line.
    patience: Duration,
    /// Somebody stands in line.
    pressed: AtomicBool,
    /// What [`Stake::since`] counts from.
    epoch: Instant,
    table: Mutex<Table>,
    /// Clients that had to wait.
    lined_up: AtomicU64,
    /// Clients that were ended to make room.
    gave_way: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    /// Lanes that are taken.
    lanes: usize,
    line: BTreeMap<Ticket, Waiter>,
    /// What those in line hold already.
    held_in_line: usize,
    next_ticket: u64,
    /// Clients that have held room or a lane, by the addresses of their links.
    holders: HashMap<usize, Arc<ClientLink>>,
    /// A task looks after those in line.
    attended: bool,
}

/// A place in line. Those who have waited with the same message before come first, so that a message of many reads need
/// not wait as often behind all.
type Ticket = (Turn, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Again,
    First,
}

#[derive(Debug)]
struct Waiter {
    link: Arc<ClientLink>,
    /// Bytes of its that count.
    counted: usize,
    /// Bytes that it has already and that do not count yet.
    need: usize,
}

/// What others have to know of one client.
#[derive(Debug, Default)]
pub(crate) struct Stake {
    /// Since when it has held room or a lane, at the earliest, in microseconds from [`Staging::epoch`] and 1; 0 when it
    /// holds none.
    since: AtomicU64,
    /// Bytes that count.
    bytes: AtomicUsize,
    /// It holds a lane.
    lane: AtomicBool,
    /// Where it stands with a ticket: one of the constants below.
    standing: AtomicU8,
}

/// Nowhere.
const OUTSIDE: u8 = 0;
const IN_LINE: u8 = 1;
/// It has what it needs, and need only look.
const HAS_ROOM: u8 = 2;
const HAS_LANE: u8 = 3;

/// What a client gets for its waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    /// What it holds counts now, and more may come.
    Room,
    /// It may stream on a connection of its own until it gives the lane back.
    Lane,
}

impl Staging {
    /// Room for so many bytes, and so many lanes while there are `places` for their connections.
    pub(crate) fn new(
        most: usize,
        lanes_max: usize,
        patience: Duration,
        places: Arc<Semaphore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            most,
            lanes_max,
            places,
            patience,
            pressed: AtomicBool::new(false),
            epoch: Instant::now(),
            table: Mutex::default(),
            lined_up: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
        })
    }

    /// How long a message may be incomplete while somebody stands in line.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whether somebody stands in line.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst)
    }

    /// A client is ended to make room.
    pub(crate) fn count_gave_way(&self) {
        add(&self.gave_way, 1);
    }

    /// How many were.
    pub(crate) fn gave_way(&self) -> u64 {
        self.gave_way.load(Ordering::Relaxed)
    }

    /// How often a client had to wait.
    pub(crate) fn lined_up(&self) -> u64 {
        self.lined_up.load(Ordering::Relaxed)
    }

    /// Clients in line, and lanes that are taken.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.line.len(), table.lanes)
    }

    /// Has those give way who have held room or a lane for longer than the patience, the longest first, as far as those in
    /// line need it. Each looks for itself whether that is so. False when nobody is in line.
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
            .map(|link| (link.stake.since.load(Ordering::Relaxed), link))
            .filter(|(since, link)| {
                let waits = link.stake.standing.load(Ordering::Relaxed) != OUTSIDE;
                *since != 0 && *since <= latest && !waits
            })
            .collect();
        stale.sort_unstable_by_key(|(since, _)| *since);
        let mut needs = table.line.values().map(|waiter| waiter.need).peekable();
        let (mut gained, mut giving_way) = (0, Vec::new());
        for (_, link) in stale {
            let Some(need) = needs.peek().copied() else { break };
            gained += if link.stake.lane.load(Ordering::Relaxed) {
                need
            } else {
                link.stake.bytes.load(Ordering::Relaxed)
            };
            giving_way.push(link.clone());
            while let Some(need) = needs.next_if(|need| *need <= gained) {
                gained -= need;
            }
        }
        drop(needs);
        drop(table);
        giving_way.into_iter().for_each(|link| link.tell(Event::GiveWay));
        true
    }

    /// Room or a lane has become free.
    fn freed(&self) {
        if self.is_pressed() {
            self.serve(&mut self.table.lock());
        }
    }

    /// Gives those in line what there is.
    fn serve(&self, table: &mut Table) {
        while let Some(first) = table.line.first_entry() {
            let need = first.get().need;
            let bytes = self.bytes.load(Ordering::SeqCst);
            // When nobody but those in line holds any, they would wait for each other for ever: one goes on, however much it
            // has, and the next one when it is through or gives way.
            let stuck = bytes == table.held_in_line && table.lanes == 0;
            let standing = if stuck || bytes + need <= self.most {
                self.bytes.fetch_add(need, Ordering::SeqCst);
                HAS_ROOM
            } else if table.lanes < self.lanes_max && table.lanes < self.places.available_permits() {
                // The lanes that are taken may all have their connections still to open.
                table.lanes += 1;
                HAS_LANE
            } else {
                break;
            };
            let Waiter { link, counted, .. } = first.remove();
            table.held_in_line -= counted;
            link.stake.standing.store(standing, Ordering::Release);
            link.outbox.nudge();
        }
        self.pressed.store(!table.line.is_empty(), Ordering::SeqCst);
    }

    /// Looks after those in line for as long as there are any.
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

/// One client's part of it.
#[derive(Debug)]
pub(crate) struct Seat {
    staging: Arc<Staging>,
    /// Bytes of its that count.
    counted: usize,
    /// Its place in line and what it needs, until it takes what it got.
    ticket: Option<(Ticket, usize)>,
    /// It has waited since it last held nothing.
    waited: bool,
    /// It is among the holders.
    known: bool,
    lane: bool,
    /// Bytes of bodies that came since it was last looked at.
    came: usize,
    /// Since when it will give way, unless something comes.
    warned: Option<Instant>,
    /// Until when nothing is held against it.
    excused: Option<Instant>,
}

impl Seat {
    pub(crate) fn new(staging: Arc<Staging>) -> Self {
        Self {
            staging,
            counted: 0,
            ticket: None,
            waited: false,
            known: false,
            lane: false,
            came: 0,
            warned: None,
            excused: None,
        }
    }

    pub(crate) fn staging(&self) -> &Arc<Staging> {
        &self.staging
    }

    /// The client holds so much at the end of a batch. False when there is no room for it: then it has to wait.
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
        // What it waited for is not wanted any more.
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
        link.stake.bytes.store(counted, Ordering::Relaxed);
        if !held || !self.holds() {
            // Both are about what it holds.
            self.came = 0;
            self.warned = None;
        }
        if !self.holds() {
            link.stake.since.store(0, Ordering::Relaxed);
            self.waited = false;
        } else if !held {
            self.hold_since(Instant::now(), link);
        }
    }

    /// Whether the client holds room or a lane.
    pub(crate) fn holds(&self) -> bool {
        self.counted > 0 || self.lane
    }

    /// It holds room or a lane since then.
    pub(crate) fn hold_since(&mut self, since: Instant, link: &Arc<ClientLink>) {
        link.stake.since.store(self.staging.stamp(since), Ordering::Relaxed);
        if !self.known {
            self.known = true;
            self.staging.table.lock().holders.insert(Arc::as_ptr(link) as usize, link.clone());
        }
    }

    /// Has the client stand in line with what it holds. What it gets is there when it is nudged, or at once.
    pub(crate) fn line_up(&mut self, staged: usize, link: &Arc<ClientLink>) {
        let need = staged.saturating_sub(ALWAYS).saturating_sub(self.counted);
        let turn = if std::mem::replace(&mut self.waited, true) { Turn::Again } else { Turn::First };
        let mut table = self.staging.table.lock();
        table.next_ticket += 1;
        let ticket = (turn, table.next_ticket);
        link.stake.standing.store(IN_LINE, Ordering::Release);
        table.line.insert(ticket, Waiter { link: link.clone(), counted: self.counted, need });
        table.held_in_line += self.counted;
        // Before the room is looked at: whoever frees some looks here afterwards.
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

    /// Whether the client stands in line, or has not looked yet at what it got.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.ticket.is_some()
    }

    /// What the client got for its waiting, once.
    pub(crate) fn take_grant(&mut self, link: &Arc<ClientLink>, now: Instant) -> Option<Grant> {
        let (_, need) = self.ticket?;
        let standing = link.stake.standing.load(Ordering::Acquire);
        if standing == IN_LINE {
            return None;
        }
        link.stake.standing.store(OUTSIDE, Ordering::Release);
        self.ticket = None;
        // It was not read meanwhile.
        self.excused = Some(now);
        self.warned = None;
        if standing == HAS_LANE {
            self.lane = true;
            self.came = 0;
            link.stake.lane.store(true, Ordering::Relaxed);
            self.hold_since(now, link);
            return Some(Grant::Lane);
        }
        self.set_counted(self.counted + need, link);
        self.hold_since(now, link);
        Some(Grant::Room)
    }

    fn leave_line(&mut self, link: &Arc<ClientLink>) {
        let Some((ticket, need)) = self.ticket.take() else { return };
        let mut table = self.staging.table.lock();
        table.held_in_line -= table.line.remove(&ticket).map_or(0, |waiter| waiter.counted);
        match link.stake.standing.swap(OUTSIDE, Ordering::AcqRel) {
            HAS_ROOM => {
                self.staging.bytes.fetch_sub(need, Ordering::SeqCst);
            }
            HAS_LANE => table.lanes -= 1,
            _ => {}
        }
        self.staging.serve(&mut table);
    }

    #[inline]
    pub(crate) fn has_lane(&self) -> bool {
        self.lane
    }

    /// Bytes of a message's body have come.
    #[inline]
    pub(crate) fn count_came(&mut self, bytes: usize) {
        self.came += bytes;
    }

    /// Whether so much has come since this was last asked that the room or the lane is put to use.
    pub(crate) fn makes_progress(&mut self) -> bool {
        std::mem::take(&mut self.came) >= if self.lane { LANE_PROGRESS } else { ROOM_PROGRESS }
    }

    /// Whether it has known for a while that it will give way. It knows from now on.
    pub(crate) fn is_warned(&mut self, now: Instant) -> bool {
        let since = *self.warned.get_or_insert(now);
        now.saturating_duration_since(since) >= self.staging.patience / WARNINGS_IN_PATIENCE
    }

    /// The lane is not used any more.
    pub(crate) fn give_up_lane(&mut self, link: &Arc<ClientLink>) {
        if !std::mem::take(&mut self.lane) {
            return;
        }
        link.stake.lane.store(false, Ordering::Relaxed);
        self.set_counted(self.counted, link);
        let mut table = self.staging.table.lock();
        table.lanes -= 1;
        self.staging.serve(&mut table);
    }

    /// What happened until now is not the client's doing.
    pub(crate) fn excuse(&mut self, now: Instant, link: &Arc<ClientLink>) {
        self.excused = Some(now);
        self.warned = None;
        self.hold_since(now, link);
    }

    /// Until when nothing is held against the client.
    pub(crate) fn excused(&self) -> Option<Instant> {
        self.excused
    }

    /// The client is gone.
    pub(crate) fn leave(&mut self, link: &Arc<ClientLink>) {
        self.give_up_lane(link);
        self.settle(0, link);
        if std::mem::take(&mut self.known) {
            self.staging.table.lock().holders.remove(&(Arc::as_ptr(link) as usize));
        }
    }
}

/// Bytes of incomplete messages that a client may hold however much others do: messages of usual sizes are never held
/// up, whatever pieces they come in. A body in one frame waits in the read buffer until it is there.
const ALWAYS: usize = 16 * 1024;
/// What has to come on a lane in the time of the patience, so that a message of [`crate::session::STAGING_LIMIT`] does not
/// take it for longer than 16 times as long; and hardly anybody's line is slower.
const LANE_PROGRESS: usize = 64 * 1024;
/// The same where room is held, of which there is less for those who wait: four times as long. A client whose rate is limited
/// is not to blame for it.
const ROOM_PROGRESS: usize = 256 * 1024;
/// For so many times the patience what comes may excuse a message that is not complete: by then the largest one would be.
pub(crate) const EXCUSED_FOR: u32 = 5;
/// Who gives way was told so before, the time of the patience divided by this ago, and could be read then and now.
const WARNINGS_IN_PATIENCE: u32 = 8;
/// How often those in line are looked after in the time of the patience.
const LOOKS_IN_PATIENCE: u32 = 4;
/// For a patience of nothing, as tests have it.
const STEP_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
