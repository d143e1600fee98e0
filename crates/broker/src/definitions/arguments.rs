//! Arguments in JSON as field tables, with the types that RabbitMQ gives them.

use amqp::{FieldTable, FieldValue};
use serde_json::{Map, Value};

pub(super) fn table_of(arguments: &Map<String, Value>) -> FieldTable {
    arguments.iter().map(|(key, value)| (key, field_of(value))).collect()
}

fn field_of(value: &Value) -> FieldValue {
    match value {
        Value::Null => FieldValue::Void,
        Value::Bool(value) => FieldValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => FieldValue::I64(integer),
            None => FieldValue::F64(number.as_f64().unwrap_or(f64::MAX)),
        },
        Value::String(text) => FieldValue::text(text),
        Value::Array(items) => FieldValue::Array(items.iter().map(field_of).collect()),
        Value::Object(entries) => FieldValue::Table(table_of(entries)),
    }
}
