//! Extracts parts of a large body without parsing all of it into a `Value`, in which `[0,0,0,...]` takes
//! sixteen times its length.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Deserializer, Map, Value};

use super::error::ApiError;

/// Reads the members with these names from a JSON object; an empty body counts as an empty object. If a name
/// occurs several times, the last one counts.
///
/// # Errors
/// 400 if the body is not an object, or a wanted member that is not a string is longer than
/// [`MAX_STRUCTURED_LENGTH`].
pub(super) fn read(body: &[u8], names: &'static [&'static str]) -> Result<Map<String, Value>, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    let mut reader = Deserializer::from_slice(body);
    let found =
        (&mut reader).deserialize_map(NamedValues(names)).and_then(|found| reader.end().map(|()| found));
    let found = found.map_err(|_| ApiError::bad_request("not_json"))?;
    let mut parts = Map::new();
    for (name, raw) in names.iter().zip(found) {
        let Some(raw) = raw.map(RawValue::get) else { continue };
        if raw.len() > MAX_STRUCTURED_LENGTH && !raw.starts_with('"') {
            return Err(ApiError::bad_request(format!(
                "{name} is longer than {MAX_STRUCTURED_LENGTH} bytes"
            )));
        }
        let value = serde_json::from_str(raw).map_err(|_| ApiError::bad_request("not_json"))?;
        parts.insert((*name).to_owned(), value);
    }
    Ok(parts)
}

/// Visitor that finds the values of these names, in the order of the names.
struct NamedValues(&'static [&'static str]);

impl<'b> Visitor<'b> for NamedValues {
    type Value = Vec<Option<&'b RawValue>>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'b>>(self, mut entries: M) -> Result<Self::Value, M::Error> {
        let mut found = vec![None; self.0.len()];
        while let Some(key) = entries.next_key::<Cow<'b, str>>()? {
            match self.0.iter().position(|name| *name == key) {
                Some(at) => found[at] = Some(entries.next_value()?),
                None => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

/// Maximum length in bytes of a member that is a list or an object: enough for properties that fit into the
/// largest frame of 128 KiB, with every byte of them escaped.
const MAX_STRUCTURED_LENGTH: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(body: &str) -> Option<Value> {
        read(body.as_bytes(), &["a", "b"]).ok().map(Value::Object)
    }

    #[test]
    fn parts_are_found_among_others() {
        let body = r#" {"x": [1, {"a": 2}], "b": {"deep": [null]}, "\u0061": "1", "y": "z", "b": 2} "#;
        assert_eq!(parts(body), Some(json!({"a": "1", "b": 2})), "the last one counts");
        assert_eq!(parts(" \n"), Some(json!({})));
    }

    #[test]
    fn bodies_that_are_not_json_objects_are_refused() {
        for body in
            ["[1, 2]", "1", "{", r#"{"a": 1} x"#, r#"{"a": [}"#, r#"{"x": [}"#, "{\"a\": \"\\ud800\"}"]
        {
            assert_eq!(parts(body), None, "{body}");
        }
        assert!(read(b"{\"a\": \"\xff\"}", &["a"]).is_err(), "no UTF-8");
    }

    #[test]
    fn lists_are_bounded_and_texts_are_not() {
        let list = |length: usize| format!(r#"{{"a": [{}0]}}"#, "0,".repeat((length - 3) / 2));
        assert!(parts(&list(MAX_STRUCTURED_LENGTH - 1)).is_some());
        assert_eq!(parts(&list(MAX_STRUCTURED_LENGTH + 2)), None);
        let ignored = format!(r#"{{"x": [{}0], "a": 1}}"#, "0,".repeat(MAX_STRUCTURED_LENGTH));
        assert_eq!(parts(&ignored), Some(json!({"a": 1})));
        let text = "t".repeat(2 * MAX_STRUCTURED_LENGTH);
        assert_eq!(parts(&json!({"a": text}).to_string()), Some(json!({"a": text})));
    }
}
