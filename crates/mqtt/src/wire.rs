//! The elementary types (section 1.5): integers, variable byte integers, UTF-8 strings and binary data.

use crate::fault::MqttFault;

/// The largest value of a variable byte integer, which has at most four bytes (section 1.5.5).
pub(crate) const MAX_VARINT: u32 = 268_435_455;

/// The largest string or binary datum in bytes: its length field has two bytes.
pub const MAX_STRING: usize = u16::MAX as usize;

/// Decodes a variable byte integer at the front of `input`; returns its value and length in bytes. `None` if it
/// is not complete yet.
///
/// # Errors
/// It has more than four bytes, or more than necessary (MQTT-1.5.5-1).
#[inline]
pub(crate) fn varint(input: &[u8]) -> Result<Option<(u32, usize)>, MqttFault> {
    let mut value = 0;
    for (at, byte) in input.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            if *byte == 0 && at > 0 {
                return Err(MqttFault::malformed("variable byte integer longer than necessary"));
            }
            return Ok(Some((value, at + 1)));
        }
    }
    match input.len() {
        0..=3 => Ok(None),
        _ => Err(MqttFault::malformed("variable byte integer of more than four bytes")),
    }
}

/// Bytes that a variable byte integer takes on the wire.
#[inline]
pub(crate) const fn varint_len(value: u32) -> usize {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

/// Appends a variable byte integer; `value` is at most [`MAX_VARINT`].
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    debug_assert!(value <= MAX_VARINT);
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends binary data with its length. Data beyond [`MAX_STRING`] bytes is cut off.
pub(crate) fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_STRING)];
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a string with its length. Text beyond [`MAX_STRING`] bytes is cut off, at a character boundary.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    put_binary(out, &text.as_bytes()[..text.floor_char_boundary(MAX_STRING)]);
}

/// Reads fields from the front of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacketReader<'a> {
    rest: &'a [u8],
}

const ENDED: MqttFault = MqttFault::malformed("packet ends inside a field");

impl<'a> PacketReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes all remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Fails if bytes are left.
    pub(crate) fn finish(self) -> Result<(), MqttFault> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(MqttFault::malformed("bytes left over after the last field"))
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], MqttFault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(ENDED)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, MqttFault> {
        let (first, rest) = self.rest.split_first().ok_or(ENDED)?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, MqttFault> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ENDED)?;
        self.rest = rest;
        Ok(u16::from_be_bytes(*bytes))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MqttFault> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ENDED)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    pub(crate) fn varint(&mut self) -> Result<u32, MqttFault> {
        let (value, len) = varint(self.rest)?.ok_or(ENDED)?;
        self.rest = &self.rest[len..];
        Ok(value)
    }

    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], MqttFault> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Reads a UTF-8 string, which must not contain U+0000 (MQTT-1.5.4-1, MQTT-1.5.4-2).
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a str, MqttFault> {
        let bytes = self.binary()?;
        let text = std::str::from_utf8(bytes).map_err(|_| MqttFault::malformed("string is not UTF-8"))?;
        if bytes.contains(&0) {
            return Err(MqttFault::malformed("string contains U+0000"));
        }
        Ok(text)
    }

    /// Reads a packet identifier, which is never 0 (section 2.2.1).
    #[inline]
    pub(crate) fn packet_id(&mut self) -> Result<u16, MqttFault> {
        match self.u16()? {
            0 => Err(MqttFault::protocol("packet identifier 0")),
            id => Ok(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_byte_integers_are_as_in_the_table_of_the_specification() {
        let cases: [(u32, &[u8]); 8] = [
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (16_383, &[0xff, 0x7f]),
            (16_384, &[0x80, 0x80, 1]),
            (2_097_151, &[0xff, 0xff, 0x7f]),
            (2_097_152, &[0x80, 0x80, 0x80, 1]),
            (MAX_VARINT, &[0xff, 0xff, 0xff, 0x7f]),
        ];
        for (value, bytes) in cases {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(varint_len(value), bytes.len());
            assert_eq!(varint(bytes), Ok(Some((value, bytes.len()))));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }

    #[test]
    fn long_variable_byte_integers_are_refused_as_soon_as_they_are_seen() {
        assert!(varint(&[0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(varint(&[0x80, 0]).is_err(), "0 in two bytes");
    }

    #[test]
    fn strings_are_utf8_without_nul() {
        let read = |bytes: &[u8]| {
            let mut framed = Vec::new();
            put_binary(&mut framed, bytes);
            PacketReader::new(&framed).string().map(str::to_owned)
        };
        assert_eq!(read("A\u{2A6D4}".as_bytes()).as_deref(), Ok("A\u{2A6D4}"));
        assert_eq!(read("\u{FEFF}a".as_bytes()).as_deref(), Ok("\u{FEFF}a"), "a byte order mark is kept");
        assert!(read(b"a\0b").is_err());
        assert!(read(&[0xed, 0xa0, 0x80]).is_err(), "a surrogate");
        assert!(read(&[0xc0, 0x80]).is_err(), "an overlong NUL");
    }

    #[test]
    fn overlong_strings_are_truncated_between_characters() {
        let mut out = Vec::new();
        put_string(&mut out, &"é".repeat(40_000));
        assert_eq!(out.len(), 2 + MAX_STRING - 1);
        assert_eq!(PacketReader::new(&out).string().map(str::len), Ok(MAX_STRING - 1));
    }
}
