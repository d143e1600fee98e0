//! Checks of single arguments, in the order and with the texts of RabbitMQ 3.10.

use amqp::{FieldTable, FieldValue};

use super::QueueKind;
use crate::error::BrokerError;
use crate::names::Resource;

type Check = fn(&FieldValue, &FieldTable) -> Result<(), String>;

/// Refuses the first invalid argument of a new queue; otherwise returns the queue's type.
pub(super) fn check_queue_arguments(
    table: &FieldTable,
    queue: &str,
    vhost: &str,
) -> Result<QueueKind, BrokerError> {
    // RabbitMQ checks this argument before all others, and words the error differently.
    check_exchange_name_argument(table, "x-dead-letter-exchange", Resource::Queue, queue, vhost)?;
    check_one(table, "x-queue-type", queue_type, queue, vhost)?;
    let kind = match table.get("x-queue-type").and_then(FieldValue::as_text) {
        Some("quorum") => QueueKind::Quorum,
        _ => QueueKind::Classic,
    };
    let known = kind.known_arguments();
    for (key, check) in QUEUE_CHECKS.iter().filter(|(key, _)| known.contains(key)) {
        check_one(table, key, *check, queue, vhost)?;
    }
    let foreign = |key: &&str| ALL_ARGUMENTS.contains(key) && !known.contains(key);
    match table.iter().map(|(key, _)| key).find(foreign) {
        None => Ok(kind),
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
    check_one(table, "x-priority", integer, queue, vhost)?;
    check_one(table, "x-cancel-on-ha-failover", boolean, queue, vhost)?;
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
    check: Check,
    queue: &str,
    vhost: &str,
) -> Result<(), BrokerError> {
    let Some(value) = table.get(key) else { return Ok(()) };
    check(value, table).map_err(|reason| {
        let queue = Resource::Queue.describe(queue, vhost);
        BrokerError::precondition(format!("invalid arg '{key}' for {queue}: {reason}"))
    })
}

fn integer(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    integer_of(value).map(drop)
}

fn integer_of(value: &FieldValue) -> Result<i64, String> {
    value.as_integer().ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn non_negative(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match integer_of(value)? {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        _ => Ok(()),
    }
}

fn positive(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    match integer_of(value)? {
        0 => Err("{value_zero,0}".into()),
        _ => non_negative(value, table),
    }
}

fn milliseconds(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    non_negative(value, table)?;
    match integer_of(value)? {
        n if n > MAX_EXPIRY => Err(format!("{{value_too_large,{n}}}")),
        _ => Ok(()),
    }
}

fn lifetime(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    positive(value, table)?;
    milliseconds(value, table)
}

fn priority(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    non_negative(value, table)?;
    match integer_of(value)? {
        n if n > i64::from(u8::MAX) => Err(format!("{{max_value_exceeded,{n}}}")),
        _ => Ok(()),
    }
}

fn boolean(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match value {
        FieldValue::Boolean(_) => Ok(()),
        other => Err(unacceptable(other)),
    }
}

fn dead_letter_key(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    string_of(value)?;
    match table.get("x-dead-letter-exchange") {
        Some(_) => Ok(()),
        None => Err("routing_key_but_no_dlx_defined".into()),
    }
}

fn dead_letter_strategy(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    one_of(value, &["at-most-once", "at-least-once"], |_| "invalid_dlx_strategy".into())
}

fn overflow(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    one_of(value, &["drop-head", "reject-publish", "reject-publish-dlx"], |_| "invalid_overflow".into())
}

fn queue_mode(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    one_of(value, &["default", "lazy"], |mode| format!("\"unsupported queue mode '{mode}'\""))
}

fn queue_version(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    non_negative(value, table)?;
    match integer_of(value)? {
        1 | 2 => Ok(()),
        n => Err(format!("\"unsupported queue version '{n}'\"")),
    }
}

fn queue_type(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    one_of(value, &["classic", "quorum"], |kind| format!("\"unsupported queue type '{kind}'\""))
}

fn leader_locator(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    let known = ["client-local", "balanced", "random", "least-leaders"];
    one_of(value, &known, |_| "invalid_queue_locator_arg".into())
}

fn one_of(value: &FieldValue, known: &[&str], error: impl Fn(&str) -> String) -> Result<(), String> {
    let text = string_of(value)?;
    if known.contains(&&*text) { Ok(()) } else { Err(error(&text)) }
}

fn string_of(value: &FieldValue) -> Result<String, String> {
    match value {
        FieldValue::LongString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Err(unacceptable(other)),
    }
}

fn unacceptable(value: &FieldValue) -> String {
    format!("{{unacceptable_type,{}}}", value.type_name())
}

/// The longest time to live that RabbitMQ accepts, in milliseconds: ten years of 365 days.
pub(crate) const MAX_EXPIRY: i64 = 315_360_000_000;

const QUEUE_CHECKS: &[(&str, Check)] = &[
    ("x-expires", lifetime),
    ("x-message-ttl", milliseconds),
    ("x-dead-letter-routing-key", dead_letter_key),
    ("x-dead-letter-strategy", dead_letter_strategy),
    ("x-max-length", non_negative),
    ("x-max-length-bytes", non_negative),
    ("x-max-in-memory-length", non_negative),
    ("x-max-in-memory-bytes", non_negative),
    ("x-max-priority", priority),
    ("x-overflow", overflow),
    ("x-queue-mode", queue_mode),
    ("x-queue-version", queue_version),
    ("x-single-active-consumer", boolean),
    ("x-quorum-initial-group-size", positive),
    ("x-queue-leader-locator", leader_locator),
];

/// Arguments known to at least one queue type. A queue of another type refuses them.
const ALL_ARGUMENTS: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-queue-leader-locator",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
];
