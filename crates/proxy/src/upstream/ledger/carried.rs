//! State that moves with a channel from one upstream channel to the next: its consumers, and the numbering of
//! its messages.

use std::borrow::Cow;
use std::time::Instant;

use amqp::method::basic;
use amqp::{Method, RawTable};
use serde::{Deserialize, Serialize};

use super::position::{StreamPosition, refuses_offset};
use super::prefetch::PrefetchState;
use crate::link::ClientLink;
use crate::topology::Consuming;

/// State that moves with a channel from one upstream channel to the next.
#[derive(Debug, Default, Clone)]
pub(crate) struct MovedState {
    pub(crate) numbers: ConfirmNumbers,
    /// Whether the next upstream channel begins in confirm mode. If not, a `confirm.select` may be among the frames that
    /// are sent again.
    pub(crate) confirming: bool,
    pub(crate) consumers: Vec<Consumer>,
    /// The prefetch limits that the broker has confirmed.
    pub(crate) prefetch: PrefetchState,
    /// The last delivery tag that the client has received. Everything up to it belongs to an earlier upstream
    /// channel.
    pub(crate) delivered: u64,
    /// The queue that an empty name means.
    pub(crate) last_queue: Option<Box<str>>,
    /// When a departed client's frames were first lost with an upstream connection.
    pub(crate) lost_since: Option<Instant>,
}

/// A consumer that the broker has, or will have once the method arrives. Part of [`crate::SessionState`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Consumer {
    tag: Box<str>,
    /// The `basic.consume` that created the consumer, with no-wait set.
    #[serde(with = "crate::encoded")]
    method: Box<[u8]>,
    /// Its position, if its queue is a stream.
    position: StreamPosition,
    /// The limits in force when it was made.
    pub(crate) prefetch: PrefetchState,
    /// Whether it is a client's end of direct reply-to.
    pub(crate) is_reply_to: bool,
    /// Counts the consumer in the remembered topology, if its queue is auto-delete.
    #[serde(skip)]
    consuming: Option<Consuming>,
}

impl MovedState {
    /// A `basic.ack`, `basic.nack` or `basic.reject` with its delivery tag translated for the present
    /// upstream channel; any other method unchanged. Returns `None` if it settles only earlier deliveries,
    /// which are back in their queues, or gone.
    pub(crate) fn settling<'p>(&self, payload: &'p [u8]) -> Option<Cow<'p, [u8]>> {
        let settles = matches!(payload, [0, 60, 0, 80 | 90 | 120, ..]);
        let tag =
            payload.get(TAG_AT..).and_then(|rest| rest.first_chunk()).map(|tag| u64::from_be_bytes(*tag));
        let Some(tag) = tag.filter(|_| settles && self.delivered > 0) else { return Some(payload.into()) };
        let tag = self.present_tag(tag)?;
        let mut payload = payload.to_vec();
        payload[TAG_AT..TAG_AT + size_of::<u64>()].copy_from_slice(&tag.to_be_bytes());
        Some(payload.into())
    }

    /// Translates the client's delivery tag to that of the current upstream channel. `None` if the delivery came on an
    /// earlier one.
    #[inline]
    pub(crate) fn present_tag(&self, tag: u64) -> Option<u64> {
        // 0 stands for all unsettled deliveries.
        if tag == 0 { Some(0) } else { tag.checked_sub(self.delivered).filter(|tag| *tag > 0) }
    }

    /// Whether there is a consumer with this tag.
    pub(crate) fn is_consuming(&self, tag: &str) -> bool {
        self.consumers.iter().any(|consumer| *consumer.tag == *tag)
    }

    /// The queue of a consumer.
    pub(super) fn queue_of(&self, tag: &str) -> Option<Box<str>> {
        let consumer = self.consumers.iter().find(|consumer| *consumer.tag == *tag)?;
        consumer.queue().map(Into::into)
    }

    /// Records that a message with this stream offset arrived for a consumer, and whether it was passed on.
    pub(super) fn record_offset(&mut self, tag: &[u8], offset: u64, is_passed_on: bool) {
        if let Some(consumer) = self.consumers.iter_mut().find(|consumer| consumer.tag.as_bytes() == tag) {
            consumer.position.came(offset, is_passed_on);
        }
    }

    /// If this is the text with which the broker refuses an offset, records that the queue is not a stream. Returns
    /// whether one of its consumers was, or would have been, recreated with an offset.
    pub(super) fn clear_offset_unless_stream(&mut self, text: &str) -> bool {
        let Some(queue) = self.queue_without_offsets(text) else { return false };
        let mut was_assumed = false;
        for consumer in self.consumers.iter_mut().filter(|consumer| consumer.queue() == Some(&queue)) {
            was_assumed |= consumer.position.mark_not_stream();
        }
        was_assumed
    }

    /// The queue named by the text of such a refusal. `None` if the text is truncated and may mean several queues: one
    /// of them may be a stream, whose position must be kept.
    fn queue_without_offsets(&self, text: &str) -> Option<Box<str>> {
        let mut meant =
            self.consumers.iter().filter_map(Consumer::queue).filter(|queue| refuses_offset(text, queue));
        let queue = meant.next()?;
        meant.all(|other| other == queue).then(|| queue.into())
    }

    /// Whether a consumer cannot move to another upstream channel: it is a client's end of direct reply-to, or its queue is
    /// auto-delete and would be deleted meanwhile.
    pub(super) fn has_dependent_consumers(&self) -> bool {
        self.consumers.iter().any(|consumer| consumer.is_reply_to || consumer.consuming.is_some())
    }

    pub(super) fn forget_consumer(&mut self, tag: &str) {
        self.consumers.retain(|consumer| *consumer.tag != *tag);
    }
}

impl Consumer {
    pub(super) fn new(
        consume: basic::Consume<'_>,
        tag: &str,
        last_queue: Option<&str>,
        prefetch: PrefetchState,
    ) -> Self {
        let queue = if consume.queue.is_empty() { last_queue.unwrap_or_default() } else { consume.queue };
        let is_reply_to = queue == REPLY_TO;
        let position = StreamPosition::new(&consume.arguments);
        let mut method = Vec::new();
        let again = basic::Consume { queue, consumer_tag: tag, no_wait: true, ..consume };
        Method::from(again).encode(&mut method);
        Self { tag: tag.into(), method: method.into(), position, prefetch, is_reply_to, consuming: None }
    }
}

impl Consumer {
    /// Counts the consumer in the remembered topology.
    pub(super) fn counted(mut self, link: &ClientLink) -> Self {
        self.consuming = self.queue().and_then(|queue| link.consuming(queue));
        self
    }

    /// The method that recreates the consumer. A stream consumer continues after its last delivery.
    pub(crate) fn again(&self) -> Cow<'_, [u8]> {
        let Some(consume) = self.consume() else { return (&*self.method).into() };
        let Some(arguments) = self.position.again(&consume.arguments) else { return (&*self.method).into() };
        let arguments = arguments.encode();
        let Ok(arguments) = RawTable::check(&arguments) else { return (&*self.method).into() };
        let mut method = Vec::new();
        Method::from(basic::Consume { arguments, ..consume }).encode(&mut method);
        method.into()
    }

    /// Whether its deliveries are acknowledged automatically (`no_ack`).
    pub(crate) fn is_automatic(&self) -> bool {
        self.consume().is_some_and(|consume| consume.no_ack)
    }

    fn queue(&self) -> Option<&str> {
        self.consume().map(|consume| consume.queue)
    }

    fn consume(&self) -> Option<basic::Consume<'_>> {
        match Method::decode(&self.method) {
            Ok(Method::BasicConsume(consume)) => Some(consume),
            _ => None,
        }
    }
}

/// Maps the messages of a lease to the client's numbers. Part of [`crate::SessionState`].
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfirmNumbers {
    /// The client's number of the lease's first message, minus 1.
    pub(super) offset: u64,
    /// Later numbers that are skipped, ascending: these messages were confirmed before an earlier one that was sent again.
    pub(super) gaps: Vec<u64>,
}

impl ConfirmNumbers {
    /// The client's number of a lease's message, counted from 1.
    pub(super) fn of(&self, own: u64) -> u64 {
        let mut number = self.offset + own;
        for gap in &self.gaps {
            if *gap > number {
                break;
            }
            number += 1;
        }
        number
    }

    /// Drops gaps before which everything is confirmed.
    pub(super) fn fold(&mut self, up_to: u64) {
        if self.gaps.last().is_some_and(|last| self.of(up_to) > *last) {
            self.offset += self.gaps.len() as u64;
            self.gaps.clear();
        }
    }

    /// The numbers for the next lease, when everything up to `up_to` and everything in `gone` is settled.
    pub(super) fn without(self, up_to: u64, gone: Vec<u64>) -> Self {
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

/// Offset of the delivery tag in the methods that settle deliveries.
const TAG_AT: usize = 4;
/// The pseudo-queue that stands for the consuming channel itself (RabbitMQ, direct reply-to).
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";
