//! Direct reply-to: replies that go straight to the requester (RabbitMQ, "Direct Reply-to").
//!
//! A requester consumes from [`REPLY_QUEUE`] and gets a queue of its own, which is not in the topology: it cannot be
//! declared, bound, read or deleted, and publishing to it requires its name, which contains 128 random bits. It buffers the
//! replies that the requester's connection has no capacity for.

use std::sync::Arc;

use amqp::{FieldTable, Properties};
use hashbrown::HashMap;
use sync::{Rank, RwLock};

use crate::arguments::{Overflow, QueueArguments};
use crate::error::BrokerError;
use crate::names::{generated_name, is_generated};
use crate::queue::{NewQueue, Queue, QueueProperties};
use crate::vhost::VirtualHost;

/// The name that requesters consume from, and set as the property reply_to of their requests.
pub const REPLY_QUEUE: &str = "amq.rabbitmq.reply-to";

/// The reply queues of a virtual host, by name.
pub(crate) type ReplyQueues = RwLock<HashMap<Arc<str>, Arc<Queue>>, { Rank::Leaf as u8 }>;

impl VirtualHost {
    /// Creates a reply queue for one consumer, which the caller registers with it (with `no_ack`). The caller
    /// closes it with [`VirtualHost::close_replies`].
    pub fn open_replies(&self) -> Arc<Queue> {
        let name: Arc<str> = generated_name(REPLY_PREFIX).into();
        let queue = Queue::new(NewQueue {
            name: name.clone(),
            context: self.reply_context(),
            properties: QueueProperties {
                durable: false,
                auto_delete: false,
                owner: None,
                arguments: FieldTable::new(),
                type_name: None,
                capacity: None,
            },
            arguments: QueueArguments {
                max_length: Some(MAX_REPLIES),
                max_length_bytes: Some(MAX_REPLY_BYTES),
                overflow: Overflow::RejectPublish,
                ..QueueArguments::default()
            },
            number: None,
            stored: None,
        });
        self.reply_queues().write().insert(name, queue.clone());
        queue
    }

    /// Removes a reply queue, after its consumer has been cancelled. Does nothing for other queues.
    pub fn close_replies(&self, queue: &Queue) {
        if self.reply_queues().write().remove(&**queue.name()).is_some() {
            // Only this function deletes it, and its messages have no other recipient.
            let _ = queue.delete(false, false);
        }
    }

    /// Whether a queue.declare, passive or not, succeeds for this name: [`REPLY_QUEUE`] itself, or an
    /// existing reply queue.
    pub fn has_replies(&self, name: &str) -> bool {
        name == REPLY_QUEUE || self.reply_queue(name).is_some()
    }

    pub(crate) fn reply_queue(&self, name: &str) -> Option<Arc<Queue>> {
        if !name.starts_with(REPLY_PREFIX) {
            return None;
        }
        self.reply_queues().read().get(name).cloned()
    }
}

/// Whether the name is [`REPLY_QUEUE`] or has the form of a reply queue's, whether or not that exists.
pub fn is_reply_name(name: &str) -> bool {
    name == REPLY_QUEUE || name.starts_with(REPLY_PREFIX)
}

/// Whether a reply queue may have had this name: RabbitMQ treats a message to a former reply queue as routed, and others as
/// unroutable.
pub(crate) fn may_have_been_reply_queue(name: &str) -> bool {
    name.strip_prefix(REPLY_PREFIX).is_some_and(is_generated)
}

/// The properties with [`REPLY_QUEUE`] replaced by the publisher's own reply queue; `None` if they need no
/// change.
///
/// # Errors
/// 406 when the publisher's channel has no reply queue; 502 malformed properties.
pub fn with_reply_queue(bytes: &[u8], own: Option<&str>) -> Result<Option<Vec<u8>>, BrokerError> {
    // Most messages have no reply_to, as two bytes show.
    let flags = bytes.first_chunk().map_or(0, |flags| u16::from_be_bytes(*flags));
    if flags & REPLY_TO_FLAG == 0 {
        return Ok(None);
    }
    let mut properties = Properties::decode(bytes).map_err(BrokerError::MalformedProperties)?;
    if properties.reply_to != Some(REPLY_QUEUE) {
        return Ok(None);
    }
    let own = own.ok_or_else(|| BrokerError::precondition("fast reply consumer does not exist"))?;
    properties.reply_to = Some(own);
    let mut rewritten = Vec::with_capacity(bytes.len() + own.len());
    properties.encode(&mut rewritten);
    Ok(Some(rewritten))
}

const REPLY_PREFIX: &str = "amq.rabbitmq.reply-to.";

/// The flag of the property reply_to in a content header.
const REPLY_TO_FLAG: u16 = 1 << 9;

/// The most bytes of replies that wait for a requester that does not read. RabbitMQ has no limit; here the replier receives
/// a basic.nack, if it uses confirms.
const MAX_REPLY_BYTES: u64 = 64 * 1024 * 1024;

/// The most such replies, since empty ones use memory too.
const MAX_REPLIES: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(properties: Properties<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        bytes
    }

    #[test]
    fn the_pseudo_queue_is_replaced_and_nothing_else() {
        let own = Some("amq.rabbitmq.reply-to.token");
        let request = encode(Properties::default().with_reply_to(REPLY_QUEUE).with_message_id("m".into()));
        let rewritten = with_reply_queue(&request, own).unwrap().unwrap();
        let properties = Properties::decode(&rewritten).unwrap();
        assert_eq!((properties.reply_to, properties.message_id), (own, Some("m".into())));
        for other in ["q", "", "amq.rabbitmq.reply-to.other"] {
            let bytes = encode(Properties::default().with_reply_to(other));
            assert_eq!(with_reply_queue(&bytes, None).unwrap(), None, "{other}");
        }
        assert_eq!(with_reply_queue(&encode(Properties::default()), None).unwrap(), None);
    }

    #[test]
    fn a_request_needs_a_consumer_for_its_reply() {
        let request = encode(Properties::default().with_reply_to(REPLY_QUEUE));
        let error = with_reply_queue(&request, None).unwrap_err();
        assert_eq!(error.to_string(), "fast reply consumer does not exist");
        assert_eq!(error.reply_code(), amqp::ReplyCode::PreconditionFailed);
    }
}
