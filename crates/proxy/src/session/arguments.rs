//! The arguments of `queue.declare` that RabbitMQ validates itself, with a channel error at worst.
//!
//! RabbitMQ closes the whole connection on some values of some arguments: it uses a queue's type before validating it,
//! and does not validate the queue's leader locator at all. New versions and plugins add more arguments. So the pool
//! uses an allow-list for shared connections instead of a deny-list: the arguments in the table of arguments, with the
//! values listed there.

use amqp::{ArgumentSpec, ArgumentValue, FieldValue, RawTable};

/// Whether every argument is one that RabbitMQ and LavinMQ know, with a value of the expected type.
pub(super) fn are_usual(arguments: &RawTable<'_>) -> bool {
    arguments.is_empty() || arguments.decode().iter().all(|(key, value)| is_usual(key, value))
}

fn is_usual(key: &str, value: &FieldValue) -> bool {
    match ArgumentSpec::find(key).map(|spec| &spec.value) {
        Some(ArgumentValue::Count { .. }) => value.as_integer().is_some_and(|count| count >= 0),
        Some(ArgumentValue::Flag) => matches!(value, FieldValue::Boolean(_)),
        // RabbitMQ does not validate a stream's arguments, and fails with 541 on wrong ones.
        Some(ArgumentValue::Choice(known, _)) if key != DEPRECATED => {
            value.as_text().is_some_and(|text| known.contains(&text))
        }
        Some(ArgumentValue::Text | ArgumentValue::Exchange | ArgumentValue::DeadLetterKey) => {
            value.as_text().is_some()
        }
        Some(ArgumentValue::Choice(..) | ArgumentValue::Unspecified) | None => false,
    }
}

/// An argument that RabbitMQ 4 does not permit any more: it closes the connection.
const DEPRECATED: &str = "x-queue-master-locator";

#[cfg(test)]
mod tests {
    use amqp::FieldTable;

    use super::*;

    fn usual(key: &str, value: FieldValue) -> bool {
        let arguments = FieldTable::from_iter([("x-expires", FieldValue::I32(1)), (key, value)]).encode();
        are_usual(&RawTable::check(&arguments).unwrap())
    }

    #[test]
    fn arguments_that_applications_commonly_declare_are_usual() {
        assert!(are_usual(&RawTable::EMPTY));
        for (key, value) in [
            ("x-queue-type", FieldValue::text("quorum")),
            ("x-queue-mode", FieldValue::text("lazy")),
            ("x-dead-letter-exchange", FieldValue::text("")),
            ("x-message-ttl", FieldValue::I64(60_000)),
            ("x-max-priority", FieldValue::U8(5)),
            ("x-single-active-consumer", FieldValue::Boolean(true)),
        ] {
            assert!(usual(key, value), "{key}");
        }
    }

    #[test]
    fn p2_arguments_that_may_make_rabbitmq_close_the_connection_are_unusual() {
        let table = || FieldValue::Table(FieldTable::new());
        for (key, value) in [
            ("x-queue-type", FieldValue::text("stream")),
            ("x-queue-type", FieldValue::text("none such")),
            ("x-queue-type", table()),
            ("x-queue-master-locator", FieldValue::text("none such")),
            ("x-queue-master-locator", FieldValue::text("min-masters")),
            ("x-max-age", FieldValue::text("nonsense")),
            ("x-delivery-limit", FieldValue::text("many")),
            ("x-max-length", FieldValue::I32(-1)),
            ("x-message-ttl", FieldValue::F64(1.0)),
            ("x-unheard-of", FieldValue::Boolean(true)),
        ] {
            assert!(!usual(key, value.clone()), "{key} {value:?}");
        }
    }
}
