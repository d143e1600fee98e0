//! The server's side: validates an upgrade request, and writes the answer.

use super::head::{Head, HeadError};
use super::key;
use super::refusal::{Status, UpgradeRefusal};
use crate::deflate::Deflate;

/// The version of RFC 6455.
const VERSION: &str = "13";

/// A request that may be upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade<'a> {
    /// The path and all other parts of the request.
    pub head: Head<'a>,
    /// The host that the client asks for, with its port if that is not the default one.
    pub host: &'a str,
    /// The origin of the connecting page; only browsers send one.
    pub origin: Option<&'a str>,
    /// The subprotocols that the client offers, in order of preference.
    pub offered: Vec<&'a str>,
    key: &'a str,
}

impl<'a> Upgrade<'a> {
    /// Validates a head by section 4.2.1.
    ///
    /// # Errors
    /// 405 for another method, 426 for a request that is not an upgrade to version 13, 400 for one that is malformed.
    pub fn validate(head: Head<'a>) -> Result<Self, UpgradeRefusal> {
        let bad = |text| Err(UpgradeRefusal::new(Status::BadRequest, text));
        if head.method != "GET" {
            return Err(UpgradeRefusal::new(
                Status::MethodNotAllowed,
                "only GET can be upgraded to WebSocket",
            ));
        }
        if !head.lists("upgrade", "websocket") || !head.lists("connection", "upgrade") {
            let text = "this address speaks WebSocket: connect with a WebSocket client, ws:// or wss://";
            return Err(UpgradeRefusal::new(Status::UpgradeRequired, text));
        }
        if head.minor_version == 0 {
            return bad("HTTP/1.1 is needed to upgrade");
        }
        if head.has_body() {
            return bad("an upgrade has no body");
        }
        let Some(host) = head.single("host") else { return bad("exactly one Host is needed") };
        if head.single("sec-websocket-version") != Some(VERSION) {
            return Err(UpgradeRefusal::new(
                Status::UpgradeRequired,
                "WebSocket version 13 is needed (RFC 6455)",
            ));
        }
        let Some(key) = head.single("sec-websocket-key").filter(|key| key::is_valid(key)) else {
            return bad("exactly one Sec-WebSocket-Key of 16 bytes in base64 is needed");
        };
        if head.all("origin").count() > 1 {
            return bad("more than one Origin");
        }
        let offered: Vec<&str> = head.elements("sec-websocket-protocol").collect();
        if !offered.iter().all(|protocol| is_token(protocol)) {
            return bad("Sec-WebSocket-Protocol is not a list of tokens");
        }
        let origin = head.header("origin");
        Ok(Self { host, origin, offered, key, head })
    }

    /// The first of `known`, which is in order of preference, that the client offers too.
    pub fn prefer<'k>(&self, known: &[&'k str]) -> Option<&'k str> {
        known.iter().copied().find(|protocol| self.offered.contains(protocol))
    }

    /// The answer that upgrades. `protocol` must be one that was offered: any other is left out, since a client has to
    /// fail a connection with a subprotocol that it did not ask for (4.1). `deflate` must have been negotiated with
    /// this request.
    pub fn accept(&self, protocol: Option<&str>, deflate: Option<Deflate>) -> Vec<u8> {
        let mut response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n",
            key::accept(self.key)
        );
        if let Some(protocol) = protocol.filter(|protocol| self.offered.contains(protocol)) {
            response.push_str("Sec-WebSocket-Protocol: ");
            response.push_str(protocol);
            response.push_str("\r\n");
        }
        if let Some(deflate) = deflate {
            response.push_str("Sec-WebSocket-Extensions: ");
            response.push_str(&deflate.answer());
            response.push_str("\r\n");
        }
        response.push_str("\r\n");
        response.into_bytes()
    }
}

impl From<HeadError> for UpgradeRefusal {
    fn from(error: HeadError) -> Self {
        let status = match error {
            HeadError::Malformed => Status::BadRequest,
            HeadError::TooLarge => Status::HeadTooLarge,
        };
        Self::new(status, error.to_string())
    }
}

/// Whether `text` is a token (RFC 9110, 5.6.2); anything else could inject into the answer.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n\
        Sec-WebSocket-Protocol: chat, superchat\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn status(request: &str) -> Option<u16> {
        let (head, _) = Head::parse(request.as_bytes()).unwrap().unwrap();
        Upgrade::validate(head).err().map(|refusal| refusal.status as u16)
    }

    #[test]
    fn the_rfcs_request_gets_the_rfcs_answer() {
        let (head, _) = Head::parse(GOOD.as_bytes()).unwrap().unwrap();
        let upgrade = Upgrade::validate(head).unwrap();
        assert_eq!((upgrade.host, upgrade.origin), ("server.example.com", Some("http://example.com")));
        assert_eq!(upgrade.prefer(&["none", "superchat", "chat"]), Some("superchat"));
        assert_eq!(
            String::from_utf8(upgrade.accept(Some("chat"), None)).unwrap(),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
        );
    }

    #[test]
    fn a_protocol_that_was_not_offered_is_not_echoed() {
        let (head, _) = Head::parse(GOOD.as_bytes()).unwrap().unwrap();
        let upgrade = Upgrade::validate(head).unwrap();
        for protocol in [None, Some("other"), Some("Chat")] {
            let answer = String::from_utf8(upgrade.accept(protocol, None)).unwrap();
            assert!(!answer.contains("Sec-WebSocket-Protocol"), "{answer}");
        }
    }

    #[test]
    fn invalid_upgrades_are_refused_with_the_right_status() {
        for (from, to, expected) in [
            ("GET ", "POST ", 405),
            ("Upgrade: websocket\r\n", "", 426),
            ("Connection: Upgrade\r\n", "Connection: keep-alive\r\n", 426),
            ("websocket\r\n", "h2c\r\n", 426),
            ("Version: 13", "Version: 8", 426),
            ("Sec-WebSocket-Version: 13\r\n", "", 426),
            ("HTTP/1.1", "HTTP/1.0", 400),
            ("Host: server.example.com\r\n", "", 400),
            ("Host:", "Host: a\r\nHost:", 400),
            ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", 400),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ==", 400),
            ("dGhlIHNhbXBsZSBub25jZQ==", "!!!", 400),
            ("Sec-WebSocket-Key:", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key:", 400),
            ("Origin:", "Origin: http://a\r\nOrigin:", 400),
            ("chat, superchat", "ch at", 400),
            ("Host:", "Content-Length: 5\r\nHost:", 400),
            ("Host:", "Transfer-Encoding: chunked\r\nHost:", 400),
        ] {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(status(&GOOD.replace(from, to)), Some(expected), "{from:?} became {to:?}");
        }
        for fine in [
            GOOD.replace("Connection: Upgrade", "Connection: keep-alive, upgrade"),
            GOOD.replace("Upgrade: websocket", "upgrade: WebSocket"),
            GOOD.replace("Origin: http://example.com\r\n", ""),
            GOOD.replace("Host:", "Content-Length: 0\r\nHost:"),
        ] {
            assert_eq!(status(&fine), None);
        }
    }
}
