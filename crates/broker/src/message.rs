//! The immutable message that all its queues share.

use bytes::Bytes;

use crate::names::ExchangeName;

/// Bodies up to this size in bytes are copied next to the key and the properties; larger ones stay in the chunks in which
/// they arrived. For small bodies a copy is cheaper than that, and does not keep a whole read buffer alive.
pub const MAX_INLINE_BODY: usize = 1024;

/// Bytes stored inside the message itself, for key, properties and small body. A body of 16 bytes fits with the key of a
/// typical queue, so such a message is one allocation of 64 bytes.
const INLINE_BYTES: usize = 29;

/// The weight of a message with `outside` bytes of content in other allocations that is shared by `queues` queues.
fn weight(outside: usize, queues: usize) -> u32 {
    u32::try_from((outside + OWN_BYTES) / queues + PLACE_BYTES).unwrap_or(u32::MAX)
}

/// Bytes of a message, including its reference counts.
const OWN_BYTES: usize = size_of::<Message>() + 2 * size_of::<usize>();

/// The smallest allocation, in bytes.
const MIN_ALLOCATION: usize = 16;

/// Bytes of one entry in a queue, including spare capacity.
const PLACE_BYTES: usize = 32;

/// The weight of a message in one queue without its body, with key and properties of typical length.
pub(crate) const USUAL_WEIGHT_WITHOUT_BODY: u64 = (OWN_BYTES + PLACE_BYTES + 32) as u64;

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

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (copied, chunks) = match *self {
            Self::Copied(bytes) => (bytes, &[][..]),
            Self::Chunks(chunks) => (&[][..], chunks),
        };
        std::iter::once(copied).chain(chunks.iter().map(|chunk| &chunk[..]))
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
pub struct BrokerProperties {
    /// Whether delivery_mode is 2 (persistent).
    pub persistent: bool,
    /// The priority property, if set.
    pub priority: Option<u8>,
    /// The expiration property in milliseconds, if set.
    pub expiration: Option<u64>,
    /// Whether the broker, not a client, wrote the header x-death (only [`Compatibility::V4`] distinguishes them).
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

/// The name of the header in which a front end stores data for its own clients only. It has this meaning only for a
/// [publisher](crate::Publisher::with_mqtt_annotation) of that front end; from others it is an ordinary header.
pub const ANNOTATION: &str = "\0";

/// A published message: immutable, shared by all queues it was routed to.
///
/// Very many of them may be ready at a time, and most of those are small: every field has its minimal size, and rarely used
/// ones are boxed (`Rare`).
#[derive(Debug)]
pub struct Message {
    exchange: ExchangeName,
    content: Content,
    /// Bytes of memory charged to each of its queues.
    weight: u32,
    /// The length of the routing key, unless the content is [`Content::Rare`], which stores it.
    key_len: u8,
    marks: u8,
    /// The priority property, if the marks include [`HAS_PRIORITY`].
    priority: u8,
}

/// A message's routing key, property flags and list, and small body, in one piece.
#[derive(Debug)]
enum Content {
    /// Up to [`INLINE_BYTES`].
    Inline { properties_end: u8, len: u8, bytes: [u8; INLINE_BYTES] },
    /// Longer content, or content with an expiration in milliseconds; without one that is [`NO_EXPIRATION`].
    Boxed { properties_end: u32, expiration: u64, bytes: Box<[u8]> },
    /// Content with rarely used fields.
    Rare(Box<Rare>),
}

/// The expiration of a message without one. No property is that large: RabbitMQ's maximum is 2^32 - 1.
const NO_EXPIRATION: u64 = u64::MAX;

/// Flags of [`Message::marks`], for [`BrokerProperties`].
const PERSISTENT: u8 = 1;
const DEAD_LETTER: u8 = 2;
const ANNOTATED: u8 = 4;
const HAS_PRIORITY: u8 = 8;

#[derive(Debug, Default)]
struct Rare {
    /// The same bytes as in [`Content::Boxed`].
    bytes: Box<[u8]>,
    key_len: u32,
    properties_end: u32,
    /// The body, if it is larger than [`MAX_INLINE_BODY`].
    chunks: Vec<Bytes>,
    chunks_len: usize,
    /// Routing keys from the header BCC, which has been removed from the properties.
    blind_copies: Vec<Box<str>>,
    /// See [`BrokerProperties::expiration`].
    expiration: Option<u64>,
    /// See [`BrokerProperties::failures`].
    failures: u32,
}

impl Message {
    /// Creates a message. `properties` are flags and list as in a content header, and must be well-formed.
    pub fn new(
        exchange: ExchangeName,
        routing_key: &str,
        properties: &[u8],
        body: Body<'_>,
        broker_properties: BrokerProperties,
    ) -> Self {
        let (len, key_len) = (body.len(), routing_key.len());
        let properties_end = key_len + properties.len();
        let (small, chunks) = match body {
            small if len <= MAX_INLINE_BODY => (small, Vec::new()),
            Body::Copied(body) => (Body::Copied(&[]), vec![Bytes::copy_from_slice(body)]),
            Body::Chunks(chunks) => (Body::Copied(&[]), chunks.to_vec()),
        };
        let whole = properties_end + small.len();
        let is_rare = !chunks.is_empty() || broker_properties.failures > 0 || key_len > usize::from(u8::MAX);
        let content = if whole <= INLINE_BYTES && broker_properties.expiration.is_none() && !is_rare {
            let mut bytes = [0; INLINE_BYTES];
            bytes[..key_len].copy_from_slice(routing_key.as_bytes());
            bytes[key_len..properties_end].copy_from_slice(properties);
            let mut at = properties_end;
            for part in small.parts() {
                bytes[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            Content::Inline { properties_end: properties_end as u8, len: whole as u8, bytes }
        } else {
            let mut bytes = Vec::with_capacity(whole);
            bytes.extend_from_slice(routing_key.as_bytes());
            bytes.extend_from_slice(properties);
            small.parts().for_each(|part| bytes.extend_from_slice(part));
            let (bytes, properties_end) = (bytes.into_boxed_slice(), properties_end as u32);
            if is_rare {
                let BrokerProperties { expiration, failures, .. } = broker_properties;
                let (key_len, chunks_len) = (key_len as u32, if chunks.is_empty() { 0 } else { len });
                let blind_copies = Vec::new();
                Content::Rare(Box::new(Rare {
                    bytes,
                    key_len,
                    properties_end,
                    chunks,
                    chunks_len,
                    blind_copies,
                    expiration,
                    failures,
                }))
            } else {
                let expiration = broker_properties.expiration.unwrap_or(NO_EXPIRATION);
                Content::Boxed { properties_end, expiration, bytes }
            }
        };
        let (marks, priority) = (marks_of(broker_properties), broker_properties.priority.unwrap_or_default());
        Self { exchange, content, weight: 0, key_len: key_len as u8, marks, priority }.weighed(1)
    }

    /// Adds routing keys that receivers must not see.
    #[must_use]
    pub(crate) fn with_blind_copies(self, keys: &[&str]) -> Self {
        if keys.is_empty() {
            return self;
        }
        let blind_copies = keys.iter().map(|&key| key.into()).collect();
        let (key_len, properties_end) = (self.key_len() as u32, self.properties_end() as u32);
        let expiration = self.expiration();
        let plain = |bytes| Rare { bytes, key_len, properties_end, expiration, ..Rare::default() };
        let rare = match self.content {
            Content::Inline { len, bytes, .. } => plain(bytes[..usize::from(len)].into()),
            Content::Boxed { bytes, .. } => plain(bytes),
            Content::Rare(rare) => *rare,
        };
        let content = Content::Rare(Box::new(Rare { blind_copies, ..rare }));
        Self { content, ..self }.weighed(1)
    }

    /// Sets the number of queues that share it.
    #[inline]
    pub(crate) fn share(&mut self, queues: usize) {
        if queues > 1 {
            self.weight = weight(self.outside(), queues);
        }
    }

    fn weighed(self, queues: usize) -> Self {
        Self { weight: weight(self.outside(), queues), ..self }
    }

    /// Bytes of content that are not in the message itself.
    fn outside(&self) -> usize {
        match &self.content {
            Content::Inline { .. } => 0,
            Content::Boxed { bytes, .. } => bytes.len(),
            Content::Rare(rare) => {
                let copies =
                    rare.blind_copies.iter().map(|key| size_of::<Box<str>>() + key.len().max(MIN_ALLOCATION));
                size_of::<Rare>() + rare.bytes.len() + rare.chunks_len + copies.sum::<usize>()
            }
        }
    }

    /// Bytes of memory charged to each of its queues: the queue entry, and a share of the rest.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.weight.into()
    }

    pub(crate) fn blind_copies(&self) -> impl Iterator<Item = &str> {
        self.rare().into_iter().flat_map(|rare| rare.blind_copies.iter().map(|key| &**key))
    }

    /// The exchange name, shared by its messages.
    pub(crate) fn shared_exchange(&self) -> &ExchangeName {
        &self.exchange
    }

    /// The exchange it was published to; empty for the default exchange.
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// The routing key it was published with.
    pub fn routing_key(&self) -> &str {
        // Copied from a `&str` in `new`.
        std::str::from_utf8(&self.bytes()[..self.key_len()]).unwrap_or_default()
    }

    /// Property flags and list, as received.
    pub fn properties(&self) -> &[u8] {
        &self.bytes()[self.key_len()..self.properties_end()]
    }

    /// Routing key, properties and, if it is small, the body, concatenated.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Inline { len, bytes, .. } => &bytes[..usize::from(*len)],
            Content::Boxed { bytes, .. } => bytes,
            Content::Rare(rare) => &rare.bytes,
        }
    }

    /// The body, in one piece if it is small.
    pub fn body(&self) -> BodyView<'_> {
        match self.rare() {
            Some(rare) if rare.chunks_len > 0 => BodyView::Chunks(&rare.chunks),
            _ => BodyView::Inline(&self.bytes()[self.properties_end()..]),
        }
    }

    /// Length of the body in bytes.
    pub fn body_len(&self) -> usize {
        match self.rare() {
            Some(rare) if rare.chunks_len > 0 => rare.chunks_len,
            _ => self.bytes().len() - self.properties_end(),
        }
    }

    fn expiration(&self) -> Option<u64> {
        match &self.content {
            Content::Inline { .. } => None,
            Content::Boxed { expiration, .. } => Some(*expiration).filter(|time| *time != NO_EXPIRATION),
            Content::Rare(rare) => rare.expiration,
        }
    }

    /// The values that the broker has read from the properties.
    pub fn broker_properties(&self) -> BrokerProperties {
        let rare = self.rare();
        BrokerProperties {
            persistent: self.marks & PERSISTENT != 0,
            priority: (self.marks & HAS_PRIORITY != 0).then_some(self.priority),
            expiration: self.expiration(),
            is_dead_letter: self.marks & DEAD_LETTER != 0,
            is_annotated: self.marks & ANNOTATED != 0,
            failures: rare.map_or(0, |rare| rare.failures),
        }
    }

    fn key_len(&self) -> usize {
        self.rare().map_or(usize::from(self.key_len), |rare| rare.key_len as usize)
    }

    /// The end of the properties in [`Message::bytes`], where the body starts.
    fn properties_end(&self) -> usize {
        match &self.content {
            Content::Inline { properties_end, .. } => usize::from(*properties_end),
            Content::Boxed { properties_end, .. } => *properties_end as usize,
            Content::Rare(rare) => rare.properties_end as usize,
        }
    }

    fn rare(&self) -> Option<&Rare> {
        match &self.content {
            Content::Rare(rare) => Some(rare),
            Content::Inline { .. } | Content::Boxed { .. } => None,
        }
    }
}

fn marks_of(broker_properties: BrokerProperties) -> u8 {
    let mark = |is_set, mark| if is_set { mark } else { 0 };
    mark(broker_properties.persistent, PERSISTENT)
        | mark(broker_properties.is_dead_letter, DEAD_LETTER)
        | mark(broker_properties.is_annotated, ANNOTATED)
        | mark(broker_properties.priority.is_some(), HAS_PRIORITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: Body<'_>) -> Message {
        Message::new("e".into(), "some.key", &[0, 0], body, BrokerProperties::default())
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
        let message = Message::new(
            "e".into(),
            "benchmark",
            &[0x10, 0, 2],
            Body::Copied(&[0; 16]),
            BrokerProperties::default(),
        );
        assert!(matches!(message.content, Content::Inline { .. }));
        // With the two counters of its `Arc`, one of the allocator's size classes.
        assert_eq!(size_of::<Message>() + 2 * size_of::<usize>(), 64);
    }

    #[test]
    fn an_expiration_takes_no_allocation_of_its_own_and_is_kept() {
        let broker_properties = BrokerProperties { expiration: Some(5), ..BrokerProperties::default() };
        let message = Message::new("e".into(), "k", &[0, 0], Body::Copied(b"b"), broker_properties);
        assert!(matches!(message.content, Content::Boxed { .. }));
        assert_eq!(message.broker_properties(), broker_properties);
        let weight = message.weight();
        let message = message.with_blind_copies(&["one", "two"]);
        assert_eq!((message.broker_properties(), message.blind_copies().count()), (broker_properties, 2));
        assert!(message.weight() > weight);
    }
}
