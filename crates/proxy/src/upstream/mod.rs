//! One connection to a broker: its channels, who leases them, and whom it belongs to.

mod handshake;
mod slot;
mod task;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use amqp::frame::write_method;
use amqp::method::{channel, connection};
use amqp::{Credentials, Fault, ReplyCode};
use parking_lot::Mutex;
use transport::Outbox;

pub(crate) use handshake::{Begun, probe};
pub(crate) use slot::{Confirms, Lease, Slot};
pub(crate) use task::spawn;

use crate::link::{ClientLink, Event};

/// A connection to a broker, open or ended. Shared by its own task and by the sessions that lease its channels.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// Unique in the pool.
    pub(crate) id: u64,
    /// Where frames for the broker go.
    pub(crate) outbox: Arc<Outbox>,
    /// Octets of the largest frame that the broker takes; never 0.
    pub(crate) frame_max: u32,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) virtual_host: Box<str>,
    /// When the broker accepted the credentials and the virtual host.
    pub(crate) verified_at: Instant,
    /// Most channels at one time, as the broker has it.
    channel_max: u16,
    /// Most channels at one time while clients share the connection.
    shared_channel_max: u16,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Channel n is at n - 1.
    slots: Vec<Slot>,
    /// Numbers of free slots.
    free: Vec<u16>,
    /// Slots that are not free.
    in_use: usize,
    /// The client that this connection belongs to alone.
    owner: Option<Arc<ClientLink>>,
    /// The owner is through: when no channel is left, the connection is clean.
    returning: bool,
    /// The owner waits for a channel number.
    starved: bool,
    /// Since when no channel is in use and nobody owns the connection.
    idle_since: Option<Instant>,
    /// The broker's reason for `connection.blocked`.
    blocked: Option<Box<str>>,
    /// Sessions that placed, or may place, channels here.
    attached: Vec<Arc<ClientLink>>,
    /// Sessions that found no room in `outbox`.
    waiting: Vec<Arc<ClientLink>>,
}

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// `connection.close` was sent.
    Closing(Instant),
    Ended,
}

/// What placing a channel led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// On this channel. `channel.open` is the session's to send, in front of everything else.
    On(u16),
    /// All channels are in use. On a client's own connection: as many as the broker allows at all.
    Full,
    /// All channels of the client's own connection are in use, but some are being closed. [`Event::ChannelFree`] tells.
    Soon,
    /// The connection is closing or has ended.
    Gone,
}

impl Upstream {
    /// Whether the connection takes new channels.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    /// Whether a client that owns no connection can be placed here.
    pub(crate) fn takes_shared(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Open
            && state.owner.is_none()
            && state.in_use < usize::from(self.shared_channel_max)
    }

    /// Channels in use, and whether the connection belongs to one client.
    pub(crate) fn load(&self) -> (usize, bool) {
        let state = self.state.lock();
        (state.in_use, state.owner.is_some())
    }

    /// Makes an unused connection the client's own. A new one has to be told, for its task may not run yet.
    pub(crate) fn try_own(&self, link: &Arc<ClientLink>) -> bool {
        let mut state = self.state.lock();
        let unused = state.in_use == 0 && state.owner.is_none() && state.attached.is_empty();
        if state.phase != Phase::Open || !unused {
            return false;
        }
        state.owner = Some(link.clone());
        state.idle_since = None;
        true
    }

    /// Has events and blocked notices sent to the client. False when the connection is gone.
    pub(crate) fn attach(&self, link: &Arc<ClientLink>) -> bool {
        let mut state = self.state.lock();
        let foreign = state.owner.as_ref().is_some_and(|owner| !Arc::ptr_eq(owner, link));
        if state.phase != Phase::Open || foreign {
            return false;
        }
        if let Some(reason) = &state.blocked {
            link.block(reason);
        }
        state.attached.push(link.clone());
        true
    }

    /// Undoes [`Self::attach`].
    pub(crate) fn detach(&self, link: &Arc<ClientLink>) {
        let mut state = self.state.lock();
        state.attached.retain(|other| !Arc::ptr_eq(other, link));
        state.waiting.retain(|other| !Arc::ptr_eq(other, link));
        if state.blocked.is_some() {
            link.unblock();
        }
    }

    /// Leases a fresh channel.
    pub(crate) fn lease(&self, lease: Lease) -> Placed {
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Placed::Gone;
        }
        let is_own = state.owner.is_some();
        let max = if is_own { self.channel_max } else { self.shared_channel_max };
        if state.in_use >= usize::from(max) {
            state.starved = is_own && state.slots.iter().any(Slot::is_closing);
            return if state.starved { Placed::Soon } else { Placed::Full };
        }
        let number = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot::Free);
            // Bounded by channel_max, a u16.
            state.slots.len() as u16
        });
        state.slots[usize::from(number) - 1] = Slot::Leased(Box::new(lease));
        state.in_use += 1;
        state.idle_since = None;
        Placed::On(number)
    }

    /// Gives a channel back. Everything that the session had for it must be in the outbox. The number is leased
    /// again only when the broker has confirmed the close.
    pub(crate) fn release(&self, number: u16) {
        let mut state = self.state.lock();
        match state.slot(number) {
            Some(slot @ Slot::Leased(_)) => {
                let Slot::Leased(lease) = std::mem::replace(slot, Slot::Closing) else { return };
                if !lease.close_sent {
                    self.send(number, close_channel());
                }
            }
            Some(Slot::PeerClosed) => {
                self.send(number, channel::CloseOk {});
                state.set_free(number);
            }
            _ => {}
        }
    }

    /// Closes a channel and lets the session know when the broker has confirmed it.
    pub(crate) fn close_channel(&self, number: u16) {
        let mut state = self.state.lock();
        if let Some(Slot::Leased(lease)) = state.slot(number) {
            lease.close_sent = true;
            self.send(number, close_channel());
        }
    }

    /// Most channels at one time on a client's own connection.
    pub(crate) fn channel_max(&self) -> u16 {
        self.channel_max
    }

    /// Starts counting confirms on a channel: `confirm.select` is about to be sent.
    pub(crate) fn count_confirms(&self, number: u16) {
        if let Some(Slot::Leased(lease)) = self.state.lock().slot(number) {
            lease.confirms.get_or_insert_default();
        }
    }

    /// Whether everything published up to `sequence` has been confirmed. After a no, [`Event::Confirmed`] tells.
    pub(crate) fn await_confirms(&self, number: u16, sequence: u64) -> bool {
        match self.state.lock().slot(number) {
            Some(Slot::Leased(lease)) => match &mut lease.confirms {
                Some(confirms) => confirms.await_up_to(sequence),
                None => true,
            },
            _ => true,
        }
    }

    /// Whether the outbox has room. After a no, the client's outbox is nudged when it has.
    pub(crate) fn has_room(&self, link: &Arc<ClientLink>) -> bool {
        if self.outbox.has_room() {
            return true;
        }
        let mut state = self.state.lock();
        if !state.waiting.iter().any(|other| Arc::ptr_eq(other, link)) {
            state.waiting.push(link.clone());
        }
        // The room may have come before the client was on the list; then nobody will tell.
        self.outbox.has_room()
    }

    /// The owner is through with its own connection and has released all channels: back to the pool once they are
    /// closed, or closed itself when that is the only way to clean it.
    pub(crate) fn give_back(&self, close: bool) {
        let mut state = self.state.lock();
        state.returning = true;
        if close {
            self.start_close(&mut state, "client is gone");
        } else {
            state.settle();
        }
        drop(state);
        // The task may have stopped reading for a client that is gone now.
        self.outbox.nudge();
    }

    /// Closes the connection cleanly.
    pub(crate) fn close(&self, reason: &str) {
        self.start_close(&mut self.state.lock(), reason);
        self.outbox.nudge();
    }

    fn start_close(&self, state: &mut State, reason: &str) {
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Closing(Instant::now());
        self.send(
            0,
            connection::Close {
                reply_code: ReplyCode::Success.code(),
                reply_text: reason,
                class_id: 0,
                method_id: 0,
            },
        );
    }

    /// The connection is over: everybody on it hears why.
    fn end(&self, fault: &Fault) {
        let mut state = self.state.lock();
        state.phase = Phase::Ended;
        state.idle_since = None;
        state.slots = Vec::new();
        state.free = Vec::new();
        state.in_use = 0;
        let mut links = std::mem::take(&mut state.attached);
        state.waiting = Vec::new();
        let was_blocked = state.blocked.take().is_some();
        let owner = state.owner.take();
        drop(state);
        for link in &links {
            if was_blocked {
                link.unblock();
            }
        }
        links.extend(owner.filter(|owner| !links.iter().any(|link| Arc::ptr_eq(link, owner))));
        for link in links {
            link.tell(Event::Lost { upstream: self.id, fault: fault.clone() });
        }
    }

    fn send<'a>(&self, number: u16, method: impl Into<amqp::Method<'a>>) {
        self.outbox.append(|buf| write_method(buf.tail(), number, method));
    }
}

impl State {
    #[inline]
    fn slot(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number).checked_sub(1)?)
    }

    fn set_free(&mut self, number: u16) {
        if let Some(slot) = self.slot(number) {
            *slot = Slot::Free;
            self.free.push(number);
            self.in_use -= 1;
            if std::mem::take(&mut self.starved)
                && let Some(owner) = &self.owner
            {
                owner.tell(Event::ChannelFree);
            }
            self.settle();
        }
    }

    /// Ends a client's ownership when its last channel is closed, and starts the idle time.
    fn settle(&mut self) {
        if self.in_use > 0 || self.phase != Phase::Open {
            return;
        }
        if self.returning {
            self.returning = false;
            if let Some(owner) = self.owner.take() {
                owner.tell(Event::Returned);
            }
        }
        if self.owner.is_none() {
            self.idle_since = Some(Instant::now());
        }
    }
}

fn close_channel() -> channel::Close<'static> {
    channel::Close {
        reply_code: ReplyCode::Success.code(),
        reply_text: "released",
        class_id: 0,
        method_id: 0,
    }
}

/// Adds up what a set of connections carries.
pub(crate) fn loads(connections: &[Arc<Upstream>]) -> (usize, usize) {
    connections
        .iter()
        .map(|upstream| upstream.load())
        .fold((0, 0), |(channels, own), (in_use, owned)| (channels + in_use, own + usize::from(owned)))
}

/// Counts octets that a session hands over.
pub(crate) fn count_handed_over(counters: &crate::metrics::Counters, octets: usize) {
    counters.octets_to_upstreams.fetch_add(octets as u64, Ordering::Relaxed);
}
