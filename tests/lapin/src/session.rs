//! What every scenario is handed: connections to the target, names of its own, and ways to observe.

use std::{
    env, error, result,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use futures_lite::{Stream, StreamExt as _};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, Error, ErrorKind, Event,
    ExchangeKind,
    message::{BasicGetMessage, Delivery},
    options::{
        BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
        ExchangeDeclareOptions, QueueDeclareOptions,
    },
    protocol::AMQPErrorKind,
    types::{FieldTable, ShortString},
};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time};

/// Anything a scenario did not expect.
pub(crate) type Problem = Box<dyn error::Error + Send + Sync>;
pub(crate) type Result<T> = result::Result<T, Problem>;
pub(crate) type Observed = Result<Value>;

/// What `refused` answers when nothing was.
pub(crate) const ACCEPTED: &str = "accepted";

pub(crate) const FIVE: [&str; 5] = ["1", "2", "3", "4", "5"];

/// As that of the tests that start this (`harness/patience.py`).
static WAIT: LazyLock<Duration> = LazyLock::new(|| {
    let seconds: Option<u64> = env::var("LEVERET_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(180))
});

pub(crate) struct Session {
    uri: String,
    prefix: String,
    main: OnceCell<Connection>,
    /// Channels of the main connection, until it is closed. One that was dropped before could be closed while the connection
    /// is: lapin 4.12 then ends its I/O loop, and at times forgets who waits for the connection's close, for ever.
    channels: Mutex<Vec<Channel>>,
}

impl Session {
    pub(crate) fn new(uri: String, prefix: String) -> Session {
        Session { uri, prefix, main: OnceCell::new(), channels: Mutex::default() }
    }

    /// A queue's or exchange's name that no other run of any scenario uses.
    pub(crate) fn name(&self, short: &str) -> ShortString {
        format!("{}{short}", self.prefix).into()
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// A connection of its own; it closes when dropped.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        Ok(Connection::connect(&self.uri, ConnectionProperties::default()).await?)
    }

    /// The scenario's main connection, made on first use.
    pub(crate) async fn main(&self) -> Result<&Connection> {
        self.main.get_or_try_init(|| self.connect()).await
    }

    /// A channel on the main connection, open until `close` or the end of the scenario.
    pub(crate) async fn channel(&self) -> Result<Channel> {
        let channel = self.main().await?.create_channel().await?;
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).push(channel.clone());
        Ok(channel)
    }

    /// Declares a queue of this run and returns its full name.
    pub(crate) async fn queue(&self, channel: &Channel, short: &str) -> Result<ShortString> {
        declare_queue(channel, &self.name(short), QueueDeclareOptions::default()).await?;
        Ok(self.name(short))
    }

    /// Runs `action` on a fresh channel; returns the error that closed the channel, the connection staying usable.
    pub(crate) async fn refused(&self, action: impl AsyncFnOnce(&Channel) -> lapin::Result<()>) -> Observed {
        let connection = self.main().await?;
        let answer = outcome(connection, action).await?;
        let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
        declare_queue(&self.channel().await?, &"".into(), exclusive).await?;
        Ok(answer)
    }

    /// The answer of [`Self::refused`] as soon as that is not `before`: RabbitMQ 4 deletes an exclusive queue some time after it has
    /// answered its owner's close.
    pub(crate) async fn refused_otherwise(
        &self,
        action: impl AsyncFn(&Channel) -> lapin::Result<()>,
        before: &Value,
    ) -> Observed {
        in_time(async {
            loop {
                let now = self.refused(async |channel| action(channel).await).await?;
                if now != *before {
                    return Ok(now);
                }
                time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    /// Publishes and returns once the queue has them all, for what is to be counted or taken on another channel.
    pub(crate) async fn store(&self, queue: &ShortString, bodies: &[&str]) -> Result<()> {
        let channel = self.channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        publish(&channel, queue, bodies).await?;
        channel.wait_for_confirms().await?;
        close(channel).await
    }

    pub(crate) async fn close(&self) {
        if let Some(connection) = self.main.get() {
            // A scenario may have made the server close it already.
            let _closed = connection.close(200, "".into()).await;
        }
    }
}

/// Runs `action` on a channel of a fresh connection; returns the error that closed that connection, or says that it closed
/// the channel alone.
pub(crate) async fn connection_refused(
    session: &Session,
    action: impl AsyncFnOnce(&Channel) -> lapin::Result<()>,
) -> Observed {
    let connection = session.connect().await?;
    let mut answer = outcome(&connection, action).await?;
    if answer != ACCEPTED && connection.status().connected() {
        answer["closed"] = json!("channel");
    }
    Ok(answer)
}

async fn outcome(
    connection: &Connection,
    action: impl AsyncFnOnce(&Channel) -> lapin::Result<()>,
) -> Observed {
    let events = connection.events_listener();
    let channel = connection.create_channel().await?;
    let done = match action(&channel).await {
        Ok(()) => round_trip(&channel).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(()) => Ok(json!(ACCEPTED)),
        Err(error) => match close_of(&error) {
            Some(answer) if ends_the_connection(&error) => Ok(answer),
            // The event comes when lapin has done its part of closing the channel. Dropped before, the channel would be
            // closed a second time, which the server takes for a mistake of the connection; and the event, left unread,
            // would be taken for the next channel's.
            _ => in_time(reason(events)).await,
        },
    }
}

async fn reason(events: impl Stream<Item = Event>) -> Observed {
    futures_lite::pin!(events);
    while let Some(event) = events.next().await {
        if let Event::Error(error) = event {
            return close_of(&error).ok_or_else(|| error.into());
        }
    }
    Err("the connection ended without a reason".into())
}

fn ends_the_connection(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(close) if matches!(close.kind(), AMQPErrorKind::Hard(_)))
}

/// The code and text of the server's close.
pub(crate) fn close_of(error: &Error) -> Option<Value> {
    match error.kind() {
        ErrorKind::ProtocolError(close) => {
            Some(json!({ "code": close.get_id(), "text": close.get_message().as_str() }))
        }
        _ => None,
    }
}

/// Returns once the server has handled everything sent on `channel`, with what it objected to.
pub(crate) async fn round_trip(channel: &Channel) -> lapin::Result<()> {
    exchange_exists(channel, &"amq.direct".into()).await
}

pub(crate) async fn exchange_exists(channel: &Channel, exchange: &ShortString) -> lapin::Result<()> {
    let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
    channel.exchange_declare(exchange.clone(), ExchangeKind::Direct, passive, FieldTable::default()).await
}

pub(crate) async fn declare_queue(
    channel: &Channel,
    queue: &ShortString,
    options: QueueDeclareOptions,
) -> lapin::Result<lapin::Queue> {
    channel.queue_declare(queue.clone(), options, FieldTable::default()).await
}

/// The queue's state, if there is such a queue.
pub(crate) async fn passive(channel: &Channel, queue: &ShortString) -> lapin::Result<lapin::Queue> {
    declare_queue(channel, queue, QueueDeclareOptions { passive: true, ..Default::default() }).await
}

pub(crate) async fn ready(channel: &Channel, queue: &ShortString) -> Result<u32> {
    Ok(passive(channel, queue).await?.message_count())
}

pub(crate) async fn publish(channel: &Channel, queue: &ShortString, bodies: &[&str]) -> Result<()> {
    for body in bodies {
        publish_bytes(channel, queue, body.as_bytes()).await?;
    }
    Ok(())
}

pub(crate) async fn publish_bytes(channel: &Channel, queue: &ShortString, body: &[u8]) -> Result<()> {
    let options = BasicPublishOptions::default();
    channel.basic_publish("".into(), queue.clone(), options, body, BasicProperties::default()).await?;
    Ok(())
}

/// Starts a consumer with manual acknowledgement; it is cancelled when dropped.
pub(crate) async fn consume(channel: &Channel, queue: &ShortString) -> lapin::Result<Consumer> {
    consume_as(channel, queue, "", BasicConsumeOptions::default()).await
}

/// Starts a consumer whose messages need no acknowledgement.
pub(crate) async fn consume_automatically(channel: &Channel, queue: &ShortString) -> lapin::Result<Consumer> {
    consume_as(channel, queue, "", BasicConsumeOptions { no_ack: true, ..Default::default() }).await
}

pub(crate) async fn consume_as(
    channel: &Channel,
    queue: &ShortString,
    tag: &str,
    options: BasicConsumeOptions,
) -> lapin::Result<Consumer> {
    channel.basic_consume(queue.clone(), tag.into(), options, FieldTable::default()).await
}

pub(crate) async fn take(consumer: &mut Consumer, count: usize) -> Result<Vec<Delivery>> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        let delivery =
            in_time(async { consumer.next().await.ok_or_else(|| "the consumer ended".into()) }).await?;
        taken.push(delivery?);
    }
    Ok(taken)
}

/// Gets everything in `queue`, in order.
pub(crate) async fn get_all(channel: &Channel, queue: &ShortString) -> Result<Vec<BasicGetMessage>> {
    get_every(channel, queue, BasicGetOptions::default()).await
}

/// Gets and acknowledges everything in `queue`; the bodies in order.
pub(crate) async fn drain(channel: &Channel, queue: &ShortString) -> Result<Vec<String>> {
    let taken = get_every(channel, queue, BasicGetOptions { no_ack: true }).await?;
    Ok(taken.iter().map(|message| text(&message.delivery)).collect())
}

/// Gets everything in `queue`: body and whether it was marked as redelivered.
pub(crate) async fn seen(channel: &Channel, queue: &ShortString) -> Observed {
    Ok(marked(&get_all(channel, queue).await?))
}

/// What [`seen`] gives, once that many are back: a server may answer a close before its queue has the messages.
pub(crate) async fn seen_again(channel: &Channel, queue: &ShortString, count: u32) -> Observed {
    in_time(async {
        while ready(channel, queue).await? != count {
            time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await?;
    seen(channel, queue).await
}

pub(crate) fn marked(taken: &[BasicGetMessage]) -> Value {
    taken.iter().map(|message| json!([text(&message.delivery), message.delivery.redelivered])).collect()
}

async fn get_every(
    channel: &Channel,
    queue: &ShortString,
    options: BasicGetOptions,
) -> Result<Vec<BasicGetMessage>> {
    let mut taken = Vec::new();
    while let Some(message) = channel.basic_get(queue.clone(), options).await? {
        taken.push(message);
    }
    Ok(taken)
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.data).into_owned()
}

pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

/// Closes `channel` and waits for the server's word on it, which dropping it would not.
pub(crate) async fn close(channel: Channel) -> Result<()> {
    Ok(channel.close(200, "".into()).await?)
}

pub(crate) async fn in_time<T>(waiting: impl Future<Output = Result<T>>) -> Result<T> {
    time::timeout(*WAIT, waiting).await.map_err(|_| "waited in vain")?
}
