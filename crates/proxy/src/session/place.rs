//! Placing and moving channels, and what happens upstream.

use std::sync::Arc;
use std::time::Instant;

use amqp::frame::FrameKind;
use amqp::method::channel as channel_methods;
use amqp::{Fault, ReplyCode};

use super::channel::{Place, Route};
use super::{Life, Session};
use crate::frames::put_frame;
use crate::link::Event;
use crate::metrics::add;
use crate::refusal::Refusal;
use crate::upstream::{Placed, Upstream};

/// A connection that a session uses.
#[derive(Debug)]
pub(super) enum Leg {
    /// None was needed yet, or it is gone.
    None,
    /// An event will bring it.
    Opening,
    Ready(Arc<Upstream>),
}

impl Leg {
    pub(super) fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Ready(upstream) => Some(upstream),
            Self::None | Self::Opening => None,
        }
    }
}

impl Session {
    /// Sees to it that a channel is somewhere, or will be: on the client's own connection when it has to be.
    pub(super) fn find_place(&mut self, number: u16, needs_own: bool) -> Result<(), Fault> {
        // Whoever has a connection of its own has no reason to use another one for new channels.
        let has_own = self.suspect || !(self.seat.has_lane() || matches!(self.own, Leg::None));
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        match &channel.place {
            Place::Nowhere => channel.place = Place::Waiting { own: needs_own || has_own },
            Place::Waiting { own: false } if needs_own => channel.place = Place::Waiting { own: true },
            Place::Leaving { route, own: false } if needs_own => {
                channel.place = Place::Leaving { route: route.clone(), own: true };
                return Ok(());
            }
            Place::Placed(route) if needs_own && !route.own => {
                let route = route.clone();
                return self.leave(number, route, true);
            }
            _ => return Ok(()),
        }
        self.place(number)
    }

    /// Puts a waiting channel on its connection, if that is there.
    pub(super) fn place(&mut self, number: u16) -> Result<(), Fault> {
        // A connection may be full, or gone before its end was told; the next one may be, too, but not for ever.
        for _ in 0..PLACING_ATTEMPTS {
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            let Place::Waiting { own } = channel.place else { return Ok(()) };
            let confirm = channel.is_confirming();
            let Some(upstream) = self.connection(own, confirm)? else { return Ok(()) };
            let lease = self.next_lease;
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            match upstream.lease(channel.new_lease(&self.link, lease, number), confirm) {
                Placed::On(leased) => {
                    self.next_lease += 1;
                    self.held -= channel.held.len();
                    self.pool.counters().count_lease(leased.fresh);
                    let route = Route { upstream, channel: leased.channel, own };
                    channel.start(&mut self.output, route, leased, lease)?;
                    if channel.closing {
                        self.close_placed(number);
                    }
                    return Ok(());
                }
                // An event will tell.
                Placed::Soon => return Ok(()),
                Placed::Full if own => {
                    let max = upstream.channel_max();
                    let text = format!(
                        "number of channels opened ({max}) has reached the upstream's channel_max ({max})"
                    );
                    return Err(Fault::new(ReplyCode::NotAllowed, text));
                }
                Placed::Full | Placed::Gone => *self.leg(own) = Leg::None,
            }
        }
        Err(Fault::new(ReplyCode::ResourceError, "no upstream channel is free"))
    }

    fn leg(&mut self, own: bool) -> &mut Leg {
        if own { &mut self.own } else { &mut self.shared }
    }

    /// The connection for shared or own channels; when there is none it is asked for, and an event will tell.
    fn connection(&mut self, own: bool, confirm: bool) -> Result<Option<Arc<Upstream>>, Fault> {
        match self.leg(own) {
            Leg::Ready(upstream) => return Ok(Some(upstream.clone())),
            Leg::Opening => return Ok(None),
            Leg::None => {}
        }
        let is_torn = self.pool.topologies().is_torn(&self.virtual_host, self.link.declarer_id());
        let found = if is_torn || !self.pause.is_zero() {
            None
        } else if own {
            self.pool.find_own(&self.credentials, &self.virtual_host, &self.link, true)
        } else {
            self.pool.find_shared(&self.credentials, &self.virtual_host, confirm, true)
        };
        if let Some(upstream) = found
            && self.attach(&upstream)
        {
            *self.leg(own) = Leg::Ready(upstream.clone());
            return Ok(Some(upstream));
        }
        *self.leg(own) = Leg::Opening;
        let introduction = own.then(|| self.introduction.clone());
        let (link, credentials) = (self.link.clone(), self.credentials.clone());
        self.pool.open_for(link, credentials, self.virtual_host.clone(), introduction, self.pause);
        Ok(None)
    }

    fn attach(&mut self, upstream: &Arc<Upstream>) -> bool {
        if self.attached.iter().any(|other| Arc::ptr_eq(other, upstream)) {
            return upstream.is_open();
        }
        let attached = upstream.attach(&self.link);
        if attached {
            self.attached.push(upstream.clone());
        }
        attached
    }

    /// Starts a channel's move to another connection. Nothing goes out on it until the old upstream channel is
    /// closed, so that nothing overtakes what was published; and that waits for its confirms.
    pub(super) fn leave(&mut self, number: u16, route: Route, own: bool) -> Result<(), Fault> {
        self.output.hand_over();
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if route.upstream.await_confirms(route.channel, channel.unconfirmed_up_to()) {
            route.upstream.close_channel(route.channel);
        }
        channel.place = Place::Leaving { route, own };
        let confirm = channel.is_confirming();
        self.connection(own, confirm).map(drop)
    }

    /// Acts on all events, whatever one of them leads to: none comes twice.
    pub(super) fn handle_events(&mut self) -> Result<(), Fault> {
        let mut result = Ok(());
        for event in self.link.take_events() {
            let outcome = self.handle_event(event);
            result = result.and(outcome);
        }
        let granted = self.take_grant();
        let left = self.leave_lane();
        self.go_on_closing();
        result.and(granted).and(left)
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::ChannelClosed { channel, lease, payload, answered } => {
                self.channel_closed(channel, lease, &payload, answered);
            }
            Event::CloseOk { channel, lease, last_queue } => {
                return self.close_ok(channel, lease, last_queue);
            }
            Event::ChannelFree => return self.place_waiting(true),
            Event::Confirmed { channel, lease } => {
                if let Some(channel) = self.channels.get_mut(channel).filter(|channel| channel.lease == lease)
                    && let Place::Leaving { route, .. } = &channel.place
                {
                    route.upstream.close_channel(route.channel);
                }
            }
            Event::Ready { own, result } => return self.ready(own, result),
            Event::SecretVerified { number, result } => return self.secret_verified(number, result),
            Event::BrokenOff { upstream } if self.life == Life::Open => {
                let text = "upstream connection lost in the middle of a message for the client";
                tracing::debug!(upstream, text);
                return Err(Fault::new(ReplyCode::ConnectionForced, text));
            }
            Event::BrokenOff { .. } => {}
            Event::NotRestored { fault } => return Err(fault.on_connection()),
            Event::Lost { upstream, fault } => return self.lost(upstream, fault),
            Event::Returned => {
                if self.life == Life::Returning {
                    self.life = Life::Closed;
                    // It may be somebody else's by now.
                    self.own = Leg::None;
                }
            }
            Event::DeliveriesOverflowed { channel, lease } => return self.overflowed(channel, lease),
            Event::Unproven { channel, lease } => {
                if let Some(channel) = self.channels.get_mut(channel).filter(|channel| channel.lease == lease)
                {
                    channel.prove(&mut self.output);
                }
            }
            Event::NoRoom => return self.find_room(),
            Event::GiveWay => return self.give_way(Instant::now()),
            Event::Overflowed => {
                return Err(Fault::new(ReplyCode::ResourceError, "client does not read what it asked for"));
            }
        }
        Ok(())
    }

    /// The client does not take its deliveries fast enough for a shared connection: its consumers go on on its own one,
    /// where the broker waits for it. What it has not acknowledged is delivered again there.
    fn overflowed(&mut self, number: u16, lease: u64) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number).filter(|channel| channel.lease == lease) else {
            return Ok(());
        };
        let Place::Placed(route) = &channel.place else { return Ok(()) };
        if channel.closing || route.own {
            return Ok(());
        }
        let route = route.clone();
        add(&self.pool.counters().consumers_moved, 1);
        self.keep_own();
        self.leave(number, route, true)
    }

    /// The broker closed a channel: the client hears it in the broker's words.
    fn channel_closed(&mut self, number: u16, lease: u64, payload: &[u8], answered: bool) {
        let Some(channel) = self.channels.get_mut(number).filter(|channel| channel.lease == lease) else {
            // The client closed it meanwhile; the broker has had, or will have, its close-ok by that.
            return;
        };
        if !answered && let Some(route) = channel.route().cloned() {
            // The close-ok goes behind everything that was on its way.
            self.output.hand_over();
            // Nothing goes out again on a connection that has ended: the broker has thrown away what came behind.
            let _ = route.upstream.release(route.channel, channel.usage());
        }
        let Some(channel) = self.channels.get_mut(number) else { return };
        self.staged -= channel.partial.len();
        self.held -= channel.held.len();
        if channel.closing {
            self.finish_channel(number);
        } else {
            self.channels.start_closing(number);
            self.link.outbox.append(|buf| put_frame(buf.tail(), FrameKind::Method, number, payload, 0));
        }
    }

    /// The broker confirmed a close: the channel is gone, or moves on.
    fn close_ok(&mut self, number: u16, lease: u64, last_queue: Option<Box<str>>) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number).filter(|channel| channel.lease == lease) else {
            return Ok(());
        };
        match channel.place {
            Place::Leaving { .. } if channel.closing && channel.held.is_empty() => {
                self.finish_channel(number);
                Ok(())
            }
            Place::Leaving { own, .. } => {
                channel.left(last_queue, own || self.suspect);
                self.place(number)
            }
            _ => {
                self.finish_channel(number);
                Ok(())
            }
        }
    }

    /// Forgets a channel that the client has closed, and tells it so.
    pub(super) fn finish_channel(&mut self, number: u16) {
        self.channels.remove(number);
        if self.life == Life::Open {
            self.answer(number, channel_methods::CloseOk {});
        }
    }

    fn ready(&mut self, own: bool, result: Result<Arc<Upstream>, Refusal>) -> Result<(), Fault> {
        let upstream = result.map_err(Refusal::into_fault)?;
        // The client may have another secret by now.
        let is_ours = own || *upstream.credentials == *self.credentials;
        let attached = is_ours && self.attach(&upstream);
        *self.leg(own) = if attached { Leg::Ready(upstream) } else { Leg::None };
        if is_ours && !attached {
            let text = "upstream connection lost at once";
            self.judge_progress(&[], &Fault::new(ReplyCode::ConnectionForced, text))?;
        }
        self.place_waiting(own)
    }

    /// Places the channels that wait for a connection, or for a channel number on it.
    fn place_waiting(&mut self, own: bool) -> Result<(), Fault> {
        let waiting = |place: &Place| matches!(place, Place::Waiting { own: wanted } if *wanted == own);
        let numbers: Vec<u16> = self
            .channels
            .iter_mut()
            .filter(|(_, channel)| waiting(&channel.place))
            .map(|(number, _)| number)
            .collect();
        numbers.into_iter().try_for_each(|number| self.place(number))
    }
}

/// How many connections are tried for a channel at once. More than one is needed only when one ends at that moment.
pub(super) const PLACING_ATTEMPTS: usize = 4;
