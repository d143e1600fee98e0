//! The record of a spooled message: the body of a message in a local queue.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | version, 1 |
//! | 8 | time of acceptance in milliseconds since 1970, big-endian, as all numbers |
//! | 16 | id |
//! | 1 and n | exchange |
//! | 1 and n | routing key |
//! | 2 and n | virtual host |
//! | 2 and n | user |
//! | 4 and n | property flags and list, as received |
//! | the rest | body |

use std::ops::Range;

use bytes::{BufMut, Bytes};

/// The only version so far.
const VERSION: u8 = 1;

/// Bytes of the parts of fixed length, the lengths of the others included.
const FIXED: usize = 1 + 8 + 16 + 1 + 1 + 2 + 2 + 4;

/// A message to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpooledMessage<'a> {
    /// The virtual host in which it was published.
    pub vhost: &'a str,
    /// The user who published it.
    pub user: &'a str,
    /// The exchange; empty for the default one.
    pub exchange: &'a str,
    /// The routing key: any text of at most 255 bytes, like the exchange.
    pub routing_key: &'a str,
    /// When it was accepted, in milliseconds since 1970.
    pub accepted_at: u64,
    /// Unique to the message, and the same at each attempt to forward it.
    pub id: [u8; 16],
    /// Property flags and list as they are on the wire.
    pub properties: &'a [u8],
    /// The body in one piece.
    pub body: &'a [u8],
}

/// A spooled message as it was stored. Clones share its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    bytes: Bytes,
    accepted_at: u64,
    id: [u8; 16],
    exchange: Span,
    routing_key: Span,
    vhost: Span,
    user: Span,
    properties: Span,
    body_at: u32,
}

/// Bytes from the first number up to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span(u32, u32);

/// The reason why stored bytes are not an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// A later version of Leveret has written it.
    #[error("version {0} is unknown")]
    Version(u8),
    /// It ends within the named part.
    #[error("truncated at '{0}'")]
    Short(&'static str),
    /// The named part is not UTF-8.
    #[error("'{0}' is not UTF-8")]
    Text(&'static str),
    /// The record, or one of its parts, is too long for its length field.
    #[error("it is too long")]
    Long,
}

impl SpooledMessage<'_> {
    /// Appends the record to `out`.
    ///
    /// # Errors
    /// A part is too long for its length field; `out` is unchanged then.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EnvelopeError> {
        let short = |text: &str| u8::try_from(text.len()).map_err(|_| EnvelopeError::Long);
        let medium = |text: &str| u16::try_from(text.len()).map_err(|_| EnvelopeError::Long);
        let (exchange, routing_key) = (short(self.exchange)?, short(self.routing_key)?);
        let (vhost, user) = (medium(self.vhost)?, medium(self.user)?);
        let properties = u32::try_from(self.properties.len()).map_err(|_| EnvelopeError::Long)?;
        let names = self.exchange.len() + self.routing_key.len() + self.vhost.len() + self.user.len();
        let length = FIXED + names + self.properties.len() + self.body.len();
        u32::try_from(length).map_err(|_| EnvelopeError::Long)?;
        out.reserve(length);
        out.put_u8(VERSION);
        out.put_u64(self.accepted_at);
        out.put_slice(&self.id);
        out.put_u8(exchange);
        out.put_slice(self.exchange.as_bytes());
        out.put_u8(routing_key);
        out.put_slice(self.routing_key.as_bytes());
        out.put_u16(vhost);
        out.put_slice(self.vhost.as_bytes());
        out.put_u16(user);
        out.put_slice(self.user.as_bytes());
        out.put_u32(properties);
        out.put_slice(self.properties);
        out.put_slice(self.body);
        Ok(())
    }
}

impl Envelope {
    /// Reads a record.
    ///
    /// # Errors
    /// The bytes are not a record, or one of an unknown version.
    pub fn decode(bytes: Bytes) -> Result<Self, EnvelopeError> {
        u32::try_from(bytes.len()).map_err(|_| EnvelopeError::Long)?;
        let mut reader = Reader { bytes: &bytes, at: 0 };
        let version = reader.number::<1>("version")?[0];
        if version != VERSION {
            return Err(EnvelopeError::Version(version));
        }
        let accepted_at = u64::from_be_bytes(reader.number("time")?);
        let id = reader.number("id")?;
        let exchange = reader.text::<1>("exchange")?;
        let routing_key = reader.text::<1>("routing key")?;
        let vhost = reader.text::<2>("virtual host")?;
        let user = reader.text::<2>("user")?;
        let properties = reader.part::<4>("properties")?;
        let body_at = reader.at as u32;
        Ok(Self { accepted_at, id, exchange, routing_key, vhost, user, properties, body_at, bytes })
    }

    /// The message, decoded from the record.
    pub fn message(&self) -> SpooledMessage<'_> {
        SpooledMessage {
            vhost: self.vhost(),
            user: self.user(),
            exchange: self.exchange(),
            routing_key: self.routing_key(),
            accepted_at: self.accepted_at(),
            id: self.id(),
            properties: self.properties(),
            body: self.body(),
        }
    }

    fn part(&self, span: Span) -> &[u8] {
        &self.bytes[span.range()]
    }

    fn text(&self, span: Span) -> &str {
        // Checked when it was decoded.
        std::str::from_utf8(self.part(span)).unwrap_or_default()
    }

    /// The exchange; empty for the default one.
    pub fn exchange(&self) -> &str {
        self.text(self.exchange)
    }

    /// The routing key, which determines the destination together with the exchange.
    pub fn routing_key(&self) -> &str {
        self.text(self.routing_key)
    }

    /// The virtual host in which it was published.
    pub fn vhost(&self) -> &str {
        self.text(self.vhost)
    }

    /// The user who published it.
    pub fn user(&self) -> &str {
        self.text(self.user)
    }

    /// Property flags and list as they were received.
    pub fn properties(&self) -> &[u8] {
        self.part(self.properties)
    }

    /// The body in one piece, as it was received.
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.body_at as usize..]
    }

    /// When it was accepted, in milliseconds since 1970.
    pub fn accepted_at(&self) -> u64 {
        self.accepted_at
    }

    /// The id, which no other message has.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The whole record, as it was stored.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl Span {
    fn range(self) -> Range<usize> {
        self.0 as usize..self.1 as usize
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn number<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], EnvelopeError> {
        let number = self.bytes[self.at..].first_chunk().ok_or(EnvelopeError::Short(name))?;
        self.at += N;
        Ok(*number)
    }

    /// A part with a length prefix of `N` bytes.
    fn part<const N: usize>(&mut self, name: &'static str) -> Result<Span, EnvelopeError> {
        let length = self.number::<N>(name)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let from = self.at;
        if self.bytes.len() - from < length {
            return Err(EnvelopeError::Short(name));
        }
        self.at += length;
        // Fits: the record has less than 4 GiB.
        Ok(Span(from as u32, self.at as u32))
    }

    fn text<const N: usize>(&mut self, name: &'static str) -> Result<Span, EnvelopeError> {
        let span = self.part::<N>(name)?;
        std::str::from_utf8(&self.bytes[span.range()]).map_err(|_| EnvelopeError::Text(name))?;
        Ok(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> SpooledMessage<'static> {
        SpooledMessage {
            vhost: "/",
            user: "guest",
            exchange: "orders",
            routing_key: "new.ä",
            accepted_at: 1_700_000_000_123,
            id: *b"0123456789abcdef",
            properties: &[0x10, 0, 2],
            body: b"body",
        }
    }

    fn encoded(message: &SpooledMessage<'_>) -> Bytes {
        let mut out = Vec::new();
        message.encode(&mut out).unwrap();
        out.into()
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let envelope = Envelope::decode(encoded(&message())).unwrap();
        assert_eq!(envelope.message(), message());
    }

    #[test]
    fn the_format_stays_readable() {
        let stored = b"\x01\0\0\x01\x8b\xcf\xe5\x68\x7b0123456789abcdef\x06orders\x06new.\xc3\xa4\0\x01/\0\x05guest\0\0\0\x03\x10\0\x02body";
        assert_eq!(&encoded(&message())[..], stored);
        assert!(Envelope::decode(Bytes::from_static(stored)).is_ok());
    }

    #[test]
    fn every_truncation_is_detected() {
        let whole = encoded(&message());
        for length in 0..whole.len() - message().body.len() {
            let cut = Envelope::decode(whole.slice(..length));
            assert!(matches!(cut, Err(EnvelopeError::Short(_))), "{length}: {cut:?}");
        }
    }

    #[test]
    fn unknown_versions_and_texts_are_refused() {
        let mut bytes = encoded(&message()).to_vec();
        bytes[0] = 2;
        assert_eq!(Envelope::decode(bytes.clone().into()), Err(EnvelopeError::Version(2)));
        bytes[0] = 1;
        bytes[26] = 0xff;
        assert_eq!(Envelope::decode(bytes.into()), Err(EnvelopeError::Text("exchange")));
    }

    #[test]
    fn names_that_do_not_fit_are_not_written() {
        let long = "x".repeat(256);
        let mut out = Vec::new();
        let outcome = SpooledMessage { routing_key: &long, ..message() }.encode(&mut out);
        assert_eq!((outcome, out.len()), (Err(EnvelopeError::Long), 0));
    }
}
