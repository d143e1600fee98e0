//! An open AMQP connection on the embedded broker: its channels, and the faults that end one.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::channel::{ChannelStep, ChannelTable};
use amqp::content::Whole;
use amqp::error::{Fault, ReplyCode};
use amqp::frame::{Frame, FrameKind};
use amqp::handshake::{Capabilities, OpenRequest};
use amqp::method::{Method, basic, channel, connection};
use amqp::properties::ContentHeader;
use broker::{
    AuthorisedSession, DiskPoint, Flushed, Identity, LoginAnswer, LoginRefused, Lsn, Queue, SessionId, Store,
    Timestamp, Tracer, VirtualHost, Waiter,
};
use transport::Outbox;

use super::blocking::{Blocking, publishes};
use super::channel::{Channel, UnfinishedSettlement, WaitingPublish};
use super::content::Destination;
use super::deliveries::{ConnectionConsumers, Deliveries, TracePublisher};
use super::ending::{ChannelEndAnswer, Endings};
use super::incomplete::Holding;
use super::pending_answers::AnswersWaitingForDisk;
use super::publish_gate::PublishGate;
use super::session::{BackendSession, Deferral};
use crate::backend::Backend;
use crate::client::{BackendRequest, OutboxWaiter};
use crate::pending_authorisation::PendingAuthorisation;
use crate::registry::{OpenChannel, OpenConnection};
use crate::server::Shared;

/// A connection's session on the embedded broker.
pub(crate) struct BrokerSession {
    context: ChannelContext,
    channels: ChannelTable<Box<Channel>>,
    /// Channels that may have unflushed publishes, or a method to continue.
    published: Vec<u16>,
    /// Channels with confirms that wait for the disk.
    unconfirmed: Vec<u16>,
    /// When to check for overdue deliveries; `None` while there can be none.
    next_check: Option<Instant>,
    /// Blocks the client while an alarm of the server is raised.
    blocking: Blocking,
    /// The connection's share of the budget for partially received messages.
    incomplete: Holding,
    /// Publishes the traces of its consumers' deliveries to the firehose.
    traces: TracePublisher,
    /// A connection.update-secret that another auth backend is checking.
    renewing: Option<BackendRequest<Result<Identity, LoginRefused>>>,
    /// Asks the user's auth backend about the current operation, which is then repeated.
    question: PendingAuthorisation,
    /// Set when a frame has to wait for `question`, cleared by [`BackendSession::take_deferral`].
    deferral: Option<Deferral>,
    /// Channels that end, and the end of the session itself.
    endings: Endings,
    /// The session has ended, or its end has begun.
    ended: bool,
}

/// State shared by all channels of a connection.
pub(crate) struct ChannelContext {
    pub(crate) shared: Arc<Shared>,
    /// The user's authorised session in the vhost, consulted before the vhost itself.
    pub(crate) authorised: AuthorisedSession,
    pub(crate) vhost: Arc<VirtualHost>,
    pub(crate) session: SessionId,
    pub(crate) outbox: Arc<Outbox>,
    /// The connection's entry in the registry.
    pub(crate) view: Arc<OpenConnection>,
    pub(crate) capabilities: Capabilities,
    pub(crate) frame_max: u32,
    pub(crate) consumers: Arc<ConnectionConsumers>,
    /// Answers that wait for the disk.
    pub(crate) pending_answers: AnswersWaitingForDisk,
    /// A basic.get whose message is being loaded from disk. The client is not read meanwhile.
    late_get: RefCell<Option<LateGet>>,
    /// The rest of a settlement that takes more than a turn. The client is not read meanwhile.
    settling: RefCell<Option<Box<UnfinishedSettlement>>>,
    /// A publish, with its content, that waits for the user's auth backend. The client is not read meanwhile.
    waiting_publish: RefCell<Option<Box<WaitingPublish>>>,
    /// Pauses publishing while the disk falls behind.
    publish_gate: PublishGate,
    /// Nudges the outbox.
    nudge: Arc<dyn Waiter>,
    /// Time of the current input.
    pub(crate) now: Timestamp,
}

/// A basic.get that has not been answered.
pub(crate) struct LateGet {
    pub(crate) channel: u16,
    pub(crate) queue: Arc<Queue>,
    pub(crate) no_ack: bool,
}

impl ChannelContext {
    pub(crate) fn send<'m>(&self, channel: u16, method: impl Into<Method<'m>>) {
        self.pending_answers.send(&self.outbox, channel, method.into());
    }

    /// Holds later answers until these changes are on disk.
    pub(crate) fn hold_until(&self, point: impl Into<DiskPoint>) {
        if let Some(store) = self.store() {
            self.pending_answers.hold_until(point.into(), store, &self.nudge);
        }
    }

    /// The store of durable objects, if there is one.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.vhost.store()
    }

    /// Called after a flush of a channel's publishes. Pauses publishing if too much waits for the disk, or if a queue
    /// holds the publisher.
    pub(crate) fn handed_over(&self, flushed: &Flushed, channel: &OpenChannel) {
        if self.publish_gate.after(flushed, &self.vhost, self.now) {
            self.view.in_flow(self.now);
            channel.in_flow(self.now);
        }
    }

    /// Nudges the session once the log is on disk up to `lsn`.
    pub(crate) fn wait_until_stored(&self, lsn: Lsn) {
        if let Some(store) = self.store() {
            store.wait(lsn, Arc::clone(&self.nudge));
        }
    }

    /// A waiter that nudges the session.
    pub(crate) fn nudge(&self) -> &Arc<dyn Waiter> {
        &self.nudge
    }

    /// Defers the answer to a basic.get to the next nudge or later.
    pub(crate) fn fetch_later(&self, get: LateGet) {
        *self.late_get.borrow_mut() = Some(get);
    }

    /// Defers the rest of a settlement to the next turn.
    pub(crate) fn settle_later(&self, settling: UnfinishedSettlement) {
        *self.settling.borrow_mut() = Some(Box::new(settling));
    }

    /// Takes the rest of a settlement that this channel has deferred.
    pub(crate) fn take_settling(&self, channel: u16) -> Option<UnfinishedSettlement> {
        self.settling.borrow_mut().take_if(|settling| settling.is_of(channel)).map(|settling| *settling)
    }

    pub(crate) fn is_settling(&self, channel: u16) -> bool {
        self.settling.borrow().as_ref().is_some_and(|settling| settling.is_of(channel))
    }

    /// Defers a publish until the user's auth backend has answered.
    pub(crate) fn publish_later(&self, publish: WaitingPublish) {
        *self.waiting_publish.borrow_mut() = Some(Box::new(publish));
    }

    /// Bytes of the deferred publish.
    fn waiting_bytes(&self) -> usize {
        self.waiting_publish.borrow().as_ref().map_or(0, |publish| publish.bytes())
    }

    /// Creates the tracer that publishes deliveries to the firehose.
    fn tracer(&self) -> Tracer {
        self.vhost.tracer(self.authorised.identity(), Some(&*self.view))
    }

    fn is_fetching(&self) -> bool {
        self.late_get.borrow().is_some()
    }

    fn set_time(&mut self, now: Instant) {
        self.now = self.shared.clock.timestamp(now);
    }
}

impl BrokerSession {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        authorised: AuthorisedSession,
        session: SessionId,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
        view: Arc<OpenConnection>,
    ) -> Self {
        let context = ChannelContext {
            shared: Arc::clone(shared),
            vhost: Arc::clone(authorised.vhost()),
            session,
            consumers: Arc::new(
                ConnectionConsumers::new(Arc::clone(&outbox)).of(Arc::clone(authorised.vhost())),
            ),
            authorised,
            capabilities: request.capabilities,
            frame_max: request.negotiated.frame_max,
            pending_answers: AnswersWaitingForDisk::default(),
            late_get: RefCell::default(),
            settling: RefCell::default(),
            waiting_publish: RefCell::default(),
            publish_gate: PublishGate::new(Arc::clone(&outbox)),
            nudge: Arc::new(OutboxWaiter(Arc::clone(&outbox))),
            outbox,
            view,
            now: Timestamp::default(),
        };
        let incomplete = Holding::new(&shared.incomplete, &context.outbox);
        let channels = ChannelTable::new(request.negotiated.channel_max);
        let (published, unconfirmed) = (Vec::new(), Vec::new());
        let blocking = Blocking::default();
        Self {
            context,
            channels,
            published,
            unconfirmed,
            next_check: None,
            blocking,
            incomplete,
            traces: TracePublisher::default(),
            renewing: None,
            question: PendingAuthorisation::default(),
            deferral: None,
            endings: Endings::default(),
            ended: false,
        }
    }

    /// Applies the outcome of connection.update-secret, with RabbitMQ's text if it is refused.
    fn renewed(&mut self, outcome: Result<Identity, LoginRefused>) -> Result<(), Fault> {
        match outcome {
            Ok(identity) => {
                self.context.authorised.renew(identity);
                Ok(())
            }
            Err(why) => {
                let user = self.context.authorised.identity().user();
                tracing::warn!(connection = self.context.session.0, user, %why, "new secret refused");
                let text = "New secret was refused by one of the backends";
                Err(Fault::new(ReplyCode::NotAllowed, text).on_connection().caused_by(UPDATE_SECRET))
            }
        }
    }

    /// Answers connection.update-secret once another auth backend has decided.
    fn after_renewal(&mut self) -> Result<(), Fault> {
        let Some(outcome) = self.renewing.as_ref().and_then(BackendRequest::take_answer) else {
            return Ok(());
        };
        self.renewing = None;
        self.renewed(outcome)?;
        self.context.send(0, connection::UpdateSecretOk {});
        Ok(())
    }

    /// When the user's token expires, if ever.
    fn expiry(&self) -> Option<Instant> {
        let expires_at = self.context.authorised.expires_at()?;
        Some(self.context.shared.clock.instant(expires_at))
    }

    fn handle_method(&mut self, number: u16, payload: &[u8], rest: &[u8]) -> Result<usize, Fault> {
        let method = Method::decode(payload)?;
        match self.channels.method(number, &method)? {
            ChannelStep::Deliver => {
                if let Method::BasicPublish(publish) = method {
                    return self.publish(number, &publish, rest);
                }
                let Some(channel) = self.channels.get_mut(number) else { return Ok(0) };
                channel.check_method()?;
                let outcome = channel.handle_method(&self.context, method);
                if channel.has_unfinished_method(&self.context) {
                    self.mark_for_flush(number);
                }
                self.settle_outcome(number, outcome.map_err(|fault| fault.caused_by(method.ids())))?;
            }
            ChannelStep::Open => self.open_channel(number)?,
            ChannelStep::Close => {
                let channel = self.channels.remove(number);
                self.end_channel(channel, ChannelEndAnswer::CloseOk(number));
            }
            ChannelStep::AnswerClose => self.context.send(number, channel::CloseOk {}),
            ChannelStep::Closed | ChannelStep::Discard => {}
        }
        Ok(0)
    }

    /// Publishes at once if header and body follow the method in `rest`, as they usually do.
    fn publish(&mut self, number: u16, publish: &basic::Publish<'_>, rest: &[u8]) -> Result<usize, Fault> {
        if publish.immediate {
            return Err(Fault::new(ReplyCode::NotImplemented, "immediate=true").caused_by(PUBLISH));
        }
        self.mark_for_flush(number);
        let Some(channel) = self.channels.get_mut(number) else { return Ok(0) };
        channel.check_method()?;
        let max_size = self.context.shared.config.max_message_size;
        match Whole::peek(rest, number, self.context.frame_max, max_size) {
            Ok(Some(whole)) => {
                let outcome = channel.publish(&self.context, publish, whole.properties, whole.body);
                self.settle_outcome(number, outcome.map_err(|fault| fault.caused_by(PUBLISH)))?;
                Ok(whole.wire_len)
            }
            // An error in the content is found again, and handled, frame by frame.
            Ok(None) | Err(_) => {
                channel.expect_content(publish);
                Ok(0)
            }
        }
    }

    fn handle_header(&mut self, number: u16, payload: &[u8]) -> Result<(), Fault> {
        self.mark_for_flush(number);
        let Some(channel) = self.channels.content(number)? else { return Ok(()) };
        let outcome = channel.handle_header(&self.context, ContentHeader::decode(payload)?);
        self.settle_outcome(number, outcome)
    }

    fn handle_body(&mut self, number: u16, payload: &[u8]) -> Result<(), Fault> {
        self.mark_for_flush(number);
        let Some(channel) = self.channels.content(number)? else {
            self.incomplete.changed(0, 0);
            return Ok(());
        };
        let before = channel.incomplete_bytes();
        let outcome = channel.handle_body(&self.context, payload);
        // A complete message that waits for its permission takes as much memory as before.
        self.incomplete.changed(before, channel.incomplete_bytes() + self.context.waiting_bytes());
        self.settle_outcome(number, outcome)
    }

    /// Marks the channel to be flushed at the end of the batch.
    fn mark_for_flush(&mut self, number: u16) {
        if self.published.last() != Some(&number) {
            self.published.push(number);
        }
    }

    fn open_channel(&mut self, number: u16) -> Result<(), Fault> {
        let context = &self.context;
        context.authorised.open_channel()?;
        let destination = Destination { channel: number, frame_max: context.frame_max };
        let deliveries = Arc::new(Deliveries::new(Arc::clone(&context.consumers), destination));
        let channel = Channel::new(number, deliveries);
        context.view.channel_opened(Arc::clone(channel.view()));
        self.channels.open(number, Box::new(channel));
        context.shared.metrics.channels_opened.add(1);
        context.send(number, channel::OpenOk { reserved_1: b"" });
        Ok(())
    }

    /// Called once the user's auth backend has answered. A deferred publish is repeated; a frame that waits is passed in
    /// again.
    fn after_question(&mut self) -> Result<(), Fault> {
        if !self.question.take_answered() {
            return Ok(());
        }
        let Some(waiting) = self.context.waiting_publish.take() else { return Ok(()) };
        let (number, bytes) = (waiting.channel(), waiting.bytes());
        let Some(channel) = self.channels.get_mut(number) else {
            // The channel was closed meanwhile.
            self.incomplete.changed(bytes, 0);
            self.question.over(self.context.authorised.identity());
            return Ok(());
        };
        let outcome = channel.publish_again(&self.context, *waiting);
        let outcome = outcome.map_err(|fault| fault.caused_by(PUBLISH));
        self.incomplete.changed(bytes, self.context.waiting_bytes());
        self.mark_for_flush(number);
        let settled = self.settle_outcome(number, outcome);
        if self.deferral.take().is_some() { Ok(()) } else { settled }
    }

    /// Whether `fault` only means that the user's auth backend has to be asked first. The operation has changed nothing
    /// then.
    fn defers(&mut self, fault: &Fault) -> bool {
        let identity = self.context.authorised.identity();
        if !self.question.ask(fault.is_unasked, identity, &self.context.outbox) {
            return false;
        }
        let has_content = self.context.waiting_publish.borrow().is_some();
        self.deferral = Some(if has_content { Deferral::Rest } else { Deferral::Frame });
        true
    }

    /// Closes the channel if `outcome` is a channel error; returns connection errors, and the error of an operation that
    /// is deferred.
    fn settle_outcome(&mut self, number: u16, outcome: Result<(), Fault>) -> Result<(), Fault> {
        if let Err(fault) = &outcome
            && self.defers(fault)
        {
            return outcome;
        }
        self.question.over(self.context.authorised.identity());
        match outcome {
            Err(fault) if !fault.is_hard() => {
                self.close_channel(number, fault);
                Ok(())
            }
            other => other,
        }
    }

    /// Closes a channel for a fault that is its own.
    fn close_channel(&mut self, number: u16, fault: Fault) {
        let channel = self.channels.start_closing(number);
        self.end_channel(channel, ChannelEndAnswer::Close(number, Box::new(fault)));
    }

    /// Interval at which overdue deliveries are checked for.
    fn check_interval(&self) -> Duration {
        self.context.shared.config.consumer_timeout.min(MAX_CHECK_INTERVAL)
    }

    /// Resumes publishing if there is capacity or the next turn has come, and sends answers and confirms whose changes
    /// are on disk.
    fn after_disk(&mut self) {
        let Self { context, channels, unconfirmed, .. } = self;
        context.publish_gate.resume(&context.vhost);
        let Some(store) = context.store() else { return };
        let durable = store.durable();
        unconfirmed.retain(|number| {
            channels.get_mut(*number).is_some_and(|channel| {
                channel.confirm_up_to(context, durable);
                channel.has_unconfirmed()
            })
        });
        context.pending_answers.release(store, &context.outbox);
    }

    /// Publishes traces of deliveries to the firehose, within the turn.
    fn report_traced(&mut self) {
        let Self { context, traces, .. } = self;
        traces.publish(context.consumers.traces(), &context.publish_gate, context.now, || context.tracer());
    }

    /// Answers the deferred basic.get, if its message is in memory.
    fn after_load(&mut self) {
        let Some(get) = self.context.late_get.take() else { return };
        if let Some(channel) = self.channels.get_mut(get.channel) {
            channel.fetch(&self.context, get.queue, get.no_ack);
        }
    }

    /// Ends a channel that is no longer in the table, if there was one; the client is then answered.
    fn end_channel(&mut self, channel: Option<Box<Channel>>, answer: ChannelEndAnswer) {
        self.endings.begin(channel, answer);
        self.continue_endings();
    }

    /// Continues ends of channels, and that of the session, until the turn is over. The rest follows in the next one.
    fn continue_endings(&mut self) {
        let Self { context, endings, incomplete, .. } = self;
        let is_done = endings.proceed(context, |channel| {
            incomplete.changed(channel.incomplete_bytes(), 0);
            context.view.channel_closed(channel.view().number());
            context.authorised.close_channel();
            context.shared.metrics.channels_closed.add(1);
        });
        if !is_done {
            context.publish_gate.pause_for_turn();
        }
    }
}

/// As in RabbitMQ: the timeout is half an hour by default, so an extra minute does not matter.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Class and method id of basic.publish, for errors in its content.
const PUBLISH: (u16, u16) = (60, 40);

/// Class and method id of tx.commit.
const COMMIT: (u16, u16) = (90, 20);

/// Class and method id of connection.update-secret.
const UPDATE_SECRET: (u16, u16) = (10, 70);

impl BackendSession for BrokerSession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        self.context.set_time(now);
        if self.next_check.is_none() {
            self.next_check = now.checked_add(self.check_interval());
        }
        match frame.kind {
            FrameKind::Method => self.handle_method(frame.channel, frame.payload, rest),
            FrameKind::Header => self.handle_header(frame.channel, frame.payload).map(|()| 0),
            FrameKind::Body => self.handle_body(frame.channel, frame.payload).map(|()| 0),
            // Already handled by the connection.
            FrameKind::Heartbeat => Ok(0),
        }
    }

    fn flush(&mut self, now: Instant) {
        self.context.set_time(now);
        for number in std::mem::take(&mut self.published) {
            let Some(channel) = self.channels.get_mut(number) else { continue };
            match channel.flush(&self.context) {
                Ok(false) => self.published.push(number),
                Ok(true) if channel.has_unconfirmed() && !self.unconfirmed.contains(&number) => {
                    self.unconfirmed.push(number);
                }
                Ok(true) => {}
                Err(fault) => self.close_channel(number, fault.caused_by(COMMIT)),
            }
        }
        if !self.published.is_empty() {
            self.context.publish_gate.pause_for_turn();
        }
        self.continue_endings();
    }

    fn take_deferral(&mut self) -> Option<Deferral> {
        self.deferral.take()
    }

    fn takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
        if !self.published.is_empty() && !publishes(frame) {
            // The next frame must see the effects of earlier publishes.
            self.flush(now);
        }
        self.context.publish_gate.is_open()
            && self.endings.are_over()
            && !self.context.is_fetching()
            && self.context.pending_answers.lets_pass(frame)
            && self.blocking.lets_pass(frame, &self.context)
            && (frame.kind != FrameKind::Body || self.incomplete.takes(frame.payload.len()))
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault> {
        self.context.set_time(now);
        self.after_renewal()?;
        self.after_question()?;
        self.after_disk();
        if !self.published.is_empty() || !self.endings.are_over() {
            // Flushed even without room: a message that has reached only some of its queues delays
            // dead-lettering and the log.
            self.flush(now);
        }
        self.after_load();
        self.report_traced();
        self.incomplete.look(now);
        self.blocking.unblock_if_cleared(&self.context);
        self.context.consumers.resume_deferred(self.context.now);
        for cancelled in self.context.consumers.take_cancelled() {
            if let Some(channel) = self.channels.get_mut(cancelled.deliveries.channel()) {
                channel.cancelled_by_broker(&self.context, &cancelled);
            }
        }
        Ok(())
    }

    fn handle_capacity(&mut self, now: Instant) {
        self.context.set_time(now);
        self.context.consumers.resume(self.context.now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_messages = self.incomplete.deadline().filter(|_| !self.question.is_open());
        [self.next_check, of_messages, self.expiry()].into_iter().flatten().min()
    }

    fn handle_deadline(&mut self, now: Instant) -> Result<(), Fault> {
        if !self.question.is_open() {
            // A blocked client is not read, and so cannot complete its messages.
            self.incomplete.check(now)?;
        }
        self.context.set_time(now);
        if self.context.authorised.check_expiry(self.context.now)
            && self.context.vhost.compatibility().closes_on_token_expiry()
        {
            return Err(Fault::new(ReplyCode::ConnectionForced, "credential expired").on_connection());
        }
        if self.next_check.is_none_or(|next| now < next) {
            return Ok(());
        }
        let timeout = self.context.shared.config.consumer_timeout;
        let mut overdue = Vec::new();
        let mut in_use = false;
        for (number, channel) in self.channels.iter_mut() {
            in_use |= channel.is_in_use();
            if channel.is_overdue(now, timeout) {
                overdue.push(number);
            }
        }
        self.next_check = if in_use { now.checked_add(self.check_interval()) } else { None };
        for number in overdue {
            let text = format!(
                "delivery acknowledgement on channel {number} timed out. Timeout value used: {} ms. This timeout value \
                 can be configured, see consumers doc guide to learn more",
                timeout.as_millis()
            );
            // This is not an outcome of the operation that may be waiting for an answer.
            self.close_channel(number, Fault::new(ReplyCode::PreconditionFailed, text));
        }
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        self.context.publish_gate.is_open()
            && self.endings.are_over()
            && !self.context.is_fetching()
            && self.context.pending_answers.has_capacity()
            && self.incomplete.has_capacity()
            && !self.blocking.is_blocked()
            && !self.question.is_open()
    }

    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault> {
        let Backend::Broker(broker) = &self.context.shared.backend else { return Ok(true) };
        if self.renewing.is_some() {
            let text = "a new secret came before the last one was answered";
            return Err(Fault::new(ReplyCode::ResourceError, text).on_connection().caused_by(UPDATE_SECRET));
        }
        match broker.renew(self.context.authorised.identity(), secret) {
            LoginAnswer::Now(outcome) => self.renewed(outcome).map(|()| true),
            LoginAnswer::Later(answer) => {
                self.renewing = Some(BackendRequest::new(&self.context.outbox, answer));
                Ok(false)
            }
        }
    }

    fn channel_count(&self) -> usize {
        self.channels.len()
    }

    fn is_settled(&self) -> bool {
        self.unconfirmed.is_empty()
            && self.published.is_empty()
            && self.endings.are_over()
            && self.context.pending_answers.is_empty()
            && !self.question.is_open()
    }

    fn close(&mut self, now: Instant) -> bool {
        self.end(now);
        self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.has_ended() && self.context.pending_answers.is_empty()
    }

    fn end(&mut self, now: Instant) {
        self.context.set_time(now);
        if !std::mem::replace(&mut self.ended, true) {
            self.blocking = Blocking::default();
            // Its answer no longer matters to the client.
            self.renewing = None;
            if let Some(waiting) = self.context.waiting_publish.take() {
                self.incomplete.changed(waiting.bytes(), 0);
            }
            self.context.view.all_channels_closed();
            let channels: Vec<_> = self.channels.drain().map(|(_, channel)| channel).collect();
            self.endings.begin(channels, ChannelEndAnswer::Nothing);
            let Self { context, endings, .. } = self;
            endings.end_session(context.vhost.owned_queues(context.session));
        }
        self.continue_endings();
        if self.endings.are_over() {
            let Self { context, traces, .. } = self;
            traces.finish(context.consumers.traces(), context.now, || context.tracer());
        }
    }

    fn has_ended(&self) -> bool {
        self.ended && self.endings.are_over()
    }
}
