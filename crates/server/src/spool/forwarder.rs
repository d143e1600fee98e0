//! The task of a user's local queues, which forwards their messages. [`messages`] reads and settles them.

mod messages;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use amqp::{Credentials, Fault, ReplyCode};
use broker::{Delivery, Queue, Waiter};
use spool::{BacklogId, FaultCertainty, Forwarding, ForwardingLimits, MessageRefusal};
use sync::work;
use tokio::time::Sleep;

use super::UpstreamAccess;
use super::link::{SpoolLink, SpoolStep};
use super::local::{LoadingShare, LocalSpool, SpoolQueue};
use super::mode::ForwardingMode;
use super::refusals::is_permanent;
use crate::upstream::client::AmqpClient;
use crate::upstream::multiplexing::UpstreamLogin;
use crate::upstream::multiplexing::task::{CLOSE_TIMEOUT, OpenError, close_in_time};
use crate::upstream::retry::RETRY;

/// 25,000 messages in flight permit 250,000 a second at a round trip of 100 ms. A few thousand messages for full queues
/// wait in memory, for short waits; more of them wait on disk. Up to 256 destinations wait on disk independently, each
/// with its own local queue.
const LIMITS: ForwardingLimits = ForwardingLimits {
    window: 25_000,
    window_bytes: 32 << 20,
    deferred: 4_000,
    deferred_bytes: 4 << 20,
    backlogs: 256,
    nacked_max: None,
};

/// The pause after the upstream has refused the login permanently, or a local queue has failed. A client's login ends it
/// early.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// Interval at which a connection is checked while answers are outstanding.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The time without any confirm after which the upstream is reported. The connection is kept, since others may still
/// work.
const SILENT: Duration = Duration::from_secs(10);

/// The age at which a connection is replaced if a client has logged in with other credentials since, as a token may
/// expire. Without this delay, a user with many clients, each with its own token, would cause connections all the time.
const RENEW_AFTER: Duration = Duration::from_secs(30);

/// The reason why nothing is forwarded before a client of the user has logged in.
const NO_LOGIN: &str = "no client of this user has logged in since the start";
const NO_ANSWER: &str = "no upstream reachable";
const NO_CONFIRM: &str = "the upstream confirms nothing";

/// The forwarding state of a user's local queues, across connections.
pub(super) struct Forwarder {
    local: Arc<LocalSpool>,
    queue: Arc<SpoolQueue>,
    upstream: Arc<UpstreamAccess>,
    forwarding: Forwarding<Taken>,
    /// The local queues of the backlogs.
    backlogs: HashMap<BacklogId, Arc<Queue>>,
    /// Bytes of records that this forwarder holds in memory, as counted in `LoadedBytes`.
    loaded: usize,
    /// Set while there is a connection.
    share: Option<LoadingShare>,
    /// Whether messages were settled since the last call of [`Self::settle`].
    has_settled: bool,
    /// Set when a local queue has failed. Nothing is forwarded until [`Self::restart`].
    failure: Option<Fault>,
    /// When the upstream last answered, or no answer was outstanding.
    heard_at: Instant,
    /// Set while there is a connection.
    login: Option<ConnectionLogin>,
    /// Whether newer credentials are known, so that nothing more is published on this connection. Updated once per turn.
    is_renewing: bool,
    /// Set when the upstream has refused a message and newer credentials are known. The next connection uses them.
    renews: bool,
    /// Wakes the task.
    waiter: Arc<dyn Waiter>,
}

/// The credentials with which a connection was opened.
struct ConnectionLogin {
    credentials: Arc<Credentials>,
    opened_at: Instant,
    /// Whether it was opened because a message was refused under older credentials. Another refusal is final then: with
    /// frequent logins, newer credentials would be known each time.
    is_renewal: bool,
}

/// A message that was taken from a local queue.
#[derive(Debug)]
struct Taken {
    from: Arc<Queue>,
    delivery: Delivery,
}

/// Forwards the messages of a user until the spool is drained.
pub(super) async fn run(local: Arc<LocalSpool>, queue: Arc<SpoolQueue>, upstream: Arc<UpstreamAccess>) {
    let mut forwarder = Forwarder::new(local, queue, Arc::clone(&upstream));
    let (mut back_off, mut is_isolated) = (RETRY, false);
    while let Some(work) = forwarder.wait_for_work().await {
        let (opened_at, logins) = (transport::now(), forwarder.queue.logins());
        let login = match work {
            Ok(login) => login,
            Err(failure) => {
                forwarder.wait_after(&failure, LONG_PAUSE, logins).await;
                continue;
            }
        };
        let asked = Arc::clone(&login.credentials);
        let Some(connected) = forwarder.unless_drained(upstream.connect(login, is_isolated)).await else {
            break;
        };
        let (fault, is_permanent) = match connected {
            Ok(client) => {
                let before = forwarder.queue.forwarded.load(Ordering::Relaxed);
                let lost = forwarder.serve(client, &asked, is_isolated).await;
                let Lost { fault, is_local, is_message_sought } = lost;
                // If this connection has stalled by itself, the next one would stall the clients that share it.
                is_isolated = is_message_sought || fault.as_ref().is_some_and(proxy::is_stall);
                let has_forwarded = forwarder.queue.forwarded.load(Ordering::Relaxed) != before;
                // An upstream that fails for whatever it is sent needs time.
                let is_failure = fault.as_ref().is_some_and(|fault| fault.code == ReplyCode::InternalError);
                let is_searching = is_message_sought && !is_failure;
                back_off.reset_after(transport::now() - opened_at);
                if is_searching || has_forwarded {
                    back_off.reset();
                }
                let Some(fault) = fault else { continue };
                (fault, is_local)
            }
            Err(OpenError::Refused(fault)) => {
                let is_permanent = forwarder.login_refused(&asked, &fault);
                (fault, is_permanent)
            }
            Err(OpenError::Unreachable(fault)) => (fault, false),
        };
        let pause = back_off.pause();
        forwarder.wait_after(&fault, if is_permanent { LONG_PAUSE } else { pause }, logins).await;
    }
}

/// The end of a connection.
struct Lost {
    /// `None` if the connection was not needed any more.
    fault: Option<Fault>,
    /// Whether a local queue was the reason.
    is_local: bool,
    /// Whether the next connections have to find the message that causes the fault.
    is_message_sought: bool,
}

impl Forwarder {
    pub(super) fn new(local: Arc<LocalSpool>, queue: Arc<SpoolQueue>, upstream: Arc<UpstreamAccess>) -> Self {
        let waker = Arc::clone(queue.waker());
        let waiter: Arc<dyn Waiter> = Arc::new(move || waker.wake());
        let limits = ForwardingLimits { nacked_max: local.config().nacked_max, ..LIMITS };
        let (forwarding, backlogs) = restored(&queue, Forwarding::new(limits));
        Self {
            local,
            queue,
            upstream,
            forwarding,
            backlogs,
            loaded: 0,
            share: None,
            has_settled: false,
            failure: None,
            heard_at: transport::now(),
            login: None,
            is_renewing: false,
            renews: false,
            waiter,
        }
    }

    /// Waits for messages and for credentials; `None` when the spool is drained.
    ///
    /// # Errors
    /// A local queue has failed.
    async fn wait_for_work(&mut self) -> Option<Result<UpstreamLogin, Fault>> {
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            let now = transport::now();
            self.apply_operator_requests(now);
            self.fill(now);
            self.settle(now);
            if self.is_draining() {
                return Poll::Ready(None);
            }
            if let Some(failure) = self.restart(now) {
                return Poll::Ready(Some(Err(failure)));
            }
            let has_work = self.forwarding.oldest().is_some() && !self.is_paused();
            if !has_work {
                return Poll::Pending;
            }
            let Some(credentials) = self.queue.credentials() else {
                if self.queue.set_trouble(Some(NO_LOGIN)) {
                    let (vhost, user) = (self.queue.vhost(), self.queue.user());
                    tracing::warn!(
                        vhost,
                        user,
                        "forwarding paused: no credentials until a client of this user logs in"
                    );
                }
                return Poll::Pending;
            };
            let vhost = self.queue.vhost().into();
            Poll::Ready(Some(Ok(UpstreamLogin { prefix: "spool-", credentials, vhost })))
        })
        .await
    }

    /// Called when the upstream has accepted credentials.
    fn logged_in(&self, credentials: &Arc<Credentials>) {
        self.queue.login_accepted();
        let now = self.local.timestamp(transport::now());
        self.local.logins().accepted(self.queue.vhost(), credentials, now);
    }

    /// Called when the upstream has refused credentials. Returns whether it will refuse all known ones until an operator
    /// changes something.
    fn login_refused(&self, credentials: &Arc<Credentials>, fault: &Fault) -> bool {
        let vhost = self.queue.vhost();
        let is_permanent = is_permanent(fault, vhost);
        if is_permanent {
            // Refused credentials are invalid for all virtual hosts.
            let vhost = (fault.code != ReplyCode::AccessRefused).then_some(vhost);
            self.local.logins().refused(vhost, credentials);
        }
        is_permanent && !self.queue.login_refused(credentials)
    }

    /// Runs `work`, which may never complete, unless the spool is drained.
    async fn unless_drained<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            self.apply_operator_requests(transport::now());
            if self.is_draining() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        })
        .await
    }

    /// Reports a fault, and waits before the next attempt. `logins` is [`SpoolQueue::logins`] at the start of this
    /// attempt.
    async fn wait_after(&mut self, fault: &Fault, pause: Duration, logins: u64) {
        if self.queue.set_trouble(Some(&fault.reply_text())) {
            let (vhost, user) = (self.queue.vhost(), self.queue.user());
            tracing::warn!(vhost, user, %fault, "forwarding paused");
        }
        // A client that has logged in since then may have a new password.
        self.wait(pause, (pause == LONG_PAUSE).then_some(logins)).await;
    }

    /// Waits for a time, until the spool is drained, or until [`SpoolQueue::logins`] differs from `logins`.
    async fn wait(&mut self, pause: Duration, logins: Option<u64>) {
        let mut timer = pin!(tokio::time::sleep(pause));
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            self.apply_operator_requests(transport::now());
            if self.is_draining() || logins.is_some_and(|logins| self.queue.logins() != logins) {
                return Poll::Ready(());
            }
            timer.as_mut().poll(cx)
        })
        .await;
    }

    /// Forwards over a connection until that is unused or lost. Unless it is isolated, another client may cause its
    /// faults.
    async fn serve(&mut self, client: AmqpClient, asked: &Arc<Credentials>, is_isolated: bool) -> Lost {
        self.queue.set_trouble(None);
        self.logged_in(asked);
        self.share = Some(self.local.loaded().connected());
        let is_renewal = std::mem::take(&mut self.renews);
        let (credentials, opened_at) = (Arc::clone(asked), transport::now());
        self.login = Some(ConnectionLogin { credentials, opened_at, is_renewal });
        if is_renewal {
            self.forwarding.forget_refusals();
        }
        let fault = self.drive(client).await.err();
        (self.share, self.login, self.is_renewing) = (None, None, false);
        if let Some(fault) = &fault
            && matches!(fault.code, ReplyCode::AccessRefused | ReplyCode::NotAllowed)
        {
            // After an outage the pool may have logged in again for this connection.
            self.login_refused(asked, fault);
        }
        let of_close = |fault: &Fault| MessageRefusal { code: fault.code.code(), text: fault.reply_text() };
        let close = fault.as_ref().map(of_close);
        // Before a message is blamed, the fault has to recur on an isolated connection.
        let is_suspicious = close.as_ref().is_some_and(|close| close.certainty() != FaultCertainty::None);
        let is_suspect = !is_isolated && is_suspicious && self.forwarding.in_flight() > 0;
        if fault.as_ref().is_some_and(proxy::is_stall) {
            self.forwarding.stalled(is_isolated);
        }
        let is_message_sought = self.forwarding.lost(close.filter(|_| is_isolated)) || is_suspect;
        let now = transport::now();
        self.settle(now);
        match self.restart(now) {
            Some(failure) => Lost { fault: Some(failure), is_local: true, is_message_sought: false },
            None => Lost { fault, is_local: false, is_message_sought },
        }
    }

    async fn drive(&mut self, client: AmqpClient) -> Result<(), Fault> {
        self.heard_at = transport::now();
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
        if self.forwarding.in_flight() > 0 || self.is_unreachable() || self.queue.needs_restart() {
            // No answer is expected, and the messages are on disk.
            return Ok(());
        }
        close_in_time(CLOSE_TIMEOUT, |waker, now| link.close(waker, now)).await;
        Ok(())
    }

    fn poll_link(
        &mut self,
        link: &mut SpoolLink,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SpoolStep, Fault>> {
        loop {
            // Registered before the state is checked, so that no change in between is missed.
            self.queue.waker().register(cx.waker());
            if self.queue.needs_restart() {
                // Once the connection has ended, no message is in flight.
                return Poll::Ready(Ok(SpoolStep::Unused));
            }
            let turn = work::Turn::begin();
            let step = link.take_turn(self, cx.waker(), transport::now());
            drop(turn);
            if let Some(failure) = &self.failure {
                return Poll::Ready(Err(failure.clone()));
            }
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

    /// Called when the upstream has refused a message for lack of permission. Returns whether newer credentials are
    /// known: then this connection ends, and the message is published again on the next one.
    pub(super) fn renews_after_refusal(&mut self) -> bool {
        let is_outdated = |login: &ConnectionLogin| !login.is_renewal && self.is_outdated(login);
        self.renews |= self.login.as_ref().is_some_and(is_outdated);
        self.is_renewing |= self.renews;
        self.renews
    }

    /// Whether the connection has to end now, so that the next one uses newer credentials.
    pub(super) fn is_to_be_renewed(&self) -> bool {
        self.renews || (self.is_renewing && self.forwarding.in_flight() == 0)
    }

    fn is_outdated(&self, login: &ConnectionLogin) -> bool {
        self.queue.credentials().is_some_and(|newest| newest != login.credentials)
    }

    /// Called when the upstream has answered something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Starts a turn. The time without an answer starts again while none is outstanding.
    pub(super) fn begin_turn(&mut self, is_open: bool, now: Instant) {
        self.forwarding.handle_deadline(now);
        let is_due = |login: &&ConnectionLogin| now.saturating_duration_since(login.opened_at) >= RENEW_AFTER;
        self.is_renewing = self.login.as_ref().filter(is_due).is_some_and(|login| self.is_outdated(login));
        if is_open && self.forwarding.in_flight() == 0 {
            self.heard_at = now;
        }
    }

    /// Reports an upstream that sends no answers while some are outstanding, for a channel or for messages in flight.
    pub(super) fn check_answers(&mut self, now: Instant) {
        let silent_for = now.saturating_duration_since(self.heard_at);
        let trouble = match silent_for {
            _ if silent_for < CHECK_INTERVAL => None,
            _ if self.is_unreachable() => Some(NO_ANSWER),
            _ if silent_for >= SILENT => Some(NO_CONFIRM),
            _ => return,
        };
        if self.queue.set_trouble(trouble)
            && let Some(trouble) = trouble
        {
            let (vhost, user) = (self.queue.vhost(), self.queue.user());
            tracing::warn!(vhost, user, trouble, "forwarding paused: waiting for the upstream");
        }
    }

    /// Whether no upstream can be reached, as far as known.
    fn is_unreachable(&self) -> bool {
        self.upstream.answers() == Some(false)
    }

    /// Whether messages are in flight or ready. During a drain, not if no upstream can confirm them.
    pub(super) fn has_work(&self) -> bool {
        if self.is_draining() {
            self.forwarding.in_flight() > 0 && !self.is_unreachable()
        } else if self.is_paused() {
            self.forwarding.in_flight() > 0
        } else {
            self.forwarding.oldest().is_some()
        }
    }

    fn is_paused(&self) -> bool {
        self.local.mode() == ForwardingMode::Paused
    }

    pub(super) fn is_draining(&self) -> bool {
        self.local.is_draining() || self.queue.is_removed()
    }

    /// The next time at which a turn is due without any event.
    pub(super) fn next_deadline(&self, is_open: bool) -> Option<Instant> {
        let retry = self.forwarding.next_deadline().filter(|_| !self.is_paused());
        let is_waiting = !is_open || self.forwarding.in_flight() > 0;
        let check = is_waiting.then(|| transport::now() + CHECK_INTERVAL);
        retry.into_iter().chain(check).min()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // The other forwarders may use the memory.
        self.local.loaded().changed(0, self.loaded);
        if std::thread::panicking() {
            self.local.forwarder_failed(&self.queue);
        }
    }
}

/// The state in which nothing has been read from the local queues.
fn restored(
    queue: &SpoolQueue,
    mut forwarding: Forwarding<Taken>,
) -> (Forwarding<Taken>, HashMap<BacklogId, Arc<Queue>>) {
    let backlogs = queue.backlogs().into_iter();
    let backlogs = backlogs
        .map(|(name, backlog)| (forwarding.restore(name, backlog.message_count()), backlog))
        .collect();
    (forwarding, backlogs)
}
