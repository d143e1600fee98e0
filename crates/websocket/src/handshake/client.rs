//! The client's side: the request, and the validation of its answer (RFC 6455, 4.1).

use super::head::{MAX_HEAD, MAX_HEADERS};
use super::key;
use super::server::is_token;

/// A client's upgrade request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientRequest {
    /// The host, with its port unless that is the default one.
    pub host: String,
    /// The path and query: `/ws/amqp`.
    pub target: String,
    /// The origin of the connecting page; only browsers have one.
    pub origin: Option<String>,
    /// The subprotocols offered, in order of preference.
    pub protocols: Vec<String>,
    /// Random bytes, new for each request.
    pub nonce: [u8; 16],
}

/// The server has upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgraded {
    /// The selected subprotocol, one of those offered.
    pub protocol: Option<String>,
    /// Bytes of the answer; frames follow.
    pub len: usize,
}

/// The server has not upgraded.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum UpgradeError {
    /// A status other than 101.
    #[error("the server answered the upgrade with status {0}")]
    Status(u16),
    /// Something is missing or wrong in the answer.
    #[error("invalid upgrade response: {0}")]
    Broken(&'static str),
}

impl ClientRequest {
    /// The request in wire format.
    pub fn bytes(&self) -> Vec<u8> {
        let mut request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n",
            self.target,
            self.host,
            key::encode(self.nonce)
        );
        if let Some(origin) = &self.origin {
            request.push_str(&format!("Origin: {origin}\r\n"));
        }
        if !self.protocols.is_empty() {
            request.push_str(&format!("Sec-WebSocket-Protocol: {}\r\n", self.protocols.join(", ")));
        }
        request.push_str("\r\n");
        request.into_bytes()
    }

    /// Validates the answer at the front of `input`; `None` asks for more of it.
    ///
    /// # Errors
    /// The server refuses, or does not speak the protocol.
    pub fn validate(&self, input: &[u8]) -> Result<Option<Upgraded>, UpgradeError> {
        let looked_at = &input[..input.len().min(MAX_HEAD)];
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut fields);
        let len = match response.parse(looked_at) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if looked_at.len() < MAX_HEAD => return Ok(None),
            Ok(httparse::Status::Partial) => return Err(UpgradeError::Broken("too large")),
            Err(_) => return Err(UpgradeError::Broken("not HTTP/1.1")),
        };
        match response.code {
            Some(101) => {}
            status => return Err(UpgradeError::Status(status.unwrap_or(0))),
        }
        let field = |name: &str| {
            let mut values = response.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            let value = values.next().and_then(|field| std::str::from_utf8(field.value).ok());
            if values.next().is_some() { None } else { value.map(str::trim) }
        };
        let lists = |name, element| {
            field(name)
                .is_some_and(|list| list.split(',').any(|entry| entry.trim().eq_ignore_ascii_case(element)))
        };
        if !lists("upgrade", "websocket") || !lists("connection", "upgrade") {
            return Err(UpgradeError::Broken("no upgrade to websocket"));
        }
        if field("sec-websocket-accept") != Some(key::accept(&key::encode(self.nonce)).as_str()) {
            return Err(UpgradeError::Broken("wrong Sec-WebSocket-Accept"));
        }
        if response.headers.iter().any(|field| field.name.eq_ignore_ascii_case("sec-websocket-extensions")) {
            return Err(UpgradeError::Broken("an extension that was not offered"));
        }
        let protocol = field("sec-websocket-protocol").map(str::to_owned);
        let was_offered = |protocol: &String| is_token(protocol) && self.protocols.contains(protocol);
        if !protocol.as_ref().is_none_or(was_offered) {
            return Err(UpgradeError::Broken("a subprotocol that was not offered"));
        }
        Ok(Some(Upgraded { protocol, len }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::{Head, Upgrade};

    fn request() -> ClientRequest {
        ClientRequest {
            host: "127.0.0.1:15670".into(),
            target: "/ws/amqp?x=1".into(),
            origin: Some("http://localhost".into()),
            protocols: vec!["amqp091".into(), "amqp".into()],
            nonce: *b"the sample nonce",
        }
    }

    #[test]
    fn both_sides_agree() {
        let request = request();
        let bytes = request.bytes();
        let (head, len) = Head::parse(&bytes).unwrap().unwrap();
        assert_eq!((head.path, len), ("/ws/amqp", bytes.len()));
        let mut answer = Upgrade::validate(head).unwrap().accept(Some("amqp"), None);
        let accepted = Upgraded { protocol: Some("amqp".into()), len: answer.len() };
        for cut in 0..answer.len() {
            assert_eq!(request.validate(&answer[..cut]), Ok(None));
        }
        answer.extend_from_slice(b"\x81\x00");
        assert_eq!(request.validate(&answer), Ok(Some(accepted)));
    }

    #[test]
    fn answers_that_do_not_upgrade_are_refused() {
        let request = request();
        let good = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        assert!(request.validate(good.as_bytes()).is_ok_and(|answer| answer.is_some()));
        for (from, to) in [
            ("101 Switching Protocols", "403 Forbidden"),
            ("Upgrade: websocket\r\n", ""),
            ("Connection: Upgrade\r\n", ""),
            ("s3p", "xxx"),
            ("\r\n\r\n", "\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"),
            ("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"),
            ("HTTP/1.1", "AMQP\0"),
        ] {
            assert!(request.validate(good.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
