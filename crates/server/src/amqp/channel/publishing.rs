//! basic.publish and its confirms.

use amqp::content::{Content, Progress};
use amqp::error::{Fault, ReplyCode};
use amqp::method::basic;
use amqp::properties::ContentHeader;
use broker::{Body, Flushed, Publish};
use bytes::Bytes;

use super::super::broker_session::Context;
use super::super::content::{Destination, view, write_message};
use super::{Channel, Mode};

/// A publish whose content has not arrived yet.
#[derive(Debug)]
pub(super) struct PendingPublish {
    exchange: Box<str>,
    routing_key: Box<str>,
    mandatory: bool,
}

impl Channel {
    /// Publishes a message whose content is there.
    pub(crate) fn publish(
        &mut self,
        context: &Context,
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

    /// Waits for the content of a publish.
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
        context: &Context,
        header: ContentHeader<'_>,
    ) -> Result<(), Fault> {
        let progress = self.assembler.header(header, context.shared.config.max_message_size)?;
        self.take_progress(context, progress)
    }

    pub(crate) fn handle_body(&mut self, context: &Context, piece: &[u8]) -> Result<(), Fault> {
        let progress = self.assembler.body(piece)?;
        self.take_progress(context, progress)
    }

    fn take_progress(
        &mut self,
        context: &Context,
        progress: Progress<'_, PendingPublish>,
    ) -> Result<(), Fault> {
        let Progress::Complete(Content { method, properties, body }) = progress else { return Ok(()) };
        let chunk;
        let body = match body {
            std::borrow::Cow::Borrowed(octets) => Body::Copied(octets),
            std::borrow::Cow::Owned(octets) => {
                chunk = [Bytes::from(octets)];
                Body::Chunks(&chunk)
            }
        };
        let message = Publish {
            exchange: &method.exchange,
            routing_key: &method.routing_key,
            properties: &properties,
            body,
        };
        self.take_message(context, message, method.mandatory).map_err(|fault| fault.caused_by((60, 40)))
    }

    fn take_message(
        &mut self,
        context: &Context,
        message: Publish<'_>,
        mandatory: bool,
    ) -> Result<(), Fault> {
        match &mut self.mode {
            Mode::Tx(transaction) => return transaction.publish(&self.publisher, message, mandatory),
            Mode::Confirm(_) => context.shared.metrics.messages_to_confirm.add(1),
            Mode::Plain => {}
        }
        if !self.publisher.publish(message, context.now)? && mandatory {
            self.return_unroutable(context, message);
        }
        Ok(())
    }

    /// basic.return of a mandatory message that reached no queue.
    pub(super) fn return_unroutable(&self, context: &Context, message: Publish<'_>) {
        let code = ReplyCode::NoRoute;
        let method = basic::Return {
            reply_code: code.code(),
            reply_text: code.name(),
            exchange: message.exchange,
            routing_key: message.routing_key,
        };
        let destination = Destination { channel: self.number, frame_max: context.frame_max };
        let properties = broker::without_blind_copies(message.properties);
        context.outbox.append(|buf| {
            write_message(buf, destination, method.into(), &properties, view(&message.body));
        });
        context.shared.metrics.messages_returned.add(1);
    }

    /// Hands over what was published, and confirms it.
    pub(crate) fn flush(&mut self, context: &Context) {
        let flushed = self.publisher.flush(context.now);
        if let Mode::Confirm(confirmed) = &mut self.mode
            && flushed.count > 0
        {
            let first = *confirmed + 1;
            *confirmed += flushed.count;
            context.shared.metrics.messages_confirmed.add(flushed.count);
            self.confirm(context, first, &flushed);
        }
    }

    /// Acks and nacks, in order, each for a run as long as possible. All that came before a run is settled already,
    /// so `multiple` needs no lower end.
    fn confirm(&self, context: &Context, first: u64, flushed: &Flushed) {
        let mut refused = flushed.refused.iter().copied().peekable();
        let mut next = 0;
        while next < flushed.count {
            let start = next;
            let is_refused = refused.peek() == Some(&start);
            if is_refused {
                while refused.next_if_eq(&next).is_some() {
                    next += 1;
                }
            } else {
                next = refused.peek().copied().unwrap_or(flushed.count);
            }
            let (delivery_tag, multiple) = (first + next - 1, next - start > 1);
            if is_refused {
                context.send(self.number, basic::Nack { delivery_tag, multiple, requeue: false });
            } else {
                context.send(self.number, basic::Ack { delivery_tag, multiple });
            }
        }
    }
}
