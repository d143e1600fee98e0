//! MQTT 3.1.1: a clean session, one subscription with QoS 0, publishes with QoS 0.

use std::time::Duration;

use super::{SessionEvent, WebSocketSession};
use crate::websockets::error::MemberError;
use crate::websockets::target::Target;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;
const PINGREQ: [u8; 2] = [0xc0, 0];

/// User name, password and clean session.
const CONNECT_FLAGS: u8 = 0b1100_0010;
/// Level of the protocol: 3.1.1.
const LEVEL: u8 = 4;
const PACKET_ID: [u8; 2] = [0, 1];
/// Most bytes of a remaining length (2.2.3).
const MAX_LENGTH_BYTES: usize = 4;

pub(super) struct MqttSession {
    /// The first bytes to send.
    connect: Vec<u8>,
    topic: String,
}

impl MqttSession {
    pub(super) fn new(target: &Target, client_id: &str, topic: &str, heartbeat: Duration) -> Self {
        let keep_alive = u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX);
        let mut content = Vec::new();
        string("MQTT", &mut content);
        content.extend([LEVEL, CONNECT_FLAGS]);
        content.extend(keep_alive.to_be_bytes());
        for text in [client_id, &target.user, &target.password] {
            string(text, &mut content);
        }
        let mut connect = Vec::new();
        packet(CONNECT, &content, &mut connect);
        Self { connect, topic: topic.to_owned() }
    }
}

impl WebSocketSession for MqttSession {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.append(&mut std::mem::take(&mut self.connect));
    }

    fn handle(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<SessionEvent>, MemberError> {
        while let Some((content_at, end)) = extent(input)? {
            let content = &input[content_at..end];
            let met = match (input[0], content) {
                (CONNACK, [_, 0]) => {
                    let mut subscribe = PACKET_ID.to_vec();
                    string(&self.topic, &mut subscribe);
                    subscribe.push(0);
                    packet(SUBSCRIBE, &subscribe, out);
                    None
                }
                (CONNACK, [_, code]) => return Err(MemberError::MqttLogin(*code)),
                (SUBACK, [_, _, 0]) => Some(SessionEvent::Subscribed),
                (SUBACK, _) => return Err(MemberError::Unexpected("the subscription was refused")),
                (PUBLISH, [high, low, rest @ ..]) => {
                    let topic = usize::from(u16::from_be_bytes([*high, *low]));
                    Some(SessionEvent::Delivery(rest.get(topic..).unwrap_or_default().to_vec()))
                }
                _ => None,
            };
            input.drain(..end);
            if met.is_some() {
                return Ok(met);
            }
        }
        Ok(None)
    }

    fn publish(&mut self, body: &[u8], out: &mut Vec<u8>) {
        let mut content = Vec::new();
        string(&self.topic, &mut content);
        content.extend_from_slice(body);
        packet(PUBLISH, &content, out);
    }

    fn heartbeat(&mut self, out: &mut Vec<u8>) {
        out.extend(PINGREQ);
    }
}

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn packet(first: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    let mut length = content.len();
    loop {
        let byte = (length % 128) as u8;
        length /= 128;
        out.push(byte | if length > 0 { 0x80 } else { 0 });
        if length == 0 {
            break;
        }
    }
    out.extend_from_slice(content);
}

/// The bounds of the content of the first packet, if it is complete.
fn extent(input: &[u8]) -> Result<Option<(usize, usize)>, MemberError> {
    let mut length = 0;
    for at in 0..MAX_LENGTH_BYTES {
        let Some(&byte) = input.get(1 + at) else { return Ok(None) };
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            let begin = 2 + at;
            return Ok((input.len() >= begin + length).then_some((begin, begin + length)));
        }
    }
    Err(MemberError::Unexpected("a packet's length of more than four bytes"))
}
