//! One upstream channel of a client's channel: its placement, and the state needed to move it.

mod settling;
mod state;

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use amqp::frame::{OVERHEAD, write_method};
use amqp::method::{basic, channel, confirm};
use amqp::{Fault, FrameKind, Method};

pub(super) use self::state::SideState;
use super::acks::Settled;
use super::closed::ClosedChannels;
use super::output::Output;
use super::validate::{
    awaits_reply, is_about_queues, is_mandatory, is_publish, is_removal, is_settling, may_name_last_queue,
    names_last_queue,
};
use crate::frames::{check_fits, put_frame, stored_frames};
use crate::link::ClientLink;
use crate::session::STAGING_LIMIT;
use crate::upstream::{
    AnswerProgress, ChannelOpening, ConfirmNumbers, Consumer, DepartedLedger, Lease, Leased, Ledger,
    MovedState, PrefetchState, UnsettledEntries, Upstream, Usage, asked_for,
};

/// One upstream channel of a client's channel. It has up to two: see [`super::channel::Channel`].
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) place: SidePlacement,
    /// Number of the current lease, to match events.
    pub(super) lease: u64,
    /// Frames that wait for placement, or for answers to earlier methods ([`Ledger::may_overtake`]).
    pub(super) queued: Vec<u8>,
    /// Whether the client has used the channel in a way that only `channel.close` undoes.
    pub(super) touched: bool,
    /// Whether frames went out on the present upstream channel whose success no reply reports.
    unproven: bool,
    /// Since when the broker has refused to recreate consumers because their queues had not started. Cleared when the
    /// channel is lost again.
    pub(super) refused_since: Option<Instant>,
    /// The time of the last such refusal. Cleared after a pause; the side is not placed before.
    pub(super) paused_since: Option<Instant>,
    /// Whether its frames have been sent before, on a connection that was lost, or have waited for a connection that was
    /// lost at once. Cleared when the upstream channel is lost without unsettled frames, or left.
    pub(super) sends_again: bool,
    /// Whether the client has sent `tx.select`.
    pub(super) transactional: bool,
    /// Whether the broker had opened the previous upstream channel. Set when an upstream channel is lost.
    was_opened: bool,
    setup: Setup,
    /// Number of publishes in confirm mode on the current upstream channel.
    published: u64,
    /// State that the current upstream channel started with, or that the next one will start with.
    carried: MovedState,
    /// The frames in flight on the current upstream channel.
    ledger: Option<Arc<Ledger>>,
    /// The deliveries of the current upstream channel that the client has settled. Boxed, because most sides settle none.
    settled: Option<Box<Settled>>,
    /// The queue that an empty name means, if the client has named it, or if the broker named it on an earlier upstream
    /// channel.
    last_queue: Option<Box<str>>,
    /// Whether the queue declared last is server-named and was declared with no-wait, so that its name stays unknown.
    has_unknown_last_queue: bool,
    /// The number of the last closed channel whose messages must be processed before the waiting methods are sent; 0
    /// for none. Set when the client sends such a method.
    behind: u64,
}

/// The placement of a side.
#[derive(Debug, Default)]
pub(super) enum SidePlacement {
    /// Not placed: nothing had to go out yet.
    #[default]
    Unplaced,
    /// Waiting for a connection that is being opened, or for a channel on one. `resuming` if there was an upstream
    /// channel before, with deliveries or frames in flight, which was lost or left.
    Waiting {
        own: bool,
        resuming: bool,
    },
    /// Moving to another connection, the client's own one or not: the old upstream channel is being closed if
    /// `close_sent`, or will be once its messages are confirmed and late answers have come.
    Leaving {
        route: Route,
        own: bool,
        close_sent: bool,
    },
    Placed(Route),
    /// The client has closed its channel, and `channel.close` was sent to the broker, which is about to reply.
    Closing(Route),
}

/// An upstream channel.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) upstream: Arc<Upstream>,
    pub(super) channel: u16,
    pub(super) own: bool,
}

/// Settings that the client has made on its channel.
#[derive(Debug, Default, Clone, Copy)]
struct Setup {
    confirm: bool,
    prefetch: PrefetchState,
}

impl Side {
    /// The upstream channel that is open at the broker, even if it is being left.
    pub(super) fn route(&self) -> Option<&Route> {
        match &self.place {
            SidePlacement::Placed(route)
            | SidePlacement::Leaving { route, .. }
            | SidePlacement::Closing(route) => Some(route),
            SidePlacement::Unplaced | SidePlacement::Waiting { .. } => None,
        }
    }

    /// Whether the channel is on the client's own connection, or will be.
    pub(super) fn is_own(&self) -> bool {
        match &self.place {
            SidePlacement::Placed(route) | SidePlacement::Closing(route) => route.own,
            SidePlacement::Waiting { own, .. } | SidePlacement::Leaving { own, .. } => *own,
            SidePlacement::Unplaced => false,
        }
    }

    pub(super) fn is_unplaced(&self) -> bool {
        matches!(self.place, SidePlacement::Unplaced)
    }

    pub(super) fn is_placed(&self) -> bool {
        matches!(self.place, SidePlacement::Placed(_))
    }

    /// Passes a frame on to the upstream channel, or holds it until the channel is placed.
    #[inline]
    pub(super) fn send(&mut self, output: &mut Output, kind: FrameKind, payload: &[u8]) -> Result<(), Fault> {
        let SidePlacement::Placed(route) = &self.place else {
            // An acknowledgement sent while the channel is unplaced refers to deliveries of the previous upstream channel.
            let was_delivered =
                self.is_resuming() || (self.touched && matches!(self.place, SidePlacement::Leaving { .. }));
            let is_stale = was_delivered && kind == FrameKind::Method && is_settling(payload);
            if !is_stale {
                put_frame(&mut self.queued, kind, 0, payload, 0);
            }
            return Ok(());
        };
        let frame_max = route.upstream.frame_max;
        check_fits(kind, payload, frame_max)?;
        if !self.queued.is_empty() || self.has_to_wait(kind, payload, &mut output.closed) {
            put_frame(&mut self.queued, kind, 0, payload, 0);
            return Ok(());
        }
        if kind == FrameKind::Method && !is_publish(payload) {
            let (upstream, channel) = (route.upstream.clone(), route.channel);
            let Some(payload) = self.settling(payload) else { return Ok(()) };
            let payload = self.with_explicit_queue(payload, &upstream, channel);
            // An explicit queue name may have made it longer.
            check_fits(kind, &payload, frame_max)?;
            self.note(&payload, &upstream, channel);
            put_frame(output.to(&upstream), FrameKind::Method, channel, &payload, 0);
            return Ok(());
        }
        // Uncommitted messages are not replayed.
        if let (false, Some(ledger)) = (self.transactional, &self.ledger) {
            match kind {
                FrameKind::Method if self.setup.confirm => ledger.publish(payload),
                FrameKind::Method => ledger.publish_unconfirmed(payload),
                _ => ledger.content(kind, payload, STAGING_LIMIT),
            }
            if !self.setup.confirm {
                route.upstream.note_unproven();
            }
        }
        put_frame(output.to(&route.upstream), kind, route.channel, payload, frame_max);
        if kind == FrameKind::Method {
            self.count_publishes(1, is_mandatory(payload));
        }
        Ok(())
    }

    /// Orders the next method after the messages of closed channels up to this number.
    pub(super) fn order_after_closed(&mut self, closed: u64) {
        self.behind = closed;
    }

    /// Whether a frame has to wait: for late answers to earlier methods, for the reply with the name of the queue that
    /// it refers to, or until the broker has processed messages of closed channels. If so, an event follows.
    fn has_to_wait(&self, kind: FrameKind, payload: &[u8], closed: &mut ClosedChannels) -> bool {
        if kind != FrameKind::Method || is_publish(payload) || is_settling(payload) {
            return false;
        }
        if is_about_queues(payload) && !closed.poll_up_to(self.behind) {
            return true;
        }
        let Some(ledger) = &self.ledger else { return false };
        !ledger.may_overtake(payload) || (self.needs_name(payload) && !ledger.poll_declarations())
    }

    /// Whether a method refers to the queue declared last by an empty name and must not be sent before the broker has
    /// replied with that name: a method with no-wait may be replayed at any time, and needs the explicit name.
    fn needs_name(&self, payload: &[u8]) -> bool {
        self.last_queue.is_none()
            && !self.has_unknown_last_queue
            && may_name_last_queue(payload)
            && !awaits_reply(payload)
            && Method::decode(payload).is_ok_and(|method| names_last_queue(&method))
    }

    /// Whether it is placed, and frames wait for such answers.
    pub(super) fn is_deferred(&self) -> bool {
        self.is_placed() && !self.queued.is_empty()
    }

    /// Whether it is moving, and its old upstream channel has still to be closed.
    pub(super) fn must_close_old(&self) -> bool {
        matches!(self.place, SidePlacement::Leaving { close_sent: false, .. })
    }

    /// Whether the old upstream channel can be closed now: no confirm or late answer is pending. If one is, an event follows.
    pub(super) fn may_be_left(&self) -> bool {
        let SidePlacement::Leaving { route, close_sent: false, .. } = &self.place else { return false };
        route.upstream.poll_confirms(route.channel, self.published)
            && self.ledger.as_ref().is_none_or(|ledger| ledger.poll_late_answers())
    }

    /// Sends the frames that have waited for answers and may be sent now.
    pub(super) fn go_on(&mut self, output: &mut Output) -> Result<(), Fault> {
        if !self.is_deferred() {
            return Ok(());
        }
        let mut queued = std::mem::take(&mut self.queued);
        let (mut sent, mut result) = (0, Ok(()));
        for (kind, payload) in stored_frames(&queued) {
            if result.is_err() || self.has_to_wait(kind, payload, &mut output.closed) {
                break;
            }
            result = self.send(output, kind, payload);
            sent += payload.len() + OVERHEAD;
        }
        queued.drain(..sent);
        self.queued = queued;
        result
    }

    /// Drops held frames that settle deliveries of an upstream channel that was left or lost.
    pub(super) fn drop_stale(&mut self) {
        if !self.touched || self.queued.is_empty() {
            return;
        }
        self.queued = without_settling(&self.queued);
    }

    /// Sends held frames: all of them, or none if one exceeds frame_max.
    pub(super) fn send_stored(&mut self, output: &mut Output, stored: &[u8]) -> Result<(), Fault> {
        if let SidePlacement::Placed(route) = &self.place {
            let frame_max = route.upstream.frame_max;
            stored_frames(stored).try_for_each(|(kind, payload)| check_fits(kind, payload, frame_max))?;
        }
        stored_frames(stored).try_for_each(|(kind, payload)| self.send(output, kind, payload))
    }

    /// Counts messages that are passed on; at most one of them is `mandatory`.
    #[inline]
    pub(super) fn count_publishes(&mut self, messages: u64, mandatory: bool) {
        if self.setup.confirm {
            self.published += messages;
        } else {
            self.unproven = true;
        }
        if let (true, Some(ledger)) = (mandatory, &self.ledger) {
            ledger.sent_mandatory();
        }
    }

    /// See [`Ledger::may_return`].
    pub(super) fn may_return(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.may_return())
    }

    /// Records whole messages passed on without [`Self::send`]; returns whether it is time for [`Self::prove`].
    #[inline]
    pub(super) fn keep(&self, frames: &[u8], messages: u64) -> bool {
        match (&self.ledger, &self.place) {
            (Some(ledger), _) if self.setup.confirm => ledger.messages(frames, messages),
            (Some(ledger), SidePlacement::Placed(route)) if !self.transactional => {
                let is_time = ledger.unconfirmed_messages(frames, messages);
                // Set after recording, because the task that sees this flag reads the ledger.
                route.upstream.note_unproven();
                return is_time;
            }
            _ => {}
        }
        false
    }

    /// Whether messages outside confirm mode were sent with no request after them, and whether it is time for [`Self::prove`].
    pub(super) fn is_unproven(&self) -> (bool, bool) {
        self.ledger.as_ref().map_or((false, false), |ledger| ledger.is_unproven())
    }

    /// Requests a proof that the broker has processed everything that was published, if needed. `channel.flow` has
    /// no other effect, while `basic.qos` would override limits (RabbitMQ, rabbit_channel.erl).
    pub(super) fn prove(&mut self, output: &mut Output) {
        if self.is_unproven().0 {
            self.request_proof(output);
        }
    }

    /// Requests a reply for the sole purpose of proving that the broker has processed all earlier frames.
    pub(super) fn request_proof(&mut self, output: &mut Output) {
        let (SidePlacement::Placed(route), Some(ledger)) = (&self.place, &self.ledger) else { return };
        ledger.prove();
        route.upstream.expect_proof(route.channel);
        write_method(output.to(&route.upstream), route.channel, channel::Flow { active: true });
    }

    /// Whether frames are in flight that must be kept if the client departs.
    pub(super) fn has_under_way(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.has_entries())
    }

    /// Whether the broker may not have carried out a method of the client yet, with no-wait or not.
    pub(super) fn has_methods_under_way(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.has_methods())
    }

    /// Whether the client's messages are to be confirmed.
    pub(super) fn is_confirming(&self) -> bool {
        self.setup.confirm
    }

    /// Handles `confirm.select` on an unplaced channel.
    pub(super) fn set_confirming(&mut self) {
        self.setup.confirm = true;
    }

    /// Creates a lease for the channel's next placement.
    pub(super) fn new_lease(&mut self, link: &Arc<ClientLink>, id: u64, number: u16, now: Instant) -> Lease {
        self.carried.prefetch = self.setup.prefetch;
        self.carried.confirming = self.setup.confirm;
        let ledger = Ledger::new(link, self.carried.clone());
        self.ledger = Some(ledger.clone());
        Lease {
            delivery_offset: self.carried.delivered,
            own_qos_ok: self.restore(&mut Vec::new(), 0),
            again: self.is_resuming() && self.was_opened,
            ..Lease::new(link.clone(), ledger, id, number, now)
        }
    }

    /// Writes the methods that restore prefetch limits and consumers; returns the number of expected replies.
    fn restore(&self, out: &mut Vec<u8>, number: u16) -> u16 {
        let mut answers = 0;
        let mut qos = |out: &mut Vec<u8>, prefetch_count, global| {
            write_method(out, number, basic::Qos { prefetch_size: 0, prefetch_count, global });
            answers += 1;
        };
        let mut present = PrefetchState::default();
        present.limit_channel(self.setup.prefetch, &mut |count, global| qos(out, count, global));
        // A limit applies to the consumers that come after it.
        for consumer in &self.carried.consumers {
            present.limit_consumers(consumer.prefetch, &mut |count, global| qos(out, count, global));
            put_frame(out, FrameKind::Method, number, &consumer.again(), 0);
        }
        present.limit_channel(self.setup.prefetch, &mut |count, global| qos(out, count, global));
        present.limit_consumers(self.setup.prefetch, &mut |count, global| qos(out, count, global));
        answers
    }

    /// Whether the broker has closed the channel because of a stream offset that the pool, not the client, added to a
    /// consumer. The queue is then known not to be a stream.
    pub(super) fn was_no_stream(&self, text: &str) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.clear_offset_unless_stream(text))
    }

    /// Whether a recreated consumer was refused because its queue has not started yet, and a retry may succeed.
    pub(super) fn note_queue_starting(&mut self, close: &channel::Close<'_>, now: Instant) -> bool {
        let is_starting = (close.class_id, close.method_id) == CONSUME
            && QUEUE_STARTING.iter().any(|text| close.reply_text.contains(text))
            && self.ledger.as_ref().is_some_and(|ledger| ledger.was_recreated());
        is_starting && now.saturating_duration_since(*self.refused_since.get_or_insert(now)) < READY_MAX
    }

    /// Takes the unsettled frames of an upstream channel that was lost.
    pub(super) fn take_remains(&mut self) -> UnsettledEntries {
        self.ledger.take().map(|ledger| ledger.take()).unwrap_or_default()
    }

    /// Whether a frame that was sent may have caused a fault of the broker: one that is unanswered, or that has no answer.
    pub(super) fn is_suspect(&self) -> bool {
        self.touched || self.unproven || self.has_under_way()
    }

    /// Prepares to continue with the unsettled frames of a lost upstream channel, on the client's own connection if
    /// `needs_own`. Clears the consumers if the channel `ends`. Returns false if there is nothing to send or restore
    /// for now.
    pub(super) fn resume(&mut self, remains: UnsettledEntries, ends: bool, needs_own: bool) -> bool {
        let own = needs_own || self.is_own();
        self.published = 0;
        self.carried = remains.carried;
        if self.paused_since.is_none() {
            self.refused_since = None;
        }
        // Limits that the broker has not confirmed are among the frames, in their place. So is a `confirm.select` that
        // follows messages outside confirm mode.
        self.setup = Setup { confirm: self.carried.confirming, prefetch: self.carried.prefetch };
        self.last_queue = self.last_queue.take().or(self.carried.last_queue.take());
        if ends {
            self.carried.consumers.clear();
        }
        self.drop_stale();
        self.sends_again = !remains.frames.is_empty();
        self.was_opened = remains.opening == ChannelOpening::Done;
        self.queued.splice(..0, remains.frames);
        let goes_on = !self.queued.is_empty() || !self.carried.consumers.is_empty();
        // If nothing is left, no close is needed to undo it.
        self.touched &= goes_on;
        self.place =
            if goes_on { SidePlacement::Waiting { own, resuming: true } } else { SidePlacement::Unplaced };
        goes_on
    }

    /// Holds the unsettled frames of a lost upstream channel for a client that is about to depart.
    pub(super) fn requeue_unsettled(&mut self, mut remains: UnsettledEntries) {
        self.place = SidePlacement::Waiting { own: self.is_own(), resuming: true };
        self.last_queue = self.last_queue.take().or(remains.carried.last_queue.take());
        if !self.transactional {
            self.queued.splice(..0, without_removals(&remains.frames));
        }
    }

    /// Whether the client has received deliveries of an upstream channel that was left.
    pub(super) fn has_delivered(&self) -> bool {
        self.carried.delivered > 0
    }

    /// Whether the channel has, or has requested, a consumer with this tag.
    pub(super) fn is_consuming(&self, tag: &str) -> bool {
        let is_there = match &self.ledger {
            Some(ledger) => ledger.is_consuming(tag),
            None => self.carried.is_consuming(tag),
        };
        asked_for(stored_frames(&self.queued), is_there, tag)
    }

    /// Whether the meaning of an empty queue name is known here.
    pub(super) fn knows_last_queue(&self) -> bool {
        self.last_queue.is_some()
    }

    /// Takes over the meaning of an empty queue name from another side.
    pub(super) fn take_last_queue(&mut self, other: &mut Self) {
        self.last_queue = other.last_queue.take();
    }

    /// Since when frames of a departed client have waited for another upstream connection.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        self.carried.lost_since
    }

    /// Prepares to continue with the unsettled frames of a lost upstream channel for a departed client,
    /// without its consumers, and [without removals](without_removals).
    pub(super) fn depart(&mut self, remains: UnsettledEntries, now: Instant) {
        self.carried = remains.carried;
        self.carried.consumers.clear();
        self.carried.lost_since.get_or_insert(now);
        self.queued = without_removals(&remains.frames);
        self.last_queue = self.last_queue.take().or(self.carried.last_queue.take());
    }

    /// Creates a side that sends a departed client's unsettled frames again.
    pub(super) fn for_departed(left: DepartedLedger, now: Instant) -> Self {
        let DepartedLedger { remains, confirming, .. } = left;
        let mut side = Self { setup: Setup { confirm: confirming, ..Setup::default() }, ..Self::default() };
        side.depart(remains, now);
        side
    }

    /// How the upstream channel has been used.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            published: self.published,
            unproven: self.unproven || self.setup.prefetch.each > 0,
            global_prefetch: self.setup.prefetch.all > 0,
            touched: self.touched,
        }
    }

    /// Sets the upstream channel up like the previous one, opening it if it is `fresh`, then passes on the
    /// held frames. Waits for nothing.
    pub(super) fn start(
        &mut self,
        output: &mut Output,
        route: Route,
        leased: Leased,
        lease: u64,
    ) -> Result<(), Fault> {
        let out = output.to(&route.upstream);
        if leased.fresh {
            write_method(out, route.channel, channel::Open::default());
        }
        self.restore(out, route.channel);
        self.settled = None;
        if self.transactional || self.carried.consumers.iter().any(Consumer::is_automatic) {
            self.settled.get_or_insert_default().invalidate_counts();
        }
        // The consumers now belong to the ledger, which tracks their cancellation.
        self.carried.consumers.clear();
        if self.setup.confirm && !leased.confirming {
            write_method(out, route.channel, confirm::Select { no_wait: true });
        }
        self.unproven = false;
        // A departed client's frames may have been sent on an earlier channel, whose publishes were counted.
        self.published = 0;
        self.has_unknown_last_queue = false;
        self.lease = lease;
        self.place = SidePlacement::Placed(route);
        let queued = std::mem::take(&mut self.queued);
        self.send_stored(output, &queued)
    }

    /// The old upstream channel is closed. Resets the state for the next one.
    pub(super) fn left(&mut self, last_queue: Option<Box<str>>, own: bool) {
        self.published = 0;
        self.sends_again = false;
        self.carried = self.take_remains().carried;
        self.last_queue = self.last_queue.take().or(last_queue);
        self.place = SidePlacement::Waiting { own, resuming: !self.carried.consumers.is_empty() };
    }

    /// The ledger of frames in flight, for tasks that have to wait for them.
    pub(super) fn under_way(&self) -> Option<Weak<Ledger>> {
        self.ledger.as_ref().filter(|ledger| ledger.has_entries()).map(Arc::downgrade)
    }

    /// Whether nothing waits, and the broker has processed everything that was sent.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        match &self.place {
            SidePlacement::Unplaced => true,
            SidePlacement::Waiting { .. } => self.queued.is_empty(),
            SidePlacement::Leaving { .. } => false,
            SidePlacement::Placed(_) | SidePlacement::Closing(_) => {
                self.queued.is_empty() && self.ledger.as_ref().is_none_or(|ledger| ledger.is_quiet())
            }
        }
    }

    /// Like [`Self::is_quiet`]; if not, an event follows.
    pub(super) fn poll_processed(&mut self, output: &mut Output) -> bool {
        let (SidePlacement::Placed(route) | SidePlacement::Closing(route), Some(ledger)) =
            (&self.place, &self.ledger)
        else {
            return self.is_quiet();
        };
        if !self.queued.is_empty() {
            // Queued frames wait for answers, for which an event follows already.
            return false;
        }
        match ledger.poll_processed() {
            AnswerProgress::Yes => return true,
            AnswerProgress::Asking if self.is_placed() => {
                ledger.prove();
                route.upstream.expect_proof(route.channel);
                write_method(output.to(&route.upstream), route.channel, channel::Flow { active: true });
            }
            AnswerProgress::Asking | AnswerProgress::Soon => {}
        }
        false
    }

    /// Whether consumers wait to be set up again.
    pub(super) fn is_resuming(&self) -> bool {
        matches!(self.place, SidePlacement::Waiting { resuming: true, .. })
    }

    /// Whether it is placed on a shared connection, without state that needs a close, and nothing is pending.
    pub(super) fn is_pristine(&self) -> bool {
        let is_shared = matches!(&self.place, SidePlacement::Placed(route) if !route.own);
        is_shared && !self.touched && !self.setup.confirm && !self.has_under_way() && self.is_quiet()
    }

    /// Switches to publishing on the current upstream channel, if no other channel uses its connection. Returns the
    /// unplaced side that takes over its former role.
    pub(super) fn turn_publishing(&mut self, publishing: &Self, output: &mut Output) -> Option<Self> {
        let SidePlacement::Placed(route) = &self.place else { return None };
        if !self.is_pristine() || publishing.carried.numbers != ConfirmNumbers::default() {
            return None;
        }
        let last_queue = route.upstream.turn_publishing(route.channel)?;
        let general = Self {
            setup: self.setup,
            carried: MovedState { delivered: self.carried.delivered, ..MovedState::default() },
            last_queue: self.last_queue.take().or(last_queue),
            ..Self::default()
        };
        if publishing.setup.confirm {
            self.setup.confirm = true;
            self.ledger.iter().for_each(|ledger| ledger.begin_confirming());
            route.upstream.count_confirms(route.channel);
            write_method(output.to(&route.upstream), route.channel, confirm::Select { no_wait: true });
        }
        Some(general)
    }

    /// Takes over publishing from another side, with its confirm mode and numbering. Both are unplaced.
    pub(super) fn take_publishing(&mut self, other: &mut Self) {
        self.sends_again |= other.sends_again;
        self.setup.confirm = std::mem::take(&mut other.setup.confirm);
        self.carried.numbers = std::mem::take(&mut other.carried.numbers);
    }

    /// Number of publishes that have to be confirmed before the upstream channel can be left.
    pub(super) fn unconfirmed_up_to(&self) -> u64 {
        self.published
    }

    /// Records the effects of a method when it goes out.
    fn note(&mut self, payload: &[u8], upstream: &Upstream, channel: u16) {
        match payload {
            [0, 85, 0, 10, ..] => {
                self.setup.confirm = true;
                upstream.count_confirms(channel);
            }
            [0, 60, 0, 10, ..] => {
                if let Ok(Method::BasicQos(qos)) = Method::decode(payload) {
                    self.setup.prefetch.set(qos.prefetch_count, qos.global);
                }
            }
            [0, 50, 0, 10, ..] => {
                // The name of a server-named queue arrives with the reply, if there is one.
                (self.last_queue, self.has_unknown_last_queue) = match Method::decode(payload) {
                    Ok(Method::QueueDeclare(declare)) if !declare.queue.is_empty() => {
                        (Some(declare.queue.into()), false)
                    }
                    Ok(Method::QueueDeclare(declare)) => (None, declare.no_wait),
                    _ => (None, false),
                };
            }
            [0, 60, 0, 20 | 70 | 80 | 90 | 100 | 110 | 120, ..] | [0, 90, 0, 10, ..] => {
                self.note_settling(payload);
            }
            _ => {}
        }
        let has_answer = awaits_reply(payload);
        if let Some(ledger) = &self.ledger
            && ledger.method(payload, has_answer, self.setup.prefetch)
        {
            upstream.note_unproven();
        }
        if self.touched {
            // The channel will be closed instead of proven clean, so these are not needed.
        } else if has_answer {
            upstream.expect_reply(channel);
        } else {
            self.unproven = true;
        }
    }

    /// Replaces an empty queue name by the explicit one if the broker would not know its meaning: on this upstream
    /// channel, or on another one if the method is replayed.
    fn with_explicit_queue<'p>(
        &self,
        payload: Cow<'p, [u8]>,
        upstream: &Upstream,
        channel: u16,
    ) -> Cow<'p, [u8]> {
        if !may_name_last_queue(&payload) {
            return payload;
        }
        let queue_name = if self.needs_name(&payload) { upstream.last_queue(channel) } else { None };
        let Some(queue) = self.last_queue.as_ref().or(queue_name.as_ref()) else { return payload };
        let Ok(method) = Method::decode(&payload) else { return payload };
        if !names_last_queue(&method) {
            return payload;
        }
        let mut out = Vec::new();
        with_queue(method, queue).encode(&mut out);
        out.into()
    }
}

/// Stored frames without those that settle deliveries.
pub(super) fn without_settling(stored: &[u8]) -> Vec<u8> {
    without(stored, is_settling)
}

/// Sent frames of a departed client, without removals such as `queue.delete`. The broker may have carried out the
/// removals already, and another client may have declared the same entities since.
pub(super) fn without_removals(sent: &[u8]) -> Vec<u8> {
    without(sent, is_removal)
}

/// Stored frames without the methods that `is_dropped` is true for.
fn without(stored: &[u8], is_dropped: fn(&[u8]) -> bool) -> Vec<u8> {
    let mut others = Vec::new();
    for (kind, payload) in stored_frames(stored) {
        if kind != FrameKind::Method || !is_dropped(payload) {
            put_frame(&mut others, kind, 0, payload, 0);
        }
    }
    others
}

/// Replaces an empty queue name, which means the last queue declared on the channel, by that queue's name.
fn with_queue<'m>(mut method: Method<'m>, name: &'m str) -> Method<'m> {
    let queue = match &mut method {
        Method::QueueBind(bind) if bind.queue.is_empty() && bind.routing_key.is_empty() => {
            bind.routing_key = name;
            &mut bind.queue
        }
        Method::QueueUnbind(unbind) if unbind.queue.is_empty() && unbind.routing_key.is_empty() => {
            unbind.routing_key = name;
            &mut unbind.queue
        }
        Method::QueueBind(bind) => &mut bind.queue,
        Method::QueueUnbind(unbind) => &mut unbind.queue,
        Method::QueuePurge(purge) => &mut purge.queue,
        Method::QueueDelete(delete) => &mut delete.queue,
        Method::BasicConsume(consume) => &mut consume.queue,
        Method::BasicGet(get) => &mut get.queue,
        _ => return method,
    };
    if queue.is_empty() {
        *queue = name;
    }
    method
}

/// Class and method of `basic.consume`.
const CONSUME: (u16, u16) = (60, 20);
/// Parts of the texts with which RabbitMQ, soon after its own start, refuses consumers of a queue that it has not
/// started yet: a stream (4.3), or any durable queue (3.10).
const QUEUE_STARTING: [&str; 2] =
    ["does not have a running replica on the local node", "is down or inaccessible"];
/// How long a broker may need to start its queues. After that, the refusal is passed on.
const READY_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use amqp::method::queue;

    use super::*;

    #[test]
    fn an_empty_queue_name_is_replaced_by_the_last_declared_queue() {
        let bind = with_queue(queue::Bind { exchange: "e", ..Default::default() }.into(), "last");
        let Method::QueueBind(bind) = bind else { panic!("{bind:?}") };
        assert_eq!((bind.queue, bind.routing_key), ("last", "last"));
        let bind = with_queue(queue::Bind { routing_key: "k", ..Default::default() }.into(), "last");
        let Method::QueueBind(bind) = bind else { panic!("{bind:?}") };
        assert_eq!((bind.queue, bind.routing_key), ("last", "k"));
        let named = Method::from(basic::Get { queue: "named", ..Default::default() });
        assert_eq!(with_queue(named, "last"), named);
    }
}
