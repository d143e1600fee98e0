//! Each exchange type routes by its own rule, and exchanges feed exchanges.

use lapin::{
    BasicProperties, Channel, ExchangeKind,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions, ExchangeDeclareOptions,
        ExchangeUnbindOptions, QueueBindOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::{Map, json};

use crate::{
    content::{string, table},
    session::{Observed, Result, Session, drain, publish},
};

const TOPIC_PATTERNS: [&str; 9] =
    ["*.orange.*", "*.*.rabbit", "lazy.#", "#", "*", "#.orange.#", "a.#.b", "", "lazy"];
const TOPIC_KEYS: [&str; 9] = [
    "quick.orange.rabbit",
    "lazy.orange.elephant",
    "lazy.brown.fox",
    "lazy",
    "orange",
    "a.b",
    "a.x.y.b",
    "quick.orange.male.rabbit",
    "",
];

pub(crate) async fn default_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    publish(&channel, &queue, &["by name"]).await?;
    publish(&channel, &session.name("missing"), &["dropped in silence"]).await?;
    Ok(json!({ "received": drain(&channel, &queue).await? }))
}

pub(crate) async fn predeclared_exchanges(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    for exchange in ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"] {
        let run = || table([("run", string(queue.as_str()))]);
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.clone(), exchange.into(), queue.clone(), options, run()).await?;
        send(&channel, &exchange.into(), queue.as_str(), exchange, run()).await?;
    }
    Ok(json!({ "received": drain(&channel, &queue).await? }))
}

pub(crate) async fn direct_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let exchange = declare(session, &channel, ExchangeKind::Direct, "e", FieldTable::default()).await?;
    let queue = session.queue(&channel, "q").await?;
    for key in ["red", "green"] {
        bind(&channel, &queue, &exchange, key).await?;
    }
    for key in ["red", "blue", "green", "red.green"] {
        send(&channel, &exchange, key, key, FieldTable::default()).await?;
    }
    channel.queue_unbind(queue.clone(), exchange.clone(), "red".into(), FieldTable::default()).await?;
    for key in ["red", "green"] {
        send(&channel, &exchange, key, &format!("{key} after unbind"), FieldTable::default()).await?;
    }
    Ok(json!({ "received": drain(&channel, &queue).await? }))
}

pub(crate) async fn fanout_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let exchange = declare(session, &channel, ExchangeKind::Fanout, "e", FieldTable::default()).await?;
    let first = session.queue(&channel, "first").await?;
    let second = session.queue(&channel, "second").await?;
    bind(&channel, &first, &exchange, "one").await?;
    bind(&channel, &first, &exchange, "another").await?;
    bind(&channel, &second, &exchange, "").await?;
    for body in ["1", "2"] {
        send(&channel, &exchange, "any", body, FieldTable::default()).await?;
    }
    Ok(json!({ "first": drain(&channel, &first).await?, "second": drain(&channel, &second).await? }))
}

pub(crate) async fn topic_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let exchange = declare(session, &channel, ExchangeKind::Topic, "e", FieldTable::default()).await?;
    let mut queues = Vec::new();
    for (number, pattern) in TOPIC_PATTERNS.into_iter().enumerate() {
        let queue = session.queue(&channel, &format!("q{number}")).await?;
        bind(&channel, &queue, &exchange, pattern).await?;
        queues.push((pattern, queue));
    }
    for key in TOPIC_KEYS {
        send(&channel, &exchange, key, key, FieldTable::default()).await?;
    }
    drain_each(&channel, &queues).await
}

pub(crate) async fn headers_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let exchange = declare(session, &channel, ExchangeKind::Headers, "e", FieldTable::default()).await?;
    let size = AMQPValue::LongInt;
    let bindings = [
        ("all", table([("x-match", string("all")), ("colour", string("red")), ("size", size(1))])),
        ("any", table([("x-match", string("any")), ("colour", string("red")), ("size", size(1))])),
        ("unsaid", table([("colour", string("red")), ("size", size(1))])),
        ("present", table([("x-match", string("all")), ("colour", AMQPValue::Void)])),
    ];
    let mut queues = Vec::new();
    for (short, arguments) in bindings {
        let queue = session.queue(&channel, short).await?;
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.clone(), exchange.clone(), "".into(), options, arguments).await?;
        queues.push((short, queue));
    }
    let messages = [
        ("both", table([("colour", string("red")), ("size", size(1)), ("more", string("x"))])),
        ("colour", table([("colour", string("red")), ("size", size(2))])),
        ("other", table([("colour", string("blue"))])),
        ("none", FieldTable::default()),
    ];
    for (body, headers) in messages {
        send(&channel, &exchange, "", body, headers).await?;
    }
    drain_each(&channel, &queues).await
}

pub(crate) async fn exchange_to_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let source = declare(session, &channel, ExchangeKind::Topic, "source", FieldTable::default()).await?;
    let middle = declare(session, &channel, ExchangeKind::Fanout, "middle", FieldTable::default()).await?;
    let queue = session.queue(&channel, "q").await?;
    let none = FieldTable::default;
    bind(&channel, &queue, &middle, "").await?;
    let options = ExchangeBindOptions::default();
    channel.exchange_bind(middle.clone(), source.clone(), "to.#".into(), options, none()).await?;
    send(&channel, &source, "to.you", "bound", none()).await?;
    send(&channel, &source, "elsewhere", "not matched", none()).await?;
    let options = ExchangeUnbindOptions::default();
    channel.exchange_unbind(middle, source.clone(), "to.#".into(), options, none()).await?;
    send(&channel, &source, "to.you", "unbound", none()).await?;
    Ok(json!({ "received": drain(&channel, &queue).await? }))
}

pub(crate) async fn alternate_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let alternate =
        declare(session, &channel, ExchangeKind::Fanout, "alternate", FieldTable::default()).await?;
    let arguments = table([("alternate-exchange", string(alternate.as_str()))]);
    let main = declare(session, &channel, ExchangeKind::Direct, "main", arguments).await?;
    let known = session.queue(&channel, "known").await?;
    let unknown = session.queue(&channel, "unknown").await?;
    bind(&channel, &known, &main, "known").await?;
    bind(&channel, &unknown, &alternate, "").await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut returned = Vec::new();
    for (exchange, key, body) in [
        (&main, "known".into(), "known"),
        (&main, "unknown".into(), "unknown"),
        (&"".into(), session.name("missing"), "nowhere"),
    ] {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let properties = BasicProperties::default();
        let confirm =
            channel.basic_publish(exchange.clone(), key, options, body.as_bytes(), properties).await?;
        returned.extend(confirm.await?.take_message().map(|_| body));
    }
    Ok(json!({
        "known": drain(&channel, &known).await?,
        "unknown": drain(&channel, &unknown).await?,
        "returned": returned,
    }))
}

pub(crate) async fn declare(
    session: &Session,
    channel: &Channel,
    kind: ExchangeKind,
    short: &str,
    arguments: FieldTable,
) -> Result<ShortString> {
    let options = ExchangeDeclareOptions::default();
    channel.exchange_declare(session.name(short), kind, options, arguments).await?;
    Ok(session.name(short))
}

pub(crate) async fn bind(
    channel: &Channel,
    queue: &ShortString,
    exchange: &ShortString,
    key: &str,
) -> lapin::Result<()> {
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.clone(), exchange.clone(), key.into(), options, FieldTable::default()).await
}

pub(crate) async fn send(
    channel: &Channel,
    exchange: &ShortString,
    key: &str,
    body: &str,
    headers: FieldTable,
) -> lapin::Result<()> {
    let properties = BasicProperties::default().with_headers(headers);
    let options = BasicPublishOptions::default();
    channel.basic_publish(exchange.clone(), key.into(), options, body.as_bytes(), properties).await?;
    Ok(())
}

async fn drain_each(channel: &Channel, queues: &[(&str, ShortString)]) -> Observed {
    let mut bodies = Map::new();
    for (short, queue) in queues {
        bodies.insert((*short).to_owned(), json!(drain(channel, queue).await?));
    }
    Ok(bodies.into())
}
