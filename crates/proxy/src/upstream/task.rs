//! The task of an upstream connection: it passes what the broker sends on to the clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use amqp::frame::HEARTBEAT;
use amqp::heartbeat::{Heartbeat, HeartbeatAction};
use amqp::method::{basic, channel, connection};
use amqp::{Credentials, Fault, Frame, FrameKind, Method, ReplyCode};
use arc_swap::ArcSwap;
use sync::Mutex;
use tokio::sync::Notify;
use transport::{Ended, Intent, Outbox, Paced, Protocol, Stream};

use super::client_batch::ClientBatch;
use super::content::{carries_content, is_worth_waiting_for};
use super::handshake::TunedLimits;
use super::leases::IdleChannels;
use super::ledger::{ConfirmedNumber, UnsettledEntries};
use super::role::Role;
use super::slot::{ChannelOpening, Lease, Slot};
use super::stall::{AnswerCheck, CHECK_INTERVAL, StallState, report_stall, stalled};
use super::{Phase, Upstream, UpstreamState};
use crate::ack_frames::{WIRE_LEN, acks_in, decode, is_ack};
use crate::link::{ClientLink, Event};
use crate::metrics::add;
use crate::pool::{Endpoint, Pool, background};
use crate::refusal::announced_close;
use crate::session::send_again;

/// The address and login of a connection that was opened.
pub(crate) struct UpstreamIdentity {
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) virtual_host: Box<str>,
}

/// Creates a connection from an open stream, and starts its task. `owner` is the client that it belongs to
/// alone; `role` is its first use, if it is to be shared.
pub(crate) fn spawn(
    pool: &Arc<Pool>,
    stream: Stream,
    limits: TunedLimits,
    access: UpstreamIdentity,
    owner: Option<Arc<ClientLink>>,
    role: Option<Role>,
) -> Arc<Upstream> {
    let task = open(pool, limits, access, owner, role, transport::now());
    let upstream = task.upstream.clone();
    let stream = Paced::new(stream, task.frames.clone());
    background::run(run(task, stream, pool.config().write_timeout));
    upstream
}

/// Creates a connection that is open as of `now`, and adds it to the pool.
pub(crate) fn open(
    pool: &Arc<Pool>,
    limits: TunedLimits,
    access: UpstreamIdentity,
    owner: Option<Arc<ClientLink>>,
    role: Option<Role>,
    now: Instant,
) -> UpstreamConnection {
    let config = pool.config();
    let upstream = Arc::new(Upstream {
        id: pool.next_id(),
        outbox: Arc::new(Outbox::new(config.outbox_limit)),
        sent: AtomicU64::new(0),
        unproven: AtomicBool::new(false),
        sample: Mutex::default(),
        frame_max: limits.frame_max,
        endpoint: access.endpoint,
        credentials: ArcSwap::new(access.credentials),
        virtual_host: access.virtual_host,
        channel_max: limits.channel_max,
        shared_channel_max: limits.channel_max.min(config.max_channels_per_connection),
        channel_age_max: config.auth_ttl,
        opened_at: now,
        news: Notify::new(),
        state: Mutex::new(UpstreamState {
            phase: Phase::Open,
            verified_at: Some(now),
            refreshing: false,
            slots: Vec::new(),
            free: Vec::new(),
            in_use: 0,
            role,
            has_published: owner.is_some(),
            resting: IdleChannels::default(),
            opening: 0,
            idle_since: owner.is_none().then_some(now),
            awaits_first_use: owner.is_none(),
            owner,
            unused: pool.unused().clone(),
            returning: false,
            starving: Vec::new(),
            blocked: None,
            stall: StallState::default(),
            answers_since: now,
            attached: Vec::new(),
            waiting: Vec::new(),
        }),
    });
    pool.add(upstream.clone());
    UpstreamConnection {
        upstream,
        frames: Arc::default(),
        now,
        pool: Arc::downgrade(pool),
        heartbeat: Heartbeat::new(limits.heartbeat_secs, now),
        idle_timeout: config.idle_timeout,
        consumer_budget: config.consumer_budget,
        cause: None,
        prove_at: None,
        check_at: None,
        answers: 0,
        moved: (0, 0),
        stalled: false,
        close_confirmed: false,
        finished: false,
        left: false,
    }
}

async fn run(mut task: UpstreamConnection, mut stream: Paced, write_timeout: Duration) {
    let outbox = task.upstream.outbox.clone();
    // Reading continues however much waits to be written, because a broker that is not read stops reading.
    let ended = transport::drive(&mut stream, &mut task, &outbox, usize::MAX, write_timeout).await;
    if !task.finished {
        task.cause.get_or_insert_with(|| lost(&ended));
    }
    // A connection that was already stalled when its write timed out has suspects, too.
    task.stalled |= matches!(ended, Ended::WriteTimeout) && task.upstream.is_stalled();
    task.leave();
}

fn lost(ended: &Ended) -> Fault {
    let why = match ended {
        Ended::Finished => "closed".to_owned(),
        Ended::Eof => "closed by the broker".to_owned(),
        Ended::WriteTimeout => "broker takes no data".to_owned(),
        Ended::HandedOver(_) => "handed over to another process".to_owned(),
        Ended::Io(error) => error.to_string(),
    };
    Fault::new(ReplyCode::ConnectionForced, format!("upstream connection lost: {why}"))
}

/// The protocol of an upstream connection that is open.
pub(crate) struct UpstreamConnection {
    pub(crate) upstream: Arc<Upstream>,
    /// Number of frames handled so far, from which the stream learns how the broker batches them.
    frames: Arc<AtomicU64>,
    /// When the present input was read.
    now: Instant,
    pool: Weak<Pool>,
    heartbeat: Heartbeat,
    idle_timeout: Duration,
    /// Bytes that may wait for a client of a shared connection before it gets no more deliveries there.
    consumer_budget: usize,
    /// The reason for the end, if the pool did not close the connection.
    cause: Option<Fault>,
    /// Set when no more frames will be read. The connection takes no more channels from then on, even if data remains
    /// to be written.
    finished: bool,
    /// Whether the connection was removed from the pool and its sessions were notified.
    left: bool,
    /// When to request proofs. Set when messages outside confirm mode are written, cleared when proofs are
    /// requested.
    prove_at: Option<Instant>,
    /// When to check whether the broker still answers. Set when anything is written, cleared when nothing is due.
    check_at: Option<Instant>,
    /// Number of answers on all channels so far.
    answers: u64,
    /// `answers`, and the bytes written to the socket, at the last check.
    moved: (u64, u64),
    /// Whether it was given up because it was stalled.
    stalled: bool,
    /// Whether the broker has answered `connection.close`.
    close_confirmed: bool,
}

impl Protocol for UpstreamConnection {
    fn handle_input(&mut self, input: &[u8], now: Instant) -> usize {
        self.now = now;
        self.heartbeat.received(now);
        let upstream = self.upstream.clone();
        let mut state = upstream.state.lock();
        let mut batch = ClientBatch::new(state.owner.is_none(), self.consumer_budget);
        let (mut taken, mut frames) = (0, 0);
        while !self.finished {
            match Frame::parse(&input[taken..], upstream.frame_max) {
                Ok(Some(frame)) => {
                    let start = taken;
                    if frame.kind == FrameKind::Method
                        && carries_content(frame.payload)
                        && is_worth_waiting_for(&input[start..])
                    {
                        break;
                    }
                    taken += frame.wire_len();
                    frames += 1;
                    let (wire, behind) = input[start..].split_at(frame.wire_len());
                    let more = self.frame(&mut state, &mut batch, &frame, wire, behind);
                    taken += more * WIRE_LEN;
                    frames += more as u64;
                }
                Ok(None) => break,
                Err(fault) => self.broken(fault),
            }
        }
        batch.hand_over();
        if self.finished {
            // Set under the lock, before any other task can look.
            state.phase = Phase::Ended;
        }
        drop(state);
        self.frames.fetch_add(frames, Ordering::Relaxed);
        if let Some(pool) = self.pool.upgrade() {
            add(&pool.counters().frames_from_upstreams, frames);
            add(&pool.counters().bytes_from_upstreams, taken as u64);
            add(&pool.counters().messages_from_upstreams, batch.messages);
        }
        if self.finished {
            self.leave();
            return input.len();
        }
        taken
    }

    fn handle_eof(&mut self) {
        if !self.finished && self.upstream.is_open() {
            self.cause = Some(lost(&Ended::Eof));
        }
        self.finished = true;
        self.leave();
    }

    fn handle_nudge(&mut self, _now: Instant) {}

    fn handle_capacity(&mut self) {
        let waiting = std::mem::take(&mut self.upstream.state.lock().waiting);
        waiting.iter().for_each(|(link, _)| link.outbox.nudge());
    }

    fn handle_written(&mut self, now: Instant) {
        self.heartbeat.sent(now);
        self.upstream.wake_written();
        self.check_at.get_or_insert(now + CHECK_INTERVAL);
        if self.prove_at.is_none() && self.upstream.unproven.load(Ordering::Acquire) {
            self.prove_at = Some(now + PROOF_AFTER);
        }
        if let Some(waited) = self.upstream.take_sample(now)
            && let Some(pool) = self.pool.upgrade()
        {
            pool.counters().queueing.observe(waited);
        }
    }

    fn handle_deadline(&mut self, now: Instant) {
        if self.finished {
            return;
        }
        if self.is_paused() {
            // While reading is paused, the broker's silence does not count.
            self.heartbeat.received(now);
        }
        match self.heartbeat.poll(now) {
            HeartbeatAction::None => {}
            HeartbeatAction::SendHeartbeat => {
                self.upstream.outbox.append(|buf| buf.tail().extend_from_slice(&HEARTBEAT));
            }
            HeartbeatAction::PeerDead => {
                let text = "upstream connection lost: missed heartbeats from the broker";
                self.cause = Some(Fault::new(ReplyCode::ConnectionForced, text));
                self.finished = true;
            }
        }
        if self.prove_at.take_if(|at| now >= *at).is_some() {
            self.upstream.ask_for_proofs();
        }
        if self.check_at.is_some_and(|at| now >= at) {
            self.check_answers(now);
        }
        // Asked before the state is locked, because the pool's table comes first (ARCHITECTURE.md, "Lock order").
        let keep = self.pool.upgrade().is_some_and(|pool| pool.is_kept_idle(&self.upstream));
        let mut state = self.upstream.state.lock();
        match state.phase {
            Phase::Open if state.idle_since.is_some_and(|since| now >= since + self.idle_timeout) => {
                if keep {
                    state.idle_since = Some(now);
                } else {
                    self.upstream.start_close(&mut state, "idle", now);
                }
            }
            // An idle connection keeps its channels until it is closed itself: closing them would count as use.
            Phase::Open if state.idle_since.is_none() => {
                self.upstream.close_rested(&mut state, now, self.idle_timeout);
            }
            Phase::Closing(since) if now >= since + CLOSE_TIMEOUT => self.finished = true,
            _ => {}
        }
        drop(state);
        if self.finished {
            self.leave();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.finished {
            return None;
        }
        let state = self.upstream.state.lock();
        let own = match state.phase {
            Phase::Closing(since) => Some(since + CLOSE_TIMEOUT),
            _ => state.idle_since.or(state.resting.longest()).map(|since| since + self.idle_timeout),
        };
        own.into_iter().chain(self.prove_at).chain(self.check_at).chain(self.heartbeat.next_deadline()).min()
    }

    fn intent(&self) -> Intent {
        if self.stalled {
            // Closed at once, because unwritten frames are sent again on another connection.
            Intent::HandOver
        } else if self.finished {
            Intent::Finish
        } else if self.is_paused() {
            Intent::Pause
        } else {
            Intent::Run
        }
    }

    /// RabbitMQ stops reading from publishers during a memory or disk alarm, which may last for hours, and
    /// announces it with `connection.blocked`.
    fn write_timeout_applies(&self) -> bool {
        self.finished || self.upstream.state.lock().blocked.is_none()
    }
}

impl UpstreamConnection {
    /// Removes the connection from the pool and notifies its sessions, once. Called before the remaining data is
    /// written and the socket closed, which may take a while, so that no channel is placed here meanwhile.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        let cause = self.cause.take();
        let fault = cause.clone().unwrap_or_else(|| lost(&Ended::Finished));
        let pool = self.pool.upgrade();
        let mut refuses_new = false;
        if let Some(pool) = &pool {
            refuses_new = pool.learn_channel_limit(&self.upstream, &fault, transport::now());
            pool.remove(&self.upstream, cause.as_ref());
            pool.closed_with(&self.upstream.virtual_host, &fault);
        }
        if cause.is_none() {
            tracing::debug!(upstream = self.upstream.id, "upstream connection closed");
        } else {
            tracing::warn!(upstream = self.upstream.id, %fault, "upstream connection lost");
        }
        let (left, was_own) = self.upstream.end(&fault, refuses_new, self.stalled);
        // A broker that confirms the close has processed everything in front of it.
        if let Some(pool) = pool
            && !self.close_confirmed
        {
            send_again(&pool, &self.upstream, left, was_own, &fault, transport::now());
        }
    }

    /// Checks whether the broker still reads a shared connection: see [`super::stall`].
    fn check_answers(&mut self, now: Instant) {
        let Some(pool) = self.pool.upgrade() else { return self.check_at = None };
        let outbox = &self.upstream.outbox;
        let moved @ (answers, taken) = (self.answers, outbox.sent());
        let before = std::mem::replace(&mut self.moved, moved);
        // A broker that reads part of a backlog makes progress.
        let is_moving = answers != before.0 || (outbox.backlog() > 0 && taken != before.1);
        let check = self.upstream.check_answers(now, is_moving);
        self.check_at = (check != AnswerCheck::AllAnswered).then_some(now + CHECK_INTERVAL);
        match check {
            AnswerCheck::AllAnswered | AnswerCheck::Due => {}
            AnswerCheck::Stalled => {
                report_stall(&self.upstream);
                add(&pool.counters().connections_stalled, 1);
                pool.replace_stalled(&self.upstream);
            }
            AnswerCheck::GivenUp => {
                self.cause = Some(stalled());
                (self.stalled, self.finished) = (true, true);
            }
        }
    }

    /// Whether reading waits for the client that owns the connection. Shared connections never wait.
    fn is_paused(&self) -> bool {
        let state = self.upstream.state.lock();
        state.phase == Phase::Open
            && !state.returning
            && state.owner.as_ref().is_some_and(|owner| !owner.has_capacity())
    }

    /// Ends the connection after a protocol violation of the broker.
    fn broken(&mut self, fault: Fault) {
        self.cause = Some(Fault::new(
            ReplyCode::ConnectionForced,
            format!("upstream connection lost: {}", fault.reply_text()),
        ));
        self.finished = true;
    }

    /// Handles a frame and, if it is a confirm, the confirms on the same channel that directly follow it; returns the
    /// number of these.
    #[inline]
    fn frame(
        &mut self,
        state: &mut UpstreamState,
        batch: &mut ClientBatch,
        frame: &Frame<'_>,
        wire: &[u8],
        behind: &[u8],
    ) -> usize {
        if frame.channel == 0 {
            self.connection_frame(state, batch, frame);
            return 0;
        }
        match state.slot(frame.channel) {
            Some(Slot::Leased(lease)) => {
                if frame.kind != FrameKind::Method {
                    lease.forward_content(batch, frame, wire);
                } else if carries_content(frame.payload) {
                    lease.begin_content(batch, frame, wire, behind);
                } else if is_ack(frame.payload) {
                    self.answers += 1;
                    return lease.pass_on_confirms(batch, frame, behind);
                } else {
                    self.answers += 1;
                    self.validated_method(state, batch, frame);
                }
            }
            Some(Slot::Settling(_)) => {
                self.heard(state, frame.channel);
                self.settling_method(state, frame);
            }
            Some(Slot::IdleChannels(_)) => self.resting_method(state, frame),
            Some(Slot::Closing(_)) => {
                self.heard(state, frame.channel);
                self.closing_method(state, frame);
            }
            // Nothing is expected on a closed channel; frames there are ignored.
            _ => {}
        }
        0
    }

    /// Counts an answer, and handles it if it may be the probe's.
    fn heard(&mut self, state: &mut UpstreamState, number: u16) {
        self.answers += 1;
        self.probe_answered(state, number);
    }

    /// Handles an answer on a channel that may have the probe.
    fn probe_answered(&self, state: &mut UpstreamState, number: u16) {
        if state.stall.heard(number) {
            state.answers_since = self.now;
            tracing::info!(upstream = self.upstream.id, "upstream connection answers again");
        }
    }

    /// Handles a method that changes the state of a leased channel.
    fn validated_method(&mut self, state: &mut UpstreamState, batch: &mut ClientBatch, frame: &Frame<'_>) {
        let Some(slot) = state.slot(frame.channel) else { return };
        let Slot::Leased(lease) = slot else { return };
        // Passed on unchanged: RabbitMQ truncates long texts in the middle of a character, and echoes invalid
        // UTF-8.
        if let [0, 20, 0, 40, ..] = frame.payload {
            batch.hand_over();
            let opening = lease.opening;
            self.closed_by_broker(slot, frame);
            return self.upstream.opened_if(state, opening);
        }
        let method = match Method::decode(frame.payload) {
            Ok(method) => method,
            Err(error) => return self.broken(error.into()),
        };
        match method {
            Method::ChannelOpenOk(_) if lease.opening => {
                lease.opening = false;
                self.upstream.opened_if(state, true);
            }
            Method::BasicQosOk(_) if lease.own_qos_ok > 0 => lease.own_qos_ok -= 1,
            Method::ChannelFlowOk(_) if lease.own_flow_ok > 0 && lease.ledger.answers_proof() => {
                lease.own_flow_ok -= 1;
                self.probe_answered(state, frame.channel);
            }
            Method::BasicCancel(cancel) => {
                lease.ledger.cancelled(cancel.consumer_tag);
                if lease.link.cancel_notify {
                    batch.add(lease, frame);
                }
            }
            Method::ChannelFlow(_) => batch.add(lease, frame),
            Method::BasicNack(basic::Nack { delivery_tag, multiple, requeue }) => {
                let delivery_tag = lease.confirm(delivery_tag, multiple).number;
                batch.add_method(lease, basic::Nack { delivery_tag, multiple, requeue });
            }
            Method::QueueDeclareOk(ok) => {
                lease.last_queue = Some(ok.queue.into());
                lease.replied();
                lease.ledger.answered(Some(&method), None);
                batch.add(lease, frame);
            }
            Method::ChannelCloseOk(_) => {
                batch.hand_over();
                let Slot::Leased(lease) = std::mem::replace(slot, Slot::Free) else { return };
                let Lease { link, id, client_channel, last_queue, ledger, .. } = *lease;
                ledger.closed();
                ledger.end(None, ChannelOpening::Done);
                state.set_free(frame.channel, self.now);
                link.notify(Event::CloseOk { channel: client_channel, lease: id, last_queue });
            }
            _ => {
                lease.replied();
                lease.ledger.answered(Some(&method), lease.last_queue.as_deref());
                batch.add(lease, frame);
            }
        }
    }

    /// Handles `channel.close` from the broker. A session that may still have frames on their way must send
    /// the close-ok: if it overtook a frame, the broker would close the whole connection.
    fn closed_by_broker(&self, slot: &mut Slot, frame: &Frame<'_>) {
        let Slot::Leased(lease) = std::mem::replace(slot, Slot::Closing(None)) else { return };
        lease.ledger.end(lease.last_queue, ChannelOpening::Done);
        lease.link.notify(Event::ChannelClosed {
            channel: lease.client_channel,
            lease: lease.id,
            payload: frame.payload.into(),
            answered: lease.close_sent,
        });
        if lease.close_sent {
            // Both sides closed at the same time. The session sends nothing more; the broker's close-ok is
            // still to come.
            self.upstream.send(frame.channel, channel::CloseOk {});
        } else {
            *slot = Slot::PeerClosed;
        }
    }

    /// Handles a frame on a channel that was given back and is not proven clean yet.
    fn settling_method(&mut self, state: &mut UpstreamState, frame: &Frame<'_>) {
        let Some(Slot::Settling(settling)) = state.slot(frame.channel) else { return };
        match (frame.kind, frame.payload) {
            (FrameKind::Method, [0, 20, 0, 40, ..]) => {
                let opening = settling.is_opening();
                settling.failed();
                self.upstream.send(frame.channel, channel::CloseOk {});
                self.upstream.opened_if(state, opening);
                return state.set_free(frame.channel, self.now);
            }
            (FrameKind::Method, [0, 60, 0, 80 | 120, ..]) => settling.take_confirm(frame.payload),
            // basic.cancel and channel.flow are not replies.
            (FrameKind::Method, [0, 60, 0, 30, ..] | [0, 20, 0, 20, ..]) => {}
            (FrameKind::Method, payload) if !carries_content(payload) => settling.replied(payload),
            _ => {}
        }
        self.upstream.idle_if_clean(state, frame.channel, self.now);
    }

    /// Handles a frame on a resting channel, where only its end is expected.
    #[cold]
    fn resting_method(&mut self, state: &mut UpstreamState, frame: &Frame<'_>) {
        if let (FrameKind::Method, [0, 20, 0, 40, ..]) = (frame.kind, frame.payload) {
            self.upstream.send(frame.channel, channel::CloseOk {});
            state.forget_resting(frame.channel, self.now);
        }
    }

    /// Handles a frame on a closing channel that is no longer leased.
    #[cold]
    fn closing_method(&mut self, state: &mut UpstreamState, frame: &Frame<'_>) {
        let Some(Slot::Closing(pending)) = state.slot(frame.channel) else { return };
        match (frame.kind, frame.payload) {
            (FrameKind::Method, [0, 20, 0, 41]) => {
                let unconfirmed = pending.as_ref().and_then(|settling| settling.closed());
                state.set_free(frame.channel, self.now);
                self.count_unconfirmed(unconfirmed);
            }
            (FrameKind::Method, [0, 60, 0, 80 | 120, ..]) => {
                pending.iter_mut().for_each(|settling| settling.take_confirm(frame.payload));
            }
            (FrameKind::Method, [0, 20, 0, 40, ..]) => {
                pending.take().iter().for_each(|settling| settling.failed());
                self.upstream.send(frame.channel, channel::CloseOk {});
            }
            (FrameKind::Method, payload) if answers_method(payload) => {
                pending.iter_mut().for_each(|settling| settling.replied(payload));
            }
            _ => {}
        }
    }

    /// Counts the messages that were unconfirmed when the broker closed their channel, which had been given up.
    fn count_unconfirmed(&self, unconfirmed: Option<UnsettledEntries>) {
        if let (Some(unconfirmed), Some(pool)) = (unconfirmed, self.pool.upgrade()) {
            let messages = unconfirmed.messages + unconfirmed.too_large.len() as u64;
            if messages > 0 {
                let (upstream, why) = (self.upstream.id, "channel closed for another client");
                tracing::warn!(upstream, messages, why, "messages of a disconnected client not confirmed");
            }
            pool.counters().count_lost(&unconfirmed);
        }
    }

    #[cold]
    fn connection_frame(&mut self, state: &mut UpstreamState, batch: &mut ClientBatch, frame: &Frame<'_>) {
        if frame.kind == FrameKind::Heartbeat {
            return;
        }
        batch.hand_over();
        if let Some(fault) = announced_close(frame.payload) {
            if let Some(pool) = self.pool.upgrade() {
                pool.learn_from(&fault);
            }
            self.cause = Some(fault);
            self.upstream.send(0, connection::CloseOk {});
            self.finished = true;
            return;
        }
        match Method::decode(frame.payload) {
            Ok(Method::ConnectionCloseOk(_)) => {
                self.close_confirmed = true;
                self.finished = true;
            }
            Ok(Method::ConnectionBlocked(blocked)) => {
                if state.blocked.replace(blocked.reason.into()).is_none() {
                    state.publishers().for_each(|link| link.block(blocked.reason));
                    // Sessions without data on this connection are read although it is blocked, so all waiting sessions
                    // check again.
                    let waiting = std::mem::take(&mut state.waiting);
                    waiting.iter().for_each(|(link, _)| link.outbox.nudge());
                }
            }
            Ok(Method::ConnectionUnblocked(_)) => {
                if state.blocked.take().is_some() {
                    state.answers_since = self.now;
                    state.publishers().for_each(|link| link.unblock());
                }
            }
            Ok(_) => {}
            Err(error) => self.broken(error.into()),
        }
    }
}

/// Whether a method from the broker replies to a method, as opposed to a confirm or an unsolicited method.
fn answers_method(payload: &[u8]) -> bool {
    !matches!(payload, [0, 60, 0, 30 | 50 | 60 | 80 | 120, ..] | [0, 20, 0, 20, ..])
}

impl Lease {
    /// Passes on a run of the broker's confirms, merged into one with `multiple` where all messages up to the last of them
    /// are confirmed. Returns the number of confirms after the first.
    fn pass_on_confirms(&mut self, batch: &mut ClientBatch, first: &Frame<'_>, behind: &[u8]) -> usize {
        let (mut taken, mut gathered) = (0, None);
        for ack in std::iter::once(decode(first.payload)).chain(acks_in(first.channel, behind)) {
            taken += 1;
            let confirmed = self.confirm(ack.delivery_tag, ack.multiple);
            let ack = basic::Ack { delivery_tag: confirmed.number, ..ack };
            gathered = match gathered {
                Some(basic::Ack { delivery_tag, .. })
                    if delivery_tag.max(ack.delivery_tag) <= confirmed.all_up_to =>
                {
                    let delivery_tag = delivery_tag.max(ack.delivery_tag);
                    Some(basic::Ack { delivery_tag, multiple: true })
                }
                before => {
                    before.into_iter().for_each(|before| batch.add_method(self, before));
                    Some(ack)
                }
            };
        }
        gathered.into_iter().for_each(|last| batch.add_method(self, last));
        taken - 1
    }

    /// Records a confirm of the broker.
    fn confirm(&mut self, tag: u64, multiple: bool) -> ConfirmedNumber {
        if let Some(confirms) = &mut self.confirms
            && confirms.confirmed(tag, multiple)
        {
            self.link.notify(Event::Confirmed);
        }
        self.ledger.confirmed(tag, multiple)
    }

    /// Counts a reply that the client waits for.
    pub(super) fn replied(&mut self) {
        self.replies_due = self.replies_due.saturating_sub(1);
    }
}

/// How long after writing messages outside confirm mode a proof is requested: often enough that little is
/// sent twice after a loss, and rarely compared with the client's own traffic.
const PROOF_AFTER: Duration = Duration::from_secs(1);
/// How long a broker may take to confirm `connection.close`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
