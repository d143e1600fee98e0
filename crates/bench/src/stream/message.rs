//! The messages that producers send and consumers recognise.
//!
//! A body of 8 octets or more starts with its identity: 8 bits of the round (the salt), 16 bits of producer, 40 bits
//! of sequence number. From 16 octets on, the time it was sent (at a fixed rate: was due) follows, in nanoseconds
//! since the round began. Both are big-endian.

use amqp::frame::{self, max_body_payload, write_body, write_content_header, write_method};
use amqp::method::basic;
use amqp::properties::{NO_PROPERTIES, PERSISTENT, Properties};

/// Producers that an identity can tell apart.
pub(crate) const MAX_PRODUCERS: usize = 1 << 16;
/// Octets of body that identify a message.
pub(crate) const IDENTITY_LEN: usize = 8;
/// Octets of body that identify and date a message.
pub(crate) const STAMPED_LEN: usize = 16;
/// The channel that everything happens on.
pub(crate) const CHANNEL: u16 = 1;

const SEQUENCE_BITS: u32 = 40;
/// What a batch takes on the wire, at most, unless one message is larger: enough to make the cost of a write
/// negligible, little enough that messages do not wait for each other long.
const BATCH_BYTES: usize = 64 * 1024;

/// Which message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) producer: u16,
    /// From 0.
    pub(crate) sequence: u64,
}

impl Identity {
    /// Reads the identity that a body starts with; `None` when it was not sent in the round with this salt.
    #[inline]
    pub(crate) fn read(body: &[u8], salt: u8) -> Option<Self> {
        let raw = u64::from_be_bytes(*body.first_chunk()?);
        ((raw >> 56) as u8 == salt).then_some(Self {
            producer: (raw >> SEQUENCE_BITS) as u16,
            sequence: raw & ((1 << SEQUENCE_BITS) - 1),
        })
    }

    fn octets(self, salt: u8) -> [u8; IDENTITY_LEN] {
        let producer = u64::from(self.producer) << SEQUENCE_BITS;
        (u64::from(salt) << 56 | producer | self.sequence & ((1 << SEQUENCE_BITS) - 1)).to_be_bytes()
    }
}

/// The time that a body of [`STAMPED_LEN`] octets or more carries.
#[inline]
pub(crate) fn read_stamp(body: &[u8]) -> Option<u64> {
    body.get(IDENTITY_LEN..)?.first_chunk().map(|octets| u64::from_be_bytes(*octets))
}

/// How messages are published.
#[derive(Debug, Clone)]
pub(crate) struct Style<'a> {
    pub(crate) queue: &'a str,
    pub(crate) size: usize,
    pub(crate) persistent: bool,
    pub(crate) mandatory: bool,
    pub(crate) frame_max: u32,
}

/// A buffer full of copies of one encoded message, in which only identities and times change.
#[derive(Debug)]
pub(crate) struct Batch {
    octets: Vec<u8>,
    message_len: usize,
    /// Where the body starts in a message.
    body_at: usize,
    body_len: usize,
    salt: u8,
    producer: u16,
}

impl Batch {
    pub(crate) fn new(style: &Style<'_>, salt: u8, producer: u16) -> Self {
        let mut message = Vec::new();
        let publish =
            basic::Publish { routing_key: style.queue, mandatory: style.mandatory, ..Default::default() };
        write_method(&mut message, CHANNEL, publish);
        let mut properties = Vec::new();
        if style.persistent {
            Properties::default().with_delivery_mode(PERSISTENT).encode(&mut properties);
        } else {
            properties.extend_from_slice(NO_PROPERTIES);
        }
        write_content_header(&mut message, CHANNEL, style.size as u64, &properties);
        let body_at = message.len() + frame::HEADER_LEN;
        let body: Vec<u8> = (0..style.size).map(|n| n as u8).collect();
        body.chunks(max_body_payload(style.frame_max))
            .for_each(|piece| write_body(&mut message, CHANNEL, piece));
        let capacity = (BATCH_BYTES / message.len()).max(1);
        Self {
            octets: message.repeat(capacity),
            message_len: message.len(),
            body_at,
            body_len: style.size,
            salt,
            producer,
        }
    }

    /// Messages that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.octets.len() / self.message_len
    }

    /// Octets of one message on the wire.
    pub(crate) fn message_len(&self) -> usize {
        self.message_len
    }

    /// Encodes as many messages as there are `stamps`, at most [`Batch::capacity`], the first with number `sequence`.
    #[inline]
    pub(crate) fn fill(&mut self, sequence: u64, stamps: &[u64]) -> &[u8] {
        let end = self.message_len * stamps.len();
        if self.body_len >= IDENTITY_LEN {
            let messages = self.octets[..end].chunks_exact_mut(self.message_len);
            for ((message, stamp), sequence) in messages.zip(stamps).zip(sequence..) {
                let body = &mut message[self.body_at..];
                let identity = Identity { producer: self.producer, sequence };
                body[..IDENTITY_LEN].copy_from_slice(&identity.octets(self.salt));
                if self.body_len >= STAMPED_LEN {
                    body[IDENTITY_LEN..STAMPED_LEN].copy_from_slice(&stamp.to_be_bytes());
                }
            }
        }
        &self.octets[..end]
    }
}

#[cfg(test)]
mod tests {
    use amqp::{Frame, FrameKind, Method};

    use super::*;

    fn style(size: usize) -> Style<'static> {
        Style { queue: "q", size, persistent: true, mandatory: false, frame_max: 4096 }
    }

    fn bodies(mut octets: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies: Vec<Vec<u8>> = Vec::new();
        while let Some(frame) = Frame::parse(octets, 4096).unwrap() {
            octets = &octets[frame.wire_len()..];
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
        assert!(octets.is_empty());
        bodies
    }

    #[test]
    fn each_message_of_a_batch_has_its_own_number_and_time() {
        let mut batch = Batch::new(&style(20), 9, 300);
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
    fn bodies_larger_than_a_frame_are_split() {
        let mut batch = Batch::new(&style(100_000), 0, 0);
        assert_eq!(batch.capacity(), 1);
        assert_eq!(bodies(batch.fill(7, &[0])).iter().map(Vec::len).collect::<Vec<_>>(), [100_000]);
    }

    #[test]
    fn short_bodies_carry_what_fits() {
        assert_eq!(bodies(Batch::new(&style(0), 1, 1).fill(0, &[5, 5])), [b"", b""]);
        let body = &bodies(Batch::new(&style(8), 1, 1).fill(3, &[5]))[0];
        assert_eq!(Identity::read(body, 1), Some(Identity { producer: 1, sequence: 3 }));
        assert_eq!((read_stamp(body), Identity::read(&body[..4], 1)), (None, None));
    }
}
