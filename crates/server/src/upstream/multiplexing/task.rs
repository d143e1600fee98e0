//! The task of a shared queue: opens its connection, reopens it when it is lost, and closes it when the queue is unused.
//! It uses the queue as a [`LinkedQueue`].

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use amqp::{Fault, ReplyCode};
use sync::{AtomicWaker, work};
use tokio::time::Sleep;

use super::inbox::SubscriberInbox;
use super::link::{LinkEnd, LinkStep};
use super::queue::{MultiplexedQueue, SLOTS_AT_ONCE, UpstreamLogin};
use crate::upstream::client::AmqpClient;
use crate::upstream::retry::RETRY;

/// Time limit for the upstream's answer when the connection is closed.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens upstream connections for one shared queue.
pub(crate) trait OpenUpstream: Send + Sync + 'static {
    /// A logged-in client in the virtual host of the queue.
    fn open(&self) -> impl Future<Output = Result<AmqpClient, OpenError>> + Send;
}

/// The reason why a connection could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// A later attempt may succeed.
    Unreachable(Fault),
    /// The upstream refuses the login or the virtual host.
    Refused(Fault),
}

/// A queue with an upstream connection of its own while it is used.
pub(crate) trait LinkedQueue: Send + Sync + 'static {
    type Link: UpstreamLink;
    /// Its name in the log.
    const NAME: &'static str;

    fn login(&self) -> &UpstreamLogin;
    /// Wakes the task when another call of the following methods is due.
    fn waker(&self) -> &AtomicWaker;
    /// Starts the dialogue on a new connection.
    fn link(self: &Arc<Self>, client: AmqpClient, now: Instant) -> Self::Link;
    /// Called when the connection is lost.
    fn handle_lost(&self);
    /// Handles timeouts that have passed by `now`, with or without a connection.
    fn expire(&self, now: Instant);
    /// Whether the queue is abandoned, if necessary because it has been unused for long enough.
    fn end_if_unused(&self, now: Instant) -> bool;
    /// The next time at which to call [`Self::expire`] or [`Self::end_if_unused`].
    fn next_deadline(&self) -> Option<Instant>;
}

/// The dialogue on an upstream connection.
pub(crate) trait UpstreamLink: Send {
    /// Takes a turn. `waker` is woken when the next turn is due.
    ///
    /// # Errors
    /// The connection has to be closed.
    fn take_turn(&mut self, waker: &Waker, now: Instant) -> Result<LinkStep, LinkEnd>;
    /// The latest time at which to call [`Self::take_turn`].
    fn next_deadline(&self) -> Option<Instant>;
    /// Closes the connection, and discards further input. Returns true if that is done or has failed; otherwise `waker`
    /// is woken when this has to be called again.
    fn close(&mut self, waker: &Waker, now: Instant) -> bool;
}

/// Runs a shared queue until it is unused, or the upstream refuses it.
pub(super) async fn run(queue: Arc<MultiplexedQueue>, upstream: impl OpenUpstream) {
    let mut guard = EndGuard(Some(Arc::clone(&queue)));
    if let Some(fault) = serve(&queue, &upstream).await {
        let (user, vhost) = (&queue.login().credentials.username, &queue.login().vhost);
        tracing::warn!(user, %vhost, %fault, "upstream refused {}", MultiplexedQueue::NAME);
        notify_ended(queue.end(), &fault).await;
    }
    guard.0 = None;
}

/// Opens connections until `queue` is abandoned. Returns the fault if the upstream has refused it.
pub(crate) async fn serve<Q: LinkedQueue>(queue: &Arc<Q>, upstream: &impl OpenUpstream) -> Option<Fault> {
    let mut back_off = RETRY;
    loop {
        let opened = unless_unused(&**queue, upstream.open()).await?;
        let fault = match opened {
            Ok(client) => {
                let opened_at = transport::now();
                let mut link = queue.link(client, opened_at);
                let end = drive(&**queue, &mut link).await;
                let Some(end) = end else {
                    close_in_time(CLOSE_TIMEOUT, |waker, now| link.close(waker, now)).await;
                    return None;
                };
                queue.handle_lost();
                back_off.reset_after(transport::now() - opened_at);
                match end {
                    LinkEnd::Refused(fault) => return Some(fault),
                    LinkEnd::Lost(fault) => fault,
                }
            }
            Err(OpenError::Refused(fault)) => return Some(fault),
            Err(OpenError::Unreachable(fault)) => fault,
        };
        let (user, vhost) = (&queue.login().credentials.username, &queue.login().vhost);
        tracing::info!(user, %vhost, %fault, "no upstream connection for {}", Q::NAME);
        unless_unused(&**queue, tokio::time::sleep(back_off.pause())).await?;
    }
}

/// Runs a connection until it has to be closed. Returns `None` if the queue is unused.
async fn drive<Q: LinkedQueue>(queue: &Q, link: &mut Q::Link) -> Option<LinkEnd> {
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    let mut busy_turn = None;
    loop {
        let step = poll_fn(|cx| {
            let step = poll_link(queue, link, timer.as_mut(), cx);
            busy_turn = None;
            step
        });
        match step.await {
            Ok(LinkStep::TurnOver) => busy_turn = transport::next_busy_turn().await,
            Ok(LinkStep::Idle) => return None,
            Err(end) => return Some(end),
        }
    }
}

/// Takes a turn; ready with `Idle` if the queue is abandoned.
fn poll_link<Q: LinkedQueue>(
    queue: &Q,
    link: &mut Q::Link,
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
) -> Poll<Result<LinkStep, LinkEnd>> {
    loop {
        // Registered before the state is checked, so that no change in between is missed.
        queue.waker().register(cx.waker());
        let now = transport::now();
        if queue.end_if_unused(now) {
            return Poll::Ready(Ok(LinkStep::Idle));
        }
        let turn = work::Turn::begin();
        let step = link.take_turn(cx.waker(), now);
        drop(turn);
        if step != Ok(LinkStep::Idle) {
            return Poll::Ready(step);
        }
        let Some(deadline) = link.next_deadline() else { return Poll::Pending };
        timer.as_mut().reset(deadline.into());
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
    }
}

/// Runs `future`, but no longer than the queue is used.
pub(crate) async fn unless_unused<R>(queue: &impl LinkedQueue, future: impl Future<Output = R>) -> Option<R> {
    // Boxed: a handshake is large, and rare.
    let mut future = Box::pin(future);
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        loop {
            queue.waker().register(cx.waker());
            let now = transport::now();
            if queue.end_if_unused(now) {
                return Poll::Ready(None);
            }
            queue.expire(now);
            let Some(deadline) = queue.next_deadline() else { return Poll::Pending };
            timer.as_mut().reset(deadline.into());
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Closes an unused connection: calls `close`, which wakes the waker, until it returns true or the time is over.
pub(crate) async fn close_in_time(limit: Duration, mut close: impl FnMut(&Waker, Instant) -> bool) {
    let closed =
        poll_fn(|cx| if close(cx.waker(), transport::now()) { Poll::Ready(()) } else { Poll::Pending });
    // After the limit the connection is dropped.
    let _ = tokio::time::timeout(limit, closed).await;
}

/// Notifies the subscribers of an abandoned queue, over as many turns as that takes.
async fn notify_ended(inboxes: Vec<Arc<SubscriberInbox>>, fault: &Fault) {
    for some in inboxes.chunks(SLOTS_AT_ONCE) {
        some.iter().for_each(|inbox| inbox.end(fault.clone()));
        // The permit is for turns, and this is none.
        drop(transport::next_busy_turn().await);
    }
}

/// Ends the subscribers of a queue whose task has panicked, so that they do not wait in vain.
struct EndGuard(Option<Arc<MultiplexedQueue>>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            let fault = Fault::new(ReplyCode::InternalError, "shared subscriptions have failed");
            queue.end().iter().for_each(|inbox| inbox.end(fault.clone()));
        }
    }
}
