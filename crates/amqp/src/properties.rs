//! Content headers: body size and the fourteen properties of a basic message.

use crate::error::{Fault, ReplyCode};
use crate::method::BASIC_CLASS;
use crate::table::{FieldValue, RawTable, find_value};
use crate::wire::{DecodeError, Field, Reader, Writer};

/// A decoded content header whose properties are still in wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContentHeader<'a> {
    /// The class id; 60 (basic) in every valid header.
    pub class_id: u16,
    /// Not used by any version of the protocol, and 0 in every valid header.
    pub weight: u16,
    /// Bytes of the body that follows.
    pub body_size: u64,
    /// Property flags and property list, not yet validated.
    pub properties: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Decodes the payload of a header frame.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if it is shorter than its fixed part.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let (class_id, weight) = (reader.read()?, reader.read()?);
        Ok(Self { class_id, weight, body_size: reader.read()?, properties: reader.rest() })
    }

    /// Validates class and weight, as RabbitMQ does (`rabbit_command_assembler`).
    ///
    /// # Errors
    /// 505 UNEXPECTED_FRAME for any class but basic, and for a weight other than 0.
    #[inline]
    pub fn check(&self) -> Result<(), Fault> {
        if self.is_valid() { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Whether [`Self::check`] accepts the header.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.class_id == BASIC_CLASS && self.weight == 0
    }

    #[cold]
    fn unexpected(&self) -> Fault {
        let instead = match self.weight {
            0 => format!("got one for class {} instead", self.class_id),
            // RabbitMQ does not regard it as a content header at all.
            _ => "got non content header frame instead".to_owned(),
        };
        let text = format!("expected content header for class {BASIC_CLASS}, {instead}");
        Fault::new(ReplyCode::UnexpectedFrame, text)
    }
}

macro_rules! properties {
    ($($bit:literal $name:ident $set:ident $kind:ty),* $(,)?) => {
        /// The properties of a basic message, each present or absent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[expect(missing_docs, reason = "named as in the specification")]
        pub struct Properties<'a> { $(pub $name: Option<$kind>),* }

        impl<'a> Properties<'a> {
            /// Decodes flags and list as they are in a content header.
            ///
            /// # Errors
            /// Malformed fields, unknown flags (as [`DecodeError::TrailingData`]), or bytes left over.
            pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
                let mut reader = Reader::new(bytes);
                let flags: u16 = reader.read()?;
                if flags & !KNOWN_FLAGS != 0 {
                    return Err(DecodeError::TrailingData);
                }
                let properties = Self {
                    $($name: if flags & (1 << $bit) == 0 { None } else { Some(reader.read()?) }),*
                };
                reader.finish()?;
                Ok(properties)
            }

            /// Appends flags and list.
            pub fn encode(&self, out: &mut Vec<u8>) {
                let flags: u16 = 0 $(| if self.$name.is_some() { 1 << $bit } else { 0 })*;
                let mut writer = Writer::new(out);
                writer.write(&flags);
                $(if let Some(value) = &self.$name { Field::write(value, &mut writer); })*
            }

            $(
                #[doc = concat!("These properties with `", stringify!($name), "` set.")]
                #[must_use]
                pub fn $set(mut self, value: $kind) -> Self {
                    self.$name = Some(value);
                    self
                }
            )*
        }

        const KNOWN_FLAGS: u16 = 0 $(| 1 << $bit)*;
    };
}

properties! {
    15 content_type with_content_type &'a str,
    14 content_encoding with_content_encoding &'a str,
    13 headers with_headers RawTable<'a>,
    12 delivery_mode with_delivery_mode u8,
    11 priority with_priority u8,
    10 correlation_id with_correlation_id ShortBytes<'a>,
    9 reply_to with_reply_to &'a str,
    8 expiration with_expiration &'a str,
    7 message_id with_message_id ShortBytes<'a>,
    6 timestamp with_timestamp u64,
    5 kind with_kind &'a str,
    4 user_id with_user_id &'a str,
    3 app_id with_app_id &'a str,
    2 cluster_id with_cluster_id &'a str,
}

/// The delivery_mode of a persistent message.
pub const PERSISTENT: u8 = 2;

/// Property flags and list of a message without properties.
pub const NO_PROPERTIES: &[u8] = &[0, 0];

/// Finds the value of a header even if other parts of the properties (flags and list) are invalid: brokers forward short
/// strings and header names that are not UTF-8.
pub fn find_header(properties: &[u8], name: &str) -> Option<FieldValue> {
    let mut reader = Reader::new(properties);
    let flags: u16 = reader.read().ok()?;
    // content_type and content_encoding.
    for _ in 0..(flags >> 14).count_ones() {
        reader.read::<ShortBytes<'_>>().ok()?;
    }
    if flags & (1 << 13) == 0 {
        return None;
    }
    find_value(reader.read().ok()?, name)
}

/// A short string that applications also use for binary identifiers, so it need not be UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShortBytes<'a>(pub &'a [u8]);

impl<'a> Field<'a> for ShortBytes<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length: u8 = reader.read()?;
        reader.take(usize::from(length)).map(Self)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let bytes = &self.0[..self.0.len().min(255)];
        writer.put(&[bytes.len() as u8]);
        writer.put(bytes);
    }
}

impl<'a> From<&'a str> for ShortBytes<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::FieldTable;

    #[test]
    fn all_fourteen_survive_a_round_trip() {
        let headers: FieldTable = [("n", FieldValue::I32(1))].into_iter().collect();
        let headers = headers.encode();
        let properties = Properties::default()
            .with_content_type("text/plain")
            .with_content_encoding("gzip")
            .with_headers(RawTable::check(&headers).unwrap())
            .with_delivery_mode(PERSISTENT)
            .with_priority(9)
            .with_correlation_id(ShortBytes(&[0xff, 0]))
            .with_reply_to("r")
            .with_expiration("1000")
            .with_message_id("m".into())
            .with_timestamp(1)
            .with_kind("t")
            .with_user_id("u")
            .with_app_id("a")
            .with_cluster_id("c");
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        assert_eq!(bytes[..2], [0xff, 0xfc]);
        assert_eq!(Properties::decode(&bytes), Ok(properties));
    }

    #[test]
    fn absent_properties_take_no_space() {
        let mut bytes = Vec::new();
        Properties::default().encode(&mut bytes);
        assert_eq!(bytes, NO_PROPERTIES);
    }

    #[test]
    fn a_header_is_found_despite_strings_that_are_not_utf8() {
        let inner: FieldTable = [("k", FieldValue::Void)].into_iter().collect();
        let table = |name: &str| -> Vec<u8> {
            let nested = FieldValue::Array(vec![FieldValue::Table(inner.clone())]);
            let entries = [(name, FieldValue::F64(1.0)), ("a", nested), ("n", FieldValue::I32(1))];
            entries.into_iter().chain([("o", FieldValue::I64(7))]).collect::<FieldTable>().encode()
        };
        let good = table("xx");
        let properties = Properties::default()
            .with_content_type("xx")
            .with_content_encoding("xx")
            .with_headers(RawTable::check(&good).unwrap())
            .with_delivery_mode(PERSISTENT);
        let mut bytes = Vec::new();
        properties.encode(&mut bytes);
        // Both strings, the first name, and one in a nested table.
        let bad: Vec<u8> = bytes.iter().map(|byte| if b"xk".contains(byte) { 0xff } else { *byte }).collect();
        for bytes in [&bytes, &bad] {
            assert_eq!(find_header(bytes, "o"), Some(FieldValue::I64(7)));
            assert_eq!(find_header(bytes, "n"), Some(FieldValue::I32(1)));
            assert_eq!(find_header(bytes, "none"), None);
            for cut in 0..bytes.len() - 1 {
                assert_eq!(find_header(&bytes[..cut], "o"), None, "{cut} bytes");
            }
        }
        assert_eq!(Properties::decode(&bad), Err(DecodeError::NotUtf8));
        assert_eq!(find_header(NO_PROPERTIES, "o"), None);
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(Properties::decode(&[0, 1]), Err(DecodeError::TrailingData));
        assert_eq!(Properties::decode(&[0x80]), Err(DecodeError::Truncated));
    }
}
