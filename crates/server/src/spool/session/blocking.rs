//! Alarms of the spool: they block a client that publishes to it.

use amqp::frame;
use amqp::method::connection as methods;

use super::SpoolingSession;

impl SpoolingSession {
    /// Whether the spool accepts a publish now. If not, the client is blocked, with connection.blocked.
    pub(super) fn may_publish(&mut self) -> bool {
        if self.blocked.is_some() {
            return false;
        }
        let Some((blocked, reason)) = self.local.block(&self.queue, &self.outbox) else { return true };
        self.blocked = Some(blocked);
        if self.takes_blocked && !self.connection.is_blocked_upstream {
            self.outbox.append(|buf| frame::write_method(buf.tail(), 0, methods::Blocked { reason }));
        }
        false
    }

    /// Unblocks the client if no alarm is raised any more.
    pub(super) fn unblock(&mut self) {
        if self.blocked.is_none() {
            return;
        }
        // An alarm of the queue or of the spool may still be raised; its end wakes the session next.
        self.blocked = self.local.block(&self.queue, &self.outbox).map(|(blocked, _)| blocked);
        if self.blocked.is_some() {
            return;
        }
        if self.takes_blocked && !self.connection.is_blocked_upstream {
            self.outbox.append(|buf| frame::write_method(buf.tail(), 0, methods::Unblocked {}));
        }
    }
}
