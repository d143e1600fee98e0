//! Decodes incoming packets.

use bytes::Bytes;

use crate::fault::MqttFault;
use crate::packet::{MqttVersion, Packet, PacketKind};
use crate::reason::ReasonCode;
use crate::wire;

/// The largest fixed header, in bytes: one for type and flags, and up to four of Remaining Length.
pub const MAX_HEADER_LEN: usize = 5;

/// The fixed header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedHeader {
    /// The byte with packet type and flags.
    pub first: u8,
    /// Bytes of the header itself, from 2 to 5.
    pub len: usize,
    /// Remaining Length: bytes that follow the header.
    pub remaining: u32,
}

impl FixedHeader {
    /// Parses the header at the front of `input`; `None` if it is not complete yet.
    ///
    /// # Errors
    /// A reserved packet type, reserved flags, or a malformed length, reported as soon as it can be detected.
    #[inline]
    pub fn parse(input: &[u8]) -> Result<Option<Self>, MqttFault> {
        let Some((first, rest)) = input.split_first() else { return Ok(None) };
        PacketKind::parse(*first)?;
        Ok(wire::varint(rest)?.map(|(remaining, len)| Self { first: *first, len: 1 + len, remaining }))
    }

    /// Bytes of the whole packet, including the header.
    pub fn packet_len(&self) -> usize {
        self.len + self.remaining as usize
    }
}

/// The progress of one call of [`PacketDecoder::decode`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeStep<'a> {
    /// Bytes of the input that were consumed.
    pub taken: usize,
    /// The packet that ends there. `None` if no packet is complete; bytes that were not consumed have to be
    /// passed again, followed by more.
    pub packet: Option<Packet<'a>>,
}

/// Decodes packets from a stream.
///
/// A packet that lies whole in the input is borrowed from there. A small packet that is incomplete is left in the input;
/// a large one is gathered in the decoder, so that no other buffer has to hold it. Its payload can then be shared.
#[derive(Debug)]
pub struct PacketDecoder {
    version: MqttVersion,
    /// The largest packet accepted, in bytes.
    limit: u32,
    /// A large packet that is incomplete: its header and the part of its body received so far.
    gathering: Option<Box<(FixedHeader, Vec<u8>)>>,
    /// The body of the last packet returned, if it was gathered.
    gathered: Bytes,
}

impl PacketDecoder {
    /// Creates a decoder at the first byte of a stream. `limit` is the size in bytes of the largest packet accepted.
    pub fn new(version: MqttVersion, limit: u32) -> Self {
        Self { version, limit, gathering: None, gathered: Bytes::new() }
    }

    /// Sets the version and the limit for the packets that follow: for a server, once the CONNECT has been decoded.
    pub fn set(&mut self, version: MqttVersion, limit: u32) {
        self.version = version;
        self.limit = limit;
    }

    /// Decodes the packet at the front of `input`.
    ///
    /// # Errors
    /// The packet is malformed, or its header announces more bytes than the limit. The stream is unusable from then on.
    #[inline]
    pub fn decode<'a>(&'a mut self, input: &'a [u8]) -> Result<DecodeStep<'a>, MqttFault> {
        if self.gathering.is_some() || !self.gathered.is_empty() {
            return self.gather(input);
        }
        let Some(header) = self.header(input)? else { return Ok(DecodeStep { taken: 0, packet: None }) };
        let len = header.packet_len();
        if let Some(body) = input.get(header.len..len) {
            let packet = Packet::decode(self.version, header.first, body, None)?;
            return Ok(DecodeStep { taken: len, packet: Some(packet) });
        }
        if len <= MAX_LEFT {
            return Ok(DecodeStep { taken: 0, packet: None });
        }
        self.gathering = Some(Box::new((header, input[header.len..].to_vec())));
        Ok(DecodeStep { taken: input.len(), packet: None })
    }

    fn header(&self, input: &[u8]) -> Result<Option<FixedHeader>, MqttFault> {
        let header = FixedHeader::parse(input)?;
        match header {
            Some(header) if header.packet_len() > self.limit as usize => {
                Err(MqttFault::new(ReasonCode::PacketTooLarge, "packet larger than the limit"))
            }
            _ => Ok(header),
        }
    }

    #[cold]
    fn gather<'a>(&'a mut self, input: &'a [u8]) -> Result<DecodeStep<'a>, MqttFault> {
        // A caller that stored the payload has its own reference to it.
        self.gathered = Bytes::new();
        let Some(gathering) = &mut self.gathering else { return self.decode(input) };
        let (header, body) = &mut **gathering;
        let missing = header.remaining as usize - body.len();
        let taken = missing.min(input.len());
        // Grows with the bytes received, and never beyond the announced length.
        if body.capacity() - body.len() < taken {
            let wanted = (body.len() * 2).max(body.len() + taken).min(header.remaining as usize);
            body.reserve_exact(wanted - body.len());
        }
        body.extend_from_slice(&input[..taken]);
        if taken < missing {
            return Ok(DecodeStep { taken, packet: None });
        }
        let first = header.first;
        self.gathered = Bytes::from(std::mem::take(body));
        self.gathering = None;
        let packet = Packet::decode(self.version, first, &self.gathered, Some(&self.gathered))?;
        Ok(DecodeStep { taken, packet: Some(packet) })
    }
}

/// The largest packet, in bytes, that is left in the input until the rest of it arrives. Larger ones are
/// gathered, which costs a copy but keeps the reader's buffer small.
pub(crate) const MAX_LEFT: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Payload, PublishPacket, QoS};
    use crate::properties::PacketProperties;

    fn publish(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        PublishPacket {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: "a/b",
            packet_id: 7,
            properties: PacketProperties::NONE,
            payload: Payload::new(payload),
        }
        .encode(MqttVersion::V5, &mut out);
        out
    }

    #[test]
    fn the_limit_is_judged_by_the_header_alone() {
        let packet = publish(&[7; 300]);
        let mut decoder = PacketDecoder::new(MqttVersion::V5, packet.len() as u32 - 1);
        assert_eq!(decoder.decode(&packet[..2]), Ok(DecodeStep { taken: 0, packet: None }));
        assert_eq!(decoder.decode(&packet[..3]).map_err(|fault| fault.code), Err(ReasonCode::PacketTooLarge));
        let mut decoder = PacketDecoder::new(MqttVersion::V5, packet.len() as u32);
        assert_eq!(decoder.decode(&packet).map(|step| step.taken), Ok(packet.len()));
    }

    #[test]
    fn nothing_is_allocated_for_a_length_that_was_merely_announced() {
        let mut decoder = PacketDecoder::new(MqttVersion::V5, u32::MAX);
        let step = decoder.decode(&[0x30, 0xff, 0xff, 0xff, 0x7f, 0]).expect("it is a beginning");
        assert_eq!(step.taken, 6);
        let mut input = [0; 100];
        for _ in 0..50 {
            decoder.decode(&input).expect("it goes on");
            input[0] ^= 1;
        }
        let (_, body) = &**decoder.gathering.as_ref().expect("it is under way");
        assert_eq!(body.len(), 5001);
        assert!(body.capacity() <= 2 * 5001, "{}", body.capacity());
    }

    #[test]
    fn a_large_packet_is_gathered_once_and_shared() {
        let packet = publish(&[9; 100_000]);
        let mut decoder = PacketDecoder::new(MqttVersion::V5, u32::MAX);
        let (first, second) = packet.split_at(50_000);
        assert_eq!(decoder.decode(first), Ok(DecodeStep { taken: 50_000, packet: None }));
        let step = decoder.decode(second).expect("it is a packet");
        assert_eq!(step.taken, second.len());
        let Some(Packet::Publish(publish)) = step.packet else { panic!("it is whole") };
        let copied = publish.payload.to_bytes();
        assert_eq!(copied.as_ptr(), publish.payload.as_ptr(), "no copy");
        assert_eq!(copied, [9; 100_000][..]);
        assert_eq!(decoder.decode(&[0xc0, 0]).map(|step| step.packet), Ok(Some(Packet::PingReq)));
        assert!(decoder.gathered.is_empty(), "the decoder lets go of it");
    }

    #[test]
    fn an_idle_decoder_is_a_few_words() {
        assert!(size_of::<PacketDecoder>() <= 6 * size_of::<usize>());
    }
}
