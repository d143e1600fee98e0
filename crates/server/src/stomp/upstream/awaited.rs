//! The methods that the upstream has yet to answer.
//!
//! RabbitMQ answers most methods of a channel in order. But basic.consume is answered by the queue's process, so other
//! answers may overtake that one. If the consumer is cancelled before, RabbitMQ 4 never answers it.

use std::collections::VecDeque;

use amqp::Method;

/// A channel's unanswered methods, in ascending order of their numbers.
#[derive(Debug, Default)]
pub(super) struct AwaitedAnswers {
    waiting: VecDeque<(u64, Awaited)>,
    /// Number of methods sent.
    sent: u64,
}

/// An unanswered method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A method whose answer has no further effect.
    Answer,
    /// basic.consume of this subscription, with this consumer tag.
    Consumer(u64, Box<str>),
    /// basic.cancel of this consumer tag.
    Cancel(Box<str>),
    /// queue.declare for the `/temp-queue` of this name.
    ReplyQueue(Box<str>),
}

impl AwaitedAnswers {
    /// Adds a method that was sent.
    pub(super) fn push(&mut self, awaited: Awaited) {
        self.sent += 1;
        self.waiting.push_back((self.sent, awaited));
    }

    /// Takes the method that `answer` answers.
    pub(super) fn answer(&mut self, answer: &Method<'_>) -> Option<Awaited> {
        let consumes =
            |awaited: &Awaited, tag: &str| matches!(awaited, Awaited::Consumer(_, own) if **own == *tag);
        let cancels = |awaited: &Awaited, tag: &str| matches!(awaited, Awaited::Cancel(own) if **own == *tag);
        let at = match answer {
            Method::BasicConsumeOk(ok) => self.position(|awaited| consumes(awaited, ok.consumer_tag)),
            Method::BasicCancelOk(ok) => {
                if let Some(never) = self.position(|awaited| consumes(awaited, ok.consumer_tag)) {
                    self.waiting.remove(never);
                }
                self.position(|awaited| cancels(awaited, ok.consumer_tag))
            }
            _ => self.position(|awaited| matches!(awaited, Awaited::Answer | Awaited::ReplyQueue(_))),
        };
        Some(self.waiting.remove(at?)?.1)
    }

    fn position(&self, is_it: impl Fn(&Awaited) -> bool) -> Option<usize> {
        self.waiting.iter().position(|(_, awaited)| is_it(awaited))
    }

    /// Whether a basic.consume is unanswered.
    pub(super) fn has_consumers(&self) -> bool {
        self.position(|awaited| matches!(awaited, Awaited::Consumer(..))).is_some()
    }

    /// Number of the last method that was sent.
    pub(super) fn last(&self) -> u64 {
        self.sent
    }

    /// Whether all methods up to this number are answered.
    pub(super) fn has_answered(&self, number: u64) -> bool {
        self.waiting.front().is_none_or(|(first, _)| *first > number)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use amqp::method::{basic, queue};

    use super::*;

    #[test]
    fn answers_match_their_methods_even_if_others_overtake_them() {
        let mut awaited = AwaitedAnswers::default();
        awaited.push(Awaited::Consumer(7, "T_a".into()));
        awaited.push(Awaited::ReplyQueue("r".into()));
        awaited.push(Awaited::Consumer(8, "T_b".into()));
        awaited.push(Awaited::Cancel("T_b".into()));
        awaited.push(Awaited::Answer);
        let mut answer = |method: Method<'_>| awaited.answer(&method);
        assert_eq!(answer(queue::DeclareOk::default().into()), Some(Awaited::ReplyQueue("r".into())));
        // basic.consume of this consumer was never answered.
        let cancel_ok = basic::CancelOk { consumer_tag: "T_b" };
        assert_eq!(answer(cancel_ok.into()), Some(Awaited::Cancel("T_b".into())));
        assert_eq!(answer(queue::BindOk {}.into()), Some(Awaited::Answer));
        assert!(awaited.has_consumers() && !awaited.has_answered(1));
        let consume_ok = basic::ConsumeOk { consumer_tag: "T_a" };
        assert_eq!(awaited.answer(&consume_ok.into()), Some(Awaited::Consumer(7, "T_a".into())));
        assert!(!awaited.has_consumers() && awaited.has_answered(5) && awaited.len() == 0);
        assert_eq!(awaited.answer(&consume_ok.into()), None);
    }
}
