//! The task of a user's local queues: forwards their messages while there are any. [`messages`] reads and settles them.

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

/// 25,000 messages in flight are enough for 250,000 a second over 100 ms. A few thousand that wait for full queues are in
/// memory, for short waits; more of them wait on disk. 256 of their destinations do so independently of each other, at the
/// price of a local queue each.
const LIMITS: ForwardingLimits = ForwardingLimits {
    window: 25_000,
    window_bytes: 32 << 20,
    deferred: 4_000,
    deferred_bytes: 4 << 20,
    backlogs: 256,
    nacked_max: None,
};

/// Pause after the upstream has refused the login permanently, or a local queue has failed, unless a client logs in meanwhile.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// Interval at which a connection without an answer is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// An upstream that answers no publish for this time is reported: others may still work, so that nothing else is done.
const SILENT: Duration = Duration::from_secs(10);

/// A connection is replaced after this time if a client has logged in with other credentials since: a token may expire. A user
/// with many clients, each with a token of its own, would cost connections all the time otherwise.
const RENEW_AFTER: Duration = Duration::from_secs(30);

/// Why nothing is forwarded before a client of the user has logged in.
const NO_LOGIN: &str = "no client of this user has logged in since the start";
const NO_ANSWER: &str = "no upstream reachable";
const NO_CONFIRM: &str = "the upstream confirms nothing";

/// The messages of a user's local queues on their way, whatever connection there is.
pub(super) struct Forwarder {
    local: Arc<LocalSpool>,
    queue: Arc<SpoolQueue>,
    upstream: Arc<UpstreamAccess>,
    forwarding: Forwarding<Taken>,
    /// The local queues of the backlogs.
    backlogs: HashMap<BacklogId, Arc<Queue>>,
    /// Bytes of records that count as this forwarder's in the memory of all.
    loaded: usize,
    /// Set while there is a connection.
    share: Option<LoadingShare>,
    /// Whether anything was settled in the middle of a turn.
    has_settled: bool,
    /// Set when a local queue has not done what was decided, so that nothing is to be forwarded until [`Self::begin_anew`].
    failure: Option<Fault>,
    /// When the upstream has answered last, or no answer was outstanding.
    heard_at: Instant,
    /// Set while there is a connection.
    login: Option<ConnectionLogin>,
    /// Whether nothing more is to be published on the connection, as newer credentials are known. Looked at once a turn.
    is_renewing: bool,
    /// Set when the upstream has refused a message and newer credentials are known: the next connection uses them.
    renews: bool,
    /// Wakes the task.
    waiter: Arc<dyn Waiter>,
}

/// With which credentials a connection was opened.
struct ConnectionLogin {
    credentials: Arc<Credentials>,
    opened_at: Instant,
    /// Whether that was because a message was refused under older ones. Another refusal is final then: with logins all the time
    /// there would be newer ones each time.
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
                // One that has stalled for itself would stall the others again.
                is_isolated = is_message_sought || fault.as_ref().is_some_and(proxy::is_stall);
                let has_forwarded = forwarder.queue.forwarded.load(Ordering::Relaxed) != before;
                // An upstream that fails whatever it is sent needs time.
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

/// How a connection has ended.
struct Lost {
    /// `None` if it was not needed any more.
    fault: Option<Fault>,
    /// Whether a local queue was the reason.
    is_local: bool,
    /// Whether the next connections are to find the message that costs them.
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

    /// Waits for a message and for credentials; `None` when the spool is drained.
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
            if let Some(failure) = self.begin_anew(now) {
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

    /// The upstream has accepted credentials.
    fn logged_in(&self, credentials: &Arc<Credentials>) {
        self.queue.login_accepted();
        let now = self.local.timestamp(transport::now());
        self.local.logins().accepted(self.queue.vhost(), credentials, now);
    }

    /// The upstream has refused credentials. Returns whether it will refuse all that are known until an operator changes
    /// something.
    fn login_refused(&self, credentials: &Arc<Credentials>, fault: &Fault) -> bool {
        let vhost = self.queue.vhost();
        let is_permanent = is_permanent(fault, vhost);
        if is_permanent {
            // Refused credentials are no good for any virtual host.
            let vhost = (fault.code != ReplyCode::AccessRefused).then_some(vhost);
            self.local.logins().refused(vhost, credentials);
        }
        is_permanent && !self.queue.login_refused(credentials)
    }

    /// Waits for something that the upstream may never do, or until the spool is drained.
    async fn unless_drained<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.queue.waker().register(cx.waker());
            self.apply_operator_requests(transport::now());
            if self.is_draining() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        })
        .await
    }

    /// Reports a fault, and waits before the next attempt. `logins` were counted when this one began.
    async fn wait_after(&mut self, fault: &Fault, pause: Duration, logins: u64) {
        if self.queue.set_trouble(Some(&fault.reply_text())) {
            let (vhost, user) = (self.queue.vhost(), self.queue.user());
            tracing::warn!(vhost, user, %fault, "forwarding paused");
        }
        // A client that has logged in since then may have another password.
        self.wait(pause, (pause == LONG_PAUSE).then_some(logins)).await;
    }

    /// Waits for a while, or until the spool is drained, or a client logs in after those that are counted in `logins`.
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

    /// Forwards over a connection until it is unused or lost. If it is not isolated, its fault may be another client's.
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
            // After an outage the pool has logged in again for this connection.
            self.login_refused(asked, fault);
        }
        let of_close = |fault: &Fault| MessageRefusal { code: fault.code.code(), text: fault.reply_text() };
        let close = fault.as_ref().map(of_close);
        // Before a message is blamed, the fault has to occur again where no other client may cause it.
        let is_suspicious = close.as_ref().is_some_and(|close| close.certainty() != FaultCertainty::None);
        let is_suspect = !is_isolated && is_suspicious && self.forwarding.in_flight() > 0;
        if fault.as_ref().is_some_and(proxy::is_stall) {
            self.forwarding.stalled(is_isolated);
        }
        let is_message_sought = self.forwarding.lost(close.filter(|_| is_isolated)) || is_suspect;
        let now = transport::now();
        self.settle(now);
        match self.begin_anew(now) {
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
        if self.forwarding.in_flight() > 0 || self.is_unreachable() || self.queue.begins_anew() {
            // No answer is to be expected, and the messages are on disk.
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
            // Registered before the state is looked at, so that no change in between is missed.
            self.queue.waker().register(cx.waker());
            if self.queue.begins_anew() {
                // Without a connection no message is in flight.
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

    /// The upstream has refused a message for want of a permission. Returns whether it is to be published again on a connection
    /// with newer credentials, which is the next one: the present one ends.
    pub(super) fn renews_after_refusal(&mut self) -> bool {
        let is_outdated = |login: &ConnectionLogin| !login.is_renewal && self.is_outdated(login);
        self.renews |= self.login.as_ref().is_some_and(is_outdated);
        self.is_renewing |= self.renews;
        self.renews
    }

    /// Whether the connection is to end now so that the next one uses newer credentials.
    pub(super) fn is_to_be_renewed(&self) -> bool {
        self.renews || (self.is_renewing && self.forwarding.in_flight() == 0)
    }

    fn is_outdated(&self, login: &ConnectionLogin) -> bool {
        self.queue.credentials().is_some_and(|newest| newest != login.credentials)
    }

    /// The upstream has answered something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Does what is due at the beginning of a turn. The time without an answer begins again as long as none is outstanding.
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

    /// Whether it is known that no upstream can be reached.
    fn is_unreachable(&self) -> bool {
        self.upstream.answers() == Some(false)
    }

    /// Whether a message is on its way, or is ready to be. None is waited for that no upstream can confirm when all ends.
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

    /// When a turn is due without another event.
    pub(super) fn next_deadline(&self, is_open: bool) -> Option<Instant> {
        let retry = self.forwarding.next_deadline().filter(|_| !self.is_paused());
        let is_waiting = !is_open || self.forwarding.in_flight() > 0;
        let check = is_waiting.then(|| transport::now() + CHECK_INTERVAL);
        retry.into_iter().chain(check).min()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // The others may use it.
        self.local.loaded().changed(0, self.loaded);
        if std::thread::panicking() {
            self.local.forwarder_failed(&self.queue);
        }
    }
}

/// Nothing is read yet, and the local queues have what they have.
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
