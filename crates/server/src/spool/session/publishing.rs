//! Selects the client's publishes to be spooled, and passes them to the local queue.

use std::sync::Arc;
use std::time::Instant;

use amqp::content::{Assembled, Content, Whole};
use amqp::frame::{Frame, FrameKind};
use amqp::method::basic;
use amqp::properties::ContentHeader;
use amqp::{Fault, Properties};
use broker::{Body, Publish};
use bytes::Bytes;
use spool::SpooledMessage;

use super::channels::{PendingContent, SpoolDestination};
use super::{SpooledPublish, SpoolingSession};
use crate::spool::link::ID_BYTES;
use crate::spool::local::not_stored;

impl SpoolingSession {
    pub(super) fn publish(
        &mut self,
        frame: Frame<'_>,
        publish: &basic::Publish<'_>,
        rest: &[u8],
        now: Instant,
    ) -> Result<usize, Fault> {
        let number = frame.channel;
        let peeked = Whole::peek(rest, number, self.frame_max, u64::MAX).ok().flatten();
        let way = self.route_of(number, publish);
        if let PublishRoute::Refuse(what) = way {
            return self.refuse(number, publish.exchange, what, now);
        }
        let is_spooled = way == PublishRoute::Spool;
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
        let destination = (publish.exchange, publish.routing_key);
        if !is_spooled || !self.fits(destination, body_size, whole.properties) {
            self.publish_directly(number);
            // Only this publish's content: the next publish may be spooled.
            return self.inner.handle_frame(frame, &rest[..whole.wire_len], now);
        }
        self.spool(number, destination, whole.properties, whole.body, now)?;
        Ok(whole.wire_len)
    }

    /// The route of a publish, which its content may still change.
    pub(super) fn route_of(&mut self, number: u16, publish: &basic::Publish<'_>) -> PublishRoute {
        let Some(channel) = self.channels.get_mut(number) else { return PublishRoute::Direct };
        let is_transactional = channel.is_transactional();
        if is_reply(publish) || !self.exchanges.contain(publish.exchange) || self.local.is_drained() {
            return PublishRoute::Direct;
        }
        let what = match (publish.mandatory, publish.immediate, is_transactional) {
            (false, false, false) => return PublishRoute::Spool,
            (true, ..) => "mandatory messages",
            (_, true, _) => "immediate messages",
            (_, _, true) => "messages of a transaction",
        };
        if self.local.config().refuses_others { PublishRoute::Refuse(what) } else { PublishRoute::Direct }
    }

    /// Whether a message that would be spooled is too large, and may not be published directly either.
    pub(super) fn is_refused_for_size(&self, body_size: u64) -> bool {
        let config = self.local.config();
        config.refuses_others && body_size > config.max_message
    }

    /// Whether a message can be spooled: it is small enough, is not a request with a direct reply-to on this channel, and
    /// does not make the upstream close the connection, for example by malformed properties. That would hit the forwarder
    /// instead of the publisher.
    pub(super) fn fits(
        &self,
        (exchange, routing_key): (&str, &str),
        body_size: u64,
        properties: &[u8],
    ) -> bool {
        body_size <= self.local.config().max_message
            && properties.len() + ID_BYTES <= amqp::content::max_properties_len(self.frame_max)
            && Properties::decode(properties)
                .is_ok_and(|properties| properties.reply_to != Some(broker::REPLY_QUEUE))
            && !proxy::may_cost_connection(exchange, routing_key, properties)
    }

    /// Counts a publish that is passed to the upstream.
    pub(super) fn publish_directly(&mut self, number: u16) {
        if let Some(confirms) = self.channels.get_mut(number).and_then(|channel| channel.confirms()) {
            confirms.published_directly();
        }
    }

    /// Publishes a message to the local queue.
    pub(super) fn spool(
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

    pub(super) fn handle_content(&mut self, frame: Frame<'_>, now: Instant) -> Result<usize, Fault> {
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
                let before = assembler.buffered_len();
                let assembled = assembler.body(frame.payload);
                self.incomplete.changed(before, assembler.buffered_len());
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

    /// Handles the content header of a publish, or a frame in its place.
    pub(super) fn decide(
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
        let names = (&*destination.exchange, &*destination.routing_key);
        let fitting = header
            .filter(|header| header.is_valid() && self.fits(names, header.body_size, header.properties));
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

    pub(super) fn assembled(
        &mut self,
        number: u16,
        content: &Content<'_, SpoolDestination>,
        now: Instant,
    ) -> Result<usize, Fault> {
        let Content { method, properties, body } = content;
        self.spool(number, (&method.exchange, &method.routing_key), properties, body, now)?;
        Ok(0)
    }
}

/// Whether a publish is a direct reply, which is useful only while the requester waits for it.
fn is_reply(publish: &basic::Publish<'_>) -> bool {
    publish.exchange.is_empty() && broker::is_reply_name(publish.routing_key)
}

/// The destination of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishRoute {
    Spool,
    Direct,
    /// Its channel is closed, because messages of this kind are neither spooled nor published directly.
    Refuse(&'static str),
}

/// Messages above `spool_message_max`, in the text of a refusal.
const TOO_LARGE: &str = "messages of this size";

/// Class and method id of basic.publish, for errors in its content.
pub(super) const PUBLISH: (u16, u16) = (60, 40);
