//! The steps of a SEND before its message is published, for every backend.

use std::borrow::Cow;

use broker::Body;
use stomp::destination::Destination;
use stomp::{FrameBody, Headers, StompFault};

use super::destinations::{not_for, parse};
use super::properties::{check_length, to_amqp};
use crate::server::ServerConfig;

/// A SEND with a destination to which messages can be sent.
pub(super) struct SendRequest<'a, 'h> {
    pub(super) destination: Destination<'a>,
    headers: &'a Headers<'h>,
    /// The name of the temporary reply queue, if there is to be one. RabbitMQ passes on any other destination; here plain
    /// names are passed on as well.
    pub(super) reply_name: Option<Cow<'a, str>>,
}

impl<'a, 'h> SendRequest<'a, 'h> {
    pub(super) fn parse(destination: &'a str, headers: &'a Headers<'h>) -> Result<Self, StompFault> {
        let parsed = parse(destination)?;
        if let Destination::TempQueue(_) = parsed {
            return Err(not_for(destination, "SEND"));
        }
        let reply_name = match headers.get("reply-to").map(Destination::parse) {
            Some(Ok(Destination::TempQueue(name))) => Some(name),
            _ => None,
        };
        Ok(Self { destination: parsed, headers, reply_name })
    }

    /// Encodes the message's AMQP properties. `reply_to` is the queue for replies, if it exists.
    pub(super) fn properties(
        &self,
        reply_to: Option<&str>,
        config: &ServerConfig,
    ) -> Result<Vec<u8>, StompFault> {
        let properties = to_amqp(self.headers, reply_to)?;
        check_length(&properties, config.most_properties())?;
        Ok(properties)
    }
}

/// The body of a frame as one of a message.
pub(super) fn message_body<'a>(body: &'a FrameBody<'_>) -> Body<'a> {
    match body {
        FrameBody::Borrowed(bytes) => Body::Copied(bytes),
        FrameBody::Owned(bytes) => Body::Chunks(std::slice::from_ref(bytes)),
    }
}
