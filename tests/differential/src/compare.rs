//! Compares what two brokers did, knowing which differences are meant.

use crate::program::{Op, REPLIES, Step};
use crate::run::{Story, has_quorum_queues};

/// A difference that is meant to be.
pub(crate) struct Meant {
    /// Why Leveret does not do as RabbitMQ does.
    pub(crate) reason: &'static str,
    /// Whether it explains that RabbitMQ wrote the first lines and Leveret the second ones after these steps.
    explains: fn(&[Step], &[String], &[String]) -> bool,
}

/// All differences that are meant. What follows one in a program is not compared, for the brokers' states differ.
pub(crate) const MEANT: &[Meant] = &[
    Meant {
        reason: "RabbitMQ ends the connection with 541 where something in it crashes; Leveret refuses or does it.",
        explains: |_, expected, _| any(expected, "541 INTERNAL_ERROR"),
    },
    Meant {
        reason: "RabbitMQ says 'invalid exchange type' instead of 'unknown exchange type' when its runtime happens to \
                 know the word as an atom.",
        explains: |_, expected, got| {
            any(expected, "invalid exchange type") && any(got, "unknown exchange type")
        },
    },
    Meant {
        reason: "When an error ends a connection, RabbitMQ may hand what one of its channels gives back to a consumer \
                 of another, and lose it there; Leveret gives it to others.",
        explains: |_, expected, got| {
            let ends = |line: &&String| line.contains(": connection.close ");
            let (expected, got) = (expected.iter().find(ends), got.iter().find(ends));
            expected.is_some() && expected == got
        },
    },
    Meant {
        reason: "RabbitMQ counts what a channel has got, and not settled, when a limit is set for the channel, and never \
                 again; gets are not limited.",
        explains: |steps, expected, got| {
            let is_global = |step: &Step| matches!(step.op, Op::Qos { global: true, .. });
            let is_get = |step: &Step| matches!(step.op, Op::Get { no_ack: false, .. });
            let limited = steps.iter().rposition(is_global);
            let deliveries = |lines: &[String]| lines.iter().filter(|line| line.contains(DELIVERED)).count();
            deliveries(expected) < deliveries(got)
                && limited.is_some_and(|at| {
                    let place = (steps[at].connection, steps[at].channel);
                    steps[..at].iter().any(|step| is_get(step) && (step.connection, step.channel) == place)
                })
        },
    },
    Meant {
        reason: "A consumer of direct replies may share its tag with another consumer of its channel; Leveret refuses.",
        explains: |steps, expected, got| {
            let reply_tag = |step: &Step| match &step.op {
                Op::Consume(consume) if consume.queue == REPLIES => Some(consume.tag.clone()),
                _ => None,
            };
            let tag = |step: &Step| match &step.op {
                Op::Consume(consume) => Some(consume.tag.clone()),
                _ => None,
            };
            let last = steps.last().and_then(tag);
            any(got, "attempt to reuse consumer tag")
                && !any(expected, "attempt to reuse consumer tag")
                && steps.iter().any(|step| reply_tag(step) == last)
        },
    },
    Meant {
        reason: "In RabbitMQ a dead letter may overtake the message that it was made from, where both go to the same quorum \
                 queue.",
        explains: |steps, expected, got| {
            has_quorum_queues(steps)
                && any(expected, OF_RABBITMQ_4)
                && same_but_for_order(LEFT, expected, got)
        },
    },
    Meant {
        reason: "RabbitMQ 3.10 puts what comes back to a quorum queue behind all others, or with a delivery limit before them; \
                 in Leveret it returns to its place.",
        explains: |steps, expected, got| {
            has_quorum_queues(steps)
                && any(expected, OF_QUORUM_QUEUES_OF_3_10)
                && same_but_for_order(LEFT, expected, got)
        },
    },
    Meant {
        reason: "RabbitMQ 3.10 delivers what comes back to a quorum queue behind all others, or with a delivery limit before \
                 them; in Leveret it returns to its place.",
        explains: |steps, expected, got| {
            let has_come_back =
                |line: &String| line.contains(DELIVERED) && line.contains(OF_QUORUM_QUEUES_OF_3_10);
            has_quorum_queues(steps)
                && expected.iter().any(has_come_back)
                && same_but_for_order(DELIVERED, expected, got)
        },
    },
    Meant {
        reason: "RabbitMQ 4 does not call a dead letter redelivered that goes straight to a waiting consumer of a classic queue; \
                 in Leveret it is, as it would be in RabbitMQ if it had waited.",
        explains: |_, expected, got| {
            let forgive = |line: &String| match line.contains(DELIVERED) && line.contains(OF_RABBITMQ_4) {
                true => line.replace(REDELIVERED, ""),
                false => line.clone(),
            };
            let is_as_meant = |(expected, got): (&String, &String)| {
                expected == got || !expected.contains(REDELIVERED) && *expected == forgive(got)
            };
            expected.len() == got.len() && expected.iter().zip(got).all(is_as_meant)
        },
    },
];

/// The part by which a line about a message that was left is known, and that of a line about a delivery.
const LEFT: &str = "left in ";
const DELIVERED: &str = ": basic.deliver to ";
/// The mark of a delivery that is not the first.
const REDELIVERED: &str = ", redelivered";

/// Dead letters have it since RabbitMQ 4.
const OF_RABBITMQ_4: &str = "x-last-death-queue: ";
/// Headers that have only this one of RabbitMQ's. That of RabbitMQ 4 follows x-acquired-count.
const OF_QUORUM_QUEUES_OF_3_10: &str = "headers={x-delivery-count: ";

/// Whether the lines are the same but for the order of those that have this part.
fn same_but_for_order(part: &str, expected: &[String], got: &[String]) -> bool {
    // How many are behind a message that was left depends on the order.
    let of_left = |line: &String| match line.rsplit_once(", ") {
        Some((message, _)) if line.starts_with(LEFT) => message.to_owned(),
        _ => line.clone(),
    };
    let without_order = |lines: &[String]| {
        let (mut moved, others): (Vec<_>, Vec<_>) =
            lines.iter().map(of_left).partition(|line| line.contains(part));
        moved.sort();
        (moved, others)
    };
    without_order(expected) == without_order(got)
}

fn any(lines: &[String], part: &str) -> bool {
    lines.iter().any(|line| line.contains(part))
}

/// The first step at which the stories differ, with the lines of both. A step after the last one is what was left.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// From 0.
    pub(crate) step: usize,
    pub(crate) expected: Vec<String>,
    pub(crate) got: Vec<String>,
}

/// The first difference, and the reason why it is meant if it is.
pub(crate) fn compare(
    program: &[Step],
    expected: &Story,
    got: &Story,
) -> Option<(Difference, Option<&'static str>)> {
    let difference = first_difference(expected, got)?;
    // All steps where what was left differs.
    let steps = program.get(..=difference.step).unwrap_or(program);
    let explains = |meant: &&Meant| (meant.explains)(steps, &difference.expected, &difference.got);
    let reason = MEANT.iter().find(explains).map(|meant| meant.reason);
    Some((difference, reason))
}

/// The first difference of whatever kind.
pub(crate) fn first_difference(expected: &Story, got: &Story) -> Option<Difference> {
    let nothing = Vec::new();
    (0..expected.len().max(got.len()))
        .map(|step| (step, expected.get(step).unwrap_or(&nothing), got.get(step).unwrap_or(&nothing)))
        .find(|(_, expected, got)| expected != got)
        .map(|(step, expected, got)| Difference { step, expected: expected.clone(), got: got.clone() })
}

impl Difference {
    /// The lines that only one of the two has, marked as in a patch.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (mark, of, other) in
            [("rabbitmq", &self.expected, &self.got), ("leveret ", &self.got, &self.expected)]
        {
            for line in of {
                let shared = if other.contains(line) { ' ' } else { '!' };
                text += &format!("  {shared} {mark} {line}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::DeclareQueue;

    fn story(lines: &[&str]) -> Story {
        lines.iter().map(|line| vec![(*line).to_owned()]).collect()
    }

    fn delivered(messages: [&str; 2]) -> Vec<String> {
        messages.iter().map(|message| format!("channel 1{DELIVERED}c0: message {message}")).collect()
    }

    #[test]
    fn the_first_difference_is_found_wherever_it_is() {
        let expected = story(&["a", "b", "c"]);
        assert_eq!(first_difference(&expected, &expected), None);
        assert_eq!(first_difference(&expected, &story(&["a", "x", "y"])).map(|d| d.step), Some(1));
        assert_eq!(first_difference(&expected, &story(&["a", "b"])).map(|d| d.step), Some(2));
    }

    #[test]
    fn remaining_messages_may_differ_only_in_order() {
        let lines = |left: [&str; 2]| {
            let left = left.iter().enumerate();
            let left = left.map(|(at, message)| format!("left in q0: message {message}, {} left", 1 - at));
            std::iter::once("q0: 2 messages".to_owned()).chain(left).collect::<Vec<_>>()
        };
        assert!(same_but_for_order(LEFT, &lines(["1", "2"]), &lines(["2", "1"])));
        assert!(!same_but_for_order(LEFT, &lines(["1", "2"]), &lines(["2", "3"])));
        let counts = ["q0: 1 messages".to_owned(), "q1: 2 messages".to_owned()];
        let turned: Vec<_> = counts.iter().rev().cloned().collect();
        assert!(!same_but_for_order(LEFT, &counts, &turned));
        assert!(!same_but_for_order(LEFT, &delivered(["1", "2"]), &delivered(["2", "1"])));
        assert!(!same_but_for_order(LEFT, &delivered(["1", "1"]), &delivered(["2", "2"])));
    }

    #[test]
    fn another_order_of_deliveries_is_meant_where_3_10_has_quorum_queues_and_something_came_back() {
        let (expected, got) = (delivered(["1", "2"]), delivered(["2", "1"]));
        let declare = |kind: &str| {
            let arguments = [("x-queue-type".to_owned(), kind.into())].into_iter().collect();
            let declare = DeclareQueue { queue: "q0".into(), arguments, ..DeclareQueue::default() };
            vec![Step { connection: 0, channel: 1, op: Op::DeclareQueue(declare) }]
        };
        let reason = |kind: &str, expected: &[String], got: &[String]| {
            compare(&declare(kind), &vec![expected.to_vec()], &vec![got.to_vec()]).and_then(|found| found.1)
        };
        assert_eq!(reason("quorum", &expected, &got), None, "nothing came back");
        let again = |lines: &[String]| -> Vec<String> {
            let again = |line: &String| line.replace("message 2", "message 2, headers={x-delivery-count: 1}");
            lines.iter().map(again).collect()
        };
        assert!(reason("quorum", &again(&expected), &again(&got)).is_some());
        assert_eq!(reason("classic", &again(&expected), &again(&got)), None);
    }

    #[test]
    fn only_a_dead_letter_that_is_delivered_may_be_redelivered_in_leveret_alone() {
        let story = |message: &str, mark: &str| vec![delivered([&format!("{message}{mark}"), "2"])];
        let is_meant = |message: &str, marks: [&str; 2]| {
            let [expected, got] = marks.map(|mark| story(message, mark));
            compare(&[], &expected, &got).and_then(|found| found.1).is_some()
        };
        let letter = "headers={x-last-death-queue: q0}";
        assert!(is_meant(letter, ["", REDELIVERED]));
        assert!(!is_meant(letter, [REDELIVERED, ""]));
        assert!(!is_meant("headers={}", ["", REDELIVERED]));
    }

    #[test]
    fn a_difference_in_remaining_messages_is_explained_by_all_steps() {
        let program = [Step { connection: 0, channel: 1, op: Op::Recover }];
        let with_last = |last: &str| vec![Vec::new(), vec![last.to_owned()]];
        let found = compare(&program, &with_last("left: 541 INTERNAL_ERROR"), &with_last("left: nothing"));
        assert!(matches!(found, Some((_, Some(_)))));
    }

    #[test]
    fn a_meant_difference_gives_its_reason() {
        let program = [Step { connection: 0, channel: 1, op: Op::Recover }];
        let (crashed, refused) = (story(&["close 541 INTERNAL_ERROR"]), story(&["close 406"]));
        assert!(matches!(compare(&program, &crashed, &refused), Some((_, Some(_)))));
        assert!(matches!(compare(&program, &refused, &crashed), Some((_, None))));
    }
}
