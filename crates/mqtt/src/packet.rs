//! Control packets (section 3), sent and received by either end, in all versions.
//!
//! Decoding borrows: strings, properties and payloads point into the bytes that were read. A decoded packet is well-formed
//! for its version. The connection checks whether the peer may send it in the current state.

mod ack;
mod connack;
mod connect;
mod disconnect;
mod publish;
mod reasons;
mod subscribe;

pub use ack::{Ack, AckKind};
pub use connack::ConnAck;
pub use connect::{ConnectPacket, Will};
pub use disconnect::{Auth, Disconnect};
pub use publish::{Payload, PublishPacket};
pub use reasons::Reasons;
pub use subscribe::{
    Filters, Requests, RetainHandling, SubAck, Subscribe, SubscribeOptions, SubscribeRequest, UnsubAck,
    Unsubscribe,
};

use bytes::Bytes;

use crate::fault::MqttFault;
use crate::wire::{put_varint, varint_len};

/// A version of the protocol; the CONNECT names it, and it applies to all packets that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MqttVersion {
    /// MQTT 3.1, protocol name `MQIsdp`, level 3.
    V31,
    /// MQTT 3.1.1, level 4.
    V311,
    /// MQTT 5.0, level 5.
    V5,
}

impl MqttVersion {
    /// Whether packets have properties and reason codes.
    pub const fn is_5(self) -> bool {
        matches!(self, Self::V5)
    }
}

/// Quality of service (section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum QoS {
    /// At most once.
    #[default]
    AtMostOnce,
    /// At least once.
    AtLeastOnce,
    /// Exactly once.
    ExactlyOnce,
}

impl QoS {
    /// 0, 1 or 2.
    pub const fn level(self) -> u8 {
        self as u8
    }

    /// The quality with this number.
    pub const fn from_level(level: u8) -> Option<Self> {
        match level {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// The packet type in the first byte of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the specification")]
pub enum PacketKind {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketKind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Connect,
            2 => Self::ConnAck,
            3 => Self::Publish,
            4 => Self::PubAck,
            5 => Self::PubRec,
            6 => Self::PubRel,
            7 => Self::PubComp,
            8 => Self::Subscribe,
            9 => Self::SubAck,
            10 => Self::Unsubscribe,
            11 => Self::UnsubAck,
            12 => Self::PingReq,
            13 => Self::PingResp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// Splits a first byte into type and flags, and checks them as far as the version does not matter (section 2.1.3).
    ///
    /// # Errors
    /// A reserved type, or flags that the type cannot have.
    pub fn parse(first: u8) -> Result<(Self, u8), MqttFault> {
        let kind = Self::from_number(first >> 4).ok_or(MqttFault::malformed("reserved packet type"))?;
        let flags = first & 0x0f;
        let fits = match kind {
            Self::Publish => flags & 0b0110 != 0b0110,
            // MQTT 3.1 has DUP in SUBSCRIBE and UNSUBSCRIBE, too.
            Self::PubRel | Self::Subscribe | Self::Unsubscribe => flags & 0b0111 == 0b0010,
            _ => flags == 0,
        };
        if fits { Ok((kind, flags)) } else { Err(MqttFault::malformed("reserved flags of a packet are set")) }
    }
}

/// A control packet of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the specification")]
pub enum Packet<'a> {
    Connect(Box<ConnectPacket<'a>>),
    ConnAck(ConnAck<'a>),
    Publish(PublishPacket<'a>),
    Ack(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes a whole packet from its first byte and the bytes after its Remaining Length. `backing` is the
    /// buffer that contains `body`, if it is shared: payloads are taken from there without a copy.
    ///
    /// A CONNECT names its own version, and `version` is ignored.
    ///
    /// # Errors
    /// The packet is not valid in this version.
    pub fn decode(
        version: MqttVersion,
        first: u8,
        body: &'a [u8],
        backing: Option<&'a Bytes>,
    ) -> Result<Self, MqttFault> {
        let (kind, flags) = PacketKind::parse(first)?;
        if version != MqttVersion::V31 && kind != PacketKind::Publish && flags & 0b1000 != 0 {
            return Err(MqttFault::malformed("reserved flags of a packet are set"));
        }
        let nothing = |packet| match body {
            [] => Ok(packet),
            _ => Err(MqttFault::malformed("body in a packet type that has none")),
        };
        match kind {
            PacketKind::Connect => ConnectPacket::decode(body).map(Box::new).map(Self::Connect),
            PacketKind::ConnAck => ConnAck::decode(version, body).map(Self::ConnAck),
            PacketKind::Publish => PublishPacket::decode(version, flags, body, backing).map(Self::Publish),
            PacketKind::PubAck => Ack::decode(version, AckKind::PubAck, body).map(Self::Ack),
            PacketKind::PubRec => Ack::decode(version, AckKind::PubRec, body).map(Self::Ack),
            PacketKind::PubRel => Ack::decode(version, AckKind::PubRel, body).map(Self::Ack),
            PacketKind::PubComp => Ack::decode(version, AckKind::PubComp, body).map(Self::Ack),
            PacketKind::Subscribe => Subscribe::decode(version, body).map(Self::Subscribe),
            PacketKind::SubAck => SubAck::decode(version, body).map(Self::SubAck),
            PacketKind::Unsubscribe => Unsubscribe::decode(version, body).map(Self::Unsubscribe),
            PacketKind::UnsubAck => UnsubAck::decode(version, body).map(Self::UnsubAck),
            PacketKind::PingReq => nothing(Self::PingReq),
            PacketKind::PingResp => nothing(Self::PingResp),
            PacketKind::Disconnect => Disconnect::decode(version, body).map(Self::Disconnect),
            PacketKind::Auth => Auth::decode(version, body).map(Self::Auth),
        }
    }

    /// Appends the encoded packet.
    pub fn encode(&self, version: MqttVersion, out: &mut Vec<u8>) {
        match self {
            Self::Connect(packet) => packet.encode(out),
            Self::ConnAck(packet) => packet.encode(version, out),
            Self::Publish(packet) => packet.encode(version, out),
            Self::Ack(packet) => packet.encode(version, out),
            Self::Subscribe(packet) => packet.encode(version, out),
            Self::SubAck(packet) => packet.encode(version, out),
            Self::Unsubscribe(packet) => packet.encode(version, out),
            Self::UnsubAck(packet) => packet.encode(version, out),
            Self::PingReq => out.extend_from_slice(&[0xc0, 0]),
            Self::PingResp => out.extend_from_slice(&[0xd0, 0]),
            Self::Disconnect(packet) => packet.encode(version, out),
            Self::Auth(packet) => packet.encode(out),
        }
    }

    /// The type of the packet.
    pub fn kind(&self) -> PacketKind {
        match self {
            Self::Connect(_) => PacketKind::Connect,
            Self::ConnAck(_) => PacketKind::ConnAck,
            Self::Publish(_) => PacketKind::Publish,
            Self::Ack(ack) => ack.kind.packet_kind(),
            Self::Subscribe(_) => PacketKind::Subscribe,
            Self::SubAck(_) => PacketKind::SubAck,
            Self::Unsubscribe(_) => PacketKind::Unsubscribe,
            Self::UnsubAck(_) => PacketKind::UnsubAck,
            Self::PingReq => PacketKind::PingReq,
            Self::PingResp => PacketKind::PingResp,
            Self::Disconnect(_) => PacketKind::Disconnect,
            Self::Auth(_) => PacketKind::Auth,
        }
    }
}

/// Appends a packet whose length is known only after its body has been written.
fn framed(out: &mut Vec<u8>, first: u8, write_body: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[first, 0]);
    let start = out.len();
    write_body(out);
    let len = out.len() - start;
    // The length nearly always takes one byte, which is reserved already.
    let extra = varint_len(len as u32) - 1;
    if extra > 0 {
        out.resize(out.len() + extra, 0);
        out.copy_within(start..start + len, start + extra);
    }
    let mut header = Vec::with_capacity(4);
    put_varint(&mut header, len as u32);
    out[start - 1..start + extra].copy_from_slice(&header);
}
