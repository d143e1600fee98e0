//! The properties of a message as JSON.

use amqp::properties::ShortBytes;
use amqp::{Properties, RawTable};
use broker::json_of;
use serde_json::{Map, Value, json};

use super::call::{number, object, table};
use super::error::ApiError;

/// Encodes properties given as JSON. Unknown ones are ignored, as in RabbitMQ.
pub(super) fn read(mut given: Map<String, Value>) -> Result<Vec<u8>, ApiError> {
    // Headers first: taking them out needs `given` mutably, the readers below borrow it.
    let headers = match given.get("headers") {
        None | Some(Value::Null) => None,
        Some(_) => Some(table(&object(&mut given, "headers")?)?.encode()),
    };
    let text = |key: &str| match given.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_BYTES => Ok(Some(text.as_str())),
        Some(Value::String(_)) => Err(ApiError::bad_request(format!("{key} is longer than 255 bytes"))),
        Some(other) => Err(ApiError::bad_request(format!("{key} is not a string: {other}"))),
    };
    let byte = |key: &str| match given.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => number(value)
            .and_then(|number| u8::try_from(number).ok())
            .map(Some)
            .ok_or_else(|| ApiError::bad_request(format!("{key} is not a number up to 255: {value}"))),
    };
    let timestamp = match given.get("timestamp") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let number = number(value).and_then(|number| u64::try_from(number).ok());
            Some(number.ok_or_else(|| ApiError::bad_request(format!("timestamp is not a number: {value}")))?)
        }
    };
    // The encoded table is checked like one from the wire, which bounds its depth.
    let headers = headers.as_deref().map(RawTable::check).transpose();
    let properties = Properties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        headers: headers.map_err(|error| ApiError::bad_request(format!("headers: {error}")))?,
        delivery_mode: byte("delivery_mode")?,
        priority: byte("priority")?,
        correlation_id: text("correlation_id")?.map(ShortBytes::from),
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?.map(ShortBytes::from),
        timestamp,
        kind: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    };
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    Ok(bytes)
}

/// Properties as RabbitMQ shows them: an empty list if there are none.
pub(super) fn show(bytes: &[u8]) -> Value {
    let properties = Properties::decode(bytes).unwrap_or_default();
    let mut shown = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(key.to_owned(), value);
        }
    };
    let bytes_of = |bytes: ShortBytes<'_>| json!(String::from_utf8_lossy(bytes.0));
    put("content_type", properties.content_type.map(Value::from));
    put("content_encoding", properties.content_encoding.map(Value::from));
    put("headers", properties.headers.map(|headers| json_of(&headers.decode())));
    put("delivery_mode", properties.delivery_mode.map(Value::from));
    put("priority", properties.priority.map(Value::from));
    put("correlation_id", properties.correlation_id.map(bytes_of));
    put("reply_to", properties.reply_to.map(Value::from));
    put("expiration", properties.expiration.map(Value::from));
    put("message_id", properties.message_id.map(bytes_of));
    put("timestamp", properties.timestamp.map(Value::from));
    put("type", properties.kind.map(Value::from));
    put("user_id", properties.user_id.map(Value::from));
    put("app_id", properties.app_id.map(Value::from));
    put("cluster_id", properties.cluster_id.map(Value::from));
    if shown.is_empty() { json!([]) } else { Value::Object(shown) }
}

/// Maximum bytes of a short string.
const MAX_BYTES: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_read_from_json_are_shown_unchanged() {
        let given = json!({
            "content_type": "text/plain", "content_encoding": "gzip", "headers": {"n": 1, "deep": {"a": [true]}},
            "delivery_mode": 2, "priority": 9, "correlation_id": "c", "reply_to": "r", "expiration": "1000",
            "message_id": "m", "timestamp": 1, "type": "t", "user_id": "u", "app_id": "a", "cluster_id": "x",
        });
        let bytes = read(given.as_object().unwrap().clone()).unwrap_or_else(|_| panic!());
        assert_eq!(show(&bytes), given);
    }

    #[test]
    fn nothing_is_an_empty_list() {
        assert_eq!(show(amqp::properties::NO_PROPERTIES), json!([]));
    }

    #[test]
    fn property_values_of_a_wrong_type_or_range_are_refused() {
        for given in [json!({"delivery_mode": 256}), json!({"content_type": 1}), json!({"timestamp": -1})] {
            assert!(read(given.as_object().unwrap().clone()).is_err(), "{given}");
        }
    }
}
