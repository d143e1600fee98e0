//! The fast path for acknowledgements: consecutive ones in a read are merged into one with `multiple`, where this
//! settles exactly the same deliveries.
//!
//! A broker's cost of an acknowledgement is mostly per method, not per message, and each one makes it send the next
//! deliveries of the prefetch window. So fewer acknowledgements also mean larger batches of deliveries.
//!
//! # Example
//! Deliveries 1 to 6 are unacknowledged. The client acknowledges 1, 2, 3, 4 and 6 separately, in one read. The broker
//! gets one acknowledgement of 4 with `multiple`, and then that of 6: delivery 5 is still unacknowledged.

use amqp::method::basic;
use sync::work;

use super::ProxySession;
use super::channel::ChannelPhase;
use crate::ack_frames::{WIRE_LEN, acks_in, decode};

impl ProxySession {
    /// Takes a `basic.ack` on channel `number`, and the complete ones on the same channel that directly follow in
    /// `rest`. Returns the number of bytes of `rest` that it has taken. Returns `None`, having taken nothing, if they
    /// have to wait or be processed one by one.
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
        let more = count - 1;
        // The first one was charged when its frame was parsed.
        work::charge(ACK, more);
        Some(more * WIRE_LEN)
    }
}

/// The deliveries of one upstream channel that its client has settled.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// All deliveries up to this one are settled.
    up_to: u64,
    /// Settled deliveries beyond `up_to`: the first and last tag of each run, ascending, with unsettled deliveries
    /// between the runs.
    beyond: Vec<(u64, u64)>,
    /// Whether the broker's state may differ from this: it will refuse an acknowledgement, or has settled more than is
    /// recorded here. Acknowledgements are not merged then. Set until the channel is placed again.
    is_unsure: bool,
}

impl Settled {
    /// Notes that the broker's state may differ from what is recorded here.
    pub(super) fn invalidate_counts(&mut self) {
        self.is_unsure = true;
        self.beyond = Vec::new();
    }

    /// Notes that a delivery is settled, or all up to it if `multiple`. `delivered` is the last delivery tag so far.
    /// Returns whether the tag was valid: delivered and not settled before.
    #[inline]
    pub(super) fn settle(&mut self, tag: u64, multiple: bool, delivered: u64) -> bool {
        let is_plain = !self.is_unsure && tag > self.up_to && tag <= delivered && self.add(tag, multiple);
        if !is_plain && !self.is_unsure {
            self.invalidate_counts();
        }
        is_plain
    }

    /// Adds a delivery beyond `up_to`. Returns false if it was settled already, or if there are too many runs.
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
        if self.beyond.is_empty() && self.beyond.capacity() > RETAINED_RUNS {
            self.beyond = Vec::new();
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

    /// The last unsettled delivery up to `delivered`, `Some(None)` if all are settled. Returns `None` if that is unknown, for
    /// example because `delivered` is `None`.
    #[inline]
    pub(super) fn last_unsettled(&self, delivered: Option<u64>) -> Option<Option<u64>> {
        let delivered = delivered.filter(|_| !self.is_unsure)?;
        let last = match self.beyond.last() {
            // The tag before a run is always unsettled.
            Some((first, last)) if *last >= delivered => first - 1,
            _ => delivered,
        };
        Some(Some(last).filter(|last| *last > self.up_to))
    }

    /// Merges `earlier`, which has not been sent yet, with `later`; both are valid. They become one acknowledgement if
    /// all deliveries up to the higher tag are settled.
    #[inline]
    pub(super) fn join(&self, earlier: &basic::Ack, later: &basic::Ack) -> Option<basic::Ack> {
        let delivery_tag = earlier.delivery_tag.max(later.delivery_tag);
        (self.up_to >= delivery_tag).then_some(basic::Ack { delivery_tag, multiple: true })
    }
}

/// Maximum bytes taken at once, so that the broker gets work early.
const SPAN_MAX: usize = 64 * 1024;
/// Maximum runs of settled deliveries that are recorded. If a client leaves more gaps, its acknowledgements could
/// hardly be merged anyway.
const RUNS_MAX: usize = 256;
/// Capacity, in runs, that is kept while there is no run, so that a client that settles slightly out of order does not
/// allocate repeatedly.
const RETAINED_RUNS: usize = 4;
/// Cost of an acknowledgement behind another one, in nanoseconds: no more than that of a frame by itself.
const ACK: u32 = 40;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::test_random::TestRandom;

    /// The delivery up to which all are settled, and the number of runs beyond it.
    fn runs(settled: &BTreeSet<u64>) -> (u64, usize) {
        let up_to = (1..).find(|tag| !settled.contains(tag)).map_or(0, |tag| tag - 1);
        let beyond = settled.range(up_to + 1..);
        (up_to, beyond.filter(|tag| !settled.contains(&(**tag - 1))).count())
    }

    #[test]
    fn runs_record_the_same_deliveries_as_a_set() {
        let (mut plain, mut too_many, mut others) = (0, 0, 0);
        for seed in 0..24 {
            let mut random = TestRandom::new(seed);
            let (delivered, disorder) = [(200, 1), (200, 3), (300, 30), (1500, 1500)][seed as usize % 4];
            let (mut counted, mut model) = (Settled::default(), BTreeSet::new());
            loop {
                let unsettled: Vec<u64> = (1..=delivered).filter(|tag| !model.contains(tag)).collect();
                let near = random.below(disorder.min(unsettled.len() as u64).max(1)) as usize;
                let fault = 1 + random.below(delivered + 10);
                let tag = unsettled.get(near).copied().filter(|_| !random.chance(2)).unwrap_or(fault);
                let multiple = disorder < 1500 && random.chance(50);
                let is_open = tag <= delivered && !model.contains(&tag);
                model.extend(if multiple { 1 } else { tag }..=tag);
                let (up_to, beyond) = runs(&model);
                let expected = is_open && beyond <= RUNS_MAX;
                assert_eq!(counted.settle(tag, multiple, delivered), expected, "seed {seed}, {tag}");
                if !expected {
                    *(if is_open { &mut too_many } else { &mut others }) += 1;
                    assert!(!counted.settle(up_to + 1, false, delivered) && counted.beyond.capacity() == 0);
                    assert_eq!(counted.last_unsettled(Some(delivered)), None);
                    break;
                }
                plain += 1;
                assert_eq!((counted.up_to, counted.beyond.len()), (up_to, beyond), "seed {seed}, {tag}");
                assert!(beyond > 0 || counted.beyond.capacity() <= RETAINED_RUNS);
                let passed_on = random.below(delivered - tag + 1) + *model.last().unwrap();
                let open = (1..=passed_on.min(delivered)).rev().find(|tag| !model.contains(tag));
                assert_eq!(counted.last_unsettled(Some(passed_on.min(delivered))), Some(open), "seed {seed}");
                let (earlier, later) = (1 + random.below(delivered), tag);
                let one = |delivery_tag| basic::Ack { delivery_tag, multiple: false };
                let both = counted.join(&one(earlier), &one(later));
                let last = earlier.max(later);
                let all = basic::Ack { delivery_tag: last, multiple: true };
                assert_eq!(both, (up_to >= last).then_some(all));
            }
        }
        assert!(plain > 2000 && too_many > 2 && others > 5, "{plain} plain, {too_many}, {others}");
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let most = 2 * RUNS_MAX as u64;
        let with_gaps = || {
            let mut settled = Settled::default();
            assert!((1..=RUNS_MAX as u64).all(|nth| settled.settle(2 * nth, false, u64::MAX)));
            assert_eq!((settled.up_to, settled.beyond.len()), (0, RUNS_MAX));
            settled
        };
        let mut settled = with_gaps();
        assert!((1..=RUNS_MAX as u64).rev().all(|nth| settled.settle(2 * nth - 1, false, u64::MAX)));
        assert_eq!((settled.up_to, settled.beyond.capacity()), (most, 0));
        assert!(settled.settle(most + 1, false, u64::MAX));

        let mut settled = with_gaps();
        assert!(!settled.settle(most + 2, false, u64::MAX), "one too many");
        assert_eq!((settled.up_to, settled.beyond.capacity()), (0, 0));
        let closing = (1..=most + 1).step_by(2).chain(most + 3..most + 10);
        assert!(closing.into_iter().all(|tag| !settled.settle(tag, false, u64::MAX)));
    }
}
