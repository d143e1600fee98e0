//! One sequence of confirms for a channel whose publishes take two paths.

use std::collections::VecDeque;

/// The confirms of a client's channel, as its client counts them: from 1, over all its publishes.
///
/// The direct publishes have sequence numbers of their own upstream, which does not know of the spooled ones. The answers
/// to direct and to spooled publishes may come in any order. Answers to the client follow as soon as possible, with
/// `multiple` where everything up to a number is settled.
///
/// Example: the publishes 1 and 3 are direct, 2 is spooled. The upstream's ack of its number 2, with `multiple`, is for 1 and
/// 3. The client gets an ack of 1 and one of 3; after the spool's, one of 2.
///
/// Memory is used for unanswered publishes only: one publish may stay unconfirmed for hours, such as a direct one while the
/// upstream is unreachable, while any number of later ones are spooled and confirmed.
#[derive(Debug, Default)]
pub struct ClientConfirms {
    /// Number of all publishes.
    published: u64,
    /// Unanswered publishes, in ascending runs that do not touch.
    unanswered: VecDeque<Run>,
    /// Number of all direct publishes.
    directly: u64,
    /// Unanswered direct publishes, in ascending order.
    direct: VecDeque<DirectRun>,
}

/// Numbers without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    last: u64,
}

/// Direct publishes with no spooled one between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectRun {
    /// By the upstream's numbers.
    numbers: Run,
    /// The client's number of the first one.
    first: u64,
}

/// A basic.ack or basic.nack for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// A number of the client's, or with `multiple` the last of several.
    pub delivery_tag: u64,
    /// Whether it covers all unanswered publishes up to this number.
    pub multiple: bool,
}

impl ClientConfirms {
    /// Counts a publish that goes to the upstream. Returns the client's number.
    pub fn published_directly(&mut self) -> u64 {
        let first = self.next();
        self.directly += 1;
        let number = self.directly;
        match self.direct.back_mut() {
            Some(run) if run.follows(number, first) => run.numbers.last = number,
            _ => self.direct.push_back(DirectRun { numbers: Run { first: number, last: number }, first }),
        }
        first
    }

    /// Counts a publish that is spooled. Returns the client's number.
    pub fn spooled(&mut self) -> u64 {
        self.next()
    }

    /// Settles direct publishes that the upstream has acked or nacked, by its own numbers.
    pub fn settle_direct(&mut self, delivery_tag: u64, multiple: bool, answer: impl FnMut(Answer)) {
        // Zero with `multiple` stands for all.
        let number = if multiple && delivery_tag == 0 { self.directly } else { delivery_tag };
        if number > self.directly {
            return;
        }
        let mut settled = Vec::new();
        while multiple && let Some(run) = self.direct.pop_front_if(|run| run.numbers.last <= number) {
            settled.extend(run.clients(run.numbers));
        }
        let at = self.direct.partition_point(|run| run.numbers.last < number);
        if let Some(run) = self.direct.get(at).copied().filter(|run| run.numbers.first <= number) {
            let first = if multiple { run.numbers.first } else { number };
            settled.extend(run.clients(Run { first, last: number }));
            let (before, after) = run.numbers.without(Run { first, last: number });
            let rests = [before, after].map(|rest| rest.map(|numbers| run.part(numbers)));
            replace(&mut self.direct, at, rests);
        }
        self.settle(&settled, answer);
    }

    /// Settles publishes that are on disk, by the client's ascending numbers.
    pub fn settle(&mut self, numbers: &[u64], mut answer: impl FnMut(Answer)) {
        for run in numbers.chunk_by(|one, next| one + 1 == *next) {
            self.settled(Run { first: run[0], last: run[run.len() - 1] });
        }
        let answered = self.unanswered.front().map_or(self.published, |run| run.first - 1);
        let whole = numbers.partition_point(|number| *number <= answered);
        if let Some(last) = numbers[..whole].last() {
            // All other publishes up to this one were answered before, and `multiple` covers only unanswered ones.
            answer(Answer { delivery_tag: *last, multiple: whole > 1 });
        }
        for delivery_tag in &numbers[whole..] {
            answer(Answer { delivery_tag: *delivery_tag, multiple: false });
        }
    }

    /// Number of publishes without an answer.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.iter().map(|run| run.last + 1 - run.first).sum()
    }

    fn next(&mut self) -> u64 {
        self.published += 1;
        let number = self.published;
        match self.unanswered.back_mut() {
            Some(run) if run.last + 1 == number => run.last = number,
            _ => self.unanswered.push_back(Run { first: number, last: number }),
        }
        number
    }

    /// Removes a run, all of which is unanswered so far.
    fn settled(&mut self, run: Run) {
        let at = self.unanswered.partition_point(|unanswered| unanswered.last < run.first);
        let contains = |unanswered: &&Run| unanswered.first <= run.first && run.last <= unanswered.last;
        let Some(unanswered) = self.unanswered.get(at).filter(contains) else { return };
        let (before, after) = unanswered.without(run);
        replace(&mut self.unanswered, at, [before, after]);
    }
}

impl Run {
    /// The parts of the run before and after another one.
    fn without(self, other: Self) -> (Option<Self>, Option<Self>) {
        let before = (self.first < other.first).then(|| Self { last: other.first - 1, ..self });
        let after = (other.last < self.last).then(|| Self { first: other.last + 1, ..self });
        (before, after)
    }
}

impl DirectRun {
    /// Whether a publish continues this run, by the upstream's number and the client's.
    fn follows(&self, number: u64, client: u64) -> bool {
        self.numbers.last + 1 == number && self.first + (number - self.numbers.first) == client
    }

    /// The client's numbers of some of its publishes.
    fn clients(&self, numbers: Run) -> impl Iterator<Item = u64> + use<> {
        let first = self.first;
        let from = self.numbers.first;
        (numbers.first..=numbers.last).map(move |number| first + (number - from))
    }

    /// Some of its publishes.
    fn part(&self, numbers: Run) -> Self {
        Self { numbers, first: self.first + (numbers.first - self.numbers.first) }
    }
}

/// Replaces a run by its remaining parts.
fn replace<T>(runs: &mut VecDeque<T>, at: usize, rests: [Option<T>; 2]) {
    match rests {
        [None, None] => _ = runs.remove(at),
        [Some(rest), None] | [None, Some(rest)] => runs[at] = rest,
        [Some(before), Some(after)] => {
            runs[at] = before;
            runs.insert(at + 1, after);
        }
    }
    if runs.is_empty() && runs.capacity() > IDLE_CAPACITY {
        *runs = VecDeque::new();
    }
}

/// Capacity in runs that an idle channel retains.
const IDLE_CAPACITY: usize = 64;

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
    fn direct_and_spooled_publishes_share_one_numbering() {
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
    fn the_upstream_cannot_settle_messages_never_sent_to_it() {
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

    #[test]
    fn an_unanswered_publish_takes_no_memory_for_later_answered_ones() {
        let mut confirms = ClientConfirms::default();
        assert_eq!(confirms.published_directly(), 1);
        for number in 1..=100_000 {
            assert_eq!((confirms.spooled(), confirms.published_directly()), (2 * number, 2 * number + 1));
            assert_eq!(spooled(&mut confirms, &[2 * number]), [ack(2 * number)]);
            assert_eq!(direct(&mut confirms, number + 1, false), [ack(2 * number + 1)]);
        }
        assert!(confirms.unanswered.capacity() + confirms.direct.capacity() <= 2 * IDLE_CAPACITY);
        assert_eq!(confirms.unanswered(), 1);
        assert_eq!(direct(&mut confirms, 1, false), [ack(1)]);
        assert_eq!((confirms.spooled(), confirms.unanswered()), (200_002, 1));
        assert_eq!(spooled(&mut confirms, &[200_002]), [ack(200_002)]);
    }

    #[test]
    fn one_of_several_direct_publishes_in_a_row_is_answered() {
        let mut confirms = ClientConfirms::default();
        confirms.spooled();
        (0..5).for_each(|_| _ = confirms.published_directly());
        assert_eq!(direct(&mut confirms, 3, false), [ack(4)]);
        assert_eq!(direct(&mut confirms, 3, false), [], "answered before");
        assert_eq!(direct(&mut confirms, 4, true), [ack(2), ack(3), ack(5)]);
        assert_eq!(spooled(&mut confirms, &[1]), [ack(1)]);
        assert_eq!(direct(&mut confirms, 5, true), [ack(6)]);
        assert_eq!(confirms.unanswered(), 0);
    }

    /// In any order of answers, a client that counts as the specification says ends with everything answered once.
    #[test]
    fn a_client_gets_one_answer_for_each_publish() {
        let mut random = mutations::Random::new(7);
        for _ in 0..2000 {
            let mut confirms = ClientConfirms::default();
            let (mut ours, mut theirs, mut open) =
                (Vec::new(), Vec::new(), std::collections::BTreeSet::new());
            let mut theirs_next = 0;
            let check = |open: &mut std::collections::BTreeSet<u64>, answer: Answer, allowed: &[u64]| {
                let Answer { delivery_tag, multiple } = answer;
                let from = if multiple { 0 } else { delivery_tag };
                let of: Vec<u64> = open.range(from..=delivery_tag).copied().collect();
                assert!(!of.is_empty(), "an answer for nothing");
                assert!(of.iter().all(|number| allowed.contains(number)), "{of:?} of {allowed:?}");
                of.iter().for_each(|number| _ = open.remove(number));
            };
            for _ in 0..random.below(60) {
                match random.below(5) {
                    0 => {
                        ours.push(confirms.spooled());
                        open.insert(*ours.last().unwrap());
                    }
                    1 => {
                        theirs_next += 1;
                        theirs.push((theirs_next, confirms.published_directly()));
                        open.insert(theirs.last().unwrap().1);
                    }
                    2 if !ours.is_empty() => {
                        let some: Vec<u64> = ours.drain(..=random.below(ours.len())).collect();
                        confirms.settle(&some, |answer| check(&mut open, answer, &some));
                    }
                    3 if !theirs.is_empty() => {
                        let some: Vec<(u64, u64)> = theirs.drain(..=random.below(theirs.len())).collect();
                        let (last, some) = (some[some.len() - 1].0, some.iter().map(|both| both.1));
                        let some: Vec<u64> = some.collect();
                        confirms.settle_direct(last, true, |answer| check(&mut open, answer, &some));
                    }
                    4 if !theirs.is_empty() => {
                        let (number, one) = theirs.remove(random.below(theirs.len()));
                        confirms.settle_direct(number, false, |answer| check(&mut open, answer, &[one]));
                    }
                    _ => {}
                }
            }
            confirms.settle(&ours, |answer| check(&mut open, answer, &ours));
            let theirs: Vec<u64> = theirs.iter().map(|both| both.1).collect();
            confirms.settle_direct(0, true, |answer| check(&mut open, answer, &theirs));
            assert_eq!((open.len(), confirms.unanswered()), (0, 0));
        }
    }
}
