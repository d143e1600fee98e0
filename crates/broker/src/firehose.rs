//! The firehose: publishes a copy of the messages that clients publish in a virtual host and that its queues
//! deliver, for the queues bound to the exchange `amq.rabbitmq.trace` (RabbitMQ, "Firehose Tracer";
//! `rabbit_trace` of 3.10).
//!
//! A traced message is published to that exchange once more: its body, with the routing key
//! `publish.EXCHANGE` or `deliver.QUEUE`, and with headers that describe it and the client that published or
//! received it. This takes the path of every publish, in batches, and is charged to the turn of that client.
//! Messages from that exchange are not traced again, and dead letters are traced only when they are
//! delivered. A virtual host that is not traced pays one relaxed load for each publish, and one for each
//! batch of deliveries.

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

/// A client's connection, as the firehose describes it.
pub trait TracedConnection: Send + Sync {
    /// Its name, as operators see it. Called only while its virtual host is traced.
    fn name(&self) -> String;
}

/// Publishes to the firehose the messages that one connection publishes and receives.
pub struct Tracer {
    publisher: Publisher,
    node: Arc<str>,
    vhost: Arc<VirtualHost>,
    user: Box<str>,
    connection: Box<str>,
}

/// A message that a client has published or received.
pub(crate) struct TracedEvent<'a> {
    /// The number of the client's channel.
    pub(crate) channel: u16,
    /// The exchange it was published to.
    pub(crate) exchange: &'a str,
    /// Its routing key, then those of CC and BCC.
    pub(crate) routing_keys: &'a [&'a str],
    /// The properties, without BCC.
    pub(crate) properties: &'a [u8],
    pub(crate) body: Body<'a>,
    pub(crate) kind: EventKind<'a>,
}

pub(crate) enum EventKind<'a> {
    Publish {
        /// The queues it is routed to, sorted.
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

    /// Whether the firehose reports a delivery: neither those of its own messages, nor direct replies, which come from no
    /// queue (RabbitMQ, "Direct Reply-to").
    pub fn reports(queue: &Queue, delivery: &Delivery) -> bool {
        delivery.message().exchange() != TRACE_EXCHANGE && !is_reply_name(queue.name())
    }

    /// Reports a message that a queue has given to the client, by basic.get or as a delivery to a consumer.
    pub fn delivered(
        &mut self,
        channel: u16,
        queue: &Queue,
        delivery: &Delivery,
        by_get: bool,
        now: Timestamp,
    ) {
        let message = delivery.message();
        if !Self::reports(queue, delivery) {
            return;
        }
        let properties = delivery.properties(queue, by_get);
        let decoded = Properties::decode(&properties).unwrap_or_default();
        let mut routing_keys = vec![message.routing_key()];
        routing_keys.extend(crate::dead_letter::copies(&decoded));
        routing_keys.extend(message.blind_copies());
        let event = TracedEvent {
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

    /// Publishes the report of a message. It stays in a batch until [`Tracer::flush`].
    pub(crate) fn publish(&mut self, event: &TracedEvent<'_>, now: Timestamp) {
        work::charge(TRACE, 1);
        let (prefix, name) = match event.kind {
            EventKind::Publish { .. } => ("publish.", event.exchange),
            EventKind::Deliver { queue, .. } => ("deliver.", queue),
        };
        let routing_key = format!("{prefix}{name}");
        let properties = self.properties_about(event);
        let publish = Publish {
            exchange: TRACE_EXCHANGE,
            // RabbitMQ ends the connection when a name is so long that the prefix does not fit.
            routing_key: truncate_to_short(&routing_key),
            properties: &properties,
            body: event.body,
        };
        // Fails only if the virtual host, and the exchange with it, has been deleted.
        let _ = self.publisher.publish(publish, now);
    }

    /// Flushes the batch: see [`Publisher::flush`]. Only `full` and `unfinished` of the result matter, since no confirm is
    /// pending.
    pub fn flush(&mut self, now: Timestamp) -> Flushed {
        self.publisher.flush(now)
    }

    /// [`Tracer::flush`], regardless of how long it takes.
    pub fn flush_all(&mut self, now: Timestamp) -> Flushed {
        self.publisher.flush_all(now)
    }

    /// Like [`Tracer::flush`], until the end of the turn; returns whether all queues have their messages.
    pub(crate) fn hand_over(&mut self) -> bool {
        self.publisher.hand_over()
    }

    /// Encodes the properties of the message that reports `event`. They have to fit into one frame: of very many queues
    /// only the first are listed, and the event's own headers are omitted if they are too large or nested too deeply.
    fn properties_about(&self, event: &TracedEvent<'_>) -> Vec<u8> {
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

    /// The headers, in RabbitMQ's order.
    fn headers_about(&self, event: &TracedEvent<'_>, properties: &Properties<'_>) -> FieldTable {
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

/// The first of the texts, up to the limit in bytes.
fn texts(texts: &[&str]) -> FieldValue {
    let mut bytes = 0;
    let fitting = texts.iter().take_while(|text| {
        // Each is preceded by a type letter and a length.
        bytes += text.len() + 5;
        bytes <= MAX_NAMES
    });
    FieldValue::Array(fitting.map(|text| FieldValue::text(*text)).collect())
}

/// Properties as a table, the last one first, and numbers as signed 32-bit integers, as in RabbitMQ. A
/// timestamp that needs more bits has 64 here; RabbitMQ keeps only its lower 32.
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

/// Nanoseconds charged for writing the headers of a traced message.
const TRACE: u32 = 2_000;

/// Most bytes of headers: a frame of the size that servers offer, less the rest of its contents.
const MAX_HEADERS: usize = 128 * 1024 - 64;

/// Most bytes of queue names in the headers, and also of routing keys, so that the rest fits too.
const MAX_NAMES: usize = 32 * 1024;

#[cfg(test)]
mod tests;
