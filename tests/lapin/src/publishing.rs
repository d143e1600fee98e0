//! Confirms, returns and transactions.

use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{BasicAckOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use serde_json::json;

use crate::session::{
    Observed, Result, Session, close, connection_refused, drain, get_all, publish, ready, seen_again, text,
};

const IN_FLIGHT: usize = 1000;

pub(crate) async fn confirms(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let bodies: Vec<String> = (0..IN_FLIGHT).map(|number| number.to_string()).collect();
    let mut pending = Vec::new();
    for body in &bodies {
        pending.push(publish_with(&channel, &queue, body, BasicPublishOptions::default()).await?);
    }
    let (mut acked, mut nacked) = (0, 0);
    for confirm in pending {
        match confirm.await? {
            Confirmation::Ack(_) => acked += 1,
            Confirmation::Nack(_) => nacked += 1,
            Confirmation::NotRequested => return Err("a publish that nobody confirms".into()),
        }
    }
    let stored = ready(&channel, &queue).await?;
    let in_order = drain(&channel, &queue).await? == bodies;
    Ok(json!({ "acked": acked, "nacked": nacked, "stored": stored, "in_order": in_order }))
}

pub(crate) async fn mandatory_return(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let missing = session.name("missing");
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut events = Vec::new();
    for (key, body, mandatory) in
        [(&missing, "returned", true), (&queue, "kept", true), (&missing, "dropped", false)]
    {
        let options = BasicPublishOptions { mandatory, immediate: false };
        let confirmation = publish_with(&channel, key, body, options).await?.await?;
        let confirm = if confirmation.is_ack() { "ack" } else { "nack" };
        // lapin hands over a returned message with its confirm, if it came before that.
        if let Some(message) = confirmation.take_message() {
            let (code, words) = (message.reply_code, message.reply_text.as_str());
            events.push(format!("return {code} {words} {}", text(&message.delivery)));
        }
        events.push(confirm.to_owned());
    }
    Ok(json!({ "events": events, "received": drain(&channel, &queue).await? }))
}

pub(crate) async fn immediate(session: &Session) -> Observed {
    connection_refused(session, async |channel| {
        let options = BasicPublishOptions { mandatory: false, immediate: true };
        channel.basic_publish("".into(), "any".into(), options, b"", BasicProperties::default()).await?;
        Ok(())
    })
    .await
}

pub(crate) async fn tx_commit(session: &Session) -> Observed {
    let (channel, observer) = (session.channel().await?, session.channel().await?);
    let queue = session.queue(&channel, "q").await?;
    publish_and_ack_in_tx(session, &channel, &queue, "acked").await?;
    let before = ready(&observer, &queue).await?;
    channel.tx_commit().await?;
    close(channel).await?;
    Ok(json!({ "before": before, "after": drain(&observer, &queue).await? }))
}

pub(crate) async fn tx_rollback(session: &Session) -> Observed {
    let (channel, observer) = (session.channel().await?, session.channel().await?);
    let queue = session.queue(&channel, "q").await?;
    publish_and_ack_in_tx(session, &channel, &queue, "kept").await?;
    channel.tx_rollback().await?;
    let after_rollback = ready(&observer, &queue).await?;
    close(channel).await?;
    Ok(json!({ "after_rollback": after_rollback, "back": seen_again(&observer, &queue, 1).await? }))
}

/// Starts a transaction that publishes two messages and acknowledges one that was there before.
async fn publish_and_ack_in_tx(
    session: &Session,
    channel: &Channel,
    queue: &ShortString,
    body: &str,
) -> Result<()> {
    session.store(queue, &[body]).await?;
    channel.tx_select().await?;
    let taken = get_all(channel, queue).await?;
    publish(channel, queue, &["1", "2"]).await?;
    Ok(channel.basic_ack(taken[0].delivery.delivery_tag, BasicAckOptions::default()).await?)
}

pub(crate) async fn tx_refused(session: &Session) -> Observed {
    let confirm_then_tx = async |channel: &Channel| {
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.tx_select().await
    };
    let tx_then_confirm = async |channel: &Channel| {
        channel.tx_select().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await
    };
    Ok(json!({
        "confirm_then_tx": session.refused(confirm_then_tx).await?,
        "tx_then_confirm": session.refused(tx_then_confirm).await?,
        "commit_without_select": session.refused(async |channel| channel.tx_commit().await).await?,
        "rollback_without_select": session.refused(async |channel| channel.tx_rollback().await).await?,
    }))
}

async fn publish_with(
    channel: &Channel,
    key: &ShortString,
    body: &str,
    options: BasicPublishOptions,
) -> lapin::Result<lapin::PublisherConfirm> {
    channel.basic_publish("".into(), key.clone(), options, body.as_bytes(), BasicProperties::default()).await
}
