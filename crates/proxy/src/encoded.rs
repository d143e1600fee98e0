//! Serde adapters for bytes as base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

/// For serde: bytes as base64.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    STANDARD.encode(bytes).serialize(serializer)
}

/// For serde: bytes from base64.
///
/// # Errors
/// Those of the deserializer, and text that is not base64.
pub fn deserialize<'de, B: From<Vec<u8>>, D: Deserializer<'de>>(deserializer: D) -> Result<B, D::Error> {
    let text = <Cow<'de, str>>::deserialize(deserializer)?;
    STANDARD.decode(text.as_bytes()).map(B::from).map_err(D::Error::custom)
}
