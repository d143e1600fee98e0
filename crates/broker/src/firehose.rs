//! The firehose: what clients publish in a virtual host, and what its queues deliver, told to whoever binds a queue to the
//! exchange `amq.rabbitmq.trace` (RabbitMQ, "Firehose Tracer"; `rabbit_trace` of 3.10).
//!
//! A message that is traced is published there once more: its body, under the routing key `publish.EXCHANGE` or
//! `deliver.QUEUE`, with headers that say what it was and who published it or was given it. This goes the way of every publish,
//! in batches, charged to the turn of that client. What comes out of that exchange is not traced again, and dead letters are
//! traced when they are delivered only. A virtual host that is not traced pays one relaxed load for each publish, and one for
//! each batch of deliveries.

use std::sync::Arc;

use amqp::wire::truncate_to_short;
use amqp::{FieldTable, FieldValue, Properties, RawTable};
use sync::work;

use crate::message::{Body, BodyView};
use crate::publisher::{Flushed, Publish, Publisher};
use crate::queue::{Delivery, Queue};
use crate::replies::is_reply_name;
use crate::time::Timestamp;
use crate::users::Identity;
use crate::vhost::VirtualHost;

/// The exchange that traced messages are published to.
pub(crate) const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// A client's connection, as the firehose tells of it.
pub trait TracedConnection: Send + Sync {
    /// Its name, as operators see it. Asked only while its virtual host is traced.
    fn name(&self) -> String;
}

/// Publishes to the firehose what one connection publishes and is given.
pub struct Tracer {
    publisher: Publisher,
    node: Arc<str>,
    vhost: Arc<VirtualHost>,
    user: Box<str>,
    connection: Box<str>,
}

/// A message that a client has published or was given.
pub(crate) struct Event<'a> {
    /// The number of the client's channel.
    pub(crate) channel: u16,
    /// The exchange it was published to.
    pub(crate) exchange: &'a str,
    /// Its routing key, then those of CC and BCC.
    pub(crate) routing_keys: &'a [&'a str],
    /// Without BCC.
    pub(crate) properties: &'a [u8],
    pub(crate) body: Body<'a>,
    pub(crate) kind: EventKind<'a>,
}

pub(crate) enum EventKind<'a> {
    Publish {
        /// The queues it goes to, sorted.
        routed_queues: &'a [&'a str],
    },
    Deliver {
        queue: &'a str,
        redelivered: bool,
    },
}

impl Tracer {
    pub(crate) fn new(
        vhost: &Arc<VirtualHost>,
        identity: &Identity,
        connection: Option<&dyn TracedConnection>,
    ) -> Self {
        Self {
            publisher: Publisher::of_traces(vhost, identity),
            node: vhost.node().clone(),
            vhost: vhost.clone(),
            user: identity.user().into(),
            connection: connection.map(|connection| connection.name()).unwrap_or_default().into(),
        }
    }

    /// Whether the firehose tells of a delivery: not of what comes out of it itself, nor of replies to a requester, which come
    /// from no queue (RabbitMQ, "Direct Reply-to").
    pub fn tells_of(queue: &Queue, delivery: &Delivery) -> bool {
        delivery.message().exchange() != TRACE_EXCHANGE && !is_reply_name(queue.name())
    }

    /// A queue has given the client a message, for basic.get or as a delivery to a consumer.
    pub fn delivered(
        &mut self,
        channel: u16,
        queue: &Queue,
        delivery: &Delivery,
        by_get: bool,
        now: Timestamp,
    ) {
        let message = delivery.message();
        if !Self::tells_of(queue, delivery) {
            return;
        }
        let properties = delivery.properties(queue.kind(), by_get);
        let decoded = Properties::decode(&properties).unwrap_or_default();
        let mut routing_keys = vec![message.routing_key()];
        routing_keys.extend(crate::dead_letter::copies(&decoded));
        routing_keys.extend(message.blind_copies());
        let event = Event {
            channel,
            exchange: message.exchange(),
            routing_keys: &routing_keys,
            properties: &properties,
            body: match message.body() {
                BodyView::Inline(bytes) => Body::Copied(bytes),
                BodyView::Chunks(chunks) => Body::Chunks(chunks),
            },
            kind: EventKind::Deliver { queue: queue.name(), redelivered: delivery.redelivered() },
        };
        self.publish(&event, now);
    }

    /// Publishes what tells of a message. It waits in a batch until [`Tracer::flush`].
    pub(crate) fn publish(&mut self, event: &Event<'_>, now: Timestamp) {
        work::charge(TRACE, 1);
        let (prefix, name) = match event.kind {
            EventKind::Publish { .. } => ("publish.", event.exchange),
            EventKind::Deliver { queue, .. } => ("deliver.", queue),
        };
        let routing_key = format!("{prefix}{name}");
        let properties = self.properties_about(event);
        let publish = Publish {
            exchange: TRACE_EXCHANGE,
            // RabbitMQ ends the connection when a name leaves no room for what stands before it.
            routing_key: truncate_to_short(&routing_key),
            properties: &properties,
            body: event.body,
        };
        // Refused only once the virtual host has been deleted, and the exchange with it.
        let _ = self.publisher.publish(publish, now);
    }

    /// Hands over what has gathered: see [`Publisher::flush`]. Of the report only `full` and `unfinished` matter, for nobody
    /// waits for a confirm.
    pub fn flush(&mut self, now: Timestamp) -> Flushed {
        self.publisher.flush(now)
    }

    /// [`Tracer::flush`], however long it takes.
    pub fn flush_all(&mut self, now: Timestamp) -> Flushed {
        self.publisher.flush_all(now)
    }

    /// The same up to the end of the turn; whether all queues have theirs.
    pub(crate) fn hand_over(&mut self) -> bool {
        self.publisher.hand_over()
    }

    /// Encodes the properties of the message that tells of `event`. They have to fit into one frame: a message with very many
    /// queues tells of the first of them, and one whose own headers are too large, or nested too deeply, leaves those out.
    fn properties_about(&self, event: &Event<'_>) -> Vec<u8> {
        let properties = Properties::decode(event.properties).unwrap_or_default();
        let whole = self.headers_about(event, &properties).encode();
        let headers = match RawTable::check(&whole) {
            Ok(_) if whole.len() <= MAX_HEADERS => whole,
            _ => self.headers_about(event, &Properties { headers: None, ..properties }).encode(),
        };
        let mut encoded = Vec::new();
        Properties { headers: RawTable::check(&headers).ok(), ..Properties::default() }.encode(&mut encoded);
        encoded
    }

    /// In RabbitMQ's order.
    fn headers_about(&self, event: &Event<'_>, properties: &Properties<'_>) -> FieldTable {
        let text = |text: &str| FieldValue::text(text);
        let number = |number: u16| FieldValue::I32(number.into());
        let mut headers = vec![
            ("exchange_name", text(event.exchange)),
            ("routing_keys", texts(event.routing_keys)),
            ("properties", FieldValue::Table(table_of(properties))),
            ("node", text(&self.node)),
        ];
        if let EventKind::Deliver { redelivered, .. } = event.kind {
            headers.push(("redelivered", number(redelivered.into())));
        }
        headers.extend([
            ("vhost", text(self.vhost.name())),
            ("connection", text(&self.connection)),
            ("channel", number(event.channel)),
            ("user", text(&self.user)),
        ]);
        if let EventKind::Publish { routed_queues } = event.kind {
            headers.push(("routed_queues", texts(routed_queues)));
        }
        headers.into_iter().collect()
    }
}

/// As many texts as there is room for.
fn texts(texts: &[&str]) -> FieldValue {
    let mut bytes = 0;
    let fitting = texts.iter().take_while(|text| {
        // A letter and a length stand before each.
        bytes += text.len() + 5;
        bytes <= MAX_NAMES
    });
    FieldValue::Array(fitting.map(|text| FieldValue::text(*text)).collect())
}

/// Properties as a table, the last one first, and numbers as signed ones of 32 bits, as RabbitMQ has them. Only of a timestamp
/// that needs more it keeps the lower 32 bits; here it has 64.
fn table_of(properties: &Properties<'_>) -> FieldTable {
    let text = |text: Option<&str>| text.map(FieldValue::text);
    let bytes = |bytes: Option<&[u8]>| bytes.map(|bytes| FieldValue::LongString(bytes.to_vec()));
    let number = |number: Option<u8>| number.map(|number| FieldValue::I32(number.into()));
    let timestamp = properties.timestamp.map(|seconds| match i32::try_from(seconds) {
        Ok(seconds) => FieldValue::I32(seconds),
        Err(_) => FieldValue::I64(seconds as i64),
    });
    let entries = [
        ("cluster_id", text(properties.cluster_id)),
        ("app_id", text(properties.app_id)),
        ("user_id", text(properties.user_id)),
        ("type", text(properties.kind)),
        ("timestamp", timestamp),
        ("message_id", bytes(properties.message_id.map(|id| id.0))),
        ("expiration", text(properties.expiration)),
        ("reply_to", text(properties.reply_to)),
        ("correlation_id", bytes(properties.correlation_id.map(|id| id.0))),
        ("priority", number(properties.priority)),
        ("delivery_mode", number(properties.delivery_mode)),
        ("headers", properties.headers.map(|headers| FieldValue::Table(headers.decode()))),
        ("content_encoding", text(properties.content_encoding)),
        ("content_type", text(properties.content_type)),
    ];
    entries.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// What it takes to write the headers of a traced message, in nanoseconds.
const TRACE: u32 = 2_000;

/// Bytes of headers: those of a frame of the size that servers offer, less what else stands in it.
const MAX_HEADERS: usize = 128 * 1024 - 64;

/// Bytes of the names of queues in the headers, and as many of routing keys, so that there is room for the rest.
const MAX_NAMES: usize = 32 * 1024;

#[cfg(test)]
mod tests;
