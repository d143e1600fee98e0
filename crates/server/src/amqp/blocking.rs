//! The part of a connection in the server's alarms: what it publishes waits, and whatever it sends behind that.

use amqp::frame::{self, Frame, FrameKind};
use amqp::method::connection;

use super::broker_session::Context;
use crate::alarms::Blocked;

/// Whether the alarms block a connection.
///
/// A blocked connection is not read, as in RabbitMQ: not even its connection.close is answered, for what it has published
/// before that would have to be let in, or dropped. It is still sent deliveries and heartbeats.
#[derive(Default)]
pub(super) struct Blocking {
    place: Option<Blocked>,
}

impl Blocking {
    /// Whether a frame of a channel may be taken now. If not, it blocks the connection until [`Blocking::go_on`] ends
    /// that.
    #[inline]
    pub(super) fn lets_pass(&mut self, frame: &Frame<'_>, context: &Context) -> bool {
        self.place.is_none() && (!context.shared.alarms.stand() || !publishes(frame) || !self.begin(context))
    }

    /// Whether nothing can be taken.
    pub(super) fn is_blocked(&self) -> bool {
        self.place.is_some()
    }

    /// Ends the waiting if no alarm stands any more.
    pub(super) fn go_on(&mut self, context: &Context) {
        if self.place.is_none() || context.shared.alarms.stand() {
            return;
        }
        self.place = None;
        if context.capabilities.connection_blocked {
            context.outbox.append(|buf| frame::write_method(buf.tail(), 0, connection::Unblocked {}));
        }
    }

    /// Blocks the connection and tells the client why, unless the alarm is over by now.
    #[cold]
    fn begin(&mut self, context: &Context) -> bool {
        let Some((place, reason)) = context.shared.alarms.block(&context.outbox) else { return false };
        self.place = Some(place);
        if context.capabilities.connection_blocked {
            context.outbox.append(|buf| frame::write_method(buf.tail(), 0, connection::Blocked { reason }));
        }
        true
    }
}

/// Whether a frame is part of a message that the client publishes.
pub(super) fn publishes(frame: &Frame<'_>) -> bool {
    frame.kind != FrameKind::Method || frame.payload.starts_with(&BASIC_PUBLISH)
}

/// Class and method id of basic.publish, as they begin its frame's payload.
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];
