//! One connection to a broker: its channels, their leases, and its owner.

mod client_batch;
mod connect;
mod content;
mod declaring;
mod handshake;
mod leases;
mod ledger;
mod role;
mod secret;
mod share;
mod slot;
mod stall;
mod task;
#[cfg(test)]
mod test_peer;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amqp::frame::write_method;
use amqp::method::connection;
use amqp::{Credentials, Fault, ReplyCode};
use arc_swap::ArcSwap;
use sync::{Mutex, Rank};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use transport::Outbox;

pub(crate) use declaring::Declaring;
pub(crate) use handshake::{LoggedInConnection, probe};
pub(crate) use leases::{ChannelCounts, Leased, Placed};
pub(crate) use ledger::{
    AnswerProgress, ConfirmNumbers, Consumer, Ledger, MovedState, PrefetchState, REPLY_TO, UnsettledEntries,
    asked_for,
};
pub(crate) use role::Role;
#[cfg(test)]
pub(crate) use share::{HARD_LIMIT, WINDOW};
pub(crate) use share::{Share, UpstreamProgress};
#[cfg(test)]
pub(crate) use slot::OVERDUE_AFTER;
pub(crate) use slot::{ChannelOpening, DepartedLedger, Lease, Slot, Usage};
pub use stall::is_stall;
#[cfg(test)]
pub(crate) use test_peer::{ChannelDeliveries, Effect, Peer};

use self::slot::PartialDelivery;
pub use self::view::UpstreamView;
pub(crate) use task::{UpstreamIdentity, spawn};

use self::leases::IdleChannels;
use self::role::Attached;
use self::stall::StallState;
use crate::link::{ClientLink, Event};
use crate::pool::{Endpoint, UnusedNotifier};

/// A connection to a broker, open or ended. Shared by its own task and by the sessions that lease its channels.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// Unique in the pool.
    pub(crate) id: u64,
    /// Frames for the broker.
    pub(crate) outbox: Arc<Outbox>,
    /// Total bytes that clients have handed over.
    sent: AtomicU64,
    /// Whether messages were sent after which no request was sent yet. Set by sessions, cleared when they are asked for proofs.
    unproven: AtomicBool,
    /// End position of the sampled batch, and when it was handed over.
    sample: Mutex<Option<(u64, Instant)>, { Rank::Leaf as u8 }>,
    /// Bytes of the largest frame that the broker takes; never 0.
    pub(crate) frame_max: u32,
    /// The broker's address.
    pub(crate) endpoint: Endpoint,
    /// The credentials that it was opened with, until all its clients have newer ones: see [`secret`].
    credentials: ArcSwap<Credentials>,
    pub(crate) virtual_host: Box<str>,
    /// Maximum number of channels, as negotiated with the broker.
    channel_max: u16,
    /// Maximum number of channels while clients share the connection.
    shared_channel_max: u16,
    /// A channel that was opened longer ago is not leased to another client.
    channel_age_max: Duration,
    pub(crate) opened_at: Instant,
    /// Notifies waiters when a channel rests, and when the broker has opened one.
    news: Notify,
    state: Mutex<UpstreamState, { Rank::Upstream as u8 }>,
}

#[derive(Debug)]
struct UpstreamState {
    phase: Phase,
    /// When the broker last accepted the credentials for the virtual host; `None` when it refused them since.
    verified_at: Option<Instant>,
    /// Whether the broker is being asked again.
    refreshing: bool,
    /// Channel n is at index n - 1.
    slots: Vec<Slot>,
    /// Numbers of free slots.
    free: Vec<u16>,
    /// Number of slots that are neither free nor resting.
    in_use: usize,
    /// The role of the channels in use; before the first one, the role that the connection was opened for.
    role: Option<Role>,
    /// Whether clients have published here, or may have. Never cleared.
    has_published: bool,
    resting: IdleChannels,
    /// Channels that the broker is still to open, or to prove clean.
    opening: usize,
    /// The client that this connection belongs to alone.
    owner: Option<Arc<ClientLink>>,
    /// The owner has finished: when no channel is left, the connection is clean.
    returning: bool,
    /// Sessions that wait for a channel number. On a shared connection a channel is being closed for each of them.
    starving: Vec<Arc<ClientLink>>,
    /// When the connection last became free of channels in use and of an owner.
    idle_since: Option<Instant>,
    /// Whether it was opened for a client that has not used it yet. Set when it is opened, cleared by the first lease of
    /// any client.
    awaits_first_use: bool,
    /// Notified when the connection becomes unused.
    unused: Arc<UnusedNotifier>,
    /// The broker's reason for `connection.blocked`.
    blocked: Option<Box<str>>,
    stall: StallState,
    /// When the connection was opened, or when the last alarm or stall ended. Confirms are overdue only relative to this time.
    answers_since: Instant,
    /// Sessions that placed, or may place, channels here.
    attached: Vec<Attached>,
    /// Sessions that found `outbox` full, with the position up to which data has to be written first.
    waiting: Vec<(Arc<ClientLink>, u64)>,
}

/// The life cycle of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// `connection.close` was sent.
    Closing(Instant),
    Ended,
}

impl Upstream {
    /// Whether the connection takes new channels.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().phase == Phase::Open
    }

    /// Whether the connection is open and the broker accepted its credentials less than `ttl` ago.
    pub(crate) fn is_verified_within(&self, ttl: Duration) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Open && state.verified_at.is_some_and(|at| transport::now() < at + ttl)
    }

    /// The broker has just accepted the connection's credentials for its virtual host.
    pub(crate) fn set_verified(&self) {
        self.state.lock().verified_at = Some(transport::now());
    }

    /// The broker has just accepted the connection's credentials in a login, without opening its virtual host. Returns
    /// whether they were verified for the virtual host before.
    pub(crate) fn renew_verified(&self) -> bool {
        let mut state = self.state.lock();
        let is_known = state.phase == Phase::Open && state.verified_at.is_some();
        if is_known {
            state.verified_at = Some(transport::now());
        }
        is_known
    }

    /// Records that the broker has just refused the connection's credentials.
    pub(crate) fn revoke_verification(&self) {
        self.state.lock().verified_at = None;
    }

    /// Whether the caller is the one to ask the broker again.
    pub(crate) fn begin_refresh(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().refreshing, true)
    }

    /// The broker has been asked again, or could not be.
    pub(crate) fn end_refresh(&self) {
        self.state.lock().refreshing = false;
    }

    /// Makes an unused connection the client's own. Returns false if it is in use or stopped by an alarm.
    pub(crate) fn try_own(&self, link: &Arc<ClientLink>) -> bool {
        let mut state = self.state.lock();
        if state.unused_since().is_none() || !state.attached.is_empty() || state.is_stopped() {
            return false;
        }
        state.has_published = true;
        state.owner = Some(link.clone());
        state.idle_since = None;
        state.awaits_first_use = false;
        true
    }

    /// Whether the connection is the client's own, until it is clean again or has ended.
    pub(crate) fn is_own_of(&self, link: &Arc<ClientLink>) -> bool {
        self.state.lock().owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, link))
    }

    /// When the connection became unused, if it is unused and takes channels. Clients that are connected may have used it.
    pub(crate) fn unused_since(&self) -> Option<Instant> {
        self.state.lock().unused_since()
    }

    /// Closes the connection if nobody uses it. Clients that have used it take another one when they need one again. The client
    /// for which it was opened has [`FIRST_USE_TIMEOUT`] to use it.
    pub(crate) fn close_unused(&self, reason: &str, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_awaited = state.awaits_first_use && now < self.opened_at + FIRST_USE_TIMEOUT;
        let unused = state.unused_since().is_some() && !is_awaited;
        if unused {
            self.start_close(&mut state, reason, now);
            drop(state);
            self.outbox.nudge();
        }
        unused
    }

    /// Sends events to the client from now on, and blocked notices once it publishes here. Returns false if the
    /// connection is gone, another client's own, or no longer one of these credentials.
    pub(crate) fn attach(&self, link: &Arc<ClientLink>, credentials: &Credentials) -> bool {
        let mut state = self.state.lock();
        let is_ours = match &state.owner {
            Some(owner) => Arc::ptr_eq(owner, link),
            None => self.is_of(credentials),
        };
        if state.phase != Phase::Open || !is_ours {
            return false;
        }
        state.attached.push(Attached::new(link.clone(), false));
        if state.owner.is_some() {
            state.publishes(link);
        }
        true
    }

    /// Undoes [`Self::attach`].
    pub(crate) fn detach(&self, link: &Arc<ClientLink>) {
        let mut state = self.state.lock();
        state.forget_attached(link);
        self.pass_on_common_secret(&mut state);
        state.waiting.retain(|(other, _)| !Arc::ptr_eq(other, link));
        state.starving.retain(|other| !Arc::ptr_eq(other, link));
        if state.unused_since().is_some() {
            state.unused.notify();
        }
    }

    /// Takes bytes from a client; returns their end position among all that clients have sent.
    pub(crate) fn hand_over(&self, bytes: Vec<u8>, now: Instant) -> u64 {
        // Counted first, so that a concurrent reader computes too many written bytes rather than too few, and a client
        // is notified too early rather than never.
        let end = self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        if let Some(mut sample) = self.sample.try_lock() {
            sample.get_or_insert_with(|| (end, now));
        }
        // Small ones are copied, large ones are chained as they are.
        self.outbox.append(|buf| buf.push(bytes.into()));
        end
    }

    /// How long the sampled batch has waited, if it has been written.
    fn take_sample(&self, now: Instant) -> Option<Duration> {
        let mut sample = self.sample.lock();
        let (_, since) = sample.take_if(|(end, _)| *end <= self.line().written)?;
        Some(now.saturating_duration_since(since))
    }

    /// The write progress of data from clients.
    pub(crate) fn line(&self) -> UpstreamProgress {
        let (backlog, limit) = (self.outbox.backlog(), self.outbox.limit());
        let written = self.sent.load(Ordering::Relaxed).saturating_sub(backlog as u64);
        UpstreamProgress { upstream: self.id, written, backlog, limit }
    }

    /// Whether a client may send more; `share` is `None` if it owns the connection. If not, its outbox is
    /// nudged when it may.
    pub(crate) fn has_capacity(&self, link: &Arc<ClientLink>, share: Option<&Share>) -> bool {
        let has_capacity = || match share {
            Some(share) => share.may_send(self.line()),
            None => self.outbox.has_capacity(),
        };
        if has_capacity() {
            return true;
        }
        let due = match share.map(|share| share.due(self.id)) {
            Some(due) if due > self.line().written => due,
            // The outbox is too full for any client. Having been polled, it will notify when it is not.
            _ => {
                self.outbox.has_capacity();
                u64::MAX
            }
        };
        let mut state = self.state.lock();
        match state.waiting.iter_mut().find(|(other, _)| Arc::ptr_eq(other, link)) {
            Some(waiting) => waiting.1 = due,
            None => state.waiting.push((link.clone(), due)),
        }
        drop(state);
        // Space may have become free before the client was on the list, without a notification.
        has_capacity()
    }

    /// Notifies sessions whose data has been written far enough.
    fn wake_written(&self) {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            return;
        }
        let written = self.line().written;
        state.waiting.retain(|(link, due)| {
            let waits = *due > written;
            if !waits {
                link.outbox.nudge();
            }
            waits
        });
    }

    /// The owner has finished with its own connection and has released all channels: it returns to the pool
    /// once they are closed, or is closed itself if that is the only way to clean it.
    pub(crate) fn give_back(&self, close: bool, now: Instant) {
        let mut state = self.state.lock();
        state.returning = true;
        if close {
            self.start_close(&mut state, "client disconnected", now);
        } else {
            state.settle(now);
        }
        drop(state);
        // The task may have paused reading for the departed client.
        self.outbox.nudge();
    }

    /// Like [`Self::give_back`] for an owner that continues on other connections: it receives no more events
    /// from this one.
    pub(crate) fn take_back(&self, close: bool, now: Instant) {
        self.state.lock().owner = Some(ClientLink::nobody());
        self.give_back(close, now);
    }

    /// Closes the connection cleanly.
    pub(crate) fn close(&self, reason: &str, now: Instant) {
        self.start_close(&mut self.state.lock(), reason, now);
        self.outbox.nudge();
    }

    fn start_close(&self, state: &mut UpstreamState, reason: &str, now: Instant) {
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Closing(now);
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

    /// Ends the connection and notifies all its sessions. Returns departed clients' unsettled frames, and whether the
    /// connection belonged to one client. With `refuses_new`, the fault refuses new channels that the broker has not
    /// opened. If `stalled`, the clients that may have caused it are marked as suspects.
    fn end(&self, fault: &Fault, refuses_new: bool, stalled: bool) -> (Vec<DepartedLedger>, bool) {
        let mut state = self.state.lock();
        let suspects = if stalled { state.suspects() } else { Vec::new() };
        state.phase = Phase::Ended;
        state.idle_since = None;
        let (mut left, mut suspected) = (Vec::new(), Vec::new());
        for (at, slot) in std::mem::take(&mut state.slots).into_iter().enumerate() {
            let is_suspect = suspects.contains(&at);
            match slot {
                Slot::Leased(lease) => {
                    let opening = match lease.opening && !lease.again {
                        true if refuses_new => ChannelOpening::Refused,
                        true => ChannelOpening::Pending,
                        false => ChannelOpening::Done,
                    };
                    lease.ledger.end(lease.last_queue, opening);
                    if lease.missing != PartialDelivery::Nothing {
                        lease.link.notify(Event::BrokenOff { upstream: self.id });
                    }
                    if lease.link.is_gone() {
                        let confirming = lease.confirms.is_some();
                        left.push(DepartedLedger { remains: lease.ledger.take(), confirming, is_suspect });
                    } else if is_suspect {
                        tracing::warn!(
                            upstream = self.id,
                            client = lease.link.client,
                            "client may have stalled the upstream connection, and gets one of its own"
                        );
                        suspected.push(lease.link);
                    }
                }
                Slot::Settling(settling) | Slot::Closing(Some(settling)) => {
                    left.extend(settling.into_left(is_suspect));
                }
                _ => {}
            }
        }
        state.free = Vec::new();
        state.resting = IdleChannels::default();
        state.in_use = 0;
        if state.blocked.is_some() {
            state.publishers().for_each(|link| link.unblock());
        }
        state.blocked = None;
        let attached = std::mem::take(&mut state.attached);
        let mut links: Vec<_> = attached.into_iter().map(|attached| attached.link).collect();
        state.waiting = Vec::new();
        let starving = std::mem::take(&mut state.starving);
        let owner = state.owner.take();
        drop(state);
        let was_own = owner.is_some();
        links.extend(owner.filter(|owner| !links.iter().any(|link| Arc::ptr_eq(link, owner))));
        for link in links {
            let is_suspect = suspected.iter().any(|other| Arc::ptr_eq(other, &link));
            link.notify(Event::Lost { upstream: self.id, fault: fault.clone(), is_suspect });
        }
        // Sessions that waited for a channel number here try other connections.
        starving.iter().for_each(|link| link.notify(Event::ChannelFree));
        (left, was_own)
    }

    fn send<'a>(&self, number: u16, method: impl Into<amqp::Method<'a>>) {
        self.outbox.append(|buf| write_method(buf.tail(), number, method));
    }
}

impl UpstreamState {
    /// When the connection became unused, if it is unused and takes channels.
    fn unused_since(&self) -> Option<Instant> {
        let unused = self.in_use == 0 && self.owner.is_none();
        self.idle_since.filter(|_| unused && self.phase == Phase::Open)
    }
}

/// How long a connection is reserved for the client for which it was opened while others wait for a connection: some round
/// trips with the client. If it were closed at once, that client would soon wait for another one.
pub(crate) const FIRST_USE_TIMEOUT: Duration = Duration::from_millis(250);

/// The combined load of a set of connections.
#[derive(Debug, Default)]
pub(crate) struct LoadSum {
    /// Channels in use.
    pub(crate) channels: usize,
    /// Channels that rest.
    pub(crate) resting: usize,
    /// Connections that belong to one client.
    pub(crate) own: usize,
    /// Connections that the broker has blocked.
    pub(crate) blocked: usize,
}

/// Adds up the load of a set of connections.
pub(crate) fn loads(connections: &[Arc<Upstream>]) -> LoadSum {
    connections.iter().fold(LoadSum::default(), |loads, upstream| {
        let state = upstream.state.lock();
        LoadSum {
            channels: loads.channels + state.in_use,
            resting: loads.resting + state.resting.len(),
            own: loads.own + usize::from(state.owner.is_some()),
            blocked: loads.blocked + usize::from(state.blocked.is_some()),
        }
    })
}
