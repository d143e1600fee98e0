//! The arguments of queues and exchanges: checked, parsed once, and compared on redeclaration.

mod check;
mod equivalence;

use std::iter;
use std::sync::Arc;

use amqp::{ArgumentSpec, FieldTable, FieldValue};

pub(crate) use check::{check_consumer_priority, check_exchange_name_argument, check_queue_type};
pub(crate) use equivalence::{check_argument, check_field, check_flag, check_queue_redeclared, in_erlang};

use crate::compatibility::Compatibility;
use crate::error::BrokerError;
use crate::names::ExchangeName;
use crate::queue::QueueCapacity;

/// The kind of queue asked for by `x-queue-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// The default.
    #[default]
    Classic,
    /// On a single node: a durable queue that understands the arguments of quorum queues.
    Quorum,
}

impl QueueKind {
    /// The value of `x-queue-type` that asks for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    /// The name by which RabbitMQ's error texts call this type.
    fn erlang_module(self) -> &'static str {
        match self {
            Self::Classic => "rabbit_classic_queue",
            Self::Quorum => "rabbit_quorum_queue",
        }
    }

    /// The kind of queue that these arguments declare.
    pub(crate) fn of(arguments: &FieldTable) -> Self {
        match arguments.get("x-queue-type").and_then(FieldValue::as_text) {
            Some("quorum") => Self::Quorum,
            _ => Self::Classic,
        }
    }

    /// The position of an argument among those that a redeclaration compares; `None` if this type does not support it.
    fn position(self, spec: &ArgumentSpec, compatibility: Compatibility) -> Option<u8> {
        match (compatibility, self) {
            _ if !compatibility.knows(spec) => None,
            (Compatibility::V4, Self::Classic) => spec.classic.or(spec.classic_since_4),
            (Compatibility::V3_10, Self::Classic) => spec.classic,
            (_, Self::Quorum) => spec.quorum,
        }
    }

    /// Whether other types support this argument, and this one does not.
    pub(crate) fn refuses(self, spec: &ArgumentSpec, compatibility: Compatibility) -> bool {
        let known_to_any = spec.classic.is_some() || spec.quorum.is_some() || spec.stream;
        known_to_any && compatibility.knows(spec) && self.position(spec, compatibility).is_none()
    }
}

/// The reaction to a publish when the queue is full (`x-overflow`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The oldest message is dropped to make space.
    #[default]
    DropHead,
    /// The new message is refused.
    RejectPublish,
    /// The new message is refused and dead-lettered.
    RejectPublishDlx,
}

/// The exchange and routing key to which a queue's dropped messages are republished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLettering {
    /// `x-dead-letter-exchange`; empty for the default exchange.
    pub exchange: ExchangeName,
    /// `x-dead-letter-routing-key`; without it messages keep their own.
    pub routing_key: Option<Arc<str>>,
}

/// The parsed arguments of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueArguments {
    /// `x-queue-type`.
    pub kind: QueueKind,
    /// `x-message-ttl` in milliseconds.
    pub message_ttl: Option<u64>,
    /// `x-expires` in milliseconds.
    pub expires: Option<u64>,
    /// `x-max-length` in ready messages.
    pub max_length: Option<u64>,
    /// `x-max-length-bytes` in bytes of ready messages' bodies.
    pub max_length_bytes: Option<u64>,
    /// `x-overflow`.
    pub overflow: Overflow,
    /// `x-dead-letter-exchange` and `x-dead-letter-routing-key`.
    pub dead_lettering: Option<DeadLettering>,
    /// `x-dead-letter-strategy` is `at-least-once` (quorum).
    pub dead_letters_at_least_once: bool,
    /// `x-max-priority`.
    pub max_priority: Option<u8>,
    /// `x-single-active-consumer`.
    pub single_active_consumer: bool,
    /// `x-delivery-limit` (quorum), which may be negative.
    pub delivery_limit: Option<i64>,
    /// `x-queue-mode` is `lazy`: messages leave memory even when memory is not short.
    pub lazy: bool,
}

impl QueueArguments {
    /// Checks and parses the arguments of a new queue.
    ///
    /// # Errors
    /// 406 `invalid arg 'K' for queue 'q' in vhost '/': …`, in RabbitMQ's words.
    pub(crate) fn parse(
        table: &FieldTable,
        queue: &str,
        vhost: &str,
        compatibility: Compatibility,
    ) -> Result<Self, BrokerError> {
        check::check_queue_arguments(table, queue, vhost, compatibility)?;
        Ok(Self::read(table, &[], compatibility))
    }

    /// Reads validated arguments: a queue's own, then those of its policies. The lowest of several numbers applies, and
    /// otherwise the first value; for delivery limits see [`Compatibility::merged_delivery_limit`].
    pub(crate) fn read(own: &FieldTable, policies: &[&FieldTable], compatibility: Compatibility) -> Self {
        let values = |key: &'static str| {
            debug_assert!(ArgumentSpec::find(key).is_some(), "{key} is not in the table of arguments");
            iter::once(&own).chain(policies).filter_map(move |table| table.get(key))
        };
        let number =
            |key| values(key).filter_map(FieldValue::as_integer).min().map(|number| number.max(0) as u64);
        let text = |key| values(key).next().and_then(FieldValue::as_text);
        let dead_lettering = text("x-dead-letter-exchange").map(|exchange| DeadLettering {
            exchange: exchange.into(),
            routing_key: text("x-dead-letter-routing-key").map(Into::into),
        });
        let kind = QueueKind::of(own);
        let delivery_limits = values("x-delivery-limit").filter_map(FieldValue::as_integer);
        Self {
            kind,
            message_ttl: number("x-message-ttl"),
            expires: number("x-expires"),
            max_length: number("x-max-length"),
            max_length_bytes: number("x-max-length-bytes"),
            overflow: match (text("x-overflow"), kind) {
                (Some("reject-publish"), _) => Overflow::RejectPublish,
                // Quorum queues accept the value, and drop the oldest message.
                (Some("reject-publish-dlx"), QueueKind::Classic) => Overflow::RejectPublishDlx,
                _ => Overflow::DropHead,
            },
            dead_lettering,
            dead_letters_at_least_once: text("x-dead-letter-strategy") == Some("at-least-once"),
            max_priority: number("x-max-priority").map(|n| n.min(u64::from(u8::MAX)) as u8),
            single_active_consumer: values("x-single-active-consumer").next()
                == Some(&FieldValue::Boolean(true)),
            delivery_limit: delivery_limits
                .reduce(|one, other| compatibility.merged_delivery_limit(one, other)),
            lazy: text("x-queue-mode") == Some("lazy"),
        }
    }

    /// These arguments of a queue that holds at most `capacity`. It drops the oldest messages, so that one slow client does
    /// not cause a publisher to be refused.
    pub(crate) fn within(mut self, capacity: QueueCapacity) -> Self {
        let lower = |own: Option<u64>, most: u64| Some(own.map_or(most, |own| own.min(most)));
        self.max_length = lower(self.max_length, capacity.messages);
        self.max_length_bytes = lower(self.max_length_bytes, capacity.bytes);
        self.overflow = Overflow::DropHead;
        self
    }

    /// Whether its dead letters should arrive at least once. The strategy needs the overflow `reject-publish` (RabbitMQ,
    /// "Quorum Queues", "Dead Lettering").
    pub(crate) fn promises_dead_letters(&self) -> bool {
        self.dead_letters_at_least_once && self.overflow == Overflow::RejectPublish
    }
}

#[cfg(test)]
mod tests {
    use amqp::{ArgumentValue, QUEUE_ARGUMENTS};

    use super::*;

    fn parse(entries: &[(&str, FieldValue)]) -> Result<QueueArguments, String> {
        let table: FieldTable = entries.iter().cloned().collect();
        QueueArguments::parse(&table, "q", "/", Compatibility::V3_10).map_err(|error| {
            let text = error.to_string();
            text.split_once(" in vhost '/'").map_or(text.clone(), |(_, reason)| reason.to_owned())
        })
    }

    #[test]
    fn every_argument_is_read() {
        let arguments = parse(&[
            ("x-message-ttl", FieldValue::I32(5)),
            ("x-expires", FieldValue::I64(6)),
            ("x-max-length", FieldValue::U8(7)),
            ("x-max-length-bytes", FieldValue::I16(8)),
            ("x-overflow", FieldValue::text("reject-publish")),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-dead-letter-routing-key", FieldValue::text("k")),
            ("x-max-priority", FieldValue::I32(255)),
            ("x-single-active-consumer", FieldValue::Boolean(true)),
            ("x-queue-mode", FieldValue::text("lazy")),
        ])
        .unwrap();
        let expected = QueueArguments {
            kind: QueueKind::Classic,
            message_ttl: Some(5),
            expires: Some(6),
            max_length: Some(7),
            max_length_bytes: Some(8),
            overflow: Overflow::RejectPublish,
            dead_lettering: Some(DeadLettering { exchange: "".into(), routing_key: Some("k".into()) }),
            dead_letters_at_least_once: false,
            max_priority: Some(255),
            single_active_consumer: true,
            delivery_limit: None,
            lazy: true,
        };
        assert_eq!(arguments, expected);
    }

    #[test]
    fn wrong_arguments_are_refused_in_rabbitmqs_words() {
        let cases = [
            ("x-message-ttl", FieldValue::text("1"), ": \"expected integer, got longstr\""),
            ("x-message-ttl", FieldValue::I32(-1), ": {value_negative,-1}"),
            ("x-expires", FieldValue::I32(0), ": {value_zero,0}"),
            ("x-max-length", FieldValue::I32(-5), ": {value_negative,-5}"),
            ("x-max-priority", FieldValue::I32(400), ": {max_value_exceeded,400}"),
            ("x-dead-letter-routing-key", FieldValue::text("k"), ": routing_key_but_no_dlx_defined"),
            ("x-overflow", FieldValue::text("maybe"), ": invalid_overflow"),
            ("x-queue-type", FieldValue::text("nope"), ": \"unsupported queue type 'nope'\""),
            ("x-message-ttl", FieldValue::I64(315_360_000_001), ": {value_too_large,315360000001}"),
            ("x-delivery-limit", FieldValue::I32(5), " of queue type rabbit_classic_queue"),
            ("x-queue-mode", FieldValue::text("nope"), ": \"unsupported queue mode 'nope'\""),
        ];
        for (key, value, reason) in cases {
            assert_eq!(parse(&[(key, value)]).unwrap_err(), reason, "{key}");
        }
    }

    #[test]
    fn unknown_arguments_are_ignored() {
        assert_eq!(parse(&[("x-unknown", FieldValue::Void)]), Ok(QueueArguments::default()));
    }

    #[test]
    fn rabbitmq_4_knows_more_arguments() {
        let parse = |kind: &str, key: &str, value: FieldValue| {
            let table: FieldTable =
                [("x-queue-type", FieldValue::text(kind)), (key, value)].into_iter().collect();
            [Compatibility::V3_10, Compatibility::V4].map(|compatibility| {
                let parsed = QueueArguments::parse(&table, "q", "/", compatibility);
                parsed.map(drop).map_err(|error| {
                    let text = error.to_string();
                    text.split_once(" in vhost '/'").map_or(text.clone(), |(_, reason)| reason.to_owned())
                })
            })
        };
        let refused = |reason: &str| Err(reason.to_owned());
        let classic = || refused(" of queue type rabbit_classic_queue");
        for key in ["x-consumer-timeout", "x-consumer-disconnected-timeout"] {
            assert_eq!(parse("quorum", key, FieldValue::I32(0)), [Ok(()), Ok(())]);
            assert_eq!(parse("quorum", key, FieldValue::I32(-1)), [Ok(()), refused(": {value_negative,-1}")]);
            let text = ": \"expected integer, got longstr\"";
            assert_eq!(parse("quorum", key, FieldValue::text("a")), [Ok(()), refused(text)]);
            assert_eq!(parse("classic", key, FieldValue::I32(5)), [Ok(()), classic()]);
        }
        for key in ["x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"] {
            assert_eq!(parse("quorum", key, FieldValue::text("odd")), [Ok(()), Ok(())]);
            assert_eq!(parse("classic", key, FieldValue::I32(5)), [Ok(()), classic()]);
        }
        let key = "x-queue-leader-locator";
        assert_eq!(parse("classic", key, FieldValue::text("balanced")), [classic(), Ok(())]);
        let text = refused(": invalid_queue_locator_arg");
        assert_eq!(parse("classic", key, FieldValue::text("odd")), [classic(), text]);
        let quorum = refused(" of queue type rabbit_quorum_queue");
        assert_eq!(parse("quorum", "x-stream-filter-size-bytes", FieldValue::I32(20)), [Ok(()), quorum]);
    }

    /// The argument with a valid value that is not the default, and those that it needs.
    fn with(kind: QueueKind, spec: &ArgumentSpec) -> FieldTable {
        let value = match spec.value {
            ArgumentValue::Count { .. } => FieldValue::I32(2),
            ArgumentValue::Flag => FieldValue::Boolean(true),
            ArgumentValue::Choice(known, _) => FieldValue::text(known[1]),
            _ => FieldValue::text("name"),
        };
        let mut table = without(kind, spec);
        table.insert(spec.name, value);
        table
    }

    /// The arguments that `spec` requires, without itself.
    fn without(kind: QueueKind, spec: &ArgumentSpec) -> FieldTable {
        let mut table = FieldTable::new();
        if kind == QueueKind::Quorum && spec.name != "x-queue-type" {
            table.insert("x-queue-type", FieldValue::text("quorum"));
        }
        if matches!(spec.value, ArgumentValue::DeadLetterKey) {
            table.insert("x-dead-letter-exchange", FieldValue::text(""));
        }
        table
    }

    #[test]
    fn every_argument_in_the_table_is_obeyed_or_said_to_be_without_effect() {
        const V4: Compatibility = Compatibility::V4;
        for kind in [QueueKind::Classic, QueueKind::Quorum] {
            for spec in QUEUE_ARGUMENTS.iter().filter(|spec| kind.position(spec, V4).is_some()) {
                let parse = |table: &FieldTable| QueueArguments::parse(table, "q", "/", V4).unwrap();
                let is_read = parse(&with(kind, spec)) != parse(&without(kind, spec));
                assert_eq!(is_read, spec.has_effect, "{}", spec.name);
            }
        }
        let of_none = |spec: &&ArgumentSpec| spec.classic.or(spec.quorum).is_none();
        assert!(QUEUE_ARGUMENTS.iter().filter(of_none).all(|spec| !spec.has_effect));
    }
}
