//! SUBSCRIBEs and UNSUBSCRIBEs in front of an upstream, until they are answered.

use std::collections::VecDeque;
use std::time::Instant;
use std::vec;

use hashbrown::HashMap;
use mqtt::ReasonCode;
use mqtt::session::Subscription;

use super::retained::RetainedWait;
use crate::mqtt::session::{PendingReply, Request};

/// Unanswered SUBSCRIBE and UNSUBSCRIBE packets at which the client is no longer read.
const MAX_PACKETS: usize = 1024;

/// Unanswered upstream requests above which further entries of these packets, which may be very many, have to wait.
const MAX_WAITING: usize = 1024;

/// Packets that wait for the upstream, answered in order. Their entries are processed one by one, as far as the turn and
/// the limit of upstream requests permit.
#[derive(Default)]
pub(super) struct PendingSubscribes {
    packets: VecDeque<PendingPacket>,
    /// Number of packets that have been answered.
    answered: u64,
    /// Number of unanswered packets whose entries have all been processed.
    handled: usize,
    /// The unanswered upstream requests, by number.
    waiting: HashMap<u64, PendingRequest>,
    /// The latest subscribe request of each filter.
    latest: HashMap<Box<str>, LatestSubscribe>,
    /// Number of the last request. Requests about queues and live subscriptions share the numbering.
    last: u64,
    /// Number of the last request that restored a subscription, for which no packet waits.
    last_restored: u64,
}

/// A SUBSCRIBE or UNSUBSCRIBE.
struct PendingPacket {
    packet_id: u16,
    /// The entries that have not been processed.
    entries: PendingEntries,
    /// The reason codes of the processed entries, as far as known.
    reasons: Vec<ReasonCode>,
    /// Number of its unanswered upstream requests.
    waiting: usize,
    /// The wait for the retained messages of its filters.
    retained: RetainedWait,
}

/// The remaining entries of a packet.
pub(super) enum PendingEntries {
    Subscribe(vec::IntoIter<Request>),
    Unsubscribe(vec::IntoIter<Box<str>>),
}

/// An entry of a packet.
pub(super) enum PendingEntry {
    Subscribe(Request),
    Unsubscribe(Box<str>),
}

/// An unanswered upstream request.
struct PendingRequest {
    /// The number of its packet, and the index of its entry there.
    packet: u64,
    entry: usize,
    /// The subscription that the request is for.
    subscribed: Option<Subscribed>,
}

/// A subscription that waits for the upstream.
#[derive(Debug)]
pub(super) struct Subscribed {
    pub(super) filter: Box<str>,
    pub(super) subscription: Subscription,
}

/// The latest request for a filter.
struct LatestSubscribe {
    number: u64,
    /// The subscription that the client has if the pending requests are refused.
    settled: Option<Subscription>,
}

/// The outcome of a request for a subscription.
pub(super) enum SubscribeOutcome {
    /// `packet` is the number of its packet, which may [wait](PendingSubscribes::wait_for) for more.
    Granted { subscribed: Subscribed, packet: u64 },
    /// If this was the filter's latest request, `settled` is the subscription that remains; otherwise the later request
    /// decides.
    Refused { filter: Box<str>, settled: Option<Option<Subscription>> },
}

impl PendingEntries {
    fn next(&mut self) -> Option<PendingEntry> {
        match self {
            Self::Subscribe(requests) => requests.next().map(PendingEntry::Subscribe),
            Self::Unsubscribe(filters) => filters.next().map(PendingEntry::Unsubscribe),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Subscribe(requests) => requests.as_slice().is_empty(),
            Self::Unsubscribe(filters) => filters.as_slice().is_empty(),
        }
    }
}

impl PendingPacket {
    fn is_due(&self) -> bool {
        self.is_bound() && matches!(self.retained, RetainedWait::No)
    }

    /// Whether the upstream has answered all its requests.
    fn is_bound(&self) -> bool {
        self.entries.is_empty() && self.waiting == 0
    }
}

impl PendingSubscribes {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether the client may be read.
    pub(super) fn has_capacity(&self) -> bool {
        self.packets.len() < MAX_PACKETS && !self.has_entries()
    }

    /// Whether the next answer is due.
    pub(super) fn is_due(&self) -> bool {
        self.packets.front().is_some_and(PendingPacket::is_due)
    }

    /// The next answer that is due.
    pub(super) fn next_answer(&mut self) -> Option<PendingReply> {
        let packet = self.packets.pop_front_if(|packet| packet.is_due())?;
        self.answered += 1;
        self.handled = self.handled.saturating_sub(1);
        let PendingPacket { packet_id, entries, reasons, .. } = packet;
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
        Some(match entries {
            PendingEntries::Subscribe(_) => PendingReply::Subscribed { packet_id, reasons },
            PendingEntries::Unsubscribe(_) => PendingReply::Unsubscribed { packet_id, reasons },
        })
    }

    /// When the next answer is due, if the log of retained messages has not been read by then.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.packets.front()?.retained {
            RetainedWait::Ticket(_, end) => Some(end),
            _ => None,
        }
    }

    /// The waits for retained messages of packets whose filters are all bound.
    pub(super) fn retained_waits(&mut self) -> impl Iterator<Item = &mut RetainedWait> {
        let bound = self.packets.iter_mut().filter(|packet| packet.is_bound());
        bound.map(|packet| &mut packet.retained)
    }

    /// Requests the retained messages of the filter that was resolved last.
    pub(super) fn want_retained(&mut self, filter: &str) {
        let Some(packet) = self.packets.get_mut(self.handled) else { return };
        match &mut packet.retained {
            RetainedWait::Wanted(filters) => filters.push(filter.into()),
            retained => *retained = RetainedWait::Wanted(vec![filter.into()]),
        }
    }

    /// Adds a packet.
    pub(super) fn push(&mut self, packet_id: u16, entries: PendingEntries) {
        self.packets.push_back(PendingPacket {
            packet_id,
            entries,
            reasons: Vec::new(),
            waiting: 0,
            retained: RetainedWait::No,
        });
    }

    /// Whether entries have not been processed.
    pub(super) fn has_entries(&self) -> bool {
        self.packets.iter().skip(self.handled).any(|packet| !packet.entries.is_empty())
    }

    /// The next entry, if its requests fit into the limit. The caller has to [resolve](Self::resolve) it.
    pub(super) fn next_entry(&mut self) -> Option<PendingEntry> {
        if self.waiting.len() >= MAX_WAITING {
            return None;
        }
        loop {
            if let Some(entry) = self.packets.get_mut(self.handled)?.entries.next() {
                return Some(entry);
            }
            self.handled += 1;
        }
    }

    /// Sets the reason code of the entry that was taken last, for the case that the requests with these numbers are
    /// granted. The last request is for `subscribed`, if there is one.
    pub(super) fn resolve(
        &mut self,
        reason: ReasonCode,
        numbers: &[u64],
        mut subscribed: Option<Subscribed>,
    ) {
        let Some(packet) = self.packets.get_mut(self.handled) else { return };
        let (number, entry) = (self.answered + self.handled as u64, packet.reasons.len());
        packet.reasons.push(reason);
        packet.waiting += numbers.len();
        for (at, request) in numbers.iter().enumerate() {
            let subscribed = if at + 1 == numbers.len() { subscribed.take() } else { None };
            self.waiting.insert(*request, PendingRequest { packet: number, entry, subscribed });
        }
    }

    /// The number of the packet whose entries have all been resolved, until the next entry is taken.
    pub(super) fn completed(&self) -> Option<u64> {
        let packet = self.packets.get(self.handled)?;
        packet.entries.is_empty().then_some(self.answered + self.handled as u64)
    }

    /// Makes a packet's answer wait for the request with this number.
    pub(super) fn wait_for(&mut self, packet: u64, number: u64) {
        let at = usize::try_from(packet - self.answered).ok();
        let Some(waiting) = at.and_then(|at| self.packets.get_mut(at)) else { return };
        waiting.waiting += 1;
        self.waiting.insert(number, PendingRequest { packet, entry: 0, subscribed: None });
    }

    /// Marks all requests so far as restoring subscriptions.
    pub(super) fn set_restored(&mut self) {
        self.last_restored = self.last;
    }

    /// Whether the request with this number restored a subscription. Requests that nothing waits for have the number 0.
    pub(super) fn is_restoring(&self, number: u64) -> bool {
        (1..=self.last_restored).contains(&number)
    }

    /// A number for a request upstream.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes a request for a filter. If it is refused, the client has `settled`.
    pub(super) fn begin(&mut self, filter: &str, number: u64, settled: Option<Subscription>) {
        let latest = self.latest.entry_ref(filter).or_insert(LatestSubscribe { number, settled });
        latest.number = number;
    }

    /// Called at UNSUBSCRIBE: the answers to earlier requests for the filter change nothing any more.
    pub(super) fn forget(&mut self, filter: &str) {
        self.take_latest(filter);
    }

    fn take_latest(&mut self, filter: &str) -> Option<LatestSubscribe> {
        let latest = self.latest.remove(filter)?;
        if self.latest.is_empty() {
            self.latest = HashMap::new();
        }
        Some(latest)
    }

    /// Records the answer to a request. Returns the outcome if the request is for a subscription.
    pub(super) fn answered(&mut self, number: u64, refused: Option<ReasonCode>) -> Option<SubscribeOutcome> {
        let PendingRequest { packet: number_of, entry, subscribed } = self.waiting.remove(&number)?;
        if self.waiting.is_empty() {
            self.waiting = HashMap::new();
        }
        let packet = self.packets.get_mut(usize::try_from(number_of - self.answered).ok()?)?;
        packet.waiting -= 1;
        let reason = &mut packet.reasons[entry];
        // If several requests fail, the first gives the reason.
        if !reason.is_error() {
            *reason = refused.unwrap_or(*reason);
        }
        let is_refused = reason.is_error();
        let subscribed = subscribed?;
        let is_latest = self.latest.get(&subscribed.filter).is_some_and(|latest| latest.number == number);
        if is_refused {
            let latest = if is_latest { self.take_latest(&subscribed.filter) } else { None };
            let settled = latest.map(|latest| latest.settled);
            return Some(SubscribeOutcome::Refused { filter: subscribed.filter, settled });
        }
        if is_latest {
            self.take_latest(&subscribed.filter);
        } else if let Some(latest) = self.latest.get_mut(&subscribed.filter) {
            latest.settled = Some(subscribed.subscription);
        }
        Some(SubscribeOutcome::Granted { subscribed, packet: number_of })
    }
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;
    use mqtt::packet::SubscribeOptions;

    use super::*;

    const NO: ReasonCode = ReasonCode::NotAuthorized;

    fn request(text: &str) -> Request {
        let options = SubscribeOptions::of_qos(QoS::AtMostOnce);
        Request { text: text.into(), fault: None, options, wants_retained: false, identifier: None }
    }

    fn subscribed(filter: &str) -> Subscribed {
        let options = SubscribeOptions::of_qos(QoS::AtMostOnce);
        Subscribed { filter: filter.into(), subscription: Subscription::of(options) }
    }

    /// Adds a SUBSCRIBE and processes its entry. Returns the number of its request.
    fn subscribe(pending: &mut PendingSubscribes, packet_id: u16, settled: Option<Subscription>) -> u64 {
        pending.push(packet_id, PendingEntries::Subscribe(vec![request("f")].into_iter()));
        assert!(pending.next_entry().is_some());
        let number = pending.next_number();
        pending.begin("f", number, settled);
        pending.resolve(ReasonCode::Success, &[number], Some(subscribed("f")));
        number
    }

    fn answers(pending: &mut PendingSubscribes) -> Vec<(u16, Vec<ReasonCode>)> {
        let answers = std::iter::from_fn(|| pending.next_answer());
        answers
            .filter_map(|then| match then {
                PendingReply::Subscribed { packet_id, reasons }
                | PendingReply::Unsubscribed { packet_id, reasons } => Some((packet_id, reasons)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn packets_are_answered_in_their_order_whichever_request_is_first() {
        let mut pending = PendingSubscribes::default();
        let first = subscribe(&mut pending, 1, None);
        pending.push(2, PendingEntries::Unsubscribe(vec!["x".into(), "y".into()].into_iter()));
        assert!(pending.next_entry().is_some());
        pending.resolve(ReasonCode::Success, &[], None);
        assert!(!pending.has_capacity() && pending.next_entry().is_some());
        pending.resolve(ReasonCode::NoSubscriptionExisted, &[], None);
        assert!(pending.next_entry().is_none() && pending.has_capacity() && !pending.is_due());
        assert!(matches!(pending.answered(first, None), Some(SubscribeOutcome::Granted { .. })));
        assert!(pending.is_due());
        let both = vec![ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
        assert_eq!(answers(&mut pending), [(1, vec![ReasonCode::Success]), (2, both)]);
        assert!(pending.is_empty());
        // The numbering of packets continues.
        let next = subscribe(&mut pending, 3, None);
        pending.answered(next, Some(NO));
        assert_eq!(answers(&mut pending), [(3, vec![NO])]);
    }

    #[test]
    fn a_refusal_leaves_the_subscription_that_was_there() {
        let outcome = |pending: &mut PendingSubscribes, number| match pending.answered(number, Some(NO)) {
            Some(SubscribeOutcome::Refused { settled, .. }) => settled,
            _ => unreachable!(),
        };
        let before = Some(subscribed("f").subscription);
        let mut pending = PendingSubscribes::default();
        let (first, second) = (subscribe(&mut pending, 1, before), subscribe(&mut pending, 2, None));
        assert!(outcome(&mut pending, first).is_none(), "the second decides");
        assert_eq!(outcome(&mut pending, second), Some(before));
        let (first, second) = (subscribe(&mut pending, 3, None), subscribe(&mut pending, 4, before));
        assert!(matches!(pending.answered(first, None), Some(SubscribeOutcome::Granted { .. })));
        assert_eq!(outcome(&mut pending, second), Some(before), "the first was granted");
        let third = subscribe(&mut pending, 5, before);
        pending.forget("f");
        assert!(outcome(&mut pending, third).is_none(), "it was unsubscribed from");
        assert!(pending.latest.is_empty() && pending.waiting.is_empty());
    }

    #[test]
    fn entries_wait_while_very_many_requests_are_unanswered() {
        let mut pending = PendingSubscribes::default();
        let filters = vec!["f".into(); MAX_WAITING + 1];
        pending.push(1, PendingEntries::Unsubscribe(filters.into_iter()));
        let mut numbers = Vec::new();
        while pending.next_entry().is_some() {
            numbers.push(pending.next_number());
            pending.resolve(ReasonCode::Success, &numbers[numbers.len() - 1..], None);
        }
        assert_eq!(numbers.len(), MAX_WAITING);
        assert!(pending.has_entries() && !pending.has_capacity());
        pending.answered(numbers[0], None);
        assert!(pending.next_entry().is_some());
    }
}
