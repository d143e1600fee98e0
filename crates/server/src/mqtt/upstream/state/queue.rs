//! A state queue: what this connection has read from it and written to it, and the channel on which it is consumed.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use amqp::method::{basic, channel, confirm, queue};
use amqp::properties::PERSISTENT;
use amqp::{Fault, FieldTable, FieldValue, Method, Properties, RawTable, ReplyCode};
use hashbrown::HashSet;
use mqtt::session::Subscription;

use super::record::{MAX_RECEIVED, RecordId, StateList, StateRecord, encode_list};
use crate::upstream::client::{AmqpClient, ContentMethod, ReceivedMessage, announced};

/// The number of the channel on which the queue is declared and consumed.
pub(in super::super) const STATE: u16 = 5;

/// The number of the channel on which the first list is published. If the client may not publish to the queue, only this
/// channel is closed, and no other message is affected.
pub(in super::super) const OPENING: u16 = 6;

/// Prefetch: few enough unacknowledged records for a consumer on a shared connection. The queue never has more of them.
const WINDOW: u16 = 256;

/// Records in the queue at which a new list is written, so that the records before it can be removed.
const LISTED: usize = 64;

/// Records in the queue at which the client's messages wait until some are removed.
const FULL: usize = 192;

/// The time within which a confirmed list has to be delivered, including the pool's search for a queue whose node is
/// down. If it is not delivered the upstream has lost it, and records could never be removed again.
const RETURN_TIMEOUT: Duration = Duration::from_secs(90);

/// The session's queue's consumer tag.
const TAG: &str = "mqtt";

/// The state queue of a session.
pub(in super::super) struct StateQueue {
    name: Box<str>,
    /// `x-expires` in milliseconds, if the queue is declared by this connection.
    expires: Option<u64>,
    usage: StateUsage,
    phase: StatePhase,
    channel: StateChannel,
    /// Methods to send, in order.
    steps: VecDeque<StateStep>,
    /// Acknowledgements to send: the delivery tag, and whether it is `multiple`.
    acks: Vec<(u64, bool)>,
    /// The first list, until the upstream has answered it.
    first: Option<Vec<u8>>,
    /// Whether the consumer has to be closed once all records are confirmed.
    is_ending: bool,
    /// The digests of unreleased messages from the client, by packet identifier.
    received: BTreeMap<u16, u64>,
    /// The last list that was read, until it is taken.
    list: Option<StateList>,
    log: StateLog,
}

/// The records in the queue.
#[derive(Default)]
struct StateLog {
    /// The random number that identifies this connection in its records.
    connection: u64,
    /// The number of this connection's last record, and of its last confirmed one.
    last: u64,
    confirmed: u64,
    /// The number of the list at the queue's front; 0 while records of earlier connections are in the queue.
    first: u64,
    /// The number of a later list that was written, if any.
    list: Option<u64>,
    /// The number and the delivery tag of the last list of this connection that was delivered.
    returned: Option<(u64, u64)>,
    /// Records of earlier connections.
    earlier: HashSet<RecordId>,
    /// The first and the last delivered record of earlier connections.
    delivered: Option<(RecordId, RecordId)>,
    /// Number of messages in the queue when its reading began, without those removed since.
    found: u32,
    /// Delivery tags of unacknowledged records.
    unacked: VecDeque<u64>,
    /// The time by which the confirmed list has to be delivered.
    overdue: Option<Instant>,
}

/// Whether the queue is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StateUsage {
    /// There has been nothing to store.
    Unused,
    /// It is being declared, or its first list is unconfirmed.
    Opening,
    Ready,
    /// The upstream has refused it.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum StatePhase {
    /// No request was made.
    None,
    Finding,
    Found {
        messages: u32,
        consumers: u32,
    },
    Missing,
    /// This many messages have yet to be delivered.
    Reading {
        left: u32,
    },
    Consuming,
    Declaring,
    Deleting,
    /// Until channel.close-ok: all records are requeued.
    Returning,
    /// The channel is closed, and the records are requeued.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StateStep {
    Find,
    Declare,
    Consume,
    Delete,
    /// Closes the channel, which requeues all records.
    Close,
}

#[derive(Default, PartialEq, Eq)]
enum StateChannel {
    #[default]
    Closed,
    Open,
    /// Until channel.close-ok.
    Closing,
}

/// An event of the state queue.
#[derive(Debug)]
pub(in super::super) enum StateEvent {
    /// The first list is confirmed.
    Opened,
    /// The upstream has refused the queue or its first list.
    Refused(Fault),
    /// The queue is not consumed any more, or cannot be read.
    Lost(Fault),
}

impl Default for StateQueue {
    /// A queue of which nothing is known.
    fn default() -> Self {
        // Practically unique among connections.
        let log = StateLog { connection: RandomState::new().hash_one(0), ..StateLog::default() };
        Self {
            name: Box::default(),
            expires: None,
            usage: StateUsage::Unused,
            phase: StatePhase::None,
            channel: StateChannel::Closed,
            steps: VecDeque::new(),
            acks: Vec::new(),
            first: None,
            is_ending: false,
            received: BTreeMap::new(),
            list: None,
            log,
        }
    }
}

impl StateQueue {
    /// Requests whether the queue exists; [`Self::phase`] has the answer.
    pub(in super::super) fn find(&mut self, name: &str) {
        self.name = name.into();
        self.phase = StatePhase::Finding;
        self.steps.push_back(StateStep::Find);
    }

    /// Starts to consume a queue that was found, and to read its `messages`.
    pub(super) fn read(&mut self, messages: u32) {
        self.usage = StateUsage::Ready;
        self.log.found = messages;
        self.phase =
            if messages == 0 { StatePhase::Consuming } else { StatePhase::Reading { left: messages } };
        self.steps.push_back(StateStep::Consume);
    }

    /// Deletes a queue that was read.
    pub(super) fn delete(&mut self) {
        self.usage = StateUsage::Unused;
        self.phase = StatePhase::Deleting;
        self.steps.push_back(StateStep::Delete);
        self.received = BTreeMap::new();
        self.list = None;
        self.log = StateLog { connection: self.log.connection, ..StateLog::default() };
    }

    /// Declares the queue, with a first list.
    pub(super) fn open<'s>(
        &mut self,
        name: &str,
        expires: Option<u64>,
        has_queue: bool,
        subscriptions: impl Iterator<Item = (&'s str, Subscription)>,
    ) {
        (self.name, self.expires) = (name.into(), expires);
        self.usage = StateUsage::Opening;
        self.phase = StatePhase::Declaring;
        self.steps.push_back(StateStep::Declare);
        self.first = Some(self.write_list(has_queue, subscriptions).1);
    }

    pub(super) fn usage(&self) -> StateUsage {
        self.usage
    }

    pub(in super::super) fn phase(&self) -> StatePhase {
        self.phase
    }

    /// The queue's name, if it exists or may exist.
    pub(in super::super) fn name(&self) -> Option<&str> {
        matches!(self.usage, StateUsage::Opening | StateUsage::Ready).then_some(&*self.name)
    }

    /// The last list that was read.
    pub(super) fn list(&self) -> Option<&StateList> {
        self.list.as_ref()
    }

    pub(super) fn take_list(&mut self) -> Option<StateList> {
        self.list.take()
    }

    /// The packet identifiers of unreleased messages.
    pub(super) fn received(&self) -> impl Iterator<Item = u16> {
        self.received.keys().copied()
    }

    /// The digest of an unreleased message.
    pub(in super::super) fn digest(&self, packet_id: u16) -> Option<u64> {
        self.received.get(&packet_id).copied()
    }

    /// The number of unreleased messages.
    pub(super) fn unreleased(&self) -> usize {
        self.received.len()
    }

    /// Whether another record may be written. A list that is due goes first. If the pool loses its connection it
    /// publishes copies of unconfirmed records, and these must not fill the window before the list.
    pub(in super::super) fn has_capacity(&self) -> bool {
        self.log.len() < FULL && !self.wants_list()
    }

    /// Whether an answer of the upstream is outstanding, or records have to wait.
    pub(in super::super) fn is_waiting(&self) -> bool {
        let is_idle = matches!(
            self.phase,
            StatePhase::None | StatePhase::Missing | StatePhase::Consuming | StatePhase::Stopped
        );
        !is_idle || self.usage == StateUsage::Opening || !self.has_capacity()
    }

    /// Whether a list has to be written, so that records can be removed.
    pub(super) fn wants_list(&self) -> bool {
        self.usage == StateUsage::Ready && self.log.len() >= LISTED && self.log.list.is_none()
    }

    /// The record of a message that the client has published. Returns its number and its bytes.
    pub(super) fn write_received(&mut self, packet_id: u16, digest: u64) -> (u64, Vec<u8>) {
        self.received.insert(packet_id, digest);
        self.write(&StateRecord::Received { packet_id, digest })
    }

    /// The record of a message that the client has released. Returns its number and its bytes.
    pub(in super::super) fn write_released(&mut self, packet_id: u16) -> (u64, Vec<u8>) {
        self.received.remove(&packet_id);
        self.write(&StateRecord::Released { packet_id })
    }

    /// A list of the whole state. Returns its number and its bytes.
    pub(super) fn write_list<'s>(
        &mut self,
        has_queue: bool,
        subscriptions: impl Iterator<Item = (&'s str, Subscription)>,
    ) -> (u64, Vec<u8>) {
        let id = self.log.next();
        self.log.list = Some(id.number);
        let received = self.received.iter().map(|(packet_id, digest)| (*packet_id, *digest));
        (id.number, encode_list(id, has_queue, received, subscriptions))
    }

    fn write(&mut self, record: &StateRecord) -> (u64, Vec<u8>) {
        let id = self.log.next();
        (id.number, record.encode(id))
    }

    /// Handles the confirm of the record with this number and of those before it.
    pub(in super::super) fn confirmed(&mut self, number: u64) {
        self.log.confirmed = self.log.confirmed.max(number);
        self.log.trim(&mut self.acks);
    }

    /// Whether the upstream has confirmed the record with this number.
    pub(super) fn is_confirmed(&self, number: u64) -> bool {
        number <= self.log.confirmed
    }

    /// Closes the consumer once everything that was published is confirmed, so that the next connection reads all of it.
    pub(in super::super) fn stop(&mut self) {
        self.is_ending = true;
    }

    /// Whether there is no consumer, and all records are in the queue.
    pub(in super::super) fn is_stopped(&self) -> bool {
        matches!(self.phase, StatePhase::None | StatePhase::Missing | StatePhase::Stopped)
    }

    /// The latest time at which to call [`Self::send`].
    pub(in super::super) fn next_deadline(&self) -> Option<Instant> {
        self.log.overdue
    }

    /// Sends pending methods. `is_settled` if everything that was published is confirmed.
    pub(in super::super) fn send(
        &mut self,
        client: &mut AmqpClient,
        is_settled: bool,
        now: Instant,
    ) -> Option<StateEvent> {
        if self.is_ending && is_settled {
            self.end();
        }
        let is_awaited = self.phase == StatePhase::Consuming
            && self.log.list.is_some_and(|list| list <= self.log.confirmed);
        if !is_awaited {
            self.log.overdue = None;
        } else if now >= *self.log.overdue.get_or_insert(now + RETURN_TIMEOUT) {
            self.log.overdue = None;
            self.end();
            let why = "a message of the state queue is lost";
            return Some(StateEvent::Lost(Fault::new(ReplyCode::ResourceError, why)));
        }
        if self.channel == StateChannel::Open && self.phase == StatePhase::Missing {
            client.close_channel(STATE);
            self.channel = StateChannel::Closing;
        }
        if self.channel == StateChannel::Closed && !self.steps.is_empty() {
            client.send(STATE, channel::Open { reserved_1: "" });
            self.channel = StateChannel::Open;
        }
        if self.channel == StateChannel::Open {
            for (delivery_tag, multiple) in self.acks.drain(..) {
                client.send(STATE, basic::Ack { delivery_tag, multiple });
            }
            while let Some(step) = self.steps.pop_front() {
                self.take(step, client);
                if step == StateStep::Close {
                    self.channel = StateChannel::Closing;
                    break;
                }
            }
        }
        if self.usage == StateUsage::Ready && self.first.take().is_some() {
            client.close_channel(OPENING);
        }
        None
    }

    fn take(&self, step: StateStep, client: &mut AmqpClient) {
        let queue = &*self.name;
        match step {
            StateStep::Find => {
                client.send(STATE, queue::Declare { queue, passive: true, ..Default::default() });
            }
            StateStep::Declare => {
                let expires = self.expires.and_then(|expires| i64::try_from(expires).ok());
                // If two servers both consider themselves the client's, the records are not divided among them.
                let single = ("x-single-active-consumer", FieldValue::Boolean(true));
                let expires = expires.map(|expires| ("x-expires", FieldValue::I64(expires)));
                let arguments: FieldTable = std::iter::once(single).chain(expires).collect();
                let arguments = arguments.encode();
                let arguments = RawTable::check(&arguments).unwrap_or_default();
                client.send(STATE, queue::Declare { queue, durable: true, arguments, ..Default::default() });
            }
            StateStep::Consume => {
                client.send(STATE, basic::Qos { prefetch_size: 0, prefetch_count: WINDOW, global: false });
                client.send(STATE, basic::Consume { queue, consumer_tag: TAG, ..Default::default() });
                if let Some(list) = &self.first {
                    client.send(OPENING, channel::Open { reserved_1: "" });
                    client.send(OPENING, confirm::Select { no_wait: true });
                    publish(client, OPENING, queue, list);
                }
            }
            StateStep::Delete => client.send(STATE, queue::Delete { queue, ..Default::default() }),
            StateStep::Close => client.close_channel(STATE),
        }
    }

    /// Closes the consumer, if there is one.
    fn end(&mut self) {
        match self.phase {
            StatePhase::Reading { .. } | StatePhase::Consuming => {
                self.phase = StatePhase::Returning;
                self.steps.push_back(StateStep::Close);
            }
            StatePhase::Finding | StatePhase::Found { .. } | StatePhase::Declaring | StatePhase::Deleting => {
                self.phase = StatePhase::Stopped;
            }
            _ => {}
        }
    }

    /// Handles a method of the upstream on the queue's channel or on that of its first list.
    pub(in super::super) fn handle(&mut self, number: u16, method: &Method<'_>) -> Option<StateEvent> {
        if number == OPENING {
            return self.handle_opening(method);
        }
        match (method, self.phase) {
            (Method::QueueDeclareOk(found), StatePhase::Finding) => {
                let (messages, consumers) = (found.message_count, found.consumer_count);
                self.phase = StatePhase::Found { messages, consumers };
            }
            (Method::QueueDeclareOk(_), StatePhase::Declaring) => {
                self.phase = StatePhase::Consuming;
                self.steps.push_back(StateStep::Consume);
            }
            (Method::QueueDeleteOk(_), StatePhase::Deleting) => self.phase = StatePhase::Missing,
            (Method::BasicCancel(_), StatePhase::Reading { .. } | StatePhase::Consuming) => {
                self.phase = StatePhase::Stopped;
                return Some(StateEvent::Lost(Fault::new(
                    ReplyCode::NotFound,
                    "the state queue was deleted",
                )));
            }
            (Method::ChannelClose(close), _) => return self.closed(announced(close)),
            (Method::ChannelCloseOk(_), phase) => {
                self.channel = StateChannel::Closed;
                if phase == StatePhase::Returning {
                    self.phase = StatePhase::Stopped;
                }
            }
            _ => {}
        }
        None
    }

    /// Handles the closing of the channel by the upstream.
    fn closed(&mut self, fault: Fault) -> Option<StateEvent> {
        let phase = std::mem::replace(&mut self.phase, StatePhase::Stopped);
        self.channel = StateChannel::Closed;
        self.steps.clear();
        self.acks.clear();
        match phase {
            StatePhase::Finding if matches!(fault.code, ReplyCode::NotFound | ReplyCode::AccessRefused) => {
                self.phase = StatePhase::Missing;
                None
            }
            StatePhase::Declaring if fault.code == ReplyCode::PreconditionFailed => {
                // Another connection has declared it with other arguments; it is used as it is.
                self.phase = StatePhase::Consuming;
                self.steps.push_back(StateStep::Consume);
                None
            }
            StatePhase::Declaring => {
                self.usage = StateUsage::Refused;
                self.first = None;
                Some(StateEvent::Refused(fault))
            }
            StatePhase::Finding
            | StatePhase::Found { .. }
            | StatePhase::Reading { .. }
            | StatePhase::Consuming
            | StatePhase::Deleting => Some(StateEvent::Lost(fault)),
            _ => None,
        }
    }

    /// Handles the answer to the first list.
    fn handle_opening(&mut self, method: &Method<'_>) -> Option<StateEvent> {
        let fault = match method {
            _ if self.usage != StateUsage::Opening => return None,
            Method::BasicAck(_) => {
                self.usage = StateUsage::Ready;
                self.confirmed(1);
                return Some(StateEvent::Opened);
            }
            Method::BasicNack(_) => {
                Fault::new(ReplyCode::ResourceError, "the state queue has refused a message")
            }
            Method::ChannelClose(close) => announced(close),
            _ => return None,
        };
        Some(self.first_list_refused(fault))
    }

    /// Handles the return of the first list because the queue does not exist.
    pub(in super::super) fn first_list_returned(&mut self) -> Option<StateEvent> {
        let fault = Fault::new(ReplyCode::NotFound, "the state queue is gone");
        (self.usage == StateUsage::Opening).then(|| self.first_list_refused(fault))
    }

    fn first_list_refused(&mut self, fault: Fault) -> StateEvent {
        self.usage = StateUsage::Refused;
        self.first = None;
        // A queue without a list has no state.
        self.phase = StatePhase::Deleting;
        self.steps.push_back(StateStep::Delete);
        StateEvent::Refused(fault)
    }

    /// Handles a message of the queue.
    pub(in super::super) fn handle_message(&mut self, message: &ReceivedMessage<'_>) {
        let ContentMethod::Deliver { delivery_tag, redelivered, .. } = message.method else { return };
        if !matches!(self.phase, StatePhase::Reading { .. } | StatePhase::Consuming) {
            return;
        }
        let decoded = StateRecord::decode(&message.body);
        if let StatePhase::Reading { left } = &mut self.phase
            && let Some((id, _)) = &decoded
            && redelivered
            && self.log.restarts_at(*id)
        {
            *left = self.log.found;
            self.log.unacked.clear();
        }
        self.log.unacked.push_back(delivery_tag);
        match decoded {
            Some((id, record)) if id.connection == self.log.connection => {
                self.log.returned(id.number, matches!(record, StateRecord::List(_)), delivery_tag);
                self.log.trim(&mut self.acks);
            }
            Some((id, record)) if self.log.first == 0 => {
                self.log.delivered.get_or_insert((id, id)).1 = id;
                if self.log.earlier.insert(id) {
                    self.apply(record);
                }
            }
            // Published by somebody else, or removed from the log before.
            Some(_) | None => {
                self.log.found = self.log.found.saturating_sub(1);
                self.log.acknowledge_one(delivery_tag, &mut self.acks);
            }
        }
        let read = match self.phase {
            StatePhase::Reading { .. } => self.log.unacked.len(),
            _ => self.log.earlier.len(),
        };
        if read >= usize::from(WINDOW) {
            // More than a server writes, so it may be copies. They are acknowledged, since the rest would not be
            // delivered otherwise.
            self.log.earlier = HashSet::new();
            self.log.acknowledge_before(u64::MAX, &mut self.acks);
        }
        if let StatePhase::Reading { left } = &mut self.phase {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.phase = StatePhase::Consuming;
            }
        }
    }

    fn apply(&mut self, record: StateRecord) {
        match record {
            StateRecord::List(list) => {
                self.received = list.received.iter().copied().collect();
                self.list = Some(list);
            }
            StateRecord::Received { packet_id, digest } => {
                if self.received.len() < usize::from(MAX_RECEIVED) {
                    self.received.insert(packet_id, digest);
                }
            }
            StateRecord::Released { packet_id } => _ = self.received.remove(&packet_id),
        }
    }
}

impl StateLog {
    fn next(&mut self) -> RecordId {
        self.last += 1;
        RecordId { connection: self.connection, number: self.last }
    }

    /// Number of records in the queue.
    fn len(&self) -> usize {
        // Fits in a `usize`: at most the window plus the records of one read of the client's input.
        let own = if self.first == 0 { self.last } else { self.last + 1 - self.first };
        self.earlier.len() + own as usize
    }

    /// Whether the queue is being delivered again from this record on, because the upstream connection was lost during
    /// the reading. A record may also come twice because the pool, when its connection was lost, has published a copy.
    /// Copies start after the first record, except a copy of the first record alone, which directly follows it.
    fn restarts_at(&self, id: RecordId) -> bool {
        self.delivered.is_some_and(|(first, last)| first == id && last != id)
    }

    /// Handles the delivery of a record of this connection, possibly repeated after a loss of the upstream connection.
    fn returned(&mut self, number: u64, is_list: bool, delivery_tag: u64) {
        if is_list && number >= self.first {
            self.returned = Some((number, delivery_tag));
        }
    }

    /// Removes all records before the last delivered list, once that is confirmed.
    fn trim(&mut self, acks: &mut Vec<(u64, bool)>) {
        let Some((number, delivery_tag)) = self.returned.filter(|(number, _)| *number <= self.confirmed)
        else {
            return;
        };
        self.returned = None;
        self.first = number;
        self.list = self.list.filter(|list| *list > number);
        self.earlier = HashSet::new();
        self.acknowledge_before(delivery_tag, acks);
    }

    /// Acknowledges all records that were delivered before this delivery tag.
    fn acknowledge_before(&mut self, delivery_tag: u64, acks: &mut Vec<(u64, bool)>) {
        let mut last = None;
        while let Some(tag) = self.unacked.pop_front_if(|tag| *tag < delivery_tag) {
            last = Some(tag);
        }
        acks.extend(last.map(|tag| (tag, true)));
    }

    fn acknowledge_one(&mut self, delivery_tag: u64, acks: &mut Vec<(u64, bool)>) {
        self.unacked.retain(|tag| *tag != delivery_tag);
        acks.push((delivery_tag, false));
    }
}

/// Publishes a record, as mandatory: it is returned if the queue does not exist.
pub(in super::super) fn publish(client: &mut AmqpClient, number: u16, queue: &str, record: &[u8]) {
    let mut properties = Vec::new();
    Properties::default().with_delivery_mode(PERSISTENT).encode(&mut properties);
    let publish =
        basic::Publish { exchange: "", routing_key: queue, mandatory: true, ..basic::Publish::default() };
    client.publish(number, publish, &properties, record);
}
