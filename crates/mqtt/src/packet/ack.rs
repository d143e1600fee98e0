//! PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7).

use super::{MqttVersion, PacketKind, framed};
use crate::fault::MqttFault;
use crate::properties::{Holder, PacketProperties};
use crate::reason::ReasonCode;
use crate::wire::PacketReader;

/// The packet types that acknowledge a PUBLISH at QoS 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the specification")]
pub enum AckKind {
    PubAck,
    PubRec,
    PubRel,
    PubComp,
}

/// An acknowledgement of a message of QoS 1 or 2, or of another acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Which of the four acknowledgements it is.
    pub kind: AckKind,
    /// The packet identifier of the message.
    pub packet_id: u16,
    /// The outcome; always success before 5.0.
    pub reason: ReasonCode,
    /// Properties; empty before 5.0.
    pub properties: PacketProperties<'a>,
}

impl<'a> Ack<'a> {
    /// Creates an acknowledgement without properties.
    pub const fn new(kind: AckKind, packet_id: u16, reason: ReasonCode) -> Self {
        Self { kind, packet_id, reason, properties: PacketProperties::NONE }
    }

    #[inline]
    pub(super) fn decode(version: MqttVersion, kind: AckKind, body: &'a [u8]) -> Result<Self, MqttFault> {
        let mut reader = PacketReader::new(body);
        let packet_id = reader.packet_id()?;
        let mut ack = Self::new(kind, packet_id, ReasonCode::Success);
        if version.is_5() && !reader.is_empty() {
            ack.reason = ReasonCode::from_code(reader.u8()?)
                .filter(|reason| kind.allows(*reason))
                .ok_or(MqttFault::malformed("unknown reason code"))?;
            // Section 3.4.2.2.1: with a remaining length below 4 there are no properties.
            if !reader.is_empty() {
                ack.properties = PacketProperties::read(&mut reader, Holder::Ack)?;
            }
        }
        reader.finish()?;
        Ok(ack)
    }

    /// Appends the packet. Success without properties is written in the short form.
    #[inline]
    pub fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
        let [high, low] = self.packet_id.to_be_bytes();
        let first = self.kind.first_byte();
        if !version.is_5() || (self.reason == ReasonCode::Success && self.properties.is_empty()) {
            out.extend_from_slice(&[first, 2, high, low]);
        } else if self.properties.is_empty() {
            out.extend_from_slice(&[first, 3, high, low, self.reason.code()]);
        } else {
            framed(out, first, |out| {
                out.extend_from_slice(&[high, low, self.reason.code()]);
                self.properties.put(out);
            });
        }
    }
}

impl AckKind {
    pub(super) const fn packet_kind(self) -> PacketKind {
        match self {
            Self::PubAck => PacketKind::PubAck,
            Self::PubRec => PacketKind::PubRec,
            Self::PubRel => PacketKind::PubRel,
            Self::PubComp => PacketKind::PubComp,
        }
    }

    const fn first_byte(self) -> u8 {
        (self.packet_kind() as u8) << 4 | if matches!(self, Self::PubRel) { 0b10 } else { 0 }
    }

    /// Whether the specification lists the reason for this packet (tables 3.4 to 3.7).
    pub(crate) const fn allows(self, reason: ReasonCode) -> bool {
        match self {
            Self::PubAck | Self::PubRec => matches!(
                reason,
                ReasonCode::Success
                    | ReasonCode::NoMatchingSubscribers
                    | ReasonCode::UnspecifiedError
                    | ReasonCode::ImplementationSpecificError
                    | ReasonCode::NotAuthorized
                    | ReasonCode::TopicNameInvalid
                    | ReasonCode::PacketIdentifierInUse
                    | ReasonCode::QuotaExceeded
                    | ReasonCode::PayloadFormatInvalid
            ),
            Self::PubRel | Self::PubComp => {
                matches!(reason, ReasonCode::Success | ReasonCode::PacketIdentifierNotFound)
            }
        }
    }
}
