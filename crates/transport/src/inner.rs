//! An outbox whose reader is in this process: the protocol of another connection, or a task.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::outbox::Outbox;

/// The reading end of an [`Outbox`] that belongs to no socket.
///
/// Each round of the reader: call [`Self::register`], then [`Self::take_nudge`] and [`Self::take_capacity`] as the driver
/// would, then [`Self::read`]. Anything after the call of `register` wakes the reader again. Dropping the reading end
/// closes the outbox.
#[derive(Debug)]
pub struct InnerOutbox {
    outbox: Arc<Outbox>,
}

impl InnerOutbox {
    /// An empty outbox with capacity for a backlog of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { outbox: Arc::new(Outbox::new(limit)) }
    }

    /// The writing end, for those that append to the outbox.
    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Wakes `waker` once there is something to read, a nudge, or free capacity. Waking removes it.
    pub fn register(&self, waker: &Waker) {
        self.outbox.register(&Context::from_waker(waker));
    }

    /// Whether the outbox was nudged since the last call.
    pub fn take_nudge(&self) -> bool {
        self.outbox.take_nudge()
    }

    /// Whether a sender waits for capacity that is free now.
    pub fn take_capacity(&self) -> bool {
        self.outbox.take_starved()
    }

    /// Appends all pending bytes to `bytes`; returns whether there were any.
    pub fn read(&self, bytes: &mut Vec<u8>) -> bool {
        let before = bytes.len();
        self.outbox.read_into(bytes);
        bytes.len() > before
    }
}

impl Drop for InnerOutbox {
    fn drop(&mut self) {
        self.outbox.close();
    }
}

/// Nudges an outbox when woken.
struct Nudging(Arc<Outbox>);

impl Wake for Nudging {
    fn wake(self: Arc<Self>) {
        self.0.nudge();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.nudge();
    }
}

impl Outbox {
    /// A waker that nudges this outbox: this connection's task handles whatever uses it.
    pub fn nudging_waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(Nudging(Arc::clone(self))))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_the_inner_outbox_nudges_the_readers_outbox() {
        let (carrier, inner) = (Arc::new(Outbox::new(10)), InnerOutbox::new(10));
        let waker = carrier.nudging_waker();
        let mut bytes = Vec::new();
        inner.register(&waker);
        assert!(!inner.read(&mut bytes) && !carrier.take_nudge());
        inner.outbox().append(|buf| buf.tail().extend_from_slice(b"one"));
        assert!(carrier.take_nudge());
        inner.register(&waker);
        assert!(inner.read(&mut bytes));
        assert_eq!((&bytes[..], inner.outbox().backlog()), (&b"one"[..], 0));
        inner.outbox().nudge();
        assert!(carrier.take_nudge() && inner.take_nudge() && !inner.take_nudge());
    }

    #[test]
    fn a_sender_that_found_no_capacity_is_remembered_until_the_reader_has_read() {
        let inner = InnerOutbox::new(4);
        inner.outbox().append(|buf| buf.tail().extend_from_slice(b"12345"));
        assert!(!inner.outbox().has_capacity() && !inner.take_capacity());
        inner.read(&mut Vec::new());
        assert!(inner.take_capacity() && !inner.take_capacity());
    }

    #[test]
    fn the_writing_end_is_closed_with_the_reading_end() {
        let inner = InnerOutbox::new(4);
        let outbox = Arc::clone(inner.outbox());
        drop(inner);
        assert!(outbox.is_closed());
    }
}
