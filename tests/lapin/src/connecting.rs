//! Opening, negotiating and keeping connections and channels.

use std::{collections::BTreeMap, time::Duration};

use lapin::{
    Channel, Connection, ConnectionProperties,
    options::{ConfirmSelectOptions, QueueDeclareOptions},
    types::ShortString,
};
use serde_json::json;
use tokio::{task::JoinSet, time};

use crate::session::{
    Observed, Problem, Result, Session, close_of, consume_automatically, declare_queue, drain, publish,
    publish_bytes, ready, round_trip, take, texts,
};

pub(crate) const MEBIBYTE: usize = 1 << 20;

pub(crate) async fn connect(session: &Session) -> Observed {
    let connection = session.connect().await?;
    let tuned = connection.configuration();
    Ok(json!({
        "channel_max": tuned.channel_max(),
        "frame_max": tuned.frame_max(),
        "heartbeat": tuned.heartbeat(),
    }))
}

pub(crate) async fn wrong_password(session: &Session) -> Observed {
    login_refused(&session.uri().replace("guest:guest@", "guest:not-the-password@")).await
}

pub(crate) async fn wrong_vhost(session: &Session) -> Observed {
    login_refused(&format!("{}/nowhere", session.uri().trim_end_matches('/'))).await
}

async fn login_refused(uri: &str) -> Observed {
    match Connection::connect(uri, ConnectionProperties::default()).await {
        Ok(_) => Err("the login was accepted".into()),
        Err(error) => close_of(&error).ok_or_else(|| error.into()),
    }
}

pub(crate) async fn heartbeat_two_seconds(session: &Session) -> Observed {
    let connection = connect_with(session, "heartbeat=2").await?;
    // lapin closes the connection should the server's heartbeats fail to arrive, as the server does should lapin's.
    time::sleep(Duration::from_secs(5)).await;
    round_trip(&connection.create_channel().await?).await?;
    Ok(
        json!({ "heartbeat": connection.configuration().heartbeat(), "alive": connection.status().connected() }),
    )
}

pub(crate) async fn frame_max_4096(session: &Session) -> Observed {
    through_frames_of(session, 4096).await
}

pub(crate) async fn frame_max_131072(session: &Session) -> Observed {
    through_frames_of(session, 131_072).await
}

async fn through_frames_of(session: &Session, frame_max: usize) -> Observed {
    let connection = connect_with(session, &format!("frame_max={frame_max}")).await?;
    let channel = connection.create_channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut consumer = consume_automatically(&channel, &queue).await?;
    let sizes = [0, 1, frame_max - 8, frame_max - 7, MEBIBYTE];
    for size in sizes {
        publish_bytes(&channel, &queue, &patterned(size)).await?;
    }
    let got = take(&mut consumer, sizes.len()).await?;
    let intact: Vec<usize> = sizes
        .into_iter()
        .zip(&got)
        .filter(|(size, delivery)| delivery.data == patterned(*size))
        .map(|(size, _)| size)
        .collect();
    Ok(json!({ "frame_max": connection.configuration().frame_max(), "intact": intact }))
}

/// Connects with a query that lapin reads as its own settings.
async fn connect_with(session: &Session, query: &str) -> Result<Connection> {
    let uri = format!("{}?{query}", session.uri());
    Ok(Connection::connect(&uri, ConnectionProperties::default()).await?)
}

pub(crate) async fn many_channels(session: &Session) -> Observed {
    let mut channels = Vec::new();
    for number in 0..500 {
        let channel = session.channel().await?;
        let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
        let queue = declare_queue(&channel, &"".into(), exclusive).await?.name().clone();
        publish(&channel, &queue, &[&number.to_string()]).await?;
        channels.push((channel, queue));
    }
    let mut own = 0;
    for (number, (channel, queue)) in channels.iter().enumerate() {
        own += usize::from(drain(channel, queue).await? == [number.to_string()]);
    }
    Ok(json!({ "channels": channels.len(), "own_messages": own }))
}

pub(crate) async fn ten_connections(session: &Session) -> Observed {
    let channel = session.channel().await?;
    let queue = session.queue(&channel, "q").await?;
    let mut publishers = JoinSet::new();
    for publisher in 0..10 {
        let connection = session.connect().await?;
        publishers.spawn(publish_hundred(connection, queue.clone(), publisher));
    }
    while let Some(done) = publishers.join_next().await {
        done??;
    }
    let stored = ready(&channel, &queue).await?;
    let mut consumer = consume_automatically(&channel, &queue).await?;
    let mut by_publisher = BTreeMap::<String, Vec<usize>>::new();
    for body in texts(&take(&mut consumer, 1000).await?) {
        let (publisher, number) = body.split_once(' ').ok_or("a body without a space")?;
        by_publisher.entry(publisher.to_owned()).or_default().push(number.parse()?);
    }
    let in_order = by_publisher.values().filter(|numbers| numbers.iter().copied().eq(0..100)).count();
    Ok(json!({ "stored": stored, "in_order": in_order }))
}

async fn publish_hundred(connection: Connection, queue: ShortString, publisher: usize) -> Result<()> {
    let channel: Channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    for number in 0..100 {
        publish(&channel, &queue, &[&format!("{publisher} {number}")]).await?;
    }
    channel.wait_for_confirms().await?;
    connection.close(200, "".into()).await.map_err(Problem::from)
}

/// A body whose every part differs, so that a lost or swapped frame shows.
pub(crate) fn patterned(size: usize) -> Vec<u8> {
    (0_u32..).flat_map(u32::to_be_bytes).take(size).collect()
}
