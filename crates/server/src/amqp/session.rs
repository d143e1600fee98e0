//! The backend session of an open AMQP connection.

use std::time::Instant;

use amqp::{Fault, Frame};
use proxy::Export;

/// The backend's side of an open connection, on the embedded broker or at an upstream. It answers through the
/// connection's outbox.
pub(crate) trait BackendSession: Send {
    /// Handles a frame of any channel but 0, together with following bytes in `rest` that belong to the same
    /// message; returns the number of bytes taken from `rest`.
    ///
    /// # Errors
    /// A fault that ends the connection. The session handles faults that end a channel itself.
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault>;
    /// Called after an error of [`BackendSession::handle_frame`]: whether the frame has only been deferred, until another
    /// party answers. [`BackendSession::has_capacity`] returns false until then.
    fn take_deferral(&mut self) -> Option<Deferral> {
        None
    }
    /// Whether a frame can be taken now. If not, it is passed in again once [`BackendSession::has_capacity`] returns
    /// true, which a nudge of the outbox announces.
    fn takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool;
    /// Called at the end of a batch of frames: flushes publishes. Those that do not fit into the turn follow in the next
    /// turn, before [`BackendSession::has_capacity`] allows more.
    fn flush(&mut self, now: Instant);
    /// Called after another task has nudged the outbox.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault>;
    /// Called when the connection's outbox has capacity again.
    fn handle_capacity(&mut self, now: Instant);
    /// The latest time at which to call [`BackendSession::handle_deadline`].
    fn next_deadline(&self) -> Option<Instant>;
    /// Called at the time of [`BackendSession::next_deadline`].
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_deadline(&mut self, now: Instant) -> Result<(), Fault>;
    /// Whether more frames can be taken. If not, the outbox is nudged when they can.
    fn has_capacity(&self) -> bool;
    /// Handles connection.update-secret: a new password or token of the same user. Returns true if the client has to be
    /// answered now; otherwise the session answers or fails later.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault>;
    /// Number of open channels.
    fn channel_count(&self) -> usize;
    /// Upstream connections of its channels, if any, for the log.
    fn upstreams(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether all publishes of the client are confirmed. If not, the outbox is nudged when that may have changed.
    fn is_settled(&self) -> bool;
    /// Takes the next step of handing the client over to another process.
    fn export(&mut self, _now: Instant) -> Export {
        Export::Impossible("its session is in this process alone")
    }
    /// Called for connection.close: flushes publishes and releases everything. Returns true if that is done, so that the
    /// client can be answered; otherwise the outbox is nudged when [`BackendSession::is_closed`].
    fn close(&mut self, now: Instant) -> bool;
    /// Whether [`BackendSession::close`] has finished.
    fn is_closed(&self) -> bool;
    /// Whether frames of the client have not been forwarded yet, after [`BackendSession::close`].
    fn has_waiting_frames(&self) -> bool {
        false
    }
    /// Whether a close that has not finished in time may be answered, since no confirmed publish depends on it.
    fn has_stored_publishes(&self) -> bool {
        true
    }
    /// The connection has ended, in whatever way: flushes its publishes and releases everything it holds. If
    /// [`BackendSession::has_ended`] is false after that, the outbox is nudged, and this is to be called again next turn.
    fn end(&mut self, now: Instant);
    /// Whether [`BackendSession::end`] has done everything.
    fn has_ended(&self) -> bool {
        true
    }
    /// The same for a client that sends again by itself what has not been confirmed.
    fn discard(&mut self, now: Instant) {
        self.end(now);
    }
}

/// The part of the input that is deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deferral {
    /// The frame, which is passed in again.
    Frame,
    /// The frames after this one, which the session has taken.
    Rest,
}

impl BackendSession for proxy::ProxySession {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault> {
        Self::handle_frame(self, frame, rest, now)
    }

    fn takes(&mut self, _frame: &Frame<'_>, _now: Instant) -> bool {
        true
    }

    fn flush(&mut self, now: Instant) {
        Self::flush(self, now);
    }

    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault> {
        Self::handle_nudge(self, now)
    }

    fn handle_capacity(&mut self, _now: Instant) {
        Self::handle_capacity(self);
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&mut self, _now: Instant) -> Result<(), Fault> {
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        Self::has_capacity(self)
    }

    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault> {
        Self::update_secret(self, secret)
    }

    fn channel_count(&self) -> usize {
        Self::channel_count(self)
    }

    fn upstreams(&self) -> Vec<String> {
        Self::upstreams(self)
    }

    fn is_settled(&self) -> bool {
        Self::is_settled(self)
    }

    fn export(&mut self, now: Instant) -> Export {
        Self::export(self, now)
    }

    fn close(&mut self, now: Instant) -> bool {
        Self::close(self, now)
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    fn has_waiting_frames(&self) -> bool {
        Self::has_waiting_frames(self)
    }

    fn has_stored_publishes(&self) -> bool {
        self.keeps_waiting_frames()
    }

    fn end(&mut self, now: Instant) {
        Self::end(self, now);
    }

    fn discard(&mut self, now: Instant) {
        Self::discard(self, now);
    }
}
