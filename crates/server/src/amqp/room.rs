//! Pauses publishers while too many bytes wait to be written to disk, or to be moved from memory to disk, while a queue
//! has its consumers catch up, and until their next turn if one turn was not enough for their publishes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::{Flushed, Timestamp, VirtualHost, Waiter};
use transport::Outbox;

/// Pauses one connection.
pub(crate) struct DiskRoom {
    paused: Cell<bool>,
    signal: Arc<Signal>,
}

struct Signal {
    outbox: Arc<Outbox>,
    given: AtomicBool,
}

impl Waiter for Signal {
    fn wake(&self) {
        self.given.store(true, Ordering::Release);
        self.outbox.nudge();
    }
}

impl DiskRoom {
    pub(crate) fn new(outbox: Arc<Outbox>) -> Self {
        let signal = Arc::new(Signal { outbox, given: AtomicBool::new(false) });
        Self { paused: Cell::new(false), signal }
    }

    /// Whether the client's messages can be taken.
    pub(crate) fn is_there(&self) -> bool {
        !self.paused.get()
    }

    /// Pauses until there is room, which nudges the outbox.
    pub(crate) fn pause(&self, vhost: &VirtualHost) {
        if !self.paused.replace(true) {
            vhost.wait_for_room(self.signal.clone());
        }
    }

    /// Pauses after a flush if there is no room, or if a queue holds the publisher; returns whether one does.
    pub(crate) fn after(&self, flushed: &Flushed, vhost: &VirtualHost, now: Timestamp) -> bool {
        if flushed.full {
            self.pause(vhost);
        }
        let Some(hold) = flushed.hold.as_ref().filter(|_| !self.paused.get()) else { return false };
        let signal: Arc<dyn Waiter> = self.signal.clone();
        let is_held = hold.wait(&signal, now);
        // The signal may have been given already, with a nudge that is still to be handled.
        self.paused.set(is_held);
        is_held
    }

    /// Pauses until the connection's next turn: nudges the outbox now.
    pub(crate) fn pause_for_turn(&self) {
        self.paused.set(true);
        self.signal.wake();
    }

    /// Called after a nudge: resumes if there is room that others have not taken meanwhile.
    pub(crate) fn resume(&self, vhost: &VirtualHost) {
        if self.paused.get() && self.signal.given.swap(false, Ordering::AcqRel) {
            self.paused.set(false);
            if !vhost.has_room() {
                self.pause(vhost);
            }
        }
    }
}
