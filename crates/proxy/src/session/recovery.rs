//! Recovery of a client's channels when their upstream connection is lost (P7).

use std::time::Duration;

use amqp::method::basic;
use amqp::{Fault, ReplyCode};

use super::channel::Channel;
use super::placement::UpstreamLink;
use super::side::Side;
use super::{Life, ProxySession};
use crate::metrics::add;
use crate::pool::channel_limit;
use crate::upstream::{ChannelOpening, Role, UnsettledEntries};

impl ProxySession {
    /// An upstream connection has ended. If the client had channels or an exclusive queue on it, recoverable state
    /// continues on another connection; any other state ends with an error that names it.
    pub(super) fn lost(&mut self, id: u64, fault: Fault, is_suspect: bool) -> Result<(), Fault> {
        let lost = self.attached.iter().position(|upstream| upstream.id == id);
        let now = self.output.now;
        let opened_at = lost.map(|place| self.attached.swap_remove(place).opened_at);
        let lasted = opened_at.map(|opened_at| now.saturating_duration_since(opened_at));
        let is_own = self.own.upstream().is_some_and(|upstream| upstream.id == id);
        if is_own {
            self.own = UpstreamLink::None;
            self.rekeyed = false;
        }
        for upstream_link in [&mut self.general, &mut self.publishing] {
            if upstream_link.upstream().is_some_and(|upstream| upstream.id == id) {
                *upstream_link = UpstreamLink::None;
            }
        }
        if self.life == Life::Returning {
            if is_own {
                self.life = Life::Closed;
            }
            return Ok(());
        }
        let sides = self.sides_at(id);
        let lost_exclusive = is_own && self.exclusive;
        if sides.is_empty() && !lost_exclusive {
            return Ok(());
        }
        self.pool.topologies().lost_client(&self.virtual_host, self.link.declarer_id());
        let is_over_limit = channel_limit(&fault, &self.credentials.username).is_some();
        if !self.link.replay_buffer.keeps_messages() {
            // Another client may have opened the channel that exceeded the limit.
            return Err(if is_over_limit { broken_off(&fault) } else { fault });
        }
        if fault.code != ReplyCode::ConnectionForced && !is_own && !is_over_limit {
            // The culprit cannot be identified (P2). Each suspect continues on a connection of its own, where
            // a repeated fault ends only the client that causes it.
            self.suspect |= sides.iter().any(|(number, role)| self.is_suspect(*number, *role));
        }
        // Likewise for a stall: on its own connection, only this client waits for its queue.
        self.suspect |= is_suspect;
        let has_risked = sides.iter().any(|(number, _)| self.has_risked(*number));
        let steady = STEADY.min(self.pool.config().outage_max);
        let is_steady = lasted.is_some_and(|lasted| lasted > steady);
        let (remains, is_new) = self.all_remains(sides, is_steady);
        let nothing_asked = remains.iter().all(|(_, _, remains)| remains.frames.is_empty());
        // RabbitMQ's quorum queues fail this way when a consumer is restored while they elect a leader.
        let broker_failed = fault.code == ReplyCode::InternalError && nothing_asked && !has_risked;
        if remains.iter().any(|(_, _, remains)| remains.opening == ChannelOpening::Refused) {
            self.queue_opened_again(remains);
            return Err(fault);
        }
        if is_own && fault.code != ReplyCode::ConnectionForced && !broker_failed && !is_over_limit {
            // The broker rejected something that was sent, and would reject it again.
            let counters = self.pool.counters();
            remains.iter().for_each(|(_, _, remains)| counters.count_lost(remains));
            return Err(fault);
        }
        let is_new = is_new || remains.iter().any(|(_, _, remains)| remains.progressed);
        let goes_on = if lost_exclusive && self.life == Life::Open {
            Err(cannot_recover(ReplyCode::ConnectionForced, &fault, "an exclusive queue"))
        } else {
            self.validate_progress(is_new, &fault)
        };
        if goes_on.is_err() {
            self.requeue_unsettled(remains);
            return goes_on;
        }
        // Pauses because queues elect a leader, or because the broker may still count the channels of the lost connection.
        if broker_failed || (is_over_limit && !is_new) {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        // Resumes all sides, even if one fails: the others' frames are then handed over.
        let mut result = Ok(());
        for (number, role, remains) in remains {
            let resumed = self.resume(number, role, remains, &fault);
            result = result.and(resumed);
        }
        result
    }

    /// The sides of channels that are placed on a connection.
    pub(super) fn sides_at(&self, id: u64) -> Vec<(u16, Role)> {
        let mut sides = Vec::new();
        for (number, channel) in self.channels.iter() {
            let is_there = |role: &Role| {
                let route = channel.side(*role).and_then(Side::route);
                route.is_some_and(|route| route.upstream.id == id)
            };
            let roles = [Role::General, Role::Publishing].into_iter().filter(is_there);
            sides.extend(roles.map(|role| (number, role)));
        }
        sides
    }

    /// Takes the unsettled entries of the sides. Also returns whether this loss `is_new` as far as the sides tell: none of
    /// the frames and recreated consumers that are lost now had been lost before.
    fn all_remains(
        &mut self,
        sides: Vec<(u16, Role)>,
        is_steady: bool,
    ) -> (Vec<(u16, Role, UnsettledEntries)>, bool) {
        let (mut all, mut is_new) = (Vec::new(), true);
        for (number, role) in sides {
            let Some(remains) = self.remains(number, role) else { continue };
            let sends_again = self.side(number, role).is_some_and(|side| side.sends_again);
            is_new &= (!sends_again || remains.frames.is_empty()) && (is_steady || !remains.made_again);
            all.push((number, role, remains));
        }
        (all, is_new)
    }

    /// Requeues the unsettled entries of the sides of a session that ends now and hands them over.
    fn requeue_unsettled(&mut self, remains: Vec<(u16, Role, UnsettledEntries)>) {
        for (number, role, remains) in remains {
            let Some(side) = self.side(number, role) else { continue };
            let before = side.queued.len();
            side.requeue_unsettled(remains);
            let queued = side.queued.len() - before;
            self.queued += queued;
        }
    }

    /// Like [`Self::requeue_unsettled`], when the broker has refused to open one more channel: drops the frames of the
    /// channels that it refused.
    fn queue_opened_again(&mut self, remains: Vec<(u16, Role, UnsettledEntries)>) {
        let is_refused =
            |(_, _, remains): &(u16, Role, UnsettledEntries)| remains.opening == ChannelOpening::Refused;
        let (refused, others): (Vec<_>, Vec<_>) = remains.into_iter().partition(is_refused);
        let counters = self.pool.counters();
        refused.iter().for_each(|(_, _, remains)| counters.count_lost(remains));
        self.requeue_unsettled(others);
    }

    /// Whether frames were sent on a side that the broker has not answered, or that have no answer.
    fn is_suspect(&mut self, number: u16, role: Role) -> bool {
        self.side(number, role).is_some_and(|side| side.is_suspect())
    }

    /// Whether a message that may crash the broker's channel was sent on this channel.
    fn has_risked(&mut self, number: u16) -> bool {
        self.channels.get_mut(number).is_some_and(|channel| channel.risked)
    }

    fn remains(&mut self, number: u16, role: Role) -> Option<UnsettledEntries> {
        let remains = self.side(number, role)?.take_remains();
        add(&self.pool.counters().channels_unconfirmed, u64::from(remains.lost > 0));
        Some(remains)
    }

    /// Ends the client if losses repeat for too long: a broker that keeps accepting connections and losing them is an
    /// outage, too. A loss `is_new` if nothing of what is lost had been lost before without an answer since.
    pub(super) fn validate_progress(&mut self, is_new: bool, fault: &Fault) -> Result<(), Fault> {
        if is_new {
            self.in_trouble_since = None;
            self.pause = Duration::ZERO;
        }
        match self.in_trouble_since {
            Some(since)
                if self.output.now.saturating_duration_since(since) > self.pool.config().outage_max =>
            {
                Err(fault.clone())
            }
            Some(_) => Ok(()),
            None => {
                self.in_trouble_since = Some(self.output.now);
                Ok(())
            }
        }
    }

    /// Continues a side of a channel on another connection, or ends the channel.
    pub(super) fn resume(
        &mut self,
        number: u16,
        role: Role,
        remains: UnsettledEntries,
        fault: &Fault,
    ) -> Result<(), Fault> {
        let (is_open, suspect) = (self.life == Life::Open, self.suspect);
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if let Some(what) = unrecoverable_state(channel, &remains) {
            self.queued -= channel.queued();
            // Frames of a transaction are not kept, and frames behind half a message are useless.
            channel.in_line = Vec::new();
            channel.sides_mut().for_each(|side| side.queued = Vec::new());
            if channel.is_closing() {
                self.finish_channel(number);
            } else {
                self.fail_channel(number, &cannot_recover(ReplyCode::PreconditionFailed, fault, what));
            }
            return Ok(());
        }
        for delivery_tag in &remains.too_large {
            let nack = basic::Nack { delivery_tag: *delivery_tag, multiple: false, requeue: false };
            self.answer(number, nack);
        }
        add(&self.pool.counters().messages_replayed, remains.messages);
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        let before = channel.queued();
        let ends = channel.is_closing() || !is_open;
        let Some(side) = channel.side_mut(role) else { return Ok(()) };
        let was_own = side.route().is_some_and(|route| route.own);
        let goes_on = side.resume(remains, ends, suspect && role == Role::General);
        if was_own && !channel.is_own() {
            // The channel returns to shared connections, now or with its next frame.
            channel.split_sides();
        }
        self.queued += channel.queued() - before;
        // Frames that waited for this side may be sent now.
        self.line_up(number);
        if goes_on {
            add(&self.pool.counters().channels_recovered, 1);
            return if suspect { self.move_to_dedicated(number) } else { self.place(number, role) };
        }
        // The other side may have waited for this one to leave.
        self.place(number, Role::General)?;
        self.place(number, Role::Publishing)?;
        if self.channels.get_mut(number).is_some_and(|channel| channel.is_closing()) {
            self.close_sides(number);
        }
        Ok(())
    }
}

/// The state of a channel that cannot be recovered after the loss of its connection, if any.
fn unrecoverable_state(channel: &Channel, remains: &UnsettledEntries) -> Option<&'static str> {
    if channel.general.transactional {
        Some("a transaction")
    } else if channel.has_partial_message() && remains.last_too_large {
        Some("half of a large message")
    } else if !channel.is_closing() && remains.carried.consumers.iter().any(|consumer| consumer.is_reply_to) {
        Some("direct reply-to")
    } else {
        None
    }
}

fn broken_off(fault: &Fault) -> Fault {
    Fault::new(ReplyCode::ConnectionForced, format!("upstream connection lost: {}", fault.text))
}

fn cannot_recover(code: ReplyCode, fault: &Fault, what: &str) -> Fault {
    let text = format!("{what} cannot be carried over to another upstream connection: {}", fault.text);
    Fault::new(code, text)
}

/// If a connection lasted this long, the consumers that were recreated on it count as recovered, and its loss as a new one.
const STEADY: Duration = Duration::from_secs(10);
/// The shortest and longest pause after a broker has failed to restore a consumer.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
