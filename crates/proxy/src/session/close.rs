//! Closing channels and sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use amqp::Fault;
use amqp::method::channel as channel_methods;

use super::channel::{Channel, FrameTurn};
use super::output::Output;
use super::placement::UpstreamLink;
use super::side::{Route, Side, SidePlacement};
use super::{Life, ProxySession};
use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::upstream::Role;

impl ProxySession {
    /// Handles the client's close of its connection. Returns true if it can be answered now, and false if
    /// something has to be closed at the broker first, such as a consumer or an exclusive queue; then answer
    /// when [`Self::is_closed`] says so, after a nudge.
    pub fn close(&mut self, now: Instant) -> bool {
        self.output.now = now;
        if self.life == Life::Open {
            self.life = Life::Closing;
            let numbers: Vec<u16> = self.channels.iter_mut().map(|(number, _)| number).collect();
            for number in numbers {
                self.close_channel(number);
            }
            self.flush(now);
            self.continue_close();
        }
        self.is_closed()
    }

    /// Whether nothing of the client is left at the broker, after [`Self::close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.life, Life::Closed | Life::Ended)
    }

    /// Whether frames of the client wait for an upstream, after [`Self::close`].
    pub fn has_waiting_frames(&self) -> bool {
        self.queued > 0
    }

    /// Whether [`Self::end`] keeps the frames that wait: the limit for departed clients is not reached.
    pub fn keeps_waiting_frames(&self) -> bool {
        self.queued == 0 || !self.pool.departed_is_full()
    }

    /// Called when the client is gone, or its close was answered: hands over the messages that are still held, and
    /// closes its channels.
    pub fn end(&mut self, now: Instant) {
        if self.life == Life::Ended {
            return;
        }
        let returning = self.life == Life::Returning;
        self.life = Life::Ended;
        self.staged = 0;
        self.queued = 0;
        self.flush(now);
        self.budget.leave(&self.link);
        let mut dirty = self.exclusive || self.rekeyed;
        let mut channels: Vec<Channel> = self.channels.drain().map(|(_, channel)| *channel).collect();
        for channel in &channels {
            dirty |= channel.has_partial_message();
        }
        for side in channels.iter_mut().flat_map(Channel::sides_mut) {
            if self.pool.departed_is_full() {
                self.pool.counters().count_lost(&side.take_remains());
            }
            match side.route() {
                // Closing the connection closes its channels; a channel in the middle of a message cannot be
                // closed.
                Some(route) if route.own && dirty => {}
                // Frames lost with the connection are handled below.
                Some(route) => _ = route.upstream.release(route.channel, side.usage(), now),
                None => {}
            }
        }
        self.output.count(self.pool.counters());
        for upstream in self.attached.drain(..) {
            upstream.detach(&self.link);
        }
        let mut own = std::mem::replace(&mut self.own, UpstreamLink::None);
        for event in self.link.leave() {
            match event {
                Event::Ready { own: true, result: Ok(upstream), .. } => own = UpstreamLink::Ready(upstream),
                Event::Lost { is_suspect, .. } => self.suspect |= is_suspect,
                _ => {}
            }
        }
        if let UpstreamLink::Ready(upstream) = own
            && !returning
        {
            upstream.give_back(dirty, now);
        }
        self.hand_over_later(channels);
        if let Some(declarer) = self.link.declarer() {
            declarer.leave();
        }
        self.pool.counters().clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Like [`Self::end`], for a client that republishes unconfirmed messages itself: none of its data is kept.
    pub fn discard(&mut self, now: Instant) {
        for (_, channel) in self.channels.iter_mut() {
            channel.in_line.clear();
            for side in channel.sides_mut() {
                side.queued.clear();
                side.take_remains();
            }
        }
        self.end(now);
    }

    /// Closes a channel for a fault of the client that the broker has not seen.
    pub(super) fn fail_channel(&mut self, number: u16, fault: &Fault) {
        self.output.hand_over();
        let Some(channel) = self.channels.start_closing(number) else { return };
        self.staged -= channel.staged();
        self.queued -= channel.queued();
        for side in channel.sides() {
            if let Some(route) = side.route() {
                note_closed(&mut self.output, &self.link, side, route);
                // Frames lost with the connection are handled below.
                _ = route.upstream.release(route.channel, side.usage(), self.output.now);
            }
        }
        self.hand_over_later(vec![*channel]);
        let close = channel_methods::Close {
            reply_code: fault.code.code(),
            reply_text: &fault.reply_text(),
            class_id: fault.method.0,
            method_id: fault.method.1,
        };
        self.answer(number, close);
    }

    /// The client closes a channel, or its connection.
    pub(super) fn close_channel(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(number) else { return };
        self.staged -= channel.begin_closing();
        self.close_sides(number);
    }

    /// Takes the next step of closing a channel for its client, and answers the close when both sides are gone.
    pub(super) fn close_sides(&mut self, number: u16) {
        self.output.hand_over();
        let Some(channel) = self.channels.get_mut(number) else { return };
        // Held frames have to be sent first. A side that is moving is being closed already, and continues elsewhere afterwards.
        let is_leaving = |side: &Side| matches!(side.place, SidePlacement::Leaving { .. });
        if channel.queued() > 0 || channel.sides().any(is_leaving) {
            return;
        }
        // A close may delete a queue, and requeues messages: like any method it waits for earlier publishes.
        let closes = channel.general.is_placed() && channel.general.touched;
        if closes && !channel.is_own() && !channel.poll_may_pass(FrameTurn::Method, &mut self.output) {
            self.output.hand_over();
            return self.line_up(number);
        }
        for role in [Role::General, Role::Publishing] {
            self.close_side(number, role);
        }
        if self.channels.get_mut(number).is_some_and(|channel| channel.is_unplaced()) {
            self.finish_channel(number);
        }
    }

    /// Closes a side at the broker. A side that only published needs no reply (P6), because its frames in flight are
    /// kept (P11), unless too many bytes of departed clients are kept already, or a mandatory message may still be
    /// returned, which brokers do in front of close-ok. After any other use, close-ok has to be awaited. Only then are,
    /// for example, unacknowledged messages back in their queues, or is a deleted exchange gone, which the next client
    /// may declare again. Pending replies arrive before close-ok.
    fn close_side(&mut self, number: u16, role: Role) {
        let Some(channel) = self.channels.get_mut(number) else { return };
        let half_sent = channel.has_partial_message();
        let Some(side) = channel.side_mut(role) else { return };
        let route = match &side.place {
            SidePlacement::Placed(route) => route.clone(),
            // The answer is still to come.
            SidePlacement::Closing(_) => return,
            SidePlacement::Unplaced | SidePlacement::Waiting { .. } | SidePlacement::Leaving { .. } => {
                side.place = SidePlacement::Unplaced;
                return;
            }
        };
        let usage = side.usage();
        let must_wait = usage.touched
            || side.has_methods_under_way()
            || side.may_return()
            || (side.has_under_way() && self.pool.departed_is_full());
        if half_sent {
            // Only `connection.close` can still close this channel. This is reached only when the client closes its connection.
            self.exclusive = true;
            side.place = SidePlacement::Unplaced;
        } else if must_wait {
            route.upstream.close_channel(route.channel);
            side.place = SidePlacement::Closing(route);
        } else if route.upstream.release(route.channel, usage, self.output.now) {
            add(&self.pool.counters().round_trips_saved, 1);
            note_closed(&mut self.output, &self.link, side, &route);
            side.place = SidePlacement::Unplaced;
        }
        // Otherwise the connection is lost; its frames in flight are recovered when that event arrives.
    }

    /// Takes the next step of [`Self::close`], when there is one.
    pub(super) fn continue_close(&mut self) {
        if self.life != Life::Closing || self.channels.iter_mut().next().is_some() {
            return;
        }
        match std::mem::replace(&mut self.own, UpstreamLink::None) {
            UpstreamLink::Ready(upstream) => {
                let close = self.exclusive || self.rekeyed;
                // Kept, so that the event of its end is recognised.
                self.own = UpstreamLink::Ready(upstream.clone());
                self.life = Life::Returning;
                self.attached.retain(|other| !Arc::ptr_eq(other, &upstream));
                upstream.detach(&self.link);
                upstream.give_back(close, self.output.now);
            }
            // A connection that is still being opened was never used.
            upstream_link => {
                self.own = upstream_link;
                self.life = Life::Closed;
            }
        }
    }
}

/// Records a closed channel whose messages the broker may not have processed yet.
pub(super) fn note_closed(output: &mut Output, link: &Arc<ClientLink>, side: &Side, route: &Route) {
    if side.has_under_way() {
        output.closed.add(link, &route.upstream, route.channel, side.lease);
    }
}
