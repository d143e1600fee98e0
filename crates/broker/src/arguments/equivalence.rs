//! Checks that a redeclaration is equivalent to the first declaration.

use std::fmt::Write;

use amqp::{ArgumentSpec, FieldTable, FieldValue, QUEUE_ARGUMENTS};

use super::QueueKind;
use crate::compatibility::Compatibility;
use crate::error::BrokerError;

/// Compares the arguments of a queue; `resource` is described as in `queue 'q' in vhost '/'`.
pub(crate) fn check_queue_redeclared(
    kind: QueueKind,
    compatibility: Compatibility,
    current: &FieldTable,
    received: &FieldTable,
    resource: &str,
) -> Result<(), BrokerError> {
    let position = |spec: &ArgumentSpec| Some((kind.position(spec, compatibility)?, spec.name));
    let compared = QUEUE_ARGUMENTS.iter().filter_map(position);
    let first = compared.filter(|(_, key)| differ(key, current.get(key), received.get(key))).min();
    first.map_or(Ok(()), |(_, key)| check_argument(key, current, received, resource))
}

/// Compares one boolean property.
pub(crate) fn check_flag(
    key: &str,
    current: bool,
    received: bool,
    resource: &str,
) -> Result<(), BrokerError> {
    check_field(
        key,
        if current { "true" } else { "false" },
        if received { "true" } else { "false" },
        resource,
    )
}

/// Compares one property that is always present.
pub(crate) fn check_field(
    key: &str,
    current: &str,
    received: &str,
    resource: &str,
) -> Result<(), BrokerError> {
    if current == received {
        return Ok(());
    }
    Err(inequivalent(key, resource, &format!("'{received}'"), &format!("'{current}'")))
}

/// Compares one argument.
pub(crate) fn check_argument(
    key: &str,
    current: &FieldTable,
    received: &FieldTable,
    resource: &str,
) -> Result<(), BrokerError> {
    let (current, received) = (current.get(key), received.get(key));
    if !differ(key, current, received) {
        return Ok(());
    }
    // RabbitMQ names the types only if one of the two is missing.
    let describe = |value: Option<&FieldValue>, other: Option<&FieldValue>| match (value, other) {
        (None, _) => "none".to_owned(),
        (Some(value), None) => format!("the value '{}' of type '{}'", in_erlang(value), value.type_name()),
        (Some(value), Some(_)) => format!("'{}'", in_erlang(value)),
    };
    Err(inequivalent(key, resource, &describe(received, current), &describe(current, received)))
}

fn differ(key: &str, current: Option<&FieldValue>, received: Option<&FieldValue>) -> bool {
    if key == "x-queue-type" && queue_type_of(current) == queue_type_of(received) {
        return false;
    }
    match (current, received) {
        (Some(current), Some(received)) => !same_value(current, received),
        (current, received) => current.is_some() || received.is_some(),
    }
}

fn inequivalent(key: &str, resource: &str, received: &str, current: &str) -> BrokerError {
    BrokerError::precondition(format!(
        "inequivalent arg '{key}' for {resource}: received {received} but current is {current}"
    ))
}

/// A queue without the argument is a classic one.
fn queue_type_of(value: Option<&FieldValue>) -> Option<&str> {
    value.map_or(Some("classic"), FieldValue::as_text)
}

/// Integers of all widths compare by value.
fn same_value(one: &FieldValue, other: &FieldValue) -> bool {
    match (one.as_integer(), other.as_integer()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// The value as Erlang prints it at the top level.
pub(crate) fn in_erlang(value: &FieldValue) -> String {
    match value {
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        FieldValue::Boolean(value) => value.to_string(),
        FieldValue::Timestamp(seconds) => seconds.to_string(),
        FieldValue::F32(value) => format!("{value:?}"),
        FieldValue::F64(value) => format!("{value:?}"),
        FieldValue::Decimal { scale, value } => format!("{{{scale},{value}}}"),
        FieldValue::Void => "undefined".into(),
        FieldValue::Array(items) => {
            let items: Vec<String> =
                items.iter().map(|item| format!("{{{},{}}}", item.type_name(), term(item))).collect();
            format!("[{}]", items.join(","))
        }
        FieldValue::Table(table) => {
            let mut text = String::from("[");
            for (at, (key, value)) in table.iter().enumerate() {
                let comma = if at == 0 { "" } else { "," };
                // Writing to a string cannot fail.
                let _ = write!(text, "{comma}{{<<\"{key}\">>,{},{}}}", value.type_name(), term(value));
            }
            text + "]"
        }
        integer => integer.as_integer().unwrap_or_default().to_string(),
    }
}

/// The value as Erlang prints it inside a larger term.
fn term(value: &FieldValue) -> String {
    match value {
        FieldValue::LongString(_) | FieldValue::ByteArray(_) => format!("<<\"{}\">>", in_erlang(value)),
        other => in_erlang(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(current: Option<FieldValue>, received: Option<FieldValue>) -> Result<(), String> {
        let table =
            |value: Option<FieldValue>| value.into_iter().map(|value| ("x-message-ttl", value)).collect();
        check_queue_redeclared(
            QueueKind::Classic,
            Compatibility::V3_10,
            &table(current),
            &table(received),
            "queue 'q' in vhost '/'",
        )
        .map_err(|error| error.to_string())
    }

    #[test]
    fn integers_compare_by_value() {
        assert_eq!(compare(Some(FieldValue::I32(60)), Some(FieldValue::I64(60))), Ok(()));
    }

    #[test]
    fn inequivalent_arguments_are_reported_as_in_rabbitmq() {
        let cases = [
            (
                None,
                Some(FieldValue::I32(60000)),
                "received the value '60000' of type 'signedint' but current is none",
            ),
            (
                Some(FieldValue::I32(60000)),
                None,
                "received none but current is the value '60000' of type 'signedint'",
            ),
            (
                Some(FieldValue::I32(60000)),
                Some(FieldValue::I32(50000)),
                "received '50000' but current is '60000'",
            ),
            (
                Some(FieldValue::I32(60000)),
                Some(FieldValue::text("a")),
                "received 'a' but current is '60000'",
            ),
        ];
        for (current, received, end) in cases {
            let expected = format!("inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': {end}");
            assert_eq!(compare(current, received), Err(expected));
        }
    }

    #[test]
    fn a_missing_queue_type_equals_classic() {
        let classic: FieldTable = [("x-queue-type", FieldValue::text("classic"))].into_iter().collect();
        let quorum: FieldTable = [("x-queue-type", FieldValue::text("quorum"))].into_iter().collect();
        let check = |current: &FieldTable, received: &FieldTable| {
            let resource = "queue 'q' in vhost '/'";
            check_queue_redeclared(QueueKind::Classic, Compatibility::V3_10, current, received, resource)
        };
        assert_eq!(check(&classic, &FieldTable::new()), Ok(()));
        assert_eq!(check(&FieldTable::new(), &classic), Ok(()));
        assert!(check(&FieldTable::new(), &quorum).is_err());
    }

    #[test]
    fn of_several_differences_the_one_that_rabbitmq_compares_first_is_named() {
        let number = FieldValue::I32(1);
        let received: FieldTable = ["x-message-ttl", "x-max-length", "x-expires", "x-dead-letter-exchange"]
            .map(|key| (key, number.clone()))
            .into_iter()
            .collect();
        for (kind, key) in [(QueueKind::Classic, "x-expires"), (QueueKind::Quorum, "x-dead-letter-exchange")]
        {
            let current = FieldTable::new();
            let error =
                check_queue_redeclared(kind, Compatibility::V3_10, &current, &received, "q").unwrap_err();
            assert!(error.to_string().starts_with(&format!("inequivalent arg '{key}' for ")), "{error}");
        }
    }
}
