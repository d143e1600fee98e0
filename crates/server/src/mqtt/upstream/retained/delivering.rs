//! Retained messages for a session's new subscriptions.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec;

use broker::Timestamp;
use hashbrown::HashMap;
use mqtt::QoS;
use mqtt::server::{ServerConnection as Engine, Undeliverable};
use sync::work;
use transport::Outbox;

use super::log::{LogClient, LogProgress};
use crate::mqtt::on_demand::OnDemand;
use crate::mqtt::pending_retained::{PendingCopy, PendingRetained};
use crate::mqtt::retained::RetainedMessage;
use crate::mqtt::subscriptions::FilterMatch;
use crate::mqtt::upstream::session::UpstreamSession;

/// The longest time that a SUBACK waits until the log has been read, for example while the upstream is unreachable.
/// Afterwards the retained messages follow once it has been read.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// SUBSCRIBEs whose retained messages wait for the log, at which the client is no longer read.
const MAX_TICKETS: usize = 1024;

/// The maximum of remembered topics of live messages while retained ones wait: some 100 KiB.
const MAX_LIVE: usize = 1000;

/// Cost of a retained message for one client, in nanoseconds.
const MESSAGE: u32 = 1_500;

/// Cost of a topic that a filter matches, in nanoseconds.
const MATCHED: u32 = 300;

/// The retained messages of one session's subscriptions.
pub(in super::super) struct RetainedSession {
    pub(in super::super) log: LogClient,
    /// Dropped when no new subscription waits for retained messages any more.
    waiting: OnDemand<RetainedWaiting>,
}

/// New subscriptions that wait for retained messages.
#[derive(Default)]
struct RetainedWaiting {
    /// Subscriptions that wait until the log has been read.
    tickets: VecDeque<RetainedTicket>,
    /// Topics whose messages have to be sent to the client.
    pending: PendingRetained,
    /// The topics of live RETAIN messages that were sent while tickets or copies waited, each with the hash of the last
    /// payload. A retained message may be older than these, and must not follow them.
    live: HashMap<Box<str>, u64>,
}

struct RetainedTicket {
    ticket: u64,
    /// Filters that have not been searched completely.
    filters: vec::IntoIter<Arc<str>>,
    /// The progress of the first filter's search.
    progress: LogProgress,
}

/// A SUBSCRIBE's wait for retained messages.
#[derive(Debug, Default)]
pub(in super::super) enum RetainedWait {
    #[default]
    No,
    /// The filters whose retained messages are requested once all of the packet is bound.
    Wanted(Vec<Arc<str>>),
    /// SUBACK waits until the log has been read up to this ticket, or this time has come.
    Ticket(u64, Instant),
}

impl RetainedSession {
    pub(in super::super) fn new(log: LogClient) -> Self {
        Self { log, waiting: OnDemand::default() }
    }

    /// Advances the wait of a SUBSCRIBE whose filters are all bound.
    pub(in super::super) fn advance(&mut self, wait: &mut RetainedWait, outbox: &Arc<Outbox>, now: Instant) {
        if let RetainedWait::Wanted(filters) = wait {
            let filters = std::mem::take(filters).into_iter();
            *wait = match self.log.ticket(outbox) {
                Some(ticket) => {
                    let progress = LogProgress::default();
                    self.waiting.made().tickets.push_back(RetainedTicket { ticket, filters, progress });
                    RetainedWait::Ticket(ticket, now + MAX_WAIT)
                }
                None => RetainedWait::No,
            };
        }
        if let RetainedWait::Ticket(ticket, end) = *wait
            && (self.log.has_reached(ticket) || end <= now)
        {
            *wait = RetainedWait::No;
        }
    }

    /// Called for each live RETAIN message sent to the client, since it may be newer than the topic's message in the log.
    pub(in super::super) fn sent_live(&mut self, topic: &str, payload: &[u8], outbox: &Arc<Outbox>) {
        let Some(waiting) = self.waiting.get_mut().filter(|waiting| !waiting.is_over()) else { return };
        let hash = waiting.live.hasher().hash_one(payload);
        waiting.live.insert(topic.into(), hash);
        if waiting.live.len() <= MAX_LIVE {
            return;
        }
        // Once the log has been read up to its present end, nothing in it is older than the live messages sent so far.
        if let Some(renewed) = self.log.ticket(outbox) {
            waiting.tickets.iter_mut().for_each(|ticket| ticket.ticket = renewed);
        }
        for (topic, _) in std::mem::take(&mut waiting.live) {
            waiting.pending.discard(&topic);
        }
    }

    /// Whether a topic's retained message may be sent after the live messages so far. If it differs from the last live
    /// message it may be older; a newer one comes live. If it is the same, each new subscription gets it (section
    /// 3.3.1.3).
    fn may_follow(&self, message: &RetainedMessage) -> bool {
        let Some(RetainedWaiting { live, .. }) = self.waiting.get() else { return true };
        let last = live.get(&*message.topic);
        last.is_none_or(|last| *last == live.hasher().hash_one(&*message.payload))
    }

    /// Makes messages pending for filters whose log has been read, if the client is still subscribed to them.
    pub(super) fn collect(&mut self, is_subscribed: impl Fn(&str) -> bool, now: Timestamp) {
        let Self { log, waiting } = self;
        let Some(RetainedWaiting { tickets, pending, .. }) = waiting.get_mut() else { return };
        // A few topics at a time, since each filter may match very many.
        while !work::is_turn_over()
            && let Some(waiting) = tickets.front_mut().filter(|waiting| log.has_reached(waiting.ticket))
        {
            let Some(filter) = waiting.filters.as_slice().first() else {
                tickets.pop_front();
                continue;
            };
            if is_subscribed(filter) {
                let messages = log.matching(filter, &mut waiting.progress, now);
                work::charge(MATCHED, messages.len());
                messages.iter().for_each(|found| pending.add(Arc::clone(&found.topic), false, filter));
                if !waiting.progress.is_done() {
                    continue;
                }
            }
            waiting.filters.next();
            waiting.progress = LogProgress::default();
        }
        if waiting.get().is_some_and(RetainedWaiting::is_over) {
            *waiting = OnDemand::default();
        }
    }

    /// The topics whose messages can be sent now, in order.
    #[cfg(test)]
    pub(super) fn sendable(&self) -> Vec<String> {
        let now = Timestamp(0);
        let topics = self.waiting.get().into_iter().flat_map(|waiting| waiting.pending.topics());
        let found = topics.filter_map(|topic| self.log.get(topic, now));
        found.filter(|message| self.may_follow(message)).map(|message| message.topic.to_string()).collect()
    }

    pub(in super::super) fn has_capacity(&self) -> bool {
        self.waiting.get().is_none_or(|waiting| waiting.tickets.len() < MAX_TICKETS)
    }

    /// Whether there are messages for the client.
    pub(in super::super) fn has_messages(&self) -> bool {
        self.waiting.get().is_some_and(|waiting| !waiting.pending.is_empty())
    }

    /// The next copy to be sent.
    fn first(&self) -> Option<PendingCopy> {
        self.waiting.get()?.pending.first()
    }

    /// Removes that copy, which is being sent.
    fn pop_first(&mut self) {
        if let Some(waiting) = self.waiting.get_mut() {
            waiting.pending.pop_first();
        }
    }
}

impl RetainedWaiting {
    /// Whether nothing waits, so that the live messages need not be remembered.
    fn is_over(&self) -> bool {
        self.tickets.is_empty() && self.pending.is_empty()
    }
}

impl UpstreamSession {
    /// Makes the retained messages of subscriptions pending whose log has been read.
    pub(in super::super) fn collect_retained(&mut self) {
        let Self { retained, subscriptions, wall, .. } = self;
        retained.collect(|filter| subscriptions.get(filter).is_some(), *wall);
    }

    /// Sends the retained messages that the client can take now.
    pub(in super::super) fn deliver_retained(&mut self, engine: &mut Engine) {
        while self.is_open()
            && self.outbox.has_capacity()
            && !work::is_turn_over()
            && let Some(PendingCopy { topic, filter, .. }) = self.retained.first()
        {
            work::charge(MESSAGE, 1);
            // `None` if the message was removed or has come live, or the subscription is gone.
            let verdict = match filter {
                Some(filter) => self.subscriptions.get(&filter).map(FilterMatch::of),
                None => self.subscriptions.match_retained(&topic),
            };
            let message = self.retained.log.get(&topic, self.wall);
            let found = message.filter(|message| self.retained.may_follow(message)).zip(verdict);
            let copy = found.map(|(message, verdict)| message.to_subscriber(&verdict, self.wall));
            if copy.as_ref().is_some_and(|copy| copy.qos != QoS::AtMostOnce) && engine.free_window() == 0 {
                return;
            }
            let tag = self.own_tag();
            // A message that is too large for the client counts as sent.
            if copy.map(|copy| self.send(copy, tag, engine)) == Some(Err(Undeliverable::NoCapacity)) {
                return;
            }
            self.retained.pop_first();
        }
    }
}
