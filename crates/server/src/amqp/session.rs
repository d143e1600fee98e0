//! What an open AMQP connection is joined to.

use std::time::Instant;

use amqp::{Fault, Frame};

/// The back end's side of one open connection: the embedded broker's, or an upstream's. It answers through the
/// connection's outbox, which it was made with.
pub(crate) trait Session: Send {
    /// Takes a frame of any channel but 0, and as many of the bytes behind it as belong to the same message and lie
    /// there already; returns how many of `rest` those were.
    ///
    /// # Errors
    /// A fault that ends the connection. Those that end a channel are the session's own business.
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], now: Instant) -> Result<usize, Fault>;
    /// Whether a frame can be taken now. If not, it is shown again once [`Session::has_room`] says so; the outbox is nudged
    /// then.
    fn takes(&mut self, frame: &Frame<'_>, now: Instant) -> bool;
    /// The batch of frames that was read at once is through: hand over what was gathered. What does not fit into the turn
    /// follows in the next, before [`Session::has_room`] says that more can be taken.
    fn flush(&mut self, now: Instant);
    /// Another task has left word.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_nudge(&mut self, now: Instant) -> Result<(), Fault>;
    /// The connection's outbox has room again.
    fn handle_room(&mut self, now: Instant);
    /// When to call [`Session::handle_deadline`], at the latest.
    fn next_deadline(&self) -> Option<Instant>;
    /// The time of [`Session::next_deadline`] has come.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn handle_deadline(&mut self, now: Instant) -> Result<(), Fault>;
    /// Whether more frames can be taken. After a no, the outbox is nudged when they can.
    fn has_room(&self) -> bool;
    /// connection.update-secret: a new password or token for the same user. True when the client is to be answered now;
    /// otherwise the session does that itself, or faults, when it knows.
    ///
    /// # Errors
    /// A fault that ends the connection.
    fn update_secret(&mut self, secret: &[u8]) -> Result<bool, Fault>;
    /// Channels that are open.
    fn channel_count(&self) -> usize;
    /// Upstream connections of its channels, if there are any, for the log.
    fn upstreams(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether nothing that the client published waits for its confirm. After a no, the outbox is nudged when it is worth
    /// asking again.
    fn is_settled(&self) -> bool;
    /// The client closes its connection: what it holds is released, and what it published is handed over. True when that
    /// is done, so that the client can be answered; otherwise the outbox is nudged when [`Session::is_closed`].
    fn close(&mut self, now: Instant) -> bool;
    /// Whether nothing of the client is left, after [`Session::close`].
    fn is_closed(&self) -> bool;
    /// The connection is over, however it ended: what it holds is released, and what it published is handed over.
    fn end(&mut self, now: Instant);
}

impl Session for proxy::Session {
    fn handle_frame(&mut self, frame: Frame<'_>, rest: &[u8], _now: Instant) -> Result<usize, Fault> {
        Self::handle_frame(self, frame, rest)
    }

    fn takes(&mut self, _frame: &Frame<'_>, _now: Instant) -> bool {
        true
    }

    fn flush(&mut self, _now: Instant) {
        Self::flush(self);
    }

    fn handle_nudge(&mut self, _now: Instant) -> Result<(), Fault> {
        Self::handle_nudge(self)
    }

    fn handle_room(&mut self, _now: Instant) {
        Self::handle_room(self);
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn handle_deadline(&mut self, _now: Instant) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        Self::has_room(self)
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

    fn close(&mut self, _now: Instant) -> bool {
        Self::close(self)
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    fn end(&mut self, _now: Instant) {
        Self::end(self);
    }
}
