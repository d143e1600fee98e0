//! Retained messages for a session's new subscriptions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec;

use hashbrown::HashSet;
use mqtt::QoS;
use mqtt::server::{ServerConnection as Engine, Undeliverable};
use sync::work;
use transport::Outbox;

use super::log::LogClient;
use crate::mqtt::pending_retained::{PendingCopy, PendingRetained};
use crate::mqtt::subscriptions::Verdict;
use crate::mqtt::upstream::session::UpstreamSession;

/// Longest time that SUBACK waits for the log, which is read while many topics are there or the upstream is away. The retained
/// messages follow when it has been read.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// SUBSCRIBEs whose retained messages wait for the log at which the client is no longer read.
const MAX_TICKETS: usize = 1024;

/// Cost of a retained message for one client, in nanoseconds.
const MESSAGE: u32 = 1_500;

/// Cost of a topic that a filter matches, in nanoseconds.
const MATCHED: u32 = 300;

/// A session's part in retained messages.
pub(in super::super) struct RetainedSession {
    pub(in super::super) log: LogClient,
    /// Subscriptions that wait until the log has been read.
    tickets: VecDeque<RetainedTicket>,
    /// Topics whose messages the client is to be sent.
    pending: PendingRetained,
    /// Topics of live messages with RETAIN that the client was sent while tickets wait.
    superseded: HashSet<Box<str>>,
}

struct RetainedTicket {
    ticket: u64,
    filters: vec::IntoIter<Arc<str>>,
}

/// Whether a SUBSCRIBE waits for retained messages.
#[derive(Debug, Default)]
pub(in super::super) enum RetainedWait {
    #[default]
    No,
    /// They are asked for when everything is bound.
    Wanted(Vec<Arc<str>>),
    /// The log is being read up to this ticket, and SUBACK waits for that until then.
    Ticket(u64, Instant),
}

impl RetainedSession {
    pub(in super::super) fn new(log: LogClient) -> Self {
        let (tickets, pending, superseded) = Default::default();
        Self { log, tickets, pending, superseded }
    }

    /// Goes on with the wait of a SUBSCRIBE whose filters are bound.
    pub(in super::super) fn advance(&mut self, wait: &mut RetainedWait, outbox: &Arc<Outbox>, now: Instant) {
        if let RetainedWait::Wanted(filters) = wait {
            let filters = std::mem::take(filters).into_iter();
            *wait = match self.log.ticket(outbox) {
                Some(ticket) => {
                    self.tickets.push_back(RetainedTicket { ticket, filters });
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

    /// Called for each live message that the client is sent, as it may be newer than what is retained of its topic.
    pub(in super::super) fn sent_live(&mut self, topic: &str) {
        self.pending.discard(topic);
        if !self.tickets.is_empty() {
            self.superseded.insert(topic.into());
        }
    }

    pub(in super::super) fn has_room(&self) -> bool {
        self.tickets.len() < MAX_TICKETS
    }

    /// Whether there are messages for the client.
    pub(in super::super) fn has_messages(&self) -> bool {
        !self.pending.is_empty()
    }
}

impl UpstreamSession {
    /// Makes the retained messages of subscriptions pending whose log has been read.
    pub(in super::super) fn collect_retained(&mut self) {
        let Self { retained, subscriptions, now, .. } = self;
        let RetainedSession { log, tickets, pending, superseded, .. } = retained;
        // One filter at a time, as each may match very many topics.
        while !work::is_turn_over()
            && let Some(waiting) = tickets.front_mut().filter(|waiting| log.has_reached(waiting.ticket))
        {
            let Some(filter) = waiting.filters.next() else {
                tickets.pop_front();
                continue;
            };
            if subscriptions.get(&filter).is_none() {
                continue;
            }
            let messages = log.matching(&filter, *now);
            work::charge(MATCHED, messages.len());
            for message in messages.iter().filter(|message| !superseded.contains(&*message.topic)) {
                pending.add(Arc::clone(&message.topic), false, &filter);
            }
        }
        if tickets.is_empty() {
            *superseded = HashSet::new();
        }
    }

    /// Sends the retained messages that the client can take now.
    pub(in super::super) fn deliver_retained(&mut self, engine: &mut Engine) {
        while self.is_open()
            && self.outbox.has_room()
            && !work::is_turn_over()
            && let Some(PendingCopy { topic, filter, .. }) = self.retained.pending.first()
        {
            work::charge(MESSAGE, 1);
            // The message has been removed, or the subscription is gone.
            let verdict = match filter {
                Some(filter) => self.subscriptions.get(&filter).map(Verdict::of),
                None => self.subscriptions.match_retained(&topic),
            };
            let found = self.retained.log.get(&topic, self.now).zip(verdict);
            let copy = found.map(|(message, verdict)| message.to_subscriber(&verdict, self.now));
            if copy.as_ref().is_some_and(|copy| copy.qos != QoS::AtMostOnce) && engine.room() == 0 {
                return;
            }
            let tag = self.own_tag();
            // A message that is too large for the client counts as sent.
            if copy.map(|copy| self.send(copy, tag, engine)) == Some(Err(Undeliverable::NoRoom)) {
                return;
            }
            self.retained.pending.pop_first();
        }
    }
}
