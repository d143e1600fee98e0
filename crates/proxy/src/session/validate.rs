//! Validation of client frames, and the kind of connection that each one needs (P2).
//!
//! RabbitMQ answers some methods by closing the whole connection. Faults that are visible in the method itself are
//! raised here, with RabbitMQ's texts (rabbit_channel.erl). Methods whose outcome depends on the broker's state are
//! kept off shared connections.

use amqp::method::BASIC_CLASS;
use amqp::method::basic::Consume;
use amqp::{DecodeError, Fault, FieldValue, Method, Properties, RawTable, ReplyCode};

use super::arguments::are_usual;
use crate::upstream::REPLY_TO;

/// The kind of connection that a method needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Any connection.
    Any,
    /// The client's own connection.
    Own,
    /// The client's own connection, which cannot be given to another client afterwards.
    Exclusive,
}

/// Validates a method other than `basic.publish`, `channel.open`, `channel.close` and `channel.close-ok`.
/// `exclusive` is true if the client has declared an exclusive queue.
///
/// # Errors
/// The fault with which RabbitMQ would close the connection.
pub(super) fn validate(method: &Method<'_>, exclusive: bool) -> Result<Need, Fault> {
    let fault = |code, text: String| Err(Fault::new(code, text).caused_by(method.ids()));
    if !arguments(method).is_finite() {
        return fault(ReplyCode::InternalError, NOT_FINITE.to_owned());
    }
    let own_if = |risky| if risky { Need::Own } else { Need::Any };
    let is_cut = may_be_cut(method);
    let naming = own_if(exclusive || is_cut);
    Ok(match method {
        Method::BasicQos(qos) if qos.prefetch_size != 0 => {
            return fault(ReplyCode::NotImplemented, format!("prefetch_size!=0 ({})", qos.prefetch_size));
        }
        Method::BasicRecover(amqp::method::basic::Recover { requeue: false })
        | Method::BasicRecoverAsync(amqp::method::basic::RecoverAsync { requeue: false }) => {
            return fault(ReplyCode::NotImplemented, "requeue=false".to_owned());
        }
        Method::ChannelFlow(flow) if !flow.active => {
            return fault(ReplyCode::NotImplemented, "active=false".to_owned());
        }
        Method::QueueDeclare(declare) if declare.exclusive && !declare.passive => Need::Exclusive,
        // RabbitMQ fails with 541 on a name of this kind that it cannot parse, on the type of a server-named
        // queue, and on some arguments.
        Method::QueueDeclare(declare) if declare.queue.starts_with(REPLY_TO) => Need::Own,
        Method::QueueDeclare(declare) if !declare.passive && !are_usual(&declare.arguments) => Need::Own,
        Method::QueueDeclare(_) | Method::QueueBind(_) | Method::QueueUnbind(_) => naming,
        Method::QueueDelete(delete) if !delete.if_unused && !delete.if_empty => naming,
        Method::ExchangeDeclare(declare) if !declare.passive && !BUILT_IN_TYPES.contains(&declare.kind) => {
            Need::Own
        }
        Method::ExchangeDeclare(_)
        | Method::ExchangeDelete(_)
        | Method::ExchangeBind(_)
        | Method::ExchangeUnbind(_) => own_if(is_cut),
        // Streams do not support basic.get and queue.purge, and quorum queues do not support the conditions of
        // queue.delete: 540. Any method while a transaction is being committed: 504. A consumer, unless
        // `validate_consume` allows sharing.
        Method::QueueDelete(_)
        | Method::QueuePurge(_)
        | Method::BasicGet(_)
        | Method::BasicConsume(_)
        | Method::TxSelect(_) => Need::Own,
        Method::BasicQos(_)
        | Method::BasicRecover(_)
        | Method::BasicRecoverAsync(_)
        | Method::BasicAck(_)
        | Method::BasicNack(_)
        | Method::BasicReject(_)
        | Method::BasicCancel(_)
        | Method::ChannelFlow(_)
        | Method::AccessRequest(_)
        | Method::ConfirmSelect(_)
        | Method::TxCommit(_)
        | Method::TxRollback(_) => Need::Any,
        // Methods that only a server sends, unsolicited replies, and methods of channel 0.
        _ => return fault(ReplyCode::CommandInvalid, "unimplemented method".to_owned()),
    })
}

/// The kind of connection that a consumer needs. On a shared one, deliveries must have a bound (P3), nothing
/// may depend on the connection (P4), and RabbitMQ must not be able to answer by closing it, depending on the
/// queue: 540 for a quorum queue with a limit for the whole channel and for a stream without
/// acknowledgements, 541 for arguments of a wrong type.
pub(super) fn validate_consume(consume: &Consume<'_>, limits: PrefetchLimits, budget: usize) -> Need {
    let prefetch = usize::from(limits.each.unwrap_or_default());
    let is_bounded = prefetch > 0 && prefetch.saturating_mul(MESSAGE_EXPECTED) <= budget;
    let is_plain = !consume.no_ack && !consume.exclusive && consume.queue != REPLY_TO && limits.all.is_none();
    let is_known = |(key, _): (&str, &FieldValue)| SAFE_ARGUMENTS.contains(&key);
    let is_safe = consume.arguments.is_empty() || consume.arguments.decode().iter().all(is_known);
    let is_cut = is_long(&[consume.queue, consume.consumer_tag]);
    if is_bounded && is_plain && is_safe && !is_cut { Need::Any } else { Need::Own }
}

/// Whether RabbitMQ 4 may truncate the text of an error about this method, to 255 bytes, in the middle of a character. Its
/// channel then fails with 541.
fn may_be_cut(method: &Method<'_>) -> bool {
    match method {
        Method::QueueDeclare(method) => is_long(&[method.queue]) || has_long_text(&method.arguments),
        Method::QueueBind(method) => is_long(&[method.queue, method.exchange, method.routing_key]),
        Method::QueueUnbind(method) => is_long(&[method.queue, method.exchange, method.routing_key]),
        Method::QueueDelete(method) => is_long(&[method.queue]),
        Method::ExchangeDeclare(method) => is_long(&[method.exchange]) || has_long_text(&method.arguments),
        Method::ExchangeDelete(method) => is_long(&[method.exchange]),
        Method::ExchangeBind(method) => is_long(&[method.destination, method.source, method.routing_key]),
        Method::ExchangeUnbind(method) => is_long(&[method.destination, method.source, method.routing_key]),
        _ => false,
    }
}

/// Whether these names together, if they are not ASCII, may reach the end of an error's text.
fn is_long(names: &[&str]) -> bool {
    names.iter().map(|name| name.len()).sum::<usize>() > NEVER_CUT
        && !names.iter().all(|name| name.is_ascii())
}

fn has_long_text(arguments: &RawTable<'_>) -> bool {
    arguments.bytes().len() > NEVER_CUT
        && arguments.decode().iter().any(|(_, value)| value.as_text().is_some_and(|text| is_long(&[text])))
}

/// A channel's limits of unacknowledged deliveries, as the client requested them last.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct PrefetchLimits {
    /// The limit of each consumer that is made from now on; 0 means no limit.
    pub(super) each: Option<u16>,
    /// The limit of the whole channel.
    pub(super) all: Option<u16>,
}

/// The field table among a method's arguments.
fn arguments<'m>(method: &Method<'m>) -> RawTable<'m> {
    match method {
        Method::ExchangeDeclare(method) => method.arguments,
        Method::ExchangeBind(method) => method.arguments,
        Method::ExchangeUnbind(method) => method.arguments,
        Method::QueueDeclare(method) => method.arguments,
        Method::QueueBind(method) => method.arguments,
        Method::QueueUnbind(method) => method.arguments,
        Method::BasicConsume(method) => method.arguments,
        _ => RawTable::EMPTY,
    }
}

/// Whether the payload of a method frame is a `basic.publish`.
#[inline]
pub(super) fn is_publish(payload: &[u8]) -> bool {
    payload.starts_with(&[0, BASIC_CLASS as u8, 0, PUBLISH as u8])
}

/// Whether the broker replies to this method, if it does not close the channel.
pub(super) fn awaits_reply(payload: &[u8]) -> bool {
    match Method::decode(payload) {
        Ok(Method::ExchangeDeclare(method)) => !method.no_wait,
        Ok(Method::ExchangeDelete(method)) => !method.no_wait,
        Ok(Method::ExchangeBind(method)) => !method.no_wait,
        Ok(Method::ExchangeUnbind(method)) => !method.no_wait,
        Ok(Method::QueueDeclare(method)) => !method.no_wait,
        Ok(Method::QueueBind(method)) => !method.no_wait,
        Ok(Method::QueueDelete(method)) => !method.no_wait,
        Ok(Method::QueuePurge(method)) => !method.no_wait,
        Ok(Method::BasicConsume(method)) => !method.no_wait,
        Ok(Method::BasicCancel(method)) => !method.no_wait,
        Ok(Method::ConfirmSelect(method)) => !method.no_wait,
        Ok(
            Method::QueueUnbind(_)
            | Method::BasicQos(_)
            | Method::BasicGet(_)
            | Method::BasicRecover(_)
            | Method::ChannelFlow(_)
            | Method::TxSelect(_)
            | Method::TxCommit(_)
            | Method::TxRollback(_)
            | Method::AccessRequest(_),
        ) => true,
        _ => false,
    }
}

/// Whether [`names_last_queue`] may be true, by class and method alone, so that most frames need not be decoded.
#[inline]
pub(super) fn may_name_last_queue(payload: &[u8]) -> bool {
    matches!(payload, [0, 50, 0, 20 | 30 | 40 | 50, ..] | [0, 60, 0, 20 | 70, ..])
}

/// Whether an empty queue name in the method means the queue that was declared last on the channel.
pub(super) fn names_last_queue(method: &Method<'_>) -> bool {
    match method {
        Method::QueueBind(bind) => bind.queue.is_empty(),
        Method::QueueUnbind(unbind) => unbind.queue.is_empty(),
        Method::QueueDelete(delete) => delete.queue.is_empty(),
        Method::QueuePurge(purge) => purge.queue.is_empty(),
        Method::BasicConsume(consume) => consume.queue.is_empty(),
        Method::BasicGet(get) => get.queue.is_empty(),
        _ => false,
    }
}

/// Whether a method removes a queue, an exchange, a binding or the messages of a queue.
pub(super) fn is_removal(payload: &[u8]) -> bool {
    matches!(payload, [0, 40, 0, 20 | 40, ..] | [0, 50, 0, 30 | 40 | 50, ..])
}

/// Whether a method changes queues or exchanges, or reveals a queue's contents. The client's earlier publishes must be
/// processed before it, and it needs the permissions of the client's current secret.
pub(super) fn is_about_queues(payload: &[u8]) -> bool {
    matches!(payload, [0, 40 | 50, ..] | [0, 60, 0, 20 | 70, ..])
}

/// Whether the payload of a method frame is a `basic.ack`, `basic.reject` or `basic.nack`.
#[inline]
pub(super) fn is_settling(payload: &[u8]) -> bool {
    matches!(payload, [0, 60, 0, 80 | 90 | 120, ..])
}

/// Validates the arguments of a `basic.publish` by their lengths, without decoding them.
///
/// # Errors
/// 502 SYNTAX_ERROR, 540 NOT_IMPLEMENTED for `immediate`.
#[inline]
pub(super) fn validate_publish(payload: &[u8]) -> Result<(), Fault> {
    // Class, method, a reserved short; two short strings; one byte of bits.
    let after_string = |at: usize| payload.get(at).map(|length| at + 1 + usize::from(*length));
    let bits_at = after_string(EXCHANGE_AT).and_then(after_string);
    match bits_at {
        Some(at) if at + 1 == payload.len() && payload[at] & IMMEDIATE == 0 => Ok(()),
        Some(at) if at + 1 == payload.len() => {
            Err(Fault::new(ReplyCode::NotImplemented, "immediate=true").caused_by(PUBLISH_IDS))
        }
        Some(at) if at + 1 < payload.len() => Err(malformed(DecodeError::TrailingData)),
        _ => Err(malformed(DecodeError::Truncated)),
    }
}

/// Whether a valid `basic.publish`, see [`validate_publish`], goes to the default exchange, whose routing keys
/// are queue names.
#[inline]
pub(super) fn is_to_default(payload: &[u8]) -> bool {
    payload.get(EXCHANGE_AT) == Some(&0)
}

/// Whether a valid `basic.publish` is mandatory.
#[inline]
pub(super) fn is_mandatory(payload: &[u8]) -> bool {
    payload.last().is_some_and(|bits| bits & MANDATORY != 0)
}

/// The kind of connection that a valid `basic.publish` needs.
#[inline]
pub(super) fn publish_need(payload: &[u8]) -> Need {
    let key = payload.get(EXCHANGE_AT + 2..).unwrap_or_default();
    let length = usize::from(payload.get(EXCHANGE_AT).copied().unwrap_or_default());
    let exchange = payload.get(EXCHANGE_AT + 1..EXCHANGE_AT + 1 + length).unwrap_or_default();
    names_need(exchange, key)
}

/// The routing key matters only for the default exchange.
#[inline]
fn names_need(exchange: &[u8], key: &[u8]) -> Need {
    let is_reply = || exchange.is_empty() && key.starts_with(REPLY_TO.as_bytes());
    if is_reply() || exchange.len() > NEVER_CUT && !exchange.is_ascii() { Need::Own } else { Need::Any }
}

/// Whether RabbitMQ may answer a publish with these property flags and list by closing the whole connection, such as with
/// 541 INTERNAL_ERROR for a number in the headers that is not finite. [`ProxySession`](crate::ProxySession) sends such a
/// publish on the client's own connection. A caller that publishes for several clients on one connection should not send it.
pub fn may_cost_connection(exchange: &str, routing_key: &str, properties: &[u8]) -> bool {
    names_need(exchange.as_bytes(), routing_key.as_bytes()) != Need::Any
        || validate_properties(properties, exchange.is_empty()) != Ok(Need::Any)
}

/// Validates the properties of a message, which goes `to_default` exchange or not.
///
/// # Errors
/// 502 SYNTAX_ERROR.
#[inline]
pub(super) fn validate_properties(bytes: &[u8], to_default: bool) -> Result<Need, Fault> {
    if bytes == amqp::properties::NO_PROPERTIES {
        return Ok(Need::Any);
    }
    let properties = Properties::decode(bytes).map_err(malformed)?;
    // Errors about these properties quote their values.
    if [properties.user_id, properties.expiration].into_iter().flatten().any(|text| is_long(&[text])) {
        return Ok(Need::Own);
    }
    Ok(properties.headers.map_or(Need::Any, |headers| headers_need(&headers, to_default)))
}

/// RabbitMQ's channel fails with 541 on numbers that are not finite, and on a reply-to name that it cannot
/// parse in the CC or BCC header of a message to the default exchange.
fn headers_need(headers: &RawTable<'_>, to_default: bool) -> Need {
    let prefix = REPLY_TO.as_bytes();
    let names_reply_to = || headers.bytes().windows(prefix.len()).any(|window| window == prefix);
    if headers.is_finite() && !(to_default && names_reply_to()) { Need::Any } else { Need::Own }
}

#[cold]
pub(super) fn malformed(error: DecodeError) -> Fault {
    Fault::from(error).caused_by(PUBLISH_IDS)
}

/// Total bytes of names that are never truncated in the text of an error, which has at most 255 bytes: RabbitMQ's own
/// text before and between them takes up to 110 bytes, and the rest is left for the names of the virtual host and the
/// user.
const NEVER_CUT: usize = 80;
/// Class and method id of `basic.publish`.
pub(super) const PUBLISH_IDS: (u16, u16) = (BASIC_CLASS, PUBLISH);
const PUBLISH: u16 = 40;
/// Offset of the exchange name in a `basic.publish`, behind class, method and a reserved short.
const EXCHANGE_AT: usize = 6;
/// The error text for a table with a number that RabbitMQ cannot decode.
const NOT_FINITE: &str = "number in a table is infinite or not a number";
/// The bits of `mandatory` and `immediate` in the last byte of `basic.publish`.
const MANDATORY: u8 = 1;
const IMMEDIATE: u8 = 2;
/// Assumed size in bytes of a message that has not arrived yet.
const MESSAGE_EXPECTED: usize = 1024;
/// Consumer arguments that RabbitMQ validates itself, with a channel error.
const SAFE_ARGUMENTS: [&str; 2] = ["x-priority", "x-cancel-on-ha-failover"];
/// Exchange types that every broker has; RabbitMQ answers others, if no plugin provides them, with 503 on the
/// connection.
const BUILT_IN_TYPES: [&str; 4] = ["direct", "fanout", "topic", "headers"];

#[cfg(test)]
mod tests {
    use amqp::FieldTable;
    use amqp::method::{basic, channel, connection, exchange, queue};

    use super::*;

    fn publish(immediate: bool) -> Vec<u8> {
        let publish =
            basic::Publish { exchange: "exchange", routing_key: "key", immediate, ..Default::default() };
        let mut payload = Vec::new();
        Method::from(publish).encode(&mut payload);
        payload
    }

    #[test]
    fn a_publish_is_validated_by_its_lengths() {
        let payload = publish(false);
        assert!(is_publish(&payload));
        assert_eq!(validate_publish(&payload), Ok(()));
        for cut in 4..payload.len() {
            assert_eq!(
                validate_publish(&payload[..cut]).unwrap_err().code,
                ReplyCode::SyntaxError,
                "{cut} bytes"
            );
        }
        let longer = [&payload[..], &[0]].concat();
        assert_eq!(validate_publish(&longer).unwrap_err().code, ReplyCode::SyntaxError);
        let fault = validate_publish(&publish(true)).unwrap_err();
        assert_eq!(fault.reply_text(), "NOT_IMPLEMENTED - immediate=true");
    }

    #[test]
    fn methods_that_would_make_the_broker_close_the_connection_are_refused() {
        let text = |method: Method<'_>| validate(&method, false).unwrap_err().reply_text();
        assert_eq!(
            text(basic::Qos { prefetch_size: 9, ..Default::default() }.into()),
            "NOT_IMPLEMENTED - prefetch_size!=0 (9)"
        );
        assert_eq!(text(basic::Recover { requeue: false }.into()), "NOT_IMPLEMENTED - requeue=false");
        assert_eq!(text(channel::Flow { active: false }.into()), "NOT_IMPLEMENTED - active=false");
        assert_eq!(text(channel::FlowOk { active: true }.into()), "COMMAND_INVALID - unimplemented method");
        let not_a_number = FieldTable::from_iter([("k", FieldValue::F64(f64::NAN))]).encode();
        let bind = queue::Bind { arguments: RawTable::check(&not_a_number).unwrap(), ..Default::default() };
        assert!(text(bind.into()).starts_with("INTERNAL_ERROR"));
        for server_only in [
            basic::Deliver::default().into(),
            queue::DeclareOk::default().into(),
            connection::Tune::default().into(),
            channel::OpenOk::default().into(),
        ] {
            assert_eq!(text(server_only), "COMMAND_INVALID - unimplemented method");
        }
    }

    #[test]
    fn p3_a_consumer_shares_a_connection_only_if_it_is_bounded_and_harmless() {
        let limits = |each, all| PrefetchLimits { each, all };
        let bounded = limits(Some(10), None);
        let consume = Consume { queue: "q", ..Default::default() };
        let priority = FieldTable::from_iter([("x-priority", FieldValue::text("wrong"))]).encode();
        let credit = FieldTable::from_iter([("x-credit", FieldValue::text("wrong"))]).encode();
        let with = |arguments| Consume { arguments: RawTable::check(arguments).unwrap(), ..consume };
        for (consume, limits, budget, need) in [
            (consume, bounded, 10 * 1024, Need::Any),
            (consume, bounded, 10 * 1024 - 1, Need::Own),
            (consume, limits(None, None), usize::MAX, Need::Own),
            (consume, limits(Some(0), None), usize::MAX, Need::Own),
            (consume, limits(Some(10), Some(10)), usize::MAX, Need::Own),
            (Consume { no_ack: true, ..consume }, bounded, usize::MAX, Need::Own),
            (Consume { exclusive: true, ..consume }, bounded, usize::MAX, Need::Own),
            (Consume { queue: REPLY_TO, ..consume }, bounded, usize::MAX, Need::Own),
            (with(&priority), bounded, usize::MAX, Need::Any),
            (with(&credit), bounded, usize::MAX, Need::Own),
        ] {
            assert_eq!(validate_consume(&consume, limits, budget), need, "{consume:?} {limits:?}");
        }
    }

    #[test]
    fn p2_an_unusual_queue_is_declared_on_a_connection_of_its_own() {
        let need = |declare: queue::Declare<'_>| validate(&declare.into(), false);
        let quorum = FieldTable::from_iter([("x-queue-type", FieldValue::text("quorum"))]).encode();
        let quorum = queue::Declare { arguments: RawTable::check(&quorum).unwrap(), ..Default::default() };
        assert_eq!(need(quorum), Ok(Need::Any));
        let stream = FieldTable::from_iter([("x-queue-type", FieldValue::text("stream"))]).encode();
        let stream = queue::Declare { arguments: RawTable::check(&stream).unwrap(), ..Default::default() };
        assert_eq!(need(stream), Ok(Need::Own));
        assert_eq!(need(queue::Declare { passive: true, ..stream }), Ok(Need::Any));
        let reply_to = queue::Declare { queue: "amq.rabbitmq.reply-to.xx.yy", ..Default::default() };
        assert_eq!(need(reply_to), Ok(Need::Own));
        assert_eq!(need(queue::Declare { passive: true, ..reply_to }), Ok(Need::Own));
    }

    #[test]
    fn p2_names_an_error_text_may_split_mid_character_avoid_shared_connections() {
        let (long, plain, short) = ("ü".repeat(41), "u".repeat(82), "ü".repeat(40));
        let need = |method: Method<'_>| validate(&method, false).unwrap();
        for (name, expected) in [(&long, Need::Own), (&plain, Need::Any), (&short, Need::Any)] {
            let name = name.as_str();
            assert_eq!(need(queue::Declare { queue: name, ..Default::default() }.into()), expected);
            assert_eq!(
                need(queue::Declare { queue: name, passive: true, ..Default::default() }.into()),
                expected
            );
            let bind = queue::Bind {
                queue: &name[..40],
                exchange: &name[..40],
                routing_key: &name[80..],
                ..Default::default()
            };
            assert_eq!(need(bind.into()), expected);
            assert_eq!(need(queue::Delete { queue: name, ..Default::default() }.into()), expected);
            let declare = exchange::Declare { exchange: name, kind: "direct", ..Default::default() };
            assert_eq!(need(declare.into()), expected);
            assert_eq!(need(exchange::Delete { exchange: name, ..Default::default() }.into()), expected);
            assert_eq!(need(exchange::Bind { source: name, ..Default::default() }.into()), expected);
            let letters =
                FieldTable::from_iter([("x-dead-letter-exchange", FieldValue::text(name))]).encode();
            let letters = RawTable::check(&letters).unwrap();
            assert_eq!(need(queue::Declare { arguments: letters, ..Default::default() }.into()), expected);
            let consume = Consume { queue: name, ..Default::default() };
            let limits = PrefetchLimits { each: Some(1), all: None };
            assert_eq!(validate_consume(&consume, limits, usize::MAX), expected);
            let mut publish = Vec::new();
            Method::from(basic::Publish { exchange: name, ..Default::default() }).encode(&mut publish);
            assert_eq!(publish_need(&publish), expected);
            for properties in
                [Properties::default().with_user_id(name), Properties::default().with_expiration(name)]
            {
                let mut bytes = Vec::new();
                properties.encode(&mut bytes);
                assert_eq!(validate_properties(&bytes, false), Ok(expected));
            }
        }
    }

    #[test]
    fn p2_a_reply_goes_over_a_connection_of_its_own() {
        let need = |exchange, routing_key| {
            let mut payload = Vec::new();
            Method::from(basic::Publish { exchange, routing_key, ..Default::default() }).encode(&mut payload);
            (is_to_default(&payload), publish_need(&payload))
        };
        assert_eq!(need("", "amq.rabbitmq.reply-to.xx.yy"), (true, Need::Own));
        assert_eq!(need("", "queue"), (true, Need::Any));
        assert_eq!(need("", ""), (true, Need::Any));
        assert_eq!(need("amq.topic", "amq.rabbitmq.reply-to.xx.yy"), (false, Need::Any));
    }

    #[test]
    fn a_publish_that_needs_a_connection_of_its_own_may_cost_it() {
        let odd = FieldTable::from_iter([("k", FieldValue::F64(f64::INFINITY))]).encode();
        let mut headers = Vec::new();
        Properties::default().with_headers(RawTable::check(&odd).unwrap()).encode(&mut headers);
        let usual = amqp::properties::NO_PROPERTIES;
        for (exchange, key, properties, may) in [
            ("e", "k", usual, false),
            ("e", "k", &*headers, true),
            ("", "amq.rabbitmq.reply-to.x.y", usual, true),
            (&*"ü".repeat(41), "k", usual, true),
            ("e", "k", &[255], true),
        ] {
            assert_eq!(
                may_cost_connection(exchange, key, properties),
                may,
                "{exchange} {key} {properties:?}"
            );
        }
    }

    #[test]
    fn p2_odd_headers_go_over_a_connection_of_their_own() {
        let need = |value, to_default| {
            let headers = FieldTable::from_iter([("CC", value)]).encode();
            let mut properties = Vec::new();
            let headers = RawTable::check(&headers).unwrap();
            Properties::default().with_headers(headers).encode(&mut properties);
            validate_properties(&properties, to_default).unwrap()
        };
        let copies =
            || FieldValue::Array(vec![FieldValue::text("q"), FieldValue::text("amq.rabbitmq.reply-to.x.y")]);
        assert_eq!(need(copies(), true), Need::Own);
        assert_eq!(need(copies(), false), Need::Any);
        assert_eq!(need(FieldValue::F64(f64::NAN), false), Need::Own);
        assert_eq!(need(FieldValue::Array(vec![FieldValue::text("q")]), true), Need::Any);
    }

    #[test]
    fn after_an_exclusive_queue_every_method_that_names_queues_goes_to_the_own_connection() {
        let declare = queue::Declare { queue: "q", ..Default::default() };
        let exclusive = queue::Declare { exclusive: true, ..declare };
        assert_eq!(validate(&exclusive.into(), false), Ok(Need::Exclusive));
        for naming in [declare.into(), queue::Bind::default().into(), queue::Delete::default().into()] {
            assert_eq!(validate(&naming, false), Ok(Need::Any));
            assert_eq!(validate(&naming, true), Ok(Need::Own));
        }
    }
}
