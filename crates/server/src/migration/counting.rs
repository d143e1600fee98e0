//! Counts the messages of migrated queues at the other broker.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use amqp::method::{channel, queue};
use amqp::{Fault, Method, ReplyCode};
use broker::{Queue, VirtualHost};

use super::run::{CHANNEL, CHECK_INTERVAL, close};
use super::{MoveContext, MoveLoginError};
use crate::upstream::client::{AmqpClient, ClientEvent};

/// The time limit for an answer of the other broker.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests the counts of the queues of all virtual hosts, one after the other.
pub(super) async fn count(context: &MoveContext) -> Result<(), MoveLoginError> {
    let all = context.progress.all(&context.broker);
    // Earlier counts may be from before the last messages moved.
    context.progress.forget_counts();
    for vhost in context.vhosts() {
        let of_vhost = all.iter().filter(|moved| *moved.vhost == *vhost.name());
        let queues: Vec<_> = of_vhost.filter_map(|moved| vhost.find_queue(&moved.name)).collect();
        ask(context, &vhost, &queues, |queue, there| {
            context.progress.note(&vhost, queue, |shown| shown.there = there);
        })
        .await
        .map_err(|error| match error {
            AskError::Login(error) => error,
            AskError::Queue(_, text) => MoveLoginError::Unreachable(text),
        })?;
    }
    Ok(())
}

/// The reason why not all queues were counted.
pub(super) enum AskError {
    /// There is no session at the other broker.
    Login(MoveLoginError),
    /// The queue with this index, and all later ones, were not counted.
    Queue(usize, String),
}

/// Passes the message count of each queue's namesake at the other broker to `each`; `None` if there is no such queue.
///
/// # Errors
/// The other broker is unreachable, or gives another answer for a queue.
pub(super) async fn ask(
    context: &MoveContext,
    vhost: &VirtualHost,
    queues: &[Arc<Queue>],
    mut each: impl FnMut(&Queue, Option<u64>),
) -> Result<(), AskError> {
    if queues.is_empty() {
        return Ok(());
    }
    let connected = context.connect(vhost.name(), false).await;
    let mut client = connected.map_err(|error| AskError::Login(error.into()))?;
    let mut is_open = false;
    for (at, queue) in queues.iter().enumerate() {
        if !std::mem::replace(&mut is_open, true) {
            client.send(CHANNEL, channel::Open { reserved_1: "" });
        }
        let declare = queue::Declare { queue: queue.name(), passive: true, ..Default::default() };
        client.send(CHANNEL, declare);
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, answer(&mut client)).await;
        let there = match answered {
            Ok(Ok(TargetQueue::Messages(messages))) => Some(messages),
            Ok(Ok(TargetQueue::Missing)) => {
                is_open = false;
                None
            }
            Ok(Err(fault)) => return Err(AskError::Queue(at, fault.reply_text())),
            Err(_) => return Err(AskError::Queue(at, "not responding".to_owned())),
        };
        each(queue, there);
    }
    close(client).await;
    Ok(())
}

/// A queue at the other broker.
enum TargetQueue {
    Messages(u64),
    Missing,
}

/// The answer to a passive declaration.
async fn answer(client: &mut AmqpClient) -> Result<TargetQueue, Fault> {
    loop {
        let answered = poll_fn(|cx| {
            let now = transport::now();
            let outcome =
                client.handle_nudge(cx.waker(), now).and_then(|()| read(client)).and_then(|answer| {
                    client.flush(now)?;
                    Ok(answer)
                });
            match outcome {
                Ok(None) => Poll::Pending,
                Ok(Some(answer)) => Poll::Ready(Ok(answer)),
                Err(fault) => Poll::Ready(Err(fault)),
            }
        });
        // After a timeout, `read` is tried again.
        if let Ok(answered) = tokio::time::timeout(CHECK_INTERVAL, answered).await {
            return answered;
        }
    }
}

fn read(client: &mut AmqpClient) -> Result<Option<TargetQueue>, Fault> {
    let mut received = client.take_received();
    let mut found = None;
    while found.is_none()
        && let Some(event) = received.next(client)?
    {
        let ClientEvent::Method(_, method) = event else { continue };
        found = match method {
            Method::QueueDeclareOk(declared) => Some(TargetQueue::Messages(declared.message_count.into())),
            Method::ChannelClose(close) if close.reply_code == ReplyCode::NotFound.code() => {
                Some(TargetQueue::Missing)
            }
            Method::ChannelClose(close) => return Err(crate::upstream::client::announced(&close)),
            _ => None,
        };
    }
    client.put_back(received);
    Ok(found)
}
