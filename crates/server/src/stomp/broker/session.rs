//! An open connection's state on the broker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::error::ReplyCode;
use broker::{
    AuthorisedSession, BrokerError, DiskPoint, Flushed, FrontEnd, OwnedQueues, Publisher, Queue, SessionId,
    Store, Timestamp, TracedConnection, Tracer, VirtualHost, Waiter,
};
use hashbrown::HashMap;
use stomp::server::{EventKind, Request, TransactionId};
use stomp::{StompFault, StompVersion};
use sync::work;
use transport::Outbox;

use super::receipts::Receipts;
use super::sending::Reply;
use super::subscribing::Subscription;
use super::transactions::{Committed, StompCommit, StompTransaction};
use crate::alarms::Blocked;
use crate::amqp::deliveries::{ChannelTeardown, ConnectionConsumers, Settlement, TracePublisher};
use crate::amqp::publish_gate::PublishGate;
use crate::client::OutboxWaiter;
use crate::pending_authorisation::PendingAuthorisation;
use crate::registry::OpenConnection;
use crate::server::Shared;
use crate::stomp::session::{CancelledSubscription, Receipt, StompSession, of_fault};

/// A connection's session on the embedded broker.
pub(in crate::stomp) struct BrokerStompSession {
    pub(super) context: StompContext,
    pub(super) publisher: Publisher,
    /// Messages passed to the publisher since its last flush.
    pub(super) unflushed: u64,
    pub(super) receipts: Receipts,
    /// By subscription number.
    pub(super) subscriptions: HashMap<u64, Subscription>,
    /// The first delivery tag of the next subscription, so that message identifiers do not repeat if a subscription id is
    /// reused.
    pub(super) next_tag: u64,
    /// The reply queues, by `/temp-queue` name.
    pub(super) replies: HashMap<Box<str>, Reply>,
    pub(super) transactions: HashMap<TransactionId, StompTransaction>,
    /// Bytes of messages in `transactions`.
    pub(super) transaction_bytes: usize,
    /// The transaction of a COMMIT that is in progress. One that has failed stays here until the session ends.
    pub(super) commit: Option<Box<StompCommit>>,
    /// The rest of the deliveries that an ACK or NACK settles, which takes more than a turn.
    pub(super) settling: Option<Settlement>,
    /// Queues that this connection has declared, so that not every message declares its queue again.
    pub(super) declared: HashMap<Box<str>, Arc<Queue>>,
    /// Set while an alarm of the server blocks the client.
    blocked: Option<Blocked>,
    /// When to check for overdue deliveries; `None` while there can be none.
    next_check: Option<Instant>,
    /// Publishes the traces of its deliveries to the firehose.
    traces: TracePublisher,
    /// Asks the user's auth backend about the request in `waiting`.
    question: PendingAuthorisation,
    /// A request that waits for `question`, or that takes more than a turn and is called again in the next one. The
    /// client is not read meanwhile.
    waiting: Option<Box<Request<'static>>>,
    /// The receipt that `waiting` asked for, if it has failed.
    failed_receipt: Option<Box<str>>,
    /// Set when the session's end begins.
    ended: bool,
    /// The subscriptions that are ending: all of them, or one.
    pub(super) teardown: Option<ChannelTeardown>,
    /// The queues that end with the session, from the beginning of its end until they are deleted.
    owned: Option<OwnedQueues>,
}

/// The session's environment: server, vhost and connection.
pub(super) struct StompContext {
    pub(super) shared: Arc<Shared>,
    /// The user's authorised session in the vhost, consulted before the vhost itself.
    pub(super) authorised: AuthorisedSession,
    pub(super) vhost: Arc<VirtualHost>,
    pub(super) session: SessionId,
    pub(super) version: StompVersion,
    /// The session identifier.
    pub(super) name: Arc<str>,
    pub(super) consumers: Arc<ConnectionConsumers>,
    /// The connection's entry in the registry; `None` until it is open.
    pub(super) view: Option<Arc<OpenConnection>>,
    outbox: Arc<Outbox>,
    publish_gate: PublishGate,
    nudge: Arc<dyn Waiter>,
    /// Time of the current input.
    pub(super) now: Timestamp,
}

impl StompContext {
    /// Creates the tracer that publishes deliveries to the firehose.
    fn tracer(&self) -> Tracer {
        let view = self.view.as_deref().map(|view| view as &dyn TracedConnection);
        self.vhost.tracer(self.authorised.identity(), view)
    }

    /// The store of durable objects, if there is one.
    pub(super) fn store(&self) -> Option<&Arc<Store>> {
        self.vhost.store()
    }
}

impl BrokerStompSession {
    /// A session for a client with its `authorised` session.
    ///
    /// # Errors
    /// Fails if the user has as many channels as allowed.
    pub(in crate::stomp) fn new(
        shared: &Arc<Shared>,
        authorised: AuthorisedSession,
        session: SessionId,
        version: StompVersion,
        outbox: Arc<Outbox>,
    ) -> Result<Self, BrokerError> {
        authorised.open_channel()?;
        shared.metrics.channels_opened.add(1);
        let context = StompContext {
            shared: Arc::clone(shared),
            vhost: Arc::clone(authorised.vhost()),
            session,
            version,
            name: broker::generated_name("session-").into(),
            consumers: Arc::new(
                ConnectionConsumers::new(Arc::clone(&outbox)).of(Arc::clone(authorised.vhost())),
            ),
            view: None,
            publish_gate: PublishGate::new(Arc::clone(&outbox)),
            nudge: Arc::new(OutboxWaiter(Arc::clone(&outbox))),
            outbox,
            now: Timestamp::default(),
            authorised,
        };
        Ok(Self {
            publisher: context.authorised.publisher().of(FrontEnd::Stomp).in_session(session),
            context,
            unflushed: 0,
            receipts: Receipts::default(),
            subscriptions: HashMap::new(),
            next_tag: 1,
            replies: HashMap::new(),
            transactions: HashMap::new(),
            transaction_bytes: 0,
            commit: None,
            settling: None,
            declared: HashMap::new(),
            blocked: None,
            next_check: None,
            traces: TracePublisher::default(),
            question: PendingAuthorisation::default(),
            waiting: None,
            failed_receipt: None,
            ended: false,
            teardown: None,
            owned: None,
        })
    }

    /// Flushes publishes within the turn, and applies the result unless it is [unfinished](Flushed::unfinished).
    pub(super) fn flush_published(&mut self) -> Flushed {
        if self.unflushed == 0 {
            return Flushed::default();
        }
        let flushed = self.publisher.flush(self.context.now);
        if !flushed.unfinished {
            self.flushed(&flushed);
        }
        flushed
    }

    fn flushed(&mut self, flushed: &Flushed) {
        self.unflushed = 0;
        self.receipts.flushed(flushed, self.context.vhost.store(), &self.context.nudge);
        let context = &self.context;
        if context.publish_gate.after(flushed, &context.vhost, context.now)
            && let Some(view) = &context.view
        {
            view.in_flow(context.now);
        }
    }

    /// As in RabbitMQ, the first message during an alarm is accepted, and nothing after it.
    fn wait_out_alarms(&mut self) {
        let alarms = &self.context.shared.alarms;
        if alarms.any_raised() && self.blocked.is_none() {
            self.set_blocked(alarms.block(&self.context.outbox).map(|(blocked, _)| blocked));
        }
    }

    fn set_blocked(&mut self, blocked: Option<Blocked>) {
        self.context.view.iter().for_each(|view| view.set_blocked(blocked.is_some()));
        self.blocked = blocked;
    }

    /// Performs a request. Changes nothing if its permission has not been asked for yet. Returns `false` if it takes more
    /// than the turn, and has to be called again in the next one.
    fn perform(&mut self, request: &Request<'_>, now: Instant) -> Result<bool, StompFault> {
        self.set_time(now);
        let receipt = request.receipt();
        if let EventKind::Send { destination, body, transaction } = &request.kind {
            self.send(destination, &request.headers, body, *transaction)?;
            self.wait_out_alarms();
            return Ok(true);
        }
        // Earlier messages are published before any other frame takes effect.
        if self.commit.is_none() && self.flush_published().unfinished {
            return Ok(false);
        }
        let mut is_refused = false;
        let until = match &request.kind {
            EventKind::Subscribe(subscribe) => {
                self.next_check = self.next_check.or_else(|| now.checked_add(self.check_interval()));
                self.subscribe(subscribe, &request.headers)?
            }
            EventKind::Unsubscribe { number, destination } => {
                if !self.end_subscription(*number) {
                    return Ok(false);
                }
                self.unsubscribe(destination, &request.headers)?
            }
            EventKind::Settle(settle) => match self.settle(*settle)? {
                Some(until) => until,
                None => return Ok(false),
            },
            EventKind::SettleCancelled => DiskPoint::default(),
            EventKind::Begin(transaction) => {
                self.transactions.insert(*transaction, StompTransaction::default());
                DiskPoint::default()
            }
            EventKind::Commit(transaction) => match self.commit(*transaction)? {
                Some(Committed { until, is_partial }) => {
                    is_refused = is_partial;
                    until
                }
                None => return Ok(false),
            },
            EventKind::Abort(transaction) => {
                self.abort(*transaction);
                DiskPoint::default()
            }
            EventKind::Disconnect => {
                self.end_some();
                if !self.has_ended() {
                    return Ok(false);
                }
                DiskPoint::from(self.context.store().map(|store| store.end()))
            }
            EventKind::Send { .. } => DiskPoint::default(),
        };
        // A subscription gets no message before its receipt, which waits until the frame's changes are on disk.
        let new = match &request.kind {
            EventKind::Subscribe(subscribe) => Some(subscribe.number),
            _ => None,
        };
        match (receipt, new) {
            (Some(receipt), _) => {
                let receipt = Receipt { id: receipt.into(), is_refused, is_confirm: false, starts: new };
                self.receipts.done(receipt, until, (self.context.vhost.store(), &self.context.nudge));
            }
            (None, Some(number)) => self.start(number),
            (None, None) => {}
        }
        Ok(true)
    }

    /// Continues the waiting request, unless its question is still open.
    fn continue_waiting(&mut self, now: Instant) -> Result<(), StompFault> {
        self.question.take_answered();
        if self.question.is_open() {
            return Ok(());
        }
        let Some(request) = self.waiting.take() else { return Ok(()) };
        match self.attempt(&request, now) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.waiting = Some(request);
                Ok(())
            }
            Err(fault) => {
                self.failed_receipt = request.receipt().map(Into::into);
                Err(fault)
            }
        }
    }

    /// Performs a request; returns `false` if it has to wait.
    fn attempt(&mut self, request: &Request<'_>, now: Instant) -> Result<bool, StompFault> {
        let outcome = self.perform(request, now);
        let identity = self.context.authorised.identity();
        match outcome {
            Ok(false) => self.context.publish_gate.pause_for_turn(),
            Err(ref fault) if self.question.ask(fault.is_unasked, identity, &self.context.outbox) => {}
            done => {
                self.question.over(identity);
                return done;
            }
        }
        Ok(false)
    }

    /// Interval at which overdue deliveries are checked for.
    fn check_interval(&self) -> Duration {
        self.context.shared.config.consumer_timeout.min(MAX_CHECK_INTERVAL)
    }

    fn set_time(&mut self, now: Instant) {
        self.context.now = self.context.shared.clock.timestamp(now);
    }
}

impl StompSession for BrokerStompSession {
    fn version(&self) -> StompVersion {
        self.context.version
    }

    fn user(&self) -> &str {
        self.context.authorised.identity().user()
    }

    fn vhost(&self) -> &str {
        self.context.vhost.name()
    }

    fn opened(&mut self, view: &Arc<OpenConnection>) {
        self.publisher.set_connection(Arc::<OpenConnection>::clone(view), 1);
        self.context.view = Some(Arc::clone(view));
    }

    fn name(&self) -> &Arc<str> {
        &self.context.name
    }

    fn handle(&mut self, request: &Request<'_>, now: Instant) -> Result<(), StompFault> {
        if !self.attempt(request, now)? {
            self.waiting = Some(Box::new(request.to_owned()));
        }
        Ok(())
    }

    fn start(&mut self, number: u64) {
        if let Some(subscription) = self.subscriptions.get(&number) {
            subscription.start(self.context.now);
        }
    }

    fn next_receipt(&mut self) -> Option<Receipt> {
        let receipt = self.receipts.next(self.context.store())?;
        if receipt.is_confirm {
            self.context.shared.metrics.confirms(FrontEnd::Stomp).given.add(1);
        }
        Some(receipt)
    }

    fn flush(&mut self, now: Instant) {
        self.set_time(now);
        // A commit flushes its own messages.
        if self.commit.is_none() && self.flush_published().unfinished {
            self.context.publish_gate.pause_for_turn();
        }
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<Vec<CancelledSubscription>, StompFault> {
        self.set_time(now);
        self.context.publish_gate.resume(&self.context.vhost);
        self.continue_waiting(now)?;
        // Flushed even while publishing is paused: a message that only some of its queues have delays dead-lettering and
        // the log.
        self.flush(now);
        let Self { context, traces, .. } = self;
        traces.publish(context.consumers.traces(), &context.publish_gate, context.now, || context.tracer());
        self.context.consumers.resume_deferred(self.context.now);
        if self.blocked.is_some() && !self.context.shared.alarms.any_raised() {
            self.set_blocked(None);
        }
        let cancelled = self.context.consumers.take_cancelled();
        Ok(cancelled.iter().filter_map(|cancelled| self.cancelled(cancelled)).collect())
    }

    fn handle_capacity(&mut self, now: Instant) {
        self.set_time(now);
        self.context.consumers.resume(self.context.now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let expiry = self.context.authorised.expires_at().map(|end| self.context.shared.clock.instant(end));
        [self.next_check, expiry].into_iter().flatten().min()
    }

    fn handle_deadline(&mut self, now: Instant) -> Result<(), StompFault> {
        self.set_time(now);
        self.context.authorised.check_expiry(self.context.now);
        if self.next_check.is_none_or(|next| now < next) {
            return Ok(());
        }
        let timeout = self.context.shared.config.consumer_timeout;
        let in_use = self.subscriptions.values().any(|own| own.deliveries.is_in_use());
        self.next_check = if in_use { now.checked_add(self.check_interval()) } else { None };
        if self.subscriptions.values().any(|own| own.deliveries.is_overdue(now, timeout)) {
            let text = format!(
                "delivery acknowledgement on channel 1 timed out. Timeout value used: {} ms. This timeout value can be \
                 configured, see consumers doc guide to learn more",
                timeout.as_millis()
            );
            return Err(of_fault(amqp::Fault::new(ReplyCode::PreconditionFailed, text)));
        }
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        self.context.publish_gate.is_open()
            && self.blocked.is_none()
            && self.receipts.has_capacity()
            && self.waiting.is_none()
    }

    fn is_settled(&self) -> bool {
        self.receipts.is_empty() && self.waiting.is_none()
    }

    fn take_failed_receipt(&mut self) -> Option<Box<str>> {
        self.failed_receipt.take()
    }

    fn end(&mut self, now: Instant) {
        // A request that only waits for its next turn takes effect, as it would have in a longer one.
        while !self.ended
            && self.waiting.is_some()
            && !self.question.is_open()
            && self.continue_waiting(now).is_ok()
        {
            if self.waiting.is_some() && work::is_turn_over() {
                return;
            }
        }
        self.set_time(now);
        self.end_some();
    }

    fn has_ended(&self) -> bool {
        self.ended && self.owned.is_none()
    }
}

impl BrokerStompSession {
    /// Ends the session, as far as the turn lasts.
    fn end_some(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.begin_end();
        }
        let now = self.context.now;
        let is_back = self.teardown.as_mut().is_none_or(|teardown| teardown.proceed(now));
        if !is_back {
            return self.context.publish_gate.pause_for_turn();
        }
        self.teardown = None;
        let Some(owned) = &mut self.owned else { return };
        if !owned.delete_some() {
            return self.context.publish_gate.pause_for_turn();
        }
        self.owned = None;
        let Self { context, traces, .. } = self;
        traces.finish(context.consumers.traces(), context.now, || context.tracer());
        self.context.authorised.close_channel();
        self.context.shared.metrics.channels_closed.add(1);
    }

    fn begin_end(&mut self) {
        // No subscription takes any more what the session publishes or gives back.
        // One of an UNSUBSCRIBE is complete: that request has been performed before.
        debug_assert!(self.teardown.is_none());
        let mut teardown = ChannelTeardown::default();
        let replies = self.replies.drain().map(|(_, reply)| reply.subscription);
        let subscriptions = self.subscriptions.drain().map(|(_, own)| own).chain(replies);
        subscriptions.for_each(|own| _ = own.end(&mut teardown));
        self.transactions.drain().for_each(|(_, transaction)| transaction.give_up(&mut teardown));
        self.commit.take().into_iter().for_each(|commit| commit.give_up(&mut teardown));
        if self.unflushed > 0 {
            let flushed = self.publisher.flush_all(self.context.now);
            self.flushed(&flushed);
        }
        self.blocked = None;
        self.teardown = Some(teardown);
        self.owned = Some(self.context.vhost.owned_queues(self.context.session));
    }
}

/// As in RabbitMQ: the timeout is half an hour by default, so an extra minute does not matter.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);
