//! Getting, consuming, prefetch, cancelling, and who gets what among consumers.

use futures_lite::{StreamExt as _, future};
use lapin::{
    Channel, Consumer,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicQosOptions,
        QueueDeleteOptions,
    },
    types::AMQPValue,
};
use serde_json::json;

use crate::{
    content::table,
    session::{
        FIVE, Observed, Result, Session, close, connection_refused, consume, consume_as,
        consume_automatically, get_all, in_time, passive, publish, ready, round_trip, seen_again, take, text,
        texts,
    },
};

pub(crate) async fn get(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let empty = channel.basic_get(queue.clone(), BasicGetOptions::default()).await?.is_none();
    publish(&channel, &queue, &["1", "2", "3"]).await?;
    let mut got = Vec::new();
    let mut key_intact = true;
    for message in get_all(&channel, &queue).await? {
        let delivery = &message.delivery;
        got.push(json!([delivery.delivery_tag, text(delivery), delivery.redelivered, message.message_count]));
        key_intact &= delivery.exchange.as_str().is_empty() && delivery.routing_key == queue;
        delivery.ack(BasicAckOptions::default()).await?;
    }
    Ok(
        json!({ "empty": empty, "got": got, "key_intact": key_intact, "left": ready(&channel, &queue).await? }),
    )
}

pub(crate) async fn consume_and_ack(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume(&channel, &queue).await?;
    publish(&channel, &queue, &FIVE).await?;
    let taken = take(&mut consumer, 5).await?;
    for delivery in &taken {
        delivery.ack(BasicAckOptions::default()).await?;
    }
    close(channel).await?;
    Ok(json!({
        "bodies": texts(&taken),
        "tags": taken.iter().map(|delivery| delivery.delivery_tag).collect::<Vec<_>>(),
        "redelivered": taken.iter().map(|delivery| delivery.redelivered).collect::<Vec<_>>(),
        "left": ready(&session.channel().await?, &queue).await?,
    }))
}

pub(crate) async fn consume_without_ack(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    publish(&channel, &queue, &FIVE).await?;
    let mut consumer = consume_automatically(&channel, &queue).await?;
    let bodies = texts(&take(&mut consumer, 5).await?);
    close(channel).await?;
    Ok(json!({ "bodies": bodies, "left": ready(&session.channel().await?, &queue).await? }))
}

pub(crate) async fn prefetch_per_consumer(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    publish(&channel, &queue, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]).await?;
    qos(&channel, 3, false).await?;
    let mut consumer = consume(&channel, &queue).await?;
    let taken = take(&mut consumer, 3).await?;
    let first_ready = ready(&channel, &queue).await?;
    let first = taken.len() + waiting(&mut consumer).await;
    taken[0].ack(BasicAckOptions::default()).await?;
    let next = take(&mut consumer, 1).await?;
    let ready_after_ack = ready(&channel, &queue).await?;
    Ok(json!({
        "first": first,
        "ready": first_ready,
        "after_ack": taken.len() + next.len() + waiting(&mut consumer).await,
        "ready_after_ack": ready_after_ack,
    }))
}

pub(crate) async fn prefetch_of_later_consumers_only(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let earlier_queue = session.queue(&channel, "earlier").await?;
    let later_queue = session.queue(&channel, "later").await?;
    for queue in [&earlier_queue, &later_queue] {
        publish(&channel, queue, &FIVE).await?;
    }
    let mut earlier = consume(&channel, &earlier_queue).await?;
    qos(&channel, 2, false).await?;
    let mut later = consume(&channel, &later_queue).await?;
    take(&mut earlier, 5).await?;
    take(&mut later, 2).await?;
    let (earlier_ready, later_ready) =
        (ready(&channel, &earlier_queue).await?, ready(&channel, &later_queue).await?);
    Ok(json!({ "earlier_ready": earlier_ready, "later_ready": later_ready }))
}

pub(crate) async fn prefetch_global(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queues = [session.queue(&channel, "a").await?, session.queue(&channel, "b").await?];
    for queue in &queues {
        publish(&channel, queue, &FIVE).await?;
    }
    qos(&channel, 3, true).await?;
    let (mut first, mut second) =
        (consume(&channel, &queues[0]).await?, consume(&channel, &queues[1]).await?);
    let mut delivered = 0;
    let mut take_until = async |count| -> Result<()> {
        while delivered < count {
            in_time(async { Ok(future::or(first.next(), second.next()).await) })
                .await?
                .ok_or("a consumer ended")??;
            delivered += 1;
        }
        Ok(())
    };
    take_until(3).await?;
    let left = ready(&channel, &queues[0]).await? + ready(&channel, &queues[1]).await?;
    take_until(2 * FIVE.len() as u32 - left).await?;
    Ok(json!({ "delivered": delivered, "ready": left }))
}

pub(crate) async fn cancel(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume(&channel, &queue).await?;
    publish(&channel, &queue, &["before"]).await?;
    let mut taken = take(&mut consumer, 1).await?;
    channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
    session.store(&queue, &["after"]).await?;
    let state = passive(&channel, &queue).await?;
    while let Some(delivery) = in_time(async { Ok(consumer.next().await) }).await? {
        taken.push(delivery?);
    }
    taken[0].ack(BasicAckOptions::default()).await?;
    Ok(
        json!({ "bodies": texts(&taken), "ready": state.message_count(), "consumers": state.consumer_count() }),
    )
}

pub(crate) async fn server_cancel(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume_as(&channel, &queue, "watcher", BasicConsumeOptions::default()).await?;
    session.channel().await?.queue_delete(queue, QueueDeleteOptions::default()).await?;
    // lapin tells a consumer of its end by ending the stream.
    if let Some(delivery) = in_time(async { Ok(consumer.next().await) }).await? {
        return Err(format!("a delivery of {}", text(&delivery?)).into());
    }
    round_trip(&channel).await?;
    Ok(json!({ "cancelled": [consumer.tag().as_str()], "channel_open": channel.status().connected() }))
}

pub(crate) async fn consumer_priority(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    qos(&channel, 3, false).await?;
    let mut low = consume(&channel, &queue).await?;
    let priority = table([("x-priority", AMQPValue::LongInt(10))]);
    let options = BasicConsumeOptions::default();
    let mut high = channel.basic_consume(queue.clone(), "".into(), options, priority).await?;
    publish(&channel, &queue, &FIVE).await?;
    let (high, low) = (texts(&take(&mut high, 3).await?), texts(&take(&mut low, 2).await?));
    Ok(json!({ "high": high, "low": low }))
}

pub(crate) async fn exclusive_consumer(session: &Session) -> Observed {
    let exclusive = BasicConsumeOptions { exclusive: true, ..Default::default() };
    let holder = session.channel().await?;
    let queue = session.queue(&holder, "q").await?;
    let sole = consume_as(&holder, &queue, "", exclusive).await?;
    let second = session.refused(async |channel| consume(channel, &queue).await.map(drop)).await?;
    holder.basic_cancel(sole.tag(), BasicCancelOptions::default()).await?;
    let _shared = consume(&holder, &queue).await?;
    let exclusive_second =
        session.refused(async |channel| consume_as(channel, &queue, "", exclusive).await.map(drop)).await?;
    Ok(json!({ "second": second, "exclusive_second": exclusive_second }))
}

pub(crate) async fn duplicate_consumer_tag(session: &Session) -> Observed {
    let queue = session.queue(&session.channel().await?, "q").await?;
    connection_refused(session, async |channel| {
        let _first = consume_as(channel, &queue, "twice", BasicConsumeOptions::default()).await?;
        consume_as(channel, &queue, "twice", BasicConsumeOptions::default()).await.map(drop)
    })
    .await
}

pub(crate) async fn requeue_on_close(session: &Session) -> Observed {
    let holding = session.connect().await?;
    let holder = holding.create_channel().await?;
    let queue = session.queue(&holder, "q").await?;
    publish(&holder, &queue, &["1", "2", "3"]).await?;
    get_all(&holder, &queue).await?;
    close(holder).await?;
    let other = session.connect().await?;
    let channel = other.create_channel().await?;
    let after_channel = seen_again(&channel, &queue, 3).await?;
    other.close(200, "".into()).await?;
    let after_connection = seen_again(&session.channel().await?, &queue, 3).await?;
    Ok(json!({ "after_channel": after_channel, "after_connection": after_connection }))
}

async fn qos(channel: &Channel, count: u16, global: bool) -> Result<()> {
    Ok(channel.basic_qos(count, BasicQosOptions { global }).await?)
}

/// How many deliveries have arrived that nobody has taken.
async fn waiting(consumer: &mut Consumer) -> usize {
    let mut count = 0;
    while future::poll_once(consumer.next()).await.flatten().is_some() {
        count += 1;
    }
    count
}

pub(crate) async fn cancel_of_an_unknown_tag(session: &Session) -> Observed {
    let cancel = async |channel: &Channel| {
        channel.basic_cancel("nobody has it".into(), BasicCancelOptions::default()).await
    };
    session.refused(cancel).await
}
