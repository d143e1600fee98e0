//! Converts arguments between JSON and field tables, with the types that RabbitMQ uses.

use amqp::{FieldTable, FieldValue};
use serde_json::{Map, Value};

/// Arguments that have `null` somewhere. The text is RabbitMQ's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("null_not_allowed")]
pub struct NullNotAllowed;

/// Converts JSON arguments: integers become 64 bits wide, as in RabbitMQ.
///
/// # Errors
/// A value is `null`, on any level.
pub fn table_of(arguments: &Map<String, Value>) -> Result<FieldTable, NullNotAllowed> {
    arguments.iter().map(|(key, value)| Ok((key, field_of(value)?))).collect()
}

fn field_of(value: &Value) -> Result<FieldValue, NullNotAllowed> {
    Ok(match value {
        Value::Null => return Err(NullNotAllowed),
        Value::Bool(value) => FieldValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => FieldValue::I64(integer),
            None => FieldValue::F64(number.as_f64().unwrap_or(f64::MAX)),
        },
        Value::String(text) => FieldValue::text(text),
        Value::Array(items) => FieldValue::Array(items.iter().map(field_of).collect::<Result<_, _>>()?),
        Value::Object(entries) => FieldValue::Table(table_of(entries)?),
    })
}

/// Converts arguments to JSON as RabbitMQ displays them: bytes that are not valid text become the characters
/// of the same numbers, and a value without a type becomes the text `undefined`, so that definitions can be loaded again.
pub fn json_of(table: &FieldTable) -> Value {
    Value::Object(table.iter().map(|(key, value)| (key.to_owned(), value_of(value))).collect())
}

fn value_of(field: &FieldValue) -> Value {
    match field {
        FieldValue::Boolean(value) => Value::Bool(*value),
        FieldValue::F32(value) => Value::from(*value),
        FieldValue::F64(value) => Value::from(*value),
        FieldValue::Decimal { scale, value } => {
            Value::from(f64::from(*value) / 10_f64.powi(i32::from(*scale)))
        }
        FieldValue::LongString(bytes) | FieldValue::ByteArray(bytes) => {
            Value::String(match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().copied().map(char::from).collect(),
            })
        }
        FieldValue::Array(items) => Value::Array(items.iter().map(value_of).collect()),
        FieldValue::Timestamp(seconds) => Value::from(*seconds),
        FieldValue::Table(table) => json_of(table),
        FieldValue::Void => Value::from("undefined"),
        integer => integer.as_integer().map_or(Value::Null, Value::from),
    }
}
