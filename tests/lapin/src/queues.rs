//! Queues and exchanges from declaration to deletion.

use lapin::{
    Channel, ExchangeKind,
    options::{
        BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions, ExchangeDeclareOptions,
        ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
    },
    types::{FieldTable, ShortString},
};
use serde_json::json;

use crate::{
    exchanges::{bind, declare, send},
    session::{
        Observed, Session, close, consume, consume_as, declare_queue, drain, exchange_exists, passive,
        publish, ready, take,
    },
};

pub(crate) async fn server_named_queue(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let last = ShortString::from("");
    let name = declare_queue(&channel, &last, exclusive()).await?.name().clone();
    // The empty name now means that queue, and an empty key its name.
    bind(&channel, &last, &"amq.direct".into(), "").await?;
    send(&channel, &"amq.direct".into(), name.as_str(), "bound", FieldTable::default()).await?;
    let received = drain(&channel, &last).await?;
    publish(&channel, &name, &["1", "2"]).await?;
    let purged = channel.queue_purge(last.clone(), QueuePurgeOptions::default()).await?;
    publish(&channel, &name, &["3"]).await?;
    let deleted = channel.queue_delete(last.clone(), QueueDeleteOptions::default()).await?;
    Ok(json!({
        "name": name.as_str(),
        "received": received,
        "purged": purged,
        "deleted": deleted,
        "on_another_channel": session.refused(async |other| purge(other, &last).await).await?,
    }))
}

pub(crate) async fn exclusive_queue(session: &Session) -> Observed {
    let owner = session.connect().await?;
    let owning = owner.create_channel().await?;
    let queue = session.name("q");
    declare_queue(&owning, &queue, exclusive()).await?;
    let get = async |channel: &Channel| {
        channel.basic_get(queue.clone(), BasicGetOptions::default()).await.map(drop)
    };
    let delete = async |channel: &Channel| {
        channel.queue_delete(queue.clone(), QueueDeleteOptions::default()).await.map(drop)
    };
    let look = async |channel: &Channel| passive(channel, &queue).await.map(drop);
    let mut answers = json!({
        "declare": session.refused(async |channel| declare_queue(channel, &queue, exclusive()).await.map(drop)).await?,
        "passive": session.refused(look).await?,
        "bind": session.refused(async |channel| bind(channel, &queue, &"amq.direct".into(), "any").await).await?,
        "get": session.refused(get).await?,
        "consume": session.refused(async |channel| consume(channel, &queue).await.map(drop)).await?,
        "purge": session.refused(async |channel| purge(channel, &queue).await).await?,
        "delete": session.refused(delete).await?,
    });
    session.store(&queue, &["publishing is open to all"]).await?;
    answers["received"] = json!(drain(&owning, &queue).await?);
    owner.close(200, "".into()).await?;
    answers["after_close"] = session.refused_otherwise(look, &answers["passive"]).await?;
    let again = session.channel().await?;
    answers["redeclared"] = json!(*declare_queue(&again, &queue, exclusive()).await?.name() == queue);
    Ok(answers)
}

pub(crate) async fn auto_delete_queue(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.name("q");
    declare_queue(&channel, &queue, QueueDeclareOptions { auto_delete: true, ..Default::default() }).await?;
    channel.basic_get(queue.clone(), BasicGetOptions::default()).await?;
    let after_get = ready(&channel, &queue).await?;
    let (first, last) = (consume(&channel, &queue).await?, consume(&channel, &queue).await?);
    channel.basic_cancel(first.tag(), BasicCancelOptions::default()).await?;
    let after_first_cancel = ready(&channel, &queue).await?;
    channel.basic_cancel(last.tag(), BasicCancelOptions::default()).await?;
    let after_last_cancel = session.refused(async |other| passive(other, &queue).await.map(drop)).await?;
    Ok(json!({
        "after_get": after_get,
        "after_first_cancel": after_first_cancel,
        "after_last_cancel": after_last_cancel,
    }))
}

pub(crate) async fn auto_delete_exchange(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let (exchange, queue) = (session.name("e"), session.queue(&channel, "q").await?);
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    channel.exchange_declare(exchange.clone(), ExchangeKind::Direct, options, FieldTable::default()).await?;
    for key in ["one", "two"] {
        bind(&channel, &queue, &exchange, key).await?;
    }
    channel.queue_unbind(queue.clone(), exchange.clone(), "one".into(), FieldTable::default()).await?;
    let after_first = session.refused(async |other| exchange_exists(other, &exchange).await).await?;
    channel.queue_unbind(queue, exchange.clone(), "two".into(), FieldTable::default()).await?;
    let after_last = session.refused(async |other| exchange_exists(other, &exchange).await).await?;
    Ok(json!({ "after_first_unbind": after_first, "after_last_unbind": after_last }))
}

pub(crate) async fn passive_declare(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let (queue, missing) = (session.queue(&channel, "q").await?, session.name("missing"));
    session.store(&queue, &["1", "2"]).await?;
    let consuming = session.channel().await?;
    consuming.basic_qos(1, BasicQosOptions::default()).await?;
    let mut consumer = consume(&consuming, &queue).await?;
    take(&mut consumer, 1).await?;
    let state = passive(&channel, &queue).await?;
    // A passive declaration compares nothing but the name.
    let other_flags = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
    Ok(json!({
        "messages": state.message_count(),
        "consumers": state.consumer_count(),
        "other_flags": session.refused(async |other| declare_queue(other, &queue, other_flags).await.map(drop)).await?,
        "queue": session.refused(async |other| passive(other, &missing).await.map(drop)).await?,
        "exchange": session.refused(async |other| exchange_exists(other, &missing).await).await?,
    }))
}

pub(crate) async fn purge_and_delete_counts(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    publish(&channel, &queue, &["1", "2", "3"]).await?;
    let purged = channel.queue_purge(queue.clone(), QueuePurgeOptions::default()).await?;
    publish(&channel, &queue, &["4", "5"]).await?;
    let deleted = channel.queue_delete(queue.clone(), QueueDeleteOptions::default()).await?;
    let missing = channel.queue_delete(queue, QueueDeleteOptions::default()).await?;
    close(channel).await?;
    Ok(json!({ "purged": purged, "deleted": deleted, "missing": missing }))
}

pub(crate) async fn if_unused_if_empty(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let exchange = declare(session, &channel, ExchangeKind::Direct, "e", FieldTable::default()).await?;
    bind(&channel, &queue, &exchange, "key").await?;
    let unused = ExchangeDeleteOptions { if_unused: true, nowait: false };
    let delete = async |channel: &Channel, if_unused, if_empty| {
        let options = QueueDeleteOptions { if_unused, if_empty, nowait: false };
        channel.queue_delete(queue.clone(), options).await.map(drop)
    };
    let exchange_in_use =
        session.refused(async |other| other.exchange_delete(exchange.clone(), unused).await).await?;
    session.store(&queue, &["1"]).await?;
    let queue_not_empty = session.refused(async |other| delete(other, false, true).await).await?;
    let automatic = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let mut consumer = consume_as(&channel, &queue, "only", automatic).await?;
    take(&mut consumer, 1).await?;
    let queue_in_use = session.refused(async |other| delete(other, true, false).await).await?;
    channel.basic_cancel("only".into(), BasicCancelOptions::default()).await?;
    delete(&channel, true, true).await?;
    channel.exchange_delete(exchange.clone(), unused).await?;
    Ok(json!({
        "exchange_in_use": exchange_in_use,
        "queue_not_empty": queue_not_empty,
        "queue_in_use": queue_in_use,
        "queue_gone": session.refused(async |other| passive(other, &queue).await.map(drop)).await?,
        "exchange_gone": session.refused(async |other| exchange_exists(other, &exchange).await).await?,
    }))
}

pub(crate) async fn purge(channel: &Channel, queue: &ShortString) -> lapin::Result<()> {
    channel.queue_purge(queue.clone(), QueuePurgeOptions::default()).await.map(drop)
}

fn exclusive() -> QueueDeclareOptions {
    QueueDeclareOptions { exclusive: true, ..Default::default() }
}
