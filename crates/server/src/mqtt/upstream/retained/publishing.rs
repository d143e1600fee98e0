//! A session's retained publishes.

use amqp::{FieldTable, FieldValue, Properties, RawTable};

use super::log::LogClient;
use super::record::second_key;
use crate::mqtt::message::Incoming;
use crate::mqtt::session::Refusal;

/// Further routing keys by which a message reaches Leveret's own queues, with the headers that these queues need. The
/// keys go into the BCC header, which RabbitMQ removes.
#[derive(Debug, Default)]
pub(in super::super) struct BlindCopies {
    keys: Vec<String>,
    headers: FieldTable,
}

impl BlindCopies {
    /// Adds a routing key, and a header for the queue that it is for.
    pub(in super::super) fn add(&mut self, key: String, (name, value): (&str, FieldValue)) {
        self.keys.push(key);
        self.headers.insert(name, value);
    }

    /// Adds them to a message's properties (flags and list).
    pub(in super::super) fn apply(self, properties: Vec<u8>) -> Vec<u8> {
        let Self { keys, headers: added } = self;
        let Ok(mut amqp) = Properties::decode(&properties) else { return properties };
        if keys.is_empty() {
            return properties;
        }
        let mut headers = amqp.headers.map(|headers| headers.decode()).unwrap_or_default();
        for (name, value) in added.iter() {
            headers.remove(name);
            headers.insert(name, value.clone());
        }
        headers.insert("BCC", FieldValue::Array(keys.into_iter().map(FieldValue::text).collect()));
        let headers = headers.encode();
        amqp.headers = RawTable::check(&headers).ok();
        let mut extended = Vec::new();
        amqp.encode(&mut extended);
        extended
    }
}

impl LogClient {
    /// Adds the copy of a message for the log.
    ///
    /// # Errors
    /// The limit of retained messages is reached.
    pub(in super::super) fn retain(
        &self,
        message: &Incoming<'_>,
        routing_key: &str,
        payload: usize,
        copies: &mut BlindCopies,
    ) -> Result<(), Refusal> {
        self.check(routing_key, message.properties.bytes(), payload)?;
        copies.add(second_key(routing_key), self.header(message));
        Ok(())
    }
}
