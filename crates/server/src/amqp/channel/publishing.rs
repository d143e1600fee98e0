//! basic.publish and its confirms.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use amqp::content::{Assembled, Content};
use amqp::error::{Fault, ReplyCode};
use amqp::method::basic;
use amqp::properties::ContentHeader;
use broker::{Body, Flushed, FrontEnd, Lsn, Publish, Publisher, Timestamp};
use bytes::Bytes;

use super::super::broker_session::ChannelContext;
use super::super::content::{Destination, view, write_message};
use super::confirms::Run;
use super::{Channel, Mode};
use crate::registry::{OpenChannel, OpenConnection};

/// A publish whose content has not arrived yet.
#[derive(Debug)]
pub(super) struct PendingPublish {
    exchange: Box<str>,
    routing_key: Box<str>,
    mandatory: bool,
}

/// A publish with its content that waits for the user's auth backend.
pub(crate) struct WaitingPublish {
    channel: u16,
    method: PendingPublish,
    properties: Box<[u8]>,
    body: [Bytes; 1],
}

impl WaitingPublish {
    pub(crate) fn channel(&self) -> u16 {
        self.channel
    }

    /// Bytes of its body, which count as those of an incomplete message.
    pub(crate) fn bytes(&self) -> usize {
        self.body[0].len()
    }
}

/// A channel's publisher, created by the first publish. Its cached routes and batch take several hundred bytes.
#[derive(Default)]
pub(super) struct LazyPublisher(Option<Box<Publisher>>);

impl LazyPublisher {
    /// The publisher, created if necessary.
    pub(super) fn get(&mut self, context: &ChannelContext, channel: u16) -> &mut Publisher {
        self.0.get_or_insert_with(|| {
            let mut publisher = context.authorised.publisher().in_session(context.session);
            publisher.set_connection(Arc::<OpenConnection>::clone(&context.view), channel);
            Box::new(publisher)
        })
    }

    /// [`Publisher::flush`]; `None` for a channel that has published nothing.
    pub(super) fn flush(&mut self, now: Timestamp) -> Option<Flushed> {
        self.0.as_mut().map(|publisher| publisher.flush(now))
    }
}

impl Channel {
    /// Publishes a message whose content has arrived.
    pub(crate) fn publish(
        &mut self,
        context: &ChannelContext,
        publish: &basic::Publish<'_>,
        properties: &[u8],
        body: &[u8],
    ) -> Result<(), Fault> {
        let message = Publish {
            exchange: publish.exchange,
            routing_key: publish.routing_key,
            properties,
            body: Body::Copied(body),
        };
        self.take_message(context, message, publish.mandatory)
    }

    /// Starts to wait for the content of a publish.
    pub(crate) fn expect_content(&mut self, publish: &basic::Publish<'_>) {
        let pending = PendingPublish {
            exchange: publish.exchange.into(),
            routing_key: publish.routing_key.into(),
            mandatory: publish.mandatory,
        };
        self.assembler.expect(pending, (60, 40));
    }

    pub(crate) fn handle_header(
        &mut self,
        context: &ChannelContext,
        header: ContentHeader<'_>,
    ) -> Result<(), Fault> {
        let progress = self.assembler.header(header, context.shared.config.max_message_size)?;
        self.take_progress(context, progress)
    }

    pub(crate) fn handle_body(&mut self, context: &ChannelContext, piece: &[u8]) -> Result<(), Fault> {
        let progress = self.assembler.body(piece)?;
        self.take_progress(context, progress)
    }

    /// Bytes of an incomplete message.
    pub(crate) fn incomplete_bytes(&self) -> usize {
        self.assembler.buffered_len()
    }

    fn take_progress(
        &mut self,
        context: &ChannelContext,
        progress: Assembled<'_, PendingPublish>,
    ) -> Result<(), Fault> {
        let Assembled::Complete(Content { method, properties, body }) = progress else { return Ok(()) };
        let chunk;
        let body = match body {
            std::borrow::Cow::Borrowed(bytes) => Body::Copied(bytes),
            std::borrow::Cow::Owned(bytes) => {
                chunk = [Bytes::from(bytes)];
                Body::Chunks(&chunk)
            }
        };
        let message = Publish {
            exchange: &method.exchange,
            routing_key: &method.routing_key,
            properties: &properties,
            body,
        };
        let outcome = self.take_message(context, message, method.mandatory);
        if matches!(&outcome, Err(fault) if fault.is_unasked) {
            let body = match body {
                Body::Copied(bytes) => Bytes::copy_from_slice(bytes),
                Body::Chunks([chunk]) => chunk.clone(),
                Body::Chunks(chunks) => Bytes::from(chunks.concat()),
            };
            let properties = (&*properties).into();
            context.publish_later(WaitingPublish { channel: self.number, method, properties, body: [body] });
        }
        outcome.map_err(|fault| fault.caused_by((60, 40)))
    }

    /// Repeats a deferred publish.
    pub(crate) fn publish_again(
        &mut self,
        context: &ChannelContext,
        waiting: WaitingPublish,
    ) -> Result<(), Fault> {
        let WaitingPublish { method, properties, body, .. } = &waiting;
        let message = Publish {
            exchange: &method.exchange,
            routing_key: &method.routing_key,
            properties,
            body: Body::Chunks(body),
        };
        let outcome = self.take_message(context, message, method.mandatory);
        if matches!(&outcome, Err(fault) if fault.is_unasked) {
            context.publish_later(waiting);
        }
        outcome
    }

    fn take_message(
        &mut self,
        context: &ChannelContext,
        message: Publish<'_>,
        mandatory: bool,
    ) -> Result<(), Fault> {
        if let Mode::Tx(transaction) = &mut self.mode {
            let publisher = self.publisher.get(context, self.number);
            return transaction.publish(publisher, message, mandatory, context.now);
        }
        let is_routed = self.publisher.get(context, self.number).publish(message, context.now)?;
        if let Mode::Confirm(confirms) = &mut self.mode {
            confirms.count_publish();
            context.shared.metrics.confirms(FrontEnd::Amqp).wanted.add(1);
        }
        if !is_routed {
            self.is_unroutable(context, message, mandatory);
        }
        Ok(())
    }

    /// Handles a message that was routed to no queue: returns it if it was mandatory.
    pub(super) fn is_unroutable(&self, context: &ChannelContext, message: Publish<'_>, mandatory: bool) {
        self.view.publishing().unroutable(mandatory, context.now);
        if mandatory {
            self.return_unroutable(context, message);
        } else {
            context.vhost.count_dropped();
        }
    }

    pub(super) fn count_published(&self, context: &ChannelContext, count: u64) {
        if count > 0 {
            self.view.publishing().published(count, context.now);
        }
    }

    /// Sends basic.return.
    fn return_unroutable(&self, context: &ChannelContext, message: Publish<'_>) {
        let code = ReplyCode::NoRoute;
        let method = basic::Return {
            reply_code: code.code(),
            reply_text: code.name(),
            exchange: message.exchange,
            routing_key: message.routing_key,
        };
        let destination = Destination { channel: self.number, frame_max: context.frame_max };
        let properties = broker::without_blind_copies(message.properties);
        let own = self.replies.as_ref().filter(|_| context.vhost.compatibility().reveals_reply_queues());
        let answerable = own.and_then(|own| broker::with_reply_queue(&properties, Some(own.name())).ok()?);
        let properties = answerable.map_or(properties, Cow::Owned);
        context.outbox.append(|buf| {
            write_message(buf, destination, method.into(), &properties, view(&message.body));
        });
        context.shared.metrics.messages_returned.add(1);
    }

    /// Flushes publishes and confirms them as soon as possible, or continues a method that takes more than a turn.
    /// Returns whether all is done; otherwise the caller calls again in the connection's next turn.
    ///
    /// # Errors
    /// The error of a commit, which closes the channel.
    pub(crate) fn flush(&mut self, context: &ChannelContext) -> Result<bool, Fault> {
        if !self.continue_settling(context) {
            return Ok(false);
        }
        if self.is_committing() {
            return self.continue_commit(context);
        }
        let Some(flushed) = self.publisher.flush(context.now) else { return Ok(true) };
        if flushed.unfinished {
            self.show_unconfirmed();
            return Ok(false);
        }
        context.handed_over(&flushed, &self.view);
        self.count_published(context, flushed.count);
        let (number, view) = (self.number, &self.view);
        if let Mode::Confirm(confirms) = &mut self.mode
            && flushed.count > 0
        {
            confirms.add(&flushed, |run| confirm(context, number, view, run));
            if let Some(until) = flushed.until {
                context.wait_until_stored(until);
            }
            self.show_unconfirmed();
        }
        Ok(true)
    }

    /// Flushes everything, however long it takes: the next operation must see all earlier publishes. No commit
    /// is under way when a frame is taken.
    pub(super) fn flush_all(&mut self, context: &ChannelContext) {
        while matches!(self.flush(context), Ok(false)) {}
    }

    /// Updates the number of unconfirmed publishes that operators see.
    fn show_unconfirmed(&self) {
        if let Mode::Confirm(confirms) = &self.mode {
            self.view.unconfirmed.store(confirms.unconfirmed(), Ordering::Relaxed);
        }
    }

    /// Whether confirms wait for the disk.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        matches!(&self.mode, Mode::Confirm(confirms) if confirms.until().is_some())
    }

    /// Sends the confirms that have waited for the log up to `durable`.
    pub(crate) fn confirm_up_to(&mut self, context: &ChannelContext, durable: Lsn) {
        let (number, view) = (self.number, &self.view);
        if let Mode::Confirm(confirms) = &mut self.mode {
            confirms.release(durable, |run| confirm(context, number, view, run));
            self.show_unconfirmed();
        }
    }

    /// Called at the channel's end: its remaining confirms are sent when they are due, before anything sent later.
    pub(super) fn leave_confirms(&mut self, context: &ChannelContext) {
        let (number, view) = (self.number, &self.view);
        if let Mode::Confirm(confirms) = &mut self.mode
            && let Some(until) = confirms.until()
        {
            context.hold_until(Some(until));
            confirms.release(until, |run| confirm(context, number, view, run));
        }
    }
}

/// All publishes before a run are confirmed already, so `multiple` needs no lower end.
fn confirm(context: &ChannelContext, channel: u16, view: &OpenChannel, run: Run) {
    let Run { first, last: delivery_tag, refused } = run;
    let multiple = delivery_tag > first;
    context.shared.metrics.confirms(FrontEnd::Amqp).given.add(delivery_tag - first + 1);
    if refused {
        context.send(channel, basic::Nack { delivery_tag, multiple, requeue: false });
    } else {
        view.publishing().confirmed(delivery_tag - first + 1, context.now);
        context.send(channel, basic::Ack { delivery_tag, multiple });
    }
}
