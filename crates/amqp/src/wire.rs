//! Reading and writing the elementary types of AMQP 0-9-1 (section 4.2.5 of the specification).
//!
//! Consecutive `bit` fields share bytes; [`Reader`] and [`Writer`] keep track of that, so generated code only names the
//! fields in order.

use std::fmt;

use crate::table::RawTable;

/// Input that is not AMQP 0-9-1. Becomes a 502 SYNTAX_ERROR on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    /// The data ended inside a field.
    Truncated,
    /// A short string is not UTF-8 (specification, section 4.2.5.3).
    NotUtf8,
    /// A field value starts with a type letter unknown to both the specification and RabbitMQ.
    UnknownFieldType(u8),
    /// Tables or arrays are nested deeper than [`crate::table::MAX_TABLE_DEPTH`].
    TooDeep,
    /// Bytes are left over after the last field.
    TrailingData,
    /// No method has this class and method id.
    UnknownMethod {
        /// The class id, as received.
        class_id: u16,
        /// The method id, as received.
        method_id: u16,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("data ends inside a field"),
            Self::NotUtf8 => f.write_str("short string is not UTF-8"),
            Self::UnknownFieldType(letter) => write!(f, "unknown field type {:?}", char::from(*letter)),
            Self::TooDeep => f.write_str("tables nested too deeply"),
            Self::TrailingData => f.write_str("data left over after the last field"),
            Self::UnknownMethod { class_id, method_id } => {
                write!(f, "unknown method, class {class_id} method {method_id}")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// Takes fields from the front of a borrowed slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    input: &'a [u8],
    bits: u8,
    bits_left: u8,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `input`.
    pub fn new(input: &'a [u8]) -> Self {
        Self { input, bits: 0, bits_left: 0 }
    }

    /// The bytes that have not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.input
    }

    /// Takes `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.input.split_at_checked(n).ok_or(DecodeError::Truncated)?;
        self.input = tail;
        self.bits_left = 0;
        Ok(head)
    }

    #[inline]
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.input.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.input = tail;
        self.bits_left = 0;
        Ok(*head)
    }

    /// Reads the next field as the type that the context requires.
    ///
    /// # Errors
    /// Any error of that type's encoding.
    #[inline]
    pub fn read<F: Field<'a>>(&mut self) -> Result<F, DecodeError> {
        F::read(self)
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    /// [`DecodeError::TrailingData`] otherwise.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.input.is_empty() { Ok(()) } else { Err(DecodeError::TrailingData) }
    }
}

/// Appends fields to a byte vector.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// Number of bits already used in the last byte of `out`; 0 if no bit field is open.
    bits_used: u8,
}

impl<'o> Writer<'o> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, bits_used: 0 }
    }

    /// Appends bytes as they are.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bits_used = 0;
        self.out.extend_from_slice(bytes);
    }

    /// Appends one field in its wire format.
    #[inline]
    pub fn write<'a, F: Field<'a>>(&mut self, field: &F) {
        field.write(self);
    }
}

/// A type that occurs as a method argument or a content property.
pub trait Field<'a>: Sized {
    /// Takes the field from the reader.
    ///
    /// # Errors
    /// If the input ends too early or is not of this type.
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
    /// Appends the field to the writer.
    fn write(&self, writer: &mut Writer<'_>);
}

macro_rules! integer_fields {
    ($($int:ty),*) => {$(
        impl<'a> Field<'a> for $int {
            #[inline]
            fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                reader.take_array().map(<$int>::from_be_bytes)
            }
            #[inline]
            fn write(&self, writer: &mut Writer<'_>) {
                writer.put(&self.to_be_bytes());
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl<'a> Field<'a> for bool {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if reader.bits_left == 0 {
            let [byte] = reader.take_array()?;
            reader.bits = byte;
            reader.bits_left = 8;
        }
        let bit = reader.bits & 1 == 1;
        reader.bits >>= 1;
        reader.bits_left -= 1;
        Ok(bit)
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        if writer.bits_used == 0 || writer.bits_used == 8 {
            writer.out.push(0);
            writer.bits_used = 0;
        }
        if let Some(last) = writer.out.last_mut() {
            *last |= u8::from(*self) << writer.bits_used;
        }
        writer.bits_used += 1;
    }
}

/// A short string: at most 255 bytes of UTF-8.
impl<'a> Field<'a> for &'a str {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length: u8 = reader.read()?;
        let bytes = reader.take(usize::from(length))?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
    }

    /// Writes at most 255 bytes, the longest possible short string; longer text is cut at a character boundary.
    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        let bytes = truncate_to_short(self).as_bytes();
        // The cast is exact: truncate_to_short returns at most 255 bytes.
        writer.put(&[bytes.len() as u8]);
        writer.put(bytes);
    }
}

/// A long string: bytes, of any content.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length: u32 = reader.read()?;
        reader.take(usize::try_from(length).map_err(|_| DecodeError::Truncated)?)
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        write_length(writer, self.len());
        writer.put(self);
    }
}

impl<'a> Field<'a> for RawTable<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes: &[u8] = reader.read()?;
        RawTable::check(bytes)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.bytes().write(writer);
    }
}

/// Writes a 32-bit length. No AMQP value in memory reaches 4 GiB: frames are far smaller.
pub(crate) fn write_length(writer: &mut Writer<'_>, length: usize) {
    writer.write(&u32::try_from(length).unwrap_or(u32::MAX));
}

/// The longest prefix of `text` that fits a short string and ends on a character boundary.
pub fn truncate_to_short(text: &str) -> &str {
    &text[..text.floor_char_boundary(255)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_share_bytes_until_another_type_follows() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        for bit in [true, false, true] {
            writer.write(&bit);
        }
        writer.write(&7u8);
        writer.write(&true);
        assert_eq!(out, [0b101, 7, 1]);

        let mut reader = Reader::new(&out);
        let bits: [bool; 3] = std::array::from_fn(|_| reader.read().unwrap());
        assert_eq!(bits, [true, false, true]);
        assert_eq!(reader.read::<u8>(), Ok(7));
        assert_eq!(reader.read::<bool>(), Ok(true));
        reader.finish().unwrap();
    }

    #[test]
    fn nine_bits_take_two_bytes() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        (0..9).for_each(|i| writer.write(&(i == 8)));
        assert_eq!(out, [0, 1]);
    }

    #[test]
    fn short_strings_are_cut_at_a_character_boundary() {
        let text = "é".repeat(200);
        let mut out = Vec::new();
        Writer::new(&mut out).write(&text.as_str());
        assert_eq!(usize::from(out[0]), 254);
        assert!(std::str::from_utf8(&out[1..]).is_ok());
    }

    #[test]
    fn lengths_past_the_end_are_refused() {
        assert_eq!(Reader::new(&[5, b'a']).read::<&str>(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&[0xff; 4]).read::<&[u8]>(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&[1, 0xff]).read::<&str>(), Err(DecodeError::NotUtf8));
    }
}
