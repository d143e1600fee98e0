//! Checks of single arguments, in the order and with the texts of RabbitMQ.

use std::fmt;

use amqp::{ArgumentSpec, ArgumentValue, FieldTable, FieldValue, QUEUE_ARGUMENTS};

use super::QueueKind;
use crate::compatibility::Compatibility;
use crate::error::BrokerError;
use crate::names::Resource;

/// Refuses an unknown queue type, as RabbitMQ 4 does for server-named queues.
pub(crate) fn check_queue_type(table: &FieldTable) -> Result<(), BrokerError> {
    let known = |name: &str| match ArgumentSpec::find("x-queue-type").map(|spec| &spec.value) {
        Some(ArgumentValue::Choice(known, _)) => known.contains(&name),
        _ => true,
    };
    match table.get("x-queue-type").and_then(FieldValue::as_text) {
        Some(name) if !known(name) => Err(BrokerError::precondition(format!("unknown queue type '{name}'"))),
        _ => Ok(()),
    }
}

/// Refuses the first invalid argument of a new queue.
pub(super) fn check_queue_arguments(
    table: &FieldTable,
    queue: &str,
    vhost: &str,
    compatibility: Compatibility,
) -> Result<(), BrokerError> {
    // RabbitMQ checks this argument before all others, with another error text.
    check_exchange_name_argument(table, DEAD_LETTER_EXCHANGE, Resource::Queue, queue, vhost)?;
    // Every type knows the type's own argument, whose check comes first.
    let kind = QueueKind::of(table);
    let known = |spec: &&ArgumentSpec| spec.is_checked && kind.position(spec, compatibility).is_some();
    for spec in QUEUE_ARGUMENTS.iter().filter(known) {
        check_one(table, spec.name, queue, vhost, |value| check(&spec.value, value, table))?;
    }
    let is_foreign =
        |key: &&str| ArgumentSpec::find(key).is_some_and(|spec| kind.refuses(spec, compatibility));
    match table.iter().map(|(key, _)| key).find(is_foreign) {
        None => Ok(()),
        Some(key) => {
            let queue = Resource::Queue.describe(queue, vhost);
            let kind = kind.erlang_module();
            Err(BrokerError::precondition(format!("invalid arg '{key}' for {queue} of queue type {kind}")))
        }
    }
}

/// Validates the arguments of basic.consume and returns the consumer's priority.
pub(crate) fn check_consumer_priority(
    table: &FieldTable,
    queue: &str,
    vhost: &str,
) -> Result<i64, BrokerError> {
    check_one(table, "x-priority", queue, vhost, |value| integer_of(value).map(drop))?;
    check_one(table, "x-cancel-on-ha-failover", queue, vhost, boolean)?;
    Ok(table.get("x-priority").and_then(FieldValue::as_integer).unwrap_or(0))
}

/// An argument that names an exchange has to be a string.
pub(crate) fn check_exchange_name_argument(
    table: &FieldTable,
    key: &str,
    resource: Resource,
    name: &str,
    vhost: &str,
) -> Result<(), BrokerError> {
    match table.get(key) {
        None | Some(FieldValue::LongString(_)) => Ok(()),
        Some(other) => Err(BrokerError::precondition(format!(
            "invalid type '{}' for arg '{key}' in {}",
            other.type_name(),
            resource.describe(name, vhost)
        ))),
    }
}

fn check_one(
    table: &FieldTable,
    key: &str,
    queue: &str,
    vhost: &str,
    check: impl FnOnce(&FieldValue) -> Result<(), ArgumentFault>,
) -> Result<(), BrokerError> {
    let Some(value) = table.get(key) else { return Ok(()) };
    check(value).map_err(|reason| {
        let queue = Resource::Queue.describe(queue, vhost);
        BrokerError::precondition(format!("invalid arg '{key}' for {queue}: {reason}"))
    })
}

/// The reason why an argument is invalid. `Display` is RabbitMQ's: in most cases an Erlang term.
enum ArgumentFault {
    /// The value is not an integer, but of this type.
    NotInteger(&'static str),
    /// The value has this type, which the argument does not accept.
    Type(&'static str),
    Negative(i64),
    /// The argument's own text for zero.
    Zero(&'static str),
    /// The value is too large or not one of the choices; the argument's own text has `{}` in the value's place.
    OutOfRange {
        text: &'static str,
        value: String,
    },
    /// `x-dead-letter-routing-key` without an exchange.
    NoDeadLetterExchange,
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInteger(found) => write!(f, "\"expected integer, got {found}\""),
            Self::Type(found) => write!(f, "{{unacceptable_type,{found}}}"),
            Self::Negative(value) => write!(f, "{{value_negative,{value}}}"),
            Self::Zero(text) => f.write_str(text),
            Self::OutOfRange { text, value } => f.write_str(&text.replace("{}", value)),
            Self::NoDeadLetterExchange => f.write_str("routing_key_but_no_dlx_defined"),
        }
    }
}

/// Checks one value of the arguments in `table`.
fn check(valid: &'static ArgumentValue, value: &FieldValue, table: &FieldTable) -> Result<(), ArgumentFault> {
    match valid {
        ArgumentValue::Count { zero, most } => match (integer_of(value)?, zero, most) {
            (0, Some(text), _) => Err(ArgumentFault::Zero(text)),
            (n @ ..0, ..) => Err(ArgumentFault::Negative(n)),
            (n, _, Some((most, text))) if n > *most => {
                Err(ArgumentFault::OutOfRange { text, value: n.to_string() })
            }
            _ => Ok(()),
        },
        ArgumentValue::Flag => boolean(value),
        ArgumentValue::Choice(known, text) => match string_of(value)? {
            value if known.contains(&&*value) => Ok(()),
            value => Err(ArgumentFault::OutOfRange { text, value }),
        },
        ArgumentValue::DeadLetterKey => {
            string_of(value)?;
            let exchange = table.get(DEAD_LETTER_EXCHANGE);
            exchange.map(drop).ok_or(ArgumentFault::NoDeadLetterExchange)
        }
        // An exchange has been checked already, and no queue of this broker has the other kinds.
        ArgumentValue::Exchange | ArgumentValue::Text | ArgumentValue::Unspecified => Ok(()),
    }
}

fn integer_of(value: &FieldValue) -> Result<i64, ArgumentFault> {
    value.as_integer().ok_or(ArgumentFault::NotInteger(value.type_name()))
}

fn boolean(value: &FieldValue) -> Result<(), ArgumentFault> {
    match value {
        FieldValue::Boolean(_) => Ok(()),
        other => Err(ArgumentFault::Type(other.type_name())),
    }
}

fn string_of(value: &FieldValue) -> Result<String, ArgumentFault> {
    match value {
        FieldValue::LongString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Err(ArgumentFault::Type(other.type_name())),
    }
}

const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
