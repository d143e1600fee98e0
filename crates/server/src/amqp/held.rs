//! Answers that wait for the disk.
//!
//! What is declared durable is answered when it is written down, and so is what a transaction or a purge has done. So that
//! clients that declare many things in a row do not wait for the disk each time, the answers of a run of declarations wait
//! together; whatever else the client sends is not looked at before they are out.

use std::cell::RefCell;
use std::sync::Arc;

use amqp::frame::{self, Frame, FrameKind};
use amqp::method::Method;
use broker::{Lsn, Store, Ticket, Waiter};
use transport::Outbox;

/// Bytes of answers that may wait before nothing more is read from the client.
const MAX_HELD: usize = 64 * 1024;

/// Class ids of exchange.* and queue.*, and the method id of queue.purge, which is about messages.
const EXCHANGE: u16 = 40;
const QUEUE: u16 = 50;
const QUEUE_PURGE: u16 = 30;

/// The answers of one connection that wait, in order.
#[derive(Default)]
pub(crate) struct HeldAnswers {
    held: RefCell<Held>,
}

#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// What has to be on disk before they are sent, of definitions and of messages; neither when nothing waits.
    ticket: Option<Ticket>,
    lsn: Option<Lsn>,
    /// Something came that has to wait for them.
    blocking: bool,
}

impl Held {
    fn waits(&self) -> bool {
        self.ticket.is_some() || self.lsn.is_some()
    }
}

impl HeldAnswers {
    /// Writes a method to the client, behind whatever waits.
    pub(crate) fn send(&self, outbox: &Outbox, channel: u16, method: Method<'_>) {
        let mut held = self.held.borrow_mut();
        if held.waits() {
            frame::write_method(&mut held.bytes, channel, method);
        } else {
            outbox.append(|buf| frame::write_method(buf.tail(), channel, method));
        }
    }

    /// What is sent from now on waits for `ticket`.
    pub(crate) fn hold_until(&self, ticket: Ticket, store: &Store, waiter: &Arc<dyn Waiter>) {
        let mut held = self.held.borrow_mut();
        if !store.catalogue().is_committed(ticket) && held.ticket.is_none_or(|until| until < ticket) {
            held.ticket = Some(ticket);
            store.catalogue().wait(ticket, Arc::clone(waiter));
        }
    }

    /// What is sent from now on waits for messages, or what became of them.
    pub(crate) fn hold_until_stored(&self, lsn: Lsn, store: &Store, waiter: &Arc<dyn Waiter>) {
        let mut held = self.held.borrow_mut();
        if store.durable() < lsn && held.lsn.is_none_or(|until| until < lsn) {
            held.lsn = Some(lsn);
            store.wait(lsn, Arc::clone(waiter));
        }
    }

    /// Whether a frame may be taken while answers wait. If not, it has to be shown again once none does.
    pub(crate) fn lets_pass(&self, frame: &Frame<'_>) -> bool {
        let mut held = self.held.borrow_mut();
        let passes = !held.waits() || (held.bytes.len() < MAX_HELD && is_declaration(frame));
        held.blocking |= !passes;
        passes
    }

    /// Whether the client's next frame can be taken, as far as is known.
    pub(crate) fn has_room(&self) -> bool {
        let held = self.held.borrow();
        !held.waits() || (!held.blocking && held.bytes.len() < MAX_HELD)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.held.borrow().waits()
    }

    /// Sends what waits if it need not any more.
    pub(crate) fn release(&self, store: &Store, outbox: &Outbox) {
        let mut held = self.held.borrow_mut();
        let on_disk = held.ticket.is_none_or(|ticket| store.catalogue().is_committed(ticket))
            && held.lsn.is_none_or(|lsn| lsn <= store.durable());
        if held.waits() && on_disk {
            let answers = std::mem::take(&mut *held);
            outbox.append(|buf| buf.tail().extend_from_slice(&answers.bytes));
        }
    }
}

fn is_declaration(frame: &Frame<'_>) -> bool {
    let Some((&[a, b, c, d], _)) = frame.payload.split_first_chunk() else { return false };
    let (class, method) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    frame.kind == FrameKind::Method && (class == EXCHANGE || (class == QUEUE && method != QUEUE_PURGE))
}
