//! PUBLISH (section 3.3).

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use super::{QoS, Version};
use crate::fault::Fault;
use crate::properties::{Holder, Properties};
use crate::topic;
use crate::wire::{Reader, put_string, put_varint};

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Its quality.
    pub qos: QoS,
    /// From a client: keep it for later subscribers. To a client: it was kept, or see Retain As Published.
    pub retain: bool,
    /// Empty when a Topic Alias stands for it.
    pub topic: &'a str,
    /// 0 at QoS 0, and never else.
    pub packet_id: u16,
    /// From 5.0 on.
    pub properties: Properties<'a>,
    /// What it says.
    pub payload: Payload<'a>,
}

impl<'a> Publish<'a> {
    #[inline]
    pub(super) fn decode(
        version: Version,
        flags: u8,
        body: &'a [u8],
        backing: Option<&'a Bytes>,
    ) -> Result<Self, Fault> {
        let mut reader = Reader::new(body);
        let qos = QoS::from_level(flags >> 1 & 0b11).ok_or(Fault::malformed("QoS 3"))?;
        let dup = flags & 0b1000 != 0;
        if dup && qos == QoS::AtMostOnce && version != Version::V31 {
            return Err(Fault::malformed("DUP of a message of QoS 0"));
        }
        let topic = reader.string()?;
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { reader.packet_id()? };
        let properties = match version {
            Version::V5 => Properties::read(&mut reader, Holder::Publish)?,
            _ => Properties::NONE,
        };
        if topic.is_empty() && properties.topic_alias().is_some() {
            // The alias stands for it.
        } else {
            topic::check_name(topic)?;
        }
        topic::check_response(&properties)?;
        let payload = Payload { bytes: reader.rest(), backing };
        Ok(Self { dup, qos, retain: flags & 1 != 0, topic, packet_id, properties, payload })
    }

    /// Bytes of the packet without its first byte and Remaining Length.
    #[inline]
    pub fn remaining_len(&self, version: Version) -> usize {
        let packet_id = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = if version.is_5() { self.properties.wire_len() } else { 0 };
        2 + self.topic.len() + packet_id + properties + self.payload.len()
    }

    /// Appends the packet.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        self.encode_head(version, out);
        out.extend_from_slice(&self.payload);
    }

    /// Appends everything but the payload, which is to follow: large ones need not be copied.
    #[inline]
    pub fn encode_head(&self, version: Version, out: &mut Vec<u8>) {
        let len = self.remaining_len(version);
        out.reserve(5 + len - self.payload.len());
        out.push(0x30 | u8::from(self.dup) << 3 | self.qos.level() << 1 | u8::from(self.retain));
        put_varint(out, len as u32);
        put_string(out, self.topic);
        if self.qos != QoS::AtMostOnce {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        if version.is_5() {
            self.properties.put(out);
        }
    }
}

/// The bytes of a message.
#[derive(Clone, Copy, Default)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// What the bytes lie in.
    backing: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// A payload to be sent.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, backing: None }
    }

    /// The bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes for keeping: shared where the packet had to be gathered over several reads, as large ones are, and
    /// copied otherwise, since a small slice would keep everything that was read with it.
    pub fn to_bytes(&self) -> Bytes {
        match self.backing {
            Some(backing) => backing.slice_ref(self.bytes),
            None => Bytes::copy_from_slice(self.bytes),
        }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// The first bytes and how many there are.
impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.bytes[..self.bytes.len().min(32)];
        write!(f, "Payload(\"{}\", {} bytes)", shown.escape_ascii(), self.bytes.len())
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}
