//! The state of one upstream channel.
//!
//! # States
//! The states of a channel number ([`Slot`]). *Leaving* is leased with [`Lease::close_sent`]; *gone* are all numbers of a
//! connection that has ended. In use are all but free and resting ones. An event that has no line for a state changes
//! nothing; a test reads this table and compares it with the code.
//!
//! | state | event | next state | |
//! |---|---|---|---|
//! | free | lease | leased | the session sends channel.open |
//! | resting | lease | leased | as it is |
//! | resting | too old for a lease; rested for too long; its number is needed | closing | too old by P1 |
//! | resting; settling | the connection is probed | settling | channel.flow is sent |
//! | leased | the session asks for its close | leaving | close-ok is reported to the session |
//! | leased | release | settling or resting or closing | at once resting, if nothing is pending; or closing, if it is too old as well |
//! | leased | release after other use than publishing and declaring | closing | |
//! | leaving | release; release after other use than publishing and declaring | closing | |
//! | leaving; closing | close-ok | free | |
//! | leased | the broker closes it | peer closed | the session sends close-ok, behind its frames |
//! | leaving | the broker closes it | closing | both at the same time: the broker's close-ok is still to come |
//! | settling | a reply or confirm | settling or resting or closing | by the last one: resting; or closing, if it is too old (P1) |
//! | settling | its number is needed | closing | the broker owes nothing but confirms, and could have sent them for [`OVERDUE_AFTER`] |
//! | settling; resting | the broker closes it | free | |
//! | peer closed | release; release after other use than publishing and declaring | free | close-ok is sent |
//! | any | the connection ends | gone | the frames in flight are the session's, or those of a departed client ([`DepartedLedger`]) |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::Method;

use super::ledger::{AnswerProgress, Ledger, UnsettledEntries};
use super::stall::ChannelSilence;
use crate::link::ClientLink;

/// The state of an upstream channel number.
#[derive(Debug)]
pub(crate) enum Slot {
    /// Closed on both sides.
    Free,
    /// Leased to a client's channel.
    Leased(Box<Lease>),
    /// Given back, and not proven clean yet because replies or confirms are pending.
    Settling(Box<Settling>),
    /// Open, clean and not leased (P5). In confirm mode if `Some`.
    IdleChannels(Option<Box<Confirms>>),
    /// The broker closed it. The session has to send close-ok, after everything else that it may still send.
    PeerClosed,
    /// `channel.close` was sent and no session waits for the reply; incoming frames are discarded. Holds the state of the
    /// client that gave the channel back, if it has unsettled frames.
    Closing(Option<Box<Settling>>),
}

impl Slot {
    /// Whether the channel will become free or rest soon, without an action of a client.
    pub(crate) fn is_closing(&self) -> bool {
        match self {
            Self::Leased(lease) => lease.close_sent,
            Self::Settling(_) | Self::PeerClosed | Self::Closing(_) => true,
            Self::IdleChannels(_) | Self::Free => false,
        }
    }

    /// The state of this client's lease, if the client has given the channel back with unsettled frames.
    pub(super) fn given_back(&mut self, link: &Arc<ClientLink>, lease: u64) -> Option<&mut Settling> {
        let (Self::Settling(settling) | Self::Closing(Some(settling))) = self else { return None };
        let is_it =
            settling.lease == lease && settling.left.as_ref().is_some_and(|ledger| ledger.is_of(link));
        is_it.then_some(&mut **settling)
    }
}

/// A client's channel on an upstream channel.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) link: Arc<ClientLink>,
    /// Unique in the session, so that late events are recognised.
    pub(crate) id: u64,
    /// The client's channel number.
    pub(crate) client_channel: u16,
    /// When the channel was opened at the broker.
    pub(crate) opened_at: Instant,
    /// Whether `channel.open-ok` is pending; it is not passed on to the client.
    pub(crate) opening: bool,
    /// Whether the client's channel had an upstream channel before, which was lost or left.
    pub(crate) again: bool,
    /// Number of pending `basic.qos-ok` that are not passed on to the client.
    pub(crate) own_qos_ok: u16,
    /// Number of pending `channel.flow-ok` that are not passed on to the client: the ledger's proofs.
    pub(crate) own_flow_ok: u32,
    /// Pending replies to the client's requests.
    pub(crate) replies_due: u32,
    /// The client's frames in flight, and the numbering of its confirms.
    pub(crate) ledger: Arc<Ledger>,
    /// Added to the broker's delivery tags. The last tag that the client received on earlier upstream channels.
    pub(crate) delivery_offset: u64,
    /// The missing part of a message that is being streamed to the client.
    pub(crate) missing: PartialDelivery,
    /// Set when the client did not read its deliveries fast enough. The channel is about to be left, and later
    /// deliveries are requeued then.
    pub(crate) overflowed: bool,
    /// The consumer tag of the last delivery; empty if the delivery has no headers, and so no stream offset.
    pub(crate) consumer_tag: Vec<u8>,
    /// Whether the arriving message is dropped.
    pub(crate) dropping: bool,
    /// The confirms received, in confirm mode.
    pub(crate) confirms: Option<Box<Confirms>>,
    /// Whether the session sent `channel.close` and waits for the reply.
    pub(crate) close_sent: bool,
    /// The queue that an empty name means on the channel.
    pub(crate) last_queue: Option<Box<str>>,
    pub(crate) silence: ChannelSilence,
}

impl Lease {
    /// A lease that begins `now`, on a channel that is opened `now` unless it rests.
    pub(crate) fn new(
        link: Arc<ClientLink>,
        ledger: Arc<Ledger>,
        id: u64,
        client_channel: u16,
        now: Instant,
    ) -> Self {
        Self {
            link,
            id,
            client_channel,
            opened_at: now,
            opening: true,
            again: false,
            own_qos_ok: 0,
            own_flow_ok: 0,
            replies_due: 0,
            ledger,
            delivery_offset: 0,
            missing: PartialDelivery::Nothing,
            overflowed: false,
            consumer_tag: Vec::new(),
            dropping: false,
            confirms: None,
            close_sent: false,
            last_queue: None,
            silence: ChannelSilence::default(),
        }
    }
}

/// A departed client's unsettled frames on a channel whose connection is lost.
#[derive(Debug)]
pub(crate) struct DepartedLedger {
    pub(crate) remains: UnsettledEntries,
    /// Whether they were published in confirm mode.
    pub(crate) confirming: bool,
    /// Whether these frames may have stalled the connection.
    pub(crate) is_suspect: bool,
}

/// The state of the opening of a client's new channel when its connection ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ChannelOpening {
    /// The broker has opened it, or one before it that was lost or left.
    #[default]
    Done,
    Pending,
    /// The broker refuses to open one more.
    Refused,
}

/// The missing part of a message that is being streamed to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartialDelivery {
    Nothing,
    /// The content header, and the body that it announces.
    Header,
    /// This number of bytes of body.
    Body(u64),
}

/// A session's use of a channel that it gives back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Messages published in confirm mode.
    pub(crate) published: u64,
    /// Whether anything was sent whose success no reply reports: a publish outside confirm mode, a method
    /// with no-wait.
    pub(crate) unproven: bool,
    /// Whether a limit for the whole channel was set.
    pub(crate) global_prefetch: bool,
    /// Whether it was used in any other way, which only a close at the broker undoes.
    pub(crate) touched: bool,
}

/// The pending replies and confirms of a channel that was given back and is not clean yet.
#[derive(Debug)]
pub(crate) struct Settling {
    /// Pending replies, which are discarded.
    replies_due: u32,
    /// Number of these that precede the replies counted by the ledger.
    own_due: u32,
    /// The ledger of the client that gave the channel back, if it has unsettled frames; kept until they are answered.
    left: Option<Arc<Ledger>>,
    /// The number of the lease, unique among those of its client.
    lease: u64,
    /// The queue that an empty name means on the channel.
    last_queue: Option<Box<str>>,
    confirms: Option<Box<Confirms>>,
    opened_at: Instant,
    /// When the channel was given back.
    since: Instant,
    /// Whether it was given back before the broker had opened it.
    opening: bool,
    /// Whether the channel is being closed although messages are unconfirmed, because its number is needed.
    given_up: bool,
    silence: ChannelSilence,
}

impl Settling {
    /// Created from the lease that ends `now`, with `fences` pending replies that the pool requested itself.
    pub(crate) fn new(lease: Lease, published: u64, fences: u32, now: Instant) -> Self {
        let own = u32::from(lease.opening) + u32::from(lease.own_qos_ok);
        let mut confirms = lease.confirms;
        if let Some(confirms) = &mut confirms {
            confirms.published += published;
        }
        (0..fences).for_each(|_| lease.ledger.prove());
        Self {
            replies_due: lease.replies_due + own + lease.own_flow_ok + fences,
            own_due: own,
            left: lease.ledger.has_entries().then_some(lease.ledger),
            lease: lease.id,
            last_queue: lease.last_queue,
            confirms,
            opened_at: lease.opened_at,
            since: now,
            opening: lease.opening,
            given_up: false,
            silence: lease.silence,
        }
    }

    /// When the channel was given back, if it waits only for confirms and these are overdue. Only time after `answers_since`
    /// counts, in which the broker could send them. The queue may never confirm, for example a quorum queue that has lost its
    /// majority.
    pub(super) fn overdue_since(&self, answers_since: Instant, now: Instant) -> Option<Instant> {
        let is_overdue = now >= self.since.max(answers_since) + OVERDUE_AFTER;
        (self.replies_due == 0 && is_overdue).then_some(self.since)
    }

    /// Whether a reply to a method is pending.
    pub(super) fn owes_reply(&self) -> bool {
        self.replies_due > 0
    }

    /// The channel is about to be closed although messages are unconfirmed.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// The state of a resting channel on which the pool has requested a reply as a probe.
    pub(super) fn probe(confirms: Option<Box<Confirms>>, opened_at: Instant, now: Instant) -> Self {
        Self {
            replies_due: 1,
            own_due: 0,
            left: None,
            lease: 0,
            last_queue: None,
            confirms,
            opened_at,
            since: now,
            opening: false,
            given_up: false,
            silence: ChannelSilence::default(),
        }
    }

    /// The unsettled frames of the client that gave the channel back, if any.
    pub(super) fn in_flight(&self) -> Option<(&Ledger, &ChannelSilence)> {
        self.left.as_deref().map(|ledger| (ledger, &self.silence))
    }

    pub(super) fn in_flight_mut(&mut self) -> Option<(&Ledger, &mut ChannelSilence)> {
        self.left.as_deref().map(|ledger| (ledger, &mut self.silence))
    }

    /// When the channel was opened at the broker.
    pub(crate) fn opened_at(&self) -> Instant {
        self.opened_at
    }

    /// Whether the channel was given back before the broker had opened it.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening
    }

    /// Counts a reply.
    pub(crate) fn replied(&mut self, payload: &[u8]) {
        self.replies_due = self.replies_due.saturating_sub(1);
        let Some(ledger) = &self.left else { return };
        if self.own_due > 0 {
            self.own_due -= 1;
            return;
        }
        let answer = Method::decode(payload).ok();
        if let Some(Method::QueueDeclareOk(ok)) = answer {
            self.last_queue = Some(ok.queue.into());
        }
        let may_be_proof = matches!(answer, Some(Method::ChannelFlowOk(_) | Method::BasicQosOk(_)));
        if !(may_be_proof && ledger.answers_proof()) {
            ledger.answered(answer.as_ref(), self.last_queue.as_deref());
        }
    }

    /// Whether the broker has processed everything that was sent; see [`Ledger::poll_processed`].
    pub(super) fn poll_processed(&self) -> AnswerProgress {
        self.left.as_ref().map_or(AnswerProgress::Yes, |ledger| ledger.poll_processed())
    }

    /// Records that a reply is about to be requested.
    pub(super) fn prove(&mut self) {
        self.replies_due += 1;
        self.left.iter().for_each(|ledger| ledger.prove());
    }

    /// The broker has closed the channel on request. If the channel was given up, returns its unconfirmed messages.
    pub(super) fn closed(&self) -> Option<UnsettledEntries> {
        let ledger = self.left.as_ref()?;
        ledger.closed();
        self.given_up.then(|| ledger.take())
    }

    /// The broker has closed the channel for a fault, and discards everything else that was sent on it.
    pub(super) fn failed(&self) {
        if let Some(ledger) = &self.left {
            ledger.abandoned();
        }
    }

    /// Whether the client that gave the channel back has unsettled frames.
    pub(super) fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Counts the confirm, positive or negative, of this method.
    pub(super) fn take_confirm(&mut self, payload: &[u8]) {
        match Method::decode(payload) {
            Ok(Method::BasicAck(ack)) => self.confirmed(ack.delivery_tag, ack.multiple),
            Ok(Method::BasicNack(nack)) => self.confirmed(nack.delivery_tag, nack.multiple),
            _ => {}
        }
    }

    fn confirmed(&mut self, tag: u64, multiple: bool) {
        if let Some(confirms) = &mut self.confirms {
            confirms.confirmed(tag, multiple);
        }
        if let Some(ledger) = &self.left {
            ledger.confirmed(tag, multiple);
        }
    }

    /// Takes the unsettled frames when the connection is lost. `is_suspect` if they may be the cause.
    pub(crate) fn into_left(self, is_suspect: bool) -> Option<DepartedLedger> {
        let confirming = self.confirms.is_some();
        self.left.map(|ledger| DepartedLedger { remains: ledger.take(), confirming, is_suspect })
    }

    /// Whether nothing is pending any more, so that the channel can rest.
    pub(crate) fn is_clean(&self) -> bool {
        self.replies_due == 0 && self.confirms.as_ref().is_none_or(|confirms| confirms.is_complete())
    }

    /// The count of confirms, which is kept while the channel rests.
    pub(crate) fn into_confirms(self) -> Option<Box<Confirms>> {
        self.confirms
    }
}

/// How long a channel that was given back may wait for confirms before it is closed if its number is needed: longer than a
/// healthy queue takes to confirm, and shorter than a client waits for a channel.
pub(crate) const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// The publishes of a channel that have been confirmed, positively or negatively.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    /// Number of messages published under earlier leases.
    published: u64,
    /// All messages up to this number are confirmed.
    up_to: u64,
    /// Confirmed messages beyond `up_to`, confirmed out of order. Their number is bounded by the publisher's own window.
    beyond: BTreeSet<u64>,
    /// Set while a session waits until everything up to this number is confirmed.
    awaited: Option<u64>,
}

impl Confirms {
    /// Records a confirm; returns whether it completes the awaited range.
    pub(crate) fn confirmed(&mut self, tag: u64, multiple: bool) -> bool {
        if multiple {
            self.up_to = self.up_to.max(tag);
            self.beyond = self.beyond.split_off(&(tag.saturating_add(1)));
        } else if tag == self.up_to + 1 {
            self.up_to = tag;
        } else {
            self.beyond.insert(tag);
        }
        while self.beyond.remove(&(self.up_to + 1)) {
            self.up_to += 1;
        }
        let reached = self.awaited.is_some_and(|sequence| self.up_to >= sequence);
        if reached {
            self.awaited = None;
        }
        reached
    }

    /// The number up to which all messages are confirmed.
    pub(crate) fn up_to(&self) -> u64 {
        self.up_to
    }

    /// Whether messages beyond [`Self::up_to`] are confirmed.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.beyond.is_empty()
    }

    /// Whether this message is confirmed.
    pub(crate) fn has(&self, tag: u64) -> bool {
        tag <= self.up_to || self.beyond.contains(&tag)
    }

    /// Number of messages published before the present lease began.
    pub(crate) fn base(&self) -> u64 {
        self.published
    }

    /// Whether all messages of earlier leases are confirmed.
    fn is_complete(&self) -> bool {
        self.up_to >= self.published
    }

    /// Whether the first `published` messages of the present lease are confirmed; if not, [`Self::confirmed`]
    /// will report it.
    pub(crate) fn poll_up_to(&mut self, published: u64) -> bool {
        let sequence = self.published + published;
        let confirmed = self.up_to >= sequence;
        self.awaited = (!confirmed).then_some(sequence);
        confirmed
    }
}

#[cfg(test)]
mod state_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_in_any_order_add_up() {
        let mut confirms = Confirms::default();
        assert!(!confirms.poll_up_to(5));
        for (tag, multiple) in [(2, false), (4, false), (1, false), (5, false)] {
            assert!(!confirms.confirmed(tag, multiple), "3 is missing");
        }
        assert!(confirms.confirmed(3, true));
        assert!(confirms.poll_up_to(5));
        assert!(!confirms.poll_up_to(6));
        assert!(confirms.confirmed(6, false));
        assert!(confirms.beyond.is_empty());
    }
}
