//! Bytes in a text format, in base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

/// For serde: bytes as base64.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    STANDARD.encode(bytes).serialize(serializer)
}

/// For serde: bytes from base64.
///
/// # Errors
/// The deserializer's, and text that is no base64.
pub fn deserialize<'de, B: From<Vec<u8>>, D: Deserializer<'de>>(deserializer: D) -> Result<B, D::Error> {
    let text = <Cow<'de, str>>::deserialize(deserializer)?;
    STANDARD.decode(text.as_bytes()).map(B::from).map_err(D::Error::custom)
}
