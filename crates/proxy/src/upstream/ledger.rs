//! Frames that a client has in flight on an upstream channel, kept until the broker has answered for them (P7).
//!
//! The session records what it sends, the upstream connection's task what is answered. When the connection is
//! lost, the remaining entries are sent again on another one, in the same order, and their confirms keep the
//! numbers that the client knows. Brokers process the methods of a channel in order, so a reply also settles
//! everything in front of it that has no reply of its own. For messages outside confirm mode the session
//! requests a reply of its own now and then: a proof.

mod carried;
mod changes;
mod entry;
mod late;
mod naming;
mod position;
mod prefetch;
mod quiet;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use amqp::method::basic;
use amqp::{ContentHeader, FrameKind, Method};
use sync::{Mutex, Rank};

pub(crate) use self::carried::{ConfirmNumbers, Consumer, MovedState, REPLY_TO};
use self::changes::{Changes, PendingChange, takes_away};
use self::entry::{EntryKind, SentEntry};
use self::late::LateAnswers;
pub(crate) use self::position::{has_headers, stream_offset};
pub(crate) use self::prefetch::PrefetchState;
pub(crate) use self::quiet::AnswerProgress;
use self::quiet::Unanswered;
use super::slot::{ChannelOpening, Confirms};
use crate::frames::{put_frame, stored_frames};
use crate::link::ClientLink;
use crate::replay_buffer::ReplayBuffer;
use crate::topology::Declarer;

/// The record of one lease.
#[derive(Debug)]
pub(crate) struct Ledger {
    replay_buffer: Arc<ReplayBuffer>,
    /// Whether the frames of messages are kept: [`ReplayBuffer::keeps_messages`].
    keeps_messages: bool,
    /// Weak: a departed client's declarations are not remembered.
    link: Weak<ClientLink>,
    /// Outlives the link: deletions of a departed client still remove declarations of other clients.
    declarer: Option<Arc<Declarer>>,
    /// The broker's tag of the last delivery that was passed on to the client. Outside the record, because each
    /// delivery sets it.
    last_delivered: AtomicU64,
    /// Whether the broker has cancelled a consumer. Outside the record, because it is read for each acknowledgement.
    has_cancelled: AtomicBool,
    record: Mutex<Record, { Rank::UpstreamClient as u8 }>,
}

#[derive(Debug, Default)]
struct Record {
    /// Confirms on the channel before the lease, which belong to earlier leases.
    base: u64,
    carried: MovedState,
    /// Whether the lease began with recreated consumers.
    made_again: bool,
    opening: ChannelOpening,
    /// Number of requests before the `confirm.select` that turned on confirm mode, if messages before it were unproven then.
    select_behind: Option<u64>,
    /// Messages sent in confirm mode.
    published: u64,
    /// Confirmed messages, numbered from 1.
    confirms: Confirms,
    /// Number of methods sent that have a reply.
    asked: u64,
    /// Number of replies received.
    answered: u64,
    /// Whether deliveries have arrived.
    has_delivered: bool,
    entries: VecDeque<SentEntry>,
    /// Number of no-wait methods in `entries`.
    unanswered_methods: u64,
    /// Numbers of the requests that are the pool's own proofs.
    proofs: VecDeque<u64>,
    /// Number of `proofs`, from the front, whose replies arrived before a late answer to an earlier request.
    early_proofs: usize,
    /// The requests whose answers come late.
    late: LateAnswers,
    /// Whether the session waits for late answers. Cleared when it is notified.
    awaits_late: bool,
    /// Whether the session waits for the answers to declarations of queues. Cleared when it is notified.
    awaits_declarations: bool,
    /// Bytes of messages outside confirm mode, and of methods with no-wait, after which no request was sent yet.
    unproven: usize,
    /// The last frame sent without a reply of its own. Set when it is sent, never cleared.
    unanswered: Option<Unanswered>,
    /// The last mandatory message, as of `unanswered`. Set when it is sent, never cleared.
    mandatory: Option<Unanswered>,
    /// Whether the session waits until the broker has processed everything. Cleared when it is notified.
    awaited: bool,
    /// Methods with no-wait that are about to change other clients' declarations.
    changes: Changes,
}

/// A confirm, in the client's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConfirmedNumber {
    /// The number of the message.
    pub(super) number: u64,
    /// All messages up to this number are confirmed.
    pub(super) all_up_to: u64,
}

/// The unsettled part of a ledger when its upstream channel is lost.
#[derive(Debug, Default)]
pub(crate) struct UnsettledEntries {
    pub(crate) carried: MovedState,
    /// Frames to send again.
    pub(crate) frames: Vec<u8>,
    /// Number of messages in `frames`.
    pub(crate) messages: u64,
    /// The client's numbers of messages that were too large to be kept.
    pub(crate) too_large: Vec<u64>,
    /// Number of messages outside confirm mode that were too large to be kept.
    pub(crate) lost: u64,
    /// Whether the last message was one of `lost` or `too_large`.
    pub(crate) last_too_large: bool,
    /// Whether the broker has answered something, or delivered.
    pub(crate) progressed: bool,
    /// Whether the lease began with recreated consumers.
    pub(crate) made_again: bool,
    pub(crate) opening: ChannelOpening,
}

impl Ledger {
    pub(crate) fn new(link: &Arc<ClientLink>, carried: MovedState) -> Arc<Self> {
        let made_again = !carried.consumers.is_empty();
        let record = Mutex::new(Record { carried, made_again, ..Record::default() });
        let replay_buffer = link.replay_buffer.clone();
        let (declarer, link) = (link.declarer().cloned(), Arc::downgrade(link));
        let keeps_messages = replay_buffer.keeps_messages();
        let (last_delivered, has_cancelled) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self {
            keeps_messages,
            replay_buffer,
            link,
            declarer,
            last_delivered,
            has_cancelled,
            record,
        })
    }

    /// Whether the lease is this client's.
    pub(super) fn is_of(&self, link: &Arc<ClientLink>) -> bool {
        std::ptr::eq(self.link.as_ptr(), Arc::as_ptr(link))
    }

    /// Records a method in the topology, once it was executed or if it has no reply.
    fn carried_out(&self, method: &Method<'_>, queue: Option<&str>) {
        if let Some(declarer) = &self.declarer {
            declarer.carried_out(self.link.upgrade().as_ref(), method, queue);
        }
    }

    /// Counts a consumer in the remembered topology.
    fn counted(&self, consumer: Consumer) -> Consumer {
        match self.link.upgrade() {
            Some(link) => consumer.counted(&link),
            None => consumer,
        }
    }

    /// Sets the number of messages that were published on the channel before this lease.
    pub(crate) fn set_base(&self, base: u64) {
        self.record.lock().base = base;
    }

    /// Records that the pool turns on confirm mode, with no unproven messages before.
    pub(crate) fn begin_confirming(&self) {
        let is_behind_unproven = self.record.lock().begin_confirming();
        debug_assert!(!is_behind_unproven);
    }

    /// Records whole messages sent in confirm mode.
    #[inline]
    pub(crate) fn messages(&self, frames: &[u8], count: u64) {
        let mut record = self.record.lock();
        let what = EntryKind::Messages { first: record.published + 1, count, too_large: false };
        record.published += count;
        record.unproven = 0;
        record.sends_unanswered(true);
        self.push_messages(&mut record, what, frames);
    }

    /// Records whole messages sent outside confirm mode; returns whether it is time for a proof.
    #[inline]
    pub(crate) fn unconfirmed_messages(&self, frames: &[u8], count: u64) -> bool {
        let mut record = self.record.lock();
        let what = record.outside_confirm_mode(count);
        record.unproven += frames.len();
        record.sends_unanswered(false);
        let wants_proof = record.unproven >= PROOF_DUE;
        let frames = if self.keeps_messages { frames } else { &[] };
        if let Some(last) = record.entries.back_mut() {
            let before = last.bytes();
            if last.join_messages(&what, frames) {
                self.replay_buffer.add(last.bytes() - before);
                return wants_proof;
            }
        }
        self.push(&mut record, SentEntry::new(what, frames.to_vec()));
        wants_proof
    }

    /// Records a `basic.publish` sent outside confirm mode; [`Self::content`] follows.
    pub(crate) fn publish_unconfirmed(&self, payload: &[u8]) {
        let mut record = self.record.lock();
        let what = record.outside_confirm_mode(1);
        record.unproven += payload.len();
        record.sends_unanswered(false);
        self.push_messages(&mut record, what, &method_frame(payload));
    }

    /// Whether messages, or methods with no-wait, were sent with no request after them; and whether their bytes suffice
    /// to request a proof.
    pub(crate) fn is_unproven(&self) -> (bool, bool) {
        let unproven = self.record.lock().unproven;
        (unproven > 0, unproven >= PROOF_DUE)
    }

    /// Records that the pool requests a reply, after all other frames.
    pub(crate) fn prove(&self) {
        let mut record = self.record.lock();
        record.asked += 1;
        record.unproven = 0;
        let number = record.asked;
        record.proofs.push_back(number);
    }

    /// Takes a `channel.flow-ok` if it answers one of the pool's own proofs.
    pub(super) fn answers_proof(&self) -> bool {
        let mut record = self.record.lock();
        let is_proof = record.takes_proof();
        if is_proof {
            self.change_proven(&mut record);
            self.forget_answered(&mut record);
        }
        let is_due = record.take_awaited();
        drop(record);
        self.notify(is_due);
        is_proof
    }

    /// Records a `basic.publish` sent in confirm mode; [`Self::content`] follows.
    pub(crate) fn publish(&self, payload: &[u8]) {
        let mut record = self.record.lock();
        record.published += 1;
        record.unproven = 0;
        record.sends_unanswered(true);
        let what = EntryKind::Messages { first: record.published, count: 1, too_large: false };
        self.push_messages(&mut record, what, &method_frame(payload));
    }

    /// Records a content frame of the last message. Messages larger than `limit` bytes are not kept.
    pub(crate) fn content(&self, kind: FrameKind, payload: &[u8], limit: u64) {
        let mut record = self.record.lock();
        let Record { entries, unproven, .. } = &mut *record;
        let Some(entry) = entries.back_mut() else { return };
        let before = entry.bytes();
        let SentEntry { what, frames } = entry;
        let too_large = match what {
            EntryKind::Messages { too_large, .. } => too_large,
            EntryKind::Unconfirmed { too_large, .. } => {
                *unproven += payload.len();
                too_large
            }
            EntryKind::Asked { .. } | EntryKind::Unanswered { .. } | EntryKind::Selected { .. } => return,
        };
        if *too_large || !self.keeps_messages {
            return;
        }
        if kind == FrameKind::Header
            && ContentHeader::decode(payload).is_ok_and(|header| header.body_size > limit)
        {
            *too_large = true;
            *frames = Vec::new();
            self.replay_buffer.release(before - entry.bytes());
            return;
        }
        put_frame(frames, kind, 0, payload, 0);
        self.replay_buffer.add(entry.bytes() - before);
    }

    /// Records a method other than `basic.publish`; `has_answer` is false with no-wait. `prefetch` holds for
    /// consumers made now. Returns whether a method with no-wait still waits for a reply behind it.
    pub(crate) fn method(&self, payload: &[u8], has_answer: bool, prefetch: PrefetchState) -> bool {
        let mut record = self.record.lock();
        match Method::decode(payload) {
            // Acknowledgements are not replayed, because the deliveries end with the connection.
            Ok(
                Method::BasicAck(_)
                | Method::BasicNack(_)
                | Method::BasicReject(_)
                | Method::ChannelFlowOk(_),
            ) => {
                return false;
            }
            Ok(Method::ConfirmSelect(select)) => {
                let is_behind_unproven = record.begin_confirming();
                if select.no_wait {
                    if is_behind_unproven {
                        let what = EntryKind::Selected { asked: record.asked };
                        self.push(&mut record, SentEntry::new(what, method_frame(payload)));
                    }
                    return false;
                }
            }
            Ok(Method::BasicConsume(consume)) if consume.no_wait => {
                let consumer = Consumer::new(consume, consume.consumer_tag, None, prefetch);
                record.carried.consumers.push(self.counted(consumer));
                record.sends_unanswered(false);
                return false;
            }
            Ok(Method::BasicCancel(cancel)) => {
                record.carried.forget_consumer(cancel.consumer_tag);
                if cancel.no_wait {
                    // A cancel with no-wait is not replayed: the consumer is not recreated on another channel.
                    record.sends_unanswered(false);
                    return false;
                }
            }
            Ok(method) if !has_answer => self.sent_unanswered(&mut record, &method, payload),
            _ => {}
        }
        let what = if has_answer {
            record.asked += 1;
            record.unproven = 0;
            record.note_late_answer(payload);
            EntryKind::Asked { first: record.asked, count: 1, prefetch }
        } else {
            record.sends_unanswered(false);
            EntryKind::Unanswered { published: record.published, asked: record.asked, count: 1 }
        };
        self.push_method(&mut record, what, payload);
        if !has_answer {
            self.forget_unanswered(&mut record);
        }
        record.unproven > 0
    }

    /// Handles a method without a reply. If it adds to the client's declarations, it is applied at once, because no
    /// other client is affected. If it removes other clients' declarations, it is applied when the broker provably has
    /// not refused it, and later additions are applied again after it. The method counts as unproven, so that a proof
    /// is requested soon; without one it would be replayed after any later loss.
    fn sent_unanswered(&self, record: &mut Record, method: &Method<'_>, payload: &[u8]) {
        if !takes_away(method) {
            self.carried_out(method, None);
        }
        if record.changes.concern(method) {
            if record.changes.len() as u64 == UNANSWERED_MAX
                && let Some(oldest) = record.changes.pop()
            {
                self.change(&oldest);
            }
            let change = PendingChange::new(record.published, record.asked, payload);
            self.replay_buffer.add(change.bytes());
            record.changes.push(change);
        }
        record.unproven += payload.len();
    }

    /// Applies the changes that were sent before an answered request.
    fn change_proven(&self, record: &mut Record) {
        while record.changes.first().is_some_and(|change| record.is_done(&change.what()))
            && let Some(change) = record.changes.pop()
        {
            self.change(&change);
        }
    }

    fn change(&self, change: &PendingChange) {
        self.replay_buffer.release(change.bytes());
        if let Ok(method) = Method::decode(&change.payload) {
            self.carried_out(&method, None);
        }
    }

    /// The broker has closed the channel on request, so it has refused nothing.
    pub(super) fn closed(&self) {
        let mut record = self.record.lock();
        while let Some(change) = record.changes.pop() {
            self.change(&change);
        }
        drop(record);
        self.abandoned();
    }

    /// The broker has discarded all unprocessed frames, so no more replies are expected.
    pub(super) fn abandoned(&self) {
        let is_awaited = std::mem::take(&mut self.record.lock().awaited);
        self.notify(is_awaited);
    }

    /// Bounds the kept no-wait methods: otherwise a client that sends nothing else would eventually exceed its replay
    /// buffer and not be read any more.
    fn forget_unanswered(&self, record: &mut Record) {
        record.unanswered_methods += 1;
        if record.unanswered_methods <= UNANSWERED_MAX {
            return;
        }
        let oldest = record.entries.iter().position(|entry| entry.reported() > 0);
        let Some((oldest, entry)) = oldest.and_then(|at| Some((at, record.entries.get_mut(at)?))) else {
            return;
        };
        record.unanswered_methods -= 1;
        if !entry.forget_first()
            && let Some(entry) = record.entries.remove(oldest)
        {
            self.replay_buffer.release(entry.bytes());
        }
    }

    /// Adds a method to the last entry, or as a new one.
    fn push_method(&self, record: &mut Record, what: EntryKind, payload: &[u8]) {
        if let Some(last) = record.entries.back_mut() {
            let before = last.bytes();
            if last.join(&what, payload, record.answered) {
                self.replay_buffer.add(last.bytes() - before);
                return;
            }
        }
        self.push(record, SentEntry::new(what, method_frame(payload)));
    }

    /// Adds messages, whose frames may still be incomplete.
    fn push_messages(&self, record: &mut Record, what: EntryKind, frames: &[u8]) {
        if self.keeps_messages {
            return self.push(record, SentEntry::new(what, frames.to_vec()));
        }
        if !record.entries.back_mut().is_some_and(|last| last.count_unbuffered(&what)) {
            self.push(record, SentEntry::new(what, Vec::new()));
        }
    }

    fn push(&self, record: &mut Record, entry: SentEntry) {
        self.replay_buffer.add(entry.bytes());
        record.entries.push_back(entry);
    }

    /// Records a confirm from the broker.
    pub(super) fn confirmed(&self, tag: u64, multiple: bool) -> ConfirmedNumber {
        let mut record = self.record.lock();
        let own = tag.saturating_sub(record.base);
        record.confirms.confirmed(own, multiple);
        self.change_proven(&mut record);
        let number = record.carried.numbers.of(own);
        let up_to = record.confirms.up_to();
        record.carried.numbers.fold(up_to);
        let all_up_to = record.carried.numbers.of(up_to);
        self.forget_answered(&mut record);
        let is_due = record.take_awaited();
        drop(record);
        self.notify(is_due);
        ConfirmedNumber { number, all_up_to }
    }

    /// Records a reply to one of the client's requests. `last_queue` is what an empty queue name means.
    pub(super) fn answered(&self, answer: Option<&Method<'_>>, last_queue: Option<&str>) {
        let mut record = self.record.lock();
        record.answered += 1;
        // Pending changes were sent before this request.
        self.change_proven(&mut record);
        match answer {
            Some(Method::BasicConsumeOk(ok)) => {
                if let Some(consumer) = record.consumer(ok.consumer_tag, last_queue) {
                    record.carried.consumers.push(self.counted(consumer));
                }
            }
            Some(Method::BasicQosOk(_)) => {
                if let Some((Method::BasicQos(basic::Qos { prefetch_count, global, .. }), _)) = record.asked()
                {
                    record.carried.prefetch.set(prefetch_count, global);
                }
            }
            Some(Method::BasicCancelOk(ok)) => record.carried.forget_consumer(ok.consumer_tag),
            Some(Method::QueueDeclareOk(ok)) => {
                if let Some((method, _)) = record.asked() {
                    self.carried_out(&method, Some(ok.queue));
                }
            }
            Some(
                Method::ExchangeDeclareOk(_)
                | Method::ExchangeDeleteOk(_)
                | Method::ExchangeBindOk(_)
                | Method::ExchangeUnbindOk(_)
                | Method::QueueBindOk(_)
                | Method::QueueUnbindOk(_)
                | Method::QueueDeleteOk(_),
            ) => {
                if let Some((method, _)) = record.asked() {
                    self.carried_out(&method, last_queue);
                }
            }
            _ => {}
        }
        record.count_early_proofs();
        self.forget_answered(&mut record);
        let is_due = record.take_awaited();
        drop(record);
        self.notify(is_due);
    }

    /// Whether the broker has a consumer with this tag, or one is requested.
    pub(crate) fn is_consuming(&self, tag: &str) -> bool {
        let record = self.record.lock();
        let under_way = record
            .entries
            .iter()
            .filter(|entry| matches!(entry.what, EntryKind::Asked { .. } | EntryKind::Unanswered { .. }))
            .filter(|entry| !record.is_done(&entry.what));
        asked_for(
            under_way.flat_map(|entry| entry.unanswered(record.answered)),
            record.carried.is_consuming(tag),
            tag,
        )
    }

    /// The broker has cancelled a consumer because its queue was deleted, or because deliveries were not acknowledged in time.
    pub(super) fn cancelled(&self, tag: &str) {
        self.has_cancelled.store(true, Ordering::Relaxed);
        let mut record = self.record.lock();
        let queue = record.carried.queue_of(tag);
        if let (Some(queue), Some(link)) = (queue, self.link.upgrade())
            && let Some(declarer) = link.declarer()
        {
            declarer.queue_gone(&queue);
        }
        record.carried.forget_consumer(tag);
    }

    /// Records that a message with this stream offset arrived for a consumer, and was passed on to its client or withheld.
    pub(super) fn record_offset(&self, tag: &[u8], offset: u64, is_passed_on: bool) {
        self.record.lock().carried.record_offset(tag, offset, is_passed_on);
    }

    /// Whether this text is the broker's refusal of a stream offset that the pool, not the client, added to a consumer.
    /// The queue is then recorded as not being a stream.
    pub(crate) fn clear_offset_unless_stream(&self, text: &str) -> bool {
        self.record.lock().carried.clear_offset_unless_stream(text)
    }

    /// Whether a refused `basic.consume` must be one with which the pool recreated a consumer.
    pub(crate) fn was_recreated(&self) -> bool {
        let record = self.record.lock();
        let mut asked = record.entries.iter().flat_map(|entry| entry.unanswered(record.answered));
        record.made_again && !asked.any(|(_, payload)| matches!(payload, [0, 60, 0, 20, ..]))
    }

    /// Records that the delivery with this tag of the broker is passed on.
    #[inline]
    pub(super) fn delivered(&self, tag: u64) {
        self.last_delivered.store(tag, Ordering::Relaxed);
    }

    fn last_delivered(&self) -> u64 {
        self.last_delivered.load(Ordering::Relaxed)
    }

    /// The broker's last delivery tag, up to which acknowledgements may be merged. `None` once the broker has cancelled a
    /// consumer: it may have requeued that consumer's deliveries, and then ignores late acknowledgements of them.
    #[inline]
    pub(crate) fn gathers_up_to(&self) -> Option<u64> {
        (!self.has_cancelled.load(Ordering::Relaxed)).then(|| self.last_delivered())
    }

    /// The connection has ended, or the broker has closed the channel.
    pub(super) fn end(&self, last_queue: Option<Box<str>>, opening: ChannelOpening) {
        let mut record = self.record.lock();
        let delivered = self.last_delivered();
        record.carried.delivered += delivered;
        record.has_delivered = delivered > 0;
        record.carried.last_queue = last_queue;
        record.opening = opening;
    }

    fn forget_answered(&self, record: &mut Record) {
        let mut freed = 0;
        while let Some(entry) = record.entries.front().filter(|entry| record.is_done(&entry.what)) {
            freed += entry.bytes();
            record.unanswered_methods -= entry.reported();
            record.entries.pop_front();
        }
        if freed > 0 {
            record.shrink_entries();
            self.replay_buffer.release(freed);
        }
    }

    /// Whether any frames are still unsettled.
    pub(crate) fn has_entries(&self) -> bool {
        !self.record.lock().entries.is_empty()
    }

    /// Whether the broker may still have to carry out a method that was recorded, with no-wait or not.
    pub(crate) fn has_methods(&self) -> bool {
        let record = self.record.lock();
        let is_method =
            |what: &EntryKind| matches!(what, EntryKind::Asked { .. } | EntryKind::Unanswered { .. });
        record.entries.iter().any(|entry| is_method(&entry.what) && !record.is_done(&entry.what))
    }

    /// See [`MovedState::has_dependent_consumers`].
    pub(crate) fn has_dependent_consumers(&self) -> bool {
        self.record.lock().carried.has_dependent_consumers()
    }

    /// Takes the unsettled entries, and leaves the ledger empty.
    pub(crate) fn take(&self) -> UnsettledEntries {
        let mut record = std::mem::take(&mut *self.record.lock());
        self.notify(record.awaited);
        self.replay_buffer.release(record.bytes());
        record.remains()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.replay_buffer.release(self.record.get_mut().bytes());
    }
}

impl Record {
    /// Records that messages, or methods with no-wait, are sent.
    fn sends_unanswered(&mut self, confirm: bool) {
        self.unanswered = Some(Unanswered { asked: self.asked, confirm: confirm.then_some(self.published) });
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(SentEntry::bytes).sum::<usize>() + self.changes.bytes()
    }

    /// Releases excess capacity of the queue of entries after a burst.
    fn shrink_entries(&mut self) {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > SMALL_CAPACITY && len <= capacity / 4 {
            self.entries.shrink_to((2 * len).max(SMALL_CAPACITY));
        }
    }

    fn is_done(&self, what: &EntryKind) -> bool {
        match *what {
            EntryKind::Messages { first, count, .. } => self.confirms.up_to() + 1 >= first + count,
            EntryKind::Asked { first, count, .. } => self.answered + 1 >= first + count,
            EntryKind::Unanswered { published, asked, .. }
            | EntryKind::Unconfirmed { published, asked, .. } => {
                self.answered > asked || self.confirms.up_to() > published
            }
            EntryKind::Selected { asked } => self.answered > asked || self.confirms.up_to() > 0,
        }
    }

    /// Turns on confirm mode, if it is off. Returns whether unproven messages precede it: these have to be replayed
    /// before `confirm.select`, because the broker would otherwise number them.
    fn begin_confirming(&mut self) -> bool {
        if self.carried.confirming || self.select_behind.is_some() {
            return false;
        }
        let is_unproven = |entry: &SentEntry| {
            matches!(entry.what, EntryKind::Unconfirmed { .. }) && !self.is_done(&entry.what)
        };
        let is_behind_unproven = self.entries.iter().any(is_unproven);
        if is_behind_unproven {
            self.select_behind = Some(self.asked);
        } else {
            self.carried.confirming = true;
        }
        is_behind_unproven
    }

    /// The kind of entry for messages that are sent outside confirm mode.
    fn outside_confirm_mode(&self, count: u64) -> EntryKind {
        EntryKind::Unconfirmed { published: self.published, asked: self.asked, count, too_large: false }
    }

    /// The request that was answered last, and the prefetch limits of the consumer that it creates.
    fn asked(&self) -> Option<(Method<'_>, PrefetchState)> {
        let (payload, prefetch) = self.entries.iter().find_map(|entry| entry.asked(self.answered))?;
        Some((Method::decode(payload).ok()?, prefetch))
    }

    /// The consumer created by the `basic.consume` that was answered last.
    fn consumer(&self, tag: &str, last_queue: Option<&str>) -> Option<Consumer> {
        let (Method::BasicConsume(consume), prefetch) = self.asked()? else { return None };
        Some(Consumer::new(consume, tag, last_queue, prefetch))
    }

    fn remains(&mut self) -> UnsettledEntries {
        let mut remains = UnsettledEntries {
            progressed: self.answered > 0
                || self.has_delivered
                || self.confirms.up_to() > 0
                || self.confirms.has_gaps(),
            made_again: self.made_again,
            opening: self.opening,
            ..UnsettledEntries::default()
        };
        let numbers = std::mem::take(&mut self.carried.numbers);
        let mut gone = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            remains.last_too_large = false;
            match entry.what {
                _ if self.is_done(&entry.what) => {}
                EntryKind::Messages { first, too_large: true, .. } => {
                    remains.last_too_large = true;
                    gone.push(numbers.of(first));
                    if !self.confirms.has(first) {
                        remains.too_large.push(numbers.of(first));
                    }
                }
                EntryKind::Messages { first, .. } => {
                    self.unconfirmed(first, &entry.frames, &numbers, &mut remains, &mut gone);
                }
                EntryKind::Unconfirmed { too_large: true, .. } => {
                    remains.last_too_large = true;
                    remains.lost += 1;
                }
                EntryKind::Unconfirmed { count, .. } => {
                    remains.frames.extend_from_slice(&entry.frames);
                    remains.messages += count;
                }
                EntryKind::Asked { .. } | EntryKind::Unanswered { .. } | EntryKind::Selected { .. } => {
                    for (kind, payload) in entry.unanswered(self.answered) {
                        put_frame(&mut remains.frames, kind, 0, payload, 0);
                    }
                }
            }
        }
        self.carried.numbers = numbers.without(self.confirms.up_to(), gone);
        self.carried.confirming |=
            self.select_behind.is_some_and(|asked| self.is_done(&EntryKind::Selected { asked }));
        remains.carried = std::mem::take(&mut self.carried);
        remains
    }

    /// Keeps the unconfirmed messages of an entry; adds the numbers of the confirmed ones to `gone`.
    fn unconfirmed(
        &self,
        first: u64,
        frames: &[u8],
        numbers: &ConfirmNumbers,
        remains: &mut UnsettledEntries,
        gone: &mut Vec<u64>,
    ) {
        let mut number = first - 1;
        for (kind, payload) in stored_frames(frames) {
            let starts = kind == FrameKind::Method;
            number += u64::from(starts);
            if !self.confirms.has(number) {
                put_frame(&mut remains.frames, kind, 0, payload, 0);
                remains.messages += u64::from(starts);
            } else if starts {
                gone.push(numbers.of(number));
            }
        }
    }
}

/// Whether a consumer with this tag exists after these frames, given whether one existed `before`.
pub(crate) fn asked_for<'f>(
    frames: impl Iterator<Item = (FrameKind, &'f [u8])>,
    before: bool,
    tag: &str,
) -> bool {
    let methods = frames
        .filter(|(kind, payload)| *kind == FrameKind::Method && matches!(payload, [0, 60, 0, 20 | 30, ..]));
    methods.fold(before, |is_there, (_, payload)| match Method::decode(payload) {
        Ok(Method::BasicConsume(consume)) => is_there || consume.consumer_tag == tag,
        Ok(Method::BasicCancel(cancel)) => is_there && cancel.consumer_tag != tag,
        _ => is_there,
    })
}

fn method_frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Method, 0, payload, 0);
    out
}

/// Maximum number of no-wait methods, such as `queue.bind`, kept of one channel. The broker has most likely processed
/// older ones.
const UNANSWERED_MAX: u64 = 256;
/// Bytes of messages outside confirm mode after which a proof is requested: little memory, and negligible work for the broker.
const PROOF_DUE: usize = 64 * 1024;
/// Minimum capacity that the queue of entries keeps: the number a client usually has in flight.
const SMALL_CAPACITY: usize = 16;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
