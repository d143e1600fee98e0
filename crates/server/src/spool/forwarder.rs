//! The task of a local queue: forwards its messages while there are any.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use amqp::{Credentials, Fault};
use broker::{BodyView, Delivery, Fetched, Waiter};
use bytes::Bytes;
use spool::{Envelope, Forwarding, ForwardingLimits, MessageRefusal, Settled};
use sync::work;
use tokio::time::Sleep;

use super::Connect;
use super::course::SpoolCourse;
use super::link::{SpoolLink, SpoolStep, refusal_of};
use super::local::{LocalSpool, SpoolQueue};
use super::parking::Parking;
use super::refusals::is_lasting;
use crate::upstream::client::AmqpClient;
use crate::upstream::sharing::SharedLogin;
use crate::upstream::sharing::task::OpenError;

/// 8,000 messages in flight are enough for 80,000 a second over 100 ms. Messages that wait for full queues take as much memory
/// as one user may have; beyond that nothing is forwarded for that user until the queues have room.
const LIMITS: ForwardingLimits =
    ForwardingLimits { window: 8_000, window_bytes: 16 << 20, held: 20_000, held_bytes: 32 << 20 };

/// First pause before the upstream is tried again. Each attempt that fails doubles it.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause while the upstream is unreachable.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Pause after it has refused the login, unless a client logs in meanwhile.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Time limit for the upstream's answer when the connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The messages of a local queue on their way, whatever connection there is.
pub(super) struct Forwarder {
    local: Arc<LocalSpool>,
    queue: Arc<SpoolQueue>,
    forwarding: Forwarding<Delivery>,
    parking: Parking,
    /// Bytes of records that count as this forwarder's in the memory of all.
    loaded: usize,
    /// Wakes the task.
    waiter: Arc<dyn Waiter>,
}

/// Forwards the messages of a queue until the spool is drained.
pub(super) async fn run(local: Arc<LocalSpool>, queue: Arc<SpoolQueue>, connect: Connect) {
    let mut forwarder = Forwarder::new(local, queue);
    let mut pause = MIN_PAUSE;
    while let Some(login) = forwarder.wait_for_work().await {
        let (opened_at, asked) = (transport::now(), Arc::clone(&login.credentials));
        let Some(connected) = forwarder.unless_drained(connect(login)).await else { break };
        let trouble = match connected {
            Ok(client) => {
                forwarder.queue.set_trouble(None);
                forwarder.logged_in(&asked);
                let outcome = forwarder.drive(client).await;
                forwarder.handle_lost(outcome.as_ref().err());
                if transport::now() - opened_at > MAX_PAUSE {
                    pause = MIN_PAUSE;
                }
                outcome.err().map(|fault| (fault, pause))
            }
            Err(OpenError::Refused(fault)) => {
                forwarder.login_refused(&asked, &fault);
                // A client may have logged in with others meanwhile.
                let is_last = forwarder.queue.credentials().is_none_or(|last| *last == *asked);
                is_last.then_some((fault, REFUSED_PAUSE))
            }
            Err(OpenError::Unreachable(fault)) => Some((fault, pause)),
        };
        let Some((fault, wait)) = trouble else { continue };
        if forwarder.queue.set_trouble(Some(&fault.reply_text())) {
            let (vhost, user) = (forwarder.queue.vhost(), forwarder.queue.user());
            tracing::warn!(vhost, user, %fault, "spooled messages wait for the upstream");
        }
        forwarder.wait(wait).await;
        pause = MAX_PAUSE.min(2 * pause);
    }
}

impl Forwarder {
    pub(super) fn new(local: Arc<LocalSpool>, queue: Arc<SpoolQueue>) -> Self {
        let waker = Arc::clone(queue.waker());
        let waiter: Arc<dyn Waiter> = Arc::new(move || waker.wake());
        let parking = Parking::new(&local, &waiter);
        Self { local, queue, forwarding: Forwarding::new(LIMITS), parking, loaded: 0, waiter }
    }

    /// Waits for a message and for credentials; `None` when the spool is drained.
    async fn wait_for_work(&mut self) -> Option<SharedLogin> {
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            let now = transport::now();
            self.fill(now);
            self.settle(now);
            if self.is_draining() {
                return Poll::Ready(None);
            }
            let has_work = self.forwarding.oldest().is_some() && !self.is_paused();
            if !has_work {
                return Poll::Pending;
            }
            let Some(credentials) = self.queue.credentials() else {
                if self.queue.set_trouble(Some(NO_LOGIN)) {
                    let (vhost, user) = (self.queue.vhost(), self.queue.user());
                    tracing::warn!(vhost, user, "spooled messages wait for a client of their user to log in");
                }
                return Poll::Pending;
            };
            let vhost = self.queue.vhost().into();
            Poll::Ready(Some(SharedLogin { prefix: "spool-", credentials, vhost }))
        })
        .await
    }

    /// The upstream has accepted credentials.
    fn logged_in(&self, credentials: &Arc<Credentials>) {
        let now = self.local.timestamp(transport::now());
        self.local.logins().accepted(self.queue.vhost(), credentials, now);
    }

    /// The upstream has refused credentials.
    fn login_refused(&self, credentials: &Arc<Credentials>, fault: &Fault) {
        let vhost = self.queue.vhost();
        if is_lasting(fault, vhost) {
            self.local.logins().refused(Some(vhost), credentials);
        }
    }

    /// Waits for something that the upstream may never do, or until the spool is drained.
    async fn unless_drained<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            if self.is_draining() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        })
        .await
    }

    /// Waits for a while, or until a client logs in after a refusal, or the spool is drained.
    async fn wait(&mut self, pause: Duration) {
        let before = self.queue.credentials();
        let mut timer = pin!(tokio::time::sleep(pause));
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            let is_same = match (&before, &self.queue.credentials()) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() == now.is_none(),
            };
            if self.is_draining() || !is_same {
                return Poll::Ready(());
            }
            timer.as_mut().poll(cx)
        })
        .await;
    }

    /// Runs a connection until it is unused or lost.
    async fn drive(&mut self, client: AmqpClient) -> Result<(), Fault> {
        let mut link = SpoolLink::new(client);
        let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
        let mut busy_turn = None;
        loop {
            let step = poll_fn(|cx| {
                let step = self.poll_link(&mut link, timer.as_mut(), cx);
                busy_turn = None;
                step
            });
            match step.await? {
                SpoolStep::TurnOver => busy_turn = transport::next_busy_turn().await,
                SpoolStep::Idle | SpoolStep::Unused => break,
            }
        }
        let closed =
            poll_fn(
                |cx| {
                    if link.close(cx.waker(), transport::now()) { Poll::Ready(()) } else { Poll::Pending }
                },
            );
        // Past the limit it is given up.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
        Ok(())
    }

    fn poll_link(
        &mut self,
        link: &mut SpoolLink,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SpoolStep, Fault>> {
        loop {
            // Registered before the state is looked at, so that no change in between is missed.
            self.queue.waker().register(cx.waker());
            let turn = work::Turn::begin();
            let step = link.take_turn(self, cx.waker(), transport::now());
            drop(turn);
            if step != Ok(SpoolStep::Idle) {
                return Poll::Ready(step);
            }
            let Some(deadline) = link.next_deadline(self) else { return Poll::Pending };
            timer.as_mut().reset(deadline.into());
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// A connection has ended: perhaps because of a message that broke it.
    pub(super) fn handle_lost(&mut self, fault: Option<&Fault>) {
        let now = transport::now();
        match fault.and_then(refusal_of) {
            Some(refusal) => self.forwarding.refused(refusal, now),
            None => self.forwarding.lost(now),
        }
        self.settle(now);
    }

    /// Reads messages of the local queue as far as they are wanted; returns their number.
    fn fill(&mut self, now: Instant) -> usize {
        let mut count = 0;
        while self.forwarding.wants_more() && self.may_load() && !self.is_draining() {
            let at = self.local.timestamp(now);
            let Fetched::Got(got) = self.queue.queue().fetch(false, at, &self.waiter) else { break };
            count += 1;
            let bytes = match got.delivery.message().body() {
                BodyView::Inline(bytes) => Bytes::copy_from_slice(bytes),
                BodyView::Chunks([whole]) => whole.clone(),
                BodyView::Chunks(chunks) => chunks.concat().into(),
            };
            if self.queue.take_requeued() {
                self.forwarding.forget_refusals();
            }
            match Envelope::decode(bytes.clone()) {
                Ok(envelope) => {
                    self.forwarding.read(envelope, got.delivery);
                    self.count_loaded();
                }
                Err(error) => {
                    tracing::error!(queue = &**self.queue.queue().name(), %error, "unknown record in the spool: parked");
                    self.parking.park_unknown(bytes, &error.to_string(), got.delivery, now);
                }
            }
        }
        count
    }

    /// Whether another message may be in memory. As long as this forwarder has any, it comes to ask again.
    fn may_load(&self) -> bool {
        self.loaded == 0 || self.local.may_load()
    }

    fn count_loaded(&mut self) {
        let before = std::mem::replace(&mut self.loaded, self.forwarding.bytes());
        self.local.loaded(self.loaded, before);
    }

    /// The next message that is to be published.
    pub(super) fn next_to_publish(&mut self, now: Instant) -> Option<Envelope> {
        if self.is_draining() || self.is_paused() {
            return None;
        }
        loop {
            if let Some(envelope) = self.forwarding.poll_publish(now) {
                return Some(envelope);
            }
            if self.fill(now) == 0 {
                return None;
            }
        }
    }

    pub(super) fn opened(&mut self) {
        self.forwarding.opened();
    }

    pub(super) fn acked(&mut self, delivery_tag: u64, multiple: bool, now: Instant) {
        self.forwarding.acked(delivery_tag, multiple, now);
    }

    pub(super) fn nacked(&mut self, delivery_tag: u64, multiple: bool, now: Instant) {
        self.forwarding.nacked(delivery_tag, multiple, now);
    }

    pub(super) fn refused(&mut self, refusal: MessageRefusal, now: Instant) {
        let (vhost, user) = (self.queue.vhost(), self.queue.user());
        tracing::debug!(vhost, user, code = refusal.code, reason = refusal.text, "spooled message refused");
        self.forwarding.refused(refusal, now);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.forwarding.in_flight()
    }

    /// Lets messages leave the local queue that have been confirmed, or are on disk as parked ones.
    pub(super) fn settle(&mut self, now: Instant) {
        let mut done = Vec::new();
        while let Some(settled) = self.forwarding.poll_settled() {
            match settled {
                Settled::Forwarded(delivery) => done.push(delivery),
                Settled::Parked(envelope, delivery, refusal) => {
                    self.queue.parked.fetch_add(1, Ordering::Relaxed);
                    self.parking.park(&envelope, &refusal, delivery, now);
                }
            }
        }
        self.queue.forwarded.fetch_add(done.len() as u64, Ordering::Relaxed);
        self.count_loaded();
        done.extend(self.parking.take_stored());
        self.queue.held.store(self.forwarding.held() as u64, Ordering::Relaxed);
        self.queue.set_oldest(self.forwarding.oldest());
        if !done.is_empty() {
            let bytes = done.iter().map(|delivery| delivery.message().body_len() as u64).sum();
            self.queue.queue().ack(done, self.local.timestamp(now));
            self.local.left(&self.queue, bytes);
            self.local.changed();
        }
    }

    /// Whether a message is on its way, or is ready to be.
    pub(super) fn has_work(&self) -> bool {
        if self.is_draining() || self.is_paused() {
            self.in_flight() > 0
        } else {
            self.forwarding.oldest().is_some()
        }
    }

    fn is_paused(&self) -> bool {
        self.local.course() == SpoolCourse::Paused
    }

    pub(super) fn is_draining(&self) -> bool {
        self.local.is_draining() || self.queue.is_removed()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.forwarding.next_deadline().filter(|_| !self.is_paused())
    }
}

/// Why nothing is forwarded before a client of the user has logged in.
const NO_LOGIN: &str = "no client of this user has logged in since the start";
