//! An upstream channel of a client's channel: where it is, and what of it must be known to move it.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Instant;

use amqp::frame::write_method;
use amqp::method::{basic, channel, confirm};
use amqp::{Fault, FrameKind, Method};

use super::judge::{awaits_reply, is_mandatory, is_publish, is_settling};
use super::output::Output;
use crate::frames::{check_fits, put_frame, stored_frames};
use crate::link::ClientLink;
use crate::session::STAGING_LIMIT;
use crate::upstream::{
    Carried, Lease, Leased, Ledger, Left, Numbers, Quiet, Remains, Upstream, Usage, asked_for,
};

/// One upstream channel of a client's channel. It has up to two: see [`super::channel::Channel`].
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) place: Place,
    /// Number of the present lease, for events.
    pub(super) lease: u64,
    /// Frames that wait for the side to be placed.
    pub(super) held: Vec<u8>,
    /// The client has used it in a way that only a close at the broker undoes.
    pub(super) touched: bool,
    /// The client's channel is being closed, and so is the upstream channel: an event will tell. Never cleared.
    pub(super) close_sent: bool,
    /// Something went out on the present upstream channel whose success no answer tells.
    unproven: bool,
    /// Until when something may come back of the mandatory messages that went out on the present upstream channel.
    returns: Returns,
    /// The client has sent `tx.select`.
    pub(super) transactional: bool,
    setup: Setup,
    /// Publishes in confirm mode on the present upstream channel.
    published: u64,
    /// What the present upstream channel was begun with, or the next one will be.
    carried: Carried,
    /// What is under way on the present upstream channel.
    ledger: Option<Arc<Ledger>>,
    /// The upstream channel before was lost, and the next one is not there yet.
    resuming: bool,
    /// What an empty queue name means, when the broker cannot know it because the channel was moved.
    last_queue: Option<Box<str>>,
}

/// Where a side is.
#[derive(Debug, Default)]
pub(super) enum Place {
    /// Nothing had to go out yet.
    #[default]
    Nowhere,
    /// A connection is being opened.
    Waiting {
        own: bool,
    },
    /// On its way to another connection, the client's own one or not: the old upstream channel is being closed.
    Leaving {
        route: Route,
        own: bool,
    },
    Placed(Route),
}

/// An upstream channel.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) upstream: Arc<Upstream>,
    pub(super) channel: u16,
    pub(super) own: bool,
}

/// Until when a `basic.return` may come. Brokers send it before they take the next frame of the channel, and before they
/// confirm the message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// None is due.
    #[default]
    None,
    /// Until a method is answered that is sent from now on.
    Answered,
    /// Until everything is confirmed.
    Confirmed,
}

/// What the client has set on its channel.
#[derive(Debug, Default, Clone, Copy)]
struct Setup {
    confirm: bool,
    prefetch: Option<u16>,
    prefetch_global: Option<u16>,
}

impl Side {
    /// The upstream channel that the broker knows, whether it is being left or not.
    pub(super) fn route(&self) -> Option<&Route> {
        match &self.place {
            Place::Placed(route) | Place::Leaving { route, .. } => Some(route),
            Place::Nowhere | Place::Waiting { .. } => None,
        }
    }

    /// Whether the channel is on the client's own connection, or will be.
    pub(super) fn is_own(&self) -> bool {
        match &self.place {
            Place::Placed(route) => route.own,
            Place::Waiting { own } | Place::Leaving { own, .. } => *own,
            Place::Nowhere => false,
        }
    }

    pub(super) fn is_nowhere(&self) -> bool {
        matches!(self.place, Place::Nowhere)
    }

    pub(super) fn is_placed(&self) -> bool {
        matches!(self.place, Place::Placed(_))
    }

    /// Passes a frame on to where the channel is, or holds it until the channel is somewhere.
    #[inline]
    pub(super) fn send(&mut self, output: &mut Output, kind: FrameKind, payload: &[u8]) -> Result<(), Fault> {
        let Place::Placed(route) = &self.place else {
            // What is settled while the channel is nowhere was delivered where it was before.
            let was_delivered =
                self.resuming || (self.touched && matches!(self.place, Place::Leaving { .. }));
            let is_stale = was_delivered && kind == FrameKind::Method && is_settling(payload);
            if !is_stale {
                put_frame(&mut self.held, kind, 0, payload, 0);
            }
            return Ok(());
        };
        let frame_max = route.upstream.frame_max;
        check_fits(kind, payload, frame_max)?;
        if kind == FrameKind::Method && !is_publish(payload) {
            let (upstream, channel) = (route.upstream.clone(), route.channel);
            let Some(payload) = self.carried.settling(payload) else { return Ok(()) };
            let payload = self.spelt_out(payload);
            self.note(&payload, &upstream, channel);
            put_frame(output.to(&upstream), FrameKind::Method, channel, &payload, 0);
            return Ok(());
        }
        // What is not committed is not sent twice.
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

    /// Passes on frames that were held: all of them, or none when one does not fit.
    pub(super) fn send_stored(&mut self, output: &mut Output, stored: &[u8]) -> Result<(), Fault> {
        if let Place::Placed(route) = &self.place {
            let frame_max = route.upstream.frame_max;
            stored_frames(stored).try_for_each(|(kind, payload)| check_fits(kind, payload, frame_max))?;
        }
        stored_frames(stored).try_for_each(|(kind, payload)| self.send(output, kind, payload))
    }

    /// Messages are passed on, one of them `mandatory` or none.
    #[inline]
    pub(super) fn count_publishes(&mut self, messages: u64, mandatory: bool) {
        if self.setup.confirm {
            self.published += messages;
        } else {
            self.unproven = true;
        }
        if mandatory && self.returns != Returns::Answered {
            self.returns = if self.setup.confirm { Returns::Confirmed } else { Returns::Answered };
        }
    }

    /// Whether a `basic.return` may come before the answer to what the client sends next.
    pub(super) fn may_return(&self) -> bool {
        match self.returns {
            Returns::None => false,
            Returns::Answered => true,
            Returns::Confirmed => self.ledger.as_ref().is_some_and(|ledger| ledger.has_entries()),
        }
    }

    /// Whole messages are passed on, other than by [`Self::send`]; returns whether it is time for [`Self::prove`].
    #[inline]
    pub(super) fn keep(&self, frames: &[u8], messages: u64) -> bool {
        match (&self.ledger, &self.place) {
            (Some(ledger), _) if self.setup.confirm => ledger.messages(frames, messages),
            (Some(ledger), Place::Placed(route)) if !self.transactional => {
                let is_time = ledger.unconfirmed_messages(frames, messages);
                // Only now: whoever sees the note looks into the ledger.
                route.upstream.note_unproven();
                return is_time;
            }
            _ => {}
        }
        false
    }

    /// Whether messages outside confirm mode went out behind which nothing is asked; and whether it is time for
    /// [`Self::prove`].
    pub(super) fn is_unproven(&self) -> (bool, bool) {
        self.ledger.as_ref().map_or((false, false), |ledger| ledger.is_unproven())
    }

    /// Asks the broker for an answer, if there is need, which says that it is through with everything that was published.
    /// `channel.flow` changes nothing else: `basic.qos` would overrule limits (RabbitMQ, rabbit_channel.erl).
    pub(super) fn prove(&mut self, output: &mut Output) {
        let (Place::Placed(route), Some(ledger)) = (&self.place, &self.ledger) else { return };
        if self.close_sent || !ledger.is_unproven().0 {
            return;
        }
        ledger.prove();
        route.upstream.expect_proof(route.channel);
        write_method(output.to(&route.upstream), route.channel, channel::Flow { active: true });
    }

    /// Whether something is under way that has to be kept if the client goes.
    pub(super) fn has_under_way(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.has_entries())
    }

    /// Whether the client's messages are to be confirmed.
    pub(super) fn is_confirming(&self) -> bool {
        self.setup.confirm
    }

    /// `confirm.select` on a channel that is nowhere yet.
    pub(super) fn set_confirming(&mut self) {
        self.setup.confirm = true;
    }

    /// A lease for the channel's next place.
    pub(super) fn new_lease(&mut self, link: &Arc<ClientLink>, id: u64, number: u16) -> Lease {
        let ledger = Ledger::new(link, self.carried.clone());
        self.ledger = Some(ledger.clone());
        Lease {
            delivery_offset: self.carried.delivered,
            own_qos_ok: self.restore(&mut Vec::new(), 0),
            ..Lease::new(link.clone(), ledger, id, number)
        }
    }

    /// Writes what sets limits and consumers up again; returns how many answers that will bring.
    fn restore(&self, out: &mut Vec<u8>, number: u16) -> u16 {
        let mut answers = 0;
        let mut qos = |out: &mut Vec<u8>, prefetch_count, global| {
            write_method(out, number, basic::Qos { prefetch_size: 0, prefetch_count, global });
            answers += 1;
        };
        if let Some(prefetch) = self.setup.prefetch_global {
            qos(out, prefetch, true);
        }
        // A limit holds for the consumers that come after it.
        let mut present = None;
        for consumer in &self.carried.consumers {
            if consumer.prefetch != present {
                present = consumer.prefetch;
                qos(out, present.unwrap_or_default(), false);
            }
            put_frame(out, FrameKind::Method, number, &consumer.method, 0);
        }
        if self.setup.prefetch != present {
            qos(out, self.setup.prefetch.unwrap_or_default(), false);
        }
        answers
    }

    /// What is left of the upstream channel when its connection is lost.
    pub(super) fn take_remains(&mut self) -> Remains {
        self.ledger.take().map(|ledger| ledger.take()).unwrap_or_default()
    }

    /// Whether something went out that the broker may have something against: what it has not answered for, or never
    /// does.
    pub(super) fn is_suspect(&self) -> bool {
        self.touched || self.unproven || self.has_under_way()
    }

    /// Prepares to go on with what is left of an upstream channel that is lost, on the client's own connection if that
    /// `needs_own`. False when there is nothing to do for now.
    pub(super) fn resume(&mut self, remains: Remains, ends: bool, needs_own: bool) -> bool {
        let own = needs_own || self.is_own();
        self.published = 0;
        self.carried = remains.carried;
        self.last_queue = self.carried.last_queue.take().or(self.last_queue.take());
        self.close_sent = false;
        if ends {
            self.carried.consumers.clear();
        }
        self.held.splice(..0, remains.frames);
        let goes_on = !self.held.is_empty() || !self.carried.consumers.is_empty();
        self.resuming = goes_on;
        // Where nothing is left, nothing is to be undone either.
        self.touched &= goes_on;
        self.place = if goes_on { Place::Waiting { own } } else { Place::Nowhere };
        goes_on
    }

    /// Whether the channel has, or has asked for, a consumer with this tag.
    pub(super) fn is_consuming(&self, tag: &str) -> bool {
        let is_there = match &self.ledger {
            Some(ledger) => ledger.is_consuming(tag),
            None => self.carried.is_consuming(tag),
        };
        asked_for(stored_frames(&self.held), is_there, tag)
    }

    /// Knows from now on what an empty queue name means on another one.
    pub(super) fn take_last_queue(&mut self, other: &mut Self) {
        self.last_queue = other.last_queue.take();
    }

    /// Since when what it holds for a client that is gone waits for another upstream connection.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        self.carried.lost_since
    }

    /// Prepares to go on for a client that is gone with what is left of an upstream channel that is lost: nobody is there any
    /// more to consume.
    pub(super) fn depart(&mut self, remains: Remains) {
        self.carried = remains.carried;
        self.carried.consumers.clear();
        self.carried.lost_since.get_or_insert_with(Instant::now);
        self.held = remains.frames;
        self.last_queue = self.carried.last_queue.take().or(self.last_queue.take());
    }

    /// What a client that is gone had under way, to go out again.
    pub(super) fn of_departed(left: Left) -> Self {
        let Left { remains, confirming } = left;
        let mut side = Self { setup: Setup { confirm: confirming, ..Setup::default() }, ..Self::default() };
        side.depart(remains);
        side
    }

    /// What the upstream channel has been used for.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            published: self.published,
            unproven: self.unproven || self.setup.prefetch.is_some(),
            global_prefetch: self.setup.prefetch_global.is_some(),
            touched: self.touched,
        }
    }

    /// Sets the upstream channel up as the client had the one before, opening it if it is `fresh`, then passes on what
    /// was held. Nothing is waited for.
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
        // They are the ledger's now, which hears when they end.
        self.carried.consumers.clear();
        if self.setup.confirm && !leased.confirming {
            write_method(out, route.channel, confirm::Select { no_wait: true });
        }
        self.unproven = false;
        // Those of a client that is gone may have been on a channel that was lost.
        self.published = 0;
        self.returns = Returns::None;
        self.resuming = false;
        self.lease = lease;
        self.place = Place::Placed(route);
        let held = std::mem::take(&mut self.held);
        self.send_stored(output, &held)
    }

    /// The old upstream channel is closed; the next one starts afresh.
    pub(super) fn left(&mut self, last_queue: Option<Box<str>>, own: bool) {
        self.published = 0;
        self.carried = self.take_remains().carried;
        self.resuming = !self.carried.consumers.is_empty();
        self.last_queue = last_queue.or(self.last_queue.take());
        self.place = Place::Waiting { own };
    }

    /// What was sent and is not answered, for those who have to wait for that.
    pub(super) fn under_way(&self) -> Option<Weak<Ledger>> {
        self.ledger.as_ref().filter(|ledger| ledger.has_entries()).map(Arc::downgrade)
    }

    /// Whether the broker is through with everything that was sent.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        match &self.place {
            Place::Nowhere => true,
            Place::Waiting { .. } => self.held.is_empty(),
            Place::Leaving { .. } => false,
            Place::Placed(_) => self.ledger.as_ref().is_none_or(|ledger| ledger.is_quiet()),
        }
    }

    /// The same; after a no, an event tells.
    pub(super) fn await_quiet(&mut self, output: &mut Output) -> bool {
        let (Place::Placed(route), Some(ledger)) = (&self.place, &self.ledger) else {
            return self.is_quiet();
        };
        match ledger.await_quiet() {
            Quiet::Yes => return true,
            Quiet::Asking if !self.close_sent => {
                ledger.prove();
                route.upstream.expect_proof(route.channel);
                write_method(output.to(&route.upstream), route.channel, channel::Flow { active: true });
            }
            Quiet::Asking | Quiet::Soon => {}
        }
        false
    }

    /// Whether consumers wait to be set up again.
    pub(super) fn is_resuming(&self) -> bool {
        self.resuming
    }

    /// Whether it is placed with other clients' channels, and what was done there leaves nothing to be undone or waited for.
    pub(super) fn is_untouched(&self) -> bool {
        let is_shared = matches!(&self.place, Place::Placed(route) if !route.own);
        is_shared && !self.touched && !self.setup.confirm && !self.has_under_way() && self.is_quiet()
    }

    /// Goes over to publishing on the upstream channel where it is, which nobody else has anything to do with; returns what
    /// is to go on elsewhere in its place.
    pub(super) fn turn_publishing(&mut self, publishing: &Self, output: &mut Output) -> Option<Self> {
        let Place::Placed(route) = &self.place else { return None };
        if !self.is_untouched() || publishing.carried.numbers != Numbers::default() {
            return None;
        }
        let last_queue = route.upstream.turn_publishing(route.channel)?;
        let general = Self {
            setup: self.setup,
            carried: Carried { delivered: self.carried.delivered, ..Carried::default() },
            last_queue: last_queue.or(self.last_queue.take()),
            ..Self::default()
        };
        if publishing.setup.confirm {
            self.setup.confirm = true;
            route.upstream.count_confirms(route.channel);
            write_method(output.to(&route.upstream), route.channel, confirm::Select { no_wait: true });
        }
        Some(general)
    }

    /// Publishes in place of another side from now on, in confirm mode or not and numbered as before. Both are nowhere.
    pub(super) fn take_publishing(&mut self, other: &mut Self) {
        self.setup.confirm = std::mem::take(&mut other.setup.confirm);
        self.carried.numbers = std::mem::take(&mut other.carried.numbers);
    }

    /// How many publishes have to be confirmed before the upstream channel can be left.
    pub(super) fn unconfirmed_up_to(&self) -> u64 {
        self.published
    }

    /// Keeps in mind what a method changes, at the time it goes out.
    fn note(&mut self, payload: &[u8], upstream: &Upstream, channel: u16) {
        match payload {
            [0, 85, 0, 10, ..] => {
                self.setup.confirm = true;
                upstream.count_confirms(channel);
            }
            [0, 60, 0, 10, ..] => {
                if let Ok(Method::BasicQos(qos)) = Method::decode(payload) {
                    let prefetch =
                        if qos.global { &mut self.setup.prefetch_global } else { &mut self.setup.prefetch };
                    *prefetch = Some(qos.prefetch_count);
                }
            }
            // The broker knows a last queue again.
            [0, 50, 0, 10, ..] => self.last_queue = None,
            _ => {}
        }
        let has_answer = awaits_reply(payload);
        if let Some(ledger) = &self.ledger
            && ledger.method(payload, has_answer, self.setup.prefetch)
        {
            upstream.note_unproven();
        }
        if self.touched {
            // Nobody will ask.
        } else if has_answer {
            upstream.expect_reply(channel);
            // Who asks whether one may come asks first whether this is answered.
            self.returns = Returns::None;
        } else {
            self.unproven = true;
        }
    }

    /// A method as the broker has to be told it, when it cannot know what an empty queue name means.
    fn spelt_out<'p>(&self, payload: Cow<'p, [u8]>) -> Cow<'p, [u8]> {
        let Some(queue) = &self.last_queue else { return payload };
        let Ok(method) = Method::decode(&payload) else { return payload };
        let mut out = Vec::new();
        with_queue(method, queue).encode(&mut out);
        out.into()
    }
}

/// The method with an empty queue name, which means the last queue declared on the channel, spelt out.
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

#[cfg(test)]
mod tests {
    use amqp::method::queue;

    use super::*;

    #[test]
    fn the_last_queue_is_spelt_out_where_its_name_is_empty() {
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
