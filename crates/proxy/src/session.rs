//! One client: validates its frames, and places its channels on upstream connections.

mod acks;
mod arguments;
mod channel;
mod close;
mod closed;
mod content;
mod export;
mod hand_over;
mod leftovers;
mod output;
mod passing;
mod placement;
mod recovery;
mod secret;
mod side;
mod staging_wait;
mod state;
#[cfg(test)]
mod tests;
mod validate;
mod whole;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amqp::channel::{ChannelStep, ChannelTable};
use amqp::frame::write_method;
use amqp::method::{channel as channel_methods, confirm};
use amqp::{Credentials, Fault, Frame, FrameKind, Method, ReplyCode};

use self::channel::Channel;
use self::content::unexpected;
pub use self::export::Export;
pub(crate) use self::leftovers::send_again;
use self::output::Output;
use self::placement::UpstreamLink;
#[cfg(test)]
pub(crate) use self::secret::MAX_UNANSWERED_SECRETS;
use self::side::{Side, SidePlacement};
pub use self::state::{FORMAT, SessionState};
pub use self::validate::may_cost_connection;
use self::validate::{Need, is_about_queues, is_publish, names_last_queue, validate, validate_consume};
use crate::ack_frames::is_ack;
use crate::client_properties::ClientProperties;
use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::pool::{ClientInfo, ClientSide, Pool};
use crate::quota::QuotaShare;
use crate::staging::BudgetShare;
use crate::topology::Declarer;
use crate::upstream::{Role, Share, Upstream};

/// Maximum body size in bytes of a message that is held until it is complete, and then passed on whole. The total
/// that a session holds stays below [`STAGING_BUDGET`]; a message that does not fit streams on the client's own
/// connection. When the room for incomplete messages of all clients is exhausted, the client waits: see `staging`.
pub(crate) const STAGING_LIMIT: u64 = 1024 * 1024;

/// Maximum bytes of incomplete messages on all channels of one client.
pub(crate) const STAGING_BUDGET: usize = 4 * 1024 * 1024;

/// One client of the pool.
///
/// Sans-IO: the client's own task calls it with the time, and it answers through outboxes. It reads no clock and starts
/// no task; the pool opens connections, verifies secrets and hands over leftovers in the background, and reports back by
/// events. The order of the calls: [`Self::handle_frame`] for each frame of a batch, then [`Self::flush`];
/// [`Self::handle_nudge`] and [`Self::handle_capacity`] when the transport says so; [`Self::close`] when the client closes
/// its connection, and [`Self::end`] finally, in every case.
///
/// | state | event | next state |
/// |---|---|---|
/// | open | [`Self::close`] | closing; returning or closed at once, if nothing is left at the broker |
/// | closing | the last channel is closed | returning, if the client has a connection of its own; otherwise closed |
/// | returning | its own connection is clean again, or lost | closed |
/// | open | [`Self::export`] | open, and nothing is placed any more; ended once all channels have left |
/// | any | [`Self::end`] | ended; what is held or in flight is handed over to the pool |
#[derive(Debug)]
pub struct ProxySession {
    pool: Arc<Pool>,
    credentials: Arc<Credentials>,
    virtual_host: Box<str>,
    /// Client properties of connections that are opened for this client.
    announced: ClientProperties,
    link: Arc<ClientLink>,
    channels: ChannelTable<Box<Channel>>,
    /// The connection on which shared channels are placed next, for everything but publishing.
    general: UpstreamLink,
    /// Like `general`, for publishing.
    publishing: UpstreamLink,
    /// The connection that belongs to this client alone.
    own: UpstreamLink,
    /// Number of new secrets that the client has sent.
    new_secrets: u64,
    /// Number of `new_secrets` that have not been answered yet.
    unanswered_secrets: usize,
    /// Whether the client's own connection was opened with a secret that the client has since replaced.
    rekeyed: bool,
    /// Every connection that must be notified when this client is gone.
    attached: Vec<Arc<Upstream>>,
    /// Whether the client has declared an exclusive queue.
    exclusive: bool,
    /// Whether the client has declared an auto-delete queue, which the broker deletes with its last consumer.
    auto_delete: bool,
    /// Whether this client may have caused an error for which a broker closed a shared connection, now or in an earlier
    /// session ([`Self::without_replay`]). Such a client uses only its own connection.
    suspect: bool,
    output: Output,
    /// Channels with frames in the wait queue, or that wait to be closed until the broker has processed their
    /// messages.
    lined_up: Vec<u16>,
    /// Channels that have sent enough outside confirm mode to ask for a proof, within a batch.
    unproven: Vec<u16>,
    /// Reusable buffer for the frames of the next message, within a batch: an idle session holds no buffer (S3).
    spare: Vec<u8>,
    /// Bytes of incomplete messages.
    staged: usize,
    /// The client's share of the room for incomplete messages.
    budget: BudgetShare,
    /// Bytes of frames whose channels wait for placement.
    queued: usize,
    /// `queued` at the end of the last batch, in the quota of all clients.
    queued_share: QuotaShare,
    next_lease: u64,
    /// Since when upstream connections have been lost repeatedly, without an answer to the replayed frames in between. Read
    /// and updated only when a connection is lost.
    in_trouble_since: Option<Instant>,
    /// Pause before another connection is tried.
    pause: Duration,
    /// Whether [`crate::link::Event::Retry`] is scheduled.
    retry_pending: bool,
    life: Life,
    /// Whether the client is moving to another process. No channel is placed any more.
    is_exporting: bool,
}

/// The life cycle of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The client closes its connection; channels are still being closed at the broker.
    Closing,
    /// All channels are closed; the client's own connection is being cleaned.
    Returning,
    /// Everything is closed at the broker.
    Closed,
    Ended,
}

impl ProxySession {
    /// For a client that republishes its unconfirmed messages itself, in its own order. The pool keeps no messages for it,
    /// and the loss of an upstream connection that it uses ends it with that connection's fault. Unconfirmed messages are
    /// then neither refused nor sent again. To be called before any other method.
    ///
    /// If it `is_isolated`, all its channels are on its own connection, so it has caused any fault of that connection.
    /// Otherwise another client may have caused a fault other than 320 CONNECTION_FORCED.
    #[must_use]
    pub fn without_replay(mut self, is_isolated: bool) -> Self {
        self.link.replay_buffer.keep_no_messages();
        self.suspect = is_isolated;
        self
    }

    pub(crate) fn new(
        pool: Arc<Pool>,
        credentials: Arc<Credentials>,
        virtual_host: &str,
        info: &ClientInfo,
        client: ClientSide,
        now: Instant,
    ) -> Self {
        pool.counters().clients.fetch_add(1, Ordering::Relaxed);
        let announced = ClientProperties::of(info, &client.client_properties);
        let frame_max = client.negotiated.frame_max;
        let replay_totals = pool.replay_totals().clone();
        let waiting = pool.waiting().clone();
        let declarer = Declarer::new(pool.topologies().clone(), virtual_host, credentials.clone());
        let link =
            ClientLink::new(info.id, client.outbox, frame_max, client.capabilities, replay_totals, waiting)
                .with_declarer(declarer);
        Self {
            budget: BudgetShare::new(pool.staging().clone()),
            queued_share: QuotaShare::new(pool.queued(), 0),
            pool,
            credentials,
            virtual_host: virtual_host.into(),
            announced,
            link: Arc::new(link),
            channels: ChannelTable::new(client.negotiated.channel_max),
            general: UpstreamLink::None,
            publishing: UpstreamLink::None,
            own: UpstreamLink::None,
            new_secrets: 0,
            unanswered_secrets: 0,
            rekeyed: false,
            attached: Vec::new(),
            exclusive: false,
            auto_delete: false,
            suspect: false,
            output: Output::new(now),
            lined_up: Vec::new(),
            unproven: Vec::new(),
            spare: Vec::new(),
            staged: 0,
            queued: 0,
            next_lease: 1,
            in_trouble_since: None,
            pause: Duration::ZERO,
            retry_pending: false,
            life: Life::Open,
            is_exporting: false,
        }
    }

    /// Takes a frame of any channel but 0, already checked for size. Complete messages, or after an acknowledgement
    /// further acknowledgements, that follow in `rest` are taken as well. Returns the number of bytes of `rest` that
    /// were taken.
    ///
    /// # Errors
    /// A fault that ends this client's connection: its own, or that of an upstream connection it depends on.
    #[inline]
    pub fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        self.output.now = now;
        if self.link.has_events() {
            self.handle_events()?;
        }
        if self.life != Life::Open {
            return Ok(0);
        }
        match frame.kind {
            FrameKind::Method if is_publish(frame.payload) => {
                if let Some(taken) = self.whole_messages(frame.channel, frame.payload, rest)? {
                    return Ok(taken);
                }
                self.method(&frame)?;
            }
            FrameKind::Method if is_ack(frame.payload) => {
                if let Some(taken) = self.acks(frame.channel, frame.payload, rest) {
                    return Ok(taken);
                }
                self.method(&frame)?;
            }
            FrameKind::Method => self.method(&frame)?,
            FrameKind::Header => self.header(&frame)?,
            FrameKind::Body => self.body(&frame)?,
            FrameKind::Heartbeat => return Err(frame.unexpected()),
        }
        Ok(0)
    }

    /// Ends a batch: hands the gathered bytes to the upstream connections.
    pub fn flush(&mut self, now: Instant) {
        self.output.now = now;
        self.prove();
        self.output.hand_over();
        self.output.count(self.pool.counters());
        self.spare = Vec::new();
        self.queued_share.set(self.queued);
        if !self.budget.settle(self.staged, &self.link, now) && self.life == Life::Open {
            // Handled as an event, because it may lead to a fault.
            self.link.notify(Event::NoCapacity);
        }
    }

    /// Requests a proof that the broker has processed frames sent outside confirm mode, if there are many, or if the
    /// client may not be read before their bytes are released.
    fn prove(&mut self) {
        for number in std::mem::take(&mut self.unproven) {
            if let Some(channel) = self.channels.get_mut(number)
                && !channel.is_closing()
            {
                channel.prove(&mut self.output);
            }
        }
        if !self.link.replay_buffer.may_add() {
            self.channels
                .iter_mut()
                .filter(|(_, channel)| !channel.is_closing())
                .for_each(|(_, channel)| channel.prove(&mut self.output));
        }
    }

    /// Acts on upstream events.
    ///
    /// # Errors
    /// A fault that ends this client's connection.
    pub fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault> {
        self.output.now = now;
        let result = self.handle_events();
        self.flush(now);
        result
    }

    /// The client's outbox has room again: reading from its own upstream connection and from the client resumes.
    pub fn handle_capacity(&mut self) {
        self.link.outbox.nudge();
        if let UpstreamLink::Ready(upstream) = &self.own {
            upstream.outbox.nudge();
        }
    }

    /// Whether more frames can be taken. If not, the client's outbox is nudged when they can. Depends only on upstream
    /// connections where a channel of this client is, or would be placed next.
    pub fn has_capacity(&self) -> bool {
        !self.budget.waits()
            // If not, frames wait for placement, and an event follows once they are placed.
            && self.pool.queued().admits(self.queued)
            && self.link.may_ask()
            && self.link.replay_buffer.may_add()
            && self.attached.iter().all(|upstream| {
                let is_own = self.own.upstream().is_some_and(|own| Arc::ptr_eq(own, upstream));
                let share = (!is_own).then(|| self.output.share(upstream.id));
                let has_capacity = match &share {
                    Some(share) => share.may_send(upstream.line()),
                    None => upstream.outbox.has_capacity(),
                };
                let waits_there = || self.sends_to(upstream) && !self.may_pass_by(upstream, share.as_ref());
                has_capacity || !waits_there() || upstream.has_capacity(&self.link, share.as_ref())
            })
    }

    /// The upstream connections of its channels, each by its broker's address and the connection's number, as
    /// in the log.
    pub fn upstreams(&self) -> Vec<String> {
        self.attached.iter().map(|upstream| format!("{}#{}", upstream.endpoint, upstream.id)).collect()
    }

    /// Number of open channels.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Whether nothing of this client is in flight: no message is incomplete or waits for its channel to be placed, and
    /// everything published in confirm mode is confirmed, the confirms being in the client's outbox. If not, that
    /// outbox is nudged when it is worth asking again, unless it is the client's turn to send. For a server that is
    /// shutting down.
    pub fn is_settled(&self) -> bool {
        let confirmed = |side: &Side| match side.route() {
            Some(route) => route.upstream.poll_confirms(route.channel, side.unconfirmed_up_to()),
            None => true,
        };
        // All sides are polled, so that each of them sends a notification.
        let sides = self.channels.iter().flat_map(|(_, channel)| channel.sides());
        let unconfirmed = sides.filter(|side| !confirmed(side)).count();
        let incomplete = self.channels.iter().any(|(_, channel)| channel.incoming().is_some());
        unconfirmed == 0 && !incomplete && self.queued == 0
    }

    /// Whether frames from the client may go to this connection.
    fn sends_to(&self, upstream: &Arc<Upstream>) -> bool {
        let is_it = |other: &Arc<Upstream>| Arc::ptr_eq(other, upstream);
        let next =
            [&self.general, &self.publishing].into_iter().filter_map(UpstreamLink::upstream).any(is_it);
        let is_there = |side: &Side| side.route().is_some_and(|route| is_it(&route.upstream));
        (matches!(self.own, UpstreamLink::None) && next)
            || self.channels.iter().any(|(_, channel)| channel.sides().any(is_there))
    }

    /// Whether the client may be read although the broker does not read this publishing connection: no data of the
    /// client waits on it, and the client may send frames for other connections (P10).
    fn may_pass_by(&self, upstream: &Upstream, share: Option<&Share>) -> bool {
        share.is_some_and(|share| share.is_through(upstream.line())) && upstream.is_stopped()
    }

    fn method(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let (number, payload) = (frame.channel, frame.payload);
        if let Some(channel) = self.channels.get_mut(number) {
            let due = channel.due();
            if due.is_some() {
                return Err(unexpected(due));
            }
            if !channel.is_closing() && is_publish(payload) {
                return self.begin_message(number, payload);
            }
            if !channel.is_closing() && is_ack(payload) {
                return self.pass_on(number, FrameKind::Method, payload, false);
            }
        }
        let method = Method::decode(payload)?;
        match self.channels.method(number, &method)? {
            ChannelStep::Open => {
                self.channels.open(number, Box::default());
                add(&self.pool.counters().round_trips_saved, 1);
                self.answer(number, channel_methods::OpenOk::default());
            }
            ChannelStep::Close => self.close_channel(number),
            ChannelStep::AnswerClose => self.answer(number, channel_methods::CloseOk {}),
            ChannelStep::Closed | ChannelStep::Discard => {}
            ChannelStep::Deliver => return self.deliver(number, &method, payload),
        }
        Ok(())
    }

    /// Handles a method for an open channel.
    fn deliver(&mut self, number: u16, method: &Method<'_>, payload: &[u8]) -> Result<(), Fault> {
        let mut need = validate(method, self.exclusive)?;
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        if channel.is_closing() {
            let fault = Fault::new(ReplyCode::ChannelError, "expected 'channel.open'");
            return Err(fault.caused_by(method.ids()));
        }
        if !channel.has_declared && names_last_queue(method) {
            // On the upstream channel, an empty name may mean a queue that another client declared.
            let fault = Fault::new(ReplyCode::NotFound, "no previously declared queue");
            self.fail_channel(number, &fault.caused_by(method.ids()));
            return Ok(());
        }
        if let Method::ConfirmSelect(select) = method
            && self.select_confirms(number)?
        {
            if !select.no_wait {
                add(&self.pool.counters().round_trips_saved, 1);
                self.answer(number, confirm::SelectOk {});
            }
            return Ok(());
        }
        let Some(channel) = self.channels.get_mut(number) else { return Ok(()) };
        match method {
            Method::BasicConsume(consume) => {
                if !consume.consumer_tag.is_empty() && channel.is_consuming(consume.consumer_tag) {
                    let text = format!("attempt to reuse consumer tag '{}'", consume.consumer_tag);
                    return Err(Fault::new(ReplyCode::NotAllowed, text).caused_by(method.ids()));
                }
                let budget = self.pool.config().consumer_budget;
                // The queue may be exclusive to the client's own connection, or auto-delete, so that a move would delete it.
                if !self.exclusive && !self.auto_delete && !channel.general.transactional {
                    need = validate_consume(consume, channel.limits, budget);
                }
                channel.general.touched = true;
            }
            Method::QueueDeclare(declare) if !declare.passive => {
                self.auto_delete |= declare.auto_delete;
                if !declare.durable && need == Need::Any && self.pool.denies_transient() {
                    need = Need::Own;
                }
            }
            Method::BasicQos(qos) if qos.global => channel.limits.all = Some(qos.prefetch_count),
            Method::BasicQos(qos) => channel.limits.each = Some(qos.prefetch_count),
            _ => {}
        }
        channel.has_declared |= matches!(method, Method::QueueDeclare(_));
        channel.general.transactional |= matches!(method, Method::TxSelect(_));
        channel.general.touched |= need != Need::Any;
        self.exclusive |= need == Need::Exclusive;
        if need != Need::Any {
            self.keep_own();
        }
        if is_about_queues(payload) {
            self.leave_former_secret(number)?;
            let closed = self.output.closed.ask();
            if let Some(channel) = self.channels.get_mut(number) {
                channel.general.order_after_closed(closed);
            }
        }
        self.pass_on(number, FrameKind::Method, payload, need != Need::Any)
    }

    /// Turns on confirm mode without asking the broker, which has no reason to refuse. Returns false if the broker may
    /// refuse, or if the reply would overtake other replies or a returned message.
    fn select_confirms(&mut self, number: u16) -> Result<bool, Fault> {
        let Some(channel) = self.channels.get_mut(number) else { return Ok(false) };
        let is_own = channel.is_own();
        let general = &channel.general;
        if is_own && (general.transactional || general.touched) {
            return Ok(false);
        }
        if !is_own && (!channel.in_line.is_empty() || !general.is_quiet()) {
            return Ok(false);
        }
        let role = if is_own { Role::General } else { Role::Publishing };
        let side = channel.side_for(role);
        match &side.place {
            SidePlacement::Unplaced => {
                side.set_confirming();
                Ok(true)
            }
            SidePlacement::Placed(route)
                if route.upstream.is_answered(route.channel)
                    && (!side.may_return() || (!is_own && side.is_quiet())) =>
            {
                if !side.is_confirming() {
                    let mut select = Vec::new();
                    Method::from(confirm::Select { no_wait: true }).encode(&mut select);
                    self.pass_on(number, FrameKind::Method, &select, false)?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Sends the client a method of the proxy's own.
    fn answer<'m>(&self, number: u16, method: impl Into<Method<'m>>) {
        self.link.outbox.append(|buf| write_method(buf.tail(), number, method));
    }
}

impl Drop for ProxySession {
    fn drop(&mut self) {
        // `drop` is not given the time, and most sessions have ended before.
        self.end(transport::now());
    }
}
