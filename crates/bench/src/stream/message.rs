//! The messages that producers send and consumers recognise.
//!
//! A body of 8 bytes or more starts with its identity: 8 bits of the round (the salt), 16 bits of producer, 40 bits
//! of sequence number. From 16 bytes on, the time it was sent (at a fixed rate: was due) follows, in nanoseconds
//! since the round began. Both are big-endian.

use amqp::frame::{self, max_body_payload, write_body, write_content_header, write_method};
use amqp::method::basic;

/// The number of producers that an identity can distinguish.
pub(crate) const MAX_PRODUCERS: usize = 1 << 16;
/// Bytes of body that identify a message.
pub(crate) const IDENTITY_LEN: usize = 8;
/// Bytes of body that identify and date a message.
pub(crate) const STAMPED_LEN: usize = 16;
/// The channel that is used, or the first of several.
pub(crate) const CHANNEL: u16 = 1;

const SEQUENCE_BITS: u32 = 40;
/// The largest batch on the wire in bytes, unless one message is larger: enough to make the cost of a write
/// negligible, little enough that messages do not wait for each other long.
const BATCH_BYTES: usize = 64 * 1024;
/// The limit after the first cycle; larger batches do not make a write any cheaper.
const MAX_MESSAGES: usize = 4096;

/// Identifies a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) producer: u16,
    /// Sequence number, from 0.
    pub(crate) sequence: u64,
}

impl Identity {
    /// Reads the identity at the start of a body; `None` if it was not sent in the round with this salt.
    #[inline]
    pub(crate) fn read(body: &[u8], salt: u8) -> Option<Self> {
        let raw = u64::from_be_bytes(*body.first_chunk()?);
        ((raw >> 56) as u8 == salt).then_some(Self {
            producer: (raw >> SEQUENCE_BITS) as u16,
            sequence: raw & ((1 << SEQUENCE_BITS) - 1),
        })
    }

    fn bytes(self, salt: u8) -> [u8; IDENTITY_LEN] {
        let producer = u64::from(self.producer) << SEQUENCE_BITS;
        (u64::from(salt) << 56 | producer | self.sequence & ((1 << SEQUENCE_BITS) - 1)).to_be_bytes()
    }
}

/// The time in a body of [`STAMPED_LEN`] bytes or more.
#[inline]
pub(crate) fn read_stamp(body: &[u8]) -> Option<u64> {
    body.get(IDENTITY_LEN..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The form in which messages are published.
#[derive(Debug, Clone)]
pub(crate) struct MessageStyle<'a> {
    pub(crate) exchange: &'a str,
    /// Routing keys, which messages take in turn.
    pub(crate) keys: Vec<&'a str>,
    /// Bodies, which messages take in turn; the identity overwrites the start of numbered ones.
    pub(crate) bodies: Vec<&'a [u8]>,
    pub(crate) numbered: bool,
    /// Encoded properties.
    pub(crate) properties: &'a [u8],
    pub(crate) mandatory: bool,
    pub(crate) frame_max: u32,
    /// Number of channels, from [`CHANNEL`] on, which messages take in turn.
    pub(crate) channels: u16,
}

/// A buffer full of encoded messages, in which only identities and times change.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    /// Offsets of the messages, and of the end of the last.
    starts: Vec<usize>,
    /// Offsets of the bodies.
    bodies_at: Vec<usize>,
    /// The number of messages after which channels, keys and bodies repeat.
    cycle: usize,
    /// Bytes of the shortest body; 0 unless they are numbered.
    numbered_len: usize,
    salt: u8,
    producer: u16,
}

impl Batch {
    pub(crate) fn new(style: &MessageStyle<'_>, salt: u8, producer: u16) -> Self {
        let (keys, bodies) = (style.keys.len(), style.bodies.len());
        let channels = usize::from(style.channels);
        let cycle = least_common_multiple(least_common_multiple(keys, bodies), channels);
        let (mut bytes, mut starts, mut bodies_at) = (Vec::new(), vec![0], Vec::new());
        // The buffer has an extra cycle, so that a full batch can begin at any message of the cycle.
        while starts.len() <= cycle || bytes.len() < BATCH_BYTES && starts.len() < cycle + MAX_MESSAGES {
            let number = starts.len() - 1;
            let (routing_key, body) = (style.keys[number % keys], style.bodies[number % bodies]);
            let channel = CHANNEL + (number % channels) as u16;
            let (exchange, mandatory) = (style.exchange, style.mandatory);
            let publish = basic::Publish { exchange, routing_key, mandatory, ..Default::default() };
            write_method(&mut bytes, channel, publish);
            write_content_header(&mut bytes, channel, body.len() as u64, style.properties);
            bodies_at.push(bytes.len() + frame::HEADER_LEN);
            body.chunks(max_body_payload(style.frame_max))
                .for_each(|piece| write_body(&mut bytes, channel, piece));
            starts.push(bytes.len());
        }
        let shortest = style.bodies.iter().map(|body| body.len()).min();
        let numbered_len = shortest.filter(|_| style.numbered).unwrap_or_default();
        Self { bytes, starts, bodies_at, cycle, numbered_len, salt, producer }
    }

    /// The number of messages in a batch, which may begin anywhere in the cycle.
    pub(crate) fn capacity(&self) -> usize {
        self.bodies_at.len() - (self.cycle - 1)
    }

    /// The number of messages that are complete in the first `bytes` bytes of a filled batch.
    pub(crate) fn complete(&self, sequence: u64, bytes: usize) -> usize {
        let first = self.place(sequence);
        let end = self.starts[first] + bytes;
        self.starts[first + 1..].partition_point(|start| *start <= end)
    }

    fn place(&self, sequence: u64) -> usize {
        (sequence % self.cycle as u64) as usize
    }

    /// Encodes as many messages as there are `stamps`, at most [`Batch::capacity`], the first with number `sequence`.
    #[inline]
    pub(crate) fn fill(&mut self, sequence: u64, stamps: &[u64]) -> &[u8] {
        let first = self.place(sequence);
        if self.numbered_len >= IDENTITY_LEN {
            for ((&at, stamp), sequence) in self.bodies_at[first..].iter().zip(stamps).zip(sequence..) {
                let body = &mut self.bytes[at..];
                let identity = Identity { producer: self.producer, sequence };
                body[..IDENTITY_LEN].copy_from_slice(&identity.bytes(self.salt));
                if self.numbered_len >= STAMPED_LEN {
                    body[IDENTITY_LEN..STAMPED_LEN].copy_from_slice(&stamp.to_be_bytes());
                }
            }
        }
        &self.bytes[self.starts[first]..self.starts[first + stamps.len()]]
    }
}

/// Both numbers must be above 0.
pub(crate) fn least_common_multiple(a: usize, b: usize) -> usize {
    a / greatest_common_divisor(a, b) * b
}

/// Never 0 for numbers above 0.
fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use amqp::properties::NO_PROPERTIES;
    use amqp::{Frame, FrameKind, Method};

    use super::*;

    fn style(body: &[u8]) -> MessageStyle<'_> {
        let (keys, bodies, properties) = (vec!["q"], vec![body], NO_PROPERTIES);
        let (numbered, mandatory, frame_max, channels) = (true, false, 4096, 1);
        MessageStyle { exchange: "", keys, bodies, numbered, properties, mandatory, frame_max, channels }
    }

    fn batch(size: usize, salt: u8, producer: u16) -> Batch {
        Batch::new(&style(&vec![0; size]), salt, producer)
    }

    fn bodies(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        while let Some(frame) = Frame::parse(bytes, 4096).unwrap() {
            bytes = &bytes[frame.wire_len()..];
            match frame.kind {
                FrameKind::Method => {
                    assert!(
                        matches!(Method::decode(frame.payload), Ok(Method::BasicPublish(p)) if p.routing_key == "q")
                    );
                    bodies.push(Vec::new());
                }
                FrameKind::Body => bodies.last_mut().unwrap().extend_from_slice(frame.payload),
                _ => {}
            }
        }
        assert!(bytes.is_empty());
        bodies
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_number_and_time() {
        let mut batch = batch(20, 9, 300);
        let bodies = bodies(batch.fill(41, &[1000, 2000]));
        for (body, (sequence, stamp)) in bodies.iter().zip([(41, 1000), (42, 2000)]) {
            assert_eq!(body.len(), 20);
            assert_eq!(Identity::read(body, 9), Some(Identity { producer: 300, sequence }));
            assert_eq!(Identity::read(body, 8), None, "another round's");
            assert_eq!(read_stamp(body), Some(stamp));
        }
        assert_eq!(bodies.len(), 2);
    }

    #[test]
    fn keys_and_bodies_take_turns_wherever_a_batch_begins() {
        let bodies = [&[1_u8; 30][..], &[2; 20], &[3; 40]];
        let style =
            MessageStyle { keys: vec!["q", "q"], bodies: bodies.to_vec(), numbered: false, ..style(&[]) };
        let mut batch = Batch::new(&style, 0, 0);
        assert_eq!(batch.cycle, 6);
        assert!(batch.capacity() >= 500, "{}", batch.capacity());
        for sequence in [0, 1, 4, 6_000_005] {
            let count = batch.capacity();
            let bytes = batch.fill(sequence, &vec![0; count]).to_vec();
            let lengths: Vec<usize> = self::bodies(&bytes).iter().map(Vec::len).collect();
            let expected = (sequence..).take(count).map(|n| bodies[n as usize % 3].len());
            assert_eq!(lengths, expected.collect::<Vec<_>>());
            assert_eq!(batch.complete(sequence, bytes.len()), count);
            assert_eq!(batch.complete(sequence, bytes.len() - 1), count - 1);
            assert_eq!(batch.complete(sequence, 0), 0);
        }
    }

    #[test]
    fn channels_take_turns_and_a_message_stays_on_its_own() {
        let body = [0; 5000];
        let mut batch = Batch::new(&MessageStyle { channels: 3, ..style(&body) }, 0, 0);
        for sequence in [0, 4] {
            let mut bytes = batch.fill(sequence, &[0]);
            let mut channels = Vec::new();
            while let Some(frame) = Frame::parse(bytes, 4096).unwrap() {
                channels.push(frame.channel);
                bytes = &bytes[frame.wire_len()..];
            }
            assert_eq!(channels, [CHANNEL + (sequence % 3) as u16; 4]);
        }
    }

    #[test]
    fn bodies_larger_than_a_frame_are_split() {
        let mut batch = batch(100_000, 0, 0);
        assert_eq!(batch.capacity(), 1);
        assert_eq!(bodies(batch.fill(7, &[0])).iter().map(Vec::len).collect::<Vec<_>>(), [100_000]);
    }

    #[test]
    fn short_bodies_carry_only_the_fields_that_fit() {
        assert_eq!(bodies(batch(0, 1, 1).fill(0, &[5, 5])), [b"", b""]);
        let body = &bodies(batch(8, 1, 1).fill(3, &[5]))[0];
        assert_eq!(Identity::read(body, 1), Some(Identity { producer: 1, sequence: 3 }));
        assert_eq!((read_stamp(body), Identity::read(&body[..4], 1)), (None, None));
    }
}
