//! What a broker sends, in a form that can be compared.

use amqp::method::{basic, channel, connection};
use amqp::{ContentHeader, FieldTable, FieldValue, Method, Properties};

/// Something that came in on a channel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// The answer to the round trip with this tag.
    Synced(String),
    /// `queue.declare-ok`.
    Declared { queue: String, messages: u32, consumers: u32 },
    /// `basic.consume-ok`.
    Consuming { tag: String },
    /// `basic.deliver` with its message as text.
    Delivered { consumer: String, tag: u64, text: String },
    /// `basic.get-ok` with its message as text.
    Got { tag: u64, text: String },
    /// `basic.return` with its message as text.
    Returned { text: String },
    /// `basic.ack` or `basic.nack` from the broker.
    Confirmed { tag: u64, multiple: bool, nack: bool },
    /// `basic.cancel` from the broker.
    Cancelled { tag: String },
    /// `channel.close`, which has been answered.
    ChannelClosed(String),
    /// `channel.close-ok`.
    ChannelCloseOk,
    /// `connection.close`, which has been answered, or the end of the stream.
    ConnectionClosed(String),
    /// Anything else.
    Other(String),
}

impl Event {
    /// What a method without content means.
    pub(crate) fn of(method: &Method<'_>) -> Self {
        match method {
            Method::BasicCancelOk(ok) if ok.consumer_tag.starts_with(SYNC) => {
                Self::Synced(ok.consumer_tag.to_owned())
            }
            Method::QueueDeclareOk(ok) => Self::Declared {
                queue: ok.queue.to_owned(),
                messages: ok.message_count,
                consumers: ok.consumer_count,
            },
            Method::BasicConsumeOk(ok) => Self::Consuming { tag: ok.consumer_tag.to_owned() },
            Method::BasicAck(ack) => {
                Self::Confirmed { tag: ack.delivery_tag, multiple: ack.multiple, nack: false }
            }
            Method::BasicNack(nack) => {
                Self::Confirmed { tag: nack.delivery_tag, multiple: nack.multiple, nack: true }
            }
            Method::ChannelClose(channel::Close { reply_code, reply_text, class_id, method_id }) => {
                Self::ChannelClosed(format!(
                    "channel.close {reply_code} {reply_text} (method {class_id}.{method_id})"
                ))
            }
            Method::ChannelCloseOk(_) => Self::ChannelCloseOk,
            Method::ConnectionClose(connection::Close { reply_code, reply_text, class_id, method_id }) => {
                Self::ConnectionClosed(format!(
                    "connection.close {reply_code} {reply_text} (method {class_id}.{method_id})"
                ))
            }
            Method::BasicCancel(cancel) => Self::Cancelled { tag: cancel.consumer_tag.to_owned() },
            Method::BasicCancelOk(ok) => Self::Other(format!("basic.cancel-ok {}", ok.consumer_tag)),
            Method::QueuePurgeOk(ok) => Self::Other(format!("queue.purge-ok {}", ok.message_count)),
            Method::QueueDeleteOk(ok) => Self::Other(format!("queue.delete-ok {}", ok.message_count)),
            other => Self::Other(other.name().to_owned()),
        }
    }

    /// What a method with content means.
    pub(crate) fn of_content(method: &Method<'_>, header: &ContentHeader<'_>, body: &[u8]) -> Self {
        let message = |exchange: &str, key: &str| {
            let body = String::from_utf8_lossy(body);
            format!("{body} (exchange '{exchange}', key '{key}'){}", properties(header.properties))
        };
        match *method {
            Method::BasicDeliver(basic::Deliver {
                consumer_tag,
                delivery_tag,
                redelivered,
                exchange,
                routing_key,
            }) => Self::Delivered {
                consumer: consumer_tag.to_owned(),
                tag: delivery_tag,
                text: message(exchange, routing_key) + again(redelivered),
            },
            Method::BasicGetOk(basic::GetOk {
                delivery_tag,
                redelivered,
                exchange,
                routing_key,
                message_count,
            }) => Self::Got {
                tag: delivery_tag,
                text: format!(
                    "{}{}, {message_count} left",
                    message(exchange, routing_key),
                    again(redelivered)
                ),
            },
            Method::BasicReturn(basic::Return { reply_code, reply_text, exchange, routing_key }) => {
                Self::Returned {
                    text: format!("{reply_code} {reply_text}: {}", message(exchange, routing_key)),
                }
            }
            ref other => Self::Other(format!("{} with content", other.name())),
        }
    }
}

/// How the consumer tags of round trips start.
pub(crate) const SYNC: &str = "round-trip-";

fn again(redelivered: bool) -> &'static str {
    if redelivered { ", redelivered" } else { "" }
}

/// All properties that are present, as text.
fn properties(bytes: &[u8]) -> String {
    let Ok(p) = Properties::decode(bytes) else { return format!(" malformed properties {bytes:?}") };
    let mut text = String::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text += &format!(" {name}={value}");
        }
    };
    add("content_type", p.content_type.map(str::to_owned));
    add("content_encoding", p.content_encoding.map(str::to_owned));
    add("headers", p.headers.map(|headers| table(&headers.decode())));
    add("delivery_mode", p.delivery_mode.map(|n| n.to_string()));
    add("priority", p.priority.map(|n| n.to_string()));
    add("correlation_id", p.correlation_id.map(|id| format!("{id:?}")));
    add("reply_to", p.reply_to.map(str::to_owned));
    add("expiration", p.expiration.map(str::to_owned));
    add("message_id", p.message_id.map(|id| format!("{id:?}")));
    add("timestamp", p.timestamp.map(|n| n.to_string()));
    add("type", p.kind.map(str::to_owned));
    add("user_id", p.user_id.map(str::to_owned));
    add("app_id", p.app_id.map(str::to_owned));
    add("cluster_id", p.cluster_id.map(str::to_owned));
    text
}

/// A table with its entries in alphabetical order, for the order of a table's entries means nothing.
fn table(table: &FieldTable) -> String {
    let mut entries: Vec<String> = table.iter().map(|(key, v)| format!("{key}: {}", value(v))).collect();
    entries.sort();
    format!("{{{}}}", entries.join(", "))
}

fn value(value: &FieldValue) -> String {
    match value {
        FieldValue::LongString(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
        FieldValue::Table(inner) => table(inner),
        FieldValue::Array(items) => {
            format!("[{}]", items.iter().map(self::value).collect::<Vec<_>>().join(", "))
        }
        // The moment of a death differs from run to run.
        FieldValue::Timestamp(_) => "timestamp".to_owned(),
        FieldValue::Void => "void".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_read_the_same_in_any_order_and_at_any_time() {
        let one: FieldTable =
            [("b", FieldValue::Timestamp(1)), ("a", FieldValue::text("x"))].into_iter().collect();
        let other: FieldTable =
            [("a", FieldValue::text("x")), ("b", FieldValue::Timestamp(2))].into_iter().collect();
        assert_eq!(table(&one), table(&other));
        assert_eq!(table(&one), "{a: 'x', b: timestamp}");
    }

    #[test]
    fn round_trip_cancels_are_distinguished_from_the_programs() {
        let ok = |tag| Event::of(&basic::CancelOk { consumer_tag: tag }.into());
        assert_eq!(ok("round-trip-7"), Event::Synced("round-trip-7".into()));
        assert_eq!(ok("t0"), Event::Other("basic.cancel-ok t0".into()));
    }
}
