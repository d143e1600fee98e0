//! Headers of SEND and SUBSCRIBE that describe a queue, as RabbitMQ's adapter reads them.

use amqp::{ArgumentValue, FieldTable, FieldValue, QUEUE_ARGUMENTS};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use broker::Compatibility;
use md5::{Digest, Md5};
use stomp::destination::Destination;
use stomp::{Headers, StompFault};

/// The maximum of queues that a connection remembers as declared; above it, all are forgotten.
pub(super) const MAX_DECLARED: usize = 1024;

/// How a queue is to be declared.
#[derive(Debug, PartialEq)]
pub(super) struct Declaration {
    pub(super) durable: bool,
    pub(super) auto_delete: bool,
    pub(super) exclusive: bool,
    pub(super) arguments: FieldTable,
}

impl Declaration {
    /// For `/queue`: durable, unless the headers say otherwise. A queue that is not durable is exclusive.
    ///
    /// `persistent` on a SUBSCRIBE means the same as `durable`. On a SEND it concerns the message. In RabbitMQ it also
    /// concerns the queue, and `persistent:false` requests an exclusive queue, which cannot be intended.
    pub(super) fn of_queue(headers: &Headers<'_>, is_send: bool) -> Result<Self, StompFault> {
        let durable = durable(headers, is_send)?.unwrap_or(true);
        Ok(Self {
            durable,
            auto_delete: headers.flag("auto-delete")?.unwrap_or(!durable),
            exclusive: headers.flag("exclusive")?.unwrap_or(!durable),
            arguments: arguments(headers)?,
        })
    }

    /// For a subscription to `/topic` or `/exchange`: the queue is deleted with the subscription, unless the headers say
    /// otherwise.
    pub(super) fn of_subscription(
        headers: &Headers<'_>,
        compatibility: Compatibility,
    ) -> Result<Self, StompFault> {
        let durable = durable(headers, false)?.unwrap_or(false);
        let is_exclusive = !durable && compatibility.has_exclusive_stomp_subscriptions();
        Ok(Self {
            durable,
            auto_delete: headers.flag("auto-delete")?.unwrap_or(true),
            exclusive: headers.flag("exclusive")?.unwrap_or(is_exclusive),
            arguments: arguments(headers)?,
        })
    }

    /// For the reply queues of a connection.
    pub(super) fn of_replies() -> Self {
        Self { durable: false, auto_delete: true, exclusive: true, arguments: FieldTable::new() }
    }
}

/// Whether the headers ask for a subscription that outlives its connection.
pub(super) fn is_durable(headers: &Headers<'_>) -> Result<bool, StompFault> {
    Ok(durable(headers, false)?.unwrap_or(false))
}

fn durable(headers: &Headers<'_>, is_send: bool) -> Result<Option<bool>, StompFault> {
    let durable = headers.flag("durable")?;
    if durable.is_some() || is_send { Ok(durable) } else { headers.flag("persistent") }
}

/// The name of a subscription's queue: requested, or derived from id and destination if durable, or generated.
pub(super) fn subscription_queue(
    destination: &Destination<'_>,
    headers: &Headers<'_>,
) -> Result<String, StompFault> {
    if let Some(name) = headers.get("x-queue-name") {
        return Ok(name.to_owned());
    }
    let id = headers.get("id").filter(|_| is_durable(headers).unwrap_or(false));
    Ok(match id {
        Some(id) => format!("{SUBSCRIPTION_QUEUE}{}", digest(destination.route().1, id)),
        None => broker::generated_name(SUBSCRIPTION_QUEUE),
    })
}

/// RabbitMQ's name for the queue of a durable subscription, so that migrated clients find theirs: the MD5 of the Erlang
/// term `{Key, Id}`, two lists of bytes, in URL-safe Base64.
fn digest(key: &str, id: &str) -> String {
    let mut term = vec![131, 104, 2];
    for text in [key, id] {
        match u16::try_from(text.len()) {
            Ok(0) => term.push(106),
            Ok(len) => {
                term.push(107);
                term.extend_from_slice(&len.to_be_bytes());
                term.extend_from_slice(text.as_bytes());
            }
            // Unreachable: headers and AMQP keys are much shorter.
            Err(_) => term.extend_from_slice(text.as_bytes()),
        }
    }
    BASE64.encode(Md5::digest(&term))
}

/// The arguments of the queue.
fn arguments(headers: &Headers<'_>) -> Result<FieldTable, StompFault> {
    let mut table = FieldTable::new();
    for spec in QUEUE_ARGUMENTS.iter().filter(|spec| spec.stomp) {
        let value = match spec.value {
            ArgumentValue::Count { .. } => headers.number(spec.name)?.map(FieldValue::I64),
            ArgumentValue::Flag => headers.flag(spec.name)?.map(FieldValue::Boolean),
            _ => headers.get(spec.name).map(|text| FieldValue::text(text.trim())),
        };
        if let Some(value) = value {
            table.insert(spec.name, value);
        }
    }
    Ok(table)
}

/// Prefix of the names of subscriptions' queues.
pub(super) const SUBSCRIPTION_QUEUE: &str = "stomp-subscription-";
