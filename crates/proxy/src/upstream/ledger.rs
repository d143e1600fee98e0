//! What a client has under way on an upstream channel, kept until the broker has answered for it (P7).
//!
//! The session writes down what it sends, the upstream connection's task what is answered. When the connection is lost,
//! what is left goes out again on another one, in the same order, and its confirms keep the numbers that the client
//! knows. Brokers take the methods of a channel one after the other, so an answer speaks for everything in front of it
//! that has no answer of its own.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use amqp::{ContentHeader, FrameKind, Method};
use parking_lot::Mutex;

use super::slot::Confirms;
use crate::frames::{put_frame, stored_frames};
use crate::link::ClientLink;

/// The record of one lease. Its lock is a leaf but for the client's out-buffer, which is nudged under it.
#[derive(Debug)]
pub(crate) struct Ledger {
    link: Arc<ClientLink>,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    /// Confirms of others on the channel, before the lease.
    base: u64,
    carried: Carried,
    /// Messages sent in confirm mode.
    published: u64,
    /// Those of them that are confirmed, numbered from 1.
    confirms: Confirms,
    /// Methods sent that have an answer.
    asked: u64,
    /// Answers that came.
    answered: u64,
    /// Deliveries came.
    has_delivered: bool,
    entries: VecDeque<Entry>,
    /// How many of them are methods without an answer.
    told: usize,
}

/// What a channel takes along from one upstream channel to the next.
#[derive(Debug, Default, Clone)]
pub(crate) struct Carried {
    pub(crate) numbers: Numbers,
    pub(crate) consumers: Vec<Consumer>,
    /// The last delivery tag that the client was given. Everything up to it belongs to an upstream channel of before.
    pub(crate) delivered: u64,
    /// What an empty queue name means.
    pub(crate) last_queue: Option<Box<str>>,
}

/// A consumer that the broker has, or will have when it gets there.
#[derive(Debug, Clone)]
pub(crate) struct Consumer {
    tag: Box<str>,
    /// The method that makes the consumer again, which needs no answer.
    pub(crate) method: Box<[u8]>,
    /// The limit for consumers that held when it was made.
    pub(crate) prefetch: Option<u16>,
    /// It is a client's end of direct reply-to.
    pub(crate) is_reply_to: bool,
}

/// What is left when an upstream channel is lost.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(crate) carried: Carried,
    /// Frames to be sent again.
    pub(crate) frames: Vec<u8>,
    /// How many messages are among them.
    pub(crate) messages: u64,
    /// The client's numbers of messages that were too large to be kept.
    pub(crate) too_large: Vec<u64>,
    /// The last message was one of these.
    pub(crate) last_too_large: bool,
    /// The broker has answered for something, or delivered.
    pub(crate) progressed: bool,
}

/// One or more frames that were sent.
#[derive(Debug)]
struct Entry {
    what: What,
    frames: Vec<u8>,
}

#[derive(Debug)]
enum What {
    /// Messages in confirm mode, numbered from here. The frames of one that is too large are not kept.
    Messages { first: u64, count: u64, too_large: bool },
    /// A method with an answer of this number. `prefetch` is that of a consumer.
    Asked { number: u64, prefetch: Option<u16> },
    /// A method without an answer, behind so many messages and answers.
    Told { published: u64, asked: u64 },
}

impl Ledger {
    pub(crate) fn new(link: Arc<ClientLink>, carried: Carried) -> Arc<Self> {
        Arc::new(Self { link, record: Mutex::new(Record { carried, ..Record::default() }) })
    }

    /// On the channel so many messages were confirmed before.
    pub(crate) fn set_base(&self, base: u64) {
        self.record.lock().base = base;
    }

    /// Whole messages in confirm mode are sent.
    #[inline]
    pub(crate) fn messages(&self, frames: &[u8], count: u64) {
        let mut record = self.record.lock();
        let what = What::Messages { first: record.published + 1, count, too_large: false };
        record.published += count;
        self.push(&mut record, what, frames.to_vec());
    }

    /// A `basic.publish` in confirm mode is sent; [`Self::content`] follows.
    pub(crate) fn publish(&self, payload: &[u8]) {
        let mut record = self.record.lock();
        record.published += 1;
        let what = What::Messages { first: record.published, count: 1, too_large: false };
        self.push(&mut record, what, frame(FrameKind::Method, payload));
    }

    /// A frame of the last message is sent. Messages larger than `limit` octets are not kept.
    pub(crate) fn content(&self, kind: FrameKind, payload: &[u8], limit: u64) {
        let mut record = self.record.lock();
        let Some(Entry { what: What::Messages { too_large, .. }, frames }) = record.entries.back_mut() else {
            return;
        };
        if *too_large {
            return;
        }
        let before = frames.len();
        if kind == FrameKind::Header
            && ContentHeader::decode(payload).is_ok_and(|header| header.body_size > limit)
        {
            *too_large = true;
            *frames = Vec::new();
            self.link.release(before);
            return;
        }
        put_frame(frames, kind, 0, payload, 0);
        self.link.keep(frames.len() - before);
    }

    /// A method other than `basic.publish` is sent; it has an answer or not. `prefetch` holds for consumers made now.
    pub(crate) fn method(&self, payload: &[u8], has_answer: bool, prefetch: Option<u16>) {
        let mut record = self.record.lock();
        match Method::decode(payload) {
            // What they settle is over with the connection; and a mode is not sent twice.
            Ok(
                Method::BasicAck(_)
                | Method::BasicNack(_)
                | Method::BasicReject(_)
                | Method::ChannelFlowOk(_),
            ) => {
                return;
            }
            Ok(Method::ConfirmSelect(select)) if select.no_wait => return,
            Ok(Method::BasicConsume(consume)) if consume.no_wait => {
                let consumer = Consumer::new(consume, consume.consumer_tag, None, prefetch);
                record.carried.consumers.push(consumer);
                return;
            }
            Ok(Method::BasicCancel(cancel)) => record.carried.forget_consumer(cancel.consumer_tag),
            _ => {}
        }
        let what = if has_answer {
            record.asked += 1;
            What::Asked { number: record.asked, prefetch }
        } else {
            What::Told { published: record.published, asked: record.asked }
        };
        self.push(&mut record, what, frame(FrameKind::Method, payload));
        if !has_answer {
            self.forget_told(&mut record);
        }
    }

    /// Bounds what is kept of methods without an answer: a client that sends nothing else would never be read again.
    fn forget_told(&self, record: &mut Record) {
        record.told += 1;
        if record.told <= TOLD_MAX {
            return;
        }
        let oldest = record.entries.iter().position(|entry| matches!(entry.what, What::Told { .. }));
        if let Some(entry) = oldest.and_then(|oldest| record.entries.remove(oldest)) {
            record.told -= 1;
            self.link.release(entry.frames.len());
        }
    }

    fn push(&self, record: &mut Record, what: What, frames: Vec<u8>) {
        self.link.keep(frames.len());
        record.entries.push_back(Entry { what, frames });
    }

    /// The broker has confirmed; returns the client's number for it.
    pub(super) fn confirmed(&self, tag: u64, multiple: bool) -> u64 {
        let mut record = self.record.lock();
        let own = tag.saturating_sub(record.base);
        record.confirms.confirmed(own, multiple);
        let number = record.carried.numbers.of(own);
        let up_to = record.confirms.up_to();
        record.carried.numbers.fold(up_to);
        self.forget_answered(&mut record);
        number
    }

    /// The broker has answered a method that the client asked. `last_queue` is what an empty queue name means.
    pub(super) fn answered(&self, answer: Option<&Method<'_>>, last_queue: Option<&str>) {
        let mut record = self.record.lock();
        record.answered += 1;
        match answer {
            Some(Method::BasicConsumeOk(ok)) => record.add_consumer(ok.consumer_tag, last_queue),
            // It may have been asked for before the consumer was there.
            Some(Method::BasicCancelOk(ok)) => record.carried.forget_consumer(ok.consumer_tag),
            _ => {}
        }
        self.forget_answered(&mut record);
    }

    /// Whether the broker has a consumer with this tag, or is asked for one.
    pub(crate) fn is_consuming(&self, tag: &str) -> bool {
        let record = self.record.lock();
        let under_way = record
            .entries
            .iter()
            .filter(|entry| !matches!(entry.what, What::Messages { .. }) && !record.is_done(&entry.what));
        asked_for(
            under_way.flat_map(|entry| stored_frames(&entry.frames)),
            record.carried.is_consuming(tag),
            tag,
        )
    }

    /// The broker has cancelled a consumer.
    pub(super) fn cancelled(&self, tag: &str) {
        self.record.lock().carried.forget_consumer(tag);
    }

    /// The connection has ended; the broker's last delivery tag was this one.
    pub(super) fn end(&self, delivered: u64, last_queue: Option<Box<str>>) {
        let mut record = self.record.lock();
        record.carried.delivered += delivered;
        record.has_delivered = delivered > 0;
        record.carried.last_queue = last_queue;
    }

    fn forget_answered(&self, record: &mut Record) {
        let mut freed = 0;
        while let Some(entry) = record.entries.pop_front() {
            if !record.is_done(&entry.what) {
                record.entries.push_front(entry);
                break;
            }
            freed += entry.frames.len();
            record.told -= usize::from(matches!(entry.what, What::Told { .. }));
        }
        if freed > 0 {
            self.link.release(freed);
        }
    }

    /// Whether something is under way.
    pub(crate) fn has_entries(&self) -> bool {
        !self.record.lock().entries.is_empty()
    }

    /// Takes what is left. Nothing is kept here any more.
    pub(crate) fn take(&self) -> Remains {
        let mut record = std::mem::take(&mut *self.record.lock());
        self.link.release(record.octets());
        record.remains()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.link.release(self.record.get_mut().octets());
    }
}

impl Record {
    fn octets(&self) -> usize {
        self.entries.iter().map(|entry| entry.frames.len()).sum()
    }

    fn is_done(&self, what: &What) -> bool {
        match *what {
            What::Messages { first, count, .. } => self.confirms.up_to() + 1 >= first + count,
            What::Asked { number, .. } => self.answered >= number,
            What::Told { published, asked } => self.answered > asked || self.confirms.up_to() > published,
        }
    }

    fn add_consumer(&mut self, tag: &str, last_queue: Option<&str>) {
        let (answered, mut entries) = (self.answered, self.entries.iter());
        let asked = entries
            .find(|entry| matches!(entry.what, What::Asked { number, .. } if number == answered))
            .and_then(|entry| match entry.what {
                What::Asked { prefetch, .. } => {
                    stored_frames(&entry.frames).next().map(|frame| (frame.1, prefetch))
                }
                _ => None,
            });
        if let Some((payload, prefetch)) = asked
            && let Ok(Method::BasicConsume(consume)) = Method::decode(payload)
        {
            let consumer = Consumer::new(consume, tag, last_queue, prefetch);
            self.carried.consumers.push(consumer);
        }
    }

    fn remains(&mut self) -> Remains {
        let mut remains = Remains {
            progressed: self.answered > 0
                || self.has_delivered
                || self.confirms.up_to() > 0
                || self.confirms.is_gappy(),
            ..Remains::default()
        };
        let numbers = std::mem::take(&mut self.carried.numbers);
        let mut gone = Vec::new();
        for Entry { what, frames } in std::mem::take(&mut self.entries) {
            remains.last_too_large = false;
            match what {
                _ if self.is_done(&what) => {}
                What::Messages { first, too_large: true, .. } => {
                    remains.last_too_large = true;
                    gone.push(numbers.of(first));
                    if !self.confirms.has(first) {
                        remains.too_large.push(numbers.of(first));
                    }
                }
                What::Messages { first, .. } => {
                    self.unconfirmed(first, &frames, &numbers, &mut remains, &mut gone);
                }
                _ => remains.frames.extend_from_slice(&frames),
            }
        }
        self.carried.numbers = numbers.without(self.confirms.up_to(), gone);
        remains.carried = std::mem::take(&mut self.carried);
        remains
    }

    /// Keeps those messages of an entry that are not confirmed; notes the numbers of the others.
    fn unconfirmed(
        &self,
        first: u64,
        frames: &[u8],
        numbers: &Numbers,
        remains: &mut Remains,
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

impl Carried {
    /// A `basic.ack`, `basic.nack` or `basic.reject` as the present upstream channel knows its delivery tag, and any other
    /// method as it is. `None` when it settles only what was delivered before: that is back in its queues, or gone.
    pub(crate) fn settling<'p>(&self, payload: &'p [u8]) -> Option<Cow<'p, [u8]>> {
        let settles = matches!(payload, [0, 60, 0, 80 | 90 | 120, ..]);
        let tag =
            payload.get(TAG_AT..).and_then(|rest| rest.first_chunk()).map(|tag| u64::from_be_bytes(*tag));
        let tag = match tag {
            // 0 stands for all that is not settled.
            Some(tag) if settles && self.delivered > 0 && tag > 0 => tag,
            _ => return Some(payload.into()),
        };
        let tag = tag.checked_sub(self.delivered).filter(|tag| *tag > 0)?;
        let mut payload = payload.to_vec();
        payload[TAG_AT..TAG_AT + size_of::<u64>()].copy_from_slice(&tag.to_be_bytes());
        Some(payload.into())
    }

    /// Whether there is a consumer with this tag.
    pub(crate) fn is_consuming(&self, tag: &str) -> bool {
        self.consumers.iter().any(|consumer| *consumer.tag == *tag)
    }

    fn forget_consumer(&mut self, tag: &str) {
        self.consumers.retain(|consumer| *consumer.tag != *tag);
    }
}

impl Consumer {
    fn new(
        consume: amqp::method::basic::Consume<'_>,
        tag: &str,
        last_queue: Option<&str>,
        prefetch: Option<u16>,
    ) -> Self {
        let queue = if consume.queue.is_empty() { last_queue.unwrap_or_default() } else { consume.queue };
        let is_reply_to = queue == REPLY_TO;
        let mut method = Vec::new();
        let again = amqp::method::basic::Consume { queue, consumer_tag: tag, no_wait: true, ..consume };
        Method::from(again).encode(&mut method);
        Self { tag: tag.into(), method: method.into(), prefetch, is_reply_to }
    }
}

/// Whether there is a consumer with this tag behind these frames, when there was one in front of them or not.
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

/// Which of the client's numbers the messages of a lease have.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The number before that of the first message.
    offset: u64,
    /// Numbers behind it that are left out, ascending: they were confirmed before the message in front of them was.
    gaps: Vec<u64>,
}

impl Numbers {
    /// The client's number of a lease's message, counted from 1.
    fn of(&self, own: u64) -> u64 {
        let mut number = self.offset + own;
        for gap in &self.gaps {
            if *gap > number {
                break;
            }
            number += 1;
        }
        number
    }

    /// Forgets the gaps when nothing in front of them is to be confirmed any more.
    fn fold(&mut self, up_to: u64) {
        if self.gaps.last().is_some_and(|last| self.of(up_to) > *last) {
            self.offset += self.gaps.len() as u64;
            self.gaps.clear();
        }
    }

    /// The numbers of a lease that begins when everything up to `up_to` is done, and so is `gone`.
    fn without(self, up_to: u64, gone: Vec<u64>) -> Self {
        let mut offset = self.of(up_to);
        let mut gaps: Vec<u64> = self.gaps.into_iter().chain(gone).filter(|gap| *gap > offset).collect();
        gaps.sort_unstable();
        gaps.dedup();
        let leading = gaps.iter().zip(offset + 1..).take_while(|(gap, next)| **gap == *next).count();
        gaps.drain(..leading);
        offset += leading as u64;
        Self { offset, gaps }
    }
}

fn frame(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, kind, 0, payload, 0);
    out
}

/// Methods without an answer, such as a `queue.bind` with no-wait, kept of one channel. Brokers are through with those
/// further back, as far as the client can know.
const TOLD_MAX: usize = 256;
/// Where the delivery tag is in the methods that settle.
const TAG_AT: usize = 4;
/// The queue that is no queue but the channel that consumes from it (RabbitMQ, direct reply-to).
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

#[cfg(test)]
mod tests {
    use amqp::frame::{write_content_header, write_method};
    use amqp::method::{basic, queue};
    use amqp::properties::NO_PROPERTIES;

    use super::*;

    fn message(key: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write_method(&mut out, 3, basic::Publish { routing_key: key, ..Default::default() });
        write_content_header(&mut out, 3, 0, NO_PROPERTIES);
        out
    }

    fn payload<'m>(method: impl Into<Method<'m>>) -> Vec<u8> {
        let mut out = Vec::new();
        method.into().encode(&mut out);
        out
    }

    fn ledger(carried: Carried) -> Arc<Ledger> {
        Ledger::new(ClientLink::nobody(), carried)
    }

    fn keys(frames: &[u8]) -> Vec<String> {
        let methods = stored_frames(frames).filter(|(kind, _)| *kind == FrameKind::Method);
        methods
            .map(|(_, payload)| match Method::decode(payload).unwrap() {
                Method::BasicPublish(publish) => publish.routing_key.to_owned(),
                other => other.name().to_owned(),
            })
            .collect()
    }

    #[test]
    fn what_is_not_answered_remains_in_order_and_confirms_keep_their_numbers() {
        let first = ledger(Carried::default());
        first.set_base(100);
        first.messages(&[message("1"), message("2"), message("3")].concat(), 3);
        first.method(&payload(queue::Declare { queue: "q", ..Default::default() }), true, None);
        first.messages(&message("4"), 1);
        assert_eq!(first.confirmed(101, false), 1);
        assert_eq!(first.confirmed(103, false), 3);
        let remains = first.take();
        assert_eq!(keys(&remains.frames), ["2", "queue.declare", "4"]);
        assert_eq!(remains.messages, 2);

        let second = ledger(remains.carried);
        second.messages(&[message("2"), message("4"), message("5")].concat(), 3);
        assert_eq!(second.confirmed(2, false), 4);
        let remains = second.take();
        assert_eq!(keys(&remains.frames), ["2", "5"]);

        let third = ledger(remains.carried);
        third.messages(&[message("2"), message("5"), message("6")].concat(), 3);
        assert_eq!(third.confirmed(1, false), 2);
        assert_eq!(third.confirmed(3, true), 6);
        assert_eq!(third.take().carried.numbers, Numbers { offset: 6, gaps: vec![] });
    }

    #[test]
    fn an_answer_speaks_for_what_is_in_front_of_it_and_has_none() {
        let ledger = ledger(Carried::default());
        let bind = payload(queue::Bind { no_wait: true, ..Default::default() });
        ledger.method(&bind, false, None);
        ledger.method(&payload(queue::Declare::default()), true, None);
        ledger.method(&bind, false, None);
        ledger.answered(None, None);
        assert_eq!(keys(&ledger.take().frames), ["queue.bind"]);
    }

    #[test]
    fn methods_without_an_answer_do_not_gather_without_bound() {
        let ledger = ledger(Carried::default());
        for _ in 0..2 * TOLD_MAX {
            ledger.method(&payload(queue::Bind { no_wait: true, ..Default::default() }), false, None);
        }
        assert_eq!(keys(&ledger.take().frames).len(), TOLD_MAX);
    }

    #[test]
    fn consumers_are_known_by_the_tag_that_the_broker_gave_and_forgotten_when_cancelled() {
        let ledger = ledger(Carried::default());
        let consume = |tag| payload(basic::Consume { consumer_tag: tag, ..Default::default() });
        for tag in ["", "cancelled", "ours", "unanswered"] {
            ledger.method(&consume(tag), true, Some(7));
        }
        for consumer_tag in ["amq.ctag-1", "cancelled", "ours"] {
            ledger.answered(Some(&basic::ConsumeOk { consumer_tag }.into()), Some("last"));
        }
        ledger.cancelled("cancelled");
        let remains = ledger.take();
        let again = |consumer: &Consumer| match Method::decode(&consumer.method).unwrap() {
            Method::BasicConsume(consume) => {
                (consume.consumer_tag.to_owned(), consume.queue.to_owned(), consume.no_wait)
            }
            other => panic!("{other:?}"),
        };
        let made = |tag: &str| (tag.to_owned(), "last".to_owned(), true);
        let consumers: Vec<_> = remains.carried.consumers.iter().map(again).collect();
        assert_eq!(consumers, [made("amq.ctag-1"), made("ours")]);
        assert!(remains.carried.consumers.iter().all(|consumer| consumer.prefetch == Some(7)));
        assert_eq!(keys(&remains.frames), ["basic.consume"]);
    }

    #[test]
    fn a_message_too_large_to_be_kept_is_named_and_leaves_a_gap() {
        let first = ledger(Carried::default());
        first.messages(&message("1"), 1);
        first.publish(&payload(basic::Publish { routing_key: "2", ..Default::default() }));
        let mut header = Vec::new();
        write_content_header(&mut header, 0, 11, NO_PROPERTIES);
        first.content(FrameKind::Header, stored_frames(&header).next().unwrap().1, 10);
        first.content(FrameKind::Body, &[0; 11], 10);
        first.messages(&message("3"), 1);
        let remains = first.take();
        assert_eq!(remains.too_large, [2]);
        assert_eq!(keys(&remains.frames), ["1", "3"]);
        let second = ledger(remains.carried);
        second.messages(&[message("1"), message("3")].concat(), 2);
        assert_eq!(second.confirmed(1, false), 1);
        assert_eq!(second.confirmed(2, false), 3);
    }
}
