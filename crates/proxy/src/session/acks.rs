//! The fast path of acknowledging: those that stand one behind the other in a read go out as one with `multiple`, where
//! that is exactly the same.
//!
//! A broker does most of its work for an acknowledgement by the method and not by the message, and answers each with
//! the next delivery of a window; so the fewer there are, the more deliveries come at once.
//!
//! # Example
//! Deliveries 1 to 6 are out. The client acknowledges 1, 2, 3, 4 and 6, each by itself, in one read. The broker gets
//! one acknowledgement of 4 with `multiple`, and then that of 6: delivery 5 is still the client's.

use amqp::frame::{FRAME_END, HEADER_LEN, OVERHEAD};
use amqp::method::basic;

use super::ProxySession;
use super::channel::ChannelPhase;
use super::validate::{ACK_LEN, is_ack};

impl ProxySession {
    /// Takes a `basic.ack` on channel `number`, and those behind it on the same channel, as long as `rest` contains them
    /// whole. Returns how many bytes of `rest` they were. Returns `None`, having taken nothing, if they have to wait or
    /// be processed one by one.
    #[inline]
    pub(super) fn acks(&mut self, number: u16, ack: &[u8], rest: &[u8]) -> Option<usize> {
        let channel = self.channels.get_mut(number)?;
        let is_next = channel.is_own() || channel.in_line.is_empty();
        if !is_next || !matches!(channel.phase, ChannelPhase::Open(None)) {
            return None;
        }
        let behind = acks_in(number, &rest[..rest.len().min(SPAN_MAX)]);
        let count =
            channel.general.acknowledge(&mut self.output, std::iter::once(decode(ack)).chain(behind))?;
        Some((count - 1) * WIRE_LEN)
    }
}

/// The deliveries of one upstream channel that its client has settled.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// All deliveries up to this one are settled.
    up_to: u64,
    /// Further ones: the first and the last of each run, in order, with others between the runs.
    beyond: Vec<(u64, u64)>,
    /// Whether the broker may see it differently: it refuses something, or has settled more than is known here. Nothing
    /// is gathered then. Set until the channel is placed again.
    is_unsure: bool,
}

impl Settled {
    /// Notes that the broker's deliveries may be others than are counted here.
    pub(super) fn doubt(&mut self) {
        self.is_unsure = true;
        self.beyond = Vec::new();
    }

    /// Notes that a delivery is settled, or all up to it if `multiple`; the last one so far is `delivered`. Returns whether
    /// it was this client's to settle.
    #[inline]
    pub(super) fn settle(&mut self, tag: u64, multiple: bool, delivered: u64) -> bool {
        let is_plain = !self.is_unsure && tag > self.up_to && tag <= delivered && self.add(tag, multiple);
        if !is_plain && !self.is_unsure {
            self.doubt();
        }
        is_plain
    }

    /// Adds a delivery beyond `up_to`. Returns false if it was there, or if there are too many runs.
    #[inline]
    fn add(&mut self, tag: u64, multiple: bool) -> bool {
        if tag != self.up_to + 1 && !multiple {
            return self.add_beyond(tag);
        }
        if self.beyond.is_empty() {
            self.up_to = tag;
            return true;
        }
        let covered = self.beyond.partition_point(|(_, last)| *last < tag);
        if self.beyond.get(covered).is_some_and(|(first, _)| *first <= tag) {
            return false;
        }
        self.up_to = tag;
        self.beyond.drain(..covered);
        if let Some((first, last)) = self.beyond.first().copied()
            && first == tag + 1
        {
            self.up_to = last;
            self.beyond.remove(0);
        }
        true
    }

    fn add_beyond(&mut self, tag: u64) -> bool {
        let at = self.beyond.partition_point(|(_, last)| *last < tag);
        let next = self.beyond.get(at).map_or(u64::MAX, |(first, _)| *first);
        if next <= tag {
            return false;
        }
        let before = at.checked_sub(1).filter(|before| self.beyond[*before].1 + 1 == tag);
        match (before, next == tag + 1) {
            (Some(before), true) => self.beyond[before].1 = self.beyond.remove(at).1,
            (Some(before), false) => self.beyond[before].1 = tag,
            (None, true) => self.beyond[at].0 = tag,
            (None, false) if self.beyond.len() == RUNS_MAX => return false,
            (None, false) => self.beyond.insert(at, (tag, tag)),
        }
        true
    }

    /// What `earlier`, which has not gone out, and `later` are together, both of them the client's to settle: one
    /// acknowledgement, if all deliveries up to the last of them are settled.
    #[inline]
    pub(super) fn join(&self, earlier: &basic::Ack, later: &basic::Ack) -> Option<basic::Ack> {
        let delivery_tag = earlier.delivery_tag.max(later.delivery_tag);
        (self.up_to >= delivery_tag).then_some(basic::Ack { delivery_tag, multiple: true })
    }
}

/// The acknowledgements on channel `number` that `input` begins with.
#[inline]
fn acks_in(number: u16, mut input: &[u8]) -> impl Iterator<Item = basic::Ack> {
    let [high, low] = number.to_be_bytes();
    let header = [1, high, low, 0, 0, 0, ACK_LEN as u8];
    std::iter::from_fn(move || {
        let (frame, behind) = input.split_first_chunk::<WIRE_LEN>()?;
        let payload = &frame[HEADER_LEN..WIRE_LEN - 1];
        if !frame.starts_with(&header) || frame[WIRE_LEN - 1] != FRAME_END || !is_ack(payload) {
            return None;
        }
        input = behind;
        Some(decode(payload))
    })
}

/// Decodes the payload of a well-formed `basic.ack`.
#[inline]
fn decode(payload: &[u8]) -> basic::Ack {
    let tag = payload.get(TAG_AT..).and_then(|rest| rest.first_chunk());
    basic::Ack {
        delivery_tag: tag.map_or(0, |tag| u64::from_be_bytes(*tag)),
        multiple: payload.last().is_some_and(|bits| bits & MULTIPLE != 0),
    }
}

/// Bytes of a `basic.ack` on the wire.
const WIRE_LEN: usize = ACK_LEN + OVERHEAD;
/// Offset of the delivery tag in the payload, behind class and method.
const TAG_AT: usize = 4;
const MULTIPLE: u8 = 1;
/// Bytes taken at once at most, so that the broker gets work early.
const SPAN_MAX: usize = 64 * 1024;
/// Runs of settled deliveries that are remembered. A client that leaves more gaps settles in no order that could be
/// gathered.
const RUNS_MAX: usize = 256;
