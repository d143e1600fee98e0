//! The header of a frame (RFC 6455, 5.2).

use crate::fault::WebSocketFault;

/// Bytes of the longest header: two, a length of eight, a masking key of four.
pub const MAX_HEADER_LEN: usize = 14;

/// Bytes of the longest payload of a control frame (5.5).
pub(crate) const MAX_CONTROL_PAYLOAD: usize = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
/// The reserved bit that permessage-deflate uses (RFC 7692, 6).
const COMPRESSED: u8 = 0x40;
const MASKED: u8 = 0x80;
/// The length is in the next two bytes.
const LENGTH_16: u8 = 126;
/// The length is in the next eight bytes.
const LENGTH_64: u8 = 127;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// Continues a message.
    Continuation = 0,
    /// Begins a text message.
    Text = 1,
    /// Begins a binary message.
    Binary = 2,
    /// The last frame of a side.
    Close = 8,
    /// To be answered with a pong.
    Ping = 9,
    /// The answer to a ping, or an unsolicited heartbeat.
    Pong = 10,
}

impl Opcode {
    /// Whether it may come between the frames of a message, unfragmented and short.
    pub(crate) const fn is_control(self) -> bool {
        self as u8 & 8 != 0
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }
}

/// Everything of a frame except its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The type of the frame.
    pub opcode: Opcode,
    /// Whether its message ends with it.
    pub fin: bool,
    /// Whether the message that begins with it is compressed (RFC 7692).
    pub compressed: bool,
    /// The masking key; clients mask, servers do not.
    pub mask: Option<[u8; 4]>,
    /// Length of the payload in bytes.
    pub len: u64,
}

impl FrameHeader {
    /// Parses a header from the front of `input`, and returns it with its length. `None` asks for more bytes; a fault
    /// is reported with the first byte that shows it. Messages may be compressed if `deflate` was negotiated.
    ///
    /// # Errors
    /// 1002 for reserved bits, unknown opcodes, fragmented or long control frames, and lengths that are not in their
    /// shortest encoding or exceed 63 bits.
    pub fn parse(input: &[u8], deflate: bool) -> Result<Option<(Self, usize)>, WebSocketFault> {
        let Some(&first) = input.first() else { return Ok(None) };
        let compressed = deflate && first & COMPRESSED != 0;
        if first & RESERVED & !(if compressed { COMPRESSED } else { 0 }) != 0 {
            return Err(WebSocketFault::protocol("reserved bits without an extension"));
        }
        let opcode = Opcode::from_bits(first & 0x0f).ok_or(WebSocketFault::protocol("unknown opcode"))?;
        if compressed && !matches!(opcode, Opcode::Text | Opcode::Binary) {
            return Err(WebSocketFault::protocol("RSV1 set on a continuation or control frame"));
        }
        let fin = first & FIN != 0;
        if opcode.is_control() && !fin {
            return Err(WebSocketFault::protocol("fragmented control frame"));
        }
        let Some(&second) = input.get(1) else { return Ok(None) };
        let short = second & !MASKED;
        if opcode.is_control() && short as usize > MAX_CONTROL_PAYLOAD {
            return Err(WebSocketFault::protocol("control frame longer than 125 bytes"));
        }
        let rest = &input[2..];
        let (len, rest) = match short {
            LENGTH_16 => {
                let Some((bytes, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
                (u64::from(u16::from_be_bytes(*bytes)), rest)
            }
            LENGTH_64 => {
                let Some((bytes, rest)) = rest.split_first_chunk::<8>() else { return Ok(None) };
                (u64::from_be_bytes(*bytes), rest)
            }
            _ => (u64::from(short), rest),
        };
        if len >> 63 != 0 {
            return Err(WebSocketFault::protocol("length of 64 bits"));
        }
        if short_length(len) != short {
            return Err(WebSocketFault::protocol("length not written as shortly as possible"));
        }
        let (mask, rest) = if second & MASKED == 0 {
            (None, rest)
        } else {
            let Some((key, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
            (Some(*key), rest)
        };
        Ok(Some((Self { opcode, fin, compressed, mask, len }, input.len() - rest.len())))
    }

    /// The header in wire format.
    pub fn encode(&self) -> HeaderBytes {
        let mut bytes = [0; MAX_HEADER_LEN];
        let short = short_length(self.len);
        bytes[0] =
            self.opcode as u8 | if self.fin { FIN } else { 0 } | if self.compressed { COMPRESSED } else { 0 };
        bytes[1] = short | if self.mask.is_some() { MASKED } else { 0 };
        let mut used = 2;
        match short {
            LENGTH_16 => {
                bytes[2..4].copy_from_slice(&(self.len as u16).to_be_bytes());
                used += 2;
            }
            LENGTH_64 => {
                bytes[2..10].copy_from_slice(&self.len.to_be_bytes());
                used += 8;
            }
            _ => {}
        }
        if let Some(key) = self.mask {
            bytes[used..used + 4].copy_from_slice(&key);
            used += 4;
        }
        HeaderBytes { bytes, used: used as u8 }
    }
}

/// A header in wire format.
#[derive(Debug, Clone, Copy)]
pub struct HeaderBytes {
    bytes: [u8; MAX_HEADER_LEN],
    used: u8,
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used)]
    }
}

/// The seven bits that encode a short length, or that say where the length is.
fn short_length(len: u64) -> u8 {
    match len {
        0..=125 => len as u8,
        126..=0xffff => LENGTH_16,
        _ => LENGTH_64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_a_round_trip_and_every_cut_asks_for_more() {
        for len in [0, 1, 125, 126, 127, 65535, 65536, u64::MAX >> 1] {
            for mask in [None, Some([1, 2, 3, 4])] {
                for (opcode, fin) in
                    [(Opcode::Continuation, false), (Opcode::Text, true), (Opcode::Binary, false)]
                {
                    let header = FrameHeader { opcode, fin, compressed: false, mask, len };
                    let bytes = header.encode();
                    let bytes = bytes.as_ref();
                    assert_eq!(FrameHeader::parse(bytes, false), Ok(Some((header, bytes.len()))));
                    for cut in 0..bytes.len() {
                        assert_eq!(FrameHeader::parse(&bytes[..cut], false), Ok(None));
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_could_be_shorter_are_refused() {
        for bytes in [&[0x82, 126, 0, 125][..], &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff]] {
            assert_eq!(
                FrameHeader::parse(bytes, false).unwrap_err().reason,
                "length not written as shortly as possible"
            );
        }
        let too_long = [0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(FrameHeader::parse(&too_long, false).unwrap_err().reason, "length of 64 bits");
    }

    #[test]
    fn a_header_fault_is_reported_at_the_first_byte_that_shows_it() {
        assert!(FrameHeader::parse(&[0xc1], false).is_err(), "reserved bit");
        assert!(FrameHeader::parse(&[0x83], false).is_err(), "opcode");
        assert!(FrameHeader::parse(&[0x09], false).is_err(), "fragmented ping");
        assert!(FrameHeader::parse(&[0x89, 0xfe], false).is_err(), "long ping");
    }

    #[test]
    fn the_compression_bit_is_valid_only_if_negotiated_and_on_a_first_frame() {
        for byte in [0xc1, 0xc2, 0x41, 0x42] {
            assert_eq!(FrameHeader::parse(&[byte], true), Ok(None));
            assert!(FrameHeader::parse(&[byte], false).is_err());
        }
        for byte in [0xc0, 0xc8, 0xc9, 0xca, 0xe1, 0xd1, 0xa1, 0x91] {
            assert!(FrameHeader::parse(&[byte], true).is_err(), "{byte:x}");
        }
        let header = FrameHeader { opcode: Opcode::Binary, fin: true, compressed: true, mask: None, len: 5 };
        assert_eq!(FrameHeader::parse(header.encode().as_ref(), true), Ok(Some((header, 2))));
    }
}
