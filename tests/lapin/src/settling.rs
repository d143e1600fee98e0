//! Ack, nack, reject and recover: what is gone, what comes back, and where in the queue.

use lapin::{
    Channel,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicNackOptions, BasicRecoverOptions, BasicRejectOptions},
    types::ShortString,
};
use serde_json::json;

use crate::session::{
    FIVE, Observed, Result, Session, close, connection_refused, drain, get_all, marked, publish, seen,
    seen_again,
};

const ONE: BasicAckOptions = BasicAckOptions { multiple: false };
const ALL_UP_TO: BasicAckOptions = BasicAckOptions { multiple: true };

pub(crate) async fn ack_multiple(session: &Session) -> Observed {
    let (channel, queue, taken) = holding_five(session).await?;
    channel.basic_ack(tag(&taken[2]), ALL_UP_TO).await?;
    close(channel).await?;
    Ok(json!({ "back": seen_again(&session.channel().await?, &queue, 2).await? }))
}

pub(crate) async fn ack_all_outstanding(session: &Session) -> Observed {
    let (channel, queue, _taken) = holding_five(session).await?;
    channel.basic_ack(0, ALL_UP_TO).await?;
    // Messages that were left would come back, and before one that is published behind them.
    channel.basic_recover(BasicRecoverOptions { requeue: true }).await?;
    publish(&channel, &queue, &["marker"]).await?;
    let left = drain(&channel, &queue).await?;
    Ok(json!({ "left": left.iter().position(|body| body == "marker") }))
}

pub(crate) async fn nack_requeue_order(session: &Session) -> Observed {
    let (channel, queue, taken) = holding_five(session).await?;
    channel.basic_nack(tag(&taken[4]), BasicNackOptions { multiple: true, requeue: true }).await?;
    let again = get_all(&channel, &queue).await?;
    for index in [3, 1] {
        channel.basic_nack(tag(&again[index]), BasicNackOptions { multiple: false, requeue: true }).await?;
    }
    Ok(json!({ "all": marked(&again), "middle": seen(&channel, &queue).await? }))
}

pub(crate) async fn nack_drops(session: &Session) -> Observed {
    let (channel, queue, taken) = holding_five(session).await?;
    channel.basic_nack(tag(&taken[2]), BasicNackOptions { multiple: true, requeue: false }).await?;
    close(channel).await?;
    Ok(json!({ "back": seen_again(&session.channel().await?, &queue, 2).await? }))
}

pub(crate) async fn reject(session: &Session) -> Observed {
    let (channel, queue, taken) = holding_five(session).await?;
    channel.basic_reject(tag(&taken[0]), BasicRejectOptions { requeue: false }).await?;
    channel.basic_reject(tag(&taken[1]), BasicRejectOptions { requeue: true }).await?;
    Ok(json!({ "back": seen(&channel, &queue).await? }))
}

pub(crate) async fn recover(session: &Session) -> Observed {
    let (channel, queue, _taken) = holding_five(session).await?;
    channel.basic_recover(BasicRecoverOptions { requeue: true }).await?;
    Ok(json!({ "back": seen(&channel, &queue).await? }))
}

pub(crate) async fn recover_without_requeue(session: &Session) -> Observed {
    let action =
        async |channel: &Channel| channel.basic_recover(BasicRecoverOptions { requeue: false }).await;
    connection_refused(session, action).await
}

pub(crate) async fn unknown_delivery_tag(session: &Session) -> Observed {
    let queue = session.queue(&session.channel().await?, "q").await?;
    session.store(&queue, &["once"]).await?;
    let twice = async |channel: &Channel| {
        let message = channel.basic_get(queue.clone(), Default::default()).await?;
        let tag = message.as_ref().map_or(0, tag);
        channel.basic_ack(tag, ONE).await?;
        channel.basic_ack(tag, ONE).await
    };
    let requeue = BasicNackOptions { multiple: false, requeue: true };
    let reject = BasicRejectOptions { requeue: true };
    Ok(json!({
        "ack": session.refused(async |channel| channel.basic_ack(5, ONE).await).await?,
        "ack_multiple": session.refused(async |channel| channel.basic_ack(5, ALL_UP_TO).await).await?,
        "nack": session.refused(async |channel| channel.basic_nack(5, requeue).await).await?,
        "reject": session.refused(async |channel| channel.basic_reject(5, reject).await).await?,
        "twice": session.refused(twice).await?,
    }))
}

/// A channel that holds five unacknowledged messages of a queue.
async fn holding_five(session: &Session) -> Result<(Channel, ShortString, Vec<BasicGetMessage>)> {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    publish(&channel, &queue, &FIVE).await?;
    let taken = get_all(&channel, &queue).await?;
    Ok((channel, queue, taken))
}

fn tag(message: &BasicGetMessage) -> u64 {
    message.delivery.delivery_tag
}
