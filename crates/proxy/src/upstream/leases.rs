//! Channels of an upstream connection: leased to clients' channels, proven clean, and leased again (P5, P6).
//!
//! A channel that a client gives back settles until every request on it is answered and everything published in confirm
//! mode is confirmed. If the outcome of some frames is not reported by a reply, as for a publish outside confirm mode,
//! the pool sends `basic.qos`, which also resets the prefetch. Its reply proves that the broker has processed all
//! earlier frames without closing the channel. Then the channel rests, and the next lease needs no `channel.open`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amqp::ReplyCode;
use amqp::method::{basic, channel};

use super::ledger::AnswerProgress;
use super::role::Role;
use super::slot::{Lease, Settling, Slot, Usage};
use super::{Notified, Phase, Upstream, UpstreamState};
use crate::link::{ClientLink, Event};

/// The outcome of placing a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// On this channel.
    On(Leased),
    /// All channels are in use: on a client's own connection, as many as the broker allows; on a shared one,
    /// [`crate::PoolConfig::max_channels_per_connection`], or the connection has the other role.
    Full,
    /// All channels are in use, but some are being closed. [`Event::ChannelFree`] follows.
    Soon,
    /// No channel rests, and the caller does not allow opening another one. See [`crate::pool::Pool::lease`].
    Limited,
    /// The connection is closing or has ended.
    Gone,
}

/// A leased channel in its current state. The session has to send the missing methods before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leased {
    pub(crate) channel: u16,
    /// Whether `channel.open` has to be sent.
    pub(crate) fresh: bool,
    /// Whether it is already in confirm mode.
    pub(crate) confirming: bool,
}

/// The capacity of a shared connection for a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    /// A unitless measure of its load, if it has a channel for this client.
    pub(crate) load: Option<usize>,
    /// Whether such a channel is open and unused.
    pub(crate) rests: bool,
    /// Channels that the broker is still to open, or to prove clean after they were given back.
    pub(crate) opening: usize,
    /// Whether the broker has stopped reading the connection.
    pub(crate) is_stalled: bool,
}

/// Numbers of channels of a user when a broker has refused to open one more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChannelCounts {
    /// Channels that are open at the broker.
    pub(crate) open: usize,
    /// Channels of `open` that clients use.
    pub(crate) used: usize,
    /// Channels that are being opened for clients that had one before.
    pub(crate) reopening: usize,
}

impl ChannelCounts {
    fn of(slot: &Slot) -> Self {
        let (open, used, reopening) = match slot {
            Slot::Free | Slot::PeerClosed => (false, false, false),
            Slot::Leased(lease) => {
                (!lease.opening, !lease.opening && !lease.close_sent, lease.opening && lease.again)
            }
            Slot::Settling(settling) => (!settling.is_opening(), false, false),
            Slot::IdleChannels(_) | Slot::Closing(_) => (true, false, false),
        };
        Self { open: open.into(), used: used.into(), reopening: reopening.into() }
    }
}

impl std::ops::Add for ChannelCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            open: self.open + other.open,
            used: self.used + other.used,
            reopening: self.reopening + other.reopening,
        }
    }
}

/// The resting channels, the longest resting first.
#[derive(Debug, Default)]
pub(super) struct IdleChannels {
    plain: VecDeque<IdleChannel>,
    /// Channels in confirm mode.
    confirming: VecDeque<IdleChannel>,
}

/// A channel that rests.
#[derive(Debug, Clone, Copy)]
struct IdleChannel {
    number: u16,
    since: Instant,
    opened_at: Instant,
}

impl Upstream {
    /// The connection's capacity for a client, for a channel in confirm mode if `confirm`. `None` if clients do not
    /// share it in this role.
    pub(crate) fn shared(&self, confirm: bool, role: Role) -> Option<Shared> {
        let state = self.state.lock();
        if !state.is_shared() || !state.takes(role) {
            return None;
        }
        let rests = state.resting.has(confirm);
        let has_capacity = state.has_capacity(self.shared_channel_max);
        let change = if state.role.is_none() { ROLE_CHANGE } else { 0 };
        let load = has_capacity.then(|| state.in_use + self.outbox.backlog() / BACKLOG_OF_A_LEASE + change);
        Some(Shared { load, rests, opening: state.opening, is_stalled: state.is_stalled() })
    }

    /// Whether clients share the connection, and whether it has a channel for one more.
    pub(crate) fn is_shared(&self) -> (bool, bool) {
        let state = self.state.lock();
        (state.is_shared(), state.is_shared() && state.has_capacity(self.shared_channel_max))
    }

    /// Completes when a channel rests or was opened. Each notification wakes one waiter.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Counts a channel as opened if it was `opening`: the broker has opened it, or the outcome no longer matters.
    pub(super) fn opened_if(&self, state: &mut UpstreamState, opening: bool) {
        if opening {
            state.opening = state.opening.saturating_sub(1);
            self.news.notify_one();
        }
    }

    /// Channels that are neither free nor resting.
    pub(crate) fn channels_in_use(&self) -> usize {
        self.state.lock().in_use
    }

    /// Leases a channel, a resting one if possible. With `confirm` the channel is in confirm mode, or about to be put
    /// into it. `role` is its use, on a shared connection. A channel is opened only if `may_open`.
    pub(crate) fn lease(&self, mut lease: Lease, confirm: bool, role: Role, may_open: bool) -> Placed {
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Placed::Gone;
        }
        let is_own = state.owner.is_some();
        if !is_own && !state.takes(role) {
            return Placed::Full;
        }
        let max = usize::from(if is_own { self.channel_max } else { self.shared_channel_max });
        let now = lease.opened_at;
        let leased = if let Some(IdleChannel { number, opened_at, .. }) =
            self.take_fresh_idle(&mut state, confirm, now)
        {
            let confirms = match state.slot(number) {
                Some(Slot::IdleChannels(confirms)) => confirms.take(),
                _ => None,
            };
            let confirming = confirms.is_some();
            let base = confirms.as_ref().map_or(0, |confirms| confirms.base());
            lease.ledger.set_base(base);
            lease.confirms = confirms;
            lease.opening = false;
            lease.opened_at = opened_at;
            Leased { channel: number, fresh: false, confirming }
        } else if !may_open {
            return Placed::Limited;
        } else if state.used_numbers() < max {
            state.opening += 1;
            Leased { channel: state.unused_number(), fresh: true, confirming: false }
        } else {
            return self.no_number(&mut state, is_own, &lease.link);
        };
        if confirm {
            lease.confirms.get_or_insert_default();
        }
        if !is_own {
            state.role = Some(role);
            if role == Role::Publishing {
                state.publishes(&lease.link);
            }
        }
        state.slots[usize::from(leased.channel) - 1] = Slot::Leased(Box::new(lease));
        state.in_use += 1;
        state.idle_since = None;
        state.awaits_first_use = false;
        Placed::On(leased)
    }

    /// A resting channel that was not opened too long ago. A broker may cache permissions per channel, as
    /// RabbitMQ does, so later clients must not get an old one (P1).
    fn take_fresh_idle(&self, state: &mut UpstreamState, confirm: bool, now: Instant) -> Option<IdleChannel> {
        while let Some(rested) = state.resting.take(confirm) {
            if now < rested.opened_at + self.channel_age_max {
                return Some(rested);
            }
            self.close_resting(state, rested.number);
        }
        None
    }

    /// Handles exhausted channel numbers by closing a resting channel, which is in the other mode, or of no use on a
    /// client's own connection. On a shared connection, one channel is being closed for each waiting session.
    fn no_number(&self, state: &mut UpstreamState, is_own: bool, link: &Arc<ClientLink>) -> Placed {
        let needed = state.starving_with(link);
        if (is_own || state.closing() < needed)
            && let Some(rested) = state.resting.take_any()
        {
            self.close_resting(state, rested.number);
        }
        let is_soon =
            if is_own { state.slots.iter().any(Slot::is_closing) } else { state.closing() >= needed };
        if !is_soon {
            return Placed::Full;
        }
        state.starve(link);
        Placed::Soon
    }

    /// Closes a channel that no client uses, unless enough channels are being closed already, and notifies the session when
    /// a channel is closed at the broker. Returns false if all unused channels wait for confirms that are not overdue.
    pub(crate) fn close_one_for(&self, link: &Arc<ClientLink>, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.phase == Phase::Ended {
            return false;
        }
        let needed = state.starving_with(link);
        let ends = state.phase != Phase::Open && !state.slots.is_empty();
        let is_closed = |slot: &&Slot| slot.is_closing() && !matches!(slot, Slot::Settling(_));
        if !ends && state.slots.iter().filter(is_closed).count() < needed {
            if let Some(rested) = state.resting.take_any() {
                self.close_resting(&mut state, rested.number);
            } else if !self.close_overdue(&mut state, now) {
                return false;
            }
        }
        state.starve(link);
        true
    }

    /// Whether a channel that was given back, and for which no other session waits, only waits to be proven clean. If so, the
    /// session is notified when a channel is no longer in use.
    pub(crate) fn wait_for_settling(&self, link: &Arc<ClientLink>) -> bool {
        let mut state = self.state.lock();
        let needed = state.starving_with(link);
        let settling = state.slots.iter().filter(|slot| matches!(slot, Slot::Settling(_))).count();
        if settling >= needed {
            state.starve(link);
        }
        settling >= needed
    }

    /// Number of channels that the broker counts, including those being opened.
    pub(crate) fn channels_at_broker(&self) -> usize {
        let state = self.state.lock();
        if state.phase == Phase::Ended { 0 } else { state.used_numbers() }
    }

    /// The numbers of channels when the broker refuses to open one more.
    pub(crate) fn channel_counts(&self) -> ChannelCounts {
        let state = self.state.lock();
        state.slots.iter().fold(ChannelCounts::default(), |counts, slot| counts + ChannelCounts::of(slot))
    }

    /// Gives a channel back. All of the session's frames for the channel must be in the outbox. The channel is leased
    /// again only when it is proven clean, or the broker has confirmed its close; until then the frames in flight are
    /// kept. Returns false if the connection has ended; the session then has to handle the frames in flight.
    #[must_use]
    pub(crate) fn release(&self, number: u16, usage: Usage, now: Instant) -> bool {
        let mut state = self.state.lock();
        match state.slot(number) {
            Some(slot @ Slot::Leased(_)) => {
                let Slot::Leased(lease) = std::mem::replace(slot, Slot::Closing(None)) else { return true };
                if lease.close_sent || usage.touched {
                    let (opening, close_sent) = (lease.opening, lease.close_sent);
                    let settling = Settling::new(*lease, usage.published, 0, now);
                    if settling.has_left() {
                        *slot = Slot::Closing(Some(Box::new(settling)));
                    }
                    self.opened_if(&mut state, opening);
                    if !close_sent {
                        self.send(number, close_channel());
                    }
                    return true;
                }
                let settling = Settling::new(*lease, usage.published, self.fence(number, usage), now);
                if let Some(slot) = state.slot(number) {
                    *slot = Slot::Settling(Box::new(settling));
                }
                self.idle_if_clean(&mut state, number, now);
            }
            Some(Slot::PeerClosed) => {
                self.send(number, channel::CloseOk {});
                state.set_free(number, now);
            }
            _ => return state.phase != Phase::Ended,
        }
        true
    }

    /// If needed, requests replies that prove that the broker has processed everything; returns the number of requests.
    fn fence(&self, number: u16, usage: Usage) -> u32 {
        let mut fences = 0;
        for (wanted, global) in
            [(usage.global_prefetch, true), (usage.unproven || usage.global_prefetch, false)]
        {
            if wanted {
                self.send(number, basic::Qos { prefetch_size: 0, prefetch_count: 0, global });
                fences += 1;
            }
        }
        fences
    }

    /// Whether the broker has processed everything that was sent on a channel under this lease of a client, which has given
    /// it back. If not, [`Event::Answered`] follows.
    pub(crate) fn poll_given_back(&self, link: &Arc<ClientLink>, number: u16, lease: u64) -> bool {
        let mut state = self.state.lock();
        let Some(slot) = state.slot(number) else { return true };
        let is_settling = matches!(slot, Slot::Settling(_));
        let Some(settling) = slot.given_back(link, lease) else { return true };
        let quiet = settling.poll_processed();
        // On a channel that is being closed, close-ok is the proof.
        if quiet == AnswerProgress::Asking && is_settling {
            settling.prove();
            self.send(number, channel::Flow { active: true });
        }
        quiet == AnswerProgress::Yes
    }

    /// Whether a channel that was given back under this lease of a client is still to be proven clean, or to be closed.
    pub(crate) fn is_given_back(&self, link: &Arc<ClientLink>, number: u16, lease: u64) -> bool {
        self.state.lock().slot(number).is_some_and(|slot| slot.given_back(link, lease).is_some())
    }

    /// Closes a channel and notifies the session when the broker has confirmed it.
    pub(crate) fn close_channel(&self, number: u16) {
        let mut state = self.state.lock();
        if let Some(Slot::Leased(lease)) = state.slot(number) {
            lease.close_sent = true;
            self.send(number, close_channel());
        }
    }

    /// Maximum number of channels on a client's own connection.
    pub(crate) fn channel_max(&self) -> u16 {
        self.channel_max
    }

    /// Starts counting confirms on a channel: `confirm.select` is about to be sent.
    pub(crate) fn count_confirms(&self, number: u16) {
        if let Some(Slot::Leased(lease)) = self.state.lock().slot(number) {
            lease.confirms.get_or_insert_default();
        }
    }

    /// Notes that a method with a reply is about to be sent.
    pub(crate) fn expect_reply(&self, number: u16) {
        if let Some(Slot::Leased(lease)) = self.state.lock().slot(number) {
            lease.replies_due += 1;
        }
    }

    /// Notes that the session is about to request a proof that the broker has processed everything so far.
    pub(crate) fn expect_proof(&self, number: u16) {
        if let Some(Slot::Leased(lease)) = self.state.lock().slot(number) {
            lease.own_flow_ok += 1;
        }
    }

    /// Notes that a message outside confirm mode is about to be sent. [`Event::Unproven`] requests a proof
    /// before long, unless one is requested anyway.
    #[inline]
    pub(crate) fn note_unproven(&self) {
        if !self.unproven.load(Ordering::Relaxed) {
            self.unproven.store(true, Ordering::Release);
        }
    }

    /// Asks for a proof from every session that has sent something since its last one.
    pub(crate) fn ask_for_proofs(&self) {
        self.unproven.store(false, Ordering::Release);
        for slot in &self.state.lock().slots {
            if let Slot::Leased(lease) = slot
                && lease.ledger.is_unproven().0
            {
                lease.link.notify(Event::Unproven { channel: lease.client_channel, lease: lease.id });
            }
        }
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().phase == Phase::Ended
    }

    /// Whether all of the client's requests have been answered.
    pub(crate) fn is_answered(&self, number: u16) -> bool {
        match self.state.lock().slot(number) {
            Some(Slot::Leased(lease)) => lease.replies_due == 0,
            _ => true,
        }
    }

    /// The queue that an empty name means on a leased channel, if the broker has named it.
    pub(crate) fn last_queue(&self, number: u16) -> Option<Box<str>> {
        match self.state.lock().slot(number) {
            Some(Slot::Leased(lease)) => lease.last_queue.clone(),
            _ => None,
        }
    }

    /// Whether the first `published` messages in confirm mode have been confirmed. If not,
    /// [`Event::Confirmed`] follows.
    pub(crate) fn poll_confirms(&self, number: u16, published: u64) -> bool {
        let mut state = self.state.lock();
        match state.slot(number) {
            Some(Slot::Leased(lease)) => match &mut lease.confirms {
                Some(confirms) => confirms.poll_up_to(published),
                None => true,
            },
            // For a lost connection the confirms come from another one, once the session has handled the loss.
            _ => state.phase != Phase::Ended,
        }
    }

    /// Closes the channels that have rested for at least `timeout`.
    pub(super) fn close_rested(&self, state: &mut UpstreamState, now: Instant, timeout: Duration) {
        while let Some(rested) = state.resting.take_rested(now, timeout) {
            self.close_resting(state, rested.number);
        }
    }

    /// Lets a settling channel rest when it is proven clean, or closes it if it is too old.
    pub(super) fn idle_if_clean(&self, state: &mut UpstreamState, number: u16, now: Instant) {
        let Some(slot) = state.slot(number) else { return };
        let Slot::Settling(settling) = slot else { return };
        if !settling.is_clean() {
            return;
        }
        let (opened_at, opening) = (settling.opened_at(), settling.is_opening());
        if now >= opened_at + self.channel_age_max {
            *slot = Slot::Closing(None);
            self.opened_if(state, opening);
            return self.send(number, close_channel());
        }
        let Slot::Settling(settling) = std::mem::replace(slot, Slot::Free) else { return };
        let confirms = settling.into_confirms();
        let confirming = confirms.is_some();
        *slot = Slot::IdleChannels(confirms);
        state.resting.of(confirming).push_back(IdleChannel { number, since: now, opened_at });
        state.left_use(now);
        self.opened_if(state, opening);
        self.news.notify_one();
    }

    /// Closes a channel with overdue confirms for a client that found no free channel on any connection, if clients share
    /// this connection in this role. Returns false if there is no such channel.
    pub(crate) fn give_up_overdue(&self, role: Role, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.is_shared() && state.takes(role) && self.close_overdue(&mut state, now)
    }

    /// Closes the channel that was given back longest ago of those with overdue confirms. Returns false if there is none.
    ///
    /// Close-ok settles everything that was sent before it (P11), as for a client that closes a channel itself: the broker has
    /// routed the messages to their queues, and never reports what the queues refuse or lose after that.
    fn close_overdue(&self, state: &mut UpstreamState, now: Instant) -> bool {
        let Some((_, number)) = state.overdue(now).min() else { return false };
        let Some(slot @ Slot::Settling(_)) = state.slot(number) else { return false };
        let Slot::Settling(mut settling) = std::mem::replace(slot, Slot::Closing(None)) else { return false };
        let opening = settling.is_opening();
        settling.give_up();
        *slot = Slot::Closing(Some(settling));
        self.opened_if(state, opening);
        self.send(number, close_channel());
        true
    }

    /// Requests an answer on a channel that rests or was given back. If there is none, asks a session to do so on its channel.
    /// Returns the channel's number.
    pub(super) fn send_probe(&self, state: &mut UpstreamState, now: Instant) -> Option<u16> {
        let number = if let Some(IdleChannel { number, opened_at, .. }) = state.resting.take_any() {
            let slot = state.slot(number)?;
            let confirms = if let Slot::IdleChannels(confirms) = slot { confirms.take() } else { None };
            *slot = Slot::Settling(Box::new(Settling::probe(confirms, opened_at, now)));
            state.in_use += 1;
            number
        } else if let Some((number, settling)) = state.settling_to_probe() {
            settling.prove();
            number
        } else {
            return state.probe_by_session();
        };
        self.send(number, channel::Flow { active: true });
        Some(number)
    }

    fn close_resting(&self, state: &mut UpstreamState, number: u16) {
        if let Some(slot) = state.slot(number) {
            *slot = Slot::Closing(None);
            state.in_use += 1;
            self.send(number, close_channel());
        }
    }
}

impl UpstreamState {
    #[inline]
    pub(super) fn slot(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number).checked_sub(1)?)
    }

    /// The broker has closed a channel, or confirmed its close.
    pub(super) fn set_free(&mut self, number: u16, now: Instant) {
        if let Some(slot) = self.slot(number) {
            *slot = Slot::Free;
            self.free.push(number);
            self.left_use(now);
        }
    }

    /// A channel is no longer in use.
    fn left_use(&mut self, now: Instant) {
        self.in_use -= 1;
        if !self.starving.is_empty() {
            self.starving.remove(0).notify(Event::ChannelFree);
        }
        self.settle(now);
    }

    /// Ends a client's ownership when its last channel is closed, and starts the idle time.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.in_use > 0 || self.phase != Phase::Open {
            return;
        }
        self.role = None;
        if self.returning {
            self.returning = false;
            if let Some(owner) = self.owner.take() {
                owner.notify(Event::Returned);
            }
        }
        if self.owner.is_none() {
            self.idle_since = Some(now);
            self.unused.notify();
        }
    }

    /// The broker closed a resting channel.
    pub(super) fn forget_resting(&mut self, number: u16, now: Instant) {
        if self.resting.remove(number) {
            self.in_use += 1;
            self.set_free(number, now);
        }
    }

    /// Whether clients share the connection.
    fn is_shared(&self) -> bool {
        self.phase == Phase::Open && self.owner.is_none()
    }

    fn is_starving(&self, link: &Arc<ClientLink>) -> bool {
        self.starving.iter().any(|other| Arc::ptr_eq(other, link))
    }

    /// Number of sessions that wait for a channel number, this one included.
    fn starving_with(&self, link: &Arc<ClientLink>) -> usize {
        self.starving.len() + usize::from(!self.is_starving(link))
    }

    /// Makes a session wait for a channel number: it is notified when a channel is no longer in use.
    fn starve(&mut self, link: &Arc<ClientLink>) {
        if !self.is_starving(link) {
            self.starving.push(link.clone());
        }
    }

    fn used_numbers(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether a shared connection has a channel for one more client, at once or when a channel that is being closed
    /// becomes free.
    fn has_capacity(&self, max: u16) -> bool {
        self.resting.len() > 0
            || self.used_numbers() < usize::from(max)
            || self.closing() > self.starving.len()
    }

    /// A channel that was given back, preferably one without a pending reply: the broker may not process later methods of a
    /// channel while a queue has not answered an earlier one.
    fn settling_to_probe(&mut self) -> Option<(u16, &mut Settling)> {
        let of_settling = |(number, slot)| match slot {
            &mut Slot::Settling(ref mut settling) => Some((number, &mut **settling)),
            _ => None,
        };
        let settling = (1..=u16::MAX).zip(&mut self.slots).filter_map(of_settling);
        settling.min_by_key(|(_, settling)| settling.owes_reply())
    }

    /// The channels with overdue confirms, each with the time at which it was given back. None during an alarm, or while the
    /// connection may be stalled, because the broker reads nothing then.
    fn overdue(&self, now: Instant) -> impl Iterator<Item = (Instant, u16)> {
        let is_read = !self.is_stopped() && !self.stall.is_suspected();
        let slots = if is_read { &self.slots[..] } else { &[][..] };
        slots.iter().zip(1..=u16::MAX).filter_map(move |(slot, number)| match slot {
            Slot::Settling(settling) => Some((settling.overdue_since(self.answers_since, now)?, number)),
            _ => None,
        })
    }

    /// Number of channels that will be free when the broker confirms their close.
    fn closing(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Closing(_))).count()
    }

    fn unused_number(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            // Bounded by channel_max, a u16.
            self.slots.len() as u16
        })
    }
}

impl IdleChannels {
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.confirming.len()
    }

    /// Since when the longest resting channel has rested.
    pub(super) fn longest(&self) -> Option<Instant> {
        [&self.plain, &self.confirming]
            .into_iter()
            .filter_map(|of| of.front())
            .map(|rested| rested.since)
            .min()
    }

    fn of(&mut self, confirming: bool) -> &mut VecDeque<IdleChannel> {
        if confirming { &mut self.confirming } else { &mut self.plain }
    }

    /// Whether a channel rests that can serve a client in confirm mode, or outside it. A channel in confirm mode cannot
    /// leave it.
    fn has(&self, confirm: bool) -> bool {
        !self.plain.is_empty() || (confirm && !self.confirming.is_empty())
    }

    /// Takes the most recently used one, so that unneeded ones reach the idle timeout.
    fn take(&mut self, confirm: bool) -> Option<IdleChannel> {
        let confirming = if confirm { self.confirming.pop_back() } else { None };
        confirming.or_else(|| self.plain.pop_back())
    }

    fn take_any(&mut self) -> Option<IdleChannel> {
        self.plain.pop_front().or_else(|| self.confirming.pop_front())
    }

    /// Takes one that has rested for at least `timeout`.
    fn take_rested(&mut self, now: Instant, timeout: Duration) -> Option<IdleChannel> {
        let rested =
            |of: &VecDeque<IdleChannel>| of.front().is_some_and(|front| now >= front.since + timeout);
        [&mut self.plain, &mut self.confirming].into_iter().find(|of| rested(of))?.pop_front()
    }

    fn remove(&mut self, number: u16) -> bool {
        let before = self.len();
        self.plain.retain(|rested| rested.number != number);
        self.confirming.retain(|rested| rested.number != number);
        self.len() < before
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

#[cfg(test)]
mod overdue_tests;

/// The load, in leased channels, that is added for a connection without a role. It keeps unused connections free for
/// the other role when there are few.
const ROLE_CHANGE: usize = 4;
/// Bytes of backlog that count as much as a leased channel: about the amount that a busy publisher adds in one batch of reads.
const BACKLOG_OF_A_LEASE: usize = 16 * 1024;
