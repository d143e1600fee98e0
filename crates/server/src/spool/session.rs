//! A client's session in front of the upstream, with a spool for some of its publishes.
//!
//! Frames are passed in both directions. A publish to be spooled is taken out ([`publishing`]) and confirmed once it is
//! on disk ([`storing`]); confirms are renumbered to the client's numbers ([`answers`]).

mod answers;
mod blocking;
mod channels;
mod connection;
mod contents;
mod publishing;
mod refusing;
mod storing;
#[cfg(test)]
mod tests;
mod unsuitable;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use amqp::frame::{Frame, FrameKind};
use amqp::handshake::OpenRequest;
use amqp::method::channel;
use amqp::sasl::Secret;
use amqp::{Credentials, Fault, Method};
use broker::{Lsn, Publisher, Waiter};
use transport::{InnerOutbox, Outbox};

use super::local::{LocalSpool, SpoolQueue, persistent};
use super::provisional::ProvisionalLogin;
use super::rules::SpooledExchanges;
use crate::alarms::Blocked;
use crate::amqp::incomplete::Holding;
use crate::amqp::publish_gate::PublishGate;
use crate::amqp::session::BackendSession;
use crate::client::OutboxWaiter;
use crate::server::Shared;

use self::channels::SpoolChannels;
use self::connection::ConnectionAnswers;
use self::contents::UnfinishedContents;
use self::publishing::PublishRoute;
use self::refusing::{RefusedChannels, RefusedFrame};

/// A pool session whose publishes to the rules' exchanges are spooled.
pub(super) struct SpoolingSession {
    inner: Box<dyn BackendSession>,
    /// The outbox with the answers of `inner`.
    from_inner: InnerOutbox,
    /// The client's outbox.
    outbox: Arc<Outbox>,
    /// Wakes the client's task for `from_inner`.
    waker: Waker,
    /// Wakes the client's task for the disk.
    nudge: Arc<dyn Waiter>,
    /// Bytes of an incomplete frame from `inner`.
    received: Vec<u8>,
    local: Arc<LocalSpool>,
    queue: Arc<SpoolQueue>,
    /// Set at the start if the client was admitted before the upstream's decision; cleared when there is one.
    provisional: Option<Arc<ProvisionalLogin>>,
    connection: ConnectionAnswers,
    refused: RefusedChannels,
    publisher: Publisher,
    /// The encoded properties (flags and list) of local messages.
    properties: Vec<u8>,
    exchanges: SpooledExchanges,
    channels: SpoolChannels,
    /// Messages that were sent to the client in part.
    contents: UnfinishedContents,
    /// Publishes that the publisher has not flushed.
    unflushed: Vec<SpooledPublish>,
    /// Publishes not known to be on disk, in order, with the log positions that they wait for.
    waiting: VecDeque<(Lsn, Vec<SpooledPublish>)>,
    /// Pauses publishing while the disk falls behind, or until the next turn.
    publish_gate: PublishGate,
    /// The share of the budget for incomplete messages.
    incomplete: Holding,
    /// Set while an alarm of the spool blocks the client.
    blocked: Option<Blocked>,
    /// Whether the client supports connection.blocked.
    takes_blocked: bool,
    frame_max: u32,
    /// Set when a channel has to be closed once everything is on disk. The client is not read meanwhile.
    waits_for_disk: bool,
    life: SpoolingLife,
}

/// A spooled publish that is not on disk yet.
struct SpooledPublish {
    channel: u16,
    /// Distinguishes the channel from earlier ones with the same number.
    opening: u64,
    /// The delivery tag of its confirm, if the channel is in confirm mode.
    number: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpoolingLife {
    Open,
    /// The client has closed its connection; publishes are being written to disk.
    Storing,
    /// `inner` is being closed.
    Closing,
    /// `inner` is closed, or has failed while closing.
    Closed,
    Ended,
}

impl SpoolingSession {
    pub(super) fn new(
        shared: &Arc<Shared>,
        (inner, from_inner): (Box<dyn BackendSession>, InnerOutbox),
        (local, queue): (Arc<LocalSpool>, Arc<SpoolQueue>),
        (credentials, provisional): (Arc<Credentials>, Option<Arc<ProvisionalLogin>>),
        exchanges: SpooledExchanges,
        request: &OpenRequest,
        outbox: Arc<Outbox>,
    ) -> Self {
        let waker = outbox.nudging_waker();
        from_inner.register(&waker);
        Self {
            inner,
            from_inner,
            waker,
            nudge: Arc::new(OutboxWaiter(Arc::clone(&outbox))),
            received: Vec::new(),
            publisher: local.publisher(),
            local,
            queue,
            provisional,
            connection: ConnectionAnswers::new(credentials),
            refused: RefusedChannels::default(),
            properties: persistent(None),
            exchanges,
            channels: SpoolChannels::default(),
            contents: UnfinishedContents::default(),
            unflushed: Vec::new(),
            waiting: VecDeque::new(),
            publish_gate: PublishGate::new(Arc::clone(&outbox)),
            incomplete: Holding::new(&shared.incomplete, &outbox),
            blocked: None,
            takes_blocked: request.capabilities.connection_blocked,
            frame_max: request.negotiated.frame_max,
            waits_for_disk: false,
            life: SpoolingLife::Open,
            outbox,
        }
    }

    fn handle_method(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        let number = frame.channel;
        if let Some(channel) = self.channels.get_mut(number) {
            channel.check_method()?;
        }
        match Method::decode(frame.payload) {
            Ok(Method::BasicPublish(publish)) => self.publish(frame, &publish, rest, now),
            Ok(method) => {
                // After an acknowledgement it takes only further acknowledgements, which need no handling here.
                let rest = if matches!(method, Method::BasicAck(_)) { rest } else { &[] };
                let taken = self.inner.handle_frame(frame, rest, now)?;
                self.channels.handle_method(number, &method);
                self.release_incomplete();
                Ok(taken)
            }
            // The upstream's session answers a malformed method.
            Err(_) => self.inner.handle_frame(frame, &[], now),
        }
    }

    /// Passes answers of the upstream on, as far as the client reads.
    fn pass_answers(&mut self) {
        let (waiting, mut has_passed) = (self.contents.waiting(), false);
        while self.outbox.has_capacity() && self.from_inner.read(&mut self.received) {
            let (connection, refused) = (&mut self.connection, &mut self.refused);
            let is_blocked = self.blocked.is_some();
            let client = (&mut self.channels, &mut self.contents);
            let taken = answers::pass(&self.received, client, &self.outbox, |frame| {
                connection.passes(frame, is_blocked) && refused.passes(frame)
            });
            self.received.drain(..taken);
            has_passed = true;
            if let Some(credentials) = self.connection.accepted.take() {
                let now = self.local.timestamp(transport::now());
                self.local.logins().accepted(self.queue.vhost(), &credentials, now);
                self.queue.logged_in(credentials);
                // The decision was about the previous secret.
                self.provisional = None;
            }
            self.release_incomplete();
        }
        if self.received.is_empty() && self.received.capacity() > 0 {
            self.received = Vec::new();
        }
        if (has_passed && !self.refused.is_empty()) || self.contents.waiting() < waiting {
            // Lets the closing continue, and capacity be checked again.
            self.outbox.nudge();
        }
    }

    /// Releases the budget of incomplete messages on closed channels.
    fn release_incomplete(&mut self) {
        let bytes = self.channels.take_released();
        if bytes > 0 {
            self.incomplete.changed(bytes, 0);
        }
    }

    /// Whether the spool permits taking a frame now.
    fn spool_takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
        let number = frame.channel;
        if frame.kind != FrameKind::Method {
            let is_spooled = self.channels.get_mut(number).is_some_and(|channel| channel.is_spooling());
            let is_body = frame.kind == FrameKind::Body;
            return !is_spooled || !is_body || self.incomplete.takes(frame.payload.len());
        }
        if frame.payload.starts_with(&CHANNEL_CLOSE) {
            self.waits_for_disk = !self.flush_spooled(now) || !self.is_on_disk();
            return !self.waits_for_disk;
        }
        if !frame.payload.starts_with(&BASIC_PUBLISH) {
            return true;
        }
        match Method::decode(frame.payload) {
            Ok(Method::BasicPublish(publish)) => {
                self.route_of(number, &publish) != PublishRoute::Spool || self.may_publish()
            }
            _ => true,
        }
    }

    /// Disconnects a client that the upstream has refused after its admission.
    fn check_decision(&mut self) -> Result<(), Fault> {
        let decision = self.provisional.as_ref().and_then(|login| login.decision().cloned());
        if decision.is_some() {
            self.provisional = None;
        }
        decision.unwrap_or(Ok(()))
    }

    fn nudge_inner(&mut self, now: Instant) -> Result<(), Fault> {
        self.from_inner.register(&self.waker);
        let outcome = if self.from_inner.take_nudge() { self.inner.handle_nudge(now) } else { Ok(()) };
        self.pass_answers();
        if self.from_inner.take_capacity() {
            self.inner.handle_capacity(now);
            self.pass_answers();
        }
        outcome.and_then(|()| self.continue_refusing(now))
    }

    /// Continues closing, as far as possible now.
    fn continue_close(&mut self, now: Instant) {
        if self.life == SpoolingLife::Storing && self.is_on_disk() {
            self.life = if self.inner.close(now) { SpoolingLife::Closed } else { SpoolingLife::Closing };
        }
        if self.life == SpoolingLife::Closing && self.inner.is_closed() {
            self.life = SpoolingLife::Closed;
        }
    }
}

/// Class and method ids, with which a method frame's payload begins.
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];

impl BackendSession for SpoolingSession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        match self.refused.handle_frame(&frame) {
            Some(RefusedFrame::Discard) => return Ok(0),
            Some(RefusedFrame::Confirm) => {
                self.contents.send(&self.outbox, frame.channel, channel::CloseOk {});
                return Ok(0);
            }
            None => {}
        }
        match frame.kind {
            FrameKind::Method => self.handle_method(frame, rest, now),
            FrameKind::Header | FrameKind::Body => self.handle_content(frame, now),
            FrameKind::Heartbeat => Ok(0),
        }
    }

    fn takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool {
        self.publish_gate.is_open()
            && self.blocked.is_none()
            && self.refused.take(frame)
            && self.inner.takes(frame, now)
            && self.spool_takes(frame, now)
    }

    fn flush(&mut self, now: Instant) {
        self.flush_spooled(now);
        self.inner.flush(now);
        self.from_inner.register(&self.waker);
        self.pass_answers();
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault> {
        self.after_disk();
        self.publish_gate.resume(self.local.vhost());
        self.flush_spooled(now);
        self.incomplete.look(now);
        self.unblock();
        let outcome = self.nudge_inner(now);
        if self.life == SpoolingLife::Open {
            return self.check_decision().and(outcome);
        }
        if outcome.is_err() && self.life == SpoolingLife::Closing {
            self.life = SpoolingLife::Closed;
        }
        self.continue_close(now);
        // The client has closed its connection; its remaining publishes still have to reach the disk.
        Ok(())
    }

    fn handle_capacity(&mut self, now: Instant) {
        self.pass_answers();
        if self.from_inner.take_capacity() {
            self.inner.handle_capacity(now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline().into_iter().chain(self.incomplete.deadline()).min()
    }

    fn handle_deadline(&mut self, now: Instant) -> Result<(), Fault> {
        self.incomplete.check(now)?;
        if self.inner.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.inner.handle_deadline(now)?;
        }
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        self.inner.has_capacity()
            && self.publish_gate.is_open()
            && self.incomplete.has_capacity()
            && self.contents.has_capacity()
            && self.blocked.is_none()
            && !self.waits_for_disk
            && !self.refused.wait()
    }

    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault> {
        let is_known = self.inner.update_secret(secret)?;
        if !is_known {
            self.connection.new_secrets.push_back(Secret::new(secret));
        }
        Ok(is_known)
    }

    fn channel_count(&self) -> usize {
        self.inner.channel_count()
    }

    fn upstreams(&self) -> Vec<String> {
        self.inner.upstreams()
    }

    fn is_settled(&self) -> bool {
        self.is_on_disk() && self.contents.waiting() == 0 && self.inner.is_settled()
    }

    fn close(&mut self, now: Instant) -> bool {
        self.life = SpoolingLife::Storing;
        self.blocked = None;
        while !self.flush_spooled(now) {}
        self.after_disk();
        self.continue_close(now);
        self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.life == SpoolingLife::Closed
    }

    fn has_stored_publishes(&self) -> bool {
        self.is_on_disk()
    }

    fn end(&mut self, now: Instant) {
        if std::mem::replace(&mut self.life, SpoolingLife::Ended) == SpoolingLife::Ended {
            return;
        }
        self.blocked = None;
        self.channels.end();
        self.contents.end();
        self.release_incomplete();
        while !self.flush_spooled(now) {}
        self.inner.end(now);
    }
}
