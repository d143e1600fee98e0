//! Messages arrive as they were sent: properties, header values, bodies of any size.

use lapin::{
    BasicProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicPublishOptions},
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString, ShortString},
};
use serde_json::{Value, json};

use crate::{
    connecting::{MEBIBYTE, patterned},
    session::{Observed, Result, Session, consume, consume_automatically, publish_bytes, take, text},
};

const TIMESTAMP: u64 = 1_700_000_000;
const SIZES: [usize; 8] = [0, 1, 4088, 4089, 131_064, 131_065, MEBIBYTE, 16 * MEBIBYTE];

pub(crate) async fn properties(session: &Session) -> Observed {
    let sent = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("identity".into())
        .with_headers(table([("animal", string("hare"))]))
        .with_delivery_mode(2)
        .with_priority(5)
        .with_correlation_id("correlation".into())
        .with_reply_to("reply".into())
        .with_expiration("60000".into())
        .with_message_id("message".into())
        .with_timestamp(TIMESTAMP)
        .with_type("greeting".into())
        .with_user_id("guest".into())
        .with_app_id("scenarios".into())
        .with_cluster_id("cluster".into());
    let delivery = through_queue(session, sent, "häre").await?;
    let got = &delivery.properties;
    Ok(json!({
        "content_type": short(got.content_type()),
        "content_encoding": short(got.content_encoding()),
        "headers": got.headers().as_ref().map(plain_table),
        "delivery_mode": got.delivery_mode(),
        "priority": got.priority(),
        "correlation_id": short(got.correlation_id()),
        "reply_to": short(got.reply_to()),
        "expiration": short(got.expiration()),
        "message_id": short(got.message_id()),
        "timestamp": got.timestamp(),
        "type": short(got.kind()),
        "user_id": short(got.user_id()),
        "app_id": short(got.app_id()),
        "cluster_id": short(got.cluster_id()),
        "body": text(&delivery),
        "exchange": delivery.exchange.as_str(),
        "routing_key": delivery.routing_key.as_str(),
        "redelivered": delivery.redelivered,
    }))
}

pub(crate) async fn header_values(session: &Session) -> Observed {
    let inner = table([("deep", AMQPValue::LongInt(7))]);
    let list = vec![
        AMQPValue::LongInt(1),
        string("two"),
        AMQPValue::Boolean(true),
        AMQPValue::Void,
        AMQPValue::FieldArray(vec![AMQPValue::LongInt(3)].into()),
    ];
    let headers = table([
        ("true", AMQPValue::Boolean(true)),
        ("false", AMQPValue::Boolean(false)),
        ("byte", AMQPValue::ShortShortInt(-8)),
        ("short", AMQPValue::ShortInt(-300)),
        ("int", AMQPValue::LongInt(-100_000)),
        ("long", AMQPValue::LongLongInt(1 << 40)),
        ("float", AMQPValue::Float(0.5)),
        ("double", AMQPValue::Double(1.1)),
        ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 125 })),
        ("text", string("häre")),
        ("empty", string("")),
        ("binary", AMQPValue::ByteArray(vec![0x00, 0x01, 0xff].into())),
        ("timestamp", AMQPValue::Timestamp(TIMESTAMP)),
        ("void", AMQPValue::Void),
        ("list", AMQPValue::FieldArray(FieldArray::from(list))),
        ("table", AMQPValue::FieldTable(table([("inner", AMQPValue::FieldTable(inner))]))),
    ]);
    let delivery = through_queue(session, BasicProperties::default().with_headers(headers), "").await?;
    Ok(delivery.properties.headers().as_ref().map(plain_table).into())
}

async fn through_queue(session: &Session, sent: BasicProperties, body: &str) -> Result<Delivery> {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume_automatically(&channel, &queue).await?;
    let options = BasicPublishOptions::default();
    channel.basic_publish("".into(), queue, options, body.as_bytes(), sent).await?;
    Ok(take(&mut consumer, 1).await?.remove(0))
}

pub(crate) async fn body_sizes(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume(&channel, &queue).await?;
    let mut intact = Vec::new();
    for size in SIZES {
        let sent = patterned(size);
        publish_bytes(&channel, &queue, &sent).await?;
        let delivery = take(&mut consumer, 1).await?.remove(0);
        delivery.ack(BasicAckOptions::default()).await?;
        if delivery.data == sent {
            intact.push(size);
        }
    }
    Ok(json!({ "intact": intact }))
}

pub(crate) fn table<const N: usize>(pairs: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in pairs {
        table.insert(key.into(), value);
    }
    table
}

pub(crate) fn string(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn short(value: &Option<ShortString>) -> Option<&str> {
    value.as_ref().map(ShortString::as_str)
}

fn plain_table(table: &FieldTable) -> Value {
    table.inner().iter().map(|(key, value)| (key.as_str().to_owned(), plain(value))).collect()
}

/// A field value as JSON shows it: decimals as text, bytes in hex, timestamps in seconds.
fn plain(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => json!(value),
        AMQPValue::ShortShortInt(value) => json!(value),
        AMQPValue::ShortInt(value) => json!(value),
        AMQPValue::LongInt(value) => json!(value),
        AMQPValue::LongLongInt(value) => json!(value),
        AMQPValue::Float(value) => json!(value),
        AMQPValue::Double(value) => json!(value),
        AMQPValue::DecimalValue(DecimalValue { scale, value }) => {
            let unit = 10_u32.pow(u32::from(*scale));
            json!(format!("{}.{:0width$}", value / unit, value % unit, width = usize::from(*scale)))
        }
        AMQPValue::LongString(value) => json!(value.to_string()),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(plain).collect(),
        AMQPValue::Timestamp(value) => json!(value),
        AMQPValue::FieldTable(table) => plain_table(table),
        AMQPValue::ByteArray(bytes) => {
            bytes.as_slice().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
        }
        AMQPValue::Void => Value::Null,
        // What the scenarios never send: shown so that the comparison fails.
        other => json!(format!("{other:?}")),
    }
}
