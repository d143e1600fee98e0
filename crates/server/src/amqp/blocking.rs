//! Blocks a publishing connection while an alarm is raised: its publishes and everything that it sends after them wait.

use amqp::frame::{self, Frame, FrameKind};
use amqp::method::connection;

use super::broker_session::ChannelContext;
use crate::alarms::Blocked;

/// Whether the alarms block a connection.
///
/// A blocked connection is not read, as in RabbitMQ: even its connection.close is not answered, because the
/// messages published before it would have to be accepted or dropped. It still receives deliveries and heartbeats.
#[derive(Default)]
pub(super) struct Blocking {
    blocked: Option<Blocked>,
}

impl Blocking {
    /// Whether a frame of a channel may be taken now. If not, this blocks the connection until
    /// [`Blocking::unblock_if_cleared`] unblocks it.
    #[inline]
    pub(super) fn lets_pass(&mut self, frame: &Frame<'_>, context: &ChannelContext) -> bool {
        self.blocked.is_none()
            && (!context.shared.alarms.any_raised() || !publishes(frame) || !self.begin(context))
    }

    /// Whether the connection is blocked.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Unblocks the connection if no alarm is left.
    pub(super) fn unblock_if_cleared(&mut self, context: &ChannelContext) {
        if self.blocked.is_none() || context.shared.alarms.any_raised() {
            return;
        }
        self.blocked = None;
        context.view.set_blocked(false);
        if context.capabilities.connection_blocked {
            context.outbox.append(|buf| frame::write_method(buf.tail(), 0, connection::Unblocked {}));
        }
    }

    /// Blocks the connection and notifies the client of the reason, unless no alarm is raised by now.
    #[cold]
    fn begin(&mut self, context: &ChannelContext) -> bool {
        let Some((blocked, reason)) = context.shared.alarms.block(&context.outbox) else { return false };
        self.blocked = Some(blocked);
        context.view.set_blocked(true);
        if context.capabilities.connection_blocked {
            context.outbox.append(|buf| frame::write_method(buf.tail(), 0, connection::Blocked { reason }));
        }
        true
    }
}

/// Whether a frame is part of a published message.
pub(super) fn publishes(frame: &Frame<'_>) -> bool {
    frame.kind != FrameKind::Method || frame.payload.starts_with(&BASIC_PUBLISH)
}

/// Class and method id of basic.publish, with which its frame's payload begins.
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];
