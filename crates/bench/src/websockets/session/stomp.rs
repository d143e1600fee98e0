//! STOMP 1.2: a subscription to a topic with automatic acknowledgements.

use std::fmt::Write as _;
use std::time::Duration;

use super::{SessionEvent, WebSocketSession};
use crate::websockets::error::MemberError;
use crate::websockets::target::Target;

pub(super) struct StompSession {
    /// The first bytes to send.
    connect: String,
    destination: String,
}

impl StompSession {
    pub(super) fn new(target: &Target, topic: &str, heartbeat: Duration) -> Self {
        let Target { user, password, .. } = target;
        let millis = heartbeat.as_millis();
        let connect = format!(
            "CONNECT\naccept-version:1.2\nhost:/\nlogin:{user}\npasscode:{password}\nheart-beat:{millis},{millis}\n\n\0"
        );
        Self { connect, destination: format!("/topic/{topic}") }
    }
}

impl WebSocketSession for StompSession {
    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend(std::mem::take(&mut self.connect).into_bytes());
    }

    fn handle(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<SessionEvent>, MemberError> {
        loop {
            // Line ends between frames are heartbeats.
            let beats = input.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
            input.drain(..beats);
            // Bodies of this study contain no NUL.
            let Some(end) = input.iter().position(|byte| *byte == 0) else { return Ok(None) };
            let frame: Vec<u8> = input.drain(..=end).collect();
            let text = String::from_utf8_lossy(&frame[..end]);
            let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
            let destination = &self.destination;
            match head.lines().next() {
                Some("CONNECTED") => {
                    let subscribe = format!("SUBSCRIBE\nid:0\ndestination:{destination}\nreceipt:0\n\n\0");
                    out.extend(subscribe.into_bytes());
                }
                Some("RECEIPT") => return Ok(Some(SessionEvent::Subscribed)),
                Some("MESSAGE") => return Ok(Some(SessionEvent::Delivery(body.as_bytes().to_vec()))),
                _ => {
                    let message = head.lines().find_map(|line| line.strip_prefix("message:"));
                    return Err(match message {
                        Some(message) => MemberError::Refused(message.to_owned()),
                        None => MemberError::Unexpected("a frame that nothing asked for"),
                    });
                }
            }
        }
    }

    fn publish(&mut self, body: &[u8], out: &mut Vec<u8>) {
        let mut frame = String::new();
        // Writing to a String cannot fail.
        let _ = write!(frame, "SEND\ndestination:{}\ncontent-length:{}\n\n", self.destination, body.len());
        out.extend(frame.into_bytes());
        out.extend_from_slice(body);
        out.push(0);
    }

    fn heartbeat(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
    }
}
