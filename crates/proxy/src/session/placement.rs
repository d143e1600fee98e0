//! Placing and moving channels, and handling upstream events.

use std::sync::Arc;
use std::time::Duration;

use amqp::frame::FrameKind;
use amqp::method::channel as channel_methods;
use amqp::{Fault, Method, ReplyCode};

use super::close::note_closed;
use super::side::{Route, Side, SidePlacement};
use super::{Life, ProxySession};
use crate::frames::put_frame;
use crate::link::Event;
use crate::metrics::add;
use crate::pool::PlacementRequest;
use crate::pool::background::remind;
use crate::refusal::Refusal;
use crate::upstream::{Placed, Role, Upstream};

/// One of a session's upstream links.
#[derive(Debug)]
pub(super) enum UpstreamLink {
    /// Not needed yet, or gone.
    None,
    /// Being opened; an event follows.
    Opening,
    Ready(Arc<Upstream>),
}

impl UpstreamLink {
    pub(super) fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Ready(upstream) => Some(upstream),
            Self::None | Self::Opening => None,
        }
    }
}

impl ProxySession {
    /// Makes sure that a side of a channel is placed, or will be; moves the whole channel to the client's own
    /// connection if it has to be there.
    pub(super) fn ensure_placed(&mut self, number: u16, needs_own: bool, role: Role) -> Result<(), Fault> {
        // A client with its own connection uses it for new channels as well, unless that connection is only a stream.
        let has_own = self.suspect || !(self.budget.has_stream() || matches!(self.own, UpstreamLink::None));
        let suspect = self.suspect;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if channel.is_own() {
            return Ok(());
        }
        let is_unplaced = channel.side(role).is_none_or(Side::is_unplaced);
        if needs_own || (is_unplaced && (suspect || (has_own && channel.is_unplaced()))) {
            return self.move_to_dedicated(number);
        }
        if !is_unplaced {
            return Ok(());
        }
        channel.side_for(role).place = SidePlacement::Waiting { own: false, resuming: false };
        self.place(number, role)
    }

    /// Moves a channel to the client's own connection, both its sides.
    pub(super) fn move_to_dedicated(&mut self, number: u16) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let leaving = match &channel.general.place {
            SidePlacement::Unplaced | SidePlacement::Waiting { .. } => {
                let resuming = channel.general.is_resuming();
                channel.general.place = SidePlacement::Waiting { own: true, resuming };
                false
            }
            SidePlacement::Leaving { route, close_sent, .. } => {
                let (route, close_sent) = (route.clone(), *close_sent);
                channel.general.place = SidePlacement::Leaving { route, own: true, close_sent };
                false
            }
            SidePlacement::Closing(route) => {
                let route = route.clone();
                channel.general.place = SidePlacement::Leaving { route, own: true, close_sent: true };
                false
            }
            SidePlacement::Placed(route) => !route.own,
        };
        // Frames that waited for either side are sent on the own connection, in order.
        let in_line = std::mem::take(&mut channel.in_line);
        if leaving {
            self.leave(number, Role::General, true)?;
        }
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        channel.general.queued.extend_from_slice(&in_line);
        if let Some(publishing) = &mut channel.publishing {
            match &publishing.place {
                SidePlacement::Placed(_) if publishing.under_way().is_some() => {
                    self.leave(number, Role::Publishing, true)?;
                }
                SidePlacement::Placed(route) => {
                    // There is nothing to wait for, so a broker that does not read does not delay the move.
                    let route = route.clone();
                    self.output.hand_over();
                    let now = self.output.now;
                    if let Some(publishing) = self.side(number, Role::Publishing)
                        && route.upstream.release(route.channel, publishing.usage(), now)
                    {
                        publishing.left(None, false);
                        publishing.place = SidePlacement::Unplaced;
                    }
                }
                SidePlacement::Closing(route) => {
                    let route = route.clone();
                    publishing.place = SidePlacement::Leaving { route, own: true, close_sent: true };
                }
                SidePlacement::Unplaced | SidePlacement::Waiting { .. } | SidePlacement::Leaving { .. } => {}
            }
        }
        self.place(number, Role::General)
    }

    /// A side of a channel.
    pub(super) fn side(&mut self, number: u16, role: Role) -> Option<&mut Side> {
        self.channels.get_mut(number)?.side_mut(role)
    }

    /// Places a waiting side on its connection, if that is ready.
    pub(super) fn place(&mut self, number: u16, role: Role) -> Result<(), Fault> {
        if self.is_exporting {
            return Ok(());
        }
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        // On the own connection, the general side carries the whole channel, once the other side has left.
        let role = if channel.is_own() { Role::General } else { role };
        if channel.is_own() && channel.publishing.as_ref().is_some_and(|side| side.route().is_some()) {
            return Ok(());
        }
        if role == Role::Publishing && self.turn_publishing(number) {
            return Ok(());
        }
        // A connection may be full, or have ended before its end was reported. The next one may be, too, so the
        // attempts are bounded.
        for _ in 0..PLACING_ATTEMPTS {
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            let Some(side) = channel.side(role) else { return Ok(()) };
            let SidePlacement::Waiting { own, .. } = side.place else { return Ok(()) };
            if side.paused_since.is_some() {
                return Ok(());
            }
            let confirm = if own { channel.is_confirming() } else { side.is_confirming() };
            let Some(upstream) = self.connection(own, role, confirm)? else { return Ok(()) };
            let lease = self.next_lease;
            let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
            if own {
                channel.merge_sides();
            }
            let Some(side) = channel.side_mut(role) else { return Ok(()) };
            let new_lease = side.new_lease(&self.link, lease, number, self.output.now);
            match self.pool.lease(&upstream, new_lease, confirm, role)? {
                Placed::On(leased) => {
                    self.next_lease += 1;
                    let before = side.queued.len();
                    self.pool.counters().count_lease(leased.fresh);
                    let route = Route { upstream, channel: leased.channel, own };
                    let result = side.start(&mut self.output, route, leased, lease);
                    self.queued -= before - side.queued.len();
                    result?;
                    if side.is_deferred() || channel.is_closing() {
                        // Deferred, because the frame for which the side was placed may not be queued yet.
                        self.line_up(number);
                    }
                    return Ok(());
                }
                // An event follows.
                Placed::Soon => return Ok(()),
                Placed::Limited => {
                    self.schedule_retry_in_session();
                    return Ok(());
                }
                Placed::Full if own => {
                    let max = upstream.channel_max();
                    let text = format!(
                        "number of channels opened ({max}) has reached the upstream's channel_max ({max})"
                    );
                    return Err(Fault::new(ReplyCode::NotAllowed, text));
                }
                Placed::Full | Placed::Gone => *self.upstream_link(own, role) = UpstreamLink::None,
            }
        }
        Err(Fault::new(ReplyCode::ResourceError, "no upstream channel is free"))
    }

    /// Lets a channel that has only declared so far, and has nothing pending, publish in place, if no other
    /// channel uses the connection and there is no connection for publishing yet: so the first client needs
    /// no second handshake.
    fn turn_publishing(&mut self, number: u16) -> bool {
        let Some(channel) = self.channels.get_mut(number) else { return false };
        let Some(publishing) = &mut channel.publishing else { return false };
        let is_new = publishing.queued.is_empty()
            && matches!(publishing.place, SidePlacement::Waiting { own: false, .. });
        if !is_new || !channel.general.is_pristine() || !matches!(self.publishing, UpstreamLink::None) {
            return false;
        }
        let confirm = publishing.is_confirming();
        let (credentials, virtual_host) = (&self.credentials, &*self.virtual_host);
        let sought = PlacementRequest { confirm, role: Role::Publishing, near: self.link.home() };
        let found = self.pool.find_shared(credentials, virtual_host, sought, true);
        if found.is_some() {
            return false;
        }
        let Some(general) = channel.general.turn_publishing(publishing, &mut self.output) else {
            return false;
        };
        **publishing = std::mem::replace(&mut channel.general, general);
        if let Some(route) = publishing.route() {
            let upstream = route.upstream.clone();
            // Later channels of the other role go elsewhere.
            if self.general.upstream().is_some_and(|general| Arc::ptr_eq(general, &upstream)) {
                self.general = UpstreamLink::None;
            }
            self.publishing = UpstreamLink::Ready(upstream);
        }
        true
    }

    fn upstream_link(&mut self, own: bool, role: Role) -> &mut UpstreamLink {
        match role {
            _ if own => &mut self.own,
            Role::General => &mut self.general,
            Role::Publishing => &mut self.publishing,
        }
    }

    /// The connection for shared or own channels; if there is none it is requested, and an event follows.
    fn connection(&mut self, own: bool, role: Role, confirm: bool) -> Result<Option<Arc<Upstream>>, Fault> {
        match self.upstream_link(own, role) {
            UpstreamLink::Ready(upstream) if own || !upstream.is_replaced() => {
                return Ok(Some(upstream.clone()));
            }
            UpstreamLink::Opening => return Ok(None),
            UpstreamLink::Ready(_) | UpstreamLink::None => {}
        }
        let is_torn = self.pool.topologies().is_torn(&self.virtual_host, self.link.declarer_id());
        let found = if is_torn || !self.pause.is_zero() {
            None
        } else if own {
            self.pool.find_own(&self.credentials, &self.virtual_host, &self.link, true)
        } else {
            let sought = PlacementRequest { confirm, role, near: self.link.home() };
            self.pool.find_shared(&self.credentials, &self.virtual_host, sought, true)
        };
        if let Some(upstream) = found
            && self.attach(&upstream)
        {
            *self.upstream_link(own, role) = UpstreamLink::Ready(upstream.clone());
            return Ok(Some(upstream));
        }
        *self.upstream_link(own, role) = UpstreamLink::Opening;
        let announced = own.then(|| self.announced.clone());
        let (link, credentials) = (self.link.clone(), self.credentials.clone());
        let virtual_host = self.virtual_host.clone();
        self.pool.open_for(link, credentials, virtual_host, role, announced, self.pause);
        Ok(None)
    }

    fn attach(&mut self, upstream: &Arc<Upstream>) -> bool {
        if self.attached.iter().any(|other| Arc::ptr_eq(other, upstream)) {
            return upstream.is_open();
        }
        let attached = upstream.attach(&self.link, &self.credentials);
        if attached {
            let is_at =
                |node| self.attached.iter().any(|other| other.endpoint.socket == node && other.is_open());
            if !self.link.home().is_some_and(is_at) {
                self.link.set_home(upstream.endpoint.socket);
            }
            self.attached.push(upstream.clone());
        }
        attached
    }

    /// Starts a side's move to another connection. No frame of it is sent until the old upstream channel is closed, so
    /// that no frame overtakes earlier publishes; the close waits for their confirms, and for late answers.
    pub(super) fn leave(&mut self, number: u16, role: Role, own: bool) -> Result<(), Fault> {
        let Some(was_own) = self.leave_side(number, role, own) else { return Ok(()) };
        let Some(side) = self.side(number, role) else { return Ok(()) };
        if was_own && !own && !side.touched {
            // It has only published, and is placed with its next message: most likely on an existing connection,
            // perhaps the one that is about to be given back.
            return Ok(());
        }
        let confirm = side.is_confirming();
        self.connection(own, role, confirm).map(drop)
    }

    /// Like [`Self::leave`], without requesting the next connection. Returns whether the side was on the client's own
    /// connection, or `None` if it was not placed.
    pub(super) fn leave_side(&mut self, number: u16, role: Role, own: bool) -> Option<bool> {
        self.output.hand_over();
        let side = self.side(number, role)?;
        let SidePlacement::Placed(route) = &side.place else { return None };
        let route = route.clone();
        let was_own = route.own;
        side.place = SidePlacement::Leaving { route, own, close_sent: false };
        let before = side.queued.len();
        side.drop_stale();
        self.queued -= before - side.queued.len();
        self.close_left(number);
        Some(was_own)
    }

    /// Closes the upstream channels that are being left and have no pending confirms or late answers.
    pub(super) fn close_left(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(number) else { return };
        for side in channel.sides_mut().filter(|side| side.may_be_left()) {
            if let SidePlacement::Leaving { route, close_sent, .. } = &mut side.place {
                *close_sent = true;
                route.upstream.close_channel(route.channel);
            }
        }
        if channel.must_close_old() {
            self.line_up(number);
        }
    }

    /// Handles all events, even if one of them fails: no event is repeated.
    pub(super) fn handle_events(&mut self) -> Result<(), Fault> {
        let mut result = Ok(());
        for event in self.link.take_events() {
            let outcome = self.handle_event(event);
            result = result.and(outcome);
        }
        self.leave_former_connections();
        let gone_on = self.go_on();
        let granted = self.take_grant();
        let left = self.leave_stream();
        self.continue_close();
        result.and(gone_on).and(granted).and(left)
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::ChannelClosed { channel, lease, payload, answered } => {
                return self.channel_closed(channel, lease, &payload, answered);
            }
            Event::CloseOk { channel, lease, last_queue } => {
                return self.close_ok(channel, lease, last_queue);
            }
            Event::Retry => return self.retry(),
            Event::ChannelFree => return self.place_all_waiting(),
            // Waiting frames, and channels that are being left, are checked after all events.
            Event::Confirmed | Event::Answered => {}
            Event::Ready { own, role, result } => return self.ready(own, role, result),
            Event::SecretVerified { number, result } => return self.secret_verified(number, result),
            Event::BrokenOff { upstream } if self.life == Life::Open => {
                let text = "upstream connection lost in the middle of a message for the client";
                tracing::debug!(upstream, "{text}");
                return Err(Fault::new(ReplyCode::ConnectionForced, text));
            }
            Event::BrokenOff { .. } => {}
            Event::NotRestored { fault } => return Err(fault.on_connection()),
            Event::Lost { upstream, fault, is_suspect } => {
                self.handle_deferred_closes(upstream)?;
                self.lost(upstream, fault, is_suspect)?;
                // A channel may have waited for a channel number on that connection.
                return self.place_all_waiting();
            }
            Event::Returned => {
                if self.life == Life::Returning {
                    self.life = Life::Closed;
                    // The connection may belong to another client by now.
                    self.own = UpstreamLink::None;
                }
            }
            Event::DeliveriesOverflowed { channel, lease } => return self.overflowed(channel, lease),
            Event::Unproven { channel, lease } => {
                if let Some(channel) = self.channels.get_mut(channel) {
                    channel.prove_lease(lease, &mut self.output);
                }
            }
            Event::AnswerWanted { channel, lease } => {
                if let Some(channel) = self.channels.get_mut(channel) {
                    channel.request_proof(lease, &mut self.output);
                }
            }
            Event::NoCapacity => return self.wait_for_staging(),
            Event::GiveWay => return self.give_way(self.output.now),
        }
        Ok(())
    }

    /// The client does not take its deliveries fast enough for a shared connection: its consumers move to its
    /// own one, where the broker waits for it. Unacknowledged messages are delivered again there.
    fn overflowed(&mut self, number: u16, lease: u64) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let is_present = channel.role_of(lease) == Some(Role::General) && channel.general.is_placed();
        if !is_present || channel.is_closing() || channel.is_own() {
            return Ok(());
        }
        add(&self.pool.counters().channels_moved, 1);
        self.keep_own();
        self.move_to_dedicated(number)
    }

    /// The broker closed an upstream channel: the client receives the broker's close, and its other side is closed.
    fn channel_closed(
        &mut self,
        number: u16,
        lease: u64,
        payload: &[u8],
        answered: bool,
    ) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let Some(role) = channel.role_of(lease) else {
            // The client closed the channel meanwhile, so the broker has received, or will receive, its close-ok.
            return Ok(());
        };
        if !answered && channel.defer_close(payload) {
            return Ok(());
        }
        if !answered && let Some(fault) = self.retryable_refusal(number, role, payload) {
            return self.retry_consumers(number, role, &fault);
        }
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let (queued, staged) = (channel.queued(), channel.staged());
        // The close-ok is sent after all frames that were on their way.
        self.output.hand_over();
        if answered && let Some(side) = self.side(number, role) {
            side.place = SidePlacement::Unplaced;
        }
        self.staged -= staged;
        self.queued -= queued;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if let Some(side) = channel.side_mut(role)
            && let Some(route) = side.route().cloned()
        {
            // The result does not matter: the broker has discarded the frames after the fault, so nothing is replayed
            // even if the connection has ended.
            let _ = route.upstream.release(route.channel, side.usage(), self.output.now);
            side.place = SidePlacement::Unplaced;
        }
        channel.in_line = Vec::new();
        channel.sides_mut().for_each(|side| side.queued = Vec::new());
        if channel.is_closing() {
            // The client's requests on the other side continue.
            self.close_sides(number);
            return Ok(());
        }
        for side in channel.sides_mut() {
            let Some(route) = side.route().cloned() else { continue };
            note_closed(&mut self.output, &self.link, side, &route);
            if !route.upstream.release(route.channel, side.usage(), self.output.now) {
                // The remaining frames are not replayed.
                drop(side.take_remains());
            }
        }
        self.channels.start_closing(number);
        self.link.outbox.append(|buf| put_frame(buf.tail(), FrameKind::Method, number, payload, 0));
        Ok(())
    }

    /// Handles the broker's close of a channel that was deferred ([`super::channel::Channel::defer_close`]), if there is one.
    pub(super) fn handle_deferred_close(&mut self, number: u16) -> Result<(), Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let lease = channel.general.lease;
        let Some(close) = channel.take_deferred_close() else { return Ok(()) };
        self.channel_closed(number, lease, &close, false)
    }

    /// Handles those on a connection that is lost: the rest of their messages has nowhere to go.
    fn handle_deferred_closes(&mut self, id: u64) -> Result<(), Fault> {
        self.sides_at(id).into_iter().try_for_each(|(number, _)| self.handle_deferred_close(number))
    }

    /// The broker's refusal of a recreated consumer, if a retry may succeed: without the offset that the pool added, or later.
    fn retryable_refusal(&mut self, number: u16, role: Role, payload: &[u8]) -> Option<Fault> {
        let now = self.output.now;
        let Ok(Method::ChannelClose(close)) = Method::decode(payload) else { return None };
        let side = self.side(number, role)?;
        side.paused_since = side.note_queue_starting(&close, now).then_some(now);
        let is_retryable = side.paused_since.is_some() || side.was_no_stream(close.reply_text);
        is_retryable.then(|| Fault::new(ReplyCode::PreconditionFailed, close.reply_text.to_owned()))
    }

    /// Continues a side of a channel on another upstream channel, after [`Self::retryable_refusal`].
    fn retry_consumers(&mut self, number: u16, role: Role, fault: &Fault) -> Result<(), Fault> {
        // The close-ok is sent after all frames that were on their way.
        self.output.hand_over();
        let now = self.output.now;
        let Some(side) = self.side(number, role) else { return Ok(()) };
        let (own, usage) = (side.is_own(), side.usage());
        if let Some(route) = side.route().cloned() {
            // If the connection has ended, the frames in flight are still in the ledger.
            let _ = route.upstream.release(route.channel, usage, now);
        }
        side.place = SidePlacement::Waiting { own, resuming: true };
        let (is_paused, remains) = (side.paused_since.is_some(), side.take_remains());
        if is_paused {
            self.schedule_retry_in_session();
        }
        self.resume(number, role, remains, fault)
    }

    /// One timer serves the whole session, so that the retries of many sides do not add up.
    fn schedule_retry_in_session(&mut self) {
        if !std::mem::replace(&mut self.retry_pending, true) {
            remind(&self.link, RETRY_PAUSE);
        }
    }

    /// Places the waiting sides, except those that were refused less than [`RETRY_PAUSE`] ago because their queues had
    /// not started.
    fn retry(&mut self) -> Result<(), Fault> {
        self.retry_pending = false;
        let now = self.output.now;
        let mut is_any_paused = false;
        for (_, channel) in self.channels.iter_mut() {
            for side in channel.sides_mut() {
                side.paused_since =
                    side.paused_since.filter(|since| now.saturating_duration_since(*since) < RETRY_PAUSE);
                is_any_paused |= side.paused_since.is_some();
            }
        }
        if is_any_paused {
            self.schedule_retry_in_session();
        }
        self.place_all_waiting()
    }

    /// The broker confirmed a close: a side is gone, or moves on.
    fn close_ok(&mut self, number: u16, lease: u64, last_queue: Option<Box<str>>) -> Result<(), Fault> {
        let suspect = self.suspect;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let Some(role) = channel.role_of(lease) else { return Ok(()) };
        let is_over = channel.is_closing() && channel.queued() == 0;
        let Some(side) = channel.side_mut(role) else { return Ok(()) };
        let SidePlacement::Leaving { route: Route { own: was_own, .. }, own, .. } = side.place else {
            side.place = SidePlacement::Unplaced;
            self.close_sides(number);
            return Ok(());
        };
        if is_over {
            side.place = SidePlacement::Unplaced;
            self.close_sides(number);
            return Ok(());
        }
        side.left(last_queue, role == Role::General && (own || suspect));
        if role == Role::Publishing && channel.is_own() {
            if let Some(publishing) = &mut channel.publishing {
                publishing.place = SidePlacement::Unplaced;
            }
        } else if role == Role::Publishing && suspect && !self.is_exporting {
            return self.move_to_dedicated(number);
        } else if was_own && !channel.is_own() {
            channel.split_sides();
            self.line_up(number);
        }
        self.place(number, role)
    }

    /// Removes a channel that the client has closed, and sends close-ok.
    pub(super) fn finish_channel(&mut self, number: u16) {
        self.channels.remove(number);
        if self.life == Life::Open {
            self.answer(number, channel_methods::CloseOk {});
        }
    }

    fn ready(&mut self, own: bool, role: Role, result: Result<Arc<Upstream>, Refusal>) -> Result<(), Fault> {
        let upstream = result.map_err(Refusal::into_fault)?;
        // The client may have another secret by now.
        let is_ours = own || upstream.is_of(&self.credentials);
        let attached = is_ours && self.attach(&upstream);
        if own && attached && !upstream.is_of(&self.credentials) {
            upstream.renew(&self.link, &self.credentials);
        }
        *self.upstream_link(own, role) =
            if attached { UpstreamLink::Ready(upstream) } else { UpstreamLink::None };
        if is_ours && !attached {
            let text = "upstream connection lost at once";
            let is_new = !self.waits_again(own, role);
            self.validate_progress(is_new, &Fault::new(ReplyCode::ConnectionForced, text))?;
        }
        self.place_waiting(own, role)
    }

    /// Notes that the connection for which channels wait was lost at once. Returns whether that had happened to one of
    /// them before.
    fn waits_again(&mut self, own: bool, role: Role) -> bool {
        let role = if own { Role::General } else { role };
        let mut is_again = false;
        for (_, channel) in self.channels.iter_mut() {
            if let Some(side) = channel.side_mut(role)
                && matches!(side.place, SidePlacement::Waiting { own: wanted, .. } if wanted == own)
            {
                is_again |= std::mem::replace(&mut side.sends_again, true);
            }
        }
        is_again
    }

    pub(super) fn place_all_waiting(&mut self) -> Result<(), Fault> {
        self.place_waiting(true, Role::General)?;
        self.place_waiting(false, Role::General)?;
        self.place_waiting(false, Role::Publishing)
    }

    /// Places the channels that wait for a connection, or for a channel number on it.
    fn place_waiting(&mut self, own: bool, role: Role) -> Result<(), Fault> {
        let role = if own { Role::General } else { role };
        let waiting =
            |side: &Side| matches!(side.place, SidePlacement::Waiting { own: wanted, .. } if wanted == own);
        let numbers: Vec<u16> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.side(role).is_some_and(waiting))
            .map(|(number, _)| number)
            .collect();
        numbers.into_iter().try_for_each(|number| self.place(number, role))
    }
}

/// Minimum pause before a consumer whose queue has not started is recreated; the maximum is twice as long.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Number of connections tried in a row for a channel. More than one is needed only when a connection ends at that moment.
const PLACING_ATTEMPTS: usize = 4;
