//! PUBLISH (section 3.3).

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use super::{MqttVersion, QoS};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::topic;
use crate::wire::{PacketReader, put_string, put_varint};

/// PUBLISH: a message in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishPacket<'a> {
    /// Whether it may have been sent before.
    pub dup: bool,
    /// The quality at which it is sent.
    pub qos: QoS,
    /// From a client: store it for later subscribers. To a client: it was stored, or see Retain As Published.
    pub retain: bool,
    /// The topic name; empty if a Topic Alias replaces it.
    pub topic: &'a str,
    /// The packet identifier; 0 at QoS 0 and only there.
    pub packet_id: u16,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
    /// The payload of the message.
    pub payload: Payload<'a>,
}

impl<'a> PublishPacket<'a> {
    #[inline]
    pub(super) fn decode(
        version: MqttVersion,
        flags: u8,
        body: &'a [u8],
        backing: Option<&'a Bytes>,
    ) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(body);
        let qos = QoS::from_level(flags >> 1 & 0b11).ok_or(MqttFault::malformed("QoS 3"))?;
        let dup = flags & 0b1000 != 0;
        if dup && qos == QoS::AtMostOnce && version != MqttVersion::V31 {
            return Err(MqttFault::malformed("DUP of a message of QoS 0"));
        }
        let topic = reader.string()?;
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { reader.packet_id()? };
        let properties = match version {
            MqttVersion::V5 => PacketProperties::read(&mut reader, Holder::Publish)?,
            _ => PacketProperties::NONE,
        };
        if topic.is_empty() && properties.topic_alias().is_some() {
            // The alias replaces it.
        } else {
            topic::check_name(topic)?;
        }
        topic::check_response(&properties)?;
        let payload = Payload { bytes: reader.rest(), backing };
        Ok(Self { dup, qos, retain: flags & 1 != 0, topic, packet_id, properties, payload })
    }

    /// Bytes of the packet without its first byte and Remaining Length.
    #[inline]
    pub(crate) fn remaining_len(&self, version: MqttVersion) -> usize {
        let packet_id = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = if version.is_5() { self.properties.wire_len() } else { 0 };
        2 + self.topic.len() + packet_id + properties + self.payload.len()
    }

    /// Appends the encoded packet.
    #[inline]
    pub fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
        self.encode_head(version, out);
        out.extend_from_slice(&self.payload);
    }

    /// Appends everything but the payload, which the caller appends: large payloads need not be copied.
    #[inline]
    pub(crate) fn encode_head(&self, version: MqttVersion, out: &mut Vec<u8>) {
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

/// The payload of a message.
#[derive(Clone, Copy, Default)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The shared buffer that contains the bytes.
    backing: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// Creates a payload to be sent.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, backing: None }
    }

    /// The bytes of the payload.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes as an owned value: shared if the packet was gathered over several reads, as large ones are,
    /// and copied otherwise, since a small slice would keep the whole receive buffer alive.
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

/// Prints the first bytes and the length.
impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = &self.bytes[..self.bytes.len().min(32)];
        write!(f, "Payload(\"{}\", {} bytes)", view.escape_ascii(), self.bytes.len())
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}
