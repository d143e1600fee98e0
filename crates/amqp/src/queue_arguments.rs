//! The arguments of `queue.declare` that RabbitMQ 3.10 and 4.3 know, in one table.
//!
//! The broker validates declarations and policies with it, merges the two, and compares redeclarations. STOMP maps its
//! headers with it. The pool forwards other arguments and values only over dedicated connections.

/// One argument of `queue.declare`.
#[derive(Debug)]
pub struct ArgumentSpec {
    /// For example `x-max-length`. The key in policies, if there is one, is the name without `x-`.
    pub name: &'static str,
    /// The values that are accepted, and the texts that refuse others.
    pub value: ArgumentValue,
    /// Whether RabbitMQ checks the value when a queue is declared.
    pub is_checked: bool,
    /// Its position among the arguments that a redeclaration of a classic queue compares; `None` if classic queues
    /// do not know it.
    pub classic: Option<u8>,
    /// The same for quorum queues.
    pub quorum: Option<u8>,
    /// The position for classic queues, if only RabbitMQ 4 supports it for them.
    pub classic_since_4: Option<u8>,
    /// Whether RabbitMQ 3.10 ignores it.
    pub is_since_4: bool,
    /// Whether streams support it; the broker has no streams.
    pub stream: bool,
    /// Whether a STOMP header of this name sets it.
    pub stomp: bool,
    /// The policies that may set it.
    pub policy: PolicyKey,
    /// Whether the broker implements it; it only checks and compares the others.
    pub has_effect: bool,
}

/// The values of an argument, with RabbitMQ's texts for others. In a text, `{}` stands for the value.
#[derive(Debug)]
pub enum ArgumentValue {
    /// A non-negative integer. Of an argument and a policy's value, the lower one applies; for all other kinds, the
    /// argument's own applies.
    Count {
        /// The text that refuses 0.
        zero: Option<&'static str>,
        /// The highest value, and the text that refuses higher ones.
        most: Option<(i64, &'static str)>,
    },
    /// A boolean.
    Flag,
    /// Any string.
    Text,
    /// One of these strings, and the text that refuses others.
    Choice(&'static [&'static str], &'static str),
    /// The name of an exchange, whose type is checked with a text of its own.
    Exchange,
    /// The routing key of dead letters, which requires a dead-letter exchange.
    DeadLetterKey,
    /// An argument of streams. RabbitMQ fails with 541 on wrong values.
    Unspecified,
}

/// The policies that may contain an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKey {
    /// Neither a policy nor an operator policy.
    No,
    /// A policy, but no operator policy.
    Policy,
    /// A policy, but not in RabbitMQ 4.
    PolicyUntil4,
    /// A policy, and in RabbitMQ 4 an operator policy.
    OperatorSince4,
    /// A policy and an operator policy.
    Operator,
}

impl ArgumentSpec {
    /// The argument of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        QUEUE_ARGUMENTS.iter().find(|spec| spec.name == name)
    }

    /// The argument that this key of a policy sets.
    pub fn of_policy(key: &str) -> Option<&'static Self> {
        let is = |spec: &&Self| spec.policy != PolicyKey::No && spec.name.strip_prefix("x-") == Some(key);
        QUEUE_ARGUMENTS.iter().find(is)
    }

    const fn new(name: &'static str, value: ArgumentValue) -> Self {
        let (classic, quorum, policy) = (None, None, PolicyKey::No);
        let (is_checked, stream, stomp, has_effect) = (true, false, false, true);
        let (classic_since_4, is_since_4) = (None, false);
        Self {
            name,
            value,
            is_checked,
            classic,
            quorum,
            classic_since_4,
            is_since_4,
            stream,
            stomp,
            policy,
            has_effect,
        }
    }

    const fn classic(self, position: u8) -> Self {
        Self { classic: Some(position), ..self }
    }

    const fn quorum(self, position: u8) -> Self {
        Self { quorum: Some(position), ..self }
    }

    const fn classic_since_4(self, position: u8) -> Self {
        Self { classic_since_4: Some(position), ..self }
    }

    const fn since_4(self) -> Self {
        Self { is_since_4: true, ..self }
    }

    const fn stream(self) -> Self {
        Self { stream: true, ..self }
    }

    const fn stomp(self) -> Self {
        Self { stomp: true, ..self }
    }

    const fn policy(self) -> Self {
        Self { policy: PolicyKey::Policy, ..self }
    }

    const fn policy_until_4(self) -> Self {
        Self { policy: PolicyKey::PolicyUntil4, ..self }
    }

    const fn operator_policy_since_4(self) -> Self {
        Self { policy: PolicyKey::OperatorSince4, ..self }
    }

    const fn operator_policy(self) -> Self {
        Self { policy: PolicyKey::Operator, ..self }
    }

    const fn unchecked(self) -> Self {
        Self { is_checked: false, ..self }
    }

    const fn without_effect(self) -> Self {
        Self { has_effect: false, ..self }
    }
}

/// All arguments, in the order in which RabbitMQ checks them (`rabbit_amqqueue:declare_args`). The positions are those in
/// the capabilities of the types of queues (`rabbit_classic_queue`, `rabbit_quorum_queue`).
#[rustfmt::skip]
pub static QUEUE_ARGUMENTS: [ArgumentSpec; 29] = [
    ArgumentSpec::new("x-dead-letter-exchange", Exchange).classic(3).quorum(1).policy().stomp(),
    ArgumentSpec::new("x-queue-type", QUEUE_TYPE).classic(12).quorum(11).stomp(),
    ArgumentSpec::new("x-expires", LIFETIME).classic(1).quorum(4).operator_policy().stomp(),
    ArgumentSpec::new("x-message-ttl", MILLISECONDS).classic(2).quorum(14).operator_policy().stomp(),
    ArgumentSpec::new("x-dead-letter-routing-key", DeadLetterKey).classic(4).quorum(2).policy().stomp(),
    ArgumentSpec::new("x-dead-letter-strategy", STRATEGY).quorum(3).policy(),
    ArgumentSpec::new("x-max-length", COUNT).classic(5).quorum(5).operator_policy().stomp(),
    ArgumentSpec::new("x-max-length-bytes", COUNT).classic(6).quorum(6).operator_policy().stomp(),
    ArgumentSpec::new("x-max-in-memory-length", COUNT).quorum(7).operator_policy().without_effect(),
    ArgumentSpec::new("x-max-in-memory-bytes", COUNT).quorum(8).operator_policy().without_effect(),
    ArgumentSpec::new("x-max-priority", PRIORITY).classic(7).stomp(),
    ArgumentSpec::new("x-overflow", OVERFLOW).classic(8).quorum(9).operator_policy_since_4().stomp(),
    ArgumentSpec::new("x-queue-mode", QUEUE_MODE).classic(9).policy().stomp(),
    ArgumentSpec::new("x-queue-version", QUEUE_VERSION).classic(10).operator_policy_since_4().without_effect(),
    ArgumentSpec::new("x-single-active-consumer", Flag).classic(11).quorum(10).stomp(),
    ArgumentSpec::new("x-quorum-initial-group-size", GROUP_SIZE).quorum(12).without_effect(),
    ArgumentSpec::new("x-queue-leader-locator", LEADER_LOCATOR).classic_since_4(14).quorum(15).policy().without_effect(),
    ArgumentSpec::new("x-queue-master-locator", MASTER_LOCATOR).classic(13).policy_until_4().unchecked().without_effect(),
    ArgumentSpec::new("x-delivery-limit", COUNT).quorum(13).operator_policy().stomp().unchecked(),
    ArgumentSpec::new("x-max-age", Unspecified).stream().policy().without_effect(),
    ArgumentSpec::new("x-stream-max-segment-size-bytes", Unspecified).stream().policy().without_effect(),
    ArgumentSpec::new("x-initial-cluster-size", COUNT).stream().policy().without_effect(),
    ArgumentSpec::new("x-consumer-timeout", COUNT).quorum(16).since_4().policy().without_effect(),
    ArgumentSpec::new("x-consumer-disconnected-timeout", COUNT).quorum(17).since_4().policy().without_effect(),
    ArgumentSpec::new("x-delayed-retry-type", RETRY_TYPE).quorum(18).since_4().operator_policy().unchecked().without_effect(),
    ArgumentSpec::new("x-delayed-retry-min", DELAY).quorum(19).since_4().operator_policy().unchecked().without_effect(),
    ArgumentSpec::new("x-delayed-retry-max", DELAY).quorum(20).since_4().operator_policy().unchecked().without_effect(),
    ArgumentSpec::new("x-stream-filter-size-bytes", Unspecified).stream().since_4().policy().without_effect(),
    // Earlier versions know it.
    ArgumentSpec::new("x-ha-policy", Text).without_effect(),
];

use ArgumentValue::{Choice, Count, DeadLetterKey, Exchange, Flag, Text, Unspecified};

const COUNT: ArgumentValue = Count { zero: None, most: None };
const GROUP_SIZE: ArgumentValue = Count { zero: Some("{value_zero,0}"), most: None };
const PRIORITY: ArgumentValue = Count { zero: None, most: Some((255, "{max_value_exceeded,{}}")) };
const MILLISECONDS: ArgumentValue = Count { zero: None, most: Some((MAX_EXPIRY, TOO_LONG)) };
const LIFETIME: ArgumentValue = Count { zero: Some("{value_zero,0}"), most: Some((MAX_EXPIRY, TOO_LONG)) };
const TOO_LONG: &str = "{value_too_large,{}}";

const QUEUE_VERSION: ArgumentValue = Count {
    zero: Some("\"unsupported queue version '0'\""),
    most: Some((2, "\"unsupported queue version '{}'\"")),
};
const QUEUE_TYPE: ArgumentValue = Choice(&["classic", "quorum"], "\"unsupported queue type '{}'\"");
const QUEUE_MODE: ArgumentValue = Choice(&["default", "lazy"], "\"unsupported queue mode '{}'\"");
const OVERFLOW: ArgumentValue =
    Choice(&["drop-head", "reject-publish", "reject-publish-dlx"], "invalid_overflow");
const STRATEGY: ArgumentValue = Choice(&["at-most-once", "at-least-once"], "invalid_dlx_strategy");
const LEADER_LOCATOR: ArgumentValue =
    Choice(&["client-local", "balanced", "random", "least-leaders"], "invalid_queue_locator_arg");
const MASTER_LOCATOR: ArgumentValue = Choice(&["client-local", "min-masters", "random"], "");
const RETRY_TYPE: ArgumentValue = Choice(&["all", "failed", "returned", "disabled"], "");
/// Checked in policies alone.
const DELAY: ArgumentValue = Count { zero: Some(""), most: None };

/// The longest time to live that RabbitMQ accepts, in milliseconds: ten years of 365 days.
pub const MAX_EXPIRY: i64 = 315_360_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_positions_are_unique() {
        for (at, spec) in QUEUE_ARGUMENTS.iter().enumerate() {
            assert!(spec.name.starts_with("x-") && spec.name.len() > 2, "{spec:?}");
            assert!(QUEUE_ARGUMENTS[..at].iter().all(|other| other.name != spec.name), "{spec:?}");
        }
        let classic = |spec: &ArgumentSpec| spec.classic.or(spec.classic_since_4);
        for position in [classic, |spec: &ArgumentSpec| spec.quorum] {
            let mut positions: Vec<u8> = QUEUE_ARGUMENTS.iter().filter_map(position).collect();
            positions.sort_unstable();
            assert!(positions.iter().copied().eq(1..=positions.len() as u8), "{positions:?}");
        }
    }
}
