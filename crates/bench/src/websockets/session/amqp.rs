//! AMQP 0-9-1: a channel, an exclusive queue, a consumer without acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use amqp::frame::{HEARTBEAT, write_body, write_content_header, write_method};
use amqp::handshake::{Capabilities, ClientEvent, ClientHandshake, ClientOffer};
use amqp::method::{basic, channel, queue};
use amqp::properties::NO_PROPERTIES;
use amqp::sasl::Credentials;
use amqp::{FieldTable, FieldValue, Frame, FrameKind, Method};

use super::{SessionEvent, WebSocketSession};
use crate::client::{check_close, expect_method};
use crate::error::ClientError;
use crate::websockets::error::MemberError;
use crate::websockets::target::Target;

/// The largest frame that is requested, as clients in browsers do.
const FRAME_MAX: u32 = 8192;

const CHANNEL: u16 = 1;

pub(super) struct AmqpSession {
    /// `None` once the connection is open.
    handshake: Option<Box<ClientHandshake>>,
    /// The queue's name, chosen by the server.
    queue: String,
}

impl AmqpSession {
    pub(super) fn new(target: &Target, heartbeat: Duration) -> Self {
        let mut client_properties: FieldTable =
            [("product", FieldValue::text("Leveret bench"))].into_iter().collect();
        Capabilities { authentication_failure_close: true, ..Capabilities::default() }
            .add_to(&mut client_properties);
        let handshake = ClientHandshake::new(ClientOffer {
            credentials: Arc::new(Credentials::plain(&target.user, target.password.as_bytes())),
            virtual_host: "/".into(),
            client_properties,
            channel_max: 0,
            frame_max: FRAME_MAX,
            heartbeat: u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX),
        });
        Self { handshake: Some(Box::new(handshake)), queue: String::new() }
    }

    /// Continues the handshake; returns whether it consumed anything.
    fn open(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<bool, MemberError> {
        let Some(handshake) = &mut self.handshake else { return Ok(false) };
        let taken = handshake.handle_input(input);
        input.drain(..taken);
        handshake.poll_output(out);
        match handshake.poll_event() {
            None => {}
            Some(ClientEvent::Opened(_)) => {
                self.handshake = None;
                write_method(out, CHANNEL, channel::Open::default());
            }
            Some(ClientEvent::Refused(close)) => return Err(MemberError::Refused(close.to_string())),
            Some(ClientEvent::Failed(failure)) => return Err(MemberError::Login(failure)),
            Some(ClientEvent::Challenge(_)) => {
                return Err(MemberError::Unexpected("PLAIN was answered with a challenge"));
            }
        }
        Ok(taken > 0)
    }

    /// Answers a step of the set-up with the next request.
    fn next_step(&mut self, method: &Method<'_>, out: &mut Vec<u8>) -> Option<SessionEvent> {
        match method {
            Method::ChannelOpenOk(_) => {
                let declare = queue::Declare { exclusive: true, auto_delete: true, ..Default::default() };
                write_method(out, CHANNEL, declare);
            }
            Method::QueueDeclareOk(queue::DeclareOk { queue, .. }) => {
                self.queue = (*queue).to_owned();
                let consume = basic::Consume { queue: &self.queue, no_ack: true, ..Default::default() };
                write_method(out, CHANNEL, consume);
            }
            Method::BasicConsumeOk(_) => return Some(SessionEvent::Subscribed),
            _ => {}
        }
        None
    }
}

impl WebSocketSession for AmqpSession {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(handshake) = &mut self.handshake {
            handshake.poll_output(out);
        }
    }

    fn handle(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<SessionEvent>, MemberError> {
        while self.handshake.is_some() {
            if !self.open(input, out)? {
                return Ok(None);
            }
        }
        while let Some(frame) = Frame::parse(input, FRAME_MAX).map_err(ClientError::from)? {
            let met = match frame.kind {
                // Bodies are small: one frame.
                FrameKind::Body => Some(SessionEvent::Delivery(frame.payload.to_vec())),
                FrameKind::Method => {
                    let method = expect_method(&frame)?;
                    check_close(&method)?;
                    self.next_step(&method, out)
                }
                FrameKind::Header | FrameKind::Heartbeat => None,
            };
            let len = frame.wire_len();
            input.drain(..len);
            if met.is_some() {
                return Ok(met);
            }
        }
        Ok(None)
    }

    fn publish(&mut self, body: &[u8], out: &mut Vec<u8>) {
        write_method(out, CHANNEL, basic::Publish { routing_key: &self.queue, ..Default::default() });
        write_content_header(out, CHANNEL, body.len() as u64, NO_PROPERTIES);
        write_body(out, CHANNEL, body);
    }

    fn heartbeat(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&HEARTBEAT);
    }
}
