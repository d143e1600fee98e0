//! A client's session in front of the upstream, with a spool for some of its publishes.
//!
//! Frames pass in both directions; a publish that is to be spooled is taken out, and confirms get the client's own numbers.

mod answers;
mod channels;
mod connection;
mod refusing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use amqp::content::{Assembled, Content, Whole};
use amqp::frame::{self, Frame, FrameKind};
use amqp::handshake::OpenRequest;
use amqp::method::{basic, channel, connection as methods};
use amqp::properties::ContentHeader;
use amqp::sasl::Secret;
use amqp::{Credentials, Fault, Method, Properties, ReplyCode};
use broker::{Body, Lsn, Publish, Publisher, Waiter};
use bytes::Bytes;
use spool::SpooledMessage;
use transport::{InnerOutbox, Outbox};

use super::link::ID_BYTES;
use super::local::{LocalSpool, SpoolQueue, not_stored, persistent};
use super::rules::SpooledExchanges;
use super::unasked::UnaskedLogin;
use crate::alarms::Blocked;
use crate::amqp::incomplete::Holding;
use crate::amqp::room::DiskRoom;
use crate::amqp::session::BackendSession;
use crate::client::OutboxWaiter;
use crate::server::Shared;

use self::channels::{PendingContent, SpoolChannels, SpoolDestination};
use self::connection::ConnectionAnswers;
use self::refusing::{RefusedChannels, RefusedFrame};

/// A session of the pool whose client's publishes are spooled if their exchange is among those of the rules.
pub(super) struct SpoolingSession {
    inner: Box<dyn BackendSession>,
    /// The answers of `inner`.
    from_inner: InnerOutbox,
    /// The client's.
    outbox: Arc<Outbox>,
    /// Nudges the client's outbox, for `from_inner`.
    waker: Waker,
    /// The same, for the disk.
    nudge: Arc<dyn Waiter>,
    /// Bytes of `inner` that are no whole frame yet.
    received: Vec<u8>,
    local: Arc<LocalSpool>,
    queue: Arc<SpoolQueue>,
    /// Set from the start until the upstream has been asked about the client, if it could not be asked before.
    unasked: Option<Arc<UnaskedLogin>>,
    connection: ConnectionAnswers,
    refused: RefusedChannels,
    publisher: Publisher,
    /// Property flags and list of local messages.
    properties: Vec<u8>,
    exchanges: SpooledExchanges,
    channels: SpoolChannels,
    /// Publishes that the publisher has not handed over.
    unflushed: Vec<SpooledPublish>,
    /// Publishes that are not known to be on disk, in order.
    waiting: VecDeque<(Lsn, Vec<SpooledPublish>)>,
    /// Pauses while the disk falls behind, or until the next turn.
    room: DiskRoom,
    /// The share of the room for incomplete messages.
    incomplete: Holding,
    /// Set while an alarm of the spool blocks the client.
    blocked: Option<Blocked>,
    tells_blocked: bool,
    frame_max: u32,
    /// A channel is to be closed once everything is on disk; nothing is read meanwhile.
    waits_for_disk: bool,
    life: SpoolingLife,
}

/// A spooled publish that is not on disk.
struct SpooledPublish {
    channel: u16,
    /// Tells the channel from others that have had its number.
    opening: u64,
    /// The number of its confirm, if the client wants one.
    number: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpoolingLife {
    Open,
    /// The client closes its connection, and the disk is waited for.
    Storing,
    /// `inner` is being closed.
    Closing,
    /// `inner` is closed, or has failed while it was.
    Closed,
    Ended,
}

impl SpoolingSession {
    pub(super) fn new(
        shared: &Arc<Shared>,
        (inner, from_inner): (Box<dyn BackendSession>, InnerOutbox),
        (local, queue): (Arc<LocalSpool>, Arc<SpoolQueue>),
        (credentials, unasked): (Arc<Credentials>, Option<Arc<UnaskedLogin>>),
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
            unasked,
            connection: ConnectionAnswers::new(credentials),
            refused: RefusedChannels::default(),
            properties: persistent(None),
            exchanges,
            channels: SpoolChannels::default(),
            unflushed: Vec::new(),
            waiting: VecDeque::new(),
            room: DiskRoom::new(Arc::clone(&outbox)),
            incomplete: Holding::new(&shared.incomplete, &outbox),
            blocked: None,
            tells_blocked: request.capabilities.connection_blocked,
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
                let taken = self.inner.handle_frame(frame, &[], now)?;
                self.channels.handle_method(number, &method);
                self.release_incomplete();
                Ok(taken)
            }
            // The other session judges it.
            Err(_) => self.inner.handle_frame(frame, &[], now),
        }
    }

    fn publish(
        &mut self,
        frame: Frame<'_>,
        publish: &basic::Publish<'_>,
        rest: &[u8],
        now: Instant,
    ) -> Result<usize, Fault> {
        let number = frame.channel;
        let peeked = Whole::peek(rest, number, self.frame_max, u64::MAX).ok().flatten();
        let way = self.way_of(number, publish);
        if let PublishWay::Refuse(what) = way {
            return self.refuse(number, publish.exchange, what, now);
        }
        let is_spooled = way == PublishWay::Spool;
        let Some(whole) = peeked else {
            if is_spooled && let Some(channel) = self.channels.get_mut(number) {
                channel.pending = PendingContent::undecided(frame, publish);
                return Ok(0);
            }
            self.publish_directly(number);
            return self.inner.handle_frame(frame, &[], now);
        };
        let body_size = whole.body.len() as u64;
        if is_spooled && self.is_refused_for_size(body_size) {
            return self.refuse(number, publish.exchange, TOO_LARGE, now);
        }
        if !is_spooled || !self.fits(body_size, whole.properties) {
            self.publish_directly(number);
            // No more than its own content: the next publish may be spooled.
            return self.inner.handle_frame(frame, &rest[..whole.wire_len], now);
        }
        let destination = (publish.exchange, publish.routing_key);
        self.spool(number, destination, whole.properties, whole.body, now)?;
        Ok(whole.wire_len)
    }

    /// Where a publish goes, unless its content forbids that.
    fn way_of(&mut self, number: u16, publish: &basic::Publish<'_>) -> PublishWay {
        let Some(channel) = self.channels.get_mut(number) else { return PublishWay::Direct };
        let is_transactional = channel.is_transactional();
        if is_reply(publish) || !self.exchanges.contain(publish.exchange) || self.local.is_drained() {
            return PublishWay::Direct;
        }
        let what = match (publish.mandatory, publish.immediate, is_transactional) {
            (false, false, false) => return PublishWay::Spool,
            (true, ..) => "mandatory messages",
            (_, true, _) => "immediate messages",
            (_, _, true) => "messages of a transaction",
        };
        if self.local.config().refuses_others { PublishWay::Refuse(what) } else { PublishWay::Direct }
    }

    /// Whether a message that is otherwise to be spooled is too large, and may not go directly either.
    fn is_refused_for_size(&self, body_size: u64) -> bool {
        let config = self.local.config();
        config.refuses_others && body_size > config.max_message
    }

    /// Closes a channel with 406 PRECONDITION_FAILED for a publish; what is left of that one is discarded.
    fn refuse(&mut self, number: u16, exchange: &str, what: &str, now: Instant) -> Result<usize, Fault> {
        let vhost = self.queue.vhost();
        let text = format!("{what} to exchange '{exchange}' in vhost '{vhost}' cannot be spooled");
        let fault = Fault::new(ReplyCode::PreconditionFailed, text).caused_by(PUBLISH);
        let (reply_text, (class_id, method_id)) = (fault.reply_text(), fault.method);
        let close =
            channel::Close { reply_code: fault.code.code(), reply_text: &reply_text, class_id, method_id };
        self.outbox.append(|buf| frame::write_method(buf.tail(), number, close));
        self.channels.remove(number);
        self.release_incomplete();
        self.refused.add(number);
        let close = channel::Close { reply_code: ReplyCode::Success.code(), reply_text: "", ..close };
        self.send_upstream(number, close, now)
    }

    /// Sends the upstream's session a method of the spool's own.
    fn send_upstream<'a>(
        &mut self,
        number: u16,
        method: impl Into<Method<'a>>,
        now: Instant,
    ) -> Result<usize, Fault> {
        let mut bytes = Vec::new();
        frame::write_method(&mut bytes, number, method);
        match Frame::parse(&bytes, 0) {
            Ok(Some(frame)) => self.inner.handle_frame(frame, &[], now).map(|_| 0),
            _ => Ok(0),
        }
    }

    /// Continues to close channels with an error, after answers of the upstream's session.
    fn go_on_refusing(&mut self, now: Instant) -> Result<(), Fault> {
        while let Some(number) = self.refused.next_to_confirm() {
            self.send_upstream(number, channel::CloseOk {}, now)?;
        }
        self.refused.forget_confirmed();
        Ok(())
    }

    /// Whether a message is small enough, is no request whose reply comes to this channel, and has valid properties: malformed
    /// ones would end the forwarder's connection and not its publisher's.
    fn fits(&self, body_size: u64, properties: &[u8]) -> bool {
        body_size <= self.local.config().max_message
            && properties.len() + ID_BYTES <= amqp::content::max_properties_len(self.frame_max)
            && Properties::decode(properties)
                .is_ok_and(|properties| properties.reply_to != Some(broker::REPLY_QUEUE))
    }

    /// Counts a publish that goes to the upstream.
    fn publish_directly(&mut self, number: u16) {
        if let Some(confirms) = self.channels.get_mut(number).and_then(|channel| channel.confirms()) {
            confirms.published_directly();
        }
    }

    /// Hands a publish to the local queue.
    fn spool(
        &mut self,
        number: u16,
        (exchange, routing_key): (&str, &str),
        properties: &[u8],
        body: &[u8],
        now: Instant,
    ) -> Result<(), Fault> {
        let now = self.local.timestamp(now);
        let message = SpooledMessage {
            vhost: self.queue.vhost(),
            user: self.queue.user(),
            exchange,
            routing_key,
            accepted_at: now.0,
            id: self.local.next_id(),
            properties,
            body,
        };
        let mut record = Vec::new();
        message.encode(&mut record).map_err(|error| not_stored(&error))?;
        let length = record.len() as u64;
        let chunks = [Bytes::from(record)];
        let name = Arc::clone(self.queue.queue().name());
        let (properties, body) = (&*self.properties, Body::Chunks(&chunks));
        let publish = Publish { exchange: "", routing_key: &name, properties, body };
        let is_routed = self.publisher.publish(publish, now).map_err(|error| not_stored(&error))?;
        if !is_routed {
            return Err(not_stored(&"its queue is gone"));
        }
        self.local.accepted(&self.queue, length, now.0);
        if let Some(channel) = self.channels.get_mut(number) {
            let opening = channel.opening;
            let confirm = channel.confirms().map(|confirms| confirms.spooled());
            self.unflushed.push(SpooledPublish { channel: number, opening, number: confirm });
        }
        Ok(())
    }

    fn handle_content(&mut self, frame: Frame<'_>, now: Instant) -> Result<usize, Fault> {
        let number = frame.channel;
        let Some(channel) = self.channels.get_mut(number) else {
            return self.inner.handle_frame(frame, &[], now);
        };
        match std::mem::take(&mut channel.pending) {
            PendingContent::None => self.inner.handle_frame(frame, &[], now),
            PendingContent::Undecided { publish, destination } => {
                self.decide(frame, &publish, destination, now)
            }
            PendingContent::Spooled(mut assembler) => {
                let before = assembler.held();
                let assembled = assembler.body(frame.payload);
                self.incomplete.changed(before, assembler.held());
                match assembled? {
                    Assembled::More => {
                        channel.pending = PendingContent::Spooled(assembler);
                        Ok(0)
                    }
                    Assembled::Complete(content) => self.assembled(number, &content, now),
                }
            }
        }
    }

    /// The header of a publish has come, or a frame in its place.
    fn decide(
        &mut self,
        frame: Frame<'_>,
        publish: &[u8],
        destination: SpoolDestination,
        now: Instant,
    ) -> Result<usize, Fault> {
        let number = frame.channel;
        let header = ContentHeader::decode(frame.payload).ok().filter(|_| frame.kind == FrameKind::Header);
        if header.is_some_and(|header| header.is_valid() && self.is_refused_for_size(header.body_size)) {
            return self.refuse(number, &destination.exchange, TOO_LARGE, now);
        }
        let fitting =
            header.filter(|header| header.is_valid() && self.fits(header.body_size, header.properties));
        let Some(header) = fitting else {
            self.publish_directly(number);
            if let Ok(Some(publish)) = Frame::parse(publish, 0) {
                self.inner.handle_frame(publish, &[], now)?;
            }
            return self.inner.handle_frame(frame, &[], now);
        };
        let mut assembler = amqp::content::Assembler::new();
        assembler.expect(destination, PUBLISH);
        match assembler.header(header, self.local.config().max_message)? {
            Assembled::Complete(content) => self.assembled(number, &content, now),
            Assembled::More => {
                if let Some(channel) = self.channels.get_mut(number) {
                    channel.pending = PendingContent::Spooled(assembler);
                }
                Ok(0)
            }
        }
    }

    fn assembled(
        &mut self,
        number: u16,
        content: &Content<'_, SpoolDestination>,
        now: Instant,
    ) -> Result<usize, Fault> {
        let Content { method, properties, body } = content;
        self.spool(number, (&method.exchange, &method.routing_key), properties, body, now)?;
        Ok(0)
    }

    /// Hands publishes to the local queue. Returns whether all of them are there; if not, the rest follows in the next turn.
    fn flush_spooled(&mut self, now: Instant) -> bool {
        if self.unflushed.is_empty() {
            return true;
        }
        let flushed = self.publisher.flush(self.local.timestamp(now));
        if flushed.unfinished {
            self.room.pause_for_turn();
            return false;
        }
        if flushed.full {
            self.room.pause(self.local.vhost());
        }
        let publishes = std::mem::take(&mut self.unflushed);
        self.queue.waker().wake();
        self.local.changed();
        match (flushed.until, self.local.store()) {
            (Some(until), Some(store)) => {
                self.waiting.push_back((until, publishes));
                store.wait(until, Arc::clone(&self.nudge));
            }
            _ => self.stored(publishes),
        }
        true
    }

    /// Confirms what is on disk by now.
    fn after_disk(&mut self) {
        let Some(durable) = self.local.store().map(|store| store.durable()) else { return };
        while let Some((_, publishes)) = self.waiting.pop_front_if(|(until, _)| *until <= durable) {
            self.stored(publishes);
        }
        if self.is_on_disk() {
            self.waits_for_disk = false;
        }
    }

    /// Whether everything that was spooled for the client is on disk.
    fn is_on_disk(&self) -> bool {
        self.unflushed.is_empty() && self.waiting.is_empty()
    }

    /// These publishes are on disk.
    fn stored(&mut self, mut publishes: Vec<SpooledPublish>) {
        publishes.sort_by_key(|publish| publish.channel);
        for run in publishes.chunk_by(|one, next| (one.channel, one.opening) == (next.channel, next.opening))
        {
            let (number, opening) = (run[0].channel, run[0].opening);
            let Some(channel) = self.channels.get_mut(number).filter(|channel| channel.opening == opening)
            else {
                continue;
            };
            let numbers: Vec<u64> = run.iter().filter_map(|publish| publish.number).collect();
            let Some(confirms) = channel.confirms().filter(|_| !numbers.is_empty()) else { continue };
            confirms.settle(&numbers, |answer| answers::ack(&self.outbox, number, answer));
        }
    }

    /// Passes answers of the upstream on, as far as the client reads.
    fn pass_answers(&mut self) {
        while self.outbox.has_room() && self.from_inner.read(&mut self.received) {
            let (connection, refused) = (&mut self.connection, &mut self.refused);
            let is_blocked = self.blocked.is_some();
            let taken = answers::pass(&self.received, &mut self.channels, &self.outbox, |frame| {
                connection.passes(frame, is_blocked) && refused.passes(frame)
            });
            self.received.drain(..taken);
            if let Some(credentials) = self.connection.accepted.take() {
                let now = self.local.timestamp(transport::now());
                self.local.logins().accepted(self.queue.vhost(), &credentials, now);
                self.queue.logged_in(credentials);
            }
            self.release_incomplete();
        }
        if self.received.is_empty() && self.received.capacity() > 0 {
            self.received = Vec::new();
        }
    }

    /// Gives back the room of incomplete messages whose channels are gone.
    fn release_incomplete(&mut self) {
        let bytes = self.channels.take_released();
        if bytes > 0 {
            self.incomplete.changed(bytes, 0);
        }
    }

    /// Whether the spool takes a publish now. If not, the client is blocked, and told so.
    fn is_let_in(&mut self) -> bool {
        if self.blocked.is_some() {
            return false;
        }
        let Some((blocked, reason)) = self.local.block(&self.queue, &self.outbox) else { return true };
        self.blocked = Some(blocked);
        if self.tells_blocked && !self.connection.is_blocked_upstream {
            self.outbox.append(|buf| frame::write_method(buf.tail(), 0, methods::Blocked { reason }));
        }
        false
    }

    /// Unblocks the client if no alarm is left.
    fn unblock(&mut self) {
        if self.blocked.is_none() {
            return;
        }
        // The other of the two alarms may wake it next.
        self.blocked = self.local.block(&self.queue, &self.outbox).map(|(blocked, _)| blocked);
        if self.blocked.is_some() {
            return;
        }
        if self.tells_blocked && !self.connection.is_blocked_upstream {
            self.outbox.append(|buf| frame::write_method(buf.tail(), 0, methods::Unblocked {}));
        }
    }

    /// Whether a frame may be taken as far as the spool is concerned.
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
                self.way_of(number, &publish) != PublishWay::Spool || self.is_let_in()
            }
            _ => true,
        }
    }

    /// Ends a client that the upstream refuses now that it can be asked.
    fn check_asked(&mut self) -> Result<(), Fault> {
        let verdict = self.unasked.as_ref().and_then(|unasked| unasked.verdict().cloned());
        if verdict.is_some() {
            self.unasked = None;
        }
        verdict.unwrap_or(Ok(()))
    }

    fn nudge_inner(&mut self, now: Instant) -> Result<(), Fault> {
        self.from_inner.register(&self.waker);
        let outcome = if self.from_inner.take_nudge() { self.inner.handle_nudge(now) } else { Ok(()) };
        self.pass_answers();
        if self.from_inner.take_room() {
            self.inner.handle_room(now);
            self.pass_answers();
        }
        outcome.and_then(|()| self.go_on_refusing(now))
    }

    /// Continues to close, as far as that is possible now.
    fn go_on_closing(&mut self, now: Instant) {
        if self.life == SpoolingLife::Storing && self.is_on_disk() {
            self.life = if self.inner.close(now) { SpoolingLife::Closed } else { SpoolingLife::Closing };
        }
        if self.life == SpoolingLife::Closing && self.inner.is_closed() {
            self.life = SpoolingLife::Closed;
        }
    }
}

/// Whether a publish is a reply by direct reply-to, which is of use only while somebody waits for it.
fn is_reply(publish: &basic::Publish<'_>) -> bool {
    publish.exchange.is_empty() && broker::is_reply_name(publish.routing_key)
}

/// Class and method ids, with which the payload of a method's frame begins.
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];

/// Where a publish goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PublishWay {
    Spool,
    Direct,
    /// Its channel is closed, because messages of this kind are neither spooled nor may go directly.
    Refuse(&'static str),
}

/// Messages above `spool_message_max`, in the text of a refusal.
const TOO_LARGE: &str = "messages of this size";

/// Class and method id of basic.publish, for errors in its content.
const PUBLISH: (u16, u16) = (60, 40);

impl BackendSession for SpoolingSession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        match self.refused.handle_frame(&frame) {
            Some(RefusedFrame::Discard) => return Ok(0),
            Some(RefusedFrame::Confirm) => {
                let ok = channel::CloseOk {};
                self.outbox.append(|buf| frame::write_method(buf.tail(), frame.channel, ok));
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
        self.room.is_there()
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
        self.room.resume(self.local.vhost());
        self.flush_spooled(now);
        self.incomplete.look(now);
        self.unblock();
        let outcome = self.nudge_inner(now);
        if self.life == SpoolingLife::Open {
            return self.check_asked().and(outcome);
        }
        if outcome.is_err() && self.life == SpoolingLife::Closing {
            self.life = SpoolingLife::Closed;
        }
        self.go_on_closing(now);
        // The client has closed its connection; what is not on disk yet must be.
        Ok(())
    }

    fn handle_room(&mut self, now: Instant) {
        self.pass_answers();
        if self.from_inner.take_room() {
            self.inner.handle_room(now);
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

    fn has_room(&self) -> bool {
        self.inner.has_room()
            && self.room.is_there()
            && self.incomplete.has_room()
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
        self.is_on_disk() && self.inner.is_settled()
    }

    fn close(&mut self, now: Instant) -> bool {
        self.life = SpoolingLife::Storing;
        self.blocked = None;
        while !self.flush_spooled(now) {}
        self.after_disk();
        self.go_on_closing(now);
        self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.life == SpoolingLife::Closed
    }

    fn has_kept_publishes(&self) -> bool {
        self.is_on_disk()
    }

    fn end(&mut self, now: Instant) {
        if std::mem::replace(&mut self.life, SpoolingLife::Ended) == SpoolingLife::Ended {
            return;
        }
        self.blocked = None;
        self.channels.end();
        self.release_incomplete();
        while !self.flush_spooled(now) {}
        self.inner.end(now);
    }
}
