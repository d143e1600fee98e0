//! What a server refuses, with which code and words, and that only the channel pays for it.

use lapin::{
    Channel, ExchangeKind,
    options::{
        BasicGetOptions, ExchangeBindOptions, ExchangeDeclareOptions, ExchangeDeleteOptions,
        QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use serde_json::json;

use crate::{
    content::{string, table},
    exchanges::{bind, declare, send},
    queues::purge,
    session::{Observed, Session, connection_refused, consume, declare_queue, exchange_exists, passive},
};

pub(crate) async fn redeclare(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let exchange = declare(session, &channel, ExchangeKind::Direct, "e", FieldTable::default()).await?;
    let queue_as = async |options: QueueDeclareOptions| {
        session.refused(async |channel| declare_queue(channel, &queue, options).await.map(drop)).await
    };
    let exchange_as = async |kind: ExchangeKind, options: ExchangeDeclareOptions| {
        session.refused(async |channel| declare_exchange(channel, &exchange, kind, options).await).await
    };
    let (q, e) = (QueueDeclareOptions::default(), ExchangeDeclareOptions::default());
    Ok(json!({
        "same": queue_as(q).await?,
        "durable": queue_as(QueueDeclareOptions { durable: true, ..q }).await?,
        "auto_delete": queue_as(QueueDeclareOptions { auto_delete: true, ..q }).await?,
        "exclusive": queue_as(QueueDeclareOptions { exclusive: true, ..q }).await?,
        "exchange_same": exchange_as(ExchangeKind::Direct, e).await?,
        "exchange_type": exchange_as(ExchangeKind::Fanout, e).await?,
        "exchange_durable": exchange_as(ExchangeKind::Direct, ExchangeDeclareOptions { durable: true, ..e }).await?,
        "exchange_auto_delete":
            exchange_as(ExchangeKind::Direct, ExchangeDeclareOptions { auto_delete: true, ..e }).await?,
        "exchange_internal": exchange_as(ExchangeKind::Direct, ExchangeDeclareOptions { internal: true, ..e }).await?,
    }))
}

pub(crate) async fn redeclare_with_arguments(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let (plain, limited) = (session.queue(&channel, "plain").await?, session.name("limited"));
    channel.queue_declare(limited.clone(), QueueDeclareOptions::default(), ttl(60_000)).await?;
    let queue_as = async |queue: &ShortString, arguments: FieldTable| {
        let options = QueueDeclareOptions::default();
        session
            .refused(async |channel| channel.queue_declare(queue.clone(), options, arguments).await.map(drop))
            .await
    };
    Ok(json!({
        "same": queue_as(&limited, ttl(60_000)).await?,
        "added": queue_as(&plain, ttl(60_000)).await?,
        "missing": queue_as(&limited, FieldTable::default()).await?,
        "different": queue_as(&limited, ttl(50_000)).await?,
        "unknown": queue_as(&plain, table([("x-of-no-meaning", string("any"))])).await?,
    }))
}

pub(crate) async fn missing_queues_and_exchanges(session: &Session) -> Observed {
    let queue = session.queue(&session.channel().await?, "q").await?;
    let (missing, fanout) = (session.name("missing"), ShortString::from("amq.fanout"));
    let get = async |channel: &Channel| {
        channel.basic_get(missing.clone(), BasicGetOptions::default()).await.map(drop)
    };
    let delete_queue = async |channel: &Channel| {
        channel.queue_delete(missing.clone(), QueueDeleteOptions::default()).await.map(drop)
    };
    let delete_exchange = async |channel: &Channel| {
        channel.exchange_delete(missing.clone(), ExchangeDeleteOptions::default()).await
    };
    let unbind = async |channel: &Channel| {
        channel.queue_unbind(missing.clone(), missing.clone(), "key".into(), FieldTable::default()).await
    };
    Ok(json!({
        "get": session.refused(get).await?,
        "consume": session.refused(async |channel| consume(channel, &missing).await.map(drop)).await?,
        "purge": session.refused(async |channel| purge(channel, &missing).await).await?,
        "bind_missing_queue":
            session.refused(async |channel| bind(channel, &missing, &"amq.direct".into(), "key").await).await?,
        "bind_missing_exchange": session.refused(async |channel| bind(channel, &queue, &missing, "key").await).await?,
        "bind_missing_source":
            session.refused(async |channel| bind_exchange(channel, &fanout, &missing).await).await?,
        "bind_missing_destination":
            session.refused(async |channel| bind_exchange(channel, &missing, &fanout).await).await?,
        "publish":
            session.refused(async |channel| send(channel, &missing, "key", "", FieldTable::default()).await).await?,
        "delete_queue": session.refused(delete_queue).await?,
        "delete_exchange": session.refused(delete_exchange).await?,
        "unbind": session.refused(unbind).await?,
        "no_last_queue": session.refused(async |channel| purge(channel, &"".into()).await).await?,
    }))
}

pub(crate) async fn reserved_names(session: &Session) -> Observed {
    let (mine, direct) = (ShortString::from("amq.mine"), ShortString::from("amq.direct"));
    let plain = ExchangeDeclareOptions::default();
    let durable = ExchangeDeclareOptions { durable: true, ..plain };
    let exchange_as = async |exchange: &ShortString, kind: ExchangeKind, options| {
        session.refused(async |channel| declare_exchange(channel, exchange, kind, options).await).await
    };
    let queue = async |channel: &Channel| declare_queue(channel, &mine, Default::default()).await.map(drop);
    let delete = async |channel: &Channel| {
        channel.exchange_delete(direct.clone(), ExchangeDeleteOptions::default()).await
    };
    Ok(json!({
        "queue": session.refused(queue).await?,
        "exchange": exchange_as(&mine, ExchangeKind::Direct, plain).await?,
        "passive": session.refused(async |channel| passive(channel, &mine).await.map(drop)).await?,
        "delete": session.refused(delete).await?,
        "redeclare": exchange_as(&direct, ExchangeKind::Direct, durable).await?,
        "redeclare_otherwise": exchange_as(&direct, ExchangeKind::Fanout, durable).await?,
    }))
}

pub(crate) async fn default_exchange_is_fixed(session: &Session) -> Observed {
    let queue = session.queue(&session.channel().await?, "q").await?;
    let (default, fanout) = (ShortString::from(""), ShortString::from("amq.fanout"));
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let declare =
        async |channel: &Channel| declare_exchange(channel, &default, ExchangeKind::Direct, durable).await;
    let delete = async |channel: &Channel| {
        channel.exchange_delete(default.clone(), ExchangeDeleteOptions::default()).await
    };
    let unbind = async |channel: &Channel| {
        channel.queue_unbind(queue.clone(), default.clone(), "key".into(), FieldTable::default()).await
    };
    Ok(json!({
        "declare": session.refused(declare).await?,
        "passive": session.refused(async |channel| exchange_exists(channel, &default).await).await?,
        "delete": session.refused(delete).await?,
        "bind": session.refused(async |channel| bind(channel, &queue, &default, "key").await).await?,
        "unbind": session.refused(unbind).await?,
        "source": session.refused(async |channel| bind_exchange(channel, &fanout, &default).await).await?,
        "destination": session.refused(async |channel| bind_exchange(channel, &default, &fanout).await).await?,
    }))
}

pub(crate) async fn internal_exchange(session: &Session) -> Observed {
    let (channel, exchange) = (session.channel().await?, session.name("e"));
    let internal = ExchangeDeclareOptions { internal: true, ..Default::default() };
    declare_exchange(&channel, &exchange, ExchangeKind::Fanout, internal).await?;
    let publish = async |channel: &Channel| send(channel, &exchange, "", "", FieldTable::default()).await;
    Ok(json!({ "publish": session.refused(publish).await? }))
}

pub(crate) async fn unknown_exchange_type(session: &Session) -> Observed {
    let exchange = session.name("e");
    connection_refused(session, async |channel| {
        let kind = ExchangeKind::Custom("no-such-type".to_owned());
        declare_exchange(channel, &exchange, kind, ExchangeDeclareOptions::default()).await
    })
    .await
}

async fn declare_exchange(
    channel: &Channel,
    exchange: &ShortString,
    kind: ExchangeKind,
    options: ExchangeDeclareOptions,
) -> lapin::Result<()> {
    channel.exchange_declare(exchange.clone(), kind, options, FieldTable::default()).await
}

async fn bind_exchange(
    channel: &Channel,
    destination: &ShortString,
    source: &ShortString,
) -> lapin::Result<()> {
    let options = ExchangeBindOptions::default();
    channel
        .exchange_bind(destination.clone(), source.clone(), "key".into(), options, FieldTable::default())
        .await
}

fn ttl(milliseconds: i32) -> FieldTable {
    table([("x-message-ttl", AMQPValue::LongInt(milliseconds))])
}

pub(crate) async fn no_wait_errors(session: &Session) -> Observed {
    let queue = session.queue(&session.channel().await?, "q").await?;
    let missing = session.name("missing");
    let declare = async |channel: &Channel| {
        let options = QueueDeclareOptions { durable: true, nowait: true, ..Default::default() };
        declare_queue(channel, &queue, options).await.map(drop)
    };
    let bind = async |channel: &Channel| {
        let options = QueueBindOptions { nowait: true };
        channel.queue_bind(queue.clone(), missing.clone(), "".into(), options, FieldTable::default()).await
    };
    Ok(json!({ "declare": session.refused(declare).await?, "bind": session.refused(bind).await? }))
}
