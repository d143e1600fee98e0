//! Messages of open transactions.

use amqp::Properties;
use broker::{Body, Publish};
use bytes::Bytes;
use stomp::StompFault;

/// The maximum of bytes in a connection's open transactions. They are in memory until commit, which a client may never
/// send. Enough for several messages of the default maximum size, as for AMQP.
const MAX_TRANSACTION_BYTES: usize = 128 * 1024 * 1024;

/// A message that waits for COMMIT.
pub(super) struct TransactionMessage {
    exchange: Box<str>,
    routing_key: Box<str>,
    properties: Box<[u8]>,
    body: [Bytes; 1],
    pub(super) receipt: Option<Box<str>>,
}

impl TransactionMessage {
    /// Copies a message, whose receipt is due when the transaction is committed.
    pub(super) fn new(message: &Publish<'_>, receipt: Option<&str>) -> Self {
        let body = match message.body {
            Body::Copied(bytes) => Bytes::copy_from_slice(bytes),
            Body::Chunks([chunk]) => chunk.clone(),
            Body::Chunks(chunks) => Bytes::from(chunks.concat()),
        };
        Self {
            exchange: message.exchange.into(),
            routing_key: message.routing_key.into(),
            properties: message.properties.into(),
            body: [body],
            receipt: receipt.map(Into::into),
        }
    }

    pub(super) fn message(&self) -> Publish<'_> {
        Publish {
            exchange: &self.exchange,
            routing_key: &self.routing_key,
            properties: &self.properties,
            body: Body::Chunks(&self.body),
        }
    }

    /// Replaces the reply address.
    pub(super) fn set_reply_to(&mut self, queue: &str) {
        let properties = Properties::decode(&self.properties).unwrap_or_default().with_reply_to(queue);
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        self.properties = encoded.into();
    }

    /// Bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let receipt = self.receipt.as_ref().map_or(0, |receipt| receipt.len());
        size_of::<Self>()
            + self.exchange.len()
            + self.routing_key.len()
            + self.properties.len()
            + self.body[0].len()
            + receipt
    }
}

/// Refuses a total of open transactions above [`MAX_TRANSACTION_BYTES`].
pub(super) fn check_bytes(bytes: usize) -> Result<(), StompFault> {
    if bytes <= MAX_TRANSACTION_BYTES {
        return Ok(());
    }
    let detail = format!("The transactions of a connection may hold {MAX_TRANSACTION_BYTES} bytes at most\n");
    Err(StompFault::new("Transaction too large", detail))
}
