//! Detection of a shared connection that the broker has stopped reading because of one of its channels (P2).
//!
//! RabbitMQ does not read a connection while one of its channels has no credit to pass on messages, as to a quorum queue
//! without a majority (`rabbit_reader`, `credit_flow`). It does not announce this, its heartbeats continue, and the kernel
//! buffers what clients send. So when replies have been due for a while, the pool sends a probe: a `channel.flow` on an
//! existing channel, to which the broker replies as soon as it reads it, whatever the queues do. If it replies, only some
//! queues are slow. A new channel might exceed the user's channel limit.
//!
//! # Example
//! A publishes to one queue all the time. At 0 s, B publishes 2,000 messages to another queue, which has just lost its
//! majority. At 1 s, confirms are due on both channels; at 2 s none has arrived, and a probe is sent. At 3 s the probe has no
//! reply either: the connection is stalled, another one is opened, and new channels are placed there. At 11 s the stalled
//! connection is given up. A continues on the other one, B on a connection of its own.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::{Fault, ReplyCode};

use super::ledger::Ledger;
use super::role::Role;
use super::slot::Slot;
use super::{Phase, Upstream, UpstreamState};
use crate::link::Event;

/// Whether the broker answers on a connection, as far as known.
#[derive(Debug, Default)]
pub(super) struct StallState {
    /// The channel with a pending probe, and the time of the probe, or of the last progress on the connection if that is
    /// later. Cleared by the reply, and if the session gives the channel back before it has sent the probe.
    probe: Option<(u16, Instant)>,
    /// Since when the connection has been stalled, or the time of the last progress on it if that is later. Cleared by
    /// the reply.
    stalled_since: Option<Instant>,
    /// When the broker answered on another connection during the stall. Cleared by the reply.
    replaced_at: Option<Instant>,
}

/// How long the broker has not answered on a channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelSilence {
    /// The numbers of answers at the last check, if more were due.
    answers: Option<(u64, u64)>,
    /// Number of checks since the last answer.
    checks: u32,
    /// How often its session was asked to probe the connection.
    probes: u32,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerCheck {
    /// No answer is due: no check is needed until something is sent.
    AllAnswered,
    /// An answer is due: check again after [`CHECK_INTERVAL`].
    Due,
    /// As `Due`, and the connection has become stalled.
    Stalled,
    /// The connection has been stalled for too long, and the broker answers on another one.
    GivenUp,
}

impl ChannelSilence {
    /// Returns whether an answer is due, and whether one was due at the last check and none has arrived since.
    fn check(&mut self, ledger: &Ledger) -> (bool, bool) {
        let answers = ledger.answers_if_due();
        self.checks = if answers.is_some() && answers == self.answers { self.checks + 1 } else { 0 };
        self.answers = answers;
        (answers.is_some(), self.checks > 0)
    }
}

impl StallState {
    /// Handles an answer on a channel that may have the probe. Returns true if this ends a stall.
    pub(super) fn heard(&mut self, number: u16) -> bool {
        let is_answer = self.probe.is_some_and(|(probe, _)| probe == number);
        is_answer && std::mem::take(self).stalled_since.is_some()
    }

    /// Whether the broker may have stopped reading the connection.
    pub(super) fn is_suspected(&self) -> bool {
        self.probe.is_some() || self.stalled_since.is_some()
    }

    /// Restarts the timeouts, because there was progress on the connection, or because the broker has announced that it
    /// does not read.
    fn restart(&mut self, now: Instant) {
        self.probe = self.probe.map(|(number, _)| (number, now));
        self.stalled_since = self.stalled_since.map(|_| now);
    }
}

impl Upstream {
    /// Checks whether the broker still reads the connection, if that matters: if clients share it to publish, or if its owner
    /// republishes messages itself, and may do so in another order. `is_moving` is true if the broker has answered or read
    /// anything since the last check.
    pub(super) fn check_answers(&self, now: Instant, is_moving: bool) -> AnswerCheck {
        let mut state = self.state.lock();
        let is_watched = match &state.owner {
            Some(owner) => !owner.replay_buffer.keeps_messages(),
            None => state.role == Some(Role::Publishing),
        };
        if state.phase != Phase::Open || !is_watched {
            // The broker may have closed the last channel without a reply to the probe.
            state.stall = StallState::default();
            return AnswerCheck::AllAnswered;
        }
        let (mut is_due, mut is_overdue) = (false, false);
        for (ledger, silence) in state.slots.iter_mut().filter_map(Slot::in_flight_mut) {
            let (due, overdue) = silence.check(ledger);
            is_due |= due;
            is_overdue |= overdue;
        }
        if state.blocked.is_some() || is_moving {
            state.stall.restart(now);
        }
        state.stall.probe = state.stall.probe.filter(|(number, _)| state.owes_answer(*number));
        if state.stall.probe.is_none() {
            if !is_due {
                state.stall = StallState::default();
                return AnswerCheck::AllAnswered;
            }
            // On a stalled connection the broker has closed the channel with the probe, so another probe is needed.
            let is_wanted = is_overdue || state.stall.stalled_since.is_some();
            if is_wanted && state.blocked.is_none() {
                state.stall.probe = self.send_probe(&mut state, now).map(|number| (number, now));
            }
        }
        let StallState { probe, stalled_since, replaced_at } = state.stall;
        match (probe, stalled_since) {
            (Some((_, at)), None) if now >= at + CHECK_INTERVAL => {
                state.stall.stalled_since = Some(now);
                AnswerCheck::Stalled
            }
            (_, Some(since))
                if now >= since + STALLED_MAX && replaced_at.is_some_and(|at| now >= at + THAW_MAX) =>
            {
                AnswerCheck::GivenUp
            }
            _ => AnswerCheck::Due,
        }
    }

    /// Whether the broker has stopped reading the connection.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state.lock().is_stalled()
    }

    /// Whether it is stalled, and the broker answers on another connection.
    pub(crate) fn is_replaced(&self) -> bool {
        let state = self.state.lock();
        state.is_stalled() && state.stall.replaced_at.is_some()
    }

    /// The broker has answered on another connection.
    pub(crate) fn set_replaced(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.is_stalled() {
            state.stall.replaced_at.get_or_insert(now);
        }
    }
}

impl UpstreamState {
    pub(super) fn is_stalled(&self) -> bool {
        self.phase == Phase::Open && self.stall.stalled_since.is_some()
    }

    /// Whether a reply is due on a channel. A session that was asked to send a probe may not have done so yet.
    fn owes_answer(&self, number: u16) -> bool {
        match usize::from(number).checked_sub(1).and_then(|at| self.slots.get(at)) {
            Some(Slot::Leased(lease)) => lease.own_flow_ok > 0,
            Some(Slot::Settling(settling)) => settling.owes_reply(),
            Some(Slot::Closing(_)) => true,
            _ => false,
        }
    }

    /// Asks a session to send a probe on its channel: one of those that were asked least often, preferably without other
    /// pending answers. Returns the channel's number.
    pub(super) fn probe_by_session(&mut self) -> Option<u16> {
        let of_lease = |(number, slot)| match slot {
            &mut Slot::Leased(ref mut lease) if !lease.close_sent => Some((number, lease)),
            _ => None,
        };
        let leased = (1..=u16::MAX).zip(&mut self.slots).filter_map(of_lease);
        let (number, lease) = leased.min_by_key(|(_, lease)| {
            let ChannelSilence { answers, checks, probes } = &lease.silence;
            (*probes, *checks, answers.is_some())
        })?;
        lease.silence.probes += 1;
        lease.link.notify(Event::AnswerWanted { channel: lease.client_channel, lease: lease.id });
        Some(number)
    }

    /// The indexes of the slots that may have stalled the connection: those with at least [`SUSPECT_MESSAGES`] unanswered
    /// messages, or else those with the most. There is at least one, so that repeated stalls come to an end.
    pub(super) fn suspects(&self) -> Vec<usize> {
        let unanswered = |(at, slot): (usize, &Slot)| {
            let (ledger, silence) = slot.in_flight()?;
            Some((silence.checks, ledger.unanswered(), at))
        };
        let mut all: Vec<_> = self.slots.iter().enumerate().filter_map(unanswered).collect();
        let most = all.iter().map(|(_, count, _)| *count).max().unwrap_or_default();
        all.retain(|(_, count, _)| *count >= most.min(SUSPECT_MESSAGES));
        // Slots that have been without an answer for longest come first.
        all.sort_by_key(|(checks, count, _)| Reverse((*checks, *count)));
        all.truncate(SUSPECTS_MAX);
        all.into_iter().map(|(_, _, at)| at).collect()
    }
}

impl Slot {
    /// The ledger of the frames that a client has in flight on the channel.
    fn in_flight(&self) -> Option<(&Ledger, &ChannelSilence)> {
        match self {
            Self::Leased(lease) => Some((&*lease.ledger, &lease.silence)),
            Self::Settling(settling) | Self::Closing(Some(settling)) => settling.in_flight(),
            _ => None,
        }
    }

    fn in_flight_mut(&mut self) -> Option<(&Ledger, &mut ChannelSilence)> {
        match self {
            Self::Leased(lease) => Some((&*lease.ledger, &mut lease.silence)),
            Self::Settling(settling) | Self::Closing(Some(settling)) => settling.in_flight_mut(),
            _ => None,
        }
    }
}

/// The fault of a connection that was given up.
pub(super) fn stalled() -> Fault {
    let text = format!("{STALLED}: the broker has answered nothing on it for {} s", STALLED_MAX.as_secs());
    Fault::new(ReplyCode::ConnectionForced, text)
}

/// Whether a session that republishes messages itself has ended because its upstream connection was stalled, perhaps by its
/// own messages. Its next session should use a connection of its own.
pub fn is_stall(fault: &Fault) -> bool {
    fault.text.contains(STALLED)
}

/// Logs that a connection has become stalled.
pub(super) fn report_stall(upstream: &Arc<Upstream>) {
    tracing::warn!(
        upstream = upstream.id,
        address = %upstream.endpoint,
        user = upstream.credentials().username,
        vhost = &*upstream.virtual_host,
        "upstream connection stalled: the broker answers nothing on it, perhaps because of one queue"
    );
}

const STALLED: &str = "upstream connection lost: stalled";
/// The time between checks, and the timeout of a probe: several round trips to a distant broker.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a connection may be stalled: longer than the election of a quorum queue's leader or a pause of a disk usually
/// takes. When it is given up, its clients' frames in flight are sent again, so some messages will arrive twice.
const STALLED_MAX: Duration = Duration::from_secs(8);
/// After a broker as a whole was frozen, how long it may answer on other connections before it answers on this one.
const THAW_MAX: Duration = Duration::from_secs(2);
/// Number of unanswered messages that make a channel a suspect. RabbitMQ stops reading a connection when a channel has 400
/// messages to pass on, and grants further credit when 200 of them are (`credit_flow_default_credit`).
const SUSPECT_MESSAGES: u64 = 200;
/// Maximum channels that continue on dedicated connections when a stalled one is given up. Several clients may publish to
/// the same queue, but on a busy connection innocent channels have as many messages in flight.
const SUSPECTS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use amqp::Credentials;
    use amqp::frame::write_method;
    use amqp::method::{basic, channel};
    use transport::Protocol as _;

    use super::super::slot::{Lease, Usage};
    use super::super::{MovedState, Peer, Placed};
    use super::*;
    use crate::PoolConfig;
    use crate::link::ClientLink;
    use crate::pool::Pool;

    /// A shared connection whose clients have one channel each, with a message in flight.
    struct Shared {
        begin: Instant,
        peer: Peer,
        upstream: Arc<Upstream>,
        clients: Vec<(Arc<ClientLink>, Arc<Ledger>)>,
    }

    impl Shared {
        fn new(clients: u16) -> Self {
            let pool = Pool::new(PoolConfig::new(Vec::new()));
            let (credentials, begin) = (Arc::new(Credentials::plain("user", "password")), Instant::now());
            let peer = Peer::new(&pool, &credentials, None, Role::Publishing, begin);
            let mut shared =
                Self { begin, upstream: peer.connection.upstream.clone(), peer, clients: Vec::new() };
            for number in 1..=clients {
                let link = ClientLink::departed(Arc::default());
                let ledger = Ledger::new(&link, MovedState::default());
                ledger.messages(b"a message", 1);
                let lease = Lease::new(link.clone(), ledger.clone(), 1, number, begin);
                let placed = shared.upstream.lease(lease, true, Role::Publishing, true);
                assert!(matches!(placed, Placed::On(leased) if leased.channel == number), "{placed:?}");
                shared.upstream.send(number, channel::Open::default());
                shared.clients.push((link, ledger));
            }
            shared.peer.read();
            while shared.peer.deliver(begin).is_some() {}
            shared
        }

        fn at(&self, check: u32) -> Instant {
            self.begin + CHECK_INTERVAL * check
        }

        fn check(&self, check: u32) -> AnswerCheck {
            self.upstream.check_answers(self.at(check), check > 2)
        }

        /// Lets the session that was asked to send a probe do so.
        fn probe(&self, number: u16) {
            let (link, ledger) = &self.clients[usize::from(number) - 1];
            let events = link.take_events();
            let is_asked = matches!(events[..], [Event::AnswerWanted { channel, .. }] if channel == number);
            assert!(is_asked, "{number}: {events:?}");
            ledger.prove();
            self.upstream.expect_proof(number);
            self.upstream.send(number, channel::Flow { active: true });
        }

        /// Makes the connection stalled, and the broker close the channel with the probe.
        fn stall_and_close_probe(&mut self) {
            assert_eq!([0, 1].map(|check| self.check(check)), [AnswerCheck::Due; 2]);
            self.probe(1);
            assert_eq!(self.check(2), AnswerCheck::Stalled);
            self.peer.read();
            assert!(self.peer.close_channel(0));
            assert_eq!(self.peer.deliver(self.at(3)), Some("channel.close"));
        }
    }

    #[test]
    fn an_unused_connection_is_not_stalled() {
        let mut shared = Shared::new(1);
        shared.stall_and_close_probe();
        assert!(shared.upstream.release(1, Usage::default(), shared.at(3)));
        assert_eq!(shared.check(3), AnswerCheck::AllAnswered);
        assert!(!shared.upstream.is_stalled());
    }

    /// Other channels always have pending answers, but never for long enough to make a probe due.
    #[test]
    fn a_connection_whose_probe_was_closed_is_probed_again_while_others_are_busy() {
        let mut shared = Shared::new(2);
        shared.stall_and_close_probe();
        let mut bytes = Vec::new();
        write_method(&mut bytes, 2, basic::Ack { delivery_tag: 1, multiple: false });
        shared.clients[1].1.messages(b"another message", 1);
        shared.peer.connection.handle_input(&bytes, shared.at(3));
        assert_eq!(shared.check(3), AnswerCheck::Due);
        shared.probe(2);
        shared.peer.read();
        assert_eq!(shared.peer.deliver(shared.at(3)), Some("channel.flow-ok"));
        assert!(!shared.upstream.is_stalled());
    }

    /// The broker's channel process may wait for a queue's reply to an earlier request.
    #[test]
    fn a_channel_that_waits_for_another_reply_is_not_the_one_that_is_probed() {
        let mut shared = Shared::new(2);
        shared.upstream.expect_reply(1);
        for number in [1, 2] {
            assert!(shared.upstream.release(
                number,
                Usage { published: 1, ..Usage::default() },
                shared.begin
            ));
        }
        shared.peer.read();
        assert_eq!([0, 1].map(|check| shared.check(check)), [AnswerCheck::Due; 2]);
        shared.peer.read();
        let answer = shared.peer.answers.back().unwrap();
        assert_eq!((answer.channel, answer.name), (2, "channel.flow-ok"));
    }
}
