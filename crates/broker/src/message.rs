//! The immutable message that all its queues share.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

/// Bodies up to this size in bytes are copied next to the key and the properties; larger ones stay in the
/// chunks they arrived in. Below it the copy costs less than the bookkeeping, and does not keep a whole read
/// buffer alive.
pub const MAX_INLINE_BODY: usize = 1024;

/// Bytes stored inside the message itself, for key, properties and small body. A body of 16 bytes fits with a
/// usual key, so that such a message is one allocation.
const INLINE_BYTES: usize = 56;

/// The weight of a message with `bytes` bytes of content that is shared by `queues` queues.
fn weight(bytes: usize, queues: usize) -> u32 {
    u32::try_from((bytes + OWN_BYTES) / queues + PLACE_BYTES).unwrap_or(u32::MAX)
}

/// Bytes that a message takes beside its content, approximately.
const OWN_BYTES: usize = 128;

/// Bytes of one entry in a queue.
const PLACE_BYTES: usize = 32;

/// The body of a message to be published.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// A body in a buffer that is about to be reused; it is copied.
    Copied(&'a [u8]),
    /// Chunks in order: shared if the body is larger than [`MAX_INLINE_BODY`], otherwise copied.
    Chunks(&'a [Bytes]),
}

impl Body<'_> {
    /// Length in bytes, summed over all chunks.
    pub fn len(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Chunks(chunks) => chunks.iter().map(Bytes::len).sum(),
        }
    }

    /// Whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The body of a message to be delivered.
#[derive(Debug, Clone, Copy)]
pub enum BodyView<'a> {
    /// A small body, in one piece.
    Inline(&'a [u8]),
    /// A large body, in the chunks it arrived in; clone them to share them.
    Chunks(&'a [Bytes]),
}

impl BodyView<'_> {
    /// The body in one piece, without a copy if it is one large chunk.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Inline(bytes) => Bytes::copy_from_slice(bytes),
            Self::Chunks([whole]) => whole.clone(),
            Self::Chunks(chunks) => chunks.concat().into(),
        }
    }

    /// Copies the body into one buffer.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Inline(bytes) => bytes.to_vec(),
            Self::Chunks(chunks) => chunks.concat(),
        }
    }
}

/// The properties that the broker itself needs, read once when the message is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits {
    /// Whether delivery_mode is 2.
    pub persistent: bool,
    /// The priority property, if set.
    pub priority: Option<u8>,
    /// The expiration property in milliseconds, if set.
    pub expiration: Option<u64>,
    /// Whether the header x-death is the broker's own, and not a client's ([`Compatibility::V4`] tells them apart).
    ///
    /// [`Compatibility::V4`]: crate::Compatibility::V4
    pub is_dead_letter: bool,
    /// Whether it has the header [`ANNOTATION`].
    pub is_annotated: bool,
    /// The number of failed deliveries of the message that this dead letter was made from, which count for it, too
    /// ([`Compatibility::V4`]). Not stored with the message, but with its place in a queue.
    ///
    /// [`Compatibility::V4`]: crate::Compatibility::V4
    pub failures: u32,
}

/// The name of the header in which a front end keeps what only its own clients are to see of a message. Of a
/// [publisher](crate::Publisher::annotating) of that front end alone: from others it is a header like any other.
pub const ANNOTATION: &str = "\0";

/// A published message: immutable, shared by all queues it was routed to.
#[derive(Debug)]
pub struct Message {
    exchange: Arc<str>,
    /// Routing key, property flags and list, small body.
    bytes: SmallVec<[u8; INLINE_BYTES]>,
    key_len: u32,
    properties_end: u32,
    traits: Traits,
    /// Bytes of memory charged to each of its queues.
    weight: u32,
    /// Fields that few messages need, boxed so that the others stay small.
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Default)]
struct Rare {
    /// The body, if it is larger than [`MAX_INLINE_BODY`].
    chunks: Vec<Bytes>,
    chunks_len: usize,
    /// Routing keys from the header BCC, which has been removed from the properties.
    blind_copies: Vec<Box<str>>,
}

impl Message {
    /// Creates a message. `properties` are flags and list as in a content header, and must be well-formed.
    pub fn new(
        exchange: Arc<str>,
        routing_key: &str,
        properties: &[u8],
        body: Body<'_>,
        traits: Traits,
    ) -> Self {
        let len = body.len();
        let inline = if len <= MAX_INLINE_BODY { len } else { 0 };
        let mut bytes = SmallVec::with_capacity(routing_key.len() + properties.len() + inline);
        bytes.extend_from_slice(routing_key.as_bytes());
        bytes.extend_from_slice(properties);
        let properties_end = bytes.len() as u32;
        let mut rare = None;
        match body {
            Body::Copied(body) if len <= MAX_INLINE_BODY => bytes.extend_from_slice(body),
            Body::Copied(body) => rare = Some(Rare::large(vec![Bytes::copy_from_slice(body)], len)),
            Body::Chunks(chunks) if len <= MAX_INLINE_BODY => {
                chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
            }
            Body::Chunks(chunks) => rare = Some(Rare::large(chunks.to_vec(), len)),
        }
        let key_len = routing_key.len() as u32;
        let weight = weight(bytes.len() + len - inline, 1);
        Self { exchange, bytes, key_len, properties_end, traits, weight, rare }
    }

    /// Adds routing keys that receivers must not see.
    #[must_use]
    pub(crate) fn with_blind_copies(mut self, keys: &[&str]) -> Self {
        if !keys.is_empty() {
            self.rare.get_or_insert_default().blind_copies = keys.iter().map(|&key| key.into()).collect();
        }
        self
    }

    /// Sets the number of queues that will share it.
    #[inline]
    pub(crate) fn share(&mut self, queues: usize) {
        if queues > 1 {
            self.weight = weight(self.bytes.len() + self.large().map_or(0, |rare| rare.chunks_len), queues);
        }
    }

    /// Bytes of memory charged to each of its queues: the queue entry, and a share of the rest.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.weight.into()
    }

    pub(crate) fn blind_copies(&self) -> impl Iterator<Item = &str> {
        self.rare.iter().flat_map(|rare| rare.blind_copies.iter().map(|key| &**key))
    }

    /// The exchange, as it is shared by the messages that it has.
    pub(crate) fn shared_exchange(&self) -> &Arc<str> {
        &self.exchange
    }

    /// The exchange it was published to; empty for the default exchange.
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> &str {
        // Copied from a `&str` in `new`.
        std::str::from_utf8(&self.bytes[..self.key_len as usize]).unwrap_or_default()
    }

    /// Property flags and list, as received.
    pub fn properties(&self) -> &[u8] {
        &self.bytes[self.property_range()]
    }

    /// Routing key, properties and, if it is small, the body, concatenated.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The body, in one piece if it is small.
    pub fn body(&self) -> BodyView<'_> {
        match self.large() {
            None => BodyView::Inline(&self.bytes[self.properties_end as usize..]),
            Some(rare) => BodyView::Chunks(&rare.chunks),
        }
    }

    /// Length of the body in bytes.
    pub fn body_len(&self) -> usize {
        match self.large() {
            None => self.bytes.len() - self.properties_end as usize,
            Some(rare) => rare.chunks_len,
        }
    }

    /// The traits that the broker has read from the properties.
    pub fn traits(&self) -> Traits {
        self.traits
    }

    fn large(&self) -> Option<&Rare> {
        self.rare.as_deref().filter(|rare| rare.chunks_len > 0)
    }

    fn property_range(&self) -> Range<usize> {
        self.key_len as usize..self.properties_end as usize
    }
}

impl Rare {
    fn large(chunks: Vec<Bytes>, chunks_len: usize) -> Box<Self> {
        Box::new(Self { chunks, chunks_len, blind_copies: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: Body<'_>) -> Message {
        Message::new("e".into(), "some.key", &[0, 0], body, Traits::default())
    }

    #[test]
    fn small_bodies_lie_in_one_piece() {
        let chunks = [Bytes::from_static(b"ab"), Bytes::from_static(b"cd")];
        for message in [message(Body::Copied(b"abcd")), message(Body::Chunks(&chunks))] {
            assert!(matches!(message.body(), BodyView::Inline(b"abcd")));
            assert_eq!((message.exchange(), message.routing_key()), ("e", "some.key"));
            assert_eq!((message.properties(), message.body_len()), (&[0, 0][..], 4));
        }
    }

    #[test]
    fn large_bodies_are_shared_and_not_copied() {
        let chunks = [Bytes::from(vec![1; MAX_INLINE_BODY]), Bytes::from(vec![2; 10])];
        let message = message(Body::Chunks(&chunks));
        let BodyView::Chunks(kept) = message.body() else { panic!("copied") };
        assert_eq!(kept[0].as_ptr(), chunks[0].as_ptr());
        assert_eq!(message.body_len(), MAX_INLINE_BODY + 10);
    }

    #[test]
    fn a_small_message_is_one_allocation() {
        let message =
            Message::new("e".into(), "benchmark", &[0x10, 0, 2], Body::Copied(&[0; 16]), Traits::default());
        assert!(!message.bytes.spilled());
    }
}
