//! Limits a queue's unconfirmed messages, so that they arrive in order. Sans-IO.

use std::collections::VecDeque;

/// The maximum of unconfirmed messages: enough for 20,000 a second at a round trip of 100 ms.
const MESSAGES: usize = 2_000;
/// The maximum of bytes of unconfirmed messages; a single one may be larger. Sixteen queues move at a time.
const BYTES: usize = 4 << 20;

/// Bytes from which a message moves with no other in flight. Brokers refuse large messages (RabbitMQ 4 those above 16
/// MiB) by closing the channel, with all that is on it.
const LARGE: usize = 1 << 20;

/// A message that is moving.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    pub(super) item: T,
    /// Bytes of its body and properties.
    pub(super) bytes: usize,
    /// Whether the broker may refuse it although it accepts others.
    pub(super) is_doubtful: bool,
}

/// The unconfirmed messages of one channel.
///
/// The limit starts at the caller's value and is doubled with each confirm. After a nack nothing more is published. Once
/// all answers have arrived the run is [over](Self::is_over), and the remaining messages are requeued in order.
#[derive(Debug)]
pub(super) struct Window<T> {
    in_flight: VecDeque<(u64, InFlight<T>, bool)>,
    next_tag: u64,
    bytes: usize,
    limit: usize,
    /// Number of messages that are published one by one before the limit grows.
    careful: usize,
    /// Set by the first nack.
    is_full: bool,
    /// Number of nacked messages.
    nacked: usize,
}

impl<T> Window<T> {
    /// For a run that publishes its first `careful` messages one by one.
    pub(super) fn new(careful: usize) -> Self {
        let limit = if careful > 0 { 1 } else { MESSAGES };
        Self { in_flight: VecDeque::new(), next_tag: 1, bytes: 0, limit, careful, is_full: false, nacked: 0 }
    }

    /// Whether any message may be published now.
    pub(super) fn has_capacity(&self) -> bool {
        let is_alone = self.in_flight.back().is_some_and(|(_, last, _)| is_alone(last));
        !self.is_full && !is_alone && self.in_flight.len() < self.limit && self.bytes < BYTES
    }

    /// Whether this message may be published now; otherwise, when no other is in flight.
    pub(super) fn takes(&self, message: &InFlight<T>) -> bool {
        self.in_flight.is_empty() || !is_alone(message)
    }

    /// Called for each published message.
    pub(super) fn published(&mut self, message: InFlight<T>) {
        self.bytes += message.bytes;
        self.in_flight.push_back((self.next_tag, message, false));
        self.next_tag += 1;
    }

    /// Handles basic.ack or basic.nack. Returns the messages that it confirms, oldest first. Nacked ones were refused
    /// because the queue is full.
    pub(super) fn answered(&mut self, tag: u64, multiple: bool, is_ack: bool) -> Vec<InFlight<T>> {
        let concerned = |of: u64| if multiple { tag == 0 || of <= tag } else { of == tag };
        let mut confirmed = Vec::new();
        if is_ack {
            let mut at = 0;
            while at < self.in_flight.len() {
                let (of, _, was_nacked) = self.in_flight[at];
                if !concerned(of) && (multiple || of > tag) {
                    break;
                }
                // RabbitMQ may ack all up to a tag with `multiple`, including one in between that it has nacked before.
                if !concerned(of) || was_nacked {
                    at += 1;
                } else if let Some((_, message, _)) = self.in_flight.remove(at) {
                    self.bytes -= message.bytes;
                    confirmed.push(message);
                }
            }
            self.grow(confirmed.len());
        } else {
            self.is_full = true;
            for (of, _, was_nacked) in &mut self.in_flight {
                if concerned(*of) && !*was_nacked {
                    *was_nacked = true;
                    self.nacked += 1;
                }
            }
        }
        confirmed
    }

    fn grow(&mut self, confirmed: usize) {
        self.careful = self.careful.saturating_sub(confirmed);
        if self.careful == 0 && confirmed > 0 {
            self.limit = MESSAGES.min(2 * self.limit);
        }
    }

    /// Whether the queue there was full, and nothing is unanswered any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_full && self.nacked == self.in_flight.len()
    }

    /// Messages in flight.
    pub(super) fn count(&self) -> usize {
        self.in_flight.len()
    }

    /// Number of messages that may have arrived: the channel was closed before their confirms.
    pub(super) fn unanswered(&self) -> usize {
        self.in_flight.len() - self.nacked
    }

    /// Ends the run; returns the unconfirmed messages, oldest first.
    pub(super) fn end(&mut self) -> Vec<T> {
        (self.bytes, self.nacked) = (0, 0);
        self.in_flight.drain(..).map(|(_, message, _)| message.item).collect()
    }
}

fn is_alone<T>(message: &InFlight<T>) -> bool {
    message.is_doubtful || message.bytes >= LARGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(item: u32, bytes: usize) -> InFlight<u32> {
        InFlight { item, bytes, is_doubtful: false }
    }

    fn items(confirmed: Vec<InFlight<u32>>) -> Vec<u32> {
        confirmed.into_iter().map(|message| message.item).collect()
    }

    #[test]
    fn confirms_are_taken_in_any_order() {
        let mut window = Window::new(0);
        (1..=5).for_each(|item| window.published(message(item, 1)));
        assert_eq!(items(window.answered(3, false, true)), [3]);
        assert_eq!(items(window.answered(3, false, true)), [0; 0], "answered already");
        assert_eq!(items(window.answered(4, true, true)), [1, 2, 4]);
        assert_eq!(items(window.answered(0, true, true)), [5]);
        assert_eq!((window.count(), window.bytes), (0, 0));
    }

    #[test]
    fn a_full_queue_ends_the_run_once_all_answers_are_there() {
        let mut window = Window::new(0);
        (1..=4).for_each(|item| window.published(message(item, 1)));
        assert_eq!(items(window.answered(1, false, true)), [1]);
        assert_eq!(items(window.answered(2, false, false)), [0; 0]);
        assert!(!window.has_capacity() && !window.is_over());
        // A consumer there has freed capacity meanwhile.
        assert_eq!(items(window.answered(3, false, true)), [3]);
        window.answered(4, true, false);
        assert!(window.is_over());
        assert_eq!((window.unanswered(), window.end()), (0, vec![2, 4]));
    }

    #[test]
    fn a_multiple_ack_does_not_confirm_messages_nacked_before() {
        let mut window = Window::new(0);
        (1..=4).for_each(|item| window.published(message(item, 1)));
        window.answered(2, false, false);
        assert_eq!(items(window.answered(4, true, true)), [1, 3, 4]);
        assert!(window.is_over());
        assert_eq!((window.unanswered(), window.end()), (0, vec![2]));
    }

    #[test]
    fn a_careful_run_publishes_one_by_one_at_first() {
        let mut window = Window::new(2);
        for tag in 1..=2 {
            assert!(window.has_capacity());
            window.published(message(1, 1));
            assert!(!window.has_capacity());
            window.answered(tag, false, true);
        }
        window.published(message(1, 1));
        assert!(window.has_capacity(), "two were confirmed");
    }

    #[test]
    fn a_message_that_may_be_refused_moves_alone() {
        let mut window = Window::new(0);
        window.published(message(1, 1));
        let large = message(2, LARGE);
        assert!(!window.takes(&large));
        window.answered(1, false, true);
        assert!(window.takes(&large));
        window.published(large);
        assert!(!window.has_capacity());
        window.answered(2, false, true);
        assert!(window.takes(&InFlight { item: 3, bytes: 1, is_doubtful: true }) && window.has_capacity());
    }

    #[test]
    fn unanswered_messages_may_have_arrived() {
        let mut window = Window::new(0);
        (1..=3).for_each(|item| window.published(message(item, BYTES)));
        assert!(!window.has_capacity(), "bytes count as well");
        assert_eq!((window.unanswered(), window.end()), (3, vec![1, 2, 3]));
    }
}
