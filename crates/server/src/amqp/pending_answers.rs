//! Answers that wait for the disk.
//!
//! A durable declaration is answered once it is on disk, and so are commits and purges. If every declaration waited
//! alone, a client that declares many things would wait for the disk each time. So the answers of consecutive
//! declarations wait together, and no other frame is handled until they have been sent.

use std::cell::RefCell;
use std::sync::Arc;

use amqp::frame::{self, Frame, FrameKind};
use amqp::method::Method;
use broker::{DiskPoint, Store, Waiter};
use transport::Outbox;

/// Bytes of waiting answers above which the client is not read.
const MAX_PENDING_ANSWERS: usize = 64 * 1024;

/// Class ids of exchange.* and queue.*, and the method id of queue.purge, which changes messages.
const EXCHANGE: u16 = 40;
const QUEUE: u16 = 50;
const QUEUE_PURGE: u16 = 30;

/// The waiting answers of one connection, in order.
#[derive(Default)]
pub(crate) struct AnswersWaitingForDisk {
    pending: RefCell<PendingAnswer>,
}

#[derive(Default)]
struct PendingAnswer {
    bytes: Vec<u8>,
    /// The writes that the answers wait for; empty if none waits.
    until: DiskPoint,
    /// Whether a frame was refused because it has to wait for the answers.
    blocking: bool,
}

impl PendingAnswer {
    fn waits(&self) -> bool {
        !self.until.is_empty()
    }
}

impl AnswersWaitingForDisk {
    /// Sends a method to the client, behind any waiting answers.
    pub(crate) fn send(&self, outbox: &Outbox, channel: u16, method: Method<'_>) {
        let mut pending = self.pending.borrow_mut();
        if pending.waits() {
            frame::write_method(&mut pending.bytes, channel, method);
        } else {
            outbox.append(|buf| frame::write_method(buf.tail(), channel, method));
        }
    }

    /// Makes later answers wait until everything in `point` is on disk.
    pub(crate) fn hold_until(&self, point: DiskPoint, store: &Store, waiter: &Arc<dyn Waiter>) {
        let mut pending = self.pending.borrow_mut();
        let until = pending.until.and(store.missing(point));
        if until != pending.until {
            pending.until = until;
            store.wait_for(until, waiter);
        }
    }

    /// Whether a frame may be taken while answers wait. If not, it has to be passed in again once none waits.
    pub(crate) fn lets_pass(&self, frame: &Frame<'_>) -> bool {
        let mut pending = self.pending.borrow_mut();
        let passes = !pending.waits() || (pending.bytes.len() < MAX_PENDING_ANSWERS && is_declaration(frame));
        pending.blocking |= !passes;
        passes
    }

    /// Whether the client's next frame can be taken, as far as known.
    pub(crate) fn has_capacity(&self) -> bool {
        let pending = self.pending.borrow();
        !pending.waits() || (!pending.blocking && pending.bytes.len() < MAX_PENDING_ANSWERS)
    }

    /// Whether no answer waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.pending.borrow().waits()
    }

    /// Sends the waiting answers if everything that they wait for is on disk.
    pub(crate) fn release(&self, store: &Store, outbox: &Outbox) {
        let mut pending = self.pending.borrow_mut();
        if pending.waits() && store.missing(pending.until).is_empty() {
            let answers = std::mem::take(&mut *pending);
            outbox.append(|buf| buf.tail().extend_from_slice(&answers.bytes));
        }
    }
}

fn is_declaration(frame: &Frame<'_>) -> bool {
    let Some((&[a, b, c, d], _)) = frame.payload.split_first_chunk() else { return false };
    let (class, method) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    frame.kind == FrameKind::Method && (class == EXCHANGE || (class == QUEUE && method != QUEUE_PURGE))
}
