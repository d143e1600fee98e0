//! One numbering for a channel whose publishes go two ways.

use std::collections::VecDeque;

/// The confirms of a client's channel, as its client counts them: from 1, over all its publishes.
///
/// The direct publishes have numbers of their own upstream, where the spooled ones are unknown. A verdict comes in for
/// either kind in any order; answers for the client come out as soon as they can be given, with `multiple` where
/// everything up to a number is settled.
///
/// Example: the publishes 1 and 3 are direct, 2 is spooled. The upstream's ack of its number 2, with `multiple`, is for 1 and
/// 3. The client gets an ack of 1 and one of 3; after the spool's, one of 2.
#[derive(Debug, Default)]
pub struct ClientConfirms {
    /// All publishes up to this number have been answered.
    answered: u64,
    /// Whether each of the publishes after them has been answered.
    waiting: VecDeque<bool>,
    /// The client's numbers of direct publishes in their order; `None` for one that has been answered.
    direct: VecDeque<Option<u64>>,
    /// The upstream's number of the first of them.
    first_direct: u64,
}

/// A basic.ack or basic.nack for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// A number of the client's, or with `multiple` the last of several.
    pub delivery_tag: u64,
    /// Whether it is for all unanswered publishes up to this number.
    pub multiple: bool,
}

impl ClientConfirms {
    /// Counts a publish that goes to the upstream. Returns the client's number.
    pub fn published_directly(&mut self) -> u64 {
        if self.direct.is_empty() && self.first_direct == 0 {
            self.first_direct = 1;
        }
        let number = self.next();
        self.direct.push_back(Some(number));
        number
    }

    /// Counts a publish that is spooled. Returns the client's number.
    pub fn spooled(&mut self) -> u64 {
        self.next()
    }

    /// The upstream has acked or nacked direct publishes, by its own numbers.
    pub fn settle_direct(&mut self, delivery_tag: u64, multiple: bool, answer: impl FnMut(Answer)) {
        let last = self.first_direct + self.direct.len() as u64;
        // Zero and `multiple` stand for all.
        let number = if multiple && delivery_tag == 0 { last.saturating_sub(1) } else { delivery_tag };
        if number < self.first_direct || number >= last {
            return;
        }
        let end = (number - self.first_direct) as usize + 1;
        let from = if multiple { 0 } else { end - 1 };
        let settled: Vec<u64> = self.direct.range_mut(from..end).filter_map(Option::take).collect();
        while let Some(None) = self.direct.front() {
            self.direct.pop_front();
            self.first_direct += 1;
        }
        self.settle(&settled, answer);
    }

    /// Publishes, by the client's ascending numbers, are on disk.
    pub fn settle(&mut self, numbers: &[u64], mut answer: impl FnMut(Answer)) {
        let before = self.answered;
        for number in numbers.iter().filter(|number| **number > before) {
            if let Some(is_answered) = self.waiting.get_mut((number - before - 1) as usize) {
                *is_answered = true;
            }
        }
        while let Some(true) = self.waiting.front() {
            self.waiting.pop_front();
            self.answered += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > IDLE_CAPACITY {
            self.waiting = VecDeque::new();
        }
        let whole = numbers.partition_point(|number| *number <= self.answered);
        if let Some(last) = numbers[..whole].last() {
            // Anything else up to it was answered before, and `multiple` means only what was not.
            answer(Answer { delivery_tag: *last, multiple: whole > 1 });
        }
        for delivery_tag in &numbers[whole..] {
            answer(Answer { delivery_tag: *delivery_tag, multiple: false });
        }
    }

    /// Number of publishes without an answer.
    pub fn unanswered(&self) -> usize {
        self.waiting.iter().filter(|is_answered| !**is_answered).count()
    }

    fn next(&mut self) -> u64 {
        self.waiting.push_back(false);
        self.answered + self.waiting.len() as u64
    }
}

/// Capacity in publishes that an idle channel keeps.
const IDLE_CAPACITY: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(delivery_tag: u64) -> Answer {
        Answer { delivery_tag, multiple: false }
    }

    fn acks(delivery_tag: u64) -> Answer {
        Answer { delivery_tag, multiple: true }
    }

    fn direct(confirms: &mut ClientConfirms, tag: u64, multiple: bool) -> Vec<Answer> {
        let mut answers = Vec::new();
        confirms.settle_direct(tag, multiple, |answer| answers.push(answer));
        answers
    }

    fn spooled(confirms: &mut ClientConfirms, numbers: &[u64]) -> Vec<Answer> {
        let mut answers = Vec::new();
        confirms.settle(numbers, |answer| answers.push(answer));
        answers
    }

    #[test]
    fn both_ways_share_one_numbering() {
        let mut confirms = ClientConfirms::default();
        let numbers = [
            confirms.published_directly(),
            confirms.spooled(),
            confirms.published_directly(),
            confirms.spooled(),
        ];
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!(direct(&mut confirms, 2, true), [ack(1), ack(3)]);
        assert_eq!(spooled(&mut confirms, &[2, 4]), [acks(4)]);
        assert_eq!(confirms.unanswered(), 0);
        assert_eq!((confirms.published_directly(), confirms.spooled()), (5, 6));
        assert_eq!(direct(&mut confirms, 3, false), [ack(5)]);
    }

    #[test]
    fn a_gap_forbids_multiple() {
        let mut confirms = ClientConfirms::default();
        for _ in 0..5 {
            confirms.spooled();
        }
        assert_eq!(spooled(&mut confirms, &[2, 3, 5]), [ack(2), ack(3), ack(5)]);
        assert_eq!(spooled(&mut confirms, &[1]), [ack(1)]);
        assert_eq!(spooled(&mut confirms, &[4]), [ack(4)]);
    }

    #[test]
    fn the_upstream_cannot_settle_what_it_never_had() {
        let mut confirms = ClientConfirms::default();
        assert_eq!(direct(&mut confirms, 1, false), []);
        assert_eq!(direct(&mut confirms, 0, true), []);
        confirms.spooled();
        confirms.published_directly();
        assert_eq!(direct(&mut confirms, 2, false), []);
        assert_eq!(direct(&mut confirms, 0, true), [ack(2)]);
        assert_eq!(direct(&mut confirms, 1, false), [], "answered before");
        assert_eq!(confirms.unanswered(), 1);
    }

    /// In any order of verdicts, a client that counts as the specification says ends with everything answered once.
    #[test]
    fn a_client_gets_one_answer_for_each_publish() {
        let mut random = mutations::Random::new(7);
        for _ in 0..2000 {
            let mut confirms = ClientConfirms::default();
            let (mut ours, mut theirs, mut open) =
                (Vec::new(), Vec::new(), std::collections::BTreeSet::new());
            let mut theirs_from = 1;
            let check = |open: &mut std::collections::BTreeSet<u64>, answer: Answer, allowed: &[u64]| {
                let Answer { delivery_tag, multiple } = answer;
                let from = if multiple { 0 } else { delivery_tag };
                let of: Vec<u64> = open.range(from..=delivery_tag).copied().collect();
                assert!(!of.is_empty(), "an answer for nothing");
                assert!(of.iter().all(|number| allowed.contains(number)), "{of:?} of {allowed:?}");
                of.iter().for_each(|number| _ = open.remove(number));
            };
            for _ in 0..random.below(60) {
                match random.below(4) {
                    0 => {
                        ours.push(confirms.spooled());
                        open.insert(*ours.last().unwrap());
                    }
                    1 => {
                        theirs.push(confirms.published_directly());
                        open.insert(*theirs.last().unwrap());
                    }
                    2 if !ours.is_empty() => {
                        let some: Vec<u64> = ours.drain(..=random.below(ours.len())).collect();
                        confirms.settle(&some, |answer| check(&mut open, answer, &some));
                    }
                    3 if !theirs.is_empty() => {
                        let count = random.below(theirs.len()) + 1;
                        let some: Vec<u64> = theirs.drain(..count).collect();
                        theirs_from += count as u64;
                        confirms
                            .settle_direct(theirs_from - 1, true, |answer| check(&mut open, answer, &some));
                    }
                    _ => {}
                }
            }
            confirms.settle(&ours, |answer| check(&mut open, answer, &ours));
            confirms.settle_direct(0, true, |answer| check(&mut open, answer, &theirs));
            assert_eq!((open.len(), confirms.unanswered()), (0, 0));
        }
    }
}
